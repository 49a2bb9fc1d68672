/*
 * Peers: other ranks' engines as this one sees them, their states, and the news of them that the
 * floor above has not taken yet. News are collected per peer, so there is no queue that could
 * overflow: a second loss adds at most its proof to the first.
 */
#include "core/engine/internal.h"

#include <stdlib.h>
#include <string.h>

/* ---- states ---------------------------------------------------------------------------------- */

#define TO(state) (1u << FT_PEER_##state)

/* Legal moves: row = from, bit = to. */
static const unsigned moves[FT_PEER_STATES] = {
    [FT_PEER_OPEN] = TO(LOST) | TO(LEFT) | TO(UNREACHABLE) | TO(FENCED) | TO(DEAD),
    [FT_PEER_LOST] = TO(OPEN) | TO(UNREACHABLE) | TO(FENCED) | TO(DEAD),
    [FT_PEER_LEFT] = TO(OPEN) | TO(UNREACHABLE) | TO(FENCED) | TO(DEAD),
    [FT_PEER_UNREACHABLE] = TO(OPEN) | TO(LEFT) | TO(FENCED) | TO(DEAD),
    [FT_PEER_FENCED] = TO(DEAD),
    [FT_PEER_DEAD] = 0,
};

const char *ft_peer_state_name(enum ft_peer_state state)
{
    static const char *const names[FT_PEER_STATES] = {"open",        "lost",   "left",
                                                      "unreachable", "fenced", "dead"};
    return (unsigned)state < FT_PEER_STATES ? names[state] : "?";
}

bool ft_peer_move(struct ft_engine *engine, struct ft_peer *peer, enum ft_peer_state to)
{
    ft_engine_assert_held(engine);
    if (!(moves[peer->state] & 1u << to))
        return false;
    FT_LOG(TRACE, "net", engine->rank, "rank %d: %s -> %s", peer->rank,
           ft_peer_state_name(peer->state), ft_peer_state_name(to));
    peer->state = to;
    return true;
}

/* ---- news ------------------------------------------------------------------------------------ */

static void add_news(struct ft_engine *engine, struct ft_peer *peer)
{
    if (peer->has_news)
        return;
    peer->has_news = true;
    peer->next_news = NULL;
    *engine->news_end = peer;
    engine->news_end = &peer->next_news;
}

void ft_peer_lost(struct ft_engine *engine, struct ft_peer *peer, int reason, bool proof)
{
    ft_peer_move(engine, peer, proof ? FT_PEER_DEAD : FT_PEER_LOST);
    if (!peer->news.lost)
        peer->news.reason = reason;
    peer->news.lost = true;
    peer->news.proof |= proof;
    add_news(engine, peer);
}

void ft_peer_link_ends(struct ft_engine *engine, struct ft_peer *peer, bool sender)
{
    *(sender ? &peer->news.tx_end : &peer->news.rx_end) = true;
    add_news(engine, peer);
}

struct ft_peer *ft_engine_next_news(struct ft_engine *engine, struct ft_peer_news *news)
{
    ft_engine_assert_held(engine);
    struct ft_peer *peer = engine->news;
    if (!peer)
        return NULL;
    engine->news = peer->next_news;
    if (!engine->news)
        engine->news_end = &engine->news;
    *news = peer->news;
    memset(&peer->news, 0, sizeof peer->news);
    peer->has_news = false;
    return peer;
}

/* ---- finding and learning -------------------------------------------------------------------- */

struct ft_peer *ft_engine_peer(struct ft_engine *engine, uint64_t id)
{
    struct ft_peer **at = &engine->peers[id % FT_ARRAY_LEN(engine->peers)];
    for (; *at; at = &(*at)->next)
        if ((*at)->id == id)
            return *at;
    struct ft_peer *peer = calloc(1, sizeof *peer);
    if (!peer)
        return NULL;
    peer->id = id;
    peer->rank = peer->tx_row = peer->rx_row = -1;
    peer->next_known = engine->roster;
    engine->roster = peer;
    return *at = peer;
}

int ft_engine_learn(struct ft_engine *engine, uint64_t id, uint64_t host, const void *address,
                    uint32_t len_bytes, int rank)
{
    ft_engine_assert_held(engine);
    struct ft_peer *peer = ft_engine_peer(engine, id);
    unsigned char *copy = malloc(len_bytes + 1);
    if (!peer || !copy) {
        free(copy);
        return ft_fail(FT_NOMEM, "no memory for a peer");
    }
    memcpy(copy, address, len_bytes);
    free(peer->address);
    peer->address = copy;
    peer->address_bytes = len_bytes;
    peer->host = host;
    peer->rank = rank;
    peer->told = true;
    ft_death_watch_learn(engine, peer);
    return FT_OK;
}

bool ft_engine_forgive(struct ft_engine *engine, struct ft_peer *peer)
{
    if (peer->state != FT_PEER_LOST || peer->departed)
        return false;
    return ft_peer_move(engine, peer, FT_PEER_OPEN);
}

/* ---- forgetting ------------------------------------------------------------------------------ */

/* Nobody can refer to it any more: it is in no communicator, nobody told us of it, it asks for
 * none, and it has hung up. */
static bool is_past(const struct ft_peer *peer)
{
    if (peer->told || peer->users > 0 || peer->queued_messages > 0 || peer->askers > 0 ||
        peer->has_news || peer->tx || peer->next_rx)
        return false;
    return !peer->rx || peer->rx->state == FT_LINK_DOWN;
}

static void forget_peer(struct ft_engine *engine, struct ft_peer **known)
{
    struct ft_peer *peer = *known, **at = &engine->peers[peer->id % FT_ARRAY_LEN(engine->peers)];
    while (*at != peer)
        at = &(*at)->next;
    *at = peer->next;
    *known = peer->next_known;
    if (peer->rx)
        ft_engine_close_link(engine, peer, peer->rx);
    free(peer->address);
    free(peer);
}

/* Any number of engines may come, one after another: only those that are there count. */
void ft_peer_forget_past(struct ft_engine *engine)
{
    engine->hung_up = false;
    for (struct ft_peer **at = &engine->roster; *at;) {
        if (is_past(*at))
            forget_peer(engine, at);
        else {
            engine->hung_up |= !(*at)->told && (*at)->queued_messages > 0; /* gone soon */
            at = &(*at)->next_known;
        }
    }
}

void ft_peer_free_all(struct ft_engine *engine)
{
    for (struct ft_peer *peer = engine->roster, *next; peer; peer = next) {
        next = peer->next_known;
        struct ft_link *links[] = {peer->tx, peer->rx, peer->next_rx};
        for (size_t i = 0; i < FT_ARRAY_LEN(links); i++) {
            if (!links[i])
                continue;
            links[i]->cut |= ft_peer_is_fenced(peer);
            links[i]->ops->disconnect(links[i]);
        }
        free(peer->address);
        free(peer);
    }
    memset(engine->peers, 0, sizeof engine->peers);
    engine->roster = engine->news = NULL;
    engine->news_end = &engine->news;
}

/*
 * Peers: the engines of other ranks as this engine knows them, their states, and their news until
 * the floor above takes them. News are kept per peer, so no queue can overflow: a second loss adds
 * at most its proof to the first.
 */
#include "core/engine/internal.h"

#include <stdlib.h>
#include <string.h>

/* ---- states ---------------------------------------------------------------------------------- */

#define TO(state) (1u << FT_PEER_##state)

/* Legal moves: the row is the old state, the bit is the new state. */
static const unsigned moves[FT_PEER_STATES] = {
    [FT_PEER_OPEN] = TO(LOST) | TO(LEFT) | TO(UNREACHABLE) | TO(FENCED) | TO(DEAD),
    [FT_PEER_LOST] = TO(OPEN) | TO(UNREACHABLE) | TO(FENCED) | TO(DEAD),
    [FT_PEER_LEFT] = TO(OPEN) | TO(UNREACHABLE) | TO(FENCED) | TO(DEAD),
    [FT_PEER_UNREACHABLE] = TO(OPEN) | TO(LEFT) | TO(FENCED) | TO(DEAD),
    [FT_PEER_FENCED] = TO(OPEN) | TO(DEAD), /* OPEN: ft_engine_readmit() */
    [FT_PEER_DEAD] = 0,
};

bool ft_peer_move(struct ft_engine *engine, struct ft_peer *peer, enum ft_peer_state to)
{
    ft_engine_assert_held(engine);
    if (!(moves[peer->state] & 1u << to))
        return false;
    FT_LOG(TRACE, "net", engine->rank, "rank %d: %s -> %s", peer->rank,
           ft_peer_state_name((int)peer->state), ft_peer_state_name((int)to));
    ft_telemetry_event(engine->telemetry, FT_MOVED_PEER, peer->id, peer->rank, (int)peer->state,
                       (int)to, FT_OK);
    peer->state = to;
    if (to != FT_PEER_OPEN && peer->host == engine->host)
        ft_ras_hurry();
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

/* ---- finding -------------------------------------------------------------------- */

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
    peer->tx_time.path_row = peer->rx_time.path_row = -1;
    peer->next_known = engine->roster;
    engine->roster = peer;
    return *at = peer;
}

bool ft_engine_forgive(struct ft_engine *engine, struct ft_peer *peer)
{
    if (peer->state != FT_PEER_LOST || peer->departed)
        return false;
    return ft_peer_move(engine, peer, FT_PEER_OPEN);
}

bool ft_engine_readmit(struct ft_engine *engine, struct ft_peer *peer)
{
    ft_engine_assert_held(engine);
    if (peer->state == FT_PEER_DEAD)
        return false;
    peer->departed = peer->redialled = peer->heartbeat.suspected = false;
    peer->news.lost = peer->news.proof = false; /* it was lost for what is over now */
    if (peer->state != FT_PEER_OPEN)
        ft_peer_move(engine, peer, FT_PEER_OPEN);
    peer->old_rx_ns = peer->rx ? ft_now_ns(engine->env) + engine->detect.suspect_ns : 0;
    if (peer->rx && (peer->next_rx || peer->rx->state == FT_LINK_DOWN))
        ft_peer_link_ends(engine, peer, false);
    return true;
}

bool ft_engine_departs(struct ft_engine *engine, struct ft_peer *peer)
{
    ft_engine_assert_held(engine);
    if (!peer->old_rx_ns || peer->next_rx || !peer->rx || !peer->rx->orderly)
        return false;
    peer->old_rx_ns = 0;
    peer->departed = true;
    ft_peer_move(engine, peer, FT_PEER_LEFT);
    return true;
}

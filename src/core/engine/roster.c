/*
 * The roster of known peers. The engine learns a peer from its endpoint, and forgets it when
 * nothing can refer to it any more. Any number of strangers may connect one after another; only
 * those that are connected now use memory.
 */
#include "core/engine/internal.h"

#include <stdlib.h>
#include <string.h>

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
    ft_links_peer_at(peer);
    ft_death_watch_learn(engine, peer);
    return FT_OK;
}

void ft_engine_unlearn(struct ft_engine *engine, struct ft_peer *peer)
{
    ft_engine_assert_held(engine);
    peer->told = false;
    engine->hung_up = true;
}

/* True if nothing can refer to the peer any more: it is in no communicator and no agreement, no
 * other rank tells about it, it asks about no grow, and it has hung up. */
static bool is_past(const struct ft_peer *peer)
{
    if (peer->told || peer->users > 0 || peer->queued_messages > 0 || peer->askers > 0 ||
        peer->agreements > 0 || peer->has_news || peer->tx || peer->next_rx)
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
    ft_death_watch_forget(engine, peer);
    free(peer->address);
    free(peer);
}

void ft_peer_forget_past(struct ft_engine *engine)
{
    engine->hung_up = false;
    for (struct ft_peer **at = &engine->roster; *at;) {
        if (is_past(*at))
            forget_peer(engine, at);
        else {
            /* it can be forgotten once its messages are sent */
            engine->hung_up |= !(*at)->told && (*at)->queued_messages > 0;
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

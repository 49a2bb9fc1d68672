/*
 * Watches the liveness pages (base/liveness.c) of the peers on this host, over whatever transport
 * they are linked. A page proves within milliseconds that a process has ended, even a large one.
 * The endpoint says where a page is. A process that cannot see the page, for example in another
 * container, works without it.
 */
#include "core/engine/internal.h"

#include <assert.h>
#include <string.h>

#define PART "life" /* Name of the part of an endpoint. It holds struct ft_liveness_place. */

void ft_death_watch_open(struct ft_engine *engine)
{
    int fd;
    engine->alive = ft_liveness_open(&fd) == FT_OK;
    if (!engine->alive)
        FT_LOG(INFO, "net", engine->rank, "without a liveness page: %s", ft_fail_text());
}

void ft_death_watch_close(struct ft_engine *engine)
{
    for (struct ft_peer *peer = engine->roster; peer; peer = peer->next_known) {
        ft_liveness_unmap(peer->watch.page);
        peer->watch.page = NULL;
    }
    engine->watched = 0;
    if (engine->alive)
        ft_liveness_close();
    engine->alive = false;
}

bool ft_death_watch_endpoint(const struct ft_engine *engine, struct ft_endpoint *endpoint)
{
    struct ft_liveness_place place;
    if (!engine->alive)
        return true;
    ft_liveness_locate(&place);
    return ft_endpoint_put(endpoint, PART, &place, sizeof place);
}

void ft_death_watch_learn(struct ft_engine *engine, struct ft_peer *peer)
{
    size_t len;
    struct ft_liveness_place place;
    const unsigned char *part = ft_endpoint_part(peer->address, peer->address_bytes, PART, &len);
    if (!engine->alive || peer->watch.page || peer->state == FT_PEER_DEAD ||
        peer->host != engine->host || !part || len != sizeof place)
        return;
    memcpy(&place, part, sizeof place);
    if (ft_liveness_find(&place, &peer->watch.page) == FT_OK)
        engine->watched++;
    else
        FT_LOG(TRACE, "net", engine->rank, "rank %d: %s", peer->rank, ft_fail_text());
}

void ft_death_watch_forget(struct ft_engine *engine, struct ft_peer *peer)
{
    if (!peer->watch.page)
        return;
    ft_liveness_unmap(peer->watch.page);
    assert(engine->watched > 0);
    peer->watch.page = NULL;
    engine->watched--;
}

/* If the peer said goodbye before, that stays true: then nobody waits for it. */
static void mark_dead(struct ft_engine *engine, struct ft_peer *peer)
{
    if (peer->departed) {
        ft_peer_move(engine, peer, FT_PEER_DEAD);
        return;
    }
    FT_LOG(INFO, "net", engine->rank, "rank %d is dead: its process has ended", peer->rank);
    ft_peer_lost(engine, peer, FT_LINK, true);
    if (!peer->tx)
        return;
    peer->tx->cut = true;
    ft_peer_link_ends(engine, peer, true);
}

bool ft_death_watch_ended(const struct ft_peer *peer)
{
    return peer->watch.page && ft_liveness_ended(peer->watch.page);
}

const char *ft_death_watch_why(struct ft_engine *engine, struct ft_peer *peer, int status)
{
    if (peer->departed)
        return "it has left";
    if (ft_death_watch_ended(peer))
        ft_peer_move(engine, peer, FT_PEER_DEAD);
    return peer->state == FT_PEER_DEAD ? "its process has ended" : ft_status_text(status);
}

/* First the engine takes what a process sent before it ended. Therefore one tick lies between
 * seeing the end and acting on it. */
void ft_death_watch_tick(struct ft_engine *engine)
{
    for (struct ft_peer *peer = engine->watched > 0 ? engine->roster : NULL; peer;
         peer = peer->next_known) {
        if (!peer->watch.page)
            continue;
        bool seen = peer->watch.ended;
        peer->watch.ended = ft_liveness_ended(peer->watch.page);
        bool dead = peer->state == FT_PEER_DEAD;
        if (!dead && !(seen && peer->watch.ended))
            continue;
        if (!dead)
            mark_dead(engine, peer);
        if (peer->has_news) /* The floor above reads the peer's liveness page for the cause. */
            continue;
        ft_death_watch_forget(engine, peer);
    }
}

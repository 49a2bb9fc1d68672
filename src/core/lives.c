/*
 * Life pages (base/life.c) of the peers on this host, whatever links there are to them: proof of
 * death in milliseconds however large a process was. The card says where a page is; who cannot see
 * it, in another container for example, does without.
 */
#include "core/core.h"

#include <string.h>

#define PART "life" /* of a card: struct ft_life_place */

void ft_lives_open(struct ft_engine *engine)
{
    int fd;
    engine->alive = ft_life_open(&fd) == FT_OK;
    if (!engine->alive)
        FT_LOG(INFO, "net", engine->rank, "without a life page: %s", ft_fail_text());
}

void ft_lives_close(struct ft_engine *engine)
{
    for (struct ft_peer *peer = engine->roster; peer; peer = peer->next_known) {
        ft_life_unmap(peer->life);
        peer->life = NULL;
    }
    engine->lives = 0;
    if (engine->alive)
        ft_life_close();
    engine->alive = false;
}

bool ft_lives_card(const struct ft_engine *engine, struct ft_card *card)
{
    struct ft_life_place place;
    if (!engine->alive)
        return true;
    ft_life_locate(&place);
    return ft_card_put(card, PART, &place, sizeof place);
}

void ft_lives_learn(struct ft_engine *engine, struct ft_peer *peer)
{
    size_t len;
    struct ft_life_place place;
    const unsigned char *part = ft_card_part(peer->address, peer->address_bytes, PART, &len);
    if (!engine->alive || peer->life || peer->dead || peer->host != engine->host || !part ||
        len != sizeof place)
        return;
    memcpy(&place, part, sizeof place);
    if (ft_life_find(&place, &peer->life) == FT_OK)
        engine->lives++;
    else
        FT_LOG(TRACE, "net", engine->rank, "rank %d: %s", peer->rank, ft_fail_text());
}

/* A goodbye that it said before holds: then nobody waits for it. */
static void bury(struct ft_engine *engine, struct ft_peer *peer)
{
    struct ft_link down = {.peer = peer->id, .reason = FT_LINK, .proof = true};
    peer->dead = true;
    if (peer->departed)
        return;
    peer->lost = true;
    FT_LOG(INFO, "net", engine->rank, "rank %d is dead: its process has ended", peer->rank);
    for (struct ft_comm *comm = engine->comms; comm; comm = comm->next)
        ft_comm_peer_down(comm, peer, &down);
    if (peer->tx)
        ft_engine_cut_link(engine, peer, peer->tx);
}

const char *ft_lives_why(struct ft_peer *peer, int status)
{
    if (peer->departed)
        return "it has left";
    peer->dead |= peer->life && ft_life_ended(peer->life);
    return peer->dead ? "its process has ended" : ft_status_text(status);
}

/* What a process sent before it ended is taken first: there is a tick between seeing its end and
 * drawing the consequences. */
void ft_lives_tick(struct ft_engine *engine)
{
    for (struct ft_peer *peer = engine->lives > 0 ? engine->roster : NULL; peer;
         peer = peer->next_known) {
        if (!peer->life)
            continue;
        bool seen = peer->ended;
        peer->ended = ft_life_ended(peer->life);
        if (!peer->dead && !(seen && peer->ended))
            continue;
        if (!peer->dead)
            bury(engine, peer);
        ft_life_unmap(peer->life);
        peer->life = NULL;
        engine->lives--;
    }
}

/*
 * How the responder (src/ras) reaches other hosts: over the links that this engine's communicators
 * have, by messages between engines.
 */
#include "core/engine/engine.h"

#include <stdlib.h>

#define QUEUED_MOST 32 /* the other half of a peer's outbox is for agreements and heartbeats */

static bool is_asked(const struct ft_engine *engine, const struct ft_peer *peer)
{
    return peer->host != engine->host && peer->users > 0 && peer->state == FT_PEER_OPEN;
}

static int list_peers(void *arg, struct ft_ras_peer **out)
{
    struct ft_engine *engine = arg;
    int n = 0, most = 0;
    ft_engine_lock(engine);
    for (const struct ft_peer *peer = engine->roster; peer; peer = peer->next_known)
        most += is_asked(engine, peer);
    *out = malloc(((size_t)most + 1) * sizeof **out);
    for (const struct ft_peer *peer = engine->roster; *out && peer; peer = peer->next_known)
        if (is_asked(engine, peer))
            (*out)[n++] = (struct ft_ras_peer){peer->host, peer->id, peer->rank};
    ft_engine_unlock(engine);
    return *out ? n : FT_NOMEM;
}

static struct ft_peer *find_peer(const struct ft_engine *engine, uint64_t id)
{
    struct ft_peer *peer = engine->peers[id % FT_ARRAY_LEN(engine->peers)];
    while (peer && peer->id != id)
        peer = peer->next;
    return peer && peer->users > 0 && peer->state == FT_PEER_OPEN ? peer : NULL;
}

static int send_message(void *arg, uint64_t id, enum ft_ras_message_kind what, uint64_t query,
                        const void *data, size_t len_bytes)
{
    struct ft_engine *engine = arg;
    ft_engine_lock(engine);
    struct ft_peer *peer = find_peer(engine, id);
    int rc = !peer ? FT_PEER : peer->queued_messages >= QUEUED_MOST ? FT_AGAIN : FT_OK;
    const struct ft_ctl_head head = {FT_CTL_RAS, (uint32_t)what, query};
    if (rc == FT_OK)
        ft_control_send(engine, peer, &head, data, len_bytes);
    ft_engine_unlock(engine);
    return rc;
}

void ft_overlay_open(struct ft_engine *engine)
{
    static const struct ft_ras_net net = {list_peers, send_message};
    engine->ras.net = &net;
    engine->ras.engine = engine;
    engine->ras.message_bytes = ft_min(engine->tuning.chunk_bytes - sizeof(struct ft_ctl_head),
                                       FT_RAS_MESSAGE_MAX);
}

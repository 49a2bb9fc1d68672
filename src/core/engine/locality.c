/*
 * Finds which ranks of a host can share memory. Every rank's endpoint says in a part of its own
 * with which ranks it shares memory. If ranks of one host say different things, they talk over a
 * network, and their communicator chooses algorithms for that. The decision uses only endpoints and
 * the capabilities of transports, so all ranks of a communicator decide alike.
 */
#include "core/engine/engine.h"

#include <stdlib.h>
#include <string.h>

#define PART "near"
/* where the other ranks of the host find what this rank's GPU writes for them */
#define PINNED_PART "pinned"
/* An enum ft_pulls: whether other ranks of the host may read this rank's memory, where its buffers
 * are. */
#define PULL_PART "pull"

/* A number that is the same for all ranks that share memory: those of a host, or of a process.
 * Otherwise it is this rank's alone. */
static uint64_t neighbourhood(const struct ft_engine *engine)
{
    bool process = false;
    for (int i = 0; i < engine->ntransports; i++) {
        enum ft_scope scope = engine->transports[i]->ops->caps.scope;
        if (scope == FT_SCOPE_HOST)
            return engine->host;
        process |= scope == FT_SCOPE_PROCESS;
    }
    uint64_t self[2] = {engine->host, process ? ft_process_id() : engine->id};
    return ft_hash64(self, sizeof self, process ? 1 : 2);
}

/* An engine in a simulation measures nothing, because its run must depend on its seed alone. */
static enum ft_pulls pulls_here(const struct ft_engine *engine)
{
    bool pulls = !engine->gpu && ft_transport_pulls();
    for (int i = 0; i < engine->ntransports; i++) {
        const struct ft_transport_caps *caps = &engine->transports[i]->ops->caps;
        pulls &= caps->pulls || caps->scope == FT_SCOPE_NETWORK;
    }
    if (!pulls)
        return FT_PULLS_NONE;
    return !engine->manual && ft_transport_pulls_slowly() ? FT_PULLS_SLOW : FT_PULLS;
}

bool ft_locality_endpoint(const struct ft_engine *engine, struct ft_endpoint *endpoint)
{
    uint64_t here = neighbourhood(engine);
    unsigned char pulls = (unsigned char)pulls_here(engine);
    struct ft_pinned_place place;
    if (engine->gpu && engine->gpu->pinned) {
        ft_pinned_locate(engine->gpu->pinned, &place);
        if (!ft_endpoint_put(endpoint, PINNED_PART, &place, sizeof place))
            return false;
    }
    if (pulls && !ft_endpoint_put(endpoint, PULL_PART, &pulls, sizeof pulls))
        return false;
    return ft_endpoint_put(endpoint, PART, &here, sizeof here);
}

/* The group of ranks with which rank r shares memory. 0: unknown. */
static uint64_t where_is(const struct ft_ranks *ranks, int r)
{
    uint64_t where = 0;
    size_t len;
    if (r == ranks->view->rank)
        return neighbourhood(ranks->engine);
    const unsigned char *part = ft_peer_part(ranks->peer[r], PART, &len);
    if (part && len == sizeof where)
        memcpy(&where, part, sizeof where);
    return where;
}

static int compare_places(const void *a, const void *b)
{
    uint64_t x, y;
    memcpy(&x, a, sizeof x);
    memcpy(&y, b, sizeof y);
    return (x > y) - (x < y);
}

/* For the ranks of one host: does everybody share memory with everybody, or nobody with anybody? */
static enum ft_links links_of(uint64_t *where, int n)
{
    int same = 0;
    qsort(where, (size_t)n, sizeof *where, compare_places);
    for (int i = 1; i < n; i++)
        same += where[i] == where[i - 1];
    return same == n - 1                ? FT_LINKS_LOCAL
           : same == 0 && where[0] != 0 ? FT_LINKS_LOOPBACK
                                        : FT_LINKS_SOME;
}

int ft_locality_links(const struct ft_ranks *ranks, enum ft_links *links)
{
    const struct ft_view *view = ranks->view;
    *links = FT_LINKS_LOCAL;
    if (view->nhosts >= view->nranks)
        return FT_OK;
    uint64_t *where = calloc((size_t)view->nranks, sizeof *where);
    if (!where)
        return ft_fail(FT_NOMEM, "no memory for %d ranks", view->nranks);
    if (view->nhosts == 1) {
        for (int r = 0; r < view->nranks; r++)
            where[r] = where_is(ranks, r);
        *links = links_of(where, view->nranks);
    }
    /* r is the first rank of a host; the inner loop finds the others of it */
    for (int r = 0; r < view->nranks && view->nhosts > 1; r++) {
        uint64_t here = where_is(ranks, r), *first = &where[view->host[r]];
        if (*first == 0)
            *first = here;
        if (here != *first)
            *links = FT_LINKS_SOME;
    }
    free(where);
    return FT_OK;
}

/* The place of a transport in a rank's endpoint: the rank prefers earlier ones. -1: the rank does
 * not have it. */
static ptrdiff_t place_on_endpoint(const struct ft_ranks *ranks, int r, int transport)
{
    const char *name = ranks->engine->transports[transport]->ops->name;
    size_t len;
    if (r == ranks->view->rank)
        return transport;
    const unsigned char *part = ft_peer_part(ranks->peer[r], name, &len);
    return part ? part - ranks->peer[r]->address : -1;
}

static bool all_have(const struct ft_ranks *ranks, int transport)
{
    for (int r = 0; r < ranks->view->nranks; r++)
        if (place_on_endpoint(ranks, r, transport) < 0)
            return false;
    return true;
}

/* If there are several networks, all ranks take the one that rank 0 prefers: they all have its
 * endpoint. */
const struct ft_transport_ops *ft_locality_network(const struct ft_ranks *ranks)
{
    const struct ft_transport_ops *chosen = NULL;
    ptrdiff_t best = PTRDIFF_MAX;
    for (int i = 0; i < ranks->engine->ntransports; i++) {
        const struct ft_transport_ops *ops = ranks->engine->transports[i]->ops;
        ptrdiff_t place = place_on_endpoint(ranks, 0, i);
        if (ops->caps.scope != FT_SCOPE_NETWORK || place >= best || !all_have(ranks, i))
            continue;
        chosen = ops;
        best = place;
    }
    return chosen;
}

bool ft_locality_has_pinned(const struct ft_ranks *ranks)
{
    size_t len;
    bool any = ranks->engine->gpu && ranks->engine->gpu->pinned;
    for (int r = 0; !any && r < ranks->view->nranks; r++)
        any = r != ranks->view->rank && ft_peer_part(ranks->peer[r], PINNED_PART, &len) != NULL;
    return any;
}

enum ft_pulls ft_locality_pulls(const struct ft_ranks *ranks)
{
    enum ft_pulls all = pulls_here(ranks->engine);
    for (int r = 0; all && r < ranks->view->nranks; r++) {
        size_t len;
        if (r == ranks->view->rank)
            continue;
        const unsigned char *part = ft_peer_part(ranks->peer[r], PULL_PART, &len);
        if (!part || len != 1 || (*part != FT_PULLS && *part != FT_PULLS_SLOW))
            all = FT_PULLS_NONE;
        else if (*part == FT_PULLS_SLOW)
            all = FT_PULLS_SLOW;
    }
    return all;
}

/* If a rank is on another host, has no GPU, or cannot be seen from here, its messages go through
 * memory that the processor copies. */
static bool map_pinned_of(struct ft_engine *engine, struct ft_peer *peer)
{
    size_t len;
    struct ft_pinned_place place;
    const unsigned char *part = ft_peer_part(peer, PINNED_PART, &len);
    if (peer->pinned || peer->state == FT_PEER_DEAD || peer->host != engine->host || !part ||
        len != sizeof place)
        return false;
    memcpy(&place, part, sizeof place);
    if (ft_pinned_map(engine->gpu->pinned, -1, &place, &peer->pinned) == FT_OK)
        return true;
    FT_LOG(INFO, "net", engine->rank, "messages of rank %d to the GPU are staged: %s", peer->rank,
           ft_fail_text());
    return false;
}

void ft_locality_pinned(const struct ft_ranks *ranks)
{
    struct ft_engine *engine = ranks->engine;
    bool met = false;
    if (!engine->gpu || !engine->gpu->pinned)
        return;
    ft_engine_lock(engine);
    for (int r = 0; r < ranks->view->nranks; r++)
        if (ranks->peer[r])
            met |= map_pinned_of(engine, ranks->peer[r]) || ranks->peer[r]->pinned;
    ft_engine_unlock(engine);
    if (met)
        ft_locality_reach(engine); /* also for a communicator that is opening now */
}

void ft_locality_reach(struct ft_engine *engine)
{
    if (engine->gpu && engine->gpu->pinned)
        engine->gpu->ops->reach(engine->gpu);
}

void ft_locality_part(struct ft_peer *peer)
{
    ft_pinned_release(peer->pinned);
    peer->pinned = NULL;
}

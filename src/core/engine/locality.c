/*
 * Which ranks of a host have more than the network between them. Every rank's endpoint says, in a
 * part of its own, with whom it shares memory; ranks of one host that say different things talk
 * over TCP, and their communicator chooses its algorithms for that. Decided from endpoints alone,
 * so that all ranks of a communicator decide alike.
 */
#include "core/core.h"

#include <stdlib.h>
#include <string.h>

#define PART "near"
#define PINNED_PART "pinned" /* where its neighbours find what its GPU writes for them */
/* an enum ft_pulls: its neighbours may read this rank's memory, and its buffers are there */
#define PULL_PART "pull"

/* One number for all who share memory: those of a host, of a process, or nobody else. */
static uint64_t neighbourhood(const struct ft_engine *engine)
{
    bool process = false;
    for (int i = 0; i < engine->ntransports; i++) {
        const char *name = engine->transports[i]->ops->name;
        if (!strcmp(name, "inproc"))
            process = true;
        else if (strcmp(name, "tcp") != 0)
            return engine->host;
    }
    uint64_t self[2] = {engine->host, process ? ft_process_id() : engine->id};
    return ft_hash64(self, sizeof self, process ? 1 : 2);
}

/* An engine that a simulation turns measures nothing: its seed tells everything. */
static enum ft_pulls pulls_here(const struct ft_engine *engine)
{
    if (engine->gpu || !ft_transport_pulls())
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

/* Who shares memory with rank r; 0: unknown. */
static uint64_t where_is(const struct ft_comm *comm, int r)
{
    const struct ft_peer *peer = comm->peers[r];
    uint64_t where = 0;
    size_t len = 0;
    if (r == comm->view.rank)
        return neighbourhood(comm->engine);
    const unsigned char *part =
        peer->address ? ft_endpoint_part(peer->address, peer->address_bytes, PART, &len) : NULL;
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

/* One host. Everybody shares memory with everybody, or nobody with anybody? */
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

int ft_locality_links(const struct ft_comm *comm, enum ft_links *links)
{
    const struct ft_view *view = &comm->view;
    *links = FT_LINKS_LOCAL;
    if (view->nhosts >= view->nranks)
        return FT_OK;
    uint64_t *where = calloc((size_t)view->nranks, sizeof *where);
    if (!where)
        return ft_fail(FT_NOMEM, "no memory for %d ranks", view->nranks);
    if (view->nhosts == 1) {
        for (int r = 0; r < view->nranks; r++)
            where[r] = where_is(comm, r);
        *links = links_of(where, view->nranks);
    }
    /* the first of each host, and the others of it */
    for (int r = 0; r < view->nranks && view->nhosts > 1; r++) {
        uint64_t here = where_is(comm, r), *first = &where[view->host[r]];
        if (*first == 0)
            *first = here;
        if (here != *first)
            *links = FT_LINKS_SOME;
    }
    free(where);
    return FT_OK;
}

bool ft_locality_has_pinned(const struct ft_comm *comm)
{
    size_t len;
    bool any = comm->engine->gpu && comm->engine->gpu->pinned;
    for (int r = 0; !any && r < comm->view.nranks; r++) {
        const struct ft_peer *peer = comm->peers[r];
        any = r != comm->view.rank && peer->address &&
              ft_endpoint_part(peer->address, peer->address_bytes, PINNED_PART, &len) != NULL;
    }
    return any;
}

enum ft_pulls ft_locality_pulls(const struct ft_comm *comm)
{
    bool may = comm->view.nhosts == 1 && comm->tuning.local_links;
    enum ft_pulls all = may ? pulls_here(comm->engine) : FT_PULLS_NONE;
    for (int r = 0; all && r < comm->view.nranks; r++) {
        const struct ft_peer *peer = comm->peers[r];
        size_t len = 0;
        if (r == comm->view.rank)
            continue;
        const unsigned char *part = peer->address
                                        ? ft_endpoint_part(peer->address, peer->address_bytes,
                                                           PULL_PART, &len)
                                        : NULL;
        if (!part || len != 1 || (*part != FT_PULLS && *part != FT_PULLS_SLOW))
            all = FT_PULLS_NONE;
        else if (*part == FT_PULLS_SLOW)
            all = FT_PULLS_SLOW;
    }
    return all;
}

/* Those of other hosts, without a GPU or that cannot be seen from here send through memory that the
 * processor copies. */
static bool map_pinned_of(struct ft_engine *engine, struct ft_peer *peer)
{
    size_t len = 0;
    struct ft_pinned_place place;
    const unsigned char *part = peer->address ? ft_endpoint_part(peer->address, peer->address_bytes,
                                                                 PINNED_PART, &len)
                                              : NULL;
    if (peer->pinned || peer->dead || peer->host != engine->host || !part || len != sizeof place)
        return false;
    memcpy(&place, part, sizeof place);
    if (ft_pinned_map(engine->gpu->pinned, -1, &place, &peer->pinned) == FT_OK)
        return true;
    FT_LOG(INFO, "net", engine->rank, "messages of rank %d to the GPU are staged: %s", peer->rank,
           ft_fail_text());
    return false;
}

void ft_locality_pinned(struct ft_comm *comm)
{
    struct ft_engine *engine = comm->engine;
    bool met = false;
    if (!engine->gpu || !engine->gpu->pinned)
        return;
    ft_engine_lock(engine);
    for (int r = 0; r < comm->view.nranks; r++)
        if (comm->peers[r])
            met |= map_pinned_of(engine, comm->peers[r]) || comm->peers[r]->pinned;
    ft_engine_unlock(engine);
    if (met)
        ft_locality_reach(engine); /* also what another communicator has met that opens just now */
    ft_engine_lock(engine);
    ft_readiness_attach(comm);
    ft_engine_unlock(engine);
}

void ft_readiness_attach(struct ft_comm *comm)
{
    const struct ft_pinned *pinned = comm->engine->gpu ? comm->engine->gpu->pinned : NULL;
    comm->readiness = pinned ? ft_readiness_find(pinned, comm->ctx) : NULL;
    if (!comm->readiness)
        return;
    for (int r = 0; r < comm->view.nranks; r++) {
        if (comm->peers[r] && ft_pinned_devmem(comm->peers[r]->pinned))
            ft_readiness_add_rank(comm->readiness, r);
    }
    ft_readiness_set_complete(comm->readiness);
}

/* Of all that the running work has: where some are on the GPU and some are not, none is said to be.
 * What is summed up for checksums or together is the host's on every rank, and nobody asks. */
void ft_readiness_tell(struct ft_comm *comm)
{
    uint64_t last = 0;
    bool on_device = !comm->limits.verify;
    if (!comm->readiness)
        return;
    for (const struct ft_op *op = comm->head->ops; op; op = op->next) {
        if (!ft_kind_is_collective(op->coll.kind) || op->verifies)
            continue;
        last = ft_max(last, op->seq);
        if (!op->members)
            on_device &= op->gpu != NULL;
    }
    if (last > 0)
        ft_readiness_publish(comm->readiness, last, on_device);
}

void ft_readiness_tell_receive(struct ft_comm *comm, int rank)
{
    const struct ft_op *next = comm->recvs[rank].head;
    if (comm->readiness && next)
        ft_readiness_publish_receive(comm->readiness, rank, next->seq,
                                     next->gpu && !comm->limits.verify);
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

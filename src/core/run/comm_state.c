/*
 * A communicator as the run floor knows it: its state and its parts, and how the parts are made,
 * reset for another view, and freed. The group floor decides when communicators begin and end.
 */
#include "core/run/run.h"

#include <stdlib.h>
#include <string.h>

int ft_run_open(struct ft_comm *comm, const struct ft_view *view)
{
    size_t n = (size_t)view->nranks;
    int *host = malloc(n * sizeof *host);
    uint64_t *peer = malloc(n * sizeof *peer);
    comm->view = *view;
    comm->view.host = host;
    comm->view.peer = peer;
    comm->peers = calloc(n, sizeof *comm->peers);
    comm->p2p.sends = calloc(n, sizeof *comm->p2p.sends);
    comm->p2p.recvs = calloc(n, sizeof *comm->p2p.recvs);
    comm->calls.announced = calloc(n, sizeof *comm->calls.announced);
    comm->plans.slots = calloc(FT_PLAN_CACHE, sizeof *comm->plans.slots);
    comm->rma.signals = calloc(n, sizeof *comm->rma.signals);
    comm->rma.puts_wait = calloc(n, sizeof *comm->rma.puts_wait);
    comm->fast = calloc(1, sizeof *comm->fast);
    if (!host || !peer || !comm->peers || !comm->p2p.sends || !comm->p2p.recvs ||
        !comm->calls.announced || !comm->plans.slots || !comm->rma.signals ||
        !comm->rma.puts_wait || !comm->fast)
        return ft_fail(FT_NOMEM, "no memory for a communicator of %zu ranks", n);
    memcpy(host, view->host, n * sizeof *host);
    memcpy(peer, view->peer, n * sizeof *peer);
    atomic_store(&comm->nranks, view->nranks);
    atomic_store(&comm->rank, view->rank);
    return FT_OK;
}

static void free_windows(struct ft_comm *comm)
{
    for (struct ft_window *window = comm->rma.windows, *next; window; window = next) {
        next = window->next;
        free(window->sizes);
        free(window);
    }
}

static void free_comm(struct ft_comm *comm)
{
    free((void *)(uintptr_t)comm->view.host);
    free((void *)(uintptr_t)comm->view.peer);
    free(comm->peers);
    free(comm->p2p.sends);
    free(comm->p2p.recvs);
    free(comm->calls.announced);
    free(comm->plans.slots);
    free(comm->digests.all);
    free_windows(comm);
    free(comm->rma.signals);
    free(comm->rma.puts_wait);
    ft_lanes_free(comm);
    if (comm->fast)
        free(comm->fast->op.tmp);
    free(comm->fast);
    pthread_mutex_destroy(&comm->failure.lock);
    if (comm->engine)
        ft_engine_unref(comm->engine);
    free(comm->group);
    free(comm);
}

void ft_comm_ref(struct ft_comm *comm)
{
    atomic_fetch_add_explicit(&comm->refs, 1, memory_order_relaxed);
}

void ft_comm_unref(struct ft_comm *comm)
{
    if (atomic_fetch_sub_explicit(&comm->refs, 1, memory_order_acq_rel) == 1)
        free_comm(comm);
}

/* ---- state ----------------------------------------------------------------------------------- */

/* Legal moves: the row is the old state, the bit is the new state. */
static const unsigned moves[FT_COMM_STATES] = {
    [FT_COMM_OPEN] = 1u << FT_COMM_ASKING | 1u << FT_COMM_RETRYING | 1u << FT_COMM_FAILED,
    [FT_COMM_ASKING] = 1u << FT_COMM_RETRYING | 1u << FT_COMM_FAILED,
    [FT_COMM_RETRYING] = 1u << FT_COMM_OPEN | 1u << FT_COMM_FAILED,
    [FT_COMM_FAILED] = 0,
};

enum ft_comm_state ft_comm_state(const struct ft_comm *comm)
{
    return (enum ft_comm_state)atomic_load_explicit(&comm->state, memory_order_acquire);
}

void ft_comm_move(struct ft_comm *comm, enum ft_comm_state to)
{
    ft_engine_assert_held(comm->engine);
    enum ft_comm_state from = ft_comm_state(comm);
    if (!(moves[from] & 1u << to)) {
        FT_LOG(WARN, "init", comm->view.rank, "internal error: communicator %016llx: %s -> %s",
               (unsigned long long)comm->ctx, ft_comm_state_name((int)from),
               ft_comm_state_name((int)to));
        return;
    }
    FT_LOG(TRACE, "init", comm->view.rank, "communicator %016llx: %s -> %s",
           (unsigned long long)comm->ctx, ft_comm_state_name((int)from),
           ft_comm_state_name((int)to));
    ft_telemetry_event(comm->engine->telemetry, FT_MOVED_COMM, comm->ctx, comm->view.rank,
                       (int)from, (int)to, atomic_load(&comm->failure.status));
    ft_telemetry_comm_state(comm->engine->telemetry, comm->row, (int)to,
                            atomic_load(&comm->failure.status), comm->failure.culprit);
    atomic_store_explicit(&comm->state, to, memory_order_release);
}

void ft_comm_record(struct ft_comm *comm)
{
    const struct ft_view *view = &comm->view;
    struct ft_telemetry *telemetry = comm->engine->telemetry;
    int row = -1;
    if (telemetry)
        row = ft_telemetry_comm_open(telemetry, comm->ctx, view->epoch, view->nranks, view->rank,
                                     comm->name);
    ft_telemetry_comm_limits(telemetry, row, (uint64_t)comm->limits.op_timeout_ms * 1000000u,
                             comm->calls.seq);
    for (int r = 0; r < view->nranks; r++)
        ft_telemetry_seat(telemetry, row, r, view->peer[r], view->host[r]);
    atomic_store_explicit(&comm->row, row, memory_order_relaxed);
}

/* ---- for other threads ----------------------------------------------------------------------- */

int ft_comm_nranks(const struct ft_comm *comm)
{
    return atomic_load_explicit(&comm->nranks, memory_order_relaxed);
}

int ft_comm_rank(const struct ft_comm *comm)
{
    return atomic_load_explicit(&comm->rank, memory_order_relaxed);
}

struct ft_shape ft_comm_shape(struct ft_comm *comm, int root)
{
    if (!comm->limits.retry)
        return (struct ft_shape){.nranks = ft_comm_nranks(comm), .rank = ft_comm_rank(comm)};
    pthread_mutex_lock(&comm->failure.lock);
    const struct ft_view *view = &comm->view;
    struct ft_shape shape = {.nranks = view->nranks, .rank = view->rank, .epoch = view->epoch};
    if (root >= 0 && root < view->nranks)
        shape.root_id = view->peer[root];
    pthread_mutex_unlock(&comm->failure.lock);
    return shape;
}

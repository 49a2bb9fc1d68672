/*
 * CUDA graphs. If the streams of a group of calls are being captured, the group is kept, and its
 * kernel becomes part of the graph. No call is made when the graph runs, so the kernel rings a
 * bell. While a graph contains a group, the engine looks at the bells often, and makes a work of
 * each ring, in the order in which it sees them. That is the order of the user's streams: a call
 * behind a replay on its stream is not reached before the replay is over, and a call before it is
 * already over. So a replay is queued before all calls that wait. When no graph contains a group
 * any more, it is forgotten.
 */
#include "core/run/run.h"

#include <stdlib.h>

/* ---- captures, by the user's thread ---------------------------------------------------------- */

/* FT_OK: the streams of all works are being captured. FT_AGAIN: none is. */
static int check_works(const struct ft_entry *entry, void **streams)
{
    int captured = 0, others = 0;
    for (const struct ft_work *work = entry->works; work; work = work->next_in_entry) {
        const struct ft_comm_gpu *gpu = work->comm->gpu;
        int rc = work->has_gpu
                     ? gpu->ops->capturing(gpu->queue, streams, ft_gpu_streams(work, streams))
                     : FT_AGAIN;
        if (rc != FT_OK && rc != FT_AGAIN)
            return rc;
        for (const struct ft_op *op = work->ops; op; op = op->next)
            others += rc == FT_AGAIN || !op->on_queue;
        captured += rc == FT_OK;
    }
    if (captured > 0 && others > 0)
        return ft_fail(
            FT_INVAL,
            "%d of a group's calls are not on a stream that is being captured, others are", others);
    return captured > 0 ? FT_OK : FT_AGAIN;
}

static struct ft_captured *keep(const struct ft_work *work)
{
    struct ft_captured *captured = calloc(1, sizeof *captured +
                                                 (size_t)work->nops * sizeof captured->ops[0]);
    if (!captured)
        return NULL;
    for (const struct ft_op *op = work->ops; op; op = op->next)
        captured->ops[captured->nops++] = (struct ft_captured_op){
            .coll = op->coll,
            .redop = op->redop,
            .in = op->in,
            .out = op->out,
            .scale_from = op->on_queue->scale_from,
            .epoch = op->epoch,
            .root_id = op->root_id};
    return captured;
}

/* The communicator may have failed after the call was checked. */
static void enlist(struct ft_comm *comm, struct ft_captured *captured)
{
    struct ft_comm_gpu *gpu = comm->gpu;
    ft_engine_lock(comm->engine);
    captured->next = gpu->captured;
    gpu->captured = captured;
    comm->engine->captured++;
    if (gpu->muted)
        gpu->ops->mute(gpu->queue, captured->bell);
    ft_engine_unlock(comm->engine);
}

static int capture_one(struct ft_work *work, void **streams, struct ft_device_bell **bell)
{
    const struct ft_comm_gpu *gpu = work->comm->gpu;
    struct ft_captured *captured = keep(work);
    int rc = captured ? gpu->ops->capture(gpu->queue, streams, ft_gpu_streams(work, streams), bell)
                      : ft_fail(FT_NOMEM, "no memory for a group in a CUDA graph");
    if (rc != FT_OK) {
        free(captured);
        return rc;
    }
    captured->bell = *bell;
    (*bell)->owner = captured;
    enlist(work->comm, captured);
    return FT_OK;
}

/* The kernels of a group are parallel nodes of the graph, because ranks may name the group's
 * communicators in different orders. */
static int capture_all(struct ft_entry *entry, void **streams, struct ft_device_bell **bells)
{
    int rc = check_works(entry, streams), n = 0, nth = 0;
    struct ft_work *work = entry->works;
    for (; work && rc == FT_OK; work = work->next_in_entry)
        if ((rc = capture_one(work, streams, &bells[n])) == FT_OK)
            n++;
    for (work = entry->works; work && rc == FT_OK; work = work->next_in_entry, nth++)
        rc = work->comm->gpu->ops->captured(bells, nth, streams, ft_gpu_streams(work, streams));
    if (rc == FT_OK)
        return FT_OK;
    for (work = entry->works; n > 0; work = work->next_in_entry, n--, bells++)
        work->comm->gpu->ops->mute(work->comm->gpu->queue, *bells);
    return rc;
}

int ft_graph_capture(struct ft_entry *entry)
{
    size_t most = ft_gpu_most_streams(entry);
    if (most == 0)
        return FT_AGAIN;
    void *few[FT_GPU_FEW], **streams = ft_gpu_room(most, few);
    struct ft_device_bell *one,
        **bells = entry->nworks == 1 ? &one : malloc((size_t)entry->nworks * sizeof *bells);
    int rc = streams && bells ? capture_all(entry, streams, bells)
                              : ft_fail(FT_NOMEM, "no memory for a group of %zu operations", most);
    if (streams != few)
        free(streams);
    if (bells != &one)
        free(bells);
    if (rc == FT_OK)
        ft_entry_free(entry);
    return rc;
}

/* ---- replays, the caller holds the engine
 * -------------------------------------------------------------------- */

static int add_op(struct ft_work *work, const struct ft_captured_op *kept)
{
    struct ft_op *op = ft_op_new();
    struct ft_op_queue *on_queue = calloc(1, sizeof *on_queue);
    if (!op || !on_queue) {
        free(on_queue);
        if (op)
            ft_op_free(op);
        return FT_NOMEM;
    }
    op->coll = kept->coll;
    op->redop = kept->redop;
    op->in = kept->in;
    op->out = kept->out;
    op->epoch = kept->epoch;
    op->root_id = kept->root_id;
    op->on_queue = on_queue;
    op->on_queue->scale_from = kept->scale_from;
    op->state = FT_OP_QUEUED;
    ft_work_add(work, op);
    return FT_OK;
}

/* Puts the work behind the running one and behind replays that rang earlier. */
static void enqueue(struct ft_comm *comm, struct ft_work *work)
{
    struct ft_work *after = comm->works.running ? comm->works.head : NULL,
                   *next = after ? after->next : comm->works.head;
    for (; next && next->bell; next = next->next)
        after = next;
    work->next = next;
    if (after)
        after->next = work;
    else
        comm->works.head = work;
    if (!next)
        comm->works.tail = work;
}

static int replay(struct ft_comm *comm, struct ft_captured *captured, uint64_t run)
{
    struct ft_entry *entry = ft_entry_new(NULL, 0);
    struct ft_work *work = entry ? ft_entry_work(entry, comm) : NULL;
    int rc = work ? FT_OK : FT_NOMEM;
    for (int i = 0; i < captured->nops && rc == FT_OK; i++)
        rc = add_op(work, &captured->ops[i]);
    if (rc != FT_OK) {
        if (entry)
            ft_entry_free(entry);
        return rc;
    }
    work->bell = captured->bell;
    work->run = run;
    captured->works++;
    atomic_store_explicit(&entry->works_left, 1, memory_order_relaxed);
    atomic_store_explicit(&entry->slots_left, 1, memory_order_relaxed);
    atomic_fetch_add_explicit(&comm->works.queued, 1, memory_order_relaxed);
    atomic_fetch_add_explicit(&comm->engine->gpu_works, 1, memory_order_relaxed);
    comm->engine->replayed_ns = ft_now_ns(comm->engine->env);
    enqueue(comm, work);
    return FT_OK;
}

static void forget_gone(struct ft_comm *comm, struct ft_comm_gpu *gpu)
{
    uint64_t gone = gpu->ops->gone(gpu->queue);
    bool all = true;
    if (gone == gpu->gone)
        return;
    for (struct ft_captured **at = &gpu->captured; *at;) {
        struct ft_captured *captured = *at;
        bool is_gone = gpu->ops->is_gone(captured->bell);
        all &= !is_gone || captured->works == 0;
        if (!is_gone || captured->works > 0) {
            at = &captured->next;
            continue;
        }
        *at = captured->next;
        gpu->ops->forget(captured->bell);
        comm->engine->captured--;
        free(captured);
    }
    if (all)
        gpu->gone = gone;
}

bool ft_graph_turn(struct ft_comm *comm)
{
    struct ft_comm_gpu *gpu = __atomic_load_n(&comm->gpu, __ATOMIC_ACQUIRE);
    struct ft_device_bell *bell;
    uint64_t run;
    bool moved = false;
    if (!gpu || !gpu->captured)
        return false;
    while (comm->failure.status == FT_OK && (bell = gpu->ops->rung(gpu->queue, &run))) {
        moved = true;
        if (replay(comm, bell->owner, run) != FT_OK)
            ft_comm_fail(comm, FT_NOMEM, comm->view.rank,
                         "rank %d: no memory for the replay of a graph", comm->view.rank);
    }
    forget_gone(comm, gpu);
    return moved;
}

void ft_graph_over(const struct ft_work *work)
{
    ((struct ft_captured *)work->bell->owner)->works--;
}

void ft_graph_close(struct ft_comm *comm)
{
    ft_engine_lock(comm->engine);
    for (struct ft_captured *captured = comm->gpu->captured, *next; captured; captured = next) {
        next = captured->next;
        comm->engine->captured--;
        free(captured);
    }
    ft_engine_unlock(comm->engine);
}

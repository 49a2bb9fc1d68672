/*
 * direct.c: a collective that meets an idle stream and an idle communicator. The calling thread begins it at once, in structs that
 * belong to the communicator, and turns the engine. If it ends within that turn, as it does when the peers were first, it has never
 * been in a queue; else it takes its place on the stream like any other, and whoever turns the engine ends it.
 */
#include "core/core.h"

struct ft_op *ft_direct_begin(struct ft_comm *comm, const struct ft_stream *stream)
{
    struct ft_engine *engine = comm->engine;
    struct ft_direct *direct = &comm->direct;
    if (comm->limits.verify || comm->limits.retry || !ft_stream_is_idle(stream)) return NULL;
    if (pthread_mutex_trylock(&engine->drive) != 0) return NULL;
    bool idle = !comm->head && comm->status == FT_OK && !atomic_load_explicit(&engine->inbox_count, memory_order_relaxed);
    if (idle && !atomic_load_explicit(&direct->queued, memory_order_acquire)) { /* pairs with ft_direct_over() */
        ft_op_reset(&direct->op);
        return &direct->op;
    }
    pthread_mutex_unlock(&engine->drive);
    return NULL;
}

void ft_direct_cancel(struct ft_comm *comm) { pthread_mutex_unlock(&comm->engine->drive); }

void ft_direct_run(struct ft_comm *comm, struct ft_stream *stream)
{
    struct ft_engine *engine = comm->engine;
    struct ft_direct *direct = &comm->direct;
    struct ft_entry *entry = &direct->entry;
    struct ft_work *work = &entry->first_work;
    *work = (struct ft_work){.comm = comm, .entry = entry};
    ft_work_add(work, &direct->op);
    entry->nstreams = 0;
    direct->op.state = FT_OP_QUEUED;
    direct->unqueued = true;
    comm->head = comm->tail = work;
    if (!atomic_load_explicit(&engine->user_drove, memory_order_relaxed)) atomic_store_explicit(&engine->user_drove, 1, memory_order_relaxed);
    engine->stuck = false;
    ft_comm_turn(comm); /* what it sends leaves first */
    bool looks = (engine->turns + 1) % FT_TURNS_RARELY == 0; /* even if all calls end at once it hears of others */
    if (direct->unqueued || looks) ft_engine_turn(engine);
    else engine->turns++;
    if (direct->unqueued) {
        direct->unqueued = false;
        atomic_store_explicit(&direct->queued, 1, memory_order_relaxed);
        ft_entry_begun(entry, stream);
    } else if (direct->status != FT_OK) ft_stream_fail(stream, direct->status, comm);
    pthread_mutex_unlock(&engine->drive);
}

bool ft_direct_ended(struct ft_comm *comm, const struct ft_work *work, int status)
{
    struct ft_direct *direct = &comm->direct;
    if (!direct->unqueued || work != &direct->entry.first_work) return false;
    direct->unqueued = false;
    direct->status = status;
    ft_op_trim(&direct->op);
    return true;
}

bool ft_direct_over(struct ft_entry *entry)
{
    struct ft_comm *comm = entry->works ? entry->works->comm : NULL;
    if (!comm || entry != &comm->direct.entry) return false;
    ft_op_trim(&comm->direct.op);
    atomic_store_explicit(&comm->direct.queued, 0, memory_order_release);
    ft_comm_unref(comm);
    return true;
}

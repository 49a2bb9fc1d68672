/*
 * The fast path: a collective whose stream and communicator have nothing else to do. The calling
 * thread starts it at once, in structs that belong to the communicator, and turns the engine. If
 * the operation ends in that turn, as it does when the peers came first, it never enters a queue.
 * Otherwise it takes its place on the stream like any other operation, and the driver ends it.
 */
#include "core/run/run.h"

/* The longest time for turns before a call, so that calls without a wait between them need not
 * queue behind one that came late. */
#define CATCH_UP_NS 50000
#define CATCH_UP_IDLE 32  /* turns in a row without progress end that time early */
#define CATCH_UP_AGAIN 32 /* after such turns were in vain, this many calls do not try */
/* Longer messages may be lent, and their planning costs little compared with moving their bytes. */
#define REPEAT_BYTES 4096

/* ---- calls that repeat themselves ------------------------------------------------------------ */

/* The scratch memory must also be large enough. */
static bool is_same(const struct ft_fast *fast, const struct ft_repeat *repeat,
                    const struct ft_coll *coll, int red)
{
    const struct ft_coll *last = &repeat->coll;
    return repeat->valid && repeat->plan.tmp_bytes <= fast->op.tmp_bytes && repeat->red == red &&
           last->kind == coll->kind && last->type == coll->type && last->count == coll->count &&
           last->root == coll->root;
}

static void load_repeat(struct ft_comm *comm, struct ft_repeat *repeat)
{
    struct ft_op *op = &comm->fast->op;
    ft_op_reset(op);
    op->coll = repeat->coll;
    op->redop = repeat->redop;
    op->plan = repeat->plan;
    op->sig = repeat->sig;
    comm->fast->extent = repeat->extent;
    comm->fast->loaded = repeat;
}

static bool load_same(struct ft_comm *comm, const struct ft_coll *coll, int red)
{
    struct ft_fast *fast = comm->fast;
    if (fast->loaded && is_same(fast, fast->loaded, coll, red))
        return true;
    for (struct ft_repeat *repeat = fast->repeats; repeat < fast->repeats + FT_REPEATS; repeat++) {
        if (!is_same(fast, repeat, coll, red))
            continue;
        load_repeat(comm, repeat);
        return true;
    }
    return false;
}

/* Keeps the operation that just ended, if its messages were short and used one lane. It does not
 * keep user-defined operators, because later another one may have the same number. */
static void keep_repeat(struct ft_comm *comm)
{
    struct ft_fast *fast = comm->fast;
    const struct ft_op *op = &fast->op;
    const struct ft_plan *plan = &op->plan;
    bool one = plan->nlanes == 1 && plan->nsteps <= FT_REPEAT_STEPS,
         is_short = op->coll.count * plan->esize <= REPEAT_BYTES;
    if (!one || !is_short || plan->tmp_bytes > op->tmp_bytes || fast->red >= FT_REDS ||
        comm->limits.preserve_input)
        return;
    struct ft_repeat *repeat = &fast->repeats[fast->nrepeats++ % FT_REPEATS];
    *repeat = (struct ft_repeat){.valid = true,
                                 .red = fast->red,
                                 .sig = op->sig,
                                 .coll = op->coll,
                                 .redop = op->redop,
                                 .extent = fast->extent,
                                 .plan = *plan};
    for (uint64_t i = 0; i < plan->nsteps; i++)
        ft_plan_step(plan, 0, i, &repeat->steps[i]);
    ft_lanes_prepare_short(comm, repeat);
    fast->loaded = repeat;
}

/* ---- from the call to its end ---------------------------------------------------------------- */

/* Whether the next operation to end is a short collective. */
static bool is_short_next(const struct ft_comm *comm)
{
    const struct ft_op *next = comm->works.head ? comm->works.head->ops : NULL;
    return next && ft_kind_is_collective(next->coll.kind) &&
           next->coll.count <= REPEAT_BYTES / ft_type_size(next->coll.type);
}

/* A short call that could not end at once is on the stream, perhaps with others behind it. Turns
 * the engine so that they end. Not over a network: there turns are expensive. */
static void catch_up(struct ft_comm *comm, const struct ft_stream *stream)
{
    struct ft_engine *engine = comm->engine;
    if (comm->fast->skips > 0 && comm->fast->skips--)
        return;
    if (!comm->tuning.local_links || comm->view.nhosts > 1 ||
        atomic_load_explicit(&engine->crowded, memory_order_relaxed))
        return;
    uint64_t end = ft_now_ns(engine->env) + CATCH_UP_NS;
    for (int idle = 0; idle < CATCH_UP_IDLE && is_short_next(comm) && ft_now_ns(engine->env) < end;)
        idle = engine->turn(engine) ? 0 : idle + 1;
    if (!ft_stream_is_idle(stream))
        comm->fast->skips = CATCH_UP_AGAIN;
}

struct ft_op *ft_fast_begin(struct ft_comm *comm, const struct ft_stream *stream,
                            const struct ft_coll *coll, int red)
{
    struct ft_engine *engine = comm->engine;
    struct ft_fast *fast = comm->fast;
    if (comm->limits.verify || comm->limits.retry || !ft_engine_trylock(engine))
        return NULL;
    if (!ft_stream_is_idle(stream))
        catch_up(comm, stream);
    bool idle = ft_stream_is_idle(stream) && !comm->works.head && !comm->works.holds &&
                comm->failure.status == FT_OK &&
                !atomic_load_explicit(&engine->inbox_count, memory_order_relaxed);
    /* pairs with ft_entry_free() */
    if (idle && !atomic_load_explicit(&fast->queued, memory_order_acquire)) {
        fast->again = load_same(comm, coll, red);
        fast->red = red;
        if (!fast->again)
            ft_op_reset(&fast->op), fast->loaded = NULL;
        return &fast->op;
    }
    ft_engine_unlock(engine);
    return NULL;
}

void ft_fast_cancel(struct ft_comm *comm)
{
    ft_engine_unlock(comm->engine);
}

/* Peers that sleep are woken when this call has its result, or must wait for it. */
static void hush_wakeups(struct ft_engine *engine)
{
    for (int i = 0; i < engine->ntransports; i++)
        engine->transports[i]->quiet = engine->transports[i]->ops->wake != NULL;
}

static void wake_peers(struct ft_engine *engine)
{
    for (int i = 0; i < engine->ntransports; i++) {
        if (!engine->transports[i]->quiet)
            continue;
        engine->transports[i]->quiet = false;
        engine->transports[i]->ops->wake(engine->transports[i]);
    }
}

/* Over a network, only turns of the engine bring messages here. */
static void run_repeat(struct ft_comm *comm)
{
    struct ft_engine *engine = comm->engine;
    bool few = comm->fast->begun || !comm->tuning.local_links ||
               atomic_load_explicit(&engine->crowded, memory_order_relaxed);
    hush_wakeups(engine);
    ft_comm_repeat(comm, few ? 1 : FT_LOOKS, comm->fast->begun);
    wake_peers(engine);
}

/* Makes the operation the only work of its communicator. */
static void enqueue_alone(struct ft_comm *comm)
{
    struct ft_fast *fast = comm->fast;
    struct ft_entry *entry = &fast->entry;
    struct ft_work *work = &entry->first_work;
    if (fast->again) { /* the other fields have not changed */
        work->next = NULL;
        work->deadline_ns = 0;
        work->ops_left = 1;
        work->repeats = true;
        fast->op.work = work;
        fast->op.status = FT_OK;
    } else {
        *work = (struct ft_work){.comm = comm, .entry = entry};
        ft_work_add(work, &fast->op);
    }
    entry->nstreams = 0;
    fast->op.state = FT_OP_QUEUED;
    fast->unqueued = true;
    comm->works.head = comm->works.tail = work;
}

/* The background thread need not turn the engine. */
static void note_driver(struct ft_engine *engine)
{
    if (!atomic_load_explicit(&engine->user_drove, memory_order_relaxed))
        atomic_store_explicit(&engine->user_drove, 1, memory_order_relaxed);
}

/* Turns the communicator alone first, so that its messages leave before the turn of the engine. */
static void turn_once(struct ft_comm *comm)
{
    struct ft_engine *engine = comm->engine;
    struct ft_fast *fast = comm->fast;
    note_driver(engine);
    engine->stuck = false;
    if (fast->again)
        run_repeat(comm);
    else
        ft_run_turn(comm);
    /* Even if all calls end at once, the engine sometimes looks for other messages. */
    bool looks = (engine->turns + 1) % FT_TURNS_RARELY == 0;
    if (fast->unqueued || looks)
        engine->turn(engine);
    else
        engine->turns++;
}

/* ---- short calls ----------------------------------------------------------------------------- */

/* Even if all short calls end at once, the engine is turned now and then. */
#define TURN_NS 100000u

void ft_fast_record(struct ft_comm *comm, uint64_t now_ns)
{
    struct ft_op *op = &comm->fast->op;
    op->record = ft_telemetry_op_began(comm->engine->telemetry, comm->row, op->seq, &op->coll,
                                       op->plan.algo->name, now_ns);
}

bool ft_fast_run_short(struct ft_comm *comm)
{
    struct ft_engine *engine = comm->engine;
    struct ft_fast *fast = comm->fast;
    struct ft_op *op = &fast->op;
    struct ft_short run;
    fast->begun = fast->again && fast->loaded->is_short &&
                  !ft_calls_is_announced(comm, comm->calls.seq + 1);
    if (!fast->begun)
        return false;
    ft_comm_number_repeat(comm, op);
    bool over = ft_lanes_take_short(comm, op, &run);
    fast->recorded = run.recorded;
    if (!over)
        return false;
    comm->calls.done = comm->calls.seq;
    comm->works.stalled = false;
    if (run.recorded)
        ft_telemetry_op_state(engine->telemetry, op->record, FT_OP_DONE, FT_OK, run.began_ns);
    else
        ft_telemetry_op_ended(engine->telemetry, comm->row, op->seq, &op->coll, op->plan.algo->name,
                              run.began_ns);
    note_driver(engine);
    if (run.began_ns - fast->turned_ns > TURN_NS) {
        fast->turned_ns = run.began_ns;
        engine->turn(engine);
    }
    ft_engine_unlock(engine);
    return true;
}

void ft_fast_run(struct ft_comm *comm, struct ft_stream *stream)
{
    struct ft_fast *fast = comm->fast;
    enqueue_alone(comm);
    turn_once(comm);
    if (fast->unqueued) {
        fast->unqueued = false;
        atomic_store_explicit(&fast->queued, 1, memory_order_relaxed);
        ft_entry_begun(&fast->entry, stream, &fast->queued);
    } else if (fast->status != FT_OK)
        ft_stream_fail(stream, fast->status, comm);
    ft_engine_unlock(comm->engine);
}

bool ft_fast_ended(struct ft_comm *comm, const struct ft_work *work, int status)
{
    struct ft_fast *fast = comm->fast;
    if (work != &fast->entry.first_work)
        return false;
    ft_op_trim(&fast->op);
    if (status == FT_OK && !fast->again)
        keep_repeat(comm);
    if (!fast->unqueued)
        return false;
    fast->unqueued = false;
    fast->status = status;
    return true;
}

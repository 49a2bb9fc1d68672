/*
 * The works of a communicator, one for each group of calls. They come from the inbox and start in
 * call order. Stages prepare them (save and fetch inputs), lanes walk through their steps, and they
 * end. After a failure they drain.
 */
#include "core/run/run.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

/* How long a failed communicator waits for its transfers before it cuts their links. */
#define SETTLE_NS 1000000000u

/* The order matters: fused operations are compared as one, and inputs of added operations are
 * preserved. */
static const struct ft_stage *const stages[] = {&ft_fuse_stage, &ft_verify_stage, &ft_gpu_stage,
                                                &ft_preserve_stage};

/* ---- from users ------------------------------------------------------------------------------ */

bool ft_run_take_inbox(struct ft_engine *engine)
{
    if (!atomic_load_explicit(&engine->inbox_count, memory_order_relaxed))
        return false;
    pthread_mutex_lock(&engine->inbox_lock);
    struct ft_work *work = engine->run->inbox;
    engine->run->inbox = engine->run->inbox_tail = NULL;
    atomic_store_explicit(&engine->inbox_count, 0, memory_order_relaxed);
    pthread_mutex_unlock(&engine->inbox_lock);
    for (struct ft_work *next; work; work = next) {
        next = work->next;
        work->next = NULL;
        struct ft_works *works = &work->comm->works;
        if (works->tail)
            works->tail->next = work;
        else
            works->head = work;
        works->tail = work;
    }
    return true;
}

/* ---- starting -------------------------------------------------------------------------------- */

/* Longer results are stored past the caches: see docs/decisions/0005-streaming-stores.md. In place
 * they are not, because the overwritten bytes have just been read. */
#define COLD_BYTES (2u << 20)

static bool has_cold_result(const struct ft_comm *comm, const struct ft_op *op)
{
    enum ft_kind kind = op->coll.kind;
    bool one_block = kind == FT_ALLREDUCE || kind == FT_BROADCAST || kind == FT_REDUCE;
    size_t bytes = op->coll.count * op->plan.esize * (one_block ? 1 : (size_t)comm->view.nranks);
    uintptr_t in = (uintptr_t)op->in, out = (uintptr_t)op->out;
    return bytes >= COLD_BYTES && (out < in || out - in >= bytes);
}

static int plan_op(struct ft_comm *comm, struct ft_op *op)
{
    struct ft_coll plain = op->coll;
    /* The root of an AllGather only says what the exchange is for. */
    if (plain.kind == FT_ALLGATHER)
        plain.root = 0;
    return op->verifies ? ft_verify_plan(comm, &op->plan) : ft_comm_plan(comm, &plain, &op->plan);
}

/* Makes the scratch memory as large as the plan needs. */
static int reserve_scratch(struct ft_op *op)
{
    if (op->plan.tmp_bytes <= op->tmp_bytes)
        return FT_OK;
    free(op->tmp);
    op->tmp_bytes = 0;
    op->tmp = aligned_alloc(FT_CACHE_LINE, ft_round_up(op->plan.tmp_bytes, FT_CACHE_LINE));
    if (!op->tmp)
        return ft_fail(FT_NOMEM, "no memory for %zu bytes of scratch", op->plan.tmp_bytes);
    op->tmp_bytes = op->plan.tmp_bytes;
    return FT_OK;
}

static int start_collective(struct ft_comm *comm, struct ft_op *op)
{
    int rc = plan_op(comm, op);
    if (rc != FT_OK)
        return rc;
    if (ft_kind_reduces(op->coll.kind) && op->coll.red == FT_AVG)
        ft_redop_average(&op->redop, op->coll.type, comm->view.nranks);
    if (op->scale_from)
        ft_redop_read_scale(&op->redop, op->coll.type, op->scale_from);
    if (!op->members)
        op->seq = op->verifies ? op->verifies->seq : ++comm->calls.seq;
    op->cold_result = has_cold_result(comm, op);
    op->lanes_left = op->plan.nsteps > 0 ? op->plan.nlanes : 0;
    if (op->plan.nsteps == 0)
        op->plan.nlanes = 0;
    ft_calls_note(comm, op);
    return reserve_scratch(op);
}

static void record_op(struct ft_comm *comm, struct ft_op *op, const struct ft_algo *algo,
                      uint64_t now)
{
    struct ft_telemetry *telemetry = comm->engine->telemetry;
    if (op->verifies)
        op->record = op->verifies->record;
    else if (telemetry)
        op->record = ft_telemetry_op(telemetry, comm->row, op->seq, &op->coll,
                                     algo ? algo->name : "",
                                     (struct ft_op_times){op->called_ns, now});
}

static void start_op(struct ft_comm *comm, struct ft_op *op, uint64_t now)
{
    bool collective = ft_kind_is_collective(op->coll.kind);
    if (comm->limits.retry && !op->verifies && !ft_retry_translate(comm, op))
        return;
    comm->failure.p2p_passed |= !collective;
    op->sig = op->verifies ? op->verifies->sig | FT_SIG_VERIFY : ft_sig(&op->coll);
    if (op->coll.kind == FT_SEND || op->coll.kind == FT_RECV)
        ft_p2p_start(comm, op);
    for (struct ft_op *member = op->members; member; member = member->next)
        member->seq = op->seq = ++comm->calls.seq;
    int rc = collective ? start_collective(comm, op) : FT_OK;
    for (struct ft_op *member = op->members; member; member = member->next)
        record_op(comm, member, op->plan.algo, now);
    if (op->members)
        op->record = op->members->record; /* it says for whom all members wait */
    else
        record_op(comm, op, op->plan.algo, now);
    ft_op_move(op, FT_OP_RUNNING, FT_OK);
    if (rc != FT_OK)
        ft_comm_fail(comm, rc, comm->view.rank, "%s", ft_fail_text());
    else if (collective)
        ft_calls_check_announced(comm, op);
}

static void start_steps(struct ft_comm *comm)
{
    ft_readiness_tell(comm);
    ft_lanes_start(comm);
    for (struct ft_op *op = comm->works.head->ops; op; op = op->next)
        if (op->state == FT_OP_RUNNING && op->lanes_left == 0 && op->plan.algo &&
            !ft_verify_follows(op))
            ft_op_finish(op);
}

/* ---- pausing --------------------------------------------------------------------------------- */

void ft_run_hold(struct ft_comm *comm, uint64_t from)
{
    ft_engine_assert_held(comm->engine);
    comm->works.holds = true;
    comm->works.hold_from = from;
}

void ft_run_go_on(struct ft_comm *comm)
{
    ft_engine_assert_held(comm->engine);
    comm->works.holds = false;
    comm->engine->stuck = false;
}

static bool has_collective(const struct ft_work *work)
{
    const struct ft_op *op = work->ops;
    while (op && !ft_kind_is_collective(op->coll.kind))
        op = op->next;
    return op != NULL;
}

bool ft_run_is_held(const struct ft_comm *comm)
{
    const struct ft_works *works = &comm->works;
    return works->holds && works->head && !works->running && comm->calls.seq >= works->hold_from &&
           has_collective(works->head) && ft_entry_ready(works->head->entry);
}

/* ---- the turn -------------------------------------------------------------------------------- */

/* Turns the stages that must be over before the first step. True: they are. */
static bool prepare_work(struct ft_comm *comm, bool *moved)
{
    bool prepared = true;
    for (size_t i = 0; i < FT_ARRAY_LEN(stages); i++)
        if (stages[i]->prepare && comm->failure.status == FT_OK)
            prepared &= stages[i]->prepare(comm, moved);
    if (!prepared)
        comm->works.stalled = false;
    return prepared && comm->failure.status == FT_OK;
}

static uint64_t start_clock(struct ft_comm *comm, struct ft_work *work)
{
    uint64_t now = ft_now_ns(comm->engine->env);
    comm->works.running = true;
    comm->works.progress_ns = now;
    comm->works.announced = false;
    work->started = true;
    work->started_ns = now;
    if (comm->limits.op_timeout_ms > 0 && work->deadline_ns == 0)
        work->deadline_ns = now + (uint64_t)comm->limits.op_timeout_ms * 1000000u;
    return now;
}

static void start_work(struct ft_comm *comm)
{
    struct ft_work *work = comm->works.head;
    uint64_t now = start_clock(comm, work);
    for (size_t i = 0; i < FT_ARRAY_LEN(stages); i++)
        if (stages[i]->begin && comm->failure.status == FT_OK)
            stages[i]->begin(comm, work);
    for (struct ft_op *op = work->ops; op && comm->failure.status == FT_OK; op = op->next)
        start_op(comm, op, now);
    for (size_t i = 0; i < FT_ARRAY_LEN(stages); i++)
        if (stages[i]->start && comm->failure.status == FT_OK)
            stages[i]->start(comm);
    comm->works.prepared = false;
}

/* Ends the work behind `before`; NULL: the head. */
static void retire(struct ft_comm *comm, struct ft_work *before, int status)
{
    struct ft_works *works = &comm->works;
    struct ft_work *work = before ? before->next : works->head;
    assert(work && work->ops_left >= 0 && (status != FT_OK || work->ops_left == 0));
    *(before ? &before->next : &works->head) = work->next;
    if (!work->next)
        works->tail = before;
    works->running = false;
    for (size_t i = 0; !work->repeats && i < FT_ARRAY_LEN(stages); i++)
        if (stages[i]->over)
            stages[i]->over(work, status);
    if (!ft_fast_ended(comm, work, status))
        ft_entry_work_done(work, status);
}

void ft_comm_retire(struct ft_comm *comm, int status)
{
    retire(comm, NULL, status);
}

static bool deliver(struct ft_comm *comm)
{
    bool moved = false;
    for (size_t i = 0; i < FT_ARRAY_LEN(stages); i++)
        if (stages[i]->deliver)
            moved |= stages[i]->deliver(comm);
    return moved;
}

/* One turn of the running work. True: it is over. */
static bool turn_head(struct ft_comm *comm, bool *moved)
{
    bool step = comm->failure.status == FT_OK && ft_lanes_turn(comm);
    if (comm->failure.status == FT_OK && comm->works.head->has_p2p)
        step |= ft_p2p_turn(comm);
    if (comm->failure.status == FT_OK && comm->works.head->has_rma)
        step |= ft_rma_turn(comm);
    if (comm->failure.status == FT_OK && !comm->works.head->repeats)
        step |= deliver(comm);
    *moved |= step || comm->failure.status != FT_OK;
    if (step)
        comm->works.stalled = false;
    if (comm->failure.status != FT_OK || comm->works.head->ops_left > 0)
        return false;
    comm->calls.done = comm->calls.seq; /* all collectives that have started */
    ft_comm_retire(comm, FT_OK);
    return true;
}

void ft_comm_number_repeat(struct ft_comm *comm, struct ft_op *op)
{
    op->seq = ++comm->calls.seq;
    ft_calls_note(comm, op);
}

void ft_comm_repeat(struct ft_comm *comm, int looks, bool begun)
{
    struct ft_op *op = comm->works.head->ops;
    if (!begun) {
        ft_comm_number_repeat(comm, op);
        if (comm->readiness)
            ft_readiness_tell(comm);
        ft_lanes_repeat(comm, op);
    }
    comm->works.prepared = true;
    uint64_t now_ns = start_clock(comm, op->work);
    if (!begun || !comm->fast->recorded)
        record_op(comm, op, op->plan.algo, now_ns);
    ft_op_move(op, FT_OP_RUNNING, FT_OK);
    ft_calls_check_announced(comm, op);
    for (bool moved = false; looks > 0 && !turn_head(comm, &moved); looks--) {}
}

/* ---- a concurrent communicator --------------------------------------------------------------- */

static void start_concurrent(struct ft_comm *comm, struct ft_work *work)
{
    uint64_t now = start_clock(comm, work);
    for (struct ft_op *op = work->ops; op && comm->failure.status == FT_OK; op = op->next)
        start_op(comm, op, now);
}

/* Each work starts when its streams reach it, and ends when its operations are done, whatever the
 * others do. The queues of point-to-point operations keep the order between two ranks. */
static bool turn_concurrent(struct ft_comm *comm)
{
    bool moved = false, running = false;
    for (struct ft_work *work = comm->works.head; work; work = work->next) {
        if (work->started || comm->failure.status != FT_OK || !ft_entry_ready(work->entry))
            continue;
        start_concurrent(comm, work);
        moved = true;
    }
    if (comm->works.running && comm->failure.status == FT_OK)
        moved |= ft_p2p_turn(comm);
    if (moved)
        comm->works.stalled = false;
    if (comm->failure.status != FT_OK)
        return true;
    for (struct ft_work *before = NULL, *work = comm->works.head, *next; work; work = next) {
        next = work->next;
        if (work->started && work->ops_left == 0) {
            retire(comm, before, FT_OK);
            continue;
        }
        running |= work->started;
        before = work;
    }
    comm->works.running = running;
    return moved;
}

bool ft_run_turn(struct ft_comm *comm)
{
    bool moved = false;
    if (comm->limits.concurrent)
        return turn_concurrent(comm);
    /* Only a few groups per turn, because other communicators wait meanwhile. */
    for (int n = 0; n < 16 && comm->works.head; n++) {
        if (!comm->works.running) {
            if (!ft_entry_ready(comm->works.head->entry) || ft_run_is_held(comm))
                return moved;
            start_work(comm);
            moved = true;
        }
        if (!comm->works.prepared && comm->failure.status == FT_OK) {
            if (!prepare_work(comm, &moved))
                return moved;
            comm->works.prepared = true;
            start_steps(comm);
        }
        if (!turn_head(comm, &moved))
            return moved;
    }
    return moved;
}

/* ---- what has started ------------------------------------------------------------------------ */

/* The first started work from `work` on. Only a concurrent communicator starts works behind others;
 * the queue of another one can be long, and is not searched. */
static struct ft_work *next_started(const struct ft_comm *comm, struct ft_work *work)
{
    while (work && !work->started)
        work = comm->limits.concurrent ? work->next : NULL;
    return work;
}

struct ft_op *ft_run_first_op(const struct ft_comm *comm)
{
    const struct ft_work *work = next_started(comm, comm->works.head);
    return work ? work->ops : NULL;
}

struct ft_op *ft_run_next_op(const struct ft_op *op)
{
    const struct ft_work *work = op->next ? NULL : next_started(op->work->comm, op->work->next);
    return op->next ? op->next : work ? work->ops : NULL;
}

uint64_t ft_run_deadline_ns(const struct ft_comm *comm)
{
    uint64_t first = 0;
    for (struct ft_work *work = next_started(comm, comm->works.head); work;
         work = next_started(comm, work->next))
        if (work->deadline_ns && (first == 0 || work->deadline_ns < first))
            first = work->deadline_ns;
    return first;
}

/* ---- after a failure ------------------------------------------------------------------------- */

/* A peer that takes no data keeps our buffers in use. Its link is cut, for every communicator on
 * it. */
static void cut_pending_links(struct ft_comm *comm)
{
    for (int r = 0; r < comm->view.nranks; r++) {
        struct ft_peer *peer = comm->peers[r];
        if (!peer || !peer->tx || !ft_lanes_pending_to(comm, r))
            continue;
        ft_link_cut(comm->engine, peer, peer->tx);
        ft_peer_lost(comm->engine, peer, FT_LINK, false);
    }
}

bool ft_comm_settle(struct ft_comm *comm)
{
    uint64_t now = ft_now_ns(comm->engine->env);
    if (!comm->works.running)
        return true;
    if (comm->works.draining_ns == 0) {
        comm->works.draining_ns = now;
        for (struct ft_op *op = ft_run_first_op(comm); op; op = ft_run_next_op(op))
            if (op->state == FT_OP_RUNNING)
                ft_op_move(op, FT_OP_DRAINING, comm->failure.status);
        comm->works.dropped = false;
    }
    /* A device may still read and write slots of links, which other communicators use, too. */
    for (size_t i = 0; i < FT_ARRAY_LEN(stages); i++)
        if (stages[i]->settle && !stages[i]->settle(comm, now - comm->works.draining_ns))
            return false;
    if (!comm->works.dropped)
        ft_lanes_drop(comm);
    comm->works.dropped = true;
    if (ft_lanes_settled(comm))
        return true;
    if (now - comm->works.draining_ns < SETTLE_NS)
        return false;
    cut_pending_links(comm);
    return ft_lanes_settled(comm);
}

bool ft_run_restore(struct ft_comm *comm)
{
    bool restored = true;
    for (size_t i = 0; i < FT_ARRAY_LEN(stages); i++)
        if (stages[i]->restore)
            restored &= stages[i]->restore(comm);
    return restored;
}

bool ft_run_drain(struct ft_comm *comm)
{
    if (!ft_comm_settle(comm))
        return false;
    if (comm->works.running) {
        deliver(comm); /* the device is idle, so all results have arrived */
        if (!ft_run_restore(comm))
            return true;
        ft_lanes_over(comm);
        ft_p2p_reset(comm);
    }
    while (comm->works.head) {
        for (struct ft_op *op = comm->works.head->ops; op; op = op->next) {
            if (op->state == FT_OP_DRAINING)
                ft_op_move(op, FT_OP_FAILED, comm->failure.status);
            if (op->state == FT_OP_QUEUED)
                ft_op_move(op, FT_OP_SKIPPED, FT_SKIPPED);
        }
        ft_comm_retire(comm, comm->failure.status);
    }
    return true;
}

/* ---- time ------------------------------------------------------------------------------------ */

/* If a tick passed without progress, its time counts for the link on which the work waits. */
static void record_wait(struct ft_comm *comm, uint64_t ns)
{
    struct ft_blocker wait = ft_work_waits_for(comm, NULL, 0);
    struct ft_peer *peer = wait.rank >= 0 ? comm->peers[wait.rank] : NULL;
    if (peer)
        *(wait.sends ? &peer->tx_time.wait_ns : &peer->rx_time.wait_ns) += ns;
    if (comm->engine->telemetry && wait.op)
        ft_telemetry_op_wait(comm->engine->telemetry, wait.op->record, wait.step,
                             ft_op_wait(wait.lane, wait.sends, wait.rank));
}

static void note_progress(struct ft_comm *comm, uint64_t now_ns)
{
    comm->works.progress_ns = now_ns;
    ft_telemetry_comm_progress(comm->engine->telemetry, comm->row, now_ns);
}

void ft_run_tick(struct ft_comm *comm)
{
    const struct ft_engine *engine = comm->engine;
    if (!comm->works.stalled)
        note_progress(comm, engine->ticked_ns);
    else if (comm->works.running)
        record_wait(comm, engine->ticked_ns - engine->ticked_before_ns);
    comm->works.stalled = true; /* until a turn moves something */
    if (ft_engine_trim_due(engine))
        ft_lanes_trim(comm);
}

/* ---- another view ---------------------------------------------------------------------------- */

void ft_run_reset(struct ft_comm *comm)
{
    ft_lanes_reset(comm);
    ft_p2p_reset(comm);
    ft_rma_reset(comm);
    ft_calls_reset(comm);
    ft_plans_reset(comm);
    comm->digests.plan.algo = NULL;
    comm->works.announced = comm->failure.quiet = comm->failure.fresh = false;
    comm->works.draining_ns = 0;
    atomic_store_explicit(&comm->failure.untold, 0, memory_order_relaxed);
}

/*
 * A communicator: its queue of groups, its turn, its failure and its end. Everything here runs with
 * the the caller holds the engine, except open, finalize, abort and close, which are calls of the
 * user's thread and take the engine themselves.
 */
#include "core/core.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

/* a failed communicator waits this long for its transfers, then cuts their links */
#define SETTLE_NS 1000000000u
#define FLUSH_NS 20000000u /* an end gives its notices and control messages this long to leave */

static void free_comm(struct ft_comm *comm)
{
    free((void *)(uintptr_t)comm->view.host);
    free((void *)(uintptr_t)comm->view.peer);
    free(comm->peers);
    free(comm->sends);
    free(comm->recvs);
    free(comm->announced);
    free(comm->plans);
    free(comm->notices);
    free(comm->gone);
    free(comm->failed);
    free(comm->signals);
    free(comm->puts_wait);
    free(comm->digests);
    free(comm->retry.lost);
    free(comm->fast.op.tmp);
    for (struct ft_window *window = comm->windows, *next; window; window = next) {
        next = window->next;
        free(window->sizes);
        free(window);
    }
    pthread_mutex_destroy(&comm->split_lock);
    pthread_mutex_destroy(&comm->text_lock);
    if (comm->engine)
        ft_engine_unref(comm->engine);
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

static int allocate_arrays(struct ft_comm *comm, const struct ft_view *view)
{
    size_t n = (size_t)view->nranks;
    int *host = malloc(n * sizeof *host);
    uint64_t *peer = malloc(n * sizeof *peer);
    comm->view = *view;
    comm->view.host = host;
    comm->view.peer = peer;
    comm->peers = calloc(n, sizeof *comm->peers);
    comm->sends = calloc(n, sizeof *comm->sends);
    comm->recvs = calloc(n, sizeof *comm->recvs);
    comm->announced = calloc(n, sizeof *comm->announced);
    comm->plans = calloc(FT_PLAN_CACHE, sizeof *comm->plans);
    comm->notices = calloc(n, 1);
    comm->gone = calloc(n, sizeof *comm->gone);
    comm->failed = calloc(n, 1);
    comm->signals = calloc(n, sizeof *comm->signals);
    comm->puts_wait = calloc(n, sizeof *comm->puts_wait);
    comm->retry.lost = calloc(n, sizeof *comm->retry.lost);
    if (!host || !peer || !comm->peers || !comm->sends || !comm->recvs || !comm->announced ||
        !comm->plans || !comm->notices || !comm->gone || !comm->failed || !comm->signals ||
        !comm->puts_wait || !comm->retry.lost)
        return ft_fail(FT_NOMEM, "no memory for a communicator of %zu ranks", n);
    memcpy(host, view->host, n * sizeof *host);
    memcpy(peer, view->peer, n * sizeof *peer);
    atomic_store(&comm->nranks, view->nranks);
    atomic_store(&comm->rank, view->rank);
    return FT_OK;
}

int ft_comm_open(struct ft_engine *engine, const struct ft_view *view, uint64_t ctx,
                 const char *name, const struct ft_comm_limits *limits, struct ft_comm **out)
{
    struct ft_comm *comm = calloc(1, sizeof *comm);
    if (!comm)
        return ft_fail(FT_NOMEM, "no memory for a communicator");
    pthread_mutex_init(&comm->split_lock, NULL);
    pthread_mutex_init(&comm->text_lock, NULL);
    atomic_store(&comm->refs, 1);
    comm->ctx = ctx;
    comm->limits = *limits;
    comm->limits.preserve_input |= limits->retry;
    comm->culprit = -1;
    comm->blocking = true;
    snprintf(comm->name, sizeof comm->name, "%s", name ? name : "");
    int rc = allocate_arrays(comm, view);
    if (rc != FT_OK) {
        free_comm(comm);
        return rc;
    }
    ft_engine_ref(engine);
    comm->engine = engine;
    ft_engine_lock(engine);
    for (int r = 0; r < view->nranks; r++) {
        if (r == view->rank)
            continue;
        comm->peers[r] = ft_engine_peer(engine, view->peer[r]);
        if (!comm->peers[r])
            rc = FT_NOMEM;
        else
            comm->peers[r]->users++, comm->peers[r]->told = true,
                                     ft_engine_forgive(engine, comm->peers[r]);
    }
    comm->tuning = engine->tuning;
    if (rc == FT_OK)
        rc = ft_cores_count(comm);
    enum ft_links links = FT_LINKS_LOCAL;
    if (rc == FT_OK)
        rc = ft_locality_links(comm, &links);
    ft_tuning_links(&comm->tuning, links);
    if (rc == FT_OK)
        comm->tuning.pulls = ft_locality_pulls(comm);
    /* there, long messages have room on one lane */
    comm->tuning.peer_lanes &= !ft_locality_has_pinned(comm);
    comm->row = engine->telemetry ? ft_telemetry_comm_open(engine->telemetry, ctx, view->epoch,
                                                           view->nranks, view->rank, comm->name)
                                  : -1;
    comm->opened_ns = ft_now_ns(engine->env);
    comm->next = engine->comms;
    engine->comms = comm;
    engine->users++;
    ft_engine_count_local(engine);
    if (rc == FT_OK)
        ft_abandoned_check(comm);
    ft_engine_unlock(engine);
    if (rc != FT_OK) {
        ft_comm_close(comm);
        return ft_fail(rc, "no memory for %d peers", view->nranks);
    }
    ft_locality_pinned(comm);
    ft_gpu_ready(comm);
    *out = comm;
    return FT_OK;
}

/* ---- plans ----------------------------------------------------------------------------------- */

static bool same_coll(const struct ft_coll *a, const struct ft_coll *b)
{
    return a->kind == b->kind && a->type == b->type && a->red == b->red && a->root == b->root &&
           a->count == b->count;
}

int ft_comm_plan(struct ft_comm *comm, const struct ft_coll *coll, struct ft_plan *plan)
{
    struct ft_plan_slot *slot = comm->last_plan; /* programs repeat themselves */
    if (!slot || !slot->valid || !same_coll(&slot->coll, coll)) {
        uint64_t key[3] = {(uint64_t)coll->kind << 32 | (uint64_t)coll->type << 16 |
                               (uint64_t)coll->red,
                           (uint64_t)coll->root, coll->count};
        slot = &comm->plans[ft_hash64(key, sizeof key, 0) % FT_PLAN_CACHE];
    }
    if (!slot->valid || !same_coll(&slot->coll, coll)) {
        slot->valid = false;
        int rc = ft_algo_select(&comm->view, coll, &comm->tuning, &slot->plan);
        if (rc != FT_OK)
            return rc;
        slot->coll = *coll;
        slot->valid = true;
    }
    comm->last_plan = slot;
    *plan = slot->plan;
    return FT_OK;
}

/* ---- the queue ------------------------------------------------------------------------------- */

/* Results from so many bytes on are stored past the caches: see
 * docs/decisions/0005-streaming-stores.md. In place the bytes that are overwritten have just been
 * read. */
#define COLD_BYTES (2u << 20)

static bool has_cold_result(const struct ft_comm *comm, const struct ft_op *op)
{
    enum ft_kind kind = op->coll.kind;
    bool one_block = kind == FT_ALLREDUCE || kind == FT_BROADCAST || kind == FT_REDUCE;
    size_t bytes = op->coll.count * op->plan.esize * (one_block ? 1 : (size_t)comm->view.nranks);
    uintptr_t in = (uintptr_t)op->in, out = (uintptr_t)op->out;
    return bytes >= COLD_BYTES && (out < in || out - in >= bytes);
}

static int start_collective(struct ft_comm *comm, struct ft_op *op)
{
    struct ft_coll plain = op->coll;
    /* there it only marks what the exchange is for */
    if (plain.kind == FT_ALLGATHER)
        plain.root = 0;
    int rc = op->verifies ? ft_verify_plan(comm, &op->plan) : ft_comm_plan(comm, &plain, &op->plan);
    if (rc != FT_OK)
        return rc;
    if (ft_kind_reduces(op->coll.kind) && op->coll.red == FT_AVG)
        ft_redop_average(&op->redop, op->coll.type, comm->view.nranks);
    if (op->scale_from)
        ft_redop_read_scale(&op->redop, op->coll.type, op->scale_from);
    if (!op->members)
        op->seq = op->verifies ? op->verifies->seq : ++comm->seq;
    op->cold_result = has_cold_result(comm, op);
    op->lanes_left = op->plan.nsteps > 0 ? op->plan.nlanes : 0;
    if (op->plan.nsteps == 0)
        op->plan.nlanes = 0;
    comm->history[op->seq % FT_HISTORY].seq = op->seq;
    comm->history[op->seq % FT_HISTORY].sig = ft_sig_call(op->sig);
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

static void check_announced(struct ft_comm *comm, const struct ft_op *op)
{
    for (int r = 0; comm->any_announced && r < comm->view.nranks && comm->status == FT_OK; r++)
        if (comm->announced[r].seq == op->seq)
            ft_mismatch_check(comm, r, op->seq, comm->announced[r].sig);
}

static void record_op(struct ft_comm *comm, struct ft_op *op, const struct ft_algo *algo,
                      uint64_t now)
{
    struct ft_telemetry *telemetry = comm->engine->telemetry;
    if (op->verifies)
        op->record = op->verifies->record;
    else if (telemetry)
        op->record = ft_telemetry_op(telemetry, comm->row, op->seq, &op->coll,
                                     algo ? algo->name : "", now);
}

static void start_op(struct ft_comm *comm, struct ft_op *op, uint64_t now)
{
    bool collective = ft_kind_is_collective(op->coll.kind);
    if (comm->limits.retry && !op->verifies && !ft_retry_translate(comm, op))
        return;
    comm->retry.p2p_passed |= !collective;
    op->sig = op->verifies ? op->verifies->sig | FT_SIG_VERIFY : ft_sig(&op->coll);
    if (op->coll.kind == FT_SEND || op->coll.kind == FT_RECV)
        ft_p2p_start(comm, op);
    for (struct ft_op *member = op->members; member; member = member->next)
        member->seq = op->seq = ++comm->seq;
    int rc = collective ? start_collective(comm, op) : FT_OK;
    for (struct ft_op *member = op->members; member; member = member->next)
        record_op(comm, member, op->plan.algo, now);
    if (op->members)
        op->record = op->members->record; /* tells whom all of them wait for */
    else
        record_op(comm, op, op->plan.algo, now);
    ft_op_move(op, FT_OP_RUNNING, FT_OK);
    if (rc != FT_OK)
        ft_comm_fail(comm, rc, comm->view.rank, "%s", ft_fail_text());
    else if (collective)
        check_announced(comm, op);
}

static void start_steps(struct ft_comm *comm)
{
    ft_readiness_tell(comm);
    ft_lanes_start(comm);
    for (struct ft_op *op = comm->head->ops; op; op = op->next)
        if (op->state == FT_OP_RUNNING && op->lanes_left == 0 && op->plan.algo &&
            !ft_verify_follows(op))
            ft_op_finish(op);
}

static bool is_prepared(const struct ft_comm *comm)
{
    return comm->preserve.state != FT_PRESERVE_SAVING && !comm->head->gathers;
}

/* Inputs are saved and fetched, before the first step. */
static bool prepare_work(struct ft_comm *comm)
{
    bool saved = comm->preserve.state != FT_PRESERVE_SAVING || ft_preserve_save(comm);
    bool gathered = comm->status == FT_OK && (!comm->head->gathers || ft_fuse_gathered(comm));
    return saved && gathered;
}

static uint64_t start_clock(struct ft_comm *comm)
{
    struct ft_work *work = comm->head;
    uint64_t now = ft_now_ns(comm->engine->env);
    comm->running = true;
    comm->progress_ns = now;
    comm->announced_self = false;
    work->started_ns = now;
    if (comm->limits.op_timeout_ms > 0 && work->deadline_ns == 0)
        work->deadline_ns = now + (uint64_t)comm->limits.op_timeout_ms * 1000000u;
    return now;
}

static void start_work(struct ft_comm *comm)
{
    struct ft_work *work = comm->head;
    uint64_t now = start_clock(comm);
    if (ft_fuse(comm, work) != FT_OK)
        ft_comm_fail(comm, FT_NOMEM, comm->view.rank, "%s", ft_fail_text());
    if ((comm->limits.verify || comm->limits.retry) && ft_verify_add(comm, work) != FT_OK)
        ft_comm_fail(comm, FT_NOMEM, comm->view.rank, "%s", ft_fail_text());
    int reached = work->has_gpu ? ft_gpu_reached(work) : FT_OK;
    if (reached != FT_OK)
        ft_comm_fail(comm, reached, comm->view.rank, "rank %d: %s", comm->view.rank,
                     ft_fail_text());
    else if (work->has_gpu)
        ft_gpu_begin(work);
    for (struct ft_op *op = work->ops; op && comm->status == FT_OK; op = op->next)
        start_op(comm, op, now);
    if (comm->limits.preserve_input && comm->status == FT_OK)
        ft_preserve_start(comm);
    if (work->gathers && comm->status == FT_OK)
        ft_fuse_gather(comm);
    if (comm->status == FT_OK && is_prepared(comm))
        start_steps(comm);
}

void ft_op_done(struct ft_op *op)
{
    ft_op_move(op, FT_OP_DONE, FT_OK);
    op->work->ops_left--;
}

void ft_op_finish(struct ft_op *op)
{
    if (!op->members || ft_fuse_finish(op->work->comm, op))
        ft_op_done(op);
}

void ft_comm_retire(struct ft_comm *comm, int status)
{
    struct ft_work *work = comm->head;
    comm->head = work->next;
    if (!comm->head)
        comm->tail = NULL;
    comm->running = false;
    comm->preserve.state = FT_PRESERVE_NONE;
    ft_gpu_over(work, status);
    if (!ft_fast_ended(comm, work, status))
        ft_entry_work_done(work, status);
}

/* A turn of the work that runs; true: it is over. */
static bool turn_head(struct ft_comm *comm, bool *moved)
{
    bool step = comm->status == FT_OK && ft_lanes_turn(comm);
    if (comm->status == FT_OK && comm->head->has_p2p)
        step |= ft_p2p_turn(comm);
    if (comm->status == FT_OK && comm->head->has_rma)
        step |= ft_rma_turn(comm);
    if (comm->status == FT_OK && comm->head->leaving)
        step |= ft_fuse_deliver(comm);
    *moved |= step || comm->status != FT_OK;
    if (step)
        comm->stalled = false;
    if (comm->status != FT_OK || comm->head->ops_left > 0)
        return false;
    comm->done_op = comm->seq; /* all that have started */
    ft_comm_retire(comm, FT_OK);
    return true;
}

void ft_comm_repeat(struct ft_comm *comm, int looks)
{
    struct ft_op *op = comm->head->ops;
    op->seq = ++comm->seq;
    comm->history[op->seq % FT_HISTORY] = (struct ft_call){op->seq, op->sig};
    if (comm->readiness)
        ft_readiness_tell(comm);
    ft_lanes_repeat(comm, op);
    record_op(comm, op, op->plan.algo, start_clock(comm));
    ft_op_move(op, FT_OP_RUNNING, FT_OK);
    check_announced(comm, op);
    for (bool moved = false; looks > 0 && !turn_head(comm, &moved); looks--) {}
}

/* ---- failure --------------------------------------------------------------------------------- */

void ft_comm_fail(struct ft_comm *comm, int status, int culprit, const char *fmt, ...)
{
    bool repeats = ft_retry_applies(comm, status), again = comm->status != FT_OK;
    if (again && (!comm->retry.under_way || repeats || comm->retry.ends != FT_OK))
        return;
    char text[sizeof comm->text];
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    pthread_mutex_lock(&comm->text_lock);
    memcpy(comm->text, text, sizeof text);
    comm->culprit = culprit;
    pthread_mutex_unlock(&comm->text_lock);
    if (again) {
        comm->retry.ends = status;
        return;
    }
    if (repeats)
        atomic_store_explicit(&comm->retry.under_way, 1, memory_order_relaxed);
    atomic_store_explicit(&comm->status, status, memory_order_relaxed);
    comm->engine->stuck = false;
    if (!repeats)
        atomic_store_explicit(&comm->verdict, status, memory_order_release);
    FT_LOG(INFO, "init", comm->view.rank, "communicator %016llx: %s", (unsigned long long)comm->ctx,
           text);
    if (!comm->quiet)
        ft_notice_broadcast(comm);
}

/* A peer that takes nothing holds our buffers: its link goes, for every communicator on it. */
static void cut_pending_links(struct ft_comm *comm)
{
    for (int r = 0; r < comm->view.nranks; r++) {
        struct ft_peer *peer = comm->peers[r];
        if (!peer || !peer->tx || !ft_lanes_pending_to(comm, r))
            continue;
        struct ft_link down = *peer->tx;
        down.reason = FT_LINK;
        ft_engine_cut_link(comm->engine, peer, peer->tx);
        for (struct ft_comm *other = comm->engine->comms; other; other = other->next)
            ft_comm_peer_down(other, peer, &down);
    }
}

bool ft_comm_settle(struct ft_comm *comm)
{
    uint64_t now = ft_now_ns(comm->engine->env);
    if (!comm->running)
        return true;
    if (comm->draining_ns == 0) {
        comm->draining_ns = now;
        for (struct ft_op *op = comm->head->ops; op; op = op->next)
            if (op->state == FT_OP_RUNNING)
                ft_op_move(op, FT_OP_DRAINING, comm->status);
        comm->dropped = false;
    }
    /* it may read and write slots of links, which others use too */
    if (!ft_gpu_idle(comm, now - comm->draining_ns))
        return false;
    if (!comm->dropped)
        ft_lanes_drop(comm);
    comm->dropped = true;
    if (ft_lanes_settled(comm))
        return true;
    if (now - comm->draining_ns < SETTLE_NS)
        return false;
    cut_pending_links(comm);
    return ft_lanes_settled(comm);
}

/* Ends the running work once nothing of it is in flight, and skips the queued ones. */
static bool drain_works(struct ft_comm *comm)
{
    if (!ft_comm_settle(comm))
        return false;
    if (comm->running) {
        ft_fuse_deliver(comm); /* the device is idle: they have all come */
        if (!ft_preserve_restore(comm))
            return true;
        ft_lanes_over(comm);
        memset(comm->sends, 0, (size_t)comm->view.nranks * sizeof *comm->sends);
        memset(comm->recvs, 0, (size_t)comm->view.nranks * sizeof *comm->recvs);
        for (struct ft_op *op = comm->head->ops; op; op = op->next) {
            if (op->state == FT_OP_DRAINING)
                ft_op_move(op, FT_OP_FAILED, comm->status);
            if (op->state == FT_OP_QUEUED)
                ft_op_move(op, FT_OP_SKIPPED, FT_SKIPPED);
        }
        ft_comm_retire(comm, comm->status);
    }
    while (comm->head) {
        for (struct ft_op *op = comm->head->ops; op; op = op->next)
            ft_op_move(op, FT_OP_SKIPPED, FT_SKIPPED);
        ft_comm_retire(comm, comm->status);
    }
    return true;
}

int ft_comm_failed(struct ft_comm *comm, int *ranks, int capacity)
{
    int n = 0, lost = 0;
    for (int r = 0; r < comm->view.nranks; r++) {
        const struct ft_peer *peer = comm->peers[r];
        bool failed = comm->agreed ? comm->failed[r] : peer && (peer->dead || peer->lost);
        if (failed && n++ < capacity)
            ranks[n - 1] = r;
    }
    for (; n == 0 && lost < comm->retry.nlost; lost++)
        if (lost < capacity)
            ranks[lost] = comm->retry.lost[lost];
    return n > 0 ? n : lost;
}

void ft_comm_peer_down(struct ft_comm *comm, struct ft_peer *peer, const struct ft_link *link)
{
    int rank = 0;
    while (rank < comm->view.nranks && comm->peers[rank] != peer)
        rank++;
    if (rank == comm->view.nranks || comm->status != FT_OK)
        return;
    int status = ft_status_lost(link->reason) == FT_LOST_PROCESS ? link->reason : FT_PEER;
    ft_comm_fail(comm, status, rank, "rank %d lost rank %d: %s", comm->view.rank, rank,
                 link->proof ? "its process has ended" : ft_status_text(link->reason));
}

/* ---- the turn -------------------------------------------------------------------------------- */

static void watch_deadline(struct ft_comm *comm, uint64_t now)
{
    struct ft_work *work = comm->head;
    char what[256];
    if (!comm->announced_self && now - comm->progress_ns > FT_NOTICE_AFTER_NS) {
        comm->announced_self = true;
        int waits_for = ft_work_waits_for(comm, what, sizeof what).rank;
        if (waits_for >= 0 && waits_for != comm->view.rank && comm->gone[waits_for].left)
            ft_comm_fail(comm, FT_PEER, waits_for, "%s, which has destroyed the communicator",
                         what);
        else
            ft_notice_announce(comm);
    }
    if (work->deadline_ns && now > work->deadline_ns && comm->status == FT_OK) {
        int culprit = ft_work_waits_for(comm, what, sizeof what).rank;
        ft_comm_fail(comm, FT_TIMEOUT, culprit, "%s; not done within %lld ms", what,
                     (long long)comm->limits.op_timeout_ms);
    }
}

bool ft_comm_turn(struct ft_comm *comm)
{
    bool moved = ft_gpu_poll(comm);
    /* it must know all that it was told */
    bool failing = comm->limits.retry && comm->status != FT_OK && !comm->retry.agreement;
    if (comm->engine->turns % FT_TURNS_OFTEN == 0 || comm->notices_left || failing)
        moved |= ft_notice_turn(comm);
    if (comm->engine->turns % FT_TURNS_OFTEN == 0 && comm->status == FT_OK)
        moved |= ft_rma_receive(comm);
    if (comm->status != FT_OK) {
        if (comm->limits.retry)
            moved |= ft_retry_turn(comm);
        bool over = comm->verdict != FT_OK;
        if (over && comm->head)
            moved |= drain_works(comm);
        if (over && !comm->running)
            ft_gpu_failed(comm);
        return moved;
    }
    if (comm->engine->captured > 0)
        moved |= ft_graph_turn(comm);
    /* a few groups a turn; other communicators wait meanwhile */
    for (int n = 0; n < 16 && comm->head; n++) {
        if (!comm->running) {
            if (!ft_entry_ready(comm->head->entry))
                return moved;
            start_work(comm);
            moved = true;
        }
        if (comm->status == FT_OK && !is_prepared(comm)) {
            bool saving = comm->preserve.state == FT_PRESERVE_SAVING;
            comm->stalled = false;
            if (!prepare_work(comm))
                return saving || moved;
            start_steps(comm);
        }
        if (!turn_head(comm, &moved))
            return moved;
    }
    return moved;
}

/* A tick without progress is charged to the link that the work waits for. */
static void record_wait(struct ft_comm *comm, uint64_t ns)
{
    struct ft_blocker wait = ft_work_waits_for(comm, NULL, 0);
    struct ft_peer *peer = wait.rank >= 0 ? comm->peers[wait.rank] : NULL;
    if (peer)
        *(wait.sends ? &peer->tx_time.wait_ns : &peer->rx_time.wait_ns) += ns;
    if (comm->engine->telemetry && wait.op)
        ft_telemetry_op_wait(comm->engine->telemetry, wait.op->record, wait.step, wait.rank);
}

/* The slow part, about once a millisecond: deadlines and notices of an operation that does not
 * move. */
void ft_comm_tick(struct ft_comm *comm, uint64_t now)
{
    if (!comm->stalled)
        comm->progress_ns = now;
    else if (comm->running)
        record_wait(comm, now - comm->engine->ticked_before_ns);
    comm->stalled = true; /* until a turn moves something */
    if (comm->running && comm->status == FT_OK)
        watch_deadline(comm, now);
}

/* ---- the end --------------------------------------------------------------------------------- */

static bool is_idle(void *arg)
{
    struct ft_comm *comm = arg;
    return atomic_load_explicit(&comm->queued, memory_order_acquire) == 0 &&
           !atomic_load_explicit(&comm->retry.under_way, memory_order_relaxed);
}

/* Links that nobody but this communicator uses are about to be closed: what was sent on them must
 * have been taken. */
static bool is_drained(void *arg)
{
    struct ft_comm *comm = arg;
    if (comm->verdict != FT_OK)
        return true;
    if (pthread_mutex_trylock(&comm->engine->drive) != 0)
        return false;
    bool all = true;
    for (int r = 0; r < comm->view.nranks; r++) {
        struct ft_link *tx = r == comm->view.rank ? NULL : comm->peers[r]->tx;
        if (tx && tx->state == FT_LINK_UP && comm->peers[r]->users == 1)
            all = all && tx->ops->drained(tx);
    }
    pthread_mutex_unlock(&comm->engine->drive);
    return all;
}

/* Others may wait for what this rank knows of a decision: its control messages leave before the
 * engine may close. */
static bool is_posted(void *arg)
{
    return atomic_load_explicit(&((struct ft_comm *)arg)->engine->unsent, memory_order_relaxed) ==
           0;
}

int ft_comm_finalize(struct ft_comm *comm)
{
    uint64_t bound = (uint64_t)comm->limits.init_timeout_ms * 1000000u;
    if (!ft_engine_wait(comm->engine, is_idle, comm, bound))
        return ft_fail(FT_TIMEOUT, "operations of rank %d did not end within %lld ms",
                       ft_comm_rank(comm), (long long)comm->limits.init_timeout_ms);
    if (!ft_engine_wait(comm->engine, is_drained, comm, bound))
        return ft_fail(FT_TIMEOUT,
                       "peers of rank %d did not take what was sent to them within %lld ms",
                       ft_comm_rank(comm), (long long)comm->limits.init_timeout_ms);
    ft_engine_wait(comm->engine, is_posted, comm, FLUSH_NS);
    return comm->verdict;
}

static bool is_told(void *arg)
{
    struct ft_comm *comm = arg;
    return is_idle(arg) && is_posted(arg) &&
           atomic_load_explicit(&comm->untold, memory_order_relaxed) == 0;
}

void ft_comm_abort(struct ft_comm *comm)
{
    atomic_store(&comm->leaving, 1);
    ft_engine_lock(comm->engine);
    ft_comm_fail(comm, FT_ABORTED, comm->view.rank, "rank %d aborted the communicator",
                 comm->view.rank);
    ft_gpu_let_go(comm);
    ft_engine_unlock(comm->engine);
    ft_engine_wait(comm->engine, is_told, comm, FLUSH_NS);
    ft_engine_wait(comm->engine, is_idle, comm, 2 * (uint64_t)SETTLE_NS);
    /* a retry was under way: only now they can be */
    if (comm->limits.retry)
        ft_engine_wait(comm->engine, is_told, comm, FLUSH_NS);
}

void ft_comm_revoke(struct ft_comm *comm, const char *why)
{
    ft_engine_lock(comm->engine);
    ft_comm_fail(comm, FT_REVOKED, -1, "the communicator was revoked by rank %d (%s)",
                 comm->view.rank, why);
    ft_gpu_let_go(comm);
    ft_engine_unlock(comm->engine);
    ft_engine_kick(comm->engine);
}

static void detach_comm(struct ft_comm *comm)
{
    struct ft_engine *engine = comm->engine;
    ft_agreement_detach(comm, false);
    for (struct ft_comm **at = &engine->comms; *at; at = &(*at)->next)
        if (*at == comm) {
            *at = comm->next;
            break;
        }
    for (int r = 0; r < comm->view.nranks; r++) {
        struct ft_peer *peer = comm->peers[r];
        if (!peer || --peer->users > 0)
            continue;
        ft_locality_part(peer);
        if (peer->tx)
            ft_engine_drop_link(engine, peer, peer->tx);
    }
    /* Also of those that hung up after the end of their last communicator here. */
    for (struct ft_peer *peer = engine->roster; peer; peer = peer->next_known)
        if (peer->users == 0 && peer->rx && peer->rx->state == FT_LINK_DOWN)
            ft_engine_drop_link(engine, peer, peer->rx);
    ft_preserve_free(comm);
    ft_engine_count_local(engine);
    if (engine->telemetry)
        ft_telemetry_comm_close(engine->telemetry, comm->row);
}

void ft_comm_close(struct ft_comm *comm)
{
    struct ft_engine *engine = comm->engine;
    /* a call that was inside enqueued after the last look */
    if (!is_idle(comm))
        ft_comm_abort(comm);
    ft_unique_ids_withdraw(comm, "its communicator was destroyed");
    ft_engine_lock(engine);
    ft_notice_bye(comm);
    detach_comm(comm);
    bool last = --engine->users == 0;
    ft_engine_unlock(engine);
    ft_engine_unbind(engine, comm->ctx);
    if (comm->retry.ctx)
        ft_engine_unbind(engine, comm->retry.ctx);
    ft_gpu_close(comm);
    if (last)
        ft_engine_close(engine);
    else
        ft_locality_reach(engine);
    ft_comm_unref(comm);
}

/*
 * Policy retry: a communicator that loses a rank goes on with the others inside the call. A commit
 * round (verify.c) follows every collective, so when one rank has committed an operation, all ranks
 * have its data. The engine does the following without the user: it ends what is in flight, agrees
 * with the other ranks on who is left and on the last operation that any rank has committed, and
 * takes the new view under a new context. Interrupted operations up to that one are done; later
 * ones begin again. Each context has one such agreement. Every rank of a failed communicator takes
 * part. If one of them cannot go on, nobody does.
 */
#include "core/group/group.h"

#include <assert.h>
#include <string.h>

/* flags of the agreement; NOT_LATE: no deadline has passed on this rank */
enum { MAY_GO_ON = 1, NOT_LATE = 2 };

/* an aborted communicator waits this long for the agreement that it has entered */
#define LEAVE_NS 1000000000u

static bool is_under_way(const struct ft_comm *comm)
{
    return ft_comm_state(comm) == FT_COMM_RETRYING;
}

/* ---- for other threads ----------------------------------------------------------------------- */

static bool is_steady(void *arg)
{
    return !is_under_way(arg) && ft_comm_state(arg) != FT_COMM_ASKING;
}

void ft_retry_pin(struct ft_comm *comm)
{
    for (bool pinned = !comm->limits.retry; !pinned;) {
        /* the agreement has a bound, so this wait has one, too */
        ft_engine_wait(comm->engine, is_steady, comm, 0);
        ft_engine_lock(comm->engine);
        pinned = is_steady(comm);
        comm->failure.pins += pinned;
        ft_engine_unlock(comm->engine);
    }
}

void ft_retry_unpin(struct ft_comm *comm)
{
    if (!comm->limits.retry)
        return;
    ft_engine_lock(comm->engine);
    assert(comm->failure.pins > 0);
    comm->failure.pins--;
    ft_engine_unlock(comm->engine);
}

/* ---- the new view ---------------------------------------------------------------------------- */

/* Hosts are numbered in the order of their first rank. */
static void number_hosts(struct ft_view *view)
{
    int *host = (int *)(uintptr_t)view->host;
    view->nhosts = 0;
    for (int i = 0; i < view->nranks; i++) {
        if (host[i] < 0)
            continue;
        int old = host[i], number = view->nhosts++;
        for (int k = i; k < view->nranks; k++)
            if (host[k] == old)
                host[k] = -1 - number;
    }
    for (int i = 0; i < view->nranks; i++)
        host[i] = -1 - host[i];
}

static void release_peer(struct ft_engine *engine, struct ft_peer *peer)
{
    if (--peer->users > 0)
        return;
    ft_locality_part(peer);
    if (peer->tx)
        ft_link_drop(engine, peer, peer->tx);
}

/* The survivors keep their order. The arrays are long enough. */
static void leave_out_ranks(struct ft_comm *comm, const unsigned char *excluded)
{
    struct ft_view *view = &comm->view;
    int *host = (int *)(uintptr_t)view->host, n = 0, old = view->nranks, me = view->rank, lost = 0;
    uint64_t *peer = (uint64_t *)(uintptr_t)view->peer;
    pthread_mutex_lock(&comm->failure.lock);
    for (int r = 0; r < old; r++) {
        if (excluded[r]) {
            comm->group->lost[lost++] = r;
            release_peer(comm->engine, comm->peers[r]);
            continue;
        }
        if (r == me)
            view->rank = n;
        host[n] = host[r];
        peer[n] = peer[r];
        comm->peers[n++] = comm->peers[r];
    }
    view->nranks = n;
    view->epoch++;
    number_hosts(view);
    comm->failure.culprit = -1;
    pthread_mutex_unlock(&comm->failure.lock);
    if (lost > 0)
        comm->group->nlost = lost;
    atomic_store_explicit(&comm->nranks, n, memory_order_relaxed);
    atomic_store_explicit(&comm->rank, view->rank, memory_order_relaxed);
}

/* Forgets what belongs to the old ranks and plans. */
static void forget_view(struct ft_comm *comm)
{
    ft_run_reset(comm);
    ft_notice_reset(comm);
    memset(comm->group->failed, 0, (size_t)comm->view.nranks);
    comm->group->retry.told_op = 0;
}

static void change_view(struct ft_comm *comm, const struct ft_decision *decision)
{
    struct ft_engine *engine = comm->engine;
    uint64_t old = comm->ctx;
    forget_view(comm);
    leave_out_ranks(comm, decision->excluded);
    comm->calls.seq = comm->calls.done = comm->group->agreed_op = decision->last_op;
    uint64_t next = comm->group->retry.ctx;
    comm->group->retry.ctx = 0;
    comm->group->retry.agreement = NULL;
    ft_agreement_detach(comm, true);
    comm->group->retry.decided = false;
    ft_engine_unbind_held(engine, old);
    comm->ctx = next;
    ft_readiness_attach(comm);
    if (engine->telemetry) {
        ft_telemetry_comm_close(engine->telemetry, comm->row);
        ft_comm_record(comm);
    }
    ft_engine_count_local(engine);
    atomic_store_explicit(&comm->failure.status, FT_OK, memory_order_relaxed);
    ft_comm_move(comm, FT_COMM_OPEN);
}

/* A rank that has completed a commit round knows that all ranks have their data, also this one. */
static void finish_committed(struct ft_comm *comm, uint64_t last_op)
{
    for (struct ft_op *op = comm->works.head->ops; op; op = op->next) {
        if (op->state != FT_OP_DRAINING || op->seq > last_op)
            continue;
        if (!op->verifies && op->lanes_left > 0)
            ft_comm_fail(comm, FT_INTERNAL, comm->view.rank,
                         "operation %llu was committed before rank %d had its result",
                         (unsigned long long)op->seq, comm->view.rank);
        else
            ft_op_finish(op);
    }
}

/* The rest of the running work begins again. Its deadline begins again only if a rank was lost, so
 * a link that breaks again and again cannot keep the work for ever. */
static void rewind_work(struct ft_comm *comm, bool shrunk)
{
    struct ft_work *work = comm->works.head;
    work->nops = work->ops_left = 0;
    work->last = NULL;
    if (shrunk)
        work->deadline_ns = 0;
    ft_lanes_over(comm); /* before the operations of the lanes are freed */
    for (struct ft_op **at = &work->ops, *op; (op = *at) != NULL;) {
        if (op->verifies || op->state == FT_OP_DONE) {
            *at = op->next;
            ft_op_free(op);
            continue;
        }
        if (op->state == FT_OP_DRAINING)
            ft_op_move(op, FT_OP_QUEUED, FT_OK);
        op->status = FT_OK;
        work->last = op;
        work->nops++;
        work->ops_left++;
        at = &op->next;
    }
    comm->works.running = work->started = false;
    if (!work->ops)
        ft_comm_retire(comm, FT_OK);
}

static void reopen_peer(struct ft_engine *engine, struct ft_peer *peer)
{
    peer->departed = false;
    ft_peer_move(engine, peer, FT_PEER_OPEN);
}

/* Makes broken links between live ranks anew. A link that failed meanwhile is a failure of the new
 * view. What arrived on it for that view, for example why its sender left, is taken before the link
 * is dropped. */
static void mend_links(struct ft_comm *comm)
{
    ft_notice_turn(comm);
    for (int r = 0; r < comm->view.nranks; r++) {
        struct ft_peer *peer = comm->peers[r];
        struct ft_link *link;
        if (!peer || (!ft_peer_is_gone(peer) && !peer->departed))
            continue;
        if (peer->rx && peer->rx->state == FT_LINK_DOWN)
            ft_link_drop(comm->engine, peer, peer->rx);
        int rc = ft_engine_redial(comm->engine, peer, &link);
        if (rc == FT_OK || rc == FT_AGAIN)
            reopen_peer(comm->engine, peer);
        else
            ft_comm_fail(comm, FT_PEER, r, "rank %d lost rank %d: %s", comm->view.rank, r,
                         ft_status_text(rc));
    }
}

/* Returns true if something moved. */
static bool go_on(struct ft_comm *comm, const struct ft_decision *decision)
{
    if (!ft_comm_settle(comm))
        return false;
    if (comm->works.running) {
        finish_committed(comm, decision->last_op);
        if (!ft_run_restore(comm))
            return true;
    }
    int before = comm->view.nranks, ends = comm->failure.ends;
    char text[sizeof comm->failure.text];
    memcpy(text, comm->failure.text, sizeof text);
    comm->failure.ends = FT_OK;
    change_view(comm, decision);
    FT_LOG(INFO, "init", comm->view.rank,
           "%d of %d ranks go on as communicator %016llx after operation %llu", comm->view.nranks,
           before, (unsigned long long)comm->ctx, (unsigned long long)comm->calls.done);
    if (comm->works.running)
        rewind_work(comm, comm->view.nranks < before);
    if (ends != FT_OK)
        ft_comm_fail(comm, ends, -1, "%s", text);
    if (comm->view.nranks < comm->limits.min_ranks)
        ft_comm_fail(comm, FT_NOQUORUM, -1, "%d ranks are left, fewer than minRanks %lld",
                     comm->view.nranks, (long long)comm->limits.min_ranks);
    mend_links(comm);
    return true;
}

/* ---- the agreement --------------------------------------------------------------------------- */

static bool give_up(struct ft_comm *comm)
{
    struct ft_retry *retry = &comm->group->retry;
    if (comm->failure.ends != FT_OK)
        atomic_store_explicit(&comm->failure.status, comm->failure.ends, memory_order_relaxed);
    if (retry->ctx)
        ft_engine_unbind_held(comm->engine, retry->ctx);
    retry->ctx = 0;
    atomic_store_explicit(&comm->failure.verdict, comm->failure.status, memory_order_release);
    ft_comm_move(comm, FT_COMM_FAILED);
    return true;
}

static bool enter_agreement(struct ft_comm *comm)
{
    struct ft_retry *retry = &comm->group->retry;
    bool may = is_under_way(comm) && comm->failure.ends == FT_OK;
    uint64_t salt[2] = {comm->view.epoch + 1, FT_AGREE_RETRY};
    uint64_t ctx = ft_hash64(salt, sizeof salt, comm->ctx);
    may = may && ft_engine_bind_held(comm->engine, ctx) == FT_OK;
    if (may)
        retry->ctx = ctx;
    struct ft_agree_input input = {.kind = FT_AGREE_RETRY,
                                   .key = comm->view.rank,
                                   .last_op = retry->told_op,
                                   .flags = (may ? MAY_GO_ON : 0) |
                                            (comm->failure.status != FT_TIMEOUT ? NOT_LATE : 0)};
    int rc = ft_agreement_enter_held(comm, FT_AGREEMENT_RETRY, &input, &retry->agreement);
    return is_under_way(comm) && (!may || rc != FT_OK) ? give_up(comm) : true;
}

static bool goes_on(const struct ft_comm *comm, const struct ft_decision *decision)
{
    if (!decision || decision->status != FT_OK || decision->excluded[comm->view.rank] ||
        !(decision->flags & MAY_GO_ON))
        return false;
    return decision->nsurvivors < comm->view.nranks || (decision->flags & NOT_LATE);
}

bool ft_retry_turn(struct ft_comm *comm)
{
    struct ft_retry *retry = &comm->group->retry;
    bool leaving = atomic_load(&comm->failure.leaving), under_way = is_under_way(comm);
    if (!retry->agreement && !leaving && comm->view.nranks > 1)
        return enter_agreement(comm);
    if (!under_way)
        return false;
    if (!retry->agreement)
        return give_up(comm);
    ft_comm_settle(comm);
    int state = atomic_load_explicit(&retry->agreement->state, memory_order_relaxed);
    if (state == FT_AGAIN) {
        if (leaving && retry->leaving_ns == 0)
            retry->leaving_ns = ft_now_ns(comm->engine->env);
        return leaving && ft_now_ns(comm->engine->env) - retry->leaving_ns > LEAVE_NS
                   ? give_up(comm)
                   : false;
    }
    const struct ft_decision *decision = state == FT_OK ? ft_agree_decision(retry->agreement->agree)
                                                        : NULL;
    if (goes_on(comm, decision))
        return go_on(comm, decision);
    if (state == FT_NOQUORUM)
        ft_comm_fail(comm, FT_NOQUORUM, -1,
                     "rank %d can reach too few of the %d ranks to go on: the others may be going "
                     "on without it",
                     comm->view.rank, comm->view.nranks);
    return give_up(comm);
}

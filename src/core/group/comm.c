/*
 * A communicator: how it opens, its turn, and its end. Everything here runs with the engine held,
 * except open, finalize, abort, revoke and close, which are calls of the user's thread and take the
 * engine themselves.
 */
#include "core/group/group.h"

#include <stdlib.h>
#include <string.h>

/* An ending communicator waits this long until a failure is told. Telling has a shorter bound. */
#define SETTLE_NS 100000000u
#define FLUSH_NS 20000000u   /* an ending communicator gives its messages this long to leave */
#define ABORT_NS 2000000000u /* an abort waits this long for transfers in flight */
#define BYE_NS 1000000000u   /* a goodbye waits this long for its link */

/* ---- open ------------------------------------------------------------------------------------ */

/* One allocation holds the group's state and its arrays. */
static struct ft_group *new_group(int nranks)
{
    size_t n = (size_t)nranks;
    struct ft_group *group = calloc(1, sizeof *group + n * sizeof *group->gone +
                                           n * sizeof *group->lost + 2 * n);
    if (!group)
        return NULL;
    group->gone = (struct ft_gone *)(group + 1);
    group->lost = (int *)(group->gone + n);
    group->failed = (unsigned char *)(group->lost + n);
    group->notices = group->failed + n;
    group->said_wait = -1;
    pthread_mutex_init(&group->split_lock, NULL);
    return group;
}

/* Returns NULL if memory runs out. The communicator has no engine yet. */
static struct ft_comm *new_comm(const struct ft_view *view, const struct ft_comm_limits *limits)
{
    struct ft_comm *comm = calloc(1, sizeof *comm);
    if (!comm)
        return NULL;
    pthread_mutex_init(&comm->failure.lock, NULL);
    atomic_store(&comm->refs, 1);
    comm->limits = *limits;
    comm->limits.preserve_input |= limits->retry;
    comm->failure.culprit = -1;
    comm->blocking = true;
    comm->group = new_group(view->nranks);
    if (comm->group && ft_run_open(comm, view) == FT_OK)
        return comm;
    ft_comm_unref(comm);
    return NULL;
}

static int find_peers(struct ft_comm *comm)
{
    for (int r = 0; r < comm->view.nranks; r++) {
        if (r == comm->view.rank)
            continue;
        comm->peers[r] = ft_engine_peer(comm->engine, comm->view.peer[r]);
        if (!comm->peers[r])
            return ft_fail(FT_NOMEM, "no memory for %d peers", comm->view.nranks);
    }
    return FT_OK;
}

static void hold_peers(struct ft_comm *comm)
{
    struct ft_engine *engine = comm->engine;
    for (int r = 0; r < comm->view.nranks; r++) {
        struct ft_peer *peer = comm->peers[r];
        if (!peer)
            continue;
        peer->users++;
        peer->told = true;
        if (ft_engine_forgive(engine, peer) && peer->rx && peer->rx->state == FT_LINK_DOWN)
            ft_link_drop(engine, peer, peer->rx);
    }
}

/* The costs by which its ranks plan. All ranks compute the same from the same endpoints. */
static int tune(struct ft_comm *comm)
{
    struct ft_ranks ranks = {comm->engine, &comm->view, comm->peers};
    enum ft_links links = FT_LINKS_LOCAL;
    struct ft_tuning *tuning = &comm->tuning;
    *tuning = comm->engine->tuning;
    int rc = ft_cores_fewest(&ranks, &tuning->costs.cores_per_host);
    if (rc == FT_OK)
        rc = ft_locality_links(&ranks, &links);
    if (rc != FT_OK)
        return rc;
    const struct ft_transport_ops *network = ft_locality_network(&ranks);
    if (network)
        ft_tuning_network(tuning, network->name, network->caps.rdma, network->caps.costs);
    ft_tuning_links(tuning, links);
    if (comm->view.nhosts == 1 && tuning->local_links)
        tuning->pulls = ft_locality_pulls(&ranks);
    /* with pinned memory, long messages have room on one lane */
    tuning->peer_lanes &= !ft_locality_has_pinned(&ranks);
    return FT_OK;
}

/* Nobody sees the communicator before it has all its peers. The caller holds the engine. */
static int attach(struct ft_comm *comm)
{
    struct ft_engine *engine = comm->engine;
    int rc = find_peers(comm);
    if (rc == FT_OK)
        rc = tune(comm);
    if (rc != FT_OK)
        return rc;
    hold_peers(comm);
    ft_comm_record(comm);
    comm->opened_ns = ft_now_ns(engine->env);
    comm->opened_running_ns = engine->detect.running_ns;
    comm->next = engine->run->comms;
    engine->run->comms = comm;
    engine->users++;
    ft_engine_count_local(engine);
    ft_abandoned_check(comm);
    return FT_OK;
}

int ft_comm_open(struct ft_engine *engine, const struct ft_view *view, uint64_t ctx,
                 const char *name, const struct ft_comm_limits *limits, struct ft_comm **out)
{
    struct ft_comm *comm = new_comm(view, limits);
    if (!comm)
        return ft_fail(FT_NOMEM, "no memory for a communicator of %d ranks", view->nranks);
    comm->ctx = ctx;
    snprintf(comm->name, sizeof comm->name, "%s", name ? name : "");
    ft_engine_ref(engine);
    comm->engine = engine;
    ft_engine_lock(engine);
    int rc = attach(comm);
    ft_engine_unlock(engine);
    if (rc != FT_OK) {
        ft_comm_unref(comm);
        return rc;
    }
    ft_locality_pinned(&(struct ft_ranks){engine, &comm->view, comm->peers});
    ft_engine_lock(engine);
    ft_readiness_attach(comm);
    ft_engine_unlock(engine);
    ft_gpu_ready(comm);
    *out = comm;
    return FT_OK;
}

/* ---- failures -------------------------------------------------------------------------------- */

int ft_comm_failed(struct ft_comm *comm, int *ranks, int capacity)
{
    int n = 0, lost = 0;
    int verdict = comm->failure.verdict;
    int blamed = verdict == FT_PEER || verdict == FT_TIMEOUT ? comm->failure.culprit : -1;
    for (int r = 0; r < comm->view.nranks; r++) {
        const struct ft_peer *peer = comm->peers[r];
        bool failed = comm->group->agreed ? comm->group->failed[r]
                                          : peer && (ft_peer_has_failed(peer) || r == blamed);
        if (failed && n++ < capacity)
            ranks[n - 1] = r;
    }
    for (; n == 0 && lost < comm->group->nlost; lost++)
        if (lost < capacity)
            ranks[lost] = comm->group->lost[lost];
    return n > 0 ? n : lost;
}

/* The peer's rank in the communicator. -1: it is not in it. */
static int rank_of(const struct ft_comm *comm, const struct ft_peer *peer)
{
    int rank = comm->view.nranks - 1;
    while (rank >= 0 && comm->peers[rank] != peer)
        rank--;
    return rank;
}

/* First this rank takes what the peer said before it ended. */
void ft_comm_peer_lost(struct ft_comm *comm, struct ft_peer *peer, int reason, bool proof)
{
    int rank = rank_of(comm, peer);
    if (rank < 0 || !ft_comm_is_open(comm))
        return;
    ft_notice_hear(comm, rank);
    if (!ft_comm_is_open(comm))
        return;
    int status = ft_status_lost(reason) == FT_LOST_PROCESS ? reason : FT_PEER;
    ft_comm_lost(comm, status, rank, "rank %d lost rank %d: %s", comm->view.rank, rank,
                 proof ? "its process has ended" : ft_status_text(reason));
}

bool ft_comm_peer_left(struct ft_comm *comm, const struct ft_peer *peer)
{
    int rank = rank_of(comm, peer);
    if (rank < 0)
        return false;
    ft_notice_hear(comm, rank);
    return comm->group->gone[rank].left &&
           comm->opened_ns + comm->engine->detect.suspect_ns >= peer->old_rx_ns;
}

/* ---- the turn -------------------------------------------------------------------------------- */

/* Before it blames a rank, or agrees on a retry, a rank must know all that it was told. */
static bool must_hear(const struct ft_comm *comm)
{
    return ft_comm_state(comm) == FT_COMM_ASKING ||
           (comm->limits.retry && !comm->group->retry.agreement);
}

/* Users and peers are told of a failure before anything else is done. */
static bool turn_notices(struct ft_comm *comm)
{
    struct ft_failure *failure = &comm->failure;
    if (failure->fresh) {
        failure->fresh = false;
        ft_notice_broadcast(comm);
    }
    bool often = comm->engine->turns % FT_TURNS_OFTEN == 0;
    bool hears = often || comm->group->notices_left ||
                 (failure->status != FT_OK && must_hear(comm));
    return hears ? ft_notice_turn(comm) : false;
}

static bool turn_failed(struct ft_comm *comm)
{
    if (ft_cause_is_open(comm))
        ft_cause_turn(comm);
    if (ft_comm_is_open(comm))
        return false;
    bool moved = comm->limits.retry && ft_retry_turn(comm);
    if (comm->failure.verdict == FT_OK)
        return moved;
    if (comm->works.head)
        moved |= ft_run_drain(comm);
    if (!comm->works.running)
        ft_gpu_failed(comm);
    return moved;
}

bool ft_comm_turn(struct ft_comm *comm)
{
    bool moved = ft_gpu_poll(comm);
    moved |= turn_notices(comm);
    if (comm->engine->turns % FT_TURNS_OFTEN == 0 && comm->failure.status == FT_OK)
        moved |= ft_rma_receive(comm);
    if (comm->failure.status != FT_OK) {
        ft_validation_drop(comm);
        return turn_failed(comm) || moved;
    }
    if (comm->group->pause)
        moved |= ft_validation_turn(comm);
    if (comm->engine->captured > 0)
        moved |= ft_graph_turn(comm);
    return ft_run_turn(comm) || moved;
}

bool ft_comm_is_active(const struct ft_comm *comm)
{
    return comm->works.head || comm->group->notices_left || comm->failure.fresh ||
           comm->group->pause || ft_comm_state(comm) == FT_COMM_RETRYING || ft_cause_is_open(comm);
}

static uint64_t announce_after_ns(const struct ft_comm *comm)
{
    uint64_t timeout_ns = (uint64_t)comm->limits.op_timeout_ms * 1000000u;
    return timeout_ns ? ft_min(FT_NOTICE_AFTER_NS, timeout_ns / 4) : FT_NOTICE_AFTER_NS;
}

/* This rank says where it is, and says it again when it waits for another rank. With many ranks,
 * each hears only a few, so they name the rank at which their wait begins. */
static void announce(struct ft_comm *comm, int waits_for)
{
    int waits = comm->view.nranks > FT_ANNOUNCE_ALL ? ft_cause_of_wait(comm, waits_for) : waits_for;
    if (comm->works.announced && comm->group->said_wait == waits)
        return;
    comm->works.announced = true;
    comm->group->said_wait = waits;
    ft_notice_announce(comm);
}

static void expire(struct ft_comm *comm)
{
    char what[256], begins[48] = "";
    int waits_for = ft_work_waits_for(comm, what, sizeof what).rank,
        culprit = ft_cause_of_wait(comm, waits_for);
    if (culprit != waits_for)
        snprintf(begins, sizeof begins, "; the wait begins at rank %d", culprit);
    ft_telemetry_dump(comm->engine->telemetry, comm->ctx, comm->view.rank);
    ft_comm_fail(comm, FT_TIMEOUT, culprit, "%s%s; not done within %lld ms", what, begins,
                 (long long)comm->limits.op_timeout_ms);
}

/* What it sent before it left may come later than its goodbye: channels of a link have no order,
 * and after a break each connection is repaired in its own time. It comes in the time of silence
 * that ends a link, or not at all. */
static bool left_for_good(const struct ft_comm *comm, int rank, uint64_t now)
{
    const struct ft_gone *gone = &comm->group->gone[rank];
    return gone->left && now - gone->left_ns >= comm->engine->detect.suspect_ns;
}

static void watch_deadline(struct ft_comm *comm, uint64_t now)
{
    uint64_t deadline_ns = ft_run_deadline_ns(comm);
    char what[256];
    if (now - comm->works.progress_ns > announce_after_ns(comm)) {
        int waits_for = ft_work_waits_for(comm, what, sizeof what).rank;
        if (waits_for >= 0 && waits_for != comm->view.rank && left_for_good(comm, waits_for, now))
            ft_comm_lost(comm, FT_PEER, waits_for, "%s, which has destroyed the communicator",
                         what);
        else
            announce(comm, waits_for);
    }
    if (deadline_ns && now > deadline_ns && comm->failure.status == FT_OK)
        expire(comm);
}

/* This rank goes on. Those who were told that it waits must know. */
static void take_back_wait(struct ft_comm *comm)
{
    comm->group->said_wait = -1;
    ft_notice_announce(comm);
}

static void fail_if_silent(struct ft_comm *comm, int rank)
{
    char what[256];
    struct ft_peer *peer = comm->peers[rank];
    uint64_t ms = ft_heartbeat_silence_ms(comm->engine, peer, comm->opened_running_ns);
    if (ms < (uint64_t)comm->limits.silence_ms || comm->group->gone[rank].left)
        return;
    peer->heartbeat.suspected = true;
    ft_work_waits_for(comm, what, sizeof what);
    ft_comm_lost(comm, FT_PEER, rank, "%s; rank %d has sent no heartbeat for %llu ms", what, rank,
                 (unsigned long long)ms);
}

void ft_comm_watch_silence(struct ft_comm *comm)
{
    int watched[FT_WATCHERS_MAX];
    int n = ft_detect_watched(comm->view.nranks, comm->view.rank, watched, FT_WATCHERS_MAX);
    for (int i = 0; i < n && comm->works.head && comm->failure.status == FT_OK; i++)
        fail_if_silent(comm, watched[i]);
}

/* Looks at deadlines, and tells peers of an operation that does not move. */
void ft_comm_tick(struct ft_comm *comm)
{
    if (!comm->works.stalled && comm->group->said_wait >= 0)
        take_back_wait(comm);
    ft_run_tick(comm);
    if (comm->works.running && comm->failure.status == FT_OK)
        watch_deadline(comm, comm->engine->ticked_ns);
}

/* ---- the end --------------------------------------------------------------------------------- */

static bool is_idle(void *arg)
{
    struct ft_comm *comm = arg;
    return atomic_load_explicit(&comm->works.queued, memory_order_acquire) == 0 &&
           ft_comm_state(comm) != FT_COMM_RETRYING;
}

bool ft_comm_is_quiet(struct ft_comm *comm)
{
    return is_idle(comm) && ft_comm_state(comm) == FT_COMM_OPEN;
}

static bool is_settled(void *arg)
{
    return is_idle(arg) && !ft_cause_is_open(arg);
}

/* Peers that end, too, wait until they know what this rank has taken. A transport may keep that
 * back until its driver sleeps; on a crowded machine that takes seconds. */
static void tell_taken(struct ft_engine *engine)
{
    for (int i = 0; i < engine->ntransports && !engine->manual; i++) {
        engine->transports[i]->ops->arm(engine->transports[i], true);
        engine->transports[i]->ops->arm(engine->transports[i], false);
    }
}

/* The links that only this communicator uses will be closed. The peers must have taken what was
 * sent on them. */
static bool is_drained(void *arg)
{
    struct ft_comm *comm = arg;
    if (comm->failure.verdict != FT_OK)
        return true;
    if (!ft_engine_trylock(comm->engine))
        return false;
    bool all = true;
    tell_taken(comm->engine);
    for (int r = 0; r < comm->view.nranks; r++) {
        struct ft_link *tx = r == comm->view.rank ? NULL : comm->peers[r]->tx;
        if (tx && tx->state == FT_LINK_UP && comm->peers[r]->users == 1)
            all = all && tx->ops->drained(tx);
    }
    ft_engine_unlock(comm->engine);
    return all;
}

/* Other ranks may wait for a decision that this rank knows. So its control messages leave before
 * the engine closes. */
static bool is_posted(void *arg)
{
    return atomic_load_explicit(&((struct ft_comm *)arg)->engine->unsent, memory_order_relaxed) ==
           0;
}

int ft_comm_flush(struct ft_comm *comm)
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
    return FT_OK;
}

int ft_comm_verdict(struct ft_comm *comm)
{
    struct ft_failure *failure = &comm->failure;
    int rc = atomic_load_explicit(&failure->verdict, memory_order_acquire);
    if (rc == FT_OK)
        return FT_OK;
    pthread_mutex_lock(&failure->lock);
    ft_fail(rc, "the communicator has failed: %s", failure->text);
    pthread_mutex_unlock(&failure->lock);
    return rc;
}

int ft_comm_finalize(struct ft_comm *comm)
{
    int rc = ft_comm_flush(comm);
    if (rc == FT_OK)
        ft_engine_wait(comm->engine, is_settled, comm, SETTLE_NS);
    return rc == FT_OK ? ft_comm_verdict(comm) : rc;
}

static bool is_told(void *arg)
{
    struct ft_comm *comm = arg;
    return is_idle(arg) && is_posted(arg) &&
           atomic_load_explicit(&comm->failure.untold, memory_order_relaxed) == 0;
}

void ft_comm_abort(struct ft_comm *comm)
{
    atomic_store(&comm->failure.leaving, 1);
    ft_engine_lock(comm->engine);
    ft_comm_fail(comm, FT_ABORTED, comm->view.rank, "rank %d aborted the communicator",
                 comm->view.rank);
    if (ft_cause_is_open(comm)) /* the caller of an abort does not wait until others are told */
        ft_comm_show_verdict(comm);
    ft_gpu_let_go(comm);
    ft_engine_unlock(comm->engine);
    ft_engine_wait(comm->engine, is_told, comm, FLUSH_NS);
    ft_engine_wait(comm->engine, is_idle, comm, ABORT_NS);
    /* a retry was under way, so they could not be closed before */
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
    ft_validation_drop(comm);
    ft_agreement_detach(comm, false);
    ft_p2p_reset(comm);
    for (struct ft_comm **at = &engine->run->comms; *at; at = &(*at)->next)
        if (*at == comm) {
            *at = comm->next;
            break;
        }
    for (int r = 0; r < comm->view.nranks; r++) {
        struct ft_peer *peer = comm->peers[r];
        if (!peer || --peer->users > 0)
            continue;
        ft_locality_part(peer);
        engine->hung_up |= !peer->told;
        if (peer->tx)
            ft_link_drop(engine, peer, peer->tx);
    }
    /* Also the links of peers whose last communicator with this rank has ended. */
    for (struct ft_peer *peer = engine->roster; peer; peer = peer->next_known)
        if (peer->users == 0 && peer->rx && peer->rx->state == FT_LINK_DOWN)
            ft_link_drop(engine, peer, peer->rx);
    ft_preserve_free(comm);
    ft_engine_count_local(engine);
    if (engine->telemetry)
        ft_telemetry_comm_close(engine->telemetry, comm->row);
}

/* Without a goodbye, a peer has no proof that this rank has gone, and may not be able to go on
 * without it. Messages that nobody takes any more, because the communicator failed, give their room
 * back only slowly. */
static bool can_say_bye(void *arg)
{
    struct ft_comm *comm = arg;
    if (!ft_engine_trylock(comm->engine))
        return false;
    bool can = ft_notice_can_leave(comm);
    ft_engine_unlock(comm->engine);
    return can;
}

void ft_comm_close(struct ft_comm *comm)
{
    struct ft_engine *engine = comm->engine;
    /* a call that was running has enqueued an operation since the last look */
    if (!is_idle(comm))
        ft_comm_abort(comm);
    ft_unique_ids_withdraw(comm, "its communicator was destroyed");
    if (!engine->manual) /* the time of a simulation stands still meanwhile */
        ft_engine_wait(engine, can_say_bye, comm, BYE_NS);
    ft_engine_lock(engine);
    ft_notice_bye(comm);
    detach_comm(comm);
    bool last = --engine->users == 0;
    ft_engine_unlock(engine);
    ft_engine_unbind(engine, comm->ctx);
    if (comm->group->retry.ctx)
        ft_engine_unbind(engine, comm->group->retry.ctx);
    ft_gpu_close(comm);
    if (last)
        ft_rank_close(engine);
    else
        ft_locality_reach(engine);
    ft_comm_unref(comm);
}

/*
 * Agreements of communicators. This file carries messages between the state machines of membership
 * and the engines, tells the machines what is known of the ranks, and applies decisions. An
 * agreement outlives its communicator for a while, because a rank whose last message was lost must
 * still get an answer.
 */
#include "core/group/group.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#define AGREEMENTS_KEPT 64 /* of closed communicators */
#define AGREEMENTS_PAST 16 /* of an open communicator, with the latest */
/* agreements of a communicator that others may begin before this rank comes to them */
#define AGREEMENTS_AHEAD 4
#define FENCED_TEXT                                                                                \
    "the other ranks took rank %d for dead and agreed to go on without it; it can come back only " \
    "as a new rank"
/* added to the protocol's own bounds for a machine that is too busy to turn the engine */
#define SETTLE_MS 5000

/* ---- finding and making ---------------------------------------------------------------------- */

static struct ft_agreement *find_agreement(const struct ft_engine *engine, uint64_t ctx,
                                           uint32_t instance)
{
    struct ft_agreement *agreement = engine->group->agreements;
    while (agreement && (agreement->ctx != ctx || agreement->instance != instance))
        agreement = agreement->next;
    return agreement;
}

/* It may send to its peers as long as it is kept. The caller holds the engine. */
static void hold_peers(struct ft_agreement *agreement, struct ft_peer *const *peers)
{
    for (int r = 0; r < agreement->nranks; r++) {
        agreement->peers[r] = peers[r];
        if (peers[r])
            peers[r]->agreements++;
    }
}

static void let_peers_go(const struct ft_agreement *agreement)
{
    for (int r = 0; agreement->peers && r < agreement->nranks; r++) {
        struct ft_peer *peer = agreement->peers[r];
        if (!peer)
            continue;
        assert(peer->agreements > 0);
        peer->agreements--;
        agreement->engine->hung_up |= !peer->told;
    }
}

static void free_agreement(struct ft_agreement *agreement)
{
    let_peers_go(agreement);
    ft_agree_close(agreement->agree);
    free(agreement->peers);
    free(agreement->known);
    free(agreement);
}

static void send_message(void *arg, int to, const void *data, size_t len_bytes)
{
    struct ft_agreement *agreement = arg;
    struct ft_ctl_head head = {FT_CTL_AGREE, agreement->instance, agreement->ctx};
    ft_control_send(agreement->engine, agreement->peers[to], &head, data, len_bytes);
}

static int make_agreement(struct ft_comm *comm, uint32_t instance, struct ft_agreement **out)
{
    struct ft_engine *engine = comm->engine;
    size_t n = (size_t)comm->view.nranks;
    uint64_t salt[2] = {comm->ctx, instance};
    struct ft_agreement *agreement = calloc(1, sizeof *agreement);
    if (!agreement)
        return ft_fail(FT_NOMEM, "no memory for an agreement");
    *agreement = (struct ft_agreement){.ctx = comm->ctx,
                                       .instance = instance,
                                       .engine = engine,
                                       .comm = comm,
                                       .nranks = comm->view.nranks,
                                       .peers = calloc(n, sizeof *agreement->peers),
                                       .known = calloc(n, 1)};
    atomic_store(&agreement->state, FT_AGAIN);
    struct ft_agree_config config = {.env = engine->env,
                                     .nranks = comm->view.nranks,
                                     .rank = comm->view.rank,
                                     .seed = ft_hash64(salt, sizeof salt, 0),
                                     .message_bytes = engine->tuning.chunk_bytes -
                                                      sizeof(struct ft_ctl_head),
                                     .silent_ns = (uint64_t)comm->limits.suspect_ms * 1000000u,
                                     .enter_ns = (uint64_t)comm->limits.init_timeout_ms * 1000000u,
                                     .send = send_message,
                                     .arg = agreement};
    int rc = agreement->peers && agreement->known ? ft_agree_open(&config, &agreement->agree)
                                                  : ft_fail(FT_NOMEM, "no memory for an agreement");
    if (rc != FT_OK) {
        free_agreement(agreement);
        return ft_fail(rc, "an agreement cannot begin: %s", ft_status_text(rc));
    }
    hold_peers(agreement, comm->peers);
    agreement->next = engine->group->agreements;
    engine->group->agreements = agreement;
    engine->group->undecided++;
    *out = agreement;
    return FT_OK;
}

/* ---- what is known of the ranks -------------------------------------------------------------- */

/* A rank that destroyed its end of the communicator said which agreements it knew. In a later
 * agreement it counts as dead. If it may have decided this one, it may be going on without us. */
static bool has_gone(const struct ft_agreement *agreement, const struct ft_gone *gone)
{
    if (!gone->left)
        return false;
    if (agreement->instance == FT_AGREEMENT_RETRY)
        return !gone->retried && gone->decided <= agreement->comm->group->decided;
    return agreement->instance > gone->decided;
}

/* The end of a link proves nothing, not even with a goodbye: the others may have decided without
 * this rank and closed the old communicator. A peer that is still there can be asked. It knows the
 * decision, or says that there is none. A peer that this rank has fenced, in any communicator, gets
 * no link again. Nobody waits for it, although its engine may answer. */
static enum ft_peer_evidence evidence_of(const struct ft_agreement *agreement, int rank)
{
    const struct ft_peer *peer = agreement->peers[rank];
    if (peer->state == FT_PEER_DEAD ||
        (agreement->comm && has_gone(agreement, &agreement->comm->group->gone[rank])))
        return FT_DEAD;
    if (peer->state == FT_PEER_UNREACHABLE || peer->state == FT_PEER_FENCED)
        return FT_UNREACHABLE;
    if (peer->redialled)
        return FT_REDIALLED;
    return peer->heartbeat.suspected ? FT_SILENT : FT_ALIVE;
}

static void tell_evidence(struct ft_agreement *agreement)
{
    for (int r = 0; r < agreement->nranks; r++) {
        if (!agreement->peers[r])
            continue;
        enum ft_peer_evidence now = evidence_of(agreement, r);
        if (agreement->known[r] == now)
            continue;
        agreement->known[r] = (unsigned char)now;
        ft_agree_learn(agreement->agree, r, now);
    }
}

/* ---- consequences ---------------------------------------------------------------------------- */

/* Nothing that a fenced rank does may reach us any more. Its links are cut for all communicators.
 * It can connect again, to hear that it is fenced. */
static void fence_peer(struct ft_engine *engine, struct ft_peer *peer)
{
    ft_peer_move(engine, peer, FT_PEER_FENCED);
    if (peer->tx)
        ft_link_cut(engine, peer, peer->tx);
    ft_engine_close_next(engine, peer);
    if (peer->rx)
        ft_link_cut(engine, peer, peer->rx);
    ft_peer_lost(engine, peer, FT_PEER, false);
}

/* The rank destroyed its end of this communicator. It counts as dead here only; other communicators
 * may need it. */
static bool has_only_left(const struct ft_comm *comm, int rank)
{
    return (comm->group->gone[rank].left || comm->group->gone[rank].asked) &&
           comm->peers[rank]->state != FT_PEER_DEAD;
}

static void apply_decision(struct ft_comm *comm, const struct ft_decision *decision)
{
    int me = comm->view.rank, first = -1;
    if (decision->status != FT_OK)
        return;
    if (decision->failed[me]) {
        comm->group->fenced = true;
        ft_comm_fail(comm, FT_FENCED, me, FENCED_TEXT, me);
        return;
    }
    for (int r = 0; r < comm->view.nranks; r++) {
        if (!decision->failed[r])
            continue;
        comm->group->failed[r] = 1;
        if (first < 0)
            first = r;
        comm->failure.quiet = true; /* the agreement itself tells all ranks */
        ft_comm_fail(comm, FT_PEER, r, "the ranks agreed that rank %d is dead", r);
    }
    for (int r = 0; first >= 0 && r < comm->view.nranks; r++)
        if (decision->failed[r] && comm->peers[r]->state != FT_PEER_FENCED &&
            !has_only_left(comm, r))
            fence_peer(comm->engine, comm->peers[r]);
    comm->group->agreed = true;
    if (decision->first_op > comm->group->agreed_op)
        comm->group->agreed_op = decision->first_op;
}

/* Applies the decision, once. */
static void settle_agreement(struct ft_agreement *agreement)
{
    int state = ft_agree_state(agreement->agree);
    if (state == FT_AGAIN ||
        atomic_load_explicit(&agreement->state, memory_order_relaxed) != FT_AGAIN)
        return;
    if (state == FT_OK && agreement->comm) {
        if (agreement->instance == FT_AGREEMENT_RETRY)
            agreement->comm->group->retry.decided = true;
        else if (agreement->instance > agreement->comm->group->decided)
            agreement->comm->group->decided = agreement->instance;
        apply_decision(agreement->comm, ft_agree_decision(agreement->agree));
    }
    assert(agreement->engine->group->undecided > 0);
    agreement->engine->group->undecided--;
    if (agreement->comm && agreement->instance == agreement->comm->group->agreements)
        ft_telemetry_comm_agreed(agreement->engine->telemetry, agreement->comm->row);
    atomic_store_explicit(&agreement->state, state, memory_order_release);
}

/* ---- the engine's side ----------------------------------------------------------------------- */

static int rank_of(struct ft_peer *const *peers, int nranks, const struct ft_peer *peer)
{
    int r = nranks - 1;
    while (r >= 0 && peers[r] != peer)
        r--;
    return r;
}

static void say_gone(struct ft_engine *engine, struct ft_peer *peer, uint32_t instance,
                     const struct ft_closed *closed)
{
    struct ft_ctl_head head = {FT_CTL_GONE, instance, closed->ctx};
    ft_control_send(engine, peer, &head, &closed->decided, sizeof closed->decided);
}

/* Answers a question about an agreement of a closed communicator. If the communicator was closed
 * before the agreement was decided, this rank says that it has left. It gives no answer if it
 * decided the agreement and has forgotten it, because the one that asks so late may have been left
 * out; and none about a view that this rank has left for the next one. */
static void answer_late(struct ft_engine *engine, struct ft_peer *peer, uint64_t ctx,
                        uint32_t instance)
{
    for (size_t i = 0; i < FT_ARRAY_LEN(engine->group->closed); i++) {
        const struct ft_closed *closed = &engine->group->closed[i];
        if (closed->ctx != ctx)
            continue;
        bool left = instance == FT_AGREEMENT_RETRY ? !closed->retried
                                                   : !closed->moved && instance > closed->decided;
        if (left)
            say_gone(engine, peer, instance, closed);
        return;
    }
}

void ft_agreement_decline(struct ft_engine *engine, uint64_t ctx)
{
    ft_engine_assert_held(engine);
    engine->group->closed[engine->group->nclosed++ % FT_ARRAY_LEN(engine->group->closed)] =
        (struct ft_closed){.ctx = ctx};
}

/* True if the answer proves that its sender takes no part in this agreement. */
static bool is_gone_for(const struct ft_agreement *agreement, const void *data, size_t len_bytes)
{
    uint32_t decided;
    if (len_bytes != sizeof decided || !agreement->comm)
        return false;
    memcpy(&decided, data, sizeof decided);
    return has_gone(agreement, &(struct ft_gone){.left = true, .decided = decided});
}

/* Could this rank take part in that agreement? */
static bool may_enter(const struct ft_comm *comm, uint32_t instance)
{
    if (instance == FT_AGREEMENT_RETRY)
        return comm->limits.retry;
    return instance > comm->group->agreements &&
           instance - comm->group->agreements <= AGREEMENTS_AHEAD;
}

/* If this rank has not begun the agreement of a message, it takes part from now on, or says that it
 * never will. */
static struct ft_agreement *find_or_begin_agreement(struct ft_engine *engine, struct ft_peer *peer,
                                                    const struct ft_ctl_head *head)
{
    struct ft_agreement *agreement = find_agreement(engine, head->ctx, head->instance);
    if (agreement)
        return agreement;
    struct ft_comm *comm = engine->run->comms;
    while (comm && comm->ctx != head->ctx)
        comm = comm->next;
    if (!comm) {
        answer_late(engine, peer, head->ctx, head->instance);
        return NULL;
    }
    if (comm->group->fenced || rank_of(comm->peers, comm->view.nranks, peer) < 0 ||
        !may_enter(comm, head->instance) ||
        make_agreement(comm, head->instance, &agreement) != FT_OK)
        return NULL;
    if (head->instance == FT_AGREEMENT_RETRY) {
        comm->failure.quiet = true;
        ft_comm_fail(comm, FT_PEER, -1, "rank %d lost a rank and wants to go on without it",
                     peer->rank);
    }
    return agreement;
}

void ft_agreement_receive(struct ft_engine *engine, struct ft_peer *peer,
                          const struct ft_ctl_in *in)
{
    const struct ft_ctl_head *head = &in->head;
    bool gone = head->what == FT_CTL_GONE;
    struct ft_agreement *agreement = gone ? find_agreement(engine, head->ctx, head->instance)
                                          : find_or_begin_agreement(engine, peer, head);
    int from = agreement ? rank_of(agreement->peers, agreement->nranks, peer) : -1;
    if (from < 0)
        return;
    if (gone) {
        if (!is_gone_for(agreement, in->data, in->len_bytes))
            return;
        agreement->comm->group->gone[from].asked = true;
        ft_agree_learn(agreement->agree, from, FT_DEAD);
    } else {
        tell_evidence(agreement);
        ft_agree_receive(agreement->agree, from, in->data, in->len_bytes);
    }
    settle_agreement(agreement);
}

void ft_agreement_tick(struct ft_engine *engine)
{
    for (struct ft_agreement *agreement = engine->group->agreements;
         agreement && engine->group->undecided; agreement = agreement->next) {
        if (atomic_load_explicit(&agreement->state, memory_order_relaxed) != FT_AGAIN)
            continue;
        tell_evidence(agreement);
        ft_agree_tick(agreement->agree);
        settle_agreement(agreement);
    }
}

/* The communicator ends. Its decisions are kept for late questions. */
void ft_agreement_detach(struct ft_comm *comm, bool moves)
{
    struct ft_engine *engine = comm->engine;
    engine->group->closed[engine->group->nclosed++ % FT_ARRAY_LEN(engine->group->closed)] =
        (struct ft_closed){comm->ctx, comm->group->decided, comm->group->retry.decided, moves};
    if (comm->group->retry.ctx)
        engine->group->closed[engine->group->nclosed++ % FT_ARRAY_LEN(engine->group->closed)] =
            (struct ft_closed){.ctx = comm->group->retry.ctx};
    int kept = 0;
    for (struct ft_agreement **at = &engine->group->agreements; *at;) {
        struct ft_agreement *agreement = *at;
        if (agreement->comm == comm)
            agreement->comm = NULL;
        bool undecided = ft_agree_state(agreement->agree) != FT_OK;
        if (agreement->comm || (!undecided && ++kept <= AGREEMENTS_KEPT)) {
            at = &agreement->next;
            continue;
        }
        if (atomic_load_explicit(&agreement->state, memory_order_relaxed) == FT_AGAIN)
            engine->group->undecided--;
        *at = agreement->next;
        free_agreement(agreement);
    }
}

void ft_agreement_close(struct ft_engine *engine)
{
    for (struct ft_agreement *agreement = engine->group->agreements, *next; agreement;
         agreement = next) {
        next = agreement->next;
        free_agreement(agreement);
    }
    engine->group->agreements = NULL;
    engine->group->undecided = 0;
}

/* Forgets old agreements. No rank can still ask for them: later ones were decided, with it or
 * without it. */
static void forget_past(struct ft_comm *comm)
{
    for (struct ft_agreement **at = &comm->engine->group->agreements; *at;) {
        struct ft_agreement *agreement = *at;
        bool over = atomic_load_explicit(&agreement->state, memory_order_relaxed) != FT_AGAIN;
        if (agreement->comm != comm || !over || agreement->instance == FT_AGREEMENT_RETRY ||
            agreement->instance + AGREEMENTS_PAST > comm->group->agreements) {
            at = &agreement->next;
            continue;
        }
        *at = agreement->next;
        free_agreement(agreement);
    }
}

/* ---- the user's side ------------------------------------------------------------------------- */

/* A user's wait. Its bound counts this process's own running time, like the agreement's bounds. */
struct waiting {
    struct ft_agreement *agreement;
    uint64_t looked_ns, most_ns, ran_ns, bound_ns;
};

static bool is_over(const struct ft_agreement *agreement)
{
    return atomic_load_explicit(&agreement->state, memory_order_acquire) != FT_AGAIN ||
           atomic_load(&agreement->comm->failure.leaving);
}

static bool waits_no_longer(void *arg)
{
    struct waiting *waiting = arg;
    uint64_t now = ft_now_ns(waiting->agreement->engine->env), gap = now - waiting->looked_ns;
    waiting->ran_ns += ft_min(gap, waiting->most_ns);
    waiting->looked_ns = now;
    return is_over(waiting->agreement) || waiting->ran_ns >= waiting->bound_ns;
}

static bool is_cut_off(const struct ft_peer *peer)
{
    return peer->departed || peer->state == FT_PEER_LOST || peer->state == FT_PEER_UNREACHABLE;
}

/* Dials lost peers again. During the agreement it shows whether only their links broke. */
static void redial_lost(const struct ft_agreement *agreement)
{
    struct ft_link *link;
    for (int r = 0; r < agreement->nranks; r++)
        if (agreement->peers[r] && is_cut_off(agreement->peers[r]))
            ft_engine_redial(agreement->engine, agreement->peers[r], &link);
}

uint64_t ft_agreement_child_held(const struct ft_comm *comm, enum ft_agree_kind kind)
{
    uint64_t salt[2] = {comm->group->agreements + 1, kind};
    return ft_hash64(salt, sizeof salt, comm->ctx);
}

static enum ft_agree_call call_of(enum ft_agree_kind kind)
{
    return kind == FT_AGREE_FLAGS    ? FT_CALLS_AGREE
           : kind == FT_AGREE_SHRINK ? FT_CALLS_SHRINK
                                     : FT_CALLS_GROW;
}

int ft_agreement_enter_held(struct ft_comm *comm, uint32_t instance,
                            const struct ft_agree_input *input, struct ft_agreement **out)
{
    struct ft_agreement *agreement = find_agreement(comm->engine, comm->ctx, instance);
    int rc = agreement ? FT_OK : make_agreement(comm, instance, &agreement);
    if (rc != FT_OK)
        return rc;
    struct ft_agree_input with = *input;
    if (with.last_op < comm->calls.done)
        with.last_op = comm->calls.done;
    *out = agreement;
    redial_lost(agreement);
    tell_evidence(agreement);
    rc = ft_agree_enter(agreement->agree, &with);
    if (rc == FT_OK && instance != FT_AGREEMENT_RETRY)
        ft_telemetry_comm_agrees(comm->engine->telemetry, comm->row, call_of(with.kind),
                                 with.exclude, ft_now_ns(comm->engine->env));
    settle_agreement(agreement);
    return rc == FT_OK ? rc : ft_fail(rc, "cannot enter an agreement: %s", ft_status_text(rc));
}

int ft_agreement_enter_next_held(struct ft_comm *comm, const struct ft_agree_input *input,
                                 struct ft_agreement **out)
{
    *out = NULL;
    const struct ft_agreement *next = find_agreement(comm->engine, comm->ctx,
                                                     comm->group->agreements + 1);
    bool out_of_it = comm->group->fenced && !(next && ft_agree_state(next->agree) == FT_OK);
    int rc = out_of_it ? ft_fail(FT_FENCED, FENCED_TEXT, comm->view.rank)
                       : ft_agreement_enter_held(comm, comm->group->agreements + 1, input, out);
    if (*out)
        comm->group->agreements++;
    forget_past(comm);
    return rc;
}

int ft_agreement_enter(struct ft_comm *comm, const struct ft_agree_input *input,
                       struct ft_agreement **out)
{
    ft_engine_lock(comm->engine);
    int rc = ft_agreement_enter_next_held(comm, input, out);
    ft_engine_unlock(comm->engine);
    return rc;
}

/* The sentence names which ranks made which call. */
static int fail_mixed(const struct ft_decision *decision)
{
    static const char *const call[] = {
        [FT_AGREE_FLAGS] = "Agree", [FT_AGREE_SHRINK] = "Shrink", [FT_AGREE_GROW] = "Grow"};
    char who[256] = "";
    size_t used = 0;
    for (size_t kind = FT_AGREE_FLAGS; kind < FT_ARRAY_LEN(call); kind++) {
        bool named = false;
        for (int i = 0; i < decision->nsurvivors && used + 48 < sizeof who; i++) {
            if (decision->keys[i] != (int64_t)kind)
                continue;
            if (!named)
                used += (size_t)snprintf(who + used, sizeof who - used, "%s%s on rank ",
                                         used ? "; " : "", call[kind]);
            used += (size_t)snprintf(who + used, sizeof who - used, "%s%d", named ? ", " : "",
                                     decision->order[i]);
            named = true;
        }
    }
    return ft_fail(FT_MIXED,
                   "the ranks made different calls of Agree, Shrink and Grow, which came to "
                   "nothing and may be repeated: %s",
                   who);
}

/* FT_OK, or why this rank has no part in what was agreed, with a sentence. */
static int judge_decision(const struct ft_comm *comm, const struct ft_decision *decision)
{
    int me = comm->view.rank;
    if (decision->status == FT_MIXED)
        return fail_mixed(decision);
    if (decision->status != FT_OK)
        return ft_fail(decision->status, "the lists of the ranks exclude every rank");
    if (decision->failed[me])
        return ft_fail(FT_FENCED, FENCED_TEXT, me);
    if (decision->excluded[me])
        return ft_fail(FT_FENCED,
                       "rank %d is on the list of ranks to exclude that another rank gave", me);
    return FT_OK;
}

int ft_agreement_result(const struct ft_comm *comm, const struct ft_agreement *agreement,
                        const struct ft_decision **out)
{
    int rc = atomic_load_explicit(&agreement->state, memory_order_acquire);
    if (rc == FT_AGAIN)
        return rc;
    if (rc == FT_NOQUORUM)
        return ft_fail(rc,
                       "rank %d can reach too few of the %d ranks to go on: the others may be "
                       "going on without it",
                       comm->view.rank, comm->view.nranks);
    if (rc != FT_OK)
        return ft_fail(rc, "rank %d: the agreement failed: %s", comm->view.rank,
                       ft_status_text(rc));
    *out = ft_agree_decision(agreement->agree);
    return judge_decision(comm, *out);
}

int ft_agreement_wait(const struct ft_comm *comm, struct ft_agreement *agreement)
{
    uint64_t bound_ms = (uint64_t)(comm->limits.init_timeout_ms + 8 * comm->limits.suspect_ms +
                                   SETTLE_MS);
    struct waiting waiting = {
        .agreement = agreement,
        .looked_ns = ft_now_ns(comm->engine->env),
        .bound_ns = bound_ms * 1000000u,
        .most_ns = ft_agree_gap_ns((uint64_t)comm->limits.suspect_ms * 1000000u)};
    ft_engine_wait(comm->engine, waits_no_longer, &waiting, 0);
    ft_telemetry_comm_agreed(comm->engine->telemetry, comm->row);
    if (atomic_load(&comm->failure.leaving))
        return ft_fail(FT_ABORTED, "rank %d aborted the communicator", comm->view.rank);
    return is_over(agreement) ? FT_OK
                              : ft_fail(FT_TIMEOUT, "rank %d: no agreement within %llu ms",
                                        comm->view.rank, (unsigned long long)bound_ms);
}

int ft_comm_agree(struct ft_comm *comm, const struct ft_agree_input *input,
                  const struct ft_decision **out)
{
    struct ft_agreement *agreement = NULL;
    ft_retry_pin(comm);
    int rc = ft_agreement_enter(comm, input, &agreement);
    if (rc == FT_OK)
        rc = ft_agreement_wait(comm, agreement);
    if (rc == FT_OK)
        rc = ft_agreement_result(comm, agreement, out);
    ft_retry_unpin(comm);
    return rc;
}

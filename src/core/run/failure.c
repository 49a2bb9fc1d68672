/*
 * How a communicator fails. The first failure wins, and its sentence is kept. With policy retry a
 * failure may not be final. In its turn the group floor looks at failure.fresh and tells the peers.
 */
#include "core/run/run.h"

#include <stdarg.h>
#include <string.h>

/* ---- what can be repeated -------------------------------------------------------------------- */

static bool can_repeat(const struct ft_op *op)
{
    enum ft_kind kind = op->verifies ? op->verifies->coll.kind : op->coll.kind;
    return kind == FT_ALLREDUCE || kind == FT_REDUCE || kind == FT_BROADCAST;
}

/* Whether policy retry may repeat after this failure. */
static bool may_retry(const struct ft_comm *comm, int status)
{
    const struct ft_failure *failure = &comm->failure;
    if (!comm->limits.retry || (status != FT_PEER && status != FT_TIMEOUT))
        return false;
    if (failure->never || failure->pins || failure->p2p_passed || comm->rma.windows ||
        atomic_load(&failure->leaving))
        return false;
    const struct ft_op *op = comm->works.running ? comm->works.head->ops : NULL;
    for (; op; op = op->next)
        if (op->state == FT_OP_RUNNING && !can_repeat(op))
            return false;
    return true;
}

bool ft_retry_translate(struct ft_comm *comm, struct ft_op *op)
{
    if (op->epoch == comm->view.epoch)
        return true;
    bool rooted = op->coll.kind == FT_BROADCAST || op->coll.kind == FT_REDUCE;
    int root = 0;
    while (rooted && root < comm->view.nranks && comm->view.peer[root] != op->root_id)
        root++;
    if (can_repeat(op) && root < comm->view.nranks) {
        op->coll.root = root;
        op->epoch = comm->view.epoch;
        return true;
    }
    comm->failure.never = true;
    ft_comm_fail(
        comm, FT_PEER, -1,
        can_repeat(op)
            ? "the root of a %s has failed"
            : "a %s was called before the communicator lost a rank, and does not fit it any more",
        ft_kind_name(op->coll.kind));
    return false;
}

/* ---- failing --------------------------------------------------------------------------------- */

/* The sentence ends with the rank that told it. That is written once, even if several ranks passed
 * it on. */
static void keep_sentence(struct ft_failure *failure, const struct ft_told *told, const char *text)
{
    char by[32] = "";
    if (told->teller >= 0)
        snprintf(by, sizeof by, " (told by rank %d)", told->teller);
    pthread_mutex_lock(&failure->lock);
    failure->cause_bytes = ft_min(strlen(text), sizeof failure->text - sizeof by);
    snprintf(failure->text, sizeof failure->text, "%.*s%s", (int)failure->cause_bytes, text, by);
    failure->culprit = told->culprit;
    failure->noticed = told->noticed;
    pthread_mutex_unlock(&failure->lock);
}

/* Writes the cause to the liveness page, where it outlives the process, before any rank can see
 * this failure. */
static void write_cause(const struct ft_comm *comm, int status)
{
    struct ft_cause cause = {.ctx = comm->ctx,
                             .status = status,
                             .origin = comm->failure.culprit,
                             .noticed = comm->failure.noticed};
    snprintf(cause.text, sizeof cause.text, "%.*s", (int)comm->failure.cause_bytes,
             comm->failure.text);
    ft_liveness_write(&cause);
}

void ft_comm_show_verdict(struct ft_comm *comm)
{
    atomic_store_explicit(&comm->failure.verdict, comm->failure.status, memory_order_release);
}

/* Order: the sentence is written before the cause, the status before the state, and both before the
 * verdict. A user who ends the communicator by a call sees the verdict at once. The group floor
 * shows other verdicts when it has told the ranks that would otherwise blame this rank. */
static void begin_failure(struct ft_comm *comm, int status, bool retries)
{
    struct ft_failure *failure = &comm->failure;
    write_cause(comm, status);
    if (!failure->quiet) {
        failure->fresh = true;
        atomic_store_explicit(&failure->untold, 1, memory_order_relaxed);
    }
    atomic_store_explicit(&failure->status, status, memory_order_relaxed);
    comm->engine->stuck = false;
    ft_comm_move(comm, retries ? FT_COMM_RETRYING : FT_COMM_FAILED);
    if (status == FT_ABORTED || status == FT_REVOKED)
        ft_comm_show_verdict(comm);
}

bool ft_comm_is_open(const struct ft_comm *comm)
{
    return comm->failure.status == FT_OK || ft_comm_state(comm) == FT_COMM_ASKING;
}

void ft_comm_fail_told(struct ft_comm *comm, const struct ft_told *told, const char *text)
{
    ft_engine_assert_held(comm->engine);
    struct ft_failure *failure = &comm->failure;
    bool retries = may_retry(comm, told->status), again = !ft_comm_is_open(comm);
    bool retrying = ft_comm_state(comm) == FT_COMM_RETRYING;
    if (again && (!retrying || retries || failure->ends != FT_OK))
        return;
    keep_sentence(failure, told, text);
    if (again) {
        failure->ends = told->status;
        return;
    }
    begin_failure(comm, told->status, retries);
    FT_LOG(INFO, "init", comm->view.rank, "communicator %016llx: %s", (unsigned long long)comm->ctx,
           failure->text);
}

static struct ft_told seen_here(const struct ft_comm *comm, int status, int culprit)
{
    return (struct ft_told){status, culprit, .noticed = comm->view.rank, .teller = -1};
}

void ft_comm_fail(struct ft_comm *comm, int status, int culprit, const char *fmt, ...)
{
    char text[sizeof comm->failure.text];
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    struct ft_told seen = seen_here(comm, status, culprit);
    ft_comm_fail_told(comm, &seen, text);
}

/* ---- the first cause ------------------------------------------------------------------------- */

static int rank_or_none(const struct ft_comm *comm, int rank)
{
    return rank >= 0 && rank < comm->view.nranks ? rank : -1;
}

/* A rank is believed only what it can know. It cannot know, for example, that this rank has no
 * memory. If this rank is said to be lost, then here the rank that lost it counts as lost. */
struct ft_told ft_told_check(const struct ft_comm *comm, int from, int status, int culprit,
                             int noticed)
{
    bool kept = status == FT_MISMATCH || status == FT_TIMEOUT || status == FT_REVOKED ||
                status == FT_CORRUPT;
    struct ft_told told = {.status = kept ? status : FT_PEER,
                           .culprit = rank_or_none(comm, culprit),
                           .noticed = rank_or_none(comm, noticed),
                           .teller = from};
    if (!kept && told.culprit == comm->view.rank)
        told.culprit = told.noticed == comm->view.rank ? -1 : told.noticed;
    return told;
}

/* Reads why the rank's communicator failed from its liveness page. True: the page has a cause, and
 * comm fails for it. */
static bool fail_by_page(struct ft_comm *comm, int rank)
{
    const struct ft_peer *peer = comm->peers[rank];
    struct ft_cause cause;
    if (!peer || !peer->watch.page || !ft_liveness_read(peer->watch.page, comm->ctx, &cause))
        return false;
    struct ft_told told = ft_told_check(comm, rank, cause.status, cause.origin, cause.noticed);
    ft_comm_fail_told(comm, &told, cause.text);
    return true;
}

/* Asks the page of the lost rank first, because that rank is nearest to the cause. */
static bool fail_by_pages(struct ft_comm *comm, int lost)
{
    bool known = fail_by_page(comm, lost);
    for (int r = 0; r < comm->view.nranks && !known; r++)
        known = fail_by_page(comm, r);
    return known;
}

void ft_comm_ask_pages(struct ft_comm *comm)
{
    fail_by_pages(comm, comm->failure.culprit);
}

/* From now on no operation moves, and this rank tells nobody, until the cause is known. */
static void ask(struct ft_comm *comm, int status, int rank, const char *text)
{
    struct ft_failure *failure = &comm->failure;
    struct ft_told seen = seen_here(comm, status, rank);
    keep_sentence(failure, &seen, text);
    failure->lost_status = status;
    if (ft_comm_state(comm) == FT_COMM_ASKING)
        return;
    atomic_store_explicit(&failure->status, status, memory_order_relaxed);
    comm->engine->stuck = false;
    ft_comm_move(comm, FT_COMM_ASKING);
}

void ft_comm_blame(struct ft_comm *comm)
{
    const struct ft_failure *failure = &comm->failure;
    char text[sizeof failure->text];
    struct ft_told seen = seen_here(comm, failure->lost_status, failure->culprit);
    memcpy(text, failure->text, sizeof text);
    ft_comm_fail_told(comm, &seen, text);
}

/* If several ranks are lost, the first counts, unless the end of a later one is proven. That one
 * has told nobody why it ended, so the failure began there. */
void ft_comm_lost(struct ft_comm *comm, int status, int rank, const char *fmt, ...)
{
    char text[sizeof comm->failure.text];
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    struct ft_told seen = seen_here(comm, status, rank);
    if (!ft_comm_is_open(comm))
        ft_comm_fail_told(comm, &seen, text); /* the first failure wins */
    else if (!fail_by_pages(comm, rank) &&
             (ft_comm_state(comm) != FT_COMM_ASKING || ft_death_watch_ended(comm->peers[rank])))
        ask(comm, status, rank, text);
}

int ft_comm_fail_peer(struct ft_comm *comm, const struct ft_op *op, int rank, int status)
{
    char call[128];
    ft_sig_text(op->sig, call, sizeof call);
    bool process = ft_status_lost(status) == FT_LOST_PROCESS;
    ft_comm_lost(comm, process ? status : FT_PEER, rank,
                 "rank %d lost rank %d during %s, operation %llu: %s", comm->view.rank, rank, call,
                 (unsigned long long)op->seq,
                 ft_death_watch_why(comm->engine, comm->peers[rank], status));
    return FT_PEER;
}

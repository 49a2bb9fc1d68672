/*
 * Option verify: finds silent corruption, and names the rank. Every message carries a CRC32C of its
 * header and payload. The sender computes it from what it hands to the link, and the receiver
 * checks it before it uses a byte. After a collective whose result is the same on all ranks, an
 * operation that the user does not see gathers a digest of every rank's result; the collective is
 * done when these have been compared. That operation has the number of its collective, and a
 * signature of its own. With policy retry every collective has such an operation, as its commit
 * round: a rank that has all digests knows that all ranks are done with the data. Without option
 * verify these digests are 0.
 */
#include "core/run/run.h"

#include <stdarg.h>
#include <stdlib.h>

#define NAMED_MOST 8 /* most ranks that a sentence names */

/* ---- messages -------------------------------------------------------------------------------- */

/* Says in words what a message was for, as its receiver sees it. */
static void purpose(const struct ft_op *op, unsigned lane, uint64_t step, char *buf,
                    size_t len_bytes)
{
    char call[160];
    if (!op) {
        snprintf(buf, len_bytes, "%s", lane == FT_LANE_RMA ? "a put or signal" : "a notice");
        return;
    }
    ft_sig_text(op->sig, call, sizeof call);
    if (ft_kind_is_collective(op->coll.kind))
        snprintf(buf, len_bytes, "step %llu of %s, operation %llu", (unsigned long long)step, call,
                 (unsigned long long)op->seq);
    else
        snprintf(buf, len_bytes, "message %llu between them, %s, from byte %llu on",
                 (unsigned long long)op->seq, call, (unsigned long long)step);
}

bool ft_verify_message(struct ft_comm *comm, int from, const struct ft_msg *msg,
                       const struct ft_op *op, uint64_t step)
{
    if (msg->header.crc == ft_message_sum(&msg->header, msg->data))
        return true;
    char what[256];
    purpose(op, msg->header.lane, step, what, sizeof what);
    ft_comm_fail(comm, FT_CORRUPT, from,
                 "rank %d received from rank %d over %s a message whose checksum does not match "
                 "(%s): corrupted on the way",
                 comm->view.rank, from, comm->peers[from]->rx->ops->name, what);
    return false;
}

/* ---- results --------------------------------------------------------------------------------- */

static size_t result_bytes(const struct ft_comm *comm, const struct ft_coll *coll)
{
    size_t bytes = coll->count * ft_type_size(coll->type);
    switch (coll->kind) {
    case FT_ALLREDUCE:
    case FT_BROADCAST:
        return bytes;
    case FT_ALLGATHER:
        return bytes * (size_t)comm->view.nranks;
    default:
        return 0; /* its result is not the same on all ranks */
    }
}

static const struct ft_coll digest_gather = {.kind = FT_ALLGATHER, .type = FT_UINT32, .count = 1};

int ft_verify_plan(struct ft_comm *comm, struct ft_plan *plan)
{
    if (!comm->digests.plan.algo) {
        struct ft_tuning tuning = comm->tuning;
        tuning.choice = "";
        int rc = ft_algo_select(&comm->view, &digest_gather, &tuning, &comm->digests.plan);
        if (rc != FT_OK)
            return rc;
    }
    *plan = comm->digests.plan;
    return FT_OK;
}

static bool is_followed(const struct ft_comm *comm, const struct ft_op *op)
{
    if (comm->limits.retry)
        return ft_kind_is_collective(op->coll.kind);
    return result_bytes(comm, &op->coll) > 0;
}

bool ft_verify_follows(const struct ft_op *op)
{
    return op->next && op->next->verifies == op;
}

static int make_room(struct ft_comm *comm, size_t digests)
{
    if (digests <= comm->digests.room)
        return FT_OK;
    free(comm->digests.all);
    comm->digests.room = 0;
    comm->digests.all = calloc(digests, sizeof *comm->digests.all);
    if (!comm->digests.all)
        return ft_fail(FT_NOMEM, "no memory for %zu digests", digests);
    comm->digests.room = digests;
    return FT_OK;
}

static int add_comparisons(struct ft_comm *comm, struct ft_work *work)
{
    size_t n = (size_t)comm->view.nranks, count = 0;
    for (const struct ft_op *op = work->ops; op; op = op->next)
        count += is_followed(comm, op);
    if (n < 2 || count == 0)
        return FT_OK;
    int rc = make_room(comm, count * n);
    if (rc != FT_OK)
        return rc;
    uint32_t *all = comm->digests.all;
    for (struct ft_op *op = work->ops; op; op = op->next) {
        if (!is_followed(comm, op))
            continue;
        struct ft_op *comparing = ft_op_new();
        if (!comparing)
            return ft_fail(FT_NOMEM, "no memory to compare a result");
        comparing->coll = digest_gather;
        comparing->in = &all[comm->view.rank];
        comparing->out = all;
        comparing->verifies = op;
        comparing->work = work;
        comparing->state = FT_OP_QUEUED;
        comparing->next = op->next;
        op->next = comparing;
        if (work->last == op)
            work->last = comparing;
        work->nops++;
        work->ops_left++;
        all += n;
        op = comparing;
    }
    return FT_OK;
}

static void begin(struct ft_comm *comm, struct ft_work *work)
{
    if ((comm->limits.verify || comm->limits.retry) && add_comparisons(comm, work) != FT_OK)
        ft_comm_fail(comm, FT_NOMEM, comm->view.rank, "%s", ft_fail_text());
}

const struct ft_stage ft_verify_stage = {.begin = begin};

bool ft_verify_digest(struct ft_comm *comm, struct ft_op *op)
{
    const struct ft_op *of = op->verifies;
    uint32_t *mine = (uint32_t *)op->out + comm->view.rank;
    size_t len = comm->limits.verify ? result_bytes(comm, &of->coll) : 0;
    if (!ft_pass_digest(comm, of, len, mine))
        return false;
    op->begun = true;
    return true;
}

void ft_verify_compare(struct ft_comm *comm, struct ft_op *op)
{
    char call[160], text[256];
    int odd;
    if (!comm->limits.verify ||
        !ft_verify_differ(op->out, comm->view.nranks, &odd, text, sizeof text)) {
        if (comm->limits.retry)
            comm->calls.done = op->seq;
        ft_op_finish(op->verifies);
        ft_op_finish(op);
        return;
    }
    ft_sig_text(op->verifies->sig, call, sizeof call);
    ft_comm_fail(comm, FT_CORRUPT, odd, "the results of %s, operation %llu, are not the same: %s",
                 call, (unsigned long long)op->seq, text);
}

/* ---- who differs ----------------------------------------------------------------------------- */

/* The value that more than half of the ranks have, if there is one (the vote of Boyer and Moore,
 * 1981, and a count). */
static bool majority(const uint32_t *digest, int nranks, uint32_t *value)
{
    int votes = 0, count = 0;
    for (int r = 0; r < nranks; r++) {
        if (votes == 0)
            *value = digest[r];
        votes += digest[r] == *value ? 1 : -1;
    }
    for (int r = 0; r < nranks; r++)
        count += digest[r] == *value;
    return 2 * count > nranks;
}

struct sentence {
    char *text;
    size_t room, at;
};

static void say(struct sentence *s, const char *fmt, ...) FT_PRINTF(2, 3);

bool ft_verify_differ(const uint32_t *digest, int nranks, int *odd, char *text, size_t len_bytes)
{
    struct sentence s = {text, len_bytes, 0};
    uint32_t value;
    bool most = majority(digest, nranks, &value);
    int count = 0;
    *odd = -1;
    for (int r = 0; r < nranks; r++) {
        if (most && digest[r] == value)
            continue;
        if (most && *odd < 0)
            *odd = r;
        if (count++ < NAMED_MOST)
            say(&s, "%srank %d has %08x", count > 1 ? ", " : "", r, digest[r]);
    }
    if (count > NAMED_MOST)
        say(&s, " and so on");
    if (count > 0 && most)
        say(&s, "; the other %d ranks have %08x", nranks - count, value);
    if (count > 0 && !most)
        say(&s, "; no value is that of most");
    return count > 0;
}

static void say(struct sentence *s, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    int n = vsnprintf(s->text + s->at, s->room - s->at, fmt, args);
    va_end(args);
    if (n > 0)
        s->at = ft_min(s->at + (size_t)n, s->room - 1);
}

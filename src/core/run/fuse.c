/*
 * Fuses small AllReduces that stand one after another in a group: one operation, over a buffer with
 * all their inputs, does them in one exchange. The choice depends on the calls and settings alone
 * and not on where buffers lie, so all ranks fuse the same calls. A member keeps its number, its
 * state and its record. Its input stays as it is until the whole operation is done; then its result
 * is copied out. The whole operation uses host memory: passes of the members fetch their inputs
 * before the first step, and bring results back after the last.
 */
#include "core/run/run.h"

#include <stdlib.h>

#define MEMBER_BYTES 4096 /* fusing longer inputs gains nothing */

static size_t bytes_of(const struct ft_op *op)
{
    return op->coll.count * ft_type_size(op->coll.type);
}

static bool is_small(const struct ft_op *op)
{
    return op->coll.kind == FT_ALLREDUCE && !op->redop.scaled && !op->scale_from &&
           op->coll.count > 0 && bytes_of(op) <= MEMBER_BYTES;
}

static bool are_alike(const struct ft_op *a, const struct ft_op *b)
{
    return a->coll.type == b->coll.type && a->coll.red == b->coll.red;
}

/* Replaces the members from *at to `last` with one operation. */
static int fuse_run(struct ft_work *work, struct ft_op **at, struct ft_op *last, size_t bytes,
                    int members)
{
    struct ft_op *first = *at, *whole = ft_op_new();
    char *buffer = whole ? aligned_alloc(FT_CACHE_LINE, ft_round_up(bytes, FT_CACHE_LINE)) : NULL;
    if (!buffer) {
        if (whole)
            ft_op_free(whole);
        return ft_fail(FT_NOMEM, "no memory for %d operations of a group", members);
    }
    whole->coll = first->coll;
    whole->coll.count = bytes / ft_type_size(first->coll.type);
    whole->redop = first->redop;
    whole->in = whole->out = whole->joint = buffer;
    whole->members = first;
    whole->work = work;
    whole->state = FT_OP_QUEUED;
    whole->next = last->next;
    last->next = NULL;
    *at = whole;
    if (work->last == last)
        work->last = whole;
    work->nops -= members - 1;
    work->ops_left -= members - 1;
    work->gathers = true;
    return FT_OK;
}

static int fuse(struct ft_comm *comm, struct ft_work *work)
{
    size_t most = comm->tuning.chunk_bytes;
    int rc = FT_OK;
    if (work->nops < 2 || comm->limits.verify || comm->limits.retry)
        return FT_OK;
    for (struct ft_op **at = &work->ops; *at && rc == FT_OK; at = &(*at)->next) {
        struct ft_op *last = *at;
        size_t bytes = bytes_of(last);
        int members = 1;
        if (!is_small(last))
            continue;
        for (; last->next && is_small(last->next) && are_alike(*at, last->next) &&
               bytes + bytes_of(last->next) <= most;
             members++) {
            last = last->next;
            bytes += bytes_of(last);
        }
        if (members > 1)
            rc = fuse_run(work, at, last, bytes, members);
    }
    return rc;
}

/* ---- members' buffers ------------------------------------------------------------------------ */

/* Starts the copies between the members' buffers and the joint buffer. FT_AGAIN: some are not over;
 * is_copied() tells. */
static int copy_members(struct ft_comm *comm, struct ft_op *whole, bool out)
{
    char *at = whole->joint;
    int status = FT_OK;
    for (struct ft_op *op = whole->members; op; at += bytes_of(op), op = op->next) {
        struct ft_reduce pass = ft_copy_pass(out ? at : op->in, out ? op->out : at, bytes_of(op));
        int rc = ft_pass_start(comm, op, &pass, (struct ft_device_staged){.src = out, .dst = !out});
        if (rc != FT_OK)
            status = rc;
    }
    return status;
}

/* Whether all copies of its members are over. */
static bool is_copied(struct ft_comm *comm, const struct ft_op *whole)
{
    for (const struct ft_op *op = whole->members; op; op = op->next) {
        int rc = ft_pass_end(op);
        if (rc != FT_OK && rc != FT_AGAIN)
            ft_pass_failed(comm, rc); /* the copy counts as never over */
        if (rc != FT_OK)
            return false;
    }
    return true;
}

static void gather(struct ft_comm *comm)
{
    if (!comm->works.head->gathers)
        return;
    bool all = true;
    for (struct ft_op *op = comm->works.head->ops; op; op = op->next)
        if (op->members)
            all &= copy_members(comm, op, false) == FT_OK;
    comm->works.head->gathers = !all;
}

static bool is_gathered(struct ft_comm *comm, bool *moved)
{
    (void)moved;
    if (!comm->works.head->gathers)
        return true;
    for (const struct ft_op *op = comm->works.head->ops; op; op = op->next)
        if (op->members && !is_copied(comm, op))
            return false;
    comm->works.head->gathers = false;
    return true;
}

static bool deliver(struct ft_comm *comm)
{
    bool moved = false;
    if (comm->works.head->leaving == 0)
        return false;
    for (struct ft_op *op = comm->works.head->ops; op; op = op->next) {
        if (!op->leaves || !is_copied(comm, op))
            continue;
        op->leaves = false;
        comm->works.head->leaving--;
        ft_op_done(op);
        moved = true;
    }
    return moved;
}

void ft_fuse_drop(struct ft_comm *comm)
{
    for (struct ft_op *op = comm->works.running ? comm->works.head->ops : NULL; op; op = op->next)
        for (struct ft_op *member = op->leaves ? NULL : op->members; member; member = member->next)
            ft_pass_cancel(comm, member);
}

/* ---- the end --------------------------------------------------------------------------------- */

static bool finish_fused(struct ft_comm *comm, struct ft_op *whole)
{
    if (copy_members(comm, whole, true) == FT_OK)
        return true;
    whole->leaves = true;
    comm->works.head->leaving++;
    return false;
}

void ft_op_finish(struct ft_op *op)
{
    if (!op->members || finish_fused(op->work->comm, op))
        ft_op_done(op);
}

static void begin(struct ft_comm *comm, struct ft_work *work)
{
    if (fuse(comm, work) != FT_OK)
        ft_comm_fail(comm, FT_NOMEM, comm->view.rank, "%s", ft_fail_text());
}

const struct ft_stage ft_fuse_stage = {
    .begin = begin, .start = gather, .prepare = is_gathered, .deliver = deliver};

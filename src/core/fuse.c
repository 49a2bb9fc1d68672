/*
 * fuse.c: small AllReduces that a group holds one after another become one operation over a buffer with all their inputs, and so cost
 * one exchange together. Which ones do follows from the calls and settings alone, so that all ranks fuse the same. A member
 * keeps its number, its state and its record; its result is copied out when the whole is done, its input is untouched until then.
 */
#include "core/core.h"

#include <stdlib.h>
#include <string.h>

#define MEMBER_BYTES 4096 /* larger ones gain nothing */

static size_t bytes_of(const struct ft_op *op) { return op->coll.count * ft_type_size(op->coll.type); }

static bool is_small(const struct ft_op *op)
{
    return op->coll.kind == FT_ALLREDUCE && !op->redop.scaled && !op->scale_from && op->coll.count > 0 && bytes_of(op) <= MEMBER_BYTES;
}

static bool are_alike(const struct ft_op *a, const struct ft_op *b) { return a->coll.type == b->coll.type && a->coll.red == b->coll.red; }

/* The run of members from *at on becomes one operation in their place. */
static int fuse_run(struct ft_work *work, struct ft_op **at, struct ft_op *last, size_t bytes, int members)
{
    struct ft_op *first = *at, *whole = ft_op_new();
    char *buffer = whole ? aligned_alloc(FT_CACHE_LINE, ft_round_up(bytes, FT_CACHE_LINE)) : NULL;
    if (!buffer) {
        if (whole) ft_op_free(whole);
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
    if (work->last == last) work->last = whole;
    work->nops -= members - 1;
    work->ops_left -= members - 1;
    for (const struct ft_op *op = first; op; op = op->next) {
        memcpy(buffer, op->in, bytes_of(op));
        buffer += bytes_of(op);
    }
    return FT_OK;
}

int ft_fuse(struct ft_comm *comm, struct ft_work *work)
{
    size_t most = comm->tuning.chunk_bytes;
    int rc = FT_OK;
    if (work->nops < 2 || comm->limits.verify || comm->limits.retry || work->has_gpu) return FT_OK;
    for (struct ft_op **at = &work->ops; *at && rc == FT_OK; at = &(*at)->next) {
        struct ft_op *last = *at;
        size_t bytes = bytes_of(last);
        int members = 1;
        if (!is_small(last)) continue;
        for (; last->next && is_small(last->next) && are_alike(*at, last->next) && bytes + bytes_of(last->next) <= most; members++) {
            last = last->next;
            bytes += bytes_of(last);
        }
        if (members > 1) rc = fuse_run(work, at, last, bytes, members);
    }
    return rc;
}

void ft_fuse_finish(struct ft_op *whole)
{
    const char *at = whole->joint;
    for (struct ft_op *op = whole->members; op; op = op->next) {
        memcpy(op->out, at, bytes_of(op));
        at += bytes_of(op);
    }
}

void ft_fuse_free(struct ft_op *whole)
{
    for (struct ft_op *op = whole->members, *next; op; op = next) {
        next = op->next;
        ft_op_free(op);
    }
    whole->members = NULL;
    free(whole->joint);
    whole->joint = NULL;
}

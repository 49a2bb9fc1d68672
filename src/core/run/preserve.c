/*
 * Option preserveInput: keeps a copy of the inputs that running operations overwrite, and restores
 * them after a failure. It is a stage of works: work.c saves before the first step, and restores
 * when nothing of the work is in flight. Each turn copies one piece, so a large buffer delays
 * nobody. Works run one after another, so one side buffer per communicator is enough.
 */
#include "core/run/run.h"

#define PIECE_BYTES ((size_t)1 << 20) /* bytes copied in one turn */
/* Larger works are copied past the caches, as their results are stored. */
#define COLD_BYTES ((size_t)2 << 20)

struct range {
    char *at;
    size_t len_bytes;
};

/* The bytes that are both input and output of the operation on this rank. In place, AllGather,
 * Broadcast, Gather and Scatter store there only what is there already. */
static struct range overwritten(const struct ft_comm *comm, const struct ft_op *op)
{
    size_t one = op->coll.count * ft_type_size(op->coll.type),
           all = one * (size_t)comm->view.nranks, in_bytes, out_bytes;
    /* The outputs of members are not written before the whole operation is done. */
    if (op->members)
        return (struct range){NULL, 0};
    switch (op->coll.kind) {
    case FT_ALLREDUCE:
        in_bytes = out_bytes = one;
        break;
    case FT_REDUCE:
        in_bytes = one, out_bytes = comm->view.rank == op->coll.root ? one : 0;
        break;
    case FT_REDUCESCATTER:
        in_bytes = all, out_bytes = one;
        break;
    case FT_ALLTOALL:
        in_bytes = out_bytes = all;
        break;
    default:
        return (struct range){NULL, 0};
    }
    uintptr_t in = (uintptr_t)op->in, out = (uintptr_t)op->out;
    uintptr_t from = in > out ? in : out,
              to = in + in_bytes < out + out_bytes ? in + in_bytes : out + out_bytes;
    if (out_bytes == 0 || from >= to)
        return (struct range){NULL, 0};
    return (struct range){from == out ? op->out : (char *)(uintptr_t)op->in, to - from};
}

static void rewind_to(struct ft_comm *comm, enum ft_preserve_state state)
{
    struct ft_preserve *p = &comm->preserve;
    p->state = state;
    p->op = comm->works.head->ops;
    p->side_at = p->op_at = 0;
}

static void start(struct ft_comm *comm)
{
    if (!comm->limits.preserve_input)
        return;
    struct ft_preserve *p = &comm->preserve;
    const struct ft_device_ops *device = comm->engine->device->ops;
    size_t need = 0;
    for (const struct ft_op *op = comm->works.head->ops; op; op = op->next)
        need += overwritten(comm, op).len_bytes;
    if (need == 0)
        return;
    if (need > p->side_bytes) {
        ft_preserve_free(comm);
        int rc = device->alloc(comm->engine->device, need, (void **)&p->side);
        if (rc != FT_OK) {
            ft_comm_fail(comm, rc, comm->view.rank,
                         "rank %d has no memory to preserve %zu bytes of input", comm->view.rank,
                         need);
            return;
        }
        p->side_bytes = need;
    }
    p->streaming = need >= COLD_BYTES;
    p->req.status = FT_OK;
    rewind_to(comm, FT_PRESERVE_SAVING);
}

/* Finds the operation whose buffer is copied next. NULL: all are copied. Operations that are done
 * keep their results. */
static const struct ft_op *next_op(const struct ft_comm *comm, struct ft_preserve *p,
                                   struct range *range)
{
    for (; p->op; p->op = p->op->next, p->op_at = 0) {
        *range = overwritten(comm, p->op);
        if (p->state == FT_PRESERVE_RESTORING && p->op->state == FT_OP_DONE)
            p->side_at += range->len_bytes;
        else if (p->op_at < range->len_bytes)
            return p->op;
    }
    return NULL;
}

/* Copies one piece from or to the buffers of the operations. FT_AGAIN: there is more. */
static int copy_some(struct ft_comm *comm)
{
    struct ft_preserve *p = &comm->preserve;
    struct range range;
    for (size_t left = PIECE_BYTES; p->req.status != FT_AGAIN && next_op(comm, p, &range);) {
        size_t len = ft_min(left, range.len_bytes - p->op_at);
        if (len == 0)
            return FT_AGAIN;
        char *user = range.at + p->op_at, *side = p->side + p->side_at;
        bool back = p->state == FT_PRESERVE_RESTORING;
        struct ft_reduce pass = ft_copy_pass(back ? side : user, back ? user : side, len);
        pass.streaming = p->streaming;
        int rc = ft_pass(comm, p->op, &pass, (struct ft_device_staged){.src = back, .dst = !back},
                         &p->req);
        if (rc != FT_OK && rc != FT_AGAIN)
            return rc;
        p->op_at += len;
        p->side_at += len;
        left -= len;
    }
    return p->req.status;
}

static bool save(struct ft_comm *comm, bool *moved)
{
    if (comm->preserve.state != FT_PRESERVE_SAVING)
        return true;
    *moved = true;
    int rc = copy_some(comm);
    if (rc == FT_OK)
        comm->preserve.state = FT_PRESERVE_SAVED;
    else if (rc != FT_AGAIN)
        ft_comm_fail(comm, rc, comm->view.rank, "the device of rank %d could not copy input: %s",
                     comm->view.rank, ft_status_text(rc));
    return rc == FT_OK;
}

static bool restore(struct ft_comm *comm)
{
    struct ft_preserve *p = &comm->preserve;
    if (p->state == FT_PRESERVE_NONE)
        return true;
    if (p->state == FT_PRESERVE_SAVED)
        rewind_to(comm, FT_PRESERVE_RESTORING);
    /* While inputs were being saved, none was overwritten. */
    int rc = p->state == FT_PRESERVE_RESTORING ? copy_some(comm) : p->req.status;
    if (rc == FT_AGAIN)
        return false;
    if (rc != FT_OK)
        FT_LOG(WARN, "coll", comm->view.rank,
               "the device could not restore the input of a failed operation: %s",
               ft_status_text(rc));
    p->state = FT_PRESERVE_NONE;
    return true;
}

static void over(struct ft_work *work, int status)
{
    (void)status;
    work->comm->preserve.state = FT_PRESERVE_NONE;
}

const struct ft_stage ft_preserve_stage = {
    .start = start, .prepare = save, .restore = restore, .over = over};

void ft_preserve_free(struct ft_comm *comm)
{
    struct ft_preserve *p = &comm->preserve;
    if (p->side)
        comm->engine->device->ops->free(comm->engine->device, p->side, p->side_bytes);
    p->side = NULL;
    p->side_bytes = 0;
}

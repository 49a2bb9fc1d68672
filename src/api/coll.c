/*
 * The collectives, sends and receives. The arguments become a struct ft_op, which joins the
 * thread's group.
 */
#include "api/api.h"

#include <stdlib.h>
#include <string.h>

#define COUNT_BYTES_MAX ((size_t)1 << 60)

struct call {
    struct ft_coll coll;
    const void *in;
    void *out;
    int op; /* ftcclRedOp_t, for kinds that reduce */
    const void *site;
};

/* ---- checks ---------------------------------------------------------------------------------- */

static bool is_rooted(enum ft_kind kind)
{
    return kind == FT_BROADCAST || kind == FT_REDUCE || kind == FT_GATHER || kind == FT_SCATTER;
}

static struct ft_extent extent_of(const struct ft_coll *coll, int nranks, int rank)
{
    size_t one = coll->count * ft_type_size(coll->type), all = one * (size_t)nranks;
    bool root = rank == coll->root;
    size_t mine = one * (size_t)rank;
    switch (coll->kind) {
    case FT_ALLREDUCE:
        return (struct ft_extent){one, one, 0, 0};
    case FT_BROADCAST:
        return (struct ft_extent){root ? one : 0, one, 0, 0};
    case FT_REDUCE:
        return (struct ft_extent){one, root ? one : 0, 0, 0};
    case FT_ALLGATHER:
        return (struct ft_extent){one, all, mine, 0};
    case FT_REDUCESCATTER:
        return (struct ft_extent){all, one, 0, mine};
    case FT_ALLTOALL:
        return (struct ft_extent){all, all, 0, 0};
    case FT_GATHER:
        return (struct ft_extent){one, root ? all : 0, mine, 0};
    case FT_SCATTER:
        return (struct ft_extent){root ? all : 0, one, 0, mine};
    case FT_SEND:
        return (struct ft_extent){one, 0, 0, 0};
    default:
        return (struct ft_extent){0, one, 0, 0};
    }
}

static int check_buffers(const struct call *call, struct ft_extent extent)
{
    uintptr_t in = (uintptr_t)call->in, out = (uintptr_t)call->out;
    if (extent.in && !in)
        return ft_fail(FT_INVAL, "%s: the send buffer is NULL", ft_kind_name(call->coll.kind));
    if (extent.out && !out)
        return ft_fail(FT_INVAL, "%s: the receive buffer is NULL", ft_kind_name(call->coll.kind));
    if (!extent.in || !extent.out)
        return FT_OK;
    bool overlap = in < out + extent.out && out < in + extent.in;
    if (!overlap || in + extent.out_off == out + extent.in_off)
        return FT_OK;
    return ft_fail(
        FT_INVAL,
        "%s: send buffer %p and receive buffer %p overlap, but not as in-place buffers do",
        ft_kind_name(call->coll.kind), call->in, call->out);
}

/* Finds out whether the buffers are host memory or memory of the GPU, and prepares operations on
 * the latter. */
static int find_memory(ftcclComm_t comm, const struct call *call, struct ft_op *op,
                       ftcclStream_t stream, struct ft_extent extent)
{
    const void *in = extent.in ? call->in : NULL, *out = extent.out ? call->out : NULL;
    struct ft_stream *host;
    if (!comm->core->engine->gpu) {
        int rc = ft_device_check(ft_kind_name(call->coll.kind), in);
        return rc == FT_OK ? ft_device_check(ft_kind_name(call->coll.kind), out) : rc;
    }
    bool ours = stream && ft_stream_enter(stream, &host) == FT_OK;
    if (ours)
        ft_stream_leave(stream);
    return ft_gpu_want(comm->core, op, (struct ft_gpu_call){in, out, stream, ours});
}

static int check_coll(const struct ft_coll *coll, int nranks)
{
    const char *name = ft_kind_name(coll->kind);
    if ((unsigned)coll->type >= FT_TYPES)
        return ft_fail(FT_INVAL, "%s: %d is not a data type", name, (int)coll->type);
    if (coll->count > COUNT_BYTES_MAX / 8 / (size_t)nranks)
        return ft_fail(FT_INVAL, "%s: count %zu is too large", name, coll->count);
    bool rooted = is_rooted(coll->kind), p2p = coll->kind == FT_SEND || coll->kind == FT_RECV;
    if ((rooted || p2p) && (coll->root < 0 || coll->root >= nranks))
        return ft_fail(FT_INVAL, "%s: %s %d is not a rank of a communicator of %d", name,
                       p2p ? "peer" : "root", coll->root, nranks);
    return FT_OK;
}

/* ---- operators ------------------------------------------------------------------------------- */

static int set_operator(ftcclComm_t comm, const struct call *call, struct ft_op *op)
{
    const char *name = ft_kind_name(call->coll.kind);
    if (call->op >= 0 && call->op < FT_REDS) {
        op->coll.red = (enum ft_red)call->op;
        /* an average becomes a sum when the operation starts, because only then the number of
         * contributors is known */
        op->redop.red = op->coll.red;
        return FT_OK;
    }
    int rc = FT_OK;
    pthread_mutex_lock(&comm->lock);
    int at = call->op - ftcclNumOps;
    if (at < 0 || at >= comm->nops || !comm->ops[at].live)
        rc = ft_fail(FT_INVAL, "%s: %d is not a reduction operator of this communicator", name,
                     call->op);
    else if (comm->ops[at].type != call->coll.type)
        rc = ft_fail(FT_INVAL, "%s: the operator was made for %s, not %s", name,
                     ft_type_name(comm->ops[at].type), ft_type_name(call->coll.type));
    else {
        op->coll.red = FT_REDS; /* ft_red_name() calls it premulsum */
        op->redop = comm->ops[at].redop;
        op->scale_from = comm->ops[at].from;
    }
    pthread_mutex_unlock(&comm->lock);
    return rc;
}

/* ---- one call -------------------------------------------------------------------------------- */

int ft_comm_takes(ftcclComm_t comm, enum ft_kind kind, const char *call)
{
    if (!comm->limits.concurrent || kind == FT_SEND || kind == FT_RECV)
        return FT_OK;
    return ft_fail(FT_USAGE, "%s: a communicator with concurrentP2p takes only sends and receives",
                   call);
}

/* *extent: set if the call's arguments are valid. */
static int fill_op(ftcclComm_t comm, const struct call *call, struct ft_op *op,
                   ftcclStream_t stream, struct ft_extent *extent)
{
    struct ft_shape shape = ft_comm_shape(comm->core, call->coll.root);
    int rc = check_coll(&call->coll, shape.nranks);
    if (rc == FT_OK) {
        *extent = extent_of(&call->coll, shape.nranks, shape.rank);
        rc = check_buffers(call, *extent);
    }
    if (rc == FT_OK)
        rc = ft_comm_takes(comm, call->coll.kind, ft_kind_name(call->coll.kind));
    if (rc == FT_OK)
        rc = ft_comm_verdict(comm->core);
    if (rc != FT_OK)
        return rc;
    op->coll = call->coll;
    op->in = call->in;
    op->out = call->out;
    op->site = call->site;
    op->epoch = shape.epoch;
    op->root_id = shape.root_id;
    if (ft_kind_is_collective(call->coll.kind) && !is_rooted(call->coll.kind))
        op->coll.root = 0;
    if (ft_kind_reduces(call->coll.kind))
        rc = set_operator(comm, call, op);
    return rc == FT_OK ? find_memory(comm, call, op, stream, *extent) : rc;
}

/* Prepares the same call as an earlier one, with other buffers. */
static int refill_op(ftcclComm_t comm, const struct call *call, struct ft_op *op)
{
    struct ft_extent extent = comm->core->fast->extent;
    int rc = check_buffers(call, extent);
    if (rc == FT_OK && ft_device_has_driver())
        rc = find_memory(comm, call, op, NULL, extent);
    op->in = call->in;
    op->out = call->out;
    return rc;
}

/* If nothing else is in progress, a collective begins here at once. Returns FT_AGAIN if it has to
 * be queued. */
static int run_at_once(ftcclComm_t comm, const struct call *call, ftcclStream_t handle)
{
    struct ft_stream *null = comm->core->engine->run->null_stream;
    struct ft_stream *stream = handle ? ft_stream_peek(handle) : null;
    if (!stream || ft_group_is_open() || !ft_kind_is_collective(call->coll.kind))
        return FT_AGAIN;
    struct ft_fast *fast = comm->core->fast;
    struct ft_op *op = ft_fast_begin(comm->core, stream, &call->coll, call->op);
    int rc = !op           ? FT_AGAIN
             : fast->again ? refill_op(comm, call, op)
                           : fill_op(comm, call, op, handle, &fast->extent);
    if (op && rc != FT_OK)
        ft_fast_cancel(comm->core);
    if (rc != FT_OK)
        return rc;
    bool on_null = !handle;
    if (!ft_fast_run_short(comm->core)) {
        /* if the stream has been destroyed meanwhile, the operation still has to go on */
        on_null = !handle || ft_stream_enter(handle, &stream) != FT_OK;
        ft_fast_run(comm->core, on_null ? null : stream);
        if (!on_null)
            ft_stream_leave(handle);
    }
    if (on_null)
        ft_null_stream_used(comm->core->engine);
    return FT_OK;
}

static ftcclResult_t enqueue(const struct call *call, ftcclComm_t comm, ftcclStream_t stream)
{
    ft_thread_enters(FT_THREAD_KIND + (unsigned)call->coll.kind, call->site);
    int rc = ft_enter_library();
    if (rc == FT_OK)
        rc = ft_comm_enter_ready(comm);
    if (rc != FT_OK)
        return ft_fail_call(NULL, rc);
    rc = comm->core->engine->gpu ? FT_AGAIN : run_at_once(comm, call, stream);
    if (rc == FT_OK) {
        ft_comm_leave(comm);
        return ftcclSuccess;
    }
    struct ft_op *op = rc == FT_AGAIN ? ft_op_new() : NULL;
    struct ft_extent extent;
    if (op)
        rc = fill_op(comm, call, op, stream, &extent);
    else if (rc == FT_AGAIN)
        rc = ft_fail(FT_NOMEM, "no memory for an operation");
    if (rc == FT_OK)
        return ft_group_add(comm, stream, op);
    if (op)
        ft_op_free(op);
    return ft_fail_call(comm, rc);
}

#define CALLER __builtin_return_address(0)
#define COLL(KIND, COUNT, ROOT)                                                          \
    {                                                                                    \
        .kind = (KIND), .type = (enum ft_type)datatype, .count = (COUNT), .root = (ROOT) \
    }

FT_EXPORT ftcclResult_t ftcclAllReduce(const void *sendbuff, void *recvbuff, size_t count,
                                       ftcclDataType_t datatype, ftcclRedOp_t op, ftcclComm_t comm,
                                       ftcclStream_t stream)
{
    return enqueue(&(struct call){COLL(FT_ALLREDUCE, count, 0), sendbuff, recvbuff, (int)op,
                                  CALLER},
                   comm, stream);
}

FT_EXPORT ftcclResult_t ftcclReduce(const void *sendbuff, void *recvbuff, size_t count,
                                    ftcclDataType_t datatype, ftcclRedOp_t op, int root,
                                    ftcclComm_t comm, ftcclStream_t stream)
{
    return enqueue(&(struct call){COLL(FT_REDUCE, count, root), sendbuff, recvbuff, (int)op,
                                  CALLER},
                   comm, stream);
}

FT_EXPORT ftcclResult_t ftcclBroadcast(const void *sendbuff, void *recvbuff, size_t count,
                                       ftcclDataType_t datatype, int root, ftcclComm_t comm,
                                       ftcclStream_t stream)
{
    return enqueue(&(struct call){COLL(FT_BROADCAST, count, root), sendbuff, recvbuff, 0, CALLER},
                   comm, stream);
}

FT_EXPORT ftcclResult_t ftcclBcast(void *buff, size_t count, ftcclDataType_t datatype, int root,
                                   ftcclComm_t comm, ftcclStream_t stream)
{
    return ftcclBroadcast(buff, buff, count, datatype, root, comm, stream);
}

FT_EXPORT ftcclResult_t ftcclAllGather(const void *sendbuff, void *recvbuff, size_t sendcount,
                                       ftcclDataType_t datatype, ftcclComm_t comm,
                                       ftcclStream_t stream)
{
    return enqueue(&(struct call){COLL(FT_ALLGATHER, sendcount, 0), sendbuff, recvbuff, 0, CALLER},
                   comm, stream);
}

FT_EXPORT ftcclResult_t ftcclReduceScatter(const void *sendbuff, void *recvbuff, size_t recvcount,
                                           ftcclDataType_t datatype, ftcclRedOp_t op,
                                           ftcclComm_t comm, ftcclStream_t stream)
{
    return enqueue(&(struct call){COLL(FT_REDUCESCATTER, recvcount, 0), sendbuff, recvbuff, (int)op,
                                  CALLER},
                   comm, stream);
}

FT_EXPORT ftcclResult_t ftcclAlltoAll(const void *sendbuff, void *recvbuff, size_t count,
                                      ftcclDataType_t datatype, ftcclComm_t comm,
                                      ftcclStream_t stream)
{
    return enqueue(&(struct call){COLL(FT_ALLTOALL, count, 0), sendbuff, recvbuff, 0, CALLER}, comm,
                   stream);
}

FT_EXPORT ftcclResult_t ftcclGather(const void *sendbuff, void *recvbuff, size_t count,
                                    ftcclDataType_t datatype, int root, ftcclComm_t comm,
                                    ftcclStream_t stream)
{
    return enqueue(&(struct call){COLL(FT_GATHER, count, root), sendbuff, recvbuff, 0, CALLER},
                   comm, stream);
}

FT_EXPORT ftcclResult_t ftcclScatter(const void *sendbuff, void *recvbuff, size_t count,
                                     ftcclDataType_t datatype, int root, ftcclComm_t comm,
                                     ftcclStream_t stream)
{
    return enqueue(&(struct call){COLL(FT_SCATTER, count, root), sendbuff, recvbuff, 0, CALLER},
                   comm, stream);
}

FT_EXPORT ftcclResult_t ftcclSend(const void *sendbuff, size_t count, ftcclDataType_t datatype,
                                  int peer, ftcclComm_t comm, ftcclStream_t stream)
{
    return enqueue(&(struct call){COLL(FT_SEND, count, peer), sendbuff, NULL, 0, CALLER}, comm,
                   stream);
}

FT_EXPORT ftcclResult_t ftcclRecv(void *recvbuff, size_t count, ftcclDataType_t datatype, int peer,
                                  ftcclComm_t comm, ftcclStream_t stream)
{
    return enqueue(&(struct call){COLL(FT_RECV, count, peer), NULL, recvbuff, 0, CALLER}, comm,
                   stream);
}

/* ---- PreMulSum ------------------------------------------------------------------------------- */

static int add_premul(ftcclComm_t comm, const struct ft_premul *premul, int *at)
{
    for (*at = 0; *at < comm->nops; ++*at)
        if (!comm->ops[*at].live)
            break;
    if (*at == comm->nops) {
        struct ft_premul *grown = comm->nops < (1 << 20)
                                      ? realloc(comm->ops, (size_t)(comm->nops + 8) * sizeof *grown)
                                      : NULL;
        if (!grown)
            return ft_fail(FT_NOMEM, "no memory for a reduction operator");
        memset(grown + comm->nops, 0, 8 * sizeof *grown);
        comm->ops = grown;
        comm->nops += 8;
    }
    comm->ops[*at] = *premul;
    return FT_OK;
}

FT_EXPORT ftcclResult_t ftcclRedOpCreatePreMulSum(ftcclRedOp_t *op, void *scalar,
                                                  ftcclDataType_t datatype,
                                                  ftcclScalarResidence_t residence,
                                                  ftcclComm_t comm)
{
    int rc = ft_enter_library(), at;
    if (rc == FT_OK)
        rc = ft_comm_enter_ready(comm);
    if (rc != FT_OK)
        return ft_return(NULL, rc);
    enum ft_type type = (enum ft_type)datatype;
    if (!op || !scalar)
        rc = ft_fail(FT_INVAL, "RedOpCreatePreMulSum: op or scalar is NULL");
    else if ((unsigned)type >= FT_TYPES)
        rc = ft_fail(FT_INVAL, "RedOpCreatePreMulSum: %d is not a data type", (int)datatype);
    else if (residence != ftcclScalarDevice && residence != ftcclScalarHostImmediate)
        rc = ft_fail(FT_INVAL, "RedOpCreatePreMulSum: %d is not a residence", (int)residence);
    else if (residence == ftcclScalarHostImmediate || !comm->core->engine->gpu)
        rc = ft_device_check("RedOpCreatePreMulSum", scalar);
    if (rc == FT_OK) {
        struct ft_premul premul = {
            .live = true, .type = type, .redop = {.red = FT_SUM, .scaled = true}};
        if (residence == ftcclScalarDevice)
            premul.from = scalar;
        else
            ft_redop_read_scale(&premul.redop, type, scalar);
        pthread_mutex_lock(&comm->lock);
        rc = add_premul(comm, &premul, &at);
        pthread_mutex_unlock(&comm->lock);
        if (rc == FT_OK)
            *op = (ftcclRedOp_t)(ftcclNumOps + at);
    }
    ftcclResult_t result = ft_return(comm, rc);
    ft_comm_leave(comm);
    return result;
}

FT_EXPORT ftcclResult_t ftcclRedOpDestroy(ftcclRedOp_t op, ftcclComm_t comm)
{
    int rc = ft_enter_library();
    if (rc == FT_OK)
        rc = ft_comm_enter(comm);
    if (rc != FT_OK)
        return ft_return(NULL, rc);
    pthread_mutex_lock(&comm->lock);
    int at = (int)op - ftcclNumOps;
    if (at < 0 || at >= comm->nops || !comm->ops[at].live)
        rc = ft_fail(FT_INVAL, "RedOpDestroy: %d is not an operator made for this communicator",
                     (int)op);
    else
        comm->ops[at].live = false;
    pthread_mutex_unlock(&comm->lock);
    ftcclResult_t result = ft_return(comm, rc);
    ft_comm_leave(comm);
    return result;
}

FT_EXPORT ftcclResult_t ftcclProbe(ftcclComm_t comm, int peer, int *arrived)
{
    int rc = ft_enter_library();
    if (rc == FT_OK)
        rc = ft_comm_enter_ready(comm);
    if (rc != FT_OK)
        return ft_fail_call(NULL, rc);
    struct ft_comm *core = comm->core;
    if (!arrived)
        rc = ft_fail(FT_INVAL, "Probe: arrived is NULL");
    else if (peer < 0 || peer >= ft_comm_nranks(core))
        rc = ft_fail(FT_INVAL, "Probe: peer %d is not a rank of a communicator of %d", peer,
                     ft_comm_nranks(core));
    else
        rc = ft_comm_verdict(core);
    if (rc != FT_OK)
        return ft_fail_call(comm, rc);
    ft_engine_lock(core->engine);
    core->engine->turn(core->engine);
    *arrived = ft_p2p_probe(core, peer);
    ft_engine_unlock(core->engine);
    ft_comm_leave(comm);
    return ft_return(NULL, FT_OK);
}

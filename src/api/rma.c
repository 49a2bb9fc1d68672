/*
 * Windows, puts and signals. A window's handle is looked up among those of the communicator before
 * it is dereferenced.
 */
#include "api/api.h"

#include <stdlib.h>
#include <string.h>

/* The data of a window that a call needs. It does not refer to the window, which another thread may
 * deregister. */
struct found {
    uint64_t id;
    void *base;
    size_t size;
}; /* size: of the peer's window */

static int fail_unknown(ftcclWindow_t win)
{
    return ft_fail(FT_INVAL, "%p is not a window of this communicator", (void *)win);
}

static int find_window(ftcclComm_t comm, ftcclWindow_t win, int peer, struct found *out)
{
    struct ft_comm *core = comm->core;
    ft_engine_lock(core->engine);
    const struct ft_window *window = core->rma.windows;
    while (window && (const void *)window != (void *)win)
        window = window->next;
    bool exists = window && window->sizes;
    if (exists)
        *out = (struct found){window->id, window->base, window->sizes[peer]};
    ft_engine_unlock(core->engine);
    return exists ? FT_OK : fail_unknown(win);
}

/* Exchanges the sizes of all ranks. It also guarantees that all ranks have the window before any of
 * them puts. */
static int exchange_sizes(struct ft_comm *core, struct ft_window *window)
{
    uint64_t *sizes = calloc((size_t)core->view.nranks, sizeof *sizes);
    if (!sizes)
        return ft_fail(FT_NOMEM, "no memory for a window");
    sizes[core->view.rank] = window->len_bytes;
    int rc = ft_exchange(core, (int32_t *)sizes, sizeof *sizes / sizeof(int32_t), FT_WINDOW_MARK);
    ft_engine_lock(core->engine);
    window->sizes = sizes;
    ft_engine_unlock(core->engine);
    return rc;
}

static int run_register(struct ft_job *job)
{
    struct ft_comm *core = job->comm->core;
    struct ft_window *window;
    ft_retry_pin(core);
    int rc = ft_window_add(core, job->buffer, job->len_bytes, &window);
    if (rc == FT_OK) {
        rc = exchange_sizes(core, window);
        if (rc != FT_OK)
            ft_window_remove(core, window);
        else
            *job->window = (ftcclWindow_t)(void *)window;
    }
    ft_retry_unpin(core);
    return rc;
}

FT_EXPORT ftcclResult_t ftcclCommWindowRegister(ftcclComm_t comm, void *buff, size_t size,
                                                ftcclWindow_t *win, int winFlags)
{
    int rc = ft_enter_library();
    if (rc == FT_OK)
        rc = ft_comm_enter_ready(comm);
    if (rc != FT_OK)
        return ft_fail_call(NULL, rc);
    rc = ft_comm_takes(comm, FT_PUT, "CommWindowRegister");
    if (rc != FT_OK)
        return ft_fail_call(comm, rc);
    struct ft_job *job = calloc(1, sizeof *job);
    if (!job)
        rc = ft_fail(FT_NOMEM, "no memory for a window");
    else if (!win || (!buff && size > 0))
        rc = ft_fail(FT_INVAL, "CommWindowRegister: buff or win is NULL");
    else if (winFlags & ~FTCCL_WIN_COLL_SYMMETRIC)
        rc = ft_fail(FT_INVAL, "CommWindowRegister: flags %#x", (unsigned)winFlags);
    else
        rc = ft_device_check("CommWindowRegister", buff);
    if (rc != FT_OK) {
        free(job);
        return ft_fail_call(comm, rc);
    }
    *job = (struct ft_job){
        .comm = comm, .run = run_register, .buffer = buff, .len_bytes = size, .window = win};
    return ft_job_start(job);
}

FT_EXPORT ftcclResult_t ftcclCommWindowDeregister(ftcclComm_t comm, ftcclWindow_t win)
{
    int rc = ft_enter_library();
    if (rc == FT_OK)
        rc = ft_comm_enter_ready(comm);
    if (rc != FT_OK)
        return ft_return(NULL, rc);
    if (!ft_window_remove(comm->core, win))
        rc = fail_unknown(win);
    ftcclResult_t result = ft_return(comm, rc);
    ft_comm_leave(comm);
    return result;
}

FT_EXPORT ftcclResult_t ftcclWinGetUserPtr(ftcclComm_t comm, ftcclWindow_t win, void **ptr)
{
    struct found found;
    int rc = ft_enter_library();
    if (rc == FT_OK)
        rc = ft_comm_enter_ready(comm);
    if (rc != FT_OK)
        return ft_return(NULL, rc);
    rc = ptr ? find_window(comm, win, 0, &found) : ft_fail(FT_INVAL, "WinGetUserPtr: ptr is NULL");
    if (rc == FT_OK)
        *ptr = found.base;
    ftcclResult_t result = ft_return(comm, rc);
    ft_comm_leave(comm);
    return result;
}

/* ---- operations ------------------------------------------------------------------------------ */

struct put {
    const void *in;
    struct ft_coll coll;
    ftcclWindow_t win;
    size_t offset;
    int sig, ctx;
    unsigned flags;
};

/* Checks a put. *window is the number of the window, or 0 for a signal alone. */
static int check_put(ftcclComm_t comm, const struct put *put, uint64_t *window)
{
    const char *name = put->win ? "PutSignal" : "Signal";
    size_t esize = ft_type_size(put->coll.type);
    struct found found;
    *window = 0;
    if (put->coll.root < 0 || put->coll.root >= ft_comm_nranks(comm->core))
        return ft_fail(FT_INVAL, "%s: peer %d of %d", name, put->coll.root,
                       ft_comm_nranks(comm->core));
    if (put->sig || put->ctx || put->flags)
        return ft_fail(FT_INVAL, "%s: sigIdx, ctx and flags must be 0", name);
    if (!put->win)
        return FT_OK;
    if (!esize)
        return ft_fail(FT_INVAL, "PutSignal: %d is not a data type", (int)put->coll.type);
    if (put->coll.count && !put->in)
        return ft_fail(FT_INVAL, "PutSignal: the local buffer is NULL");
    int rc = find_window(comm, put->win, put->coll.root, &found);
    if (rc == FT_OK && put->coll.count)
        rc = ft_device_check(name, put->in);
    if (rc != FT_OK)
        return rc;
    size_t size = found.size;
    *window = found.id;
    if (put->offset <= size && put->coll.count <= (size - put->offset) / esize)
        return FT_OK;
    return ft_fail(
        FT_INVAL,
        "PutSignal: %zu elements at %zu do not fit the window of rank %d, which has %zu bytes",
        put->coll.count, put->offset, put->coll.root, size);
}

static ftcclResult_t enqueue_put(const struct put *put, ftcclComm_t comm, ftcclStream_t stream)
{
    uint64_t window;
    int rc = ft_enter_library();
    if (rc == FT_OK)
        rc = ft_comm_enter_ready(comm);
    if (rc != FT_OK)
        return ft_fail_call(NULL, rc);
    rc = ft_comm_takes(comm, FT_PUT, "Signal");
    if (rc == FT_OK)
        rc = check_put(comm, put, &window);
    struct ft_op *op = rc == FT_OK ? ft_op_new() : NULL;
    if (rc == FT_OK && !op)
        rc = ft_fail(FT_NOMEM, "no memory for an operation");
    if (rc != FT_OK)
        return ft_fail_call(comm, rc);
    op->coll = put->coll;
    op->in = put->in;
    op->epoch = ft_comm_shape(comm->core, -1).epoch;
    op->window = window;
    op->window_offset = put->offset;
    return ft_group_add(comm, stream, op);
}

FT_EXPORT ftcclResult_t ftcclPutSignal(const void *localbuff, size_t count,
                                       ftcclDataType_t datatype, int peer, ftcclWindow_t peerWin,
                                       size_t peerWinOffset, int sigIdx, int ctx,
                                       unsigned int flags, ftcclComm_t comm, ftcclStream_t stream)
{
    if (!peerWin)
        return ft_fail_call(NULL, ft_fail(FT_INVAL, "PutSignal: the window is NULL"));
    struct put put = {localbuff, {FT_PUT, (enum ft_type)datatype, FT_SUM, peer, count},
                      peerWin,   peerWinOffset,
                      sigIdx,    ctx,
                      flags};
    return enqueue_put(&put, comm, stream);
}

FT_EXPORT ftcclResult_t ftcclSignal(int peer, int sigIdx, int ctx, unsigned int flags,
                                    ftcclComm_t comm, ftcclStream_t stream)
{
    struct put put = {NULL, {FT_PUT, FT_INT8, FT_SUM, peer, 0}, NULL, 0, sigIdx, ctx, flags};
    return enqueue_put(&put, comm, stream);
}

static int take_waits(ftcclComm_t comm, int n, const ftcclWaitSignalDesc_t *descs,
                      struct ft_signal_wait **out)
{
    if (n < 0 || n > (1 << 20) || (n > 0 && !descs))
        return ft_fail(FT_INVAL, "WaitSignal: %d descriptors at %p", n, (const void *)descs);
    struct ft_signal_wait *waits = calloc((size_t)n + 1, sizeof *waits);
    if (!waits)
        return ft_fail(FT_NOMEM, "no memory for %d descriptors", n);
    for (int i = 0; i < n; i++) {
        bool good = descs[i].peer >= 0 && descs[i].peer < ft_comm_nranks(comm->core) &&
                    descs[i].opCnt >= 0 && !descs[i].sigIdx && !descs[i].ctx;
        for (int k = 0; k < i && good; k++)
            good = waits[k].peer != descs[i].peer;
        if (!good) {
            free(waits);
            return ft_fail(FT_INVAL,
                           "WaitSignal: descriptor %d: opCnt %d, peer %d (each once), sigIdx %d, "
                           "ctx %d (both 0)",
                           i, descs[i].opCnt, descs[i].peer, descs[i].sigIdx, descs[i].ctx);
        }
        waits[i] = (struct ft_signal_wait){descs[i].peer, (uint64_t)descs[i].opCnt};
    }
    *out = waits;
    return FT_OK;
}

FT_EXPORT ftcclResult_t ftcclWaitSignal(int nDesc, ftcclWaitSignalDesc_t *signalDescs,
                                        ftcclComm_t comm, ftcclStream_t stream)
{
    struct ft_signal_wait *waits = NULL;
    int rc = ft_enter_library();
    if (rc == FT_OK)
        rc = ft_comm_enter_ready(comm);
    if (rc != FT_OK)
        return ft_fail_call(NULL, rc);
    rc = ft_comm_takes(comm, FT_WAIT, "WaitSignal");
    if (rc == FT_OK)
        rc = take_waits(comm, nDesc, signalDescs, &waits);
    struct ft_op *op = rc == FT_OK ? ft_op_new() : NULL;
    if (rc == FT_OK && !op)
        rc = ft_fail(FT_NOMEM, "no memory for an operation");
    if (rc != FT_OK) {
        free(waits);
        return ft_fail_call(comm, rc);
    }
    op->coll = (struct ft_coll){.kind = FT_WAIT, .type = FT_INT8, .count = (size_t)nDesc};
    op->epoch = ft_comm_shape(comm->core, -1).epoch;
    op->waits = waits;
    op->nwaits = nDesc;
    return ft_group_add(comm, stream, op);
}

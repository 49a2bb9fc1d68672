/*
 * The calls that ftccl.h has too. Arguments are converted to ftccl.h's types, and results to
 * NCCL's.
 */
#include "nccl/shim.h"

#include <string.h>

#define C(comm) ft_nccl_comm(comm)

#define MAP(name, parameters, ...)                       \
    CALL(ncclResult_t, name, parameters)                 \
    {                                                    \
        return ft_nccl_result(ftccl##name(__VA_ARGS__)); \
    }

/* As MAP, for calls with a configuration, which the arguments name `given`. on: the communicator of
 * the call. */
#define MAP_CONFIG(name, parameters, on, ...)                                                \
    CALL(ncclResult_t, name, parameters)                                                     \
    {                                                                                        \
        ftcclConfig_t ours, *given = config ? &ours : NULL;                                  \
        ftcclResult_t result = config ? ft_nccl_config(C(on), config, &ours) : ftcclSuccess; \
        return ft_nccl_result(result == ftcclSuccess ? ftccl##name(__VA_ARGS__) : result);   \
    }

/* As MAP, and logs one line per call. */
#define MAP_OPERATION(name, parameters, from, to, elements, op_or_0, root_or_0, ...)           \
    CALL(ncclResult_t, name, parameters)                                                       \
    {                                                                                          \
        if (ft_shim_log_on())                                                                  \
            log_call(&(struct shown){#name, from, to, elements, (int)datatype, (int)(op_or_0), \
                                     root_or_0, comm, stream});                                \
        return ft_nccl_result(ftccl##name(__VA_ARGS__));                                       \
    }

struct shown {
    const char *name;
    const void *from, *to;
    size_t count;
    int type, op, root;
    ncclComm_t comm;
    cudaStream_t stream;
};

static void log_call(const struct shown *s)
{
    int nranks = 0;
    ftcclCommCount(C(s->comm), &nranks);
    ft_shim_log("%s: sendbuff %p recvbuff %p count %zu datatype %d op %d root %d comm %p "
                "[nranks=%d] stream %p",
                s->name, s->from, s->to, s->count, s->type, s->op, s->root, (void *)s->comm, nranks,
                (void *)s->stream);
}

static ftcclUniqueId id_of(ncclUniqueId id)
{
    ftcclUniqueId ours;
    memcpy(&ours, &id, sizeof ours);
    return ours;
}

/* ---- communicators --------------------------------------------------------------------------- */

CALL(ncclResult_t, GetUniqueId, (ncclUniqueId * uniqueId))
{
    ft_nccl_announce();
    return ft_nccl_result(ftcclGetUniqueId((ftcclUniqueId *)(void *)uniqueId));
}

CALL(ncclResult_t, CommInitAll, (ncclComm_t * comm, int ndev, const int *devlist))
{
    ft_nccl_announce();
    return ft_nccl_result(ftcclCommInitAll((ftcclComm_t *)(void *)comm, ndev, devlist));
}

MAP(CommInitRank, (ncclComm_t * comm, int nranks, ncclUniqueId commId, int rank),
    (ftcclComm_t *)(void *)comm, nranks, id_of(commId), rank)
MAP_CONFIG(CommInitRankConfig,
           (ncclComm_t * comm, int nranks, ncclUniqueId commId, int rank, ncclConfig_t *config),
           NULL, (ftcclComm_t *)(void *)comm, nranks, id_of(commId), rank, given)
MAP_CONFIG(CommInitRankScalable,
           (ncclComm_t * newcomm, int nranks, int myrank, int nId, ncclUniqueId *commIds,
            ncclConfig_t *config),
           NULL, (ftcclComm_t *)(void *)newcomm, nranks, myrank, nId,
           (ftcclUniqueId *)(void *)commIds, given)
MAP_CONFIG(CommSplit,
           (ncclComm_t comm, int color, int key, ncclComm_t *newcomm, ncclConfig_t *config), comm,
           C(comm), color, key, (ftcclComm_t *)(void *)newcomm, given)
MAP_CONFIG(CommShrink,
           (ncclComm_t comm, int *excludeRanksList, int excludeRanksCount, ncclComm_t *newcomm,
            ncclConfig_t *config, int shrinkFlags),
           comm, C(comm), excludeRanksList, excludeRanksCount, (ftcclComm_t *)(void *)newcomm,
           given, shrinkFlags)
MAP(CommGetUniqueId, (ncclComm_t comm, ncclUniqueId *uniqueId), C(comm),
    (ftcclUniqueId *)(void *)uniqueId)
MAP_CONFIG(CommGrow,
           (ncclComm_t comm, int nRanks, const ncclUniqueId *uniqueId, int rank,
            ncclComm_t *newcomm, ncclConfig_t *config),
           comm, C(comm), nRanks, (const ftcclUniqueId *)(const void *)uniqueId, rank,
           (ftcclComm_t *)(void *)newcomm, given)
MAP(CommCount, (const ncclComm_t comm, int *count), C(comm), count)
MAP(CommCuDevice, (const ncclComm_t comm, int *device), C(comm), device)
MAP(CommUserRank, (const ncclComm_t comm, int *rank), C(comm), rank)

/* NCCL treats NULL as a communicator that is already gone. */
CALL(ncclResult_t, CommFinalize, (ncclComm_t comm))
{
    return comm ? ft_nccl_result(ftcclCommFinalize(C(comm))) : ncclSuccess;
}
CALL(ncclResult_t, CommDestroy, (ncclComm_t comm))
{
    return comm ? ft_nccl_result(ftcclCommDestroy(C(comm))) : ncclSuccess;
}
CALL(ncclResult_t, CommRevoke, (ncclComm_t comm, int revokeFlags))
{
    return comm ? ft_nccl_result(ft_shim_revoke(C(comm), revokeFlags)) : ncclSuccess;
}
CALL(ncclResult_t, CommAbort, (ncclComm_t comm))
{
    return comm ? ft_nccl_result(ftcclCommAbort(C(comm))) : ncclSuccess;
}

/* ---- errors ---------------------------------------------------------------------------------- */

CALL(ncclResult_t, CommGetAsyncError, (ncclComm_t comm, ncclResult_t *asyncError))
{
    ftcclResult_t found = ftcclSuccess,
                  result = ftcclCommGetAsyncError(C(comm), asyncError ? &found : NULL);
    if (result != ftcclSuccess)
        return ft_nccl_result(result);
    /* a program that revokes already knows of the failure */
    bool over = found != ftcclSuccess && found != ftcclInProgress && ft_shim_is_revoked(C(comm));
    *asyncError = over ? ncclSuccess : ft_nccl_result(found);
    return ncclSuccess;
}

CALL(const char *, GetErrorString, (ncclResult_t result))
{
    return ftcclGetErrorString((ftcclResult_t)result);
}

/* NCCL returns the text of the last call, for any communicator. */
CALL(const char *, GetLastError, (ncclComm_t comm))
{
    const char *text = ftcclGetLastError(C(comm));
    return *text ? text : ftcclGetLastError(NULL);
}

CALL(void, ResetDebugInit, (void))
{
    ftcclResetDebugInit();
}
FT_EXPORT void ncclResetDebugInitInternal(void); /* NCCL exports it too, without a declaration */
FT_EXPORT void ncclResetDebugInitInternal(void)
{
    ftcclResetDebugInit();
}

/* ---- memory, windows, operators -------------------------------------------------------------- */

/* NCCL returns NULL as handle if it did not register the buffer, and accepts that NULL here. Only
 * the communicator is checked. */
static ncclResult_t nothing_registered(ncclComm_t comm)
{
    int rank;
    return ft_nccl_result(ftcclCommUserRank(C(comm), &rank));
}

CALL(ncclResult_t, CommDeregister, (const ncclComm_t comm, void *handle))
{
    return handle ? ft_nccl_result(ftcclCommDeregister(C(comm), handle)) : nothing_registered(comm);
}

CALL(ncclResult_t, CommWindowDeregister, (ncclComm_t comm, ncclWindow_t win))
{
    return win ? ft_nccl_result(ftcclCommWindowDeregister(C(comm), (ftcclWindow_t)(void *)win))
               : nothing_registered(comm);
}

CALL(ncclResult_t, MemAlloc, (void **ptr, size_t size))
{
    return ft_nccl_result(ft_shim_mem_alloc(ptr, size));
}
MAP(MemFree, (void *ptr), ptr)
MAP(CommRegister, (const ncclComm_t comm, void *buff, size_t size, void **handle), C(comm), buff,
    size, handle)
MAP(CommWindowRegister, (ncclComm_t comm, void *buff, size_t size, ncclWindow_t *win, int winFlags),
    C(comm), buff, size, (ftcclWindow_t *)(void *)win, winFlags)
MAP(WinGetUserPtr, (ncclComm_t comm, ncclWindow_t win, void **outUserPtr), C(comm),
    (ftcclWindow_t)(void *)win, outUserPtr)
MAP(RedOpCreatePreMulSum,
    (ncclRedOp_t * op, void *scalar, ncclDataType_t datatype, ncclScalarResidence_t residence,
     ncclComm_t comm),
    (ftcclRedOp_t *)(void *)op, scalar, (ftcclDataType_t)datatype,
    (ftcclScalarResidence_t)residence, C(comm))
MAP(RedOpDestroy, (ncclRedOp_t op, ncclComm_t comm), (ftcclRedOp_t)op, C(comm))

/* ---- operations ------------------------------------------------------------------------------ */

#define TYPE (ftcclDataType_t) datatype
#define OP (ftcclRedOp_t) op
#define IN_OUT const void *sendbuff, void *recvbuff
#define END ncclComm_t comm, cudaStream_t stream

MAP_OPERATION(AllReduce, (IN_OUT, size_t count, ncclDataType_t datatype, ncclRedOp_t op, END),
              sendbuff, recvbuff, count, op, 0, sendbuff, recvbuff, count, TYPE, OP, C(comm),
              stream)
MAP_OPERATION(Reduce,
              (IN_OUT, size_t count, ncclDataType_t datatype, ncclRedOp_t op, int root, END),
              sendbuff, recvbuff, count, op, root, sendbuff, recvbuff, count, TYPE, OP, root,
              C(comm), stream)
MAP_OPERATION(Broadcast, (IN_OUT, size_t count, ncclDataType_t datatype, int root, END), sendbuff,
              recvbuff, count, 0, root, sendbuff, recvbuff, count, TYPE, root, C(comm), stream)
MAP_OPERATION(Bcast, (void *buff, size_t count, ncclDataType_t datatype, int root, END), buff, buff,
              count, 0, root, buff, count, TYPE, root, C(comm), stream)
MAP_OPERATION(AllGather, (IN_OUT, size_t sendcount, ncclDataType_t datatype, END), sendbuff,
              recvbuff, sendcount, 0, 0, sendbuff, recvbuff, sendcount, TYPE, C(comm), stream)
MAP_OPERATION(ReduceScatter,
              (IN_OUT, size_t recvcount, ncclDataType_t datatype, ncclRedOp_t op, END), sendbuff,
              recvbuff, recvcount, op, 0, sendbuff, recvbuff, recvcount, TYPE, OP, C(comm), stream)
MAP_OPERATION(AlltoAll, (IN_OUT, size_t count, ncclDataType_t datatype, END), sendbuff, recvbuff,
              count, 0, 0, sendbuff, recvbuff, count, TYPE, C(comm), stream)
MAP_OPERATION(Gather, (IN_OUT, size_t count, ncclDataType_t datatype, int root, END), sendbuff,
              recvbuff, count, 0, root, sendbuff, recvbuff, count, TYPE, root, C(comm), stream)
MAP_OPERATION(Scatter, (IN_OUT, size_t count, ncclDataType_t datatype, int root, END), sendbuff,
              recvbuff, count, 0, root, sendbuff, recvbuff, count, TYPE, root, C(comm), stream)
MAP_OPERATION(Send, (const void *sendbuff, size_t count, ncclDataType_t datatype, int peer, END),
              sendbuff, NULL, count, 0, peer, sendbuff, count, TYPE, peer, C(comm), stream)
MAP_OPERATION(Recv, (void *recvbuff, size_t count, ncclDataType_t datatype, int peer, END), NULL,
              recvbuff, count, 0, peer, recvbuff, count, TYPE, peer, C(comm), stream)
MAP_OPERATION(PutSignal,
              (const void *localbuff, size_t count, ncclDataType_t datatype, int peer,
               ncclWindow_t peerWin, size_t peerWinOffset, int sigIdx, int ctx, unsigned int flags,
               END),
              localbuff, peerWin, count, 0, peer, localbuff, count, TYPE, peer,
              (ftcclWindow_t)(void *)peerWin, peerWinOffset, sigIdx, ctx, flags, C(comm), stream)
MAP(Signal, (int peer, int sigIdx, int ctx, unsigned int flags, END), peer, sigIdx, ctx, flags,
    C(comm), stream)
MAP(WaitSignal, (int nDesc, ncclWaitSignalDesc_t *signalDescs, END), nDesc,
    (ftcclWaitSignalDesc_t *)(void *)signalDescs, C(comm), stream)

MAP(GroupStart, (void), )
MAP(GroupEnd, (void), )

/* NCCL's estimate is in microseconds. An inner End estimates nothing. */
CALL(ncclResult_t, GroupSimulateEnd, (ncclSimInfo_t * simInfo))
{
    ftcclSimInfo_t ours;
    if (simInfo)
        memcpy(&ours, simInfo, sizeof ours);
    ours.estimatedTime = NCCL_UNDEF_FLOAT;
    ftcclResult_t result = ftcclGroupSimulateEnd(simInfo ? &ours : NULL);
    if (simInfo && result == ftcclSuccess && ours.estimatedTime >= 0)
        simInfo->estimatedTime = 1e6f * ours.estimatedTime;
    return ft_nccl_result(result);
}

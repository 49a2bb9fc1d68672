/*
 * NCCL's interface, version 2.30.7, for programs that are compiled for FTCCL's libnccl.so.2. It
 * needs nothing of CUDA. A program that was compiled with NVIDIA's header runs with the library
 * too, so this header is for machines without NVIDIA's.
 *
 * ftccl.h documents the calls: ncclX does what ftcclX does. A ncclComm_t is a ftcclComm_t: after a
 * cast, the calls of ftccl.h that NCCL does not have may be used on it. docs/nccl-compatibility.md
 * lists the differences. NCCL_VERSION_CODE is the version whose behaviour the library has, not the
 * version of the declarations. All calls also exist as pncclX, for tools that define their own
 * ncclX.
 */
#ifndef NCCL_H_
#define NCCL_H_

#include <limits.h>
#include <stddef.h>
#include <stdint.h>

#define NCCL_MAJOR 2
#define NCCL_MINOR 26
#define NCCL_PATCH 6
#define NCCL_SUFFIX "ftccl"
#define NCCL_VERSION(X, Y, Z) \
    (((X) <= 2 && (Y) <= 8) ? (X)*1000 + (Y)*100 + (Z) : (X)*10000 + (Y)*100 + (Z))
#define NCCL_VERSION_CODE NCCL_VERSION(NCCL_MAJOR, NCCL_MINOR, NCCL_PATCH)
#define FTCCL_NCCL_INTERFACE NCCL_VERSION(2, 30, 7) /* the version of these declarations */

#ifdef __cplusplus
extern "C" {
#endif

/* ---- types ----------------------------------------------------------------------------------- */

#ifndef __DRIVER_TYPES_H__ /* this header of CUDA declares it too */
typedef struct CUstream_st *cudaStream_t;
#endif

typedef struct ncclComm *ncclComm_t;
#define NCCL_COMM_NULL NULL
typedef struct ncclWindow_vidmem *ncclWindow_t;

#define NCCL_UNIQUE_ID_BYTES 128
typedef struct {
    char internal[NCCL_UNIQUE_ID_BYTES];
} ncclUniqueId;

typedef enum {
    ncclSuccess = 0,
    ncclUnhandledCudaError = 1,
    ncclSystemError = 2,
    ncclInternalError = 3,
    ncclInvalidArgument = 4,
    ncclInvalidUsage = 5,
    ncclRemoteError = 6,
    ncclInProgress = 7,
    ncclTimeout = 8, /* returned only to callers that know it: docs/nccl-compatibility.md */
    ncclNumResults = 9
} ncclResult_t;

typedef enum {
    ncclSum = 0,
    ncclProd = 1,
    ncclMax = 2,
    ncclMin = 3,
    ncclAvg = 4,
    ncclNumOps = 5,
    ncclMaxRedOp = 0x7fffffff
} ncclRedOp_t;

typedef enum {
    ncclInt8 = 0,
    ncclChar = 0,
    ncclUint8 = 1,
    ncclInt32 = 2,
    ncclInt = 2,
    ncclUint32 = 3,
    ncclInt64 = 4,
    ncclUint64 = 5,
    ncclFloat16 = 6,
    ncclHalf = 6,
    ncclFloat32 = 7,
    ncclFloat = 7,
    ncclFloat64 = 8,
    ncclDouble = 8,
    ncclBfloat16 = 9,
    ncclFloat8e4m3 = 10,
    ncclFloat8e5m2 = 11,
    ncclNumTypes = 12
} ncclDataType_t;

typedef enum { ncclScalarDevice = 0, ncclScalarHostImmediate = 1 } ncclScalarResidence_t;

#define NCCL_API_MAGIC 0xcafebeef
#define NCCL_CONFIG_UNDEF_INT INT_MIN
#define NCCL_CONFIG_UNDEF_PTR NULL
#define NCCL_UNDEF_FLOAT (-1.0f)
#define NCCL_SPLIT_NOCOLOR (-1)
#define NCCL_WIN_DEFAULT 0x00
#define NCCL_WIN_COLL_SYMMETRIC 0x01
#define NCCL_WIN_STRICT_ORDERING 0x02
#define NCCL_WIN_REQUIRED_ALIGNMENT 4096
#define NCCL_CTA_POLICY_DEFAULT 0x00
#define NCCL_CTA_POLICY_EFFICIENCY 0x01
#define NCCL_CTA_POLICY_ZERO 0x02
#define NCCL_SHRINK_DEFAULT 0x00
#define NCCL_SHRINK_ABORT 0x01
#define NCCL_REVOKE_DEFAULT 0x00
#define NCCL_SUSPEND_MEM 0x01

typedef struct ncclConfig_v23000 {
    size_t size;
    unsigned int magic;
    unsigned int version;
    int blocking;
    int cgaClusterSize;
    int minCTAs;
    int maxCTAs;
    const char *netName;
    int splitShare;
    int trafficClass;
    const char *commName;
    int collnetEnable;
    int CTAPolicy;
    int shrinkShare;
    int nvlsCTAs;
    int nChannelsPerNetPeer;
    int nvlinkCentricSched;
    int graphUsageMode;
    int numRmaCtx;
    int maxP2pPeers;
    int graphStreamOrdering;
} ncclConfig_t;

#define NCCL_CONFIG_INITIALIZER                                                            \
    {                                                                                      \
        sizeof(ncclConfig_t), NCCL_API_MAGIC, FTCCL_NCCL_INTERFACE, NCCL_CONFIG_UNDEF_INT, \
            NCCL_CONFIG_UNDEF_INT, NCCL_CONFIG_UNDEF_INT, NCCL_CONFIG_UNDEF_INT,           \
            NCCL_CONFIG_UNDEF_PTR, NCCL_CONFIG_UNDEF_INT, NCCL_CONFIG_UNDEF_INT,           \
            NCCL_CONFIG_UNDEF_PTR, NCCL_CONFIG_UNDEF_INT, NCCL_CONFIG_UNDEF_INT,           \
            NCCL_CONFIG_UNDEF_INT, NCCL_CONFIG_UNDEF_INT, NCCL_CONFIG_UNDEF_INT,           \
            NCCL_CONFIG_UNDEF_INT, NCCL_CONFIG_UNDEF_INT, NCCL_CONFIG_UNDEF_INT,           \
            NCCL_CONFIG_UNDEF_INT, NCCL_CONFIG_UNDEF_INT                                   \
    }

typedef struct ncclSimInfo_v22200 {
    size_t size;
    unsigned int magic;
    unsigned int version;
    float estimatedTime;
} ncclSimInfo_t;
#define NCCL_SIM_INFO_INITIALIZER                                                 \
    {                                                                             \
        sizeof(ncclSimInfo_t), 0x74685283, FTCCL_NCCL_INTERFACE, NCCL_UNDEF_FLOAT \
    }

typedef enum {
    ncclStatGpuMemSuspend = 0,
    ncclStatGpuMemSuspended = 1,
    ncclStatGpuMemPersist = 2,
    ncclStatGpuMemTotal = 3
} ncclCommMemStat_t;

typedef struct {
    int opCnt;
    int peer;
    int sigIdx;
    int ctx;
} ncclWaitSignalDesc_t;

typedef struct ncclParamHandle *ncclParamHandle_t;

/* A team: nRanks ranks of a communicator, `stride` apart; this rank is number `rank` of them. */
struct ncclTeam {
    int nRanks, rank, stride;
};
typedef struct ncclTeam ncclTeam_t;

/* ---- calls ----------------------------------------------------------------------------------- */

#define FTCCL_NCCL_CALL(type, name, parameters) \
    type nccl##name parameters;                 \
    type pnccl##name parameters;

FTCCL_NCCL_CALL(ncclResult_t, GetVersion, (int *version))
FTCCL_NCCL_CALL(const char *, GetErrorString, (ncclResult_t result))
FTCCL_NCCL_CALL(const char *, GetLastError, (ncclComm_t comm))
FTCCL_NCCL_CALL(void, ResetDebugInit, (void))
FTCCL_NCCL_CALL(ncclResult_t, CommGetAsyncError, (ncclComm_t comm, ncclResult_t *asyncError))

FTCCL_NCCL_CALL(ncclResult_t, GetUniqueId, (ncclUniqueId * uniqueId))
FTCCL_NCCL_CALL(ncclResult_t, CommInitRank,
                (ncclComm_t * comm, int nranks, ncclUniqueId commId, int rank))
FTCCL_NCCL_CALL(ncclResult_t, CommInitRankConfig,
                (ncclComm_t * comm, int nranks, ncclUniqueId commId, int rank,
                 ncclConfig_t *config))
FTCCL_NCCL_CALL(ncclResult_t, CommInitRankScalable,
                (ncclComm_t * newcomm, int nranks, int myrank, int nId, ncclUniqueId *commIds,
                 ncclConfig_t *config))
FTCCL_NCCL_CALL(ncclResult_t, CommInitAll, (ncclComm_t * comm, int ndev, const int *devlist))
FTCCL_NCCL_CALL(ncclResult_t, CommFinalize, (ncclComm_t comm))
FTCCL_NCCL_CALL(ncclResult_t, CommDestroy, (ncclComm_t comm))
FTCCL_NCCL_CALL(ncclResult_t, CommAbort, (ncclComm_t comm))
FTCCL_NCCL_CALL(ncclResult_t, CommRevoke, (ncclComm_t comm, int revokeFlags))
FTCCL_NCCL_CALL(ncclResult_t, CommSplit,
                (ncclComm_t comm, int color, int key, ncclComm_t *newcomm, ncclConfig_t *config))
FTCCL_NCCL_CALL(ncclResult_t, CommShrink,
                (ncclComm_t comm, int *excludeRanksList, int excludeRanksCount, ncclComm_t *newcomm,
                 ncclConfig_t *config, int shrinkFlags))
FTCCL_NCCL_CALL(ncclResult_t, CommGetUniqueId, (ncclComm_t comm, ncclUniqueId *uniqueId))
FTCCL_NCCL_CALL(ncclResult_t, CommGrow,
                (ncclComm_t comm, int nRanks, const ncclUniqueId *uniqueId, int rank,
                 ncclComm_t *newcomm, ncclConfig_t *config))
FTCCL_NCCL_CALL(ncclResult_t, CommSuspend, (ncclComm_t comm, int flags))
FTCCL_NCCL_CALL(ncclResult_t, CommResume, (ncclComm_t comm))
FTCCL_NCCL_CALL(ncclResult_t, CommMemStats,
                (ncclComm_t comm, ncclCommMemStat_t stat, uint64_t *value))
FTCCL_NCCL_CALL(ncclResult_t, CommCount, (const ncclComm_t comm, int *count))
FTCCL_NCCL_CALL(ncclResult_t, CommCuDevice, (const ncclComm_t comm, int *device))
FTCCL_NCCL_CALL(ncclResult_t, CommUserRank, (const ncclComm_t comm, int *rank))

FTCCL_NCCL_CALL(ncclResult_t, MemAlloc, (void **ptr, size_t size))
FTCCL_NCCL_CALL(ncclResult_t, MemFree, (void *ptr))
FTCCL_NCCL_CALL(ncclResult_t, CommRegister,
                (const ncclComm_t comm, void *buff, size_t size, void **handle))
FTCCL_NCCL_CALL(ncclResult_t, CommDeregister, (const ncclComm_t comm, void *handle))
FTCCL_NCCL_CALL(ncclResult_t, CommWindowRegister,
                (ncclComm_t comm, void *buff, size_t size, ncclWindow_t *win, int winFlags))
FTCCL_NCCL_CALL(ncclResult_t, CommWindowDeregister, (ncclComm_t comm, ncclWindow_t win))
FTCCL_NCCL_CALL(ncclResult_t, WinGetUserPtr, (ncclComm_t comm, ncclWindow_t win, void **outUserPtr))

FTCCL_NCCL_CALL(ncclResult_t, RedOpCreatePreMulSum,
                (ncclRedOp_t * op, void *scalar, ncclDataType_t datatype,
                 ncclScalarResidence_t residence, ncclComm_t comm))
FTCCL_NCCL_CALL(ncclResult_t, RedOpDestroy, (ncclRedOp_t op, ncclComm_t comm))

FTCCL_NCCL_CALL(ncclResult_t, AllReduce,
                (const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype,
                 ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream))
FTCCL_NCCL_CALL(ncclResult_t, Reduce,
                (const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype,
                 ncclRedOp_t op, int root, ncclComm_t comm, cudaStream_t stream))
FTCCL_NCCL_CALL(ncclResult_t, Broadcast,
                (const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype,
                 int root, ncclComm_t comm, cudaStream_t stream))
FTCCL_NCCL_CALL(ncclResult_t, Bcast,
                (void *buff, size_t count, ncclDataType_t datatype, int root, ncclComm_t comm,
                 cudaStream_t stream))
FTCCL_NCCL_CALL(ncclResult_t, AllGather,
                (const void *sendbuff, void *recvbuff, size_t sendcount, ncclDataType_t datatype,
                 ncclComm_t comm, cudaStream_t stream))
FTCCL_NCCL_CALL(ncclResult_t, ReduceScatter,
                (const void *sendbuff, void *recvbuff, size_t recvcount, ncclDataType_t datatype,
                 ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream))
FTCCL_NCCL_CALL(ncclResult_t, AlltoAll,
                (const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype,
                 ncclComm_t comm, cudaStream_t stream))
FTCCL_NCCL_CALL(ncclResult_t, Gather,
                (const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype,
                 int root, ncclComm_t comm, cudaStream_t stream))
FTCCL_NCCL_CALL(ncclResult_t, Scatter,
                (const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype,
                 int root, ncclComm_t comm, cudaStream_t stream))
FTCCL_NCCL_CALL(ncclResult_t, Send,
                (const void *sendbuff, size_t count, ncclDataType_t datatype, int peer,
                 ncclComm_t comm, cudaStream_t stream))
FTCCL_NCCL_CALL(ncclResult_t, Recv,
                (void *recvbuff, size_t count, ncclDataType_t datatype, int peer, ncclComm_t comm,
                 cudaStream_t stream))
FTCCL_NCCL_CALL(ncclResult_t, PutSignal,
                (const void *localbuff, size_t count, ncclDataType_t datatype, int peer,
                 ncclWindow_t peerWin, size_t peerWinOffset, int sigIdx, int ctx,
                 unsigned int flags, ncclComm_t comm, cudaStream_t stream))
FTCCL_NCCL_CALL(ncclResult_t, Signal,
                (int peer, int sigIdx, int ctx, unsigned int flags, ncclComm_t comm,
                 cudaStream_t stream))
FTCCL_NCCL_CALL(ncclResult_t, WaitSignal,
                (int nDesc, ncclWaitSignalDesc_t *signalDescs, ncclComm_t comm,
                 cudaStream_t stream))

FTCCL_NCCL_CALL(ncclResult_t, GroupStart, (void))
FTCCL_NCCL_CALL(ncclResult_t, GroupEnd, (void))
FTCCL_NCCL_CALL(ncclResult_t, GroupSimulateEnd, (ncclSimInfo_t * simInfo))

FTCCL_NCCL_CALL(ncclTeam_t, TeamWorld, (ncclComm_t comm))
FTCCL_NCCL_CALL(ncclTeam_t, TeamLsa, (ncclComm_t comm))
FTCCL_NCCL_CALL(ncclTeam_t, TeamRail, (ncclComm_t comm))
FTCCL_NCCL_CALL(int, TeamRankToWorld, (ncclComm_t comm, ncclTeam_t team, int rank))
FTCCL_NCCL_CALL(int, TeamRankToLsa, (ncclComm_t comm, ncclTeam_t team, int rank))

/* These are not supported: they return ncclInvalidUsage and set a sentence for
 * ncclGetLastError(). */
FTCCL_NCCL_CALL(ncclResult_t, ParamBind, (ncclParamHandle_t * out, const char *key))
FTCCL_NCCL_CALL(ncclResult_t, ParamGetI8, (ncclParamHandle_t h, int8_t *out))
FTCCL_NCCL_CALL(ncclResult_t, ParamGetI16, (ncclParamHandle_t h, int16_t *out))
FTCCL_NCCL_CALL(ncclResult_t, ParamGetI32, (ncclParamHandle_t h, int32_t *out))
FTCCL_NCCL_CALL(ncclResult_t, ParamGetI64, (ncclParamHandle_t h, int64_t *out))
FTCCL_NCCL_CALL(ncclResult_t, ParamGetU8, (ncclParamHandle_t h, uint8_t *out))
FTCCL_NCCL_CALL(ncclResult_t, ParamGetU16, (ncclParamHandle_t h, uint16_t *out))
FTCCL_NCCL_CALL(ncclResult_t, ParamGetU32, (ncclParamHandle_t h, uint32_t *out))
FTCCL_NCCL_CALL(ncclResult_t, ParamGetU64, (ncclParamHandle_t h, uint64_t *out))
FTCCL_NCCL_CALL(ncclResult_t, ParamGetStr, (ncclParamHandle_t h, const char **out))
FTCCL_NCCL_CALL(ncclResult_t, ParamGet, (ncclParamHandle_t h, void *out, int maxLen, int *len))
FTCCL_NCCL_CALL(ncclResult_t, ParamGetParameter,
                (const char *key, const char **value, int *valueLen))
FTCCL_NCCL_CALL(ncclResult_t, ParamGetAllParameterKeys, (const char ***table, int *tableLen))
FTCCL_NCCL_CALL(void, ParamDumpAll, (void)) /* the log says that it is not supported */

#undef FTCCL_NCCL_CALL

#ifdef __cplusplus
}
#endif

#endif

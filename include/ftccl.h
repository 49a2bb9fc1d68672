/*
 * FTCCL: fault-tolerant collective communication with NCCL's interface. The one public header, C99
 * and C++11 clean.
 *
 * Names, argument order, types and enum values are those of NCCL 2.30's nccl.h with the prefix
 * `ftccl`. What is said here holds for all calls unless a call says otherwise:
 *
 * - A call that returns ftcclResult_t gives ftcclSuccess, ftcclInProgress (non-blocking
 * communicators only) or an error; ftcclGetErrorClass() says what an error means for the
 * communicator and ftcclGetLastError() explains it in a sentence. ftcclInvalidArgument and
 * ftcclInvalidUsage mean that nothing happened to the communicator.
 * - Collectives, sends and receives only enqueue: they return at once, and the operation runs when
 * its stream reaches it. Its deadline (option opTimeoutMs) counts from that moment. Errors of
 * operations surface in ftcclStreamSynchronize(), ftcclStreamQuery() and ftcclCommGetAsyncError().
 * Buffers must stay valid and untouched until the stream has passed.
 * - Operations of one communicator run in the order of the calls on it. All ranks must make the
 * same collective calls in the same order with the same arguments; calls that differ are found and
 * named (ftcclInvalidUsage), they do not hang.
 * - Every wait is bounded: init, split, finalize and destroy by initTimeoutMs, operations by
 * opTimeoutMs, agree, shrink and grow by initTimeoutMs and a few times suspectMs.
 * - Any thread may use any communicator; calls on one communicator from several threads at once are
 * serialised, and their order is then the caller's responsibility (it must agree on all ranks).
 *   Threads of one rank that split a communicator at once all get their child: the n-th CommSplit
 * of each rank belongs together. Those that grow it do so one after another, and an Agree or Shrink
 * meanwhile fails the grow on all ranks, see ftcclCommGrow().
 * - In a child of fork() every call gives ftcclInvalidUsage; the communicators belong to the
 * parent.
 */
#ifndef FTCCL_H_
#define FTCCL_H_

#include <limits.h>
#include <stddef.h>
#include <stdint.h>

#define FTCCL_MAJOR 0
#define FTCCL_MINOR 1
#define FTCCL_PATCH 0
#define FTCCL_VERSION(X, Y, Z) ((X)*10000 + (Y)*100 + (Z))
#define FTCCL_VERSION_CODE FTCCL_VERSION(FTCCL_MAJOR, FTCCL_MINOR, FTCCL_PATCH)

#ifdef __cplusplus
extern "C" {
#endif

/* ---- types ----------------------------------------------------------------------------------- */

typedef struct ftcclComm *ftcclComm_t;
#define FTCCL_COMM_NULL NULL

/* A cudaStream_t passes as it is. NULL is the communicator's rank's own NULL stream. */
typedef struct CUstream_st *ftcclStream_t;

#define FTCCL_UNIQUE_ID_BYTES 128
typedef struct {
    char internal[FTCCL_UNIQUE_ID_BYTES];
} ftcclUniqueId;

typedef enum {
    ftcclSuccess = 0,
    ftcclUnhandledCudaError = 1, /* the device failed */
    /* out of memory, descriptors or shared memory; a system call failed */
    ftcclSystemError = 2,
    ftcclInternalError = 3, /* a mistake of the library */
    ftcclInvalidArgument = 4,
    ftcclInvalidUsage = 5, /* also: ranks made different calls */
    ftcclRemoteError = 6,  /* a peer or the way to it was lost */
    ftcclInProgress = 7,
    ftcclTimeout = 8, /* a deadline passed */
    ftcclNumResults = 9
} ftcclResult_t;

typedef enum {
    ftcclSum = 0,
    ftcclProd = 1,
    ftcclMax = 2,
    ftcclMin = 3,
    ftcclAvg = 4,
    ftcclNumOps = 5, /* the least value of an operator made by ftcclRedOpCreatePreMulSum() */
    ftcclMaxRedOp = 0x7fffffff
} ftcclRedOp_t;

typedef enum {
    ftcclInt8 = 0,
    ftcclChar = 0,
    ftcclUint8 = 1,
    ftcclInt32 = 2,
    ftcclInt = 2,
    ftcclUint32 = 3,
    ftcclInt64 = 4,
    ftcclUint64 = 5,
    ftcclFloat16 = 6,
    ftcclHalf = 6,
    ftcclFloat32 = 7,
    ftcclFloat = 7,
    ftcclFloat64 = 8,
    ftcclDouble = 8,
    ftcclBfloat16 = 9,
    ftcclFloat8e4m3 = 10,
    ftcclFloat8e5m2 = 11,
    ftcclNumTypes = 12
} ftcclDataType_t;

typedef enum {
    ftcclScalarDevice = 0,       /* the scalar is read when the collective runs */
    ftcclScalarHostImmediate = 1 /* the scalar is read before the call returns */
} ftcclScalarResidence_t;

/* FTCCL's own settings; size is sizeof(ftcclOptions_t). A field of FTCCL_OPTION_UNDEF takes the
 * parameter's value. */
#define FTCCL_OPTION_UNDEF INT64_MIN
typedef struct {
    size_t size;
    int64_t opTimeoutMs;    /* deadline of one operation from the moment it runs; 0: none */
    int64_t initTimeoutMs;  /* bound of init, split, finalize, destroy */
    const char *transports; /* ordered list, e.g. "shm,tcp"; NULL: FTCCL_TRANSPORTS */
    int64_t preserveInput;  /* 1: see below, "Input buffers"; 0: not */
    /* 1: messages carry checksums, results are compared; the same on all ranks */
    int64_t verify;
    /* orders the ranks of a shrunk or grown communicator: by key, then old rank; default: the old
     * rank, joiners after them */
    int64_t rankKey;
    int64_t minRanks; /* fewer live ranks than this: a shrink fails for good */
    /* how often a rank says to log2(n) others that it lives; 0: never. Of the rank: taken at
     * init */
    int64_t heartbeatMs;
    /* silence after which a rank or host is suspected, from 50; links take it at init, agreements
     * always */
    int64_t suspectMs;
    /* FTCCL_POLICY_...: see below, "Failure policy"; the same on all ranks */
    int64_t failurePolicy;
    /* FTCCL_STREAMS_...: what streams of a GPU do when an operation on them fails */
    int64_t onFailure;
} ftcclOptions_t;
#define FTCCL_OPTIONS_INITIALIZER                                                                 \
    {                                                                                             \
        sizeof(ftcclOptions_t), FTCCL_OPTION_UNDEF, FTCCL_OPTION_UNDEF, NULL, FTCCL_OPTION_UNDEF, \
            FTCCL_OPTION_UNDEF, FTCCL_OPTION_UNDEF, FTCCL_OPTION_UNDEF, FTCCL_OPTION_UNDEF,       \
            FTCCL_OPTION_UNDEF, FTCCL_OPTION_UNDEF, FTCCL_OPTION_UNDEF                            \
    }
#define FTCCL_POLICY_REPORT 0
#define FTCCL_POLICY_RETRY 1
/* they go on; GetAsyncError and the device's status word tell before they do */
#define FTCCL_STREAMS_RELEASE 0
/* they stand until abort, revoke or shrink, but no longer than 10 s and twice the operations'
 * deadline */
#define FTCCL_STREAMS_HOLD 1

#define FTCCL_CONFIG_UNDEF_INT INT_MIN
#define FTCCL_CONFIG_UNDEF_PTR NULL
#define FTCCL_SPLIT_NOCOLOR (-1)
#define FTCCL_SHRINK_DEFAULT 0
#define FTCCL_SHRINK_ABORT 1
#define FTCCL_REVOKE_DEFAULT 0
#define FTCCL_UNDEF_FLOAT (-1.0f)

/* NCCL's fields in NCCL's order, then FTCCL's options. Must be initialised with
 * FTCCL_CONFIG_INITIALIZER. Fields about CTAs, clusters, NVLink, collnet, RMA contexts and graphs
 * are checked for range and have no effect on host memory. */
typedef struct {
    size_t size;
    unsigned int magic;
    unsigned int version;
    int blocking; /* 0: calls on the communicator return ftcclInProgress instead of waiting */
    int cgaClusterSize;
    int minCTAs;
    int maxCTAs;
    const char *netName; /* name of a transport: the only one used between machines; NULL: any */
    int splitShare;
    int trafficClass; /* TOS byte of TCP connections */
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
    const ftcclOptions_t *options; /* NULL: the parameters' values */
} ftcclConfig_t;

#define FTCCL_CONFIG_MAGIC 0xf7cc1c0fu
#define FTCCL_CONFIG_INITIALIZER                                                               \
    {                                                                                          \
        sizeof(ftcclConfig_t), FTCCL_CONFIG_MAGIC, FTCCL_VERSION_CODE, FTCCL_CONFIG_UNDEF_INT, \
            FTCCL_CONFIG_UNDEF_INT, FTCCL_CONFIG_UNDEF_INT, FTCCL_CONFIG_UNDEF_INT,            \
            FTCCL_CONFIG_UNDEF_PTR, FTCCL_CONFIG_UNDEF_INT, FTCCL_CONFIG_UNDEF_INT,            \
            FTCCL_CONFIG_UNDEF_PTR, FTCCL_CONFIG_UNDEF_INT, FTCCL_CONFIG_UNDEF_INT,            \
            FTCCL_CONFIG_UNDEF_INT, FTCCL_CONFIG_UNDEF_INT, FTCCL_CONFIG_UNDEF_INT,            \
            FTCCL_CONFIG_UNDEF_INT, FTCCL_CONFIG_UNDEF_INT, FTCCL_CONFIG_UNDEF_INT,            \
            FTCCL_CONFIG_UNDEF_INT, FTCCL_CONFIG_UNDEF_INT, FTCCL_CONFIG_UNDEF_PTR             \
    }

typedef struct {
    size_t size;
    unsigned int magic;
    unsigned int version;
    float estimatedTime; /* seconds, by the cost model */
} ftcclSimInfo_t;
#define FTCCL_SIM_INFO_MAGIC 0x74685283u
#define FTCCL_SIM_INFO_INITIALIZER                                                          \
    {                                                                                       \
        sizeof(ftcclSimInfo_t), FTCCL_SIM_INFO_MAGIC, FTCCL_VERSION_CODE, FTCCL_UNDEF_FLOAT \
    }

/* ---- version and errors ---------------------------------------------------------------------- */

/* *version becomes FTCCL_VERSION_CODE of the library. */
ftcclResult_t ftcclGetVersion(int *version);

/* A constant string for each code; never NULL. */
const char *ftcclGetErrorString(ftcclResult_t result);

/* The last error of the communicator in a sentence that names the rank, the peer and the operation;
 * with NULL the last error of the calling thread. "" if there was none. Valid until the next call
 * on comm (or of the thread). */
const char *ftcclGetLastError(ftcclComm_t comm);

/* What a result means for the communicator. Caller: nothing happened to it. Recoverable: it is lost
 * but this rank is sound. Fatal: this rank has to go; its peers see a recoverable error. A mismatch
 * of calls is reported as ftcclInvalidUsage by GetAsyncError and ends the communicator. */
typedef enum {
    ftcclClassSuccess,
    ftcclClassInProgress,
    ftcclClassCaller,
    ftcclClassRecoverable,
    ftcclClassFatal
} ftcclErrorClass_t;
ftcclErrorClass_t ftcclGetErrorClass(ftcclResult_t result);

/* *asyncError: the first error of the communicator, ftcclInProgress while a non-blocking call is
 * under way, else ftcclSuccess. Never blocks; safe from another thread during any call. */
ftcclResult_t ftcclCommGetAsyncError(ftcclComm_t comm, ftcclResult_t *asyncError);

/* ---- communicators --------------------------------------------------------------------------- */

/* Fills an id that every rank passes to init, once. It carries addresses of this process, which
 * serves the rendezvous until all ranks have come or a bound has passed, and the job's secret: hand
 * it only to the job's own ranks. Does not wait. */
ftcclResult_t ftcclGetUniqueId(ftcclUniqueId *uniqueId);

/* Makes a communicator of nranks ranks; this is number `rank`. Blocks until all have come (bound:
 * initTimeoutMs; the sentence names the missing), unless config->blocking is 0 or inside a group,
 * where it completes by ftcclGroupEnd(). One thread may make several ranks in a group. *comm is set
 * on success (and at once if non-blocking). */
ftcclResult_t ftcclCommInitRank(ftcclComm_t *comm, int nranks, ftcclUniqueId commId, int rank);
ftcclResult_t ftcclCommInitRankConfig(ftcclComm_t *comm, int nranks, ftcclUniqueId commId, int rank,
                                      ftcclConfig_t *config);

/* The same with nId ids made by different processes, in the same order on all ranks, which share
 * the rendezvous. */
ftcclResult_t ftcclCommInitRankScalable(ftcclComm_t *newcomm, int nranks, int myrank, int nId,
                                        ftcclUniqueId *commIds, ftcclConfig_t *config);

/* ndev ranks in this process; comm has room for ndev handles. In a thread that has a GPU rank i is
 * for buffers of the GPU devlist[i], without a devlist of GPU i modulo their number; several ranks
 * may name one. On host memory each device number must be 0 or greater and is only remembered. */
ftcclResult_t ftcclCommInitAll(ftcclComm_t *comm, int ndev, const int *devlist);

/* Every rank of comm calls it. Ranks of one color (>= 0) form a communicator, ordered by key, then
 * by old rank; those with FTCCL_SPLIT_NOCOLOR get NULL. The links to the peers are shared with
 * comm. config NULL: as comm. The n-th split of comm is that of all ranks, whichever thread calls
 * it: threads that split at once with different colors must be in one order on all ranks. */
ftcclResult_t ftcclCommSplit(ftcclComm_t comm, int color, int key, ftcclComm_t *newcomm,
                             ftcclConfig_t *config);

/* ---- going on after a failure: see docs/fault-tolerance.md ----------------------------------- */

/* The live ranks of comm, without the failed ones and those on a list, become a communicator; comm
 * stays to be destroyed. Every live rank calls it. exclude == NULL with count 0: only those that
 * have failed are left out. Ranks may pass different lists: the union is left out; if that is
 * everybody, all get InvalidUsage and nothing changes. The failed set, the order (rankKey, then old
 * rank) and the last complete operation are agreed on, also if more ranks die meanwhile. Pending
 * operations end first; with FTCCL_SHRINK_ABORT they are revoked on all ranks. Links between
 * survivors are kept. A rank that lives but does not come within initTimeoutMs is left out. Bound:
 * initTimeoutMs for pending operations and initTimeoutMs and a few seconds for the agreement, for
 * non-blocking communicators in the background. Errors: InvalidUsage also for a rank that the
 * others left out (its sentence says so; it can only come back as a new rank); RemoteError when
 * other ranks called Agree or Grow instead: nothing came of it, on any rank, and all call the same
 * now; SystemError without quorum, or with fewer than minRanks ranks left. A group of one is
 * fine. */
ftcclResult_t ftcclCommShrink(ftcclComm_t comm, int *exclude, int count, ftcclComm_t *newcomm,
                              ftcclConfig_t *config, int flags);

/* Ends the pending operations of comm with RemoteError on every live rank; queued ones are skipped.
 * Returns at once. Then Agree, Shrink, Destroy and Abort are what comm is good for. flags:
 * FTCCL_REVOKE_DEFAULT. */
ftcclResult_t ftcclCommRevoke(ftcclComm_t comm, int flags);

/* *flags becomes the bitwise AND over the live ranks: the same on each of them, as is the failed
 * set, even if ranks die meanwhile. Works on a failed communicator, and beside running operations.
 * Every live rank makes the same sequence of Agree, Shrink and Grow calls. Blocks: initTimeoutMs
 * and a few seconds at most. Errors: as ftcclCommShrink(). */
ftcclResult_t ftcclCommAgree(ftcclComm_t comm, uint64_t *flags);

/* An id for one grow of comm, made by one of its ranks (the root), which hands it to the joiners
 * and passes it to its own ftcclCommGrow(). It carries the job's secret. An id that was not used
 * goes with comm: joiners learn it at once. Does not wait. */
ftcclResult_t ftcclCommGetUniqueId(ftcclComm_t comm, ftcclUniqueId *uniqueId);

/* A communicator of the ranks of comm and of joiners, nranks in all. Ranks of comm pass -1 as rank,
 * and NULL as id but for the root; a joiner passes NULL as comm and a rank from the old size to
 * nranks-1, each another. The order is by rankKey, then that rank. comm stays usable during the
 * call and after it, whether it succeeds or not. The ranks of comm agree on the outcome, so that
 * the new communicator is on all of them or on none; joiners may be started long before. An id
 * serves one attempt. Blocks: the root waits for the joiners up to half of initTimeoutMs, the
 * others for the root; non-blocking communicators do it in the background. Errors: Timeout when
 * joiners did not come, RemoteError when a rank of comm died or a joiner went away; a joiner gets
 * RemoteError when the grow failed, or when no rank of comm is left that could tell it. A used id,
 * one of another job and one rank claimed twice are InvalidUsage on the ranks that see it, and fail
 * the grow on all. Threads of one rank that call it at once do so one after another, each waiting
 * up to initTimeoutMs for its turn; which of them gets which child may differ between ranks. Agree
 * and Shrink by another thread during a grow succeed, and the grow fails on all ranks: InvalidUsage
 * where they came in between. In a group the calls of one communicator run in their order. */
ftcclResult_t ftcclCommGrow(ftcclComm_t comm, int nranks, const ftcclUniqueId *id, int rank,
                            ftcclComm_t *newcomm, ftcclConfig_t *config);

/* The ranks of comm that have failed: after Agree, Shrink or Grow the agreed set, the same on every
 * live rank; before that what this rank knows; with FTCCL_POLICY_RETRY, if none has failed since,
 * those of the last loss as they were before it. Writes at most capacity of them; *count is always
 * the full number. Does not block. */
ftcclResult_t ftcclCommGetFailedRanks(ftcclComm_t comm, int *ranks, int capacity, int *count);

/* Number of the last collective that is complete on every live rank, as of the last Agree, Shrink
 * or Grow of comm; counted from 1 in call order, with CommSplit and CommWindowRegister, without
 * sends and receives. 0: none. Does not block. */
ftcclResult_t ftcclCommGetLastAgreedOp(ftcclComm_t comm, uint64_t *sequence);

/* Waits until every operation of comm on this rank has ended and peers have taken what was sent to
 * them. Afterwards only Destroy, Abort, GetAsyncError, GetLastError, Count and UserRank are
 * allowed. */
ftcclResult_t ftcclCommFinalize(ftcclComm_t comm);

/* Finalize, if it was not called, and free. Peers are told; it raises nothing on an idle
 * communicator of theirs. The handle is dead afterwards, whatever is returned. */
ftcclResult_t ftcclCommDestroy(ftcclComm_t comm);

/* Ends pending operations with an error and frees at once. Safe from another thread during any call
 * on comm. Peers that wait for this rank in an operation get ftcclRemoteError. */
ftcclResult_t ftcclCommAbort(ftcclComm_t comm);

ftcclResult_t ftcclCommCount(const ftcclComm_t comm, int *count);
ftcclResult_t ftcclCommUserRank(const ftcclComm_t comm, int *rank);
/* The number of the GPU whose buffers the communicator takes. Without one the device number given
 * to InitAll, else 0. */
ftcclResult_t ftcclCommCuDevice(const ftcclComm_t comm, int *device);

/* *status becomes the address of a word that kernels on the communicator's GPU and the host can
 * read: 0, and 1 from when the communicator has failed (or was aborted or revoked), before the
 * streams of its operations go on. A kernel behind a collective, such as an optimizer's step, can
 * look at it and do nothing. The same word for each call. The word of a communicator that has
 * failed keeps its value as long as the process lives; one that is destroyed without a failure
 * gives its word back: nothing may read it then. The first call takes memory, and may wait for
 * kernels on the GPU. ftcclInvalidUsage without a GPU. */
ftcclResult_t ftcclCommGetDeviceStatus(ftcclComm_t comm, const uint32_t **status);

/* ---- memory ---------------------------------------------------------------------------------- */

/* Zeroed page-aligned memory. From 64 KiB on, other ranks of this host read it where it lies when
 * it is a send buffer, instead of a copy; it is then shared memory, all of it taken at once, and a
 * child of fork does not have it (where there is no such memory it is ordinary one, in huge pages).
 * What a collective sends must not change before it is over, as ever; memory may be freed at any
 * time after that, also after a failure. NULL and size 0 are allowed in MemFree and MemAlloc.
 * MemFree of anything else than a MemAlloc result gives ftcclInvalidArgument. */
ftcclResult_t ftcclMemAlloc(void **ptr, size_t size);
ftcclResult_t ftcclMemFree(void *ptr);

/* Remembers a buffer that operations will use; on host memory no operation needs it. The range must
 * be readable memory of this process. Deregister with the handle; destroying the communicator
 * releases what is left. */
ftcclResult_t ftcclCommRegister(const ftcclComm_t comm, void *buff, size_t size, void **handle);
ftcclResult_t ftcclCommDeregister(const ftcclComm_t comm, void *handle);

/* ---- one-sided ------------------------------------------------------------------------------- */

typedef struct ftcclWindow *ftcclWindow_t;
#define FTCCL_WIN_DEFAULT 0x00
#define FTCCL_WIN_COLL_SYMMETRIC 0x01

/* Every rank of comm calls it with a buffer of its own (sizes may differ, also 0) that others may
 * put into until Deregister. Blocks until all have; bound: the operation's deadline. winFlags: one
 * of the above. */
ftcclResult_t ftcclCommWindowRegister(ftcclComm_t comm, void *buff, size_t size, ftcclWindow_t *win,
                                      int winFlags);
/* Local. No rank may still put into it. */
ftcclResult_t ftcclCommWindowDeregister(ftcclComm_t comm, ftcclWindow_t win);
/* *ptr becomes the buffer given to Register. */
ftcclResult_t ftcclWinGetUserPtr(ftcclComm_t comm, ftcclWindow_t win, void **ptr);

/* Copies count elements of localbuff to peer's buffer of peerWin, peerWinOffset bytes from its
 * start, then gives peer one signal. Enqueued on the stream; complete there when localbuff may be
 * used again. sigIdx, ctx and flags must be 0, as in NCCL. */
ftcclResult_t ftcclPutSignal(const void *localbuff, size_t count, ftcclDataType_t datatype,
                             int peer, ftcclWindow_t peerWin, size_t peerWinOffset, int sigIdx,
                             int ctx, unsigned int flags, ftcclComm_t comm, ftcclStream_t stream);
/* One signal without data; it arrives after what this rank put to peer before. */
ftcclResult_t ftcclSignal(int peer, int sigIdx, int ctx, unsigned int flags, ftcclComm_t comm,
                          ftcclStream_t stream);

/* opCnt signals from peer. */
typedef struct {
    int opCnt;
    int peer;
    int sigIdx;
    int ctx;
} ftcclWaitSignalDesc_t;
/* The stream waits until all have come, and takes them. */
ftcclResult_t ftcclWaitSignal(int nDesc, ftcclWaitSignalDesc_t *signalDescs, ftcclComm_t comm,
                              ftcclStream_t stream);

/* ---- streams of the host --------------------------------------------------------------------- */

/* Ordered queues of operations. A group is one entry of its stream. */
ftcclResult_t ftcclStreamCreate(ftcclStream_t *stream);
/* Waits for what is enqueued (bounded by the operations' deadlines), then frees. */
ftcclResult_t ftcclStreamDestroy(ftcclStream_t stream);
/* ftcclInProgress, ftcclSuccess, or the first error since the last Query or Synchronize that
 * returned one. Does not block. */
ftcclResult_t ftcclStreamQuery(ftcclStream_t stream);
/* Waits for everything enqueued so far, at most as long as the operations' deadlines; returns the
 * first error since the last call. NULL waits for the NULL streams of the ranks on which this
 * thread has enqueued, or, in a thread that has enqueued on none, of all ranks that live in the
 * process. */
ftcclResult_t ftcclStreamSynchronize(ftcclStream_t stream);

/* ---- reduction operators --------------------------------------------------------------------- */

/* An operator for comm and datatype that multiplies each rank's input by *scalar (of the type
 * datatype) and sums. */
ftcclResult_t ftcclRedOpCreatePreMulSum(ftcclRedOp_t *op, void *scalar, ftcclDataType_t datatype,
                                        ftcclScalarResidence_t residence, ftcclComm_t comm);
/* Operations already enqueued with it are not affected. */
ftcclResult_t ftcclRedOpDestroy(ftcclRedOp_t op, ftcclComm_t comm);

/* ---- collectives
 * --------------------------------------------------------------------------------------------------------------
 *
 * Counts are in elements. Pointers need no alignment. Memory of a GPU is refused
 * (ftcclInvalidUsage), if CUDA's driver was in the process when the rank's first communicator was
 * made. Out of place the send buffer is never written. A buffer may be NULL where it is not used or
 * the count is 0. Buffers that overlap in another way than the one given as "in place" are refused.
 * Rounding: 8- and 16-bit floats are summed in float32 within a step and rounded to nearest even
 * after it; e4m3 saturates, e5m2 overflows to infinity; integers wrap. Avg multiplies floats by
 * 1/nranks before summing and divides integers after (truncating). The result is bit-identical on
 * all ranks and from run to run of the same plan.
 *
 * Input buffers. A failed operation leaves anything in its output. With option preserveInput what
 * was input too, in place, is afterwards bit for bit as it was when the operation began, so that
 * the call can be repeated, on another communicator, once the buffers of others are in the same
 * state. It is there again when the error shows, also after Abort and a passed deadline; the rest
 * of the output is undefined. Operations that never began wrote nothing. An operation that finished
 * keeps its result, also in a group of which another failed, and even if its peers lost theirs:
 * with one collective at a time on a stream, ftcclStreamSynchronize() tells which. The input of
 * collectives is meant; it is preserved only if no other operation of the group writes to it. The
 * cost is a copy of the overwritten input before the first step (all of it for AllReduce, AlltoAll
 * and Reduce at root, this rank's block for ReduceScatter; nothing for the others, which keep their
 * input in place) and as much memory, taken by the first such group, grown when a larger one comes
 * and kept as long as the communicator; if there is none, the operation fails with ftcclSystemError
 * and nothing was written. Inherited by Split like other options; ranks may differ in it.
 *
 * Failure policy. With FTCCL_POLICY_RETRY a communicator that loses a rank goes on with the live
 * ones, inside the calls: AllReduce, Reduce and Broadcast succeed on all survivors with the same
 * result. It is that of the old ranks if any rank had finished the operation, else the operation
 * begins again without the lost ones; preserveInput is implied. Every collective ends with a commit
 * round over all ranks, which costs its latency. Afterwards, and perhaps before the call returns,
 * CommCount and CommUserRank are new (the order stays), Avg divides by those who contributed,
 * GetFailedRanks gives the lost ranks as they were numbered before, and GetAsyncError was success
 * throughout. A root is a rank of the view in which its call was made: ranks that may call before
 * and after the change should take roots that it does not renumber. Ranks that aborted or destroyed
 * their end count as lost; a broken link between live ranks is made anew. Reported as without the
 * policy, on all ranks and for good: a root that is lost; other collectives when they run or wait
 * in the queue (those made afterwards are ordinary calls of the smaller communicator); any loss
 * once sends, receives, puts or windows were used, or while a rank is in Agree, Split, Shrink, Grow
 * or WindowRegister; fewer ranks than minRanks, no quorum, different calls, a deadline that passes
 * while all live. Children are communicators of their own. */

/* recvbuff[i] = op over ranks of sendbuff[i]. In place: sendbuff == recvbuff. */
ftcclResult_t ftcclAllReduce(const void *sendbuff, void *recvbuff, size_t count,
                             ftcclDataType_t datatype, ftcclRedOp_t op, ftcclComm_t comm,
                             ftcclStream_t stream);
/* The same, result at root only; recvbuff is unused elsewhere. */
ftcclResult_t ftcclReduce(const void *sendbuff, void *recvbuff, size_t count,
                          ftcclDataType_t datatype, ftcclRedOp_t op, int root, ftcclComm_t comm,
                          ftcclStream_t stream);
/* root's sendbuff to everybody's recvbuff; sendbuff is unused elsewhere. In place: sendbuff ==
 * recvbuff. */
ftcclResult_t ftcclBroadcast(const void *sendbuff, void *recvbuff, size_t count,
                             ftcclDataType_t datatype, int root, ftcclComm_t comm,
                             ftcclStream_t stream);
ftcclResult_t ftcclBcast(void *buff, size_t count, ftcclDataType_t datatype, int root,
                         ftcclComm_t comm, ftcclStream_t stream);
/* sendbuff: sendcount elements; recvbuff: nranks * sendcount. In place: sendbuff == recvbuff + rank
 * * sendcount. */
ftcclResult_t ftcclAllGather(const void *sendbuff, void *recvbuff, size_t sendcount,
                             ftcclDataType_t datatype, ftcclComm_t comm, ftcclStream_t stream);
/* sendbuff: nranks * recvcount; recvbuff: recvcount. In place: recvbuff == sendbuff + rank *
 * recvcount. */
ftcclResult_t ftcclReduceScatter(const void *sendbuff, void *recvbuff, size_t recvcount,
                                 ftcclDataType_t datatype, ftcclRedOp_t op, ftcclComm_t comm,
                                 ftcclStream_t stream);
/* Both nranks * count: block j of sendbuff goes to rank j's block `rank`. In place: sendbuff ==
 * recvbuff. */
ftcclResult_t ftcclAlltoAll(const void *sendbuff, void *recvbuff, size_t count,
                            ftcclDataType_t datatype, ftcclComm_t comm, ftcclStream_t stream);
/* recvbuff (root only): nranks * count. In place: sendbuff == recvbuff + root * count at root. */
ftcclResult_t ftcclGather(const void *sendbuff, void *recvbuff, size_t count,
                          ftcclDataType_t datatype, int root, ftcclComm_t comm,
                          ftcclStream_t stream);
/* sendbuff (root only): nranks * count. In place: recvbuff == sendbuff + root * count at root. */
ftcclResult_t ftcclScatter(const void *sendbuff, void *recvbuff, size_t count,
                           ftcclDataType_t datatype, int root, ftcclComm_t comm,
                           ftcclStream_t stream);

/* The k-th send from a to b on a communicator meets b's k-th receive from a; count and type must be
 * equal. Inside a group all sends and receives progress together, in any order of peers, also to
 * and from the rank itself. Outside a group a send or receive to the rank itself gives
 * ftcclInvalidUsage. */
ftcclResult_t ftcclSend(const void *sendbuff, size_t count, ftcclDataType_t datatype, int peer,
                        ftcclComm_t comm, ftcclStream_t stream);
ftcclResult_t ftcclRecv(void *recvbuff, size_t count, ftcclDataType_t datatype, int peer,
                        ftcclComm_t comm, ftcclStream_t stream);

/* ---- groups
 * ----------------------------------------------------------------------------------------------------------------------
 *
 * Calls of this thread between Start and End become one entry of their streams and are enqueued by
 * the outermost End. Groups nest, may hold several communicators and any mix of collectives and
 * point-to-point. Calls of one group are not ordered among each other: none may read what another
 * one writes; all ranks make the same groups of collectives. Communicators may be made in a group,
 * not mixed with operations. If a call in the group failed, or a communicator was destroyed or
 * aborted after its call, End returns the error and nothing is enqueued. */
ftcclResult_t ftcclGroupStart(void);
ftcclResult_t ftcclGroupEnd(void);
/* Instead of End: enqueues nothing and fills simInfo->estimatedTime from the cost model. simInfo
 * may be NULL; one that was not initialised is an invalid argument, and ends the group too. */
ftcclResult_t ftcclGroupSimulateEnd(ftcclSimInfo_t *simInfo);

/* Forgets the debug level and file, to be read again from the environment. Deprecated in NCCL, kept
 * for its callers. */
void ftcclResetDebugInit(void);

#ifdef __cplusplus
}
#endif

#endif

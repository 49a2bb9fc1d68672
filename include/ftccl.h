/*
 * FTCCL: fault-tolerant collective communication with NCCL's interface. This is the only public
 * header. It is valid C99 and C++11.
 *
 * Names, argument order, types and enum values are those of NCCL 2.30's nccl.h, with the prefix
 * `ftccl`. The following holds for all calls unless a call says otherwise:
 *
 * - A call that returns ftcclResult_t returns ftcclSuccess, ftcclInProgress (only for non-blocking
 *   communicators) or an error. ftcclGetErrorClass() tells what an error means for the
 *   communicator, and ftcclGetLastError() explains it in a sentence. After ftcclInvalidArgument or
 *   ftcclInvalidUsage from a call, the communicator is unchanged.
 * - Collectives, sends and receives only enqueue: they return at once, and the operation runs when
 *   its stream reaches it. Its deadline (option opTimeoutMs) counts from that moment. Errors of
 *   operations are returned by ftcclStreamSynchronize(), ftcclStreamQuery() and
 *   ftcclCommGetAsyncError(). Buffers must stay valid, and the caller must not touch them, until
 *   the stream has passed the operation.
 * - Operations of one communicator run in the order of the calls on it. All ranks must make the
 *   same collective calls in the same order with the same arguments. Calls that differ are detected
 *   and named (ftcclInvalidUsage); they do not hang.
 * - Every wait is bounded: init, split, finalize and destroy by initTimeoutMs, operations by
 *   opTimeoutMs, agree, shrink and grow by initTimeoutMs and a few times suspectMs.
 * - Any thread may use any communicator. Calls on one communicator from several threads at once are
 *   serialised; the caller makes sure that their order is the same on all ranks. If several threads
 *   of one rank split a communicator at once, each gets its child: the n-th CommSplit calls of all
 *   ranks belong together. Threads that grow a communicator do so one after another, and an Agree
 *   or Shrink in between makes the grow fail on all ranks: see ftcclCommGrow().
 * - In a child of fork() every call returns ftcclInvalidUsage; the communicators belong to the
 *   parent.
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

/* A cudaStream_t is accepted without conversion. NULL means the NULL stream of the communicator's
 * rank. */
typedef struct CUstream_st *ftcclStream_t;

#define FTCCL_UNIQUE_ID_BYTES 128
typedef struct {
    char internal[FTCCL_UNIQUE_ID_BYTES];
} ftcclUniqueId;

typedef enum {
    ftcclSuccess = 0,
    ftcclUnhandledCudaError = 1, /* the device failed */
    /* a system call failed, or memory, descriptors or shared memory ran out */
    ftcclSystemError = 2,
    ftcclInternalError = 3, /* a bug in the library */
    ftcclInvalidArgument = 4,
    ftcclInvalidUsage = 5, /* also if ranks made different calls */
    ftcclRemoteError = 6,  /* a peer or the connection to it was lost */
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
    ftcclNumOps = 5, /* the lowest value of an operator made by ftcclRedOpCreatePreMulSum() */
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

/* FTCCL's own settings; `size` is sizeof(ftcclOptions_t). A field with the value FTCCL_OPTION_UNDEF
 * takes the value of its parameter. */
#define FTCCL_OPTION_UNDEF INT64_MIN
typedef struct {
    size_t size;
    int64_t opTimeoutMs;    /* deadline of one operation, from the moment when it runs; 0: none */
    int64_t initTimeoutMs;  /* time limit of init, split, finalize and destroy */
    const char *transports; /* ordered list, e.g. "shm,tcp"; NULL: FTCCL_TRANSPORTS */
    /* 1: restore inputs after a failure, see "Input buffers" below; 0: do not */
    int64_t preserveInput;
    /* 1: messages have checksums, and ranks compare results; the same on all ranks */
    int64_t verify;
    /* Orders the ranks of a shrunk or grown communicator: by key, then by old rank. Default: the
     * old rank, joiners last. */
    int64_t rankKey;
    int64_t minRanks; /* with fewer live ranks than this, a shrink fails for good */
    /* Interval between heartbeats, which a rank sends to log2(n) others; 0: never. It belongs to
     * the rank and is set at init. */
    int64_t heartbeatMs;
    /* Silence after which a rank or host is suspected; at least 50. Links take the value at init,
     * agreements always. */
    int64_t suspectMs;
    /* FTCCL_POLICY_...: see below, "Failure policy"; the same on all ranks */
    int64_t failurePolicy;
    /* FTCCL_STREAMS_...: what streams of a GPU do when an operation on them fails */
    int64_t onFailure;
    /* 1: the communicator is for sends and receives of host memory only, and they do not wait for
     * each other in call order: see ftcclSend(). 0: call order, as in NCCL. The same on all
     * ranks. */
    int64_t concurrentP2p;
    /* Silence of a rank, of which no heartbeat comes, after which operations that are under way
     * fail with ftcclRemoteError: its process is stopped, or its host cannot be reached. All ranks
     * must send heartbeats. 0: never; operations wait until their deadline. */
    int64_t silenceMs;
    /* Of members: fewer replicas than this make no view; the largest value in the group counts. */
    int64_t minMembers;
    /* Of members: how long a view waits for live replicas that do not ask for it; likewise. */
    int64_t joinWindowMs;
} ftcclOptions_t;
#define FTCCL_OPTIONS_INITIALIZER                                                                 \
    {                                                                                             \
        sizeof(ftcclOptions_t), FTCCL_OPTION_UNDEF, FTCCL_OPTION_UNDEF, NULL, FTCCL_OPTION_UNDEF, \
            FTCCL_OPTION_UNDEF, FTCCL_OPTION_UNDEF, FTCCL_OPTION_UNDEF, FTCCL_OPTION_UNDEF,       \
            FTCCL_OPTION_UNDEF, FTCCL_OPTION_UNDEF, FTCCL_OPTION_UNDEF, FTCCL_OPTION_UNDEF,       \
            FTCCL_OPTION_UNDEF, FTCCL_OPTION_UNDEF, FTCCL_OPTION_UNDEF                            \
    }
#define FTCCL_POLICY_REPORT 0
#define FTCCL_POLICY_RETRY 1
/* Streams go on; before they do, GetAsyncError and the device's status word report the failure. */
#define FTCCL_STREAMS_RELEASE 0
/* Streams stop until abort, revoke or shrink, but no longer than 10 s and twice the operations'
 * deadline. */
#define FTCCL_STREAMS_HOLD 1

#define FTCCL_CONFIG_UNDEF_INT INT_MIN
#define FTCCL_CONFIG_UNDEF_PTR NULL
#define FTCCL_SPLIT_NOCOLOR (-1)
#define FTCCL_SHRINK_DEFAULT 0
#define FTCCL_SHRINK_ABORT 1
#define FTCCL_REVOKE_DEFAULT 0
#define FTCCL_UNDEF_FLOAT (-1.0f)

/* NCCL's fields in NCCL's order, then FTCCL's options. Initialise it with FTCCL_CONFIG_INITIALIZER.
 * Fields about CTAs, clusters, NVLink, collnet, RMA contexts and graphs are checked for range; they
 * have no effect on host memory. */
typedef struct {
    size_t size;
    unsigned int magic;
    unsigned int version;
    int blocking; /* 0: calls on the communicator return ftcclInProgress instead of waiting */
    int cgaClusterSize;
    int minCTAs;
    int maxCTAs;
    const char *netName; /* name of the only transport to use between machines; NULL: any */
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
    const ftcclOptions_t *options; /* NULL: use the values of the parameters */
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
    float estimatedTime; /* in seconds, from the cost model */
} ftcclSimInfo_t;
#define FTCCL_SIM_INFO_MAGIC 0x74685283u
#define FTCCL_SIM_INFO_INITIALIZER                                                          \
    {                                                                                       \
        sizeof(ftcclSimInfo_t), FTCCL_SIM_INFO_MAGIC, FTCCL_VERSION_CODE, FTCCL_UNDEF_FLOAT \
    }

/* ---- version and errors ---------------------------------------------------------------------- */

/* Sets *version to FTCCL_VERSION_CODE of the library. */
ftcclResult_t ftcclGetVersion(int *version);

/* Returns a constant string for each code; never NULL. */
const char *ftcclGetErrorString(ftcclResult_t result);

/* Returns the last error of the communicator, as a sentence that names the rank, the peer and the
 * operation. With NULL it returns the last error of the calling thread. Returns "" if there was
 * none. The string is valid until the next call on comm (or of the thread). */
const char *ftcclGetLastError(ftcclComm_t comm);

/* What a result means for the communicator. Caller: the call had no effect. Recoverable: the
 * communicator is lost, but this rank can go on. Fatal: this rank cannot go on; its peers get a
 * recoverable error. If ranks made different calls, GetAsyncError returns ftcclInvalidUsage, and
 * the communicator is lost. */
typedef enum {
    ftcclClassSuccess,
    ftcclClassInProgress,
    ftcclClassCaller,
    ftcclClassRecoverable,
    ftcclClassFatal
} ftcclErrorClass_t;
ftcclErrorClass_t ftcclGetErrorClass(ftcclResult_t result);

/* *asyncError is set to the first error of the communicator, to ftcclInProgress while a
 * non-blocking call is in progress, or else to ftcclSuccess. Never blocks. Another thread may call
 * it during any call. */
ftcclResult_t ftcclCommGetAsyncError(ftcclComm_t comm, ftcclResult_t *asyncError);

/* ---- communicators --------------------------------------------------------------------------- */

/* Makes an id that every rank passes to init once. It contains the addresses of this process, which
 * serves the rendezvous until all ranks have come or a time limit has passed, and the job's secret:
 * give it only to the job's own ranks. Does not wait. */
ftcclResult_t ftcclGetUniqueId(ftcclUniqueId *uniqueId);

/* As ftcclGetUniqueId(), but the id is served until a communicator was made with it, or until
 * ftcclUniqueIdRelease(), however long that takes; FTCCL_COMM_ID is ignored. For processes that
 * publish how they can be reached long before it is known who comes. */
ftcclResult_t ftcclUniqueIdKeep(ftcclUniqueId *uniqueId);
/* Ends the service of an id of ftcclUniqueIdKeep() in the process that made it. Ranks that come
 * with the id get an error at once. An id that was used or released is accepted. */
ftcclResult_t ftcclUniqueIdRelease(const ftcclUniqueId *uniqueId);

/* Makes a communicator of nranks ranks; this rank has the number `rank`. Blocks until all ranks
 * have come, at most initTimeoutMs; the error text then names the missing ranks. It does not block
 * if config->blocking is 0, nor inside a group, where ftcclGroupEnd() completes it. One thread may
 * make several ranks in a group. *comm is set on success (at once if non-blocking). */
ftcclResult_t ftcclCommInitRank(ftcclComm_t *comm, int nranks, ftcclUniqueId commId, int rank);
ftcclResult_t ftcclCommInitRankConfig(ftcclComm_t *comm, int nranks, ftcclUniqueId commId, int rank,
                                      ftcclConfig_t *config);

/* The same with nId ids, made by different processes, which share the work of the rendezvous. All
 * ranks pass them in the same order. */
ftcclResult_t ftcclCommInitRankScalable(ftcclComm_t *newcomm, int nranks, int myrank, int nId,
                                        ftcclUniqueId *commIds, ftcclConfig_t *config);

/* Makes ndev ranks in this process; comm has room for ndev handles. If the calling thread has a
 * GPU, rank i is for buffers of GPU devlist[i], or, without a devlist, of GPU i modulo the number
 * of GPUs; several ranks may name the same GPU. On host memory each device number must be 0 or
 * greater, and is only stored. */
ftcclResult_t ftcclCommInitAll(ftcclComm_t *comm, int ndev, const int *devlist);

/* Every rank of comm calls this. Ranks with the same color (>= 0) form a communicator, ordered by
 * key, then by old rank. Ranks with FTCCL_SPLIT_NOCOLOR get NULL. The new communicator shares the
 * links to peers with comm. With config NULL it has the settings of comm. The n-th split of comm is
 * the same split on all ranks, whichever thread calls it: threads that split at once with different
 * colors must do so in the same order on all ranks. */
ftcclResult_t ftcclCommSplit(ftcclComm_t comm, int color, int key, ftcclComm_t *newcomm,
                             ftcclConfig_t *config);

/* ---- going on after a failure: see docs/fault-tolerance.md ----------------------------------- */

/* Makes a communicator of the live ranks of comm, without failed ranks and without those on a list;
 * comm remains until it is destroyed. Every live rank calls this. With exclude NULL and count 0,
 * only failed ranks are left out. Ranks may pass different lists: the union is left out. If that is
 * every rank, all get InvalidUsage and nothing changes. The ranks agree on the failed set, on the
 * order (rankKey, then old rank) and on the last complete operation, even if more ranks die
 * meanwhile. Pending operations end first; with FTCCL_SHRINK_ABORT they are revoked on all ranks.
 * Links between survivors are kept. A rank that is alive but does not call this within
 * initTimeoutMs is left out.
 *
 * Blocks at most initTimeoutMs for pending operations, and initTimeoutMs and a few seconds for the
 * agreement. For non-blocking communicators this happens in the background. Errors: InvalidUsage
 * also for a rank that the others left out (the error text says so; it can only come back as a new
 * rank); RemoteError if other ranks called Agree or Grow instead (the call then had no effect on
 * any rank, and all must now make the same call); SystemError if there is no quorum, or fewer than
 * minRanks ranks are left. A group of one rank is valid. */
ftcclResult_t ftcclCommShrink(ftcclComm_t comm, int *exclude, int count, ftcclComm_t *newcomm,
                              ftcclConfig_t *config, int flags);

/* Ends the pending operations of comm with RemoteError on every live rank; queued operations are
 * skipped. Returns at once. Afterwards only Agree, Shrink, Destroy and Abort are useful on comm.
 * flags: FTCCL_REVOKE_DEFAULT. */
ftcclResult_t ftcclCommRevoke(ftcclComm_t comm, int flags);

/* Sets *flags to the bitwise AND over the live ranks. The result and the failed set are the same on
 * each of them, even if ranks die meanwhile. Works on a failed communicator, and in parallel to
 * running operations. Every live rank makes the same sequence of Agree, Shrink and Grow calls.
 * Blocks at most initTimeoutMs and a few seconds. Errors: as ftcclCommShrink(). */
ftcclResult_t ftcclCommAgree(ftcclComm_t comm, uint64_t *flags);

/* Makes an id for one grow of comm. One rank of comm (the root) makes it, sends it to the joiners,
 * and passes it to its own ftcclCommGrow(). It contains the job's secret. If comm ends before the
 * id was used, joiners get an error at once. Does not wait. */
ftcclResult_t ftcclCommGetUniqueId(ftcclComm_t comm, ftcclUniqueId *uniqueId);

/* Makes a communicator of the ranks of comm and of joiners, nranks in all. Ranks of comm pass -1 as
 * rank, and all but the root pass NULL as id. A joiner passes NULL as comm and a rank from the old
 * size to nranks-1, different from the other joiners' ranks. The order is by rankKey, then by that
 * rank. comm remains usable during and after the call, whether it succeeds or not. The ranks of
 * comm agree on the outcome, so all of them get the new communicator or none does. Joiners may
 * start long before. An id is good for one attempt.
 *
 * Blocks: the root waits for the joiners at most half of initTimeoutMs; the other ranks wait for
 * the root. Non-blocking communicators do this in the background. Errors: Timeout if joiners did
 * not come; RemoteError if a rank of comm died or a joiner went away. A joiner gets RemoteError if
 * the grow failed, or if no rank of comm is left that could tell it. A used id, an id of another
 * job, or a rank that is claimed twice gives InvalidUsage on the ranks that see it, and makes the
 * grow fail on all.
 *
 * Threads of one rank that call it at once do so one after another; each waits at most
 * initTimeoutMs for its turn. Which of them gets which child may differ between ranks. If another
 * thread calls Agree or Shrink during a grow, that call succeeds and the grow fails on all ranks,
 * with InvalidUsage where the call came in between. In a group the calls of one communicator run in
 * their order. */
ftcclResult_t ftcclCommGrow(ftcclComm_t comm, int nranks, const ftcclUniqueId *id, int rank,
                            ftcclComm_t *newcomm, ftcclConfig_t *config);

/* Returns the ranks of comm that have failed. After Agree, Shrink or Grow this is the agreed set,
 * the same on every live rank; before that it is what this rank knows, with the rank that
 * GetLastError names as lost or as the one at which a wait began. With FTCCL_POLICY_RETRY, if no
 * rank has failed since the last loss, it is the ranks of that loss, with their numbers before it.
 * Writes at most `capacity` ranks; *count is always the full number. Does not block. */
ftcclResult_t ftcclCommGetFailedRanks(ftcclComm_t comm, int *ranks, int capacity, int *count);

/* Returns the number of the last collective that is complete on every live rank, as of the last
 * Agree, Shrink or Grow of comm. Collectives count from 1 in call order, including CommSplit and
 * CommWindowRegister, without sends and receives. 0: none. Does not block. */
ftcclResult_t ftcclCommGetLastAgreedOp(ftcclComm_t comm, uint64_t *sequence);

/* Says that this rank begins step number `step` of its program, for example an iteration of a
 * training loop. It changes nothing but the telemetry: ftccl-diagnose then knows how long steps
 * take, and need not guess them from the calls. Call it once a step, on the communicator that all
 * ranks share. Does not wait for other ranks. */
ftcclResult_t ftcclStep(ftcclComm_t comm, uint64_t step);

/* Waits until every operation of comm on this rank has ended, and until peers have received what
 * was sent to them. Afterwards only Destroy, Abort, GetAsyncError, GetLastError, Count and UserRank
 * are allowed. */
ftcclResult_t ftcclCommFinalize(ftcclComm_t comm);

/* Calls Finalize if that was not done, and frees comm. Peers are told; an idle communicator of a
 * peer gets no error. The handle is invalid afterwards, whatever the call returns. */
ftcclResult_t ftcclCommDestroy(ftcclComm_t comm);

/* Ends pending operations with an error and frees comm. Another thread may call it during any call
 * on comm. Peers that wait for this rank in an operation get ftcclRemoteError. Blocks a few seconds
 * at most: for transfers in flight, and until the peers can be told. */
ftcclResult_t ftcclCommAbort(ftcclComm_t comm);

ftcclResult_t ftcclCommCount(const ftcclComm_t comm, int *count);
ftcclResult_t ftcclCommUserRank(const ftcclComm_t comm, int *rank);
/* The number of the GPU whose buffers the communicator accepts. Without a GPU it is the device
 * number given to InitAll, or 0. */
ftcclResult_t ftcclCommCuDevice(const ftcclComm_t comm, int *device);

/* Sets *status to the address of a word that kernels on the communicator's GPU and the host can
 * read. The word is 0. It becomes 1 when the communicator has failed (or was aborted or revoked),
 * before the streams of its operations go on. A kernel after a collective, such as an optimizer's
 * step, can read it and do nothing. Every call returns the same word. The word of a failed
 * communicator keeps its value as long as the process lives. If a communicator is destroyed without
 * a failure, its word is reused, and nothing may read it then. The first call allocates memory, and
 * may wait for kernels on the GPU. ftcclInvalidUsage without a GPU. */
ftcclResult_t ftcclCommGetDeviceStatus(ftcclComm_t comm, const uint32_t **status);

/* ---- managed membership: see docs/managed.md ---------------------------------------------------
 *
 * A job of replicas that come and go. A *replica* is a number of ranks that belong together, such
 * as the pipeline of one copy of a model. A *role* is a place in a replica: the replica's name and
 * a local rank. A *member* is a process, or a thread, with a role; a *standby* has none and waits
 * for one. A coordinator counts who is alive and makes *views*: the replicas that go on together.
 * All ranks with the same local rank form a communicator across the replicas of a view; its rank r
 * belongs to the view's replica r.
 *
 * The calls of one member come from one thread at a time; different members are independent. All
 * ranks of a replica make the same sequence of View and Commit calls. */

typedef struct ftcclMember *ftcclMember_t;

typedef struct {
    size_t size;          /* of this struct, set by the caller */
    uint64_t epoch, step; /* step: the highest one any member reached */
    int nranks, rank;     /* of the communicator across replicas that holds this local rank */
    /* Members at step; 0 if no replica has it as a whole: the only one that was left has lost a
     * rank, and all have to begin at a checkpoint of that step. behind: 1 if this one has to catch
     * up. */
    int nhealthy, behind;
    /* If it is behind: healthy members to fetch state from, by their ranks, in the order that
     * balances load. The array belongs to the member and is valid until its next View or Leave. */
    int nsources;
    const int *sources;
} ftcclView_t;

/* Registers this process with a coordinator, as rank localRank of the localSize ranks of a replica,
 * which may begin, or begin again, at any time. replica NULL: as a standby; localRank and localSize
 * are ignored then. coordinator: "HOST:PORT[,HOST:PORT...]", in the order in which they are tried;
 * NULL: FTCCL_COORDINATOR. group: which jobs belong together. The job's secret comes from
 * FTCCL_SECRET or FTCCL_SECRET_FILE and is the same for the coordinator and all members.
 *
 * The communicators of the views have the settings of config. NULL: the parameters' values.
 * failurePolicy must be FTCCL_POLICY_REPORT, because views come from the coordinator alone; rankKey
 * and minRanks have no effect.
 *
 * Blocks until a coordinator has accepted the member, at most initTimeoutMs. Errors: InvalidUsage
 * if there is no secret, if the replica has another size or the group other settings, or if another
 * process has the role: a role becomes free when its process has ended or was silent for suspectMs,
 * and nobody waits longer for one whose process lives; RemoteError if the coordinator has another
 * secret; Timeout if no coordinator answers. */
ftcclResult_t ftcclMemberJoin(const char *coordinator, const char *group, const char *replica,
                              int localRank, int localSize, ftcclConfig_t *config,
                              ftcclMember_t *member);

/* Says that this member is at `step` and ready for the next view, and waits for it. If the replicas
 * of the last view are all ready, with the same processes, nobody new is, and nothing has failed,
 * then the view and *comm are the ones from before; so it is cheap enough to be called before every
 * step. Otherwise *comm is a new communicator. Links between members of both views are kept; others
 * are made in the background. *comm is valid until the next View that returns another one, or
 * Leave. They end it, like ftcclCommAbort() if operations are pending; it is not for
 * ftcclCommFinalize(), Destroy or Abort, which return InvalidUsage.
 *
 * If a rank of the view dies, or the coordinator finds that one is silent, the pending operations
 * of those who need it end with RemoteError. They call View again, with the step that they have
 * reached. The first view waits until all ranks of the replica are there; a standby waits for a
 * role. Blocks at most initTimeoutMs; after Timeout the last communicator is still there and the
 * call may be repeated. Errors: InvalidUsage also if another process has the role now. */
ftcclResult_t ftcclMemberView(ftcclMember_t member, uint64_t step, ftcclView_t *view,
                              ftcclComm_t *comm);

/* Ends a step in all ranks of the replica or in none: *commit is 1 on every rank if every rank of
 * the view's replica is alive and passes ok != 0. Otherwise it is 0 on every live rank. All pass
 * the same step; InvalidUsage if they do not. Needs no coordinator. With ok 0 it does not wait for
 * the others, except each fourth time; else it blocks at most initTimeoutMs, a few times suspectMs
 * and a few seconds for a rank that does not come. After any error *commit is 0, but this rank
 * cannot know what the others have; it must take its state from a healthy member. */
ftcclResult_t ftcclMemberCommit(ftcclMember_t member, uint64_t step, int ok, int *commit);

/* The role of the member. A standby that has none yet: replica "", localRank -1, localSize 0.
 * capacity: bytes at `replica`; 64 are enough. Any pointer may be NULL. */
ftcclResult_t ftcclMemberRole(ftcclMember_t member, char *replica, size_t capacity, int *localRank,
                              int *localSize);

/* The member ends: the coordinator is told, and its communicator is destroyed, after what was sent
 * on it has been received. Also after failures; the handle is invalid afterwards. Blocks at most
 * twice initTimeoutMs and a few seconds. */
ftcclResult_t ftcclMemberLeave(ftcclMember_t member);

/* A coordinator in this process, with a thread of its own; ftcclMemberJoin() finds it. listen:
 * "HOST:PORT"; port 0: a free one. address (capacity bytes; 80 are enough; may be NULL): where
 * members reach it. The secret comes from FTCCL_SECRET or FTCCL_SECRET_FILE. */
typedef struct ftcclCoordinator *ftcclCoordinator_t;
ftcclResult_t ftcclCoordinatorStart(const char *listen, char *address, size_t capacity,
                                    ftcclCoordinator_t *coordinator);
/* Members are not told: they go on, and register with the next coordinator that they find. */
ftcclResult_t ftcclCoordinatorStop(ftcclCoordinator_t coordinator);

/* ---- memory ---------------------------------------------------------------------------------- */

/* Allocates zeroed, page-aligned memory. If the size is 64 KiB or more, other ranks of this host
 * read it in place when it is a send buffer, without a copy. It is then shared memory: all of it is
 * allocated at once, and a child of fork does not have it. Where shared memory is not available, it
 * is ordinary memory in huge pages. As always, the data that a collective sends must not change
 * before the collective has ended. Memory may be freed at any time after that, also after a
 * failure. MemAlloc accepts size 0, and MemFree accepts NULL. MemFree of any other pointer that
 * MemAlloc did not return gives ftcclInvalidArgument. */
ftcclResult_t ftcclMemAlloc(void **ptr, size_t size);
ftcclResult_t ftcclMemFree(void *ptr);

/* Registers a buffer that operations will use; on host memory no operation needs this. The range
 * must be readable memory of this process. Deregister it with the handle; destroying the
 * communicator deregisters the rest. */
ftcclResult_t ftcclCommRegister(const ftcclComm_t comm, void *buff, size_t size, void **handle);
ftcclResult_t ftcclCommDeregister(const ftcclComm_t comm, void *handle);

/* ---- one-sided ------------------------------------------------------------------------------- */

typedef struct ftcclWindow *ftcclWindow_t;
#define FTCCL_WIN_DEFAULT 0x00
#define FTCCL_WIN_COLL_SYMMETRIC 0x01

/* Every rank of comm calls this with a buffer of its own (sizes may differ, and may be 0). Other
 * ranks may put into the buffer until Deregister. Blocks until all ranks have called it, at most
 * the deadline of an operation. winFlags: one of the above. */
ftcclResult_t ftcclCommWindowRegister(ftcclComm_t comm, void *buff, size_t size, ftcclWindow_t *win,
                                      int winFlags);
/* Local. The caller makes sure that no rank still puts into the window. */
ftcclResult_t ftcclCommWindowDeregister(ftcclComm_t comm, ftcclWindow_t win);
/* Sets *ptr to the buffer given to Register. */
ftcclResult_t ftcclWinGetUserPtr(ftcclComm_t comm, ftcclWindow_t win, void **ptr);

/* Copies count elements of localbuff to peer's buffer of peerWin, peerWinOffset bytes from its
 * start, and then gives peer one signal. Enqueued on the stream; it is complete there when
 * localbuff may be reused. sigIdx, ctx and flags must be 0, as in NCCL. */
ftcclResult_t ftcclPutSignal(const void *localbuff, size_t count, ftcclDataType_t datatype,
                             int peer, ftcclWindow_t peerWin, size_t peerWinOffset, int sigIdx,
                             int ctx, unsigned int flags, ftcclComm_t comm, ftcclStream_t stream);
/* Gives peer one signal without data. It arrives after everything that this rank has put to peer
 * before. */
ftcclResult_t ftcclSignal(int peer, int sigIdx, int ctx, unsigned int flags, ftcclComm_t comm,
                          ftcclStream_t stream);

/* opCnt signals from peer */
typedef struct {
    int opCnt;
    int peer;
    int sigIdx;
    int ctx;
} ftcclWaitSignalDesc_t;
/* The stream waits until all these signals have arrived, and consumes them. */
ftcclResult_t ftcclWaitSignal(int nDesc, ftcclWaitSignalDesc_t *signalDescs, ftcclComm_t comm,
                              ftcclStream_t stream);

/* ---- streams of the host --------------------------------------------------------------------- */

/* Makes an ordered queue of operations. A group is one entry of its stream. */
ftcclResult_t ftcclStreamCreate(ftcclStream_t *stream);
/* Waits for all enqueued operations, at most as long as their deadlines, and then frees the
 * stream. */
ftcclResult_t ftcclStreamDestroy(ftcclStream_t stream);
/* Returns ftcclInProgress, ftcclSuccess, or the first error since the last Query or Synchronize
 * that returned one. Does not block. */
ftcclResult_t ftcclStreamQuery(ftcclStream_t stream);
/* Waits for everything enqueued so far, at most as long as the operations' deadlines. Returns the
 * first error since the last Query or Synchronize that returned one. NULL means the NULL streams of
 * the ranks on which this thread has enqueued, or, if it has enqueued on none, of all ranks of the
 * process. */
ftcclResult_t ftcclStreamSynchronize(ftcclStream_t stream);
/* As Synchronize, but returns ftcclInProgress if the stream is not done after timeoutMs; it may
 * take some 10 ms longer. Unlike Query it makes operations progress. For callers that look at
 * something else in between, as an interpreter does at its signals. */
ftcclResult_t ftcclStreamWait(ftcclStream_t stream, int timeoutMs);

/* ---- reduction operators --------------------------------------------------------------------- */

/* Makes an operator for comm and datatype. It multiplies each rank's input by *scalar (of type
 * datatype) and then sums. */
ftcclResult_t ftcclRedOpCreatePreMulSum(ftcclRedOp_t *op, void *scalar, ftcclDataType_t datatype,
                                        ftcclScalarResidence_t residence, ftcclComm_t comm);
/* Operations that are already enqueued with the operator are not affected. */
ftcclResult_t ftcclRedOpDestroy(ftcclRedOp_t op, ftcclComm_t comm);

/* ---- collectives -----------------------------------------------------------------------------
 *
 * Counts are in elements. Pointers need no alignment. Memory of a GPU that the communicator does
 * not use is refused (ftcclInvalidUsage), if CUDA's driver was in the process when the rank's first
 * communicator was made. Out of place, the send buffer is never written. A buffer may be NULL if it
 * is not used or the count is 0. Buffers that overlap in another way than documented as "in place"
 * are refused. Rounding: 8-bit and 16-bit floats are summed in float32 within a step and rounded to
 * nearest even after it; e4m3 saturates, e5m2 overflows to infinity; integers wrap. Avg multiplies
 * floats by 1/nranks before it sums, and divides integers after it (truncating). The result is
 * bitwise equal on all ranks, and from run to run of the same plan.
 *
 * Input buffers. The output of a failed operation is undefined. With option preserveInput, data
 * that was input too (in place) has afterwards bit for bit the value that it had when the operation
 * began. So the call can be repeated on another communicator, once the other ranks' buffers are in
 * the same state. The input is restored before the error is reported, also after Abort and after a
 * deadline; the rest of the output is undefined. Operations that never began wrote nothing. An
 * operation that has completed keeps its result, even if another operation of its group failed, and
 * even if its peers lost theirs: with one collective at a time on a stream,
 * ftcclStreamSynchronize() tells which. This concerns the input of collectives, and only if no
 * other operation of the group writes to it. The cost is a copy of the overwritten input before the
 * first step: all of it for AllReduce, AlltoAll and Reduce at root, this rank's block for
 * ReduceScatter, nothing for the others, which keep their input in place. The copy needs as much
 * memory. The first such group allocates it, a larger group enlarges it, and it is kept as long as
 * the communicator. If there is no memory, the operation fails with ftcclSystemError and writes
 * nothing. Split inherits the option like other options; ranks may differ in it.
 *
 * Failure policy. With FTCCL_POLICY_RETRY a communicator that loses a rank goes on with the live
 * ranks, inside the calls. AllReduce, Reduce and Broadcast succeed on all survivors with the same
 * result. It is the result of the old ranks if any rank had completed the operation; otherwise the
 * operation starts again without the lost ranks. The policy implies preserveInput. Every collective
 * ends with a commit round over all ranks, which costs its latency. Afterwards, and perhaps before
 * the call returns, CommCount and CommUserRank have new values (the order stays), Avg divides by
 * the number of contributors, and GetFailedRanks returns the lost ranks with their old numbers.
 * GetAsyncError returns success throughout. A root is a rank of the view in which its call was
 * made. Ranks that may make the call before and after the change should use roots whose number the
 * change keeps. Ranks that aborted or destroyed their communicator count as lost. A broken link
 * between live ranks is established again. The following failures are reported as without the
 * policy, on all ranks and for good: the loss of a root; other collectives that run or are queued
 * at the loss (later ones are ordinary calls of the smaller communicator); any loss after sends,
 * receives, puts or windows were used, or while a rank is in Agree, Split, Shrink, Grow or
 * WindowRegister; fewer ranks than minRanks; no quorum; different calls; a deadline that passes
 * while all ranks are alive. Children are separate communicators. */

/* recvbuff[i] = op over ranks of sendbuff[i]. In place: sendbuff == recvbuff. */
ftcclResult_t ftcclAllReduce(const void *sendbuff, void *recvbuff, size_t count,
                             ftcclDataType_t datatype, ftcclRedOp_t op, ftcclComm_t comm,
                             ftcclStream_t stream);
/* As AllReduce, with the result at root only; the other ranks do not use recvbuff. */
ftcclResult_t ftcclReduce(const void *sendbuff, void *recvbuff, size_t count,
                          ftcclDataType_t datatype, ftcclRedOp_t op, int root, ftcclComm_t comm,
                          ftcclStream_t stream);
/* Copies root's sendbuff to every rank's recvbuff; the other ranks do not use sendbuff. In place:
 * sendbuff == recvbuff. */
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
/* Both buffers: nranks * count. Block j of sendbuff goes to block `rank` of rank j's recvbuff. In
 * place: sendbuff == recvbuff. */
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

/* The k-th send from rank a to rank b on a communicator matches the k-th receive of b from a; count
 * and type must be equal. Inside a group all sends and receives make progress together, in any
 * order of peers, also between a rank and itself. Outside a group, a send or receive to the rank
 * itself gives ftcclInvalidUsage.
 *
 * With option concurrentP2p each send and receive begins when its stream reaches it, whatever other
 * streams wait for: a receive that nobody answers holds up only its own stream. Messages between
 * two ranks in one direction match in the order in which they begin. Such a communicator refuses
 * collectives, windows and CommSplit (ftcclInvalidUsage). A rank may send to itself outside a
 * group.
 */
ftcclResult_t ftcclSend(const void *sendbuff, size_t count, ftcclDataType_t datatype, int peer,
                        ftcclComm_t comm, ftcclStream_t stream);
ftcclResult_t ftcclRecv(void *recvbuff, size_t count, ftcclDataType_t datatype, int peer,
                        ftcclComm_t comm, ftcclStream_t stream);

/* Sets *arrived to 1 if a message from peer has arrived that no receive was called for: the next
 * receive from peer will take it. Sets it to 0 if none has, or if a receive from peer is pending.
 * Does not block. If the communicator has failed, it returns the error. */
ftcclResult_t ftcclProbe(ftcclComm_t comm, int peer, int *arrived);

/* ---- groups ----------------------------------------------------------------------------------
 *
 * Calls of this thread between Start and End become one entry of their streams; the outermost End
 * enqueues it. Groups nest. They may contain several communicators, and any mix of collectives and
 * point-to-point calls. The calls of one group have no order: none may read what another one
 * writes. All ranks make the same groups of collectives. A group may make communicators, but not
 * together with operations. If a call in the group failed, or a communicator was destroyed or
 * aborted after its call, End returns the error and enqueues nothing. */
ftcclResult_t ftcclGroupStart(void);
ftcclResult_t ftcclGroupEnd(void);
/* Call it instead of End: it enqueues nothing, and sets simInfo->estimatedTime from the cost model.
 * simInfo may be NULL. If it was not initialised, that is an invalid argument, and the group ends
 * too. */
ftcclResult_t ftcclGroupSimulateEnd(ftcclSimInfo_t *simInfo);

/* Reads the debug level and file from the environment again at the next use. NCCL has deprecated
 * it; it is kept for existing callers. */
void ftcclResetDebugInit(void);

#ifdef __cplusplus
}
#endif

#endif

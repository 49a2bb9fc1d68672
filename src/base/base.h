/*
 * base: status, parameters, log, time, fork safety and the plain types that every other folder
 * shares. It knows nothing of the rest of the library; everything else may include it.
 */
#ifndef FT_BASE_H
#define FT_BASE_H

#ifdef __cplusplus /* tests include this inside extern "C"; gcc's <stdatomic.h> is not C++ */
extern "C++" {
#include <atomic>
using std::atomic_int;
typedef std::atomic<unsigned long> ft_atomic_u64;
}
#define _Static_assert static_assert
#else
#include <stdatomic.h>
typedef atomic_ulong ft_atomic_u64;
#endif
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#define FT_PRINTF(fmt, args) __attribute__((format(printf, fmt, args)))
#define FT_ARRAY_LEN(a) (sizeof(a) / sizeof((a)[0]))
#define FT_CONTAINER(ptr, type, member) ((type *)(void *)((char *)(ptr)-offsetof(type, member)))
#define FT_CACHE_LINE 64
_Static_assert(sizeof(ft_atomic_u64) == 8, "64-bit systems only");

static inline size_t ft_min(size_t a, size_t b)
{
    return a < b ? a : b;
}
static inline size_t ft_max(size_t a, size_t b)
{
    return a > b ? a : b;
}
static inline size_t ft_round_up(size_t n, size_t multiple)
{
    return (n + multiple - 1) / multiple * multiple;
}

/* ---- status ---------------------------------------------------------------------------------- */

/* What is lost when a call answers with the status; recovery switches on this, never on single
 * codes. */
enum ft_lost {
    FT_LOST_NOTHING, /* try again or wait */
    FT_LOST_CALL,    /* the caller's mistake; nothing happened */
    FT_LOST_OP,      /* this operation */
    FT_LOST_LINK,    /* this link; the peer may be reachable another way */
    FT_LOST_PEER,    /* this peer */
    FT_LOST_COMM,    /* the communicator */
    FT_LOST_PROCESS, /* this process has to go */
};

/* name, value, what is lost, text */
#define FT_STATUSES(X)                                                                        \
    X(OK, 0, NOTHING, "success")                                                              \
    X(AGAIN, -1, NOTHING, "not now")                                                          \
    X(INVAL, -2, CALL, "invalid argument")                                                    \
    X(USAGE, -3, CALL, "invalid usage")                                                       \
    X(NOTSUP, -4, CALL, "not supported by this build or machine")                             \
    X(TIMEOUT, -5, OP, "timed out")                                                           \
    X(SKIPPED, -6, OP, "skipped because an earlier operation failed")                         \
    X(MISMATCH, -7, COMM, "ranks made different calls")                                       \
    X(PROTOCOL, -8, LINK, "the other side does not speak FTCCL's protocol")                   \
    X(VERSION, -9, LINK, "the other side runs an incompatible version of FTCCL")              \
    X(AUTH, -10, LINK, "the other side does not know this job's secret")                      \
    X(LINK, -11, LINK, "link lost")                                                           \
    X(PEER, -12, PEER, "peer lost")                                                           \
    X(ABORTED, -13, COMM, "communicator aborted")                                             \
    X(NOMEM, -14, PROCESS, "out of memory")                                                   \
    X(NOFILE, -15, PROCESS, "out of file descriptors")                                        \
    X(NOSPACE, -16, PROCESS, "no space left for shared memory")                               \
    X(SYSTEM, -17, PROCESS, "system call failed")                                             \
    X(DEVICE, -18, PROCESS, "device error")                                                   \
    X(INTERNAL, -19, PROCESS, "internal error")                                               \
    X(FORKED, -20, CALL, "called in a child of fork; the communicator belongs to the parent") \
    X(REVOKED, -21, COMM, "communicator revoked")                                             \
    X(FENCED, -22, COMM, "the others agreed to go on without this rank")                      \
    X(NOQUORUM, -23, PROCESS, "too few ranks can be reached to go on")                        \
    X(CORRUPT, -24, OP, "data was corrupted on the way")                                      \
    X(MIXED, -25, CALL, "ranks made different calls of Agree, Shrink and Grow")

enum ft_status {
#define X(name, value, lost, text) FT_##name = (value),
    FT_STATUSES(X)
#undef X
};

const char *ft_status_text(int status);
enum ft_lost ft_status_lost(int status);
/* The status of a failed system call: ENOMEM, EMFILE/ENFILE, ENOSPC, connection errors and the rest
 * told apart. */
int ft_status_of_errno(int err);

/* ---- collectives as data --------------------------------------------------------------------- */

/* Values are NCCL's (ncclDataType_t). */
enum ft_type {
    FT_INT8,
    FT_UINT8,
    FT_INT32,
    FT_UINT32,
    FT_INT64,
    FT_UINT64,
    FT_FLOAT16,
    FT_FLOAT32,
    FT_FLOAT64,
    FT_BFLOAT16,
    FT_FLOAT8E4M3,
    FT_FLOAT8E5M2,
    FT_TYPES
};
size_t ft_type_size(enum ft_type type);
const char *ft_type_name(enum ft_type type);
static inline bool ft_type_is_float(enum ft_type type)
{
    return type >= FT_FLOAT16;
}

/* one element of a float type of at most 32 bits */
float ft_scalar_to_float(enum ft_type type, const void *from);

/* Values are NCCL's (ncclRedOp_t). PreMulSum is FT_SUM with a scale, see struct ft_redop. */
enum ft_red { FT_SUM, FT_PROD, FT_MAX, FT_MIN, FT_AVG, FT_REDS };
const char *ft_red_name(enum ft_red red);

/* How elements combine. Each rank's own input is multiplied by `scale` (in the type's arithmetic:
 * float for the 8- and 16-bit floats) when it is first read; the finished sum is divided by
 * `divisor` (integer average, truncating). */
struct ft_redop {
    /* SUM, PROD, MAX or MIN: an average has become a scale (floats: 1/n, as NCCL) or a divisor */
    enum ft_red red;
    bool scaled;
    /* f64: FLOAT64; f32: other floats; i64/u64: ints */
    union {
        double f64;
        float f32;
        int64_t i64;
        uint64_t u64;
    } scale;
    uint32_t divisor; /* 0 or 1: none */
};

/* Sets scale from one element of the type. */
void ft_redop_read_scale(struct ft_redop *redop, enum ft_type type, const void *scalar);
void ft_redop_average(struct ft_redop *redop, enum ft_type type, int contributors);

enum ft_kind {
    FT_ALLREDUCE,
    FT_BROADCAST,
    FT_REDUCE,
    FT_ALLGATHER,
    FT_REDUCESCATTER,
    FT_ALLTOALL,
    FT_GATHER,
    FT_SCATTER,
    FT_SEND,
    FT_RECV,
    FT_PUT,
    FT_WAIT,
    FT_KINDS
};
const char *ft_kind_name(enum ft_kind kind);
/* Collectives come first: everything before FT_SEND. */
static inline bool ft_kind_is_collective(enum ft_kind kind)
{
    return kind < FT_SEND;
}
static inline bool ft_kind_reduces(enum ft_kind kind)
{
    return kind == FT_ALLREDUCE || kind == FT_REDUCE || kind == FT_REDUCESCATTER;
}

/* A collective without its buffers. `count` is NCCL's argument: for AllGather, ReduceScatter,
 * AlltoAll, Gather and Scatter the elements of one rank's block. `root` is the peer of a send or
 * receive. */
struct ft_coll {
    enum ft_kind kind;
    enum ft_type type;
    enum ft_red red; /* as the user called it (FT_AVG stays FT_AVG); only for kinds that reduce */
    int root;
    size_t count;
};

/* Who takes part: one position of one communicator. Producers (bootstrap, split, later shrink and
 * grow) fill it in, algorithms read it. host[r] numbers the machines from 0 in order of their
 * lowest rank, so that every rank has identical arrays. */
struct ft_view {
    uint64_t epoch;
    int nranks, rank;
    int nhosts;
    const int *host; /* [nranks] */
    /* [nranks] engine id of each rank: the name under which transports know it */
    const uint64_t *peer;
};

#define FT_TRANSPORT_NAME_BYTES 8 /* of a transport's name, on endpoints and in tuning tables */

/* What a plan counts with for a network: a message of n bytes takes latency + n * per byte. */
struct ft_network_costs {
    double latency_ns, ns_per_byte; /* between hosts */
    /* between ranks of one host that have nothing but this network */
    double loopback_latency_ns, loopback_ns_per_byte;
    double loopback_message_ns; /* there: what sending and receiving one takes a core */
};

/* ---- injected environment -------------------------------------------------------------------- */

/* Time and randomness enter through here, so that a test can be a simulation; sockets enter as
 * transports. */
struct ft_env {
    uint64_t (*now_ns)(struct ft_env *);
    void (*random)(struct ft_env *, void *buf, size_t len_bytes);
    void *ctx;
};
struct ft_env *ft_env_real(void); /* CLOCK_MONOTONIC and the kernel's generator */
static inline uint64_t ft_now_ns(struct ft_env *env)
{
    return env->now_ns(env);
}

#include "auth.h"

/* ---- parameters ------------------------------------------------------------------------------ */

#include "params.h" /* the table: enum ft_param_id and its X-macro */

/* The value as set by the environment (FTCCL_X, then NCCL's alias, then the configuration file),
 * else the default. Read once at first use; a value out of range is reported once and the default
 * stands. */
int64_t ft_param_int(enum ft_param_id id);
const char *ft_param_str(enum ft_param_id id); /* "" when unset */
void ft_params_reload(void);                   /* for tests that change the environment */
/* in this thread: whoever asks for a value now would wait for itself */
bool ft_params_loading(void);
/* Another default for this process, from now on. */
void ft_param_set_default(enum ft_param_id id, int64_t value);
void ft_param_set_default_text(enum ft_param_id id, const char *text); /* a constant */
/* the table: name, value, default, range, alias, help */
void ft_params_print(FILE *out);

/* ---- log ------------------------------------------------------------------------------------- */

enum ft_log_level { FT_LOG_NONE, FT_LOG_VERSION, FT_LOG_WARN, FT_LOG_INFO, FT_LOG_TRACE };
/* Written to stderr or the file of FTCCL_DEBUG_FILE (NCCL's %h and %p patterns), never to stdout.
 * The subsystem is a short word: "init", "net", "shm", ..., "coll" for single calls;
 * FTCCL_DEBUG_SUBSYS chooses among them. `rank` is -1 where none is known. */
void ft_log_write(enum ft_log_level level, const char *subsys, int rank, const char *fmt, ...)
    FT_PRINTF(4, 5);
bool ft_log_on(enum ft_log_level level);
bool ft_log_shows(enum ft_log_level level, const char *subsys); /* of that subsystem too */
void ft_log_reset(void); /* reads level and file again at next use */
/* from now on: lines as NCCL writes them, and none unless a level was asked for */
void ft_log_like_nccl(void);
#define FT_LOG(level, subsys, rank, ...)                             \
    do {                                                             \
        if (ft_log_on(FT_LOG_##level))                               \
            ft_log_write(FT_LOG_##level, subsys, rank, __VA_ARGS__); \
    } while (0)

/* The sentence that ftcclGetLastError(NULL) gives: one per thread, set by whoever detects. Returns
 * `status`. */
int ft_fail(int status, const char *fmt, ...) FT_PRINTF(2, 3);
#define FT_FAIL_BYTES 1024 /* of a sentence with its end */
const char *ft_fail_text(void);
void ft_fail_clear(void);

/* ---- fork safety and descriptors ------------------------------------------------------------- */

/* Descriptors that the library owns. In a child of fork all of them are closed; mappings are never
 * inherited because ft_map_shared() marks them MADV_DONTFORK. */
/* remembers fd (>= 0), sets close-on-exec; returns fd. Never fails: -1 passes through */
int ft_fd_own(int fd);
void ft_fd_close(int *fd); /* closes and forgets; *fd becomes -1; no-op on -1 */
int ft_fd_count(void);     /* how many are owned now; for leak tests */
bool ft_forked(void);      /* true in a child of a process that had used the library */
/* random; of this process alone, not of its children. Pids are not: each container counts its
 * own */
uint64_t ft_process_id(void);
/* this process uses the library; called before anything is made, and before a lock is taken that a
 * child would miss */
void ft_fork_guard(void);

/* posix_fallocate() that signals do not keep from ending. An errno, or 0. */
int ft_allocate(int fd, uint64_t at, size_t len_bytes);
/* A shared file without a name (memfd), of which the first allocated_bytes are allocated up front
 * so that a lack of memory gives FT_NOSPACE, not SIGBUS. What lies beyond is for ft_populate(),
 * before it is touched, where ft_can_populate(). */
int ft_memfd(const char *name, size_t len_bytes, size_t allocated_bytes, int *fd_out);
int ft_map_shared(int fd, size_t len_bytes, void **addr_out);
void ft_unmap(void *addr, size_t len_bytes);
/* Is a received descriptor such a file of this length: sealed, so that it cannot be cut off under a
 * mapping, and really there, its first allocated_bytes at least? FT_PROTOCOL or FT_NOSPACE with a
 * sentence. */
int ft_memfd_check(int fd, size_t len_bytes, size_t allocated_bytes);
bool ft_can_populate(void); /* Linux 5.14 */
/* the pages of a mapping around it are there when it returns FT_OK; else FT_NOSPACE */
int ft_populate(void *addr, size_t len_bytes);
/* The whole pages within are given back and read as zeros from then on: those of a shared file for
 * all who map it, of private memory for this process. False: the kernel does not, for example
 * because the memory is locked. */
bool ft_depopulate(void *addr, size_t len_bytes, bool shared);

/* Of a buffer whose owner gives back what it does not need: bytes that were used since the last
 * trim, and that may have pages. */
struct ft_pages {
    uint32_t used, present;
};
static inline void ft_pages_use(struct ft_pages *pages, size_t len_bytes)
{
    if (pages->used < len_bytes)
        pages->used = (uint32_t)len_bytes;
}
/* Nobody reads or writes the buffer: what was not used since the trim before goes. */
void ft_pages_trim(struct ft_pages *, void *buffer, size_t len_bytes, bool shared);

/* ---- memory that others of this host read where it lies (arena.c) ---------------------------- */

#define FT_ARENA_LEAST ((size_t)64 << 10) /* shorter allocations do not come from it */
/* Zeroed memory, all of it there. FT_NOTSUP: too short or no arena here; FT_NOMEM. */
int ft_arena_alloc(size_t len_bytes, void **out);
bool ft_arena_free(void *ptr); /* false: not from the arena */
/* Is the range inside the arena, and where? Any thread, no lock. */
bool ft_arena_has(const void *ptr, size_t len_bytes, uint64_t *offset);
/* The arena's file, for others to read, and its length; it stays ours. -1: there is none. */
int ft_arena_file(size_t *len_bytes);
const void *ft_arena_base(void); /* NULL: there is none */
/* Another process's arena, from a descriptor that came from outside and stays the caller's:
 * checked, sealed, read-only. ft_unmap() it. Reading a page that its owner has never allocated
 * makes one, and raises SIGBUS if there is no memory for it. */
int ft_arena_map(int fd, size_t len_bytes, const void **out);

/* ---- memory of the host that a device reaches (pinned.c) ------------------------------------- */

/* An engine's own, or, in its list `met`, another engine's as this one maps it. Or memory of a
 * device. */
struct ft_pinned {
    void *at;
    size_t len_bytes;
    uint64_t token;
    int fd;         /* its own; -1 */
    bool shown;     /* every device of the process reaches it at this address */
    bool refused;   /* met: the device would not have it */
    int keepers;    /* met: links and communicators */
    bool on_device; /* no processor touches it */
    /* memory of its owner's device, as this side's device reaches it: see ft_pinned_devmem() */
    struct ft_pinned *devmem;
    struct ft_pinned *next, *met;
    struct ft_extent *extents; /* allocated, by place */
};
/* Shared memory, all of it there, that no device reaches yet: who made it shows it to its device
 * and says so. FT_NOMEM, FT_NOSPACE. */
int ft_pinned_make(size_t len_bytes, struct ft_pinned **out);
int ft_pinned_show(struct ft_pinned *);  /* FT_NOSPACE: too many have */
void ft_pinned_hide(struct ft_pinned *); /* no device reaches it any more; idempotent */
/* hidden; nothing of it is allocated, and for an own one nothing is met any more */
void ft_pinned_close(struct ft_pinned *);
/* Where others of this host find an own one, as bytes that may travel. */
struct ft_pinned_place {
    uint32_t pid, fd;
    uint64_t len_bytes, token;
};
void ft_pinned_locate(const struct ft_pinned *own, struct ft_pinned_place *out);
/* Another engine's, kept until part: from a descriptor, or for -1 through /proc: FT_NOTSUP if it
 * cannot be seen from here. Shown later, by who may call the driver. */
int ft_pinned_meet(struct ft_pinned *own, int fd, const struct ft_pinned_place *,
                   struct ft_pinned **out);
void ft_pinned_part(struct ft_pinned *other);               /* NULL is allowed */
struct ft_pinned *ft_pinned_unshown(struct ft_pinned *own); /* the next of those met; NULL: none */
/* The next that nobody keeps, or of all, is the caller's to hide and to close; NULL: none. */
struct ft_pinned *ft_pinned_take_unkept(struct ft_pinned *own, bool all);
/* page-aligned, not zeroed; NULL: there is not so much, or none at all */
void *ft_pinned_alloc(struct ft_pinned *, size_t len_bytes);
void ft_pinned_free(struct ft_pinned *, void *ptr); /* NULL is allowed */
/* Is it in anybody's? Any thread, no lock; of memory that is in use. */
enum ft_pinned_kind { FT_PINNED_NONE, FT_PINNED_HOST, FT_PINNED_DEVICE };
enum ft_pinned_kind ft_pinned_has(const void *ptr, size_t len_bytes);
/* So many more passes (or fewer, if negative) that nobody waits for may still read or write memory
 * that was freed: until there are none nothing is allocated. */
void ft_pinned_late(int more);

/* Memory of a device that goes along with an own one: messages lie there that no processor has to
 * see. Who meets the pinned memory finds the offer in it. The handle is for other processes'
 * drivers; NULL: they cannot reach it. */
#define FT_PINNED_HANDLE_BYTES 64
struct ft_pinned_offered {
    uint64_t len_bytes;
    uint32_t has_handle, opened;
    unsigned char handle[FT_PINNED_HANDLE_BYTES];
};
/* of a device; NULL: no memory for it */
struct ft_pinned *ft_pinned_over(void *at, size_t len_bytes);
void ft_pinned_offer(struct ft_pinned *own, struct ft_pinned *devmem, const void *handle);
void ft_pinned_set_devmem(struct ft_pinned *, struct ft_pinned *devmem);
/* NULL: it is not reached, or there is none */
static inline struct ft_pinned *ft_pinned_devmem(const struct ft_pinned *pinned)
{
    /* pairs with ft_pinned_set_devmem() */
    return pinned ? __atomic_load_n(&pinned->devmem, __ATOMIC_ACQUIRE) : NULL;
}
/* no bytes: nothing, or nothing that can be */
void ft_pinned_look(const struct ft_pinned *met, struct ft_pinned_offered *out);
/* Who opens the handle says so before; has anybody ever? */
void ft_pinned_opens(const struct ft_pinned *met);
bool ft_pinned_was_opened(const struct ft_pinned *own);
/* before the pinned memory: what an owner writes for all who have met it, */
#define FT_PINNED_PAGE_BYTES 65536
#define FT_PINNED_READINESS_BYTES \
    (FT_PINNED_PAGE_BYTES - 256) /* and of that what readiness.c has */
void *ft_pinned_readiness_area(const struct ft_pinned *);

/* ---- where the buffers of running operations lie (readiness.c)
 * ----------------------------------- */

/* An engine's, in its pinned memory, one for each context that it knows, from bind to unbind. With
 * the the caller holds the engine. NULL: no room, and others are told nothing. */
struct ft_readiness;
struct ft_readiness *ft_readiness_open(const struct ft_pinned *own, uint64_t ctx);
struct ft_readiness *ft_readiness_of(const struct ft_pinned *own, uint64_t ctx);
void ft_readiness_close(const struct ft_pinned *own, uint64_t ctx);
/* This side's device reaches messages that the rank has in its device's memory. ready: and no
 * others'. */
void ft_readiness_reach(struct ft_readiness *, int rank);
void ft_readiness_ready(struct ft_readiness *);
/* Collectives up to this number, or the receive of that number from a rank, have been reached; are
 * their buffers on the device? */
void ft_readiness_say(struct ft_readiness *, uint64_t seq, bool on_device);
void ft_readiness_say_receive(struct ft_readiness *, int from, uint64_t seq, bool on_device);
/* Does the owner of met memory take messages of this rank for an operation on its device? FT_OK.
 * FT_NOTSUP: no. FT_AGAIN: it has not come to the operation, and will say. What it wrote is taken
 * for no more than a hint. */
int ft_readiness_ask(const struct ft_pinned *other, uint64_t ctx, int self, bool receive,
                     uint64_t seq);

/* ---- life and death of processes (liveness.c)
 * ---------------------------------------------------- */

/* This process's liveness page, counted; *fd stays ours and is valid until the matching close. It
 * says nothing any more when the last user has closed it. */
int ft_liveness_open(int *fd);
void ft_liveness_close(void);
/* Another process's page, from its descriptor, which the caller keeps. ended: the process has ended
 * (or runs another program now), however that happened: proof of death, within a fraction of a
 * millisecond. False proves nothing. */
struct ft_liveness;
int ft_liveness_map(int fd, struct ft_liveness **out);
/* Where processes of this host find a page, as bytes that may travel; the token tells it from
 * others that have come to the same place since. find: FT_NOTSUP if it cannot be seen from here:
 * another user's, in another container, this process's own, or gone. */
struct ft_liveness_place {
    uint32_t pid, fd;
    uint64_t token;
};
void ft_liveness_locate(struct ft_liveness_place *out); /* of this process's page, which is open */
int ft_liveness_find(const struct ft_liveness_place *, struct ft_liveness **out);
bool ft_liveness_ended(const struct ft_liveness *);
/* the process lives, and uses the library: proof of life until now */
bool ft_liveness_held(const struct ft_liveness *);
void ft_liveness_unmap(struct ft_liveness *); /* NULL is allowed */

/* ---- small things ---------------------------------------------------------------------------- */

/* keyed by seed, not cryptographic */
uint64_t ft_hash64(const void *data, size_t len_bytes, uint64_t seed);
/* CRC32C of what `crc` is the sum of (0: nothing), then data. The second always goes by table. */
uint32_t ft_crc32c(uint32_t crc, const void *data, size_t len_bytes);
uint32_t ft_crc32c_table(uint32_t crc, const void *data, size_t len_bytes);
/* boot id + network namespace, or FTCCL_HOSTID hashed: equal means shared memory works */
uint64_t ft_host_id(void);
int ft_cores(void); /* processors this process may run on */
static inline void ft_cpu_relax(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ __volatile__("yield");
#endif
}

#endif

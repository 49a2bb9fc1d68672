/*
 * base: status, parameters, log, time, fork safety and the plain types that all other folders
 * share. It includes nothing from the rest of the library. Every other folder may include it.
 */
#ifndef FT_BASE_H
#define FT_BASE_H

/* tests include this inside extern "C", and gcc's <stdatomic.h> is not valid C++ */
#ifdef __cplusplus
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
#include <string.h>

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
/* memcpy for payloads that are mostly one number. */
static inline void ft_copy_few(void *to, const void *from, size_t len_bytes)
{
    if (len_bytes == 8)
        memcpy(to, from, 8);
    else if (len_bytes == 4)
        memcpy(to, from, 4);
    else
        memcpy(to, from, len_bytes);
}

/* ---- status ---------------------------------------------------------------------------------- */

/* What is lost when a call returns this status. Recovery code switches on this group, never on
 * single statuses. */
enum ft_lost {
    FT_LOST_NOTHING, /* nothing is lost: try again or wait */
    FT_LOST_CALL,    /* the call: the caller made a mistake, and the call had no effect */
    FT_LOST_OP,      /* the operation */
    FT_LOST_LINK,    /* the link; the peer may be reachable over another one */
    FT_LOST_PEER,    /* the peer */
    FT_LOST_COMM,    /* the communicator */
    FT_LOST_PROCESS, /* the process: it cannot go on */
};

/* X(name, value, what is lost, text) */
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
/* Maps errno to a status: FT_NOMEM, FT_NOFILE, FT_NOSPACE, FT_LINK, FT_TIMEOUT, FT_AGAIN, or
 * FT_SYSTEM for the rest. */
int ft_status_of_errno(int err);

/* ---- collectives as data --------------------------------------------------------------------- */

/* The values equal those of NCCL's ncclDataType_t. */
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

/* Converts one element of a float type of at most 32 bits. Returns 0 for any other type. */
float ft_scalar_to_float(enum ft_type type, const void *from);

/* The values equal those of NCCL's ncclRedOp_t. PreMulSum is FT_SUM with a scale: see struct
 * ft_redop. */
enum ft_red { FT_SUM, FT_PROD, FT_MAX, FT_MIN, FT_AVG, FT_REDS };
const char *ft_red_name(enum ft_red red);

/* How elements are reduced. Each rank multiplies its own input by `scale` when it reads the input
 * for the first time. The product is computed in the element type, or in float for 8-bit and 16-bit
 * floats. The finished sum is divided by `divisor` (integer average, which truncates). */
struct ft_redop {
    /* SUM, PROD, MAX or MIN. An average is stored as SUM with a scale (floats: 1/n, as in NCCL) or
     * with a divisor (integers). */
    enum ft_red red;
    bool scaled;
    /* f64 is for FLOAT64, f32 for the other floats, i64 and u64 for integers */
    union {
        double f64;
        float f32;
        int64_t i64;
        uint64_t u64;
    } scale;
    uint32_t divisor; /* 0 or 1: no division */
};

/* Sets the scale from one element of the type. */
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

/* Calls that wait until the ranks have agreed. 0: none. */
enum ft_agree_call { FT_CALLS_AGREE = 1, FT_CALLS_SHRINK, FT_CALLS_GROW, FT_AGREE_CALLS };
const char *ft_kind_name(enum ft_kind kind);
/* All kinds before FT_SEND are collectives. */
static inline bool ft_kind_is_collective(enum ft_kind kind)
{
    return kind < FT_SEND;
}
static inline bool ft_kind_reduces(enum ft_kind kind)
{
    return kind == FT_ALLREDUCE || kind == FT_REDUCE || kind == FT_REDUCESCATTER;
}

/* A collective without its buffers. `count` is the count argument of NCCL's call. For AllGather,
 * ReduceScatter, AlltoAll, Gather and Scatter it is the number of elements in one rank's block.
 * `root` is the root rank, or the peer of a send or receive. */
struct ft_coll {
    enum ft_kind kind;
    enum ft_type type;
    /* the operator that the user passed (FT_AVG stays FT_AVG); only for kinds that reduce */
    enum ft_red red;
    int root;
    size_t count;
};

/* The members of one communicator, seen from one rank. Bootstrap, split, shrink and grow fill it
 * in; algorithms read it. host[r] is the machine of rank r. Machines are numbered from 0 in the
 * order of their lowest rank, so every rank has the same arrays. */
struct ft_view {
    uint64_t epoch;
    int nranks, rank;
    int nhosts;
    const int *host; /* [nranks] */
    /* [nranks] The engine id of each rank. Transports identify a peer by its engine id. */
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

/* How connections to a host may go. Where a network has several equal ways, it chooses one by a
 * hash of a connection's addresses and ports. path/ finds out which source port goes which way, and
 * transports bind to such ports. */
#define FT_PATH_UNKNOWN (-1)
struct ft_path {
    uint16_t source_port;
    int16_t class_index; /* ports of one class go the same way; FT_PATH_UNKNOWN: any way */
};

/* ---- injected environment -------------------------------------------------------------------- */

/* Source of time and random bytes. A test passes its own, so that it can simulate a whole run.
 * Sockets are replaced in the same way, by a transport. */
struct ft_env {
    uint64_t (*now_ns)(struct ft_env *);
    void (*random)(struct ft_env *, void *buf, size_t len_bytes);
    void *ctx;
};
struct ft_env *ft_env_real(void); /* uses CLOCK_MONOTONIC and getrandom() */
static inline uint64_t ft_now_ns(struct ft_env *env)
{
    return env->now_ns(env);
}

#include "auth.h"
#include "measures.h"
#include "sig.h"

/* ---- parameters ------------------------------------------------------------------------------ */

#include "params.h" /* the table: enum ft_param_id and its X-macro */

/* The value of a parameter. The order is: the variable FTCCL_X, NCCL's alias, the configuration
 * file, the default. Values are read once, at the first use. A value out of range gives one
 * warning, and the default is used. */
int64_t ft_param_int(enum ft_param_id id);
const char *ft_param_str(enum ft_param_id id); /* returns "" if unset */
/* reads all values again; for tests that change the environment */
void ft_params_reload(void);
/* True while this thread reads the parameters. It must not ask for a value now: it would wait for
 * itself. */
bool ft_params_loading(void);
/* Changes the default for this process from now on. */
void ft_param_set_default(enum ft_param_id id, int64_t value);
/* the text must live as long as the process */
void ft_param_set_default_text(enum ft_param_id id, const char *text);
/* Prints the table: name, value, default, range, alias and help of each parameter. */
void ft_params_print(FILE *out);

/* ---- log ------------------------------------------------------------------------------------- */

enum ft_log_level { FT_LOG_NONE, FT_LOG_VERSION, FT_LOG_WARN, FT_LOG_INFO, FT_LOG_TRACE };
/* Writes one line to stderr or to the file FTCCL_DEBUG_FILE (NCCL's %h and %p patterns work), never
 * to stdout. `subsys` is a short word: "init", "net", "shm", ...; "coll" is for lines about single
 * calls. FTCCL_DEBUG_SUBSYS selects subsystems. `rank` is -1 if it is unknown. */
void ft_log_write(enum ft_log_level level, const char *subsys, int rank, const char *fmt, ...)
    FT_PRINTF(4, 5);
bool ft_log_on(enum ft_log_level level);
bool ft_log_shows(enum ft_log_level level, const char *subsys); /* also checks the subsystem */
void ft_log_reset(void); /* the level and the file are read again at the next use */
/* From now on, lines have NCCL's form. Nothing is logged unless the user sets a level. */
void ft_log_like_nccl(void);
#define FT_LOG(level, subsys, rank, ...)                             \
    do {                                                             \
        if (ft_log_on(FT_LOG_##level))                               \
            ft_log_write(FT_LOG_##level, subsys, rank, __VA_ARGS__); \
    } while (0)

/* Stores the sentence that ftcclGetLastError(NULL) returns. There is one per thread. The function
 * that detects an error sets it. Returns `status`. */
int ft_fail(int status, const char *fmt, ...) FT_PRINTF(2, 3);
#define FT_FAIL_BYTES 1024 /* size of a sentence with its terminating NUL */
const char *ft_fail_text(void);
void ft_fail_clear(void);

/* ---- fork safety and descriptors ------------------------------------------------------------- */

/* The descriptors that the library owns. A child of fork closes all of them. A child does not
 * inherit mappings either: ft_map_shared() marks them MADV_DONTFORK. */
/* Registers fd as ours, sets close-on-exec and returns fd. Never fails. Returns a negative fd
 * unchanged. */
int ft_fd_own(int fd);
void ft_fd_close(int *fd); /* closes and unregisters; sets *fd to -1; no-op on -1 */
int ft_fd_count(void);     /* number of registered descriptors; for leak tests */
bool ft_forked(void);      /* true in a child of fork if the parent had used the library */
/* A random number that identifies this process; a child of fork gets another one. A pid would not
 * do, because each container numbers its processes separately. */
uint64_t ft_process_id(void);
/* Records that this process uses the library. Call it before the library creates anything, and
 * before it takes a lock that a child of fork would find locked. */
void ft_fork_guard(void);

/* posix_fallocate() that completes even if signals arrive. Returns 0 or an errno. */
int ft_allocate(int fd, uint64_t at, size_t len_bytes);
/* Creates a shared file without a name (memfd). The first allocated_bytes are allocated now, so
 * that a lack of memory gives FT_NOSPACE and not SIGBUS later. Call ft_populate() on the rest
 * before it is touched, if ft_can_populate(). */
int ft_memfd(const char *name, size_t len_bytes, size_t allocated_bytes, int *fd_out);
int ft_map_shared(int fd, size_t len_bytes, void **addr_out);
void ft_unmap(void *addr, size_t len_bytes);
/* Checks a descriptor that a peer sent. It must be a shared file of this length and sealed, so that
 * nobody can truncate it while it is mapped. Its first allocated_bytes are allocated. Returns
 * FT_PROTOCOL or FT_NOSPACE with a sentence if the check fails. */
int ft_memfd_check(int fd, size_t len_bytes, size_t allocated_bytes);
bool ft_can_populate(void); /* needs Linux 5.14 */
/* Allocates all pages of a mapping that overlap the range. Returns FT_OK or FT_NOSPACE. */
int ft_populate(void *addr, size_t len_bytes);
/* Gives the whole pages within the range back to the kernel; they then read as zeros. If `shared`,
 * they are the pages of a shared file, and all processes that map it lose them; otherwise they are
 * private memory of this process. Returns false if the kernel refuses, for example because the
 * memory is locked. */
bool ft_depopulate(void *addr, size_t len_bytes, bool shared);

/* Use of a buffer whose owner gives unused pages back. `used`: bytes used since the last trim.
 * `present`: bytes that may have pages. */
struct ft_pages {
    uint32_t used, present;
};
static inline void ft_pages_use(struct ft_pages *pages, size_t len_bytes)
{
    if (pages->used < len_bytes)
        pages->used = (uint32_t)len_bytes;
}
/* Gives back the pages that were not used since the last trim. The caller makes sure that nobody
 * reads or writes the buffer meanwhile. */
void ft_pages_trim(struct ft_pages *, void *buffer, size_t len_bytes, bool shared);

/* ---- memory that other processes of this host read in place (arena.c) ------------------------ */

#define FT_ARENA_LEAST ((size_t)64 << 10) /* shorter allocations do not use the arena */
/* Allocates zeroed memory with all its pages. Returns FT_NOTSUP if the length is below
 * FT_ARENA_LEAST or there is no arena, and FT_NOMEM if there is no memory. */
int ft_arena_alloc(size_t len_bytes, void **out);
bool ft_arena_free(void *ptr); /* returns false if ptr is not from the arena */
/* Returns true if the range lies in the arena, and sets its offset. Any thread may call this; it
 * takes no lock. */
bool ft_arena_has(const void *ptr, size_t len_bytes, uint64_t *offset);
/* A descriptor of the arena for other processes, which can only read through it, and the arena's
 * length. The library keeps ownership. Returns -1 if there is no arena. */
int ft_arena_file(size_t *len_bytes);
const void *ft_arena_base(void); /* NULL if there is no arena */
/* Maps the arena of another process read-only. The descriptor comes from a peer, so this function
 * checks it; the caller keeps it. Unmap with ft_unmap(). Reading a page that the owner has never
 * allocated creates the page, and raises SIGBUS if there is no memory for it. */
int ft_arena_map(int fd, size_t len_bytes, const void **out);

/* ---- host memory that a device can access (pinned.c) ----------------------------------------- */

/* A chunk of pinned memory. It is of one of three kinds: an engine's own chunk; another engine's
 * chunk that this engine has mapped ("met"), in the list `met` of its own chunk; or memory of a
 * device. */
struct ft_pinned {
    void *at;
    size_t len_bytes;
    uint64_t token;
    int fd;         /* only of an own chunk, else -1 */
    bool shown;     /* every device of this process can access it at this address */
    bool refused;   /* met only: the device refused to register it */
    int keepers;    /* met only: number of links and communicators that use it */
    bool on_device; /* device memory: the CPU must not access it */
    /* Memory of the owner's device, at the address by which this side's device accesses it. Use
     * ft_pinned_devmem(). */
    struct ft_pinned *devmem;
    struct ft_pinned *next, *met;
    struct ft_extent *extents; /* allocated extents, ordered by address */
};
/* Creates shared memory with all its pages. No device can access it yet: the caller registers it
 * with its device and then calls ft_pinned_show(). Returns FT_NOMEM or FT_NOSPACE on failure. */
int ft_pinned_make(size_t len_bytes, struct ft_pinned **out);
int ft_pinned_show(struct ft_pinned *);  /* FT_NOSPACE: the table of shown chunks is full */
void ft_pinned_hide(struct ft_pinned *); /* no device can access it any more; idempotent */
/* Frees a chunk. It must be hidden and have no allocated extent. An own chunk must have no met
 * chunk left. */
void ft_pinned_close(struct ft_pinned *);
/* The place of an own chunk, in a form that can be sent to other processes of this host. */
struct ft_pinned_place {
    uint32_t pid, fd;
    uint64_t len_bytes, token;
};
void ft_pinned_locate(const struct ft_pinned *own, struct ft_pinned_place *out);
/* Maps another engine's chunk, or finds the existing mapping, and keeps it until
 * ft_pinned_release(). It uses the descriptor `fd`, or opens the chunk through /proc if fd is -1.
 * Returns FT_NOTSUP if it cannot be seen from here. A thread that may call the driver shows it to
 * the device later. */
int ft_pinned_map(struct ft_pinned *own, int fd, const struct ft_pinned_place *,
                  struct ft_pinned **out);
void ft_pinned_release(struct ft_pinned *other); /* NULL is allowed */
/* a met chunk that is neither shown nor refused; NULL if none */
struct ft_pinned *ft_pinned_unshown(struct ft_pinned *own);
/* Removes one met chunk that nobody keeps (or any one, if `all`) and returns it. The caller hides
 * and closes it. Returns NULL if there is none. */
struct ft_pinned *ft_pinned_take_unkept(struct ft_pinned *own, bool all);
/* Allocates page-aligned memory that is not zeroed. Returns NULL if there is no room, or while
 * ft_pinned_add_late_passes() forbids it. */
void *ft_pinned_alloc(struct ft_pinned *, size_t len_bytes);
void ft_pinned_free(struct ft_pinned *, void *ptr); /* NULL is allowed */
/* Tells whether the range lies in a shown chunk of this process, and of which kind. Any thread may
 * call this; it takes no lock. The memory must be in use. */
enum ft_pinned_kind { FT_PINNED_NONE, FT_PINNED_HOST, FT_PINNED_DEVICE };
enum ft_pinned_kind ft_pinned_has(const void *ptr, size_t len_bytes);
/* Adds `more`, which may be negative, to the number of abandoned passes of devices that may still
 * read or write freed memory. ft_pinned_alloc() fails while that number is not 0. */
void ft_pinned_add_late_passes(int more);

/* The offer: device memory that an engine provides together with its own pinned chunk, for messages
 * that no CPU has to read. An engine that maps the chunk finds the offer in it. The handle lets the
 * drivers of other processes open the memory; NULL means that they cannot. */
#define FT_PINNED_HANDLE_BYTES 64
struct ft_pinned_offered {
    uint64_t len_bytes;
    uint32_t has_handle, opened;
    unsigned char handle[FT_PINNED_HANDLE_BYTES];
};
/* Describes a device's memory. Returns NULL if memory runs out. */
struct ft_pinned *ft_pinned_of_devmem(void *at, size_t len_bytes);
void ft_pinned_offer(struct ft_pinned *own, struct ft_pinned *devmem, const void *handle);
void ft_pinned_set_devmem(struct ft_pinned *, struct ft_pinned *devmem);
/* NULL: there is none, or this side's device cannot access it */
static inline struct ft_pinned *ft_pinned_devmem(const struct ft_pinned *pinned)
{
    /* pairs with ft_pinned_set_devmem() */
    return pinned ? __atomic_load_n(&pinned->devmem, __ATOMIC_ACQUIRE) : NULL;
}
/* Reads the offer of a met chunk. len_bytes is 0 if there is no offer, or if it is invalid. */
void ft_pinned_read_offer(const struct ft_pinned *met, struct ft_pinned_offered *out);
/* The opener of a handle calls ft_pinned_mark_opened() first. ft_pinned_was_opened() tells the
 * owner whether anybody did. */
void ft_pinned_mark_opened(const struct ft_pinned *met);
bool ft_pinned_was_opened(const struct ft_pinned *own);
/* The page before the pinned memory. Its owner writes it, and everyone who mapped the chunk reads
 * it. */
#define FT_PINNED_PAGE_BYTES 65536
#define FT_PINNED_READINESS_BYTES \
    (FT_PINNED_PAGE_BYTES - 256) /* the part of that page that readiness.c uses */
void *ft_pinned_readiness_area(const struct ft_pinned *);

/* ---- where the buffers of running operations lie (readiness.c) ------------------------------- */

/* The readiness tables of an engine lie in its pinned memory: one per context, from
 * ft_readiness_open() to ft_readiness_close(). The caller holds the engine. ft_readiness_open()
 * returns NULL if there is no room; then the peers learn nothing and send through host memory. */
struct ft_readiness;
struct ft_readiness *ft_readiness_open(const struct ft_pinned *own, uint64_t ctx);
struct ft_readiness *ft_readiness_find(const struct ft_pinned *own, uint64_t ctx);
void ft_readiness_close(const struct ft_pinned *own, uint64_t ctx);
/* ft_readiness_add_rank(): this side's device can access the messages that `rank` keeps in its
 * device's memory. ft_readiness_set_complete(): the list of such ranks is complete. */
void ft_readiness_add_rank(struct ft_readiness *, int rank);
void ft_readiness_set_complete(struct ft_readiness *);
/* This engine has reached all collectives up to number `seq`, or the receive number `seq` from rank
 * `from`. on_device: the operation's buffers are in device memory. */
void ft_readiness_publish(struct ft_readiness *, uint64_t seq, bool on_device);
void ft_readiness_publish_receive(struct ft_readiness *, int from, uint64_t seq, bool on_device);
/* Asks whether the owner of a met chunk accepts messages of this rank in device memory, for the
 * operation `seq`. Returns FT_OK if yes, FT_NOTSUP if no, and FT_AGAIN if the owner has not reached
 * the operation yet. The answer is only a hint: a peer may have written anything. */
int ft_readiness_query(const struct ft_pinned *other, uint64_t ctx, int self, bool receive,
                       uint64_t seq);

/* ---- liveness of processes (liveness.c) ------------------------------------------------------ */

/* Opens this process's liveness page and counts its users. The library keeps *fd, which is valid
 * until the matching close. After the last close the page says nothing about the process. */
int ft_liveness_open(int *fd);
void ft_liveness_close(void);
/* ft_liveness_map() maps another process's page; the caller keeps the descriptor.
 * ft_liveness_ended() returns true if that process has ended, for whatever reason, or has executed
 * another program. It is proof of death, and is true within a fraction of a millisecond. False
 * proves nothing. */
struct ft_liveness;
int ft_liveness_map(int fd, struct ft_liveness **out);
/* The place of a liveness page, in a form that can be sent to other processes of this host. The
 * token tells the page from another one that took the same place later. ft_liveness_find() returns
 * FT_NOTSUP if the page cannot be seen from here: it belongs to another user or another container,
 * is this process's own, or is gone. */
struct ft_liveness_place {
    uint32_t pid, fd;
    uint64_t token;
};
void ft_liveness_locate(struct ft_liveness_place *out); /* the page must be open */
int ft_liveness_find(const struct ft_liveness_place *, struct ft_liveness **out);
bool ft_liveness_ended(const struct ft_liveness *);
/* The process is alive and uses the library: proof of life at this moment. */
bool ft_liveness_alive(const struct ft_liveness *);
void ft_liveness_unmap(struct ft_liveness *); /* NULL is allowed */
/* What ended a communicator, as its process knew it. */
struct ft_cause {
    uint64_t ctx;
    int32_t status;
    int32_t origin;  /* rank with which it began, -1 unknown */
    int32_t noticed; /* rank that noticed it, -1 unknown */
    char text[228];
};
/* Written on this process's page, if it has one, where others of this host read it, also after its
 * end. Of a communicator the first counts; those of the last FT_LIVENESS_CAUSES are kept. */
#define FT_LIVENESS_CAUSES 15
void ft_liveness_write(const struct ft_cause *cause);
/* What the page's process wrote of a communicator; false: nothing. Bytes from outside, but for the
 * text, which ends and can be printed. */
bool ft_liveness_read(const struct ft_liveness *, uint64_t ctx, struct ft_cause *out);
/* A sentence that came from outside: ended, and without control characters. */
void ft_text_clean(char *text, size_t len_bytes);

/* ---- text that grows, and JSON (json.c) ------------------------------------------------------ */

/* Starts as {.most = limit}. Once memory or the limit has run out, it takes no more and `broken` is
 * true; `at` has what was written before. */
struct ft_text {
    char *at; /* ends with a NUL; NULL: nothing was written */
    size_t len, room, most;
    bool broken;
};
void ft_text_add(struct ft_text *text, const char *fmt, ...) FT_PRINTF(2, 3);
void ft_text_add_bytes(struct ft_text *text, const void *bytes, size_t len_bytes);
void ft_text_free(struct ft_text *text);
/* Elements of an object, or of an array if the key is NULL. Commas come by themselves. Text is
 * written in ASCII; bytes that are none are taken for Latin-1, so that any bytes give valid JSON.
 * bracket: '{' and '}', or '[' and ']'. */
void ft_json_begin(struct ft_text *text, const char *key, char bracket);
void ft_json_end(struct ft_text *text, char bracket);
void ft_json_string(struct ft_text *text, const char *key, const char *value);
void ft_json_int(struct ft_text *text, const char *key, int64_t value);
void ft_json_real(struct ft_text *text, const char *key, double value);
void ft_json_bool(struct ft_text *text, const char *key, bool value);
void ft_json_null(struct ft_text *text, const char *key);

/* ---- small things ---------------------------------------------------------------------------- */

/* A hash keyed by seed. Not cryptographic. */
uint64_t ft_hash64(const void *data, size_t len_bytes, uint64_t seed);
/* CRC32C of the data appended to data whose CRC32C is `crc` (0: no data before). ft_crc32c_table()
 * always uses the table and never the processor's instruction. */
uint32_t ft_crc32c(uint32_t crc, const void *data, size_t len_bytes);
uint32_t ft_crc32c_table(uint32_t crc, const void *data, size_t len_bytes);
/* Identity of this machine: a hash of boot id and network namespace, or of FTCCL_HOSTID. Processes
 * with equal ids can share memory. */
uint64_t ft_host_id(void);
int ft_cores(void); /* number of CPUs that this process may use */
static inline void ft_cpu_relax(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ __volatile__("yield");
#endif
}

#endif

/*
 * api: argument checks, handles and groups; nothing else. Handles live in slabs that are never
 * freed, so that a freed or foreign handle is detected and not dereferenced.
 */
#ifndef FT_API_H
#define FT_API_H

#include "core/core.h"
#include "ftccl.h"

#define FT_EXPORT __attribute__((visibility("default")))

/* ---- results (error.c) ----------------------------------------------------------------------- */

ftcclResult_t ft_result(int status); /* the public code of a status */
/* The same, and stores the thread's sentence as the last error of comm (comm may be NULL). */
ftcclResult_t ft_return(ftcclComm_t comm, int status);
int ft_enter_library(void); /* FT_OK, or FT_FORKED in a child of fork */

/* ---- handles (handle.c) ---------------------------------------------------------------------- */

enum ft_handle_state { FT_HANDLE_INIT, FT_HANDLE_READY, FT_HANDLE_DEAD, FT_HANDLE_FINALIZED };

struct ft_premul {
    bool live;
    enum ft_type type;
    struct ft_redop redop;
    const void *from;
};

struct ft_registration {
    struct ft_registration *next;
    struct ft_memory memory;
    bool known; /* transports are told of it: it is the host's */
};

struct ftcclComm {
    atomic_int live; /* 1: may be used; destroy or abort sets it to 0 */
    /* number of calls inside, of jobs in progress, and of members of open groups: see handle.c */
    _Atomic uint64_t users;
    /* enum ft_handle_state; the job that finishes stores it with release, readers load it with
     * acquire */
    atomic_int state;
    /* number of non-blocking jobs in progress; while it is not 0, GetAsyncError returns
     * ftcclInProgress */
    atomic_int busy;
    atomic_int error;  /* status of a failed job, else FT_OK */
    atomic_int cancel; /* 1: jobs are to be aborted */
    /* 1: ncclCommRevoke() has completed; stored with release, loaded with acquire by
     * libnccl.so.2 */
    atomic_int revoked;
    const void *owner; /* the member whose view it belongs to; NULL: the user */
    struct ft_comm *core;
    int nranks, rank; /* as init requested them; core has the present values */
    int device;
    bool blocking;
    char name[32], transports[64];
    struct ft_comm_limits limits;
    int64_t min_members, join_window_ms; /* used in `settings` of a member */
    /* used in `settings`: orders the ranks of a shrunk or grown communicator; UNDEF: by rank */
    int64_t rank_key;
    pthread_mutex_t lock; /* protects the following fields */
    char text[512];
    struct ft_premul *ops;
    int nops;
    struct ft_registration *registrations;
    struct ftcclComm *next_free;
};

ftcclComm_t ft_comm_handle_new(void);       /* returns NULL with a sentence if there is no memory */
void ft_comm_handle_free(ftcclComm_t comm); /* the caller makes sure that nobody has used it */
/* The handle is dead and no call is inside. It is freed now, or when the last open group releases
 * it. */
void ft_comm_handle_end(ftcclComm_t comm);
/* Checks that the handle is live, and counts a use until ft_comm_leave(). FT_INVAL with a sentence
 * if it is not. */
int ft_comm_enter(ftcclComm_t comm);
void ft_comm_leave(ftcclComm_t comm);
/* Of a call in an open group. After ft_comm_leave_to_group() the call waits for the end of its
 * group, which may never come. So no one waits for the call, and it uses only the handle.
 * ft_comm_enter_from_group() counts it as inside again; it returns false if the communicator has
 * been destroyed or aborted meanwhile. */
void ft_comm_leave_to_group(ftcclComm_t comm);
bool ft_comm_enter_from_group(ftcclComm_t comm);
/* As ft_comm_enter(), and also checks that the communicator is ready for operations. */
int ft_comm_enter_ready(ftcclComm_t comm);
/* FT_USAGE: the communicator has option concurrentP2p, and the call is no send or receive. */
int ft_comm_takes(ftcclComm_t comm, enum ft_kind kind, const char *call);
/* marks the handle dead; FT_INVAL if it was already */
int ft_comm_mark_dead(ftcclComm_t comm);
void ft_comm_wait_users(ftcclComm_t comm); /* waits until all calls inside have left */
/* Ends the communicator and its handle (comm.c). FLUSH waits until peers have taken what was sent
 * to them. FT_INVAL, or FT_USAGE if it belongs to another owner; then nothing has happened. */
enum ft_end { FT_END_FLUSH, FT_END_CLOSE, FT_END_ABORT };
int ft_comm_end(ftcclComm_t comm, enum ft_end how, const void *owner);

/* The handle's stream, without a use of the handle: only to ask ft_stream_is_idle(). NULL: it is no
 * stream, or destroyed. */
struct ft_stream *ft_stream_peek(ftcclStream_t handle);
/* Returns the stream of a live handle and counts a use until ft_stream_leave(). FT_INVAL if the
 * handle is not live. */
int ft_stream_enter(ftcclStream_t handle, struct ft_stream **out);
void ft_stream_leave(ftcclStream_t handle);

/* The communicator ends: what is still registered with it is no more (mem.c). */
void ft_registrations_end(ftcclComm_t comm);

/* ---- settings (config.c) --------------------------------------------------------------------- */

/* Sets all of them from the environment: the handle may have been another communicator's. */
void ft_config_defaults(struct ftcclComm *to);
/* Applies the configuration to `to`, which already has the defaults or the parent's settings. NULL
 * changes nothing. Accepts the older and shorter structs of an older caller. FT_INVAL with a
 * sentence. */
int ft_config_take(struct ftcclComm *to, const ftcclConfig_t *config);
void ft_config_override(
    struct ftcclComm *to); /* what the environment sets whatever the user says */

/* ---- functions for libnccl.so.2 that ftccl.h does not have (shim.c); exported as FTCCL_PRIVATE
 * ---- */

/* libnccl.so.2 has been loaded: sets its defaults in this process, and gives the log NCCL's
 * form. */
FT_EXPORT void ft_shim_attach(void);
/* Reports a call that failed before it reached this library. comm may be NULL. ft_result() must
 * know the status. */
FT_EXPORT ftcclResult_t ft_shim_fail(ftcclComm_t comm, int status, const char *fmt, ...)
    FT_PRINTF(3, 4);
/* ncclCommRevoke(): as ftcclCommRevoke(), and it completes when this rank's operations have ended.
 * ft_shim_is_revoked() returns true then. */
FT_EXPORT ftcclResult_t ft_shim_revoke(ftcclComm_t comm, int flags);
FT_EXPORT bool ft_shim_is_revoked(ftcclComm_t comm);
/* ncclMemAlloc(): memory of the thread's GPU if it has one. ftcclMemFree() frees it. */
FT_EXPORT ftcclResult_t ft_shim_mem_alloc(void **ptr, size_t size);
/* ft_shim_log_on() tells whether the log shows single calls; ft_shim_log() writes such a line.
 * ft_shim_announce() logs the version once per process, from level VERSION on. */
FT_EXPORT bool ft_shim_log_on(void);
FT_EXPORT void ft_shim_log(const char *fmt, ...) FT_PRINTF(1, 2);
FT_EXPORT void ft_shim_announce(const char *version);
/* FTCCL_NCCL_VERSION; "" if unset. */
FT_EXPORT const char *ft_shim_version(void);

/* ---- jobs and groups (group.c) --------------------------------------------------------------- */

/* A management call. It runs in the caller, in a thread, or at the end of a group. */
struct ft_job {
    struct ft_job *next;
    ftcclComm_t comm; /* the job counts as a use of it */
    int (*run)(struct ft_job *job);
    int status;
    char text[512]; /* the sentence that the job's thread stores for the caller */
    pthread_t thread;
    bool started;
    struct ft_job *then;    /* the next job of the same group and communicator */
    struct ft_job_set *set; /* only of a blocking job in a group; else NULL */
    bool failed_alone;      /* the handle is dead and no caller has it: it is freed with the job */
    ftcclComm_t *newcomm;
    int color, key;         /* split */
    int *exclude, nexclude; /* shrink; `exclude` is freed with the job */
    int nranks;             /* grow */
    bool joins;             /* init: this rank joins a communicator that grows */
    /* init: the GPU of the calling thread, because the job may run in another thread */
    struct ft_device_gpu gpu;
    bool abort;
    struct ftcclComm settings; /* settings of a child: name, limits, blocking */
    void *buffer;              /* for a window */
    size_t len_bytes;
    ftcclWindow_t *window;
    int nids;
    unsigned char (*ids)[FT_UNIQUE_ID_BYTES];
};
/* Runs the job now, in a thread, or at the end of the thread's group, as the group and
 * comm->blocking require. Consumes the job. */
ftcclResult_t ft_job_start(struct ft_job *job);
/* Init of a joiner: as ftcclCommInitRankConfig(), but into a communicator that grows. */
ftcclResult_t ft_comm_join(ftcclComm_t *newcomm, int nranks, int rank, const ftcclUniqueId *id,
                           const ftcclConfig_t *config);
/* Copies a child's settings from its parent, and then applies the configuration. */
int ft_job_settings(struct ft_job *job, const ftcclConfig_t *config);
/* Completes the handle of a child that a job has made and sets *newcomm. The handle is allocated
 * before the child, so nothing has to be undone. */
void ft_job_child_ready(struct ft_job *job, ftcclComm_t child, struct ft_comm *core);
void ft_job_drop(struct ft_job *job); /* the group failed before the job ran */

bool ft_group_is_open(void);
/* The communicator ends: removes its members from the thread's group, and releases their uses, for
 * which its end would wait. */
void ft_group_remove_comm(ftcclComm_t comm);
/* Adds an operation to the thread's group, or submits it as a group of its own. Consumes op and the
 * caller's use of comm. */
ftcclResult_t ft_group_add(ftcclComm_t comm, ftcclStream_t stream, struct ft_op *op);
/* Ends a call that failed: records the error in the open group, whose End will return it, and
 * releases the use of comm (comm may be NULL). */
ftcclResult_t ft_fail_call(ftcclComm_t comm, int status);

#endif

/*
 * api: argument checks, handles and groups; nothing else. Handles live in slabs that are never
 * given back, so that a freed or foreign handle is recognised instead of followed.
 */
#ifndef FT_API_H
#define FT_API_H

#include "core/core.h"
#include "ftccl.h"

#define FT_EXPORT __attribute__((visibility("default")))

/* ---- results (error.c) ----------------------------------------------------------------------- */

ftcclResult_t ft_result(int status); /* NCCL's code of a status */
/* The same, and remembers the thread's sentence as comm's last error (comm may be NULL). */
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
    atomic_int live; /* 1: may be used; cleared once by destroy or abort */
    /* calls inside, jobs under way, and what open groups keep; see handle.c */
    _Atomic uint64_t users;
    /* enum ft_handle_state; release by the job that finishes, acquire by readers */
    atomic_int state;
    atomic_int busy;   /* non-blocking jobs under way: GetAsyncError says ftcclInProgress */
    atomic_int error;  /* status of a failed job, else FT_OK */
    atomic_int cancel; /* abort of a job */
    /* as NCCL means it: its failure is over; release when it is, acquire by libnccl.so.2 */
    atomic_int revoked;
    struct ft_comm *core;
    int nranks, rank; /* as asked for by init; core has those in force */
    int device;
    bool blocking;
    char name[32], transports[64];
    struct ft_comm_limits limits;
    /* of settings: orders the ranks of a shrunk or grown communicator; UNDEF: the rank */
    int64_t rank_key;
    pthread_mutex_t lock; /* over what follows */
    char text[512];
    struct ft_premul *ops;
    int nops;
    struct ft_registration *registrations;
    struct ftcclComm *next_free;
};

ftcclComm_t ft_comm_handle_new(void);       /* NULL with a sentence: no memory */
void ft_comm_handle_free(ftcclComm_t comm); /* nobody has used it */
/* it is dead and nobody is inside: freed now, or when the last group lets go of it */
void ft_comm_handle_end(ftcclComm_t comm);
/* A live handle, its use counted until leave. FT_INVAL with a sentence. */
int ft_comm_enter(ftcclComm_t comm);
void ft_comm_leave(ftcclComm_t comm);
/* A call that has entered waits for the end of its group, which may never come: nobody waits for
 * it, and it touches nothing but the handle until it is inside again. take: false, the communicator
 * has been destroyed or aborted meanwhile. */
void ft_comm_keep(ftcclComm_t comm);
bool ft_comm_take(ftcclComm_t comm);
/* The same, and the communicator is ready for operations. */
int ft_comm_enter_ready(ftcclComm_t comm);
/* makes the handle dead for others; FT_INVAL if it was already */
int ft_comm_kill(ftcclComm_t comm);
void ft_comm_wait_users(ftcclComm_t comm); /* those inside have left */

/* A live handle's stream, its use counted until leave. FT_INVAL. */
int ft_stream_enter(ftcclStream_t handle, struct ft_stream **out);
void ft_stream_leave(ftcclStream_t handle);

/* The communicator ends: what is still registered with it is no more (mem.c). */
void ft_registrations_end(ftcclComm_t comm);

/* ---- what libnccl.so.2 has of this library beyond ftccl.h (shim.c); exported as FTCCL_PRIVATE
 * ---- */

/* libnccl.so.2 has been loaded: its defaults hold in this process, and the log has NCCL's form. */
FT_EXPORT void ft_shim_attach(void);
/* A call that failed before it came here. comm may be NULL; status is one that ft_result()
 * knows. */
FT_EXPORT ftcclResult_t ft_shim_fail(ftcclComm_t comm, int status, const char *fmt, ...)
    FT_PRINTF(3, 4);
/* ncclCommRevoke(): as ftcclCommRevoke(), and done when this rank's operations have ended.
 * is_revoked: that is so. */
FT_EXPORT ftcclResult_t ft_shim_revoke(ftcclComm_t comm, int flags);
FT_EXPORT bool ft_shim_is_revoked(ftcclComm_t comm);
/* ncclMemAlloc(): memory of the thread's GPU, where it has one; ftcclMemFree() frees it. */
FT_EXPORT ftcclResult_t ft_shim_mem_alloc(void **ptr, size_t size);
/* The log: are single calls shown? Then one such line. announce: once in a process, from level
 * VERSION on. */
FT_EXPORT bool ft_shim_log_on(void);
FT_EXPORT void ft_shim_log(const char *fmt, ...) FT_PRINTF(1, 2);
FT_EXPORT void ft_shim_announce(const char *version);
/* FTCCL_NCCL_VERSION; "" if unset. */
FT_EXPORT const char *ft_shim_version(void);

/* ---- jobs and groups (group.c) --------------------------------------------------------------- */

/* A management call: runs in the caller, in a thread, or at the end of a group. */
struct ft_job {
    struct ft_job *next;
    ftcclComm_t comm; /* counted as used */
    int (*run)(struct ft_job *job);
    int status;
    char text[512]; /* the sentence that a job's thread leaves for the caller */
    pthread_t thread;
    bool started;
    struct ft_job *then;    /* of the same group and communicator: runs after it */
    struct ft_job_set *set; /* of a group's blocking jobs; else NULL */
    bool failed_alone;      /* nobody has the handle, which is dead: it is freed with the job */
    ftcclComm_t *newcomm;
    int color, key;         /* split */
    int *exclude, nexclude; /* shrink; freed with the job */
    int nranks;             /* grow */
    bool joins;             /* init: into a communicator that grows */
    /* init: as the thread that called has it, for the job may run in another */
    struct ft_device_gpu gpu;
    bool abort;
    struct ftcclComm settings; /* of a child: name, limits, blocking */
    void *buffer;              /* window */
    size_t len_bytes;
    ftcclWindow_t *window;
    int nids;
    unsigned char (*ids)[FT_UNIQUE_ID_BYTES];
};
/* Runs it now, later or elsewhere as the thread's group and comm->blocking say. Consumes the
 * job. */
ftcclResult_t ft_job_start(struct ft_job *job);
/* Init of a joiner: as ftcclCommInitRankConfig(), into a communicator that grows. */
ftcclResult_t ft_comm_join(ftcclComm_t *newcomm, int nranks, int rank, const ftcclUniqueId *id,
                           const ftcclConfig_t *config);
/* Takes a child's settings from its parent and what the configuration says over them. */
int ft_job_settings(struct ft_job *job, const ftcclConfig_t *config);
/* The handle of a child that a job has made, and *newcomm is it. The handle is made first, so that
 * nothing has to be undone. */
void ft_job_child_ready(struct ft_job *job, ftcclComm_t child, struct ft_comm *core);
void ft_job_drop(struct ft_job *job); /* the group failed before it ran */

bool ft_group_is_open(void);
/* The communicator ends: what the thread's group has of it goes, and with it the uses that its end
 * would wait for. */
void ft_group_give_up(ftcclComm_t comm);
/* An operation joins the thread's group, or makes a group of its own. Consumes op and the caller's
 * use of comm. */
ftcclResult_t ft_group_add(ftcclComm_t comm, ftcclStream_t stream, struct ft_op *op);
/* The end of a call that failed: notes it in the group, whose End will say so, and gives up the use
 * of comm (may be NULL). */
ftcclResult_t ft_refuse(ftcclComm_t comm, int status);

#endif

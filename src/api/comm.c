/*
 * Communicators: creation, queries, destruction.
 */
#include "api/api.h"

#include <stdlib.h>
#include <string.h>

_Static_assert(FTCCL_UNIQUE_ID_BYTES == FT_UNIQUE_ID_BYTES, "the id is the bootstrap's");

/* ---- init ------------------------------------------------------------------------------------ */

static int run_init(struct ft_job *job)
{
    ftcclComm_t comm = job->comm;
    struct ft_init init = {.ids = (const unsigned char(*)[FT_UNIQUE_ID_BYTES])job->ids,
                           .nids = job->nids,
                           .nranks = comm->nranks,
                           .rank = comm->rank,
                           .name = comm->name,
                           .settings = {.transports = *comm->transports ? comm->transports : NULL,
                                        .limits = comm->limits,
                                        .gpu = job->gpu},
                           .cancel = &comm->cancel,
                           .joins = job->joins,
                           .key = comm->rank_key != FTCCL_OPTION_UNDEF ? &comm->rank_key : NULL};
    int rc = ft_init_run(&init, &comm->core);
    atomic_store_explicit(&comm->state, rc == FT_OK ? FT_HANDLE_READY : FT_HANDLE_DEAD,
                          memory_order_release);
    /* A blocking caller gets no handle if the communicator could not be made. */
    if (rc != FT_OK && comm->blocking && job->newcomm) {
        *job->newcomm = NULL;
        /* otherwise another thread aborts the communicator, and frees the handle */
        job->failed_alone = ft_comm_mark_dead(comm) == FT_OK;
    }
    return rc;
}

void ft_job_drop(struct ft_job *job)
{
    if (job->run == run_init && job->newcomm)
        *job->newcomm = NULL;
    if (job->run == run_init && ft_comm_mark_dead(job->comm) == FT_OK)
        job->failed_alone = true;
}

struct want {
    ftcclComm_t *out;
    int nranks, rank, device, nids;
    const ftcclUniqueId *ids;
    const ftcclConfig_t *config;
    bool joins;
    struct ft_device_gpu gpu; /* none: use the thread's GPU */
};

static int check_want(const struct want *want)
{
    if (!want->out)
        return ft_fail(FT_INVAL, "init: the communicator's address is NULL");
    if (want->nranks < 1)
        return ft_fail(FT_INVAL, "init: %d ranks", want->nranks);
    if (want->rank < 0 || want->rank >= want->nranks)
        return ft_fail(FT_INVAL, "init: rank %d of %d", want->rank, want->nranks);
    if (want->nids < 1 || want->nids > want->nranks || !want->ids)
        return ft_fail(FT_INVAL, "init: %d unique ids for %d ranks", want->nids, want->nranks);
    for (int i = 0; i < want->nids; i++) {
        int rc = ft_unique_id_check((const unsigned char *)want->ids[i].internal);
        if (rc != FT_OK)
            return rc;
    }
    return FT_OK;
}

static int make_init_job(const struct want *want, struct ft_job **out)
{
    ftcclComm_t comm = ft_comm_handle_new();
    struct ft_job *job = calloc(1, sizeof *job);
    unsigned char(*ids)[FT_UNIQUE_ID_BYTES] = malloc((size_t)want->nids * sizeof *ids);
    int rc = comm && job && ids ? FT_OK : ft_fail(FT_NOMEM, "no memory for a communicator");
    if (rc == FT_OK) {
        ft_config_defaults(comm);
        rc = ft_config_take(comm, want->config);
        ft_config_override(comm);
    }
    if (rc != FT_OK) {
        if (comm)
            ft_comm_handle_free(comm);
        free(job);
        free(ids);
        return rc;
    }
    memcpy(ids, want->ids, (size_t)want->nids * sizeof *ids);
    comm->nranks = want->nranks;
    comm->rank = want->rank;
    comm->device = want->device;
    *job = (struct ft_job){
        .comm = comm,
        .run = run_init,
        .newcomm = want->out,
        .nids = want->nids,
        .ids = ids,
        .joins = want->joins,
        .gpu = want->gpu.context || want->gpu.numbered ? want->gpu : ft_device_gpu_of_thread()};
    ft_comm_enter(comm);
    /* another thread may wait for the handle in order to abort */
    __atomic_store_n(want->out, comm, __ATOMIC_RELEASE);
    *out = job;
    return FT_OK;
}

static ftcclResult_t init(const struct want *want)
{
    struct ft_job *job = NULL;
    int rc = ft_enter_library();
    if (rc == FT_OK)
        rc = check_want(want);
    if (rc == FT_OK)
        rc = make_init_job(want, &job);
    if (rc == FT_OK)
        return ft_job_start(job);
    return ft_fail_call(NULL, rc);
}

FT_EXPORT ftcclResult_t ftcclGetUniqueId(ftcclUniqueId *uniqueId)
{
    int rc = ft_enter_library();
    if (rc == FT_OK && !uniqueId)
        rc = ft_fail(FT_INVAL, "GetUniqueId: uniqueId is NULL");
    if (rc == FT_OK)
        rc = ft_unique_id_make((unsigned char *)uniqueId->internal);
    return ft_return(NULL, rc);
}

FT_EXPORT ftcclResult_t ftcclUniqueIdKeep(ftcclUniqueId *uniqueId)
{
    int rc = ft_enter_library();
    if (rc == FT_OK && !uniqueId)
        rc = ft_fail(FT_INVAL, "UniqueIdKeep: uniqueId is NULL");
    if (rc == FT_OK)
        rc = ft_unique_id_keep((unsigned char *)uniqueId->internal);
    return ft_return(NULL, rc);
}

FT_EXPORT ftcclResult_t ftcclUniqueIdRelease(const ftcclUniqueId *uniqueId)
{
    int rc = ft_enter_library();
    if (rc == FT_OK && !uniqueId)
        rc = ft_fail(FT_INVAL, "UniqueIdRelease: uniqueId is NULL");
    if (rc == FT_OK)
        rc = ft_unique_id_release((const unsigned char *)uniqueId->internal);
    return ft_return(NULL, rc);
}

FT_EXPORT ftcclResult_t ftcclCommInitRank(ftcclComm_t *comm, int nranks, ftcclUniqueId commId,
                                          int rank)
{
    ft_thread_enters(FT_THREAD_INIT, __builtin_return_address(0));
    return init(&(struct want){comm, nranks, rank, 0, 1, &commId, NULL, false, {0}});
}

FT_EXPORT ftcclResult_t ftcclCommInitRankConfig(ftcclComm_t *comm, int nranks, ftcclUniqueId commId,
                                                int rank, ftcclConfig_t *config)
{
    ft_thread_enters(FT_THREAD_INIT, __builtin_return_address(0));
    return init(&(struct want){comm, nranks, rank, 0, 1, &commId, config, false, {0}});
}

FT_EXPORT ftcclResult_t ftcclCommInitRankScalable(ftcclComm_t *newcomm, int nranks, int myrank,
                                                  int nId, ftcclUniqueId *commIds,
                                                  ftcclConfig_t *config)
{
    ft_thread_enters(FT_THREAD_INIT, __builtin_return_address(0));
    return init(&(struct want){newcomm, nranks, myrank, 0, nId, commIds, config, false, {0}});
}

static int check_devices(const int *devlist, int ndev, int gpus)
{
    for (int i = 0; i < ndev; i++)
        if (devlist[i] < 0 || (gpus > 0 && devlist[i] >= gpus))
            return ft_fail(FT_INVAL, "CommInitAll: there is no device %d", devlist[i]);
    return FT_OK;
}

FT_EXPORT ftcclResult_t ftcclCommInitAll(ftcclComm_t *comm, int ndev, const int *devlist)
{
    ft_thread_enters(FT_THREAD_INIT, __builtin_return_address(0));
    ftcclUniqueId id;
    if (!comm || ndev < 1)
        return ft_return(NULL, ft_fail(FT_INVAL, "CommInitAll: comm is NULL or ndev %d is below 1",
                                       ndev));
    int rc = ft_enter_library(), gpus = rc == FT_OK ? ft_device_gpu_count() : 0;
    if (rc == FT_OK && devlist)
        rc = check_devices(devlist, ndev, gpus);
    /* An id has an open port for a while: all checks come before it is made. */
    if (rc != FT_OK)
        return ft_return(NULL, rc);
    ftcclResult_t result = ftcclGetUniqueId(&id);
    if (result != ftcclSuccess)
        return result;
    ftcclGroupStart();
    for (int i = 0; i < ndev; i++) {
        struct want want = {&comm[i], ndev, i, devlist ? devlist[i] : i, 1, &id, NULL, false, {0}};
        if (gpus > 0)
            want.gpu = ft_device_gpu_numbered(devlist ? devlist[i] : i % gpus);
        init(&want);
    }
    return ftcclGroupEnd();
}

ftcclResult_t ft_comm_join(ftcclComm_t *newcomm, int nranks, int rank, const ftcclUniqueId *id,
                           const ftcclConfig_t *config)
{
    return init(&(struct want){newcomm, nranks, rank, 0, 1, id, config, true, {0}});
}

/* ---- split ----------------------------------------------------------------------------------- */

int ft_job_settings(struct ft_job *job, const ftcclConfig_t *config)
{
    const struct ftcclComm *parent = job->comm;
    job->settings.blocking = parent->blocking;
    job->settings.limits = parent->limits;
    job->settings.rank_key = FTCCL_OPTION_UNDEF;
    memcpy(job->settings.name, parent->name, sizeof parent->name);
    memcpy(job->settings.transports, parent->transports, sizeof parent->transports);
    return ft_config_take(&job->settings, config);
}

void ft_job_child_ready(struct ft_job *job, ftcclComm_t child, struct ft_comm *core)
{
    child->core = core;
    child->device = job->comm->device;
    child->blocking = job->settings.blocking;
    child->limits = job->settings.limits;
    memcpy(child->name, job->settings.name, sizeof child->name);
    memcpy(child->transports, job->settings.transports, sizeof child->transports);
    atomic_store_explicit(&child->state, FT_HANDLE_READY, memory_order_release);
    *job->newcomm = child;
}

static int run_split(struct ft_job *job)
{
    ftcclComm_t parent = job->comm;
    struct ft_comm *core = NULL;
    ftcclComm_t child = job->color >= 0 ? ft_comm_handle_new() : NULL;
    *job->newcomm = NULL;
    if (job->color >= 0 && !child)
        return FT_NOMEM;
    int rc = ft_split_run(parent->core, job->color, job->key, job->settings.name,
                          &job->settings.limits, &core);
    if (rc == FT_OK && core)
        ft_job_child_ready(job, child, core);
    else if (child)
        ft_comm_handle_free(child);
    return rc;
}

FT_EXPORT ftcclResult_t ftcclCommSplit(ftcclComm_t comm, int color, int key, ftcclComm_t *newcomm,
                                       ftcclConfig_t *config)
{
    ft_thread_enters(FT_THREAD_SPLIT, __builtin_return_address(0));
    int rc = ft_enter_library();
    if (rc == FT_OK)
        rc = ft_comm_enter_ready(comm);
    if (rc != FT_OK)
        return ft_fail_call(NULL, rc);
    struct ft_job *job = calloc(1, sizeof *job);
    if (!job)
        rc = ft_fail(FT_NOMEM, "no memory for a split");
    else if (!newcomm)
        rc = ft_fail(FT_INVAL, "CommSplit: newcomm is NULL");
    else if (color < 0 && color != FTCCL_SPLIT_NOCOLOR)
        rc = ft_fail(FT_INVAL, "CommSplit: color %d", color);
    else
        rc = ft_comm_takes(comm, FT_ALLGATHER, "CommSplit");
    if (rc == FT_OK) {
        job->comm = comm;
        rc = ft_job_settings(job, config);
    }
    if (rc != FT_OK) {
        free(job);
        return ft_fail_call(comm, rc);
    }
    job->run = run_split;
    job->newcomm = newcomm;
    job->color = color;
    job->key = key;
    return ft_job_start(job);
}

/* ---- finalize, destroy, abort ---------------------------------------------------------------- */

/* The communicator of a view belongs to its member. */
static int check_owner(const struct ftcclComm *comm, const void *owner)
{
    if (comm->owner == owner)
        return FT_OK;
    return ft_fail(FT_USAGE, "the communicator belongs to a member, whose next view or Leave ends "
                             "it; see ftcclMemberView()");
}

static int run_finalize(struct ft_job *job)
{
    int rc = ft_comm_finalize(job->comm->core);
    atomic_store_explicit(&job->comm->state, FT_HANDLE_FINALIZED, memory_order_release);
    return rc;
}

FT_EXPORT ftcclResult_t ftcclCommFinalize(ftcclComm_t comm)
{
    ft_thread_enters(FT_THREAD_FINALIZE, __builtin_return_address(0));
    int rc = ft_enter_library();
    if (rc == FT_OK)
        rc = ft_comm_enter_ready(comm);
    if (rc != FT_OK)
        return ft_return(NULL, rc);
    rc = check_owner(comm, NULL);
    struct ft_job *job = rc == FT_OK ? calloc(1, sizeof *job) : NULL;
    if (!job) {
        ft_comm_leave(comm);
        return ft_return(NULL, rc != FT_OK ? rc : ft_fail(FT_NOMEM, "no memory to finalize"));
    }
    *job = (struct ft_job){.comm = comm, .run = run_finalize};
    return ft_job_start(job);
}

/* The handle is dead, and this call is inside. */
static int end_comm(ftcclComm_t comm, enum ft_end how)
{
    int rc = FT_OK;
    bool abort_it = how == FT_END_ABORT;
    ft_group_remove_comm(comm);
    if (abort_it)
        atomic_store(&comm->cancel, 1);
    bool aborted = abort_it &&
                   atomic_load_explicit(&comm->state, memory_order_acquire) != FT_HANDLE_INIT;
    if (aborted && comm->core)
        ft_comm_abort(comm->core); /* ends the waits of the calls inside */
    ft_comm_leave(comm);
    ft_comm_wait_users(comm);
    if (comm->core) {
        if (abort_it && !aborted)
            ft_comm_abort(comm->core);
        if (how == FT_END_FLUSH && atomic_load(&comm->state) == FT_HANDLE_READY)
            rc = ft_comm_flush(comm->core);
        if (rc == FT_TIMEOUT)
            ft_comm_abort(comm->core);
        ft_comm_close(comm->core);
        ft_registrations_end(comm); /* no operation refers to it any more */
    }
    comm->core = NULL;
    ft_comm_handle_end(comm);
    return rc;
}

int ft_comm_end(ftcclComm_t comm, enum ft_end how, const void *owner)
{
    int rc = ft_comm_enter(comm);
    if (rc != FT_OK)
        return rc;
    rc = check_owner(comm, owner);
    if (rc == FT_OK)
        rc = ft_comm_mark_dead(comm);
    if (rc == FT_OK)
        return end_comm(comm, how);
    ft_comm_leave(comm);
    return rc;
}

static int end_of_user(ftcclComm_t comm, enum ft_end how)
{
    int rc = ft_enter_library();
    return rc == FT_OK ? ft_comm_end(comm, how, NULL) : rc;
}

/* The failure of a communicator has been reported before, so destroying it returns success. */
FT_EXPORT ftcclResult_t ftcclCommDestroy(ftcclComm_t comm)
{
    ft_thread_enters(FT_THREAD_DESTROY, __builtin_return_address(0));
    int rc = end_of_user(comm, FT_END_FLUSH);
    return ft_return(NULL, ft_status_lost(rc) == FT_LOST_CALL || rc == FT_TIMEOUT ? rc : FT_OK);
}

FT_EXPORT ftcclResult_t ftcclCommAbort(ftcclComm_t comm)
{
    ft_thread_enters(FT_THREAD_ABORT, __builtin_return_address(0));
    return ft_return(NULL, end_of_user(comm, FT_END_ABORT));
}

/* ---- queries --------------------------------------------------------------------------------- */

FT_EXPORT ftcclResult_t ftcclCommGetAsyncError(ftcclComm_t comm, ftcclResult_t *asyncError)
{
    int rc = ft_enter_library();
    if (rc == FT_OK)
        rc = ft_comm_enter(comm);
    if (rc != FT_OK)
        return ft_return(NULL, rc);
    if (!asyncError)
        rc = ft_fail(FT_INVAL, "CommGetAsyncError: asyncError is NULL");
    else if (atomic_load_explicit(&comm->busy, memory_order_acquire))
        *asyncError = ftcclInProgress;
    else {
        int status = atomic_load_explicit(&comm->error, memory_order_acquire);
        if (status == FT_OK && comm->core)
            status = atomic_load_explicit(&comm->core->failure.verdict, memory_order_acquire);
        *asyncError = ft_result(status);
    }
    ftcclResult_t result = ft_return(comm, rc);
    ft_comm_leave(comm);
    return result;
}

enum question { NRANKS, RANK, DEVICE };

/* Before the communicator is ready it returns the values that init requested. */
static int answer_question(const struct ftcclComm *comm, enum question what)
{
    bool ready = atomic_load_explicit(&comm->state, memory_order_acquire) != FT_HANDLE_INIT &&
                 comm->core;
    if (what == DEVICE)
        return ready && comm->core->engine->gpu ? comm->core->engine->gpu->number : comm->device;
    if (what == NRANKS)
        return ready ? ft_comm_nranks(comm->core) : comm->nranks;
    return ready ? ft_comm_rank(comm->core) : comm->rank;
}

static ftcclResult_t ask_comm(ftcclComm_t comm, int *out, enum question what)
{
    int rc = ft_enter_library();
    if (rc == FT_OK)
        rc = ft_comm_enter(comm);
    if (rc != FT_OK)
        return ft_return(NULL, rc);
    if (!out)
        rc = ft_fail(FT_INVAL, "the result's address is NULL");
    else
        *out = answer_question(comm, what);
    ftcclResult_t result = ft_return(comm, rc);
    ft_comm_leave(comm);
    return result;
}

FT_EXPORT ftcclResult_t ftcclCommCount(const ftcclComm_t comm, int *count)
{
    return ask_comm(comm, count, NRANKS);
}
FT_EXPORT ftcclResult_t ftcclCommUserRank(const ftcclComm_t comm, int *rank)
{
    return ask_comm(comm, rank, RANK);
}
FT_EXPORT ftcclResult_t ftcclCommCuDevice(const ftcclComm_t comm, int *device)
{
    return ask_comm(comm, device, DEVICE);
}

FT_EXPORT ftcclResult_t ftcclCommGetDeviceStatus(ftcclComm_t comm, const uint32_t **status)
{
    int rc = ft_enter_library();
    if (rc == FT_OK)
        rc = ft_comm_enter_ready(comm);
    if (rc != FT_OK)
        return ft_return(NULL, rc);
    rc = status ? ft_gpu_word(comm->core, status)
                : ft_fail(FT_INVAL, "CommGetDeviceStatus: status is NULL");
    ftcclResult_t result = ft_return(comm, rc);
    ft_comm_leave(comm);
    return result;
}

/*
 * The calls after a failure: failed ranks, agree, revoke, shrink and grow.
 */
#include "api/api.h"

#include <stdlib.h>
#include <string.h>

/* Enters a communicator that may be used, even one that has failed. */
static int enter_comm(ftcclComm_t comm)
{
    int rc = ft_enter_library();
    return rc == FT_OK ? ft_comm_enter_ready(comm) : rc;
}

static ftcclResult_t leave_comm(ftcclComm_t comm, int rc)
{
    ftcclResult_t result = ft_return(comm, rc);
    ft_comm_leave(comm);
    return result;
}

FT_EXPORT ftcclResult_t ftcclCommGetFailedRanks(ftcclComm_t comm, int *ranks, int capacity,
                                                int *count)
{
    int rc = enter_comm(comm);
    if (rc != FT_OK)
        return ft_return(NULL, rc);
    if (!count || capacity < 0 || (capacity > 0 && !ranks))
        rc = ft_fail(FT_INVAL, "CommGetFailedRanks: count or ranks is NULL");
    else {
        ft_engine_lock(comm->core->engine);
        *count = ft_comm_failed(comm->core, ranks, capacity);
        ft_engine_unlock(comm->core->engine);
    }
    return leave_comm(comm, rc);
}

FT_EXPORT ftcclResult_t ftcclCommGetLastAgreedOp(ftcclComm_t comm, uint64_t *sequence)
{
    int rc = enter_comm(comm);
    if (rc != FT_OK)
        return ft_return(NULL, rc);
    if (!sequence)
        rc = ft_fail(FT_INVAL, "CommGetLastAgreedOp: sequence is NULL");
    else {
        ft_engine_lock(comm->core->engine);
        *sequence = comm->core->group->agreed_op;
        ft_engine_unlock(comm->core->engine);
    }
    return leave_comm(comm, rc);
}

FT_EXPORT ftcclResult_t ftcclCommAgree(ftcclComm_t comm, uint64_t *flags)
{
    ft_thread_enters(FT_THREAD_AGREE, __builtin_return_address(0));
    int rc = enter_comm(comm);
    if (rc != FT_OK)
        return ft_return(NULL, rc);
    const struct ft_decision *decision;
    if (!flags)
        rc = ft_fail(FT_INVAL, "CommAgree: flags is NULL");
    else {
        struct ft_agree_input input = {
            .kind = FT_AGREE_FLAGS, .flags = *flags, .key = ft_comm_rank(comm->core)};
        rc = ft_comm_agree(comm->core, &input, &decision);
        if (rc == FT_OK)
            *flags = decision->flags;
    }
    return leave_comm(comm, rc);
}

FT_EXPORT ftcclResult_t ftcclStep(ftcclComm_t comm, uint64_t step)
{
    int rc = enter_comm(comm);
    if (rc != FT_OK)
        return ft_return(NULL, rc);
    ft_engine_lock(comm->core->engine);
    ft_telemetry_step(comm->core->engine->telemetry, atomic_load(&comm->core->row), step);
    ft_engine_unlock(comm->core->engine);
    return leave_comm(comm, rc);
}

FT_EXPORT ftcclResult_t ftcclCommRevoke(ftcclComm_t comm, int flags)
{
    ft_thread_enters(FT_THREAD_REVOKE, __builtin_return_address(0));
    int rc = enter_comm(comm);
    if (rc != FT_OK)
        return ft_return(NULL, rc);
    if (flags != FTCCL_REVOKE_DEFAULT)
        rc = ft_fail(FT_INVAL, "CommRevoke: flags are %d; only FTCCL_REVOKE_DEFAULT is known",
                     flags);
    else
        ft_comm_revoke(comm->core, "ftcclCommRevoke");
    return leave_comm(comm, rc);
}

/* ---- shrink ---------------------------------------------------------------------------------- */

static int run_shrink(struct ft_job *job)
{
    ftcclComm_t parent = job->comm, child = ft_comm_handle_new();
    struct ft_comm *core = NULL;
    int64_t key = job->settings.rank_key;
    struct ft_shrink how = {.exclude = job->exclude,
                            .count = job->nexclude,
                            .abort = job->abort,
                            .name = job->settings.name,
                            .key = key == FTCCL_OPTION_UNDEF ? ft_comm_rank(parent->core) : key,
                            .limits = job->settings.limits};
    *job->newcomm = NULL;
    if (!child)
        return FT_NOMEM;
    int rc = ft_shrink_run(parent->core, &how, &core);
    if (rc == FT_OK)
        ft_job_child_ready(job, child, core);
    else
        ft_comm_handle_free(child);
    return rc;
}

static int check_shrink(const int *exclude, int count, const ftcclComm_t *newcomm, int flags)
{
    if (!newcomm)
        return ft_fail(FT_INVAL, "CommShrink: newcomm is NULL");
    if (count < 0 || (count > 0 && !exclude))
        return ft_fail(FT_INVAL, "CommShrink: a list of %d ranks at %p", count,
                       (const void *)exclude);
    if (flags != FTCCL_SHRINK_DEFAULT && flags != FTCCL_SHRINK_ABORT)
        return ft_fail(FT_INVAL, "CommShrink: unknown flags %d", flags);
    return FT_OK;
}

FT_EXPORT ftcclResult_t ftcclCommShrink(ftcclComm_t comm, int *exclude, int count,
                                        ftcclComm_t *newcomm, ftcclConfig_t *config, int flags)
{
    ft_thread_enters(FT_THREAD_SHRINK, __builtin_return_address(0));
    int rc = enter_comm(comm);
    if (rc != FT_OK)
        return ft_fail_call(NULL, rc);
    struct ft_job *job = calloc(1, sizeof *job);
    rc = job ? check_shrink(exclude, count, newcomm, flags)
             : ft_fail(FT_NOMEM, "no memory for a shrink");
    if (rc == FT_OK && count > 0 && !(job->exclude = malloc((size_t)count * sizeof *job->exclude)))
        rc = ft_fail(FT_NOMEM, "no memory for a list of %d ranks", count);
    if (rc == FT_OK) {
        if (count > 0)
            memcpy(job->exclude, exclude, (size_t)count * sizeof *exclude);
        job->comm = comm;
        rc = ft_job_settings(job, config);
    }
    if (rc != FT_OK) {
        if (job)
            free(job->exclude);
        free(job);
        return ft_fail_call(comm, rc);
    }
    job->run = run_shrink;
    job->newcomm = newcomm;
    job->nexclude = count;
    job->abort = flags == FTCCL_SHRINK_ABORT;
    return ft_job_start(job);
}

/* ---- grow ------------------------------------------------------------------------------------ */

FT_EXPORT ftcclResult_t ftcclCommGetUniqueId(ftcclComm_t comm, ftcclUniqueId *uniqueId)
{
    int rc = enter_comm(comm);
    if (rc != FT_OK)
        return ft_return(NULL, rc);
    if (!uniqueId)
        rc = ft_fail(FT_INVAL, "CommGetUniqueId: uniqueId is NULL");
    else
        rc = ft_unique_id_grow((unsigned char *)uniqueId->internal,
                               comm->core->engine->transports[0]->config.key,
                               ft_comm_nranks(comm->core), comm->core);
    return leave_comm(comm, rc);
}

static int run_grow(struct ft_job *job)
{
    ftcclComm_t parent = job->comm, child = ft_comm_handle_new();
    struct ft_comm *core = NULL;
    int64_t key = job->settings.rank_key;
    struct ft_grow how = {.nranks = job->nranks,
                          .id = (const unsigned char(*)[FT_UNIQUE_ID_BYTES])job->ids,
                          .name = job->settings.name,
                          .key = key == FTCCL_OPTION_UNDEF ? ft_comm_rank(parent->core) : key,
                          .limits = job->settings.limits};
    *job->newcomm = NULL;
    if (!child)
        return FT_NOMEM;
    int rc = ft_grow_run(parent->core, &how, &core);
    if (rc == FT_OK)
        ft_job_child_ready(job, child, core);
    else
        ft_comm_handle_free(child);
    return rc;
}

static ftcclResult_t grow(ftcclComm_t comm, int nranks, const ftcclUniqueId *id,
                          ftcclComm_t *newcomm, const ftcclConfig_t *config)
{
    int rc = enter_comm(comm);
    if (rc != FT_OK)
        return ft_fail_call(NULL, rc);
    struct ft_job *job = calloc(1, sizeof *job);
    rc = !newcomm ? ft_fail(FT_INVAL, "CommGrow: newcomm is NULL")
         : job    ? FT_OK
                  : ft_fail(FT_NOMEM, "no memory to grow");
    if (rc == FT_OK && id && !(job->ids = malloc(sizeof *job->ids)))
        rc = ft_fail(FT_NOMEM, "no memory to grow");
    if (rc == FT_OK && id && !ft_unique_id_is_grow((const unsigned char *)id->internal))
        rc = ft_fail(FT_USAGE, "CommGrow: the id is not one of ftcclCommGetUniqueId()");
    if (rc == FT_OK) {
        if (id)
            memcpy(job->ids, id, sizeof *job->ids);
        job->comm = comm;
        rc = ft_job_settings(job, config);
    }
    if (rc != FT_OK) {
        if (job)
            free(job->ids);
        free(job);
        return ft_fail_call(comm, rc);
    }
    job->run = run_grow;
    job->newcomm = newcomm;
    job->nranks = nranks;
    return ft_job_start(job);
}

FT_EXPORT ftcclResult_t ftcclCommGrow(ftcclComm_t comm, int nranks, const ftcclUniqueId *id,
                                      int rank, ftcclComm_t *newcomm, ftcclConfig_t *config)
{
    ft_thread_enters(FT_THREAD_GROW, __builtin_return_address(0));
    if (comm && rank != -1)
        return ft_fail_call(
            NULL,
            ft_fail(FT_INVAL, "CommGrow: rank is %d; a rank of the communicator passes -1", rank));
    return comm ? grow(comm, nranks, id, newcomm, config)
                : ft_comm_join(newcomm, nranks, rank, id, config);
}

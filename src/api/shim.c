/*
 * Functions that only libnccl.so.2 may use: they change the log's form and defaults, and report
 * errors of its own.
 */
#include "api/api.h"

#include <stdarg.h>
#include <stdlib.h>

/* programs written for NCCL compile or evaluate between two calls, which takes longer than a
 * minute */
#define OP_TIMEOUT_MS 1800000

FT_EXPORT void ft_shim_attach(void)
{
    ft_param_set_default(FT_PARAM_OP_TIMEOUT_MS, OP_TIMEOUT_MS);
    /* as with NCCL, no work after a failed operation on its stream runs on an incomplete result */
    ft_param_set_default_text(FT_PARAM_ON_FAILURE, "hold");
    ft_log_like_nccl();
}

FT_EXPORT ftcclResult_t ft_shim_fail(ftcclComm_t comm, int status, const char *fmt, ...)
{
    char text[512];
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    int rc = comm ? ft_comm_enter(comm) : FT_OK;
    return rc == FT_OK ? ft_fail_call(comm, ft_fail(status, "%s", text)) : ft_fail_call(NULL, rc);
}

/* Revokes, and then waits in finalize until all operations have ended. */
static int run_revoke(struct ft_job *job)
{
    ft_comm_revoke(job->comm->core, "ncclCommRevoke");
    ft_comm_finalize(job->comm->core);
    atomic_store_explicit(&job->comm->revoked, 1, memory_order_release);
    return FT_OK;
}

FT_EXPORT ftcclResult_t ft_shim_revoke(ftcclComm_t comm, int flags)
{
    int rc = ft_enter_library();
    if (rc == FT_OK)
        rc = ft_comm_enter_ready(comm);
    if (rc != FT_OK)
        return ft_fail_call(NULL, rc);
    struct ft_job *job = calloc(1, sizeof *job);
    if (!job)
        rc = ft_fail(FT_NOMEM, "no memory for a revoke");
    else if (flags != FTCCL_REVOKE_DEFAULT)
        rc = ft_fail(FT_INVAL, "CommRevoke: flags are %d; only NCCL_REVOKE_DEFAULT is known",
                     flags);
    if (rc != FT_OK) {
        free(job);
        return ft_fail_call(comm, rc);
    }
    *job = (struct ft_job){.comm = comm, .run = run_revoke};
    return ft_job_start(job);
}

FT_EXPORT bool ft_shim_is_revoked(ftcclComm_t comm)
{
    if (ft_comm_enter(comm) != FT_OK)
        return false;
    bool revoked = atomic_load_explicit(&comm->revoked, memory_order_acquire) != 0;
    ft_comm_leave(comm);
    return revoked;
}

FT_EXPORT bool ft_shim_log_on(void)
{
    return ft_log_shows(FT_LOG_INFO, "coll");
}

FT_EXPORT void ft_shim_log(const char *fmt, ...)
{
    char text[1024];
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    ft_log_write(FT_LOG_INFO, "coll", -1, "%s", text);
}

FT_EXPORT void ft_shim_announce(const char *version)
{
    static atomic_int done;
    if (!atomic_exchange(&done, 1))
        FT_LOG(VERSION, "init", -1, "NCCL version %s (FTCCL %d.%d.%d)", version, FTCCL_MAJOR,
               FTCCL_MINOR, FTCCL_PATCH);
}

FT_EXPORT const char *ft_shim_version(void)
{
    return ft_param_str(FT_PARAM_NCCL_VERSION);
}

/*
 * Result codes, error classes and error texts.
 */
#include "api/api.h"

#include <string.h>

ftcclResult_t ft_result(int status)
{
    switch (status) {
    case FT_OK:
        return ftcclSuccess;
    case FT_AGAIN:
        return ftcclInProgress;
    case FT_INVAL:
        return ftcclInvalidArgument;
    case FT_USAGE:
    case FT_NOTSUP:
    case FT_MISMATCH:
    case FT_FENCED:
    case FT_FORKED:
        return ftcclInvalidUsage;
    case FT_TIMEOUT:
        return ftcclTimeout;
    case FT_SKIPPED:
    case FT_PROTOCOL:
    case FT_VERSION:
    case FT_AUTH:
    case FT_LINK:
    case FT_PEER:
    case FT_ABORTED:
    case FT_REVOKED:
    case FT_MIXED:
    case FT_CORRUPT:
        return ftcclRemoteError;
    case FT_DEVICE:
        return ftcclUnhandledCudaError;
    case FT_INTERNAL:
        return ftcclInternalError;
    default:
        return ftcclSystemError;
    }
}

ftcclResult_t ft_return(ftcclComm_t comm, int status)
{
    if (comm && status != FT_OK && status != FT_AGAIN) {
        pthread_mutex_lock(&comm->lock);
        snprintf(comm->text, sizeof comm->text, "%.*s", (int)sizeof comm->text - 1, ft_fail_text());
        pthread_mutex_unlock(&comm->lock);
    }
    if (ft_status_lost(status) == FT_LOST_CALL)
        FT_LOG(WARN, "init", comm ? comm->rank : -1, "%s", ft_fail_text());
    return ft_result(status);
}

int ft_enter_library(void)
{
    ft_fork_guard();
    if (!ft_forked())
        return FT_OK;
    return ft_fail(FT_FORKED,
                   "this process is a child of fork; communicators belong to the parent");
}

FT_EXPORT const char *ftcclGetErrorString(ftcclResult_t result)
{
    switch (result) {
    case ftcclSuccess:
        return "no error";
    case ftcclUnhandledCudaError:
        return "the device failed";
    case ftcclSystemError:
        return "a system call failed or a resource ran out";
    case ftcclInternalError:
        return "internal error";
    case ftcclInvalidArgument:
        return "invalid argument";
    case ftcclInvalidUsage:
        return "invalid usage";
    case ftcclRemoteError:
        return "a peer or the way to it was lost";
    case ftcclInProgress:
        return "in progress";
    case ftcclTimeout:
        return "timed out";
    default:
        return "unknown result code";
    }
}

FT_EXPORT ftcclErrorClass_t ftcclGetErrorClass(ftcclResult_t result)
{
    switch (result) {
    case ftcclSuccess:
        return ftcclClassSuccess;
    case ftcclInProgress:
        return ftcclClassInProgress;
    case ftcclInvalidArgument:
    case ftcclInvalidUsage:
        return ftcclClassCaller;
    case ftcclRemoteError:
    case ftcclTimeout:
        return ftcclClassRecoverable;
    default:
        return ftcclClassFatal;
    }
}

FT_EXPORT const char *ftcclGetLastError(ftcclComm_t comm)
{
    static _Thread_local char text[512];
    /* in a child of fork the locks of the parent's communicator may be locked for ever */
    if (!comm || ft_forked() || ft_comm_enter(comm) != FT_OK) {
        snprintf(text, sizeof text, "%.*s", (int)sizeof text - 1, ft_fail_text());
        return text;
    }
    struct ft_comm *core = atomic_load_explicit(&comm->state, memory_order_acquire) ==
                                   FT_HANDLE_INIT
                               ? NULL
                               : comm->core;
    if (core && atomic_load_explicit(&core->failure.verdict, memory_order_acquire) != FT_OK) {
        pthread_mutex_lock(&core->failure.lock);
        memcpy(text, core->failure.text, sizeof text);
        pthread_mutex_unlock(&core->failure.lock);
    } else {
        pthread_mutex_lock(&comm->lock);
        memcpy(text, comm->text, sizeof text);
        pthread_mutex_unlock(&comm->lock);
    }
    ft_comm_leave(comm);
    return text;
}

FT_EXPORT ftcclResult_t ftcclGetVersion(int *version)
{
    if (!version)
        return ft_return(NULL, ft_fail(FT_INVAL, "GetVersion: version is NULL"));
    *version = FTCCL_VERSION_CODE;
    return ftcclSuccess;
}

FT_EXPORT void ftcclResetDebugInit(void)
{
    ft_params_reload();
    ft_log_reset();
}

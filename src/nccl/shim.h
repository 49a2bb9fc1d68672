/*
 * nccl: libnccl.so.2, which maps NCCL's calls and structs onto ftccl.h. A ncclComm_t is a
 * ftcclComm_t. calls.c has the calls that ftccl.h has too. device.c has the calls for kernels and
 * for NCCL's own tools. versions.c has everything that depends on the version of NCCL with which
 * the caller was compiled.
 */
#ifndef FT_NCCL_SHIM_H
#define FT_NCCL_SHIM_H

#include "api/api.h"

#include <ftccl/nccl.h>

/* pncclX is the function and ncclX a weak alias of it, as in NCCL, so that a tool can define its
 * own ncclX. */
#define CALL(type, name, parameters)                                                  \
    FT_EXPORT __attribute__((weak, alias("pnccl" #name))) type nccl##name parameters; \
    FT_EXPORT type pnccl##name parameters

static inline ftcclComm_t ft_nccl_comm(ncclComm_t comm)
{
    return (ftcclComm_t)(void *)comm;
}

/* Maps a result to NCCL's code. ncclTimeout is only for callers that know it. */
ncclResult_t ft_nccl_result(ftcclResult_t result);
/* Converts the configuration of a caller compiled with any version. comm: the communicator of the
 * call, for its error text, or NULL. */
ftcclResult_t ft_nccl_config(ftcclComm_t comm, const ncclConfig_t *config, ftcclConfig_t *out);
/* Logs the version once per process. */
void ft_nccl_announce(void);

#endif

/*
 * nccl: libnccl.so.2, NCCL's calls and structs mapped onto ftccl.h. A ncclComm_t is a ftcclComm_t.
 * calls.c has what ftccl.h has too, device.c what kernels and NCCL's own tools use, versions.c what
 * depends on the NCCL that a caller was compiled against.
 */
#ifndef FT_NCCL_SHIM_H
#define FT_NCCL_SHIM_H

#include "api/api.h"

#include <ftccl/nccl.h>

/* pncclX is the function and ncclX a weak name of it, as in NCCL, so that tools can put their own
 * ncclX in front. */
#define CALL(type, name, parameters)                                                  \
    FT_EXPORT __attribute__((weak, alias("pnccl" #name))) type nccl##name parameters; \
    FT_EXPORT type pnccl##name parameters

static inline ftcclComm_t ft_nccl_comm(ncclComm_t comm)
{
    return (ftcclComm_t)(void *)comm;
}

/* NCCL's code; a timeout only for callers that know it. */
ncclResult_t ft_nccl_result(ftcclResult_t result);
/* The configuration of a caller of any version. comm: for whose call it is, or NULL. */
ftcclResult_t ft_nccl_config(ftcclComm_t comm, const ncclConfig_t *config, ftcclConfig_t *out);
/* The log says once in a process what this is. */
void ft_nccl_announce(void);

#endif

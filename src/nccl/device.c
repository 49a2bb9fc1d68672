/*
 * Calls for kernels, tuners and NCCL's own tools. Teams and properties work. Calls that need a
 * communicator inside a kernel, or NCCL's own parameters, return an error that says so.
 */
#include "nccl/shim.h"

#include <string.h>

/* ---- refused --------------------------------------------------------------------------------- */

static ncclResult_t refuse(ncclComm_t comm, const char *call, const char *why)
{
    return ft_nccl_result(ft_shim_fail(ft_nccl_comm(comm), FT_NOTSUP, "nccl%s: %s", call, why));
}

/* nccl.h does not declare the functions of NCCL's headers for kernels. Types that are only used
 * through pointers need no definition. */
#define DECLARE(type, name, parameters) \
    type nccl##name parameters;         \
    type pnccl##name parameters;
#define REFUSE(name, parameters, comm, why) \
    CALL(ncclResult_t, name, parameters)    \
    {                                       \
        return refuse(comm, #name, why);    \
    }
#define REFUSE_NEW(name, parameters, comm, why) \
    DECLARE(ncclResult_t, name, parameters) REFUSE(name, parameters, comm, why)

#define NO_KERNELS                                                                          \
    "FTCCL has no communicators, windows or barriers inside kernels: the CPU drives every " \
    "transfer"
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wunused-parameter"
REFUSE_NEW(DevCommCreate, (ncclComm_t comm, const void *requirements, void *outDevComm), comm,
           NO_KERNELS)
REFUSE_NEW(DevCommDestroy, (ncclComm_t comm, const void *devComm), comm, NO_KERNELS)
REFUSE_NEW(LsaBarrierCreateRequirement,
           (ncclTeam_t team, int nBarriers, void *outHandle, void *outRequirement), NULL,
           NO_KERNELS)
REFUSE_NEW(GinBarrierCreateRequirement,
           (ncclComm_t comm, ncclTeam_t team, int nBarriers, void *outHandle, void *outRequirement),
           comm, NO_KERNELS)
REFUSE_NEW(LLA2ACreateRequirement, (int nBlocks, int nSlots, void *outHandle, void *outRequirement),
           NULL, NO_KERNELS)
REFUSE_NEW(GinOutboxCreateRequirement,
           (int nBlocks, int log2Size, void *outHandle, void *outRequirement), NULL, NO_KERNELS)
REFUSE_NEW(GinInboxA2ACreateRequirement,
           (ncclTeam_t peers, int nBlocks, int log2Size, void *outHandle, void *outRequirement),
           NULL, NO_KERNELS)
REFUSE_NEW(GetLsaMultimemDevicePointer, (ncclWindow_t window, size_t offset, void **outPtr), NULL,
           NO_KERNELS)
REFUSE_NEW(GetLsaDevicePointer, (ncclWindow_t window, size_t offset, int lsaRank, void **outPtr),
           NULL, NO_KERNELS)
REFUSE_NEW(GetPeerDevicePointer, (ncclWindow_t window, size_t offset, int peer, void **outPtr),
           NULL, NO_KERNELS)
typedef struct {
    void *base;
} ncclMultimemHandle_t;
REFUSE_NEW(GetMultimemDevicePointer,
           (ncclWindow_t window, size_t offset, ncclMultimemHandle_t multimem, void **outPtr), NULL,
           NO_KERNELS)

#define NO_SUSPEND \
    "FTCCL's communicators cannot give their memory back for a while; destroy and make them again"
REFUSE(CommSuspend, (ncclComm_t comm, int flags), comm, NO_SUSPEND)
REFUSE(CommResume, (ncclComm_t comm), comm, NO_SUSPEND)

#define NO_PARAMETERS "FTCCL has parameters of its own: ftccl-info -p shows them"
REFUSE(ParamBind, (ncclParamHandle_t * out, const char *key), NULL, NO_PARAMETERS)
REFUSE(ParamGetI8, (ncclParamHandle_t h, int8_t *out), NULL, NO_PARAMETERS)
REFUSE(ParamGetI16, (ncclParamHandle_t h, int16_t *out), NULL, NO_PARAMETERS)
REFUSE(ParamGetI32, (ncclParamHandle_t h, int32_t *out), NULL, NO_PARAMETERS)
REFUSE(ParamGetI64, (ncclParamHandle_t h, int64_t *out), NULL, NO_PARAMETERS)
REFUSE(ParamGetU8, (ncclParamHandle_t h, uint8_t *out), NULL, NO_PARAMETERS)
REFUSE(ParamGetU16, (ncclParamHandle_t h, uint16_t *out), NULL, NO_PARAMETERS)
REFUSE(ParamGetU32, (ncclParamHandle_t h, uint32_t *out), NULL, NO_PARAMETERS)
REFUSE(ParamGetU64, (ncclParamHandle_t h, uint64_t *out), NULL, NO_PARAMETERS)
REFUSE(ParamGetStr, (ncclParamHandle_t h, const char **out), NULL, NO_PARAMETERS)
REFUSE(ParamGet, (ncclParamHandle_t h, void *out, int maxLen, int *len), NULL, NO_PARAMETERS)
REFUSE(ParamGetParameter, (const char *key, const char **value, int *valueLen), NULL, NO_PARAMETERS)
REFUSE(ParamGetAllParameterKeys, (const char ***table, int *tableLen), NULL, NO_PARAMETERS)
CALL(void, ParamDumpAll, (void))
{
    refuse(NULL, "ParamDumpAll", NO_PARAMETERS);
}
#pragma GCC diagnostic pop

/* ---- teams ----------------------------------------------------------------------------------- */

/* The team of all ranks. An invalid communicator gives an empty team. */
CALL(ncclTeam_t, TeamWorld, (ncclComm_t comm))
{
    ncclTeam_t team = {0, 0, 1};
    if (ftcclCommCount(ft_nccl_comm(comm), &team.nRanks) != ftcclSuccess ||
        ftcclCommUserRank(ft_nccl_comm(comm), &team.rank) != ftcclSuccess)
        return (ncclTeam_t){0, 0, 0};
    return team;
}

/* The ranks whose memory a kernel could load from: each rank is alone. So the rail team, which has
 * one rank of each such team, contains all ranks. */
CALL(ncclTeam_t, TeamLsa, (ncclComm_t comm))
{
    return pncclTeamWorld(comm).nRanks > 0 ? (ncclTeam_t){1, 0, 1} : (ncclTeam_t){0, 0, 0};
}
CALL(ncclTeam_t, TeamRail, (ncclComm_t comm))
{
    return pncclTeamWorld(comm);
}

/* Converts a rank of `team` to its rank in another team. This rank has the number `self` in that
 * other team. */
static int rank_in_team(int self, ncclTeam_t team, int rank)
{
    return self + (rank - team.rank) * team.stride;
}

CALL(int, TeamRankToWorld, (ncclComm_t comm, ncclTeam_t team, int rank))
{
    return rank_in_team(pncclTeamWorld(comm).rank, team, rank);
}
CALL(int, TeamRankToLsa, (ncclComm_t comm, ncclTeam_t team, int rank))
{
    return rank_in_team(pncclTeamLsa(comm).rank, team, rank);
}

/* Number of 8-byte slots for so many elements. */
DECLARE(int, LLA2ACalcSlots, (int maxElts, int maxEltSize))
CALL(int, LLA2ACalcSlots, (int maxElts, int maxEltSize))
{
    return maxElts * ((maxEltSize + 7) / 8);
}

/* ---- properties ------------------------------------------------------------------------------ */

/* NCCL's struct; it grew from 2.29.2 (up to ginType) to 2.29.7. */
typedef struct ncclCommProperties {
    size_t size;
    unsigned int magic;
    unsigned int version;
    int rank;
    int nRanks;
    int cudaDev;
    int nvmlDev;
    bool deviceApiSupport;
    bool multimemSupport;
    int ginType;
    int nLsaTeams;
    bool hostRmaSupport;
    int railedGinType;
} ncclCommProperties_t;

DECLARE(ncclResult_t, CommQueryProperties, (ncclComm_t comm, ncclCommProperties_t *properties))
CALL(ncclResult_t, CommQueryProperties, (ncclComm_t comm, ncclCommProperties_t *properties))
{
    const size_t head = offsetof(ncclCommProperties_t, rank);
    ncclCommProperties_t p = {0};
    if (!properties || properties->magic != NCCL_API_MAGIC || properties->size < head)
        return ft_nccl_result(ft_shim_fail(ft_nccl_comm(comm), FT_INVAL,
                                           "CommQueryProperties: properties is NULL or was not "
                                           "initialised with NCCL_COMM_PROPERTIES_INITIALIZER"));
    ftcclResult_t result = ftcclCommUserRank(ft_nccl_comm(comm), &p.rank);
    if (result == ftcclSuccess)
        result = ftcclCommCount(ft_nccl_comm(comm), &p.nRanks);
    if (result == ftcclSuccess)
        result = ftcclCommCuDevice(ft_nccl_comm(comm), &p.cudaDev);
    if (result != ftcclSuccess)
        return ft_nccl_result(result);
    p.nvmlDev = p.cudaDev;
    p.nLsaTeams = p.nRanks;
    memcpy((char *)properties + head, (const char *)&p + head,
           ft_min(properties->size, sizeof p) - head);
    return ncclSuccess;
}

/* FTCCL holds no GPU memory that this call counts. */
CALL(ncclResult_t, CommMemStats, (ncclComm_t comm, ncclCommMemStat_t stat, uint64_t *value))
{
    int rank;
    if (!value || (unsigned)stat > ncclStatGpuMemTotal)
        return ft_nccl_result(ft_shim_fail(ft_nccl_comm(comm), FT_INVAL,
                                           "CommMemStats: value is NULL, or %d is not a statistic",
                                           (int)stat));
    ftcclResult_t result = ftcclCommUserRank(ft_nccl_comm(comm), &rank);
    if (result == ftcclSuccess)
        *value = 0;
    return ft_nccl_result(result);
}

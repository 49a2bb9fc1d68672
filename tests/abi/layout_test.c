/*
 * Property: ftccl.h has NCCL's values and layouts, so a program moves from one to the other by
 * changing the prefix. Our own nccl.h has them, too. Method: static assertions, compiled twice:
 * against NVIDIA's nccl.h if configure found one (else exit status 77), and against ours.
 */
#include "tests/abi/nccl_header.h"
#include <stdio.h>

#ifdef FT_NO_NCCL_HEADER
int main(void)
{
    puts(FT_NO_NCCL_HEADER);
    return 77;
}
#else
#include <ftccl.h>
#include <stddef.h>

#define SAME(name) \
    _Static_assert((long long)ftccl##name == (long long)nccl##name, "value of " #name)
SAME(Success);
SAME(UnhandledCudaError);
SAME(SystemError);
SAME(InternalError);
SAME(InvalidArgument);
SAME(InvalidUsage);
SAME(RemoteError);
SAME(InProgress);
#if FT_NCCL_INTERFACE >= NCCL_VERSION(2, 29, 0)
SAME(Timeout);
SAME(NumResults);
#else
_Static_assert((int)ftcclTimeout >= (int)ncclNumResults, "a code of NCCL's");
#endif

SAME(Sum);
SAME(Prod);
SAME(Max);
SAME(Min);
SAME(Avg);
SAME(NumOps);
SAME(MaxRedOp);
_Static_assert(sizeof(ftcclRedOp_t) == sizeof(ncclRedOp_t), "operators made at run time");

SAME(Int8);
SAME(Char);
SAME(Uint8);
SAME(Int32);
SAME(Int);
SAME(Uint32);
SAME(Int64);
SAME(Uint64);
SAME(Float16);
SAME(Half);
SAME(Float32);
SAME(Float);
SAME(Float64);
SAME(Double);
SAME(Bfloat16);
#if FT_NCCL_INTERFACE >= NCCL_VERSION(2, 24, 0)
SAME(Float8e4m3);
SAME(Float8e5m2);
SAME(NumTypes);
#endif
SAME(ScalarDevice);
SAME(ScalarHostImmediate);

_Static_assert(sizeof(ftcclUniqueId) == sizeof(ncclUniqueId), "unique id");
_Static_assert(FTCCL_UNIQUE_ID_BYTES == NCCL_UNIQUE_ID_BYTES, "unique id");
_Static_assert(FTCCL_CONFIG_UNDEF_INT == NCCL_CONFIG_UNDEF_INT, "unset number");
_Static_assert(FTCCL_SPLIT_NOCOLOR == NCCL_SPLIT_NOCOLOR, "no color");

#define SAME_FIELD(type, name)                                                              \
    _Static_assert(offsetof(ftccl##type, name) == offsetof(nccl##type, name) &&             \
                       sizeof(((ftccl##type *)0)->name) == sizeof(((nccl##type *)0)->name), \
                   #type "." #name)
SAME_FIELD(Config_t, size);
SAME_FIELD(Config_t, magic);
SAME_FIELD(Config_t, version);
SAME_FIELD(Config_t, blocking);
SAME_FIELD(Config_t, cgaClusterSize);
SAME_FIELD(Config_t, minCTAs);
SAME_FIELD(Config_t, maxCTAs);
SAME_FIELD(Config_t, netName);
SAME_FIELD(Config_t, splitShare);
#if FT_NCCL_INTERFACE >= NCCL_VERSION(2, 28, 0)
SAME_FIELD(Config_t, trafficClass);
SAME_FIELD(Config_t, commName);
SAME_FIELD(Config_t, collnetEnable);
SAME_FIELD(Config_t, CTAPolicy);
SAME_FIELD(Config_t, shrinkShare);
SAME_FIELD(Config_t, nvlsCTAs);
SAME_FIELD(Config_t, nChannelsPerNetPeer);
SAME_FIELD(Config_t, nvlinkCentricSched);
_Static_assert(NCCL_SHRINK_ABORT == FTCCL_SHRINK_ABORT &&
                   NCCL_REVOKE_DEFAULT == FTCCL_REVOKE_DEFAULT,
               "flags");
_Static_assert(NCCL_WIN_DEFAULT == FTCCL_WIN_DEFAULT &&
                   NCCL_WIN_COLL_SYMMETRIC == FTCCL_WIN_COLL_SYMMETRIC,
               "flags of windows");
#endif
#if FT_NCCL_INTERFACE >= NCCL_VERSION(2, 29, 0)
SAME_FIELD(Config_t, graphUsageMode);
SAME_FIELD(Config_t, numRmaCtx);
_Static_assert(sizeof(ftcclWaitSignalDesc_t) == sizeof(ncclWaitSignalDesc_t),
               "descriptor of a wait");
SAME_FIELD(WaitSignalDesc_t, opCnt);
SAME_FIELD(WaitSignalDesc_t, peer);
SAME_FIELD(WaitSignalDesc_t, sigIdx);
SAME_FIELD(WaitSignalDesc_t, ctx);
#endif
#if FT_NCCL_INTERFACE >= NCCL_VERSION(2, 30, 5)
SAME_FIELD(Config_t, maxP2pPeers);
SAME_FIELD(Config_t, graphStreamOrdering);
#endif
#if FT_NCCL_INTERFACE >= NCCL_VERSION(2, 22, 0)
_Static_assert(sizeof(ftcclSimInfo_t) == sizeof(ncclSimInfo_t), "simulation");
SAME_FIELD(SimInfo_t, size);
SAME_FIELD(SimInfo_t, magic);
SAME_FIELD(SimInfo_t, version);
SAME_FIELD(SimInfo_t, estimatedTime);
static const ftcclSimInfo_t ours = FTCCL_SIM_INFO_INITIALIZER;
static const ncclSimInfo_t theirs = NCCL_SIM_INFO_INITIALIZER;
#endif

/* A cudaStream_t passes as it is. */
static ftcclStream_t as_ours(cudaStream_t stream)
{
    return stream;
}

int main(void)
{
    if (as_ours(NULL) != NULL)
        return 1;
#if FT_NCCL_INTERFACE >= NCCL_VERSION(2, 22, 0)
    if (ours.magic != theirs.magic || ours.estimatedTime != theirs.estimatedTime) {
        printf("simulation: magic %#x, estimate %g; NCCL has %#x, %g\n", ours.magic,
               (double)ours.estimatedTime, theirs.magic, (double)theirs.estimatedTime);
        return 1;
    }
#endif
    printf("ftccl.h agrees with nccl.h, version %d\n", FT_NCCL_INTERFACE);
    return 0;
}
#endif

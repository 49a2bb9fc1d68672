/*
 * Property: ftccl.h has NCCL's values and layouts, so that a program moves from one to the other by changing the prefix.
 * Method: static assertions against the nccl.h that configure found; without one there is nothing to compare with (77).
 */
#include <stdio.h>

#ifndef FT_HAVE_NCCL_H
int main(void)
{
    puts("no nccl.h and cuda.h: configure --with-cuda=DIR names them");
    return 77;
}
#else
#include <ftccl.h>
#include <nccl.h>
#include <stddef.h>

#define SAME(name) _Static_assert((long long)ftccl##name == (long long)nccl##name, "value of " #name)
SAME(Success);
SAME(UnhandledCudaError);
SAME(SystemError);
SAME(InternalError);
SAME(InvalidArgument);
SAME(InvalidUsage);
SAME(RemoteError);
SAME(InProgress);
_Static_assert((int)ftcclTimeout >= (int)ncclNumResults || NCCL_VERSION_CODE >= NCCL_VERSION(2, 29, 0), "a code of NCCL's");

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
#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 24, 0)
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

#define SAME_FIELD(type, name)                                                                   \
    _Static_assert(offsetof(ftccl##type, name) == offsetof(nccl##type, name) &&                  \
                       sizeof(((ftccl##type *)0)->name) == sizeof(((nccl##type *)0)->name),      \
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
#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 28, 0)
SAME_FIELD(Config_t, trafficClass);
SAME_FIELD(Config_t, commName);
SAME_FIELD(Config_t, collnetEnable);
SAME_FIELD(Config_t, CTAPolicy);
SAME_FIELD(Config_t, shrinkShare);
SAME_FIELD(Config_t, nvlsCTAs);
SAME_FIELD(Config_t, nChannelsPerNetPeer);
SAME_FIELD(Config_t, nvlinkCentricSched);
#endif
#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 22, 0)
_Static_assert(sizeof(ftcclSimInfo_t) == sizeof(ncclSimInfo_t), "simulation");
SAME_FIELD(SimInfo_t, size);
SAME_FIELD(SimInfo_t, magic);
SAME_FIELD(SimInfo_t, version);
SAME_FIELD(SimInfo_t, estimatedTime);
static const ftcclSimInfo_t ours = FTCCL_SIM_INFO_INITIALIZER;
static const ncclSimInfo_t theirs = NCCL_SIM_INFO_INITIALIZER;
#endif

/* A cudaStream_t passes as it is. */
static ftcclStream_t as_ours(cudaStream_t stream) { return stream; }

int main(void)
{
    if (as_ours(NULL) != NULL) return 1;
#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 22, 0)
    if (ours.magic != theirs.magic || ours.estimatedTime != theirs.estimatedTime) {
        printf("simulation: magic %#x, estimate %g; NCCL has %#x, %g\n", ours.magic, (double)ours.estimatedTime, theirs.magic,
               (double)theirs.estimatedTime);
        return 1;
    }
#endif
    printf("ftccl.h agrees with nccl.h %d.%d.%d\n", NCCL_MAJOR, NCCL_MINOR, NCCL_PATCH);
    return 0;
}
#endif

/* Preloaded by perf_test.sh: breaks one operation, to show that the programs' verification finds
 * it. */
#include <dlfcn.h>
#include <ftccl.h>
#include <string.h>

typedef ftcclResult_t all_reduce(const void *, void *, size_t, ftcclDataType_t, ftcclRedOp_t,
                                 ftcclComm_t, ftcclStream_t);
typedef ftcclResult_t all_gather(const void *, void *, size_t, ftcclDataType_t, ftcclComm_t,
                                 ftcclStream_t);

static void *next(const char *name)
{
    return dlsym(RTLD_NEXT, name);
}

/* The last element never comes. */
__attribute__((visibility("default"))) ftcclResult_t ftcclAllReduce(
    const void *send, void *recv, size_t count, ftcclDataType_t type, ftcclRedOp_t op,
    ftcclComm_t comm, ftcclStream_t stream)
{
    all_reduce *real;
    void *found = next("ftcclAllReduce");
    memcpy(&real, &found, sizeof real);
    return real(send, recv, type == ftcclFloat32 && count > 1 ? count - 1 : count, type, op, comm,
                stream);
}

/* The send buffer is damaged. */
__attribute__((visibility("default"))) ftcclResult_t ftcclAllGather(const void *send, void *recv,
                                                                    size_t count,
                                                                    ftcclDataType_t type,
                                                                    ftcclComm_t comm,
                                                                    ftcclStream_t stream)
{
    all_gather *real;
    void *found = next("ftcclAllGather");
    memcpy(&real, &found, sizeof real);
    if (type == ftcclFloat32 && count)
        ++*(unsigned char *)(uintptr_t)send;
    return real(send, recv, count, type, comm, stream);
}

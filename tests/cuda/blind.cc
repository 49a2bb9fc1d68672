/*
 * What a GPU does not tell and does not promise, over the stand-in driver: put in front of a test,
 * so that tests/gpu/run --dry-run finds those which would fail on a GPU for asking it (real.cc
 * answers the same there). Memory of the device begins with other bytes.
 */
#include "standin.h"

#include <dlfcn.h>

#define EXPORT extern "C" __attribute__((visibility("default")))

EXPORT CUresult cuMemAlloc_v2(CUdeviceptr *out, size_t len)
{
    auto real = reinterpret_cast<CUresult (*)(CUdeviceptr *, size_t)>(
        dlsym(RTLD_NEXT, "cuMemAlloc_v2"));
    CUresult result = real(out, len);
    return result == CUDA_SUCCESS ? cuMemsetD8(*out, 0x11, len) : result;
}

EXPORT void standin_fail(const char *, CUresult, int)
{
}
EXPORT int standin_launched()
{
    return STANDIN_UNKNOWN;
}
EXPORT int standin_running()
{
    return 0;
}
EXPORT int standin_live_memory()
{
    return 0;
}
EXPORT int standin_context_users(int)
{
    return STANDIN_UNKNOWN;
}

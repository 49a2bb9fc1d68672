/*
 * Hides what a real GPU does not tell and does not promise. It is linked before the stand-in
 * driver, so that tests/gpu/run --dry-run finds the tests that would fail on a GPU because they ask
 * for it (real.cc gives the same answers there). Also, memory of the device begins with other bytes
 * than zeros.
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

/*
 * Calls of the stand-in driver that need none of its internals. Attributes of a function: asking
 * for one loads the function, as in CUDA; otherwise it may stay out of the device until its first
 * launch. Priorities of streams. Managed memory: memory of the program, registered. With
 * CUDA_LAUNCH_BLOCKING=1 a launch waits for its kernel.
 */
#include <cuda.h> /* where cuLaunchKernel is another name, that of the stand-in's own */
#undef cuLaunchKernel
#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>

#define EXPORT extern "C" __attribute__((visibility("default")))

static std::atomic<int> most_threads{512}, lowest{0};
static std::atomic<bool> loaded{false};

EXPORT CUresult cuFuncGetAttribute(int *out, CUfunction_attribute what, CUfunction)
{
    if (what != CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK)
        return CUDA_ERROR_INVALID_VALUE;
    loaded = true;
    *out = most_threads.exchange(512);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxGetStreamPriorityRange(int *least, int *greatest)
{
    return *least = 0, *greatest = -5, CUDA_SUCCESS;
}

EXPORT CUresult cuStreamCreateWithPriority(CUstream *out, unsigned flags, int priority)
{
    lowest = std::min(lowest.load(), priority);
    return cuStreamCreate(out, flags);
}

/* as a number: the greatest priority of a stream so far */
EXPORT int standin_lowest_priority()
{
    return lowest;
}
EXPORT void standin_put(CUdeviceptr to, const void *from, size_t len, CUstream stream)
{
    cuMemcpyAsync(to, reinterpret_cast<CUdeviceptr>(from), len, stream);
}
EXPORT void standin_get(void *to, CUdeviceptr from, size_t len, CUstream stream)
{
    cuMemcpyAsync(reinterpret_cast<CUdeviceptr>(to), from, len, stream);
}
EXPORT void standin_settle(CUstream)
{
}
EXPORT int standin_is_loaded()
{
    return loaded;
}
/* so many threads a block, said once */
EXPORT void standin_threads(int most)
{
    most_threads = most;
}

EXPORT CUresult cuMemAllocManaged(CUdeviceptr *out, size_t len, unsigned)
{
    void *at = mmap(nullptr, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED)
        return CUDA_ERROR_OUT_OF_MEMORY;
    *out = (CUdeviceptr)at;
    return cuMemHostRegister(at, len, CU_MEMHOSTREGISTER_PORTABLE);
}

EXPORT CUresult cuLaunchKernel(CUfunction kernel, unsigned x, unsigned y, unsigned z, unsigned tx,
                               unsigned ty, unsigned tz, unsigned shared, CUstream stream,
                               void **arguments, void **more)
{
    const char *blocking = getenv("CUDA_LAUNCH_BLOCKING");
    CUstreamCaptureStatus capture = CU_STREAM_CAPTURE_STATUS_ACTIVE;
    CUresult result = standin_launch_kernel(kernel, x, y, z, tx, ty, tz, shared, stream, arguments,
                                            more);
    if (result != CUDA_SUCCESS || !blocking || strcmp(blocking, "1") != 0)
        return result;
    cuStreamIsCapturing(stream, &capture);
    return capture == CU_STREAM_CAPTURE_STATUS_NONE ? cuStreamSynchronize(stream) : CUDA_SUCCESS;
}

/*
 * The stand-in driver's calls about when and with what kernels run: attributes of a function, priorities of streams. Asking for an attribute
 * loads a function, as in CUDA, where it else may stay out of the device till its first launch.
 */
#include <cuda.h>

#include <algorithm>
#include <atomic>

#define EXPORT extern "C" __attribute__((visibility("default")))

static std::atomic<int> most_threads{512}, lowest{0};
static std::atomic<bool> loaded{false};

EXPORT CUresult cuFuncGetAttribute(int *out, CUfunction_attribute what, CUfunction)
{
    if (what != CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK) return CUDA_ERROR_INVALID_VALUE;
    loaded = true;
    *out = most_threads.exchange(512);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxGetStreamPriorityRange(int *least, int *greatest) { return *least = 0, *greatest = -5, CUDA_SUCCESS; }

EXPORT CUresult cuStreamCreateWithPriority(CUstream *out, unsigned flags, int priority)
{
    lowest = std::min(lowest.load(), priority);
    return cuStreamCreate(out, flags);
}

EXPORT int standin_lowest_priority() { return lowest; } /* as a number: the greatest priority of a stream so far */
EXPORT int standin_is_loaded() { return loaded; }
EXPORT void standin_threads(int most) { most_threads = most; } /* so many threads a block, said once */

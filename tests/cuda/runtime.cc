/*
 * A stand-in for CUDA's runtime, libcudart, over the stand-in driver: the calls that program_test
 * makes. As in the real runtime, a thread that has named no device uses the first one, and then
 * retains its primary context.
 */
#include <cuda.h>
#include <cuda_runtime_api.h>

#define EXPORT extern "C" __attribute__((visibility("default")))

static thread_local cudaError_t last = cudaSuccess;

/* The runtime's errors have the driver's numbers. */
static cudaError_t result(CUresult code)
{
    auto error = static_cast<cudaError_t>(code);
    if (error != cudaSuccess && error != cudaErrorNotReady)
        last = error;
    return error;
}

static cudaError_t use(int device)
{
    CUcontext context;
    /* kept for the life of the process, as by the runtime */
    CUresult code = cuDevicePrimaryCtxRetain(&context, device);
    return result(code == CUDA_SUCCESS ? cuCtxSetCurrent(context) : code);
}

static cudaError_t begin()
{
    CUcontext context = nullptr;
    cuCtxGetCurrent(&context);
    return context ? cudaSuccess : use(0);
}

/* One call of the driver's on the thread's device. */
#define ON_DEVICE(call)                                       \
    do {                                                      \
        cudaError_t error_ = begin();                         \
        return error_ != cudaSuccess ? error_ : result(call); \
    } while (0)

static CUdeviceptr at(const void *ptr)
{
    return reinterpret_cast<CUdeviceptr>(ptr);
}

EXPORT cudaError_t cudaGetDeviceCount(int *count)
{
    return result(cuDeviceGetCount(count));
}
EXPORT cudaError_t cudaSetDevice(int device)
{
    return use(device);
}
EXPORT cudaError_t cudaGetDevice(int *device)
{
    ON_DEVICE(cuCtxGetDevice(device));
}
EXPORT cudaError_t cudaGetLastError()
{
    return last;
}
EXPORT const char *cudaGetErrorString(cudaError_t error)
{
    return error == cudaSuccess ? "no error" : "an error of the stand-in runtime";
}

EXPORT cudaError_t cudaMalloc(void **ptr, size_t size)
{
    ON_DEVICE(cuMemAlloc(reinterpret_cast<CUdeviceptr *>(ptr), size));
}
EXPORT cudaError_t cudaFree(void *ptr)
{
    ON_DEVICE(ptr ? cuMemFree(at(ptr)) : CUDA_SUCCESS);
}

EXPORT cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t size, cudaMemcpyKind,
                                   cudaStream_t stream)
{
    ON_DEVICE(cuMemcpyAsync(at(to), at(from), size, stream));
}

EXPORT cudaError_t cudaMemcpy(void *to, const void *from, size_t size, cudaMemcpyKind kind)
{
    cudaError_t error = cudaMemcpyAsync(to, from, size, kind, nullptr);
    return error != cudaSuccess ? error : result(cuStreamSynchronize(nullptr));
}

EXPORT cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned flags)
{
    ON_DEVICE(cuStreamCreate(stream, flags));
}
EXPORT cudaError_t cudaStreamCreate(cudaStream_t *stream)
{
    return cudaStreamCreateWithFlags(stream, cudaStreamDefault);
}
EXPORT cudaError_t cudaStreamDestroy(cudaStream_t stream)
{
    ON_DEVICE(cuStreamDestroy(stream));
}
EXPORT cudaError_t cudaStreamQuery(cudaStream_t stream)
{
    ON_DEVICE(cuStreamQuery(stream));
}
EXPORT cudaError_t cudaStreamSynchronize(cudaStream_t stream)
{
    ON_DEVICE(cuStreamSynchronize(stream));
}
EXPORT cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags)
{
    ON_DEVICE(cuStreamWaitEvent(stream, event, flags));
}

EXPORT cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned flags)
{
    ON_DEVICE(cuEventCreate(event, flags));
}
EXPORT cudaError_t cudaEventDestroy(cudaEvent_t event)
{
    ON_DEVICE(cuEventDestroy(event));
}
EXPORT cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream)
{
    ON_DEVICE(cuEventRecord(event, stream));
}
EXPORT cudaError_t cudaEventQuery(cudaEvent_t event)
{
    ON_DEVICE(cuEventQuery(event));
}
EXPORT cudaError_t cudaEventSynchronize(cudaEvent_t event)
{
    ON_DEVICE(cuEventSynchronize(event));
}

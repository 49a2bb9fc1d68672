/*
 * The driver's calls that the device uses, found in libcuda.so.1 when a device is opened for the
 * first time. Nothing is linked to it.
 */
#ifndef FT_CUDA_DRIVER_H
#define FT_CUDA_DRIVER_H

#include <cuda.h>
#include <stdbool.h>

/* The names stand for the versions that cuda.h defines them to. */
/* clang-format off */
#define FT_CUDA_CALLS(X) \
    X(cuInit) \
    X(cuDeviceGet) \
    X(cuDeviceGetCount) \
    X(cuDeviceGetName) \
    X(cuCtxGetCurrent) \
    X(cuCtxGetDevice) \
    X(cuCtxPushCurrent) \
    X(cuCtxPopCurrent) \
    X(cuDevicePrimaryCtxRetain) \
    X(cuDevicePrimaryCtxRelease) \
    X(cuDevicePrimaryCtxGetState) \
    X(cuModuleLoadData) \
    X(cuModuleUnload) \
    X(cuModuleGetFunction) \
    X(cuFuncGetAttribute) \
    X(cuLaunchKernel) \
    X(cuCtxGetStreamPriorityRange) \
    X(cuStreamCreateWithPriority) \
    X(cuStreamDestroy) \
    X(cuStreamWaitEvent) \
    X(cuStreamIsCapturing) \
    X(cuEventCreate) \
    X(cuEventRecord) \
    X(cuEventDestroy) \
    X(cuMemHostAlloc) \
    X(cuMemFreeHost) \
    X(cuMemHostGetDevicePointer) \
    X(cuMemHostRegister) \
    X(cuMemHostUnregister) \
    X(cuStreamGetCaptureInfo_v3) \
    X(cuStreamUpdateCaptureDependencies_v2) \
    X(cuThreadExchangeStreamCaptureMode) \
    X(cuUserObjectCreate) \
    X(cuUserObjectRelease) \
    X(cuGraphRetainUserObject) \
    X(cuMemAlloc) \
    X(cuMemFree) \
    X(cuMemsetD8) \
    X(cuPointerGetAttribute) \
    X(cuPointerGetAttributes) \
    X(cuDeviceCanAccessPeer) \
    X(cuCtxEnablePeerAccess) \
    X(cuIpcGetMemHandle) \
    X(cuIpcOpenMemHandle) \
    X(cuIpcCloseMemHandle) \
    X(cuGetErrorName) \
    X(cuGetErrorString)
/* clang-format on */

struct ft_cuda_driver {
#define X(call) __typeof__(call) *call;
    FT_CUDA_CALLS(X)
#undef X
};

/* The driver, initialised. `load`: also if nothing in this process has loaded it yet. FT_NOTSUP
 * with a sentence: there is none. */
int ft_cuda_driver(bool load, const struct ft_cuda_driver **out);
/* FT_OK, or the status of a call that failed, with a sentence that names it. */
int ft_cuda_check(const struct ft_cuda_driver *driver, CUresult result, const char *call);
#define FT_CUDA(driver, call, ...) ft_cuda_check((driver), (driver)->call(__VA_ARGS__), #call)

#endif

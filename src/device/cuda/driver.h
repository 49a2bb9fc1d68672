/*
 * The driver's functions that the device uses. They are looked up in libcuda.so.1 when a device is
 * opened for the first time. Nothing is linked with that library.
 */
#ifndef FT_CUDA_DRIVER_H
#define FT_CUDA_DRIVER_H

#include <cuda.h>
#include <stdbool.h>

/* cuda.h defines each name to its current version. */
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

/* Returns the initialised driver. `load`: load it even if nothing in this process has loaded it
 * yet. Returns FT_NOTSUP with a sentence if there is none. */
int ft_cuda_driver(bool load, const struct ft_cuda_driver **out);
/* Returns FT_OK, or a status with a sentence that names the failed call. */
int ft_cuda_check(const struct ft_cuda_driver *driver, CUresult result, const char *call);
#define FT_CUDA(driver, call, ...) ft_cuda_check((driver), (driver)->call(__VA_ARGS__), #call)

#endif

/*
 * The CUDA device: the GPU of a context of the program's. Kernels are loaded then, so that nothing has to be while an
 * operation runs.
 */
#include "device/cuda/cuda.h"
#include "device/cuda/open.h"

#include <stdlib.h>
#include <string.h>

static int enter(const struct ft_cuda_device *cuda) { return FT_CUDA(cuda->driver, cuCtxPushCurrent, cuda->context); }

static void leave(const struct ft_cuda_device *cuda)
{
    CUcontext popped;
    cuda->driver->cuCtxPopCurrent(&popped);
}

void *ft_cuda_context(bool load)
{
    const struct ft_cuda_driver *driver;
    CUcontext context = NULL;
    if (ft_cuda_driver(load, &driver) != FT_OK || driver->cuCtxGetCurrent(&context) != CUDA_SUCCESS) return NULL;
    return context;
}

static int find_device(struct ft_cuda_device *cuda)
{
    if (cuda->context) {
        int rc = enter(cuda);
        if (rc != FT_OK) return rc;
        rc = FT_CUDA(cuda->driver, cuCtxGetDevice, &cuda->number);
        leave(cuda);
        return rc;
    }
    int rc = FT_CUDA(cuda->driver, cuDeviceGet, &cuda->number, 0);
    if (rc == FT_OK) rc = FT_CUDA(cuda->driver, cuDevicePrimaryCtxRetain, &cuda->context, cuda->number);
    cuda->primary = rc == FT_OK;
    return rc == FT_OK ? FT_OK : FT_NOTSUP;
}

static int load_kernel(struct ft_cuda_device *cuda)
{
    char gpu[64] = "";
    int rc = enter(cuda);
    if (rc != FT_OK) return rc;
    rc = FT_CUDA(cuda->driver, cuModuleLoadData, &cuda->module, ft_cuda_image);
    if (rc == FT_OK) rc = FT_CUDA(cuda->driver, cuModuleGetFunction, &cuda->kernel, cuda->module, FT_CUDA_KERNEL);
    if (rc == FT_OK) rc = FT_CUDA(cuda->driver, cuDeviceGetName, gpu, (int)sizeof gpu, cuda->number);
    snprintf(cuda->name, sizeof cuda->name, "cuda device %d (%s)", (int)cuda->number, gpu);
    leave(cuda);
    return rc;
}

static const struct ft_device_ops ops;

int ft_cuda_open(void *context, struct ft_device **out)
{
    struct ft_cuda_device *cuda = calloc(1, sizeof *cuda);
    if (!cuda) return ft_fail(FT_NOMEM, "no memory for the CUDA device");
    atomic_store(&cuda->refs, 1);
    cuda->blocks = (unsigned)ft_param_int(FT_PARAM_CUDA_BLOCKS);
    cuda->threads = (unsigned)ft_param_int(FT_PARAM_CUDA_THREADS);
    cuda->base = (struct ft_device){.ops = &ops, .name = cuda->name};
    cuda->context = context;
    int rc = ft_cuda_driver(true, &cuda->driver);
    if (rc == FT_OK) rc = find_device(cuda);
    if (rc == FT_OK) rc = load_kernel(cuda);
    if (rc != FT_OK) {
        ft_cuda_device_release(cuda);
        return rc;
    }
    *out = &cuda->base;
    return FT_OK;
}

void ft_cuda_device_release(struct ft_cuda_device *cuda)
{
    if (atomic_fetch_sub_explicit(&cuda->refs, 1, memory_order_acq_rel) != 1) return;
    if (cuda->module && enter(cuda) == FT_OK) {
        cuda->driver->cuModuleUnload(cuda->module);
        leave(cuda);
    }
    if (cuda->primary) cuda->driver->cuDevicePrimaryCtxRelease(cuda->number);
    free(cuda);
}

static void cuda_close(struct ft_device *device) { ft_cuda_device_release(FT_CONTAINER(device, struct ft_cuda_device, base)); }

static int cuda_alloc(struct ft_device *device, size_t len_bytes, void **out)
{
    struct ft_cuda_device *cuda = FT_CONTAINER(device, struct ft_cuda_device, base);
    CUdeviceptr at = 0;
    int rc = enter(cuda);
    if (rc != FT_OK) return rc;
    rc = FT_CUDA(cuda->driver, cuMemAlloc, &at, len_bytes ? len_bytes : 1);
    if (rc == FT_OK) rc = FT_CUDA(cuda->driver, cuMemsetD8, at, 0, len_bytes ? len_bytes : 1);
    if (rc != FT_OK && at) cuda->driver->cuMemFree(at);
    leave(cuda);
    if (rc == FT_OK) *out = (void *)(uintptr_t)at;
    return rc;
}

static void cuda_free(struct ft_device *device, void *ptr, size_t len_bytes)
{
    struct ft_cuda_device *cuda = FT_CONTAINER(device, struct ft_cuda_device, base);
    (void)len_bytes;
    if (!ptr || enter(cuda) != FT_OK) return;
    cuda->driver->cuMemFree((CUdeviceptr)(uintptr_t)ptr);
    leave(cuda);
}

/* Device, managed and host-registered memory; the driver knows nothing of the rest. */
static bool cuda_owns(struct ft_device *device, const void *ptr)
{
    const struct ft_cuda_device *cuda = FT_CONTAINER(device, struct ft_cuda_device, base);
    unsigned type = 0;
    CUresult result = cuda->driver->cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, (CUdeviceptr)(uintptr_t)ptr);
    return ptr && result == CUDA_SUCCESS;
}

static const struct ft_device_ops ops = {
    .name = "cuda",
    .close = cuda_close,
    .alloc = cuda_alloc,
    .free = cuda_free,
    .owns = cuda_owns,
    .queue = &ft_cuda_queue_ops,
};

/*
 * The CUDA device: the GPU of the program's context. Opening it loads all kernels, so that nothing
 * has to be loaded while an operation runs.
 */
#include "device/cuda/cuda.h"
#include "device/cuda/open.h"

#include <stdlib.h>
#include <string.h>

/* the capture mode that this thread had before ft_cuda_enter() */
static _Thread_local CUstreamCaptureMode outside;

int ft_cuda_enter(const struct ft_cuda_device *cuda)
{
    int rc = FT_CUDA(cuda->driver, cuCtxPushCurrent, cuda->context);
    outside = CU_STREAM_CAPTURE_MODE_RELAXED;
    if (rc == FT_OK)
        cuda->driver->cuThreadExchangeStreamCaptureMode(&outside);
    return rc;
}

void ft_cuda_leave(const struct ft_cuda_device *cuda)
{
    CUcontext popped;
    cuda->driver->cuThreadExchangeStreamCaptureMode(&outside);
    cuda->driver->cuCtxPopCurrent(&popped);
}

/* ---- selection ------------------------------------------------------------------------------- */

struct ft_device_gpu ft_cuda_of_thread(bool load)
{
    const struct ft_cuda_driver *driver;
    CUcontext context = NULL;
    CUdevice first;
    unsigned flags;
    int active = 0;
    if (ft_cuda_driver(load, &driver) != FT_OK || driver->cuCtxGetCurrent(&context) != CUDA_SUCCESS)
        return (struct ft_device_gpu){0};
    if (context)
        return (struct ft_device_gpu){.context = context};
    if (driver->cuDeviceGet(&first, 0) != CUDA_SUCCESS ||
        driver->cuDevicePrimaryCtxGetState(first, &flags, &active) != CUDA_SUCCESS)
        active = 0;
    return (struct ft_device_gpu){.numbered = active != 0};
}

struct ft_device_gpu ft_cuda_numbered(int number)
{
    const struct ft_cuda_driver *driver;
    struct ft_device_gpu mine = ft_cuda_of_thread(false);
    CUdevice device;
    bool on_it = mine.context && ft_cuda_driver(false, &driver) == FT_OK &&
                 driver->cuCtxGetDevice(&device) == CUDA_SUCCESS && device == number;
    return on_it ? mine : (struct ft_device_gpu){.numbered = true, .number = number};
}

int ft_cuda_count(void)
{
    const struct ft_cuda_driver *driver;
    int count = 0;
    return ft_cuda_driver(false, &driver) == FT_OK &&
                   driver->cuDeviceGetCount(&count) == CUDA_SUCCESS
               ? count
               : 0;
}

/* Returns the context. The primary context of a numbered GPU is retained. */
static int take_context(const struct ft_cuda_driver *driver, struct ft_device_gpu which,
                        CUcontext *out)
{
    CUdevice device = 0;
    if (which.context)
        return *out = which.context, FT_OK;
    int rc = FT_CUDA(driver, cuDeviceGet, &device, which.number);
    return rc == FT_OK ? FT_CUDA(driver, cuDevicePrimaryCtxRetain, out, device) : rc;
}

/* ---- open and close -------------------------------------------------------------------------- */

static int find_device(struct ft_cuda_device *cuda, struct ft_device_gpu which)
{
    int rc = take_context(cuda->driver, which, &cuda->context);
    cuda->primary = rc == FT_OK && !which.context;
    if (!which.context && rc != FT_OK)
        return FT_NOTSUP;
    if (rc == FT_OK)
        rc = ft_cuda_enter(cuda);
    if (rc != FT_OK)
        return rc;
    rc = FT_CUDA(cuda->driver, cuCtxGetDevice, &cuda->number);
    ft_cuda_leave(cuda);
    cuda->base.number = (int)cuda->number;
    return rc;
}

/* Loads the kernel completely. The driver may otherwise defer that to the first launch, and the
 * launch would then wait for kernels of other ranks of the process. */
static int load_kernel(struct ft_cuda_device *cuda)
{
    char gpu[64] = "";
    int most = 0;
    int rc = ft_cuda_enter(cuda);
    if (rc != FT_OK)
        return rc;
    rc = FT_CUDA(cuda->driver, cuModuleLoadData, &cuda->module, ft_cuda_image);
    if (rc == FT_OK)
        rc = FT_CUDA(cuda->driver, cuModuleGetFunction, &cuda->kernel, cuda->module,
                     FT_CUDA_KERNEL);
    if (rc == FT_OK)
        rc = FT_CUDA(cuda->driver, cuFuncGetAttribute, &most,
                     CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK, cuda->kernel);
    if (rc == FT_OK && cuda->threads > (unsigned)most)
        rc = ft_fail(FT_INVAL,
                     "FTCCL_CUDA_THREADS is %u: the kernel runs with at most %d on this GPU",
                     cuda->threads, most);
    if (rc == FT_OK)
        rc = FT_CUDA(cuda->driver, cuDeviceGetName, gpu, (int)sizeof gpu, cuda->number);
    snprintf(cuda->name, sizeof cuda->name, "cuda device %d (%s)", (int)cuda->number, gpu);
    ft_cuda_leave(cuda);
    return rc;
}

/* Registers a chunk with the device, at the same address, and shows it. Entered. */
static int show_chunk(const struct ft_cuda_device *cuda, struct ft_pinned *chunk)
{
    const struct ft_cuda_driver *driver = cuda->driver;
    CUdeviceptr dev_ptr = 0;
    int rc = FT_CUDA(driver, cuMemHostRegister, chunk->at, chunk->len_bytes,
                     CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP);
    if (rc != FT_OK)
        return rc;
    rc = FT_CUDA(driver, cuMemHostGetDevicePointer, &dev_ptr, chunk->at, 0);
    if (rc == FT_OK && dev_ptr != (uintptr_t)chunk->at)
        rc = ft_fail(FT_NOTSUP, "pinned memory has another address on the device");
    if (rc == FT_OK)
        rc = ft_pinned_show(chunk);
    if (rc != FT_OK)
        driver->cuMemHostUnregister(chunk->at);
    return rc;
}

static void hide_chunk(struct ft_cuda_device *cuda, struct ft_pinned *chunk)
{
    ft_cuda_unshare(cuda, chunk);
    if (chunk->shown)
        ft_pinned_hide(chunk), cuda->driver->cuMemHostUnregister(chunk->at);
    ft_pinned_close(chunk);
}

/* Creates pinned memory for the buffers of links. There the device accesses messages without a copy
 * by the CPU. Without pinned memory every message is staged. */
static void make_pinned(struct ft_cuda_device *cuda)
{
    size_t want = (size_t)ft_param_int(FT_PARAM_CUDA_PINNED_BYTES);
    struct ft_pinned *own = NULL;
    if (want == 0 || ft_cuda_enter(cuda) != FT_OK)
        return;
    int rc = ft_pinned_make(want, &own);
    if (rc == FT_OK)
        rc = show_chunk(cuda, own);
    if (rc == FT_OK)
        cuda->base.pinned = own, ft_cuda_share(cuda);
    else
        FT_LOG(INFO, "init", -1, "links have no pinned memory: %s", ft_fail_text());
    if (rc != FT_OK && own)
        ft_pinned_close(own);
    ft_cuda_leave(cuda);
}

static void cuda_reach(struct ft_device *device)
{
    struct ft_cuda_device *cuda = FT_CONTAINER(device, struct ft_cuda_device, base);
    struct ft_pinned *other;
    if (!device->pinned || ft_cuda_enter(cuda) != FT_OK)
        return;
    pthread_mutex_lock(&cuda->reaching);
    while ((other = ft_pinned_unshown(device->pinned))) {
        other->refused = show_chunk(cuda, other) != FT_OK;
        if (!other->refused)
            ft_cuda_share_meet(cuda, other);
        else
            FT_LOG(INFO, "init", -1,
                   "the pinned memory of a peer is not reached, and its messages are staged: %s",
                   ft_fail_text());
    }
    while (ft_cuda_commands_done(cuda) && !ft_cuda_kernel_pending() &&
           (other = ft_pinned_take_unkept(device->pinned, false)))
        hide_chunk(cuda, other);
    pthread_mutex_unlock(&cuda->reaching);
    ft_cuda_leave(cuda);
}

static const struct ft_device_ops ops;

int ft_cuda_open(struct ft_device_gpu which, struct ft_device **out)
{
    struct ft_cuda_device *cuda = calloc(1, sizeof *cuda);
    if (!cuda)
        return ft_fail(FT_NOMEM, "no memory for the CUDA device");
    ft_cuda_reap();
    atomic_store(&cuda->refs, 1);
    pthread_mutex_init(&cuda->reaching, NULL);
    cuda->blocks = (unsigned)ft_param_int(FT_PARAM_CUDA_BLOCKS);
    cuda->threads = (unsigned)ft_param_int(FT_PARAM_CUDA_THREADS);
    cuda->base = (struct ft_device){.ops = &ops, .name = cuda->name};
    int rc = ft_cuda_driver(true, &cuda->driver);
    if (rc == FT_OK)
        rc = find_device(cuda, which);
    if (rc == FT_OK)
        rc = load_kernel(cuda);
    if (rc != FT_OK) {
        ft_cuda_device_release(cuda);
        return rc;
    }
    make_pinned(cuda);
    *out = &cuda->base;
    return FT_OK;
}

void ft_cuda_device_release(struct ft_cuda_device *cuda)
{
    if (atomic_fetch_sub_explicit(&cuda->refs, 1, memory_order_acq_rel) == 1)
        ft_cuda_defer_device(cuda);
}

void ft_cuda_free_device(struct ft_cuda_device *cuda)
{
    if (cuda->module && ft_cuda_enter(cuda) == FT_OK) {
        struct ft_pinned *own = cuda->base.pinned, *other;
        while (own && (other = ft_pinned_take_unkept(own, true)))
            hide_chunk(cuda, other);
        if (own)
            hide_chunk(cuda, own);
        cuda->driver->cuModuleUnload(cuda->module);
        ft_cuda_leave(cuda);
    }
    if (cuda->primary)
        cuda->driver->cuDevicePrimaryCtxRelease(cuda->number);
    pthread_mutex_destroy(&cuda->reaching);
    free(cuda);
}

static void cuda_close(struct ft_device *device)
{
    ft_cuda_device_release(FT_CONTAINER(device, struct ft_cuda_device, base));
}

/* ---- memory ---------------------------------------------------------------------------------- */

int ft_cuda_alloc(struct ft_device_gpu which, size_t len_bytes, void **out)
{
    const struct ft_cuda_driver *driver;
    CUcontext context, popped;
    CUdeviceptr at = 0;
    int rc = ft_cuda_driver(false, &driver);
    if (rc == FT_OK)
        rc = take_context(driver, which, &context);
    if (rc != FT_OK)
        return rc;
    rc = FT_CUDA(driver, cuCtxPushCurrent, context);
    if (rc == FT_OK) {
        rc = FT_CUDA(driver, cuMemAlloc, &at, len_bytes);
        driver->cuCtxPopCurrent(&popped);
    }
    if (rc != FT_OK && !which.context)
        driver->cuDevicePrimaryCtxRelease(which.number);
    if (rc == FT_OK)
        *out = (void *)(uintptr_t)at;
    return rc;
}

/* The context was retained for the memory; take_context() retains it again. So it is released
 * twice. */
void ft_cuda_free(struct ft_device_gpu which, void *ptr)
{
    const struct ft_cuda_driver *driver;
    CUcontext context, popped;
    if (ft_cuda_driver(false, &driver) != FT_OK || take_context(driver, which, &context) != FT_OK)
        return;
    if (driver->cuCtxPushCurrent(context) == CUDA_SUCCESS) {
        driver->cuMemFree((CUdeviceptr)(uintptr_t)ptr);
        driver->cuCtxPopCurrent(&popped);
    }
    for (int i = 0; i < 2 && !which.context; i++)
        driver->cuDevicePrimaryCtxRelease(which.number);
}

static int cuda_alloc(struct ft_device *device, size_t len_bytes, void **out)
{
    struct ft_cuda_device *cuda = FT_CONTAINER(device, struct ft_cuda_device, base);
    CUdeviceptr at = 0;
    int rc = ft_cuda_enter(cuda);
    if (rc != FT_OK)
        return rc;
    rc = FT_CUDA(cuda->driver, cuMemAlloc, &at, len_bytes ? len_bytes : 1);
    if (rc == FT_OK)
        rc = FT_CUDA(cuda->driver, cuMemsetD8, at, 0, len_bytes ? len_bytes : 1);
    if (rc != FT_OK && at)
        cuda->driver->cuMemFree(at);
    ft_cuda_leave(cuda);
    if (rc == FT_OK)
        *out = (void *)(uintptr_t)at;
    return rc;
}

static void cuda_free(struct ft_device *device, void *ptr, size_t len_bytes)
{
    struct ft_cuda_device *cuda = FT_CONTAINER(device, struct ft_cuda_device, base);
    (void)len_bytes;
    if (!ptr || ft_cuda_enter(cuda) != FT_OK)
        return;
    cuda->driver->cuMemFree((CUdeviceptr)(uintptr_t)ptr);
    ft_cuda_leave(cuda);
}

/* True for device, managed and host-registered memory; the driver does not know other memory. */
static bool cuda_owns(struct ft_device *device, const void *ptr)
{
    const struct ft_cuda_device *cuda = FT_CONTAINER(device, struct ft_cuda_device, base);
    unsigned type = 0;
    CUresult result = cuda->driver->cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
                                                          (CUdeviceptr)(uintptr_t)ptr);
    return ptr && result == CUDA_SUCCESS;
}

static int cuda_only(struct ft_device *device, const void *ptr)
{
    const struct ft_cuda_device *cuda = FT_CONTAINER(device, struct ft_cuda_device, base);
    CUpointer_attribute what[] = {CU_POINTER_ATTRIBUTE_MEMORY_TYPE, CU_POINTER_ATTRIBUTE_IS_MANAGED,
                                  CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL};
    unsigned type = 0, managed = 0;
    int number = -1;
    void *out[] = {&type, &managed, &number};
    CUresult result = cuda->driver->cuPointerGetAttributes(FT_ARRAY_LEN(what), what, out,
                                                           (CUdeviceptr)(uintptr_t)ptr);
    return result == CUDA_SUCCESS && type == CU_MEMORYTYPE_DEVICE && !managed ? number : -1;
}

static const struct ft_device_ops ops = {
    .name = "cuda",
    .close = cuda_close,
    .alloc = cuda_alloc,
    .free = cuda_free,
    .owns = cuda_owns,
    .only = cuda_only,
    .reach = cuda_reach,
    .queue = &ft_cuda_queue_ops,
};

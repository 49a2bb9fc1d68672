/*
 * Memory of a GPU's where its rank puts messages for the GPUs of other ranks of the machine.
 * Allocated when the device is opened, by a call of its own and whole pages of the driver's, so
 * that a handle leads to nothing else. In its process others use the address itself, counted; other
 * processes open the driver's handle. Those may have it open when its owner has closed its device,
 * and the driver forbids that it be freed then: such memory stays, and the next device of the
 * context takes it.
 */
#include "device/cuda/cuda.h"

#include <stdlib.h>
#include <string.h>

/* the driver hands out parts of such pieces, and its handles are for pieces */
#define WHOLE ((size_t)2 << 20)

_Static_assert(sizeof(CUipcMemHandle) == FT_PINNED_HANDLE_BYTES, "a handle fits the offer");

struct share {
    struct share *next;
    const struct ft_cuda_driver *driver;
    CUcontext context;
    CUdevice number;
    bool primary; /* the context is retained while there are users */
    CUdeviceptr at;
    size_t len_bytes;
    unsigned long long id; /* the driver's, of this very allocation */
    uint64_t token;        /* of the pinned memory that it goes with */
    int users;             /* its owner, and others of this process */
    bool opened;           /* by other processes, at any time */
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct share *shares;

/* ---- allocations; entered, with the lock ----------------------------------------------------- */

static void drop(struct share *share)
{
    struct share **at = &shares;
    while (*at != share)
        at = &(*at)->next;
    *at = share->next;
    free(share);
}

/* Is it still the same? A context may have been reset. */
static bool is_devmem(const struct share *share)
{
    unsigned long long id = 0;
    return share->driver->cuPointerGetAttribute(&id, CU_POINTER_ATTRIBUTE_BUFFER_ID, share->at) ==
               CUDA_SUCCESS &&
           id == share->id;
}

static struct share *left_over(const struct ft_cuda_device *cuda, size_t len_bytes)
{
    for (struct share *share = shares, *next; share; share = next) {
        next = share->next;
        if (share->users > 0 || share->context != cuda->context)
            continue;
        if (!is_devmem(share))
            drop(share);
        else if (share->len_bytes == len_bytes)
            return share;
    }
    return NULL;
}

static int allocate(const struct ft_cuda_device *cuda, size_t len_bytes, struct share **out)
{
    struct share *share = calloc(1, sizeof *share);
    if (!share)
        return ft_fail(FT_NOMEM, "no memory for a device's");
    *share = (struct share){.driver = cuda->driver,
                            .context = cuda->context,
                            .number = cuda->number,
                            .len_bytes = len_bytes};
    int rc = FT_CUDA(cuda->driver, cuMemAlloc, &share->at, len_bytes);
    if (rc == FT_OK)
        rc = FT_CUDA(cuda->driver, cuPointerGetAttribute, &share->id,
                     CU_POINTER_ATTRIBUTE_BUFFER_ID, share->at);
    if (rc != FT_OK) {
        if (share->at)
            cuda->driver->cuMemFree(share->at);
        free(share);
        return rc;
    }
    share->next = shares;
    shares = share;
    *out = share;
    return FT_OK;
}

static void let_go(struct share *share)
{
    const struct ft_cuda_driver *driver = share->driver;
    CUcontext popped;
    bool primary = share->primary;
    CUdevice number = share->number;
    if (--share->users > 0)
        return;
    share->primary = false;
    share->token = 0;
    if (!share->opened && driver->cuCtxPushCurrent(share->context) == CUDA_SUCCESS) {
        driver->cuMemFree(share->at);
        driver->cuCtxPopCurrent(&popped);
        drop(share);
    }
    if (primary)
        driver->cuDevicePrimaryCtxRelease(number);
}

static struct share *share_of(uint64_t token)
{
    struct share *share = shares;
    while (share && (share->users == 0 || share->token != token))
        share = share->next;
    return share;
}

/* ---- one's own ------------------------------------------------------------------------------- */

static int take(struct ft_cuda_device *cuda, size_t len_bytes, struct share **out)
{
    CUcontext context;
    struct share *share = left_over(cuda, len_bytes);
    int rc = share ? FT_OK : allocate(cuda, len_bytes, &share);
    if (rc != FT_OK)
        return rc;
    share->users = 1;
    share->token = cuda->base.pinned->token;
    share->primary = cuda->primary &&
                     cuda->driver->cuDevicePrimaryCtxRetain(&context, cuda->number) == CUDA_SUCCESS;
    *out = share;
    return FT_OK;
}

/* Other processes get at it where the driver gives a handle. */
static int offer(struct ft_cuda_device *cuda, const struct share *share)
{
    CUipcMemHandle handle;
    struct ft_pinned *devmem = ft_pinned_over((void *)(uintptr_t)share->at, share->len_bytes);
    int rc = devmem ? ft_pinned_show(devmem) : FT_NOMEM;
    if (rc != FT_OK) {
        free(devmem);
        return rc;
    }
    rc = FT_CUDA(cuda->driver, cuIpcGetMemHandle, &handle, share->at);
    if (rc != FT_OK)
        FT_LOG(INFO, "init", -1,
               "GPUs of other processes do not reach messages in the memory of %s: %s", cuda->name,
               ft_fail_text());
    ft_pinned_offer(cuda->base.pinned, devmem, rc == FT_OK ? &handle : NULL);
    return FT_OK;
}

void ft_cuda_share(struct ft_cuda_device *cuda)
{
    struct share *share;
    if (!ft_param_int(FT_PARAM_CUDA_IPC) || ft_param_int(FT_PARAM_P2P_DISABLE))
        return;
    pthread_mutex_lock(&lock);
    int rc = take(cuda, ft_round_up(cuda->base.pinned->len_bytes, WHOLE), &share);
    if (rc == FT_OK && (rc = offer(cuda, share)) != FT_OK)
        let_go(share);
    if (rc != FT_OK)
        FT_LOG(INFO, "init", -1, "messages between GPUs go through the host's memory: %s",
               ft_fail_text());
    pthread_mutex_unlock(&lock);
}

/* ---- others' --------------------------------------------------------------------------------- */

/* Of another device of this process. Peer access stays when it is there: it may be the
 * program's. */
static int reach_peer(const struct ft_cuda_device *cuda, const struct share *share)
{
    int can = 0;
    if (share->context == cuda->context)
        return FT_OK;
    int rc = FT_CUDA(cuda->driver, cuDeviceCanAccessPeer, &can, cuda->number, share->number);
    if (rc != FT_OK)
        return rc;
    if (!can)
        return ft_fail(FT_NOTSUP, "device %d does not reach the memory of device %d",
                       (int)cuda->number, (int)share->number);
    CUresult result = cuda->driver->cuCtxEnablePeerAccess(share->context, 0);
    return result == CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED
               ? FT_OK
               : ft_cuda_check(cuda->driver, result, "cuCtxEnablePeerAccess");
}

/* *ours: of this process, and counted. */
static int reach(struct ft_cuda_device *cuda, const struct ft_pinned *other,
                 const struct ft_pinned_offered *offered, CUdeviceptr *at, struct share **ours)
{
    CUipcMemHandle handle;
    struct share *share = share_of(other->token);
    *ours = share;
    if (share) {
        int rc = offered->len_bytes == share->len_bytes ? reach_peer(cuda, share)
                                                        : ft_fail(FT_NOTSUP, "it is another one's");
        if (rc == FT_OK)
            share->users++, *at = share->at;
        return rc;
    }
    if (!offered->has_handle)
        return ft_fail(FT_NOTSUP, "its driver gives no handle of it");
    memcpy(&handle, offered->handle, sizeof handle);
    ft_pinned_opens(other);
    return FT_CUDA(cuda->driver, cuIpcOpenMemHandle, at, handle,
                   CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
}

static void unreach(struct ft_cuda_device *cuda, CUdeviceptr at, struct share *ours)
{
    if (ours)
        let_go(ours);
    else
        cuda->driver->cuIpcCloseMemHandle(at);
}

void ft_cuda_share_meet(struct ft_cuda_device *cuda, struct ft_pinned *other)
{
    struct ft_pinned_offered offered;
    struct share *ours;
    CUdeviceptr at = 0;
    ft_pinned_look(other, &offered);
    if (offered.len_bytes == 0 || !ft_pinned_devmem(cuda->base.pinned))
        return;
    pthread_mutex_lock(&lock);
    int rc = reach(cuda, other, &offered, &at, &ours);
    if (rc == FT_OK) {
        struct ft_pinned *devmem = ft_pinned_over((void *)(uintptr_t)at, offered.len_bytes);
        rc = devmem ? ft_pinned_show(devmem) : FT_NOMEM;
        if (rc == FT_OK)
            ft_pinned_set_devmem(other, devmem);
        else
            free(devmem), unreach(cuda, at, ours);
    }
    pthread_mutex_unlock(&lock);
    if (rc != FT_OK)
        FT_LOG(INFO, "init", -1, "messages of a GPU to %s go through the host's memory: %s",
               cuda->name, ft_fail_text());
}

void ft_cuda_unshare(struct ft_cuda_device *cuda, struct ft_pinned *chunk)
{
    struct ft_pinned *devmem = ft_pinned_devmem(chunk);
    if (!devmem)
        return;
    pthread_mutex_lock(&lock);
    struct share *ours = share_of(chunk->token);
    if (ours && chunk == cuda->base.pinned)
        ours->opened |= ft_pinned_was_opened(chunk);
    ft_pinned_set_devmem(chunk, NULL);
    ft_pinned_hide(devmem);
    unreach(cuda, (CUdeviceptr)(uintptr_t)devmem->at, ours);
    ft_pinned_close(devmem);
    pthread_mutex_unlock(&lock);
}

/*
 * GPU memory in which a rank puts messages for the GPUs of other ranks of the machine. It is
 * allocated when the device is opened, by an allocation of its own in whole driver pages, so that
 * its handle gives access to nothing else. Other engines of the process use the address itself, and
 * are counted. Other processes open the driver's handle. Such a process may have the handle open
 * when the owner closes its device, and the driver then forbids freeing the memory. So the memory
 * stays allocated, and the next device of the context reuses it.
 */
#include "device/cuda/cuda.h"

#include <stdlib.h>
#include <string.h>

/* the driver allocates from pieces of this size, and a handle covers a whole piece */
#define WHOLE ((size_t)2 << 20)

_Static_assert(sizeof(CUipcMemHandle) == FT_PINNED_HANDLE_BYTES, "a handle fits the offer");

struct share {
    struct share *next;
    const struct ft_cuda_driver *driver;
    CUcontext context;
    CUdevice number;
    bool primary; /* the primary context is retained while there are users */
    CUdeviceptr at;
    size_t len_bytes;
    unsigned long long id; /* the driver's id of this allocation */
    uint64_t token;        /* token of the pinned memory to which it belongs */
    int users;             /* number of users: the owner, and other engines of this process */
    bool opened;           /* another process has ever opened it */
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct share *shares;

/* ---- allocations; the caller has entered and holds the lock ---------------------------------- */

static void drop_share(struct share *share)
{
    struct share **at = &shares;
    while (*at != share)
        at = &(*at)->next;
    *at = share->next;
    free(share);
}

/* Returns true if the allocation still exists. The context may have been reset. */
static bool is_devmem(const struct share *share)
{
    unsigned long long id = 0;
    return share->driver->cuPointerGetAttribute(&id, CU_POINTER_ATTRIBUTE_BUFFER_ID, share->at) ==
               CUDA_SUCCESS &&
           id == share->id;
}

static struct share *find_left_over(const struct ft_cuda_device *cuda, size_t len_bytes)
{
    for (struct share *share = shares, *next; share; share = next) {
        next = share->next;
        if (share->users > 0 || share->context != cuda->context)
            continue;
        if (!is_devmem(share))
            drop_share(share);
        else if (share->len_bytes == len_bytes)
            return share;
    }
    return NULL;
}

static int allocate_share(const struct ft_cuda_device *cuda, size_t len_bytes, struct share **out)
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

static void release_share(struct share *share)
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
        drop_share(share);
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

/* ---- this device's memory -------------------------------------------------------------------- */

static int take_share(struct ft_cuda_device *cuda, size_t len_bytes, struct share **out)
{
    CUcontext context;
    struct share *share = find_left_over(cuda, len_bytes);
    int rc = share ? FT_OK : allocate_share(cuda, len_bytes, &share);
    if (rc != FT_OK)
        return rc;
    share->users = 1;
    share->token = cuda->base.pinned->token;
    share->primary = cuda->primary &&
                     cuda->driver->cuDevicePrimaryCtxRetain(&context, cuda->number) == CUDA_SUCCESS;
    *out = share;
    return FT_OK;
}

/* Offers the memory to other engines. Other processes can use it if the driver gives a handle. */
static int offer_share(struct ft_cuda_device *cuda, const struct share *share)
{
    CUipcMemHandle handle;
    struct ft_pinned *devmem = ft_pinned_of_devmem((void *)(uintptr_t)share->at, share->len_bytes);
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
    int rc = take_share(cuda, ft_round_up(cuda->base.pinned->len_bytes, WHOLE), &share);
    if (rc == FT_OK && (rc = offer_share(cuda, share)) != FT_OK)
        release_share(share);
    if (rc != FT_OK)
        FT_LOG(INFO, "init", -1, "messages between GPUs go through the host's memory: %s",
               ft_fail_text());
    pthread_mutex_unlock(&lock);
}

/* ---- memory of other devices ----------------------------------------------------------------- */

/* Enables access to the memory of another device of this process. Peer access is never disabled:
 * the program may use it too. */
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

/* Makes the memory accessible. *ours: the share, if it belongs to this process; it is counted. */
static int reach_share(struct ft_cuda_device *cuda, const struct ft_pinned *other,
                       const struct ft_pinned_offered *offered, CUdeviceptr *at,
                       struct share **ours)
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
    ft_pinned_mark_opened(other);
    return FT_CUDA(cuda->driver, cuIpcOpenMemHandle, at, handle,
                   CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
}

static void unreach_share(struct ft_cuda_device *cuda, CUdeviceptr at, struct share *ours)
{
    if (ours)
        release_share(ours);
    else
        cuda->driver->cuIpcCloseMemHandle(at);
}

void ft_cuda_share_meet(struct ft_cuda_device *cuda, struct ft_pinned *other)
{
    struct ft_pinned_offered offered;
    struct share *ours;
    CUdeviceptr at = 0;
    ft_pinned_read_offer(other, &offered);
    if (offered.len_bytes == 0 || !ft_pinned_devmem(cuda->base.pinned))
        return;
    pthread_mutex_lock(&lock);
    int rc = reach_share(cuda, other, &offered, &at, &ours);
    if (rc == FT_OK) {
        struct ft_pinned *devmem = ft_pinned_of_devmem((void *)(uintptr_t)at, offered.len_bytes);
        rc = devmem ? ft_pinned_show(devmem) : FT_NOMEM;
        if (rc == FT_OK)
            ft_pinned_set_devmem(other, devmem);
        else
            free(devmem), unreach_share(cuda, at, ours);
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
    unreach_share(cuda, (CUdeviceptr)(uintptr_t)devmem->at, ours);
    ft_pinned_close(devmem);
    pthread_mutex_unlock(&lock);
}

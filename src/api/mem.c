/*
 * Memory from ftcclMemAlloc() and registrations.
 */
#include "api/api.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

struct allocation {
    struct allocation *next;
    void *ptr;
    size_t len_bytes;
    struct ft_device_gpu gpu;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct allocation *allocations;

/* True if a GPU is given; otherwise the memory is host memory. */
static bool of_gpu(struct ft_device_gpu gpu)
{
    return gpu.context || gpu.numbered;
}

static int allocate(void **ptr, size_t size, struct ft_device_gpu gpu)
{
    struct allocation *a = malloc(sizeof *a);
    int rc = !a            ? FT_NOMEM
             : of_gpu(gpu) ? ft_device_gpu_alloc(gpu, size, &a->ptr)
                           : ft_device_host.alloc(NULL, size, &a->ptr);
    if (rc != FT_OK) {
        free(a);
        return rc == FT_NOMEM ? ft_fail(rc, "MemAlloc: no memory for %zu bytes", size) : rc;
    }
    a->len_bytes = size;
    a->gpu = gpu;
    pthread_mutex_lock(&lock);
    a->next = allocations;
    allocations = a;
    pthread_mutex_unlock(&lock);
    *ptr = a->ptr;
    return FT_OK;
}

static ftcclResult_t mem_alloc(void **ptr, size_t size, bool nccl)
{
    int rc = ft_enter_library();
    if (rc == FT_OK && !ptr)
        rc = ft_fail(FT_INVAL, "MemAlloc: ptr is NULL");
    if (rc != FT_OK)
        return ft_return(NULL, rc);
    *ptr = NULL;
    if (size == 0)
        return ftcclSuccess;
    return ft_return(NULL, allocate(ptr, size,
                                    nccl ? ft_device_gpu_of_thread() : (struct ft_device_gpu){0}));
}

FT_EXPORT ftcclResult_t ftcclMemAlloc(void **ptr, size_t size)
{
    return mem_alloc(ptr, size, false);
}
FT_EXPORT ftcclResult_t ft_shim_mem_alloc(void **ptr, size_t size)
{
    return mem_alloc(ptr, size, true);
}

FT_EXPORT ftcclResult_t ftcclMemFree(void *ptr)
{
    int rc = ft_enter_library();
    if (rc != FT_OK)
        return ft_return(NULL, rc);
    if (!ptr)
        return ftcclSuccess;
    pthread_mutex_lock(&lock);
    struct allocation **at = &allocations, *a;
    while (*at && (*at)->ptr != ptr)
        at = &(*at)->next;
    if ((a = *at))
        *at = a->next;
    pthread_mutex_unlock(&lock);
    if (!a)
        return ft_return(
            NULL, ft_fail(FT_INVAL, "MemFree: %p was not allocated by MemAlloc, or is free already",
                          ptr));
    if (of_gpu(a->gpu))
        ft_device_gpu_free(a->gpu, a->ptr);
    else
        ft_device_host.free(NULL, a->ptr, a->len_bytes);
    free(a);
    return ftcclSuccess;
}

/* Returns true if every page of the range is mapped. */
static bool is_mapped(const void *buff, size_t size)
{
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), from = (uintptr_t)buff & ~(page - 1);
    return (uintptr_t)buff + size >= (uintptr_t)buff &&
           msync((void *)from, (uintptr_t)buff + size - from, MS_ASYNC) == 0;
}

FT_EXPORT ftcclResult_t ftcclCommRegister(const ftcclComm_t comm, void *buff, size_t size,
                                          void **handle)
{
    int rc = ft_enter_library();
    if (rc == FT_OK)
        rc = ft_comm_enter_ready(comm);
    if (rc != FT_OK)
        return ft_return(NULL, rc);
    struct ft_registration *r = NULL;
    if (!handle || !buff || size == 0)
        rc = ft_fail(FT_INVAL, "CommRegister: buff or handle is NULL, or size is 0");
    else if (!ft_gpu_owns(comm->core, buff)) {
        rc = ft_device_check("CommRegister", buff);
        if (rc == FT_OK && !is_mapped(buff, size))
            rc = ft_fail(FT_INVAL, "CommRegister: %p to %p is not memory of this process", buff,
                         (void *)((char *)buff + size));
    }
    if (rc == FT_OK && !(r = malloc(sizeof *r)))
        rc = ft_fail(FT_NOMEM, "no memory for a registration");
    if (rc == FT_OK) {
        *r = (struct ft_registration){NULL, buff, size};
        pthread_mutex_lock(&comm->lock);
        r->next = comm->registrations;
        comm->registrations = r;
        pthread_mutex_unlock(&comm->lock);
        *handle = r;
    }
    ftcclResult_t result = ft_return(comm, rc);
    ft_comm_leave(comm);
    return result;
}

FT_EXPORT ftcclResult_t ftcclCommDeregister(const ftcclComm_t comm, void *handle)
{
    int rc = ft_enter_library();
    if (rc == FT_OK)
        rc = ft_comm_enter(comm);
    if (rc != FT_OK)
        return ft_return(NULL, rc);
    pthread_mutex_lock(&comm->lock);
    struct ft_registration **at = &comm->registrations;
    while (*at && *at != handle)
        at = &(*at)->next;
    struct ft_registration *found = *at;
    if (found)
        *at = found->next;
    pthread_mutex_unlock(&comm->lock);
    if (!found)
        rc = ft_fail(FT_INVAL, "CommDeregister: %p is not a registration of this communicator",
                     handle);
    free(found);
    ftcclResult_t result = ft_return(comm, rc);
    ft_comm_leave(comm);
    return result;
}

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
    struct ft_memory memory; /* known to all engines, if it is the host's */
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
    struct allocation *a = calloc(1, sizeof *a);
    int rc = !a            ? FT_NOMEM
             : of_gpu(gpu) ? ft_device_gpu_alloc(gpu, size, &a->memory.addr)
                           : ft_device_host.alloc(NULL, size, &a->memory.addr);
    if (rc != FT_OK) {
        free(a);
        return rc == FT_NOMEM ? ft_fail(rc, "MemAlloc: no memory for %zu bytes", size) : rc;
    }
    a->memory.len_bytes = size;
    a->gpu = gpu;
    if (!of_gpu(gpu))
        ft_memory_reg(&a->memory);
    pthread_mutex_lock(&lock);
    a->next = allocations;
    allocations = a;
    pthread_mutex_unlock(&lock);
    *ptr = a->memory.addr;
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
    while (*at && (*at)->memory.addr != ptr)
        at = &(*at)->next;
    if ((a = *at))
        *at = a->next;
    pthread_mutex_unlock(&lock);
    if (!a)
        return ft_return(
            NULL, ft_fail(FT_INVAL, "MemFree: %p was not allocated by MemAlloc, or is free already",
                          ptr));
    if (of_gpu(a->gpu)) {
        ft_device_gpu_free(a->gpu, ptr);
    } else {
        ft_memory_unreg(&a->memory);
        ft_device_host.free(NULL, ptr, a->memory.len_bytes);
    }
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

/* Of the host, or of the GPU (*of_gpu), whose memory no transport is told of. */
static int check_registered(ftcclComm_t comm, void *buff, size_t size, bool *of_gpu)
{
    *of_gpu = ft_gpu_owns(comm->core, buff);
    int rc = *of_gpu ? FT_OK : ft_device_check("CommRegister", buff);
    if (rc == FT_OK && !*of_gpu && !is_mapped(buff, size))
        rc = ft_fail(FT_INVAL, "CommRegister: %p to %p is not memory of this process", buff,
                     (void *)((char *)buff + size));
    return rc;
}

static void keep_registration(ftcclComm_t comm, struct ft_registration *r)
{
    if (r->known)
        ft_memory_reg(&r->memory);
    pthread_mutex_lock(&comm->lock);
    r->next = comm->registrations;
    comm->registrations = r;
    pthread_mutex_unlock(&comm->lock);
}

static void end_registration(struct ft_registration *r)
{
    if (r->known)
        ft_memory_unreg(&r->memory);
    free(r);
}

void ft_registrations_end(ftcclComm_t comm)
{
    for (struct ft_registration *r = comm->registrations, *next; r; r = next) {
        next = r->next;
        end_registration(r);
    }
    comm->registrations = NULL;
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
    bool on_gpu = false;
    if (!handle || !buff || size == 0)
        rc = ft_fail(FT_INVAL, "CommRegister: buff or handle is NULL, or size is 0");
    else
        rc = check_registered(comm, buff, size, &on_gpu);
    if (rc == FT_OK && !(r = calloc(1, sizeof *r)))
        rc = ft_fail(FT_NOMEM, "no memory for a registration");
    if (rc == FT_OK) {
        r->memory = (struct ft_memory){
            .engine = comm->core->engine, .addr = buff, .len_bytes = size};
        r->known = !on_gpu;
        keep_registration(comm, r);
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
    else
        end_registration(found);
    ftcclResult_t result = ft_return(comm, rc);
    ft_comm_leave(comm);
    return result;
}

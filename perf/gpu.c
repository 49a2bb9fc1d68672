/* Implements gpu.h with the driver's calls. It declares them itself, so that cuda.h is not
 * needed. */
#include "gpu.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#define NOT_READY 600               /* CUDA_ERROR_NOT_READY */
#define NON_BLOCKING 1u             /* CU_STREAM_NON_BLOCKING */
#define PINNED_FLAGS 3u             /* CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP */
typedef unsigned long long address; /* CUdeviceptr */

#define CALLS(X)                                                             \
    X(cuInit, (unsigned flags))                                              \
    X(cuDeviceGet, (int *device, int number))                                \
    X(cuDeviceGetName, (char *name, int len, int device))                    \
    X(cuDevicePrimaryCtxRetain, (void **context, int device))                \
    X(cuCtxSetCurrent, (void *context))                                      \
    X(cuStreamCreate, (void **stream, unsigned flags))                       \
    X(cuStreamDestroy_v2, (void *stream))                                    \
    X(cuStreamQuery, (void *stream))                                         \
    X(cuStreamSynchronize, (void *stream))                                   \
    X(cuMemGetInfo_v2, (size_t * free_bytes, size_t * all_bytes))            \
    X(cuMemAlloc_v2, (address * at, size_t bytes))                           \
    X(cuMemFree_v2, (address at))                                            \
    X(cuMemHostAlloc, (void **at, size_t bytes, unsigned flags))             \
    X(cuMemFreeHost, (void *at))                                             \
    X(cuMemcpyAsync, (address to, address from, size_t bytes, void *stream)) \
    X(cuGetErrorString, (int result, const char **text))

static struct {
#define X(call, parameters) int(*call) parameters;
    CALLS(X)
#undef X
} driver;
static void *context, *copies; /* copies: the stream of gpu_copy() */
static pthread_mutex_t copies_lock = PTHREAD_MUTEX_INITIALIZER;
static char name[64];

static const char *text_of(int result)
{
    const char *text = NULL;
    driver.cuGetErrorString(result, &text);
    return text ? text : "unknown error";
}

static void must(int result, const char *call)
{
    if (result == 0)
        return;
    fprintf(stderr, "%s: %s\n", call, text_of(result));
    fflush(stdout);
    _Exit(1);
}
#define MUST(call, ...) must(driver.call(__VA_ARGS__), #call)

static int find_driver(void)
{
    void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (!library) {
        fprintf(stderr, "there is no CUDA driver here: %s\n", dlerror());
        return -1;
    }
#define X(call, parameters)                                    \
    *(void **)&driver.call = dlsym(library, #call);            \
    if (!driver.call) {                                        \
        fprintf(stderr, "the CUDA driver has no %s\n", #call); \
        return -1;                                             \
    }
    CALLS(X)
#undef X
    return 0;
}

int gpu_open(void)
{
    int device = 0;
    if (find_driver())
        return -1;
    int result = driver.cuInit(0);
    if (result == 0)
        result = driver.cuDeviceGet(&device, 0);
    if (result == 0)
        result = driver.cuDevicePrimaryCtxRetain(&context, device);
    if (result) {
        fprintf(stderr, "there is no GPU here: %s\n", text_of(result));
        return -1;
    }
    MUST(cuDeviceGetName, name, (int)sizeof name, device);
    gpu_enter();
    copies = gpu_stream_create();
    return 0;
}

void gpu_enter(void)
{
    MUST(cuCtxSetCurrent, context);
}

const char *gpu_name(void)
{
    return name;
}

double gpu_free_bytes(void)
{
    size_t unused, all;
    MUST(cuMemGetInfo_v2, &unused, &all);
    return (double)unused;
}

void *gpu_stream_create(void)
{
    void *stream = NULL;
    MUST(cuStreamCreate, &stream, NON_BLOCKING);
    return stream;
}

void gpu_stream_destroy(void *stream)
{
    if (stream)
        MUST(cuStreamDestroy_v2, stream);
}

bool gpu_stream_idle(void *stream)
{
    int result = driver.cuStreamQuery(stream);
    if (result != NOT_READY)
        must(result, "cuStreamQuery");
    return result == 0;
}

void *gpu_alloc(size_t bytes, bool pinned)
{
    address at = 0;
    void *here = NULL;
    if (pinned)
        MUST(cuMemHostAlloc, &here, bytes, PINNED_FLAGS);
    else
        MUST(cuMemAlloc_v2, &at, bytes);
    return pinned ? here : (void *)(size_t)at;
}

void gpu_free(void *ptr, bool pinned)
{
    if (!ptr)
        return;
    if (pinned)
        MUST(cuMemFreeHost, ptr);
    else
        MUST(cuMemFree_v2, (address)(size_t)ptr);
}

void gpu_copy_on(void *stream, void *to, const void *from, size_t bytes)
{
    MUST(cuMemcpyAsync, (address)(size_t)to, (address)(size_t)from, bytes, stream);
}

void gpu_copy(void *to, const void *from, size_t bytes)
{
    pthread_mutex_lock(&copies_lock);
    gpu_copy_on(copies, to, from, bytes);
    MUST(cuStreamSynchronize, copies);
    pthread_mutex_unlock(&copies_lock);
}

/* Implements api.h: FTCCL on host memory with its own streams, and either library on the GPU with
 * CUDA's streams. */
#include "api.h"
#include "gpu.h"

#include <sched.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

static enum api_memory where;

int api_open(enum api_memory memory)
{
    where = memory;
    return where == API_HOST ? 0 : gpu_open();
}

void api_enter(void)
{
    if (where != API_HOST)
        gpu_enter();
}

/* ---- the GPU --------------------------------------------------------------------------------- */

/* Polls both the stream and the communicator: a stream does not report errors of the library, and
 * may never end after one. */
static CCL(Result_t) wait_on_gpu(CCL(Comm_t) comm, api_stream stream)
{
    for (unsigned turn = 0;; turn++) {
        bool idle = gpu_stream_idle(stream);
        CCL(Result_t) error = CCL(Success), asked = CCL(Success);
        if (idle || turn % 64 == 0)
            asked = CCL(CommGetAsyncError)(comm, &error);
        if (asked != CCL(Success))
            return asked;
        if (error != CCL(Success) && error != CCL(InProgress))
            return error;
        if (idle)
            return CCL(Success);
        sched_yield();
    }
}

static CCL(Result_t) take_from_gpu(void **ptr, size_t bytes)
{
    *ptr = gpu_alloc(bytes, where == API_PINNED);
    return CCL(Success);
}

void api_mem_write(void *buffer, const void *from, size_t bytes)
{
    if (where == API_DEVICE)
        gpu_copy(buffer, from, bytes);
    else
        memcpy(buffer, from, bytes);
}

void api_mem_read(void *to, const void *buffer, size_t bytes)
{
    if (where == API_DEVICE)
        gpu_copy(to, buffer, bytes);
    else
        memcpy(to, buffer, bytes);
}

const char *api_mem_name(void)
{
    return where == API_HOST ? "host memory" : gpu_name();
}

double api_gpu_bytes(void)
{
    return where == API_DEVICE ? gpu_free_bytes() : 0;
}

/* ---- the libraries --------------------------------------------------------------------------- */

#ifdef FT_PERF_NCCL

CCL(Result_t) api_stream_create(api_stream *stream)
{
    *stream = gpu_stream_create();
    return CCL(Success);
}

void api_stream_destroy(api_stream stream)
{
    gpu_stream_destroy(stream);
}

CCL(Result_t) api_stream_sync(CCL(Comm_t) comm, api_stream stream)
{
    return wait_on_gpu(comm, stream);
}

CCL(Result_t) api_mem_alloc(void **ptr, size_t bytes)
{
    return take_from_gpu(ptr, bytes);
}

void api_mem_free(void *ptr)
{
    gpu_free(ptr, where == API_PINNED);
}

CCL(Result_t) api_buffer_alloc(void **ptr, size_t bytes, int registered)
{
    return registered ? ncclMemAlloc(ptr, bytes) : take_from_gpu(ptr, bytes);
}

void api_buffer_free(void *ptr, int registered)
{
    if (registered)
        ncclMemFree(ptr);
    else
        gpu_free(ptr, where == API_PINNED);
}

void api_config_timeout(CCL(Config_t) * config, int seconds)
{
    (void)config, (void)seconds;
}

#else

CCL(Result_t) api_stream_create(api_stream *stream)
{
    if (where == API_HOST)
        return ftcclStreamCreate(stream);
    *stream = (api_stream)gpu_stream_create();
    return ftcclSuccess;
}

void api_stream_destroy(api_stream stream)
{
    if (where != API_HOST)
        gpu_stream_destroy(stream);
    else if (stream)
        ftcclStreamDestroy(stream);
}

CCL(Result_t) api_stream_sync(CCL(Comm_t) comm, api_stream stream)
{
    return where == API_HOST ? ftcclStreamSynchronize(stream) : wait_on_gpu(comm, stream);
}

CCL(Result_t) api_mem_alloc(void **ptr, size_t bytes)
{
    return where == API_HOST ? ftcclMemAlloc(ptr, bytes) : take_from_gpu(ptr, bytes);
}

void api_mem_free(void *ptr)
{
    if (where == API_HOST)
        ftcclMemFree(ptr);
    else
        gpu_free(ptr, where == API_PINNED);
}

/* ftcclMemAlloc() does not allocate GPU memory, so plain GPU memory is registered. */
CCL(Result_t) api_buffer_alloc(void **ptr, size_t bytes, int registered)
{
    if (where != API_HOST)
        return take_from_gpu(ptr, bytes);
    if (registered)
        return ftcclMemAlloc(ptr, bytes);
    return posix_memalign(ptr, 4096, bytes) == 0 ? ftcclSuccess : ftcclSystemError;
}

void api_buffer_free(void *ptr, int registered)
{
    if (where != API_HOST)
        gpu_free(ptr, where == API_PINNED);
    else if (registered)
        ftcclMemFree(ptr);
    else
        free(ptr);
}

void api_config_timeout(CCL(Config_t) * config, int seconds)
{
    /* the library reads it only during init */
    static ftcclOptions_t options = FTCCL_OPTIONS_INITIALIZER;
    if (seconds <= 0)
        return;
    options.opTimeoutMs = (int64_t)seconds * 1000;
    config->options = &options;
}

#endif

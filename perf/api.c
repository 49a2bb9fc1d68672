/* What api.h promises, for FTCCL on host memory. */
#include "api.h"

#include <stdlib.h>
#include <string.h>

CCL(Result_t) api_stream_create(api_stream *stream) { return ftcclStreamCreate(stream); }

void api_stream_destroy(api_stream stream)
{
    if (stream) ftcclStreamDestroy(stream);
}

CCL(Result_t) api_stream_sync(api_stream stream) { return ftcclStreamSynchronize(stream); }

CCL(Result_t) api_mem_alloc(void **ptr, size_t bytes) { return ftcclMemAlloc(ptr, bytes); }

void api_mem_free(void *ptr) { ftcclMemFree(ptr); }

CCL(Result_t) api_buffer_alloc(void **ptr, size_t bytes, int registered)
{
    if (registered) return ftcclMemAlloc(ptr, bytes);
    return posix_memalign(ptr, 4096, bytes) == 0 ? ftcclSuccess : ftcclSystemError;
}

void api_buffer_free(void *ptr, int registered)
{
    if (registered) ftcclMemFree(ptr);
    else free(ptr);
}

void api_mem_write(void *buffer, const void *from, size_t bytes) { memcpy(buffer, from, bytes); }

void api_mem_read(void *to, const void *buffer, size_t bytes) { memcpy(to, buffer, bytes); }

const char *api_mem_name(void) { return "host memory"; }

void api_config_timeout(CCL(Config_t) *config, int seconds)
{
    static ftcclOptions_t options = FTCCL_OPTIONS_INITIALIZER; /* the library reads it during init only */
    if (seconds <= 0) return;
    options.opTimeoutMs = (int64_t)seconds * 1000;
    config->options = &options;
}

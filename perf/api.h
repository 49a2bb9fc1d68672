/*
 * The library under measurement, as the programs see it: names by CCL(), so that another library with the same calls can
 * stand here, and what is not the same everywhere (streams, memory, timeouts) as functions of api.c.
 */
#ifndef FT_PERF_API_H
#define FT_PERF_API_H

#include <ftccl.h>
#include <stddef.h>

#define CCL(name) ftccl##name
#define CCL_NAME "ftccl"
#define CCL_VERSION_CODE FTCCL_VERSION_CODE
#define CCL_UNIQUE_ID_BYTES FTCCL_UNIQUE_ID_BYTES
#define CCL_CONFIG_INITIALIZER FTCCL_CONFIG_INITIALIZER

typedef CCL(Stream_t) api_stream;

CCL(Result_t) api_stream_create(api_stream *stream);
void api_stream_destroy(api_stream stream);
CCL(Result_t) api_stream_sync(api_stream stream);

CCL(Result_t) api_mem_alloc(void **ptr, size_t bytes);
void api_mem_free(void *ptr);
/* What is measured: ordinary memory, or for registered buffers the library's. */
CCL(Result_t) api_buffer_alloc(void **ptr, size_t bytes, int registered);
void api_buffer_free(void *ptr, int registered);
/* Between a buffer of the library and ordinary memory. Nothing may be running on the buffer. */
void api_mem_write(void *buffer, const void *from, size_t bytes);
void api_mem_read(void *to, const void *buffer, size_t bytes);
const char *api_mem_name(void);

/* Every operation of a communicator made with config ends after so many seconds; 0 leaves the library's own bound. */
void api_config_timeout(CCL(Config_t) *config, int seconds);

#endif

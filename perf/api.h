/*
 * The library under measurement, as the programs see it: names by CCL(), so that another library
 * with the same calls can stand here, and what is not the same everywhere (streams, memory,
 * timeouts) as functions of api.c. With FT_PERF_NCCL it is whatever libnccl.so.2 is loaded, on
 * memory of the GPU.
 */
#ifndef FT_PERF_API_H
#define FT_PERF_API_H

#include <stddef.h>

#ifdef FT_PERF_NCCL
#ifdef FT_HAVE_NCCL_H
#include <nccl.h>
#else
#include <ftccl/nccl.h>
#endif
#define CCL(name) nccl##name
#define CCL_NAME "nccl"
#define CCL_VERSION_CODE NCCL_VERSION_CODE
#define CCL_UNIQUE_ID_BYTES NCCL_UNIQUE_ID_BYTES
#define CCL_CONFIG_INITIALIZER NCCL_CONFIG_INITIALIZER
#define CCL_TAKES_RUNS_ID 0
typedef cudaStream_t api_stream;
#else
#include <ftccl.h>
#define CCL(name) ftccl##name
#define CCL_NAME "ftccl"
#define CCL_VERSION_CODE FTCCL_VERSION_CODE
#define CCL_UNIQUE_ID_BYTES FTCCL_UNIQUE_ID_BYTES
#define CCL_CONFIG_INITIALIZER FTCCL_CONFIG_INITIALIZER
#define CCL_TAKES_RUNS_ID 1 /* the unique id that ftccl-run makes is one of this library's */
typedef CCL(Stream_t) api_stream;
#endif

/* Where buffers lie: in ordinary memory, on the GPU, or in memory of the host that the GPU reads
 * and writes. */
enum api_memory { API_HOST, API_DEVICE, API_PINNED };

/* Before anything else; 0, or -1 after a message. api_enter(): every further thread, before its
 * first call. */
int api_open(enum api_memory memory);
void api_enter(void);

CCL(Result_t) api_stream_create(api_stream *stream);
void api_stream_destroy(api_stream stream);
/* Waits until the stream is empty or an operation of comm has failed. */
CCL(Result_t) api_stream_sync(CCL(Comm_t) comm, api_stream stream);

CCL(Result_t) api_mem_alloc(void **ptr, size_t bytes);
void api_mem_free(void *ptr);
/* What is measured: memory as api_open() was told, or for registered buffers the library's. */
CCL(Result_t) api_buffer_alloc(void **ptr, size_t bytes, int registered);
void api_buffer_free(void *ptr, int registered);
/* Between a buffer of the library and ordinary memory. Nothing may be running on the buffer. */
void api_mem_write(void *buffer, const void *from, size_t bytes);
void api_mem_read(void *to, const void *buffer, size_t bytes);
const char *api_mem_name(void);
double api_gpu_bytes(void); /* memory of the GPU that is free; 0 if buffers do not lie there */

/* Every operation of a communicator made with config ends after so many seconds; 0 leaves the
 * library's own bound. NCCL has none. */
void api_config_timeout(CCL(Config_t) * config, int seconds);

#endif

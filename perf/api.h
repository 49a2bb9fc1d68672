/*
 * The library that is measured. The programs name its calls by CCL(), so that another library with
 * the same calls can be used. Things that differ between libraries (streams, memory, timeouts) are
 * functions of api.c. With FT_PERF_NCCL it is the libnccl.so.2 that is loaded, with memory of the
 * GPU.
 */
#ifndef FT_PERF_API_H
#define FT_PERF_API_H

#include <stddef.h>
#include <stdio.h>

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
#define CCL_TAKES_RUNS_ID 1 /* this library accepts the unique id that ftccl-run makes */
typedef CCL(Stream_t) api_stream;
#endif

/* Where buffers are: in ordinary memory, on the GPU, or in host memory that the GPU can access. */
enum api_memory { API_HOST, API_DEVICE, API_PINNED };

/* api_open() must be called first. It returns 0, or -1 after a message. Every further thread calls
 * api_enter() first. */
int api_open(enum api_memory memory);
void api_enter(void);

CCL(Result_t) api_stream_create(api_stream *stream);
void api_stream_destroy(api_stream stream);
/* Waits until the stream is empty or an operation of comm has failed. */
CCL(Result_t) api_stream_sync(CCL(Comm_t) comm, api_stream stream);

CCL(Result_t) api_mem_alloc(void **ptr, size_t bytes);
void api_mem_free(void *ptr);
/* The buffers that are measured: memory of the kind given to api_open(), or, for registered
 * buffers, the library's own. */
CCL(Result_t) api_buffer_alloc(void **ptr, size_t bytes, int registered);
void api_buffer_free(void *ptr, int registered);
/* Copies between a buffer and ordinary memory. No operation may use the buffer meanwhile. */
void api_mem_write(void *buffer, const void *from, size_t bytes);
void api_mem_read(void *to, const void *buffer, size_t bytes);
const char *api_mem_name(void);
/* Prints a line for each connection of this process; "" if the library does not tell. Sleeps for a
 * second or two, until it has told the present. */
void api_print_connections(FILE *out);
double api_gpu_bytes(void); /* free memory of the GPU; 0 if buffers are not there */

/* Limits every operation of a communicator made with config to so many seconds; 0 keeps the
 * library's own limit. NCCL has none. */
void api_config_timeout(CCL(Config_t) * config, int seconds);

#endif

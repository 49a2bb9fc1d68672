/*
 * The GPU for the measuring programs. Its driver is loaded at run time, so the programs can be
 * built and run without CUDA on a machine without a GPU; the stand-in of tests/cuda is a driver
 * too. Streams do not wait for the legacy stream. If the driver refuses a call, the process ends
 * with a message.
 */
#ifndef FT_PERF_GPU_H
#define FT_PERF_GPU_H

#include <stdbool.h>
#include <stddef.h>

/* Selects the first GPU for this thread and for threads that enter later. Returns 0, or -1 after a
 * message if there is none. */
int gpu_open(void);
void gpu_enter(void); /* for each other thread, before its first call */
const char *gpu_name(void);
double gpu_free_bytes(void);

void *gpu_stream_create(void);
void gpu_stream_destroy(void *stream);
bool gpu_stream_idle(void *stream); /* NULL: the legacy stream */

/* Allocates GPU memory, or host memory that the GPU can access. */
void *gpu_alloc(size_t bytes, bool pinned);
void gpu_free(void *ptr, bool pinned);
/* Copies between any two addresses, on `stream`. */
void gpu_copy_on(void *stream, void *to, const void *from, size_t bytes);
/* The same on a stream of its own; the copy is complete on return. */
void gpu_copy(void *to, const void *from, size_t bytes);

#endif

/*
 * The GPU as the measuring programs use it. Its driver is loaded at run time, so that they need
 * nothing of CUDA's to be built and run where there is no GPU; the stand-in of tests/cuda is a
 * driver too. Streams do not wait for the legacy stream. Calls end the process with a message when
 * the driver refuses.
 */
#ifndef FT_PERF_GPU_H
#define FT_PERF_GPU_H

#include <stdbool.h>
#include <stddef.h>

/* Takes the first GPU for this thread and those that enter later. 0, or -1 after a message: there
 * is none. */
int gpu_open(void);
void gpu_enter(void); /* for each other thread, before its first call */
const char *gpu_name(void);
double gpu_free_bytes(void);

void *gpu_stream_create(void);
void gpu_stream_destroy(void *stream);
bool gpu_stream_idle(void *stream); /* NULL: the legacy stream */

/* Memory of the GPU, or of the host for the GPU to read and write. */
void *gpu_alloc(size_t bytes, bool pinned);
void gpu_free(void *ptr, bool pinned);
/* Between any two places, on `stream`. */
void gpu_copy_on(void *stream, void *to, const void *from, size_t bytes);
/* The same on a stream of its own; has happened when it returns. */
void gpu_copy(void *to, const void *from, size_t bytes);

#endif

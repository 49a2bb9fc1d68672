/*
 * What tests ask of the stand-in driver beyond CUDA's own calls: faults, blocked streams, and what
 * was launched. The stand-in is a libcuda.so.1 for machines without a GPU. Streams are threads, and
 * kernels are their twins on the host. Only kernels and the driver's own copies can access memory
 * of the device; a program that touches it dies of SIGSEGV.
 */
#ifndef FT_TESTS_STANDIN_H
#define FT_TESTS_STANDIN_H

#include <cuda.h>
#include <stddef.h>

#define STANDIN_UNKNOWN (-1)

extern "C" {
/* After `after` calls of this name, the next one returns `result`, once. The name is CUDA's without
 * its version. "buffer id": that attribute of a pointer. "spoil": the kernel stores a wrong first
 * byte for that command. */
void standin_fail(const char *call, CUresult result, int after);
/* Everything enqueued on the stream from now on waits until let_go. */
void standin_block(CUstream stream);
void standin_let_go(CUstream stream);
/* Number of kernels that were launched, and of kernels that run now. */
int standin_launched(); /* STANDIN_UNKNOWN on a real GPU */
int standin_running();
int standin_context_users(int device); /* how many times its primary context is retained now */
/* Copies on the stream, to the device and back. What was got is there once the stream is idle and
 * standin_settle() was called: to wait in a copy to or from memory that is not pinned would keep
 * other threads from the driver. */
void standin_put(CUdeviceptr to, const void *from, size_t len, CUstream stream);
void standin_get(void *to, CUdeviceptr from, size_t len, CUstream stream);
void standin_settle(CUstream stream);
/* number of allocations that were not freed, device and pinned */
int standin_live_memory();
}

/* Gives the calling thread the GPU's context, as cudaSetDevice() does. */
static inline CUcontext standin_enter()
{
    CUcontext context = nullptr;
    cuInit(0);
    cuDevicePrimaryCtxRetain(&context, 0);
    cuCtxSetCurrent(context);
    return context;
}

#endif

/*
 * What tests ask of the stand-in driver beyond CUDA's own calls: faults, streams that stand still,
 * and what was launched. The stand-in is a libcuda.so.1 for machines without a GPU: streams are
 * threads, kernels are their twins on the host, and memory of the device cannot be read or written
 * by anything but kernels and the driver's own copies: who touches it dies of SIGSEGV.
 */
#ifndef FT_TESTS_STANDIN_H
#define FT_TESTS_STANDIN_H

#include <cuda.h>
#include <stddef.h>

#define STANDIN_UNKNOWN (-1)

extern "C" {
/* The next call of this name but `after` answers `result`, once; the name is CUDA's without
 * version. "buffer id": that attribute of a pointer. "spoil": that command of a kernel's stores a
 * wrong first byte. */
void standin_fail(const char *call, CUresult result, int after);
/* What comes on the stream from now on waits until let_go. */
void standin_block(CUstream stream);
void standin_let_go(CUstream stream);
/* Kernels that were launched, and that have begun and have not left. */
int standin_launched(); /* STANDIN_UNKNOWN on a real GPU */
int standin_running();
int standin_context_users(int device); /* how often its primary context is retained */
int standin_live_memory();             /* allocations that were not freed: device and pinned */
}

/* The calling thread has the GPU's context from now on, as cudaSetDevice() leaves it. */
static inline CUcontext standin_enter()
{
    CUcontext context = nullptr;
    cuInit(0);
    cuDevicePrimaryCtxRetain(&context, 0);
    cuCtxSetCurrent(context);
    return context;
}

#endif

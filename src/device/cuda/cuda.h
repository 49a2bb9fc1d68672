/*
 * The CUDA device's inside. cuda.c opens the device; queue.c holds streams and feeds kernels; driver.c finds libcuda. What a queue and its
 * kernels share is in command.h.
 */
#ifndef FT_DEVICE_CUDA_H
#define FT_DEVICE_CUDA_H

#include "device/cuda/command.h"
#include "device/cuda/driver.h"
#include "device/device.h"

#include <pthread.h>

#define FT_CUDA_PIECE ((size_t)65536) /* bytes of a far operand that are staged at once */
#define FT_CUDA_STAGES 40             /* such pieces that a queue has room for; a pass has at most 18 far operands */

struct ft_cuda_device {
    struct ft_device base;
    const struct ft_cuda_driver *driver;
    CUcontext context;
    CUdevice number;
    bool primary;        /* the context is the device's primary one, retained here */
    CUmodule module;
    CUfunction kernel;
    unsigned blocks, threads;
    atomic_int refs;     /* the opener and its queues */
    char name[96];
};

void ft_cuda_device_release(struct ft_cuda_device *cuda);
int ft_cuda_enter(const struct ft_cuda_device *cuda); /* its context is the thread's until leave */
void ft_cuda_leave(const struct ft_cuda_device *cuda);

/* A command in the ring, as the engine knows it. */
struct ft_cuda_posted {
    struct ft_device_req *req; /* NULL: cancelled */
    size_t at, count;          /* elements of its pass */
    int nstages;
    unsigned char stage[2 * FT_CUDA_OPERANDS]; /* for the far sources, then the far destinations */
};

struct ft_device_queue {
    struct ft_device_queue *next; /* among those that wait for their kernels */
    struct ft_cuda_device *cuda;
    CUstream stream;              /* the kernels' own */
    CUevent before, behind;       /* the user's streams have come to the run; the run is over */
    struct ft_cuda_control *control;
    CUdeviceptr control_there;    /* its address on the device */
    char *stages;                 /* [FT_CUDA_STAGES] of FT_CUDA_PIECE and a little, for alignment */
    CUdeviceptr stages_there;
    uint64_t silence_ns;
    _Atomic uint64_t launched;    /* runs; written by who calls after() */
    _Atomic uint64_t nobodys;     /* the last of them that no caller knows of; 0: none */
    uint64_t done;                /* commands seen to be done */
    struct ft_cuda_posted posted[FT_CUDA_RING];
    struct ft_device_req *first, *last; /* passes of which something is still to be posted */
    unsigned char free_stage[FT_CUDA_STAGES];
    int nfree;
    bool failed;
};

extern const struct ft_device_queue_ops ft_cuda_queue_ops;

/* The kernels for every architecture; see kernel.cu. */
extern const unsigned char ft_cuda_image[];

#endif

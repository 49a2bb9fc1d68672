/*
 * The shared memory between an engine and its kernels: one block of host-pinned memory per queue,
 * mapped on the device. Counters only grow, and each has one writer, so this needs no lock and no
 * reset. The library compiles it as C, the kernel as C++.
 */
#ifndef FT_CUDA_COMMAND_H
#define FT_CUDA_COMMAND_H

#include <stdint.h>

#define FT_CUDA_OPERANDS 9
#define FT_CUDA_RING 64 /* most commands that are posted and not done */
#define FT_CUDA_BLOCKS_MAX 64
/* Most rings that the engine has not seen. It exceeds the number of kernels that a device runs at
 * once, and no kernel exits before the engine has seen its ring. */
#define FT_CUDA_RINGS 256
/* value of `ended` of a gate that ends all runs, also future ones */
#define FT_CUDA_MUTE UINT64_MAX
#define FT_CUDA_KERNEL "ft_cuda_kernel"

/* One pass, or a piece of one: struct ft_reduce with device addresses. Commands that are in the
 * ring at the same time do not depend on each other. */
struct ft_cuda_command {
    uint64_t count;      /* elements */
    uint64_t scale;      /* the bits of the scale of struct ft_redop */
    uint64_t scale_from; /* device address of one element that contains the scale; 0: use `scale` */
    uint32_t divisor;    /* 0 or 1: none */
    uint32_t scaled;     /* bit k: multiply source k by the scale */
    uint8_t type, red, nsrc, ndst;
    uint32_t unused;
    uint64_t src[FT_CUDA_OPERANDS], dst[FT_CUDA_OPERANDS];
    uint64_t unused2;
};

/* A gate tells kernels which runs may work. Runs up to `begun` may execute commands. Runs up to
 * `ended` are over, and their kernels exit. Several kernels of a queue may be on the device at
 * once; at most one of them has begun and has not ended. */
struct ft_cuda_gate {
    uint64_t begun, ended;
};

/* A captured kernel starts without the engine's knowledge. Each block takes a ticket when it
 * starts, and the first block records in the control block that the bell rang. The n-th ticket of
 * each block serves the n-th ring. If several launches start at the same time, their blocks may
 * mix. */
struct ft_cuda_bell {
    struct ft_cuda_gate gate;
    uint64_t expired; /* the ticket of a block that exited because the engine was silent */
    uint64_t unused[5];
    uint64_t tickets[FT_CUDA_BLOCKS_MAX]; /* incremented only by the device */
};

/* Written by one thread block of the kernel. */
struct ft_cuda_block {
    uint64_t started; /* the last run of calls that this block has started */
    /* number of commands it has executed; stored with release, so its stores are visible */
    uint64_t done;
    uint64_t exited;  /* the last run of calls from which this block has exited */
    uint64_t expired; /* the last such run that it left because the engine was silent */
    uint64_t unused[4];
};

struct ft_cuda_control {
    /* number of commands posted since the beginning; written by the engine */
    uint64_t posted;
    struct ft_cuda_gate calls; /* gate for runs of calls; each bell has its own gate */
    uint64_t unused[13];
    uint64_t rings; /* rings of all bells; incremented only by the device */
    uint64_t unused2[7];
    /* Ring n is at n % FT_CUDA_RINGS. The low 32 bits are the bell's id, the high 32 bits count the
     * rounds through this array, from 1. */
    uint64_t rang[FT_CUDA_RINGS];
    struct ft_cuda_block block[FT_CUDA_BLOCKS_MAX];
    struct ft_cuda_command ring[FT_CUDA_RING];
};

#ifdef __cplusplus
#define FT_CUDA_ASSERT static_assert
#else
#define FT_CUDA_ASSERT _Static_assert
#endif
FT_CUDA_ASSERT(sizeof(struct ft_cuda_command) == 192, "a command is copied in words of 16 bytes");
FT_CUDA_ASSERT(sizeof(struct ft_cuda_block) == 64, "each block has its own cache line");

#endif

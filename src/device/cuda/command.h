/*
 * What the engine and a kernel say to each other: one block of host-pinned memory a queue, mapped
 * on the device. Counters only grow, and each has one writer, so that nothing in here needs a lock
 * or a reset. Compiled as C for the library, as C++ for the kernel.
 */
#ifndef FT_CUDA_COMMAND_H
#define FT_CUDA_COMMAND_H

#include <stdint.h>

#define FT_CUDA_OPERANDS 9
#define FT_CUDA_RING 64 /* commands posted and not done */
#define FT_CUDA_BLOCKS_MAX 64
/* not yet seen by the engine: more than the kernels that a device has at once, and none leaves
 * unseen */
#define FT_CUDA_RINGS 256
#define FT_CUDA_MUTE UINT64_MAX /* `ended` of a gate: all runs, whenever they come */
#define FT_CUDA_KERNEL "ft_cuda_kernel"

/* One pass, or a piece of one: struct ft_reduce with addresses of the device. Commands in the ring
 * at the same time do not depend on each other. */
struct ft_cuda_command {
    uint64_t count;      /* elements */
    uint64_t scale;      /* bits of struct ft_redop's scale */
    uint64_t scale_from; /* address of one element that is the scale; 0: `scale` is */
    uint32_t divisor;    /* 0 or 1: none */
    uint32_t scaled;     /* bit k: source k is multiplied by the scale */
    uint8_t type, red, nsrc, ndst;
    uint32_t unused;
    uint64_t src[FT_CUDA_OPERANDS], dst[FT_CUDA_OPERANDS];
    uint64_t unused2;
};

/* Runs by their numbers, as the engine lets them go: up to `begun` they may execute commands, up to
 * `ended` they are over and their kernels leave. Several kernels of a queue may be on the device at
 * once; at most one of them has begun and has not ended. */
struct ft_cuda_gate {
    uint64_t begun, ended;
};

/* A kernel that a graph holds starts without the engine's knowing: each start of a block takes a
 * ticket, and the first block says on the control block that the bell rang. The n-th ticket of each
 * block serves the n-th ring: of starts at the same time the blocks may mix. */
struct ft_cuda_bell {
    struct ft_cuda_gate gate;
    uint64_t expired; /* a ticket whose block left because nobody spoke to it */
    uint64_t unused[5];
    uint64_t tickets[FT_CUDA_BLOCKS_MAX]; /* counted by the device alone */
};

/* Written by one block of the kernel's threads. */
struct ft_cuda_block {
    uint64_t started; /* the last run of a call that this block began */
    uint64_t done;    /* commands it has executed; release: its stores are visible */
    uint64_t exited;  /* the last run of a call that it left */
    uint64_t expired; /* the last of those that it left because nobody spoke to it */
    uint64_t unused[4];
};

struct ft_cuda_control {
    uint64_t posted;           /* commands in the ring since the beginning; written by the engine */
    struct ft_cuda_gate calls; /* the runs of calls; those of graphs have their bells' */
    uint64_t unused[13];
    uint64_t rings; /* of all bells; counted by the device alone */
    uint64_t unused2[7];
    /* ring n is at n % FT_CUDA_RINGS: which bell, and above it which time round, from 1 */
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
FT_CUDA_ASSERT(sizeof(struct ft_cuda_block) == 64, "a block's word has a cache line");

#endif

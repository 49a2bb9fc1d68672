/*
 * What the engine and a kernel say to each other: one block of host-pinned memory a queue, mapped on the device. Counters only grow,
 * and each has one writer, so that nothing in here needs a lock or a reset. Compiled as C for the library, as C++ for the kernel.
 */
#ifndef FT_CUDA_COMMAND_H
#define FT_CUDA_COMMAND_H

#include <stdint.h>

#define FT_CUDA_OPERANDS 9
#define FT_CUDA_RING 64       /* commands posted and not done */
#define FT_CUDA_BLOCKS_MAX 64
#define FT_CUDA_KERNEL "ft_cuda_kernel"

/* One pass, or a piece of one: struct ft_reduce with addresses of the device. Commands in the ring at the same time do not depend on
 * each other. */
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

/* Written by one block of the kernel's threads. */
struct ft_cuda_block {
    uint64_t started; /* the last run that this block began */
    uint64_t done;    /* commands it has executed; release: its stores are visible */
    uint64_t exited;  /* the last run that it left */
    uint64_t expired; /* the last run that it left because nobody spoke to it */
    uint64_t unused[4];
};

struct ft_cuda_control {
    uint64_t posted;  /* commands in the ring since the beginning; written by the engine */
    uint64_t ended;   /* runs up to this one are over: their kernels leave when all commands are done */
    uint64_t unused[14];
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

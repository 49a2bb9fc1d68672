/*
 * Private to the host device: one table of kernels per instruction set. All tables give the same
 * bits for the same pass; the reference is scalar.c. Used by host.c, the kernels and the
 * conformance tests.
 */
#ifndef FT_DEVICE_HOST_H
#define FT_DEVICE_HOST_H

#include "device/device.h"

#define FT_HOST_OPS 4 /* sum, prod, max, min */

/* Executes any valid pass except one with an integer division, which host.c does in tiles. count
 * may be 0. */
typedef void ft_host_kernel(const struct ft_reduce *);

struct ft_host_isa {
    const char *name;
    bool (*usable)(void); /* does this processor have the instruction set? */
    bool streams;         /* has non-temporal stores */
    ft_host_kernel *kernel[FT_TYPES][FT_HOST_OPS];
};

extern const struct ft_host_isa ft_host_avx512, ft_host_avx2, ft_host_sse2, ft_host_neon,
    ft_host_scalar;

/* Best first, scalar last, then NULL. This processor may lack some of them. */
extern const struct ft_host_isa *const ft_host_isas[];

/* Executes one pass with the given instruction set instead of the device's. */
void ft_host_reduce(const struct ft_host_isa *, const struct ft_reduce *);

/* a shorter pass uses ordinary stores even if it may stream */
#define FT_HOST_STREAM_BYTES 4096

/* Returns the streaming destinations (bit d) that can take aligned non-temporal stores of whole
 * cache lines after the first `*head` of the pass's `len` bytes. */
static inline uint32_t ft_host_streams(const struct ft_reduce *r, size_t len, size_t *head)
{
    uint32_t streams = 0, wanted = r->streaming & ((1u << r->ndst) - 1);
    if (!wanted || len < FT_HOST_STREAM_BYTES)
        return 0;
    size_t first = -(uintptr_t)r->dst[__builtin_ctz(wanted)] % FT_CACHE_LINE;
    if (first % ft_type_size(r->type))
        return 0;
    for (int d = 0; d < r->ndst; d++)
        if ((wanted >> d & 1) && ((uintptr_t)r->dst[d] + first) % FT_CACHE_LINE == 0)
            streams |= 1u << d;
    *head = first;
    return streams;
}

/* The size of an element. It is a compile-time constant if the type is one. */
static inline __attribute__((always_inline)) size_t ft_host_size(enum ft_type type)
{
    switch (type) {
    case FT_INT8:
    case FT_UINT8:
    case FT_FLOAT8E4M3:
    case FT_FLOAT8E5M2:
        return 1;
    case FT_FLOAT16:
    case FT_BFLOAT16:
        return 2;
    case FT_INT32:
    case FT_UINT32:
    case FT_FLOAT32:
        return 4;
    default:
        return 8;
    }
}

/* Macros that define the kernels of all types (FT_HOST_KERNELS_OF) and fill a table with them
 * (FT_HOST_ROW). */
/* clang-format off */
#define FT_HOST_TYPES(X) \
    X(INT8) \
    X(UINT8) \
    X(INT32) \
    X(UINT32) \
    X(INT64) \
    X(UINT64) \
    X(FLOAT16) \
    X(FLOAT32) \
    X(FLOAT64) \
    X(BFLOAT16) \
    X(FLOAT8E4M3) \
    X(FLOAT8E5M2)
/* clang-format on */
#define FT_HOST_KERNEL(type, red)                                \
    static void kernel_##type##_##red(const struct ft_reduce *r) \
    {                                                            \
        kernel_run(r, FT_##type, FT_##red);                      \
    }
#define FT_HOST_KERNELS_OF(type) \
    FT_HOST_KERNEL(type, SUM)    \
    FT_HOST_KERNEL(type, PROD) FT_HOST_KERNEL(type, MAX) FT_HOST_KERNEL(type, MIN)
#define FT_HOST_ROW(type)                                                          \
    [FT_##type] = {kernel_##type##_SUM, kernel_##type##_PROD, kernel_##type##_MAX, \
                   kernel_##type##_MIN},

#endif

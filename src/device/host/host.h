/*
 * The host device's inside: one table of kernels per instruction set. All tables give the same bits
 * for the same pass; the one in scalar.c is the reference. Used by host.c, the kernels and the
 * conformance tests.
 */
#ifndef FT_DEVICE_HOST_H
#define FT_DEVICE_HOST_H

#include "device/device.h"

#define FT_HOST_OPS 4 /* sum, prod, max, min */

/* Takes any valid pass except one with an integer division (host.c's tiles do that). count may be
 * 0. */
typedef void ft_host_kernel(const struct ft_reduce *);

struct ft_host_isa {
    const char *name;
    bool (*usable)(void); /* does this processor have it? */
    bool streams;         /* has non-temporal stores */
    ft_host_kernel *kernel[FT_TYPES][FT_HOST_OPS];
};

extern const struct ft_host_isa ft_host_avx512, ft_host_avx2, ft_host_sse2, ft_host_neon,
    ft_host_scalar;

/* Best first, scalar last, NULL after it; not all of them are usable here. */
extern const struct ft_host_isa *const ft_host_isas[];

/* One pass with a given instruction set, whatever the device has chosen. */
void ft_host_reduce(const struct ft_host_isa *, const struct ft_reduce *);

/* Below this a pass uses ordinary stores even if it may stream. */
#define FT_HOST_STREAM_BYTES 4096

/* Which of the streaming destinations (bit d) can take aligned non-temporal stores of whole cache
 * lines once `*head` bytes of the pass's `len` are done. */
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

/* A constant where the type is one. */
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

/* Fills a table from kernels named by FT_HOST_KERNELS_OF. */
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

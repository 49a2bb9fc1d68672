/*
 * device: moves and reduces data. The host device works synchronously on ordinary memory with the CPU's vector units; a GPU
 * device will answer FT_AGAIN and complete later through poll. Called by core with the engine held.
 */
#ifndef FT_DEVICE_H
#define FT_DEVICE_H

#include "base/base.h"

#define FT_REDUCE_SRCS 9
#define FT_REDUCE_DSTS 9

/* One pass: dst[*][i] = divide(combine over k of src[k][i] * (scaled bit k ? scale : 1)). nsrc == 1 copies. A destination
 * may be the very same address as a source, else they do not overlap. Pointers may be unaligned. 8- and 16-bit floats
 * are widened to float32, combined in the order src[0], src[1], ... and rounded once, to nearest even; e4m3 saturates
 * to its largest finite value, e5m2 overflows to infinity, NaN stays NaN. Integers wrap. Max and min of a NaN are NaN. */
struct ft_reduce {
    enum ft_type type;
    struct ft_redop op;
    uint32_t scaled; /* bit k: src[k] is multiplied by op.scale (op.scaled must be set) */
    bool divide;     /* divide by op.divisor */
    uint32_t streaming; /* bit d: dst[d] is not in the caches and will not be read soon: non-temporal stores may be used */
    size_t count;    /* elements */
    int nsrc, ndst;
    const void *src[FT_REDUCE_SRCS];
    void *dst[FT_REDUCE_DSTS];
};

/* A pass under way; embedded in its owner. */
struct ft_device_req { int status; /* FT_AGAIN until done */ };

struct ft_device {
    const struct ft_device_ops *ops;
    const char *name; /* "host avx512", ... */
};

struct ft_device_ops {
    const char *name;
    /* May block (loads drivers, kernels). FT_NOTSUP: no such device here. */
    int (*open)(struct ft_device **out);
    void (*close)(struct ft_device *);
    /* Memory that every path likes best; zeroed, page-aligned. May block. */
    int (*alloc)(struct ft_device *, size_t len_bytes, void **out);
    void (*free)(struct ft_device *, void *ptr, size_t len_bytes);
    /* Does the device work on this address? Any thread, does not block. */
    bool (*owns)(struct ft_device *, const void *ptr);
    /* Starts one pass. FT_OK: done already. FT_AGAIN: req->status changes in a later poll; sources and destinations stay
     * untouched until then. Engine held, never blocks. */
    int (*reduce)(struct ft_device *, const struct ft_reduce *, struct ft_device_req *req);
    int (*poll)(struct ft_device *); /* collects finished passes; returns how many */
};

extern const struct ft_device_ops ft_device_host;

/* The registry's choice: FTCCL_DEVICE, else the best one found. */
int ft_device_open(struct ft_device **out);
void ft_device_close(struct ft_device *);
/* FT_NOTSUP, with a sentence that names the call: memory of a GPU, on which no device of this build works. Any thread, does not
 * block; NULL is fine. find_driver, when a rank is made: whether the process has loaded what a GPU needs is looked up then. */
int ft_device_check(const char *call, const void *ptr);
void ft_device_find_driver(void);
/* Names of the devices and instruction sets found here, for ftccl-info. */
void ft_device_describe(FILE *out);

#endif

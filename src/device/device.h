/*
 * device: moves and reduces data. The host device works synchronously on ordinary memory with the
 * CPU's vector units; a device with streams (a GPU) works on queues, one a communicator, and
 * completes passes later. Called by core with the the caller holds the engine, where a slot does
 * not say otherwise.
 */
#ifndef FT_DEVICE_H
#define FT_DEVICE_H

#include "base/base.h"

#define FT_REDUCE_SRCS 9
#define FT_REDUCE_DSTS 9

/* One pass: dst[*][i] = divide(combine over k of src[k][i] * (scaled bit k ? scale : 1)). nsrc == 1
 * copies. A destination may be the very same address as a source, else they do not overlap.
 * Pointers may be unaligned. 8- and 16-bit floats are widened to float32, combined in the order
 * src[0], src[1], ... and rounded once, to nearest even; e4m3 saturates to its largest finite
 * value, e5m2 overflows to infinity, NaN stays NaN. Integers wrap. Max and min of a NaN are NaN. */
struct ft_reduce {
    enum ft_type type;
    struct ft_redop op;
    uint32_t scaled; /* bit k: src[k] is multiplied by op.scale (op.scaled must be set) */
    bool divide;     /* divide by op.divisor */
    /* bit d: dst[d] is not in the caches and will not be read soon: non-temporal stores may be
     * used */
    uint32_t streaming;
    size_t count; /* elements */
    int nsrc, ndst;
    const void *src[FT_REDUCE_SRCS];
    void *dst[FT_REDUCE_DSTS];
};

/* Operands of a pass on a queue that the device cannot reach, such as a link's memory: bit k stands
 * for src[k] or dst[k]. They go through memory of the queue's that it can. */
struct ft_device_staged {
    uint32_t src, dst;
};

/* A pass under way; embedded in its owner. The device's but for status. */
struct ft_device_req {
    int status; /* FT_AGAIN until done */
    struct ft_device_req *next;
    struct ft_reduce pass;
    struct ft_device_staged staged;
    const void *scale_from;
    bool direct;         /* operands that are not the device's are reached where they lie */
    size_t posted, left; /* elements handed over, and not done */
};

struct ft_device_queue;

struct ft_device {
    const struct ft_device_ops *ops;
    const char *name; /* "host avx512", ... */
    int number;       /* among the GPUs of this process; 0 */
    /* memory of the host that it reaches, for links that are closed before it; NULL: none */
    struct ft_pinned *pinned;
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
    /* Of such an address: the number of the only GPU that has the memory; -1: all reach it. NULL:
     * there is no other device. Likewise. */
    int (*only)(struct ft_device *, const void *ptr);
    /* Starts one pass. FT_OK: done already. FT_AGAIN: req->status changes in a later poll; sources
     * and destinations stay untouched until then. The caller holds the engine, never blocks. */
    int (*reduce)(struct ft_device *, const struct ft_reduce *, struct ft_device_req *req);
    int (*poll)(struct ft_device *); /* collects finished passes; returns how many */
    /* What other engines have pinned and this one has met (ft_pinned_meet()) is reached from now
     * on, where that works; what nobody keeps any more goes when no pass can read it. May block:
     * for a thread that does not hold the engine. NULL: it reaches nothing of the kind. */
    void (*reach)(struct ft_device *);
    /* NULL: the device has no streams; then the slots above do its work, else these */
    const struct ft_device_queue_ops *queue;
};

/*
 * A group of calls that a CUDA graph holds. Each start of the graph rings, and is a run of its own;
 * its runs are numbered apart from those of calls. Lives until `forget`.
 */
struct ft_device_bell {
    void *owner; /* the caller's */
};

/*
 * A queue holds the user's streams while a group of calls runs: a run begins when they have come to
 * it and ends when it is said to. Runs of a queue are in order, those of graphs in the order in
 * which they are begun. Passes go to the run that has begun last and has not ended. Where a run is
 * named, `bell` is NULL for one of calls.
 */
struct ft_device_queue_ops {
    /* Both may block and are for a thread that does not hold the engine. silence_ns: runs end by
     * themselves when nothing is heard from the engine for that time; 0: never. Close ends all
     * runs; what the device still uses is freed when it no longer does. */
    int (*open)(struct ft_device *, uint64_t silence_ns, struct ft_device_queue **out);
    void (*close)(struct ft_device_queue *);
    /* Puts a run behind all that is on these streams of the user's. *run counts from 1. Any thread,
     * one at a time; may block for as long as the driver's own queue is full. */
    int (*after)(struct ft_device_queue *, void *const *streams, int nstreams, uint64_t *run);
    /* after() in two parts, where a launch waits for its kernel: announce() is all of it but the
     * launch, which comes when the engine knows of the run. An error of launch(): the run is
     * refused, and reached() says so. Any thread, also side by side for several runs. */
    int (*announce)(struct ft_device_queue *, void *const *streams, int nstreams, uint64_t *run);
    int (*launch)(struct ft_device_queue *, uint64_t run);
    /* What comes on these streams later is behind the last run. On an error the run is nobody's and
     * ends by itself. As after(), and apart from it so that no run of a group is behind another
     * whose streams it shares. */
    int (*hold)(struct ft_device_queue *, void *const *streams, int nstreams);
    /* FT_AGAIN: the streams have not come to the run yet. FT_OK, or FT_DEVICE. Never blocks. */
    int (*reached)(struct ft_device_queue *, const struct ft_device_bell *bell, uint64_t run);
    /* It has been reached, and no other run is under way: what is done from now on is its. Never
     * blocks. */
    void (*begin)(struct ft_device_queue *, struct ft_device_bell *bell, uint64_t run);
    /* The run is over, also one that has not begun; idempotent. Runs of calls: any thread. Never
     * blocks. Passes under way may be lost. */
    void (*signal)(struct ft_device_queue *, struct ft_device_bell *bell, uint64_t run);
    /* Starts a pass: FT_AGAIN, and req->status changes in a later poll. Passes under way must not
     * depend on each other. scale_from: where the device finds the scale, NULL: in the pass. Never
     * blocks and takes no lock of the driver's; so do the next three. */
    int (*reduce)(struct ft_device_queue *, const struct ft_reduce *,
                  struct ft_device_staged staged, const void *scale_from,
                  struct ft_device_req *req);
    int (*poll)(struct ft_device_queue *); /* how many passes or pieces of them moved */
    /* Idempotent. Operands that are staged are not touched any more; those in pinned memory
     * (base/pinned.c) until the queue is idle. */
    void (*cancel)(struct ft_device_queue *, struct ft_device_req *req);
    /* nothing that was started still reads or writes memory */
    bool (*idle)(const struct ft_device_queue *);
    /* A word that this side writes and kernels, also the user's, may read: 0 at first. *there is
     * its address for them. The queue's until close, and then for good if it is not 0. May block;
     * one thread at a time. */
    int (*word)(struct ft_device_queue *, uint32_t **here, const uint32_t **dev_ptr);

    /* Streams that are being captured. FT_OK: all of them are, into one graph. FT_AGAIN: none is.
     * FT_INVAL. */
    int (*capturing)(struct ft_device_queue *, void *const *streams, int nstreams);
    /* Puts a kernel into the graph behind all that is captured on the streams, and behind earlier
     * kernels of the queue there. Any thread; does not wait for streams. No graph that has it runs
     * before the capture has ended. */
    int (*capture)(struct ft_device_queue *, void *const *streams, int nstreams,
                   struct ft_device_bell **out);
    /* What is captured later on these streams, with which the n-th bell of a group was captured, is
     * behind its kernel. Apart from capture() so that kernels of one group are side by side. */
    int (*captured)(struct ft_device_bell *const *bells, int nth, void *const *streams,
                    int nstreams);
    /* A bell that has rung since it was asked last, and the number of this run; NULL: none. The
     * next five never block either. */
    struct ft_device_bell *(*rung)(struct ft_device_queue *, uint64_t *run);
    uint64_t (*gone)(const struct ft_device_queue *); /* bells so far that no graph has any more */
    bool (*is_gone)(const struct ft_device_bell *);   /* it rings no more */
    void (*forget)(struct ft_device_bell *);          /* then */
    /* All runs of the queue's bells, or of one, are over, whenever they ring. Any thread. */
    void (*mute)(struct ft_device_queue *, struct ft_device_bell *only);
};

extern const struct ft_device_ops ft_device_host;

/* The host device; FT_INVAL: FTCCL_DEVICE names none. */
int ft_device_open(struct ft_device **out);
/* A GPU to be opened: that of a context of the program's; without one that of a number, by its
 * primary context; else none. */
struct ft_device_gpu {
    void *context;
    bool numbered;
    int number;
};
/* The calling thread's: of its context, or, as for CUDA's runtime, the first one if the program
 * uses that. None with FTCCL_DEVICE=host; the first one with cuda if there is no context. */
struct ft_device_gpu ft_device_gpu_of_thread(void);
/* The one of this number, in the thread's context if that is on it. count: how many there are; 0
 * where the thread has none. */
struct ft_device_gpu ft_device_gpu_numbered(int number);
int ft_device_gpu_count(void);
/* *out is NULL where there is no driver or no such GPU; with FTCCL_DEVICE=cuda that is
 * FT_NOTSUP. */
int ft_device_open_gpu(struct ft_device_gpu which, struct ft_device **out);
/* Memory of that GPU for a program, apart from any device that is open. May block. Freed with the
 * same `which`. */
int ft_device_gpu_alloc(struct ft_device_gpu which, size_t len_bytes, void **out);
void ft_device_gpu_free(struct ft_device_gpu which, void *ptr);
void ft_device_close(struct ft_device *);
/* FT_NOTSUP, with a sentence that names the call: memory of a GPU, on which no device of this build
 * works. Any thread, does not block; NULL is fine. find_driver, when a rank is made: whether the
 * process has loaded what a GPU needs is looked up then. */
int ft_device_check(const char *call, const void *ptr);
void ft_device_find_driver(void);
/* Names of the devices and instruction sets found here, for ftccl-info. */
void ft_device_describe(FILE *out);

#endif

/*
 * device: moves and reduces data. The host device works synchronously on ordinary memory with the
 * CPU's vector units. A device with streams (a GPU) works on queues, one per communicator, and
 * completes passes later. Core calls it and holds the engine during each call, unless a slot says
 * otherwise.
 */
#ifndef FT_DEVICE_H
#define FT_DEVICE_H

#include "base/base.h"

#define FT_REDUCE_SRCS 9
#define FT_REDUCE_DSTS 9

/* One pass: dst[*][i] = divide(combine over k of src[k][i] * (scaled bit k ? scale : 1)). If nsrc
 * == 1 it copies. A destination may have the same address as a source; otherwise they must not
 * overlap. Pointers may be unaligned. 8-bit and 16-bit floats are widened to float32, combined in
 * the order src[0], src[1], ... and rounded once, to nearest even. e4m3 saturates to its largest
 * finite value, e5m2 overflows to infinity, and NaN stays NaN. Integers wrap. The max or min of a
 * NaN and any value is NaN. */
struct ft_reduce {
    enum ft_type type;
    struct ft_redop op;
    uint32_t scaled; /* bit k: src[k] is multiplied by op.scale (op.scaled must be set) */
    bool divide;     /* divide by op.divisor */
    /* bit d: dst[d] is not in the caches and will not be read soon, so non-temporal stores may be
     * used */
    uint32_t streaming;
    size_t count; /* elements */
    int nsrc, ndst;
    const void *src[FT_REDUCE_SRCS];
    void *dst[FT_REDUCE_DSTS];
};

/* Operands of a pass on a queue that the device cannot access, such as the memory of a link. Bit k
 * stands for src[k] or dst[k]. The queue copies them through memory of its own that the device can
 * access. */
struct ft_device_staged {
    uint32_t src, dst;
};

/* A pass in progress. The struct is embedded in its owner. Only `status` is for the owner; the
 * device uses the rest. */
struct ft_device_req {
    int status; /* FT_AGAIN until done */
    struct ft_device_req *next;
    struct ft_reduce pass;
    struct ft_device_staged staged;
    const void *scale_from;
    bool direct;         /* the device accesses operands in host memory in place */
    size_t posted, left; /* elements that were posted, and elements that are not done */
};

struct ft_device_queue;

struct ft_device {
    const struct ft_device_ops *ops;
    const char *name; /* "host avx512", ... */
    int number;       /* number among the GPUs of this process; 0 for the host device */
    /* host memory that the device can access, for links, which are closed before the device; NULL:
     * none */
    struct ft_pinned *pinned;
};

struct ft_device_ops {
    const char *name;
    /* Opens the device. May block (it loads drivers and kernels). Returns FT_NOTSUP if there is no
     * such device here. */
    int (*open)(struct ft_device **out);
    void (*close)(struct ft_device *);
    /* Allocates zeroed, page-aligned memory of the kind that is fastest on every path. May
     * block. */
    int (*alloc)(struct ft_device *, size_t len_bytes, void **out);
    void (*free)(struct ft_device *, void *ptr, size_t len_bytes);
    /* Returns true if the device works on this address. Any thread may call it; it does not
     * block. */
    bool (*owns)(struct ft_device *, const void *ptr);
    /* For an address that the device owns: the number of the only GPU that can access the memory,
     * or -1 if all can. Any thread may call it; it does not block. NULL: there is no second
     * device. */
    int (*only)(struct ft_device *, const void *ptr);
    /* Starts one pass. Returns FT_OK if it is already done. Returns FT_AGAIN if req->status will
     * change in a later poll; until then nobody may touch sources and destinations. The caller
     * holds the engine. Never blocks. */
    int (*reduce)(struct ft_device *, const struct ft_reduce *, struct ft_device_req *req);
    int (*poll)(struct ft_device *); /* collects finished passes and returns their number */
    /* Makes the pinned memory of other engines that this engine has met (ft_pinned_map())
     * accessible to the device, where the driver allows it. Also unregisters met memory that nobody
     * keeps, once no pass can read it. May block, so the caller must not hold the engine. NULL: the
     * device cannot access such memory. */
    void (*reach)(struct ft_device *);
    /* NULL: the device has no streams, and the slots above do its work. Otherwise these slots
     * do. */
    const struct ft_device_queue_ops *queue;
};

/*
 * A bell: a group of calls that was captured into a CUDA graph. Each launch of the graph starts one
 * run of the group; the bell "rings" then, which tells the engine. Each bell numbers its runs
 * itself, apart from the runs of calls. A bell lives until `forget`.
 */
struct ft_device_bell {
    void *owner; /* for the caller's use */
};

/*
 * A queue holds the user's streams while a group of calls runs. A run is one execution of a group.
 * It can begin when all its streams have reached it, and it ends when the engine says so. Runs of
 * calls are in order; runs of graphs are in the order in which they begin. A pass belongs to the
 * run that began last and has not ended. Where a slot takes a run, `bell` is NULL for a run of
 * calls.
 */
struct ft_device_queue_ops {
    /* Open and close a queue. Both may block, and the caller must not hold the engine. silence_ns:
     * if the engine sends nothing for that time, runs end by themselves; 0: never. Close ends all
     * runs. Memory that the device still uses is freed when the device no longer uses it. */
    int (*open)(struct ft_device *, uint64_t silence_ns, struct ft_device_queue **out);
    void (*close)(struct ft_device_queue *);
    /* Enqueues a run after all work on these streams of the user. *run counts from 1. Any thread
     * may call it, one at a time. It may block while the driver's own queue is full. */
    int (*after)(struct ft_device_queue *, void *const *streams, int nstreams, uint64_t *run);
    /* after() in two parts, for launches that wait for their kernel. announce() does everything
     * except the launch; launch() follows when the engine knows of the run. If launch() fails, the
     * run is refused, and reached() returns the error. Any thread may call them, also in parallel
     * for several runs. */
    int (*announce)(struct ft_device_queue *, void *const *streams, int nstreams, uint64_t *run);
    int (*launch)(struct ft_device_queue *, uint64_t run);
    /* Makes later work on these streams wait for the last run. After an error nobody owns the run,
     * and it ends by itself. Called as after(), but separately, so that no run of a group waits for
     * another run of the group with which it shares streams. */
    int (*hold)(struct ft_device_queue *, void *const *streams, int nstreams);
    /* Returns FT_AGAIN while the streams have not reached the run; then FT_OK, or FT_DEVICE on
     * failure. Never blocks. */
    int (*reached)(struct ft_device_queue *, const struct ft_device_bell *bell, uint64_t run);
    /* Begins a run: later passes belong to it. The caller makes sure that the run is reached and
     * that no other run is in progress. Never blocks. */
    void (*begin)(struct ft_device_queue *, struct ft_device_bell *bell, uint64_t run);
    /* Ends a run, even one that has not begun. Idempotent. For runs of calls any thread may call
     * it. Never blocks. Passes in progress may be lost. */
    void (*signal)(struct ft_device_queue *, struct ft_device_bell *bell, uint64_t run);
    /* Starts a pass. Returns FT_AGAIN, and req->status changes in a later poll. Passes in progress
     * must not depend on each other. scale_from: device address of the scale; NULL: the pass
     * contains it. Never blocks and takes no lock of the driver. The same holds for the next three
     * slots. */
    int (*reduce)(struct ft_device_queue *, const struct ft_reduce *,
                  struct ft_device_staged staged, const void *scale_from,
                  struct ft_device_req *req);
    /* returns how many passes, or pieces of them, made progress */
    int (*poll)(struct ft_device_queue *);
    /* Cancels a pass. Idempotent. Staged operands are not touched any more. Operands in pinned
     * memory (base/pinned.c) may be touched until the queue is idle. */
    void (*cancel)(struct ft_device_queue *, struct ft_device_req *req);
    /* returns true if no pass that was started still reads or writes memory */
    bool (*idle)(const struct ft_device_queue *);
    /* Returns a status word that the engine writes and that kernels, also the user's kernels, may
     * read. It is 0 at first. *dev_ptr is its address on the device. The word belongs to the queue
     * until close; if it is not 0 then, it is never reused. May block. One thread at a time may
     * call it. */
    int (*word)(struct ft_device_queue *, uint32_t **here, const uint32_t **dev_ptr);

    /* Returns FT_OK if all streams are being captured into one graph, FT_AGAIN if none is being
     * captured, and FT_INVAL otherwise. */
    int (*capturing)(struct ft_device_queue *, void *const *streams, int nstreams);
    /* Captures a kernel into the graph, after all work captured on the streams and after earlier
     * kernels of this queue in the graph. Any thread may call it; it does not wait for streams. No
     * graph that contains the kernel runs before the capture has ended. */
    int (*capture)(struct ft_device_queue *, void *const *streams, int nstreams,
                   struct ft_device_bell **out);
    /* Makes later captures on these streams depend on the n-th bell's kernel. These streams are
     * those with which that bell of a group was captured. It is separate from capture(), so that
     * the kernels of one group can run in parallel. */
    int (*captured)(struct ft_device_bell *const *bells, int nth, void *const *streams,
                    int nstreams);
    /* Returns a bell that has rung, once per ring, and the number of its run; NULL if there is
     * none. This slot and the next four never block. */
    struct ft_device_bell *(*rung)(struct ft_device_queue *, uint64_t *run);
    /* number of bells so far that no graph contains any more */
    uint64_t (*gone)(const struct ft_device_queue *);
    bool (*is_gone)(const struct ft_device_bell *); /* no graph contains this bell any more */
    void (*forget)(struct ft_device_bell *);        /* frees such a bell */
    /* Ends all runs of all the queue's bells, or of `only` one bell, now and in the future. Any
     * thread may call it. */
    void (*mute)(struct ft_device_queue *, struct ft_device_bell *only);
};

extern const struct ft_device_ops ft_device_host;

/* Opens the host device. Returns FT_INVAL if FTCCL_DEVICE names no device. */
int ft_device_open(struct ft_device **out);
/* Selects a GPU: the GPU of the program's context; without a context, the GPU `number` with its
 * primary context if `numbered`; otherwise no GPU. */
struct ft_device_gpu {
    void *context;
    bool numbered;
    int number;
};
/* The calling thread's GPU: that of its context, or, as CUDA's runtime does, the first GPU if the
 * program uses its primary context. With FTCCL_DEVICE=host there is none. With FTCCL_DEVICE=cuda
 * and no context it is the first GPU. */
struct ft_device_gpu ft_device_gpu_of_thread(void);
/* ft_device_gpu_numbered() selects the GPU of this number, with the thread's context if that is on
 * this GPU. ft_device_gpu_count() returns the number of GPUs, or 0 if the calling thread has
 * none. */
struct ft_device_gpu ft_device_gpu_numbered(int number);
int ft_device_gpu_count(void);
/* Opens a GPU. Without a driver or such a GPU, *out is NULL; with FTCCL_DEVICE=cuda that case
 * returns FT_NOTSUP. */
int ft_device_open_gpu(struct ft_device_gpu which, struct ft_device **out);
/* Allocates memory of that GPU for a program, independent of any open device. May block. Free it
 * with the same `which`. */
int ft_device_gpu_alloc(struct ft_device_gpu which, size_t len_bytes, void **out);
void ft_device_gpu_free(struct ft_device_gpu which, void *ptr);
void ft_device_close(struct ft_device *);
/* ft_device_check() returns FT_NOTSUP, with a sentence that names the call, if ptr is memory of a
 * GPU on which no device of this build works. Any thread may call it; it does not block; NULL is
 * allowed. ft_device_find_driver() is called when a rank is created: it looks up whether the
 * process has loaded the GPU's driver. */
bool ft_device_has_driver(void); /* without it ft_device_check() always returns FT_OK */
int ft_device_check(const char *call, const void *ptr);
void ft_device_find_driver(void);
/* Prints the devices and instruction sets found here, for ftccl-info. */
void ft_device_describe(FILE *out);

/* ---- how fast this processor and its memory are now (host/check.c) ----------------------------
 */

#define FT_CHECK_COPY_BYTES (4u << 20)
#define FT_CHECK_BYTES ((8u << 20) + (256u << 10)) /* the memory that both need, zeroed */
/* One repetition; nanoseconds. copy: FT_CHECK_COPY_BYTES. product: of two matrices of 128 x 128
 * floats. A millisecond or two. */
uint64_t ft_check_copy(struct ft_env *env, void *memory);
uint64_t ft_check_product(struct ft_env *env, void *memory);

#endif

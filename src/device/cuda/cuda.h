/*
 * Private to the CUDA device. cuda.c opens the device. queue.c holds streams and feeds kernels.
 * deferred_free.c frees queues and devices when no kernel is pending. graph.c captures kernels into
 * graphs. word.c tells the user's kernels about a failure. driver.c finds libcuda. command.h
 * defines what a queue and its kernels share.
 */
#ifndef FT_DEVICE_CUDA_H
#define FT_DEVICE_CUDA_H

#include "device/cuda/command.h"
#include "device/cuda/driver.h"
#include "device/device.h"

#include <pthread.h>

#define FT_CUDA_PIECE ((size_t)65536) /* bytes of a staged operand that are copied at once */
#define FT_CUDA_BELLS 256             /* bells that are allocated together */
/* most groups of calls of a communicator that graphs may contain at the same time */
#define FT_CUDA_BELLS_MAX 65536
/* most concurrent captures in which a queue keeps its kernels in order */
#define FT_CUDA_CAPTURES 16
/* pieces for staging that a queue has; a pass has at most 18 staged operands */
#define FT_CUDA_STAGES 40

struct ft_cuda_device {
    struct ft_device base;
    const struct ft_cuda_driver *driver;
    CUcontext context;
    CUdevice number;
    bool primary; /* the context is the device's primary context, which this struct retains */
    CUmodule module;
    CUfunction kernel;
    unsigned blocks, threads;
    atomic_int refs;          /* references by the opener and by queues */
    pthread_mutex_t reaching; /* serialises reach(); a thread that holds an engine never takes it */
    struct ft_cuda_device *next; /* link in the list of closed devices: see deferred_free.c */
    char name[96];
};

void ft_cuda_device_release(struct ft_cuda_device *cuda);
void ft_cuda_free_device(struct ft_cuda_device *cuda);

/* ft_cuda_enter() makes the device's context current in this thread until ft_cuda_leave(). A
 * capture of a stream by another thread does not disturb our calls in between. They do not nest.
 * "Entered" below means: the caller has entered. */
int ft_cuda_enter(const struct ft_cuda_device *cuda);
void ft_cuda_leave(const struct ft_cuda_device *cuda);
/* Allocates host-pinned memory and returns its address on the device. Freed by cuMemFreeHost().
 * Entered. */
int ft_cuda_map(const struct ft_cuda_driver *driver, size_t len_bytes, void **here,
                CUdeviceptr *dev_ptr);

/* share.c: GPU memory for messages, which belongs to the device's pinned memory. ft_cuda_share()
 * allocates it. ft_cuda_share_meet() makes the GPU memory of another engine accessible to this
 * device. If either fails, messages go through host memory; that is not an error. ft_cuda_unshare()
 * undoes either. Entered. */
void ft_cuda_share(struct ft_cuda_device *cuda);
void ft_cuda_share_meet(struct ft_cuda_device *cuda, struct ft_pinned *other);
void ft_cuda_unshare(struct ft_cuda_device *cuda, struct ft_pinned *chunk);

/* The engine's record of a command in the ring. */
struct ft_cuda_posted {
    struct ft_device_req *req; /* NULL: cancelled */
    size_t at, count;          /* range of its pass, in elements */
    bool direct;               /* reads or writes the memory of a link in place */
    bool late;                 /* a direct command that was cancelled */
    int nstages;
    /* stage of each staged source, then of each staged destination */
    unsigned char stage[2 * FT_CUDA_OPERANDS];
};

/* A status word for the user's kernels: see word.c. */
struct ft_cuda_word {
    struct ft_cuda_word *next;
    uint32_t *here;
    CUdeviceptr dev_ptr;
};

struct ft_device_queue {
    struct ft_device_queue *next;    /* link in the list of closed queues */
    struct ft_device_queue *sibling; /* link in the list of all queues of the process */
    struct ft_cuda_device *cuda;
    CUstream stream; /* the stream of our kernels */
    /* `before`: the user's streams have reached the run; `behind`: the run is over */
    CUevent before, behind;
    struct ft_cuda_control *control;
    CUdeviceptr control_dev_ptr; /* its address on the device */
    /* [FT_CUDA_STAGES] stages of FT_CUDA_PIECE bytes each, and some more for alignment */
    char *stages;
    CUdeviceptr stages_dev_ptr;
    struct ft_cuda_word *word; /* NULL: nobody has asked for it */
    uint64_t silence_ns;
    /* number of runs that were launched or announced; only after() and announce() write it */
    _Atomic uint64_t launched;
    _Atomic uint64_t issued; /* number of runs whose launch has returned, successfully or not */
    /* the last announced run whose launch failed; 0: none */
    _Atomic uint64_t refused;
    _Atomic uint64_t unowned; /* the last run that no caller knows of; 0: none */
    uint64_t done;            /* number of commands that the engine has seen done */
    struct ft_cuda_posted posted[FT_CUDA_RING];
    /* Bytes of operands that are not the user's: copied, accessed in place in pinned memory, and of
     * these in device memory. */
    uint64_t staged_bytes, direct_bytes, devmem_bytes;
    struct ft_device_req *first, *last; /* passes that still have elements to post */
    unsigned char free_stage[FT_CUDA_STAGES];
    int nfree;
    bool failed, closed;
    const struct ft_device_bell *runs_bell; /* the run that began last */
    uint64_t runs_number;
    /* stored with release in add_bells() */
    struct ft_cuda_bells *_Atomic bells[FT_CUDA_BELLS_MAX / FT_CUDA_BELLS];
    unsigned nbells; /* number of bells that were ever used; protected by graph.c's lock */
    /* rings that the engine has seen; user objects created for bells; user objects that the driver
     * has destroyed */
    _Atomic uint64_t rings_seen, made, gone;
    _Atomic uint64_t rings_over; /* number of rings whose runs have ended */
    atomic_bool muted;           /* all runs of all bells have ended for good */
    atomic_int unused_bells;     /* number of bells that may be reused; a hint */
    /* The last kernel of this queue in each capture. Protected by graph.c's lock. */
    struct ft_cuda_chain {
        cuuint64_t capture;
        CUgraphNode last;
    } chains[FT_CUDA_CAPTURES];
    unsigned oldest_chain;
};

extern const struct ft_device_queue_ops ft_cuda_queue_ops;

/* pairs with the kernel's store */
static inline uint64_t ft_cuda_load(const uint64_t *from)
{
    return __atomic_load_n(from, __ATOMIC_ACQUIRE);
}
/* pairs with the kernel's load */
static inline void ft_cuda_store(uint64_t *to, uint64_t value)
{
    __atomic_store_n(to, value, __ATOMIC_RELEASE);
}

int ft_cuda_word(struct ft_device_queue *queue, uint32_t **here, const uint32_t **dev_ptr);
void ft_cuda_word_close(struct ft_device_queue *queue);

/* ---- deferred_free.c: closed queues and devices, and when they may be freed. Any thread may call
 * these. Those that free may wait, so their caller must not hold an engine. ---- */

/* Returns true if a kernel of this process is on a device, or will be, and may stay there. Then
 * freeing or unpinning memory could wait for it. */
bool ft_cuda_kernel_pending(void);
/* Returns true if no kernel reads or writes memory for a command that was posted before this
 * call. */
bool ft_cuda_commands_done(const struct ft_cuda_device *cuda);
void ft_cuda_list(struct ft_device_queue *queue);
void ft_cuda_unlist(struct ft_device_queue *queue);
void ft_cuda_defer_queue(struct ft_device_queue *queue); /* defers freeing a closed queue */
/* defers freeing a device without references */
void ft_cuda_defer_device(struct ft_cuda_device *cuda);
/* takes a closed queue of this device for reuse, if all its kernels have exited; or NULL */
struct ft_device_queue *ft_cuda_take_closed(const struct ft_cuda_device *cuda);
void ft_cuda_reap(void); /* frees what can be freed now */
void ft_cuda_free_queue(struct ft_device_queue *queue);

/* ---- graph.c: the queue's functions for graphs, and what queue.c needs of a bell ------------- */

int ft_cuda_capturing(struct ft_device_queue *queue, void *const *streams, int n);
int ft_cuda_capture(struct ft_device_queue *queue, void *const *streams, int n,
                    struct ft_device_bell **out);
int ft_cuda_captured(struct ft_device_bell *const *bells, int nth, void *const *streams, int n);
struct ft_device_bell *ft_cuda_rung(struct ft_device_queue *queue, uint64_t *run);
uint64_t ft_cuda_gone(const struct ft_device_queue *queue);
bool ft_cuda_is_gone(const struct ft_device_bell *bell);
void ft_cuda_forget(struct ft_device_bell *bell);
void ft_cuda_mute(struct ft_device_queue *queue, struct ft_device_bell *only);
struct ft_cuda_bell *ft_cuda_bell_shared(const struct ft_device_bell *bell);
void ft_cuda_free_bells(struct ft_device_queue *queue); /* the caller has entered */
/* marks all bells unused; no graph contains one any more */
void ft_cuda_renew_bells(struct ft_device_queue *queue);

/* The compiled kernels for all architectures: see kernel.cu. */
extern const unsigned char ft_cuda_image[];

#endif

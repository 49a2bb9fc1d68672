/*
 * The CUDA device's inside. cuda.c opens the device; queue.c holds streams and feeds kernels;
 * deferred_free.c frees them when no kernel stands; graph.c puts kernels into graphs; word.c tells
 * kernels of the user's what has failed; driver.c finds libcuda. What a queue and its kernels share
 * is in command.h.
 */
#ifndef FT_DEVICE_CUDA_H
#define FT_DEVICE_CUDA_H

#include "device/cuda/command.h"
#include "device/cuda/driver.h"
#include "device/device.h"

#include <pthread.h>

#define FT_CUDA_PIECE ((size_t)65536) /* bytes of a far operand that are staged at once */
#define FT_CUDA_BELLS 256             /* bells that are allocated together */
/* groups of a communicator that graphs hold at the same time */
#define FT_CUDA_BELLS_MAX 65536
/* captures under way at once in which a queue keeps its kernels in order */
#define FT_CUDA_CAPTURES 16
/* such pieces that a queue has room for; a pass has at most 18 far operands */
#define FT_CUDA_STAGES 40

struct ft_cuda_device {
    struct ft_device base;
    const struct ft_cuda_driver *driver;
    CUcontext context;
    CUdevice number;
    bool primary; /* the context is the device's primary one, retained here */
    CUmodule module;
    CUfunction kernel;
    unsigned blocks, threads;
    atomic_int refs;          /* the opener and its queues */
    pthread_mutex_t reaching; /* one thread a time in reach(); never taken by who holds an engine */
    struct ft_cuda_device *next; /* among those that nobody has any more, see deferred_free.c */
    char name[96];
};

void ft_cuda_device_release(struct ft_cuda_device *cuda);
void ft_cuda_free_device(struct ft_cuda_device *cuda);

/* The device's context is the thread's until leave. A stream that somebody captures in the meantime
 * hinders none of our calls. Not nested. */
int ft_cuda_enter(const struct ft_cuda_device *cuda);
void ft_cuda_leave(const struct ft_cuda_device *cuda);
/* Host-pinned memory and its address on the device; freed by cuMemFreeHost(). Entered. */
int ft_cuda_map(const struct ft_cuda_driver *driver, size_t len_bytes, void **here,
                CUdeviceptr *dev_ptr);

/* share.c: memory of the GPU's for messages, which goes along with the device's pinned memory. Of
 * others: where this device reaches it. Neither is an error: without it messages go through the
 * host's memory. And the end of either. Entered. */
void ft_cuda_share(struct ft_cuda_device *cuda);
void ft_cuda_share_meet(struct ft_cuda_device *cuda, struct ft_pinned *other);
void ft_cuda_unshare(struct ft_cuda_device *cuda, struct ft_pinned *chunk);

/* A command in the ring, as the engine knows it. */
struct ft_cuda_posted {
    struct ft_device_req *req; /* NULL: cancelled */
    size_t at, count;          /* elements of its pass */
    bool direct;               /* reads or writes memory of a link's where it lies */
    bool late;                 /* and was cancelled */
    int nstages;
    unsigned char stage[2 * FT_CUDA_OPERANDS]; /* for the far sources, then the far destinations */
};

/* A word for kernels of the user's, see word.c. */
struct ft_cuda_word {
    struct ft_cuda_word *next;
    uint32_t *here;
    CUdeviceptr dev_ptr;
};

struct ft_device_queue {
    struct ft_device_queue *next;    /* among those that wait for their kernels */
    struct ft_device_queue *sibling; /* among those of the process */
    struct ft_cuda_device *cuda;
    CUstream stream;        /* the kernels' own */
    CUevent before, behind; /* the user's streams have come to the run; the run is over */
    struct ft_cuda_control *control;
    CUdeviceptr control_dev_ptr; /* its address on the device */
    /* [FT_CUDA_STAGES] of FT_CUDA_PIECE and a little, for alignment */
    char *stages;
    CUdeviceptr stages_dev_ptr;
    struct ft_cuda_word *word; /* NULL: nobody has asked for one */
    uint64_t silence_ns;
    /* runs, or announced; written by who calls after() or announce() */
    _Atomic uint64_t launched;
    _Atomic uint64_t issued; /* runs of which the launch is over, well or not */
    /* the last of those that had been announced and could not be launched; 0: none */
    _Atomic uint64_t refused;
    _Atomic uint64_t nobodys; /* the last of them that no caller knows of; 0: none */
    uint64_t done;            /* commands seen to be done */
    struct ft_cuda_posted posted[FT_CUDA_RING];
    /* of operands that are not the user's: copied, and reached in pinned memory and in that of a
     * device */
    uint64_t staged_bytes, direct_bytes, devmem_bytes;
    struct ft_device_req *first, *last; /* passes of which something is still to be posted */
    unsigned char free_stage[FT_CUDA_STAGES];
    int nfree;
    bool failed, closed;
    const struct ft_device_bell *runs_bell; /* the run that was begun last */
    uint64_t runs_number;
    /* release by capture() */
    struct ft_cuda_bells *_Atomic bells[FT_CUDA_BELLS_MAX / FT_CUDA_BELLS];
    unsigned nbells; /* that were ever used; under graph.c's lock */
    /* rings; user objects of bells, and those of them that the driver has destroyed */
    _Atomic uint64_t rings_seen, made, gone;
    _Atomic uint64_t rings_over; /* rings whose runs have ended */
    atomic_bool muted;           /* as all have */
    atomic_int unused_bells;     /* that were forgotten and may be used again; a hint */
    /* under graph.c's lock */
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

/* ---- deferred_free.c: what is left behind, and when it may be freed. Any thread; those that free
 * may wait and are not for who holds an engine ---- */

/* a kernel of this process is on a device or on its way there, and need not leave soon: freeing or
 * unpinning could wait for it */
bool ft_cuda_stands(void);
/* No kernel reads or writes for a command that had been posted when this was called. */
bool ft_cuda_quiet(const struct ft_cuda_device *cuda);
void ft_cuda_list(struct ft_device_queue *queue);
void ft_cuda_unlist(struct ft_device_queue *queue);
void ft_cuda_leave_queue(struct ft_device_queue *queue); /* it is closed */
void ft_cuda_leave_device(struct ft_cuda_device *cuda);  /* nobody has it */
/* a closed queue of its, whose kernels have left, or NULL */
struct ft_device_queue *ft_cuda_take_left(const struct ft_cuda_device *cuda);
void ft_cuda_reap(void); /* frees what can be freed now */
void ft_cuda_free_queue(struct ft_device_queue *queue);

/* ---- graph.c: the queue's calls for graphs, and what queue.c needs of a bell ----------------- */

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
void ft_cuda_free_bells(struct ft_device_queue *queue); /* entered */
/* none is in a graph any more: all are unused */
void ft_cuda_renew_bells(struct ft_device_queue *queue);

/* The kernels for every architecture; see kernel.cu. */
extern const unsigned char ft_cuda_image[];

#endif

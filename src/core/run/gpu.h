/*
 * The queue of a communicator on the GPU, and the runs of its groups there. See gpu.c; part of
 * run.h.
 */
#ifndef FT_GPU_H
#define FT_GPU_H

/* Most groups that wait on a communicator with a queue. The driver's own queue, where a call would
 * block, is longer. */
#define FT_GPU_QUEUE_MAX 128

/* A group of calls on one communicator that a CUDA graph contains; see graph.c. */
struct ft_captured {
    struct ft_captured *next;
    struct ft_device_bell *bell;
    int works; /* works of its replays that are not over */
    int nops;
    struct ft_captured_op {
        struct ft_coll coll;
        struct ft_redop redop;
        const void *in, *scale_from;
        void *out;
        uint64_t epoch, root_id;
    } ops[];
};

struct ft_comm_gpu {
    const struct ft_device_queue_ops *ops;
    struct ft_device_queue *queue;
    /* Entries with works on the queue, as a stream of their own: the works of a communicator run in
     * call order, whatever streams they are on. */
    struct ft_stream *order;
    uint64_t held;                /* the last run that holds its streams because it failed */
    struct ft_captured *captured; /* groups that CUDA graphs contain */
    uint64_t gone;                /* groups that had lost their graph, at the last look */
    /* The word that tells the user's kernels of a failure of the communicator. NULL: nobody asked
     * for it. */
    uint32_t *word;
    bool muted; /* the communicator has failed: replays do nothing and hold no stream */
    struct ft_pass_send sends[FT_LANES][FT_STEP_PEERS];
    struct ft_pass_sum digest;
};

/* ---- by the user's thread -------------------------------------------------------------------- */

/* To be called when a communicator opens: makes what calls on the GPU need. Later, while kernels
 * run, the driver may wait for them before it gives memory. */
void ft_gpu_ready(struct ft_comm *comm);
/* Makes op->on_queue if the buffers of the call are on the GPU. A NULL buffer is not used on this
 * rank. host_stream: `stream` is an ftccl stream. FT_INVAL, FT_NOTSUP, FT_NOMEM, FT_DEVICE. */
struct ft_gpu_call {
    const void *in, *out;
    void *stream;
    bool host_stream;
};
int ft_gpu_want(struct ft_comm *comm, struct ft_op *op, struct ft_gpu_call call);
bool ft_gpu_owns(const struct ft_comm *comm, const void *ptr);
struct ft_stream *ft_gpu_order(const struct ft_comm *comm); /* returns a reference */
/* Queues each work of the entry that is on the GPU behind the streams of its operations. The caller
 * orders submissions. After an error none of the works has begun. *later: kernels to launch after
 * the entry is submitted, or NULL. */
struct ft_gpu_later;
int ft_gpu_launch(struct ft_entry *entry, struct ft_gpu_later **later);
/* gpu_blocking.c: launches that block until their kernels have ended. launch_later frees its
 * argument. A run whose kernel cannot be launched fails when it begins. */
bool ft_gpu_launches_block(void);
int ft_gpu_announce(struct ft_entry *entry, struct ft_gpu_later **out);
void ft_gpu_launch_later(struct ft_gpu_later *later);
/* The streams of the work's operations, each once. Streams of other communicators of the group may
 * belong to another GPU. `streams` must have room for one stream per operation. */
int ft_gpu_streams(const struct ft_work *work, void **streams);
/* Most streams that any work of the entry can have. 0: none is on the GPU. */
size_t ft_gpu_most_streams(const struct ft_entry *entry);
/* Room for n pointers: `few`, or memory that the caller frees if it is not `few`. NULL: no memory,
 * with a sentence. */
#define FT_GPU_FEW 8
void **ft_gpu_room(size_t n, void *few[FT_GPU_FEW]);
/* Where kernels find the status word of the communicator. FT_USAGE: it has no GPU. */
int ft_gpu_word(struct ft_comm *comm, const uint32_t **out);
void ft_gpu_close(struct ft_comm *comm);

/* ---- the caller holds the engine --------------------------------------------------------------
 */

/* FT_AGAIN: the streams have not reached the work */
int ft_gpu_reached(const struct ft_work *work);
void ft_gpu_let_go(struct ft_comm *comm); /* streams that a failure holds go on */
/* No run is in progress any more: from now on replays do nothing, or are held. Idempotent. */
void ft_gpu_failed(struct ft_comm *comm);
bool ft_gpu_poll(struct ft_comm *comm);
/* ---- CUDA graphs (graph.c) ------------------------------------------------------------------- */

/* If the streams of the entry are being captured, the calls become part of the graph, and the entry
 * is freed. FT_AGAIN: they are not being captured. After any other status the caller keeps the
 * entry, and its kernels that are already in the graph do nothing. Called by the user's thread. */
int ft_graph_capture(struct ft_entry *entry);
/* Makes works of the kernels that graphs have started. The caller holds the engine. */
bool ft_graph_turn(struct ft_comm *comm);
/* a work of a replay is over; the caller holds the engine */
void ft_graph_over(const struct ft_work *work);
void ft_graph_close(struct ft_comm *comm); /* the caller does not hold the engine */

#endif

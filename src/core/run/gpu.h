/*
 * Operations on buffers of the GPU: the queue of a communicator there, and the passes of its steps,
 * messages and inputs. See gpu.c; part of run.h.
 */
#ifndef FT_GPU_H
#define FT_GPU_H

/* Most groups that wait on a communicator with a queue. The driver's own queue, where a call would
 * block, is longer. */
#define FT_GPU_QUEUE_MAX 128

/* A message on its way from the GPU into a slot of a link. slot is NULL if there is none; then the
 * caller sets the other fields. */
struct ft_gpu_send {
    struct ft_device_req req;
    struct ft_header header;
    int to;      /* rank of the receiver */
    bool staged; /* the GPU cannot reach the memory it comes from */
    void *slot;
};

/* The result of a collective on the GPU, which is fetched piece by piece for its checksum. of is
 * NULL if there is none. */
struct ft_gpu_sum {
    const struct ft_op *of;
    size_t at;
    uint32_t crc;
    char *piece;
    struct ft_device_req req;
};

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

/* Belongs to each operation whose buffers the GPU can reach, and to no other. */
struct ft_op_gpu {
    void *stream;            /* the user's stream */
    const void *scale_from;  /* where the GPU reads the scale; NULL: the operator has it */
    struct ft_gpu_send send; /* for sends and receives; a receive uses only the request */
    struct ft_msg msg;       /* held while the pass of a receive runs */
    bool busy;               /* that pass runs */
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
    struct ft_gpu_send sends[FT_LANES][FT_STEP_PEERS];
    struct ft_gpu_sum digest;
};

/* ---- by the user's thread -------------------------------------------------------------------- */

/* To be called when a communicator opens: makes what calls on the GPU need. Later, while kernels
 * run, the driver may wait for them before it gives memory. */
void ft_gpu_ready(struct ft_comm *comm);
/* Makes op->gpu if the buffers of the call are on the GPU. A NULL buffer is not used on this rank.
 * host_stream: `stream` is an ftccl stream. FT_INVAL, FT_NOTSUP, FT_NOMEM, FT_DEVICE. */
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
/* A pass of an operation that has op->gpu. */
int ft_gpu_pass(struct ft_comm *comm, const struct ft_op *op, const struct ft_reduce *pass,
                struct ft_device_staged staged, struct ft_device_req *req);
/* ft_gpu_reserve: reserves a slot of the sending link to a rank for a message of the operation, in
 * this GPU's memory if the receiver's GPU takes it there. Like reserve(); also FT_AGAIN until the
 * receiver has told. ft_gpu_takes: whether the operation can read a message that came, if the
 * message is its own; false: comm has failed. */
int ft_gpu_reserve(struct ft_comm *comm, const struct ft_op *op, int rank,
                   const struct ft_header *header, void **slot);
bool ft_gpu_takes(struct ft_comm *comm, const struct ft_op *op, int rank, const struct ft_msg *msg);
/* Moves a message into a slot of the link, over several calls: FT_AGAIN until it is committed.
 * Otherwise a status of the link, or FT_DEVICE. */
int ft_gpu_put(struct ft_comm *comm, const struct ft_op *op, struct ft_link *link,
               const struct ft_reduce *pass, struct ft_gpu_send *send);
/* The checksum of an operation's result. False: not yet, call again, or comm has failed. Only one
 * operation at a time. */
bool ft_gpu_digest(struct ft_comm *comm, const struct ft_op *of, size_t len_bytes, uint32_t *crc);
/* Gives back what passes hold of a link. NULL: of all links. */
void ft_gpu_drop(struct ft_comm *comm, const struct ft_link *link);

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

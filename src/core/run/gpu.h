/*
 * Operations on buffers of the GPU: the queue that a communicator has on it, the passes of its
 * steps, messages and inputs. See gpu.c; part of core.h.
 */
#ifndef FT_GPU_H
#define FT_GPU_H

/* groups waiting on a communicator with a queue: the driver's own queue, where a call would wait,
 * is longer */
#define FT_GPU_QUEUE_MAX 128

/* A message on its way from the GPU into a link's slot; slot is NULL when there is none, and the
 * rest is then the caller's to set. */
struct ft_gpu_send {
    struct ft_device_req req;
    struct ft_header header;
    int to;      /* rank */
    bool staged; /* it comes from memory that the GPU cannot reach */
    void *slot;
};

/* The result of a collective on the GPU, fetched piece by piece for its checksum; of is NULL if
 * there is none. */
struct ft_gpu_sum {
    const struct ft_op *of;
    size_t at;
    uint32_t crc;
    char *piece;
    struct ft_device_req req;
};

/* A group of calls on one communicator that a CUDA graph holds; see graph.c. */
struct ft_captured {
    struct ft_captured *next;
    struct ft_device_bell *bell;
    int works; /* of its replays, not over */
    int nops;
    struct ft_captured_op {
        struct ft_coll coll;
        struct ft_redop redop;
        const void *in, *scale_from;
        void *out;
        uint64_t epoch, root_id;
    } ops[];
};

/* Of an operation whose buffers the GPU can reach, and only of those. */
struct ft_op_gpu {
    void *stream;            /* the user's */
    const void *scale_from;  /* where the GPU finds the scale; NULL: in the operator */
    struct ft_gpu_send send; /* p2p; a receive has the request alone */
    struct ft_msg msg;       /* held while a receive's pass runs */
    bool busy;               /* which it does */
};

struct ft_comm_gpu {
    const struct ft_device_queue_ops *ops;
    struct ft_device_queue *queue;
    /* entries with works on the queue: those of one communicator run in call order whatever their
     * streams */
    struct ft_stream *order;
    uint64_t held;                /* the last run that a failure has left to hold its streams */
    struct ft_captured *captured; /* groups that graphs hold */
    uint64_t gone;                /* how many no graph had any more when that was looked at last */
    /* tells kernels of the user's that the communicator has failed; NULL: nobody has asked */
    uint32_t *word;
    bool muted; /* the communicator has failed: replays do nothing and hold nobody */
    struct ft_gpu_send sends[FT_LANES][FT_STEP_PEERS];
    struct ft_gpu_sum digest;
};

/* ---- by the user's thread -------------------------------------------------------------------- */

/* Makes what calls on the GPU need, when the communicator is opened: once kernels run, the driver
 * may wait for them before it gives memory. */
void ft_gpu_ready(struct ft_comm *comm);
/* Are the call's buffers the GPU's? Then op->gpu is made. NULL: a buffer is not used here.
 * host_stream: the stream is one of ours. FT_INVAL, FT_NOTSUP, FT_NOMEM, FT_DEVICE. */
struct ft_gpu_call {
    const void *in, *out;
    void *stream;
    bool host_stream;
};
int ft_gpu_want(struct ft_comm *comm, struct ft_op *op, struct ft_gpu_call call);
bool ft_gpu_owns(const struct ft_comm *comm, const void *ptr);
struct ft_stream *ft_gpu_order(const struct ft_comm *comm); /* with a reference */
/* Puts each of the entry's works that are on the GPU behind the streams of its operations.
 * Submissions are ordered by the caller. An error: none of them has begun. *later: kernels that are
 * still to be launched, once the entry is submitted, or NULL. */
struct ft_gpu_later;
int ft_gpu_launch(struct ft_entry *entry, struct ft_gpu_later **later);
/* gpu_blocking.c: launches wait for their kernels. launch_later frees; a run whose kernel cannot be
 * launched fails when it would begin. */
bool ft_gpu_launches_block(void);
int ft_gpu_announce(struct ft_entry *entry, struct ft_gpu_later **out);
void ft_gpu_launch_later(struct ft_gpu_later *later);
/* The streams that the work's operations name, each once; those of other communicators of its group
 * may be another GPU's. There is room for one of each operation. */
int ft_gpu_streams(const struct ft_work *work, void **streams);
/* that any of its works can have; 0: none is on the GPU */
size_t ft_gpu_most_streams(const struct ft_entry *entry);
/* Room for so many: `few`, or memory to be freed if it is not that; NULL with a sentence. */
#define FT_GPU_FEW 8
void **ft_gpu_room(size_t n, void *few[FT_GPU_FEW]);
/* where kernels find its status word. FT_USAGE: it has no GPU */
int ft_gpu_word(struct ft_comm *comm, const uint32_t **out);
void ft_gpu_close(struct ft_comm *comm);

/* ---- the caller holds the engine
 * ----------------------------------------------------------------- */

int ft_gpu_reached(const struct ft_work *work); /* FT_AGAIN: its streams have not come to it */
void ft_gpu_let_go(struct ft_comm *comm);       /* what is held goes on */
/* nothing of it runs any more: replays go on, or are held. Idempotent */
void ft_gpu_failed(struct ft_comm *comm);
bool ft_gpu_poll(struct ft_comm *comm);
/* A pass of an operation with gpu. */
int ft_gpu_pass(struct ft_comm *comm, const struct ft_op *op, const struct ft_reduce *pass,
                struct ft_device_staged staged, struct ft_device_req *req);
/* A slot of the sending link to a rank, for a message of the operation: in memory of this side's
 * GPU if the receiver's takes it there. As reserve(); FT_AGAIN also until the receiver has said
 * that. And can what has come be read for the operation, if it is its message at all? False: comm
 * has failed. */
int ft_gpu_reserve(struct ft_comm *comm, const struct ft_op *op, int rank,
                   const struct ft_header *header, void **slot);
bool ft_gpu_takes(struct ft_comm *comm, const struct ft_op *op, int rank, const struct ft_msg *msg);
/* A message into a slot of the link, by and by: FT_AGAIN until it is committed. Other statuses: the
 * link's, or FT_DEVICE. */
int ft_gpu_put(struct ft_comm *comm, const struct ft_op *op, struct ft_link *link,
               const struct ft_reduce *pass, struct ft_gpu_send *send);
/* The checksum of an operation's result; false: not yet, ask again, or comm has failed. One
 * operation at a time. */
bool ft_gpu_digest(struct ft_comm *comm, const struct ft_op *of, size_t len_bytes, uint32_t *crc);
/* Gives back what passes hold of a link, or of all (NULL). */
void ft_gpu_drop(struct ft_comm *comm, const struct ft_link *link);

/* ---- CUDA graphs (graph.c) ------------------------------------------------------------------- */

/* If streams of the entry's works are being captured: the calls become part of the graph, and the
 * entry is freed. FT_AGAIN: they are not. Any other status: the entry is the caller's, and its
 * kernels that are in the graph already do nothing. By the user's thread. */
int ft_graph_capture(struct ft_entry *entry);
/* starts of kernels in graphs become works. The caller holds the engine, as below */
bool ft_graph_turn(struct ft_comm *comm);
void ft_graph_over(const struct ft_work *work); /* of such a work */
void ft_graph_close(struct ft_comm *comm);      /* without the engine */

#endif

/*
 * Passes: what reads, combines and writes the bytes of operations. A pass of an operation runs on
 * the queue of the device on which its buffers are. The host is a queue whose passes are over at
 * once, and whose memory links read and write themselves. On another queue a pass takes time, and
 * messages move through slots of links, by passes. Nothing else on this floor asks where a buffer
 * is. See pass.c; part of run.h.
 */
#ifndef FT_PASS_H
#define FT_PASS_H

#define FT_DIGEST_PIECE_BYTES ((size_t)256 << 10) /* bytes of a result that are fetched at once */

/* A message on its way into a slot of a link, by a pass. slot is NULL if there is none; then the
 * caller sets the other fields. */
struct ft_pass_send {
    struct ft_device_req req;
    struct ft_header header;
    int to;      /* rank of the receiver */
    bool staged; /* the queue cannot reach the memory that it comes from */
    void *slot;
};

/* The result of a collective on a queue, which is fetched piece by piece for its checksum. of is
 * NULL if there is none. */
struct ft_pass_sum {
    const struct ft_op *of;
    size_t at;
    uint32_t crc;
    char *piece;
    struct ft_device_req req;
};

/* Belongs to each operation whose buffers are on a queue, and to no other. */
struct ft_op_queue {
    void *stream;             /* the user's stream */
    const void *scale_from;   /* where the device reads the scale; NULL: the operator has it */
    struct ft_pass_send send; /* for sends; other passes of the operation use only the request */
    struct ft_msg msg;        /* held while the pass of a receive runs */
    bool busy;                /* that pass runs, or has failed */
};

/* The caller of all these holds the engine. */

struct ft_reduce ft_copy_pass(const void *from, void *to, size_t len_bytes);
/* Starts a pass of an operation that is on a queue; see ft_pass(). */
int ft_pass_on_queue(struct ft_comm *comm, const struct ft_op *op, const struct ft_reduce *pass,
                     struct ft_device_staged staged, struct ft_device_req *req);
/* Starts the operation's own pass; it has one at a time. FT_AGAIN: it runs, and ft_pass_end() tells
 * what becomes of it. Otherwise it is over. */
int ft_pass_start(struct ft_comm *comm, const struct ft_op *op, const struct ft_reduce *pass,
                  struct ft_device_staged staged);
/* FT_AGAIN while the operation's own pass runs; FT_OK if it has ended well, or there was none.
 * After an error the operation keeps what the pass used, until ft_pass_drop(). */
int ft_pass_end(const struct ft_op *op);
bool ft_pass_runs(const struct ft_op *op); /* there is one, which may have failed */
void ft_pass_cancel(struct ft_comm *comm, const struct ft_op *op); /* idempotent */
/* Copies what this rank sends to itself. FT_AGAIN: call again. */
int ft_pass_to_self(struct ft_comm *comm, const struct ft_op *send, const struct ft_op *recv);
/* Where to keep a message while a pass of the operation reads it: `now`, if no pass takes time. */
struct ft_msg *ft_pass_msg(const struct ft_op *op, struct ft_msg *now);
/* Likewise, a message of the lane's step to its k-th receiver. */
struct ft_pass_send *ft_pass_send_of(struct ft_comm *comm, const struct ft_op *op, int lane, int k,
                                     struct ft_pass_send *now);
/* Reserves a slot of the sending link to a rank for a message of the operation: in this GPU's
 * memory if the receiver's GPU takes it there. Like reserve(); also FT_AGAIN until the receiver has
 * told. */
int ft_pass_reserve(struct ft_comm *comm, const struct ft_op *op, int rank,
                    const struct ft_header *header, void **slot);
/* Moves a message into a slot of the link, over several calls: FT_AGAIN until it is committed.
 * Otherwise a status of the link, or FT_DEVICE. */
int ft_pass_put(struct ft_comm *comm, const struct ft_op *op, struct ft_link *link,
                const struct ft_reduce *pass, struct ft_pass_send *send);
/* A message in the memory of its sender's GPU came. False: the operation cannot read it, and comm
 * has failed. */
bool ft_pass_takes_devmem(struct ft_comm *comm, const struct ft_op *op, int rank,
                          const struct ft_msg *msg);
/* The checksum of an operation's result. False: not yet, call again, or comm has failed. Only one
 * operation at a time. */
bool ft_pass_digest(struct ft_comm *comm, const struct ft_op *of, size_t len_bytes, uint32_t *crc);
/* The communicator fails, because a pass did. */
void ft_pass_failed(struct ft_comm *comm, int status);
/* Gives back what passes hold of a link. NULL: of all links. */
void ft_pass_drop(struct ft_comm *comm, const struct ft_link *link);

#endif

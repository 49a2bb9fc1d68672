/*
 * Streams and what is enqueued on them: a group of calls is an entry, with one work per
 * communicator. See stream.c; part of run.h.
 */
#ifndef FT_STREAM_H
#define FT_STREAM_H

/* A host stream. Its entries run in the order of their tickets. It lives as long as its handle or
 * any of its entries. */
struct ft_stream {
    atomic_int refs;
    struct ft_stream *next_unused; /* after the last reference is released */
    pthread_mutex_t lock;
    ft_atomic_u64 next; /* ticket of the next entry; written under lock, relaxed */
    /* Number of finished entries. pop_slot() stores with release; engines and waiters load with
     * acquire. */
    ft_atomic_u64 done;
    /* The first error since the user was last told one, and its sentence. Written under lock,
     * relaxed, because `done` is stored later. */
    atomic_int error;
    char text[512];
    struct ft_slot *head, *tail; /* unfinished entries in the order of their tickets; under lock */
};

/* An entry's place on one stream. */
struct ft_slot {
    struct ft_slot *next;
    struct ft_stream *stream; /* a reference */
    struct ft_entry *entry;
    uint64_t ticket;
    bool over; /* its entry has ended; under the stream's lock */
};

/* The operations of one group on one communicator. */
struct ft_work {
    struct ft_work *next; /* in the inbox, later in the communicator's queue */
    struct ft_work *next_in_entry;
    struct ft_entry *entry;
    struct ft_comm *comm; /* a reference */
    struct ft_op *ops, *last;
    int nops, ops_left;
    bool has_p2p, has_rma, has_gpu;
    bool started;
    bool repeats; /* a call that the fast path kept: no stage has begun */
    bool gathers; /* fused operations wait for inputs */
    /* Number of fused operations that are done and whose results are on their way. */
    int leaving;
    uint64_t run; /* its run on the communicator's GPU queue; 0: none */
    /* The run is a replay of a CUDA graph. NULL: a call of the user. */
    struct ft_device_bell *bell;
    uint64_t started_ns, deadline_ns; /* 0: none */
};

/* A group of calls on its streams, with one work for each of its communicators. It runs when it is
 * first on all its streams, and is done when all its works are. */
struct ft_entry {
    atomic_int works_left;
    /* Number of its streams that have not passed it, plus one until it has ended. Who releases the
     * last frees the entry. */
    atomic_int slots_left;
    atomic_int status;
    /* For structs that belong to a communicator: set to 0 when the entry is over. Otherwise
     * NULL. */
    atomic_int *in_use;
    int nworks, nstreams;
    struct ft_work *works;     /* linked by next_in_entry */
    struct ft_slot *on;        /* [nstreams] */
    struct ft_slot first;      /* `on` points here when nstreams == 1 */
    struct ft_work first_work; /* of the first communicator; the works of others are allocated */
};

struct ft_stream *ft_stream_new(void);
/* Everything enqueued so far has ended, and the user has been told all errors. Also for a stream to
 * which the caller has no reference: the answer is of no use then if the stream is gone. */
bool ft_stream_is_idle(const struct ft_stream *stream);
void ft_stream_fail(struct ft_stream *stream, int status, const struct ft_comm *culprit);
void ft_stream_ref(struct ft_stream *stream);
void ft_stream_release(struct ft_stream *stream);
/* The NULL streams of the ranks on which this thread enqueued, or of all ranks of the process if it
 * never did. Waits for them until end_ns, or asks. FT_AGAIN: one is busy. Returns the first error.
 */
void ft_null_stream_used(const struct ft_engine *engine);
int ft_null_streams(bool wait, uint64_t end_ns);
int ft_stream_query(struct ft_stream *stream); /* FT_OK, FT_AGAIN or the first error */
int ft_stream_wait(struct ft_stream *stream);  /* blocks; the deadlines of its entries bound it */
/* The same, but returns FT_AGAIN at end_ns; UINT64_MAX: only the deadlines bound it. */
int ft_stream_wait_until(struct ft_stream *stream, uint64_t end_ns);
bool ft_entry_ready(const struct ft_entry *entry);
/* Gives the entry its tickets, and hands its works to their engines. Wakes or turns engines as
 * needed; may block while a queue is full. Consumes the entry. After an error the caller keeps the
 * entry; only an entry with works on the GPU can fail. */
int ft_entry_submit(struct ft_entry *entry);
/* Frees the work, and with the last work the entry. */
void ft_entry_work_done(struct ft_work *work, int status);
struct ft_entry *ft_entry_new(struct ft_stream *const *streams, int nstreams); /* NULL: no memory */
void ft_entry_free(struct ft_entry *entry); /* for an entry that was not submitted, or is done */
/* The entry has one work, which runs already: it takes its place on the stream. The caller holds
 * the engine. */
void ft_entry_begun(struct ft_entry *entry, struct ft_stream *stream, atomic_int *in_use);
/* The entry's work for a communicator. The first call makes it. NULL: no memory. */
struct ft_work *ft_entry_work(struct ft_entry *entry, struct ft_comm *comm);
void ft_work_add(struct ft_work *work, struct ft_op *op);

#endif

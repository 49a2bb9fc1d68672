/*
 * Streams and what is enqueued on them: groups of calls as entries, with one work for each
 * communicator. See stream.c; part of core.h.
 */
#ifndef FT_STREAM_H
#define FT_STREAM_H

/* A host stream: entries run in order of their tickets. Lives as long as its handle or an entry of
 * it. */
struct ft_stream {
    atomic_int refs;
    pthread_mutex_t lock;
    ft_atomic_u64 next; /* ticket of the next entry; written under lock, relaxed */
    ft_atomic_u64 done; /* entries finished; release in pop(), acquire by engines and waiters */
    /* the first since it was last returned, and its sentence; written under lock, relaxed: `done`
     * is later */
    atomic_int error;
    char text[512];
    struct ft_slot *head, *tail; /* unfinished entries in order of their tickets; under lock */
};

/* An entry's place on one stream. */
struct ft_slot {
    struct ft_slot *next;
    struct ft_stream *stream; /* holds a reference */
    struct ft_entry *entry;
    uint64_t ticket;
    bool over; /* its entry has ended; under the stream's lock */
};

/* The operations of one group on one communicator. */
struct ft_work {
    struct ft_work *next; /* in the inbox, then in the communicator's queue */
    struct ft_work *next_in_entry;
    struct ft_entry *entry;
    struct ft_comm *comm; /* holds a reference */
    struct ft_op *ops, *last;
    int nops, ops_left;
    bool has_p2p, has_rma, has_gpu;
    bool repeats; /* a call that the fast path kept: no stage began */
    bool gathers; /* fused operations wait for inputs from the GPU */
    /* fused operations that are done, and whose results are on their way there */
    int leaving;
    uint64_t run;                /* of the communicator's queue on the GPU; 0: none */
    struct ft_device_bell *bell; /* the run is a replay by a graph; NULL: calls of the user's */
    uint64_t started_ns, deadline_ns; /* 0: none */
};

/* A group on its streams: one work for each of its communicators. It runs when it is first on all
 * its streams, and is done when all its works are. */
struct ft_entry {
    atomic_int works_left;
    /* on streams that have not come past it, and one while it ends; the last one frees it */
    atomic_int slots_left;
    atomic_int status;
    /* one whose structs belong to a communicator: becomes 0 when it is over; else NULL */
    atomic_int *in_use;
    int nworks, nstreams;
    struct ft_work *works;     /* linked by next_in_entry */
    struct ft_slot *on;        /* [nstreams] */
    struct ft_slot first;      /* `on` points here when nstreams == 1 */
    struct ft_work first_work; /* of the first communicator; others are allocated */
};

struct ft_stream *ft_stream_new(void);
/* everything enqueued so far has ended, and no error waits to be told */
bool ft_stream_is_idle(const struct ft_stream *stream);
void ft_stream_fail(struct ft_stream *stream, int status, const struct ft_comm *culprit);
void ft_stream_ref(struct ft_stream *stream);
void ft_stream_release(struct ft_stream *stream);
/* The NULL streams of the ranks on which this thread enqueued, or of all ranks of the process if it
 * never did: waits for them, or asks (FT_AGAIN: one is busy). The first error. */
void ft_null_stream_used(const struct ft_engine *engine);
int ft_null_streams(bool wait);
int ft_stream_query(struct ft_stream *stream); /* FT_OK, FT_AGAIN or the first error */
int ft_stream_wait(struct ft_stream *stream);  /* bounded by the deadlines of its entries */
bool ft_entry_ready(const struct ft_entry *entry);
/* Gives the entry its tickets and hands its works to their engines. Consumes it. Wakes or turns
 * engines as needed. An error, which only an entry with works on the GPU can have: it is still the
 * caller's. */
int ft_entry_submit(struct ft_entry *entry);
/* frees the work, and the entry with its last one */
void ft_entry_work_done(struct ft_work *work, int status);
struct ft_entry *ft_entry_new(struct ft_stream *const *streams, int nstreams); /* NULL: no memory */
void ft_entry_free(struct ft_entry *entry); /* one that was not submitted, or is done */
/* An entry of one work that runs already takes its place on the stream. The caller holds the
 * engine. */
void ft_entry_begun(struct ft_entry *entry, struct ft_stream *stream, atomic_int *in_use);
/* The entry's work on a communicator, made at first use. NULL: no memory. */
struct ft_work *ft_entry_work(struct ft_entry *entry, struct ft_comm *comm);
void ft_work_add(struct ft_work *work, struct ft_op *op);

#endif

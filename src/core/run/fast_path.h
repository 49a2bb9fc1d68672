/*
 * Collectives that their caller begins at once, without a queue, and short ones that it makes again
 * and again. See direct.c; part of core.h.
 */
#ifndef FT_FAST_PATH_H
#define FT_FAST_PATH_H

#define FT_REPEATS 4 /* short calls that begin without being planned */
#define FT_REPEAT_STEPS 16

/* A call whose plan is one lane of few steps: all of it but the buffers. */
struct ft_repeat {
    bool valid;
    int red; /* the user's operator */
    uint64_t sig;
    struct ft_coll coll;
    struct ft_redop redop;
    struct ft_plan plan;
    struct ft_step steps[FT_REPEAT_STEPS];
};

/* A collective that its caller began at once. */
struct ft_fast {
    struct ft_op op;
    struct ft_entry entry;
    bool unqueued;     /* it runs within its call and has no place on a stream */
    bool again;        /* the operation is that of `loaded` */
    int red;           /* the user's operator */
    int status;        /* of one that ended within its call */
    atomic_int queued; /* the structs are in use until its entry is over; release by who ends it */
    struct ft_repeat repeats[FT_REPEATS]; /* as programs repeat them */
    int skips;                /* calls that queue without a try to catch up, see direct.c */
    unsigned nrepeats;        /* kept so far */
    struct ft_repeat *loaded; /* the operation is this one's; NULL: another's */
};

/* If the stream, the communicator and its engine have nothing else to do: an operation to fill,
 * and the caller holds the engine until it is run or cancelled. NULL: it has to queue. */
struct ft_op *ft_fast_begin(struct ft_comm *comm, const struct ft_stream *stream,
                            const struct ft_coll *coll, int red);
void ft_fast_cancel(struct ft_comm *comm);
void ft_fast_run(struct ft_comm *comm, struct ft_stream *stream);
/* true: it was one within its call */
bool ft_fast_ended(struct ft_comm *comm, const struct ft_work *work, int status);

#endif

/*
 * The fast path: collectives that the caller starts at once, without a queue, and short ones that
 * it repeats. See fast_path.c; part of run.h.
 */
#ifndef FT_FAST_PATH_H
#define FT_FAST_PATH_H

#define FT_REPEATS 4 /* short calls that need no new plan */
#define FT_REPEAT_STEPS 16

/* A call whose plan is one lane of few steps. Everything but the buffers is kept. */
struct ft_repeat {
    bool valid;
    int red; /* number of the reduction operator */
    uint64_t sig;
    struct ft_coll coll;
    struct ft_redop redop;
    struct ft_plan plan;
    struct ft_step steps[FT_REPEAT_STEPS];
};

/* The operation that the fast path runs. */
struct ft_fast {
    struct ft_op op;
    struct ft_entry entry;
    bool unqueued; /* it runs inside its call and has no place on a stream */
    bool again;    /* op repeats the call of `loaded` */
    int red;       /* number of the reduction operator */
    int status;    /* of an operation that ended inside its call */
    /* Not 0 while an entry on a stream uses the structs. The thread that ends the entry clears it
     * with release. */
    atomic_int queued;
    struct ft_repeat repeats[FT_REPEATS]; /* replaced in turn */
    int skips;                            /* calls that will not try to catch up; see fast_path.c */
    unsigned nrepeats;                    /* number of calls kept so far */
    struct ft_repeat *loaded;             /* op holds this call; NULL: another call */
};

/* Returns an operation to fill if the stream, the communicator and its engine have nothing else to
 * do. Then the caller holds the engine until ft_fast_run() or ft_fast_cancel(). NULL: the call must
 * queue. */
struct ft_op *ft_fast_begin(struct ft_comm *comm, const struct ft_stream *stream,
                            const struct ft_coll *coll, int red);
void ft_fast_cancel(struct ft_comm *comm);
void ft_fast_run(struct ft_comm *comm, struct ft_stream *stream);
/* True: the work was run inside its call. */
bool ft_fast_ended(struct ft_comm *comm, const struct ft_work *work, int status);

#endif

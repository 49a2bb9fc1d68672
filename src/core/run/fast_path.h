/*
 * The fast path: collectives that the caller starts at once, without a queue, and short ones that
 * it repeats. See fast_path.c; part of run.h.
 */
#ifndef FT_FAST_PATH_H
#define FT_FAST_PATH_H

#include "base/quick_clock.h"

/* How often a repeated call looks for its messages before it turns the engine: about a
 * microsecond. */
#define FT_LOOKS 100
#define FT_REPEATS 4 /* short calls that need no new plan */
#define FT_REPEAT_STEPS 16

/* Bytes of a call's two buffers on this rank; 0: the buffer is not used here. A call is in place if
 * in == out + in_off or out == in + out_off. */
struct ft_extent {
    size_t in, out, in_off, out_off;
};

/* A call whose plan is one lane of few steps. Everything but the buffers is kept. */
struct ft_repeat {
    bool valid;
    bool is_short; /* ft_lanes_take_short() may take its steps */
    int red;       /* number of the reduction operator */
    uint64_t sig;
    struct ft_coll coll;
    struct ft_redop redop;
    struct ft_extent extent;
    struct ft_plan plan;
    struct ft_step steps[FT_REPEAT_STEPS];
    struct ft_reduce pass; /* of a short call: what all its passes have in common */
};

/* The operation that the fast path runs. */
struct ft_fast {
    struct ft_op op;
    struct ft_extent extent; /* of op; whoever fills op for a new call sets it */
    struct ft_entry entry;
    bool unqueued; /* it runs inside its call and has no place on a stream */
    bool again;    /* op repeats the call of `loaded` */
    bool begun;    /* its lane is at a step already */
    bool recorded; /* and telemetry knows that it runs */
    int red;       /* number of the reduction operator */
    int status;    /* of an operation that ended inside its call */
    /* Not 0 while an entry on a stream uses the structs. The thread that ends the entry clears it
     * with release. */
    atomic_int queued;
    struct ft_repeat repeats[FT_REPEATS]; /* replaced in turn */
    uint64_t turned_ns;                   /* when a short call last turned the engine */
    struct ft_quick_clock clock;          /* of short calls */
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
/* Runs a short call that repeats itself without a place in any queue, if its messages come soon.
 * False: ft_fast_run() must run it, from the step that it has come to. */
bool ft_fast_run_short(struct ft_comm *comm);
void ft_fast_record(struct ft_comm *comm, uint64_t now_ns); /* tells telemetry that it runs */
void ft_fast_run(struct ft_comm *comm, struct ft_stream *stream);
/* True: the work was run inside its call. */
bool ft_fast_ended(struct ft_comm *comm, const struct ft_work *work, int status);

#endif

/*
 * What the programs that measure other libraries share: the options of the perf programs that
 * matter for a comparison, their table, the timed loop and a check of the results. A program is a
 * struct peer_library and calls of peer_options_parse() and peer_run(). Collectives are out of
 * place, on floats, with a blocking call each.
 */
#ifndef FT_PEER_H
#define FT_PEER_H

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

/* exit statuses; LACKS: no such collective */
enum { PEER_OK = 0, PEER_FAILED = 1, PEER_USAGE = 2, PEER_LACKS = 3 };
enum peer_kind {
    PEER_ALL_REDUCE,
    PEER_ALL_GATHER,
    PEER_REDUCE_SCATTER,
    PEER_BROADCAST,
    PEER_ALLTOALL,
    PEER_KINDS
};

struct peer_options {
    enum peer_kind kind;
    size_t min_bytes, max_bytes; /* of the larger buffer */
    /* ranks: -t, for programs that start their ranks themselves; 0: not given */
    long factor, ranks;
    int iters, warmup_iters, blocking, check;
};

struct peer_call {
    enum peer_kind kind;
    float *send, *recv;
    /* elements of a block: what one rank gives (gather, alltoall) or keeps (scatter), else of the
     * whole */
    size_t count;
    size_t total; /* elements of the larger buffer */
};

struct peer_library {
    const char *name;
    int rank, nranks;
    void *state; /* the library's own */
    /* Before the first call with these buffers: 0, PEER_LACKS, or PEER_FAILED after a message.
     * NULL: nothing to do. */
    int (*prepare)(struct peer_library *, const struct peer_call *);
    void (*run)(struct peer_library *, const struct peer_call *);
    void (*meet)(struct peer_library *); /* a barrier */
    double (*sum)(struct peer_library *, double);
    struct meeting *meeting; /* of peer_run(): between timed calls, in place of `meet` */
};

const char *peer_kind_name(enum peer_kind kind);
/* program COLLECTIVE [OPTION]...; 0, or PEER_USAGE after a message. */
int peer_options_parse(struct peer_options *o, int argc, char **argv);
/* All sizes; the exit status. */
int peer_run(struct peer_library *l, const struct peer_options *o);

#ifdef __cplusplus
}
#endif
#endif

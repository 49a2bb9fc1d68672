/*
 * The common part of the programs that measure other libraries: the options of the perf programs
 * that matter for a comparison, their table, the timed loop, and a check of the results. A program
 * is a struct peer_library and calls of peer_options_parse() and peer_run(). Collectives are out of
 * place, on floats, with one blocking call each.
 */
#ifndef FT_PEER_H
#define FT_PEER_H

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

/* exit statuses; LACKS: the library does not have the collective */
enum { PEER_OK = 0, PEER_FAILED = 1, PEER_USAGE = 2, PEER_LACKS = 3 };
enum peer_kind {
    PEER_ALL_REDUCE,
    PEER_ALL_GATHER,
    PEER_REDUCE_SCATTER,
    PEER_BROADCAST,
    PEER_ALLTOALL,
    PEER_REDUCE, /* to rank 0 */
    PEER_KINDS
};

struct peer_options {
    enum peer_kind kind;
    size_t min_bytes, max_bytes; /* bytes of the larger buffer */
    /* ranks: option -t, for programs that start their ranks themselves; 0: not given */
    long factor, ranks;
    int iters, warmup_iters, blocking, check;
};

struct peer_call {
    enum peer_kind kind;
    float *send, *recv;
    /* elements of a block: what one rank contributes (gather, alltoall) or keeps (scatter); for
     * other kinds the whole */
    size_t count;
    size_t total; /* elements of the larger buffer */
};

struct peer_library {
    const char *name;
    int rank, nranks;
    void *state; /* for the library's use */
    /* Called before the first call with these buffers. Returns 0, PEER_LACKS, or PEER_FAILED after
     * a message. NULL: nothing to do. */
    int (*prepare)(struct peer_library *, const struct peer_call *);
    void (*run)(struct peer_library *, const struct peer_call *);
    void (*meet)(struct peer_library *); /* a barrier */
    double (*sum)(struct peer_library *, double);
    struct meeting *meeting; /* used by peer_run() between timed calls instead of `meet` */
};

const char *peer_kind_name(enum peer_kind kind);
/* Parses "program COLLECTIVE [OPTION]...". Returns 0, or PEER_USAGE after a message. */
int peer_options_parse(struct peer_options *o, int argc, char **argv);
/* Measures all sizes; returns the exit status. */
int peer_run(struct peer_library *l, const struct peer_options *o);

#ifdef __cplusplus
}
#endif
#endif

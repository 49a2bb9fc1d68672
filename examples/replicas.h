/*
 * Parts of examples/replicas.c: the state that replicas have in common (replicas_model.c), and how
 * one gets it from another (replicas_http.c).
 */
#ifndef FT_EXAMPLES_REPLICAS_H
#define FT_EXAMPLES_REPLICAS_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* ---- the state (replicas_model.c) ------------------------------------------------------------ */

#define FEATURES 32
#define STEPS_MOST 1000000

/* What is the same in all replicas after a step, for each local rank: its part of the model, and
 * which batches it has seen, which is the state of the loader, too. It is sent as it lies in
 * memory, between machines of one kind. */
struct state {
    uint64_t step, batches; /* steps and batches that are done */
    double weight[FEATURES];
    /* [step] how many batches each step has trained. They are taken in order, so this is the whole
     * history. */
    uint32_t trained[];
};
/* What is summed over the replicas. Every number is exact, whatever the order of the sum: gradients
 * are multiples of 2^-20, the others are integers. */
struct gradient {
    double weight[FEATURES];
    double batches, marks; /* how many, and a number for each; so that a wrong one is seen */
};

struct state *state_new(int steps); /* room for all steps; NULL: no memory */
void state_begin(struct state *);   /* before the first step */
size_t state_bytes(const struct state *);
uint64_t state_digest(const struct state *);
/* False: these bytes are not the state after so many steps. */
bool state_read(struct state *, const void *bytes, size_t len_bytes, uint64_t step);
/* The gradient of one batch, for the part of the model that a local rank has. */
void gradient_of(struct gradient *, const struct state *, int local_rank, uint64_t batch);
/* False: it is not the sum over the next n batches, each once. */
bool gradient_is_of(const struct gradient *, const struct state *, int n);
void state_apply(struct state *, const struct gradient *);
/* Trains again, in this process alone, what the state says; true if the same comes out. */
bool state_is_reproducible(const struct state *, int local_rank, int steps);

/* ---- fetching and serving (replicas_http.c) -------------------------------------------------- */

#define ADDRESS_BYTES 64
/* Serves the states that are published, in a thread of its own. host: the address that it has and
 * that the others use. False: it told why. */
bool serve_start(const char *host, char address[ADDRESS_BYTES]);
/* The last two states are kept: others may still need the one before this. No memory: false. */
bool serve_publish(const struct state *);
void serve_stop(void);

struct source {
    char address[ADDRESS_BYTES];
    uint64_t digest; /* of the state that it has */
};
/* Fetches the state after `step` steps in a thread, from the first of these sources that gives it.
 * They are not copied. */
struct fetch;
struct fetch *fetch_start(const struct source *, int nsources, uint64_t step, int steps);
/* Waits until it has ended, or ends it. The state, which the caller frees; NULL: nobody had it. */
struct state *fetch_end(struct fetch *, bool cancel);

#endif

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
 * which batches it has seen, which is the state of the loader, too. From `step` on it is sent as it
 * lies in memory, between machines of one kind. A state never changes: a step makes the next one,
 * so that others can be sent this one meanwhile. */
struct state {
    atomic_int held;        /* by how many: the replica, the server, those to whom it is sent */
    uint64_t step, batches; /* steps and batches that are done */
    uint64_t digest;        /* of all sums that made it, so that other states have another one */
    double weight[FEATURES];
    /* [state_moments] what an optimizer would keep; each step changes all of it.
     * [step] how many batches each step has trained. They are taken in order, so this is the whole
     * history: state_trained(). */
    uint32_t numbers[];
};
extern size_t state_moments; /* the same in all replicas; set before the first state is made */
/* What is summed over the replicas. Every number is exact, whatever the order of the sum: gradients
 * are multiples of 2^-20, the others are integers. */
struct gradient {
    double weight[FEATURES];
    double batches, marks; /* how many, and a number for each; so that a wrong one is seen */
};

/* Memory for two states is there before it is needed: a page that nobody has touched costs time in
 * the step that touches it, and the others wait for that step's end. No memory: false. */
bool state_reserve(int steps);
/* Before the first step, with room for `steps`; NULL: no memory. Whoever makes it holds it. */
struct state *state_new(int steps);
struct state *state_hold(struct state *);
void state_release(struct state *); /* may be NULL */
size_t state_sent_bytes(uint64_t step);
static inline unsigned char *state_sent(struct state *s)
{
    return (unsigned char *)&s->step;
}
static inline const uint32_t *state_trained(const struct state *s)
{
    return s->numbers + state_moments;
}
/* The gradient of one batch, for the part of the model that a local rank has. */
void gradient_of(struct gradient *, const struct state *, int local_rank, uint64_t batch);
/* False: it is not the sum over the next n batches, each once. */
bool gradient_is_of(const struct gradient *, const struct state *, int n);
/* The next state; NULL: no memory. */
struct state *state_apply(const struct state *, const struct gradient *, int steps);
/* Trains again, in this process alone, what the state says; true if the same comes out. */
bool state_is_reproducible(const struct state *, int local_rank, int steps);

/* ---- fetching and serving (replicas_http.c) -------------------------------------------------- */

#define ADDRESS_BYTES 64
/* Serves the states that are published, in a thread of its own. host: the address that it has and
 * that the others use. False: it told why. */
bool serve_start(const char *host, char address[ADDRESS_BYTES]);
/* The last two states are kept: others may still need the one before this. */
void serve_publish(struct state *);
void serve_stop(void);

struct source {
    char address[ADDRESS_BYTES];
    uint64_t digest; /* of the state that it has */
};
/* Fetches the state after `step` steps in a thread, from the first of these sources that gives
 * it. */
struct fetch;
struct fetch *fetch_start(const struct source *, int nsources, uint64_t step, int steps);
enum fetch_result { FETCHING, FETCHED, FETCH_FAILED };
enum fetch_result fetch_result(struct fetch *);
/* Ends it. The state, which the caller holds; NULL: it has not come. */
struct state *fetch_end(struct fetch *);

#endif

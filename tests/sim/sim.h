/*
 * A simulated world for whole engines: a virtual clock, a seeded generator and a transport whose
 * messages take random times, overtake each other across channels, and whose links can be cut.
 * Everything runs in one thread, so a seed replays a run.
 */
#ifndef FT_SIM_H
#define FT_SIM_H

#include "core/core.h"

#ifdef __cplusplus
extern "C" {
#endif

struct sim_world {
    struct ft_env env;
    uint64_t now_ns, rng;
    uint64_t delay_ns;     /* messages take up to this long */
    uint64_t late_down_ns; /* the receiver learns of a cut up to this much later */
    bool late_copy;        /* half of the sends read the user's buffer only when they arrive */
    uint64_t trace;        /* hash over everything that was delivered */
    uint64_t frames;       /* allocated and not freed */
    uint64_t delivered;
    bool proof; /* what breaks at a kill tells that the process has ended */
    /* the next message with a payload from this delivered one on has a bit changed; 0: none */
    uint64_t flip;
    struct sim_transport *transports;
    struct sim_event *events; /* ordered by time */
};

/* One world at a time; the transport's functions refer to it. */
void sim_start(struct sim_world *world, uint64_t seed);
uint64_t sim_random(struct sim_world *world, uint64_t below);
extern const struct ft_transport_ops sim_transport_ops;

/* The time of the next event at an engine that lives; UINT64_MAX: none. */
uint64_t sim_next(const struct sim_world *world);
/* The link from one engine to another breaks now: what is under way is lost. false: there is
 * none. */
bool sim_cut(struct sim_world *world, uint64_t from, uint64_t to);
/* All links of an engine break, as when its process dies. */
void sim_kill(struct sim_world *world, uint64_t engine);
/* All links of an engine break and none comes about any more, as when the network parts; what has
 * arrived stays. */
void sim_part(struct sim_world *world, uint64_t engine);

#ifdef __cplusplus
}
#endif
#endif

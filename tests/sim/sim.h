/*
 * A simulated world for whole engines: a virtual clock, a seeded generator, and a transport whose
 * messages take random times and overtake each other across channels, and whose links can be cut.
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
    uint64_t delay_ns;     /* longest delay of messages */
    uint64_t late_down_ns; /* longest time until the receiver learns of a cut */
    bool late_copy;        /* half of the sends read the user's buffer only on arrival */
    uint64_t trace;        /* hash over everything that was delivered */
    uint64_t frames;       /* frames that are allocated now */
    uint64_t delivered;
    bool proof; /* links that break at a kill tell that the process has ended */
    /* The number of a delivered message: from it on, a bit of the next message with a payload is
     * changed. 0: none. */
    uint64_t flip;
    struct sim_transport *transports;
    struct sim_event *events; /* ordered by time */
};

/* There is one world at a time; the transport's functions refer to it. */
void sim_start(struct sim_world *world, uint64_t seed);
uint64_t sim_random(struct sim_world *world, uint64_t below);
extern const struct ft_transport_ops sim_transport_ops;

/* The time of the next event at a live engine. UINT64_MAX: there is none. */
uint64_t sim_next(const struct sim_world *world);
/* Breaks the link from one engine to another; messages in flight are lost. False: there is no such
 * link. */
bool sim_cut(struct sim_world *world, uint64_t from, uint64_t to);
/* Breaks all links of an engine, as when its process dies. */
void sim_kill(struct sim_world *world, uint64_t engine);
/* Breaks all links of an engine, and lets no new ones be made, as when the network parts. Messages
 * that have arrived stay. */
void sim_part(struct sim_world *world, uint64_t engine);

#ifdef __cplusplus
}
#endif
#endif

/*
 * control: what engines say to each other (control.c), and how they watch each other. Part of
 * core.h; other folders include that.
 */
#ifndef FT_CONTROL_H
#define FT_CONTROL_H

#include "core/core.h"

#define FT_CTX_ENGINE 1 /* context of the messages between engines */
enum ft_ctl {
    FT_CTL_AGREE = 1,
    FT_CTL_GONE,
    FT_CTL_ASK,
    FT_CTL_TELL,
    FT_CTL_BEAT,
    FT_CTL_ABANDONED
};
/* of the communicator that it is about */
struct ft_ctl_head {
    uint32_t what, instance;
    uint64_t ctx;
};
struct ft_ctl_message;
int ft_control_open(struct ft_engine *engine);
void ft_control_close(struct ft_engine *engine);
bool ft_control_turn(struct ft_engine *engine);
/* Goes out when the link takes it; lost with the link, or when too many wait for the peer.
 * Copies. */
void ft_control_send(struct ft_engine *engine, struct ft_peer *peer, const struct ft_ctl_head *head,
                     const void *data, size_t len_bytes);

/* Heartbeats (heartbeat.c). */
void ft_heartbeat_open(struct ft_engine *engine, int64_t heartbeat_ms, int64_t suspect_ms);
void ft_heartbeat_tick(struct ft_engine *engine, uint64_t now_ns);
void ft_heartbeat_receive(struct ft_engine *engine, struct ft_peer *peer,
                          const struct ft_ctl_head *head);

/* Proof of death on this host (death_watch.c). */
/* without the page of this process nothing is proven */
void ft_death_watch_open(struct ft_engine *engine);
void ft_death_watch_close(struct ft_engine *engine);
bool ft_death_watch_endpoint(const struct ft_engine *engine,
                             struct ft_endpoint *endpoint); /* false: it is full */
void ft_death_watch_learn(struct ft_engine *engine,
                          struct ft_peer *peer); /* its endpoint is known */
void ft_death_watch_tick(struct ft_engine *engine);
/* Why a transfer to or from a peer failed, in words; first looks whether its process has ended. */
const char *ft_death_watch_why(struct ft_peer *peer, int status);

#endif

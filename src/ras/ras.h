/*
 * ras: the responder. It answers clients over TCP about the ranks of this host, in the protocol of
 * NCCL's RAS (docs/diagnosis.md), from the telemetry files of its user, so that stopped and killed
 * ranks are covered. There is one in a process, and of the processes of a host and user one listens
 * at a time; another one takes over when it ends or does not answer.
 *
 * It has no thread. The background thread of one engine, the first that joined, serves it, without
 * holding the engine. No call blocks: what takes long is done in slices of about a millisecond, and
 * between two of them the thread does its other work for at least as long.
 */
#ifndef FT_RAS_H
#define FT_RAS_H

#include "base/base.h"

#include <poll.h>

#define FT_RAS_CLIENTS 16 /* at a time */
#define FT_RAS_FDS (FT_RAS_CLIENTS + 2)

/* An engine's part in the responder of its process. Zeroed at first. */
struct ft_ras {
    struct ft_ras *next;
    bool joined;
    atomic_int local_ranks; /* ranks on this host that the engine knows; relaxed, a hint */
};

/* Does nothing if the responder is switched off. Cannot fail: without memory or descriptors, or if
 * another program has the port, nobody answers. */
void ft_ras_join(struct ft_ras *ras);
/* The last engine of a process closes everything. No thread may serve the engine any more.
 * Idempotent. */
void ft_ras_leave(struct ft_ras *ras);
/* The descriptors for which the engine's thread should wait, too, and an upper limit for how long.
 * Returns their number. */
int ft_ras_wait_for(const struct ft_ras *ras, struct pollfd fds[FT_RAS_FDS], uint64_t *wait_ns);
/* A process of this host has ended or left: it may have been the one that answered. Any thread. */
void ft_ras_hurry(void);
/* Does what is due. ready: one of those descriptors is. Cheap if nothing is due. */
void ft_ras_serve(struct ft_ras *ras, bool ready);

#endif

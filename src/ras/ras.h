/*
 * ras: the responder. It answers clients over TCP about the ranks of a job, in the protocol of
 * NCCL's RAS (docs/diagnosis.md), from the telemetry files of its user, so that stopped and killed
 * ranks are covered. There is one in a process, and of the processes of a host and user one listens
 * at a time; another one takes over when it ends or does not answer. It asks one rank of each other
 * host, as a tree, by messages between engines.
 *
 * It has no thread. The background thread of one engine, the first that joined, serves it, without
 * holding the engine. No call blocks for long: what takes long is done in slices of about a
 * millisecond, and between two of them the thread does its other work for at least as long.
 */
#ifndef FT_RAS_H
#define FT_RAS_H

#include "base/base.h"

#include <poll.h>

#define FT_RAS_CLIENTS 16 /* at a time */
#define FT_RAS_FDS (FT_RAS_CLIENTS + 2)

/* A rank on another host that an engine knows. */
struct ft_ras_peer {
    uint64_t host, engine;
    int rank;
};
enum ft_ras_message_kind { FT_RAS_ASK = 1, FT_RAS_TELL };
#define FT_RAS_MESSAGE_MAX ((size_t)24 << 10) /* bytes */
/* How the responder reaches other hosts. Both calls take the engine's lock for a moment. */
struct ft_ras_net {
    /* Ranks of other hosts, in any order; the caller frees the list. Returns their number, or
     * FT_NOMEM. */
    int (*peers)(void *engine, struct ft_ras_peer **out);
    /* FT_AGAIN: try later; FT_PEER: the engine does not know this peer. */
    int (*send)(void *engine, uint64_t peer, enum ft_ras_message_kind what, uint64_t query,
                const void *data, size_t len_bytes);
};

/* An engine's part in the responder of its process. Zeroed at first; the engine sets `net` before
 * it joins. */
struct ft_ras {
    const struct ft_ras_net *net;
    void *engine;
    size_t message_bytes; /* the longest message that its links take */
    struct ft_ras *next;
    bool joined;            /* under the lock in messages.c */
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
/* A message of another host's responder, as bytes from outside; they are copied, or dropped if too
 * many wait. The caller holds the engine. */
void ft_ras_hear(struct ft_ras *ras, uint64_t peer, uint32_t what, uint64_t query, const void *data,
                 size_t len_bytes);
/* Does what is due. ready: one of those descriptors is. Cheap if nothing is due. */
void ft_ras_serve(struct ft_ras *ras, bool ready);

/* For tools: asks the responder of this host what the ranks of all hosts tell. Blocks for at most
 * timeout_s, half of which it gives the other hosts. The caller frees the snapshot. FT_LINK: nobody
 * answers; FT_PROTOCOL: what comes is not understood; FT_NOMEM; a status of FTCCL_RAS_ADDR. Hosts
 * that do not answer are missing. */
#define FT_RAS_SNAPSHOT "SNAPSHOT " /* and the length of what follows the line */
struct ft_snapshot;
int ft_ras_fetch(unsigned timeout_s, struct ft_snapshot **out);

#endif

/*
 * local: links over slots.h, what inproc and shm have in common: everything but how the two sides
 * find, wake and lose each other. The functions named after slots of struct ft_transport_ops stand
 * in both tables as they are.
 */
#ifndef FT_LOCAL_H
#define FT_LOCAL_H

#include "transport/pull.h"
#include "transport/rxq.h"
#include "transport/slots.h"

/* half of the window of lane 0, where short collectives go: their sender need not wait for a
 * poll */
#define FT_LOCAL_LATER 4

struct ft_local_link {
    struct ft_link base;
    struct ft_slots slots;
    struct ft_slots_return later[FT_LOCAL_LATER]; /* receiver: not given back yet */
    int nlater;
    /* wakes the other side, which sleeps; not called when DOWN */
    void (*ring)(struct ft_local_link *);
    struct ft_local_link *next, **at; /* all links of the transport */
    /* something was published or given since the other side was last woken if it slept */
    bool unrung;
    bool open;                    /* slots and queue are in use */
    bool announce, announce_down; /* events to be told: ACCEPTED or UP, and DOWN */
    /* sender */
    struct ft_txq txq;
    bool wanted;       /* somebody waits for returns */
    bool starved;      /* the last search for a slot failed */
    unsigned reserved; /* slots of reservations */
    bool lends;        /* the receiver reads this process's arena */
    /* and pulls messages of so many bytes out of its other memory; 0: it does not */
    size_t pulled_least;
    struct ft_pull_seen seen;
    uint32_t lent, withdrawn; /* a bit per loan: out; and of those, given up */
    struct ft_send *loan[FT_SLOTS_LOANS];
    /* receiver */
    struct ft_rxq rxq;
    const unsigned char *arena; /* the sender's, read-only; NULL: it lends nothing */
    size_t arena_bytes;
    uint32_t pinned; /* a bit per slot: its message lies in pinned memory */
    /* a bit per piece of memory on the sender's device: its message is here */
    uint32_t devmem;
    /* of the sender's other memory, FT_LINK; NULL: none */
    int (*pull)(struct ft_local_link *, uint64_t at, void *to, size_t len_bytes);
    bool at_once;                           /* a message is out that went past the queue, */
    unsigned char once[FT_RXQ_SMALL_BYTES]; /* this one */
    uint32_t borrowed;                      /* a bit per loan: its message is here */
    uint32_t held, claimed; /* a bit per slot: its message is here; and a view of it is out */
    struct ft_rxq_node *holder[FT_SLOTS_MOST];
    uint32_t starved_polls;          /* counts polls that found the sender starving */
    uint32_t arrived[FT_SLOTS_MOST]; /* starved_polls when the slot's message came */
};

struct ft_local {
    struct ft_transport base;
    struct ft_rxq_set set;
    struct ft_local_link *links;
    size_t pinned_most;     /* bytes of the longest message whose slot may lie in pinned memory */
    unsigned announcements; /* links with something to announce */
    bool unrung;            /* a link may be */
};

static inline struct ft_local_link *ft_local_link_of(struct ft_link *l)
{
    return FT_CONTAINER(l, struct ft_local_link, base);
}
static inline struct ft_local *ft_local_of(struct ft_local_link *l)
{
    return FT_CONTAINER(l->base.transport, struct ft_local, base);
}

void ft_local_open(struct ft_local *, const struct ft_transport_ops *,
                   const struct ft_transport_config *);
void ft_local_close(struct ft_local *); /* when no link is left */

/* A link enters the transport's list as CONNECTING. */
void ft_local_link_add(struct ft_local *, struct ft_local_link *, uint64_t peer, bool sender);
/* Its memory is there; makes the queue. */
int ft_local_link_open(struct ft_local_link *);
void ft_local_link_up(struct ft_local_link *); /* and announces it */
/* Sender: from now on memory is lent instead of copied, where the caller of send allows it: of the
 * arena, other memory. */
void ft_local_link_lend(struct ft_local_link *, bool arena, bool other);
/* The sender's pinned memory, from a descriptor or for -1 where it is found: kept if it can be met.
 * Sender: its own, when the receiver has met it. */
bool ft_local_link_meet(struct ft_local_link *, int fd, const struct ft_pinned_place *);
/* What has arrived is taken first, unless `reason` is FT_PROTOCOL. Only the first call counts. */
void ft_local_link_down(struct ft_local_link *, int reason, bool orderly);
void ft_local_link_remove(struct ft_local_link *); /* from the list, queues freed */
/* The other side, if it sleeps; not now, if the engine is about to say ft_transport_ops.wake(). */
void ft_local_wake_other(struct ft_local_link *);
/* Sender: what the receiver has given back, of a link that is UP; true if anything was. The link
 * may be DOWN by it. */
bool ft_local_take_returns(struct ft_local_link *);
/* Sender: ends loans without waiting for the receiver: first the mark, then the sender may do with
 * the memory what it likes. Their numbers stay taken until the receiver has given them back. */
void ft_local_withdraw(struct ft_local_link *, uint32_t loans);
/* Moves messages and returns; true if anything did. */
bool ft_local_link_poll(struct ft_local_link *);
/* Writes pending announcements; the number written. */
int ft_local_announce(struct ft_local *, struct ft_event *events, int max);
/* Arms all links; false, and nothing armed, if something is there already. */
bool ft_local_arm_links(struct ft_local *, bool on);

int ft_local_bind(struct ft_transport *, uint64_t ctx);
void ft_local_unbind(struct ft_transport *, uint64_t ctx);
int ft_local_send(struct ft_link *, const struct ft_header *, const void *data,
                  struct ft_send *req);
int ft_local_reserve(struct ft_link *, const struct ft_header *, void **slot);
int ft_local_reserve_devmem(struct ft_link *, const struct ft_header *, void **slot);
void ft_local_commit(struct ft_link *, const struct ft_header *, void *slot);
void ft_local_cancel(struct ft_link *, const struct ft_header *, void *slot);
int ft_local_recv(struct ft_link *, uint64_t ctx, unsigned lane, struct ft_msg *msg);
int ft_local_fetch(struct ft_link *, struct ft_msg *msg, void *to);
int ft_local_peek(struct ft_link *, uint64_t ctx, unsigned lane, struct ft_header *header);
void ft_local_release(struct ft_link *, struct ft_msg *msg);
bool ft_local_drained(struct ft_link *);
void ft_local_trim(struct ft_transport *);
void ft_local_wake(struct ft_transport *);

#endif

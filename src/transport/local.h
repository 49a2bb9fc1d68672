/*
 * local: links over slots.h. This is what inproc and shm have in common: everything except how the
 * two sides find, wake and lose each other. Functions named like members of struct ft_transport_ops
 * stand in both tables.
 */
#ifndef FT_LOCAL_H
#define FT_LOCAL_H

#include "transport/pull.h"
#include "transport/rxq.h"
#include "transport/slots.h"

/* Places of lane 0, which short collectives use. */
#define FT_LOCAL_FIRST 32

struct ft_local_link {
    struct ft_link base;
    struct ft_slots slots;
    /* Receiver: places of one channel that it has not given back yet; consumed 0: none. */
    struct ft_slots_return later;
    /* wakes the other side, which sleeps; not called on a DOWN link */
    void (*ring)(struct ft_local_link *);
    struct ft_local_link *next, **at; /* in the list of the transport's links */
    /* Something was published or given back since the last check whether the other side sleeps. */
    bool unrung;
    bool open;                    /* slots and queue are in use */
    bool announce, announce_down; /* events to report: ACCEPTED or UP, and DOWN */
    /* of the sender: */
    struct ft_txq txq;
    bool wanted;       /* a caller waits for returns */
    bool starved;      /* the last call found no free slot */
    unsigned reserved; /* number of slots in reservations */
    bool lends;        /* the receiver can read this process's arena */
    /* The receiver pulls messages of at least so many bytes out of this process's other memory. 0:
     * it does not. */
    size_t pulled_least;
    struct ft_pull_seen seen;
    uint32_t lent, withdrawn; /* a bit per loan: in use; and of these, withdrawn */
    struct ft_send *loan[FT_SLOTS_LOANS];
    /* of the receiver: */
    struct ft_rxq rxq;
    /* The message at which ft_local_look() has looked: its slot (0: none), and whether it is in the
     * queue. */
    uint32_t looked;
    bool looked_queued;
    const unsigned char *arena; /* the sender's arena, read-only; NULL: the sender lends nothing */
    size_t arena_bytes;
    uint32_t pinned; /* a bit per slot: its message lies in pinned memory */
    /* A bit per piece of memory on the sender's device: its message is here. */
    uint32_t devmem;
    /* Reads the sender's other memory; FT_LINK. NULL: not possible. */
    int (*pull)(struct ft_local_link *, uint64_t at, void *to, size_t len_bytes);
    bool at_once;                           /* a message is in use that bypassed the queue: */
    unsigned char once[FT_RXQ_SMALL_BYTES]; /* this is its payload */
    uint32_t borrowed;                      /* a bit per loan: its message is here */
    uint32_t held, claimed; /* a bit per slot: its message is here; a view of it is in use */
    struct ft_rxq_node *holder[FT_SLOTS_MOST];
    uint32_t starved_polls;          /* number of polls that found the sender starving */
    uint32_t arrived[FT_SLOTS_MOST]; /* value of starved_polls when the slot's message came */
};

struct ft_local {
    struct ft_transport base;
    struct ft_rxq_set set;
    struct ft_local_link *links;
    size_t pinned_most;     /* longest message whose slot may lie in pinned memory, in bytes */
    unsigned announcements; /* number of events that links have to report */
    bool unrung;            /* unrung is set on a link */
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
void ft_local_close(struct ft_local *); /* only when no link is left */

/* Adds a link to the transport's list as CONNECTING. */
void ft_local_link_add(struct ft_local *, struct ft_local_link *, uint64_t peer, bool sender);
/* To be called when the link's memory is there: makes its queues. */
int ft_local_link_open(struct ft_local_link *);
void ft_local_link_up(struct ft_local_link *); /* makes it UP and announces that */
/* Sender: from now on memory is lent instead of copied, if the caller of send allows it. arena:
 * memory of the arena; other: other memory. */
void ft_local_link_lend(struct ft_local_link *, bool arena, bool other);
/* Maps the sender's pinned memory, from a descriptor, or for -1 where this process finds it.
 * Returns whether it could be mapped. The sender calls it for its own memory once the receiver has
 * mapped that. */
bool ft_local_link_meet(struct ft_local_link *, int fd, const struct ft_pinned_place *);
/* First takes what has arrived, unless `reason` is FT_PROTOCOL. Only the first call has an
 * effect. */
void ft_local_link_down(struct ft_local_link *, int reason, bool orderly);
void ft_local_link_remove(struct ft_local_link *); /* takes it off the list, and frees its queues */
/* Receiver: gives a slot or places of a window back. */
void ft_local_give(struct ft_local_link *, const struct ft_slots_return *);
void ft_local_give_now(struct ft_local_link *); /* those that ft_local_give_later() has put off */
/* Receiver: gives places of a window back at the next poll, or when there are many of them. The
 * thread that waits for this message's result comes first, and places that come back together cost
 * their sender one cache line. */
static inline void ft_local_give_later(struct ft_local_link *l, const struct ft_header *h,
                                       unsigned places)
{
    struct ft_slots_return *later = &l->later;
    if (l->base.state == FT_LINK_DOWN)
        return;
    if (later->consumed && (later->ctx != h->ctx || later->lane != (uint8_t)h->lane))
        ft_local_give_now(l);
    later->ctx = h->ctx;
    later->lane = (uint8_t)h->lane;
    later->consumed = (uint8_t)(later->consumed + places);
    if (4u * later->consumed >= ft_rxq_places(l->rxq.set, h->lane))
        ft_local_give_now(l);
}
/* Wakes the other side if it sleeps; later, if the engine is about to call
 * ft_transport_ops.wake(). */
void ft_local_wake_other(struct ft_local_link *);
/* Sender: takes what the receiver has given back on an UP link. True: something came. The call may
 * bring the link DOWN. */
bool ft_local_take_returns(struct ft_local_link *);
/* Sender: ends loans without waiting for the receiver. After the mark is set, the sender may use
 * the memory again. The loans' numbers stay in use until the receiver has given them back. */
void ft_local_withdraw(struct ft_local_link *, uint32_t loans);
/* Moves messages and returns. True: something moved. */
bool ft_local_link_poll(struct ft_local_link *);
/* Writes at most max events to report. Returns their number. */
int ft_local_announce(struct ft_local *, struct ft_event *events, int max);
/* Arms or disarms all links. If one has something to do already, arms none and returns false. */
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
int ft_local_post(struct ft_link *, const struct ft_header *, const void *data);
const void *ft_local_look(struct ft_link *, const struct ft_header *want);
void ft_local_took(struct ft_link *, const struct ft_header *);
bool ft_local_drained(struct ft_link *);
void ft_local_trim(struct ft_transport *);
void ft_local_wake(struct ft_transport *);

#endif

/*
 * rxq: the virtual channels of links, used inside every transport. A receiving link has a struct
 * ft_rxq: for each bound context and lane a queue of at most ft_window(lane) messages, all nodes
 * made at bind. A sending link has a struct ft_txq: for each bound context and lane the number of
 * messages that the other side has not consumed yet. A transport has one struct ft_rxq_set, which
 * binds contexts on all its links, also on those that come later.
 *
 * A transport whose news of consumed messages are dear may let more small ones be under way. Where
 * data goes a window then has `places`, in lane 0, the only one of small collectives, `first`: a
 * message of at most small_bytes takes one, a longer one as many as make ft_window() of them fill
 * the window. Both sides count alike.
 *
 * Not thread-safe: the engine is held. Nothing here allocates except open and bind.
 */
#ifndef FT_RXQ_H
#define FT_RXQ_H

#include "transport/transport.h"

#define FT_RXQ_SMALL_BYTES 24
#define FT_RXQ_BUCKETS 32
#define FT_RXQ_DEEPEST FT_WINDOW_SMALL /* places of the largest window */

struct ft_rxq;
struct ft_rxq_ctx;
struct ft_txq_ctx;

enum ft_rxq_state { FT_RXQ_FREE, FT_RXQ_FILLING, FT_RXQ_READY, FT_RXQ_HELD };

/* One message. The transport points `data` at small, at landing or at memory of its own before it
 * says ready. */
struct ft_rxq_node {
    struct ft_header header;
    const void *data;
    /* private memory for the message, up to chunk_bytes; for ft_rxq_landing() */
    unsigned char *landing;
    uint64_t cookie; /* the transport's */
    struct ft_rxq_ctx *home;
    uint8_t state, index;
    uint8_t places; /* of the window that it takes */
    int8_t large;   /* its landing of chunk_bytes; -1: a small one */
    unsigned char small[FT_RXQ_SMALL_BYTES];
};

struct ft_rxq_set {
    size_t chunk_bytes, first_bytes; /* longest message, where data goes */
    /* where landings of long messages lie if there is room; NULL: anywhere */
    struct ft_pinned *pinned;
    /* places of lane 0 and of others; 0: as ft_window() says. Set before the first bind */
    unsigned first, places, small_bytes;
    uint64_t *bound;
    int count, capacity;
    struct ft_rxq *rxqs;
    struct ft_txq *txqs;
};

struct ft_rxq {
    struct ft_rxq_set *set;
    struct ft_rxq *next;
    /* Called exactly once for each message that was admitted and became ready: when it is released,
     * or dropped because its context was unbound. The transport gives the space and one place of
     * the window back. */
    void (*consumed)(struct ft_rxq *, struct ft_rxq_node *);
    unsigned queued;         /* messages admitted and not received, of bound contexts */
    struct ft_rxq_ctx *last; /* of the latest lookup */
    struct ft_rxq_ctx *bucket[FT_RXQ_BUCKETS];
    struct ft_rxq_ctx *unbound; /* with views out or fills under way */
};

struct ft_txq {
    struct ft_rxq_set *set;
    struct ft_txq *next;
    unsigned outstanding; /* places of all channels that the other side has not given back */
    struct ft_txq_ctx *last;
    struct ft_txq_ctx *bucket[FT_RXQ_BUCKETS];
};

void ft_rxq_set_open(struct ft_rxq_set *, size_t chunk_bytes);
void ft_rxq_set_close(struct ft_rxq_set *); /* after the queues of all links */
/* On every link or, with FT_NOMEM, on none. FT_INVAL: bound already. */
int ft_rxq_set_bind(struct ft_rxq_set *, uint64_t ctx);
void ft_rxq_set_unbind(struct ft_rxq_set *, uint64_t ctx); /* unknown: nothing happens */

unsigned ft_rxq_places(const struct ft_rxq_set *, unsigned lane); /* of a channel's window */
/* places that one message takes */
unsigned ft_rxq_cost(const struct ft_rxq_set *, unsigned lane, size_t len_bytes);

size_t ft_rxq_longest(const struct ft_rxq_set *, unsigned lane);

int ft_rxq_open(struct ft_rxq *, struct ft_rxq_set *,
                void (*consumed)(struct ft_rxq *, struct ft_rxq_node *));
/* frees everything, views too; consumed is not called. Idempotent */
void ft_rxq_close(struct ft_rxq *);

/* A place at the end of the channel's queue for a message that arrives. FT_OK with *out NULL: the
 * context is not bound, drop it, count it, give its window back. FT_PROTOCOL: no such lane, longer
 * than a chunk, or more than the window. */
int ft_rxq_admit(struct ft_rxq *, const struct ft_header *, struct ft_rxq_node **out);
/* expect of struct ft_transport_ops. */
void ft_rxq_expect(struct ft_rxq *, const struct ft_header *, void *to);
/* Where somebody expects the message that was just admitted; NULL: nobody does. If its `data` is
 * that, ft_rxq_expect() or unbinding may set it to the landing, with what has come, until the
 * message is received. */
void *ft_rxq_expected(struct ft_rxq_node *);
/* Nobody expects the message of this header yet, but somebody expected the one before it: before
 * long this may change. */
bool ft_rxq_early(struct ft_rxq *, const struct ft_header *);
/* The payload is complete. Messages may become ready in another order than they were admitted; they
 * are received in the order of admission. The node may be gone afterwards. */
void ft_rxq_ready(struct ft_rxq *, struct ft_rxq_node *);
/* Where an admitted message may be kept. It costs no memory until it is written. */
unsigned char *ft_rxq_landing(struct ft_rxq_node *);
/* Gives back the pages of large landings that no message has needed since the call before. */
void ft_rxq_trim(struct ft_rxq *);

/* recv, peek and release of struct ft_transport_ops; FT_AGAIN: none ready. msg->owner is the node,
 * also for release. */
int ft_rxq_recv(struct ft_rxq *, uint64_t ctx, unsigned lane, struct ft_msg *);
int ft_rxq_peek(struct ft_rxq *, uint64_t ctx, unsigned lane, struct ft_header *);
void ft_rxq_release(struct ft_rxq *, struct ft_msg *);
/* has messages that were admitted, or is not bound */
bool ft_rxq_queued(struct ft_rxq *, uint64_t ctx, unsigned lane);

int ft_txq_open(struct ft_txq *, struct ft_rxq_set *);
void ft_txq_close(struct ft_txq *); /* idempotent */
/* Takes the places of one more message. FT_AGAIN: not so many are free. FT_INVAL: no such lane, or
 * context not bound here. */
int ft_txq_take_places(struct ft_txq *, uint64_t ctx, unsigned lane, unsigned places);
/* The other side consumed messages (or they were not sent after all). Never trusts the caller:
 * unknown channels are ignored. */
void ft_txq_put_places(struct ft_txq *, uint64_t ctx, unsigned lane, unsigned places);
/* The same for one message where each takes one place. */
static inline int ft_txq_take(struct ft_txq *q, uint64_t ctx, unsigned lane)
{
    return ft_txq_take_places(q, ctx, lane, 1);
}
static inline void ft_txq_put(struct ft_txq *q, uint64_t ctx, unsigned lane)
{
    ft_txq_put_places(q, ctx, lane, 1);
}
/* FT_RXQ_SMALL_BYTES of the channel's own, to build one small message in; NULL if not bound. */
void *ft_txq_small(struct ft_txq *, uint64_t ctx, unsigned lane);

#endif

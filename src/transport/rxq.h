/*
 * rxq: the virtual channels of links, used inside every transport. A receiving link has a struct
 * ft_rxq. It has a queue of at most ft_window(lane) messages for each bound context and lane; bind
 * makes all nodes. A sending link has a struct ft_txq. It counts, for each bound context and lane,
 * the messages that the other side has not consumed yet. A transport has one struct ft_rxq_set,
 * which binds contexts on all its links, also on links that come later.
 *
 * If telling the sender of consumed messages is expensive, a transport may allow more small
 * messages in flight. Then a window of a lane with data has `places`, and that of lane 0, the only
 * one of small collectives, has `first`. A message of at most small_bytes takes one place. A longer
 * one takes so many that ft_window() of them fill the window. Both sides count alike.
 *
 * Not thread-safe: the caller holds the engine. Only open and bind allocate memory.
 */
#ifndef FT_RXQ_H
#define FT_RXQ_H

#include "transport/transport.h"

#define FT_RXQ_SMALL_BYTES 24
#define FT_RXQ_BUCKETS 32
static inline unsigned ft_rxq_bucket(uint64_t ctx)
{
    return (unsigned)((ctx * 0x9e3779b97f4a7c15u) >> 32) % FT_RXQ_BUCKETS;
}
#define FT_RXQ_DEEPEST FT_WINDOW_SMALL /* places of the largest window */

struct ft_rxq;
struct ft_rxq_ctx;
struct ft_txq_ctx;

enum ft_rxq_state { FT_RXQ_FREE, FT_RXQ_FILLING, FT_RXQ_READY, FT_RXQ_HELD };

/* One message. Before it says ready, the transport points `data` at small, at landing, or at memory
 * of its own. */
struct ft_rxq_node {
    struct ft_header header;
    const void *data;
    /* memory of up to chunk_bytes for this message; see ft_rxq_landing() */
    unsigned char *landing;
    uint64_t cookie;   /* for the transport */
    uint64_t ready_ns; /* when a large message became ready; 0: not known */
    struct ft_rxq_ctx *home;
    uint8_t state, index;
    uint8_t places; /* places of the window that it takes */
    uint8_t way;    /* for the transport: by which way it came; 0 when it is admitted */
    int8_t large;   /* number of its large landing buffer; -1: it has a small one */
    unsigned char small[FT_RXQ_SMALL_BYTES];
};

struct ft_rxq_set {
    size_t chunk_bytes, first_bytes; /* the longest message; first_bytes: on lanes with data */
    /* Where landing buffers of long messages should lie, if there is room. NULL: anywhere. */
    struct ft_pinned *pinned;
    struct ft_env *env; /* the clock of latencies; NULL: they are not measured */
    /* Places of lane 0 and of other lanes with data; 0: ft_window(). Set before the first bind. */
    unsigned first, places, small_bytes;
    uint64_t *bound;
    int count, capacity;
    struct ft_rxq *rxqs;
    struct ft_txq *txqs;
};

struct ft_rxq {
    struct ft_rxq_set *set;
    struct ft_rxq *next;
    /* Called exactly once for each message that became ready: when it is released, or dropped
     * because its context was unbound. The transport then gives back its memory and its places in
     * the window. */
    void (*consumed)(struct ft_rxq *, struct ft_rxq_node *);
    unsigned queued;             /* messages of bound contexts, admitted and not yet received */
    struct ft_latency *consumer; /* how long large messages were ready; NULL: not measured */
    unsigned owed;               /* places of all channels, see ft_rxq_owe() */
    struct ft_rxq_ctx *last;     /* found by the latest lookup */
    struct ft_rxq_ctx *bucket[FT_RXQ_BUCKETS];
    struct ft_rxq_ctx *unbound; /* those with views in use or messages that still arrive */
};

/* What a context has sent on a link and the other side has not consumed. */
struct ft_txq_ctx {
    uint64_t ctx;
    struct ft_txq_ctx *next;
    uint8_t outstanding[FT_LANES_ALL];
    uint8_t number[FT_LANES_ALL]; /* of the channel's next message, modulo 2^8 */
    unsigned char small[FT_LANES_ALL][FT_RXQ_SMALL_BYTES] __attribute__((aligned(8)));
    uint8_t of_way[][FT_LANES_ALL]; /* of the outstanding places, if the queue has ways */
};

struct ft_txq {
    struct ft_rxq_set *set;
    struct ft_txq *next;
    unsigned outstanding; /* places of all channels that the other side has not given back */
    unsigned ways;        /* by which messages go to the other side, if the link has several */
    struct ft_txq_ctx *last;
    struct ft_txq_ctx *bucket[FT_RXQ_BUCKETS];
};

/* Places of a channel that messages use. */
struct ft_rxq_use {
    uint64_t ctx;
    uint16_t lane, places;
};

void ft_rxq_set_open(struct ft_rxq_set *, size_t chunk_bytes);
void ft_rxq_set_close(struct ft_rxq_set *); /* after the queues of all links are closed */
/* Binds on every link or, with FT_NOMEM, on none. FT_INVAL: it is bound already. */
int ft_rxq_set_bind(struct ft_rxq_set *, uint64_t ctx);
void ft_rxq_set_unbind(struct ft_rxq_set *, uint64_t ctx); /* nothing happens if it is not bound */

/* Places of a channel's window. */
static inline unsigned ft_rxq_places(const struct ft_rxq_set *set, unsigned lane)
{
    const unsigned places = lane == 0 ? set->first : lane <= FT_LANE_P2P ? set->places : 0;
    return places > 0 ? places : (unsigned)ft_window(lane);
}
/* Places that one message takes. */
static inline unsigned ft_rxq_cost(const struct ft_rxq_set *set, unsigned lane, size_t len_bytes)
{
    if (len_bytes <= set->small_bytes)
        return 1;
    return ft_rxq_places(set, lane) / (unsigned)ft_window(lane);
}

size_t ft_rxq_longest(const struct ft_rxq_set *, unsigned lane);

int ft_rxq_open(struct ft_rxq *, struct ft_rxq_set *,
                void (*consumed)(struct ft_rxq *, struct ft_rxq_node *));
/* Frees everything, also views in use, and does not call `consumed`. Idempotent. */
void ft_rxq_close(struct ft_rxq *);

/* Makes a place at the end of the channel's queue for a message that arrives. FT_OK with *out NULL:
 * the context is not bound; the caller drops and counts the message, and gives its places back.
 * FT_PROTOCOL: there is no such lane, or the message is longer than a chunk, or the window is
 * full. */
int ft_rxq_admit(struct ft_rxq *, const struct ft_header *, struct ft_rxq_node **out);
/* The same where messages of a channel come by several ways, and so in any order. They are received
 * in the order of their numbers, which begin with 0 and count modulo 2^8. FT_PROTOCOL also: the
 * number is further ahead than a window, or came before. */
int ft_rxq_admit_number(struct ft_rxq *, const struct ft_header *, uint8_t number,
                        struct ft_rxq_node **out);
/* See expect in struct ft_transport_ops. */
void ft_rxq_expect(struct ft_rxq *, const struct ft_header *, void *to);
/* Where a caller expects the message that was just admitted. NULL: no caller does. If `data` of the
 * node points there, ft_rxq_expect() or an unbind may move it, with what has arrived, to the
 * landing buffer, until the message is received. */
void *ft_rxq_expected(struct ft_rxq_node *);
/* True if no caller expects the message of this header yet, but the one before it was expected.
 * Then a caller will probably expect it soon. */
bool ft_rxq_early(struct ft_rxq *, const struct ft_header *);
/* The payload is complete. Messages may become ready in any order; they are received in the order
 * of admission, or of their numbers. The node may be gone after the call. */
void ft_rxq_ready(struct ft_rxq *, struct ft_rxq_node *);
/* Memory where an admitted message may be kept. It costs nothing until it is written. */
unsigned char *ft_rxq_landing(struct ft_rxq_node *);
/* Gives back the pages of large landing buffers that no message has needed since the last call. */
void ft_rxq_trim(struct ft_rxq *);

/* recv, peek and release of struct ft_transport_ops. FT_AGAIN: no message is ready. msg->owner is
 * the node, and must still be so at release. */
int ft_rxq_recv(struct ft_rxq *, uint64_t ctx, unsigned lane, struct ft_msg *);
int ft_rxq_peek(struct ft_rxq *, uint64_t ctx, unsigned lane, struct ft_header *);
void ft_rxq_release(struct ft_rxq *, struct ft_msg *);
/* Looks at the channel's next message without taking it. Returns NULL if none is ready. */
const struct ft_rxq_node *ft_rxq_first(struct ft_rxq *, uint64_t ctx, unsigned lane);
/* For `consumed`, if the sender cannot be told now that the places of the window are free: keeps
 * them with the channel, also when its context is unbound. */
void ft_rxq_owe(struct ft_rxq *, struct ft_rxq_node *);
/* Takes all that is owed of one channel. False: nothing is. */
bool ft_rxq_take_owed(struct ft_rxq *, uint64_t *ctx, unsigned *lane, unsigned *places);
/* True if the channel has admitted messages, or is not bound. */
bool ft_rxq_queued(struct ft_rxq *, uint64_t ctx, unsigned lane);

/* Writes, for each channel, the places of messages that came by this way and are not consumed.
 * Returns the number of channels that have any, or max + 1 if these are more than max. */
unsigned ft_rxq_uses(const struct ft_rxq *, unsigned way, struct ft_rxq_use *out, unsigned max);

int ft_txq_open(struct ft_txq *, struct ft_rxq_set *);
void ft_txq_close(struct ft_txq *); /* idempotent */
/* For ft_rxq_set_bind() and ft_rxq_set_unbind(). FT_NOMEM. */
int ft_txq_bind(struct ft_txq *, uint64_t ctx);
void ft_txq_unbind(struct ft_txq *, uint64_t ctx);
/* Returns the context's block. NULL: it is not bound. */
struct ft_txq_ctx *ft_txq_look_up(struct ft_txq *, uint64_t ctx);
static inline struct ft_txq_ctx *ft_txq_find(struct ft_txq *q, uint64_t ctx)
{
    return q->last && q->last->ctx == ctx ? q->last : ft_txq_look_up(q, ctx);
}
int ft_txq_refuse(uint64_t ctx, unsigned lane); /* FT_INVAL with its sentence */
/* Takes the places of one more message. FT_AGAIN: too few are free. FT_INVAL: there is no such
 * lane, or the context is not bound here. */
static inline int ft_txq_take_places(struct ft_txq *q, uint64_t ctx, unsigned lane, unsigned places)
{
    struct ft_txq_ctx *c = lane < FT_LANES_ALL ? ft_txq_find(q, ctx) : NULL;
    if (!c)
        return ft_txq_refuse(ctx, lane);
    if (c->outstanding[lane] + places > ft_rxq_places(q->set, lane))
        return FT_AGAIN;
    c->outstanding[lane] = (uint8_t)(c->outstanding[lane] + places);
    q->outstanding += places;
    return FT_OK;
}
static inline void ft_txq_subtract(uint8_t *count, unsigned places)
{
    *count = (uint8_t)(*count - ft_min(*count, places));
}
/* The other side has consumed messages, or they were not sent after all. Ignores unknown channels,
 * because the other side may name any. */
static inline void ft_txq_put_places(struct ft_txq *q, uint64_t ctx, unsigned lane, unsigned places)
{
    q->outstanding -= (unsigned)ft_min(q->outstanding, places);
    struct ft_txq_ctx *c = lane < FT_LANES_ALL ? ft_txq_find(q, ctx) : NULL;
    if (c)
        ft_txq_subtract(&c->outstanding[lane], places);
}

/* A link with several ways to the other side, such as connections. A place of the window belongs to
 * the way of its message. `way` is less than `ways`. Otherwise these are like the functions above
 * without a way. */
int ft_txq_open_ways(struct ft_txq *, struct ft_rxq_set *, unsigned ways);
int ft_txq_take_way(struct ft_txq *, unsigned way, uint64_t ctx, unsigned lane, unsigned places);
void ft_txq_put_way(struct ft_txq *, unsigned way, uint64_t ctx, unsigned lane, unsigned places);
/* All places of a way are free. `places`: how many its messages took, also of unbound contexts.
 * Then ft_txq_hold() takes those that really are in use. */
void ft_txq_clear(struct ft_txq *, unsigned way, unsigned places);
/* Also for unknown channels. FT_PROTOCOL: the window has not so many. */
int ft_txq_hold(struct ft_txq *, unsigned way, uint64_t ctx, unsigned lane, unsigned places);
/* The number of a channel's next message, from 0, modulo 2^8: the channel's messages go by several
 * ways; see ft_rxq_admit_number(). */
uint8_t ft_txq_number(struct ft_txq *, uint64_t ctx, unsigned lane);

/* ft_txq_take_places() and ft_txq_put_places(), where every message takes one place. */
static inline int ft_txq_take(struct ft_txq *q, uint64_t ctx, unsigned lane)
{
    return ft_txq_take_places(q, ctx, lane, 1);
}
static inline void ft_txq_put(struct ft_txq *q, uint64_t ctx, unsigned lane)
{
    ft_txq_put_places(q, ctx, lane, 1);
}
/* Memory of FT_RXQ_SMALL_BYTES that belongs to the channel, to build one small message in. NULL: it
 * is not bound. */
void *ft_txq_small(struct ft_txq *, uint64_t ctx, unsigned lane);

#endif

/*
 * Inside algo only: the common splitting of a collective into pieces, the order of ranks along a
 * ring, builders of steps and the sums behind cost_ns. Everything here is pure.
 */
#ifndef FT_ALGO_PARTS_H
#define FT_ALGO_PARTS_H

#include "algo/algo.h"

#define FT_KIND_BIT(kind) (1u << (kind))
/* all that algorithms do; the engine sends and receives by itself */
#define FT_KINDS_COLLECTIVE (FT_KIND_BIT(FT_SEND) - 1)

/* ---- splitting (split.c) --------------------------------------------------------------------- */

#define FT_SMALLEST_SHARE 16 /* lanes do not cut messages below chunk / 16 */
/* The longest message is chunk_bytes, or what `pulled` makes of them, rounded down to elements and,
 * from 1 KiB on, to cache lines. Splits `elems` elements into pieces that are sent as `parts`
 * messages each, and sets nlanes, nsteps and piece_*. With less than a full chunk a message for
 * every lane, messages get smaller, down to 1/16 of a chunk. */
void ft_plan_split(struct ft_plan *, const struct ft_tuning *, size_t elems, size_t parts,
                   uint64_t piece_steps);
/* The same when `items` equal jobs a piece (such as the peers of an all-to-all) may run on any
 * lane: each (job, piece) is one step. */
void ft_plan_split_items(struct ft_plan *, const struct ft_tuning *, size_t elems, uint64_t items);

/* Where one step stands: bytes [off, off + len) of the vector that was split, and which of the
 * piece's steps it is. */
struct ft_piece {
    uint64_t index; /* of the piece */
    uint64_t k;     /* step of the piece, or job */
    size_t off, len;
};
bool ft_piece_at(const struct ft_plan *, int lane, uint64_t index, struct ft_piece *);
bool ft_piece_at_items(const struct ft_plan *, int lane, uint64_t index, uint64_t items,
                       struct ft_piece *);
/* Part i of `parts` equal ones (the last ones shorter or empty), in the coordinates of the split
 * vector. */
struct ft_range {
    size_t off, len;
};
struct ft_range ft_piece_part(const struct ft_plan *, const struct ft_piece *, size_t parts,
                              size_t i);
/* Elements of the whole vector: count for AllReduce, Broadcast and Reduce, nranks * count for the
 * others. */
size_t ft_total_elems(const struct ft_view *, const struct ft_coll *);

/* One piece, one lane: for messages of several whole blocks, which are short enough. Steps place
 * their bytes themselves. */
void ft_plan_one_piece(struct ft_plan *, uint64_t steps);
/* Is half of nranks blocks (rounded up) one message? */
bool ft_half_fits(const struct ft_view *, const struct ft_coll *, const struct ft_tuning *);
/* A scaled input is rounded for the peer, but not where it is combined at home: with types narrower
 * than the arithmetic two ranks would not combine the same operands. */
bool ft_rounds_on_the_way(const struct ft_coll *);

/* ---- order of ranks (order.c): host by host, within a host by rank --------------------------- */

int ft_order_pos(const struct ft_view *, int rank);
int ft_order_rank(const struct ft_view *, int pos);
int ft_host_size(const struct ft_view *, int host);
int ft_host_size_max(const struct ft_view *);
static inline int ft_wrap(int64_t i, int n)
{
    return (int)(((i % n) + n) % n);
}

static inline bool ft_is_pow2(int n)
{
    return (n & (n - 1)) == 0;
}
static inline int ft_log2_floor(int n)
{
    return 31 - __builtin_clz((unsigned)n);
}
static inline int ft_log2_ceil(int n)
{
    return n > 1 ? ft_log2_floor(n - 1) + 1 : 0;
}

/* Folding to a power of two p: of the first 2 * rest positions the even ones are folded into the
 * next odd one. */
struct ft_fold {
    int rest;    /* nranks - p */
    int place;   /* among the p; -1: folded away */
    int partner; /* rank of the other one of the pair; -1: none */
};
struct ft_fold ft_fold_of(const struct ft_view *);
int ft_fold_rank(const struct ft_view *, int place);

/* ---- builders of steps ----------------------------------------------------------------------- */

static inline struct ft_ref ft_at(enum ft_buf buf, size_t off)
{
    return (struct ft_ref){buf, off};
}
static inline void ft_send_to(struct ft_step *s, int peer)
{
    s->send_to[s->nsend++] = peer;
}
static inline void ft_recv_from(struct ft_step *s, int peer)
{
    s->recv_from[s->nrecv++] = peer;
}
static inline void ft_fwd_to(struct ft_step *s, int peer)
{
    s->fwd_to[s->nfwd++] = peer;
}

/* ---- costs (tuning.c) ------------------------------------------------------------------------ */

/* What the rank that finishes last has behind it, on the critical path. */
struct ft_work {
    double hops_local, hops_remote;   /* messages waited for one after another */
    double bytes_local, bytes_remote; /* through the busiest rank's links of each sort */
    /* messages of other hosts that come at the same time as those waited for */
    double crowd;
    /* ranks of a host that use its network at once; 0 counts as 1 */
    double flows;
    double reduced; /* bytes */
    double steps;   /* of the engine, one after another */
    /* What only ranks of a host with nothing but TCP between them feel, see loopback.c */
    /* of steps: without a message; of bytes_local: copied at home */
    double copies, copied;
    double share_steps, share_bytes; /* of the average rank in what is above; 0 counts as 1 */
    bool several;                    /* one step has several peers */
    /* what comes is read to where it goes, and not forwarded from there */
    bool straight;
};
/* ranks for each core, at least 1: scales all local work */
double ft_work_sharing(const struct ft_view *, const struct ft_tuning *);
double ft_work_ns(const struct ft_view *, const struct ft_tuning *, const struct ft_work *);
/* loopback.c */
double ft_work_loopback_ns(const struct ft_view *, const struct ft_tuning *,
                           const struct ft_work *);
/* Work of `hops` exchanges in a row in each of which every rank moves `bytes`, in whole
 * messages. */
struct ft_work ft_work_rounds(const struct ft_view *, const struct ft_tuning *, double hops,
                              double bytes);

/* `rounds` exchanges of `bytes` with partners 1, 2, 4, ... positions away: the first ones stay
 * inside a host. */
struct ft_work ft_work_doubling(const struct ft_view *, const struct ft_tuning *, int rounds,
                                double bytes);
/* Bytes that a host's ranks all send at once: to another host if there is one. */
void ft_work_add_bytes(const struct ft_view *, struct ft_work *, double bytes);
/* Of ft_plan_split() for so many bytes of one part. One that is tiny counts half, as do those
 * beside the first that are cut for other lanes; 0 bytes (the caller counts messages) are one. */
double ft_messages(const struct ft_tuning *, double bytes);

/* ---- the algorithms -------------------------------------------------------------------------- */

extern const struct ft_algo ft_algo_local, ft_algo_ring, ft_algo_rd, ft_algo_hd, ft_algo_tree,
    ft_algo_direct, ft_algo_bruck, ft_algo_twolevel, ft_algo_flat;

#endif

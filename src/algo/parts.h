/*
 * Private to algo: the common splitting of a collective into pieces, the order of ranks along a
 * ring, builders of steps, and the sums behind cost_ns. Everything here is pure.
 */
#ifndef FT_ALGO_PARTS_H
#define FT_ALGO_PARTS_H

#include "algo/algo.h"

#define FT_KIND_BIT(kind) (1u << (kind))
/* all kinds that algorithms do; sends and receives need no algorithm */
#define FT_KINDS_COLLECTIVE (FT_KIND_BIT(FT_SEND) - 1)

/* ---- splitting (split.c) --------------------------------------------------------------------- */

#define FT_SMALLEST_SHARE 16 /* messages are not cut below chunk / 16 to fill lanes */
/* Splits `elems` elements into pieces and sets nlanes, nsteps and piece_*. Each piece is sent as
 * `parts` messages. The longest message is chunk_bytes (or ft_tuning_first_bytes() if `pulled`),
 * rounded down to whole elements and, from 1 KiB on, to cache lines. If there are too few full
 * chunks to fill all lanes, messages get shorter, down to 1/16 of a chunk. */
void ft_plan_split(struct ft_plan *, const struct ft_tuning *, size_t elems, size_t parts,
                   uint64_t piece_steps);
/* The same for `items` equal jobs per piece (such as the peers of an all-to-all) that may run on
 * any lane. Each (job, piece) is one step. */
void ft_plan_split_items(struct ft_plan *, const struct ft_tuning *, size_t elems, uint64_t items);

/* The position of one step: bytes [off, off + len) of the vector that was split, and the number of
 * the step within its piece. */
struct ft_piece {
    uint64_t index; /* number of the piece */
    uint64_t k;     /* number of the step within the piece, or number of the job */
    size_t off, len;
};
bool ft_piece_at(const struct ft_plan *, int lane, uint64_t index, struct ft_piece *);
bool ft_piece_at_items(const struct ft_plan *, int lane, uint64_t index, uint64_t items,
                       struct ft_piece *);
/* Part i of `parts` equal parts of a piece (the last parts may be shorter or empty). Offsets are
 * those of the split vector. */
struct ft_range {
    size_t off, len;
};
struct ft_range ft_piece_part(const struct ft_plan *, const struct ft_piece *, size_t parts,
                              size_t i);
/* Elements of the whole vector: `count` for AllReduce, Broadcast and Reduce, nranks * count for the
 * other kinds. */
size_t ft_total_elems(const struct ft_view *, const struct ft_coll *);

/* Makes a plan of one piece and one lane. For algorithms whose messages are several whole blocks,
 * which are short enough. Their steps compute byte offsets themselves. */
void ft_plan_one_piece(struct ft_plan *, uint64_t steps);
/* Returns true if half of nranks blocks (rounded up) fit in one message. */
bool ft_half_fits(const struct ft_view *, const struct ft_coll *, const struct ft_tuning *);
/* Returns true if ranks would combine different operands. A scaled input is rounded to its type
 * when it is sent to a peer, but not when its own rank combines it. This matters for types that are
 * narrower than the arithmetic. */
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

/* Folding to a power of two p. Among the first 2 * rest positions, each even one is folded into the
 * next odd one. */
struct ft_fold {
    int rest;    /* nranks - p */
    int place;   /* place among the p; -1: folded away */
    int partner; /* rank of the other position of the pair; -1: none */
};
struct ft_fold ft_fold_of(const struct ft_view *);
int ft_fold_rank(const struct ft_view *, int place);

/* ---- double binary trees (tree.c) ------------------------------------------------------------ */

/* The neighbours of one node in tree 0 or 1, as distances from the root in the order of ranks.
 * parent -1: it is the root. */
struct ft_tree_node {
    int parent, nchildren, child[2];
};
struct ft_tree_node ft_tree_at(int distance, int nranks, int which);

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

/* The work on the critical path of the rank that finishes last. */
struct ft_work {
    double hops_local, hops_remote;   /* messages that are waited for, one after another */
    double bytes_local, bytes_remote; /* bytes through the busiest rank's links of each kind */
    /* messages from other hosts that arrive at the same time as those waited for */
    double crowd;
    /* ranks of a host that use its network at the same time; 0 counts as 1 */
    double flows;
    double reduced; /* bytes */
    double steps;   /* steps of the engine, one after another */
    /* The following fields matter only if ranks of a host have only TCP between them: see
     * loopback.c. */
    /* copies: those of `steps` that have no message; copied: those of bytes_local that a rank
     * copies within its own memory */
    double copies, copied;
    /* the average rank's share of `steps` and of `bytes_local`; 0 counts as 1 */
    double share_steps, share_bytes;
    bool several; /* some step has several peers */
    /* messages are received directly into their destination and not forwarded */
    bool straight;
};
/* ranks per core, at least 1; scales all work of CPUs */
double ft_work_sharing(const struct ft_view *, const struct ft_tuning *);
double ft_work_ns(const struct ft_view *, const struct ft_tuning *, const struct ft_work *);
/* in loopback.c */
double ft_work_loopback_ns(const struct ft_view *, const struct ft_tuning *,
                           const struct ft_work *);
/* The work of `hops` exchanges, one after another. In each exchange every rank moves `bytes`, in
 * whole messages. */
struct ft_work ft_work_rounds(const struct ft_view *, const struct ft_tuning *, double hops,
                              double bytes);

/* The work of `rounds` exchanges of `bytes` with partners 1, 2, 4, ... positions away. The first
 * exchanges stay inside a host. */
struct ft_work ft_work_doubling(const struct ft_view *, const struct ft_tuning *, int rounds,
                                double bytes);
/* Adds bytes that all ranks of a host send at the same time, to another host if there is one. */
void ft_work_add_bytes(const struct ft_view *, struct ft_work *, double bytes);
/* Number of messages that ft_plan_split() makes of so many bytes of one part. A tiny message counts
 * half. Messages that exist only to fill further lanes count half. 0 bytes give 1: the caller
 * counts its messages itself. */
double ft_messages(const struct ft_tuning *, double bytes);

/* ---- the algorithms -------------------------------------------------------------------------- */

extern const struct ft_algo ft_algo_local, ft_algo_ring, ft_algo_rd, ft_algo_hd, ft_algo_tree,
    ft_algo_direct, ft_algo_bruck, ft_algo_twolevel, ft_algo_flat;

#endif

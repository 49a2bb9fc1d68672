/*
 * algo: pure functions from (view, collective) to a plan and from (plan, lane, step) to one
 * exchange. An algorithm never sees an error, a buffer or a socket; it depends on base alone and is
 * proved by the symbolic checker in tests/algo.
 *
 * A plan has lanes, which run concurrently and give pipelining; a lane's steps run one after
 * another. One step is:
 *   1. send:   `send` bytes of a buffer, as they were before the step, go to one or several peers;
 *   2. recv:   one message of len_bytes from each recv_from[k];
 *   3. combine: the received messages and the local operand `src` (if any) are reduced, or copied
 * if there is just one;
 *   4. store:  the result goes to `dst` (if any) and, without being stored, to each fwd_to[k].
 * Messages between two ranks on one lane are matched in order, one send or forward to one receive
 * of the same length. A transfer of 0 bytes does not happen, on either side. No message is longer
 * than ft_tuning.chunk_bytes. An algorithm must finish even when a link holds one unconsumed
 * message a lane and direction, if a step can take its messages out of the links before all its
 * forwards have room (one result in hand); with a window of two messages no hand is needed. The
 * checker runs it so. The steps of a lane take effect in order: what a step stores, a later step of
 * its lane can read. Lanes touch disjoint memory. `send` is read before `dst` of the same step is
 * written, even where they overlap.
 *
 * FT_BUF_IN is the user's send buffer, FT_BUF_OUT the receive buffer (they may be the same memory
 * in place, in NCCL's sense of in place for each collective: a plan must be right both ways, and
 * never writes IN unless it aliases OUT). FT_BUF_TMP is plan->tmp_bytes of scratch. Offsets are
 * bytes. What a kind that reduces reads from IN, by `src` or by `send`, gets the operation's scale
 * applied: each rank's input enters each reduction from IN and once.
 */
#ifndef FT_ALGO_H
#define FT_ALGO_H

#include "base/base.h"

#define FT_LANES 8      /* most lanes of a collective */
#define FT_STEP_PEERS 8 /* most sends, forwards or receives of one step */

enum ft_buf { FT_BUF_NONE, FT_BUF_IN, FT_BUF_OUT, FT_BUF_TMP };
struct ft_ref {
    enum ft_buf buf;
    size_t off;
};

enum ft_step_flags {
    /* Each receiver of `send` takes it in its step of the same lane and number: a sender may then
     * wait until it was used, which cannot end in a circle, for of all ranks' steps those of the
     * lowest number can always go on. */
    FT_STEP_MEETS = 2,
    /* the result holds every rank's contribution: apply the divisor when storing or forwarding */
    FT_STEP_FINAL = 1,
};

struct ft_step {
    size_t send_bytes;
    struct ft_ref send;
    int nsend;
    int send_to[FT_STEP_PEERS];
    size_t len_bytes; /* of each received message, of src and of the result */
    int nrecv;
    int recv_from[FT_STEP_PEERS]; /* combined in this order, src before recv_from[src_at] */
    struct ft_ref src;
    int src_at;
    struct ft_ref dst;
    int nfwd;
    int fwd_to[FT_STEP_PEERS];
    unsigned flags;
};

/* A measured choice of a tuning table, see rules.c. It is digested as it lies in memory, and has no
 * holes. */
struct ft_rule {
    uint64_t from_bytes, to_bytes; /* of the larger buffer, both inclusive */
    int32_t nranks, nhosts;
    uint32_t chunk_bytes; /* at most what is configured; 0: as configured */
    int8_t chunks;        /* 0: as configured */
    int8_t over;          /* enum ft_over */
    int8_t kind, algo;    /* algo: index into ft_algos */
};
#define FT_RULES 384
/* Where a rule holds: everywhere; where ranks of a host share memory; where they have nothing but a
 * network, which is TCP, any, or number over - FT_OVER_NAMED of the names that the table has. */
enum ft_over { FT_OVER_ALL, FT_OVER_SHM, FT_OVER_TCP, FT_OVER_NETWORK, FT_OVER_NAMED };
#define FT_NETWORKS 8 /* most names */

/* Can what is only moved be read in its sender's memory, by one copy of its receiver's? Slow: two
 * copies by way of a slot take less of a core. */
enum ft_pulls { FT_PULLS_NONE, FT_PULLS, FT_PULLS_SLOW };

/* What shapes a plan besides view and collective; equal on all ranks (checked at initialisation by
 * digest). */
struct ft_tuning {
    size_t chunk_bytes;
    int chunks;
    size_t several_bytes; /* chunk_bytes where there are several lanes */
    const char *choice;   /* FTCCL_ALGO's text */
    /* of one message of n bytes: latency + n * per byte; and of reducing n bytes */
    struct ft_costs {
        double local_latency_ns, local_ns_per_byte;   /* ranks of one host */
        double remote_latency_ns, remote_ns_per_byte; /* ranks of different hosts */
        /* ranks of one host that have nothing but the network, see ft_tuning_links() */
        double loopback_latency_ns, loopback_ns_per_byte;
        /* there: sending and receiving one, beside the time until it is there */
        double loopback_message_ns;
        double reduce_ns_per_byte;
        double step_ns;     /* the engine's own cost of a step */
        int cores_per_host; /* ranks beyond it share: costs are scaled up */
    } costs;
    enum ft_pulls pulls; /* a communicator's, too */
    /* The network between the ranks: an enum ft_over, and whether its endpoint moves the bytes. Not
     * digested: a communicator's, see ft_tuning_network() */
    int network;
    bool rdma;
    /* ranks of one host need not go over the network; not digested: it is a communicator's, see
     * ft_tuning_links() */
    bool local_links;
    /* an AlltoAll's or AllGather's peers have a lane each, however few `chunks`: all lanes take
     * messages as long; likewise */
    bool peer_lanes;
    unsigned given; /* costs that the table sets, by their place in it */
    /* may a table name this network? NULL: TCP alone */
    bool (*is_network)(const char *name);
    int nnetworks;
    char networks[FT_NETWORKS][FT_TRANSPORT_NAME_BYTES]; /* padded with zeros */
    int nrules;
    struct ft_rule rules[FT_RULES]; /* the first nrules */
};
void ft_tuning_default(struct ft_tuning *tuning);
/* The defaults, what the parameters say, and the table that FTCCL_TUNE_FILE names, in which names
 * of networks stand that is_network knows. */
int ft_tuning_read(struct ft_tuning *tuning, bool (*is_network)(const char *name));
/* A communicator's network: rules over this name hold, and its costs where the table sets none
 * (NULL: those of TCP). Before ft_tuning_links(). */
void ft_tuning_network(struct ft_tuning *tuning, const char *name, bool rdma,
                       const struct ft_network_costs *costs);
/* What a communicator counts with, the same on all its ranks. With FT_LINKS_SOME a message inside a
 * host costs what one over loopback does, because two ranks of a host have nothing else. With
 * FT_LINKS_LOOPBACK all ranks are on one host and have nothing else: there, but for RDMA, nothing
 * is on its way while a core computes, and a message costs more than its bytes up to a good length,
 * so that what `chunks` lanes would have in flight goes as one message (of at most FT_CHUNK_MOST)
 * on one lane. */
enum ft_links { FT_LINKS_LOCAL, FT_LINKS_SOME, FT_LINKS_LOOPBACK };
void ft_tuning_links(struct ft_tuning *tuning, enum ft_links links);
#define FT_CHUNK_MOST (8u << 20)
/* longest message then, and where `pulls` makes it longer; of a tuning as it was read */
size_t ft_tuning_first_bytes(const struct ft_tuning *tuning);
/* longest message of a call */
size_t ft_tuning_chunk(const struct ft_tuning *tuning, enum ft_kind kind);
/* Reads a table written by perf/tune: lines "name value" for costs, "best KIND ranks=N hosts=N ..."
 * for measured choices (see docs/algorithms.md). Unknown names and bad values are refused by
 * name. */
int ft_tuning_load(struct ft_tuning *tuning, const char *path);
uint64_t ft_tuning_digest(const struct ft_tuning *tuning);
/* of what a table sets alone, for people to compare */
uint64_t ft_tuning_table_digest(const struct ft_tuning *tuning);

struct ft_plan {
    const struct ft_algo *algo;
    struct ft_coll coll;
    const struct ft_view *view;
    size_t esize;
    int nlanes;
    uint64_t nsteps; /* of each lane; steps in which a rank has nothing to do are empty */
    size_t tmp_bytes;
    /* set before it is split: its messages are read in their senders' memory, and longer, see
     * ft_tuning_chunk() */
    bool pulled;
    /* The common splitting into pieces, see ft_plan_split(): each lane works on pieces lane, lane +
     * nlanes, ... */
    size_t split_elems; /* elements of the vector that is split */
    size_t piece_elems; /* elements of one piece; the last may be shorter */
    uint64_t npieces;
    uint64_t piece_steps; /* steps an algorithm takes for one piece */
    int param[4];         /* the algorithm's own */
};

/* One algorithm, for one or more kinds. All functions are pure and O(nranks) or better. */
struct ft_algo {
    const char *name;
    unsigned kinds; /* bit per enum ft_kind */
    bool (*fits)(const struct ft_view *, const struct ft_coll *, const struct ft_tuning *);
    /* Predicted time of the whole collective; the selection takes the lowest. */
    double (*cost_ns)(const struct ft_view *, const struct ft_coll *, const struct ft_tuning *);
    /* fills what follows `esize` in struct ft_plan */
    int (*plan)(struct ft_plan *, const struct ft_tuning *);
    void (*step)(const struct ft_plan *, int lane, uint64_t index, struct ft_step *);
};

extern const struct ft_algo *const ft_algos[]; /* NULL-terminated registry */

/* Chooses what was measured to be best, else by cost, among those that fit and that tuning->choice
 * allows, and plans. FT_USAGE when the choice leaves none, with the sentence set by ft_fail(). The
 * view must outlive the plan. */
int ft_algo_select(const struct ft_view *, const struct ft_coll *, const struct ft_tuning *,
                   struct ft_plan *);
/* The same for one named algorithm. */
int ft_algo_plan(const struct ft_algo *, const struct ft_view *, const struct ft_coll *,
                 const struct ft_tuning *, struct ft_plan *);
double ft_algo_cost_ns(const struct ft_plan *, const struct ft_tuning *);
/* One exchange of the plan. `step` is zeroed first. */
void ft_plan_step(const struct ft_plan *, int lane, uint64_t index, struct ft_step *step);
/* What `ftccl-info --plan` prints: each candidate with its cost, the chosen one, lanes, steps, this
 * rank's first steps. */
int ft_algo_explain(FILE *out, const struct ft_view *, const struct ft_coll *,
                    const struct ft_tuning *);

#endif

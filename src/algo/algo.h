/*
 * algo: pure functions. They map (view, collective) to a plan, and (plan, lane, step) to one
 * exchange. An algorithm never sees an error, a buffer or a socket. It depends on base alone. The
 * symbolic checker in tests/algo proves every algorithm.
 *
 * A plan has lanes. Lanes run concurrently, which gives pipelining. The steps of a lane run one
 * after another. One step is:
 *   1. send:   `send_bytes` bytes at `send`, as before the step, go to one or several peers;
 *   2. recv:   one message of len_bytes arrives from each recv_from[k];
 *   3. combine: the received messages and the local operand `src` (if any) are reduced, or copied
 *      if there is only one of them;
 *   4. store:  the result goes to `dst` (if any), and to each fwd_to[k] without being stored.
 * Messages between two ranks on one lane match in order: one send or forward matches one receive of
 * the same length. A transfer of 0 bytes does not happen, on either side. No message is longer than
 * ft_tuning.chunk_bytes.
 *
 * An algorithm must finish even if a link holds only one unconsumed message per lane and direction,
 * provided that a step can take its messages out of the links before all its forwards have room (it
 * holds one result meanwhile). With room for two messages a step need not hold a result. The
 * checker tests these conditions.
 *
 * The steps of a lane take effect in order: a later step of the lane can read what an earlier step
 * stored. Lanes use disjoint memory. `send` is read before `dst` of the same step is written, even
 * if they overlap.
 *
 * FT_BUF_IN is the user's send buffer and FT_BUF_OUT the receive buffer. They are the same memory
 * if the call is in place, in NCCL's sense of in place for each collective. A plan must be right in
 * both cases, and it never writes IN unless IN aliases OUT. FT_BUF_TMP is plan->tmp_bytes of
 * scratch memory. Offsets are in bytes. If the collective reduces, the operation's scale is applied
 * to what `src` or `send` reads from IN: each rank's input enters each reduction from IN, and once.
 */
#ifndef FT_ALGO_H
#define FT_ALGO_H

#include "base/base.h"

#define FT_LANES 8      /* maximum number of lanes of a collective */
#define FT_STEP_PEERS 8 /* maximum number of sends, forwards or receives of one step */

enum ft_buf { FT_BUF_NONE, FT_BUF_IN, FT_BUF_OUT, FT_BUF_TMP, FT_BUFS };
struct ft_ref {
    enum ft_buf buf;
    size_t off;
};

enum ft_step_flags {
    /* Each receiver of `send` receives it in its own step of the same lane and number. The sender
     * may then wait until the message was used. Such waits cannot deadlock: among all ranks'
     * unfinished steps, those with the lowest number can always proceed. */
    FT_STEP_MEETS = 2,
    /* the result contains every rank's contribution: apply the divisor when storing or
     * forwarding */
    FT_STEP_FINAL = 1,
};

struct ft_step {
    size_t send_bytes;
    struct ft_ref send;
    int nsend;
    int send_to[FT_STEP_PEERS];
    size_t len_bytes; /* length of each received message, of src and of the result */
    int nrecv;
    int recv_from[FT_STEP_PEERS]; /* combined in this order; src comes before recv_from[src_at] */
    struct ft_ref src;
    int src_at;
    struct ft_ref dst;
    int nfwd;
    int fwd_to[FT_STEP_PEERS];
    unsigned flags;
};

/* A measured choice from a tuning table: see rules.c. The digest covers its bytes in memory, so it
 * has no padding. */
struct ft_rule {
    uint64_t from_bytes, to_bytes; /* range of the larger buffer's length, both ends inclusive */
    int32_t nranks, nhosts;
    uint32_t chunk_bytes; /* 0: the configured value, which is also the maximum */
    int8_t chunks;        /* 0: the configured value */
    int8_t over;          /* enum ft_over */
    int8_t kind, algo;    /* kind: enum ft_kind; algo: index into ft_algos */
};
#define FT_RULES 384
/* Where a rule holds: everywhere; where ranks of a host share memory; where they have nothing but a
 * network, which is TCP, any, or number over - FT_OVER_NAMED of the names that the table has. */
enum ft_over { FT_OVER_ALL, FT_OVER_SHM, FT_OVER_TCP, FT_OVER_NETWORK, FT_OVER_NAMED };
#define FT_NETWORKS 8 /* most names */

/* The measured choices of a table. A process has one; tunings point at it. */
struct ft_rules {
    /* may a table name this network? NULL: TCP alone */
    bool (*is_network)(const char *name);
    int nnetworks;
    char networks[FT_NETWORKS][FT_TRANSPORT_NAME_BYTES]; /* padded with zeros */
    int nrules;
    struct ft_rule rule[FT_RULES]; /* the first nrules are valid */
};

/* Can a receiver read a message that is only moved directly from its sender's memory, with one
 * copy? FT_PULLS_SLOW: yes, but such a read takes more CPU time than two copies through a slot. */
enum ft_pulls { FT_PULLS_NONE, FT_PULLS, FT_PULLS_SLOW };

/* The inputs of a plan besides view and collective. They are equal on all ranks: ranks compare
 * digests at initialisation. */
struct ft_tuning {
    size_t chunk_bytes;
    int chunks;
    size_t several_bytes; /* chunk_bytes for a plan with several lanes */
    int chunks_before;    /* `chunks` before a rule raised it; 0: none has */
    bool chunk_is_ruled;  /* a rule names chunk_bytes */
    const char *choice;   /* the text of FTCCL_ALGO */
    /* A message of n bytes costs latency + n * ns_per_byte. Reducing n bytes costs n *
     * reduce_ns_per_byte. */
    struct ft_costs {
        double local_latency_ns, local_ns_per_byte;   /* ranks of one host */
        double remote_latency_ns, remote_ns_per_byte; /* ranks of different hosts */
        /* for ranks of one host that have only TCP between them: see ft_tuning_links() */
        double loopback_latency_ns, loopback_ns_per_byte;
        /* CPU time to send and receive one such message, in addition to its latency */
        double loopback_message_ns;
        double reduce_ns_per_byte;
        double step_ns; /* the engine's overhead per step */
        /* with more ranks per host than this, ranks share cores, and costs are scaled up */
        int cores_per_host;
    } costs;
    enum ft_pulls pulls; /* set per communicator */
    /* The network between the ranks: an enum ft_over, and whether its endpoint moves the bytes. Not
     * digested: a communicator's, see ft_tuning_network() */
    int network;
    bool rdma;
    /* True if ranks of one host have another transport than TCP. Set per communicator, so it is not
     * part of the digest: see ft_tuning_links(). */
    bool local_links;
    /* True if each peer of an AlltoAll or AllGather gets a lane of its own, even with few `chunks`.
     * All lanes then take messages of the same length. Set per communicator, not part of the
     * digest. */
    bool peer_lanes;
    unsigned given;               /* costs that the table sets, by their place in it */
    const struct ft_rules *rules; /* of the table; NULL: none */
};
void ft_tuning_default(struct ft_tuning *tuning);
/* Reads the defaults, then the parameters, then the table that FTCCL_TUNE_FILE names, its measured
 * choices into *rules. */
int ft_tuning_read(struct ft_tuning *tuning, struct ft_rules *rules,
                   bool (*is_network)(const char *name));
/* A communicator's network: rules over this name hold, and its costs where the table sets none
 * (NULL: those of TCP). Before ft_tuning_links(). */
void ft_tuning_network(struct ft_tuning *tuning, const char *name, bool rdma,
                       const struct ft_network_costs *costs);
/* Adapts the tuning to a communicator's links; the result is the same on all its ranks.
 * FT_LINKS_SOME: two ranks of some host have only TCP between them, so a message inside a host
 * costs as much as one over loopback. FT_LINKS_LOOPBACK: all ranks are on one host and have only
 * TCP between them. Then no message is in transit while a core computes, and below a considerable
 * length a message costs more than its bytes. So one lane sends one message (of at most
 * FT_CHUNK_MOST) instead of the messages that `chunks` lanes would have in flight. */
enum ft_links { FT_LINKS_LOCAL, FT_LINKS_SOME, FT_LINKS_LOOPBACK };
void ft_tuning_links(struct ft_tuning *tuning, enum ft_links links);
#define FT_CHUNK_MOST (8u << 20)
/* The longest message in the case of FT_LINKS_LOOPBACK, of plans with `pulled`, and of reductions
 * between two ranks. The links have it from the tuning that ft_tuning_read() returned; a rule does
 * not make it longer. */
size_t ft_tuning_first_bytes(const struct ft_tuning *tuning);
/* Longest message of a collective of this kind. A ring of two ranks that reduces may have longer
 * ones, of up to ft_tuning_first_bytes(). */
size_t ft_tuning_chunk(const struct ft_tuning *tuning, enum ft_kind kind);
/* Reads a table written by perf/tune. Its lines are "name value" for costs and "best KIND ranks=N
 * hosts=N ..." for measured choices (see docs/algorithms.md), which are added to *rules. *rules
 * must outlive the tuning and its copies. An unknown name or a bad value gives FT_INVAL and a
 * sentence that quotes it. */
int ft_tuning_load(struct ft_tuning *tuning, struct ft_rules *rules, const char *path);
uint64_t ft_tuning_digest(const struct ft_tuning *tuning);
/* digest of the values that a table sets; people compare it */
uint64_t ft_tuning_table_digest(const struct ft_tuning *tuning);

struct ft_plan {
    const struct ft_algo *algo;
    struct ft_coll coll;
    const struct ft_view *view;
    size_t esize;
    int nlanes;
    uint64_t nsteps; /* steps of each lane; a step may be empty on a rank */
    size_t tmp_bytes;
    /* Receivers read messages from the senders' memory, and messages are longer: see
     * ft_tuning_chunk(). Set before the plan is split. */
    bool pulled;
    /* The common splitting into pieces: see ft_plan_split(). Lane l works on pieces l, l + nlanes,
     * ... */
    size_t split_elems; /* elements of the vector that is split */
    size_t piece_elems; /* elements of one piece; the last piece may be shorter */
    uint64_t npieces;
    uint64_t piece_steps; /* steps that the algorithm needs for one piece */
    int param[4];         /* private to the algorithm */
};

/* One algorithm, for one or more kinds of collective. All functions are pure and take O(nranks)
 * time or less. */
struct ft_algo {
    const char *name;
    unsigned kinds; /* one bit per enum ft_kind */
    bool (*fits)(const struct ft_view *, const struct ft_coll *, const struct ft_tuning *);
    /* predicted time of the whole collective; the selection takes the lowest */
    double (*cost_ns)(const struct ft_view *, const struct ft_coll *, const struct ft_tuning *);
    /* fills the fields of struct ft_plan after `esize` */
    int (*plan)(struct ft_plan *, const struct ft_tuning *);
    void (*step)(const struct ft_plan *, int lane, uint64_t index, struct ft_step *);
};

extern const struct ft_algo *const ft_algos[]; /* NULL-terminated registry */

/* Chooses an algorithm and makes its plan. Candidates are the algorithms that do the kind, fit the
 * view and are allowed by tuning->choice. A measured choice wins; otherwise the lowest predicted
 * cost wins. Returns FT_USAGE and sets the sentence if there is no candidate. The view must outlive
 * the plan. */
int ft_algo_select(const struct ft_view *, const struct ft_coll *, const struct ft_tuning *,
                   struct ft_plan *);
/* Makes a plan with this algorithm. Returns FT_USAGE if it does not do the collective. */
int ft_algo_plan(const struct ft_algo *, const struct ft_view *, const struct ft_coll *,
                 const struct ft_tuning *, struct ft_plan *);
double ft_algo_cost_ns(const struct ft_plan *, const struct ft_tuning *);
/* Writes one exchange of the plan to `step`, whose old content is lost. */
void ft_plan_step(const struct ft_plan *, int lane, uint64_t index, struct ft_step *step);
/* Whether the root of a broadcast copies messages once for all its receivers on this host, see
 * core/run/lanes_copy.c. */
bool ft_plan_copies(const struct ft_plan *plan);
/* Prints the text of `ftccl-info --plan`: each candidate with its cost, the chosen algorithm, its
 * lanes and steps, and this rank's first steps. */
int ft_algo_explain(FILE *out, const struct ft_view *, const struct ft_coll *,
                    const struct ft_tuning *);

/* ---- measuring links one by one (passes.c) --------------------------------------------------- */

/* Which links: those of the ring, those of both trees of an AllReduce. */
enum ft_passes { FT_PASSES_RING = 1, FT_PASSES_TREE = 2 };
#define FT_TRANSFERS 16 /* most transfers of a rank */

/* One transfer between this rank and another. In a slot a rank has at most one. */
struct ft_transfer {
    int slot, peer;
    bool sends;
};
/* Cuts the links into slots whose transfers do not meet (Falcon, 9.1): 2 for a ring, 3 if the
 * number of ranks is odd; for a tree 4 passes, in each of which a pair takes one slot in either
 * direction. Writes the transfers of view->rank, by rising slots, and returns their number.
 * `passes`: an OR of enum ft_passes. */
int ft_passes_plan(const struct ft_view *, unsigned passes, struct ft_transfer out[FT_TRANSFERS],
                   int *nslots);

#endif

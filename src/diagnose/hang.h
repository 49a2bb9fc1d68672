/*
 * The analysis of hangs, private to this folder: what its parts share. index.c sorts a snapshot and
 * drops what cannot be true; graph.c says which operation waits for which other one; causes.c finds
 * ranks that did not come; waits.c follows the waits of ranks that did; failures.c looks at
 * communicators that have failed, lost.c at links that lose messages; text.c writes sentences;
 * hang.c puts them in order.
 *
 * A member is named by its position in `members`, which is sorted by communicator and rank. A node
 * is an operation that blocks: node c is the collective at the head of communicator c, node
 * ncomms + m the first send or receive of member m.
 */
#ifndef FT_DIAGNOSE_HANG_H
#define FT_DIAGNOSE_HANG_H

#include "diagnose.h"

/* An engine is followed into this many blocked operations. More are not looked at, so that a
 * hostile snapshot cannot make the graph larger than this many edges a member. */
#define FT_HANG_PLACES 32
#define FT_HANG_NAMED 64 /* links and ranks without a file that are told from new ones */

/* Where a member is with the collective at the head of its communicator, or with its first send or
 * receive. */
enum ft_hang_stage {
    FT_STAGE_FINISHED,
    FT_STAGE_GONE,
    FT_STAGE_LEFT, /* it has closed its end */
    FT_STAGE_STOPPED,
    FT_STAGE_FROZEN,
    FT_STAGE_FAILED,
    FT_STAGE_NOT_CALLED,
    FT_STAGE_NOT_STARTED,
    FT_STAGE_ELSEWHERE, /* a send or receive of it comes first */
    FT_STAGE_RUNS,
};

struct ft_hang_comm {
    uint64_t ctx;
    int first, count; /* its members */
    int first_seat, nseats;
    int nranks;
    uint64_t head; /* 0: nobody is left */
    uint64_t sig;  /* what most members call there, if sig_known */
    bool sig_known;
};

struct ft_hang_engine {
    int first, count;             /* its members, in by_engine */
    int first_place, nplaces;     /* the nodes in which it is, in places */
    uint64_t called_ns, moved_ns; /* its latest call, and the latest sign of an operation */
    int latest;                   /* member of that call; -1: none */
    bool gave_up;                 /* a communicator has failed here */
    bool engaged;                 /* it is in an operation that does not block yet */
    bool named;                   /* by a verdict */
};

struct ft_hang_node {
    uint64_t since_ns; /* the oldest wait; 0: the operation does not block */
    int first_edge, nedges;
    int from, via; /* an edge that leads here: its node and member; -1: none */
    int circle;    /* number of its strongly connected part */
    bool proven;   /* a member's process is gone or stopped, or calls differ */
    bool moves;    /* a member has moved or come within the patience */
    bool loose;    /* a member has not come and is in no other node */
    bool busy;     /* a member has not come and is about something that goes on */
};

/* A member of the node's operation is still in node `to`. */
struct ft_hang_edge {
    int to, via;
};

struct ft_hang_turn {
    uint64_t since_ns;
    int node;
};

struct ft_hang_link {
    int engine;
    bool sender;
    uint64_t peer, messages;
};

/* What a wait leads to. `from` is where the walk began. peer: position, or -1. */
struct ft_hang_find {
    enum ft_verdict_kind kind;
    int at, peer, from;
};

struct ft_hang {
    const struct ft_snapshot *snap;
    uint64_t now_ns, patience_ns;
    const struct ft_snap_member **members;
    int *comm_of, *by_engine, *mark;
    int nmembers, ncomms, nnodes, nids, nlinks, nseats;
    struct ft_hang_comm *comms;
    struct ft_hang_engine *engines;
    const struct ft_snap_engine **ids; /* sorted by id */
    const struct ft_snap_seat **seats; /* sorted by communicator and rank */
    struct ft_hang_link *links;
    struct ft_hang_node *nodes;
    struct ft_hang_edge *places; /* of all engines: the node, and the member that is in it */
    struct ft_hang_turn *order;  /* nodes that block, the oldest first */
    int nplaces, norder;
    struct ft_hang_edge *edges;
    size_t nedges, edge_room;
    struct ft_hang_find *finds;
    int nfinds;
    struct {
        uint64_t a, b;
    } named[FT_HANG_NAMED];
    int nnamed;
    /* The verdict that is being written, and the members that it names; -1: no file. */
    struct ft_verdict *out, draft;
    int draft_at[FT_CULPRITS], draft_peer[FT_CULPRITS];
    int draft_comm, draft_node, capacity, found;
    int draft_agree; /* enum ft_agree_call: the named have not come to such an agreement; else 0 */
    const struct ft_hang_find *draft_walk; /* how it was found; NULL: without a walk */
    bool draft_known;                      /* it would name somebody who has been named before */
};

/* ---- index.c --------------------------------------------------------------------------------- */

int ft_hang_open(struct ft_hang *, const struct ft_snapshot *, uint64_t patience_ns);
void ft_hang_close(struct ft_hang *);
/* The position of a rank; -1: it has no file. */
int ft_hang_find(const struct ft_hang *, int comm, int rank);
const struct ft_snap_seat *ft_hang_seat(const struct ft_hang *, int comm, int rank);
int ft_hang_engine(const struct ft_hang *, uint64_t id); /* -1: none */
/* Ranks of a communicator that have no file: writes at most `capacity`, returns their number. */
int ft_hang_missing(const struct ft_hang *, int comm, int *ranks, int capacity);
enum ft_hang_stage ft_hang_stage(const struct ft_hang *, int member);
/* Within patience. A time in the future counts as now, 0 as unknown. */
bool ft_hang_recent(const struct ft_hang *, uint64_t at_ns);
/* Compares the messages that one end has sent with those that the other has received. */
enum ft_pending { FT_PENDING_UNKNOWN, FT_PENDING_NONE, FT_PENDING_SOME };
enum ft_pending ft_hang_count(const struct ft_hang *, int from, int to, uint64_t *sent,
                              uint64_t *received); /* between engines */
enum ft_pending ft_hang_pending(const struct ft_hang *, int sender, int receiver, uint64_t *sent,
                                uint64_t *received);
/* The process of `member` in another communicator: a position; -1: it is not in that one. */
int ft_hang_member(const struct ft_hang *, int comm, int engine);
/* The sender has called a collective to which the receiver has not come. Messages of it may wait,
 * so pending ones do not show that any were lost. */
bool ft_hang_is_ahead(const struct ft_hang *, int sender, int receiver);
static inline const struct ft_snap_engine *ft_hang_process(const struct ft_hang *h, int member)
{
    return &h->snap->engines[h->members[member]->engine];
}
static inline bool ft_hang_runs_p2p(const struct ft_snap_member *m)
{
    return m->running_seq == 0 && (ft_sig_call(m->running_sig) & 15) >= FT_SEND &&
           m->p2p_called > m->p2p_done;
}

/* ---- graph.c --------------------------------------------------------------------------------- */

/* Finds what blocks. */
int ft_hang_find_nodes(struct ft_hang *);
/* Finds what waits for what. */
int ft_hang_find_edges(struct ft_hang *);
/* Numbers the strongly connected parts: circles and single nodes. */
int ft_hang_find_circles(struct ft_hang *);
/* The member is open, has not failed, and its process is there. */
bool ft_hang_takes_part(const struct ft_hang *, int member);
/* Something of the member's engine has moved within patience, or was called, unless has_called. */
bool ft_hang_is_active(const struct ft_hang *, int member, bool has_called);
static inline bool ft_hang_is_p2p(const struct ft_hang *h, int node)
{
    return node >= h->ncomms;
}
/* The communicator of a node. */
static inline int ft_hang_comm(const struct ft_hang *h, int node)
{
    return ft_hang_is_p2p(h, node) ? h->comm_of[node - h->ncomms] : node;
}
/* The rank for which a send or receive waits: its position, or -1 */
static inline int ft_hang_peer(const struct ft_hang *h, int member)
{
    return ft_hang_find(h, h->comm_of[member], h->members[member]->wait.peer);
}
/* True if wait.peer names another rank of the communicator. */
static inline bool ft_hang_peer_is_valid(const struct ft_snap_member *m)
{
    return m->wait.peer >= 0 && m->wait.peer < m->nranks && m->wait.peer != m->rank;
}
/* The ranks of both members wait for each other, one to send and the other to receive. */
bool ft_hang_are_pair(const struct ft_hang *, int member, int peer);

/* ---- causes.c -------------------------------------------------------------------------------- */

/* Notes what the members of a communicator call. */
void ft_hang_vote(struct ft_hang *, int comm);
/* Processes that are gone or stopped, and calls that differ. */
void ft_hang_prove(struct ft_hang *, int node);
/* In a communicator that has failed: goes to an operation in which calls differ. */
bool ft_hang_find_mismatch(struct ft_hang *, int comm);
/* Names the members that call something else than most. True: there are any. node -1: the
 * communicator has failed. */
bool ft_hang_accuse_callers(struct ft_hang *, int comm, int node);
/* Ranks that have not come and are nowhere else. gave_up: those with a failed communicator, or the
 * others. */
void ft_hang_accuse_loose(struct ft_hang *, int node, bool gave_up);
/* The communicators that cannot open because a process is missing. */
void ft_hang_accuse_late(struct ft_hang *);
/* Who does not come to an agreement (Agree, Shrink, Grow) for which others wait. */
void ft_hang_accuse_silent(struct ft_hang *);
/* What a member calls as the collective at the head. False: it is not known. */
bool ft_hang_member_sig(const struct ft_hang *, int member, uint64_t *sig);

/* ---- waits.c --------------------------------------------------------------------------------- */

/* All that are to come have come: follows their waits. */
void ft_hang_follow(struct ft_hang *, int node);
/* The nodes wait for each other. */
void ft_hang_judge_circle(struct ft_hang *, const struct ft_hang_turn *nodes, int count);

/* ---- lost.c ---------------------------------------------------------------------------------- */

#define FT_HANG_PAIRS 256 /* lost links that are looked at */
struct ft_hang_pair {
    int at, peer; /* engines; `at` sends, or has noticed it */
};
/* Adds a link to n others, unless it is there already. Returns their number. */
int ft_hang_add_pair(struct ft_hang_pair *, int n, int at, int peer);
/* Adds the links that ranks of a communicator have lost, as their own processes noticed it. */
int ft_hang_find_lost(const struct ft_hang *, int comm, struct ft_hang_pair *, int n);
/* Hosts that are cut off from the others: what they share has failed. */
#define FT_HANG_CUT 64
struct ft_hang_cut {
    uint64_t hosts[FT_HANG_CUT];
    int n;
};
/* The other host has got what was sent since nothing moves any more, as TCP tells: what has not
 * arrived waits until the process reads. */
bool ft_hang_is_delivered(const struct ft_hang *, int from, int to);
/* If these lost links, and all others in the snapshot, lead out of one host, to several others if
 * there are several, then that host is cut off. If they lead from some hosts to some others, and
 * none leads from one to another on the same side, then the path between the sides is. The smaller
 * side is returned; n 0: neither. */
struct ft_hang_cut ft_hang_find_cut(const struct ft_hang *, const struct ft_hang_pair *, int n);
/* Names all members on these hosts, in a verdict that begins and ends here. */
void ft_hang_accuse_cut(struct ft_hang *, int comm, int node, const struct ft_hang_cut *);

/* ---- failures.c ------------------------------------------------------------------------------ */

/* Communicators that have failed, and whose ranks have not gone on: processes that are gone or
 * stopped, and else what the library has found. */
void ft_hang_accuse_failed(struct ft_hang *);

/* ---- hang.c: the verdict that is being written ----------------------------------------------- */

void ft_hang_begin(struct ft_hang *, enum ft_verdict_kind, int comm, int node);
/* Names a member, or the link from it to a peer, unless a verdict has named it. */
void ft_hang_accuse(struct ft_hang *, int member, int peer);
void ft_hang_accuse_missing(struct ft_hang *, int comm, int rank);
void ft_hang_end(struct ft_hang *); /* keeps it if it names anybody */
/* Keeps it also if there is nobody to name. */
void ft_hang_end_unnamed(struct ft_hang *);

/* ---- text.c ---------------------------------------------------------------------------------- */

void ft_hang_say(struct ft_hang *);     /* the sentence of the draft */
void ft_hang_explain(struct ft_hang *); /* its chain */

#endif

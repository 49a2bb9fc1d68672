/*
 * group: the top floor of core. Communicators come about here (init, split, shrink, grow), tell
 * each other what happened to them (notices), agree on who is left, and go on without those that
 * died (retry). A rank's engine with all floors is opened, turned and closed here, too (rank.c).
 */
#ifndef FT_GROUP_H
#define FT_GROUP_H

#include "core/run/run.h"

/* an operation that has waited this long tells its peers where it is */
#define FT_NOTICE_AFTER_NS 200000000u
/* in communicators of up to so many ranks such notices go to everybody */
#define FT_ANNOUNCE_ALL 16

struct ft_agreement;
struct ft_growth;

/* What a rank said when it destroyed its end of a communicator: the last agreement whose outcome it
 * knew, and whether it knew that of policy retry. `asked`: it said no more than that it has left,
 * when it was asked. */
struct ft_gone {
    bool left, retried, asked;
    uint32_t decided;
};

/* Policy retry, see retry.c. */
struct ft_retry {
    uint64_t ctx;                   /* of the next view, while it is bound; 0: it is not */
    uint64_t leaving_ns;            /* since when an abort waits for the agreement */
    struct ft_agreement *agreement; /* NULL: not entered */
    bool decided;                   /* it was */
    uint64_t told_op; /* the last operation that a rank which ended its part had committed */
};

/* What this floor keeps for each communicator; freed with it. */
struct ft_group {
    pthread_mutex_t split_lock;
    uint32_t children;  /* splits made so far */
    atomic_int growing; /* a thread is in ft_grow_run() */

    unsigned char *notices; /* [nranks] what is still to be told to whom, see notice.c */
    int notices_left;
    int said_wait;        /* for whom this rank said last that it waits, -1: for nobody */
    struct ft_gone *gone; /* [nranks] */

    uint32_t agreements;   /* that this rank's user has come to */
    uint32_t decided;      /* the last that was decided */
    unsigned char *failed; /* [nranks] 1: agreed to be dead */
    bool agreed;        /* there was an agreement: `failed` is what counts, also if it is empty */
    bool fenced;        /* the others agreed to go on without this rank, and it knows */
    uint64_t agreed_op; /* the last collective that is complete on every live rank, as agreed */

    struct ft_retry retry;
    int *lost,
        nlost; /* [nranks] those that the last change of view left out, as they were before */
    uint64_t failing_ns; /* when it began to fail, as ft_cause_turn() saw it; 0: it does not */
};

/* What it keeps for each engine. */
struct ft_group_state {
    struct ft_agreement *agreements;
    int undecided; /* of them */
    struct ft_growth *growths;
    /* of the last communicators that were closed */
    struct ft_closed {
        uint64_t ctx;
        uint32_t decided;
        bool retried, moved;
    } closed[64];
    unsigned nclosed;
    /* the last children that peers gave up */
    struct ft_abandoned_child {
        uint64_t ctx;
        uint64_t peer; /* engine id */
    } abandoned[64];
    unsigned nabandoned;
};

/* ---- a rank: an engine with all floors (rank.c) ---------------------------------------------- */

int ft_rank_open(const struct ft_engine_config *config, struct ft_engine **out);
void ft_rank_close(struct ft_engine *engine); /* not by a driver; the struct stays until unref */
bool ft_rank_turn(struct ft_engine *engine);  /* the caller holds the engine; true: it moved */

/* ---- communicators (comm.c) ------------------------------------------------------------------ */

/* Makes the communicator of a bound context. Copies view's arrays. The caller gets the one
 * reference. */
int ft_comm_open(struct ft_engine *engine, const struct ft_view *view, uint64_t ctx,
                 const char *name, const struct ft_comm_limits *limits, struct ft_comm **out);
/* Waits (bounded) until its works are finished and peers have taken what was sent. Then only close
 * is legal. */
int ft_comm_flush(struct ft_comm *comm);
int ft_comm_finalize(struct ft_comm *comm); /* and returns how the communicator ended */
/* Ends what is pending with FT_ABORTED and tells the peers. Does not wait. */
void ft_comm_abort(struct ft_comm *comm);
/* Ends what is pending with FT_REVOKED, on every rank. Does not wait. */
void ft_comm_revoke(struct ft_comm *comm, const char *why);
/* Detaches from the engine, closes the engine with its last communicator, drops the reference. */
void ft_comm_close(struct ft_comm *comm);
bool ft_comm_turn(struct ft_comm *comm);            /* one turn; true if something moved */
bool ft_comm_is_active(const struct ft_comm *comm); /* it has something to do */
void ft_comm_tick(struct ft_comm *comm);            /* the slow part, about once a millisecond */
void ft_comm_peer_lost(struct ft_comm *comm, struct ft_peer *peer, int reason, bool proof);
/* Ranks known to have failed: agreed, or else as far as this rank can tell. Returns how many;
 * writes at most capacity. */
int ft_comm_failed(struct ft_comm *comm, int *ranks, int capacity);

/* ---- notices (notice.c) ---------------------------------------------------------------------- */

void ft_notice_reset(struct ft_comm *comm);
bool ft_notice_turn(struct ft_comm *comm);           /* takes control messages, sends due ones */
void ft_notice_hear(struct ft_comm *comm, int rank); /* takes those of one rank that are here */
/* Of its failure somebody has not been told that cannot find it out otherwise. */
bool ft_notice_owes(const struct ft_comm *comm);
void ft_notice_broadcast(struct ft_comm *comm); /* the comm's failure goes to every rank */
void ft_notice_announce(struct ft_comm *comm);  /* where we are goes to those we wait for */
void ft_notice_bye(struct ft_comm *comm);       /* to peers with a link, once */

/* ---- the first cause (cause.c) --------------------------------------------------------------- */

/* A turn of a communicator that has failed, and whose users do not know it yet. */
void ft_cause_turn(struct ft_comm *comm);
static inline bool ft_cause_is_open(const struct ft_comm *comm) /* there is such a turn to do */
{
    return ft_comm_state(comm) == FT_COMM_ASKING ||
           (ft_comm_state(comm) == FT_COMM_FAILED && comm->failure.verdict == FT_OK);
}
/* Whom the rank waits for that keeps this one waiting, and so on, as far as they have said. */
int ft_cause_of_wait(const struct ft_comm *comm, int rank);

/* ---- init (init.c), split (reshape.c) -------------------------------------------------------- */

/* Bootstraps an engine and its first communicator; blocks up to the init bound. */
struct ft_init {
    const unsigned char (*ids)[FT_UNIQUE_ID_BYTES];
    int nids, nranks, rank;
    const char *name, *transports; /* NULL: by parameter */
    struct ft_comm_limits limits;
    const atomic_int *cancel;
    bool joins;               /* a communicator that grows; the id is that of the grow */
    const int64_t *key;       /* a joiner's rankKey; NULL: none */
    struct ft_device_gpu gpu; /* of the user's thread */
};
int ft_init_run(const struct ft_init *init, struct ft_comm **out);
/* Settings of a communicator that must be the same on all its ranks: into the digest of an
 * endpoint, and as flags whose bitwise AND over the ranks is 0 where they differ. */
void ft_endpoint_settings(struct ft_endpoint *endpoint, const struct ft_comm_limits *limits);
static inline uint64_t ft_settings_flags(const struct ft_comm_limits *limits)
{
    return (limits->verify ? 1 : 2) | (limits->retry ? 4 : 8) | (limits->concurrent ? 16 : 32);
}
static inline bool ft_settings_same(uint64_t flags)
{
    return (flags & 3) && (flags & 12) && (flags & 48);
}
/* Everybody's item of `words` 32-bit words, by an AllGather in call order with the communicator's
 * other operations; mine is all[rank * words]. `mark` tells kinds of exchanges apart in
 * signatures. */
int ft_exchange(struct ft_comm *comm, int32_t *all, size_t words, int mark);
/* Collective over the parent; *out is NULL without a color. Blocks up to the init bound. */
int ft_split_run(struct ft_comm *parent, int color, int key, const char *name,
                 const struct ft_comm_limits *limits, struct ft_comm **out);

/* ---- policy retry (retry.c) ------------------------------------------------------------------ */

/* of a failed communicator with the policy */
bool ft_retry_turn(struct ft_comm *comm);
/* The view stays as it is from now on: a failure is for good until unpin. Any thread; waits for a
 * retry under way. */
void ft_retry_pin(struct ft_comm *comm);
void ft_retry_unpin(struct ft_comm *comm);

/* ---- agreements (agreement.c) ---------------------------------------------------------------- */

/* One agreement of a communicator: membership's state machine and whom it talks to. */
struct ft_agreement {
    struct ft_agreement *next;
    uint64_t ctx; /* of the communicator, and its number there, from 1 */
    uint32_t instance;
    /* ft_agree_state(); release after the consequences were drawn, acquire by the waiting user */
    atomic_int state;
    struct ft_engine *engine;
    struct ft_comm *comm; /* NULL: closed; kept to answer those that ask late */
    struct ft_agree *agree;
    int nranks;
    struct ft_peer **peers; /* [nranks], own rank: NULL */
    unsigned char *known;   /* [nranks] enum ft_evidence as the agreement was last told */
};

/* The communicator's next agreement; last_op is at least that of this rank. Blocks within the
 * protocol's bounds. FT_OK and the decision, which lives until the communicator's 15th agreement
 * after it or its end; FT_FENCED: this rank is not part of what was agreed; FT_NOQUORUM, FT_USAGE,
 * FT_ABORTED. */
int ft_comm_agree(struct ft_comm *comm, const struct ft_agree_input *input,
                  const struct ft_decision **out);
/* Its parts: this rank comes to the agreement; it is over, or this rank waits no longer
 * (FT_ABORTED, FT_TIMEOUT); what came of it (FT_AGAIN: nothing yet). Only the wait blocks. */
int ft_agreement_enter(struct ft_comm *comm, const struct ft_agree_input *input,
                       struct ft_agreement **out);
int ft_agreement_wait(const struct ft_comm *comm, struct ft_agreement *agreement);
int ft_agreement_result(const struct ft_comm *comm, const struct ft_agreement *agreement,
                        const struct ft_decision **out);
/* the caller holds the engine: the next agreement and the child that it makes, by its context,
 * belong together, whatever other threads call. */
int ft_agreement_enter_next_held(struct ft_comm *comm, const struct ft_agree_input *input,
                                 struct ft_agreement **out);
uint64_t ft_agreement_child_held(const struct ft_comm *comm, enum ft_agree_kind kind);
/* Enters the agreement of that number; the caller holds the engine.
 * FT_AGREEMENT_RETRY is each context's own of policy retry, apart from those to which users come.
 */
#define FT_AGREEMENT_RETRY UINT32_MAX
int ft_agreement_enter_held(struct ft_comm *comm, uint32_t instance,
                            const struct ft_agree_input *input, struct ft_agreement **out);
void ft_agreement_receive(struct ft_engine *engine, struct ft_peer *peer,
                          const struct ft_ctl_in *in);
void ft_agreement_tick(struct ft_engine *engine);
/* the communicator closes, or leaves its context for that of its next view */
void ft_agreement_detach(struct ft_comm *comm, bool moves);
void ft_agreement_close(struct ft_engine *engine);

#include "core/group/reshape.h"

#endif

/*
 * group: the top floor of core. Communicators are made here (init, split, shrink, grow). Their
 * ranks tell each other what happened (notices), agree on who is left, and go on without ranks that
 * died (retry). rank.c opens, turns and closes an engine with all its floors.
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
struct ft_pause;

/* What a rank said when it destroyed its end of a communicator: the last agreement whose outcome it
 * knew, and whether it knew the outcome of policy retry. `asked`: it said only that it has left, in
 * answer to a question. */
struct ft_gone {
    bool left, retried, asked;
    uint32_t decided;
    uint64_t left_ns; /* when this rank heard that it left */
};

/* Policy retry, see retry.c. */
struct ft_retry {
    uint64_t ctx;                   /* of the next view, while this rank listens on it; else 0 */
    uint64_t leaving_ns;            /* since when an abort waits for the agreement */
    struct ft_agreement *agreement; /* NULL: not entered */
    bool decided;                   /* the agreement was decided */
    uint64_t told_op;               /* the last operation committed on a rank that has ended */
};

/* What this floor keeps for each communicator; freed with it. */
struct ft_group {
    pthread_mutex_t split_lock;
    uint32_t children;  /* splits made so far */
    atomic_int growing; /* a thread is in ft_grow_run() */

    unsigned char *notices; /* [nranks] the notices that each rank must still get, see notice.c */
    int notices_left;
    int said_wait;        /* the rank for which this one said last that it waits; -1: none */
    struct ft_gone *gone; /* [nranks] */

    uint32_t agreements;   /* number of agreements that this rank's user has entered */
    uint32_t decided;      /* number of the last decided one */
    unsigned char *failed; /* [nranks] 1: agreed to be dead */
    bool agreed;           /* there was an agreement, so `failed` holds, even if it is empty */
    bool fenced;           /* this rank knows that the others agreed to go on without it */
    uint64_t agreed_op;    /* the agreed number of the last collective complete on all live ranks */

    struct ft_retry retry;
    int *lost,
        nlost; /* [nranks] the ranks that the last change of view left out, by their old numbers */
    struct ft_pause *pause; /* NULL: no validation is under way */
    uint64_t failing_ns;    /* when ft_cause_turn() first saw the failure; 0: there is none */
};

/* What it keeps for each engine. */
struct ft_group_state {
    struct ft_agreement *agreements;
    int undecided; /* number of agreements without a decision */
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
void ft_rank_close(
    struct ft_engine *engine); /* a driver must not call it; the struct stays until unref */
bool ft_rank_turn(struct ft_engine *engine); /* the caller holds the engine; true: it moved */

/* ---- communicators (comm.c) ------------------------------------------------------------------ */

/* Makes the communicator of a context on which this rank already listens. Copies view's arrays. The
 * caller gets the only reference. */
int ft_comm_open(struct ft_engine *engine, const struct ft_view *view, uint64_t ctx,
                 const char *name, const struct ft_comm_limits *limits, struct ft_comm **out);
/* Waits (bounded) until its works are finished and its peers have taken what was sent. After it,
 * only close is legal. */
int ft_comm_flush(struct ft_comm *comm);
int ft_comm_finalize(struct ft_comm *comm); /* flushes, and returns how the communicator ended */
/* FT_OK, or the status with which the communicator failed; ft_fail_text() says why. */
int ft_comm_verdict(struct ft_comm *comm);
/* It has not failed, and no operation is pending. Any thread may call it. */
bool ft_comm_is_quiet(struct ft_comm *comm);
/* Ends what is pending with FT_ABORTED and tells the peers. Does not wait. */
void ft_comm_abort(struct ft_comm *comm);
/* Ends what is pending with FT_REVOKED, on every rank. Does not wait. */
void ft_comm_revoke(struct ft_comm *comm, const char *why);
/* Detaches from the engine, closes the engine with its last communicator, drops the reference. */
void ft_comm_close(struct ft_comm *comm);
bool ft_comm_turn(struct ft_comm *comm);            /* one turn; true if something moved */
bool ft_comm_is_active(const struct ft_comm *comm); /* it has something to do */
void ft_comm_tick(struct ft_comm *comm);            /* the slow part, about once a millisecond */
void ft_comm_watch_silence(struct ft_comm *comm);   /* after each round of heartbeats */
void ft_comm_peer_lost(struct ft_comm *comm, struct ft_peer *peer, int reason, bool proof);
/* Takes the notices of a peer whose receiving link ends. True: it has destroyed its end of this
 * communicator, which was opened after ft_engine_readmit() of the peer. */
bool ft_comm_peer_left(struct ft_comm *comm, const struct ft_peer *peer);
/* The ranks that have failed: by agreement, or without one as far as this rank knows. Returns their
 * number; writes at most capacity. */
int ft_comm_failed(struct ft_comm *comm, int *ranks, int capacity);

/* ---- notices (notice.c) ---------------------------------------------------------------------- */

void ft_notice_reset(struct ft_comm *comm);
bool ft_notice_turn(struct ft_comm *comm); /* takes control messages, sends due ones */
void ft_notice_hear(struct ft_comm *comm,
                    int rank); /* takes the notices of one rank that are here */
/* True if a rank that cannot find out the failure by itself has not been told yet. */
bool ft_notice_owes(const struct ft_comm *comm);
void ft_notice_broadcast(struct ft_comm *comm); /* every rank is told of the failure */
void ft_notice_announce(struct ft_comm *comm);  /* those we wait for are told where we are */
void ft_notice_bye(struct ft_comm *comm);       /* to peers with a link, once */
/* False: a link to a peer that has not left is being made, or has no room for a notice. */
bool ft_notice_can_leave(struct ft_comm *comm);

/* ---- the first cause (cause.c) --------------------------------------------------------------- */

/* The turn of a failed communicator whose users do not know of the failure yet. */
void ft_cause_turn(struct ft_comm *comm);
static inline bool ft_cause_is_open(
    const struct ft_comm *comm) /* the users do not know of the failure yet */
{
    return ft_comm_state(comm) == FT_COMM_ASKING ||
           (ft_comm_state(comm) == FT_COMM_FAILED && comm->failure.verdict == FT_OK);
}
/* Follows the chain of waits from `rank` as far as ranks have announced it, and returns its last
 * rank. */
int ft_cause_of_wait(const struct ft_comm *comm, int rank);

/* ---- init (init.c), split (reshape.c) -------------------------------------------------------- */

/* What a user chose for an engine and its first communicator. */
struct ft_settings {
    const char *transports; /* NULL: by parameter */
    struct ft_comm_limits limits;
    struct ft_device_gpu gpu; /* of the user's thread */
};
/* Opens an engine with a new id. key: of its links. */
int ft_init_engine(const struct ft_settings *settings, int rank,
                   const unsigned char key[FT_KEY_BYTES], struct ft_engine **out);
/* A communicator of engines that this one has learned, on a context on which it listens. */
struct ft_opening {
    const struct ft_endpoint *endpoint; /* [nranks] */
    int nranks, rank;
    uint64_t ctx, epoch;
    const char *name;
    const struct ft_comm_limits *limits;
};
int ft_init_open(struct ft_engine *engine, const struct ft_opening *opening, struct ft_comm **out);
/* Bootstraps an engine and its first communicator; blocks up to the init bound. */
struct ft_init {
    const unsigned char (*ids)[FT_UNIQUE_ID_BYTES];
    int nids, nranks, rank;
    const char *name;
    struct ft_settings settings;
    const atomic_int *cancel;
    bool joins;         /* it joins a communicator that grows; the id is that of the grow */
    const int64_t *key; /* a joiner's rankKey; NULL: none */
};
int ft_init_run(const struct ft_init *init, struct ft_comm **out);
/* The settings of a communicator that must be the same on all its ranks, as part of an endpoint's
 * digest and as flags. The bitwise AND of the flags of all ranks is 0 where they differ. */
void ft_endpoint_settings(struct ft_endpoint *endpoint, const struct ft_comm_limits *limits);
static inline uint64_t ft_settings_flags(const struct ft_comm_limits *limits)
{
    return (limits->verify ? 1 : 2) | (limits->retry ? 4 : 8) | (limits->concurrent ? 16 : 32);
}
static inline bool ft_settings_same(uint64_t flags)
{
    return (flags & 3) && (flags & 12) && (flags & 48);
}
/* Gathers `words` 32-bit words of each rank by an AllGather, in order with the communicator's other
 * operations. This rank's words are at all[rank * words]. `mark` tells kinds of exchanges apart in
 * signatures. */
int ft_exchange(struct ft_comm *comm, int32_t *all, size_t words, int mark);
/* Collective over the parent; *out is NULL without a color. Blocks up to the init bound. */
int ft_split_run(struct ft_comm *parent, int color, int key, const char *name,
                 const struct ft_comm_limits *limits, struct ft_comm **out);

/* ---- policy retry (retry.c) ------------------------------------------------------------------ */

/* turn of a failed communicator with policy retry */
bool ft_retry_turn(struct ft_comm *comm);
/* From now until unpin the view does not change, so a failure is final. Any thread may call it. It
 * waits for a retry that is under way. */
void ft_retry_pin(struct ft_comm *comm);
void ft_retry_unpin(struct ft_comm *comm);

/* ---- agreements (agreement.c) ---------------------------------------------------------------- */

/* One agreement of a communicator: the state machine of membership and the peers it talks to. */
struct ft_agreement {
    struct ft_agreement *next;
    uint64_t ctx; /* of the communicator, and its number there, from 1 */
    uint32_t instance;
    /* ft_agree_state(). Written with release after the decision was applied, read with acquire. */
    atomic_int state;
    struct ft_engine *engine;
    struct ft_comm *comm; /* NULL: closed; the agreement is kept to answer late questions */
    struct ft_agree *agree;
    int nranks;
    struct ft_peer **peers; /* [nranks], own rank: NULL */
    unsigned char *known;   /* [nranks] the enum ft_peer_evidence that it was told last */
};

/* Runs the communicator's next agreement; last_op is at least that of this rank. Blocks within the
 * protocol's bounds. Returns FT_OK and the decision, which lives until the communicator's 15th
 * agreement after this one, or its end; FT_FENCED if the others go on without this rank; or
 * FT_NOQUORUM, FT_USAGE, FT_ABORTED. */
int ft_comm_agree(struct ft_comm *comm, const struct ft_agree_input *input,
                  const struct ft_decision **out);
/* Its three parts. enter: this rank takes part. wait: blocks until the agreement is over or the
 * rank stops waiting (FT_ABORTED, FT_TIMEOUT). result: the outcome; FT_AGAIN: none yet. */
int ft_agreement_enter(struct ft_comm *comm, const struct ft_agree_input *input,
                       struct ft_agreement **out);
int ft_agreement_wait(const struct ft_comm *comm, struct ft_agreement *agreement);
int ft_agreement_result(const struct ft_comm *comm, const struct ft_agreement *agreement,
                        const struct ft_decision **out);
/* The caller holds the engine. So the next agreement and the context of the child that it makes
 * belong together, whatever other threads call. */
int ft_agreement_enter_next_held(struct ft_comm *comm, const struct ft_agree_input *input,
                                 struct ft_agreement **out);
uint64_t ft_agreement_child_held(const struct ft_comm *comm, enum ft_agree_kind kind);
/* Enters the agreement with that number. The caller holds the engine. FT_AGREEMENT_RETRY is the one
 * agreement of a context that policy retry uses; users have no part in it. */
#define FT_AGREEMENT_RETRY UINT32_MAX
int ft_agreement_enter_held(struct ft_comm *comm, uint32_t instance,
                            const struct ft_agree_input *input, struct ft_agreement **out);
void ft_agreement_receive(struct ft_engine *engine, struct ft_peer *peer,
                          const struct ft_ctl_in *in);
void ft_agreement_tick(struct ft_engine *engine);
/* The communicator closes, or moves to the context of its next view. */
void ft_agreement_detach(struct ft_comm *comm, bool moves);
void ft_agreement_close(struct ft_engine *engine);
/* This rank will never have the communicator of that context: it answers its agreements like one
 * that has left it. The caller holds the engine. */
void ft_agreement_decline(struct ft_engine *engine, uint64_t ctx);

/* ---- validation in place (validation.c, measure.c) ------------------------------------------- */

/* Looks for a request in the telemetry file; to be called about once a millisecond. */
void ft_validation_look(struct ft_engine *engine);
/* This rank leads the validation, or tells in its telemetry file why there is none. */
void ft_validation_begin(struct ft_engine *engine, const struct ft_ask *ask);
void ft_validation_receive(struct ft_engine *engine, struct ft_peer *peer,
                           const struct ft_ctl_in *in);
/* One turn of a communicator with group->pause. */
bool ft_validation_turn(struct ft_comm *comm);
void ft_validation_drop(struct ft_comm *comm); /* the communicator fails or closes */

#include "core/group/reshape.h"
#include "core/group/member.h"

#endif

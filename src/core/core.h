/*
 * core: communicators, operations and the engine that turns them. An engine belongs to one rank;
 * the communicators that come from it by split share it, with its links and its NULL stream. All
 * state of an engine and its communicators is touched only by the thread that holds engine->drive;
 * users enter through the inbox. The way of an operation: api -> ft_entry_submit() -> inbox ->
 * comm's queue -> exec (lanes) or p2p -> transport -> op done -> stream.
 */
#ifndef FT_CORE_H
#define FT_CORE_H

#include "algo/algo.h"
#include "device/device.h"
#include "membership/membership.h"
#include "telemetry/telemetry.h"
#include "transport/transport.h"

#include <pthread.h>
#include <sched.h>

#define FT_TRANSPORTS_MAX 4
/* groups waiting on one communicator; the caller of one more turns the engine first */
#define FT_QUEUE_MAX 4096
#define FT_HISTORY 64 /* calls remembered for naming a mismatch */
#define FT_PLAN_CACHE 64
/* an engine looks for control messages, notices and puts every so many turns; if nothing moves at
 * the clock too */
#define FT_TURNS_OFTEN 16
/* and at the clock while things move, and at transports without links; a multiple of the above */
#define FT_TURNS_RARELY 64
/* engines of one group that its caller turns itself; the others are woken */
#define FT_KICK_MAX 16
/* an operation that has waited this long tells its peers where it is */
#define FT_NOTICE_AFTER_NS 200000000u
/* in communicators of up to so many ranks such notices go to everybody */
#define FT_ANNOUNCE_ALL 16

struct ft_comm;
struct ft_engine;
struct ft_peer;
struct ft_work;

/* ---- pools (op.c) ---------------------------------------------------------------------------- */

/* Freed structs of one kind; the first word of a freed one is the link. Any thread. */
struct ft_pooled {
    struct ft_pooled *next;
};
struct ft_pool {
    pthread_mutex_t lock;
    struct ft_pooled *free;
    int count;
};
void *ft_pool_get(struct ft_pool *pool); /* as it was freed but for the first word; NULL: empty */
bool ft_pool_put(struct ft_pool *pool, void *item); /* false: full, the caller frees it */

/* ---- operations (op.c) ----------------------------------------------------------------------- */

struct ft_op {
    struct ft_op *next;     /* in its work, then in the pool */
    struct ft_op *next_p2p; /* in the queue of its peer and direction */
    struct ft_work *work;
    struct ft_coll coll;
    struct ft_redop redop;
    /* ftcclScalarDevice: where the scale is read when the operation starts; else NULL */
    const void *scale_from;
    const void *in;
    void *out;
    /* collectives: number in the communicator; p2p: number between the two ranks */
    uint64_t seq, sig;
    enum ft_op_state state;
    int status;
    uint32_t record;     /* telemetry */
    struct ft_plan plan; /* collectives */
    int lanes_left;
    char *tmp; /* kept with the pooled struct; tmp_bytes is its size */
    size_t tmp_bytes;
    size_t offset; /* p2p: bytes handed to or taken from the link */
    /* what it stores in `out` is larger than caches and was not read before */
    bool cold_result;
    /* p2p: the first message, perhaps empty, has passed; comparing: the own digest is there */
    bool begun;
    bool sealed; /* p2p: crc is that of the next message, which found no room yet */
    uint32_t crc;
    /* operations of a group that this one does together, see fuse.c; NULL: none */
    struct ft_op *members;
    char *joint; /* their inputs, then their results */
    bool leaves; /* it is done, and results are on their way to the GPU */
    /* its buffers are the GPU's; NULL: the host's. Freed with the operation */
    struct ft_op_gpu *gpu;
    /* the collective before it, whose result this one compares; NULL: a call of the user's */
    struct ft_op *verifies;
    /* policy retry: the view for which it was called, and the engine of its root there */
    uint64_t epoch, root_id;
    struct ft_send sends[FT_WINDOW_P2P];
    /* put: number of the window, which may be deregistered before it runs; 0: a signal alone */
    uint64_t window;
    uint64_t window_offset; /* bytes */
    /* WaitSignal; freed with the operation */
    struct ft_signal_wait {
        int peer;
        uint64_t count;
    } * waits;
    int nwaits;
};

/* A window of one-sided puts; every rank of the communicator has one of the same number. */
struct ft_window {
    struct ft_window *next;
    uint64_t id;
    void *base;
    size_t len_bytes;
    uint64_t *sizes; /* [nranks] of the ranks' windows; NULL while it is registered */
};

/* Moves an operation on; the only place where its state changes. */
void ft_op_move(struct ft_op *op, enum ft_op_state to, int status);
struct ft_op *ft_op_new(void);      /* from the pool; NULL: no memory */
void ft_op_reset(struct ft_op *op); /* as new, but for its scratch */
void ft_op_free(struct ft_op *op);
void ft_op_trim(struct ft_op *op); /* gives scratch back that is too large to be kept */

/* The signature of a call: kind, type, operation, root and count in 64 bits, so that a peer's call
 * can be named. Counts from 2^36-1 up look alike. A receive has the signature of the send it
 * meets. */
#define FT_SPLIT_MARK 1  /* root of the AllGather with which a split exchanges colors */
#define FT_WINDOW_MARK 2 /* ... with which a window is registered */
uint64_t ft_sig(const struct ft_coll *coll);
/* An operation that compares results has the signature of their collective with these bits; no kind
 * has both of them. */
#define FT_SIG_VERIFY UINT64_C(12)
_Static_assert(FT_KINDS <= 12, "kinds are told from FT_SIG_VERIFY");
static inline uint64_t ft_sig_call(uint64_t sig)
{
    return (sig & FT_SIG_VERIFY) == FT_SIG_VERIFY ? sig & ~FT_SIG_VERIFY : sig;
}
/* "AllReduce(count 4, float32, sum)" */
void ft_sig_text(uint64_t sig, char *buf, size_t len_bytes);

#include "core/run/stream.h"
#include "core/run/gpu.h"

/* ---- communicators (comm.c, preserve.c, verify.c, lanes.c, p2p.c, notice.c, init.c) -----------
 */

/* HELD: the next operation compares a result that other lanes still work on; like an IDLE lane,
 * this one is at no step. */
enum ft_phase { FT_LANE_IDLE, FT_LANE_HELD, FT_LANE_EXCHANGE, FT_LANE_REDUCING, FT_LANE_SETTLE };

/* One lane of a communicator: walks through the steps of the work's collectives. */
struct ft_lane {
    enum ft_phase phase;
    struct ft_op *op;
    uint64_t index;
    const struct ft_step *step;
    struct ft_step planned;            /* `step` points here, or to one of a repeat's */
    unsigned sent, received, reserved; /* bit k: done for send_to[k], recv_from[k], fwd_to[k] */
    bool expects;                      /* the link may write the step's message where it goes */
    bool sealed;                       /* crc is that of what the step sends */
    uint32_t crc;
    struct ft_send sends[FT_STEP_PEERS];
    struct ft_msg msgs[FT_STEP_PEERS];
    void *slots[FT_STEP_PEERS];
    struct ft_header headers[FT_STEP_PEERS]; /* of the reserved slots */
    struct ft_device_req req;
};

static inline bool ft_lane_is_at_step(const struct ft_lane *lane)
{
    return lane->phase >= FT_LANE_EXCHANGE;
}

struct ft_p2p {
    struct ft_op *head, *tail;
    uint64_t seq;
}; /* one peer and direction */

/* Memory of one device that holds copies of inputs, and how far the copying is; see preserve.c. */
enum ft_preserve_state {
    FT_PRESERVE_NONE,
    FT_PRESERVE_SAVING,
    FT_PRESERVE_SAVED,
    FT_PRESERVE_RESTORING
};
struct ft_preserve {
    enum ft_preserve_state state;
    bool streaming;
    char *side;
    size_t side_bytes;
    const struct ft_op *op; /* copied next, from op_at of its range on, at side_at */
    size_t op_at, side_at;
    struct ft_device_req req;
};

/* What a rank said when it destroyed its end of a communicator: the last agreement whose outcome it
 * knew, and whether it knew that of policy retry. `asked`: it said no more than that it has left,
 * when it was asked. */
struct ft_gone {
    bool left, retried, asked;
    uint32_t decided;
};

#include "core/run/fast_path.h"

struct ft_comm_limits {
    int64_t op_timeout_ms, init_timeout_ms, suspect_ms, min_ranks, heartbeat_ms;
    bool preserve_input, verify, retry, hold;
};

struct ft_comm {
    struct ft_comm *next; /* in the engine's list */
    struct ft_engine *engine;
    atomic_int refs;
    uint64_t ctx;
    uint64_t opened_ns;
    char name[32];
    struct ft_view view;    /* owns its arrays */
    struct ft_peer **peers; /* [nranks], own rank: NULL */
    struct ft_comm_limits limits;
    struct ft_tuning tuning; /* the engine's, for the fewest cores that any of its hosts has */
    int device;              /* as given to InitAll */
    bool blocking;
    uint32_t children; /* splits made so far */
    int row;           /* telemetry */

    struct ft_work *head, *tail; /* groups in call order; the head may be running */
    atomic_int queued;           /* works submitted and not finished */
    bool running;
    struct ft_fast fast;
    uint64_t seq; /* collectives started */
    struct ft_lane lanes[FT_LANES];
    int nlanes;                   /* of them that the running work uses */
    struct ft_preserve preserve;  /* of the running work */
    struct ft_p2p *sends, *recvs; /* [nranks] */
    struct ft_call {
        uint64_t seq, sig;
    } history[FT_HISTORY];
    struct ft_call *announced; /* [nranks] latest word of each peer */
    /* [FT_PLAN_CACHE] */
    struct ft_plan_slot {
        struct ft_coll coll;
        bool valid;
        struct ft_plan plan;
    } * plans;
    struct ft_plan_slot *last_plan; /* of the cache; NULL at first */

    uint32_t *digests;        /* of results, [nranks] for each comparison of the running work */
    size_t ndigests;          /* room */
    struct ft_plan comparing; /* of every comparison; algo is NULL before the first */

    /* where it says what of its operations is on the GPU; NULL: nobody can see that */
    struct ft_readiness *readiness;
    /* its queue on the GPU, from its first operation there on; read with acquire */
    struct ft_comm_gpu *gpu;
    atomic_int let_go; /* streams that a failure holds go on */

    struct ft_window *windows;
    uint64_t window_ids;
    uint64_t *signals; /* [nranks] that came and were not waited for */
    /* [nranks] a put found no room in this turn: later ones of its work do not go before it */
    bool *puts_wait;

    uint64_t progress_ns; /* when the running work last moved, as the engine saw it */
    bool announced_self, any_announced;
    bool stalled;           /* nothing moved since the last tick */
    bool quiet;             /* the failure came from a peer: a few are told, not all */
    unsigned char *notices; /* [nranks] what is still to be told to whom, see notice.c */
    struct ft_gone *gone;   /* [nranks] */
    int notices_left;
    atomic_int untold; /* notices_left for other threads */
    bool dropped;      /* of its links it holds nothing any more */
    /* since when a failed communicator waits for its transfers; 0: it does not */
    uint64_t draining_ns;

    /* collectives that are complete here, and on every live rank as far as was agreed */
    uint64_t done_op, agreed_op;
    /* agreements that this rank's user has come to; the last that was decided */
    uint32_t agreements, decided;
    unsigned char *failed; /* [nranks] 1: agreed to be dead */
    /* there was an agreement: `failed` is what counts, also if it is empty */
    bool agreed;
    bool fenced; /* the others agreed to go on without this rank, and it knows */
    pthread_mutex_t split_lock;
    atomic_int growing; /* a thread is in ft_grow_run() */
    atomic_int leaving; /* aborted: waits for agreements end */

    atomic_int nranks, rank;  /* of view, for other threads; relaxed */
    struct ft_retry {         /* policy retry, see retry.c */
        atomic_int under_way; /* between a failure and what was agreed on it */
        int pins;             /* calls of users under way that count on the view */
        /* a failure that no repetition helps; sends, receives, puts or signals passed in this
         * view */
        bool never, p2p_passed;
        int ends; /* a failure that came meanwhile and ends it; FT_OK: none */
        /* of the next view, while it is bound; since when an abort waits for the agreement */
        uint64_t ctx, leaving_ns;
        struct ft_agreement *agreement; /* NULL: not entered; then whether it was decided */
        bool decided;
        /* ranks that the last change of view left out, as they were before it */
        int *lost, nlost;
        /* the last operation that a rank which ended its part had committed */
        uint64_t told_op;
    } retry;

    atomic_int status; /* FT_OK, or what ended the view; for the engine */
    /* FT_OK, or what ended it for good; release with text, acquire by readers */
    atomic_int verdict;
    int culprit; /* rank that is to blame, -1 unknown */
    pthread_mutex_t text_lock;
    char text[512];
};

/* Messages of ctx are kept from now on; to be called before any peer can know that this rank is
 * ready for them. */
int ft_engine_bind(struct ft_engine *engine, uint64_t ctx);
void ft_engine_unbind(struct ft_engine *engine, uint64_t ctx);
/* these two the caller holds the engine */
int ft_engine_bind_held(struct ft_engine *engine, uint64_t ctx);
void ft_engine_unbind_held(struct ft_engine *engine, uint64_t ctx);
/* Makes the communicator of a bound context. Copies view's arrays. The caller gets the one
 * reference. */
int ft_comm_open(struct ft_engine *engine, const struct ft_view *view, uint64_t ctx,
                 const char *name, const struct ft_comm_limits *limits, struct ft_comm **out);
/* Waits (bounded) until its works are finished and peers have taken what was sent. Then only close
 * is legal. */
int ft_comm_finalize(struct ft_comm *comm);
/* Ends what is pending with FT_ABORTED and tells the peers. Does not wait. */
void ft_comm_abort(struct ft_comm *comm);
/* Ends what is pending with FT_REVOKED, on every rank. Does not wait. */
void ft_comm_revoke(struct ft_comm *comm, const char *why);
/* Detaches from the engine, closes the engine with its last communicator, drops the reference. */
void ft_comm_close(struct ft_comm *comm);
void ft_comm_ref(struct ft_comm *comm);
void ft_comm_unref(struct ft_comm *comm);
/* The first failure wins; its sentence is kept; pending operations end; peers are told. Engine
 * held. */
void ft_comm_fail(struct ft_comm *comm, int status, int culprit, const char *fmt, ...)
    FT_PRINTF(4, 5);
/* a turn of it; true: nothing of the running work is in flight any more */
bool ft_comm_settle(struct ft_comm *comm);
void ft_comm_retire(struct ft_comm *comm, int status); /* the head work is over */
bool ft_comm_turn(struct ft_comm *comm);               /* one turn; true if something moved */
/* The head work is of a call that was made before, see direct.c: starts it, and ends it if what it
 * receives comes soon. */
void ft_comm_repeat(struct ft_comm *comm, int looks);
void ft_comm_tick(struct ft_comm *comm, uint64_t now_ns);
void ft_comm_peer_down(struct ft_comm *comm, struct ft_peer *peer, const struct ft_link *link);
/* The plan for a collective, from the cache when it was seen before. Any thread that holds the
 * engine. */
int ft_comm_plan(struct ft_comm *comm, const struct ft_coll *coll, struct ft_plan *plan);

/* of the head work; state: is there anything to save? */
void ft_preserve_start(struct ft_comm *comm);
/* a turn of it; true: all is saved, the steps may begin */
bool ft_preserve_save(struct ft_comm *comm);
bool ft_preserve_restore(struct ft_comm *comm); /* a turn of it; true: nothing is left to restore */
void ft_preserve_free(struct ft_comm *comm);    /* the side buffer */
bool ft_lanes_turn(struct ft_comm *comm);       /* lanes */
void ft_lanes_start(struct ft_comm *comm);      /* the head work begins */
/* starts the steps of the repeat that is loaded, and sends */
void ft_lanes_repeat(struct ft_comm *comm, struct ft_op *op);
void ft_lanes_drop(struct ft_comm *comm); /* releases views and reservations after a failure */
void ft_lanes_over(struct ft_comm *comm); /* no lane is at a step any more: all is settled */
bool ft_lanes_settled(const struct ft_comm *comm); /* no pending send refers to user memory */
bool ft_lanes_pending_to(const struct ft_comm *comm, int rank);
bool ft_p2p_turn(struct ft_comm *comm);
void ft_p2p_start(struct ft_comm *comm, struct ft_op *op);
/* Whom the running work waits for, in words (text may be NULL), and in which operation; -1
 * unknown. */
struct ft_blocker {
    int rank;
    bool sends;
    const struct ft_op *op;
    uint64_t step;
};
struct ft_blocker ft_work_waits_for(const struct ft_comm *comm, char *text, size_t len_bytes);
bool ft_rma_receive(struct ft_comm *comm);
bool ft_rma_turn(struct ft_comm *comm);
struct ft_blocker ft_rma_waits_for(const struct ft_comm *comm, char *text, size_t len_bytes);
struct ft_window *ft_window_find(const struct ft_comm *comm,
                                 uint64_t id); /* the caller holds the engine */
int ft_window_add(struct ft_comm *comm, void *base, size_t len_bytes, struct ft_window **out);
/* false: there is none at that address, perhaps no more */
bool ft_window_remove(struct ft_comm *comm, const void *window);
void ft_op_finish(struct ft_op *op); /* its steps are over */
/* and its result is where it belongs: counts it off its work */
void ft_op_done(struct ft_op *op);

/* verify.c: the checksum that a message carries, and what a receiver does before it uses one: false
 * if it does not match, then comm has failed. `op` is NULL for what is no operation's here. */
uint32_t ft_verify_sum(const struct ft_header *header, const void *data);
bool ft_verify_message(struct ft_comm *comm, int from, const struct ft_msg *msg,
                       const struct ft_op *op, uint64_t step);
static inline void ft_verify_seal(const struct ft_comm *comm, struct ft_header *header,
                                  const void *data)
{
    if (comm->limits.verify)
        header->crc = ft_verify_sum(header, data);
}
static inline bool ft_verify_ok(struct ft_comm *comm, int from, const struct ft_msg *msg,
                                const struct ft_op *op, uint64_t step)
{
    return !comm->limits.verify || ft_verify_message(comm, from, msg, op, step);
}
/* the comparisons and commit rounds that its collectives need */
int ft_verify_add(struct ft_comm *comm, struct ft_work *work);
/* of a comparison; FTCCL_ALGO is for calls of the user's */
int ft_verify_plan(struct ft_comm *comm, struct ft_plan *plan);
/* the next operation of its work compares its result */
bool ft_verify_follows(const struct ft_op *op);
/* a comparison begins: this rank's result is there. False: on the GPU, ask again */
bool ft_verify_digest(struct ft_comm *comm, struct ft_op *op);
/* all digests are here: both are done, or comm has failed */
void ft_verify_compare(struct ft_comm *comm, struct ft_op *op);
/* Tells in words which of the ranks' digests differ. True: some do; *odd is the first that has not
 * what most have, -1 if no value is that of most. */
bool ft_verify_differ(const uint32_t *digest, int nranks, int *odd, char *text, size_t len_bytes);
/* Ranks known to have failed: agreed, or else as far as this rank can tell. Returns how many;
 * writes at most capacity. */
int ft_comm_failed(struct ft_comm *comm, int *ranks, int capacity);
/* A link of the peer goes: what the communicator holds of it is given back first. */
void ft_lanes_forget(struct ft_comm *comm, const struct ft_peer *peer, struct ft_link *link);

bool ft_notice_turn(struct ft_comm *comm);      /* takes control messages, sends due ones */
void ft_notice_broadcast(struct ft_comm *comm); /* the comm's failure goes to every rank */
void ft_notice_announce(struct ft_comm *comm);  /* where we are goes to those we wait for */
void ft_notice_bye(struct ft_comm *comm);       /* to peers with a link, once */
/* true: differs, comm failed */
bool ft_mismatch_check(struct ft_comm *comm, int peer, uint64_t seq, uint64_t sig);

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
    return (limits->verify ? 1 : 2) | (limits->retry ? 4 : 8);
}
static inline bool ft_settings_same(uint64_t flags)
{
    return (flags & 3) && (flags & 12);
}
/* Everybody's item of `words` 32-bit words, by an AllGather in call order with the communicator's
 * other operations; mine is all[rank * words]. `mark` tells kinds of exchanges apart in
 * signatures. */
int ft_exchange(struct ft_comm *comm, int32_t *all, size_t words, int mark);
/* Collective over the parent; *out is NULL without a color. Blocks up to the init bound. */
int ft_split_run(struct ft_comm *parent, int color, int key, const char *name,
                 const struct ft_comm_limits *limits, struct ft_comm **out);

/* ---- groups of small operations (fuse.c) ----------------------------------------------------- */

int ft_fuse(struct ft_comm *comm, struct ft_work *work); /* before the work starts. FT_NOMEM */
/* gives the members their results; false: some are on their way */
bool ft_fuse_finish(struct ft_comm *comm, struct ft_op *whole);
/* Of the head work. Before its first step: fetches what members have on the GPU, and asks whether
 * it is all there. */
void ft_fuse_gather(struct ft_comm *comm);
bool ft_fuse_gathered(struct ft_comm *comm);
/* results on their way: true if one has come, also after a failure */
bool ft_fuse_deliver(struct ft_comm *comm);
void ft_fuse_drop(struct ft_comm *comm); /* what is still being fetched is not wanted any more */
void ft_fuse_free(struct ft_op *whole);  /* its members and buffer */

/* ---- policy retry (retry.c) ------------------------------------------------------------------ */

/* to a failure that has just been found */
bool ft_retry_applies(const struct ft_comm *comm, int status);
/* of a failed communicator with the policy */
bool ft_retry_turn(struct ft_comm *comm);
/* The operation that starts now was perhaps called for an earlier view: it means the same ranks.
 * false: that cannot be, and the communicator has failed. */
bool ft_retry_translate(struct ft_comm *comm, struct ft_op *op);
/* The view stays as it is from now on: a failure is for good until unpin. Any thread; waits for a
 * retry under way. */
void ft_retry_pin(struct ft_comm *comm);
void ft_retry_unpin(struct ft_comm *comm);
/* The view as a call of another thread sees it; root_id is that of a rank, 0 if it has none. */
struct ft_shape {
    int nranks, rank;
    uint64_t epoch, root_id;
};
struct ft_shape ft_comm_shape(struct ft_comm *comm, int root);
int ft_comm_nranks(const struct ft_comm *comm), ft_comm_rank(const struct ft_comm *comm);

/* ---- agreements (agreement.c)
 * --------------------------------------------------------------------- */

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
/* To come to one, with the the caller holds the engine and the agreement's number:
 * FT_AGREEMENT_RETRY is each context's own of policy retry, apart from those to which users come.
 */
#define FT_AGREEMENT_RETRY UINT32_MAX
int ft_agreement_enter_held(struct ft_comm *comm, uint32_t instance,
                            const struct ft_agree_input *input, struct ft_agreement **out);
struct ft_ctl_head;
void ft_agreement_receive(struct ft_engine *engine, struct ft_peer *peer,
                          const struct ft_ctl_head *head, const void *data, size_t len_bytes);
void ft_agreement_tick(struct ft_engine *engine);
/* the communicator closes, or leaves its context for that of its next view */
void ft_agreement_detach(struct ft_comm *comm, bool moves);
void ft_agreement_close(struct ft_engine *engine);

/* ---- the engine (engine.c, drive.c) ---------------------------------------------------------- */

/* Another rank's engine as seen from this one. Counted by the communicators that hold it. */
struct ft_peer {
    struct ft_peer *next;       /* hash chain */
    struct ft_peer *next_known; /* engine's roster */
    uint64_t id, host;
    struct ft_link *tx, *rx;
    struct ft_link *next_rx; /* it dialled anew and rx is not known to be down yet; NULL: none */
    uint64_t next_rx_ns;     /* since when */
    int users;               /* communicators */
    /* said goodbye on a link: no communicator there needs it; its process may go on */
    bool departed;
    bool met;         /* a link to or from it was up */
    bool lost;        /* link lost without a goodbye, and none has come up since */
    bool redialled;   /* dialled again after it was lost or left */
    bool unreachable; /* and that failed */
    bool dead;        /* its process has ended: proven */
    /* of its process, if that is another one of this host; see death_watch.c */
    struct ft_liveness *liveness;
    bool ended; /* and it was seen to have ended */
    /* what it has for its links, if both have a GPU: kept while it is in a communicator; see
     * locality.c */
    struct ft_pinned *pinned;
    bool suspected;        /* its heartbeats do not come */
    bool fenced;           /* declared dead by agreement: it may only be told so */
    struct ft_pulse pulse; /* of its heartbeats */
    uint64_t beat_round;   /* of the last one that it was to get */
    bool beating;          /* it gets ours */
    bool told;             /* we know of it by others, not only by its own word */
    bool odd;              /* it said what nobody understands, and people know */
    int queued_messages;   /* in the outbox */
    unsigned breaks;       /* sending links that went down, also before they were up */
    uint64_t blocked;      /* round of the outbox in which its link took nothing */
    int rank;              /* in the first communicator, for people; -1 unknown */
    int tx_row, rx_row;    /* telemetry */
    /* sampled once a tick */
    struct ft_link_time {
        uint64_t bytes, transfer_ns, wait_ns;
    } tx_time, rx_time;
    uint32_t address_bytes;
    unsigned char *address; /* packed endpoint */
};

struct ft_engine_config {
    struct ft_env *env;
    /* NULL-terminated, best first */
    const struct ft_transport_ops *transports[FT_TRANSPORTS_MAX + 1];
    unsigned char key[FT_KEY_BYTES];
    uint64_t id;
    int rank;
    int64_t heartbeat_ms, suspect_ms; /* suspect_ms 0: both by parameter */
    bool manual;                      /* no background thread: a simulation turns it */
    struct ft_device_gpu gpu;         /* for this rank's buffers */
};

struct ft_engine {
    struct ft_engine *next; /* in the process's list */
    uint64_t number;        /* in the order in which they joined it */
    struct ft_env *env;
    uint64_t id, host;
    int rank;
    bool manual;
    atomic_int refs; /* keep the memory: communicators, waiters */
    /* attached communicators; the last one closes the engine. Under drive */
    int users;
    struct ft_transport *transports[FT_TRANSPORTS_MAX];
    int ntransports;
    struct ft_device *device; /* for memory of the host */
    /* for buffers of the GPU whose context opened the engine; NULL: none */
    struct ft_device *gpu;
    struct ft_tuning tuning;
    struct ft_telemetry *telemetry;
    struct ft_stream *null_stream;
    struct ft_peer *peers[256]; /* by id */
    struct ft_peer *roster;     /* all of them */
    bool hung_up;               /* some that nobody knows may have gone */
    bool alive;                 /* others can see the end of this process */
    int watched_lives;          /* peers whose liveness pages are seen */
    struct ft_ctl_message *outbox, **outbox_end;
    unsigned char *ctl_buffer;     /* [chunk_bytes] the control message being taken */
    uint64_t rounds;               /* of the outbox */
    struct ft_detect detect;       /* heartbeats: time and bounds */
    uint64_t beat_ns, beat_rounds; /* last time ours were sent; how often */
    atomic_int unsent;             /* control messages; relaxed, for who waits for none */
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
        const struct ft_peer *peer;
    } abandoned[64];
    unsigned nabandoned;
    struct ft_comm *comms;

    pthread_mutex_t drive; /* who holds it is the driver */
    pthread_mutex_t inbox_lock;
    struct ft_work *inbox, *inbox_tail;
    atomic_int inbox_count; /* relaxed hint; the list is under inbox_lock */
    atomic_int active;      /* a communicator has work; written by the driver */
    uint64_t ticked_ns, ticked_before_ns;
    uint64_t trim_ns, trimmed_ns; /* period, 0: never; and when it was done last */
    uint64_t turns;
    bool stuck; /* nothing moved in the last turn */

    pthread_t thread;
    bool thread_running;
    atomic_int stop;
    atomic_int sleeping;  /* the driver sleeps in epoll; pairs with ft_engine_wake() */
    atomic_int wanted;    /* user threads that want to drive */
    atomic_int gpu_works; /* on the GPU, which wakes nobody; relaxed */
    int captured;         /* groups that graphs hold, whose replays nobody tells of */
    uint64_t replayed_ns; /* the last replay */
    /* set by user threads, cleared by the background thread when it looks */
    atomic_int user_drove;
    struct ft_event *events; /* of the transport that is being polled, [nevents] */
    int nevents;
    int waiting;                  /* peers with a next_rx */
    int links[FT_TRANSPORTS_MAX]; /* open on each transport; one without links is polled rarely */
    int epoll_fd, event_fd;
    cpu_set_t cpus; /* on which the thread that opened it could run; none: unknown */
    /* ranks of its communicators on this machine have fewer cores than they are; relaxed */
    atomic_int crowded;
};

int ft_engine_open(const struct ft_engine_config *config, struct ft_engine **out);
/* Stops the thread, says goodbye on all links, frees everything but the struct. Not from a
 * driver. */
void ft_engine_close(struct ft_engine *engine);
/* with a reference; NULL: closed */
struct ft_stream *ft_engine_null_stream(struct ft_engine *engine);
void ft_engine_ref(struct ft_engine *engine);
void ft_engine_unref(struct ft_engine *engine); /* frees the struct with the last one */
/* This rank's endpoint for the bootstrap, from its transports' addresses. */
int ft_engine_endpoint(struct ft_engine *engine, struct ft_endpoint *endpoint);
/* locality.c: this rank's part of an endpoint; false: it is full. What a communicator's ranks have
 * between them; FT_NOMEM. */
bool ft_locality_endpoint(const struct ft_engine *engine, struct ft_endpoint *endpoint);
int ft_locality_links(const struct ft_comm *comm, enum ft_links *links);
/* Pinned memory of a communicator's ranks is mapped, and the GPU reads it. reach: of those that
 * have come, and what those left that no communicator has any more goes. These two not by who holds
 * the engine; they may block. part: no communicator has the peer. */
void ft_locality_pinned(struct ft_comm *comm);
void ft_locality_reach(struct ft_engine *engine);
/* Whose messages this rank's GPU takes from their GPU's memory is told to all; and, of collectives
 * that have been reached, or of the receive that is next from a rank, whether the GPU has their
 * buffers. The caller holds the engine. */
void ft_readiness_attach(struct ft_comm *comm);
void ft_readiness_tell(struct ft_comm *comm);
void ft_readiness_tell_receive(struct ft_comm *comm, int rank);
void ft_locality_part(struct ft_peer *peer);
bool ft_locality_has_pinned(const struct ft_comm *comm); /* a rank has some */
/* do all ranks say that the others may read their memory? Slow if one says so. After
 * ft_locality_links() */
enum ft_pulls ft_locality_pulls(const struct ft_comm *comm);
/* cores.c: the same for the cores that ranks of a host have between them; FT_NOMEM. */
void ft_cores_open(struct ft_engine *engine);
bool ft_cores_endpoint(const struct ft_engine *engine, struct ft_endpoint *endpoint);
int ft_cores_count(struct ft_comm *comm);
/* Adds a named part, or replaces it; false: it does not fit. */
bool ft_endpoint_put(struct ft_endpoint *endpoint, const char *name, const void *data,
                     size_t len_bytes);
/* The named part of an endpoint's address; NULL: none, or the endpoint is malformed. */
const unsigned char *ft_endpoint_part(const unsigned char *endpoint, size_t endpoint_bytes,
                                      const char *name, size_t *len_bytes);
/* Finds or makes the peer. The caller holds the engine. */
struct ft_peer *ft_engine_peer(struct ft_engine *engine, uint64_t id);
int ft_engine_learn(struct ft_engine *engine, uint64_t id, uint64_t host, const void *address,
                    uint32_t len_bytes, int rank);
/* The sending link to a peer; starts connecting if there is none. FT_OK, FT_AGAIN (connecting) or
 * what went wrong. */
int ft_engine_link(struct ft_engine *engine, struct ft_peer *peer, struct ft_link **out);
/* The same, also for a peer that was lost or left: it may live and have to be asked. Not for one
 * that is dead. */
int ft_engine_redial(struct ft_engine *engine, struct ft_peer *peer, struct ft_link **out);
/* A new communicator has this peer: only its links were lost, and who needs them makes them anew.
 * Not if that has failed. */
void ft_engine_forgive(struct ft_engine *engine, struct ft_peer *peer);
/* Closes a link of the peer at once; its pending sends complete. */
void ft_engine_drop_link(struct ft_engine *engine, struct ft_peer *peer, struct ft_link *link);
/* The same as if the link had broken: a peer that was told goodbye would take us for dead. */
void ft_engine_cut_link(struct ft_engine *engine, struct ft_peer *peer, struct ft_link *link);
/* the link that waits to be received on, if any */
void ft_engine_drop_next(struct ft_engine *engine, struct ft_peer *peer);
bool ft_engine_turn(struct ft_engine *engine); /* held by the caller; true if something moved */
void ft_engine_lock(struct ft_engine *engine); /* becomes the driver, waking a sleeping one */
void ft_engine_unlock(struct ft_engine *engine);
/* the slow part of a turn; at most once a millisecond */
void ft_engine_tick(struct ft_engine *engine);
void ft_engine_wake(struct ft_engine *engine);
int ft_engine_start_thread(struct ft_engine *engine);
void ft_engine_stop_thread(struct ft_engine *engine);
/* Turns engines until done(arg) or the bound; false: the bound passed. `first` is turned most; the
 * process's other engines are turned when it has nothing to do. bound_ns 0: none. */
bool ft_engine_wait(struct ft_engine *first, bool (*done)(void *), void *arg, uint64_t bound_ns);
/* after a submission: one turn if nobody drives, else wake a sleeper */
void ft_engine_kick(struct ft_engine *engine);
/* after a communicator came or went. The caller holds the engine */
void ft_engine_count_local(struct ft_engine *engine);
/* Calls fn for each engine that the process has now, holding a reference. */
void ft_engine_each(void (*fn)(struct ft_engine *, void *), void *arg);
void ft_engine_enlist(struct ft_engine *engine);
void ft_engine_delist(struct ft_engine *engine);

#include "core/engine/control.h"
#include "core/group/reshape.h"

#endif

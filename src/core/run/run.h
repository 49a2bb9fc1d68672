/*
 * run: the middle floor of core. It runs operations: streams and the groups of calls on them, the
 * lanes that walk through a collective's steps, point-to-point, one-sided calls, the fast path, and
 * what may surround the steps of a piece of work (preserve, fuse, verify, the GPU). It knows a
 * communicator as a queue of works with a view and a failure; how communicators come about, what
 * they tell each other and how they survive is the group floor's, which is called from here never.
 *
 * The way of an operation: api -> ft_entry_submit() -> inbox -> comm->works -> lanes or p2p -> link
 * -> ft_op_done() -> stream. All of a communicator's state is touched with its engine held; the
 * exceptions are atomic and say so.
 */
#ifndef FT_RUN_H
#define FT_RUN_H

#include "core/engine/engine.h"

/* groups waiting on one communicator; the caller of one more turns the engine first */
#define FT_QUEUE_MAX 4096
#define FT_HISTORY 64 /* calls remembered for naming a mismatch */
#define FT_PLAN_CACHE 64
/* engines of one group that its caller turns itself; the others are woken */
#define FT_KICK_MAX 16

struct ft_comm;
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

/* ---- parts of a communicator ----------------------------------------------------------------- */

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

struct ft_lanes {
    struct ft_lane at[FT_LANES];
    int n; /* of them that the running work uses */
};

#include "core/run/fast_path.h"

struct ft_comm_limits {
    int64_t op_timeout_ms, init_timeout_ms, suspect_ms, min_ranks, heartbeat_ms;
    bool preserve_input, verify, retry, hold;
};

/* Its groups in call order; the head may be running (work.c). */
struct ft_works {
    struct ft_work *head, *tail;
    atomic_int queued; /* submitted and not finished */
    bool running;
    bool prepared;        /* the running work's steps have begun */
    bool stalled;         /* nothing moved since the last tick */
    bool announced;       /* the running work has told others where it is */
    bool dropped;         /* a failed work holds nothing of links any more */
    uint64_t progress_ns; /* when the running work last moved, as the engine saw it */
    uint64_t draining_ns; /* since when a failed work waits for its transfers; 0: it does not */
};

/* Calls so far, to find ranks that made different ones (calls.c). */
struct ft_calls {
    uint64_t seq;  /* collectives started */
    uint64_t done; /* collectives that are complete here */
    struct ft_call {
        uint64_t seq, sig;
    } history[FT_HISTORY];
    struct ft_call *announced; /* [nranks] latest word of each peer */
    bool any_announced;
};

/* Plans by collective (plans.c). */
struct ft_plans {
    struct ft_plan_slot {
        struct ft_coll coll;
        bool valid;
        struct ft_plan plan;
    } * slots;                 /* [FT_PLAN_CACHE] */
    struct ft_plan_slot *last; /* NULL at first */
};

struct ft_p2p_queues {
    struct ft_p2p *sends, *recvs; /* [nranks] */
};

/* Digests of results (verify.c). */
struct ft_digests {
    uint32_t *all;       /* [nranks] for each comparison of the running work */
    size_t room;         /* so many */
    struct ft_plan plan; /* of every comparison; algo is NULL before the first */
};

/* One-sided calls (rma.c). */
struct ft_rma {
    struct ft_window *windows;
    uint64_t ids;      /* given to windows so far */
    uint64_t *signals; /* [nranks] that came and were not waited for */
    bool *
        puts_wait; /* [nranks] a put found no room in this turn: later ones of its work wait, too */
};

/* Why it failed, and what speaks against repeating (failure.c). */
struct ft_failure {
    atomic_int status; /* FT_OK, or what ended the view; for the engine */
    /* FT_OK, or what ended it for good; release with text, acquire by readers */
    atomic_int verdict;
    int culprit;          /* rank that is to blame, -1 unknown */
    pthread_mutex_t lock; /* of culprit, text and the view, for other threads */
    char text[512];
    size_t cause_bytes; /* of text: the sentence without who told it */
    bool quiet;         /* it came from a peer: a few are told, not all */
    bool fresh;         /* the group floor has not seen it */
    atomic_int untold;  /* notices that have not left; more than 0 while `fresh`, unless `quiet` */
    atomic_int leaving; /* aborted: waits for agreements end */
    int pins;           /* calls of users under way that count on the view: no repetition */
    bool never;         /* a failure that no repetition helps */
    bool p2p_passed;    /* sends, receives, puts or signals passed in this view */
    int ends; /* a failure that came while the ranks agreed, and ends it for good; FT_OK: none */
};

struct ft_group; /* what the group floor keeps for each communicator */

struct ft_comm {
    struct ft_comm *next; /* in the engine's list */
    struct ft_engine *engine;
    struct ft_group *group;
    atomic_int refs;
    atomic_int state; /* enum ft_comm_state, changed by ft_comm_move() alone; relaxed */
    uint64_t ctx;
    uint64_t opened_ns;
    char name[32];
    struct ft_view view;    /* owns its arrays */
    struct ft_peer **peers; /* [nranks], own rank: NULL */
    struct ft_comm_limits limits;
    struct ft_tuning tuning; /* the engine's, for the fewest cores that any of its hosts has */
    int device;              /* as given to InitAll */
    bool blocking;
    int row;                 /* telemetry */
    atomic_int nranks, rank; /* of view, for other threads; relaxed */

    struct ft_works works;
    struct ft_calls calls;
    struct ft_plans plans;
    struct ft_lanes lanes;
    struct ft_p2p_queues p2p;
    struct ft_rma rma;
    struct ft_fast *fast;
    struct ft_preserve preserve; /* of the running work */
    struct ft_digests digests;
    struct ft_failure failure;
    /* The GPU's part: its queue there, from the first operation there on, read with acquire; where
     * it tells what of its operations is on the GPU, NULL: nobody can see that; and whether streams
     * that a failure holds go on. */
    struct ft_comm_gpu *gpu;
    struct ft_readiness *readiness;
    atomic_int let_go;
};

/* What this floor keeps for each engine. */
struct ft_run_state {
    struct ft_comm *comms;
    struct ft_work *inbox, *inbox_tail; /* under the engine's inbox_lock */
    struct ft_stream *null_stream;      /* the same */
};
/* with a reference; NULL: the engine is closed */
struct ft_stream *ft_engine_null_stream(struct ft_engine *engine);

/* ---- a communicator as this floor sees it (comm_state.c) ------------------------------------- */

/* Makes its parts for the view, whose arrays are copied. FT_NOMEM; the caller unrefs it then. */
int ft_run_open(struct ft_comm *comm, const struct ft_view *view);
/* What the parts remember of a view goes: the ranks take another one. */
void ft_run_reset(struct ft_comm *comm);
void ft_comm_ref(struct ft_comm *comm);
void ft_comm_unref(struct ft_comm *comm); /* frees it with the last one */
/* Moves a communicator on; the only place where its state changes. */
void ft_comm_move(struct ft_comm *comm, enum ft_comm_state to);
enum ft_comm_state ft_comm_state(const struct ft_comm *comm); /* any thread */
int ft_comm_nranks(const struct ft_comm *comm), ft_comm_rank(const struct ft_comm *comm);
/* The view as a call of another thread sees it; root_id is that of a rank, 0 if it has none. */
struct ft_shape {
    int nranks, rank;
    uint64_t epoch, root_id;
};
struct ft_shape ft_comm_shape(struct ft_comm *comm, int root);
/* A link of the peer goes: what communicators hold of it is given back, then it is closed. cut: as
 * if it had broken: a peer that was told goodbye would take us for dead. */
void ft_link_drop(struct ft_engine *engine, struct ft_peer *peer, struct ft_link *link);
void ft_link_cut(struct ft_engine *engine, struct ft_peer *peer, struct ft_link *link);
void ft_link_give_back(struct ft_engine *engine, struct ft_peer *peer, struct ft_link *link);

/* ---- failure (failure.c) --------------------------------------------------------------------- */

/* The first failure wins; its sentence is kept; pending operations end; the group floor tells the
 * peers in its next turn. The caller holds the engine. */
void ft_comm_fail(struct ft_comm *comm, int status, int culprit, const char *fmt, ...)
    FT_PRINTF(4, 5);
/* The same by the word of another rank; teller -1: by this rank's own. */
void ft_comm_fail_told(struct ft_comm *comm, int status, int culprit, int teller, const char *text);
/* A rank was lost. If a liveness page tells an earlier cause, then that is why comm fails. */
void ft_comm_lost(struct ft_comm *comm, int status, int rank, const char *fmt, ...) FT_PRINTF(4, 5);
/* A rank said why its communicator failed: bytes from outside, but for the end of the text. */
struct ft_told {
    int status, origin;
};
struct ft_told ft_told_check(const struct ft_comm *comm, int from, int status, int origin);
/* Operations of the communicator lost this peer. Returns the status for the caller. */
int ft_comm_fail_peer(struct ft_comm *comm, const struct ft_op *op, int rank, int status);
/* The operation that starts now was perhaps called for an earlier view: it means the same ranks.
 * false: that cannot be, and the communicator has failed. */
bool ft_retry_translate(struct ft_comm *comm, struct ft_op *op);

/* ---- calls that differ (calls.c) ------------------------------------------------------------- */

void ft_calls_note(struct ft_comm *comm, const struct ft_op *op); /* it starts */
/* true: the call differs from this rank's, comm has failed */
bool ft_mismatch_check(struct ft_comm *comm, int peer, uint64_t seq, uint64_t sig);
void ft_calls_check_announced(struct ft_comm *comm, const struct ft_op *op);
void ft_calls_reset(struct ft_comm *comm);

/* ---- works (work.c) -------------------------------------------------------------------------- */

bool ft_run_take_inbox(struct ft_engine *engine); /* what users left, into the queues */
bool ft_run_turn(struct ft_comm *comm);           /* a turn of a communicator that has not failed */
void ft_run_tick(struct ft_comm *comm); /* the slow part: how long the work has stood still */
/* The head work is of a call that was made before, see fast_path.c: starts it, and ends it if what
 * it receives comes soon. */
void ft_comm_repeat(struct ft_comm *comm, int looks);
bool ft_comm_settle(struct ft_comm *comm); /* true: nothing of the running work is in flight */
bool ft_run_drain(struct ft_comm *comm);   /* a failed one's works end; true: something moved */
bool ft_run_restore(struct ft_comm *comm); /* a turn of putting inputs back; true: all are */
void ft_comm_retire(struct ft_comm *comm, int status); /* the head work is over */
void ft_op_finish(struct ft_op *op);                   /* its steps are over */
/* and its result is where it belongs: counts it off its work */
void ft_op_done(struct ft_op *op);
/* Whom the running work waits for, in words (text may be NULL), and in which operation; -1
 * unknown (waits.c). */
struct ft_blocker {
    int rank;
    bool sends;
    const struct ft_op *op;
    uint64_t step;
};
struct ft_blocker ft_work_waits_for(const struct ft_comm *comm, char *text, size_t len_bytes);
/* The plan for a collective, from the cache when it was seen before (plans.c). */
int ft_comm_plan(struct ft_comm *comm, const struct ft_coll *coll, struct ft_plan *plan);
void ft_plans_reset(struct ft_comm *comm);
/* ---- lanes (lanes.c), point-to-point (p2p.c), one-sided calls (rma.c) ------------------------ */

bool ft_lanes_turn(struct ft_comm *comm);
void ft_lanes_start(struct ft_comm *comm); /* the head work begins */
/* starts the steps of the repeat that is loaded, and sends */
void ft_lanes_repeat(struct ft_comm *comm, struct ft_op *op);
void ft_lanes_drop(struct ft_comm *comm); /* releases views and reservations after a failure */
void ft_lanes_over(struct ft_comm *comm); /* no lane is at a step any more: all is settled */
bool ft_lanes_settled(const struct ft_comm *comm); /* no pending send refers to user memory */
bool ft_lanes_pending_to(const struct ft_comm *comm, int rank);
/* A link of the peer goes: what the communicator holds of it is given back first. */
void ft_lanes_forget(struct ft_comm *comm, const struct ft_peer *peer, struct ft_link *link);
void ft_lanes_reset(struct ft_comm *comm);
bool ft_p2p_turn(struct ft_comm *comm);
void ft_p2p_reset(struct ft_comm *comm); /* nothing is queued */
void ft_p2p_start(struct ft_comm *comm, struct ft_op *op);
bool ft_rma_receive(struct ft_comm *comm);
bool ft_rma_turn(struct ft_comm *comm);
void ft_rma_reset(struct ft_comm *comm);
struct ft_blocker ft_rma_waits_for(const struct ft_comm *comm, char *text, size_t len_bytes);
struct ft_window *ft_window_find(const struct ft_comm *comm, uint64_t id); /* engine held */
int ft_window_add(struct ft_comm *comm, void *base, size_t len_bytes, struct ft_window **out);
/* false: there is none at that address, perhaps no more */
bool ft_window_remove(struct ft_comm *comm, const void *window);

/* ---- stages: what surrounds the steps of a work (preserve, verify, fuse, gpu) ---------------- */

/* Called by work.c, in the order of its table, for every work that runs on its own queue or on a
 * stream; a stage that has nothing to do for a work says so at once. A slot may be NULL. */
struct ft_stage {
    /* Before the operations start: merges or adds operations, tells the device. Fails comm. */
    void (*begin)(struct ft_comm *comm, struct ft_work *work);
    /* The operations have their plans: begins what must be over before the first step. */
    void (*start)(struct ft_comm *comm);
    /* A turn of that; true: it is over, or there was none. *moved: it did something. */
    bool (*prepare)(struct ft_comm *comm, bool *moved);
    /* Results that are on their way; true: one has come. */
    bool (*deliver)(struct ft_comm *comm);
    /* After a failure, that many ns ago; true: nothing of the work is in flight there. */
    bool (*settle)(const struct ft_comm *comm, uint64_t draining_ns);
    /* A turn of putting back what the failed work has overwritten; true: nothing is left to do. */
    bool (*restore)(struct ft_comm *comm);
    /* The work has ended with that status. */
    void (*over)(struct ft_work *work, int status);
};
extern const struct ft_stage ft_fuse_stage, ft_verify_stage, ft_gpu_stage, ft_preserve_stage;

void ft_preserve_free(struct ft_comm *comm); /* the side buffer */
void ft_fuse_drop(struct ft_comm *comm); /* what is still being fetched is not wanted any more */
/* With verify on, a message carries its checksum. */
static inline void ft_verify_seal(const struct ft_comm *comm, struct ft_header *header,
                                  const void *data)
{
    if (comm->limits.verify)
        header->crc = ft_message_sum(header, data);
}

#include "core/run/verify.h"

/* ---- readiness of a GPU's buffers (readiness.c) ---------------------------------------------- */

/* Whose messages this rank's GPU takes from their GPU's memory is told to all; and, of collectives
 * that have been reached, or of the receive that is next from a rank, whether the GPU has their
 * buffers. The caller holds the engine. */
void ft_readiness_attach(struct ft_comm *comm);
void ft_readiness_tell(struct ft_comm *comm);
void ft_readiness_tell_receive(struct ft_comm *comm, int rank);

#endif

/*
 * run: the middle floor of core. It runs operations: streams and the groups of calls on them, the
 * lanes that walk through the steps of a collective, point-to-point and one-sided operations, the
 * fast path, and the stages around the steps of a work (preserve, fuse, verify, the GPU). Here a
 * communicator is a queue of works with a view and a failure. The group floor makes communicators,
 * talks to the other ranks and survives failures; nothing here calls it.
 *
 * The way of an operation: api -> ft_entry_submit() -> inbox -> comm->works -> lanes or p2p -> link
 * -> ft_op_done() -> stream. Whoever touches the state of a communicator holds its engine. The
 * exceptions are atomic, and their comments say so.
 */
#ifndef FT_RUN_H
#define FT_RUN_H

#include "core/engine/engine.h"

/* Most groups that wait on one communicator. A caller that adds one more turns the engine first. */
#define FT_QUEUE_MAX 4096
#define FT_HISTORY 64 /* recent calls that are kept to name a mismatch */
#define FT_PLAN_CACHE 64
/* Most engines of one group that the caller turns itself; it wakes the others. */
#define FT_KICK_MAX 16

struct ft_comm;
struct ft_work;

/* ---- pools (op.c) ---------------------------------------------------------------------------- */

/* A pool of freed structs of one kind. The first word of a freed struct links it. Any thread may
 * use it. */
struct ft_pooled {
    struct ft_pooled *next;
};
struct ft_pool {
    pthread_mutex_t lock;
    struct ft_pooled *free;
    int count;
};
/* Returns a struct as it was freed, except for the first word. NULL: the pool is empty. */
void *ft_pool_get(struct ft_pool *pool);
/* false: the pool is full, and the caller frees the struct */
bool ft_pool_put(struct ft_pool *pool, void *item);

/* ---- operations (op.c) ----------------------------------------------------------------------- */

struct ft_op {
    struct ft_op *next;     /* in its work, then in the pool */
    struct ft_op *next_p2p; /* in the queue of its peer and direction */
    struct ft_work *work;
    struct ft_coll coll;
    struct ft_redop redop;
    /* ftcclScalarDevice: the scale is read here when the operation starts. Otherwise NULL. */
    const void *scale_from;
    const void *in;
    void *out;
    /* Collectives: number in the communicator. Sends and receives: number between the two ranks. */
    uint64_t seq, sig;
    enum ft_op_state state;
    int status;
    /* The user's call, for telemetry. 0: it began at once, or is the library's own. */
    uint64_t called_ns;
    const void *site;    /* where the call returns to */
    uint32_t record;     /* of telemetry */
    struct ft_plan plan; /* of collectives */
    int lanes_left;
    char *tmp; /* scratch memory of tmp_bytes, kept with the struct in the pool */
    size_t tmp_bytes;
    size_t offset; /* sends, receives and puts: bytes handed to the link or taken from it */
    /* The result is larger than the caches, and its memory was not read before. */
    bool cold_result;
    /* Sends and receives: the first message, perhaps an empty one, has passed. Comparisons: this
     * rank's digest is there. */
    bool begun;
    bool sealed; /* sends: crc is the checksum of the next message, which found no room yet */
    uint32_t crc;
    /* Operations of a group that this one fuses, see fuse.c. NULL: none. */
    struct ft_op *members;
    char *joint; /* the inputs of the members, later their results */
    bool leaves; /* the fused operation is done, and results are on their way */
    /* Set if the buffers are on a queue of the GPU. NULL: on the host. Freed with the operation. */
    struct ft_op_queue *on_queue;
    /* A comparison: the collective whose results it compares. NULL: a call of the user. */
    struct ft_op *verifies;
    /* Policy retry: the view in which the user made the call, and the engine of the root there. */
    uint64_t epoch, root_id;
    struct ft_send sends[FT_WINDOW_P2P];
    /* put: number of the window, which may be deregistered before the put runs. 0: only a
     * signal. */
    uint64_t window;
    uint64_t window_offset; /* bytes */
    /* of WaitSignal; freed with the operation */
    struct ft_signal_wait {
        int peer;
        uint64_t count;
    } * waits;
    int nwaits;
};

/* A window of one-sided puts. Every rank of the communicator has one of the same number. */
struct ft_window {
    struct ft_window *next;
    uint64_t id;
    void *base;
    size_t len_bytes;
    uint64_t *sizes; /* [nranks] bytes of each rank's window; NULL while it is being registered */
};

/* Changes the state of an operation; no other function does. */
void ft_op_move(struct ft_op *op, enum ft_op_state to, int status);
struct ft_op *ft_op_new(void);      /* takes a struct from the pool; NULL: no memory */
void ft_op_reset(struct ft_op *op); /* like new, but keeps its scratch */
void ft_op_free(struct ft_op *op);
void ft_op_trim(struct ft_op *op); /* frees scratch that is too large to be kept */

#include "core/run/stream.h"
#include "core/run/pass.h"
#include "core/run/gpu.h"

/* ---- parts of a communicator ----------------------------------------------------------------- */

/* HELD: the next operation compares a result on which other lanes still work. An IDLE or HELD lane
 * is at no step. */
enum ft_phase { FT_LANE_IDLE, FT_LANE_HELD, FT_LANE_EXCHANGE, FT_LANE_REDUCING, FT_LANE_SETTLE };

/* One lane of a communicator. It walks through the steps of the work's collectives. */
struct ft_lane {
    enum ft_phase phase;
    struct ft_op *op;
    uint64_t index;
    const struct ft_step *step;
    /* `step` points here, or to a stored step of a repeated call */
    struct ft_step planned;
    unsigned sent, received, reserved; /* bit k: done for send_to[k], recv_from[k] or fwd_to[k] */
    /* the link may write the step's message directly to its destination */
    bool expects;
    bool sealed; /* crc is the checksum of what the step sends */
    uint32_t crc;
    /* `copy`, memory of the arena, has what the step sends (lanes_copy.c). copy_used: it had
     * something since the last trim. */
    bool copied, copy_used;
    char *copy;
    size_t copy_bytes;
    struct ft_send sends[FT_STEP_PEERS];
    struct ft_msg msgs[FT_STEP_PEERS];
    void *slots[FT_STEP_PEERS];
    struct ft_header headers[FT_STEP_PEERS]; /* of the reserved slots */
    struct ft_device_req req;
};

/* The lane's step begins, and nothing of it is done. */
static inline void ft_lane_begin_step(struct ft_lane *lane)
{
    lane->sent = lane->received = lane->reserved = 0;
    lane->sealed = lane->expects = lane->copied = false;
    lane->phase = FT_LANE_EXCHANGE;
}

static inline bool ft_lane_is_at_step(const struct ft_lane *lane)
{
    return lane->phase >= FT_LANE_EXCHANGE;
}

struct ft_p2p {
    struct ft_op *head, *tail;
    uint64_t seq;
    /* of receives: a message that a probe found, and that no receive has taken; rx NULL: none */
    struct ft_link *rx;
    struct ft_msg probed;
}; /* for one peer and direction */

/* Memory that holds copies of inputs, and how far the copying has come; see preserve.c. */
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
    /* The operation that is copied next. op_at: bytes of its range that are done; side_at: the same
     * in the side buffer. */
    const struct ft_op *op;
    size_t op_at, side_at;
    struct ft_device_req req;
};

struct ft_lanes {
    struct ft_lane at[FT_LANES];
    int n; /* those that the running work uses */
};

#include "core/run/fast_path.h"

struct ft_comm_limits {
    int64_t op_timeout_ms, init_timeout_ms, suspect_ms, min_ranks, heartbeat_ms, silence_ms;
    bool preserve_input, verify, retry, hold;
    bool concurrent; /* sends and receives only, which do not wait for each other */
};

/* The works of a communicator in call order (work.c). The first one may be running; on a concurrent
 * communicator, any of them. */
struct ft_works {
    struct ft_work *head, *tail;
    atomic_int queued; /* submitted and not finished */
    bool running;
    bool prepared;  /* the steps of the running work have begun */
    bool stalled;   /* nothing has moved since the last tick */
    bool announced; /* the running work has told the others where it is */
    bool dropped;   /* a failed work holds nothing of links any more */
    bool holds;     /* collectives from number hold_from + 1 on do not start */
    uint64_t hold_from;
    uint64_t progress_ns; /* when the running work last made progress, as far as the engine saw */
    /* since when a failed work has waited for its transfers; 0: it does not */
    uint64_t draining_ns;
};

/* The calls of this rank and of its peers, to find ranks that made different calls (calls.c). */
struct ft_calls {
    uint64_t seq;  /* collectives started */
    uint64_t done; /* collectives that are complete on this rank */
    struct ft_call {
        uint64_t seq, sig;
    } history[FT_HISTORY];
    /* [nranks] what each peer told last: its call, and for whom it waits there if it waits */
    struct ft_announced {
        uint64_t seq, sig, said_ns;
        bool waits;
        int waits_for;
    } * announced;
    bool any_announced;
};

/* Plans, found by their collective (plans.c). */
struct ft_plans {
    struct ft_plan_slot {
        struct ft_coll coll;
        bool valid;
        struct ft_plan plan;
    } * slots;                 /* [FT_PLAN_CACHE] */
    struct ft_plan_slot *last; /* the last one found; NULL at first */
};

struct ft_p2p_queues {
    struct ft_p2p *sends, *recvs; /* [nranks] */
};

/* Digests of results (verify.c). */
struct ft_digests {
    uint32_t *all;       /* [nranks] for each comparison of the running work */
    size_t room;         /* comparisons for which there is room */
    struct ft_plan plan; /* of every comparison; algo is NULL before the first */
};

/* One-sided calls (rma.c). */
struct ft_rma {
    struct ft_window *windows;
    uint64_t ids;      /* numbers given to windows so far */
    uint64_t *signals; /* [nranks] signals that came and that no wait has consumed */
    /* [nranks] a put found no room in this turn, so later puts of its work wait, too */
    bool *puts_wait;
};

/* Why the communicator failed, and what prevents a repetition (failure.c). */
struct ft_failure {
    atomic_int status; /* FT_OK, or why the view ended. For the engine. */
    /* FT_OK, or why the communicator failed for good. Stored with release after the text; readers
     * use acquire. */
    atomic_int verdict;
    int culprit;          /* the rank that caused it; -1: unknown */
    int noticed;          /* the rank that noticed it; -1: unknown */
    int lost_status;      /* ASKING: the status if nobody knows an earlier cause */
    pthread_mutex_t lock; /* protects culprit, text and the view for other threads */
    char text[512];
    size_t cause_bytes; /* bytes of text without the part that says who told it */
    bool quiet;         /* a peer told it: this rank tells only a few others */
    bool fresh;         /* the group floor has not seen it yet */
    /* Notices that have not left. More than 0 while `fresh` is set, unless `quiet` is. */
    atomic_int untold;
    atomic_int leaving; /* aborted: waits for agreements end */
    /* calls of users in progress that rely on the view: they prevent a repetition */
    int pins;
    bool never;      /* no repetition can help */
    bool p2p_passed; /* sends, receives, puts or signals were done in this view */
    /* A failure that came during the agreement and ends the communicator for good. FT_OK: none. */
    int ends;
};

struct ft_group; /* what the group floor keeps per communicator */

struct ft_comm {
    struct ft_comm *next; /* in the engine's list */
    struct ft_engine *engine;
    struct ft_group *group;
    atomic_int refs;
    atomic_int state; /* enum ft_comm_state. Only ft_comm_move() changes it. Relaxed. */
    uint64_t ctx;
    uint64_t opened_ns, opened_running_ns; /* the latter by the engine's heartbeats */
    char name[32];
    struct ft_view view;    /* owns its arrays */
    struct ft_peer **peers; /* [nranks]; NULL for this rank */
    struct ft_comm_limits limits;
    struct ft_tuning tuning; /* like the engine's, but for the host with the fewest cores */
    int device;              /* as given to ftcclCommInitAll() */
    bool blocking;
    atomic_int row;          /* of telemetry; set with the engine held */
    atomic_int nranks, rank; /* copies from view for other threads; relaxed */

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
    /* The GPU's part. gpu: its queue, made with the first operation on the GPU; read with acquire.
     * readiness: where this rank tells which of its operations are on the GPU; NULL: no rank can
     * see that. let_go: streams that a failure holds go on. */
    struct ft_comm_gpu *gpu;
    struct ft_readiness *readiness;
    atomic_int let_go;
};

/* What this floor keeps per engine. */
struct ft_run_state {
    struct ft_comm *comms;
    struct ft_work *inbox, *inbox_tail; /* inbox_lock of the engine protects them */
    struct ft_stream *null_stream;      /* likewise */
};
/* Returns a reference. NULL: the engine is closed. */
struct ft_stream *ft_engine_null_stream(struct ft_engine *engine);

/* ---- a communicator as this floor sees it (comm_state.c) ------------------------------------- */

/* Makes the parts of the communicator for the view, and copies its arrays. FT_NOMEM: the caller
 * then unrefs the communicator. */
int ft_run_open(struct ft_comm *comm, const struct ft_view *view);
/* Clears what the parts remember of a view, because the ranks take another one. */
void ft_run_reset(struct ft_comm *comm);
void ft_comm_ref(struct ft_comm *comm);
void ft_comm_unref(struct ft_comm *comm); /* the last reference frees it */
/* Changes the state of a communicator; no other function does. */
void ft_comm_move(struct ft_comm *comm, enum ft_comm_state to);
/* Gives the communicator, or its new epoch, a row of telemetry. The caller holds the engine. */
void ft_comm_record(struct ft_comm *comm);
enum ft_comm_state ft_comm_state(const struct ft_comm *comm); /* any thread may call it */
int ft_comm_nranks(const struct ft_comm *comm), ft_comm_rank(const struct ft_comm *comm);
/* The view as a call in another thread sees it. root_id: engine id of a rank; 0: there is no such
 * rank. */
struct ft_shape {
    int nranks, rank;
    uint64_t epoch, root_id;
};
struct ft_shape ft_comm_shape(struct ft_comm *comm, int root);
/* Closes a link of the peer, after every communicator has given back what it holds of the link.
 * ft_link_cut() closes it without a goodbye, as if it had broken: a peer that gets a goodbye would
 * take this rank for dead. */
void ft_link_drop(struct ft_engine *engine, struct ft_peer *peer, struct ft_link *link);
void ft_link_cut(struct ft_engine *engine, struct ft_peer *peer, struct ft_link *link);
void ft_link_give_back(struct ft_engine *engine, struct ft_peer *peer, struct ft_link *link);

/* ---- failure (failure.c) --------------------------------------------------------------------- */

/* The communicator fails. The first failure wins, and its sentence is kept. Pending operations end.
 * The group floor tells the peers in its next turn. The caller holds the engine. */
void ft_comm_fail(struct ft_comm *comm, int status, int culprit, const char *fmt, ...)
    FT_PRINTF(4, 5);
/* Who says that a communicator failed, and for what. -1: unknown. */
struct ft_told {
    int status, culprit;
    int noticed; /* the rank that noticed it */
    int teller;  /* -1: this rank noticed it */
};
void ft_comm_fail_told(struct ft_comm *comm, const struct ft_told *told, const char *text);
/* A rank was lost. If a liveness page has an earlier cause, comm fails for that cause. Otherwise
 * comm is ASKING, and the group floor asks further before it calls ft_comm_blame(). */
void ft_comm_lost(struct ft_comm *comm, int status, int rank, const char *fmt, ...) FT_PRINTF(4, 5);
/* Both for a comm that is ASKING: looks at the pages again; blames the lost rank. */
void ft_comm_ask_pages(struct ft_comm *comm);
void ft_comm_blame(struct ft_comm *comm);
/* Users see the failure from now on. */
void ft_comm_show_verdict(struct ft_comm *comm);
/* Nothing has failed, or the cause is not known yet. */
bool ft_comm_is_open(const struct ft_comm *comm);
/* What this rank believes of what rank `from` says about the failure of its communicator. The
 * numbers are bytes from outside. */
struct ft_told ft_told_check(const struct ft_comm *comm, int from, int status, int culprit,
                             int noticed);
/* Operations of the communicator lost this peer. Returns the status that the caller returns. */
int ft_comm_fail_peer(struct ft_comm *comm, const struct ft_op *op, int rank, int status);
/* The operation that starts now may have been called for an earlier view. Makes it name the same
 * ranks in this view. False: that is not possible, and the communicator has failed. */
bool ft_retry_translate(struct ft_comm *comm, struct ft_op *op);

/* ---- calls that differ (calls.c) ------------------------------------------------------------- */

void ft_calls_note(struct ft_comm *comm, const struct ft_op *op); /* the operation starts */
/* True: the peer's call differs from this rank's, and comm has failed. */
bool ft_mismatch_check(struct ft_comm *comm, int peer, uint64_t seq, uint64_t sig);
void ft_calls_check_announced(struct ft_comm *comm, const struct ft_op *op);
bool ft_calls_is_announced(const struct ft_comm *comm, uint64_t seq); /* by any rank */
void ft_calls_reset(struct ft_comm *comm);

/* ---- works (work.c) -------------------------------------------------------------------------- */

bool ft_run_take_inbox(struct ft_engine *engine); /* moves what users left into the queues */
/* one turn of a communicator that has not failed */
bool ft_run_turn(struct ft_comm *comm);
/* the slow part of a turn: measures how long the work has stood still */
void ft_run_tick(struct ft_comm *comm);
/* The first work repeats an earlier call, see fast_path.c. Starts it, and ends it if its messages
 * come soon. begun: its lane is at a step already. */
void ft_comm_repeat(struct ft_comm *comm, int looks, bool begun);
/* The repeated call, which is in no queue, gets its number. */
void ft_comm_number_repeat(struct ft_comm *comm, struct ft_op *op);
/* The operations of the works that have started: the first, and the one after op; NULL: none. */
struct ft_op *ft_run_first_op(const struct ft_comm *comm);
struct ft_op *ft_run_next_op(const struct ft_op *op);
/* The earliest deadline of the works that have started; 0: none has one. */
uint64_t ft_run_deadline_ns(const struct ft_comm *comm);
/* Pauses the communicator: collectives from number `from` + 1 on do not start until ft_run_go_on().
 * Those that run go on, and sends, receives and one-sided calls start. */
void ft_run_hold(struct ft_comm *comm, uint64_t from);
void ft_run_go_on(struct ft_comm *comm);
bool ft_run_is_held(const struct ft_comm *comm); /* one would start now, were it not held */
bool ft_comm_settle(struct ft_comm *comm); /* true: nothing of the running work is in flight */
/* Ends the works of a failed communicator. True: something moved. */
bool ft_run_drain(struct ft_comm *comm);
/* One turn of restoring inputs. True: all are restored. */
bool ft_run_restore(struct ft_comm *comm);
void ft_comm_retire(struct ft_comm *comm, int status); /* the first work is over */
void ft_op_finish(struct ft_op *op);                   /* the steps of the operation are over */
/* Its result is in place, too: counts the operation off its work. */
void ft_op_done(struct ft_op *op);
/* For which rank the running work waits (-1: unknown), in which operation, and a text that says so
 * (may be NULL); see waits.c. */
struct ft_blocker {
    int rank;
    bool sends;
    int lane;
    const struct ft_op *op;
    uint64_t step;
};
struct ft_blocker ft_work_waits_for(const struct ft_comm *comm, char *text, size_t len_bytes);
/* The plan for a collective. The cache has it if the same collective came before (plans.c). */
int ft_comm_plan(struct ft_comm *comm, const struct ft_coll *coll, struct ft_plan *plan);
void ft_plans_reset(struct ft_comm *comm);
/* ---- lanes (lanes.c), point-to-point (p2p.c), one-sided calls (rma.c) ------------------------ */

/* Returns the address that a step's reference stands for; NULL for FT_BUF_NONE. */
static inline char *ft_lane_at(const struct ft_op *op, struct ft_ref ref)
{
    switch (ref.buf) {
    case FT_BUF_IN:
        return (char *)(uintptr_t)op->in + ref.off;
    case FT_BUF_OUT:
        return (char *)op->out + ref.off;
    case FT_BUF_TMP:
        return op->tmp + ref.off;
    default:
        return NULL;
    }
}
/* Writes the sources of the step's pass, in the order of its plan. Returns their number. */
static inline int ft_lane_sources(const struct ft_lane *lane, const void **src)
{
    const struct ft_step *step = lane->step;
    int n = 0;
    for (int k = 0; k <= step->nrecv; k++) {
        if (k == step->src_at && step->src.buf != FT_BUF_NONE)
            src[n++] = ft_lane_at(lane->op, step->src);
        if (k < step->nrecv)
            src[n++] = lane->msgs[k].data;
    }
    return n;
}
bool ft_lanes_turn(struct ft_comm *comm);
void ft_lanes_start(struct ft_comm *comm); /* the first work begins */
/* Starts the steps of the repeated call that is loaded, and sends. */
void ft_lanes_repeat(struct ft_comm *comm, struct ft_op *op);
/* Finds out whether ft_lanes_take_short() may take the steps of a call (lanes_short.c). */
void ft_lanes_prepare_short(const struct ft_comm *comm, struct ft_repeat *repeat);
/* Takes all steps of the repeated call that is loaded. False: messages are late; the lane is at the
 * step that cannot go on. */
struct ft_short {
    uint64_t began_ns; /* when its first messages had been sent */
    bool recorded;     /* telemetry knows that it has begun */
};
bool ft_lanes_take_short(struct ft_comm *comm, struct ft_op *op, struct ft_short *out);
/* Where links read what the step sends, which lies at data: there, or in a copy for several
 * receivers. */
const void *ft_lane_copied(const struct ft_comm *comm, struct ft_lane *lane, const void *data);
void ft_lanes_trim(struct ft_comm *comm); /* frees copies that were not used since the last call */
void ft_lanes_free(struct ft_comm *comm); /* frees all copies; nothing is in flight */
void ft_lanes_drop(struct ft_comm *comm); /* after a failure: releases views and reservations */
/* takes all lanes from their steps, when everything has settled */
void ft_lanes_over(struct ft_comm *comm);
bool ft_lanes_settled(const struct ft_comm *comm); /* no pending send refers to user memory */
bool ft_lanes_pending_to(const struct ft_comm *comm, int rank);
/* A link of the peer is about to close: gives back what the communicator holds of it. */
void ft_lanes_forget(struct ft_comm *comm, const struct ft_peer *peer, struct ft_link *link);
void ft_lanes_reset(struct ft_comm *comm);
bool ft_p2p_turn(struct ft_comm *comm);
/* True: a message from the rank has arrived, and no receive has been called for it. It waits for
 * the next one. */
bool ft_p2p_probe(struct ft_comm *comm, int rank);
void ft_p2p_forget(struct ft_comm *comm, const struct ft_link *link); /* the link goes */
void ft_p2p_reset(struct ft_comm *comm); /* drops what is queued and kept */
void ft_p2p_start(struct ft_comm *comm, struct ft_op *op);
bool ft_rma_receive(struct ft_comm *comm);
bool ft_rma_turn(struct ft_comm *comm);
void ft_rma_reset(struct ft_comm *comm);
struct ft_blocker ft_rma_waits_for(const struct ft_comm *comm, char *text, size_t len_bytes);
/* the caller holds the engine */
struct ft_window *ft_window_find(const struct ft_comm *comm, uint64_t id);
int ft_window_add(struct ft_comm *comm, void *base, size_t len_bytes, struct ft_window **out);
/* False: there is no such window, perhaps because it was removed before. */
bool ft_window_remove(struct ft_comm *comm, const void *window);

/* ---- stages: what surrounds the steps of a work (preserve, verify, fuse, gpu) ---------------- */

/* A stage of a work. work.c calls the stages in the order of its table for every work, on its own
 * queue or on a stream. A stage without anything to do for a work returns at once. A function may
 * be NULL. */
struct ft_stage {
    /* Before the operations start: merges or adds operations, and tells the device. On an error
     * comm fails. */
    void (*begin)(struct ft_comm *comm, struct ft_work *work);
    /* The operations have their plans. Starts what must be over before the first step. */
    void (*start)(struct ft_comm *comm);
    /* One turn of what `start` began. True: it is over, or there was none. *moved: it did
     * something. */
    bool (*prepare)(struct ft_comm *comm, bool *moved);
    /* Brings results to their place. True: one has arrived. */
    bool (*deliver)(struct ft_comm *comm);
    /* draining_ns after a failure: true if nothing of the work is in flight here. */
    bool (*settle)(const struct ft_comm *comm, uint64_t draining_ns);
    /* One turn of restoring what the failed work has overwritten. True: nothing is left to do. */
    bool (*restore)(struct ft_comm *comm);
    /* The work has ended with this status. */
    void (*over)(struct ft_work *work, int status);
};
extern const struct ft_stage ft_fuse_stage, ft_verify_stage, ft_gpu_stage, ft_preserve_stage;

void ft_preserve_free(struct ft_comm *comm); /* frees the side buffer */
void ft_fuse_drop(struct ft_comm *comm);     /* drops inputs that are still being fetched */
/* With option verify, a message carries its checksum. */
static inline void ft_verify_seal(const struct ft_comm *comm, struct ft_header *header,
                                  const void *data)
{
    if (comm->limits.verify)
        header->crc = ft_message_sum(header, data);
}

#include "core/run/verify.h"

/* ---- passes (pass.c) ------------------------------------------------------------------------- */

/* open_queue() in gpu.c stores it with release, so a thread that sees the pointer sees what it
 * points to. NULL: none of the communicator's operations is on a queue. */
static inline struct ft_comm_gpu *ft_gpu_of(const struct ft_comm *comm)
{
    return __atomic_load_n(&comm->gpu, __ATOMIC_ACQUIRE);
}

/* Links read and write the operation's buffers themselves. */
static inline bool ft_op_links_reach(const struct ft_op *op)
{
    return !op->on_queue;
}

/* Starts one pass of an operation, on the queue where its buffers are. Returns what
 * ft_device_ops.reduce returns; on the host it is never FT_AGAIN. staged: for queues. */
static inline int ft_pass(struct ft_comm *comm, const struct ft_op *op,
                          const struct ft_reduce *pass, struct ft_device_staged staged,
                          struct ft_device_req *req)
{
    if (op->on_queue)
        return ft_pass_on_queue(comm, op, pass, staged, req);
    return req->status = comm->engine->device->ops->reduce(comm->engine->device, pass, req);
}

/* Whether the operation can read a message that came, if it is the operation's own. False: comm has
 * failed. */
static inline bool ft_pass_takes(struct ft_comm *comm, const struct ft_op *op, int rank,
                                 const struct ft_msg *msg)
{
    return !msg->devmem || ft_pass_takes_devmem(comm, op, rank, msg);
}

/* ---- readiness of a GPU's buffers (readiness.c) ---------------------------------------------- */

/* Tells all ranks whose messages this rank's GPU takes from their GPU's memory. For collectives
 * that have been reached, and for the next receive from a rank, it tells whether their buffers are
 * on the GPU. The caller holds the engine. */
void ft_readiness_attach(struct ft_comm *comm);
void ft_readiness_tell(struct ft_comm *comm);
void ft_readiness_tell_receive(struct ft_comm *comm, int rank);

#endif

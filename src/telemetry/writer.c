/*
 * Writes records. The caller of each function holds the rank's engine, so there is one writer.
 * Readers are other processes that map or read the file at any time. They check the guard of a
 * record (format.h).
 *
 * An operation that runs keeps its record, however many operations are enqueued after it: the ring
 * skips records in RUNNING or DRAINING. There is at most one such record per row of the
 * communicator table and channel, so MAX_STEP_OVER is enough. What the process reads from its own
 * file is checked before use: another process of the user may have written there.
 */
#include "writer.h"

#include <string.h>

#define NO_OP UINT32_MAX
#define MAX_STEP_OVER 256
#define LAST_GENERATION (UINT32_MAX / FT_TM_OPS - 1) /* so that NO_OP is never a handle */

static inline void store64(uint64_t *to, uint64_t value)
{
    __atomic_store_n(to, value, __ATOMIC_RELAXED);
}

static void copy_text(char *to, size_t size, const char *from)
{
    size_t len = from ? strnlen(from, size - 1) : 0;
    memcpy(to, from ? from : "", len);
    memset(to + len, 0, size - len);
}

/* ---- communicators --------------------------------------------------------------------------- */

int ft_telemetry_comm_open(struct ft_telemetry *t, uint64_t ctx, uint64_t epoch, int nranks,
                           int rank, const char *name)
{
    if (!t)
        return -1;
    for (int i = 0; i < FT_TM_COMMS; i++) {
        int row = (t->next_comm + i) % FT_TM_COMMS;
        struct ft_tm_comm *c = &t->file->comm[row];
        if (c->state == FT_TM_OPEN || c->state == FT_TM_JOINING)
            continue;
        guard_enter(&c->guard);
        memset(&c->state, 0, sizeof *c - offsetof(struct ft_tm_comm, state));
        t->seats_left = nranks <= FT_TM_SEATS / 2 ? nranks : 0;
        c->ctx = ctx;
        c->epoch = epoch;
        c->nranks = nranks;
        c->rank = rank;
        c->culprit = -1;
        c->opened_ns = ft_now_ns(t->env);
        copy_text(c->name, sizeof c->name, name);
        c->state = FT_TM_OPEN;
        guard_leave(&c->guard);
        t->next_comm = row + 1;
        return row;
    }
    store64(&t->file->header.lost_comms, t->file->header.lost_comms + 1);
    return -1;
}

static void set_state(struct ft_tm_comm *c, uint32_t state)
{
    guard_enter(&c->guard);
    c->state = state;
    guard_leave(&c->guard);
}

int ft_telemetry_comm_join(struct ft_telemetry *t, uint64_t ctx, int nranks, int rank,
                           const char *name)
{
    int row = ft_telemetry_comm_open(t, ctx, 0, nranks, rank, name);
    if (row >= 0)
        set_state(&t->file->comm[row], FT_TM_JOINING);
    return row;
}

void ft_telemetry_comm_joined(struct ft_telemetry *t, int comm)
{
    if (t && comm >= 0 && comm < FT_TM_COMMS)
        set_state(&t->file->comm[comm], FT_TM_FREE);
}

void ft_telemetry_comm_arrived(struct ft_telemetry *t, int comm, uint64_t ranks)
{
    if (t && comm >= 0 && comm < FT_TM_COMMS)
        store64(&t->file->comm[comm].issued, ranks);
}

void ft_telemetry_comm_close(struct ft_telemetry *t, int comm)
{
    if (!t || comm < 0 || comm >= FT_TM_COMMS)
        return;
    struct ft_tm_comm *c = &t->file->comm[comm];
    guard_enter(&c->guard);
    c->state = FT_TM_CLOSED;
    c->closed_ns = ft_now_ns(t->env);
    guard_leave(&c->guard);
}

static struct ft_tm_comm *comm_at(struct ft_telemetry *t, int comm)
{
    return t && comm >= 0 && comm < FT_TM_COMMS ? &t->file->comm[comm] : NULL;
}

/* Rows of a roster follow each other. One that would not fit begins at the start of the table. */
static uint32_t take_seat(struct ft_telemetry *t, struct ft_tm_comm *c)
{
    if (c->seats == 0) {
        bool fits = t->next_seat + (uint32_t)t->seats_left <= FT_TM_SEATS;
        c->seat = fits ? t->next_seat : 0;
        t->next_seat = c->seat;
    }
    t->seats_left--;
    return t->next_seat++ % FT_TM_SEATS;
}

void ft_telemetry_seat(struct ft_telemetry *t, int comm, int rank, uint64_t engine, uint64_t host)
{
    struct ft_tm_comm *c = comm_at(t, comm);
    if (!c || t->seats_left == 0)
        return;
    struct ft_tm_seat *seat = &t->file->seat[take_seat(t, c)];
    store64(&seat->ctx, 0);
    store64(&seat->engine, engine);
    store64(&seat->host, host);
    __atomic_store_n(&seat->rank, rank, __ATOMIC_RELAXED);
    __atomic_store_n(&seat->excluded, 0, __ATOMIC_RELAXED);
    __atomic_store_n(&seat->ctx, c->ctx, __ATOMIC_RELEASE);
    __atomic_store_n(&c->seats, c->seats + 1, __ATOMIC_RELEASE);
}

void ft_telemetry_comm_limits(struct ft_telemetry *t, int comm, uint64_t limit_ns, uint64_t before)
{
    struct ft_tm_comm *c = comm_at(t, comm);
    if (!c)
        return;
    store64(&c->limit_ns, limit_ns);
    store64(&c->before, before);
}

void ft_telemetry_comm_state(struct ft_telemetry *t, int comm, int phase, int status, int culprit)
{
    struct ft_tm_comm *c = comm_at(t, comm);
    if (!c)
        return;
    __atomic_store_n(&c->status, status, __ATOMIC_RELAXED);
    __atomic_store_n(&c->culprit, culprit, __ATOMIC_RELAXED);
    __atomic_store_n(&c->phase, (uint32_t)phase, __ATOMIC_RELAXED);
}

void ft_telemetry_comm_agrees(struct ft_telemetry *t, int comm, enum ft_agree_call call,
                              const unsigned char *exclude, uint64_t now_ns)
{
    struct ft_tm_comm *c = comm_at(t, comm);
    if (!c)
        return;
    for (uint32_t i = 0; i < c->seats; i++) {
        struct ft_tm_seat *seat = &t->file->seat[(c->seat + i) % FT_TM_SEATS];
        if (seat->ctx == c->ctx)
            __atomic_store_n(&seat->excluded, exclude && exclude[seat->rank], __ATOMIC_RELAXED);
    }
    __atomic_store_n(&c->agree_call, (uint32_t)call, __ATOMIC_RELAXED);
    __atomic_store_n(&c->agree_ns, now_ns, __ATOMIC_RELEASE);
}

void ft_telemetry_comm_agreed(struct ft_telemetry *t, int comm)
{
    struct ft_tm_comm *c = comm_at(t, comm);
    if (c)
        store64(&c->agree_ns, 0);
}

void ft_telemetry_comm_progress(struct ft_telemetry *t, int comm, uint64_t now_ns)
{
    struct ft_tm_comm *c = comm_at(t, comm);
    if (c)
        store64(&c->progress_ns, now_ns);
}

void ft_telemetry_step(struct ft_telemetry *t, int comm, uint64_t step)
{
    struct ft_tm_comm *c = comm_at(t, comm);
    if (!c)
        return;
    store64(&c->mark_ns[c->marks % FT_TM_STEPS], ft_now_ns(t->env));
    store64(&c->step, step);
    __atomic_store_n(&c->marks, c->marks + 1, __ATOMIC_RELEASE);
}

void ft_telemetry_call(struct ft_telemetry *t, int comm, const struct ft_called *call)
{
    struct ft_tm_comm *c = comm_at(t, comm);
    if (!c)
        return;
    store64(&c->call_ns, call->now_ns);
    store64(&c->call_sig, call->sig);
    store64(&c->call_site, (uint64_t)(uintptr_t)call->site);
    __atomic_store_n(&c->call_tid, call->tid, __ATOMIC_RELAXED);
    store64(&c->queued[call->kind], c->queued[call->kind] + 1);
    ft_telemetry_thread_calls(t, call->now_ns);
}

/* ---- operations ------------------------------------------------------------------------------ */

static struct ft_tm_op *take_slot(struct ft_telemetry *t)
{
    for (int i = 0; i < MAX_STEP_OVER; i++) {
        struct ft_tm_op *r = &t->file->op[t->next % FT_TM_OPS];
        if (r->state != FT_OP_RUNNING && r->state != FT_OP_DRAINING)
            break;
        t->next++;
    }
    uint32_t slot = t->next++ % FT_TM_OPS;
    struct ft_tm_op *r = &t->file->op[slot];
    uint32_t generation = r->id / FT_TM_OPS;
    guard_enter(&r->guard);
    r->id = (generation >= LAST_GENERATION ? 1 : generation + 1) * FT_TM_OPS + slot;
    return r;
}

static void add_one(uint64_t *count)
{
    store64(count, *count + 1);
}

static void set_form(struct ft_telemetry *t, int comm, const struct ft_coll *coll, const char *algo)
{
    struct ft_tm_op *form = &t->form;
    form->ctx = t->file->comm[comm].ctx;
    form->comm = (uint16_t)comm;
    form->count = coll->count;
    form->root = coll->root;
    form->kind = (uint8_t)coll->kind;
    form->type = (uint8_t)coll->type;
    form->red = (uint8_t)coll->red;
    if (algo != t->algo_from)
        /* names are constants, so equal pointers mean equal names */
        copy_text(form->algo, sizeof form->algo, algo);
    t->algo_from = algo;
}

static bool has_form(const struct ft_telemetry *t, int comm, const struct ft_coll *coll,
                     const char *algo)
{
    const struct ft_tm_op *form = &t->form;
    return form->comm == comm && form->ctx == t->file->comm[comm].ctx && algo == t->algo_from &&
           form->count == coll->count && form->root == coll->root && form->kind == coll->kind &&
           form->type == coll->type && form->red == coll->red;
}

/* The next record, written except for its times and its state. The caller leaves its guard. NULL:
 * there is none. */
static struct ft_tm_op *new_op(struct ft_telemetry *t, int comm, uint64_t seq,
                               const struct ft_coll *coll, const char *algo)
{
    if (comm < 0 || comm >= FT_TM_COMMS) {
        add_one(&t->file->header.lost_ops);
        return NULL;
    }
    if (!has_form(t, comm, coll, algo))
        set_form(t, comm, coll, algo);
    struct ft_tm_op *r = take_slot(t);
    const size_t from = offsetof(struct ft_tm_op, serial);
    memcpy((char *)r + from, (const char *)&t->form + from, sizeof *r - from);
    r->serial = ++t->serial;
    r->seq = seq;
    return r;
}

/* Writes the record of an operation that is NEW, RUNNING or DONE, and counts the operation as
 * issued. Returns its handle. */
static inline __attribute__((always_inline)) uint32_t write_op(
    struct ft_telemetry *t, int comm, uint64_t seq, const struct ft_coll *coll, const char *algo,
    struct ft_op_times times, enum ft_op_state state)
{
    struct ft_tm_op *r = t ? new_op(t, comm, seq, coll, algo) : NULL;
    if (!r)
        return NO_OP;
    const bool at_once = times.called_ns == 0;
    r->time_ns[FT_TM_CREATED] = at_once ? times.now_ns : times.called_ns;
    r->time_ns[FT_TM_STARTED] = state == FT_OP_NEW ? 0 : times.now_ns;
    r->time_ns[FT_TM_ENDED] = state == FT_OP_DONE ? times.now_ns : 0;
    r->state = (uint8_t)state;
    const uint32_t id = r->id;
    guard_leave(&r->guard);
    struct ft_tm_comm *c = &t->file->comm[comm];
    store64(&c->last_seq, seq);
    add_one(&c->issued);
    store64(&t->file->header.ops, t->serial);
    add_one(at_once ? &c->at_once[coll->kind] : &c->begun[coll->kind]);
    if (at_once)
        ft_telemetry_thread_calls(t, times.now_ns);
    return id;
}

static void count_done(struct ft_tm_comm *c, unsigned kind, uint64_t seq)
{
    add_one(&c->ended);
    add_one(&c->done[kind]);
    if (seq > c->last_done)
        store64(&c->last_done, seq);
}

uint32_t ft_telemetry_op(struct ft_telemetry *t, int comm, uint64_t seq, const struct ft_coll *coll,
                         const char *algo, struct ft_op_times times)
{
    return write_op(t, comm, seq, coll, algo, times, FT_OP_NEW);
}

uint32_t ft_telemetry_op_began(struct ft_telemetry *t, int comm, uint64_t seq,
                               const struct ft_coll *coll, const char *algo, uint64_t now_ns)
{
    return write_op(t, comm, seq, coll, algo, (struct ft_op_times){0, now_ns}, FT_OP_RUNNING);
}

void ft_telemetry_op_ended(struct ft_telemetry *t, int comm, uint64_t seq,
                           const struct ft_coll *coll, const char *algo, uint64_t now_ns)
{
    const struct ft_op_times times = {0, now_ns};
    if (write_op(t, comm, seq, coll, algo, times, FT_OP_DONE) != NO_OP)
        count_done(&t->file->comm[comm], (unsigned)coll->kind, seq);
}

/* Returns the record of a handle, or NULL if it has been overwritten. */
static struct ft_tm_op *find_op(struct ft_telemetry *t, uint32_t op)
{
    if (!t || op == NO_OP || op < FT_TM_OPS)
        return NULL; /* generations count from 1, so a valid handle is at least FT_TM_OPS */
    struct ft_tm_op *r = &t->file->op[op % FT_TM_OPS];
    return r->id == op ? r : NULL;
}

static int time_of(int state)
{
    static const unsigned char index[FT_OP_STATE_COUNT] = {
        [FT_OP_NEW] = FT_TM_CREATED,     [FT_OP_QUEUED] = FT_TM_QUEUED,
        [FT_OP_RUNNING] = FT_TM_STARTED, [FT_OP_DRAINING] = FT_TM_DRAINING,
        [FT_OP_DONE] = FT_TM_ENDED,      [FT_OP_FAILED] = FT_TM_ENDED,
        [FT_OP_SKIPPED] = FT_TM_ENDED};
    return (unsigned)state < FT_OP_STATE_COUNT ? index[state] : FT_TM_ENDED;
}

void ft_telemetry_op_state(struct ft_telemetry *t, uint32_t op, int state, int status,
                           uint64_t now_ns)
{
    struct ft_tm_op *r = find_op(t, op);
    if (!r)
        return;
    guard_enter(&r->guard);
    r->state = (uint8_t)state;
    r->status = status;
    r->time_ns[time_of(state)] = now_ns;
    guard_leave(&r->guard);
    if (state < FT_OP_DONE)
        return;
    struct ft_tm_comm *c = &t->file->comm[r->comm % FT_TM_COMMS];
    if (c->ctx != r->ctx)
        return; /* another communicator has the row now */
    if (state == FT_OP_DONE) {
        count_done(c, r->kind % FT_TM_KINDS, r->seq);
        return;
    }
    add_one(&c->ended);
    add_one(&c->failed);
}

void ft_telemetry_op_wait(struct ft_telemetry *t, uint32_t op, uint64_t step, uint32_t wait)
{
    struct ft_tm_op *r = find_op(t, op);
    if (r)
        store64(&r->wait, ft_min(step, UINT32_MAX) << FT_TM_STEP_SHIFT | wait);
}

/* ---- links ----------------------------------------------------------------------------------- */

int ft_telemetry_link_open(struct ft_telemetry *t, uint64_t peer, int peer_rank,
                           const char *transport, bool sender)
{
    if (!t)
        return -1;
    for (int i = 0; i < FT_TM_LINKS; i++) {
        int row = (t->next_link + i) % FT_TM_LINKS;
        struct ft_tm_link *l = &t->file->link[row];
        if (l->state == FT_TM_OPEN)
            continue;
        /* readers skip the row while it is FREE */
        __atomic_store_n(&l->state, FT_TM_FREE, __ATOMIC_RELAXED);
        store64(&l->messages, 0);
        store64(&l->bytes, 0);
        store64(&l->transfer_ns, 0);
        store64(&l->wait_ns, 0);
        store64(&l->peer, peer);
        l->peer_rank = peer_rank;
        l->sender = sender;
        copy_text(l->transport, sizeof l->transport, transport);
        __atomic_store_n(&l->state, FT_TM_OPEN, __ATOMIC_RELEASE);
        t->next_link = row + 1;
        return row;
    }
    store64(&t->file->header.lost_links, t->file->header.lost_links + 1);
    return -1;
}

void ft_telemetry_link_count(struct ft_telemetry *t, int link, uint64_t messages, uint64_t bytes,
                             uint64_t transfer_ns, uint64_t wait_ns)
{
    if (!t || link < 0 || link >= FT_TM_LINKS)
        return;
    struct ft_tm_link *l = &t->file->link[link];
    store64(&l->messages, messages);
    store64(&l->bytes, bytes);
    store64(&l->transfer_ns, transfer_ns);
    store64(&l->wait_ns, wait_ns);
}

void ft_telemetry_link_close(struct ft_telemetry *t, int link)
{
    if (t && link >= 0 && link < FT_TM_LINKS)
        __atomic_store_n(&t->file->link[link].state, FT_TM_CLOSED, __ATOMIC_RELEASE);
}

/* ---- paths ----------------------------------------------------------------------------------- */

#define WINDOW_NS 5000000000u

static struct ft_tm_path *find_path(struct ft_telemetry *t, int path)
{
    return t && path >= 0 && path < FT_TM_PATHS ? &t->file->path[path] : NULL;
}

int ft_telemetry_path_open(struct ft_telemetry *t, int link)
{
    if (!t || link < 0 || link >= FT_TM_LINKS)
        return -1;
    for (int i = 0; i < FT_TM_PATHS; i++) {
        int row = (t->next_path + i) % FT_TM_PATHS;
        struct ft_tm_path *p = &t->file->path[row];
        if (p->state == FT_TM_OPEN)
            continue;
        guard_enter(&p->guard);
        memset((char *)p + sizeof p->guard, 0, sizeof *p - sizeof p->guard);
        p->state = FT_TM_OPEN;
        p->link = (uint32_t)link;
        p->peer = t->file->link[link].peer;
        guard_leave(&p->guard);
        t->path_mark[row] = (struct ft_tm_path_sums){0};
        t->next_path = row + 1;
        return row;
    }
    store64(&t->file->header.lost_paths, t->file->header.lost_paths + 1);
    return -1;
}

void ft_telemetry_path_count(struct ft_telemetry *t, int path, const struct ft_link_path *from,
                             uint64_t now_ns)
{
    struct ft_tm_path *p = find_path(t, path);
    if (!p)
        return;
    const struct ft_tm_link *link = &t->file->link[p->link % FT_TM_LINKS];
    struct ft_tm_path_sums now = {.time_ns = now_ns,
                                  .messages = link->messages,
                                  .bytes = link->bytes,
                                  .network_ns = from->network_ns,
                                  .receiver_ns = from->receiver_ns,
                                  .credit_ns = link->wait_ns,
                                  .retransmits = from->retransmits};
    guard_enter(&p->guard);
    p->connections = (uint32_t)from->connections;
    p->source = from->source;
    p->destination = from->destination;
    p->rtt_ns = from->rtt_ns;
    p->least_rtt_ns = from->least_rtt_ns;
    p->flights = from->flights;
    p->now = now;
    if (t->path_mark[path].time_ns == 0)
        p->before = t->path_mark[path] = now;
    if (now_ns >= t->path_mark[path].time_ns + WINDOW_NS) {
        p->before = t->path_mark[path];
        t->path_mark[path] = now;
    }
    guard_leave(&p->guard);
}

void ft_telemetry_path_close(struct ft_telemetry *t, int path)
{
    struct ft_tm_path *p = find_path(t, path);
    if (!p)
        return;
    guard_enter(&p->guard);
    p->state = FT_TM_CLOSED;
    guard_leave(&p->guard);
}

/* ---- events ---------------------------------------------------------------------------------- */

void ft_telemetry_event(struct ft_telemetry *t, enum ft_moved what, uint64_t id, int rank, int from,
                        int to, int status)
{
    if (!t)
        return;
    struct ft_tm_event *e = &t->file->event[t->events++ % FT_TM_EVENTS];
    guard_enter(&e->guard);
    e->what = (uint8_t)what;
    e->from = (uint8_t)from;
    e->to = (uint8_t)to;
    e->serial = t->events;
    e->time_ns = ft_now_ns(t->env);
    e->id = id;
    e->rank = rank;
    e->status = status;
    guard_leave(&e->guard);
}

/* ---- names ----------------------------------------------------------------------------------- */

const char *ft_peer_state_name(int state)
{
    static const char *const name[FT_PEER_STATES] = {
#define X(name, text) text,
        FT_PEER_STATE_NAMES(X)
#undef X
    };
    return (unsigned)state < FT_PEER_STATES ? name[state] : "?";
}

const char *ft_comm_state_name(int state)
{
    static const char *const name[FT_COMM_STATES] = {
#define X(name, text) text,
        FT_COMM_STATE_NAMES(X)
#undef X
    };
    return (unsigned)state < FT_COMM_STATES ? name[state] : "?";
}

const char *ft_op_state_name(int state)
{
    static const char *const name[FT_OP_STATE_COUNT] = {
#define X(name) #name,
        FT_OP_STATES(X)
#undef X
    };
    return (unsigned)state < FT_OP_STATE_COUNT ? name[state] : "?";
}

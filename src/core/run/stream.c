/*
 * Host streams and their entries. A stream gives each entry a ticket. An entry runs when each of
 * its streams has finished as many entries as the ticket says. One lock of the process orders
 * submissions, so the order on streams and the order on communicators can never cross and deadlock.
 */
#include "core/run/run.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static pthread_mutex_t submit_lock = PTHREAD_MUTEX_INITIALIZER;

struct ft_stream *ft_engine_null_stream(struct ft_engine *engine)
{
    pthread_mutex_lock(&engine->inbox_lock);
    struct ft_stream *stream = engine->run->null_stream;
    if (stream)
        ft_stream_ref(stream);
    pthread_mutex_unlock(&engine->inbox_lock);
    return stream;
}

/* Their memory is never freed, so that a thread may ask whether a stream is idle that another one
 * destroys. */
static pthread_mutex_t unused_lock = PTHREAD_MUTEX_INITIALIZER;
static struct ft_stream *unused;

static struct ft_stream *take_unused(void)
{
    pthread_mutex_lock(&unused_lock);
    struct ft_stream *stream = unused;
    if (stream)
        unused = stream->next_unused;
    pthread_mutex_unlock(&unused_lock);
    return stream;
}

struct ft_stream *ft_stream_new(void)
{
    struct ft_stream *stream = take_unused();
    if (!stream)
        stream = calloc(1, sizeof *stream);
    if (!stream)
        return NULL;
    stream->text[0] = '\0';
    stream->head = stream->tail = NULL;
    atomic_store_explicit(&stream->error, FT_OK, memory_order_relaxed);
    atomic_store_explicit(&stream->next, 0, memory_order_relaxed);
    atomic_store_explicit(&stream->done, 0, memory_order_relaxed);
    pthread_mutex_init(&stream->lock, NULL);
    atomic_store(&stream->refs, 1);
    return stream;
}

void ft_stream_ref(struct ft_stream *stream)
{
    atomic_fetch_add_explicit(&stream->refs, 1, memory_order_relaxed);
}

void ft_stream_release(struct ft_stream *stream)
{
    if (atomic_fetch_sub_explicit(&stream->refs, 1, memory_order_acq_rel) != 1)
        return;
    pthread_mutex_destroy(&stream->lock);
    pthread_mutex_lock(&unused_lock);
    stream->next_unused = unused;
    unused = stream;
    pthread_mutex_unlock(&unused_lock);
}

bool ft_stream_is_idle(const struct ft_stream *stream)
{
    uint64_t next = atomic_load_explicit(&stream->next, memory_order_relaxed);
    return atomic_load_explicit(&stream->done, memory_order_acquire) >= next &&
           !atomic_load_explicit(&stream->error, memory_order_relaxed);
}

static void note_error(struct ft_stream *stream, int status, const struct ft_comm *culprit)
{
    if (status == FT_OK || atomic_load_explicit(&stream->error, memory_order_relaxed) != FT_OK)
        return;
    atomic_store_explicit(&stream->error, status, memory_order_relaxed);
    snprintf(stream->text, sizeof stream->text, "%.*s", (int)sizeof stream->text - 1,
             culprit ? culprit->failure.text : "");
}

void ft_stream_fail(struct ft_stream *stream, int status, const struct ft_comm *culprit)
{
    pthread_mutex_lock(&stream->lock);
    note_error(stream, status, culprit);
    pthread_mutex_unlock(&stream->lock);
}

/* Tells the caller the error once. The caller holds the stream's lock. */
static int take_error_locked(struct ft_stream *stream)
{
    int error = atomic_load_explicit(&stream->error, memory_order_relaxed);
    if (error == FT_OK)
        return FT_OK;
    atomic_store_explicit(&stream->error, FT_OK, memory_order_relaxed);
    return ft_fail(error, "%s", stream->text);
}

static struct ft_pool entries = {.lock = PTHREAD_MUTEX_INITIALIZER};

struct ft_entry *ft_entry_new(struct ft_stream *const *streams, int nstreams)
{
    struct ft_entry *entry = ft_pool_get(&entries);
    if (!entry && !(entry = malloc(sizeof *entry)))
        return NULL;
    memset(entry, 0, sizeof *entry);
    entry->on = nstreams <= 1 ? &entry->first : calloc((size_t)nstreams, sizeof *entry->on);
    if (!entry->on) {
        free(entry);
        return NULL;
    }
    entry->nstreams = nstreams;
    for (int i = 0; i < nstreams; i++) {
        ft_stream_ref(streams[i]);
        entry->on[i].stream = streams[i];
        entry->on[i].entry = entry;
    }
    return entry;
}

void ft_entry_free(struct ft_entry *entry)
{
    for (int i = 0; i < entry->nstreams; i++)
        ft_stream_release(entry->on[i].stream);
    if (entry->in_use) { /* of the fast path: the communicator keeps the structs */
        struct ft_comm *comm = entry->works->comm;
        atomic_store_explicit(entry->in_use, 0, memory_order_release);
        ft_comm_unref(comm);
        return;
    }
    for (struct ft_work *work = entry->works, *next; work; work = next) {
        next = work->next_in_entry;
        for (struct ft_op *op = work->ops, *after; op; op = after) {
            after = op->next;
            ft_op_free(op);
        }
        ft_comm_unref(work->comm);
        if (work != &entry->first_work)
            free(work);
    }
    if (entry->on != &entry->first)
        free(entry->on);
    if (!ft_pool_put(&entries, entry))
        free(entry);
}

struct ft_work *ft_entry_work(struct ft_entry *entry, struct ft_comm *comm)
{
    struct ft_work **at = &entry->works;
    for (; *at; at = &(*at)->next_in_entry)
        if ((*at)->comm == comm)
            return *at;
    struct ft_work *work = entry->works ? calloc(1, sizeof *work) : &entry->first_work;
    if (!work)
        return NULL;
    ft_comm_ref(comm);
    work->comm = comm;
    work->entry = entry;
    entry->nworks++;
    return *at = work;
}

void ft_work_add(struct ft_work *work, struct ft_op *op)
{
    op->work = work;
    op->next = NULL;
    if (work->last)
        work->last->next = op;
    else
        work->ops = op;
    work->last = op;
    work->nops++;
    work->ops_left++;
    if (op->coll.kind == FT_SEND || op->coll.kind == FT_RECV)
        work->has_p2p = true;
    if (op->coll.kind == FT_PUT || op->coll.kind == FT_WAIT)
        work->has_rma = true;
    if (op->on_queue)
        work->has_gpu = true;
}

bool ft_entry_ready(const struct ft_entry *entry)
{
    for (int i = 0; i < entry->nstreams; i++) {
        const struct ft_slot *slot = &entry->on[i];
        if (atomic_load_explicit(&slot->stream->done, memory_order_acquire) != slot->ticket)
            return false;
    }
    for (const struct ft_work *work = entry->works; work; work = work->next_in_entry)
        if (work->has_gpu && ft_gpu_reached(work) == FT_AGAIN)
            return false;
    return true;
}

static bool has_room(void *arg)
{
    const struct ft_comm *comm = arg;
    int most = __atomic_load_n(&comm->gpu, __ATOMIC_RELAXED) ? FT_GPU_QUEUE_MAX : FT_QUEUE_MAX;
    return atomic_load_explicit(&comm->works.queued, memory_order_relaxed) < most;
}

/* If a queue is full, the caller turns the engine until there is room. The operations in the queue
 * have deadlines. Without deadlines the wait still ends with the communicator, because a failure
 * empties the queue. */
static void wait_for_room(const struct ft_entry *entry)
{
    for (struct ft_work *work = entry->works; work; work = work->next_in_entry)
        if (!has_room(work->comm))
            ft_engine_wait(work->comm->engine, has_room, work->comm, 0);
}

static void take_tickets(struct ft_entry *entry)
{
    for (int i = 0; i < entry->nstreams; i++) {
        struct ft_slot *slot = &entry->on[i];
        struct ft_stream *stream = slot->stream;
        pthread_mutex_lock(&stream->lock);
        slot->ticket = atomic_load_explicit(&stream->next, memory_order_relaxed);
        atomic_store_explicit(&stream->next, slot->ticket + 1, memory_order_relaxed);
        slot->next = NULL;
        if (stream->tail)
            stream->tail->next = slot;
        else
            stream->head = slot;
        stream->tail = slot;
        pthread_mutex_unlock(&stream->lock);
    }
}

void ft_entry_begun(struct ft_entry *entry, struct ft_stream *stream, atomic_int *in_use)
{
    struct ft_work *work = &entry->first_work;
    entry->in_use = in_use;
    ft_comm_ref(work->comm);
    ft_stream_ref(stream);
    entry->first = (struct ft_slot){.stream = stream, .entry = entry};
    entry->on = &entry->first;
    entry->works = work;
    entry->nworks = entry->nstreams = 1;
    atomic_store_explicit(&entry->status, FT_OK, memory_order_relaxed);
    atomic_store_explicit(&entry->works_left, 1, memory_order_relaxed);
    atomic_store_explicit(&entry->slots_left, 2, memory_order_relaxed);
    atomic_fetch_add_explicit(&work->comm->works.queued, 1, memory_order_relaxed);
    take_tickets(entry);
}

/* The engines that a submission wakes or turns at its end. */
struct kicks {
    struct ft_engine *engines[FT_KICK_MAX];
    int n;
};

/* Takes a reference to the engine of each work. Returns whether there are several engines. */
static bool ref_engines(const struct ft_entry *entry)
{
    const struct ft_engine *last = NULL;
    bool several = false;
    for (struct ft_work *work = entry->works; work; work = work->next_in_entry) {
        several |= last && last != work->comm->engine;
        last = work->comm->engine;
        ft_engine_ref(work->comm->engine);
    }
    return several;
}

static void unref_engines(const struct ft_entry *entry)
{
    for (struct ft_work *work = entry->works; work; work = work->next_in_entry)
        ft_engine_unref(work->comm->engine);
}

static void note_call(struct ft_comm *comm, struct ft_op *op, uint64_t now_ns)
{
    static _Thread_local int tid;
    if (tid == 0)
        tid = (int)gettid();
    struct ft_called call = {op->coll.kind, ft_sig(&op->coll), now_ns, op->site, tid};
    op->called_ns = now_ns;
    ft_telemetry_call(comm->engine->telemetry,
                      atomic_load_explicit(&comm->row, memory_order_relaxed), &call);
}

static void put_in_inbox(struct ft_engine *engine, struct ft_work *work, uint64_t now_ns)
{
    atomic_fetch_add_explicit(&work->comm->works.queued, 1, memory_order_relaxed);
    for (struct ft_op *op = work->ops; op; op = op->next) {
        op->state = FT_OP_QUEUED;
        if (engine->telemetry)
            note_call(work->comm, op, now_ns);
    }
    pthread_mutex_lock(&engine->inbox_lock);
    work->next = NULL;
    if (engine->run->inbox_tail)
        engine->run->inbox_tail->next = work;
    else
        engine->run->inbox = work;
    engine->run->inbox_tail = work;
    atomic_store(&engine->inbox_count, 1);
    pthread_mutex_unlock(&engine->inbox_lock);
}

/* Once the last work is in an inbox, another thread may finish and free the entry. */
static void hand_over(struct ft_entry *entry, struct kicks *kicks, uint64_t now_ns)
{
    for (struct ft_work *work = entry->works, *next; work; work = next) {
        next = work->next_in_entry;
        struct ft_engine *engine = work->comm->engine;
        put_in_inbox(engine, work, now_ns);
        if (kicks->n < FT_KICK_MAX)
            kicks->engines[kicks->n++] = engine;
        else {
            ft_engine_wake(engine);
            ft_engine_unref(engine);
        }
    }
}

/* When the user made the calls of the entry. 0: nobody records it. */
static uint64_t time_of_call(const struct ft_entry *entry)
{
    for (const struct ft_work *work = entry->works; work; work = work->next_in_entry)
        if (work->comm->engine->telemetry)
            return ft_now_ns(work->comm->engine->env);
    return 0;
}

int ft_entry_submit(struct ft_entry *entry)
{
    uint64_t now_ns = time_of_call(entry);
    wait_for_room(entry);
    atomic_store_explicit(&entry->works_left, entry->nworks, memory_order_relaxed);
    atomic_store_explicit(&entry->slots_left, entry->nstreams + 1, memory_order_relaxed);
    bool several = ref_engines(entry);
    struct kicks kicks;
    kicks.n = 0;
    struct ft_gpu_later *later = NULL;
    pthread_mutex_lock(&submit_lock);
    int rc = ft_gpu_launch(entry, &later);
    if (rc != FT_OK) {
        pthread_mutex_unlock(&submit_lock);
        unref_engines(entry);
        return rc;
    }
    take_tickets(entry);
    hand_over(entry, &kicks, now_ns);
    pthread_mutex_unlock(&submit_lock);
    for (int i = 0; i < kicks.n; i++) {
        if (several || later)
            ft_engine_wake(kicks.engines[i]);
        else
            ft_engine_kick(kicks.engines[i]);
        ft_engine_unref(kicks.engines[i]);
    }
    ft_gpu_launch_later(later);
    return FT_OK;
}

/* Releases n holds of the entry. If these are all holds, as nearly always, that needs no locked
 * instruction. */
static void release_holds(struct ft_entry *entry, int n)
{
    /* pairs with the release of other holds */
    bool all = atomic_load_explicit(&entry->slots_left, memory_order_acquire) == n;
    if (all || atomic_fetch_sub_explicit(&entry->slots_left, n, memory_order_acq_rel) == n)
        ft_entry_free(entry);
}

/* Takes the place of an ended entry off its stream. An entry may end before earlier ones of the
 * stream, because those of a failed communicator do not wait. The stream advances to the first
 * entry that has not ended, and wakes its engines. True: the stream has passed this entry, and the
 * caller must release its hold. */
static bool pop_slot(struct ft_slot *slot, int status, const struct ft_comm *culprit)
{
    struct ft_stream *stream = slot->stream;
    bool own = false;
    pthread_mutex_lock(&stream->lock);
    note_error(stream, status, culprit);
    slot->over = true;
    struct ft_slot *passed = stream->head, *end = stream->head;
    for (; end && end->over; end = end->next)
        atomic_store_explicit(&stream->done, end->ticket + 1, memory_order_release);
    stream->head = end;
    if (!end)
        stream->tail = NULL;
    for (struct ft_work *work = end && end != passed ? end->entry->works : NULL; work;
         work = work->next_in_entry)
        ft_engine_wake(work->comm->engine);
    pthread_mutex_unlock(&stream->lock);
    for (struct ft_slot *next; passed != end; passed = next) {
        next = passed->next;
        if (passed != slot)
            release_holds(passed->entry, 1);
        else
            own = true;
    }
    return own;
}

void ft_entry_work_done(struct ft_work *work, int status)
{
    struct ft_entry *entry = work->entry;
    int none = FT_OK;
    if (status != FT_OK)
        atomic_compare_exchange_strong(&entry->status, &none, status);
    atomic_fetch_sub_explicit(&work->comm->works.queued, 1, memory_order_release);
    if (atomic_fetch_sub_explicit(&entry->works_left, 1, memory_order_acq_rel) != 1)
        return;
    status = atomic_load_explicit(&entry->status, memory_order_relaxed);
    const struct ft_comm *culprit = NULL;
    for (const struct ft_work *each = entry->works; each && !culprit; each = each->next_in_entry)
        if (atomic_load_explicit(&each->comm->failure.verdict, memory_order_acquire) == status)
            culprit = each->comm;
    int holds = 1;
    for (int i = 0; i < entry->nstreams; i++)
        holds += pop_slot(&entry->on[i], status, culprit);
    /* wakes threads that wait for the entry */
    for (work = entry->works; work && entry->nworks > 1; work = work->next_in_entry)
        ft_engine_wake(work->comm->engine);
    release_holds(entry, holds);
}

int ft_stream_query(struct ft_stream *stream)
{
    pthread_mutex_lock(&stream->lock);
    bool idle = !stream->head;
    int error = take_error_locked(stream);
    pthread_mutex_unlock(&stream->lock);
    return error != FT_OK ? error : idle ? FT_OK : FT_AGAIN;
}

struct until {
    struct ft_stream *stream;
    uint64_t done;
};

static bool has_reached(void *arg)
{
    struct until *until = arg;
    return atomic_load_explicit(&until->stream->done, memory_order_acquire) >= until->done;
}

/* What a waiter needs to know of a stream, read under one lock. */
struct stream_look {
    uint64_t next, done;
    int error;
    struct ft_engine *engine;
};

/* engine: that of the first unfinished entry, with a reference; NULL: nothing is unfinished. The
 * error is taken when all entries before ticket `all` are done; UINT64_MAX: all entries with a
 * ticket. */
static void look_at(struct ft_stream *stream, uint64_t all, struct stream_look *look)
{
    pthread_mutex_lock(&stream->lock);
    *look = (struct stream_look){
        .next = ft_min(all, atomic_load_explicit(&stream->next, memory_order_relaxed)),
        .done = atomic_load_explicit(&stream->done, memory_order_acquire)};
    if (look->done >= look->next)
        look->error = take_error_locked(stream);
    else if (stream->head) {
        look->engine = stream->head->entry->works->comm->engine;
        ft_engine_ref(look->engine);
    }
    pthread_mutex_unlock(&stream->lock);
}

int ft_stream_wait(struct ft_stream *stream)
{
    return ft_stream_wait_until(stream, UINT64_MAX);
}

/* As ft_engine_wait(), which knows no end at once. */
static bool wait_until(struct ft_engine *engine, struct until *until, uint64_t end_ns)
{
    uint64_t now = end_ns == UINT64_MAX ? 0 : ft_now_ns(ft_env_real());
    return ft_engine_wait(engine, has_reached, until,
                          end_ns == UINT64_MAX ? 0
                          : end_ns > now       ? end_ns - now
                                               : 1);
}

int ft_stream_wait_until(struct ft_stream *stream, uint64_t end_ns)
{
    struct stream_look look;
    if (ft_stream_is_idle(stream))
        return FT_OK;
    for (uint64_t all = UINT64_MAX;; all = look.next) {
        look_at(stream, all, &look);
        if (look.done >= look.next)
            return look.error;
        if (!look.engine)
            continue;
        struct until until = {stream, look.done + 1};
        bool reached = wait_until(look.engine, &until, end_ns);
        ft_engine_unref(look.engine);
        if (!reached)
            return FT_AGAIN;
        if (until.done >= look.next && ft_stream_is_idle(stream))
            return FT_OK;
    }
}

/* The NULL streams that a thread means: those of the ranks on which it enqueued. If every rank has
 * a thread, waiting for the streams of other ranks would wait for operations that only this
 * thread's next call can complete. */
static _Thread_local struct {
    uint64_t engine[32];
    int n;
    bool all;
} used;

static void mark_used(struct ft_engine *engine, void *arg)
{
    bool *watched_lives = arg;
    for (int i = 0; i < used.n; i++)
        watched_lives[i] |= used.engine[i] == engine->id;
}

static void forget_closed(void)
{
    bool watched_lives[FT_ARRAY_LEN(used.engine)] = {false};
    int n = 0;
    ft_engine_each(mark_used, watched_lives);
    for (int i = 0; i < used.n; i++)
        if (watched_lives[i])
            used.engine[n++] = used.engine[i];
    used.n = n;
}

void ft_null_stream_used(const struct ft_engine *engine)
{
    for (int i = used.n - 1; i >= 0; i--)
        if (used.engine[i] == engine->id)
            return;
    if (used.n == (int)FT_ARRAY_LEN(used.engine) && !used.all)
        forget_closed();
    if (used.n == (int)FT_ARRAY_LEN(used.engine))
        used.all = true;
    else
        used.engine[used.n++] = engine->id;
}

static bool is_meant(const struct ft_engine *engine)
{
    bool meant = used.all || used.n == 0;
    for (int i = 0; i < used.n && !meant; i++)
        meant = used.engine[i] == engine->id;
    return meant;
}

struct nulls {
    bool wait;
    uint64_t end_ns;
    int first;
};

static void null_one(struct ft_engine *engine, void *arg)
{
    struct nulls *nulls = arg;
    struct ft_stream *stream = is_meant(engine) ? ft_engine_null_stream(engine) : NULL;
    if (!stream)
        return;
    int rc = nulls->wait ? ft_stream_wait_until(stream, nulls->end_ns) : ft_stream_query(stream);
    if (nulls->first == FT_OK || nulls->first == FT_AGAIN)
        nulls->first = rc != FT_OK ? rc : nulls->first;
    ft_stream_release(stream);
}

int ft_null_streams(bool wait, uint64_t end_ns)
{
    struct nulls nulls = {wait, end_ns, FT_OK};
    ft_engine_each(null_one, &nulls);
    return nulls.first;
}

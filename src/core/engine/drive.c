/*
 * Decides which thread turns an engine. The driver is the thread that holds engine->drive; there is
 * one at a time. A thread that waits for a result turns the engine itself. If no thread waits, a
 * background thread turns it. A driver that has nothing to do sleeps in epoll and keeps the lock.
 * `sleeping` tells other threads that they must write to the eventfd to wake it. While user threads
 * drive, the background thread only naps, so that a blocking call needs no system call.
 */
#include "core/engine/engine.h"

#include <assert.h>
#include <errno.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <time.h>
#include <unistd.h>

#define NAP_NS 200000 /* nap of the background thread while user threads drive */
/* The nap when there is no work, or when user threads have driven for SHORT_NAPS naps. Each nap
 * costs a turn on their core. */
#define LONG_NAP_NS 1000000
#define SHORT_NAPS 5
/* The nap of a waiting driver while the GPU has work, or shortly after a graph replayed. */
#define GPU_NAP_NS 50000
#define REPLAYS_NS 100000000u   /* "shortly": replays often come in series */
#define MS 1000000u             /* in nanoseconds */
#define REPLAY_NS (1 * MS)      /* longest sleep while graphs hold groups */
#define SLEEP_BUSY_NS (10 * MS) /* longest sleep with work in progress: deadlines are checked */
#define SLEEP_IDLE_NS (1000 * MS)
/* The longest sleep while the engine watches liveness pages, without and with work in progress: no
 * descriptor reports that the kernel has marked a page. */
#define DEATH_WATCH_NS (10 * MS)
#define DEATH_WATCH_BUSY_NS (4 * MS)
#define IDLE_TURNS 2 /* turns without progress before the background thread sleeps */
#define SPIN_DEFAULT_NS 1000000u
#define TURNS_A_HOLD 8   /* idle turns of a waiting thread before it releases the engine */
#define SPINS_A_YIELD 16 /* holds of the engine between two calls of sched_yield() */
/* With more ranks than cores: idle turns, each with a sched_yield(), before a waiting thread
 * sleeps. */
#define YIELDS 32

/* ---- references ------------------------------------------------------------------------------ */

void ft_engine_ref(struct ft_engine *engine)
{
    atomic_fetch_add_explicit(&engine->refs, 1, memory_order_relaxed);
}

void ft_engine_unref(struct ft_engine *engine)
{
    if (atomic_fetch_sub_explicit(&engine->refs, 1, memory_order_acq_rel) != 1)
        return;
    pthread_mutex_destroy(&engine->drive);
    pthread_mutex_destroy(&engine->inbox_lock);
    free(engine);
}

/* ---- the process's engines ------------------------------------------------------------------- */

static pthread_mutex_t list_lock = PTHREAD_MUTEX_INITIALIZER;
static struct ft_engine *list;
static uint64_t numbers;  /* of engines opened so far; under list_lock */
static atomic_int listed; /* number of engines in the list; relaxed, a hint */

void ft_engine_enlist(struct ft_engine *engine)
{
    pthread_mutex_lock(&list_lock);
    engine->number = numbers++;
    engine->next = list;
    list = engine;
    atomic_fetch_add_explicit(&listed, 1, memory_order_relaxed);
    pthread_mutex_unlock(&list_lock);
}

void ft_engine_delist(struct ft_engine *engine)
{
    pthread_mutex_lock(&list_lock);
    for (struct ft_engine **at = &list; *at; at = &(*at)->next)
        if (*at == engine) {
            *at = engine->next;
            atomic_fetch_sub_explicit(&listed, 1, memory_order_relaxed);
            break;
        }
    pthread_mutex_unlock(&list_lock);
}

#define EACH_AT_ONCE 64

/* The list is always ordered by number, newest first, even if engines join and leave meanwhile. */
void ft_engine_each(void (*fn)(struct ft_engine *, void *), void *arg)
{
    struct ft_engine *some[EACH_AT_ONCE];
    uint64_t before = UINT64_MAX;
    for (int n = EACH_AT_ONCE; n == EACH_AT_ONCE;) {
        n = 0;
        pthread_mutex_lock(&list_lock);
        for (struct ft_engine *engine = list; engine && n < EACH_AT_ONCE; engine = engine->next) {
            if (engine->number >= before)
                continue;
            ft_engine_ref(engine);
            some[n++] = engine;
        }
        pthread_mutex_unlock(&list_lock);
        if (n > 0)
            before = some[n - 1]->number;
        for (int i = 0; i < n; i++) {
            fn(some[i], arg);
            ft_engine_unref(some[i]);
        }
    }
}

/* ---- lock, wake, sleep ----------------------------------------------------------------------- */

static void ring(struct ft_engine *engine)
{
    uint64_t one = 1;
    pthread_mutex_lock(&engine->inbox_lock); /* the descriptor is closed under this lock */
    if (engine->event_fd >= 0)
        while (write(engine->event_fd, &one, sizeof one) < 0 && errno == EINTR) {}
    pthread_mutex_unlock(&engine->inbox_lock);
}

void ft_engine_wake(struct ft_engine *engine)
{
    if (atomic_load(&engine->sleeping))
        ring(engine); /* pairs with the store in sleep_held() */
}

/* Builds without FT_CHECK_LOCKS do not record the driver. */
static void note_driver(struct ft_engine *engine, bool held)
{
#if defined(FT_CHECK_LOCKS)
    engine->driver = pthread_self();
    engine->driven = held;
#else
    (void)engine, (void)held;
#endif
}

void ft_engine_check_held(const struct ft_engine *engine, const char *where)
{
    bool held = engine->driven && pthread_equal(engine->driver, pthread_self());
    if (held || engine->manual) /* a simulation has one thread and takes no lock */
        return;
    fprintf(stderr, "%s: the calling thread does not hold the engine\n", where);
    assert(!"the caller must hold the engine");
}

bool ft_engine_trylock(struct ft_engine *engine)
{
    if (pthread_mutex_trylock(&engine->drive) != 0)
        return false;
    note_driver(engine, true);
    return true;
}

void ft_engine_lock(struct ft_engine *engine)
{
    if (ft_engine_trylock(engine))
        return;
    atomic_fetch_add(&engine->wanted, 1);
    ft_engine_wake(engine);
    pthread_mutex_lock(&engine->drive);
    note_driver(engine, true);
    atomic_fetch_sub(&engine->wanted, 1);
}

void ft_engine_unlock(struct ft_engine *engine)
{
    note_driver(engine, false);
    pthread_mutex_unlock(&engine->drive);
}

static void forget_ring(struct ft_engine *engine)
{
    uint64_t count;
    while (read(engine->event_fd, &count, sizeof count) < 0 && errno == EINTR) {}
}

/* Limits a sleep to the next heartbeat and to the look_ns of transports with links: no descriptor
 * reports some of their news. */
static uint64_t bounded_ns(const struct ft_engine *engine, uint64_t wait_ns)
{
    bool active = atomic_load_explicit(&engine->active, memory_order_relaxed);
    if (engine->watched > 0)
        wait_ns = ft_min(wait_ns, active ? DEATH_WATCH_BUSY_NS : DEATH_WATCH_NS);
    if (engine->captured > 0)
        wait_ns = ft_min(wait_ns, REPLAY_NS);
    if (engine->detect.beat_ns > 0 && engine->users > 0)
        wait_ns = ft_min(wait_ns, engine->detect.beat_ns);
    for (int i = 0; i < engine->ntransports; i++) {
        uint64_t look_ns = engine->transports[i]->look_ns;
        if (look_ns > 0 && engine->links[i] > 0)
            wait_ns = ft_min(wait_ns, look_ns);
    }
    return wait_ns;
}

/* The GPU has work of this engine, or replayed a graph shortly before. */
static bool waits_for_gpu(const struct ft_engine *engine)
{
    bool replays = engine->captured > 0 && engine->replayed_ns &&
                   ft_now_ns(engine->env) - engine->replayed_ns < REPLAYS_NS;
    return replays || atomic_load_explicit(&engine->gpu_works, memory_order_relaxed) > 0;
}

/* The GPU wakes no thread. While it has work of this engine, an idle driver naps and looks
 * again. */
static bool rest_for_gpu(struct ft_engine *engine)
{
    if (!waits_for_gpu(engine))
        return false;
    struct timespec time = {0, GPU_NAP_NS};
    struct pollfd fd = {.fd = engine->event_fd, .events = POLLIN};
    if (ppoll(&fd, 1, &time, NULL) > 0)
        forget_ring(engine);             /* otherwise the next rest ends at once */
    engine->turns |= FT_TURNS_OFTEN - 1; /* the next turn also asks the communicators */
    return true;
}

/* The background thread sleeps until the descriptor is readable, or a client of the responder or
 * its clock wants something. True: the descriptor is readable. */
static bool sleep_with_clients(struct ft_engine *engine, int fd, uint64_t wait_ns)
{
    struct pollfd fds[1 + FT_RAS_FDS] = {{.fd = fd, .events = POLLIN}};
    int n = ft_ras_wait_for(&engine->ras, fds + 1, &wait_ns);
    struct timespec time = {(time_t)(wait_ns / 1000000000u), (long)(wait_ns % 1000000000u)};
    if (ppoll(fds, (nfds_t)(1 + n), &time, NULL) <= 0)
        return false;
    for (int i = 1; i <= n; i++)
        engine->asked |= fds[i].revents != 0;
    return fds[0].revents != 0;
}

static bool wait_for_events(struct ft_engine *engine, uint64_t wait_ns, bool background)
{
    if (background)
        return sleep_with_clients(engine, engine->epoll_fd, wait_ns);
    struct epoll_event events[8];
    if (wait_ns >= MS)
        return epoll_wait(engine->epoll_fd, events, (int)FT_ARRAY_LEN(events),
                          (int)(wait_ns / MS)) != 0;
    struct timespec time = {0, (long)wait_ns};
    struct pollfd fd = {.fd = engine->epoll_fd, .events = POLLIN};
    return ppoll(&fd, 1, &time, NULL) != 0;
}

/* Sleeps until a peer or another thread does something. The caller holds the engine. Returns true
 * if something happened, false if the time passed. `mine` says how many of `wanted` are the
 * caller's. */
static bool sleep_held(struct ft_engine *engine, uint64_t wait_ns, int mine)
{
    if (rest_for_gpu(engine))
        return false;
    /* Pairs with ft_engine_wake(): either that call sees this store, or this thread sees the
     * caller's work. */
    atomic_store(&engine->sleeping, 1);
    bool quiet = !atomic_load(&engine->inbox_count) && atomic_load(&engine->wanted) <= mine &&
                 !atomic_load(&engine->stop);
    for (int i = 0; i < engine->ntransports; i++)
        if (quiet && !engine->transports[i]->ops->arm(engine->transports[i], true))
            quiet = false;
    bool woken = !quiet || wait_for_events(engine, bounded_ns(engine, wait_ns), mine == 0);
    for (int i = 0; i < engine->ntransports; i++)
        engine->transports[i]->ops->arm(engine->transports[i], false);
    atomic_store(&engine->sleeping, 0);
    if (woken)
        forget_ring(engine);
    engine->turns |= FT_TURNS_RARELY - 1; /* the next turn looks at everything */
    return woken;
}

/* ---- the background thread ------------------------------------------------------------------- */

/* While the GPU has work, the first naps only give up the core: a nap is longer than that work. */
static void nap(struct ft_engine *engine, int naps)
{
    int yields = atomic_load_explicit(&engine->gpu_works, memory_order_relaxed) ? YIELDS : 0;
    if (naps < yields) {
        sched_yield();
        return;
    }
    bool short_one = naps < yields + SHORT_NAPS &&
                     atomic_load_explicit(&engine->active, memory_order_relaxed);
    if (sleep_with_clients(engine, engine->event_fd, short_one ? NAP_NS : LONG_NAP_NS))
        forget_ring(engine);
}

static uint64_t spin_budget_ns(const struct ft_engine *engine)
{
    int64_t us = ft_param_int(FT_PARAM_SPIN_US);
    if (us >= 0)
        return (uint64_t)us * 1000;
    return atomic_load_explicit(&engine->crowded, memory_order_relaxed) ? 0 : SPIN_DEFAULT_NS;
}

/* A nap is many times longer than a command of the GPU or a message, and each step of an operation
 * waits for both. So the background thread does not rest for a while after each progress.
 * *since_ns: when it found nothing first, 0: not yet. False: the time is over, or the GPU has no
 * work. */
static bool spins_for_gpu(struct ft_engine *engine, uint64_t *since_ns)
{
    if (!waits_for_gpu(engine))
        return false;
    uint64_t now = ft_now_ns(engine->env);
    if (*since_ns == 0)
        *since_ns = now;
    engine->turns |= FT_TURNS_OFTEN - 1; /* the next turn also asks the communicators */
    return now - *since_ns < spin_budget_ns(engine);
}

static void *background(void *arg)
{
    struct ft_engine *engine = arg;
    int idle = 0, naps = 0;
    uint64_t since_ns = 0;
    while (!atomic_load(&engine->stop)) {
        ft_ras_serve(&engine->ras, engine->asked); /* without holding the engine */
        engine->asked = false;
        bool users = atomic_load(&engine->wanted) > 0 ||
                     atomic_exchange_explicit(&engine->user_drove, 0, memory_order_relaxed);
        if (users || !ft_engine_trylock(engine)) {
            nap(engine, naps++);
            continue;
        }
        naps = 0;
        idle = engine->turn(engine) ? 0 : idle + 1;
        bool spins = idle > IDLE_TURNS && spins_for_gpu(engine, &since_ns);
        if (idle > IDLE_TURNS && !spins) {
            bool active = atomic_load_explicit(&engine->active, memory_order_relaxed);
            bool woken = sleep_held(engine, active ? SLEEP_BUSY_NS : SLEEP_IDLE_NS, 0);
            idle = woken ? 0 : IDLE_TURNS; /* it found nothing: sleep again at once */
        }
        ft_engine_unlock(engine);
        if (idle == 0)
            since_ns = 0;
        if (spins && idle % SPINS_A_YIELD == 0)
            sched_yield();
        else if (spins)
            ft_cpu_relax();
    }
    return NULL;
}

int ft_engine_start_thread(struct ft_engine *engine)
{
    sigset_t all, old;
    sigfillset(&all);
    /* the user's signals must not arrive in this thread */
    pthread_sigmask(SIG_SETMASK, &all, &old);
    int err = pthread_create(&engine->thread, NULL, background, engine);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    if (err)
        return ft_fail(ft_status_of_errno(err == EAGAIN ? ENOMEM : err),
                       "cannot start the engine's thread: %s", strerror(err));
    engine->thread_running = true;
    pthread_setname_np(engine->thread, "ftccl-engine"); /* for diagnosis */
    return FT_OK;
}

void ft_engine_stop(struct ft_engine *engine)
{
    ft_engine_delist(engine);
    if (!engine->thread_running) {
        ft_ras_leave(&engine->ras);
        return;
    }
    engine->thread_running = false;
    atomic_store(&engine->stop, 1);
    ring(engine);
    pthread_join(engine->thread, NULL);
    ft_ras_leave(&engine->ras);
}

/* ---- waiting --------------------------------------------------------------------------------- */

struct help {
    struct ft_engine *but;
    bool moved;
};

static void help_one(struct ft_engine *engine, void *arg)
{
    struct help *help = arg;
    if (engine == help->but || !ft_engine_trylock(engine))
        return;
    help->moved |= engine->turn(engine);
    ft_engine_unlock(engine);
}

/* Turns the process's other engines: their ranks may need this thread to make progress. */
static bool help_others(struct ft_engine *but)
{
    struct help help = {but, false};
    if (atomic_load_explicit(&listed, memory_order_relaxed) <= 1)
        return false;
    ft_engine_each(help_one, &help);
    return help.moved;
}

struct patience {
    uint64_t spin_ns, since_ns;
    int idle;
    bool told; /* the table of threads says that this one waits */
};

/* Sleeps in a call of the user. */
static void sleep_in_call(struct ft_engine *engine, struct patience *patience)
{
    if (!patience->told)
        ft_telemetry_thread_waits(engine->telemetry, ft_now_ns(engine->env));
    patience->told = true;
    sleep_held(engine, SLEEP_BUSY_NS, 1);
}

/* Another thread may have closed the engine, with its telemetry, while this one slept. */
static void end_sleep(struct ft_engine *engine)
{
    ft_engine_lock(engine);
    ft_telemetry_thread_goes_on(engine->telemetry);
    ft_engine_unlock(engine);
}

/* Nothing moved: spins, gives up the core, or sleeps. */
static void be_patient(struct ft_engine *engine, struct patience *patience)
{
    patience->idle++;
    if (patience->spin_ns == 0) {
        if (patience->idle > YIELDS)
            sleep_in_call(engine, patience);
        else
            sched_yield();
        return;
    }
    if (patience->idle % SPINS_A_YIELD) {
        /* A pause is as long as a turn, so the first ones, when the peer may answer at any moment,
         * have none. */
        if (patience->idle > SPINS_A_YIELD)
            ft_cpu_relax();
        return;
    }
    sched_yield(); /* another process or thread may need this core */
    uint64_t now = ft_now_ns(engine->env);
    if (patience->idle == SPINS_A_YIELD)
        patience->since_ns = now;
    if (now - patience->since_ns > patience->spin_ns)
        sleep_in_call(engine, patience);
}

/* Turns the engine until something moves, or rests if nothing does. If another thread drives, it
 * only wakes that thread. */
static bool drive(struct ft_engine *engine, struct patience *patience)
{
    bool moved = false;
    if (!ft_engine_trylock(engine)) {
        ft_engine_wake(engine);
        sched_yield();
        return false;
    }
    int turns = patience->spin_ns ? TURNS_A_HOLD : 1;
    for (int i = 0; i < turns && !moved; i++)
        moved = engine->turn(engine);
    if (!moved)
        be_patient(engine, patience);
    else
        patience->idle = 0;
    ft_engine_unlock(engine);
    return moved;
}

bool ft_engine_wait(struct ft_engine *engine, bool (*done)(void *), void *arg, uint64_t bound_ns)
{
    if (done(arg))
        return true;
    struct patience patience = {.spin_ns = spin_budget_ns(engine)};
    uint64_t end = bound_ns ? ft_now_ns(engine->env) + bound_ns : UINT64_MAX;
    bool ok = false;
    atomic_fetch_add(&engine->wanted, 1);
    atomic_store_explicit(&engine->user_drove, 1, memory_order_relaxed);
    for (unsigned n = 1; !ok; n++) {
        bool moved = drive(engine, &patience);
        /* done() may itself try the lock, so the caller does not hold the engine here. */
        ok = done(arg);
        if (ok || moved)
            continue;
        if (n % 4 == 0 && help_others(engine))
            patience.idle = 0;
        if (end != UINT64_MAX && ft_now_ns(engine->env) > end)
            break;
    }
    if (patience.told)
        end_sleep(engine);
    atomic_fetch_sub(&engine->wanted, 1);
    return ok;
}

void ft_engine_kick(struct ft_engine *engine)
{
    if (ft_engine_trylock(engine)) {
        engine->turn(engine);
        ft_engine_unlock(engine);
    } else
        ft_engine_wake(engine);
}

/*
 * A member's side of managed membership: a thread that keeps it registered with a coordinator, and
 * the calls of its owner, which wait for that thread. Every wait ends at the caller's time limit,
 * and reads the caller's cancel flag at least every 50 ms.
 */
#include "membership/client.h"

#include "base/wire.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <sodium.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <time.h>

#define SLICE_NS 50000000

static pthread_mutex_t all_lock = PTHREAD_MUTEX_INITIALIZER;
static struct ft_client *all;

/* ---- the thread ------------------------------------------------------------------------------ */

static void *run(void *arg)
{
    struct ft_client *c = arg;
    pthread_mutex_lock(&c->lock);
    ft_client_conn_open(c, ft_now_ns(c->config.env));
    while (!c->stops) {
        eventfd_t value;
        short events = 0;
        uint64_t now_ns = ft_now_ns(c->config.env);
        ft_client_conn_turn(c, now_ns);
        uint64_t wait_ns = c->stops ? 0 : ft_client_conn_wait(c, now_ns, &events);
        struct pollfd fds[] = {{.fd = c->wake, .events = POLLIN},
                               {.fd = c->conn.fd, .events = events}};
        pthread_mutex_unlock(&c->lock);
        poll(fds, 2, (int)((wait_ns + 999999) / 1000000));
        if (fds[0].revents)
            eventfd_read(c->wake, &value);
        pthread_mutex_lock(&c->lock);
    }
    ft_client_conn_close(c);
    pthread_mutex_unlock(&c->lock);
    return NULL;
}

static void wake_thread(struct ft_client *c)
{
    eventfd_write(c->wake, 1);
}

static void stop_thread(struct ft_client *c, bool leaves)
{
    if (!c->started)
        return;
    pthread_mutex_lock(&c->lock);
    c->stops = true;
    c->leaves = leaves;
    pthread_mutex_unlock(&c->lock);
    wake_thread(c);
    pthread_join(c->thread, NULL);
    c->started = false;
}

static int start_thread(struct ft_client *c)
{
    sigset_t every, before;
    c->wake = ft_fd_own(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    if (c->wake < 0)
        return ft_fail(ft_status_of_errno(errno), "cannot start a member: %s", strerror(errno));
    sigfillset(&every);
    pthread_sigmask(SIG_BLOCK, &every, &before);
    int err = pthread_create(&c->thread, NULL, run, c);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (err)
        return ft_fail(ft_status_of_errno(err == EAGAIN ? ENOMEM : err),
                       "cannot start the thread of a member: %s", strerror(err));
    pthread_setname_np(c->thread, "ftccl-member"); /* for diagnosis */
    c->started = true;
    return FT_OK;
}

/* ---- life ------------------------------------------------------------------------------------ */

static bool is_name(const char *name, bool may_be_empty)
{
    return memchr(name, '\0', FT_NAME_BYTES) && (may_be_empty || name[0]);
}

static int check_config(const struct ft_client_config *config)
{
    const struct ft_role *role = &config->role;
    if (config->naddresses < 1 || config->naddresses > FT_COORDINATORS_MOST)
        return ft_fail(FT_INVAL, "a member needs 1 to %d addresses of coordinators, not %d",
                       FT_COORDINATORS_MOST, config->naddresses);
    if (!is_name(role->group, false) || !is_name(role->replica, true))
        return ft_fail(FT_INVAL, "the names of a group and of a replica have 1 to %d bytes",
                       FT_NAME_BYTES - 1);
    if (role->replica[0] &&
        (role->local_size > FT_LOCAL_MOST || role->local_rank >= role->local_size))
        return ft_fail(FT_INVAL, "rank %u of a replica of %u ranks (at most %d) makes no sense",
                       role->local_rank, role->local_size, FT_LOCAL_MOST);
    return FT_OK;
}

static void make_lock(struct ft_client *c)
{
    pthread_condattr_t attr;
    pthread_mutex_init(&c->lock, NULL);
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&c->changed, &attr);
    pthread_condattr_destroy(&attr);
}

static void free_client(struct ft_client *c)
{
    ft_fd_close(&c->wake);
    ft_client_held_clear(&c->held);
    ft_managed_view_free(c->fresh);
    pthread_cond_destroy(&c->changed);
    pthread_mutex_destroy(&c->lock);
    free(c->ask.dead);
    sodium_memzero(c->config.key, sizeof c->config.key);
    free(c);
}

static void enlist(struct ft_client *c)
{
    pthread_mutex_lock(&all_lock);
    c->next = all;
    c->link = &all;
    if (all)
        all->link = &c->next;
    all = c;
    pthread_mutex_unlock(&all_lock);
}

int ft_client_open(const struct ft_client_config *config, struct ft_client **out)
{
    if (ft_forked())
        return ft_fail(FT_FORKED, "a member cannot be made in a child of fork");
    int status = check_config(config);
    if (status != FT_OK)
        return status;
    ft_fork_guard();
    struct ft_client *c = calloc(1, sizeof *c);
    if (!c)
        return ft_fail(FT_NOMEM, "no memory for a member");
    c->config = *config;
    c->config.endpoint = NULL; /* the caller's */
    if (c->config.suspect_ms == 0)
        c->config.suspect_ms = 2000;
    c->engine = config->endpoint->engine;
    c->endpoint_bytes = ft_endpoint_encode(c->endpoint, config->endpoint);
    c->role = config->role;
    make_lock(c);
    status = start_thread(c);
    if (status != FT_OK) {
        free_client(c);
        return status;
    }
    enlist(c);
    *out = c;
    return FT_OK;
}

void ft_client_close(struct ft_client *c, bool leave)
{
    if (!c || ft_forked())
        return;
    pthread_mutex_lock(&all_lock);
    *c->link = c->next;
    if (c->next)
        c->next->link = c->link;
    pthread_mutex_unlock(&all_lock);
    stop_thread(c, leave);
    free_client(c);
}

/* The threads end when the library is unloaded, so that their code does not disappear while they
 * run. */
__attribute__((destructor)) static void stop_all(void)
{
    if (ft_forked())
        return;
    pthread_mutex_lock(&all_lock);
    for (struct ft_client *c = all; c; c = c->next)
        stop_thread(c, false);
    pthread_mutex_unlock(&all_lock);
}

void ft_client_role(struct ft_client *c, struct ft_role *out)
{
    bool forked = ft_forked(); /* the lock may be held for ever */
    if (!forked)
        pthread_mutex_lock(&c->lock);
    *out = c->role;
    if (!forked)
        pthread_mutex_unlock(&c->lock);
}

/* ---- waiting --------------------------------------------------------------------------------- */

struct wait {
    uint64_t begun_ns, deadline_ns;
    const atomic_int *cancel;
};

static struct wait begin_wait(const struct ft_client *c, uint64_t timeout_ns,
                              const atomic_int *cancel)
{
    uint64_t now_ns = ft_now_ns(c->config.env);
    bool bounded = timeout_ns < UINT64_MAX - now_ns;
    return (struct wait){now_ns, bounded ? now_ns + timeout_ns : UINT64_MAX, cancel};
}

/* Waits until the thread has changed something, for a slice at most. FT_TIMEOUT and FT_ABORTED have
 * no sentence yet. */
static int wait_once(struct ft_client *c, const struct wait *w)
{
    struct timespec at;
    uint64_t now_ns = ft_now_ns(c->config.env);
    /* pairs with the store of the thread that aborts */
    if (w->cancel && atomic_load_explicit(w->cancel, memory_order_acquire))
        return FT_ABORTED;
    if (now_ns >= w->deadline_ns)
        return FT_TIMEOUT;
    clock_gettime(CLOCK_MONOTONIC, &at);
    at.tv_nsec += (long)ft_min(SLICE_NS, w->deadline_ns - now_ns);
    at.tv_sec += at.tv_nsec / 1000000000;
    at.tv_nsec %= 1000000000;
    pthread_cond_timedwait(&c->changed, &c->lock, &at);
    return FT_OK;
}

/* ---- sentences ------------------------------------------------------------------------------- */

static int fail_unreachable(const struct ft_client *c, double seconds)
{
    char list[FT_FAIL_BYTES / 2] = "";
    size_t used = 0;
    for (int i = 0; i < c->config.naddresses && used < sizeof list; i++) {
        char text[FT_NET_TEXT_BYTES];
        const char *why = c->tried[i].status ? c->tried[i].why : "no answer yet";
        used += (size_t)snprintf(list + used, sizeof list - used, "%s%s: %s", i > 0 ? "; " : "",
                                 ft_net_text(&c->config.address[i], text), why);
    }
    return ft_fail(FT_TIMEOUT, "no coordinator could be reached within %.3g s (%s)", seconds, list);
}

static int fail_timeout(const struct ft_client *c, const struct wait *w)
{
    double seconds = (double)(ft_now_ns(c->config.env) - w->begun_ns) / 1e9;
    char at[FT_NET_TEXT_BYTES];
    if (c->again[0] && !c->accepted)
        return ft_fail(FT_USAGE, "%s", c->again);
    if (!c->connected)
        return fail_unreachable(c, seconds);
    ft_net_text(&c->config.address[c->conn.address], at);
    if (!c->accepted)
        return ft_fail(FT_TIMEOUT,
                       "the coordinator at %s has not accepted this member within %.3g s%s%s", at,
                       seconds, c->waits[0] ? ": " : "", c->waits);
    if (!c->role.replica[0])
        return ft_fail(FT_TIMEOUT, "this standby of group '%s' was not needed within %.3g s%s%s",
                       c->role.group, seconds, c->waits[0] ? ": " : "", c->waits);
    return ft_fail(FT_TIMEOUT, "there was no view of group '%s' within %.3g s: %s", c->role.group,
                   seconds,
                   c->waits[0] ? c->waits : "the coordinator has not said for what it waits");
}

static int fail_wait(const struct ft_client *c, const struct wait *w, int status)
{
    if (status == FT_TIMEOUT)
        return fail_timeout(c, w);
    return ft_fail(FT_ABORTED, "aborted while this member waited for a coordinator");
}

/* ---- calls ----------------------------------------------------------------------------------- */

int ft_client_accepted(struct ft_client *c, uint64_t timeout_ns, const atomic_int *cancel)
{
    if (ft_forked())
        return ft_fail(FT_FORKED, "the member belongs to the parent of the fork");
    struct wait w = begin_wait(c, timeout_ns, cancel);
    int status = FT_OK;
    pthread_mutex_lock(&c->lock);
    while (status == FT_OK && !c->accepted && !c->refused)
        status = wait_once(c, &w);
    if (c->accepted)
        status = FT_OK;
    else if (c->refused)
        status = ft_fail(c->refused, "%s", c->why);
    else
        status = fail_wait(c, &w, status);
    pthread_mutex_unlock(&c->lock);
    return status;
}

static int begin_ask(struct ft_client *c, const struct ft_view_ask *want)
{
    /* more are found by the coordinator itself */
    size_t ndead = want->ndead > 0 ? ft_min((size_t)want->ndead, FT_DEAD_MOST) : 0;
    unsigned char *dead = malloc(8 * ndead + 1), *at = dead;
    if (!dead)
        return ft_fail(FT_NOMEM, "no memory to ask for a view");
    for (size_t i = 0; i < ndead; i++)
        put64(&at, want->dead[i]);
    free(c->ask.dead);
    c->ask.dead = dead;
    c->ask.ndead = (uint32_t)ndead;
    /* It is said once: the same words could count for the view after the one that is under way. */
    bool news = c->ask.step != want->step || c->ask.failed != want->failed || ndead > 0;
    c->ask.step = want->step;
    c->ask.failed = want->failed;
    c->ask.sent = c->ask.sent && !news;
    c->ask.open = false;
    /* the coordinator has sent it on what this member said before */
    if (c->fresh && c->fresh->same && want->failed) {
        ft_managed_view_free(c->fresh);
        c->fresh = NULL;
    }
    return FT_OK;
}

static bool is_bound(const struct ft_client *c)
{
    return c->ask.bound && c->ask.term == c->term && c->ask.epoch == c->epoch;
}

/* The caller listens to what belongs to the next view, and then the coordinator may hear of it. The
 * lock is released meanwhile. An earlier caller may have done the same: a view that comes now is
 * good, because it is the one for which both bind. */
static int bind_next(struct ft_client *c, const struct ft_view_ask *want)
{
    struct ft_role role = c->role;
    uint64_t term = c->term, epoch = c->epoch;
    c->ask.bound = is_bound(c);
    pthread_mutex_unlock(&c->lock);
    int status = want->bind ? want->bind(want->arg, &role, term, epoch + 1) : FT_OK;
    pthread_mutex_lock(&c->lock);
    if (status != FT_OK || c->fresh)
        return status;
    c->ask.term = term;
    c->ask.epoch = epoch;
    c->ask.bound = c->ask.open = true;
    wake_thread(c);
    return FT_OK;
}

/* Blocks until there is a view for this caller. */
static int await_view(struct ft_client *c, const struct ft_view_ask *want, const struct wait *w)
{
    bool has_bound = false;
    int status = FT_OK;
    while (status == FT_OK && !c->fresh && !c->refused) {
        bool ready = c->accepted && c->role.replica[0];
        if (ready && (!has_bound || !is_bound(c))) {
            status = bind_next(c, want);
            if (status != FT_OK)
                return status;
            has_bound = true;
            continue;
        }
        status = wait_once(c, w);
    }
    if (c->fresh)
        return FT_OK;
    return c->refused ? ft_fail(c->refused, "%s", c->why) : fail_wait(c, w, status);
}

int ft_client_view(struct ft_client *c, const struct ft_view_ask *want,
                   struct ft_managed_view **out)
{
    if (ft_forked())
        return ft_fail(FT_FORKED, "the member belongs to the parent of the fork");
    struct wait w = begin_wait(c, want->timeout_ns, want->cancel);
    pthread_mutex_lock(&c->lock);
    int status = begin_ask(c, want);
    if (status == FT_OK)
        status = await_view(c, want, &w);
    c->ask.open = false;
    if (status == FT_OK) {
        *out = c->fresh;
        c->fresh = NULL;
        c->given_term = (*out)->term;
        c->given_epoch = (*out)->epoch;
        c->missed = false;
    }
    pthread_mutex_unlock(&c->lock);
    return status;
}

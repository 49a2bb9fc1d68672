/*
 * A coordinator with a port: one thread serves all members. It sleeps until something comes, and
 * looks at the clock while there are members.
 */
#include "membership/coord_server.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <sodium.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>

enum { EVENTS = 256, TICK_MS = 10, ACCEPTS_A_TURN = 64 };
#define MS UINT64_C(1000000)
#define PAUSE_NS (20 * MS) /* until the next try when no connection can be accepted */
#define SWEEP_NS (500 * MS)
#define GAP_NS (100 * MS) /* a longer time between two turns is one in which this thread slept */
/* After a turn of heartbeats, see rest(): for each connection, at least and at most. */
#define REST_EACH_NS UINT64_C(250)
#define REST_LEAST_NS (MS / 8)
#define REST_MOST_NS (4 * MS)

static pthread_mutex_t all_lock = PTHREAD_MUTEX_INITIALIZER;
static struct ft_coordinator *all;

/* ---- accepting ------------------------------------------------------------------------------- */

static void watch_listeners(struct ft_coordinator *s, uint32_t events)
{
    for (int i = 0; i < FT_COORD_LISTENERS; i++) {
        struct epoll_event event = {.events = events, .data.ptr = &s->listener[i]};
        if (s->listener[i] >= 0)
            epoll_ctl(s->epoll, EPOLL_CTL_MOD, s->listener[i], &event);
    }
}

static void pause_accepting(struct ft_coordinator *s)
{
    s->resume_ns = s->turned_ns + PAUSE_NS;
    watch_listeners(s, 0);
}

static void accept_some(struct ft_coordinator *s, int listener)
{
    s->only_beats = false;
    for (int i = 0; i < ACCEPTS_A_TURN; i++) {
        int fd = -1,
            status = ft_coord_peers_make_room(s) ? ft_net_accept(listener, &fd) : FT_NOTSUP;
        if (status == FT_AGAIN)
            return;
        if (status == FT_NOFILE && !s->said_nofile)
            FT_LOG(WARN, "members", -1, "the coordinator has %d members and %s", s->open.n,
                   ft_fail_text());
        s->said_nofile = status == FT_NOFILE;
        if (status != FT_OK) {
            pause_accepting(s);
            return;
        }
        ft_coord_peer_open(s, fd);
    }
}

/* ---- the thread ------------------------------------------------------------------------------ */

/* A thread that was stopped counts only a little of that time. */
static void count_time(struct ft_coordinator *s)
{
    uint64_t now_ns = ft_now_ns(s->env);
    s->running_ns += ft_min(now_ns - s->turned_ns, GAP_NS);
    s->turned_ns = now_ns;
}

static void tick(struct ft_coordinator *s)
{
    struct ft_coord_peer *silent;
    s->ticked_ns = s->turned_ns;
    while ((silent = ft_coord_tick(s->coord))) {
        ft_coord_peer_doom(silent, "its members were silent for too long");
        ft_coord_peers_close(s);
    }
    ft_coord_peers_settle(s);
}

static void do_due(struct ft_coordinator *s)
{
    if (s->resume_ns && s->resume_ns <= s->turned_ns) {
        s->resume_ns = 0;
        watch_listeners(s, EPOLLIN);
    }
    if (s->open.n > 0 && s->turned_ns - s->ticked_ns >= TICK_MS * MS)
        tick(s);
    if (s->running_ns - s->swept_ns >= SWEEP_NS) {
        s->swept_ns = s->running_ns;
        ft_coord_peers_sweep(s);
    }
}

static int nap_ms(const struct ft_coordinator *s)
{
    if (s->open.n > 0)
        return TICK_MS;
    if (s->resume_ns)
        return (int)(PAUSE_NS / MS);
    return s->early.n > 0 ? (int)(GAP_NS / MS) : -1;
}

static void handle(struct ft_coordinator *s, const struct epoll_event *event)
{
    int *descriptor = event->data.ptr;
    if (descriptor >= s->listener && descriptor < s->listener + FT_COORD_LISTENERS)
        accept_some(s, *descriptor);
    else if (event->data.ptr)
        ft_coord_peer_turn(s, event->data.ptr, event->events);
    ft_coord_peers_close(s);
}

static void publish_count(struct ft_coordinator *s)
{
    struct ft_coord_counts counts;
    ft_coord_count(s->coord, &counts);
    atomic_store_explicit(&s->nmembers, counts.members, memory_order_relaxed);
}

/* Heartbeats of many connections come one after another. If each wakes the thread, that costs four
 * times as much as to take them: so after a turn of heartbeats alone, without more that are ready,
 * it lets some gather. What else comes is late by that time once, a small part of what a view for
 * so many takes. */
static void rest(const struct ft_coordinator *s, int nevents)
{
    uint64_t rest_ns = ft_min((uint64_t)s->open.n * REST_EACH_NS, REST_MOST_NS);
    const struct timespec at_most = {.tv_nsec = (long)rest_ns};
    struct pollfd wake = {.fd = s->wake, .events = POLLIN};
    if (s->only_beats && nevents < EVENTS && rest_ns >= REST_LEAST_NS)
        ppoll(&wake, 1, &at_most, NULL);
}

/* `wake` stays readable: it is written once, and the thread ends. */
static void *serve(void *arg)
{
    struct ft_coordinator *s = arg;
    struct epoll_event event[EVENTS];
    s->turned_ns = ft_now_ns(s->env);
    while (!atomic_load_explicit(&s->stops, memory_order_acquire)) {
        int n = epoll_wait(s->epoll, event, EVENTS, nap_ms(s));
        count_time(s);
        s->only_beats = n > 0;
        for (int i = 0; i < n; i++)
            handle(s, &event[i]);
        ft_coord_peers_settle(s);
        do_due(s);
        ft_coord_peers_free(s);
        publish_count(s);
        rest(s, n);
    }
    return NULL;
}

/* ---- life ------------------------------------------------------------------------------------ */

/* The thread does not run. */
static void free_coordinator(struct ft_coordinator *s)
{
    ft_coord_peers_clear(s);
    if (s->coord)
        ft_coord_close(s->coord);
    for (int i = 0; i < FT_COORD_LISTENERS; i++)
        ft_fd_close(&s->listener[i]);
    ft_fd_close(&s->wake);
    ft_fd_close(&s->epoll);
    sodium_memzero(s->key, sizeof s->key);
    free(s);
}

static int open_parts(struct ft_coordinator *s)
{
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = NULL};
    const struct ft_coord_config config = {
        .env = s->env, .send = ft_coord_peer_send, .send_view = ft_coord_peer_send_view, .arg = s};
    s->epoll = ft_fd_own(epoll_create1(EPOLL_CLOEXEC));
    s->wake = s->epoll < 0 ? -1 : ft_fd_own(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    if (s->wake < 0 || epoll_ctl(s->epoll, EPOLL_CTL_ADD, s->wake, &event) != 0)
        return ft_fail(ft_status_of_errno(errno), "cannot start a coordinator: %s",
                       strerror(errno));
    return ft_coord_open(&config, &s->coord);
}

static int start_thread(struct ft_coordinator *s)
{
    sigset_t every, before;
    sigfillset(&every);
    pthread_sigmask(SIG_BLOCK, &every, &before);
    int err = pthread_create(&s->thread, NULL, serve, s);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (err)
        return ft_fail(ft_status_of_errno(err == EAGAIN ? ENOMEM : err),
                       "cannot start the thread of a coordinator: %s", strerror(err));
    pthread_setname_np(s->thread, "ftccl-coord"); /* for diagnosis */
    s->started = true;
    return FT_OK;
}

static void stop_thread(struct ft_coordinator *s)
{
    if (!s->started)
        return;
    atomic_store_explicit(&s->stops, 1, memory_order_release);
    eventfd_write(s->wake, 1);
    pthread_join(s->thread, NULL);
    s->started = false;
}

static void enlist(struct ft_coordinator *s)
{
    pthread_mutex_lock(&all_lock);
    s->next = all;
    s->link = &all;
    if (all)
        all->link = &s->next;
    all = s;
    pthread_mutex_unlock(&all_lock);
}

int ft_coordinator_start(const char *listen, const unsigned char key[FT_SECRET_BYTES],
                         char address[FT_NET_TEXT_BYTES], struct ft_coordinator **out)
{
    struct ft_net_address shown;
    if (ft_forked())
        return ft_fail(FT_FORKED, "a coordinator cannot be started in a child of fork");
    ft_fork_guard();
    struct ft_coordinator *s = calloc(1, sizeof *s);
    if (!s)
        return ft_fail(FT_NOMEM, "no memory for a coordinator");
    s->env = ft_env_real();
    s->epoll = s->wake = s->listener[0] = s->listener[1] = -1;
    memcpy(s->key, key, FT_SECRET_BYTES);
    int status = open_parts(s);
    if (status == FT_OK)
        status = ft_coord_listen(s, listen, &shown);
    if (status == FT_OK)
        status = start_thread(s);
    if (status != FT_OK) {
        free_coordinator(s);
        return status;
    }
    enlist(s);
    ft_net_text(&shown, address);
    *out = s;
    return FT_OK;
}

int ft_coordinator_members(struct ft_coordinator *s)
{
    return atomic_load_explicit(&s->nmembers, memory_order_relaxed);
}

void ft_coordinator_stop(struct ft_coordinator *s)
{
    if (!s || ft_forked())
        return;
    pthread_mutex_lock(&all_lock);
    *s->link = s->next;
    if (s->next)
        s->next->link = s->link;
    stop_thread(s);
    pthread_mutex_unlock(&all_lock);
    free_coordinator(s);
}

/* The threads end when the library is unloaded, so that their code does not disappear while they
 * run. */
__attribute__((destructor)) static void stop_all(void)
{
    if (ft_forked())
        return;
    pthread_mutex_lock(&all_lock);
    for (struct ft_coordinator *s = all; s; s = s->next)
        stop_thread(s);
    pthread_mutex_unlock(&all_lock);
}

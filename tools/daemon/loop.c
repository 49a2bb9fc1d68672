/*
 * The loop of a daemon: one thread waits for descriptors, signals and the next interval. Events are
 * taken one at a time, so that whoever is called may close any other descriptor.
 */
#include "daemon.h"
#include "membership/membership.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sodium.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/timerfd.h>
#include <time.h>
#include <unistd.h>

struct daemon {
    struct daemon_options options;
    struct daemon_service services[DAEMON_SERVICES];
    int nservices, epoll;
    struct daemon_watch signals;
    struct daemon_http *http;
    struct daemon_peers *peers;
    struct daemon_port *port;
    unsigned char key[FT_SECRET_BYTES];
    bool has_key, stops;
    uint64_t due_ns, chores_ns; /* when the next interval and the next chores begin */
};

uint64_t daemon_now_ns(void)
{
    return ft_now_ns(ft_env_real());
}

const struct daemon_options *daemon_options_of(const struct daemon *d)
{
    return &d->options;
}

struct daemon_peers *daemon_peers_of(const struct daemon *d)
{
    return d->peers;
}

const unsigned char *daemon_key(const struct daemon *d)
{
    return d->has_key ? d->key : NULL;
}

/* ---- descriptors ----------------------------------------------------------------------------- */

int daemon_watch_for(struct daemon *d, struct daemon_watch *watch, uint32_t events)
{
    struct epoll_event event = {.events = events, .data.ptr = watch};
    if (epoll_ctl(d->epoll, watch->added ? EPOLL_CTL_MOD : EPOLL_CTL_ADD, watch->fd, &event) != 0)
        return ft_fail(FT_NOMEM, "cannot wait for a descriptor: %s", strerror(errno));
    watch->added = true;
    return FT_OK;
}

void daemon_unwatch(struct daemon *d, struct daemon_watch *watch)
{
    if (watch->added)
        epoll_ctl(d->epoll, EPOLL_CTL_DEL, watch->fd, NULL);
    watch->added = false;
}

static void on_timer(void *arg, uint32_t events)
{
    struct daemon_timer *timer = arg;
    uint64_t times;
    (void)events;
    if (read(timer->watch.fd, &times, sizeof times) == sizeof times)
        timer->due(timer->arg);
}

int daemon_timer_start(struct daemon *d, struct daemon_timer *timer, uint64_t period_ns,
                       void (*due)(void *arg), void *arg)
{
    const struct timespec period = {.tv_sec = (time_t)(period_ns / 1000000000u),
                                    .tv_nsec = (long)(period_ns % 1000000000u)};
    const struct itimerspec setting = {.it_interval = period, .it_value = period};
    const int fd = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);
    if (fd < 0)
        return ft_fail(FT_NOFILE, "cannot make a timer: %s", strerror(errno));
    timerfd_settime(fd, 0, &setting, NULL);
    *timer = (struct daemon_timer){
        .watch = {.fd = fd, .ready = on_timer, .arg = timer}, .due = due, .arg = arg, .runs = true};
    int status = daemon_watch_for(d, &timer->watch, EPOLLIN);
    if (status != FT_OK)
        daemon_timer_stop(d, timer);
    return status;
}

void daemon_timer_stop(struct daemon *d, struct daemon_timer *timer)
{
    if (!timer->runs)
        return;
    daemon_unwatch(d, &timer->watch);
    close(timer->watch.fd);
    timer->runs = false;
}

/* ---- services -------------------------------------------------------------------------------- */

void daemon_add(struct daemon *d, const struct daemon_service *service)
{
    if (d->nservices < DAEMON_SERVICES)
        d->services[d->nservices++] = *service;
}

int daemon_services(const struct daemon *d, const struct daemon_service **out)
{
    *out = d->services;
    return d->nservices;
}

bool daemon_deliver(struct daemon *d, struct daemon_peer *peer, const struct daemon_message *m)
{
    for (int i = 0; i < d->nservices; i++)
        if (d->services[i].number == m->service && d->services[i].message)
            return d->services[i].message(d->services[i].arg, peer, m);
    return true; /* of a service that this program does not have */
}

void daemon_tell_opened(struct daemon *d, struct daemon_peer *peer)
{
    for (int i = 0; i < d->nservices; i++)
        if (d->services[i].opened)
            d->services[i].opened(d->services[i].arg, peer);
}

void daemon_tell_closed(struct daemon *d, struct daemon_peer *peer)
{
    for (int i = 0; i < d->nservices; i++)
        if (d->services[i].closed)
            d->services[i].closed(d->services[i].arg, peer);
}

/* ---- the loop -------------------------------------------------------------------------------- */

void daemon_hurry(struct daemon *d)
{
    d->due_ns = daemon_now_ns();
}

static void publish(struct daemon *d)
{
    for (enum daemon_text which = DAEMON_PAGE; which < DAEMON_TEXTS; which++) {
        size_t len;
        char *text = daemon_render(d, which, &len);
        if (text)
            daemon_http_publish(d->http, which, text, len);
    }
}

static void tick(struct daemon *d)
{
    for (int i = 0; i < d->nservices; i++)
        if (d->services[i].tick)
            d->services[i].tick(d->services[i].arg);
    publish(d);
}

#define CHORES_NS 50000000u

/* Ends what lasts too long. */
static void do_chores(struct daemon *d, uint64_t now_ns)
{
    d->chores_ns = now_ns + CHORES_NS;
    daemon_port_tick(d->port);
    daemon_peers_tick(d->peers);
    daemon_http_tick(d->http);
}

static void wait_for_event(struct daemon *d, uint64_t until_ns)
{
    uint64_t now_ns = daemon_now_ns();
    uint64_t wait_ns = until_ns > now_ns ? until_ns - now_ns : 0;
    struct epoll_event event;
    if (epoll_wait(d->epoll, &event, 1, (int)((wait_ns + 999999) / 1000000)) > 0) {
        struct daemon_watch *watch = event.data.ptr;
        watch->ready(watch->arg, event.events);
    }
}

int daemon_run(struct daemon *d)
{
    uint64_t interval_ns = (uint64_t)(d->options.interval_s * 1e9);
    d->due_ns = daemon_now_ns();
    while (!d->stops) {
        uint64_t now_ns = daemon_now_ns();
        if (now_ns >= d->chores_ns)
            do_chores(d, now_ns);
        if (now_ns >= d->due_ns) {
            d->due_ns = now_ns + interval_ns;
            tick(d);
        }
        daemon_peers_turn(d->peers);
        wait_for_event(d, ft_min(d->due_ns, d->chores_ns));
    }
    return 0;
}

/* ---- opening and closing --------------------------------------------------------------------- */

static void on_signal(void *arg, uint32_t events)
{
    struct daemon *d = arg;
    (void)events;
    d->stops = true; /* the signal is not taken: threads see that it is pending */
}

/* Signals come as data; the thread of HTTP inherits that they are blocked. */
static int open_signals(struct daemon *d)
{
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGTERM);
    sigaddset(&set, SIGINT);
    signal(SIGPIPE, SIG_IGN);
    signal(SIGXFSZ, SIG_IGN); /* a file that may not grow is an error of its write */
    pthread_sigmask(SIG_BLOCK, &set, NULL);
    d->signals = (struct daemon_watch){
        .fd = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK), .ready = on_signal, .arg = d};
    d->epoll = epoll_create1(EPOLL_CLOEXEC);
    if (d->signals.fd < 0 || d->epoll < 0)
        return ft_fail(FT_SYSTEM, "cannot make a descriptor: %s", strerror(errno));
    return daemon_watch_for(d, &d->signals, EPOLLIN);
}

/* As many descriptors as the system lets us have: one for each host. */
static void raise_limit(void)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur < limit.rlim_max) {
        limit.rlim_cur = limit.rlim_max;
        setrlimit(RLIMIT_NOFILE, &limit);
    }
}

static int open_key(struct daemon *d)
{
    unsigned char secret[FT_SECRET_BYTES];
    if (!d->options.key_file[0])
        return FT_OK;
    int status = ft_secret_of_file("--key-file", d->options.key_file, secret);
    if (status != FT_OK)
        return status;
    ft_auth_derive(d->key, secret, "daemons", 0);
    sodium_memzero(secret, sizeof secret);
    d->has_key = true;
    return FT_OK;
}

static int open_parts(struct daemon *d)
{
    raise_limit();
    int status = open_key(d);
    if (status != FT_OK || (status = open_signals(d)) != FT_OK)
        return status;
    if (!(d->http = daemon_http_open()) || !(d->peers = daemon_peers_open(d)) ||
        !(d->port = daemon_port_open(d, d->http)))
        return FT_SYSTEM;
    return FT_OK;
}

struct daemon *daemon_open(const struct daemon_options *options)
{
    struct daemon *d = calloc(1, sizeof *d);
    if (!d) {
        fprintf(stderr, "%s: no memory\n", options->program);
        return NULL;
    }
    d->options = *options;
    d->epoll = d->signals.fd = -1;
    if (open_parts(d) == FT_OK)
        return d;
    fprintf(stderr, "%s: %s\n", options->program, ft_fail_text());
    daemon_close(d);
    return NULL;
}

void daemon_close(struct daemon *d)
{
    daemon_port_close(d->port);
    daemon_peers_close(d->peers);
    daemon_http_close(d->http);
    if (d->signals.fd >= 0)
        close(d->signals.fd);
    if (d->epoll >= 0)
        close(d->epoll);
    sodium_memzero(d->key, sizeof d->key);
    free(d);
}

/*
 * The prober. Ports are probed at once, each hop after hop, at most `window` at a time and at most
 * `rate` a second. One port is the scout: it alone may probe a TTL for the first time, so that it
 * finds the TTL at which the host answers, and the others stop before. If the way of the scout ends
 * in silence, the next port is the scout; after SCOUTS of them the probing ends.
 */
#include "path/probe.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/timerfd.h>
#include <unistd.h>

#define TIMEOUT_NS 200000000u /* how long an answer is waited for */
#define TRIES 2               /* probes of one hop before it counts as unknown */
#define SCOUTS 4
#define SILENT_HOPS 3     /* of a scout, one after another: then only the host is asked */
#define FULL_TTL 64       /* reaches the host whatever is between */
#define SLACK_NS 5000000u /* what was not sent so long ago may be sent at once */
#define TURN_MS_MAX 100   /* of the call that blocks */
#define NONE (-1)
#define RANGE (65536 - FT_PATH_FIRST) /* ports to choose from */

/* READY: its next probe may be sent. PENDING: a probe is on the way. OVER: it asks no further.
 * TAKEN: something on this machine uses it, and there was no other port left. */
enum state { READY, PENDING, OVER, TAKEN };

/* A port, and the probe that it has on the way, if any. */
struct probe {
    enum state state;
    int ttl, tries; /* of the present hop */
    bool full;      /* the probe on the way has FULL_TTL */
    int fd;
    uint64_t sent_ns;
    struct ft_path_trace trace;
};

struct ft_prober {
    struct ft_path_config config;
    int epoll_fd, timer_fd;
    uint64_t interval_ns, next_ns, start_ns, end_ns;
    int status;         /* FT_AGAIN until it has ended */
    int nports, first;  /* ports before `first` are over */
    int start, nchosen; /* where the choice of ports began in their range; how many were chosen */
    int npending, window;
    int pending[FT_PATH_WINDOW]; /* the ports of the probes on the way */
    int scout, nscouts, nsilent; /* nsilent: hops without an answer */
    bool last;                   /* the scout asks the host only */
    int ceiling;                 /* ports that are no scouts may probe TTLs up to this */
    int distance;                /* the TTL at which the host answered; 0: not known */
    struct ft_path_table *table;
    struct probe probe[];
};

static int check(const struct ft_path_config *c);
static void set_defaults(struct ft_path_config *c);
static void prepare(struct ft_prober *p, const struct ft_path_config *config);
static bool choose_port(struct ft_prober *p, int i);
static int open_fds(struct ft_prober *p);
static void read_answers(struct ft_prober *p, uint64_t now_ns);
static void expire(struct ft_prober *p, uint64_t now_ns);
static int launch_all(struct ft_prober *p, uint64_t now_ns);
static void replace_port(struct ft_prober *p, int i);
static int next_port(struct ft_prober *p);
static int launch(struct ft_prober *p, int i, uint64_t now_ns);
static void close_probe(struct ft_prober *p, int i);
static void take_answer(struct ft_prober *p, int i, enum ft_path_answer answer,
                        const unsigned char by[16], uint64_t now_ns);
static void end_port(struct ft_prober *p, int i, enum state state);
static void begin_scout(struct ft_prober *p, int i);
static void advance_scout(struct ft_prober *p, bool answered);
static void next_scout(struct ft_prober *p);
static void end_all(struct ft_prober *p);
static int finish(struct ft_prober *p, uint64_t now_ns);
static void set_timer(struct ft_prober *p, uint64_t now_ns, bool more);

int ft_prober_open(const struct ft_path_config *config, struct ft_prober **out)
{
    int status = check(config);
    if (status != FT_OK)
        return status;
    struct ft_prober *p = calloc(1, sizeof(*p) + (size_t)config->nports * sizeof(struct probe));
    struct ft_path_table *table = calloc(1, sizeof(*table));
    if (p == NULL || table == NULL) {
        free(p);
        free(table);
        return ft_fail(FT_NOMEM, "no memory to probe %d ports", config->nports);
    }
    p->table = table;
    prepare(p, config);
    status = open_fds(p);
    if (status != FT_OK) {
        ft_prober_close(p);
        return status;
    }
    *out = p;
    return FT_OK;
}

int ft_prober_fd(const struct ft_prober *p)
{
    return p->epoll_fd;
}

int ft_prober_turn(struct ft_prober *p)
{
    if (p->status != FT_AGAIN)
        return p->status;
    uint64_t now_ns = ft_now_ns(p->config.env);
    read_answers(p, now_ns);
    expire(p, now_ns);
    const int status = launch_all(p, now_ns);
    if (status != FT_OK) {
        end_all(p);
        return p->status = status;
    }
    now_ns = ft_now_ns(p->config.env);
    const bool more = next_port(p) != NONE;
    if (now_ns >= p->end_ns && p->first < p->nports) {
        p->table->cut = true;
        end_all(p);
    }
    if (p->first == p->nports)
        return p->status = finish(p, now_ns);
    set_timer(p, now_ns, more);
    return FT_AGAIN;
}

struct ft_path_table *ft_prober_take(struct ft_prober *p)
{
    struct ft_path_table *table = p->status == FT_OK ? p->table : NULL;
    if (table != NULL)
        p->table = NULL;
    return table;
}

void ft_prober_close(struct ft_prober *p)
{
    if (p == NULL)
        return;
    while (p->npending > 0)
        close_probe(p, p->pending[0]);
    ft_fd_close(&p->timer_fd);
    ft_fd_close(&p->epoll_fd);
    ft_path_table_free(p->table);
    free(p);
}

int ft_path_probe(const struct ft_path_config *config, struct ft_path_table **out)
{
    struct ft_prober *p = NULL;
    int status = ft_prober_open(config, &p);
    if (status != FT_OK)
        return status;
    while ((status = ft_prober_turn(p)) == FT_AGAIN) {
        struct epoll_event ev;
        (void)epoll_wait(p->epoll_fd, &ev, 1, TURN_MS_MAX);
    }
    if (status == FT_OK)
        *out = ft_prober_take(p);
    ft_prober_close(p);
    return status;
}

static int check(const struct ft_path_config *c)
{
    if (c->to.family != AF_INET && c->to.family != AF_INET6)
        return ft_fail(FT_INVAL, "paths lead to IPv4 and IPv6 addresses only");
    if (c->from.family != 0 && c->from.family != c->to.family)
        return ft_fail(FT_INVAL, "paths cannot lead from an %s address to an %s address",
                       c->from.family == AF_INET6 ? "IPv6" : "IPv4",
                       c->to.family == AF_INET6 ? "IPv6" : "IPv4");
    if (c->to.port == 0)
        return ft_fail(FT_INVAL, "a path leads to a port from 1 to 65535");
    if (c->nports < 1 || c->nports > FT_PATH_PORTS)
        return ft_fail(FT_INVAL, "%d ports cannot be probed; it can be 1 to %d", c->nports,
                       FT_PATH_PORTS);
    return FT_OK;
}

static void set_defaults(struct ft_path_config *c)
{
    if (c->window <= 0)
        c->window = 32;
    if (c->window > FT_PATH_WINDOW)
        c->window = FT_PATH_WINDOW;
    if (c->rate <= 0)
        c->rate = 1000;
    if (c->duration_ns == 0)
        c->duration_ns = 5000000000u;
}

static void prepare(struct ft_prober *p, const struct ft_path_config *config)
{
    p->config = *config;
    set_defaults(&p->config);
    p->nports = config->nports;
    p->start = (int)((int64_t)getpid() * p->nports % RANGE);
    for (int i = 0; i < p->nports; i++)
        (void)choose_port(p, i);
    p->window = p->config.window;
    p->interval_ns = 1000000000u / (uint64_t)p->config.rate;
    p->start_ns = ft_now_ns(config->env);
    p->end_ns = p->start_ns + p->config.duration_ns;
    p->next_ns = p->start_ns;
    p->status = FT_AGAIN;
    *p->table = (struct ft_path_table){.from = config->from,
                                       .to = config->to,
                                       .probed_ns = p->start_ns,
                                       .outcome = FT_PATH_SILENT,
                                       .nhops = -1};
}

/* Gives a probe the next port that was not chosen before. Returns false if there is none. */
static bool choose_port(struct ft_prober *p, int i)
{
    if (p->nchosen == RANGE)
        return false;
    const uint16_t port = (uint16_t)(FT_PATH_FIRST + (p->start + p->nchosen++) % RANGE);
    p->probe[i] = (struct probe){.ttl = 1, .fd = -1, .trace = {.port = port}};
    return true;
}

static int open_fds(struct ft_prober *p)
{
    struct epoll_event ev = {.events = EPOLLIN, .data.u32 = UINT32_MAX};
    p->timer_fd = -1;
    p->epoll_fd = ft_fd_own(epoll_create1(EPOLL_CLOEXEC));
    if (p->epoll_fd >= 0)
        p->timer_fd = ft_fd_own(timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC));
    if (p->timer_fd < 0 || epoll_ctl(p->epoll_fd, EPOLL_CTL_ADD, p->timer_fd, &ev) != 0)
        return ft_fail(ft_status_of_errno(errno), "cannot begin to probe paths: %s",
                       strerror(errno));
    set_timer(p, p->start_ns, true);
    return FT_OK;
}

/* The timer's event says nothing: setting the timer again takes it away. */
static void read_answers(struct ft_prober *p, uint64_t now_ns)
{
    struct epoll_event ev[FT_PATH_WINDOW + 1];
    const int n = epoll_wait(p->epoll_fd, ev, (int)FT_ARRAY_LEN(ev), 0);
    for (int k = 0; k < n; k++) {
        const int i = (int)ev[k].data.u32;
        unsigned char by[16] = {0};
        if (ev[k].data.u32 == UINT32_MAX || p->probe[i].state != PENDING)
            continue;
        const enum ft_path_answer answer = ft_path_poll(p->probe[i].fd, &p->config.to, by);
        if (answer != FT_PATH_NOTHING)
            take_answer(p, i, answer, by, now_ns);
    }
}

static void expire(struct ft_prober *p, uint64_t now_ns)
{
    for (int k = p->npending - 1; k >= 0; k--) {
        /* an answer may have ended all others */
        if (k >= p->npending)
            continue;
        const int i = p->pending[k];
        if (now_ns - p->probe[i].sent_ns >= TIMEOUT_NS)
            take_answer(p, i, FT_PATH_UNCLEAR, NULL, now_ns);
    }
}

/* Without descriptors it goes on with fewer probes at once, as long as there is one. Taken ports
 * count for the rate, too, so that a turn is short even if all are taken. */
static int launch_all(struct ft_prober *p, uint64_t now_ns)
{
    if (p->next_ns + SLACK_NS < now_ns)
        p->next_ns = now_ns - SLACK_NS;
    for (int i; p->next_ns <= now_ns && p->npending < p->window && (i = next_port(p)) != NONE;) {
        const int status = launch(p, i, now_ns);
        if ((status == FT_NOFILE || status == FT_NOMEM) && p->npending > 0) {
            p->window = p->npending;
        } else if (status == FT_OK || status == FT_AGAIN) {
            p->next_ns += p->interval_ns;
            if (status == FT_AGAIN)
                replace_port(p, i);
        } else {
            return status;
        }
    }
    return FT_OK;
}

/* The port is taken: another one begins in its place. */
static void replace_port(struct ft_prober *p, int i)
{
    p->table->ntaken++;
    if (!choose_port(p, i))
        end_port(p, i, TAKEN);
    else if (i == p->scout)
        begin_scout(p, i);
}

/* The first port that may send: ports are completed one after another, so that hops are asked in
 * turn. Ports that have nothing left to ask are over. */
static int next_port(struct ft_prober *p)
{
    for (int i = p->first; i < p->nports; i++) {
        struct probe *q = &p->probe[i];
        if (q->state == READY && p->distance > 0 && q->ttl >= p->distance)
            end_port(p, i, OVER);
        if (q->state == READY && (i == p->scout || q->ttl <= p->ceiling))
            return i;
    }
    return NONE;
}

/* The address from which probes go. */
static void note_source(struct ft_prober *p, int fd)
{
    struct ft_net_address from;
    if (ft_net_source(fd, &from) != FT_OK)
        return;
    p->table->from = from;
    p->table->from.port = 0;
}

static int launch(struct ft_prober *p, int i, uint64_t now_ns)
{
    struct probe *q = &p->probe[i];
    struct epoll_event ev = {.events = EPOLLIN | EPOLLOUT, .data.u32 = (uint32_t)i};
    q->full = i == p->scout && p->last;
    int status = ft_path_probe_start(&p->config.from, &p->config.to, q->trace.port,
                                     q->full ? FULL_TTL : q->ttl, &q->fd);
    if (status != FT_OK)
        return status;
    if (epoll_ctl(p->epoll_fd, EPOLL_CTL_ADD, q->fd, &ev) != 0) {
        status = ft_fail(ft_status_of_errno(errno), "cannot wait for a probe: %s", strerror(errno));
        ft_fd_close(&q->fd);
        return status;
    }
    if (p->table->nprobes++ == 0)
        note_source(p, q->fd);
    q->state = PENDING;
    q->tries++;
    q->sent_ns = now_ns;
    p->pending[p->npending++] = i;
    return FT_OK;
}

/* The probe on the way is over; its connection is reset. */
static void close_probe(struct ft_prober *p, int i)
{
    for (int k = 0; k < p->npending; k++)
        if (p->pending[k] == i) {
            p->pending[k] = p->pending[--p->npending];
            break;
        }
    ft_fd_close(&p->probe[i].fd);
    p->probe[i].state = READY;
}

static void host_answered(struct ft_prober *p, int i)
{
    if (p->probe[i].full && p->distance == 0) {
        p->table->outcome = FT_PATH_HIDDEN;
        return end_all(p);
    }
    const int ttl = p->probe[i].ttl;
    if (!p->probe[i].full && (p->distance == 0 || ttl < p->distance))
        p->distance = ttl;
    p->ceiling = p->distance - 1;
    p->table->outcome = FT_PATH_REACHED;
    p->scout = NONE;
    end_port(p, i, OVER);
}

static void router_answered(struct ft_prober *p, int i, const unsigned char by[16], uint64_t now_ns)
{
    struct probe *q = &p->probe[i];
    struct ft_path_hop *hop = &q->trace.hop[q->ttl - 1];

    hop->known = true;
    hop->rtt_ns = now_ns - q->sent_ns;
    memcpy(hop->ip, by, sizeof(hop->ip));
    p->table->asked[q->ttl - 1]++;
    p->table->answered[q->ttl - 1]++;
    q->tries = 0;
    q->ttl++;
    if (i == p->scout)
        advance_scout(p, true);
}

static void router_refused(struct ft_prober *p, int i, const unsigned char by[16])
{
    if (!p->probe[i].full)
        p->table->asked[p->probe[i].ttl - 1]++;
    p->table->refuser = (struct ft_net_address){.family = p->config.to.family, .up = true};
    memcpy(p->table->refuser.ip, by, sizeof(p->table->refuser.ip));
    if (i == p->scout)
        next_scout(p);
    else
        end_port(p, i, OVER);
}

/* No answer after all tries. A port with an unknown hop is in no class: it asks no further, unless
 * it is the scout. */
static void nobody_answered(struct ft_prober *p, int i)
{
    struct probe *q = &p->probe[i];
    if (!q->full)
        p->table->asked[q->ttl - 1]++;
    if (i != p->scout)
        return end_port(p, i, OVER);
    if (p->last)
        return next_scout(p);
    q->tries = 0;
    q->ttl++;
    advance_scout(p, false);
}

static void take_answer(struct ft_prober *p, int i, enum ft_path_answer answer,
                        const unsigned char by[16], uint64_t now_ns)
{
    close_probe(p, i);
    /* A host that says so itself has been reached. */
    if (answer == FT_PATH_REFUSAL &&
        memcmp(by, p->config.to.ip, p->config.to.family == AF_INET6 ? 16 : 4) == 0)
        answer = FT_PATH_HOST;
    if (answer == FT_PATH_HOST)
        return host_answered(p, i);
    if (answer == FT_PATH_ROUTER && !p->probe[i].full)
        return router_answered(p, i, by, now_ns);
    if (answer == FT_PATH_REFUSAL)
        return router_refused(p, i, by);
    if (p->probe[i].tries >= TRIES)
        nobody_answered(p, i);
}

static void end_port(struct ft_prober *p, int i, enum state state)
{
    p->probe[i].state = state;
    while (p->first < p->nports && p->probe[p->first].state > PENDING)
        p->first++;
    if (i == p->scout && p->first < p->nports)
        begin_scout(p, p->first);
}

/* It may have asked all hops already. */
static void begin_scout(struct ft_prober *p, int i)
{
    p->scout = i;
    p->nsilent = 0;
    p->last = p->probe[i].ttl > FT_PATH_HOPS;
}

/* The scout is one hop further. */
static void advance_scout(struct ft_prober *p, bool answered)
{
    struct probe *q = &p->probe[p->scout];
    p->nsilent = answered ? 0 : p->nsilent + 1;
    if (p->distance > 0)
        return;
    if (p->ceiling < q->ttl - 1)
        p->ceiling = q->ttl - 1;
    if (p->ceiling > FT_PATH_HOPS)
        p->ceiling = FT_PATH_HOPS;
    p->last = p->nsilent >= SILENT_HOPS || q->ttl > FT_PATH_HOPS;
}

/* The way of this one does not lead to the host. */
static void next_scout(struct ft_prober *p)
{
    end_port(p, p->scout, OVER);
    if (p->first == p->nports || ++p->nscouts >= SCOUTS) {
        p->table->outcome = p->table->refuser.family != 0 ? FT_PATH_UNREACHABLE : FT_PATH_SILENT;
        end_all(p);
    }
}

static void end_all(struct ft_prober *p)
{
    while (p->npending > 0)
        close_probe(p, p->pending[0]);
    for (int i = p->first; i < p->nports; i++)
        if (p->probe[i].state != TAKEN)
            p->probe[i].state = OVER;
    p->first = p->nports;
}

static int finish(struct ft_prober *p, uint64_t now_ns)
{
    struct ft_path_table *t = p->table;
    struct ft_path_trace *trace = calloc((size_t)p->nports, sizeof(*trace));
    int n = 0;

    if (trace == NULL)
        return ft_fail(FT_NOMEM, "no memory for the paths of %d ports", p->nports);
    for (int i = 0; i < p->nports; i++)
        if (p->probe[i].state != TAKEN)
            trace[n++] = p->probe[i].trace;
    t->nhops = p->distance - 1;
    t->took_ns = now_ns - p->start_ns;
    const int status = ft_path_classify(t, trace, n);
    free(trace);
    return status;
}

/* Wakes the owner when the next probe may leave, if there are more to send, the oldest one is
 * waited for no longer, or time is up. */
static void set_timer(struct ft_prober *p, uint64_t now_ns, bool more)
{
    uint64_t at_ns = p->end_ns;
    for (int k = 0; k < p->npending; k++) {
        const uint64_t late_ns = p->probe[p->pending[k]].sent_ns + TIMEOUT_NS;
        at_ns = late_ns < at_ns ? late_ns : at_ns;
    }
    if (more && p->npending < p->window && p->next_ns < at_ns)
        at_ns = p->next_ns;
    const uint64_t wait_ns = at_ns > now_ns ? at_ns - now_ns : 1;
    const struct itimerspec when = {.it_value = {.tv_sec = (time_t)(wait_ns / 1000000000u),
                                                 .tv_nsec = (long)(wait_ns % 1000000000u)}};
    (void)timerfd_settime(p->timer_fd, 0, &when, NULL);
}

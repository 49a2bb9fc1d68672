#include "store.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#define KEPT "groups" /* the name of the text in etcd */
#define SECOND_NS UINT64_C(1000000000)
#define LAST_WORD_NS UINT64_C(800000000)

struct store {
    struct daemon *daemon;
    struct store_options options;
    struct daemon_watch watch; /* of the descriptor on which the thread tells of a change */
    struct etcd *etcd;         /* the thread's */
    pthread_t thread;
    pthread_mutex_t lock; /* protects what follows */
    pthread_cond_t wake;
    bool stops, ended; /* ended: the thread's last word */
    /* Until then this program leads; 0: it does not. Written with `lock`; the loop reads it
     * without, and pairs with the thread's store. */
    _Atomic uint64_t until_ns;
    char holder[ETCD_VALUE_BYTES], trouble[200];
    char *kept;    /* of an earlier leader */
    char *to_keep; /* the latest text that etcd has not got */
};

/* What only the thread knows. */
struct election {
    int64_t lease, revision; /* 0: none; revision: this program leads */
    uint64_t until_ns;       /* the lease lives until then at least */
};

/* Leases go on while the host is suspended. */
static uint64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_BOOTTIME, &t);
    return (uint64_t)t.tv_sec * SECOND_NS + (uint64_t)t.tv_nsec;
}

/* ---- the thread ------------------------------------------------------------------------------ */

static void tell_loop(const struct store *s)
{
    eventfd_write(s->watch.fd, 1);
}

/* Says how it stands after a turn, and wakes the loop if that is news. */
static void publish(struct store *s, const struct election *election, int status,
                    const char *holder)
{
    uint64_t until_ns = election->revision != 0 ? election->until_ns : 0;
    pthread_mutex_lock(&s->lock);
    bool led = atomic_load(&s->until_ns) != 0, news = led != (until_ns != 0);
    news |= strcmp(s->holder, holder) != 0;
    atomic_store(&s->until_ns, until_ns);
    snprintf(s->holder, sizeof s->holder, "%s", holder);
    snprintf(s->trouble, sizeof s->trouble, "%.199s", status == FT_OK ? "" : ft_fail_text());
    pthread_mutex_unlock(&s->lock);
    if (news)
        tell_loop(s);
}

/* A lease that runs out by this clock is given up, whatever etcd thinks. */
static void expire(struct election *election)
{
    if (election->lease != 0 && now_ns() >= election->until_ns)
        *election = (struct election){0};
}

static int renew(struct store *s, struct election *election)
{
    uint64_t began_ns = now_ns();
    int64_t ttl_s = (int64_t)(s->options.lease_s + 0.999);
    int status = election->lease == 0 ? etcd_grant(s->etcd, ttl_s, &election->lease)
                                      : etcd_keep(s->etcd, election->lease, &ttl_s);
    if (status == FT_OK && ttl_s > 0)
        election->until_ns = began_ns + (uint64_t)ttl_s * SECOND_NS;
    else if (status == FT_OK)
        *election = (struct election){0}; /* etcd has forgotten it */
    return status;
}

static int claim(struct store *s, struct election *election, char holder[ETCD_VALUE_BYTES])
{
    char *kept = NULL;
    int64_t revision = 0;
    int status = etcd_claim(s->etcd, election->lease, s->options.advertise, &revision, holder);
    if (status == FT_OK && revision != 0)
        status = etcd_load(s->etcd, KEPT, &kept);
    if (status != FT_OK || revision == 0)
        return status;
    election->revision = revision;
    pthread_mutex_lock(&s->lock);
    free(s->kept);
    s->kept = kept;
    free(s->to_keep); /* of a time before this one led */
    s->to_keep = NULL;
    pthread_mutex_unlock(&s->lock);
    return FT_OK;
}

/* The text goes back if etcd does not take it and there is no newer one. */
static int save(struct store *s, struct election *election)
{
    bool held = true;
    pthread_mutex_lock(&s->lock);
    char *text = s->to_keep;
    s->to_keep = NULL;
    pthread_mutex_unlock(&s->lock);
    if (!text)
        return FT_OK;
    int status = etcd_save(s->etcd, election->revision, KEPT, text, &held);
    if (!held)
        election->revision = 0; /* another one leads */
    pthread_mutex_lock(&s->lock);
    if (status != FT_OK && !s->to_keep) {
        s->to_keep = text;
        text = NULL;
    }
    pthread_mutex_unlock(&s->lock);
    free(text);
    return status;
}

static void turn(struct store *s, struct election *election)
{
    char holder[ETCD_VALUE_BYTES] = "";
    expire(election);
    int status = renew(s, election);
    if (status == FT_OK && election->lease != 0 && election->revision == 0)
        status = claim(s, election, holder);
    expire(election); /* the calls may have taken longer than the lease */
    if (status == FT_OK && election->revision != 0 && atomic_load(&s->until_ns) != 0)
        atomic_store(&s->until_ns, election->until_ns); /* it leads on while it saves */
    if (status == FT_OK && election->revision != 0)
        status = save(s, election);
    if (election->revision != 0)
        snprintf(holder, sizeof holder, "%s", s->options.advertise);
    publish(s, election, status, holder);
}

static struct timespec after_ns(uint64_t ns)
{
    struct timespec at;
    clock_gettime(CLOCK_MONOTONIC, &at);
    ns += (uint64_t)at.tv_nsec;
    at.tv_sec += (time_t)(ns / SECOND_NS);
    at.tv_nsec = (long)(ns % SECOND_NS);
    return at;
}

/* Until the next turn is due, there is a text to keep, or the store closes. False: it closes. */
static bool rest(struct store *s, const struct election *election)
{
    const struct timespec until = after_ns((uint64_t)(s->options.lease_s * 2.5e8));
    pthread_mutex_lock(&s->lock);
    int rc = 0;
    while (!s->stops && rc == 0 && !(s->to_keep && election->revision != 0 && !s->trouble[0]))
        rc = pthread_cond_timedwait(&s->wake, &s->lock, &until);
    bool stops = s->stops;
    pthread_mutex_unlock(&s->lock);
    return !stops;
}

static void *run(void *arg)
{
    struct store *s = arg;
    struct election election = {0};
    do
        turn(s, &election);
    while (rest(s, &election));
    atomic_store(&s->until_ns, 0);
    if (election.lease != 0)
        etcd_revoke(s->etcd, election.lease);
    pthread_mutex_lock(&s->lock);
    s->ended = true;
    pthread_cond_broadcast(&s->wake);
    pthread_mutex_unlock(&s->lock);
    return NULL;
}

/* ---- the loop's side ------------------------------------------------------------------------- */

static void on_change(void *arg, uint32_t events)
{
    struct store *s = arg;
    eventfd_t count;
    (void)events;
    eventfd_read(s->watch.fd, &count);
    s->options.changed(s->options.arg);
}

bool store_leads(const struct store *s)
{
    return now_ns() < atomic_load(&s->until_ns);
}

void store_holder(struct store *s, char holder[ETCD_VALUE_BYTES])
{
    pthread_mutex_lock(&s->lock);
    snprintf(holder, ETCD_VALUE_BYTES, "%s", s->holder);
    pthread_mutex_unlock(&s->lock);
}

void store_tell(struct store *s, char *text, size_t room)
{
    bool leads = store_leads(s);
    pthread_mutex_lock(&s->lock);
    if (leads)
        snprintf(text, room, "this one leads%s%s", s->trouble[0] ? "; " : "", s->trouble);
    else if (s->trouble[0])
        snprintf(text, room, "nobody is known to lead: %s", s->trouble);
    else
        snprintf(text, room, s->holder[0] ? "%s leads" : "%snobody leads yet", s->holder);
    pthread_mutex_unlock(&s->lock);
}

char *store_take_kept(struct store *s)
{
    pthread_mutex_lock(&s->lock);
    char *kept = s->kept;
    s->kept = NULL;
    pthread_mutex_unlock(&s->lock);
    return kept;
}

void store_keep(struct store *s, char *text)
{
    pthread_mutex_lock(&s->lock);
    free(s->to_keep);
    s->to_keep = text;
    pthread_cond_broadcast(&s->wake);
    pthread_mutex_unlock(&s->lock);
}

/* ---- opening and closing --------------------------------------------------------------------- */

static void free_store(struct store *s)
{
    if (s->watch.fd >= 0)
        close(s->watch.fd); /* the loop may have ended, or forgets it now */
    etcd_close(s->etcd);
    pthread_cond_destroy(&s->wake);
    pthread_mutex_destroy(&s->lock);
    free(s->kept);
    free(s->to_keep);
    free(s);
}

static int start(struct store *s)
{
    int timeout_ms = (int)(s->options.lease_s * 1000 / 3);
    int status = etcd_open(s->options.url, timeout_ms, &s->etcd);
    if (status != FT_OK)
        return status;
    s->watch.fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (s->watch.fd < 0)
        return ft_fail(FT_SYSTEM, "cannot make a descriptor: %s", strerror(errno));
    status = daemon_watch_for(s->daemon, &s->watch, EPOLLIN);
    int error = status == FT_OK ? pthread_create(&s->thread, NULL, run, s) : 0;
    return error ? ft_fail(FT_SYSTEM, "no thread for the store: %s", strerror(error)) : status;
}

struct store *store_open(struct daemon *d, const struct store_options *options)
{
    pthread_condattr_t attr;
    struct store *s = calloc(1, sizeof *s);
    if (!s) {
        ft_fail(FT_NOMEM, "no memory for the store");
        return NULL;
    }
    s->daemon = d;
    s->options = *options;
    s->watch = (struct daemon_watch){.fd = -1, .ready = on_change, .arg = s};
    pthread_mutex_init(&s->lock, NULL);
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&s->wake, &attr);
    pthread_condattr_destroy(&attr);
    if (start(s) == FT_OK)
        return s;
    free_store(s);
    return NULL;
}

/* The lease is given back within LAST_WORD_NS, or runs out by itself. */
void store_close(struct store *s)
{
    if (!s)
        return;
    const struct timespec until = after_ns(LAST_WORD_NS);
    int rc = 0;
    pthread_mutex_lock(&s->lock);
    s->stops = true;
    pthread_cond_broadcast(&s->wake);
    while (!s->ended && rc == 0)
        rc = pthread_cond_timedwait(&s->wake, &s->lock, &until);
    pthread_mutex_unlock(&s->lock);
    if (rc != 0)
        etcd_stop(s->etcd);
    pthread_join(s->thread, NULL);
    free_store(s);
}

/*
 * The service: one thread and one port for all unique ids of a process. The thread starts with the
 * first id and ends when no id is left. `lock` protects everything the service owns; nobody holds
 * it while waiting. `lifecycle` serialises starting and stopping, and is always taken before
 * `lock`. A child of fork never gets here: its calls fail earlier.
 */
#include "membership/service.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

enum { EVENTS = 64, NAP_MS = 500, CANCEL_MS = 50 };
#define ACCEPT_PAUSE_NS UINT64_C(20000000)

static pthread_mutex_t lifecycle = PTHREAD_MUTEX_INITIALIZER, lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_t thread;
static bool to_be_joined; /* protected by `lifecycle` */
/* used with `lock`: signalled when a gather may have settled or gone; ft_service_collect() waits
 * for it */
static pthread_cond_t settled;
static pthread_once_t settled_once = PTHREAD_ONCE_INIT;
static bool running, stopping;
static struct ft_service service = {.epoll = -1, .wake = -1};

static void *service_main(void *);

void ft_service_set_env(struct ft_env *env)
{
    pthread_mutex_lock(&lock);
    service.env = env;
    pthread_mutex_unlock(&lock);
}

static uint64_t clock_ns(void)
{
    return ft_now_ns(service.env ? service.env : ft_env_real());
}

struct ft_gather *ft_service_find(struct ft_service *s, uint64_t nonce)
{
    struct ft_gather *g = s->gathers;
    while (g && g->nonce != nonce)
        g = g->next;
    return g;
}

bool ft_service_was_used(const struct ft_service *s, uint64_t nonce)
{
    for (unsigned i = 0; i < s->nused && i < FT_USED_IDS; i++)
        if (s->used[i] == nonce)
            return true;
    return false;
}

static void close_listeners(struct ft_service *s, uint64_t owner)
{
    for (int i = 0; i < FT_LISTENERS; i++)
        if (s->listener[i].fd >= 0 && s->listener[i].owner == owner) {
            epoll_ctl(s->epoll, EPOLL_CTL_DEL, s->listener[i].fd, NULL);
            ft_fd_close(&s->listener[i].fd);
        }
}

void ft_service_forget(struct ft_service *s, struct ft_gather *g)
{
    struct ft_gather **at = &s->gathers;
    while (*at != g)
        at = &(*at)->next;
    *at = g->next;
    s->ngathers--;
    while (g->waiting)
        ft_conn_drop(s, g->waiting);
    if (g->explicit_address)
        close_listeners(s, g->nonce);
    else if (g->state != FT_GATHER_EMPTY)
        s->used[s->nused++ % FT_USED_IDS] = g->nonce;
    ft_gather_free(g);
}

/* ---- starting and stopping ------------------------------------------------------------------- */

static void close_all(struct ft_service *s)
{
    while (s->gathers)
        ft_service_forget(s, s->gathers);
    while (s->early)
        ft_conn_drop(s, s->early);
    ft_conn_free_dropped(s);
    for (int i = 0; i < FT_LISTENERS; i++)
        ft_fd_close(&s->listener[i].fd);
    ft_fd_close(&s->wake);
    ft_fd_close(&s->epoll);
    s->naddresses = 0;
    running = false;
    pthread_cond_broadcast(&settled);
}

/* The caller holds `lifecycle` but not `lock`, which the thread needs to end. */
static void join_thread(void)
{
    if (to_be_joined)
        pthread_join(thread, NULL);
    to_be_joined = false;
}

static int open_thread(struct ft_service *s)
{
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = NULL};
    sigset_t all, before;
    for (int i = 0; i < FT_LISTENERS; i++)
        s->listener[i].fd = -1;
    if (!s->env)
        s->env = ft_env_real();
    s->next_ns = 0;
    s->resume_ns = s->nofile_since_ns = 0;
    s->epoll = ft_fd_own(epoll_create1(EPOLL_CLOEXEC));
    s->wake = s->epoll < 0 ? -1 : ft_fd_own(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    int err = s->wake < 0 || epoll_ctl(s->epoll, EPOLL_CTL_ADD, s->wake, &event) != 0 ? errno : 0;
    if (!err) {
        stopping = false;
        sigfillset(&all);
        pthread_sigmask(SIG_BLOCK, &all, &before);
        err = pthread_create(&thread, NULL, service_main, s);
        pthread_sigmask(SIG_SETMASK, &before, NULL);
    }
    if (err) {
        close_all(s);
        return ft_fail(ft_status_of_errno(err == EAGAIN ? ENOMEM : err),
                       "cannot start the service for unique ids: %s", strerror(err));
    }
    running = to_be_joined = true;
    return FT_OK;
}

void ft_bootstrap_stop(void)
{
    if (ft_forked())
        return;
    pthread_mutex_lock(&lifecycle);
    pthread_mutex_lock(&lock);
    stopping = true;
    if (running)
        eventfd_write(service.wake, 1);
    pthread_mutex_unlock(&lock);
    join_thread();
    pthread_mutex_unlock(&lifecycle);
}

/* Stops the thread when the library is unloaded, so that its code does not disappear while it
 * runs. */
__attribute__((destructor)) static void stop_at_exit(void)
{
    ft_bootstrap_stop();
}

int ft_unique_ids_served(void)
{
    if (ft_forked())
        return 0;
    pthread_mutex_lock(&lock);
    int n = service.ngathers;
    pthread_mutex_unlock(&lock);
    return n;
}

/* ---- ids ------------------------------------------------------------------------------------- */

static int listen_on(struct ft_service *s, struct ft_net_address *address, int n, uint64_t owner)
{
    static const int families[] = {AF_INET, AF_INET6};
    int status = FT_OK, opened = 0;
    for (size_t f = 0; f < FT_ARRAY_LEN(families); f++) {
        struct ft_listener *free_one = NULL;
        for (int i = 0; i < FT_LISTENERS && !free_one; i++)
            if (s->listener[i].fd < 0)
                free_one = &s->listener[i];
        if (!free_one)
            return ft_fail(FT_USAGE, "more than %d addresses of FTCCL_COMM_ID are in use at once",
                           FT_LISTENERS / 2 - 1);
        uint16_t port = owner ? address[0].port : 0;
        int fd, rc = ft_net_listen(address, n, families[f], port, &fd);
        if (rc == FT_NOTSUP)
            continue;
        struct epoll_event event = {.events = EPOLLIN, .data.ptr = free_one};
        if (!rc && epoll_ctl(s->epoll, EPOLL_CTL_ADD, fd, &event) != 0) {
            rc = ft_fail(ft_status_of_errno(errno), "cannot watch the port for unique ids: %s",
                         strerror(errno));
            ft_fd_close(&fd);
        }
        if (rc) {
            status = rc;
            continue;
        }
        *free_one = (struct ft_listener){.fd = fd, .owner = owner};
        opened++;
    }
    if (opened)
        return FT_OK;
    return status ? status
                  : ft_fail(FT_NOTSUP, "this machine has no address to serve a unique id on");
}

/* Listens, and keeps the addresses whose family works. */
static int listen_plain(struct ft_service *s)
{
    if (s->naddresses)
        return FT_OK;
    int n = ft_net_addresses(s->address, FT_NET_ADDRESSES);
    if (n < 0)
        return n;
    for (int i = 0; i < n; i++)
        s->address[i].port = 0;
    int status = listen_on(s, s->address, n, 0);
    if (status)
        return status;
    for (int i = 0; i < n; i++)
        if (s->address[i].port)
            s->address[s->naddresses++] = s->address[i];
    return FT_OK;
}

static int make_explicit(struct ft_service *s, struct ft_id *id)
{
    struct ft_gather *old = ft_service_find(s, id->nonce);
    if (old && old->state != FT_GATHER_FAILED)
        return ft_fail(
            FT_AGAIN,
            "the port of FTCCL_COMM_ID still serves another communicator of this process");
    if (old)
        ft_service_forget(s, old);
    return listen_on(s, id->address, id->naddresses, id->nonce);
}

static int add_locked(struct ft_service *s, struct ft_id *id)
{
    uint64_t expire_ns = (uint64_t)ft_param_int(FT_PARAM_INIT_TIMEOUT_MS) * 2000000;
    int status = id->explicit_address ? make_explicit(s, id) : listen_plain(s);
    if (status)
        return status;
    if (!id->explicit_address) {
        id->naddresses = s->naddresses;
        memcpy(id->address, s->address, sizeof id->address);
    }
    struct ft_gather *g = ft_gather_new(
        id, clock_ns(), expire_ns > UINT64_C(120000000000) ? expire_ns : UINT64_C(120000000000));
    if (!g) {
        if (id->explicit_address)
            close_listeners(s, id->nonce);
        return ft_fail(FT_NOMEM, "no memory to serve a unique id");
    }
    if (id->explicit_address)
        g->linger_ns = FT_EXPLICIT_LINGER_NS;
    g->next = s->gathers;
    s->gathers = g;
    s->ngathers++;
    s->next_ns = 0;
    return FT_OK;
}

/* A condition variable on the monotonic clock, so that jumps of the wall clock do not matter. */
static void make_settled(void)
{
    pthread_condattr_t attr;
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&settled, &attr);
    pthread_condattr_destroy(&attr);
}

int ft_service_add(struct ft_id *id)
{
    int status = FT_OK;
    ft_fork_guard();
    pthread_once(&settled_once, make_settled);
    pthread_mutex_lock(&lifecycle);
    pthread_mutex_lock(&lock);
    if (!running) {
        pthread_mutex_unlock(&lock);
        join_thread();
        pthread_mutex_lock(&lock);
        status = open_thread(&service);
    }
    if (!status)
        status = add_locked(&service, id);
    if (running)
        eventfd_write(service.wake, 1);
    pthread_mutex_unlock(&lock);
    pthread_mutex_unlock(&lifecycle);
    return status;
}

/* A caller's thread has changed a gather. If it has settled, the answer is sent to all that wait.
 * The service's thread checks what is due. */
static void gather_changed(struct ft_gather *g)
{
    if (ft_gather_settled(g))
        ft_conn_answer_all(&service, g);
    service.next_ns = 0;
    eventfd_write(service.wake, 1);
    pthread_cond_broadcast(&settled);
}

static void withdraw_locked(struct ft_gather *g, const char *why)
{
    ft_gather_fail(g, clock_ns(), FT_PEER, "%s gave up: %s",
                   g->survivors ? "the root of the grow" : "rank 0", why);
    gather_changed(g);
}

/* The root of a grow needs no answer any more. In the gather, rank 0 represents the root. */
static void root_told(struct ft_gather *g)
{
    ft_gather_mark_told(g, 0);
    if (ft_gather_done(g))
        ft_service_forget(&service, g);
}

void ft_service_withdraw(uint64_t nonce, const char *why)
{
    pthread_mutex_lock(&lock);
    struct ft_gather *g = running ? ft_service_find(&service, nonce) : NULL;
    if (g)
        withdraw_locked(g, why);
    if (g && g->survivors)
        root_told(g);
    pthread_mutex_unlock(&lock);
}

/* Ranks that come soon still learn the reason. Then the ids are forgotten, and after the last id
 * the port is closed. */
void ft_service_withdraw_all(const void *owner, const char *why)
{
    pthread_mutex_lock(&lock);
    for (struct ft_gather *g = running ? service.gathers : NULL, *next; g; g = next) {
        next = g->next;
        if (g->owner != owner || ft_gather_settled(g))
            continue;
        g->linger_ns = FT_LAST_WORD_NS;
        withdraw_locked(g, why);
        root_told(g);
    }
    pthread_mutex_unlock(&lock);
}

int ft_service_consume(uint64_t nonce)
{
    pthread_mutex_lock(&lock);
    bool used = ft_service_was_used(&service, nonce);
    struct ft_gather *g = used || !running ? NULL : ft_service_find(&service, nonce);
    if (g && !g->explicit_address) {
        g->state = FT_GATHER_FULL;
        ft_service_forget(&service, g);
        eventfd_write(service.wake, 1);
    }
    pthread_mutex_unlock(&lock);
    return used ? ft_fail(FT_USAGE, "this unique id was already used") : FT_OK;
}

bool ft_service_used(uint64_t nonce)
{
    pthread_mutex_lock(&lock);
    bool used = ft_service_was_used(&service, nonce);
    pthread_mutex_unlock(&lock);
    return used;
}

int ft_service_arrived(uint64_t nonce)
{
    pthread_mutex_lock(&lock);
    const struct ft_gather *g = ft_service_find(&service, nonce);
    int n = g ? (int)g->arrived : -1;
    pthread_mutex_unlock(&lock);
    return n;
}

/* ---- grow ------------------------------------------------------------------------------------ */

static int find_grow(uint64_t nonce, struct ft_gather **out)
{
    struct ft_gather *g = running ? ft_service_find(&service, nonce) : NULL;
    if (!g && ft_service_was_used(&service, nonce))
        return ft_fail(FT_USAGE, "this unique id was already used");
    if (!g)
        return ft_fail(
            FT_USAGE,
            "this process does not serve the unique id: the rank that made it is the grow's root");
    if (!g->survivors)
        return ft_fail(FT_USAGE, "this unique id was not made to grow a communicator");
    *out = g;
    return FT_OK;
}

int ft_service_supply(uint64_t nonce, uint32_t nranks, const struct ft_endpoint *endpoint,
                      uint32_t count)
{
    struct ft_gather *g = NULL;
    pthread_mutex_lock(&lock);
    int status = find_grow(nonce, &g);
    if (!status && count != g->survivors)
        status = ft_fail(FT_USAGE,
                         "the unique id was made to grow a communicator of %u ranks, not of %u",
                         g->survivors, count);
    if (!status && g->supplied)
        status = ft_fail(FT_USAGE, "this unique id is already in use by another grow");
    if (!status) {
        ft_gather_supply(g, nranks, endpoint, clock_ns());
        if (g->state == FT_GATHER_FAILED)
            status = ft_gather_verdict(g);
        gather_changed(g);
        if (status)
            root_told(g);
    }
    pthread_mutex_unlock(&lock);
    return status;
}

/* The caller holds `lock`. The wait is bounded by the gather's own time limit: the service's thread
 * lives as long as there is a gather. */
static int await_settled(uint64_t nonce, const atomic_int *cancel, struct ft_gather **out)
{
    for (;;) {
        struct timespec until;
        struct ft_gather *g = NULL;
        int gone = find_grow(nonce, &g);
        *out = g;
        if (gone)
            return ft_fail(FT_ABORTED,
                           "the unique id was withdrawn while the grow waited for those that join");
        if (ft_gather_settled(g))
            return FT_OK;
        /* pairs with the store of the thread that aborts */
        if (cancel && atomic_load_explicit(cancel, memory_order_acquire)) {
            withdraw_locked(g, ft_status_text(FT_ABORTED));
            return ft_fail(FT_ABORTED, "aborted while the grow waited for those that join");
        }
        clock_gettime(CLOCK_MONOTONIC, &until);
        until.tv_nsec += CANCEL_MS * 1000000;
        until.tv_sec += until.tv_nsec / 1000000000;
        until.tv_nsec %= 1000000000;
        pthread_cond_timedwait(&settled, &lock, &until);
    }
}

int ft_service_collect(uint64_t nonce, uint64_t timeout_ns, const atomic_int *cancel,
                       unsigned char **answer)
{
    struct ft_gather *g = NULL;
    pthread_mutex_lock(&lock);
    int status = find_grow(nonce, &g);
    if (!status && !g->supplied && !ft_gather_settled(g))
        status = ft_fail(FT_USAGE, "the survivors' endpoints have not been supplied");
    if (!status) {
        ft_gather_bound(g, clock_ns() + timeout_ns,
                        (uint32_t)ft_min(timeout_ns / 1000000, UINT32_MAX));
        gather_changed(g);
        status = await_settled(nonce, cancel, &g);
        if (!status)
            status = ft_gather_verdict(g);
        unsigned char *copy = status ? NULL : malloc(g->answer_bytes);
        if (copy)
            *answer = memcpy(copy, g->answer, g->answer_bytes);
        else if (!status)
            status = ft_fail(FT_NOMEM, "no memory for a table of %zu bytes", g->answer_bytes);
        if (g)
            root_told(g);
    }
    pthread_mutex_unlock(&lock);
    return status;
}

/* ---- the thread ------------------------------------------------------------------------------ */

static void watch_listeners(struct ft_service *s, uint32_t events)
{
    for (int i = 0; i < FT_LISTENERS; i++) {
        struct epoll_event event = {.events = events, .data.ptr = &s->listener[i]};
        if (s->listener[i].fd >= 0)
            epoll_ctl(s->epoll, EPOLL_CTL_MOD, s->listener[i].fd, &event);
    }
}

/* Descriptors have been exhausted for some time. A job that needs more can never complete, so all
 * ranks are told the reason. */
static void tell_nofile(struct ft_service *s, uint64_t now_ns)
{
    for (struct ft_gather *g = s->gathers; g; g = g->next) {
        if (g->state != FT_GATHER_OPEN)
            continue;
        ft_gather_fail(
            g, now_ns, FT_NOFILE,
            "the process that serves the unique id ran out of file descriptors when %u of %u "
            "ranks had come",
            g->arrived, g->count);
        ft_conn_answer_all(s, g);
    }
    s->next_ns = 0;
}

static void pause_accepting(struct ft_service *s, uint64_t now_ns)
{
    s->resume_ns = now_ns + ACCEPT_PAUSE_NS;
    watch_listeners(s, 0);
}

static void accept_some(struct ft_service *s, struct ft_listener *listener, uint64_t now_ns)
{
    for (int i = 0; i < EVENTS && listener->fd >= 0; i++) {
        int fd = -1, status;
        if (!ft_conn_has_room(s, now_ns)) {
            pause_accepting(s, now_ns);
            return;
        }
        status = ft_net_accept(listener->fd, &fd);
        if (status == FT_AGAIN)
            return;
        if (status) {
            if (!s->nofile_since_ns)
                s->nofile_since_ns = now_ns;
            if (now_ns - s->nofile_since_ns > FT_NOFILE_NS)
                tell_nofile(s, now_ns);
            pause_accepting(s, now_ns);
            return;
        }
        s->nofile_since_ns = 0;
        ft_conn_open(s, fd, now_ns);
    }
}

/* Handles gathers that are due, and finds the time at which the next one is due. */
static void expire_gathers(struct ft_service *s, uint64_t now_ns)
{
    s->next_ns = UINT64_MAX;
    for (struct ft_gather *g = s->gathers, *next; g; g = next) {
        next = g->next;
        if (g->due_ns <= now_ns && g->state == FT_GATHER_OPEN) {
            ft_gather_timeout(g, now_ns);
            ft_conn_answer_all(s, g);
        } else if (g->due_ns <= now_ns) {
            ft_service_forget(s, g);
            continue;
        }
        if (g->due_ns < s->next_ns)
            s->next_ns = g->due_ns;
    }
}

static int nap_ms(struct ft_service *s, uint64_t now_ns)
{
    uint64_t next_ns = now_ns + NAP_MS * UINT64_C(1000000);
    ft_conn_expire(s, now_ns, &next_ns);
    if (s->next_ns < next_ns)
        next_ns = s->next_ns;
    if (s->resume_ns && s->resume_ns < next_ns)
        next_ns = s->resume_ns;
    return next_ns <= now_ns ? 0 : (int)((next_ns - now_ns) / 1000000 + 1);
}

static void handle_event(struct ft_service *s, const struct epoll_event *event, uint64_t now_ns)
{
    char *what = event->data.ptr;
    if (!what) {
        eventfd_t value;
        eventfd_read(s->wake, &value);
    } else if (what >= (char *)s->listener && what < (char *)(s->listener + FT_LISTENERS)) {
        accept_some(s, event->data.ptr, now_ns);
    } else {
        ft_conn_turn(s, event->data.ptr, event->events, now_ns);
    }
}

static void *service_main(void *arg)
{
    struct ft_service *s = arg;
    struct epoll_event event[EVENTS];
    pthread_mutex_lock(&lock);
    while (!stopping && s->ngathers) {
        uint64_t now_ns = clock_ns();
        if (s->next_ns <= now_ns) {
            expire_gathers(s, now_ns);
            pthread_cond_broadcast(&settled);
        }
        if (s->resume_ns && s->resume_ns <= now_ns) {
            s->resume_ns = 0;
            watch_listeners(s, EPOLLIN);
        }
        int ms = nap_ms(s, now_ns), epoll = s->epoll;
        pthread_mutex_unlock(&lock);
        int n = epoll_wait(epoll, event, EVENTS, ms);
        pthread_mutex_lock(&lock);
        now_ns = clock_ns();
        for (int i = 0; i < n; i++)
            handle_event(s, &event[i], now_ns);
        pthread_cond_broadcast(&settled);
        ft_conn_free_dropped(s);
    }
    close_all(s);
    pthread_mutex_unlock(&lock);
    return NULL;
}

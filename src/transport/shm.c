/*
 * shm: links between processes of one host. The sender makes a segment without a name, and passes
 * it to the receiver over an abstract unix socket, after both have proved there that they know the
 * job's secret. The socket stays open. Its end means that the other side is gone; a byte on it
 * wakes a side that sleeps. Each side sees the other's liveness page (base/liveness.c), which shows
 * the end of a process earlier than its sockets. A killed process leaves nothing behind: segments,
 * sockets and their addresses disappear with the last process that has them.
 *
 * While the other side is awake, the data path makes no system call. The sockets are polled every
 * LOOK_NS, and more often while connections are being set up. Connections that have not proved the
 * secret are limited: SHM_STRANGERS of them, of one user, for SETUP_NS each. More wait in the
 * listener's queue.
 */
#include "transport/shm.h"

#include <errno.h>
#include <fcntl.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#define LOOK_NS 200000 /* between two polls of the sockets when nothing else happens */
/* The longest sleep of an engine with links, because no descriptor reports a mark on a liveness
 * page. */
#define SLEEP_NS 10000000
#define LOOK_SETUP_NS 10000 /* while a connection is being set up */
#define LOOK_POLLS 16       /* polls between two looks at the clock */
#define SETUP_NS 5000000000u

/* The contents of an address. Its size is fixed; everything in it is checked before use. */
struct address {
    uint64_t host;
    uint32_t user;
    char name[FT_SHM_NAME_BYTES];
};

static void shm_disconnect(struct ft_link *link);

/* ---- sockets --------------------------------------------------------------------------------- */

static socklen_t socket_name(struct sockaddr_un *sa, const char name[FT_SHM_NAME_BYTES])
{
    memset(sa, 0, sizeof *sa);
    sa->sun_family = AF_UNIX;
    /* A leading zero byte makes the address abstract: there is no file. */
    memcpy(sa->sun_path + 1, name, FT_SHM_NAME_BYTES);
    return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + FT_SHM_NAME_BYTES);
}

static int make_socket(int *out)
{
    *out = ft_fd_own(socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
    if (*out >= 0)
        return FT_OK;
    return ft_fail(ft_status_of_errno(errno), "socket for shared memory: %s", strerror(errno));
}

int ft_shm_watch(struct ft_shm *t, struct ft_shm_socket *s, uint32_t events)
{
    struct epoll_event ev = {.events = events, .data.ptr = s};
    int op = s->watched ? EPOLL_CTL_MOD : EPOLL_CTL_ADD;
    if (s->watched == events && events)
        return FT_OK;
    if (epoll_ctl(t->epoll, op, s->fd, &ev) < 0)
        return ft_fail(ft_status_of_errno(errno), "epoll_ctl: %s", strerror(errno));
    s->watched = events;
    return FT_OK;
}

/* A child that was forked a moment ago may still have the socket. Even then the other side must
 * learn of the end, and epoll must not report the socket any more. */
void ft_shm_socket_close(struct ft_shm *t, struct ft_shm_socket *s)
{
    if (s->fd < 0)
        return;
    if (s->watched)
        epoll_ctl(t->epoll, EPOLL_CTL_DEL, s->fd, NULL);
    s->watched = 0;
    if (s->kind != FT_SHM_LISTENER)
        shutdown(s->fd, SHUT_RDWR);
    ft_fd_close(&s->fd);
}

/* Sends one byte to the other side. If the socket is full, it has unread bytes, which wake the
 * other side anyway. */
void ft_shm_say(struct ft_shm_socket *s, unsigned char word)
{
    if (s->fd >= 0 && send(s->fd, &word, 1, MSG_DONTWAIT | MSG_NOSIGNAL) < 0)
        return;
}

static void ring(struct ft_local_link *l)
{
    ft_shm_say(&FT_CONTAINER(l, struct ft_shm_link, local)->socket, FT_SHM_BELL);
}

/* ---- open, close, addresses ------------------------------------------------------------------ */

static int start_listening(struct ft_shm *t)
{
    struct ft_env *env = t->local.base.config.env;
    unsigned char random[FT_SHM_NAME_BYTES / 2];
    env->random(env, random, sizeof random);
    static const char digits[] = "0123456789abcdef";
    for (size_t i = 0; i < sizeof random; i++) {
        t->name[2 * i] = digits[random[i] >> 4];
        t->name[2 * i + 1] = digits[random[i] & 15];
    }
    int rc = make_socket(&t->listener.fd);
    if (rc)
        return rc;
    struct sockaddr_un sa;
    socklen_t len = socket_name(&sa, t->name);
    if (bind(t->listener.fd, (struct sockaddr *)&sa, len) < 0 || listen(t->listener.fd, 1024) < 0) {
        return ft_fail(ft_status_of_errno(errno), "listening for shared memory: %s",
                       strerror(errno));
    }
    t->listener.kind = FT_SHM_LISTENER;
    return ft_shm_watch(t, &t->listener, EPOLLIN);
}

static int shm_open_transport(const struct ft_transport_config *config, struct ft_transport **out)
{
    struct ft_shm *t = calloc(1, sizeof *t);
    if (!t)
        return ft_fail(FT_NOMEM, "no memory for a transport");
    ft_local_open(&t->local, &ft_transport_shm, config);
    t->listener.fd = -1;
    t->local.base.look_ns = SLEEP_NS;
    t->spare = t->liveness = -1;
    for (int i = 0; i < FT_SHM_STRANGERS; i++)
        t->stranger[i].socket.fd = -1;
    int rc = ft_liveness_open(&t->liveness);
    t->epoll = ft_fd_own(epoll_create1(EPOLL_CLOEXEC));
    if (rc == FT_OK && t->epoll < 0)
        rc = ft_fail(ft_status_of_errno(errno), "epoll_create1: %s", strerror(errno));
    if (rc == FT_OK)
        rc = start_listening(t);
    if (rc == FT_OK) {
        t->spare = ft_fd_own(open("/dev/null", O_RDONLY | O_CLOEXEC));
        if (t->spare < 0)
            rc = ft_fail(ft_status_of_errno(errno), "a spare descriptor: %s", strerror(errno));
    }
    if (rc) {
        ft_transport_shm.close(&t->local.base);
        return rc;
    }
    *out = &t->local.base;
    return FT_OK;
}

static void shm_close(struct ft_transport *base)
{
    struct ft_shm *t = FT_CONTAINER(base, struct ft_shm, local.base);
    while (t->local.links)
        shm_disconnect(&t->local.links->base);
    for (int i = 0; i < FT_SHM_STRANGERS; i++)
        ft_shm_socket_close(t, &t->stranger[i].socket);
    ft_shm_socket_close(t, &t->listener);
    ft_fd_close(&t->spare);
    ft_fd_close(&t->epoll);
    ft_local_close(&t->local);
    if (t->liveness >= 0)
        ft_liveness_close();
    free(t);
}

static int shm_address(struct ft_transport *base, void *buf, size_t capacity_bytes)
{
    struct address a;
    memset(&a, 0, sizeof a);
    if (capacity_bytes < sizeof a)
        return ft_fail(FT_INVAL, "an address needs %zu bytes", sizeof a);
    a.host = ft_host_id();
    a.user = (uint32_t)geteuid();
    memcpy(a.name, FT_CONTAINER(base, struct ft_shm, local.base)->name, sizeof a.name);
    memcpy(buf, &a, sizeof a);
    return (int)sizeof a;
}

/* True for the same host and the same user. Other users are refused at the socket. */
static bool shm_reaches(struct ft_transport *base, const void *address, size_t len_bytes)
{
    (void)base;
    struct address a;
    if (len_bytes != sizeof a)
        return false;
    memcpy(&a, address, sizeof a);
    return a.host == ft_host_id() && a.user == (uint32_t)geteuid();
}

/* ---- connecting ------------------------------------------------------------------------------ */

struct ft_shm_link *ft_shm_link_make(struct ft_shm *t, uint64_t peer, bool sender)
{
    struct ft_shm_link *l = calloc(1, sizeof *l);
    if (!l) {
        ft_fail(FT_NOMEM, "no memory for a link");
        return NULL;
    }
    l->socket = (struct ft_shm_socket){.kind = FT_SHM_LINK, .fd = -1};
    l->segment = -1;
    l->local.ring = ring;
    ft_local_link_add(&t->local, &l->local, peer, sender);
    return l;
}

static int make_segment(struct ft_shm *t, struct ft_shm_link *l)
{
    size_t len = ft_slots_bytes(t->local.set.chunk_bytes);
    bool sparse = ft_can_populate();
    int rc = ft_memfd("ftccl-link", len, sparse ? ft_slots_head_bytes() : len, &l->segment);
    if (rc == FT_OK)
        rc = ft_map_shared(l->segment, len, &l->memory);
    if (rc)
        return rc;
    l->len_bytes = len;
    ft_slots_format(&l->local.slots, l->memory, t->local.set.chunk_bytes);
    if (sparse)
        ft_slots_sparse(&l->local.slots, true);
    return ft_local_link_open(&l->local);
}

/* Tries to connect to the listener. Its queue may be full for a while. */
int ft_shm_link_dial(struct ft_shm *t, struct ft_shm_link *l)
{
    struct sockaddr_un sa;
    socklen_t len = socket_name(&sa, l->name);
    if (connect(l->socket.fd, (struct sockaddr *)&sa, len) < 0) {
        if (errno == EAGAIN || errno == EINTR)
            return FT_AGAIN;
        return ft_fail(FT_LINK, "the engine that listened for shared memory is gone: %s",
                       strerror(errno));
    }
    struct ft_transport_config *c = &t->local.base.config;
    ft_auth_start(&l->auth, c->env, l->socket.fd, true, c->key, c->self, l->local.base.peer,
                  FT_PURPOSE_SHM, 0, l->deadline_ns);
    l->stage = FT_SHM_AUTH;
    return ft_shm_watch(t, &l->socket, EPOLLIN | EPOLLOUT);
}

static int shm_connect(struct ft_transport *base, uint64_t peer, const void *address,
                       size_t len_bytes, struct ft_link **out)
{
    struct ft_shm *t = FT_CONTAINER(base, struct ft_shm, local.base);
    struct address a;
    if (len_bytes != sizeof a)
        return ft_fail(FT_INVAL, "this is not an address for shared memory");
    memcpy(&a, address, sizeof a);
    struct ft_shm_link *l = ft_shm_link_make(t, peer, true);
    if (!l)
        return FT_NOMEM;
    t->setups++;
    l->stage = FT_SHM_DIAL;
    l->deadline_ns = ft_now_ns(t->local.base.config.env) + SETUP_NS;
    memcpy(l->name, a.name, sizeof l->name);
    int rc = make_segment(t, l);
    if (rc == FT_OK)
        rc = make_socket(&l->socket.fd);
    if (rc) {
        shm_disconnect(&l->local.base);
        return rc;
    }
    rc = ft_shm_link_dial(t, l);
    if (rc && rc != FT_AGAIN)
        ft_shm_link_lost(t, l, rc, false);
    *out = &l->local.base;
    return FT_OK;
}

/* Ends the set-up of the link, whatever its result. */
void ft_shm_link_settle(struct ft_shm *t, struct ft_shm_link *l)
{
    if (l->stage != FT_SHM_READY)
        t->setups--;
    l->stage = FT_SHM_READY;
    ft_fd_close(&l->segment);
}

void ft_shm_link_lost(struct ft_shm *t, struct ft_shm_link *l, int reason, bool orderly)
{
    ft_shm_link_settle(t, l);
    if (l->local.base.state != FT_LINK_DOWN)
        l->local.base.proof = !orderly && l->liveness && ft_liveness_ended(l->liveness);
    ft_local_link_down(&l->local, reason, orderly);
    ft_shm_socket_close(t, &l->socket);
}

static void shm_disconnect(struct ft_link *link)
{
    struct ft_shm_link *l = FT_CONTAINER(link, struct ft_shm_link, local.base);
    struct ft_shm *t = FT_CONTAINER(link->transport, struct ft_shm, local.base);
    if (link->state == FT_LINK_UP && !link->cut)
        ft_shm_say(&l->socket, FT_SHM_BYE);
    ft_shm_link_settle(t, l);
    ft_shm_socket_close(t, &l->socket);
    ft_local_link_remove(&l->local);
    ft_unmap(l->memory, l->len_bytes);
    ft_unmap((void *)(uintptr_t)l->arena, l->arena_bytes);
    ft_liveness_unmap(l->liveness);
    free(l);
}

/* ---- turning --------------------------------------------------------------------------------- */

static int shm_poll(struct ft_transport *base, struct ft_event *events, int max, bool *busy)
{
    struct ft_shm *t = FT_CONTAINER(base, struct ft_shm, local.base);
    bool any = false;
    for (struct ft_local_link *l = t->local.links; l; l = l->next) {
        any |= ft_local_link_poll(l);
        /* The link broke its protocol. What its socket says must not be read any more. */
        if (l->base.state == FT_LINK_DOWN)
            ft_shm_socket_close(t, &FT_CONTAINER(l, struct ft_shm_link, local)->socket);
    }
    if (t->setups || ++t->polls >= LOOK_POLLS) {
        t->polls = 0;
        uint64_t now = ft_now_ns(base->config.env);
        if (now - t->looked_ns >= (t->setups ? LOOK_SETUP_NS : LOOK_NS)) {
            t->looked_ns = now;
            any |= ft_shm_look(t, now);
        }
    }
    if (any)
        *busy = true;
    return t->local.announcements ? ft_local_announce(&t->local, events, max) : 0;
}

static int shm_fd(struct ft_transport *base)
{
    return FT_CONTAINER(base, struct ft_shm, local.base)->epoll;
}

static bool shm_arm(struct ft_transport *base, bool on)
{
    struct ft_shm *t = FT_CONTAINER(base, struct ft_shm, local.base);
    if (!on) { /* what woke the engine is on a socket: the next poll looks there */
        t->looked_ns = 0;
        t->polls = LOOK_POLLS;
    }
    for (struct ft_local_link *l = t->local.links; on && t->setups && l; l = l->next) {
        /* No event tells when to dial again. */
        if (FT_CONTAINER(l, struct ft_shm_link, local)->stage == FT_SHM_DIAL)
            return false;
    }
    return ft_local_arm_links(&t->local, on);
}

const struct ft_transport_ops ft_transport_shm = {
    .name = "shm",
    .caps = {.scope = FT_SCOPE_HOST, .pulls = true},
    .open = shm_open_transport,
    .close = shm_close,
    .address = shm_address,
    .reaches = shm_reaches,
    .connect = shm_connect,
    .disconnect = shm_disconnect,
    .bind = ft_local_bind,
    .unbind = ft_local_unbind,
    .send = ft_local_send,
    .reserve = ft_local_reserve,
    .reserve_devmem = ft_local_reserve_devmem,
    .commit = ft_local_commit,
    .cancel = ft_local_cancel,
    .recv = ft_local_recv,
    .fetch = ft_local_fetch,
    .peek = ft_local_peek,
    .release = ft_local_release,
    .post = ft_local_post,
    .look = ft_local_look,
    .took = ft_local_took,
    .drained = ft_local_drained,
    .poll = shm_poll,
    .fd = shm_fd,
    .arm = shm_arm,
    .trim = ft_local_trim,
    .wake = ft_local_wake,
};

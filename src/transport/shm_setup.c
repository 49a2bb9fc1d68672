/*
 * What happens on the sockets of the shm transport. A stranger proves that it knows the secret,
 * offers a segment, and becomes a receiving link. A sending link goes through DIAL, AUTH, OFFER and
 * ANSWER, and is UP. All bytes that are read here come from outside.
 */
#include "transport/shm.h"
#include "transport/pull.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#define SETUP_NS 5000000000u
#define LAST_WORDS 64 /* most reads of what a dead process left in its socket */

static uint32_t epoll_events(short events)
{
    return (events & POLLIN ? EPOLLIN : 0u) | (events & POLLOUT ? EPOLLOUT : 0u);
}

/* ---- strangers ------------------------------------------------------------------------------- */

static void stranger_drop(struct ft_shm *t, struct ft_shm_stranger *s)
{
    ft_shm_socket_close(t, &s->socket);
    t->setups--;
    if (t->strangers-- == FT_SHM_STRANGERS)
        ft_shm_watch(t, &t->listener, EPOLLIN);
}

/* Only processes of the same user may connect: these could read this process's memory anyway. */
static bool same_user(int fd)
{
    struct ucred who;
    socklen_t len = sizeof who;
    return getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &who, &len) == 0 && who.uid == geteuid();
}

static void stranger_start(struct ft_shm *t, int fd, uint64_t now_ns)
{
    struct ft_shm_stranger *s = t->stranger;
    while (s->socket.fd >= 0)
        s++;
    struct ft_transport_config *c = &t->local.base.config;
    s->socket = (struct ft_shm_socket){.kind = FT_SHM_STRANGER, .fd = fd};
    s->proved = false;
    s->deadline_ns = now_ns + SETUP_NS;
    ft_auth_start(&s->auth, c->env, fd, false, c->key, c->self, 0, FT_PURPOSE_SHM, 0,
                  s->deadline_ns);
    t->setups++;
    /* epoll watches the listener no more: other connections wait in its queue */
    if (++t->strangers == FT_SHM_STRANGERS)
        ft_shm_watch(t, &t->listener, EPOLLONESHOT);
    if (!same_user(fd) || ft_shm_watch(t, &s->socket, EPOLLIN) != FT_OK)
        stranger_drop(t, s);
}

static bool accept_strangers(struct ft_shm *t, uint64_t now_ns)
{
    bool any = false;
    while (t->strangers < FT_SHM_STRANGERS) {
        int fd = ft_fd_own(accept4(t->listener.fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC));
        if (fd >= 0) {
            any = true;
            stranger_start(t, fd, now_ns);
            continue;
        }
        if (errno != EMFILE && errno != ENFILE)
            break;
        if (t->spare < 0)
            break;
        FT_LOG(WARN, "shm", t->local.base.config.rank,
               "out of file descriptors: a connection was turned away");
        /* Otherwise the connection would wait in the queue, and the listener would stay
         * readable. */
        ft_fd_close(&t->spare);
        fd = ft_fd_own(accept4(t->listener.fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC));
        ft_fd_close(&fd);
        t->spare = ft_fd_own(open("/dev/null", O_RDONLY | O_CLOEXEC));
        break;
    }
    return any;
}

/* Reads bytes with `want` descriptors. FT_AGAIN: they have not come. After a failure the caller
 * owns no descriptor. */
static int read_with_fds(int socket, struct iovec *iov, int *fd, int want)
{
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(4 * sizeof(int))];
    } control;
    struct msghdr m = {
        .msg_iov = iov, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control};
    ssize_t n = recvmsg(socket, &m, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    if (n < 0)
        return errno == EAGAIN || errno == EINTR ? FT_AGAIN : FT_LINK;
    int came = 0;
    for (struct cmsghdr *c = CMSG_FIRSTHDR(&m); c; c = CMSG_NXTHDR(&m, c)) {
        if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS)
            continue;
        for (size_t i = 0; i < (c->cmsg_len - CMSG_LEN(0)) / sizeof(int); i++) {
            int got;
            memcpy(&got, CMSG_DATA(c) + i * sizeof got, sizeof got);
            got = ft_fd_own(got);
            if (came < want)
                fd[came] = got;
            else
                ft_fd_close(&got);
            came++;
        }
    }
    bool cut = m.msg_flags & MSG_CTRUNC, whole = n == (ssize_t)iov->iov_len;
    if (came == want && !cut && whole)
        return FT_OK;
    for (int i = 0; i < want && i < came; i++)
        ft_fd_close(&fd[i]);
    if (n == 0)
        return FT_LINK;
    return cut && came < want
               ? ft_fail(FT_NOFILE, "out of file descriptors while accepting shared memory")
               : ft_fail(FT_PROTOCOL, "a peer did not hand over shared memory as it should");
}

static int send_with_fds(int socket, struct iovec *iov, const int *fd, int nfds)
{
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(4 * sizeof(int))];
    } control;
    memset(&control, 0, sizeof control);
    struct msghdr m = {.msg_iov = iov,
                       .msg_iovlen = 1,
                       .msg_control = &control,
                       .msg_controllen = CMSG_SPACE((size_t)nfds * sizeof(int))};
    struct cmsghdr *c = CMSG_FIRSTHDR(&m);
    c->cmsg_level = SOL_SOCKET;
    c->cmsg_type = SCM_RIGHTS;
    c->cmsg_len = CMSG_LEN((size_t)nfds * sizeof(int));
    memcpy(CMSG_DATA(c), fd, (size_t)nfds * sizeof(int));
    ssize_t n = sendmsg(socket, &m, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (n == (ssize_t)iov->iov_len)
        return FT_OK;
    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return FT_AGAIN;
    return ft_fail(FT_LINK, "handing over shared memory: %s",
                   n < 0 ? strerror(errno) : "cut short");
}

static int check_offer(const struct ft_shm_offer *offer, size_t chunk_bytes)
{
    if (offer->chunk_bytes == chunk_bytes && offer->len_bytes == ft_slots_bytes(chunk_bytes))
        return FT_OK;
    return ft_fail(FT_PROTOCOL,
                   "a peer uses chunks of %llu bytes, this engine of %zu (FTCCL_CHUNK_BYTES)",
                   (unsigned long long)offer->chunk_bytes, chunk_bytes);
}

/* Sends FT_SHM_ACCEPTED with this process's liveness page. The first byte on a socket always
 * fits. */
static int accept_offer(struct ft_shm *t, struct ft_shm_link *l)
{
    unsigned char word = FT_SHM_ACCEPTED | (l->arena ? FT_SHM_ARENA : 0) |
                         (l->local.pull ? FT_SHM_PULLS : 0) |
                         (l->local.slots.pinned ? FT_SHM_PINNED : 0);
    struct iovec iov = {.iov_base = &word, .iov_len = 1};
    int rc = send_with_fds(l->socket.fd, &iov, &t->liveness, 1);
    return rc == FT_AGAIN ? FT_LINK : rc;
}

/* The descriptors that a stranger passes. */
enum { SEGMENT, LIFE, ARENA, PINNED, FDS };

/* Maps the sender's arena, to read it. If it cannot be mapped, its payloads are copied as if there
 * were none. If it is not an arena, the link is refused. */
static int borrow(struct ft_shm *t, struct ft_shm_link *l, int fd, size_t arena_bytes)
{
    int rc = arena_bytes && ft_param_int(FT_PARAM_LEND) ? ft_arena_map(fd, arena_bytes, &l->arena)
                                                        : FT_OK;
    if (rc == FT_PROTOCOL)
        return rc;
    if (rc)
        FT_LOG(INFO, "shm", t->local.base.config.rank, "large messages are copied: %s",
               ft_fail_text());
    l->arena_bytes = l->arena ? arena_bytes : 0;
    l->local.arena = l->arena;
    l->local.arena_bytes = l->arena_bytes;
    return FT_OK;
}

/* Reads only while the process of the link's liveness page is alive. After its death another
 * process may have the same number, and its memory is not the message. */
static int pull(struct ft_local_link *local, uint64_t at, void *to, size_t len_bytes)
{
    struct ft_shm_link *l = FT_CONTAINER(local, struct ft_shm_link, local);
    int rc = ft_pull(l->pid, at, to, len_bytes);
    return ft_liveness_alive(l->liveness) ? rc : ft_fail(FT_LINK, "the process has ended");
}

/* Tests whether this process can read the sender's memory: it can if it reads the right cookie. */
static void try_to_pull(struct ft_shm *t, struct ft_shm_link *l, int socket,
                        const struct ft_shm_offer *offer)
{
    struct ucred who;
    socklen_t len = sizeof who;
    uint64_t seen = 0;
    if (!offer->cookie_at || !ft_param_int(FT_PARAM_CMA))
        return;
    if (getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &who, &len) < 0 || who.pid <= 0)
        return;
    l->pid = who.pid;
    int rc = pull(&l->local, offer->cookie_at, &seen, sizeof seen);
    if (rc == FT_OK && seen == offer->cookie) {
        l->local.pull = pull;
        FT_LOG(TRACE, "shm", t->local.base.config.rank,
               "messages are read in the memory of process %d", l->pid);
    } else
        FT_LOG(
            INFO, "shm", t->local.base.config.rank,
            "the memory of process %d cannot be read from here, so messages are copied twice: %s",
            l->pid, rc ? ft_fail_text() : "it is another process's");
}

/* Makes a receiving link of a stranger, whose socket becomes the link's. */
static int adopt(struct ft_shm *t, struct ft_shm_stranger *s, const int fd[FDS],
                 const struct ft_shm_offer *offer)
{
    size_t chunk_bytes = t->local.set.chunk_bytes, len = ft_slots_bytes(chunk_bytes);
    int rc = check_offer(offer, chunk_bytes);
    bool sparse = ft_can_populate();
    if (rc == FT_OK)
        rc = ft_memfd_check(fd[SEGMENT], len, sparse ? ft_slots_head_bytes() : len);
    if (rc)
        return rc;
    struct ft_shm_link *l = ft_shm_link_make(t, s->auth.peer, false);
    if (!l)
        return FT_NOMEM;
    l->stage = FT_SHM_READY;
    rc = ft_liveness_map(fd[LIFE], &l->liveness);
    if (rc == FT_OK)
        rc = ft_map_shared(fd[SEGMENT], len, &l->memory);
    if (rc == FT_OK) {
        l->len_bytes = len;
        rc = ft_slots_attach(&l->local.slots, l->memory, chunk_bytes);
        if (sparse)
            ft_slots_sparse(&l->local.slots, true);
    }
    if (rc == FT_OK)
        rc = borrow(t, l, fd[ARENA], (size_t)offer->arena_bytes);
    if (rc == FT_OK)
        rc = ft_local_link_open(&l->local);
    if (rc == FT_OK) {
        try_to_pull(t, l, s->socket.fd, offer);
        ft_local_link_meet(&l->local, fd[PINNED], &offer->pinned);
        l->socket = s->socket;
        l->socket.kind = FT_SHM_LINK;
        rc = accept_offer(t, l);
        if (rc != FT_OK)
            l->socket.fd = -1; /* the stranger keeps it */
    }
    if (rc) {
        ft_transport_shm.disconnect(&l->local.base);
        return rc;
    }
    struct epoll_event ev = {.events = EPOLLIN, .data.ptr = &l->socket};
    if (epoll_ctl(t->epoll, EPOLL_CTL_MOD, l->socket.fd, &ev) == 0)
        l->socket.watched = EPOLLIN;
    s->socket.fd = -1;
    ft_local_link_up(&l->local);
    return FT_OK;
}

static bool stranger_turn(struct ft_shm *t, struct ft_shm_stranger *s)
{
    if (!s->proved) {
        int rc = ft_auth_turn(&s->auth);
        if (rc == FT_AGAIN)
            rc = ft_shm_watch(t, &s->socket, epoll_events(ft_auth_events(&s->auth))) ? FT_SYSTEM
                                                                                     : FT_AGAIN;
        if (rc == FT_AGAIN)
            return false;
        if (rc != FT_OK) {
            if (rc == FT_LINK)
                FT_LOG(TRACE, "shm", t->local.base.config.rank, "a connection went away: %s",
                       ft_fail_text());
            else
                FT_LOG(WARN, "shm", t->local.base.config.rank, "a connection was refused: %s",
                       ft_fail_text());
            stranger_drop(t, s);
            return true;
        }
        s->proved = true;
        ft_shm_watch(t, &s->socket, EPOLLIN);
    }
    struct ft_shm_offer offer;
    struct iovec iov = {.iov_base = &offer, .iov_len = sizeof offer};
    int fd[FDS] = {-1, -1, -1, -1};
    int rc = read_with_fds(s->socket.fd, &iov, fd, FDS);
    if (rc == FT_AGAIN)
        return true;
    if (rc == FT_OK)
        rc = adopt(t, s, fd, &offer);
    if (rc && rc != FT_LINK) {
        FT_LOG(WARN, "shm", t->local.base.config.rank, "engine %016llx was refused: %s",
               (unsigned long long)s->auth.peer, ft_fail_text());
        ft_shm_say(&s->socket, (unsigned char)(FT_SHM_REFUSED - rc));
    }
    for (int i = 0; i < FDS; i++)
        ft_fd_close(&fd[i]);
    stranger_drop(t, s);
    return true;
}

/* ---- links ----------------------------------------------------------------------------------- */

static int send_offer(struct ft_shm *t, struct ft_shm_link *l)
{
    size_t arena_bytes;
    int arena = ft_arena_file(&arena_bytes);
    struct ft_shm_offer offer = {.chunk_bytes = t->local.set.chunk_bytes,
                                 .len_bytes = l->len_bytes,
                                 .arena_bytes = arena_bytes};
    if (ft_param_int(FT_PARAM_CMA)) {
        struct ft_env *env = t->local.base.config.env;
        env->random(env, &l->cookie, sizeof l->cookie);
        offer.cookie = l->cookie;
        offer.cookie_at = (uintptr_t)&l->cookie;
    }
    const struct ft_pinned *pinned = t->local.base.config.pinned;
    if (pinned)
        ft_pinned_locate(pinned, &offer.pinned);
    struct iovec iov = {.iov_base = &offer, .iov_len = sizeof offer};
    const int fd[FDS] = {[SEGMENT] = l->segment,
                         [LIFE] = t->liveness,
                         [ARENA] = arena < 0 ? t->liveness : arena,
                         [PINNED] = pinned ? pinned->fd : t->liveness};
    return send_with_fds(l->socket.fd, &iov, fd, FDS);
}

/* An acceptance comes with the other side's liveness page, a refusal without. */
static int read_answer(struct ft_shm *t, struct ft_shm_link *l)
{
    unsigned char word = 0;
    ssize_t n = recv(l->socket.fd, &word, 1, MSG_DONTWAIT | MSG_PEEK);
    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return FT_AGAIN;
    if (n <= 0)
        return ft_fail(FT_LINK, "the other side hung up before it accepted the link");
    int status = FT_SHM_REFUSED - (int)word;
    bool accepted = word >= FT_SHM_ACCEPTED && word < FT_SHM_ANSWERS;
    /* What the other side has run out of, this side may still have. */
    if (!accepted && status >= FT_FORKED && status < FT_AGAIN)
        return ft_fail(ft_status_lost(status) == FT_LOST_PROCESS ? FT_LINK : status,
                       "the other side refused the link: %s", ft_status_text(status));
    if (!accepted)
        return ft_fail(FT_PROTOCOL, "the other side answered a link with byte %u", word);
    struct iovec iov = {.iov_base = &word, .iov_len = 1};
    int fd = -1;
    int rc = read_with_fds(l->socket.fd, &iov, &fd, 1);
    if (rc == FT_OK)
        rc = ft_liveness_map(fd, &l->liveness);
    if (rc == FT_OK)
        ft_local_link_lend(&l->local, word & FT_SHM_ARENA, word & FT_SHM_PULLS);
    if (rc == FT_OK && (word & FT_SHM_PINNED))
        l->local.slots.pinned = t->local.base.config.pinned;
    ft_fd_close(&fd);
    return rc;
}

/* One step of the set-up of a sending link. FT_OK: it has moved on. */
static int setup_step(struct ft_shm *t, struct ft_shm_link *l)
{
    int rc = FT_INTERNAL;
    switch (l->stage) {
    case FT_SHM_DIAL:
        return ft_shm_link_dial(t, l);
    case FT_SHM_AUTH:
        rc = ft_auth_turn(&l->auth);
        if (rc == FT_AGAIN && ft_shm_watch(t, &l->socket, epoll_events(ft_auth_events(&l->auth))))
            return FT_SYSTEM;
        if (rc == FT_OK)
            l->stage = FT_SHM_OFFER;
        return rc;
    case FT_SHM_OFFER:
        rc = send_offer(t, l);
        if (rc == FT_AGAIN && ft_shm_watch(t, &l->socket, EPOLLIN | EPOLLOUT))
            return FT_SYSTEM;
        if (rc)
            return rc;
        l->stage = FT_SHM_ANSWER;
        ft_fd_close(&l->segment);
        return ft_shm_watch(t, &l->socket, EPOLLIN);
    case FT_SHM_ANSWER:
        rc = read_answer(t, l);
        if (rc == FT_OK) {
            ft_shm_link_settle(t, l);
            ft_local_link_up(&l->local);
        }
        return rc;
    case FT_SHM_READY:
        break;
    }
    return rc;
}

static bool setup_turn(struct ft_shm *t, struct ft_shm_link *l)
{
    bool any = false;
    while (l->stage != FT_SHM_READY) {
        int rc = setup_step(t, l);
        if (rc == FT_AGAIN)
            return any;
        any = true;
        if (rc)
            ft_shm_link_lost(t, l, rc, false);
    }
    return any;
}

/* Reads the words of the other side on an established link, until there are no more. */
static bool listen_to(struct ft_shm *t, struct ft_shm_link *l)
{
    unsigned char word[64];
    bool bye = false;
    for (int round = 0; round < 4 && l->socket.fd >= 0; round++) {
        ssize_t n = recv(l->socket.fd, word, sizeof word, MSG_DONTWAIT);
        if (n < 0 && (errno == EAGAIN || errno == EINTR))
            return round > 0;
        for (ssize_t i = 0; i < n; i++) {
            if (word[i] == FT_SHM_BYE)
                bye = true;
            else if (word[i] != FT_SHM_BELL) {
                ft_shm_link_lost(
                    t, l, ft_fail(FT_PROTOCOL, "a peer says byte %u on a link", word[i]), false);
                return true;
            }
        }
        if (n <= 0 || bye) {
            ft_shm_link_lost(t, l, FT_LINK, bye);
            return true;
        }
    }
    return true;
}

/* ---- looking --------------------------------------------------------------------------------- */

static bool link_turn(struct ft_shm *t, struct ft_shm_link *l)
{
    bool any = l->stage != FT_SHM_READY && setup_turn(t, l);
    if (l->stage == FT_SHM_READY && l->local.base.state == FT_LINK_UP)
        any |= listen_to(t, l);
    return any;
}

static bool dispatch(struct ft_shm *t, struct ft_shm_socket *s, uint64_t now_ns)
{
    if (s->kind == FT_SHM_LISTENER)
        return accept_strangers(t, now_ns);
    if (s->fd < 0)
        return false; /* an earlier event of this poll has closed it */
    if (s->kind == FT_SHM_STRANGER)
        return stranger_turn(t, FT_CONTAINER(s, struct ft_shm_stranger, socket));
    return link_turn(t, FT_CONTAINER(s, struct ft_shm_link, socket));
}

/* Checks deadlines, and dials again where the other side's queue was full. */
static bool look_at_setups(struct ft_shm *t, uint64_t now_ns)
{
    bool any = false;
    for (struct ft_shm_stranger *s = t->stranger; s < t->stranger + FT_SHM_STRANGERS; s++) {
        if (s->socket.fd < 0 || now_ns < s->deadline_ns)
            continue;
        stranger_drop(t, s);
        any = true;
    }
    for (struct ft_local_link *p = t->local.links; p; p = p->next) {
        struct ft_shm_link *l = FT_CONTAINER(p, struct ft_shm_link, local);
        if (l->stage == FT_SHM_DIAL)
            any |= setup_turn(t, l);
        if (l->stage == FT_SHM_READY || now_ns < l->deadline_ns)
            continue;
        ft_shm_link_lost(
            t, l, ft_fail(FT_LINK, "the other side did not answer on shared memory within 5 s"),
            false);
        any = true;
    }
    return any;
}

/* Finds links whose peer's process has ended. */
static bool look_at_life(struct ft_shm *t)
{
    bool any = false;
    for (struct ft_local_link *p = t->local.links; p; p = p->next) {
        struct ft_shm_link *l = FT_CONTAINER(p, struct ft_shm_link, local);
        if (p->base.state != FT_LINK_UP || !ft_liveness_ended(l->liveness))
            continue;
        any = true;
        /* it may have said goodbye before it ended */
        for (int i = 0; i < LAST_WORDS && p->base.state == FT_LINK_UP && listen_to(t, l); i++) {}
        if (p->base.state == FT_LINK_UP)
            ft_shm_link_lost(t, l, ft_fail(FT_LINK, "the process of a peer has ended"), false);
    }
    return any;
}

bool ft_shm_look(struct ft_shm *t, uint64_t now_ns)
{
    struct epoll_event events[32];
    int n = epoll_wait(t->epoll, events, 32, 0);
    bool any = false;
    for (int i = 0; i < n; i++)
        any |= dispatch(t, events[i].data.ptr, now_ns);
    if (t->setups)
        any |= look_at_setups(t, now_ns);
    return any | look_at_life(t);
}

/*
 * Peers: authenticated connections between agents and the master. Each message has a length, a
 * service and a type. Everything is bounded: connections, those that have not proved the key yet,
 * bytes of a message, bytes that wait, and the times of the handshake, of a message and of silence.
 * Buffers grow with what has come, not with what was announced.
 */
#include "daemon.h"
#include "base/wire.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#define HANDSHAKE_NS 5000000000u
#define SILENCE_NS 60000000000u /* of an agent, and of a message that has begun */
#define STRANGERS_MOST 64       /* that have not proved the key */
#define READ_BYTES 65536

enum stage { CONNECTS, PROVES, OPEN, ENDED };

struct buffer {
    unsigned char *at;
    size_t len, room, done; /* done: bytes from the front that are used up */
};

struct daemon_peer {
    struct daemon *daemon;
    struct daemon_watch watch;
    enum stage stage;
    bool accepted, told; /* told: services know of it */
    struct ft_auth auth;
    struct buffer in, out;
    uint64_t begun_ns, heard_ns;
    void *slot[DAEMON_NUMBERS];
    char name[FT_NET_TEXT_BYTES], why[200];
};

struct daemon_peers {
    struct daemon *daemon;
    struct daemon_peer *peer[DAEMON_PEERS_MOST];
    int n;
    bool reap;
};

/* ---- buffers --------------------------------------------------------------------------------- */

/* Makes room for more bytes at the end. */
static bool make_room(struct buffer *b, size_t more)
{
    if (b->done > 0) {
        memmove(b->at, b->at + b->done, b->len - b->done);
        b->len -= b->done;
        b->done = 0;
    }
    if (b->len + more <= b->room)
        return true;
    size_t room = ft_max(2 * b->room, b->len + more);
    unsigned char *grown = realloc(b->at, room);
    if (!grown)
        return false;
    b->at = grown;
    b->room = room;
    return true;
}

/* A buffer that was large once does not stay so. */
static void free_if_empty(struct buffer *b)
{
    if (b->done == b->len) {
        free(b->at);
        *b = (struct buffer){0};
    }
}

/* ---- one peer -------------------------------------------------------------------------------- */

void **daemon_peer_slot(struct daemon_peer *p, int service)
{
    return &p->slot[service];
}

const char *daemon_peer_name(const struct daemon_peer *p)
{
    return p->name;
}

const char *daemon_peer_why(const struct daemon_peer *p)
{
    return p->why;
}

size_t daemon_peer_queued(const struct daemon_peer *p)
{
    return p->out.len - p->out.done;
}

void daemon_peer_end(struct daemon_peer *p, const char *why)
{
    if (p->stage == ENDED)
        return;
    p->stage = ENDED;
    snprintf(p->why, sizeof p->why, "%s", why);
    daemon_unwatch(p->daemon, &p->watch);
    ft_fd_close(&p->watch.fd);
    daemon_peers_of(p->daemon)->reap = true;
}

static void flush(struct daemon_peer *p)
{
    struct buffer *out = &p->out;
    while (out->done < out->len) {
        ssize_t n = send(p->watch.fd, out->at + out->done, out->len - out->done,
                         MSG_DONTWAIT | MSG_NOSIGNAL);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0 && errno != EAGAIN)
            daemon_peer_end(p, strerror(errno));
        if (n < 0)
            break;
        out->done += (size_t)n;
    }
    if (p->stage == ENDED)
        return;
    free_if_empty(out);
    daemon_watch_for(p->daemon, &p->watch, EPOLLIN | (out->len > 0 ? EPOLLOUT : 0));
}

bool daemon_peer_send(struct daemon_peer *p, const struct daemon_message *m)
{
    bool fits = p->stage == OPEN && m->len <= DAEMON_MESSAGE_MOST &&
                daemon_peer_queued(p) + m->len <= DAEMON_QUEUED_MOST;
    if (!fits || !make_room(&p->out, FT_DAEMON_HEADER_BYTES + m->len))
        return false;
    unsigned char *at = p->out.at + p->out.len;
    put32(&at, (uint32_t)m->len);
    put16(&at, m->service);
    put16(&at, m->type);
    if (m->len > 0)
        memcpy(at, m->bytes, m->len);
    p->out.len += FT_DAEMON_HEADER_BYTES + m->len;
    flush(p);
    return true;
}

/* Delivers the messages that are complete. */
static void deliver(struct daemon_peer *p)
{
    while (p->stage == OPEN && p->in.len - p->in.done >= FT_DAEMON_HEADER_BYTES) {
        const unsigned char *at = p->in.at + p->in.done;
        size_t len = get32(&at);
        struct daemon_message m = {.service = get16(&at), .type = get16(&at), .len = len};
        if (len > DAEMON_MESSAGE_MOST) {
            daemon_peer_end(p, "it announced a message that is too long");
            return;
        }
        if (p->in.len - p->in.done < FT_DAEMON_HEADER_BYTES + len)
            return;
        m.bytes = at;
        p->in.done += FT_DAEMON_HEADER_BYTES + len;
        p->heard_ns = daemon_now_ns();
        if (!daemon_deliver(p->daemon, p, &m))
            daemon_peer_end(p, "it sent what makes no sense");
    }
    free_if_empty(&p->in);
}

static void receive(struct daemon_peer *p)
{
    if (!make_room(&p->in, READ_BYTES)) {
        daemon_peer_end(p, "no memory for its message");
        return;
    }
    ssize_t n = recv(p->watch.fd, p->in.at + p->in.len, READ_BYTES, MSG_DONTWAIT);
    if (n > 0) {
        p->in.len += (size_t)n;
        deliver(p);
    } else if (n == 0) {
        daemon_peer_end(p, "it closed the connection");
    } else if (errno != EAGAIN && errno != EINTR) {
        daemon_peer_end(p, strerror(errno));
    }
}

/* A peer whose machine is gone is found in half a minute. */
static void set_keepalive(int fd)
{
    int on = 1, idle_s = 10, between_s = 5, probes = 3, unacknowledged_ms = 30000;
    setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle_s, sizeof idle_s);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &between_s, sizeof between_s);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &probes, sizeof probes);
    setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &unacknowledged_ms, sizeof unacknowledged_ms);
}

static void prove(struct daemon_peer *p)
{
    int status = ft_auth_turn(&p->auth);
    if (status == FT_AGAIN) {
        daemon_watch_for(p->daemon, &p->watch,
                         ft_auth_events(&p->auth) & POLLOUT ? EPOLLOUT : EPOLLIN);
    } else if (status != FT_OK) {
        daemon_peer_end(p, ft_fail_text());
    } else if (p->auth.detail != FT_DAEMON_VERSION) {
        daemon_peer_end(p, "it speaks another version of the daemons' messages");
    } else {
        p->stage = OPEN;
        p->heard_ns = daemon_now_ns();
        daemon_watch_for(p->daemon, &p->watch, EPOLLIN);
        p->told = true;
        daemon_tell_opened(p->daemon, p);
    }
}

static void begin_to_prove(struct daemon_peer *p)
{
    set_keepalive(p->watch.fd);
    p->stage = PROVES;
    ft_auth_start(&p->auth, ft_env_real(), p->watch.fd, !p->accepted, daemon_key(p->daemon),
                  ft_process_id(), 0, FT_PURPOSE_SERVICE, FT_DAEMON_VERSION,
                  daemon_now_ns() + HANDSHAKE_NS);
    prove(p);
}

static void finish_connect(struct daemon_peer *p)
{
    int status = ft_net_connected(p->watch.fd);
    if (status == FT_OK)
        begin_to_prove(p);
    else if (status != FT_AGAIN)
        daemon_peer_end(p, ft_fail_text());
}

static void on_ready(void *arg, uint32_t events)
{
    struct daemon_peer *p = arg;
    if (p->stage == CONNECTS)
        finish_connect(p);
    else if (p->stage == PROVES)
        prove(p);
    if (p->stage == OPEN && events & EPOLLOUT)
        flush(p);
    if (p->stage == OPEN && events & (EPOLLIN | EPOLLHUP | EPOLLERR))
        receive(p);
}

/* ---- all peers ------------------------------------------------------------------------------- */

static void drop(struct daemon_peer *p)
{
    if (p->told || !p->accepted)
        daemon_tell_closed(p->daemon, p);
    free(p->in.at);
    free(p->out.at);
    free(p);
}

/* The stranger that has been here for longest makes room. */
static void limit_strangers(struct daemon_peers *all)
{
    struct daemon_peer *oldest = NULL;
    int strangers = 0;
    for (int i = 0; i < all->n; i++) {
        struct daemon_peer *p = all->peer[i];
        if (!p->accepted || p->stage != PROVES)
            continue;
        strangers++;
        if (!oldest || p->begun_ns < oldest->begun_ns)
            oldest = p;
    }
    if (strangers > STRANGERS_MOST)
        daemon_peer_end(oldest, "too many others had not proved their key either");
}

static struct daemon_peer *add_peer(struct daemon *d, int fd, bool accepted)
{
    struct daemon_peers *all = daemon_peers_of(d);
    struct daemon_peer *p = all->n < DAEMON_PEERS_MOST ? calloc(1, sizeof *p) : NULL;
    if (!p)
        return NULL;
    p->daemon = d;
    p->accepted = accepted;
    p->begun_ns = daemon_now_ns();
    p->watch = (struct daemon_watch){.fd = fd, .ready = on_ready, .arg = p};
    if (daemon_watch_for(d, &p->watch, accepted ? EPOLLIN : EPOLLOUT) != FT_OK) {
        free(p);
        return NULL;
    }
    all->peer[all->n++] = p;
    return p;
}

void daemon_peer_accept(struct daemon *d, int fd)
{
    struct daemon_peer *p = daemon_key(d) ? add_peer(d, fd, true) : NULL;
    if (!p) {
        ft_fd_close(&fd);
        return;
    }
    struct ft_net_address from;
    if (ft_net_peer(fd, &from) == FT_OK)
        ft_net_text(&from, p->name);
    begin_to_prove(p);
    limit_strangers(daemon_peers_of(d));
}

struct daemon_peer *daemon_peer_connect(struct daemon *d, const struct ft_net_address *to)
{
    int fd;
    if (ft_net_connect(to, NULL, &fd) != FT_OK)
        return NULL;
    struct daemon_peer *p = add_peer(d, fd, false);
    if (!p)
        ft_fd_close(&fd);
    else
        ft_net_text(to, p->name);
    return p;
}

static void expire(struct daemon_peer *p, uint64_t now_ns)
{
    if ((p->stage == PROVES || p->stage == CONNECTS) && now_ns - p->begun_ns > HANDSHAKE_NS)
        daemon_peer_end(p, "the handshake was not finished in time");
    if (p->stage == OPEN && p->accepted && now_ns - p->heard_ns > SILENCE_NS)
        daemon_peer_end(p, "it has sent nothing for a minute");
}

void daemon_peers_tick(struct daemon_peers *all)
{
    uint64_t now_ns = daemon_now_ns();
    for (int i = 0; i < all->n; i++)
        expire(all->peer[i], now_ns);
    if (!all->reap)
        return;
    all->reap = false;
    for (int i = all->n - 1; i >= 0; i--)
        if (all->peer[i]->stage == ENDED) {
            struct daemon_peer *ended = all->peer[i];
            all->peer[i] = all->peer[--all->n];
            drop(ended);
        }
}

struct daemon_peers *daemon_peers_open(struct daemon *d)
{
    struct daemon_peers *all = calloc(1, sizeof *all);
    if (all)
        all->daemon = d;
    else
        ft_fail(FT_NOMEM, "no memory for peers");
    return all;
}

void daemon_peers_close(struct daemon_peers *all)
{
    if (!all)
        return;
    for (int i = 0; i < all->n; i++) {
        daemon_peer_end(all->peer[i], "this program ends");
        drop(all->peer[i]);
    }
    free(all);
}

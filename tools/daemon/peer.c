/*
 * Peers: authenticated connections between agents and the master. Each message has a length, a
 * service and a type. Everything is bounded: connections, those that have not proved the key yet,
 * bytes of a message, bytes that wait, and the times of the handshake, of a message and of silence.
 * Buffers grow with what has come, not with what was announced. Messages are collected, and go out
 * at the end of a turn of the loop; peers that have ended are freed then, too.
 */
#include "daemon.h"
#include "base/wire.h"
#include "membership/coord.h"

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
#define STRANGERS_MOST 256      /* that have not proved the key, and those of port.c */
#define READ_BYTES 65536
#define FLUSH_BYTES ((size_t)256 << 10) /* more are not collected */
#define EXPIRE_NS 250000000u            /* between two looks at all peers */

enum stage { CONNECTS, PROVES, OPEN, ENDED };

struct buffer {
    unsigned char *at;
    size_t len, room, done; /* done: bytes from the front that are used up */
};

struct daemon_peer {
    struct daemon *daemon;
    struct daemon_watch watch;
    enum stage stage;
    int index;           /* in the array of all */
    uint32_t waits;      /* events that it waits for, once it is open */
    bool accepted, told; /* told: services know of it */
    bool watched;        /* a service looks whether it is silent */
    bool queued;         /* in the list of those with something to send */
    struct daemon_peer *next_out, *next_ended;
    struct ft_auth auth;
    struct buffer in;
    struct ft_coord_out out;
    uint64_t begun_ns, heard_ns;
    void *slot[DAEMON_NUMBERS];
    char name[FT_NET_TEXT_BYTES], why[200];
};

struct daemon_peers {
    struct daemon *daemon;
    struct daemon_peer *peer[DAEMON_PEERS_MOST];
    struct daemon_peer *out, *ended; /* with something to send; to be freed */
    int n, nstrangers;
    uint64_t looked_ns;
};

/* ---- buffers --------------------------------------------------------------------------------- */

/* Makes room for more bytes at the end. Bytes are moved to the front only if as many are used up,
 * so a long queue costs no more for each message than a short one. */
static bool make_room(struct buffer *b, size_t more)
{
    if (b->len + more <= b->room)
        return true;
    if (b->done > 0 && b->done >= b->len - b->done) {
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
    return p->out.len_bytes;
}

static void end_now(struct daemon_peer *p, const char *why)
{
    struct daemon_peers *all = daemon_peers_of(p->daemon);
    all->nstrangers -= p->accepted && p->stage == PROVES;
    p->stage = ENDED;
    snprintf(p->why, sizeof p->why, "%s", why);
    daemon_unwatch(p->daemon, &p->watch);
    ft_fd_close(&p->watch.fd);
    p->next_ended = all->ended;
    all->ended = p;
}

/* Waits for what comes, and for room if something has to go. */
static void wait_open(struct daemon_peer *p)
{
    const uint32_t events = EPOLLIN | (p->out.len_bytes > 0 ? EPOLLOUT : 0);
    if (events == p->waits)
        return;
    p->waits = events;
    if (daemon_watch_for(p->daemon, &p->watch, events) != FT_OK)
        end_now(p, ft_fail_text());
}

static void flush(struct daemon_peer *p)
{
    bool moved;
    if (ft_coord_out_flush(&p->out, p->watch.fd, &moved) == FT_LINK)
        end_now(p, strerror(errno));
    else
        wait_open(p);
}

/* What was said before it ends goes out, as far as there is room. */
void daemon_peer_end(struct daemon_peer *p, const char *why)
{
    if (p->stage == OPEN && p->out.len_bytes > 0)
        flush(p);
    if (p->stage != ENDED)
        end_now(p, why);
}

/* Views and files are long, what asks for them is not. */
static size_t message_most(bool answers)
{
    return answers ? DAEMON_ANSWER_MOST : DAEMON_MESSAGE_MOST;
}

static void mark_queued(struct daemon_peer *p)
{
    struct daemon_peers *all = daemon_peers_of(p->daemon);
    if (p->queued)
        return;
    p->queued = true;
    p->next_out = all->out;
    all->out = p;
}

/* Begins a message of so many bytes. Returns where the first `own` of them go. NULL: it does not
 * fit, or there is no memory. */
static unsigned char *begin_message(struct daemon_peer *p, const struct daemon_message *m,
                                    size_t len, size_t own)
{
    bool fits = p->stage == OPEN && len <= message_most(p->accepted) &&
                daemon_peer_queued(p) + len <= DAEMON_QUEUED_MOST;
    unsigned char *at = fits ? ft_coord_out_own(&p->out, FT_DAEMON_HEADER_BYTES + own) : NULL;
    if (!at)
        return NULL;
    put32(&at, (uint32_t)len);
    put16(&at, m->service);
    put16(&at, m->type);
    return at;
}

static void end_message(struct daemon_peer *p)
{
    mark_queued(p);
    if (daemon_peer_queued(p) >= FLUSH_BYTES && p->waits == EPOLLIN)
        flush(p);
}

bool daemon_peer_send_parts(struct daemon_peer *p, const struct daemon_message *rest,
                            const unsigned char *head, size_t head_bytes)
{
    const size_t len = head_bytes + rest->len;
    unsigned char *at = begin_message(p, rest, len, len);
    if (!at)
        return false;
    if (head_bytes > 0)
        memcpy(at, head, head_bytes);
    if (rest->len > 0)
        memcpy(at + head_bytes, rest->bytes, rest->len);
    end_message(p);
    return true;
}

bool daemon_peer_send(struct daemon_peer *p, const struct daemon_message *m)
{
    return daemon_peer_send_parts(p, m, NULL, 0);
}

bool daemon_peer_send_blobs(struct daemon_peer *p, const struct daemon_message *head,
                            struct ft_blob *const *blobs, int nblobs)
{
    size_t len = head->len;
    for (int i = 0; i < nblobs; i++)
        len += blobs[i]->len_bytes;
    unsigned char *at = begin_message(p, head, len, head->len);
    if (!at)
        return false;
    memcpy(at, head->bytes, head->len);
    for (int i = 0; i < nblobs; i++)
        if (!ft_coord_out_share(&p->out, blobs[i])) {
            end_now(p, "no memory for the rest of a message to it");
            return false;
        }
    end_message(p);
    return true;
}

/* Delivers the messages that are complete. */
static void deliver(struct daemon_peer *p)
{
    while (p->stage == OPEN && p->in.len - p->in.done >= FT_DAEMON_HEADER_BYTES) {
        const unsigned char *at = p->in.at + p->in.done;
        size_t len = get32(&at);
        struct daemon_message m = {.service = get16(&at), .type = get16(&at), .len = len};
        if (len > message_most(!p->accepted)) {
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

void daemon_peer_watched(struct daemon_peer *p)
{
    const int off = 0;
    p->watched = true;
    setsockopt(p->watch.fd, SOL_SOCKET, SO_KEEPALIVE, &off, sizeof off);
    setsockopt(p->watch.fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &off, sizeof off);
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
        daemon_peers_of(p->daemon)->nstrangers -= p->accepted;
        p->stage = OPEN;
        p->heard_ns = daemon_now_ns();
        p->waits = 0;
        wait_open(p);
        if (p->stage != OPEN)
            return;
        p->told = true;
        daemon_tell_opened(p->daemon, p);
    }
}

static void begin_to_prove(struct daemon_peer *p)
{
    set_keepalive(p->watch.fd);
    p->stage = PROVES;
    daemon_peers_of(p->daemon)->nstrangers += p->accepted;
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
    ft_coord_out_clear(&p->out);
    free(p);
}

bool daemon_peers_make_room(struct daemon_peers *all)
{
    struct daemon_peer *oldest = NULL;
    if (all->nstrangers < STRANGERS_MOST)
        return true;
    for (int i = 0; i < all->n; i++) {
        struct daemon_peer *p = all->peer[i];
        if (p->accepted && p->stage == PROVES && (!oldest || p->begun_ns < oldest->begun_ns))
            oldest = p;
    }
    if (daemon_now_ns() - oldest->begun_ns < DAEMON_YOUNG_NS)
        return false;
    daemon_peer_end(oldest, "too many others had not proved their key either");
    return true;
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
    p->index = all->n;
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
    if (p->stage == OPEN && p->accepted && !p->watched && now_ns - p->heard_ns > SILENCE_NS)
        daemon_peer_end(p, "it has sent nothing for a minute");
}

void daemon_peers_tick(struct daemon_peers *all)
{
    uint64_t now_ns = daemon_now_ns();
    if (now_ns - all->looked_ns < EXPIRE_NS)
        return;
    all->looked_ns = now_ns;
    for (int i = 0; i < all->n; i++)
        expire(all->peer[i], now_ns);
}

static void flush_all(struct daemon_peers *all)
{
    for (struct daemon_peer *p; (p = all->out);) {
        all->out = p->next_out;
        p->queued = false;
        if (p->stage == OPEN && p->waits == EPOLLIN)
            flush(p);
    }
}

/* Services that hear of an end may send, and end others. */
void daemon_peers_turn(struct daemon_peers *all)
{
    flush_all(all);
    for (struct daemon_peer *p; (p = all->ended); flush_all(all)) {
        all->ended = p->next_ended;
        all->peer[p->index] = all->peer[--all->n];
        all->peer[p->index]->index = p->index;
        drop(p);
    }
}

void daemon_peers_end(struct daemon *d, int service, const char *why)
{
    struct daemon_peers *all = daemon_peers_of(d);
    for (int i = 0; i < all->n; i++)
        if (all->peer[i]->slot[service])
            daemon_peer_end(all->peer[i], why);
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
    for (int i = 0; i < all->n; i++)
        daemon_peer_end(all->peer[i], "this program ends");
    daemon_peers_turn(all);
    free(all);
}

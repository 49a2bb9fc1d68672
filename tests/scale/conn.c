/*
 * A connection of the load: connects, proves the secret, sends and takes messages. What comes of a
 * long message is thrown away in the kernel, unless its members are samples.
 */
#include "scale.h"

#include <errno.h>
#include <poll.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#define READ_BYTES ((size_t)1 << 18)

static void start(struct load *, struct conn *);
static void watch(struct load *, struct conn *, int how, uint32_t events);
static void prove(struct load *, struct conn *);
static void flush(struct load *, struct conn *);
static void read_all(struct load *, struct conn *);
static size_t feed(struct load *, struct conn *, const unsigned char *bytes, size_t len);
static void lost(struct load *, struct conn *, const char *why);

void conn_start_some(struct load *load)
{
    while (load->next < load->nconns && load->handshakes < load->handshakes_most) {
        struct conn *c = &load->conn[load->next++];
        if (c->state == CONN_CLOSED)
            start(load, c);
    }
}

static void start(struct load *load, struct conn *c)
{
    uint_fast64_t none = 0;
    atomic_compare_exchange_strong(&load->shared->first_ns, &none, ft_now_ns(load->env));
    const int status = ft_net_connect(&load->shared->at, NULL, &c->fd);
    if (status != FT_OK) {
        scale_fault(load, "connection %u: %s", c->number, ft_fail_text());
        return;
    }
    c->state = CONN_CONNECTS;
    load->handshakes++;
    watch(load, c, EPOLL_CTL_ADD, EPOLLOUT);
}

static void watch(struct load *load, struct conn *c, int how, uint32_t events)
{
    struct epoll_event event = {.events = events, .data.ptr = c};
    if (epoll_ctl(load->epoll, how, c->fd, &event) != 0)
        scale_fault(load, "epoll_ctl: %s", strerror(errno));
}

void conn_turn(struct load *load, struct conn *c, uint32_t events)
{
    if (c->state == CONN_CONNECTS) {
        const int status = ft_net_connected(c->fd);
        if (status == FT_AGAIN)
            return;
        if (status != FT_OK) {
            lost(load, c, ft_fail_text());
            return;
        }
        ft_auth_start(&c->auth, load->env, c->fd, true, load->shared->key, c->number + 1, 0,
                      FT_PURPOSE_SERVICE, FT_DAEMON_VERSION,
                      ft_now_ns(load->env) + UINT64_C(60000000000));
        c->state = CONN_PROVES;
    }
    if (c->state == CONN_PROVES)
        prove(load, c);
    else if (c->state == CONN_OPEN && (events & EPOLLOUT))
        flush(load, c);
    if (c->state == CONN_OPEN && (events & (EPOLLIN | EPOLLHUP | EPOLLERR)))
        read_all(load, c);
}

static void prove(struct load *load, struct conn *c)
{
    const int status = ft_auth_turn(&c->auth);
    if (status == FT_AGAIN) {
        watch(load, c, EPOLL_CTL_MOD, ft_auth_events(&c->auth) == POLLIN ? EPOLLIN : EPOLLOUT);
        return;
    }
    if (status != FT_OK) {
        lost(load, c, ft_fail_text());
        return;
    }
    load->handshakes--;
    c->state = CONN_OPEN;
    watch(load, c, EPOLL_CTL_MOD, EPOLLIN);
    member_join_all(load, c);
    conn_start_some(load);
}

/* The coordinator has ended a connection before the handshake was over, because there were too
 * many: it is made again. Later it is a fault. */
static void lost(struct load *load, struct conn *c, const char *why)
{
    const bool early = c->state != CONN_OPEN;
    if (!early)
        scale_fault(load, "connection %u is lost: %s", c->number, why);
    conn_close(load, c);
    if (!early)
        return;
    load->handshakes--;
    if (atomic_fetch_add(&load->shared->again, 1) > load->shared->shape.members)
        scale_fault(load, "the coordinator finishes no handshake: %s", why);
    else
        start(load, c);
}

void conn_close(struct load *load, struct conn *c)
{
    (void)load;
    ft_fd_close(&c->fd);
    free(c->out);
    free(c->whole);
    c->out = c->whole = NULL;
    c->out_bytes = c->out_done = c->head_done = c->len = c->done = 0;
    c->state = CONN_CLOSED;
}

/* ---- out ------------------------------------------------------------------------------------- */

size_t conn_header(unsigned char *out, size_t len, uint16_t type)
{
    put32(&out, (uint32_t)len);
    put16(&out, FT_MEMBERS_SERVICE);
    put16(&out, type);
    return FT_DAEMON_HEADER_BYTES;
}

void conn_send(struct load *load, struct conn *c, const unsigned char *bytes, size_t len)
{
    ssize_t sent = 0;
    if (!c->out)
        sent = send(c->fd, bytes, len, MSG_NOSIGNAL);
    if (sent < 0 && errno != EAGAIN) {
        lost(load, c, strerror(errno));
        return;
    }
    const size_t done = sent < 0 ? 0 : (size_t)sent;
    if (done == len)
        return;
    unsigned char *more = realloc(c->out, c->out_bytes + len - done);
    if (!more) {
        scale_fault(load, "out of memory");
        return;
    }
    memcpy(more + c->out_bytes, bytes + done, len - done);
    c->out = more;
    c->out_bytes += len - done;
    watch(load, c, EPOLL_CTL_MOD, EPOLLIN | EPOLLOUT);
}

static void flush(struct load *load, struct conn *c)
{
    const ssize_t sent = send(c->fd, c->out + c->out_done, c->out_bytes - c->out_done,
                              MSG_NOSIGNAL);
    if (sent < 0) {
        if (errno != EAGAIN)
            lost(load, c, strerror(errno));
        return;
    }
    c->out_done += (size_t)sent;
    if (c->out_done < c->out_bytes)
        return;
    free(c->out);
    c->out = NULL;
    c->out_bytes = c->out_done = 0;
    watch(load, c, EPOLL_CTL_MOD, EPOLLIN);
}

/* ---- in -------------------------------------------------------------------------------------- */

/* Bytes of the present message that nobody looks at. */
static size_t skips(const struct conn *c)
{
    const bool begun = c->head_done == FT_DAEMON_HEADER_BYTES && c->done >= KEPT_BYTES;
    return begun && !c->sample ? c->len - c->done : 0;
}

static void read_all(struct load *load, struct conn *c)
{
    for (int turns = 0; turns < 16 && c->state == CONN_OPEN; turns++) {
        const size_t skip = skips(c);
        const size_t want = skip ? skip : READ_BYTES;
        /* TCP copies nothing then, so `want` may be more than there is room for. */
        const ssize_t n = recv(c->fd, load->scratch, want, skip ? MSG_TRUNC : 0);
        if (n < 0 && errno == EAGAIN)
            return;
        if (n <= 0) {
            lost(load, c, n < 0 ? strerror(errno) : "the coordinator has ended it");
            return;
        }
        const unsigned char *at = load->scratch, *end = at + n;
        if (skip)
            feed(load, c, NULL, (size_t)n);
        else
            while (at < end && c->state == CONN_OPEN)
                at += feed(load, c, at, (size_t)(end - at));
        if (!skip && (size_t)n < READ_BYTES)
            return;
    }
}

static void take_header(struct load *load, struct conn *c)
{
    const unsigned char *at = c->head;
    c->len = get32(&at);
    const uint16_t service = get16(&at);
    c->type = get16(&at);
    c->done = 0;
    if (service != FT_MEMBERS_SERVICE || c->type >= TYPES || c->len > FT_MEMBERS_MESSAGE_MOST)
        scale_fault(load, "connection %u: a header of service %u, type %u, %zu bytes", c->number,
                    service, c->type, c->len);
    if (c->sample && c->len > KEPT_BYTES && !(c->whole = malloc(c->len)))
        scale_fault(load, "out of memory");
}

/* Takes bytes of at most one message; NULL: they are thrown away. Returns how many. */
static size_t feed(struct load *load, struct conn *c, const unsigned char *bytes, size_t len)
{
    size_t used = 0;
    if (c->head_done < FT_DAEMON_HEADER_BYTES) {
        used = FT_DAEMON_HEADER_BYTES - c->head_done;
        if (used > len)
            used = len;
        memcpy(c->head + c->head_done, bytes, used);
        c->head_done += used;
        if (c->head_done < FT_DAEMON_HEADER_BYTES)
            return used;
        take_header(load, c);
        bytes += used;
    }
    size_t part = c->len - c->done;
    if (part > len - used)
        part = len - used;
    if (c->whole)
        memcpy(c->whole + c->done, bytes, part);
    else if (c->done < KEPT_BYTES && bytes)
        memcpy(c->kept + c->done, bytes, part < KEPT_BYTES - c->done ? part : KEPT_BYTES - c->done);
    c->done += part;
    if (c->done < c->len)
        return used + part;
    c->head_done = 0;
    atomic_fetch_add(&load->shared->bytes_in[c->type], FT_DAEMON_HEADER_BYTES + c->len);
    atomic_fetch_add(&load->shared->messages_in[c->type], 1);
    const size_t kept = c->whole || c->len < KEPT_BYTES ? c->len : KEPT_BYTES;
    member_take(load, c, c->whole ? c->whole : c->kept, kept);
    free(c->whole);
    c->whole = NULL;
    return used + part;
}

void scale_fault(struct load *load, const char *fmt, ...)
{
    if (atomic_fetch_add(&load->shared->faults, 1) >= 10)
        return;
    char text[400];
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    fprintf(stderr, "scale: load %u: %s\n", load->index, text);
}

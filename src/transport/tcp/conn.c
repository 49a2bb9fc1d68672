/*
 * The bytes of one connection. After tcp_conn_open(), nothing here blocks or allocates memory. What
 * a peer says is checked before it is used. A message is read only into the place that its
 * channel's window has for it.
 */
#include "transport/tcp/tcp.h"

#include <errno.h>
#include <linux/sockios.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#define READS_A_TURN 16  /* afterwards other connections have their turn */
#define WRITE_AT_ONCE 16 /* most messages passed to the kernel in one call */
#define WRITE_COPIED 512 /* longest payload that is first copied behind its header */

static void arrived(struct tcp_conn *c);
static bool is_full(int err);
static int lost(int err);
static int parse_messages(struct tcp_conn *c);
static int begin_message(struct tcp_conn *c, const struct ft_header *h);
static void end_message(struct tcp_conn *c);
static int parse_credits(struct tcp_conn *c);
static int write_messages(struct tcp_conn *c, bool *moved);
static void finish_writing(struct tcp_conn *c, size_t bytes);
static void complete(struct tcp_conn *c, struct tcp_out *o, int status);

struct tcp_conn *tcp_conn_open(struct tcp *t, int fd, enum tcp_conn_state state, bool sender)
{
    struct tcp_conn *c = calloc(1, sizeof(*c));
    if (c == NULL || (sender && (c->out = calloc(TCP_QUEUE, sizeof(*c->out))) == NULL)) {
        free(c);
        return NULL;
    }
    c->tcp = t;
    c->fd = fd;
    c->state = state;
    c->since_ns = ft_now_ns(t->base.config.env);
    c->wanted = sender ? EPOLLOUT : EPOLLIN;
    struct epoll_event ev = {.events = c->wanted, .data.ptr = c};
    if (epoll_ctl(t->epoll_fd, EPOLL_CTL_ADD, fd, &ev) != 0) {
        free(c->out);
        free(c);
        return NULL;
    }
    if (sender)
        t->nclogged++;
    return c;
}

/* The last credit has been returned. */
static void no_credits(struct tcp_conn *c)
{
    if (c->due)
        c->tcp->ndue--;
    c->due = false;
    c->ncredits = 0;
    c->tcp->ncredits--;
}

void tcp_conn_close(struct tcp_conn *c)
{
    if (c->state == TCP_SHUT)
        return;
    c->state = TCP_SHUT;
    arrived(c);
    tcp_probe_drop(c);
    if (c->wanted & EPOLLOUT)
        c->tcp->nclogged--;
    if (c->ncredits > 0)
        no_credits(c);
    /* If a child of fork still has the descriptor, closing it does not remove it from epoll. */
    if (c->fd >= 0)
        epoll_ctl(c->tcp->epoll_fd, EPOLL_CTL_DEL, c->fd, NULL);
    ft_fd_close(&c->fd);
}

void tcp_conn_want(struct tcp_conn *c, uint32_t events)
{
    struct epoll_event ev = {.events = events, .data.ptr = c};
    if (c->wanted == events || c->state == TCP_SHUT)
        return;
    if (epoll_ctl(c->tcp->epoll_fd, EPOLL_CTL_MOD, c->fd, &ev) != 0)
        return;
    c->tcp->nclogged += (events & EPOLLOUT ? 1u : 0u) - (c->wanted & EPOLLOUT ? 1u : 0u);
    c->wanted = events;
}

/* System calls instead of recv() and send(). Those are cancellation points, which costs a twentieth
 * of a small message's time. */
static ssize_t receive(int fd, void *buf, size_t len_bytes)
{
    return syscall(SYS_recvfrom, fd, buf, len_bytes, MSG_DONTWAIT, NULL, NULL);
}

static ssize_t transmit(int fd, const void *buf, size_t len_bytes)
{
    return syscall(SYS_sendto, fd, buf, len_bytes, MSG_DONTWAIT | MSG_NOSIGNAL, NULL, 0);
}

/* Where the next byte of a payload goes. NULL: it is dropped. The destination may change between
 * two reads. */
static unsigned char *body_of(const struct tcp_conn *c)
{
    const struct ft_rxq_node *node = c->node;
    return node != NULL ? (unsigned char *)(uintptr_t)node->data + (node->header.len - c->body_left)
                        : NULL;
}

/* Reads the rest of a message's payload and what follows it, in one call. *room: bytes that were
 * asked for. */
static ssize_t take(struct tcp_conn *c, size_t body_bytes, size_t *room)
{
    const size_t ahead = sizeof(c->ahead) - c->have;
    struct iovec iov[2] = {{c->node != NULL ? body_of(c) : c->tcp->scratch, body_bytes},
                           {c->ahead + c->have, ahead}};
    /* 1: bytes to drop are left before the next header */
    struct msghdr m = {.msg_iov = iov, .msg_iovlen = body_bytes < c->body_left ? 1 : 2};

    *room = body_bytes + (m.msg_iovlen == 2 ? ahead : 0);
    return body_bytes > 0 ? recvmsg(c->fd, &m, MSG_DONTWAIT)
                          : receive(c->fd, iov[1].iov_base, ahead);
}

/* Nothing was read. ETIMEDOUT: the kernel's probes were not answered. */
static int no_bytes(struct tcp_conn *c, ssize_t n)
{
    if (n == 0)
        return ft_fail(FT_LINK, "the other side closed a connection without a goodbye");
    c->link->base.silent |= errno == ETIMEDOUT;
    return errno == EINTR || errno == EAGAIN || errno == EWOULDBLOCK ? FT_OK : lost(errno);
}

/* Reads once, and processes what came. *more: the kernel may have more bytes. */
static int read_once(struct tcp_conn *c, bool *moved, bool *more)
{
    const size_t body_bytes = c->node != NULL ? c->body_left
                                              : ft_min(c->body_left, sizeof(c->tcp->scratch));
    size_t room;
    const ssize_t n = take(c, body_bytes, &room);
    *more = n < 0 && errno == EINTR;
    if (n <= 0)
        return no_bytes(c, n);

    *moved = true;
    const size_t got = (size_t)n, of_body = ft_min(got, body_bytes);
    if (of_body > 0) {
        c->body_left -= of_body;
        if (c->body_left == 0)
            end_message(c);
    }
    if (got < room && c->body_left >= TCP_FLIGHT_BYTES && c->flight_ns == 0)
        tcp_flight_begins(c);
    c->have += got - of_body;
    int status = c->link->base.sender ? parse_credits(c) : parse_messages(c);
    *more = got == room && !c->goodbye && c->state != TCP_SHUT && !c->early;
    return status;
}

static int read_some(struct tcp_conn *c, bool *moved)
{
    int status = FT_OK;
    bool more = true;
    if (c->early) {
        status = parse_messages(c);
        if (c->goodbye || c->state == TCP_SHUT)
            return status;
    }
    for (int i = 0; i < READS_A_TURN && more && status == FT_OK; i++)
        status = read_once(c, moved, &more);
    return status;
}

/* A dropped message may end the link. That reads what is left on all its connections, but must not
 * read this one again, in the middle of a read. */
int tcp_conn_read(struct tcp_conn *c, bool *moved)
{
    if (c->reading)
        return FT_OK;
    c->reading = true;
    int status = read_some(c, moved);
    c->reading = false;
    return status;
}

int tcp_conn_write(struct tcp_conn *c, bool *moved)
{
    return c->link->base.sender ? write_messages(c, moved) : tcp_conn_return_credits(c);
}

/* The caller has checked that the queue has a free place. */
int tcp_conn_send(struct tcp_conn *c, const struct ft_header *h, const void *data,
                  struct ft_send *req, int buffer)
{
    struct tcp_out *o = &c->out[(c->out_head + c->out_count) % TCP_QUEUE];
    bool moved;

    *o = (struct tcp_out){.header = *h, .data = data, .req = req, .buffer = buffer};
    if (req != NULL)
        req->status = FT_AGAIN;
    if (h->len >= FT_LARGE_BYTES && c->out_count == 0)
        tcp_probe_begins(c, sizeof(*h) + h->len);
    if (c->out_count++ > 0)
        return FT_OK;
    int status = write_messages(c, &moved);
    if (status != FT_OK)
        c->out_count = 0;
    return status;
}

/* Adds places to the channel's credit, or begins a new one. A credit of which a part has been
 * written cannot grow. The caller knows that a free one is left. */
static struct tcp_credit *add_credit(struct tcp_conn *c, uint64_t ctx, unsigned lane,
                                     unsigned places)
{
    unsigned i = c->ncredits;
    while (i > 0 && (c->credits[i - 1].ctx != ctx || c->credits[i - 1].lane != lane))
        i--;
    if (i > 1 || (i == 1 && c->credit_done == 0)) {
        struct tcp_credit *credit = &c->credits[i - 1];
        if (credit->count < UINT16_MAX - places) {
            credit->count = (uint16_t)(credit->count + places);
            return credit;
        }
    }
    if (c->ncredits == 0) {
        c->credit_age = 0;
        c->tcp->ncredits++;
    }
    struct tcp_credit *credit = &c->credits[c->ncredits++];
    *credit = (struct tcp_credit){.ctx = ctx, .lane = (uint16_t)lane, .count = (uint16_t)places};
    return credit;
}

/* A credit waits as long as the sender has half of its window left. After that it is due, and waits
 * until a turn finds nothing to do; see tcp_poll(). */
void tcp_conn_credit(struct tcp_conn *c, uint64_t ctx, unsigned lane, unsigned places)
{
    if (c->state != TCP_OPEN || c->link->failing)
        return;
    const struct tcp_credit *credit = add_credit(c, ctx, lane, places);
    if (!c->due &&
        (lane > FT_LANE_P2P || 2u * credit->count >= ft_rxq_places(&c->tcp->set, lane))) {
        c->due = true;
        c->tcp->ndue++;
    }
    if (c->ncredits < TCP_CREDITS)
        return;
    int status = tcp_conn_return_credits(c);
    if (status == FT_OK && c->ncredits == TCP_CREDITS)
        status = ft_fail(FT_PROTOCOL, "the other side sends messages but does not take credits");
    if (status != FT_OK)
        tcp_link_down(c->link, status);
}

int tcp_conn_return_credits(struct tcp_conn *c)
{
    if (c->ncredits == 0)
        return FT_OK;
    const size_t len = c->ncredits * sizeof(c->credits[0]) - c->credit_done;
    ssize_t n = transmit(c->fd, (char *)c->credits + c->credit_done, len);
    if (n < 0 && !is_full(errno) && errno != EINTR)
        return lost(errno);
    c->credit_done += n > 0 ? (size_t)n : 0;
    c->wrote = true;

    const unsigned gone = (unsigned)(c->credit_done / sizeof(c->credits[0]));
    c->credit_done %= sizeof(c->credits[0]);
    c->ncredits -= gone;
    if (gone > 0 && c->ncredits > 0)
        memmove(c->credits, c->credits + gone, c->ncredits * sizeof(c->credits[0]));
    c->credit_age = 0;
    if (c->ncredits == 0)
        no_credits(c);
    tcp_conn_want(c, c->ncredits > 0 ? EPOLLIN | EPOLLOUT : EPOLLIN);
    return FT_OK;
}

/* The kernel drops what it has not sent if the process ends with unread data: then it resets the
 * connection. */
bool tcp_conn_flushed(const struct tcp_conn *c)
{
    int unsent = 0;
    if (c->state != TCP_OPEN)
        return true;
    return c->out_count == 0 && (ioctl(c->fd, SIOCOUTQNSD, &unsent) != 0 || unsent == 0);
}

/* Only between two messages. If the socket has no room, the other side sees a lost link instead. */
void tcp_conn_say_goodbye(struct tcp_conn *c)
{
    const struct ft_header last = {.lane = TCP_GOODBYE};
    const struct tcp_credit last_credit = {.lane = TCP_GOODBYE};

    if (c->state != TCP_OPEN)
        return;
    if (c->link->base.sender) {
        if (c->out_count == 0)
            (void)!send(c->fd, &last, sizeof(last), MSG_DONTWAIT | MSG_NOSIGNAL);
    } else if (tcp_conn_return_credits(c) == FT_OK && c->ncredits == 0) {
        (void)!send(c->fd, &last_credit, sizeof(last_credit), MSG_DONTWAIT | MSG_NOSIGNAL);
    }
}

void tcp_conn_await(struct tcp_conn *c)
{
    struct tcp *t = c->tcp;
    /* not TCP_OPEN: it has said goodbye before the link's other connections */
    if (c->awaited || t->nawaited == TCP_AWAITED || c->state != TCP_OPEN)
        return;
    t->awaited[t->nawaited++] = c;
    c->awaited = true;
}

void tcp_conn_drop_queue(struct tcp_conn *c, int status)
{
    for (; c->out_count > 0; c->out_count--) {
        complete(c, &c->out[c->out_head], status);
        c->out_head = (c->out_head + 1) % TCP_QUEUE;
    }
    c->out_done = 0;
}

static void arrived(struct tcp_conn *c)
{
    struct tcp *t = c->tcp;
    if (!c->awaited)
        return;
    unsigned i = 0;
    while (t->awaited[i] != c)
        i++;
    t->awaited[i] = t->awaited[--t->nawaited];
    c->awaited = false;
}

/* The socket cannot take bytes now. */
static bool is_full(int err)
{
    return err == EAGAIN || err == EWOULDBLOCK || err == ENOBUFS;
}

static int lost(int err)
{
    return ft_fail(ft_status_of_errno(err) == FT_NOMEM ? FT_NOMEM : FT_LINK,
                   "a connection broke: %s", strerror(err));
}

/* Processes the whole headers in ahead[], and what ahead[] has of the last one's payload. */
static int parse_messages(struct tcp_conn *c)
{
    size_t at = 0;
    struct ft_header h;

    while (c->body_left == 0 && c->have - at >= sizeof(h)) {
        memcpy(&h, c->ahead + at, sizeof(h));
        if (h.len > TCP_READ_BYTES && !c->early && !c->link->failing &&
            ft_rxq_early(&c->link->rxq, &h)) {
            c->early = true;
            break;
        }
        c->early = false;
        at += sizeof(h);
        if (h.lane == TCP_GOODBYE && h.len == 0) {
            c->goodbye = true;
            break;
        }
        int status = begin_message(c, &h);
        if (status != FT_OK)
            return status;
        const size_t here = ft_min(c->body_left, c->have - at);
        if (c->node != NULL && here > 0)
            memcpy(body_of(c), c->ahead + at, here);
        at += here;
        c->body_left -= here;
        if (c->body_left == 0)
            end_message(c);
    }
    c->have -= at;
    if (at > 0 && c->have > 0)
        memmove(c->ahead, c->ahead + at, c->have);
    if (c->goodbye)
        tcp_link_goodbye(c);
    return FT_OK;
}

static int begin_message(struct tcp_conn *c, const struct ft_header *h)
{
    struct tcp_link *l = c->link;
    if (h->lane < FT_LANES_ALL && l->conn[h->lane % l->nconns] != c)
        return ft_fail(FT_PROTOCOL, "a message for lane %u came over the wrong connection",
                       h->lane);
    int status = ft_rxq_admit(&l->rxq, h, &c->node);
    if (status != FT_OK)
        return status;
    c->body_left = h->len;
    if (c->node == NULL) {
        c->dropping = *h;
        return FT_OK;
    }
    c->node->data = ft_rxq_expected(c->node);
    if (c->node->data == NULL)
        c->node->data = h->len <= FT_RXQ_SMALL_BYTES ? c->node->small : ft_rxq_landing(c->node);
    return FT_OK;
}

static void end_message(struct tcp_conn *c)
{
    struct ft_rxq_node *node = c->node;
    if (c->flight_ns != 0)
        tcp_flight_ends(c);
    c->node = NULL;
    if (node == NULL) {
        c->tcp->base.dropped++;
        tcp_conn_credit(c, c->dropping.ctx, c->dropping.lane,
                        ft_rxq_cost(&c->tcp->set, c->dropping.lane, c->dropping.len));
        return;
    }
    c->link->base.messages++;
    c->link->base.bytes += node->header.len;
    ft_rxq_ready(&c->link->rxq, node);
    arrived(c);
}

static int parse_credits(struct tcp_conn *c)
{
    size_t at = 0;
    struct tcp_credit credit;

    for (; c->have - at >= sizeof(credit) && !c->goodbye; at += sizeof(credit)) {
        memcpy(&credit, c->ahead + at, sizeof(credit));
        if (credit.lane == TCP_GOODBYE && credit.count == 0) {
            c->goodbye = true;
            continue;
        }
        if (credit.lane >= FT_LANES_ALL || credit.count == 0 ||
            credit.count > c->link->txq.outstanding || credit.zero != 0)
            return ft_fail(FT_PROTOCOL, "the other side gives back what it was not sent");
        ft_txq_put_places(&c->link->txq, credit.ctx, credit.lane, credit.count);
        arrived(c);
    }
    c->have -= at;
    if (at > 0 && c->have > 0)
        memmove(c->ahead, c->ahead + at, c->have);
    if (c->goodbye)
        tcp_link_goodbye(c);
    return FT_OK;
}

/* Writes one small message from one piece of memory, because that call is cheaper. */
static ssize_t give_small(struct tcp_conn *c, const struct tcp_out *o, size_t *total)
{
    unsigned char bytes[sizeof(o->header) + WRITE_COPIED];
    memcpy(bytes, &o->header, sizeof(o->header));
    if (o->header.len > 0)
        memcpy(bytes + sizeof(o->header), o->data, o->header.len);
    *total = sizeof(o->header) + o->header.len - c->out_done;
    return transmit(c->fd, bytes + c->out_done, *total);
}

/* Writes the first messages of the queue, or what is left of them. *total: their bytes. */
static ssize_t give(struct tcp_conn *c, size_t *total)
{
    struct iovec iov[2 * WRITE_AT_ONCE];
    struct msghdr m = {.msg_iov = iov};
    size_t skip = c->out_done;

    if (c->out_count == 1 && c->out[c->out_head].header.len <= WRITE_COPIED)
        return give_small(c, &c->out[c->out_head], total);
    *total = 0;
    for (unsigned i = 0; i < c->out_count && i < WRITE_AT_ONCE; i++) {
        struct tcp_out *o = &c->out[(c->out_head + i) % TCP_QUEUE];
        const size_t of_header = ft_min(skip, sizeof(o->header)), of_data = skip - of_header;
        if (of_header < sizeof(o->header))
            iov[m.msg_iovlen++] = (struct iovec){(char *)&o->header + of_header,
                                                 sizeof(o->header) - of_header};
        if (of_data < o->header.len)
            iov[m.msg_iovlen++] = (struct iovec){(char *)(uintptr_t)o->data + of_data,
                                                 o->header.len - of_data};
        *total += sizeof(o->header) + o->header.len - skip;
        skip = 0;
    }
    return sendmsg(c->fd, &m, MSG_DONTWAIT | MSG_NOSIGNAL);
}

static int write_messages(struct tcp_conn *c, bool *moved)
{
    while (c->out_count > 0) {
        size_t total;
        const ssize_t n = give(c, &total);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0 && is_full(errno))
            break;
        if (n < 0)
            return lost(errno);
        *moved = c->wrote = true;
        finish_writing(c, (size_t)n);
        if ((size_t)n < total)
            break;
    }
    tcp_conn_want(c, c->out_count > 0 ? EPOLLIN | EPOLLOUT : EPOLLIN);
    return FT_OK;
}

static void finish_writing(struct tcp_conn *c, size_t bytes)
{
    c->out_done += bytes;
    c->written += bytes;
    while (c->out_count > 0) {
        struct tcp_out *o = &c->out[c->out_head];
        const size_t whole = sizeof(o->header) + o->header.len;
        if (c->out_done < whole)
            return;
        c->out_done -= whole;
        complete(c, o, FT_OK);
        c->out_head = (c->out_head + 1) % TCP_QUEUE;
        c->out_count--;
    }
}

static void complete(struct tcp_conn *c, struct tcp_out *o, int status)
{
    if (o->req != NULL)
        o->req->status = status;
    if (o->buffer >= 0)
        c->link->buffers_free |= 1u << o->buffer;
    o->req = NULL;
    o->buffer = -1;
}

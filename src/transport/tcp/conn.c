/*
 * The bytes of one connection: what it receives, and the credits that a receiver returns. After
 * tcp_conn_open(), nothing here blocks or allocates memory. What a peer says is checked before it
 * is used. A message is read only into the place that its channel's window has for it.
 */
#include "transport/tcp/tcp.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#define READS_A_TURN 16 /* afterwards other connections have their turn */

static void await_no_more(struct tcp_conn *c);
static int parse_messages(struct tcp_conn *c);
static int begin_message(struct tcp_conn *c, const struct ft_header *h);
static void end_message(struct tcp_conn *c);
static int parse_credits(struct tcp_conn *c);

struct tcp_conn *tcp_conn_open(struct tcp *t, int fd, enum tcp_conn_state state, bool sender)
{
    struct tcp_conn *c = calloc(1, sizeof(*c));
    if (c == NULL || (sender && !tcp_out_open(c))) {
        free(c);
        return NULL;
    }
    c->tcp = t;
    c->since_ns = ft_now_ns(t->base.config.env);
    if (tcp_conn_reopen(c, fd, state, sender ? EPOLLOUT : EPOLLIN) != FT_OK) {
        tcp_conn_free(c);
        return NULL;
    }
    return c;
}

int tcp_conn_reopen(struct tcp_conn *c, int fd, enum tcp_conn_state state, uint32_t events)
{
    struct epoll_event ev = {.events = events, .data.ptr = c};
    if (epoll_ctl(c->tcp->epoll_fd, EPOLL_CTL_ADD, fd, &ev) != 0)
        return ft_fail(FT_SYSTEM, "epoll does not take a connection: %s", strerror(errno));
    c->fd = fd;
    c->state = state;
    c->broken = false;
    c->wanted = events;
    if (events & EPOLLOUT)
        c->tcp->nclogged++;
    return FT_OK;
}

void tcp_conn_free(struct tcp_conn *c)
{
    free(c->copies);
    free(c->out);
    free(c);
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
    await_no_more(c);
    tcp_probe_drop(c);
    if (c->wanted & EPOLLOUT)
        c->tcp->nclogged--;
    if (c->ncredits > 0)
        no_credits(c);
    c->credit_done = 0;
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

ssize_t tcp_transmit(int fd, const void *buf, size_t len_bytes)
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
    if (n == 0) {
        c->reset = c->broken;
        return ft_fail(FT_LINK, c->broken ? "a connection was reset"
                                          : "the other side closed a connection without a goodbye");
    }
    c->link->base.silent |= errno == ETIMEDOUT;
    return errno == EINTR || errno == EAGAIN || errno == EWOULDBLOCK ? FT_OK
                                                                     : tcp_conn_lost(c, errno);
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
    return c->link->base.sender ? tcp_out_write(c, moved) : tcp_conn_return_credits(c);
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

/* They are returned when a turn finds nothing to do; see tcp_poll(). If no more fit, at once. */
static void make_due(struct tcp_conn *c)
{
    if (!c->due) {
        c->due = true;
        c->tcp->ndue++;
    }
}

static void flush_full(struct tcp_conn *c)
{
    if (c->ncredits < TCP_CREDITS)
        return;
    int status = tcp_conn_return_credits(c);
    if (status == FT_OK && c->ncredits == TCP_CREDITS)
        status = ft_fail(FT_PROTOCOL, "the other side sends messages but does not take credits");
    if (status != FT_OK)
        tcp_conn_failed(c, status);
}

/* A credit waits as long as the sender has half of its window left. After that it is due. */
void tcp_conn_credit(struct tcp_conn *c, uint64_t ctx, unsigned lane, unsigned places)
{
    if (c->state != TCP_OPEN || c->broken || c->link->failing)
        return;
    const struct tcp_credit *credit = add_credit(c, ctx, lane, places);
    if (lane > FT_LANE_P2P || 2u * credit->count >= ft_rxq_places(&c->tcp->set, lane))
        make_due(c);
    flush_full(c);
}

uint64_t tcp_conn_position(const struct tcp_conn *c)
{
    const struct ft_header *h = c->node != NULL ? &c->node->header : &c->dropping;
    return c->position + (c->body_left > 0 ? sizeof(*h) + h->len - c->body_left : 0);
}

/* The connection was reset, but the kernel may hold bytes that came before. They are read first;
 * the read that finds no more fails, and then the connection is made again. */
static int credits_lost(struct tcp_conn *c, int err)
{
    int status = tcp_conn_lost(c, err);
    if (!c->broken || !c->link->resumable)
        return status;
    c->credit_done = 0;
    no_credits(c);
    tcp_conn_want(c, EPOLLIN);
    return FT_OK;
}

int tcp_conn_return_credits(struct tcp_conn *c)
{
    if (c->ncredits == 0)
        return FT_OK;
    const size_t len = c->ncredits * sizeof(c->credits[0]) - c->credit_done;
    ssize_t n = tcp_transmit(c->fd, (char *)c->credits + c->credit_done, len);
    if (n < 0 && !tcp_errno_is_full(errno) && errno != EINTR)
        return credits_lost(c, errno);
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

static void await(struct tcp_conn *c)
{
    struct tcp *t = c->tcp;
    /* not TCP_OPEN: it has said goodbye before the link's other connections */
    if (c->awaited || t->nawaited == TCP_AWAITED || c->state != TCP_OPEN)
        return;
    t->awaited[t->nawaited++] = c;
    c->awaited = true;
}

void tcp_link_await(struct tcp_link *l, unsigned lane)
{
    if (!l->spreads)
        return await(tcp_home_of(l, lane));
    for (int i = 0; i < l->nconns; i++)
        await(l->conn[i]);
}

static void await_no_more(struct tcp_conn *c)
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

static void arrived(struct tcp_conn *c)
{
    const struct tcp_link *l = c->link;
    await_no_more(c);
    for (int i = 0; l->spreads && i < l->nconns; i++)
        if (l->conn[i] != NULL)
            await_no_more(l->conn[i]);
}

bool tcp_errno_is_full(int err)
{
    return err == EAGAIN || err == EWOULDBLOCK || err == ENOBUFS;
}

int tcp_conn_lost(struct tcp_conn *c, int err)
{
    c->reset = c->broken = err == ECONNRESET || err == EPIPE || err == ECONNABORTED;
    return ft_fail(ft_status_of_errno(err) == FT_NOMEM ? FT_NOMEM : FT_LINK,
                   "a connection broke: %s", strerror(err));
}

/* Takes the bit TCP_ASKS off the lane. True: it was there. */
static bool take_ask(const struct tcp_conn *c, struct ft_header *h)
{
    if (!c->link->resumable || h->lane >= TCP_PING || !(h->lane & TCP_ASKS))
        return false;
    h->lane &= (uint16_t)~TCP_ASKS;
    return true;
}

/* Takes the message's number off the lane. */
static void take_number(struct tcp_conn *c, struct ft_header *h)
{
    if (!c->link->spreads || h->lane >= TCP_PING)
        return;
    c->number = (uint8_t)(h->lane >> TCP_NUMBER_SHIFT);
    h->lane &= (uint16_t)~TCP_NUMBERS;
}

/* Begins a message whose header was in ahead[], with what of its payload begins there at *at. */
static int take_message(struct tcp_conn *c, const struct ft_header *h, size_t *at)
{
    int status = begin_message(c, h);
    if (status != FT_OK)
        return status;
    const size_t here = ft_min(c->body_left, c->have - *at);
    if (c->node != NULL && here > 0)
        memcpy(body_of(c), c->ahead + *at, here);
    *at += here;
    c->body_left -= here;
    if (c->body_left == 0)
        end_message(c);
    return FT_OK;
}

/* Processes the whole headers in ahead[], and what ahead[] has of the last one's payload. */
static int parse_messages(struct tcp_conn *c)
{
    size_t at = 0;
    struct ft_header h;

    while (c->body_left == 0 && c->have - at >= sizeof(h)) {
        memcpy(&h, c->ahead + at, sizeof(h));
        const bool asks = take_ask(c, &h);
        take_number(c, &h);
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
        c->asked = asks;
        int status = take_message(c, &h, &at);
        if (status != FT_OK)
            return status;
    }
    c->have -= at;
    if (at > 0 && c->have > 0)
        memmove(c->ahead, c->ahead + at, c->have);
    if (c->goodbye)
        tcp_link_goodbye(c);
    return FT_OK;
}

/* The kernel would wait for bytes of its own to acknowledge with, up to 40 ms. */
static void acknowledge(struct tcp_conn *c)
{
    const int on = 1;
    c->asked = false;
    (void)setsockopt(c->fd, IPPROTO_TCP, TCP_QUICKACK, &on, sizeof on);
}

static int admit(struct tcp_conn *c, const struct ft_header *h)
{
    struct tcp_link *l = c->link;
    if (h->lane == TCP_PING && h->len <= TCP_FILL_BYTES && l->resumable)
        return FT_OK;
    if (h->lane < FT_LANES_ALL && !tcp_may_carry(c, h->lane))
        return ft_fail(FT_PROTOCOL, "a message for lane %u came over the wrong connection",
                       h->lane);
    if (l->spreads && h->lane <= FT_LANE_P2P)
        return ft_rxq_admit_number(&l->rxq, h, c->number, &c->node);
    return ft_rxq_admit(&l->rxq, h, &c->node);
}

static int begin_message(struct tcp_conn *c, const struct ft_header *h)
{
    int status = admit(c, h);
    if (status != FT_OK)
        return status;
    c->body_left = h->len;
    if (c->node == NULL) {
        c->dropping = *h;
        return FT_OK;
    }
    c->node->way = (uint8_t)c->index;
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
    c->position += sizeof(node->header) + (node != NULL ? node->header.len : c->dropping.len);
    if (node == NULL && c->dropping.lane != TCP_PING) {
        c->tcp->base.dropped++;
        tcp_conn_credit(c, c->dropping.ctx, c->dropping.lane,
                        ft_rxq_cost(&c->tcp->set, c->dropping.lane, c->dropping.len));
    } else if (node != NULL) {
        c->link->base.messages++;
        c->link->base.bytes += node->header.len;
        ft_rxq_ready(&c->link->rxq, node);
        arrived(c);
    }
    if (c->asked)
        acknowledge(c);
}

static int take_credit(struct tcp_conn *c, const struct tcp_credit *credit)
{
    struct tcp_link *l = c->link;
    if (credit->lane == TCP_GOODBYE && credit->count == 0) {
        c->goodbye = true;
        return FT_OK;
    }
    if (c->state == TCP_RESUMING)
        return tcp_remake_told(c, credit);
    if (credit->lane >= FT_LANES_ALL || !tcp_may_carry(c, credit->lane) || credit->count == 0 ||
        credit->count > c->places || credit->zero != 0)
        return ft_fail(FT_PROTOCOL, "the other side gives back what it was not sent");
    c->places -= credit->count;
    ft_txq_put_way(&l->txq, (unsigned)c->index, credit->ctx, credit->lane, credit->count);
    arrived(c);
    return FT_OK;
}

static int parse_credits(struct tcp_conn *c)
{
    size_t at = 0;
    struct tcp_credit credit;

    for (; c->have - at >= sizeof(credit) && !c->goodbye; at += sizeof(credit)) {
        memcpy(&credit, c->ahead + at, sizeof(credit));
        int status = take_credit(c, &credit);
        if (status != FT_OK)
            return status;
    }
    c->have -= at;
    if (at > 0 && c->have > 0)
        memmove(c->ahead, c->ahead + at, c->have);
    if (c->goodbye)
        tcp_link_goodbye(c);
    return FT_OK;
}

/*
 * What a connection of a sending link has to send: a queue of messages. If the link is resumable, a
 * message stays in the queue after it is written, until the other side's kernel has acknowledged
 * it: perhaps the connection is reset and made again. Small messages are copied when they are sent,
 * others stay where they are: in a buffer of the link, or in the user's memory. The latter is given
 * back with the acknowledgement, or earlier, when that is late and the message has been copied to a
 * buffer.
 *
 * Invariant: the queue has out_kept written messages and out_count others, from out_first on. The
 * first of them begins at the position `released`.
 */
#include "transport/tcp/tcp.h"

#include <errno.h>
#include <linux/sockios.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/uio.h>

#define WRITE_AT_ONCE 16       /* most messages passed to the kernel in one call */
#define COPIED_MOST 4096       /* longest payload that is copied behind its header */
#define MOVED_MOST 131072      /* longest payload of the user's that is copied to a buffer */
#define KEEP_PIECE (64u << 10) /* bytes that are copied in one turn */
#define BUFFERS_LEFT 8         /* buffers that remain for reserve */
#define COPY_ALIGN 64          /* a copy begins in a cache line of its own */
#define LATE_NS 500000u        /* without an acknowledgement for so long, user memory is copied */
#define LOOK_EVERY 16          /* kept messages between two looks of sends for room */

static struct tcp_out *out_at(const struct tcp_conn *c, unsigned i)
{
    return &c->out[(c->out_first + i) % TCP_QUEUE];
}

static size_t whole_of(const struct tcp_out *o)
{
    return sizeof(o->header) + o->header.len;
}

bool tcp_out_open(struct tcp_conn *c)
{
    c->out = calloc(TCP_QUEUE, sizeof(*c->out));
    c->copies = c->out != NULL ? malloc(TCP_COPY_BYTES) : NULL;
    if (c->copies != NULL)
        return true;
    free(c->out);
    c->out = NULL;
    return false;
}

static void give_back_buffer(struct tcp_link *l, struct tcp_out *o)
{
    if (o->buffer >= 0)
        l->buffers_free |= 1u << o->buffer;
    o->buffer = -1;
}

/* Nothing refers to the message's memory any more. */
static void complete(struct tcp_conn *c, struct tcp_out *o, int status)
{
    if (o->req != NULL)
        o->req->status = status;
    o->req = NULL;
    give_back_buffer(c->link, o);
    c->copies_used -= o->copy_bytes;
    o->copy_bytes = 0;
    if (c->copies_used == 0)
        c->copies_end = 0;
}

/* The first message is acknowledged. */
static void release_first(struct tcp_conn *c)
{
    struct tcp_out *o = out_at(c, 0);
    if (o->req != NULL) {
        c->unsafe--;
        c->tcp->nunsafe--;
    }
    complete(c, o, FT_OK);
    c->released += whole_of(o);
    c->out_first = (c->out_first + 1) % TCP_QUEUE;
    c->out_kept--;
}

void tcp_out_drop(struct tcp_conn *c, int status)
{
    for (unsigned i = 0; i < c->out_kept + c->out_count; i++)
        complete(c, out_at(c, i), status);
    c->tcp->nunsafe -= c->unsafe;
    c->out_kept = c->out_count = c->unsafe = 0;
    c->out_done = 0;
}

/* ---- writing --------------------------------------------------------------------------------- */

static void finish_writing(struct tcp_conn *c, size_t bytes)
{
    c->out_done += bytes;
    c->written += bytes;
    while (c->out_count > 0) {
        const struct tcp_out *o = out_at(c, c->out_kept);
        if (c->out_done < whole_of(o))
            return;
        c->out_done -= whole_of(o);
        c->out_count--;
        c->out_kept++;
        if (o->req != NULL) {
            c->unsafe++;
            c->tcp->nunsafe++;
        }
        if (!c->link->resumable)
            release_first(c);
    }
}

/* Adds what is left of a message after its first `skip` bytes. Returns the number of parts. */
static int add_parts(struct iovec *iov, struct tcp_out *o, size_t skip)
{
    const size_t of_header = ft_min(skip, sizeof(o->header)), of_data = skip - of_header;
    char *data = (char *)(uintptr_t)o->data;
    int n = 0;
    if (o->copy_bytes > 0) {
        iov[0] = (struct iovec){data + skip, whole_of(o) - skip};
        return 1;
    }
    if (of_header < sizeof(o->header))
        iov[n++] = (struct iovec){(char *)&o->header + of_header, sizeof(o->header) - of_header};
    if (of_data < o->header.len)
        iov[n++] = (struct iovec){data + of_data, o->header.len - of_data};
    return n;
}

/* Writes the first messages that are not written, or what is left of them. *total: their bytes. */
static ssize_t give(struct tcp_conn *c, size_t *total)
{
    struct iovec iov[2 * WRITE_AT_ONCE];
    struct msghdr m = {.msg_iov = iov};
    size_t skip = c->out_done;

    *total = 0;
    for (unsigned i = 0; i < c->out_count && i < WRITE_AT_ONCE; i++) {
        struct tcp_out *o = out_at(c, c->out_kept + i);
        m.msg_iovlen += (size_t)add_parts(iov + m.msg_iovlen, o, skip);
        *total += whole_of(o) - skip;
        skip = 0;
    }
    if (m.msg_iovlen == 1) /* that call is cheaper */
        return tcp_transmit(c->fd, iov[0].iov_base, iov[0].iov_len);
    return sendmsg(c->fd, &m, MSG_DONTWAIT | MSG_NOSIGNAL);
}

int tcp_out_write(struct tcp_conn *c, bool *moved)
{
    while (c->out_count > 0) {
        size_t total;
        const ssize_t n = give(c, &total);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0 && tcp_errno_is_full(errno))
            break;
        if (n < 0)
            return tcp_conn_lost(c, errno);
        *moved = c->wrote = c->tcp->wrote = true;
        finish_writing(c, (size_t)n);
        if ((size_t)n < total)
            break;
    }
    tcp_conn_want(c, c->out_count > 0 ? EPOLLIN | EPOLLOUT : EPOLLIN);
    return FT_OK;
}

/* The kernel drops what it has not sent if the process ends with unread data: then it resets the
 * connection. */
bool tcp_out_flushed(const struct tcp_conn *c)
{
    int unsent = 0;
    if (c->remake.broke_ns != 0)
        return c->out_count + c->out_kept == 0;
    if (c->state != TCP_OPEN)
        return true;
    return c->out_count == 0 && (ioctl(c->fd, SIOCOUTQNSD, &unsent) != 0 || unsent == 0);
}

/* ---- sending --------------------------------------------------------------------------------- */

/* Where the copy of a message with so much payload would be. False: there is no room. *skipped: so
 * much of the memory before it stays unused. */
static bool find_copy(const struct tcp_conn *c, size_t len, size_t *need, size_t *skipped)
{
    *need = ft_round_up(sizeof(struct ft_header) + len, COPY_ALIGN);
    *skipped = c->copies_end + *need > TCP_COPY_BYTES ? TCP_COPY_BYTES - c->copies_end : 0;
    return len <= COPIED_MOST && c->copies_used + *skipped + *need <= TCP_COPY_BYTES;
}

bool tcp_out_copies(struct tcp_conn *c, size_t len_bytes)
{
    size_t need, skipped;
    bool room = find_copy(c, len_bytes, &need, &skipped);
    if (room || len_bytes > COPIED_MOST)
        return room;
    tcp_out_look(c);
    return find_copy(c, len_bytes, &need, &skipped);
}

/* Copies a small message, with its header, if there is room. Nothing else refers to it then. */
static void copy_small(struct tcp_conn *c, struct tcp_out *o)
{
    size_t len = o->header.len, need, skipped;
    if (!find_copy(c, len, &need, &skipped))
        return;
    const size_t at = (c->copies_end + skipped) % TCP_COPY_BYTES;
    unsigned char *to = c->copies + at;
    memcpy(to, &o->header, sizeof(o->header));
    if (len > 0)
        memcpy(to + sizeof(o->header), o->data, len);
    if (o->req != NULL)
        o->req->status = FT_OK;
    o->req = NULL;
    give_back_buffer(c->link, o);
    o->data = to;
    o->copy_bytes = (uint32_t)(skipped + need);
    c->copies_used += skipped + need;
    c->copies_end = at + need;
}

static bool take_buffer(struct tcp_link *l, struct tcp_out *o)
{
    if (__builtin_popcount(l->buffers_free) <= BUFFERS_LEFT)
        return false;
    o->buffer = __builtin_ctz(l->buffers_free);
    l->buffers_free &= l->buffers_free - 1;
    ft_pages_use(&l->pages[o->buffer], o->header.len);
    return true;
}

/* To copy that much takes less time than to wait for the acknowledgement. */
static void move_short(struct tcp_conn *c, struct tcp_out *o)
{
    if (o->req == NULL || o->header.len > MOVED_MOST)
        return;
    if (__builtin_popcount(c->link->buffers_free) <= TCP_BUFFERS - TCP_BUFFERS_IN_TURN)
        tcp_out_look(c);
    if (!take_buffer(c->link, o))
        return;
    void *to = tcp_link_buffer(c->link, o->buffer, tcp_lane_of(&o->header));
    o->data = memcpy(to, o->data, o->header.len);
    o->req->status = FT_OK;
    o->req = NULL;
}

/* If the message may be sent again, it must not need the user's memory for longer than to copy it
 * or, if it is long, until it is acknowledged. */
static void keep(struct tcp_conn *c, struct tcp_out *o)
{
    copy_small(c, o);
    if (!c->link->resumable)
        return;
    move_short(c, o);
    if (o->req != NULL)
        o->header.lane |= TCP_ASKS;
}

/* Its number in the channel, by which the receiver puts it in order. */
static void put_number(struct tcp_link *l, struct ft_header *h)
{
    if (l->spreads && h->lane <= FT_LANE_P2P)
        h->lane |= (uint16_t)(ft_txq_number(&l->txq, h->ctx, h->lane) << TCP_NUMBER_SHIFT);
}

static void note_given(struct tcp_conn *c, const struct tcp_out *o)
{
    c->given += whole_of(o);
    if (c->link->spreads && o->header.len >= FT_LARGE_BYTES)
        tcp_speed_given(c);
}

int tcp_out_send(struct tcp_conn *c, const struct ft_header *h, const void *data,
                 struct ft_send *req, int buffer)
{
    if (c->out_kept >= TCP_QUEUE / 2 && c->out_kept % LOOK_EVERY == 0)
        tcp_out_look(c);
    struct tcp_out *o = out_at(c, c->out_kept + c->out_count);
    bool moved;

    *o = (struct tcp_out){.header = *h, .data = data, .req = req, .buffer = buffer};
    if (req != NULL)
        req->status = FT_AGAIN;
    put_number(c->link, &o->header);
    keep(c, o);
    note_given(c, o);
    if (h->len >= FT_LARGE_BYTES && c->out_count == 0 && c->state == TCP_OPEN)
        tcp_probe_begins(c, sizeof(*h) + h->len);
    if (c->out_count++ > 0 || c->state != TCP_OPEN)
        return FT_OK;
    int status = tcp_out_write(c, &moved);
    if (status == FT_OK)
        return FT_OK;
    if (c->reset && c->link->resumable) {
        tcp_conn_failed(c, status);
        if (c->link->base.state == FT_LINK_UP)
            return FT_OK; /* it is sent when the connection is made again */
    }
    o->req = NULL; /* it is not accepted */
    return status;
}

int tcp_out_ping(struct tcp_conn *c, uint32_t len_bytes)
{
    static const unsigned char nothing[TCP_FILL_BYTES];
    const struct ft_header ping = {.lane = TCP_PING, .len = len_bytes};
    if (!tcp_out_has_room(c))
        tcp_out_look(c);
    return tcp_out_has_room(c) ? tcp_out_send(c, &ping, nothing, NULL, -1) : FT_AGAIN;
}

/* ---- what has arrived ------------------------------------------------------------------------ */

static void release_until(struct tcp_conn *c, uint64_t position)
{
    while (c->out_kept > 0 && position - c->released >= whole_of(out_at(c, 0)))
        release_first(c);
}

/* Bytes of the socket that the other side's kernel has acknowledged; 0: not known. After a reset,
 * SIOCOUTQ would tell that nothing is left to acknowledge. */
static uint64_t count_acknowledged(const struct tcp_conn *c)
{
    struct tcp_info info;
    socklen_t len = sizeof info;
    const bool told = getsockopt(c->fd, IPPROTO_TCP, TCP_INFO, &info, &len) == 0 &&
                      len >= offsetof(struct tcp_info, tcpi_bytes_acked) + sizeof(uint64_t);
    return told ? info.tcpi_bytes_acked : 0;
}

int tcp_out_begin(struct tcp_conn *c)
{
    struct ft_net_address peer;
    uint64_t before, after = count_acknowledged(c);
    int queued = 0;
    do {
        before = after;
        const bool told = before > 0 && ioctl(c->fd, SIOCOUTQ, &queued) == 0;
        const bool reset = ft_net_peer(c->fd, &peer) != FT_OK;
        if (!told || reset)
            return reset ? tcp_conn_lost(c, ECONNRESET) : FT_NOTSUP;
        after = count_acknowledged(c);
    } while (after != before);
    c->before_first = after + (uint64_t)queued - c->written;
    c->acknowledged = c->written;
    c->speed.look_ns = 0; /* that was no progress which can be measured */
    return FT_OK;
}

void tcp_out_look(struct tcp_conn *c)
{
    /* If the link spreads, it wants to know also of a message that is not yet written whole. */
    const bool waits = c->out_kept > 0 || (c->link->spreads && c->acknowledged < c->given);
    if (!waits || c->state != TCP_OPEN)
        return;
    const uint64_t position = count_acknowledged(c) - c->before_first;
    if (position < c->released || position > c->written)
        return; /* not known, or some of the handshake is not acknowledged yet */
    c->acknowledged = position;
    release_until(c, position);
    if (c->link->spreads)
        tcp_speed_note(c);
}

/* Nothing of the message is written any more. A copy of it may not be complete. */
static int unwrite(struct tcp_conn *c, struct tcp_out *o, bool admitted)
{
    const unsigned lane = tcp_lane_of(&o->header);
    if (o->req != NULL)
        give_back_buffer(c->link, o);
    if (admitted || o->header.lane == TCP_PING)
        return FT_OK; /* the other side counts its places, or there are none */
    const unsigned places = ft_rxq_cost(&c->tcp->set, lane, o->header.len);
    c->places += places;
    return ft_txq_hold(&c->link->txq, (unsigned)c->index, o->header.ctx, lane, places);
}

int tcp_out_rewind(struct tcp_conn *c, uint64_t position)
{
    if (position < c->released)
        return ft_fail(FT_LINK, "a connection was reset, and what the other side's kernel had "
                                "acknowledged is lost: is there a proxy?");
    int status = position <= c->written ? FT_OK : FT_PROTOCOL;
    if (status == FT_OK)
        release_until(c, position);
    const uint64_t part = position - c->released;
    if (status == FT_OK && part > 0 && part < sizeof(struct ft_header))
        status = FT_PROTOCOL;
    if (status != FT_OK)
        return ft_fail(FT_PROTOCOL, "the other side goes on with a link where it cannot be");
    c->tcp->nunsafe -= c->unsafe;
    c->out_count += c->out_kept;
    c->out_kept = c->unsafe = 0;
    c->out_done = (size_t)part;
    c->written = position;
    for (unsigned i = 0; i < c->out_count && status == FT_OK; i++)
        status = unwrite(c, out_at(c, i), i == 0 && part > 0);
    return status;
}

/* ---- copies of what users wait for ----------------------------------------------------------- */

static bool keep_piece(struct tcp_conn *c)
{
    struct tcp_link *l = c->link;
    unsigned i = 0;
    while (out_at(c, i)->req == NULL)
        i++;
    struct tcp_out *o = out_at(c, i);
    const unsigned lane = tcp_lane_of(&o->header);
    if (o->buffer < 0) {
        if (!take_buffer(l, o))
            return false;
        c->keep_done = 0;
    }
    unsigned char *to = tcp_link_buffer(l, o->buffer, lane);
    const size_t n = ft_min(o->header.len - c->keep_done, KEEP_PIECE);
    if (n > 0)
        memcpy(to + c->keep_done, (const char *)o->data + c->keep_done, n);
    c->keep_done += n;
    if (c->keep_done < o->header.len)
        return true;
    o->data = to;
    o->req->status = FT_OK;
    o->req = NULL;
    c->unsafe--;
    c->tcp->nunsafe--;
    return true;
}

/* Returns false if the connection's messages still have time. */
static bool hurry(struct tcp_conn *c, uint64_t now_ns, bool now)
{
    const uint64_t before = c->acknowledged, kept = c->out_kept;
    tcp_out_look(c);
    if (c->acknowledged != before || c->late_at != c->written) {
        c->late_ns = now_ns + LATE_NS;
        c->late_at = c->written;
    }
    return c->out_kept < kept || (c->unsafe > 0 && (now || now_ns >= c->late_ns) && keep_piece(c));
}

bool tcp_out_turn(struct tcp *t, bool now)
{
    const uint64_t now_ns = ft_now_ns(t->base.config.env);
    bool moved = false;
    for (struct tcp_link *l = t->links; l != NULL && t->nunsafe > 0; l = l->next)
        for (int i = 0; i < l->nconns && l->base.sender; i++)
            if (l->conn[i] != NULL && l->conn[i]->unsafe > 0 && hurry(l->conn[i], now_ns, now))
                moved = true;
    return moved;
}

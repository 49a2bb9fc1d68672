/*
 * The connections of a coordinator: the proof of the key, messages in, messages out. What a turn of
 * the loop queues for a connection goes out in one call at the end of the turn.
 *
 * Everything is bounded: connections that have not proved the key (their number and their time),
 * the length of a message, and what waits for a member that does not read. Whatever ends a
 * connection only marks it (`doomed`); it is closed when no call of coord.h is under way.
 */
#include "membership/coord_server.h"

#include "base/wire.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#define MS UINT64_C(1000000)
#define EARLY_MOST 256 /* most connections that have not proved the key */
#define EARLY_NS (5000 * MS)
#define EVICT_NS (1000 * MS)            /* from this age on they make room for new ones */
#define SLOW_NS (10000 * MS)            /* a member that reads nothing of what waits for it */
#define FLUSH_BYTES ((size_t)256 << 10) /* more does not wait for the end of the turn */
/* What may wait: a message of the greatest length, and more for each member that has joined. */
#define OUT_MOST (FT_MEMBERS_MESSAGE_MOST + ((size_t)64 << 10))
#define OUT_MEMBER_MOST ((size_t)1 << 20)

/* ---- lists ----------------------------------------------------------------------------------- */

static void append(struct ft_coord_peers *list, struct ft_coord_peer *c)
{
    c->next = NULL;
    c->prev = list->last;
    *(list->last ? &list->last->next : &list->first) = c;
    list->last = c;
    list->n++;
}

static void unlink_conn(struct ft_coord_peers *list, struct ft_coord_peer *c)
{
    *(c->prev ? &c->prev->next : &list->first) = c->next;
    *(c->next ? &c->next->prev : &list->last) = c->prev;
    list->n--;
}

/* ---- connections ----------------------------------------------------------------------------- */

static const char *name_of(const struct ft_coord_peer *c, char text[FT_NET_TEXT_BYTES])
{
    struct ft_net_address from;
    return ft_net_peer(c->fd, &from) == FT_OK ? ft_net_text(&from, text) : "a member";
}

void ft_coord_peer_doom(struct ft_coord_peer *c, const char *why)
{
    char text[FT_NET_TEXT_BYTES];
    if (c->doomed)
        return;
    FT_LOG(INFO, "members", -1, "the connection from %s ends: %s", name_of(c, text), why);
    c->doomed = true;
    c->also = c->owner->doomed;
    c->owner->doomed = c;
    c->owner->only_beats = false;
}

static void close_conn(struct ft_coordinator *s, struct ft_coord_peer *c)
{
    unlink_conn(c->member ? &s->open : &s->early, c);
    if (c->member)
        ft_coord_closed(c->member); /* may doom others */
    c->member = NULL;
    /* closing does not remove it from epoll while a child of fork still has the descriptor */
    epoll_ctl(s->epoll, EPOLL_CTL_DEL, c->fd, NULL);
    ft_fd_close(&c->fd);
    free(c->in);
    ft_coord_out_clear(&c->out);
    c->also = s->dead; /* an event of this batch may still point here */
    s->dead = c;
}

void ft_coord_peers_close(struct ft_coordinator *s)
{
    for (struct ft_coord_peer *c; (c = s->doomed);) {
        s->doomed = c->also;
        close_conn(s, c);
    }
}

void ft_coord_peers_free(struct ft_coordinator *s)
{
    for (struct ft_coord_peer *c; (c = s->dead);) {
        s->dead = c->also;
        free(c);
    }
}

static void watch(struct ft_coord_peer *c, uint32_t events)
{
    struct epoll_event event = {.events = events, .data.ptr = c};
    if (events == c->events)
        return;
    c->events = events;
    epoll_ctl(c->owner->epoll, EPOLL_CTL_MOD, c->fd, &event);
}

/* ---- sending --------------------------------------------------------------------------------- */

static void flush(struct ft_coord_peer *c)
{
    bool moved;
    int status = ft_coord_out_flush(&c->out, c->fd, &moved);
    if (moved)
        c->moved_ns = c->owner->running_ns;
    if (status == FT_LINK)
        ft_coord_peer_doom(c, strerror(errno));
    else
        watch(c, EPOLLIN | (status == FT_AGAIN ? EPOLLOUT : 0u));
}

static void flush_dirty(struct ft_coordinator *s)
{
    for (struct ft_coord_peer *c; (c = s->dirty);) {
        s->dirty = c->next_dirty;
        c->dirty = false;
        if (!c->doomed)
            flush(c);
    }
}

/* Adds the header and the first bytes of a message of that length. */
static bool begin_message(struct ft_coord_peer *c, enum ft_members_message type, size_t len,
                          const void *bytes, size_t nbytes)
{
    struct ft_coordinator *s = c->owner;
    size_t most = OUT_MOST + c->joined * OUT_MEMBER_MOST, before = c->out.len_bytes;
    if (c->doomed)
        return false;
    if (len > FT_MEMBERS_MESSAGE_MOST || before + len > most) {
        ft_coord_peer_doom(c, "it does not read what it is told");
        return false;
    }
    unsigned char *at = ft_coord_out_own(&c->out, FT_DAEMON_HEADER_BYTES + nbytes);
    if (!at) {
        ft_coord_peer_doom(c, "no memory for what it should be told");
        return false;
    }
    put32(&at, (uint32_t)len);
    put16(&at, FT_MEMBERS_SERVICE);
    put16(&at, (uint16_t)type);
    if (nbytes > 0)
        memcpy(at, bytes, nbytes);
    if (before == 0)
        c->moved_ns = s->running_ns;
    if (!c->dirty) {
        c->dirty = true;
        c->next_dirty = s->dirty;
        s->dirty = c;
    }
    return true;
}

/* Much does not wait until the end of the turn. */
static bool end_message(struct ft_coord_peer *c)
{
    if (c->out.len_bytes > FLUSH_BYTES && !(c->events & EPOLLOUT))
        flush(c);
    return !c->doomed;
}

bool ft_coord_peer_send(void *arg, void *owner_conn, enum ft_members_message type,
                        const void *bytes, size_t len)
{
    struct ft_coord_peer *c = owner_conn;
    (void)arg;
    return begin_message(c, type, len, bytes, len) && end_message(c);
}

bool ft_coord_peer_send_view(void *arg, void *owner_conn, const void *head, size_t head_bytes,
                             struct ft_blob *const *blobs, int nblobs)
{
    struct ft_coord_peer *c = owner_conn;
    size_t len = head_bytes;
    (void)arg;
    for (int i = 0; i < nblobs; i++)
        len += blobs[i]->len_bytes;
    if (!begin_message(c, FT_MEMBERS_VIEW, len, head, head_bytes))
        return false;
    for (int i = 0; i < nblobs; i++)
        if (!ft_coord_out_share(&c->out, blobs[i])) {
            ft_coord_peer_doom(c, "no memory for what it should be told");
            return false;
        }
    return end_message(c);
}

/* Calls of coord.h are over: closes what has to be closed, and sends. Either may need the other
 * again, but each connection is closed once. */
void ft_coord_peers_settle(struct ft_coordinator *s)
{
    while (s->doomed || s->dirty) {
        ft_coord_peers_close(s);
        flush_dirty(s);
    }
}

/* ---- receiving ------------------------------------------------------------------------------- */

/* Delivers the messages that are complete, and returns how many bytes they took. */
static size_t deliver(struct ft_coord_peer *c, const unsigned char *bytes, size_t have)
{
    size_t used = 0;
    while (!c->doomed && have - used >= FT_DAEMON_HEADER_BYTES) {
        const unsigned char *at = bytes + used;
        size_t len = get32(&at);
        unsigned service = get16(&at);
        uint16_t type = get16(&at);
        if (len > FT_MEMBERS_REQUEST_MOST || service != FT_MEMBERS_SERVICE) {
            ft_coord_peer_doom(c, "it sent what is no message of a member");
            break;
        }
        if (have - used - FT_DAEMON_HEADER_BYTES < len)
            break;
        used += FT_DAEMON_HEADER_BYTES + len;
        if (type != FT_MEMBERS_BEAT && type != FT_MEMBERS_QUIET_BEAT)
            c->owner->only_beats = false;
        if (type == FT_MEMBERS_JOIN && c->joined < FT_SLOTS_MOST)
            c->joined++;
        if (!ft_coord_message(c->member, type, at, len))
            ft_coord_peer_doom(c, ft_fail_text());
    }
    return used;
}

static bool make_room(struct ft_coord_peer *c, size_t more)
{
    if (c->in_len + more <= c->in_room)
        return true;
    size_t room = ft_max(2 * c->in_room, c->in_len + more);
    unsigned char *grown = realloc(c->in, room);
    if (!grown) {
        ft_coord_peer_doom(c, "no memory for its message");
        return false;
    }
    c->in = grown;
    c->in_room = room;
    return true;
}

/* What has come is delivered from where it lies. The beginning of a message that is not complete is
 * kept in a buffer of the connection's own. */
static void take(struct ft_coord_peer *c, unsigned char *bytes, size_t have)
{
    size_t used = deliver(c, bytes, have), rest = have - used;
    bool own = bytes == c->in;
    if (c->doomed)
        return;
    c->owner->only_beats = c->owner->only_beats && rest == 0;
    if (rest == 0) {
        free(c->in);
        c->in = NULL;
        c->in_len = c->in_room = 0;
    } else if (own) {
        memmove(c->in, c->in + used, rest);
        c->in_len = rest;
    } else if (make_room(c, rest)) {
        memcpy(c->in, bytes + used, rest);
        c->in_len = rest;
    }
}

static void receive(struct ft_coord_peer *c)
{
    bool own = c->in_len > 0;
    if (own && !make_room(c, FT_COORD_READ_BYTES))
        return;
    unsigned char *to = own ? c->in + c->in_len : c->owner->scratch;
    ssize_t n = recv(c->fd, to, FT_COORD_READ_BYTES, MSG_DONTWAIT);
    if (n == 0)
        ft_coord_peer_doom(c, "it was closed");
    else if (n < 0 && errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR)
        ft_coord_peer_doom(c, strerror(errno));
    else if (n > 0)
        take(c, own ? c->in : to, c->in_len + (size_t)n);
}

static void prove(struct ft_coordinator *s, struct ft_coord_peer *c)
{
    int status = ft_auth_turn(&c->auth);
    if (status == FT_AGAIN) {
        watch(c, ft_auth_events(&c->auth) & POLLOUT ? EPOLLIN | EPOLLOUT : EPOLLIN);
        return;
    }
    if (status == FT_OK && c->auth.detail != FT_DAEMON_VERSION)
        status = ft_fail(FT_VERSION, "it speaks another version of the members' messages");
    struct ft_coord_conn *member = status == FT_OK ? ft_coord_connected(s->coord, c) : NULL;
    if (!member) {
        ft_coord_peer_doom(c, status == FT_OK ? "no memory for another member" : ft_fail_text());
        return;
    }
    unlink_conn(&s->early, c);
    c->member = member;
    c->moved_ns = s->running_ns;
    append(&s->open, c);
    watch(c, EPOLLIN);
}

void ft_coord_peer_turn(struct ft_coordinator *s, struct ft_coord_peer *c, uint32_t events)
{
    s->only_beats = s->only_beats && c->member && !(events & EPOLLOUT);
    if (!c->doomed && !c->member)
        prove(s, c);
    if (!c->doomed && c->member && events & EPOLLOUT)
        flush(c);
    if (!c->doomed && c->member && events & (EPOLLIN | EPOLLHUP | EPOLLERR))
        receive(c);
}

/* ---- connections that come and go ----------------------------------------------------------- */

bool ft_coord_peers_make_room(struct ft_coordinator *s)
{
    struct ft_coord_peer *oldest = s->early.first;
    if (s->early.n < EARLY_MOST)
        return true;
    if (s->running_ns - oldest->moved_ns < EVICT_NS)
        return false;
    ft_coord_peer_doom(oldest, "too many others had not proved the key either");
    ft_coord_peers_close(s);
    return true;
}

void ft_coord_peer_open(struct ft_coordinator *s, int fd)
{
    struct ft_coord_peer *c = calloc(1, sizeof *c);
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = c};
    if (!c || epoll_ctl(s->epoll, EPOLL_CTL_ADD, fd, &event) != 0) {
        free(c);
        ft_fd_close(&fd);
        return;
    }
    c->owner = s;
    c->fd = fd;
    c->events = EPOLLIN;
    c->moved_ns = s->running_ns;
    append(&s->early, c);
    ft_auth_start(&c->auth, s->env, fd, false, s->key, ft_process_id(), 0, FT_PURPOSE_SERVICE, 0,
                  ft_now_ns(s->env) + EARLY_NS);
}

void ft_coord_peers_sweep(struct ft_coordinator *s)
{
    for (struct ft_coord_peer *c = s->early.first; c && s->running_ns - c->moved_ns > EARLY_NS;
         c = c->next)
        ft_coord_peer_doom(c, "it did not prove the key in time");
    for (struct ft_coord_peer *c = s->open.first; c; c = c->next)
        if (c->out.len_bytes > 0 && s->running_ns - c->moved_ns > SLOW_NS)
            ft_coord_peer_doom(c, "it has read nothing for some time");
    ft_coord_peers_settle(s);
}

void ft_coord_peers_clear(struct ft_coordinator *s)
{
    for (struct ft_coord_peer *c = s->open.first; c; c = c->next)
        c->doomed = true; /* nobody is told that the others go */
    while (s->open.first)
        close_conn(s, s->open.first);
    while (s->early.first)
        close_conn(s, s->early.first);
    ft_coord_peers_free(s);
}

/*
 * A connection to the service. SELECT names an id, AUTH proves knowledge of its secret, JOIN gives
 * the rank and its endpoint, WAIT lasts until the id settles, and REPLY until the answer is
 * acknowledged. Before JOIN is complete, only this struct is allocated, and the number and age of
 * such connections are bounded.
 */
#include "membership/service.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

static void link_into(struct ft_conn **list, struct ft_conn *c)
{
    c->next = *list;
    if (c->next)
        c->next->link = &c->next;
    c->link = list;
    *list = c;
}

static void unlink_conn(struct ft_conn *c)
{
    *c->link = c->next;
    if (c->next)
        c->next->link = c->link;
}

void ft_conn_open(struct ft_service *s, int fd, uint64_t now_ns)
{
    struct ft_conn *c = calloc(1, sizeof *c);
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = c};
    if (!c || epoll_ctl(s->epoll, EPOLL_CTL_ADD, fd, &event) != 0) {
        free(c);
        ft_fd_close(&fd);
        return;
    }
    c->fd = fd;
    c->events = EPOLLIN;
    c->born_ns = now_ns;
    link_into(&s->early, c);
    s->nearly++;
}

void ft_conn_drop(struct ft_service *s, struct ft_conn *c)
{
    if (c->stage == FT_CONN_DEAD)
        return;
    if (c->stage < FT_CONN_WAIT)
        s->nearly--;
    unlink_conn(c);
    /* closing does not remove it from epoll while a child of fork still has the descriptor */
    epoll_ctl(s->epoll, EPOLL_CTL_DEL, c->fd, NULL);
    ft_fd_close(&c->fd);
    c->stage = FT_CONN_DEAD;
    c->gather = NULL;
    link_into(&s->dead, c); /* an event of this batch may still point here */
}

void ft_conn_free_dropped(struct ft_service *s)
{
    for (struct ft_conn *c; (c = s->dead);) {
        unlink_conn(c);
        free(c);
    }
}

bool ft_conn_has_room(struct ft_service *s, uint64_t now_ns)
{
    if (s->nearly < FT_EARLY_CONNS)
        return true;
    struct ft_conn *oldest = s->early;
    while (oldest->next)
        oldest = oldest->next;
    if (now_ns - oldest->born_ns < FT_EVICT_NS)
        return false;
    ft_conn_drop(s, oldest);
    return true;
}

void ft_conn_expire(struct ft_service *s, uint64_t now_ns, uint64_t *next_ns)
{
    for (struct ft_conn *c = s->early, *next; c; c = next) {
        next = c->next;
        uint64_t due_ns = c->born_ns + FT_EARLY_NS;
        if (due_ns <= now_ns)
            ft_conn_drop(s, c);
        else if (due_ns < *next_ns)
            *next_ns = due_ns;
    }
}

static void watch_conn(struct ft_service *s, struct ft_conn *c, uint32_t events)
{
    struct epoll_event event = {.events = events, .data.ptr = c};
    if (events == c->events)
        return;
    c->events = events;
    epoll_ctl(s->epoll, EPOLL_CTL_MOD, c->fd, &event);
}

/* Returns FT_OK when in[] has want_bytes, FT_AGAIN, or FT_LINK when the stream has ended. */
static int read_until(struct ft_conn *c, size_t want_bytes)
{
    while (c->in_done < want_bytes) {
        ssize_t n = recv(c->fd, c->in + c->in_done, want_bytes - c->in_done, 0);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
            return FT_AGAIN;
        if (n <= 0)
            return FT_LINK;
        c->in_done += (size_t)n;
    }
    return FT_OK;
}

/* Writes a few bytes, which the buffer of a new socket always accepts. The caller drops a
 * connection that does not accept them. */
static bool write_small(struct ft_conn *c, const void *data, size_t len_bytes)
{
    return send(c->fd, data, len_bytes, MSG_NOSIGNAL) == (ssize_t)len_bytes;
}

static int turn_select(struct ft_service *s, struct ft_conn *c)
{
    unsigned char reply[FT_SELECT_BYTES];
    enum ft_answer answer = FT_ANSWER_GO;
    int status = read_until(c, FT_SELECT_BYTES);
    if (status)
        return status;
    c->in_done = 0;
    status = ft_select_decode(c->in, &answer, &c->nonce);
    if (status && status != FT_VERSION)
        return status;
    struct ft_gather *g = status ? NULL : ft_service_find(s, c->nonce);
    answer = status                             ? FT_ANSWER_VERSION
             : g                                ? FT_ANSWER_GO
             : ft_service_was_used(s, c->nonce) ? FT_ANSWER_USED
                                                : FT_ANSWER_UNKNOWN;
    ft_select_encode(reply, answer, c->nonce);
    if (!write_small(c, reply, sizeof reply))
        return FT_LINK;
    if (!g)
        return FT_LINK;
    uint64_t deadline_ns = s->env->now_ns(s->env) + FT_EARLY_NS;
    ft_auth_start(&c->auth, s->env, c->fd, false, g->key, g->nonce, 0, FT_PURPOSE_BOOTSTRAP, 0,
                  deadline_ns);
    c->stage = FT_CONN_AUTH;
    return FT_OK;
}

static int turn_auth(struct ft_service *s, struct ft_conn *c)
{
    int status = ft_auth_turn(&c->auth);
    if (status == FT_AGAIN)
        watch_conn(s, c, ft_auth_events(&c->auth) & POLLOUT ? EPOLLIN | EPOLLOUT : EPOLLIN);
    if (status)
        return status;
    watch_conn(s, c, EPOLLIN);
    c->stage = FT_CONN_JOIN;
    return FT_OK;
}

static void enter_reply(struct ft_service *s, struct ft_conn *c, const unsigned char *out,
                        size_t len_bytes)
{
    c->stage = FT_CONN_REPLY;
    c->out = out;
    c->out_bytes = len_bytes;
    c->out_done = 0;
    watch_conn(s, c, EPOLLIN | EPOLLOUT);
}

void ft_conn_answer_all(struct ft_service *s, struct ft_gather *g)
{
    for (struct ft_conn *c = g->waiting; c; c = c->next)
        if (c->stage == FT_CONN_WAIT)
            enter_reply(s, c, g->answer, g->answer_bytes);
}

/* Writes at once: if the gather is forgotten meanwhile, its connections are closed. */
static void refuse_join(struct ft_service *s, struct ft_conn *c, int status)
{
    size_t len = ft_fail_encode(c->in, status, ft_fail_text());
    enter_reply(s, c, c->in, len);
    if (write_small(c, c->in, len))
        c->out_done = len;
}

/* Reads the header of a frame first. Its length has been checked against in[] before that many
 * bytes are read. */
static int read_frame(struct ft_conn *c, enum ft_frame *kind, uint32_t *len_bytes)
{
    int status = read_until(c, FT_FRAME_BYTES);
    if (!status)
        status = ft_frame_decode(c->in, kind, len_bytes);
    if (!status && *len_bytes > sizeof c->in - FT_FRAME_BYTES)
        status = FT_PROTOCOL;
    if (!status)
        status = read_until(c, FT_FRAME_BYTES + *len_bytes);
    if (!status)
        c->in_done = 0;
    return status;
}

static int turn_join(struct ft_service *s, struct ft_conn *c, uint64_t now_ns)
{
    struct ft_join_msg msg;
    unsigned char joined[FT_FRAME_BYTES];
    enum ft_frame kind;
    uint32_t len;
    int status = read_frame(c, &kind, &len);
    if (status)
        return status;
    if (kind != FT_FRAME_JOIN || ft_join_decode(c->in + FT_FRAME_BYTES, len, &msg) != FT_OK)
        return FT_PROTOCOL;
    bool member = ft_block_of(msg.nranks, msg.nids, msg.rank) == msg.index;
    if (msg.nonce != c->nonce || (member && msg.endpoint.engine != c->auth.peer))
        return FT_PROTOCOL;
    struct ft_gather *g = ft_service_find(s, c->nonce);
    ft_frame_encode(joined, FT_FRAME_JOINED, 0);
    if (!g || !write_small(c, joined, sizeof joined))
        return FT_LINK;

    unlink_conn(c);
    s->nearly--;
    c->rank = msg.rank;
    c->stage = FT_CONN_WAIT;
    c->gather = g;
    link_into(&g->waiting, c);
    bool settled = ft_gather_settled(g);
    status = ft_gather_add(g, &msg, now_ns);
    if (g->due_ns < s->next_ns)
        s->next_ns = g->due_ns;
    if (status)
        refuse_join(s, c, status);
    else if (settled)
        enter_reply(s, c, g->answer, g->answer_bytes);
    else if (ft_gather_settled(g))
        ft_conn_answer_all(s, g);
    return FT_OK;
}

/* The process needs no answer any more, whatever happened. One that was refused does not tell that
 * its rank needs none. */
static void finish_conn(struct ft_service *s, struct ft_conn *c)
{
    struct ft_gather *g = c->gather;
    uint32_t rank = c->rank;
    bool refused = c->out == c->in;
    ft_conn_drop(s, c);
    if (g && !refused)
        ft_gather_mark_told(g, rank);
    if (g && ft_gather_done(g))
        ft_service_forget(s, g);
}

/* The only message of a waiting rank is that it leaves. */
static void turn_wait(struct ft_service *s, struct ft_conn *c, uint64_t now_ns)
{
    struct ft_gather *g = c->gather;
    enum ft_frame kind;
    uint32_t len;
    int status = read_frame(c, &kind, &len);
    if (status == FT_AGAIN)
        return;
    if (!status && kind == FT_FRAME_LEAVE) {
        int why = (int)(int32_t)ft_get32(c->in + FT_FRAME_BYTES);
        ft_gather_fail(g, now_ns, FT_PEER, "rank %u gave up before everyone had come: %s", c->rank,
                       ft_status_text(why));
    } else {
        ft_gather_fail(g, now_ns, FT_PEER, "rank %u went away after it had checked in", c->rank);
    }
    if (g->due_ns < s->next_ns)
        s->next_ns = g->due_ns;
    ft_conn_answer_all(s, g);
    finish_conn(s, c);
}

static void turn_reply(struct ft_service *s, struct ft_conn *c, uint32_t events)
{
    while (c->out_done < c->out_bytes) {
        ssize_t n = send(c->fd, c->out + c->out_done, c->out_bytes - c->out_done, MSG_NOSIGNAL);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
            break;
        if (n <= 0) {
            finish_conn(s, c);
            return;
        }
        c->out_done += (size_t)n;
    }
    if (c->out_done == c->out_bytes)
        watch_conn(s, c, EPOLLIN);
    if (!c->out_bytes || events & (EPOLLIN | EPOLLHUP | EPOLLERR)) {
        unsigned char spare[FT_FRAME_BYTES];
        ssize_t n = recv(c->fd, spare, sizeof spare, 0);
        bool nothing = n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR);
        /* an acknowledgement, the end of the stream, or anything else: the rank is done */
        if (!c->out_bytes || !nothing)
            finish_conn(s, c);
    }
}

void ft_conn_turn(struct ft_service *s, struct ft_conn *c, uint32_t events, uint64_t now_ns)
{
    if (c->stage == FT_CONN_WAIT) {
        turn_wait(s, c, now_ns);
    } else if (c->stage == FT_CONN_REPLY) {
        turn_reply(s, c, events);
    } else {
        int status = FT_OK;
        while (status == FT_OK && c->stage < FT_CONN_WAIT) {
            if (c->stage == FT_CONN_SELECT)
                status = turn_select(s, c);
            else if (c->stage == FT_CONN_AUTH)
                status = turn_auth(s, c);
            else
                status = turn_join(s, c, now_ns);
        }
        if (status && status != FT_AGAIN)
            ft_conn_drop(s, c);
    }
}

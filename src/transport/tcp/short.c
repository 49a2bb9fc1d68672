/*
 * Short messages past the queues: post, look and took of struct ft_transport_ops. A caller that
 * looks reads the connection by which its message will come, and nothing else. So a message costs
 * one send, and as many reads as it takes to come. The next turn is told that something came: it
 * may have been for others. Credits that are due go back while a caller waits for a message, and
 * are read when the window is full.
 */
#include "transport/tcp/tcp.h"

#include <sys/epoll.h>

/* Messages that a caller takes without a wait while credits are due, until they go back all the
 * same. The sender's window has not closed then: they are due when half of it is used. */
#define TAKEN_MOST 3
/* Most reads in vain in one call: about 20 microseconds, several times as long as a message takes
 * inside a host. After so many, this many calls do not read: the peer may be far away, or busy, and
 * the caller may have something else to do until the message comes. */
#define READS_MOST 64
#define READS_AGAIN 32

static void read_now(struct tcp_conn *c)
{
    if (c->state == TCP_OPEN)
        tcp_conn_event(c, EPOLLIN, &c->tcp->came);
}

static void return_due(struct tcp_conn *c)
{
    if (!c->due)
        return;
    int status = tcp_conn_return_credits(c);
    if (status != FT_OK)
        tcp_conn_failed(c, status);
}

static bool takes_short(const struct tcp_link *l)
{
    return l->base.state == FT_LINK_UP && !l->spreads;
}

/* *window_full: it was refused for want of places in the window. */
static int send_copied(struct tcp_link *l, const struct ft_header *h, const void *data,
                       bool *window_full)
{
    struct ft_send sent = {0}; /* the copy ends the send at once */
    if (!takes_short(l) || !tcp_out_copies(tcp_home_of(l, h->lane), h->len))
        return FT_AGAIN;
    int status = l->base.ops->send(&l->base, h, data, &sent);
    *window_full = status == FT_AGAIN;
    return status;
}

int tcp_post(struct ft_link *link, const struct ft_header *h, const void *data)
{
    struct tcp_link *l = FT_CONTAINER(link, struct tcp_link, base);
    bool window_full = false;
    int status = send_copied(l, h, data, &window_full);
    if (!window_full)
        return status;
    read_now(tcp_home_of(l, h->lane)); /* perhaps credits */
    return send_copied(l, h, data, &window_full);
}

/* Whether the caller of this message may read once more. */
static bool may_read(struct tcp_link *l, const struct ft_header *want)
{
    if (want->seq != l->read_seq && (l->reads < READS_MOST || ++l->unread == READS_AGAIN))
        l->reads = l->unread = 0;
    l->read_seq = want->seq;
    return l->reads < READS_MOST;
}

const void *tcp_look(struct ft_link *link, const struct ft_header *want)
{
    struct tcp_link *l = FT_CONTAINER(link, struct tcp_link, base);
    if (!takes_short(l))
        return NULL;
    const struct ft_rxq_node *n = ft_rxq_first(&l->rxq, want->ctx, want->lane);
    if (n == NULL && may_read(l, want)) {
        struct tcp_conn *c = tcp_home_of(l, want->lane);
        read_now(c);
        n = ft_rxq_first(&l->rxq, want->ctx, want->lane);
        if (n == NULL)
            l->reads++, return_due(c);
    }
    return n != NULL && ft_header_is_wanted(&n->header, want) ? n->data : NULL;
}

void tcp_took(struct ft_link *link, const struct ft_header *h)
{
    struct tcp_link *l = FT_CONTAINER(link, struct tcp_link, base);
    struct tcp_conn *c = tcp_home_of(l, h->lane);
    struct ft_msg msg;
    if (ft_rxq_recv(&l->rxq, h->ctx, h->lane, &msg) == FT_OK)
        ft_rxq_release(&l->rxq, &msg);
    if (c->due && ++c->credit_age >= TAKEN_MOST)
        return_due(c);
}

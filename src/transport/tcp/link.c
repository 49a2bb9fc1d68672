/*
 * Links, and how they are made. The sender dials all connections of a link at one address of the
 * peer. If that fails, it tries the next address. A connection that nobody answers is dialled again
 * from another port meanwhile. The receiver keeps authenticated connections until all connections
 * of a link have come. Unauthenticated connections are limited in number and time; more of them
 * wait in the kernel's queue.
 */
#include "transport/tcp/tcp.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/socket.h>

#define RESTS 512                /* turns of reading when a connection ends */
#define UNANSWERED_NS 200000000u /* a dial without an answer is begun again; each time later */
#define REDIALS_MOST 16 /* times that a link is dialled again after a reset, before it is up */

/* The detail of ft_auth: index and number of connections, and which of the peer's links the
 * connection is for. */
uint64_t tcp_detail_of(const struct tcp_link *l, int index)
{
    return (uint64_t)(index | l->nconns << 8) | (uint64_t)l->generation << 16 |
           (l->resumable ? TCP_CAN_RESUME : 0) | (l->spreads ? TCP_SPREADS : 0);
}
int tcp_detail_index(uint64_t detail)
{
    return (int)(detail & 0xff);
}
int tcp_detail_count(uint64_t detail)
{
    return (int)(detail >> 8 & 0xff);
}

uint16_t tcp_detail_attempt(uint64_t detail)
{
    return (uint16_t)(detail >> TCP_ATTEMPT_SHIFT);
}

bool tcp_conns_are_siblings(const struct tcp_conn *a, const struct tcp_conn *b)
{
    return a->auth.peer == b->auth.peer &&
           ((a->auth.detail ^ b->auth.detail) & TCP_SIBLING_BITS) == 0;
}

static bool elsewhere(int status);
static int dial(struct tcp_link *l);
static int dial_next(struct tcp_link *l);
static int dial_conn(struct tcp_link *l, int i, int address);
static void retire_conns(struct tcp_link *l);
static void making_failed(struct tcp_link *l, int status, bool reset);
static void made(struct tcp_link *l);
static void prove(struct tcp_conn *c, bool *moved);
static void proved(struct tcp_conn *c);
static void join(struct tcp_conn *c);
static struct tcp_link *make_receiver(struct tcp *t, struct tcp_conn *conns[], int count);
static struct tcp_link *link_open(struct tcp *t, uint64_t peer, bool sender, int nconns);
static bool make_room(struct tcp *t, uint64_t now_ns);
static void listen_again(struct tcp *t, bool on);
static void unlist(struct tcp_conn **list, struct tcp_conn *c, int *count);

/* Connections on ways of their own share the messages. */
static void choose_connections(struct tcp_link *l)
{
    const int chosen = l->tcp->base.config.connections, paths = (int)ft_param_int(FT_PARAM_PATHS);
    const bool by_paths = chosen <= 0 && paths > 0 && !tcp_is_own(l->tcp, &l->address[0]);
    l->nconns = chosen > 0 ? chosen
                : by_paths ? paths
                           : (int)ft_param_int(FT_PARAM_TCP_CONNECTIONS);
    l->spreads = l->spreads && by_paths && l->nconns > 1;
    l->shares = l->spreads && ft_param_str(FT_PARAM_SOCKET_IFNAME)[0] != '\0';
}

/* Takes the addresses that this machine speaks, and whether the peer can go on over a connection
 * that is made again. */
static void take_addresses(struct tcp_link *l, const unsigned char *wire, size_t len_bytes)
{
    const struct tcp *t = l->tcp;
    for (size_t at = 0; at + FT_NET_WIRE_BYTES <= len_bytes && l->naddresses < FT_NET_ADDRESSES;
         at += FT_NET_WIRE_BYTES) {
        struct ft_net_address a;
        if (memcmp(wire + at, tcp_can_resume, TCP_CAN_RESUME_BYTES) == 0) {
            l->resumable = t->remake_ns > 0;
            l->spreads = l->resumable && wire[at + TCP_CAN_RESUME_BYTES] == TCP_CAN_SPREAD;
        }
        if (ft_net_unpack(wire + at, &a) == FT_OK && tcp_speaks(t, a.family))
            l->address[l->naddresses++] = a;
    }
}

int tcp_link_connect(struct ft_transport *transport, uint64_t peer, const void *address,
                     size_t len_bytes, struct ft_link **out)
{
    struct tcp *t = FT_CONTAINER(transport, struct tcp, base);
    struct tcp_link *l = link_open(t, peer, true, 0);
    int status = FT_OK;

    if (l == NULL)
        return ft_fail(FT_NOMEM, "no memory for a link");
    take_addresses(l, address, len_bytes);
    choose_connections(l);
    if (l->naddresses == 0)
        status = ft_fail(FT_NOTSUP, "the peer has no address that this machine can reach");
    l->deadline_ns = ft_now_ns(t->base.config.env) + TCP_CONNECT_NS;
    t->nmaking++;
    if (status == FT_OK)
        status = dial(l);
    if (elsewhere(status) && l->naddresses > 0) { /* it is reported like a later failure */
        tcp_link_down(l, FT_LINK);
        status = FT_OK;
    }
    if (status != FT_OK) {
        tcp_link_free(l);
        return status;
    }
    *out = &l->base;
    return FT_OK;
}

void tcp_link_free(struct tcp_link *l)
{
    struct tcp *t = l->tcp;
    struct tcp_link **at = &t->links;

    if (l->base.state == FT_LINK_CONNECTING)
        t->nmaking--;
    tcp_remake_forget(l);
    for (int i = 0; i < l->nconns; i++)
        if (l->conn[i] != NULL) {
            tcp_out_drop(l->conn[i], FT_LINK);
            tcp_conn_close(l->conn[i]);
            tcp_conn_free(l->conn[i]);
        }
    while (*at != NULL && *at != l)
        at = &(*at)->next;
    if (*at != NULL)
        *at = l->next;
    ft_news_drop(&t->news, &l->news);
    if (l->base.sender)
        ft_txq_close(&l->txq);
    else
        ft_rxq_close(&l->rxq);
    ft_unmap(l->buffers, l->buffers != NULL ? TCP_BUFFERS * t->buffer_bytes : 0);
    for (int i = 0; i < TCP_BUFFERS; i++)
        ft_pinned_free(t->base.config.pinned, l->pinned[i]);
    free(l);
}

/* Reads what came before the end. The number of turns is bounded, because the other side may still
 * send. */
int tcp_conn_read_rest(struct tcp_conn *c)
{
    bool moved = true;
    int status = FT_OK;
    for (int n = 0; n < RESTS && moved && status == FT_OK && c->state == TCP_OPEN; n++) {
        moved = false;
        status = tcp_conn_read(c, &moved);
    }
    return status;
}

static void close_conns(struct tcp_link *l)
{
    tcp_remake_forget(l);
    for (int i = 0; i < l->nconns; i++) {
        if (l->conn[i] == NULL)
            continue;
        tcp_out_drop(l->conn[i], FT_LINK);
        tcp_conn_close(l->conn[i]);
    }
}

void tcp_link_down(struct tcp_link *l, int reason)
{
    if (l->base.state == FT_LINK_DOWN || l->failing)
        return;
    FT_LOG(INFO, "net", l->tcp->base.config.rank, "tcp link %s engine %016" PRIx64 " is down: %s",
           l->base.sender ? "to" : "from", l->base.peer,
           l->base.orderly ? "the other side closed it" : ft_fail_text());
    /* What the other connections have already delivered can still be received. */
    l->failing = true;
    for (int i = 0; i < l->nconns && !l->base.sender; i++)
        if (l->conn[i] != NULL)
            (void)tcp_conn_read_rest(l->conn[i]);
    if (l->base.state == FT_LINK_CONNECTING)
        l->tcp->nmaking--;
    l->base.state = FT_LINK_DOWN;
    l->base.reason = reason;
    close_conns(l);
    ft_news_add(&l->tcp->news, &l->news, &l->base);
}

void tcp_link_trim(struct tcp_link *l)
{
    if (!l->base.sender)
        return ft_rxq_trim(&l->rxq);
    for (int i = 0; i < l->nconns && l->base.state == FT_LINK_UP; i++)
        tcp_out_look(l->conn[i]);
    for (uint32_t free = l->buffers_free; free != 0; free &= free - 1) {
        const int i = __builtin_ctz(free);
        if (l->pinned[i] == NULL)
            ft_pages_trim(&l->pages[i], l->buffers + (size_t)i * l->tcp->buffer_bytes,
                          l->tcp->buffer_bytes, false);
    }
}

/* Its place is chosen when it is first used on a lane with data: if possible, where devices can
 * reach it. */
unsigned char *tcp_link_buffer(struct tcp_link *l, int i, unsigned lane)
{
    if (lane <= FT_LANE_P2P && !(l->placed & 1u << i)) {
        l->pinned[i] = ft_pinned_alloc(l->tcp->base.config.pinned, l->tcp->buffer_bytes);
        l->placed |= 1u << i;
    }
    return l->pinned[i] != NULL ? l->pinned[i] : l->buffers + (size_t)i * l->tcp->buffer_bytes;
}

/* After a sender's goodbye on a connection, nothing more comes there. After its goodbyes on all
 * connections, the link ends; on a broken one it cannot say it. A receiver that says goodbye on any
 * connection takes nothing more. */
void tcp_link_goodbye(struct tcp_conn *c)
{
    struct tcp_link *l = c->link;
    bool all = true;

    for (int i = 0; i < l->nconns && !l->base.sender; i++)
        all = all && (l->conn[i]->goodbye || l->conn[i]->remake.broke_ns != 0);
    if (!all) {
        tcp_conn_close(c);
        return;
    }
    if (l->base.state == FT_LINK_CONNECTING)
        return making_failed(l, ft_fail(FT_LINK, "the other side is closing"), false);
    l->base.orderly = true;
    tcp_link_down(l, FT_LINK);
}

static void open_event(struct tcp_conn *c, uint32_t events, bool *moved)
{
    int status = FT_OK;
    if ((events & EPOLLOUT) && c->state == TCP_OPEN) /* the event may be of its former socket */
        status = tcp_conn_write(c, moved);
    if (status == FT_OK && (c->state == TCP_OPEN || c->state == TCP_RESUMING) &&
        (events & ~(uint32_t)EPOLLOUT))
        status = tcp_conn_read(c, moved);
    if (status == FT_OK)
        return;
    if (c->link->base.state == FT_LINK_CONNECTING)
        making_failed(c->link, status, c->reset);
    else
        tcp_conn_failed(c, status);
}

void tcp_conn_event(struct tcp_conn *c, uint32_t events, bool *moved)
{
    switch (c->state) {
    case TCP_DIALING:
    case TCP_PROVING:
        prove(c, moved);
        return;
    case TCP_JOINED:
        tcp_conn_retire(c);
        return; /* now epoll reports only its end */
    case TCP_PROBING:
    case TCP_PROBED:
        return tcp_probe_event(c);
    case TCP_PARKED:
    case TCP_SHUT:
        return;
    case TCP_RESUMING:
    case TCP_OPEN:
        return open_event(c, events, moved);
    }
}

void tcp_accept(struct tcp *t, int listener, bool *moved)
{
    const struct ft_transport_config *config = &t->base.config;
    for (int i = 0; i < TCP_UNKNOWN_MAX; i++) {
        const uint64_t now_ns = ft_now_ns(config->env);
        int fd = -1;
        if (t->nunknown >= TCP_UNKNOWN_MAX && !make_room(t, now_ns))
            return listen_again(t, false);
        int status = ft_net_accept(listener, &fd);
        if (status == FT_AGAIN)
            return;
        /* The connection stays in the kernel until there is a descriptor for it. */
        if (status != FT_OK) {
            if (!t->short_told)
                FT_LOG(WARN, "net", config->rank, "%s", ft_fail_text());
            t->short_told = true;
            (void)make_room(t, now_ns);
            return listen_again(t, false);
        }
        t->short_told = false;
        struct tcp_conn *c = tcp_conn_open(t, fd, TCP_PROVING, false);
        if (c == NULL) {
            ft_fd_close(&fd);
            return;
        }
        ft_auth_start(&c->auth, config->env, fd, false, config->key, config->self, 0,
                      FT_PURPOSE_TCP, 0, now_ns + TCP_UNKNOWN_NS);
        c->next = t->unknown;
        t->unknown = c;
        t->nunknown++;
        *moved = true;
        prove(c, moved);
    }
}

/* A dial that nobody answers may take a way through the network that is broken. From another source
 * port it may take another one. */
static void dial_again(struct tcp_link *l, uint64_t now_ns)
{
    bool again = false;
    for (int i = 0; i < l->nconns; i++) {
        struct tcp_conn *c = l->conn[i];
        if (c == NULL || c->state != TCP_DIALING ||
            now_ns - c->since_ns < (uint64_t)(l->unanswered + 1) * UNANSWERED_NS)
            continue;
        const int address = c->address;
        tcp_conn_retire(c);
        again = true;
        const int status = dial_conn(l, i, address);
        if (status != FT_OK)
            return making_failed(l, status, false);
    }
    l->unanswered += again;
}

void tcp_check_deadlines(struct tcp *t, uint64_t now_ns, bool *moved)
{
    for (struct tcp_conn *c = t->unknown, *next; c != NULL; c = next) {
        next = c->next;
        if (now_ns - c->since_ns >= TCP_UNKNOWN_NS)
            tcp_conn_retire(c);
    }
    for (struct tcp_conn *c = t->joined, *next; c != NULL; c = next) {
        next = c->next;
        if (now_ns - c->since_ns >= TCP_CONNECT_NS)
            tcp_conn_retire(c);
    }
    for (struct tcp_link *l = t->links, *next; l != NULL && t->nmaking > 0; l = next) {
        next = l->next;
        if (l->base.state != FT_LINK_CONNECTING)
            continue;
        if (now_ns < l->try_deadline_ns) {
            dial_again(l, now_ns);
            continue;
        }
        l->silent = true;
        making_failed(l, ft_fail(FT_TIMEOUT, "a peer did not answer in time"), false);
        *moved = true;
    }
    if (!t->listening && (t->nunknown < TCP_UNKNOWN_MAX || make_room(t, now_ns)))
        listen_again(t, true);
}

/* Whether another address of the peer may not have this failure. */
static bool elsewhere(int status)
{
    return status == FT_LINK || status == FT_TIMEOUT || status == FT_PROTOCOL ||
           status == FT_SYSTEM || status == FT_NOTSUP;
}

/* Starts to dial the next address that can be dialled at all. */
static int dial(struct tcp_link *l)
{
    int status = FT_LINK;
    while (l->address_next < l->naddresses) {
        status = dial_next(l);
        if (!elsewhere(status))
            return status;
    }
    return status;
}

/* The address for the i-th connection: they take turns over those of the first one's family, or all
 * have the same. */
static int address_for(const struct tcp_link *l, int first, int i)
{
    int other = first;
    for (int left = l->shares ? i : 0; left > 0;) {
        other = (other + 1) % l->naddresses;
        left -= l->address[other].family == l->address[first].family &&
                !tcp_is_own(l->tcp, &l->address[other]);
    }
    return other;
}

/* Starts the i-th connection of a link. */
static int dial_conn(struct tcp_link *l, int i, int address)
{
    struct tcp *t = l->tcp;
    const struct ft_net_address *to = &l->address[address];
    int fd = -1;
    int status = ft_net_connect(to, tcp_congestion(t, to), &fd);
    if (status != FT_OK)
        return status;
    struct tcp_conn *c = tcp_conn_open(t, fd, TCP_DIALING, true);
    if (c == NULL) {
        ft_fd_close(&fd);
        return ft_fail(FT_NOMEM, "no memory for a connection");
    }
    c->link = l;
    c->index = i;
    c->address = address;
    l->conn[i] = c;
    ft_auth_start(&c->auth, t->base.config.env, fd, true, t->base.config.key, t->base.config.self,
                  l->base.peer, FT_PURPOSE_TCP, tcp_detail_of(l, i), l->try_deadline_ns);
    return FT_OK;
}

static int dial_next(struct tcp_link *l)
{
    const uint64_t now_ns = ft_now_ns(l->tcp->base.config.env),
                   left_ns = l->deadline_ns > now_ns ? l->deadline_ns - now_ns : 0;
    const int first = l->address_next++;
    int status = FT_OK;

    l->try_deadline_ns = now_ns + left_ns / (uint64_t)(l->naddresses - first + l->shares);
    l->nopen = 0;
    l->unanswered = 0;
    l->generation = ++l->tcp->generation;
    for (int i = 0; i < l->nconns && status == FT_OK; i++)
        status = dial_conn(l, i, address_for(l, first, i));
    if (status != FT_OK)
        retire_conns(l);
    return status;
}

static void retire_conns(struct tcp_link *l)
{
    for (int i = 0; i < l->nconns; i++)
        if (l->conn[i] != NULL)
            tcp_conn_retire(l->conn[i]);
}

/* This address failed. After a reset it is tried again, and alone if others had a part in it. If
 * the peer refused this rank for what it is, other addresses are not tried. */
static void making_failed(struct tcp_link *l, int status, bool reset)
{
    retire_conns(l);
    if (reset && l->resumable && l->redials < REDIALS_MOST) {
        l->redials++;
        l->address_next--;
    } else if (l->shares) {
        l->shares = false;
        l->address_next--;
    } else if (l->silent && l->address_next == l->naddresses &&
               ft_now_ns(l->tcp->base.config.env) < l->deadline_ns) {
        l->address_next = 0; /* one that did not answer may do so now */
    }
    if (elsewhere(status) && l->address_next < l->naddresses)
        status = dial(l);
    if (status == FT_OK)
        return;
    tcp_link_down(l, elsewhere(status) && status != FT_PROTOCOL ? FT_LINK : status);
}

static void made(struct tcp_link *l)
{
    l->base.state = FT_LINK_UP;
    l->news.made = true;
    ft_news_add(&l->tcp->news, &l->news, &l->base);
}

static void not_proved(struct tcp_conn *c, int status)
{
    if (c->replaces != NULL)
        return tcp_move_failed(c);
    if (c->link != NULL && c->remake.broke_ns != 0)
        return tcp_remake_failed(c, status);
    if (c->link != NULL)
        return making_failed(c->link, status, c->reset);
    FT_LOG(INFO, "net", c->tcp->base.config.rank, "refused a tcp connection: %s", ft_fail_text());
    tcp_conn_retire(c);
}

/* Goes on with a connection that is being dialled or authenticated. */
static void prove(struct tcp_conn *c, bool *moved)
{
    int status = FT_OK;
    errno = 0;
    if (c->state == TCP_DIALING) {
        status = ft_net_connected(c->fd);
        if (status == FT_AGAIN)
            return;
        c->refused = status != FT_OK && errno == ECONNREFUSED;
        if (status == FT_OK)
            c->state = TCP_PROVING;
        *moved = true;
    }
    if (status == FT_OK)
        status = ft_auth_turn(&c->auth);
    c->reset = errno == ECONNRESET || errno == EPIPE;
    if (c->replaces != NULL && c->auth.claimed) {
        c = tcp_move_claimed(c);
        return c->state == TCP_PROVING ? prove(c, moved) : (void)0;
    }
    if (status == FT_AGAIN) {
        tcp_conn_want(c, (uint32_t)ft_auth_events(&c->auth));
        return;
    }
    *moved = true;
    if (status == FT_OK)
        proved(c);
    else
        not_proved(c, status);
}

static void proved(struct tcp_conn *c)
{
    struct tcp_link *l = c->link;
    tcp_tune(c->tcp, c->fd, l == NULL);
    if (l == NULL)
        return join(c);
    c->state = c->remake.broke_ns != 0 ? TCP_RESUMING : TCP_OPEN;
    tcp_conn_want(c, EPOLLIN);
    if (c->state == TCP_RESUMING)
        return;
    const int status = l->resumable ? tcp_out_begin(c) : FT_OK;
    if (status == FT_LINK)
        return making_failed(l, status, true);
    l->resumable = l->resumable && status == FT_OK;
    if (++l->nopen < l->nconns)
        return;
    l->tcp->nmaking--;
    made(l);
}

/* Authentication of an accepted connection is complete. With the last connection of a link, the
 * link is made. */
/* Those that have come of the link that c is for, by their numbers. Returns how many; -1: one of
 * them came twice. */
static int find_siblings(const struct tcp_conn *c, struct tcp_conn *siblings[TCP_CONNS_MAX])
{
    int found = 0;
    for (struct tcp_conn *s = c->tcp->joined; s != NULL; s = s->next) {
        if (!tcp_conns_are_siblings(s, c))
            continue;
        struct tcp_conn **at = &siblings[tcp_detail_index(s->auth.detail)];
        if (*at != NULL)
            return -1;
        *at = s;
        found++;
    }
    return found;
}

static void join(struct tcp_conn *c)
{
    struct tcp *t = c->tcp;
    const int count = tcp_detail_count(c->auth.detail);
    struct tcp_conn *siblings[TCP_CONNS_MAX] = {NULL};

    if (count < 1 || count > TCP_CONNS_MAX || tcp_detail_index(c->auth.detail) >= count ||
        t->njoined >= TCP_JOINED_MAX)
        return tcp_conn_retire(c);
    if ((c->auth.detail & TCP_RESUMES) && !tcp_remake_accept(t, c))
        return tcp_conn_retire(c);
    unlist(&t->unknown, c, &t->nunknown);
    c->next = t->joined;
    t->joined = c;
    t->njoined++;
    c->state = TCP_JOINED;
    tcp_conn_want(c, 0);
    const int found = find_siblings(c, siblings);
    if (found < 0)
        return tcp_conn_retire(c);
    if (found < count)
        return;
    if (make_receiver(t, siblings, count) != NULL)
        return;
    FT_LOG(WARN, "net", t->base.config.rank, "refused a tcp link: %s", ft_fail_text());
    for (int i = 0; i < count; i++)
        tcp_conn_retire(siblings[i]);
}

/* A sender that makes a new link has given up the one before it. */
static void give_up_broken(struct tcp *t, uint64_t peer)
{
    for (struct tcp_link *l = t->links; l != NULL && t->nbroken > 0; l = l->next) {
        bool broken = false;
        for (int i = 0; i < l->nconns; i++)
            broken = broken || (l->conn[i] != NULL && l->conn[i]->remake.broke_ns != 0);
        if (broken && !l->base.sender && l->base.peer == peer)
            tcp_link_down(l, ft_fail(FT_LINK, "the other side has given up a broken link"));
    }
}

static bool is_unused(struct tcp_link *l)
{
    bool unused = true;
    for (int i = 0; i < l->nconns && unused; i++) {
        struct tcp_conn *c = l->conn[i];
        const int end = tcp_conn_read_rest(c);
        unused = (end == FT_OK || c->reset) && l->base.state == FT_LINK_UP &&
                 tcp_conn_position(c) == 0 && c->have == 0 && !c->goodbye;
    }
    return unused;
}

/* A reset at the end of the last handshake, which only the receiver has completed: the sender dials
 * again and has sent nothing. The receiver's link goes on with the new connections. */
static struct tcp_link *find_unused(struct tcp *t, uint64_t peer, int count)
{
    for (struct tcp_link *l = t->links; l != NULL; l = l->next) {
        if (l->base.sender || !l->resumable || l->base.state != FT_LINK_UP || l->failing ||
            l->base.peer != peer || l->nconns != count || !is_unused(l))
            continue;
        tcp_remake_forget(l);
        retire_conns(l);
        return l;
    }
    return NULL;
}

static struct tcp_link *open_receiver(struct tcp *t, uint64_t peer, int count)
{
    struct tcp_link *l = find_unused(t, peer, count);
    if (l != NULL)
        return l;
    give_up_broken(t, peer);
    l = link_open(t, peer, false, count);
    if (l != NULL)
        made(l);
    return l;
}

static struct tcp_link *make_receiver(struct tcp *t, struct tcp_conn *conns[], int count)
{
    const uint64_t detail = conns[0]->auth.detail;
    struct tcp_link *l = open_receiver(t, conns[0]->auth.peer, count);
    if (l == NULL)
        return NULL;
    l->generation = (uint16_t)(detail >> 16);
    l->resumable = (detail & TCP_CAN_RESUME) && t->remake_ns > 0;
    l->spreads = (detail & TCP_SPREADS) && l->resumable;
    (void)ft_net_peer(conns[0]->fd, &l->from);
    for (int i = 0; i < count; i++) {
        unlist(&t->joined, conns[i], &t->njoined);
        conns[i]->state = TCP_OPEN;
        conns[i]->link = l;
        conns[i]->index = i;
        conns[i]->attempt = tcp_detail_attempt(conns[i]->auth.detail);
        l->conn[i] = conns[i];
        tcp_conn_want(conns[i], EPOLLIN);
    }
    for (int i = 0; i < count; i++)
        if (conns[i]->late)
            tcp_remake_tell(conns[i]);
    return l;
}

static void consumed(struct ft_rxq *q, struct ft_rxq_node *node)
{
    struct tcp_link *l = FT_CONTAINER(q, struct tcp_link, rxq);
    if (l->base.state == FT_LINK_UP)
        tcp_conn_credit(l->conn[node->way], node->header.ctx, node->header.lane, node->places);
}

/* Makes the buffers and the queue of a sending link. What it made is freed with the link. */
static int open_sender(struct tcp_link *l)
{
    struct tcp *t = l->tcp;
    const size_t bytes = TCP_BUFFERS * t->buffer_bytes;
    void *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (at == MAP_FAILED)
        return FT_NOMEM;
    (void)madvise(at, bytes, MADV_DONTFORK);
    l->buffers = at;
    l->buffers_free = UINT32_MAX;
    return ft_txq_open_ways(&l->txq, &t->set, TCP_CONNS_MAX);
}

static struct tcp_link *link_open(struct tcp *t, uint64_t peer, bool sender, int nconns)
{
    struct tcp_link *l = calloc(1, sizeof(*l));
    int status;

    if (l == NULL)
        return NULL;
    l->base = (struct ft_link){
        .ops = t->base.ops, .transport = &t->base, .peer = peer, .sender = sender};
    l->tcp = t;
    l->nconns = nconns;
    if (sender) {
        status = open_sender(l);
    } else {
        status = ft_rxq_open(&l->rxq, &t->set, consumed);
        l->rxq.consumer = &l->base.latency[FT_LATENCY_CONSUMER];
    }
    if (status != FT_OK) {
        ft_unmap(l->buffers, l->buffers != NULL ? TCP_BUFFERS * t->buffer_bytes : 0);
        free(l);
        return NULL;
    }
    l->next = t->links;
    t->links = l;
    return l;
}

/* Closes the oldest unknown connection, if it has lasted too long while others wait. */
static bool make_room(struct tcp *t, uint64_t now_ns)
{
    struct tcp_conn *oldest = t->unknown;
    for (struct tcp_conn *c = t->unknown; c != NULL; c = c->next)
        if (c->since_ns <= oldest->since_ns)
            oldest = c;
    if (oldest == NULL || now_ns - oldest->since_ns < TCP_UNKNOWN_CROWDED_NS)
        return false;
    tcp_conn_retire(oldest);
    return true;
}

static void listen_again(struct tcp *t, bool on)
{
    t->listening = on;
    for (int i = 0; i < 2; i++) {
        struct epoll_event ev = {.events = on ? EPOLLIN : 0, .data.ptr = &t->listener[i]};
        if (t->listener[i] >= 0)
            (void)epoll_ctl(t->epoll_fd, EPOLL_CTL_MOD, t->listener[i], &ev);
    }
}

void tcp_conn_retire(struct tcp_conn *c)
{
    struct tcp *t = c->tcp;
    unlist(&t->unknown, c, &t->nunknown);
    unlist(&t->joined, c, &t->njoined);
    for (int i = 0; c->link != NULL && i < c->link->nconns; i++)
        if (c->link->conn[i] == c)
            c->link->conn[i] = NULL;
    tcp_conn_close(c);
    c->link = NULL;
    c->next = t->dead;
    t->dead = c;
}

static void unlist(struct tcp_conn **list, struct tcp_conn *c, int *count)
{
    while (*list != NULL && *list != c)
        list = &(*list)->next;
    if (*list == NULL)
        return;
    *list = c->next;
    (*count)--;
}

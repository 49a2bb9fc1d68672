/*
 * A connection that is reset between two live processes is made again, and goes on at the byte at
 * which it stopped (docs/decisions/0020). The sender dials, best first at the address that worked.
 * The receiver says which bytes it has, and which places of its windows messages use. The sender
 * takes both as they are, and sends the rest. Meanwhile the link is UP and takes no messages.
 *
 * The end of a process must not take longer to be seen than without this. So only a reset is taken
 * for a break: the end of a connection without a goodbye, silence, and what does not fit end the
 * link at once. If nobody listens at the sender's address any more, the process has ended. The
 * receiver of a broken link finds that out by itself: it connects to the peer's address, says
 * nothing, and sees if that is refused. FTCCL_RECONNECT_MS bounds all of it.
 */
#include "transport/tcp/tcp.h"

#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#define MS 1000000u
#define TRY_LEAST_NS (50 * MS) /* time for the first try; it doubles with each, so often: */
#define TRY_SHIFT_MOST 4
/* A connection that breaks so soon after it was made, and brought nothing, was made in vain. */
#define SOON_NS (100 * MS)
#define IN_VAIN_MOST 16
#define PACE_SHIFT_MOST 6 /* at least every 64 ms */

/* The first try is at once, also after a remake that was not in vain. */
static uint64_t pace_ns(const struct tcp_remake *r)
{
    const unsigned slow = r->tries + r->in_vain;
    return slow < 2 ? 0 : (uint64_t)MS << ft_min(slow - 2, PACE_SHIFT_MOST);
}

/* ---- the break ------------------------------------------------------------------------------- */

/* It was made again and again, and broke, without a byte. */
static bool is_in_vain(const struct tcp_conn *c)
{
    return c->remake.in_vain >= IN_VAIN_MOST &&
           tcp_now_ns(c->tcp) - c->remake.in_vain_ns >= c->tcp->remake_ns;
}

static bool can_remake(const struct tcp_conn *c, int status)
{
    const struct tcp_link *l = c->link;
    bool alive = status == FT_LINK && c->reset && l->resumable && !l->failing &&
                 l->base.state == FT_LINK_UP && !is_in_vain(c);
    for (int i = 0; i < l->nconns && alive; i++)
        alive = !l->conn[i]->goodbye;
    return alive;
}

static void begin_remake(struct tcp_conn *c)
{
    struct tcp_remake *r = &c->remake;
    r->broke_ns = tcp_now_ns(c->tcp);
    r->tries = 0;
    r->address = c->link->base.sender ? c->address : 0;
    c->tcp->nbroken++;
    if (c->move.second == NULL || c->move.stalls)
        tcp_speed_forget(c);
}

/* For a new socket of a sender's connection. */
static void prepare(struct tcp_conn *c, uint64_t now_ns)
{
    struct tcp_remake *r = &c->remake;
    r->try_end_ns = now_ns + ((uint64_t)TRY_LEAST_NS << ft_min(r->tries, TRY_SHIFT_MOST));
    r->tries++;
    r->uses_left = UINT_MAX;
    c->have = 0;
    c->reset = c->refused = false;
}

uint64_t tcp_remake_detail(struct tcp_conn *c)
{
    return tcp_detail_of(c->link, c->index) | TCP_RESUMES |
           (uint64_t)++c->attempt << TCP_ATTEMPT_SHIFT;
}

void tcp_conn_failed(struct tcp_conn *c, int status)
{
    struct tcp_remake *r = &c->remake;
    if (r->broke_ns != 0)
        return tcp_remake_failed(c, status);
    if (!can_remake(c, status))
        return tcp_link_down(c->link, status);
    FT_LOG(INFO, "net", c->tcp->base.config.rank,
           "connection %d of the tcp link %s engine %016" PRIx64 " is made again: %s", c->index,
           c->link->base.sender ? "to" : "from", c->link->base.peer, ft_fail_text());
    tcp_move_forget(c);
    tcp_measure_keep(c);
    tcp_conn_close(c);
    begin_remake(c);
    r->retry_ns = r->broke_ns + pace_ns(r);
}

void tcp_remake_moved(struct tcp_conn *c, struct tcp_conn *second)
{
    const int epoll_fd = c->tcp->epoll_fd;
    int from = c->fd, to = second->fd;
    tcp_measure_keep(c);
    tcp_conn_want(second, 0);
    second->state = TCP_PARKED;
    (void)epoll_ctl(epoll_fd, EPOLL_CTL_DEL, to, NULL);
    (void)epoll_ctl(epoll_fd, EPOLL_CTL_DEL, from, NULL);
    second->fd = from;
    c->fd = -1;
    tcp_conn_close(c);
    begin_remake(c);
    prepare(c, c->remake.broke_ns);
    c->auth = second->auth;
    if (tcp_conn_reopen(c, to, TCP_PROVING, EPOLLIN) != FT_OK)
        ft_fd_close(&to); /* the next turn dials again */
}

static void end_probe(struct tcp_remake *r)
{
    if (r->probe != NULL)
        tcp_conn_retire(r->probe);
    r->probe = NULL;
}

static void mended(struct tcp_conn *c, uint64_t position)
{
    struct tcp_remake *r = &c->remake;
    const uint64_t now_ns = tcp_now_ns(c->tcp);
    const uint64_t end_ns = r->broke_ns != 0 ? r->broke_ns : now_ns;
    const bool in_vain = end_ns - r->made_ns < SOON_NS && r->made_at == position;
    end_probe(r);
    tcp_move_forget(c);
    r->in_vain = in_vain ? r->in_vain + 1 : 0;
    if (r->in_vain <= 1)
        r->in_vain_ns = now_ns;
    r->made_ns = now_ns;
    r->made_at = position;
    c->link->base.remakes++;
    if (r->broke_ns != 0)
        c->tcp->nbroken--;
    r->broke_ns = 0;
}

void tcp_remake_forget(struct tcp_link *l)
{
    for (int i = 0; i < l->nconns; i++) {
        struct tcp_conn *c = l->conn[i];
        if (c == NULL)
            continue;
        end_probe(&c->remake);
        tcp_move_forget(c);
        if (c->remake.broke_ns != 0)
            c->tcp->nbroken--;
        c->remake.broke_ns = 0;
    }
}

/* ---- the sender dials ------------------------------------------------------------------------ */

static void dial(struct tcp_conn *c, uint64_t now_ns)
{
    struct tcp_link *l = c->link;
    struct tcp *t = c->tcp;
    struct tcp_remake *r = &c->remake;
    const struct ft_net_address *to = &l->address[r->address];
    int fd = -1;

    prepare(c, now_ns);
    errno = 0;
    int status = ft_net_connect(to, tcp_congestion(t, to), &fd);
    c->refused = status != FT_OK && errno == ECONNREFUSED;
    if (status == FT_OK)
        status = tcp_conn_reopen(c, fd, TCP_DIALING, EPOLLOUT);
    if (status != FT_OK) {
        ft_fd_close(&fd);
        return tcp_remake_failed(c, status);
    }
    ft_auth_start(&c->auth, t->base.config.env, fd, true, t->base.config.key, t->base.config.self,
                  l->base.peer, FT_PURPOSE_TCP, tcp_remake_detail(c), r->broke_ns + t->remake_ns);
}

/* Whether another try, or another address, may do. A peer that closes the connection when it has
 * read for which link it is has ended that link. */
static bool may_try_again(const struct tcp_conn *c, int status)
{
    if (c->refused)
        return c->remake.address != c->address;
    if (c->state == TCP_RESUMING)
        return status == FT_TIMEOUT || (status == FT_LINK && c->reset);
    return status == FT_LINK || status == FT_TIMEOUT || status == FT_SYSTEM || status == FT_NOTSUP;
}

/* The kernel must not go on sending the claim of a dial that is given up: it would come late. */
static void drop_claim(const struct tcp_conn *c)
{
    const struct linger at_once = {1, 0};
    if (c->fd >= 0 && c->auth.claimed)
        (void)setsockopt(c->fd, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
}

void tcp_remake_failed(struct tcp_conn *c, int status)
{
    struct tcp_link *l = c->link;
    struct tcp_remake *r = &c->remake;
    if (!may_try_again(c, status)) {
        if (c->refused)
            status = ft_fail(FT_LINK, "nobody listens at the other side's address any more");
        return tcp_link_down(l, status == FT_PROTOCOL ? status : FT_LINK);
    }
    drop_claim(c);
    tcp_conn_close(c);
    c->state = TCP_SHUT;
    r->address = (r->address + 1) % l->naddresses;
    r->retry_ns = tcp_now_ns(c->tcp) + pace_ns(r);
}

static int hold_reserved(struct tcp_conn *c)
{
    struct tcp_link *l = c->link;
    int status = FT_OK;
    for (int i = 0; i < TCP_BUFFERS && status == FT_OK; i++) {
        const struct ft_rxq_use *use = &l->reserved[i];
        if (use->places == 0 || l->reserved_on[i] != c)
            continue;
        c->places += use->places;
        status = ft_txq_hold(&l->txq, (unsigned)c->index, use->ctx, use->lane, use->places);
    }
    return status;
}

/* The first answer: what the receiver has, and how many channels follow. */
static int go_on_at(struct tcp_conn *c, const struct tcp_credit *answer)
{
    struct tcp_link *l = c->link;
    if (answer->lane != TCP_POSITION || answer->count != 0 || answer->zero > TCP_USES_MOST)
        return ft_fail(FT_PROTOCOL, "the other side does not say where a connection goes on");
    ft_txq_clear(&l->txq, (unsigned)c->index, c->places);
    c->places = 0;
    c->remake.uses_left = answer->zero;
    int status = hold_reserved(c);
    return status == FT_OK ? tcp_out_rewind(c, answer->ctx) : status;
}

static int take_use(struct tcp_conn *c, const struct tcp_credit *use)
{
    struct tcp_link *l = c->link;
    if (use->lane >= FT_LANES_ALL || !tcp_may_carry(c, use->lane) || use->count == 0 ||
        use->zero != 0)
        return ft_fail(FT_PROTOCOL, "the other side holds messages that it was not sent");
    c->places += use->count;
    c->remake.uses_left--;
    return ft_txq_hold(&l->txq, (unsigned)c->index, use->ctx, use->lane, use->count);
}

int tcp_remake_told(struct tcp_conn *c, const struct tcp_credit *answer)
{
    bool moved;
    const bool first = c->remake.uses_left == UINT_MAX;
    int status = first ? go_on_at(c, answer) : take_use(c, answer);
    if (status != FT_OK || c->remake.uses_left > 0)
        return status;
    status = tcp_out_begin(c);
    if (status != FT_OK)
        return status;
    FT_LOG(INFO, "net", c->tcp->base.config.rank,
           "connection %d of the tcp link to engine %016" PRIx64 " goes on after %llu us", c->index,
           c->link->base.peer,
           (unsigned long long)((tcp_now_ns(c->tcp) - c->remake.broke_ns) / 1000));
    mended(c, c->written);
    c->state = TCP_OPEN;
    return tcp_out_write(c, &moved);
}

/* ---- the receiver ---------------------------------------------------------------------------- */

void tcp_link_peer_at(struct ft_link *link, const void *address, size_t len_bytes)
{
    struct tcp_link *l = FT_CONTAINER(link, struct tcp_link, base);
    const unsigned char *wire = address;
    if (l->base.sender)
        return;
    l->naddresses = 0;
    l->knows_from = false;
    for (size_t at = 0; at + FT_NET_WIRE_BYTES <= len_bytes && l->naddresses < FT_NET_ADDRESSES;
         at += FT_NET_WIRE_BYTES) {
        struct ft_net_address a;
        if (ft_net_unpack(wire + at, &a) != FT_OK || !tcp_speaks(l->tcp, a.family))
            continue;
        const int i = l->naddresses++;
        l->address[i] = a;
        if (a.family != l->from.family || memcmp(a.ip, l->from.ip, sizeof(a.ip)) != 0)
            continue;
        l->knows_from = true;
        l->address[i] = l->address[0];
        l->address[0] = a;
    }
    for (int i = 0; i < l->nconns; i++) {
        end_probe(&l->conn[i]->remake);
        l->conn[i]->remake.address = 0;
    }
}

/* Writes which channels have messages in use, also one of which a part is dropped. Returns their
 * number, or more than TCP_USES_MOST. */
static unsigned list_uses(const struct tcp_conn *c, struct ft_rxq_use uses[TCP_USES_MOST + 1])
{
    const struct ft_header *h = &c->dropping;
    unsigned n = ft_rxq_uses(&c->link->rxq, (unsigned)c->index, uses, TCP_USES_MOST);
    if (c->body_left > 0 && c->node == NULL && h->lane != TCP_PING && n <= TCP_USES_MOST)
        uses[n++] = (struct ft_rxq_use){h->ctx, h->lane,
                                        (uint16_t)ft_rxq_cost(&c->tcp->set, h->lane, h->len)};
    return n;
}

/* Says what the connection has, and which channels have messages in use. It fits into an empty
 * socket. */
void tcp_remake_tell(struct tcp_conn *c)
{
    struct tcp_credit says[1 + TCP_USES_MOST];
    struct ft_rxq_use uses[TCP_USES_MOST + 1];
    const unsigned n = list_uses(c, uses);
    const size_t len = (n + 1) * sizeof(says[0]);
    if (n > TCP_USES_MOST)
        return tcp_link_down(c->link, ft_fail(FT_LINK,
                                              "a connection was reset while more than %d "
                                              "channels had messages",
                                              TCP_USES_MOST));
    c->have = 0;
    c->early = false;
    says[0] = (struct tcp_credit){.ctx = tcp_conn_position(c), .lane = TCP_POSITION, .zero = n};
    for (unsigned i = 0; i < n; i++)
        says[i + 1] = (struct tcp_credit){
            .ctx = uses[i].ctx, .lane = uses[i].lane, .count = uses[i].places};
    c->wrote = true;
    const ssize_t sent = tcp_transmit(c->fd, says, len);
    if (sent != (ssize_t)len)
        tcp_conn_failed(c, tcp_conn_lost(c, sent < 0 ? errno : EPIPE));
}

static struct tcp_link *find_link(const struct tcp *t, const struct tcp_conn *c)
{
    const int count = tcp_detail_count(c->auth.detail);
    for (struct tcp_link *l = t->links; l != NULL; l = l->next)
        if (!l->base.sender && l->resumable && l->base.state == FT_LINK_UP && !l->failing &&
            l->base.peer == c->auth.peer && l->nconns == count &&
            l->generation == (uint16_t)(c->auth.detail >> 16))
            return l;
    return NULL;
}

/* The link's connection gets the descriptor. What its old one has brought is read before. */
static void take_place(struct tcp_link *l, struct tcp_conn *old, struct tcp_conn *c)
{
    (void)tcp_conn_read_rest(old);
    if (l->base.state != FT_LINK_UP || old->goodbye)
        return;
    tcp_conn_close(old);
    if (is_in_vain(old))
        return tcp_link_down(l, ft_fail(FT_PROTOCOL, "the other side makes a connection again and "
                                                     "again, and sends nothing"));
    old->attempt = tcp_detail_attempt(c->auth.detail);
    (void)epoll_ctl(l->tcp->epoll_fd, EPOLL_CTL_DEL, c->fd, NULL);
    int status = tcp_conn_reopen(old, c->fd, TCP_OPEN, EPOLLIN);
    if (status != FT_OK)
        return tcp_link_down(l, FT_LINK);
    c->fd = -1;
    mended(old, tcp_conn_position(old));
    tcp_remake_tell(old);
}

/* If the link is not complete because a connection was reset between the first and the last one,
 * this one is like the first of its number. */
bool tcp_remake_accept(struct tcp *t, struct tcp_conn *c)
{
    struct tcp_link *l = find_link(t, c);
    if (l != NULL) {
        struct tcp_conn *old = l->conn[tcp_detail_index(c->auth.detail)];
        if ((int16_t)(tcp_detail_attempt(c->auth.detail) - old->attempt) > 0)
            take_place(l, old, c);
        return false; /* otherwise the sender has given it up */
    }
    for (const struct tcp_conn *s = t->joined; s != NULL && !c->late; s = s->next)
        c->late = tcp_conns_are_siblings(s, c);
    if (!c->late)
        FT_LOG(INFO, "net", t->base.config.rank,
               "engine %016" PRIx64 " wants to go on with a tcp link that has ended", c->auth.peer);
    return c->late;
}

/* ---- the receiver asks whether the sender's process lives ------------------------------------ */

static void probe_failed(struct tcp_conn *c)
{
    struct tcp_remake *r = &c->remake;
    end_probe(r);
    r->address = (r->address + 1) % c->link->naddresses;
    r->retry_ns = tcp_now_ns(c->tcp) + pace_ns(r);
}

static void probe(struct tcp_conn *c, uint64_t now_ns)
{
    struct tcp_link *l = c->link;
    struct tcp_remake *r = &c->remake;
    int fd = -1;
    r->tries++;
    r->try_end_ns = now_ns + TRY_LEAST_NS;
    if (ft_net_connect(&l->address[r->address], NULL, &fd) != FT_OK)
        return probe_failed(c);
    r->probe = tcp_conn_open(c->tcp, fd, TCP_PROBING, false);
    if (r->probe == NULL) {
        ft_fd_close(&fd);
        return probe_failed(c);
    }
    r->probe->link = l;
    tcp_conn_want(r->probe, EPOLLOUT);
}

/* A connection that the peer has not taken ends when its process does. */
void tcp_probe_event(struct tcp_conn *p)
{
    struct tcp_link *l = p->link;
    int i = 0;
    while (l->conn[i]->remake.probe != p)
        i++;
    if (p->state == TCP_PROBED)
        return probe_failed(l->conn[i]);
    int status = ft_net_connected(p->fd);
    if (status == FT_AGAIN)
        return;
    if (status == FT_OK) {
        p->state = TCP_PROBED;
        tcp_conn_want(p, EPOLLIN);
    } else if (errno == ECONNREFUSED && l->knows_from && l->conn[i]->remake.address == 0) {
        tcp_link_down(l, ft_fail(FT_LINK, "nobody listens at the other side's address any more"));
    } else {
        probe_failed(l->conn[i]);
    }
}

/* ---- the turn -------------------------------------------------------------------------------- */

/* Returns false if there was nothing to do yet. */
static bool turn_conn(struct tcp_conn *c, uint64_t now_ns)
{
    const struct tcp_remake *r = &c->remake;
    const bool sender = c->link->base.sender,
               idle = sender ? c->state == TCP_SHUT : r->probe == NULL,
               late = !idle && now_ns >= r->try_end_ns;
    if (now_ns - r->broke_ns >= c->tcp->remake_ns)
        tcp_link_down(c->link, ft_fail(FT_LINK, "a connection was not made again within %llu ms",
                                       (unsigned long long)(c->tcp->remake_ns / MS)));
    else if (idle && now_ns >= r->retry_ns && sender)
        dial(c, now_ns);
    else if (idle && now_ns >= r->retry_ns && c->link->naddresses > 0)
        probe(c, now_ns);
    else if (late && sender)
        tcp_remake_failed(c, ft_fail(FT_TIMEOUT, "a peer did not answer in time"));
    else if (late && r->probe->state == TCP_PROBING)
        probe_failed(c);
    else
        return false;
    return true;
}

void tcp_remakes_turn(struct tcp *t, bool *moved)
{
    const uint64_t now_ns = tcp_now_ns(t);
    for (struct tcp_link *l = t->links; l != NULL && t->nbroken > 0; l = l->next)
        for (int i = 0; i < l->nconns && l->base.state == FT_LINK_UP; i++)
            if (l->conn[i]->remake.broke_ns != 0 && turn_conn(l->conn[i], now_ns))
                *moved = true;
}

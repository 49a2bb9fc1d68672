/*
 * The tcp transport: its turn and its operations. One epoll descriptor watches the listeners and
 * all connections. It is level triggered: a connection with unread bytes in the kernel stays
 * readable.
 */
#include "transport/tcp/tcp.h"

#include <errno.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>

#define EVENTS_A_TURN 32
/* Most turns without epoll, while it is known which connections will bring the next messages. */
#define TURNS_WITHOUT_EPOLL 16
#define READ_AT_ONCE 2 /* most of these connections that are read without asking epoll */
/* Busy turns for which credits that are due wait at most. */
#define CREDIT_TURNS 4
#define ACKNOWLEDGED_NS 1000000u /* until the next look, while somebody waits for that */
#define LOOK_TURNS 16   /* busy turns between two looks for acknowledgements that users wait for */
#define POLLS_A_LOOK 64 /* polls between two looks at the clock, for silence and stalls */
/* Turns of any kind for which other credits wait at most. They never wait while the engine
 * sleeps. */
#define KEEP_TURNS 256

const unsigned char tcp_can_resume[FT_NET_WIRE_BYTES] = "\0resumes\1"; /* TCP_CAN_SPREAD */

static void turn_epoll(struct tcp *t, bool *moved)
{
    struct epoll_event ev[EVENTS_A_TURN];
    const int n = epoll_wait(t->epoll_fd, ev, EVENTS_A_TURN, 0);

    /* The longer nothing comes from the other connections, the less often epoll is asked. */
    t->skipped = 0;
    t->skip = n > 0 ? 1 : (unsigned)ft_min(2 * t->skip, TURNS_WITHOUT_EPOLL);
    for (int i = 0; i < n; i++) {
        if (ev[i].data.ptr == &t->listener[0] || ev[i].data.ptr == &t->listener[1])
            tcp_accept(t, *(int *)ev[i].data.ptr, moved);
        else
            tcp_conn_event(ev[i].data.ptr, ev[i].events, moved);
    }
}

/* Returns credits. `all`: all of them. Otherwise those that are due, if the turn is `idle` or they
 * have waited long: so an answer leaves before them. */
static void return_credits(struct tcp *t, bool idle, bool all)
{
    for (struct tcp_link *l = t->links; l != NULL && t->ncredits > 0; l = l->next) {
        if (l->base.sender || l->base.state != FT_LINK_UP)
            continue;
        for (int i = 0; i < l->nconns; i++) {
            struct tcp_conn *c = l->conn[i];
            if (c->ncredits == 0 ||
                (!all && (!c->due || (!idle && ++c->credit_age < CREDIT_TURNS))))
                continue;
            int status = tcp_conn_return_credits(c);
            if (status != FT_OK)
                tcp_conn_failed(c, status);
            if (l->base.state != FT_LINK_UP)
                break;
        }
    }
}

static void reap(struct tcp *t)
{
    while (t->dead != NULL) {
        struct tcp_conn *c = t->dead;
        t->dead = c->next;
        tcp_conn_free(c);
    }
}

/* Reads the connections that are expected to bring the next messages, without asking epoll. */
static void read_awaited(struct tcp *t, bool *moved)
{
    /* An event may shorten the list: it may take its own connection off, or end other links. */
    for (unsigned i = t->nawaited; i-- > 0;)
        if (i < t->nawaited)
            tcp_conn_event(t->awaited[i], EPOLLIN, moved);
}

static void turn_credits(struct tcp *t, bool idle)
{
    if (t->ncredits == 0)
        return;
    const bool all = ++t->kept >= KEEP_TURNS;
    if (all)
        t->kept = 0;
    if (all || t->ndue > 0)
        return_credits(t, idle, all);
}

static void turn_deadlines(struct tcp *t, bool *moved)
{
    if (t->unknown == NULL && t->joined == NULL && t->nmaking == 0 && t->listening)
        return;
    const uint64_t now_ns = ft_now_ns(t->base.config.env);
    if (now_ns < t->tick_ns)
        return;
    t->tick_ns = now_ns + TCP_TICK_NS;
    tcp_check_deadlines(t, now_ns, moved);
}

static void turn_looks(struct tcp *t, bool *moved)
{
    if (++t->polls < POLLS_A_LOOK)
        return;
    t->polls = 0;
    const uint64_t now_ns = ft_now_ns(t->base.config.env);
    tcp_moves_turn(t, now_ns);
    tcp_paths_turn(t, now_ns);
    tcp_check_silence(t, now_ns, moved);
}

static int tcp_poll(struct ft_transport *transport, struct ft_event *events, int max, bool *busy)
{
    struct tcp *t = FT_CONTAINER(transport, struct tcp, base);
    bool moved = t->came;

    t->came = false;
    const bool known = t->nawaited > 0 && t->nawaited <= READ_AT_ONCE;
    if (known)
        read_awaited(t, &moved);
    if (!known || t->nclogged > 0 || ++t->skipped >= t->skip)
        turn_epoll(t, &moved);
    if (t->nbroken > 0)
        tcp_remakes_turn(t, &moved);
    if (t->nunsafe > 0 && (!moved || ++t->busy % LOOK_TURNS == 0))
        moved |= tcp_out_turn(t, false);
    turn_credits(t, !moved);
    turn_deadlines(t, &moved);
    turn_looks(t, &moved);
    if (t->nprobed > 0)
        tcp_probes_look(t);
    reap(t);
    const int n = t->news.first ? ft_news_take(&t->news, events, max) : 0;
    if (moved || n > 0)
        *busy = true;
    return n;
}

static void tcp_disconnect(struct ft_link *link)
{
    struct tcp_link *l = FT_CONTAINER(link, struct tcp_link, base);
    bool moved;

    /* close() with unread credits would reset the connection, and the goodbye would be lost. */
    for (int i = 0; i < l->nconns && l->base.sender; i++)
        if (l->base.state == FT_LINK_UP)
            (void)tcp_conn_read(l->conn[i], &moved);
    for (int i = 0; i < l->nconns && l->base.state == FT_LINK_UP && !l->base.cut; i++)
        tcp_conn_say_goodbye(l->conn[i]);
    tcp_link_free(l);
}

static void tcp_close(struct ft_transport *transport)
{
    struct tcp *t = FT_CONTAINER(transport, struct tcp, base);

    while (t->links != NULL)
        tcp_disconnect(&t->links->base);
    for (struct tcp_conn **list = &t->unknown; list != NULL;
         list = list == &t->unknown ? &t->joined : NULL)
        while (*list != NULL) {
            struct tcp_conn *c = *list;
            *list = c->next;
            tcp_conn_close(c);
            c->next = t->dead;
            t->dead = c;
        }
    reap(t);
    ft_fd_close(&t->listener[0]);
    ft_fd_close(&t->listener[1]);
    ft_fd_close(&t->epoll_fd);
    ft_rxq_set_close(&t->set);
    free(t);
}

/* Epoll does not watch it, so a peer that dials it would wait for an answer. */
static void drop_listener(struct tcp *t, int i, int family)
{
    ft_fd_close(&t->listener[i]);
    for (int k = 0; k < t->naddresses; k++)
        if (t->address[k].family == family)
            t->address[k].port = 0;
}

static int open_listeners(struct tcp *t)
{
    static const int families[2] = {AF_INET, AF_INET6};
    int status = FT_NOTSUP, kept = 0;

    for (int i = 0; i < 2; i++) {
        int rc = ft_net_listen(t->address, t->naddresses, families[i], 0, &t->listener[i]);
        struct epoll_event ev = {.events = EPOLLIN, .data.ptr = &t->listener[i]};
        if (rc == FT_OK && epoll_ctl(t->epoll_fd, EPOLL_CTL_ADD, t->listener[i], &ev) != 0) {
            rc = ft_fail(ft_status_of_errno(errno), "epoll does not take a listener: %s",
                         strerror(errno));
            drop_listener(t, i, families[i]);
        }
        if (rc == FT_OK)
            tcp_tune_listener(t, t->listener[i]);
        if (status != FT_OK && (rc != FT_NOTSUP || i == 0))
            status = rc;
    }
    for (int i = 0; i < t->naddresses; i++)
        if (t->address[i].port != 0)
            t->address[kept++] = t->address[i];
    t->naddresses = kept;
    t->listening = true;
    return status;
}

static void set_up(struct tcp *t, const struct ft_transport_config *config)
{
    t->base.ops = &ft_transport_tcp;
    t->base.config = *config;
    if (t->base.config.suspect_ms == 0)
        t->base.config.suspect_ms = (uint64_t)ft_param_int(FT_PARAM_SUSPECT_MS);
    t->base.look_ns = tcp_silence_look_ns(t);
    t->remake_ns = (uint64_t)ft_param_int(FT_PARAM_RECONNECT_MS) * 1000000;
    t->listener[0] = t->listener[1] = -1;
    t->skip = 1;
    ft_rxq_set_open(&t->set, config->chunk_bytes);
    t->set.pinned = config->pinned;
    t->set.env = config->env;
    if (config->first_bytes > config->chunk_bytes)
        t->set.first_bytes = config->first_bytes;
    t->set.first = TCP_PLACES_FIRST;
    t->set.places = TCP_PLACES;
    t->set.small_bytes = TCP_SMALL_BYTES;
    t->buffer_bytes = ft_round_up(ft_max(t->set.first_bytes, 1), 4096);
    config->env->random(config->env, &t->generation, sizeof(t->generation));
}

static int tcp_open(const struct ft_transport_config *config, struct ft_transport **out)
{
    struct tcp *t = calloc(1, sizeof(*t));
    if (t == NULL)
        return ft_fail(FT_NOMEM, "no memory for the tcp transport");
    set_up(t, config);
    t->epoll_fd = ft_fd_own(epoll_create1(EPOLL_CLOEXEC));
    int status = t->epoll_fd >= 0 ? FT_OK
                                  : ft_fail(ft_status_of_errno(errno),
                                            "cannot make an epoll descriptor: %s", strerror(errno));
    if (status == FT_OK)
        t->naddresses = status = ft_net_addresses(t->address, FT_NET_ADDRESSES);
    if (status > 0)
        status = open_listeners(t);
    if (status != FT_OK) {
        t->naddresses = 0;
        tcp_close(&t->base);
        return status;
    }
    *out = &t->base;
    return FT_OK;
}

static int tcp_address(struct ft_transport *transport, void *buf, size_t capacity_bytes)
{
    const struct tcp *t = FT_CONTAINER(transport, struct tcp, base);
    size_t len = 0;

    for (int i = 0; i < t->naddresses && len + FT_NET_WIRE_BYTES <= capacity_bytes;
         i++, len += FT_NET_WIRE_BYTES)
        ft_net_pack(&t->address[i], (unsigned char *)buf + len);
    if (len > 0 && t->remake_ns > 0 && len + FT_NET_WIRE_BYTES <= capacity_bytes) {
        memcpy((unsigned char *)buf + len, tcp_can_resume, sizeof(tcp_can_resume));
        len += FT_NET_WIRE_BYTES;
    }
    return len > 0 ? (int)len
                   : ft_fail(FT_INVAL, "no room for a tcp address in %zu bytes", capacity_bytes);
}

bool tcp_speaks(const struct tcp *t, int family)
{
    for (int i = 0; i < t->naddresses; i++)
        if (t->address[i].family == family)
            return true;
    return false;
}

static bool tcp_reaches(struct ft_transport *transport, const void *address, size_t len_bytes)
{
    const struct tcp *t = FT_CONTAINER(transport, struct tcp, base);
    const unsigned char *wire = address;
    struct ft_net_address a;

    for (size_t at = 0; at + FT_NET_WIRE_BYTES <= len_bytes; at += FT_NET_WIRE_BYTES) {
        if (ft_net_unpack(wire + at, &a) == FT_OK && tcp_speaks(t, a.family))
            return true;
    }
    return false;
}

static int tcp_bind(struct ft_transport *transport, uint64_t ctx)
{
    return ft_rxq_set_bind(&FT_CONTAINER(transport, struct tcp, base)->set, ctx);
}

static void tcp_unbind(struct ft_transport *transport, uint64_t ctx)
{
    ft_rxq_set_unbind(&FT_CONTAINER(transport, struct tcp, base)->set, ctx);
}

/* Finds the connection for a message, and takes its places in the window. NULL: *status says why
 * not. */
static struct tcp_conn *admit(struct tcp_link *l, const struct ft_header *h, int *status)
{
    *status = l->base.state == FT_LINK_UP     ? FT_OK
              : l->base.state == FT_LINK_DOWN ? FT_LINK
                                              : FT_AGAIN;
    if (*status != FT_OK)
        return NULL;
    if (h->len > ft_rxq_longest(&l->tcp->set, h->lane)) {
        *status = ft_fail(FT_INVAL, "a message of %u bytes is longer than a chunk", h->len);
        return NULL;
    }
    struct tcp_conn *c = tcp_spread_choose(l, h);
    if (!tcp_out_has_room(c))
        tcp_out_look(c);
    const unsigned places = h->lane < FT_LANES_ALL ? ft_rxq_cost(&l->tcp->set, h->lane, h->len) : 1;
    *status = tcp_out_has_room(c) && c->remake.broke_ns == 0
                  ? ft_txq_take_way(&l->txq, (unsigned)c->index, h->ctx, h->lane, places)
                  : FT_AGAIN;
    c->places += *status == FT_OK ? places : 0;
    ft_link_offered(&l->base, h, *status, l->tcp->base.config.env);
    if (*status == FT_AGAIN)
        tcp_link_await(l, h->lane);
    return *status == FT_OK ? c : NULL;
}

/* Gives back the places of a message that was not sent after all. */
static void give_back(struct tcp_conn *c, const struct ft_header *h)
{
    const unsigned places = ft_rxq_cost(&c->tcp->set, h->lane, h->len);
    c->places -= places;
    ft_txq_put_way(&c->link->txq, (unsigned)c->index, h->ctx, h->lane, places);
}

static int tcp_send(struct ft_link *link, const struct ft_header *h, const void *data,
                    struct ft_send *req)
{
    struct tcp_link *l = FT_CONTAINER(link, struct tcp_link, base);
    int status;
    struct tcp_conn *c = admit(l, h, &status);

    if (c == NULL)
        return status;
    status = tcp_out_send(c, h, data, req, -1);
    if (status != FT_OK) {
        give_back(c, h);
        tcp_link_down(l, status);
        return FT_LINK;
    }
    l->base.messages++;
    l->base.bytes += h->len;
    return FT_OK;
}

/* Frees the buffers whose bytes have been acknowledged. It is called while TCP_BUFFERS_IN_TURN or
 * more are in use, before another one is taken: those are in the cache. */
static void look_for_buffers(struct tcp_link *l)
{
    for (int i = 0; i < l->nconns && l->base.state == FT_LINK_UP; i++)
        tcp_out_look(l->conn[i]);
}

static int tcp_reserve(struct ft_link *link, const struct ft_header *h, void **slot)
{
    struct tcp_link *l = FT_CONTAINER(link, struct tcp_link, base);
    int status;

    if (l->resumable && __builtin_popcount(l->buffers_free) <= TCP_BUFFERS - TCP_BUFFERS_IN_TURN)
        look_for_buffers(l);
    if (l->base.state == FT_LINK_UP && l->buffers_free == 0)
        return FT_AGAIN;
    struct tcp_conn *c = admit(l, h, &status);
    if (c == NULL)
        return status;
    const int buffer = __builtin_ctz(l->buffers_free);
    l->buffers_free &= ~(1u << buffer);
    c->out_reserved++;
    l->reserved[buffer] = (struct ft_rxq_use){h->ctx, h->lane,
                                              (uint16_t)ft_rxq_cost(&l->tcp->set, h->lane, h->len)};
    l->reserved_on[buffer] = c;
    *slot = tcp_link_buffer(l, buffer, h->lane);
    ft_pages_use(&l->pages[buffer], h->len);
    return FT_OK;
}

static int number_of(const struct tcp_link *l, const void *slot)
{
    for (int i = 0; i < TCP_BUFFERS; i++)
        if (l->pinned[i] == slot)
            return i;
    return (int)((size_t)((const unsigned char *)slot - l->buffers) / l->tcp->buffer_bytes);
}

/* Ends a reservation. Returns the number of its buffer. */
static int unreserve(struct tcp_link *l, const void *slot)
{
    const int i = number_of(l, slot);
    l->reserved_on[i]->out_reserved--;
    l->reserved[i].places = 0;
    return i;
}

static void tcp_cancel(struct ft_link *link, const struct ft_header *h, void *slot)
{
    struct tcp_link *l = FT_CONTAINER(link, struct tcp_link, base);
    const int buffer = unreserve(l, slot);
    l->buffers_free |= 1u << buffer;
    give_back(l->reserved_on[buffer], h);
}

static void tcp_commit(struct ft_link *link, const struct ft_header *h, void *slot)
{
    struct tcp_link *l = FT_CONTAINER(link, struct tcp_link, base);

    if (l->base.state != FT_LINK_UP)
        return tcp_cancel(link, h, slot);
    const int buffer = unreserve(l, slot);
    int status = tcp_out_send(l->reserved_on[buffer], h, slot, NULL, buffer);
    if (status != FT_OK) {
        l->buffers_free |= 1u << buffer;
        tcp_link_down(l, status);
        return;
    }
    l->base.messages++;
    l->base.bytes += h->len;
}

/* A caller waits for a message of this channel, so its connection is read first. Control messages,
 * notices and puts are looked for on all connections. */
static int none_here(struct tcp_link *l, unsigned lane)
{
    if (l->base.state == FT_LINK_DOWN)
        return FT_LINK;
    if (l->base.state == FT_LINK_UP && lane <= FT_LANE_P2P)
        tcp_link_await(l, lane);
    return FT_AGAIN;
}

static int tcp_recv(struct ft_link *link, uint64_t ctx, unsigned lane, struct ft_msg *msg)
{
    struct tcp_link *l = FT_CONTAINER(link, struct tcp_link, base);
    int status = ft_rxq_recv(&l->rxq, ctx, lane, msg);
    return status == FT_AGAIN ? none_here(l, lane) : status;
}

static int tcp_peek(struct ft_link *link, uint64_t ctx, unsigned lane, struct ft_header *h)
{
    struct tcp_link *l = FT_CONTAINER(link, struct tcp_link, base);
    int status = ft_rxq_peek(&l->rxq, ctx, lane, h);
    return status == FT_AGAIN ? none_here(l, lane) : status;
}

static void tcp_expect(struct ft_link *link, const struct ft_header *h, void *to)
{
    ft_rxq_expect(&FT_CONTAINER(link, struct tcp_link, base)->rxq, h, to);
}

static void tcp_release(struct ft_link *link, struct ft_msg *msg)
{
    ft_rxq_release(&FT_CONTAINER(link, struct tcp_link, base)->rxq, msg);
}

static bool tcp_drained(struct ft_link *link)
{
    return FT_CONTAINER(link, struct tcp_link, base)->txq.outstanding == 0;
}

static bool tcp_flushed(struct ft_link *link)
{
    const struct tcp_link *l = FT_CONTAINER(link, struct tcp_link, base);
    for (int i = 0; i < l->nconns && l->base.state == FT_LINK_UP; i++)
        if (!tcp_out_flushed(l->conn[i]))
            return false;
    return true;
}

static int tcp_fd(struct ft_transport *transport)
{
    return FT_CONTAINER(transport, struct tcp, base)->epoll_fd;
}

/* A caller does. The kernel does not wake anybody for them. */
static bool waits_for_acknowledgements(const struct tcp *t)
{
    bool waits = t->nunsafe > 0;
    for (unsigned i = 0; i < t->nawaited && !waits; i++) {
        const struct tcp_conn *c = t->awaited[i];
        waits = c->link->base.sender && c->out_kept > 0 &&
                (!tcp_out_has_room(c) || c->link->buffers_free == 0);
    }
    return waits;
}

static bool tcp_arm(struct ft_transport *transport, bool on)
{
    struct tcp *t = FT_CONTAINER(transport, struct tcp, base);
    if (!on) {
        t->polls = POLLS_A_LOOK;
        t->skip = 1; /* the next turn looks at all connections */
        return true;
    }
    t->base.look_ns = ft_min(tcp_silence_look_ns(t),
                             ft_min(tcp_moves_look_ns(t), tcp_paths_look_ns(t)));
    if (t->nbroken > 0)
        t->base.look_ns = ft_min(t->base.look_ns, TCP_TICK_NS);
    if (waits_for_acknowledgements(t))
        t->base.look_ns = ft_min(t->base.look_ns, ACKNOWLEDGED_NS);
    return_credits(t, true, true);
    bool kept = false;
    if (t->nbroken > 0)
        tcp_remakes_turn(t, &kept);
    while (t->nunsafe > 0 && tcp_out_turn(t, true))
        kept = true;
    /* callers that still wait will say so again */
    while (t->nawaited > 0)
        t->awaited[--t->nawaited]->awaited = false;
    return t->news.first == NULL && !kept && !t->came;
}

static void tcp_trim(struct ft_transport *transport)
{
    for (struct tcp_link *l = FT_CONTAINER(transport, struct tcp, base)->links; l != NULL;
         l = l->next)
        tcp_link_trim(l);
}

const struct ft_transport_ops ft_transport_tcp = {
    .name = "tcp",
    .nccl_name = "Socket",
    .caps = {.scope = FT_SCOPE_NETWORK},
    .open = tcp_open,
    .close = tcp_close,
    .address = tcp_address,
    .reaches = tcp_reaches,
    .connect = tcp_link_connect,
    .disconnect = tcp_disconnect,
    .bind = tcp_bind,
    .unbind = tcp_unbind,
    .send = tcp_send,
    .reserve = tcp_reserve,
    .commit = tcp_commit,
    .cancel = tcp_cancel,
    .recv = tcp_recv,
    .expect = tcp_expect,
    .peek = tcp_peek,
    .release = tcp_release,
    .post = tcp_post,
    .look = tcp_look,
    .took = tcp_took,
    .drained = tcp_drained,
    .flushed = tcp_flushed,
    .measure = tcp_measure,
    .connections = tcp_connections,
    .peer_at = tcp_link_peer_at,
    .poll = tcp_poll,
    .fd = tcp_fd,
    .arm = tcp_arm,
    .trim = tcp_trim,
};

/*
 * The simulated world. Order is kept only within a channel: a later message never arrives before an
 * earlier one of the same link and lane.
 */
#include "sim/sim.h"

#include "transport/rxq.h"

#include <stdlib.h>
#include <string.h>

enum what { DELIVER, CREDIT, ACCEPT, UP, DOWN };

struct sim_link {
    struct ft_link base;
    struct sim_link *next, *other; /* of its transport; the other end */
    struct ft_rxq rxq;
    struct ft_txq txq;
    uint64_t last_ns[FT_LANES_ALL];
    /* neither committed nor cancelled; the payload follows */
    struct sim_slot {
        struct sim_slot *next;
    } * reserved;
    bool gone; /* disconnected by its engine; freed when no event refers to it */
    int refs;
};

struct sim_transport {
    struct ft_transport base;
    struct sim_transport *next;
    struct ft_rxq_set set;
    struct sim_link *links;
    bool dead, parted;
};

struct sim_event {
    struct sim_event *next;
    uint64_t at_ns;
    enum what what;
    struct sim_transport *to;
    struct sim_link *link; /* of `to` */
    struct ft_header header;
    const void *data; /* payload: a copy, or the user's buffer while req is pending */
    void *copy;
    struct ft_send *req;
    int reason;
    bool orderly, proof;
};

static struct sim_world *world;

/* ---- clock and chance ------------------------------------------------------------------------ */

static uint64_t next_random(struct sim_world *w)
{
    w->rng ^= w->rng << 13; /* xorshift64, Marsaglia 2003 */
    w->rng ^= w->rng >> 7;
    w->rng ^= w->rng << 17;
    return w->rng;
}

uint64_t sim_random(struct sim_world *w, uint64_t below)
{
    return below ? (next_random(w) >> 11) % below : 0;
}

static uint64_t sim_now(struct ft_env *env)
{
    return ((struct sim_world *)env->ctx)->now_ns;
}

static void sim_bytes(struct ft_env *env, void *buf, size_t len_bytes)
{
    for (size_t i = 0; i < len_bytes; i++)
        ((unsigned char *)buf)[i] = (unsigned char)next_random(env->ctx);
}

void sim_start(struct sim_world *w, uint64_t seed)
{
    memset(w, 0, sizeof *w);
    w->env = (struct ft_env){sim_now, sim_bytes, w};
    w->rng = ft_hash64(&seed, sizeof seed, 1) | 1;
    w->now_ns = 1000000000;
    w->delay_ns = 20000;
    world = w;
}

uint64_t sim_next(const struct sim_world *w)
{
    const struct sim_event *event = w->events;
    while (event && event->to->dead)
        event = event->next;
    return event ? event->at_ns : UINT64_MAX;
}

/* ---- events ---------------------------------------------------------------------------------- */

static void unref(struct sim_link *link)
{
    if (--link->refs > 0)
        return;
    free(link);
}

static struct sim_event *schedule(enum what what, struct sim_link *link, uint64_t at_ns)
{
    struct sim_event *event = calloc(1, sizeof *event);
    if (!event)
        abort();
    event->what = what;
    event->link = link;
    event->to = (struct sim_transport *)link->base.transport;
    event->at_ns = at_ns;
    link->refs++;
    struct sim_event **at = &world->events;
    while (*at && (*at)->at_ns <= at_ns)
        at = &(*at)->next;
    event->next = *at;
    *at = event;
    return event;
}

static void finish(struct sim_event *event, int status)
{
    if (event->req)
        event->req->status = status;
    if (event->copy)
        world->frames--;
    free(event->copy);
    unref(event->link);
    free(event);
}

static uint64_t delay(void)
{
    return world->now_ns + 100 + sim_random(world, world->delay_ns);
}

/* ---- links ----------------------------------------------------------------------------------- */

static void consumed(struct ft_rxq *rxq, struct ft_rxq_node *node)
{
    struct sim_link *rx = FT_CONTAINER(rxq, struct sim_link, rxq);
    if (!rx->other || rx->other->gone)
        return;
    struct sim_event *event = schedule(CREDIT, rx->other, delay());
    event->header = node->header;
}

static struct sim_link *new_link(struct sim_transport *t, uint64_t peer, bool sender)
{
    struct sim_link *link = calloc(1, sizeof *link);
    if (!link)
        abort();
    link->base = (struct ft_link){.ops = t->base.ops,
                                  .transport = &t->base,
                                  .peer = peer,
                                  .sender = sender,
                                  .state = FT_LINK_CONNECTING};
    link->refs = 1;
    if (sender)
        ft_txq_open(&link->txq, &t->set);
    else
        ft_rxq_open(&link->rxq, &t->set, consumed);
    link->next = t->links;
    t->links = link;
    return link;
}

static void lose_frames(struct sim_link *tx)
{
    for (struct sim_event **at = &world->events; *at;) {
        struct sim_event *event = *at;
        bool lost = event->what == DELIVER && tx->other && event->link == tx->other;
        if (!lost) {
            at = &event->next;
            continue;
        }
        *at = event->next;
        finish(event, FT_LINK);
    }
}

static void break_link(struct sim_link *tx, bool orderly, bool proof)
{
    if (!orderly)
        lose_frames(tx);
    if (!tx->gone && tx->base.state != FT_LINK_DOWN) {
        struct sim_event *event = schedule(DOWN, tx, world->now_ns);
        event->reason = FT_LINK;
        event->proof = proof;
    }
    if (!tx->other || tx->other->gone || tx->other->base.state == FT_LINK_DOWN)
        return;
    uint64_t at = world->now_ns;
    for (int i = 0; orderly && i < FT_LANES_ALL; i++)
        if (tx->last_ns[i] > at)
            at = tx->last_ns[i];
    if (!orderly && world->late_down_ns)
        at += sim_random(world, world->late_down_ns);
    struct sim_event *event = schedule(DOWN, tx->other, at + 1);
    event->reason = FT_LINK;
    event->orderly = orderly;
    event->proof = proof;
}

bool sim_cut(struct sim_world *w, uint64_t from, uint64_t to)
{
    for (struct sim_transport *t = w->transports; t; t = t->next)
        for (struct sim_link *link = t->links; link; link = link->next)
            if (link->base.sender && t->base.config.self == from && link->base.peer == to &&
                link->base.state == FT_LINK_UP) {
                break_link(link, false, false);
                return true;
            }
    return false;
}

void sim_kill(struct sim_world *w, uint64_t engine)
{
    for (struct sim_transport *t = w->transports; t; t = t->next) {
        if (t->base.config.self == engine)
            t->dead = true;
        for (struct sim_link *link = t->links; link; link = link->next)
            if (link->base.sender && (t->base.config.self == engine || link->base.peer == engine))
                break_link(link, false, w->proof);
    }
}

void sim_part(struct sim_world *w, uint64_t engine)
{
    for (struct sim_transport *t = w->transports; t; t = t->next) {
        if (t->base.config.self == engine)
            t->parted = true;
        for (struct sim_link *link = t->links; link; link = link->next)
            if (link->base.sender && (t->base.config.self == engine || link->base.peer == engine))
                break_link(link, false, false);
    }
}

/* ---- the transport's functions --------------------------------------------------------------- */

static int sim_open(const struct ft_transport_config *config, struct ft_transport **out)
{
    struct sim_transport *t = calloc(1, sizeof *t);
    if (!t)
        return FT_NOMEM;
    t->base.ops = &sim_transport_ops;
    t->base.config = *config;
    ft_rxq_set_open(&t->set, config->chunk_bytes);
    t->next = world->transports;
    world->transports = t;
    *out = &t->base;
    return FT_OK;
}

static void sim_disconnect(struct ft_link *base)
{
    struct sim_link *link = (struct sim_link *)base;
    struct sim_transport *t = (struct sim_transport *)base->transport;
    struct sim_link **at = &t->links;
    while (*at != link)
        at = &(*at)->next;
    *at = link->next;
    link->gone = true;
    if (base->sender) {
        /* the user's buffers may go away now */
        for (struct sim_event *e = world->events; e; e = e->next)
            if (e->what == DELIVER && link->other && e->link == link->other && e->req) {
                e->copy = malloc(e->header.len + 1u);
                memcpy(e->copy, e->data, e->header.len);
                world->frames++;
                e->data = e->copy;
                e->req->status = FT_LINK;
                e->req = NULL;
            }
        for (struct sim_slot *slot = link->reserved, *next; slot; slot = next) {
            next = slot->next;
            free(slot);
            world->frames--;
        }
        break_link(link, base->state == FT_LINK_UP && !base->cut, false);
        ft_txq_close(&link->txq);
    } else {
        if (link->other && !link->other->gone && link->other->base.state != FT_LINK_DOWN) {
            struct sim_event *event = schedule(DOWN, link->other, delay());
            event->reason = FT_LINK;
            event->orderly = !base->cut;
        }
        ft_rxq_close(&link->rxq);
    }
    if (link->other)
        link->other->other = NULL;
    link->other = NULL;
    unref(link);
}

static void sim_close(struct ft_transport *base)
{
    struct sim_transport *t = (struct sim_transport *)base;
    while (t->links)
        sim_disconnect(&t->links->base);
    ft_rxq_set_close(&t->set);
    for (struct sim_event **at = &world->events; *at;) {
        struct sim_event *event = *at;
        if (event->to != t) {
            at = &event->next;
            continue;
        }
        *at = event->next;
        finish(event, FT_LINK);
    }
    struct sim_transport **at = &world->transports;
    while (*at != t)
        at = &(*at)->next;
    *at = t->next;
    free(t);
}

static int sim_address(struct ft_transport *t, void *buf, size_t capacity)
{
    if (capacity < sizeof t->config.self)
        return FT_INVAL;
    memcpy(buf, &t->config.self, sizeof t->config.self);
    return (int)sizeof t->config.self;
}

static bool sim_reaches(struct ft_transport *t, const void *address, size_t len)
{
    (void)t;
    (void)address;
    return len == sizeof(uint64_t);
}

static int sim_connect(struct ft_transport *base, uint64_t peer, const void *address, size_t len,
                       struct ft_link **out)
{
    (void)address;
    (void)len;
    struct sim_link *link = new_link((struct sim_transport *)base, peer, true);
    schedule(ACCEPT, link, delay());
    *out = &link->base;
    return FT_OK;
}

static int sim_bind(struct ft_transport *base, uint64_t ctx)
{
    return ft_rxq_set_bind(&((struct sim_transport *)base)->set, ctx);
}
static void sim_unbind(struct ft_transport *base, uint64_t ctx)
{
    ft_rxq_set_unbind(&((struct sim_transport *)base)->set, ctx);
}

static int admit(struct sim_link *link, const struct ft_header *header)
{
    if (link->base.state == FT_LINK_CONNECTING)
        return FT_AGAIN;
    if (link->base.state == FT_LINK_DOWN || !link->other)
        return FT_LINK;
    return ft_txq_take(&link->txq, header->ctx, header->lane);
}

static struct sim_event *dispatch(struct sim_link *link, const struct ft_header *header,
                                  const void *data)
{
    uint64_t at = delay(), *last = &link->last_ns[header->lane];
    if (at <= *last)
        at = *last + 1;
    *last = at;
    struct sim_event *event = schedule(DELIVER, link->other, at);
    event->header = *header;
    event->data = data;
    link->base.messages++;
    link->base.bytes += header->len;
    return event;
}

static void *copied(const void *data, size_t len)
{
    void *copy = malloc(len + 1);
    if (!copy)
        abort();
    if (len)
        memcpy(copy, data, len);
    world->frames++;
    return copy;
}

static int sim_send(struct ft_link *base, const struct ft_header *header, const void *data,
                    struct ft_send *req)
{
    struct sim_link *link = (struct sim_link *)base;
    int rc = admit(link, header);
    if (rc != FT_OK)
        return rc;
    struct sim_event *event = dispatch(link, header, data);
    if (world->late_copy && sim_random(world, 2)) {
        event->req = req;
        req->status = FT_AGAIN;
    } else {
        event->data = event->copy = copied(data, header->len);
        req->status = FT_OK;
    }
    return FT_OK;
}

static int sim_reserve(struct ft_link *base, const struct ft_header *header, void **slot)
{
    struct sim_link *link = (struct sim_link *)base;
    int rc = admit(link, header);
    if (rc != FT_OK)
        return rc;
    struct sim_slot *made = malloc(sizeof *made + header->len);
    if (!made)
        abort();
    made->next = link->reserved;
    link->reserved = made;
    world->frames++;
    *slot = made + 1;
    return FT_OK;
}

static struct sim_slot *take_reserved(struct sim_link *link, void *slot)
{
    struct sim_slot **at = &link->reserved, *found;
    while (*at && *at != (struct sim_slot *)slot - 1)
        at = &(*at)->next;
    if (!(found = *at))
        abort(); /* the engine gave back what is not its own */
    *at = found->next;
    return found;
}

static void sim_cancel(struct ft_link *base, const struct ft_header *header, void *slot)
{
    struct sim_link *link = (struct sim_link *)base;
    ft_txq_put(&link->txq, header->ctx, header->lane);
    free(take_reserved(link, slot));
    world->frames--;
}

static void sim_commit(struct ft_link *base, const struct ft_header *header, void *slot)
{
    struct sim_link *link = (struct sim_link *)base;
    if (base->state == FT_LINK_DOWN || !link->other) {
        sim_cancel(base, header, slot);
        return;
    }
    struct sim_event *event = dispatch(link, header, slot);
    event->copy = take_reserved(link, slot);
}

static int sim_recv(struct ft_link *base, uint64_t ctx, unsigned lane, struct ft_msg *msg)
{
    int rc = ft_rxq_recv(&((struct sim_link *)base)->rxq, ctx, lane, msg);
    return rc == FT_AGAIN && base->state == FT_LINK_DOWN ? FT_LINK : rc;
}

static int sim_peek(struct ft_link *base, uint64_t ctx, unsigned lane, struct ft_header *header)
{
    return ft_rxq_peek(&((struct sim_link *)base)->rxq, ctx, lane, header);
}

static void sim_release(struct ft_link *base, struct ft_msg *msg)
{
    ft_rxq_release(&((struct sim_link *)base)->rxq, msg);
}

static int sim_post(struct ft_link *base, const struct ft_header *header, const void *data)
{
    struct sim_link *link = (struct sim_link *)base;
    int rc = admit(link, header);
    if (rc != FT_OK)
        return rc;
    struct sim_event *event = dispatch(link, header, NULL);
    event->data = event->copy = copied(data, header->len);
    return FT_OK;
}

static const void *sim_look(struct ft_link *base, const struct ft_header *want)
{
    struct sim_link *link = (struct sim_link *)base;
    const struct ft_rxq_node *node = ft_rxq_first(&link->rxq, want->ctx, want->lane);
    bool wanted = node && base->state == FT_LINK_UP && node->header.sig == want->sig &&
                  node->header.seq == want->seq && node->header.len == want->len;
    return wanted ? node->data : NULL;
}

static void sim_took(struct ft_link *base, const struct ft_header *header)
{
    struct ft_msg msg;
    if (sim_recv(base, header->ctx, header->lane, &msg) == FT_OK)
        sim_release(base, &msg);
}

static bool sim_drained(struct ft_link *base)
{
    return ((struct sim_link *)base)->txq.outstanding == 0;
}

/* ---- delivery -------------------------------------------------------------------------------- */

static void deliver(struct sim_event *event)
{
    struct sim_link *rx = event->link;
    struct ft_rxq_node *node;
    if (rx->gone)
        return;
    /* a window overrun would be our own mistake */
    if (ft_rxq_admit(&rx->rxq, &event->header, &node) != FT_OK)
        abort();
    uint64_t head[2] = {ft_hash64(&event->header, sizeof event->header, world->trace),
                        ft_hash64(event->data, event->header.len, 3)};
    world->trace = ft_hash64(head, sizeof head, world->now_ns);
    world->delivered++;
    if (!node) {
        event->to->base.dropped++;
        if (rx->other)
            schedule(CREDIT, rx->other, delay())->header = event->header;
        return;
    }
    if (event->header.len)
        memcpy(node->landing, event->data, event->header.len);
    if (world->flip && world->delivered >= world->flip && event->header.len) {
        node->landing[event->header.len / 2] ^= 8;
        world->flip = 0;
    }
    node->data = node->landing;
    rx->base.messages++;
    rx->base.bytes += event->header.len;
    ft_rxq_ready(&rx->rxq, node);
}

static struct sim_transport *find(uint64_t engine)
{
    struct sim_transport *t = world->transports;
    while (t && t->base.config.self != engine)
        t = t->next;
    return t && !t->dead ? t : NULL;
}

/* ACCEPT runs at the connector's side of the event list: it makes the other end. */
static int accept_link(struct sim_event *event, struct ft_event *out)
{
    struct sim_link *tx = event->link;
    struct sim_transport *peer = find(tx->base.peer);
    if (tx->gone)
        return 0;
    if (!peer || peer->parted || event->to->parted) {
        tx->base.state = FT_LINK_DOWN;
        tx->base.reason = FT_LINK;
        *out = (struct ft_event){FT_EVENT_DOWN, &tx->base};
        return 1;
    }
    struct sim_link *rx = new_link(peer, event->to->base.config.self, false);
    rx->other = tx;
    tx->other = rx;
    schedule(UP, rx, world->now_ns);
    schedule(UP, tx, delay());
    return 0;
}

static int take(struct sim_event *event, struct ft_event *out)
{
    struct sim_link *link = event->link;
    switch (event->what) {
    case DELIVER:
        deliver(event);
        return 0;
    case CREDIT:
        if (!link->gone)
            ft_txq_put(&link->txq, event->header.ctx, event->header.lane);
        return 0;
    case ACCEPT:
        return accept_link(event, out);
    case UP:
        if (link->gone || link->base.state != FT_LINK_CONNECTING)
            return 0;
        link->base.state = FT_LINK_UP;
        *out = (struct ft_event){link->base.sender ? FT_EVENT_UP : FT_EVENT_ACCEPTED, &link->base};
        return 1;
    default:
        if (link->gone || link->base.state == FT_LINK_DOWN)
            return 0;
        link->base.state = FT_LINK_DOWN;
        link->base.reason = event->reason;
        link->base.orderly = event->orderly;
        link->base.proof = event->proof;
        *out = (struct ft_event){FT_EVENT_DOWN, &link->base};
        return 1;
    }
}

static int sim_poll(struct ft_transport *base, struct ft_event *events, int max, bool *busy)
{
    struct sim_transport *t = (struct sim_transport *)base;
    int n = 0;
    for (struct sim_event **at = &world->events; *at && (*at)->at_ns <= world->now_ns && n < max;) {
        struct sim_event *event = *at;
        if (event->to != t) {
            at = &event->next;
            continue;
        }
        *at = event->next;
        n += take(event, &events[n]);
        finish(event, FT_OK);
        *busy = true;
        at = &world->events; /* taking may have scheduled */
    }
    return n;
}

static int sim_fd(struct ft_transport *t)
{
    (void)t;
    return -1;
}

static bool sim_arm(struct ft_transport *t, bool on)
{
    (void)t;
    return on;
}

static void sim_trim(struct ft_transport *t)
{
    (void)t;
}

const struct ft_transport_ops sim_transport_ops = {
    .name = "sim",
    .caps = {.scope = FT_SCOPE_HOST, .pulls = true},
    .open = sim_open,
    .close = sim_close,
    .address = sim_address,
    .reaches = sim_reaches,
    .connect = sim_connect,
    .disconnect = sim_disconnect,
    .bind = sim_bind,
    .unbind = sim_unbind,
    .send = sim_send,
    .reserve = sim_reserve,
    .commit = sim_commit,
    .cancel = sim_cancel,
    .recv = sim_recv,
    .peek = sim_peek,
    .release = sim_release,
    .post = sim_post,
    .look = sim_look,
    .took = sim_took,
    .drained = sim_drained,
    .poll = sim_poll,
    .fd = sim_fd,
    .arm = sim_arm,
    .trim = sim_trim,
};

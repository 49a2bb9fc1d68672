/*
 * The world of fuzz_control.c: the input, a clock that advances whenever it is read, and a
 * transport whose other end is the input. What the engine sends is dropped. The target puts what
 * the engine receives into the links.
 */
#ifndef FT_FUZZ_WIRE_H
#define FT_FUZZ_WIRE_H

#include "core/core.h"
#include "transport/rxq.h"

#include <stdlib.h>
#include <string.h>

#define CHUNK_BYTES 4096
#define EVENTS_MAX 64
#define TICK_NS 50000 /* ns by which the clock advances when it is read */

void wire_step(void); /* Given by the target; called once per poll while there is input. */
/* Given by the target; called for each control message that the engine sends. */
void wire_sent(const unsigned char *bytes, size_t len);

static void must(bool truth, const char *what)
{
    if (truth)
        return;
    fprintf(stderr, "fuzz_control: %s\n", what);
    abort();
}

/* ---- the input, time and chance -------------------------------------------------------------- */

static struct {
    const uint8_t *data;
    size_t left;
} in;
static uint64_t now, drawn;

static unsigned next(void)
{
    return in.left > 0 ? (in.left--, (unsigned)*in.data++) : 0;
}

static uint64_t time_ns(struct ft_env *e)
{
    (void)e;
    return now += in.left > 0 ? TICK_NS : 20 * TICK_NS;
}

static void draw(struct ft_env *e, void *buf, size_t len)
{
    (void)e;
    for (size_t i = 0; i < len; i++)
        ((unsigned char *)buf)[i] = (unsigned char)(++drawn * 0x9e3779b97f4a7c15u >> 56);
}

static struct ft_env env = {time_ns, draw, NULL};

static size_t fill(void *out, size_t most)
{
    size_t len = ft_min(next() * 3u, most);
    for (size_t i = 0; i < len; i++)
        ((unsigned char *)out)[i] = (unsigned char)next();
    return len;
}

/* ---- the transport --------------------------------------------------------------------------- */

struct slot {
    struct slot *next;
    _Alignas(16) unsigned char bytes[];
};

struct pipe {
    struct ft_link base;
    struct pipe *next;
    struct ft_rxq rxq;
    struct ft_txq txq;
    struct slot *reserved;
    bool passing; /* it goes down after the engine has accepted it */
};

static const struct ft_transport_ops wire_ops;

static struct wire {
    struct ft_transport base;
    struct ft_rxq_set set;
    struct pipe *pipes;
    struct ft_event events[EVENTS_MAX];
    int nevents;
} * wire;

static void consumed(struct ft_rxq *q, struct ft_rxq_node *node)
{
    (void)q;
    (void)node;
}

static struct pipe *new_pipe(uint64_t peer, bool sender)
{
    struct pipe *p = calloc(1, sizeof *p);
    must(p != NULL, "no memory");
    p->base = (struct ft_link){.ops = wire->base.ops,
                               .transport = &wire->base,
                               .peer = peer,
                               .sender = sender,
                               .state = FT_LINK_CONNECTING};
    must((sender ? ft_txq_open(&p->txq, &wire->set) : ft_rxq_open(&p->rxq, &wire->set, consumed)) ==
             FT_OK,
         "no memory");
    p->next = wire->pipes;
    return wire->pipes = p;
}

static void tell(struct pipe *p, int what)
{
    if (wire->nevents < EVENTS_MAX)
        wire->events[wire->nevents++] = (struct ft_event){what, &p->base};
}

static int wire_open(const struct ft_transport_config *config, struct ft_transport **out)
{
    wire = calloc(1, sizeof *wire);
    must(wire != NULL, "no memory");
    wire->base.ops = &wire_ops;
    wire->base.config = *config;
    ft_rxq_set_open(&wire->set, config->chunk_bytes);
    *out = &wire->base;
    return FT_OK;
}

static void wire_disconnect(struct ft_link *link)
{
    struct pipe *p = (struct pipe *)link, **at = &wire->pipes;
    while (*at && *at != p)
        at = &(*at)->next;
    must(*at != NULL, "a link that is none was closed");
    *at = p->next;
    for (int i = 0; i < wire->nevents; i++)
        if (wire->events[i].link == link)
            wire->events[i--] = wire->events[--wire->nevents];
    for (struct slot *slot = p->reserved, *after; slot; slot = after) {
        after = slot->next;
        free(slot);
    }
    if (link->sender)
        ft_txq_close(&p->txq);
    else
        ft_rxq_close(&p->rxq);
    free(p);
}

static void wire_close(struct ft_transport *t)
{
    while (wire->pipes)
        wire_disconnect(&wire->pipes->base);
    ft_rxq_set_close(&wire->set);
    free(t);
    wire = NULL;
}

static int wire_address(struct ft_transport *t, void *buf, size_t capacity)
{
    must(capacity >= sizeof t->config.self, "no room for an address");
    memcpy(buf, &t->config.self, sizeof t->config.self);
    return (int)sizeof t->config.self;
}

static bool wire_reaches(struct ft_transport *t, const void *address, size_t len)
{
    (void)t;
    (void)address;
    return len == sizeof(uint64_t);
}

static int wire_connect(struct ft_transport *t, uint64_t peer, const void *address, size_t len,
                        struct ft_link **out)
{
    (void)address;
    (void)len;
    must(peer != t->config.self, "a link to itself");
    if (next() % 32 == 1)
        return FT_LINK;
    struct pipe *p = new_pipe(peer, true);
    p->base.state = FT_LINK_UP;
    tell(p, FT_EVENT_UP);
    *out = &p->base;
    return FT_OK;
}

static int wire_bind(struct ft_transport *t, uint64_t ctx)
{
    return ft_rxq_set_bind(&((struct wire *)t)->set, ctx);
}
static void wire_unbind(struct ft_transport *t, uint64_t ctx)
{
    ft_rxq_set_unbind(&((struct wire *)t)->set, ctx);
}

static int admit(struct pipe *p, const struct ft_header *header)
{
    if (p->base.state != FT_LINK_UP)
        return p->base.state == FT_LINK_DOWN ? FT_LINK : FT_AGAIN;
    return ft_txq_take(&p->txq, header->ctx, header->lane);
}

static int wire_send(struct ft_link *link, const struct ft_header *header, const void *data,
                     struct ft_send *req)
{
    int rc = admit((struct pipe *)link, header);
    (void)data;
    if (rc != FT_OK)
        return rc;
    ft_txq_put(&((struct pipe *)link)->txq, header->ctx, header->lane);
    req->status = FT_OK;
    return FT_OK;
}

static int wire_reserve(struct ft_link *link, const struct ft_header *header, void **out)
{
    struct pipe *p = (struct pipe *)link;
    int rc = admit(p, header);
    if (rc != FT_OK)
        return rc;
    struct slot *slot = malloc(sizeof *slot + header->len);
    must(slot != NULL, "no memory");
    slot->next = p->reserved;
    p->reserved = slot;
    *out = slot->bytes;
    return FT_OK;
}

static void wire_cancel(struct ft_link *link, const struct ft_header *header, void *bytes)
{
    struct pipe *p = (struct pipe *)link;
    struct slot **at = &p->reserved, *found;
    while (*at && (*at)->bytes != bytes)
        at = &(*at)->next;
    must((found = *at) != NULL, "a slot that is none was given back");
    *at = found->next;
    free(found);
    ft_txq_put(&p->txq, header->ctx, header->lane);
}

static void wire_commit(struct ft_link *link, const struct ft_header *header, void *bytes)
{
    if (header->ctx == FT_CTX_ENGINE)
        wire_sent(bytes, header->len);
    wire_cancel(link, header, bytes);
}

static int wire_recv(struct ft_link *link, uint64_t ctx, unsigned lane, struct ft_msg *msg)
{
    int rc = ft_rxq_recv(&((struct pipe *)link)->rxq, ctx, lane, msg);
    return rc == FT_AGAIN && link->state == FT_LINK_DOWN ? FT_LINK : rc;
}

static int wire_peek(struct ft_link *link, uint64_t ctx, unsigned lane, struct ft_header *header)
{
    return ft_rxq_peek(&((struct pipe *)link)->rxq, ctx, lane, header);
}

static void wire_release(struct ft_link *link, struct ft_msg *msg)
{
    ft_rxq_release(&((struct pipe *)link)->rxq, msg);
}
static bool wire_drained(struct ft_link *link)
{
    return (void)link, true;
}

static int wire_poll(struct ft_transport *t, struct ft_event *events, int max, bool *busy)
{
    int n = 0;
    (void)t;
    if (in.left > 0)
        wire_step();
    for (; n < max && n < wire->nevents; n++)
        events[n] = wire->events[n];
    memmove(wire->events, wire->events + n, (size_t)(wire->nevents - n) * sizeof *wire->events);
    wire->nevents -= n;
    for (int i = 0; i < n; i++) {
        struct pipe *p = (struct pipe *)events[i].link;
        if (!p->passing)
            continue;
        p->passing = false;
        p->base.state = FT_LINK_DOWN;
        p->base.reason = FT_LINK;
        tell(p, FT_EVENT_DOWN);
    }
    *busy |= n > 0;
    return n;
}

static int wire_fd(struct ft_transport *t)
{
    return (void)t, -1;
}
static bool wire_arm(struct ft_transport *t, bool on)
{
    return (void)t, on;
}

static void wire_trim(struct ft_transport *t)
{
    (void)t;
}

static const struct ft_transport_ops wire_ops = {
    .name = "wire",
    .caps = {.scope = FT_SCOPE_HOST, .pulls = true},
    .open = wire_open,
    .close = wire_close,
    .address = wire_address,
    .reaches = wire_reaches,
    .connect = wire_connect,
    .disconnect = wire_disconnect,
    .bind = wire_bind,
    .unbind = wire_unbind,
    .send = wire_send,
    .reserve = wire_reserve,
    .commit = wire_commit,
    .cancel = wire_cancel,
    .recv = wire_recv,
    .peek = wire_peek,
    .release = wire_release,
    .drained = wire_drained,
    .poll = wire_poll,
    .fd = wire_fd,
    .arm = wire_arm,
    .trim = wire_trim,
};

#endif

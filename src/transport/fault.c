/*
 * fault: a transport that wraps another one, and makes its links slow, lossy or short-lived, as
 * FTCCL_FAULT says. It keeps the contract of transport.h: everything it does could also happen to
 * the inner transport.
 *
 * Each random draw is a function of the seed, the two engines and the number of the message on its
 * link. So a run with the same text and the same traffic does the same. From the draws the
 * receiving side also knows where the sending side cuts a link, and reports a loss although the
 * inner transport said goodbye. Therefore FTCCL_FAULT must be the same on both sides.
 *
 * Delays happen where messages are received: after each message, the next one of the link is held
 * back for a while.
 */
#include "transport/transport.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

/* name, default, what it does */
#define FAULTS(X)                                                                                 \
    X(seed, 1)      /* of the draws */                                                            \
    X(delay_us, 0)  /* most that a message is kept back behind the one before */                  \
    X(stall_ppm, 0) /* messages in a million that are kept back for stall_us */                   \
    X(stall_us, 100000)                                                                           \
    /* messages in a million that are lost: the link hangs for break_us and is down then */       \
    X(drop_ppm, 0)                                                                                \
    X(break_us, 100000)                                                                           \
    X(cut_after, 0)          /* messages after which a link is down at once; 0: never */          \
    X(refuse_ppm, 0)         /* connections in a million that are refused */                      \
    X(flip_ppm, 0)           /* messages in a million that have a bit of their payload changed */ \
    X(flip_after, 0)         /* messages after which the next with a payload has; 0: none */      \
    X(flip_rank, UINT64_MAX) /* the one rank whose messages flips change; else everybody's */

struct faults {
#define X(name, def) uint64_t name;
    FAULTS(X)
#undef X
};

struct fault {
    struct ft_transport base;           /* must be the first field */
    const struct ft_transport_ops *ops; /* of the inner transport */
    struct ft_transport *inner;
    struct faults faults;
    struct fault_link *links;
    uint64_t connects;
};

struct fault_link {
    struct ft_link base; /* must be the first field */
    struct fault *owner;
    struct fault_link *next;
    struct ft_link *inner; /* the inner link; NULL: refused or broken */
    uint64_t id;           /* input of the draws */
    uint64_t taken;        /* messages sent or received so far */
    uint64_t cut_at;       /* messages that pass before the cut; UINT64_MAX: all pass */
    uint64_t gate_ns;      /* nothing is received before this time */
    uint64_t break_ns;     /* when a link goes down that dropped a message; 0: never */
    struct ft_send *dropped;
    int reserved;   /* slots that are reserved: while there are any, the inner link must stay */
    bool flipped;   /* flip_after has changed its message */
    bool hidden;    /* a message may be held back */
    bool tell_down; /* this transport must report DOWN itself */
};

enum draw { DRAW_DELAY, DRAW_STALL, DRAW_DROP, DRAW_REFUSE, DRAW_FLIP, DRAW_BIT };

static int parse(const char *text, struct faults *out);
static bool flips(const struct fault_link *l, const struct ft_header *h);
static uint64_t draw(const struct fault *f, enum draw what, uint64_t id, uint64_t n);
static bool hits(const struct fault *f, enum draw what, uint64_t ppm, uint64_t id, uint64_t n);
static struct fault_link *add(struct fault *f, struct ft_link *inner, uint64_t peer, bool sender);
static void mirror(struct fault_link *l);
static void break_link(struct fault_link *l);
static int own_events(struct fault *f, struct ft_event *events, int max, bool *busy);
static int gate(struct fault_link *l, uint64_t ctx, unsigned lane, struct ft_header *h);
static int before_send(struct fault_link *l, struct ft_send *req);

static struct fault *fault_of(struct ft_transport *t)
{
    return FT_CONTAINER(t, struct fault, base);
}
static struct fault_link *link_of(struct ft_link *l)
{
    return FT_CONTAINER(l, struct fault_link, base);
}

static int fault_open(const struct ft_transport_ops *faulty, const struct ft_transport_ops *ops,
                      const struct ft_transport_config *config, struct ft_transport **out)
{
    struct fault *f = calloc(1, sizeof(*f));
    if (f == NULL)
        return ft_fail(FT_NOMEM, "no memory for a transport");
    f->base.ops = faulty;
    f->base.config = *config;
    f->ops = ops;
    int status = parse(ft_param_str(FT_PARAM_FAULT), &f->faults);
    if (status == FT_OK)
        status = ops->open(config, &f->inner);
    if (status != FT_OK) {
        free(f);
        return status;
    }
    f->base.look_ns = f->inner->look_ns;
    *out = &f->base;
    return FT_OK;
}

static void fault_disconnect(struct ft_link *link)
{
    struct fault_link *l = link_of(link), **at = &l->owner->links;
    while (*at != l)
        at = &(*at)->next;
    *at = l->next;
    if (l->inner != NULL) {
        l->inner->cut = link->cut;
        l->inner->ops->disconnect(l->inner);
    }
    if (l->dropped != NULL)
        l->dropped->status = FT_LINK;
    free(l);
}

static void fault_close(struct ft_transport *t)
{
    struct fault *f = fault_of(t);
    while (f->links != NULL)
        fault_disconnect(&f->links->base);
    f->ops->close(f->inner);
    free(f);
}

static int fault_address(struct ft_transport *t, void *buf, size_t capacity_bytes)
{
    return fault_of(t)->ops->address(fault_of(t)->inner, buf, capacity_bytes);
}

static bool fault_reaches(struct ft_transport *t, const void *address, size_t len_bytes)
{
    return fault_of(t)->ops->reaches(fault_of(t)->inner, address, len_bytes);
}

static int fault_connect(struct ft_transport *t, uint64_t peer, const void *address,
                         size_t len_bytes, struct ft_link **out)
{
    struct fault *f = fault_of(t);
    struct ft_link *inner = NULL;
    const bool refused = hits(f, DRAW_REFUSE, f->faults.refuse_ppm, f->base.config.self ^ peer,
                              f->connects++);
    int status = refused ? FT_OK : f->ops->connect(f->inner, peer, address, len_bytes, &inner);

    if (status != FT_OK)
        return status;
    struct fault_link *l = add(f, inner, peer, true);
    if (l == NULL) {
        if (inner != NULL)
            f->ops->disconnect(inner);
        return ft_fail(FT_NOMEM, "no memory for a link");
    }
    l->tell_down = refused; /* the next turn reports it */
    *out = &l->base;
    return FT_OK;
}

static int fault_bind(struct ft_transport *t, uint64_t ctx)
{
    return fault_of(t)->ops->bind(fault_of(t)->inner, ctx);
}
static void fault_unbind(struct ft_transport *t, uint64_t ctx)
{
    fault_of(t)->ops->unbind(fault_of(t)->inner, ctx);
}

static int fault_send(struct ft_link *link, const struct ft_header *h, const void *data,
                      struct ft_send *req)
{
    struct fault_link *l = link_of(link);
    const struct fault *f = l->owner;
    void *slot;
    int status = before_send(l, req);

    if (status != FT_OK)
        return status == FT_SKIPPED ? FT_OK : status;
    if (flips(l, h)) {
        status = link->ops->reserve(link, h, &slot);
        if (status != FT_OK)
            return status;
        memcpy(slot, data, h->len);
        link->ops->commit(link, h, slot);
        req->status = FT_OK;
        return FT_OK;
    }
    status = f->ops->send(l->inner, h, data, req);
    if (status == FT_OK)
        l->taken++;
    mirror(l);
    return status;
}

static int fault_reserve(struct ft_link *link, const struct ft_header *h, void **slot)
{
    struct fault_link *l = link_of(link);
    int status = before_send(l, NULL);
    if (status == FT_OK)
        status = l->owner->ops->reserve(l->inner, h, slot);
    if (status == FT_OK)
        l->reserved++;
    return status;
}

static void fault_commit(struct ft_link *link, const struct ft_header *h, void *slot)
{
    struct fault_link *l = link_of(link);
    const struct fault *f = l->owner;

    l->reserved--;
    if (flips(l, h)) {
        l->flipped = true;
        const uint64_t bit = draw(f, DRAW_BIT, l->id, l->taken) % (8 * (uint64_t)h->len);
        ((unsigned char *)slot)[bit / 8] ^= (unsigned char)(1u << bit % 8);
    }
    f->ops->commit(l->inner, h, slot);
    l->taken++;
    mirror(l);
}

static void fault_cancel(struct ft_link *link, const struct ft_header *h, void *slot)
{
    struct fault_link *l = link_of(link);
    l->reserved--;
    l->owner->ops->cancel(l->inner, h, slot);
}

static int fault_recv(struct ft_link *link, uint64_t ctx, unsigned lane, struct ft_msg *msg)
{
    struct fault_link *l = link_of(link);
    const struct fault *f = l->owner;
    struct ft_header next;
    int status = gate(l, ctx, lane, &next);

    if (status != FT_OK)
        return status;
    status = f->ops->recv(l->inner, ctx, lane, msg);
    if (status != FT_OK)
        return status;
    uint64_t keep_us = f->faults.delay_us > 0
                           ? draw(f, DRAW_DELAY, l->id, l->taken) % (f->faults.delay_us + 1)
                           : 0;
    if (hits(f, DRAW_STALL, f->faults.stall_ppm, l->id, l->taken))
        keep_us += f->faults.stall_us;
    if (keep_us > 0)
        l->gate_ns = ft_now_ns(f->base.config.env) + keep_us * 1000;
    l->taken++;
    mirror(l);
    return FT_OK;
}

static void fault_expect(struct ft_link *link, const struct ft_header *h, void *to)
{
    struct fault_link *l = link_of(link);
    if (l->inner != NULL && l->owner->ops->expect != NULL)
        l->owner->ops->expect(l->inner, h, to);
}

static int fault_fetch(struct ft_link *link, struct ft_msg *msg, void *to)
{
    struct fault_link *l = link_of(link);
    int status = l->inner != NULL ? l->owner->ops->fetch(l->inner, msg, to) : FT_LINK;
    mirror(l);
    return status;
}

static int fault_peek(struct ft_link *link, uint64_t ctx, unsigned lane, struct ft_header *h)
{
    return gate(link_of(link), ctx, lane, h);
}

static void fault_release(struct ft_link *link, struct ft_msg *msg)
{
    struct fault_link *l = link_of(link);
    if (l->inner != NULL)
        l->owner->ops->release(l->inner, msg);
}

static bool fault_drained(struct ft_link *link)
{
    struct fault_link *l = link_of(link);
    return l->inner != NULL && l->break_ns == 0 && l->owner->ops->drained(l->inner);
}
static bool fault_flushed(struct ft_link *link)
{
    struct fault_link *l = link_of(link);
    return l->inner == NULL || l->owner->ops->flushed == NULL || l->owner->ops->flushed(l->inner);
}

static bool fault_measure(struct ft_link *link, struct ft_link_path *out)
{
    struct fault_link *l = link_of(link);
    return l->inner != NULL && l->owner->ops->measure(l->inner, out);
}

static int fault_connections(struct ft_link *link, struct ft_link_conn *out, int most)
{
    struct fault_link *l = link_of(link);
    return l->inner != NULL ? l->owner->ops->connections(l->inner, out, most) : 0;
}

static void fault_peer_at(struct ft_link *link, const void *address, size_t len_bytes)
{
    struct fault_link *l = link_of(link);
    if (l->inner != NULL && l->owner->ops->peer_at != NULL)
        l->owner->ops->peer_at(l->inner, address, len_bytes);
}

static int fault_poll(struct ft_transport *t, struct ft_event *events, int max, bool *busy)
{
    struct fault *f = fault_of(t);
    int n = own_events(f, events, max, busy), kept = n;
    const int all = n + f->ops->poll(f->inner, events + n, max - n, busy);

    for (; n < all; n++) {
        struct ft_link *inner = events[n].link;
        struct fault_link *l = inner->user;
        if (events[n].what == FT_EVENT_ACCEPTED)
            l = add(f, inner, inner->peer, false);
        if (l == NULL) { /* there is no memory to accept the link */
            f->ops->disconnect(inner);
            continue;
        }
        events[kept++] = (struct ft_event){events[n].what, &l->base};
    }
    for (struct fault_link *l = f->links; l != NULL; l = l->next)
        mirror(l);
    f->base.dropped = f->inner->dropped;
    f->base.look_ns = f->inner->look_ns;
    return kept;
}

static int fault_fd(struct ft_transport *t)
{
    return fault_of(t)->ops->fd(fault_of(t)->inner);
}

/* While a message is held back, or a link is about to break, no descriptor will report it. So the
 * engine must not sleep. */
static bool fault_arm(struct ft_transport *t, bool on)
{
    struct fault *f = fault_of(t);
    for (struct fault_link *l = f->links; on && l != NULL; l = l->next)
        if (l->hidden || l->tell_down || l->break_ns != 0)
            return false;
    return f->ops->arm(f->inner, on);
}

static void fault_trim(struct ft_transport *t)
{
    fault_of(t)->ops->trim(fault_of(t)->inner);
}

/* The inner transport registers memory; this one keeps nothing. */
static int fault_reg(struct ft_transport *t, void *addr, size_t len_bytes, void **out)
{
    return fault_of(t)->ops->reg(fault_of(t)->inner, addr, len_bytes, out);
}
static void fault_unreg(struct ft_transport *t, void *registered)
{
    fault_of(t)->ops->unreg(fault_of(t)->inner, registered);
}

static const struct ft_transport_ops fault_ops = {
    .close = fault_close,
    .address = fault_address,
    .reaches = fault_reaches,
    .connect = fault_connect,
    .disconnect = fault_disconnect,
    .bind = fault_bind,
    .unbind = fault_unbind,
    .send = fault_send,
    .reserve = fault_reserve,
    .commit = fault_commit,
    .cancel = fault_cancel,
    .recv = fault_recv,
    .expect = fault_expect,
    .fetch = fault_fetch,
    .peek = fault_peek,
    .release = fault_release,
    .drained = fault_drained,
    .flushed = fault_flushed,
    .measure = fault_measure,
    .connections = fault_connections,
    .peer_at = fault_peer_at,
    .poll = fault_poll,
    .fd = fault_fd,
    .arm = fault_arm,
    .trim = fault_trim,
    .reg = fault_reg,
    .unreg = fault_unreg,
};

/* A table of functions for each transport that was wrapped, with its name and capabilities, so that
 * the other side need not be wrapped. The tables are never freed: engines refer to them. */
#define DECORATED(X) X(0) X(1) X(2) X(3) X(4) X(5) X(6) X(7)
static pthread_mutex_t decorated_lock = PTHREAD_MUTEX_INITIALIZER;
static struct {
    const struct ft_transport_ops *beneath; /* the inner transport; NULL: this entry is free */
    struct ft_transport_ops ops;
} decorated[FT_TRANSPORTS_MAX];

#define X(i)                                                                                 \
    static int open_##i(const struct ft_transport_config *config, struct ft_transport **out) \
    {                                                                                        \
        return fault_open(&decorated[i].ops, decorated[i].beneath, config, out);             \
    }
DECORATED(X)
#undef X

#define X(i) open_##i,
static int (*const opens[])(const struct ft_transport_config *,
                            struct ft_transport **) = {DECORATED(X)};
#undef X
_Static_assert(FT_ARRAY_LEN(opens) == FT_TRANSPORTS_MAX, "an open for each decorated transport");

static const struct ft_transport_ops *decorate(const struct ft_transport_ops *ops)
{
    const struct ft_transport_ops *found = NULL;
    pthread_mutex_lock(&decorated_lock);
    size_t i = 0;
    while (i < FT_TRANSPORTS_MAX && decorated[i].beneath && decorated[i].beneath != ops)
        i++;
    if (i < FT_TRANSPORTS_MAX && !decorated[i].beneath) {
        decorated[i].beneath = ops;
        decorated[i].ops = fault_ops;
        decorated[i].ops.open = opens[i];
        decorated[i].ops.name = ops->name;
        decorated[i].ops.nccl_name = ops->nccl_name;
        decorated[i].ops.caps = ops->caps;
        decorated[i].ops.measure = ops->measure ? fault_measure : NULL;
        decorated[i].ops.connections = ops->connections ? fault_connections : NULL;
    }
    if (i < FT_TRANSPORTS_MAX)
        found = &decorated[i].ops;
    pthread_mutex_unlock(&decorated_lock);
    return found;
}

int ft_transport_faulty(const struct ft_transport_ops *ops, const struct ft_transport_ops **out)
{
    struct faults faults;
    int status = parse(ft_param_str(FT_PARAM_FAULT), &faults);
    if (status != FT_OK)
        return status;
    const struct ft_transport_ops *faulty = decorate(ops);
    if (!faulty)
        return ft_fail(FT_NOTSUP, "no faults can be made in more than %d transports",
                       FT_TRANSPORTS_MAX);
    *out = faulty;
    return FT_OK;
}

static int parse(const char *text, struct faults *out)
{
    static const struct {
        const char *name;
        size_t offset;
        uint64_t def;
    } known[] = {
#define X(name, def) {#name, offsetof(struct faults, name), def},
        FAULTS(X)
#undef X
    };
    for (size_t i = 0; i < FT_ARRAY_LEN(known); i++)
        memcpy((char *)out + known[i].offset, &known[i].def, sizeof(uint64_t));
    while (*text != '\0') {
        const size_t len = strcspn(text, ","), name_len = strcspn(text, "=,");
        const char *digits = text + name_len + 1;
        uint64_t value = 0;
        size_t i = 0, n = 0;

        while (i < FT_ARRAY_LEN(known) &&
               (strlen(known[i].name) != name_len || memcmp(known[i].name, text, name_len) != 0))
            i++;
        for (; name_len < len && n < len - name_len - 1 && digits[n] >= '0' && digits[n] <= '9' &&
               n < 15;
             n++)
            value = 10 * value + (uint64_t)(digits[n] - '0');
        if (i == FT_ARRAY_LEN(known) || n == 0 || n + name_len + 1 != len)
            return ft_fail(FT_INVAL,
                           "FTCCL_FAULT has '%.*s'; it takes NAME=NUMBER of seed, delay_us, "
                           "stall_ppm, stall_us, drop_ppm, "
                           "break_us, cut_after, refuse_ppm, flip_ppm, flip_after, flip_rank",
                           (int)ft_min(len, 64), text);
        memcpy((char *)out + known[i].offset, &value, sizeof(value));
        text += len + (text[len] == ',');
    }
    return FT_OK;
}

static uint64_t draw(const struct fault *f, enum draw what, uint64_t id, uint64_t n)
{
    const uint64_t of[3] = {what, id, n};
    return ft_hash64(of, sizeof(of), f->faults.seed);
}

static bool hits(const struct fault *f, enum draw what, uint64_t ppm, uint64_t id, uint64_t n)
{
    return ppm > 0 && draw(f, what, id, n) % 1000000 < ppm;
}

static bool flips(const struct fault_link *l, const struct ft_header *h)
{
    const struct fault *f = l->owner;
    const struct faults *faults = &f->faults;
    if (h->len == 0 ||
        (faults->flip_rank != UINT64_MAX && faults->flip_rank != (uint64_t)f->base.config.rank))
        return false;
    if (faults->flip_after > 0 && !l->flipped && l->taken >= faults->flip_after)
        return true;
    return hits(f, DRAW_FLIP, faults->flip_ppm, l->id, l->taken);
}

static struct fault_link *add(struct fault *f, struct ft_link *inner, uint64_t peer, bool sender)
{
    struct fault_link *l = calloc(1, sizeof(*l));
    if (l == NULL)
        return NULL;
    const uint64_t ends[2] = {sender ? f->base.config.self : peer,
                              sender ? peer : f->base.config.self};
    l->base = (struct ft_link){
        .ops = f->base.ops, .transport = &f->base, .peer = peer, .sender = sender};
    l->owner = f;
    l->inner = inner;
    l->id = ft_hash64(ends, sizeof(ends), 0);
    l->cut_at = f->faults.cut_after > 0 ? f->faults.cut_after : UINT64_MAX;
    for (uint64_t n = 0; f->faults.drop_ppm > 0 && n < 1000000 && n < l->cut_at; n++)
        if (hits(f, DRAW_DROP, f->faults.drop_ppm, l->id, n))
            l->cut_at = n;
    l->next = f->links;
    f->links = l;
    if (inner != NULL)
        inner->user = l;
    mirror(l);
    return l;
}

/* Copies what the engine reads of a link from the inner link. */
static void mirror(struct fault_link *l)
{
    const struct ft_link *inner = l->inner;
    if (inner == NULL)
        return;
    l->base.state = inner->state;
    l->base.reason = inner->reason;
    l->base.orderly = inner->orderly && (l->base.sender || inner->messages != l->cut_at);
    l->base.proof = inner->proof;
    l->base.messages = inner->messages;
    memcpy(l->base.latency, inner->latency, sizeof l->base.latency);
    l->base.bytes = inner->bytes;
}

static void break_link(struct fault_link *l)
{
    struct ft_link *inner = l->inner;
    l->inner = NULL;
    if (inner != NULL)
        l->owner->ops->disconnect(inner);
    if (l->dropped != NULL)
        l->dropped->status = FT_LINK;
    l->dropped = NULL;
    l->break_ns = 0;
    l->base.state = FT_LINK_DOWN;
    l->base.reason = FT_LINK;
    l->tell_down = true;
}

/* Reports the events that this transport caused, and lets held messages be received when their time
 * has come. */
static int own_events(struct fault *f, struct ft_event *events, int max, bool *busy)
{
    int n = 0;
    for (struct fault_link *l = f->links; l != NULL; l = l->next) {
        const bool timed = l->hidden || l->break_ns != 0;
        const uint64_t now_ns = timed ? ft_now_ns(f->base.config.env) : 0;
        if (l->hidden && now_ns >= l->gate_ns) {
            l->hidden = false;
            *busy = true;
        }
        if (l->break_ns != 0 && now_ns >= l->break_ns && l->reserved == 0)
            break_link(l);
        if (!l->tell_down || n == max)
            continue;
        l->tell_down = false;
        l->base.state = FT_LINK_DOWN;
        l->base.reason = FT_LINK;
        events[n++] = (struct ft_event){FT_EVENT_DOWN, &l->base};
        *busy = true;
    }
    return n;
}

/* The next message of a channel, if it has come and is not held back. */
static int gate(struct fault_link *l, uint64_t ctx, unsigned lane, struct ft_header *h)
{
    if (l->inner == NULL)
        return FT_LINK;
    int status = l->owner->ops->peek(l->inner, ctx, lane, h);
    if (status != FT_OK || l->gate_ns == 0 || ft_now_ns(l->owner->base.config.env) >= l->gate_ns)
        return status;
    l->hidden = true;
    return FT_AGAIN;
}

/* FT_OK: the message goes on. FT_SKIPPED: it was accepted and is lost. Otherwise the answer of send
 * or reserve. A reservation has no request, so it is refused if its message would be lost. */
static int before_send(struct fault_link *l, struct ft_send *req)
{
    const struct fault *f = l->owner;
    if (l->base.state == FT_LINK_DOWN)
        return FT_LINK;
    if (l->inner == NULL || l->break_ns != 0 || l->inner->state != FT_LINK_UP)
        return FT_AGAIN;
    if (l->taken < l->cut_at)
        return FT_OK;
    if (l->reserved > 0)
        return FT_AGAIN;
    if (f->faults.cut_after > 0 && l->cut_at == f->faults.cut_after) {
        break_link(l);
        return FT_LINK;
    }
    l->break_ns = ft_now_ns(f->base.config.env) + f->faults.break_us * 1000;
    if (req == NULL)
        return FT_AGAIN;
    req->status = FT_AGAIN;
    l->dropped = req;
    return FT_SKIPPED;
}

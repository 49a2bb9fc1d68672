/*
 * What the two sides of a link say to each other over their side connection: sizes, infos of ways,
 * which way is dead and what arrived over it, and goodbyes. A message that does not fit the state
 * of its link is a protocol error. What there is to say stands in flags, and is said as soon as the
 * side connection takes it; a message is made when it is sent.
 */
#include "transport/rma/inside.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum kind { HELLO = 1, REFUSE, WAY_OPEN, WAY_READY, WAY_DEAD, WAY_STOPPED, GOODBYE };

#define MAGIC 0x666372616d310002u

struct hello {
    uint64_t magic;
    uint64_t chunk_bytes, first_bytes;
    uint32_t smalls, slots, turns, ways;
};
struct refuse {
    int32_t status;
    char why[RMA_WHY_BYTES];
};
struct about_way {
    uint32_t way, generation;
};
struct way_open {
    struct about_way about;
    unsigned char info[FT_FABRIC_INFO_BYTES];
};
struct way_dead {
    struct about_way about;
    char why[RMA_WHY_BYTES];
};
struct way_stopped {
    struct about_way about;
    struct rma_answer answer;
};
_Static_assert(sizeof(struct way_stopped) <= FT_SIDE_BYTES, "an answer is one message");

/* ---- saying ---------------------------------------------------------------------------------- */

static int say_hello(struct rma_link *l)
{
    const struct hello h = {MAGIC,      l->rma->chunk_bytes, l->rma->set.first_bytes,
                            RMA_SMALLS, l->rma->slots,       RMA_TURNS,
                            l->nways};
    return ft_side_send(l->side, HELLO, &h, sizeof h);
}

static int say_open(struct rma_link *l, struct rma_way *w, const struct about_way *about)
{
    struct way_open m = {.about = *about};
    const size_t len = l->rma->fabric->ops->way_info(w->fabric, m.info);
    return ft_side_send(l->side, WAY_OPEN, &m, offsetof(struct way_open, info) + len);
}

static int say_stopped(struct rma_link *l, const struct about_way *about)
{
    struct way_stopped m = {.about = *about};
    rma_answer(l, &m.answer);
    return ft_side_send(l->side, WAY_STOPPED, &m, sizeof m);
}

static int say_dead(struct rma_link *l, const struct rma_way *w, const struct about_way *about)
{
    struct way_dead m = {.about = *about};
    snprintf(m.why, sizeof m.why, "%s", w->why);
    return ft_side_send(l->side, WAY_DEAD, &m, sizeof m);
}

static int say_one(struct rma_link *l, unsigned k, unsigned what)
{
    struct rma_way *w = &l->way[k];
    const struct about_way about = {k, w->generation};
    switch (what) {
    case RMA_SAY_DEAD:
        return say_dead(l, w, &about);
    case RMA_SAY_STOPPED:
        return say_stopped(l, &about);
    case RMA_SAY_OPEN:
        return w->fabric ? say_open(l, w, &about) : FT_OK;
    default:
        return ft_side_send(l->side, WAY_READY, &about, sizeof about);
    }
}

static bool say_of_way(struct rma_link *l, unsigned k)
{
    struct rma_way *w = &l->way[k];
    while (w->say) {
        const unsigned what = w->say & -w->say;
        if (say_one(l, k, what) != FT_OK)
            return false;
        w->say &= ~what;
    }
    return true;
}

static int say_refuse(struct rma_link *l)
{
    struct refuse m = {.status = l->base.reason};
    snprintf(m.why, sizeof m.why, "%s", l->why);
    return ft_side_send(l->side, REFUSE, &m, sizeof m);
}

static bool say_end(struct rma_link *l)
{
    if (l->say_refuse && say_refuse(l) != FT_OK)
        return false;
    l->say_refuse = false;
    const uint32_t last = l->out.next;
    if (l->say_goodbye && ft_side_send(l->side, GOODBYE, &last, sizeof last) != FT_OK)
        return false;
    l->say_goodbye = false;
    return true;
}

bool rma_side_say(struct rma_link *l)
{
    if (!l->side)
        return true;
    if (l->say_hello && say_hello(l) != FT_OK)
        return false;
    l->say_hello = false;
    for (unsigned k = 0; k < l->nways; k++)
        if (l->way[k].say && !say_of_way(l, k))
            return false;
    return say_end(l);
}

/* ---- hearing --------------------------------------------------------------------------------- */

static int unexpected(const struct ft_side_event *e)
{
    return ft_fail(FT_PROTOCOL, "a peer sent a message of kind %u and %zu bytes out of turn",
                   e->kind, e->len_bytes);
}

static void refuse(struct rma_link *l, int reason)
{
    snprintf(l->why, sizeof l->why, "%s", ft_fail_text());
    l->say_refuse = true;
    rma_link_close(l, reason, false);
}

static int hear_hello(struct rma_link *l, const struct ft_side_event *e)
{
    struct hello h;
    if (l->base.sender || l->phase != RMA_MAKING || e->len_bytes != sizeof h)
        return unexpected(e);
    memcpy(&h, e->data, sizeof h);
    if (h.magic != MAGIC) {
        refuse(l, ft_fail(FT_PROTOCOL, "a peer's links have another form"));
        return FT_OK;
    }
    if (h.chunk_bytes != l->rma->chunk_bytes || h.first_bytes != l->rma->set.first_bytes ||
        h.smalls != RMA_SMALLS || h.slots != l->rma->slots || h.turns != RMA_TURNS || !h.ways ||
        h.ways > FT_FABRIC_WAYS_MAX) {
        refuse(l, ft_fail(FT_PROTOCOL,
                          "a peer's links have %u slots of %" PRIu64 " bytes, here %u of %zu",
                          h.slots, h.chunk_bytes, l->rma->slots, l->rma->chunk_bytes));
        return FT_OK;
    }
    l->nways = h.ways;
    int rc = rma_link_allocate(l);
    if (rc)
        refuse(l, rc);
    else
        l->phase = RMA_OPEN;
    return FT_OK;
}

/* What is wrong with the process of the other side is no fault of this one. */
static int hear_refuse(struct rma_link *l, const struct ft_side_event *e)
{
    struct refuse m;
    if (!l->base.sender || l->phase != RMA_MAKING || e->len_bytes != sizeof m)
        return unexpected(e);
    memcpy(&m, e->data, sizeof m);
    const int status = m.status == FT_PROTOCOL ? m.status : FT_LINK;
    rma_link_close(
        l, ft_fail(status, "the other side refused a link: %.*s", (int)sizeof m.why - 1, m.why),
        false);
    return FT_OK;
}

/* The receiver's end could not be made: for the sender it is lost, as any other. */
static void cannot_open(struct rma_link *l, struct rma_way *w, uint32_t generation)
{
    snprintf(w->why, sizeof w->why, "%s", ft_fail_text());
    if (w->fabric)
        l->rma->fabric->ops->way_close(w->fabric);
    w->fabric = NULL;
    w->state = RMA_WAY_STOPPED;
    w->generation = generation;
    w->deadline_ns = 0;
    w->say = RMA_SAY_DEAD | RMA_SAY_STOPPED;
}

/* The receiver's side opens its end when it hears of the sender's. */
static int answer_open(struct rma_link *l, struct rma_way *w, const struct way_open *m, size_t len)
{
    const unsigned k = m->about.way;
    if (w->state != RMA_WAY_NONE || m->about.generation != w->generation + 1)
        return ft_fail(FT_PROTOCOL, "a peer opened way %u, which is not closed", k);
    if (l->phase != RMA_OPEN)
        return FT_OK;
    int rc = k < l->rma->fabric->ways
                 ? rma_way_open(l, k, ft_now_ns(l->rma->base.config.env))
                 : ft_fail(FT_NOTSUP, "there are only %u ways here", l->rma->fabric->ways);
    if (rc == FT_OK)
        rc = l->rma->fabric->ops->way_connect(w->fabric, m->info, len);
    if (rc)
        cannot_open(l, w, m->about.generation);
    return rc == FT_PROTOCOL ? rc : FT_OK;
}

static int hear_open(struct rma_link *l, struct rma_way *w, const struct ft_side_event *e)
{
    struct way_open m;
    if (e->len_bytes > sizeof m)
        return unexpected(e);
    memcpy(&m, e->data, e->len_bytes);
    const size_t len = e->len_bytes - offsetof(struct way_open, info);
    if (!l->base.sender)
        return answer_open(l, w, &m, len);
    if (m.about.generation != w->generation || w->state != RMA_WAY_OPENING)
        return FT_OK; /* it has been lost meanwhile */
    int rc = l->rma->fabric->ops->way_connect(w->fabric, m.info, len);
    if (rc == FT_PROTOCOL)
        return rc;
    if (rc) {
        rma_way_fail(l, m.about.way, ft_fail_text());
        return FT_OK;
    }
    w->connected = true;
    return FT_OK;
}

static int hear_stopped(struct rma_link *l, struct rma_way *w, const struct ft_side_event *e)
{
    struct way_stopped m;
    if (e->len_bytes != sizeof m || w->answered ||
        (w->state != RMA_WAY_STOPPING && w->state != RMA_WAY_STOPPED))
        return unexpected(e);
    memcpy(&m, e->data, sizeof m);
    if (l->out.next - m.answer.expected > RMA_TURNS)
        return ft_fail(FT_PROTOCOL, "a peer says that it expects number %u, and %u is the next",
                       m.answer.expected, l->out.next);
    w->answer = m.answer;
    w->answered = true;
    rma_way_finish(l, m.about.way);
    return FT_OK;
}

static int hear_dead(struct rma_link *l, struct rma_way *w, const struct ft_side_event *e)
{
    struct way_dead m;
    if (e->len_bytes != sizeof m)
        return unexpected(e);
    memcpy(&m, e->data, sizeof m);
    m.why[sizeof m.why - 1] = '\0';
    w->heard = true;
    rma_way_fail(l, m.about.way, m.why);
    return FT_OK;
}

static int hear_of_way(struct rma_link *l, const struct ft_side_event *e)
{
    struct about_way about;
    if (e->len_bytes < sizeof about || !l->inside_region)
        return unexpected(e);
    memcpy(&about, e->data, sizeof about);
    if (about.way >= l->nways)
        return unexpected(e);
    struct rma_way *w = &l->way[about.way];
    if (e->kind == WAY_OPEN)
        return hear_open(l, w, e);
    if (about.generation != w->generation)
        return ft_fail(FT_PROTOCOL, "a peer speaks of way %u as it was before", about.way);
    switch (e->kind) {
    case WAY_READY:
        if (!l->base.sender && w->state == RMA_WAY_OPENING)
            rma_way_ready(l, about.way);
        return FT_OK;
    case WAY_DEAD:
        return hear_dead(l, w, e);
    default:
        return hear_stopped(l, w, e);
    }
}

static int hear_goodbye(struct rma_link *l, const struct ft_side_event *e)
{
    if (e->len_bytes != sizeof l->last || l->goodbye)
        return unexpected(e);
    memcpy(&l->last, e->data, sizeof l->last);
    l->goodbye = true;
    /* A peer that leaves closes its ways: their loss may have been noticed before its goodbye. */
    const bool all = l->base.sender || l->in.expected == l->last;
    if (l->phase == RMA_CLOSING && l->base.reason == FT_LINK && all)
        l->base.orderly = true;
    if (l->phase >= RMA_CLOSING)
        return FT_OK;
    l->deadline_ns = ft_now_ns(l->rma->base.config.env) + RMA_LEAVE_NS;
    return FT_OK;
}

static int hear(struct rma_link *l, const struct ft_side_event *e)
{
    switch (e->kind) {
    case HELLO:
        return hear_hello(l, e);
    case REFUSE:
        return hear_refuse(l, e);
    case GOODBYE:
        return hear_goodbye(l, e);
    case WAY_OPEN:
    case WAY_READY:
    case WAY_DEAD:
    case WAY_STOPPED:
        return hear_of_way(l, e);
    default:
        return unexpected(e);
    }
}

static void side_down(struct rma_link *l, const struct ft_side_event *e)
{
    struct ft_side_conn *side = l->side;
    l->base.silent |= e->silent;
    if (!l->goodbye || !l->known)
        rma_link_close(l,
                       ft_fail(e->orderly ? FT_LINK : e->reason, "%s",
                               e->text ? e->text : "the side connection has ended"),
                       false);
    l->side = NULL;
    ft_side_disconnect(side, false);
}

static void side_accepted(struct rma *t, struct ft_side_conn *side)
{
    struct rma_link *l = calloc(1, sizeof *l);
    if (!l) {
        ft_side_disconnect(side, false);
        return;
    }
    rma_link_add(t, l, side->peer, false);
    l->side = side;
    side->user = l;
}

void rma_side_event(struct rma *t, const struct ft_side_event *e)
{
    if (e->what == FT_SIDE_ACCEPTED) {
        side_accepted(t, e->conn);
        return;
    }
    struct rma_link *l = e->conn->user;
    if (!l)
        return; /* it has been ended since */
    l->calm = false;
    if (e->what == FT_SIDE_UP && l->base.sender && l->phase == RMA_MAKING && !l->inside) {
        rma_link_begin(l);
    } else if (e->what == FT_SIDE_DOWN) {
        side_down(l, e);
    } else if (e->what == FT_SIDE_MESSAGE) {
        int rc = hear(l, e);
        if (rc)
            rma_link_close(l, rc, false);
    }
}

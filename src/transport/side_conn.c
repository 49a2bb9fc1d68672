/*
 * Conversations: their messages wait here until the link to the peer takes them. A conversation is
 * freed when its caller has disconnected it and none of its messages are with the link any more.
 */
#include "transport/side_parts.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define OPENER_BIT                                                                \
    (1ull << 32) /* of sig: the sender of the message has opened the conversation \
                  */

static void append(struct side_session *s, struct side_conn *c)
{
    struct side_conn **at = &s->conns;

    while (*at != NULL)
        at = &(*at)->next;
    c->next = NULL;
    *at = c;
}

struct side_conn *side_conn_open(struct side_session *s, uint32_t number, bool opener)
{
    struct side_conn *c = calloc(1, sizeof(*c));

    if (c == NULL) {
        ft_fail(FT_NOMEM, "no memory for a side connection");
        return NULL;
    }
    c->base.peer = s->peer;
    c->side = s->side;
    c->session = s;
    c->number = number;
    c->opener = opener;
    c->up = !opener;
    append(s, c);
    side_conn_put(c, opener ? SIDE_OPEN : SIDE_OPENED, 0, NULL, 0);
    return c;
}

void side_conn_put(struct side_conn *c, enum side_op op, unsigned seq, const void *data, size_t len)
{
    struct side_out *o = &c->out[(c->head + c->count) % SIDE_QUEUE];

    o->req = (struct ft_send){.status = FT_OK};
    o->header = (struct ft_header){.ctx = SIDE_CTX,
                                   .sig = c->number | (c->opener ? OPENER_BIT : 0),
                                   .seq = seq,
                                   .len = (uint32_t)len,
                                   .lane = FT_LANE_CTL,
                                   .step = (uint16_t)op};
    if (len > 0)
        memcpy(o->data, data, len);
    c->count++;
    c->side->backlog = true;
}

static void forget_sent(struct side_conn *c)
{
    while (c->given > 0 && c->out[c->head].req.status != FT_AGAIN) {
        c->head = (c->head + 1) % SIDE_QUEUE;
        c->count--;
        c->given--;
    }
}

/* False: the link takes no more now. */
static bool pump(struct side_conn *c, struct ft_link *tx)
{
    forget_sent(c);
    while (c->given < c->count) {
        struct side_out *o = &c->out[(c->head + c->given) % SIDE_QUEUE];
        if (tx->ops->send(tx, &o->header, o->data, &o->req) != FT_OK)
            return false;
        c->given++;
    }
    forget_sent(c);
    return true;
}

/* Whoever finds the link full is the last one next time. */
void side_conns_pump(struct side_session *s)
{
    for (struct side_conn **at = &s->conns; *at != NULL; at = &(*at)->next) {
        struct side_conn *c = *at;
        if (pump(c, s->tx))
            continue;
        *at = c->next;
        append(s, c);
        break;
    }
    for (struct side_conn *c = s->conns; c != NULL; c = c->next)
        s->side->unsent |= c->count > 0;
}

static struct ft_side_event *add_event(struct side_conn *c, enum ft_side_what what)
{
    struct ft_side *side = c->side;
    struct ft_side_event *e = &side->events[side->nevents++];

    *e = (struct ft_side_event){.what = what, .conn = &c->base};
    return e;
}

void side_conn_down(struct side_conn *c, int reason, bool orderly, bool silent)
{
    if (c->down)
        return;
    c->down = true;
    c->reason = reason;
    c->orderly = orderly;
    c->silent = silent;
    c->count = c->given; /* the rest is not sent any more */
    c->side->backlog = true;
    snprintf(c->text, sizeof(c->text), "%s", ft_fail_text());
}

static struct side_conn *find(const struct side_session *s, uint64_t sig)
{
    const bool opener = !(sig & OPENER_BIT);
    struct side_conn *c = s->conns;

    while (c != NULL && (c->number != (uint32_t)sig || c->opener != opener))
        c = c->next;
    return c;
}

static int bad(const struct side_session *s, const char *what)
{
    return ft_fail(FT_PROTOCOL, "engine %016" PRIx64 " sent %s over its side connection", s->peer,
                   what);
}

static int take_open(struct side_session *s, const struct ft_header *h)
{
    unsigned open = 0;

    if (!(h->sig & OPENER_BIT) || (uint32_t)h->sig == 0 || find(s, h->sig) != NULL)
        return bad(s, "a number of a conversation that cannot be new");
    for (const struct side_conn *c = s->conns; c != NULL; c = c->next)
        open += !c->opener && !c->down;
    if (open >= FT_SIDE_CONNS)
        return bad(s, "more conversations than there may be");
    struct side_conn *c = side_conn_open(s, (uint32_t)h->sig, false);
    if (c == NULL)
        return FT_NOMEM;
    add_event(c, FT_SIDE_ACCEPTED);
    return FT_OK;
}

static int take_opened(struct side_session *s, struct side_conn *c)
{
    if (!c->opener || c->up)
        return bad(s, "an answer to nothing");
    c->up = true;
    if (!c->closed && !c->down)
        add_event(c, FT_SIDE_UP);
    return FT_OK;
}

static int take_close(struct side_session *s, struct side_conn *c, const struct ft_header *h)
{
    const bool goodbye = h->seq == SIDE_CLOSE_GOODBYE;

    if (h->seq >= SIDE_CLOSES)
        return bad(s, "an unknown reason");
    ft_fail(FT_LINK,
            goodbye ? "engine %016" PRIx64 " said goodbye"
                    : "engine %016" PRIx64 " ended the link without a goodbye",
            s->peer);
    side_conn_down(c, FT_LINK, goodbye, false);
    return FT_OK;
}

static int take_message(struct side_session *s, struct side_conn *c, const struct ft_msg *msg)
{
    if (!c->up)
        return bad(s, "a message before its answer");
    if (msg->header.len > FT_SIDE_BYTES)
        return bad(s, "a message of the wrong length");
    if (c->closed || c->down)
        return FT_OK;
    struct ft_side_event *e = add_event(c, FT_SIDE_MESSAGE);
    e->kind = msg->header.seq;
    /* A copy: the session may end in this poll. */
    e->data = s->side->copy[e - s->side->events];
    e->len_bytes = msg->header.len;
    if (e->len_bytes > 0)
        memcpy(s->side->copy[e - s->side->events], msg->data, e->len_bytes);
    return FT_OK;
}

int side_conn_take(struct side_session *s, const struct ft_msg *msg)
{
    const struct ft_header *h = &msg->header;

    if (h->step <= SIDE_HELLO || h->step >= SIDE_OPS || h->sig >= 2 * OPENER_BIT)
        return bad(s, "an unknown message");
    if (h->step != SIDE_MESSAGE && h->len != 0)
        return bad(s, "a message of the wrong length");
    if (h->step == SIDE_OPEN)
        return take_open(s, h);
    struct side_conn *c = find(s, h->sig);
    if (c == NULL) /* it was ended here, and the peer does not know that yet */
        return FT_OK;
    switch (h->step) {
    case SIDE_OPENED:
        return take_opened(s, c);
    case SIDE_CLOSE:
        return take_close(s, c, h);
    default:
        return take_message(s, c, msg);
    }
}

void side_conns_expire(struct side_session *s, uint64_t now_ns)
{
    for (struct side_conn *c = s->conns; c != NULL; c = c->next) {
        if (c->up || c->down || c->closed || now_ns < c->deadline_ns)
            continue;
        ft_fail(FT_TIMEOUT, "engine %016" PRIx64 " did not answer for %u s", s->peer,
                (unsigned)(SIDE_OPEN_NS / 1000000000u));
        side_conn_down(c, FT_TIMEOUT, false, false);
        side_conn_put(c, SIDE_CLOSE, SIDE_CLOSE_BROKEN, NULL, 0);
    }
}

static void reap(struct side_conn **list)
{
    while (*list != NULL) {
        struct side_conn *c = *list;
        forget_sent(c);
        if (!c->closed || c->count > 0) {
            list = &c->next;
            continue;
        }
        *list = c->next;
        free(c);
    }
}

void side_conns_reap(struct ft_side *side)
{
    for (struct side_session *s = side->sessions; s != NULL; s = s->next)
        reap(&s->conns);
    reap(&side->orphans);
}

static void tell(struct ft_side *side, struct side_conn *c)
{
    for (; c != NULL; c = c->next) {
        if (!c->down || c->told_down || c->closed)
            continue;
        if (side->nevents == side->max) {
            side->backlog = true;
            return;
        }
        struct ft_side_event *e = add_event(c, FT_SIDE_DOWN);
        e->reason = c->reason;
        e->orderly = c->orderly;
        e->silent = c->silent;
        e->text = c->text;
        c->told_down = true;
    }
}

void side_conns_tell(struct ft_side *side)
{
    for (struct side_session *s = side->sessions; s != NULL; s = s->next)
        tell(side, s->conns);
    tell(side, side->orphans);
}

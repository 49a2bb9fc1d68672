/*
 * Sessions: the pair of links with one peer. Either side may dial first, or both at once; each
 * session has a nonce, by which a link that answers an older session is told from one that belongs
 * to this one. The session ends with either of its links, after what the peer has sent before was
 * read. Nothing of a peer is read before the link to it is up.
 */
#include "transport/side_parts.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

static uint64_t fresh_nonce(struct ft_side *side)
{
    uint64_t nonce = 0;
    while (nonce == 0)
        side->env->random(side->env, &nonce, sizeof(nonce));
    return nonce;
}

static struct side_session *find(struct ft_side *side, uint64_t peer)
{
    struct side_session *s = side->sessions;
    while (s != NULL && s->peer != peer)
        s = s->next;
    return s;
}

/* Begins a session and dials. `answers`: the nonce of the peer's session; 0: there is none yet. */
static int begin(struct ft_side *side, uint64_t peer, const void *address, size_t len_bytes,
                 uint64_t answers, struct side_session **out)
{
    struct side_session *s = calloc(1, sizeof(*s));
    if (s == NULL)
        return ft_fail(FT_NOMEM, "no memory for a side connection");
    int status = side->tcp->ops->connect(side->tcp, peer, address, len_bytes, &s->tx);
    if (status != FT_OK) {
        free(s);
        return status;
    }
    s->side = side;
    s->peer = peer;
    s->nonce = fresh_nonce(side);
    s->answers = answers;
    s->next = side->sessions;
    side->sessions = s;
    side->backlog = true;
    *out = s;
    return FT_OK;
}

int side_session_get(struct ft_side *side, uint64_t peer, const void *address, size_t len_bytes,
                     struct side_session **out)
{
    *out = find(side, peer);
    return *out != NULL ? FT_OK : begin(side, peer, address, len_bytes, 0, out);
}

void side_session_pump(struct side_session *s)
{
    if (s->tx->state == FT_LINK_UP && s->greeted)
        side_conns_pump(s);
}

static void end_link(struct ft_link *link, bool cut)
{
    if (link == NULL)
        return;
    link->cut = cut;
    link->ops->disconnect(link);
}

void side_session_end(struct side_session *s, int reason, bool orderly, bool silent)
{
    struct ft_side *side = s->side;
    struct side_session **at = &side->sessions;

    while (*at != s)
        at = &(*at)->next;
    *at = s->next;
    for (struct side_conn *c = s->conns, *next; c != NULL; c = next) {
        next = c->next;
        side_conn_down(c, reason, orderly, silent);
        c->count = c->given;
        c->session = NULL;
        c->next = side->orphans;
        side->orphans = c;
    }
    end_link(s->tx, true);
    end_link(s->rx, true);
    free(s);
}

/* ---- links of peers that have not said who they are ------------------------------------------ */

void side_accepted(struct ft_side *side, struct ft_link *link)
{
    struct side_stranger *x = calloc(1, sizeof(*x));

    if (x == NULL)
        return end_link(link, true);
    x->link = link;
    x->deadline_ns = ft_now_ns(side->env) + SIDE_BACK_NS;
    x->next = side->strangers;
    side->strangers = x;
}

/* Whether the link belongs to the session that is there, or may begin a new one. */
static bool is_stale(const struct side_session *s, const struct side_hello *hello)
{
    if (hello->answers != 0)
        return s == NULL || hello->answers != s->nonce || s->rx != NULL;
    return false;
}

static int pair(struct ft_side *side, struct ft_link *link, const struct ft_msg *msg)
{
    struct side_hello hello;
    struct side_session *s = find(side, link->peer);
    const struct ft_header *h = &msg->header;

    if (h->step != SIDE_HELLO || h->len < sizeof(hello) ||
        h->len > sizeof(hello) + FT_ADDRESS_BYTES)
        return ft_fail(FT_PROTOCOL,
                       "engine %016" PRIx64 " did not begin its side connection with a hello",
                       link->peer);
    memcpy(&hello, msg->data, sizeof(hello));
    if (is_stale(s, &hello))
        return ft_fail(FT_LINK, "engine %016" PRIx64 " answers a side connection that has ended",
                       link->peer);
    if (s != NULL && s->rx != NULL) {
        ft_fail(FT_LINK, "engine %016" PRIx64 " has begun a new side connection", s->peer);
        side_session_end(s, FT_LINK, false, false);
        s = NULL;
    }
    int status = FT_OK;
    if (s == NULL)
        status = begin(side, link->peer, (const char *)msg->data + sizeof(hello),
                       h->len - sizeof(hello), hello.nonce, &s);
    if (status == FT_OK)
        s->rx = link;
    return status;
}

/* False: the link belongs to a session now, or is gone. */
static bool stranger_turn(struct ft_side *side, struct side_stranger *x, uint64_t now_ns)
{
    struct ft_msg msg;
    int status = x->link->state == FT_LINK_UP
                     ? x->link->ops->recv(x->link, SIDE_CTX, FT_LANE_CTL, &msg)
                     : ft_fail(FT_LINK, "it broke before its first message");

    if (status == FT_AGAIN && now_ns < x->deadline_ns)
        return true;
    if (status == FT_AGAIN)
        status = ft_fail(FT_TIMEOUT, "its first message did not come in time");
    if (status == FT_OK) {
        status = pair(side, x->link, &msg);
        x->link->ops->release(x->link, &msg);
    }
    if (status == FT_OK)
        return false;
    FT_LOG(INFO, "net", side->rank, "ended a side connection of engine %016" PRIx64 ": %s",
           x->link->peer, ft_fail_text());
    end_link(x->link, true);
    return false;
}

static void strangers_turn(struct ft_side *side, uint64_t now_ns)
{
    for (struct side_stranger **at = &side->strangers; *at != NULL;) {
        struct side_stranger *x = *at;
        if (stranger_turn(side, x, now_ns)) {
            at = &x->next;
            continue;
        }
        *at = x->next;
        free(x);
    }
}

/* ---- the turn of a session ------------------------------------------------------------------- */

static void greet(struct side_session *s, uint64_t now_ns)
{
    const struct side_hello hello = {.nonce = s->nonce, .answers = s->answers};
    struct ft_side *side = s->side;
    int len = ft_side_address(side, s->hello.data + sizeof(hello), FT_ADDRESS_BYTES);

    memcpy(s->hello.data, &hello, sizeof(hello));
    s->hello.header = (struct ft_header){.ctx = SIDE_CTX,
                                         .len = (uint32_t)(sizeof(hello) + (size_t)ft_max(len, 0)),
                                         .lane = FT_LANE_CTL,
                                         .step = SIDE_HELLO};
    s->greeted = s->tx->ops->send(s->tx, &s->hello.header, s->hello.data, &s->hello.req) == FT_OK;
    s->back_ns = now_ns + SIDE_BACK_NS;
}

/* Takes what the peer has sent, as far as there is room for its events. FT_LINK: all was taken, and
 * nothing more comes. */
static int take(struct side_session *s)
{
    struct ft_side *side = s->side;
    struct ft_msg msg;

    while (side->nevents < side->max) {
        int status = s->rx->ops->recv(s->rx, SIDE_CTX, FT_LANE_CTL, &msg);
        if (status != FT_OK)
            return status;
        status = side_conn_take(s, &msg);
        s->rx->ops->release(s->rx, &msg);
        if (status != FT_OK)
            return status;
    }
    side->backlog = true;
    return FT_AGAIN;
}

/* Ends a session because of what happened to one of its links. */
static void end_because_of(struct side_session *s, const struct ft_link *link)
{
    if (link->orderly)
        ft_fail(FT_LINK, "engine %016" PRIx64 " has closed its side connections", s->peer);
    else if (link->silent)
        ft_fail(FT_LINK, "the host of engine %016" PRIx64 " does not answer any more", s->peer);
    else if (s->back_ns == 0)
        ft_fail(link->reason, "cannot connect to engine %016" PRIx64 ": %s", s->peer,
                ft_status_text(link->reason));
    else if (s->rx == NULL)
        ft_fail(FT_LINK,
                "engine %016" PRIx64 " broke its side connection and did not connect back: perhaps "
                "it cannot reach an address of this engine",
                s->peer);
    else
        ft_fail(link->reason, "the side connection with engine %016" PRIx64 " broke: %s", s->peer,
                ft_status_text(link->reason));
    side_session_end(s, link->reason, link->orderly, link->silent);
}

/* What is wrong with the session: a link that is down and has nothing more to bring, or a failure
 * of the messages. True: it has ended. */
static bool receive(struct side_session *s, uint64_t now_ns)
{
    if (s->tx->state == FT_LINK_CONNECTING) {
        if (s->rx == NULL || s->rx->state != FT_LINK_DOWN)
            return false;
        end_because_of(s, s->rx);
        return true;
    }
    int status = s->rx != NULL ? take(s) : FT_AGAIN;
    if (status == FT_LINK) {
        end_because_of(s, s->rx);
        return true;
    }
    if (status != FT_AGAIN) {
        FT_LOG(WARN, "net", s->side->rank, "%s", ft_fail_text());
        side_session_end(s, status, false, false);
        return true;
    }
    if (s->tx->state == FT_LINK_UP)
        return false;
    if (s->rest_ns == 0)
        s->rest_ns = now_ns + SIDE_REST_NS;
    if (s->rx != NULL && now_ns < s->rest_ns) {
        s->side->backlog = true;
        return false;
    }
    end_because_of(s, s->tx);
    return true;
}

static bool expired(struct side_session *s, uint64_t now_ns)
{
    if (s->rx != NULL || s->back_ns == 0 || now_ns < s->back_ns)
        return false;
    ft_fail(FT_TIMEOUT, "engine %016" PRIx64 " did not connect back for %u s", s->peer,
            (unsigned)(SIDE_BACK_NS / 1000000000u));
    side_session_end(s, FT_TIMEOUT, false, false);
    return true;
}

static void session_turn(struct side_session *s, uint64_t now_ns, bool tick)
{
    if (s->tx->state == FT_LINK_UP && s->back_ns == 0)
        greet(s, now_ns);
    side_session_pump(s);
    if (receive(s, now_ns) || !tick || expired(s, now_ns))
        return;
    side_conns_expire(s, now_ns);
}

void side_sessions_turn(struct ft_side *side, uint64_t now_ns)
{
    const bool tick = now_ns >= side->tick_ns;

    if (tick)
        side->tick_ns = now_ns + SIDE_TICK_NS;
    side->unsent = false;
    strangers_turn(side, now_ns);
    for (struct side_session *s = side->sessions, *next; s != NULL; s = next) {
        next = s->next;
        session_turn(s, now_ns, tick);
    }
}

/* Whether more than a goodbye was not sent: a goodbye of the link would be taken for the end of
 * such a conversation. */
static bool has_unsent(const struct side_session *s)
{
    for (const struct side_conn *c = s->conns; c != NULL; c = c->next) {
        const unsigned left = c->count - c->given;
        const struct ft_header *last = &c->out[(c->head + c->count - 1) % SIDE_QUEUE].header;
        if (left > 1 ||
            (left == 1 && (last->step != SIDE_CLOSE || last->seq != SIDE_CLOSE_GOODBYE)))
            return true;
    }
    return false;
}

void side_sessions_close(struct ft_side *side)
{
    while (side->strangers != NULL) {
        struct side_stranger *x = side->strangers;
        side->strangers = x->next;
        end_link(x->link, true);
        free(x);
    }
    while (side->sessions != NULL) {
        struct side_session *s = side->sessions;
        side->sessions = s->next;
        side_session_pump(s);
        const bool cut = has_unsent(s);
        end_link(s->tx, cut);
        end_link(s->rx, cut);
        while (s->conns != NULL) {
            struct side_conn *c = s->conns;
            s->conns = c->next;
            free(c);
        }
        free(s);
    }
}

/*
 * Side connections: the calls and the turn.
 */
#include "transport/side_parts.h"
#include "base/auth.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define EVENTS_A_LOOK 16

int ft_side_open(const struct ft_transport_config *config, struct ft_side **out)
{
    struct ft_transport_config inner = *config;
    struct ft_side *side = calloc(1, sizeof(*side));

    if (side == NULL)
        return ft_fail(FT_NOMEM, "no memory for side connections");
    inner.chunk_bytes = FT_SIDE_BYTES;
    inner.first_bytes = 0;
    inner.pinned = NULL;
    inner.connections = 1;
    /* So that a link of another transport cannot end here. */
    ft_auth_derive(inner.key, config->key, "side", 0);
    side->env = config->env;
    side->rank = config->rank;
    int status = ft_transport_tcp.open(&inner, &side->tcp);
    if (status == FT_OK)
        status = side->tcp->ops->bind(side->tcp, SIDE_CTX);
    if (status != FT_OK) {
        ft_side_close(side);
        return status;
    }
    *out = side;
    return FT_OK;
}

void ft_side_close(struct ft_side *side)
{
    if (side == NULL)
        return;
    side_sessions_close(side);
    while (side->orphans != NULL) {
        struct side_conn *c = side->orphans;
        side->orphans = c->next;
        free(c);
    }
    if (side->tcp != NULL)
        side->tcp->ops->close(side->tcp);
    free(side);
}

int ft_side_address(struct ft_side *side, void *buf, size_t capacity_bytes)
{
    return side->tcp->ops->address(side->tcp, buf, capacity_bytes);
}

bool ft_side_reaches(struct ft_side *side, const void *address, size_t len_bytes)
{
    return side->tcp->ops->reaches(side->tcp, address, len_bytes);
}

int ft_side_connect(struct ft_side *side, uint64_t peer, const void *address, size_t len_bytes,
                    void *user, struct ft_side_conn **out)
{
    struct side_session *s;
    unsigned opened = 0;
    int status = side_session_get(side, peer, address, len_bytes, &s);

    if (status != FT_OK)
        return status;
    for (const struct side_conn *c = s->conns; c != NULL; c = c->next)
        opened += c->opener;
    if (opened >= FT_SIDE_CONNS)
        return ft_fail(FT_NOMEM, "%u side connections with engine %016" PRIx64 " are open", opened,
                       peer);
    struct side_conn *c = side_conn_open(s, ++s->last_number, true);
    if (c == NULL)
        return FT_NOMEM;
    c->base.user = user;
    c->deadline_ns = ft_now_ns(side->env) + SIDE_OPEN_NS;
    *out = &c->base;
    return FT_OK;
}

int ft_side_send(struct ft_side_conn *conn, unsigned kind, const void *data, size_t len_bytes)
{
    struct side_conn *c = FT_CONTAINER(conn, struct side_conn, base);

    if (len_bytes > FT_SIDE_BYTES)
        return ft_fail(FT_INVAL, "a message of %zu bytes is too long for a side connection",
                       len_bytes);
    if (c->down || c->closed)
        return FT_LINK;
    if (c->count + 1 >= SIDE_QUEUE)
        return FT_AGAIN;
    side_conn_put(c, SIDE_MESSAGE, kind, data, len_bytes);
    side_session_pump(c->session);
    return FT_OK;
}

bool ft_side_flushed(struct ft_side_conn *conn)
{
    struct side_conn *c = FT_CONTAINER(conn, struct side_conn, base);

    if (c->down)
        return true;
    side_session_pump(c->session);
    return c->count == 0 && c->side->tcp->ops->flushed(c->session->tx);
}

void ft_side_disconnect(struct ft_side_conn *conn, bool goodbye)
{
    struct side_conn *c = FT_CONTAINER(conn, struct side_conn, base);

    conn->user = NULL;
    c->closed = true;
    c->side->backlog = true;
    if (c->down)
        return;
    side_conn_put(c, SIDE_CLOSE, goodbye ? SIDE_CLOSE_GOODBYE : SIDE_CLOSE_BROKEN, NULL, 0);
    side_session_pump(c->session);
}

/* Looks at the sockets. */
static void look(struct ft_side *side, uint64_t now_ns, bool *moved)
{
    struct ft_event events[EVENTS_A_LOOK];
    int n = EVENTS_A_LOOK;

    side->look_ns = now_ns + SIDE_LOOK_NS;
    while (n == EVENTS_A_LOOK) {
        n = side->tcp->ops->poll(side->tcp, events, EVENTS_A_LOOK, moved);
        /* Other events show in the states of the links. */
        for (int i = 0; i < n; i++)
            if (events[i].what == FT_EVENT_ACCEPTED)
                side_accepted(side, events[i].link);
    }
}

int ft_side_poll(struct ft_side *side, struct ft_side_event *events, int max, bool *busy)
{
    const uint64_t now_ns = ft_now_ns(side->env);
    bool moved = false, due = side->backlog || now_ns >= side->look_ns;

    if (!due)
        return 0;
    due = side->backlog || side->unsent || now_ns >= side->tick_ns;
    side->backlog = false;
    side->events = events;
    side->max = (int)ft_min(max, FT_SIDE_EVENTS);
    side->nevents = 0;
    side_conns_reap(side);
    look(side, now_ns, &moved);
    if (moved || due) {
        side_sessions_turn(side, now_ns);
        side_conns_tell(side);
    }
    if (moved || side->nevents > 0)
        *busy = true;
    return side->nevents;
}

int ft_side_fd(struct ft_side *side)
{
    return side->tcp->ops->fd(side->tcp);
}

bool ft_side_arm(struct ft_side *side, bool on)
{
    side->look_ns = 0;
    if (!on)
        return side->tcp->ops->arm(side->tcp, false);
    return !side->backlog && side->tcp->ops->arm(side->tcp, true);
}

uint64_t ft_side_look_ns(const struct ft_side *side)
{
    return side->tcp->look_ns;
}

bool ft_side_measure(struct ft_side_conn *conn, struct ft_link_path *out)
{
    const struct side_conn *c = FT_CONTAINER(conn, struct side_conn, base);
    struct ft_link *tx = c->session != NULL ? c->session->tx : NULL;
    return tx != NULL && tx->ops->measure(tx, out);
}

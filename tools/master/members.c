#include "members.h"

#include <stdlib.h>

#define TURN_NS 20000000u /* between two looks who is silent, and which views are due */

/* The coordinator's own of a peer. A peer that sends it nothing has none. */
static struct ft_coord_conn **conn_of(struct daemon_peer *peer)
{
    return (struct ft_coord_conn **)daemon_peer_slot(peer, DAEMON_MEMBERS);
}

/* Everything that it says goes through here. */
static bool on_send(void *arg, void *owner_conn, enum ft_members_message type, const void *bytes,
                    size_t len)
{
    const struct daemon_message m = {DAEMON_MEMBERS, (uint16_t)type, bytes, len};
    (void)arg;
    if (daemon_peer_send(owner_conn, &m))
        return true;
    daemon_peer_end(owner_conn, "it does not read what it is told");
    return false;
}

static bool on_send_view(void *arg, void *owner_conn, const void *head, size_t head_bytes,
                         struct ft_blob *const *blobs, int nblobs)
{
    const struct daemon_message m = {DAEMON_MEMBERS, FT_MEMBERS_VIEW, head, head_bytes};
    (void)arg;
    if (daemon_peer_send_blobs(owner_conn, &m, blobs, nblobs))
        return true;
    daemon_peer_end(owner_conn, "it does not read what it is told");
    return false;
}

static int open_coord(struct members *m)
{
    const struct ft_coord_config config = {
        .env = ft_env_real(), .send = on_send, .send_view = on_send_view, .arg = m};
    return ft_coord_open(&config, &m->coord);
}

void members_begin_anew(struct members *m)
{
    struct ft_coord *old = m->coord;
    if (open_coord(m) == FT_OK) {
        ft_coord_close(old);
        m->stale = false;
    }
}

/* ---- time ------------------------------------------------------------------------------------ */

static void forget(struct members *m, struct daemon_peer *peer)
{
    struct ft_coord_conn **conn = conn_of(peer), *ended = *conn;
    if (!ended)
        return;
    *conn = NULL;
    ft_coord_closed(ended);
    if (--m->connections > 0)
        return;
    daemon_timer_stop(m->daemon, &m->timer);
    if (m->stale)
        members_begin_anew(m);
}

static void on_timer(void *arg)
{
    struct members *m = arg;
    members_look(m);
    for (struct daemon_peer *silent; (silent = ft_coord_tick(m->coord));) {
        forget(m, silent);
        daemon_peer_end(silent, "its members have been silent for too long");
    }
}

/* ---- connections ----------------------------------------------------------------------------- */

static struct ft_coord_conn *greet(struct members *m, struct daemon_peer *peer)
{
    if (m->connections == 0 &&
        daemon_timer_start(m->daemon, &m->timer, TURN_NS, on_timer, m) != FT_OK) {
        snprintf(m->trouble, sizeof m->trouble, "%.190s", ft_fail_text());
        return NULL;
    }
    struct ft_coord_conn *conn = ft_coord_connected(m->coord, peer);
    m->connections += conn != NULL;
    if (conn)
        daemon_peer_watched(peer); /* its end would count as a death, before suspectMs */
    if (m->connections == 0)
        daemon_timer_stop(m->daemon, &m->timer);
    return conn;
}

static bool on_message(void *arg, struct daemon_peer *peer, const struct daemon_message *message)
{
    struct members *m = arg;
    struct ft_coord_conn **conn = conn_of(peer);
    if (!members_serves(m, peer, message))
        return true;
    if (!*conn && !(*conn = greet(m, peer))) {
        daemon_peer_end(peer, "no memory or descriptor for its members");
        return true;
    }
    m->trouble[0] = '\0';
    if (!ft_coord_message(*conn, message->type, message->bytes, message->len))
        daemon_peer_end(peer, ft_fail_text());
    return true;
}

static void on_closed(void *arg, struct daemon_peer *peer)
{
    forget(arg, peer);
}

static void on_tick(void *arg)
{
    members_look(arg);
    members_lead_tick(arg);
}

/* ---- opening --------------------------------------------------------------------------------- */

struct members *members_open(struct daemon *d)
{
    struct members *m = calloc(1, sizeof *m);
    if (!m)
        return NULL;
    m->daemon = d;
    if (open_coord(m) == FT_OK && members_lead_open(m))
        return m;
    members_close(m);
    return NULL;
}

void members_add(struct members *m)
{
    const struct daemon_service service = {.number = DAEMON_MEMBERS,
                                           .name = "members",
                                           .arg = m,
                                           .message = on_message,
                                           .closed = on_closed,
                                           .tick = on_tick,
                                           .json = members_json,
                                           .page = members_page,
                                           .metrics = members_metrics};
    daemon_add(m->daemon, &service);
}

void members_close(struct members *m)
{
    if (!m)
        return;
    members_lead_close(m);
    ft_coord_close(m->coord);
    free(m);
}

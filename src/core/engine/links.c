/*
 * Links between two engines: one for each direction, over the first transport that reaches the
 * peer. All communicators share them and hold views and slots of them. So a link that ended is
 * closed only after the floor above has given these back (ft_engine_news_done()).
 */
#include "core/engine/internal.h"

#include <assert.h>

#define EVENTS 16
/* If a peer has replaced a link and its end does not come within this time, the old link counts as
 * broken. */
#define NEXT_LINK_NS 100000000u
#define PATH_NS 1000000000u /* time between two looks at a path */
#define PATHS_A_TICK 4      /* most looks in one tick, of 10 to 50 us each */
#define CONNECTIONS_MOST 16 /* of a link, that telemetry tells of */

/* ---- connecting ------------------------------------------------------------------------------ */

static int index_of(const struct ft_engine *engine, const struct ft_transport *transport)
{
    int i = 0;
    while (i < engine->ntransports - 1 && engine->transports[i] != transport)
        i++;
    return i;
}

/* Tries the transports from number `first` on. */
static int connect_to(struct ft_engine *engine, struct ft_peer *peer, int first)
{
    int rc = FT_NOTSUP;
    for (int i = first; i < engine->ntransports; i++) {
        struct ft_transport *transport = engine->transports[i];
        size_t len;
        const unsigned char *address = ft_peer_part(peer, transport->ops->name, &len);
        if (!address || !transport->ops->reaches(transport, address, len))
            continue;
        rc = transport->ops->connect(transport, peer->id, address, len, &peer->tx);
        if (rc != FT_OK)
            continue; /* shared memory may be full, and TCP may still work */
        engine->links[i]++;
        peer->tx_was_up = false;
        if (engine->telemetry)
            peer->tx_row = ft_telemetry_link_open(engine->telemetry, peer->id, peer->rank,
                                                  transport->ops->name, true);
        return FT_OK;
    }
    return rc == FT_NOTSUP ? ft_fail(FT_PEER, "no common transport reaches rank %d", peer->rank)
                           : rc;
}

int ft_engine_link(struct ft_engine *engine, struct ft_peer *peer, struct ft_link **out)
{
    return !peer->tx && ft_peer_is_gone(peer) ? FT_PEER : ft_engine_redial(engine, peer, out);
}

int ft_engine_redial(struct ft_engine *engine, struct ft_peer *peer, struct ft_link **out)
{
    ft_engine_assert_held(engine);
    if (!peer->tx) {
        if (peer->state == FT_PEER_DEAD)
            return FT_PEER;
        peer->redialled = ft_peer_is_gone(peer) && !ft_peer_is_fenced(peer);
        int rc = connect_to(engine, peer, 0);
        if (rc != FT_OK) {
            if (peer->redialled)
                ft_peer_move(engine, peer, FT_PEER_UNREACHABLE);
            return rc;
        }
    }
    *out = peer->tx;
    return peer->tx->state == FT_LINK_UP           ? FT_OK
           : peer->tx->state == FT_LINK_CONNECTING ? FT_AGAIN
                                                   : FT_LINK;
}

/* ---- closing --------------------------------------------------------------------------------- */

/* Closes a link, and drops the events that its transport reported for it in the same poll. */
static void disconnect_link(struct ft_engine *engine, struct ft_link *link)
{
    for (int i = 0; i < engine->nevents; i++)
        if (engine->events[i].link == link)
            engine->events[i].link = NULL;
    engine->links[index_of(engine, link->transport)]--;
    link->ops->disconnect(link);
}

static void close_rows(struct ft_engine *engine, struct ft_peer *peer, const struct ft_link *link)
{
    int *row = link == peer->tx ? &peer->tx_row : &peer->rx_row;
    if (engine->telemetry) {
        struct ft_link_time *time = link == peer->tx ? &peer->tx_time : &peer->rx_time;
        ft_telemetry_link_count(engine->telemetry, *row, link->messages, link->bytes,
                                time->transfer_ns, time->wait_ns);
        ft_telemetry_link_close(engine->telemetry, *row);
        ft_telemetry_path_close(engine->telemetry, time->path_row);
        ft_telemetry_conns_close(engine->telemetry, time->conn_row, time->nconns);
        time->path_row = -1;
        time->path_ns = 0;
        time->nconns = 0;
        if (time->latencies > 0)
            ft_telemetry_latency_close(engine->telemetry, time->latency_row);
        time->latencies = 0;
    }
    *row = -1;
}

void ft_engine_close_link(struct ft_engine *engine, struct ft_peer *peer, struct ft_link *link)
{
    ft_engine_assert_held(engine);
    close_rows(engine, peer, link);
    /* a goodbye would tell the fenced peer that this rank left */
    link->cut |= ft_peer_is_fenced(peer);
    if (link == peer->tx) {
        peer->tx = NULL;
        peer->breaks++;
    }
    if (link == peer->rx)
        peer->rx = NULL;
    disconnect_link(engine, link);
}

void ft_engine_close_next(struct ft_engine *engine, struct ft_peer *peer)
{
    if (!peer->next_rx)
        return;
    peer->next_rx->cut = true; /* its sender would understand a goodbye as this rank's leaving */
    disconnect_link(engine, peer->next_rx);
    assert(engine->waiting > 0);
    peer->next_rx = NULL;
    engine->waiting--;
}

/* ---- what transports say --------------------------------------------------------------------- */

void ft_links_peer_at(struct ft_peer *peer)
{
    size_t len;
    const struct ft_link *rx = peer->rx;
    const unsigned char *address = rx && rx->ops->peer_at ? ft_peer_part(peer, rx->ops->name, &len)
                                                          : NULL;
    if (address)
        rx->ops->peer_at(peer->rx, address, len);
}

static void receive_on(struct ft_engine *engine, struct ft_peer *peer, struct ft_link *link)
{
    peer->rx = link;
    peer->old_rx_ns = 0;
    peer->met = true;
    ft_links_peer_at(peer);
    if (engine->telemetry)
        peer->rx_row = ft_telemetry_link_open(engine->telemetry, peer->id, peer->rank,
                                              link->ops->name, false);
}

/* The peer was readmitted a moment ago, so a goodbye that arrives now may be one that it said in a
 * view that is over; see ft_engine_readmit(). */
static bool is_of_old_view(const struct ft_engine *engine, const struct ft_peer *peer)
{
    return peer->old_rx_ns && ft_now_ns(engine->env) < peer->old_rx_ns;
}

/* There is one link per direction. The end of a link that the peer has replaced may be seen later
 * than the new link. Then the new link waits for that end, so that communicators learn of the end
 * before they read later messages. */
static void on_accepted(struct ft_engine *engine, struct ft_link *link)
{
    struct ft_peer *peer = ft_engine_peer(engine, link->peer);
    engine->links[index_of(engine, link->transport)]++;
    if (!peer) {
        link->cut = true; /* its sender would understand a goodbye as this rank's leaving */
        disconnect_link(engine, link);
        return;
    }
    if (!peer->rx) {
        receive_on(engine, peer, link);
        return;
    }
    ft_engine_close_next(engine, peer);
    peer->next_rx = link;
    peer->next_rx_ns = ft_now_ns(engine->env);
    engine->waiting++;
    if (peer->rx->state == FT_LINK_DOWN || is_of_old_view(engine, peer))
        ft_peer_link_ends(engine, peer, false);
}

static void on_up(struct ft_engine *engine, const struct ft_link *link)
{
    struct ft_peer *peer = ft_engine_peer(engine, link->peer);
    if (!peer)
        return;
    peer->redialled = false;
    peer->met = peer->tx_was_up = true;
    if (peer->state == FT_PEER_LOST || peer->state == FT_PEER_UNREACHABLE)
        ft_peer_move(engine, peer, peer->departed ? FT_PEER_LEFT : FT_PEER_OPEN);
}

static void on_lost(struct ft_engine *engine, struct ft_peer *peer, struct ft_link *link)
{
    link->proof |= peer->state == FT_PEER_DEAD || ft_death_watch_ended(peer);
    FT_LOG(INFO, "net", engine->rank, "link %s rank %d over %s is down: %s",
           link->sender ? "to" : "from", peer->rank, link->ops->name,
           link->proof ? "its process has ended" : ft_status_text(link->reason));
    /* A peer that no link ever reached may have ended its work in order. Then only those fail that
     * need it later. */
    if (peer->met || link->proof)
        ft_peer_lost(engine, peer, link->reason, link->proof);
    else
        ft_peer_move(engine, peer, FT_PEER_LOST);
}

/* The sending link went down before it was up. True: the next transport that reaches the peer takes
 * its place. Nothing was sent on it, so nobody else learns of this. A peer that refuses this rank,
 * leaves, or does not answer would do so on every transport. */
static bool replace_unmade(struct ft_engine *engine, struct ft_peer *peer, struct ft_link *link)
{
    int reason = link->reason, next = index_of(engine, link->transport) + 1;
    bool elsewhere = reason != FT_AUTH && reason != FT_VERSION && reason != FT_TIMEOUT;
    if (peer->tx_was_up || !elsewhere || link->orderly || link->proof || peer->departed ||
        (ft_peer_is_gone(peer) && !peer->redialled) || ft_death_watch_ended(peer))
        return false;
    close_rows(engine, peer, link);
    if (connect_to(engine, peer, next) != FT_OK)
        return false;
    FT_LOG(INFO, "net", engine->rank, "no link to rank %d over %s (%s); trying %s", peer->rank,
           link->ops->name, ft_status_text(reason), peer->tx->ops->name);
    disconnect_link(engine, link);
    return true;
}

/* A host that does not answer on the receiving link does not answer on the sending one either, but
 * that shows only while something waits for an answer. The link ends now, so that an agreement
 * dials the peer again and learns whether it can be reached. */
static void end_sending(struct ft_engine *engine, struct ft_peer *peer)
{
    if (!peer->tx || peer->tx->state != FT_LINK_UP)
        return;
    peer->tx->cut = true;
    ft_peer_link_ends(engine, peer, true);
}

static void on_end(struct ft_engine *engine, struct ft_peer *peer, struct ft_link *link)
{
    if (link->orderly || peer->departed) {
        peer->departed = true;
        ft_peer_move(engine, peer, FT_PEER_LEFT);
    } else {
        on_lost(engine, peer, link);
    }
}

/* A receiving link that is down stays, so that its delivered messages can still be taken, unless a
 * new link waits. */
static void on_down(struct ft_engine *engine, struct ft_link *link)
{
    struct ft_peer *peer = ft_engine_peer(engine, link->peer);
    if (!peer)
        return;
    if (link == peer->next_rx) {
        ft_engine_close_next(engine, peer);
        return;
    }
    if (link == peer->tx && replace_unmade(engine, peer, link))
        return;
    engine->hung_up |= !peer->told;
    if (link == peer->rx && link->orderly && is_of_old_view(engine, peer)) {
        ft_peer_link_ends(engine, peer, false);
        return;
    }
    on_end(engine, peer, link);
    if (peer->redialled && link == peer->tx)
        ft_peer_move(engine, peer, FT_PEER_UNREACHABLE);
    if (link == peer->tx || (link == peer->rx && peer->next_rx))
        ft_peer_link_ends(engine, peer, link == peer->tx);
    if (link == peer->rx && link->silent)
        end_sending(engine, peer);
}

void ft_engine_news_done(struct ft_engine *engine, struct ft_peer *peer,
                         const struct ft_peer_news *news)
{
    struct ft_link *next = peer->next_rx;
    if (news->tx_end && peer->tx)
        ft_engine_close_link(engine, peer, peer->tx);
    if (!news->rx_end || (!next && !peer->old_rx_ns))
        return;
    if (peer->rx) {
        peer->rx->cut = true;
        ft_engine_close_link(engine, peer, peer->rx);
    }
    peer->old_rx_ns = 0;
    if (!next)
        return;
    assert(engine->waiting > 0);
    peer->next_rx = NULL;
    engine->waiting--;
    receive_on(engine, peer, next);
}

/* The end of a replaced link did not come in time: its other side is gone all the same. */
void ft_links_take_overdue(struct ft_engine *engine)
{
    for (struct ft_peer *peer = engine->roster; peer && engine->waiting; peer = peer->next_known) {
        if (!peer->next_rx || engine->ticked_ns - peer->next_rx_ns < NEXT_LINK_NS)
            continue;
        ft_peer_lost(engine, peer, FT_LINK, false);
        ft_peer_link_ends(engine, peer, false);
    }
}

bool ft_engine_poll(struct ft_engine *engine)
{
    bool busy = false;
    for (int i = 0; i < engine->ntransports; i++) {
        struct ft_transport *transport = engine->transports[i];
        if (engine->links[i] == 0 && engine->turns % FT_TURNS_RARELY != 0)
            continue;
        struct ft_event events[EVENTS];
        engine->events = events;
        engine->nevents = transport->ops->poll(transport, events, EVENTS, &busy);
        for (int k = 0; k < engine->nevents; k++) {
            busy = true;
            if (!events[k].link)
                continue;
            if (events[k].what == FT_EVENT_ACCEPTED)
                on_accepted(engine, events[k].link);
            else if (events[k].what == FT_EVENT_UP)
                on_up(engine, events[k].link);
            else
                on_down(engine, events[k].link);
        }
        engine->nevents = 0;
    }
    return busy;
}

/* ---- contexts -------------------------------------------------------------------------------- */

int ft_engine_bind_held(struct ft_engine *engine, uint64_t ctx)
{
    ft_engine_assert_held(engine);
    int rc = FT_OK, i = 0;
    for (; i < engine->ntransports && rc == FT_OK; i++)
        rc = engine->transports[i]->ops->bind(engine->transports[i], ctx);
    if (rc != FT_OK)
        for (int k = 0; k < i - 1; k++)
            engine->transports[k]->ops->unbind(engine->transports[k], ctx);
    if (rc == FT_OK && engine->gpu && engine->gpu->pinned)
        ft_readiness_open(engine->gpu->pinned, ctx);
    return rc;
}

int ft_engine_bind(struct ft_engine *engine, uint64_t ctx)
{
    ft_engine_lock(engine);
    int rc = ft_engine_bind_held(engine, ctx);
    ft_engine_unlock(engine);
    return rc;
}

void ft_engine_unbind_held(struct ft_engine *engine, uint64_t ctx)
{
    ft_engine_assert_held(engine);
    if (engine->gpu && engine->gpu->pinned)
        ft_readiness_close(engine->gpu->pinned, ctx);
    for (int i = 0; i < engine->ntransports; i++)
        engine->transports[i]->ops->unbind(engine->transports[i], ctx);
}

void ft_engine_unbind(struct ft_engine *engine, uint64_t ctx)
{
    ft_engine_lock(engine);
    ft_engine_unbind_held(engine, ctx);
    ft_engine_unlock(engine);
}

/* ---- telemetry ------------------------------------------------------------------------------- */

/* Tells how long large messages have waited, once there are any. */
static void count_latencies(struct ft_engine *engine, const struct ft_link *link,
                            struct ft_link_time *time, int row)
{
    uint64_t counts = 0;
    for (int part = 0; part < FT_LATENCY_PARTS; part++)
        counts += link->latency[part].count;
    if (counts == time->latencies)
        return;
    if (time->latencies == 0)
        time->latency_row = ft_telemetry_latency_open(engine->telemetry, row);
    time->latencies = counts;
    ft_telemetry_latency(engine->telemetry, time->latency_row, link->latency);
}

/* Connections of the link were made again: that is an event. */
static void count_remakes(struct ft_engine *engine, const struct ft_peer *peer,
                          const struct ft_link *link, struct ft_link_time *time)
{
    if (link->remakes > time->remakes)
        ft_telemetry_event(engine->telemetry, FT_MOVED_LINK, peer->id, peer->rank, link->sender,
                           (int)ft_min(link->remakes - time->remakes, UINT8_MAX), FT_OK);
    time->remakes = link->remakes;
}

/* If bytes moved in this tick, the whole tick counts as transfer time of the link. */
static void count_link(struct ft_engine *engine, const struct ft_peer *peer,
                       const struct ft_link *link, struct ft_link_time *time, int row)
{
    count_remakes(engine, peer, link, time);
    if (link->bytes != time->bytes)
        time->transfer_ns += engine->ticked_ns - engine->ticked_before_ns;
    time->bytes = link->bytes;
    ft_telemetry_link_count(engine->telemetry, row, link->messages, link->bytes, time->transfer_ns,
                            time->wait_ns);
    count_latencies(engine, link, time, row);
}

/* The number of a link's connections does not change. */
static void measure_connections(struct ft_engine *engine, struct ft_link *link,
                                struct ft_link_time *time, int row)
{
    struct ft_link_conn conn[CONNECTIONS_MOST];
    const int n = link->ops->connections(link, conn, CONNECTIONS_MOST);
    if (time->nconns == 0 && n > 0) {
        time->nconns = n;
        time->conn_row = ft_telemetry_conns_open(engine->telemetry, row, n);
    }
    for (int i = 0; i < n && i < time->nconns && time->conn_row >= 0; i++)
        ft_telemetry_conn(engine->telemetry, time->conn_row + i, &conn[i]);
}

/* Asks the transport about the way of a link, once a second. Returns true if it did. */
static bool measure_path(struct ft_engine *engine, struct ft_link *link, struct ft_link_time *time,
                         int row)
{
    struct ft_link_path path;
    if (!link->ops->measure || link->state != FT_LINK_UP ||
        engine->ticked_ns - time->path_ns < PATH_NS)
        return false;
    if (time->path_ns == 0)
        time->path_row = ft_telemetry_path_open(engine->telemetry, row);
    time->path_ns = engine->ticked_ns;
    if (time->path_row >= 0 && link->ops->measure(link, &path))
        ft_telemetry_path_count(engine->telemetry, time->path_row, &path, engine->ticked_ns);
    if (link->ops->connections && link->sender)
        measure_connections(engine, link, time, row);
    return time->path_row >= 0;
}

void ft_links_count(struct ft_engine *engine)
{
    int measured = 0;
    for (struct ft_peer *peer = engine->roster; peer; peer = peer->next_known) {
        if (peer->tx) {
            count_link(engine, peer, peer->tx, &peer->tx_time, peer->tx_row);
            if (measured < PATHS_A_TICK)
                measured += measure_path(engine, peer->tx, &peer->tx_time, peer->tx_row);
        }
        if (peer->rx) {
            count_link(engine, peer, peer->rx, &peer->rx_time, peer->rx_row);
            if (measured < PATHS_A_TICK)
                measured += measure_path(engine, peer->rx, &peer->rx_time, peer->rx_row);
        }
    }
}

/*
 * The engine of one rank: its transports, device, peers and communicators, and the turn that moves
 * them all. Who turns it, and when it sleeps, is drive.c.
 */
#include "core/core.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#define EVENTS 16
#define TICK_NS 1000000u
/* a link that its sender has replaced is taken for broken after this time */
#define NEXT_LINK_NS 100000000u

/* ---- open and close -------------------------------------------------------------------------- */

static int watch_fd(struct ft_engine *engine, int fd)
{
    struct epoll_event event = {.events = EPOLLIN, .data.fd = fd};
    if (fd < 0 || epoll_ctl(engine->epoll_fd, EPOLL_CTL_ADD, fd, &event) == 0)
        return FT_OK;
    return ft_fail(ft_status_of_errno(errno), "epoll_ctl: %s", strerror(errno));
}

static int open_sleep(struct ft_engine *engine)
{
    engine->epoll_fd = ft_fd_own(epoll_create1(EPOLL_CLOEXEC));
    engine->event_fd = ft_fd_own(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    if (engine->epoll_fd < 0 || engine->event_fd < 0)
        return ft_fail(ft_status_of_errno(errno), "epoll or eventfd: %s", strerror(errno));
    return watch_fd(engine, engine->event_fd);
}

static int open_transports(struct ft_engine *engine, const struct ft_engine_config *config)
{
    struct ft_transport_config each = {.env = config->env,
                                       .self = config->id,
                                       .chunk_bytes = engine->tuning.chunk_bytes,
                                       .rank = config->rank,
                                       .first_bytes = ft_tuning_first_bytes(&engine->tuning),
                                       .pinned = engine->gpu ? engine->gpu->pinned : NULL,
                                       .suspect_ms = (uint64_t)config->suspect_ms};
    memcpy(each.key, config->key, sizeof each.key);
    for (int i = 0; config->transports[i] && i < FT_TRANSPORTS_MAX; i++) {
        struct ft_transport **at = &engine->transports[engine->ntransports];
        int rc = config->transports[i]->open(&each, at);
        if (rc == FT_NOTSUP) {
            FT_LOG(INFO, "net", config->rank, "transport %s is not usable here: %s",
                   config->transports[i]->name, ft_fail_text());
            continue;
        }
        if (rc != FT_OK)
            return rc;
        engine->ntransports++;
        if (!config->manual)
            rc = watch_fd(engine, (*at)->ops->fd(*at));
        if (rc != FT_OK)
            return rc;
    }
    return engine->ntransports > 0 ? FT_OK
                                   : ft_fail(FT_NOTSUP, "no transport is usable on this machine");
}

static int open_all(struct ft_engine *engine, const struct ft_engine_config *config)
{
    ft_cores_open(engine);
    int rc = ft_tuning_read(&engine->tuning);
    if (rc == FT_OK && !config->manual)
        rc = open_sleep(engine);
    if (rc == FT_OK)
        rc = ft_device_open(&engine->device);
    if (rc == FT_OK && !config->manual)
        rc = ft_device_open_gpu(config->gpu, &engine->gpu);
    if (rc == FT_OK)
        rc = open_transports(engine, config);
    if (rc == FT_OK)
        rc = ft_control_open(engine);
    if (rc == FT_OK && !config->manual)
        ft_death_watch_open(engine);
    engine->trim_ns = (uint64_t)ft_param_int(FT_PARAM_TRIM_MS) * 1000000u;
    bool told = config->suspect_ms != 0;
    ft_heartbeat_open(engine, told ? config->heartbeat_ms : ft_param_int(FT_PARAM_HEARTBEAT_MS),
                      told ? config->suspect_ms : ft_param_int(FT_PARAM_SUSPECT_MS));
    if (rc == FT_OK && !(engine->null_stream = ft_stream_new()))
        rc = ft_fail(FT_NOMEM, "no memory for a stream");
    if (rc == FT_OK && ft_param_int(FT_PARAM_TELEMETRY) && !config->manual)
        engine->telemetry = ft_telemetry_open(engine->env, engine->id, engine->host);
    return rc;
}

int ft_engine_open(const struct ft_engine_config *config, struct ft_engine **out)
{
    struct ft_engine *engine = calloc(1, sizeof *engine);
    if (!engine)
        return ft_fail(FT_NOMEM, "no memory for an engine");
    ft_fork_guard();
    engine->env = config->env;
    engine->id = config->id;
    engine->rank = config->rank;
    engine->manual = config->manual;
    engine->host = ft_host_id();
    engine->epoll_fd = engine->event_fd = -1;
    atomic_store(&engine->refs, 1);
    pthread_mutex_init(&engine->drive, NULL);
    pthread_mutex_init(&engine->inbox_lock, NULL);
    int rc = open_all(engine, config);
    if (rc == FT_OK) {
        ft_engine_enlist(engine);
        if (!config->manual)
            rc = ft_engine_start_thread(engine);
    }
    if (rc != FT_OK) {
        ft_engine_close(engine);
        ft_engine_unref(engine);
        return rc;
    }
    *out = engine;
    return FT_OK;
}

static void free_peers(struct ft_engine *engine)
{
    for (size_t i = 0; i < FT_ARRAY_LEN(engine->peers); i++)
        for (struct ft_peer *peer = engine->peers[i], *next; peer; peer = next) {
            next = peer->next;
            if (peer->tx)
                peer->tx->cut |= peer->fenced, peer->tx->ops->disconnect(peer->tx);
            if (peer->rx)
                peer->rx->cut |= peer->fenced, peer->rx->ops->disconnect(peer->rx);
            if (peer->next_rx)
                peer->next_rx->cut |= peer->fenced, peer->next_rx->ops->disconnect(peer->next_rx);
            free(peer->address);
            free(peer);
        }
    memset(engine->peers, 0, sizeof engine->peers);
    engine->roster = NULL;
}

void ft_engine_close(struct ft_engine *engine)
{
    ft_engine_delist(engine);
    ft_engine_stop_thread(engine);
    pthread_mutex_lock(&engine->drive);
    ft_agreement_close(engine);
    ft_grow_close(engine);
    ft_control_close(engine);
    ft_death_watch_close(engine);
    free_peers(engine);
    for (int i = 0; i < engine->ntransports; i++)
        engine->transports[i]->ops->close(engine->transports[i]);
    engine->ntransports = 0;
    if (engine->device)
        ft_device_close(engine->device);
    if (engine->gpu)
        ft_device_close(engine->gpu);
    engine->device = engine->gpu = NULL;
    ft_telemetry_close(engine->telemetry);
    engine->telemetry = NULL;
    pthread_mutex_unlock(&engine->drive);
    ft_fd_close(&engine->epoll_fd);
    /* others may be writing to the one or taking the other */
    pthread_mutex_lock(&engine->inbox_lock);
    ft_fd_close(&engine->event_fd);
    if (engine->null_stream)
        ft_stream_release(engine->null_stream);
    engine->null_stream = NULL;
    pthread_mutex_unlock(&engine->inbox_lock);
}

struct ft_stream *ft_engine_null_stream(struct ft_engine *engine)
{
    pthread_mutex_lock(&engine->inbox_lock);
    struct ft_stream *stream = engine->null_stream;
    if (stream)
        ft_stream_ref(stream);
    pthread_mutex_unlock(&engine->inbox_lock);
    return stream;
}

void ft_engine_ref(struct ft_engine *engine)
{
    atomic_fetch_add_explicit(&engine->refs, 1, memory_order_relaxed);
}

void ft_engine_unref(struct ft_engine *engine)
{
    if (atomic_fetch_sub_explicit(&engine->refs, 1, memory_order_acq_rel) != 1)
        return;
    pthread_mutex_destroy(&engine->drive);
    pthread_mutex_destroy(&engine->inbox_lock);
    free(engine);
}

/* ---- peers and links ------------------------------------------------------------------------- */

struct ft_peer *ft_engine_peer(struct ft_engine *engine, uint64_t id)
{
    struct ft_peer **at = &engine->peers[id % FT_ARRAY_LEN(engine->peers)];
    for (; *at; at = &(*at)->next)
        if ((*at)->id == id)
            return *at;
    struct ft_peer *peer = calloc(1, sizeof *peer);
    if (!peer)
        return NULL;
    peer->id = id;
    peer->rank = peer->tx_row = peer->rx_row = -1;
    peer->next_known = engine->roster;
    engine->roster = peer;
    return *at = peer;
}

int ft_engine_learn(struct ft_engine *engine, uint64_t id, uint64_t host, const void *address,
                    uint32_t len_bytes, int rank)
{
    struct ft_peer *peer = ft_engine_peer(engine, id);
    unsigned char *copy = malloc(len_bytes + 1);
    if (!peer || !copy) {
        free(copy);
        return ft_fail(FT_NOMEM, "no memory for a peer");
    }
    memcpy(copy, address, len_bytes);
    free(peer->address);
    peer->address = copy;
    peer->address_bytes = len_bytes;
    peer->host = host;
    peer->rank = rank;
    peer->told = true;
    ft_death_watch_learn(engine, peer);
    return FT_OK;
}

void ft_engine_forgive(struct ft_engine *engine, struct ft_peer *peer)
{
    if (!peer->lost || peer->unreachable || peer->dead || peer->departed)
        return;
    if (peer->rx && peer->rx->state == FT_LINK_DOWN)
        ft_engine_drop_link(engine, peer, peer->rx);
    peer->lost = false;
}

static int index_of(const struct ft_engine *engine, const struct ft_transport *transport)
{
    int i = 0;
    while (i < engine->ntransports - 1 && engine->transports[i] != transport)
        i++;
    return i;
}

static int connect_to(struct ft_engine *engine, struct ft_peer *peer)
{
    int rc = FT_NOTSUP;
    for (int i = 0; i < engine->ntransports; i++) {
        struct ft_transport *transport = engine->transports[i];
        size_t len;
        const unsigned char *address = ft_endpoint_part(peer->address, peer->address_bytes,
                                                        transport->ops->name, &len);
        if (!address || !transport->ops->reaches(transport, address, len))
            continue;
        rc = transport->ops->connect(transport, peer->id, address, len, &peer->tx);
        if (rc != FT_OK)
            continue; /* shared memory may be full where TCP still works */
        engine->links[i]++;
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
    return !peer->tx && (peer->lost || peer->fenced || peer->departed)
               ? FT_PEER
               : ft_engine_redial(engine, peer, out);
}

int ft_engine_redial(struct ft_engine *engine, struct ft_peer *peer, struct ft_link **out)
{
    if (!peer->tx) {
        if (peer->dead)
            return FT_PEER;
        peer->redialled = peer->lost || peer->departed;
        int rc = connect_to(engine, peer);
        if (rc != FT_OK) {
            peer->unreachable = peer->redialled;
            return rc;
        }
    }
    *out = peer->tx;
    return peer->tx->state == FT_LINK_UP           ? FT_OK
           : peer->tx->state == FT_LINK_CONNECTING ? FT_AGAIN
                                                   : FT_LINK;
}

/* A link goes; what its transport said of it in the same breath is void. */
static void disconnect_link(struct ft_engine *engine, struct ft_link *link)
{
    for (int i = 0; i < engine->nevents; i++)
        if (engine->events[i].link == link)
            engine->events[i].link = NULL;
    link->ops->disconnect(link);
}

void ft_engine_drop_link(struct ft_engine *engine, struct ft_peer *peer, struct ft_link *link)
{
    int *row = link == peer->tx ? &peer->tx_row : &peer->rx_row;
    if (engine->telemetry) {
        struct ft_link_time *time = link == peer->tx ? &peer->tx_time : &peer->rx_time;
        ft_telemetry_link_count(engine->telemetry, *row, link->messages, link->bytes,
                                time->transfer_ns, time->wait_ns);
        ft_telemetry_link_close(engine->telemetry, *row);
    }
    *row = -1;
    for (struct ft_comm *comm = engine->comms; comm; comm = comm->next)
        ft_lanes_forget(comm, peer, link);
    engine->links[index_of(engine, link->transport)]--;
    link->cut |= peer->fenced; /* it may only be told that it is, never that we left */
    if (link == peer->tx) {
        peer->tx = NULL;
        peer->breaks++;
    }
    if (link == peer->rx)
        peer->rx = NULL;
    disconnect_link(engine, link);
}

void ft_engine_cut_link(struct ft_engine *engine, struct ft_peer *peer, struct ft_link *link)
{
    link->cut = true;
    ft_engine_drop_link(engine, peer, link);
}

static void refuse_link(struct ft_engine *engine, struct ft_link *link)
{
    engine->links[index_of(engine, link->transport)]--;
    disconnect_link(engine, link);
}

void ft_engine_drop_next(struct ft_engine *engine, struct ft_peer *peer)
{
    if (!peer->next_rx)
        return;
    peer->next_rx->cut = true; /* its sender would take a goodbye for our leaving */
    refuse_link(engine, peer->next_rx);
    peer->next_rx = NULL;
    engine->waiting--;
}

static void receive_on(struct ft_engine *engine, struct ft_peer *peer, struct ft_link *link)
{
    if (peer->rx)
        ft_engine_cut_link(engine, peer, peer->rx);
    peer->rx = link;
    peer->met = true;
    if (engine->telemetry)
        peer->rx_row = ft_telemetry_link_open(engine->telemetry, peer->id, peer->rank,
                                              link->ops->name, false);
}

/* One link a direction. The end of the one that the peer has replaced may come later than the new
 * one: that waits for it, so that what the end means for communicators is seen before what they say
 * next. */
static void on_accepted(struct ft_engine *engine, struct ft_link *link)
{
    struct ft_peer *peer = ft_engine_peer(engine, link->peer);
    engine->links[index_of(engine, link->transport)]++;
    if (!peer)
        refuse_link(engine, link);
    else if (!peer->rx || peer->rx->state == FT_LINK_DOWN)
        receive_on(engine, peer, link);
    else {
        ft_engine_drop_next(engine, peer);
        peer->next_rx = link;
        peer->next_rx_ns = ft_now_ns(engine->env);
        engine->waiting++;
    }
}

static void take_next_link(struct ft_engine *engine, struct ft_peer *peer)
{
    struct ft_link *link = peer->next_rx;
    if (!link)
        return;
    peer->next_rx = NULL;
    engine->waiting--;
    receive_on(engine, peer, link);
}

/* A receiving link that is down stays, so that what it has delivered can still be taken; unless
 * there is another one. */
static void on_down(struct ft_engine *engine, struct ft_link *link)
{
    struct ft_peer *peer = ft_engine_peer(engine, link->peer);
    if (!peer)
        return;
    if (link == peer->next_rx) {
        ft_engine_drop_next(engine, peer);
        return;
    }
    engine->hung_up |= !peer->told;
    bool orderly = link->orderly || peer->departed;
    link->proof |= !orderly &&
                   (peer->dead || (peer->liveness && ft_liveness_ended(peer->liveness)));
    peer->departed |= orderly;
    peer->unreachable |= peer->redialled && link == peer->tx;
    peer->lost |= !orderly;
    peer->dead |= link->proof;
    if (!orderly) {
        FT_LOG(INFO, "net", engine->rank, "link %s rank %d over %s is down: %s",
               link->sender ? "to" : "from", peer->rank, link->ops->name,
               link->proof ? "its process has ended" : ft_status_text(link->reason));
        /* One that was never met may have ended its work in order: only who needs it fails, when it
         * comes to that. */
        for (struct ft_comm *comm = engine->comms; comm && (peer->met || link->proof);
             comm = comm->next)
            ft_comm_peer_down(comm, peer, link);
    }
    if (link == peer->tx)
        ft_engine_drop_link(engine, peer, link);
    else if (link == peer->rx)
        take_next_link(engine, peer);
}

/* The end of a replaced link does not come: its other side is gone all the same. */
static void take_overdue_links(struct ft_engine *engine)
{
    for (struct ft_peer *peer = engine->roster; peer && engine->waiting; peer = peer->next_known) {
        if (!peer->next_rx || engine->ticked_ns - peer->next_rx_ns < NEXT_LINK_NS)
            continue;
        /* it may have been given back meanwhile */
        struct ft_link down = {.peer = peer->id, .reason = FT_LINK};
        peer->lost = true;
        for (struct ft_comm *comm = engine->comms; comm; comm = comm->next)
            ft_comm_peer_down(comm, peer, &down);
        take_next_link(engine, peer);
    }
}

/* Nobody can refer to it any more: it is in no communicator, nobody told us of it, it asks for
 * none, and it has hung up. */
static bool is_past(const struct ft_engine *engine, const struct ft_peer *peer)
{
    if (peer->told || peer->users > 0 || peer->queued_messages > 0 || peer->tx || peer->next_rx)
        return false;
    return (!peer->rx || peer->rx->state == FT_LINK_DOWN) && !ft_grow_asks(engine, peer->id);
}

static void forget_peer(struct ft_engine *engine, struct ft_peer **known)
{
    struct ft_peer *peer = *known, **at = &engine->peers[peer->id % FT_ARRAY_LEN(engine->peers)];
    while (*at != peer)
        at = &(*at)->next;
    *at = peer->next;
    *known = peer->next_known;
    if (peer->rx)
        ft_engine_drop_link(engine, peer, peer->rx);
    for (size_t i = 0; i < FT_ARRAY_LEN(engine->abandoned); i++)
        if (engine->abandoned[i].peer == peer)
            engine->abandoned[i].peer = NULL;
    free(peer->address);
    free(peer);
}

/* Any number of engines may come, one after another: only those that are there count. */
static void forget_past(struct ft_engine *engine)
{
    engine->hung_up = false;
    for (struct ft_peer **at = &engine->roster; *at;) {
        if (is_past(engine, *at))
            forget_peer(engine, at);
        else {
            engine->hung_up |= !(*at)->told &&
                               (*at)->queued_messages > 0; /* they will be gone soon */
            at = &(*at)->next_known;
        }
    }
}

static void on_up(struct ft_engine *engine, const struct ft_link *link)
{
    struct ft_peer *peer = ft_engine_peer(engine, link->peer);
    if (peer)
        peer->lost = peer->redialled = peer->unreachable = false, peer->met = true;
}

int ft_engine_bind_held(struct ft_engine *engine, uint64_t ctx)
{
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

/* ---- the turn -------------------------------------------------------------------------------- */

static bool take_inbox(struct ft_engine *engine)
{
    if (!atomic_load_explicit(&engine->inbox_count, memory_order_relaxed))
        return false;
    pthread_mutex_lock(&engine->inbox_lock);
    struct ft_work *work = engine->inbox;
    engine->inbox = engine->inbox_tail = NULL;
    atomic_store_explicit(&engine->inbox_count, 0, memory_order_relaxed);
    pthread_mutex_unlock(&engine->inbox_lock);
    for (struct ft_work *next; work; work = next) {
        next = work->next;
        work->next = NULL;
        struct ft_comm *comm = work->comm;
        if (comm->tail)
            comm->tail->next = work;
        else
            comm->head = work;
        comm->tail = work;
    }
    return true;
}

static bool poll_transports(struct ft_engine *engine)
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

static bool turn_comms(struct ft_engine *engine)
{
    bool moved = false, active = engine->undecided || engine->outbox;
    for (struct ft_comm *comm = engine->comms, *next; comm; comm = next) {
        next = comm->next;
        moved |= ft_comm_turn(comm);
        active |= comm->head || comm->notices_left ||
                  atomic_load_explicit(&comm->retry.under_way, memory_order_relaxed);
    }
    atomic_store_explicit(&engine->active, active, memory_order_relaxed);
    return moved;
}

/* Where nothing comes in and nothing moved a turn ago, the communicators are asked again only every
 * FT_TURNS_OFTEN turns: a waiting thread notices a message the sooner. */
bool ft_engine_turn(struct ft_engine *engine)
{
    engine->turns++;
    bool moved = take_inbox(engine), looks = engine->manual || engine->turns % FT_TURNS_OFTEN == 0;
    if (engine->device)
        moved |= engine->device->ops->poll(engine->device) > 0;
    moved |= poll_transports(engine);
    moved |= ft_control_turn(engine);
    if (moved || looks || !engine->stuck)
        moved |= turn_comms(engine);
    engine->stuck = !moved;
    if (moved ? engine->turns % FT_TURNS_RARELY == 0 : looks)
        ft_engine_tick(engine);
    return moved;
}

/* A tick in which bytes moved is charged to the link as transfer time. */
static void count_link(struct ft_engine *engine, const struct ft_link *link,
                       struct ft_link_time *time, int row)
{
    if (link->bytes != time->bytes)
        time->transfer_ns += engine->ticked_ns - engine->ticked_before_ns;
    time->bytes = link->bytes;
    ft_telemetry_link_count(engine->telemetry, row, link->messages, link->bytes, time->transfer_ns,
                            time->wait_ns);
}

static void count_links(struct ft_engine *engine)
{
    for (size_t i = 0; i < FT_ARRAY_LEN(engine->peers); i++)
        for (struct ft_peer *peer = engine->peers[i]; peer; peer = peer->next) {
            if (peer->tx)
                count_link(engine, peer->tx, &peer->tx_time, peer->tx_row);
            if (peer->rx)
                count_link(engine, peer->rx, &peer->rx_time, peer->rx_row);
        }
}

static void trim_transports(struct ft_engine *engine, uint64_t now)
{
    engine->trimmed_ns = now;
    for (int i = 0; i < engine->ntransports; i++)
        engine->transports[i]->ops->trim(engine->transports[i]);
}

void ft_engine_tick(struct ft_engine *engine)
{
    uint64_t now = ft_now_ns(engine->env);
    if (now - engine->ticked_ns < TICK_NS)
        return;
    engine->ticked_before_ns = engine->ticked_ns;
    engine->ticked_ns = now;
    for (struct ft_comm *comm = engine->comms; comm; comm = comm->next)
        ft_comm_tick(comm, now);
    if (engine->hung_up)
        forget_past(engine);
    ft_death_watch_tick(engine);
    ft_heartbeat_tick(engine, now);
    if (engine->waiting)
        take_overdue_links(engine);
    if (engine->undecided)
        ft_agreement_tick(engine);
    if (engine->telemetry)
        count_links(engine);
    if (engine->trim_ns && now - engine->trimmed_ns >= engine->trim_ns)
        trim_transports(engine, now);
}

/*
 * A rank: an engine with all floors, and its turn. The engine collects what happens to peers and
 * what they say. This file passes it to the communicators and parts that it concerns. Nothing else
 * calls upward.
 */
#include "core/group/group.h"
#include "core/group/growth.h"

#include <stdlib.h>

struct rank {
    struct ft_engine engine; /* first: ft_engine_unref() frees all of it */
    struct ft_run_state run;
    struct ft_group_state group;
};

int ft_rank_open(const struct ft_engine_config *config, struct ft_engine **out)
{
    struct rank *rank = calloc(1, sizeof *rank);
    if (!rank)
        return ft_fail(FT_NOMEM, "no memory for an engine");
    struct ft_engine *engine = &rank->engine;
    engine->run = &rank->run;
    engine->group = &rank->group;
    engine->turn = ft_rank_turn;
    rank->run.null_stream = ft_stream_new();
    if (!rank->run.null_stream) {
        free(rank);
        return ft_fail(FT_NOMEM, "no memory for a stream");
    }
    int rc = ft_engine_open(engine, config);
    if (rc != FT_OK) {
        ft_rank_close(engine);
        ft_engine_unref(engine);
        return rc;
    }
    *out = engine;
    return FT_OK;
}

void ft_rank_close(struct ft_engine *engine)
{
    ft_engine_stop(engine);
    ft_engine_lock(engine);
    ft_agreement_close(engine);
    ft_grow_close(engine);
    ft_engine_unlock(engine);
    ft_engine_close(engine);
    pthread_mutex_lock(&engine->inbox_lock);
    struct ft_stream *stream = engine->run->null_stream;
    engine->run->null_stream = NULL;
    pthread_mutex_unlock(&engine->inbox_lock);
    if (stream)
        ft_stream_release(stream);
}

/* ---- what the engine has collected ----------------------------------------------------------- */

/* The receiving link ends, and the peer was readmitted a moment ago. If it said goodbye to what
 * began since, it has left, and what it sent before stays on the link. */
static bool has_left(struct ft_engine *engine, struct ft_peer *peer)
{
    bool left = false;
    for (struct ft_comm *comm = engine->run->comms; comm; comm = comm->next)
        left |= ft_comm_peer_left(comm, peer);
    return left && ft_engine_departs(engine, peer);
}

static void take_news(struct ft_engine *engine)
{
    struct ft_peer_news news;
    struct ft_peer *peer;
    while (engine->news && (peer = ft_engine_next_news(engine, &news)) != NULL) {
        for (struct ft_comm *comm = news.lost ? engine->run->comms : NULL; comm; comm = comm->next)
            ft_comm_peer_lost(comm, peer, news.reason, news.proof);
        if (news.tx_end)
            ft_link_give_back(engine, peer, peer->tx);
        if (news.rx_end && has_left(engine, peer))
            news.rx_end = false;
        if (news.rx_end)
            ft_link_give_back(engine, peer, peer->rx);
        ft_engine_news_done(engine, peer, &news);
    }
}

static void take_message(struct ft_engine *engine, struct ft_peer *peer, const struct ft_ctl_in *in)
{
    switch (in->head.what) {
    case 0: /* a damaged message; its sender repeats it */
        break;
    case FT_CTL_AGREE:
    case FT_CTL_GONE:
        ft_agreement_receive(engine, peer, in);
        break;
    case FT_CTL_ASK:
    case FT_CTL_TELL:
        ft_grow_receive(engine, peer, in);
        break;
    case FT_CTL_ABANDONED:
        ft_abandoned_receive(engine, peer, &in->head);
        break;
    case FT_CTL_VALIDATE:
        ft_validation_receive(engine, peer, in);
        break;
    case FT_CTL_BEAT:
        ft_heartbeat_receive(engine, peer, in);
        break;
    case FT_CTL_RAS:
        ft_ras_hear(&engine->ras, peer->id, in->head.instance, in->head.ctx, in->data,
                    in->len_bytes);
        break;
    default:
        ft_control_unknown(engine, peer, in->head.what);
    }
}

/* Takes only a few messages of each peer, so that a peer that never stops cannot occupy the engine.
 */
static bool take_messages(struct ft_engine *engine)
{
    struct ft_ctl_in in;
    bool moved = false;
    for (struct ft_peer *peer = engine->roster; peer; peer = peer->next_known)
        for (int n = 0; n < FT_WINDOW_CTL && ft_control_receive(engine, peer, &in); n++) {
            take_message(engine, peer, &in);
            moved = true;
        }
    return moved;
}

/* ---- the turn -------------------------------------------------------------------------------- */

static bool turn_comms(struct ft_engine *engine)
{
    bool moved = false, active = engine->group->undecided || engine->outbox;
    for (struct ft_comm *comm = engine->run->comms, *next; comm; comm = next) {
        next = comm->next;
        moved |= ft_comm_turn(comm);
        active |= ft_comm_is_active(comm);
    }
    atomic_store_explicit(&engine->active, active, memory_order_relaxed);
    return moved;
}

/* Marks the peers that must hear this rank's heartbeats because of this communicator. */
static void mark_watchers(struct ft_engine *engine, const struct ft_comm *comm)
{
    int watcher[FT_WATCHERS_MAX];
    int n = ft_detect_watchers(comm->view.nranks, comm->view.rank, watcher, FT_WATCHERS_MAX);
    for (int i = 0; i < n; i++)
        if (!comm->group->gone[watcher[i]].left)
            ft_heartbeat_mark(engine, comm->peers[watcher[i]]);
}

static void send_heartbeats(struct ft_engine *engine)
{
    for (struct ft_comm *comm = engine->run->comms; comm; comm = comm->next)
        if (engine->ticked_ns - comm->opened_ns >= engine->detect.beat_ns)
            mark_watchers(engine, comm);
    ft_heartbeat_send(engine);
    for (struct ft_comm *comm = engine->run->comms; comm; comm = comm->next)
        if (comm->limits.silence_ms > 0)
            ft_comm_watch_silence(comm);
}

/* The slow part of a turn, at most once a millisecond. */
static void tick(struct ft_engine *engine)
{
    if (!ft_engine_tick_due(engine))
        return;
    for (struct ft_comm *comm = engine->run->comms; comm; comm = comm->next)
        ft_comm_tick(comm);
    ft_engine_tick(engine);
    ft_validation_look(engine);
    if (ft_heartbeat_due(engine))
        send_heartbeats(engine);
    take_news(engine);
    if (engine->group->undecided)
        ft_agreement_tick(engine);
}

/* If nothing comes in and nothing moved in the last turn, the communicators get a turn only every
 * FT_TURNS_OFTEN turns. So a waiting thread notices a message sooner. */
bool ft_rank_turn(struct ft_engine *engine)
{
    ft_engine_assert_held(engine);
    engine->turns++;
    bool often = engine->turns % FT_TURNS_OFTEN == 0, looks = engine->manual || often;
    bool moved = ft_run_take_inbox(engine);
    if (engine->device)
        moved |= engine->device->ops->poll(engine->device) > 0;
    moved |= ft_engine_poll(engine);
    take_news(engine);
    if (often)
        moved |= take_messages(engine);
    take_news(engine);
    if (engine->outbox)
        moved |= ft_control_flush(engine);
    if (moved || looks || !engine->stuck)
        moved |= turn_comms(engine);
    engine->stuck = !moved;
    if (moved ? engine->turns % FT_TURNS_RARELY == 0 : looks)
        tick(engine);
    return moved;
}

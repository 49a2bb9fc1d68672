/*
 * Heartbeats. Every rank tells about log2(n) other ranks of each of its communicators that it is
 * alive. A rank that does not hear an expected heartbeat suspects the sender. A suspicion alone
 * ends nothing: it is evidence for agreements and a hint for people. Option silenceMs counts from
 * the last heartbeat. If no operation has made a link, heartbeats make one when the communicator
 * has lived for one period. A rank that has no more reason to send says so once.
 *
 * Clocks. Over a network a heartbeat has the time at which it was sent. The receiver sends it back
 * with the times of its own clock at which it came and was answered. Both of its readings lie
 * between the two of the asker, which bounds the difference of the clocks. Of several rounds the
 * one with the least bound counts.
 */
#include "core/engine/engine.h"

#include <string.h>

enum { BEAT, LAST_BEAT, ECHO }; /* values of ft_ctl_head.instance */

/* Sent with heartbeats over a network: by each side's clock. `came` and `answered` only in ECHO. */
struct times {
    uint64_t asked_ns, came_ns, answered_ns;
};

void ft_heartbeat_open(struct ft_engine *engine, int64_t heartbeat_ms, int64_t suspect_ms)
{
    uint64_t beat_ns = (uint64_t)heartbeat_ms * 1000000u,
             suspect_ns = (uint64_t)suspect_ms * 1000000u;
    ft_detect_open(&engine->detect, beat_ns, suspect_ns > 2 * beat_ns ? suspect_ns : 2 * beat_ns,
                   ft_now_ns(engine->env));
}

static void send_beat(struct ft_engine *engine, struct ft_peer *peer, uint32_t what)
{
    struct ft_ctl_head head = {.what = FT_CTL_BEAT, .instance = what};
    struct times times = {.asked_ns = ft_now_ns(engine->env)};
    bool asks = what == BEAT && engine->telemetry && peer->tx &&
                peer->tx->ops->caps.scope == FT_SCOPE_NETWORK;
    ft_control_send(engine, peer, &head, &times, asks ? sizeof times.asked_ns : 0);
}

/* ---- clocks ---------------------------------------------------------------------------------- */

/* Heartbeats go one way. A link for the answers alone is made to one peer, so that the hosts of a
 * ring know each other's clocks at the price of one link a rank. */
static void send_echo(struct ft_engine *engine, struct ft_peer *peer, uint64_t asked_ns)
{
    if (!peer->tx && engine->echo_peer && engine->echo_peer != peer->id)
        return;
    if (!peer->tx)
        engine->echo_peer = peer->id;
    struct ft_ctl_head head = {.what = FT_CTL_BEAT, .instance = ECHO};
    uint64_t now_ns = ft_now_ns(engine->env);
    struct times times = {asked_ns, now_ns, now_ns};
    ft_control_send(engine, peer, &head, &times, sizeof times);
}

/* The bound of what was measured grows with its age. */
static uint64_t bound_of(const struct ft_clock *clock, uint64_t now_ns)
{
    return clock->error_ns + (now_ns - clock->measured_ns) / 1000000 * FT_CLOCK_DRIFT_PPM;
}

/* What a peer says is only believed of its own clock. */
static void take_echo(struct ft_engine *engine, struct ft_peer *peer, const struct times *times)
{
    struct ft_clock *clock = &peer->heartbeat.clock;
    uint64_t now_ns = ft_now_ns(engine->env);
    if (times->asked_ns > now_ns || times->came_ns > times->answered_ns ||
        times->answered_ns - times->came_ns > now_ns - times->asked_ns ||
        times->answered_ns > INT64_MAX)
        return;
    int64_t most_ns = (int64_t)times->came_ns - (int64_t)times->asked_ns,
            least_ns = (int64_t)times->answered_ns - (int64_t)now_ns;
    uint64_t error_ns = (uint64_t)(most_ns - least_ns) / 2 + 1;
    clock->seen_ns = now_ns;
    if (clock->measured_ns == 0 || error_ns <= bound_of(clock, now_ns)) {
        clock->offset_ns = least_ns + (most_ns - least_ns) / 2;
        clock->error_ns = error_ns;
        clock->measured_ns = now_ns;
    }
    ft_telemetry_clock(engine->telemetry, peer->id, clock);
}

static void take_times(struct ft_engine *engine, struct ft_peer *peer, const struct ft_ctl_in *in)
{
    struct times times = {0};
    bool asks = in->head.instance == BEAT && in->len_bytes == sizeof times.asked_ns,
         answers = in->head.instance == ECHO && in->len_bytes == sizeof times;
    if (!asks && !answers)
        return;
    memcpy(&times, in->data, in->len_bytes);
    if (asks && !ft_peer_is_gone(peer))
        send_echo(engine, peer, times.asked_ns);
    if (answers && engine->telemetry)
        take_echo(engine, peer, &times);
}

/* ---- heartbeats ------------------------------------------------------------------------------ */

bool ft_heartbeat_due(struct ft_engine *engine)
{
    if (engine->detect.beat_ns == 0)
        return false;
    ft_detect_tick(&engine->detect, engine->ticked_ns);
    if (engine->ticked_ns - engine->beat_ns < engine->detect.beat_ns)
        return false;
    engine->beat_ns = engine->ticked_ns;
    engine->beat_rounds++;
    return true;
}

void ft_heartbeat_mark(struct ft_engine *engine, struct ft_peer *peer)
{
    peer->heartbeat.round = engine->beat_rounds;
}

/* A peer that cannot be reached, or that need not hear from this rank. Whoever has a question for a
 * lost peer dials it again. */
static bool needs_no_beat(const struct ft_peer *peer)
{
    return ft_peer_is_gone(peer) || peer->departed;
}

static void send_beats(struct ft_engine *engine)
{
    for (struct ft_peer *peer = engine->roster; peer; peer = peer->next_known) {
        bool due = peer->heartbeat.round == engine->beat_rounds && !needs_no_beat(peer);
        /* a control message that already waits also shows that this rank is alive */
        if (due && peer->queued_messages == 0)
            send_beat(engine, peer, BEAT);
        else if (!due && peer->heartbeat.sends && peer->tx && !needs_no_beat(peer))
            send_beat(engine, peer, LAST_BEAT);
        peer->heartbeat.sends = due;
    }
}

static void look_for_silence(struct ft_engine *engine)
{
    for (struct ft_peer *peer = engine->roster; peer; peer = peer->next_known) {
        if (needs_no_beat(peer))
            peer->heartbeat.pulse.watched = false;
        if (!ft_detect_missed(&engine->detect, &peer->heartbeat.pulse))
            continue;
        peer->heartbeat.suspected = true;
        ft_telemetry_event(engine->telemetry, FT_MOVED_SUSPICION, peer->id, peer->rank, 0, 1,
                           FT_OK);
        FT_LOG(INFO, "net", engine->rank, "rank %d is suspected: no heartbeat for %llu ms",
               peer->rank, (unsigned long long)(engine->detect.suspect_ns / 1000000));
    }
}

void ft_heartbeat_send(struct ft_engine *engine)
{
    ft_engine_assert_held(engine);
    send_beats(engine);
    look_for_silence(engine);
}

uint64_t ft_heartbeat_silence_ms(const struct ft_engine *engine, const struct ft_peer *peer,
                                 uint64_t since_ns)
{
    const struct ft_pulse *pulse = &peer->heartbeat.pulse;
    uint64_t heard_ns = pulse->watched ? pulse->heard_ns : ft_max(pulse->heard_ns, since_ns);
    return (engine->detect.running_ns - heard_ns) / 1000000;
}

void ft_heartbeat_receive(struct ft_engine *engine, struct ft_peer *peer,
                          const struct ft_ctl_in *in)
{
    take_times(engine, peer, in);
    if (in->head.instance == ECHO)
        return;
    if (!peer->heartbeat.pulse.watched)
        FT_LOG(TRACE, "net", engine->rank,
               "rank %d is heard for the first time, or after its last beat", peer->rank);
    if (ft_detect_heard(&engine->detect, &peer->heartbeat.pulse, ft_now_ns(engine->env)))
        FT_LOG(INFO, "net", engine->rank, "rank %d is heard again", peer->rank);
    if (peer->heartbeat.suspected)
        ft_telemetry_event(engine->telemetry, FT_MOVED_SUSPICION, peer->id, peer->rank, 1, 0,
                           FT_OK);
    peer->heartbeat.suspected = false;
    if (in->head.instance == LAST_BEAT)
        peer->heartbeat.pulse.watched = false;
}

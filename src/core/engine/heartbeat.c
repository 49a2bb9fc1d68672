/*
 * Heartbeats. Every rank tells about log2(n) other ranks of each of its communicators that it is
 * alive. A rank that does not hear an expected heartbeat suspects the sender. A suspicion alone
 * ends nothing: it is evidence for agreements and a hint for people. Option silenceMs counts from
 * the last heartbeat. If no operation has made a link, heartbeats make one when the communicator
 * has lived for one period. A rank that has no more reason to send says so once.
 */
#include "core/engine/engine.h"

enum { BEAT, LAST_BEAT }; /* values of ft_ctl_head.instance */

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
    ft_control_send(engine, peer, &head, NULL, 0);
}

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
                          const struct ft_ctl_head *head)
{
    if (!peer->heartbeat.pulse.watched)
        FT_LOG(TRACE, "net", engine->rank,
               "rank %d is heard for the first time, or after its last beat", peer->rank);
    if (ft_detect_heard(&engine->detect, &peer->heartbeat.pulse, ft_now_ns(engine->env)))
        FT_LOG(INFO, "net", engine->rank, "rank %d is heard again", peer->rank);
    peer->heartbeat.suspected = false;
    if (head->instance == LAST_BEAT)
        peer->heartbeat.pulse.watched = false;
}

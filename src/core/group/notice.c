/*
 * Notices between the ranks of a communicator, on its control channel. FAIL tells why it ended.
 * ANNOUNCE tells where an operation that does not move is; so different calls are found even if
 * their messages never meet. BYE tells that a rank destroyed its end. A notice comes from outside:
 * sizes, ranks and states are checked before use.
 */
#include "core/group/group.h"

#include <string.h>

enum { TELL_FAIL = 1, TELL_ANNOUNCE = 2, TELL_BYE = 4 };

struct notice {
    uint32_t what; /* a TELL_ value */
    int32_t status;
    int32_t culprit; /* ANNOUNCE: the rank that it waits for */
    uint32_t proof;  /* FAIL: 1: the culprit's process has ended, seen on its host */
    /* An operation. BYE: the last agreement whose outcome the sender knows, and whether it knows
     * that of policy retry. */
    uint64_t seq, sig;
    uint64_t done;   /* FAIL, BYE: the last operation that is complete on the sender */
    char text[388];  /* FAIL, BYE: why the communicator ended on the sender */
    int32_t noticed; /* FAIL, BYE: the rank that noticed it */
};

/* The peer cannot find out by itself why this rank ends, because it cannot see this process's
 * liveness page. */
static bool depends(const struct ft_peer *peer)
{
    bool hears = peer->rx && peer->rx->state == FT_LINK_UP;
    return !peer->watch.page && peer->state != FT_PEER_DEAD && (peer->tx || hears);
}

/* False for the culprit of a failure, if that rank was lost. */
static bool lives_on(const struct ft_comm *comm, int rank)
{
    const struct ft_failure *failure = &comm->failure;
    return rank != failure->culprit || failure->status == FT_MISMATCH ||
           failure->status == FT_CORRUPT;
}

static void queue_notice(struct ft_comm *comm, int rank, unsigned what)
{
    if (rank == comm->view.rank || (comm->group->notices[rank] & what))
        return;
    if (!comm->group->notices[rank])
        comm->group->notices_left++;
    comm->group->notices[rank] |= (unsigned char)what;
    atomic_store_explicit(&comm->failure.untold, comm->group->notices_left, memory_order_relaxed);
}

static void unqueue_notice(struct ft_comm *comm, int rank, unsigned what)
{
    comm->group->notices[rank] &= (unsigned char)~what;
    if (!comm->group->notices[rank])
        comm->group->notices_left--;
    atomic_store_explicit(&comm->failure.untold, comm->group->notices_left, memory_order_relaxed);
}

/* Another rank lost the culprit. If this rank has not, the culprit may live and be cut off from
 * that rank only. Then it hears at once why the others go on without it. No link is made for
 * that, and nobody waits until it has heard. A rank that is late hears when it comes. */
static void tell_culprit(struct ft_comm *comm)
{
    const int culprit = comm->failure.culprit;
    const struct ft_peer *peer = culprit >= 0 ? comm->peers[culprit] : NULL;
    if (peer && comm->failure.status == FT_PEER && peer->tx && peer->tx->state == FT_LINK_UP &&
        !ft_peer_is_gone(peer))
        queue_notice(comm, culprit, TELL_FAIL);
}

void ft_notice_broadcast(struct ft_comm *comm)
{
    for (int r = 0; r < comm->view.nranks; r++)
        if (lives_on(comm, r))
            queue_notice(comm, r, TELL_FAIL);
    tell_culprit(comm);
    /* may be 0 */
    atomic_store_explicit(&comm->failure.untold, comm->group->notices_left, memory_order_relaxed);
}

void ft_notice_announce(struct ft_comm *comm)
{
    for (int r = 0; r < comm->view.nranks; r++) {
        struct ft_peer *peer = comm->peers[r];
        if (peer && (peer->tx || comm->view.nranks <= FT_ANNOUNCE_ALL))
            queue_notice(comm, r, TELL_ANNOUNCE);
    }
    int rank = ft_work_waits_for(comm, NULL, 0).rank;
    if (rank >= 0)
        queue_notice(comm, rank, TELL_ANNOUNCE);
}

static void fill_notice(const struct ft_comm *comm, struct notice *notice, unsigned what)
{
    memset(notice, 0, sizeof *notice);
    notice->what = what;
    notice->status = ft_comm_is_open(comm) ? FT_OK : comm->failure.status;
    notice->culprit = what == TELL_ANNOUNCE ? comm->group->said_wait : comm->failure.culprit;
    const struct ft_peer *culprit = comm->failure.culprit >= 0 ? comm->peers[comm->failure.culprit]
                                                               : NULL;
    if (what == TELL_BYE) {
        notice->seq = comm->group->decided;
        notice->sig = comm->group->retry.decided;
    }
    if (what != TELL_ANNOUNCE) {
        notice->done = comm->calls.done;
        notice->noticed = comm->failure.noticed;
    }
    notice->proof = what == TELL_FAIL && culprit && culprit->state == FT_PEER_DEAD;
    if (what != TELL_ANNOUNCE && notice->status != FT_OK)
        snprintf(notice->text, sizeof notice->text, "%.*s", (int)comm->failure.cause_bytes,
                 comm->failure.text);
    for (const struct ft_op *op = comm->works.running ? comm->works.head->ops : NULL;
         op && what == TELL_ANNOUNCE; op = op->next) {
        if (op->state != FT_OP_RUNNING || !ft_kind_is_collective(op->coll.kind))
            continue;
        notice->seq = op->seq;
        notice->sig = op->sig;
        break;
    }
}

/* FT_AGAIN: not yet. Any other status: the notice is sent, or cannot be sent. */
static int send_notice(struct ft_comm *comm, int rank, unsigned what, bool connect)
{
    struct ft_peer *peer = comm->peers[rank];
    struct ft_link *link = peer->tx;
    if (!link && (!connect || ft_peer_is_gone(peer) || peer->departed))
        return FT_PEER;
    int rc = ft_engine_link(comm->engine, peer, &link);
    if (rc != FT_OK)
        return rc;
    struct ft_header header = {.ctx = comm->ctx, .lane = FT_LANE_CTL, .len = sizeof(struct notice)};
    void *slot;
    rc = link->ops->reserve(link, &header, &slot);
    if (rc != FT_OK)
        return rc;
    struct notice notice;
    fill_notice(comm, &notice, what);
    memcpy(slot, &notice, sizeof notice);
    ft_verify_seal(comm, &header, slot);
    link->ops->commit(link, &header, slot);
    return FT_OK;
}

/* A rank that hears of a failure passes it on to the ranks at distances of powers of two. That is
 * n log n messages, and the news survive the death of the first teller. */
static bool is_relay(const struct ft_comm *comm, int rank)
{
    int n = comm->view.nranks, distance = (rank - comm->view.rank + n) % n;
    return distance > 0 && (distance & (distance - 1)) == 0;
}

static bool send_due_notices(struct ft_comm *comm)
{
    bool moved = false;
    bool decided = ft_comm_state(comm) != FT_COMM_ASKING; /* while asking, nobody knows the cause */
    for (int r = 0; r < comm->view.nranks && comm->group->notices_left; r++)
        for (unsigned what = TELL_FAIL; comm->group->notices[r] && what <= TELL_BYE; what <<= 1) {
            if (!(comm->group->notices[r] & what) || (what != TELL_ANNOUNCE && !decided))
                continue;
            bool connect = what == TELL_ANNOUNCE ||
                           (what == TELL_FAIL &&
                            (!comm->failure.quiet || is_relay(comm, r) || depends(comm->peers[r])));
            if (send_notice(comm, r, what, connect) == FT_AGAIN)
                continue;
            unqueue_notice(comm, r, what);
            moved = true;
        }
    return moved;
}

static bool can_leave(struct ft_comm *comm, int rank)
{
    const struct ft_peer *peer = rank == comm->view.rank ? NULL : comm->peers[rank];
    struct ft_link *tx = peer ? peer->tx : NULL;
    if (!tx || tx->state == FT_LINK_DOWN || peer->departed || comm->group->gone[rank].left)
        return true;
    if (tx->state == FT_LINK_CONNECTING)
        return false;
    struct ft_header header = {.ctx = comm->ctx, .lane = FT_LANE_CTL, .len = sizeof(struct notice)};
    void *slot;
    int rc = tx->ops->reserve(tx, &header, &slot);
    if (rc == FT_OK)
        tx->ops->cancel(tx, &header, slot);
    return rc != FT_AGAIN;
}

bool ft_notice_can_leave(struct ft_comm *comm)
{
    bool all = true;
    for (int r = 0; r < comm->view.nranks; r++)
        all &= can_leave(comm, r);
    return all;
}

void ft_notice_bye(struct ft_comm *comm)
{
    for (int r = 0; r < comm->view.nranks; r++)
        if (r != comm->view.rank && comm->peers[r]->tx && comm->peers[r]->tx->state == FT_LINK_UP)
            send_notice(comm, r, TELL_BYE, false);
}

bool ft_notice_owes(const struct ft_comm *comm)
{
    for (int r = 0; r < comm->view.nranks; r++) {
        const struct ft_peer *peer = comm->peers[r];
        if (!peer || !lives_on(comm, r) || !depends(peer))
            continue;
        struct ft_link *tx = peer->tx;
        if (comm->group->notices[r] & TELL_FAIL)
            return true;
        if (tx && tx->state == FT_LINK_UP && tx->ops->flushed && !tx->ops->flushed(tx))
            return true;
    }
    return false;
}

static void take_fail(struct ft_comm *comm, int from, const struct notice *notice)
{
    struct ft_told told = ft_told_check(comm, from, notice->status, notice->culprit,
                                        notice->noticed);
    comm->failure.quiet = true;
    ft_comm_fail_told(comm, &told, notice->text);
    for (int r = 0; r < comm->view.nranks; r++)
        if (r != from && r != comm->view.rank && lives_on(comm, r) &&
            (comm->peers[r]->tx || is_relay(comm, r) || depends(comm->peers[r])))
            queue_notice(comm, r, TELL_FAIL);
    tell_culprit(comm);
}

/* Takes the proof of a death, also if this rank already knew of a failure. */
static void take_proof(struct ft_comm *comm, const struct notice *notice)
{
    if (notice->proof && notice->culprit >= 0 && notice->culprit < comm->view.nranks &&
        notice->culprit != comm->view.rank)
        ft_peer_move(comm->engine, comm->peers[notice->culprit], FT_PEER_DEAD);
}

/* An operation that the sender has committed is committed everywhere, and the sender may be gone
 * when the ranks agree. Nobody can have committed an operation that has not begun here. */
static void take_committed(struct ft_comm *comm, const struct notice *notice)
{
    if (notice->done <= comm->calls.seq && notice->done > comm->group->retry.told_op)
        comm->group->retry.told_op = notice->done;
}

static void take_announcement(struct ft_comm *comm, int from, const struct notice *notice)
{
    if (!ft_comm_is_open(comm))
        queue_notice(comm, from, TELL_FAIL);
    comm->calls.announced[from] = (struct ft_announced){
        .seq = notice->seq,
        .sig = notice->sig,
        .said_ns = comm->engine->ticked_ns,
        .waits = notice->culprit >= 0 && notice->culprit < comm->view.nranks,
        .waits_for = notice->culprit};
    comm->calls.any_announced = true;
    ft_mismatch_check(comm, from, notice->seq, notice->sig);
}

static void take_notice(struct ft_comm *comm, int from, struct notice *notice)
{
    ft_text_clean(notice->text, sizeof notice->text);
    if (notice->what != TELL_ANNOUNCE)
        take_committed(comm, notice);
    switch (notice->what) {
    case TELL_FAIL:
        take_proof(comm, notice);
        if (ft_comm_is_open(comm))
            take_fail(comm, from, notice);
        break;
    case TELL_ANNOUNCE:
        take_announcement(comm, from, notice);
        break;
    case TELL_BYE:
        comm->group->gone[from] = (struct ft_gone){.left = true,
                                                   .left_ns = comm->engine->ticked_ns,
                                                   .retried = notice->sig != 0,
                                                   .decided = (uint32_t)ft_min(notice->seq,
                                                                               UINT32_MAX)};
        if (notice->status != FT_OK && notice->text[0] && ft_comm_is_open(comm))
            take_fail(comm, from, notice);
        break;
    default:
        if (!comm->peers[from]->odd)
            FT_LOG(WARN, "net", comm->view.rank,
                   "unknown notice %u from rank %d ignored, as later ones are", notice->what, from);
        comm->peers[from]->odd = true;
    }
}

static bool receive_from(struct ft_comm *comm, int r)
{
    bool moved = false;
    struct ft_link *rx = r == comm->view.rank ? NULL : comm->peers[r]->rx;
    struct ft_msg msg;
    for (int n = 0;
         n < FT_WINDOW_CTL && rx && rx->ops->recv(rx, comm->ctx, FT_LANE_CTL, &msg) == FT_OK; n++) {
        struct notice notice;
        bool good = ft_verify_ok(comm, r, &msg, NULL, 0) && msg.header.len == sizeof notice;
        if (good)
            memcpy(&notice, msg.data, sizeof notice);
        rx->ops->release(rx, &msg);
        if (good)
            take_notice(comm, r, &notice);
        moved = true;
    }
    return moved;
}

void ft_notice_hear(struct ft_comm *comm, int rank)
{
    receive_from(comm, rank);
}

bool ft_notice_turn(struct ft_comm *comm)
{
    bool moved = false;
    for (int r = 0; r < comm->view.nranks; r++)
        moved |= receive_from(comm, r);
    return comm->group->notices_left ? send_due_notices(comm) || moved : moved;
}

void ft_notice_reset(struct ft_comm *comm)
{
    size_t n = (size_t)comm->view.nranks;
    memset(comm->group->notices, 0, n);
    memset(comm->group->gone, 0, n * sizeof *comm->group->gone);
    comm->group->notices_left = 0;
    comm->group->said_wait = -1;
    comm->group->failing_ns = 0;
}

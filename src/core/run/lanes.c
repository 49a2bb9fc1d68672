/*
 * The executor of collectives. Each lane of a communicator walks through the steps of its work's
 * operations. The sends and receives of a step proceed concurrently. When all messages have come
 * and all forwards have a slot, one pass of the device combines them. A step is over when nothing
 * it sent refers to user memory any more. Lanes never wait for each other, except that a comparison
 * waits until all lanes have finished its collective.
 */
#include "core/run/run.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#define STEPS_A_TURN 64 /* limits the steps of one turn, so that other lanes get theirs */
/* For a shorter message, a second copy is cheaper than telling the link where the message goes. */
#define EXPECTED_BYTES 4096

static bool is_collective(const struct ft_op *op)
{
    return ft_kind_is_collective(op->coll.kind);
}

static int lane_number(const struct ft_comm *comm, const struct ft_lane *lane)
{
    return (int)(lane - comm->lanes.at);
}

static bool is_empty(const struct ft_step *step)
{
    bool sends = step->nsend > 0 && step->send_bytes > 0;
    return !sends && step->len_bytes == 0;
}

static void finish_op(struct ft_comm *comm, struct ft_op *op)
{
    if (op->verifies)
        ft_verify_compare(comm, op);
    else if (!ft_verify_follows(op))
        ft_op_finish(op);
}

/* Whether the operation can begin on this lane. A comparison of results begins when its collective
 * is over on all lanes. */
static bool begins(struct ft_comm *comm, struct ft_op *op)
{
    if (!op->verifies || op->begun)
        return true;
    return op->verifies->lanes_left == 0 && ft_verify_digest(comm, op);
}

/* A repeated call has stored its steps. */
static const struct ft_step *step_at(const struct ft_comm *comm, struct ft_lane *lane)
{
    const struct ft_repeat *repeat = comm->fast->loaded;
    if (repeat)
        return &repeat->steps[lane->index];
    ft_plan_step(&lane->op->plan, lane_number(comm, lane), lane->index, &lane->planned);
    return &lane->planned;
}

/* Moves the lane to its next step, in this or a later operation of the work. */
static void advance_lane(struct ft_comm *comm, struct ft_lane *lane)
{
    int number = lane_number(comm, lane);
    lane->phase = FT_LANE_IDLE;
    while (lane->op) {
        struct ft_op *op = lane->op;
        bool mine = is_collective(op) && number < op->plan.nlanes;
        if (mine && !begins(comm, op)) {
            lane->phase = FT_LANE_HELD;
            return;
        }
        for (; mine && lane->index < op->plan.nsteps; lane->index++) {
            lane->step = step_at(comm, lane);
            if (is_empty(lane->step))
                continue;
            ft_lane_begin_step(lane);
            if (comm->engine->telemetry && !comm->fast->loaded)
                ft_telemetry_op_wait(comm->engine->telemetry, op->record, lane->index,
                                     ft_op_wait(number, false,
                                                lane->step->nrecv ? lane->step->recv_from[0] : -1));
            return;
        }
        struct ft_op *next = op->next;
        lane->index = 0;
        lane->op = next;
        if (mine && --op->lanes_left == 0)
            finish_op(comm, op);
    }
}

static struct ft_header header_of(const struct ft_comm *comm, const struct ft_lane *lane,
                                  size_t len_bytes)
{
    return (struct ft_header){.ctx = comm->ctx,
                              .sig = lane->op->sig,
                              .seq = (uint32_t)lane->op->seq,
                              .len = (uint32_t)len_bytes,
                              .lane = (uint16_t)lane_number(comm, lane),
                              .step = (uint16_t)lane->index};
}

/* Finds the link on which to send to a rank. FT_AGAIN: it connects. */
static int link_to(struct ft_comm *comm, const struct ft_op *op, int rank, struct ft_link **link)
{
    int rc = ft_engine_link(comm->engine, comm->peers[rank], link);
    return rc == FT_OK || rc == FT_AGAIN ? rc : ft_comm_fail_peer(comm, op, rank, rc);
}

/* A step's message has the same checksum for all receivers, and for all attempts to hand it
 * over. */
static void seal_message(const struct ft_comm *comm, struct ft_lane *lane, struct ft_header *header,
                         const void *data)
{
    if (!comm->limits.verify)
        return;
    if (!lane->sealed)
        lane->crc = ft_message_sum(header, data);
    lane->sealed = true;
    header->crc = lane->crc;
}

/* Whether storing the result changes bytes that the step sends. It does not if the result is what
 * the step sends, at the same place. */
static bool overwrites_sent(const struct ft_lane *lane)
{
    const struct ft_step *step = lane->step;
    if (step->nsend == 0 || step->dst.buf == FT_BUF_NONE)
        return false;
    uintptr_t from = (uintptr_t)ft_lane_at(lane->op, step->send),
              to = (uintptr_t)ft_lane_at(lane->op, step->dst);
    bool stays = step->nrecv == 0 && from == to && step->src.buf == step->send.buf &&
                 step->src.off == step->send.off;
    return !stays && from < to + step->len_bytes && to < from + step->send_bytes;
}

/* Whether a send may stay pending until the receiver has used it. It may not if the step's result
 * must wait for that: two ranks that exchange in place would wait for each other. */
static bool may_last(const struct ft_lane *lane)
{
    return (lane->step->flags & FT_STEP_MEETS) && !overwrites_sent(lane);
}

/* Sends the step's data to the k-th peer as it is. */
static int send_plain(struct ft_comm *comm, struct ft_lane *lane, int k, struct ft_link *link)
{
    const struct ft_op *op = lane->op;
    struct ft_header header = header_of(comm, lane, lane->step->send_bytes);
    const void *data = ft_lane_at(op, lane->step->send);
    struct ft_send *send = &lane->sends[k];
    send->status = FT_AGAIN;
    send->lasts = may_last(lane);
    if (send->lasts)
        data = ft_lane_copied(comm, lane, data);
    send->moved = !ft_kind_reduces(op->coll.kind) &&
                  (op->plan.pulled || comm->tuning.pulls != FT_PULLS_SLOW);
    seal_message(comm, lane, &header, data);
    return link->ops->send(link, &header, data, send);
}

/* A pass writes the step's data into a slot of the link to the k-th peer: scaled, or from where
 * links do not reach. */
static int send_by_pass(struct ft_comm *comm, struct ft_lane *lane, int k, struct ft_link *link)
{
    const struct ft_op *op = lane->op;
    const struct ft_ref *from = &lane->step->send;
    struct ft_pass_send now, *send = ft_pass_send_of(comm, op, lane_number(comm, lane), k, &now);
    struct ft_reduce pass = {.type = op->coll.type,
                             .op = op->redop,
                             .scaled = op->redop.scaled && from->buf == FT_BUF_IN,
                             .nsrc = 1,
                             .ndst = 1,
                             .count = lane->step->send_bytes / op->plan.esize,
                             .src = {ft_lane_at(op, *from)}};
    if (!send->slot) {
        send->header = header_of(comm, lane, lane->step->send_bytes);
        send->staged = from->buf == FT_BUF_TMP;
        send->to = lane->step->send_to[k];
    }
    int rc = ft_pass_put(comm, op, link, &pass, send);
    if (rc == FT_OK)
        lane->sends[k].status = FT_OK;
    if (rc == FT_DEVICE)
        ft_pass_failed(comm, rc);
    return rc;
}

static int send_one(struct ft_comm *comm, struct ft_lane *lane, int k)
{
    struct ft_op *op = lane->op;
    int rank = lane->step->send_to[k];
    struct ft_link *link;
    int rc = link_to(comm, op, rank, &link);
    if (rc != FT_OK)
        return rc;
    if (!ft_op_links_reach(op) || (op->redop.scaled && lane->step->send.buf == FT_BUF_IN))
        rc = send_by_pass(comm, lane, k, link);
    else
        rc = send_plain(comm, lane, k, link);
    return rc == FT_OK || rc == FT_AGAIN ? rc : ft_comm_fail_peer(comm, op, rank, rc);
}

/* Where the step's only message goes unchanged. NULL: the step combines its messages with something
 * first. */
static char *moves_to(const struct ft_lane *lane)
{
    const struct ft_step *step = lane->step;
    bool moves = ft_op_links_reach(lane->op) && step->nrecv == 1 && step->src.buf == FT_BUF_NONE &&
                 step->dst.buf != FT_BUF_NONE;
    bool divides = (step->flags & FT_STEP_FINAL) && lane->op->redop.divisor > 1;
    return moves && !divides ? ft_lane_at(lane->op, step->dst) : NULL;
}

/* A long message that has not come yet may be received directly at its destination, unless it must
 * be checked first. A message that is also forwarded is better received into the link's memory:
 * that stays in the caches, and the destination is stored past them. */
static void expect_message(struct ft_comm *comm, struct ft_lane *lane, struct ft_link *rx)
{
    if (lane->expects || lane->step->len_bytes < EXPECTED_BYTES || lane->step->nfwd > 0 ||
        !rx->ops->expect)
        return;
    if (comm->limits.verify || overwrites_sent(lane))
        return;
    char *to = moves_to(lane);
    if (!to)
        return;
    struct ft_header header = header_of(comm, lane, lane->step->len_bytes);
    rx->ops->expect(rx, &header, to);
    lane->expects = true;
}

static bool is_of_step(const struct ft_lane *lane, const struct ft_header *got)
{
    const struct ft_op *op = lane->op;
    return got->sig == op->sig && got->seq == (uint32_t)op->seq &&
           got->len == lane->step->len_bytes;
}

/* The communicator fails, because a rank sent a message that this step does not expect. */
static void fail_unexpected(struct ft_comm *comm, const struct ft_lane *lane, int rank,
                            const struct ft_header *got)
{
    const struct ft_op *op = lane->op;
    uint64_t seq = op->seq + (uint64_t)(int64_t)(int32_t)(got->seq - (uint32_t)op->seq);
    if (!ft_mismatch_check(comm, rank, seq, got->sig))
        ft_comm_fail(comm, FT_MISMATCH, rank,
                     "operation %llu: rank %d sent %u bytes in its step %u of operation %llu where "
                     "%zu bytes were due in step %llu",
                     (unsigned long long)op->seq, rank, got->len, got->step,
                     (unsigned long long)seq, lane->step->len_bytes,
                     (unsigned long long)lane->index);
}

/* Makes sure that the k-th message can be read, and that the step expects it. After any other
 * answer than FT_OK the caller releases the message. */
static int check_message(struct ft_comm *comm, struct ft_lane *lane, int k, struct ft_link *rx)
{
    const struct ft_op *op = lane->op;
    int rank = lane->step->recv_from[k], rc = FT_OK;
    struct ft_msg *msg = &lane->msgs[k];
    if (msg->unfetched && (comm->limits.verify || !moves_to(lane)))
        rc = rx->ops->fetch(rx, msg, NULL);
    if (rc == FT_LINK)
        return rc;
    /* The sender has withdrawn the message: it has failed, and another message tells why. */
    if (rc == FT_AGAIN || !ft_msg_intact(msg))
        return FT_AGAIN;
    if (!ft_pass_takes(comm, op, rank, msg) || !ft_verify_ok(comm, rank, msg, op, lane->index))
        return FT_CORRUPT;
    return is_of_step(lane, &msg->header) ? FT_OK : FT_MISMATCH;
}

/* Takes the k-th message, if it is here and is the one that this step expects. */
static int recv_one(struct ft_comm *comm, struct ft_lane *lane, int k)
{
    int rank = lane->step->recv_from[k];
    struct ft_peer *peer = comm->peers[rank];
    struct ft_link *rx = peer->rx;
    struct ft_msg *msg = &lane->msgs[k];
    if (!rx)
        return ft_peer_is_gone(peer) ? ft_comm_fail_peer(comm, lane->op, rank, FT_PEER) : FT_AGAIN;
    int rc = rx->ops->recv(rx, comm->ctx, (unsigned)lane_number(comm, lane), msg);
    if (rc == FT_AGAIN) {
        expect_message(comm, lane, rx);
        return rc;
    }
    if (rc != FT_OK)
        return ft_comm_fail_peer(comm, lane->op, rank, rc);
    rc = check_message(comm, lane, k, rx);
    if (rc == FT_OK)
        return rc;
    struct ft_header header = msg->header;
    rx->ops->release(rx, msg);
    if (rc == FT_LINK)
        return ft_comm_fail_peer(comm, lane->op, rank, rc);
    if (rc == FT_MISMATCH)
        fail_unexpected(comm, lane, rank, &header);
    return rc;
}

/* Reserves a slot for the result in the link to each fwd_to. */
static bool reserve_forwards(struct ft_comm *comm, struct ft_lane *lane)
{
    for (int k = 0; k < lane->step->nfwd; k++) {
        if (lane->reserved & 1u << k)
            continue;
        struct ft_link *link;
        int rank = lane->step->fwd_to[k];
        if (link_to(comm, lane->op, rank, &link) != FT_OK)
            return false;
        lane->headers[k] = header_of(comm, lane, lane->step->len_bytes);
        int rc = ft_pass_reserve(comm, lane->op, rank, &lane->headers[k], &lane->slots[k]);
        if (rc == FT_AGAIN)
            return false;
        if (rc != FT_OK) {
            ft_comm_fail_peer(comm, lane->op, rank, rc);
            return false;
        }
        lane->reserved |= 1u << k;
    }
    return true;
}

static bool sends_complete(const struct ft_lane *lane)
{
    for (int k = 0; k < lane->step->nsend; k++)
        if ((lane->sent & 1u << k) && lane->sends[k].status == FT_AGAIN)
            return false;
    return true;
}

/* Whether storing the result changes bytes that a pending send still reads. */
static bool overwrites_send(const struct ft_lane *lane)
{
    return overwrites_sent(lane) && !sends_complete(lane);
}

/* Writes only the fields that are used: for a small message, clearing the whole struct takes too
 * long. */
static void fill_pass(const struct ft_lane *lane, struct ft_reduce *pass)
{
    const struct ft_step *step = lane->step;
    const struct ft_op *op = lane->op;
    bool final = step->flags & FT_STEP_FINAL, from_input = step->src.buf == FT_BUF_IN;
    pass->type = op->coll.type;
    pass->op = op->redop;
    pass->scaled = op->redop.scaled && from_input ? 1u << step->src_at : 0;
    pass->divide = final && op->redop.divisor > 1;
    pass->streaming = op->cold_result && step->dst.buf == FT_BUF_OUT;
    pass->count = step->len_bytes / op->plan.esize;
    pass->nsrc = ft_lane_sources(lane, pass->src);
    pass->ndst = 0;
    if (step->dst.buf != FT_BUF_NONE)
        pass->dst[pass->ndst++] = ft_lane_at(op, step->dst);
    for (int k = 0; k < step->nfwd; k++)
        pass->dst[pass->ndst++] = lane->slots[k];
}

/* If a sender has withdrawn a message while it was read, the step drops what it made of it, and
 * waits until it learns what failed there. */
static bool all_intact(struct ft_comm *comm, struct ft_lane *lane)
{
    bool intact = true;
    for (int k = 0; k < lane->step->nrecv; k++) {
        if (!(lane->received & 1u << k) || ft_msg_intact(&lane->msgs[k]))
            continue;
        struct ft_link *link = comm->peers[lane->step->recv_from[k]]->rx;
        if (link)
            link->ops->release(link, &lane->msgs[k]);
        lane->received &= ~(1u << k);
        intact = false;
    }
    if (!intact)
        lane->phase = FT_LANE_EXCHANGE;
    return intact;
}

static void commit_step(struct ft_comm *comm, struct ft_lane *lane)
{
    if (!all_intact(comm, lane))
        return;
    /* The checksum of what the step sent does not fit what it forwards. The latter is the same in
     * all slots. */
    lane->sealed = false;
    for (int k = 0; k < lane->step->nfwd; k++) {
        /* the link closed while the device worked; another one may be open now */
        if (!(lane->reserved & 1u << k))
            continue;
        struct ft_link *link = comm->peers[lane->step->fwd_to[k]]->tx;
        seal_message(comm, lane, &lane->headers[k], lane->slots[k]);
        link->ops->commit(link, &lane->headers[k], lane->slots[k]);
    }
    for (int k = 0; k < lane->step->nrecv; k++) {
        struct ft_link *link = comm->peers[lane->step->recv_from[k]]->rx;
        if (lane->received & 1u << k)
            link->ops->release(link, &lane->msgs[k]);
    }
    lane->received = lane->reserved = 0;
    lane->phase = FT_LANE_SETTLE;
}

static void pass_done(struct ft_comm *comm, struct ft_lane *lane)
{
    int rc = lane->req.status;
    if (rc == FT_OK)
        commit_step(comm, lane);
    else
        ft_pass_failed(comm, rc);
}

/* Which operands of the pass of fill_pass() a queue cannot reach. It reaches the user's buffers. */
static struct ft_device_staged staged_of(const struct ft_lane *lane)
{
    const struct ft_step *step = lane->step;
    struct ft_device_staged staged = {.src = ~0u, .dst = ~0u};
    if (step->src.buf == FT_BUF_IN || step->src.buf == FT_BUF_OUT)
        staged.src &= ~(1u << step->src_at);
    if (step->dst.buf == FT_BUF_IN || step->dst.buf == FT_BUF_OUT)
        staged.dst &= ~1u;
    return staged;
}

/* Receives the message directly at its destination. False: it did not come. */
static bool fetch_message(struct ft_comm *comm, struct ft_lane *lane)
{
    int rank = lane->step->recv_from[0];
    struct ft_link *rx = comm->peers[rank]->rx;
    int rc = rx ? rx->ops->fetch(rx, &lane->msgs[0], moves_to(lane)) : FT_LINK;
    if (rc == FT_LINK)
        ft_comm_fail_peer(comm, lane->op, rank, rc);
    if (rc == FT_AGAIN)
        all_intact(comm, lane);
    return rc == FT_OK;
}

static bool combine_step(struct ft_comm *comm, struct ft_lane *lane)
{
    if (lane->step->len_bytes == 0) {
        lane->phase = FT_LANE_SETTLE;
        return true;
    }
    if (overwrites_send(lane) || !reserve_forwards(comm, lane))
        return false;
    if (lane->step->nrecv == 1 && lane->msgs[0].unfetched && !fetch_message(comm, lane))
        return false;
    struct ft_reduce pass;
    fill_pass(lane, &pass);
    bool nothing = pass.ndst == 0 || (pass.nsrc == 1 && pass.ndst == 1 &&
                                      pass.src[0] == pass.dst[0] && !pass.scaled && !pass.divide);
    lane->req.status = nothing ? FT_OK
                               : ft_pass(comm, lane->op, &pass, staged_of(lane), &lane->req);
    if (lane->req.status == FT_AGAIN)
        lane->phase = FT_LANE_REDUCING;
    else
        pass_done(comm, lane);
    return true;
}

static bool send_all(struct ft_comm *comm, struct ft_lane *lane, int nsend)
{
    bool moved = false;
    for (int k = 0; k < nsend; k++)
        if (!(lane->sent & 1u << k) && send_one(comm, lane, k) == FT_OK)
            lane->sent |= 1u << k, moved = true;
    return moved;
}

static bool recv_all(struct ft_comm *comm, struct ft_lane *lane, int nrecv)
{
    bool moved = false;
    for (int k = 0; k < nrecv && comm->failure.status == FT_OK; k++)
        if (!(lane->received & 1u << k) && recv_one(comm, lane, k) == FT_OK)
            lane->received |= 1u << k, moved = true;
    return moved;
}

static bool exchange_step(struct ft_comm *comm, struct ft_lane *lane)
{
    const struct ft_step *step = lane->step;
    int nsend = step->send_bytes > 0 ? step->nsend : 0,
        nrecv = step->len_bytes > 0 ? step->nrecv : 0;
    bool moved = send_all(comm, lane, nsend);
    moved |= recv_all(comm, lane, nrecv);
    if (comm->failure.status != FT_OK || lane->sent != (1u << nsend) - 1 ||
        lane->received != (1u << nrecv) - 1)
        return moved;
    return combine_step(comm, lane) || moved;
}

static bool lane_turn(struct ft_comm *comm, struct ft_lane *lane)
{
    bool moved = false;
    for (int n = 0; n < STEPS_A_TURN && comm->failure.status == FT_OK; n++) {
        if (lane->phase == FT_LANE_HELD) {
            advance_lane(comm, lane);
            if (lane->phase == FT_LANE_HELD)
                return moved;
            moved = true;
        }
        if (lane->phase == FT_LANE_EXCHANGE)
            moved |= exchange_step(comm, lane);
        if (lane->phase == FT_LANE_REDUCING && lane->req.status != FT_AGAIN)
            pass_done(comm, lane), moved = true;
        if (lane->phase != FT_LANE_SETTLE || !sends_complete(lane))
            return moved;
        assert(lane->index < lane->op->plan.nsteps && !lane->received && !lane->reserved);
        lane->index++;
        advance_lane(comm, lane);
        moved = true;
    }
    return moved;
}

bool ft_lanes_turn(struct ft_comm *comm)
{
    bool moved = false;
    for (int i = 0; i < comm->lanes.n && comm->failure.status == FT_OK; i++)
        if (comm->lanes.at[i].phase != FT_LANE_IDLE)
            moved |= lane_turn(comm, &comm->lanes.at[i]);
    return moved;
}

/* Sends what the links accept now. The lane's turns send the rest. */
static void send_repeat(struct ft_comm *comm, struct ft_lane *lane)
{
    struct ft_op *op = lane->op;
    const char *data = ft_lane_at(op, lane->step->send);
    struct ft_header header = header_of(comm, lane, lane->step->send_bytes);
    int nsend = lane->step->send_bytes > 0 ? lane->step->nsend : 0;
    for (int k = 0; k < nsend; k++) {
        struct ft_link *link = comm->peers[lane->step->send_to[k]]->tx;
        if (!link || link->state != FT_LINK_UP)
            continue;
        lane->sends[k].status = FT_AGAIN;
        lane->sends[k].lasts = lane->sends[k].moved = false;
        if (link->ops->send(link, &header, data, &lane->sends[k]) == FT_OK)
            lane->sent |= 1u << k;
    }
}

void ft_lanes_repeat(struct ft_comm *comm, struct ft_op *op)
{
    struct ft_lane *lane = &comm->lanes.at[0];
    comm->lanes.n = 1;
    lane->op = op;
    lane->index = 0;
    lane->step = comm->fast->loaded->steps;
    ft_lane_begin_step(lane);
    op->lanes_left = 1;
    if (!op->redop.scaled)
        send_repeat(comm, lane); /* otherwise the lane's turn sends */
}

void ft_lanes_start(struct ft_comm *comm)
{
    comm->lanes.n = 0;
    comm->fast->loaded = NULL;
    for (const struct ft_op *op = comm->works.head->ops; op; op = op->next)
        if (is_collective(op) && op->plan.nlanes > comm->lanes.n)
            comm->lanes.n = op->plan.nlanes;
    for (int i = 0; i < comm->lanes.n; i++) {
        comm->lanes.at[i].op = comm->works.head->ops;
        comm->lanes.at[i].index = 0;
    }
    for (int i = 0; i < comm->lanes.n; i++)
        advance_lane(comm, &comm->lanes.at[i]);
}

void ft_lanes_over(struct ft_comm *comm)
{
    for (struct ft_lane *lane = comm->lanes.at; lane < comm->lanes.at + FT_LANES; lane++)
        lane->phase = FT_LANE_IDLE;
}

void ft_lanes_reset(struct ft_comm *comm)
{
    ft_lanes_free(comm);
    memset(comm->lanes.at, 0, sizeof comm->lanes.at);
}

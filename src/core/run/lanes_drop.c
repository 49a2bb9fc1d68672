/*
 * What the step of a lane holds of links: messages that it has not released, slots that it has
 * reserved, and sends that the receiver may still read. Gives it back after a failure, and before a
 * link closes; lanes.c does while all is well.
 */
#include "core/run/run.h"

#include <assert.h>

/* Takes back the memory at which the link may write a message. */
static void expect_no_message(struct ft_comm *comm, struct ft_lane *lane)
{
    struct ft_link *rx = lane->expects ? comm->peers[lane->step->recv_from[0]]->rx : NULL;
    struct ft_header header = {.ctx = comm->ctx, .lane = (uint16_t)(lane - comm->lanes.at)};
    if (rx)
        rx->ops->expect(rx, &header, NULL);
    lane->expects = false;
}

/* Gives back what the lane's step holds of links, and withdraws what it sent. */
static void drop_step(struct ft_comm *comm, struct ft_lane *lane)
{
    const struct ft_step *step = lane->step;
    assert(step->nsend <= FT_STEP_PEERS && step->nrecv <= FT_STEP_PEERS);
    expect_no_message(comm, lane);
    for (int k = 0; k < step->nrecv; k++) {
        struct ft_link *link = comm->peers[step->recv_from[k]]->rx;
        if ((lane->received & 1u << k) && link)
            link->ops->release(link, &lane->msgs[k]);
    }
    for (int k = 0; k < step->nfwd; k++) {
        struct ft_link *link = comm->peers[step->fwd_to[k]]->tx;
        if ((lane->reserved & 1u << k) && link)
            link->ops->cancel(link, &lane->headers[k], lane->slots[k]);
    }
    lane->received = lane->reserved = 0;
    for (int k = 0; k < step->nsend; k++)
        if (lane->sent & 1u << k)
            ft_send_withdraw(&lane->sends[k]);
}

void ft_lanes_drop(struct ft_comm *comm)
{
    ft_pass_drop(comm, NULL);
    ft_fuse_drop(comm);
    for (struct ft_op *op = ft_run_first_op(comm); op; op = ft_run_next_op(op))
        for (int k = 0; op->coll.kind == FT_SEND && k < FT_WINDOW_P2P; k++)
            ft_send_withdraw(&op->sends[k]);
    for (struct ft_lane *lane = comm->lanes.at; lane < comm->lanes.at + FT_LANES; lane++)
        if (ft_lane_is_at_step(lane))
            drop_step(comm, lane);
}

void ft_lanes_forget(struct ft_comm *comm, const struct ft_peer *peer, struct ft_link *link)
{
    ft_pass_drop(comm, link);
    for (struct ft_lane *lane = comm->lanes.at; lane < comm->lanes.at + FT_LANES; lane++) {
        if (!ft_lane_is_at_step(lane))
            continue;
        if (lane->expects && link == peer->rx && comm->peers[lane->step->recv_from[0]] == peer)
            lane->expects = false;
        for (int k = 0; k < lane->step->nrecv && link == peer->rx; k++) {
            if (!(lane->received & 1u << k) || comm->peers[lane->step->recv_from[k]] != peer)
                continue;
            link->ops->release(link, &lane->msgs[k]);
            lane->received &= ~(1u << k);
        }
        for (int k = 0; k < lane->step->nfwd && link == peer->tx; k++) {
            if (!(lane->reserved & 1u << k) || comm->peers[lane->step->fwd_to[k]] != peer)
                continue;
            link->ops->cancel(link, &lane->headers[k], lane->slots[k]);
            lane->reserved &= ~(1u << k);
        }
    }
}

bool ft_lanes_pending_to(const struct ft_comm *comm, int rank)
{
    for (const struct ft_lane *lane = comm->lanes.at; lane < comm->lanes.at + FT_LANES; lane++)
        for (int k = 0; ft_lane_is_at_step(lane) && k < lane->step->nsend; k++)
            if ((lane->sent & 1u << k) && lane->step->send_to[k] == rank &&
                lane->sends[k].status == FT_AGAIN)
                return true;
    for (const struct ft_op *op = ft_run_first_op(comm); op; op = ft_run_next_op(op))
        for (int k = 0; op->coll.kind == FT_SEND && op->coll.root == rank && k < FT_WINDOW_P2P; k++)
            if (op->sends[k].status == FT_AGAIN)
                return true;
    return false;
}

bool ft_lanes_settled(const struct ft_comm *comm)
{
    for (int r = 0; r < comm->view.nranks; r++)
        if (ft_lanes_pending_to(comm, r))
            return false;
    return true;
}

/* ---- links that go --------------------------------------------------------------------------- */

void ft_link_give_back(struct ft_engine *engine, struct ft_peer *peer, struct ft_link *link)
{
    for (struct ft_comm *comm = link ? engine->run->comms : NULL; comm; comm = comm->next) {
        ft_lanes_forget(comm, peer, link);
        ft_p2p_forget(comm, link);
    }
}

void ft_link_drop(struct ft_engine *engine, struct ft_peer *peer, struct ft_link *link)
{
    ft_link_give_back(engine, peer, link);
    ft_engine_close_link(engine, peer, link);
}

void ft_link_cut(struct ft_engine *engine, struct ft_peer *peer, struct ft_link *link)
{
    link->cut = true;
    ft_link_drop(engine, peer, link);
}

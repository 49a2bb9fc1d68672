/*
 * For which rank the running work waits. This is for people, for telemetry, and for notices to
 * ranks that are behind.
 */
#include "core/run/run.h"

/* The rank for which a lane waits. -1: none. */
static int lane_waits_for(const struct ft_lane *lane, bool *sends)
{
    const struct ft_step *step = lane->step;
    *sends = false;
    for (int k = 0; k < step->nrecv; k++)
        if (!(lane->received & 1u << k))
            return step->recv_from[k];
    *sends = true;
    for (int k = 0; k < step->nsend; k++)
        if (!(lane->sent & 1u << k) || lane->sends[k].status == FT_AGAIN)
            return step->send_to[k];
    for (int k = 0; k < step->nfwd; k++)
        if (!(lane->reserved & 1u << k))
            return step->fwd_to[k];
    return -1;
}

static struct ft_blocker collective_waits_for(const struct ft_comm *comm, char *text,
                                              size_t len_bytes)
{
    struct ft_blocker wait = {.rank = -1};
    for (const struct ft_lane *lane = comm->lanes.at;
         lane < comm->lanes.at + FT_LANES && wait.rank < 0; lane++) {
        if (!ft_lane_is_at_step(lane))
            continue;
        wait = (struct ft_blocker){.rank = lane_waits_for(lane, &wait.sends),
                                   .sends = wait.sends,
                                   .lane = (int)(lane - comm->lanes.at),
                                   .op = lane->op,
                                   .step = lane->index};
        if (!text)
            continue;
        char call[128];
        ft_sig_text(lane->op->sig, call, sizeof call);
        snprintf(text, len_bytes, "rank %d %s rank %d in step %llu of %s, operation %llu (%s)",
                 comm->view.rank, wait.sends ? "sends to" : "waits for", wait.rank,
                 (unsigned long long)lane->index, call, (unsigned long long)lane->op->seq,
                 lane->op->plan.algo->name);
    }
    return wait;
}

/* Of the operations that are first in their queues, the one with the earliest deadline. */
static const struct ft_op *most_urgent(const struct ft_comm *comm)
{
    const struct ft_op *first = NULL;
    for (int r = 0; r < comm->view.nranks; r++) {
        const struct ft_op *op = comm->p2p.recvs[r].head ? comm->p2p.recvs[r].head
                                                         : comm->p2p.sends[r].head;
        if (op && (!first || op->work->deadline_ns < first->work->deadline_ns))
            first = op;
    }
    return first;
}

static struct ft_blocker p2p_waits_for(const struct ft_comm *comm, char *text, size_t len_bytes)
{
    const struct ft_op *op = most_urgent(comm);
    if (!op)
        return (struct ft_blocker){.rank = -1};
    bool sends = op->coll.kind == FT_SEND;
    if (text)
        snprintf(text, len_bytes, "rank %d %s rank %d: message %llu, %zu of %s, %zu bytes done",
                 comm->view.rank, sends ? "sends to" : "receives from", op->coll.root,
                 (unsigned long long)op->seq, op->coll.count, ft_type_name(op->coll.type),
                 op->offset);
    return (struct ft_blocker){.rank = op->coll.root, .sends = sends, .op = op, .step = op->offset};
}

struct ft_blocker ft_work_waits_for(const struct ft_comm *comm, char *text, size_t len_bytes)
{
    struct ft_blocker wait = collective_waits_for(comm, text, len_bytes);
    if (wait.rank < 0)
        wait = p2p_waits_for(comm, text, len_bytes);
    if (wait.rank < 0 && comm->works.running && comm->works.head->has_rma)
        wait = ft_rma_waits_for(comm, text, len_bytes);
    if (wait.rank < 0 && text)
        snprintf(text, len_bytes, "rank %d waits for its own operations", comm->view.rank);
    return wait;
}

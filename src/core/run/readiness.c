/*
 * What a rank tells the others about its GPU. The readiness table is in its pinned memory, one for
 * each communicator. It says whose messages this rank takes from their GPU's memory, and which
 * operations have their buffers on the GPU.
 */
#include "core/run/run.h"

void ft_readiness_attach(struct ft_comm *comm)
{
    const struct ft_pinned *pinned = comm->engine->gpu ? comm->engine->gpu->pinned : NULL;
    comm->readiness = pinned ? ft_readiness_find(pinned, comm->ctx) : NULL;
    if (!comm->readiness)
        return;
    for (int r = 0; r < comm->view.nranks; r++) {
        if (comm->peers[r] && ft_pinned_devmem(comm->peers[r]->pinned))
            ft_readiness_add_rank(comm->readiness, r);
    }
    ft_readiness_set_complete(comm->readiness);
}

/* Tells of all operations of the running work. If only some of them are on the GPU, the table says
 * that none is. Fused operations and comparisons use host memory on every rank, so nobody asks
 * about them. */
void ft_readiness_tell(struct ft_comm *comm)
{
    uint64_t last = 0;
    bool on_device = !comm->limits.verify;
    if (!comm->readiness)
        return;
    for (const struct ft_op *op = comm->works.head->ops; op; op = op->next) {
        if (!ft_kind_is_collective(op->coll.kind) || op->verifies)
            continue;
        last = ft_max(last, op->seq);
        if (!op->members)
            on_device &= op->on_queue != NULL;
    }
    if (last > 0)
        ft_readiness_publish(comm->readiness, last, on_device);
}

void ft_readiness_tell_receive(struct ft_comm *comm, int rank)
{
    const struct ft_op *next = comm->p2p.recvs[rank].head;
    if (comm->readiness && next)
        ft_readiness_publish_receive(comm->readiness, rank, next->seq,
                                     next->on_queue && !comm->limits.verify);
}

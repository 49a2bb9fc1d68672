/*
 * What a rank tells the others of its GPU, in the readiness table that its pinned memory has for
 * the communicator: whose messages it takes from their GPU's memory, and which operations have
 * their buffers on it.
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

/* Of all that the running work has: where some are on the GPU and some are not, none is said to be.
 * What is summed up for checksums or together is the host's on every rank, and nobody asks. */
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
            on_device &= op->gpu != NULL;
    }
    if (last > 0)
        ft_readiness_publish(comm->readiness, last, on_device);
}

void ft_readiness_tell_receive(struct ft_comm *comm, int rank)
{
    const struct ft_op *next = comm->p2p.recvs[rank].head;
    if (comm->readiness && next)
        ft_readiness_publish_receive(comm->readiness, rank, next->seq,
                                     next->gpu && !comm->limits.verify);
}

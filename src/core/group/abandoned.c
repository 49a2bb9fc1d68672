/*
 * Children that a rank gave up. A split, shrink or grow may succeed on one rank and fail on
 * another, and nobody must wait for that one. The rank that gives up tells the ranks of the parent.
 * A rank that has the child fails it; a rank that opens the child later remembers and fails it
 * then.
 */
#include "core/group/group.h"

static bool needs_telling(const struct ft_comm *parent, int rank)
{
    int n = parent->view.nranks, distance = (rank - parent->view.rank + n) % n;
    return n <= FT_ANNOUNCE_ALL || parent->peers[rank]->tx || (distance & (distance - 1)) == 0;
}

void ft_abandoned_tell(struct ft_engine *engine, struct ft_peer *peer, uint64_t ctx)
{
    struct ft_ctl_head head = {.what = FT_CTL_ABANDONED, .ctx = ctx};
    ft_control_send(engine, peer, &head, NULL, 0);
}

void ft_child_abandon(struct ft_comm *parent, uint64_t ctx)
{
    char why[FT_FAIL_BYTES]; /* the caller's sentence; the turn may write another one */
    snprintf(why, sizeof why, "%s", ft_fail_text());
    ft_engine_lock(parent->engine);
    ft_engine_unbind_held(parent->engine, ctx);
    for (int r = 0; r < parent->view.nranks; r++)
        if (parent->peers[r] && needs_telling(parent, r))
            ft_abandoned_tell(parent->engine, parent->peers[r], ctx);
    ft_engine_unlock(parent->engine);
    ft_engine_kick(parent->engine);
    ft_fail(FT_PEER, "%s", why);
}

static void fail_abandoned(struct ft_comm *comm, uint64_t id)
{
    for (int r = 0; r < comm->view.nranks; r++)
        if (comm->peers[r] && comm->peers[r]->id == id)
            ft_comm_fail(comm, FT_PEER, r,
                         "rank %d could not make this communicator: its call failed where that of "
                         "rank %d did not",
                         r, comm->view.rank);
}

void ft_abandoned_receive(struct ft_engine *engine, struct ft_peer *peer,
                          const struct ft_ctl_head *head)
{
    engine->group->abandoned[engine->group->nabandoned++ % FT_ARRAY_LEN(engine->group->abandoned)] =
        (struct ft_abandoned_child){head->ctx, peer->id};
    for (struct ft_comm *comm = engine->run->comms; comm; comm = comm->next)
        if (comm->ctx == head->ctx)
            fail_abandoned(comm, peer->id);
}

void ft_abandoned_check(struct ft_comm *comm)
{
    const struct ft_engine *engine = comm->engine;
    for (size_t i = 0; i < FT_ARRAY_LEN(engine->group->abandoned); i++)
        if (engine->group->abandoned[i].peer && engine->group->abandoned[i].ctx == comm->ctx)
            fail_abandoned(comm, engine->group->abandoned[i].peer);
}

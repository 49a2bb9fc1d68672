/*
 * The plans of a communicator's collectives. algo makes each once; later calls find it in a cache.
 */
#include "core/run/run.h"

static bool same_coll(const struct ft_coll *a, const struct ft_coll *b)
{
    return a->kind == b->kind && a->type == b->type && a->red == b->red && a->root == b->root &&
           a->count == b->count;
}

int ft_comm_plan(struct ft_comm *comm, const struct ft_coll *coll, struct ft_plan *plan)
{
    /* programs repeat their calls, so the last plan is tried first */
    struct ft_plan_slot *slot = comm->plans.last;
    if (!slot || !slot->valid || !same_coll(&slot->coll, coll)) {
        uint64_t key[3] = {(uint64_t)coll->kind << 32 | (uint64_t)coll->type << 16 |
                               (uint64_t)coll->red,
                           (uint64_t)coll->root, coll->count};
        slot = &comm->plans.slots[ft_hash64(key, sizeof key, 0) % FT_PLAN_CACHE];
    }
    if (!slot->valid || !same_coll(&slot->coll, coll)) {
        slot->valid = false;
        int rc = ft_algo_select(&comm->view, coll, &comm->tuning, &slot->plan);
        if (rc != FT_OK)
            return rc;
        slot->coll = *coll;
        slot->valid = true;
    }
    comm->plans.last = slot;
    *plan = slot->plan;
    return FT_OK;
}

void ft_plans_reset(struct ft_comm *comm)
{
    for (int i = 0; i < FT_PLAN_CACHE; i++)
        comm->plans.slots[i].valid = false;
    comm->plans.last = NULL;
}

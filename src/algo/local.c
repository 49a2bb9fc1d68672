/* A communicator of one rank: the collective is a copy from IN to OUT, with scale and divisor. It
 * fits no other case. */
#include "algo/parts.h"

static bool local_fits(const struct ft_view *view, const struct ft_coll *coll,
                       const struct ft_tuning *tuning)
{
    (void)coll, (void)tuning;
    return view->nranks == 1;
}

static double local_cost_ns(const struct ft_view *view, const struct ft_coll *coll,
                            const struct ft_tuning *tuning)
{
    double bytes = (double)(ft_total_elems(view, coll) * ft_type_size(coll->type));
    return ft_work_ns(view, tuning, &(struct ft_work){.reduced = bytes, .steps = 1});
}

static int local_plan(struct ft_plan *plan, const struct ft_tuning *tuning)
{
    struct ft_tuning one_lane = *tuning;
    one_lane.chunks = 1;
    ft_plan_split(plan, &one_lane, plan->coll.count, 1, 1);
    return FT_OK;
}

static void local_step(const struct ft_plan *plan, int lane, uint64_t index, struct ft_step *s)
{
    struct ft_piece p;
    if (!ft_piece_at(plan, lane, index, &p))
        return;
    s->len_bytes = p.len;
    s->src = ft_at(FT_BUF_IN, p.off);
    s->dst = ft_at(FT_BUF_OUT, p.off);
    if (ft_kind_reduces(plan->coll.kind))
        s->flags = FT_STEP_FINAL;
}

const struct ft_algo ft_algo_local = {
    .name = "local",
    .kinds = FT_KINDS_COLLECTIVE,
    .fits = local_fits,
    .cost_ns = local_cost_ns,
    .plan = local_plan,
    .step = local_step,
};

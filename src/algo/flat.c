/*
 * Flat: each rank sends its whole input to all others, and each rank reduces n operands itself. It
 * takes one hop, the minimum, so it is for small AllReduces of few ranks. With more ranks than
 * cores, each hop costs every rank a turn on a core. All ranks combine in the order of their rank
 * numbers, so all results are bitwise equal.
 */
#include "algo/parts.h"

static bool flat_fits(const struct ft_view *view, const struct ft_coll *coll,
                      const struct ft_tuning *tuning)
{
    (void)tuning;
    return view->nranks > 1 && view->nranks <= FT_STEP_PEERS + 1 && !ft_rounds_on_the_way(coll);
}

static double flat_cost_ns(const struct ft_view *view, const struct ft_coll *coll,
                           const struct ft_tuning *tuning)
{
    double n = view->nranks, bytes = (double)coll->count * (double)ft_type_size(coll->type);
    /* largest share of a rank's peers that are on other hosts */
    double outside = view->nhosts > 1 ? (n - ft_host_size_max(view)) / (n - 1) : 0;
    if (view->nhosts > 1 && outside <= 0)
        outside = 1 / (n - 1);
    struct ft_work work = {
        .flows = ft_host_size_max(view), .reduced = (n - 1) * bytes, .several = n > 2};
    work.hops_remote = view->nhosts > 1;
    work.hops_local = view->nhosts == 1;
    work.crowd = (n - 2) * outside;
    work.bytes_remote = (n - 1) * bytes * outside;
    work.bytes_local = (n - 1) * bytes - work.bytes_remote;
    work.steps = (n - 1) * ft_messages(tuning, bytes);
    return ft_work_ns(view, tuning, &work);
}

static int flat_plan(struct ft_plan *plan, const struct ft_tuning *tuning)
{
    ft_plan_split(plan, tuning, plan->coll.count, 1, 1);
    return FT_OK;
}

static void flat_step(const struct ft_plan *plan, int lane, uint64_t index, struct ft_step *s)
{
    struct ft_piece p;
    int n = plan->view->nranks, rank = plan->view->rank;
    if (!ft_piece_at(plan, lane, index, &p))
        return;
    s->send = s->src = ft_at(FT_BUF_IN, p.off);
    s->send_bytes = s->len_bytes = p.len;
    s->dst = ft_at(FT_BUF_OUT, p.off);
    s->src_at = rank;
    s->flags = FT_STEP_FINAL;
    for (int d = 1; d < n; d++)
        ft_send_to(s, ft_wrap(rank + d, n));
    for (int peer = 0; peer < n; peer++)
        if (peer != rank)
            ft_recv_from(s, peer);
}

const struct ft_algo ft_algo_flat = {
    .name = "flat",
    .kinds = FT_KIND_BIT(FT_ALLREDUCE),
    .fits = flat_fits,
    .cost_ns = flat_cost_ns,
    .plan = flat_plan,
    .step = flat_step,
};

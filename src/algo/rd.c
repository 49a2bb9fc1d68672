/*
 * Recursive doubling (Thakur, Rabenseifner and Gropp 2005): log2 rounds in which pairs of ranks
 * exchange all they have. AllReduce works for any number of ranks: with n = p + rest and p a power
 * of two, the first 2 * rest positions are folded in pairs before the rounds and unfolded after
 * them. Both ranks of a pair combine the same two operands, so all results are bitwise equal.
 * AllGather fits if n is a power of two and half of the result fits in one message.
 */
#include "algo/parts.h"

/* plan->param: the place among the p ranks (-1: folded away), and the rank of the folding partner
 * (-1: none) */
enum { VIRTUAL, FOLDED };

static bool rd_fits(const struct ft_view *view, const struct ft_coll *coll,
                    const struct ft_tuning *tuning)
{
    if (view->nranks < 2 || coll->kind == FT_ALLREDUCE)
        return view->nranks > 1 && !ft_rounds_on_the_way(coll);
    return ft_is_pow2(view->nranks) && ft_half_fits(view, coll, tuning);
}

static double rd_cost_ns(const struct ft_view *view, const struct ft_coll *coll,
                         const struct ft_tuning *tuning)
{
    double n = view->nranks, bytes = (double)coll->count * (double)ft_type_size(coll->type);
    int rounds = ft_log2_floor(view->nranks);
    if (coll->kind == FT_ALLGATHER) {
        struct ft_work gather = ft_work_doubling(view, tuning, rounds, 0);
        ft_work_add_bytes(view, &gather, (n - 1) * bytes);
        gather.steps += 1;
        gather.copies = 1;
        gather.straight = tuning->peer_lanes;
        return ft_work_ns(view, tuning, &gather);
    }
    int folds = ft_is_pow2(view->nranks) ? 0 : 2;
    struct ft_work work = ft_work_doubling(view, tuning, rounds, bytes);
    work.hops_local += folds;
    work.bytes_local += folds * bytes;
    work.steps += folds * ft_messages(tuning, bytes);
    work.reduced = (rounds + folds / 2) * bytes;
    return ft_work_ns(view, tuning, &work);
}

static int rd_plan(struct ft_plan *plan, const struct ft_tuning *tuning)
{
    const struct ft_view *view = plan->view;
    uint64_t rounds = (uint64_t)ft_log2_floor(view->nranks);
    if (plan->coll.kind == FT_ALLGATHER) {
        ft_plan_one_piece(plan, 1 + rounds);
        return FT_OK;
    }
    struct ft_fold fold = ft_fold_of(view);
    plan->param[VIRTUAL] = fold.place;
    plan->param[FOLDED] = fold.partner;
    ft_plan_split(plan, tuning, plan->coll.count, 1, rounds + (fold.rest ? 2 : 0));
    plan->tmp_bytes = (size_t)plan->nlanes * plan->piece_elems * plan->esize;
    return FT_OK;
}

/* A rank that is folded away sends its input first and receives the result last. */
static void folded_step(const struct ft_plan *plan, const struct ft_piece *p, struct ft_step *s)
{
    if (p->k == 0) {
        s->send = ft_at(FT_BUF_IN, p->off);
        s->send_bytes = p->len;
        ft_send_to(s, plan->param[FOLDED]);
    } else if (p->k == plan->piece_steps - 1) {
        s->len_bytes = p->len;
        s->dst = ft_at(FT_BUF_OUT, p->off);
        ft_recv_from(s, plan->param[FOLDED]);
    }
}

/* Round j receives from partner j, adds, and forwards the sum to partner j + 1 at once. The sum is
 * kept in scratch memory between rounds. */
static void allreduce_step(const struct ft_plan *plan, int lane, const struct ft_piece *p,
                           struct ft_step *s)
{
    const struct ft_view *view = plan->view;
    int rounds = ft_log2_floor(view->nranks), v = plan->param[VIRTUAL];
    int j = (int)p->k - (ft_is_pow2(view->nranks) ? 0 : 1);
    bool has_folded = plan->param[FOLDED] >= 0;
    struct ft_ref sum = ft_at(FT_BUF_TMP, (size_t)lane * plan->piece_elems * plan->esize);
    if (v < 0) {
        folded_step(plan, p, s);
        return;
    }
    if (j >= rounds || (j < 0 && !has_folded))
        return;
    s->len_bytes = p->len;
    ft_recv_from(s, j < 0 ? plan->param[FOLDED] : ft_fold_rank(view, v ^ 1 << j));
    s->src = j > 0 || (j == 0 && has_folded) ? sum : ft_at(FT_BUF_IN, p->off);
    if (j == 0 && !has_folded) {
        s->flags = FT_STEP_MEETS;
        s->send = s->src;
        s->send_bytes = p->len;
        ft_send_to(s, s->recv_from[0]);
    }
    if (j < rounds - 1) {
        s->dst = sum;
        ft_fwd_to(s, ft_fold_rank(view, v ^ 1 << (j + 1)));
        return;
    }
    s->dst = ft_at(FT_BUF_OUT, p->off);
    s->flags |= FT_STEP_FINAL;
    if (has_folded)
        ft_fwd_to(s, plan->param[FOLDED]);
}

/* Step 0 copies this rank's block to its place and sends it. Step t receives the blocks that
 * partner t - 1 has gathered; from the second round on it first sends its own gathered blocks. */
static void allgather_step(const struct ft_plan *plan, const struct ft_piece *p, struct ft_step *s)
{
    size_t block = plan->coll.count * plan->esize;
    int rank = plan->view->rank, t = (int)p->k;
    if (t == 0) {
        s->send = s->src = ft_at(FT_BUF_IN, 0);
        s->send_bytes = s->len_bytes = block;
        s->dst = ft_at(FT_BUF_OUT, (size_t)rank * block);
        ft_send_to(s, rank ^ 1);
        return;
    }
    int size = 1 << (t - 1), partner = rank ^ size;
    s->len_bytes = (size_t)size * block;
    s->dst = ft_at(FT_BUF_OUT, (size_t)(partner & -size) * block);
    ft_recv_from(s, partner);
    if (t == 1)
        return;
    s->send = ft_at(FT_BUF_OUT, (size_t)(rank & -size) * block);
    s->send_bytes = s->len_bytes;
    ft_send_to(s, partner);
}

static void rd_step(const struct ft_plan *plan, int lane, uint64_t index, struct ft_step *s)
{
    struct ft_piece p;
    if (!ft_piece_at(plan, lane, index, &p))
        return;
    if (plan->coll.kind == FT_ALLGATHER)
        allgather_step(plan, &p, s);
    else
        allreduce_step(plan, lane, &p, s);
}

const struct ft_algo ft_algo_rd = {
    .name = "rd",
    .kinds = FT_KIND_BIT(FT_ALLREDUCE) | FT_KIND_BIT(FT_ALLGATHER),
    .fits = rd_fits,
    .cost_ns = rd_cost_ns,
    .plan = rd_plan,
    .step = rd_step,
};

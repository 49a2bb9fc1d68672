/*
 * Halving and doubling (Rabenseifner; Thakur, Rabenseifner and Gropp 2005). AllReduce takes log2(p)
 * rounds that halve the part for which a rank is responsible, then log2(p) rounds back. That is 2
 * log2(p) messages and no more bytes than a ring. Neighbours exchange the longest messages. Ranks
 * beyond a power of two are folded as in rd.c. ReduceScatter fits if n is a power of two and half
 * of the input fits in one message.
 */
#include "algo/parts.h"

enum { VIRTUAL, FOLDED }; /* plan->param, as in rd.c */

static bool hd_fits(const struct ft_view *view, const struct ft_coll *coll,
                    const struct ft_tuning *tuning)
{
    /* with two ranks a ring does the same, and with three it is better */
    if (view->nranks < 4)
        return false;
    if (coll->kind == FT_ALLREDUCE)
        return true;
    return ft_is_pow2(view->nranks) && ft_half_fits(view, coll, tuning);
}

static double hd_cost_ns(const struct ft_view *view, const struct ft_coll *coll,
                         const struct ft_tuning *tuning)
{
    double bytes = (double)(ft_total_elems(view, coll) * ft_type_size(coll->type));
    int rounds = ft_log2_floor(view->nranks), p = 1 << rounds;
    if (coll->kind == FT_REDUCESCATTER) {
        struct ft_work scatter = ft_work_doubling(view, tuning, rounds, 0);
        ft_work_add_bytes(view, &scatter, bytes * (p - 1) / p);
        scatter.reduced = 2 * bytes * (p - 1) / p; /* each round stores what the next one sends */
        return ft_work_ns(view, tuning, &scatter);
    }
    int folds = p == view->nranks ? 0 : 2;
    struct ft_work work = ft_work_doubling(view, tuning, 2 * rounds, 0);
    ft_work_add_bytes(view, &work, 2 * bytes * (p - 1) / p);
    work.hops_local += folds;
    work.bytes_local += folds * bytes;
    work.steps += (folds + 2 * rounds) * (ft_messages(tuning, bytes / 2) - 1) + folds;
    work.reduced = bytes * (p - 1) / p + folds / 2 * bytes;
    /* halves are stored before they are sent: two more passes over memory than a ring */
    work.reduced += 2 * bytes * (p - 1) / p;
    return ft_work_ns(view, tuning, &work);
}

static int hd_plan(struct ft_plan *plan, const struct ft_tuning *tuning)
{
    const struct ft_view *view = plan->view;
    uint64_t rounds = (uint64_t)ft_log2_floor(view->nranks);
    if (plan->coll.kind == FT_REDUCESCATTER) {
        ft_plan_one_piece(plan, rounds);
        plan->tmp_bytes = ft_total_elems(view, &plan->coll) * plan->esize;
        return FT_OK;
    }
    struct ft_fold fold = ft_fold_of(view);
    plan->param[VIRTUAL] = fold.place;
    plan->param[FOLDED] = fold.partner;
    if (fold.rest)
        ft_plan_split(plan, tuning, plan->coll.count, 1, 2 * rounds + 2);
    else
        ft_plan_split(plan, tuning, plan->coll.count, 2, 2 * rounds);
    plan->tmp_bytes = (size_t)plan->nlanes * plan->piece_elems * plan->esize;
    return FT_OK;
}

/* The range for which place v is responsible after `rounds` halvings of the piece. Bit j of v tells
 * which half it keeps in round j. */
static struct ft_range window(const struct ft_plan *plan, const struct ft_piece *p, int v,
                              int rounds)
{
    size_t first = 0, elems = p->len / plan->esize;
    for (int j = 0; j < rounds; j++) {
        size_t low = elems - elems / 2;
        if (v >> j & 1)
            first += low;
        elems = v >> j & 1 ? elems - low : low;
    }
    return (struct ft_range){first * plan->esize, elems * plan->esize};
}

/* Round j of the halving. This rank sends the half that the partner keeps, and receives the
 * partner's share of its own half. The result of the last round is final, and it is what the first
 * round of the doubling sends. */
static void halve_step(const struct ft_plan *plan, int lane, const struct ft_piece *p, int j,
                       struct ft_step *s)
{
    int rounds = ft_log2_floor(plan->view->nranks), v = plan->param[VIRTUAL];
    int partner = ft_fold_rank(plan->view, v ^ 1 << j);
    struct ft_range keep = window(plan, p, v, j + 1), give = window(plan, p, v ^ 1 << j, j + 1);
    size_t tmp = (size_t)lane * plan->piece_elems * plan->esize;
    bool from_in = j == 0 && plan->param[FOLDED] < 0;
    s->send = from_in ? ft_at(FT_BUF_IN, p->off + give.off) : ft_at(FT_BUF_TMP, tmp + give.off);
    s->send_bytes = give.len;
    s->flags = FT_STEP_MEETS;
    ft_send_to(s, partner);
    s->len_bytes = keep.len;
    ft_recv_from(s, partner);
    s->src = from_in ? ft_at(FT_BUF_IN, p->off + keep.off) : ft_at(FT_BUF_TMP, tmp + keep.off);
    if (j < rounds - 1) {
        s->dst = ft_at(FT_BUF_TMP, tmp + keep.off);
        return;
    }
    s->dst = ft_at(FT_BUF_OUT, p->off + keep.off);
    s->flags |= FT_STEP_FINAL;
    ft_fwd_to(s, partner);
}

/* The doubling that reverses round j of the halving: partners exchange their halves. */
static void double_step(const struct ft_plan *plan, const struct ft_piece *p, int j,
                        struct ft_step *s)
{
    int rounds = ft_log2_floor(plan->view->nranks), v = plan->param[VIRTUAL];
    int partner = ft_fold_rank(plan->view, v ^ 1 << j);
    struct ft_range theirs = window(plan, p, v ^ 1 << j, j + 1), ours = window(plan, p, v, j + 1);
    s->len_bytes = theirs.len;
    s->dst = ft_at(FT_BUF_OUT, p->off + theirs.off);
    ft_recv_from(s, partner);
    if (j == rounds - 1)
        return;
    s->send = ft_at(FT_BUF_OUT, p->off + ours.off);
    s->send_bytes = ours.len;
    s->flags = FT_STEP_MEETS;
    ft_send_to(s, partner);
}

/* The folding steps before and after the rounds, for both ranks of a pair. */
static void fold_step(const struct ft_plan *plan, int lane, const struct ft_piece *p,
                      struct ft_step *s)
{
    int partner = plan->param[FOLDED];
    bool folded_away = plan->param[VIRTUAL] < 0, before = p->k == 0;
    if (partner < 0)
        return;
    if (folded_away == before) {
        s->send = ft_at(before ? FT_BUF_IN : FT_BUF_OUT, p->off);
        s->send_bytes = p->len;
        ft_send_to(s, partner);
        return;
    }
    s->len_bytes = p->len;
    ft_recv_from(s, partner);
    s->dst = before ? ft_at(FT_BUF_TMP, (size_t)lane * plan->piece_elems * plan->esize)
                    : ft_at(FT_BUF_OUT, p->off);
    if (before)
        s->src = ft_at(FT_BUF_IN, p->off);
}

/* Halving by whole blocks. Round j pairs ranks that are n / 2^(j+1) apart, so each part is a run of
 * adjacent blocks. */
static void reducescatter_step(const struct ft_plan *plan, const struct ft_piece *p,
                               struct ft_step *s)
{
    size_t block = plan->coll.count * plan->esize;
    int n = plan->view->nranks, rank = plan->view->rank, size = n >> (p->k + 1),
        partner = rank ^ size;
    enum ft_buf from = p->k == 0 ? FT_BUF_IN : FT_BUF_TMP;
    s->send = ft_at(from, (size_t)(partner & -size) * block);
    s->send_bytes = s->len_bytes = (size_t)size * block;
    ft_send_to(s, partner);
    ft_recv_from(s, partner);
    s->src = ft_at(from, (size_t)(rank & -size) * block);
    s->dst = size > 1 ? ft_at(FT_BUF_TMP, s->src.off) : ft_at(FT_BUF_OUT, 0);
    if (size == 1)
        s->flags = FT_STEP_FINAL;
}

static void hd_step(const struct ft_plan *plan, int lane, uint64_t index, struct ft_step *s)
{
    struct ft_piece p;
    if (!ft_piece_at(plan, lane, index, &p))
        return;
    if (plan->coll.kind == FT_REDUCESCATTER) {
        reducescatter_step(plan, &p, s);
        return;
    }
    int rounds = ft_log2_floor(plan->view->nranks), before = ft_is_pow2(plan->view->nranks) ? 0 : 1;
    int j = (int)p.k - before;
    if (j < 0 || j >= 2 * rounds)
        fold_step(plan, lane, &p, s);
    else if (plan->param[VIRTUAL] < 0)
        return;
    else if (j < rounds)
        halve_step(plan, lane, &p, j, s);
    else
        double_step(plan, &p, 2 * rounds - 1 - j, s);
}

const struct ft_algo ft_algo_hd = {
    .name = "hd",
    .kinds = FT_KIND_BIT(FT_ALLREDUCE) | FT_KIND_BIT(FT_REDUCESCATTER),
    .fits = hd_fits,
    .cost_ns = hd_cost_ns,
    .plan = hd_plan,
    .step = hd_step,
};

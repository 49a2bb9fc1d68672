/*
 * Rings and chains. AllReduce follows FTAR (FT-HSDP, section 4.2): partitions of S x C x N bytes,
 * where S is the length of a message, C the number of lanes and N the number of ranks. Each lane
 * takes 2N - 2 steps. The last reduce step stores the result and forwards it at once. ReduceScatter
 * and AllGather are the two halves of it. Broadcast and Reduce are chains that start or end at the
 * root. ft_order_rank() gives the order along the ring: it enters and leaves each host once.
 */
#include "algo/parts.h"

enum { POS, NEXT, PREV }; /* plan->param */

static bool ring_fits(const struct ft_view *view, const struct ft_coll *coll,
                      const struct ft_tuning *tuning)
{
    (void)coll, (void)tuning;
    return view->nranks > 1;
}

static double ring_cost_ns(const struct ft_view *view, const struct ft_coll *coll,
                           const struct ft_tuning *tuning)
{
    double n = view->nranks, count_bytes = (double)coll->count * (double)ft_type_size(coll->type);
    struct ft_work work;
    switch (coll->kind) {
    case FT_ALLREDUCE:
        work = ft_work_rounds(view, tuning, 2 * n - 2, count_bytes / n);
        work.reduced = (n - 1) / n * count_bytes;
        break;
    case FT_REDUCESCATTER:
        work = ft_work_rounds(view, tuning, n - 1, count_bytes);
        work.reduced = (n - 1) * count_bytes;
        break;
    case FT_ALLGATHER:
        work = ft_work_rounds(view, tuning, n - 1, count_bytes);
        break;
    /* Chains: the last rank gets its first message after n - 1 hops. The following messages arrive
     * at the speed of the link. */
    default: {
        double first = count_bytes < (double)tuning->chunk_bytes ? count_bytes
                                                                 : (double)tuning->chunk_bytes;
        work = ft_work_rounds(view, tuning, 1, count_bytes);
        work.hops_local = n - view->nhosts;
        work.hops_remote = view->nhosts - 1;
        work.bytes_local += (work.hops_local - (view->nhosts == 1)) * first;
        work.bytes_remote += (work.hops_remote - (view->nhosts > 1)) * first;
        work.steps += n - 2;
        work.share_steps = work.share_bytes = work.bytes_local > 0
                                                  ? (n - 1) / n * count_bytes / work.bytes_local
                                                  : 1;
        if (coll->kind == FT_REDUCE)
            work.reduced = count_bytes + (n - 2) * first;
    }
    }
    work.flows = 1;
    return ft_work_ns(view, tuning, &work);
}

/* Between two ranks that share memory. A byte of a longer message costs less, and only two links
 * need memory for them. With `pulls`, links take messages of that length. A length that a rule
 * names was measured, and stays. */
static void lengthen(struct ft_tuning *tuning, const struct ft_view *view)
{
    if (view->nranks == 2 && tuning->pulls && !tuning->chunk_is_ruled)
        tuning->chunk_bytes = ft_tuning_first_bytes(tuning);
}

static int ring_plan(struct ft_plan *plan, const struct ft_tuning *tuning)
{
    const struct ft_view *view = plan->view;
    size_t n = (size_t)view->nranks;
    struct ft_tuning longer = *tuning;
    plan->param[POS] = ft_order_pos(view, view->rank);
    plan->param[NEXT] = ft_order_rank(view, ft_wrap(plan->param[POS] + 1, view->nranks));
    plan->param[PREV] = ft_order_rank(view, ft_wrap(plan->param[POS] - 1, view->nranks));
    switch (plan->coll.kind) {
    case FT_ALLREDUCE:
        lengthen(&longer, view);
        ft_plan_split(plan, &longer, plan->coll.count, n, 2 * n - 2);
        break;
    case FT_REDUCESCATTER:
        lengthen(&longer, view);
        ft_plan_split(plan, &longer, plan->coll.count, 1, n - 1);
        break;
    case FT_ALLGATHER:
        ft_plan_split(plan, tuning, plan->coll.count, 1, n);
        break;
    default:
        ft_plan_split(plan, tuning, plan->coll.count, 1, 1);
    }
    return FT_OK;
}

/* Position q first sends part q. In step k it handles part q - 1 - k. Up to k = n - 2 it adds its
 * own operand; after that the part is finished. */
static void allreduce_step(const struct ft_plan *plan, const struct ft_piece *p, struct ft_step *s)
{
    int n = plan->view->nranks, k = (int)p->k, pos = plan->param[POS];
    if (k == 0) {
        struct ft_range own = ft_piece_part(plan, p, (size_t)n, (size_t)pos);
        s->send = ft_at(FT_BUF_IN, own.off);
        s->send_bytes = own.len;
        ft_send_to(s, plan->param[NEXT]);
    }
    struct ft_range part = ft_piece_part(plan, p, (size_t)n, (size_t)ft_wrap(pos - 1 - k, n));
    s->len_bytes = part.len;
    ft_recv_from(s, plan->param[PREV]);
    if (k <= n - 2)
        s->src = ft_at(FT_BUF_IN, part.off);
    if (k == 0)
        s->flags = FT_STEP_MEETS;
    if (k == n - 2)
        s->flags |= FT_STEP_FINAL;
    if (k >= n - 2)
        s->dst = ft_at(FT_BUF_OUT, part.off);
    if (k < 2 * n - 3)
        ft_fwd_to(s, plan->param[NEXT]);
}

/* The block of the rank at position b starts its way at position b + 1 and ends it at b. */
static void reducescatter_step(const struct ft_plan *plan, const struct ft_piece *p,
                               struct ft_step *s)
{
    int n = plan->view->nranks, k = (int)p->k, pos = plan->param[POS];
    size_t block = plan->coll.count * plan->esize;
    if (k == 0) {
        s->send = ft_at(FT_BUF_IN, (size_t)plan->param[PREV] * block + p->off);
        s->send_bytes = p->len;
        ft_send_to(s, plan->param[NEXT]);
        s->flags = FT_STEP_MEETS;
    }
    size_t of = (size_t)ft_order_rank(plan->view, ft_wrap(pos - 2 - k, n));
    s->len_bytes = p->len;
    ft_recv_from(s, plan->param[PREV]);
    s->src = ft_at(FT_BUF_IN, of * block + p->off);
    if (k < n - 2) {
        ft_fwd_to(s, plan->param[NEXT]);
    } else {
        s->dst = ft_at(FT_BUF_OUT, p->off);
        s->flags |= FT_STEP_FINAL;
    }
}

static void allgather_step(const struct ft_plan *plan, const struct ft_piece *p, struct ft_step *s)
{
    int n = plan->view->nranks, k = (int)p->k;
    size_t of = (size_t)ft_order_rank(plan->view, ft_wrap(plan->param[POS] - k, n));
    s->len_bytes = p->len;
    s->dst = ft_at(FT_BUF_OUT, of * plan->coll.count * plan->esize + p->off);
    if (k == 0) {
        s->send = s->src = ft_at(FT_BUF_IN, p->off);
        s->send_bytes = p->len;
        ft_send_to(s, plan->param[NEXT]);
    } else {
        ft_recv_from(s, plan->param[PREV]);
        if (k < n - 1)
            ft_fwd_to(s, plan->param[NEXT]);
    }
}

static void broadcast_step(const struct ft_plan *plan, const struct ft_piece *p, struct ft_step *s)
{
    int root = plan->coll.root;
    s->len_bytes = p->len;
    s->dst = ft_at(FT_BUF_OUT, p->off);
    if (plan->view->rank == root) {
        s->send = s->src = ft_at(FT_BUF_IN, p->off);
        s->send_bytes = p->len;
        s->flags = FT_STEP_MEETS;
        ft_send_to(s, plan->param[NEXT]);
    } else {
        ft_recv_from(s, plan->param[PREV]);
        if (plan->param[NEXT] != root)
            ft_fwd_to(s, plan->param[NEXT]);
    }
}

static void reduce_step(const struct ft_plan *plan, const struct ft_piece *p, struct ft_step *s)
{
    int root = plan->coll.root;
    /* the chain starts here; with two ranks it ends at the next rank */
    if (plan->param[PREV] == root) {
        s->send = ft_at(FT_BUF_IN, p->off);
        s->send_bytes = p->len;
        s->flags = FT_STEP_MEETS;
        ft_send_to(s, plan->param[NEXT]);
        return;
    }
    s->len_bytes = p->len;
    ft_recv_from(s, plan->param[PREV]);
    s->src = ft_at(FT_BUF_IN, p->off);
    if (plan->view->rank == root) {
        s->dst = ft_at(FT_BUF_OUT, p->off);
        s->flags = FT_STEP_FINAL;
    } else {
        ft_fwd_to(s, plan->param[NEXT]);
    }
}

static void ring_step(const struct ft_plan *plan, int lane, uint64_t index, struct ft_step *s)
{
    struct ft_piece p;
    if (!ft_piece_at(plan, lane, index, &p))
        return;
    switch (plan->coll.kind) {
    case FT_ALLREDUCE:
        allreduce_step(plan, &p, s);
        break;
    case FT_REDUCESCATTER:
        reducescatter_step(plan, &p, s);
        break;
    case FT_ALLGATHER:
        allgather_step(plan, &p, s);
        break;
    case FT_BROADCAST:
        broadcast_step(plan, &p, s);
        break;
    default:
        reduce_step(plan, &p, s);
    }
}

const struct ft_algo ft_algo_ring = {
    .name = "ring",
    .kinds = FT_KIND_BIT(FT_ALLREDUCE) | FT_KIND_BIT(FT_REDUCESCATTER) | FT_KIND_BIT(FT_ALLGATHER) |
             FT_KIND_BIT(FT_BROADCAST) | FT_KIND_BIT(FT_REDUCE),
    .fits = ring_fits,
    .cost_ns = ring_cost_ns,
    .plan = ring_plan,
    .step = ring_step,
};

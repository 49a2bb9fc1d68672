/*
 * Bruck et al. 1997: AllGather and AlltoAll of small blocks in ceil(log2 n) rounds for any number
 * of ranks, with scratch memory. It fits if the blocks of a round, at most half of all, fit in one
 * message. It uses one lane.
 */
#include "algo/parts.h"

static bool bruck_fits(const struct ft_view *view, const struct ft_coll *coll,
                       const struct ft_tuning *tuning)
{
    return view->nranks > 2 && ft_half_fits(view, coll, tuning);
}

/* Number of blocks i < n whose bit j is set. */
static int blocks_of_round(int n, int j)
{
    int size = 1 << j, over = n % (2 * size) - size;
    return n / (2 * size) * size + (over > 0 ? over : 0);
}

/* Number of runs of adjacent blocks whose bit j is set: [size, 2 size), [3 size, 4 size), ... */
static int runs_of_round(int n, int j)
{
    int size = 1 << j;
    return (n - size + 2 * size - 1) / (2 * size);
}

static int alltoall_steps(int n)
{
    int steps = 2 + n;
    for (int j = 0; j < ft_log2_ceil(n); j++)
        steps += 2 * runs_of_round(n, j) + 1;
    return steps;
}

static double bruck_cost_ns(const struct ft_view *view, const struct ft_coll *coll,
                            const struct ft_tuning *tuning)
{
    double n = view->nranks, block = (double)coll->count * (double)ft_type_size(coll->type);
    int rounds = ft_log2_ceil(view->nranks);
    struct ft_work work = ft_work_doubling(view, tuning, rounds, 0);
    if (view->nhosts > 1) { /* partners are found by rank number around the ring, not by host */
        work.hops_remote = rounds;
        work.hops_local = 0;
    }
    if (coll->kind == FT_ALLGATHER) {
        ft_work_add_bytes(view, &work, (n - 1) * block);
        work.copied = n * block; /* copied from the scratch memory to OUT */
        work.steps += work.copies = 3;
    } else {
        double moved = 0;
        for (int j = 0; j < rounds; j++)
            moved += blocks_of_round(view->nranks, j);
        ft_work_add_bytes(view, &work, moved * block);
        work.copied = (2 * moved + 2 * n) * block;
        work.steps = alltoall_steps(view->nranks);
        work.copies = work.steps - rounds;
    }
    work.bytes_local += work.copied;
    return ft_work_ns(view, tuning, &work);
}

static int bruck_plan(struct ft_plan *plan, const struct ft_tuning *tuning)
{
    (void)tuning;
    int n = plan->view->nranks;
    size_t block = plan->coll.count * plan->esize, half = ((size_t)n + 1) / 2 * block;
    if (plan->coll.kind == FT_ALLGATHER) {
        ft_plan_one_piece(plan, (uint64_t)ft_log2_ceil(n) + 3);
        plan->tmp_bytes = (size_t)n * block;
    } else {
        ft_plan_one_piece(plan, (uint64_t)alltoall_steps(n));
        /* the blocks, then the packed blocks to send, then the received blocks */
        plan->tmp_bytes = (size_t)n * block + 2 * half;
    }
    return FT_OK;
}

static void copy(struct ft_step *s, struct ft_ref src, struct ft_ref dst, size_t len_bytes)
{
    s->src = src;
    s->dst = dst;
    s->len_bytes = len_bytes;
}

/* Scratch block i belongs to rank r + i. Step 0 sends this rank's block. Step t receives round t -
 * 1; from the second round on it first sends what this rank has. The last two steps copy the
 * scratch blocks to their places in OUT. */
static void allgather_step(const struct ft_plan *plan, int t, struct ft_step *s)
{
    int n = plan->view->nranks, rank = plan->view->rank, rounds = ft_log2_ceil(n);
    size_t block = plan->coll.count * plan->esize;
    if (t == 0) {
        copy(s, ft_at(FT_BUF_IN, 0), ft_at(FT_BUF_TMP, 0), block);
        s->send = s->src;
        s->send_bytes = block;
        ft_send_to(s, ft_wrap(rank - 1, n));
    } else if (t <= rounds) {
        int have = 1 << (t - 1), more = n - have < have ? n - have : have;
        s->len_bytes = (size_t)more * block;
        s->dst = ft_at(FT_BUF_TMP, (size_t)have * block);
        ft_recv_from(s, ft_wrap(rank + have, n));
        if (t == 1)
            return;
        s->send = ft_at(FT_BUF_TMP, 0);
        s->send_bytes = s->len_bytes;
        ft_send_to(s, ft_wrap(rank - have, n));
    } else if (t == rounds + 1) {
        copy(s, ft_at(FT_BUF_TMP, 0), ft_at(FT_BUF_OUT, (size_t)rank * block),
             (size_t)(n - rank) * block);
    } else {
        copy(s, ft_at(FT_BUF_TMP, (size_t)(n - rank) * block), ft_at(FT_BUF_OUT, 0),
             (size_t)rank * block);
    }
}

/* Step t of round j: it packs the runs, exchanges them, then unpacks them. */
static void alltoall_round(const struct ft_plan *plan, int j, int t, struct ft_step *s)
{
    int n = plan->view->nranks, rank = plan->view->rank, size = 1 << j, runs = runs_of_round(n, j);
    size_t block = plan->coll.count * plan->esize;
    size_t packed = (size_t)n * block, arrived = packed + ((size_t)n + 1) / 2 * block;
    if (t == runs) {
        s->len_bytes = s->send_bytes = (size_t)blocks_of_round(n, j) * block;
        s->send = ft_at(FT_BUF_TMP, packed);
        s->dst = ft_at(FT_BUF_TMP, arrived);
        ft_send_to(s, ft_wrap(rank + size, n));
        ft_recv_from(s, ft_wrap(rank - size, n));
        return;
    }
    int run = t < runs ? t : t - runs - 1, first = (2 * run + 1) * size;
    size_t len = (size_t)(n - first < size ? n - first : size) * block;
    struct ft_ref at = ft_at(FT_BUF_TMP, (size_t)first * block);
    if (t < runs)
        copy(s, at, ft_at(FT_BUF_TMP, packed + (size_t)(run * size) * block), len);
    else
        copy(s, ft_at(FT_BUF_TMP, arrived + (size_t)(run * size) * block), at, len);
}

/* Scratch block i starts as the block for rank r + i. Round j moves the blocks whose bit j is set
 * by 2^j ranks. At the end block i is the block from rank r - i. */
static void alltoall_step(const struct ft_plan *plan, int t, struct ft_step *s)
{
    int n = plan->view->nranks, rank = plan->view->rank;
    size_t block = plan->coll.count * plan->esize;
    if (t == 0) {
        copy(s, ft_at(FT_BUF_IN, (size_t)rank * block), ft_at(FT_BUF_TMP, 0),
             (size_t)(n - rank) * block);
        return;
    }
    if (t == 1) {
        copy(s, ft_at(FT_BUF_IN, 0), ft_at(FT_BUF_TMP, (size_t)(n - rank) * block),
             (size_t)rank * block);
        return;
    }
    t -= 2;
    for (int j = 0; j < ft_log2_ceil(n); j++) {
        int steps = 2 * runs_of_round(n, j) + 1;
        if (t < steps) {
            alltoall_round(plan, j, t, s);
            return;
        }
        t -= steps;
    }
    copy(s, ft_at(FT_BUF_TMP, (size_t)t * block),
         ft_at(FT_BUF_OUT, (size_t)ft_wrap(rank - t, n) * block), block);
}

static void bruck_step(const struct ft_plan *plan, int lane, uint64_t index, struct ft_step *s)
{
    struct ft_piece p;
    if (!ft_piece_at(plan, lane, index, &p))
        return;
    if (plan->coll.kind == FT_ALLGATHER)
        allgather_step(plan, (int)p.k, s);
    else
        alltoall_step(plan, (int)p.k, s);
}

const struct ft_algo ft_algo_bruck = {
    .name = "bruck",
    .kinds = FT_KIND_BIT(FT_ALLGATHER) | FT_KIND_BIT(FT_ALLTOALL),
    .fits = bruck_fits,
    .cost_ns = bruck_cost_ns,
    .plan = bruck_plan,
    .step = bruck_step,
};

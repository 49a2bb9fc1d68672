/*
 * Direct: each rank exchanges messages with all others, in one hop. AlltoAll, Gather and Scatter
 * work for any number of ranks. The other kinds need a step that reaches all peers (n <=
 * FT_STEP_PEERS + 1). AllReduce is a direct ReduceScatter followed by a direct AllGather: two hops,
 * and no more bytes than a ring. One rank reduces each part, in one pass.
 */
#include "algo/parts.h"

/* Shortest block that receivers read from the sender's memory: this, or an eighth of a chunk if
 * that is less. The sender has to wait for the reader, and a shorter block is not worth that. */
#define PULLED_BYTES 16384
/* factor on that length if there are more ranks than cores and every rank reads from every other */
#define PULLED_CROWDED 4
/* cost of a byte that is read so, relative to one that is copied into a slot and out of it */
#define PULLED_COST 0.6
/* The same factor where such reads are slow. PULLED_FIRST is the part of it that only the first
 * rank on a core pays: later ranks find the bytes in the core's cache. */
#define PULLED_SLOW 2.55
#define PULLED_FIRST 0.74
/* Blocks up to this length are all sent before any is waited for, on one lane: further lanes would
 * cost more than the bytes. */
#define SHORT_BYTES 4096
#define KINDS_ANY_N (FT_KIND_BIT(FT_ALLTOALL) | FT_KIND_BIT(FT_GATHER) | FT_KIND_BIT(FT_SCATTER))

/* plan->param. ONE_LANE: for AlltoAll, Gather and Scatter, the blocks are short. JOBS: each step of
 * an AllGather is the exchange with one peer. */
enum { ONE_LANE, JOBS };

static bool direct_fits(const struct ft_view *view, const struct ft_coll *coll,
                        const struct ft_tuning *tuning)
{
    (void)tuning;
    if (view->nranks < 2)
        return false;
    return (KINDS_ANY_N & FT_KIND_BIT(coll->kind)) || view->nranks <= FT_STEP_PEERS + 1;
}

/* Returns true if each receiver copies its messages from the sender's memory. Then an AllGather is
 * split into jobs, as an AlltoAll is: such a message must be received in the step in which it is
 * sent. */
static bool is_pulled(const struct ft_view *view, const struct ft_coll *coll,
                      const struct ft_tuning *tuning)
{
    if (!tuning->pulls || ft_kind_reduces(coll->kind))
        return false;
    /* a broadcast would copy its bytes into a slot for each receiver, so it still gains */
    if (tuning->pulls == FT_PULLS_SLOW && coll->kind != FT_BROADCAST)
        return false;
    bool crowded = ft_work_sharing(view, tuning) > 1 &&
                   (coll->kind == FT_ALLGATHER || coll->kind == FT_ALLTOALL);
    size_t least = ft_min(PULLED_BYTES, tuning->chunk_bytes / 8) * (crowded ? PULLED_CROWDED : 1);
    return coll->count * ft_type_size(coll->type) >= least;
}

static bool is_short(const struct ft_coll *coll, const struct ft_tuning *tuning)
{
    return coll->count > 0 &&
           coll->count <= ft_min(SHORT_BYTES, tuning->chunk_bytes) / ft_type_size(coll->type);
}

/* Returns true if an AllGather is split into jobs on several lanes, so that messages are received
 * directly into their destination. */
static bool is_spread(const struct ft_view *view, const struct ft_coll *coll,
                      const struct ft_tuning *tuning)
{
    return tuning->peer_lanes && coll->kind == FT_ALLGATHER && view->nranks > 2 &&
           !is_short(coll, tuning);
}

static double pulled_cost(const struct ft_view *view, const struct ft_tuning *tuning)
{
    return tuning->pulls == FT_PULLS
               ? PULLED_COST
               : PULLED_SLOW * (1 - PULLED_FIRST + PULLED_FIRST / ft_work_sharing(view, tuning));
}

static double direct_cost_ns(const struct ft_view *view, const struct ft_coll *coll,
                             const struct ft_tuning *tuning)
{
    double n = view->nranks, block = (double)coll->count * (double)ft_type_size(coll->type);
    double hops = 1, rounds = n - 1; /* rounds: number of messages of the busiest rank */
    double bytes = (n - 1) * block;
    struct ft_work work = {.flows = ft_host_size_max(view), .several = n > 2};
    switch (coll->kind) {
    case FT_ALLREDUCE:
        hops = 2;
        rounds = 2 * (n - 1);
        bytes = 2 * (n - 1) / n * block;
        work.reduced = (n - 1) / n * block;
        break;
    case FT_REDUCESCATTER:
        work.reduced = (n - 1) * block;
        break;
    case FT_REDUCE:
        work.reduced = (n - 1) * block;
        work.flows = 1;
        break;
    case FT_BROADCAST:
    case FT_GATHER:
    case FT_SCATTER:
        work.flows = 1;
        break;
    case FT_ALLTOALL:
        if (tuning->chunks == 1 && !is_short(coll, tuning))
            hops = rounds; /* one peer after another */
        break;
    default:
        break;
    }
    /* largest share of a rank's peers that are on other hosts */
    double outside = n > 1 ? (n - ft_host_size_max(view)) / (n - 1) : 0;
    if (view->nhosts > 1 && outside <= 0)
        outside = 1 / (n - 1);
    work.hops_remote = view->nhosts > 1 ? hops : 0;
    work.hops_local = hops - work.hops_remote;
    work.crowd = view->nhosts > 1 ? (rounds - hops) * outside : 0;
    work.bytes_remote = view->nhosts > 1 ? bytes * outside : 0;
    work.bytes_local = bytes - work.bytes_remote;
    work.steps = rounds * ft_messages(tuning, bytes / rounds);
    work.straight = is_spread(view, coll, tuning);
    if (work.flows == 1)
        work.share_steps = work.share_bytes = 1 / n;
    bool pulled = is_pulled(view, coll, tuning);
    if (pulled)
        work.bytes_local *= pulled_cost(view, tuning);
    if (pulled && coll->kind == FT_BROADCAST) { /* all receivers work at the same time */
        work.bytes_local /= n - 1;
        work.steps /= n - 1;
    } else if (work.flows == 1 && view->nhosts == 1 && tuning->local_links) {
        /* the root does nearly all the work, so the other ranks leave it a core */
        work.bytes_local /= ft_work_sharing(view, tuning);
        work.steps /= ft_work_sharing(view, tuning);
    }
    return ft_work_ns(view, tuning, &work);
}

static int direct_plan(struct ft_plan *plan, const struct ft_tuning *tuning)
{
    size_t count = plan->coll.count, n = (size_t)plan->view->nranks;
    plan->pulled = is_pulled(plan->view, &plan->coll, tuning);
    switch (plan->coll.kind) {
    case FT_ALLTOALL:
    case FT_GATHER:
    case FT_SCATTER:
        plan->param[ONE_LANE] = is_short(&plan->coll, tuning);
        if (plan->param[ONE_LANE])
            ft_plan_one_piece(plan, plan->coll.kind == FT_ALLTOALL ? 2 * (n - 1) : n);
        else
            ft_plan_split_items(plan, tuning, count, n);
        break;
    case FT_ALLREDUCE:
        ft_plan_split(plan, tuning, count, n, 2 * (n - 1));
        break;
    case FT_REDUCESCATTER:
        ft_plan_split(plan, tuning, count, 1, n - 1);
        break;
    case FT_ALLGATHER:
        plan->param[JOBS] = plan->pulled || is_spread(plan->view, &plan->coll, tuning);
        if (plan->param[JOBS])
            ft_plan_split_items(plan, tuning, count, n);
        else
            ft_plan_split(plan, tuning, count, 1, n);
        break;
    default:
        ft_plan_split(plan, tuning, count, 1, 1);
    }
    return FT_OK;
}

static void send_all(const struct ft_plan *plan, struct ft_step *s)
{
    for (int d = 1; d < plan->view->nranks; d++)
        ft_send_to(s, ft_wrap(plan->view->rank + d, plan->view->nranks));
}

static void fwd_all(const struct ft_plan *plan, struct ft_step *s)
{
    for (int d = 1; d < plan->view->nranks; d++)
        ft_fwd_to(s, ft_wrap(plan->view->rank + d, plan->view->nranks));
}

static void recv_all(const struct ft_plan *plan, struct ft_step *s)
{
    for (int d = 1; d < plan->view->nranks; d++)
        ft_recv_from(s, ft_wrap(plan->view->rank - d, plan->view->nranks));
}

/* Steps 0..n-2 send the peers their blocks; the first of them also copies this rank's own block.
 * The later steps receive the peers' blocks. */
static void short_alltoall_step(const struct ft_plan *plan, const struct ft_piece *p,
                                struct ft_step *s)
{
    int n = plan->view->nranks, rank = plan->view->rank, k = (int)p->k;
    if (k >= n - 1) {
        int of = ft_wrap(rank - (k - n + 2), n);
        s->len_bytes = p->len;
        s->dst = ft_at(FT_BUF_OUT, (size_t)of * p->len);
        ft_recv_from(s, of);
        return;
    }
    int to = ft_wrap(rank + k + 1, n);
    s->send = ft_at(FT_BUF_IN, (size_t)to * p->len);
    s->send_bytes = p->len;
    ft_send_to(s, to);
    if (k > 0)
        return;
    s->len_bytes = p->len;
    s->src = ft_at(FT_BUF_IN, (size_t)rank * p->len);
    s->dst = ft_at(FT_BUF_OUT, (size_t)rank * p->len);
}

/* Round k pairs rank r with rank k - r. So a pair exchanges its two blocks in one step, and may do
 * so in place. */
static void alltoall_step(const struct ft_plan *plan, const struct ft_piece *p, struct ft_step *s)
{
    size_t block = plan->coll.count * plan->esize;
    int rank = plan->view->rank, partner = ft_wrap((int64_t)p->k - rank, plan->view->nranks);
    struct ft_ref mine = ft_at(FT_BUF_IN, (size_t)partner * block + p->off);
    s->len_bytes = p->len;
    s->dst = ft_at(FT_BUF_OUT, mine.off);
    if (partner == rank) {
        s->src = mine;
        return;
    }
    s->send = mine;
    s->send_bytes = p->len;
    s->flags = FT_STEP_MEETS;
    ft_send_to(s, partner);
    ft_recv_from(s, partner);
}

/* Job k moves the block of the rank k places after the root. */
static void gather_step(const struct ft_plan *plan, const struct ft_piece *p, struct ft_step *s)
{
    int root = plan->coll.root, peer = ft_wrap(root + (int64_t)p->k, plan->view->nranks);
    struct ft_ref place = ft_at(FT_BUF_OUT, (size_t)peer * plan->coll.count * plan->esize + p->off);
    if (plan->view->rank == root) {
        s->len_bytes = p->len;
        s->dst = place;
        if (peer == root)
            s->src = ft_at(FT_BUF_IN, p->off);
        else
            ft_recv_from(s, peer);
    } else if (plan->view->rank == peer) {
        s->send = ft_at(FT_BUF_IN, p->off);
        s->send_bytes = p->len;
        s->flags = FT_STEP_MEETS;
        ft_send_to(s, root);
    }
}

static void scatter_step(const struct ft_plan *plan, const struct ft_piece *p, struct ft_step *s)
{
    int root = plan->coll.root, peer = ft_wrap(root + (int64_t)p->k, plan->view->nranks);
    struct ft_ref place = ft_at(FT_BUF_IN, (size_t)peer * plan->coll.count * plan->esize + p->off);
    if (plan->view->rank == root && peer != root) {
        s->send = place;
        s->send_bytes = p->len;
        s->flags = FT_STEP_MEETS;
        ft_send_to(s, peer);
    } else if (plan->view->rank == peer) {
        s->len_bytes = p->len;
        s->dst = ft_at(FT_BUF_OUT, p->off);
        if (peer == root)
            s->src = place;
        else
            ft_recv_from(s, root);
    }
}

/* Steps 0..n-2 send the peers their parts; the last of them reduces this rank's part. In an
 * AllReduce that step also sends the result to all, and the later steps receive the other
 * results. */
static void reducing_step(const struct ft_plan *plan, const struct ft_piece *p, struct ft_step *s)
{
    bool all = plan->coll.kind == FT_ALLREDUCE;
    int n = plan->view->nranks, rank = plan->view->rank, k = (int)p->k;
    size_t block = plan->coll.count * plan->esize;
    bool spreading = k >= n - 1;
    int of = spreading ? ft_wrap(rank - (k - n + 2), n) : ft_wrap(rank + k + 1, n);
    struct ft_range part = all ? ft_piece_part(plan, p, (size_t)n, (size_t)of)
                               : (struct ft_range){(size_t)of * block + p->off, p->len};
    if (spreading) {
        s->len_bytes = part.len;
        s->dst = ft_at(FT_BUF_OUT, part.off);
        ft_recv_from(s, of);
        return;
    }
    s->send = ft_at(FT_BUF_IN, part.off);
    s->send_bytes = part.len;
    ft_send_to(s, of);
    if (k < n - 2)
        return;
    /* with more ranks the parts are sent before any of them is received */
    if (n == 2)
        s->flags = FT_STEP_MEETS;
    struct ft_range own = all ? ft_piece_part(plan, p, (size_t)n, (size_t)rank)
                              : (struct ft_range){(size_t)rank * block + p->off, p->len};
    s->len_bytes = own.len;
    recv_all(plan, s);
    s->src = ft_at(FT_BUF_IN, own.off);
    s->dst = ft_at(FT_BUF_OUT, all ? own.off : p->off);
    s->flags |= FT_STEP_FINAL;
    if (all)
        fwd_all(plan, s);
}

/* Job k sends this rank's block to the rank k + 1 places after it. The last job copies the block
 * within this rank. */
static void shift_step(const struct ft_plan *plan, const struct ft_piece *p, struct ft_step *s)
{
    int n = plan->view->nranks, d = (int)p->k + 1, of = ft_wrap(plan->view->rank - d, n);
    s->len_bytes = p->len;
    s->dst = ft_at(FT_BUF_OUT, (size_t)of * plan->coll.count * plan->esize + p->off);
    if (d == n) {
        s->src = ft_at(FT_BUF_IN, p->off);
        return;
    }
    s->send = ft_at(FT_BUF_IN, p->off);
    s->send_bytes = p->len;
    s->flags = FT_STEP_MEETS;
    ft_send_to(s, ft_wrap(plan->view->rank + d, n));
    ft_recv_from(s, of);
}

static void allgather_step(const struct ft_plan *plan, const struct ft_piece *p, struct ft_step *s)
{
    int of = ft_wrap(plan->view->rank - (int64_t)p->k, plan->view->nranks);
    s->len_bytes = p->len;
    s->dst = ft_at(FT_BUF_OUT, (size_t)of * plan->coll.count * plan->esize + p->off);
    if (p->k > 0) {
        ft_recv_from(s, of);
        return;
    }
    s->send = s->src = ft_at(FT_BUF_IN, p->off);
    s->send_bytes = p->len;
    send_all(plan, s);
}

static void rooted_step(const struct ft_plan *plan, const struct ft_piece *p, struct ft_step *s)
{
    bool root = plan->view->rank == plan->coll.root, reduce = plan->coll.kind == FT_REDUCE;
    if (root != reduce) {
        s->send = ft_at(FT_BUF_IN, p->off);
        s->send_bytes = p->len;
        s->flags = FT_STEP_MEETS;
        if (root)
            send_all(plan, s);
        else
            ft_send_to(s, plan->coll.root);
    }
    if (!root && reduce)
        return;
    s->len_bytes = p->len;
    s->dst = ft_at(FT_BUF_OUT, p->off);
    if (root)
        s->src = ft_at(FT_BUF_IN, p->off);
    if (root && reduce) {
        recv_all(plan, s);
        s->flags |= FT_STEP_FINAL;
    } else if (!root) {
        ft_recv_from(s, plan->coll.root);
    }
}

static void direct_step(const struct ft_plan *plan, int lane, uint64_t index, struct ft_step *s)
{
    struct ft_piece p;
    bool any_n = KINDS_ANY_N & FT_KIND_BIT(plan->coll.kind), one = plan->param[ONE_LANE];
    bool items = (any_n && !one) || plan->param[JOBS];
    if (!(items ? ft_piece_at_items(plan, lane, index, (uint64_t)plan->view->nranks, &p)
                : ft_piece_at(plan, lane, index, &p)))
        return;
    switch (plan->coll.kind) {
    case FT_ALLTOALL:
        (one ? short_alltoall_step : alltoall_step)(plan, &p, s);
        break;
    case FT_GATHER:
        gather_step(plan, &p, s);
        break;
    case FT_SCATTER:
        scatter_step(plan, &p, s);
        break;
    case FT_ALLGATHER:
        (plan->param[JOBS] ? shift_step : allgather_step)(plan, &p, s);
        break;
    case FT_ALLREDUCE:
    case FT_REDUCESCATTER:
        reducing_step(plan, &p, s);
        break;
    default:
        rooted_step(plan, &p, s);
    }
}

const struct ft_algo ft_algo_direct = {
    .name = "direct",
    .kinds = FT_KINDS_COLLECTIVE,
    .fits = direct_fits,
    .cost_ns = direct_cost_ns,
    .plan = direct_plan,
    .step = direct_step,
};

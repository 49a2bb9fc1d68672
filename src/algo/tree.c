/*
 * Double binary trees (Sanders, Speck and Traeff 2009). There are two trees over all ranks but the
 * root, and the root has one child in each. An inner node of one tree is a leaf of the other, so
 * both halves of the data use all links. Even lanes use the first tree, odd lanes the second.
 * AllReduce goes up to position 0 and down again. It sends the next piece up before it waits for
 * the previous piece to come down. Broadcast and Reduce go one way.
 */
#include "algo/parts.h"

/* Factor on the bytes of a Broadcast or Reduce over TCP within a host: inner nodes have more work
 * than others at the same time. */
#define TREE_BYTES 1.2

enum { POS }; /* plan->param: this rank's distance from the root in the order of ranks */

/* A tree with nodes 1..size, numbered in order. The level of node x is its number of trailing zero
 * bits, so odd nodes are leaves. */
static int tree_parent(int x, int size)
{
    do {
        int bit = x & -x;
        x = (x - bit) | bit << 1;
    } while (x > size && (x & (x - 1)));
    return x <= size ? x : 0;
}

static int tree_children(int x, int size, int child[2])
{
    int half = (x & -x) >> 1, count = 0;
    if (half == 0)
        return 0;
    child[count++] = x - half;
    for (; half > 0; half >>= 1) {
        if (x + half > size)
            continue;
        child[count++] = x + half;
        break;
    }
    return count;
}

static int tree_top(int size)
{
    return 1 << ft_log2_floor(size);
}

/* The second tree is the first one mirrored if size is even. If size is odd, mirroring would keep
 * odd numbers odd, so it is the first one shifted by one. */
static int to_second(int x, int size)
{
    return size % 2 == 0 ? size + 1 - x : x % size + 1;
}
static int from_second(int x, int size)
{
    return size % 2 == 0 ? size + 1 - x : (x + size - 2) % size + 1;
}

struct ft_tree_node ft_tree_at(int distance, int nranks, int which)
{
    int size = nranks - 1;
    struct ft_tree_node node = {.parent = -1};
    if (distance == 0) {
        node.nchildren = 1;
        node.child[0] = tree_top(size);
    } else {
        int x = which ? to_second(distance, size) : distance;
        node.parent = tree_parent(x, size);
        node.nchildren = tree_children(x, size, node.child);
    }
    if (!which)
        return node;
    if (node.parent > 0)
        node.parent = from_second(node.parent, size);
    for (int i = 0; i < node.nchildren; i++)
        node.child[i] = from_second(node.child[i], size);
    return node;
}

static bool tree_fits(const struct ft_view *view, const struct ft_coll *coll,
                      const struct ft_tuning *tuning)
{
    (void)coll, (void)tuning;
    return view->nranks > 1;
}

static double tree_cost_ns(const struct ft_view *view, const struct ft_coll *coll,
                           const struct ft_tuning *tuning)
{
    double bytes = (double)coll->count * (double)ft_type_size(coll->type);
    double first = bytes < (double)tuning->chunk_bytes ? bytes : (double)tuning->chunk_bytes;
    int ways = coll->kind == FT_ALLREDUCE ? 2 : 1, depth = 1 + ft_log2_floor(view->nranks - 1);
    /* The first piece passes every level; the others follow behind it. A node handles its own input
     * and those of two children. */
    struct ft_work work = ft_work_doubling(view, tuning, ways * depth, 0);
    work.hops_remote = view->nhosts > 1 ? ways * (1 + ft_log2_floor(view->nhosts)) : 0;
    if (work.hops_remote > ways * depth)
        work.hops_remote = ways * depth;
    work.hops_local = ways * depth - work.hops_remote;
    work.bytes_local = (work.hops_local - (view->nhosts == 1)) * first;
    work.bytes_remote = (work.hops_remote - (view->nhosts > 1)) * first;
    ft_work_add_bytes(view, &work, ways * bytes);
    work.flows = 1;
    work.steps += (view->nranks > 2) * ways + ways * (ft_messages(tuning, bytes) - 1);
    double busiest = view->nhosts > 1 ? 0 : work.bytes_local;
    work.share_steps = busiest > 0
                           ? ways * (view->nranks - 1) / (double)view->nranks * bytes / busiest
                           : 1;
    if (ways == 1) {
        work.share_bytes = work.share_steps;
        if (!tuning->local_links)
            work.bytes_local *= TREE_BYTES;
    }
    if (coll->kind != FT_BROADCAST)
        work.reduced = bytes + (depth - 1) * first;
    return ft_work_ns(view, tuning, &work);
}

static int tree_plan(struct ft_plan *plan, const struct ft_tuning *tuning)
{
    const struct ft_view *view = plan->view;
    int root = plan->coll.kind == FT_ALLREDUCE ? 0 : ft_order_pos(view, plan->coll.root);
    plan->param[POS] = ft_wrap(ft_order_pos(view, view->rank) - root, view->nranks);
    ft_plan_split(plan, tuning, plan->coll.count, 1, plan->coll.kind == FT_ALLREDUCE ? 2 : 1);
    return FT_OK;
}

static int tree_rank(const struct ft_plan *plan, int distance)
{
    int root = plan->coll.kind == FT_ALLREDUCE ? 0 : ft_order_pos(plan->view, plan->coll.root);
    return ft_order_rank(plan->view, ft_wrap(distance + root, plan->view->nranks));
}

static void up_step(const struct ft_plan *plan, const struct ft_piece *p,
                    const struct ft_tree_node *node, struct ft_step *s)
{
    if (node->nchildren == 0) {
        s->send = ft_at(FT_BUF_IN, p->off);
        s->send_bytes = p->len;
        ft_send_to(s, tree_rank(plan, node->parent));
        return;
    }
    s->len_bytes = p->len;
    s->src = ft_at(FT_BUF_IN, p->off);
    for (int i = 0; i < node->nchildren; i++)
        ft_recv_from(s, tree_rank(plan, node->child[i]));
    if (node->parent >= 0) {
        ft_fwd_to(s, tree_rank(plan, node->parent));
        return;
    }
    s->dst = ft_at(FT_BUF_OUT, p->off);
    s->flags = FT_STEP_FINAL;
    if (plan->coll.kind == FT_ALLREDUCE)
        ft_fwd_to(s, tree_rank(plan, node->child[0]));
}

static void down_step(const struct ft_plan *plan, const struct ft_piece *p,
                      const struct ft_tree_node *node, struct ft_step *s)
{
    bool root = node->parent < 0;
    if (root && plan->coll.kind == FT_ALLREDUCE)
        return; /* it has already forwarded the result in up_step() */
    s->len_bytes = p->len;
    s->dst = ft_at(FT_BUF_OUT, p->off);
    if (root) {
        s->send = s->src = ft_at(FT_BUF_IN, p->off);
        s->send_bytes = p->len;
        ft_send_to(s, tree_rank(plan, node->child[0]));
        return;
    }
    ft_recv_from(s, tree_rank(plan, node->parent));
    for (int i = 0; i < node->nchildren; i++)
        ft_fwd_to(s, tree_rank(plan, node->child[i]));
}

/* Maps a step of a lane to its index in the order "each piece up, then down". The lane's own order
 * for an AllReduce of m pieces is: up 0, up 1, down 0, up 2, down 1, ..., down m - 1. */
static uint64_t overlapped(uint64_t index, uint64_t nsteps)
{
    if (index == 0 || index == nsteps - 1)
        return index;
    return index % 2 ? index + 1 : index - 1;
}

static void tree_step(const struct ft_plan *plan, int lane, uint64_t index, struct ft_step *s)
{
    struct ft_piece p;
    bool both = plan->coll.kind == FT_ALLREDUCE;
    if (!ft_piece_at(plan, lane, both ? overlapped(index, plan->nsteps) : index, &p))
        return;
    struct ft_tree_node node = ft_tree_at(plan->param[POS], plan->view->nranks, lane & 1);
    if (plan->coll.kind == FT_REDUCE || (both && p.k == 0))
        up_step(plan, &p, &node, s);
    else
        down_step(plan, &p, &node, s);
}

const struct ft_algo ft_algo_tree = {
    .name = "tree",
    .kinds = FT_KIND_BIT(FT_ALLREDUCE) | FT_KIND_BIT(FT_BROADCAST) | FT_KIND_BIT(FT_REDUCE),
    .fits = tree_fits,
    .cost_ns = tree_cost_ns,
    .plan = tree_plan,
    .step = tree_step,
};

/*
 * AllReduce in two levels: the ranks of a host reduce to a leader, the leaders run FTAR's ring, and
 * each leader distributes the result in its host. The levels are fused: in each step of the ring a
 * leader combines in one pass the message from the ring, its own operand and those of its host. It
 * forwards finished data around the ring and down to its host at once. The ranks of a host form a
 * tree with up to FANOUT children per node. Each piece has another leader, so the ranks of a host
 * share the work. Hosts may have different numbers of ranks.
 *
 * With H hosts a piece has H parts and takes 2H steps. Host h starts part h. After t hops it
 * handles part h - t.
 */
#include "algo/parts.h"

#define FANOUT (FT_STEP_PEERS - 1) /* a leader's step also has its neighbour on the ring */

/* plan->param: this rank's place among the ranks of its host, and their number */
enum { MEMBER, SIZE };

static bool twolevel_fits(const struct ft_view *view, const struct ft_coll *coll,
                          const struct ft_tuning *tuning)
{
    (void)coll, (void)tuning;
    return view->nhosts > 1 && view->nranks > view->nhosts;
}

static double twolevel_cost_ns(const struct ft_view *view, const struct ft_coll *coll,
                               const struct ft_tuning *tuning)
{
    double hosts = view->nhosts, size = ft_host_size_max(view);
    double bytes = (double)coll->count * (double)ft_type_size(coll->type), depth = 0;
    for (double reach = 1; reach < size; reach = reach * FANOUT + 1)
        depth++;
    double children = size - 1 < FANOUT ? size - 1 : FANOUT;
    struct ft_work work = ft_work_rounds(view, tuning, 2 * hosts - 2, bytes / hosts);
    work.hops_local = 2 * depth;
    /* each rank sends its input once and receives the result once; the leaders share this work */
    work.bytes_local = 2 * bytes;
    work.reduced = (children + 1) * bytes / (size < 2 ? 1 : size) + bytes;
    work.steps += 2 * depth * (1 + children) * ft_messages(tuning, bytes);
    return ft_work_ns(view, tuning, &work);
}

static int twolevel_plan(struct ft_plan *plan, const struct ft_tuning *tuning)
{
    const struct ft_view *view = plan->view;
    int host = view->host[view->rank];
    for (int r = 0; r < view->rank; r++)
        plan->param[MEMBER] += view->host[r] == host;
    plan->param[SIZE] = ft_host_size(view, host);
    ft_plan_split(plan, tuning, plan->coll.count, (size_t)view->nhosts, 2 * (uint64_t)view->nhosts);
    return FT_OK;
}

/* The rank that is `member` places after the first rank of its host, modulo the host's size. */
static int host_rank(const struct ft_view *view, int host, uint64_t member)
{
    uint64_t left = member % (uint64_t)ft_host_size(view, host);
    for (int r = 0;; r++)
        if (view->host[r] == host && left-- == 0)
            return r;
}

/* This rank's place in its host's tree for one piece; the leader has place 0. */
struct place {
    int of;
    int nchildren;
    int parent;
    int child[FANOUT];
};

static struct place place_of(const struct ft_plan *plan, uint64_t piece)
{
    const struct ft_view *view = plan->view;
    int size = plan->param[SIZE], host = view->host[view->rank],
        turn = (int)(piece % (uint64_t)size);
    struct place place = {.of = ft_wrap(plan->param[MEMBER] - turn, size), .parent = -1};
    if (place.of > 0)
        place.parent = host_rank(view, host, (uint64_t)((place.of - 1) / FANOUT + turn));
    for (int c = place.of * FANOUT + 1; c <= place.of * FANOUT + FANOUT && c < size; c++)
        place.child[place.nchildren++] = host_rank(view, host, (uint64_t)(c + turn));
    return place;
}

static struct ft_range part_after(const struct ft_plan *plan, const struct ft_piece *p, int hops)
{
    int hosts = plan->view->nhosts, host = plan->view->host[plan->view->rank];
    return ft_piece_part(plan, p, (size_t)hosts, (size_t)ft_wrap(host - hops, hosts));
}

/* Steps 0..H-1 add the host's operands to the message from the ring; the last of them finishes a
 * part. Later steps forward finished parts. */
static void leader_step(const struct ft_plan *plan, const struct ft_piece *p,
                        const struct place *place, struct ft_step *s)
{
    const struct ft_view *view = plan->view;
    int hosts = view->nhosts, host = view->host[view->rank], t = (int)p->k;
    int next = host_rank(view, ft_wrap(host + 1, hosts), p->index);
    struct ft_range part = part_after(plan, p, t);
    if (t == 2 * hosts - 1)
        return;
    if (t == 0 && place->nchildren == 0) {
        s->send = ft_at(FT_BUF_IN, part.off);
        s->send_bytes = part.len;
        ft_send_to(s, next);
        return;
    }
    s->len_bytes = part.len;
    if (t > 0)
        ft_recv_from(s, host_rank(view, ft_wrap(host - 1, hosts), p->index));
    if (t < hosts) {
        s->src = ft_at(FT_BUF_IN, part.off);
        for (int i = 0; i < place->nchildren; i++)
            ft_recv_from(s, place->child[i]);
    }
    if (t == hosts - 1)
        s->flags = FT_STEP_FINAL;
    if (t < 2 * hosts - 2)
        ft_fwd_to(s, next);
    if (t < hosts - 1)
        return;
    s->dst = ft_at(FT_BUF_OUT, part.off);
    for (int i = 0; i < place->nchildren; i++)
        ft_fwd_to(s, place->child[i]);
}

/* Steps 0..H-1 send the leader its operands, in the order in which it uses them. Later steps
 * receive finished parts. */
static void member_step(const struct ft_plan *plan, const struct ft_piece *p,
                        const struct place *place, struct ft_step *s)
{
    int hosts = plan->view->nhosts, t = (int)p->k;
    if (t >= hosts) {
        struct ft_range part = part_after(plan, p, t - 1);
        s->len_bytes = part.len;
        s->dst = ft_at(FT_BUF_OUT, part.off);
        ft_recv_from(s, place->parent);
        for (int i = 0; i < place->nchildren; i++)
            ft_fwd_to(s, place->child[i]);
        return;
    }
    struct ft_range part = part_after(plan, p, t);
    if (place->nchildren == 0) {
        s->send = ft_at(FT_BUF_IN, part.off);
        s->send_bytes = part.len;
        ft_send_to(s, place->parent);
        return;
    }
    s->len_bytes = part.len;
    s->src = ft_at(FT_BUF_IN, part.off);
    for (int i = 0; i < place->nchildren; i++)
        ft_recv_from(s, place->child[i]);
    ft_fwd_to(s, place->parent);
}

static void twolevel_step(const struct ft_plan *plan, int lane, uint64_t index, struct ft_step *s)
{
    struct ft_piece p;
    if (!ft_piece_at(plan, lane, index, &p))
        return;
    struct place place = place_of(plan, p.index);
    if (place.of == 0)
        leader_step(plan, &p, &place, s);
    else
        member_step(plan, &p, &place, s);
}

const struct ft_algo ft_algo_twolevel = {
    .name = "twolevel",
    .kinds = FT_KIND_BIT(FT_ALLREDUCE),
    .fits = twolevel_fits,
    .cost_ns = twolevel_cost_ns,
    .plan = twolevel_plan,
    .step = twolevel_step,
};

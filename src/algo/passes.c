/*
 * Slots in which every link of a ring or of a tree is used alone (Falcon, appendix 9.1). A ring
 * with an even number of ranks has two classes of links, by where they begin; an odd one has a
 * third for the link that closes it. The links of a tree have four: by the level of the parent,
 * even or odd, and by which child it is.
 */
#include "algo/parts.h"

#define TREES 2
#define TREE_PASSES 4

struct list {
    struct ft_transfer *transfers;
    int n;
};

static void add(struct list *list, int slot, int peer, bool sends)
{
    list->transfers[list->n++] = (struct ft_transfer){slot, peer, sends};
}

/* The slot of the link from a position to the next one. */
static int ring_slot(int pos, int nranks)
{
    return nranks % 2 == 1 && pos == nranks - 1 ? 2 : pos % 2;
}

static int plan_ring(const struct ft_view *view, struct list *list)
{
    int n = view->nranks, pos = ft_order_pos(view, view->rank), before = ft_wrap(pos - 1, n);
    add(list, ring_slot(pos, n), ft_order_rank(view, ft_wrap(pos + 1, n)), true);
    add(list, ring_slot(before, n), ft_order_rank(view, before), false);
    return n % 2 == 1 ? 3 : 2;
}

static int depth_of(int distance, int nranks, int which)
{
    int depth = 0;
    for (; distance > 0; depth++)
        distance = ft_tree_at(distance, nranks, which).parent;
    return depth;
}

/* The first of the two slots of the pass for the nth child of a parent. */
static int tree_slot(int which, int parent_depth, int nth)
{
    return 2 * (which * TREE_PASSES + 2 * (parent_depth % 2) + nth);
}

static void plan_tree(const struct ft_view *view, int which, int first, struct list *list)
{
    int n = view->nranks, me = ft_order_pos(view, view->rank), depth = depth_of(me, n, which);
    struct ft_tree_node node = ft_tree_at(me, n, which);
    for (int i = 0; i < node.nchildren; i++) {
        int slot = first + tree_slot(which, depth, i), child = ft_order_rank(view, node.child[i]);
        add(list, slot, child, false);
        add(list, slot + 1, child, true);
    }
    if (node.parent < 0)
        return;
    int nth = ft_tree_at(node.parent, n, which).child[0] == me ? 0 : 1;
    int slot = first + tree_slot(which, depth - 1, nth), parent = ft_order_rank(view, node.parent);
    add(list, slot, parent, true);
    add(list, slot + 1, parent, false);
}

static void sort(struct list *list)
{
    for (int i = 1; i < list->n; i++)
        for (int k = i; k > 0 && list->transfers[k - 1].slot > list->transfers[k].slot; k--) {
            struct ft_transfer t = list->transfers[k];
            list->transfers[k] = list->transfers[k - 1];
            list->transfers[k - 1] = t;
        }
}

int ft_passes_plan(const struct ft_view *view, unsigned passes,
                   struct ft_transfer out[FT_TRANSFERS], int *nslots)
{
    struct list list = {out, 0};
    *nslots = 0;
    if (view->nranks < 2)
        return 0;
    if (passes & FT_PASSES_RING)
        *nslots += plan_ring(view, &list);
    if (passes & FT_PASSES_TREE) {
        for (int which = 0; which < TREES; which++)
            plan_tree(view, which, *nslots, &list);
        *nslots += 2 * TREES * TREE_PASSES;
    }
    sort(&list);
    return list.n;
}

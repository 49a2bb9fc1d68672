/*
 * Groups the ranks of a job by their stacks, and names those that are elsewhere than most.
 */
#include "diagnose.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

const char *ft_stacks_found_name(enum ft_stacks_found found)
{
    static const char *const names[] = {"nothing", "alike", "outliers", "cannot_tell"};
    return (unsigned)found < FT_ARRAY_LEN(names) ? names[found] : "?";
}

/* ---- what is compared ------------------------------------------------------------------------ */

/* The tool that told more than half of the ranks; else the kernel. */
static enum ft_stack_source choose_source(const struct ft_stacks *s)
{
    int told[FT_STACK_SOURCE_COUNT] = {0};
    for (int i = 0; i < s->nranks; i++)
        if (s->ranks[i].tool.normal)
            told[s->ranks[i].tool.source]++;
    for (int source = 0; source < FT_STACK_SOURCE_COUNT; source++)
        if (2 * (int64_t)told[source] > s->nranks)
            return (enum ft_stack_source)source;
    return FT_STACK_KERNEL;
}

const struct ft_stack *ft_stacks_of(const struct ft_stacks *s, int rank)
{
    const struct ft_stack_rank *r = &s->ranks[rank];
    if (s->compared == FT_STACK_KERNEL || r->stopped)
        return r->kernel.normal ? &r->kernel : NULL;
    return r->tool.normal && r->tool.source == s->compared ? &r->tool : NULL;
}

/* ---- groups ---------------------------------------------------------------------------------- */

static int compare_stacks(const struct ft_stacks *s, int a, int b)
{
    if (s->ranks[a].stopped || s->ranks[b].stopped)
        return s->ranks[b].stopped - s->ranks[a].stopped;
    return strcmp(ft_stacks_of(s, a)->normal, ft_stacks_of(s, b)->normal);
}

static int by_stack(const void *a, const void *b, void *arg)
{
    const struct ft_stacks *s = arg;
    int x = *(const int *)a, y = *(const int *)b, order = compare_stacks(s, x, y);
    return order ? order
           : s->ranks[x].rank != s->ranks[y].rank
               ? (s->ranks[x].rank > s->ranks[y].rank) - (s->ranks[x].rank < s->ranks[y].rank)
               : x - y;
}

/* Outliers first, then the largest, then that of the lowest rank. */
static int by_weight(const void *a, const void *b, void *arg)
{
    const struct ft_stacks *s = arg;
    const struct ft_stack_group *x = a, *y = b;
    if (x->outlier != y->outlier)
        return x->outlier ? -1 : 1;
    if (x->count != y->count)
        return x->count > y->count ? -1 : 1;
    const struct ft_stack_rank *a1 = &s->ranks[s->order[x->first]],
                               *b1 = &s->ranks[s->order[y->first]];
    return a1->rank != b1->rank ? (a1->rank > b1->rank) - (a1->rank < b1->rank)
                                : x->first - y->first;
}

static int sort_ranks(struct ft_stacks *s)
{
    int n = 0;
    for (int i = 0; i < s->nranks; i++) {
        s->ranks[i].group = -1;
        if (ft_stacks_of(s, i))
            s->order[n++] = i;
    }
    qsort_r(s->order, (size_t)n, sizeof *s->order, by_stack, s);
    return n;
}

static void make_groups(struct ft_stacks *s, int n)
{
    s->ngroups = 0;
    for (int i = 0; i < n; i++) {
        if (i == 0 || compare_stacks(s, s->order[i - 1], s->order[i]) != 0)
            s->groups[s->ngroups++] = (struct ft_stack_group){.first = i};
        s->groups[s->ngroups - 1].count++;
    }
}

/* The dominant groups are healthy. Ranks that could not be read may be in any group. */
static void mark_outliers(struct ft_stacks *s, int n)
{
    int most = 0;
    for (int i = 0; i < s->ngroups; i++)
        most = s->groups[i].count > most ? s->groups[i].count : most;
    s->noutliers = 0;
    for (int i = 0; i < s->ngroups; i++) {
        s->groups[i].outlier = 2 * ((int64_t)s->groups[i].count + s->nunread) <= most;
        s->noutliers += s->groups[i].outlier ? s->groups[i].count : 0;
    }
    if (2 * (int64_t)s->noutliers < n)
        return;
    for (int i = 0; i < s->ngroups; i++)
        s->groups[i].outlier = false;
    s->noutliers = 0;
}

/* ---- what the outliers have in common -------------------------------------------------------- */

struct common {
    const struct ft_stacks *stacks;
    const struct ft_snapshot *snap;
    int *order; /* members that count, in the order of their communicators and engines */
    int norder;
    bool *outlier; /* [nengines] */
    int nengines;  /* of outliers */
    int world;     /* size of the largest communicator of one of them */
};

static int by_ctx(const void *a, const void *b, void *arg)
{
    const struct ft_snap_member *members = arg, *x = &members[*(const int *)a],
                                *y = &members[*(const int *)b];
    if (x->ctx != y->ctx)
        return x->ctx < y->ctx ? -1 : 1;
    return (x->engine > y->engine) - (x->engine < y->engine);
}

static void find_members(struct common *c)
{
    const struct ft_stacks *s = c->stacks;
    for (int i = 0; i < s->nranks; i++) {
        int engine = s->ranks[i].engine, group = s->ranks[i].group;
        if (group < 0 || !s->groups[group].outlier || engine < 0 || engine >= c->snap->nengines)
            continue;
        c->nengines += !c->outlier[engine];
        c->outlier[engine] = true;
    }
    for (int i = 0; i < c->snap->nmembers; i++) {
        const struct ft_snap_member *m = &c->snap->members[i];
        if (!m->open || m->engine < 0 || m->engine >= c->snap->nengines || !c->outlier[m->engine])
            continue;
        c->order[c->norder++] = i;
        c->world = m->nranks > c->world ? m->nranks : c->world;
    }
    qsort_r(c->order, (size_t)c->norder, sizeof *c->order, by_ctx, c->snap->members);
}

/* Keeps the smallest ones, in their order. */
static void add_shared(struct ft_stacks *s, const struct ft_snap_member *m)
{
    int at = s->nshared < FT_STACKS_SHARED ? s->nshared++ : FT_STACKS_SHARED - 1;
    if (at == FT_STACKS_SHARED - 1 && s->shared[at].nranks && s->shared[at].nranks <= m->nranks)
        return;
    for (; at > 0 && s->shared[at - 1].nranks > m->nranks; at--)
        s->shared[at] = s->shared[at - 1];
    s->shared[at] = (struct ft_stack_shared){.ctx = m->ctx, .nranks = m->nranks};
    snprintf(s->shared[at].name, sizeof s->shared[at].name, "%.39s", m->name);
}

static void add_all_shared(struct ft_stacks *s, const struct common *c)
{
    const struct ft_snap_member *m = c->snap->members;
    for (int i = 0, engines; i < c->norder;) {
        const struct ft_snap_member *first = &m[c->order[i]];
        for (engines = 0; i < c->norder && m[c->order[i]].ctx == first->ctx; i++)
            engines += engines == 0 || m[c->order[i]].engine != m[c->order[i - 1]].engine;
        if (engines == c->nengines)
            add_shared(s, first);
    }
}

static int find_shared(struct ft_stacks *s, const struct ft_snapshot *snap)
{
    struct common c = {.stacks = s, .snap = snap};
    c.order = calloc((size_t)snap->nmembers + 1, sizeof *c.order);
    c.outlier = calloc((size_t)snap->nengines + 1, sizeof *c.outlier);
    int status = c.order && c.outlier ? FT_OK : FT_NOMEM;
    if (!status) {
        find_members(&c);
        add_all_shared(s, &c);
        if (s->nshared && 2 * (int64_t)s->shared[0].nranks <= c.world)
            s->leave_out = 0;
    }
    free(c.order);
    free(c.outlier);
    return status;
}

/* ---- the whole ------------------------------------------------------------------------------- */

static void name_groups(struct ft_stacks *s)
{
    qsort_r(s->groups, (size_t)s->ngroups, sizeof *s->groups, by_weight, s);
    for (int i = 0; i < s->ngroups; i++)
        for (int k = s->groups[i].first; k < s->groups[i].first + s->groups[i].count; k++)
            s->ranks[s->order[k]].group = i;
}

int ft_stacks_group(struct ft_stacks *s, const struct ft_snapshot *snap)
{
    s->leave_out = -1;
    s->order = calloc((size_t)s->nranks + 1, sizeof *s->order);
    s->groups = calloc((size_t)s->nranks + 1, sizeof *s->groups);
    if (!s->order || !s->groups)
        return FT_NOMEM;
    s->compared = choose_source(s);
    int n = sort_ranks(s);
    s->nunread = s->nranks - n;
    make_groups(s, n);
    mark_outliers(s, n);
    name_groups(s);
    s->found = s->ngroups == 0   ? FT_STACKS_NOTHING
               : s->ngroups == 1 ? FT_STACKS_ALIKE
               : s->noutliers    ? FT_STACKS_OUTLIERS
                                 : FT_STACKS_CANNOT_TELL;
    return s->noutliers > 1 ? find_shared(s, snap) : FT_OK;
}

void ft_stacks_free(struct ft_stacks *s)
{
    for (int i = 0; i < s->nranks; i++) {
        ft_stack_free(&s->ranks[i].kernel);
        ft_stack_free(&s->ranks[i].tool);
    }
    for (int i = 0; i < s->nprocesses; i++) {
        ft_stack_free(&s->processes[i].stack);
        free(s->processes[i].threads);
    }
    free(s->ranks);
    free(s->processes);
    free(s->groups);
    free(s->order);
    *s = (struct ft_stacks){0};
}

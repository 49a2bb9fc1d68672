/*
 * Cuts a snapshot to one job: the processes that share a communicator with a given one, or with one
 * that does.
 */
#include "diagnose.h"

#include <stdlib.h>

/* What is worked with: members in the order of their communicators, and the marked engines. */
struct cut {
    struct ft_snapshot *s;
    int *order;    /* [nmembers], later the new index of each member, or -1 */
    bool *engines; /* [nengines] */
};

static int by_ctx(const void *a, const void *b, void *arg)
{
    const struct ft_snap_member *members = arg;
    uint64_t x = members[*(const int *)a].ctx, y = members[*(const int *)b].ctx;
    return x < y ? -1 : x > y;
}

static bool *mark_of(const struct cut *cut, int place)
{
    return &cut->engines[cut->s->members[cut->order[place]].engine];
}

/* Marks the engines of the communicator at `first`, which has n members, if one is marked. Returns
 * true if that is new to some. */
static bool spread(const struct cut *cut, int first, int n)
{
    bool any = false, all = true;
    for (int i = first; i < first + n; i++) {
        any |= *mark_of(cut, i);
        all &= *mark_of(cut, i);
    }
    for (int i = first; any && i < first + n; i++)
        *mark_of(cut, i) = true;
    return any && !all;
}

static bool spread_once(const struct cut *cut)
{
    const struct ft_snap_member *m = cut->s->members;
    bool more = false;
    for (int i = 0, n; i < cut->s->nmembers; i += n) {
        for (n = 1; i + n < cut->s->nmembers && m[cut->order[i + n]].ctx == m[cut->order[i]].ctx;
             n++) {}
        more |= spread(cut, i, n);
    }
    return more;
}

static void drop_others(struct cut *cut)
{
    struct ft_snapshot *s = cut->s;
    int members = 0, links = 0, paths = 0, steps = 0, ops = 0;
    for (int i = 0; i < s->nmembers; i++) {
        bool stays = cut->engines[s->members[i].engine];
        cut->order[i] = stays ? members : -1;
        if (stays)
            s->members[members++] = s->members[i];
    }
    for (int i = 0; i < s->nlinks; i++)
        if (cut->engines[s->links[i].engine])
            s->links[links++] = s->links[i];
    for (int i = 0; i < s->npaths; i++)
        if (cut->engines[s->paths[i].engine])
            s->paths[paths++] = s->paths[i];
    for (int i = 0; i < s->nsteps; i++) {
        struct ft_snap_step step = s->steps[i];
        step.member = cut->order[step.member];
        if (step.member >= 0)
            s->steps[steps++] = step;
    }
    for (int i = 0; i < s->nops; i++) {
        struct ft_snap_op op = s->ops[i];
        op.member = cut->order[op.member];
        if (op.member >= 0)
            s->ops[ops++] = op;
    }
    s->nmembers = members;
    s->nlinks = links;
    s->npaths = paths;
    s->nsteps = steps;
    s->nops = ops;
}

static int run(struct cut *cut, int pid)
{
    int engines = 0;
    for (int i = 0; i < cut->s->nmembers; i++)
        cut->order[i] = i;
    qsort_r(cut->order, (size_t)cut->s->nmembers, sizeof *cut->order, by_ctx, cut->s->members);
    for (int i = 0; i < cut->s->nengines; i++)
        cut->engines[i] = cut->s->engines[i].pid == pid;
    while (spread_once(cut)) {}
    for (int i = 0; i < cut->s->nengines; i++)
        engines += cut->engines[i];
    drop_others(cut);
    return engines;
}

int keep_job(struct ft_snapshot *s, int pid)
{
    struct cut cut = {s, calloc((size_t)s->nmembers + 1, sizeof *cut.order),
                      calloc((size_t)s->nengines + 1, sizeof *cut.engines)};
    int engines = cut.order && cut.engines ? run(&cut, pid) : -1;
    free(cut.order);
    free(cut.engines);
    return engines;
}

/*
 * Follows the steps of the jobs in a series of snapshots, and says when they became slower. Steps
 * are those that the program marks (ftcclStep()); without marks they are found in the calls, which
 * recur with each step. One member of each communicator is followed: steps are as long on all.
 */
#include "diagnose.h"
#include "slow.h"

#include <stdlib.h>
#include <string.h>

#define FOLLOWED 64   /* most communicators */
#define MAX_LAG 256   /* longest step that is looked for, in calls */
#define LEAST_STEPS 4 /* that the calls of a snapshot must hold */

struct followed {
    uint64_t ctx, engine;
    uint64_t begun_ns; /* when the latest step that was looked at began */
    struct ft_track *track;
    bool seen; /* in the present snapshot */
};

struct ft_steps {
    struct followed followed[FOLLOWED];
    int n;
};

struct ft_steps *ft_steps_open(void)
{
    return calloc(1, sizeof(struct ft_steps));
}

void ft_steps_close(struct ft_steps *steps)
{
    for (int i = 0; steps && i < steps->n; i++)
        ft_track_close(steps->followed[i].track);
    free(steps);
}

/* ---- who is followed ------------------------------------------------------------------------- */

static void forget_gone(struct ft_steps *steps)
{
    int kept = 0;
    for (int i = 0; i < steps->n; i++) {
        if (steps->followed[i].seen)
            steps->followed[kept++] = steps->followed[i];
        else
            ft_track_close(steps->followed[i].track);
    }
    steps->n = kept;
}

static struct followed *find(struct ft_steps *steps, uint64_t ctx)
{
    for (int i = 0; i < steps->n; i++)
        if (steps->followed[i].ctx == ctx)
            return &steps->followed[i];
    return NULL;
}

/* The followed communicator of this member. NULL: another member of it is followed, there are too
 * many, or there is no memory. */
static struct followed *follow(struct ft_steps *steps, const struct ft_snapshot *s,
                               const struct ft_snap_member *m)
{
    uint64_t engine = s->engines[m->engine].id;
    struct followed *f = find(steps, m->ctx);
    if (f)
        return f->engine == engine ? f : NULL;
    struct ft_track *track = steps->n < FOLLOWED ? ft_track_open(NULL) : NULL;
    if (!track)
        return NULL;
    f = &steps->followed[steps->n++];
    *f = (struct followed){.ctx = m->ctx, .engine = engine, .track = track};
    return f;
}

/* ---- their steps ----------------------------------------------------------------------------- */

/* Gives a step to the tracker, unless it has had it. A report goes into *change. */
static bool add_step(struct followed *f, uint64_t begin_ns, uint64_t end_ns,
                     struct ft_step_change *change)
{
    if (begin_ns <= f->begun_ns || end_ns < begin_ns)
        return false;
    f->begun_ns = begin_ns;
    struct ft_track_event event = ft_track_add(f->track, (double)(end_ns - begin_ns));
    if (event.kind == FT_TRACK_NOTHING)
        return false;
    change->before_ns = event.before_ns;
    change->after_ns = event.after_ns;
    change->slower = event.kind == FT_TRACK_ONSET;
    return true;
}

/* Marked steps. *any: there are some. */
static bool add_marked(const struct ft_snapshot *s, int member, struct followed *f, bool *any,
                       struct ft_step_change *change)
{
    bool changed = false;
    *any = false;
    for (int i = 0; i < s->nsteps; i++)
        if (s->steps[i].member == member) {
            *any = true;
            changed |= add_step(f, s->steps[i].begin_ns, s->steps[i].end_ns, change);
        }
    return changed;
}

/* The calls of a member, oldest first. The caller frees both arrays. */
static struct ft_call_series calls_of(const struct ft_snapshot *s, int member, uint64_t **sigs,
                                      uint64_t **times_ns)
{
    size_t n = 0, kept = 0;
    for (int i = 0; i < s->nops; i++)
        n += s->ops[i].member == member;
    *sigs = malloc((n + 1) * sizeof **sigs);
    *times_ns = malloc((n + 1) * sizeof **times_ns);
    for (int i = 0; *sigs && *times_ns && i < s->nops; i++) {
        if (s->ops[i].member != member)
            continue;
        (*sigs)[kept] = s->ops[i].sig;
        (*times_ns)[kept++] = s->ops[i].called_ns;
    }
    return (struct ft_call_series){*sigs, *times_ns, kept};
}

/* Steps that are found in the calls. Each look finds the period anew: the program may do something
 * else now. */
static bool add_found(const struct ft_snapshot *s, int member, struct followed *f,
                      struct ft_step_change *change)
{
    uint64_t *sigs, *times_ns;
    struct ft_call_series calls = calls_of(s, member, &sigs, &times_ns);
    uint64_t *begins_ns = malloc((calls.n + 1) * sizeof *begins_ns);
    struct ft_step_mark mark;
    size_t steps = 0;
    bool changed = false;
    if (begins_ns && calls.n > 0 &&
        ft_period(&calls, ft_min(MAX_LAG, calls.n / LEAST_STEPS), &mark) > 0)
        steps = ft_step_begins(&calls, &mark, begins_ns, calls.n);
    for (size_t i = 0; i + 1 < steps; i++)
        changed |= add_step(f, begins_ns[i], begins_ns[i + 1], change);
    free(sigs);
    free(times_ns);
    free(begins_ns);
    return changed;
}

/* ---- a snapshot ------------------------------------------------------------------------------ */

static bool is_sound(const struct ft_snapshot *s, const struct ft_snap_member *m)
{
    return m->engine >= 0 && m->engine < s->nengines && m->nranks > 1 && m->open && !m->failed;
}

int ft_steps_look(struct ft_steps *steps, const struct ft_snapshot *s,
                  struct ft_step_change *changes, int capacity)
{
    int n = 0;
    for (int i = 0; i < steps->n; i++)
        steps->followed[i].seen = false;
    for (int i = 0; i < s->nmembers; i++) {
        const struct ft_snap_member *m = &s->members[i];
        struct followed *f = is_sound(s, m) ? follow(steps, s, m) : NULL;
        if (!f || f->seen)
            continue;
        f->seen = true;
        bool marked;
        struct ft_step_change change = {.ctx = m->ctx};
        bool changed = add_marked(s, i, f, &marked, &change);
        if (!marked)
            changed = add_found(s, i, f, &change);
        memcpy(change.name, m->name, sizeof change.name);
        if (changed && n < capacity)
            changes[n++] = change;
    }
    forget_gone(steps);
    return n;
}

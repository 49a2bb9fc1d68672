/*
 * Cuts a snapshot to one job: the processes that share a communicator with a given one, or with one
 * that does.
 */
#include "diagnose.h"

#include <stdlib.h>
#include <string.h>

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

/* ---- what stays ------------------------------------------------------------------------------ */

/* Whether a row stays. Indices of members in it become the new ones. */
typedef bool stays(const struct cut *, void *row);

static void keep_rows(const struct cut *cut, void *rows, size_t row_bytes, int *n, stays *row_stays)
{
    int kept = 0;
    for (int i = 0; i < *n; i++) {
        char *row = (char *)rows + (size_t)i * row_bytes;
        if (row_stays(cut, row))
            memmove((char *)rows + (size_t)kept++ * row_bytes, row, row_bytes);
    }
    *n = kept;
}

static bool link_stays(const struct cut *cut, void *row)
{
    return cut->engines[((struct ft_snap_link *)row)->engine];
}

static bool path_stays(const struct cut *cut, void *row)
{
    return cut->engines[((struct ft_snap_path *)row)->engine];
}

static bool thread_stays(const struct cut *cut, void *row)
{
    return cut->engines[((struct ft_snap_thread *)row)->engine];
}

static bool latency_stays(const struct cut *cut, void *row)
{
    return cut->engines[((struct ft_snap_latency *)row)->engine];
}

static bool clock_stays(const struct cut *cut, void *row)
{
    return cut->engines[((struct ft_snap_clock *)row)->engine];
}

static bool event_stays(const struct cut *cut, void *row)
{
    return cut->engines[((struct ft_snap_event *)row)->engine];
}

static bool step_stays(const struct cut *cut, void *row)
{
    struct ft_snap_step *step = row;
    step->member = cut->order[step->member];
    return step->member >= 0;
}

static bool op_stays(const struct cut *cut, void *row)
{
    struct ft_snap_op *op = row;
    op->member = cut->order[op->member];
    return op->member >= 0;
}

static void keep_members(struct cut *cut)
{
    struct ft_snapshot *s = cut->s;
    int kept = 0;
    for (int i = 0; i < s->nmembers; i++) {
        bool member_stays = cut->engines[s->members[i].engine];
        cut->order[i] = member_stays ? kept : -1;
        if (member_stays)
            s->members[kept++] = s->members[i];
    }
    s->nmembers = kept;
}

static void drop_others(struct cut *cut)
{
    struct ft_snapshot *s = cut->s;
    keep_members(cut);
    keep_rows(cut, s->links, sizeof *s->links, &s->nlinks, link_stays);
    keep_rows(cut, s->paths, sizeof *s->paths, &s->npaths, path_stays);
    keep_rows(cut, s->steps, sizeof *s->steps, &s->nsteps, step_stays);
    keep_rows(cut, s->ops, sizeof *s->ops, &s->nops, op_stays);
    keep_rows(cut, s->threads, sizeof *s->threads, &s->nthreads, thread_stays);
    keep_rows(cut, s->latencies, sizeof *s->latencies, &s->nlatencies, latency_stays);
    keep_rows(cut, s->clocks, sizeof *s->clocks, &s->nclocks, clock_stays);
    keep_rows(cut, s->events, sizeof *s->events, &s->nevents, event_stays);
}

/* Marks the processes of the job. */
static void mark_job(struct cut *cut, int pid)
{
    for (int i = 0; i < cut->s->nmembers; i++)
        cut->order[i] = i;
    qsort_r(cut->order, (size_t)cut->s->nmembers, sizeof *cut->order, by_ctx, cut->s->members);
    for (int i = 0; i < cut->s->nengines; i++)
        cut->engines[i] = cut->s->engines[i].pid == pid;
    while (spread_once(cut)) {}
}

static int count_engines(const struct cut *cut)
{
    int engines = 0;
    for (int i = 0; i < cut->s->nengines; i++)
        engines += cut->engines[i];
    return engines;
}

static bool open_cut(struct cut *cut, struct ft_snapshot *s)
{
    *cut = (struct cut){s, calloc((size_t)s->nmembers + 1, sizeof *cut->order),
                        calloc((size_t)s->nengines + 1, sizeof *cut->engines)};
    return cut->order && cut->engines;
}

static void close_cut(struct cut *cut)
{
    free(cut->order);
    free(cut->engines);
}

int keep_job(struct ft_snapshot *s, int pid)
{
    struct cut cut;
    int engines = -1;
    if (open_cut(&cut, s)) {
        mark_job(&cut, pid);
        engines = count_engines(&cut);
        drop_others(&cut);
    }
    close_cut(&cut);
    return engines;
}

static void set_engine(const int *place, int *engine)
{
    *engine = *engine >= 0 ? place[*engine] : -1;
}

/* The engines have other places now, in all lists that refer to them. */
static void set_engines(struct ft_snapshot *s, const int *place)
{
    struct ft_snap_list lists[FT_SNAP_LISTS];
    ft_snapshot_lists(s, lists);
    for (int l = 0; l < FT_SNAP_LISTS; l++)
        for (int i = 0; lists[l].index >= 0 && !lists[l].of_member && i < *lists[l].n; i++) {
            char *row = (char *)*lists[l].at + (size_t)i * lists[l].row_bytes;
            set_engine(place, (int *)(void *)(row + lists[l].index));
        }
}

/* Leaves the marked engines alone, and what refers to them. */
static void drop_engines(struct cut *cut, int *place)
{
    struct ft_snapshot *s = cut->s;
    int kept = 0, seats = 0;
    for (int i = 0; i < s->nengines; i++) {
        place[i] = cut->engines[i] ? kept : -1;
        if (cut->engines[i])
            s->engines[kept++] = s->engines[i];
    }
    s->nengines = kept;
    for (int i = 0; i < s->nseats; i++)
        if (s->seats[i].teller >= 0 && cut->engines[s->seats[i].teller])
            s->seats[seats++] = s->seats[i];
    s->nseats = seats;
    set_engines(s, place);
}

/* Which processes stay. */
typedef bool engine_stays(const struct ft_snap_engine *, const void *arg);

static int keep_engines_that(struct ft_snapshot *s, engine_stays *chosen, const void *arg)
{
    struct cut cut;
    int *place = calloc((size_t)s->nengines + 1, sizeof *place);
    bool good = open_cut(&cut, s) && place;
    for (int i = 0; good && i < s->nengines; i++)
        cut.engines[i] = chosen(&s->engines[i], arg);
    if (good) {
        drop_others(&cut);
        drop_engines(&cut, place);
        s->unreadable = 0;
    }
    close_cut(&cut);
    free(place);
    return good ? FT_OK : ft_fail(FT_NOMEM, "no memory for %d processes", s->nengines);
}

static bool is_of_host(const struct ft_snap_engine *engine, const void *host)
{
    return engine->host == *(const uint64_t *)host;
}

int keep_host(struct ft_snapshot *s, uint64_t host)
{
    return keep_engines_that(s, is_of_host, &host);
}

struct ids {
    const uint64_t *at;
    int n;
};

static bool is_listed(const struct ft_snap_engine *engine, const void *arg)
{
    const struct ids *ids = arg;
    for (int i = 0; i < ids->n; i++)
        if (ids->at[i] == engine->id)
            return true;
    return false;
}

int keep_engines(struct ft_snapshot *s, const uint64_t *ids, int n)
{
    const struct ids listed = {ids, n};
    return keep_engines_that(s, is_listed, &listed);
}

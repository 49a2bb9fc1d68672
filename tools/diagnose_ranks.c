/*
 * Numbers the ranks of a snapshot. Nothing in the snapshot is trusted: a process may say that it is
 * any rank of any communicator.
 */
#include "diagnose_ranks.h"

#include <limits.h>
#include <stdlib.h>

/* ---- finding --------------------------------------------------------------------------------- */

static int compare(uint64_t a, uint64_t b)
{
    return a < b ? -1 : a > b;
}

int ranks_of_id(const struct ranks *r, uint64_t engine)
{
    int low = 0, high = r->n;
    while (low < high) {
        int middle = low + (high - low) / 2;
        if (r->row[r->by_id[middle]].id < engine)
            low = middle + 1;
        else
            high = middle;
    }
    return low < r->n && r->row[r->by_id[low]].id == engine ? r->by_id[low] : -1;
}

static int by_place(const void *a, const void *b)
{
    const struct rank_place *x = a, *y = b;
    int order = compare(x->ctx, y->ctx);
    order = order ? order : (x->rank > y->rank) - (x->rank < y->rank);
    return order ? order : (x->member < y->member) - (x->member > y->member);
}

/* The first of its places: one of a member, if there is any. */
const struct rank_place *ranks_find_place(const struct ranks *r, uint64_t ctx, int rank)
{
    const struct rank_place wanted = {.ctx = ctx, .rank = rank, .member = INT_MAX};
    int low = 0, high = r->nplaces;
    while (low < high) {
        int middle = low + (high - low) / 2;
        if (by_place(&r->place[middle], &wanted) < 0)
            low = middle + 1;
        else
            high = middle;
    }
    const struct rank_place *found = &r->place[low];
    return low < r->nplaces && found->ctx == ctx && found->rank == rank ? found : NULL;
}

int ranks_of_place(const struct ranks *r, uint64_t ctx, int rank)
{
    const struct rank_place *place = ranks_find_place(r, ctx, rank);
    return place ? place->row : -1;
}

int ranks_of_culprit(const struct ranks *r, const struct ft_culprit *culprit)
{
    if (culprit->engine >= 0 && culprit->engine < r->s->nengines)
        return r->by_engine[culprit->engine];
    return ranks_of_place(r, culprit->ctx, culprit->rank);
}

int ranks_of_culprit_peer(const struct ranks *r, const struct ft_culprit *culprit)
{
    return culprit->peer < 0 ? -1 : ranks_of_place(r, culprit->ctx, culprit->peer);
}

/* ---- rows ------------------------------------------------------------------------------------ */

static int by_id(const void *a, const void *b)
{
    const struct rank_row *x = a, *y = b;
    int order = compare(x->id, y->id);
    return order ? order : (x->engine < 0) - (y->engine < 0);
}

static bool is_sound(const struct ranks *r, const struct ft_snap_member *m)
{
    return m->engine >= 0 && m->engine < r->s->nengines && m->rank >= 0 && m->rank < m->nranks;
}

static int by_context(const void *a, const void *b)
{
    return compare(((const struct rank_place *)a)->ctx, ((const struct rank_place *)b)->ctx);
}

/* The communicators of which there are members; the list of places is not made yet. */
static void list_contexts(struct ranks *r)
{
    for (int i = 0; i < r->s->nmembers; i++)
        if (is_sound(r, &r->s->members[i]))
            r->place[r->nplaces++].ctx = r->s->members[i].ctx;
    qsort(r->place, (size_t)r->nplaces, sizeof *r->place, by_context);
}

static bool has_members(const struct ranks *r, uint64_t ctx)
{
    const struct rank_place wanted = {.ctx = ctx};
    return bsearch(&wanted, r->place, (size_t)r->nplaces, sizeof wanted, by_context) != NULL;
}

/* All engines, and the members in rosters that have none. In the order of their ids. */
static void list_rows(struct ranks *r)
{
    const struct ft_snapshot *s = r->s;
    int n = 0, kept = 0;
    list_contexts(r);
    for (int i = 0; i < s->nengines; i++)
        r->row[n++] = (struct rank_row){.id = s->engines[i].id, .engine = i, .rank = -1};
    for (int i = 0; i < s->nseats; i++)
        if (has_members(r, s->seats[i].ctx))
            r->row[n++] = (struct rank_row){.id = s->seats[i].engine, .engine = -1, .rank = -1};
    qsort(r->row, (size_t)n, sizeof *r->row, by_id);
    for (int i = 0; i < n; i++)
        if (r->row[i].engine >= 0 || kept == 0 || r->row[i].id != r->row[kept - 1].id)
            r->row[kept++] = r->row[i];
    r->n = kept;
}

static void index_rows(struct ranks *r)
{
    for (int i = 0; i < r->s->nengines; i++)
        r->by_engine[i] = -1;
    for (int i = 0; i < r->n; i++)
        if (r->row[i].engine >= 0)
            r->by_engine[r->row[i].engine] = i;
}

static void take_world(struct rank_row *row, uint64_t ctx, int nranks, int rank)
{
    bool better = row->rank < 0 || nranks > row->nranks ||
                  (nranks == row->nranks && ctx < row->world);
    if (!better)
        return;
    row->world = ctx;
    row->nranks = nranks;
    row->rank = rank;
}

/* A member without a file is where the roster of its largest communicator says. Rosters are long
 * as their communicator has ranks; how long is counted, since others know it. */
static void find_worlds(struct ranks *r)
{
    const struct ft_snapshot *s = r->s;
    uint64_t ctx = 0;
    int nranks = 0;
    for (int i = 0; i < s->nmembers; i++) {
        const struct ft_snap_member *m = &s->members[i];
        if (!is_sound(r, m) || !m->open)
            continue;
        take_world(&r->row[r->by_engine[m->engine]], m->ctx, m->nranks, m->rank);
        if (m->nranks > nranks) {
            nranks = m->nranks;
            ctx = m->ctx;
        }
    }
    for (int i = 0; i < s->nseats; i++) {
        int row = ranks_of_id(r, s->seats[i].engine);
        if (row >= 0 && r->row[row].engine < 0)
            take_world(&r->row[row], s->seats[i].ctx, s->seats[i].ctx == ctx ? nranks : 1,
                       s->seats[i].rank);
    }
}

static int by_world(const void *a, const void *b)
{
    const struct rank_row *x = a, *y = b;
    int order = (y->nranks > x->nranks) - (y->nranks < x->nranks);
    order = order ? order : compare(x->world, y->world);
    order = order ? order : (x->rank > y->rank) - (x->rank < y->rank);
    return order ? order : compare(x->id, y->id);
}

static int by_row_id(const void *a, const void *b, void *rows)
{
    const struct rank_row *row = rows;
    return by_id(&row[*(const int *)a], &row[*(const int *)b]);
}

static void sort_ids(struct ranks *r)
{
    for (int i = 0; i < r->n; i++)
        r->by_id[i] = i;
    qsort_r(r->by_id, (size_t)r->n, sizeof *r->by_id, by_row_id, r->row);
}

static void list_places(struct ranks *r)
{
    const struct ft_snapshot *s = r->s;
    int n = 0;
    for (int i = 0; i < s->nmembers; i++)
        if (is_sound(r, &s->members[i]) && r->by_engine[s->members[i].engine] >= 0)
            r->place[n++] = (struct rank_place){s->members[i].ctx, s->members[i].rank,
                                                r->by_engine[s->members[i].engine], i};
    for (int i = 0; i < s->nseats; i++) {
        int row = ranks_of_id(r, s->seats[i].engine);
        if (row >= 0)
            r->place[n++] = (struct rank_place){s->seats[i].ctx, s->seats[i].rank, row, -1};
    }
    qsort(r->place, (size_t)n, sizeof *r->place, by_place);
    r->nplaces = n;
}

/* ---- jobs ------------------------------------------------------------------------------------ */

static int job_of(struct ranks *r, int row)
{
    while (r->row[row].job != row)
        row = r->row[row].job = r->row[r->row[row].job].job;
    return row;
}

static void join_jobs(struct ranks *r)
{
    for (int i = 0; i < r->n; i++)
        r->row[i].job = i;
    for (int i = 1; i < r->nplaces; i++)
        if (r->place[i].ctx == r->place[i - 1].ctx)
            r->row[job_of(r, r->place[i].row)].job = job_of(r, r->place[i - 1].row);
    for (int i = 0; i < r->n; i++)
        r->row[i].job = job_of(r, i);
}

/* A row of the job that is asked for; -1: there is none. */
static int row_of_interest(const struct ranks *r, const struct report *report)
{
    for (int i = 0; i < report->found; i++) {
        const struct ft_verdict *v = &report->verdicts[i];
        int row = v->nculprits > 0 ? ranks_of_culprit(r, &v->culprits[0]) : -1;
        for (int k = 0; row < 0 && k < r->nplaces; k++)
            if (r->place[k].ctx == v->ctx)
                row = r->place[k].row;
        if (row >= 0)
            return row;
    }
    for (int i = 0; i < r->n; i++)
        if (r->row[i].engine >= 0 && r->s->engines[r->row[i].engine].state != FT_PROCESS_GONE)
            return i;
    return r->n > 0 ? 0 : -1;
}

static void index_all(struct ranks *r)
{
    sort_ids(r);
    index_rows(r);
    list_places(r);
}

static void leave_one_job(struct ranks *r, const struct report *report)
{
    int row = row_of_interest(r, report), kept = 0, job = row < 0 ? -1 : r->row[row].job;
    for (int i = 0; i < r->n; i++)
        if (r->row[i].job == job)
            r->row[kept++] = r->row[i];
    r->others = r->n - kept;
    r->n = kept;
    index_all(r);
}

/* ---- states ---------------------------------------------------------------------------------- */

uint64_t ranks_waiting_ns(const struct ft_snapshot *s, const struct ft_snap_member *m)
{
    uint64_t since_ns = ft_max(m->running_since_ns, m->progress_ns);
    bool waits = m->open && m->running_sig && since_ns && since_ns < s->now_ns;
    return waits ? s->now_ns - since_ns : 0;
}

static enum rank_state state_of_engine(const struct ft_snap_engine *engine)
{
    return engine->state == FT_PROCESS_GONE      ? RANK_GONE
           : engine->state == FT_PROCESS_STOPPED ? RANK_STOPPED
                                                 : RANK_OUTSIDE;
}

static void mark_calls(struct ranks *r, const struct report *report)
{
    const struct ft_snapshot *s = r->s;
    for (int i = 0; i < s->nmembers; i++) {
        const struct ft_snap_member *m = &s->members[i];
        if (!is_sound(r, m) || !m->open || !m->running_sig)
            continue;
        int row = r->by_engine[m->engine];
        if (row < 0)
            continue;
        bool long_since = (double)ranks_waiting_ns(s, m) > report->after_s * 1e9;
        enum rank_state *state = &r->row[row].state, now = long_since ? RANK_WAITS : RANK_CALLS;
        *state = ft_max(*state, now);
    }
}

static void mark_culprits(struct ranks *r, const struct report *report)
{
    for (int i = 0; i < report->found; i++)
        for (int k = 0; k < report->verdicts[i].nculprits && k < FT_CULPRITS; k++) {
            int row = ranks_of_culprit(r, &report->verdicts[i].culprits[k]);
            if (row >= 0)
                r->row[row].state = RANK_CULPRIT;
        }
}

static void judge(struct ranks *r, const struct report *report)
{
    for (int i = 0; i < r->n; i++) {
        struct rank_row *row = &r->row[i];
        row->state = row->engine < 0 ? RANK_MISSING : state_of_engine(&r->s->engines[row->engine]);
    }
    mark_calls(r, report);
    mark_culprits(r, report);
}

/* ---- opening --------------------------------------------------------------------------------- */

void ranks_close(struct ranks *r)
{
    free(r->row);
    free(r->by_engine);
    free(r->by_id);
    free(r->place);
}

static bool take_memory(struct ranks *r)
{
    const struct ft_snapshot *s = r->s;
    size_t rows = (size_t)s->nengines + (size_t)s->nseats + 1;
    r->row = calloc(rows, sizeof *r->row);
    r->by_id = calloc(rows, sizeof *r->by_id);
    r->by_engine = calloc((size_t)s->nengines + 1, sizeof *r->by_engine);
    r->place = calloc((size_t)s->nmembers + (size_t)s->nseats + 1, sizeof *r->place);
    return r->row && r->by_id && r->by_engine && r->place;
}

int ranks_open(struct ranks *r, const struct ft_snapshot *s, const struct report *report,
               bool one_job)
{
    *r = (struct ranks){.s = s};
    if (!take_memory(r)) {
        ranks_close(r);
        return ft_fail(FT_NOMEM, "no memory for %d processes", s->nengines);
    }
    list_rows(r);
    sort_ids(r);
    index_rows(r);
    find_worlds(r);
    qsort(r->row, (size_t)r->n, sizeof *r->row, by_world);
    while (r->n > 0 && r->row[r->n - 1].rank < 0)
        r->n--;
    index_all(r);
    join_jobs(r);
    if (one_job)
        leave_one_job(r, report);
    judge(r, report);
    return FT_OK;
}

/*
 * Looks at each communicator of a snapshot, the largest first, for what makes it slow. Members,
 * operations and paths are sorted once, so that each is looked at for its own communicator only.
 */
#include "slow_job.h"

#include <stdlib.h>
#include <string.h>

/* The engines by their ids, for bsearch(). */
struct id {
    uint64_t id;
    int engine;
};

struct job {
    struct ft_slow_comm comm; /* the present one; it must be the first field */
    struct id *ids;           /* [nengines] */
    int *order;               /* [nmembers] sound members, by size, context and rank */
    int norder;
    int *member, *rank_of, *op, *first_op, *path, *first_path, *of_engine, *first_member;
};

/* ---- sorting --------------------------------------------------------------------------------- */

static int by_id(const void *a, const void *b)
{
    uint64_t x = ((const struct id *)a)->id, y = ((const struct id *)b)->id;
    return x < y ? -1 : x > y;
}

static int by_comm(const void *a, const void *b, void *arg)
{
    const struct ft_snap_member *members = arg;
    const struct ft_snap_member *x = &members[*(const int *)a], *y = &members[*(const int *)b];
    if (x->nranks != y->nranks)
        return x->nranks > y->nranks ? -1 : 1;
    if (x->ctx != y->ctx)
        return x->ctx < y->ctx ? -1 : 1;
    return (x->rank > y->rank) - (x->rank < y->rank);
}

/* More members than ranks cannot be true. */
static bool is_sound(const struct ft_snapshot *s, const struct ft_snap_member *m)
{
    return m->engine >= 0 && m->engine < s->nengines && m->nranks > 1 && m->rank >= 0 &&
           m->rank < m->nranks && m->nranks <= s->nmembers && m->open && !m->failed;
}

/* Sorts entries by their owner and keeps their order. owner() returns -1 for those that are left
 * out. */
static void sort_by_owner(const struct ft_snapshot *s,
                          int (*owner)(const struct ft_snapshot *, int), int n, int *sorted,
                          int *first, int nowners)
{
    memset(first, 0, ((size_t)nowners + 1) * sizeof *first);
    for (int i = 0; i < n; i++)
        if (owner(s, i) >= 0)
            first[owner(s, i) + 1]++;
    for (int k = 0; k < nowners; k++)
        first[k + 1] += first[k];
    for (int i = 0; i < n; i++)
        if (owner(s, i) >= 0)
            sorted[first[owner(s, i)]++] = i;
    memmove(first + 1, first, (size_t)nowners * sizeof *first);
    first[0] = 0;
}

static int owner_of_op(const struct ft_snapshot *s, int i)
{
    int member = s->ops[i].member;
    return member >= 0 && member < s->nmembers ? member : -1;
}

static int owner_of_path(const struct ft_snapshot *s, int i)
{
    int engine = s->paths[i].engine;
    return engine >= 0 && engine < s->nengines ? engine : -1;
}

static int owner_of_member(const struct ft_snapshot *s, int i)
{
    int engine = s->members[i].engine;
    return engine >= 0 && engine < s->nengines ? engine : -1;
}

/* Paths of an engine by their peers, for bsearch(). */
static int compare_paths(const struct ft_snap_path *x, const struct ft_snap_path *y)
{
    if (x->engine != y->engine)
        return x->engine < y->engine ? -1 : 1;
    if (x->peer != y->peer)
        return x->peer < y->peer ? -1 : 1;
    return x->sender - y->sender;
}

static int by_path(const void *a, const void *b, void *arg)
{
    const struct ft_snap_path *paths = arg;
    return compare_paths(&paths[*(const int *)a], &paths[*(const int *)b]);
}

static void sort_job(struct job *job)
{
    const struct ft_snapshot *s = job->comm.s;
    for (int i = 0; i < s->nengines; i++) {
        job->ids[i] = (struct id){s->engines[i].id, i};
        job->rank_of[i] = -1;
    }
    qsort(job->ids, (size_t)s->nengines, sizeof *job->ids, by_id);
    for (int i = 0; i < s->nmembers; i++) {
        job->member[i] = -1;
        if (is_sound(s, &s->members[i]))
            job->order[job->norder++] = i;
    }
    qsort_r(job->order, (size_t)job->norder, sizeof *job->order, by_comm, s->members);
    sort_by_owner(s, owner_of_op, s->nops, job->op, job->first_op, s->nmembers);
    sort_by_owner(s, owner_of_member, s->nmembers, job->of_engine, job->first_member, s->nengines);
    sort_by_owner(s, owner_of_path, s->npaths, job->path, job->first_path, s->nengines);
    qsort_r(job->path, (size_t)job->first_path[s->nengines], sizeof *job->path, by_path, s->paths);
}

/* ---- what the judges ask --------------------------------------------------------------------- */

int ft_slow_engine(const struct ft_slow_comm *comm, uint64_t id)
{
    const struct job *job = (const struct job *)comm;
    struct id key = {.id = id};
    const struct id *found = bsearch(&key, job->ids, (size_t)comm->s->nengines, sizeof key, by_id);
    return found ? found->engine : -1;
}

const struct ft_snap_path *ft_slow_path(const struct ft_slow_comm *comm, int engine, uint64_t peer,
                                        bool sender)
{
    struct ft_snap_path key = {.engine = engine, .peer = peer, .sender = sender};
    int low = comm->first_path[engine], high = comm->first_path[engine + 1];
    while (low < high) {
        int middle = low + (high - low) / 2;
        const struct ft_snap_path *path = &comm->s->paths[comm->path[middle]];
        int order = compare_paths(path, &key);
        if (order == 0)
            return path;
        if (order < 0)
            low = middle + 1;
        else
            high = middle;
    }
    return NULL;
}

struct ft_culprit ft_slow_culprit(const struct ft_slow_comm *comm, int rank, int peer)
{
    const struct ft_snap_member *m = &comm->s->members[comm->member[rank]];
    const struct ft_snap_engine *engine = &comm->s->engines[m->engine];
    return (struct ft_culprit){.ctx = comm->ctx,
                               .rank = rank,
                               .peer = peer,
                               .engine = m->engine,
                               .host = engine->host,
                               .pid = engine->pid};
}

/* ---- communicators --------------------------------------------------------------------------- */

/* A rank that two members claim makes the communicator incomplete. */
static void begin_comm(struct job *job, const int *present, int npresent)
{
    struct ft_slow_comm *comm = &job->comm;
    const struct ft_snap_member *first = &comm->s->members[present[0]];
    comm->ctx = first->ctx;
    comm->nranks = first->nranks;
    comm->name = first->name[0] ? first->name : "without a name";
    comm->present = present;
    comm->npresent = npresent;
    comm->whole = npresent == comm->nranks;
    for (int i = 0; i < npresent; i++) {
        const struct ft_snap_member *m = &comm->s->members[present[i]];
        comm->whole &= job->member[m->rank] < 0;
        job->member[m->rank] = present[i];
        job->rank_of[m->engine] = m->rank;
    }
}

static void end_comm(struct job *job)
{
    for (int i = 0; i < job->comm.npresent; i++) {
        const struct ft_snap_member *m = &job->comm.s->members[job->comm.present[i]];
        job->member[m->rank] = -1;
        job->rank_of[m->engine] = -1;
    }
}

/* A process that comes last to a larger communicator, too, is named there. */
static bool is_named(const struct ft_verdict *verdicts, int n, const struct ft_verdict *one)
{
    for (int i = 0; i < n; i++)
        if (verdicts[i].kind == one->kind &&
            verdicts[i].culprits[0].engine == one->culprits[0].engine)
            return true;
    return false;
}

/* `found` verdicts are there. Returns how many are there now, or FT_NOMEM. */
static int judge(const struct ft_slow_comm *comm, struct ft_verdict *verdicts, int found,
                 int capacity)
{
    int ranks = ft_slow_find_ranks(comm, verdicts + found, capacity - found), all = found;
    if (ranks < 0)
        return ranks;
    for (int i = found; i < found + ranks; i++)
        if (!is_named(verdicts, found, &verdicts[i]))
            verdicts[all++] = verdicts[i];
    int paths = ft_slow_find_paths(comm, verdicts + all, capacity - all);
    return paths < 0 ? paths : all + paths;
}

static int judge_all(struct job *job, struct ft_verdict *verdicts, int capacity)
{
    const struct ft_snap_member *members = job->comm.s->members;
    int found = 0;
    for (int i = 0, end; i < job->norder && found < capacity; i = end) {
        const struct ft_snap_member *m = &members[job->order[i]];
        for (end = i + 1; end < job->norder; end++) {
            const struct ft_snap_member *next = &members[job->order[end]];
            if (next->ctx != m->ctx || next->nranks != m->nranks)
                break;
        }
        begin_comm(job, &job->order[i], end - i);
        found = judge(&job->comm, verdicts, found, capacity);
        if (found < 0)
            return found;
        end_comm(job);
    }
    return found;
}

/* The lists of numbers of a job, and the length of each. */
#define LISTS 9
struct numbers {
    int **at;
    size_t n;
};
static void list_numbers(struct job *job, const struct ft_snapshot *s, struct numbers out[LISTS])
{
    size_t members = (size_t)s->nmembers + 1, engines = (size_t)s->nengines + 1;
    const struct numbers all[LISTS] = {
        {&job->order, members},       {&job->member, members},
        {&job->rank_of, engines},     {&job->op, (size_t)s->nops + 1},
        {&job->first_op, members},    {&job->path, (size_t)s->npaths + 1},
        {&job->first_path, engines},  {&job->of_engine, members},
        {&job->first_member, engines}};
    memcpy(out, all, sizeof all);
}

static bool open_job(struct job *job, const struct ft_snapshot *s)
{
    struct numbers lists[LISTS];
    bool good = true;
    list_numbers(job, s, lists);
    for (int i = 0; i < LISTS; i++) {
        *lists[i].at = calloc(lists[i].n, sizeof **lists[i].at);
        good &= *lists[i].at != NULL;
    }
    job->ids = calloc((size_t)s->nengines + 1, sizeof *job->ids);
    job->comm = (struct ft_slow_comm){.s = s,
                                      .member = job->member,
                                      .op = job->op,
                                      .first_op = job->first_op,
                                      .path = job->path,
                                      .first_path = job->first_path,
                                      .of_engine = job->of_engine,
                                      .first_member = job->first_member,
                                      .rank_of = job->rank_of,
                                      .judged = calloc((size_t)s->npaths + 1, sizeof(bool))};
    return good && job->ids && job->comm.judged;
}

static void close_job(struct job *job)
{
    struct numbers lists[LISTS];
    list_numbers(job, job->comm.s, lists);
    for (int i = 0; i < LISTS; i++)
        free(*lists[i].at);
    free(job->ids);
    free(job->comm.judged);
}

int ft_diagnose_slow(const struct ft_snapshot *s, struct ft_verdict *verdicts, int capacity)
{
    struct job job = {.norder = 0};
    int found = FT_NOMEM;
    if (open_job(&job, s)) {
        sort_job(&job);
        found = judge_all(&job, verdicts, capacity);
    }
    close_job(&job);
    ft_verdicts_place(s, verdicts, found < capacity ? found : capacity);
    return found;
}

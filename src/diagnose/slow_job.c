/*
 * Names the ranks for which a job that moves waits in each step: they come last to every
 * collective, so they spend the least time inside collectives (FT-HSDP 2.3).
 */
#include "diagnose.h"
#include "slow.h"

#include <stdlib.h>
#include <string.h>

#define ROUNDS 10       /* into which the window is divided */
#define CALLS_A_ROUND 2 /* at least */
#define MOST_RANKS (1 << 20)
#define RECENT_NS 60000000000u /* a job whose last call is older does not move */
/* In less time the order in which ranks come is that of the algorithm, or chance. */
#define LEAST_NS 1000000000u
#define LEAST_BEHIND 0.1 /* of a round: less is jitter, as in Falcon */

/* The collectives of one communicator that all of its members have ended. */
struct window {
    const struct ft_snapshot *s;
    uint64_t ctx, first, last; /* numbers of the collectives; first > last: there are none */
    int nranks;
    int *member;               /* [nranks] index of the member with that rank, -1 */
    double *inside_ns;         /* [ROUNDS * nranks], negative: unknown */
    uint64_t begin_ns, end_ns; /* of the whole window on all ranks */
};

static bool is_symmetric(uint64_t sig)
{
    enum ft_kind kind = (enum ft_kind)(sig & 15);
    return kind == FT_ALLREDUCE || kind == FT_ALLGATHER || kind == FT_REDUCESCATTER ||
           kind == FT_ALLTOALL;
}

static int round_of(const struct window *w, uint64_t seq)
{
    return (int)((seq - w->first) * ROUNDS / (w->last - w->first + 1));
}

static bool is_over(const struct ft_snap_op *op)
{
    return op->done && op->started_ns > 0 && op->ended_ns >= op->started_ns &&
           ft_kind_is_collective((enum ft_kind)(op->sig & 15));
}

static bool is_inside(const struct window *w, const struct ft_snap_op *op)
{
    return op->seq >= w->first && op->seq <= w->last && is_symmetric(op->sig) && is_over(op);
}

/* Finds one member for each rank. False: one is missing, or has several. */
static bool find_members(struct window *w)
{
    int found = 0;
    for (int r = 0; r < w->nranks; r++)
        w->member[r] = -1;
    for (int i = 0; i < w->s->nmembers; i++) {
        const struct ft_snap_member *m = &w->s->members[i];
        if (m->ctx != w->ctx || !m->open)
            continue;
        bool sound = m->engine >= 0 && m->engine < w->s->nengines && m->rank >= 0 &&
                     m->rank < w->nranks;
        if (!sound || w->member[m->rank] >= 0)
            return false;
        w->member[m->rank] = i;
        found++;
    }
    return found == w->nranks;
}

/* The numbers that the records of all members cover. */
static void find_range(struct window *w, const int *rank_of, uint64_t *low, uint64_t *high)
{
    for (int r = 0; r < w->nranks; r++)
        low[r] = UINT64_MAX, high[r] = 0;
    for (int i = 0; i < w->s->nops; i++) {
        const struct ft_snap_op *op = &w->s->ops[i];
        int r = rank_of[op->member];
        if (r < 0 || !is_over(op))
            continue;
        low[r] = ft_min(low[r], op->seq);
        high[r] = ft_max(high[r], op->seq);
    }
    w->first = 1;
    w->last = UINT64_MAX;
    for (int r = 0; r < w->nranks; r++) {
        w->first = ft_max(w->first, low[r]);
        w->last = ft_min(w->last, high[r]);
    }
}

static void add_up(struct window *w, const int *rank_of)
{
    w->begin_ns = UINT64_MAX;
    for (int i = 0; i < w->s->nops; i++) {
        const struct ft_snap_op *op = &w->s->ops[i];
        int r = rank_of[op->member];
        if (r < 0 || !is_inside(w, op))
            continue;
        double *sum = &w->inside_ns[round_of(w, op->seq) * w->nranks + r];
        *sum = (*sum < 0 ? 0 : *sum) + (double)(op->ended_ns - op->started_ns);
        w->begin_ns = ft_min(w->begin_ns, op->started_ns);
        w->end_ns = ft_max(w->end_ns, op->ended_ns);
    }
}

/* ---- the verdict ----------------------------------------------------------------------------- */

static void write_verdict(const struct window *w, const struct ft_slow_rank *slow,
                          struct ft_verdict *v)
{
    const struct ft_snap_member *m = &w->s->members[w->member[slow->rank]];
    const struct ft_snap_engine *engine = &w->s->engines[m->engine];
    double window_s = (double)(w->end_ns - w->begin_ns) / 1e9;
    *v = (struct ft_verdict){.kind = FT_VERDICT_NONCOMM_SLOW,
                             .ctx = w->ctx,
                             .nculprits = 1,
                             .since_ns = w->end_ns - w->begin_ns};
    v->culprits[0] = (struct ft_culprit){w->ctx,    slow->rank,   -1,
                                         m->engine, engine->host, engine->pid};
    snprintf(v->sentence, sizeof v->sentence,
             "rank %d (pid %d on %.40s) comes last: in the last %llu collectives of communicator "
             "%.32s (%.2f s) it waited %.0f%% of the time less than the others, in %d of %d rounds",
             slow->rank, engine->pid, engine->hostname,
             (unsigned long long)(w->last - w->first + 1), m->name[0] ? m->name : "without a name",
             window_s, 100 * slow->behind_ns * ROUNDS / (window_s * 1e9), slow->votes, ROUNDS);
}

static int judge(struct window *w, const int *rank_of, struct ft_verdict *verdicts, int capacity)
{
    struct ft_slow_rank slow[FT_CULPRITS];
    struct ft_inside inside = {w->inside_ns, ROUNDS, w->nranks, 0};
    for (int i = 0; i < ROUNDS * w->nranks; i++)
        w->inside_ns[i] = -1;
    add_up(w, rank_of);
    if (w->end_ns < w->begin_ns + LEAST_NS || w->end_ns + RECENT_NS < w->s->now_ns)
        return 0;
    inside.round_ns = (double)(w->end_ns - w->begin_ns) / ROUNDS;
    int room = capacity < FT_CULPRITS ? capacity : FT_CULPRITS;
    int n = ft_slow_compute(&inside, slow, room);
    if (n < 0)
        return n;
    n = n < room ? n : room;
    int named = 0;
    for (int i = 0; i < n; i++)
        if (slow[i].behind_ns >= LEAST_BEHIND * inside.round_ns)
            write_verdict(w, &slow[i], &verdicts[named++]);
    return named;
}

/* rank_of: [nmembers] the rank of each member of this communicator, else -1. scratch: [2 * nranks].
 */
static int look_at(struct window *w, int *rank_of, uint64_t *scratch, struct ft_verdict *verdicts,
                   int capacity)
{
    if (!find_members(w))
        return 0;
    for (int i = 0; i < w->s->nmembers; i++)
        rank_of[i] = -1;
    for (int r = 0; r < w->nranks; r++)
        rank_of[w->member[r]] = r;
    find_range(w, rank_of, scratch, scratch + w->nranks);
    if (w->first > w->last || w->last - w->first + 1 < ROUNDS * CALLS_A_ROUND)
        return 0;
    return judge(w, rank_of, verdicts, capacity);
}

static int look_at_comm(const struct ft_snapshot *s, const struct ft_snap_member *m,
                        struct ft_verdict *verdicts, int capacity)
{
    size_t n = (size_t)m->nranks;
    struct window w = {.s = s, .ctx = m->ctx, .nranks = m->nranks};
    int *rank_of = malloc(((size_t)s->nmembers + 1) * sizeof *rank_of), found = FT_NOMEM;
    uint64_t *scratch = malloc(2 * n * sizeof *scratch);
    w.member = malloc(n * sizeof *w.member);
    w.inside_ns = malloc(ROUNDS * n * sizeof *w.inside_ns);
    if (rank_of && scratch && w.member && w.inside_ns)
        found = look_at(&w, rank_of, scratch, verdicts, capacity);
    free(rank_of);
    free(scratch);
    free(w.member);
    free(w.inside_ns);
    return found;
}

/* Rank 0 of each communicator stands for it. More members than ranks cannot be true. */
int ft_diagnose_slow(const struct ft_snapshot *s, struct ft_verdict *verdicts, int capacity)
{
    int found = 0;
    for (int i = 0; i < s->nops; i++)
        if (s->ops[i].member < 0 || s->ops[i].member >= s->nmembers)
            return 0;
    for (int i = 0; i < s->nmembers && found < capacity; i++) {
        const struct ft_snap_member *m = &s->members[i];
        bool sound = m->engine >= 0 && m->engine < s->nengines && m->nranks > 1 &&
                     m->nranks <= s->nmembers && m->nranks <= MOST_RANKS;
        if (!m->open || m->failed || m->rank != 0 || !sound)
            continue;
        int more = look_at_comm(s, m, verdicts + found, capacity - found);
        if (more < 0)
            return more;
        found += more;
    }
    return found;
}

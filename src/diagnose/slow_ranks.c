/*
 * Names the ranks for which a job that moves waits in each step: they come last to every
 * collective, so they spend the least time inside collectives (FT-HSDP 2.3).
 */
#include "slow.h"
#include "slow_job.h"
#include "slow_stats.h"

#include <stdlib.h>

#define ROUNDS 10       /* into which the window is divided */
#define CALLS_A_ROUND 2 /* at least */
/* In less time the order in which ranks come is that of the algorithm, or chance. */
#define LEAST_NS 1000000000u
#define LEAST_BEHIND 0.1 /* of a round: less is jitter, as in Falcon */

/* The collectives of one communicator that all of its members have ended. */
struct window {
    const struct ft_slow_comm *comm;
    uint64_t first, last;      /* numbers of the collectives; first > last: there are none */
    double *inside_ns;         /* [ROUNDS * nranks], negative: unknown */
    uint64_t begin_ns, end_ns; /* of the whole window on all ranks */
};

static bool is_symmetric(uint64_t sig)
{
    enum ft_kind kind = (enum ft_kind)(sig & 15);
    return kind == FT_ALLREDUCE || kind == FT_ALLGATHER || kind == FT_REDUCESCATTER ||
           kind == FT_ALLTOALL;
}

static bool is_over(const struct ft_snap_op *op)
{
    return op->done && op->started_ns > 0 && op->ended_ns >= op->started_ns &&
           ft_kind_is_collective((enum ft_kind)(op->sig & 15));
}

/* The operations of a rank: *n, beginning with the one that is returned. */
static const int *ops_of(const struct ft_slow_comm *comm, int rank, int *n)
{
    int member = comm->member[rank];
    *n = comm->first_op[member + 1] - comm->first_op[member];
    return comm->op + comm->first_op[member];
}

/* Narrows the window to the numbers that the records of this rank cover. */
static void narrow(struct window *w, int rank)
{
    uint64_t low = UINT64_MAX, high = 0;
    int n;
    const int *ops = ops_of(w->comm, rank, &n);
    for (int i = 0; i < n; i++) {
        const struct ft_snap_op *op = &w->comm->s->ops[ops[i]];
        if (!is_over(op))
            continue;
        low = ft_min(low, op->seq);
        high = ft_max(high, op->seq);
    }
    w->first = ft_max(w->first, low);
    w->last = ft_min(w->last, high);
}

static void add_up(struct window *w, int rank)
{
    int n;
    const int *ops = ops_of(w->comm, rank, &n);
    for (int i = 0; i < n; i++) {
        const struct ft_snap_op *op = &w->comm->s->ops[ops[i]];
        if (op->seq < w->first || op->seq > w->last || !is_symmetric(op->sig) || !is_over(op))
            continue;
        uint64_t round = (op->seq - w->first) * ROUNDS / (w->last - w->first + 1);
        double *sum = &w->inside_ns[(int)round * w->comm->nranks + rank];
        *sum = (*sum < 0 ? 0 : *sum) + (double)(op->ended_ns - op->started_ns);
        w->begin_ns = ft_min(w->begin_ns, op->started_ns);
        w->end_ns = ft_max(w->end_ns, op->ended_ns);
    }
}

/* ---- who waits elsewhere --------------------------------------------------------------------- */

static double overlap_ns(const struct window *w, const struct ft_snap_op *op)
{
    uint64_t begin_ns = ft_max(op->started_ns, w->begin_ns);
    uint64_t end_ns = op->done ? ft_min(op->ended_ns, w->end_ns) : w->end_ns;
    return op->started_ns > 0 && end_ns > begin_ns ? (double)(end_ns - begin_ns) : 0;
}

/* How long the process of a rank was, during the window, in calls that the window does not count:
 * sends and receives, and those of other communicators. */
static double elsewhere_ns(const struct window *w, int rank)
{
    const struct ft_slow_comm *comm = w->comm;
    int mine = comm->member[rank], engine = comm->s->members[mine].engine;
    double sum = 0;
    for (int k = comm->first_member[engine]; k < comm->first_member[engine + 1]; k++) {
        int member = comm->of_engine[k];
        for (int i = comm->first_op[member]; i < comm->first_op[member + 1]; i++) {
            const struct ft_snap_op *op = &comm->s->ops[comm->op[i]];
            bool counted = ft_kind_is_collective((enum ft_kind)(op->sig & 15));
            if (member != mine || !counted)
                sum += overlap_ns(w, op);
        }
    }
    return sum;
}

/* A rank that another one holds up in a smaller communicator comes last, too: what it waits less
 * here it waits more there. */
static bool is_held_up(const struct ft_slow_rank *slow, const double *elsewhere, double usual_ns)
{
    return 2 * (elsewhere[slow->rank] - usual_ns) > slow->behind_ns * ROUNDS;
}

/* Leaves out the ranks that others hold up. Returns how many are left, or FT_NOMEM. */
static int leave_held_up(const struct window *w, struct ft_slow_rank *slow, int n)
{
    int nranks = w->comm->nranks, left = 0;
    double *elsewhere = malloc(2 * (size_t)nranks * sizeof *elsewhere);
    if (!elsewhere)
        return FT_NOMEM;
    double *sorted = elsewhere + nranks;
    for (int r = 0; r < nranks; r++)
        sorted[r] = elsewhere[r] = elsewhere_ns(w, r);
    double usual_ns = ft_median(sorted, (size_t)nranks);
    for (int i = 0; i < n; i++)
        if (!is_held_up(&slow[i], elsewhere, usual_ns))
            slow[left++] = slow[i];
    free(elsewhere);
    return left;
}

/* ---- verdicts -------------------------------------------------------------------------------- */

static void write_verdict(const struct window *w, const struct ft_slow_rank *slow,
                          struct ft_verdict *v)
{
    const struct ft_slow_comm *comm = w->comm;
    *v = (struct ft_verdict){.kind = FT_VERDICT_NONCOMM_SLOW,
                             .ctx = comm->ctx,
                             .nculprits = 1,
                             .since_ns = w->end_ns - w->begin_ns};
    v->culprits[0] = ft_slow_culprit(comm, slow->rank, -1);
    double window_s = (double)(w->end_ns - w->begin_ns) / 1e9;
    snprintf(v->sentence, sizeof v->sentence,
             "rank %d (pid %d on %.40s) comes last: in the last %llu collectives of communicator "
             "%.32s (%.2f s) it waited %.0f%% of the time less than the others, in %d of %d rounds",
             slow->rank, v->culprits[0].pid, comm->s->engines[v->culprits[0].engine].hostname,
             (unsigned long long)(w->last - w->first + 1), comm->name, window_s,
             100 * slow->behind_ns * ROUNDS / (window_s * 1e9), slow->votes, ROUNDS);
}

static int judge(struct window *w, struct ft_verdict *verdicts, int capacity)
{
    const struct ft_slow_comm *comm = w->comm;
    struct ft_slow_rank slow[FT_CULPRITS];
    struct ft_inside inside = {w->inside_ns, ROUNDS, comm->nranks, 0};
    w->begin_ns = UINT64_MAX;
    for (int i = 0; i < ROUNDS * comm->nranks; i++)
        w->inside_ns[i] = -1;
    for (int r = 0; r < comm->nranks; r++)
        add_up(w, r);
    if (w->end_ns < w->begin_ns || w->end_ns - w->begin_ns < LEAST_NS ||
        w->end_ns + FT_SLOW_RECENT_NS < comm->s->now_ns)
        return 0;
    inside.round_ns = (double)(w->end_ns - w->begin_ns) / ROUNDS;
    int room = capacity < FT_CULPRITS ? capacity : FT_CULPRITS;
    int n = ft_slow_compute(&inside, slow, room);
    if (n < 0)
        return n;
    int late = 0;
    for (int i = 0; i < n && i < room; i++)
        if (slow[i].behind_ns >= LEAST_BEHIND * inside.round_ns)
            slow[late++] = slow[i];
    late = late > 0 ? leave_held_up(w, slow, late) : 0;
    for (int i = 0; i < late; i++)
        write_verdict(w, &slow[i], &verdicts[i]);
    return late;
}

int ft_diagnose_shares(const double *share, int nrounds, int nranks, int *ranks, int capacity)
{
    struct ft_slow_rank slow[FT_CULPRITS];
    const struct ft_inside inside = {share, nrounds, nranks, 1};
    int room = capacity < FT_CULPRITS ? capacity : FT_CULPRITS, named = 0;
    int n = ft_slow_compute(&inside, slow, room);
    for (int i = 0; i < n && i < room; i++)
        if (slow[i].behind_ns >= LEAST_BEHIND)
            ranks[named++] = slow[i].rank;
    return n < 0 ? n : named;
}

int ft_slow_find_ranks(const struct ft_slow_comm *comm, struct ft_verdict *verdicts, int capacity)
{
    struct window w = {.comm = comm, .first = 1, .last = UINT64_MAX};
    if (!comm->whole)
        return 0;
    for (int r = 0; r < comm->nranks; r++)
        narrow(&w, r);
    if (w.first > w.last || w.last - w.first + 1 < ROUNDS * CALLS_A_ROUND)
        return 0;
    w.inside_ns = malloc(ROUNDS * (size_t)comm->nranks * sizeof *w.inside_ns);
    int found = w.inside_ns ? judge(&w, verdicts, capacity) : FT_NOMEM;
    free(w.inside_ns);
    return found;
}

/*
 * Names the ranks for which a job that moves waits in each step: they come last to every
 * collective, so they spend the least time inside collectives (FT-HSDP 2.3).
 */
#include "slow.h"
#include "slow_job.h"

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
    int named = 0;
    for (int i = 0; i < n && i < room; i++)
        if (slow[i].behind_ns >= LEAST_BEHIND * inside.round_ns)
            write_verdict(w, &slow[i], &verdicts[named++]);
    return named;
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

/*
 * Finds ranks that make a job slow though no step has become slower: round for round the share of
 * time that each rank spends inside collectives is compared with that of the others, as in the
 * analysis of one machine. That is a suspicion; files decide, unless there are too many ranks.
 */
#include "master.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define ROUND_US 1000000u /* at least, on every rank */
#define ROUND_CALLS 8     /* likewise: one more or less by chance is little of a round */
#define ROUNDS_LEAST 5    /* for a suspicion; PACE_ROUNDS for a verdict */

/* ---- messages -------------------------------------------------------------------------------- */

/* What was known of a member goes on. */
static void keep_past(const struct host *host, struct pace_past *now)
{
    const struct pace_past *before = host->npace > 0 ? bsearch(now, host->pace, (size_t)host->npace,
                                                               sizeof *now, pace_by_member)
                                                     : NULL;
    struct pace_row row = now->row;
    if (before && row.rank == before->row.rank && row.nranks == before->row.nranks)
        *now = *before;
    else
        now->closed = row;
    now->row = row;
}

bool master_take_pace(struct master *m, struct host *host, const struct daemon_message *of)
{
    struct pace_row *rows = NULL;
    int n = pace_decode(of, &rows);
    struct pace_past *pace = n >= 0 ? calloc((size_t)n + 1, sizeof *pace) : NULL;
    for (int i = 0; pace && i < n; i++) {
        pace[i].row = rows[i];
        keep_past(host, &pace[i]);
    }
    free(rows);
    if (!pace)
        return false;
    qsort(pace, (size_t)n, sizeof *pace, pace_by_member);
    free(host->pace);
    host->pace = pace;
    host->npace = n;
    m->has_pace = true;
    return true;
}

/* ---- rounds ---------------------------------------------------------------------------------- */

/* The members of a communicator, in the order of their ranks. */
struct comm {
    struct pace_past **at;
    int n;
};

static bool is_whole(const struct comm *c)
{
    bool whole = c->n == c->at[0]->row.nranks;
    for (int i = 0; whole && i < c->n; i++)
        whole = c->at[i]->row.rank == i && c->at[i]->row.nranks == c->n;
    return whole;
}

static bool is_round_over(const struct comm *c)
{
    bool over = true;
    for (int i = 0; over && i < c->n; i++) {
        const struct pace_row *now = &c->at[i]->row, *closed = &c->at[i]->closed;
        over = now->calls - closed->calls >= ROUND_CALLS &&
               now->covered_us - closed->covered_us >= ROUND_US;
    }
    return over;
}

static void close_round(const struct comm *c)
{
    for (int i = 0; i < c->n; i++) {
        struct pace_past *p = c->at[i];
        double covered = p->row.covered_us - p->closed.covered_us;
        double inside = p->row.inside_us - p->closed.inside_us;
        memmove(p->share + 1, p->share, sizeof p->share - sizeof *p->share);
        p->share[0] = fmin(inside / covered, 1);
        p->nshares = p->nshares < PACE_ROUNDS ? p->nshares + 1 : PACE_ROUNDS;
        p->closed = p->row;
    }
}

/* Of the larger of two communicators in which somebody is slow. */
static void judge(struct master *m, const struct comm *c)
{
    struct slow slow = {.ctx = c->at[0]->row.ctx, .nranks = c->n, .rounds = PACE_ROUNDS};
    for (int i = 0; i < c->n; i++)
        slow.rounds = (int)ft_min((size_t)slow.rounds, (size_t)c->at[i]->nshares);
    if (slow.rounds < ROUNDS_LEAST)
        return;
    double *share = malloc((size_t)slow.rounds * (size_t)c->n * sizeof *share);
    for (int round = 0; share && round < slow.rounds; round++)
        for (int i = 0; i < c->n; i++)
            share[(size_t)round * (size_t)c->n + (size_t)i] = c->at[i]->share[round];
    if (share)
        slow.n = ft_diagnose_shares(share, slow.rounds, c->n, slow.rank, FT_CULPRITS);
    free(share);
    if (slow.n > 0 && c->n > m->slow.nranks)
        m->slow = slow;
}

static int by_rank(const void *a, const void *b)
{
    const struct pace_row *x = &(*(struct pace_past *const *)a)->row,
                          *y = &(*(struct pace_past *const *)b)->row;
    if (x->ctx != y->ctx)
        return x->ctx < y->ctx ? -1 : 1;
    return (x->rank > y->rank) - (x->rank < y->rank);
}

/* All members of hosts that are there. NULL: no memory. */
static struct pace_past **list_all(const struct master *m, int *n)
{
    size_t room = 1;
    for (int i = 0; i < m->nhosts; i++)
        room += (size_t)m->host[i]->npace;
    struct pace_past **all = calloc(room, sizeof(struct pace_past *));
    *n = 0;
    for (int i = 0; all && i < m->nhosts; i++)
        for (int k = 0; !m->host[i]->gone_ns && k < m->host[i]->npace; k++)
            all[(*n)++] = &m->host[i]->pace[k];
    if (all)
        qsort(all, (size_t)*n, sizeof *all, by_rank);
    return all;
}

void master_look_at_pace(struct master *m)
{
    int n;
    if (!m->has_pace)
        return;
    m->has_pace = false;
    m->slow = (struct slow){0};
    struct pace_past **all = list_all(m, &n);
    for (int i = 0, end; all && i < n; i = end) {
        for (end = i + 1; end < n && all[end]->row.ctx == all[i]->row.ctx; end++) {}
        struct comm c = {all + i, end - i};
        if (!is_whole(&c))
            continue;
        if (is_round_over(&c))
            close_round(&c);
        judge(m, &c);
    }
    free(all);
}

/* ---- a verdict without files ----------------------------------------------------------------- */

static void write_verdict(const struct master *m, int slow, struct ft_verdict *v)
{
    const struct ft_snapshot *s = m->shown.snapshot;
    const char *host = "?";
    *v = (struct ft_verdict){.kind = FT_VERDICT_NONCOMM_SLOW, .ctx = m->slow.ctx, .nculprits = 1};
    struct ft_culprit *c = &v->culprits[0];
    *c = (struct ft_culprit){
        .ctx = m->slow.ctx, .rank = m->slow.rank[slow], .peer = -1, .engine = -1};
    for (int i = 0; i < s->nmembers; i++)
        if (s->members[i].ctx == c->ctx && s->members[i].rank == c->rank)
            c->engine = s->members[i].engine;
    if (c->engine >= 0) {
        c->host = s->engines[c->engine].host;
        c->pid = s->engines[c->engine].pid;
        host = s->engines[c->engine].hostname;
    }
    snprintf(v->sentence, sizeof v->sentence,
             "rank %d (pid %d on %.63s) comes last: of %d ranks of communicator %016" PRIx64
             " it waited least inside collectives, in most of %d rounds",
             c->rank, c->pid, host, m->slow.nranks, c->ctx, m->slow.rounds);
}

void master_show_pace(struct master *m)
{
    int n = m->slow.n < LOOK_VERDICTS ? m->slow.n : LOOK_VERDICTS;
    if (m->slow.rounds < PACE_ROUNDS || m->slow.n == 0 || !m->shown.snapshot)
        return;
    for (int i = 0; i < n; i++)
        write_verdict(m, i, &m->shown.verdicts[i]);
    ft_verdicts_place(m->shown.snapshot, m->shown.verdicts, n);
    look_conclude(&m->shown, n, daemon_options_of(m->daemon)->after_s);
}

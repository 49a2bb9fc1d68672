#include "pace.h"

#include "base/wire.h"

#include <stdlib.h>

#define ROW_BYTES 36
/* Files of many processes are read one after the other: what has ended so long ago is in all. */
#define LAG_NS 1000000000u

/* ---- looking --------------------------------------------------------------------------------- */

/* A member whose time is summed up; its operations come in the order in which they started. */
struct sum {
    uint64_t from_ns, until_ns, reached_ns; /* reached: until there it has been counted */
    uint64_t inside_ns;
    uint32_t calls;
    bool begun;
};

static bool is_symmetric(uint64_t sig)
{
    enum ft_kind kind = (enum ft_kind)(sig & 15);
    return kind == FT_ALLREDUCE || kind == FT_ALLGATHER || kind == FT_REDUCESCATTER ||
           kind == FT_ALLTOALL;
}

/* What was before the first operation that telemetry still has is not known. */
static void add_op(struct sum *sum, const struct ft_snap_op *op)
{
    if (!op->started_ns || op->started_ns >= sum->until_ns || !is_symmetric(op->sig))
        return;
    if (!sum->begun)
        sum->reached_ns = sum->from_ns = ft_max(sum->from_ns, op->started_ns);
    sum->begun = true;
    uint64_t begin_ns = ft_max(op->started_ns, sum->reached_ns);
    uint64_t end_ns = op->ended_ns ? ft_min(op->ended_ns, sum->until_ns) : sum->until_ns;
    sum->calls += op->done && op->ended_ns > sum->from_ns && op->ended_ns <= sum->until_ns;
    if (end_ns <= begin_ns)
        return;
    sum->inside_ns += end_ns - begin_ns;
    sum->reached_ns = end_ns;
}

static void finish_sum(const struct sum *sum, struct pace_row *row)
{
    if (!sum->begun || sum->from_ns >= sum->until_ns)
        return;
    row->inside_us += (uint32_t)(sum->inside_ns / 1000);
    row->covered_us += (uint32_t)((sum->until_ns - sum->from_ns) / 1000);
    row->calls += sum->calls;
}

int pace_by_member(const void *a, const void *b)
{
    const struct pace_row *x = a, *y = b;
    if (x->ctx != y->ctx)
        return x->ctx < y->ctx ? -1 : 1;
    return (x->engine > y->engine) - (x->engine < y->engine);
}

static void add_member(const struct pace *p, const struct ft_snapshot *s, int member,
                       const struct sum *sum, struct pace_row *row)
{
    const struct ft_snap_member *m = &s->members[member];
    *row = (struct pace_row){.ctx = m->ctx, .engine = s->engines[m->engine].id};
    const struct pace_row *before =
        p->n > 0 ? bsearch(row, p->row, (size_t)p->n, sizeof *row, pace_by_member) : NULL;
    if (before)
        *row = *before;
    row->rank = m->rank;
    row->nranks = m->nranks;
    finish_sum(sum, row);
}

static bool is_sound(const struct ft_snapshot *s, const struct ft_snap_member *m)
{
    return m->open && m->nranks > 1 && m->rank >= 0 && m->rank < m->nranks && m->engine >= 0 &&
           m->engine < s->nengines;
}

/* Sums of all members, from their operations. NULL: no memory. */
static struct sum *sum_up(const struct ft_snapshot *s, uint64_t from_ns, uint64_t until_ns)
{
    struct sum *sums = calloc((size_t)s->nmembers + 1, sizeof *sums);
    for (int i = 0; sums && i < s->nmembers; i++)
        sums[i] = (struct sum){.from_ns = from_ns, .until_ns = until_ns};
    for (int i = 0; sums && i < s->nops; i++)
        if (s->ops[i].member >= 0 && s->ops[i].member < s->nmembers)
            add_op(&sums[s->ops[i].member], &s->ops[i]);
    return sums;
}

void pace_look(struct pace *p, const struct ft_snapshot *s)
{
    if (s->now_ns < LAG_NS + p->until_ns)
        return;
    uint64_t until_ns = s->now_ns - LAG_NS;
    struct sum *sums = sum_up(s, p->until_ns, until_ns);
    struct pace_row *rows = calloc((size_t)s->nmembers + 1, sizeof *rows);
    int n = 0;
    for (int i = 0; sums && rows && i < s->nmembers && n < PACE_ROWS_MOST; i++)
        if (is_sound(s, &s->members[i]))
            add_member(p, s, i, &sums[i], &rows[n++]);
    free(sums);
    free(p->row);
    if (rows)
        qsort(rows, (size_t)n, sizeof *rows, pace_by_member);
    *p = (struct pace){.row = rows, .n = n, .until_ns = until_ns};
}

void pace_close(struct pace *p)
{
    free(p->row);
    *p = (struct pace){0};
}

/* ---- messages -------------------------------------------------------------------------------- */

unsigned char *pace_encode(const struct pace *p, size_t *len)
{
    *len = (size_t)p->n * ROW_BYTES;
    unsigned char *all = malloc(*len + 1), *at = all;
    for (int i = 0; all && i < p->n; i++) {
        put64(&at, p->row[i].ctx);
        put64(&at, p->row[i].engine);
        put32(&at, (uint32_t)p->row[i].rank);
        put32(&at, (uint32_t)p->row[i].nranks);
        put32(&at, p->row[i].inside_us);
        put32(&at, p->row[i].covered_us);
        put32(&at, p->row[i].calls);
    }
    return all;
}

static bool take_row(const unsigned char **at, struct pace_row *row)
{
    row->ctx = get64(at);
    row->engine = get64(at);
    uint32_t rank = get32(at), nranks = get32(at);
    row->inside_us = get32(at);
    row->covered_us = get32(at);
    row->calls = get32(at);
    row->rank = (int)rank;
    row->nranks = (int)nranks;
    return nranks > 1 && nranks <= INT32_MAX && rank < nranks;
}

int pace_decode(const struct daemon_message *m, struct pace_row **rows)
{
    const unsigned char *at = m->bytes;
    size_t n = m->len / ROW_BYTES;
    if (m->len % ROW_BYTES != 0 || n > PACE_ROWS_MOST)
        return -1;
    struct pace_row *all = calloc(n + 1, sizeof *all);
    bool good = all != NULL;
    for (size_t i = 0; good && i < n; i++)
        good = take_row(&at, &all[i]);
    if (!good) {
        free(all);
        return -1;
    }
    *rows = all;
    return (int)n;
}

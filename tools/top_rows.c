/*
 * Makes the rows of ftccl-top of a snapshot and of the rows before.
 */
#include "top.h"

#include "telemetry/telemetry.h"

#include <stdlib.h>
#include <string.h>

#define MOST_VERDICTS 16

const char *top_sort_name(enum top_sort sort)
{
    static const char *const name[] = {
#define X(name, text) text,
        TOP_SORTS(X)
#undef X
    };
    return name[sort];
}

void top_free(struct top *top)
{
    free(top->row);
    *top = (struct top){.row = NULL};
}

/* ---- a row ----------------------------------------------------------------------------------- */

static uint64_t sent_by(const struct ft_snapshot *s, int engine)
{
    uint64_t bytes = 0;
    for (int i = 0; i < s->nlinks; i++)
        if (s->links[i].engine == engine && s->links[i].sender)
            bytes += s->links[i].bytes;
    return bytes;
}

/* The share of time that it was in collectives, over those that the snapshot has. */
static double inside_of(const struct ft_snapshot *s, int member)
{
    uint64_t inside_ns = 0, begin_ns = UINT64_MAX, end_ns = 0;
    for (int i = 0; i < s->nops; i++) {
        const struct ft_snap_op *op = &s->ops[i];
        if (op->member != member || !op->done || op->ended_ns < op->started_ns)
            continue;
        inside_ns += op->ended_ns - op->started_ns;
        begin_ns = ft_min(begin_ns, op->started_ns);
        end_ns = ft_max(end_ns, op->ended_ns);
    }
    return end_ns > begin_ns ? (double)inside_ns / (double)(end_ns - begin_ns) : -1;
}

static double step_of(const struct ft_snapshot *s, int member)
{
    double ms = 0;
    for (int i = 0; i < s->nsteps; i++)
        if (s->steps[i].member == member)
            ms = (double)(s->steps[i].end_ns - s->steps[i].begin_ns) / 1e6;
    return ms;
}

static void find_worst(const struct ranks *ranks, const struct rank_row *from, struct top_row *row)
{
    row->worst_peer = -1;
    for (int i = 0; i < ranks->s->npaths; i++) {
        const struct ft_snap_path *path = &ranks->s->paths[i];
        if (path->engine != from->engine || !path->sender || path->messages == 0)
            continue;
        double ms = (double)path->network_ns / 1e6 / (double)path->messages;
        int peer = ranks_of_id(ranks, path->peer);
        if (peer >= 0 && (row->worst_peer < 0 || ms > row->worst_ms)) {
            row->worst_peer = ranks->row[peer].rank;
            row->worst_ms = ms;
        }
    }
}

static void fill_latencies(const struct ft_snapshot *s, int engine, struct top_row *row)
{
    for (int p = 0; p < FT_LATENCY_PARTS; p++) {
        double ns = 0, count = 0;
        for (int i = 0; i < s->nlatencies; i++)
            if (s->latencies[i].engine == engine) {
                ns += (double)s->latencies[i].part[p].sum_ns;
                count += (double)s->latencies[i].part[p].count;
            }
        row->large_ms[p] = count > 0 ? ns / count / 1e6 : -1;
    }
}

static void fill_member(const struct ft_snapshot *s, int member, uint64_t most, struct top_row *row)
{
    const struct ft_snap_member *m = &s->members[member];
    uint64_t waits_ns = ranks_waiting_ns(s, m);
    ft_sig_text(m->running_sig ? m->running_sig : m->last.sig, row->call, sizeof row->call);
    row->behind = most > m->called ? most - m->called : 0;
    row->waits_for = m->running_sig ? m->wait.peer : -1;
    row->sends = m->wait.sends;
    row->waits_s = (double)waits_ns / 1e9;
    row->step_ms = step_of(s, member);
    row->inside = inside_of(s, member);
}

/* The most collectives that a member of the communicator has called. */
static uint64_t most_called(const struct ft_snapshot *s, uint64_t ctx)
{
    uint64_t most = 0;
    for (int i = 0; i < s->nmembers; i++)
        if (s->members[i].ctx == ctx)
            most = ft_max(most, s->members[i].called);
    return most;
}

static void fill_row(const struct ranks *ranks, const struct rank_row *from, uint64_t most,
                     struct top_row *row)
{
    const struct rank_place *place = ranks_find_place(ranks, from->world, from->rank);
    *row = (struct top_row){.rank = from->rank,
                            .id = from->id,
                            .state = from->state,
                            .waits_for = -1,
                            .inside = -1,
                            .sent_gbs = -1};
    find_worst(ranks, from, row);
    fill_latencies(ranks->s, from->engine, row);
    if (from->engine >= 0) {
        const struct ft_snap_engine *engine = &ranks->s->engines[from->engine];
        row->pid = engine->pid;
        memcpy(row->host, engine->hostname, sizeof row->host);
        memcpy(row->program, engine->program, sizeof row->program);
        row->sent = sent_by(ranks->s, from->engine);
    }
    if (place && place->member >= 0)
        fill_member(ranks->s, place->member, most, row);
}

/* ---- all rows -------------------------------------------------------------------------------- */

static void measure_rates(struct top *top, const struct top *before)
{
    double s = (double)(top->now_ns - before->now_ns) / 1e9;
    for (int i = 0; i < top->n && before->now_ns && s > 0; i++)
        for (int k = 0; k < before->n; k++) {
            struct top_row *row = &top->row[i];
            if (before->row[k].id == row->id && before->row[k].sent <= row->sent)
                row->sent_gbs = (double)(row->sent - before->row[k].sent) / 1e9 / s;
        }
}

static int fill(struct top *top, const struct ft_snapshot *s, const struct report *report)
{
    struct ranks ranks;
    int rc = ranks_open(&ranks, s, report, true);
    if (rc != FT_OK)
        return rc;
    uint64_t most = 0;
    top->row = calloc((size_t)ranks.n + 1, sizeof *top->row);
    for (int i = 0; top->row && i < ranks.n; i++) {
        const struct rank_row *from = &ranks.row[i];
        if (i == 0 || ranks.row[i - 1].world != from->world)
            most = most_called(s, from->world);
        fill_row(&ranks, from, most, &top->row[top->n++]);
    }
    snprintf(top->job, sizeof top->job, "%d rank%s%s", top->n, top->n == 1 ? "" : "s",
             ranks.others ? ", and other jobs" : "");
    ranks_close(&ranks);
    return top->row ? FT_OK : ft_fail(FT_NOMEM, "no memory for %d ranks", ranks.n);
}

static int look_at(struct top *top, struct ft_snapshot *s, const struct top_request *request)
{
    static struct ft_verdict verdicts[MOST_VERDICTS];
    struct report report = {.verdicts = verdicts, .after_s = request->after_s};
    if (request->pid && keep_job(s, request->pid) < 0)
        return ft_fail(FT_NOMEM, "no memory for the job");
    report.found = ft_diagnose(s, (uint64_t)(request->after_s * 1e9), verdicts, MOST_VERDICTS);
    if (report.found < 0)
        return ft_fail(FT_NOMEM, "no memory for the analysis");
    report.found = report.found < MOST_VERDICTS ? report.found : MOST_VERDICTS;
    top->now_ns = s->now_ns;
    if (report.found > 0)
        snprintf(top->verdict, sizeof top->verdict, "%s: %s", ft_verdict_name(verdicts[0].kind),
                 verdicts[0].sentence);
    else
        snprintf(top->verdict, sizeof top->verdict, "healthy");
    return fill(top, s, &report);
}

int top_look(struct top *top, const struct top_request *request)
{
    struct top before = *top;
    struct ft_snapshot *s = NULL;
    *top = (struct top){.row = NULL};
    int rc = ft_snapshot_collect(request->dir, &s);
    if (rc == FT_OK)
        rc = look_at(top, s, request);
    if (rc == FT_OK)
        measure_rates(top, &before);
    top_sort_rows(top, request->sort);
    ft_snapshot_free(s);
    top_free(&before);
    return rc;
}

/* ---- order ----------------------------------------------------------------------------------- */

static int by_column(const struct top_row *x, const struct top_row *y, enum top_sort sort)
{
    switch (sort) {
    case TOP_BY_STATE:
        return (x->state < y->state) - (x->state > y->state);
    case TOP_BY_BEHIND:
        return (x->behind < y->behind) - (x->behind > y->behind);
    case TOP_BY_INSIDE: /* who computes for longest is first */
        return (x->inside > y->inside) - (x->inside < y->inside);
    case TOP_BY_RATE:
        return (x->sent_gbs < y->sent_gbs) - (x->sent_gbs > y->sent_gbs);
    default:
        return 0;
    }
}

static int by_sort(const void *a, const void *b, void *sort)
{
    const struct top_row *x = a, *y = b;
    int order = by_column(x, y, *(const enum top_sort *)sort);
    return order ? order : (x->rank > y->rank) - (x->rank < y->rank);
}

void top_sort_rows(struct top *top, enum top_sort sort)
{
    if (top->n > 1)
        qsort_r(top->row, (size_t)top->n, sizeof *top->row, by_sort, &sort);
}

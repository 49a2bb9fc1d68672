/*
 * Measures and verifies. All threads of all processes run the same sequence. The timed loop only
 * calls the operation and, if the options require it, waits.
 */
#include "perf.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* The data of one thread for one line of the table. */
struct bench {
    struct perf_team *t;
    int thread, n, nsteps; /* n: ranks of the thread; nsteps: steps of the operation */
    struct perf_rank *ranks;
    struct perf_call *calls;      /* [n] */
    struct perf_buffers *buffers; /* [n] */
    struct perf_layout layout;
    int type, op, root;
    /* iterations use different parts of the buffers, as in nccl-tests, so that caches help less */
    size_t total_bytes, nshifts;
    double *iter_s; /* [iters] with -I, else NULL */
};

static double now_s(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* ---- calls ----------------------------------------------------------------------------------- */

/* Sets buffers and arguments for a size. In place, one buffer is part of the other. */
static void prepare(struct bench *b, size_t bytes, bool in_place)
{
    const struct perf_team *t = b->t;
    size_t type_size = perf_type_size(b->type), skip = (size_t)t->o->unalign * type_size;
    t->op->layout(&b->layout, bytes / type_size, type_size, t->nranks);
    const struct perf_layout *l = &b->layout;
    b->total_bytes = (l->send > l->recv ? l->send : l->recv) * type_size;
    b->nshifts = b->total_bytes ? t->max_bytes / b->total_bytes : 1;
    for (int i = 0; i < b->n; i++) {
        struct perf_rank *r = &b->ranks[i];
        char *base = r->recv + skip, *send = r->send + skip;
        size_t rank = (size_t)r->rank;
        b->buffers[i] = (struct perf_buffers){
            .base = base,
            .in_place = in_place,
            .send = in_place ? base + l->send_inplace * rank * type_size : send,
            .recv = in_place ? base + l->recv_inplace * rank * type_size : base,
            .end = base + (in_place ? b->total_bytes : l->recv * type_size)};
        b->calls[i] = (struct perf_call){.send = b->buffers[i].send,
                                         .recv = b->buffers[i].recv,
                                         .count = l->param,
                                         .type_size = type_size,
                                         .type = (CCL(DataType_t))b->type,
                                         .op = b->op == PERF_MULSUM ? r->mulsum
                                                                    : (CCL(RedOp_t))b->op,
                                         .root = b->root,
                                         .rank = r->rank,
                                         .nranks = t->nranks,
                                         .comm = r->comm,
                                         .stream = r->stream};
    }
}

static void start(struct bench *b, size_t iteration)
{
    size_t shift = b->total_bytes * (iteration % b->nshifts);
    for (int step = 0; step < b->nsteps; step++) {
        if (b->n > 1)
            perf_must(b->ranks, "GroupStart", CCL(GroupStart)());
        for (int i = 0; i < b->n; i++) {
            struct perf_call *c = &b->calls[i];
            c->send = b->buffers[i].send + shift;
            c->recv = b->buffers[i].recv + shift;
            perf_must(&b->ranks[i], b->t->op->name, b->t->op->run(c, step));
        }
        if (b->n > 1)
            perf_must(b->ranks, b->t->op->name, CCL(GroupEnd)());
    }
}

static void finish(struct bench *b)
{
    for (int i = 0; i < b->n; i++)
        perf_must(&b->ranks[i], b->t->op->name,
                  api_stream_sync(b->ranks[i].comm, b->ranks[i].stream));
}

/* ---- time ------------------------------------------------------------------------------------ */

/* Returns the seconds of one operation. *calls_s: the time of the calls alone. */
static double timed_loop(struct bench *b, double *calls_s)
{
    const struct perf_options *o = b->t->o;
    bool group = o->agg_iters > 1 && b->nsteps == 1,
         rendezvous = o->blocking == 1 || o->blocking == 3;
    bool each = rendezvous || b->iter_s;
    double iterations_s = 0, begin_s = now_s();
    for (int i = 0; i < o->iters; i++) {
        double from_s = each ? now_s() : 0;
        if (group)
            perf_must(b->ranks, "GroupStart", CCL(GroupStart)());
        for (int k = 0; k < o->agg_iters; k++)
            start(b, (size_t)i * (size_t)o->agg_iters + (size_t)k);
        if (group)
            perf_must(b->ranks, b->t->op->name, CCL(GroupEnd)());
        if (!o->blocking)
            continue;
        finish(b);
        if (!each)
            continue;
        double took_s = now_s() - from_s;
        iterations_s += took_s;
        if (b->iter_s)
            b->iter_s[i] = took_s / o->agg_iters;
        if (rendezvous)
            perf_meet(b->t, b->thread);
    }
    *calls_s = now_s() - begin_s;
    finish(b);
    double all_s = rendezvous ? iterations_s : now_s() - begin_s,
           n = (double)o->iters * o->agg_iters;
    *calls_s = (rendezvous ? iterations_s : *calls_s) / n;
    return all_s / n;
}

static int compare_double(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void summarise(const double *iter_s, int n, struct perf_stats *s)
{
    double *sorted = malloc((size_t)n * sizeof *sorted), sum = 0, squares = 0;
    if (!sorted)
        return;
    memcpy(sorted, iter_s, (size_t)n * sizeof *sorted);
    qsort(sorted, (size_t)n, sizeof *sorted, compare_double);
    for (int i = 0; i < n; i++)
        sum += sorted[i];
    for (int i = 0; i < n; i++)
        squares += (sorted[i] - sum / n) * (sorted[i] - sum / n);
#define NEAREST_RANK(p) sorted[(n * (p) + 99) / 100 - 1]
    *s = (struct perf_stats){.min = sorted[0],
                             .max = sorted[n - 1],
                             .avg = sum / n,
                             .p50 = NEAREST_RANK(50),
                             .p95 = NEAREST_RANK(95),
                             .p99 = NEAREST_RANK(99),
                             .stdev = n > 1 ? sqrt(squares / (n - 1)) : 0};
#undef NEAREST_RANK
    free(sorted);
}

/* ---- data ------------------------------------------------------------------------------------ */

static double verify(struct bench *b, bool in_place)
{
    const struct perf_team *t = b->t;
    double wrong = 0;
    for (int c = 0; c < t->o->check && wrong == 0; c++) {
        struct perf_data d = {.type = b->type,
                              .op = b->op,
                              .nranks = t->nranks,
                              .rep = (uint64_t)b->total_bytes * 64 + (uint64_t)c * 2 + in_place};
        for (int i = 0; i < b->n; i++) {
            b->calls[i].send = b->buffers[i].send;
            b->calls[i].recv = b->buffers[i].recv;
            perf_verify_fill(t->op, &b->calls[i], &b->layout, &d, &b->buffers[i]);
        }
        /* a peer may read a rank's buffer as soon as the peer starts */
        perf_barrier(b->t, b->thread);
        start(b, 0);
        finish(b);
        for (int i = 0; i < b->n; i++) {
            size_t n = perf_verify_check(t->op, &b->calls[i], &b->layout, &d, &b->buffers[i]);
            /* even if their sum is wrong */
            if (n)
                fprintf(stderr, "rank %d: %zu wrong elements\n", b->ranks[i].rank, n);
            wrong += (double)n;
        }
        perf_reduce(b->t, b->thread, &wrong, 1, PERF_SUM);
    }
    return wrong;
}

/* ---- a line ---------------------------------------------------------------------------------- */

static void measure(struct bench *b, size_t bytes, bool in_place, struct perf_totals *totals)
{
    struct perf_team *t = b->t;
    const struct perf_options *o = t->o;
    struct perf_result result = {.wrong = -1};
    double calls_s;
    prepare(b, bytes, in_place);
    start(b, 0);
    finish(b);
    perf_barrier(t, b->thread);
    double s = timed_loop(b, &calls_s);
    perf_reduce(t, b->thread, &s, 1, (enum perf_reduce)o->average);
    if (b->iter_s)
        perf_reduce(t, b->thread, b->iter_s, o->iters, PERF_MAX);
    if (o->check)
        result.wrong = verify(b, in_place);
    if (!perf_is_writer(t, b->thread))
        return;

    result.time_s = o->report_cputime ? calls_s : s;
    result.alg_bw = t->op->alg_bytes(&b->calls[0], &b->layout) / 1e9 / s;
    result.bus_bw = result.alg_bw * t->op->bus_factor(t->nranks);
    if (b->iter_s) {
        result.iter_s = b->iter_s;
        summarise(b->iter_s + o->per_iter_skip, o->iters - o->per_iter_skip, &result.stats);
    }
    perf_table_body(t, &result, !in_place);
    totals->bus_bw += result.bus_bw;
    totals->nlines++;
    if (result.wrong > 0)
        totals->wrong++;
}

static void one_size(struct bench *b, size_t bytes, struct perf_totals *totals)
{
    struct perf_team *t = b->t;
    bool writer = perf_is_writer(t, b->thread);
    prepare(b, bytes, false);
    if (writer)
        perf_table_line(t, b->total_bytes, b->layout.param, b->type, b->op, b->root);
    measure(b, bytes, false, totals);
    if (t->op->in_place)
        measure(b, bytes, true, totals);
    else if (writer)
        perf_table_body(t, NULL, false);
    if (writer)
        perf_table_end(t);
}

static void warm_up(struct bench *b)
{
    const struct perf_options *o = b->t->o;
    for (size_t bytes = o->min_bytes; bytes <= b->t->max_bytes; bytes = bytes ? bytes * 2 : 1) {
        prepare(b, bytes, false);
        for (int i = 0; i < o->warmup_iters; i++)
            start(b, (size_t)i);
        finish(b);
    }
}

static void make_mulsum(struct bench *b, bool make)
{
    struct perf_data d = {.type = b->type, .op = b->op, .nranks = b->t->nranks};
    for (int i = 0; i < b->n && b->op == PERF_MULSUM; i++) {
        struct perf_rank *r = &b->ranks[i];
        uint64_t scalar = perf_data_scalar(&d, r->rank);
        if (!make)
            CCL(RedOpDestroy)(r->mulsum, r->comm);
        else
            perf_must(r, "RedOpCreatePreMulSum",
                      CCL(RedOpCreatePreMulSum)(&r->mulsum, &scalar, (CCL(DataType_t))b->type,
                                                CCL(ScalarHostImmediate), r->comm));
    }
}

void perf_run(struct perf_team *t, int thread, int type, int op, int root,
              struct perf_totals *totals)
{
    const struct perf_options *o = t->o;
    struct bench b = {.t = t,
                      .thread = thread,
                      .n = o->ngpus,
                      .ranks = t->local + thread * o->ngpus,
                      .type = type,
                      .op = op,
                      .root = root,
                      .nsteps = t->op->nsteps ? t->op->nsteps(t->nranks) : 1};
    b.calls = calloc((size_t)b.n, sizeof *b.calls);
    b.buffers = calloc((size_t)b.n, sizeof *b.buffers);
    b.iter_s = o->per_iter ? calloc((size_t)o->iters, sizeof *b.iter_s) : NULL;
    if (!b.calls || !b.buffers || (o->per_iter && !b.iter_s))
        perf_die(b.ranks, "memory", CCL(SystemError));
    make_mulsum(&b, true);
    perf_barrier(t, thread);
    warm_up(&b);
    for (int cycle = 0; o->run_cycles == 0 || cycle < o->run_cycles; cycle++)
        for (size_t bytes = o->min_bytes; bytes <= t->max_bytes;
             bytes = o->step_factor > 1 ? bytes * (size_t)o->step_factor : bytes + o->step_bytes)
            one_size(&b, bytes, totals);
    perf_barrier(t, thread);
    make_mulsum(&b, false);
    free(b.iter_s);
    free(b.buffers);
    free(b.calls);
}

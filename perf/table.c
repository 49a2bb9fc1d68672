/* The table in nccl-tests' layout, and the same data as JSON. Only thread 0 of process 0 calls
 * these functions. */
#include "perf.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

static atomic_bool line_open; /* relaxed: perf_table_break() may come from any thread */

bool perf_is_writer(const struct perf_team *t, int thread)
{
    return t->launch.proc == 0 && thread == 0;
}

static void time_text(char text[32])
{
    time_t now = time(NULL);
    struct tm tm;
    localtime_r(&now, &tm);
    strftime(text, 32, "%Y-%m-%d %H:%M:%S", &tm);
}

static void json_time(const char *key)
{
    char text[32];
    time_text(text);
    perf_json_key(key);
    perf_json_str(text);
}

static void member_int(const char *key, long long value)
{
    perf_json_key(key);
    perf_json_int(value);
}

static void member_num(const char *key, double value)
{
    perf_json_key(key);
    perf_json_num(value);
}

static void json_config(const struct perf_options *o)
{
    perf_json_key("config");
    perf_json_open_object();
    member_int("nthreads", o->nthreads);
    member_int("ngpus", o->ngpus);
    member_int("minimum_bytes", (long long)o->min_bytes);
    member_int("maximum_bytes", (long long)o->max_bytes);
    member_int(o->step_factor > 1 ? "step_factor" : "step_bytes",
               o->step_factor > 1 ? o->step_factor : (long long)o->step_bytes);
    member_int("warmup_iters", o->warmup_iters);
    member_int("iterations", o->iters);
    member_int("aggregated_iterations", o->agg_iters);
    member_int("validation", o->check);
    member_int("graph", 0);
    member_int("blocking_collectives", o->blocking);
    perf_json_key("per_iter_timing");
    perf_json_bool(o->per_iter);
    perf_json_key("parallel_init");
    perf_json_bool(o->parallel_init);
}

void perf_table_open(const struct perf_team *t, int argc, char **argv)
{
    const struct perf_options *o = t->o;
    int version = 0;
    CCL(GetVersion)(&version);
    printf("# %s-perf version %s %s-headers=%d %s-library=%d\n", CCL_NAME, PACKAGE_VERSION,
           CCL_NAME, CCL_VERSION_CODE, CCL_NAME, version);
    printf("# Collective test starting: %s_perf\n", t->op->name);
    printf("# nThread %d nGpus %d minBytes %zu maxBytes %zu step: %zu(%s) warmup iters: %d iters: "
           "%d agg iters: %d "
           "validation: %d graph: 0 unalign: %d\n",
           o->nthreads, o->ngpus, o->min_bytes, o->max_bytes,
           o->step_factor > 1 ? (size_t)o->step_factor : o->step_bytes,
           o->step_factor > 1 ? "factor" : "bytes", o->warmup_iters, o->iters, o->agg_iters,
           o->check, o->unalign);
    if (o->blocking)
        printf("# Blocking Enabled: wait after each iteration%s\n",
               o->blocking == 2 ? ", no barrier" : " and barrier; time excludes the barrier");
    if (o->per_iter)
        printf("# Per-Iteration Report: each iteration is waited for; i_* uses the slowest rank\n");
    if (o->parallel_init)
        printf("# Parallel Init Enabled: threads make their communicators concurrently\n");
    printf("#\n# Using devices\n");

    json_time("start_time");
    perf_json_key("args");
    perf_json_open_list();
    for (int i = 0; i < argc; i++)
        perf_json_str(argv[i]);
    perf_json_end();
    member_int(CCL_NAME "_version", version);
    json_config(o);
    perf_json_key("devices");
    perf_json_open_list();
}

void perf_table_rank(int rank, const char *line)
{
    int pid = atoi(line);
    const char *space = strchr(line, ' '), *host = space ? space + 1 : "?";
    printf("#  Rank %2d Group %2d Pid %6d on %10s device %2d [0000:00:00] %s\n", rank, 0, pid, host,
           0, api_mem_name());
    perf_json_open_object();
    member_int("rank", rank);
    member_int("group", 0);
    member_int("pid", pid);
    perf_json_key("hostname");
    perf_json_str(host);
    member_int("device", 0);
    perf_json_key("device_info");
    perf_json_str(api_mem_name());
    perf_json_end();
}

void perf_table_header(const struct perf_team *t)
{
    const struct perf_options *o = t->o;
    const char *time_name = o->report_cputime ? "cputime" : "time",
               *stamp = o->report_timestamps ? "timestamp" : "";
    int pad = o->report_timestamps ? 19 : 0;
    perf_json_end(); /* of the devices */
    perf_json_end(); /* of the configuration */
    printf("#\n# %10s  %12s  %8s  %6s  %6s           out-of-place %s                      in-place "
           "         \n",
           "", "", "", "", "", o->per_iter ? "                                    " : "");
    printf("# %10s  %12s  %8s  %6s  %6s", "size", "count", "type", "redop", "root");
    for (int i = 0; i < 2; i++) {
        printf("  %7s  %6s  %6s  %6s", time_name, "algbw", "busbw", "#wrong");
        if (o->per_iter)
            printf("  %7s  %7s  %7s  %7s", "i_min", "i_max", "i_p99", "i_cv%");
    }
    printf(" %*s\n# %10s  %12s  %8s  %6s  %6s", pad, stamp, "(B)", "(elements)", "", "", "");
    for (int i = 0; i < 2; i++) {
        printf("  %7s  %6s  %6s  %6s", "(us)", "(GB/s)", "(GB/s)", "");
        if (o->per_iter)
            printf("  %7s  %7s  %7s  %7s", "(us)", "(us)", "(us)", "(%)");
    }
    printf(" %*s\n", pad, o->report_timestamps ? "%Y-%m-%d %H:%M:%S" : "");
    fflush(stdout);
    perf_json_key("results");
    perf_json_open_list();
}

void perf_table_line(const struct perf_team *t, size_t bytes, size_t count, int type, int op,
                     int root)
{
    const char *op_name = t->op->reduces ? perf_op_name(op) : "none";
    if (!isatty(STDOUT_FILENO) && isatty(STDERR_FILENO))
        fprintf(stderr, "\r%s_perf: %zu bytes ...", t->op->name, bytes);
    atomic_store_explicit(&line_open, true, memory_order_relaxed);
    printf("%12zu  %12zu  %8s  %6s  %6d", bytes, count, perf_type_name(type), op_name, root);
    if (isatty(STDOUT_FILENO))
        fflush(stdout); /* so that the line shows the progress */
    perf_json_open_object();
    member_int("size", (long long)bytes);
    member_int("count", (long long)count);
    perf_json_key("type");
    perf_json_str(perf_type_name(type));
    perf_json_key("redop");
    perf_json_str(op_name);
    member_int("root", root);
}

/* Formats a number with as many decimals as fit. */
static const char *fitting(double value, int width, char text[32])
{
    for (int decimals = 2; decimals >= 0; decimals--)
        if (snprintf(text, 32, "%*.*f", width, decimals, value) <= width)
            return text;
    snprintf(text, 32, "%*.*e", width, width >= 7 ? 1 : 0, value);
    return text;
}

static void per_iter(const struct perf_options *o, const struct perf_result *r, bool out_of_place)
{
    char a[32], b[32], c[32], d[32];
    double cv = r->stats.avg > 0 ? 100 * r->stats.stdev / r->stats.avg : 0;
    printf("  %7s  %7s  %7s  %7s", fitting(r->stats.min * 1e6, 7, a),
           fitting(r->stats.max * 1e6, 7, b), fitting(r->stats.p99 * 1e6, 7, c), fitting(cv, 7, d));
    perf_json_key(out_of_place ? "out_of_place_per_iter" : "in_place_per_iter");
    perf_json_open_object();
    member_int("skipped_iterations", o->per_iter_skip);
    member_num("min_us", r->stats.min * 1e6);
    member_num("max_us", r->stats.max * 1e6);
    member_num("avg_us", r->stats.avg * 1e6);
    member_num("p50_us", r->stats.p50 * 1e6);
    member_num("p95_us", r->stats.p95 * 1e6);
    member_num("p99_us", r->stats.p99 * 1e6);
    member_num("stdev_us", r->stats.stdev * 1e6);
    member_num("cv_pct", cv);
    perf_json_key("times_us");
    perf_json_open_list();
    for (int i = 0; i < o->iters; i++)
        perf_json_num(r->iter_s[i] * 1e6);
    perf_json_end();
    perf_json_end();
}

void perf_table_body(const struct perf_team *t, const struct perf_result *r, bool out_of_place)
{
    const struct perf_options *o = t->o;
    char a[32], b[32], c[32], wrong[32] = "N/A";
    perf_json_key(out_of_place ? "out_of_place" : "in_place");
    if (!r) {
        printf("  %7s  %6s  %6s  %6s", "N/A", "N/A", "N/A", "N/A");
        if (o->per_iter)
            printf("  %7s  %7s  %7s  %7s", "N/A", "N/A", "N/A", "N/A");
        perf_json_null();
        return;
    }
    if (r->wrong >= 0)
        snprintf(wrong, sizeof wrong, "%g", r->wrong);
    printf("  %7s  %6s  %6s  %6s", fitting(r->time_s * 1e6, 7, a), fitting(r->alg_bw, 6, b),
           fitting(r->bus_bw, 6, c), wrong);
    perf_json_open_object();
    member_num(o->report_cputime ? "cpu_time" : "time", r->time_s * 1e6);
    member_num("alg_bw", r->alg_bw);
    member_num("bus_bw", r->bus_bw);
    perf_json_key("nwrong");
    if (r->wrong >= 0)
        perf_json_num(r->wrong);
    else
        perf_json_null();
    perf_json_end();
    if (r->iter_s)
        per_iter(o, r, out_of_place);
}

void perf_table_end(const struct perf_team *t)
{
    char text[32];
    time_text(text);
    if (t->o->report_timestamps)
        printf("%21s", text);
    printf("\n");
    fflush(stdout);
    atomic_store_explicit(&line_open, false, memory_order_relaxed);
    member_int("actual_iterations", t->o->iters);
    perf_json_end();
}

/* On a terminal the caller looks for a new line itself: others may have written there since. */
void perf_table_break(void)
{
    bool mine = atomic_exchange_explicit(&line_open, false, memory_order_relaxed);
    if (mine && !(isatty(STDOUT_FILENO) && isatty(STDERR_FILENO)))
        printf("\n");
    fflush(stdout);
}

static void memory_report(const struct perf_team *t)
{
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    printf("# %-20s : %.1f MiB\n# %-20s : %.1f MiB\n", "Buffers",
           2.0 * t->nlocal * (double)t->buffer_bytes / 1048576, "Peak of process 0",
           (double)usage.ru_maxrss / 1024);
}

static void path_report(const struct perf_team *t)
{
    char *rest = t->paths;
    if (!rest)
        return;
    perf_json_key("paths");
    perf_json_open_list();
    for (char *line; (line = strsep(&rest, "\n")) && *line;)
        perf_json_str(line);
    perf_json_end();
}

void perf_table_close(const struct perf_team *t, const struct perf_totals *totals, double min_bw)
{
    double bw = totals->nlines ? totals->bus_bw / totals->nlines : 0;
    bool enough = bw >= min_bw * 0.9;
    if (!isatty(STDOUT_FILENO) && isatty(STDERR_FILENO))
        fputs("\r\033[K", stderr);
    printf("# %-20s : %.0f %s\n", "Out of bounds values", totals->wrong,
           totals->wrong > 0 ? "FAILED" : "OK");
    printf("# %-20s : %g %s\n", "Avg bus bandwidth", bw,
           min_bw < 0 ? ""
           : enough   ? "OK"
                      : "FAILED");
    if (t->o->memory_report)
        memory_report(t);
    if (t->paths)
        printf(
            "# Connections: source -> destination, class of paths, bytes, speed when it has enough "
            "to send, round trip, sent again\n");
    for (const char *line = t->paths, *end; line && (end = strchr(line, '\n')); line = end + 1)
        printf("#  %.*s\n", (int)(end - line), line);
    printf("#\n# Collective test concluded: %s_perf\n", t->op->name);
    fflush(stdout);
    perf_json_end(); /* of the results */
    perf_json_key("out_of_bounds");
    perf_json_open_object();
    member_num("count", totals->wrong);
    perf_json_key("okay");
    perf_json_bool(totals->wrong == 0);
    perf_json_end();
    perf_json_key("average_bus_bandwidth");
    perf_json_open_object();
    member_num("bandwidth", bw);
    perf_json_key("okay");
    if (min_bw < 0)
        perf_json_str("unchecked");
    else
        perf_json_bool(enough);
    perf_json_end();
    path_report(t);
    json_time("end_time");
    perf_json_close();
}

/*
 * ftccl-diagnose: says for whom a job waits, from the telemetry of the ranks on this machine. No
 * rank has to help, so stopped and killed ones are seen, too. Exit status: 0 nothing is wrong, 1
 * something is, 2 it cannot tell.
 */
#include "diagnose_stacks.h"

#include "telemetry/telemetry.h"

#include <errno.h>
#include <getopt.h>
#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

struct request {
    const char *dir, *flight_dir;
    const char *save_dir, *replay_dir;
    const char *page, *trace, *metrics;
    double after_s;
    double watch_s;  /* 0: once */
    double stacks_s; /* time for a tool; 0: no stacks */
    double pause_s;  /* validate, and hold no rank for longer; 0: do not */
    struct ft_stacks *stacks;
    int pid; /* of a process of the job; 0: all jobs */
    bool json, explain;
};

static const char help[] =
    "usage: ftccl-diagnose [OPTION]...\n"
    "Says for whom the jobs on this machine wait, from the telemetry of their ranks. No rank has "
    "to\n"
    "help. Exit status: 0 nothing is wrong, 1 something is, 2 it cannot tell.\n"
    "      --after SECONDS    waits shorter than this are no hang (default 5)\n"
    "      --pid N            only the job of process N: those that share communicators with it\n"
    "      --explain          how the verdict came about\n"
    "      --json             as JSON\n"
    "      --watch[=SECONDS]  again and again, every so many seconds (default 1), until a signal;\n"
    "                         prints when the verdict changes\n"
    "      --stacks[=SECONDS] also collect the stacks of the ranks and their children, and say who "
    "is\n"
    "                         elsewhere than most; py-spy, eu-stack or gdb has so many seconds for "
    "a\n"
    "                         process (default 10), and may stop it meanwhile\n"
    "      --dump-fr DIR      also write what each rank called as a dump of PyTorch's flight "
    "recorder,\n"
    "                         DIR/ftccl_trace_rank_N; torchfrtrace DIR -p ftccl_trace_rank_ reads\n"
    "                         them\n"
    "      --validate[=SECONDS]  pause the job at its next collective, for at most so many "
    "seconds\n"
    "                         (default 4), and measure its links and processors; it goes on then\n"
    "      --html FILE        also write the answer and what the ranks do as a page\n"
    "      --trace FILE       also write the operations as a trace for Perfetto\n"
    "      --prometheus FILE  also write metrics for node_exporter's textfile collector\n"
    "      --save DIR         also keep what this look was taken from in DIR\n"
    "      --replay DIR       look at what was kept in DIR, as of that moment\n"
    "      --dir DIR          telemetry files in DIR instead of /dev/shm\n"
    "  -h, --help             this text\n";

enum {
    OPT_AFTER = 256,
    OPT_EXPLAIN,
    OPT_JSON,
    OPT_WATCH,
    OPT_DIR,
    OPT_PID,
    OPT_DUMP_FR,
    OPT_SAVE,
    OPT_REPLAY,
    OPT_HTML,
    OPT_TRACE,
    OPT_PROMETHEUS,
    OPT_STACKS,
    OPT_VALIDATE
};

static const struct option options[] = {
    {"after", required_argument, NULL, OPT_AFTER},
    {"explain", no_argument, NULL, OPT_EXPLAIN},
    {"json", no_argument, NULL, OPT_JSON},
    {"watch", optional_argument, NULL, OPT_WATCH},
    {"dir", required_argument, NULL, OPT_DIR},
    {"help", no_argument, NULL, 'h'},
    {"pid", required_argument, NULL, OPT_PID},
    {"dump-fr", required_argument, NULL, OPT_DUMP_FR},
    {"html", required_argument, NULL, OPT_HTML},
    {"trace", required_argument, NULL, OPT_TRACE},
    {"prometheus", required_argument, NULL, OPT_PROMETHEUS},
    {"save", required_argument, NULL, OPT_SAVE},
    {"stacks", optional_argument, NULL, OPT_STACKS},
    {"replay", required_argument, NULL, OPT_REPLAY},
    {"validate", optional_argument, NULL, OPT_VALIDATE},
    {NULL, 0, NULL, 0},
};

/* ---- one look -------------------------------------------------------------------------------- */

/* Says what keeps the tool from a verdict, if anything does. */
static void explain_trouble(const struct request *request, struct report *report)
{
    const char *whose = request->pid ? "that process" : "a rank";
    if (report->found < 0)
        snprintf(report->trouble, sizeof report->trouble, "no memory for the analysis");
    else if (report->engines == 0 && (report->unreadable == 0 || request->pid))
        snprintf(report->trouble, sizeof report->trouble,
                 "there is no telemetry of %s in %.180s: it has ended, it belongs to another user, "
                 "FTCCL_TELEMETRY=0, or it is of another version",
                 whose, request->replay_dir ? request->replay_dir : request->dir);
    else if (report->found == 0 && report->unreadable > 0 && !request->pid)
        snprintf(report->trouble, sizeof report->trouble,
                 "%d telemetry files cannot be read; nothing is wrong with the others",
                 report->unreadable);
}

/* With --save, the look is at what was kept, so that it can be repeated exactly. */
static int take_snapshot(const struct request *request, struct ft_snapshot **out)
{
    const char *replay = request->replay_dir;
    if (request->save_dir) {
        int status = ft_snapshot_save(request->dir, request->save_dir);
        if (status != FT_OK)
            return status;
        replay = request->save_dir;
    }
    return replay ? ft_snapshot_replay(replay, out) : ft_snapshot_collect(request->dir, out);
}

static int write_files(const struct request *request, const struct ft_snapshot *snapshot,
                       const struct report *report)
{
    int status = FT_OK;
    if (request->flight_dir)
        status = write_flight_records(snapshot, request->flight_dir);
    if (request->page && status == FT_OK)
        status = write_page(snapshot, report, request->page);
    if (request->trace && status == FT_OK)
        status = write_trace(snapshot, report, request->trace);
    if (request->metrics && status == FT_OK)
        status = write_metrics(snapshot, report, request->metrics);
    return status;
}

/* Adds where the ranks are to the report, and to its verdicts. */
static void add_stacks(const struct request *request, const struct ft_snapshot *snapshot,
                       struct report *report)
{
    struct ft_stacks *stacks = request->stacks;
    if (request->stacks_s <= 0 || report->engines <= 0)
        return;
    if (stacks_collect(stacks, snapshot, report, request->stacks_s) != FT_OK) {
        snprintf(report->trouble, sizeof report->trouble, "no memory for the stacks");
        return;
    }
    for (int i = 0; i < report->found; i++)
        ft_stacks_explain(stacks, &report->verdicts[i]);
    report->stacks = stacks;
}

/* steps: follows the steps of jobs from look to look; NULL: this is the only look. The caller calls
 * end_look(). */
static void add_validations(const struct request *request, const struct ft_snapshot *snapshot,
                            struct report *report)
{
    if (request->pause_s > 0 && report->found >= 0 && !report->trouble[0])
        validate(snapshot, request->dir, request->pause_s, report);
}

static struct report look(const struct request *request, struct ft_steps *steps,
                          struct ft_verdict *verdicts)
{
    struct report report = {.verdicts = verdicts,
                            .after_s = request->after_s,
                            .real_ns = (uint64_t)time(NULL) * 1000000000u};
    struct ft_snapshot *snapshot = NULL;
    if (take_snapshot(request, &snapshot) != FT_OK) {
        snprintf(report.trouble, sizeof report.trouble, "%.300s", ft_fail_text());
        return report;
    }
    report.real_ns = snapshot->real_ns;
    report.engines = request->pid ? keep_job(snapshot, request->pid) : snapshot->nengines;
    report.unreadable = snapshot->unreadable;
    report.found = report.engines < 0 ? -1
                                      : ft_diagnose(snapshot, (uint64_t)(request->after_s * 1e9),
                                                    verdicts, MOST_VERDICTS);
    if (steps)
        report.nchanges = ft_steps_look(steps, snapshot, report.changes,
                                        FT_ARRAY_LEN(report.changes));
    explain_trouble(request, &report);
    if (report.found > MOST_VERDICTS)
        report.found = MOST_VERDICTS;
    add_stacks(request, snapshot, &report);
    add_validations(request, snapshot, &report);
    if (write_files(request, snapshot, &report) != FT_OK)
        snprintf(report.trouble, sizeof report.trouble, "%.300s", ft_fail_text());
    report.snapshot = snapshot;
    return report;
}

/* The verdicts stay. */
static void end_look(struct report *report)
{
    if (report->snapshot)
        ft_snapshot_free(report->snapshot);
    report->snapshot = NULL;
}

static int status_of(const struct report *report)
{
    bool unknown = report->trouble[0] != '\0';
    for (int i = 0; i < report->found; i++) {
        if (report->verdicts[i].kind != FT_VERDICT_UNKNOWN)
            return 1;
        unknown = true;
    }
    return unknown ? 2 : 0;
}

static void show(const struct request *request, const struct report *report)
{
    if (request->json)
        print_json(stdout, report);
    else
        print_text(stdout, report, request->explain);
    fflush(stdout);
}

/* ---- watching -------------------------------------------------------------------------------- */

static bool is_same(const struct report *a, const struct report *b)
{
    if (a->found != b->found || !a->trouble[0] != !b->trouble[0])
        return false;
    for (int i = 0; i < a->found; i++) {
        const struct ft_verdict *x = &a->verdicts[i], *y = &b->verdicts[i];
        if (x->kind != y->kind || x->ctx != y->ctx || x->seq != y->seq ||
            x->nculprits != y->nculprits || x->culprits[0].rank != y->culprits[0].rank)
            return false;
    }
    return true;
}

static int watch(const struct request *request)
{
    static struct ft_verdict verdicts[2][MOST_VERDICTS];
    struct report last = {.found = -1};
    struct ft_steps *steps = ft_steps_open();
    struct timespec pause = {.tv_sec = (time_t)request->watch_s,
                             .tv_nsec = (long)(fmod(request->watch_s, 1) * 1e9)};
    for (int i = 0;; i = !i) {
        struct report report = look(request, steps, verdicts[i]);
        if (last.found < 0 || report.nchanges > 0 || !is_same(&report, &last))
            show(request, &report);
        end_look(&report);
        if (ferror(stdout)) {
            ft_steps_close(steps);
            return 2;
        }
        last = report;
        nanosleep(&pause, NULL);
    }
}

/* ---- the command line ------------------------------------------------------------------------ */

/* Returns false, with a sentence, unless the text is a number of seconds from `least` on. */
static bool take_seconds(const char *name, const char *text, double least, double *out)
{
    char *end;
    errno = 0;
    *out = strtod(text, &end);
    if (*text && !*end && !errno && *out >= least && *out <= 86400)
        return true;
    fprintf(stderr, "ftccl-diagnose: --%s: %s is not a number of seconds from %g to 86400\n", name,
            text, least);
    return false;
}

/* Returns false, with a sentence, unless the text is the number of a process. */
static bool take_pid(const char *text, int *out)
{
    char *end;
    errno = 0;
    long pid = strtol(text, &end, 10);
    if (*text && !*end && !errno && pid > 0 && pid <= INT_MAX) {
        *out = (int)pid;
        return true;
    }
    fprintf(stderr, "ftccl-diagnose: --pid: %s is not the number of a process\n", text);
    return false;
}

/* Returns false unless it is an option whose value is taken as it is. */
static bool take_text(int option, struct request *request)
{
    const struct {
        int option;
        const char **to;
    } text[] = {
        {OPT_DIR, &request->dir},           {OPT_DUMP_FR, &request->flight_dir},
        {OPT_HTML, &request->page},         {OPT_TRACE, &request->trace},
        {OPT_SAVE, &request->save_dir},     {OPT_PROMETHEUS, &request->metrics},
        {OPT_REPLAY, &request->replay_dir},
    };
    for (size_t i = 0; i < FT_ARRAY_LEN(text); i++)
        if (text[i].option == option) {
            *text[i].to = optarg;
            return true;
        }
    return false;
}

/* Returns -1 to go on, or the exit status. */
static int take_options(int argc, char **argv, struct request *request)
{
    for (int c; (c = getopt_long(argc, argv, "h", options, NULL)) != -1;) {
        bool good = true;
        switch (c) {
        case OPT_AFTER:
            good = take_seconds("after", optarg, 0, &request->after_s);
            break;
        case OPT_WATCH:
            request->watch_s = 1;
            good = !optarg || take_seconds("watch", optarg, 0.01, &request->watch_s);
            break;
        case OPT_STACKS:
            request->stacks_s = 10;
            good = !optarg || take_seconds("stacks", optarg, 0.1, &request->stacks_s);
            break;
        case OPT_VALIDATE:
            request->pause_s = 4;
            good = !optarg || take_seconds("validate", optarg, 0.1, &request->pause_s);
            break;
        case OPT_EXPLAIN:
            request->explain = true;
            break;
        case OPT_JSON:
            request->json = true;
            break;
        case OPT_PID:
            good = take_pid(optarg, &request->pid);
            break;
        case 'h':
            fputs(help, stdout);
            return 0;
        default:
            good = take_text(c, request);
        }
        if (!good)
            return 2;
    }
    if (optind < argc) {
        fprintf(stderr, "ftccl-diagnose: unknown argument %s; see --help\n", argv[optind]);
        return 2;
    }
    return -1;
}

int main(int argc, char **argv)
{
    static struct ft_verdict verdicts[MOST_VERDICTS];
    struct ft_stacks stacks = {0};
    struct request request = {.dir = "/dev/shm", .after_s = 5, .stacks = &stacks};
    int status = take_options(argc, argv, &request);
    if (status >= 0)
        return status;
    if (request.save_dir && (request.replay_dir || request.watch_s > 0)) {
        fprintf(stderr, "ftccl-diagnose: --save goes neither with --replay nor with --watch\n");
        return 2;
    }
    if (request.stacks_s > 0 && (request.replay_dir || request.watch_s > 0)) {
        fprintf(stderr, "ftccl-diagnose: --stacks goes neither with --replay nor with --watch\n");
        return 2;
    }
    if (request.pause_s > 60 ||
        (request.pause_s > 0 && (request.replay_dir || request.save_dir || request.watch_s > 0))) {
        fprintf(stderr,
                "ftccl-diagnose: --validate takes at most 60 seconds, and goes neither with "
                "--replay nor with --save or --watch\n");
        return 2;
    }
    if (request.watch_s > 0)
        return watch(&request);
    struct report report = look(&request, NULL, verdicts);
    show(&request, &report);
    free_validations(&report);
    end_look(&report);
    ft_stacks_free(&stacks);
    return status_of(&report);
}

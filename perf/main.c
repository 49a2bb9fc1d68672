/* The common part of all perf programs, from the command line to the exit status. */
#include "perf.h"

#include <stdlib.h>
#include <string.h>

struct thread {
    struct perf_team *t;
    int number, argc;
    char **argv;
    struct perf_totals totals;
};

static void run_types(struct thread *th, int op, int root)
{
    struct perf_team *t = th->t;
    int type = t->o->type;
    for (int i = 0; i < CCL(NumTypes); i++)
        if (type == PERF_ALL || type == i)
            perf_run(t, th->number, i, op, root, &th->totals);
}

static void run_all(struct thread *th)
{
    const struct perf_options *o = th->t->o;
    const struct perf_op *op = th->t->op;
    for (int redop = 0; redop <= PERF_MULSUM; redop++) {
        if (op->reduces ? o->op != PERF_ALL && o->op != redop : redop > 0)
            continue;
        if (!op->rooted)
            run_types(th, redop, -1);
        for (int root = 0; op->rooted && root < th->t->nranks; root++)
            if (o->root == PERF_ALL || o->root == root)
                run_types(th, redop, root);
    }
}

static void *thread_main(void *arg)
{
    struct thread *th = arg;
    struct perf_team *t = th->t;
    bool writer = perf_is_writer(t, th->number);
    api_enter();
    if (t->o->parallel_init)
        perf_team_init(t, th->number);
    perf_barrier(t, th->number);
    if (th->number == 0)
        perf_bootstrap_done();
    if (writer)
        perf_table_open(t, th->argc, th->argv);
    perf_team_report(t, th->number);
    perf_team_buffers(t, th->number);
    if (writer)
        perf_table_header(t);
    run_all(th);
    if (t->o->path_report)
        perf_team_paths(t, th->number);
    double failed = th->totals.wrong; /* every process ends with the same status */
    perf_reduce(t, th->number, &failed, 1, PERF_SUM);
    if (!writer)
        th->totals.wrong = failed;
    return NULL;
}

static int run_threads(struct perf_team *t, int argc, char **argv, struct perf_totals *totals)
{
    int n = t->o->nthreads;
    struct thread *threads = calloc((size_t)n, sizeof *threads);
    pthread_t *ids = calloc((size_t)n, sizeof *ids);
    if (!threads || !ids)
        return -1;
    for (int i = 0; i < n; i++) {
        threads[i] = (struct thread){.t = t, .number = i, .argc = argc, .argv = argv};
        if (i > 0 && pthread_create(&ids[i], NULL, thread_main, &threads[i])) {
            fprintf(stderr, "cannot start thread %d\n", i);
            _Exit(PERF_FAILED); /* the other threads wait at a barrier */
        }
    }
    thread_main(&threads[0]);
    for (int i = 1; i < n; i++)
        pthread_join(ids[i], NULL);
    *totals = threads[0].totals;
    free(ids);
    free(threads);
    return 0;
}

/* Checks the number of ranks against the options. Returns 0, or the exit status. */
static int check(const struct perf_options *o, const struct perf_op *op,
                 const struct perf_launch *l)
{
    long nranks = (long)l->nprocs * o->nthreads * o->ngpus;
    if (op->rooted && o->root >= nranks) {
        fprintf(stderr, "%s_perf: there is no root %d among %ld ranks\n", op->name, o->root,
                nranks);
        return PERF_USAGE;
    }
    if (op->power_of_two && (nranks & (nranks - 1))) {
        fprintf(stderr, "%s_perf: needs a power of two of ranks, not %ld\n", op->name, nranks);
        return PERF_USAGE;
    }
    return 0;
}

static bool has_printed(const struct perf_op *op)
{
    if (fflush(stdout) == 0 && !ferror(stdout))
        return true;
    fprintf(stderr, "%s_perf: cannot write the table\n", op->name);
    return false;
}

int perf_main(const struct perf_op *op, int argc, char **argv)
{
    struct perf_options options;
    struct perf_team team = {.op = op};
    struct perf_totals totals = {0};
    int status = perf_options_parse(&options, argc, argv);
    if (status)
        return status - 1;
    if (options.root < PERF_ALL)
        options.root = PERF_ALL;
    if (perf_launch_find(&team.launch))
        return PERF_FAILED;
    if (api_open((enum api_memory)options.memory))
        return PERF_NOT_HERE;
    status = check(&options, op, &team.launch);
    if (status)
        return status;
    if (options.output_file && team.launch.proc == 0 && perf_json_open(options.output_file)) {
        perror(options.output_file);
        return PERF_FAILED;
    }
    if (perf_team_open(&team, &options, op))
        return PERF_FAILED;
    if (!options.parallel_init)
        perf_team_init(&team, -1);
    if (run_threads(&team, argc, argv, &totals))
        return PERF_FAILED;

    const char *text = getenv("NCCL_TESTS_MIN_BW");
    double min_bw = text ? strtod(text, NULL) : -1,
           bw = totals.nlines ? totals.bus_bw / totals.nlines : 0;
    perf_team_close(&team);
    if (team.launch.proc == 0)
        perf_table_close(&team, &totals, min_bw);
    free(team.paths);
    if (!has_printed(op))
        return PERF_FAILED;
    return totals.wrong > 0 || (team.launch.proc == 0 && bw < min_bw * 0.9) ? PERF_FAILED : PERF_OK;
}

/*
 * Replicas of several ranks train a model, and come and go (docs/managed.md explains the protocol):
 *
 *     ftccl-run -n 6 --standby 1 --kill 2@1 replicas --ranks 2 --steps 200 --pause 10
 *
 * A step: View, a sum over the replicas, Commit, apply. A replica that is behind adds nothing to
 * the sum, and fetches the state meanwhile, for as many steps as that takes; so the others need not
 * wait for it. Each batch is trained once, because the state says which comes next, and everybody
 * knows who takes which.
 */
#include "replicas.h"

#include <curl/curl.h>
#include <ftccl.h>
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define POLL_US 20000 /* between views of replicas that wait for others at the end */

static struct {
    int ranks, steps, pause_ms, compute_ms, state_mb, wait_s, timeout_s, patience_s, min_replicas,
        window_ms;
    const char *group, *host;
    bool quiet, times;
} opt = {.ranks = 1,
         .steps = 100,
         .timeout_s = 10,
         .patience_s = 60,
         .min_replicas = 1,
         .window_ms = 1000,
         .group = "replicas",
         .host = "127.0.0.1"};

/* What each replica of a view tells the others. */
struct entry {
    uint64_t step;
    struct source source;
};

static ftcclMember_t member;
static ftcclView_t view = {.size = sizeof view};
static ftcclComm_t comm;
static struct state *state;
static char replica[64] = "standby", address[ADDRESS_BYTES];
static int local_rank = -1, replicas_wanted;
static struct entry *table;    /* [view.nranks] */
static int *sound, nsound;     /* ranks of the view that have its state, ascending */
static uint64_t table_epoch;   /* 0: there is none */
static struct source *sources; /* [view.nranks] */
static double start, finished; /* when; finished: 0: not yet */

static double read_clock(clockid_t clock)
{
    struct timespec t;
    clock_gettime(clock, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static double now(void)
{
    return read_clock(CLOCK_MONOTONIC);
}

static void say(const char *what, const char *more)
{
    if (!opt.quiet)
        printf("%9.4f s  %s/%d: epoch %llu, step %llu: %s%s\n", now() - start, replica, local_rank,
               (unsigned long long)view.epoch, (unsigned long long)state->step, what, more);
}

static void must(bool ok, const char *what)
{
    if (ok)
        return;
    fprintf(stderr, "replicas: %s/%d: %s\n", replica, local_rank, what);
    exit(1);
}

/* True on success. An error that the next view may heal is told; another ends this process. */
static bool went_well(const char *what, ftcclResult_t result)
{
    if (result == ftcclSuccess)
        return true;
    say(what, ftcclGetLastError(NULL));
    must(ftcclGetErrorClass(result) == ftcclClassRecoverable, ftcclGetLastError(NULL));
    return false;
}

static void replace_state(struct state *next)
{
    must(next, "out of memory");
    state_release(state);
    state = next;
}

static void begin_again(void)
{
    replace_state(state_new(opt.steps));
}

/* ---- who has the state of this step ---------------------------------------------------------- */

static bool same_state(const struct entry *a, const struct entry *b)
{
    return a->step == view.step && a->step == b->step && a->source.digest == b->source.digest;
}

/* Two replicas may be at one step and have other states: one has committed a step that the others
 * did not, was gone for a while, and they made that step without it. The lowest rank is right. */
static void find_sound(void)
{
    int first = 0;
    while (first < view.nranks - 1 && table[first].step != view.step)
        first++;
    nsound = 0;
    for (int r = first; r < view.nranks; r++)
        if (same_state(&table[r], &table[first]))
            sound[nsound++] = r;
}

/* All replicas of a view make the table, or none: it depends on what they know alike. */
static bool exchange(void)
{
    if (table_epoch == view.epoch && nsound == view.nranks && view.nhealthy == view.nranks)
        return true;
    size_t n = (size_t)view.nranks;
    table_epoch = 0;
    table = realloc(table, n * sizeof *table);
    sound = realloc(sound, n * sizeof *sound);
    sources = realloc(sources, n * sizeof *sources);
    must(table && sound && sources, "out of memory");
    struct entry *mine = &table[view.rank];
    memset(mine, 0, sizeof *mine);
    if (view.step == 0 && state->step > 0)
        begin_again(); /* no replica is complete any more; nobody must fetch that state */
    mine->step = view.behind && view.step > 0 ? UINT64_MAX : state->step;
    mine->source.digest = state->digest;
    memcpy(mine->source.address, address, sizeof address);
    ftcclResult_t result = ftcclAllGather(mine, table, sizeof *table, ftcclUint8, comm, NULL);
    if (result == ftcclSuccess)
        result = ftcclStreamSynchronize(NULL);
    if (!went_well("the table: ", result))
        return false;
    table_epoch = view.epoch;
    find_sound();
    return true;
}

/* The index of this replica among those that have the state; -1: it has not. */
static int my_index(void)
{
    for (int i = 0; i < nsound; i++)
        if (sound[i] == view.rank)
            return i;
    return -1;
}

/* Those of the view first, in its order; this replica may be none that it knows to be behind. */
static struct fetch *fetch_from_sound(void)
{
    int n = 0;
    for (int i = 0; i < nsound; i++)
        sources[n++] = table[sound[(i + view.rank) % nsound]].source;
    for (int i = view.nsources - 1; i >= 0; i--)
        for (int k = 0; k < nsound; k++)
            if (sound[k] == view.sources[i]) {
                memmove(sources + 1, sources, (size_t)(n - 1) * sizeof *sources);
                sources[0] = table[sound[k]].source;
            }
    struct fetch *fetch = fetch_start(sources, n, view.step, opt.steps);
    must(fetch, "cannot start to fetch");
    return fetch;
}

/* ---- catching up ----------------------------------------------------------------------------- */

/* While a rank fetches the state of a step, the others go on. It takes part in their sums, keeps
 * them, and applies them to the state when that has come. */
struct sum {
    struct gradient gradient;
    int batches; /* how many it should be of */
};
static struct {
    struct fetch *fetch; /* NULL: this rank does not catch up */
    uint64_t step;       /* of the state that it fetches */
    struct sum *sums;    /* [nsums] of that step and those after it */
    size_t nsums;
} late;

static void stop_catching_up(void)
{
    state_release(fetch_end(late.fetch));
    late.fetch = NULL;
    late.nsums = 0;
}

static void keep_sum(const struct gradient *g)
{
    late.sums = realloc(late.sums, (late.nsums + 1) * sizeof *late.sums);
    must(late.sums, "out of memory");
    late.sums[late.nsums++] = (struct sum){.gradient = *g, .batches = nsound};
}

/* The others have not made the steps whose sums were kept, or nobody gave the state: once more. */
static void catch_up(void)
{
    bool vain = late.fetch && fetch_result(late.fetch) == FETCH_FAILED;
    if (vain)
        say("nobody gave it the state", "");
    if (vain || (late.fetch && late.step + late.nsums != view.step))
        stop_catching_up();
    if (late.fetch || nsound == 0)
        return;
    late.fetch = fetch_from_sound();
    late.step = view.step;
}

static void apply(const struct sum *sum)
{
    must(gradient_is_of(&sum->gradient, state, sum->batches), "the sum is not of each batch once");
    replace_state(state_apply(state, &sum->gradient, opt.steps));
}

/* The state has come. */
static void has_caught_up(void)
{
    struct state *fetched = fetch_end(late.fetch);
    late.fetch = NULL;
    replace_state(fetched);
    say("has fetched the state", "");
    for (size_t i = 0; i < late.nsums; i++)
        apply(&late.sums[i]);
    late.nsums = 0;
}

/* ---- a step ---------------------------------------------------------------------------------- */

static bool sum_gradients(struct gradient *g)
{
    ftcclResult_t result = ftcclAllReduce(g, g, sizeof *g / sizeof(double), ftcclDouble, ftcclSum,
                                          comm, NULL);
    if (result == ftcclSuccess)
        result = ftcclStreamSynchronize(NULL);
    return went_well("the sum: ", result);
}

static bool is_over(uint64_t step)
{
    return step >= (uint64_t)opt.steps;
}

/* All replicas have the last state, and nobody is missing for whom this one waits. */
static bool may_end(void)
{
    if (finished == 0)
        finished = now();
    if (nsound == view.nranks && (view.nranks >= replicas_wanted || now() - finished >= opt.wait_s))
        return true;
    usleep(POLL_US);
    return false;
}

/* A real model takes its time: a GPU computes while this thread sleeps, or the thread computes. */
static void take_time(void)
{
    usleep((useconds_t)opt.pause_ms * 1000);
    const double end = read_clock(CLOCK_THREAD_CPUTIME_ID) + 1e-3 * opt.compute_ms;
    while (read_clock(CLOCK_THREAD_CPUTIME_ID) < end)
        continue;
}

/* What this rank does in the view's step before the vote, whose result is what it says. */
static bool work_with_state(struct gradient *g, int index)
{
    if (is_over(view.step))
        return may_end();
    gradient_of(g, state, local_rank, state->batches + (uint64_t)index);
    take_time();
    return sum_gradients(g);
}

static bool work_without_state(struct gradient *g)
{
    catch_up();
    if (is_over(view.step))
        usleep(POLL_US);
    else if (!sum_gradients(g))
        return false;
    else if (late.fetch)
        keep_sum(g);
    return late.fetch && fetch_result(late.fetch) == FETCHED;
}

static bool work(struct gradient *g)
{
    if (!exchange())
        return false;
    int index = my_index();
    if (index < 0)
        return work_without_state(g);
    stop_catching_up();
    return work_with_state(g, index);
}

/* All ranks of this replica do it, or none. True: that was the end. */
static bool commit(bool ok, const struct gradient *g)
{
    int all = 0;
    ftcclResult_t result = ftcclMemberCommit(member, view.step, ok, &all);
    bool sure = went_well("the commit: ", result), at_end = is_over(view.step) && !late.fetch;
    /* The other ranks may have done it or not: then this one's state belongs to nobody any more. */
    if (!sure && !at_end)
        begin_again();
    if (all && late.fetch)
        has_caught_up();
    else if (all && !is_over(view.step))
        apply(&(struct sum){.gradient = *g, .batches = nsound});
    if (all || !sure)
        serve_publish(state);
    return all && at_end;
}

/* ---- from view to view ----------------------------------------------------------------------- */

static void take_role(void)
{
    char name[sizeof replica];
    int rank;
    if (ftcclMemberRole(member, name, sizeof name, &rank, NULL) != ftcclSuccess || rank < 0)
        return;
    memcpy(replica, name, sizeof name);
    local_rank = rank;
}

/* False: this process is not needed any more. */
static bool next_view(void)
{
    uint64_t before = view.epoch;
    double asked = now();
    for (;;) {
        ftcclResult_t result = ftcclMemberView(member, state->step, &view, &comm);
        take_role();
        if (result == ftcclSuccess)
            break;
        if (finished > 0)
            return false; /* the others have left, with the same state */
        went_well("no view: ", result);
        must(local_rank < 0 || now() - asked < opt.patience_s, ftcclGetLastError(NULL));
    }
    char text[80];
    snprintf(text, sizeof text, "%d replicas, %d have step %llu", view.nranks, view.nhealthy,
             (unsigned long long)view.step);
    if (view.epoch != before)
        say(text, view.behind ? ", not this one" : "");
    return true;
}

/* For perf/member_catch_up.py: how long the parts of a step have taken, which ends now. */
static void tell_times(double began, double viewed, double worked)
{
    if (opt.times)
        printf("step %s %d epoch %llu step %llu replicas %d sound %d index %d ms %.3f %.3f %.3f\n",
               replica, local_rank, (unsigned long long)view.epoch, (unsigned long long)view.step,
               view.nranks, nsound, my_index(), 1e3 * (viewed - began), 1e3 * (worked - viewed),
               1e3 * (now() - worked));
}

static void train(void)
{
    double began = now();
    for (bool end = false; !end && next_view(); began = now()) {
        struct gradient g = {0};
        double viewed = now();
        bool ok = work(&g);
        double worked = now();
        end = commit(ok, &g);
        tell_times(began, viewed, worked);
    }
}

/* ---- begin and end --------------------------------------------------------------------------- */

static void report(void)
{
    bool same = state_is_reproducible(state, local_rank, opt.steps);
    printf("end %s %d steps %llu batches %llu digest %016llx\nparameters %s %d", replica,
           local_rank, (unsigned long long)state->step, (unsigned long long)state->batches,
           (unsigned long long)state->digest, replica, local_rank);
    for (int k = 0; k < FEATURES; k++)
        printf(" %a", state->weight[k]);
    printf("\ntrained %s %d", replica, local_rank);
    for (uint64_t i = 0; i < state->step; i++)
        printf(" %u", state_trained(state)[i]);
    printf("\n");
    must(same, "training again gives another result");
}

static const char help[] =
    "usage: replicas [OPTION]...\n"
    "Replicas of some ranks train a small model and may end and begin at any time. Started by\n"
    "ftccl-run or any launcher that sets RANK and WORLD_SIZE, with FTCCL_COORDINATOR and\n"
    "FTCCL_SECRET in the environment; with FTCCL_STANDBY=1 as a standby.\n"
    "  -r, --ranks N        of one replica (default 1)\n"
    "  -s, --steps N        how many (default 100)\n"
    "  -p, --pause MS       how long a gradient takes in addition, asleep (default 0)\n"
    "  -c, --compute MS     the same in processor time\n"
    "  -m, --state MB       the state is so much larger (default 0)\n"
    "  -w, --wait S         how long finished replicas wait for missing ones (default 0)\n"
    "      --timeout S      of one call (default 10)\n"
    "      --patience S     how long to wait for a view (default 60)\n"
    "      --min-replicas N fewer make no view (default 1)\n"
    "      --window MS      how long a view waits for those that are not ready\n"
    "                       (default 1000)\n"
    "      --group NAME     of the job (default replicas)\n"
    "      --host ADDRESS   where the others reach this process; its state is served there over\n"
    "                       HTTP to anybody (default 127.0.0.1)\n"
    "  -t, --times          print how long the parts of each step take: the view, the work, the\n"
    "                       commit\n"
    "  -q, --quiet          print only the result\n"
    "  -h, --help\n";

static int number(const char *option, const char *text, int lowest, int highest)
{
    char *end;
    long value = strtol(text, &end, 10);
    if (end != text && !*end && value >= lowest && value <= highest)
        return (int)value;
    fprintf(stderr, "replicas: %s wants a number from %d to %d, not '%s'\n", option, lowest,
            highest, text);
    exit(2);
}

enum { TIMEOUT = 256, PATIENCE, MIN_REPLICAS, WINDOW, GROUP, HOST };
static const struct option longs[] = {{"ranks", required_argument, NULL, 'r'},
                                      {"steps", required_argument, NULL, 's'},
                                      {"pause", required_argument, NULL, 'p'},
                                      {"compute", required_argument, NULL, 'c'},
                                      {"state", required_argument, NULL, 'm'},
                                      {"wait", required_argument, NULL, 'w'},
                                      {"timeout", required_argument, NULL, TIMEOUT},
                                      {"patience", required_argument, NULL, PATIENCE},
                                      {"min-replicas", required_argument, NULL, MIN_REPLICAS},
                                      {"window", required_argument, NULL, WINDOW},
                                      {"group", required_argument, NULL, GROUP},
                                      {"host", required_argument, NULL, HOST},
                                      {"times", no_argument, NULL, 't'},
                                      {"quiet", no_argument, NULL, 'q'},
                                      {"help", no_argument, NULL, 'h'},
                                      {0}};
static const struct {
    int option, lowest, highest, *value;
    const char *name;
} numbers[] = {{'r', 1, 1024, &opt.ranks, "--ranks"},
               {'s', 1, STEPS_MOST, &opt.steps, "--steps"},
               {'p', 0, 100000, &opt.pause_ms, "--pause"},
               {'c', 0, 100000, &opt.compute_ms, "--compute"},
               {'m', 0, 4096, &opt.state_mb, "--state"},
               {'w', 0, 100000, &opt.wait_s, "--wait"},
               {TIMEOUT, 1, 100000, &opt.timeout_s, "--timeout"},
               {PATIENCE, 0, 1000000, &opt.patience_s, "--patience"},
               {MIN_REPLICAS, 1, 1 << 20, &opt.min_replicas, "--min-replicas"},
               {WINDOW, 0, 1000000000, &opt.window_ms, "--window"}};

static void read_number(int option)
{
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++)
        if (numbers[i].option == option)
            *numbers[i].value = number(numbers[i].name, optarg, numbers[i].lowest,
                                       numbers[i].highest);
}

static void read_options(int argc, char **argv)
{
    for (int c; (c = getopt_long(argc, argv, "r:s:p:c:m:w:tqh", longs, NULL)) != -1;) {
        switch (c) {
        case GROUP:
            opt.group = optarg;
            break;
        case HOST:
            opt.host = optarg;
            break;
        case 't':
            opt.times = true;
            break;
        case 'q':
            opt.quiet = true;
            break;
        case 'h':
            fputs(help, stdout);
            exit(0);
        case '?':
            exit(2);
        default:
            read_number(c);
        }
    }
    if (optind == argc)
        return;
    fprintf(stderr, "replicas: unexpected argument '%s'; try --help\n", argv[optind]);
    exit(2);
}

static int environment(const char *name, int lowest, const char *unset)
{
    const char *text = getenv(name);
    return number(name, text ? text : unset, lowest, 1 << 20);
}

/* A rank that ftccl-run has started again takes its old role if a standby has not got it. */
static void join(void)
{
    int rank = environment("RANK", 0, ""), size = environment("WORLD_SIZE", 1, "");
    bool standby = environment("FTCCL_STANDBY", 0, "0"),
         again = environment("FTCCL_RESTART", 0, "0") && rank < size;
    char name[sizeof replica];
    ftcclResult_t result = ftcclInvalidUsage;
    ftcclConfig_t config = FTCCL_CONFIG_INITIALIZER;
    ftcclOptions_t options = FTCCL_OPTIONS_INITIALIZER;
    options.initTimeoutMs = 1000 * opt.timeout_s;
    options.minMembers = opt.min_replicas;
    options.joinWindowMs = opt.window_ms;
    config.options = &options;
    replicas_wanted = size / opt.ranks;
    must(replicas_wanted * opt.ranks == size, "WORLD_SIZE is no multiple of --ranks");
    snprintf(name, sizeof name, "replica%d", rank / opt.ranks);
    if (!standby || again)
        result = ftcclMemberJoin(NULL, opt.group, name, rank % opt.ranks, opt.ranks, &config,
                                 &member);
    if (standby && result == ftcclInvalidUsage)
        result = ftcclMemberJoin(NULL, opt.group, NULL, 0, 0, &config, &member);
    must(result == ftcclSuccess, ftcclGetLastError(NULL));
    take_role();
}

int main(int argc, char **argv)
{
    read_options(argc, argv);
    setvbuf(stdout, NULL, _IOLBF, 0);
    const char *began = getenv("FTCCL_RUN_START"); /* nanoseconds, by ftccl-run */
    start = began ? atof(began) * 1e-9 : now();
    curl_global_init(CURL_GLOBAL_DEFAULT);
    state_moments = ((size_t)opt.state_mb << 20) / sizeof(uint32_t);
    state = state_new(opt.steps);
    must(state && state_reserve(opt.steps) && serve_start(opt.host, address), "cannot begin");
    serve_publish(state);
    join();
    train();
    report();
    ftcclMemberLeave(member);
    serve_stop();
    curl_global_cleanup();
    stop_catching_up();
    state_release(state);
    free(late.sums);
    free(table);
    free(sound);
    free(sources);
    return 0;
}

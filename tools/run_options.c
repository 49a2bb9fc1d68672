/* The command line of ftccl-run. */
#include "run.h"

#include <getopt.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char usage[] =
    "Usage: ftccl-run -n N [options] PROGRAM [ARGS...]\n"
    "Starts N ranks of PROGRAM on this machine, with RANK, WORLD_SIZE, LOCAL_RANK, "
    "LOCAL_WORLD_SIZE and\n"
    "FTCCL_UNIQUE_ID (the rendezvous, in hex) in their environment.\n"
    "  -n, --ranks N               how many\n"
    "      --kill RANK@SECONDS     kill a rank (SIGKILL) that long after the start; may be "
    "repeated\n"
    "      --stop RANK@SECONDS     stop a rank (SIGSTOP); it is killed when the others have ended\n"
    "      --restart               start a rank again that a signal ended, with "
    "FTCCL_RESTART=COUNT (at most 10 times)\n"
    "      --standby N             start N more processes with FTCCL_STANDBY=1, which replace "
    "ranks "
    "that die (managed membership);\n"
    "                              with --restart what ended is started again as a standby\n"
    "  -l, --label                 prefix every line of output with [RANK]\n"
    "      --bind share|core|numa|none\n"
    "                              let each rank run only on its share of the cores (default; "
    "nothing with more ranks than cores),\n"
    "                              on one core, on the cores of one NUMA node, or anywhere\n"
    "      --report-bindings       say on standard error where each rank may run; without PROGRAM "
    "only this\n"
    "  -h, --help                  this text\n"
    "All find FTCCL_COORDINATOR and FTCCL_SECRET: the coordinator in this process, unless they are "
    "set already.\n"
    "Ends with the first status that is not 0; 128 plus the number for a signal. Ranks of --kill "
    "and --stop do not count.\n"
    "SIGINT, SIGTERM and SIGHUP go to all ranks; a second one kills them.\n";

void run_die(const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    fputs("ftccl-run: ", stderr);
    vfprintf(stderr, fmt, args);
    fputc('\n', stderr);
    va_end(args);
    exit(2);
}

static long number(const char *text, const char *what, long lowest, long highest)
{
    char *end;
    long value = strtol(text, &end, 10);
    if (end == text || *end || value < lowest || value > highest)
        run_die("%s must be a number from %ld to %ld, not '%s'", what, lowest, highest, text);
    return value;
}

static void add_event(struct run_options *opt, int sig, const char *text)
{
    char rank[16], *end;
    const char *at = strchr(text, '@');
    if (!at || (size_t)(at - text) >= sizeof rank)
        run_die("'%s' is not RANK@SECONDS", text);
    memcpy(rank, text, (size_t)(at - text));
    rank[at - text] = '\0';
    double seconds = strtod(at + 1, &end);
    if (end == at + 1 || *end || !(seconds >= 0 && seconds <= 1e6))
        run_die("'%s' is not RANK@SECONDS", text);
    if (opt->nevents == RUN_EVENTS_MAX)
        run_die("at most %d of --kill and --stop", RUN_EVENTS_MAX);
    opt->events[opt->nevents++] = (struct run_event){
        .rank = (int)number(rank, "the rank of --kill or --stop", 0, RUN_RANKS_MAX - 1),
        .sig = sig,
        .after_ns = (uint64_t)(seconds * 1e9)};
}

static void check(struct run_options *opt)
{
    if (!opt->nranks)
        run_die("-n is missing; --help says more");
    if (!opt->argv[0] && !opt->report)
        run_die("no program; --help says more");
    int nprocesses = opt->nranks + opt->nstandbys;
    for (int i = 0; i < opt->nevents; i++)
        if (opt->events[i].rank >= nprocesses)
            run_die("there is no rank %d among %d", opt->events[i].rank, nprocesses);
}

static enum run_bind bind_of(const char *text)
{
    static const char *const names[] = {[RUN_BIND_NONE] = "none",
                                        [RUN_BIND_SHARE] = "share",
                                        [RUN_BIND_CORE] = "core",
                                        [RUN_BIND_NUMA] = "numa"};
    for (int how = RUN_BIND_NONE; how <= RUN_BIND_NUMA; how++)
        if (!strcmp(text, names[how]))
            return (enum run_bind)how;
    run_die("--bind takes share, core, numa or none, not '%s'", text);
}

void run_parse(int argc, char **argv, struct run_options *opt)
{
    enum { KILL = 256, STOP, RESTART, STANDBY, BIND, REPORT };
    static const struct option longs[] = {{"ranks", required_argument, NULL, 'n'},
                                          {"kill", required_argument, NULL, KILL},
                                          {"stop", required_argument, NULL, STOP},
                                          {"restart", no_argument, NULL, RESTART},
                                          {"standby", required_argument, NULL, STANDBY},
                                          {"label", no_argument, NULL, 'l'},
                                          {"bind", required_argument, NULL, BIND},
                                          {"report-bindings", no_argument, NULL, REPORT},
                                          {"help", no_argument, NULL, 'h'},
                                          {0}};
    int c;
    while ((c = getopt_long(argc, argv, "+n:lh", longs, NULL)) != -1) {
        switch (c) {
        case 'n':
            opt->nranks = (int)number(optarg, "-n", 1, RUN_RANKS_MAX);
            break;
        case 'l':
            opt->label = true;
            break;
        case KILL:
            add_event(opt, SIGKILL, optarg);
            break;
        case STOP:
            add_event(opt, SIGSTOP, optarg);
            break;
        case RESTART:
            opt->restart = true;
            break;
        case STANDBY:
            opt->nstandbys = (int)number(optarg, "--standby", 0, RUN_RANKS_MAX);
            break;
        case BIND:
            opt->bind = bind_of(optarg);
            break;
        case REPORT:
            opt->report = true;
            break;
        case 'h':
            fputs(usage, stdout);
            exit(0);
        default:
            exit(2);
        }
    }
    opt->argv = argv + optind;
    check(opt);
}

/* The parts of ftccl-run: the command line, the environment of the ranks, and the CPUs that ranks
 * may use. */
#ifndef FT_TOOLS_RUN_H
#define FT_TOOLS_RUN_H

#include <sched.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

struct run_event {
    int rank, sig; /* SIGKILL or SIGSTOP */
    uint64_t after_ns;
    bool done;
};

#define RUN_EVENTS_MAX 64
#define RUN_RANKS_MAX 4096

/* DEFAULT: SHARE, or NONE if there are more ranks than cores. */
enum run_bind { RUN_BIND_DEFAULT, RUN_BIND_NONE, RUN_BIND_SHARE, RUN_BIND_CORE, RUN_BIND_NUMA };

struct run_options {
    int nranks;
    bool label, restart, report;
    enum run_bind bind;
    int nevents;
    struct run_event events[RUN_EVENTS_MAX];
    char **argv; /* the program's arguments, terminated by NULL; empty: only report */
};

/* Parses the command line. Ends the process after a wrong one (status 2) and after --help (status
 * 0). */
void run_parse(int argc, char **argv, struct run_options *opt);
void run_die(const char *fmt, ...) __attribute__((noreturn, format(printf, 1, 2)));

/* vars[rank] is the environment of that rank: this process's environment plus rank, size and
 * rendezvous. This process serves the rendezvous. */
struct run_env {
    int nranks;
    int port_fd; /* a socket that reserves MASTER_PORT for the ranks; -1: none */
    char ***vars;
};
/* start_ns: a time of CLOCK_MONOTONIC */
void run_env_make(struct run_env *env, int nranks, uint64_t start_ns);
void run_env_set_restart(struct run_env *env, int rank, int count);
void run_env_free(struct run_env *env);

/* Returns for each rank the CPUs to which it is bound; NULL: no rank is bound. Ends the process if
 * the request is impossible. */
cpu_set_t *run_bind_plan(const struct run_options *opt);
/* prints a line for each rank */
void run_bind_report(FILE *out, const cpu_set_t *sets, int nranks);

#endif

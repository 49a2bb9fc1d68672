/* The parts of ftccl-run: the command line, the environment of the ranks, the coordinator that
 * they find there, and the CPUs that ranks may use. */
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
    int nranks, nstandbys; /* standbys are numbered after the ranks */
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

/* vars[rank] is the environment of that rank or standby: this process's environment plus rank,
 * size, rendezvous and coordinator. This process serves both. */
struct run_env {
    int nprocesses;
    bool has_standbys;
    int port_fd; /* a socket that reserves MASTER_PORT for the ranks; -1: none */
    char ***vars;
};
/* start_ns: a time of CLOCK_MONOTONIC */
void run_env_make(struct run_env *env, const struct run_options *opt, uint64_t start_ns);
/* If there are standbys, what is started again is one. */
void run_env_set_restart(struct run_env *env, int rank, int count);
void run_env_free(struct run_env *env);

/* Starts a coordinator in this process and puts its address, and a secret if there is none, into
 * the environment; does nothing if the environment names a coordinator. must: ends the process if
 * that fails, and otherwise only says so. */
void run_coordinator_start(bool must);
/* How many processes have a role; -1: there is no coordinator here. */
int run_coordinator_members(void);
void run_coordinator_stop(void);

/* Returns for each rank the CPUs to which it is bound; NULL: no rank is bound. Ends the process if
 * the request is impossible. */
cpu_set_t *run_bind_plan(const struct run_options *opt);
/* prints a line for each rank */
void run_bind_report(FILE *out, const cpu_set_t *sets, int nranks);

#endif

/* ftccl-run's parts: the command line and the environment that ranks get. */
#ifndef FT_TOOLS_RUN_H
#define FT_TOOLS_RUN_H

#include <stdbool.h>
#include <stdint.h>

struct run_event {
    int rank, sig; /* SIGKILL or SIGSTOP */
    uint64_t after_ns;
    bool done;
};

#define RUN_EVENTS_MAX 64
#define RUN_RANKS_MAX 4096

struct run_options {
    int nranks;
    bool label, restart, bind_core;
    int nevents;
    struct run_event events[RUN_EVENTS_MAX];
    char **argv; /* of the program, ends with NULL */
};

/* Ends the process after a wrong command line (status 2) and after --help (0). */
void run_parse(int argc, char **argv, struct run_options *opt);
void run_die(const char *fmt, ...) __attribute__((noreturn, format(printf, 1, 2)));

/* vars[rank] is the environment of that rank: ours, and rank, size and rendezvous. This process serves the rendezvous. */
struct run_env {
    int nranks;
    int port_fd; /* holds MASTER_PORT for the ranks; -1: none */
    char ***vars;
};
void run_env_make(struct run_env *env, int nranks, uint64_t start_ns); /* start_ns: of CLOCK_MONOTONIC */
void run_env_set_restart(struct run_env *env, int rank, int count);
void run_env_free(struct run_env *env);

/* Binds the calling process to one of the cores it may use, by rank. Called between fork and exec. */
void run_bind(bool core, int rank);

#endif

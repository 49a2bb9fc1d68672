/*
 * What main.c measures of one shape, with the processes of run.c, and how report.c prints it.
 */
#ifndef FT_TESTS_SCALE_MEASURE_H
#define FT_TESTS_SCALE_MEASURE_H

#include "scale.h"

#include <sys/types.h>
#include <time.h>

/* A view: from the first ASK and from the last one until the last member had it. cpu: of the
 * coordinator meanwhile. */
struct view_times {
    double from_first_ms, from_last_ms, cpu_ms;
};
/* Which heartbeats are answered: those of a third of the connections, as clients with the usual
 * limits asks for it; almost none; all. */
enum beats { BEATS_USUAL, BEATS_QUIET, BEATS_ANSWERED, BEATS };
enum round { ROUND_FIRST, ROUND_SAME, ROUND_CHANGED, ROUNDS };
struct measured {
    struct shape shape;
    double join_s, join_cpu_s; /* from the first connect to the last JOINED */
    /* A heartbeat of each connection: until the last of the answers, the coordinator's time. */
    double beat_ms[BEATS], beat_cpu_ms[BEATS];
    double idle_cpu_ms; /* of the coordinator in a second in which nothing comes */
    double rejoin_ms;   /* a replica's members register in place of others */
    double first_gb;    /* of the first view */
    struct view_times view[ROUNDS];
    double rss_mib, peak_mib; /* of the coordinator, after all; at most */
    /* Bytes a member and round: to the coordinator, from it. */
    double join_out, join_in, beat_out, beat_in, ask_out, view_in[ROUNDS];
    unsigned again;
};

/* ---- run.c ----------------------------------------------------------------------------------- */

struct run {
    struct shared *shared;
    pid_t coordinator, load[LOADS_MOST];
    int stop; /* closed: the coordinator ends */
    int commands[LOADS_MOST], answers[LOADS_MOST];
    clockid_t clock; /* processor time of the coordinator */
};
struct run run_start(const struct shape *);
/* Returns the number of faults. */
unsigned run_end(struct run *);
/* Lets all load processes do something, and waits until all have. False: a fault. */
bool run_phase(struct run *, enum command);
/* Of the coordinator: processor time until now; a line of /proc/PID/status. */
double run_cpu_ms(const struct run *);
double run_memory_mib(const struct run *, const char *name);

/* ---- report.c -------------------------------------------------------------------------------- */

void report_head(void);
void report_line(const struct measured *);
void report_bytes(const struct measured *, int count);

#endif

/*
 * Collects where the processes of a job on this machine are: the ranks and their children. The
 * kernel tells where each thread sleeps; tools that are installed tell stacks. Whatever a tool does
 * takes bounded time and memory, and no process of the job is left in another state than before.
 */
#ifndef FT_TOOLS_DIAGNOSE_STACKS_H
#define FT_TOOLS_DIAGNOSE_STACKS_H

#include "diagnose.h"

/* Fills what was collected, and groups it. each_s: the time that a tool has for one process. Of
 * several jobs, that of the first verdict, or the largest; report NULL: all. FT_NOMEM: `out` may be
 * freed. */
int stacks_collect(struct ft_stacks *out, const struct ft_snapshot *, const struct report *,
                   double each_s);

/* ---- diagnose_proc.c: what the kernel tells -------------------------------------------------- */

/* Fills name, state and threads. False: there is no such process, or no memory. */
bool proc_look(struct ft_stack_process *);
/* State, place and system call of a thread. False: it has gone. */
bool proc_look_at_thread(int pid, int tid, struct ft_stack_thread *);
/* When a process began, in the kernel's ticks; 0: there is none. */
uint64_t proc_start(int pid, char *state);
/* The process that traces a thread of this one; 0: none. */
int proc_tracer(int pid);
/* Writes at most `capacity` children, returns their number. */
int proc_children(int pid, int *children, int capacity);
bool proc_is_python(int pid);

/* ---- diagnose_run.c: programs in bounded time ------------------------------------------------ */

#define RUN_ARGUMENTS 24
#define RUN_BYTES (1 << 20) /* of output; who writes more is stopped */

enum run_end { RUN_WAITS, RUN_RUNS, RUN_ENDED, RUN_LATE, RUN_FLOODED, RUN_FAILED };

/* A program to run, and what it has written to both of its outputs. */
struct run {
    const char *argv[RUN_ARGUMENTS]; /* argv[0] is a path; NULL at the end */
    enum run_end end;                /* RUN_WAITS: there was no time for it */
    int status;                      /* as of waitpid() */
    char *text;                      /* ends with a NUL; NULL: it did not run */
    size_t len;
    int pid, fd;
    uint64_t late_ns, kill_ns;
};

struct run_limits {
    double each_s;   /* for one program */
    uint64_t end_ns; /* for all, by run_now_ns() */
};
/* What is done when a program has ended. Its text goes then. */
typedef void run_ended(struct run *, void *arg);

/* Runs all of them, a few at the same time. A signal that ends this program ends them first, and is
 * taken then. No shell, no standard input, no descriptors, a small environment. */
void run_all(struct run *runs, int n, const struct run_limits *, run_ended *, void *arg);
uint64_t run_now_ns(void);
/* The file of a program in PATH. False: there is none. */
bool run_find(const char *name, char *path, size_t size);

/* ---- diagnose_tools.c: stacks by tools ------------------------------------------------------- */

/* Asks the first tool that is installed and fits for the stacks of every process. A process that
 * cannot be read is told why. */
void tools_ask(struct ft_stacks *, double each_s);

/* ---- diagnose_stacks_print.c ----------------------------------------------------------------- */

/* "0-3, 7": numbers in their order */
void put_ranges(FILE *out, const int *numbers, int n);
/* The numbers of the ranks of a group; the caller frees them. NULL: no memory. */
int *group_ranks(const struct ft_stacks *, const struct ft_stack_group *);
/* Who is elsewhere than most, in a sentence. */
void put_found(FILE *out, const struct ft_stacks *);
void print_stacks(FILE *out, const struct ft_stacks *);

#endif

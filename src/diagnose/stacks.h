/*
 * stacks: where the processes of a job are, and which ranks are elsewhere than most. What tools
 * have written goes in, groups come out; there is no input and no output. The method is that of the
 * paper on ByteRobust (5.1): equal stacks are a group, the dominant groups are healthy, the others
 * are outliers, and the smallest communicator that all outliers share is what one would leave out.
 *
 * Texts come from other processes and may be hostile: lengths are bounded, and what is not plain
 * text is replaced. Where healthy ranks are no clear majority, nobody is an outlier.
 */
#ifndef FT_DIAGNOSE_STACKS_H
#define FT_DIAGNOSE_STACKS_H

#include "base/base.h"

struct ft_snapshot;
struct ft_verdict;
struct ft_evidence;

/* ---- a stack --------------------------------------------------------------------------------- */

#define FT_STACK_SOURCES(X) \
    X(NONE, "nothing")      \
    X(KERNEL, "/proc")      \
    X(PYSPY, "py-spy")      \
    X(EUSTACK, "eu-stack")  \
    X(GDB, "gdb")
enum ft_stack_source {
#define X(name, text) FT_STACK_##name,
    FT_STACK_SOURCES(X)
#undef X
        FT_STACK_SOURCE_COUNT
};
const char *ft_stack_source_name(enum ft_stack_source);

#define FT_STACK_FRAMES 96       /* of a deeper stack the innermost ones */
#define FT_STACK_FRAME_BYTES 160 /* of a longer frame the beginning */

/* Frames, the innermost first, one a line. Allocated, or NULL: unknown. */
struct ft_stack {
    enum ft_stack_source source;
    char *shown;  /* for people: with places in files */
    char *normal; /* to compare: see ft_stack_read() */
};

/* Reads the stack of one thread from what a tool has written. tid == pid: the main thread. Equal
 * stacks get the same `normal`: without addresses, values of arguments, lines, versions of symbols,
 * copies that compilers make, frames without a name, repetitions, and what the library does inside
 * its own calls. FT_INVAL: that thread is not in the text, or none of its frames has a name;
 * FT_NOMEM. */
int ft_stack_read(struct ft_stack *out, enum ft_stack_source tool, const char *text, int pid,
                  int tid);
/* Lines that the caller has made. FT_NOMEM. */
int ft_stack_of_lines(struct ft_stack *out, enum ft_stack_source source, const char *lines);
void ft_stack_free(struct ft_stack *);

/* ---- what was collected ---------------------------------------------------------------------- */

/* A thread, as the kernel shows it. Texts are "" if they cannot be read. */
struct ft_stack_thread {
    int tid;
    char state; /* as in /proc/<pid>/stat; '?': unknown */
    char name[16];
    char where[48];   /* in the kernel */
    char call[96];    /* "read of /tmp/fifo", "system call 281" */
    char kernel[160]; /* "pipe_read < vfs_read < ksys_read" */
};

/* A process of a rank, or a child of it. */
struct ft_stack_process {
    int pid, parent; /* parent 0: it is a rank */
    int rank;        /* index into ranks; a process with several ranks has that of the first */
    char name[16];
    char state;
    struct ft_stack_thread *threads; /* the main one first */
    int nthreads, threads_left_out;
    struct ft_stack stack; /* of the main thread, as a tool told it */
    char trouble[160];     /* why there is no more; "" */
};

struct ft_stack_rank {
    int engine;                   /* index into the snapshot's */
    int rank;                     /* of the job */
    int tid;                      /* its thread in its process */
    int process;                  /* index into processes */
    bool stopped;                 /* the process, so that no tool was asked */
    struct ft_stack kernel, tool; /* of its thread */
    char call[160];               /* its last FTCCL call, and the thread and the place of it */
    int group;                    /* index into groups; -1: it was not compared */
};

/* ---- groups ---------------------------------------------------------------------------------- */

struct ft_stack_group {
    int first, count; /* in order: the ranks of the group, in their order */
    bool outlier;
};

/* A communicator that all outliers are members of. */
struct ft_stack_shared {
    uint64_t ctx;
    int nranks;
    char name[40];
};

enum ft_stacks_found {
    FT_STACKS_NOTHING, /* no stack could be read */
    FT_STACKS_ALIKE,
    FT_STACKS_OUTLIERS,
    FT_STACKS_CANNOT_TELL /* they differ, and nothing says who is healthy */
};
const char *ft_stacks_found_name(enum ft_stacks_found);

#define FT_STACKS_SHARED 8

struct ft_stacks {
    struct ft_stack_rank *ranks;
    struct ft_stack_process *processes;
    int nranks, nprocesses;
    int left_out; /* processes of the job that were not looked at */
    /* What ft_stacks_group() finds. */
    enum ft_stacks_found found;
    enum ft_stack_source compared;
    struct ft_stack_group *groups; /* outliers first, then the largest */
    int *order;                    /* indices of ranks */
    int ngroups, noutliers, nunread;
    struct ft_stack_shared shared[FT_STACKS_SHARED]; /* the smallest first */
    int nshared;
    int leave_out; /* index into shared: what to leave out for isolation; -1: none */
};

/* Groups the ranks by the stacks of the tool that told most of them, or if that is not more than
 * half, by what the kernel shows; a stopped process is a stack of its own. A group is an outlier if
 * it would be at most half as large as the largest one even with all ranks that could not be read;
 * and only if all outliers are fewer than half of the ranks compared. If there are several
 * outliers, finds the communicators that they share: one with more than half of the ranks is not
 * left out. Cost: sorting. FT_NOMEM: nothing was found. */
int ft_stacks_group(struct ft_stacks *, const struct ft_snapshot *);
void ft_stacks_free(struct ft_stacks *);

/* The compared stack of a rank; NULL: it has none. */
const struct ft_stack *ft_stacks_of(const struct ft_stacks *, int rank);

/* Adds to the chain of a verdict where its culprits are, and what their children do. */
void ft_stacks_explain(const struct ft_stacks *, struct ft_verdict *);

#define FT_STACKS_EVIDENCE 16
/* The same for programs: writes at most `capacity`, returns their number. */
int ft_stacks_evidence(const struct ft_stacks *, const struct ft_verdict *, struct ft_evidence *out,
                       int capacity);

/* One object; docs/diagnosis.md describes it. */
void ft_stacks_json(struct ft_text *out, const char *key, const struct ft_stacks *);

#endif

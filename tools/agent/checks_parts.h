/*
 * What the files of the checks share. A family of checks reads its counters at every look, and
 * judges values by their limits.
 */
#ifndef FT_AGENT_CHECKS_PARTS_H
#define FT_AGENT_CHECKS_PARTS_H

#include "checks.h"

#define CHECKS_MOST 64
#define COUNTERS_MOST 512

/* A value above them is one. bad 0: it is never bad. */
struct check_limit {
    double warn, bad;
};

struct counter {
    uint64_t key; /* 0: free */
    uint64_t base, middle, base_ns, middle_ns;
};

struct checks {
    char root[200], state[300];
    double interval_s;
    struct check list[CHECKS_MOST];
    int n;
    struct counter counter[COUNTERS_MOST];
    uint64_t now_ns;
    /* The clock: its offset at the last look, and its last step. */
    int64_t clock_offset_ns;
    double clock_step_s;
    uint64_t clock_step_ns;
    bool clock_begun;
    uint64_t throttles;      /* of the processors that are being visited */
    struct check_gpus *gpus; /* NULL: none */
    bool gpus_tried;
};

/* A file below the root as text, without the last newline. False: it cannot be read. */
bool check_read(const struct checks *, char *text, size_t bytes, const char *fmt, ...)
    FT_PRINTF(4, 5);
/* A file that begins with a number. */
bool check_read_number(const struct checks *, uint64_t *out, const char *fmt, ...) FT_PRINTF(3, 4);
/* The number after a word at the beginning of a line, as in memory.events. False: none. */
bool check_find_number(const char *text, const char *word, uint64_t *out);
/* How much a counter has grown in the last one or two windows, and their length. A window is so
 * many intervals. A counter that went back has begun anew. */
uint64_t check_growth(struct checks *, const char *name, uint64_t value, int window,
                      double *seconds);
/* Adds a check. The format is that of its sentence. */
void check_judge(struct checks *, const char *name, double value, struct check_limit limit,
                 const char *fmt, ...) FT_PRINTF(5, 6);
/* Calls visit() for the names in a folder below the root, without those that begin with a dot. */
typedef void check_visit(struct checks *, const char *name);
void check_each(struct checks *, const char *folder, check_visit *visit);

/* Families. pids: of the ranks of the host. */
void check_network(struct checks *);
void check_processors(struct checks *, const int *pids, int npids);
void check_memory(struct checks *, const int *pids, int npids);
void check_disks(struct checks *);
void check_clock(struct checks *);
void check_errors(struct checks *);
void check_gpus(struct checks *);
void check_gpus_close(struct checks *);
/* The control group of a process, as a path below the root's /sys/fs/cgroup. */
bool check_cgroup(const struct checks *, int pid, char *path, size_t bytes);
/* Calls visit() for the control groups of ranks, each once, at most 16. */
void check_each_cgroup(struct checks *, const int *pids, int npids, check_visit *visit);

#endif

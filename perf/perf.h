/*
 * The perf programs. Each has nccl-tests' options and table for one collective. A program is a
 * struct perf_op and a call of perf_main(); everything else is shared. Ranks are numbered by
 * process, then by thread, then by buffer pair in the thread (which the options call "GPU").
 */
#ifndef FT_PERF_H
#define FT_PERF_H

#include "api.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#define PERF_PRINTF(f, a) __attribute__((format(printf, f, a)))

enum { PERF_OK = 0, PERF_FAILED = 1, PERF_USAGE = 2, PERF_NOT_HERE = 3 }; /* exit statuses */

/* ---- options.c ------------------------------------------------------------------------------- */

#define PERF_ALL (-1)
#define PERF_MULSUM CCL(NumOps) /* means an operator made by RedOpCreatePreMulSum */

struct perf_options {
    int nthreads, ngpus;
    size_t min_bytes, max_bytes, step_bytes;
    long step_factor; /* used if over 1; else step_bytes */
    int iters, agg_iters, warmup_iters, run_cycles, check;
    int op, type, root; /* or PERF_ALL */
    int memory;         /* enum api_memory */
    int parallel_init, blocking, stream_null, timeout_s, cudagraph, report_cputime,
        report_timestamps, average;
    int local_register, cta_policy, device_impl, device_ctas, memory_report, path_report, unalign,
        per_iter, per_iter_skip;
    const char *output_file;
};

/* Returns 0, or the exit status plus 1 after it has printed the reason (--help: to stdout). */
int perf_options_parse(struct perf_options *o, int argc, char **argv);

/* ---- types.c --------------------------------------------------------------------------------- */

size_t perf_type_size(int type);
const char *perf_type_name(int type);
int perf_type_find(const char *name); /* accepts names of C types too; -2: unknown */
const char *perf_op_name(int op);
int perf_op_find(const char *name);
bool perf_type_is_float(int type);
bool perf_type_is_signed(int type);
/* bits of the significand, including the hidden bit; floats only */
int perf_type_digits(int type);
uint64_t perf_float_bits(int type, double value); /* rounded to nearest even; e4m3 saturates */

/* ---- operations ------------------------------------------------------------------------------ */

/* Lengths in elements. In place, the send (or receive) buffer of rank r begins offset * r elements
 * into the other buffer. */
struct perf_layout {
    size_t send, recv, param; /* param: the count argument of the call */
    size_t send_inplace, recv_inplace;
};

struct perf_call {
    const char *send;
    char *recv;
    size_t count, type_size;
    CCL(DataType_t) type;
    CCL(RedOp_t) op;
    int root, rank, nranks;
    CCL(Comm_t) comm;
    api_stream stream;
};

/* A part of a rank's expected result: `count` elements from recvbuff[at]. They are either the
 * reduction over all ranks' inputs from element `from`, or a copy of the input of rank `source`. */
struct perf_block {
    size_t at, from, count;
    int source; /* -1: reduced */
};

struct perf_op {
    const char *name;
    bool reduces, rooted, in_place; /* in_place: it has an in-place form */
    bool power_of_two;              /* needs 2^k ranks */
    void (*layout)(struct perf_layout *l, size_t count, size_t type_size, int nranks);
    /* number of steps; NULL: 1. Steps depend on each other and never share a group. */
    int (*nsteps)(int nranks);
    CCL(Result_t) (*run)(const struct perf_call *c, int step);
    /* Returns the number of blocks that a rank expects; block i is written to *b. c gives rank,
     * nranks, root, count and type_size. */
    int (*nblocks)(const struct perf_call *c);
    void (*block)(const struct perf_call *c, int i, struct perf_block *b);
    /* As in nccl-tests: the bytes that count for algbw, and the ratio busbw / algbw. */
    double (*alg_bytes)(const struct perf_call *c, const struct perf_layout *l);
    double (*bus_factor)(int nranks);
};

int perf_main(const struct perf_op *op, int argc, char **argv);

/* layouts.c: shapes that several operations share */
/* `count` elements on every rank */
void perf_layout_same(struct perf_layout *l, size_t count, size_t type_size, int nranks);
/* one block in, nranks blocks out */
void perf_layout_gather(struct perf_layout *l, size_t count, size_t type_size, int nranks);
/* nranks blocks in, one block out */
void perf_layout_scatter(struct perf_layout *l, size_t count, size_t type_size, int nranks);
/* nranks blocks in and out */
void perf_layout_all(struct perf_layout *l, size_t count, size_t type_size, int nranks);
int perf_one_block(const struct perf_call *c);
int perf_every_block(const struct perf_call *c);
void perf_block_reduced(const struct perf_call *c, int i, struct perf_block *b);
/* block i: rank i's whole input */
void perf_block_of_rank(const struct perf_call *c, int i, struct perf_block *b);
/* count * type size */
double perf_bytes_call(const struct perf_call *c, const struct perf_layout *l);
/* nranks times that */
double perf_bytes_all(const struct perf_call *c, const struct perf_layout *l);
double perf_factor_one(int nranks);
double perf_factor_others(int nranks); /* (n-1)/n */

/* ---- launch.c, bootstrap.c ------------------------------------------------------------------- */

struct perf_launch {
    const char *how; /* the launcher, for messages */
    int nprocs, proc;
    int local_procs; /* processes of the job on this machine; 0: unknown */
};

/* Returns 0, or -1 after a message if the environment is contradictory. */
int perf_launch_find(struct perf_launch *l);
/* perf_bootstrap_id() gives all processes the same id, or returns -1 after a message.
 * perf_bootstrap_done(): all processes have it. */
int perf_bootstrap_id(const struct perf_launch *l, CCL(UniqueId) * id);
void perf_bootstrap_done(void);

/* ---- team.c: the ranks of this process ------------------------------------------------------- */

struct perf_rank {
    int rank;
    CCL(Comm_t) comm;
    api_stream stream;
    char *send, *recv;
    void *control; /* PERF_REDUCE_MAX doubles, for perf_reduce() */
    void *send_handle, *recv_handle;
    CCL(RedOp_t) mulsum;
};

struct perf_team {
    const struct perf_options *o;
    const struct perf_op *op;
    struct perf_launch launch;
    int nranks, nlocal; /* ranks of the communicator; ranks of this process */
    struct perf_rank *local;
    size_t max_bytes, buffer_bytes;
    CCL(UniqueId) id;
    double *shared; /* [nthreads][PERF_REDUCE_MAX]: for reductions between threads */
    pthread_barrier_t barrier;
    char *paths;             /* of all ranks, in the writer's process; NULL: not asked for */
    struct meeting *meeting; /* barrier of the processes, if FTCCL_PERF_MEET names one */
};

/* Ends the process with a message about the rank; peers see it as lost. Any thread may call it. */
void perf_die(const struct perf_rank *r, const char *what, CCL(Result_t) result)
    __attribute__((noreturn));
static inline void perf_must(const struct perf_rank *r, const char *what, CCL(Result_t) result)
{
    if (result != CCL(Success))
        perf_die(r, what, result);
}
/* Numbers the ranks and gets the unique id. Returns -1 after a message. */
int perf_team_open(struct perf_team *t, const struct perf_options *o, const struct perf_op *op);
/* makes the communicators and streams of a thread; -1: of all threads */
void perf_team_init(struct perf_team *t, int thread);
/* allocates buffers after all have agreed on max_bytes; every thread calls it */
void perf_team_buffers(struct perf_team *t, int thread);
/* prints the table's lines about ranks; every thread calls it */
void perf_team_report(struct perf_team *t, int thread);
/* Gets a line for each connection of each rank to another host; every thread calls it. */
void perf_team_paths(struct perf_team *t, int thread);
void perf_team_close(struct perf_team *t);

#define PERF_REDUCE_MAX 4096
enum perf_reduce { PERF_RANK0, PERF_AVG, PERF_MIN, PERF_MAX, PERF_SUM };
/* Reduces over all threads of all processes; every thread calls it. n <= PERF_REDUCE_MAX. It is
 * also a barrier. */
void perf_reduce(struct perf_team *t, int thread, double *values, int n, enum perf_reduce how);
void perf_barrier(struct perf_team *t, int thread);
/* a barrier between timed calls; uses `meeting` if there is one */
void perf_meet(struct perf_team *t, int thread);

/* ---- verify.c -------------------------------------------------------------------------------- */

/* Input of `rank`, elements [from, from + count). Any order of reduction gives the same result. */
struct perf_data {
    int type, op, nranks;
    uint64_t rep;
};
void perf_data_input(const struct perf_data *d, int rank, bool reduced, size_t from, size_t count,
                     void *out);
void perf_data_reduced(const struct perf_data *d, size_t from, size_t count, void *out);
/* the scalar of mulsum, encoded in the type */
uint64_t perf_data_scalar(const struct perf_data *d, int rank);
/* Number of elements of `got` that differ from `want`. Averages that must be rounded may differ in
 * the last place. */
size_t perf_data_compare(const struct perf_data *d, bool reduced, const void *got, const void *want,
                         size_t count);

/* bytes after the used part of each buffer, which are checked with the data */
#define PERF_GUARD_BYTES 64
struct perf_buffers {
    char *send, *recv; /* the arguments of the call */
    /* the receive buffer, and the first byte after the part that an operation may write */
    char *base, *end;
    bool in_place;
};
void perf_verify_fill(const struct perf_op *op, const struct perf_call *c,
                      const struct perf_layout *l, const struct perf_data *d,
                      const struct perf_buffers *b);
size_t perf_verify_check(const struct perf_op *op, const struct perf_call *c,
                         const struct perf_layout *l, const struct perf_data *d,
                         const struct perf_buffers *b);

/* ---- run.c, table.c, json.c ------------------------------------------------------------------ */

struct perf_stats {
    double min, max, avg, p50, p95, p99, stdev;
};

struct perf_result {
    double time_s, alg_bw, bus_bw;
    double wrong;         /* negative: not checked */
    const double *iter_s; /* with -I: seconds of each iteration, the slowest rank's */
    struct perf_stats stats;
};

/* Runs all sizes for one type, operator and root; every thread calls it. Thread 0 of process 0 gets
 * the sums. */
struct perf_totals {
    double wrong, bus_bw;
    int nlines;
};
void perf_run(struct perf_team *t, int thread, int type, int op, int root,
              struct perf_totals *totals);

bool perf_is_writer(const struct perf_team *t, int thread);
void perf_table_open(const struct perf_team *t, int argc, char **argv);
void perf_table_rank(int rank, const char *line); /* line: "PID HOST" */
void perf_table_header(const struct perf_team *t);
void perf_table_line(const struct perf_team *t, size_t bytes, size_t count, int type, int op,
                     int root);
/* r NULL: the operation has no such form */
void perf_table_body(const struct perf_team *t, const struct perf_result *r, bool out_of_place);
void perf_table_end(const struct perf_team *t);
/* before an error, by any thread of any process: ends a line that is begun */
void perf_table_break(void);
void perf_table_close(const struct perf_team *t, const struct perf_totals *totals, double min_bw);

/* A JSON writer: a value follows the last key or list element. All functions are no-ops if no file
 * is open. */
int perf_json_open(const char *path);
void perf_json_close(void);
void perf_json_key(const char *name);
void perf_json_open_object(void);
void perf_json_open_list(void);
void perf_json_end(void); /* ends the innermost object or list */
void perf_json_str(const char *text);
void perf_json_num(double value);
void perf_json_int(long long value);
void perf_json_bool(bool value);
void perf_json_null(void);

#endif

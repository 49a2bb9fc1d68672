/*
 * The ranks of this process, with their communicators, streams and buffers, and reductions of small
 * numbers over all threads of all processes. Each thread owns its ranks from init to close. Data
 * that threads share is written by one thread between two barriers.
 */
#include "meet.h"
#include "perf.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#define LINE_BYTES 128
#define PATHS_BYTES 32768 /* of a process; what is longer is cut */

/* What to print so that the next word begins a line of the terminal, wherever its cursor is: spaces
 * for a whole line less one end in the next line, unless this one was empty. */
static int spaces_to_new_line(void)
{
    struct winsize size;
    return ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 1 ? size.ws_col - 1 : 0;
}

void perf_die(const struct perf_rank *r, const char *what, CCL(Result_t) result)
{
    /* never released, so that only the first error is printed */
    static pthread_mutex_t once = PTHREAD_MUTEX_INITIALIZER;
    pthread_mutex_lock(&once);
    const char *why = CCL(GetLastError)(NULL);
    if (!why || !*why)
        why = r && r->comm ? CCL(GetLastError)(r->comm) : "";
    perf_table_break();
    int spaces = spaces_to_new_line();
    fprintf(stderr, "%*s%srank %d: %s: %s%s%s\n", spaces, "", spaces ? "\r" : "", r ? r->rank : -1,
            what, CCL(GetErrorString)(result), *why ? ": " : "", why);
    _exit(PERF_FAILED);
}

int perf_team_open(struct perf_team *t, const struct perf_options *o, const struct perf_op *op)
{
    t->o = o;
    t->op = op;
    t->nlocal = o->nthreads * o->ngpus;
    t->nranks = t->launch.nprocs * t->nlocal;
    t->max_bytes = o->max_bytes;
    t->local = calloc((size_t)t->nlocal, sizeof *t->local);
    t->shared = calloc((size_t)o->nthreads * PERF_REDUCE_MAX, sizeof *t->shared);
    if (!t->local || !t->shared || pthread_barrier_init(&t->barrier, NULL, (unsigned)o->nthreads)) {
        fprintf(stderr, "out of memory\n");
        return -1;
    }
    for (int i = 0; i < t->nlocal; i++)
        t->local[i].rank = t->launch.proc * t->nlocal + i;
    if (perf_bootstrap_id(&t->launch, &t->id))
        return -1;
    return t->launch.nprocs > 1 ? meeting_join(&t->meeting, t->launch.nprocs) : 0;
}

/* Returns the ranks of a thread: *first, and their number. */
static int thread_ranks(const struct perf_team *t, int thread, struct perf_rank **first)
{
    *first = t->local + (thread < 0 ? 0 : thread * t->o->ngpus);
    return thread < 0 ? t->nlocal : t->o->ngpus;
}

void perf_team_init(struct perf_team *t, int thread)
{
    struct perf_rank *r;
    int n = thread_ranks(t, thread, &r);
    CCL(Config_t) config = CCL_CONFIG_INITIALIZER;
    api_config_timeout(&config, t->o->timeout_s);
    if (t->o->cta_policy >= 0)
        config.CTAPolicy = t->o->cta_policy;
    if (n > 1)
        perf_must(r, "GroupStart", CCL(GroupStart)());
    for (int i = 0; i < n; i++)
        perf_must(&r[i], "CommInitRankConfig",
                  CCL(CommInitRankConfig)(&r[i].comm, t->nranks, t->id, r[i].rank, &config));
    if (n > 1)
        perf_must(r, "init", CCL(GroupEnd)());
    for (int i = 0; i < n; i++) {
        if (!t->o->stream_null)
            perf_must(&r[i], "StreamCreate", api_stream_create(&r[i].stream));
        perf_must(&r[i], "MemAlloc",
                  api_mem_alloc(&r[i].control, PERF_REDUCE_MAX * sizeof(double)));
    }
}

/* Writes the buffer once, so that no page is the system's shared page of zeros. */
static void touch(char *buffer, size_t bytes)
{
    static const char zeros[65536];
    for (size_t at = 0; at < bytes; at += sizeof zeros)
        api_mem_write(buffer + at, zeros, bytes - at < sizeof zeros ? bytes - at : sizeof zeros);
}

/* Bytes of free memory for buffers on this machine, which its processes share; a huge value if
 * unknown. */
static double free_bytes(const struct perf_team *t)
{
    double kib = api_gpu_bytes() / 1024;
    char line[128];
    FILE *file = kib > 0 ? NULL : fopen("/proc/meminfo", "re");
    while (file && fgets(line, sizeof line, file))
        if (sscanf(line, "MemAvailable: %lf", &kib) == 1)
            break;
    if (file)
        fclose(file);
    int sharers = t->launch.local_procs ? t->launch.local_procs : t->launch.nprocs;
    return kib > 0 ? kib * 1024 * 0.9 / sharers : 1e18;
}

static void agree_max_bytes(struct perf_team *t, int thread)
{
    double most = floor(free_bytes(t) / (2.0 * t->nlocal) / 4096) * 4096;
    perf_reduce(t, thread, &most, 1, PERF_MIN);
    if (most < (double)t->o->max_bytes) {
        if (perf_is_writer(t, thread))
            printf("#\n# Reducing maxBytes to %.0f due to memory limitation\n", most);
        if (thread == 0)
            t->max_bytes = (size_t)most;
    }
    perf_barrier(t, thread); /* after it max_bytes is the same for all threads */
}

void perf_team_buffers(struct perf_team *t, int thread)
{
    struct perf_rank *r;
    int n = thread_ranks(t, thread, &r);
    agree_max_bytes(t, thread);
    size_t bytes = t->max_bytes + (size_t)t->o->unalign * 8 + PERF_GUARD_BYTES;
    if (thread == 0)
        t->buffer_bytes = bytes;
    for (int i = 0; i < n; i++) {
        perf_must(&r[i], "memory",
                  api_buffer_alloc((void **)&r[i].send, bytes, t->o->local_register));
        perf_must(&r[i], "memory",
                  api_buffer_alloc((void **)&r[i].recv, bytes, t->o->local_register));
        touch(r[i].send, bytes);
        touch(r[i].recv, bytes);
        if (!t->o->local_register)
            continue;
        perf_must(&r[i], "CommRegister",
                  CCL(CommRegister)(r[i].comm, r[i].send, bytes, &r[i].send_handle));
        perf_must(&r[i], "CommRegister",
                  CCL(CommRegister)(r[i].comm, r[i].recv, bytes, &r[i].recv_handle));
    }
}

void perf_team_close(struct perf_team *t)
{
    for (int i = 0; i < t->nlocal; i++) {
        struct perf_rank *r = &t->local[i];
        if (r->send_handle)
            CCL(CommDeregister)(r->comm, r->send_handle);
        if (r->recv_handle)
            CCL(CommDeregister)(r->comm, r->recv_handle);
    }
    CCL(GroupStart)(); /* without a group each would wait for the next one */
    for (int i = 0; i < t->nlocal; i++)
        if (t->local[i].comm)
            CCL(CommDestroy)(t->local[i].comm);
    CCL(GroupEnd)();
    for (int i = 0; i < t->nlocal; i++) {
        struct perf_rank *r = &t->local[i];
        api_stream_destroy(r->stream);
        api_buffer_free(r->send, t->o->local_register);
        api_buffer_free(r->recv, t->o->local_register);
        api_mem_free(r->control);
    }
    pthread_barrier_destroy(&t->barrier);
    meeting_leave(t->meeting);
    free(t->shared);
    free(t->local);
}

/* ---- reductions of small numbers ------------------------------------------------------------- */

static double combine(double a, double b, enum perf_reduce how)
{
    if (how == PERF_MIN)
        return b < a ? b : a;
    if (how == PERF_MAX)
        return b > a ? b : a;
    return a + b;
}

/* Reduces over processes with the communicator itself: the process's first rank contributes the
 * values, its other ranks nothing. */
static void reduce_processes(struct perf_team *t, int thread, double *values, int n,
                             enum perf_reduce how)
{
    struct perf_rank *r;
    int nranks = thread_ranks(t, thread, &r);
    double nothing = how == PERF_MIN ? INFINITY : how == PERF_MAX ? -INFINITY : 0;
    double mine[PERF_REDUCE_MAX];
    CCL(RedOp_t) op = how == PERF_MIN ? CCL(Min) : how == PERF_MAX ? CCL(Max) : CCL(Sum);
    size_t bytes = (size_t)n * sizeof *mine;
    for (int i = 0; i < nranks; i++) {
        bool brings = thread == 0 && i == 0 && (how != PERF_RANK0 || t->launch.proc == 0);
        for (int k = 0; k < n; k++)
            mine[k] = brings ? values[k] : nothing;
        api_mem_write(r[i].control, mine, bytes);
    }
    if (nranks > 1)
        perf_must(r, "GroupStart", CCL(GroupStart)());
    for (int i = 0; i < nranks; i++)
        perf_must(&r[i], "AllReduce of times",
                  CCL(AllReduce)(r[i].control, r[i].control, (size_t)n, CCL(Float64), op, r[i].comm,
                                 r[i].stream));
    if (nranks > 1)
        perf_must(r, "GroupEnd", CCL(GroupEnd)());
    for (int i = 0; i < nranks; i++)
        perf_must(&r[i], "AllReduce of times", api_stream_sync(r[i].comm, r[i].stream));
    api_mem_read(values, r[0].control, bytes);
}

void perf_reduce(struct perf_team *t, int thread, double *values, int n, enum perf_reduce how)
{
    memcpy(t->shared + (size_t)thread * PERF_REDUCE_MAX, values, (size_t)n * sizeof *values);
    pthread_barrier_wait(&t->barrier);
    for (int k = 0; k < n; k++) {
        values[k] = t->shared[k];
        for (int i = 1; how != PERF_RANK0 && i < t->o->nthreads; i++)
            values[k] = combine(values[k], t->shared[(size_t)i * PERF_REDUCE_MAX + (size_t)k], how);
    }
    pthread_barrier_wait(&t->barrier); /* all threads have read the values */
    if (t->launch.nprocs > 1)
        reduce_processes(t, thread, values, n, how);
    if (how == PERF_AVG)
        for (int k = 0; k < n; k++)
            values[k] /= t->launch.nprocs * t->o->nthreads;
}

void perf_barrier(struct perf_team *t, int thread)
{
    double nothing = 0;
    perf_reduce(t, thread, &nothing, 1, PERF_MAX);
}

/* A barrier of one thread would be a system call all the same, at the begin of a call's time. */
static void threads_meet(struct perf_team *t)
{
    if (t->o->nthreads > 1)
        pthread_barrier_wait(&t->barrier);
}

void perf_meet(struct perf_team *t, int thread)
{
    if (!t->meeting) {
        perf_barrier(t, thread);
        return;
    }
    threads_meet(t);
    if (thread == 0)
        meeting_wait(t->meeting);
    threads_meet(t);
}

/* ---- report of the ranks --------------------------------------------------------------------- */

/* All ranks' texts of so many bytes, in the memory of each rank of this thread. */
static void gather(struct perf_rank *r, int n, size_t bytes, void **all)
{
    if (n > 1)
        perf_must(r, "GroupStart", CCL(GroupStart)());
    for (int i = 0; i < n; i++)
        perf_must(&r[i], "AllGather of texts",
                  CCL(AllGather)((char *)all[i] + (size_t)r[i].rank * bytes, all[i], bytes,
                                 CCL(Int8), r[i].comm, r[i].stream));
    if (n > 1)
        perf_must(r, "GroupEnd", CCL(GroupEnd)());
    for (int i = 0; i < n; i++)
        perf_must(&r[i], "AllGather of texts", api_stream_sync(r[i].comm, r[i].stream));
}

typedef void take_text(struct perf_team *t, int rank, const char *text);

static void take_all(struct perf_team *t, void *all, size_t bytes, take_text *take)
{
    char *line = malloc(bytes);
    for (int i = 0; line && i < t->nranks; i++) {
        api_mem_read(line, (char *)all + (size_t)i * bytes, bytes);
        line[bytes - 1] = '\0';
        take(t, i, line);
    }
    free(line);
}

/* Gathers a text of each rank, and thread 0 of process 0 takes those of all in turn. */
static void report(struct perf_team *t, int thread, const char *text, size_t bytes, take_text *take)
{
    struct perf_rank *r;
    int n = thread_ranks(t, thread, &r);
    void **all = calloc((size_t)n, sizeof *all);
    if (!all)
        perf_die(r, "memory", CCL(SystemError));
    for (int i = 0; i < n; i++) {
        perf_must(&r[i], "MemAlloc", api_mem_alloc(&all[i], (size_t)t->nranks * bytes));
        api_mem_write((char *)all[i] + (size_t)r[i].rank * bytes, text, bytes);
    }
    gather(r, n, bytes, all);
    if (perf_is_writer(t, thread))
        take_all(t, all[0], bytes, take);
    for (int i = 0; i < n; i++)
        api_mem_free(all[i]);
    free(all);
}

static void print_rank(struct perf_team *t, int rank, const char *line)
{
    (void)t;
    perf_table_rank(rank, line);
}

void perf_team_report(struct perf_team *t, int thread)
{
    char line[LINE_BYTES] = "", host[64] = "";
    gethostname(host, sizeof host - 1);
    snprintf(line, sizeof line, "%d %s", getpid(), host);
    report(t, thread, line, sizeof line, print_rank);
}

/* All ranks of a thread have the same text. */
static void keep_paths(struct perf_team *t, int rank, const char *text)
{
    const size_t have = t->paths ? strlen(t->paths) : 0, more = strlen(text);
    char *grown = rank % t->nlocal == 0 ? realloc(t->paths, have + more + 1) : NULL;
    if (!grown)
        return;
    memcpy(grown + have, text, more + 1);
    t->paths = grown;
}

void perf_team_paths(struct perf_team *t, int thread)
{
    char *text = calloc(1, PATHS_BYTES);
    if (!text)
        perf_die(t->local, "memory", CCL(SystemError));
    FILE *out = thread == 0 ? fmemopen(text, PATHS_BYTES, "w") : NULL;
    if (out) {
        api_print_connections(out);
        fclose(out);
    }
    report(t, thread, text, PATHS_BYTES, keep_paths);
    free(text);
}

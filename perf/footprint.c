/*
 * Measures what a communicator costs before it is used: the time to set it up, and its memory.
 * Ranks are processes, or threads of one process (-t).
 *   footprint [-t] [-n RANKS] [-k ROUNDS] [-b BYTES]
 *     prints the times of ROUNDS set-ups: until the slowest rank has its communicator, and until
 *     it has completed its first all-reduce.
 *   footprint -w ...
 *     stops at stages, so that perf/scaling can examine the processes: it prints "at STAGE PID..."
 *     and goes on when it reads a line. Stages: before, made, small (all-reduce of 8 bytes), large
 *     (of BYTES), crossed (all-to-all of BYTES). The buffers exist from the first stage on.
 */
#include "rounds.h"

#include <ftccl.h>

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define RANKS_MAX 256
#define ROUNDS_MAX 1000

static struct {
    int n, rounds;
    size_t bytes;
    bool threads, stages;
} want = {8, 7, 16 << 20, false, false};

/* Shared by all ranks. */
struct shared {
    pthread_barrier_t barrier;
    atomic_int wrong;
    ftcclUniqueId id;
    double begin_ms, made_ms[RANKS_MAX], used_ms[RANKS_MAX]; /* of one round */
    double round_made_ms[ROUNDS_MAX], round_used_ms[ROUNDS_MAX];
};
static struct shared *shared;
static pid_t pids[RANKS_MAX];

static void must(ftcclResult_t result, const char *what)
{
    if (result == ftcclSuccess)
        return;
    fprintf(stderr, "%s: %s: %s\n", what, ftcclGetErrorString(result), ftcclGetLastError(NULL));
    atomic_store(&shared->wrong, 1);
    exit(1);
}

static void meet(void)
{
    pthread_barrier_wait(&shared->barrier);
}

struct rank {
    int rank;
    ftcclComm_t comm;
    ftcclStream_t stream;
    float *send, *recv;
};

static void reduce(struct rank *r, size_t bytes)
{
    must(ftcclAllReduce(r->send, r->recv, bytes / sizeof *r->send, ftcclFloat, ftcclSum, r->comm,
                        r->stream),
         "AllReduce");
    must(ftcclStreamSynchronize(r->stream), "AllReduce");
}

static void cross(struct rank *r)
{
    must(ftcclAlltoAll(r->send, r->recv, want.bytes / sizeof *r->send / (size_t)want.n, ftcclFloat,
                       r->comm, r->stream),
         "AlltoAll");
    must(ftcclStreamSynchronize(r->stream), "AlltoAll");
}

static void open_comm(struct rank *r)
{
    if (r->rank == 0)
        must(ftcclGetUniqueId(&shared->id), "GetUniqueId");
    meet();
    if (r->rank == 0)
        shared->begin_ms = now_ms();
    meet();
    must(ftcclCommInitRank(&r->comm, want.n, shared->id, r->rank), "CommInitRank");
}

static double latest(const double *at)
{
    double most = 0;
    for (int i = 0; i < want.n; i++)
        most = at[i] > most ? at[i] : most;
    return most - shared->begin_ms;
}

static void time_rounds(struct rank *r)
{
    for (int i = 0; i < want.rounds; i++) {
        open_comm(r);
        shared->made_ms[r->rank] = now_ms();
        reduce(r, sizeof *r->send);
        shared->used_ms[r->rank] = now_ms();
        meet();
        if (r->rank == 0) {
            shared->round_made_ms[i] = latest(shared->made_ms);
            shared->round_used_ms[i] = latest(shared->used_ms);
        }
        must(ftcclCommDestroy(r->comm), "CommDestroy");
    }
}

/* A stage: all ranks wait, so that others can examine them. Rank 0 is in the first process, which
 * has the list. */
static void stage(const struct rank *r, const char *name)
{
    meet();
    if (r->rank == 0) {
        printf("at %s", name);
        for (int i = 0; i < (want.threads ? 1 : want.n); i++)
            printf(" %d", (int)pids[i]);
        putchar('\n');
        fflush(stdout);
        while (getchar() > '\n') {}
    }
    meet();
}

static void show_stages(struct rank *r)
{
    stage(r, "before");
    open_comm(r);
    stage(r, "made");
    for (int i = 0; i < 100; i++)
        reduce(r, 2 * sizeof *r->send);
    stage(r, "small");
    for (int i = 0; i < 3; i++)
        reduce(r, want.bytes);
    stage(r, "large");
    for (int i = 0; i < 3; i++)
        cross(r);
    stage(r, "crossed");
    must(ftcclCommDestroy(r->comm), "CommDestroy");
}

static void *rank_main(void *arg)
{
    struct rank r = {.rank = *(int *)arg, .send = malloc(want.bytes), .recv = malloc(want.bytes)};
    if (!r.send || !r.recv)
        exit(1);
    /* with 0 the compiler would make it a calloc, which touches no memory */
    memset(r.send, 1, want.bytes);
    memset(r.recv, 1, want.bytes);
    must(ftcclStreamCreate(&r.stream), "StreamCreate");
    if (want.stages)
        show_stages(&r);
    else
        time_rounds(&r);
    must(ftcclStreamDestroy(r.stream), "StreamDestroy");
    free(r.send);
    free(r.recv);
    return NULL;
}

/* The parent is not a rank, because children would inherit its memory. Returns false if a rank
 * failed. */
static bool run(void)
{
    static int rank[RANKS_MAX];
    static pthread_t thread[RANKS_MAX];
    bool good = true;
    for (int i = 0; i < want.n; i++)
        rank[i] = i;
    for (int i = 0; i < want.n && want.threads; i++)
        good &= pthread_create(&thread[i], NULL, rank_main, &rank[i]) == 0;
    for (int i = 0; i < want.n && want.threads && good; i++)
        pthread_join(thread[i], NULL);
    /* rank 0 is started last, so it knows the process numbers of all others */
    for (int i = want.n - 1; i >= 0 && !want.threads; i--) {
        pids[i] = fork();
        if (pids[i] < 0)
            return false;
        if (pids[i] > 0)
            continue;
        pids[i] = getpid();
        rank_main(&rank[i]);
        exit(0);
    }
    for (int left = want.threads ? 0 : want.n; left > 0; left--) {
        int status;
        if (wait(&status) < 0 || status) { /* the other ranks would wait for it at the barrier */
            for (int i = 0; i < want.n; i++)
                kill(pids[i], SIGKILL);
            good = false;
        }
    }
    return good && !shared->wrong;
}

static double median(double *ms)
{
    qsort(ms, (size_t)want.rounds, sizeof *ms, ascending);
    return ms[want.rounds / 2];
}

static bool parse(int argc, char **argv)
{
    for (int option; (option = getopt(argc, argv, "twn:k:b:")) != -1;) {
        switch (option) {
        case 't':
            want.threads = true;
            break;
        case 'w':
            want.stages = true;
            break;
        case 'n':
            want.n = atoi(optarg);
            break;
        case 'k':
            want.rounds = atoi(optarg);
            break;
        case 'b':
            want.bytes = strtoull(optarg, NULL, 10);
            break;
        default:
            return false;
        }
    }
    return want.n >= 1 && want.n <= RANKS_MAX && want.rounds > 0 && want.rounds <= ROUNDS_MAX &&
           want.bytes >= 8;
}

int main(int argc, char **argv)
{
    if (!parse(argc, argv)) {
        fprintf(stderr, "usage: footprint [-t] [-w] [-n RANKS] [-k ROUNDS] [-b BYTES]\n");
        return 2;
    }
    shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (shared == MAP_FAILED)
        return 1;
    pids[0] = getpid();
    pthread_barrierattr_t between;
    pthread_barrierattr_init(&between);
    pthread_barrierattr_setpshared(&between, PTHREAD_PROCESS_SHARED);
    pthread_barrier_init(&shared->barrier, &between, (unsigned)want.n);
    if (!run())
        return 1;
    if (want.stages)
        return 0;
    printf("%d ranks as %s, median of %d: made %.2f ms, first all-reduce after %.2f ms\n", want.n,
           want.threads ? "threads" : "processes", want.rounds, median(shared->round_made_ms),
           median(shared->round_used_ms));
    return 0;
}

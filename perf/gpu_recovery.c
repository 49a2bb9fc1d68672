/*
 * Kills a rank while an all-reduce on the GPU is in flight. Measures how long the streams of the
 * others are blocked, and checks the next all-reduce of the remaining ranks.
 *   gpu_recovery release|abort|shrink [-n RANKS] [-k ROUNDS] [-b BYTES] [-s SEED]
 * The argument says what releases the streams. For release, free_ms counts from the kill. For abort
 * and shrink the streams are held until then; free_ms counts from the call of abort, or from the
 * return of shrink, by which the others have agreed on the survivors. It prints CSV, one line per
 * survivor. Status 1: a round failed, and a line on stderr says why.
 */
#include "gpu.h"

#include <ftccl.h>

#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define RANKS_MAX 16
#define WARM_UP 5
#define STEP_MS 20000 /* no step of a survivor takes longer */
#define HELD_MS 30    /* a held stream is blocked for at least this time */

static struct {
    const char *how;
    int n, rounds;
    size_t bytes;
    unsigned seed;
} want = {NULL, 3, 5, 4 << 20, 1};

struct times {
    double error, from, free, again;
    int held, right;
};
/* Shared by the processes of a round. */
static struct shared {
    _Atomic int id_is_set, warm, again_is_set;
    ftcclUniqueId id, again;
    double killed;
    int victim;
    struct times times[RANKS_MAX];
} * shared;

static float *data, *host;
static void *stream;
static int self;

static double now_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec * 1e-6;
}

static void give_up(const char *what, const char *why)
{
    fprintf(stderr, "rank %d: %s: %s\n", self, what, why);
    _Exit(1);
}

static void must(ftcclResult_t result, const char *what)
{
    if (result != ftcclSuccess)
        give_up(what, ftcclGetLastError(NULL));
}

static void wait_for(_Atomic int *what, int value)
{
    double end = now_ms() + STEP_MS;
    while (atomic_load(what) < value) {
        if (now_ms() > end)
            give_up("the other ranks", "did not come in time");
        usleep(100);
    }
}

static bool idle_within(double ms)
{
    double end = now_ms() + ms;
    while (!gpu_stream_idle(stream)) {
        if (now_ms() > end)
            return false;
        usleep(50);
    }
    return true;
}

/* ---- a rank ---------------------------------------------------------------------------------- */

static size_t count(void)
{
    return want.bytes / sizeof *data;
}

static void write_ones(void)
{
    for (size_t i = 0; i < count(); i++)
        host[i] = 1;
    gpu_copy(data, host, want.bytes);
}

/* Runs all-reduces until one fails. The result of a maximum is its input, so they follow each other
 * without a pause. */
static void reduce_until_error(ftcclComm_t comm)
{
    ftcclResult_t result = ftcclSuccess, error = ftcclSuccess;
    double end = now_ms() + STEP_MS;
    for (int i = 0; result == ftcclSuccess && error == ftcclSuccess; i++) {
        if (i == WARM_UP) {
            atomic_fetch_add(&shared->warm, 1);
            end += STEP_MS;
        }
        if (now_ms() > end)
            give_up("the kill", "nobody told of it");
        result = ftcclAllReduce(data, data, count(), ftcclFloat, ftcclMax, comm,
                                (ftcclStream_t)stream);
        while (result == ftcclSuccess && error == ftcclSuccess && !gpu_stream_idle(stream))
            must(ftcclCommGetAsyncError(comm, &error), "CommGetAsyncError");
        if (error == ftcclSuccess)
            must(ftcclCommGetAsyncError(comm, &error), "CommGetAsyncError");
    }
    shared->times[self].error = now_ms();
}

static ftcclComm_t join_anew(void)
{
    ftcclComm_t comm;
    int rank = self - (self > shared->victim), first = shared->victim == 0;
    if (self == first) {
        must(ftcclGetUniqueId(&shared->again), "GetUniqueId");
        atomic_store(&shared->again_is_set, 1);
    }
    wait_for(&shared->again_is_set, 1);
    must(ftcclCommInitRank(&comm, want.n - 1, shared->again, rank),
         "CommInitRank of those that are left");
    return comm;
}

static ftcclResult_t shrink(ftcclComm_t comm, ftcclComm_t *left)
{
    return ftcclCommShrink(comm, NULL, 0, left, NULL, FTCCL_SHRINK_ABORT);
}

static ftcclComm_t go_on(ftcclComm_t comm)
{
    struct times *t = &shared->times[self];
    ftcclComm_t left = NULL;
    bool release = !strcmp(want.how, "release"), abort = !strcmp(want.how, "abort");
    if (!release)
        t->held = !idle_within(HELD_MS);
    t->from = release ? shared->killed : now_ms();
    if (abort)
        must(ftcclCommAbort(comm), "CommAbort");
    else if (!release) {
        must(shrink(comm, &left), "CommShrink");
        t->from = now_ms();
    }
    if (!idle_within(STEP_MS))
        give_up(want.how, "the stream does not go on");
    t->free = now_ms();
    if (abort)
        return join_anew();
    if (release)
        must(shrink(comm, &left), "CommShrink");
    must(ftcclCommAbort(comm), "CommAbort");
    return left;
}

static void rank_main(int rank)
{
    ftcclComm_t comm;
    self = rank;
    setenv("FTCCL_ON_FAILURE", !strcmp(want.how, "release") ? "release" : "hold", 1);
    if (gpu_open())
        _Exit(3);
    stream = gpu_stream_create();
    data = gpu_alloc(want.bytes, false);
    host = malloc(want.bytes);
    if (!host)
        give_up("memory", "there is none");
    write_ones();
    if (rank == 0) {
        must(ftcclGetUniqueId(&shared->id), "GetUniqueId");
        atomic_store(&shared->id_is_set, 1);
    }
    wait_for(&shared->id_is_set, 1);
    must(ftcclCommInitRank(&comm, want.n, shared->id, rank), "CommInitRank");
    reduce_until_error(comm);
    struct times *t = &shared->times[rank];
    ftcclComm_t left = go_on(comm);
    write_ones();
    must(ftcclAllReduce(data, data, count(), ftcclFloat, ftcclSum, left, (ftcclStream_t)stream),
         "the next all-reduce");
    if (!idle_within(STEP_MS))
        give_up("the next all-reduce", "does not end");
    t->again = now_ms();
    gpu_copy(host, data, want.bytes);
    t->right = 1;
    for (size_t i = 0; i < count(); i++)
        t->right &= host[i] == (float)(want.n - 1);
    must(ftcclCommDestroy(left), "CommDestroy");
    _Exit(0); /* the driver is not shut down; the other ranks exit in the same way */
}

/* ---- a round --------------------------------------------------------------------------------- */

static bool has_ended(pid_t pid)
{
    siginfo_t info = {.si_pid = 0};
    return waitid(P_PID, (id_t)pid, &info, WEXITED | WNOHANG | WNOWAIT) != 0 || info.si_pid != 0;
}

/* Waits for a process, for as long as the slowest method takes, and then kills it. */
static bool ended_well(pid_t pid)
{
    int status;
    double end = now_ms() + 4 * STEP_MS;
    while (waitpid(pid, &status, WNOHANG) == 0) {
        if (now_ms() > end) {
            kill(pid, SIGKILL);
            waitpid(pid, &status, 0);
            return false;
        }
        usleep(1000);
    }
    return status == 0;
}

static bool print_round(int round)
{
    bool good = true;
    for (int r = 0; r < want.n; r++) {
        const struct times *t = &shared->times[r];
        if (r == shared->victim)
            continue;
        printf("%s,%d,%d,%.3f,%.3f,%.3f,%s,%s\n", want.how, round, r, t->error - shared->killed,
               t->free - t->from, t->again - shared->killed, t->held ? "yes" : "no",
               t->right ? "yes" : "no");
        good &= t->right;
    }
    fflush(stdout);
    return good;
}

static bool round_of(int round)
{
    pid_t pid[RANKS_MAX];
    bool good = true;
    memset(shared, 0, sizeof *shared);
    shared->victim = rand() % want.n;
    fflush(stdout);
    for (int r = 0; r < want.n; r++)
        if ((pid[r] = fork()) == 0)
            rank_main(r);
    self = -1;
    for (double end = now_ms() + 3 * STEP_MS;
         atomic_load(&shared->warm) < want.n && now_ms() < end && good;) {
        usleep(1000);
        for (int r = 0; r < want.n; r++)
            good &= !has_ended(pid[r]);
    }
    usleep((useconds_t)(rand() % 5000));
    shared->killed = now_ms();
    kill(pid[shared->victim], SIGKILL);
    good &= atomic_load(&shared->warm) == want.n;
    for (int r = 0; r < want.n; r++)
        good &= ended_well(pid[r]) || r == shared->victim;
    return good && print_round(round);
}

static bool parse(int argc, char **argv)
{
    int option;
    want.how = argc > 1 ? argv[1] : "";
    if (strcmp(want.how, "release") && strcmp(want.how, "abort") && strcmp(want.how, "shrink"))
        return false;
    while ((option = getopt(argc - 1, argv + 1, "n:k:b:s:")) != -1) {
        switch (option) {
        case 'n':
            want.n = atoi(optarg);
            break;
        case 'k':
            want.rounds = atoi(optarg);
            break;
        case 'b':
            want.bytes = strtoull(optarg, NULL, 10);
            break;
        case 's':
            want.seed = (unsigned)strtoul(optarg, NULL, 10);
            break;
        default:
            return false;
        }
    }
    return want.n >= 2 && want.n <= RANKS_MAX && want.rounds > 0 && want.bytes >= sizeof *data;
}

int main(int argc, char **argv)
{
    if (!parse(argc, argv)) {
        fprintf(stderr, "usage: gpu_recovery release|abort|shrink [-n RANKS] [-k ROUNDS] [-b "
                        "BYTES] [-s SEED]\n");
        return 2;
    }
    srand(want.seed);
    shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (shared == MAP_FAILED)
        return 1;
    int failed = 0;
    printf("how,round,rank,error_ms,free_ms,again_ms,held,right\n");
    for (int i = 0; i < want.rounds; i++) {
        if (round_of(i))
            continue;
        fprintf(stderr, "round %d of seed %u failed\n", i, want.seed);
        failed = 1;
    }
    return failed;
}

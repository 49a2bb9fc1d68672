/*
 * Measures how long a failure, and a replacement, delay the other ranks. Ranks are processes that
 * reduce in a loop.
 *   recovery kill [-n RANKS] [-k ROUNDS] [-b BYTES] [-g GIB]
 *     One rank is killed (it has GIB of memory in use). Times from the kill until the last
 *     survivor had the error, had shrunk, and had completed its next all-reduce.
 *   recovery grow [-n RANKS] [-k ROUNDS] [-b BYTES]
 *     One rank joins RANKS others. Time in which these do not reduce.
 * It prints median, 99th percentile and maximum over the rounds, of the slowest rank in each round.
 * -s sets the seed.
 */
#include "rounds.h"

#include <ftccl.h>

#include <math.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define RANKS_MAX 64
#define ROUNDS_MAX 10000
#define WARM_UP 20 /* all-reduces before anything happens */
#define JOINER_WAITS_US 100000

static struct {
    int n, rounds;
    size_t bytes;
    double gib;
    unsigned seed;
    bool grow;
} want = {8, 30, 1 << 20, 0, 1, false};

/* Shared by all processes of a round. */
struct shared {
    _Atomic int id_is_set, warm, wanted, joiner_waits, wrong;
    ftcclUniqueId id, grow_id;
    double killed, failed[RANKS_MAX], shrunk[RANKS_MAX], back[RANKS_MAX], paused[RANKS_MAX];
};
static struct shared *shared;

static void wait_for(_Atomic int *what, int value)
{
    while (atomic_load(what) < value)
        usleep(200);
}

static void must(ftcclResult_t result, const char *what)
{
    if (result == ftcclSuccess)
        return;
    fprintf(stderr, "%s: %s: %s\n", what, ftcclGetErrorString(result), ftcclGetLastError(NULL));
    atomic_fetch_add(&shared->wrong, 1);
    exit(1);
}

static float *data;
static ftcclStream_t stream;

/* Sums ones. Element 0 counts the ranks that want to grow, in *wants. */
static ftcclResult_t reduce(ftcclComm_t comm, int *wants)
{
    int n;
    size_t count = want.bytes / sizeof *data;
    must(ftcclCommCount(comm, &n), "CommCount");
    for (size_t i = 1; i < count; i++)
        data[i] = 1;
    data[0] = (float)*wants;
    ftcclResult_t result = ftcclAllReduce(data, data, count, ftcclFloat, ftcclSum, comm, stream);
    if (result == ftcclSuccess)
        result = ftcclStreamSynchronize(stream);
    if (result != ftcclSuccess)
        return result;
    *wants = (int)data[0];
    for (size_t i = 1; i < count; i++)
        if (data[i] != (float)n) {
            atomic_fetch_add(&shared->wrong, 1);
            break;
        }
    return result;
}

static void survive(ftcclComm_t comm, int rank)
{
    ftcclComm_t left;
    int wants = 0;
    ftcclResult_t result = ftcclSuccess;
    for (int i = 0; result == ftcclSuccess; i++) {
        if (i == WARM_UP)
            atomic_fetch_add(&shared->warm, 1);
        wants = 0;
        result = reduce(comm, &wants);
    }
    shared->failed[rank] = now_ms();
    must(ftcclCommShrink(comm, NULL, 0, &left, NULL, FTCCL_SHRINK_DEFAULT), "CommShrink");
    shared->shrunk[rank] = now_ms();
    must(reduce(left, &wants), "the all-reduce after the shrink");
    shared->back[rank] = now_ms();
    must(ftcclCommDestroy(comm), "CommDestroy");
    must(ftcclCommDestroy(left), "CommDestroy");
}

/* Rank 0 decides when to grow; all ranks see it in the result of the same all-reduce. */
static void grow(ftcclComm_t comm, int rank)
{
    ftcclComm_t more;
    int wants = 0;
    for (int i = 0; wants == 0; i++) {
        if (rank == 0 && i == WARM_UP) {
            must(ftcclCommGetUniqueId(comm, &shared->grow_id), "CommGetUniqueId");
            atomic_store(&shared->wanted, 1);
        }
        wants = rank == 0 && atomic_load(&shared->joiner_waits);
        must(reduce(comm, &wants), "AllReduce");
    }
    double start = now_ms();
    must(ftcclCommGrow(comm, want.n + 1, rank == 0 ? &shared->grow_id : NULL, -1, &more, NULL),
         "CommGrow");
    shared->shrunk[rank] = now_ms() - start;
    must(reduce(more, &wants), "the all-reduce after the grow");
    shared->paused[rank] = now_ms() - start;
    must(ftcclCommDestroy(comm), "CommDestroy");
    must(ftcclCommDestroy(more), "CommDestroy");
}

static void join(void)
{
    ftcclComm_t comm;
    int wants = 0;
    wait_for(&shared->wanted, 1);
    must(ftcclCommGrow(NULL, want.n + 1, &shared->grow_id, want.n, &comm, NULL),
         "CommGrow of the joiner");
    must(reduce(comm, &wants), "the joiner's all-reduce");
    must(ftcclCommDestroy(comm), "CommDestroy");
}

static void rank_main(int rank, bool heavy)
{
    ftcclComm_t comm;
    size_t heavy_bytes = heavy ? (size_t)(want.gib * (1 << 30)) : 0;
    if (heavy_bytes)
        memset(malloc(heavy_bytes), 1, heavy_bytes);
    data = malloc(want.bytes);
    must(ftcclStreamCreate(&stream), "StreamCreate");
    if (rank == want.n) {
        join();
        exit(0);
    }
    if (rank == 0) {
        must(ftcclGetUniqueId(&shared->id), "GetUniqueId");
        atomic_store(&shared->id_is_set, 1);
    }
    wait_for(&shared->id_is_set, 1);
    must(ftcclCommInitRank(&comm, want.n, shared->id, rank), "CommInitRank");
    if (want.grow)
        grow(comm, rank);
    else
        survive(comm, rank);
    exit(0);
}

struct times {
    double failed, shrunk, back;
};

static double latest(const double *at, int but)
{
    double most = 0;
    for (int r = 0; r < want.n; r++)
        if (r != but && at[r] > most)
            most = at[r];
    return most;
}

static bool round_of(struct times *times)
{
    pid_t pid[RANKS_MAX + 1];
    memset(shared, 0, sizeof *shared);
    int victim = want.grow ? -1 : rand() % want.n, all = want.n + want.grow;
    for (int r = 0; r < all; r++)
        if ((pid[r] = fork()) == 0)
            rank_main(r, r == victim);
    if (want.grow) {
        wait_for(&shared->wanted, 1);
        usleep(JOINER_WAITS_US); /* let the joiner reach the rendezvous while the others reduce */
        atomic_store(&shared->joiner_waits, 1);
    } else {
        wait_for(&shared->warm, want.n);
        usleep((useconds_t)(rand() % 5000));
        shared->killed = now_ms();
        kill(pid[victim], SIGKILL);
    }
    bool good = true;
    for (int r = 0; r < all; r++) {
        int status;
        waitpid(pid[r], &status, 0);
        good &= r == victim || status == 0;
    }
    double from = want.grow ? 0 : shared->killed;
    *times = (struct times){latest(shared->failed, victim) - from,
                            latest(shared->shrunk, victim) - from,
                            latest(want.grow ? shared->paused : shared->back, victim) - from};
    return good && !shared->wrong;
}

static void print(const char *what, const struct times *times, size_t field)
{
    static double sorted[ROUNDS_MAX];
    for (int i = 0; i < want.rounds; i++)
        memcpy(&sorted[i], (const char *)&times[i] + field, sizeof *sorted);
    qsort(sorted, (size_t)want.rounds, sizeof *sorted, ascending);
    printf("%-34s %9.2f %9.2f %9.2f\n", what, sorted[want.rounds / 2],
           sorted[(want.rounds - 1) * 99 / 100], sorted[want.rounds - 1]);
}

static bool parse(int argc, char **argv)
{
    int option;
    if (argc < 2 || (strcmp(argv[1], "kill") && strcmp(argv[1], "grow")))
        return false;
    want.grow = !strcmp(argv[1], "grow");
    while ((option = getopt(argc - 1, argv + 1, "n:k:b:g:s:")) != -1) {
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
        case 'g':
            want.gib = atof(optarg);
            break;
        case 's':
            want.seed = (unsigned)strtoul(optarg, NULL, 10);
            break;
        default:
            return false;
        }
    }
    return want.n >= 1 + !want.grow && want.n <= RANKS_MAX && want.rounds > 0 &&
           want.rounds <= ROUNDS_MAX && want.bytes >= 4;
}

int main(int argc, char **argv)
{
    static struct times times[ROUNDS_MAX];
    if (!parse(argc, argv)) {
        fprintf(stderr, "usage: recovery kill|grow [-n RANKS] [-k ROUNDS] [-b BYTES] [-g GIB of "
                        "the victim] [-s SEED]\n");
        return 2;
    }
    srand(want.seed);
    shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (shared == MAP_FAILED)
        return 1;
    for (int i = 0; i < want.rounds; i++)
        if (!round_of(&times[i])) {
            fprintf(stderr, "round %d of seed %u failed\n", i, want.seed);
            return 1;
        }
    printf("# %s, %d ranks, all-reduces of %zu bytes, %d rounds, seed %u; ms of the slowest rank\n",
           argv[1], want.n, want.bytes, want.rounds, want.seed);
    printf("%-34s %9s %9s %9s\n", "", "median", "p99", "max");
    if (!want.grow)
        print("killed to error", times, offsetof(struct times, failed));
    print(want.grow ? "CommGrow" : "killed to shrunk", times, offsetof(struct times, shrunk));
    print(want.grow ? "pause to next all-reduce" : "killed to next all-reduce", times,
          offsetof(struct times, back));
    if (fflush(stdout) == 0 && !ferror(stdout))
        return 0;
    fprintf(stderr, "recovery: cannot write the table\n");
    return 1;
}

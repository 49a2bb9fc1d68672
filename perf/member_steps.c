/*
 * Measures how long the death of a rank delays a job with managed membership. Replicas of several
 * ranks take steps: a view, an all-reduce across replicas, a commit in the replica. One rank is
 * killed.
 *   member_steps [-r REPLICAS] [-l RANKS OF EACH] [-t STANDBYS] [-k ROUNDS] [-b BYTES] [-s SEED]
 * It prints median, 99th percentile and maximum over the rounds of the times from the kill until
 * the last rank of the other replicas has committed its first step of a view after that; and, with
 * standbys, until the standby has committed its first step. Ranks, standbys and the coordinator are
 * processes of this machine.
 */
#include "rounds.h"

#include <ftccl.h>

#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#define MOST 128
#define ROUNDS_MAX 1000
#define WARM_UP 20 /* steps together before the kill */
#define BOUND_MS 60000

static struct {
    int replicas, local, standbys, rounds;
    size_t bytes;
    unsigned seed;
} want = {8, 2, 1, 15, 1 << 16, 1};

/* Shared by all processes. */
struct shared {
    _Atomic int served, failed, killed, warm[MOST], back[MOST];
    char coordinator[80];
    double killed_ms, back_ms[MOST];
};
static struct shared *shared;

static void must(ftcclResult_t result, const char *what)
{
    if (result == ftcclSuccess)
        return;
    fprintf(stderr, "%s: %s: %s\n", what, ftcclGetErrorString(result), ftcclGetLastError(NULL));
    atomic_store(&shared->failed, 1);
    exit(1);
}

/* ---- processes ------------------------------------------------------------------------------- */

static void serve(void)
{
    ftcclCoordinator_t coordinator;
    must(ftcclCoordinatorStart("127.0.0.1:0", shared->coordinator, sizeof shared->coordinator,
                               &coordinator),
         "CoordinatorStart");
    atomic_store(&shared->served, 1);
    for (;;)
        pause();
}

struct rank {
    ftcclMember_t member;
    ftcclStream_t stream;
    float *data;
    uint64_t step, first_epoch; /* of the view that the kill ends; 0: not known yet */
};

/* One step. True: it was committed. */
static bool take_step(struct rank *rank, ftcclView_t *view)
{
    ftcclComm_t comm;
    int commit;
    ftcclResult_t result = ftcclMemberView(rank->member, rank->step, view, &comm);
    if (result == ftcclTimeout)
        return false;
    must(result, "MemberView");
    result = ftcclAllReduce(rank->data, rank->data, want.bytes / sizeof *rank->data, ftcclFloat,
                            ftcclMax, comm, rank->stream);
    if (result == ftcclSuccess)
        result = ftcclStreamSynchronize(rank->stream);
    must(ftcclMemberCommit(rank->member, view->step, result == ftcclSuccess, &commit),
         "MemberCommit");
    if (commit)
        rank->step = view->step + 1;
    return commit;
}

/* i: its number among the processes of the round. */
static void run(int i, int round)
{
    struct rank rank = {.data = calloc(1, want.bytes)};
    char group[32], replica[32];
    bool standby = i >= want.replicas * want.local;
    snprintf(group, sizeof group, "round-%d", round);
    snprintf(replica, sizeof replica, "replica-%d", i / want.local);
    must(ftcclMemberJoin(shared->coordinator, group, standby ? NULL : replica, i % want.local,
                         want.local, NULL, &rank.member),
         "MemberJoin");
    must(ftcclStreamCreate(&rank.stream), "StreamCreate");
    for (;;) {
        ftcclView_t view = {.size = sizeof view};
        if (!take_step(&rank, &view))
            continue;
        if (!atomic_load(&shared->killed)) {
            rank.first_epoch = view.epoch;
            if (view.nranks == want.replicas)
                atomic_fetch_add(&shared->warm[i], 1);
        } else if (view.epoch != rank.first_epoch && !atomic_load(&shared->back[i])) {
            shared->back_ms[i] = now_ms();
            atomic_store(&shared->back[i], 1);
        }
    }
}

static pid_t begin(void (*what)(int, int), int i, int round)
{
    pid_t pid = fork();
    if (pid != 0)
        return pid;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (what)
        what(i, round);
    else
        serve();
    exit(0);
}

/* ---- rounds ---------------------------------------------------------------------------------- */

struct times {
    double others, standby;
};

/* Waits until each of the processes has counted so far. */
static bool all_have(const _Atomic int *count, int from, int to, int but, int value)
{
    double end = now_ms() + BOUND_MS;
    for (int i = from; i < to; i++)
        while (i / want.local != but && atomic_load(&count[i]) < value) {
            if (atomic_load(&shared->failed) || now_ms() > end)
                return false;
            usleep(500);
        }
    return true;
}

static double latest(int from, int to, int but)
{
    double most = 0;
    for (int i = from; i < to; i++)
        if (i / want.local != but && shared->back_ms[i] > most)
            most = shared->back_ms[i];
    return most - shared->killed_ms;
}

static bool measure(const pid_t *pid, struct times *times)
{
    int ranks = want.replicas * want.local, victim = rand() % ranks, hit = victim / want.local;
    if (!all_have(shared->warm, 0, ranks, -1, WARM_UP))
        return false;
    usleep((useconds_t)(rand() % 5000));
    atomic_store(&shared->killed, 1); /* the next view comes after it */
    shared->killed_ms = now_ms();
    kill(pid[victim], SIGKILL);
    if (!all_have(shared->back, 0, ranks, hit, 1))
        return false;
    times->others = latest(0, ranks, hit);
    if (want.standbys == 0)
        return true;
    double end = now_ms() + BOUND_MS;
    int at = ranks;
    while (!atomic_load(&shared->back[at]) && now_ms() < end) {
        at = at + 1 < ranks + want.standbys ? at + 1 : ranks;
        usleep(500);
    }
    times->standby = shared->back_ms[at] - shared->killed_ms;
    return atomic_load(&shared->back[at]);
}

static bool round_of(int round, struct times *times)
{
    pid_t pid[MOST];
    int all = want.replicas * want.local + want.standbys;
    atomic_store(&shared->killed, 0);
    for (int i = 0; i < all; i++) {
        atomic_store(&shared->warm[i], 0);
        atomic_store(&shared->back[i], 0);
        pid[i] = begin(run, i, round);
    }
    bool good = measure(pid, times);
    for (int i = 0; i < all; i++)
        kill(pid[i], SIGKILL);
    for (int i = 0; i < all; i++)
        waitpid(pid[i], NULL, 0);
    return good && !atomic_load(&shared->failed);
}

static void print(const char *what, const struct times *times, size_t field)
{
    static double sorted[ROUNDS_MAX];
    for (int i = 0; i < want.rounds; i++)
        memcpy(&sorted[i], (const char *)&times[i] + field, sizeof *sorted);
    qsort(sorted, (size_t)want.rounds, sizeof *sorted, ascending);
    printf("%-48s %9.2f %9.2f %9.2f\n", what, sorted[want.rounds / 2],
           sorted[(want.rounds - 1) * 99 / 100], sorted[want.rounds - 1]);
}

static void take_option(int option)
{
    switch (option) {
    case 'r':
        want.replicas = atoi(optarg);
        break;
    case 'l':
        want.local = atoi(optarg);
        break;
    case 't':
        want.standbys = atoi(optarg);
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
        want.rounds = 0;
    }
}

static bool parse(int argc, char **argv)
{
    int option;
    while ((option = getopt(argc, argv, "r:l:t:k:b:s:")) != -1)
        take_option(option);
    return want.replicas > 1 && want.local > 0 && want.standbys >= 0 && want.replicas <= MOST &&
           want.local <= MOST && want.replicas * want.local + want.standbys <= MOST &&
           want.rounds > 0 && want.rounds <= ROUNDS_MAX && want.bytes >= sizeof(float);
}

static void print_table(const struct times *times)
{
    printf("# %d replicas of %d ranks, %d standbys, all-reduces of %zu bytes, %d rounds, seed %u; "
           "ms\n",
           want.replicas, want.local, want.standbys, want.bytes, want.rounds, want.seed);
    printf("%-48s %9s %9s %9s\n", "", "median", "p99", "max");
    print("killed to the other replicas' next step", times, offsetof(struct times, others));
    if (want.standbys > 0)
        print("killed to the standby's first step", times, offsetof(struct times, standby));
}

static bool run_rounds(struct times *times)
{
    pid_t coordinator = begin(NULL, 0, 0);
    while (!atomic_load(&shared->served) && !atomic_load(&shared->failed))
        usleep(1000);
    bool good = !atomic_load(&shared->failed);
    for (int i = 0; i < want.rounds && good; i++)
        if (!(good = round_of(i, &times[i])))
            fprintf(stderr, "round %d of seed %u failed\n", i, want.seed);
    kill(coordinator, SIGKILL);
    return good;
}

int main(int argc, char **argv)
{
    static struct times times[ROUNDS_MAX];
    if (!parse(argc, argv)) {
        fprintf(stderr, "usage: member_steps [-r REPLICAS] [-l RANKS] [-t STANDBYS] [-k ROUNDS] "
                        "[-b BYTES] [-s SEED]\n");
        return 2;
    }
    srand(want.seed);
    setenv("FTCCL_SECRET", "only-for-this-measurement", 0);
    shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (shared == MAP_FAILED || !run_rounds(times))
        return 1;
    print_table(times);
    return fflush(stdout) == 0 && !ferror(stdout) ? 0 : 1;
}

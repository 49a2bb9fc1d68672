/*
 * Measures how long it takes to begin with managed membership, beside ftcclCommInitRank, for
 * growing numbers of ranks. Ranks are processes of this machine; all begin at once. member_setup
 * [-n MOST] [-l RANKS OF A REPLICA] [-k ROUNDS] [-t TRANSPORTS] For 2, 4, 8 .. MOST ranks it prints
 * medians over the rounds, in ms from the common start until the last rank has: joined, the first
 * view, a first all-reduce of 8 bytes across the replicas, the second view (the same again); and,
 * in turn with that, a communicator of as many ranks as there are replicas by a unique id, and its
 * first all-reduce.
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

#define MOST 256
#define ROUNDS_MAX 99

static struct {
    int most, local, rounds;
} want = {32, 1, 9};

enum part { JOINED, VIEW, REDUCED, AGAIN, INIT, INIT_REDUCED, PARTS };

/* Shared by all processes of a round. */
struct shared {
    _Atomic int ready, go, viewed, failed;
    ftcclUniqueId id;
    char coordinator[80];
    double start_ms, at_ms[MOST][PARTS];
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

static void meet(_Atomic int *count, int n)
{
    atomic_fetch_add(count, 1);
    while (atomic_load(count) < n && !atomic_load(&shared->failed))
        usleep(200);
}

static void reduce(ftcclComm_t comm, int rank, enum part part)
{
    double one = 1;
    must(ftcclAllReduce(&one, &one, 1, ftcclDouble, ftcclSum, comm, NULL), "AllReduce");
    must(ftcclStreamSynchronize(NULL), "StreamSynchronize");
    shared->at_ms[rank][part] = now_ms();
}

/* ---- the two ways ---------------------------------------------------------------------------- */

static void begin_managed(int rank, int nranks)
{
    ftcclMember_t member;
    ftcclComm_t comm;
    ftcclView_t view = {.size = sizeof view};
    char replica[32];
    int replicas = nranks / want.local;
    ftcclOptions_t options = FTCCL_OPTIONS_INITIALIZER;
    ftcclConfig_t config = FTCCL_CONFIG_INITIALIZER;
    snprintf(replica, sizeof replica, "replica-%04d", rank / want.local);
    options.minMembers = replicas;
    config.options = &options;
    must(ftcclMemberJoin(shared->coordinator, "setup", replica, rank % want.local, want.local,
                         &config, &member),
         "MemberJoin");
    shared->at_ms[rank][JOINED] = now_ms();
    must(ftcclMemberView(member, 0, &view, &comm), "MemberView");
    shared->at_ms[rank][VIEW] = now_ms();
    reduce(comm, rank, REDUCED);
    meet(&shared->viewed, nranks);
    double before_ms = now_ms();
    must(ftcclMemberView(member, 1, &view, &comm), "MemberView");
    shared->at_ms[rank][AGAIN] = shared->start_ms + now_ms() - before_ms;
    must(ftcclMemberLeave(member), "MemberLeave");
}

static void begin_static(int rank, int nranks)
{
    ftcclComm_t comm;
    must(ftcclCommInitRank(&comm, nranks, shared->id, rank), "CommInitRank");
    shared->at_ms[rank][INIT] = now_ms();
    reduce(comm, rank, INIT_REDUCED);
    must(ftcclCommDestroy(comm), "CommDestroy");
}

/* ---- rounds ---------------------------------------------------------------------------------- */

/* The start counts from when all processes are there. */
static void run_all(void (*begin)(int rank, int nranks), int nranks)
{
    pid_t pid[MOST];
    atomic_store(&shared->ready, 0);
    atomic_store(&shared->go, 0);
    atomic_store(&shared->viewed, 0);
    for (int i = 0; i < nranks; i++) {
        pid[i] = fork();
        if (pid[i] != 0)
            continue;
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        atomic_fetch_add(&shared->ready, 1);
        while (!atomic_load(&shared->go))
            usleep(100);
        begin(i, nranks);
        exit(0);
    }
    while (atomic_load(&shared->ready) < nranks)
        usleep(1000);
    shared->start_ms = now_ms();
    atomic_store(&shared->go, 1);
    for (int i = 0; i < nranks; i++)
        waitpid(pid[i], NULL, 0);
}

/* Until the last rank had it. */
static double until(enum part part, int nranks)
{
    double last = 0;
    for (int i = 0; i < nranks; i++)
        if (shared->at_ms[i][part] > last)
            last = shared->at_ms[i][part];
    return last - shared->start_ms;
}

/* The coordinator and the server of the unique id live in processes of their own: their threads
 * would not survive the fork of the ranks. */
static pid_t serve(void)
{
    pid_t pid = fork();
    if (pid != 0)
        return pid;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    ftcclCoordinator_t coordinator;
    must(ftcclCoordinatorStart("127.0.0.1:0", shared->coordinator, sizeof shared->coordinator,
                               &coordinator),
         "CoordinatorStart");
    must(ftcclUniqueIdKeep(&shared->id), "UniqueIdKeep");
    atomic_store(&shared->ready, 1);
    for (;;)
        pause();
}

static bool run_round(int nranks, double took[PARTS])
{
    memset(shared, 0, sizeof *shared);
    pid_t server = serve();
    while (!atomic_load(&shared->ready) && !atomic_load(&shared->failed))
        usleep(1000);
    if (!atomic_load(&shared->failed))
        run_all(begin_managed, nranks);
    for (enum part part = JOINED; part <= AGAIN; part++)
        took[part] = until(part, nranks);
    int replicas = nranks / want.local;
    if (!atomic_load(&shared->failed))
        run_all(begin_static, replicas);
    took[INIT] = until(INIT, replicas);
    took[INIT_REDUCED] = until(INIT_REDUCED, replicas);
    kill(server, SIGKILL);
    waitpid(server, NULL, 0);
    return !atomic_load(&shared->failed);
}

static double median(double took[ROUNDS_MAX][PARTS], enum part part)
{
    double sorted[ROUNDS_MAX];
    for (int i = 0; i < want.rounds; i++)
        sorted[i] = took[i][part];
    qsort(sorted, (size_t)want.rounds, sizeof *sorted, ascending);
    return sorted[want.rounds / 2];
}

static bool run_size(int nranks)
{
    static double took[ROUNDS_MAX][PARTS];
    for (int i = 0; i < want.rounds; i++)
        if (!run_round(nranks, took[i]))
            return false;
    printf("%6d", nranks);
    for (enum part part = JOINED; part < PARTS; part++)
        printf(" %13.2f", median(took, part));
    printf("\n");
    fflush(stdout);
    return true;
}

static bool parse(int argc, char **argv)
{
    int option;
    while ((option = getopt(argc, argv, "n:l:k:t:")) != -1) {
        if (option == 'n')
            want.most = atoi(optarg);
        else if (option == 'l')
            want.local = atoi(optarg);
        else if (option == 'k')
            want.rounds = atoi(optarg);
        else if (option == 't')
            setenv("FTCCL_TRANSPORTS", optarg, 1);
        else
            return false;
    }
    return want.local > 0 && want.most >= 2 * want.local && want.most <= MOST && want.rounds > 0 &&
           want.rounds <= ROUNDS_MAX;
}

int main(int argc, char **argv)
{
    if (!parse(argc, argv)) {
        fprintf(stderr, "usage: member_setup [-n MOST] [-l RANKS OF A REPLICA] [-k ROUNDS] "
                        "[-t TRANSPORTS]\n");
        return 2;
    }
    setenv("FTCCL_SECRET", "only-for-this-measurement", 0);
    shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (shared == MAP_FAILED)
        return 1;
    printf("# replicas of %d ranks, medians of %d rounds, ms\n", want.local, want.rounds);
    printf("%6s %13s %13s %13s %13s %13s %13s\n", "ranks", "joined", "view", "all-reduce",
           "view again", "init of same", "all-reduce");
    fflush(stdout); /* before there are children */
    for (int n = 2 * want.local; n <= want.most; n *= 2)
        if (!run_size(n))
            return 1;
    return 0;
}

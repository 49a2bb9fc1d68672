/*
 * Property: every collective gives the same result as MPI, for every type and operator, 1 to 8
 * ranks, counts around every boundary, first and last root, in place and not. Method: started by
 * mpiexec. MPI_Bcast distributes the unique id, and the references are MPI's own results on the
 * same inputs. Prints one line per case, and the counts at the end. The optional argument is the
 * seed.
 */
#include "mpi_suite.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

void suite_wait(MPI_Request *request)
{
    int done = 0;
    for (unsigned turn = 0, us = 10; !done; turn++) {
        MPI_Test(request, &done, MPI_STATUS_IGNORE);
        if (done || turn < 3)
            continue;
        usleep(us);
        if (us < 2000)
            us += us / 4 + 1;
    }
}

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* A call that fails ends the job: the other ranks could only wait for this one. */
void suite_check(struct suite *s, ftcclResult_t result, const char *what)
{
    if (result == ftcclSuccess)
        return;
    fprintf(stderr, "%s: %s: %s (seed %llu)\n", what, ftcclGetErrorString(result),
            ftcclGetLastError(s->comm), (unsigned long long)s->seed);
    sleep(1); /* lets the launcher take the line, and others say theirs */
    MPI_Abort(MPI_COMM_WORLD, 1);
}

void suite_compare(struct suite *s, int type, int op, const void *got, const void *want,
                   size_t count, const char *what)
{
    size_t bad = ref_differs(type, op < ftcclNumOps ? op : ftcclSum, s->n, got, want, count);
    s->checks++;
    if (bad == count)
        return;
    if (s->failures++ >= 3)
        return;
    if (ref_is_float(type)) {
        fprintf(stderr, "%s: element %zu is %g instead of %g (seed %llu)\n", what, bad,
                ref_get_float(type, got, bad), ref_get_float(type, want, bad),
                (unsigned long long)s->seed);
    } else {
        fprintf(stderr, "%s: element %zu is %lld instead of %lld (seed %llu)\n", what, bad,
                (long long)ref_get_int(type, got, bad), (long long)ref_get_int(type, want, bad),
                (unsigned long long)s->seed);
    }
}

static const struct {
    const char *name;
    void (*run)(struct suite *s, int kind);
    void (*plain)(struct suite *s);
    int kind;
} cases[] = {
    {"AllReduce", suite_reducing, NULL, 0},     {"Reduce", suite_reducing, NULL, 1},
    {"ReduceScatter", suite_reducing, NULL, 2}, {"PreMulSum", NULL, suite_premulsum, 0},
    {"Broadcast", suite_rooted, NULL, 0},       {"Gather", suite_rooted, NULL, 1},
    {"Scatter", suite_rooted, NULL, 2},         {"AllGather", NULL, suite_allgather, 0},
    {"AlltoAll", NULL, suite_alltoall, 0},      {"SendRecv", NULL, suite_sendrecv, 0},
};

/* All cases on the communicator; returns the failed ones, the same on all ranks. */
static int run_cases(struct suite *s)
{
    int failed = 0;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        double start = now();
        s->case_name = cases[i].name;
        s->checks = s->failures = 0;
        if (cases[i].run)
            cases[i].run(s, cases[i].kind);
        else
            cases[i].plain(s);
        long mine[2] = {s->checks, s->failures}, all[2];
        MPI_Request request;
        MPI_Iallreduce(mine, all, 2, MPI_LONG, MPI_SUM, s->mpi, &request);
        suite_wait(&request);
        failed += all[1] > 0;
        if (s->rank == 0) {
            printf("%s %-13s on %d ranks: %ld comparisons, %ld differ, %.1f s\n",
                   all[1] ? "FAIL" : "ok  ", s->case_name, s->n, all[0], all[1], now() - start);
            fflush(stdout);
        }
    }
    return failed;
}

static void *array(size_t len_bytes)
{
    void *memory = malloc(len_bytes);
    if (memory == NULL)
        MPI_Abort(MPI_COMM_WORLD, 1);
    return memory;
}

static int run_size(MPI_Comm mpi, int n, uint64_t seed)
{
    struct suite s = {.mpi = mpi, .n = n, .seed = seed};
    ftcclUniqueId id;
    MPI_Request request;
    MPI_Comm_rank(mpi, &s.rank);
    s.case_name = "init";
    if (s.rank == 0)
        suite_check(&s, ftcclGetUniqueId(&id), "GetUniqueId");
    MPI_Ibcast(&id, sizeof id, MPI_BYTE, 0, mpi, &request);
    suite_wait(&request);
    suite_check(&s, ftcclCommInitRank(&s.comm, n, id, s.rank), "CommInitRank");
    suite_check(&s, ftcclStreamCreate(&s.stream), "StreamCreate");
    s.all = array((size_t)n * ARRAY_BYTES);
    s.reduced = array(ARRAY_BYTES);
    s.want = array(ARRAY_BYTES);
    s.send = array(ARRAY_BYTES);
    s.recv = array(ARRAY_BYTES);
    int failed = run_cases(&s);
    suite_check(&s, ftcclStreamDestroy(s.stream), "StreamDestroy");
    ftcclResult_t result = ftcclCommDestroy(s.comm);
    s.comm = NULL;
    suite_check(&s, result, "CommDestroy");
    free(s.all);
    free(s.reduced);
    free(s.want);
    free(s.send);
    free(s.recv);
    return failed;
}

int main(int argc, char **argv)
{
    int world, rank, total = 0, failed = 0;
    const int sizes[] = {1, 2, 3, 4, 5, 8};
    MPI_Init(&argc, &argv);
    MPI_Comm_size(MPI_COMM_WORLD, &world);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    uint64_t seed = argc > 1 ? strtoull(argv[1], NULL, 0) : (uint64_t)time(NULL);
    MPI_Request request;
    MPI_Ibcast(&seed, 1, MPI_UINT64_T, 0, MPI_COMM_WORLD, &request);
    suite_wait(&request);
    if (rank == 0)
        printf("seed %llu; again with: mpiexec -n %d %s %llu\n", (unsigned long long)seed, world,
               argv[0], (unsigned long long)seed);
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        if (sizes[i] > world)
            continue;
        MPI_Comm part;
        MPI_Comm_split(MPI_COMM_WORLD, rank < sizes[i] ? 0 : MPI_UNDEFINED, rank, &part);
        if (part != MPI_COMM_NULL) {
            failed += run_size(part, sizes[i], seed);
            total += (int)(sizeof cases / sizeof cases[0]);
            MPI_Comm_free(&part);
        }
        MPI_Ibarrier(MPI_COMM_WORLD, &request);
        suite_wait(&request);
    }
    if (rank == 0)
        printf("%d passed, %d failed, 0 skipped\n", total - failed, failed);
    MPI_Finalize();
    return failed > 0;
}

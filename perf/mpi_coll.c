/*
 * What an MPI does in the place of FTCCL's *_perf programs: out-of-place float collectives, one blocking call after another.
 * usage: mpi_coll COLLECTIVE BYTES ITERATIONS WARMUPS. BYTES are those of the larger buffer, as in nccl-tests. Rank 0 prints
 * the mean over the ranks of the seconds that one call took. perf/compare compiles it with each MPI that is installed.
 */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct bench { float *send, *recv; int count, nranks; }; /* count: floats of the larger buffer */

static void all_reduce(const struct bench *b) { MPI_Allreduce(b->send, b->recv, b->count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD); }

static void all_gather(const struct bench *b)
{
    MPI_Allgather(b->send, b->count / b->nranks, MPI_FLOAT, b->recv, b->count / b->nranks, MPI_FLOAT, MPI_COMM_WORLD);
}

static void reduce_scatter(const struct bench *b)
{
    MPI_Reduce_scatter_block(b->send, b->recv, b->count / b->nranks, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
}

static void broadcast(const struct bench *b) { MPI_Bcast(b->recv, b->count, MPI_FLOAT, 0, MPI_COMM_WORLD); }

static void all_to_all(const struct bench *b)
{
    MPI_Alltoall(b->send, b->count / b->nranks, MPI_FLOAT, b->recv, b->count / b->nranks, MPI_FLOAT, MPI_COMM_WORLD);
}

static const struct { const char *name; void (*run)(const struct bench *); } collectives[] = {
    {"all_reduce", all_reduce}, {"all_gather", all_gather}, {"reduce_scatter", reduce_scatter},
    {"broadcast", broadcast}, {"alltoall", all_to_all},
};

static double measure(const struct bench *b, void (*run)(const struct bench *), int iterations, int warmups)
{
    for (int i = 0; i < warmups; i++) run(b);
    MPI_Barrier(MPI_COMM_WORLD);
    double begin_s = MPI_Wtime();
    for (int i = 0; i < iterations; i++) run(b);
    double mine_s = (MPI_Wtime() - begin_s) / iterations, sum_s = 0;
    MPI_Reduce(&mine_s, &sum_s, 1, MPI_DOUBLE, MPI_SUM, 0, MPI_COMM_WORLD);
    return sum_s / b->nranks;
}

int main(int argc, char **argv)
{
    int rank, status = 2;
    struct bench b = {0};
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &b.nranks);
    long bytes = argc == 5 ? atol(argv[2]) : 0;
    int iterations = argc == 5 ? atoi(argv[3]) : 0;
    b.count = (int)(bytes / (long)sizeof(float));
    b.send = malloc((size_t)bytes + 64);
    b.recv = malloc((size_t)bytes + 64);
    for (size_t i = 0; i < sizeof collectives / sizeof *collectives && b.send && b.recv && bytes > 0 && iterations > 0; i++) {
        if (strcmp(argv[1], collectives[i].name) != 0) continue;
        memset(b.send, 0, (size_t)bytes);
        memset(b.recv, 0, (size_t)bytes);
        double s = measure(&b, collectives[i].run, iterations, atoi(argv[4]));
        if (rank == 0) printf("%.9g\n", s);
        status = 0;
    }
    free(b.send);
    free(b.recv);
    MPI_Finalize();
    return status;
}

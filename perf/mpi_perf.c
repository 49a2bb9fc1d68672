/* Measures the same as FTCCL's perf programs, with an MPI library. usage: mpiexec -n N mpi_perf
 * COLLECTIVE [OPTION]..., see peer.h. */
#include "peer.h"

#include <mpi.h>

static void run(struct peer_library *l, const struct peer_call *c)
{
    (void)l;
    int count = (int)c->count;
    switch (c->kind) {
    case PEER_ALL_REDUCE:
        MPI_Allreduce(c->send, c->recv, count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
        break;
    case PEER_ALL_GATHER:
        MPI_Allgather(c->send, count, MPI_FLOAT, c->recv, count, MPI_FLOAT, MPI_COMM_WORLD);
        break;
    case PEER_REDUCE_SCATTER:
        MPI_Reduce_scatter_block(c->send, c->recv, count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
        break;
    case PEER_BROADCAST:
        MPI_Bcast(c->recv, count, MPI_FLOAT, 0, MPI_COMM_WORLD);
        break;
    case PEER_REDUCE:
        MPI_Reduce(c->send, c->recv, count, MPI_FLOAT, MPI_SUM, 0, MPI_COMM_WORLD);
        break;
    default:
        MPI_Alltoall(c->send, count, MPI_FLOAT, c->recv, count, MPI_FLOAT, MPI_COMM_WORLD);
        break;
    }
}

static void meet(struct peer_library *l)
{
    (void)l;
    MPI_Barrier(MPI_COMM_WORLD);
}

static double sum(struct peer_library *l, double value)
{
    (void)l;
    double all;
    MPI_Allreduce(&value, &all, 1, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
    return all;
}

int main(int argc, char **argv)
{
    struct peer_options o;
    struct peer_library l = {.name = "MPI", .run = run, .meet = meet, .sum = sum};
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &l.rank);
    MPI_Comm_size(MPI_COMM_WORLD, &l.nranks);
    int status = peer_options_parse(&o, argc, argv);
    if (status == PEER_OK)
        status = peer_run(&l, &o);
    MPI_Finalize();
    return status;
}

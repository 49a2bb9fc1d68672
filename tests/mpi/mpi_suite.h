/* The parts of the MPI suite; see mpi_main.c. */
#ifndef FT_TESTS_MPI_SUITE_H
#define FT_TESTS_MPI_SUITE_H

#include <ftccl.h>
#include <mpi.h>
#include <stdbool.h>
#include <stdint.h>

#include "tests/common/reference.h"

/* Size of the arrays: a whole number of elements of every type, and a multiple of every number of
 * ranks used. */
#define ARRAY_BYTES ((size_t)120 * 3840)
#define CHUNK_BYTES ((size_t)131072)
#define MAX_SIZES 32

/* One communicator in both libraries, and the arrays of one data type. suite_inputs() fills all of
 * them. */
struct suite {
    MPI_Comm mpi;
    ftcclComm_t comm;
    ftcclStream_t stream;
    int n, rank;
    uint64_t seed;
    const char *case_name;
    long checks, failures;      /* of the case, on this rank */
    unsigned char *all;         /* [n * ARRAY_BYTES] the inputs of all ranks, by MPI_Allgather */
    unsigned char *reduced;     /* reduction of all inputs, by MPI */
    unsigned char *want;        /* scratch */
    unsigned char *send, *recv; /* buffers for FTCCL */
};

/* mpi_main.c */
/* Waits without spinning, because MPI shares the cores with the ranks for which it waits. */
void suite_wait(MPI_Request *request);
void suite_check(struct suite *s, ftcclResult_t result, const char *what);
/* Compares elements and reports the first difference. */
void suite_compare(struct suite *s, int type, int op, const void *got, const void *want,
                   size_t count, const char *what);
static inline size_t suite_capacity(int type)
{
    return ARRAY_BYTES / ref_sizes[type];
}

/* mpi_types.c */
MPI_Datatype suite_mpi_type(int type); /* MPI_DATATYPE_NULL for the small floats */
const unsigned char *suite_input(const struct suite *s, int rank);
void suite_inputs(struct suite *s, int type, int op);
/* Reduces the inputs with op into s->reduced. */
void suite_reference(struct suite *s, int type, int op);
/* Counts around every boundary for which blocks * count elements fit. */
int suite_counts(const struct suite *s, int type, size_t blocks, size_t counts[MAX_SIZES]);

/* mpi_coll.c: the cases */
void suite_reducing(struct suite *s, int kind); /* 0 AllReduce, 1 Reduce, 2 ReduceScatter */
void suite_premulsum(struct suite *s);
void suite_rooted(struct suite *s, int kind); /* 0 Broadcast, 1 Gather, 2 Scatter */
void suite_allgather(struct suite *s);
void suite_alltoall(struct suite *s);
void suite_sendrecv(struct suite *s);

#endif

/*
 * Inputs and references of the MPI suite. MPI reduces the types that it knows. For the 8- and
 * 16-bit floats, tests/common/reference.h reduces the inputs that MPI gathered, a slice on each
 * rank. A reference is made once, for the longest count; those of shorter counts are its beginning.
 */
#include "mpi_suite.h"

MPI_Datatype suite_mpi_type(int type)
{
    switch (type) {
    case ftcclInt8:
        return MPI_INT8_T;
    case ftcclUint8:
        return MPI_UINT8_T;
    case ftcclInt32:
        return MPI_INT32_T;
    case ftcclUint32:
        return MPI_UINT32_T;
    case ftcclInt64:
        return MPI_INT64_T;
    case ftcclUint64:
        return MPI_UINT64_T;
    case ftcclFloat32:
        return MPI_FLOAT;
    case ftcclFloat64:
        return MPI_DOUBLE;
    default:
        return MPI_DATATYPE_NULL;
    }
}

const unsigned char *suite_input(const struct suite *s, int rank)
{
    return s->all + (size_t)rank * ARRAY_BYTES;
}

void suite_inputs(struct suite *s, int type, int op)
{
    MPI_Request request;
    unsigned char *mine = s->all + (size_t)s->rank * ARRAY_BYTES;
    ref_fill(type, op, mine, suite_capacity(type),
             s->seed * 1000 + (uint64_t)(s->rank * 100 + type * 8 + op));
    MPI_Iallgather(MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, s->all, (int)ARRAY_BYTES, MPI_BYTE, s->mpi,
                   &request);
    suite_wait(&request);
}

static void reduce_slices(struct suite *s, int type, int op)
{
    const void *sources[64];
    for (int r = 0; r < s->n; r++)
        sources[r] = suite_input(s, r);
    size_t slice = suite_capacity(type) / (size_t)s->n, first = slice * (size_t)s->rank;
    for (size_t i = first; i < first + slice; i++)
        ref_reduce(type, op, s->n, sources, i, s->reduced, i);
    MPI_Request request;
    MPI_Iallgather(MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, s->reduced, (int)(slice * ref_sizes[type]),
                   MPI_BYTE, s->mpi, &request);
    suite_wait(&request);
}

static void divide(struct suite *s, int type)
{
    for (size_t i = 0; i < suite_capacity(type); i++) {
        if (ref_is_float(type)) {
            ref_put_float(type, s->reduced, i, ref_get_float(type, s->reduced, i) / s->n);
        } else {
            uint64_t v = ref_get_int(type, s->reduced, i);
            ref_put_int(type, s->reduced, i,
                        ref_is_signed(type) ? (uint64_t)((int64_t)v / s->n) : v / (unsigned)s->n);
        }
    }
}

/* MPICH 4.0.2 compares unsigned integers as signed ones in MPI_MAX and MPI_MIN. With the highest
 * bit turned the order of the signed is that of the unsigned, for MPIs that do and that do not. */
static void turn_highest_bit(int type, const void *from, void *to)
{
    uint64_t bit = (uint64_t)1 << (8 * ref_sizes[type] - 1);
    for (size_t i = 0; i < suite_capacity(type); i++)
        ref_put_int(type, to, i, ref_get_int(type, from, i) ^ bit);
}

static void reduce_unsigned_order(struct suite *s, int type, int op)
{
    MPI_Datatype as_signed = type == ftcclUint8    ? MPI_INT8_T
                             : type == ftcclUint32 ? MPI_INT32_T
                                                   : MPI_INT64_T;
    MPI_Request request;
    turn_highest_bit(type, suite_input(s, s->rank), s->want);
    MPI_Iallreduce(s->want, s->reduced, (int)suite_capacity(type), as_signed,
                   op == ftcclMax ? MPI_MAX : MPI_MIN, s->mpi, &request);
    suite_wait(&request);
    turn_highest_bit(type, s->reduced, s->reduced);
}

void suite_reference(struct suite *s, int type, int op)
{
    MPI_Datatype mpi_type = suite_mpi_type(type);
    if (mpi_type == MPI_DATATYPE_NULL) {
        reduce_slices(s, type, op);
        return;
    }
    if (!ref_is_float(type) && !ref_is_signed(type) && (op == ftcclMax || op == ftcclMin)) {
        reduce_unsigned_order(s, type, op);
        return;
    }
    const MPI_Op ops[] = {MPI_SUM, MPI_PROD, MPI_MAX, MPI_MIN, MPI_SUM};
    MPI_Request request;
    MPI_Iallreduce(suite_input(s, s->rank), s->reduced, (int)suite_capacity(type), mpi_type,
                   ops[op], s->mpi, &request);
    suite_wait(&request);
    if (op == ftcclAvg)
        divide(s, type);
}

int suite_counts(const struct suite *s, int type, size_t blocks, size_t counts[MAX_SIZES])
{
    size_t n = (size_t)s->n, chunk = CHUNK_BYTES / ref_sizes[type], capacity = suite_capacity(type);
    const size_t all[] = {0,         1,
                          2,         n - 1,
                          n,         n + 1,
                          63,        64,
                          65,        chunk / n - 1,
                          chunk / n, chunk / n + 1,
                          chunk - 1, chunk,
                          chunk + 1, capacity / blocks};
    int used = 0;
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        bool seen = all[i] * blocks > capacity;
        for (int j = 0; j < used; j++)
            seen = seen || counts[j] == all[i];
        if (!seen)
            counts[used++] = all[i];
    }
    return used;
}

/* The cases of the MPI suite. Each runs one collective over types, operators, counts and roots, in
 * place and not. */
#include <stdio.h>

#include "mpi_suite.h"

struct args {
    int kind, type, op, root;
    size_t count;
    bool in_place;
};

static void finish(struct suite *s, ftcclResult_t result, const char *what)
{
    if (result == ftcclSuccess)
        result = ftcclStreamSynchronize(s->stream);
    suite_check(s, result, what);
}

static const char *describe(const struct suite *s, const struct args *a)
{
    static char text[256];
    snprintf(text, sizeof text, "%s type %s op %s count %zu root %d%s on rank %d of %d",
             s->case_name, ref_type_names[a->type],
             a->op < ftcclNumOps ? ref_op_names[a->op] : "premulsum", a->count, a->root,
             a->in_place ? " in place" : "", s->rank, s->n);
    return text;
}

static void reduce_once(struct suite *s, const struct args *a)
{
    size_t size = ref_sizes[a->type], blocks = a->kind == 2 ? (size_t)s->n : 1,
           place = a->kind == 2 ? a->count * (size_t)s->rank : 0;
    const unsigned char *mine = suite_input(s, s->rank);
    memcpy(s->send, mine, blocks * a->count * size);
    unsigned char *to = a->in_place ? s->send + place * size : s->recv;
    ftcclDataType_t type = (ftcclDataType_t)a->type;
    ftcclRedOp_t op = (ftcclRedOp_t)a->op;
    const char *what = describe(s, a);
    ftcclResult_t result =
        a->kind == 0   ? ftcclAllReduce(s->send, to, a->count, type, op, s->comm, s->stream)
        : a->kind == 1 ? ftcclReduce(s->send, to, a->count, type, op, a->root, s->comm, s->stream)
                       : ftcclReduceScatter(s->send, to, a->count, type, op, s->comm, s->stream);
    finish(s, result, what);
    if (a->kind != 1 || s->rank == a->root)
        suite_compare(s, a->type, a->op, to, s->reduced + place * size, a->count, what);
    if (!a->in_place)
        suite_compare(s, a->type, ftcclSum, s->send, mine, blocks * a->count,
                      "send buffer after the call");
}

static void reduce_all_counts(struct suite *s, int kind, int type, int op)
{
    size_t counts[MAX_SIZES];
    int number = suite_counts(s, type, kind == 2 ? (size_t)s->n : 1, counts);
    for (int i = 0; i < number; i++) {
        for (int in_place = 0; in_place < 2; in_place++) {
            reduce_once(s,
                        &(struct args){kind, type, op, i % 2 ? s->n - 1 : 0, counts[i], in_place});
        }
    }
}

void suite_reducing(struct suite *s, int kind)
{
    for (int type = 0; type < ftcclNumTypes; type++) {
        for (int op = 0; op < ftcclNumOps; op++) {
            suite_inputs(s, type, op);
            suite_reference(s, type, op);
            reduce_all_counts(s, kind, type, op);
        }
    }
}

/* Scalars of 2 on every rank: the reference is that of the sum, doubled. */
void suite_premulsum(struct suite *s)
{
    for (int type = 0; type < ftcclNumTypes; type++) {
        unsigned char two[8] = {0};
        if (ref_is_float(type))
            ref_put_float(type, two, 0, 2);
        else
            ref_put_int(type, two, 0, 2);
        suite_inputs(s, type, ftcclAvg); /* small numbers, so that twice the sum is still exact */
        suite_reference(s, type, ftcclSum);
        for (size_t i = 0; i < suite_capacity(type); i++) {
            if (ref_is_float(type))
                ref_put_float(type, s->reduced, i, 2 * ref_get_float(type, s->reduced, i));
            else
                ref_put_int(type, s->reduced, i, 2 * ref_get_int(type, s->reduced, i));
        }
        ftcclRedOp_t op;
        suite_check(s,
                    ftcclRedOpCreatePreMulSum(&op, two, (ftcclDataType_t)type,
                                              ftcclScalarHostImmediate, s->comm),
                    "PreMulSum");
        for (int kind = 0; kind < 3; kind++)
            reduce_all_counts(s, kind, type, (int)op);
        suite_check(s, ftcclRedOpDestroy(op, s->comm), "RedOpDestroy");
    }
}

static void rooted_once(struct suite *s, const struct args *a)
{
    size_t size = ref_sizes[a->type], block = a->count * size, n = (size_t)s->n,
           at = (size_t)a->root * block;
    bool is_root = s->rank == a->root;
    ftcclDataType_t type = (ftcclDataType_t)a->type;
    unsigned char *from = s->send, *to = s->recv;
    const char *what = describe(s, a);
    ftcclResult_t result;
    memcpy(s->send, suite_input(s, s->rank), (a->kind == 2 ? n : 1) * block);
    if (a->kind == 0) {
        if (a->in_place)
            to = from;
        result = ftcclBroadcast(from, to, a->count, type, a->root, s->comm, s->stream);
    } else if (a->kind == 1) {
        if (a->in_place && is_root)
            memcpy(from = s->recv + at, suite_input(s, s->rank), block);
        result = ftcclGather(from, to, a->count, type, a->root, s->comm, s->stream);
    } else {
        if (a->in_place && is_root)
            to = s->send + at;
        result = ftcclScatter(from, to, a->count, type, a->root, s->comm, s->stream);
    }
    finish(s, result, what);
    const unsigned char *root_input = suite_input(s, a->root);
    if (a->kind == 0)
        suite_compare(s, a->type, ftcclSum, to, root_input, a->count, what);
    else if (a->kind == 2)
        suite_compare(s, a->type, ftcclSum, to, root_input + block * (size_t)s->rank, a->count,
                      what);
    else if (is_root) {
        for (int r = 0; r < s->n; r++)
            suite_compare(s, a->type, ftcclSum, to + block * (size_t)r, suite_input(s, r), a->count,
                          what);
    }
}

void suite_rooted(struct suite *s, int kind)
{
    for (int type = 0; type < ftcclNumTypes; type++) {
        size_t counts[MAX_SIZES];
        int number = suite_counts(s, type, kind == 0 ? 1 : (size_t)s->n, counts);
        suite_inputs(s, type, ftcclSum);
        for (int i = 0; i < 4 * number; i++) {
            rooted_once(s, &(struct args){kind, type, ftcclSum, i & 2 ? s->n - 1 : 0, counts[i / 4],
                                          i & 1});
        }
    }
}

void suite_allgather(struct suite *s)
{
    for (int type = 0; type < ftcclNumTypes; type++) {
        size_t counts[MAX_SIZES], size = ref_sizes[type];
        int number = suite_counts(s, type, (size_t)s->n, counts);
        suite_inputs(s, type, ftcclSum);
        for (int i = 0; i < 2 * number; i++) {
            struct args a = {0, type, ftcclSum, 0, counts[i / 2], i & 1};
            size_t block = a.count * size;
            const char *what = describe(s, &a);
            unsigned char *from = a.in_place ? s->recv + block * (size_t)s->rank : s->send;
            memcpy(from, suite_input(s, s->rank), block);
            finish(s,
                   ftcclAllGather(from, s->recv, a.count, (ftcclDataType_t)type, s->comm,
                                  s->stream),
                   what);
            for (int r = 0; r < s->n; r++)
                suite_compare(s, type, ftcclSum, s->recv + block * (size_t)r, suite_input(s, r),
                              a.count, what);
        }
    }
}

static void mpi_alltoall(struct suite *s, size_t block)
{
    MPI_Request request;
    MPI_Ialltoall(suite_input(s, s->rank), (int)block, MPI_BYTE, s->want, (int)block, MPI_BYTE,
                  s->mpi, &request);
    suite_wait(&request);
}

void suite_alltoall(struct suite *s)
{
    for (int type = 0; type < ftcclNumTypes; type++) {
        size_t counts[MAX_SIZES], size = ref_sizes[type];
        int number = suite_counts(s, type, (size_t)s->n, counts);
        suite_inputs(s, type, ftcclSum);
        for (int i = 0; i < number; i++) {
            mpi_alltoall(s, counts[i] * size);
            for (int in_place = 0; in_place < 2; in_place++) {
                struct args a = {0, type, ftcclSum, 0, counts[i], in_place};
                size_t elements = a.count * (size_t)s->n;
                const char *what = describe(s, &a);
                unsigned char *to = in_place ? s->send : s->recv;
                memcpy(s->send, suite_input(s, s->rank), elements * size);
                finish(s,
                       ftcclAlltoAll(s->send, to, a.count, (ftcclDataType_t)type, s->comm,
                                     s->stream),
                       what);
                suite_compare(s, type, ftcclSum, to, s->want, elements, what);
            }
        }
    }
}

/* Everybody to everybody and to itself, in one group, receives before sends on odd ranks. */
void suite_sendrecv(struct suite *s)
{
    size_t counts[MAX_SIZES];
    int number = suite_counts(s, ftcclInt32, (size_t)s->n, counts);
    suite_inputs(s, ftcclInt32, ftcclSum);
    for (int i = 0; i < number; i++) {
        struct args a = {0, ftcclInt32, ftcclSum, 0, counts[i], false};
        size_t block = a.count * 4;
        const char *what = describe(s, &a);
        mpi_alltoall(s, block);
        memcpy(s->send, suite_input(s, s->rank), block * (size_t)s->n);
        suite_check(s, ftcclGroupStart(), what);
        for (int half = 0; half < 2; half++) {
            for (int k = 0; k < s->n; k++) {
                int peer = (s->rank + k) % s->n;
                unsigned char *at = (half == (s->rank & 1) ? s->send : s->recv) +
                                    block * (size_t)peer;
                suite_check(s,
                            half == (s->rank & 1)
                                ? ftcclSend(at, a.count, ftcclInt32, peer, s->comm, s->stream)
                                : ftcclRecv(at, a.count, ftcclInt32, peer, s->comm, s->stream),
                            what);
            }
        }
        finish(s, ftcclGroupEnd(), what);
        suite_compare(s, ftcclInt32, ftcclSum, s->recv, s->want, a.count * (size_t)s->n, what);
    }
}

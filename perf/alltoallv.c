/*
 * alltoallv_perf: every rank sends the same total, but more to ranks with a more distant number.
 * The spread (0: equal blocks, 1: fully by distance) comes from FTCCL_PERF_ALLTOALLV_SPREAD or
 * NCCL_TESTS_ALLTOALLV_SPREAD. There is no in-place form.
 */
#include "perf.h"

#include <stdlib.h>

static double spread(void)
{
    static _Atomic double value = -1;
    if (value >= 0)
        return value; /* several threads may compute it; the value is the same */
    const char *text = getenv("FTCCL_PERF_ALLTOALLV_SPREAD");
    if (!text)
        text = getenv("NCCL_TESTS_ALLTOALLV_SPREAD");
    double v = text ? strtod(text, NULL) : 1;
    value = v >= 0 && v <= 1 ? v : 1;
    return value;
}

/* Number of elements that src sends to dst if the mean block has `count`; a multiple of 16
 * bytes. */
static size_t peer_count(int src, int dst, int nranks, size_t count, size_t type_size)
{
    if (nranks == 1)
        return count;
    int distance = (dst - src + nranks) % nranks;
    double weight = 1 - spread() + spread() * 2.0 * distance / (nranks - 1);
    return (size_t)((double)count * weight) & ~(16 / type_size - 1);
}

static size_t offset(int src, int dst, const struct perf_call *c, bool of_source)
{
    size_t at = 0;
    for (int i = 0; i < (of_source ? dst : src); i++)
        at += of_source ? peer_count(src, i, c->nranks, c->count, c->type_size)
                        : peer_count(i, dst, c->nranks, c->count, c->type_size);
    return at;
}

static void layout(struct perf_layout *l, size_t count, size_t type_size, int nranks)
{
    perf_layout_all(l, count, type_size, nranks);
    l->send = l->recv = 0;
    for (int i = 0; i < nranks; i++)
        l->send += peer_count(0, i, nranks, l->param, type_size);
    l->recv = l->send; /* every rank has the same weights, only rotated */
}

static CCL(Result_t) run(const struct perf_call *c, int step)
{
    (void)step;
    size_t sent = 0, received = 0;
    CCL(Result_t) result = CCL(GroupStart)();
    for (int i = 0; i < c->nranks && result == CCL(Success); i++) {
        size_t to = peer_count(c->rank, i, c->nranks, c->count, c->type_size);
        size_t from = peer_count(i, c->rank, c->nranks, c->count, c->type_size);
        if (to)
            result = CCL(Send)(c->send + sent * c->type_size, to, c->type, i, c->comm, c->stream);
        if (from && result == CCL(Success))
            result = CCL(Recv)(c->recv + received * c->type_size, from, c->type, i, c->comm,
                               c->stream);
        sent += to;
        received += from;
    }
    CCL(Result_t) ended = CCL(GroupEnd)();
    return result == CCL(Success) ? ended : result;
}

static void block(const struct perf_call *c, int i, struct perf_block *b)
{
    *b = (struct perf_block){.at = offset(i, c->rank, c, false),
                             .from = offset(i, c->rank, c, true),
                             .count = peer_count(i, c->rank, c->nranks, c->count, c->type_size),
                             .source = i};
}

static double alg_bytes(const struct perf_call *c, const struct perf_layout *l)
{
    return (double)l->send * (double)c->type_size;
}

static const struct perf_op op = {.name = "alltoallv",
                                  .layout = layout,
                                  .run = run,
                                  .nblocks = perf_every_block,
                                  .block = block,
                                  .alg_bytes = alg_bytes,
                                  .bus_factor = perf_factor_others};

int main(int argc, char **argv)
{
    return perf_main(&op, argc, argv);
}

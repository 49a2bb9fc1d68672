/* sendrecv_perf: every rank sends to the next and receives from the one before. There is no
 * in-place form. */
#include "perf.h"

static int before(const struct perf_call *c)
{
    return (c->rank + c->nranks - 1) % c->nranks;
}

static CCL(Result_t) run(const struct perf_call *c, int step)
{
    (void)step;
    CCL(Result_t) result = CCL(GroupStart)();
    if (result == CCL(Success))
        result = CCL(Send)(c->send, c->count, c->type, (c->rank + 1) % c->nranks, c->comm,
                           c->stream);
    if (result == CCL(Success))
        result = CCL(Recv)(c->recv, c->count, c->type, before(c), c->comm, c->stream);
    CCL(Result_t) ended = CCL(GroupEnd)();
    return result == CCL(Success) ? ended : result;
}

static void block(const struct perf_call *c, int i, struct perf_block *b)
{
    (void)i;
    *b = (struct perf_block){.count = c->count, .source = before(c)};
}

static const struct perf_op op = {.name = "sendrecv",
                                  .layout = perf_layout_same,
                                  .run = run,
                                  .nblocks = perf_one_block,
                                  .block = block,
                                  .alg_bytes = perf_bytes_call,
                                  .bus_factor = perf_factor_one};

int main(int argc, char **argv)
{
    return perf_main(&op, argc, argv);
}

/* all_reduce_perf */
#include "perf.h"

static CCL(Result_t) run(const struct perf_call *c, int step)
{
    (void)step;
    return CCL(AllReduce)(c->send, c->recv, c->count, c->type, c->op, c->comm, c->stream);
}

static double bus_factor(int nranks)
{
    return 2.0 * (nranks - 1) / nranks;
}

static const struct perf_op op = {.name = "all_reduce",
                                  .reduces = true,
                                  .in_place = true,
                                  .layout = perf_layout_same,
                                  .run = run,
                                  .nblocks = perf_one_block,
                                  .block = perf_block_reduced,
                                  .alg_bytes = perf_bytes_call,
                                  .bus_factor = bus_factor};

int main(int argc, char **argv)
{
    return perf_main(&op, argc, argv);
}

/* reduce_perf */
#include "perf.h"

static CCL(Result_t) run(const struct perf_call *c, int step)
{
    (void)step;
    return CCL(Reduce)(c->send, c->recv, c->count, c->type, c->op, c->root, c->comm, c->stream);
}

static int nblocks(const struct perf_call *c)
{
    return c->rank == c->root;
}

static const struct perf_op op = {.name = "reduce",
                                  .reduces = true,
                                  .rooted = true,
                                  .in_place = true,
                                  .layout = perf_layout_same,
                                  .run = run,
                                  .nblocks = nblocks,
                                  .block = perf_block_reduced,
                                  .alg_bytes = perf_bytes_call,
                                  .bus_factor = perf_factor_one};

int main(int argc, char **argv)
{
    return perf_main(&op, argc, argv);
}

/* gather_perf */
#include "perf.h"

static CCL(Result_t) run(const struct perf_call *c, int step)
{
    (void)step;
    return CCL(Gather)(c->send, c->recv, c->count, c->type, c->root, c->comm, c->stream);
}

static int nblocks(const struct perf_call *c)
{
    return c->rank == c->root ? c->nranks : 0;
}

static const struct perf_op op = {.name = "gather",
                                  .rooted = true,
                                  .in_place = true,
                                  .layout = perf_layout_gather,
                                  .run = run,
                                  .nblocks = nblocks,
                                  .block = perf_block_of_rank,
                                  .alg_bytes = perf_bytes_all,
                                  .bus_factor = perf_factor_others};

int main(int argc, char **argv)
{
    return perf_main(&op, argc, argv);
}

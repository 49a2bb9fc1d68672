/* all_gather_perf */
#include "perf.h"

static CCL(Result_t) run(const struct perf_call *c, int step)
{
    (void)step;
    return CCL(AllGather)(c->send, c->recv, c->count, c->type, c->comm, c->stream);
}

static const struct perf_op op = {.name = "all_gather",
                                  .in_place = true,
                                  .layout = perf_layout_gather,
                                  .run = run,
                                  .nblocks = perf_every_block,
                                  .block = perf_block_of_rank,
                                  .alg_bytes = perf_bytes_all,
                                  .bus_factor = perf_factor_others};

int main(int argc, char **argv)
{
    return perf_main(&op, argc, argv);
}

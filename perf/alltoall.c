/* alltoall_perf */
#include "perf.h"

static CCL(Result_t) run(const struct perf_call *c, int step)
{
    (void)step;
    return CCL(AlltoAll)(c->send, c->recv, c->count, c->type, c->comm, c->stream);
}

static void block(const struct perf_call *c, int i, struct perf_block *b)
{
    *b = (struct perf_block){.at = (size_t)i * c->count,
                             .from = (size_t)c->rank * c->count,
                             .count = c->count,
                             .source = i};
}

static const struct perf_op op = {.name = "alltoall",
                                  .in_place = true,
                                  .layout = perf_layout_all,
                                  .run = run,
                                  .nblocks = perf_every_block,
                                  .block = block,
                                  .alg_bytes = perf_bytes_all,
                                  .bus_factor = perf_factor_others};

int main(int argc, char **argv)
{
    return perf_main(&op, argc, argv);
}

/* scatter_perf */
#include "perf.h"

static CCL(Result_t) run(const struct perf_call *c, int step)
{
    (void)step;
    return CCL(Scatter)(c->send, c->recv, c->count, c->type, c->root, c->comm, c->stream);
}

static void block(const struct perf_call *c, int i, struct perf_block *b)
{
    (void)i;
    *b = (struct perf_block){
        .from = (size_t)c->rank * c->count, .count = c->count, .source = c->root};
}

static const struct perf_op op = {.name = "scatter",
                                  .rooted = true,
                                  .in_place = true,
                                  .layout = perf_layout_scatter,
                                  .run = run,
                                  .nblocks = perf_one_block,
                                  .block = block,
                                  .alg_bytes = perf_bytes_all,
                                  .bus_factor = perf_factor_others};

int main(int argc, char **argv)
{
    return perf_main(&op, argc, argv);
}

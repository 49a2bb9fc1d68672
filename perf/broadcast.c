/* broadcast_perf */
#include "perf.h"

static CCL(Result_t) run(const struct perf_call *c, int step)
{
    (void)step;
    return CCL(Broadcast)(c->send, c->recv, c->count, c->type, c->root, c->comm, c->stream);
}

static void block(const struct perf_call *c, int i, struct perf_block *b)
{
    (void)i;
    *b = (struct perf_block){.count = c->count, .source = c->root};
}

static const struct perf_op op = {.name = "broadcast",
                                  .rooted = true,
                                  .in_place = true,
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

/*
 * hypercube_perf: an all-gather by recursive doubling, made of sends and receives. In step k a rank
 * exchanges its 2^k blocks with the rank whose number differs in bit k.
 */
#include "perf.h"

static int nsteps(int nranks)
{
    int n = 0;
    while (1 << n < nranks)
        n++;
    return n ? n : 1;
}

static CCL(Result_t) run(const struct perf_call *c, int step)
{
    int mask = 1 << step, peer = c->rank ^ mask;
    size_t block_bytes = c->count * c->type_size;
    int mine = c->rank & ~(mask - 1), theirs = mine ^ mask;
    char *own = c->recv + (size_t)c->rank * block_bytes;
    const char *from = step ? c->recv + (size_t)mine * block_bytes : c->send;
    CCL(Result_t) result = CCL(GroupStart)();
    if (step == 0 && own != c->send) { /* this rank's own block is handled in the same way */
        if (result == CCL(Success))
            result = CCL(Send)(c->send, c->count, c->type, c->rank, c->comm, c->stream);
        if (result == CCL(Success))
            result = CCL(Recv)(own, c->count, c->type, c->rank, c->comm, c->stream);
    }
    size_t count = c->count << step;
    if (result == CCL(Success) && peer < c->nranks)
        result = CCL(Send)(from, count, c->type, peer, c->comm, c->stream);
    if (result == CCL(Success) && peer < c->nranks)
        result = CCL(Recv)(c->recv + (size_t)theirs * block_bytes, count, c->type, peer, c->comm,
                           c->stream);
    CCL(Result_t) ended = CCL(GroupEnd)();
    return result == CCL(Success) ? ended : result;
}

static double alg_bytes(const struct perf_call *c, const struct perf_layout *l)
{
    return perf_bytes_call(c, l) * (c->nranks - 1);
}

static const struct perf_op op = {.name = "hypercube",
                                  .in_place = true,
                                  .power_of_two = true,
                                  .layout = perf_layout_gather,
                                  .nsteps = nsteps,
                                  .run = run,
                                  .nblocks = perf_every_block,
                                  .block = perf_block_of_rank,
                                  .alg_bytes = alg_bytes,
                                  .bus_factor = perf_factor_one};

int main(int argc, char **argv)
{
    return perf_main(&op, argc, argv);
}

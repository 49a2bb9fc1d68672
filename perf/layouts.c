/* Shapes of buffers and results that several operations share. As in nccl-tests, blocks are
 * multiples of 16 one-byte elements, so that both use the same sizes. */
#include "perf.h"

static size_t block(size_t count, size_t type_size, int nranks)
{
    return count / (size_t)nranks & ~(16 / type_size - 1);
}

void perf_layout_same(struct perf_layout *l, size_t count, size_t type_size, int nranks)
{
    (void)type_size, (void)nranks;
    *l = (struct perf_layout){.send = count, .recv = count, .param = count};
}

void perf_layout_gather(struct perf_layout *l, size_t count, size_t type_size, int nranks)
{
    size_t base = block(count, type_size, nranks);
    *l = (struct perf_layout){
        .send = base, .recv = base * (size_t)nranks, .param = base, .send_inplace = base};
}

void perf_layout_scatter(struct perf_layout *l, size_t count, size_t type_size, int nranks)
{
    size_t base = block(count, type_size, nranks);
    *l = (struct perf_layout){
        .send = base * (size_t)nranks, .recv = base, .param = base, .recv_inplace = base};
}

void perf_layout_all(struct perf_layout *l, size_t count, size_t type_size, int nranks)
{
    size_t base = block(count, type_size, nranks), all = base * (size_t)nranks;
    *l = (struct perf_layout){.send = all, .recv = all, .param = base};
}

int perf_one_block(const struct perf_call *c)
{
    return c ? 1 : 0;
}
int perf_every_block(const struct perf_call *c)
{
    return c->nranks;
}

void perf_block_reduced(const struct perf_call *c, int i, struct perf_block *b)
{
    (void)i;
    *b = (struct perf_block){.count = c->count, .source = -1};
}

void perf_block_of_rank(const struct perf_call *c, int i, struct perf_block *b)
{
    *b = (struct perf_block){.at = (size_t)i * c->count, .count = c->count, .source = i};
}

double perf_bytes_call(const struct perf_call *c, const struct perf_layout *l)
{
    (void)l;
    return (double)c->count * (double)c->type_size;
}

double perf_bytes_all(const struct perf_call *c, const struct perf_layout *l)
{
    return perf_bytes_call(c, l) * c->nranks;
}

double perf_factor_one(int nranks)
{
    (void)nranks;
    return 1;
}

double perf_factor_others(int nranks)
{
    return (double)(nranks - 1) / nranks;
}

/*
 * Fills the buffers before a checked call and compares them after it: every expected block; that
 * nothing was written after the end of the receive buffer; and, out of place, that the send buffer
 * is unchanged. It works in pieces, so it needs no buffer as large as the result.
 */
#include "perf.h"

#include <string.h>

#define PIECE_BYTES 32768
static const char guard_byte = 0x5a;

static void write_input(const struct perf_op *op, const struct perf_call *c,
                        const struct perf_layout *l, const struct perf_data *d)
{
    char piece[PIECE_BYTES];
    size_t most = PIECE_BYTES / c->type_size;
    for (size_t at = 0; at < l->send; at += most) {
        size_t n = l->send - at < most ? l->send - at : most;
        perf_data_input(d, c->rank, op->reduces, at, n, piece);
        api_mem_write((char *)(uintptr_t)c->send + at * c->type_size, piece, n * c->type_size);
    }
}

void perf_verify_fill(const struct perf_op *op, const struct perf_call *c,
                      const struct perf_layout *l, const struct perf_data *d,
                      const struct perf_buffers *b)
{
    char piece[PIECE_BYTES] = {0};
    for (char *at = b->base; at < b->end; at += sizeof piece) {
        size_t n = (size_t)(b->end - at);
        api_mem_write(at, piece, n < sizeof piece ? n : sizeof piece);
    }
    memset(piece, guard_byte, PERF_GUARD_BYTES);
    api_mem_write(b->end, piece, PERF_GUARD_BYTES);
    write_input(op, c, l, d);
}

static size_t check_block(const struct perf_call *c, const struct perf_data *d,
                          const struct perf_block *block)
{
    char want[PIECE_BYTES], got[PIECE_BYTES];
    size_t most = PIECE_BYTES / c->type_size, wrong = 0;
    bool reduced = block->source < 0;
    for (size_t at = 0; at < block->count; at += most) {
        size_t n = block->count - at < most ? block->count - at : most;
        if (reduced)
            perf_data_reduced(d, block->from + at, n, want);
        else
            perf_data_input(d, block->source, false, block->from + at, n, want);
        api_mem_read(got, c->recv + (block->at + at) * c->type_size, n * c->type_size);
        wrong += perf_data_compare(d, reduced, got, want, n);
    }
    return wrong;
}

static size_t check_sent(const struct perf_op *op, const struct perf_call *c,
                         const struct perf_layout *l, const struct perf_data *d)
{
    char want[PIECE_BYTES], got[PIECE_BYTES];
    size_t most = PIECE_BYTES / c->type_size, wrong = 0;
    for (size_t at = 0; at < l->send; at += most) {
        size_t n = l->send - at < most ? l->send - at : most;
        perf_data_input(d, c->rank, op->reduces, at, n, want);
        api_mem_read(got, c->send + at * c->type_size, n * c->type_size);
        wrong += memcmp(got, want, n * c->type_size) ? 1 : 0;
    }
    return wrong;
}

size_t perf_verify_check(const struct perf_op *op, const struct perf_call *c,
                         const struct perf_layout *l, const struct perf_data *d,
                         const struct perf_buffers *b)
{
    size_t wrong = 0;
    for (int i = 0; i < op->nblocks(c); i++) {
        struct perf_block block;
        op->block(c, i, &block);
        wrong += check_block(c, d, &block);
    }
    char guard[PERF_GUARD_BYTES];
    api_mem_read(guard, b->end, sizeof guard);
    for (size_t i = 0; i < sizeof guard; i++)
        wrong += guard[i] != guard_byte;
    return b->in_place ? wrong : wrong + check_sent(op, c, l, d);
}

/*
 * Inputs whose reduction gives the same result in any order, so that the result can be compared bit
 * by bit. Integers wrap. Floats are small integers whose sum of magnitudes the type represents
 * exactly; for products they are signs and a few factors 2 and 1/2. For averages that must be
 * rounded, either one rank contributes (small types) or all values are positive. Element i of rank
 * r is a function of (i, r, rep) only. All ranks share the `word` of an element, so an expected
 * result costs one hash and one multiplication per rank.
 */
#include "perf.h"

#include <limits.h>
#include <math.h>
#include <string.h>

#define TABLE_LIMIT 2048 /* encodings of integers up to this are in a table */

static uint64_t word(const struct perf_data *d, size_t i)
{
    uint64_t x = (uint64_t)i * 0x9e3779b97f4a7c15ull + (d->rep + 1) * 0xd1342543de82ef95ull;
    x = (x ^ x >> 29) * 0xbf58476d1ce4e5b9ull;
    return x ^ x >> 32;
}

static uint64_t rank_word(uint64_t w, int rank)
{
    uint64_t x = (w + (uint64_t)(rank + 1) * 0xa0761d6478bd642full) * 0xe7037ed1a0b428dbull;
    return x ^ x >> 31;
}

/* Maps the upper half of a word to 0 .. n-1. */
static int below(uint64_t x, int n)
{
    return (int)((x >> 32) * (uint64_t)n >> 32);
}

static bool power_of_two(int n)
{
    return (n & (n - 1)) == 0;
}

static bool is_16_or_8(int type)
{
    return perf_type_size(type) <= 2;
}

/* How averages of floats are made testable: exact values, one contributor, or positive numbers with
 * a tolerance. */
enum average { EXACT, ONE, POSITIVE };
static enum average average_kind(const struct perf_data *d)
{
    if (power_of_two(d->nranks) && perf_type_size(d->type) > 1)
        return EXACT;
    return is_16_or_8(d->type) ? ONE : POSITIVE;
}

/* ---- integers -------------------------------------------------------------------------------- */

static uint64_t truncate_to(int type, uint64_t x)
{
    size_t size = perf_type_size(type);
    return size == 8 ? x : x & ((1ull << 8 * size) - 1);
}

static int64_t as_signed(int type, uint64_t x)
{
    int shift = 64 - 8 * (int)perf_type_size(type);
    return (int64_t)(x << shift) >> shift;
}

static uint64_t integer(const struct perf_data *d, int rank, uint64_t w)
{
    uint64_t x = rank_word(w, rank);
    if (d->op == CCL(Avg)) { /* the sum must not wrap */
        uint64_t most = perf_type_size(d->type) == 1 ? (perf_type_is_signed(d->type) ? 127 : 255)
                                                     : 1000000;
        if ((uint64_t)d->nranks > most)
            return (w + (uint64_t)rank) % (uint64_t)d->nranks < most;
        return (uint64_t)below(x, (int)(most / (uint64_t)d->nranks) + 1);
    }
    if (d->op == CCL(Prod))
        x |= 1; /* odd, because even factors would soon make all products 0 */
    return truncate_to(d->type, x);
}

static bool less(int type, uint64_t a, uint64_t b)
{
    return perf_type_is_signed(type) ? as_signed(type, a) < as_signed(type, b) : a < b;
}

static uint64_t integer_reduced(const struct perf_data *d, uint64_t w)
{
    uint64_t acc = integer(d, 0, w);
    if (d->op == PERF_MULSUM)
        acc *= perf_data_scalar(d, 0);
    for (int r = 1; r < d->nranks; r++) {
        uint64_t x = integer(d, r, w);
        switch (d->op) {
        case CCL(Prod):
            acc *= x;
            break;
        case CCL(Max):
            acc = less(d->type, acc, x) ? x : acc;
            break;
        case CCL(Min):
            acc = less(d->type, x, acc) ? x : acc;
            break;
        case PERF_MULSUM:
            acc += x * perf_data_scalar(d, r);
            break;
        default:
            acc += x;
        }
    }
    if (d->op == CCL(Avg))
        acc /= (uint64_t)d->nranks;
    return truncate_to(d->type, acc);
}

/* ---- floats ---------------------------------------------------------------------------------- */

/* The largest n for which the type represents all integers up to n. */
static int exact_limit(int type)
{
    int digits = perf_type_digits(type);
    return digits > 11 ? TABLE_LIMIT : 1 << digits;
}

/* The magnitudes of all ranks add up to at most `limit`. */
static double bounded(const struct perf_data *d, int rank, uint64_t w, int limit)
{
    uint64_t x = rank_word(w, rank);
    double sign = x & 1 ? -1 : 1;
    int most = limit / d->nranks;
    if (most > 0) {
        double v = below(x, most + 1);
        return v == 0 ? 0 : sign * v;
    }
    return (w + (uint64_t)rank) % (uint64_t)d->nranks < (uint64_t)limit ? sign : 0;
}

/* Up to three factors 2 and three 1/2 over the ranks, the rest 1, with signs. */
static double factor(const struct perf_data *d, int rank, uint64_t w)
{
    uint64_t x = rank_word(w, rank);
    int slot = (int)((w + (uint64_t)rank) % (uint64_t)d->nranks), each = d->nranks >= 6   ? 3
                                                                         : d->nranks >= 2 ? 1
                                                                                          : 0;
    double v = slot < each ? 2 : slot < 2 * each ? 0.5 : 1;
    return x & 1 ? -v : v;
}

static double averaged(const struct perf_data *d, int rank, uint64_t w)
{
    uint64_t x = rank_word(w, rank);
    switch (average_kind(d)) {
    case EXACT:
        return bounded(d, rank, w, exact_limit(d->type));
    case POSITIVE:
        return 1 + below(x, 64);
    default:
        break;
    }
    if ((int)((w >> 8) % (uint64_t)d->nranks) != rank)
        return 0;
    int scale = 1;
    /* keeps the quotient a normal number */
    while (scale * 2 <= d->nranks && scale < 128)
        scale *= 2;
    return (1 + below(x, 3)) * scale;
}

static double real(const struct perf_data *d, int rank, uint64_t w)
{
    switch (d->op) {
    case CCL(Prod):
        return factor(d, rank, w);
    case CCL(Max):
    case CCL(Min): {
        int most = exact_limit(d->type) < 100 ? exact_limit(d->type) : 100;
        return below(rank_word(w, rank), 2 * most + 1) - most;
    }
    case CCL(Avg):
        return averaged(d, rank, w);
    /* scalars are 1 and 2 */
    case PERF_MULSUM:
        return bounded(d, rank, w, exact_limit(d->type) / 2);
    default:
        return bounded(d, rank, w, exact_limit(d->type));
    }
}

static double real_reduced(const struct perf_data *d, uint64_t w)
{
    double acc = real(d, 0, w);
    for (int r = 1; r < d->nranks; r++) {
        double x = real(d, r, w);
        switch (d->op) {
        case CCL(Prod):
            acc *= x;
            break;
        case CCL(Max):
            acc = x > acc ? x : acc;
            break;
        case CCL(Min):
            acc = x < acc ? x : acc;
            break;
        case PERF_MULSUM:
            acc += x * (1 + r % 2);
            break;
        default:
            acc += x;
        }
    }
    return d->op == CCL(Avg) ? acc / d->nranks : acc;
}

/* ---- interface ------------------------------------------------------------------------------- */

uint64_t perf_data_scalar(const struct perf_data *d, int rank)
{
    if (perf_type_is_float(d->type))
        return perf_float_bits(d->type, 1 + rank % 2);
    return 1 + (uint64_t)rank % 3;
}

static void store(int type, void *out, size_t i, uint64_t bits)
{
    size_t size = perf_type_size(type);
    memcpy((char *)out + i * size, &bits, size); /* little endian: the low bytes come first */
}

static uint64_t load(int type, const void *in, size_t i)
{
    size_t size = perf_type_size(type);
    uint64_t bits = 0;
    memcpy(&bits, (const char *)in + i * size, size);
    return bits;
}

/* Looks up small integers, which are nearly all values, in a table that is filled per thread and
 * type. */
static uint64_t float_bits(int type, double v)
{
    static _Thread_local uint16_t table[2 * TABLE_LIMIT + 1];
    static _Thread_local int table_type = -1;
    if (perf_type_size(type) > 2)
        return perf_float_bits(type, v);
    if (table_type != type)
        for (int i = -TABLE_LIMIT; i <= TABLE_LIMIT; i++)
            table[i + TABLE_LIMIT] = (uint16_t)perf_float_bits(type, i);
    table_type = type;
    int i = (int)v;
    return i == v && i >= -TABLE_LIMIT && i <= TABLE_LIMIT ? table[i + TABLE_LIMIT]
                                                           : perf_float_bits(type, v);
}

void perf_data_input(const struct perf_data *d, int rank, bool reduced, size_t from, size_t count,
                     void *out)
{
    bool is_float = perf_type_is_float(d->type);
    for (size_t i = 0; i < count; i++) {
        uint64_t w = word(d, from + i), bits;
        if (!reduced)
            bits = rank_word(w, rank); /* any bits: no arithmetic is done with them */
        else if (is_float)
            bits = float_bits(d->type, real(d, rank, w));
        else
            bits = integer(d, rank, w);
        store(d->type, out, i, bits);
    }
}

void perf_data_reduced(const struct perf_data *d, size_t from, size_t count, void *out)
{
    bool is_float = perf_type_is_float(d->type);
    for (size_t i = 0; i < count; i++) {
        uint64_t w = word(d, from + i);
        store(d->type, out, i,
              is_float ? float_bits(d->type, real_reduced(d, w)) : integer_reduced(d, w));
    }
}

/* Maps floats to integers in the same order; adjacent floats differ by one, and both zeros are
 * 0. */
static int64_t ordered(int type, uint64_t bits)
{
    int64_t magnitude = (int64_t)(bits & ~(1ull << (8 * perf_type_size(type) - 1)));
    return (uint64_t)magnitude == bits ? magnitude : -magnitude;
}

size_t perf_data_compare(const struct perf_data *d, bool reduced, const void *got, const void *want,
                         size_t count)
{
    if (!memcmp(got, want, count * perf_type_size(d->type)))
        return 0;
    bool is_float = reduced && perf_type_is_float(d->type);
    int64_t tolerance = 0;
    if (is_float && d->op == CCL(Avg) && average_kind(d) != EXACT)
        tolerance = average_kind(d) == ONE ? 1 : d->nranks + 2;
    size_t wrong = 0;
    for (size_t i = 0; i < count; i++) {
        uint64_t g = load(d->type, got, i), w = load(d->type, want, i);
        if (g == w)
            continue;
        int64_t apart;
        if (!is_float || __builtin_sub_overflow(ordered(d->type, g), ordered(d->type, w), &apart))
            wrong++;
        else if (apart > tolerance || apart < -tolerance)
            wrong++;
    }
    return wrong;
}

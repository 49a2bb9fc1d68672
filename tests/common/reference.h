/*
 * The results of collectives, computed in the slow and plain way. Tests in one process and under
 * MPI share it. It is C and C++; every function is static. It does not depend on the library: types
 * and operators are numbers.
 */
#ifndef FT_TESTS_REFERENCE_H
#define FT_TESTS_REFERENCE_H

#include <ftccl.h>
#include <math.h>
#include <stdint.h>
#include <string.h>

static const size_t ref_sizes[ftcclNumTypes] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1};
static const char *const ref_type_names[ftcclNumTypes] = {"int8",     "uint8",      "int32",
                                                          "uint32",   "int64",      "uint64",
                                                          "float16",  "float32",    "float64",
                                                          "bfloat16", "float8e4m3", "float8e5m2"};
static const char *const ref_op_names[ftcclNumOps] = {"sum", "prod", "max", "min", "avg"};

static inline int ref_is_float(int type)
{
    return type >= ftcclFloat16;
}
static inline int ref_is_signed(int type)
{
    return type == ftcclInt8 || type == ftcclInt32 || type == ftcclInt64;
}

/* Bits of exponent and mantissa of the small floats. e4m3 has no infinity, and one more binade than
 * IEEE would give it. */
static inline void ref_format(int type, int *exponent_bits, int *mantissa_bits)
{
    *exponent_bits = type == ftcclFloat16      ? 5
                     : type == ftcclBfloat16   ? 8
                     : type == ftcclFloat8e4m3 ? 4
                                               : 5;
    *mantissa_bits = type == ftcclFloat16      ? 10
                     : type == ftcclBfloat16   ? 7
                     : type == ftcclFloat8e4m3 ? 3
                                               : 2;
}

static inline double ref_decode(int type, unsigned bits)
{
    int eb, mb;
    ref_format(type, &eb, &mb);
    int bias = (1 << (eb - 1)) - 1;
    int e = (int)(bits >> mb) & ((1 << eb) - 1);
    int m = (int)bits & ((1 << mb) - 1);
    double sign = (bits >> (eb + mb)) & 1 ? -1.0 : 1.0;
    if (type == ftcclFloat8e4m3 ? e == 15 && m == 7 : e == (1 << eb) - 1 && m != 0)
        return NAN;
    if (type != ftcclFloat8e4m3 && e == (1 << eb) - 1)
        return sign * INFINITY;
    return sign * (e == 0 ? ldexp(m, 1 - bias - mb) : ldexp((1 << mb) + m, e - bias - mb));
}

/* Rounds to nearest even. e4m3 saturates; the others overflow to infinity. */
static inline unsigned ref_encode(int type, double x)
{
    int eb, mb, e;
    ref_format(type, &eb, &mb);
    int bias = (1 << (eb - 1)) - 1;
    unsigned sign = signbit(x) ? 1u << (eb + mb) : 0;
    unsigned infinity = ((1u << eb) - 1) << mb;
    double a = fabs(x);
    if (isnan(x))
        return type == ftcclFloat8e4m3 ? 0x7f : infinity | 1u << (mb - 1);
    if (type == ftcclFloat8e4m3 && a > 448)
        return sign | 0x7e;
    if (isinf(x))
        return sign | infinity;
    if (a == 0)
        return sign;
    frexp(a, &e); /* a = f * 2^e, f in [1/2, 1) */
    e -= 1;
    if (e < 1 - bias)
        e = 1 - bias;
    /* It may carry into the exponent. The sum below is still right. */
    unsigned m = (unsigned)nearbyint(ldexp(a, mb - e));
    unsigned bits = m < (1u << mb) ? m : (((unsigned)(e + bias) << mb) + (m - (1u << mb)));
    if (type == ftcclFloat8e4m3)
        return sign | (bits > 0x7e ? 0x7e : bits);
    return sign | (bits > infinity ? infinity : bits);
}

static inline double ref_get_float(int type, const void *array, size_t i)
{
    if (type == ftcclFloat64) {
        double v;
        memcpy(&v, (const char *)array + 8 * i, 8);
        return v;
    }
    if (type == ftcclFloat32) {
        float v;
        memcpy(&v, (const char *)array + 4 * i, 4);
        return (double)v;
    }
    if (ref_sizes[type] == 2) {
        uint16_t v;
        memcpy(&v, (const char *)array + 2 * i, 2);
        return ref_decode(type, v);
    }
    return ref_decode(type, ((const uint8_t *)array)[i]);
}

static inline void ref_put_float(int type, void *array, size_t i, double x)
{
    if (type == ftcclFloat64)
        memcpy((char *)array + 8 * i, &x, 8);
    else if (type == ftcclFloat32) {
        float v = (float)x;
        memcpy((char *)array + 4 * i, &v, 4);
    } else if (ref_sizes[type] == 2) {
        uint16_t v = (uint16_t)ref_encode(type, x);
        memcpy((char *)array + 2 * i, &v, 2);
    } else
        ((uint8_t *)array)[i] = (uint8_t)ref_encode(type, x);
}

/* Integers extended to 64 bits. */
static inline uint64_t ref_get_int(int type, const void *array, size_t i)
{
    uint64_t v = 0;
    size_t size = ref_sizes[type];
    memcpy(&v, (const char *)array + size * i, size); /* little endian */
    if (ref_is_signed(type) && size < 8 && (v >> (8 * size - 1)) & 1)
        v |= ~(uint64_t)0 << (8 * size);
    return v;
}

static inline void ref_put_int(int type, void *array, size_t i, uint64_t v)
{
    memcpy((char *)array + ref_sizes[type] * i, &v, ref_sizes[type]);
}

static inline uint64_t ref_mix(uint64_t x)
{
    x += 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

/* Inputs whose sums, products and averages over up to 8 ranks are exact in every order: small
 * integers for floats (as few as the mantissa allows), all bits for integers. */
static inline void ref_fill(int type, int op, void *array, size_t count, uint64_t seed)
{
    for (size_t i = 0; i < count; i++) {
        uint64_t r = ref_mix(seed * 0x100000001b3u + i);
        if (!ref_is_float(type))
            ref_put_int(type, array, i, op == ftcclAvg ? r & 15 : r);
        else if (op == ftcclProd)
            ref_put_float(type, array, i, r & 1 ? 2 : 1);
        else if (op == ftcclMax || op == ftcclMin)
            ref_put_float(type, array, i, (double)(r % 15) - 7);
        else if (op == ftcclAvg)
            ref_put_float(type, array, i, r & 1 ? 8 : 0);
        else
            ref_put_float(type, array, i,
                          type == ftcclFloat8e5m2 ? (double)(r % 3) - 1 : (double)(r % 4) - 1);
    }
}

static inline uint64_t ref_combine_int(int type, int op, uint64_t a, uint64_t b)
{
    int less = ref_is_signed(type) ? (int64_t)a < (int64_t)b : a < b;
    switch (op) {
    case ftcclProd:
        return a * b;
    case ftcclMax:
        return less ? b : a;
    case ftcclMin:
        return less ? a : b;
    default:
        return a + b;
    }
}

static inline double ref_combine_float(int op, double a, double b)
{
    switch (op) {
    case ftcclProd:
        return a * b;
    case ftcclMax:
        return a > b ? a : b;
    case ftcclMin:
        return a < b ? a : b;
    default:
        return a + b;
    }
}

/* result[to] = op over ranks of input[r][from]. */
static inline void ref_reduce(int type, int op, int nranks, const void *const *input, size_t from,
                              void *result, size_t to)
{
    if (ref_is_float(type)) {
        double v = ref_get_float(type, input[0], from);
        for (int r = 1; r < nranks; r++)
            v = ref_combine_float(op, v, ref_get_float(type, input[r], from));
        ref_put_float(type, result, to, op == ftcclAvg ? v / nranks : v);
        return;
    }
    uint64_t v = ref_get_int(type, input[0], from);
    for (int r = 1; r < nranks; r++)
        v = ref_combine_int(type, op, v, ref_get_int(type, input[r], from));
    ref_put_int(type, result, to, v);
    if (op != ftcclAvg)
        return;
    v = ref_get_int(type, result, to);
    v = ref_is_signed(type) ? (uint64_t)((int64_t)v / nranks) : v / (unsigned)nranks;
    ref_put_int(type, result, to, v);
}

/* The index of the first element that differs, or count. Averages of floats over a number of ranks
 * that is not a power of two are rounded on the way. For these, two units in the last place per
 * rank are allowed. */
static inline size_t ref_differs(int type, int op, int nranks, const void *got, const void *want,
                                 size_t count)
{
    size_t size = ref_sizes[type];
    if (memcmp(got, want, size * count) == 0)
        return count;
    int eb, mb;
    ref_format(type, &eb, &mb);
    if (type == ftcclFloat32)
        mb = 23;
    if (type == ftcclFloat64)
        mb = 52;
    int exact = op != ftcclAvg || !ref_is_float(type) || (nranks & (nranks - 1)) == 0;
    for (size_t i = 0; i < count; i++) {
        if (memcmp((const char *)got + size * i, (const char *)want + size * i, size) == 0)
            continue;
        if (!ref_is_float(type))
            return i;
        double g = ref_get_float(type, got, i), w = ref_get_float(type, want, i);
        if (g == w)
            continue; /* zeros may have either sign */
        if (exact || !(fabs(g - w) <= 2 * nranks * ldexp(fabs(w) > 1 ? fabs(w) : 1, -mb)))
            return i;
    }
    return count;
}

#endif

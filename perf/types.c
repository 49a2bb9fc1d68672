/* Names and sizes of types and operators in nccl-tests' spelling, and the encodings of small
 * floats. */
#include "perf.h"

#include <math.h>
#include <string.h>

static const struct type {
    const char *name, *also;
    size_t size_bytes;
    int exponent_bits, mantissa_bits; /* 0: an integer */
    bool is_signed;
} types[CCL(NumTypes)] = {
    [CCL(Int8)] = {"int8", "char", 1, 0, 0, true},
    [CCL(Uint8)] = {"uint8", NULL, 1, 0, 0, false},
    [CCL(Int32)] = {"int32", "int", 4, 0, 0, true},
    [CCL(Uint32)] = {"uint32", NULL, 4, 0, 0, false},
    [CCL(Int64)] = {"int64", NULL, 8, 0, 0, true},
    [CCL(Uint64)] = {"uint64", NULL, 8, 0, 0, false},
    [CCL(Float16)] = {"half", "float16", 2, 5, 10, true},
    [CCL(Float32)] = {"float", "float32", 4, 8, 23, true},
    [CCL(Float64)] = {"double", "float64", 8, 11, 52, true},
    [CCL(Bfloat16)] = {"bfloat16", "bf16", 2, 8, 7, true},
    [CCL(Float8e4m3)] = {"f8e4m3", "float8e4m3", 1, 4, 3, true},
    [CCL(Float8e5m2)] = {"f8e5m2", "float8e5m2", 1, 5, 2, true},
};

static const char *const ops[] = {"sum", "prod", "max", "min", "avg", "mulsum"};

size_t perf_type_size(int type)
{
    return types[type].size_bytes;
}
const char *perf_type_name(int type)
{
    return types[type].name;
}
bool perf_type_is_float(int type)
{
    return types[type].exponent_bits > 0;
}
bool perf_type_is_signed(int type)
{
    return types[type].is_signed;
}
int perf_type_digits(int type)
{
    return types[type].mantissa_bits + 1;
}
const char *perf_op_name(int op)
{
    return ops[op];
}

int perf_type_find(const char *name)
{
    if (!strcmp(name, "all"))
        return PERF_ALL;
    for (int i = 0; i < CCL(NumTypes); i++)
        if (!strcmp(name, types[i].name) || (types[i].also && !strcmp(name, types[i].also)))
            return i;
    return -2;
}

int perf_op_find(const char *name)
{
    if (!strcmp(name, "all"))
        return PERF_ALL;
    for (int i = 0; i <= PERF_MULSUM; i++)
        if (!strcmp(name, ops[i]))
            return i;
    return -2;
}

static uint64_t largest_bits(int type)
{
    int m = types[type].mantissa_bits;
    /* 448: this format has no infinity */
    if (type == CCL(Float8e4m3))
        return 0x7e;
    return ((1ull << types[type].exponent_bits) - 1) << m; /* infinity */
}

uint64_t perf_float_bits(int type, double value)
{
    if (type == CCL(Float64) || type == CCL(Float32)) {
        uint64_t bits = 0;
        float f = (float)value;
        if (type == CCL(Float64))
            memcpy(&bits, &value, sizeof value);
        else
            memcpy(&bits, &f, sizeof f);
        return bits;
    }
    int m = types[type].mantissa_bits, bias = (1 << (types[type].exponent_bits - 1)) - 1, exponent;
    uint64_t sign = signbit(value) ? 1ull << (types[type].exponent_bits + m) : 0;
    value = fabs(value);
    if (value == 0)
        return sign;
    frexp(value, &exponent);
    /* below the range: subnormal, with the lowest exponent */
    exponent = exponent - 1 < 1 - bias ? 1 - bias : exponent - 1;
    /* units of the last place; rounded to nearest even */
    double units = nearbyint(ldexp(value, m - exponent));
    /* A hidden bit adds 1 to the exponent field; a carry out of the significand does too. */
    uint64_t bits = ((uint64_t)(exponent + bias - 1) << m) + (uint64_t)units;
    return sign | (bits > largest_bits(type) ? largest_bits(type) : bits);
}

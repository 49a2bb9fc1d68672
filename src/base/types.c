/*
 * Names and sizes of the types, operators and collectives. The order is that of the enums in
 * base.h.
 */
#include "base/base.h"

#include <math.h>
#include <string.h>

size_t ft_type_size(enum ft_type type)
{
    static const unsigned char size[FT_TYPES] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1};
    return (unsigned)type < FT_TYPES ? size[type] : 0;
}

const char *ft_type_name(enum ft_type type)
{
    static const char *const name[FT_TYPES] = {"int8",    "uint8",    "int32",   "uint32",
                                               "int64",   "uint64",   "float16", "float32",
                                               "float64", "bfloat16", "f8e4m3",  "f8e5m2"};
    return (unsigned)type < FT_TYPES ? name[type] : "?";
}

const char *ft_red_name(enum ft_red red)
{
    static const char *const name[FT_REDS] = {"sum", "prod", "max", "min", "avg"};
    return (unsigned)red < FT_REDS ? name[red] : "premulsum";
}

const char *ft_kind_name(enum ft_kind kind)
{
    static const char *const name[FT_KINDS] = {"AllReduce", "Broadcast",     "Reduce",
                                               "AllGather", "ReduceScatter", "AlltoAll",
                                               "Gather",    "Scatter",       "Send",
                                               "Recv",      "PutSignal",     "WaitSignal"};
    return (unsigned)kind < FT_KINDS ? name[kind] : "?";
}

/* Decodes a small float: a sign bit, then `exponent` bits with the usual bias, then `mantissa`
 * bits. */
static float decode(unsigned bits, int exponent, int mantissa, bool has_infinity)
{
    unsigned e = bits >> mantissa & ((1u << exponent) - 1), m = bits & ((1u << mantissa) - 1),
             top = (1u << exponent) - 1;
    int bias = (1 << (exponent - 1)) - 1;
    float sign = bits >> (exponent + mantissa) & 1 ? -1.0f : 1.0f;
    if (e == top && has_infinity)
        return m ? NAN : sign * INFINITY;
    if (e == top && m == (1u << mantissa) - 1)
        return NAN;
    float value = e ? ldexpf((float)(m | 1u << mantissa), (int)e - bias - mantissa)
                    : ldexpf((float)m, 1 - bias - mantissa);
    return sign * value;
}

float ft_scalar_to_float(enum ft_type type, const void *from)
{
    uint16_t half = 0;
    uint8_t byte = 0;
    float value = 0;
    if (ft_type_size(type) == 2)
        memcpy(&half, from, 2);
    if (ft_type_size(type) == 1)
        memcpy(&byte, from, 1);
    switch (type) {
    case FT_FLOAT32:
        memcpy(&value, from, 4);
        return value;
    case FT_FLOAT16:
        return decode(half, 5, 10, true);
    case FT_BFLOAT16:
        return decode(half, 8, 7, true);
    case FT_FLOAT8E5M2:
        return decode(byte, 5, 2, true);
    case FT_FLOAT8E4M3:
        return decode(byte, 4, 3, false);
    default:
        return 0;
    }
}

void ft_redop_read_scale(struct ft_redop *redop, enum ft_type type, const void *scalar)
{
    int32_t narrow;
    redop->scale.u64 = 0;
    if (type == FT_INT8)
        redop->scale.i64 = *(const int8_t *)scalar;
    else if (type == FT_INT32)
        memcpy(&narrow, scalar, sizeof narrow), redop->scale.i64 = narrow;
    else if (type == FT_FLOAT64 || !ft_type_is_float(type))
        memcpy(&redop->scale, scalar, ft_type_size(type));
    else
        redop->scale.f32 = ft_scalar_to_float(type, scalar);
}

void ft_redop_average(struct ft_redop *redop, enum ft_type type, int contributors)
{
    *redop = (struct ft_redop){.red = FT_SUM};
    if (!ft_type_is_float(type))
        redop->divisor = (uint32_t)contributors;
    else if (contributors > 1) {
        redop->scaled = true;
        if (type == FT_FLOAT64)
            redop->scale.f64 = 1.0 / contributors;
        else
            redop->scale.f32 = 1.0f / (float)contributors;
    }
}

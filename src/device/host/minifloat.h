/*
 * The 8-bit and 16-bit floats in terms of float32, one value at a time and in integer arithmetic,
 * so every machine gets the same bits. The vector kernels use the same constants.
 * docs/device-host.md has the rounding rules.
 */
#ifndef FT_DEVICE_MINIFLOAT_H
#define FT_DEVICE_MINIFLOAT_H

#include "base/base.h"
#include <string.h>

#define FT_F32_INF 0x7f800000u
#define FT_F32_NAN 0x7fc00000u /* every reduction that gives NaN gives this NaN */
#define FT_F64_INF 0x7ff0000000000000u
#define FT_F64_NAN 0x7ff8000000000000u

/* A format with fewer exponent bits than float32. bfloat16 is not such a format: it is the upper
 * half of a float32. */
struct ft_minifloat {
    int mant, bias;
    int sign;     /* position of the sign bit */
    uint32_t top; /* overflows become this: infinity, or e4m3's largest finite value */
    uint32_t nan;
    bool inf; /* it has infinities and NaNs as in IEEE 754; e4m3 has the single NaN 0x7f */
};

#define FT_MINI_F16         \
    ((struct ft_minifloat){ \
        .mant = 10, .bias = 15, .sign = 15, .top = 0x7c00, .nan = 0x7e00, .inf = true})
#define FT_MINI_E4M3 \
    ((struct ft_minifloat){.mant = 3, .bias = 7, .sign = 7, .top = 0x7e, .nan = 0x7f, .inf = false})
#define FT_MINI_E5M2 \
    ((struct ft_minifloat){.mant = 2, .bias = 15, .sign = 7, .top = 0x7c, .nan = 0x7e, .inf = true})

static inline uint32_t ft_f32_bits(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

static inline float ft_f32_of_bits(uint32_t bits)
{
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

/* ft_mini_tiny() is the format's smallest denormal. ft_mini_magic() is the power of two whose last
 * mantissa bit has that value: adding it to a smaller number rounds that number to a multiple of
 * the smallest denormal. Both are returned as float32 bits. */
static inline uint32_t ft_mini_tiny(struct ft_minifloat f)
{
    return (uint32_t)(127 + 1 - f.bias - f.mant) << 23;
}
static inline uint32_t ft_mini_magic(struct ft_minifloat f)
{
    return ft_mini_tiny(f) + (23u << 23);
}

static inline float ft_mini_widen(struct ft_minifloat f, uint32_t code)
{
    uint32_t mag = code & ((1u << f.sign) - 1), sign = code >> f.sign << 31, bits;
    if (f.inf ? mag > f.top : mag == f.nan)
        return ft_f32_of_bits(FT_F32_NAN);
    if (mag < 1u << f.mant)
        bits = ft_f32_bits((float)mag * ft_f32_of_bits(ft_mini_tiny(f)));
    else if (f.inf && mag == f.top)
        bits = FT_F32_INF;
    else
        bits = (mag << (23 - f.mant)) + ((uint32_t)(127 - f.bias) << 23);
    return ft_f32_of_bits(bits | sign);
}

/* Rounds to nearest, ties to even. */
static inline uint32_t ft_mini_narrow(struct ft_minifloat f, float x)
{
    uint32_t bits = ft_f32_bits(x), mag = bits & 0x7fffffffu, sign = bits >> 31 << f.sign, code;
    int shift = 23 - f.mant;
    if (mag > FT_F32_INF)
        return f.nan;
    if (mag < (uint32_t)(128 - f.bias) << 23) {
        code = ft_f32_bits(ft_f32_of_bits(mag) + ft_f32_of_bits(ft_mini_magic(f))) -
               ft_mini_magic(f);
    } else {
        uint32_t half = (1u << (shift - 1)) - 1 + (mag >> shift & 1);
        code = ((mag + half) >> shift) - ((uint32_t)(127 - f.bias) << f.mant);
        if (code > f.top)
            code = f.top;
    }
    return code | sign;
}

static inline float ft_bf16_widen(uint32_t code)
{
    return ft_f32_of_bits(code << 16);
}

static inline uint32_t ft_bf16_narrow(float x)
{
    uint32_t bits = ft_f32_bits(x);
    if ((bits & 0x7fffffffu) > FT_F32_INF)
        return FT_F32_NAN >> 16;
    return (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
}

#endif

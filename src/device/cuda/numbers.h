/*
 * The types and operations of a pass, for the kernel and for its version on the host. The results
 * equal those of the reference kernels in device/host/scalar.c bit for bit (docs/device-host.md has
 * the rules). Number<type> defines the form of a value in memory (raw) and in registers (value),
 * and converts between them. Compiled without contraction and without flushing of denormals.
 */
#ifndef FT_CUDA_NUMBERS_H
#define FT_CUDA_NUMBERS_H

#include <stdint.h>
#include <string.h>

#ifdef __CUDACC__
#define FT_FN __device__ __forceinline__
/* a function of its own: one function for all types and operations would compile for minutes */
#define FT_APART __device__ __noinline__
#else
#define FT_FN inline __attribute__((always_inline))
#define FT_APART
#endif

namespace ft
{

enum Type {
    INT8,
    UINT8,
    INT32,
    UINT32,
    INT64,
    UINT64,
    FLOAT16,
    FLOAT32,
    FLOAT64,
    BFLOAT16,
    FLOAT8E4M3,
    FLOAT8E5M2
};
enum Red { SUM, PROD, MAX, MIN };

template <typename To, typename From> FT_FN To bits_as(From from)
{
    static_assert(sizeof(To) == sizeof(From), "the same bits");
    To to;
    memcpy(&to, &from, sizeof to);
    return to;
}

template <int RED, typename T, typename U> FT_FN T int_combine(T a, T b)
{
    if (RED == SUM)
        return (T)((U)a + (U)b);
    if (RED == PROD)
        return (T)((U)a * (U)b);
    if (RED == MAX)
        return a > b ? a : b;
    return a < b ? a : b;
}

/* U is unsigned and at least as wide as int, so nothing overflows. The average is divided in type
 * D. */
template <typename T, typename U, typename D> struct Integer {
    typedef T raw;
    typedef T value;
    static FT_FN T widen(T x)
    {
        return x;
    }
    static FT_FN T narrow(T x)
    {
        return x;
    }
    static FT_FN T scale_of(uint64_t bits)
    {
        return (T)bits;
    }
    static FT_FN T scale(T x, T by)
    {
        return (T)((U)x * (U)by);
    }
    static FT_FN T divide(T x, uint32_t by)
    {
        return (T)((D)x / (D)by);
    }
    template <int RED> static FT_FN T combine(T a, T b)
    {
        return int_combine<RED, T, U>(a, b);
    }
};

/* Numbers that are equal and not zero have equal bits. +0 counts as larger than -0. */
template <typename F, typename B> FT_FN F extreme(F a, F b, bool max, B nan)
{
    if (a != a || b != b)
        return bits_as<F>(nan);
    if (a == b)
        return bits_as<F>((B)(max ? bits_as<B>(a) & bits_as<B>(b) : bits_as<B>(a) | bits_as<B>(b)));
    return (a > b) == max ? a : b;
}

template <typename F, typename B, uint64_t NAN_BITS> struct Floating {
    typedef F value;
    static FT_FN F scale(F x, F by)
    {
        return x * by;
    }
    static FT_FN F divide(F x, uint32_t by)
    {
        return x / (F)by;
    }
    template <int RED> static FT_FN F combine(F a, F b)
    {
        if (RED == SUM)
            return a + b;
        if (RED == PROD)
            return a * b;
        return extreme<F, B>(a, b, RED == MAX, (B)NAN_BITS);
    }
    static FT_FN F clean(F x)
    {
        return x != x ? bits_as<F>((B)NAN_BITS) : x;
    }
};

struct Float32 : Floating<float, uint32_t, 0x7fc00000u> {
    static FT_FN float scale_of(uint64_t bits)
    {
        return bits_as<float>((uint32_t)bits);
    }
};

/* A format with fewer exponent bits than float32. Overflows become `TOP`. */
template <typename R, int MANT, int BIAS, int SIGN, uint32_t TOP, uint32_t NAN_CODE, bool INF>
struct Small : Float32 {
    typedef R raw;
    /* the smallest denormal */
    static const uint32_t tiny = (uint32_t)(127 + 1 - BIAS - MANT) << 23;
    /* adding this rounds a number to a multiple of tiny */
    static const uint32_t magic = tiny + (23u << 23);
    static FT_FN float widen(R code)
    {
        uint32_t mag = code & ((1u << SIGN) - 1), sign = (uint32_t)code >> SIGN << 31, bits;
        if (INF ? mag > TOP : mag == NAN_CODE)
            return bits_as<float>(0x7fc00000u);
        if (mag < 1u << MANT)
            bits = bits_as<uint32_t>((float)mag * bits_as<float>((uint32_t)tiny));
        else if (INF && mag == TOP)
            bits = 0x7f800000u;
        else
            bits = (mag << (23 - MANT)) + ((uint32_t)(127 - BIAS) << 23);
        return bits_as<float>(bits | sign);
    }
    static FT_FN R narrow(float x)
    {
        uint32_t bits = bits_as<uint32_t>(x), mag = bits & 0x7fffffffu, sign = bits >> 31 << SIGN,
                 code;
        if (mag > 0x7f800000u)
            return (R)NAN_CODE;
        if (mag < (uint32_t)(128 - BIAS) << 23) {
            code = bits_as<uint32_t>(bits_as<float>(mag) + bits_as<float>((uint32_t)magic)) - magic;
        } else {
            const int shift = 23 - MANT;
            uint32_t half = (1u << (shift - 1)) - 1 + (mag >> shift & 1);
            code = ((mag + half) >> shift) - ((uint32_t)(127 - BIAS) << MANT);
            if (code > TOP)
                code = TOP;
        }
        return (R)(code | sign);
    }
};

template <int TYPE> struct Number;
template <> struct Number<INT8> : Integer<int8_t, uint32_t, int64_t> {
};
template <> struct Number<UINT8> : Integer<uint8_t, uint32_t, uint32_t> {
};
template <> struct Number<INT32> : Integer<int32_t, uint32_t, int64_t> {
};
template <> struct Number<UINT32> : Integer<uint32_t, uint32_t, uint32_t> {
};
template <> struct Number<INT64> : Integer<int64_t, uint64_t, int64_t> {
};
template <> struct Number<UINT64> : Integer<uint64_t, uint64_t, uint64_t> {
};
/* The GPU's own conversion rounds in the same way and takes one instruction. Our conversion would
 * take longer than the memory access. */
template <> struct Number<FLOAT16> : Small<uint16_t, 10, 15, 15, 0x7c00, 0x7e00, true> {
#ifdef __CUDACC__
    static FT_FN float widen(uint16_t code)
    {
        float x;
        asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"(code));
        return x;
    }
    static FT_FN uint16_t narrow(float x)
    {
        uint16_t code;
        asm("cvt.rn.f16.f32 %0, %1;" : "=h"(code) : "f"(x));
        return x != x ? (uint16_t)0x7e00 : code;
    }
#endif
};
template <> struct Number<FLOAT8E4M3> : Small<uint8_t, 3, 7, 7, 0x7e, 0x7f, false> {
};
template <> struct Number<FLOAT8E5M2> : Small<uint8_t, 2, 15, 7, 0x7c, 0x7e, true> {
};
template <> struct Number<FLOAT32> : Float32 {
    typedef float raw;
    static FT_FN float widen(float x)
    {
        return x;
    }
    static FT_FN float narrow(float x)
    {
        return clean(x);
    }
};
template <> struct Number<FLOAT64> : Floating<double, uint64_t, 0x7ff8000000000000u> {
    typedef double raw;
    static FT_FN double scale_of(uint64_t bits)
    {
        return bits_as<double>(bits);
    }
    static FT_FN double widen(double x)
    {
        return x;
    }
    static FT_FN double narrow(double x)
    {
        return clean(x);
    }
};
template <> struct Number<BFLOAT16> : Float32 {
    typedef uint16_t raw;
    static FT_FN float widen(uint16_t code)
    {
        return bits_as<float>((uint32_t)code << 16);
    }
    static FT_FN uint16_t narrow(float x)
    {
        uint32_t bits = bits_as<uint32_t>(x);
        if ((bits & 0x7fffffffu) > 0x7f800000u)
            return 0x7fc0;
        return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
    }
};

} /* namespace ft */

#endif

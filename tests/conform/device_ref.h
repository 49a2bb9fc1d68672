/*
 * What a device must compute, written as slowly and plainly as possible. It shares nothing with the
 * kernels: a format is a list of its values, rounding is a search in that list, and a pass is a
 * loop over elements.
 */
#ifndef FT_DEVICE_REF_H
#define FT_DEVICE_REF_H

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <string>
#include <vector>
extern "C" {
#include "device/host/host.h"
}

/* A binary floating-point format by its definition. */
struct RefFormat {
    int mant, bias, bits;
    bool inf;                  /* false: all-ones is the only NaN, and overflow saturates */
    uint32_t nan;              /* the NaN that a combination returns */
    std::vector<double> value; /* values of the non-negative finite codes, ascending */

    RefFormat(int mant_, int exp_bits, int bias_, bool inf_, uint32_t nan_)
        : mant(mant_), bias(bias_), bits(1 + exp_bits + mant_), inf(inf_), nan(nan_)
    {
        uint32_t end = inf ? (((1u << exp_bits) - 1) << mant) : (1u << (bits - 1)) - 1;
        for (uint32_t code = 0; code < end; code++) {
            int e = (int)(code >> mant), m = (int)(code & ((1u << mant) - 1));
            value.push_back(e ? std::ldexp(1.0 + std::ldexp(m, -mant), e - bias)
                              : std::ldexp(m, 1 - bias - mant));
        }
    }

    double widen(uint32_t code) const
    {
        uint32_t mag = code & ((1u << (bits - 1)) - 1);
        double x = mag < value.size() ? value[mag] : inf && mag == value.size() ? INFINITY : NAN;
        return code >> (bits - 1) ? -x : x;
    }

    uint32_t narrow(double x) const
    {
        if (std::isnan(x))
            return nan;
        uint32_t sign = std::signbit(x) ? 1u << (bits - 1) : 0, n = (uint32_t)value.size();
        x = std::fabs(x);
        /* One step beyond the largest value, where infinity would be if it were finite. */
        double beyond = 2 * value[n - 1] - value[n - 2];
        uint32_t lo = 0, hi = n; /* invariant: value[lo] <= x < value[hi] */
        if (x >= beyond)
            return sign | (inf ? n : n - 1);
        while (hi - lo > 1)
            (value[(lo + hi) / 2] <= x ? lo : hi) = (lo + hi) / 2;
        double down = x - value[lo], up = (hi == n ? beyond : value[hi]) - x;
        uint32_t code = down < up ? lo : down > up ? hi : lo & 1 ? hi : lo;
        return sign | (code == n && !inf ? n - 1 : code);
    }
};

inline const RefFormat &ref_format(ft_type type)
{
    static const RefFormat f16(10, 5, 15, true, 0x7e00), bf16(7, 8, 127, true, 0x7fc0),
        e4m3(3, 4, 7, false, 0x7f), e5m2(2, 5, 15, true, 0x7e);
    return type == FT_FLOAT16      ? f16
           : type == FT_BFLOAT16   ? bf16
           : type == FT_FLOAT8E4M3 ? e4m3
                                   : e5m2;
}

inline bool ref_is_mini(ft_type type)
{
    return ft_type_is_float(type) && type != FT_FLOAT32 && type != FT_FLOAT64;
}

template <class T> T ref_get(const void *p, size_t i)
{
    T x;
    memcpy(&x, (const char *)p + i * sizeof x, sizeof x);
    return x;
}

template <class T> void ref_put(void *p, size_t i, T x)
{
    memcpy((char *)p + i * sizeof x, &x, sizeof x);
}

template <class F> F ref_extreme(F a, F b, bool max)
{
    if (std::isnan(a) || std::isnan(b))
        return std::numeric_limits<F>::quiet_NaN();
    if (a == 0 && b == 0)
        return max ? (std::signbit(a) ? b : a) : (std::signbit(a) ? a : b);
    return max ? std::fmax(a, b) : std::fmin(a, b);
}

template <class F>
F ref_float(const ft_reduce &r, F scale, F (*load)(ft_type, const void *, size_t), size_t i)
{
    F sum = 0;
    for (int k = 0; k < r.nsrc; k++) {
        volatile F v = load(r.type, r.src[k], i);
        if (r.scaled >> k & 1)
            v = v * scale;
        if (k == 0)
            sum = v;
        else if (r.op.red == FT_SUM)
            sum = sum + v;
        else if (r.op.red == FT_PROD)
            sum = sum * v;
        else
            sum = ref_extreme<F>(sum, v, r.op.red == FT_MAX);
    }
    if (r.divide && r.op.divisor > 1)
        sum = sum / (F)r.op.divisor;
    return sum;
}

inline float ref_load_f32(ft_type type, const void *p, size_t i)
{
    if (type == FT_FLOAT32)
        return ref_get<float>(p, i);
    uint32_t code = ft_type_size(type) == 2 ? ref_get<uint16_t>(p, i) : ref_get<uint8_t>(p, i);
    return (float)ref_format(type).widen(code);
}

inline double ref_load_f64(ft_type, const void *p, size_t i)
{
    return ref_get<double>(p, i);
}

template <class T> void ref_int(const ft_reduce &r, void *out, size_t i)
{
    typedef __int128 wide;
    wide sum = 0;
    for (int k = 0; k < r.nsrc; k++) {
        wide v = ref_get<T>(r.src[k], i);
        if (r.scaled >> k & 1)
            v = (T)((unsigned __int128)v * r.op.scale.u64);
        if (k == 0)
            sum = v;
        else if (r.op.red == FT_SUM)
            sum = (T)(sum + v);
        else if (r.op.red == FT_PROD)
            sum = (T)((unsigned __int128)sum * (unsigned __int128)v);
        else
            sum = (v > sum) == (r.op.red == FT_MAX) ? v : sum;
    }
    if (r.divide && r.op.divisor > 1)
        sum = sum / (wide)r.op.divisor;
    ref_put<T>(out, i, (T)sum);
}

/* Computes one element of a pass into `out`. */
inline void ref_element(const ft_reduce &r, void *out, size_t i)
{
    size_t size = ft_type_size(r.type);
    if (r.nsrc == 1 && !r.scaled && !(r.divide && r.op.divisor > 1)) {
        memcpy((char *)out + i * size, (const char *)r.src[0] + i * size, size);
        return;
    }
    switch (r.type) {
    case FT_INT8:
        return ref_int<int8_t>(r, out, i);
    case FT_UINT8:
        return ref_int<uint8_t>(r, out, i);
    case FT_INT32:
        return ref_int<int32_t>(r, out, i);
    case FT_UINT32:
        return ref_int<uint32_t>(r, out, i);
    case FT_INT64:
        return ref_int<int64_t>(r, out, i);
    case FT_UINT64:
        return ref_int<uint64_t>(r, out, i);
    case FT_FLOAT64: {
        double x = ref_float<double>(r, r.op.scale.f64, ref_load_f64, i);
        if (std::isnan(x))
            ref_put<uint64_t>(out, i, 0x7ff8000000000000u);
        else
            ref_put(out, i, x);
        return;
    }
    default:
        break;
    }
    float x = ref_float<float>(r, r.op.scale.f32, ref_load_f32, i);
    if (r.type == FT_FLOAT32) {
        if (std::isnan(x))
            ref_put<uint32_t>(out, i, 0x7fc00000u);
        else
            ref_put(out, i, x);
    } else if (size == 2) {
        ref_put(out, i, (uint16_t)ref_format(r.type).narrow(x));
    } else {
        ref_put(out, i, (uint8_t)ref_format(r.type).narrow(x));
    }
}

#endif

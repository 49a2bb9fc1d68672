/*
 * Random passes for the conformance tests of devices: types, operations, misalignments, scales,
 * divisors, aliases and streaming. It also has the sources that they share. The including test sets
 * `seed`.
 */
#ifndef FT_DEVICE_CASES_H
#define FT_DEVICE_CASES_H

#include "device_ref.h"
#include <cstdlib>
#include <memory>
#include <random>

static uint64_t seed;

/* A buffer between canaries, at a chosen distance from a cache line. */
struct Guarded {
    static const size_t PAD = 128;
    std::unique_ptr<unsigned char[]> own;
    unsigned char *mem, *data;
    size_t len;

    /* at: memory with that much space around it; nullptr: the buffer is allocated */
    Guarded(size_t len_, size_t skew, unsigned char *at = nullptr)
        : own(at ? nullptr : new unsigned char[len_ + 3 * PAD]), mem(at ? at : own.get()), len(len_)
    {
        memset(mem, 0xa5, len + 3 * PAD);
        data = (unsigned char *)ft_round_up((uintptr_t)mem + 64, 64) + skew;
    }
    bool intact() const
    {
        for (unsigned char *p = mem; p < mem + len + 3 * PAD; p++)
            if ((p < data || p >= data + len) && *p != 0xa5)
                return false;
        return true;
    }
};

inline std::string hex(const void *p, size_t size)
{
    std::string s = "0x";
    char digits[3];
    for (size_t i = size; i-- > 0;) {
        snprintf(digits, sizeof digits, "%02x", ((const unsigned char *)p)[i]);
        s += digits;
    }
    return s;
}

inline std::string describe(const ft_reduce &r)
{
    char text[256];
    snprintf(text, sizeof text,
             "%s %s nsrc %d ndst %d count %zu scaled %x divisor %u streaming %x (FT_SEED=%llu)",
             ft_type_name(r.type), ft_red_name(r.op.red), r.nsrc, r.ndst, r.count, r.scaled,
             r.divide ? r.op.divisor : 0, r.streaming, (unsigned long long)seed);
    return text;
}

/* An element that is often special: zeros, infinities, NaNs, extremes, equal neighbours, numbers of
 * similar size. */
inline void random_element(std::mt19937_64 &rng, ft_type type, void *p)
{
    uint64_t x = rng(), kind = rng() % 8;
    size_t size = ft_type_size(type);
    unsigned bits = (unsigned)(8 * size);
    if (kind == 0)
        x = 0;
    if (kind == 1)
        x = (uint64_t)1 << (bits - 1);
    if (kind == 2)
        x = ((uint64_t)1 << (bits - 1)) - 1;
    if (kind == 3)
        x = type == FT_FLOAT32      ? 0x7f800000u
            : type == FT_FLOAT64    ? 0x7ff0000000000000u
            : type == FT_FLOAT16    ? 0x7c00
            : type == FT_BFLOAT16   ? 0x7f80
            : type == FT_FLOAT8E5M2 ? 0x7c
                                    : 1;
    if (kind == 3 && rng() % 2)
        x |= (uint64_t)1 << (bits - 1);
    if (kind >= 5 && type == FT_FLOAT32)
        x = 0x3f000000u + (uint32_t)(x & 0x81ffffffu);
    if (kind >= 5 && type == FT_FLOAT64)
        x = 0x3fe0000000000000u + (x & 0x801fffffffffffffu);
    if (kind >= 5 && type == FT_BFLOAT16)
        x = 0x3f00 + (x & 0x81ff);
    memcpy(p, &x, size); /* little-endian */
}

inline void random_scale(std::mt19937_64 &rng, ft_reduce &r)
{
    static const double some[] = {1.0 / 3, 0.125, -2.5, 1e30, 1e-30, 0.0};
    double x = some[rng() % 6];
    r.op.scaled = true;
    r.scaled = (uint32_t)rng() & ((1u << r.nsrc) - 1);
    if (r.type == FT_FLOAT64)
        r.op.scale.f64 = x;
    else if (ft_type_is_float(r.type))
        r.op.scale.f32 = (float)x;
    else
        r.op.scale.u64 = rng() >> (rng() % 64);
}

/* One case. First the expected values are computed; then the same pass runs with every instruction
 * set. */
struct Case {
    ft_reduce r{};
    size_t skew_src[FT_REDUCE_SRCS]{}, skew_dst[FT_REDUCE_DSTS]{};
    int alias[FT_REDUCE_DSTS]; /* number of the source at the same address, or -1 */

    Case(std::mt19937_64 &rng, ft_type type, ft_red red, int nsrc, int ndst, size_t count)
    {
        static const uint32_t divisors[] = {2, 3, 8, 200, 70000, 4000000000u, 1, 0};
        r.type = type;
        r.op.red = red;
        r.nsrc = nsrc;
        r.ndst = ndst;
        r.count = count;
        r.streaming = (uint32_t)(rng() % 8);
        if (rng() % 3 == 0)
            random_scale(rng, r);
        r.divide = rng() % 4 == 0;
        if (rng() % 2)
            r.op.divisor = divisors[rng() % 8];
        bool aligned = rng() % 3 == 0;
        for (auto &s : skew_src)
            s = aligned ? 0 : rng() % 64;
        for (auto &s : skew_dst)
            s = aligned ? 0 : rng() % 64;
        size_t size = ft_type_size(type), common = rng() % 64 / size * size;
        if (rng() % 2)
            for (auto &s : skew_dst)
                s = common;
        for (int d = 0; d < FT_REDUCE_DSTS; d++)
            alias[d] = -1;
        /* Two destinations must not have the same address, so source k can only alias destination
         * k. */
        for (int d = 0; d < ndst && d < nsrc; d++)
            if (rng() % 6 == 0)
                alias[d] = d;
    }
};

/* Sources that later cases share, because filling new ones each time would take most of the
 * time. */
struct Pool {
    size_t len;
    std::vector<std::vector<unsigned char>> src;
    Pool(std::mt19937_64 &rng, ft_type type, size_t count)
        : len(count * ft_type_size(type)), src(FT_REDUCE_SRCS)
    {
        for (auto &s : src) {
            s.resize(len);
            for (size_t i = 0; i < len; i += ft_type_size(type))
                random_element(rng, type, &s[i]);
        }
        /* some equal elements */
        for (size_t i = 0; i + 64 < len; i += 640)
            memcpy(&src[1][i], &src[0][i], 64);
    }
};

#endif

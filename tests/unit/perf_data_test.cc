// Property: the inputs of the perf programs reduce to the expected result in every order. A result
// that lacks a rank, counts one twice, or holds another element is found. Method: reduces the
// inputs of random numbers of ranks along random trees, rounds after each step as the type does,
// and compares; then plants those mistakes. Prints its seed; FT_SEED replays.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <cstring>
#include <random>
#include <vector>

extern "C" {
#include "perf/perf.h"
}

namespace
{

const size_t kCount =
    256; // one in 13 contributes to an element: one that contributes to none must not happen

std::mt19937_64 &generator()
{
    static std::mt19937_64 g = [] {
        const char *text = getenv("FT_SEED");
        unsigned long seed = text ? strtoul(text, nullptr, 10) : std::random_device{}();
        printf("seed %lu; replay: FT_SEED=%lu tests/unit/perf_data_test\n", seed, seed);
        return std::mt19937_64(seed);
    }();
    return g;
}

double decode(int type, uint64_t bits)
{
    if (type == ftcclFloat64) {
        double d;
        memcpy(&d, &bits, 8);
        return d;
    }
    if (type == ftcclFloat32) {
        float f;
        memcpy(&f, &bits, 4);
        return f;
    }
    int size = 8 * (int)perf_type_size(type), m = perf_type_digits(type) - 1, e = size - 1 - m,
        bias = (1 << (e - 1)) - 1;
    int exponent = (int)(bits >> m & ((1u << e) - 1));
    double fraction = (double)(bits & ((1u << m) - 1));
    double v = exponent ? std::ldexp((1 << m) + fraction, exponent - bias - m)
                        : std::ldexp(fraction, 1 - bias - m);
    if (exponent == (1 << e) - 1 && type != ftcclFloat8e4m3)
        v = fraction > 0 ? NAN : INFINITY;
    return bits >> (size - 1) & 1 ? -v : v;
}

uint64_t load(int type, const void *from, size_t i)
{
    uint64_t bits = 0;
    memcpy(&bits, (const char *)from + i * perf_type_size(type), perf_type_size(type));
    return bits;
}

int64_t as_signed(int type, uint64_t bits)
{
    int shift = 64 - 8 * (int)perf_type_size(type);
    return (int64_t)(bits << shift) >> shift;
}

// One step of a reduction, rounded to the type.
uint64_t step(int type, int op, uint64_t a, uint64_t b)
{
    if (perf_type_is_float(type)) {
        double x = decode(type, a), y = decode(type, b);
        double v = op == ftcclProd  ? x * y
                   : op == ftcclMax ? std::max(x, y)
                   : op == ftcclMin ? std::min(x, y)
                                    : x + y;
        return perf_float_bits(type, v);
    }
    bool is_less = perf_type_is_signed(type) ? as_signed(type, a) < as_signed(type, b) : a < b;
    uint64_t v = op == ftcclProd  ? a * b
                 : op == ftcclMax ? (is_less ? b : a)
                 : op == ftcclMin ? (is_less ? a : b)
                                  : a + b;
    return perf_type_size(type) == 8 ? v : v & ((1ull << 8 * perf_type_size(type)) - 1);
}

uint64_t scaled(const perf_data &d, int rank, uint64_t x)
{
    if (d.op == PERF_MULSUM) {
        uint64_t s = perf_data_scalar(&d, rank);
        return step(d.type, ftcclProd, x, s);
    }
    if (d.op != ftcclAvg || !perf_type_is_float(d.type))
        return x;
    double by = d.type == ftcclFloat64 ? 1.0 / d.nranks : (double)(1.0f / (float)d.nranks);
    return perf_float_bits(d.type, decode(d.type, x) * by);
}

// The reduced result of the given ranks (a rank may come twice) along a random tree.
std::vector<uint64_t> reduce(const perf_data &d, std::vector<int> ranks, size_t from)
{
    std::vector<std::vector<uint64_t>> parts;
    std::vector<char> input(kCount * 8);
    for (int r : ranks) {
        perf_data_input(&d, r, true, from, kCount, input.data());
        std::vector<uint64_t> part(kCount);
        for (size_t i = 0; i < kCount; i++)
            part[i] = scaled(d, r, load(d.type, input.data(), i));
        parts.push_back(part);
    }
    while (parts.size() > 1) {
        size_t a = generator()() % parts.size();
        std::swap(parts[a], parts.back());
        std::vector<uint64_t> last = parts.back();
        parts.pop_back();
        std::vector<uint64_t> &into = parts[generator()() % parts.size()];
        for (size_t i = 0; i < kCount; i++)
            into[i] = step(d.type, d.op, into[i], last[i]);
    }
    if (d.op == ftcclAvg && !perf_type_is_float(d.type))
        for (uint64_t &v : parts[0])
            v /= (uint64_t)d.nranks; // no sum is negative
    return parts[0];
}

size_t wrong(const perf_data &d, const std::vector<uint64_t> &got, size_t from)
{
    std::vector<char> want(kCount * 8), packed(kCount * 8);
    perf_data_reduced(&d, from, kCount, want.data());
    for (size_t i = 0; i < kCount; i++)
        memcpy(packed.data() + i * perf_type_size(d.type), &got[i], perf_type_size(d.type));
    return perf_data_compare(&d, true, packed.data(), want.data(), kCount);
}

std::vector<int> all_ranks(int n)
{
    std::vector<int> ranks(n);
    for (int i = 0; i < n; i++)
        ranks[i] = i;
    return ranks;
}

template <class F> void for_each_case(F f)
{
    for (int type = 0; type < ftcclNumTypes; type++)
        for (int op = 0; op <= PERF_MULSUM; op++)
            for (int n : {1, 2, 3, 4, 5, 7, 8, 13, 16, 64, 200})
                f(perf_data{type, op, n, generator()() % 1000}, generator()() % 100000);
}

std::string name(const perf_data &d)
{
    return std::string(perf_type_name(d.type)) + " " + perf_op_name(d.op) + " of " +
           std::to_string(d.nranks);
}

TEST(PerfData, ResultDoesNotDependOnTheOrder)
{
    for_each_case([](const perf_data &d, size_t from) {
        for (int tree = 0; tree < 3; tree++)
            EXPECT_EQ(wrong(d, reduce(d, all_ranks(d.nranks), from), from), 0u) << name(d);
    });
}

TEST(PerfData, MistakesAreFound)
{
    for_each_case([](const perf_data &d, size_t from) {
        bool picks_one = d.op == ftcclMax || d.op == ftcclMin; // most ranks do not matter there
        if (d.nranks == 1 || d.nranks > 13)
            return;
        int r = (int)(generator()() % d.nranks);
        std::vector<int> ranks = all_ranks(d.nranks);
        if (!picks_one || d.nranks == 2) {
            ranks.erase(ranks.begin() + r);
            EXPECT_GT(wrong(d, reduce(d, ranks, from), from), 0u)
                << name(d) << " without rank " << r;
        }
        ranks = all_ranks(d.nranks);
        ranks.push_back(r);
        if (!picks_one) {
            EXPECT_GT(wrong(d, reduce(d, ranks, from), from), 0u)
                << name(d) << " with rank " << r << " twice";
        }
        EXPECT_GT(wrong(d, reduce(d, all_ranks(d.nranks), from + 1), from), 0u)
            << name(d) << " one element off";
        perf_data other = d;
        other.rep++;
        EXPECT_GT(wrong(d, reduce(other, all_ranks(d.nranks), from), from), 0u)
            << name(d) << " of another repetition";
    });
}

TEST(PerfData, CopiesTellRanksAndPlacesApart)
{
    for (int type = 0; type < ftcclNumTypes; type++) {
        perf_data d{type, ftcclSum, 4, 1};
        std::vector<char> a(kCount * 8), b(kCount * 8);
        perf_data_input(&d, 0, false, 10, kCount, a.data());
        perf_data_input(&d, 1, false, 10, kCount, b.data());
        EXPECT_GT(perf_data_compare(&d, false, a.data(), b.data(), kCount), kCount / 2)
            << perf_type_name(type);
        perf_data_input(&d, 0, false, 11, kCount, b.data());
        EXPECT_GT(perf_data_compare(&d, false, a.data(), b.data(), kCount), kCount / 2)
            << perf_type_name(type);
        perf_data_input(&d, 0, false, 10, kCount, b.data());
        EXPECT_EQ(perf_data_compare(&d, false, a.data(), b.data(), kCount), 0u)
            << perf_type_name(type);
    }
}

TEST(PerfData, FloatsAreEncodedAndRounded)
{
    EXPECT_EQ(perf_float_bits(ftcclFloat16, 1), 0x3c00u);
    EXPECT_EQ(perf_float_bits(ftcclFloat16, -2048), 0xe800u);
    EXPECT_EQ(perf_float_bits(ftcclFloat16, 2049), 0x6800u); // a tie goes to even
    EXPECT_EQ(perf_float_bits(ftcclFloat16, 0x1p-24), 1u);
    EXPECT_EQ(perf_float_bits(ftcclFloat16, 65520), 0x7c00u);
    EXPECT_EQ(perf_float_bits(ftcclBfloat16, 1), 0x3f80u);
    EXPECT_EQ(perf_float_bits(ftcclFloat8e4m3, 448), 0x7eu);
    EXPECT_EQ(perf_float_bits(ftcclFloat8e4m3, 1000), 0x7eu);
    EXPECT_EQ(perf_float_bits(ftcclFloat8e5m2, 1), 0x3cu);
    EXPECT_EQ(perf_float_bits(ftcclFloat32, 1), 0x3f800000u);
    for (int type : {ftcclFloat16, ftcclBfloat16, ftcclFloat8e4m3, ftcclFloat8e5m2})
        for (uint64_t bits = 0; bits < 1ull << 8 * perf_type_size(type); bits++) {
            double v = decode(type, bits);
            bool other = type == ftcclFloat8e4m3 && (bits & 0x7f) == 0x7f; // NaN
            if (std::isnan(v) || other || std::isinf(v))
                continue;
            EXPECT_EQ(perf_float_bits(type, v), bits) << perf_type_name(type);
        }
}

} // namespace

/*
 * Property: every instruction set of the host device computes every pass as device.h says, bit for bit, and writes nothing
 * else. Method: all types, operations and numbers of sources and destinations against the plain reference of device_ref.h,
 * with random counts, misalignments, scales, divisors, aliases and streaming; canaries around the destinations. The rounding
 * of small floats is tried at every tie. A failure prints its case; FT_SEED=<seed> repeats a run.
 */
#include "device_ref.h"
#include <cstdlib>
#include <gtest/gtest.h>
#include <memory>
#include <random>
#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

static uint64_t seed;

static const std::vector<const ft_host_isa *> &isas()
{
    static std::vector<const ft_host_isa *> list;
    if (list.empty())
        for (auto isa = ft_host_isas; *isa; isa++)
            if ((*isa)->usable()) list.push_back(*isa);
    return list;
}

/* A buffer between canaries, at a chosen distance from a cache line. */
struct Guarded {
    static const size_t PAD = 128;
    std::unique_ptr<unsigned char[]> mem;
    unsigned char *data;
    size_t len;

    Guarded(size_t len_, size_t skew) : mem(new unsigned char[len_ + 3 * PAD]), len(len_)
    {
        memset(mem.get(), 0xa5, len + 3 * PAD);
        data = (unsigned char *)ft_round_up((uintptr_t)mem.get() + 64, 64) + skew;
    }
    bool intact() const
    {
        for (unsigned char *p = mem.get(); p < mem.get() + len + 3 * PAD; p++)
            if ((p < data || p >= data + len) && *p != 0xa5) return false;
        return true;
    }
};

static std::string hex(const void *p, size_t size)
{
    std::string s = "0x";
    char digits[3];
    for (size_t i = size; i-- > 0;) {
        snprintf(digits, sizeof digits, "%02x", ((const unsigned char *)p)[i]);
        s += digits;
    }
    return s;
}

static std::string describe(const ft_reduce &r)
{
    char text[256];
    snprintf(text, sizeof text, "%s %s nsrc %d ndst %d count %zu scaled %x divisor %u streaming %x (FT_SEED=%llu)",
             ft_type_name(r.type), ft_red_name(r.op.red), r.nsrc, r.ndst, r.count, r.scaled, r.divide ? r.op.divisor : 0,
             r.streaming, (unsigned long long)seed);
    return text;
}

/* An element that is often special: zeros, infinities, NaNs, extremes, equal neighbours, numbers of similar size. */
static void random_element(std::mt19937_64 &rng, ft_type type, void *p)
{
    uint64_t x = rng(), kind = rng() % 8;
    size_t size = ft_type_size(type);
    unsigned bits = (unsigned)(8 * size);
    if (kind == 0) x = 0;
    if (kind == 1) x = (uint64_t)1 << (bits - 1);
    if (kind == 2) x = ((uint64_t)1 << (bits - 1)) - 1;
    if (kind == 3) x = type == FT_FLOAT32 ? 0x7f800000u : type == FT_FLOAT64 ? 0x7ff0000000000000u : type == FT_FLOAT16 ? 0x7c00
                     : type == FT_BFLOAT16 ? 0x7f80 : type == FT_FLOAT8E5M2 ? 0x7c : 1;
    if (kind == 3 && rng() % 2) x |= (uint64_t)1 << (bits - 1);
    if (kind >= 5 && type == FT_FLOAT32) x = 0x3f000000u + (uint32_t)(x & 0x81ffffffu);
    if (kind >= 5 && type == FT_FLOAT64) x = 0x3fe0000000000000u + (x & 0x801fffffffffffffu);
    if (kind >= 5 && type == FT_BFLOAT16) x = 0x3f00 + (x & 0x81ff);
    memcpy(p, &x, size); /* little-endian */
}

static void random_scale(std::mt19937_64 &rng, ft_reduce &r)
{
    static const double some[] = {1.0 / 3, 0.125, -2.5, 1e30, 1e-30, 0.0};
    double x = some[rng() % 6];
    r.op.scaled = true;
    r.scaled = (uint32_t)rng() & ((1u << r.nsrc) - 1);
    if (r.type == FT_FLOAT64) r.op.scale.f64 = x;
    else if (ft_type_is_float(r.type)) r.op.scale.f32 = (float)x;
    else r.op.scale.u64 = rng() >> (rng() % 64);
}

/* One case: expected values first, then the same pass with every instruction set. */
struct Case {
    ft_reduce r{};
    size_t skew_src[FT_REDUCE_SRCS]{}, skew_dst[FT_REDUCE_DSTS]{};
    int alias[FT_REDUCE_DSTS]; /* the source at the same address, or -1 */

    Case(std::mt19937_64 &rng, ft_type type, ft_red red, int nsrc, int ndst, size_t count)
    {
        static const uint32_t divisors[] = {2, 3, 8, 200, 70000, 4000000000u, 1, 0};
        r.type = type;
        r.op.red = red;
        r.nsrc = nsrc;
        r.ndst = ndst;
        r.count = count;
        r.streaming = (uint32_t)(rng() % 8);
        if (rng() % 3 == 0) random_scale(rng, r);
        r.divide = rng() % 4 == 0;
        if (rng() % 2) r.op.divisor = divisors[rng() % 8];
        bool aligned = rng() % 3 == 0;
        for (auto &s : skew_src) s = aligned ? 0 : rng() % 64;
        for (auto &s : skew_dst) s = aligned ? 0 : rng() % 64;
        size_t size = ft_type_size(type), common = rng() % 64 / size * size;
        if (rng() % 2)
            for (auto &s : skew_dst) s = common;
        for (int d = 0; d < FT_REDUCE_DSTS; d++) alias[d] = -1;
        /* Several destinations may not be one address, so source k can only be destination k. */
        for (int d = 0; d < ndst && d < nsrc; d++)
            if (rng() % 6 == 0) alias[d] = d;
    }
};

/* Sources that later cases share: filling them anew each time would take most of the time. */
struct Pool {
    size_t len;
    std::vector<std::vector<unsigned char>> src;
    Pool(std::mt19937_64 &rng, ft_type type, size_t count) : len(count * ft_type_size(type)), src(FT_REDUCE_SRCS)
    {
        for (auto &s : src) {
            s.resize(len);
            for (size_t i = 0; i < len; i += ft_type_size(type)) random_element(rng, type, &s[i]);
        }
        for (size_t i = 0; i + 64 < len; i += 640) memcpy(&src[1][i], &src[0][i], 64); /* equal elements */
    }
};

static void check(const Case &c, const Pool &pool, size_t at)
{
    ft_reduce r = c.r;
    size_t size = ft_type_size(r.type), len = r.count * size;
    std::vector<unsigned char> want(len + 1);
    std::vector<Guarded> src, dst;
    for (int k = 0; k < r.nsrc; k++) {
        src.emplace_back(len, c.skew_src[k]);
        memcpy(src[k].data, &pool.src[k][at * size], len);
        r.src[k] = src[k].data;
    }
    for (int d = 0; d < r.ndst; d++) dst.emplace_back(len, c.skew_dst[d]);
    for (size_t i = 0; i < r.count; i++) ref_element(r, want.data(), i);
    for (const ft_host_isa *isa : isas()) {
        for (int d = 0; d < r.ndst; d++) {
            memset(dst[d].data, 0x5a, len);
            r.dst[d] = dst[d].data;
            if (c.alias[d] < 0) continue;
            memcpy(dst[d].data, src[c.alias[d]].data, len);
            r.src[c.alias[d]] = dst[d].data;
        }
        ft_host_reduce(isa, &r);
        for (int d = 0; d < r.ndst; d++) {
            ASSERT_TRUE(dst[d].intact()) << isa->name << " wrote beyond destination " << d << ": " << describe(r);
            if (len == 0 || memcmp(want.data(), dst[d].data, len) == 0) continue;
            size_t i = 0;
            while (!memcmp(&want[i * size], dst[d].data + i * size, size)) i++;
            std::string in;
            for (int k = 0; k < r.nsrc; k++) in += " " + hex(&pool.src[k][(at + i) * size], size);
            FAIL() << isa->name << " " << describe(r) << "\n element " << i << " of destination " << d << ": got "
                   << hex(dst[d].data + i * size, size) << ", want " << hex(&want[i * size], size) << " from" << in;
        }
        for (int k = 0; k < r.nsrc; k++) {
            ASSERT_TRUE(src[k].intact()) << isa->name << " " << describe(r);
            ASSERT_TRUE(!len || !memcmp(src[k].data, &pool.src[k][at * size], len)) << isa->name << " changed source " << k;
        }
    }
}

class EveryType : public testing::TestWithParam<int> {};

TEST_P(EveryType, EveryShapeGivesTheReferencesBits)
{
    std::mt19937_64 rng(seed + (uint64_t)GetParam());
    ft_type type = (ft_type)GetParam();
    Pool pool(rng, type, 4096);
    for (int red = 0; red < FT_HOST_OPS; red++)
        for (int nsrc = 1; nsrc <= FT_REDUCE_SRCS; nsrc++)
            for (int ndst = 1; ndst <= FT_REDUCE_DSTS; ndst++) {
                size_t counts[] = {0, 1, rng() % 8 + 1, rng() % 80 | 1, rng() % 600};
                for (size_t count : counts) {
                    check(Case(rng, type, (ft_red)red, nsrc, ndst, count), pool, rng() % (4096 - count));
                    if (HasFatalFailure()) return;
                }
            }
}

TEST_P(EveryType, LongPassesGiveTheReferencesBits)
{
    std::mt19937_64 rng(seed + 100 + (uint64_t)GetParam());
    ft_type type = (ft_type)GetParam();
    Pool pool(rng, type, 20000);
    for (int i = 0; i < 60; i++) {
        int nsrc = i % 3 ? 2 : (int)(rng() % 9) + 1, ndst = i % 2 ? 1 : (int)(rng() % 3) + 1;
        check(Case(rng, type, (ft_red)(rng() % FT_HOST_OPS), nsrc, ndst, 2000 + rng() % 8000), pool, rng() % 9000);
        if (HasFatalFailure()) return;
    }
}

INSTANTIATE_TEST_SUITE_P(Device, EveryType, testing::Range(0, (int)FT_TYPES),
                         [](const testing::TestParamInfo<int> &i) { return std::string(ft_type_name((ft_type)i.param)); });

class EveryMini : public testing::TestWithParam<int> {};

/* one source times one float32: the result is that float32 narrowed, in all lanes and in the tail */
static ::testing::AssertionResult narrows(ft_type type, float x)
{
    const RefFormat &f = ref_format(type);
    uint32_t one = (uint32_t)f.bias << f.mant, want = f.narrow(x);
    size_t size = ft_type_size(type);
    unsigned char src[2 * 19], dst[2 * 19];
    ft_reduce r{};
    r.type = type;
    r.op.scaled = true;
    r.op.scale.f32 = x;
    r.scaled = 1;
    r.count = 19;
    r.nsrc = r.ndst = 1;
    r.src[0] = src;
    r.dst[0] = dst;
    for (size_t i = 0; i < r.count; i++) memcpy(src + i * size, &one, size);
    for (const ft_host_isa *isa : isas()) {
        ft_host_reduce(isa, &r);
        for (size_t i = 0; i < r.count; i++) {
            uint32_t got = 0;
            memcpy(&got, dst + i * size, size);
            if (got != want)
                return ::testing::AssertionFailure() << isa->name << " rounds " << std::hexfloat << x << " to 0x" << std::hex << got
                                                     << ", want 0x" << want << ", lane " << std::dec << i;
        }
    }
    return ::testing::AssertionSuccess();
}

TEST_P(EveryMini, RoundsToNearestEvenAtEveryTie)
{
    ft_type type = (ft_type)GetParam();
    const RefFormat &f = ref_format(type);
    for (size_t i = 0; i < f.value.size(); i++) {
        double next = i + 1 < f.value.size() ? f.value[i + 1] : 2 * f.value[i] - f.value[i - 1];
        float mid = (float)((f.value[i] + next) / 2); /* exact but for bfloat16's smallest denormals */
        for (float x : {(float)f.value[i], mid, std::nextafterf(mid, 0), std::nextafterf(mid, INFINITY)})
            for (float y : {x, -x}) ASSERT_TRUE(narrows(type, y));
    }
}

TEST_P(EveryMini, RoundsAnyFloat)
{
    std::mt19937_64 rng(seed);
    const RefFormat &f = ref_format((ft_type)GetParam());
    for (int i = 0; i < 20000; i++) {
        uint32_t bits = (uint32_t)rng();
        float x;
        memcpy(&x, &bits, sizeof x);
        if (i % 2) x = std::ldexp(std::fmod(x, 1.0f) + 1, (int)(rng() % 40) - f.bias - f.mant - 3);
        if (i < 4) x = i == 0 ? INFINITY : i == 1 ? -INFINITY : i == 2 ? NAN : 3.4e38f;
        ASSERT_TRUE(narrows((ft_type)GetParam(), x)) << "FT_SEED=" << seed;
    }
}

/* Every code, times one: the same code; NaNs become the one NaN. */
TEST_P(EveryMini, EveryCodeSurvives)
{
    ft_type type = (ft_type)GetParam();
    const RefFormat &f = ref_format(type);
    size_t size = ft_type_size(type), n = (size_t)1 << f.bits;
    std::vector<unsigned char> src(n * size), dst(n * size);
    for (size_t i = 0; i < n; i++) memcpy(&src[i * size], &i, size);
    ft_reduce r{};
    r.type = type;
    r.op.scaled = true;
    r.op.scale.f32 = 1;
    r.scaled = 1;
    r.count = n;
    r.nsrc = r.ndst = 1;
    r.src[0] = src.data();
    r.dst[0] = dst.data();
    for (const ft_host_isa *isa : isas()) {
        ft_host_reduce(isa, &r);
        for (uint32_t i = 0; i < n; i++) {
            uint32_t got = 0, want = std::isnan(f.widen(i)) ? f.nan : i;
            memcpy(&got, &dst[i * size], size);
            ASSERT_EQ(got, want) << isa->name << " code " << i;
        }
    }
}

INSTANTIATE_TEST_SUITE_P(Device, EveryMini, testing::Values((int)FT_FLOAT16, (int)FT_BFLOAT16, (int)FT_FLOAT8E4M3, (int)FT_FLOAT8E5M2),
                         [](const testing::TestParamInfo<int> &i) { return std::string(ft_type_name((ft_type)i.param)); });

#if defined(__x86_64__)
/* A thread that flushes denormals and rounds up gets the same sums, and its settings back. */
TEST(Device, TheThreadsFloatingPointSettingsDoNotMatter)
{
    float a[40], b[40], want[40], got[40];
    ft_reduce r{};
    r.type = FT_FLOAT32;
    r.count = 40;
    r.nsrc = 2;
    r.ndst = 1;
    r.src[0] = a;
    r.src[1] = b;
    for (int i = 0; i < 40; i++) {
        a[i] = i % 2 ? 1e-40f * (float)i : 1.0f / 3;
        b[i] = i % 2 ? 2e-40f : 1.0f / (float)(i + 7);
    }
    for (const ft_host_isa *isa : isas()) {
        r.dst[0] = want;
        ft_host_reduce(isa, &r);
        r.dst[0] = got;
        unsigned was = _mm_getcsr(), odd = 0x1f80 | 0x8040 | 0x4000; /* flush, denormals are zero, round up */
        _mm_setcsr(odd);
        ft_host_reduce(isa, &r);
        unsigned after = _mm_getcsr();
        _mm_setcsr(was);
        EXPECT_EQ(after, odd) << isa->name;
        EXPECT_EQ(memcmp(want, got, sizeof got), 0) << isa->name;
        EXPECT_GT(want[1], 0) << isa->name;
    }
}
#endif

TEST(Device, MemoryIsZeroedAndAligned)
{
    ft_device *device = nullptr;
    ASSERT_EQ(ft_device_open(&device), FT_OK) << ft_fail_text();
    EXPECT_EQ(std::string(device->name).substr(0, 5), "host ");
    for (size_t len : {(size_t)0, (size_t)1, (size_t)5000, (size_t)(3 << 20) + 1}) {
        void *p = nullptr;
        ASSERT_EQ(device->ops->alloc(device, len, &p), FT_OK);
        EXPECT_EQ((uintptr_t)p % (len >= 2 << 20 ? 2 << 20 : 4096), 0u) << len;
        for (size_t i = 0; i < len; i++) ASSERT_EQ(((char *)p)[i], 0);
        memset(p, 1, len);
        EXPECT_TRUE(device->ops->owns(device, p));
        device->ops->free(device, p, len);
    }
    void *p = &p, *before = p;
    EXPECT_EQ(device->ops->alloc(device, SIZE_MAX, &p), FT_NOMEM);
    EXPECT_EQ(device->ops->alloc(device, SIZE_MAX / 2, &p), FT_NOMEM);
    EXPECT_EQ(p, before) << "an output was set by a call that failed";
    ft_device_close(device);
}

TEST(Device, PassesAreDoneAtOnce)
{
    ft_device *device = nullptr;
    ASSERT_EQ(ft_device_open(&device), FT_OK);
    int32_t a = 5, b = -7, sum = 0;
    ft_reduce r{};
    ft_device_req req = {FT_AGAIN};
    r.type = FT_INT32;
    r.count = 1;
    r.nsrc = 2;
    r.ndst = 1;
    r.src[0] = &a;
    r.src[1] = &b;
    r.dst[0] = &sum;
    EXPECT_EQ(device->ops->reduce(device, &r, &req), FT_OK);
    EXPECT_EQ(sum, -2);
    EXPECT_EQ(req.status, FT_OK);
    EXPECT_EQ(device->ops->poll(device), 0);
    ft_device_close(device);
    ft_device_close(nullptr);
}

TEST(Device, TheParameterChooses)
{
    struct { const char *name; int status; const char *says; } cases[] = {
        {"", FT_OK, ""}, {"host", FT_OK, ""}, {"cuda", FT_NOTSUP, "no CUDA device"}, {"abacus", FT_INVAL, "abacus"}};
    for (auto &c : cases) {
        ft_device *device = nullptr;
        setenv("FTCCL_DEVICE", c.name, 1);
        ft_params_reload();
        ft_fail_clear();
        EXPECT_EQ(ft_device_open(&device), c.status) << c.name;
        EXPECT_EQ(device != nullptr, c.status == FT_OK) << c.name;
        EXPECT_NE(std::string(ft_fail_text()).find(c.says), std::string::npos) << ft_fail_text();
        ft_device_close(device);
    }
    unsetenv("FTCCL_DEVICE");
    ft_params_reload();
}

int main(int argc, char **argv)
{
    testing::InitGoogleTest(&argc, argv);
    seed = getenv("FT_SEED") ? strtoull(getenv("FT_SEED"), nullptr, 10) : std::random_device()();
    printf("FT_SEED=%llu; instruction sets:", (unsigned long long)seed);
    for (const ft_host_isa *isa : isas()) printf(" %s", isa->name);
    printf("\n");
    return RUN_ALL_TESTS();
}

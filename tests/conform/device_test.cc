/*
 * Property: with every instruction set, the host device computes every pass as device.h says, bit
 * for bit, and writes nothing else. Method: all types, operations and numbers of sources and
 * destinations against the plain reference of device_ref.h, with random counts, misalignments,
 * scales, divisors, aliases and streaming; canaries are around the destinations. The rounding of
 * small floats is tested at every tie. A failure prints its case; FT_SEED=<seed> repeats a run.
 */
#include "device_cases.h"
#include <cstdlib>
#include <gtest/gtest.h>
#include <memory>
#include <random>
#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

static const std::vector<const ft_host_isa *> &isas()
{
    static std::vector<const ft_host_isa *> list;
    if (list.empty())
        for (auto isa = ft_host_isas; *isa; isa++)
            if ((*isa)->usable())
                list.push_back(*isa);
    return list;
}

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
    for (int d = 0; d < r.ndst; d++)
        dst.emplace_back(len, c.skew_dst[d]);
    for (size_t i = 0; i < r.count; i++)
        ref_element(r, want.data(), i);
    for (const ft_host_isa *isa : isas()) {
        for (int d = 0; d < r.ndst; d++) {
            memset(dst[d].data, 0x5a, len);
            r.dst[d] = dst[d].data;
            if (c.alias[d] < 0)
                continue;
            memcpy(dst[d].data, src[c.alias[d]].data, len);
            r.src[c.alias[d]] = dst[d].data;
        }
        ft_host_reduce(isa, &r);
        for (int d = 0; d < r.ndst; d++) {
            ASSERT_TRUE(dst[d].intact())
                << isa->name << " wrote beyond destination " << d << ": " << describe(r);
            if (len == 0 || memcmp(want.data(), dst[d].data, len) == 0)
                continue;
            size_t i = 0;
            while (!memcmp(&want[i * size], dst[d].data + i * size, size))
                i++;
            std::string in;
            for (int k = 0; k < r.nsrc; k++)
                in += " " + hex(&pool.src[k][(at + i) * size], size);
            FAIL() << isa->name << " " << describe(r) << "\n element " << i << " of destination "
                   << d << ": got " << hex(dst[d].data + i * size, size) << ", want "
                   << hex(&want[i * size], size) << " from" << in;
        }
        for (int k = 0; k < r.nsrc; k++) {
            ASSERT_TRUE(src[k].intact()) << isa->name << " " << describe(r);
            ASSERT_TRUE(!len || !memcmp(src[k].data, &pool.src[k][at * size], len))
                << isa->name << " changed source " << k;
        }
    }
}

class EveryType : public testing::TestWithParam<int>
{
};

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
                    check(Case(rng, type, (ft_red)red, nsrc, ndst, count), pool,
                          rng() % (4096 - count));
                    if (HasFatalFailure())
                        return;
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
        check(Case(rng, type, (ft_red)(rng() % FT_HOST_OPS), nsrc, ndst, 2000 + rng() % 8000), pool,
              rng() % 9000);
        if (HasFatalFailure())
            return;
    }
}

INSTANTIATE_TEST_SUITE_P(Device, EveryType, testing::Range(0, (int)FT_TYPES),
                         [](const testing::TestParamInfo<int> &i) {
                             return std::string(ft_type_name((ft_type)i.param));
                         });

class EveryMini : public testing::TestWithParam<int>
{
};

/* one source times one float32: the result is that float32 narrowed, in all lanes and in the
 * tail */
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
    for (size_t i = 0; i < r.count; i++)
        memcpy(src + i * size, &one, size);
    for (const ft_host_isa *isa : isas()) {
        ft_host_reduce(isa, &r);
        for (size_t i = 0; i < r.count; i++) {
            uint32_t got = 0;
            memcpy(&got, dst + i * size, size);
            if (got != want)
                return ::testing::AssertionFailure()
                       << isa->name << " rounds " << std::hexfloat << x << " to 0x" << std::hex
                       << got << ", want 0x" << want << ", lane " << std::dec << i;
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
        /* exact but for bfloat16's smallest denormals */
        float mid = (float)((f.value[i] + next) / 2);
        for (float x :
             {(float)f.value[i], mid, std::nextafterf(mid, 0), std::nextafterf(mid, INFINITY)})
            for (float y : {x, -x})
                ASSERT_TRUE(narrows(type, y));
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
        if (i % 2)
            x = std::ldexp(std::fmod(x, 1.0f) + 1, (int)(rng() % 40) - f.bias - f.mant - 3);
        if (i < 4)
            x = i == 0 ? INFINITY : i == 1 ? -INFINITY : i == 2 ? NAN : 3.4e38f;
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
    for (size_t i = 0; i < n; i++)
        memcpy(&src[i * size], &i, size);
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

INSTANTIATE_TEST_SUITE_P(Device, EveryMini,
                         testing::Values((int)FT_FLOAT16, (int)FT_BFLOAT16, (int)FT_FLOAT8E4M3,
                                         (int)FT_FLOAT8E5M2),
                         [](const testing::TestParamInfo<int> &i) {
                             return std::string(ft_type_name((ft_type)i.param));
                         });

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
        /* flush, denormals are zero, round up */
        unsigned was = _mm_getcsr(), odd = 0x1f80 | 0x8040 | 0x4000;
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
        for (size_t i = 0; i < len; i++)
            ASSERT_EQ(((char *)p)[i], 0);
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
    ft_device_req req = {};
    req.status = FT_AGAIN;
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
    struct {
        const char *name;
        int status;
        const char *says;
    } cases[] = {
        {"", FT_OK, ""}, {"host", FT_OK, ""}, {"cuda", FT_OK, ""}, {"abacus", FT_INVAL, "abacus"}};
    for (auto &c : cases) {
        ft_device *device = nullptr;
        setenv("FTCCL_DEVICE", c.name, 1);
        ft_params_reload();
        ft_fail_clear();
        EXPECT_EQ(ft_device_open(&device), c.status) << c.name;
        EXPECT_EQ(device != nullptr, c.status == FT_OK) << c.name;
        EXPECT_NE(std::string(ft_fail_text()).find(c.says), std::string::npos) << ft_fail_text();
        ft_device_close(device);
        if (c.status != FT_OK)
            continue;
        ft_device *gpu = nullptr; /* none here, which is an error only for who asks for it */
        int status = ft_device_open_gpu(ft_device_gpu_of_thread(), &gpu);
        if (status == FT_OK && gpu)
            ft_device_close(gpu);
        else
            EXPECT_EQ(status, strcmp(c.name, "cuda") ? FT_OK : FT_NOTSUP)
                << c.name << ": " << ft_fail_text();
    }
    unsetenv("FTCCL_DEVICE");
    ft_params_reload();
}

int main(int argc, char **argv)
{
    testing::InitGoogleTest(&argc, argv);
    seed = getenv("FT_SEED") ? strtoull(getenv("FT_SEED"), nullptr, 10) : std::random_device()();
    printf("FT_SEED=%llu; instruction sets:", (unsigned long long)seed);
    for (const ft_host_isa *isa : isas())
        printf(" %s", isa->name);
    printf("\n");
    return RUN_ALL_TESTS();
}

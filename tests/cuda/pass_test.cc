/*
 * Property: the CUDA device computes every pass as device.h says, with the same bits as the host
 * device, and writes nothing else, wherever the operands lie. Method: the random cases of the host
 * device's conformance test, run by the twin of the kernel on the stand-in driver. Each operand is
 * randomly in memory of the device or elsewhere; canaries are around both. FT_SEED=<seed> repeats a
 * run.
 */
#include "standin.h"
#include "tests/conform/device_cases.h"
#include <ctime>
#include <gtest/gtest.h>

/* Buffers of the device that all cases use in turn. */
struct Room {
    static const size_t LEN = 8 * 10000 + 4 * 128;
    CUdeviceptr at = 0;
    Room()
    {
        EXPECT_EQ(cuMemAlloc(&at, LEN), CUDA_SUCCESS);
    }
    ~Room()
    {
        cuMemFree(at);
    }
};

class EveryType : public testing::TestWithParam<int>
{
  protected:
    ft_device *device = nullptr;
    ft_device_queue *queue = nullptr;
    const ft_device_queue_ops *ops = nullptr;
    CUstream stream = nullptr;
    uint64_t run = 0;
    std::vector<Room> rooms{FT_REDUCE_SRCS + FT_REDUCE_DSTS};
    unsigned char *pinned = nullptr;

    void SetUp() override
    {
        static const char *const threads[] = {"32", "96", "512"}, *const blocks[] = {"1", "2", "3"};
        std::mt19937_64 rng(seed + 200 + (uint64_t)GetParam());
        /* few of them make each go around more often */
        setenv("FTCCL_CUDA_THREADS", threads[rng() % 3], 1);
        setenv("FTCCL_CUDA_BLOCKS", blocks[rng() % 3], 1);
        setenv("FTCCL_DEVICE", "cuda", 1);
        ft_params_reload();
        ASSERT_EQ(ft_device_open_gpu(ft_device_gpu_of_thread(), &device), FT_OK) << ft_fail_text();
        ASSERT_NE(device, nullptr);
        ops = device->ops->queue;
        pinned = (unsigned char *)ft_pinned_alloc(device->pinned, rooms.size() * Room::LEN);
        ASSERT_NE(pinned, nullptr);
        ASSERT_EQ(ops->open(device, 0, &queue), FT_OK) << ft_fail_text();
        /* not the legacy one, which copy() is on */
        ASSERT_EQ(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
        void *streams[] = {stream};
        ASSERT_EQ(ops->after(queue, streams, 1, &run), FT_OK) << ft_fail_text();
        ASSERT_EQ(ops->hold(queue, streams, 1), FT_OK) << ft_fail_text();
        ops->begin(queue, nullptr, run);
    }
    void TearDown() override
    {
        if (queue)
            ops->signal(queue, nullptr, run), ops->close(queue);
        if (pinned)
            ft_pinned_free(device->pinned, pinned);
        if (device)
            ft_device_close(device);
        if (stream)
            cuStreamDestroy(stream);
    }
    /* The n-th operand's place in pinned memory, or nullptr, by chance. */
    unsigned char *lies(std::mt19937_64 &rng, size_t n)
    {
        return rng() % 2 ? pinned + n * Room::LEN : nullptr;
    }
    void wait(ft_device_req &req)
    {
        time_t end = time(nullptr) + 60;
        while (req.status == FT_AGAIN && time(nullptr) < end)
            ops->poll(queue);
    }
    void check(std::mt19937_64 &rng, const Case &c, const Pool &pool, size_t at);
};

/* Has happened when it returns, which cuMemcpy() alone does not promise for small pieces of
 * pageable memory. */
static void copy(CUdeviceptr to, CUdeviceptr from, size_t len)
{
    EXPECT_EQ(cuMemcpy(to, from, len), CUDA_SUCCESS);
    EXPECT_EQ(cuStreamSynchronize(CU_STREAM_LEGACY), CUDA_SUCCESS);
}

/* An operand: a place on the device, or a guarded one far from it; that one can be in pinned
 * memory, as links' are. */
struct Operand {
    Guarded host;
    CUdeviceptr there;
    bool far;

    Operand(size_t len, size_t skew, const Room &room, bool far_, unsigned char *pinned)
        : host(len, skew, pinned), far(far_)
    {
        there = room.at + 2 * Guarded::PAD + skew;
        std::vector<unsigned char> canary(len + 2 * Guarded::PAD, 0xa5);
        copy(there - Guarded::PAD, (CUdeviceptr)canary.data(), canary.size());
    }
    void *address()
    {
        return far ? (void *)host.data : (void *)there;
    }
    void set(const void *from)
    {
        copy(far ? (CUdeviceptr)host.data : there, (CUdeviceptr)from, host.len);
    }
    std::vector<unsigned char> get()
    {
        std::vector<unsigned char> out(host.len + 1);
        copy((CUdeviceptr)out.data(), far ? (CUdeviceptr)host.data : there, host.len);
        return out;
    }
    bool intact()
    {
        std::vector<unsigned char> all(host.len + 2 * Guarded::PAD);
        copy((CUdeviceptr)all.data(), there - Guarded::PAD, all.size());
        bool ok = host.intact();
        for (size_t i = 0; i < all.size(); i++)
            ok &= all[i] == 0xa5 || (i >= Guarded::PAD && i < Guarded::PAD + host.len && !far);
        return ok;
    }
};

void EveryType::check(std::mt19937_64 &rng, const Case &c, const Pool &pool, size_t at)
{
    ft_reduce r = c.r;
    size_t size = ft_type_size(r.type), len = r.count * size;
    std::vector<unsigned char> want(len + 1), junk(len + 1, 0x5a);
    for (int k = 0; k < r.nsrc; k++)
        r.src[k] = &pool.src[(size_t)k][at * size];
    for (size_t i = 0; i < r.count; i++)
        ref_element(r, want.data(), i);
    std::vector<Operand> src, dst;
    ft_device_staged far = {(uint32_t)rng(), (uint32_t)rng()};
    if (rng() % 4 == 0)
        far = {0, 0};
    /* an aliased operand is far as source and destination or as neither */
    for (int d = 0; d < r.ndst; d++)
        if (c.alias[d] >= 0)
            far.src = (far.src & ~(1u << c.alias[d])) | ((far.dst >> d & 1) << c.alias[d]);
    for (int k = 0; k < r.nsrc; k++) {
        src.emplace_back(len, c.skew_src[k], rooms[(size_t)k], far.src >> k & 1,
                         lies(rng, (size_t)k));
        src[(size_t)k].set(&pool.src[(size_t)k][at * size]);
        r.src[k] = src[(size_t)k].address();
    }
    for (int d = 0; d < r.ndst; d++) {
        dst.emplace_back(len, c.skew_dst[d], rooms[(size_t)(FT_REDUCE_SRCS + d)], far.dst >> d & 1,
                         lies(rng, (size_t)(FT_REDUCE_SRCS + d)));
        dst[(size_t)d].set(c.alias[d] < 0 ? junk.data() : &pool.src[(size_t)c.alias[d]][at * size]);
        r.dst[d] = dst[(size_t)d].address();
        if (c.alias[d] >= 0)
            r.src[c.alias[d]] = r.dst[d];
    }
    ft_device_req req = {};
    int rc = ops->reduce(queue, &r, far, nullptr, &req);
    ASSERT_TRUE(rc == FT_AGAIN || (rc == FT_OK && len == 0)) << ft_status_text(rc);
    wait(req);
    ASSERT_EQ(req.status, FT_OK) << describe(r);
    ASSERT_TRUE(ops->idle(queue));
    for (int d = 0; d < r.ndst; d++) {
        std::vector<unsigned char> got = dst[(size_t)d].get();
        ASSERT_TRUE(dst[(size_t)d].intact())
            << "wrote beyond destination " << d << ": " << describe(r);
        size_t i = 0;
        while (i < r.count && !memcmp(&want[i * size], &got[i * size], size))
            i++;
        ASSERT_EQ(i, r.count) << describe(r) << " far " << far.src << "/" << far.dst
                              << "\n element " << i << " of destination " << d << ": got "
                              << hex(&got[i * size], size) << ", want "
                              << hex(&want[i * size], size);
    }
    for (int k = 0; k < r.nsrc; k++) {
        ASSERT_TRUE(src[(size_t)k].intact()) << describe(r);
        ASSERT_TRUE(!len ||
                    !memcmp(src[(size_t)k].get().data(), &pool.src[(size_t)k][at * size], len))
            << "changed source " << k;
    }
}

TEST_P(EveryType, EveryShapeGivesTheReferencesBits)
{
    std::mt19937_64 rng(seed + (uint64_t)GetParam());
    ft_type type = (ft_type)GetParam();
    Pool pool(rng, type, 4096);
    for (int red = 0; red < FT_HOST_OPS; red++)
        for (int nsrc = 1; nsrc <= FT_REDUCE_SRCS; nsrc++)
            for (int ndst = 1; ndst <= FT_REDUCE_DSTS; ndst += 1 + (int)(rng() % 4)) {
                size_t count = rng() % 2 ? rng() % 40 : rng() % 900;
                check(rng, Case(rng, type, (ft_red)red, nsrc, ndst, count), pool,
                      rng() % (4096 - count));
                if (HasFatalFailure())
                    return;
            }
}

TEST_P(EveryType, LongPassesGiveTheReferencesBits)
{
    std::mt19937_64 rng(seed + 100 + (uint64_t)GetParam());
    ft_type type = (ft_type)GetParam();
    Pool pool(rng, type, 20000);
    for (int i = 0; i < 12; i++) {
        int nsrc = i % 3 ? 2 : (int)(rng() % 9) + 1, ndst = i % 2 ? 1 : (int)(rng() % 3) + 1;
        check(rng, Case(rng, type, (ft_red)(rng() % FT_HOST_OPS), nsrc, ndst, 2000 + rng() % 8000),
              pool, rng() % 9000);
        if (HasFatalFailure())
            return;
    }
}

INSTANTIATE_TEST_SUITE_P(Cuda, EveryType, testing::Range(0, (int)FT_TYPES),
                         [](const testing::TestParamInfo<int> &i) {
                             return std::string(ft_type_name((ft_type)i.param));
                         });

int main(int argc, char **argv)
{
    testing::InitGoogleTest(&argc, argv);
    standin_enter();
    seed = getenv("FT_SEED") ? strtoull(getenv("FT_SEED"), nullptr, 10) : std::random_device()();
    printf("FT_SEED=%llu\n", (unsigned long long)seed);
    return RUN_ALL_TESTS();
}

/*
 * Property: the calls work on buffers of the GPU, on the program's own streams and on no other.
 * Results are right and in the order of the streams. There is one kernel per group and
 * communicator, so grouped sends and receives cannot block each other. A stream that does not move
 * and a driver that refuses end in an error within their bounds; then streams go on (release) or
 * stop until the abort (hold). Method: ranks as threads on the stand-in driver, whose device memory
 * kills a process that touches it; processes_test has ranks as processes.
 */
#include <unistd.h>

#include <atomic>
#include <memory>
#include <numeric>

#include "tests/common/sanitizer.h"
#include "tests/cuda/ranks.h"

namespace
{

using namespace gpu;

class Gpu : public testing::TestWithParam<const char *>
{
};

TEST_P(Gpu, AllReduceInTheStreamsOrder)
{
    for (int n : {1, 2, 3, 4}) {
        if (is_sanitized() && n != 3)
            continue;
        Job job(n, GetParam());
        for (size_t count : {static_cast<size_t>(0), static_cast<size_t>(1),
                             static_cast<size_t>(1001), static_cast<size_t>(300007)}) {
            reduces<float>(job, count, ftcclFloat, count % 2 == 0);
            reduces<int64_t>(job, count, ftcclInt64, true);
        }
        reduces<uint8_t>(job, 4099, ftcclUint8, false);
    }
}

TEST_P(Gpu, OtherCollectives)
{
    const int n = 3;
    const size_t count = 5003;
    Job job(n, GetParam());
    job.each([&](int r) {
        CUstream s = job.stream[static_cast<size_t>(r)];
        ftcclComm_t c = job.comm[static_cast<size_t>(r)];
        Buffer<int> one(count), all(n * count);
        std::vector<int> in = numbers<int>(count, r), got(n * count), few(count);
        one.put(in, s);
        EXPECT_OK(ftcclAllGather(one.ptr(), all.ptr(), count, ftcclInt, c, as(s)));
        all.get(got, s);
        EXPECT_OK(ftcclReduceScatter(all.ptr(), one.ptr(), count, ftcclInt, ftcclSum, c, as(s)));
        one.get(few, s);
        EXPECT_TRUE(soon([&] { return idle(s); }));
        for (int k = 0; k < n; k++)
            EXPECT_TRUE(std::equal(got.begin() + k * static_cast<long>(count),
                                   got.begin() + (k + 1) * static_cast<long>(count),
                                   numbers<int>(count, k).begin()))
                << r;
        std::vector<int> want = numbers<int>(count, r);
        for (int &x : want)
            x *= n;
        EXPECT_TRUE(few == want) << r;
        EXPECT_OK(ftcclBroadcast(one.ptr(), one.ptr(), count, ftcclInt, 1, c, as(s)));
        one.get(few, s);
        EXPECT_OK(ftcclAlltoAll(all.ptr(), all.ptr(), 0, ftcclInt, c, as(s)));
        EXPECT_TRUE(soon([&] { return idle(s); }));
        want = numbers<int>(count, 1);
        for (int &x : want)
            x *= n;
        EXPECT_TRUE(few == want) << r;
    });
}

TEST_P(Gpu, AGroupOfSendsAndReceivesIsOneKernel)
{
    const int n = 4;
    const size_t count = 400009;
    Job job(n, GetParam());
    int before = standin_launched();
    job.each([&](int r) {
        CUstream s = job.stream[static_cast<size_t>(r)];
        ftcclComm_t c = job.comm[static_cast<size_t>(r)];
        Buffer<float> mine(count), self(count), left(count), right(count), none(1);
        mine.put(numbers<float>(count, r), s);
        soon([&] { return idle(s); });
        /* Every rank receives from both sides before it sends: with a kernel each nobody would get
         * to sending. */
        EXPECT_OK(ftcclGroupStart());
        EXPECT_OK(ftcclRecv(left.ptr(), count, ftcclFloat, (r + n - 1) % n, c, as(s)));
        EXPECT_OK(ftcclRecv(right.ptr(), count, ftcclFloat, (r + 1) % n, c, as(s)));
        EXPECT_OK(ftcclRecv(self.ptr(), count, ftcclFloat, r, c, as(s)));
        EXPECT_OK(ftcclRecv(none.ptr(), 0, ftcclFloat, (r + 2) % n, c, as(s)));
        EXPECT_OK(ftcclSend(mine.ptr(), count, ftcclFloat, (r + 1) % n, c, as(s)));
        EXPECT_OK(ftcclSend(mine.ptr(), count, ftcclFloat, (r + n - 1) % n, c, as(s)));
        EXPECT_OK(ftcclSend(mine.ptr(), count, ftcclFloat, r, c, as(s)));
        EXPECT_OK(ftcclSend(none.ptr(), 0, ftcclFloat, (r + 2) % n, c, as(s)));
        EXPECT_OK(ftcclGroupEnd());
        std::vector<float> a(count), b(count), d(count);
        left.get(a, s), right.get(b, s), self.get(d, s);
        EXPECT_TRUE(soon([&] { return idle(s); }));
        EXPECT_TRUE(a == numbers<float>(count, (r + n - 1) % n)) << r;
        EXPECT_TRUE(b == numbers<float>(count, (r + 1) % n)) << r;
        EXPECT_TRUE(d == numbers<float>(count, r)) << r;
    });
    EXPECT_TRUE(before == STANDIN_UNKNOWN || standin_launched() - before == n)
        << standin_launched() - before;
}

TEST_P(Gpu, RanksOfOneThreadInAGroupDoNotWaitForEachOthersKernels)
{
    const int n = 3;
    Job job(n, GetParam(), 3000);
    std::vector<std::unique_ptr<Buffer<float>>> data;
    std::vector<float> got(1000);
    for (size_t r = 0; r < n; r++)
        data.push_back(std::make_unique<Buffer<float>>(got.size())),
            data[r]->put(std::vector<float>(got.size(), 1), job.stream[r]);
    /* Each on a stream of its own, then all on one. */
    for (int round = 0; round < 4; round++) {
        EXPECT_OK(ftcclGroupStart());
        for (size_t r = 0; r < n; r++)
            EXPECT_OK(ftcclAllReduce(data[r]->ptr(), data[r]->ptr(), got.size(), ftcclFloat,
                                     ftcclSum, job.comm[r], as(job.stream[round < 2 ? r : 0])));
        EXPECT_OK(ftcclGroupEnd());
        for (CUstream stream : job.stream)
            EXPECT_TRUE(soon([&] { return idle(stream); }));
    }
    for (size_t r = 0; r < n; r++) {
        data[r]->get(got, job.stream[r]);
        EXPECT_TRUE(soon([&] { return idle(job.stream[r]); }));
        EXPECT_EQ(job.state(static_cast<int>(r)), ftcclSuccess);
        EXPECT_EQ(got, std::vector<float>(got.size(), 81)) << r;
    }
}

/* A group of small sums is one exchange, wherever each rank has its buffers: rank 0 on the GPU,
 * rank 1 on the host, the others on both. */
TEST_P(Gpu, SmallSumsOfAGroupMayLieAnywhereOnEachRank)
{
    const size_t calls = 20, longest = 1000;
    Job job(4, GetParam());
    auto count_of = [](size_t i) { return i % 5 == 4 ? longest : i + 1; };
    auto start_of = [](size_t i, int r) {
        return numbers<int>(i % 5 == 4 ? longest : i + 1, static_cast<int>(i) * 7 + r);
    };
    job.each([&](int r) {
        CUstream s = job.stream[static_cast<size_t>(r)];
        ftcclStream_t host;
        EXPECT_OK(ftcclStreamCreate(&host));
        std::vector<std::vector<int>> here(calls), got(calls);
        std::vector<std::unique_ptr<Buffer<int>>> there, out;
        auto on_gpu = [&](size_t i) {
            return r == 0 || (r > 1 && (i + static_cast<size_t>(r)) % 3 != 0);
        };
        for (size_t i = 0; i < calls; i++) {
            here[i] = got[i] = start_of(i, r);
            there.push_back(std::make_unique<Buffer<int>>(count_of(i)));
            out.push_back(std::make_unique<Buffer<int>>(count_of(i)));
            there[i]->put(here[i], s);
        }
        for (int round = 0; round < 3; round++) { /* out of place, then in place twice */
            EXPECT_OK(ftcclGroupStart());
            for (size_t i = 0; i < calls; i++) {
                const int *from = on_gpu(i)    ? (round == 0 ? there : out)[i]->ptr()
                                  : round == 0 ? here[i].data()
                                               : got[i].data();
                EXPECT_OK(ftcclAllReduce(
                    from, on_gpu(i) ? out[i]->ptr() : got[i].data(), count_of(i), ftcclInt,
                    ftcclSum, job.comm[static_cast<size_t>(r)], on_gpu(i) ? as(s) : host));
            }
            EXPECT_OK(ftcclGroupEnd());
        }
        EXPECT_OK(ftcclStreamSynchronize(host));
        for (size_t i = 0; i < calls; i++) {
            std::vector<int> want(count_of(i)), input(count_of(i));
            for (int k = 0; k < job.size(); k++)
                for (size_t e = 0; e < want.size(); e++)
                    want[e] += start_of(i, k)[e] * 16;
            if (on_gpu(i))
                out[i]->get(got[i], s), there[i]->get(input, s);
            EXPECT_TRUE(soon([&] { return idle(s); }));
            EXPECT_TRUE(got[i] == want)
                << "rank " << r << ", call " << i << ": " << got[i][0] << ", not " << want[0];
            EXPECT_TRUE((on_gpu(i) ? input : here[i]) == start_of(i, r)) << "the input changed";
        }
        EXPECT_EQ(job.state(r), ftcclSuccess);
        EXPECT_OK(ftcclStreamDestroy(host));
    });
}

INSTANTIATE_TEST_SUITE_P(Transports, Gpu, testing::Values("inproc", "shm", "tcp"),
                         [](auto &i) { return std::string(i.param); });

TEST(GpuStreams, SeveralOfACommunicatorNullAndPerThread)
{
    const size_t count = 1000;
    Job job(2, "shm");
    job.each([&](int r) {
        ftcclComm_t c = job.comm[static_cast<size_t>(r)];
        CUstream streams[] = {job.stream[static_cast<size_t>(r)], nullptr, nullptr};
        streams[1] = CU_STREAM_PER_THREAD;
        cuStreamCreate(&streams[2], CU_STREAM_NON_BLOCKING);
        Buffer<int> data(count);
        std::vector<int> got(count), want = numbers<int>(count, 0);
        data.put(want, streams[0]);
        /* Calls on one communicator run in their order, whatever their streams. */
        for (int i = 0; i < 12; i++)
            EXPECT_OK(ftcclAllReduce(data.ptr(), data.ptr(), count, ftcclInt,
                                     i % 2 ? ftcclSum : ftcclMax, c, as(streams[i % 3])));
        for (int &x : want)
            x *= 64;
        for (CUstream s : streams)
            EXPECT_TRUE(soon([&] { return idle(s); }));
        data.get(got, streams[2]);
        EXPECT_TRUE(soon([&] { return idle(streams[2]); }));
        EXPECT_TRUE(got == want) << got[1] << " " << want[1];
        /* A group on two streams waits for both and holds both. */
        Buffer<int> other(count);
        standin_block(streams[2]);
        EXPECT_OK(ftcclGroupStart());
        EXPECT_OK(
            ftcclAllReduce(data.ptr(), data.ptr(), count, ftcclInt, ftcclMax, c, as(streams[0])));
        EXPECT_OK(
            ftcclAllReduce(data.ptr(), other.ptr(), count, ftcclInt, ftcclMin, c, as(streams[2])));
        EXPECT_OK(ftcclGroupEnd());
        usleep(20000);
        EXPECT_FALSE(idle(streams[0]));
        standin_let_go(streams[2]);
        EXPECT_TRUE(soon([&] { return idle(streams[0]) && idle(streams[2]); }));
        other.get(got, streams[2]);
        EXPECT_TRUE(soon([&] { return idle(streams[2]); }));
        EXPECT_TRUE(got == want);
        cuStreamDestroy(streams[2]);
    });
    Job null(1, "inproc"); /* one rank: threads share the legacy stream */
    null.each([&](int) {
        Buffer<int> data(count);
        std::vector<int> got(count), want = numbers<int>(count, 3);
        data.put(want, nullptr);
        EXPECT_OK(ftcclAllReduce(data.ptr(), data.ptr(), count, ftcclInt, ftcclSum, null.comm[0],
                                 nullptr));
        data.get(got, nullptr);
        EXPECT_TRUE(soon([&] { return idle(nullptr); }));
        EXPECT_TRUE(got == want);
    });
}

/* Memory that the GPU and the processor can both reach: managed, and the program's own once it is
 * registered. */
TEST(GpuStreams, ManagedAndRegisteredBuffers)
{
    const size_t count = 100000;
    Job job(2, "shm");
    job.each([&](int r) {
        size_t k = static_cast<size_t>(r);
        CUdeviceptr at = 0;
        std::vector<int> own(count + 2048, 1);
        /* pages that are its alone */
        uintptr_t page = (reinterpret_cast<uintptr_t>(own.data()) + 4095) / 4096 * 4096;
        int *registered = reinterpret_cast<int *>(page);
        size_t len = (count - 1024) * sizeof(int) / 4096 * 4096;
        ASSERT_EQ(cuMemAllocManaged(&at, len, CU_MEM_ATTACH_GLOBAL), CUDA_SUCCESS);
        int *managed = reinterpret_cast<int *>(at);
        std::fill(managed, managed + len / sizeof(int), 2 + r);
        EXPECT_CALLER(ftcclAllReduce(registered, managed, len / sizeof(int), ftcclInt, ftcclSum,
                                     job.comm[k], as(job.stream[k])));
        ASSERT_EQ(cuMemHostRegister(registered, len, CU_MEMHOSTREGISTER_PORTABLE), CUDA_SUCCESS);
        EXPECT_OK(ftcclAllReduce(managed, registered, len / sizeof(int), ftcclInt, ftcclSum,
                                 job.comm[k], as(job.stream[k])));
        EXPECT_OK(ftcclAllReduce(registered, managed, len / sizeof(int), ftcclInt, ftcclSum,
                                 job.comm[k], as(job.stream[k])));
        EXPECT_TRUE(soon([&] { return idle(job.stream[k]); }));
        for (size_t i : {size_t{0}, len / sizeof(int) - 1}) {
            EXPECT_EQ(registered[i], 5) << r;
            EXPECT_EQ(managed[i], 10) << r;
        }
        EXPECT_EQ(cuMemHostUnregister(registered), CUDA_SUCCESS);
        EXPECT_EQ(job.state(r), ftcclSuccess);
        cuMemFree(at);
    });
}

TEST(GpuStreams, HostAndDeviceBesideEachOther)
{
    Job job(2, "shm");
    job.each([&](int r) {
        ftcclComm_t c = job.comm[static_cast<size_t>(r)];
        CUstream s = job.stream[static_cast<size_t>(r)];
        ftcclStream_t host;
        EXPECT_OK(ftcclStreamCreate(&host));
        Buffer<float> there(100);
        std::vector<float> here(100, 1), got(100);
        there.put(here, s);
        EXPECT_OK(ftcclAllReduce(there.ptr(), there.ptr(), 100, ftcclFloat, ftcclSum, c, as(s)));
        EXPECT_OK(ftcclAllReduce(here.data(), here.data(), 100, ftcclFloat, ftcclSum, c, host));
        EXPECT_OK(ftcclStreamSynchronize(host));
        there.get(got, s);
        EXPECT_TRUE(soon([&] { return idle(s); }));
        EXPECT_EQ(here, std::vector<float>(100, 2));
        EXPECT_EQ(got, here);
        EXPECT_CALLER(ftcclAllReduce(there.ptr(), there.ptr(), 100, ftcclFloat, ftcclSum, c, host));
        EXPECT_CALLER(
            ftcclAllReduce(here.data(), here.data(), 100, ftcclFloat, ftcclSum, c, as(s)));
        EXPECT_CALLER(
            ftcclAllReduce(there.ptr(), here.data(), 100, ftcclFloat, ftcclSum, c, nullptr));
        char none;
        /* a real driver may follow what is no stream of its */
        if (standin_launched() != STANDIN_UNKNOWN) {
            EXPECT_CALLER(ftcclAllReduce(there.ptr(), there.ptr(), 100, ftcclFloat, ftcclSum, c,
                                         reinterpret_cast<ftcclStream_t>(&none)));
        }
        /* A scale that lies on the device. */
        Buffer<float> three(1);
        three.put({3}, s);
        ftcclRedOp_t op;
        EXPECT_OK(ftcclRedOpCreatePreMulSum(&op, three.ptr(), ftcclFloat, ftcclScalarDevice, c));
        EXPECT_OK(ftcclAllReduce(there.ptr(), there.ptr(), 100, ftcclFloat, op, c, as(s)));
        EXPECT_OK(ftcclRedOpDestroy(op, c));
        there.get(got, s);
        EXPECT_TRUE(soon([&] { return idle(s); }));
        EXPECT_EQ(got, std::vector<float>(100, 12));
        EXPECT_OK(ftcclStreamDestroy(host));
    });
}

class GpuVerify : public testing::TestWithParam<const char *>
{
};

TEST_P(GpuVerify, ResultsAreComparedAndMessagesSummedUp)
{
    const int n = 3;
    const size_t count = 200003;
    Job job(n, GetParam(), 60000, 0, FTCCL_OPTION_UNDEF, 1);
    for (size_t k :
         {static_cast<size_t>(1), static_cast<size_t>(1001), static_cast<size_t>(300007)})
        reduces<float>(job, k, ftcclFloat, k % 2 == 0);
    job.each([&](int r) {
        CUstream s = job.stream[static_cast<size_t>(r)];
        ftcclComm_t c = job.comm[static_cast<size_t>(r)];
        Buffer<int> one(count), all(n * count), next(count);
        std::vector<int> got(n * count), few(count);
        one.put(numbers<int>(count, r), s);
        EXPECT_OK(ftcclAllGather(one.ptr(), all.ptr(), count, ftcclInt, c, as(s)));
        EXPECT_OK(ftcclBroadcast(one.ptr(), one.ptr(), count, ftcclInt, 1, c, as(s)));
        EXPECT_OK(ftcclGroupStart());
        EXPECT_OK(ftcclSend(all.ptr() + static_cast<size_t>(r) * count, count, ftcclInt,
                            (r + 1) % n, c, as(s)));
        EXPECT_OK(ftcclRecv(next.ptr(), count, ftcclInt, (r + n - 1) % n, c, as(s)));
        EXPECT_OK(ftcclGroupEnd());
        all.get(got, s), next.get(few, s);
        EXPECT_TRUE(soon([&] { return idle(s); }));
        for (int k = 0; k < n; k++)
            EXPECT_TRUE(std::equal(got.begin() + k * static_cast<long>(count),
                                   got.begin() + (k + 1) * static_cast<long>(count),
                                   numbers<int>(count, k).begin()))
                << r;
        EXPECT_TRUE(few == numbers<int>(count, (r + n - 1) % n)) << r;
        one.get(few, s);
        EXPECT_TRUE(soon([&] { return idle(s); }));
        EXPECT_TRUE(few == numbers<int>(count, 1)) << r;
        EXPECT_EQ(job.state(r), ftcclSuccess) << ftcclGetLastError(c);
    });
}

/* A kernel stores a wrong byte. Where that goes into the result of one rank alone it is named; what
 * it stores for all is the same everywhere. */
TEST_P(GpuVerify, AResultThatIsSpoiledOnOneRankIsNamed)
{
    int named = 0;
    for (int nth = 0; nth < 12; nth++) {
        Job job(2, GetParam(), 60000, 0, FTCCL_OPTION_UNDEF, 1);
        std::vector<std::unique_ptr<Buffer<float>>> in, out;
        for (size_t r = 0; r < 2; r++) {
            in.push_back(std::make_unique<Buffer<float>>(size_t{100000})),
                out.push_back(std::make_unique<Buffer<float>>(size_t{100000}));
            in[r]->put(std::vector<float>(100000, 1), job.stream[r]);
        }
        standin_fail("spoil", CUDA_ERROR_UNKNOWN, nth);
        job.each([&](int r) {
            size_t k = static_cast<size_t>(r);
            EXPECT_OK(ftcclAllReduce(in[k]->ptr(), out[k]->ptr(), 100000, ftcclFloat, ftcclSum,
                                     job.comm[k], as(job.stream[k])));
            EXPECT_TRUE(soon([&] { return idle(job.stream[k]); }));
        });
        bool failed = job.state(0) != ftcclSuccess;
        EXPECT_EQ(job.state(1) != ftcclSuccess, failed);
        if (!failed)
            continue;
        named++;
        EXPECT_NE(std::string(ftcclGetLastError(job.comm[0])).find("not the same"),
                  std::string::npos)
            << ftcclGetLastError(job.comm[0]);
    }
    standin_fail("spoil", CUDA_SUCCESS, 0);
    EXPECT_GT(named, 0);
}

INSTANTIATE_TEST_SUITE_P(Transports, GpuVerify, testing::Values("inproc", "shm", "tcp"),
                         [](auto &i) { return std::string(i.param); });

/* A byte of what may be written meanwhile, which is all that says how far it is. */
__attribute__((no_sanitize("thread"))) char peek(const std::vector<char> &of, size_t at)
{
    return *static_cast<const volatile char *>(&of[at]);
}

/* What a rank sends to itself, from the GPU to the host: that the only peer of its process leaves
 * meanwhile is nothing to it. */
TEST(GpuStreams, ASendToItselfDoesNotMindALinkThatGoes)
{
    const size_t n = size_t{64} << 20;
    Job job(2, "shm");
    reduces<float>(job, 100, ftcclFloat, true);
    ftcclComm_t alone[2];
    job.each([&](int r) {
        EXPECT_OK(ftcclCommSplit(job.comm[static_cast<size_t>(r)], r, 0, &alone[r], nullptr));
    });
    Buffer<char> there(n);
    std::vector<char> in = numbers<char>(n, 1), here(n);
    ftcclStream_t host;
    EXPECT_OK(ftcclStreamCreate(&host));
    there.put(in, job.stream[0]);
    EXPECT_TRUE(soon([&] { return idle(job.stream[0]); }));
    EXPECT_OK(ftcclGroupStart());
    EXPECT_OK(ftcclSend(there.ptr(), n, ftcclInt8, 0, alone[0], as(job.stream[0])));
    EXPECT_OK(ftcclRecv(here.data(), n, ftcclInt8, 0, alone[0], host));
    EXPECT_OK(ftcclGroupEnd());
    EXPECT_TRUE(soon([&] { return peek(here, 0) == in[0] && peek(here, 1) == in[1]; }))
        << "it does not begin";
    EXPECT_OK(ftcclCommDestroy(alone[1]));
    EXPECT_OK(ftcclCommDestroy(job.comm[1]));
    job.comm[1] = nullptr;
    EXPECT_OK(ftcclStreamSynchronize(host));
    EXPECT_TRUE(here == in);
    EXPECT_OK(ftcclCommDestroy(alone[0]));
    EXPECT_OK(ftcclStreamDestroy(host));
}

TEST(GpuErrors, ADriverThatRefusesIsTheCallersErrorAndHarmsNobody)
{
    standin_fail("cuMemHostAlloc", CUDA_ERROR_UNKNOWN, 0);
    Job alone(1, "shm"); // and its first call tries again
    Job job(2, "shm");
    Buffer<float> a(100);
    for (const char *call : {"cuMemHostAlloc", "cuEventRecord", "cuLaunchKernel"}) {
        const Job &who = call == std::string("cuMemHostAlloc") ? alone : job;
        standin_fail(call, CUDA_ERROR_UNKNOWN, 0);
        EXPECT_EQ(ftcclAllReduce(a.ptr(), a.ptr(), 100, ftcclFloat, ftcclSum, who.comm[0],
                                 as(who.stream[0])),
                  ftcclUnhandledCudaError)
            << call;
        EXPECT_NE(std::string(ftcclGetLastError(nullptr)).find(call), std::string::npos)
            << ftcclGetLastError(nullptr);
        EXPECT_EQ(job.state(0), ftcclSuccess);
    }
    standin_fail("capturing", CUDA_ERROR_UNKNOWN, 0);
    EXPECT_CALLER(ftcclAllReduce(a.ptr(), a.ptr(), 100, ftcclFloat, ftcclSum, job.comm[0],
                                 as(job.stream[0])));
    reduces<float>(job, 1000, ftcclFloat, true);
    reduces<float>(alone, 1000, ftcclFloat, true);
}

/* Rank 1's stream stands still; the others' operations have ended. */
struct Standing {
    Job job{3, "shm", 3000};
    /* more than links hold: rank 1 cannot complete alone later */
    Buffer<float> a{400000}, b{400000}, c{400000};
    Standing()
    {
        reduces<float>(job, 100, ftcclFloat, true);
        standin_block(job.stream[1]);
        Buffer<float> *data[] = {&a, &b, &c};
        for (size_t r = 0; r < 3; r++)
            EXPECT_OK(ftcclAllReduce(data[r]->ptr(), data[r]->ptr(), a.n, ftcclFloat, ftcclSum,
                                     job.comm[r], as(job.stream[r])));
        EXPECT_TRUE(
            soon([&] { return job.state(0) != ftcclSuccess && job.state(2) != ftcclSuccess; }));
        EXPECT_EQ(ftcclGetErrorClass(job.state(0)), ftcclClassRecoverable);
        EXPECT_EQ(ftcclGetErrorClass(job.state(2)), ftcclClassRecoverable);
        EXPECT_TRUE(soon([&] { return idle(job.stream[0]) && idle(job.stream[2]); })) << "released";
        EXPECT_FALSE(idle(job.stream[1]));
    }
    void abort()
    {
        for (auto &comm : job.comm) {
            EXPECT_OK(ftcclCommAbort(comm));
            comm = nullptr;
        }
    }
};

TEST(GpuErrors, AStreamThatStandsStillIsBoundedByTheOthersDeadlineAndHindersNoAbort)
{
    Standing s;
    s.abort();
    EXPECT_FALSE(idle(s.job.stream[1]));
    standin_let_go(s.job.stream[1]);
    EXPECT_TRUE(soon([&] { return idle(s.job.stream[1]); })) << "its kernel did not leave";
    EXPECT_TRUE(soon([&] { return standin_running() == 0; }));
}

TEST(GpuErrors, AStreamThatComesLateLearnsWhatBecameOfItsOperation)
{
    Standing s;
    EXPECT_EQ(s.job.state(1), ftcclSuccess) << "its time has not begun";
    standin_let_go(s.job.stream[1]);
    EXPECT_TRUE(soon([&] { return s.job.state(1) != ftcclSuccess && idle(s.job.stream[1]); }));
    EXPECT_EQ(ftcclGetErrorClass(s.job.state(1)), ftcclClassRecoverable);
    s.abort();
}

TEST(GpuErrors, AnInputInPlaceIsRestored)
{
    Job job(2, "shm", 3000, 1);
    std::vector<int> in = numbers<int>(300000, 5), got(in.size());
    Buffer<int> a(in.size());
    reduces<int>(job, 200000, ftcclInt, true);
    a.put(in, job.stream[0]);
    EXPECT_OK(ftcclAllReduce(a.ptr(), a.ptr(), in.size(), ftcclInt, ftcclSum, job.comm[0],
                             as(job.stream[0])));
    EXPECT_TRUE(soon([&] { return job.state(0) != ftcclSuccess; }));
    a.get(got, job.stream[0]);
    EXPECT_TRUE(soon([&] { return idle(job.stream[0]); }));
    EXPECT_TRUE(got == in);
    for (auto &comm : job.comm) {
        EXPECT_OK(ftcclCommAbort(comm));
        comm = nullptr;
    }
}

/* What a kernel behind an operation reads of the status word, by a copy on the same stream. */
struct Behind {
    const uint32_t *word = nullptr;
    Buffer<uint32_t> seen{1};
    explicit Behind(ftcclComm_t comm)
    {
        EXPECT_OK(ftcclCommGetDeviceStatus(comm, &word));
    }
    void enqueue(CUstream stream) const
    {
        cuMemcpyAsync(seen.at, reinterpret_cast<CUdeviceptr>(word), sizeof *word, stream);
    }
    uint32_t value(CUstream stream)
    {
        std::vector<uint32_t> got(1, 7);
        seen.get(got, stream);
        EXPECT_TRUE(soon([&] { return idle(stream); }));
        return got[0];
    }
};

class GpuOnFailure : public testing::TestWithParam<int64_t>
{
};

/* Rank 1 does not come. */
TEST_P(GpuOnFailure, StreamsStandOrGoAndKernelsBehindCanTell)
{
    bool hold = GetParam() == FTCCL_STREAMS_HOLD;
    Job job(2, "shm", 1500, 0, GetParam());
    CUstream s = job.stream[0];
    Behind behind(job.comm[0]), again(job.comm[0]), other(job.comm[1]);
    EXPECT_EQ(behind.word, again.word);
    EXPECT_NE(behind.word, other.word);
    reduces<float>(job, 1000, ftcclFloat, true);
    behind.enqueue(s);
    EXPECT_EQ(behind.value(s), 0u);
    Buffer<float> a(1000);
    EXPECT_OK(ftcclAllReduce(a.ptr(), a.ptr(), a.n, ftcclFloat, ftcclSum, job.comm[0], as(s)));
    behind.enqueue(s);
    EXPECT_TRUE(soon([&] { return job.state(0) != ftcclSuccess; }));
    EXPECT_EQ(soon([&] { return idle(s); }, hold ? 0.3 : 60), !hold);
    for (auto &comm : job.comm) {
        EXPECT_OK(ftcclCommAbort(comm));
        comm = nullptr;
    }
    EXPECT_EQ(behind.value(s), 1u) << "a kernel behind went on, and could not know";
    /* whose kernels must not see that failure, nor those of before the next one's success */
    Job next(2, "shm");
    Behind fresh(next.comm[0]);
    EXPECT_NE(fresh.word, behind.word);
    fresh.enqueue(next.stream[0]);
    EXPECT_EQ(fresh.value(next.stream[0]), 0u);
    behind.enqueue(next.stream[0]);
    EXPECT_EQ(behind.value(next.stream[0]), 1u);
}

INSTANTIATE_TEST_SUITE_P(Options, GpuOnFailure,
                         testing::Values(int64_t{FTCCL_STREAMS_RELEASE},
                                         int64_t{FTCCL_STREAMS_HOLD}),
                         [](auto &i) {
                             return i.param == FTCCL_STREAMS_HOLD ? "hold" : "release";
                         });

/* One-sided calls are for memory of the host: what is the GPU's is refused before anything is done,
 * by each rank for itself, and harms nobody. */
TEST(GpuErrors, WindowsAndPutsOfGpuMemoryAreRefusedWithASentence)
{
    Job job(2, "shm");
    std::vector<std::vector<int>> host(2, std::vector<int>(64, 0));
    job.each([&](int r) {
        ftcclComm_t c = job.comm[static_cast<size_t>(r)];
        CUstream s = job.stream[static_cast<size_t>(r)];
        Buffer<int> there(64);
        ftcclWindow_t window = nullptr;
        EXPECT_CALLER(ftcclCommWindowRegister(c, there.ptr(), 256, &window, 0));
        EXPECT_NE(std::string(ftcclGetLastError(c)).find("memory of a GPU"), std::string::npos)
            << ftcclGetLastError(c);
        ASSERT_OK(ftcclCommWindowRegister(c, host[static_cast<size_t>(r)].data(), 256, &window, 0));
        EXPECT_CALLER(
            ftcclPutSignal(there.ptr(), 64, ftcclInt, 1 - r, window, 0, 0, 0, 0, c, nullptr));
        EXPECT_NE(std::string(ftcclGetLastError(c)).find("memory of a GPU"), std::string::npos)
            << ftcclGetLastError(c);
        EXPECT_CALLER(ftcclSignal(1 - r, 0, 0, 0, c, as(s))); /* nor on streams of CUDA's */
        std::vector<int> mine(64, r + 1);
        ftcclWaitSignalDesc_t wait = {};
        wait.opCnt = 1, wait.peer = 1 - r;
        EXPECT_CALLER(ftcclWaitSignal(1, &wait, c, as(s)));
        EXPECT_OK(ftcclPutSignal(mine.data(), 64, ftcclInt, 1 - r, window, 0, 0, 0, 0, c, nullptr));
        EXPECT_OK(ftcclWaitSignal(1, &wait, c, nullptr));
        EXPECT_OK(ftcclStreamSynchronize(nullptr));
        EXPECT_EQ(host[static_cast<size_t>(r)], std::vector<int>(64, 2 - r));
        EXPECT_OK(ftcclCommWindowDeregister(c, window));
        EXPECT_EQ(job.state(r), ftcclSuccess);
    });
    reduces<float>(job, 1000, ftcclFloat, true);
}

TEST(GpuErrors, ABufferOfAnotherGpuIsRefused)
{
    int count = 0;
    ASSERT_EQ(cuDeviceGetCount(&count), CUDA_SUCCESS);
    if (count < 2)
        GTEST_SKIP() << "needs two GPUs";
    Job job(1, "shm");
    job.each([&](int) {
        CUcontext other, popped;
        ASSERT_EQ(cuDevicePrimaryCtxRetain(&other, 1), CUDA_SUCCESS);
        ASSERT_EQ(cuCtxPushCurrent(other), CUDA_SUCCESS);
        Buffer<float> theirs(100);
        ASSERT_EQ(cuCtxPopCurrent(&popped), CUDA_SUCCESS);
        Buffer<float> ours(100);
        EXPECT_CALLER(ftcclAllReduce(theirs.ptr(), ours.ptr(), 100, ftcclFloat, ftcclSum,
                                     job.comm[0], as(job.stream[0])));
        EXPECT_NE(std::string(ftcclGetLastError(job.comm[0])).find("memory of GPU 1"),
                  std::string::npos)
            << ftcclGetLastError(job.comm[0]);
        EXPECT_CALLER(ftcclAllReduce(ours.ptr(), theirs.ptr(), 100, ftcclFloat, ftcclSum,
                                     job.comm[0], as(job.stream[0])));
        cuDevicePrimaryCtxRelease(1);
    });
}

TEST(GpuErrors, AStatusWordThatCannotBeHad)
{
    const uint32_t *word = nullptr;
    Job job(2, "shm");
    EXPECT_CALLER(ftcclCommGetDeviceStatus(job.comm[0], nullptr));
    EXPECT_CALLER(ftcclCommGetDeviceStatus(nullptr, &word));
    standin_fail("cuMemHostAlloc", CUDA_ERROR_UNKNOWN, 0); /* of the queue */
    EXPECT_EQ(ftcclCommGetDeviceStatus(job.comm[0], &word), ftcclUnhandledCudaError);
    EXPECT_EQ(word, nullptr);
    EXPECT_OK(ftcclCommGetDeviceStatus(job.comm[0], &word));
    ftcclConfig_t config = FTCCL_CONFIG_INITIALIZER;
    ftcclOptions_t options = FTCCL_OPTIONS_INITIALIZER;
    config.options = &options;
    options.onFailure = 2;
    ftcclComm_t comm;
    EXPECT_CALLER(ftcclCommSplit(job.comm[0], 0, 0, &comm, &config));
}

/* Rank 1 does not come: nothing of the group's inputs is overwritten. */
TEST(GpuErrors, AGroupOfSmallSumsThatFailsLeavesItsInputs)
{
    for (int preserve = 0; preserve < 2; preserve++) {
        Job job(2, "shm", 1500, preserve);
        std::vector<int> in = numbers<int>(500, 5), got(in.size());
        Buffer<int> a(in.size()), b(in.size());
        a.put(in, job.stream[0]), b.put(in, job.stream[0]);
        EXPECT_OK(ftcclGroupStart());
        for (Buffer<int> *x : {&a, &b})
            EXPECT_OK(ftcclAllReduce(x->ptr(), x->ptr(), in.size(), ftcclInt, ftcclSum, job.comm[0],
                                     as(job.stream[0])));
        EXPECT_OK(ftcclGroupEnd());
        EXPECT_TRUE(soon([&] { return job.state(0) != ftcclSuccess; }));
        for (Buffer<int> *x : {&a, &b}) {
            x->get(got, job.stream[0]);
            EXPECT_TRUE(soon([&] { return idle(job.stream[0]); }));
            EXPECT_TRUE(got == in);
        }
        for (auto &comm : job.comm) {
            EXPECT_OK(ftcclCommAbort(comm));
            comm = nullptr;
        }
    }
}

} // namespace

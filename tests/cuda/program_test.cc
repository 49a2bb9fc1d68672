/*
 * Property: a program that is compiled against NVIDIA's nccl.h and cuda_runtime.h, and knows
 * nothing of ftccl, runs on our libnccl.so.2 as on NVIDIA's: one process with several devices, one
 * process or thread per rank, groups, non-blocking communicators, memory of ncclMemAlloc,
 * user-defined operators, splits, and every kind of stream. If a rank aborts, the others get an
 * error, and their streams go on. Method: such programs, in the style of NVIDIA's examples, on the
 * stand-in driver (four devices) and a stand-in runtime.
 */
#include "tests/abi/nccl_header.h"
#include "tests/proc/proc.h"

#if !defined(FT_NO_NCCL_HEADER) && !defined(FT_HAVE_CUDA)
#define FT_NO_NCCL_HEADER "the CUDA device is not built: there is no nvcc"
#elif !defined(FT_NO_NCCL_HEADER) && !__has_include(<cuda_runtime.h>)
#define FT_NO_NCCL_HEADER "no cuda_runtime.h: configure --with-cuda=DIR names the toolkit"
#endif
#ifdef FT_NO_NCCL_HEADER
TEST(CudaProgram, Headers)
{
    GTEST_SKIP() << FT_NO_NCCL_HEADER;
}
#else

#include <cuda_runtime.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <memory>
#include <thread>

#define NCCL(call) ASSERT_EQ(ncclSuccess, call) << ncclGetLastError(nullptr)
#define CUDA(call) ASSERT_EQ(cudaSuccess, call)

namespace
{

const size_t kCount = 100003;
using Floats = std::vector<float>;

Floats input(int rank, size_t n = kCount)
{
    Floats v(n);
    for (size_t i = 0; i < n; i++)
        v[i] = static_cast<float>(rank + 1) * static_cast<float>(i % 1000);
    return v;
}

/* The sum over ranks 0 to n - 1, all of it times `times`. */
Floats total(int n, float times = 1)
{
    Floats v(kCount);
    for (int r = 0; r < n; r++)
        for (size_t i = 0; i < kCount; i++)
            v[i] += times * static_cast<float>(r + 1) * static_cast<float>(i % 1000);
    return v;
}

/* A stream that does not come to its end in a minute fails the test instead of stopping it. */
bool finishes(cudaStream_t stream)
{
    double end = proc::now() + 60;
    cudaError_t error;
    while ((error = cudaStreamQuery(stream)) == cudaErrorNotReady && proc::now() < end)
        usleep(200);
    return error == cudaSuccess;
}

/* Floats on the device that the thread has chosen. */
struct Buffer {
    float *at = nullptr;
    size_t n;
    explicit Buffer(size_t count = kCount) : n(count)
    {
        EXPECT_EQ(cudaSuccess, cudaMalloc(reinterpret_cast<void **>(&at), n * sizeof(float)));
    }
    explicit Buffer(const Floats &v) : Buffer(v.size())
    {
        EXPECT_EQ(cudaSuccess, cudaMemcpy(at, v.data(), n * sizeof(float), cudaMemcpyHostToDevice));
    }
    Buffer(const Buffer &) = delete;
    ~Buffer()
    {
        cudaFree(at);
    }
    Floats get(cudaStream_t stream) const
    {
        Floats v(n);
        EXPECT_EQ(cudaSuccess,
                  cudaMemcpyAsync(v.data(), at, n * sizeof(float), cudaMemcpyDeviceToHost, stream));
        EXPECT_TRUE(finishes(stream)) << "the stream stands still";
        return v;
    }
};

/* Ranks of one thread, each with a device of its own, a stream and two buffers. */
struct Devices {
    int n;
    std::vector<ncclComm_t> comm;
    std::vector<cudaStream_t> stream;
    std::vector<std::unique_ptr<Buffer>> in, out;
    explicit Devices(int n_) : n(n_), comm(static_cast<size_t>(n)), stream(static_cast<size_t>(n))
    {
        for (int r = 0; r < n; r++) {
            EXPECT_EQ(cudaSuccess, cudaSetDevice(r));
            in.push_back(std::make_unique<Buffer>(input(r)));
            out.push_back(std::make_unique<Buffer>());
            EXPECT_EQ(cudaSuccess, cudaStreamCreate(&stream[static_cast<size_t>(r)]));
        }
    }
    ~Devices()
    {
        for (auto c : comm)
            EXPECT_EQ(ncclSuccess, ncclCommDestroy(c));
        for (auto s : stream)
            EXPECT_EQ(cudaSuccess, cudaStreamDestroy(s));
    }
    void reduce(const ncclRedOp_t *op = nullptr) const
    {
        NCCL(ncclGroupStart());
        for (size_t r = 0; r < comm.size(); r++)
            NCCL(ncclAllReduce(in[r]->at, out[r]->at, kCount, ncclFloat, op ? op[r] : ncclSum,
                               comm[r], stream[r]));
        NCCL(ncclGroupEnd());
    }
};

TEST(CudaProgram, OneProcessSeveralDevices)
{
    Devices d(4);
    int devs[] = {0, 1, 2, 3};
    NCCL(ncclCommInitAll(d.comm.data(), d.n, devs));
    d.reduce();
    for (size_t r = 0; r < 4; r++) {
        int device = -1;
        NCCL(ncclCommCuDevice(d.comm[r], &device));
        EXPECT_EQ(static_cast<int>(r), device);
        EXPECT_EQ(total(4), d.out[r]->get(d.stream[r])) << "device " << r;
    }
}

TEST(CudaProgram, DevicesWithoutAListInAnotherOrderAndNotThere)
{
    {
        Devices d(4);
        NCCL(ncclCommInitAll(d.comm.data(), d.n, nullptr));
        d.reduce();
        for (size_t r = 0; r < 4; r++)
            EXPECT_EQ(total(4), d.out[r]->get(d.stream[r])) << "device " << r;
    }
    int devs[] = {3, 1}, device = -1, none[] = {0, 4};
    ncclComm_t comm[2];
    NCCL(ncclCommInitAll(comm, 2, devs));
    for (int r = 0; r < 2; r++) {
        NCCL(ncclCommCuDevice(comm[r], &device));
        EXPECT_EQ(devs[r], device);
        NCCL(ncclCommDestroy(comm[r]));
    }
    EXPECT_EQ(ncclInvalidArgument, ncclCommInitAll(comm, 2, none));
}

TEST(CudaProgram, OneThreadMakesItsRanksInAGroup)
{
    Devices d(3);
    ncclUniqueId id;
    NCCL(ncclGetUniqueId(&id));
    NCCL(ncclGroupStart());
    for (int r = 0; r < d.n; r++) {
        CUDA(cudaSetDevice(r));
        NCCL(ncclCommInitRank(&d.comm[static_cast<size_t>(r)], d.n, id, r));
    }
    NCCL(ncclGroupEnd());
    d.reduce();
    for (size_t r = 0; r < 3; r++)
        EXPECT_EQ(total(3), d.out[r]->get(d.stream[r])) << "device " << r;
}

TEST(CudaProgram, ANonBlockingCommunicator)
{
    Devices d(3);
    ncclUniqueId id;
    NCCL(ncclGetUniqueId(&id));
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    NCCL(ncclGroupStart());
    for (int r = 0; r < d.n; r++) {
        CUDA(cudaSetDevice(r));
        ncclResult_t result = ncclCommInitRankConfig(&d.comm[static_cast<size_t>(r)], d.n, id, r,
                                                     &config);
        ASSERT_TRUE(result == ncclSuccess || result == ncclInProgress) << result;
    }
    ncclResult_t result = ncclGroupEnd();
    ASSERT_TRUE(result == ncclSuccess || result == ncclInProgress) << result;
    double end = proc::now() + 60;
    for (auto comm : d.comm) {
        do
            NCCL(ncclCommGetAsyncError(comm, &result));
        while (result == ncclInProgress && proc::now() < end);
        ASSERT_EQ(ncclSuccess, result);
    }
    d.reduce();
    for (size_t r = 0; r < 3; r++)
        EXPECT_EQ(total(3), d.out[r]->get(d.stream[r])) << "device " << r;
}

TEST(CudaProgram, GroupedSendsAndReceivesDoNotWaitForEachOther)
{
    const size_t n = 1000000; /* more than any link holds */
    Devices d(3);
    NCCL(ncclCommInitAll(d.comm.data(), d.n, nullptr));
    std::vector<std::unique_ptr<Buffer>> from, left, right;
    for (int r = 0; r < d.n; r++) {
        CUDA(cudaSetDevice(r));
        from.push_back(std::make_unique<Buffer>(input(r, n)));
        left.push_back(std::make_unique<Buffer>(n));
        right.push_back(std::make_unique<Buffer>(n));
    }
    NCCL(ncclGroupStart());
    for (int r = 0; r < d.n; r++) {
        size_t k = static_cast<size_t>(r);
        NCCL(ncclRecv(left[k]->at, n, ncclFloat, (r + 2) % 3, d.comm[k], d.stream[k]));
        NCCL(ncclRecv(right[k]->at, n, ncclFloat, (r + 1) % 3, d.comm[k], d.stream[k]));
        NCCL(ncclSend(from[k]->at, n, ncclFloat, (r + 1) % 3, d.comm[k], d.stream[k]));
        NCCL(ncclSend(from[k]->at, n, ncclFloat, (r + 2) % 3, d.comm[k], d.stream[k]));
    }
    NCCL(ncclGroupEnd());
    for (int r = 0; r < d.n; r++) {
        size_t k = static_cast<size_t>(r);
        EXPECT_TRUE(input((r + 2) % 3, n) == left[k]->get(d.stream[k])) << r;
        EXPECT_TRUE(input((r + 1) % 3, n) == right[k]->get(d.stream[k])) << r;
    }
}

TEST(CudaProgram, OwnOperatorsScaleByTheHostsOrTheDevicesNumber)
{
    Devices d(2);
    NCCL(ncclCommInitAll(d.comm.data(), d.n, nullptr));
    float two = 2;
    for (auto residence : {ncclScalarHostImmediate, ncclScalarDevice}) {
        std::vector<ncclRedOp_t> op(2);
        std::vector<std::unique_ptr<Buffer>> scalar;
        for (size_t r = 0; r < 2; r++) {
            CUDA(cudaSetDevice(static_cast<int>(r)));
            scalar.push_back(std::make_unique<Buffer>(Floats(1, two)));
            void *at = residence == ncclScalarDevice ? scalar[r]->at : &two;
            NCCL(ncclRedOpCreatePreMulSum(&op[r], at, ncclFloat, residence, d.comm[r]));
        }
        d.reduce(op.data());
        for (size_t r = 0; r < 2; r++) {
            NCCL(ncclRedOpDestroy(op[r], d.comm[r]));
            EXPECT_EQ(total(2, two), d.out[r]->get(d.stream[r]));
        }
    }
}

/* Each rank a thread with its own device; what it does on its communicator, which is destroyed
 * then. */
void by_id(int n, const std::function<void(int, ncclComm_t)> &rank)
{
    ncclUniqueId id;
    NCCL(ncclGetUniqueId(&id));
    proc::in_threads(n, [&](int r) {
        ncclComm_t comm = nullptr;
        CUDA(cudaSetDevice(r));
        NCCL(ncclCommInitRank(&comm, n, id, r));
        rank(r, comm);
        NCCL(ncclCommDestroy(comm));
    });
}

TEST(CudaProgram, MemoryOfItsOwnIsTheDevicesAndIsRegistered)
{
    by_id(2, [](int r, ncclComm_t comm) {
        void *memory = nullptr, *handle = nullptr;
        cudaStream_t stream;
        CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
        NCCL(ncclMemAlloc(&memory, kCount * sizeof(float)));
        NCCL(ncclCommRegister(comm, memory, kCount * sizeof(float), &handle));
        Floats v = input(r);
        CUDA(cudaMemcpyAsync(memory, v.data(), kCount * sizeof(float), cudaMemcpyHostToDevice,
                             stream));
        NCCL(ncclAllReduce(memory, memory, kCount, ncclFloat, ncclSum, comm, stream));
        CUDA(cudaMemcpyAsync(v.data(), memory, kCount * sizeof(float), cudaMemcpyDeviceToHost,
                             stream));
        EXPECT_TRUE(finishes(stream));
        EXPECT_EQ(total(2), v) << r;
        NCCL(ncclCommDeregister(comm, handle));
        NCCL(ncclMemFree(memory));
        CUDA(cudaStreamDestroy(stream));
    });
}

TEST(CudaProgram, TheNullStreamAndTheThreadsOwn)
{
    by_id(3, [](int r, ncclComm_t comm) {
        for (cudaStream_t stream :
             {static_cast<cudaStream_t>(nullptr), cudaStreamLegacy, cudaStreamPerThread}) {
            Buffer in(input(r)), out;
            NCCL(ncclAllReduce(in.at, out.at, kCount, ncclFloat, ncclSum, comm, stream));
            EXPECT_EQ(total(3), out.get(stream)) << r;
        }
    });
}

TEST(CudaProgram, ASplitHasItsParentsDevices)
{
    by_id(4, [](int r, ncclComm_t comm) {
        ncclComm_t part = nullptr;
        int device = -1;
        cudaStream_t stream;
        CUDA(cudaStreamCreate(&stream));
        NCCL(ncclCommSplit(comm, r / 2, r, &part, nullptr));
        NCCL(ncclCommCuDevice(part, &device));
        EXPECT_EQ(r, device);
        Buffer in(input(r % 2)), out;
        NCCL(ncclAllReduce(in.at, out.at, kCount, ncclFloat, ncclSum, part, stream));
        EXPECT_EQ(total(2), out.get(stream)) << r;
        /* Both communicators in one group and on one stream. */
        Buffer few, all;
        NCCL(ncclGroupStart());
        NCCL(ncclAllReduce(in.at, few.at, kCount, ncclFloat, ncclSum, part, stream));
        NCCL(ncclAllReduce(in.at, all.at, kCount, ncclFloat, ncclSum, comm, stream));
        NCCL(ncclGroupEnd());
        EXPECT_EQ(total(2), few.get(stream)) << r;
        EXPECT_EQ(total(2, 2), all.get(stream)) << r;
        NCCL(ncclCommDestroy(part));
        CUDA(cudaStreamDestroy(stream));
    });
}

TEST(CudaProgram, EventsOrderItWithOtherStreams)
{
    by_id(2, [](int r, ncclComm_t comm) {
        cudaStream_t copies, reduces;
        cudaEvent_t ready, reduced;
        CUDA(cudaStreamCreate(&copies));
        CUDA(cudaStreamCreate(&reduces));
        CUDA(cudaEventCreateWithFlags(&ready, cudaEventDisableTiming));
        CUDA(cudaEventCreateWithFlags(&reduced, cudaEventDisableTiming));
        Buffer data;
        Floats v = input(r);
        for (int i = 0; i < 5; i++) {
            CUDA(cudaMemcpyAsync(data.at, v.data(), kCount * sizeof(float), cudaMemcpyHostToDevice,
                                 copies));
            CUDA(cudaEventRecord(ready, copies));
            CUDA(cudaStreamWaitEvent(reduces, ready, 0));
            NCCL(ncclAllReduce(data.at, data.at, kCount, ncclFloat, ncclSum, comm, reduces));
            CUDA(cudaEventRecord(reduced, reduces));
            CUDA(cudaStreamWaitEvent(copies, reduced, 0));
        }
        CUDA(cudaEventSynchronize(reduced));
        EXPECT_EQ(cudaSuccess, cudaEventQuery(reduced));
        EXPECT_EQ(total(2), data.get(copies)) << r;
        CUDA(cudaEventDestroy(ready));
        CUDA(cudaEventDestroy(reduced));
        CUDA(cudaStreamDestroy(copies));
        CUDA(cudaStreamDestroy(reduces));
    });
}

TEST(CudaProgram, AThreadThatHasNamedNoDeviceWorksOnTheFirst)
{
    cudaStream_t stream;
    CUDA(cudaSetDevice(0));
    CUDA(cudaStreamCreate(&stream));
    Buffer in(input(0)), out;
    ncclComm_t comm = nullptr;
    std::thread([&] {
        NCCL(ncclCommInitAll(&comm, 1, nullptr));
        NCCL(ncclAllReduce(in.at, out.at, kCount, ncclFloat, ncclSum, comm, stream));
    }).join();
    EXPECT_EQ(input(0), out.get(stream));
    NCCL(ncclCommDestroy(comm));
    CUDA(cudaStreamDestroy(stream));
}

TEST(CudaProgram, AStreamOfAnotherDeviceIsRefused)
{
    Devices d(2);
    NCCL(ncclCommInitAll(d.comm.data(), d.n, nullptr));
    EXPECT_NE(ncclSuccess, ncclAllReduce(d.in[0]->at, d.out[0]->at, kCount, ncclFloat, ncclSum,
                                         d.comm[0], d.stream[1]));
    EXPECT_STRNE("", ncclGetLastError(d.comm[0]));
    d.reduce();
    for (size_t r = 0; r < 2; r++)
        EXPECT_EQ(total(2), d.out[r]->get(d.stream[r]));
}

class CudaProgramOnFailure : public testing::TestWithParam<const char *>
{
  protected:
    void SetUp() override
    {
        read(GetParam());
    }
    void TearDown() override
    {
        read(nullptr);
    }
    static void read(const char *value)
    {
        if (value)
            setenv("FTCCL_ON_FAILURE", value, 1);
        else
            unsetenv("FTCCL_ON_FAILURE");
        ftcclResetDebugInit(); /* reads the environment again */
    }
};

/* As with NCCL nothing behind a failed operation runs before the abort; on request it does. */
TEST_P(CudaProgramOnFailure, AnAbortIsAnErrorOfTheOthersWhoseStreamsStandOrGoOn)
{
    ncclUniqueId id;
    std::atomic<int> done{0};
    bool release = GetParam() != nullptr;
    NCCL(ncclGetUniqueId(&id));
    proc::in_threads(3, [&](int r) {
        ncclComm_t comm = nullptr;
        cudaStream_t stream;
        CUDA(cudaSetDevice(r));
        CUDA(cudaStreamCreate(&stream));
        NCCL(ncclCommInitRank(&comm, 3, id, r));
        Buffer in(input(r)), out;
        NCCL(ncclAllReduce(in.at, out.at, kCount, ncclFloat, ncclSum, comm, stream));
        EXPECT_EQ(total(3), out.get(stream)) << r;
        /* an abort may end what runs elsewhere */
        for (done++; done < 3;)
            std::this_thread::yield();
        if (r > 0) {
            ncclResult_t state = ncclSuccess;
            ncclResult_t result = ncclAllReduce(in.at, out.at, kCount, ncclFloat, ncclSum, comm,
                                                stream);
            /* it may know already */
            EXPECT_TRUE(result == ncclSuccess || result == ncclRemoteError) << result;
            for (double end = proc::now() + 60; state == ncclSuccess && proc::now() < end;)
                NCCL(ncclCommGetAsyncError(comm, &state));
            EXPECT_EQ(ncclRemoteError, state) << ncclGetLastError(comm);
            if (release) {
                EXPECT_TRUE(finishes(stream));
            }
            if (!release && result == ncclSuccess) {
                std::this_thread::sleep_for(std::chrono::milliseconds(100));
                EXPECT_EQ(cudaErrorNotReady, cudaStreamQuery(stream));
            }
        }
        NCCL(ncclCommAbort(comm));
        EXPECT_TRUE(finishes(stream));
        CUDA(cudaStreamDestroy(stream));
    });
}

INSTANTIATE_TEST_SUITE_P(OnFailure, CudaProgramOnFailure, testing::Values(nullptr, "release"),
                         [](auto &i) { return i.param ? "release" : "unset"; });

/* rank ID NRANKS RANK: a program that a launcher starts once a rank. Says how its sum came out. */
CHILD(rank)
{
    ncclUniqueId id;
    ftcclUniqueId given = proc::unhex(arguments[0]);
    memcpy(&id, &given, sizeof id);
    int n = std::stoi(arguments[1]), rank = std::stoi(arguments[2]), devices = 0;
    ncclComm_t comm;
    cudaStream_t stream;
    if (cudaGetDeviceCount(&devices) != cudaSuccess || cudaSetDevice(rank % devices) != cudaSuccess)
        return 1;
    if (cudaStreamCreate(&stream) != cudaSuccess ||
        ncclCommInitRank(&comm, n, id, rank) != ncclSuccess)
        return 2;
    bool right = true;
    {
        Buffer in(input(rank)), out;
        if (ncclAllReduce(in.at, out.at, kCount, ncclFloat, ncclSum, comm, stream) != ncclSuccess)
            return 3;
        right = out.get(stream) == total(n);
    }
    if (ncclCommFinalize(comm) != ncclSuccess || ncclCommDestroy(comm) != ncclSuccess ||
        cudaStreamDestroy(stream) != cudaSuccess)
        return 4;
    printf("%s\n", right ? "right" : "wrong");
    return 0;
}

TEST(CudaProgram, AProcessARank)
{
    ncclUniqueId made;
    ftcclUniqueId id;
    NCCL(ncclGetUniqueId(&made));
    memcpy(&id, &made, sizeof id);
    std::vector<std::unique_ptr<proc::Child>> rank;
    for (int r = 0; r < 3; r++)
        rank.push_back(std::make_unique<proc::Child>(
            "rank", std::vector<std::string>{proc::hex(id), "3", std::to_string(r)}));
    for (auto &child : rank)
        EXPECT_EQ("right", child->line(60));
    for (auto &child : rank)
        EXPECT_EQ(0, child->wait(60));
}

} // namespace

#endif

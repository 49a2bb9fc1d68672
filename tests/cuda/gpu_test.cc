/*
 * Property: the calls work on buffers of the GPU, on the program's own streams, and on no other: results are right and in the streams'
 * order; one kernel a group and communicator, so that grouped sends and receives cannot block each other; a stream that does not move, a
 * driver that refuses and a rank that dies end in an error within their bounds, and the streams of the others go on (release) or stand until
 * the abort (hold). Method: ranks as threads and as processes on the stand-in driver, whose device memory kills whoever touches it.
 */
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <memory>
#include <numeric>

#include "tests/cuda/ranks.h"

namespace {

using namespace gpu;

/* An all-reduce of every rank between copies on its stream, in place or not; the host waits once, at the end. */
template <class T>
void reduces(const Job &job, size_t count, ftcclDataType_t type, bool in_place)
{
    std::vector<T> want(count);
    for (int r = 0; r < job.size(); r++) {
        std::vector<T> one = numbers<T>(count, r);
        for (size_t i = 0; i < count; i++) want[i] = static_cast<T>(want[i] + one[i]);
    }
    job.each([&](int r) {
        CUstream stream = job.stream[static_cast<size_t>(r)];
        std::vector<T> in = numbers<T>(count, r), out(count), after(count);
        Buffer<T> a(count), b(count);
        a.put(in, stream);
        EXPECT_OK(ftcclAllReduce(a.ptr(), in_place ? a.ptr() : b.ptr(), count, type, ftcclSum, job.comm[static_cast<size_t>(r)], as(stream)));
        (in_place ? a : b).get(out, stream);
        a.get(after, stream);
        EXPECT_TRUE(soon([&] { return idle(stream); }));
        EXPECT_TRUE(out == want) << "rank " << r << " of " << job.size() << ", count " << count;
        EXPECT_TRUE(in_place || after == in) << "the input changed";
    });
}

class Gpu : public testing::TestWithParam<const char *> {};

TEST_P(Gpu, AllReduceInTheStreamsOrder)
{
    for (int n = 1; n <= 4; n++) {
        Job job(n, GetParam());
        for (size_t count : {static_cast<size_t>(0), static_cast<size_t>(1), static_cast<size_t>(1001), static_cast<size_t>(300007)}) {
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
            EXPECT_TRUE(std::equal(got.begin() + k * static_cast<long>(count), got.begin() + (k + 1) * static_cast<long>(count), numbers<int>(count, k).begin())) << r;
        std::vector<int> want = numbers<int>(count, r);
        for (int &x : want) x *= n;
        EXPECT_TRUE(few == want) << r;
        EXPECT_OK(ftcclBroadcast(one.ptr(), one.ptr(), count, ftcclInt, 1, c, as(s)));
        one.get(few, s);
        EXPECT_OK(ftcclAlltoAll(all.ptr(), all.ptr(), 0, ftcclInt, c, as(s)));
        EXPECT_TRUE(soon([&] { return idle(s); }));
        want = numbers<int>(count, 1);
        for (int &x : want) x *= n;
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
        /* Every rank receives from both sides before it sends: with a kernel each nobody would get to sending. */
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
    EXPECT_TRUE(before == STANDIN_UNKNOWN || standin_launched() - before == n) << standin_launched() - before;
}

TEST_P(Gpu, RanksOfOneThreadInAGroupDoNotWaitForEachOthersKernels)
{
    const int n = 3;
    Job job(n, GetParam(), 3000);
    std::vector<std::unique_ptr<Buffer<float>>> data;
    std::vector<float> got(1000);
    for (size_t r = 0; r < n; r++) data.push_back(std::make_unique<Buffer<float>>(got.size())), data[r]->put(std::vector<float>(got.size(), 1), job.stream[r]);
    /* Each on a stream of its own, then all on one. */
    for (int round = 0; round < 4; round++) {
        EXPECT_OK(ftcclGroupStart());
        for (size_t r = 0; r < n; r++)
            EXPECT_OK(ftcclAllReduce(data[r]->ptr(), data[r]->ptr(), got.size(), ftcclFloat, ftcclSum, job.comm[r], as(job.stream[round < 2 ? r : 0])));
        EXPECT_OK(ftcclGroupEnd());
        for (CUstream stream : job.stream) EXPECT_TRUE(soon([&] { return idle(stream); }));
    }
    for (size_t r = 0; r < n; r++) {
        data[r]->get(got, job.stream[r]);
        EXPECT_TRUE(soon([&] { return idle(job.stream[r]); }));
        EXPECT_EQ(job.state(static_cast<int>(r)), ftcclSuccess);
        EXPECT_EQ(got, std::vector<float>(got.size(), 81)) << r;
    }
}

INSTANTIATE_TEST_SUITE_P(Transports, Gpu, testing::Values("inproc", "shm", "tcp"), [](auto &i) { return std::string(i.param); });

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
        for (int i = 0; i < 12; i++) EXPECT_OK(ftcclAllReduce(data.ptr(), data.ptr(), count, ftcclInt, i % 2 ? ftcclSum : ftcclMax, c, as(streams[i % 3])));
        for (int &x : want) x *= 64;
        for (CUstream s : streams) EXPECT_TRUE(soon([&] { return idle(s); }));
        data.get(got, streams[2]);
        EXPECT_TRUE(soon([&] { return idle(streams[2]); }));
        EXPECT_TRUE(got == want) << got[1] << " " << want[1];
        /* A group on two streams waits for both and holds both. */
        Buffer<int> other(count);
        standin_block(streams[2]);
        EXPECT_OK(ftcclGroupStart());
        EXPECT_OK(ftcclAllReduce(data.ptr(), data.ptr(), count, ftcclInt, ftcclMax, c, as(streams[0])));
        EXPECT_OK(ftcclAllReduce(data.ptr(), other.ptr(), count, ftcclInt, ftcclMin, c, as(streams[2])));
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
        EXPECT_OK(ftcclAllReduce(data.ptr(), data.ptr(), count, ftcclInt, ftcclSum, null.comm[0], nullptr));
        data.get(got, nullptr);
        EXPECT_TRUE(soon([&] { return idle(nullptr); }));
        EXPECT_TRUE(got == want);
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
        EXPECT_CALLER(ftcclAllReduce(here.data(), here.data(), 100, ftcclFloat, ftcclSum, c, as(s)));
        EXPECT_CALLER(ftcclAllReduce(there.ptr(), here.data(), 100, ftcclFloat, ftcclSum, c, nullptr));
        char none;
        EXPECT_CALLER(ftcclAllReduce(there.ptr(), there.ptr(), 100, ftcclFloat, ftcclSum, c, reinterpret_cast<ftcclStream_t>(&none)));
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

/* A byte of what may be written meanwhile, which is all that says how far it is. */
__attribute__((no_sanitize("thread"))) char peek(const std::vector<char> &of, size_t at) { return *static_cast<const volatile char *>(&of[at]); }

/* What a rank sends to itself, from the GPU to the host: that the only peer of its process leaves meanwhile is nothing to it. */
TEST(GpuStreams, ASendToItselfDoesNotMindALinkThatGoes)
{
    const size_t n = size_t{64} << 20;
    Job job(2, "shm");
    reduces<float>(job, 100, ftcclFloat, true);
    ftcclComm_t alone[2];
    job.each([&](int r) { EXPECT_OK(ftcclCommSplit(job.comm[static_cast<size_t>(r)], r, 0, &alone[r], nullptr)); });
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
    EXPECT_TRUE(soon([&] { return peek(here, 0) == in[0] && peek(here, 1) == in[1]; })) << "it does not begin";
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
    Job job(2, "shm");
    Buffer<float> a(100);
    for (const char *call : {"cuMemHostAlloc", "cuEventRecord", "cuLaunchKernel"}) {
        standin_fail(call, CUDA_ERROR_UNKNOWN, 0);
        EXPECT_EQ(ftcclAllReduce(a.ptr(), a.ptr(), 100, ftcclFloat, ftcclSum, job.comm[0], as(job.stream[0])), ftcclUnhandledCudaError) << call;
        EXPECT_NE(std::string(ftcclGetLastError(nullptr)).find(call), std::string::npos) << ftcclGetLastError(nullptr);
        EXPECT_EQ(job.state(0), ftcclSuccess);
    }
    standin_fail("capturing", CUDA_ERROR_UNKNOWN, 0);
    EXPECT_CALLER(ftcclAllReduce(a.ptr(), a.ptr(), 100, ftcclFloat, ftcclSum, job.comm[0], as(job.stream[0])));
    reduces<float>(job, 1000, ftcclFloat, true);
}

/* Rank 1's stream stands still; the others' operations have ended. */
struct Standing {
    Job job{3, "shm", 3000};
    Buffer<float> a{400000}, b{400000}, c{400000}; /* more than links hold: rank 1 cannot complete alone later */
    Standing()
    {
        reduces<float>(job, 100, ftcclFloat, true);
        standin_block(job.stream[1]);
        Buffer<float> *data[] = {&a, &b, &c};
        for (size_t r = 0; r < 3; r++)
            EXPECT_OK(ftcclAllReduce(data[r]->ptr(), data[r]->ptr(), a.n, ftcclFloat, ftcclSum, job.comm[r], as(job.stream[r])));
        EXPECT_TRUE(soon([&] { return job.state(0) != ftcclSuccess && job.state(2) != ftcclSuccess; }));
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
    EXPECT_OK(ftcclAllReduce(a.ptr(), a.ptr(), in.size(), ftcclInt, ftcclSum, job.comm[0], as(job.stream[0])));
    EXPECT_TRUE(soon([&] { return job.state(0) != ftcclSuccess; }));
    a.get(got, job.stream[0]);
    EXPECT_TRUE(soon([&] { return idle(job.stream[0]); }));
    EXPECT_TRUE(got == in);
    for (auto &comm : job.comm) {
        EXPECT_OK(ftcclCommAbort(comm));
        comm = nullptr;
    }
}

/* loop ID NRANKS RANK: reduces until it fails, says whether its last call was refused or whether its stream goes on by itself, shrinks, and reduces
 * again. */
CHILD(loop)
{
    int n = std::stoi(arguments[1]), rank = std::stoi(arguments[2]);
    CUstream stream;
    standin_enter();
    cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING);
    ftcclComm_t comm, next;
    if (ftcclCommInitRank(&comm, n, proc::unhex(arguments[0]), rank) != ftcclSuccess) return 1;
    Buffer<float> data(100000);
    data.put(std::vector<float>(data.n, 1), stream);
    ftcclResult_t state = ftcclSuccess, result = ftcclSuccess;
    for (int i = 0; state == ftcclSuccess && result == ftcclSuccess; i++) {
        result = ftcclAllReduce(data.ptr(), data.ptr(), data.n, ftcclFloat, ftcclMax, comm, as(stream));
        while (!idle(stream) && state == ftcclSuccess) usleep(100), ftcclCommGetAsyncError(comm, &state);
        if (i == 5) printf("running\n"), fflush(stdout);
    }
    ftcclCommGetAsyncError(comm, &state);
    bool goes_on = soon([&] { return idle(stream); }, arguments[3] == "hold" ? 0.3 : 30);
    printf("%d %s\n", state, result != ftcclSuccess ? "refused" : goes_on ? "free" : "held");
    fflush(stdout);
    if (ftcclCommShrink(comm, nullptr, 0, &next, nullptr, FTCCL_SHRINK_ABORT) != ftcclSuccess) return printf("%s\n", ftcclGetLastError(comm)), 2;
    ftcclCommAbort(comm);
    if (!soon([&] { return idle(stream); })) return 3;
    std::vector<float> got(data.n);
    data.put(std::vector<float>(data.n, 1), stream);
    result = ftcclAllReduce(data.ptr(), data.ptr(), data.n, ftcclFloat, ftcclSum, next, as(stream));
    data.get(got, stream);
    if (result != ftcclSuccess || !soon([&] { return idle(stream); })) return 4;
    printf("again %g %g\n", static_cast<double>(got[0]), static_cast<double>(got[data.n - 1]));
    return ftcclCommDestroy(next) == ftcclSuccess ? 0 : 5;
}

class GpuKill : public testing::TestWithParam<const char *> {};

TEST_P(GpuKill, ARankDiesInFlight)
{
    const int n = 3;
    ftcclUniqueId id;
    ASSERT_OK(ftcclGetUniqueId(&id));
    std::vector<std::unique_ptr<proc::Child>> rank;
    for (int r = 0; r < n; r++)
        rank.push_back(std::make_unique<proc::Child>("loop", std::vector<std::string>{proc::hex(id), std::to_string(n), std::to_string(r), GetParam()},
                                                     std::map<std::string, std::string>{{"FTCCL_ON_FAILURE", GetParam()}}));
    for (auto &child : rank) ASSERT_EQ(child->line(), "running");
    rank[1]->signal(SIGKILL);
    for (size_t r : {static_cast<size_t>(0), static_cast<size_t>(2)}) {
        std::string line = rank[r]->line(60), error = std::to_string(ftcclRemoteError);
        if (line != error + " refused") { /* it heard of the death between two calls, and its stream had nothing to wait for */
            EXPECT_EQ(line, error + (std::string(GetParam()) == "hold" ? " held" : " free")) << r;
        }
        EXPECT_EQ(rank[r]->line(60), "again 2 2") << r;
        EXPECT_EQ(rank[r]->wait(60), 0);
    }
}

INSTANTIATE_TEST_SUITE_P(OnFailure, GpuKill, testing::Values("release", "hold"), [](auto &i) { return std::string(i.param); });

}  // namespace

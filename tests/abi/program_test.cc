/*
 * Property: a program that knows only NCCL works with our libnccl.so.2 on host memory: every
 * collective, sends and receives, groups, init by id, split, shrink, finalize, destroy. If one rank
 * aborts or dies, the others get an asynchronous error and shrink. Method: such a program, compiled
 * twice: against NVIDIA's nccl.h if configure found one, and against ours. Where NCCL needs CUDA,
 * for streams and waiting, it uses ftccl.h.
 */
#include "tests/abi/nccl_header.h"
#include "tests/proc/proc.h"

#ifdef FT_NO_NCCL_HEADER
TEST(NcclProgram, Header)
{
    GTEST_SKIP() << FT_NO_NCCL_HEADER;
}
#else

#include <signal.h>

#include <atomic>
#include <cstring>
#include <memory>
#include <thread>

#define OK(call) ASSERT_EQ(ncclSuccess, call) << ncclGetLastError(nullptr)

namespace
{

const int kRanks = 3;
const size_t kCount = 1000;
using Ints = std::vector<int>;

/* Three ranks of this process, each with a stream. */
struct Ranks {
    std::vector<ncclComm_t> comm = std::vector<ncclComm_t>(kRanks);
    std::vector<cudaStream_t> stream = std::vector<cudaStream_t>(kRanks);
    Ranks()
    {
        EXPECT_EQ(ncclSuccess, ncclCommInitAll(comm.data(), kRanks, nullptr))
            << ncclGetLastError(nullptr);
        for (auto &s : stream)
            EXPECT_EQ(ftcclSuccess, ftcclStreamCreate(&s));
    }
    ~Ranks()
    {
        for (auto s : stream)
            ftcclStreamDestroy(s);
        for (auto c : comm)
            ncclCommDestroy(c);
    }
    /* One call on each rank, as one group, and its end. */
    void group(const std::function<ncclResult_t(int)> &call)
    {
        OK(ncclGroupStart());
        for (int r = 0; r < kRanks; r++)
            OK(call(r));
        OK(ncclGroupEnd());
        for (auto s : stream)
            ASSERT_OK(ftcclStreamSynchronize(s));
    }
};

/* Element i of what rank r has. */
int given(int r, size_t i)
{
    return 7 * r + static_cast<int>(i % 1000) - 50;
}
Ints input(int r, size_t n = kCount)
{
    Ints v(n);
    for (size_t i = 0; i < n; i++)
        v[i] = given(r, i);
    return v;
}
std::vector<Ints> inputs(size_t n = kCount)
{
    return {input(0, n), input(1, n), input(2, n)};
}
std::vector<Ints> outputs(size_t n = kCount)
{
    return std::vector<Ints>(kRanks, Ints(n, -1));
}

Ints total(size_t n = kCount)
{
    Ints v(n);
    for (size_t i = 0; i < n; i++)
        v[i] = given(0, i) + given(1, i) + given(2, i);
    return v;
}
Ints block(const Ints &of, int number)
{
    return Ints(of.begin() + number * static_cast<int>(kCount),
                of.begin() + (number + 1) * static_cast<int>(kCount));
}

TEST(NcclProgram, ReductionsGiveTheSum)
{
    Ranks w;
    auto in = inputs();
    auto out = outputs();
    w.group([&](int r) {
        return ncclAllReduce(in[r].data(), out[r].data(), kCount, ncclInt32, ncclSum, w.comm[r],
                             w.stream[r]);
    });
    for (int r = 0; r < kRanks; r++)
        EXPECT_EQ(total(), out[r]) << "rank " << r;
    out = outputs();
    w.group([&](int r) {
        return ncclReduce(in[r].data(), out[r].data(), kCount, ncclInt32, ncclSum, 1, w.comm[r],
                          w.stream[r]);
    });
    EXPECT_EQ(total(), out[1]);
    EXPECT_EQ(-1, out[0][0]) << "only the root receives";
    auto wide = inputs(kRanks * kCount);
    out = outputs();
    w.group([&](int r) {
        return ncclReduceScatter(wide[r].data(), out[r].data(), kCount, ncclInt32, ncclSum,
                                 w.comm[r], w.stream[r]);
    });
    for (int r = 0; r < kRanks; r++)
        EXPECT_EQ(block(total(kRanks * kCount), r), out[r]) << "rank " << r;
}

TEST(NcclProgram, EveryOperatorAndAnOwnOne)
{
    Ranks w;
    const int want[] = {6, 6, 3, 1, 2}; // of 1, 2 and 3: sum, product, maximum, minimum, average
    for (int op = ncclSum; op <= ncclAvg; op++) {
        std::vector<Ints> v = {{1}, {2}, {3}};
        w.group([&](int r) {
            return ncclAllReduce(v[r].data(), v[r].data(), 1, ncclInt32,
                                 static_cast<ncclRedOp_t>(op), w.comm[r], w.stream[r]);
        });
        for (int r = 0; r < kRanks; r++)
            EXPECT_EQ(want[op], v[r][0]) << "operator " << op;
    }
    std::vector<float> v = {1, 2, 3};
    std::vector<ncclRedOp_t> half(kRanks);
    float scalar = 0.5f;
    for (int r = 0; r < kRanks; r++)
        OK(ncclRedOpCreatePreMulSum(&half[r], &scalar, ncclFloat32, ncclScalarHostImmediate,
                                    w.comm[r]));
    w.group([&](int r) {
        return ncclAllReduce(&v[r], &v[r], 1, ncclFloat32, half[r], w.comm[r], w.stream[r]);
    });
    for (int r = 0; r < kRanks; r++) {
        EXPECT_EQ(3.0f, v[r]);
        OK(ncclRedOpDestroy(half[r], w.comm[r]));
    }
}

TEST(NcclProgram, CopiesArrive)
{
    Ranks w;
    auto in = inputs();
    auto out = outputs();
    w.group([&](int r) {
        return ncclBroadcast(in[r].data(), out[r].data(), kCount, ncclInt32, 2, w.comm[r],
                             w.stream[r]);
    });
    for (int r = 0; r < kRanks; r++)
        EXPECT_EQ(input(2), out[r]) << "rank " << r;
    auto v = inputs();
    w.group([&](int r) {
        return ncclBcast(v[r].data(), kCount, ncclInt32, 1, w.comm[r], w.stream[r]);
    });
    for (int r = 0; r < kRanks; r++)
        EXPECT_EQ(input(1), v[r]) << "rank " << r;
    auto wide = outputs(kRanks * kCount);
    w.group([&](int r) {
        return ncclAllGather(in[r].data(), wide[r].data(), kCount, ncclInt32, w.comm[r],
                             w.stream[r]);
    });
    for (int r = 0; r < kRanks; r++)
        for (int from = 0; from < kRanks; from++)
            EXPECT_EQ(input(from), block(wide[r], from)) << from << " to " << r;
}

#if FT_NCCL_INTERFACE >= NCCL_VERSION(2, 28, 0)
TEST(NcclProgram, BlocksArrive)
{
    Ranks w;
    auto in = inputs(), out = outputs(), from = inputs(kRanks * kCount),
         to = outputs(kRanks * kCount);
    w.group([&](int r) {
        return ncclAlltoAll(from[r].data(), to[r].data(), kCount, ncclInt32, w.comm[r],
                            w.stream[r]);
    });
    for (int r = 0; r < kRanks; r++)
        for (int s = 0; s < kRanks; s++)
            EXPECT_EQ(block(from[s], r), block(to[r], s)) << s << " to " << r;
    to = outputs(kRanks * kCount);
    w.group([&](int r) {
        return ncclGather(in[r].data(), to[r].data(), kCount, ncclInt32, 0, w.comm[r], w.stream[r]);
    });
    for (int s = 0; s < kRanks; s++)
        EXPECT_EQ(input(s), block(to[0], s)) << "from " << s;
    w.group([&](int r) {
        return ncclScatter(from[r].data(), out[r].data(), kCount, ncclInt32, 2, w.comm[r],
                           w.stream[r]);
    });
    for (int r = 0; r < kRanks; r++)
        EXPECT_EQ(block(from[2], r), out[r]) << "to " << r;
}
#endif

TEST(NcclProgram, SendsMeetReceives)
{
    Ranks w;
    auto in = inputs();
    auto out = outputs();
    OK(ncclGroupStart());
    for (int r = 0; r < kRanks; r++) {
        OK(ncclSend(in[r].data(), kCount, ncclInt32, (r + 1) % kRanks, w.comm[r], w.stream[r]));
        OK(ncclRecv(out[r].data(), kCount, ncclInt32, (r + 2) % kRanks, w.comm[r], w.stream[r]));
    }
    OK(ncclGroupEnd());
    for (auto s : w.stream)
        ASSERT_OK(ftcclStreamSynchronize(s));
    for (int r = 0; r < kRanks; r++)
        EXPECT_EQ(input((r + 2) % kRanks), out[r]) << "rank " << r;
}

/* Each rank as a thread: what it does on its communicator, which is destroyed then. */
void by_id(const std::function<void(int, ncclComm_t)> &rank)
{
    ncclUniqueId id;
    OK(ncclGetUniqueId(&id));
    proc::in_threads(kRanks, [&](int r) {
        ncclComm_t comm = nullptr;
        ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
        config.minCTAs = 1;
        config.maxCTAs = 4;
        OK(ncclCommInitRankConfig(&comm, kRanks, id, r, &config));
        rank(r, comm);
        OK(ncclCommFinalize(comm));
        OK(ncclCommDestroy(comm));
    });
}

int sum_of_one(ncclComm_t comm, int value)
{
    EXPECT_EQ(ncclSuccess, ncclAllReduce(&value, &value, 1, ncclInt32, ncclSum, comm, nullptr))
        << ncclGetLastError(comm);
    EXPECT_OK(ftcclStreamSynchronize(nullptr));
    return value;
}

TEST(NcclProgram, InitSplitFinalize)
{
    by_id([](int r, ncclComm_t comm) {
        int count = 0, rank = -1, device = -1;
        OK(ncclCommCount(comm, &count));
        OK(ncclCommUserRank(comm, &rank));
        OK(ncclCommCuDevice(comm, &device));
        EXPECT_EQ(kRanks, count);
        EXPECT_EQ(r, rank);
        EXPECT_EQ(0, device);
        ncclComm_t part = nullptr;
        OK(ncclCommSplit(comm, r == 1 ? NCCL_SPLIT_NOCOLOR : 0, -r, &part, nullptr));
        if (r == 1) {
            EXPECT_EQ(nullptr, part);
            return;
        }
        OK(ncclCommUserRank(part, &rank));
        EXPECT_EQ(r == 2 ? 0 : 1, rank) << "ordered by key";
        EXPECT_EQ(2, sum_of_one(part, r));
        OK(ncclCommDestroy(part));
    });
}

#if FT_NCCL_INTERFACE >= NCCL_VERSION(2, 27, 0)
TEST(NcclProgram, ShrinkLeavesOut)
{
    ncclUniqueId id;
    OK(ncclGetUniqueId(&id));
    proc::Meeting all(kRanks);
    proc::in_threads(kRanks, [&](int r) {
        int left_out = 1, count = 0;
        ncclComm_t comm = nullptr, rest = nullptr;
        OK(ncclCommInitRank(&comm, kRanks, id, r));
        all.wait();
        if (r != left_out) {
            OK(ncclCommShrink(comm, &left_out, 1, &rest, nullptr, NCCL_SHRINK_DEFAULT));
            OK(ncclCommCount(rest, &count));
            EXPECT_EQ(2, count);
            EXPECT_EQ(2, sum_of_one(rest, r));
            OK(ncclCommDestroy(rest));
        }
        OK(ncclCommAbort(comm));
    });
}
#endif

TEST(NcclProgram, BuffersAndVersion)
{
    int version = 0;
    OK(ncclGetVersion(&version));
    EXPECT_EQ(22606, version);
    by_id([](int, ncclComm_t comm) {
        void *memory = nullptr, *handle = nullptr;
        OK(ncclMemAlloc(&memory, 1 << 16));
        OK(ncclCommRegister(comm, memory, 1 << 16, &handle));
        int *ints = static_cast<int *>(memory);
        ints[0] = 5;
        OK(ncclAllReduce(ints, ints, 1, ncclInt32, ncclSum, comm, nullptr));
        EXPECT_OK(ftcclStreamSynchronize(nullptr));
        EXPECT_EQ(15, ints[0]);
        OK(ncclCommDeregister(comm, handle));
        OK(ncclMemFree(memory));
    });
    EXPECT_EQ(ncclSuccess, ncclCommDestroy(nullptr)) << "as NCCL";
    EXPECT_EQ(ncclSuccess, ncclCommFinalize(nullptr));
    EXPECT_STRNE("", ncclGetErrorString(ncclRemoteError));
}

TEST(NcclProgram, AnAbortIsAnErrorOfTheOthers)
{
    ncclUniqueId id;
    OK(ncclGetUniqueId(&id));
    proc::Meeting all(kRanks);
    proc::in_threads(kRanks, [&](int r) {
        ncclComm_t comm = nullptr;
        OK(ncclCommInitRank(&comm, kRanks, id, r));
        ncclResult_t state = ncclInternalError;
        OK(ncclCommGetAsyncError(comm, &state));
        EXPECT_EQ(ncclSuccess, state);
        EXPECT_EQ(3, sum_of_one(comm, r));
        all.wait();
        if (r > 0) {
            int value = 0;
            ncclResult_t result = ncclAllReduce(&value, &value, 1, ncclInt32, ncclSum, comm,
                                                nullptr);
            EXPECT_TRUE(result == ncclSuccess || result == ncclRemoteError)
                << result; // an abort that came first fails the call itself
            ftcclStreamSynchronize(nullptr);
            OK(ncclCommGetAsyncError(comm, &state));
            EXPECT_EQ(ncclRemoteError, state);
            EXPECT_STRNE("", ncclGetLastError(comm));
        }
        OK(ncclCommAbort(comm));
    });
}

#if FT_NCCL_INTERFACE >= NCCL_VERSION(2, 27, 0)
/* loop ID RANK: reduces with two others until that fails; then goes on with the one that is not
 * rank 1. */
CHILD(loop)
{
    ncclUniqueId id;
    ftcclUniqueId given = proc::unhex(arguments[0]);
    memcpy(&id, &given, sizeof id);
    ncclComm_t comm, rest;
    int rank = std::stoi(arguments[1]), dead = 1, value = 0, count = 0;
    if (ncclCommInitRank(&comm, kRanks, id, rank) != ncclSuccess)
        return 1;
    ncclResult_t state = ncclSuccess;
    for (int i = 0; state == ncclSuccess; i++) {
        if (ncclAllReduce(&value, &value, 1, ncclInt32, ncclMax, comm, nullptr) == ncclSuccess)
            ftcclStreamSynchronize(nullptr);
        if (ncclCommGetAsyncError(comm, &state) != ncclSuccess)
            return 2;
        if (i == 5)
            printf("running\n");
    }
    printf("%d\n", state);
    if (ncclCommShrink(comm, &dead, 1, &rest, nullptr, NCCL_SHRINK_ABORT) != ncclSuccess)
        return 3;
    value = rank + 1;
    if (ncclAllReduce(&value, &value, 1, ncclInt32, ncclSum, rest, nullptr) != ncclSuccess)
        return 4;
    if (ftcclStreamSynchronize(nullptr) != ftcclSuccess ||
        ncclCommCount(rest, &count) != ncclSuccess)
        return 5;
    printf("%d of %d\n", value, count);
    return ncclCommDestroy(rest) == ncclSuccess && ncclCommAbort(comm) == ncclSuccess ? 0 : 6;
}

TEST(NcclProgram, ADeathIsAnErrorOfTheOthersWhoShrink)
{
    ftcclUniqueId id;
    ASSERT_OK(ftcclGetUniqueId(&id));
    std::vector<std::unique_ptr<proc::Child>> rank;
    for (int r = 0; r < kRanks; r++)
        rank.push_back(std::make_unique<proc::Child>(
            "loop", std::vector<std::string>{proc::hex(id), std::to_string(r)}));
    for (auto &child : rank)
        ASSERT_EQ("running", child->line(120));
    rank[1]->signal(SIGKILL);
    for (int r : {0, 2})
        EXPECT_EQ(std::to_string(ncclRemoteError), rank[static_cast<size_t>(r)]->line(120))
            << "rank " << r;
    for (int r : {0, 2})
        EXPECT_EQ("4 of 2", rank[static_cast<size_t>(r)]->line(120)) << "rank " << r;
    for (int r : {0, 2})
        EXPECT_EQ(0, rank[static_cast<size_t>(r)]->wait(120)) << "rank " << r;
}
#endif

TEST(NcclProgram, WrongCallsAreRefused)
{
    Ranks w;
    int v = 1;
    cudaStream_t foreign = reinterpret_cast<cudaStream_t>(&v);
    EXPECT_EQ(ncclInvalidArgument, ncclAllReduce(&v, &v, 1, ncclInt32, ncclSum, w.comm[0], foreign))
        << "a stream of somebody else";
    EXPECT_NE(nullptr, strstr(ncclGetLastError(w.comm[0]), "stream"))
        << ncclGetLastError(w.comm[0]);
    EXPECT_EQ(ncclInvalidArgument,
              ncclAllReduce(&v, &v, 1, ncclNumTypes, ncclSum, w.comm[0], nullptr));
    EXPECT_EQ(ncclInvalidArgument, ncclAllReduce(&v, &v, 1, ncclInt32, ncclSum, nullptr, nullptr));
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.magic++;
    ncclComm_t part = nullptr;
    EXPECT_EQ(ncclInvalidArgument, ncclCommSplit(w.comm[0], 0, 0, &part, &config));
}

#if FT_NCCL_INTERFACE >= NCCL_VERSION(2, 29, 0)
TEST(NcclProgram, PutsArrive)
{
    by_id([](int r, ncclComm_t comm) {
        Ints memory(kRanks, -1);
        ncclWindow_t window = nullptr;
        void *at = nullptr;
        OK(ncclCommWindowRegister(comm, memory.data(), memory.size() * sizeof(int), &window,
                                  NCCL_WIN_DEFAULT));
        OK(ncclWinGetUserPtr(comm, window, &at));
        EXPECT_EQ(memory.data(), at);
        int value = 10 + r, to = (r + 1) % kRanks, from = (r + 2) % kRanks;
        OK(ncclPutSignal(&value, 1, ncclInt32, to, window, static_cast<size_t>(r) * sizeof(int), 0,
                         0, 0, comm, nullptr));
        ncclWaitSignalDesc_t wait = {1, from, 0, 0};
        OK(ncclWaitSignal(1, &wait, comm, nullptr));
        EXPECT_OK(ftcclStreamSynchronize(nullptr));
        EXPECT_EQ(10 + from, memory[static_cast<size_t>(from)]);
        EXPECT_EQ(3, sum_of_one(comm, 1)) << "nobody puts any more";
        OK(ncclCommWindowDeregister(comm, window));
    });
}

TEST(NcclProgram, GrowTakesARankIn)
{
    ncclUniqueId id, grow;
    OK(ncclGetUniqueId(&id));
    std::atomic<int> have{0};
    proc::in_threads(3, [&](int r) {
        ncclComm_t comm = nullptr, grown = nullptr;
        if (r < 2) {
            OK(ncclCommInitRank(&comm, 2, id, r));
        }
        if (r == 0) {
            OK(ncclCommGetUniqueId(comm, &grow));
            have = 1;
        }
        while (!have)
            std::this_thread::yield();
        OK(ncclCommGrow(comm, 3, r == 1 ? nullptr : &grow, r < 2 ? -1 : 2, &grown, nullptr));
        EXPECT_EQ(6, sum_of_one(grown, r + 1));
        OK(ncclCommDestroy(grown));
        OK(ncclCommDestroy(comm)); // NULL on the one that joined
    });
}
#endif

} // namespace
#endif

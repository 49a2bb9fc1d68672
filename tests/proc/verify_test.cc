/*
 * Property: with option verify, a bit that changes on the way is reported on every rank as a
 * recoverable error that names sender and transport, for every collective, send and put on every
 * transport. Without the option, no rank notices. Healthy runs raise no alarm, even with NaNs.
 * Ranks that differ in the option learn it, with its name, at init and split. Method: ranks as
 * threads; FTCCL_FAULT changes one bit of a message of rank 1 after its checksum was made.
 */
#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "tests/proc/proc.h"

namespace
{

const int n = 3, sender = 1;

/* The environment for communicators made while it lives. */
struct Env {
    const char *name;
    Env(const char *name_, const char *value) : name(name_)
    {
        setenv(name, value, 1), ftcclResetDebugInit();
    }
    ~Env()
    {
        unsetenv(name), ftcclResetDebugInit();
    }
};

struct Options {
    ftcclOptions_t options = FTCCL_OPTIONS_INITIALIZER;
    Options(const char *transport, int64_t verify)
    {
        options.transports = transport;
        options.verify = verify;
    }
    std::function<void(ftcclConfig_t &)> set()
    {
        return [this](ftcclConfig_t &config) { config.options = &options; };
    }
};

/* One rank's buffers for a kind of call, repeated with the same data. */
struct Calls {
    std::string kind;
    size_t count;
    int rank;
    ftcclComm_t comm;
    ftcclStream_t stream;
    std::vector<int> in, out;
    ftcclWindow_t window = nullptr;
    /* go round in the window, so that the next does not hide one before it is compared */
    size_t puts = 0;

    Calls(std::string kind_, size_t count_, const proc::World &world, int rank_)
        : kind(std::move(kind_)), count(count_), rank(rank_),
          comm(world.comm[static_cast<size_t>(rank_)]),
          stream(world.stream[static_cast<size_t>(rank_)]), in(n * count), out(n * count)
    {
        for (size_t i = 0; i < in.size(); i++)
            in[i] = static_cast<int>(i) * 7 + rank;
    }
    ftcclResult_t begin()
    {
        return kind == "Put" ? ftcclCommWindowRegister(comm, out.data(), out.size() * sizeof(int),
                                                       &window, FTCCL_WIN_DEFAULT)
                             : ftcclSuccess;
    }
    ftcclResult_t post()
    {
        const int *a = in.data();
        int *b = out.data(), next = (rank + 1) % n, before = (rank + n - 1) % n;
        if (kind == "AllReduce")
            return ftcclAllReduce(a, b, count, ftcclInt, ftcclSum, comm, stream);
        if (kind == "Broadcast")
            return ftcclBroadcast(a, b, count, ftcclInt, sender, comm, stream);
        if (kind == "Reduce")
            return ftcclReduce(a, b, count, ftcclInt, ftcclSum, 0, comm, stream);
        if (kind == "AllGather")
            return ftcclAllGather(a, b, count, ftcclInt, comm, stream);
        if (kind == "ReduceScatter")
            return ftcclReduceScatter(a, b, count, ftcclInt, ftcclSum, comm, stream);
        if (kind == "AlltoAll")
            return ftcclAlltoAll(a, b, count, ftcclInt, comm, stream);
        if (kind == "Gather")
            return ftcclGather(a, b, count, ftcclInt, 0, comm, stream);
        if (kind == "Scatter")
            return ftcclScatter(a, b, count, ftcclInt, sender, comm, stream);
        ftcclGroupStart();
        if (kind == "Send") {
            ftcclSend(a, count, ftcclInt, next, comm, stream);
            ftcclRecv(b, count, ftcclInt, before, comm, stream);
        } else {
            ftcclWaitSignalDesc_t desc = {1, before, 0, 0};
            ftcclPutSignal(a, count, ftcclInt, next, window, puts++ % n * count * sizeof(int), 0, 0,
                           0, comm, stream);
            ftcclWaitSignal(1, &desc, comm, stream);
        }
        return ftcclGroupEnd();
    }
    ftcclResult_t once()
    {
        ftcclResult_t result = post();
        return result == ftcclSuccess ? proc::finish(stream) : result;
    }
};

using Case = std::tuple<const char *, const char *, size_t>;
class Flip : public testing::TestWithParam<Case>
{
};

TEST_P(Flip, IsNamedOnEveryRank)
{
    const auto &[transport, kind, count] = GetParam();
    Env fault("FTCCL_FAULT", "seed=3,flip_after=20,flip_rank=1");
    Options options(transport, 1);
    /* the message that is changed is one of the calls'; a control message that is would be repeated
     */
    options.options.heartbeatMs = 0;
    proc::World world(n, options.set());
    world.each([&, kind = kind, count = count, transport = transport](int rank) {
        Calls calls(kind, count, world, rank);
        ftcclResult_t result = calls.begin();
        for (int i = 0; i < 2000 && result == ftcclSuccess; i++)
            result = calls.once();
        std::string sentence = ftcclGetLastError(calls.comm);
        EXPECT_EQ(result, ftcclRemoteError) << "rank " << rank << ": " << sentence;
        EXPECT_EQ(ftcclGetErrorClass(result), ftcclClassRecoverable);
        std::string want = std::string("received from rank 1 over ") + transport +
                           " a message whose checksum does not match";
        EXPECT_NE(sentence.find(want), std::string::npos) << "rank " << rank << ": " << sentence;
    });
    for (auto &comm : world.comm)
        ftcclCommAbort(comm), comm = nullptr;
}

TEST_P(Flip, IsNotNoticedWithout)
{
    const auto &[transport, kind, count] = GetParam();
#ifdef __SANITIZE_THREAD__
    if (std::string(kind) == "Put")
        GTEST_SKIP()
            << "later puts arrive while the window is compared, which ThreadSanitizer reports";
#endif
    Env fault("FTCCL_FAULT", "seed=3,flip_after=20,flip_rank=1");
    Options options(transport, 0);
    options.options.heartbeatMs = 0; /* the message that is changed is one of the calls' */
    std::atomic<int> wrong{0};
    /* or a notice of a rank that waits long */
    for (int attempt = 0; attempt < 5 && wrong == 0 && !HasFailure(); attempt++) {
        proc::World world(n, options.set());
        world.each([&, kind = kind, count = count](int rank) {
            Calls calls(kind, count, world, rank);
            ASSERT_OK(calls.begin());
            std::vector<int> first;
            for (int i = 0; i < 30; i++) {
                ASSERT_OK(calls.once());
                if (i == n - 1)
                    first = calls.out;
                if (i >= n && calls.out != first)
                    wrong++;
            }
        });
    }
    EXPECT_GT(wrong.load(), 0) << "no result was changed: the test tests nothing";
}

INSTANTIATE_TEST_SUITE_P(All, Flip,
                         testing::Combine(testing::Values("inproc", "shm", "tcp"),
                                          testing::Values("AllReduce", "Broadcast", "Reduce",
                                                          "AllGather", "ReduceScatter", "AlltoAll",
                                                          "Gather", "Scatter", "Send", "Put"),
                                          testing::Values(size_t{3}, size_t{60000})),
                         [](const auto &p) {
                             return std::string(std::get<1>(p.param)) + "Of" +
                                    std::to_string(std::get<2>(p.param)) + "Over" +
                                    std::get<0>(p.param);
                         });

/* Random collectives and groups of them; FT_SEED replays, FT_VERIFY_OPS sets the number. */
TEST(Verify, TenThousandOperationsRaiseNoAlarm)
{
    const char *given = getenv("FT_SEED"), *number = getenv("FT_VERIFY_OPS");
    unsigned seed = given ? static_cast<unsigned>(atoi(given)) : 1;
    int ops = number ? atoi(number) : 10000;
    printf("replay: FT_SEED=%u tests/proc/verify_test --gtest_filter=Verify.Ten*\n", seed);
    Options options(nullptr, 1);
    proc::World world(n, options.set());
    const char *kinds[] = {"AllReduce", "Broadcast", "Reduce",  "AllGather", "ReduceScatter",
                           "AlltoAll",  "Gather",    "Scatter", "Send"};
    world.each([&](int rank) {
        std::mt19937 random(seed);
        std::vector<Calls> calls;
        for (const char *kind : kinds)
            calls.emplace_back(kind, 20000, world, rank);
        for (int i = 0; i < ops;) {
            int group = random() % 4 ? 1 : 3;
            unsigned first = random() % 100; /* buffers of a group's calls do not overlap */
            ftcclGroupStart();
            for (int k = 0; k < group; k++, i++) {
                Calls &call = calls[(first + static_cast<unsigned>(k)) % std::size(kinds)];
                call.count = random() % 50 ? random() % 300 : random() % 20000;
                call.post();
            }
            ASSERT_OK(ftcclGroupEnd()) << "operation " << i;
            ASSERT_OK(proc::finish(calls[0].stream)) << "operation " << i << ", rank " << rank;
            if (i % 100 == 0) {
                Calls &sum = calls[0];
                sum.count = 100;
                ASSERT_OK(sum.once());
                for (size_t at = 0; at < sum.count; at++)
                    ASSERT_EQ(sum.out[at], static_cast<int>(at) * 7 * n + 3);
            }
        }
    });
}

/* Each rank has NaNs of its own sign and payload; whatever the result is, it has to be the same
 * everywhere. */
TEST(Verify, NaNsAreTheSameOnAllRanks)
{
    for (const char *algo : {"", "allreduce:ring", "allreduce:hd", "allreduce:rd", "allreduce:tree",
                             "allreduce:direct", "allreduce:flat"}) {
        Env env("FTCCL_ALGO", algo);
        for (int ranks : {2, 3, 4, 5}) {
            Options options(nullptr, 1);
            proc::World world(ranks, options.set());
            if (strstr(algo, "hd") && ranks < 4)
                continue;
            world.each([&](int rank) {
                auto r = static_cast<size_t>(rank);
                std::mt19937 random(static_cast<unsigned>(rank));
                std::vector<uint32_t> in(3000), out(3000);
                for (auto &word : in)
                    word = random() | (random() % 2 ? 0x7f807f80u : 0);
                for (ftcclDataType_t type : {ftcclFloat16, ftcclFloat32, ftcclFloat64,
                                             ftcclBfloat16, ftcclFloat8e4m3, ftcclFloat8e5m2})
                    for (ftcclRedOp_t op : {ftcclSum, ftcclProd, ftcclMax, ftcclMin, ftcclAvg}) {
                        bool narrow = type != ftcclFloat32 && type != ftcclFloat64;
                        /* does not fit there */
                        if ((strstr(algo, "rd") || strstr(algo, "flat")) && op == ftcclAvg &&
                            narrow)
                            continue;
                        for (size_t count : {5, 1000}) {
                            ASSERT_OK(ftcclAllReduce(in.data(), out.data(), count, type, op,
                                                     world.comm[r], world.stream[r]));
                            ASSERT_OK(proc::finish(world.stream[r]))
                                << algo << ", " << ranks << " ranks, type " << type
                                << ", operation " << op;
                        }
                    }
            });
        }
    }
}

TEST(Verify, DifferentOptionsAreNamed)
{
    ftcclUniqueId id;
    ASSERT_OK(ftcclGetUniqueId(&id));
    proc::in_threads(n, [&](int rank) {
        Options options(nullptr, rank == sender);
        ftcclConfig_t config = FTCCL_CONFIG_INITIALIZER;
        config.options = &options.options;
        ftcclComm_t comm = nullptr;
        EXPECT_NE(ftcclCommInitRankConfig(&comm, n, id, rank, &config), ftcclSuccess);
        EXPECT_NE(strstr(ftcclGetLastError(nullptr), "verify=1"), nullptr)
            << ftcclGetLastError(nullptr);
        EXPECT_NE(strstr(ftcclGetLastError(nullptr), "verify=0"), nullptr)
            << ftcclGetLastError(nullptr);
    });
    proc::World world(n);
    world.each([&](int rank) {
        auto r = static_cast<size_t>(rank);
        Options options(nullptr, rank == sender);
        ftcclConfig_t config = FTCCL_CONFIG_INITIALIZER;
        config.options = &options.options;
        ftcclComm_t child = nullptr;
        EXPECT_CALLER(ftcclCommSplit(world.comm[r], 0, rank, &child, &config));
        EXPECT_NE(strstr(ftcclGetLastError(nullptr), "verify=1"), nullptr)
            << ftcclGetLastError(nullptr);
        ASSERT_OK(ftcclCommSplit(world.comm[r], rank == sender, rank, &child, &config))
            << "alone it may differ";
        EXPECT_OK(ftcclCommDestroy(child));
    });
    EXPECT_TRUE(world.works());
}

TEST(Verify, TheOptionsRangeAndSizeAreChecked)
{
    ftcclUniqueId id;
    ASSERT_OK(ftcclGetUniqueId(&id));
    Options options(nullptr, 2);
    ftcclConfig_t config = FTCCL_CONFIG_INITIALIZER;
    config.options = &options.options;
    ftcclComm_t comm = nullptr;
    EXPECT_CALLER(ftcclCommInitRankConfig(&comm, 1, id, 0, &config));
    /* a program that knows nothing of it */
    options.options.size = offsetof(ftcclOptions_t, verify);
    ASSERT_OK(ftcclCommInitRankConfig(&comm, 1, id, 0, &config));
    EXPECT_OK(ftcclCommDestroy(comm));
}

} // namespace

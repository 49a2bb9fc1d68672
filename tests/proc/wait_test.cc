// Property: a wait for a stream ends when its operations end, at whatever moment between the
// waiter's looks at the stream that is (once, a waiter that looked at the wrong moment waited for
// ever). This also holds for the NULL stream with many ranks. Method: two ranks as threads. A short
// AllReduce is enqueued, and a random pause lets the background thread finish it at any point of
// the wait that follows. The test's time limit ends a hang. With many ranks in the process, the two
// that compute are the oldest, which the wait looks at last. Replay: FT_SEED=n tests/proc/wait_test
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <future>
#include <random>
#include <thread>
#include <vector>

#include "ftccl.h"

TEST(Wait, EndsWhereverTheOperationEnds)
{
    const char *text = getenv("FT_SEED"), *slow = getenv("FT_TEST_SLOWDOWN");
    unsigned seed = text ? unsigned(atoi(text)) : 1;
    int rounds = slow && atoi(slow) > 1 ? 3000 : 20000;
    printf("seed %u\n", seed);
    ftcclUniqueId id;
    ASSERT_EQ(ftcclGetUniqueId(&id), ftcclSuccess);
    auto rank = [&](int r) {
        std::mt19937 random(seed + unsigned(r));
        ftcclComm_t comm;
        ftcclStream_t stream;
        ASSERT_EQ(ftcclCommInitRank(&comm, 2, id, r), ftcclSuccess) << ftcclGetLastError(nullptr);
        ASSERT_EQ(ftcclStreamCreate(&stream), ftcclSuccess);
        for (int i = 0; i < rounds; i++) {
            int one = 1, sum = 0;
            ASSERT_EQ(ftcclAllReduce(&one, &sum, 1, ftcclInt, ftcclSum, comm, stream),
                      ftcclSuccess);
            for (volatile unsigned spin = random() % 4096; spin > 0; spin = spin - 1) {}
            ASSERT_EQ(ftcclStreamSynchronize(stream), ftcclSuccess) << ftcclGetLastError(nullptr);
            ASSERT_EQ(sum, 2) << "round " << i;
        }
        EXPECT_EQ(ftcclCommDestroy(comm), ftcclSuccess);
        EXPECT_EQ(ftcclStreamDestroy(stream), ftcclSuccess);
    };
    std::thread other(rank, 1);
    rank(0);
    other.join();
}

TEST(Wait, NullStreamsOfManyRanks)
{
    const int more = 130;
    const size_t n = size_t{4} << 20;
    std::vector<ftcclComm_t> comm(2), others(more);
    std::vector<float> a(n, 1), b(n, 1);
    ftcclOptions_t options = FTCCL_OPTIONS_INITIALIZER;
    options.transports = "inproc"; // fewer descriptors
    ftcclConfig_t config = FTCCL_CONFIG_INITIALIZER;
    config.options = &options;
    ASSERT_EQ(ftcclCommInitAll(comm.data(), 2, nullptr), ftcclSuccess)
        << ftcclGetLastError(nullptr);
    for (ftcclComm_t &other : others) {
        ftcclUniqueId id;
        ASSERT_EQ(ftcclGetUniqueId(&id), ftcclSuccess);
        ASSERT_EQ(ftcclCommInitRankConfig(&other, 1, id, 0, &config), ftcclSuccess)
            << ftcclGetLastError(nullptr);
    }
    ASSERT_EQ(ftcclGroupStart(), ftcclSuccess);
    EXPECT_EQ(ftcclAllReduce(a.data(), a.data(), n, ftcclFloat, ftcclSum, comm[0], nullptr),
              ftcclSuccess);
    EXPECT_EQ(ftcclAllReduce(b.data(), b.data(), n, ftcclFloat, ftcclSum, comm[1], nullptr),
              ftcclSuccess);
    ASSERT_EQ(ftcclGroupEnd(), ftcclSuccess);
    EXPECT_EQ(ftcclStreamSynchronize(nullptr), ftcclSuccess);
    EXPECT_EQ(std::count(a.begin(), a.end(), 2), static_cast<ptrdiff_t>(n));
    EXPECT_EQ(std::count(b.begin(), b.end(), 2), static_cast<ptrdiff_t>(n));
    for (ftcclComm_t c : comm)
        EXPECT_EQ(ftcclCommDestroy(c), ftcclSuccess); // before the buffers go
    for (ftcclComm_t c : others)
        EXPECT_EQ(ftcclCommDestroy(c), ftcclSuccess);
}

// A wait with a time limit returns InProgress after it and ends nothing; a later one sees the end.
// The limit is small against the pause of the other rank, which ends by a promise, not by time.
TEST(Wait, WithATimeLimit)
{
    ftcclUniqueId id;
    std::promise<void> waited;
    ASSERT_EQ(ftcclGetUniqueId(&id), ftcclSuccess);
    auto rank = [&](int r) {
        ftcclComm_t comm;
        ftcclStream_t stream;
        int one = 1, sums[2] = {0, 0};
        ASSERT_EQ(ftcclCommInitRank(&comm, 2, id, r), ftcclSuccess) << ftcclGetLastError(nullptr);
        ASSERT_EQ(ftcclStreamCreate(&stream), ftcclSuccess);
        EXPECT_EQ(ftcclStreamWait(stream, 0), ftcclSuccess);
        EXPECT_EQ(ftcclStreamWait(stream, -1), ftcclInvalidArgument);
        if (r == 1)
            waited.get_future().wait();
        ftcclStream_t streams[] = {stream, nullptr};
        for (int i = 0; i < 2; i++)
            EXPECT_EQ(ftcclAllReduce(&one, &sums[i], 1, ftcclInt, ftcclSum, comm, streams[i]),
                      ftcclSuccess)
                << ftcclGetLastError(nullptr);
        for (int ms : {0, 1, 20})
            for (ftcclStream_t s : streams)
                if (r == 0) {
                    EXPECT_EQ(ftcclStreamWait(s, ms), ftcclInProgress) << ms << " ms";
                }
        if (r == 0)
            waited.set_value();
        for (ftcclStream_t s : streams)
            EXPECT_EQ(ftcclStreamWait(s, 60000), ftcclSuccess) << ftcclGetLastError(nullptr);
        EXPECT_EQ(sums[0], 2);
        EXPECT_EQ(sums[1], 2);
        EXPECT_EQ(ftcclStreamDestroy(stream), ftcclSuccess);
        EXPECT_EQ(ftcclCommDestroy(comm), ftcclSuccess);
    };
    std::thread other(rank, 1);
    rank(0);
    other.join();
}

// A thread waits for the NULL streams of the ranks on which it enqueued, however many of them have
// come and gone: of others it may be the one that they wait for.
TEST(Wait, NullStreamsOfRanksThatAreGone)
{
    ftcclUniqueId id;
    std::promise<void> enqueued;
    ftcclOptions_t options = FTCCL_OPTIONS_INITIALIZER;
    options.opTimeoutMs = 10000;
    ftcclConfig_t config = FTCCL_CONFIG_INITIALIZER;
    config.options = &options;
    ASSERT_EQ(ftcclGetUniqueId(&id), ftcclSuccess);
    auto rank = [&](int r) {
        ftcclComm_t comm;
        int one = 1, sum = 0;
        for (int i = 0; i < 40 && r == 0; i++) {
            ASSERT_EQ(ftcclCommInitAll(&comm, 1, nullptr), ftcclSuccess)
                << ftcclGetLastError(nullptr);
            ASSERT_EQ(ftcclAllReduce(&one, &sum, 1, ftcclInt, ftcclSum, comm, nullptr),
                      ftcclSuccess);
            ASSERT_EQ(ftcclStreamSynchronize(nullptr), ftcclSuccess);
            ASSERT_EQ(ftcclCommDestroy(comm), ftcclSuccess);
        }
        ASSERT_EQ(ftcclCommInitRankConfig(&comm, 2, id, r, &config), ftcclSuccess)
            << ftcclGetLastError(nullptr);
        if (r == 0) {
            enqueued.get_future().wait();
            EXPECT_EQ(ftcclStreamSynchronize(nullptr), ftcclSuccess) << ftcclGetLastError(nullptr);
        }
        EXPECT_EQ(ftcclAllReduce(&one, &sum, 1, ftcclInt, ftcclSum, comm, nullptr), ftcclSuccess)
            << ftcclGetLastError(nullptr);
        if (r == 1)
            enqueued.set_value();
        EXPECT_EQ(ftcclStreamSynchronize(nullptr), ftcclSuccess) << ftcclGetLastError(nullptr);
        EXPECT_EQ(sum, 2);
        EXPECT_EQ(ftcclCommDestroy(comm), ftcclSuccess);
    };
    std::thread other(rank, 1);
    rank(0);
    other.join();
}

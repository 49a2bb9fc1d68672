// Property: repeated short collectives give the same results as if each were the first, whatever
// comes between them, and they fail like others. Method: ranks as threads make the same random
// calls: a few shapes, but more than are remembered, user-defined operators that come and go under
// the same numbers, and groups and long calls between them. Every result is checked. Then the
// mistakes: another count on one rank, a missing buffer. Replay: FT_SEED=n tests/proc/repeat_test
#include "tests/proc/proc.h"

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <numeric>
#include <random>
#include <thread>

namespace
{

unsigned seed()
{
    const char *text = getenv("FT_SEED");
    return text ? static_cast<unsigned>(atoi(text)) : 20261122u;
}

int rounds()
{
    const char *slow = getenv("FT_TEST_SLOWDOWN");
    return slow && atoi(slow) > 1 ? 300 : 2000;
}

using Ints = std::vector<int32_t>;

struct Rank {
    ftcclComm_t comm = nullptr;
    ftcclStream_t stream = nullptr;
    int n = 0, me = 0;

    Rank(int ranks, int rank, const ftcclUniqueId &id, const char *transport) : n(ranks), me(rank)
    {
        ftcclOptions_t options = FTCCL_OPTIONS_INITIALIZER;
        options.transports = transport;
        ftcclConfig_t config = FTCCL_CONFIG_INITIALIZER;
        config.options = &options;
        EXPECT_OK(ftcclCommInitRankConfig(&comm, n, id, me, &config));
        EXPECT_OK(ftcclStreamCreate(&stream));
    }
    Rank(int ranks, int rank) : n(ranks), me(rank)
    {
        EXPECT_OK(ftcclStreamCreate(&stream));
    }
    ~Rank()
    {
        if (comm) {
            EXPECT_OK(ftcclCommDestroy(comm));
        }
        EXPECT_OK(ftcclStreamDestroy(stream));
    }

    int32_t value(int rank, size_t i, int round) const
    {
        return rank * 7 + static_cast<int32_t>(i % 5) + round % 11;
    }
    int32_t total(size_t i, int round) const
    {
        int32_t sum = 0;
        for (int r = 0; r < n; r++)
            sum += value(r, i, round);
        return sum;
    }

    void all_reduce(size_t count, bool in_place, int round) const
    {
        Ints in(count), out(count, -1);
        for (size_t i = 0; i < count; i++)
            in[i] = value(me, i, round);
        Ints &result = in_place ? in : out;
        ASSERT_OK(
            ftcclAllReduce(in.data(), result.data(), count, ftcclInt32, ftcclSum, comm, stream));
        ASSERT_OK(ftcclStreamSynchronize(stream));
        for (size_t i = 0; i < count; i++)
            ASSERT_EQ(result[i], total(i, round)) << "round " << round;
    }

    void average(int round) const
    {
        float in = static_cast<float>(value(me, 0, round)), out = -1;
        ASSERT_OK(ftcclAllReduce(&in, &out, 1, ftcclFloat32, ftcclAvg, comm, stream));
        ASSERT_OK(ftcclStreamSynchronize(stream));
        ASSERT_NEAR(out, static_cast<float>(total(0, round)) / static_cast<float>(n), 1e-4)
            << "round " << round;
    }

    /* The operator's number is the same each time, what it does is not. */
    void own_operator(int round) const
    {
        ftcclRedOp_t op;
        int32_t scale = round % 4 + 2, in = value(me, 0, round), out = -1;
        ASSERT_OK(
            ftcclRedOpCreatePreMulSum(&op, &scale, ftcclInt32, ftcclScalarHostImmediate, comm));
        ASSERT_OK(ftcclAllReduce(&in, &out, 1, ftcclInt32, op, comm, stream));
        ASSERT_OK(ftcclStreamSynchronize(stream));
        ASSERT_OK(ftcclRedOpDestroy(op, comm));
        ASSERT_EQ(out, total(0, round) * scale) << "round " << round;
    }

    void all_gather(size_t count, int round) const
    {
        Ints in(count), out(count * static_cast<size_t>(n), -1);
        for (size_t i = 0; i < count; i++)
            in[i] = value(me, i, round);
        ASSERT_OK(ftcclAllGather(in.data(), out.data(), count, ftcclInt32, comm, stream));
        ASSERT_OK(ftcclStreamSynchronize(stream));
        for (size_t i = 0; i < out.size(); i++)
            ASSERT_EQ(out[i], value(static_cast<int>(i / count), i % count, round))
                << "round " << round;
    }

    /* What rank `from` has for rank `to`. */
    int32_t between(int from, int to, int round) const
    {
        return value(from, 0, round) * 100 + to;
    }

    void all_to_all(size_t count, bool in_place, int round) const
    {
        Ints in(count * static_cast<size_t>(n)), out(in.size(), -1);
        for (size_t i = 0; i < in.size(); i++)
            in[i] = between(me, static_cast<int>(i / count), round);
        Ints &result = in_place ? in : out;
        ASSERT_OK(ftcclAlltoAll(in.data(), result.data(), count, ftcclInt32, comm, stream));
        ASSERT_OK(ftcclStreamSynchronize(stream));
        for (size_t i = 0; i < out.size(); i++)
            ASSERT_EQ(result[i], between(static_cast<int>(i / count), me, round))
                << "round " << round;
    }

    void reduce_scatter(size_t count, int round) const
    {
        Ints in(count * static_cast<size_t>(n)), out(count, -1);
        for (size_t i = 0; i < in.size(); i++)
            in[i] = value(me, i, round);
        ASSERT_OK(
            ftcclReduceScatter(in.data(), out.data(), count, ftcclInt32, ftcclSum, comm, stream));
        ASSERT_OK(ftcclStreamSynchronize(stream));
        for (size_t i = 0; i < count; i++)
            ASSERT_EQ(out[i], total(i + count * static_cast<size_t>(me), round))
                << "round " << round;
    }

    /* To the root and back. */
    void gather_and_scatter(size_t count, int root, int round) const
    {
        Ints mine(count), all(me == root ? count * static_cast<size_t>(n) : 0, -1), back(count, -1);
        for (size_t i = 0; i < count; i++)
            mine[i] = value(me, i, round);
        ASSERT_OK(ftcclGather(mine.data(), all.data(), count, ftcclInt32, root, comm, stream));
        ASSERT_OK(ftcclScatter(all.data(), back.data(), count, ftcclInt32, root, comm, stream));
        ASSERT_OK(ftcclStreamSynchronize(stream));
        for (size_t i = 0; i < all.size(); i++)
            ASSERT_EQ(all[i], value(static_cast<int>(i / count), i % count, round))
                << "round " << round;
        ASSERT_EQ(back, mine) << "round " << round;
    }

    void broadcast(int root, int round) const
    {
        int32_t x = me == root ? value(root, 0, round) : -1;
        ASSERT_OK(ftcclBroadcast(&x, &x, 1, ftcclInt32, root, comm, stream));
        ASSERT_OK(ftcclStreamSynchronize(stream));
        ASSERT_EQ(x, value(root, 0, round)) << "round " << round;
    }

    void group(int round) const
    {
        int32_t a = value(me, 0, round), b = value(me, 1, round), x = -1, y = -1;
        ASSERT_OK(ftcclGroupStart());
        ASSERT_OK(ftcclAllReduce(&a, &x, 1, ftcclInt32, ftcclSum, comm, stream));
        ASSERT_OK(ftcclAllReduce(&b, &y, 1, ftcclInt32, ftcclSum, comm, stream));
        ASSERT_OK(ftcclGroupEnd());
        ASSERT_OK(ftcclStreamSynchronize(stream));
        ASSERT_EQ(x, total(0, round)) << "round " << round;
        ASSERT_EQ(y, total(1, round)) << "round " << round;
    }

    /* Without a wait between them: the later ones find the stream busy, and queue. */
    void in_a_row(int round) const
    {
        Ints in(20), out(20, -1);
        for (size_t i = 0; i < in.size(); i++) {
            in[i] = value(me, i, round);
            ASSERT_OK(ftcclAllReduce(&in[i], &out[i], 1, ftcclInt32, ftcclSum, comm, stream));
        }
        ASSERT_OK(ftcclStreamSynchronize(stream));
        for (size_t i = 0; i < in.size(); i++)
            ASSERT_EQ(out[i], total(i, round)) << "round " << round;
    }

    void call(unsigned which, int round) const
    {
        switch (which) {
        case 0:
        case 1:
        case 2:
            all_reduce(1, which == 1, round);
            break;
        case 3:
            all_reduce(2, false, round);
            break;
        case 4:
            all_reduce(100, true, round);
            break;
        case 5:
            all_reduce(700, false, round);
            break;
        case 6:
            all_reduce(200000, false, round);
            break;
        case 7:
            average(round);
            break;
        case 8:
            own_operator(round);
            break;
        case 9:
            all_gather(3, round);
            break;
        case 10:
            broadcast(round % n, round);
            break;
        case 11:
            group(round);
            break;
        case 12:
            all_reduce(0, false, round);
            break;
        case 13:
        case 14:
            all_to_all(3, which == 14, round);
            break;
        case 15:
            all_to_all(1024, true, round);
            break;
        case 16:
            reduce_scatter(3, round);
            break;
        case 17:
            gather_and_scatter(2, round % n, round);
            break;
        case 18:
            all_gather(1, round);
            break;
        default:
            in_a_row(round);
        }
    }
};

class Repeat : public testing::TestWithParam<std::pair<const char *, int>>
{
};

} // namespace

INSTANTIATE_TEST_SUITE_P(All, Repeat,
                         testing::Values(std::pair<const char *, int>{"shm", 2},
                                         std::pair<const char *, int>{"shm", 3},
                                         std::pair<const char *, int>{"inproc", 4},
                                         std::pair<const char *, int>{"tcp", 2}),
                         [](const auto &i) {
                             return std::string(i.param.first) + std::to_string(i.param.second);
                         });

TEST_P(Repeat, RandomCallsGiveTheirResults)
{
    printf("  seed %u\n", seed());
    ftcclUniqueId id;
    ASSERT_OK(ftcclGetUniqueId(&id));
    int n = GetParam().second;
    proc::in_threads(n, [&](int r) {
        Rank rank(n, r, id, GetParam().first);
        std::mt19937 random(seed());
        for (int round = 0; round < rounds() && !testing::Test::HasFailure(); round++) {
            bool long_call = random() % 64 == 0;
            unsigned which = static_cast<unsigned>(random() % 20);
            rank.call(which == 6 && !long_call ? 0 : which, round);
        }
    });
}

TEST_P(Repeat, AnotherCountOnOneRankIsNamed)
{
    ftcclUniqueId id;
    ASSERT_OK(ftcclGetUniqueId(&id));
    int n = GetParam().second;
    proc::Meeting meeting(n);
    proc::in_threads(n, [&](int r) {
        Rank rank(n, r, id, GetParam().first);
        for (int round = 0; round < 100; round++)
            rank.all_reduce(2, false, round), rank.all_reduce(3, false, round);
        meeting.wait(); // the others' mistake is not to end the call before
        Ints in(4, 1), out(4);
        ftcclResult_t called = ftcclAllReduce(in.data(), out.data(), r == n - 1 ? 3 : 2, ftcclInt32,
                                              ftcclSum, rank.comm, rank.stream);
        if (called == ftcclSuccess)
            EXPECT_NE(ftcclStreamSynchronize(rank.stream), ftcclSuccess);
        else
            EXPECT_EQ(called, ftcclInvalidUsage)
                << "rank " << r; // the others' word came before it called
        std::string text = ftcclGetLastError(rank.comm);
        EXPECT_NE(text.find("AllReduce(count 2"), std::string::npos) << text;
        EXPECT_NE(text.find("AllReduce(count 3"), std::string::npos) << text;
        meeting.wait(); // nobody leaves before all know
    });
}

namespace
{

/* Each rank of a communicator of its own, ten times. */
void ten_times(std::pair<const char *, int> param,
               const std::function<void(const Rank &, int round)> &calls)
{
    ftcclUniqueId id;
    ASSERT_OK(ftcclGetUniqueId(&id));
    proc::in_threads(param.second, [&](int r) {
        Rank rank(param.second, r, id, param.first);
        for (int round = 0; round < 10; round++)
            calls(rank, round);
    });
}

} // namespace

TEST_P(Repeat, AMissingBufferIsRefused)
{
    ten_times(GetParam(), [](const Rank &rank, int round) {
        int32_t x[2] = {1, 1};
        rank.all_reduce(1, false, round);
        EXPECT_CALLER(ftcclAllReduce(nullptr, x, 1, ftcclInt32, ftcclSum, rank.comm, rank.stream));
        EXPECT_CALLER(ftcclAllReduce(x, nullptr, 1, ftcclInt32, ftcclSum, rank.comm, rank.stream));
        rank.all_reduce(2, false, round);
        EXPECT_CALLER(ftcclAllReduce(x, reinterpret_cast<char *>(x) + 2, 1, ftcclInt32, ftcclSum,
                                     rank.comm, rank.stream));
    });
}

// A call that is refused leaves nothing of it behind in the one that was made before, and is made
// again.
TEST_P(Repeat, ARefusedCallInBetweenChangesNothing)
{
    ten_times(GetParam(), [](const Rank &rank, int round) {
        int32_t x[2] = {1, 1};
        rank.all_reduce(1, false, round);
        EXPECT_CALLER(ftcclAllReduce(nullptr, x, 5, ftcclInt32, ftcclSum, rank.comm, rank.stream));
        rank.all_reduce(1, false, round);
    });
}

// Ranks 0 and 1 wait for rank 2 in a call of all, and exchange many more messages meanwhile than a
// link has places for: the sum has what came first.
TEST(RepeatOfThree, WhatCameEarlyStaysWhileOthersTalk)
{
    const int n = 3, times = 1100, trials = 15;
    ftcclUniqueId id;
    ASSERT_OK(ftcclGetUniqueId(&id));
    proc::Meeting meeting(n);
    std::atomic<int> waiting{0}, talked{0};
    proc::in_threads(n, [&](int r) {
        Rank all(n, r, id, "shm"), two(2, r); // of the same links
        ASSERT_OK(ftcclCommSplit(all.comm, r < 2 ? 0 : FTCCL_SPLIT_NOCOLOR, r, &two.comm, nullptr));
        for (int trial = 1; trial <= trials && !testing::Test::HasFailure(); trial++) {
            for (int round = 0; round < 3; round++)
                all.all_reduce(1, false, round);
            meeting.wait();
            std::thread talker([&, r] {
                while (r < 2 && waiting < 2 * trial)
                    std::this_thread::yield();
                usleep(500);
                for (int round = 0; round < times && r < 2; round++)
                    two.all_reduce(1, false, round);
                talked++;
            });
            while (r == 2 && talked < n * trial)
                std::this_thread::yield();
            if (r == 0)
                usleep(
                    static_cast<useconds_t>(trial * 5)); // rank 1's message is there when it looks
            if (r < 2)
                waiting++;
            all.all_reduce(1, false, 77);
            talker.join();
        }
    });
}

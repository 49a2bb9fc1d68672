/*
 * Property: groups, streams and point-to-point calls in any mix complete with the right data, in
 * the order of their streams. A query never blocks. Method: ranks as threads, or all ranks of a
 * group from one thread, with values that tell which rank sent what.
 */
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <numeric>
#include <random>
#include <thread>

#include "tests/proc/proc.h"

namespace
{

TEST(Group, OneThreadDrivesAllRanks)
{
    for (int n : {1, 2, 4, 8}) {
        proc::World world(n);
        std::vector<int> data(static_cast<size_t>(n), 1);
        ASSERT_OK(ftcclGroupStart());
        for (size_t r = 0; r < data.size(); r++) {
            EXPECT_OK(
                ftcclAllReduce(&data[r], &data[r], 1, ftcclInt, ftcclSum, world.comm[r], nullptr));
        }
        ASSERT_OK(ftcclGroupEnd());
        EXPECT_OK(ftcclStreamSynchronize(nullptr));
        for (int v : data)
            EXPECT_EQ(v, n);
    }
}

TEST(Group, NestsAndEndsWithTheOutermost)
{
    proc::World world(2);
    int a[2] = {1, 2}, b[2] = {10, 20};
    ASSERT_OK(ftcclGroupStart());
    for (size_t r = 0; r < 2; r++) {
        ASSERT_OK(ftcclGroupStart());
        EXPECT_OK(
            ftcclAllReduce(&a[r], &a[r], 1, ftcclInt, ftcclSum, world.comm[r], world.stream[r]));
        ASSERT_OK(ftcclGroupStart());
        EXPECT_OK(
            ftcclAllReduce(&b[r], &b[r], 1, ftcclInt, ftcclMax, world.comm[r], world.stream[r]));
        ASSERT_OK(ftcclGroupEnd());
        ASSERT_OK(ftcclGroupEnd());
        EXPECT_OK(ftcclStreamQuery(world.stream[r])); /* nothing is enqueued yet */
    }
    ASSERT_OK(ftcclGroupEnd());
    for (size_t r = 0; r < 2; r++)
        EXPECT_OK(proc::finish(world.stream[r]));
    for (size_t r = 0; r < 2; r++) {
        EXPECT_EQ(a[r], 3);
        EXPECT_EQ(b[r], 20);
    }
}

/* What may be fused and what may not, in one group: each result is that of the call alone. */
TEST(Group, ManySmallReductionsAreEachThemselves)
{
    const char *text = getenv("FT_SEED");
    unsigned seed = text ? static_cast<unsigned>(atoi(text)) : std::random_device{}();
    printf("seed %u; replay: FT_SEED=%u group_test --gtest_filter=Group.ManySmall*\n", seed, seed);
    for (int n : {2, 3, 4}) {
        proc::World world(n);
        world.each([&](int r) {
            size_t i = static_cast<size_t>(r);
            std::mt19937 dice(seed); /* the same on all ranks */
            for (int round = 0; round < 20; round++) {
                size_t calls = 1 + dice() % 60;
                std::vector<std::vector<int>> in(calls), out(calls), alone(calls);
                std::vector<ftcclRedOp_t> op(calls);
                std::vector<bool> in_place(calls);
                ASSERT_OK(ftcclGroupStart());
                for (size_t k = 0; k < calls; k++) {
                    static const ftcclRedOp_t ops[] = {ftcclSum, ftcclSum, ftcclSum, ftcclMax,
                                                       ftcclAvg};
                    op[k] = ops[dice() % 5];
                    in[k].resize(dice() % 8 ? dice() % 20 : 1500);
                    in_place[k] = dice() % 2;
                    for (size_t e = 0; e < in[k].size(); e++)
                        in[k][e] = static_cast<int>(e * 31 + k) * (r + 1) + round;
                    out[k].assign(in[k].size(), -1);
                    alone[k] = in[k];
                    if (in_place[k])
                        out[k] = in[k];
                    EXPECT_OK(ftcclAllReduce(in_place[k] ? out[k].data() : in[k].data(),
                                             out[k].data(), in[k].size(), ftcclInt, op[k],
                                             world.comm[i], world.stream[i]));
                }
                ASSERT_OK(ftcclGroupEnd());
                ASSERT_OK(proc::finish(world.stream[i]));
                for (size_t k = 0; k < calls; k++) {
                    EXPECT_OK(ftcclAllReduce(alone[k].data(), alone[k].data(), alone[k].size(),
                                             ftcclInt, op[k], world.comm[i], world.stream[i]));
                    ASSERT_OK(proc::finish(world.stream[i]));
                    ASSERT_EQ(out[k], alone[k]) << "call " << k << " of " << calls;
                }
            }
        });
    }
}

TEST(Group, OfDifferentLengthsIsAMismatchAndNoHang)
{
    proc::World world(2);
    int x[2][3] = {{1, 2, 3}, {4, 5, 6}};
    world.each([&](int r) {
        size_t i = static_cast<size_t>(r);
        ASSERT_OK(ftcclGroupStart());
        for (int k = 0; k < 3 - r; k++)
            EXPECT_OK(ftcclAllReduce(&x[i][k], &x[i][k], 1, ftcclInt, ftcclSum, world.comm[i],
                                     world.stream[i]));
        ASSERT_OK(ftcclGroupEnd());
        EXPECT_EQ(proc::finish(world.stream[i]), ftcclInvalidUsage)
            << ftcclGetLastError(world.comm[i]);
        std::string sentence = ftcclGetLastError(world.comm[i]);
        EXPECT_NE(sentence.find("were due"), std::string::npos) << sentence;
    });
    EXPECT_EQ(x[0][0] + x[0][1] + x[0][2] + x[1][0] + x[1][1] + x[1][2], 21)
        << "inputs are as they were";
}

/* Calls that begin at once, calls that queue behind them and groups are one sequence on their
 * stream, over several communicators. */
TEST(Stream, CallsBegunAtOnceKeepTheirOrder)
{
    const char *text = getenv("FT_SEED");
    unsigned seed = text ? static_cast<unsigned>(atoi(text)) : std::random_device{}();
    printf("seed %u; replay: FT_SEED=%u group_test --gtest_filter=Stream.CallsBegun*\n", seed,
           seed);
    proc::World one(3), two(3);
    one.each([&](int r) {
        size_t i = static_cast<size_t>(r);
        std::mt19937 dice(seed); /* the same on all ranks */
        uint64_t x = static_cast<uint64_t>(r), y = 1, expected = 0, products = 1;
        bool first = true;
        for (int n = 0; n < 3000; n++) {
            ftcclStream_t stream = one.stream[i];
            unsigned what = dice() % 5;
            if (what < 2) { /* the sum of 0, 1, 2 at first, then three times as much each time */
                EXPECT_OK(ftcclAllReduce(&x, &x, 1, ftcclUint64, ftcclSum,
                                         (what ? one : two).comm[i], stream));
                expected = first ? 3 : 3 * expected;
                first = false;
            } else if (what == 2) {
                EXPECT_OK(ftcclGroupStart());
                EXPECT_OK(ftcclAllReduce(&x, &x, 1, ftcclUint64, ftcclSum, two.comm[i], stream));
                EXPECT_OK(ftcclAllReduce(&y, &y, 1, ftcclUint64, ftcclSum, one.comm[i], stream));
                EXPECT_OK(ftcclGroupEnd());
                expected = first ? 3 : 3 * expected;
                products *= 3;
                first = false;
            } else if (what == 3) {
                ftcclResult_t result = ftcclStreamQuery(stream);
                EXPECT_TRUE(result == ftcclSuccess || result == ftcclInProgress);
                if (result == ftcclSuccess && !first) {
                    ASSERT_EQ(x, expected) << "call " << n;
                }
            } else {
                EXPECT_OK(ftcclStreamSynchronize(stream));
                if (!first) {
                    ASSERT_EQ(x, expected) << "call " << n;
                }
                ASSERT_EQ(y, products) << "call " << n;
            }
        }
        EXPECT_OK(ftcclStreamSynchronize(one.stream[i]));
        EXPECT_EQ(x, expected);
        EXPECT_EQ(y, products);
    });
}

TEST(Stream, MayBeDestroyedWhileOthersWaitForIt)
{
    proc::World world(2);
    for (int round = 0; round < 50; round++) {
        ftcclStream_t stream;
        int mine[2] = {1, 2}, sum[2] = {};
        ASSERT_OK(ftcclStreamCreate(&stream));
        /* waits for rank 1 */
        EXPECT_OK(ftcclAllReduce(&mine[0], &sum[0], 1, ftcclInt, ftcclSum, world.comm[0], stream));
        proc::in_threads(3, [&](int r) {
            if (r == 0) {
                EXPECT_OK(ftcclStreamDestroy(stream));
            } else if (r == 1) {
                /* until it is gone */
                while (ftcclStreamSynchronize(stream) == ftcclSuccess)
                    continue;
            } else {
                EXPECT_OK(ftcclAllReduce(&mine[1], &sum[1], 1, ftcclInt, ftcclSum, world.comm[1],
                                         world.stream[1]));
            }
        });
        EXPECT_OK(proc::finish(world.stream[1]));
        EXPECT_EQ(sum[0], 3);
        EXPECT_EQ(sum[1], 3);
    }
}

TEST(Stream, WhatAFailedCommunicatorSkipsDoesNotOvertakeTheOthers)
{
    proc::World one(2), two(2);
    ftcclStream_t stream = one.stream[0];
    int mine[2] = {1, 2}, sum[2] = {}, skipped[3] = {};
    /* waits for rank 1 */
    EXPECT_OK(ftcclAllReduce(&mine[0], &sum[0], 1, ftcclInt, ftcclSum, one.comm[0], stream));
    for (int &each : skipped)
        EXPECT_OK(ftcclAllReduce(&mine[0], &each, 1, ftcclInt, ftcclSum, two.comm[0], stream));
    EXPECT_OK(ftcclCommRevoke(two.comm[0], FTCCL_REVOKE_DEFAULT));
    ftcclResult_t seen = ftcclInProgress;
    for (int i = 0; i < 1000 && seen == ftcclInProgress; i++, usleep(10000))
        seen = ftcclStreamQuery(stream);
    EXPECT_EQ(seen, ftcclRemoteError);
    EXPECT_EQ(ftcclStreamQuery(stream), ftcclInProgress) << "the first operation has not ended";
    EXPECT_OK(ftcclAllReduce(&mine[1], &sum[1], 1, ftcclInt, ftcclSum, one.comm[1], one.stream[1]));
    EXPECT_OK(ftcclStreamSynchronize(stream));
    EXPECT_OK(ftcclStreamSynchronize(one.stream[1]));
    EXPECT_EQ(sum[0], 3);
    EXPECT_EQ(sum[1], 3);
    EXPECT_OK(ftcclAllReduce(&mine[0], &sum[0], 1, ftcclInt, ftcclMax, one.comm[0], stream));
    EXPECT_OK(ftcclAllReduce(&mine[1], &sum[1], 1, ftcclInt, ftcclMax, one.comm[1], one.stream[1]));
    EXPECT_OK(ftcclStreamSynchronize(stream));
    EXPECT_OK(ftcclStreamSynchronize(one.stream[1]));
    EXPECT_EQ(sum[0], 2);
}

TEST(Group, SeveralCommunicatorsAndKinds)
{
    const int n = 3;
    proc::World one(n), two(n);
    std::vector<std::vector<int>> sum(n, std::vector<int>(1)), all(n, std::vector<int>(n)),
        from(n, std::vector<int>(1, -1));
    one.each([&](int rank) {
        auto r = static_cast<size_t>(rank);
        int mine = rank + 1, right = (rank + 1) % n, left = (rank + n - 1) % n;
        EXPECT_OK(ftcclGroupStart());
        EXPECT_OK(ftcclAllReduce(&mine, sum[r].data(), 1, ftcclInt, ftcclSum, one.comm[r],
                                 one.stream[r]));
        EXPECT_OK(ftcclRecv(from[r].data(), 1, ftcclInt, left, two.comm[r], one.stream[r]));
        EXPECT_OK(ftcclAllGather(&mine, all[r].data(), 1, ftcclInt, two.comm[r], one.stream[r]));
        EXPECT_OK(ftcclSend(&mine, 1, ftcclInt, right, two.comm[r], one.stream[r]));
        EXPECT_OK(ftcclGroupEnd());
        EXPECT_OK(proc::finish(one.stream[r]));
    });
    for (size_t r = 0; r < n; r++) {
        EXPECT_EQ(sum[r][0], 6);
        EXPECT_EQ(all[r], (std::vector<int>{1, 2, 3}));
        EXPECT_EQ(from[r][0], static_cast<int>((r + n - 1) % n) + 1);
    }
}

TEST(Group, SimulateEndEnqueuesNothing)
{
    proc::World world(2);
    int data = 5;
    ftcclSimInfo_t info = FTCCL_SIM_INFO_INITIALIZER;
    ASSERT_OK(ftcclGroupStart());
    EXPECT_OK(ftcclAllReduce(&data, &data, 1, ftcclInt, ftcclSum, world.comm[0], world.stream[0]));
    EXPECT_OK(ftcclGroupSimulateEnd(&info));
    EXPECT_GE(info.estimatedTime, 0.0f);
    EXPECT_OK(ftcclStreamQuery(world.stream[0]));
    EXPECT_EQ(data, 5);
    EXPECT_TRUE(world.works());
}

TEST(Group, SimulateEndEndsTheGroupAlsoWithABadSimInfo)
{
    proc::World world(2);
    int data = 5;
    ftcclSimInfo_t none = {};
    ASSERT_OK(ftcclGroupStart());
    EXPECT_OK(ftcclAllReduce(&data, &data, 1, ftcclInt, ftcclSum, world.comm[0], world.stream[0]));
    EXPECT_CALLER(ftcclGroupSimulateEnd(&none));
    EXPECT_CALLER(ftcclGroupEnd()); /* none is open */
    EXPECT_TRUE(world.works());

    ASSERT_OK(ftcclGroupStart());
    ASSERT_OK(ftcclGroupStart());
    EXPECT_CALLER(ftcclGroupSimulateEnd(&none));
    EXPECT_CALLER(ftcclGroupEnd()); /* the outer one, which tells of it */
    EXPECT_CALLER(ftcclGroupEnd());
    EXPECT_TRUE(world.works());
}

TEST(PointToPoint, AnyOrderInAGroupAndToItself)
{
    const int n = 5;
    unsigned seed = std::random_device{}();
    SCOPED_TRACE("seed " + std::to_string(seed));
    proc::World world(n);
    for (size_t count : {1ul, 1000ul, 100000ul}) {
        world.each([&](int rank) {
            auto r = static_cast<size_t>(rank);
            std::mt19937 random(seed + static_cast<unsigned>(rank));
            std::vector<std::vector<int>> out(n, std::vector<int>(count)),
                in(n, std::vector<int>(count, -1));
            std::vector<int> calls(2 * n); /* peer, or n + peer for a receive */
            std::iota(calls.begin(), calls.end(), 0);
            std::shuffle(calls.begin(), calls.end(), random);
            EXPECT_OK(ftcclGroupStart());
            for (int c : calls) {
                int peer = c % n;
                auto p = static_cast<size_t>(peer);
                if (c < n) {
                    std::fill(out[p].begin(), out[p].end(), rank * 100 + peer);
                    EXPECT_OK(ftcclSend(out[p].data(), count, ftcclInt, peer, world.comm[r],
                                        world.stream[r]));
                } else {
                    EXPECT_OK(ftcclRecv(in[p].data(), count, ftcclInt, peer, world.comm[r],
                                        world.stream[r]));
                }
            }
            EXPECT_OK(ftcclGroupEnd());
            EXPECT_OK(proc::finish(world.stream[r]));
            for (int peer = 0; peer < n; peer++) {
                EXPECT_EQ(in[static_cast<size_t>(peer)], std::vector<int>(count, peer * 100 + rank))
                    << "rank " << rank << " from " << peer;
            }
        });
    }
}

TEST(PointToPoint, SeveralMessagesBetweenTwoKeepTheirOrder)
{
    const int messages = 50;
    proc::World world(2);
    std::vector<int> in(messages);
    world.each([&](int rank) {
        auto r = static_cast<size_t>(rank);
        std::vector<int> out(messages);
        std::iota(out.begin(), out.end(), 0);
        for (int m = 0; m < messages; m++) {
            auto i = static_cast<size_t>(m);
            if (rank == 0)
                EXPECT_OK(ftcclSend(&out[i], 1, ftcclInt, 1, world.comm[r], world.stream[r]));
            else
                EXPECT_OK(ftcclRecv(&in[i], 1, ftcclInt, 0, world.comm[r], world.stream[r]));
        }
        EXPECT_OK(proc::finish(world.stream[r]));
    });
    for (int m = 0; m < messages; m++)
        EXPECT_EQ(in[static_cast<size_t>(m)], m);
}

TEST(Stream, QueryDoesNotWaitAndSynchronizeDoes)
{
    proc::World world(2);
    int data[2] = {1, 2};
    ASSERT_OK(
        ftcclAllReduce(&data[0], &data[0], 1, ftcclInt, ftcclSum, world.comm[0], world.stream[0]));
    double start = proc::now();
    EXPECT_EQ(ftcclStreamQuery(world.stream[0]), ftcclInProgress); /* rank 1 has not called */
    EXPECT_LT(proc::now() - start, 1);
    ASSERT_OK(
        ftcclAllReduce(&data[1], &data[1], 1, ftcclInt, ftcclSum, world.comm[1], world.stream[1]));
    EXPECT_OK(proc::finish(world.stream[0]));
    EXPECT_OK(ftcclStreamQuery(world.stream[0]));
    EXPECT_OK(proc::finish(world.stream[1]));
    EXPECT_EQ(data[0], 3);
    EXPECT_EQ(data[1], 3);
}

TEST(Stream, QueryAloneMakesProgress)
{
    proc::World world(2);
    int data[2] = {1, 2};
    for (size_t r = 0; r < 2; r++) {
        ASSERT_OK(ftcclAllReduce(&data[r], &data[r], 1, ftcclInt, ftcclSum, world.comm[r],
                                 world.stream[r]));
    }
    double end = proc::now() + 10;
    for (size_t r = 0; r < 2; r++) {
        ftcclResult_t result;
        while ((result = ftcclStreamQuery(world.stream[r])) == ftcclInProgress &&
               proc::now() < end) {}
        EXPECT_OK(result);
        EXPECT_EQ(data[r], 3);
    }
}

TEST(Stream, SeveralOfOneCommunicator)
{
    proc::World world(2);
    const int streams = 4, rounds = 20;
    world.each([&](int rank) {
        auto r = static_cast<size_t>(rank);
        std::vector<ftcclStream_t> stream(streams);
        std::vector<int> data(streams * rounds, rank + 1);
        for (auto &s : stream)
            EXPECT_OK(ftcclStreamCreate(&s));
        for (size_t i = 0; i < data.size(); i++) {
            EXPECT_OK(ftcclAllReduce(&data[i], &data[i], 1, ftcclInt, ftcclSum, world.comm[r],
                                     stream[i % streams]));
        }
        for (auto s : stream)
            EXPECT_OK(proc::finish(s));
        for (int v : data)
            EXPECT_EQ(v, 3);
        for (auto s : stream)
            EXPECT_OK(ftcclStreamDestroy(s));
    });
}

TEST(Stream, OperationsOfOneStreamSeeEachOthersResults)
{
    proc::World world(3);
    world.each([&](int rank) {
        auto r = static_cast<size_t>(rank);
        int64_t value = 1;
        for (int i = 0; i < 30; i++) {
            EXPECT_OK(ftcclAllReduce(&value, &value, 1, ftcclInt64, ftcclSum, world.comm[r],
                                     world.stream[r]));
        }
        EXPECT_OK(proc::finish(world.stream[r]));
        int64_t want = 1;
        for (int i = 0; i < 30; i++)
            want *= 3;
        EXPECT_EQ(value, want);
    });
}

TEST(Stream, MoreOperationsThanAnyQueueHolds)
{
    proc::World world(2);
    world.each([&](int rank) {
        auto r = static_cast<size_t>(rank);
        std::vector<int> data(20000, rank + 1);
        for (auto &v : data)
            ASSERT_OK(
                ftcclAllReduce(&v, &v, 1, ftcclInt, ftcclSum, world.comm[r], world.stream[r]));
        EXPECT_OK(proc::finish(world.stream[r]));
        EXPECT_EQ(std::count(data.begin(), data.end(), 3), static_cast<long>(data.size()));
    });
}

TEST(Stream, OfAnotherCommunicatorOfTheSameRank)
{
    proc::World one(2), two(2);
    int data[2] = {1, 2};
    one.each([&](int rank) {
        auto r = static_cast<size_t>(rank);
        EXPECT_OK(
            ftcclAllReduce(&data[r], &data[r], 1, ftcclInt, ftcclSum, one.comm[r], one.stream[r]));
        EXPECT_OK(
            ftcclAllReduce(&data[r], &data[r], 1, ftcclInt, ftcclSum, two.comm[r], one.stream[r]));
        EXPECT_OK(proc::finish(one.stream[r]));
        EXPECT_EQ(data[r], 6);
    });
}

TEST(EmptyOperations, CompleteWithNullBuffers)
{
    proc::World world(3);
    world.each([&](int rank) {
        auto r = static_cast<size_t>(rank);
        EXPECT_OK(ftcclAllReduce(nullptr, nullptr, 0, ftcclFloat, ftcclSum, world.comm[r],
                                 world.stream[r]));
        EXPECT_OK(ftcclAllGather(nullptr, nullptr, 0, ftcclFloat, world.comm[r], world.stream[r]));
        EXPECT_OK(ftcclGroupStart());
        EXPECT_OK(
            ftcclSend(nullptr, 0, ftcclFloat, (rank + 1) % 3, world.comm[r], world.stream[r]));
        EXPECT_OK(
            ftcclRecv(nullptr, 0, ftcclFloat, (rank + 2) % 3, world.comm[r], world.stream[r]));
        EXPECT_OK(ftcclGroupEnd());
        EXPECT_OK(proc::finish(world.stream[r]));
    });
}

/* Its calls of the group cannot be enqueued any more: the end says so, and does none of the
 * others'. */
TEST(Group, CommunicatorsThatEndInAGroupTakeTheirCallsWithThem)
{
    for (bool abort : {false, true}) {
        proc::World world(1);
        ftcclComm_t doomed;
        int data[2] = {1, 1};
        ASSERT_OK(ftcclCommInitAll(&doomed, 1, nullptr));
        ASSERT_OK(ftcclGroupStart());
        EXPECT_OK(ftcclAllReduce(&data[0], &data[0], 1, ftcclInt, ftcclSum, doomed, nullptr));
        EXPECT_OK(ftcclAllReduce(&data[1], &data[1], 1, ftcclInt, ftcclSum, world.comm[0],
                                 world.stream[0]));
        EXPECT_OK(ftcclAllReduce(&data[0], &data[0], 1, ftcclInt, ftcclSum, doomed, nullptr));
        EXPECT_OK(abort ? ftcclCommAbort(doomed) : ftcclCommDestroy(doomed));
        EXPECT_CALLER(ftcclGroupEnd());
        EXPECT_TRUE(world.works());
    }
}

/* Calls that make communicators of the same one run in the order of the group, as on all ranks. */
TEST(Group, SplitsOfOneCommunicatorKeepTheirOrder)
{
    for (int blocking : {1, 0}) {
        proc::World world(2);
        ftcclComm_t parent[2] = {};
        world.each([&](int rank) {
            ftcclConfig_t config = FTCCL_CONFIG_INITIALIZER;
            config.blocking = blocking;
            EXPECT_OK(ftcclCommSplit(world.comm[static_cast<size_t>(rank)], 0, rank, &parent[rank],
                                     &config));
        });
        for (int i = 0; i < 30 && !HasFailure(); i++) {
            ftcclComm_t both[2] = {}, own[2] = {};
            world.each([&](int rank) {
                auto r = static_cast<size_t>(rank);
                ftcclConfig_t config = FTCCL_CONFIG_INITIALIZER;
                config.blocking = 1;
                EXPECT_OK(ftcclGroupStart());
                EXPECT_OK(ftcclCommSplit(parent[r], 0, 1 - rank, &both[r], &config));
                EXPECT_OK(ftcclCommSplit(parent[r], rank, 0, &own[r], &config));
                ftcclResult_t result = ftcclGroupEnd();
                while (result == ftcclInProgress)
                    EXPECT_OK(ftcclCommGetAsyncError(parent[r], &result));
                EXPECT_OK(result);
            });
            for (size_t r = 0; r < 2 && !HasFailure(); r++) {
                int n = -1, rank = -1, alone = -1;
                EXPECT_OK(ftcclCommCount(both[r], &n));
                EXPECT_OK(ftcclCommUserRank(both[r], &rank));
                EXPECT_OK(ftcclCommCount(own[r], &alone));
                EXPECT_EQ(n, 2);
                EXPECT_EQ(rank, 1 - static_cast<int>(r));
                EXPECT_EQ(alone, 1);
            }
            for (ftcclComm_t comm : {both[0], both[1], own[0], own[1]})
                if (comm) {
                    EXPECT_OK(ftcclCommAbort(comm));
                }
        }
        for (ftcclComm_t comm : parent)
            EXPECT_OK(ftcclCommAbort(comm));
    }
}

/* What ends a communicator does not wait for a group that another thread has open, and may never
 * end. */
TEST(Group, CommunicatorsEndWhileAnotherThreadHasAGroupOpen)
{
    for (bool abort : {false, true}) {
        for (bool split : {false, true}) {
            proc::World world(2);
            ftcclComm_t doomed, child = nullptr;
            int data[2] = {1, 1};
            std::atomic<int> step{0};
            ASSERT_OK(ftcclCommInitAll(&doomed, 1, nullptr));
            std::thread other([&] {
                EXPECT_OK(ftcclGroupStart());
                if (split) {
                    EXPECT_OK(ftcclCommSplit(doomed, 0, 0, &child, nullptr));
                } else {
                    EXPECT_OK(
                        ftcclAllReduce(&data[0], &data[0], 1, ftcclInt, ftcclSum, doomed, nullptr));
                    EXPECT_OK(ftcclAllReduce(&data[1], &data[1], 1, ftcclInt, ftcclSum,
                                             world.comm[0], world.stream[0]));
                }
                for (step = 1; step < 2;)
                    std::this_thread::yield();
                EXPECT_CALLER(ftcclGroupEnd());
            });
            while (step < 1)
                std::this_thread::yield();
            double start = proc::now();
            EXPECT_OK(abort ? ftcclCommAbort(doomed) : ftcclCommDestroy(doomed));
            EXPECT_LT(proc::now() - start, 5);
            EXPECT_CALLER(abort ? ftcclCommAbort(doomed) : ftcclCommDestroy(doomed));
            step = 2;
            other.join();
            EXPECT_EQ(child, nullptr);
            EXPECT_TRUE(world.works());
        }
    }
}

/* At any moment of the group; handles are used again soon. The other thread's last groups may end
 * after it. */
TEST(Group, CommunicatorsAreAbortedWhileAnotherThreadMakesGroups)
{
    for (int round = 0; round < 50 && !HasFailure(); round++) {
        ftcclComm_t comm;
        int data[2] = {1, 1};
        std::atomic<bool> begun{false};
        ASSERT_OK(ftcclCommInitAll(&comm, 1, nullptr));
        std::thread other([&] {
            for (ftcclResult_t result = ftcclSuccess; result == ftcclSuccess; begun = true) {
                EXPECT_OK(ftcclGroupStart());
                for (int &d : data)
                    ftcclAllReduce(&d, &d, 1, ftcclInt, ftcclSum, comm, nullptr);
                result = ftcclGroupEnd();
            }
        });
        while (!begun)
            std::this_thread::yield();
        usleep(static_cast<useconds_t>(round % 20));
        EXPECT_OK(ftcclCommAbort(comm));
        other.join();
        ftcclStreamSynchronize(nullptr);
    }
}

TEST(Group, CommunicatorsThatAreAbortedBeforeTheyAreMadeNeverAre)
{
    ftcclUniqueId id;
    ftcclComm_t comm = nullptr;
    ASSERT_OK(ftcclGetUniqueId(&id));
    ASSERT_OK(ftcclGroupStart());
    EXPECT_OK(ftcclCommInitRank(&comm, 2, id, 0));
    EXPECT_OK(ftcclCommAbort(comm));
    EXPECT_EQ(comm, nullptr);
    EXPECT_CALLER(ftcclGroupEnd());
}

} // namespace

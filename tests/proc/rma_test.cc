// Property: puts arrive exactly where they should, and a signal arrives only after the data that it
// follows. Bad windows, offsets and indexes are refused and touch nothing. Method: ranks as threads
// of one process through the public header. Every rank puts a pattern to every rank (itself, too),
// waits for the signals of all ranks, and compares its window byte by byte.
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "ftccl.h"

namespace
{

struct Rank {
    ftcclComm_t comm = nullptr;
    ftcclStream_t stream = nullptr;
    int rank = -1, n = 0;
};

template <class F> void each_rank(int n, F f)
{
    ftcclUniqueId id;
    ASSERT_EQ(ftcclGetUniqueId(&id), ftcclSuccess) << ftcclGetLastError(nullptr);
    std::vector<std::thread> threads;
    for (int r = 0; r < n; r++)
        threads.emplace_back([&, r] {
            Rank me;
            me.rank = r;
            me.n = n;
            ASSERT_EQ(ftcclCommInitRank(&me.comm, n, id, r), ftcclSuccess)
                << ftcclGetLastError(nullptr);
            ASSERT_EQ(ftcclStreamCreate(&me.stream), ftcclSuccess);
            f(me);
            EXPECT_EQ(ftcclCommDestroy(me.comm), ftcclSuccess) << ftcclGetLastError(nullptr);
            EXPECT_EQ(ftcclStreamDestroy(me.stream), ftcclSuccess);
        });
    for (auto &t : threads)
        t.join();
}

void barrier(const Rank &me)
{
    int32_t one = 1, sum = 0;
    ASSERT_EQ(ftcclAllReduce(&one, &sum, 1, ftcclInt32, ftcclSum, me.comm, me.stream),
              ftcclSuccess);
    ASSERT_EQ(ftcclStreamSynchronize(me.stream), ftcclSuccess) << ftcclGetLastError(nullptr);
    ASSERT_EQ(sum, me.n);
}

unsigned char pattern(int round, int from, int to, size_t i)
{
    return (unsigned char)(round * 41 + from * 7 + to * 13 + int(i * 31));
}

TEST(Rma, EverybodyPutsToEverybody)
{
    each_rank(4, [](const Rank &me) {
        const size_t block = 300001; // several chunks, not a multiple of anything
        std::vector<unsigned char> mem(block * size_t(me.n) + 1, 0xee), local(block);
        ftcclWindow_t win = nullptr;
        ASSERT_EQ(ftcclCommWindowRegister(me.comm, mem.data(), block * size_t(me.n), &win,
                                          FTCCL_WIN_DEFAULT),
                  ftcclSuccess)
            << ftcclGetLastError(me.comm);
        void *ptr = nullptr;
        ASSERT_EQ(ftcclWinGetUserPtr(me.comm, win, &ptr), ftcclSuccess);
        ASSERT_EQ(ptr, mem.data());
        for (int round = 0; round < 5; round++) {
            std::vector<std::vector<unsigned char>> out;
            std::vector<ftcclWaitSignalDesc_t> waits;
            for (int r = 0; r < me.n; r++) {
                out.emplace_back(block);
                for (size_t i = 0; i < block; i++)
                    out[size_t(r)][i] = pattern(round, me.rank, r, i);
                waits.push_back({1, r, 0, 0});
            }
            ASSERT_EQ(ftcclGroupStart(), ftcclSuccess);
            for (int r = 0; r < me.n; r++)
                ASSERT_EQ(ftcclPutSignal(out[size_t(r)].data(), block, ftcclInt8, r, win,
                                         size_t(me.rank) * block, 0, 0, 0, me.comm, me.stream),
                          ftcclSuccess)
                    << ftcclGetLastError(me.comm);
            ASSERT_EQ(ftcclGroupEnd(), ftcclSuccess);
            ASSERT_EQ(ftcclWaitSignal(me.n, waits.data(), me.comm, me.stream), ftcclSuccess)
                << ftcclGetLastError(me.comm);
            ASSERT_EQ(ftcclStreamSynchronize(me.stream), ftcclSuccess)
                << ftcclGetLastError(nullptr);
            for (int r = 0; r < me.n; r++)
                for (size_t i = 0; i < block; i++)
                    ASSERT_EQ(mem[size_t(r) * block + i], pattern(round, r, me.rank, i))
                        << r << " at " << i;
            ASSERT_EQ(mem[block * size_t(me.n)], 0xee);
            barrier(me); // nobody overwrites what a slower rank still compares
        }
        EXPECT_EQ(ftcclCommWindowDeregister(me.comm, win), ftcclSuccess);
        EXPECT_EQ(ftcclCommWindowDeregister(me.comm, win), ftcclInvalidArgument);
    });
}

TEST(Rma, SignalsAreCounted)
{
    each_rank(2, [](const Rank &me) {
        int peer = 1 - me.rank;
        for (int i = 0; i < 50; i++)
            ASSERT_EQ(ftcclSignal(peer, 0, 0, 0, me.comm, me.stream), ftcclSuccess);
        ftcclWaitSignalDesc_t desc = {20, peer, 0, 0};
        ASSERT_EQ(ftcclWaitSignal(1, &desc, me.comm, me.stream), ftcclSuccess);
        desc.opCnt = 30;
        ASSERT_EQ(ftcclWaitSignal(1, &desc, me.comm, me.stream), ftcclSuccess);
        ASSERT_EQ(ftcclStreamSynchronize(me.stream), ftcclSuccess) << ftcclGetLastError(nullptr);
        barrier(me);
    });
}

// A put for which the link has no slot left is followed in its group by a signal, which needs none.
TEST(Rma, SignalsOfAGroupDoNotOvertakeItsPuts)
{
    each_rank(2, [](const Rank &me) {
        const size_t len = 1 << 20;
        std::vector<unsigned char> mem(len, 0), local(len), sent(len);
        std::vector<int32_t> sum(len);
        ftcclWindow_t win = nullptr;
        ASSERT_EQ(ftcclCommWindowRegister(me.comm, mem.data(), len, &win, FTCCL_WIN_DEFAULT),
                  ftcclSuccess);
        for (int round = 1; round <= 10; round++) {
            ftcclWaitSignalDesc_t wait = {1, 0, 0, 0};
            barrier(me);
            if (me.rank == 1) {
                ASSERT_EQ(ftcclWaitSignal(1, &wait, me.comm, me.stream), ftcclSuccess);
                ASSERT_EQ(ftcclStreamSynchronize(me.stream), ftcclSuccess)
                    << ftcclGetLastError(nullptr);
                ASSERT_EQ(std::count(mem.begin(), mem.end(), (unsigned char)round), (long)len)
                    << "round " << round;
            }
            memset(local.data(), round, len);
            ASSERT_EQ(ftcclGroupStart(), ftcclSuccess);
            ASSERT_EQ(ftcclAllReduce(sum.data(), sum.data(), len, ftcclInt32, ftcclSum, me.comm,
                                     me.stream),
                      ftcclSuccess);
            if (me.rank == 0) {
                ASSERT_EQ(ftcclSend(sent.data(), len, ftcclInt8, 1, me.comm, me.stream),
                          ftcclSuccess);
                ASSERT_EQ(ftcclPutSignal(local.data(), len, ftcclInt8, 1, win, 0, 0, 0, 0, me.comm,
                                         me.stream),
                          ftcclSuccess);
                ASSERT_EQ(ftcclSignal(1, 0, 0, 0, me.comm, me.stream), ftcclSuccess);
            } else {
                ASSERT_EQ(ftcclRecv(sent.data(), len, ftcclInt8, 0, me.comm, me.stream),
                          ftcclSuccess);
                ASSERT_EQ(ftcclWaitSignal(1, &wait, me.comm, me.stream), ftcclSuccess);
            }
            ASSERT_EQ(ftcclGroupEnd(), ftcclSuccess);
            ASSERT_EQ(ftcclStreamSynchronize(me.stream), ftcclSuccess)
                << ftcclGetLastError(nullptr);
        }
        ASSERT_EQ(ftcclCommWindowDeregister(me.comm, win), ftcclSuccess);
    });
}

// More than any machine has, of which a page is used.
TEST(Rma, OffsetsBeyondSixteenTebibytes)
{
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
    GTEST_SKIP() << "a sanitizer keeps notes of all of it";
#endif
    const size_t far = (size_t)1 << 44, len = far + 4096;
    char *mem = (char *)mmap(nullptr, len, PROT_READ | PROT_WRITE,
                             MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (mem == MAP_FAILED)
        GTEST_SKIP() << "no such addresses here";
    each_rank(2, [&](const Rank &me) {
        ftcclWindow_t win = nullptr;
        ftcclWaitSignalDesc_t wait = {1, 0, 0, 0};
        char value = 'x';
        ASSERT_EQ(ftcclCommWindowRegister(me.comm, me.rank ? mem : nullptr, me.rank ? len : 0, &win,
                                          FTCCL_WIN_DEFAULT),
                  ftcclSuccess);
        ASSERT_EQ(me.rank ? ftcclWaitSignal(1, &wait, me.comm, me.stream)
                          : ftcclPutSignal(&value, 1, ftcclInt8, 1, win, far, 0, 0, 0, me.comm,
                                           me.stream),
                  ftcclSuccess);
        EXPECT_EQ(ftcclStreamSynchronize(me.stream), ftcclSuccess) << ftcclGetLastError(nullptr);
        EXPECT_EQ(ftcclCommWindowDeregister(me.comm, win), ftcclSuccess);
    });
    EXPECT_EQ(mem[far], 'x');
    EXPECT_EQ(mem[0], 0);
    munmap(mem, len);
}

// One of the threads that deregister the window does so. Those that look it up meanwhile find all
// of it or nothing.
TEST(Rma, DeregisteredByOneThreadWhileOthersUseIt)
{
    each_rank(1, [](const Rank &me) {
        for (int round = 0; round < 300 && !testing::Test::HasFailure(); round++) {
            std::vector<char> mem(64, 7), local(64);
            ftcclWindow_t win = nullptr;
            ASSERT_EQ(ftcclCommWindowRegister(me.comm, mem.data(), mem.size(), &win,
                                              FTCCL_WIN_DEFAULT),
                      ftcclSuccess);
            std::atomic<int> removed{0}, here{0};
            std::vector<std::thread> threads;
            for (int t = 0; t < 4; t++)
                threads.emplace_back([&, t] {
                    void *ptr = nullptr;
                    ftcclResult_t got = ftcclSuccess, put = ftcclInvalidArgument;
                    for (here++; here < 4;)
                        std::this_thread::yield();
                    for (int i = 0;
                         t < 2 && i < 100 && got == ftcclSuccess && put == ftcclInvalidArgument;
                         i++) {
                        got = ftcclWinGetUserPtr(me.comm, win, &ptr);
                        EXPECT_EQ(ptr, got == ftcclSuccess || i > 0 ? mem.data() : nullptr);
                        put = ftcclPutSignal(local.data(), 2, ftcclInt8, 0, win, 63, 0, 0, 0,
                                             me.comm, me.stream); // never fits
                    }
                    EXPECT_EQ(put, ftcclInvalidArgument);
                    if (t >= 2 && ftcclCommWindowDeregister(me.comm, win) == ftcclSuccess)
                        removed++;
                });
            for (auto &t : threads)
                t.join();
            EXPECT_EQ(removed, 1);
        }
    });
}

TEST(Rma, BadArgumentsTouchNothing)
{
    each_rank(2, [](const Rank &me) {
        std::vector<char> mem(size_t(me.rank) * 64 + 64, 7);
        ftcclWindow_t win = nullptr, wrong = reinterpret_cast<ftcclWindow_t>(&mem);
        ASSERT_EQ(ftcclCommWindowRegister(me.comm, nullptr, 8, &win, 0), ftcclInvalidArgument);
        ASSERT_EQ(ftcclCommWindowRegister(me.comm, mem.data(), mem.size(), &win, 64),
                  ftcclInvalidArgument);
        ASSERT_EQ(ftcclCommWindowRegister(me.comm, mem.data(), mem.size(), &win, 0), ftcclSuccess);
        char data[256] = {};
        auto put = [&](size_t count, size_t offset, int peer, ftcclWindow_t w, int sig) {
            return ftcclPutSignal(data, count, ftcclInt8, peer, w, offset, sig, 0, 0, me.comm,
                                  me.stream);
        };
        EXPECT_EQ(put(65, 0, 0, win, 0), ftcclInvalidArgument) << "rank 0 has 64 bytes";
        EXPECT_EQ(put(1, 64, 0, win, 0), ftcclInvalidArgument);
        EXPECT_EQ(put(1, SIZE_MAX, 0, win, 0), ftcclInvalidArgument);
        EXPECT_EQ(put(SIZE_MAX, 0, 0, win, 0), ftcclInvalidArgument);
        EXPECT_EQ(put(1, 0, 2, win, 0), ftcclInvalidArgument);
        EXPECT_EQ(put(1, 0, -1, win, 0), ftcclInvalidArgument);
        EXPECT_EQ(put(1, 0, 0, wrong, 0), ftcclInvalidArgument);
        EXPECT_EQ(put(1, 0, 0, nullptr, 0), ftcclInvalidArgument);
        EXPECT_EQ(put(1, 0, 0, win, 1), ftcclInvalidArgument);
        EXPECT_NE(std::string(ftcclGetLastError(me.comm)), "");
        ftcclWaitSignalDesc_t twice[2] = {{1, 0, 0, 0}, {1, 0, 0, 0}}, far = {1, 9, 0, 0};
        EXPECT_EQ(ftcclWaitSignal(2, twice, me.comm, me.stream), ftcclInvalidArgument);
        EXPECT_EQ(ftcclWaitSignal(1, &far, me.comm, me.stream), ftcclInvalidArgument);
        EXPECT_EQ(ftcclWaitSignal(-1, &far, me.comm, me.stream), ftcclInvalidArgument);
        barrier(me);
        for (char c : mem)
            ASSERT_EQ(c, 7);
    });
}

} // namespace

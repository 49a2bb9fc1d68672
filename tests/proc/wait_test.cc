// Property: a wait for a stream ends when its operations do, however the end falls between the waiter's looks at the stream (once a
// waiter that looked at the wrong moment waited for ever). Method: two ranks as threads; a short all-reduce is enqueued, a random
// pause lets the background thread finish it at any point of the wait that follows. A hang is ended by the test's time limit.
// Replay: FT_SEED=n tests/proc/wait_test
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <random>
#include <thread>

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
            ASSERT_EQ(ftcclAllReduce(&one, &sum, 1, ftcclInt, ftcclSum, comm, stream), ftcclSuccess);
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

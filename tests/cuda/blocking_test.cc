/*
 * Property: if a launch blocks until its kernel has ended (CUDA_LAUNCH_BLOCKING=1, debuggers,
 * compute-sanitizer), calls still end when they are over, also calls for several ranks in a group
 * of one thread. A call that no other rank makes ends at the deadline or with an abort. A kernel
 * that cannot be launched is an error of its communicator. Method: ranks as threads on the stand-in
 * driver, which blocks in the same way.
 */
#include <unistd.h>

#include <atomic>
#include <thread>

#include "tests/cuda/ranks.h"

namespace
{

using namespace gpu;

class GpuBlocking : public testing::Test
{
  protected:
    void SetUp() override
    {
        choose("1");
    }
    void TearDown() override
    {
        choose("0");
    }
    static void choose(const char *value)
    {
        setenv("CUDA_LAUNCH_BLOCKING", value, 1);
        ftcclResetDebugInit(); /* reads the environment again */
    }
};

TEST_F(GpuBlocking, CallsEndOnAllRanksAlsoOfOneThread)
{
    Job job(3, "shm", 10000);
    for (size_t count :
         {static_cast<size_t>(1), static_cast<size_t>(1001), static_cast<size_t>(300007)})
        reduces<float>(job, count, ftcclFloat, count % 2 == 0);
    Buffer<int> a(1000), b(1000), c(1000);
    Buffer<int> *data[] = {&a, &b, &c};
    for (size_t r = 0; r < 3; r++)
        data[r]->put(std::vector<int>(1000, 1), job.stream[r]);
    for (int round = 0; round < 4; round++) { /* each on a stream of its own, then all on one */
        EXPECT_OK(ftcclGroupStart());
        for (size_t r = 0; r < 3; r++)
            EXPECT_OK(ftcclAllReduce(data[r]->ptr(), data[r]->ptr(), 1000, ftcclInt, ftcclSum,
                                     job.comm[r], as(job.stream[round < 2 ? r : 0])));
        EXPECT_OK(ftcclGroupEnd());
        for (CUstream stream : job.stream)
            EXPECT_TRUE(soon([&] { return idle(stream); }));
    }
    for (size_t r = 0; r < 3; r++) {
        std::vector<int> got(1000);
        data[r]->get(got, job.stream[r]);
        EXPECT_TRUE(soon([&] { return idle(job.stream[r]); }));
        EXPECT_EQ(got, std::vector<int>(1000, 81)) << r;
        EXPECT_EQ(job.state(static_cast<int>(r)), ftcclSuccess);
    }
}

TEST_F(GpuBlocking, ACallThatNobodyMeetsEndsAtTheDeadlineOrWithTheAbort)
{
    for (int64_t timeout_ms : {1000, 60000}) {
        Job job(2, "shm", timeout_ms);
        Buffer<float> a(1000);
        std::atomic<bool> over{false};
        reduces<float>(job, 1000, ftcclFloat, true);
        std::thread caller([&] {
            standin_enter();
            EXPECT_OK(ftcclAllReduce(a.ptr(), a.ptr(), a.n, ftcclFloat, ftcclSum, job.comm[0],
                                     as(job.stream[0])));
            over = true;
        });
        if (timeout_ms < 60000) {
            EXPECT_TRUE(soon([&] { return over.load(); }, 20));
        } else
            usleep(50000);
        for (auto &comm : job.comm) {
            EXPECT_OK(ftcclCommAbort(comm));
            comm = nullptr;
        }
        EXPECT_TRUE(soon([&] { return over.load(); }, 10)) << "the call stands";
        caller.join();
        EXPECT_TRUE(soon([&] { return idle(job.stream[0]); }));
    }
}

TEST_F(GpuBlocking, AKernelThatCannotBeLaunchedIsAnErrorOfItsRank)
{
    Job job(2, "shm", 3000);
    Buffer<float> a(1000);
    reduces<float>(job, 1000, ftcclFloat, true);
    standin_fail("cuLaunchKernel", CUDA_ERROR_LAUNCH_FAILED, 0);
    EXPECT_OK(ftcclAllReduce(a.ptr(), a.ptr(), a.n, ftcclFloat, ftcclSum, job.comm[0],
                             as(job.stream[0])));
    EXPECT_TRUE(soon([&] { return job.state(0) != ftcclSuccess; }));
    EXPECT_EQ(job.state(0), ftcclUnhandledCudaError);
    EXPECT_TRUE(soon([&] { return idle(job.stream[0]); }));
    for (auto &comm : job.comm) {
        EXPECT_OK(ftcclCommAbort(comm));
        comm = nullptr;
    }
}

} // namespace

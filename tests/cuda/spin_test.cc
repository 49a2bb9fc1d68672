/* The engine's thread does not rest while the GPU has work, for as long as FTCCL_SPIN_US says. */
#include <dirent.h>

#include <fstream>
#include <string>

#include "tests/cuda/ranks.h"

namespace gpu
{

/* The library reads its parameters once. */
const int spin_set = setenv("FTCCL_SPIN_US", "1000000", 1);

/* How often the threads of engines have gone to sleep. */
long sleeps_of_engines()
{
    long all = 0;
    DIR *tasks = opendir("/proc/self/task");
    for (dirent *task = readdir(tasks); task; task = readdir(tasks)) {
        std::ifstream status(std::string("/proc/self/task/") + task->d_name + "/status");
        bool is_engine = false;
        for (std::string line; std::getline(status, line);) {
            if (line.rfind("Name:", 0) == 0)
                is_engine = line.find("ftccl-engine") != std::string::npos;
            if (is_engine && line.rfind("voluntary_ctxt_switches:", 0) == 0)
                all += std::stol(line.substr(line.find(':') + 1));
        }
    }
    closedir(tasks);
    return all;
}

/* A nap takes 0.1 ms, and a step of an all-reduce of few bytes has three of them to wait for. The
 * other rank's engine has no work and sleeps for milliseconds. */
TEST(GpuSpin, TheEngineDoesNotRestWhileTheGpuHasWork)
{
    ASSERT_EQ(spin_set, 0);
    Job job(2, "tcp");
    reduces<float>(job, 1000, ftcclFloat, true);
    Buffer<float> a(1000), b(1000);
    EXPECT_OK(ftcclAllReduce(a.ptr(), a.ptr(), a.n, ftcclFloat, ftcclSum, job.comm[0],
                             as(job.stream[0])));
    usleep(20000);
    long before = sleeps_of_engines();
    ASSERT_GT(before, 0) << "there are no threads of engines";
    usleep(200000);
    EXPECT_LT(sleeps_of_engines() - before, 150);
    EXPECT_OK(ftcclAllReduce(b.ptr(), b.ptr(), b.n, ftcclFloat, ftcclSum, job.comm[1],
                             as(job.stream[1])));
    for (CUstream stream : job.stream)
        EXPECT_TRUE(soon([&] { return idle(stream); }));
}

} // namespace gpu

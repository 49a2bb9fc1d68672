/*
 * Property: if a rank dies while operations on buffers of the GPU run, the others get an error
 * within their bounds, and their streams go on (release) or stop until the abort (hold). With
 * policy retry they get no error, and go on with the right sums. Method: ranks as processes on the
 * stand-in driver; some are killed.
 */
#include <signal.h>
#include <unistd.h>

#include <memory>

#include "tests/cuda/ranks.h"

namespace
{

using namespace gpu;

/* loop ID NRANKS RANK: reduces until it fails, says whether its last call was refused, was done
 * before (then nothing holds its stream), or whether its stream goes on by itself, shrinks, and
 * reduces again. */
CHILD(loop)
{
    int n = std::stoi(arguments[1]), rank = std::stoi(arguments[2]);
    CUstream stream;
    standin_enter();
    cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING);
    ftcclComm_t comm, next;
    if (ftcclCommInitRank(&comm, n, proc::unhex(arguments[0]), rank) != ftcclSuccess)
        return 1;
    Buffer<float> data(100000), sum(data.n);
    std::vector<float> got(data.n);
    data.put(std::vector<float>(data.n, 1), stream);
    ftcclResult_t state = ftcclSuccess, result = ftcclSuccess;
    for (int i = 0; state == ftcclSuccess && result == ftcclSuccess; i++) {
        sum.put(std::vector<float>(data.n, 0), stream);
        result = ftcclAllReduce(data.ptr(), sum.ptr(), data.n, ftcclFloat, ftcclSum, comm,
                                as(stream));
        while (!idle(stream) && state == ftcclSuccess)
            usleep(100), ftcclCommGetAsyncError(comm, &state);
        if (i == 5)
            printf("running\n"), fflush(stdout);
    }
    ftcclCommGetAsyncError(comm, &state);
    bool goes_on = soon([&] { return idle(stream); }, arguments[3] == "hold" ? 0.3 : 30);
    if (goes_on)
        sum.get(got, stream), soon([&] { return idle(stream); });
    bool done = goes_on && got == std::vector<float>(data.n, static_cast<float>(n));
    printf("%d %s\n", state,
           result != ftcclSuccess ? "refused"
           : done                 ? "done"
           : goes_on              ? "free"
                                  : "held");
    fflush(stdout);
    if (ftcclCommShrink(comm, nullptr, 0, &next, nullptr, FTCCL_SHRINK_ABORT) != ftcclSuccess)
        return printf("%s\n", ftcclGetLastError(comm)), 2;
    ftcclCommAbort(comm);
    if (!soon([&] { return idle(stream); }))
        return 3;
    data.put(std::vector<float>(data.n, 1), stream);
    result = ftcclAllReduce(data.ptr(), data.ptr(), data.n, ftcclFloat, ftcclSum, next, as(stream));
    data.get(got, stream);
    if (result != ftcclSuccess || !soon([&] { return idle(stream); }))
        return 4;
    printf("again %g %g\n", static_cast<double>(got[0]), static_cast<double>(got[data.n - 1]));
    return ftcclCommDestroy(next) == ftcclSuccess ? 0 : 5;
}

class GpuKill : public testing::TestWithParam<const char *>
{
};

TEST_P(GpuKill, ARankDiesInFlight)
{
    const int n = 3;
    ftcclUniqueId id;
    ASSERT_OK(ftcclGetUniqueId(&id));
    std::vector<std::unique_ptr<proc::Child>> rank;
    std::string how = GetParam(), transport = "shm";
    /* whose slots the GPU writes itself */
    if (how == "release over TCP")
        how = "release", transport = "tcp";
    for (int r = 0; r < n; r++)
        rank.push_back(std::make_unique<proc::Child>(
            "loop",
            std::vector<std::string>{proc::hex(id), std::to_string(n), std::to_string(r), how},
            std::map<std::string, std::string>{{"FTCCL_ON_FAILURE", how},
                                               {"FTCCL_TRANSPORTS", transport}}));
    for (auto &child : rank)
        ASSERT_EQ(child->line(), "running");
    rank[1]->signal(SIGKILL);
    for (size_t r : {static_cast<size_t>(0), static_cast<size_t>(2)}) {
        std::string line = rank[r]->line(60), error = std::to_string(ftcclRemoteError);
        /* it heard of the death when its stream had nothing to wait for any more */
        if (line != error + " refused" && line != error + " done") {
            EXPECT_EQ(line, error + (how == "hold" ? " held" : " free")) << r;
        }
        EXPECT_EQ(rank[r]->line(60), "again 2 2") << r;
        EXPECT_EQ(rank[r]->wait(60), 0);
    }
}

INSTANTIATE_TEST_SUITE_P(OnFailure, GpuKill, testing::Values("release", "hold", "release over TCP"),
                         [](auto &i) {
                             return std::string(i.param) == "release over TCP"
                                        ? "release_over_TCP"
                                        : std::string(i.param);
                         });

/* retry ID NRANKS RANK: reduces ones in place eight times. Each result is of all ranks or of those
 * that are left. Rank 1 dies in the middle of the third operation. */
CHILD(retry)
{
    int n = std::stoi(arguments[1]), rank = std::stoi(arguments[2]), count = n;
    CUstream stream;
    ftcclComm_t comm;
    standin_enter();
    cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING);
    if (ftcclCommInitRank(&comm, n, proc::unhex(arguments[0]), rank) != ftcclSuccess)
        return 1;
    Buffer<float> data(2000000);
    std::vector<float> ones(data.n, 1), got(data.n);
    double took = 0;
    for (int i = 0; i < 8; i++) {
        data.put(ones, stream);
        if (!soon([&] { return idle(stream); }))
            return 3;
        double began = proc::now();
        if (ftcclAllReduce(data.ptr(), data.ptr(), data.n, ftcclFloat, ftcclSum, comm,
                           as(stream)) != ftcclSuccess)
            return printf("%s\n", ftcclGetLastError(comm)), 2;
        if (rank == 1 && i == 2)
            usleep(static_cast<useconds_t>(took * 6e5)), raise(SIGKILL);
        if (!soon([&] { return idle(stream); }))
            return printf("stands: %s\n", ftcclGetLastError(comm)), 3;
        took = proc::now() - began;
        data.get(got, stream);
        if (!soon([&] { return idle(stream); }))
            return printf("stands: %s\n", ftcclGetLastError(comm)), 3;
        if (got != std::vector<float>(data.n, static_cast<float>(n)) &&
            got != std::vector<float>(data.n, static_cast<float>(n - 1)))
            return printf("%g of %d in round %d\n", static_cast<double>(got[0]), n, i), 4;
    }
    if (ftcclCommCount(comm, &count) != ftcclSuccess)
        return 5;
    printf("%d go on, sum %g\n", count, static_cast<double>(got[0]));
    return ftcclCommDestroy(comm) == ftcclSuccess ? 0 : 6;
}

class GpuRetry : public testing::TestWithParam<const char *>
{
};

TEST_P(GpuRetry, TheOthersGoOnInsideTheCall)
{
    const int n = 3;
    ftcclUniqueId id;
    ASSERT_OK(ftcclGetUniqueId(&id));
    std::vector<std::unique_ptr<proc::Child>> rank;
    std::string how = GetParam();
    for (int r = 0; r < n; r++)
        rank.push_back(std::make_unique<proc::Child>(
            "retry", std::vector<std::string>{proc::hex(id), std::to_string(n), std::to_string(r)},
            std::map<std::string, std::string>{{"FTCCL_FAILURE_POLICY", "retry"},
                                               {"FTCCL_TRANSPORTS", how == "tcp" ? "tcp" : "shm"},
                                               {"FTCCL_VERIFY", how == "verified" ? "1" : "0"}}));
    for (size_t r : {static_cast<size_t>(0), static_cast<size_t>(2)}) {
        EXPECT_EQ(rank[r]->line(60), "2 go on, sum 2") << r;
        EXPECT_EQ(rank[r]->wait(60), 0) << r;
    }
}

INSTANTIATE_TEST_SUITE_P(How, GpuRetry, testing::Values("shm", "tcp", "verified"),
                         [](auto &i) { return std::string(i.param); });

} // namespace

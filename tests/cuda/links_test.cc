/*
 * Property: the GPU reads messages where they lie and writes them where they go, in pinned memory
 * of the links, both its own and that of other ranks of the machine. Only messages without room
 * there, messages that a receiver about to sleep has copied out of shared memory, or what a driver
 * refuses, are staged. Memory of ranks that are gone is released. Method: ranks on the stand-in
 * driver, as processes whose log is read, and as threads whose use of the driver's memory is
 * counted.
 */
#include <unistd.h>

#include <fstream>
#include <memory>
#include <sstream>

#include "tests/cuda/ranks.h"

namespace
{

using namespace gpu;

/* traffic ID NRANKS RANK: some all-reduces, a send to the next rank, and the end; what became of
 * messages is in the log. */
CHILD(traffic)
{
    int n = std::stoi(arguments[1]), rank = std::stoi(arguments[2]);
    CUstream stream;
    ftcclComm_t comm;
    standin_enter();
    cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING);
    if (ftcclCommInitRank(&comm, n, proc::unhex(arguments[0]), rank) != ftcclSuccess)
        return 1;
    Buffer<float> data(600000), other(600000);
    std::vector<float> got(data.n);
    data.put(std::vector<float>(data.n, 1), stream);
    for (int i = 0; i < 3; i++)
        ftcclAllReduce(data.ptr(), data.ptr(), data.n, ftcclFloat, ftcclSum, comm, as(stream));
    ftcclGroupStart();
    ftcclSend(data.ptr(), data.n, ftcclFloat, (rank + 1) % n, comm, as(stream));
    ftcclRecv(other.ptr(), data.n, ftcclFloat, (rank + n - 1) % n, comm, as(stream));
    ftcclGroupEnd();
    other.get(got, stream);
    if (!soon([&] { return idle(stream); }))
        return 2;
    if (got != std::vector<float>(data.n, static_cast<float>(n * n * n)))
        return 3;
    return ftcclCommDestroy(comm) == ftcclSuccess ? 0 : 4;
}

/* ipc: memory of the GPU is 2 MiB at least, so where there is any nothing else is needed. */
struct Links {
    const char *transports, *bytes, *ipc;
};
class GpuLinks : public testing::TestWithParam<Links>
{
};

/* The GPU works in the links' own memory; with little of it that is pinned a part is staged, with
 * none everything is. */
TEST_P(GpuLinks, MessagesAreStagedOnlyWhereNothingIsPinned)
{
    const int n = 3;
    ftcclUniqueId id;
    ASSERT_OK(ftcclGetUniqueId(&id));
    std::vector<std::unique_ptr<proc::Child>> rank;
    for (int r = 0; r < n; r++)
        rank.push_back(std::make_unique<proc::Child>(
            "traffic",
            std::vector<std::string>{proc::hex(id), std::to_string(n), std::to_string(r)},
            std::map<std::string, std::string>{{"FTCCL_TRANSPORTS", GetParam().transports},
                                               {"FTCCL_ALGO", "ring"},
                                               {"FTCCL_DEBUG", "INFO"},
                                               {"FTCCL_DEBUG_FILE", "gpu_links." +
                                                                        std::to_string(getpid()) +
                                                                        "." + std::to_string(r)},
                                               {"FTCCL_CUDA_PINNED_BYTES", GetParam().bytes},
                                               {"FTCCL_CUDA_IPC", GetParam().ipc}}));
    for (auto &child : rank)
        EXPECT_EQ(child->wait(60), 0);
    for (int r = 0; r < n; r++) {
        std::string name = "gpu_links." + std::to_string(getpid()) + "." + std::to_string(r);
        std::ostringstream read;
        read << std::ifstream(name).rdbuf();
        std::string text = read.str();
        unlink(name.c_str());
        size_t at = text.find("of messages it staged ");
        unsigned long long staged = 0, direct = 0, there = 0;
        bool all = std::string(GetParam().bytes) == "16M";
        ASSERT_NE(at, std::string::npos) << text;
        ASSERT_EQ(sscanf(text.c_str() + at,
                         "of messages it staged %llu bytes and reached %llu where they lay, %llu",
                         &staged, &direct, &there),
                  3)
            << text;
        EXPECT_GE(staged + direct, 600000ull * 4 * 4) << "rank " << r;
        EXPECT_EQ(there,
                  std::string(GetParam().transports) == "shm" && std::string(GetParam().ipc) == "1"
                      ? staged + direct
                      : 0)
            << "rank " << r;
        bool copies = std::string(GetParam().transports) == "shm" && there == 0;
        if (all && copies)
            EXPECT_LT(staged, direct) << "rank " << r;
        else
            EXPECT_EQ(staged == 0, all || there > 0) << "rank " << r << " staged " << staged;
        EXPECT_EQ(direct == 0, std::string(GetParam().bytes) == "0")
            << "rank " << r << " reached " << direct;
    }
}

INSTANTIATE_TEST_SUITE_P(Bytes, GpuLinks,
                         testing::Values(Links{"tcp", "0", "1"}, Links{"tcp", "512K", "1"},
                                         Links{"tcp", "16M", "1"}, Links{"shm", "0", "0"},
                                         Links{"shm", "128K", "0"}, Links{"shm", "16M", "0"},
                                         Links{"shm", "128K", "1"}, Links{"shm", "16M", "1"}),
                         [](auto &i) {
                             return std::string(i.param.transports) + "_" + i.param.bytes +
                                    (std::string(i.param.ipc) == "1" ? "_there" : "");
                         });

class GpuPinned : public testing::TestWithParam<const char *>
{
};
INSTANTIATE_TEST_SUITE_P(Transports, GpuPinned, testing::Values("inproc", "shm"),
                         [](auto &i) { return std::string(i.param); });

void reduces(ftcclComm_t comm, CUstream stream, int n)
{
    Buffer<float> data(600000);
    std::vector<float> got(data.n);
    data.put(std::vector<float>(data.n, 1), stream);
    EXPECT_OK(
        ftcclAllReduce(data.ptr(), data.ptr(), data.n, ftcclFloat, ftcclSum, comm, as(stream)));
    data.get(got, stream);
    EXPECT_TRUE(soon([&] { return idle(stream); }));
    EXPECT_EQ(got, std::vector<float>(data.n, static_cast<float>(n)));
}

/* Two that are left of three have no more than two that began alone, by the end of a later
 * communicator at the latest. */
TEST_P(GpuPinned, GoesWithTheRankThatHadIt)
{
    int alone = 0;
    {
        Job job(2, GetParam());
        job.each([&](int r) {
            reduces(job.comm[static_cast<size_t>(r)], job.stream[static_cast<size_t>(r)], 2);
        });
        alone = standin_live_memory();
    }
    EXPECT_EQ(standin_live_memory(), 0);
    Job job(3, GetParam());
    std::vector<ftcclComm_t> next(3);
    job.each([&](int r) {
        int gone = 2;
        size_t i = static_cast<size_t>(r);
        reduces(job.comm[i], job.stream[i], 3);
        if (r != gone) {
            EXPECT_OK(
                ftcclCommShrink(job.comm[i], &gone, 1, &next[i], nullptr, FTCCL_SHRINK_DEFAULT));
            reduces(next[i], job.stream[i], 2);
        }
    });
    EXPECT_GT(standin_live_memory(), alone);
    job.each([&](int r) {
        EXPECT_OK(ftcclCommDestroy(job.comm[static_cast<size_t>(r)]));
        job.comm[static_cast<size_t>(r)] = nullptr;
    });
    job.each([&](int r) {
        size_t i = static_cast<size_t>(r);
        if (r == 2)
            return;
        /* its last link may end a little later than its communicator */
        for (int round = 0; round < 100; round++) {
            ftcclComm_t child;
            EXPECT_OK(ftcclCommSplit(next[i], 0, r, &child, nullptr));
            EXPECT_OK(ftcclCommDestroy(child));
        }
    });
    job.each([&](int r) { /* not while one ends: what it leaves would stay until the next end */
                          if (r != 2)
                              reduces(next[static_cast<size_t>(r)],
                                      job.stream[static_cast<size_t>(r)], 2);
    });
    EXPECT_EQ(standin_live_memory(), alone);
    for (int r = 0; r < 2; r++)
        EXPECT_OK(ftcclCommDestroy(next[static_cast<size_t>(r)]));
    EXPECT_EQ(standin_live_memory(), 0);
}

/* Of the ranks' own memory, or of what the others have. */
TEST_P(GpuPinned, MayBeRefused)
{
    for (int after = 0; after < 8; after++) {
        standin_fail("cuMemHostRegister", CUDA_ERROR_OUT_OF_MEMORY, after);
        Job job(2, GetParam());
        job.each([&](int r) {
            reduces(job.comm[static_cast<size_t>(r)], job.stream[static_cast<size_t>(r)], 2);
        });
    }
    EXPECT_EQ(standin_live_memory(), 0);
}

} // namespace

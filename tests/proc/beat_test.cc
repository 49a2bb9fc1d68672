/*
 * Property: a rank that is stopped while nothing happens is suspected by its watchers, and no
 * longer when it goes on. A suspicion ends nothing; with a limit of silence it ends an operation.
 * No other rank is suspected, not even one that has no reason to send heartbeats any more. Method:
 * ranks as processes, SIGSTOP and SIGCONT, and what they write into their logs.
 */
#include <poll.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <memory>

#include "tests/proc/proc.h"

namespace
{

/* quiet ID NRANKS RANK: a few all-reduces, then one for each line that it is told. */
CHILD(quiet)
{
    int n = std::stoi(arguments[1]), rank = std::stoi(arguments[2]);
    ftcclComm_t comm;
    ftcclStream_t stream;
    if (ftcclStreamCreate(&stream) != ftcclSuccess)
        return 1;
    if (ftcclCommInitRank(&comm, n, proc::unhex(arguments[0]), rank) != ftcclSuccess)
        return 2;
    char word[8];
    do {
        float one = 1;
        ftcclResult_t result = ftcclAllReduce(&one, &one, 1, ftcclFloat, ftcclSum, comm, stream);
        if (result == ftcclSuccess)
            result = ftcclStreamSynchronize(stream);
        if (result == ftcclSuccess)
            printf("sum %g\n", static_cast<double>(one));
        else
            printf("%d %s\n", result, ftcclGetLastError(comm));
    } while (scanf("%7s", word) == 1 && word[0] == 'm');
    if (ftcclCommDestroy(comm) != ftcclSuccess)
        return 3;
    ftcclStreamDestroy(stream);
    return 0;
}

bool appears(const std::string &path, const std::string &what)
{
    for (double end = proc::now() + 30; proc::now() < end; poll(nullptr, 0, 10))
        if (proc::text_of(path).find(what) != std::string::npos)
            return true;
    return false;
}

class Beat : public testing::TestWithParam<const char *>
{
};

TEST_P(Beat, StoppedIsSuspectedAndHeardAgain)
{
    char folder[] = "/tmp/ftccl-beat-XXXXXX";
    ASSERT_NE(mkdtemp(folder), nullptr);
    const size_t n = 3, stopped = 1;
    ftcclUniqueId id;
    ASSERT_OK(ftcclGetUniqueId(&id));
    std::vector<std::unique_ptr<proc::Child>> rank;
    std::vector<std::string> log;
    for (size_t r = 0; r < n; r++) {
        log.push_back(std::string(folder) + "/" + std::to_string(r));
        std::map<std::string, std::string> env{{"FTCCL_TRANSPORTS", GetParam()},
                                               {"FTCCL_DEBUG", "TRACE"},
                                               {"FTCCL_DEBUG_FILE", log[r]},
                                               {"FTCCL_HEARTBEAT_MS", "50"}};
        rank.push_back(std::make_unique<proc::Child>(
            "quiet", std::vector<std::string>{proc::hex(id), std::to_string(n), std::to_string(r)},
            env));
    }
    for (auto &child : rank)
        EXPECT_EQ(child->line(), "sum 3");
    for (size_t r = 0; r < n; r++)
        EXPECT_TRUE(r == stopped || appears(log[r], "rank 1 is heard for the first time"))
            << "rank " << r;
    rank[stopped]->signal(SIGSTOP);
    double start = proc::now();
    for (size_t r = 0; r < n; r++)
        EXPECT_TRUE(r == stopped || appears(log[r], "rank 1 is suspected"))
            << "rank " << r << ":\n"
            << proc::text_of(log[r]);
    printf("%s: suspected by all after %.0f ms\n", GetParam(), (proc::now() - start) * 1e3);
    rank[stopped]->signal(SIGCONT);
    for (size_t r = 0; r < n; r++)
        EXPECT_TRUE(r == stopped || appears(log[r], "rank 1 is heard again"))
            << "rank " << r << ":\n"
            << proc::text_of(log[r]);
    for (auto &child : rank)
        child->tell("more");
    for (auto &child : rank)
        EXPECT_EQ(child->line(), "sum 3");
    for (auto &child : rank)
        child->tell("end");
    for (size_t r = 0; r < n; r++) {
        EXPECT_EQ(rank[r]->wait(), 0);
        EXPECT_EQ(proc::text_of(log[r]).find("rank 0 is suspected"), std::string::npos)
            << "rank " << r << ":\n"
            << proc::text_of(log[r]);
        EXPECT_EQ(proc::text_of(log[r]).find("rank 2 is suspected"), std::string::npos)
            << "rank " << r << ":\n"
            << proc::text_of(log[r]);
        unlink(log[r].c_str());
    }
    rmdir(folder);
}

/* Rank 0 does not watch rank 1, and is told. The deadline of the operation is a minute. Rank 1 is
 * stopped before it has sent a heartbeat, if the machine is not too busy. */
TEST_P(Beat, SilenceEndsAnOperation)
{
    const size_t n = 4, stopped = 1;
    ftcclUniqueId id;
    ASSERT_OK(ftcclGetUniqueId(&id));
    std::map<std::string, std::string> env{{"FTCCL_TRANSPORTS", GetParam()},
                                           {"FTCCL_HEARTBEAT_MS", "50"},
                                           {"FTCCL_SUSPECT_MS", "500"},
                                           {"FTCCL_SILENCE_MS", "1000"}};
    std::vector<std::unique_ptr<proc::Child>> rank;
    for (size_t r = 0; r < n; r++)
        rank.push_back(std::make_unique<proc::Child>(
            "quiet", std::vector<std::string>{proc::hex(id), std::to_string(n), std::to_string(r)},
            env));
    for (auto &child : rank)
        EXPECT_EQ(child->line(), "sum 4");
    rank[stopped]->signal(SIGSTOP);
    double start = proc::now();
    for (size_t r = 0; r < n; r++)
        if (r != stopped)
            rank[r]->tell("more");
    for (size_t r = 0; r < n; r++) {
        std::string line = r == stopped ? "" : rank[r]->line();
        EXPECT_TRUE(r == stopped ||
                    line.find("; rank 1 has sent no heartbeat for ") != std::string::npos)
            << "rank " << r << ": " << line;
    }
    EXPECT_LT(proc::now() - start, 30);
    printf("%s: told by all after %.0f ms\n", GetParam(), (proc::now() - start) * 1e3);
    rank[stopped]->signal(SIGCONT);
    for (auto &child : rank)
        child->tell("end");
    for (size_t r = 0; r < n; r++)
        EXPECT_EQ(rank[r]->wait(), 0) << "rank " << r;
}

INSTANTIATE_TEST_SUITE_P(All, Beat, testing::Values("shm", "tcp"),
                         [](const auto &p) { return std::string(p.param); });

/* leavers: five ranks in two communicators of opposite orders, of which the first is aborted: some
 * pairs share the second, but beat only by the first. */
CHILD(leavers)
{
    const int n = 5;
    std::vector<ftcclComm_t> other(n);
    {
        proc::World world(n);
        world.each([&](int r) {
            ftcclCommSplit(world.comm[static_cast<size_t>(r)], 0, n - r,
                           &other[static_cast<size_t>(r)], nullptr);
        });
        poll(nullptr, 0, 500);
        for (auto &comm : world.comm) {
            ftcclCommAbort(comm);
            comm = nullptr;
        }
    }
    poll(nullptr, 0, 2500);
    for (auto comm : other)
        ftcclCommDestroy(comm);
    printf("done\n");
    return 0;
}

TEST(BeatEnds, WithoutSuspicion)
{
    char log[] = "/tmp/ftccl-beat-XXXXXX";
    int fd = mkstemp(log);
    ASSERT_GE(fd, 0);
    close(fd);
    proc::Child child("leavers", {},
                      {{"FTCCL_DEBUG", "INFO"},
                       {"FTCCL_DEBUG_FILE", log},
                       {"FTCCL_HEARTBEAT_MS", "50"},
                       {"FTCCL_SUSPECT_MS", "1000"}});
    EXPECT_EQ(child.line(), "done");
    EXPECT_EQ(child.wait(), 0);
    EXPECT_NE(proc::text_of(log), "");
    EXPECT_EQ(proc::text_of(log).find("suspected"), std::string::npos) << proc::text_of(log);
    unlink(log);
}

} // namespace

/*
 * Property: between hosts, over each network transport, calls give right results; when a rank is
 * killed or stopped, or its host is cut off in both directions or in one, the others know, shrink,
 * and go on with right results. Method: processes in network namespaces reduce numbers, small and
 * large in turn; the last rank is the victim.
 */
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <unistd.h>

#include <memory>

#include "tests/campaign/net.h"
#include "tests/proc/proc.h"

namespace
{

constexpr int kRanks = 3, kCalls = 20;
constexpr size_t kLarge = 100000;

using Env = std::map<std::string, std::string>;

void say(const std::string &line)
{
    printf("%s\n", line.c_str());
    fflush(stdout);
}

/* So many calls, or until one fails; 0: for ever. Returns the status of the last one. */
ftcclResult_t reduce(ftcclComm_t comm, ftcclStream_t stream, int calls)
{
    int n = 0, rank = 0;
    std::vector<int64_t> data(kLarge);
    ftcclResult_t status = ftcclCommCount(comm, &n);
    ftcclCommUserRank(comm, &rank);
    for (int i = 0; status == ftcclSuccess && (calls == 0 || i < calls); i++) {
        size_t count = i % 2 ? kLarge : 1;
        for (size_t k = 0; k < count; k++)
            data[k] = rank + i + int64_t(k);
        status = ftcclAllReduce(data.data(), data.data(), count, ftcclInt64, ftcclSum, comm,
                                stream);
        if (status == ftcclSuccess)
            status = ftcclStreamSynchronize(stream);
        for (size_t k = 0; status == ftcclSuccess && k < count; k++)
            if (data[k] != n * (i + int64_t(k)) + n * (n - 1) / 2) {
                say("wrong results");
                _exit(3);
            }
        if (i + 1 == kCalls)
            say("works with " + std::to_string(n));
    }
    return status;
}

/* rank NAMESPACE RANK ID: "" of rank 0, which says it. */
CHILD(rank)
{
    ftcclComm_t comm, rest;
    ftcclStream_t stream;
    ftcclUniqueId id;
    int rank = std::stoi(arguments[1]);
    int ns = open(arguments[0].c_str(), O_RDONLY | O_CLOEXEC);
    if (setns(ns, CLONE_NEWNET) != 0 || ftcclStreamCreate(&stream) != ftcclSuccess)
        return 1;
    if (rank > 0)
        id = proc::unhex(arguments[2]);
    else if (ftcclGetUniqueId(&id) == ftcclSuccess)
        say(proc::hex(id));
    if (ftcclCommInitRank(&comm, kRanks, id, rank) != ftcclSuccess)
        return 1;
    reduce(comm, stream, 0);
    if (ftcclCommShrink(comm, nullptr, 0, &rest, nullptr, FTCCL_SHRINK_DEFAULT) != ftcclSuccess) {
        say(std::string("no shrink: ") + ftcclGetLastError(comm));
        return 2;
    }
    ftcclResult_t status = reduce(rest, stream, kCalls);
    if (status != ftcclSuccess)
        say(std::string("no call after the shrink: ") + ftcclGetLastError(rest));
    ftcclCommDestroy(rest);
    ftcclCommDestroy(comm);
    return status == ftcclSuccess ? 0 : 2;
}

class Hosts : public testing::TestWithParam<std::string>
{
  protected:
    campaign::Net net;
    std::vector<std::unique_ptr<proc::Child>> rank;

    void SetUp() override
    {
        if (!net.missing().empty())
            GTEST_SKIP() << net.missing();
        Env env = proc::over(GetParam());
        env.insert({{"FTCCL_SUSPECT_MS", "2000"},
                    {"FTCCL_SILENCE_MS", "2000"},
                    {"FTCCL_TELEMETRY", "0"}, /* others diagnose this machine meanwhile */
                    {"FTCCL_DEBUG", "NONE"}});
        std::string id;
        for (int r = 0; r < kRanks; r++) {
            env["FTCCL_HOSTID"] = "host-" + std::to_string(r);
            rank.push_back(std::make_unique<proc::Child>(
                "rank", std::vector<std::string>{net.path(r), std::to_string(r), id}, env));
            if (r == 0)
                id = rank[0]->line(60);
        }
        for (auto &child : rank)
            ASSERT_EQ(child->line(60), "works with 3");
    }
    void expect_the_others_go_on()
    {
        for (int r = 0; r + 1 < kRanks; r++) {
            EXPECT_EQ(rank[size_t(r)]->line(60), "works with 2") << "rank " << r;
            EXPECT_EQ(rank[size_t(r)]->wait(60), 0) << "rank " << r;
        }
    }
    proc::Child &victim()
    {
        return *rank.back();
    }
};

TEST_P(Hosts, ARankIsKilled)
{
    victim().signal(SIGKILL);
    expect_the_others_go_on();
}

TEST_P(Hosts, ARankIsStopped)
{
    victim().signal(SIGSTOP);
    expect_the_others_go_on();
    victim().signal(SIGKILL);
}

TEST_P(Hosts, AHostIsCutOff)
{
    net.cut(kRanks - 1);
    expect_the_others_go_on();
}

TEST_P(Hosts, AHostIsHeardNoLonger)
{
    net.half(kRanks - 1, false);
    expect_the_others_go_on();
}

TEST_P(Hosts, AHostHearsNothing)
{
    net.half(kRanks - 1, true);
    expect_the_others_go_on();
}

INSTANTIATE_TEST_SUITE_P(Over, Hosts, testing::ValuesIn(proc::networks()),
                         [](const auto &over) { return over.param; });

} // namespace

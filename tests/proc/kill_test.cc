/*
 * Property: if a process dies in the middle of an AllReduce, every other rank gets a recoverable
 * error quickly and can make a new communicator with the rest, and only the dead rank's telemetry
 * stays in /dev/shm. If a process is stopped, the operation's deadline ends the call. Method: ranks
 * as processes that report on a pipe; SIGKILL and SIGSTOP when all of them are in the loop.
 */
#include <signal.h>
#include <unistd.h>

#include <cstdlib>
#include <memory>
#include <regex>
#include <sstream>

#include "tests/proc/proc.h"

namespace
{

/* loop ID NRANKS RANK COUNT: reduces until it fails; then joins the id that it is told, as the rank
 * it is told. */
CHILD(loop)
{
    int n = std::stoi(arguments[1]), rank = std::stoi(arguments[2]);
    std::vector<float, proc::Lendable<float>> data(std::stoul(arguments[3]));
    ftcclComm_t comm;
    ftcclStream_t stream;
    if (ftcclStreamCreate(&stream) != ftcclSuccess)
        return 1;
    if (ftcclCommInitRank(&comm, n, proc::unhex(arguments[0]), rank) != ftcclSuccess) {
        printf("init %s\n", ftcclGetLastError(nullptr));
        return 1;
    }
    ftcclResult_t result = ftcclSuccess;
    for (int i = 0; result == ftcclSuccess; i++) {
        result = ftcclAllReduce(data.data(), data.data(), data.size(), ftcclFloat, ftcclSum, comm,
                                stream);
        if (result == ftcclSuccess)
            result = ftcclStreamSynchronize(stream);
        if (i == 5)
            printf("running\n");
    }
    printf("%d %s\n", result, ftcclGetLastError(comm));
    ftcclResult_t state = ftcclSuccess;
    ftcclCommGetAsyncError(comm, &state);
    if (state != result)
        printf("but the communicator says %d\n", state);
    char id[1024];
    int place, left;
    if (scanf("%1000s %d %d", id, &left, &place) != 3)
        return 3;
    ftcclCommAbort(comm);
    if (ftcclCommInitRank(&comm, left, proc::unhex(id), place) != ftcclSuccess)
        return 4;
    float one = 1;
    result = ftcclAllReduce(&one, &one, 1, ftcclFloat, ftcclSum, comm, stream);
    if (result == ftcclSuccess)
        result = ftcclStreamSynchronize(stream);
    if (result != ftcclSuccess)
        fprintf(stderr, "rank %d of the new communicator: %s\n", place, ftcclGetLastError(comm));
    printf("again %g\n", static_cast<double>(one));
    if (result != ftcclSuccess || ftcclCommDestroy(comm) != ftcclSuccess)
        return 5;
    ftcclStreamDestroy(stream);
    return 0;
}

struct Job {
    std::vector<std::unique_ptr<proc::Child>> rank;
    Job(int n, size_t count, const std::map<std::string, std::string> &env)
    {
        ftcclUniqueId id;
        EXPECT_OK(ftcclGetUniqueId(&id));
        for (int r = 0; r < n; r++) {
            rank.push_back(std::make_unique<proc::Child>(
                "loop",
                std::vector<std::string>{proc::hex(id), std::to_string(n), std::to_string(r),
                                         std::to_string(count)},
                env));
        }
        for (auto &child : rank)
            EXPECT_EQ(child->line(), "running");
    }
};

/* The survivors' results after `number` was sent to rank `victim`; returns the slowest's
 * seconds. */
double hit(Job &job, int victim, int number, ftcclResult_t want)
{
    double start = proc::now(), slowest = 0;
    job.rank[static_cast<size_t>(victim)]->signal(number);
    for (size_t r = 0; r < job.rank.size(); r++) {
        if (static_cast<int>(r) == victim)
            continue;
        std::string line = job.rank[r]->line(20);
        slowest = std::max(slowest, proc::now() - start);
        EXPECT_EQ(line.substr(0, line.find(' ')), std::to_string(want))
            << "rank " << r << ": " << line;
        EXPECT_GT(line.size(), 10u) << "no sentence";
    }
    return slowest;
}

/* The telemetry of a rank says that the communicator failed, and that the victim is gone. */
void expect_events(pid_t pid, int victim)
{
    int status;
    std::string text = proc::output_of("./tools/ftccl-info --pid " + std::to_string(pid), &status);
    EXPECT_EQ(status, 0) << text;
    std::regex dead("ago: rank " + std::to_string(victim) +
                    " \\(engine [0-9a-f]+\\): .* -> (dead|lost)"),
        failed("ago: communicator [0-9a-f]+: (open|asking) -> failed \\(");
    EXPECT_TRUE(std::regex_search(text, dead)) << text;
    EXPECT_TRUE(std::regex_search(text, failed)) << text;
}

/* The survivors make a communicator among themselves and end in order. */
void go_on(Job &job, int victim)
{
    ftcclUniqueId id;
    ASSERT_OK(ftcclGetUniqueId(&id));
    int left = static_cast<int>(job.rank.size()) - 1, place = 0;
    for (size_t r = 0; r < job.rank.size(); r++) {
        if (static_cast<int>(r) == victim)
            continue;
        std::ostringstream words;
        words << proc::hex(id) << " " << left << " " << place++;
        job.rank[r]->tell(words.str());
    }
    for (size_t r = 0; r < job.rank.size(); r++) {
        if (static_cast<int>(r) == victim)
            continue;
        EXPECT_EQ(job.rank[r]->line(), "again " + std::to_string(left)) << "rank " << r;
        EXPECT_EQ(job.rank[r]->wait(), 0) << "rank " << r;
        EXPECT_EQ(proc::shm_of(job.rank[r]->pid()), std::vector<std::string>{})
            << "left by rank " << r;
    }
}

struct Way {
    const char *name, *transports;
    size_t count;
    double bound; /* seconds; promised are 0.1 on an idle machine */
};

class Kill : public testing::TestWithParam<Way>
{
};

TEST_P(Kill, OneOfFour)
{
    for (int victim : {0, 2}) {
        Job job(4, GetParam().count, proc::over(GetParam().transports));
        if (HasFailure())
            return;
        double seconds = hit(job, victim, SIGKILL, ftcclRemoteError);
        printf("rank %d killed: known everywhere after %.1f ms\n", victim, seconds * 1e3);
        EXPECT_LT(seconds, GetParam().bound);
        EXPECT_EQ(job.rank[static_cast<size_t>(victim)]->wait(), 128 + SIGKILL);
        EXPECT_LE(proc::shm_of(job.rank[static_cast<size_t>(victim)]->pid()).size(), 1u)
            << "more than its telemetry";
        expect_events(job.rank[1]->pid(), victim);
        go_on(job, victim);
    }
}

INSTANTIATE_TEST_SUITE_P(All, Kill,
                         testing::Values(Way{"SharedMemorySmall", "shm", 1, 1},
                                         Way{"SharedMemoryLarge", "shm", 1 << 22, 1},
                                         Way{"TcpSmall", "tcp", 1, 1},
                                         Way{"TcpLarge", "tcp", 1 << 22, 1},
                                         Way{"PluginSmall", "net", 1, 1},
                                         Way{"PluginLarge", "net", 1 << 22, 1}),
                         [](const auto &p) { return p.param.name; });
#ifdef FT_HAVE_LIBFABRIC
INSTANTIATE_TEST_SUITE_P(Ofi, Kill,
                         testing::Values(Way{"OfiSmall", "ofi", 1, 1},
                                         Way{"OfiLarge", "ofi", 1 << 22, 1}),
                         [](const auto &p) { return p.param.name; });
#endif

TEST(KillWhileIdle, TheNextOperationFails)
{
    proc::World world(1); /* this process uses the library too */
    Job job(3, 1, {});
    job.rank[1]->signal(SIGKILL);
    job.rank[2]->signal(SIGKILL); /* two at once */
    std::string line = job.rank[0]->line(20);
    EXPECT_EQ(line.substr(0, line.find(' ')), std::to_string(ftcclRemoteError)) << line;
    EXPECT_TRUE(world.works());
}

static void stop_one(std::map<std::string, std::string> env)
{
    env["FTCCL_OP_TIMEOUT_MS"] = "800";
    Job job(3, 1 << 16, env);
    if (testing::Test::HasFailure())
        return;
    double seconds = hit(job, 1, SIGSTOP, ftcclTimeout);
    EXPECT_GT(seconds, 0.5);
    EXPECT_LT(seconds, 5);
    job.rank[1]->signal(SIGKILL);
    job.rank[1]->wait();
    go_on(job, 1);
}

TEST(Stopped, ProcessEndsInTheDeadline)
{
    stop_one({});
}

class StoppedOver : public testing::TestWithParam<std::string>
{
};
TEST_P(StoppedOver, ProcessEndsInTheDeadline)
{
    stop_one(proc::over(GetParam()));
}
INSTANTIATE_TEST_SUITE_P(Networks, StoppedOver, testing::ValuesIn(proc::networks()),
                         [](const auto &p) { return p.param; });

CHILD(lonely)
{
    ftcclComm_t comm;
    printf("up\n");
    ftcclResult_t result = ftcclCommInitRank(&comm, std::stoi(arguments[1]),
                                             proc::unhex(arguments[0]), std::stoi(arguments[2]));
    printf("%d %s\n", result, ftcclGetLastError(nullptr));
    return 0;
}

TEST(KillDuringInit, EndsInTheBound)
{
    ftcclUniqueId id;
    ASSERT_OK(ftcclGetUniqueId(&id));
    std::map<std::string, std::string> env{{"FTCCL_INIT_TIMEOUT_MS", "1000"}};
    proc::Child stays("lonely", {proc::hex(id), "3", "0"}, env),
        dies("lonely", {proc::hex(id), "3", "1"}, env);
    EXPECT_EQ(stays.line(), "up");
    EXPECT_EQ(dies.line(), "up");
    dies.signal(SIGKILL);
    double start = proc::now();
    std::string line = stays.line(20);
    EXPECT_LT(proc::now() - start, 4);
    auto code = static_cast<ftcclResult_t>(atoi(line.c_str()));
    EXPECT_EQ(ftcclGetErrorClass(code), ftcclClassRecoverable) << line;
    EXPECT_EQ(stays.wait(), 0);
}

} // namespace

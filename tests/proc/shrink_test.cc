/*
 * Property: after a failure the live ranks agree on which ranks failed and on the last complete
 * operation, and shrink to a communicator that works. They keep their other communicators and their
 * links. A rank that was left out is told so. Method: ranks as threads that abort or stay away;
 * ranks as processes that are killed or stopped.
 */
#include <signal.h>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <map>
#include <memory>
#include <set>
#include <sstream>
#include <thread>

#include "tests/proc/proc.h"

namespace
{

using proc::World;

void usual(ftcclConfig_t &)
{
} /* who comes a little late on a busy machine is waited for */

void impatient(ftcclConfig_t &config)
{
    static ftcclOptions_t options = [] {
        ftcclOptions_t few = FTCCL_OPTIONS_INITIALIZER;
        few.initTimeoutMs = few.opTimeoutMs = 3000;
        return few;
    }();
    config.options = &options;
}

/* The sum of the ranks plus 1; -1: an error. */
int sum_of(ftcclComm_t comm, ftcclStream_t stream)
{
    int rank = -1, value = 0;
    if (ftcclCommUserRank(comm, &rank) != ftcclSuccess)
        return -1;
    value = rank + 1;
    if (ftcclAllReduce(&value, &value, 1, ftcclInt, ftcclSum, comm, stream) != ftcclSuccess)
        return -1;
    return proc::finish(stream) == ftcclSuccess ? value : -1;
}

std::vector<int> failed_of(ftcclComm_t comm)
{
    int count = 0;
    EXPECT_OK(ftcclCommGetFailedRanks(comm, nullptr, 0, &count));
    std::vector<int> ranks(static_cast<size_t>(count));
    EXPECT_OK(ftcclCommGetFailedRanks(comm, ranks.data(), count, &count));
    return ranks;
}

TEST(Shrink, GoesOnWithoutTheOneThatLeft)
{
    World world(5, usual);
    std::vector<uint64_t> agreed(5);
    proc::Meeting all(5);
    world.each([&](int r) {
        size_t i = static_cast<size_t>(r);
        for (int k = 0; k < 3; k++)
            EXPECT_EQ(sum_of(world.comm[i], world.stream[i]), 15);
        all.wait();
        if (r == 2) {
            EXPECT_OK(ftcclCommAbort(world.comm[i]));
            world.comm[i] = nullptr;
            return;
        }
        EXPECT_EQ(sum_of(world.comm[i], world.stream[i]), -1);
        ftcclComm_t child = nullptr;
        ASSERT_OK(
            ftcclCommShrink(world.comm[i], nullptr, 0, &child, nullptr, FTCCL_SHRINK_DEFAULT));
        EXPECT_EQ(failed_of(world.comm[i]), std::vector<int>{2});
        EXPECT_OK(ftcclCommGetLastAgreedOp(world.comm[i], &agreed[i]));
        int n = 0, rank = -1;
        EXPECT_OK(ftcclCommCount(child, &n));
        EXPECT_OK(ftcclCommUserRank(child, &rank));
        EXPECT_EQ(n, 4);
        EXPECT_EQ(rank, r < 2 ? r : r - 1);
        EXPECT_EQ(sum_of(child, world.stream[i]), 10);
        EXPECT_OK(ftcclCommDestroy(child));
    });
    for (size_t i : {0u, 1u, 3u, 4u})
        EXPECT_EQ(agreed[i], 3u) << "rank " << i;
}

TEST(Shrink, ListsAreUnited)
{
    World world(5, usual);
    world.each([&](int r) {
        size_t i = static_cast<size_t>(r);
        int list[] = {r == 0 ? 1 : 3};
        ftcclComm_t child = nullptr;
        ftcclResult_t result = ftcclCommShrink(world.comm[i], list, r == 0 || r == 4 ? 1 : 0,
                                               &child, nullptr, FTCCL_SHRINK_DEFAULT);
        if (r == 1 || r == 3) {
            EXPECT_CALLER(result);
            EXPECT_EQ(child, nullptr);
            return;
        }
        ASSERT_OK(result);
        EXPECT_EQ(sum_of(child, world.stream[i]), 6);
        EXPECT_TRUE(failed_of(world.comm[i]).empty()) << "left out is not dead";
        EXPECT_OK(ftcclCommDestroy(child));
    });
    EXPECT_TRUE(world.works()) << "the parent of a voluntary shrink goes on";
}

/* Listed ranks are not waited for: either all lists are in before the decision, and nobody is left
 * out, or those that are not on one of the first go on. */
TEST(Shrink, NobodyIsLeftOutWhenAllWouldBe)
{
    World world(3, usual);
    ftcclComm_t child[3] = {};
    world.each([&](int r) {
        size_t i = static_cast<size_t>(r);
        int list[] = {(r + 1) % 3};
        ftcclResult_t result = ftcclCommShrink(world.comm[i], list, 1, &child[i], nullptr,
                                               FTCCL_SHRINK_DEFAULT);
        EXPECT_EQ(result == ftcclSuccess, child[i] != nullptr);
        if (result != ftcclSuccess) {
            EXPECT_EQ(ftcclGetErrorClass(result), ftcclClassCaller) << ftcclGetErrorString(result);
        }
    });
    int have = 0;
    for (ftcclComm_t each : child)
        have += each != nullptr;
    for (ftcclComm_t each : child) {
        int n = 0;
        if (!each)
            continue;
        EXPECT_OK(ftcclCommCount(each, &n));
        EXPECT_EQ(n, have);
        EXPECT_OK(ftcclCommDestroy(each));
    }
    if (have == 0) {
        EXPECT_TRUE(world.works());
    }
}

TEST(Shrink, OfEightToTwoByTheSameList)
{
    World world(8, usual);
    world.each([&](int r) {
        size_t i = static_cast<size_t>(r);
        int list[] = {0, 1, 2, 4, 5, 7};
        if (r != 3 && r != 6)
            return;
        ftcclComm_t child = nullptr;
        ASSERT_OK(ftcclCommShrink(world.comm[i], list, 6, &child, nullptr, FTCCL_SHRINK_DEFAULT));
        EXPECT_EQ(sum_of(child, world.stream[i]), 3);
        EXPECT_TRUE(failed_of(world.comm[i]).empty()) << "left out is not dead";
        EXPECT_OK(ftcclCommDestroy(child));
    });
    EXPECT_TRUE(world.works());
}

TEST(Shrink, KeysOrderTheRanks)
{
    World world(4, usual);
    world.each([&](int r) {
        size_t i = static_cast<size_t>(r);
        ftcclConfig_t config = FTCCL_CONFIG_INITIALIZER;
        ftcclOptions_t options = FTCCL_OPTIONS_INITIALIZER;
        options.rankKey = r == 0 ? 7 : -r;
        config.options = &options;
        int list[] = {2}, rank = -1;
        if (r == 2)
            return;
        ftcclComm_t child = nullptr;
        ASSERT_OK(ftcclCommShrink(world.comm[i], list, 1, &child, &config, FTCCL_SHRINK_DEFAULT));
        EXPECT_OK(ftcclCommUserRank(child, &rank));
        EXPECT_EQ(rank, r == 3 ? 0 : r == 1 ? 1 : 2);
        EXPECT_EQ(sum_of(child, world.stream[i]), 6);
        EXPECT_OK(ftcclCommDestroy(child));
    });
}

TEST(Shrink, AgainAndAgainDownToOne)
{
    World world(4, usual);
    std::vector<ftcclComm_t> comm = world.comm;
    world.each([&](int r) {
        size_t i = static_cast<size_t>(r);
        for (int n = 4; n > 1 && r < n; n--) {
            int list[] = {n - 1};
            if (r == n - 1)
                break;
            ftcclComm_t child = nullptr;
            ASSERT_OK(ftcclCommShrink(comm[i], list, 1, &child, nullptr, FTCCL_SHRINK_DEFAULT));
            EXPECT_EQ(sum_of(child, world.stream[i]), (n - 1) * n / 2);
            if (comm[i] != world.comm[i]) {
                EXPECT_OK(ftcclCommDestroy(comm[i]));
            }
            comm[i] = child;
        }
    });
    for (size_t i = 0; i < 4; i++) {
        if (comm[i] == world.comm[i])
            continue;
        EXPECT_OK(ftcclCommDestroy(comm[i]));
    }
}

TEST(Shrink, LeavesOutWhoLivesButDoesNotCome)
{
    World world(4, impatient);
    world.each([&](int r) {
        size_t i = static_cast<size_t>(r);
        if (r == 1)
            return;
        ftcclComm_t child = nullptr;
        ASSERT_OK(
            ftcclCommShrink(world.comm[i], nullptr, 0, &child, nullptr, FTCCL_SHRINK_DEFAULT));
        EXPECT_EQ(failed_of(world.comm[i]), std::vector<int>{1});
        EXPECT_EQ(sum_of(child, world.stream[i]), 6);
        EXPECT_OK(ftcclCommDestroy(child));
    });
    ftcclComm_t child = nullptr;
    EXPECT_CALLER(ftcclCommShrink(world.comm[1], nullptr, 0, &child, nullptr, FTCCL_SHRINK_DEFAULT))
        << "it is fenced";
    EXPECT_EQ(child, nullptr);
    EXPECT_NE(std::string(ftcclGetLastError(world.comm[1])).find("rank 1"), std::string::npos)
        << ftcclGetLastError(world.comm[1]);
}

TEST(Shrink, OtherCommunicatorsGoOn)
{
    World world(4, usual);
    std::vector<ftcclComm_t> half(4);
    world.each([&](int r) {
        size_t i = static_cast<size_t>(r);
        EXPECT_OK(ftcclCommSplit(world.comm[i], r / 2, r, &half[i], nullptr));
        EXPECT_EQ(sum_of(half[i], world.stream[i]), 3);
    });
    world.each([&](int r) {
        size_t i = static_cast<size_t>(r);
        if (r == 3) {
            EXPECT_OK(ftcclCommAbort(half[i]));
            EXPECT_OK(ftcclCommAbort(world.comm[i]));
            world.comm[i] = nullptr;
            return;
        }
        for (int k = 0; r < 2 && k < 100; k++)
            EXPECT_EQ(sum_of(half[i], world.stream[i]), 3);
        ftcclComm_t child = nullptr;
        ASSERT_OK(ftcclCommShrink(world.comm[i], nullptr, 0, &child, nullptr, FTCCL_SHRINK_ABORT));
        EXPECT_EQ(sum_of(child, world.stream[i]), 6);
        EXPECT_EQ(sum_of(half[i], world.stream[i]), r < 2 ? 3 : -1)
            << "only the half of rank 3 is hit";
        EXPECT_OK(ftcclCommDestroy(child));
        EXPECT_OK(ftcclCommDestroy(half[i]));
    });
}

/* Who destroyed its end of one communicator is dead there, and alive in the others. */
TEST(Shrink, WhoLeftOneCommunicatorStaysInTheOthers)
{
    World world(4, usual);
    std::vector<ftcclComm_t> child(4);
    std::atomic<int> left{0};
    world.each([&](int r) {
        size_t i = static_cast<size_t>(r);
        EXPECT_OK(ftcclCommSplit(world.comm[i], 0, r, &child[i], nullptr));
        EXPECT_EQ(sum_of(child[i], world.stream[i]), 10);
        if (r == 3) {
            EXPECT_OK(ftcclCommDestroy(child[i]));
            left++;
        } else {
            while (left == 0)
                std::this_thread::yield();
            ftcclComm_t less = nullptr;
            ASSERT_OK(ftcclCommShrink(child[i], nullptr, 0, &less, nullptr, FTCCL_SHRINK_DEFAULT));
            EXPECT_EQ(sum_of(less, world.stream[i]), 6);
            EXPECT_OK(ftcclCommDestroy(less));
            EXPECT_OK(ftcclCommDestroy(child[i]));
        }
        for (int k = 0; k < 20; k++)
            EXPECT_EQ(sum_of(world.comm[i], world.stream[i]), 10)
                << ftcclGetLastError(world.comm[i]);
    });
    EXPECT_TRUE(world.works());
}

TEST(Agree, FlagsAreCombined)
{
    World world(5, usual);
    world.each([&](int r) {
        size_t i = static_cast<size_t>(r);
        for (uint64_t round = 0; round < 20; round++) {
            uint64_t flags = ~(uint64_t{1} << r) << round;
            EXPECT_OK(ftcclCommAgree(world.comm[i], &flags));
            EXPECT_EQ(flags, (~uint64_t{31}) << round);
        }
    });
    EXPECT_TRUE(world.works());
}

/* Ranks that learn of a failure at different times call different things: all learn who called
 * what, and go on by the same call. */
TEST(Agree, DifferentCallsComeToNothingAndAreNamed)
{
    World world(4, usual);
    world.each([&](int r) {
        size_t i = static_cast<size_t>(r);
        uint64_t flags = 1;
        ftcclComm_t child = nullptr;
        ftcclResult_t result = r == 1 ? ftcclCommShrink(world.comm[i], nullptr, 0, &child, nullptr,
                                                        FTCCL_SHRINK_DEFAULT)
                               : r == 2
                                   ? ftcclCommGrow(world.comm[i], 5, nullptr, -1, &child, nullptr)
                                   : ftcclCommAgree(world.comm[i], &flags);
        EXPECT_EQ(result, ftcclRemoteError) << "rank " << r;
        EXPECT_EQ(ftcclGetErrorClass(result), ftcclClassRecoverable);
        std::string why = ftcclGetLastError(world.comm[i]);
        EXPECT_NE(why.find("Agree on rank 0, 3; Shrink on rank 1; Grow on rank 2"),
                  std::string::npos)
            << why;
        EXPECT_EQ(child, nullptr);
        EXPECT_OK(ftcclCommAgree(world.comm[i], &flags)) << "rank " << r;
    });
    EXPECT_TRUE(world.works()) << "the communicator is as before";
    EXPECT_OK(ftcclCommAbort(world.comm[3]));
    world.comm[3] = nullptr;
    world.each([&](int r) {
        size_t i = static_cast<size_t>(r);
        ftcclComm_t child = nullptr;
        if (r == 3)
            return;
        ASSERT_OK(
            ftcclCommShrink(world.comm[i], nullptr, 0, &child, nullptr, FTCCL_SHRINK_DEFAULT));
        EXPECT_EQ(sum_of(child, world.stream[i]), 6);
        EXPECT_OK(ftcclCommDestroy(child));
    });
}

TEST(Agree, ManyTimesLeaksNothing)
{
    World world(2, usual);
    auto agree = [&](int times) {
        world.each([&](int r) {
            uint64_t flags = 1;
            for (int k = 0; k < times; k++)
                ASSERT_OK(ftcclCommAgree(world.comm[static_cast<size_t>(r)], &flags));
        });
    };
    agree(100);
    long before = proc::resident_kib();
    agree(1000);
    long more = proc::resident_kib() - before;
    printf("%ld KiB more after 1000 agreements\n", more);
/* their shadow and quarantine grow with every allocation */
#if !defined(__SANITIZE_THREAD__) && !defined(__SANITIZE_ADDRESS__)
    EXPECT_LT(more, 4096);
#endif
}

TEST(Agree, ALaterCallClearsTheErrorOfANonBlockingOne)
{
    ftcclUniqueId id;
    ASSERT_OK(ftcclGetUniqueId(&id));
    proc::in_threads(2, [&](int r) {
        ftcclConfig_t config = FTCCL_CONFIG_INITIALIZER;
        config.blocking = 0;
        ftcclComm_t comm = nullptr, child = nullptr;
        auto outcome = [&] {
            ftcclResult_t result = ftcclInProgress;
            while (result == ftcclInProgress) {
                EXPECT_OK(ftcclCommGetAsyncError(comm, &result));
                std::this_thread::yield();
            }
            return result;
        };
        EXPECT_EQ(ftcclCommInitRankConfig(&comm, 2, id, r, &config), ftcclInProgress);
        EXPECT_EQ(outcome(), ftcclSuccess);
        EXPECT_EQ(ftcclCommGrow(comm, 3, nullptr, -1, &child, nullptr), ftcclInProgress);
        EXPECT_NE(outcome(), ftcclSuccess) << "nobody gave an id";
        EXPECT_EQ(ftcclCommShrink(comm, nullptr, 0, &child, nullptr, FTCCL_SHRINK_DEFAULT),
                  ftcclInProgress);
        EXPECT_EQ(outcome(), ftcclSuccess);
        EXPECT_NE(child, nullptr);
        EXPECT_OK(ftcclCommDestroy(child));
        EXPECT_OK(ftcclCommDestroy(comm));
    });
}

TEST(Revoke, EndsWhatIsPendingEverywhere)
{
    World world(3, usual);
    std::atomic<int> pending{0};
    world.each([&](int r) {
        size_t i = static_cast<size_t>(r);
        int in = 1, out = 0, skipped = 0;
        if (r != 0) { /* rank 0 never comes */
            EXPECT_OK(
                ftcclAllReduce(&in, &out, 1, ftcclInt, ftcclSum, world.comm[i], world.stream[i]));
            EXPECT_OK(ftcclAllReduce(&in, &skipped, 1, ftcclInt, ftcclSum, world.comm[i],
                                     world.stream[i]));
            pending++;
        }
        while (r == 0 && pending < 2)
            std::this_thread::yield();
        ftcclResult_t result = r == 0 ? ftcclCommRevoke(world.comm[i], FTCCL_REVOKE_DEFAULT)
                                      : proc::finish(world.stream[i]);
        EXPECT_EQ(result, r == 0 ? ftcclSuccess : ftcclRemoteError)
            << ftcclGetLastError(world.comm[i]);
        EXPECT_NE(sum_of(world.comm[i], world.stream[i]), 6);
        uint64_t flags = 5;
        EXPECT_OK(ftcclCommAgree(world.comm[i], &flags));
        ftcclComm_t child = nullptr;
        ASSERT_OK(
            ftcclCommShrink(world.comm[i], nullptr, 0, &child, nullptr, FTCCL_SHRINK_DEFAULT));
        EXPECT_EQ(sum_of(child, world.stream[i]), 6);
        EXPECT_OK(ftcclCommDestroy(child));
    });
}

/* ---- processes ------------------------------------------------------------------------------- */

/* rank ID NRANKS RANK: reduces until it fails, shrinks, reduces again, until it is alone. */
CHILD(rank)
{
    int n = std::stoi(arguments[1]), rank = std::stoi(arguments[2]);
    ftcclComm_t comm;
    ftcclStream_t stream;
    if (ftcclStreamCreate(&stream) != ftcclSuccess ||
        ftcclCommInitRank(&comm, n, proc::unhex(arguments[0]), rank) != ftcclSuccess)
        return 1;
    std::vector<int> data(50000);
    while (n > 1) {
        ftcclResult_t result = ftcclSuccess;
        for (int i = 0; result == ftcclSuccess; i++) {
            std::fill(data.begin(), data.end(), 1);
            result = ftcclAllReduce(data.data(), data.data(), data.size(), ftcclInt, ftcclSum, comm,
                                    stream);
            if (result == ftcclSuccess)
                result = ftcclStreamSynchronize(stream);
            if (result == ftcclSuccess && std::count(data.begin(), data.end(), n) != 50000)
                printf("wrong\n");
            if (i == 5)
                printf("running\n");
        }
        if (ftcclGetErrorClass(result) != ftcclClassRecoverable)
            printf("class of %d: %s\n", result, ftcclGetLastError(comm));
        ftcclComm_t child;
        result = ftcclCommShrink(comm, nullptr, 0, &child, nullptr, FTCCL_SHRINK_DEFAULT);
        if (result != ftcclSuccess) {
            printf("shrink %d %s\n", result, ftcclGetLastError(comm));
            return 2;
        }
        std::ostringstream failed;
        for (int r : failed_of(comm))
            failed << ' ' << r;
        ftcclCommDestroy(comm);
        comm = child;
        ftcclCommCount(comm, &n);
        printf("now %d without%s\n", n, failed.str().c_str());
    }
    printf("alone\n");
    ftcclCommDestroy(comm);
    ftcclStreamDestroy(stream);
    return 0;
}

struct Job {
    std::vector<std::unique_ptr<proc::Child>> rank;
    explicit Job(int n, const std::map<std::string, std::string> &env = {})
    {
        ftcclUniqueId id;
        EXPECT_OK(ftcclGetUniqueId(&id));
        for (int r = 0; r < n; r++)
            rank.push_back(std::make_unique<proc::Child>(
                "rank",
                std::vector<std::string>{proc::hex(id), std::to_string(n), std::to_string(r)},
                env));
        running(rank);
    }
    static void running(const std::vector<std::unique_ptr<proc::Child>> &ranks)
    {
        for (auto &child : ranks)
            EXPECT_EQ(child->line(), "running");
    }
};

void kill_one_by_one(const std::map<std::string, std::string> &env)
{
    Job job(5, env);
    while (job.rank.size() > 1) {
        size_t victim = job.rank.size() / 2, n = job.rank.size();
        double start = proc::now();
        job.rank[victim]->signal(SIGKILL);
        job.rank.erase(job.rank.begin() + static_cast<long>(victim));
        for (auto &child : job.rank)
            EXPECT_EQ(child->line(),
                      "now " + std::to_string(n - 1) + " without " + std::to_string(victim));
        printf("%zu ranks: killed one, shrunk after %.1f ms\n", n, 1e3 * (proc::now() - start));
        if (job.rank.size() > 1)
            Job::running(job.rank);
    }
    EXPECT_EQ(job.rank[0]->line(), "alone");
    EXPECT_EQ(job.rank[0]->wait(), 0);
}

TEST(Shrink, SurvivesKillsOverSharedMemory)
{
    kill_one_by_one(proc::over("shm"));
}

class ShrinkOver : public testing::TestWithParam<std::string>
{
};
INSTANTIATE_TEST_SUITE_P(Networks, ShrinkOver, testing::ValuesIn(proc::networks()),
                         [](const auto &over) { return over.param; });

TEST_P(ShrinkOver, SurvivesKills)
{
    kill_one_by_one(proc::over(GetParam()));
}

/* What the sockets of this process are called, by their inodes. */
std::set<std::string> sockets()
{
    std::set<std::string> names;
    for (const auto &entry : std::filesystem::directory_iterator("/proc/self/fd")) {
        std::error_code gone;
        std::string name = std::filesystem::read_symlink(entry.path(), gone).string();
        if (name.rfind("socket:", 0) == 0)
            names.insert(name);
    }
    return names;
}

/* Every rank sends to every other one. */
bool exchange(ftcclComm_t comm, ftcclStream_t stream)
{
    int in[4] = {1, 2, 3, 4}, out[4] = {};
    return ftcclAlltoAll(in, out, 1, ftcclInt, comm, stream) == ftcclSuccess &&
           proc::finish(stream) == ftcclSuccess;
}

/* links ID NRANKS RANK: exchanges until it fails, shrinks, exchanges on, and says how many sockets
 * of before are still there. */
CHILD(links)
{
    int n = std::stoi(arguments[1]), rank = std::stoi(arguments[2]);
    ftcclComm_t comm, child;
    ftcclStream_t stream;
    if (ftcclStreamCreate(&stream) != ftcclSuccess ||
        ftcclCommInitRank(&comm, n, proc::unhex(arguments[0]), rank) != ftcclSuccess)
        return 1;
    std::set<std::string> before;
    for (int i = 0; exchange(comm, stream); i++) {
        if (i != 200)
            continue;
        before = sockets();
        printf("running\n");
    }
    if (ftcclCommShrink(comm, nullptr, 0, &child, nullptr, FTCCL_SHRINK_DEFAULT) != ftcclSuccess)
        return 2;
    for (int i = 0; i < 200; i++)
        if (!exchange(child, stream))
            return 3;
    size_t kept = 0;
    std::set<std::string> after = sockets();
    for (const auto &name : before)
        kept += after.count(name);
    printf("kept %zu of %zu, now %zu\n", kept, before.size(), after.size());
    (void)getchar(); /* who leaves takes its sockets from those that still count */
    ftcclCommDestroy(comm);
    ftcclCommDestroy(child);
    ftcclStreamDestroy(stream);
    return 0;
}

/* Each rank has two connections to and two from each other one, by the algorithm that uses them
 * all. */
TEST(Shrink, LinksBetweenSurvivorsAreKept)
{
    ftcclUniqueId id;
    EXPECT_OK(ftcclGetUniqueId(&id));
    std::vector<std::unique_ptr<proc::Child>> rank;
    /* The responder has sockets, too, and another rank takes it over when one dies. */
    std::map<std::string, std::string> env{{"FTCCL_TRANSPORTS", "tcp"},
                                           {"FTCCL_TCP_CONNECTIONS", "2"},
                                           {"FTCCL_ALGO", "direct"},
                                           {"FTCCL_RAS_ENABLE", "0"}};
    for (int r = 0; r < 4; r++)
        rank.push_back(std::make_unique<proc::Child>(
            "links", std::vector<std::string>{proc::hex(id), "4", std::to_string(r)}, env));
    Job::running(rank);
    rank[1]->signal(SIGKILL);
    for (size_t r : {0u, 2u, 3u}) {
        int kept = 0, all = 0, now = 0;
        std::string line = rank[r]->line();
        ASSERT_EQ(sscanf(line.c_str(), "kept %d of %d, now %d", &kept, &all, &now), 3) << line;
        EXPECT_EQ(kept, all - 4) << "rank " << r
                                 << " lost more than the sockets to and from the dead one";
        EXPECT_EQ(now, kept) << "rank " << r << " made new ones";
        EXPECT_GE(kept, 8);
    }
    for (size_t r : {0u, 2u, 3u})
        rank[r]->tell("end");
    for (size_t r : {0u, 2u, 3u})
        EXPECT_EQ(rank[r]->wait(), 0);
}

void kill_two(const std::map<std::string, std::string> &env)
{
    Job job(6, env);
    job.rank[1]->signal(SIGKILL);
    job.rank[4]->signal(SIGKILL);
    job.rank.erase(job.rank.begin() + 4);
    job.rank.erase(job.rank.begin() + 1);
    for (auto &child : job.rank) {
        std::string line = child->line();
        /* agreed before the second one died */
        while (line.substr(0, 5) == "now 5" || line == "running")
            line = child->line();
        EXPECT_EQ(line.substr(0, 5), "now 4") << line;
    }
    Job::running(job.rank);
}

TEST(Shrink, TwoAtOnce)
{
    kill_two({});
}

TEST_P(ShrinkOver, TwoAtOnce)
{
    kill_two(proc::over(GetParam()));
}

/* Which thread gets which child may differ between ranks: the two children are of all ranks all the
 * same. */
TEST(Shrink, AndSplitByTwoThreadsAtOnceGiveTwoCommunicators)
{
    const int n = 2, times = 40;
    World world(n, impatient);
    for (int i = 0; i < times; i++) {
        std::vector<ftcclComm_t> child(2 * n, nullptr);
        proc::in_threads(2 * n, [&](int t) {
            ftcclComm_t parent = world.comm[static_cast<size_t>(t % n)],
                        *made = &child[static_cast<size_t>(t)];
            if (i % 2)
                EXPECT_OK(ftcclCommSplit(parent, 0, t < n ? t % n : -(t % n), made, nullptr));
            else
                EXPECT_OK(ftcclCommShrink(parent, nullptr, 0, made, nullptr, FTCCL_SHRINK_DEFAULT));
        });
        std::vector<int> sum(2 * n, 0);
        ASSERT_OK(ftcclGroupStart());
        for (size_t t = 0; t < child.size(); t++) {
            EXPECT_OK(ftcclCommUserRank(child[t], &sum[t]));
            sum[t]++;
            EXPECT_OK(ftcclAllReduce(&sum[t], &sum[t], 1, ftcclInt, ftcclSum, child[t],
                                     world.stream[t % n]));
        }
        ASSERT_OK(ftcclGroupEnd());
        for (ftcclStream_t stream : world.stream)
            EXPECT_OK(proc::finish(stream));
        for (int v : sum)
            EXPECT_EQ(v, 3);
        for (ftcclComm_t comm : child)
            EXPECT_OK(ftcclCommAbort(comm));
        if (HasFailure())
            return;
    }
}

} // namespace

/*
 * Property: a rank that is stopped for longer than the others wait is left out. When it runs again,
 * it learns that, whatever it was doing, harms no other rank, and can come back as a new rank. If
 * all ranks are stopped, none is left out. Method: processes that reduce in a loop; SIGSTOP at a
 * random moment, SIGCONT after the others have gone on. The others check every sum before, during
 * and after, and destroy the old communicator with success. Other processes agree in a loop; two
 * are stopped, then the others, which wait for these.
 */
#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <memory>
#include <random>

#include "tests/proc/proc.h"

namespace
{

const size_t kCount = 300000; // a stop is likely to come in the middle of a store

/* Only the first communicator's ranks have to find out that one is stopped. */
ftcclConfig_t waits(int64_t op_timeout_ms, ftcclOptions_t &options)
{
    options = FTCCL_OPTIONS_INITIALIZER;
    options.opTimeoutMs = op_timeout_ms;
    options.initTimeoutMs = 20000;
    ftcclConfig_t config = FTCCL_CONFIG_INITIALIZER;
    config.options = &options;
    return config;
}

/* Reduces `times` times or until it fails (0: no limit); every element is checked. */
ftcclResult_t reduce(ftcclComm_t comm, ftcclStream_t stream, int times)
{
    static std::vector<int> data(kCount);
    int n = 0;
    ftcclCommCount(comm, &n);
    ftcclResult_t result = ftcclSuccess;
    for (int i = 0; result == ftcclSuccess && (times == 0 || i < times); i++) {
        std::fill(data.begin(), data.end(), 1);
        result = ftcclAllReduce(data.data(), data.data(), data.size(), ftcclInt, ftcclSum, comm,
                                stream);
        if (result == ftcclSuccess)
            result = ftcclStreamSynchronize(stream);
        if (result == ftcclSuccess &&
            std::count(data.begin(), data.end(), n) != static_cast<long>(kCount))
            printf("wrong\n");
        if (i == 5 && times == 0)
            printf("running\n");
    }
    return result;
}

/* rank ID NRANKS RANK: reduces until it fails and shrinks; reduces on while it is told to ("go"),
 * grows on "grow", ends on "end". A rank that was left out says so and joins anew by the id that it
 * is told. */
CHILD(rank)
{
    int n = std::stoi(arguments[1]), rank = std::stoi(arguments[2]);
    ftcclOptions_t options[2];
    ftcclConfig_t first = waits(1500, options[0]), config = waits(25000, options[1]);
    ftcclComm_t comm, child = nullptr;
    ftcclStream_t stream;
    if (ftcclStreamCreate(&stream) != ftcclSuccess ||
        ftcclCommInitRankConfig(&comm, n, proc::unhex(arguments[0]), rank, &first) != ftcclSuccess)
        return 1;
    ftcclResult_t result = reduce(comm, stream, 0);
    printf("failed %d\n", static_cast<int>(ftcclGetErrorClass(result)));
    result = ftcclCommShrink(comm, nullptr, 0, &child, &config, FTCCL_SHRINK_DEFAULT);
    printf(result == ftcclSuccess ? "shrunk\n" : "left out %d %s\n", result,
           ftcclGetLastError(comm));
    result = ftcclCommDestroy(comm); // its operations have timed out; its end has not
    if (result != ftcclSuccess)
        printf("destroy gives %d %s\n", result, ftcclGetLastError(nullptr));
    comm = child;
    char word[512];
    while (scanf("%511s", word) == 1 && std::string(word) != "end") {
        std::string what = word;
        if (what == "go")
            printf(reduce(comm, stream, 20) == ftcclSuccess ? "good\n" : "bad %s\n",
                   ftcclGetLastError(comm));
        if (what == "id") {
            ftcclUniqueId id;
            if (ftcclCommGetUniqueId(comm, &id) != ftcclSuccess)
                return 2;
            printf("%s\n", proc::hex(id).c_str());
        }
        if (what != "grow" && what != "join")
            continue;
        int more = 0, place = 0;
        if (scanf("%511s %d %d", word, &more, &place) != 3)
            return 3;
        ftcclUniqueId id = std::string(word) == "-" ? ftcclUniqueId{} : proc::unhex(word);
        bool has_id = std::string(word) != "-";
        result = ftcclCommGrow(what == "grow" ? comm : nullptr, more, has_id ? &id : nullptr,
                               what == "grow" ? -1 : place, &child, &config);
        if (result == ftcclSuccess)
            printf("grown\n");
        else
            printf("grow %d %s\n", result, ftcclGetLastError(what == "grow" ? comm : nullptr));
        if (what == "grow")
            ftcclCommDestroy(comm);
        comm = child;
    }
    if (comm)
        ftcclCommDestroy(comm);
    ftcclStreamDestroy(stream);
    return 0;
}

void stop_and_continue(const std::map<std::string, std::string> &env, std::mt19937_64 &random)
{
    const int n = 4;
    ftcclUniqueId id;
    EXPECT_OK(ftcclGetUniqueId(&id));
    std::vector<std::unique_ptr<proc::Child>> rank;
    for (int r = 0; r < n; r++)
        rank.push_back(std::make_unique<proc::Child>(
            "rank", std::vector<std::string>{proc::hex(id), std::to_string(n), std::to_string(r)},
            env));
    for (auto &child : rank)
        ASSERT_EQ(child->line(), "running");
    size_t victim = random() % n;
    usleep(static_cast<useconds_t>(random() % 20000));
    rank[victim]->signal(SIGSTOP);
    std::vector<proc::Child *> others;
    for (size_t r = 0; r < rank.size(); r++)
        if (r != victim)
            others.push_back(rank[r].get());
    for (auto *child : others)
        ASSERT_EQ(child->line(), "failed 3") << "recoverable";
    for (auto *child : others)
        ASSERT_EQ(child->line(), "shrunk");
    for (auto *child : others)
        child->tell("go");
    rank[victim]->signal(SIGCONT);
    for (auto *child : others)
        EXPECT_EQ(child->line(), "good");
    EXPECT_EQ(rank[victim]->line(), "failed 3") << "it sees broken links first";
    std::string line = rank[victim]->line();
    EXPECT_EQ(line.substr(0, 10), "left out 5") << line;
    for (auto *child : others)
        child->tell("go");
    for (auto *child : others)
        EXPECT_EQ(child->line(), "good");
    others[0]->tell("id");
    std::string grow = others[0]->line();
    for (auto *child : others)
        child->tell(child == others[0] ? "grow " + grow + " 4 0" : "grow - 4 0");
    rank[victim]->tell("join " + grow + " 4 3");
    for (auto &child : rank)
        EXPECT_EQ(child->line(), "grown");
    for (auto &child : rank)
        child->tell("go");
    for (auto &child : rank)
        EXPECT_EQ(child->line(), "good");
    for (auto &child : rank)
        child->tell("end");
    for (auto &child : rank)
        EXPECT_EQ(child->wait(), 0);
}

/* agree ID NRANKS RANK: agrees until some rank is told to end, or somebody is left out. */
CHILD(agree)
{
    int n = std::stoi(arguments[1]), rank = std::stoi(arguments[2]), failed = 0;
    ftcclOptions_t options;
    ftcclConfig_t config = waits(25000, options);
    ftcclComm_t comm;
    if (ftcclCommInitRankConfig(&comm, n, proc::unhex(arguments[0]), rank, &config) != ftcclSuccess)
        return 1;
    ftcclResult_t result = ftcclSuccess;
    uint64_t go_on = 1;
    for (int i = 0; result == ftcclSuccess && failed == 0 && go_on; i++) {
        pollfd told{0, POLLIN, 0};
        go_on = poll(&told, 1, 0) > 0 ? 0 : 1;
        result = ftcclCommAgree(comm, &go_on);
        ftcclCommGetFailedRanks(comm, nullptr, 0, &failed);
        if (i == 0)
            printf("running\n");
    }
    if (result == ftcclSuccess)
        printf("agreed, %d failed\n", failed);
    else
        printf("not agreed: %s\n", ftcclGetLastError(comm));
    ftcclCommDestroy(comm);
    return 0;
}

class Fence : public testing::TestWithParam<std::string>
{
  protected:
    static std::map<std::string, std::string> env_with_suspicion(const char *ms)
    {
        std::map<std::string, std::string> env = proc::over(GetParam());
        env["FTCCL_SUSPECT_MS"] = ms;
        return env;
    }
};

TEST_P(Fence, StoppedRankLearnsItAndComesBack)
{
    const char *text = getenv("FT_SEED");
    unsigned long seed = text ? strtoul(text, nullptr, 10) : std::random_device{}();
    printf("seed %lu; replay: FT_SEED=%lu tests/proc/fence_test\n", seed, seed);
    std::mt19937_64 random(seed);
    const char *rounds = getenv("FT_ROUNDS");
    for (int i = 0; i < (rounds ? atoi(rounds) : 2) && !HasFailure(); i++)
        stop_and_continue(env_with_suspicion("500"), random);
}

TEST_P(Fence, NobodyIsLeftOutWhenAllWereStopped)
{
    const size_t n = 5;
    const std::map<std::string, std::string> env = env_with_suspicion("3000");
    ftcclUniqueId id;
    EXPECT_OK(ftcclGetUniqueId(&id));
    std::vector<std::unique_ptr<proc::Child>> rank;
    for (size_t r = 0; r < n; r++)
        rank.push_back(std::make_unique<proc::Child>(
            "agree", std::vector<std::string>{proc::hex(id), std::to_string(n), std::to_string(r)},
            env));
    for (auto &child : rank)
        ASSERT_EQ(child->line(), "running");
    for (size_t r : {3, 4})
        rank[r]->signal(SIGSTOP);
    usleep(50000); // the others are enough to decide without these, and wait for them
    for (size_t r : {0, 1, 2})
        rank[r]->signal(SIGSTOP);
    usleep(6500000); // longer than they wait for each other, which is far longer than this test is
                     // held up between two signals
    for (size_t r : {0, 1, 2})
        rank[r]->signal(SIGCONT);
    usleep(50000);
    for (size_t r : {3, 4})
        rank[r]->signal(SIGCONT);
    rank[4]->tell("end");
    for (auto &child : rank)
        EXPECT_EQ(child->line(), "agreed, 0 failed");
    for (auto &child : rank)
        EXPECT_EQ(child->wait(), 0);
}
INSTANTIATE_TEST_SUITE_P(OverSharedMemory, Fence, testing::Values("shm"),
                         [](const auto &over) { return over.param; });
INSTANTIATE_TEST_SUITE_P(OverNetworks, Fence, testing::ValuesIn(proc::networks()),
                         [](const auto &over) { return over.param; });

} // namespace

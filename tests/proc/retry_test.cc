/*
 * Property: with failurePolicy retry, if a rank is killed at any moment, no call of the others
 * fails. All calls succeed, in and out of place, with the same result, of the ranks of one view, on
 * every survivor. An average divides by their number. The library tells count, rank and the lost
 * ranks. What cannot be repeated is reported. Method: ranks as processes in a loop of reductions;
 * one is killed after a random time, hundreds of times. Rank r contributes 2^r in one half of the
 * buffer, and 60 * 2^r, averaged, in the next call, so results tell which ranks are in them.
 * Replay: FT_RETRY_SEED=n FT_RETRY_KILLS=1 tests/proc/retry_test
 */
#include <signal.h>
#include <unistd.h>

#include <cstdlib>
#include <memory>
#include <random>
#include <sstream>
#include <thread>

#include "tests/common/sanitizer.h"
#include "tests/proc/proc.h"

namespace
{

ftcclResult_t init(ftcclComm_t *comm, const std::vector<std::string> &arguments)
{
    ftcclConfig_t config = FTCCL_CONFIG_INITIALIZER;
    ftcclOptions_t options = FTCCL_OPTIONS_INITIALIZER;
    options.failurePolicy = FTCCL_POLICY_RETRY;
    config.options = &options;
    return ftcclCommInitRankConfig(comm, std::stoi(arguments[1]), proc::unhex(arguments[0]),
                                   std::stoi(arguments[2]), &config);
}

bool failed(const char *what, ftcclResult_t result, ftcclComm_t comm)
{
    if (result == ftcclSuccess)
        return false;
    printf("%s: %d %s\n", what, result, ftcclGetLastError(comm));
    return true;
}

int ranks_in(int mask)
{
    return __builtin_popcount(static_cast<unsigned>(mask));
}

/* work ID NRANKS RANK COUNT CALLS DELAY_US: reduces CALLS times and prints who was in each result.
 * A rank with a delay kills itself so long after its first call. */
CHILD(work)
{
    int rank = std::stoi(arguments[2]), calls = std::stoi(arguments[4]),
        delay = std::stoi(arguments[5]);
    size_t count = std::stoul(arguments[3]);
    ftcclComm_t comm;
    ftcclStream_t stream;
    if (ftcclStreamCreate(&stream) != ftcclSuccess ||
        failed("init", init(&comm, arguments), nullptr))
        return 1;
    std::vector<int32_t> in(count), out(count);
    std::ostringstream masks;
    double start = 0;
    for (int i = 0; i < calls; i++) {
        bool average = i % 2, inplace = i % 3 == 0;
        std::fill(in.begin(), in.end(), (average ? 60 : 1) << rank);
        std::vector<int32_t> &to = inplace ? in : out;
        auto op = average ? ftcclAvg : ftcclSum;
        if (failed("call",
                   ftcclAllReduce(in.data(), to.data(), count, ftcclInt32, op, comm, stream), comm))
            return 2;
        if (failed("sync", ftcclStreamSynchronize(stream), comm))
            return 2;
        for (int32_t x : to)
            if (x != to[0])
                return printf("elements differ in call %d: %d, %d\n", i, to[0], x), 3;
        int mask = to[0];
        for (int m = 1; average && m < 256; m++)
            if (m * 60 / ranks_in(m) == to[0])
                mask = m;
        masks << mask << " ";
        if (i == 0 && delay > 0) {
            start = proc::now();
            std::thread([=] {
                while (proc::now() - start < delay * 1e-6) {}
                raise(SIGKILL);
            }).detach();
        }
    }
    int ranks, place, lost[8], nlost;
    ftcclResult_t state;
    if (ftcclCommCount(comm, &ranks) != ftcclSuccess ||
        ftcclCommUserRank(comm, &place) != ftcclSuccess)
        return 4;
    if (ftcclCommGetFailedRanks(comm, lost, 8, &nlost) != ftcclSuccess)
        return 4;
    if (ftcclCommGetAsyncError(comm, &state) != ftcclSuccess || failed("state", state, comm))
        return 4;
    masks << "of " << ranks << " " << place;
    for (int i = 0; i < nlost; i++)
        masks << " lost " << lost[i];
    printf("%s\n", masks.str().c_str());
    /* who destroys is lost to one that is still in its last call: first all have printed */
    (void)getchar();
    if (failed("destroy", ftcclCommDestroy(comm), nullptr))
        return 5;
    return 0;
}

struct Job {
    std::vector<std::unique_ptr<proc::Child>> rank;
    Job(const std::string &child, int n, int victim, const std::vector<std::string> &more,
        int delay_us, const std::map<std::string, std::string> &env)
    {
        ftcclUniqueId id;
        EXPECT_OK(ftcclGetUniqueId(&id));
        for (int r = 0; r < n; r++) {
            std::vector<std::string> words{proc::hex(id), std::to_string(n), std::to_string(r)};
            words.insert(words.end(), more.begin(), more.end());
            words.push_back(std::to_string(r == victim ? delay_us : 0));
            rank.push_back(std::make_unique<proc::Child>(child, words, env));
        }
    }
};

/* What survivors said: the masks must be those of the first view and then of the one without the
 * victim. */
void check(const std::string &line, int n, int victim, int r)
{
    std::istringstream words(line);
    int all = (1 << n) - 1, left = all & ~(1 << victim), most = all, mask, ranks, place, lost;
    std::string word;
    while (words >> word && word != "of") {
        mask = std::stoi(word);
        EXPECT_TRUE(mask == all || mask == left) << "rank " << r << ": " << line;
        EXPECT_EQ(mask & ~most, 0) << "rank " << r << ": " << line;
        most = mask;
    }
    words >> ranks >> place;
    if (ranks == n)
        return; /* it died too late */
    EXPECT_EQ(ranks, n - 1) << line;
    EXPECT_EQ(place, r > victim ? r - 1 : r) << line;
    words >> word >> lost;
    EXPECT_EQ(lost, victim) << line;
}

TEST(Retry, AKilledRankCostsNobodyACall)
{
    const char *text = std::getenv("FT_RETRY_SEED"), *kills_text = std::getenv("FT_RETRY_KILLS");
    unsigned first = text ? static_cast<unsigned>(std::stoul(text)) : 1,
             kills = kills_text       ? static_cast<unsigned>(std::stoul(kills_text))
                     : is_sanitized() ? 12
                                      : 40;
    int shrunk = 0;
    for (unsigned seed = first; seed < first + kills && !HasFailure(); seed++) {
        SCOPED_TRACE("replay: FT_RETRY_SEED=" + std::to_string(seed) +
                     " FT_RETRY_KILLS=1 tests/proc/retry_test");
        std::mt19937 random(seed);
        int n = 3 + static_cast<int>(random() % 4),
            victim = static_cast<int>(random() % static_cast<unsigned>(n));
        bool large = random() % 4 == 0;
        std::vector<std::string> more{large ? std::to_string(200000 + random() % 200000)
                                            : std::to_string(1 + random() % 5000),
                                      large ? "30" : "300"};
        Job job("work", n, victim, more, 1 + static_cast<int>(random() % (large ? 60000 : 20000)),
                {{"FTCCL_TRANSPORTS", random() % 2 ? "shm,tcp" : "tcp"},
                 {"FTCCL_OP_TIMEOUT_MS", "10000"}});
        std::string said;
        for (int r = 0; r < n; r++) {
            if (r == victim)
                continue;
            std::string line = job.rank[static_cast<size_t>(r)]->line(120);
            ASSERT_NE(line.find(" of "), std::string::npos)
                << "rank " << r << " of " << n << ", victim " << victim << ": " << line;
            check(line, n, victim, r);
            std::string masks = line.substr(0, line.find(" of "));
            if (said.empty())
                said = masks;
            EXPECT_EQ(masks, said) << "rank " << r << " has other results";
            shrunk += line.find(" of " + std::to_string(n - 1)) != std::string::npos;
        }
        for (int r = 0; r < n; r++)
            if (r != victim)
                job.rank[static_cast<size_t>(r)]->tell("end");
        for (int r = 0; r < n; r++) {
            if (r == victim)
                continue;
            EXPECT_EQ(job.rank[static_cast<size_t>(r)]->wait(), 0) << "rank " << r;
        }
    }
    printf("%d survivors went on without a rank\n", shrunk);
    if (kills >= 20) {
        EXPECT_GT(shrunk, static_cast<int>(kills));
    }
}

/* rooted ID NRANKS RANK ROOT DELAY_US: broadcasts from ROOT and reduces to it; then gathers from
 * those that are left. The last rank kills itself on the way. */
CHILD(rooted)
{
    int n = std::stoi(arguments[1]), rank = std::stoi(arguments[2]), root = std::stoi(arguments[3]),
        all = (1 << n) - 1;
    bool dies = std::stoi(arguments[4]) > 0;
    ftcclComm_t comm;
    ftcclStream_t stream;
    if (ftcclStreamCreate(&stream) != ftcclSuccess ||
        failed("init", init(&comm, arguments), nullptr))
        return 1;
    std::vector<int32_t> in(10000), out(10000), gathered(static_cast<size_t>(n));
    for (int i = 0; i < 40; i++) {
        std::fill(in.begin(), in.end(), 1 << rank);
        bool reduce = i % 2;
        ftcclResult_t result = reduce ? ftcclReduce(in.data(), out.data(), in.size(), ftcclInt32,
                                                    ftcclSum, root, comm, stream)
                                      : ftcclBroadcast(in.data(), out.data(), in.size(), ftcclInt32,
                                                       root, comm, stream);
        if (i == 20 && dies)
            raise(SIGKILL);
        if (result == ftcclSuccess)
            result = ftcclStreamSynchronize(stream);
        if (result != ftcclSuccess) {
            printf("failed %d %s\n", result, ftcclGetLastError(comm));
            ftcclCommAbort(comm);
            return 0;
        }
        bool right = reduce ? rank != root || out[0] == all || out[0] == (all & ~(1 << (n - 1)))
                            : out[0] == 1 << root;
        if (!right || out != std::vector<int32_t>(out.size(), out[0]))
            return printf("call %d: %d\n", i, out[0]), 4;
    }
    int ranks, place;
    if (ftcclCommCount(comm, &ranks) != ftcclSuccess ||
        ftcclCommUserRank(comm, &place) != ftcclSuccess)
        return 3;
    if (failed("gather", ftcclAllGather(&rank, gathered.data(), 1, ftcclInt32, comm, stream), comm))
        return 5;
    if (failed("sync", ftcclStreamSynchronize(stream), comm))
        return 5;
    printf("went on as %d of %d with", place, ranks);
    for (int i = 0; i < ranks; i++)
        printf(" %d", gathered[static_cast<size_t>(i)]);
    printf("\n");
    if (failed("destroy", ftcclCommDestroy(comm), nullptr))
        return 6;
    return 0;
}

TEST(Retry, ALiveRootGoesOnAndADeadOneIsReported)
{
    for (int root : {0, 1, 3}) {
        Job job("rooted", 4, 3, {std::to_string(root)}, 1, {});
        for (size_t r = 0; r < 3; r++) {
            std::string line = job.rank[r]->line(120);
            std::string want = root == 3 ? "failed " + std::to_string(ftcclRemoteError)
                                         : "went on as " + std::to_string(r) + " of 3 with 0 1 2";
            /* called after the loss */
            if (root == 3 && line.substr(0, 8) == "failed " + std::to_string(ftcclInvalidArgument))
                want = line;
            EXPECT_EQ(line.substr(0, want.size()), want)
                << "root " << root << " rank " << r << ": " << line;
            EXPECT_EQ(job.rank[r]->wait(), 0);
        }
    }
}

/* gathers ID NRANKS RANK DELAY_US: gathers, which is not repeated, until it fails; then shrinks and
 * reduces again. */
CHILD(gathers)
{
    int n = std::stoi(arguments[1]);
    bool dies = std::stoi(arguments[3]) > 0;
    ftcclComm_t comm, left;
    ftcclStream_t stream;
    if (ftcclStreamCreate(&stream) != ftcclSuccess ||
        failed("init", init(&comm, arguments), nullptr))
        return 1;
    std::vector<int32_t> in(1000, 1), out(1000 * static_cast<size_t>(n));
    ftcclResult_t result = ftcclSuccess;
    for (int i = 0; result == ftcclSuccess; i++) {
        result = ftcclAllGather(in.data(), out.data(), in.size(), ftcclInt32, comm, stream);
        if (i == 20 && dies)
            raise(SIGKILL);
        if (result == ftcclSuccess)
            result = ftcclStreamSynchronize(stream);
    }
    if (failed("shrink", ftcclCommShrink(comm, nullptr, 0, &left, nullptr, FTCCL_SHRINK_DEFAULT),
               comm))
        return 2;
    if (failed("call",
               ftcclAllReduce(in.data(), in.data(), in.size(), ftcclInt32, ftcclSum, left, stream),
               left))
        return 2;
    if (failed("sync", ftcclStreamSynchronize(stream), left))
        return 2;
    printf("%d then %d\n", result, in[0]);
    ftcclCommDestroy(left);
    ftcclCommDestroy(comm);
    return 0;
}

TEST(Retry, WhatIsNotRepeatedIsReportedAndCanBeShrunk)
{
    Job job("gathers", 4, 1, {}, 1, {});
    for (size_t r : {size_t{0}, size_t{2}, size_t{3}}) {
        EXPECT_EQ(job.rank[r]->line(120), std::to_string(ftcclRemoteError) + " then 3")
            << "rank " << r;
        EXPECT_EQ(job.rank[r]->wait(), 0);
    }
}

TEST(Retry, TheOptionIsChecked)
{
    ftcclConfig_t config = FTCCL_CONFIG_INITIALIZER;
    ftcclOptions_t options = FTCCL_OPTIONS_INITIALIZER;
    ftcclUniqueId id;
    ftcclComm_t comm;
    ASSERT_OK(ftcclGetUniqueId(&id));
    config.options = &options;
    for (int64_t bad : {int64_t{2}, int64_t{-1}}) {
        options.failurePolicy = bad;
        EXPECT_CALLER(ftcclCommInitRankConfig(&comm, 1, id, 0, &config));
    }
    options.failurePolicy = FTCCL_POLICY_RETRY;
    ASSERT_OK(ftcclCommInitRankConfig(&comm, 1, id, 0, &config));
    EXPECT_OK(ftcclCommDestroy(comm));
}

} // namespace

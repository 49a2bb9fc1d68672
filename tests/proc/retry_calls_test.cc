/*
 * Property: with failurePolicy retry, if ranks are killed while the others abort, revoke, agree,
 * shrink, split, grow or destroy, no rank waits for them. Every call ends, results are those of one
 * set of ranks everywhere, and the survivors shrink to one communicator of all of them. If a thread
 * aborts a rank, no call of the other ranks fails. Method: ranks as processes that reduce in groups
 * on two streams, several calls ahead. One or two kill themselves after a random time, at about the
 * moment of the call in question. Rank r contributes 2^r, so results tell which ranks are in them.
 * Replay: FT_RETRY_SEED=n FT_RETRY_KILLS=1 tests/proc/retry_calls_test
 */
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <memory>
#include <random>
#include <set>
#include <sstream>
#include <thread>

#include "tests/proc/proc.h"

namespace
{

const int kAhead = 4; /* groups that are under way together */

struct Rank {
    int n, rank;
    ftcclComm_t comm = nullptr;
    ftcclStream_t stream[2];
    std::vector<std::vector<int32_t>> in, out;

    explicit Rank(const std::vector<std::string> &arguments)
        : n(std::stoi(arguments[1])), rank(std::stoi(arguments[2])), in(2 * kAhead), out(2 * kAhead)
    {
        ftcclConfig_t config = FTCCL_CONFIG_INITIALIZER;
        ftcclOptions_t options = FTCCL_OPTIONS_INITIALIZER;
        options.failurePolicy = FTCCL_POLICY_RETRY;
        options.initTimeoutMs = 20000;
        config.options = &options;
        for (auto &s : stream)
            if (ftcclStreamCreate(&s) != ftcclSuccess)
                exit(1);
        if (ftcclCommInitRankConfig(&comm, n, proc::unhex(arguments[0]), rank, &config) !=
            ftcclSuccess)
            exit(2);
    }

    /* kAhead groups of two reductions of `count` elements, by turns on both streams and in place;
     * their results go into masks. */
    ftcclResult_t reduce(size_t count, std::ostream &masks)
    {
        ftcclResult_t result = ftcclSuccess;
        for (size_t i = 0; i < in.size(); i++)
            in[i].assign(count, 1 << rank), out[i].assign(count, 0);
        for (size_t i = 0; i < in.size() && result == ftcclSuccess; i += 2) {
            ftcclGroupStart();
            for (size_t k = i; k < i + 2; k++)
                ftcclAllReduce(in[k].data(), (k % 2 ? in : out)[k].data(), count, ftcclInt32,
                               ftcclSum, comm, stream[i / 2 % 2]);
            result = ftcclGroupEnd();
        }
        for (auto s : stream) {
            ftcclResult_t more = ftcclStreamSynchronize(s);
            if (result == ftcclSuccess)
                result = more;
        }
        if (result != ftcclSuccess)
            return result;
        for (size_t k = 0; k < in.size(); k++) {
            const std::vector<int32_t> &to = (k % 2 ? in : out)[k];
            masks << to[0] << " ";
            if (to != std::vector<int32_t>(count, to[0]))
                printf("elements differ\n"), exit(3);
        }
        return result;
    }
};

void die_later(int delay_us)
{
    double end = proc::now() + delay_us * 1e-6;
    if (delay_us == 0)
        return;
    std::thread([=] {
        while (proc::now() < end)
            usleep(10);
        raise(SIGKILL);
    }).detach();
}

/* The call in question; children are destroyed at once. What comes of it may differ from rank to
 * rank. */
void act(const std::string &what, Rank &me)
{
    ftcclComm_t child = nullptr;
    uint64_t flags = ~(UINT64_C(1) << me.rank);
    if (what == "agree")
        ftcclCommAgree(me.comm, &flags);
    if (what == "shrink")
        ftcclCommShrink(me.comm, nullptr, 0, &child, nullptr, FTCCL_SHRINK_ABORT);
    if (what == "split")
        ftcclCommSplit(me.comm, 0, 0, &child, nullptr);
    if (what == "grow") {
        ftcclUniqueId id;
        ftcclConfig_t config = FTCCL_CONFIG_INITIALIZER;
        int count = 0;
        ftcclCommCount(me.comm, &count);
        bool root = me.rank == 0 && ftcclCommGetUniqueId(me.comm, &id) == ftcclSuccess;
        /* nobody joins */
        ftcclCommGrow(me.comm, count + 1, root ? &id : nullptr, -1, &child, &config);
    }
    if (child)
        ftcclCommAbort(child);
}

/* mixed ID NRANKS RANK COUNT ROUNDS WHAT DELAY_US: reduces, makes the call, and shrinks whatever
 * happened; prints who is in the new communicator, then and, after a line of input, once more. */
CHILD(mixed)
{
    Rank me(arguments);
    size_t count = std::stoul(arguments[3]);
    std::ostringstream masks;
    int rounds = std::stoi(arguments[4]), number = 0;
    const std::string &what = arguments[5];
    die_later(std::stoi(arguments[6]));
    std::thread other;
    if (what == "revoke" && me.rank == 0)
        other = std::thread([&] {
            usleep(static_cast<useconds_t>(3000));
            ftcclCommRevoke(me.comm, FTCCL_REVOKE_DEFAULT);
        });
    ftcclResult_t result = ftcclSuccess;
    for (int i = 0; (i < rounds || what == "revoke") && result == ftcclSuccess; i++)
        result = me.reduce(count, masks);
    bool failed = result != ftcclSuccess && ftcclGetErrorClass(result) != ftcclClassRecoverable;
    if (!failed)
        act(what, me);
    if (other.joinable())
        other.join();
    if (failed)
        return printf("failed %d %s\n", result, ftcclGetLastError(me.comm)), 4;
    ftcclComm_t left = nullptr;
    result = ftcclCommShrink(me.comm, nullptr, 0, &left, nullptr, FTCCL_SHRINK_DEFAULT);
    if (result != ftcclSuccess)
        return printf("shrink %d %s\n", result, ftcclGetLastError(me.comm)), 5;
    ftcclCommDestroy(me.comm);
    me.comm = left;
    masks.str("");
    if (me.reduce(1, masks) != ftcclSuccess)
        return printf("reduce %s\n", ftcclGetLastError(left)), 6;
    if (ftcclCommCount(left, &number) != ftcclSuccess)
        return 7;
    printf("%d %s\n", number, masks.str().c_str());
    fflush(stdout);
    std::string word;
    std::getline(std::cin, word); /* those who will die have */
    masks.str("");
    if (me.reduce(1, masks) != ftcclSuccess)
        return printf("reduce %s\n", ftcclGetLastError(left)), 8;
    if (ftcclCommCount(left, &number) != ftcclSuccess)
        return 9;
    printf("%d %s\n", number, masks.str().c_str());
    fflush(stdout);
    std::getline(std::cin, word); /* who destroys counts as lost: first all have printed */
    ftcclCommDestroy(left);
    return 0;
}

/* ends ID NRANKS RANK COUNT ROUNDS WHAT DELAY_US: reduces, and destroys at once; with WHAT "abort"
 * the last but one rank's other thread aborts on the way. Prints the results. */
CHILD(ends)
{
    Rank me(arguments);
    std::ostringstream masks;
    bool aborts = arguments[5] == "abort" && me.rank == me.n - 2;
    die_later(std::stoi(arguments[6]));
    std::thread other;
    if (aborts)
        other = std::thread([&] {
            usleep(4000);
            ftcclCommAbort(me.comm);
        });
    ftcclResult_t result = ftcclSuccess;
    for (int i = 0; i < std::stoi(arguments[4]) && result == ftcclSuccess; i++)
        result = me.reduce(std::stoul(arguments[3]), masks);
    if (other.joinable())
        other.join();
    if (aborts)
        return printf("aborted\n"), 0;
    if (result != ftcclSuccess)
        return printf("failed %d %s\n", result, ftcclGetLastError(me.comm)), 4;
    printf("%s\n", masks.str().c_str());
    return ftcclCommDestroy(me.comm) == ftcclSuccess ? 0 : 5;
}

struct Job {
    std::vector<std::unique_ptr<proc::Child>> rank;
    int n, deaths;
    Job(const std::string &child, const std::string &what, unsigned seed)
    {
        std::mt19937 random(seed);
        ftcclUniqueId id;
        EXPECT_OK(ftcclGetUniqueId(&id));
        n = 4 + static_cast<int>(random() % 3);
        deaths = n > 4 ? 1 + static_cast<int>(random() % 2) : 1;
        if (what == "abort")
            deaths = 1;
        std::string count = std::to_string(1 + random() % 20000),
                    rounds = std::to_string(2 + random() % 10),
                    over = random() % 2 ? "shm,tcp" : "tcp";
        for (int r = 0; r < n; r++) {
            int delay = r >= n - deaths ? 1 + static_cast<int>(random() % 30000) : 0;
            rank.push_back(std::make_unique<proc::Child>(
                child,
                std::vector<std::string>{proc::hex(id), std::to_string(n), std::to_string(r), count,
                                         rounds, what, std::to_string(delay)},
                std::map<std::string, std::string>{{"FTCCL_TRANSPORTS", over},
                                                   {"FTCCL_OP_TIMEOUT_MS", "30000"}}));
        }
    }
};

void for_seeds(unsigned usual, const std::function<void(unsigned)> &fn)
{
    const char *text = std::getenv("FT_RETRY_SEED"), *kills = std::getenv("FT_RETRY_KILLS");
    unsigned first = text ? static_cast<unsigned>(std::stoul(text)) : 1,
             count = kills ? static_cast<unsigned>(std::stoul(kills)) : usual;
    for (unsigned seed = first; seed < first + count && !testing::Test::HasFailure(); seed++) {
        SCOPED_TRACE("replay: FT_RETRY_SEED=" + std::to_string(seed) +
                     " FT_RETRY_KILLS=1 tests/proc/retry_calls_test");
        fn(seed);
    }
}

class RetryCalls : public testing::TestWithParam<const char *>
{
};

TEST_P(RetryCalls, SurvivorsShrinkToOneCommunicator)
{
    bool slow = std::string(GetParam()) == "grow"; /* the root waits for joiners */
    for_seeds(slow ? 1 : 4, [&](unsigned seed) {
        Job job("mixed", GetParam(), seed);
        std::set<std::string> lines;
        int survivors = job.n - job.deaths;
        for (int r = 0; r < survivors; r++) {
            std::string line = job.rank[static_cast<size_t>(r)]->line(120);
            /* the sums: of a death after them one rank may know already, another not yet */
            lines.insert(line.substr(std::min(line.find(' '), line.size())));
            std::istringstream words(line);
            int number = 0, mask = 0, last = (1 << job.n) - 1, all = (1 << survivors) - 1;
            words >> number;
            EXPECT_GE(number, survivors) << "rank " << r << " of " << job.n << ": " << line;
            while (words >> mask) {
                EXPECT_EQ(mask & all, all) << "rank " << r << " of " << job.n << ": " << line;
                EXPECT_EQ(mask & ~last, 0) << "rank " << r << ": " << line;
                last = mask;
            }
        }
        for (int r = survivors; r < job.n; r++)
            EXPECT_NE(job.rank[static_cast<size_t>(r)]->wait(60), -1) << "rank " << r;
        for (int r = 0; r < survivors; r++)
            job.rank[static_cast<size_t>(r)]->tell("on");
        /* all know of all deaths with the next sums */
        std::string now = std::to_string(survivors) + " ";
        for (size_t i = 0; i < 2 * kAhead; i++)
            now += std::to_string((1 << survivors) - 1) + " ";
        for (int r = 0; r < survivors; r++)
            EXPECT_EQ(job.rank[static_cast<size_t>(r)]->line(120), now) << "rank " << r;
        for (int r = 0; r < survivors; r++)
            job.rank[static_cast<size_t>(r)]->tell("end");
        for (int r = 0; r < survivors; r++)
            EXPECT_EQ(job.rank[static_cast<size_t>(r)]->wait(60), 0) << "rank " << r;
        std::string all_lines;
        for (const std::string &line : lines)
            all_lines += line + "\n";
        EXPECT_EQ(lines.size(), 1u) << "ranks differ:\n" << all_lines;
    });
}

INSTANTIATE_TEST_SUITE_P(When, RetryCalls,
                         testing::Values("nothing", "revoke", "agree", "shrink", "split", "grow"),
                         [](const auto &p) { return std::string(p.param); });

class RetryEnds : public testing::TestWithParam<const char *>
{
};

TEST_P(RetryEnds, TheOthersHaveTheSameResults)
{
    for_seeds(6, [&](unsigned seed) {
        Job job("ends", GetParam(), seed);
        std::set<std::string> lines;
        bool aborts = std::string(GetParam()) == "abort";
        int survivors = job.n - job.deaths - aborts;
        for (int r = 0; r < survivors; r++) {
            lines.insert(job.rank[static_cast<size_t>(r)]->line(120));
            EXPECT_EQ(job.rank[static_cast<size_t>(r)]->wait(60), 0)
                << "rank " << r << " of " << job.n;
        }
        if (aborts) {
            EXPECT_EQ(job.rank[static_cast<size_t>(job.n - 2)]->line(120), "aborted");
        }
        std::string all_lines;
        for (const std::string &line : lines)
            all_lines += line + "\n";
        EXPECT_EQ(lines.size(), 1u) << "ranks differ:\n" << all_lines;
    });
}

INSTANTIATE_TEST_SUITE_P(By, RetryEnds, testing::Values("destroy", "abort"),
                         [](const auto &p) { return std::string(p.param); });

} // namespace

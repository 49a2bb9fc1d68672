/*
 * Property: a communicator grows by any number of joiners, or stays as it was. Whatever happens,
 * the parent can be used during and after the call. Ranks are ordered as the callers say. Repeated
 * reshaping leaks nothing. Method: ranks and joiners as threads; joiners that never come; random
 * shrinks and grows.
 */
#include <algorithm>
#include <atomic>
#include <random>
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
        few.initTimeoutMs = few.opTimeoutMs = 4000;
        return few;
    }();
    config.options = &options;
}

int sum_of(ftcclComm_t comm)
{
    int rank = -1, value = 0;
    ftcclStream_t stream;
    if (ftcclCommUserRank(comm, &rank) != ftcclSuccess ||
        ftcclStreamCreate(&stream) != ftcclSuccess)
        return -1;
    value = rank + 1;
    ftcclResult_t result = ftcclAllReduce(&value, &value, 1, ftcclInt, ftcclSum, comm, stream);
    if (result == ftcclSuccess)
        result = ftcclStreamSynchronize(stream);
    ftcclStreamDestroy(stream);
    return result == ftcclSuccess ? value : -1;
}

int triangle(int n)
{
    return n * (n + 1) / 2;
}

int rank_of(ftcclComm_t comm)
{
    int rank = -1;
    EXPECT_OK(ftcclCommUserRank(comm, &rank));
    return rank;
}

/* The parents' and joiners' handles of a grown communicator, parents first; joiners join as
 * threads. */
std::vector<ftcclComm_t> grow(const std::vector<ftcclComm_t> &parents, int joiners, size_t root,
                              const std::function<void(int, ftcclConfig_t &)> &configure)
{
    int old = static_cast<int>(parents.size()), n = old + joiners;
    std::vector<ftcclComm_t> child(static_cast<size_t>(n));
    ftcclUniqueId id;
    EXPECT_OK(ftcclCommGetUniqueId(parents[root], &id));
    proc::in_threads(n, [&](int r) {
        size_t i = static_cast<size_t>(r);
        ftcclConfig_t config = FTCCL_CONFIG_INITIALIZER;
        configure(r, config);
        if (r < old)
            EXPECT_OK(
                ftcclCommGrow(parents[i], n, i == root ? &id : nullptr, -1, &child[i], &config))
                << "survivor " << r;
        else
            EXPECT_OK(ftcclCommGrow(nullptr, n, &id, r, &child[i], &config)) << "joiner " << r;
    });
    return child;
}

void check_and_destroy(const std::vector<ftcclComm_t> &comm)
{
    proc::in_threads(static_cast<int>(comm.size()), [&](int r) {
        ftcclComm_t mine = comm[static_cast<size_t>(r)];
        EXPECT_EQ(sum_of(mine), triangle(static_cast<int>(comm.size())));
        EXPECT_OK(ftcclCommDestroy(mine));
    });
}

TEST(Grow, FromOneAndByOneAndBySeveral)
{
    for (int old : {1, 2, 3})
        for (int joiners : {1, 3}) {
            World world(old, usual);
            std::vector<ftcclComm_t> child = grow(world.comm, joiners, static_cast<size_t>(old) - 1,
                                                  [](int, ftcclConfig_t &) {});
            for (size_t i = 0; i < child.size(); i++)
                EXPECT_EQ(rank_of(child[i]), static_cast<int>(i));
            check_and_destroy(child);
            EXPECT_TRUE(world.works()) << "the parent of " << old;
        }
}

TEST(Grow, KeysOrderTheRanks)
{
    World world(3, usual);
    static ftcclOptions_t first = FTCCL_OPTIONS_INITIALIZER, second = first;
    first.rankKey = 1; /* the parents' keys are their ranks: after rank 1 */
    second.rankKey = -5;
    std::vector<ftcclComm_t> child = grow(world.comm, 2, 0, [](int r, ftcclConfig_t &config) {
        if (r >= 3)
            config.options = r == 3 ? &first : &second;
    });
    int want[] = {1, 2, 4, 3, 0};
    for (size_t i = 0; i < 5; i++)
        EXPECT_EQ(rank_of(child[i]), want[i]) << i;
    check_and_destroy(child);
}

TEST(Grow, TheParentComputesMeanwhile)
{
    World world(2, usual);
    ftcclUniqueId id;
    std::vector<ftcclComm_t> child(3);
    std::atomic<bool> grown{false};
    EXPECT_OK(ftcclCommGetUniqueId(world.comm[0], &id));
    std::thread growing([&] {
        proc::in_threads(2, [&](int r) {
            EXPECT_OK(ftcclCommGrow(world.comm[static_cast<size_t>(r)], 3, r == 0 ? &id : nullptr,
                                    -1, &child[static_cast<size_t>(r)], nullptr));
        });
        grown = true;
    });
    int before = 0;
    for (int k = 0; k < 20 && !grown; k++)
        before += world.works();
    EXPECT_EQ(before, 20) << "the joiner was not there yet";
    EXPECT_OK(ftcclCommGrow(nullptr, 3, &id, 2, &child[2], nullptr));
    growing.join();
    check_and_destroy(child);
}

TEST(Grow, FailsWithoutTheJoinerAndLeavesTheParent)
{
    World world(3, impatient);
    ftcclUniqueId id;
    EXPECT_OK(ftcclCommGetUniqueId(world.comm[1], &id));
    world.each([&](int r) {
        size_t i = static_cast<size_t>(r);
        ftcclComm_t child = nullptr;
        ftcclResult_t result = ftcclCommGrow(world.comm[i], 4, r == 1 ? &id : nullptr, -1, &child,
                                             nullptr);
        EXPECT_EQ(result, ftcclTimeout) << ftcclGetLastError(world.comm[i]);
        EXPECT_EQ(child, nullptr);
    });
    EXPECT_TRUE(world.works());
    check_and_destroy(grow(world.comm, 1, 2, [](int, ftcclConfig_t &) {}));
}

/* The joiners wait for an answer for a multiple of initTimeoutMs; they need not. */
TEST(Grow, JoinersLearnAtOnceThatARankDied)
{
    World world(3, usual);
    ftcclUniqueId id;
    ftcclComm_t child[4] = {};
    EXPECT_OK(ftcclCommGetUniqueId(world.comm[0], &id));
    proc::in_threads(4, [&](int r) {
        size_t i = static_cast<size_t>(r);
        if (r == 2) {
            EXPECT_OK(ftcclCommAbort(world.comm[i]));
            world.comm[i] = nullptr;
            return;
        }
        ftcclConfig_t config = FTCCL_CONFIG_INITIALIZER;
        ftcclResult_t result = r == 3 ? ftcclCommGrow(nullptr, 4, &id, 3, &child[i], &config)
                                      : ftcclCommGrow(world.comm[i], 4, r == 0 ? &id : nullptr, -1,
                                                      &child[i], nullptr);
        EXPECT_EQ(result, ftcclRemoteError) << "rank " << r << ": " << ftcclGetLastError(nullptr);
        EXPECT_EQ(child[i], nullptr);
    });
}

/* Whether the joiner came to the rendezvous before or after that. */
TEST(Grow, AnIdGoesWithItsCommunicator)
{
    World world(3, usual);
    ftcclUniqueId id;
    EXPECT_OK(ftcclCommGetUniqueId(world.comm[1], &id));
    double start = proc::now();
    ftcclComm_t early = nullptr, late = nullptr;
    std::string why;
    std::thread joiner([&] { /* with the default bound of a minute */
                             EXPECT_EQ(ftcclCommGrow(nullptr, 5, &id, 3, &early, nullptr),
                                       ftcclRemoteError);
                             why = ftcclGetLastError(nullptr);
    });
    EXPECT_OK(ftcclCommDestroy(world.comm[1]));
    world.comm[1] = nullptr;
    EXPECT_EQ(ftcclCommGrow(nullptr, 5, &id, 4, &late, nullptr), ftcclRemoteError);
    std::string after = ftcclGetLastError(nullptr);
    joiner.join();
    for (const std::string &text : {why, after})
        EXPECT_NE(text.find("its communicator was destroyed"), std::string::npos) << text;
    EXPECT_LT(proc::now() - start, 40) << "the joiners waited";
    EXPECT_EQ(early, nullptr);
    EXPECT_EQ(late, nullptr);
}

TEST(Grow, MistakesAreNamed)
{
    World world(2, usual);
    ftcclUniqueId plain, id;
    ftcclComm_t child = nullptr;
    EXPECT_OK(ftcclGetUniqueId(&plain));
    EXPECT_OK(ftcclCommGetUniqueId(world.comm[0], &id));
    EXPECT_CALLER(ftcclCommGrow(world.comm[0], 3, &plain, -1, &child, nullptr));
    EXPECT_CALLER(ftcclCommGrow(world.comm[0], 3, &id, 0, &child, nullptr));
    EXPECT_CALLER(ftcclCommGrow(world.comm[0], 2, &id, -1, &child, nullptr));
    EXPECT_CALLER(ftcclCommGrow(nullptr, 3, &plain, 2, &child, nullptr));
    EXPECT_CALLER(ftcclCommInitRank(&child, 2, id, 0));
    EXPECT_CALLER(ftcclCommGetUniqueId(world.comm[0], nullptr));
    EXPECT_TRUE(world.works());
}

/* What comes of a grow to n ranks: of each rank of the parents (the first has the id), then of each
 * joiner by the rank it claims. All are over soon; whatever they made is aborted. */
std::vector<std::pair<ftcclResult_t, std::string>> outcomes(
    const std::vector<ftcclComm_t> &parent, int n, const ftcclUniqueId &id,
    const std::vector<std::pair<int, int>> &joiners)
{
    int old = static_cast<int>(parent.size()), all = old + static_cast<int>(joiners.size());
    std::vector<std::pair<ftcclResult_t, std::string>> outcome(static_cast<size_t>(all));
    proc::in_threads(all, [&](int r) {
        size_t i = static_cast<size_t>(r);
        ftcclConfig_t config = FTCCL_CONFIG_INITIALIZER;
        static ftcclOptions_t options = [] {
            ftcclOptions_t o = FTCCL_OPTIONS_INITIALIZER;
            o.initTimeoutMs = 40000; /* far more than is needed */
            return o;
        }();
        config.options = &options;
        ftcclComm_t child = nullptr;
        double start = proc::now();
        auto &[result, sentence] = outcome[i];
        if (r < old)
            result = ftcclCommGrow(parent[i], n, r == 0 ? &id : nullptr, -1, &child, &config);
        else
            result = ftcclCommGrow(nullptr, joiners[i - static_cast<size_t>(old)].second, &id,
                                   joiners[i - static_cast<size_t>(old)].first, &child, &config);
        sentence = ftcclGetLastError(r < old ? parent[i] : nullptr);
        EXPECT_LT(proc::now() - start, 20) << r << ": " << sentence;
        if (child) {
            EXPECT_OK(ftcclCommAbort(child));
        }
    });
    return outcome;
}

/* Another communicator of the same ranks, whose links have the same key. */
std::vector<ftcclComm_t> twins(const World &world)
{
    std::vector<ftcclComm_t> twin(world.comm.size());
    world.each([&](int r) {
        EXPECT_OK(ftcclCommSplit(world.comm[static_cast<size_t>(r)], 0, r,
                                 &twin[static_cast<size_t>(r)], nullptr));
    });
    return twin;
}

TEST(Grow, ReusedIdsAreRefused)
{
    World world(2, usual), other(2, usual);
    std::vector<ftcclComm_t> twin = twins(world);
    ftcclUniqueId id, theirs;
    EXPECT_OK(ftcclCommGetUniqueId(world.comm[0], &id));
    EXPECT_OK(ftcclCommGetUniqueId(other.comm[0], &theirs));
    for (const auto &[result, sentence] : outcomes(world.comm, 3, id, {{2, 3}}))
        EXPECT_EQ(result, ftcclSuccess) << sentence;
    auto again = outcomes(world.comm, 3, id, {{2, 3}}), late = outcomes(twin, 3, id, {}),
         stranger = outcomes(world.comm, 3, theirs, {});
    for (const auto &[outcome, text] :
         {std::pair(again[0], "already used"), std::pair(late[0], "already used"),
          std::pair(stranger[0], "another job")}) {
        EXPECT_EQ(ftcclGetErrorClass(outcome.first), ftcclClassCaller) << outcome.second;
        EXPECT_NE(outcome.second.find(text), std::string::npos) << outcome.second;
    }
    for (const auto &[result, sentence] : {again[1], late[1], stranger[1]})
        EXPECT_EQ(ftcclGetErrorClass(result), ftcclClassRecoverable) << sentence;
    EXPECT_NE(again[2].first, ftcclSuccess);
    EXPECT_NE(again[2].second.find("used"), std::string::npos) << "the joiner: " << again[2].second;
    EXPECT_TRUE(world.works() && other.works()) << "the parents";
    check_and_destroy(grow(world.comm, 1, 0, [](int, ftcclConfig_t &) {}));
    check_and_destroy(twin);
}

/* Two communicators of the same ranks grow by one id at once: one gets the joiner. */
TEST(Grow, OneIdForTwoGrows)
{
    World world(2, usual);
    std::vector<ftcclComm_t> twin = twins(world);
    ftcclUniqueId id;
    EXPECT_OK(ftcclCommGetUniqueId(world.comm[0], &id));
    std::vector<std::pair<ftcclResult_t, std::string>> first, second;
    std::thread growing([&] { second = outcomes(twin, 3, id, {}); });
    first = outcomes(world.comm, 3, id, {{2, 3}});
    growing.join();
    EXPECT_NE(first[0].first == ftcclSuccess, second[0].first == ftcclSuccess)
        << first[0].second << " " << second[0].second;
    EXPECT_EQ(first[0].first == ftcclSuccess, first[1].first == ftcclSuccess) << first[1].second;
    EXPECT_EQ(second[0].first == ftcclSuccess, second[1].first == ftcclSuccess) << second[1].second;
    EXPECT_EQ(first[2].first, ftcclSuccess) << first[2].second;
    const auto &loser = first[0].first == ftcclSuccess ? second[0] : first[0];
    EXPECT_EQ(ftcclGetErrorClass(loser.first), ftcclClassCaller) << loser.second;
    EXPECT_TRUE(world.works());
    check_and_destroy(twin);
}

/* Each rank has two threads that grow the communicator: which of them gets which child may differ
 * between ranks. */
TEST(Grow, ByTwoThreadsAtOnceGivesTwoCommunicators)
{
    const size_t n = 2;
    World world(n, [](ftcclConfig_t &) {});
    for (int i = 0; i < 10 && !HasFailure(); i++) {
        ftcclUniqueId id[2];
        for (ftcclUniqueId &one : id)
            ASSERT_OK(ftcclCommGetUniqueId(world.comm[0], &one));
        std::vector<ftcclComm_t> child(2 * n + 2, nullptr);
        std::vector<int> sum(child.size(), 1);
        proc::in_threads(static_cast<int>(child.size()), [&](int thread) {
            size_t t = static_cast<size_t>(thread);
            if (t >= 2 * n)
                EXPECT_OK(ftcclCommGrow(nullptr, n + 1, &id[t % 2], n, &child[t], nullptr));
            else
                EXPECT_OK(ftcclCommGrow(world.comm[t / 2], n + 1, t / 2 == 0 ? &id[t % 2] : nullptr,
                                        -1, &child[t], nullptr));
        });
        ASSERT_OK(ftcclGroupStart());
        for (size_t t = 0; t < child.size(); t++)
            EXPECT_OK(ftcclAllReduce(&sum[t], &sum[t], 1, ftcclInt, ftcclSum, child[t], nullptr));
        ASSERT_OK(ftcclGroupEnd());
        EXPECT_OK(proc::finish(nullptr));
        for (int v : sum)
            EXPECT_EQ(v, static_cast<int>(n) + 1);
        for (ftcclComm_t comm : child)
            EXPECT_OK(ftcclCommAbort(comm));
    }
    EXPECT_TRUE(world.works());
}

/* The parents' failure is told with the joiners' mistake, and so is each joiner's. */
TEST(Grow, TwoJoinersOfOneRankAndOnesTooMany)
{
    const std::vector<std::pair<std::vector<std::pair<int, int>>, std::string>> mistakes = {
        {{{2, 4}, {2, 4}}, "two processes claim rank 2"},
        {{{2, 4}, {3, 5}}, "5 ranks"},
        {{{2, 3}, {3, 4}}, "4 ranks"}};
    World world(2, usual);
    for (const auto &[joiners, text] : mistakes) {
        ftcclUniqueId id;
        EXPECT_OK(ftcclCommGetUniqueId(world.comm[0], &id));
        auto outcome = outcomes(world.comm, 4, id, joiners);
        for (size_t r = 0; r < outcome.size(); r++) {
            EXPECT_NE(outcome[r].first, ftcclSuccess) << text << ": " << r;
            if (r == 1)
                continue; /* it learns that the first one failed */
            EXPECT_NE(outcome[r].second.find(text), std::string::npos)
                << r << ": " << outcome[r].second;
        }
        EXPECT_TRUE(world.works()) << text;
    }
}

/* Both ranks of the parent have an id, and joiners of their own: one pair comes about or none, and
 * nobody believes otherwise. */
TEST(Grow, TwoIdsForOneGrow)
{
    World world(2, impatient);
    ftcclUniqueId id[2];
    ftcclComm_t child[4] = {};
    for (int r : {0, 1})
        EXPECT_OK(ftcclCommGetUniqueId(world.comm[r], &id[r]));
    ftcclResult_t result[4];
    proc::in_threads(4, [&](int r) {
        ftcclConfig_t config = FTCCL_CONFIG_INITIALIZER;
        impatient(config);
        if (r < 2)
            result[r] = ftcclCommGrow(world.comm[static_cast<size_t>(r)], 3, &id[r], -1, &child[r],
                                      &config);
        else
            result[r] = ftcclCommGrow(nullptr, 3, &id[r - 2], 2, &child[r], &config);
    });
    EXPECT_EQ(result[0], result[1]);
    EXPECT_EQ((result[2] == ftcclSuccess) + (result[3] == ftcclSuccess), result[0] == ftcclSuccess)
        << result[2] << " " << result[3];
    if (result[0] == ftcclSuccess)
        proc::in_threads(4, [&](int r) {
            if (child[r]) {
                EXPECT_EQ(sum_of(child[r]), triangle(3)) << r;
            }
        });
    for (ftcclComm_t comm : child)
        if (comm) {
            EXPECT_OK(ftcclCommDestroy(comm));
        }
    EXPECT_TRUE(world.works());
}

CHILD(many_joiners)
{
    constexpr int kMany = 40;
    World world(2, [](ftcclConfig_t &) {}); /* all forty have to come before they are refused */
    ftcclUniqueId id;
    if (ftcclCommGetUniqueId(world.comm[0], &id) != ftcclSuccess)
        return 1;
    std::vector<std::pair<int, int>> joiners;
    for (int r = 2; r < 2 + kMany; r++)
        joiners.emplace_back(r, 2 + kMany);
    auto outcome = outcomes(world.comm, 2 + kMany, id, joiners);
    long good = std::count_if(outcome.begin(), outcome.end(),
                              [](const auto &one) { return one.first == ftcclSuccess; });
    printf("%ld good, the parent %s: %s\n", good, world.works() ? "works" : "does not work",
           outcome[0].second.c_str());
    return testing::Test::HasFailure();
}

/* With the smallest messages the endpoints of forty are too many at once. */
TEST(Grow, MoreJoinersThanAMessageHoldsAreRefused)
{
    proc::Child child("many_joiners", {}, {{"FTCCL_CHUNK_BYTES", "4096"}});
    std::string line = child.line(120);
    EXPECT_EQ(line.substr(0, 24), "0 good, the parent works") << line;
    EXPECT_NE(line.find("FTCCL_CHUNK_BYTES"), std::string::npos) << line;
    EXPECT_EQ(child.wait(), 0);
}

/* 200 reshapes in a row: as the ranks of one process come and go, nothing is left behind. */
TEST(Grow, ManyReshapesLeakNothing)
{
    const char *text = getenv("FT_SEED");
    unsigned long seed = text ? strtoul(text, nullptr, 10) : std::random_device{}();
    printf("seed %lu; replay: FT_SEED=%lu tests/proc/grow_test "
           "--gtest_filter=Grow.ManyReshapesLeakNothing\n",
           seed, seed);
    std::mt19937_64 random(seed);
    World world(2, usual);
    std::vector<ftcclComm_t> comm = world.comm;
    int descriptors = 0;
    long memory = 0;
    for (int k = 0; k < 200; k++) {
        size_t n = comm.size();
        std::vector<ftcclComm_t> next;
        if (n < 2 || (n < 6 && random() % 2)) {
            next = grow(comm, 1 + static_cast<int>(random() % 2), random() % n,
                        [](int, ftcclConfig_t &) {});
        } else {
            size_t out = random() % n;
            int list[] = {static_cast<int>(out)};
            std::vector<ftcclComm_t> child(n);
            proc::in_threads(static_cast<int>(n), [&](int r) {
                if (r == list[0])
                    return;
                EXPECT_OK(ftcclCommShrink(comm[static_cast<size_t>(r)], list, 1,
                                          &child[static_cast<size_t>(r)], nullptr,
                                          FTCCL_SHRINK_DEFAULT));
            });
            for (size_t i = 0; i < n; i++)
                if (i != out)
                    next.push_back(child[i]);
        }
        for (ftcclComm_t old : comm) {
            if (std::find(world.comm.begin(), world.comm.end(), old) != world.comm.end())
                continue;
            EXPECT_OK(ftcclCommDestroy(old));
        }
        comm = next;
        proc::in_threads(static_cast<int>(comm.size()), [&](int r) {
            EXPECT_EQ(sum_of(comm[static_cast<size_t>(r)]), triangle(static_cast<int>(comm.size())))
                << "reshape " << k;
        });
        if (HasFailure())
            break;
        if (k == 50)
            descriptors = proc::descriptors(), memory = proc::resident_kib();
    }
    for (ftcclComm_t old : comm)
        EXPECT_OK(ftcclCommDestroy(old));
    printf("%d descriptors after 50 reshapes, %d after 200; %ld and %ld KiB\n", descriptors,
           proc::descriptors(), memory, proc::resident_kib());
    EXPECT_LE(proc::descriptors(), descriptors + 4);
}

} // namespace

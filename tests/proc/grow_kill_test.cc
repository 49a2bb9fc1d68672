/*
 * Property: ranks of the parent and joiners may be killed or stopped at any moment of a grow,
 * including the rank with the id. The call ends within its bound on all that run. Either all of
 * them have the new communicator or none has. Joiners are told why not. The ranks of the parent go
 * on: with the parent if none of its ranks died, else by a shrink. Method: processes; SIGKILL or
 * SIGSTOP to one or two of them, at a random moment from before the first contact until after the
 * end.
 */
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <memory>
#include <random>

#include "tests/proc/proc.h"

namespace
{

constexpr int kOld = 3, kJoiners = 2, kAll = kOld + kJoiners, kInitMs = 6000;
/* seconds: initTimeoutMs, eight times the suspect time and 5 s, on a slow machine */
constexpr double kBound = 60;

ftcclConfig_t impatient()
{
    static ftcclOptions_t options = FTCCL_OPTIONS_INITIALIZER;
    options.opTimeoutMs = 5000;
    options.initTimeoutMs = kInitMs;
    options.suspectMs = 500;
    ftcclConfig_t config = FTCCL_CONFIG_INITIALIZER;
    config.options = &options;
    return config;
}

/* Says what came of an all-reduce. */
ftcclResult_t reduce(ftcclComm_t comm)
{
    int n = 0, value = 1;
    ftcclStream_t stream;
    if (ftcclCommCount(comm, &n) != ftcclSuccess || ftcclStreamCreate(&stream) != ftcclSuccess)
        return ftcclInternalError;
    ftcclResult_t result = ftcclAllReduce(&value, &value, 1, ftcclInt, ftcclSum, comm, stream);
    if (result == ftcclSuccess)
        result = ftcclStreamSynchronize(stream);
    ftcclStreamDestroy(stream);
    return result == ftcclSuccess && value != n ? ftcclInternalError : result;
}

void say(const char *what, ftcclResult_t result)
{
    printf("%s %d %s\n", what, result, result == ftcclSuccess ? "" : ftcclGetLastError(nullptr));
}

/* A rank of the parent: member ID RANK. Then a word a line: "id", "grow" ID or -, "parent" or
 * "child": which one to reduce on; "shrink" shrinks the one that was reduced on last and reduces;
 * "end". */
CHILD(member)
{
    ftcclConfig_t config = impatient();
    ftcclComm_t comm = nullptr, child = nullptr, last = nullptr, next = nullptr;
    if (ftcclCommInitRankConfig(&comm, kOld, proc::unhex(arguments[0]), std::stoi(arguments[1]),
                                &config) != ftcclSuccess)
        return 1;
    printf("ready\n");
    char text[512];
    while (scanf("%511s", text) == 1 && std::string(text) != "end") {
        std::string what = text;
        ftcclUniqueId id;
        if (what == "id") {
            if (ftcclCommGetUniqueId(comm, &id) != ftcclSuccess)
                return 2;
            printf("%s\n", proc::hex(id).c_str());
        } else if (what == "grow") {
            if (scanf("%511s", text) != 1)
                return 3;
            bool root = std::string(text) != "-";
            if (root)
                id = proc::unhex(text);
            say("grown", ftcclCommGrow(comm, kAll, root ? &id : nullptr, -1, &child, &config));
        } else if (what == "shrink") {
            ftcclResult_t result = ftcclCommShrink(last, nullptr, 0, &next, nullptr,
                                                   FTCCL_SHRINK_DEFAULT);
            if (result == ftcclSuccess)
                result = reduce(next);
            say("shrunk", result);
        } else {
            last = what == "child" ? child : comm;
            say("reduced", reduce(last));
        }
    }
    return 0;
}

CHILD(joiner)
{
    ftcclConfig_t config = impatient();
    ftcclComm_t comm = nullptr, next = nullptr;
    char text[512];
    printf("ready\n");
    if (scanf("%511s", text) != 1)
        return 1;
    say("grown",
        ftcclCommGrow(nullptr, kAll, std::make_unique<ftcclUniqueId>(proc::unhex(text)).get(),
                      std::stoi(arguments[0]), &comm, &config));
    while (scanf("%511s", text) == 1 && std::string(text) != "end") {
        ftcclResult_t result = ftcclSuccess;
        if (std::string(text) == "shrink")
            result = ftcclCommShrink(comm, nullptr, 0, &next, nullptr, FTCCL_SHRINK_DEFAULT);
        if (result == ftcclSuccess)
            result = reduce(next ? next : comm);
        say(next ? "shrunk" : "reduced", result);
    }
    return 0;
}

struct Job {
    std::vector<std::unique_ptr<proc::Child>> rank; /* the parent's, then joiners */
    std::vector<bool> hit = std::vector<bool>(kAll, false);
    size_t root;
    std::string id;

    explicit Job(size_t root_, const std::map<std::string, std::string> &env) : root(root_)
    {
        ftcclUniqueId first;
        EXPECT_OK(ftcclGetUniqueId(&first));
        for (int r = 0; r < kOld; r++)
            rank.push_back(std::make_unique<proc::Child>(
                "member", std::vector<std::string>{proc::hex(first), std::to_string(r)}, env));
        for (int r = kOld; r < kAll; r++)
            rank.push_back(std::make_unique<proc::Child>(
                "joiner", std::vector<std::string>{std::to_string(r)}, env));
        for (auto &child : rank)
            EXPECT_EQ(child->line(60), "ready");
        rank[root]->tell("id");
        id = rank[root]->line();
    }

    void grow(std::mt19937_64 &random)
    {
        std::vector<size_t> order(kAll);
        for (size_t r = 0; r < kAll; r++)
            order[r] = r;
        std::shuffle(order.begin(), order.end(), random);
        for (size_t r : order) {
            if (r >= kOld)
                rank[r]->tell(id);
            else
                rank[r]->tell(r == root ? "grow " + id : "grow -");
        }
    }

    /* What those that were not hit say, one line each; all must say it in time. */
    std::vector<std::string> answers(size_t from, size_t to)
    {
        std::vector<std::string> lines(kAll);
        for (size_t r = from; r < to; r++) {
            if (hit[r])
                continue;
            lines[r] = rank[r]->line(kBound);
            EXPECT_NE(lines[r], "") << "rank " << r << " says nothing";
        }
        return lines;
    }

    std::vector<std::string> tell_all(const std::string &what, size_t to)
    {
        for (size_t r = 0; r < to; r++)
            if (!hit[r])
                rank[r]->tell(what);
        return answers(0, to);
    }
};

bool is(const std::string &line, const char *what, ftcclResult_t result)
{
    std::string want = what + (" " + std::to_string(result)) + " ";
    return line.substr(0, want.size()) == want;
}

/* All of those that were asked and not hit. */
void expect_all(const Job &job, const std::vector<std::string> &lines, size_t to, const char *what,
                ftcclResult_t result)
{
    for (size_t r = 0; r < to; r++)
        if (!job.hit[r]) {
            EXPECT_TRUE(is(lines[r], what, result)) << "rank " << r << " says: " << lines[r];
        }
}

struct Tally {
    int grown = 0, failed = 0;
    double usual = 0; /* seconds that a grow takes when nobody is hit */
};

/* The ranks of a communicator in which somebody may have been hit go on: to == kOld the parent's,
 * else all. */
void go_on(Job &job, const char *which, size_t to)
{
    bool lost = std::find(job.hit.begin(), job.hit.begin() + static_cast<long>(to), true) !=
                job.hit.begin() + static_cast<long>(to);
    std::vector<std::string> lines = job.tell_all(which, to);
    if (!lost) {
        expect_all(job, lines, to, "reduced", ftcclSuccess);
        return;
    }
    for (size_t r = 0; r < to; r++)
        if (!job.hit[r]) {
            EXPECT_TRUE(is(lines[r], "reduced", ftcclRemoteError) ||
                        is(lines[r], "reduced", ftcclTimeout))
                << "rank " << r << " says: " << lines[r];
        }
    expect_all(job, job.tell_all("shrink", to), to, "shrunk", ftcclSuccess);
}

/* Nobody is hit. */
void quiet_grow(const std::map<std::string, std::string> &env, std::mt19937_64 &random,
                Tally &tally)
{
    Job job(random() % kOld, env);
    double start = proc::now();
    job.grow(random);
    expect_all(job, job.answers(0, kAll), kAll, "grown", ftcclSuccess);
    tally.usual = proc::now() - start;
    go_on(job, "child", kAll);
    go_on(job, "parent", kOld);
}

void one_grow(const std::map<std::string, std::string> &env, std::mt19937_64 &random, Tally &tally)
{
    Job job(random() % kOld, env);
    const size_t other = (job.root + 1 + random() % (kOld - 1)) % kOld,
                 joiner = kOld + random() % kJoiners;
    std::vector<size_t> victims[] = {{job.root},         {other},          {joiner},
                                     {job.root, joiner}, {kOld, kOld + 1}, {other, joiner}};
    std::vector<size_t> &chosen = victims[random() % 6];
    int how = random() % 3 ? SIGKILL : SIGSTOP;
    auto when = static_cast<useconds_t>(static_cast<double>(random() % 1500) * 1000 * tally.usual /
                                        (random() % 2 ? 1 : 5));
    auto between = static_cast<useconds_t>(random() % 3000);
    job.grow(random);
    usleep(when);
    for (size_t r : chosen) {
        job.rank[r]->signal(how);
        job.hit[r] = true;
        usleep(between);
    }
    std::vector<std::string> lines = job.answers(0, kAll);
    size_t live = static_cast<size_t>(std::find(job.hit.begin(), job.hit.end(), false) -
                                      job.hit.begin());
    bool grown = is(lines[live], "grown", ftcclSuccess);
    std::string what = std::string(how == SIGKILL ? "killed" : "stopped") + " after " +
                       std::to_string(when) + " us:";
    for (size_t r : chosen)
        what += r == job.root ? " root" : r < kOld ? " survivor" : " joiner";
    SCOPED_TRACE(what);
    (grown ? tally.grown : tally.failed)++;
    for (size_t r = 0; r < kAll; r++) {
        if (job.hit[r])
            continue;
        EXPECT_EQ(is(lines[r], "grown", ftcclSuccess), grown)
            << "rank " << r << " says: " << lines[r] << "\nrank " << live
            << " says: " << lines[live];
        if (!grown) {
            EXPECT_GT(lines[r].size(), 20u) << "rank " << r << " does not say why: " << lines[r];
        }
    }
    if (testing::Test::HasFailure())
        return;
    if (grown)
        go_on(job, "child", kAll);
    else
        go_on(job, "parent", kOld);
    for (size_t r : chosen)
        job.rank[r]->signal(SIGCONT);
    for (size_t r = 0; r < kAll; r++)
        if (!job.hit[r])
            job.rank[r]->tell("end");
    for (size_t r = 0; r < kAll; r++)
        if (!job.hit[r]) {
            EXPECT_EQ(job.rank[r]->wait(kBound), 0) << "rank " << r;
        }
    for (size_t r : chosen)
        if (how == SIGSTOP) {
            EXPECT_NE(job.rank[r]->line(kBound), "")
                << "rank " << r << ", which was stopped, says nothing";
        }
}

class GrowKill : public testing::TestWithParam<const char *>
{
};

TEST_P(GrowKill, EverywhereOrNowhere)
{
    const char *text = getenv("FT_SEED"), *rounds = getenv("FT_ROUNDS");
    unsigned long seed = text ? strtoul(text, nullptr, 10) : std::random_device{}();
    printf("seed %lu; replay: FT_SEED=%lu tests/proc/grow_kill_test --gtest_filter=*%s\n", seed,
           seed, GetParam());
    std::mt19937_64 random(seed);
    Tally tally;
    quiet_grow({{"FTCCL_TRANSPORTS", GetParam()}}, random, tally);
    for (int i = 0; i < (rounds ? atoi(rounds) : 8) && !HasFailure(); i++) {
        SCOPED_TRACE("round " + std::to_string(i));
        one_grow({{"FTCCL_TRANSPORTS", GetParam()}}, random, tally);
    }
    printf("%d grows came about, %d did not; undisturbed one takes %.0f ms\n", tally.grown,
           tally.failed, 1000 * tally.usual);
}
INSTANTIATE_TEST_SUITE_P(Over, GrowKill, testing::Values("shm", "tcp"),
                         [](const auto &over) { return std::string(over.param); });

} // namespace

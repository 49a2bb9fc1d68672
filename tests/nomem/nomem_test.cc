/*
 * Property: if a process once runs out of memory, descriptors, room in shared memory or threads, at
 * any call of the library, nothing crashes, hangs or leaks. The rank on which the call fails goes
 * on, or gets an error of class fatal. The other ranks go on, or get a recoverable error within
 * seconds. A new communicator of all of them works at once. Method: the n-th call of a class fails
 * (fail.h) while ranks run a story (story.h), in separate processes for each n: as threads, or as
 * processes of which one fails, over shared memory and over TCP. `make check` draws one n of each
 * class for each story, way and failing rank by FT_SEED (one rank under sanitizers). FT_NOMEM=all
 * runs all (`make check-nomem`). FT_NOMEM=calls:tcp:1:memory:37 runs one: the story, the way, the
 * failing rank, the class and n; the first words alone run all that begin with them. FT_NOMEM_JOBS:
 * runs at the same time. FT_NOMEM_VERBOSE=1 prints the result of each.
 */
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <list>
#include <random>
#include <sstream>

#include "tests/common/sanitizer.h"
#include "tests/nomem/story.h"
#include "tests/proc/proc.h"

namespace
{

using namespace nomem;

/* How the ranks live, and over what they talk. */
struct Way {
    const char *name;
    bool threads;
    const char *transports;
};
const Way ways[] = {{"threads", true, ""},
                    {"threads-tcp", true, "tcp"},
                    {"shm", false, "shm"},
                    {"tcp", false, "tcp"}};

/* Sanitizers' builds take longer. */
int slowdown()
{
    const char *text = getenv("FT_TEST_SLOWDOWN");
    return text != nullptr && *text ? atoi(text) : 1;
}

/* A run that is over later hangs. Who never comes to a rendezvous or an agreement is waited for
 * until initTimeoutMs, and a few times suspectMs; what is called is over sooner than any bound of
 * an operation. */
const double run_limit_s = 90, call_limit_s = 25, fresh_limit_s = 4;
const int init_limit_ms = 8000, op_limit_ms = 40000;

struct Case {
    const Story *story;
    const Way *way;
    int victim;
    Class which;
    long n;
};

std::string name_of(const Case &c)
{
    std::ostringstream text;
    text << c.story->name << ":" << c.way->name << ":" << c.victim << ":" << class_names[c.which]
         << ":" << c.n;
    return text.str();
}

/* Memory that the processes of a run share, and a file for what they print. */
struct Stage {
    Board *readiness;
    int log;
    Stage(int participants) : log(memfd_create("log", 0))
    {
        void *at = mmap(nullptr, sizeof *readiness, PROT_READ | PROT_WRITE,
                        MAP_SHARED | MAP_ANONYMOUS, -1, 0);
        if (at == MAP_FAILED || log < 0)
            abort();
        readiness = new (at) Board();
        pthread_barrierattr_t attr;
        pthread_barrierattr_init(&attr);
        pthread_barrierattr_setpshared(&attr, PTHREAD_PROCESS_SHARED);
        pthread_barrier_init(&readiness->barrier, &attr, static_cast<unsigned>(participants));
    }
    ~Stage()
    {
        munmap(readiness, sizeof *readiness);
        close(log);
    }
    Stage(const Stage &) = delete;
    std::string printed() const
    {
        std::string text(20000, '\0');
        ssize_t n = pread(log, &text[0], text.size(), 0);
        text.resize(n > 0 ? static_cast<size_t>(n) : 0);
        return text;
    }
};

pid_t start(const Case &c, Stage &stage, int rank)
{
    fflush(nullptr);
    pid_t pid = fork();
    if (pid != 0)
        return pid;
    dup2(stage.log, 2);
    close(stage.log);
    setenv("FTCCL_OP_TIMEOUT_MS", std::to_string(op_limit_ms * slowdown()).c_str(), 1);
    setenv("FTCCL_INIT_TIMEOUT_MS", std::to_string(init_limit_ms * slowdown()).c_str(), 1);
    if (*c.way->transports)
        setenv("FTCCL_TRANSPORTS", c.way->transports, 1);
    Run run = {"", c.which, c.n, c.way->threads, c.victim, stage.readiness};
    live(run, *c.story, rank);
    fflush(nullptr);
    _exit(0);
}

bool is_allowed(const Case &c, int rank, const Outcome &outcome)
{
    ftcclResult_t result = outcome.result;
    if (result == ftcclSuccess || ftcclGetErrorClass(result) == ftcclClassRecoverable)
        return true;
    bool may_fail = c.way->threads || rank == c.victim;
    /* where all ranks meet: nobody can start without it */
    bool service = strstr(outcome.text, "the process that serves the unique id") != nullptr;
    return (may_fail || service) && result == ftcclSystemError;
}

/* What is wrong with the run, line by line. */
std::string judge(const Case &c, const Board &readiness, const Held *expected)
{
    std::ostringstream wrong;
    bool failed = *readiness.failed_call;
    for (int r = 0; r < RANKS; r++) {
        const Outcome &o = readiness.rank[r];
        if (!is_allowed(c, r, o) || (!failed && o.result != ftcclSuccess))
            wrong << "rank " << r << ": " << o.step << " gives " << o.result << ": " << o.text
                  << "\n";
        if (*o.wrong)
            wrong << "rank " << r << ": " << o.wrong << "\n";
        if (o.slowest_s > call_limit_s * slowdown())
            wrong << "rank " << r << ": " << o.slowest << " took " << o.slowest_s << " s\n";
        if (o.fresh != ftcclSuccess)
            wrong << "rank " << r << ": fresh " << o.fresh_step << " gives " << o.fresh << ": "
                  << o.fresh_text << "\n";
        if (o.fresh_s > fresh_limit_s * slowdown())
            wrong << "rank " << r << ": fresh init took " << o.fresh_s << " s\n";
        const Held &held = readiness.held[r];
        if (held.leaks)
            wrong << "rank " << r << ": memory leaks\n";
        if (expected && (held.descriptors > expected[r].descriptors ||
                         held.threads > expected[r].threads || held.names > 0))
            wrong << "rank " << r << ": holds " << held.descriptors << " descriptors more, "
                  << held.threads << " threads more, " << held.names << " names:" << held.list
                  << "\n";
    }
    return wrong.str();
}

/* One run: its processes, until all have ended. */
class Running
{
  public:
    Running(const Case &c) : what(c), stage(RANKS), begin_(proc::now())
    {
        for (int r = 0; r < (c.way->threads ? 1 : RANKS); r++)
            pids_.push_back(start(c, stage, r));
        left_ = pids_.size();
    }
    Running(const Running &) = delete;
    /* One crash, or a hang, ends all. */
    bool is_over()
    {
        for (size_t i = 0; i < pids_.size(); i++) {
            int status;
            if (pids_[i] == 0 || waitpid(pids_[i], &status, WNOHANG) != pids_[i])
                continue;
            pids_[i] = 0;
            left_--;
            if (status != 0 && failure_.empty())
                failure_ = "process " + std::to_string(i) + " ended with status " +
                           std::to_string(status) + "\n";
        }
        if (failure_.empty() && proc::now() - begin_ > run_limit_s * slowdown())
            failure_ = "it hangs\n";
        for (pid_t pid : pids_)
            if (!failure_.empty() && pid > 0)
                kill(pid, SIGKILL);
        return left_ == 0;
    }
    std::string wrong(const Held *expected) const
    {
        return failure_.empty() ? judge(what, *stage.readiness, expected) : failure_;
    }
    std::string detail() const
    {
        std::ostringstream text;
        text << "failed: " << stage.readiness->failed_call << "\n";
        for (const Outcome &o : stage.readiness->rank)
            text << "  result " << o.result << " " << o.step << ": " << o.text << "; slowest "
                 << o.slowest << " " << o.slowest_s << " s, fresh " << o.fresh_s << " s\n";
        return text.str() + stage.printed();
    }

    const Case what;
    Stage stage;

  private:
    std::vector<pid_t> pids_; /* 0: over */
    size_t left_;
    std::string failure_;
    double begin_;
};

/* Most of a run's time is waiting, so some are under way at a time. */
long run_all(const std::vector<Case> &cases, const std::function<void(const Running &)> &over)
{
    const char *text = getenv("FT_NOMEM_JOBS");
    size_t jobs = text ? static_cast<size_t>(atoi(text)) : 8, next = 0;
    std::list<Running> running;
    while (next < cases.size() || !running.empty()) {
        while (next < cases.size() && running.size() < jobs)
            running.emplace_back(cases[next++]);
        poll(nullptr, 0, 1);
        for (auto at = running.begin(); at != running.end();) {
            if (!at->is_over()) {
                ++at;
                continue;
            }
            over(*at);
            at = running.erase(at);
        }
    }
    return static_cast<long>(cases.size());
}

class NoMemory : public testing::TestWithParam<std::tuple<size_t, size_t>>
{
};

/* FT_NOMEM: what is to be run, by the first words of the names of cases. Empty: a sample. */
struct Choice {
    std::string text;
    bool all;
    Choice() : text(getenv("FT_NOMEM") ? getenv("FT_NOMEM") : ""), all(text == "all")
    {
        if (all)
            text = "";
    }
    bool has(const Case &c) const
    {
        return (name_of(c) + ":").compare(0, text.size(), text) == 0;
    }
    bool is_sample() const
    {
        return !all && text.empty();
    }
    /* Some with this story, way and victim. */
    bool has_some(const Case &base) const
    {
        std::string prefix = name_of(base).substr(0, name_of(base).find(":memory") + 1);
        size_t n = std::min(prefix.size(), text.size());
        return prefix.compare(0, n, text, 0, n) == 0;
    }
};

/* All n of each class, or one. Runs differ a little in how many calls they make. */
std::vector<Case> cases_of(const Case &base, const Board &counts, const Choice &choice,
                           std::mt19937 &random)
{
    std::vector<Case> cases;
    for (int k = 0; k < CLASSES; k++) {
        Case c = base;
        c.which = static_cast<Class>(k);
        long most = counts.calls[k] + counts.calls[k] / 8;
        if (choice.is_sample() && most > 0) {
            c.n = std::uniform_int_distribution<long>(1, most)(random);
            cases.push_back(c);
        }
        for (c.n = 1; !choice.is_sample() && c.n <= most; c.n++)
            if (choice.has(c))
                cases.push_back(c);
    }
    return cases;
}

long runs_of_all;

/* A name of which there is none is no success. */
class Something : public testing::Environment
{
    void TearDown() override
    {
        EXPECT_GT(runs_of_all, 0) << "no case of FT_NOMEM=" << Choice().text;
    }
};
const testing::Environment *const something = testing::AddGlobalTestEnvironment(new Something);

TEST_P(NoMemory, Once)
{
    Choice choice;
    const char *seed_text = getenv("FT_SEED");
    unsigned seed = seed_text ? static_cast<unsigned>(atoi(seed_text)) : std::random_device()();
    std::mt19937 random(seed);
    Case base = {&stories[std::get<0>(GetParam())], &ways[std::get<1>(GetParam())], 0, MEMORY, 0};
    long runs = 0;
    double begin = proc::now();
    /* A sample under sanitizers has one of the ranks, which is drawn. */
    int only = choice.is_sample() && is_sanitized() ? static_cast<int>(random() % RANKS) : -1;
    for (; base.victim < (base.way->threads ? 1 : RANKS); base.victim++) {
        if (!choice.has_some(base) || (!base.way->threads && only >= 0 && base.victim != only))
            continue;
        Board whole;
        run_all({base}, [&](const Running &run) {
            ASSERT_EQ(run.wrong(nullptr), "") << name_of(base) << "\n" << run.detail();
            whole = *run.stage.readiness;
        });
        if (HasFatalFailure())
            return;
        std::vector<Case> cases = cases_of(base, whole, choice, random);
        runs += run_all(cases, [&](const Running &run) {
            if (getenv("FT_NOMEM_VERBOSE"))
                printf("%s: %s", name_of(run.what).c_str(), run.detail().c_str()), fflush(stdout);
            std::string wrong = run.wrong(whole.held);
            if (!wrong.empty())
                ADD_FAILURE() << wrong << "FT_SEED=" << seed
                              << "; again: FT_NOMEM=" << name_of(run.what) << "\n"
                              << run.detail();
        });
    }
    runs_of_all += runs;
    printf("%ld runs in %.0f s\n", runs, proc::now() - begin);
}

INSTANTIATE_TEST_SUITE_P(Stories, NoMemory,
                         testing::Combine(testing::Range<size_t>(0, stories.size()),
                                          testing::Range<size_t>(0, 4)));

} // namespace

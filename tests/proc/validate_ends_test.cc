/*
 * Property: whatever happens to a rank or to the asker while a validation pauses a job, nothing
 * hangs and no promise of the job changes: who asked may die, ranks that are stopped are missing,
 * errors come as usual, retries go on, and operations do not time out because of the pause. Method:
 * jobs of processes (validate_job.h). One rank takes messages late, so that measuring takes its
 * time; then a process is killed or stopped, or a communicator aborted.
 */
#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <thread>

#include "tests/proc/validate_job.h"

namespace
{

using validate::Job;
using validate::Options;
using validate::Said;
using namespace validate;

class ValidateEnds : public testing::TestWithParam<const char *>
{
  protected:
    static Options slow(const std::string &kind = "plain")
    {
        Options options;
        options.victim = 2;
        options.kind = kind;
        return options;
    }
};

void expect_failed(Job &job, const std::vector<int> &ranks)
{
    for (int r : ranks)
        EXPECT_EQ(job.rank[size_t(r)]->line(60), "failed") << "rank " << r;
}

/* The tool, which can be killed. */
struct Tool {
    pid_t pid;
    explicit Tool(const std::string &options) : pid(fork())
    {
        if (pid == 0) {
            execl("/bin/sh", "sh", "-c", ("exec ./tools/ftccl-diagnose " + options).c_str(),
                  static_cast<char *>(nullptr));
            _exit(127);
        }
    }
    ~Tool()
    {
        kill(pid, SIGKILL);
        waitpid(pid, nullptr, 0);
    }
};

TEST_P(ValidateEnds, ARankDiesWhileItMeasures)
{
    for (int victim : {0, 1}) { /* rank 0 leads */
        SCOPED_TRACE(victim);
        Job job(4, GetParam(), slow());
        Said said;
        std::thread tool([&] { said = job.validate(); });
        EXPECT_TRUE(job.comes_to(victim, kMeasuring)) << job.state(victim);
        job.rank[size_t(victim)]->signal(SIGKILL);
        tool.join();
        EXPECT_NE(said.status, 0) << said.text;
        EXPECT_LT(said.seconds, 15) << said.text;
        expect_failed(job, victim ? std::vector<int>{0, 2, 3} : std::vector<int>{1, 2, 3});
    }
}

/* The others wait for the rank, which is stopped before it is killed. */
TEST_P(ValidateEnds, ARankDiesWhileOthersWait)
{
    Job job(4, GetParam());
    job.rank[3]->signal(SIGSTOP);
    Said said;
    std::thread tool([&] { said = job.validate(); });
    EXPECT_TRUE(job.comes_to(0, kWaiting)) << job.state(0);
    job.rank[3]->signal(SIGKILL);
    tool.join();
    EXPECT_EQ(said.status, 2) << said.text;
    EXPECT_LT(said.seconds, 15) << said.text;
    expect_failed(job, {0, 1, 2});
}

TEST_P(ValidateEnds, WithRetryTheOthersGoOn)
{
    Job job(4, GetParam(), slow("retry"));
    std::unique_ptr<Tool> tool = std::make_unique<Tool>(job.options_of("4"));
    EXPECT_TRUE(job.comes_to(1, kMeasuring)) << job.state(1);
    job.rank[1]->signal(SIGKILL);
    for (int r : {0, 2, 3})
        EXPECT_TRUE(job.has_ended(r, 10)) << "rank " << r;
    tool.reset();
    job.rank[0]->tell("x");
    for (int r : {0, 2, 3}) {
        EXPECT_GT(atoi(job.rank[size_t(r)]->line(60).c_str()), 20) << "rank " << r;
        EXPECT_EQ(job.rank[size_t(r)]->wait(60), 0) << "rank " << r;
    }
}

TEST_P(ValidateEnds, AnAbort)
{
    Job job(4, GetParam(), slow("abort"));
    Said said;
    std::thread tool([&] { said = job.validate(); });
    EXPECT_TRUE(job.comes_to(0, kMeasuring)) << job.state(0);
    double begin = proc::now();
    job.rank[0]->tell("x");
    std::string first = job.rank[0]->line(60), then = job.rank[0]->line(60);
    EXPECT_TRUE((first == "aborted" && then == "failed") ||
                (first == "failed" && then == "aborted"))
        << first << ", " << then;
    expect_failed(job, {1, 2, 3});
    EXPECT_LT(proc::now() - begin, 15);
    tool.join();
    EXPECT_NE(said.status, 0) << said.text;
    EXPECT_LT(said.seconds, 15) << said.text;
}

TEST_P(ValidateEnds, TheAskerDies)
{
    Job job(4, GetParam(), slow());
    for (int i = 0; i < 3; i++) {
        std::unique_ptr<Tool> tool = std::make_unique<Tool>(job.options_of("2"));
        EXPECT_TRUE(job.comes_to(1, i == 1 ? kWaiting : kMeasuring)) << job.state(1);
        tool.reset();
        for (int r = 0; r < 4; r++)
            EXPECT_TRUE(job.has_ended(r, 10)) << "rank " << r;
    }
    job.expect_right();
}

TEST_P(ValidateEnds, AStoppedRankIsMissingAndTheJobGoesOn)
{
    Job job(4, GetParam(), slow());
    Said said;
    std::thread tool([&] { said = job.validate("2"); });
    EXPECT_TRUE(job.comes_to(3, kMeasuring)) << job.state(3);
    job.rank[2]->signal(SIGSTOP);
    tool.join();
    EXPECT_EQ(said.status, 2) << said.text;
    EXPECT_NE(said.text.find("has no results of ranks 2:"), std::string::npos) << said.text;
    EXPECT_LT(said.seconds, 15) << said.text;
    for (int r : {0, 1, 3})
        EXPECT_EQ(job.state(r), kDone) << "rank " << r;
    job.rank[2]->signal(SIGCONT);
    EXPECT_TRUE(job.has_ended(2, 10)) << job.state(2);
    expect_measured(job.validate());
    job.expect_right();
}

/* Without the limit rank 2 would hold its call for 4 s, and the others would wait for it. */
TEST_P(ValidateEnds, NoOperationTimesOut)
{
    Options options = slow();
    options.late_us = 70000;
    options.timeout_ms = 3000;
    Job job(4, GetParam(), options);
    Said said;
    for (int i = 0; i < 10 && said.text.find("validated communicator") == std::string::npos; i++)
        said = job.validate("60");
    EXPECT_NE(said.text.find("validated communicator"), std::string::npos) << said.text;
    job.expect_right();
}

/* The second one is told so at once, by the rank that is asked or by one that it asks. */
TEST_P(ValidateEnds, TwoAskers)
{
    Job job(4, GetParam(), slow());
    Said first, second;
    std::thread tool([&] { first = job.validate(); });
    EXPECT_TRUE(job.comes_to(1, kMeasuring)) << job.state(1);
    second = job.validate();
    EXPECT_EQ(second.status, 2) << second.text;
    bool told = second.text.find("for another program") != std::string::npos ||
                second.text.find("another validation is under way") != std::string::npos;
    EXPECT_TRUE(told) << second.text;
    EXPECT_LT(second.seconds, 5) << second.text;
    tool.join();
    EXPECT_NE(first.text.find("validated communicator"), std::string::npos) << first.text;
    job.expect_right();
}

INSTANTIATE_TEST_SUITE_P(Transports, ValidateEnds, testing::Values("shm", "tcp"));

/* A rank that is stopped before does not take the request. It is told so, and nothing happens when
 * it goes on later. */
TEST(ValidateTool, AStoppedRankTakesNoRequest)
{
    Job job(3, "shm");
    job.rank[0]->signal(SIGSTOP);
    Said said = job.validate();
    EXPECT_EQ(said.status, 2) << said.text;
    EXPECT_NE(said.text.find("did not take the request"), std::string::npos) << said.text;
    EXPECT_LT(said.seconds, 25);
    job.rank[0]->signal(SIGCONT);
    job.expect_right();
}

} // namespace

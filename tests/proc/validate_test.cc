/*
 * Property: ftccl-diagnose --validate pauses a job, measures its links and processors, names a link
 * or a rank that is slow and nobody else, and the job goes on with the same results, to the last
 * bit. What is written where requests are does nothing unless it is one. Method: jobs of processes
 * (validate_job.h). One rank takes messages late (FTCCL_FAULT), a link between hosts is limited, or
 * other programs use the processor of one rank.
 */
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <random>
#include <regex>
#include <thread>

#include "tests/proc/hogs.h"
#include "tests/proc/validate_job.h"

namespace
{

using validate::Job;
using validate::Options;
using validate::Said;
using namespace validate;

/* One verdict: that link. If it has been slow for long enough, that is known without a
 * validation. */
void expect_slow(const Said &said, int from, int to)
{
    std::regex want("comm_slow_link: the link from rank " + std::to_string(from) +
                    "( \\([^)]*\\))? to rank " + std::to_string(to) + "( \\([^)]*\\))? is slow");
    expect_measured(said);
    EXPECT_EQ(said.status, 1) << said.text;
    EXPECT_TRUE(std::regex_search(said.text, want)) << said.text;
    if (!has_sanitizer()) {
        EXPECT_EQ(said.text.find("_slow"), said.text.rfind("_slow"))
            << "one verdict: " << said.text;
    }
}

bool says(const Said &said, const char *text)
{
    return said.text.find(text) != std::string::npos;
}

/* Too little came in the time of a slot: on a busy machine a rank did not get its processor. */
bool is_cut_short(const Said &said)
{
    return says(said, "cannot tell") || says(said, "nothing came");
}

/* A rank did not get its processor during the measurement: it or another link is called slow, too,
 * or its links are not judged; or too little came in time. */
bool is_disturbed(const Said &said)
{
    const bool several = said.text.find("_slow") != said.text.rfind("_slow");
    return is_cut_short(said) || says(said, "noncomm_slow") || several || said.status == 0;
}

/* The user asks again then, and so do the tests. */
Said validate_until(Job &job, bool (*is_bad)(const Said &))
{
    Said said = job.validate();
    for (int again = 0; is_bad(said) && again < 20; again++)
        said = job.validate();
    return said;
}

Said validate_undisturbed(Job &job)
{
    return validate_until(job, is_disturbed);
}

Said validate_in_time(Job &job)
{
    return validate_until(job, is_cut_short);
}

int descriptors_of(pid_t pid)
{
    std::filesystem::directory_iterator list("/proc/" + std::to_string(pid) + "/fd");
    return int(std::distance(list, {}));
}

std::string names_of_descriptors(pid_t pid)
{
    std::string all;
    for (auto &entry : std::filesystem::directory_iterator("/proc/" + std::to_string(pid) + "/fd"))
        all += std::filesystem::read_symlink(entry).string() + "\n";
    return all;
}

class Validate : public testing::TestWithParam<const char *>
{
};

TEST_P(Validate, AHealthyJobGoesOnWithItsResults)
{
    for (const char *kind : {"plain", "mixed"})
        for (int n : {2, 5}) {
            SCOPED_TRACE(std::string(kind) + ", ranks: " + std::to_string(n));
            Options options;
            options.kind = kind;
            Job job(n, GetParam(), options);
            for (int i = 0; i < 3; i++)
                expect_measured(validate_in_time(job));
            job.expect_right(true);
        }
}

TEST_P(Validate, LongMessagesStayAsTheyAre)
{
    Options options;
    options.count = 1 << 18;
    options.kind = "mixed";
    Job job(4, GetParam(), options);
    for (int i = 0; i < 3; i++)
        expect_measured(validate_in_time(job));
    job.expect_right(true);
}

/* The other one goes on meanwhile; a child of fork does nothing. */
TEST_P(Validate, TwoCommunicatorsAndChildrenOfFork)
{
    for (const char *kind : {"two", "fork"}) {
        SCOPED_TRACE(kind);
        Options options;
        options.kind = kind;
        Job job(3, GetParam(), options);
        for (int i = 0; i < 3; i++)
            expect_measured(validate_in_time(job));
        job.expect_right(true);
    }
}

/* It waits for the next call of all. */
TEST_P(Validate, AJobThatDoesSomethingElse)
{
    Options options;
    options.kind = "idle";
    Job job(3, GetParam(), options);
    Said said;
    std::thread tool([&] { said = job.validate(); });
    EXPECT_TRUE(job.comes_to(2, kWaiting)) << job.state(2);
    usleep(500000);
    EXPECT_EQ(job.state(2), kWaiting);
    for (auto &child : job.rank)
        child->tell("");
    tool.join();
    expect_measured(said);
    job.expect_right(true);
}

TEST_P(Validate, ASlowLinkIsNamed)
{
    Options options;
    options.victim = 2;
    Job job(4, GetParam(), options);
    Said said = validate_undisturbed(job);
    expect_slow(said, 1, 2);
    EXPECT_LT(said.seconds, 3 * 4 + 10);
    Said json = job.validate("4", "--json");
    for (const char *part : {"\"validation\":[{", "\"rank\":1,\"peer\":2", "\"pause_s\":"})
        EXPECT_NE(json.text.find(part), std::string::npos) << part << " in " << json.text;
    job.expect_right();
}

/* Its times are the usual ones whenever it runs. Links of that rank may be slow, too. */
TEST(ValidateTool, ARankBesideOtherProgramsIsNamed)
{
    std::vector<int> cpu = proc::cpus();
    if (cpu.size() < 2 || has_sanitizer())
        GTEST_SKIP() << "one processor only, or a sanitizer";
    Job job(3, "shm");
    for (int r = 0; r < 3; r++)
        proc::place(job.pid(r), cpu[r == 1 ? 1 : 0], r != 1);
    {
        proc::Hogs hogs(20, cpu[1]);
        Said said = validate_in_time(job);
        EXPECT_EQ(said.status, 1) << said.text;
        EXPECT_NE(said.text.find("noncomm_slow: rank 1 (pid"), std::string::npos) << said.text;
        EXPECT_EQ(said.text.find("noncomm_slow"), said.text.rfind("noncomm_slow")) << said.text;
    }
    job.expect_right();
}

TEST_P(Validate, FiftyTimes)
{
    Job job(4, GetParam());
    for (int i = 0; i < 50; i++)
        expect_measured(validate_in_time(job));
    int fds = descriptors_of(job.pid(1));
    for (int i = 0; i < 5; i++)
        expect_measured(validate_in_time(job));
    /* a rank notices a little later that a client or a link has gone */
    for (double end = proc::now() + 20; descriptors_of(job.pid(1)) > fds && proc::now() < end;)
        usleep(10000);
    EXPECT_LE(descriptors_of(job.pid(1)), fds) << names_of_descriptors(job.pid(1));
    job.expect_right();
}

INSTANTIATE_TEST_SUITE_P(Transports, Validate, testing::Values("shm", "tcp"));

/* What is not exactly a request to this very rank does nothing. */
TEST(ValidateTool, HostileRequests)
{
    const char *given = getenv("FT_SEED");
    unsigned seed = given ? unsigned(strtoul(given, nullptr, 0)) : std::random_device{}();
    SCOPED_TRACE("replay: FT_SEED=" + std::to_string(seed) +
                 " tests/proc/validate_test --gtest_filter=*Hostile*");
    std::mt19937_64 random(seed);
    Job job(3, "shm");
    expect_measured(validate_in_time(job)); /* rank 0 has a request with the right sum now */
    std::vector<unsigned char> right(kRequestBytes), bytes;
    int first = open(job.file(0).c_str(), O_RDONLY | O_CLOEXEC);
    ASSERT_EQ(pread(first, right.data(), kRequestBytes, kRequest), ssize_t(kRequestBytes));
    close(first);
    std::vector<std::vector<unsigned char>> before;
    for (int r = 0; r < 3; r++)
        before.push_back(job.row(r));
    for (int round = 0; round < 500; round++) {
        bytes = right;
        for (size_t n = round ? 1 + random() % 6 : 0; n > 0; n--)
            bytes[random() % kRequestBytes] ^= static_cast<unsigned char>(1 + random() % 255);
        if (round % 3 == 2)
            for (unsigned char &byte : bytes)
                byte = static_cast<unsigned char>(random());
        if (round % 3 == 1) { /* as right as it can be, without knowing the sum */
            uint64_t words[] = {random() | 1, job.context(1), UINT64_MAX, 1000};
            memcpy(bytes.data(), words, sizeof words);
        }
        int fd = open(job.file(1).c_str(), O_RDWR | O_CLOEXEC);
        ASSERT_EQ(pwrite(fd, bytes.data(), kRequestBytes, kRequest), ssize_t(kRequestBytes));
        close(fd);
        usleep(2000); /* it looks once a millisecond */
    }
    for (int r = 0; r < 3; r++) /* a new validation would have another number */
        EXPECT_EQ(job.row(r), before[size_t(r)]) << "rank " << r;
    expect_measured(validate_in_time(job));
    job.expect_right();
}

TEST(ValidateTool, RefusesWhatItCannotDo)
{
    for (const char *options :
         {"--validate=0", "--validate=x", "--validate=61", "--validate --watch",
          "--validate --save /tmp/x", "--validate --replay /tmp/x"}) {
        Said said = diagnose(options);
        EXPECT_EQ(said.status, 2) << options << ": " << said.text;
    }
    Said nobody = diagnose("--pid 1 --validate");
    EXPECT_EQ(nobody.status, 2);
    EXPECT_NE(nobody.text.find("cannot tell: "), std::string::npos) << nobody.text;
}

TEST(ValidateTool, ALimitedLinkBetweenHosts)
{
    campaign::Net net;
    if (!net.missing().empty())
        GTEST_SKIP() << net.missing();
    Options options;
    options.net = &net;
    Job job(4, "tcp", options);
    expect_measured(validate_in_time(job));
    net.limit_link(3, 0, 100);
    expect_slow(validate_undisturbed(job), 3, 0);
    job.expect_right();
}

} // namespace

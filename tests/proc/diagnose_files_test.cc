/*
 * Property: the files that ftccl-diagnose writes of a job name the culprit, also when the job is
 * gone, and do what nobody who reads them can be harmed by. Method: jobs of processes of which one
 * does not make its call; each file is read by a program that knows its format.
 */
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <memory>

#include "tests/proc/proc.h"

namespace
{

constexpr int kRanks = 4, kVictim = 2;
const char *const kHostile = "<script>stolen(1)</script>\"'&\\";

/* worker ID RANK: does not make its 21st call if it is the victim. */
CHILD(worker)
{
    int rank = std::stoi(arguments[1]);
    ftcclComm_t comm = nullptr;
    ftcclStream_t stream = nullptr;
    ftcclConfig_t config = FTCCL_CONFIG_INITIALIZER;
    config.commName = kHostile;
    if (ftcclStreamCreate(&stream) != ftcclSuccess ||
        ftcclCommInitRankConfig(&comm, kRanks, proc::unhex(arguments[0]), rank, &config) !=
            ftcclSuccess)
        return 1;
    std::vector<float> data(1 << 16);
    for (int i = 0; i < 20; i++)
        if (ftcclAllReduce(data.data(), data.data(), data.size(), ftcclFloat, ftcclSum, comm,
                           stream) != ftcclSuccess ||
            ftcclStreamSynchronize(stream) != ftcclSuccess)
            return 1;
    printf("running\n");
    if (rank != kVictim && ftcclAllReduce(data.data(), data.data(), data.size(), ftcclFloat,
                                          ftcclSum, comm, stream) == ftcclSuccess)
        ftcclStreamSynchronize(stream);
    char byte;
    while (read(STDIN_FILENO, &byte, 1) > 0) {}
    return 0;
}

struct Said {
    int status;
    std::string text;
};

Said run(const std::string &command)
{
    Said said = {-1, ""};
    FILE *pipe = popen((command + " 2>&1").c_str(), "r");
    char part[4096];
    for (size_t n; pipe && (n = fread(part, 1, sizeof part, pipe)) > 0;)
        said.text.append(part, n);
    int status = pipe ? pclose(pipe) : -1;
    said.status = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
    return said;
}

Said diagnose(const std::string &options)
{
    return run("./tools/ftccl-diagnose " + options);
}

/* A job that hangs, and a directory for what the tool writes of it. */
class Files : public testing::Test
{
  protected:
    std::vector<std::unique_ptr<proc::Child>> rank;
    std::string dir;

    void SetUp() override
    {
        char name[] = "/tmp/ftccl-files-XXXXXX";
        ftcclUniqueId id;
        ASSERT_NE(mkdtemp(name), nullptr);
        dir = name;
        ASSERT_OK(ftcclGetUniqueId(&id));
        for (int r = 0; r < kRanks; r++)
            rank.push_back(std::make_unique<proc::Child>(
                "worker", std::vector<std::string>{proc::hex(id), std::to_string(r)}));
        for (auto &child : rank)
            ASSERT_EQ(child->line(60), "running");
        double end = proc::now() + 30;
        while (ask("").status == 0 && proc::now() < end)
            usleep(50000);
    }
    void TearDown() override
    {
        EXPECT_EQ(system(("rm -r " + dir).c_str()), 0);
    }
    std::string in(const std::string &name) const
    {
        return dir + "/" + name;
    }
    pid_t pid(int r) const
    {
        return rank[static_cast<size_t>(r)]->pid();
    }
    Said ask(const std::string &more) const
    {
        return diagnose("--after 2 --pid " + std::to_string(pid(0)) + " " + more);
    }
    std::string verdict() const
    {
        return "noncomm_hang: rank " + std::to_string(kVictim) + " (pid " +
               std::to_string(pid(kVictim)) + " ";
    }
    /* The disk is full, a directory is missing: status 2, and a sentence. */
    void expect_refused(const std::string &option) const
    {
        for (const char *path : {"/nonexistent/file", "/proc/file"}) {
            Said said = ask(option + " " + path);
            EXPECT_EQ(said.status, 2) << said.text;
            EXPECT_NE(said.text.find("cannot "), std::string::npos) << said.text;
        }
    }
};

TEST_F(Files, WhatWasSavedIsReplayedWhenTheJobIsGone)
{
    std::string kept = in("kept");
    Said first = ask("--explain --save " + kept);
    EXPECT_EQ(first.status, 1);
    EXPECT_EQ(first.text.rfind(verdict(), 0), 0u) << first.text;
    Said again = ask("--save " + kept);
    EXPECT_EQ(again.status, 2) << again.text;
    EXPECT_NE(again.text.find("is there and not an empty directory"), std::string::npos)
        << again.text;
    pid_t of = pid(0);
    for (auto &child : rank)
        child->signal(SIGKILL);
    rank.clear();
    Said later = diagnose("--after 2 --pid " + std::to_string(of) + " --explain --replay " + kept);
    EXPECT_EQ(later.status, 1);
    EXPECT_EQ(later.text, first.text);
    EXPECT_EQ(diagnose("--replay " + dir).status, 2);
    EXPECT_EQ(diagnose("--replay " + kept + " --save " + in("other")).status, 2);
    EXPECT_EQ(diagnose("--save " + in("other") + " --watch").status, 2);
}

} // namespace

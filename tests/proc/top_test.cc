/*
 * Property: ftccl-top shows each rank's state, for whom it waits and how many calls it is behind,
 * as text, as JSON and in a terminal, and ends cleanly. Method: a job in which one rank does not
 * call; the terminal is a pseudo-terminal in which keys are pressed.
 */
#include <fcntl.h>
#include <poll.h>
#include <pty.h>
#include <sys/wait.h>
#include <unistd.h>

#include <memory>
#include <regex>

#include "tests/proc/proc.h"

namespace
{

constexpr int kRanks = 3;

/* worker ID RANK: rank 1 makes 5 steps, the others wait in the sixth. */
CHILD(worker)
{
    int rank = std::stoi(arguments[1]);
    ftcclComm_t comm;
    float data = 1;
    if (ftcclCommInitRank(&comm, kRanks, proc::unhex(arguments[0]), rank) != ftcclSuccess)
        return 1;
    for (uint64_t step = 0; step < (rank == 1 ? 5 : 6); step++) {
        if (step == 5)
            printf("running\n"), fflush(stdout);
        ftcclStep(comm, step);
        if (ftcclAllReduce(&data, &data, 1, ftcclFloat, ftcclSum, comm, nullptr) != ftcclSuccess ||
            ftcclStreamSynchronize(nullptr) != ftcclSuccess)
            return 1;
    }
    printf("running\n"), fflush(stdout);
    char byte;
    while (read(STDIN_FILENO, &byte, 1) > 0) {}
    return 0;
}

struct Job {
    std::vector<std::unique_ptr<proc::Child>> rank;
    Job()
    {
        ftcclUniqueId id;
        EXPECT_OK(ftcclGetUniqueId(&id));
        for (int r = 0; r < kRanks; r++)
            rank.push_back(std::make_unique<proc::Child>(
                "worker", std::vector<std::string>{proc::hex(id), std::to_string(r)}));
        for (auto &child : rank)
            EXPECT_EQ(child->line(60), "running");
    }
    std::string pid() const
    {
        return std::to_string(rank[0]->pid());
    }
};

struct Said {
    int status;
    std::string text;
};

Said top(const std::string &options)
{
    Said said;
    said.text = proc::output_of("./tools/ftccl-top " + options, &said.status);
    return said;
}

/* Asks until the waits are seen. */
Said top_until(const std::string &options, const std::string &pattern)
{
    double end = proc::now() + 30;
    Said said = top(options);
    while (!std::regex_search(said.text, std::regex(pattern)) && proc::now() < end)
        said = top(options);
    return said;
}

TEST(Top, TableAndJson)
{
    Job job;
    std::string once = "--once --delay 0.1 --after 1 --pid " + job.pid();
    Said table = top_until(once, "\n +1 .* CULPRIT");
    EXPECT_EQ(table.status, 0);
    for (const char *pattern : {"3 ranks; noncomm_hang: rank 1 ", "\n +1 .* CULPRIT +1 - ",
                                "\n +0 .* waits +0 from [12] ", "\n +2 .* waits +0 from [01] "})
        EXPECT_TRUE(std::regex_search(table.text, std::regex(pattern))) << pattern << " in\n"
                                                                        << table.text;
    Said sorted = top(once + " --sort behind");
    EXPECT_TRUE(std::regex_search(sorted.text, std::regex("CALL\n +1 "))) << sorted.text;
    Said json = top(once + " --json");
    EXPECT_EQ(json.status, 0);
    for (const char *part : {"{\"version\":1,", "\"state\":\"CULPRIT\"", "\"behind\":1,",
                             "\"call\":\"AllReduce(count 1, float32, sum)\"", "\"step_s\":0.0"})
        EXPECT_NE(json.text.find(part), std::string::npos) << part << " in " << json.text;
}

TEST(Top, RefusesAndFindsNothing)
{
    for (const char *wrong :
         {"--json", "--once --delay 0", "--once --pid 0", "--once --pid x", "--once --sort nothing",
          "nonsense", "--nonsense", "--once --dir /nonexistent"}) {
        Said said = top(wrong);
        EXPECT_EQ(said.status, 2) << wrong;
        EXPECT_NE(said.text, "") << wrong;
    }
    EXPECT_EQ(top("--help").status, 0);
    Said nobody = top("--once --delay 0.1 --pid 1");
    EXPECT_EQ(nobody.status, 0) << nobody.text;
    EXPECT_EQ(nobody.text.rfind("0 ranks", 0), 0u) << nobody.text;
}

/* Reads what the program writes until the pattern comes. */
bool shows(int fd, std::string &all, const std::string &pattern)
{
    double end = proc::now() + 20;
    while (all.find(pattern) == std::string::npos && proc::now() < end) {
        pollfd ready = {fd, POLLIN, 0};
        char bytes[4096];
        ssize_t n = poll(&ready, 1, 100) > 0 ? read(fd, bytes, sizeof bytes) : 0;
        if (n < 0)
            break;
        all.append(bytes, static_cast<size_t>(n));
    }
    return all.find(pattern) != std::string::npos;
}

TEST(Top, InATerminal)
{
    Job job;
    struct winsize size = {30, 160, 0, 0};
    int fd;
    pid_t pid = forkpty(&fd, nullptr, nullptr, &size);
    ASSERT_GE(pid, 0);
    if (pid == 0) {
        setenv("TERM", "vt100", 1);
        execl("./tools/ftccl-top", "ftccl-top", "--delay", "0.1", "--after", "1", "--pid",
              job.pid().c_str(), static_cast<char *>(nullptr));
        _exit(127);
    }
    std::string all;
    bool there = shows(fd, all, "CULPRIT");
    bool without = all.find("built without ncurses") != std::string::npos;
    if (!without) {
        EXPECT_TRUE(there) << all;
        EXPECT_EQ(write(fd, "s", 1), 1);
        EXPECT_TRUE(shows(fd, all, "state")) << all;
        EXPECT_EQ(write(fd, "f", 1), 1);
        EXPECT_TRUE(shows(fd, all, "FROZEN")) << all;
        EXPECT_EQ(write(fd, "\n", 1), 1);
        EXPECT_TRUE(shows(fd, all, "collectives behind")) << all;
        EXPECT_EQ(write(fd, "q", 1), 1);
    }
    int status = -1;
    double end = proc::now() + 20;
    while (waitpid(pid, &status, WNOHANG) == 0 && proc::now() < end)
        shows(fd, all, "never");
    EXPECT_TRUE(WIFEXITED(status)) << status;
    EXPECT_EQ(WEXITSTATUS(status), without ? 2 : 0) << all;
    close(fd);
    if (without)
        GTEST_SKIP() << "built without ncurses";
}

} // namespace

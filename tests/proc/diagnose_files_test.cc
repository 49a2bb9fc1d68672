/*
 * Property: the files that ftccl-diagnose writes of a job name the culprit, also when the job is
 * gone, and do what nobody who reads them can be harmed by. Method: jobs of processes of which one
 * does not make its call; each file is read by a program that knows its format.
 */
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <memory>
#include <regex>
#include <set>

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
    Said said;
    said.text = proc::output_of(command, &said.status);
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
    /* When the disk is full, the file from before stays, and nothing else is left. */
    void expect_kept_when_full(const std::string &option, const std::string &path) const
    {
        std::string before = run("ls -l " + dir + " && md5sum " + path).text;
        Said said = run("trap '' XFSZ; ulimit -f 1; exec ./tools/ftccl-diagnose --after 2 --pid " +
                        std::to_string(pid(0)) + " " + option + " " + path);
        EXPECT_EQ(said.status, 1) << said.text;
        EXPECT_NE(said.text.find("cannot write " + path), std::string::npos) << said.text;
        EXPECT_EQ(run("ls -l " + dir + " && md5sum " + path).text, before);
    }
    /* A file that cannot be written is told; the verdict is told all the same. */
    void expect_refused(const std::string &option) const
    {
        for (const char *path : {"/nonexistent/file", "/proc/file"}) {
            Said said = ask(option + " " + path);
            EXPECT_EQ(said.status, 1) << said.text;
            EXPECT_EQ(said.text.rfind(verdict(), 0), 0u) << said.text;
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

std::string source(const std::string &name)
{
    const char *top = getenv("top_srcdir");
    return std::string(top ? top : "..") + "/tests/proc/" + name;
}

bool have(const std::string &program)
{
    return run("command -v " + program).status == 0;
}

TEST_F(Files, ThePageNamesTheCulpritInABrowser)
{
    std::string page = in("page.html");
    Said said = ask("--html " + page);
    EXPECT_EQ(said.status, 1);
    EXPECT_EQ(said.text.rfind(verdict(), 0), 0u) << said.text;
    expect_refused("--html");
    expect_kept_when_full("--html", page);
    if (!have("python3"))
        GTEST_SKIP() << "there is no python3";
    Said looked = run("python3 " + source("page.py") + " " + page + " " + std::to_string(kVictim) +
                      " " + std::to_string(pid(kVictim)) + " '<script>stolen(1)</script>'");
    if (looked.status == 77)
        GTEST_SKIP() << "there is no Chromium";
    EXPECT_EQ(looked.status, 0) << looked.text;
}

/* Slices of a track lie in each other or apart, every time is in the trace, every arrow and every
 * asynchronous slice has both ends, and the ranks that wait have an arrow from the one to blame. */
TEST_F(Files, TheTraceIsStrictJson)
{
    std::string trace = in("trace.json");
    EXPECT_EQ(ask("--trace " + trace).status, 1);
    expect_refused("--trace");
    expect_kept_when_full("--trace", trace);
    if (!have("python3"))
        GTEST_SKIP() << "there is no python3";
    Said looked = run("python3 " + source("trace.py") + " " + trace + " " + std::to_string(kRanks) +
                      " " + std::to_string(kVictim));
    EXPECT_EQ(looked.status, 0) << looked.text;
}

/* Of a line of metrics: what it says without the value; "": it is malformed. */
std::string series_of(const std::string &line)
{
    static const std::regex form(
        "([a-zA-Z_:][a-zA-Z0-9_:]*(\\{[a-z_]+=\"([^\"\\\\\n]|\\\\[\"\\\\n])*\""
        "(,[a-z_]+=\"([^\"\\\\\n]|\\\\[\"\\\\n])*\")*\\})?) "
        "([-+0-9.e]+)");
    std::smatch match;
    return std::regex_match(line, match, form) ? match[1].str() : "";
}

/* The metric of a series; a histogram has three kinds of series. */
std::string metric_of(const std::string &series, const std::set<std::string> &helped)
{
    std::string name = series.substr(0, series.find('{'));
    for (const std::string end : {"_bucket", "_sum", "_count"})
        if (name.size() > end.size() && name.substr(name.size() - end.size()) == end &&
            helped.count(name.substr(0, name.size() - end.size())))
            return name.substr(0, name.size() - end.size());
    return name;
}

TEST_F(Files, TheMetricsNameTheCulprit)
{
    std::string path = in("ftccl.prom");
    EXPECT_EQ(ask("--prometheus " + path).status, 1);
    expect_refused("--prometheus");
    expect_kept_when_full("--prometheus", path);
    std::ifstream file(path);
    std::set<std::string> series, helped;
    for (std::string line; std::getline(file, line);) {
        bool help = line.rfind("# HELP ", 0) == 0;
        EXPECT_TRUE(!help || helped.insert(line.substr(7, line.find(' ', 7) - 7)).second)
            << "twice: " << line;
        if (line[0] == '#')
            continue;
        std::string one = series_of(line);
        EXPECT_FALSE(one.empty()) << line;
        EXPECT_TRUE(series.insert(one).second) << "twice: " << line;
        EXPECT_TRUE(helped.count(metric_of(one, helped))) << "without a type: " << line;
    }
    auto any = [&](const std::vector<std::string> &parts) {
        return std::any_of(series.begin(), series.end(), [&](const std::string &one) {
            return std::all_of(parts.begin(), parts.end(), [&](const std::string &part) {
                return one.find(part) != std::string::npos;
            });
        });
    };
    std::string victim = ",rank=\"" + std::to_string(kVictim) + "\"";
    std::string named = "comm_name=\"<script>stolen(1)</script>\\\"'&\\\\\"";
    EXPECT_TRUE(any({"ftccl_culprit_waiting_seconds{", "kind=\"noncomm_hang\"", victim,
                     "pid=\"" + std::to_string(pid(kVictim)) + "\""}));
    EXPECT_TRUE(any({"ftccl_calls_total{", victim, "call=\"AllReduce\"", named}));
    EXPECT_TRUE(any({"nccl_bus_bandwidth_gbs{", victim, "collective=\"AllReduce\"", "nranks=\"4\"",
                     "message_size=\"256-257KB\"", "n_nodes=\"1\""}));
    EXPECT_TRUE(any({"nccl_collective_exec_time_microseconds{", victim}));
    EXPECT_TRUE(
        any({"ftccl_large_message_seconds_bucket{", victim, "part=\"consumer\"", "le=\"+Inf\""}));
    if (!have("promtool"))
        return;
    Said said = run("promtool check metrics < " + path +
                    " 2>&1 | grep -v 'use base unit \"seconds\" instead of \"microseconds\"'");
    EXPECT_EQ(said.text, "");
}

} // namespace

/*
 * Property: one question to a rank is answered for the ranks of all hosts, wherever it is asked;
 * ranks of a host whose first rank is stopped are told by another one; a host that does not answer
 * costs the time that the client gives, and its ranks are named unresponsive. Method: processes
 * that are hosts of their own: each has a name, a /dev/shm and a RAS address of its own; the
 * ncclras that is installed asks, and jansson reads the answers.
 */
#include <sched.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/wait.h>
#include <unistd.h>
#include <fcntl.h>

#include <cstring>
#include <memory>
#include <set>

#include "tests/common/sanitizer.h"
#include "tests/proc/hogs.h"
#include "tests/proc/proc.h"

#ifdef FT_HAVE_JANSSON
#include <jansson.h>
#endif

namespace
{

void wait_for_ever()
{
    char byte;
    while (read(STDIN_FILENO, &byte, 1) > 0) {}
    _exit(0);
}

/* A /dev/shm of its own, or that of another process. */
bool enter_host(pid_t other)
{
    if (other != 0) {
        int ns = open(("/proc/" + std::to_string(other) + "/ns/mnt").c_str(), O_RDONLY | O_CLOEXEC);
        bool in = ns >= 0 && setns(ns, CLONE_NEWNS) == 0;
        close(ns);
        return in;
    }
    return unshare(CLONE_NEWNS) == 0 &&
           mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0 &&
           mount("none", "/dev/shm", "tmpfs", 0, nullptr) == 0;
}

bool try_to_enter()
{
    pid_t child = fork();
    int status = 1;
    if (child == 0)
        _exit(enter_host(0) ? 0 : 1);
    return child > 0 && waitpid(child, &status, 0) == child && status == 0;
}

/* The first test asks, before this process has threads. */
bool may_enter_hosts()
{
    static const bool may = try_to_enter();
    return may;
}

/* rank ID NRANKS RANK VICTIM PROCESS: on a host of its own, or on that of the process; all reduces
 * for ever; the victim stops calling after 20 times. */
CHILD(rank)
{
    ftcclComm_t comm;
    ftcclStream_t stream;
    int n = std::stoi(arguments[1]), rank = std::stoi(arguments[2]);
    if (!enter_host(std::stoi(arguments[4])) || ftcclStreamCreate(&stream) != ftcclSuccess)
        return 2;
    printf("in\n");
    fflush(stdout);
    if (ftcclCommInitRank(&comm, n, proc::unhex(arguments[0]), rank) != ftcclSuccess)
        return 1;
    float value = 1;
    for (int i = 0;; i++) {
        if (i == 20)
            printf("running\n");
        if (i >= 20 && rank == std::stoi(arguments[3]))
            wait_for_ever();
        if (ftcclAllReduce(&value, &value, 1, ftcclFloat, ftcclMax, comm, stream) != ftcclSuccess ||
            ftcclStreamSynchronize(stream) != ftcclSuccess)
            wait_for_ever();
        usleep(1000);
    }
}

#ifdef FT_HAVE_JANSSON

struct Hosts {
    std::vector<std::unique_ptr<proc::Child>> rank;
    std::vector<std::string> address; /* of RAS, by rank */

    /* host[r]: the host of rank r, numbered in the order of their first ranks */
    explicit Hosts(const std::vector<int> &host, int victim = -1)
    {
        ftcclUniqueId id;
        std::map<int, size_t> first;
        EXPECT_OK(ftcclGetUniqueId(&id));
        for (size_t r = 0; r < host.size(); r++) {
            bool is_first = first.emplace(host[r], r).second;
            address.push_back("127." + std::to_string(1 + getpid() % 250) + "." +
                              std::to_string(1 + getpid() / 250 % 250) + "." +
                              std::to_string(1 + host[r]));
            rank.push_back(std::make_unique<proc::Child>(
                "rank",
                std::vector<std::string>{proc::hex(id), std::to_string(host.size()),
                                         std::to_string(r), std::to_string(victim),
                                         is_first ? "0" : std::to_string(at(first[host[r]]).pid())},
                std::map<std::string, std::string>{{"NCCL_RAS_ADDR", address[r] + ":28028"},
                                                   {"FTCCL_OP_TIMEOUT_MS", "600000"},
                                                   {"FTCCL_SUSPECT_MS", "600000"},
                                                   {"FTCCL_HOSTID",
                                                    "ras-host-" + std::to_string(host[r])}}));
            EXPECT_EQ(rank.back()->line(60), "in");
        }
        for (auto &child : rank)
            EXPECT_EQ(child->line(60), "running");
    }
    proc::Child &at(size_t r) const
    {
        return *rank[r];
    }
    std::string ask(size_t r, int timeout_s, bool json = true) const
    {
        return proc::output_of("./tools/ncclras -h " + address[r] + " -t " +
                               std::to_string(timeout_s) + (json ? " -f json" : " -v"));
    }
};

struct Answer {
    json_t *all;
    std::string text;
    explicit Answer(const std::string &answer)
        : all(json_loads(answer.c_str(), 0, nullptr)), text(answer)
    {
    }
    ~Answer()
    {
        json_decref(all);
    }
    Answer(const Answer &) = delete;
    json_t *comm() const
    {
        return json_array_get(json_object_get(all, "communicators"), 0);
    }
    long number(const char *key) const
    {
        return static_cast<long>(json_integer_value(json_object_get(comm(), key)));
    }
    long timeouts() const
    {
        return static_cast<long>(
            json_integer_value(json_object_get(json_object_get(all, "ras"), "timeouts_count")));
    }
    double seconds() const
    {
        return json_real_value(json_object_get(json_object_get(all, "ras"), "collection_time_sec"));
    }
    std::set<pid_t> pids(const char *list) const
    {
        std::set<pid_t> pids;
        size_t i;
        json_t *one;
        json_array_foreach(json_object_get(comm(), list), i, one)
            pids.insert(static_cast<pid_t>(json_integer_value(json_object_get(one, "pid"))));
        return pids;
    }
    /* Ranks that are missing, with "unresponsive" and "considered_dead". */
    std::string missing() const
    {
        std::string ranks;
        size_t i;
        json_t *one;
        json_array_foreach(json_object_get(comm(), "missing_ranks"), i, one)
        {
            json_t *status = json_object_get(one, "status");
            ranks += std::to_string(json_integer_value(json_object_get(one, "rank")));
            ranks += json_is_true(json_object_get(status, "unresponsive")) ? "u" : "";
            ranks += json_is_true(json_object_get(status, "considered_dead")) ? "d" : "";
        }
        return ranks;
    }
    std::string verdict() const
    {
        json_t *ftccl = json_object_get(all, "ftccl"),
               *culprit = json_array_get(json_object_get(ftccl, "culprits"), 0);
        return std::string(json_string_value(json_object_get(ftccl, "kind"))) + " " +
               std::to_string(json_integer_value(json_object_get(culprit, "rank")));
    }
};

#define NEEDS_HOSTS()       \
    if (!may_enter_hosts()) \
    GTEST_SKIP() << "mount namespaces are not allowed"

std::vector<int> each_alone(int n)
{
    std::vector<int> host;
    for (int r = 0; r < n; r++)
        host.push_back(r);
    return host;
}

TEST(RasHosts, AnyRankAnswersForAll)
{
    NEEDS_HOSTS();
    Hosts hosts({0, 1, 1, 2, 3, 2});
    std::set<pid_t> all;
    for (auto &child : hosts.rank)
        all.insert(child->pid());
    for (size_t r : {0u, 1u, 4u}) {
        Answer answer(hosts.ask(r, 10));
        ASSERT_NE(answer.all, nullptr) << answer.text;
        EXPECT_EQ(answer.pids("ranks"), all) << answer.text;
        EXPECT_EQ(answer.number("missing_ranks_count"), 0) << answer.text;
        EXPECT_EQ(answer.timeouts(), 0);
        EXPECT_EQ(answer.verdict(), "healthy 0") << answer.text;
    }
    std::string text = hosts.ask(3, 10, false);
    EXPECT_NE(text.find("6 processes looked at in"), std::string::npos) << text;
    EXPECT_NE(text.find("of 4 hosts"), std::string::npos) << text;
}

TEST(RasHosts, AHangIsNamedFromEveryHost)
{
    NEEDS_HOSTS();
    Hosts hosts(each_alone(5), 3);
    double end = proc::now() + 30;
    for (size_t r = 0; r < 5; r++) {
        std::string said = "none";
        for (; said != "noncomm_hang 3" && proc::now() < end; usleep(100000)) {
            Answer answer(hosts.ask(r, 10));
            ASSERT_NE(answer.all, nullptr) << answer.text;
            said = answer.verdict();
        }
        EXPECT_EQ(said, "noncomm_hang 3") << "asked at rank " << r;
    }
}

/* More than one question can ask: some hosts are asked by others. FT_RAS_HOSTS: other numbers. */
TEST(RasHosts, ManyHostsAreATree)
{
    NEEDS_HOSTS();
    const char *given = getenv("FT_RAS_HOSTS");
    const int n = given ? atoi(given) : 20;
    Hosts hosts(each_alone(n));
    Answer answer(hosts.ask(7, 20));
    ASSERT_NE(answer.all, nullptr) << answer.text;
    printf("%d hosts answered within %.3f s\n", n, answer.seconds());
    EXPECT_EQ(answer.number("ranks_count"), n) << answer.missing();
    EXPECT_EQ(answer.timeouts(), 0);
}

/* Also if so many questions to it wait that its link takes no more. FT_RAS_POLLS: their number. */
TEST(RasHosts, WhoIsStoppedIsToldByAnother)
{
    NEEDS_HOSTS();
    const char *given = getenv("FT_RAS_POLLS");
    Hosts hosts({0, 1, 1, 2});
    hosts.at(1).signal(SIGSTOP);
    for (int polls = given ? atoi(given) : 2; polls > 0; polls--)
        hosts.ask(0, 1);
    Answer answer(hosts.ask(0, 6));
    hosts.at(1).signal(SIGCONT);
    ASSERT_NE(answer.all, nullptr) << answer.text;
    EXPECT_EQ(answer.missing(), "1u") << answer.text;
    EXPECT_EQ(answer.number("ranks_count"), 3);
    EXPECT_EQ(answer.timeouts(), 0) << answer.text;
}

TEST(RasHosts, AHostThatDoesNotAnswerIsNamed)
{
    NEEDS_HOSTS();
    Hosts hosts(each_alone(12));
    for (size_t r : {2u, 5u}) /* with 12 hosts each asks another one */
        hosts.at(r).signal(SIGSTOP);
    double began = proc::now();
    Answer answer(hosts.ask(0, 6));
    double took = proc::now() - began;
    std::string text = hosts.ask(0, 4, false);
    for (size_t r : {2u, 5u})
        hosts.at(r).signal(SIGCONT);
    ASSERT_NE(answer.all, nullptr) << answer.text;
    EXPECT_EQ(answer.missing(), "2u5u") << answer.text;
    EXPECT_EQ(answer.timeouts(), 2);
    EXPECT_GT(took, 2.9) << "half of the time that the client gives";
    EXPECT_NE(text.find("rank 2 is unresponsive: its host did not answer"), std::string::npos)
        << text;
    Answer after(hosts.ask(0, 20));
    EXPECT_EQ(after.missing(), "") << after.text;
}

/* Who asks leaves nothing behind, and those who are asked go on. */
/* ftccl-diagnose on the host of a rank; without an address it asks nobody. */
std::string validate_on(const Hosts &hosts, size_t r, const std::string &address)
{
    return proc::output_of("NCCL_RAS_ADDR=" + address + ":28028 nsenter -t " +
                           std::to_string(hosts.at(r).pid()) +
                           " -m --wd=. ./tools/ftccl-diagnose --validate=4 --pid " +
                           std::to_string(hosts.at(r).pid()) + "; echo status $?");
}

TEST(RasHosts, AValidationHasTheResultsOfAllHosts)
{
    NEEDS_HOSTS();
    Hosts hosts({0, 0, 1, 1});
    for (size_t r : {0u, 3u}) {
        std::string said = validate_on(hosts, r, hosts.address[r]);
        EXPECT_NE(said.find("measured"), std::string::npos) << said;
        EXPECT_EQ(said.find("no results"), std::string::npos) << said;
        EXPECT_NE(said.find("status 0"), std::string::npos) << said;
    }
    std::string said = validate_on(hosts, 0, "127.254.254.254");
    EXPECT_NE(said.find("no results of ranks 2, 3: their hosts did not tell, they are stopped, or "
                        "did not come; nobody answers for the ranks of other hosts at "
                        "127.254.254.254"),
              std::string::npos)
        << said;
    EXPECT_NE(said.find("status 2"), std::string::npos) << said;
}

TEST(RasHosts, AValidationNamesASlowRankOfAnotherHost)
{
    NEEDS_HOSTS();
    std::vector<int> cpu = proc::cpus();
    if (cpu.size() < 2 || is_sanitized())
        GTEST_SKIP() << "one processor only, or a sanitizer";
    Hosts hosts({0, 0, 1});
    for (size_t r = 0; r < 3; r++)
        proc::place(hosts.at(r).pid(), cpu[r == 2 ? 1 : 0], r != 2);
    proc::Hogs hogs(20, cpu[1]);
    std::string said = validate_on(hosts, 0, hosts.address[0]);
    EXPECT_NE(said.find("noncomm_slow: rank 2 (pid " + std::to_string(hosts.at(2).pid())),
              std::string::npos)
        << said;
    EXPECT_EQ(said.find("noncomm_slow"), said.rfind("noncomm_slow")) << said;
}

TEST(RasHosts, QuestionsInTheMiddleOfEverything)
{
    NEEDS_HOSTS();
    Hosts hosts(each_alone(6));
    for (int round = 0; round < 30; round++)
        proc::output_of("timeout 0.02 ./tools/ncclras -h " +
                        hosts.address[static_cast<size_t>(round % 6)] + " -f json");
    Answer answer(hosts.ask(0, 20));
    ASSERT_NE(answer.all, nullptr) << answer.text;
    EXPECT_EQ(answer.number("ranks_count"), 6) << answer.missing();
    hosts.at(5).signal(SIGKILL);
    Answer last(hosts.ask(1, 6));
    EXPECT_EQ(last.number("ranks_count"), 5) << last.text;
}

#endif

} // namespace

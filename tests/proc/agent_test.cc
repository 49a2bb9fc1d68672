/*
 * Property: ftccl-agent and ftccld name the rank for which a job waits, over hosts, without its
 * help, whoever of them is killed; strangers, wrong keys and a full disk cost them nothing but a
 * sentence. Method: real ranks of two hosts, made up by FTCCL_HOSTID, an agent for each, a master;
 * pages are fetched until they say what they must.
 */
#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <memory>
#include <random>
#include <regex>

#include "tests/campaign/net.h"
#include "tests/proc/daemons.h"

namespace
{

void wait_for_ever()
{
    char byte;
    while (read(STDIN_FILENO, &byte, 1) > 0) {}
    _exit(0);
}

/* Waits for a child that is stopped. */
void wait_for_child()
{
    pid_t child = fork();
    if (child == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        raise(SIGSTOP);
        _exit(0);
    }
    waitpid(child, nullptr, 0);
}

/* ID NRANKS RANK VICTIM: the victim makes 20 calls, the others try to make more. */
int work(const Words &arguments, void (*stay)(), const char *name = nullptr)
{
    int n = std::stoi(arguments[1]), rank = std::stoi(arguments[2]),
        victim = std::stoi(arguments[3]);
    ftcclComm_t comm;
    float data = 1;
    ftcclConfig_t config = FTCCL_CONFIG_INITIALIZER;
    config.commName = name;
    if (ftcclCommInitRankConfig(&comm, n, proc::unhex(arguments[0]), rank, &config) != ftcclSuccess)
        return 1;
    for (int i = 0;; i++) {
        if (i == 20) {
            printf("running\n");
            fflush(stdout);
        }
        if (i >= 20 && rank == victim)
            stay();
        if (ftcclAllReduce(&data, &data, 1, ftcclFloat, ftcclSum, comm, nullptr) != ftcclSuccess ||
            ftcclStreamSynchronize(nullptr) != ftcclSuccess)
            wait_for_ever();
    }
}

CHILD(worker)
{
    return work(arguments, wait_for_ever);
}

/* exchange ID NRANKS RANK NAMESPACE: all send to all, for ever. */
CHILD(exchange)
{
    int n = std::stoi(arguments[1]), ns = open(arguments[3].c_str(), O_RDONLY | O_CLOEXEC);
    ftcclComm_t comm;
    std::vector<float> in(50000 * static_cast<size_t>(n)), out(in);
    if (ns < 0 || setns(ns, CLONE_NEWNET) != 0 ||
        ftcclCommInitRank(&comm, n, proc::unhex(arguments[0]), std::stoi(arguments[2])) !=
            ftcclSuccess)
        return 1;
    for (int i = 0;; i++) {
        if (i == 3)
            puts("running"), fflush(stdout);
        usleep(5000);
        if (ftcclAlltoAll(in.data(), out.data(), 50000, ftcclFloat, comm, nullptr) !=
                ftcclSuccess ||
            ftcclStreamSynchronize(nullptr) != ftcclSuccess)
            wait_for_ever();
    }
}

/* identify NAMESPACE: a unique id that is served there. */
CHILD(identify)
{
    int ns = open(arguments[0].c_str(), O_RDONLY | O_CLOEXEC);
    ftcclUniqueId id;
    if (ns < 0 || setns(ns, CLONE_NEWNET) != 0 || ftcclGetUniqueId(&id) != ftcclSuccess)
        return 1;
    puts(proc::hex(id).c_str()), fflush(stdout);
    wait_for_ever();
    return 0;
}

const char *const kHostile = "<script>stolen(1)</script>";

CHILD(hostile)
{
    return work(arguments, wait_for_child, kHostile);
}

CHILD(parent)
{
    return work(arguments, wait_for_child);
}

/* counted ID NRANKS RANK VICTIM: a known number of operations; more after a line on stdin. */
CHILD(counted)
{
    int n = std::stoi(arguments[1]), rank = std::stoi(arguments[2]);
    ftcclComm_t comm;
    std::vector<float> in(256 * static_cast<size_t>(n)), out(in);
    if (ftcclCommInitRank(&comm, n, proc::unhex(arguments[0]), rank) != ftcclSuccess)
        return 1;
    for (std::string line = "running"; !line.empty();) {
        bool good = true;
        for (int i = 0; i < 30; i++)
            good &= ftcclAllReduce(in.data(), out.data(), 256, ftcclFloat, ftcclSum, comm,
                                   nullptr) == ftcclSuccess;
        for (int i = 0; i < 20; i++)
            good &= ftcclAllGather(in.data(), out.data(), 256, ftcclFloat, comm, nullptr) ==
                    ftcclSuccess;
        for (int i = 0; i < 10; i++)
            good &= (rank == 0   ? ftcclSend(in.data(), 64, ftcclFloat, 1, comm, nullptr)
                     : rank == 1 ? ftcclRecv(out.data(), 64, ftcclFloat, 0, comm, nullptr)
                                 : ftcclSuccess) == ftcclSuccess;
        if (!good || ftcclStreamSynchronize(nullptr) != ftcclSuccess)
            return 1;
        printf("%s\n", line.c_str());
        fflush(stdout);
        char byte;
        for (line = ""; read(STDIN_FILENO, &byte, 1) > 0 && byte != '\n';)
            line += byte;
    }
    return 0;
}

/* stepper ID NRANKS RANK SLOW: steps of 20 ms; of SLOW, and after a line on stdin, of 80. */
CHILD(stepper)
{
    int n = std::stoi(arguments[1]), rank = std::stoi(arguments[2]);
    ftcclComm_t comm;
    float data = 1;
    bool slow = rank == std::stoi(arguments[3]);
    if (ftcclCommInitRank(&comm, n, proc::unhex(arguments[0]), rank) != ftcclSuccess)
        return 1;
    for (uint64_t step = 0;; step++) {
        pollfd in = {STDIN_FILENO, POLLIN, 0};
        slow |= poll(&in, 1, 0) > 0;
        if (step == 20) {
            printf("running\n");
            fflush(stdout);
        }
        ftcclStep(comm, step);
        usleep(slow ? 80000 : 20000);
        if (ftcclAllReduce(&data, &data, 1, ftcclFloat, ftcclSum, comm, nullptr) != ftcclSuccess ||
            ftcclStreamSynchronize(nullptr) != ftcclSuccess)
            return 1;
    }
}

/* ---- a job ---------------------------------------------------------------------------------- */

struct Job {
    std::vector<std::unique_ptr<proc::Child>> rank;
    Job(int n, int hosts, int victim, const std::string &worker = "worker")
    {
        ftcclUniqueId id;
        EXPECT_OK(ftcclGetUniqueId(&id));
        for (int r = 0; r < n; r++) {
            std::map<std::string, std::string> env = {{"FTCCL_DEBUG", "NONE"},
                                                      {"FTCCL_TIMEOUT", "0"}};
            if (hosts > 0)
                env["FTCCL_HOSTID"] = host(r * hosts / n);
            rank.push_back(std::make_unique<proc::Child>(
                worker,
                Words{proc::hex(id), std::to_string(n), std::to_string(r), std::to_string(victim)},
                env));
        }
        for (auto &child : rank)
            EXPECT_EQ(child->line(60), "running");
    }
    /* What ended ranks of other tests left is not of this host. */
    static std::string host(int number)
    {
        return std::string(testing::UnitTest::GetInstance()->current_test_info()->name()) + "-" +
               std::to_string(getpid()) + "-" + std::to_string(number);
    }
    std::string pid(int r) const
    {
        return std::to_string(rank[static_cast<size_t>(r)]->pid());
    }
};

std::map<std::string, std::string> on_host(int number)
{
    return {{"FTCCL_HOSTID", Job::host(number)}};
}

std::string verdict(const std::string &kind, const std::string &pid)
{
    return "\"kind\":\"" + kind + "\",\"confidence\":[0-9.]+,\"culprits\":\\[\\{\"what\":" +
           "\"rank\"[^}]*\"pid\":" + pid + "\\}\\]";
}

/* Two hosts of two ranks each, their agents and a master. */
struct Cluster {
    Folder folder;
    std::string key = folder.file("key", "a key of the agents in a test\n");
    std::unique_ptr<Daemon> master;
    std::unique_ptr<Daemon> agent[2];
    /* Without the agents of hosts before `first`. */
    explicit Cluster(int first = 0)
    {
        start_master("127.0.0.1:0");
        for (int host = first; host < 2; host++)
            start_agent(host);
    }
    void start_master(const std::string &listen)
    {
        master = std::make_unique<Daemon>("ftccld", Words{"--key-file", key, "--state",
                                                          state("master"), "--listen", listen});
    }
    void start_agent(int host)
    {
        agent[host] = std::make_unique<Daemon>("ftccl-agent",
                                               Words{"--key-file", key, "--master", master->address,
                                                     "--state",
                                                     state("agent" + std::to_string(host))},
                                               on_host(host));
    }
    std::string state(const std::string &name) const
    {
        fs::create_directories(folder.path + "/" + name);
        return folder.path + "/" + name;
    }
};

/* ---- one host -------------------------------------------------------------------------------- */

TEST(Agent, NamesAStoppedRankAndKeepsWhatAKilledOneLeft)
{
    Folder folder;
    Job job(3, 1, -1);
    Daemon agent("ftccl-agent", {"--state", folder.path}, on_host(0));
    agent.until("\"healthy\":true.*\"jobs\":\\[\\{");
    job.rank[1]->signal(SIGSTOP);
    agent.until(verdict("rank_stopped", job.pid(1)));
    std::string page = agent.until("class=\"bad\">rank_stopped: rank 1", "/status");
    EXPECT_NE(page.find("Content-Security-Policy: default-src 'none'"), std::string::npos) << page;
    agent.until("ftccl_verdicts\\{kind=\"rank_stopped\"\\} 1\n", "/metrics");
    job.rank[2]->signal(SIGKILL);
    agent.until("\"snapshots\":1,");
    std::string kept = fs::directory_iterator(folder.path + "/kept")->path();
    std::string said = proc::output_of("./tools/ftccl-diagnose --after 0.2 --json --replay " +
                                       kept);
    EXPECT_TRUE(std::regex_search(said, std::regex("rank_dead"))) << said;
    EXPECT_EQ(agent.stop(), 0);
}

/* The history is there after a restart. */
TEST(Agent, Remembers)
{
    Folder folder;
    {
        Job job(2, 1, 1);
        Daemon agent("ftccl-agent", {"--state", folder.path}, on_host(0));
        agent.until("\"kind\":\"noncomm_hang\".*\"history\".*\"kind\":\"noncomm_hang\"");
        EXPECT_EQ(agent.stop(), 0);
    }
    Daemon agent("ftccl-agent", {"--state", folder.path}, on_host(0));
    agent.until("\"verdicts\":\\[\\],.*\"history\":\\{\"trouble\":null,\"verdicts\":\\[\\{[^\\]]*"
                "\"kind\":\"noncomm_hang\"");
}

std::string source(const std::string &name)
{
    const char *top = getenv("top_srcdir");
    return std::string(top ? top : "..") + "/tests/proc/" + name;
}

/* What tests/proc/inspector.py, a reader of that format, says of a folder. */
std::string read_inspector(const std::string &folder, const std::string &counts, int *status)
{
    return proc::output_of("python3 " + source("inspector.py") + " " + folder + " " + counts,
                           status);
}

/* Every operation is there once, over a restart of the agent, and by ranks of two hosts. */
TEST(Agent, WritesWhatTheInspectorWrites)
{
    Folder folder;
    int status = 1;
    Job job(4, 2, -1, "counted");
    std::string said;
    auto expect = [&](const std::string &counts) {
        for (double end = proc::now() + 30; status == 1 && proc::now() < end; usleep(50000))
            said = read_inspector(folder.path, counts, &status);
        if (status == 127)
            GTEST_SKIP() << "there is no python3";
        EXPECT_EQ(status, 0) << said;
        status = 1;
    };
    {
        Daemon agent("ftccl-agent", {"--inspector", folder.path}, on_host(0));
        expect("ranks=0,1 n_ranks=4 nnodes=2 AllReduce=30 AllGather=20 Send=10 Recv=10");
        agent.child->signal(SIGKILL);
    }
    for (auto &rank : job.rank)
        rank->tell("more");
    for (auto &rank : job.rank)
        EXPECT_EQ(rank->line(20), "more");
    Daemon agent("ftccl-agent", {"--inspector", folder.path}, on_host(0));
    expect("ranks=0,1 n_ranks=4 nnodes=2 AllReduce=60 AllGather=40 Send=20 Recv=20");
    Daemon other("ftccl-agent", {"--inspector", folder.path}, on_host(1));
    expect("ranks=0,1,2,3 n_ranks=4 nnodes=2 AllReduce=60 AllGather=40 Send=20 Recv=20");
}

/* Nothing of a line is left when there is no room for it. */
TEST(Agent, WritesWholeLinesOrNone)
{
    Folder folder;
    int status;
    Job job(2, 1, -1, "counted");
    Daemon agent("ftccl-agent", {"--inspector", folder.path}, on_host(0), "4096");
    agent.until("\"inspector_trouble\":\"cannot write [^\"]*No space");
    std::string said = read_inspector(folder.path, "ranks= n_ranks=2 nnodes=1", &status);
    EXPECT_TRUE(status == 0 || status == 127) << said;
    EXPECT_EQ(agent.stop(), 0);
}

/* Without a master, by what is installed here; the kernel alone tells where the victim waits. */
TEST(Agent, CollectsStacksOfAHang)
{
    Folder folder;
    Job job(4, 1, 2, "parent");
    Daemon agent("ftccl-agent", {"--state", folder.path}, on_host(0));
    std::string said = agent.until("\"stacks\":\\{\"found\":\"outliers\"[^}]*\"ranks\":4,"
                                   "[^}]*\"outliers\":\\[2\\]");
    EXPECT_TRUE(std::regex_search(said, std::regex("\"field\":\"syscall\",\"value\":\"wait4 ")))
        << said;
    EXPECT_TRUE(std::regex_search(said, std::regex("rank 2: its child, process [0-9]+ "
                                                   "\\([^)]*\\), is stopped")))
        << said;
    agent.until("<span class=\"bad\">  outlier: rank 2</span>", "/status");
    agent.until("\"history\".*\"stacks\":\\[\\{[^}]*\"sentence\":\"1 of 4 ranks is elsewhere");
    job.rank[2]->signal(SIGKILL);
    agent.until("\"kind\":\"rank_dead\"");
    EXPECT_EQ(agent.stop(), 0);
}

/* A tool stops a process while it looks at it, which is not why the job waits. */
TEST(Master, ToolsDoNotMakeAStoppedRank)
{
    Folder folder;
    Job job(3, 1, 1);
    std::string key = folder.file("key", "a key that is long enough");
    folder.file("eu-stack", "#!/bin/sh\nkill -STOP $5\n/bin/sleep 1.2\nkill -CONT $5\n", 0700);
    auto env = on_host(0);
    env["PATH"] = folder.path;
    auto expect_the_hang = [&](const Daemon &daemon) {
        std::string said = daemon.until("eu-stack ended with status 0");
        EXPECT_EQ(said.find("rank_stopped"), std::string::npos) << said;
        EXPECT_TRUE(std::regex_search(said, std::regex(verdict("noncomm_hang", job.pid(1)))))
            << said;
    };
    {
        Daemon alone("ftccl-agent", {}, env);
        expect_the_hang(alone);
        EXPECT_EQ(alone.stop(), 0);
    }
    Daemon master("ftccld", {"--key-file", key});
    Daemon agent("ftccl-agent", {"--key-file", key, "--master", master.address}, env);
    expect_the_hang(master);
}

/* A tool that takes for ever costs its time; SIGTERM does not wait for it. */
TEST(Agent, EndsAToolThatHangs)
{
    Folder folder;
    Job job(3, 1, 1);
    auto env = on_host(0);
    env["PATH"] = folder.path;
    folder.file("eu-stack",
                "#!/bin/sh\necho $$ >>" + folder.path +
                    "/asked\ntrap '' TERM\nwhile :; do /bin/sleep 1; done\n",
                0700);
    Daemon agent("ftccl-agent", {"--stacks", "0.5"}, env);
    agent.until("\"found\":\"outliers\",\"compared\":\"/proc\",.*did not end within 0.5 s");
    Daemon other("ftccl-agent", {"--stacks", "600"}, env);
    fs::remove(folder.path + "/asked");
    other.until("\"kind\":\"noncomm_hang\"");
    for (double end = proc::now() + 20; !fs::exists(folder.path + "/asked"); usleep(10000))
        ASSERT_LT(proc::now(), end) << "no tool was asked";
    double begun = proc::now();
    EXPECT_EQ(other.stop(), 0);
    EXPECT_LT(proc::now() - begun, 5);
    std::ifstream asked(folder.path + "/asked");
    for (std::string pid; std::getline(asked, pid);)
        EXPECT_NE(kill(std::stoi(pid), 0), 0) << "tool " << pid << " is left";
    Daemon none("ftccl-agent", {"--stacks", "0"}, env);
    EXPECT_EQ(none.until("\"kind\":\"noncomm_hang\"").find("\"stacks\":{"), std::string::npos);
}

TEST(Agent, GoesOnWithAFullDisk)
{
    Folder folder;
    Job job(2, 1, 1);
    Daemon agent("ftccl-agent", {"--state", folder.path}, on_host(0), "8192");
    std::string said = agent.until("\"history\":\\{\"trouble\":\"[^\"]*memory alone.*"
                                   "\"kind\":\"noncomm_hang\"");
    agent.until("ftccl_history_on_disk 0\n", "/metrics");
    EXPECT_EQ(agent.stop(), 0);
}

/* The counters of a machine that is made up. */
TEST(Agent, ChecksTheHost)
{
    Folder folder;
    auto set = [&](int changes, int errors, int killed) {
        std::string nic = "sys/class/net/eth7/";
        fs::create_directories(folder.path + "/" + nic + "device");
        folder.file(nic + "operstate", killed ? "down\n" : "up\n");
        folder.file(nic + "carrier_changes", std::to_string(changes) + "\n");
        folder.file(nic + "statistics/rx_errors", std::to_string(errors) + "\n");
        folder.file(nic + "statistics/tx_errors", "0\n");
        folder.file("sys/devices/system/edac/mc/mc0/ce_count", "3\n");
        folder.file("sys/devices/system/edac/mc/mc0/ue_count", killed ? "1\n" : "0\n");
        folder.file("proc/pressure/memory",
                    std::string("some avg10=0.00 avg60=0.00 avg300=0.00 total=0\nfull avg10=") +
                        (killed ? "50.00" : "0.00") + " avg60=0.00 avg300=0.00 total=0\n");
    };
    set(2, 1000, 0);
    Daemon agent("ftccl-agent", {"--root", folder.path}, on_host(0));
    for (const char *good : {"nic eth7 link", "nic eth7 flaps", "nic eth7 errors", "edac mc0 fatal",
                             "memory pressure"})
        agent.until(std::string("\"name\":\"") + good + "\",\"state\":\"good\"");
    set(6, 1000000, 1);
    for (const char *bad : {"nic eth7 link", "nic eth7 flaps", "nic eth7 errors", "edac mc0 fatal",
                            "memory pressure"})
        agent.until(std::string("\"name\":\"") + bad + "\",\"state\":\"bad\"");
    agent.until("ftccl_host_check\\{check=\"nic eth7 flaps\"\\} 2\n", "/metrics");
    agent.until("\"alarms\":\\[[^\\]]*nic eth7 flaps");
}

/* A driver that is made up, as far as the agent calls it. */
TEST(Agent, ChecksGpus)
{
    auto with = [](const std::string &what) {
        auto env = on_host(0);
        const char *path = getenv("LD_LIBRARY_PATH");
        env["LD_LIBRARY_PATH"] = std::string("tests/proc/.libs:") + (path ? path : "");
        env["NVML_STANDIN"] = what;
        return env;
    };
    Daemon well("ftccl-agent", {}, with(""));
    for (const char *good : {"gpu driver", "gpu 0", "gpu 1 temperature", "gpu 1 rows"})
        well.until(std::string("\"name\":\"") + good + "\",\"state\":\"good\"");
    EXPECT_EQ(well.stop(), 0);
    Daemon hot("ftccl-agent", {}, with("hot"));
    for (const char *bad : {"gpu 1 temperature", "gpu 1 memory errors", "gpu 1 rows"})
        hot.until(std::string("\"name\":\"") + bad + "\",\"state\":\"bad\"");
    Daemon lost("ftccl-agent", {}, with("lost"));
    lost.until("\"name\":\"gpu 1\",\"state\":\"bad\"");
    Daemon hangs("ftccl-agent", {}, with("hang"));
    hangs.until("\"name\":\"gpu driver\",\"state\":\"bad\"");
    EXPECT_EQ(hangs.stop(), 0);
}

/* ---- hosts and a master ---------------------------------------------------------------------- */

/* The largest report of the host that has one, for each member in it. */
double bytes_a_member(const std::string &json)
{
    std::regex row("\"members\":([0-9]+),\"report_bytes\":([0-9]+)");
    double most = 0;
    for (std::sregex_iterator at(json.begin(), json.end(), row), end; at != end; ++at)
        if (std::stod((*at)[1]) > 0)
            most = std::max(most, std::stod((*at)[2]) / std::stod((*at)[1]));
    return most;
}

TEST(Master, NamesARankOfAnotherHost)
{
    Cluster cluster;
    Job job(4, 2, 3);
    std::string said = cluster.master->until(verdict("noncomm_hang", job.pid(3)));
    EXPECT_NE(said.find("has not called AllReduce(count 1, float32, sum), operation 21 of"),
              std::string::npos)
        << said;
    /* From the full file. A look may find it on its way from one sleep to the next. */
    cluster.master->until("sleeps in ");
    double bytes = bytes_a_member(said);
    EXPECT_GT(bytes, 0) << said;
    EXPECT_LE(bytes, 96 + 20 / 2.0) << "20 bytes a report of two members, and 96 for each";
    cluster.master->until("ftccl_hosts\\{state=\"reports\"\\} 2\n", "/metrics");
    cluster.master->until("<h3>hosts</h3>", "/");
    EXPECT_EQ(cluster.agent[0]->stop(), 0);
    cluster.master->until("\"state\":\"gone\"");
    EXPECT_EQ(cluster.master->stop(), 0);
}

/* The outlier is one of all ranks, though half of those on its host. */
TEST(Master, GathersStacksOfAllHosts)
{
    Cluster cluster;
    Job job(4, 2, 3, "parent");
    std::string said = cluster.master->until("\"stacks\":\\{\"found\":\"outliers\"[^}]*\"ranks\":4,"
                                             "[^}]*\"outliers\":\\[3\\].*\"asked\":4,"
                                             "\"missing\":0");
    EXPECT_TRUE(std::regex_search(said, std::regex("\"field\":\"syscall\",\"value\":\"wait4 ")))
        << said;
    EXPECT_TRUE(std::regex_search(said, std::regex("rank 3: its child, process [0-9]+ "
                                                   "\\([^)]*\\), is stopped")))
        << said;
    cluster.master->until("<span class=\"bad\">  outlier: rank 3</span>", "/status");
    std::string address = cluster.master->address;
    EXPECT_EQ(cluster.master->stop(), 0);
    cluster.agent[1]->child->signal(SIGKILL);
    cluster.start_master(address);
    cluster.master->until(
        "\"history\".*\"stacks\":\\[\\{.*\"sentence\":\"1 of 4 ranks is elsewhere");
}

TEST(Master, ThePageNamesTheCulpritInABrowser)
{
    Cluster cluster;
    Job job(4, 2, 3, "hostile");
    cluster.master->until("\"outliers\":\\[3\\].*\"history\".*\"kind\":\"noncomm_hang\"");
    int status;
    std::string said = proc::output_of("python3 " + source("daemon_page.py") + " " +
                                           cluster.master->address + " 3 " + job.pid(3) + " '" +
                                           kHostile + "'",
                                       &status);
    if (status == 77 || status == 127)
        GTEST_SKIP() << "there is no " << (status == 77 ? "Chromium" : "python3");
    EXPECT_EQ(status, 0) << said;
}

/* One host is known only after the ranks of the other were asked: then all are asked. */
TEST(Master, AsksAlsoAHostThatComesLater)
{
    Cluster cluster(1);
    Job job(4, 2, 3, "parent");
    cluster.master->until("\"stacks\":\\{\"asked\":2,\"missing\":0");
    cluster.start_agent(0);
    cluster.master->until("\"outliers\":\\[3\\]");
    cluster.master->until("\"stacks\":\\{\"asked\":4,\"missing\":0");
}

/* No host sees all ranks, so that no agent can say who is slow; but that it is slower. */
TEST(Master, NamesASlowRankOfAnotherHost)
{
    Cluster cluster;
    Job job(4, 2, -1, "stepper");
    cluster.agent[0]->until("\"jobs\":\\[\\{");
    job.rank[3]->tell("slow");
    cluster.master->until(verdict("noncomm_slow", job.pid(3)), "/status?format=json", 60);
}

/* No step changes, so that only ranks of different hosts can be compared. */
TEST(Master, NamesARankThatWasSlowFromTheStart)
{
    Cluster cluster;
    Job job(4, 2, 3, "stepper");
    cluster.master->until(verdict("noncomm_slow", job.pid(3)), "/status?format=json", 120);
}

/* No step changes, and each host sees only its own links. */
TEST(Master, NamesALinkThatWasSlowFromTheStart)
{
    campaign::Net net;
    if (!net.missing().empty())
        GTEST_SKIP() << net.missing();
    Cluster cluster;
    net.limit_link(1, 2, 40);
    proc::Child served("identify", {net.path(0)});
    std::string id = served.line(30);
    std::vector<std::unique_ptr<proc::Child>> ranks;
    for (int r = 0; r < 4; r++)
        ranks.push_back(std::make_unique<proc::Child>(
            "exchange", Words{id, "4", std::to_string(r), net.path(r)},
            std::map<std::string, std::string>{{"FTCCL_DEBUG", "NONE"},
                                               {"FTCCL_TRANSPORTS", "tcp"},
                                               {"FTCCL_HOSTID", Job::host(r / 2)}}));
    for (auto &rank : ranks)
        EXPECT_EQ(rank->line(60), "running");
    std::string said = cluster.master->until("\"history\".*\"name\":\"[0-9a-f]+ rank 1 peer 2\","
                                             "\"kind\":\"comm_slow_link\"",
                                             "/status?format=json", 90);
    EXPECT_FALSE(std::regex_search(said, std::regex("rank (0|2|3)( peer [0-9])?\",\"kind\":\"")))
        << "another one was named: " << said;
}

/* Fault 37. Whoever is killed, a verdict that was known stays, and comes back. */
TEST(Master, RankStoppedAndAgentOrMasterKilled)
{
    Cluster cluster;
    Job job(4, 2, -1);
    const std::string wanted = verdict("rank_stopped", job.pid(2));
    cluster.master->until("\"members\":2.*\"members\":2");
    job.rank[2]->signal(SIGSTOP);
    cluster.master->until(wanted);
    cluster.agent[1]->child->signal(SIGKILL);
    std::string without = cluster.master->until("\"state\":\"gone\"");
    EXPECT_TRUE(std::regex_search(without, std::regex(wanted))) << without;
    cluster.start_agent(1);
    cluster.master->until(wanted + ".*\"state\":\"reports\".*\"state\":\"reports\"");
    std::string address = cluster.master->address;
    cluster.master->child->signal(SIGKILL);
    cluster.master->child->wait();
    cluster.agent[1]->until(wanted + ".*\"has_master\":false,\"trouble\":\"the master");
    cluster.start_master(address);
    cluster.master->until(wanted);
    cluster.agent[0]->until("\"has_master\":true");
}

/* The agent is killed first: its host is unknown until it is back. */
TEST(Master, AgentKilledAndThenRankStopped)
{
    Cluster cluster;
    Job job(4, 2, -1);
    cluster.master->until("\"members\":2.*\"members\":2");
    cluster.agent[1]->child->signal(SIGKILL);
    cluster.master->until("\"state\":\"gone\"");
    job.rank[2]->signal(SIGSTOP);
    std::string said = cluster.master->until("\"kind\":\"unknown\"|\"trouble\":\"");
    EXPECT_FALSE(
        std::regex_search(said, std::regex("\"kind\":\"(?!unknown|healthy)[a-z_]+\",\"confidence")))
        << "a name without evidence: " << said;
    cluster.start_agent(1);
    cluster.master->until(verdict("rank_stopped", job.pid(2)));
}

/* A host that does not answer is silent, and nobody is named because of it; all comes back. */
TEST(Master, AHostThatDoesNotAnswer)
{
    Cluster cluster;
    Job job(4, 2, -1);
    cluster.master->until("\"members\":2.*\"members\":2");
    cluster.agent[1]->child->signal(SIGSTOP);
    std::string said = cluster.master->until(
        "\"trouble\":\"1 telemetry files or hosts cannot be read.*\"state\":\"silent\"");
    EXPECT_FALSE(std::regex_search(said, std::regex("\"what\":"))) << "a name: " << said;
    cluster.agent[1]->child->signal(SIGCONT);
    cluster.master->until("\"healthy\":true.*\"state\":\"reports\".*\"state\":\"reports\"");
}

/* Others wait until descriptors are free; who is connected stays so. */
TEST(Master, GoesOnWithoutDescriptors)
{
    Folder folder;
    std::string key = folder.file("key", "a key that is long enough");
    Daemon master("ftccld", {"--key-file", key}, {}, "n20");
    Daemon agent("ftccl-agent", {"--key-file", key, "--master", master.address}, on_host(0));
    master.until("\"state\":\"reports\"");
    std::vector<int> held;
    for (int i = 0; i < 60; i++)
        held.push_back(dial(master.address));
    size_t most = 0;
    for (int i = 0; i < 50; i++, usleep(20000)) {
        size_t n = 0;
        for (auto &unused :
             fs::directory_iterator("/proc/" + std::to_string(master.child->pid()) + "/fd"))
            n += !unused.path().empty();
        most = std::max(most, n);
    }
    EXPECT_GE(most, 20u) << "not all descriptors were taken: this has tested nothing";
    for (int fd : held)
        close(fd);
    master.until("\"state\":\"reports\"");
    EXPECT_NE(agent.json().find("\"has_master\":true"), std::string::npos);
    EXPECT_EQ(master.stop(), 0);
}

TEST(Master, IsAnAgentToo)
{
    Job job(2, 1, 1);
    Daemon both("ftccld", {"--agent"}, on_host(0));
    std::string said = both.until(verdict("noncomm_hang", job.pid(1)));
    EXPECT_NE(said.find("sleeps in "), std::string::npos) << said;
    EXPECT_NE(said.find("\"checks\":[{"), std::string::npos) << said;
    EXPECT_EQ(both.stop(), 0);
}

/* A resolver that is slow or hangs costs a master, for a while; the host is looked at meanwhile. */
TEST(Master, ASlowResolverHoldsUpNothing)
{
    Folder folder;
    std::string key = folder.file("key", "a key that is long enough");
    auto env = on_host(0);
    env["LD_PRELOAD"] = fs::absolute("tests/proc/.libs/libresolver_standin.so");
    env["ASAN_OPTIONS"] = "verify_asan_link_order=0";
    Daemon master("ftccld", {"--key-file", key});
    std::string port = master.address.substr(master.address.rfind(':'));
    Job job(2, 1, 1);
    Daemon hangs("ftccl-agent", {"--key-file", key, "--master", "hangs.invalid" + port}, env);
    hangs.until("\"kind\":\"noncomm_hang\"");
    hangs.until("\"trouble\":\"the master hangs.invalid:[0-9]+: its name has not been found");
    double begun = proc::now();
    EXPECT_NE(hangs.json().find(" 200 OK"), std::string::npos);
    EXPECT_LT(proc::now() - begun, 2) << "the page waits for the resolver";
    EXPECT_EQ(hangs.stop(), 0);
    Daemon late("ftccl-agent", {"--key-file", key, "--master", "late.invalid" + port}, env);
    late.until("\"has_master\":true,\"trouble\":null");
    Daemon never("ftccl-agent", {"--key-file", key, "--master", "nobody.invalid" + port}, env);
    never.until("\"trouble\":\"the master nobody.invalid:[0-9]+: cannot find");
}

/* ---- strangers ------------------------------------------------------------------------------- */

TEST(Master, RefusesAWrongKey)
{
    Folder folder;
    std::string right = folder.file("right", "the right key, long enough"),
                wrong = folder.file("wrong", "another key, long enough");
    Daemon master("ftccld", {"--key-file", right});
    Daemon agent("ftccl-agent", {"--key-file", wrong, "--master", master.address}, on_host(0));
    agent.until("\"trouble\":\"the master [^\"]*does not know");
    EXPECT_NE(master.json().find("\"hosts\":[]"), std::string::npos);
    Daemon open("ftccld", {});
    Daemon other("ftccl-agent", {"--key-file", wrong, "--master", open.address}, on_host(0));
    other.until("\"trouble\":\"the master ");
    EXPECT_NE(open.json().find("\"hosts\":[]"), std::string::npos);
}

TEST(Master, RefusesFilesAndOptionsThatAreWrong)
{
    Folder folder;
    std::string shown = folder.file("shown", "a key that all can read", 0644),
                brief = folder.file("brief", "short");
    for (const Words &wrong :
         {Words{"ftccld", "--key-file", shown}, Words{"ftccld", "--key-file", brief},
          Words{"ftccld", "--master", "x:1"}, Words{"ftccl-agent", "--agent"},
          Words{"ftccl-agent", "--master", "x:1"}, Words{"ftccld", "--interval", "0"},
          Words{"ftccld", "nonsense"}, Words{"ftccld", "--listen", "nonsense"},
          Words{"ftccl-agent", "--state", folder.path + "/none"}}) {
        Words words = {"-", "./tools/" + wrong[0]};
        words.insert(words.end(), wrong.begin() + 1, wrong.end());
        proc::Child child("exec", words);
        EXPECT_EQ(child.wait(20), 2) << wrong[0] << " " << wrong[1];
    }
}

/* Connections that say nothing, garbage, endless headers: it still answers, and ends. */
TEST(Master, StrangersCostLittle)
{
    Folder folder;
    std::random_device seed;
    unsigned drawn = seed();
    std::mt19937 draw(drawn);
    SCOPED_TRACE("seed " + std::to_string(drawn));
    Daemon master("ftccld", {"--key-file", folder.file("key", "a key that is long enough")});
    auto files = [&] {
        size_t n = 0;
        for (auto &unused :
             fs::directory_iterator("/proc/" + std::to_string(master.child->pid()) + "/fd"))
            n += !unused.path().empty();
        return n;
    };
    size_t before = files();
    std::vector<int> held;
    for (int i = 0; i < 900; i++) {
        int fd = dial(master.address);
        if (fd < 0)
            continue;
        std::string bytes(draw() % 3000, 'A');
        for (char &c : bytes)
            c = static_cast<char>(draw());
        if (i % 3 == 1)
            bytes = "F" + bytes;
        if (i % 3 == 2)
            bytes = "GET /" + std::string(100000, 'x');
        if (i % 2 != 0)
            (void)!send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
        held.push_back(fd);
        if (i % 150 == 0) {
            EXPECT_NE(master.get("/metrics").find(" 200 OK"), std::string::npos) << i;
        }
    }
    EXPECT_NE(master.until("\"hosts\":\\[\\]", "/status?format=json", 60).find("200 OK"),
              std::string::npos);
    EXPECT_LE(files(), before + 256 + 256 + 128) << "guests, strangers and clients";
    for (int fd : held)
        close(fd);
    EXPECT_NE(master.get("/nonsense").find(" 404 "), std::string::npos);
    EXPECT_EQ(master.stop(), 0);
}

} // namespace

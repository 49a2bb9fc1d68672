/*
 * Property: ftccl-diagnose names the rank for which a job waits, and why, from outside and without
 * the help of any rank; of a healthy job it says so. Method: jobs of processes in which one rank
 * does something else than the others, or is stopped or killed; the tool is asked until it has a
 * verdict.
 */
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <memory>
#include <random>
#include <regex>

#include "tests/proc/proc.h"

namespace
{

constexpr int kRanks = 4;

void wait_for_ever()
{
    char byte;
    while (read(STDIN_FILENO, &byte, 1) > 0) {}
    _exit(0);
}

struct Rank {
    int rank, n;
    ftcclComm_t comm = nullptr, other = nullptr;
    ftcclStream_t stream = nullptr;

    explicit Rank(const std::vector<std::string> &arguments)
        : rank(std::stoi(arguments[2])), n(std::stoi(arguments[1]))
    {
        if (ftcclStreamCreate(&stream) != ftcclSuccess ||
            ftcclCommInitRank(&comm, n, proc::unhex(arguments[0]), rank) != ftcclSuccess ||
            ftcclCommSplit(comm, 0, rank, &other, nullptr) != ftcclSuccess)
            _exit(1);
    }
    void reduce(ftcclComm_t on, size_t count = 1)
    {
        std::vector<float> data(count);
        bool good = ftcclAllReduce(data.data(), data.data(), count, ftcclFloat, ftcclSum, on,
                                   stream) == ftcclSuccess &&
                    ftcclStreamSynchronize(stream) == ftcclSuccess;
        if (!good)
            wait_for_ever();
    }
};

void do_sleep(Rank &)
{
    for (;;)
        sleep(1000);
}

void do_spin(Rank &)
{
    for (volatile unsigned i = 0;; i++) {}
}

void do_read(Rank &)
{
    wait_for_ever();
}

void do_leave(Rank &me)
{
    ftcclCommDestroy(me.other);
    ftcclCommDestroy(me.comm);
    wait_for_ever();
}

/* It is in a call of the other communicator, in which nobody is. */
void do_cross(Rank &me)
{
    me.reduce(me.other);
}

/* The rank before it sends, and it does not receive. */
void do_not_receive(Rank &)
{
    wait_for_ever();
}

const std::map<std::string, void (*)(Rank &)> kFaults = {
    {"sleep", do_sleep}, {"spin", do_spin},   {"read", do_read},
    {"leave", do_leave}, {"cross", do_cross}, {"not_receive", do_not_receive}};

void send_to(Rank &me, int peer)
{
    std::vector<char> data(64 << 20);
    if (ftcclSend(data.data(), data.size(), ftcclInt8, peer, me.comm, me.stream) == ftcclSuccess)
        ftcclStreamSynchronize(me.stream);
    wait_for_ever();
}

/* The others wait for the victim; rank 3 is to be left out and does not come. */
void agree_or_shrink(Rank &me, bool shrink, int victim)
{
    int last = me.n - 1;
    uint64_t flags = 1;
    ftcclComm_t next = nullptr;
    if (me.rank == victim || (shrink && me.rank == last))
        wait_for_ever();
    if (shrink)
        ftcclCommShrink(me.comm, &last, 1, &next, nullptr, FTCCL_SHRINK_DEFAULT);
    else
        ftcclCommAgree(me.comm, &flags);
    wait_for_ever();
}

/* worker ID NRANKS RANK FAULT VICTIM COUNT: the victim does what the fault says instead of its 20th
 * call. "none": nobody does; "idle": all wait without a call; "steps": all compute between calls.
 */
CHILD(worker)
{
    Rank me(arguments);
    const std::string &fault = arguments[3];
    int victim = std::stoi(arguments[4]);
    size_t count = std::stoul(arguments[5]);
    for (int i = 0; i < 20; i++)
        me.reduce(me.comm, count);
    printf("running\n");
    if (fault == "idle")
        wait_for_ever();
    while (fault == "steps") { /* in each the victim computes three times as long */
        usleep(me.rank == victim ? 120000 : 40000);
        me.reduce(me.comm, count);
    }
    if (me.rank == victim && kFaults.count(fault))
        kFaults.at(fault)(me);
    if (fault == "agree" || fault == "shrink")
        agree_or_shrink(me, fault == "shrink", victim);
    if (fault == "not_receive" && me.rank == victim - 1)
        send_to(me, victim);
    if (fault == "not_receive")
        wait_for_ever();
    for (;;)
        me.reduce(me.comm, count);
}

struct Said {
    int status;
    std::string text;
};

Said diagnose(const std::string &options)
{
    Said said;
    said.text = proc::output_of("./tools/ftccl-diagnose " + options, &said.status);
    return said;
}

struct Job {
    std::vector<std::unique_ptr<proc::Child>> rank;
    Job(const std::string &fault, int victim, const std::string &transport, size_t count = 1,
        std::map<std::string, std::string> env = {})
    {
        env["FTCCL_TRANSPORTS"] = transport;
        ftcclUniqueId id;
        EXPECT_OK(ftcclGetUniqueId(&id));
        for (int r = 0; r < kRanks; r++)
            rank.push_back(std::make_unique<proc::Child>(
                "worker",
                std::vector<std::string>{proc::hex(id), std::to_string(kRanks), std::to_string(r),
                                         fault, std::to_string(victim), std::to_string(count)},
                env));
        for (auto &child : rank)
            EXPECT_EQ(child->line(60), "running");
    }
    pid_t pid(int r) const
    {
        return rank[static_cast<size_t>(r)]->pid();
    }
    Said ask(const std::string &more = "--after 2") const
    {
        return diagnose("--pid " + std::to_string(pid(0)) + " " + more);
    }
    /* The first answer other than healthy. */
    Said verdict(const std::string &more = "--after 2") const
    {
        double end = proc::now() + 30;
        Said said = ask(more);
        while (said.status == 0 && proc::now() < end) {
            usleep(50000);
            said = ask(more);
        }
        return said;
    }
};

void expect_verdict(const Said &said, const std::string &kind, const Job &job, int victim)
{
    std::string start = kind + ": rank " + std::to_string(victim) + " (pid " +
                        std::to_string(job.pid(victim)) + " ";
    EXPECT_EQ(said.status, 1) << said.text;
    EXPECT_EQ(said.text.substr(0, start.size()), start) << said.text;
    EXPECT_EQ(said.text.find('\n'), said.text.size() - 1) << "one verdict: " << said.text;
}

class Diagnose : public testing::TestWithParam<const char *>
{
};

TEST_P(Diagnose, ARankThatDoesNotCall)
{
    for (const char *fault : {"sleep", "spin", "read"}) {
        Job job(fault, 2, GetParam());
        expect_verdict(job.verdict(), "noncomm_hang", job, 2);
    }
}

TEST_P(Diagnose, AStoppedRankBetweenCallsAndInsideOne)
{
    for (const char *fault : {"sleep", "none"}) {
        Job job(fault, 1, GetParam(), 1 << 16);
        job.rank[1]->signal(SIGSTOP);
        expect_verdict(job.verdict(), "rank_stopped", job, 1);
    }
}

TEST_P(Diagnose, AKilledRank)
{
    Job job("none", -1, GetParam());
    job.rank[3]->signal(SIGKILL);
    expect_verdict(job.verdict(), "rank_dead", job, 3);
}

TEST_P(Diagnose, TwoCommunicatorsInOppositeOrder)
{
    Job job("cross", 2, GetParam());
    Said said = job.verdict();
    EXPECT_EQ(said.status, 1) << said.text;
    EXPECT_EQ(said.text.rfind("deadlock: ", 0), 0u) << said.text;
}

TEST_P(Diagnose, AMessageThatIsNotReceived)
{
    Job job("not_receive", 2, GetParam());
    expect_verdict(job.verdict(), "comm_hang_receiver", job, 2);
}

TEST_P(Diagnose, ARankThatDoesNotComeToAnAgreement)
{
    for (const char *call : {"agree", "shrink"}) {
        Job job(call, 1, GetParam());
        Said said = job.verdict();
        expect_verdict(said, "noncomm_hang", job, 1);
        EXPECT_NE(said.text.find(*call == 'a' ? "has not called CommAgree of communicator"
                                              : "has not called CommShrink of communicator"),
                  std::string::npos)
            << said.text;
    }
}

TEST_P(Diagnose, AJobThatGoesOnOrRestsIsHealthy)
{
    for (const char *what : {"none", "idle"}) {
        Job job(what, -1, GetParam());
        for (int i = 0; i < 10; i++) {
            Said said = job.ask("--after 20");
            EXPECT_EQ(said.status, 0) << what << ": " << said.text;
            usleep(100000);
        }
    }
}

TEST_P(Diagnose, ARankThatComputesSlowly)
{
    Job job("steps", 2, GetParam());
    expect_verdict(job.verdict("--after 20"), "noncomm_slow", job, 2);
    Job even("steps", -1, GetParam());
    for (int i = 0; i < 10; i++) {
        Said said = even.ask("--after 20");
        EXPECT_EQ(said.status, 0) << said.text;
        usleep(300000);
    }
}

INSTANTIATE_TEST_SUITE_P(Transports, Diagnose, testing::Values("shm", "tcp"));

TEST(DiagnoseTool, ExplainsAndRefuses)
{
    Job job("read", 1, "shm");
    job.verdict();
    Said said = job.ask("--after 2 --explain");
    EXPECT_NE(said.text.find("\n  "), std::string::npos) << said.text;
    EXPECT_EQ(diagnose("--after x").status, 2);
    for (const char *pid : {"0", "-1", "99999999999", "1x", "''"}) {
        Said refused = diagnose("--pid " + std::string(pid));
        EXPECT_EQ(refused.status, 2) << pid;
        EXPECT_NE(refused.text.find("is not the number of a process"), std::string::npos)
            << pid << ": " << refused.text;
    }
    EXPECT_EQ(diagnose("nonsense").status, 2);
    EXPECT_EQ(diagnose("--help").status, 0);
    Said nobody = diagnose("--pid 1");
    EXPECT_EQ(nobody.status, 2);
    EXPECT_NE(nobody.text.find("cannot tell: "), std::string::npos) << nobody.text;
    EXPECT_EQ(diagnose("--dir /nonexistent").status, 2);
    /* The same if some telemetry cannot be read: it may be that of the process. */
    char dir[] = "/tmp/ftccl-strange-XXXXXX";
    ASSERT_NE(mkdtemp(dir), nullptr);
    std::ofstream(std::string(dir) + "/ftccl-" + std::to_string(geteuid()) + "-1-0") << "strange";
    nobody = diagnose("--pid 1 --dir " + std::string(dir));
    EXPECT_EQ(nobody.status, 2) << nobody.text;
    EXPECT_EQ(system(("rm -r " + std::string(dir)).c_str()), 0);
}

std::vector<char> bytes_of(const std::string &path)
{
    std::ifstream in(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}

/* Files that are cut off, that are rubbish, or that somebody has changed behind their header: the
 * tool ends with one of its statuses and says something. */
TEST(DiagnoseTool, HostileFiles)
{
    const char *given = getenv("FT_SEED");
    unsigned seed = given ? static_cast<unsigned>(strtoul(given, nullptr, 0))
                          : std::random_device{}();
    SCOPED_TRACE("replay: FT_SEED=" + std::to_string(seed) +
                 " tests/proc/diagnose_test --gtest_filter=*HostileFiles");
    std::mt19937_64 random(seed);
    Job job("read", 1, "shm");
    char dir[] = "/tmp/ftccl-hostile-XXXXXX";
    ASSERT_NE(mkdtemp(dir), nullptr);
    std::vector<std::pair<std::string, std::vector<char>>> files;
    for (int r = 0; r < kRanks; r++)
        for (const std::string &name : proc::shm_of(job.pid(r)))
            if (name.rfind("ftccl-", 0) == 0)
                files.emplace_back(std::string(dir) + "/" + name, bytes_of("/dev/shm/" + name));
    ASSERT_GE(files.size(), static_cast<size_t>(kRanks));
    for (int round = 0; round < 60; round++) {
        for (const auto &[path, good] : files) {
            std::vector<char> bytes = good;
            if (round % 10 == 9)
                bytes.resize(random() % bytes.size());
            size_t from = round % 10 == 8 ? 0 : 4096; /* the header stays, as a rule */
            for (size_t n = from < bytes.size() ? 1u << random() % 18 : 0; n > 0; n--)
                bytes[from + random() % (bytes.size() - from)] = static_cast<char>(random());
            std::ofstream(path, std::ios::binary)
                .write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
        }
        std::string to = " " + std::string(dir) + "/";
        Said said = diagnose("--explain --dump-fr" + to + "fr --html" + to + "page --trace" + to +
                             "trace --prometheus" + to + "metrics --save" + to + "kept" +
                             std::to_string(round) + " --dir " + dir);
        EXPECT_TRUE(said.status >= 0 && said.status <= 2) << "round " << round << ": " << said.text;
        EXPECT_FALSE(said.text.empty());
    }
    EXPECT_EQ(system(("rm -r " + std::string(dir)).c_str()), 0);
}

/* Python reads them; of the ranks that wait one call has not ended. */
TEST(DiagnoseTool, WritesFlightRecords)
{
    if (system("python3 -c '' 2>/dev/null") != 0)
        GTEST_SKIP() << "there is no python3";
    Job job("read", 1, "shm");
    job.verdict();
    char dir[] = "/tmp/ftccl-flight-XXXXXX";
    ASSERT_NE(mkdtemp(dir), nullptr);
    job.ask("--after 2 --dump-fr " + std::string(dir));
    std::string script = "import pickle,sys\n"
                         "for r in range(4):\n"
                         "    d = pickle.load(open('%s/ftccl_trace_rank_%d' % (sys.argv[1], r), "
                         "'rb'))\n"
                         "    e = d['entries']\n"
                         "    g = d['pg_config'][e[0]['process_group'][0]]['ranks']\n"
                         "    print(sum(x['state'] == 'started' for x in e), len(e) > 20, g)\n";
    std::string text = proc::output_of("python3 -c \"" + script + "\" " + dir + "; rm -r " + dir);
    std::string waits = "1 True [0, 1, 2, 3]\n", reads = "0 True [0, 1, 2, 3]\n";
    EXPECT_EQ(text, waits + reads + waits + waits);
    text = job.ask("--after 2 --dump-fr /proc/nonexistent").text;
    EXPECT_NE(text.find("cannot tell: cannot make /proc/nonexistent"), std::string::npos) << text;
}

/* With FTCCL_DUMP_DIR, one rank of the host keeps a snapshot when the operation is late; its replay
 * names the rank, also when the job is gone. A directory that cannot be made does no harm. */
TEST(DiagnoseTool, ADumpAtTheDeadline)
{
    char dir[] = "/tmp/ftccl-dump-XXXXXX";
    ASSERT_NE(mkdtemp(dir), nullptr);
    std::string list = "ls -d " + std::string(dir) + "/ftccl-*/processes 2>/dev/null" +
                       " | grep -vE '[.][^/.]{6}/processes'", /* it is being written */
        found;
    for (const std::string &to : {std::string(dir), std::string("/proc/nonexistent")}) {
        Job job("read", 1, "shm", 1, {{"FTCCL_OP_TIMEOUT_MS", "1500"}, {"FTCCL_DUMP_DIR", to}});
        double end = proc::now() + 30;
        Said said = job.verdict("--after 1"); /* they have failed, or do soon */
        EXPECT_EQ(said.status, 1) << said.text;
        while (to == dir && found.empty() && proc::now() < end) {
            found += proc::output_of(list);
            usleep(20000);
        }
    }
    ASSERT_EQ(std::count(found.begin(), found.end(), '\n'), 1) << found;
    Said said = diagnose("--after 0.5 --replay " + found.substr(0, found.rfind('/')));
    EXPECT_EQ(said.status, 1) << said.text;
    EXPECT_NE(said.text.find("rank 1 "), std::string::npos) << said.text;
    EXPECT_EQ(system(("rm -r " + std::string(dir)).c_str()), 0);
}

TEST(DiagnoseTool, TellsJson)
{
    Job job("read", 1, "shm");
    job.verdict();
    Said said = job.ask("--after 2 --json");
    if (said.text.find("built without jansson") != std::string::npos)
        GTEST_SKIP() << "built without jansson";
    EXPECT_EQ(said.status, 1);
    for (const char *part :
         {"{\"version\":2,\"kind\":\"noncomm_hang\",\"confidence\":0.9,", "\"rank\":1",
          "\"healthy\":false", "\"candidates\":[]",
          "{\"source\":\"process\",\"rank\":1,\"field\":\"state\",\"value\":\"runs\"}",
          "{\"source\":\"telemetry\",\"rank\":1,\"field\":\"called\",\"value\":",
          "\"advice\":\"look at the program"})
        EXPECT_NE(said.text.find(part), std::string::npos) << part << " in " << said.text;
}

} // namespace

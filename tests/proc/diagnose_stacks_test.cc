/*
 * Property: ftccl-diagnose --stacks says which rank of a real job is elsewhere than the others and
 * where, children too, with the tool that is installed or with none; tools that hang, flood, crash
 * or leave a process stopped are told of and do no harm; every process of the job is afterwards as
 * it was. Method: jobs of processes with one rank that sleeps, reads a FIFO or waits for a stopped
 * child; tools are real ones where installed, and scripts in a directory that is the whole PATH.
 */
#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>
#include <memory>
#include <regex>
#include <set>
#include <sstream>

#include "tests/proc/proc.h"

namespace
{

constexpr int kRanks = 4, kVictim = 2;

void wait_for_ever()
{
    char byte;
    while (read(STDIN_FILENO, &byte, 1) > 0) {}
    _exit(0);
}

} // namespace

/* Names that are looked for in stacks. */
extern "C" {
__attribute__((noinline)) void victim_sleeps()
{
    for (;;)
        sleep(1000);
}

__attribute__((noinline)) void victim_reads(const char *path)
{
    char byte;
    int fd = open(path, O_RDWR | O_CLOEXEC); /* nobody writes */
    while (fd >= 0 && read(fd, &byte, 1) > 0) {}
    _exit(9);
}

__attribute__((noinline)) void victim_waits_for_child()
{
    pid_t child = fork();
    if (child == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        raise(SIGSTOP);
        _exit(0);
    }
    waitpid(child, nullptr, 0);
    wait_for_ever();
}
}

namespace
{

/* worker ID RANK FAULT FIFO */
CHILD(worker)
{
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    int rank = std::stoi(arguments[1]);
    const std::string &fault = arguments[2];
    ftcclComm_t comm, half;
    ftcclStream_t stream;
    if (ftcclStreamCreate(&stream) != ftcclSuccess ||
        ftcclCommInitRank(&comm, kRanks, proc::unhex(arguments[0]), rank) != ftcclSuccess ||
        ftcclCommSplit(comm, rank / 2, rank, &half, nullptr) != ftcclSuccess)
        return 1;
    for (int i = 0;; i++) {
        float data = 1;
        if (i == 20)
            printf("running\n");
        if (i == 20 && rank == kVictim && fault == "sleep")
            victim_sleeps();
        if (i == 20 && rank == kVictim && fault == "fifo")
            victim_reads(arguments[3].c_str());
        if (i == 20 && rank == kVictim && fault == "child")
            victim_waits_for_child();
        if (ftcclAllReduce(&data, &data, 1, ftcclFloat, ftcclSum, comm, stream) != ftcclSuccess ||
            ftcclStreamSynchronize(stream) != ftcclSuccess)
            wait_for_ever();
    }
}

/* As in /proc/<pid>/stat */
char state_of(pid_t pid)
{
    std::ifstream in("/proc/" + std::to_string(pid) + "/stat");
    std::string text((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
    size_t at = text.rfind(") ");
    return at == std::string::npos ? '-' : text[at + 2];
}

struct Place {
    std::string path;
    Place()
    {
        char name[] = "/tmp/ftccl-stacks-XXXXXX";
        EXPECT_NE(mkdtemp(name), nullptr);
        path = name;
    }
    ~Place()
    {
        proc::output_of("rm -r " + path);
    }
    Place(const Place &) = delete;
    void tool(const std::string &name, const std::string &script) const
    {
        std::ofstream(path + "/" + name) << "#!/bin/sh\n" << script << "\n";
        chmod((path + "/" + name).c_str(), 0700);
    }
    std::string read(const std::string &name) const
    {
        std::ifstream in(path + "/" + name);
        return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
    }
};

struct Job {
    Place place;
    std::vector<std::unique_ptr<proc::Child>> rank;
    explicit Job(const std::string &fault)
    {
        ftcclUniqueId id;
        std::string fifo = place.path + "/fifo";
        EXPECT_OK(ftcclGetUniqueId(&id));
        EXPECT_EQ(mkfifo(fifo.c_str(), 0600), 0);
        for (int r = 0; r < kRanks; r++)
            rank.push_back(std::make_unique<proc::Child>(
                "worker", std::vector<std::string>{proc::hex(id), std::to_string(r), fault, fifo},
                std::map<std::string, std::string>{{"FTCCL_TRANSPORTS", "shm"}}));
        for (auto &child : rank)
            EXPECT_EQ(child->line(60), "running");
    }
    pid_t pid(int r) const
    {
        return rank[static_cast<size_t>(r)]->pid();
    }
    std::string ask(const std::string &options, int *status = nullptr,
                    const std::string &path = "") const
    {
        return proc::output_of((path.empty() ? "" : "PATH=" + path + " ") +
                                   "./tools/ftccl-diagnose --pid " + std::to_string(pid(0)) + " " +
                                   options,
                               status);
    }
    /* Asks until there is a verdict, then for stacks. */
    std::string stacks(const std::string &options = "--stacks", const std::string &path = "") const
    {
        int status = 0;
        for (double end = proc::now() + 30; status == 0 && proc::now() < end; usleep(50000))
            ask("--after 2", &status);
        EXPECT_EQ(status, 1);
        return ask("--after 2 --explain " + options, nullptr, path);
    }
    /* No rank is stopped or traced. */
    void expect_untouched() const
    {
        for (int r = 0; r < kRanks; r++)
            EXPECT_EQ(std::string("TtZ-").find(state_of(pid(r))), std::string::npos)
                << "rank " << r << " is in state " << state_of(pid(r));
    }
};

void expect_says(const std::string &text, const std::string &part)
{
    EXPECT_NE(text.find(part), std::string::npos) << "\"" << part << "\" is not in\n" << text;
}

const struct {
    const char *fault, *function, *call; /* where the victim is, and in which system call */
} kFaults[] = {{"sleep", "victim_sleeps", "clock_nanosleep"},
               {"fifo", "victim_reads", "read of /tmp/ftccl-stacks-"},
               {"child", "victim_waits_for_child", "wait4 for process "}};

/* A tool that may not look at other processes here is no tool. */
TEST(DiagnoseStacks, ARankThatIsElsewhere)
{
    for (auto &one : kFaults) {
        SCOPED_TRACE(one.fault);
        Job job(one.fault);
        std::string text = job.stacks();
        expect_says(text, "stacks: 1 of 4 ranks is elsewhere than most (");
        expect_says(text, "  outlier: rank 2\n");
        expect_says(text, "  ranks 0-1, 3\n");
        expect_says(text, one.call);
        if (text.find("most (/proc)") == std::string::npos)
            expect_says(text, one.function);
        else
            expect_says(text, "no stack of ranks 0-3: ");
        job.expect_untouched();
        text = job.stacks("--stacks", "/nonexistent");
        expect_says(text, "stacks: 1 of 4 ranks is elsewhere than most (/proc)\n  outlier: rank 2");
        expect_says(text, "no stack of ranks 0-3: no tool for it is installed: eu-stack, gdb");
    }
}

TEST(DiagnoseStacks, AStoppedChildIsNamedAndStaysAsItIs)
{
    Job job("child");
    std::string text = job.stacks();
    std::smatch match;
    ASSERT_TRUE(std::regex_search(text, match,
                                  std::regex("noncomm_hang: rank 2 .*\n(?:  .*\n)*"
                                             "  rank 2: its child, process ([0-9]+) "
                                             "\\(.*\\), is stopped\n")))
        << text;
    expect_says(text, "rank 2 has a child, process " + match[1].str());
    EXPECT_EQ(state_of(std::stoi(match[1])), 'T');
}

TEST(DiagnoseStacks, WhoeverIsStoppedOrTracedIsLeftAlone)
{
    Job job("sleep");
    pid_t traced = job.pid(3);
    int status;
    job.rank[1]->signal(SIGSTOP);
    bool traces = ptrace(PTRACE_SEIZE, traced, nullptr, nullptr) == 0 &&
                  ptrace(PTRACE_INTERRUPT, traced, nullptr, nullptr) == 0 &&
                  waitpid(traced, &status, __WALL) == traced;
    job.place.tool("gdb", "echo $* >>" + job.place.path + "/asked");
    double start = proc::now();
    std::string text = job.stacks("--stacks", job.place.path);
    EXPECT_LT(proc::now() - start, 30) << text;
    expect_says(text, "no stack of rank 1: gdb was not asked: thread " +
                          std::to_string(job.pid(1)) + " is stopped");
    EXPECT_EQ(state_of(job.pid(1)), 'T');
    if (traces) {
        expect_says(text, "no stack of rank 3: gdb was not asked: process " +
                              std::to_string(getpid()) + " traces it");
        EXPECT_EQ(state_of(traced), 't');
        ptrace(PTRACE_DETACH, traced, nullptr, nullptr);
    }
    std::string asked = job.place.read("asked");
    expect_says(asked, "-p " + std::to_string(job.pid(2)) + " ");
    EXPECT_EQ(asked.find("-p " + std::to_string(job.pid(1)) + " "), std::string::npos) << asked;
}

/* Real tools stop a process for a moment. */
TEST(DiagnoseStacks, AHealthyJobGoesOn)
{
    Job job("none");
    int status = -1;
    for (int i = 0; i < 3; i++) {
        std::string text = job.ask("--after 20 --stacks", &status);
        EXPECT_EQ(status, 0) << text;
        expect_says(text, "\nstacks: ");
        job.expect_untouched();
    }
    std::string text;
    for (double end = proc::now() + 30; proc::now() < end; usleep(50000)) {
        text = job.ask("--after 1", &status);
        if (status == 0)
            break;
    }
    EXPECT_EQ(status, 0) << text;
}

/* ---- false tools ----------------------------------------------------------------------------- */

/* Whoever has been killed takes a moment to go, and who started it, and would reap it, has ended.
 */
bool stays(const std::string &pid)
{
    for (double end = proc::now() + 10; !pid.empty() && proc::now() < end; usleep(1000))
        if (std::string("-ZX").find(state_of(std::stoi(pid))) != std::string::npos)
            return false;
    return !pid.empty();
}

/* eu-stack -m -n 64 -p PID */
struct FalseTools : testing::Test {
    Job job{"fifo"};
    std::string note = "echo $$ >" + job.place.path + "/$5; ";
    FalseTools()
    {
        job.stacks("", "/nonexistent"); /* there is a verdict from now on */
    }
    std::string ask(const std::string &script, const std::string &options = "--stacks=0.5")
    {
        job.place.tool("eu-stack", script);
        double start = proc::now();
        std::string text = job.ask("--after 2 --explain " + options, nullptr, job.place.path);
        EXPECT_LT(proc::now() - start, 20) << text;
        job.expect_untouched();
        for (int r = 0; r < kRanks; r++)
            EXPECT_FALSE(stays(job.place.read(std::to_string(job.pid(r))))) << "a tool is left";
        return text;
    }
};

TEST_F(FalseTools, HangFloodCrashFail)
{
    const std::string all = "no stack of ranks 0-3: eu-stack ",
                      elsewhere = "1 of 4 ranks is elsewhere than most (/proc)\n  outlier: rank 2";
    const struct {
        std::string script, said;
    } cases[] = {
        {note + "trap '' TERM; while :; do /bin/sleep 1; done", "did not end within 0.5 s"},
        {note + "exec >/dev/null 2>&1; exec /bin/sleep 1000", "did not end within 0.5 s"},
        {note + "while :; do echo xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx; done", ""},
        {note + "kill -SEGV $$", "crashed"},
        {note + "echo not permitted; exit 3",
         "ended with status 3 and told no stack: not permitted"},
        {note + "/usr/bin/head -c 100000 /dev/urandom", ""},
        {"/bin/sleep 1000 & echo $! >" + job.place.path + "/$5", "ended with status 0"},
    };
    for (auto &one : cases) {
        SCOPED_TRACE(one.script);
        std::string text = ask(one.script);
        expect_says(text, one.said.empty() ? "no stack of rank" : all + one.said);
        expect_says(text, elsewhere);
    }
    expect_says(ask(note + "exec /usr/bin/head -c 3000000 /dev/zero", "--stacks=9"),
                all + "wrote more than 1048576 bytes");
}

TEST_F(FalseTools, AProcessThatAToolHasLeftStoppedGoesOn)
{
    for (const char *then : {"kill -SEGV $$", "trap '' TERM; while :; do /bin/sleep 1; done"}) {
        std::string text = ask(note + "kill -STOP $5; " + then);
        expect_says(text, "no stack of ranks 0-3: eu-stack ");
    }
}

/* If one fails, the next is asked. */
TEST_F(FalseTools, TheNextToolIsAsked)
{
    job.place.tool("gdb", "while [ \"$1\" != -p ]; do shift; done\n"
                          "echo \"Thread 1 (process $2):\"; echo \"#0  0x1 in work_$1 (a=$2)\"\n"
                          "[ $2 = " +
                              std::to_string(job.pid(kVictim)) + " ] && echo '#1  0x2 in odd ()'");
    std::string text = ask("exit 1");
    expect_says(text, "most (gdb)\n  outlier: rank 2\n");
    EXPECT_EQ(text.find("no stack"), std::string::npos) << text;
}

TEST_F(FalseTools, AToolGetsNoDescriptorsAndASmallEnvironment)
{
    std::string seen = job.place.path + "/seen";
    job.place.tool("eu-stack", "/bin/ls /proc/self/fd >>" + seen + "; /usr/bin/env >>" + seen);
    proc::output_of("exec 7</dev/null; FT_CANARY=1 PATH=" + job.place.path +
                    " ./tools/ftccl-diagnose --stacks --pid " + std::to_string(job.pid(0)));
    std::istringstream lines(job.place.read("seen"));
    std::set<std::string> found;
    for (std::string line; std::getline(lines, line);)
        found.insert(line.substr(0, line.find('=')));
    EXPECT_EQ(found, (std::set<std::string>{"0", "1", "2", "3", "LC_ALL", "PATH", "PWD", "TERM"}));
}

TEST_F(FalseTools, ASignalEndsTheToolsFirst)
{
    job.place.tool("eu-stack", note + "trap '' TERM; while :; do /bin/sleep 1; done");
    double start = proc::now();
    std::string text = proc::output_of(
        "PATH=" + job.place.path + " /usr/bin/timeout 1 ./tools/ftccl-diagnose --stacks=60 --pid " +
        std::to_string(job.pid(0)) + "; echo $?");
    EXPECT_LT(proc::now() - start, 20);
    EXPECT_EQ(text, "124\n");
    for (int r = 0; r < kRanks; r++)
        EXPECT_FALSE(stays(job.place.read(std::to_string(job.pid(r))))) << "a tool is left";
    job.expect_untouched();
}

TEST_F(FalseTools, JsonAPageAndRefusals)
{
    std::string page = job.place.path + "/page.html";
    std::string text = job.ask("--after 2 --json --stacks --html " + page, nullptr, job.place.path);
    for (const char *part :
         {"\"stacks\":{\"found\":\"outliers\",\"compared\":\"/proc\",\"ranks\":4,\"unread\":0",
          "\"outliers\":[2]", "\"rank\":2,\"field\":\"syscall\",\"value\":\"read of /tmp/ftccl-",
          "\"wchan\":\"", "\"syscall\":\"read of ", "\"last_call\":\"AllReduce("})
        expect_says(text, part);
    expect_says(job.place.read("page.html"), "<section id=\"stacks\">");
    int status;
    for (const char *options :
         {"--stacks=x", "--stacks=0", "--stacks --watch", "--stacks --replay /tmp"}) {
        job.ask(options, &status);
        EXPECT_EQ(status, 2) << options;
    }
}

} // namespace

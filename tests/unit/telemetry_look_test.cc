/*
 * Property: a snapshot has the ranks that wait in init, what each process has noticed of its peers,
 * and what the kernel tells of threads and children. Method: files of a private directory, written
 * as an engine does; processes that are stopped, whole or in one thread.
 */
#include "telemetry_fixture.h"

#include <signal.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/wait.h>

#include <functional>
#include <thread>

extern "C" {
#include "telemetry/saved.h"
}

namespace
{

using Snapshot = std::unique_ptr<ft_snapshot, void (*)(ft_snapshot *)>;

class TelemetryLook : public Telemetry
{
  protected:
    Snapshot collect() const
    {
        ft_snapshot *snapshot = nullptr;
        EXPECT_EQ(ft_snapshot_collect(dir.c_str(), &snapshot), FT_OK);
        return {snapshot, ft_snapshot_free};
    }
};

TEST_F(TelemetryLook, ARankThatJoins)
{
    struct ft_telemetry *t = open();
    clock_ns = 77;
    int row = ft_telemetry_comm_join(t, 0x5, 4, 2, "world");
    ft_telemetry_comm_arrived(t, row, 3);
    Snapshot s = collect();
    ASSERT_EQ(s->nmembers, 1);
    EXPECT_TRUE(s->members[0].joins);
    EXPECT_FALSE(s->members[0].open);
    EXPECT_EQ(s->members[0].rank, 2);
    EXPECT_EQ(s->members[0].nranks, 4);
    EXPECT_EQ(s->members[0].arrived, 3);
    EXPECT_EQ(s->members[0].opened_ns, 77u);
    int other = ft_telemetry_comm_open(t, 0x6, 0, 4, 2, "");
    EXPECT_NE(other, row) << "the row is in use";
    ft_telemetry_comm_joined(t, row);
    s = collect();
    ASSERT_EQ(s->nmembers, 1);
    EXPECT_EQ(s->members[0].ctx, 0x6u);
    EXPECT_FALSE(s->members[0].joins);
    ft_telemetry_close(t);
}

TEST_F(TelemetryLook, TheLatestNewsOfAPeer)
{
    struct ft_telemetry *t = open();
    int row = ft_telemetry_comm_open(t, 0x5, 0, 3, 0, "world");
    for (int r = 0; r < 3; r++)
        ft_telemetry_seat(t, row, r, 100 + (uint64_t)r, 0);
    const std::vector<std::pair<int, enum ft_news>> cases = {{FT_PEER_LOST, FT_NEWS_LOST},
                                                             {FT_PEER_UNREACHABLE, FT_NEWS_LOST},
                                                             {FT_PEER_LEFT, FT_NEWS_LEFT},
                                                             {FT_PEER_DEAD, FT_NEWS_DEAD},
                                                             {FT_PEER_OPEN, FT_NEWS_NONE}};
    for (auto [state, news] : cases) {
        for (int i = 0; i < 700; i++) /* the ring of events goes round */
            ft_telemetry_event(t, FT_MOVED_PEER, 999, 9, FT_PEER_OPEN, FT_PEER_LOST, FT_OK);
        ft_telemetry_event(t, FT_MOVED_PEER, 102, 2, FT_PEER_OPEN, state, FT_OK);
        ft_telemetry_event(t, FT_MOVED_COMM, 101, 1, FT_COMM_OPEN, FT_COMM_FAILED, FT_LINK);
        Snapshot s = collect();
        ASSERT_EQ(s->nseats, 3);
        for (int i = 0; i < 3; i++) {
            EXPECT_EQ(s->seats[i].news, s->seats[i].rank == 2 ? news : FT_NEWS_NONE) << state;
            EXPECT_EQ(s->seats[i].teller, 0);
        }
    }
    ft_telemetry_close(t);
}

/* A child that runs this function; killed at the end. */
struct Process {
    pid_t pid;
    explicit Process(const std::function<void()> &f) : pid(fork())
    {
        if (pid != 0)
            return;
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        f();
        for (;;)
            pause();
    }
    ~Process()
    {
        kill(pid, SIGKILL);
        waitpid(pid, nullptr, 0);
    }
    ft_tm_seen look() const
    {
        ft_tm_seen seen = {};
        uint64_t start;
        char letter = '?';
        seen.state = FT_PROCESS_RUNS;
        EXPECT_TRUE(ft_tm_process(pid, &letter, &start));
        ft_process_look(pid, letter, &seen);
        return seen;
    }
    /* Looks until it is as expected, for some seconds. */
    ft_tm_seen until(const std::function<bool(const ft_tm_seen &)> &good) const
    {
        ft_tm_seen seen = look();
        for (int i = 0; i < 2000 && !good(seen); i++) {
            usleep(5000);
            seen = look();
        }
        return seen;
    }
};

TEST(Process, ItsChildIsStopped)
{
    Process process([] {
        if (fork() == 0) {
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            raise(SIGSTOP);
        }
        wait(nullptr);
    });
    auto named = [](const ft_tm_seen &e) { return strstr(e.doing, ", its child, is stopped"); };
    ft_tm_seen seen = process.until(named);
    EXPECT_TRUE(named(seen)) << seen.doing;
    EXPECT_EQ(seen.state, FT_PROCESS_RUNS);
}

int entries(const std::string &path)
{
    int n = 0;
    DIR *list = opendir(path.c_str());
    while (struct dirent *entry = list ? readdir(list) : nullptr)
        n += entry->d_name[0] != '.';
    if (list)
        closedir(list);
    return n;
}

TEST(Process, IsStoppedOrOneOfItsThreads)
{
    Process process([] {
        std::thread([] {
            for (;;)
                pause();
        }).detach();
    });
    std::string tasks = "/proc/" + std::to_string(process.pid) + "/task";
    ft_tm_seen seen = process.until([&](auto &) { return entries(tasks) == 2; });
    EXPECT_EQ(seen.state, FT_PROCESS_RUNS) << seen.doing;
    kill(process.pid, SIGSTOP);
    seen = process.until([](auto &e) { return e.state == FT_PROCESS_STOPPED; });
    EXPECT_EQ(seen.state, FT_PROCESS_STOPPED) << seen.doing;
    kill(process.pid, SIGCONT);
    seen = process.until([](auto &e) { return e.state == FT_PROCESS_RUNS; });
    EXPECT_EQ(seen.state, FT_PROCESS_RUNS) << seen.doing;
    if (ptrace(PTRACE_SEIZE, process.pid, nullptr, nullptr) != 0)
        GTEST_SKIP() << "ptrace is not allowed";
    ptrace(PTRACE_INTERRUPT, process.pid, nullptr, nullptr);
    seen = process.until([](auto &e) { return e.state == FT_PROCESS_FROZEN; });
    EXPECT_EQ(seen.state, FT_PROCESS_FROZEN) << seen.doing;
    std::string text = "has stopped thread " + std::to_string(process.pid) + ", others run";
    EXPECT_EQ(std::string(seen.doing), text);
    ptrace(PTRACE_DETACH, process.pid, nullptr, nullptr);
}

} // namespace

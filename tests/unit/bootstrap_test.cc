// Property: ranks with the same unique id all get the same table and key. If something is wrong (a
// rank missing, claimed twice, of another size or configuration, dead, cancelled), every rank that
// came learns it, with a name, within its bound. Method: ranks are threads of this process over
// real sockets; deaths are real child processes that are killed.
#include "bootstrap_helpers.h"

#include <algorithm>
#include <atomic>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

class Bootstrap : public testing::Test
{
  protected:
    void SetUp() override
    {
        before = ft_fd_count();
    }
    void TearDown() override
    {
        ft_bootstrap_stop();
        EXPECT_EQ(0, ft_unique_ids_served());
        EXPECT_EQ(before, ft_fd_count());
        ft_service_set_env(nullptr);
    }
    int before = 0;
};

TEST_F(Bootstrap, EveryRankGetsTheSameTable)
{
    for (int n = 1; n <= 16; n++) {
        SCOPED_TRACE(n);
        expect_tables(join_calls(calls_for({make_id()}, n)));
        EXPECT_TRUE(eventually([] { return ft_unique_ids_served() == 0; }))
            << ft_unique_ids_served();
    }
}

TEST_F(Bootstrap, SixtyFourThreadsAtOnce)
{
    expect_tables(join_calls(calls_for({make_id()}, 64)));
}

TEST_F(Bootstrap, JobsDoNotShareKeys)
{
    auto a = join_calls(calls_for({make_id()}, 2)), b = join_calls(calls_for({make_id()}, 2));
    expect_tables(a);
    expect_tables(b);
    EXPECT_NE(a[0].table->job, b[0].table->job);
    EXPECT_NE(0, memcmp(a[0].table->key, b[0].table->key, FT_SECRET_BYTES));
}

TEST_F(Bootstrap, SeveralIdsShareTheWork)
{
    for (int nids : {2, 3, 5}) {
        SCOPED_TRACE(nids);
        std::vector<Id> ids;
        for (int i = 0; i < nids; i++)
            ids.push_back(make_id());
        expect_tables(join_calls(calls_for(ids, 8)));
        EXPECT_TRUE(eventually([] { return ft_unique_ids_served() == 0; }))
            << ft_unique_ids_served();
    }
}

TEST_F(Bootstrap, MissingRanksAreNamed)
{
    auto calls = calls_for({make_id()}, 8, 0.6);
    calls.erase(calls.begin() + 5);
    calls.erase(calls.begin() + 3);
    auto all = join_calls(calls);
    expect_all(all, FT_TIMEOUT, "ranks 3, 5 of 8 never came within 600 ms");
    for (auto &one : all)
        EXPECT_LT(one.seconds, 2.0);
}

TEST_F(Bootstrap, MissingRankOfAnotherBlockIsNamed)
{
    auto calls = calls_for({make_id(), make_id()}, 8, 0.6);
    calls.erase(calls.begin() + 6);
    expect_all(join_calls(calls), FT_TIMEOUT, "rank 6 of 8 never came within ");
}

TEST_F(Bootstrap, TwoProcessesClaimARank)
{
    auto calls = calls_for({make_id()}, 4);
    calls[3].rank = 2;
    expect_all(join_calls(calls), FT_USAGE, "two processes claim rank 2");
}

TEST_F(Bootstrap, DifferentSizes)
{
    auto calls = calls_for({make_id()}, 4);
    calls[1].nranks = 5;
    expect_all(join_calls(calls), FT_USAGE, "rank 1 says 5 ranks");
}

TEST_F(Bootstrap, DifferentConfigurationsAreBothShown)
{
    for (int nids : {1, 2}) {
        std::vector<Id> ids;
        for (int i = 0; i < nids; i++)
            ids.push_back(make_id());
        auto calls = calls_for(ids, 4);
        for (size_t odd = nids == 2 ? 2 : 3; odd < 4;
             odd++) { // with two ids a whole block: no service sees both
            calls[odd].endpoint.config = 43;
            snprintf(calls[odd].endpoint.config_text, sizeof calls[odd].endpoint.config_text,
                     "chunk=65536 chunks=4");
        }
        auto all = join_calls(calls);
        expect_all(all, FT_MISMATCH, "chunk=65536 chunks=4");
        expect_all(all, FT_MISMATCH, "chunk=131072 chunks=4");
        expect_all(all, FT_MISMATCH, nids == 2 ? "rank 2" : "rank 3");
    }
}

// Seconds from the word to the end of the call.
static void cancel_one(double *seconds)
{
    auto calls = calls_for({make_id()}, 3);
    calls.pop_back();
    atomic_int cancel(0);
    calls[0].cancel = &cancel;
    Outcome first, second;
    std::thread a([&] { first = join(calls[0]); }), b([&] { second = join(calls[1]); });
    ASSERT_TRUE(
        eventually([&] { return ft_service_arrived(decoded(calls[0].ids[0]).nonce) == 2; }));
    double begin = now_s();
    cancel.store(1);
    a.join();
    *seconds = now_s() - begin;
    EXPECT_EQ(FT_ABORTED, first.status) << first.text;
    b.join();
    EXPECT_EQ(FT_PEER, second.status) << second.text;
    EXPECT_NE(std::string::npos, second.text.find("rank 0 gave up")) << second.text;
}

TEST_F(Bootstrap, CancelledWithin200Milliseconds)
{
    double seconds = 1;
    for (int i = 0; i < 5 && seconds >= 0.2 && !HasFatalFailure(); i++)
        cancel_one(&seconds); // a busy machine may hold the thread up
    EXPECT_LT(seconds, 0.2);
}

TEST_F(Bootstrap, LateRankLearnsOfTheFailure)
{
    auto calls = calls_for({make_id()}, 4);
    calls[1].endpoint.config = 9;
    std::vector<Call> early(calls.begin(), calls.begin() + 2), late(calls.begin() + 2, calls.end());
    expect_all(join_calls(early), FT_MISMATCH, "rank");
    EXPECT_EQ(1, ft_unique_ids_served());
    expect_all(join_calls(late), FT_MISMATCH, "rank");
    EXPECT_TRUE(eventually([] { return ft_unique_ids_served() == 0; }));
}

TEST_F(Bootstrap, UsedIdIsRefused)
{
    Id id = make_id(), keep = make_id(); // the second keeps the service up
    expect_tables(join_calls(calls_for({id}, 2)));
    ASSERT_TRUE(eventually([] { return ft_unique_ids_served() == 1; }));
    expect_all(join_calls(calls_for({id}, 2)), FT_USAGE, "already used");
    expect_tables(join_calls(calls_for({keep}, 1)));
    expect_all(join_calls(calls_for({keep}, 1)), FT_USAGE, "already used");
}

// Stands between a rank and the service at an address of its own. It holds back for 1.5 s what the
// service answers to a rank's endpoint, the longest message.
class Relay
{
  public:
    explicit Relay(const ft_net_address &service) : service_(service)
    {
        address.family = AF_INET;
        memcpy(address.ip, "\177\0\0\1", 4);
        address.port = 0;
        listener_ = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        sockaddr_in name{};
        socklen_t len = sizeof name;
        name.sin_family = AF_INET;
        name.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
        EXPECT_EQ(0, bind(listener_, reinterpret_cast<sockaddr *>(&name), len));
        EXPECT_EQ(0, listen(listener_, 8));
        EXPECT_EQ(0, getsockname(listener_, reinterpret_cast<sockaddr *>(&name), &len));
        address.port = ntohs(name.sin_port);
        thread_ = std::thread([this] { serve(); });
    }
    ~Relay()
    {
        shutdown(listener_, SHUT_RDWR);
        thread_.join();
        close(listener_);
    }
    ft_net_address address{};
    std::atomic<int> connections{0};

  private:
    void serve()
    {
        for (int rank; (rank = accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC)) >= 0;) {
            ft_wait wait{ft_env_real(), ft_now_ns(ft_env_real()) + 5000000000u, nullptr};
            int service = -1;
            EXPECT_EQ(FT_OK, ft_wait_connect(&wait, &service_, &service)) << ft_fail_text();
            connections++;
            carry(rank, service);
            close(rank);
            ft_fd_close(&service);
        }
    }
    static void carry(int rank, int service)
    {
        for (bool joins = false;;) {
            pollfd fds[] = {{rank, POLLIN, 0}, {service, POLLIN, 0}};
            poll(fds, 2, -1);
            for (int i = 0; i < 2; i++) {
                char bytes[8192];
                if (!fds[i].revents)
                    continue;
                ssize_t got = recv(fds[i].fd, bytes, sizeof bytes, MSG_DONTWAIT);
                if (got <= 0)
                    return;
                if (i == 1 && joins)
                    usleep(1500000);
                joins = i == 0 && got > 100;
                send(fds[1 - i].fd, bytes, static_cast<size_t>(got), MSG_NOSIGNAL);
            }
        }
    }
    ft_net_address service_;
    int listener_ = -1;
    std::thread thread_;
};

// A rank does not give up an address where the service has its endpoint: the service counts it as
// come, so it would find its id used.
TEST_F(Bootstrap, SlowAnswerToTheLastRank)
{
    Id id = make_id(), slow = id;
    ft_id through = decoded(id);
    Relay relay(through.address[0]);
    through.naddresses = 2; // with one address, a rank has no other to try
    through.address[0] = through.address[1] = relay.address;
    ASSERT_EQ(2, ft_id_encode(slow.data(), &through));
    std::vector<Call> calls = calls_for({id}, 2);
    calls[1].ids = {slow};
    expect_tables(join_calls(calls));
    EXPECT_EQ(relay.connections, 1);
}

// Not a check: bootstrap_test --gtest_also_run_disabled_tests --gtest_filter=*SetUpTime prints the
// times.
TEST_F(Bootstrap, DISABLED_SetUpTime)
{
    for (int n : {2, 8, 32, 64, 256, 1024}) {
        std::vector<double> all;
        for (int round = 0; round < 9; round++) {
            auto calls = calls_for({make_id()}, n);
            double begin = now_s();
            expect_tables(join_calls(calls));
            all.push_back(now_s() - begin);
        }
        std::sort(all.begin(), all.end());
        printf("%5d ranks: %8.2f ms (median of %zu, %.2f to %.2f)\n", n, all[4] * 1e3, all.size(),
               all[0] * 1e3, all[8] * 1e3);
    }
}

// ---- other processes; a child starts with exec of this program, so that it is no child of fork
// for the library ----

static pid_t spawn(const std::vector<std::string> &words, int *out)
{
    int pipe_fd[2];
    EXPECT_EQ(0, pipe(pipe_fd));
    pid_t pid = fork();
    if (pid == 0) {
        dup2(pipe_fd[1], 3);
        if (pipe_fd[1] != 3)
            close(pipe_fd[1]);
        std::vector<char *> argv;
        for (auto &w : words)
            argv.push_back(const_cast<char *>(w.c_str()));
        argv.insert(argv.begin(), const_cast<char *>("bootstrap_test"));
        argv.push_back(nullptr);
        execv("/proc/self/exe", argv.data());
        _exit(127);
    }
    close(pipe_fd[1]);
    *out = pipe_fd[0];
    return pid;
}

static void kill_child(pid_t pid, int fd)
{
    close(fd);
    kill(pid, SIGKILL);
    waitpid(pid, nullptr, 0);
}

static std::string hex(const Id &id)
{
    std::string text;
    char two[3];
    for (unsigned char c : id) {
        snprintf(two, sizeof two, "%02x", c);
        text += two;
    }
    return text;
}

TEST_F(Bootstrap, RankThatDiesAfterCheckingInIsNamedAtOnce)
{
    Id id = make_id();
    int out;
    pid_t pid = spawn({"--child-joins", hex(id), "3", "2"}, &out);
    auto calls = calls_for({id}, 3);
    calls.pop_back();
    std::vector<Outcome> all(2);
    std::thread a([&] { all[0] = join(calls[0]); });
    ASSERT_TRUE(eventually([&] { return ft_service_arrived(decoded(id).nonce) == 2; }));
    kill_child(pid, out);
    double begin = now_s();
    all[1] = join(calls[1]);
    a.join();
    EXPECT_LT(now_s() - begin, 1.0);
    expect_all(all, FT_PEER, "rank 2 went away after it had checked in");
}

TEST_F(Bootstrap, ProcessThatMadeTheIdDies)
{
    int out;
    Id id{};
    pid_t pid = spawn({"--child-makes"}, &out);
    ASSERT_EQ((ssize_t)id.size(), read(out, id.data(), id.size()));
    auto calls = calls_for({id}, 3);
    Outcome waiting;
    std::thread a([&] { waiting = join(calls[0]); });
    char byte;
    ASSERT_EQ(1, read(out, &byte, 1)); // the child says that somebody has checked in
    double begin = now_s();
    kill_child(pid, out);
    a.join();
    Outcome after = join(calls[1]);
    EXPECT_LT(now_s() - begin, 1.0);
    expect_all({waiting, after}, FT_PEER, "the process that made the unique id is gone");
}

TEST_F(Bootstrap, ChildOfForkHoldsNothing)
{
    Id id = make_id();
    pid_t pid = fork();
    if (pid == 0) {
        unsigned char other[FT_UNIQUE_ID_BYTES];
        bool good = ft_fd_count() == 0 && ft_unique_id_make(other) == FT_FORKED &&
                    ft_unique_ids_served() == 0;
        good = good && join(calls_for({id}, 2)[0]).status == FT_FORKED;
        ft_bootstrap_stop();
        _exit(good ? 0 : 1);
    }
    int status = -1;
    waitpid(pid, &status, 0);
    EXPECT_EQ(0, status);
    expect_tables(join_calls(calls_for({id}, 2)));
}

int child_makes()
{
    Id id = make_id();
    if (write(3, id.data(), id.size()) != (ssize_t)id.size())
        return 1;
    eventually([&] { return ft_service_arrived(decoded(id).nonce) == 1; });
    if (write(3, "x", 1) != 1)
        return 1;
    for (;;)
        pause();
}

int child_joins(const char *text, int nranks, int rank)
{
    Id id{};
    for (size_t i = 0; i < id.size(); i++) {
        unsigned byte;
        if (sscanf(text + 2 * i, "%2x", &byte) != 1)
            return 1;
        id[i] = (unsigned char)byte;
    }
    join(calls_for({id}, nranks)[(size_t)rank]);
    return 0;
}

int main(int argc, char **argv)
{
    if (argc == 2 && !strcmp(argv[1], "--child-makes"))
        return child_makes();
    if (argc == 5 && !strcmp(argv[1], "--child-joins"))
        return child_joins(argv[2], atoi(argv[3]), atoi(argv[4]));
    setenv("FTCCL_DEBUG", "VERSION", 0); // the failures here are meant
    testing::InitGoogleTest(&argc, argv);
    return RUN_ALL_TESTS();
}

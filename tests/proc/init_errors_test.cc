/*
 * Property: a communicator that cannot be made fails on every rank within the bound, with a
 * sentence that says why, and leaves nothing behind. Strangers on the port change nothing. Method:
 * garbled and used ids, contradicting ranks, bytes from strangers, missing interfaces and
 * descriptors, each against short bounds. What depends on the process (environment, limits) runs in
 * its own child process.
 */
#include <arpa/inet.h>
#include <dirent.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <random>

#include "tests/proc/proc.h"

namespace
{

struct Outcome {
    ftcclResult_t result;
    double seconds;
    std::string sentence;
};

/* One rank's init under a bound; whatever was made is destroyed. */
Outcome init(int nranks, const ftcclUniqueId &id, int rank, int bound_ms)
{
    ftcclOptions_t options = FTCCL_OPTIONS_INITIALIZER;
    options.initTimeoutMs = bound_ms;
    ftcclConfig_t config = FTCCL_CONFIG_INITIALIZER;
    config.options = &options;
    ftcclComm_t comm = nullptr;
    double start = proc::now();
    ftcclResult_t result = ftcclCommInitRankConfig(&comm, nranks, id, rank, &config);
    Outcome outcome{result, proc::now() - start,
                    result == ftcclSuccess ? "" : ftcclGetLastError(nullptr)};
    if (comm != nullptr)
        ftcclCommAbort(comm);
    return outcome;
}

void expect_failed(const Outcome &outcome, double bound)
{
    EXPECT_NE(outcome.result, ftcclSuccess);
    EXPECT_LT(outcome.seconds, bound) << outcome.sentence;
    EXPECT_GT(outcome.sentence.size(), 10u) << outcome.result;
}

TEST(GarbledId, EveryPartOfItIsDistrusted)
{
    ftcclUniqueId zero;
    memset(&zero, 0, sizeof zero);
    expect_failed(init(2, zero, 1, 500), 3);
    unsigned seed = std::random_device{}();
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937 random(seed);
    ftcclUniqueId noise;
    for (char &c : noise.internal)
        c = static_cast<char>(random());
    expect_failed(init(2, noise, 1, 500), 3);
    for (int i = 0; i < 16; i++) {
        ftcclUniqueId id;
        ASSERT_OK(ftcclGetUniqueId(&id));
        size_t at = random() % sizeof id.internal;
        id.internal[at] = static_cast<char>(id.internal[at] ^ (1 << random() % 8));
        SCOPED_TRACE("byte " + std::to_string(at));
        /* nobody else comes, so even an unimportant bit ends in the bound */
        expect_failed(init(2, id, 1, 200), 3);
    }
}

TEST(Missing, RankIsNamed)
{
    ftcclUniqueId id;
    ASSERT_OK(ftcclGetUniqueId(&id));
    std::vector<Outcome> outcome(2);
    proc::in_threads(2, [&](int r) { outcome[static_cast<size_t>(r)] = init(3, id, r, 700); });
    for (const auto &o : outcome) {
        expect_failed(o, 4);
        EXPECT_EQ(ftcclGetErrorClass(o.result), ftcclClassRecoverable) << o.result;
        EXPECT_NE(o.sentence.find("2"), std::string::npos) << o.sentence;
    }
}

TEST(Contradiction, SameRankTwice)
{
    ftcclUniqueId id;
    ASSERT_OK(ftcclGetUniqueId(&id));
    std::vector<Outcome> outcome(2);
    proc::in_threads(2, [&](int r) { outcome[static_cast<size_t>(r)] = init(2, id, 1, 1000); });
    for (const auto &o : outcome)
        expect_failed(o, 4);
}

TEST(Contradiction, OtherNumbersOfRanks)
{
    ftcclUniqueId id;
    ASSERT_OK(ftcclGetUniqueId(&id));
    std::vector<Outcome> outcome(2);
    proc::in_threads(2, [&](int r) { outcome[static_cast<size_t>(r)] = init(2 + r, id, r, 1000); });
    for (const auto &o : outcome)
        expect_failed(o, 4);
}

CHILD(with_table)
{
    ftcclComm_t comm;
    ftcclResult_t result = ftcclCommInitRank(&comm, 2, proc::unhex(arguments[0]),
                                             std::stoi(arguments[1]));
    printf("init %d %s\n", result, ftcclGetLastError(nullptr));
    return 0;
}

/* Plans are shaped by the tuning table: with measured choices on one rank alone, both learn who
 * differs and in what. */
TEST(Contradiction, OtherTuningTables)
{
    std::string path = testing::TempDir() + "ftccl_table_XXXXXX";
    int fd = mkstemp(path.data());
    std::string table = "best allreduce ranks=2 hosts=1 algo=tree\n";
    ASSERT_EQ(write(fd, table.data(), table.size()), static_cast<ssize_t>(table.size()));
    close(fd);
    ftcclUniqueId id;
    ASSERT_OK(ftcclGetUniqueId(&id));
    proc::Child with("with_table", {proc::hex(id), "0"}, {{"FTCCL_TUNE_FILE", path}}),
        without("with_table", {proc::hex(id), "1"});
    for (proc::Child *rank : {&with, &without}) {
        std::string line = rank->line(60);
        EXPECT_NE(line.substr(0, 7), "init 0 ") << line;
        size_t first = line.find("table="), second = line.rfind("table=");
        ASSERT_NE(first, second) << line;
        EXPECT_NE(line.substr(first, 14), line.substr(second, 14)) << line;
        EXPECT_NE(line.find("another configuration"), std::string::npos) << line;
    }
    unlink(path.c_str());
}

TEST(UsedId, IsRefused)
{
    ftcclUniqueId id;
    ASSERT_OK(ftcclGetUniqueId(&id));
    ftcclComm_t comm[2];
    proc::in_threads(2, [&](int r) { EXPECT_OK(ftcclCommInitRank(&comm[r], 2, id, r)); });
    expect_failed(init(2, id, 1, 700), 4);
    proc::in_threads(2, [&](int r) { EXPECT_OK(ftcclCommDestroy(comm[r])); });
}

CHILD(make_id)
{
    ftcclUniqueId id;
    if (ftcclGetUniqueId(&id) != ftcclSuccess)
        return 1;
    printf("%s\n", proc::hex(id).c_str());
    return 0;
}

TEST(StaleId, OfAProcessThatIsGone)
{
    proc::Child child("make_id", {});
    std::string text = child.line();
    ASSERT_EQ(text.size(), 2 * sizeof(ftcclUniqueId));
    ASSERT_EQ(child.wait(), 0);
    expect_failed(init(2, proc::unhex(text), 1, 700), 4);
}

struct Socket {
    int family;
    uint16_t port;
    bool listens, connected;
};

/* The TCP sockets of this process. It asks the sockets themselves: /proc/net/tcp, read while others
 * connect, tells some twice and some not at all. */
std::vector<Socket> tcp_sockets()
{
    std::vector<Socket> found;
    DIR *folder = opendir("/proc/self/fd");
    while (dirent *entry = readdir(folder)) {
        int fd = atoi(entry->d_name), type = 0, listens = 0;
        socklen_t bytes = sizeof(int);
        sockaddr_storage local{}, remote{};
        if (getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &bytes) || type != SOCK_STREAM ||
            getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listens, &bytes))
            continue;
        bytes = sizeof local;
        if (getsockname(fd, reinterpret_cast<sockaddr *>(&local), &bytes))
            continue;
        in_port_t port = 0;
        if (local.ss_family == AF_INET)
            port = reinterpret_cast<sockaddr_in &>(local).sin_port;
        else if (local.ss_family == AF_INET6)
            port = reinterpret_cast<sockaddr_in6 &>(local).sin6_port;
        else
            continue;
        bytes = sizeof remote;
        bool connected = getpeername(fd, reinterpret_cast<sockaddr *>(&remote), &bytes) == 0;
        found.push_back({local.ss_family, ntohs(port), listens != 0, connected});
    }
    closedir(folder);
    return found;
}

/* The ports on which this process listens. */
std::vector<std::pair<int, uint16_t>> listening_ports()
{
    std::vector<std::pair<int, uint16_t>> ports;
    for (const Socket &s : tcp_sockets()) {
        if (s.listens)
            ports.emplace_back(s.family, s.port);
    }
    return ports;
}

/* How many connections to these ports this process has accepted. */
int connections(const std::vector<std::pair<int, uint16_t>> &ports)
{
    int n = 0;
    for (const Socket &s : tcp_sockets())
        n += s.connected && std::count(ports.begin(), ports.end(), std::pair(s.family, s.port));
    return n;
}

/* init_rank ID N RANK MS: tells what came of its init, and of one all-reduce. */
CHILD(init_rank)
{
    ftcclOptions_t options = FTCCL_OPTIONS_INITIALIZER;
    options.initTimeoutMs = std::stoi(arguments[3]);
    options.opTimeoutMs = 20000;
    ftcclConfig_t config = FTCCL_CONFIG_INITIALIZER;
    config.options = &options;
    ftcclComm_t comm = nullptr;
    ftcclResult_t result = ftcclCommInitRankConfig(&comm, std::stoi(arguments[1]),
                                                   proc::unhex(arguments[0]),
                                                   std::stoi(arguments[2]), &config);
    printf("init %d %s\n", result, result == ftcclSuccess ? "" : ftcclGetLastError(nullptr));
    if (result != ftcclSuccess)
        return 0;
    int value = 1;
    result = ftcclAllReduce(&value, &value, 1, ftcclInt, ftcclSum, comm, nullptr);
    if (result == ftcclSuccess)
        result = ftcclStreamSynchronize(nullptr);
    printf("reduce %d %s\n", result, result == ftcclSuccess ? "" : ftcclGetLastError(nullptr));
    ftcclCommAbort(comm);
    return 0;
}

using Children = std::vector<std::unique_ptr<proc::Child>>;

Children start_ranks(const std::string &id, int count, int nranks, int bound_ms)
{
    Children rank;
    for (int r = 0; r < count; r++)
        rank.push_back(std::make_unique<proc::Child>(
            "init_rank", std::vector<std::string>{id, std::to_string(nranks), std::to_string(r),
                                                  std::to_string(bound_ms)}));
    return rank;
}

/* Rank 3 never comes, so the others wait, far longer than the test. */
TEST(Killed, RankThatHadCheckedInIsNamedAtOnce)
{
    for (size_t victim = 0; victim < 3; victim++) {
        ftcclUniqueId id;
        ASSERT_OK(ftcclGetUniqueId(&id));
        auto ports = listening_ports();
        Children rank = start_ranks(proc::hex(id), 3, 4, 600000);
        for (double end = proc::now() + 60; proc::now() < end && connections(ports) != 3;)
            usleep(10000);
        EXPECT_EQ(connections(ports), 3);
        sleep(1); /* a connection has checked in a few milliseconds after it was made */
        rank[victim]->signal(SIGKILL);
        double start = proc::now();
        for (size_t r = 0; r < 3; r++) {
            if (r == victim)
                continue;
            std::string line = rank[r]->line(60);
            EXPECT_EQ(line.substr(0, 7), "init 6 ") << line;
            EXPECT_NE(line.find("rank " + std::to_string(victim) + " went away"), std::string::npos)
                << line;
        }
        EXPECT_LT(proc::now() - start, 30);
    }
}

CHILD(serve_id)
{
    ftcclUniqueId id;
    if (ftcclGetUniqueId(&id) != ftcclSuccess)
        return 1;
    printf("%s\n", proc::hex(id).c_str());
    pause();
    return 0;
}

TEST(Killed, ProcessThatServesTheIdIsMissedAtOnce)
{
    proc::Child server("serve_id", {});
    std::string id = server.line();
    Children rank = start_ranks(id, 2, 3, 600000);
    sleep(1);
    server.signal(SIGKILL);
    double start = proc::now();
    for (auto &child : rank) {
        std::string line = child->line(60);
        EXPECT_NE(line.find("the process that made the unique id is gone"), std::string::npos)
            << line;
    }
    EXPECT_LT(proc::now() - start, 30);
}

/* Killed before it came, it is missed at the bound; later at once, in init or in the first
 * operation. */
TEST(Killed, AtRandomMomentsOfInit)
{
    const char *text = getenv("FT_SEED"), *rounds = getenv("FT_ROUNDS");
    unsigned long seed = text ? strtoul(text, nullptr, 10) : std::random_device{}();
    printf("seed %lu; replay: FT_SEED=%lu tests/proc/init_errors_test "
           "--gtest_filter=Killed.AtRandomMomentsOfInit\n",
           seed, seed);
    std::mt19937_64 random(seed);
    int failed[3] = {}; /* in init, in the first operation, not at all */
    for (int k = 0; k < (rounds ? atoi(rounds) : 6) && !HasFailure(); k++) {
        ftcclUniqueId id;
        ASSERT_OK(ftcclGetUniqueId(&id));
        Children rank = start_ranks(proc::hex(id), 3, 3, 4000);
        size_t victim = random() % 3;
        usleep(static_cast<useconds_t>(random() % (random() % 2 ? 30000 : 6000)));
        rank[victim]->signal(SIGKILL);
        for (size_t r = 0; r < 3; r++) {
            if (r == victim)
                continue;
            std::string init = rank[r]->line(60),
                        reduce = init.substr(0, 7) == "init 0 " ? rank[r]->line(60) : "";
            EXPECT_NE(init, "") << "round " << k << ": rank " << r << " says nothing";
            bool ends = !reduce.empty() || init.substr(0, 7) == "init 6 " ||
                        init.substr(0, 7) == "init 8 ";
            EXPECT_TRUE(ends) << "round " << k << ": rank " << r << " says " << init << " "
                              << reduce;
            failed[reduce.empty() ? 0 : reduce.substr(0, 9) == "reduce 0 " ? 2 : 1]++;
        }
    }
    printf("%d ranks failed in init, %d in the first operation, %d not at all\n", failed[0],
           failed[1], failed[2]);
}

/* Connects and says `bytes`; the connection stays open. */
int stranger(int family, uint16_t port, const std::string &bytes)
{
    sockaddr_in six4{};
    sockaddr_in6 six6{};
    six4.sin_family = AF_INET, six4.sin_port = htons(port),
    six4.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    six6.sin6_family = AF_INET6, six6.sin6_port = htons(port), six6.sin6_addr = in6addr_loopback;
    auto *address = family == AF_INET ? reinterpret_cast<sockaddr *>(&six4)
                                      : reinterpret_cast<sockaddr *>(&six6);
    int fd = socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0 || connect(fd, address, family == AF_INET ? sizeof six4 : sizeof six6) != 0) {
        if (fd >= 0)
            close(fd);
        return -1;
    }
    if (!bytes.empty())
        (void)send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    return fd;
}

TEST(Strangers, OnThePortChangeNothing)
{
    std::mt19937 random(7);
    std::string noise(70000, '\0');
    for (char &c : noise)
        c = static_cast<char>(random());
    for (const std::string &bytes : {std::string("GET / HTTP/1.1\r\nHost: x\r\n\r\n"), noise,
                                     std::string(4096, '\xff'), std::string("a"), std::string()}) {
        ftcclUniqueId id;
        ASSERT_OK(ftcclGetUniqueId(&id));
        std::vector<int> open;
        auto ports = listening_ports();
        EXPECT_FALSE(ports.empty());
        for (auto [family, port] : ports) {
            for (int i = 0; i < 3; i++)
                open.push_back(stranger(family, port, bytes));
        }
        std::vector<Outcome> outcome(2);
        proc::in_threads(2,
                         [&](int r) { outcome[static_cast<size_t>(r)] = init(2, id, r, 10000); });
        for (const auto &o : outcome) {
            EXPECT_EQ(o.result, ftcclSuccess) << o.sentence;
            EXPECT_LT(o.seconds, 5);
        }
        for (int fd : open) {
            if (fd >= 0)
                close(fd);
        }
    }
}

CHILD(init_all)
{
    ftcclComm_t comm[2];
    ftcclUniqueId id;
    ftcclResult_t result = ftcclGetUniqueId(&id);
    if (result == ftcclSuccess)
        result = ftcclCommInitAll(comm, 2, nullptr);
    printf("%d %s\n", result, ftcclGetLastError(nullptr));
    return 0;
}

TEST(Interfaces, ThatDoNotExistAreNamed)
{
    proc::Child child("init_all", {},
                      {{"FTCCL_SOCKET_IFNAME", "=nosuch0"}, {"FTCCL_TRANSPORTS", "tcp"}});
    std::string line = child.line(20);
    EXPECT_EQ(child.wait(), 0);
    EXPECT_NE(line.substr(0, 1), "0") << line;
    EXPECT_NE(line.find("nosuch0"), std::string::npos) << line;
}

CHILD(few_descriptors)
{
    ftcclComm_t comm[4];
    int failed = 0;
    /* A first round brings up what stays for the life of the process. */
    if (ftcclCommInitAll(comm, 4, nullptr) != ftcclSuccess)
        return 1;
    for (auto c : comm)
        ftcclCommAbort(c);
    int before = proc::descriptors(), ports = static_cast<int>(listening_ports().size());
    for (int allowed = 0; allowed < 24; allowed++) {
        rlimit limit{};
        getrlimit(RLIMIT_NOFILE, &limit);
        limit.rlim_cur = static_cast<rlim_t>(before + allowed);
        setrlimit(RLIMIT_NOFILE, &limit);
        ftcclResult_t result = ftcclCommInitAll(comm, 4, nullptr);
        std::string sentence = result == ftcclSuccess ? "" : ftcclGetLastError(nullptr);
        if (result == ftcclSuccess) {
            for (auto c : comm)
                ftcclCommAbort(c);
        }
        limit.rlim_cur = limit.rlim_max;
        setrlimit(RLIMIT_NOFILE, &limit);
        failed += result != ftcclSuccess;
        if (result != ftcclSuccess && result != ftcclSystemError && result != ftcclRemoteError) {
            printf("with %d more descriptors: %d %s\n", allowed, result, sentence.c_str());
            return 2;
        }
    }
    /* Ids that were not used up keep the process's one rendezvous open, however many failures there
     * were: 2 descriptors, and a port of each address family for which there was one left. */
    auto leaked = [&] {
        int opened = static_cast<int>(listening_ports().size()) - ports;
        return proc::descriptors() > before + (opened > 0 ? 2 + std::min(opened, 2) : 0);
    };
    double end = proc::now() + 5; /* what is closed by other threads may take a moment */
    while (leaked() && proc::now() < end)
        usleep(1000);
    if (leaked()) {
        printf("%d descriptors left over after %d failures:%s\n", proc::descriptors() - before,
               failed, proc::descriptor_names().c_str());
        return 3;
    }
    if (ftcclCommInitAll(comm, 4, nullptr) != ftcclSuccess) {
        printf("afterwards: %s\n", ftcclGetLastError(nullptr));
        return 4;
    }
    for (auto c : comm)
        ftcclCommAbort(c);
    printf("failed %d times\n", failed);
    return 0;
}

TEST(Descriptors, NoneLeftIsAnErrorAndLeaksNothing)
{
    proc::Child child("few_descriptors", {}, {{"FTCCL_INIT_TIMEOUT_MS", "1500"}});
    std::string line = child.line(90);
    EXPECT_EQ(child.wait(), 0) << line;
    EXPECT_NE(line, "failed 0 times") << "the limit was never reached";
}

} // namespace

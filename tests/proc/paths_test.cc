/*
 * Property: what a prober says of source ports is true: connections from them send their bytes over
 * the spine that it saw. What it cannot see is unknown, it never takes long, and it leaves nothing
 * behind, neither here nor at the peer. Method: network namespaces with four equal ways; counters
 * of the leaf's links.
 */
#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <malloc.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <chrono>
#include <memory>
#include <set>

#include "tests/proc/ecmp.h"

extern "C" {
#include "path/path.h"
}

namespace
{

constexpr uint64_t kSecond = 1000000000;
using Table = std::unique_ptr<ft_path_table, decltype(&ft_path_table_free)>;

/* Binds to a port of a local address, or to any. */
void bind_to(int fd, ft_net_address at, uint16_t port)
{
    sockaddr_in6 sa;
    at.port = port;
    unsigned len = ft_net_to_sockaddr(&at, reinterpret_cast<sockaddr *>(&sa));
    int on = 1, off = 0;
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
    setsockopt(fd, IPPROTO_IPV6, IPV6_AUTOFLOWLABEL, &off, sizeof(off));
    ASSERT_EQ(bind(fd, reinterpret_cast<sockaddr *>(&sa), len), 0) << strerror(errno);
}

class Paths : public testing::TestWithParam<int>
{
  protected:
    static Ecmp *net;
    ft_path_config config = {};
    int listener = -1;

    static void SetUpTestSuite()
    {
        if (!net)
            net = new Ecmp;
    }
    static void TearDownTestSuite()
    {
        delete net;
        net = nullptr;
    }
    void SetUp() override
    {
        if (!net->missing().empty())
            GTEST_SKIP() << net->missing();
        const bool six = GetParam() == AF_INET6;
        config.env = ft_env_real();
        config.to.family = config.from.family = GetParam();
        inet_pton(GetParam(), six ? "fd00::2" : "10.0.0.2", config.from.ip);
        inet_pton(GetParam(), six ? "fd00:1::2" : "10.1.0.2", config.to.ip);
        config.rate = 5000;
        config.nports = 64;
        net->in("h1", [&] {
            listener = socket(GetParam(), SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
            bind_to(listener, config.to, 0);
            ASSERT_EQ(listen(listener, 1024), 0);
        });
        sockaddr_in6 sa;
        socklen_t len = sizeof(sa);
        ASSERT_EQ(getsockname(listener, reinterpret_cast<sockaddr *>(&sa), &len), 0);
        config.to.port = ntohs(sa.sin6_port);
    }
    void TearDown() override
    {
        close(listener);
    }
    Table probe()
    {
        ft_path_table *table = nullptr;
        net->in("h0", [&] { EXPECT_EQ(ft_path_probe(&config, &table), FT_OK) << ft_fail_text(); });
        return Table(table, ft_path_table_free);
    }
    /* The second hop's address has the spine's number. */
    int spine_of(const ft_path_table &t, int port)
    {
        const ft_path &path = t.ports[port];
        if (path.class_index == FT_PATH_UNKNOWN)
            return -1;
        const unsigned char *ip = t.classes[path.class_index].hop[1].ip;
        return GetParam() == AF_INET6 ? ip[7] : (ip[3] - 1) / 2;
    }
    /* The spine over which leaf 0 sends what a connection from this port says. */
    int spine_of_bytes(uint16_t port)
    {
        std::vector<uint64_t> before = net->sent();
        int fd = -1, taken = -1;
        net->in("h0", [&] {
            sockaddr_in6 sa;
            unsigned len = ft_net_to_sockaddr(&config.to, reinterpret_cast<sockaddr *>(&sa));
            fd = socket(GetParam(), SOCK_STREAM | SOCK_CLOEXEC, 0);
            bind_to(fd, config.from, port);
            ASSERT_EQ(connect(fd, reinterpret_cast<sockaddr *>(&sa), len), 0) << strerror(errno);
        });
        while (taken < 0)
            taken = accept(listener, nullptr, nullptr);
        std::vector<char> data(50000), sink(50000);
        EXPECT_EQ(send(fd, data.data(), data.size(), MSG_NOSIGNAL), ssize_t(data.size()));
        EXPECT_EQ(recv(taken, sink.data(), sink.size(), MSG_WAITALL), ssize_t(sink.size()));
        linger reset = {1, 0};
        setsockopt(fd, SOL_SOCKET, SO_LINGER, &reset, sizeof(reset));
        close(fd);
        close(taken);
        std::vector<uint64_t> after = net->sent();
        for (int s = 0; s < Ecmp::kSpines; s++)
            if (after[size_t(s)] - before[size_t(s)] > data.size())
                return s;
        return -1;
    }
    int connections_seen()
    {
        int n = 0;
        for (int fd; (fd = accept(listener, nullptr, nullptr)) >= 0; n++) {
            pollfd end = {fd, POLLIN, 0};
            EXPECT_EQ(poll(&end, 1, 5000), 1) << "a probe must end";
            char byte;
            EXPECT_EQ(recv(fd, &byte, 1, MSG_DONTWAIT), -1);
            EXPECT_EQ(errno, ECONNRESET) << "a probe must be reset";
            close(fd);
        }
        return n;
    }
    /* Lines of the table of TCP sockets that are in one of these states. */
    int sockets(const std::string &node, const std::set<std::string> &states)
    {
        int n = 0;
        net->in(node, [&] {
            std::ifstream in(GetParam() == AF_INET6 ? "/proc/thread-self/net/tcp6"
                                                    : "/proc/thread-self/net/tcp");
            std::string line, skip, state;
            std::getline(in, line);
            while (std::getline(in, line)) {
                std::istringstream words(line);
                words >> skip >> skip >> skip >> state;
                n += states.count(state) > 0;
            }
        });
        return n;
    }
    void each_router(const std::string &command)
    {
        for (const std::string &node : Ecmp::routers())
            ASSERT_TRUE(Ecmp::run("ip netns exec " + net->name(node) + " " + command)) << command;
    }
};
Ecmp *Paths::net = nullptr;

TEST_P(Paths, BytesTakeTheSpineThatTheProbeSaw)
{
    config.nports = 100;
    config.rate = 1000000; /* all at once: still only one probe goes as far as the host */
    Table t = probe();
    ASSERT_TRUE(t);
    EXPECT_EQ(t->outcome, FT_PATH_REACHED);
    EXPECT_EQ(t->nhops, 3);
    EXPECT_EQ(t->nclasses, Ecmp::kSpines);
    EXPECT_EQ(t->nunknown, 0);
    EXPECT_EQ(connections_seen(), 1);
    int right = 0;
    for (int i = 0; i < t->nports; i++)
        right += spine_of(*t, i) == spine_of_bytes(t->ports[i].source_port);
    EXPECT_EQ(right, 100);
    printf("%d of 100 ports right; %d probes in %.3f s\n", right, t->nprobes,
           double(t->took_ns) / 1e9);
}

TEST_P(Paths, NothingStaysAtThePeerOrHere)
{
    const int descriptors = ft_fd_count();
    probe();
    struct mallinfo2 before = mallinfo2();
    for (int i = 0; i < 10; i++)
        ASSERT_TRUE(probe());
    /* given up on its way */
    net->in("h0", [&] {
        for (int i = 0; i < 20; i++) {
            ft_prober *p = nullptr;
            ASSERT_EQ(ft_prober_open(&config, &p), FT_OK);
            for (int turn = 0; turn < i; turn++)
                ft_prober_turn(p);
            ft_prober_close(p);
        }
    });
    EXPECT_LE(mallinfo2().uordblks, before.uordblks + 4096);
    EXPECT_EQ(ft_fd_count(), descriptors);
    EXPECT_LE(connections_seen(), 31);
    /* all states but LISTEN and CLOSE; TIME_WAIT would last a minute */
    const std::set<std::string> open = {"01", "02", "03", "04", "05", "06", "08", "09", "0B"};
    const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(5);
    while (sockets("h0", open) + sockets("h1", open) > 0 &&
           std::chrono::steady_clock::now() < until)
        std::this_thread::yield();
    EXPECT_EQ(sockets("h0", open), 0);
    EXPECT_EQ(sockets("h1", open), 0);
}

TEST_P(Paths, AreFoundWithFewDescriptors)
{
    ft_path_table *table = nullptr;
    net->in("h0", [&] {
        rlimit old, few;
        ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &old), 0);
        int next = dup(0); /* a prober takes two, and two are left for probes */
        close(next);
        few = {rlim_t(next + 4), old.rlim_max};
        ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &few), 0);
        int status = ft_path_probe(&config, &table);
        ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &old), 0);
        EXPECT_EQ(status, FT_OK) << ft_fail_text();
    });
    ASSERT_TRUE(table);
    EXPECT_EQ(table->nunknown, 0);
    EXPECT_EQ(table->nclasses, Ecmp::kSpines);
    ft_path_table_free(table);
}

/* Turns of two probers alternate: each finds ports of the other one in use. */
TEST_P(Paths, AreFoundByTwoProbersAtOnce)
{
    ft_prober *p[2] = {};
    int status[2] = {FT_AGAIN, FT_AGAIN};
    net->in("h0", [&] {
        for (ft_prober *&each : p)
            ASSERT_EQ(ft_prober_open(&config, &each), FT_OK);
        while (status[0] == FT_AGAIN || status[1] == FT_AGAIN)
            for (int i = 0; i < 2; i++)
                status[i] = ft_prober_turn(p[i]);
    });
    int taken = 0;
    for (int i = 0; i < 2; i++) {
        EXPECT_EQ(status[i], FT_OK);
        Table t(ft_prober_take(p[i]), ft_path_table_free);
        ft_prober_close(p[i]);
        ASSERT_TRUE(t);
        EXPECT_EQ(t->nports, 64);
        EXPECT_EQ(t->nunknown, 0);
        EXPECT_EQ(t->nclasses, Ecmp::kSpines);
        std::set<int> ports;
        for (int k = 0; k < t->nports; k++)
            ports.insert(t->ports[k].source_port);
        EXPECT_EQ(ports.size(), 64u);
        taken += t->ntaken;
    }
    EXPECT_GT(taken, 0);
}

TEST_P(Paths, AreNoneWhereAllPortsAreTaken)
{
    std::vector<int> owners;
    ft_path_table *table = nullptr;
    config.rate = 100000;
    net->in("h0", [&] {
        for (int port = FT_PATH_FIRST; port < 65536; port++) {
            owners.push_back(socket(GetParam(), SOCK_STREAM | SOCK_CLOEXEC, 0));
            sockaddr_in6 sa;
            ft_net_address at = config.from;
            at.port = uint16_t(port);
            unsigned len = ft_net_to_sockaddr(&at, reinterpret_cast<sockaddr *>(&sa));
            ASSERT_EQ(bind(owners.back(), reinterpret_cast<sockaddr *>(&sa), len), 0)
                << port << ": " << strerror(errno);
        }
        EXPECT_EQ(ft_path_probe(&config, &table), FT_OK) << ft_fail_text();
        close(owners.back()); /* the last one is free again */
        owners.pop_back();
    });
    ASSERT_TRUE(table);
    EXPECT_EQ(table->nports, 0);
    EXPECT_EQ(table->ntaken, 65536 - FT_PATH_FIRST);
    EXPECT_EQ(table->nprobes, 0);
    EXPECT_FALSE(table->cut);
    ft_path_table_free(table);
    Table one = probe();
    ASSERT_TRUE(one);
    EXPECT_EQ(one->nports, 1);
    EXPECT_EQ(one->ports[0].source_port, 65535);
    EXPECT_GE(one->ports[0].class_index, 0);
    for (int fd : owners)
        close(fd);
}

/* More hops answer than a table holds, and the host never does. */
TEST_P(Paths, AreUnknownWhereRoutersSendInACircle)
{
    config.nports = 8;
    config.rate = 1000000;
    for (int s = 0; s < Ecmp::kSpines; s++)
        net->send_back(s, true);
    Table t = probe();
    for (int s = 0; s < Ecmp::kSpines; s++)
        net->send_back(s, false);
    ASSERT_TRUE(t);
    EXPECT_EQ(t->outcome, FT_PATH_SILENT);
    EXPECT_EQ(t->nunknown, 8);
    EXPECT_EQ(t->answered[FT_PATH_HOPS - 1], 8);
    EXPECT_LT(t->took_ns, 6 * kSecond);
}

TEST_P(Paths, AreUnknownWhereAnswersAreFiltered)
{
    if (!Ecmp::run("nft --version"))
        GTEST_SKIP() << "no nft";
    each_router("nft 'add table inet f; add chain inet f out { type filter hook output priority "
                "0; }; add rule inet f out icmp type time-exceeded drop; add rule inet f out "
                "icmpv6 type time-exceeded drop'");
    Table t = probe();
    each_router("nft delete table inet f");
    ASSERT_TRUE(t);
    EXPECT_EQ(t->outcome, FT_PATH_HIDDEN);
    EXPECT_EQ(t->nunknown, 64);
    EXPECT_EQ(t->nclasses, 0);
    EXPECT_LT(t->took_ns, 6 * kSecond);
}

TEST_P(Paths, AreUnknownOrRightWhereAnswersAreLimited)
{
    Table truth = probe();
    ASSERT_TRUE(truth);
    const std::string key = GetParam() == AF_INET6 ? "ipv6/icmp/ratelimit" : "ipv4/icmp_ratelimit";
    for (const char *ms : {"1000", "20"}) {
        for (const std::string &node : Ecmp::routers())
            net->set(node, key, ms);
        Table t = probe();
        for (const std::string &node : Ecmp::routers())
            net->set(node, key, "0");
        ASSERT_TRUE(t);
        EXPECT_LT(t->took_ns, 6 * kSecond);
        EXPECT_GT(t->nunknown, 0);
        EXPECT_EQ(t->nports, 64);
        int wrong = 0;
        for (int i = 0; i < t->nports; i++)
            wrong += spine_of(*t, i) >= 0 && spine_of(*t, i) != spine_of(*truth, i);
        EXPECT_EQ(wrong, 0);
        printf("an answer in %s ms: %d of 64 unknown, %.3f s\n", ms, t->nunknown,
               double(t->took_ns) / 1e9);
    }
}

TEST_P(Paths, ThatAreGoneAreMissingInTheNextTable)
{
    ft_path_cache *cache = ft_path_cache_open(ft_env_real(), 4, 3600 * kSecond);
    ASSERT_TRUE(cache);
    ft_path_cache_put(cache, probe().release());
    net->use({0, 2, 3});
    const ft_path_table *t = ft_path_cache_find(cache, &config.from, &config.to);
    ASSERT_TRUE(t);
    EXPECT_EQ(t->nclasses, 4);
    ft_path_cache_forget(cache, &config.from, &config.to);
    EXPECT_FALSE(ft_path_cache_find(cache, &config.from, &config.to));
    ft_path_cache_put(cache, probe().release());
    t = ft_path_cache_find(cache, &config.from, &config.to);
    ASSERT_TRUE(t);
    EXPECT_EQ(t->nclasses, 3);
    EXPECT_EQ(t->nunknown, 0);
    for (int i = 0; i < t->nports; i++)
        EXPECT_NE(spine_of(*t, i), 1);
    ft_path_cache_close(cache);
    net->use({0, 1, 2, 3});
}

TEST_P(Paths, OverABrokenSpineAreUnknown)
{
    const std::string four = " route replace ", six = " -6 route replace ",
                      spine = "ip -n " + net->name("s2");
    Table truth = probe();
    ASSERT_TRUE(Ecmp::run(spine + four + "blackhole 10.1.0.0/24") &&
                Ecmp::run(spine + six + "blackhole fd00:1::/64"));
    Table t = probe();
    Ecmp::run(spine + " route del blackhole 10.1.0.0/24");
    Ecmp::run(spine + " -6 route del blackhole fd00:1::/64");
    Ecmp::run(spine + four + "10.1.0.0/24 via 172.16.1.4");
    Ecmp::run(spine + six + "fd00:1::/64 via fd00:16:1:2::1");
    ASSERT_TRUE(truth && t);
    EXPECT_LT(t->took_ns, 4 * kSecond);
    EXPECT_EQ(t->nhops, 3);
    EXPECT_EQ(t->nclasses, 3);
    for (int i = 0; i < t->nports; i++)
        EXPECT_EQ(spine_of(*t, i), spine_of(*truth, i) == 2 ? -1 : spine_of(*truth, i));
}

TEST_P(Paths, DoNotLeadWhereThereIsNoRoute)
{
    /* the leaf says so */
    ft_path_config there = config;
    inet_pton(GetParam(), GetParam() == AF_INET6 ? "fd00:9::1" : "10.9.0.1", config.to.ip);
    Table t = probe();
    ASSERT_TRUE(t);
    EXPECT_EQ(t->outcome, FT_PATH_UNREACHABLE);
    EXPECT_EQ(t->refuser.ip[GetParam() == AF_INET6 ? 15 : 3], 1);
    /* this machine says so */
    net->in("h0", [&] {
        ASSERT_EQ(unshare(CLONE_NEWNET), 0);
        ft_path_table *table = nullptr;
        there.from.family = 0;
        EXPECT_EQ(ft_path_probe(&there, &table), FT_LINK);
        EXPECT_TRUE(strstr(ft_fail_text(), "no route")) << ft_fail_text();
    });
}

INSTANTIATE_TEST_SUITE_P(Over, Paths, testing::Values(AF_INET, AF_INET6),
                         [](const testing::TestParamInfo<int> &i) {
                             return i.param == AF_INET6 ? "IPv6" : "IPv4";
                         });

} // namespace

// Property: if it is known which source port goes which way, each connection of a link gets a port
// of the way that it should take, and all ways get as many connections; otherwise connections stay
// where they are. No message is lost or out of order meanwhile. Method: engines of one process over
// two loopback addresses, with a planted table of ports; the descriptors of the process say which
// ports are used.
#include <dirent.h>
#include <map>
#include <memory>
#include "tests/unit/tcp_finder.h"
#include "tests/unit/tcp_fixture.h"

namespace
{

// A way through the network that is not one's own: from 127.0.0.2 to 127.0.0.1.
class TcpPaths : public testing::Test
{
  protected:
    Finder finder;
    std::vector<int> busy; // sockets that have a port

    void SetUp() override
    {
        set("FTCCL_SOCKET_IFNAME", "lo");
        set("FTCCL_SOCKET_FAMILY", "AF_INET");
        set("FTCCL_SOCKET_SOURCE", "127.0.0.2");
        set("FTCCL_TCP_CONNECTIONS", "4");
    }
    void TearDown() override
    {
        for (int fd : busy)
            close(fd);
        for (const char *name : {"FTCCL_SOCKET_IFNAME", "FTCCL_SOCKET_FAMILY",
                                 "FTCCL_SOCKET_SOURCE", "FTCCL_TCP_CONNECTIONS", "FTCCL_PATHS"})
            unsetenv(name);
        ft_params_reload();
    }
    void set(const char *name, const char *value)
    {
        setenv(name, value, 1), ft_params_reload();
    }
    std::unique_ptr<Engine> engine(uint64_t id)
    {
        return std::make_unique<Engine>(id, (unsigned char)1, ft_env_real(), 0, &finder.base);
    }
    // The source ports of this process's connections to an engine, sorted.
    static std::vector<uint16_t> ports_to(Engine &to)
    {
        std::vector<uint16_t> ports;
        const uint16_t port = to.where().port;
        DIR *fds = opendir("/proc/self/fd");
        while (dirent *e = readdir(fds)) {
            ft_net_address here, there;
            int fd = atoi(e->d_name);
            if (ft_net_peer(fd, &there) == FT_OK && there.port == port &&
                ft_net_source(fd, &here) == FT_OK)
                ports.push_back(here.port);
        }
        closedir(fds);
        std::sort(ports.begin(), ports.end());
        return ports;
    }
    // How many connections each way has, and last those that go elsewhere.
    std::vector<int> ways_to(Engine &to)
    {
        std::vector<int> ways(kClasses + 1);
        for (uint16_t port : ports_to(to)) {
            const int c = finder.class_of(port);
            ways[(size_t)(c == FT_PATH_UNKNOWN ? kClasses : c)]++;
        }
        return ways;
    }
    // Until each way has a connection, none is elsewhere, and messages still go through.
    template <class Traffic> void expect_spread(Traffic &t, Engine &to)
    {
        EXPECT_TRUE(eventually([&] {
            return t.turn(), ways_to(to) == std::vector<int>({1, 1, 1, 1, 0});
        })) << testing::PrintToString(ways_to(to));
        t.expect_alive();
    }
    void occupy(uint16_t port)
    {
        ft_net_address at = {};
        at.family = AF_INET, at.ip[0] = 127, at.ip[3] = 2, at.port = port;
        sockaddr_in sa;
        const unsigned len = ft_net_to_sockaddr(&at, (sockaddr *)&sa);
        busy.push_back(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
        ASSERT_EQ(0, bind(busy.back(), (sockaddr *)&sa, len)) << strerror(errno);
        ASSERT_EQ(0, listen(busy.back(), 1));
    }
};

// A link whose messages are sent and checked while others wait for something.
struct Traffic {
    Engine &from, &to;
    ft_link *tx, *rx = nullptr;
    uint32_t sent[4] = {}, received[4] = {};
    std::vector<unsigned char> data = payload(0, 3000);

    Traffic(Engine &a, Engine &b, uint64_t peer) : from(a), to(b), tx(a.connect(peer, b.address()))
    {
        const size_t accepted = b.accepted.size();
        EXPECT_TRUE(eventually([&] {
            return a.turn(), b.turn(), tx->state == FT_LINK_UP && b.accepted.size() > accepted;
        })) << ft_fail_text();
        if (b.accepted.size() > accepted)
            rx = b.accepted.back();
    }
    void turn()
    {
        from.turn(), to.turn();
        for (unsigned lane = 0; lane < 4; lane++) {
            ft_header h = header(lane, sent[lane], data.size());
            if (sent[lane] - received[lane] < 2 && tcp->send(tx, &h, data.data(), nullptr) == FT_OK)
                sent[lane]++;
            ft_msg m;
            if (tcp->recv(rx, ctx, lane, &m) != FT_OK)
                continue;
            ASSERT_EQ(received[lane]++, m.header.seq);
            ASSERT_EQ(0, memcmp(m.data, data.data(), data.size()));
            tcp->release(rx, &m);
        }
        ASSERT_EQ(FT_LINK_UP, tx->state) << ft_fail_text();
        ASSERT_EQ(FT_LINK_UP, rx->state) << ft_fail_text();
    }
    // Messages go through on all lanes.
    void expect_alive()
    {
        uint32_t before[4];
        memcpy(before, received, sizeof before);
        EXPECT_TRUE(eventually([&] {
            turn();
            bool all = true;
            for (int lane = 0; lane < 4; lane++)
                all = all && received[lane] > before[lane] + 3;
            return all || testing::Test::HasFatalFailure();
        }));
    }
};

using Ways = std::vector<int>;

TEST_F(TcpPaths, EachConnectionTakesAWayOfItsOwn)
{
    const int before = ft_fd_count();
    {
        auto a = engine(1), b = engine(2);
        Traffic t(*a, *b, 2);
        expect_spread(t, *b);
        EXPECT_TRUE(eventually([&] { return t.turn(), finder.finds >= 2 * 4; }));
        const auto ports = ports_to(*b);
        const uint64_t end = ft_now_ns(ft_env_real()) + 1200000000;
        while (ft_now_ns(ft_env_real()) < end)
            t.turn();
        EXPECT_EQ(ports, ports_to(*b)) << "they stay";
        EXPECT_LT(finder.finds, 20) << "each asks before its move and after it";
        EXPECT_EQ(before + 2 * 2 + 2 * 4, ft_fd_count());
    }
    EXPECT_EQ(before, ft_fd_count());
}

// With two connections each, rank 1 takes the ways 1 and 2, rank 2 the ways 0 and 3.
TEST_F(TcpPaths, RanksDivideTheWays)
{
    set("FTCCL_TCP_CONNECTIONS", "2");
    auto a = engine(1), b = engine(2), c = engine(3);
    Traffic ac(*a, *c, 3);
    EXPECT_TRUE(eventually([&] {
        return ac.turn(), ways_to(*c) == Ways({0, 1, 1, 0, 0});
    })) << testing::PrintToString(ways_to(*c));
    Traffic bc(*b, *c, 3);
    EXPECT_TRUE(eventually([&] {
        return ac.turn(), bc.turn(), ways_to(*c) == Ways({1, 1, 1, 1, 0});
    })) << testing::PrintToString(ways_to(*c));
}

// Another job's rank 1 takes other ways.
TEST_F(TcpPaths, JobsBeginWithOtherWays)
{
    set("FTCCL_TCP_CONNECTIONS", "2");
    const std::pair<uint64_t, Ways> jobs[] = {{1, {1, 0, 0, 1, 0}}, {UINT64_MAX, {1, 0, 0, 1, 0}}};
    for (const auto &[first, ways] : jobs) {
        finder.base.first = first;
        auto a = engine(1), b = engine(2);
        Traffic t(*a, *b, 2);
        EXPECT_TRUE(eventually([&] { return t.turn(), ways_to(*b) == ways; }))
            << testing::PrintToString(ways_to(*b));
    }
}

// Ranks 1 and 5 go the same ways to the same peer. Rank 1 has the first ports that rank 5 would
// take.
TEST_F(TcpPaths, TwoRanksOfAHostTakeOtherPorts)
{
    set("FTCCL_TCP_CONNECTIONS", "1");
    auto a = engine(1), b = engine(1 + kClasses * kPortsOfClass), c = engine(3);
    Traffic ac(*a, *c, 3);
    EXPECT_TRUE(eventually([&] { return ac.turn(), ways_to(*c) == Ways({0, 0, 0, 1, 0}); }));
    Traffic bc(*b, *c, 3);
    EXPECT_TRUE(eventually([&] {
        return ac.turn(), bc.turn(), ways_to(*c) == Ways({0, 0, 0, 2, 0});
    })) << testing::PrintToString(ways_to(*c));
    const auto ports = ports_to(*c);
    EXPECT_EQ(2u, ports.size());
    EXPECT_NE(ports.front(), ports.back());
}

TEST_F(TcpPaths, APortThatIsTakenIsPassedOver)
{
    for (int i = 0; i < kClasses * (kPortsOfClass - 1); i++)
        occupy(finder.table[(size_t)i].source_port);
    auto a = engine(1), b = engine(2);
    Traffic t(*a, *b, 2);
    expect_spread(t, *b);
}

// A way without a free port: its connection stays where it is, the others move. When other ports
// are known, it moves, too.
TEST_F(TcpPaths, AWayWithoutAFreePortIsAskedForAgain)
{
    for (const ft_path &p : finder.table)
        if (p.class_index == 2)
            occupy(p.source_port);
    auto a = engine(1), b = engine(2);
    Traffic t(*a, *b, 2);
    EXPECT_TRUE(eventually([&] { return t.turn(), finder.forgets > 0; }));
    EXPECT_EQ(Ways({1, 1, 0, 1, 1}), ways_to(*b));
    t.expect_alive();
    finder.status = FT_OK;
    finder.plant((uint16_t)(finder.table[0].source_port + kClasses * kPortsOfClass));
    expect_spread(t, *b);
}

TEST_F(TcpPaths, NothingMovesWhereWaysAreUnknownOrOne)
{
    for (int status : {FT_NOTSUP, FT_OK}) {
        finder.status = status;
        finder.nclasses = 1;
        finder.finds = 0;
        auto a = engine(1), b = engine(2);
        Traffic t(*a, *b, 2);
        const auto ports = ports_to(*b);
        EXPECT_TRUE(eventually([&] { return t.turn(), finder.finds >= 4; }));
        t.expect_alive();
        EXPECT_EQ(ports, ports_to(*b));
        EXPECT_EQ(4, finder.finds) << "each connection asks once";
    }
}

// While it is being found out, only one connection asks; then all move. If nobody waits any more,
// the search ends.
TEST_F(TcpPaths, WaitForWhatIsBeingFoundOut)
{
    finder.status = FT_AGAIN;
    auto a = engine(1), b = engine(2);
    {
        Traffic t(*a, *b, 2);
        EXPECT_TRUE(eventually([&] { return t.turn(), finder.finds > 20; }));
        EXPECT_EQ(0, finder.stops);
        tcp->disconnect(t.tx);
        EXPECT_TRUE(eventually([&] { return a->turn(), b->turn(), finder.stops == 1; }));
    }
    const int finds = finder.finds;
    Traffic t(*a, *b, 2);
    EXPECT_TRUE(eventually([&] { return t.turn(), finder.finds > finds + 20; }));
    finder.status = FT_OK;
    expect_spread(t, *b);
}

TEST_F(TcpPaths, ConnectionsWithinAMachineAreLeftAlone)
{
    set("FTCCL_SOCKET_SOURCE", "");
    set("FTCCL_PATHS", "3");
    set("FTCCL_TCP_CONNECTIONS", "2");
    auto a = engine(1), b = engine(2);
    Traffic t(*a, *b, 2);
    EXPECT_EQ(2u, ports_to(*b).size()) << "FTCCL_PATHS is for other hosts";
    for (int i = 0; i < 1000; i++)
        t.turn();
    EXPECT_EQ(0, finder.finds);
}

} // namespace

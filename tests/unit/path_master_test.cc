/*
 * Property: a rank tells the master of paths what its probes saw and which connections it has, and
 * takes what it answers; a master that is away, silent, wrong or hostile stops nobody for longer
 * than a second, and a new one hears what connections have. Method: the client, a clock that the
 * test moves on, and a master made by hand on a loopback socket.
 */
#include <arpa/inet.h>
#include <dirent.h>
#include <gtest/gtest.h>
#include <netinet/in.h>

#include <cstring>
#include <functional>
#include <map>
#include <memory>

#include "tests/common/daemon_talk.h"

extern "C" {
#include "path/master.h"
}

namespace
{

using talk::Bytes;
using talk::Message;
using talk::number;
using talk::operator+;

constexpr uint64_t kSecond = 1000000000;
const Bytes kKey(FT_KEY_BYTES, 7);

uint64_t clock_ns = 1000 * kSecond;

ft_env *env()
{
    static ft_env made = {[](ft_env *) { return clock_ns; },
                          [](ft_env *, void *buf, size_t len) {
                              ft_env_real()->random(ft_env_real(), buf, len);
                          },
                          nullptr};
    return &made;
}

int count_descriptors()
{
    int n = 0;
    DIR *dir = opendir("/proc/self/fd");
    while (readdir(dir))
        n++;
    closedir(dir);
    return n;
}

// The ways from host 10.0.0.1 to a host, each over a spine of its own.
struct Table {
    ft_path_table table = {};
    std::vector<ft_path_class> classes;
    Table(int host, const std::vector<int> &spines, uint64_t probed_ns = 1)
    {
        table.from.family = table.to.family = AF_INET;
        inet_pton(AF_INET, "10.0.0.1", table.from.ip);
        inet_pton(AF_INET, "10.1.0.0", table.to.ip);
        table.to.ip[2] = static_cast<unsigned char>(host / 256);
        table.to.ip[3] = static_cast<unsigned char>(host);
        table.to.port = 5201;
        table.probed_ns = probed_ns;
        table.nhops = 3;
        for (int spine : spines) {
            ft_path_class c = {};
            for (int i = 0; i < 3; i++)
                inet_pton(AF_INET, "172.16.0.0", c.hop[i].ip), c.hop[i].ip[3] = hop(i, spine);
            classes.push_back(c);
        }
        table.nclasses = static_cast<int>(classes.size());
        table.classes = classes.data();
    }
    static unsigned char hop(int i, int spine)
    {
        return static_cast<unsigned char>(i == 1 ? 100 + spine : i);
    }
};

Bytes mapped(const char *text)
{
    Bytes out(16);
    out[10] = out[11] = 0xff;
    inet_pton(AF_INET, text, &out[12]);
    return out;
}

// The master: what it hears, and what it answers.
class Master
{
  public:
    talk::Talk peer;
    std::vector<Message> heard;
    std::map<uint64_t, int> way; // what it gives to a connection; it says nothing to others
    std::map<uint64_t, uint32_t> pair_of;
    Bytes key = kKey;
    bool reads = true;
    int accepted = 0;
    int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    std::string address;

    Master()
    {
        sockaddr_in at = {};
        socklen_t len = sizeof at;
        at.sin_family = AF_INET;
        at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
        EXPECT_EQ(bind(listener, reinterpret_cast<sockaddr *>(&at), len), 0);
        EXPECT_EQ(listen(listener, 10), 0);
        getsockname(listener, reinterpret_cast<sockaddr *>(&at), &len);
        address = "127.0.0.1:" + std::to_string(ntohs(at.sin_port));
    }
    ~Master()
    {
        close(listener);
    }
    void give(uint64_t connection, int to) const
    {
        const Bytes body = number(pair_of.at(connection), 4) + number(connection, 8);
        peer.say(FT_PATHS_WAY, body + number(static_cast<uint64_t>(to + 1), 2));
    }
    void turn()
    {
        const int fd = reads ? accept(listener, nullptr, nullptr) : -1;
        if (fd >= 0) {
            accepted++;
            peer.start(fd, false, key.data());
        }
        for (Message m; reads && peer.hear(m);) {
            EXPECT_EQ(m.service, unsigned{FT_PATHS_SERVICE});
            heard.push_back(m);
            if (m.type == FT_PATHS_TAKE)
                answer(m);
        }
    }
    // The messages of a type since forget().
    std::vector<Bytes> of(unsigned type) const
    {
        std::vector<Bytes> out;
        for (const Message &m : heard)
            if (m.type == type)
                out.push_back(m.bytes);
        return out;
    }

  private:
    void answer(const Message &m)
    {
        const unsigned char *at = m.bytes.data();
        const uint32_t pair = get32(&at);
        const uint64_t connection = get64(&at);
        pair_of[connection] = pair;
        if (way.count(connection) > 0)
            give(connection, way[connection]);
    }
};

class PathMaster : public testing::Test
{
  protected:
    void SetUp() override
    {
        before = count_descriptors();
        master = std::make_unique<Master>();
        open();
    }
    void TearDown() override
    {
        ft_path_master_close(client);
        master.reset();
        EXPECT_EQ(count_descriptors(), before);
    }
    void open(ft_env *with = env())
    {
        ft_path_master_config config = {};
        config.env = with;
        config.rank = 3;
        config.at = master->address.c_str();
        memcpy(config.key, kKey.data(), kKey.size());
        client = ft_path_master_open(&config);
        ASSERT_NE(client, nullptr);
        ft_path_master_set_job(client, 0x1122334455667788);
    }
    // Asks once, and lets the master turn. Returns the way, or -1000 - status.
    int ask(const Table &t, uint64_t connection)
    {
        int way = -1;
        const int status = ft_path_master_choose(client, &t.table, connection, &way);
        master->turn();
        return status == FT_OK ? way : -1000 - status;
    }
    bool eventually(const std::function<bool()> &done)
    {
        for (int i = 0; i < 20000; i++) {
            if (done())
                return true;
            usleep(500);
        }
        return false;
    }
    bool gets(const Table &t, uint64_t connection, int way)
    {
        return eventually([&] { return ask(t, connection) == way; });
    }
    static constexpr int kWaits = -1000 - FT_AGAIN, kAlone = -1000 - FT_NOTSUP;

    std::unique_ptr<Master> master;
    ft_path_master *client = nullptr;
    Table four = Table(2, {0, 1, 2, 3});
    int before = 0;
};

TEST_F(PathMaster, HearsTheWaysAndSaysWhichOne)
{
    master->way = {{5, 2}, {6, 0}};
    EXPECT_EQ(ask(four, 5), kWaits);
    EXPECT_TRUE(gets(four, 5, 2));
    EXPECT_TRUE(gets(four, 6, 0));
    ASSERT_EQ(master->of(FT_PATHS_HELLO).size(), 1u);
    EXPECT_EQ(master->of(FT_PATHS_HELLO)[0], number(0x1122334455667788, 8) + number(3, 4));
    ASSERT_EQ(master->of(FT_PATHS_WAYS).size(), 1u);
    const Bytes ways = master->of(FT_PATHS_WAYS)[0];
    Bytes want = number(master->pair_of[5], 4) + mapped("10.0.0.1") + mapped("10.1.0.2");
    want = want + number(5201, 2) + number(3, 1) + number(4, 2);
    for (int spine = 0; spine < 4; spine++)
        for (int hop = 0; hop < 3; hop++)
            want = want + mapped(("172.16.0." + std::to_string(Table::hop(hop, spine))).c_str());
    EXPECT_EQ(ways, want);
    const auto takes = master->of(FT_PATHS_TAKE);
    ASSERT_EQ(takes.size(), 2u) << "each once";
    EXPECT_EQ(takes[0], number(master->pair_of[5], 4) + number(5, 8) + number(0, 2));
    master->give(5, 3);
    EXPECT_TRUE(gets(four, 5, 3)) << "it may change its mind";
    master->give(5, -1);
    EXPECT_TRUE(gets(four, 5, kAlone));
}

TEST_F(PathMaster, NobodyWaitsForOneThatIsAway)
{
    close(master->listener);
    master->listener = -1;
    EXPECT_TRUE(gets(four, 5, kAlone));
    EXPECT_EQ(ask(four, 6), kAlone);
}

// It accepts, and says nothing: a second, whatever the number of connections; then nobody waits.
TEST_F(PathMaster, NobodyWaitsForOneThatIsSilent)
{
    for (bool reads : {false, true}) {
        master->reads = reads;
        EXPECT_EQ(ask(four, 5), kWaits);
        for (int i = 0; reads && i < 100 && master->of(FT_PATHS_TAKE).empty(); i++)
            ask(four, 5), usleep(1000);
        EXPECT_EQ(ask(four, 6), kWaits);
        clock_ns += kSecond;
        EXPECT_EQ(ask(four, 5), kAlone);
        EXPECT_EQ(ask(four, 6), kAlone);
        EXPECT_EQ(ask(four, 7), kAlone) << "it is known to be silent";
        ft_path_master_close(client);
        master->peer.end();
        if (!reads)
            open();
    }
    client = nullptr;
}

TEST_F(PathMaster, AnAnswerThatComesLateCounts)
{
    EXPECT_TRUE(eventually([&] { return ask(four, 5), !master->of(FT_PATHS_TAKE).empty(); }));
    clock_ns += kSecond;
    EXPECT_EQ(ask(four, 5), kAlone);
    master->give(5, 1);
    EXPECT_TRUE(gets(four, 5, 1));
    EXPECT_EQ(ask(four, 6), kWaits) << "it speaks again";
}

// The handshake is not finished in time: it is dialled again, each time after a longer pause.
TEST_F(PathMaster, DialsLessAndLessOften)
{
    master->key[0] ^= 1;
    EXPECT_TRUE(gets(four, 5, kAlone));
    for (int i = 0; i < 600; i++) {
        clock_ns += kSecond;
        for (int k = 0; k < 4; k++)
            ask(four, 5);
        usleep(500);
    }
    EXPECT_GE(master->accepted, 8);
    EXPECT_LE(master->accepted, 40);
    EXPECT_TRUE(master->heard.empty());
}

TEST_F(PathMaster, ANewOneHearsWhatConnectionsHave)
{
    master->way = {{5, 2}, {6, 0}};
    ASSERT_TRUE(gets(four, 5, 2));
    ASSERT_TRUE(gets(four, 6, 0));
    master->heard.clear();
    master->way.clear();
    master->peer.end();
    for (int i = 0; i < 100; i++)
        EXPECT_EQ(ask(four, 5), 2);
    EXPECT_EQ(master->accepted, 1) << "at once";
    clock_ns += 4 * kSecond;
    EXPECT_TRUE(eventually([&] {
        EXPECT_EQ(ask(four, 5), 2);
        EXPECT_EQ(ask(four, 6), 0);
        return master->of(FT_PATHS_TAKE).size() == 2;
    }));
    EXPECT_EQ(master->of(FT_PATHS_WAYS).size(), 1u);
    EXPECT_EQ(master->of(FT_PATHS_TAKE)[0],
              number(master->pair_of[5], 4) + number(5, 8) + number(3, 2));
}

Bytes probe_of(const char *from, const char *to, uint64_t port)
{
    return mapped(from) + mapped(to) + number(port, 2);
}

// At most one in five seconds, and only while the master that wants it is there.
TEST_F(PathMaster, WhatTheMasterWantsToBeProbed)
{
    ft_net_address from, to;
    ASSERT_TRUE(eventually([&] { return ask(four, 5), !master->of(FT_PATHS_HELLO).empty(); }));
    EXPECT_FALSE(ft_path_master_wants(client, &from, &to));
    auto want = [&](const char *whom) {
        master->peer.say(FT_PATHS_PROBE, probe_of("10.0.0.1", whom, 5201));
        return eventually([&] { return ask(four, 5), ft_path_master_wants(client, &from, &to); });
    };
    ASSERT_TRUE(want("10.1.0.2"));
    EXPECT_EQ(from.family, AF_INET);
    EXPECT_EQ(from.port, 0);
    EXPECT_EQ(memcmp(from.ip, four.table.from.ip, 4), 0);
    EXPECT_EQ(to.port, 5201);
    EXPECT_EQ(memcmp(to.ip, four.table.to.ip, 4), 0);
    ft_net_address other = to;
    other.port++;
    ft_path_master_probed(client, &from, &other, &four.table);
    EXPECT_TRUE(ft_path_master_wants(client, &from, &to)) << "that was about something else";
    ft_path_master_probed(client, &from, &to, &four.table);
    EXPECT_FALSE(ft_path_master_wants(client, &from, &to));
    ASSERT_TRUE(eventually([&] { return ask(four, 5), !master->of(FT_PATHS_PROBED).empty(); }));
    const Bytes ways = master->of(FT_PATHS_WAYS)[0], said = master->of(FT_PATHS_PROBED)[0];
    EXPECT_EQ(said, mapped("10.0.0.1") + mapped("10.1.0.2") + Bytes(ways.begin() + 38, ways.end()));
    master->peer.say(FT_PATHS_PROBE, probe_of("10.0.0.1", "10.1.0.3", 5201));
    for (int i = 0; i < 50; i++)
        ask(four, 5), usleep(500);
    EXPECT_FALSE(ft_path_master_wants(client, &from, &to)) << "too soon";
    clock_ns += 5 * kSecond;
    ASSERT_TRUE(ft_path_master_wants(client, &from, &to));
    ft_path_master_probed(client, &from, &to, nullptr);
    ASSERT_TRUE(eventually([&] { return ask(four, 5), master->of(FT_PATHS_PROBED).size() == 2; }));
    EXPECT_EQ(master->of(FT_PATHS_PROBED)[1],
              mapped("10.0.0.1") + mapped("10.1.0.3") + number(0, 1) + number(0, 2));
    clock_ns += 5 * kSecond;
    ASSERT_TRUE(want("10.1.0.4"));
    master->peer.end();
    EXPECT_TRUE(eventually([&] { return ask(four, 5), !ft_path_master_wants(client, &from, &to); }))
        << "it has gone";
}

// The finder probes it by turns that nobody waits for, and goes on when others stop.
TEST_F(PathMaster, TheFinderProbesWhatTheMasterWants)
{
    ft_path_master_close(client);
    client = nullptr;
    open(ft_env_real());
    ft_path_finder *finder = ft_path_finder_open(ft_env_real(), 3, client);
    ft_port_finder *ports = ft_path_finder_ports(finder);
    ASSERT_NE(ports->turn, nullptr);
    EXPECT_FALSE(ports->turn(ports));
    ASSERT_TRUE(eventually([&] { return ask(four, 5), !master->of(FT_PATHS_HELLO).empty(); }));
    const int idle = count_descriptors();
    for (auto &[from, to] : std::map<const char *, const char *>{{"127.0.0.1", "127.0.0.2"},
                                                                 {"192.0.2.77", "127.0.0.3"}}) {
        master->heard.clear();
        master->peer.say(FT_PATHS_PROBE, probe_of(from, to, 9));
        bool worked = false;
        EXPECT_TRUE(eventually([&] {
            ask(four, 5);
            worked |= ports->turn(ports);
            ports->stop(ports);
            return !master->of(FT_PATHS_PROBED).empty();
        })) << to;
        EXPECT_TRUE(worked || from[0] == '1') << "it takes more than a turn";
        EXPECT_FALSE(ports->turn(ports));
        EXPECT_EQ(master->of(FT_PATHS_PROBED)[0],
                  mapped(from) + mapped(to) + number(0, 1) + number(0, 2))
            << "there is no router between";
        EXPECT_EQ(count_descriptors(), idle);
    }
    ft_path_finder_close(finder);
    client = nullptr;
}

// Bytes from outside never give a way that is not there.
TEST_F(PathMaster, Rubbish)
{
    master->way = {{5, 2}};
    ASSERT_TRUE(gets(four, 5, 2));
    const Bytes pair = number(master->pair_of[5], 4), five = number(5, 8);
    for (int way : {4, 65534}) {
        master->give(5, way);
        master->way = {{7 + way, 0}};
        EXPECT_TRUE(gets(four, static_cast<uint64_t>(7 + way), 0));
        EXPECT_EQ(ask(four, 5), 2);
    }
    master->peer.say(FT_PATHS_WAY, pair + five);
    master->peer.say(FT_PATHS_WAY, pair + five + number(1, 3));
    master->peer.say(FT_PATHS_WAY, number(99, 4) + five + number(1, 2));
    master->peer.say(FT_PATHS_WAY, pair + number(99, 8) + number(1, 2));
    master->peer.say(99, pair);
    master->peer.say(FT_PATHS_TAKE, pair + five + number(1, 2));
    master->peer.say(FT_PATHS_WAY, pair + five + number(1, 2), 1);
    master->peer.say(FT_PATHS_DONE, Bytes(4000));
    master->way = {{6, 0}};
    EXPECT_TRUE(gets(four, 6, 0)); // so all before was read
    EXPECT_EQ(ask(four, 5), 2);
    EXPECT_EQ(master->accepted, 1);
    master->give(5, 1);
    EXPECT_TRUE(gets(four, 5, 1));
    master->peer.say_raw(number(5000, 4) + number(2, 2) + number(8, 2));
    EXPECT_TRUE(eventually([&] {
        Message m;
        return ask(four, 5), master->peer.hear(m), master->peer.ended;
    }));
    EXPECT_EQ(ask(four, 5), 1);
}

TEST_F(PathMaster, HearsWhatIsGivenUp)
{
    const Table other(3, {0, 1});
    master->way = {{5, 2}, {6, 0}, {7, 1}};
    ASSERT_TRUE(gets(four, 5, 2));
    ASSERT_TRUE(gets(four, 6, 0));
    ASSERT_TRUE(gets(other, 7, 1));
    const Bytes pair = number(master->pair_of[5], 4), third = number(master->pair_of[7], 4);
    clock_ns += 100 * kSecond; // nobody could ask
    for (int i = 0; i < 25; i++, clock_ns += kSecond) {
        EXPECT_EQ(ask(four, 5), 2);
        EXPECT_EQ(ask(four, 6), 0);
        EXPECT_EQ(ask(other, 7), 1);
    }
    EXPECT_TRUE(master->of(FT_PATHS_RELEASE).empty());
    for (int i = 0; i < 40; i++, clock_ns += kSecond)
        EXPECT_EQ(ask(four, 5), 2);
    EXPECT_TRUE(eventually([&] { return ask(four, 5), !master->of(FT_PATHS_DROP).empty(); }));
    const auto released = master->of(FT_PATHS_RELEASE), dropped = master->of(FT_PATHS_DROP);
    ASSERT_EQ(released.size(), 2u);
    EXPECT_TRUE(std::find(released.begin(), released.end(), pair + number(6, 8)) != released.end());
    EXPECT_EQ(dropped, std::vector<Bytes>{third});
    EXPECT_FALSE(master->of(FT_PATHS_KEEP).empty());
}

// After another probing ways have other numbers. Connections keep theirs, if it is still there.
TEST_F(PathMaster, HearsOfOtherWays)
{
    master->way = {{5, 2}, {6, 0}};
    ASSERT_TRUE(gets(four, 5, 2));
    ASSERT_TRUE(gets(four, 6, 0));
    const Bytes old = number(master->pair_of[5], 4);
    master->heard.clear();
    master->way = {{6, 1}};
    const Table fewer(2, {1, 2, 3}, 99);
    EXPECT_EQ(ask(fewer, 5), 1);
    EXPECT_EQ(ask(fewer, 6), kWaits);
    EXPECT_TRUE(gets(fewer, 6, 1));
    EXPECT_EQ(master->of(FT_PATHS_DROP), std::vector<Bytes>{old});
    EXPECT_EQ(master->of(FT_PATHS_WAYS).size(), 1u);
    const Bytes now = number(master->pair_of[5], 4);
    EXPECT_NE(now, old);
    EXPECT_EQ(master->of(FT_PATHS_TAKE), (std::vector<Bytes>{now + number(5, 8) + number(2, 2),
                                                             now + number(6, 8) + number(0, 2)}));
}

TEST_F(PathMaster, HearsComplaints)
{
    master->way = {{5, 2}};
    ASSERT_TRUE(gets(four, 5, 2));
    ft_path_master_bad(client, &four.table, 2);
    const Bytes want = number(master->pair_of[5], 4) + number(2, 2);
    EXPECT_TRUE(eventually([&] { return ask(four, 5), !master->of(FT_PATHS_BAD).empty(); }));
    EXPECT_EQ(master->of(FT_PATHS_BAD), std::vector<Bytes>{want});
}

TEST_F(PathMaster, Limits)
{
    for (uint64_t c = 0; c < FT_PATHS_CONNECTIONS; c++)
        EXPECT_EQ(ask(four, c), kWaits);
    EXPECT_EQ(ask(four, 1000), kAlone);
    for (int host = 3; host < 2 + FT_PATHS_PAIRS; host++)
        ASSERT_EQ(ask(Table(host, {0, 1}), 0), kWaits) << host;
    EXPECT_EQ(ask(Table(2000, {0, 1}), 0), kAlone);
    EXPECT_EQ(ask(Table(2001, std::vector<int>(FT_PATHS_MOST + 1)), 0), kAlone);
}

// It takes the connection and never reads: what waits for it is bounded, and it is left in the end.
TEST_F(PathMaster, OneThatDoesNotRead)
{
    master->way = {{5, 2}};
    ASSERT_TRUE(gets(four, 5, 2));
    master->reads = false;
    const std::vector<int> many(FT_PATHS_MOST);
    bool left = false;
    Table big(7, many, 1);
    for (uint64_t i = 2; i < 200000 && !left; i++) {
        big.table.probed_ns = i; // the pair begins anew each time
        ask(big, 9);
        ft_path_master_bad(client, &four.table, 1);
        left = i % 100 == 0 && count_descriptors() == before + 2; // those of this side
    }
    EXPECT_TRUE(left);
    EXPECT_EQ(ask(four, 5), 2);
}

} // namespace

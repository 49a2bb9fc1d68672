// Property: the tcp transport delivers every message once and in order, however the socket cuts the
// bytes. Method: two transports, or a transport and a hand-made peer on a plain socket, turned by
// one thread.
#include "tests/unit/tcp_fixture.h"

#include <netinet/in.h>
#include <netinet/tcp.h>

TEST(Tcp, EveryMessageArrivesOnceInOrderAndWhole)
{
    Pair p;
    ASSERT_NE(nullptr, p.rx);
    EXPECT_EQ(1u, p.rx->peer);
    const size_t sizes[] = {0, 1, 24, 25, 2016, 2048, 2049, 65536, chunk};
    const uint32_t each = 200;
    uint32_t sent[FT_LANES_ALL] = {}, got[FT_LANES_ALL] = {};
    std::vector<std::vector<unsigned char>> live(FT_LANES_ALL * 16);
    std::vector<ft_send> req(FT_LANES_ALL * 16, ft_send{FT_OK, false, false, NULL, NULL});
    auto step = [&] {
        unsigned left = 0;
        p.turn();
        for (unsigned lane = 0; lane < FT_LANES_ALL; lane++) {
            const size_t n = sizes[(sent[lane] + lane) % FT_ARRAY_LEN(sizes)];
            const unsigned slot = lane * 16 + sent[lane] % 16;
            ft_header h = header(lane, sent[lane], n);
            if (sent[lane] < each && req[slot].status == FT_OK) {
                auto data = payload(sent[lane], n);
                void *at;
                if (sent[lane] % 3 == 0) {
                    int rc = tcp->reserve(p.tx, &h, &at);
                    if (rc == FT_OK)
                        std::copy(data.begin(), data.end(), (unsigned char *)at),
                            tcp->commit(p.tx, &h, at), sent[lane]++;
                    else
                        EXPECT_EQ(FT_AGAIN, rc);
                } else {
                    live[slot] = data;
                    int rc = tcp->send(p.tx, &h, live[slot].data(), &req[slot]);
                    if (rc == FT_OK)
                        sent[lane]++;
                    else
                        EXPECT_EQ(FT_AGAIN, rc);
                }
            }
            ft_msg m;
            if (tcp->recv(p.rx, ctx, lane, &m) == FT_OK) {
                const size_t want = sizes[(got[lane] + lane) % FT_ARRAY_LEN(sizes)];
                EXPECT_EQ(got[lane], m.header.seq);
                EXPECT_EQ(want, m.header.len);
                auto data = payload(got[lane], want);
                EXPECT_TRUE(std::equal(data.begin(), data.end(), (const unsigned char *)m.data))
                    << lane << " " << got[lane];
                tcp->release(p.rx, &m);
                got[lane]++;
            }
            left += each - got[lane];
        }
        return left == 0 || ::testing::Test::HasFailure();
    };
    EXPECT_TRUE(eventually(step));
    EXPECT_TRUE(eventually([&] { return p.turn(), tcp->drained(p.tx); }));
    EXPECT_EQ((uint64_t)each * FT_LANES_ALL, p.tx->messages);
    EXPECT_EQ(p.tx->bytes, p.rx->bytes);
}

TEST(Tcp, WindowBoundsAChannelAndUnreadOnesDelayNobody)
{
    Pair p;
    ft_send req[32];
    auto data = payload(0, chunk);
    for (unsigned lane = 0; lane < FT_LANES_ALL; lane++) {
        int n = 0;
        for (; n < 20; n++) {
            ft_header h = header(lane, (uint32_t)n, chunk);
            if (tcp->send(p.tx, &h, data.data(), &req[n]) == FT_AGAIN)
                break;
            EXPECT_TRUE(eventually([&] { return p.turn(), req[n].status == FT_OK; }));
        }
        EXPECT_EQ(ft_window(lane), n) << "lane " << lane;
    }
    ft_msg m;
    EXPECT_TRUE(eventually([&] { return p.turn(), tcp->recv(p.rx, ctx, 9, &m) == FT_OK; }));
    EXPECT_FALSE(tcp->drained(p.tx));
    tcp->release(p.rx, &m);
    ft_header h = header(9, 8, 0);
    EXPECT_TRUE(
        eventually([&] { return p.turn(), tcp->send(p.tx, &h, nullptr, &req[0]) == FT_OK; }));
}

// The kernel asks a silent host for as long as FTCCL_SUSPECT_MS says, also for longer than it asks
// once a second, and at least three times: two questions may both fall into a slow second of a link
// that is idle.
TEST(Tcp, KeepaliveLastsAsLongAsTheSilenceThatIsBorne)
{
    for (int seconds : {2, 126, 127, 128, 600, 3600}) {
        setenv("FTCCL_SUSPECT_MS", std::to_string(1000 * seconds).c_str(), 1), ft_params_reload();
        Pair p;
        int found = 0;
        for (int fd = 0; fd < 256; fd++) {
            int on = 0, idle = 0, interval = 0, probes = 0;
            socklen_t len = sizeof on;
            if (getsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, &len) != 0 || !on)
                continue;
            getsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle, &len);
            getsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &interval, &len);
            getsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &probes, &len);
            EXPECT_GE(idle + interval * probes, seconds) << interval << " " << probes;
            EXPECT_LE(idle + interval * probes, (seconds > 3 ? seconds : 3) + 1 + seconds / 100)
                << interval << " " << probes;
            EXPECT_GE(probes, 3);
            found++;
        }
        EXPECT_GT(found, 0);
    }
    unsetenv("FTCCL_SUSPECT_MS"), ft_params_reload();
}

static std::string congestion_of(int fd)
{
    char name[16] = "";
    socklen_t len = sizeof name - 1;
    return getsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, name, &len) == 0 ? name : "";
}

TEST(Tcp, InsideAMachineNoConnectionBeginsWithPacing)
{
    Engine a{1}, b{2};
    a.connect(2, b.address());
    int listeners = 0, dialed = 0;
    for (int fd = 0; fd < 256; fd++) {
        int listens = 0;
        socklen_t len = sizeof listens;
        std::string name = congestion_of(fd);
        if (name == "" || getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listens, &len) != 0)
            continue;
        if (listens)
            EXPECT_NE("bbr", name.substr(0, 3))
                << "what is accepted begins with it"; // the system's choice, or ours
        else
            EXPECT_EQ("reno", name);
        (listens ? listeners : dialed)++;
    }
    EXPECT_GE(listeners, 2);
    EXPECT_GE(dialed, 1);
}

TEST(Tcp, SlowReaderGetsEverythingAndCostsItsSenderNoWait)
{
    setenv("FTCCL_TCP_CONNECTIONS", "1", 1), ft_params_reload(); // more than one socket holds
    Pair p;
    std::vector<std::vector<unsigned char>> data;
    std::vector<ft_send> req(128);
    unsigned pending = 0, n = 0, most = UINT_MAX; // the queue may be full before all windows are
    auto each = [&](const std::function<void(unsigned, uint64_t)> &what) {
        n = 0;
        for (uint64_t c = ctx; c < ctx + 2; c++)
            for (unsigned lane = 0; lane < FT_LANES_ALL; lane++)
                for (int i = 0; i < ft_window(lane) && n < most; i++, n++)
                    what(lane, c);
    };
    for (uint64_t c = ctx + 1; c < ctx + 2; c++)
        tcp->bind(p.a.t, c), tcp->bind(p.b.t, c);
    each([&](unsigned lane, uint64_t c) { // all windows, while the other side is not turned
        ft_header h = header(lane, n, chunk - n, c);
        data.push_back(payload(n, chunk - n));
        int rc = tcp->send(p.tx, &h, data.back().data(), &req[n]);
        if (rc == FT_AGAIN)
            most = n;
        else
            EXPECT_EQ(FT_OK, rc);
        pending += rc == FT_OK && req[n].status == FT_AGAIN;
    });
    EXPECT_GT(pending, 0u) << "the kernel took all: partial writes were not tested";
    each([&](unsigned lane, uint64_t c) {
        ft_msg m;
        ASSERT_TRUE(eventually([&] { return p.turn(), tcp->recv(p.rx, c, lane, &m) == FT_OK; }));
        EXPECT_EQ(n, m.header.seq);
        EXPECT_EQ(0, memcmp(data[n].data(), m.data, data[n].size())) << "message " << n;
        tcp->release(p.rx, &m);
    });
    for (unsigned i = 0; i < std::min(n, most); i++)
        EXPECT_EQ(FT_OK, req[i].status);
    EXPECT_TRUE(eventually([&] { return p.turn(), tcp->drained(p.tx); }));
    unsetenv("FTCCL_TCP_CONNECTIONS"), ft_params_reload();
}

// A receiver that asks for a message finds it in its first turn after it has come, on whichever
// connection that is and however long nothing came there; and so do two that it asks for at once,
// and more.
TEST(Tcp, WhatIsWaitedForIsReadFirst)
{
    const unsigned most = 4;
    Engine b(9);
    std::vector<Engine *> from;
    std::vector<ft_link *> tx, rx;
    for (unsigned i = 0; i < most; i++) {
        from.push_back(new Engine(1 + i));
        tx.push_back(from[i]->connect(9, b.address()));
        ASSERT_TRUE(eventually([&] {
            return from[i]->turn(), b.turn(), from[i]->up.size() == 1 && b.accepted.size() == i + 1;
        }));
        rx.push_back(b.accepted[i]);
    }
    struct pollfd readable = {tcp->fd(b.t), POLLIN, 0};
    ft_msg m;
    ft_send req = {};
    for (uint32_t seq = 0; seq < 200; seq++) {
        const unsigned waits = 1 + seq % 3, first = seq / 3 % most;
        for (unsigned i = 0; i < waits; i++)
            EXPECT_EQ(FT_AGAIN, tcp->recv(rx[(first + i) % most], ctx, 0, &m));
        for (int i = 0; i < 40; i++)
            b.turn(); // so that other connections are looked at rarely
        for (unsigned i = waits; i-- > 0;) {
            const unsigned at = (first + i) % most;
            ft_header h = header(0, seq, 8);
            ASSERT_EQ(FT_OK, tcp->send(tx[at], &h, "message", &req));
            ASSERT_EQ(1, poll(&readable, 1, 20000));
            b.turn();
            ASSERT_EQ(FT_OK, tcp->recv(rx[at], ctx, 0, &m))
                << i << " of " << waits << ", message " << seq;
            tcp->release(rx[at], &m);
        }
        for (Engine *e : from)
            e->turn(); // takes credits
    }
    for (Engine *e : from)
        delete e;
}

// Lanes of collectives and of sends may carry longer messages than the others; a sender refuses its
// own that are too long.
TEST(Tcp, FirstLaneCarriesLongerMessages)
{
    const size_t longest = 3 * chunk + 5;
    Engine a(1, 1, ft_env_real(), longest), b(2, 1, ft_env_real(), longest);
    ft_link *tx = a.connect(2, b.address());
    ASSERT_TRUE(eventually([&] {
        return a.turn(), b.turn(), a.up.size() == 1 && b.accepted.size() == 1;
    })) << ft_fail_text();
    auto data = payload(1, longest + 1);
    ft_send req = {FT_OK, false, false, NULL, NULL};
    for (uint32_t seq = 0; seq < 20; seq++) {
        ft_header h = header(0, seq, longest - seq % 2);
        ASSERT_TRUE(eventually(
            [&] { return a.turn(), b.turn(), tcp->send(tx, &h, data.data(), &req) == FT_OK; }));
        ft_msg m;
        ASSERT_TRUE(eventually(
            [&] { return a.turn(), b.turn(), tcp->recv(b.accepted[0], ctx, 0, &m) == FT_OK; }));
        ASSERT_EQ(h.len, m.header.len);
        EXPECT_EQ(0, memcmp(data.data(), m.data, h.len)) << "message " << seq;
        tcp->release(b.accepted[0], &m);
    }
    const ft_header first = header(0, 99, longest + 1),
                    other = header(FT_LANE_P2P + 1, 99, chunk + 1);
    EXPECT_EQ(FT_INVAL, tcp->send(tx, &first, data.data(), &req));
    EXPECT_EQ(FT_INVAL, tcp->send(tx, &other, data.data(), &req));
    EXPECT_TRUE(a.down.empty() && b.down.empty());
}

TEST(Tcp, UnknownContextsAreDroppedAndTheirWindowComesBack)
{
    Pair p;
    EXPECT_EQ(FT_OK, tcp->bind(p.a.t, 5));
    auto data = payload(0, chunk);
    uint32_t sent = 0;
    ft_send req = {FT_OK, false, false, NULL, NULL};
    EXPECT_TRUE(eventually([&] {
        ft_header h = header(sent % 4, sent, sent % 2 ? chunk : 8, 5);
        if (req.status == FT_OK && tcp->send(p.tx, &h, data.data(), &req) == FT_OK)
            sent++;
        p.turn();
        return sent == 100;
    }));
    EXPECT_TRUE(eventually([&] { return p.turn(), tcp->drained(p.tx); }));
    EXPECT_EQ(100u, p.b.t->dropped);
}

TEST(Tcp, GoodbyeIsOrderlyAndWhatCameBeforeCanBeReceived)
{
    Pair p;
    ft_send req;
    for (unsigned lane = 0; lane < 4; lane++) {
        auto data = payload(lane, 100);
        ft_header h = header(lane, lane, 100);
        ASSERT_EQ(FT_OK, tcp->send(p.tx, &h, data.data(), &req));
        ASSERT_EQ(FT_OK, req.status);
    }
    tcp->disconnect(p.tx);
    expect_down(p.b, FT_LINK);
    EXPECT_TRUE(p.rx->orderly);
    ft_msg m;
    for (unsigned lane = 0; lane < 4; lane++) {
        ASSERT_EQ(FT_OK, tcp->recv(p.rx, ctx, lane, &m)) << lane;
        tcp->release(p.rx, &m);
        EXPECT_EQ(FT_LINK, tcp->recv(p.rx, ctx, lane, &m));
    }
    tcp->disconnect(p.rx);
}

TEST(Tcp, ReceiverThatLeavesTakesPendingSendsDown)
{
    Pair p;
    std::vector<unsigned char> data(chunk);
    ft_send req[2];
    for (int i = 0; i < 2; i++) { // nobody reads: the second is not whole in the kernel, or it is
        ft_header h = header(0, (uint32_t)i, chunk);
        ASSERT_EQ(FT_OK, tcp->send(p.tx, &h, data.data(), &req[i]));
    }
    tcp->disconnect(p.rx);
    expect_down(p.a, FT_LINK);
    for (ft_send &r : req)
        EXPECT_NE(FT_AGAIN, r.status);
    ft_header h = header(0, 2, 0);
    EXPECT_EQ(FT_LINK, tcp->send(p.tx, &h, nullptr, &req[0]));
    EXPECT_EQ(1u, p.a.down.size()) << "one event a link";
}

TEST(Tcp, NoDescriptorIsLeft)
{
    int before = ft_fd_count();
    for (int i = 0; i < 20; i++) {
        Pair p;
        if (i % 2)
            tcp->disconnect(p.tx);
    }
    EXPECT_EQ(before, ft_fd_count());
}

TEST(Tcp, WrongKeyIsNamed)
{
    Engine a(1, 1), b(2, 200);
    a.connect(2, b.address());
    ASSERT_TRUE(eventually([&] { return a.turn(), b.turn(), !a.down.empty(); }));
    EXPECT_STREQ(ft_status_text(FT_AUTH), ft_status_text(a.down[0]->reason));
    EXPECT_TRUE(b.accepted.empty());
}

TEST(Tcp, AnotherEngineAtTheAddressIsRefused)
{
    Engine a(1), b(2);
    a.connect(3, b.address());
    ASSERT_TRUE(eventually([&] { return a.turn(), b.turn(), !a.down.empty(); }));
    EXPECT_STREQ(ft_status_text(FT_AUTH), ft_status_text(a.down[0]->reason));
    EXPECT_TRUE(b.accepted.empty());
}

TEST(Tcp, RefusedConnectionIsADownLink)
{
    Engine a(1);
    std::string gone;
    {
        Engine b(2);
        gone = b.address();
    }
    a.connect(2, gone);
    expect_down(a, FT_LINK);
}

TEST(Tcp, NextAddressIsTriedWhenOneIsRefused)
{
    Engine a(1), b(2);
    std::string gone;
    {
        Engine c(3);
        gone = c.address().substr(0, FT_NET_WIRE_BYTES);
    }
    a.connect(2, gone + b.address().substr(0, FT_NET_WIRE_BYTES));
    EXPECT_TRUE(eventually([&] {
        return a.turn(), b.turn(), a.up.size() == 1 && b.accepted.size() == 1;
    })) << ft_fail_text();
    EXPECT_TRUE(a.down.empty());
}

TEST(Tcp, NonsenseForAnAddress)
{
    Engine a(1);
    ft_link *l;
    for (std::string bad : {std::string(), std::string("x"), std::string(FT_NET_WIRE_BYTES, '\0'),
                            std::string(200, '\xff')}) {
        EXPECT_FALSE(tcp->reaches(a.t, bad.data(), bad.size()));
        EXPECT_EQ(FT_NOTSUP, tcp->connect(a.t, 2, bad.data(), bad.size(), &l));
    }
    EXPECT_TRUE(tcp->reaches(a.t, a.address().data(), a.address().size()));
}

TEST(Tcp, SpeaksIPv6)
{
    Engine b(2);
    if (b.where(AF_INET6).family == 0)
        GTEST_SKIP() << "no IPv6 here";
    Hand hand(b, 1 << 8, AF_INET6);
    ASSERT_EQ(FT_OK, hand.status) << ft_fail_text();
    hand.say(header(0, 1, 8), 8);
    ft_msg m;
    EXPECT_TRUE(eventually([&] {
        return b.turn(), !b.accepted.empty() && tcp->recv(b.accepted[0], ctx, 0, &m) == FT_OK;
    }));
}

TEST(Tcp, BytesMayComeOneByOne)
{
    Engine b(2);
    Hand hand(b);
    std::string all;
    for (uint32_t seq = 0; seq < 3; seq++) {
        ft_header h = header(0, seq, seq * 40);
        auto data = payload(seq, seq * 40);
        all.append((char *)&h, sizeof h).append((char *)data.data(), data.size());
    }
    uint32_t got = 0;
    for (char c : all) {
        hand.say(&c, 1);
        b.turn();
        ft_msg m;
        if (b.accepted.empty() || tcp->recv(b.accepted[0], ctx, 0, &m) != FT_OK)
            continue;
        EXPECT_EQ(got, m.header.seq);
        EXPECT_TRUE(got == 0 || memcmp(payload(got, got * 40).data(), m.data, got * 40) == 0);
        got++;
        tcp->release(b.accepted[0], &m);
    }
    EXPECT_EQ(3u, got);
}

int main(int argc, char **argv)
{
    testing::InitGoogleTest(&argc, argv);
    setenv("FTCCL_SOCKET_IFNAME", "lo", 1);
    return RUN_ALL_TESTS();
}

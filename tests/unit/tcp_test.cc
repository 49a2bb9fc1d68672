// Property: the tcp transport delivers every message once and in order whatever the socket does to the bytes, bounds what
// strangers can hold, and answers whatever an authenticated but hostile peer says with a link that is down.
// Method: two transports, or a transport and a hand-made peer on a plain socket, turned by one thread.
#include <gtest/gtest.h>
#include <arpa/inet.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>
#include <algorithm>
#include <climits>
#include <cstring>
#include <functional>
#include <string>
#include <vector>
extern "C" {
#include "transport/transport.h"
}

static const ft_transport_ops *const tcp = &ft_transport_tcp;
static const size_t chunk = 128 * 1024;
static const uint64_t ctx = 77;
static const unsigned char key[FT_SECRET_BYTES] = { 1, 2, 3 };

static bool eventually(const std::function<bool()> &done, int seconds = 20)
{
    const uint64_t end = ft_now_ns(ft_env_real()) + (uint64_t)seconds * 1000000000u;
    while (!done())
        if (ft_now_ns(ft_env_real()) > end) return false;
    return true;
}

// A clock that runs ten times as fast as ours, so that nobody waits for deadlines.
static uint64_t fast_now_ns(ft_env *) { return 10 * ft_now_ns(ft_env_real()); }
static void fast_random(ft_env *, void *buf, size_t n) { ft_env_real()->random(ft_env_real(), buf, n); }
static ft_env fast = { fast_now_ns, fast_random, nullptr };

struct Engine {
    ft_transport *t = nullptr;
    std::vector<ft_link *> accepted, up, down;
    explicit Engine(uint64_t id, unsigned char secret = 1, ft_env *env = ft_env_real())
    {
        ft_transport_config config = {};
        config.env = env;
        config.self = id;
        memcpy(config.key, key, sizeof key);
        config.key[0] = secret;
        config.chunk_bytes = chunk;
        config.rank = (int)id;
        EXPECT_EQ(FT_OK, tcp->open(&config, &t)) << ft_fail_text();
        EXPECT_EQ(FT_OK, tcp->bind(t, ctx));
    }
    ~Engine() { tcp->close(t); }
    bool turn()
    {
        ft_event ev[8];
        bool busy = false;
        int n = tcp->poll(t, ev, 8, &busy);
        for (int i = 0; i < n; i++)
            (ev[i].what == ft_event::FT_EVENT_ACCEPTED ? accepted : ev[i].what == ft_event::FT_EVENT_UP ? up : down).push_back(ev[i].link);
        return busy;
    }
    std::string address()
    {
        char buf[FT_ADDRESS_BYTES];
        int n = tcp->address(t, buf, sizeof buf);
        EXPECT_GT(n, 0);
        return std::string(buf, (size_t)n);
    }
    ft_net_address where(int family = AF_INET)
    {
        std::string a = address();
        ft_net_address out = {};
        for (size_t at = 0; at < a.size(); at += FT_NET_WIRE_BYTES)
            if (ft_net_unpack((const unsigned char *)a.data() + at, &out) == FT_OK && out.family == family) return out;
        out.family = 0;
        return out;
    }
    ft_link *connect(uint64_t peer, const std::string &to)
    {
        ft_link *l = nullptr;
        EXPECT_EQ(FT_OK, tcp->connect(t, peer, to.data(), to.size(), &l)) << ft_fail_text();
        return l;
    }
};

struct Pair {
    int fds = ft_fd_count();
    Engine a{ 1 }, b{ 2 };
    ft_link *tx = nullptr, *rx = nullptr;
    Pair()
    {
        tx = a.connect(2, b.address());
        EXPECT_TRUE(eventually([&] { return turn(), a.up.size() == 1 && b.accepted.size() == 1; })) << ft_fail_text();
        if (!b.accepted.empty()) rx = b.accepted[0];
    }
    void turn() { a.turn(), b.turn(); }
};

static ft_header header(unsigned lane, uint32_t seq, size_t len, uint64_t context = ctx)
{
    ft_header h = {};
    h.ctx = context;
    h.seq = seq;
    h.len = (uint32_t)len;
    h.lane = (uint16_t)lane;
    return h;
}

static unsigned char byte_of(uint32_t seq, size_t i) { return (unsigned char)(seq * 31 + i * 7 + i / 251); }

static std::vector<unsigned char> payload(uint32_t seq, size_t len)
{
    std::vector<unsigned char> p(len);
    for (size_t i = 0; i < len; i++) p[i] = byte_of(seq, i);
    return p;
}

// A peer made by hand: an authenticated plain socket that says what it likes.
struct Hand {
    int fd = -1;
    int status = FT_AGAIN;
    ft_auth auth;
    Hand(Engine &e, uint32_t detail = 1 << 8, int family = AF_INET, unsigned char secret = 1)
    {
        ft_net_address to = e.where(family);
        unsigned char k[FT_SECRET_BYTES];
        memcpy(k, key, sizeof k);
        k[0] = secret;
        if (ft_net_connect(&to, &fd) != FT_OK) return;
        eventually([&] { return ft_net_connected(fd) != FT_AGAIN; });
        ft_auth_start(&auth, ft_env_real(), fd, true, k, 9, e.t->config.self, FT_PURPOSE_TCP, detail,
                      ft_now_ns(ft_env_real()) + 10000000000u);
        eventually([&] { return e.turn(), (status = ft_auth_turn(&auth)) != FT_AGAIN; });
    }
    ~Hand() { ft_fd_close(&fd); }
    void say(const void *p, size_t n) { EXPECT_EQ((ssize_t)n, send(fd, p, n, MSG_NOSIGNAL)); }
    void say(const ft_header &h, size_t n = 0)
    {
        say(&h, sizeof h);
        if (n) say(payload(h.seq, n).data(), n);
    }
};

static bool closed_by_peer(int fd)
{
    char c;
    ssize_t n = recv(fd, &c, 1, MSG_DONTWAIT);
    return n == 0 || (n < 0 && errno != EAGAIN);
}

static void expect_down(Engine &e, int reason)
{
    ASSERT_TRUE(eventually([&] { return e.turn(), !e.down.empty(); }));
    EXPECT_EQ(FT_LINK_DOWN, e.down[0]->state);
    EXPECT_STREQ(ft_status_text(reason), ft_status_text(e.down[0]->reason)) << ft_fail_text();
}

TEST(Tcp, EveryMessageArrivesOnceInOrderAndWhole)
{
    Pair p;
    ASSERT_NE(nullptr, p.rx);
    EXPECT_EQ(1u, p.rx->peer);
    const size_t sizes[] = { 0, 1, 24, 25, 2016, 2048, 2049, 65536, chunk };
    const uint32_t each = 200;
    uint32_t sent[FT_LANES_ALL] = {}, got[FT_LANES_ALL] = {};
    std::vector<std::vector<unsigned char>> live(FT_LANES_ALL * 16);
    std::vector<ft_send> req(FT_LANES_ALL * 16, ft_send{ FT_OK });
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
                    if (rc == FT_OK) std::copy(data.begin(), data.end(), (unsigned char *)at), tcp->commit(p.tx, &h, at), sent[lane]++;
                    else EXPECT_EQ(FT_AGAIN, rc);
                } else {
                    live[slot] = data;
                    int rc = tcp->send(p.tx, &h, live[slot].data(), &req[slot]);
                    if (rc == FT_OK) sent[lane]++;
                    else EXPECT_EQ(FT_AGAIN, rc);
                }
            }
            ft_msg m;
            if (tcp->recv(p.rx, ctx, lane, &m) == FT_OK) {
                const size_t want = sizes[(got[lane] + lane) % FT_ARRAY_LEN(sizes)];
                EXPECT_EQ(got[lane], m.header.seq);
                EXPECT_EQ(want, m.header.len);
                auto data = payload(got[lane], want);
                EXPECT_TRUE(std::equal(data.begin(), data.end(), (const unsigned char *)m.data)) << lane << " " << got[lane];
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
            if (tcp->send(p.tx, &h, data.data(), &req[n]) == FT_AGAIN) break;
            EXPECT_TRUE(eventually([&] { return p.turn(), req[n].status == FT_OK; }));
        }
        EXPECT_EQ(ft_window(lane), n) << "lane " << lane;
    }
    ft_msg m;
    EXPECT_TRUE(eventually([&] { return p.turn(), tcp->recv(p.rx, ctx, 9, &m) == FT_OK; }));
    EXPECT_FALSE(tcp->drained(p.tx));
    tcp->release(p.rx, &m);
    ft_header h = header(9, 8, 0);
    EXPECT_TRUE(eventually([&] { return p.turn(), tcp->send(p.tx, &h, nullptr, &req[0]) == FT_OK; }));
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
                for (int i = 0; i < ft_window(lane) && n < most; i++, n++) what(lane, c);
    };
    for (uint64_t c = ctx + 1; c < ctx + 2; c++) tcp->bind(p.a.t, c), tcp->bind(p.b.t, c);
    each([&](unsigned lane, uint64_t c) { // all windows, while the other side is not turned
        ft_header h = header(lane, n, chunk - n, c);
        data.push_back(payload(n, chunk - n));
        int rc = tcp->send(p.tx, &h, data.back().data(), &req[n]);
        if (rc == FT_AGAIN) most = n;
        else EXPECT_EQ(FT_OK, rc);
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
    for (unsigned i = 0; i < std::min(n, most); i++) EXPECT_EQ(FT_OK, req[i].status);
    EXPECT_TRUE(eventually([&] { return p.turn(), tcp->drained(p.tx); }));
    unsetenv("FTCCL_TCP_CONNECTIONS"), ft_params_reload();
}

TEST(Tcp, UnknownContextsAreDroppedAndTheirWindowComesBack)
{
    Pair p;
    EXPECT_EQ(FT_OK, tcp->bind(p.a.t, 5));
    auto data = payload(0, chunk);
    uint32_t sent = 0;
    ft_send req = { FT_OK };
    EXPECT_TRUE(eventually([&] {
        ft_header h = header(sent % 4, sent, sent % 2 ? chunk : 8, 5);
        if (req.status == FT_OK && tcp->send(p.tx, &h, data.data(), &req) == FT_OK) sent++;
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
    for (ft_send &r : req) EXPECT_NE(FT_AGAIN, r.status);
    ft_header h = header(0, 2, 0);
    EXPECT_EQ(FT_LINK, tcp->send(p.tx, &h, nullptr, &req[0]));
    EXPECT_EQ(1u, p.a.down.size()) << "one event a link";
}

TEST(Tcp, NoDescriptorIsLeft)
{
    int before = ft_fd_count();
    for (int i = 0; i < 20; i++) {
        Pair p;
        if (i % 2) tcp->disconnect(p.tx);
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
    EXPECT_TRUE(eventually([&] { return a.turn(), b.turn(), a.up.size() == 1 && b.accepted.size() == 1; })) << ft_fail_text();
    EXPECT_TRUE(a.down.empty());
}

TEST(Tcp, NonsenseForAnAddress)
{
    Engine a(1);
    ft_link *l;
    for (std::string bad : { std::string(), std::string("x"), std::string(FT_NET_WIRE_BYTES, '\0'), std::string(200, '\xff') }) {
        EXPECT_FALSE(tcp->reaches(a.t, bad.data(), bad.size()));
        EXPECT_EQ(FT_NOTSUP, tcp->connect(a.t, 2, bad.data(), bad.size(), &l));
    }
    EXPECT_TRUE(tcp->reaches(a.t, a.address().data(), a.address().size()));
}

TEST(Tcp, SpeaksIPv6)
{
    Engine b(2);
    if (b.where(AF_INET6).family == 0) GTEST_SKIP() << "no IPv6 here";
    Hand hand(b, 1 << 8, AF_INET6);
    ASSERT_EQ(FT_OK, hand.status) << ft_fail_text();
    hand.say(header(0, 1, 8), 8);
    ft_msg m;
    EXPECT_TRUE(eventually([&] { return b.turn(), !b.accepted.empty() && tcp->recv(b.accepted[0], ctx, 0, &m) == FT_OK; }));
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
        if (b.accepted.empty() || tcp->recv(b.accepted[0], ctx, 0, &m) != FT_OK) continue;
        EXPECT_EQ(got, m.header.seq);
        EXPECT_EQ(0, memcmp(payload(got, got * 40).data(), m.data, got * 40));
        got++;
        tcp->release(b.accepted[0], &m);
    }
    EXPECT_EQ(3u, got);
}

TEST(Hostile, TooLongIsRefused)
{
    Engine b(2);
    Hand hand(b);
    hand.say(header(0, 0, chunk + 1));
    expect_down(b, FT_PROTOCOL);
}

TEST(Hostile, LaneThatDoesNotExist)
{
    for (unsigned lane : { (unsigned)FT_LANES_ALL, 4711u, 0xfffeu }) {
        Engine b(2);
        Hand hand(b);
        hand.say(header(lane, 0, 4), 4);
        expect_down(b, FT_PROTOCOL);
    }
}

TEST(Hostile, WindowOverrun)
{
    Engine b(2);
    Hand hand(b);
    for (uint32_t i = 0; i <= FT_WINDOW_COLL; i++) hand.say(header(3, i, 4), 4);
    expect_down(b, FT_PROTOCOL);
    ft_msg m;
    EXPECT_EQ(FT_OK, tcp->recv(b.down[0], ctx, 3, &m)) << "what came before stays";
}

TEST(Hostile, HalfClosedIsLostNotOrderly)
{
    Engine b(2);
    Hand hand(b);
    ft_header h = header(0, 0, 100);
    hand.say(&h, sizeof h);
    shutdown(hand.fd, SHUT_WR);
    expect_down(b, FT_LINK);
    EXPECT_FALSE(b.down[0]->orderly);
    ft_msg m;
    EXPECT_EQ(FT_LINK, tcp->recv(b.down[0], ctx, 0, &m)) << "half a message is none";
}

TEST(Hostile, NeverTakesItsCredits)
{
    Engine b(2);
    Hand hand(b);
    int small = 4096;
    setsockopt(hand.fd, SOL_SOCKET, SO_RCVBUF, &small, sizeof small);
    ft_header h[64];
    uint64_t next = 4242;
    size_t gone = sizeof h;
    // unbound contexts are dropped at the sender's pace; their credits fill its socket until that is enough
    eventually([&] {
        if (gone == sizeof h) {
            for (ft_header &x : h) x = header(0, 0, 0, next++);
            gone = 0;
        }
        ssize_t n = send(hand.fd, (char *)h + gone, sizeof h - gone, MSG_NOSIGNAL | MSG_DONTWAIT);
        gone += n > 0 ? (size_t)n : 0;
        return b.turn(), !b.down.empty();
    });
    ASSERT_FALSE(b.down.empty());
    EXPECT_STREQ(ft_status_text(FT_PROTOCOL), ft_status_text(b.down[0]->reason));
}

TEST(Hostile, CreditsForWhatWasNotSent)
{
    // the sender dials a hand-made acceptor
    ft_net_address own = {};
    own.family = AF_INET, own.up = true, own.ip[0] = 127, own.ip[3] = 1;
    setenv("FTCCL_TCP_CONNECTIONS", "1", 1), ft_params_reload();
    for (int kind = 0; kind < 3; kind++) {
        int listener = -1, fd = -1;
        ASSERT_EQ(FT_OK, ft_net_listen(&own, 1, AF_INET, 0, &listener));
        unsigned char wire[FT_NET_WIRE_BYTES];
        ft_net_pack(&own, wire);
        Engine a(1);
        a.connect(9, std::string((char *)wire, sizeof wire));
        ASSERT_TRUE(eventually([&] { return a.turn(), ft_net_accept(listener, &fd) == FT_OK; }));
        ft_auth auth;
        ft_auth_start(&auth, ft_env_real(), fd, false, key, 9, 0, FT_PURPOSE_TCP, 0, ft_now_ns(ft_env_real()) + 10000000000u);
        ASSERT_TRUE(eventually([&] { return a.turn(), ft_auth_turn(&auth) == FT_OK; }));
        ASSERT_TRUE(eventually([&] { return a.turn(), !a.up.empty(); }));
        struct { uint64_t c; uint16_t lane, count; uint32_t zero; } credit = { ctx, (uint16_t)(kind == 1 ? 10 : 0), (uint16_t)(kind == 2 ? 0 : 60000), 0 };
        ASSERT_EQ(16, send(fd, &credit, 16, MSG_NOSIGNAL));
        expect_down(a, FT_PROTOCOL);
        ft_fd_close(&fd), ft_fd_close(&listener);
    }
    unsetenv("FTCCL_TCP_CONNECTIONS"), ft_params_reload();
}

TEST(Hostile, IndexOfConnectionThatMakesNoSense)
{
    for (uint32_t detail : { 0u, 5u | 2 << 8, 17u << 8, 255u << 8, 0xffffffffu }) {
        Engine b(2);
        Hand hand(b, detail);
        ASSERT_EQ(FT_OK, hand.status);
        EXPECT_TRUE(eventually([&] { return b.turn(), closed_by_peer(hand.fd); }, 5)) << "kept for siblings that cannot come";
        EXPECT_TRUE(b.accepted.empty());
    }
}

TEST(Strangers, AreBoundedAndStarveNobody)
{
    Engine a(1), b(2, 1, &fast);
    std::vector<int> idle;
    ft_net_address to = b.where();
    for (int i = 0; i < 300; i++) {
        int fd = -1;
        ASSERT_EQ(FT_OK, ft_net_connect(&to, &fd)) << ft_fail_text();
        idle.push_back(fd);
    }
    int most = 0, before = ft_fd_count();
    a.connect(2, b.address());
    const uint64_t start = ft_now_ns(ft_env_real());
    EXPECT_TRUE(eventually([&] {
        a.turn(), b.turn();
        most = std::max(most, ft_fd_count() - before);
        return !a.up.empty();
    }, 15));
    printf("300 silent connections before it: up after %.1f s of the acceptor's clock, %d descriptors more\n",
           (double)(ft_now_ns(ft_env_real()) - start) / 1e8, most);
    EXPECT_LE(most, 64 + 4 + 4);
    for (int &fd : idle) ft_fd_close(&fd);
}

TEST(Strangers, GarbageIsClosedAtOnce)
{
    Engine b(2);
    int fd = -1, before = ft_fd_count();
    ft_net_address to = b.where();
    ASSERT_EQ(FT_OK, ft_net_connect(&to, &fd));
    eventually([&] { return ft_net_connected(fd) != FT_AGAIN; });
    ASSERT_EQ(4, send(fd, "GET ", 4, MSG_NOSIGNAL));
    EXPECT_TRUE(eventually([&] { return b.turn(), closed_by_peer(fd); }));
    EXPECT_EQ(before + 1, ft_fd_count());
    ft_fd_close(&fd);
}

TEST(Strangers, DescriptorsRunningOutIsSurvived)
{
    Engine a(1), b(2);
    struct rlimit old, low;
    getrlimit(RLIMIT_NOFILE, &old);
    low = old;
    low.rlim_cur = (rlim_t)dup(0) + 1;
    close((int)low.rlim_cur - 1);
    ft_link *l = nullptr;
    std::string to = b.address();
    setrlimit(RLIMIT_NOFILE, &low);
    EXPECT_EQ(FT_NOFILE, tcp->connect(a.t, 2, to.data(), to.size(), &l)) << ft_fail_text();
    low.rlim_cur += 2; // enough to dial two connections, not to accept them
    setrlimit(RLIMIT_NOFILE, &low);
    EXPECT_EQ(FT_OK, tcp->connect(a.t, 2, to.data(), to.size(), &l)) << ft_fail_text();
    for (int i = 0; i < 2000; i++) a.turn(), b.turn();
    EXPECT_TRUE(a.up.empty());
    setrlimit(RLIMIT_NOFILE, &old);
    EXPECT_TRUE(eventually([&] { return a.turn(), b.turn(), !a.up.empty(); })) << "goes on once there are descriptors again";
}

int main(int argc, char **argv)
{
    testing::InitGoogleTest(&argc, argv);
    setenv("FTCCL_SOCKET_IFNAME", "lo", 1);
    return RUN_ALL_TESTS();
}

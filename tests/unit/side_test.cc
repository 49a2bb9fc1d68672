// Property: side connections deliver messages once and in order, tell a goodbye from a broken
// connection, from a refusal and from a hostile message, and no failure waits for ever. Method: two
// engines that one thread turns, hand-made peers over the inner tcp transport, and processes that
// are killed.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>
#include <functional>
#include <map>
#include <string>
#include <thread>
#include <vector>
extern "C" {
#include "base/auth.h"
#include "transport/side_parts.h"
#include "transport/tcp/tcp.h"
}

static uint64_t clock_factor = 1;
static uint64_t now_ns(ft_env *)
{
    return clock_factor * ft_now_ns(ft_env_real());
}
static void random_bytes(ft_env *, void *buf, size_t n)
{
    ft_env_real()->random(ft_env_real(), buf, n);
}
static ft_env env = {now_ns, random_bytes, nullptr};

static ft_transport_config config_of(uint64_t id, unsigned char secret = 1)
{
    ft_transport_config c = {};
    c.env = &env;
    c.self = id;
    c.key[0] = secret;
    c.rank = (int)id;
    return c;
}

static bool eventually(const std::function<bool()> &done, int seconds = 20)
{
    const uint64_t end = ft_now_ns(ft_env_real()) + (uint64_t)seconds * 1000000000u;
    while (!done())
        if (ft_now_ns(ft_env_real()) > end)
            return false;
    return true;
}

struct Down {
    int reason;
    bool orderly, silent;
    std::string text;
};

// One engine: it collects what its conversations bring.
struct Engine {
    ft_side *side = nullptr;
    std::vector<ft_side_conn *> accepted, up;
    std::map<ft_side_conn *, std::vector<std::string>> got;
    std::map<ft_side_conn *, Down> down;
    explicit Engine(uint64_t id, unsigned char secret = 1)
    {
        ft_transport_config c = config_of(id, secret);
        EXPECT_EQ(FT_OK, ft_side_open(&c, &side)) << ft_fail_text();
    }
    ~Engine()
    {
        close();
    }
    void close()
    {
        ft_side_close(side);
        side = nullptr;
    }
    void turn()
    {
        ft_side_event ev[8];
        bool busy = false;
        if (!side)
            return;
        int n = ft_side_poll(side, ev, 8, &busy);
        for (int i = 0; i < n; i++)
            take(ev[i]);
    }
    void take(const ft_side_event &e)
    {
        switch (e.what) {
        case FT_SIDE_ACCEPTED:
            accepted.push_back(e.conn);
            break;
        case FT_SIDE_UP:
            up.push_back(e.conn);
            break;
        case FT_SIDE_MESSAGE:
            got[e.conn].push_back(std::to_string(e.kind) + ":" +
                                  std::string((const char *)e.data, e.len_bytes));
            break;
        case FT_SIDE_DOWN:
            EXPECT_EQ(0u, down.count(e.conn)) << "told twice";
            down[e.conn] = {e.reason, e.orderly, e.silent, e.text};
        }
    }
    std::string address()
    {
        char buf[FT_ADDRESS_BYTES];
        int n = ft_side_address(side, buf, sizeof buf);
        return std::string(buf, (size_t)(n > 0 ? n : 0));
    }
    ft_side_conn *connect(uint64_t peer, const std::string &to)
    {
        ft_side_conn *c = nullptr;
        EXPECT_EQ(FT_OK, ft_side_connect(side, peer, to.data(), to.size(), this, &c))
            << ft_fail_text();
        return c;
    }
};

static int say(ft_side_conn *c, unsigned kind, const std::string &text)
{
    return ft_side_send(c, kind, text.data(), text.size());
}

struct Pair {
    int fds = ft_fd_count();
    Engine a{1}, b{2};
    ft_side_conn *mine = nullptr, *theirs = nullptr;
    Pair()
    {
        mine = a.connect(2, b.address());
        EXPECT_TRUE(eventually([&] { return turn(), a.up.size() && b.accepted.size(); }));
        if (!b.accepted.empty())
            theirs = b.accepted[0];
    }
    void turn()
    {
        a.turn(), b.turn();
    }
};

TEST(Side, MessagesGoBothWaysOnceAndInOrder)
{
    Pair p;
    ASSERT_NE(nullptr, p.theirs);
    EXPECT_EQ(1u, p.theirs->peer);
    EXPECT_EQ(2u, p.mine->peer);
    unsigned sent[2] = {};
    std::vector<std::string> want;
    const unsigned each = 300;
    for (unsigned i = 0; i < each; i++)
        want.push_back(std::to_string(i) + ":" +
                       std::string(i % 7 == 0 ? FT_SIDE_BYTES : i, (char)('a' + i % 26)));
    auto push = [&](ft_side_conn *c, unsigned &n) {
        while (n < each && say(c, n, want[n].substr(want[n].find(':') + 1)) == FT_OK)
            n++;
    };
    EXPECT_TRUE(eventually([&] {
        push(p.mine, sent[0]), push(p.theirs, sent[1]), p.turn();
        return p.a.got[p.mine].size() >= each && p.b.got[p.theirs].size() >= each;
    }));
    EXPECT_EQ(want, p.a.got[p.mine]);
    EXPECT_EQ(want, p.b.got[p.theirs]);
    EXPECT_TRUE(eventually([&] { return p.turn(), ft_side_flushed(p.mine); }));
}

TEST(Side, ManyConversationsShareOnePairOfLinksAndEndAlone)
{
    Pair p;
    std::vector<ft_side_conn *> more;
    const int fds = ft_fd_count();
    for (int i = 0; i < 40; i++) {
        more.push_back(p.a.connect(2, p.b.address()));
        EXPECT_EQ(FT_OK, say(more.back(), 5, std::to_string(i)));
    }
    EXPECT_TRUE(eventually([&] { return p.turn(), p.b.got.size() >= 40 && p.a.up.size() == 41; }));
    EXPECT_EQ(fds, ft_fd_count());
    std::map<std::string, ft_side_conn *> by_text; // conversations have no order among them
    for (auto &g : p.b.got)
        by_text[g.second.at(0)] = g.first;
    EXPECT_EQ(40u, by_text.size());
    ft_side_disconnect(more[3], true);
    ft_side_disconnect(more[4], false);
    EXPECT_TRUE(eventually([&] { return p.turn(), p.b.down.size() == 2; }));
    EXPECT_TRUE(p.b.down[by_text["5:3"]].orderly);
    EXPECT_FALSE(p.b.down[by_text["5:4"]].orderly);
    EXPECT_EQ(FT_LINK, p.b.down[by_text["5:4"]].reason);
    EXPECT_EQ(FT_OK, say(p.theirs, 1, "still here"));
    EXPECT_TRUE(eventually([&] { return p.turn(), p.a.got[p.mine].size() == 1; }));
    EXPECT_TRUE(p.a.down.empty());
}

TEST(Side, BothConnectAtOnceManyTimes)
{
    for (int i = 0; i < 60; i++) {
        Engine a{1}, b{2};
        ft_side_conn *x = a.connect(2, b.address()), *y = b.connect(1, a.address());
        say(x, 1, "x"), say(y, 2, "y");
        ASSERT_TRUE(eventually([&] {
            (i % 2 ? a : b).turn(), (i % 2 ? b : a).turn();
            return a.up.size() + b.up.size() == 2 && a.got.size() + b.got.size() == 2;
        })) << i;
        EXPECT_EQ("1:x", b.got[b.accepted.at(0)].at(0));
        EXPECT_EQ("2:y", a.got[a.accepted.at(0)].at(0));
        EXPECT_TRUE(a.down.empty() && b.down.empty());
    }
}

TEST(Side, WhatWasSaidBeforeAGoodbyeOrACloseArrives)
{
    for (bool close : {false, true}) {
        Pair p;
        size_t sent = 0;
        while (sent < 1000 && say(p.mine, 1, std::string(4096, 'x')) == FT_OK)
            sent++;
        EXPECT_GE(sent, (size_t)FT_SIDE_QUEUE);
        EXPECT_LT(sent, 1000u) << "the queue is bounded";
        ft_side_disconnect(p.mine, true);
        if (close) {
            // as an engine does: what was sent leaves before it closes
            EXPECT_TRUE(eventually([&] { return p.turn(), p.b.got[p.theirs].size() == sent; }));
            p.a.close();
        }
        EXPECT_TRUE(eventually([&] { return p.turn(), p.b.down.size() == 1; }));
        EXPECT_EQ(sent, p.b.got[p.theirs].size());
        EXPECT_TRUE(p.b.down[p.theirs].orderly) << p.b.down[p.theirs].text;
    }
}

TEST(Side, AClosingEngineSaysGoodbye)
{
    Pair p;
    p.a.close();
    EXPECT_TRUE(eventually([&] { return p.turn(), p.b.down.size() == 1; }));
    EXPECT_TRUE(p.b.down[p.theirs].orderly) << p.b.down[p.theirs].text;
    EXPECT_EQ(FT_LINK, say(p.theirs, 1, "nobody"));
}

TEST(Side, AnEngineThatBeginsAnewIsNotTakenForTheOldOne)
{
    Pair p;
    side_session *old = p.a.side->sessions;
    ft_fail(FT_LINK, "the test broke it");
    side_session_end(old, FT_LINK, false, false);
    ft_side_conn *again = p.a.connect(2, p.b.address());
    EXPECT_TRUE(eventually([&] { return p.turn(), p.a.up.size() == 2; }));
    EXPECT_EQ(1u, p.b.down.count(p.theirs));
    EXPECT_EQ(0u, p.a.down.count(again));
    EXPECT_EQ(FT_OK, say(again, 3, "hello"));
    EXPECT_TRUE(eventually([&] { return p.turn(), p.b.got[p.b.accepted.back()].size() == 1; }));
}

TEST(Side, AnotherSecretIsRefusedAndSaidSo)
{
    Engine a{1}, b{2, 9};
    ft_side_conn *c = a.connect(2, b.address());
    say(c, 1, "secret");
    EXPECT_TRUE(eventually([&] { return a.turn(), b.turn(), a.down.size() == 1; }));
    EXPECT_STREQ(ft_status_text(FT_AUTH), ft_status_text(a.down[c].reason));
    EXPECT_TRUE(b.accepted.empty() && b.got.empty());
}

// Of what is said to a peer that has not proved that it knows the secret, no byte leaves. Nobody
// turns b: the test reads its sockets.
TEST(Side, AStrangerHearsNothing)
{
    const std::string words = "of a queue pair";
    std::string heard;
    {
        clock_factor = 20;
        Engine a{1}, b{2};
        const int *listener = ((struct tcp *)b.side->tcp)->listener;
        std::vector<int> sockets;
        ft_side_conn *c = a.connect(2, b.address());
        say(c, 1, words);
        EXPECT_TRUE(eventually([&] {
            char bytes[4096];
            a.turn();
            for (int i = 0; i < 2; i++)
                for (int fd; listener[i] >= 0 && (fd = accept(listener[i], nullptr, nullptr)) >= 0;)
                    sockets.push_back(fd);
            for (int fd : sockets)
                for (ssize_t n; (n = recv(fd, bytes, sizeof bytes, MSG_DONTWAIT)) > 0;)
                    heard.append(bytes, (size_t)n);
            return a.down.size() == 1;
        }));
        for (int fd : sockets)
            close(fd);
        EXPECT_NE(FT_OK, a.down[c].reason);
        clock_factor = 1;
    }
    EXPECT_GT(heard.size(), 8u) << "its challenge";
    EXPECT_EQ(std::string::npos, heard.find(words));
}

TEST(Side, NobodyListensThere)
{
    Engine a{1};
    std::string gone = Engine{2}.address();
    ft_side_conn *c = a.connect(2, gone);
    EXPECT_TRUE(eventually([&] { return a.turn(), a.down.size() == 1; }));
    EXPECT_EQ(FT_LINK, a.down[c].reason);
    EXPECT_FALSE(a.down[c].orderly);
    EXPECT_NE(std::string::npos, a.down[c].text.find("cannot connect")) << a.down[c].text;
    ft_side_conn *none = nullptr;
    EXPECT_EQ(FT_NOTSUP, ft_side_connect(a.side, 3, "", 0, nullptr, &none));
}

// An engine over the inner transport alone, which says what the test likes.
struct Hand {
    ft_transport *t = nullptr;
    ft_link *tx = nullptr, *rx = nullptr;
    bool lost = false;
    Engine &e;
    ft_send req[300] = {};
    unsigned sent = 0;
    explicit Hand(Engine &engine) : e(engine)
    {
        ft_transport_config c = config_of(7), from = config_of(7);
        ft_auth_derive(c.key, from.key, "side", 0);
        c.chunk_bytes = 4096 + 64;
        c.connections = 1;
        EXPECT_EQ(FT_OK, ft_transport_tcp.open(&c, &t)) << ft_fail_text();
        EXPECT_EQ(FT_OK, t->ops->bind(t, SIDE_CTX));
        std::string to = e.address();
        EXPECT_EQ(FT_OK, t->ops->connect(t, e.side->tcp->config.self, to.data(), to.size(), &tx));
        EXPECT_TRUE(eventually([&] { return turn(), tx->state == FT_LINK_UP; }));
    }
    ~Hand()
    {
        t->ops->close(t);
    }
    void turn()
    {
        ft_event ev[4];
        bool busy;
        ft_msg m;
        int n = t->ops->poll(t, ev, 4, &busy);
        for (int i = 0; i < n; i++)
            if (ev[i].what == ft_event::FT_EVENT_ACCEPTED)
                rx = ev[i].link;
        if (rx && t->ops->recv(rx, SIDE_CTX, FT_LANE_CTL, &m) == FT_OK)
            t->ops->release(rx, &m);
        lost |= tx->state == FT_LINK_DOWN;
        e.turn();
    }
    void send(unsigned op, uint64_t sig = 0, unsigned seq = 0, const std::string &data = "")
    {
        ft_header h = {};
        h.ctx = SIDE_CTX;
        h.sig = sig;
        h.seq = seq;
        h.len = (uint32_t)data.size();
        h.lane = FT_LANE_CTL;
        h.step = (uint16_t)op;
        ft_send &r = req[sent++ % 300];
        EXPECT_TRUE(eventually([&] {
            int rc = t->ops->send(tx, &h, data.data(), &r);
            turn();
            return rc != FT_AGAIN;
        }));
        EXPECT_TRUE(eventually([&] { return turn(), r.status != FT_AGAIN; }));
    }
    void hello(bool dialable = true)
    {
        side_hello h = {4711, 0};
        char address[FT_ADDRESS_BYTES];
        int n = t->ops->address(t, address, sizeof address);
        send(SIDE_HELLO, 0, 0,
             std::string((const char *)&h, sizeof h) +
                 (dialable ? std::string(address, (size_t)n) : Engine{8}.address()));
    }
};

static const uint64_t by_opener = 1ull << 32;

TEST(Side, HostileMessagesEndTheSessionAndNameThePeer)
{
    const std::function<void(Hand &)> attacks[] = {
        [](Hand &h) { h.send(99, by_opener | 2); },
        [](Hand &h) { h.send(SIDE_HELLO); },
        [](Hand &h) { h.send(SIDE_OPEN, by_opener | 1); }, // it is open already
        [](Hand &h) { h.send(SIDE_OPEN, by_opener); },
        [](Hand &h) { h.send(SIDE_OPEN, 5); },
        [](Hand &h) { h.send(SIDE_OPEN, by_opener | 6, 0, "x"); },
        [](Hand &h) { h.send(SIDE_OPENED, by_opener | 1); },
        [](Hand &h) { h.send(SIDE_CLOSE, by_opener | 1, 77); },
        [](Hand &h) { h.send(SIDE_CLOSE, by_opener | 1, 0, "x"); },
        [](Hand &h) { h.send(SIDE_MESSAGE, 8 * by_opener | 1); },
        [](Hand &h) { h.send(SIDE_MESSAGE, by_opener | 1, 0, std::string(FT_SIDE_BYTES + 1, 0)); },
    };
    int n = 0;
    for (auto &attack : attacks) {
        Engine e{1};
        Hand h(e);
        h.hello();
        h.send(SIDE_OPEN, by_opener | 1);
        ASSERT_TRUE(eventually([&] { return h.turn(), e.accepted.size() == 1; })) << n;
        attack(h);
        ASSERT_TRUE(eventually([&] { return h.turn(), e.down.size() == 1 && h.lost; })) << n;
        Down &d = e.down[e.accepted[0]];
        EXPECT_STREQ(ft_status_text(FT_PROTOCOL), ft_status_text(d.reason)) << n << d.text;
        EXPECT_NE(std::string::npos, d.text.find("0000000000000007")) << d.text;
        n++;
    }
}

TEST(Side, UnknownConversationsAreIgnoredAndTooManyAreNot)
{
    Engine e{1};
    Hand h(e);
    h.hello();
    h.send(SIDE_OPEN, by_opener | 1);
    h.send(SIDE_MESSAGE, by_opener | 77, 0, "late");
    h.send(SIDE_CLOSE, by_opener | 78);
    h.send(SIDE_MESSAGE, by_opener | 1, 4, "in time");
    ASSERT_TRUE(eventually([&] { return h.turn(), e.got.size() == 1; }));
    for (unsigned i = 2; i <= FT_SIDE_CONNS && !h.lost; i++)
        h.send(SIDE_OPEN, by_opener | i);
    ASSERT_TRUE(eventually([&] { return h.turn(), e.accepted.size() == FT_SIDE_CONNS; }));
    EXPECT_TRUE(e.down.empty());
    h.send(SIDE_OPEN, by_opener | 1000);
    EXPECT_TRUE(eventually([&] { return h.turn(), e.down.size() == FT_SIDE_CONNS; }));
}

TEST(Side, ALinkWithoutAHelloIsEnded)
{
    Engine e{1};
    {
        Hand h(e);
        h.send(SIDE_OPEN, by_opener | 1);
        EXPECT_TRUE(eventually([&] { return h.turn(), h.lost; }));
    }
    clock_factor = 50;
    {
        Engine fast{2};
        Hand h(fast); // it says nothing
        EXPECT_TRUE(eventually([&] { return h.turn(), h.lost; }));
    }
    clock_factor = 1;
    EXPECT_TRUE(e.accepted.empty());
}

// b cannot reach an address of a: it ends its side, and a has a sentence.
TEST(Side, APeerThatCannotDialBack)
{
    Engine e{1};
    Hand h(e);
    h.hello(false);
    EXPECT_TRUE(eventually([&] { return h.turn(), h.lost; }));
    EXPECT_TRUE(e.accepted.empty());
    EXPECT_EQ(nullptr, e.side->sessions);
}

// A peer whose process does not turn: connections are made by its kernel, and nothing answers.
TEST(Side, APeerThatDoesNotAnswerIsBounded)
{
    clock_factor = 50;
    {
        Engine a{1}, b{2};
        ft_side_conn *c = a.connect(2, b.address());
        EXPECT_TRUE(eventually([&] { return a.turn(), a.down.size() == 1; }));
        EXPECT_FALSE(a.down[c].orderly);
        EXPECT_NE(FT_PROTOCOL, a.down[c].reason);
    }
    {
        Engine a{1};
        Hand h(a); // it is connected, and does not dial back
        char address[FT_ADDRESS_BYTES];
        int n = h.t->ops->address(h.t, address, sizeof address);
        ft_side_conn *c = a.connect(7, std::string(address, (size_t)n));
        EXPECT_TRUE(eventually([&] { return h.turn(), a.down.size() == 1; }));
        EXPECT_NE(std::string::npos, a.down[c].text.find("did not connect back")) << a.down[c].text;
    }
    clock_factor = 1;
}

// b closes one direction of one of its two sockets; the other one stays as it is.
TEST(Side, AHalfClosedSocketEndsTheSession)
{
    for (bool to : {false, true}) {
        Pair p;
        side_session *s = p.b.side->sessions;
        ft_link *link = to ? s->tx : s->rx;
        ASSERT_EQ(0, shutdown(((tcp_link *)link)->conn[0]->fd, SHUT_WR));
        EXPECT_TRUE(eventually([&] { return p.a.turn(), p.a.down.size() == 1; }));
        EXPECT_FALSE(p.a.down[p.mine].orderly);
        EXPECT_EQ(FT_LINK, p.a.down[p.mine].reason);
    }
}

TEST(Side, DescriptorsRunOut)
{
    struct rlimit was, few;
    Engine a{1}, b{2};
    ASSERT_EQ(0, getrlimit(RLIMIT_NOFILE, &was));
    few = was;
    few.rlim_cur = (rlim_t)dup(0);
    ::close((int)few.rlim_cur);
    ASSERT_EQ(0, setrlimit(RLIMIT_NOFILE, &few));
    std::string to = b.address();
    ft_side_conn *c = nullptr;
    int rc = ft_side_connect(a.side, 2, to.data(), to.size(), nullptr, &c);
    EXPECT_EQ(FT_NOFILE, rc) << ft_fail_text();
    ft_side *none = nullptr;
    ft_transport_config config = config_of(3);
    EXPECT_EQ(FT_NOFILE, ft_side_open(&config, &none));
    // one for the dialling side: the other one waits in the kernel until there is one again
    few.rlim_cur++;
    ASSERT_EQ(0, setrlimit(RLIMIT_NOFILE, &few));
    c = a.connect(2, to);
    for (int i = 0; i < 200; i++)
        a.turn(), b.turn();
    ASSERT_EQ(0, setrlimit(RLIMIT_NOFILE, &was));
    EXPECT_TRUE(
        eventually([&] { return a.turn(), b.turn(), a.up.size() == 1 || a.down.size() == 1; }));
    EXPECT_EQ(1u, a.up.size()) << a.down[c].text;
}

TEST(Side, NothingLeaks)
{
    const int fds = ft_fd_count();
    {
        Pair p;
        p.a.connect(2, p.b.address());
        ft_side_disconnect(p.mine, false);
    }
    EXPECT_EQ(fds, ft_fd_count());
}

TEST(Side, SleepsUntilThePeerDoesSomething)
{
    Pair p;
    EXPECT_TRUE(eventually([&] { return p.a.turn(), p.b.turn(), ft_side_arm(p.b.side, true); }));
    EXPECT_EQ(FT_OK, say(p.mine, 1, "wake up"));
    fd_set set;
    FD_ZERO(&set);
    FD_SET(ft_side_fd(p.b.side), &set);
    timeval tv = {20, 0};
    p.a.turn();
    EXPECT_EQ(1, select(ft_side_fd(p.b.side) + 1, &set, nullptr, nullptr, &tv));
    ft_side_arm(p.b.side, false);
    EXPECT_TRUE(eventually([&] { return p.turn(), p.b.got[p.theirs].size() == 1; }));
}

// The child runs engine 2 until it is killed. Its death is known at once, and is broken, not
// orderly.
TEST(Side, AKilledPeerIsBroken)
{
    int at[2];
    ASSERT_EQ(0, pipe(at));
    const pid_t child = fork();
    if (child == 0) {
        Engine b{2};
        std::string to = b.address();
        char len = (char)to.size();
        if (write(at[1], &len, 1) != 1 || write(at[1], to.data(), to.size()) < 0)
            _exit(1);
        for (;;)
            b.turn();
    }
    unsigned char len = 0;
    char buf[FT_ADDRESS_BYTES];
    ASSERT_EQ(1, read(at[0], &len, 1));
    ASSERT_EQ(len, read(at[0], buf, len));
    {
        Engine a{1};
        ft_side_conn *c = a.connect(2, std::string(buf, len));
        EXPECT_TRUE(eventually([&] { return a.turn(), a.up.size() == 1; }));
        const uint64_t killed_ns = ft_now_ns(ft_env_real());
        kill(child, SIGKILL);
        EXPECT_TRUE(eventually([&] { return a.turn(), a.down.size() == 1; }));
        EXPECT_LT(ft_now_ns(ft_env_real()) - killed_ns, 5000000000u);
        EXPECT_FALSE(a.down[c].orderly);
        EXPECT_FALSE(a.down[c].silent);
        EXPECT_EQ(FT_LINK, a.down[c].reason);
        ft_side_disconnect(c, false);
        a.turn();
        EXPECT_EQ(nullptr, a.side->orphans);
    }
    waitpid(child, nullptr, 0);
    ::close(at[0]), ::close(at[1]);
}

// One thread for each engine, as in processes with several ranks.
TEST(Side, ThreadsWithAnEngineEach)
{
    const int each = 200;
    Engine a{1}, b{2};
    std::string to_a = a.address(), to_b = b.address();
    auto run = [](Engine &e, uint64_t peer, const std::string &to) {
        ft_side_conn *c = e.connect(peer, to);
        int sent = 0;
        return eventually([&] {
            if (sent < each && say(c, 1, "x") == FT_OK)
                sent++;
            e.turn();
            return sent == each && !e.accepted.empty() &&
                   e.got[e.accepted[0]].size() == (size_t)each && ft_side_flushed(c);
        });
    };
    bool ok = false;
    std::thread other([&] { ok = run(b, 1, to_a); });
    EXPECT_TRUE(run(a, 2, to_b));
    other.join();
    EXPECT_TRUE(ok);
}

// What the tests of the tcp transport share: engines that one thread turns, a pair with a link, and
// a hand-made peer.
#ifndef FT_TESTS_TCP_FIXTURE_H
#define FT_TESTS_TCP_FIXTURE_H

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
static size_t chunk = 128 * 1024; // of engines that are opened
static const uint64_t ctx = 77;
static const unsigned char key[FT_SECRET_BYTES] = {1, 2, 3};

[[maybe_unused]] static bool eventually(const std::function<bool()> &done, int seconds = 20,
                                        ft_env *clock = ft_env_real())
{
    const uint64_t end = ft_now_ns(clock) + (uint64_t)seconds * 1000000000u;
    while (!done())
        if (ft_now_ns(clock) > end)
            return false;
    return true;
}

// A clock that runs ten times as fast as the real one, so that no test waits long for deadlines.
static uint64_t fast_now_ns(ft_env *)
{
    return 10 * ft_now_ns(ft_env_real());
}
static void fast_random(ft_env *, void *buf, size_t n)
{
    ft_env_real()->random(ft_env_real(), buf, n);
}
[[maybe_unused]] static ft_env fast = {fast_now_ns, fast_random, nullptr};

// A clock that counts only while this process runs: of the time between two looks at it, 10 ms at
// most. A busy machine then breaks no deadline of engines that one thread turns.
static uint64_t running_now_ns(ft_env *)
{
    static uint64_t looked = 0, ran = 1;
    const uint64_t now = ft_now_ns(ft_env_real());
    ran += looked ? std::min(now - looked, (uint64_t)10000000) : 0;
    looked = now;
    return ran;
}
[[maybe_unused]] static ft_env running = {running_now_ns, fast_random, nullptr};

struct Engine {
    ft_transport *t = nullptr;
    std::vector<ft_link *> accepted, up, down;
    explicit Engine(uint64_t id, unsigned char secret = 1, ft_env *env = ft_env_real(),
                    size_t first_bytes = 0, ft_port_finder *ports = nullptr)
    {
        ft_transport_config config = {};
        config.env = env;
        config.self = id;
        memcpy(config.key, key, sizeof key);
        config.key[0] = secret;
        config.chunk_bytes = chunk;
        config.first_bytes = first_bytes;
        config.rank = (int)id;
        config.ports = ports;
        EXPECT_EQ(FT_OK, tcp->open(&config, &t)) << ft_fail_text();
        EXPECT_EQ(FT_OK, tcp->bind(t, ctx));
    }
    ~Engine()
    {
        tcp->close(t);
    }
    bool turn()
    {
        ft_event ev[8];
        bool busy = false;
        int n = tcp->poll(t, ev, 8, &busy);
        for (int i = 0; i < n; i++)
            (ev[i].what == ft_event::FT_EVENT_ACCEPTED ? accepted
             : ev[i].what == ft_event::FT_EVENT_UP     ? up
                                                       : down)
                .push_back(ev[i].link);
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
            if (ft_net_unpack((const unsigned char *)a.data() + at, &out) == FT_OK &&
                out.family == family)
                return out;
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
    Engine a{1}, b{2};
    ft_link *tx = nullptr, *rx = nullptr;
    Pair()
    {
        tx = a.connect(2, b.address());
        EXPECT_TRUE(eventually([&] { return turn(), a.up.size() == 1 && b.accepted.size() == 1; }))
            << ft_fail_text();
        if (!b.accepted.empty())
            rx = b.accepted[0];
    }
    void turn()
    {
        a.turn(), b.turn();
    }
};

[[maybe_unused]] static ft_header header(unsigned lane, uint32_t seq, size_t len,
                                         uint64_t context = ctx)
{
    ft_header h = {};
    h.ctx = context;
    h.seq = seq;
    h.len = (uint32_t)len;
    h.lane = (uint16_t)lane;
    return h;
}

// Bytes of a message: a pattern that repeats, from a place that differs with each number.
static const size_t pattern_bytes = 251 * 256;

static unsigned char byte_of(uint32_t seq, size_t i)
{
    const size_t at = (seq * (size_t)4099 + i) % pattern_bytes;
    return (unsigned char)(at * 7 + at / 251);
}

// Copies pieces of the pattern: a sanitizer would make a loop over all bytes slow.
[[maybe_unused]] static std::vector<unsigned char> payload(uint32_t seq, size_t len)
{
    static const std::vector<unsigned char> pattern = [] {
        std::vector<unsigned char> all(2 * pattern_bytes);
        for (size_t i = 0; i < all.size(); i++)
            all[i] = byte_of(0, i);
        return all;
    }();
    const unsigned char *from = pattern.data() + seq * (size_t)4099 % pattern_bytes;
    std::vector<unsigned char> p;
    p.reserve(len);
    while (p.size() < len)
        p.insert(p.end(), from, from + std::min(len - p.size(), pattern_bytes));
    return p;
}

// A hand-made peer: an authenticated plain socket on which the test sends what it likes.
struct Hand {
    int fd = -1;
    int status = FT_AGAIN;
    ft_auth auth;
    Hand(Engine &e, uint64_t detail = 1 << 8, int family = AF_INET, unsigned char secret = 1)
    {
        ft_net_address to = e.where(family);
        unsigned char k[FT_SECRET_BYTES];
        memcpy(k, key, sizeof k);
        k[0] = secret;
        if (ft_net_connect(&to, nullptr, &fd) != FT_OK)
            return;
        eventually([&] { return ft_net_connected(fd) != FT_AGAIN; });
        ft_auth_start(&auth, ft_env_real(), fd, true, k, 9, e.t->config.self, FT_PURPOSE_TCP,
                      detail, ft_now_ns(ft_env_real()) + 10000000000u);
        eventually([&] { return e.turn(), (status = ft_auth_turn(&auth)) != FT_AGAIN; });
    }
    ~Hand()
    {
        ft_fd_close(&fd);
    }
    void say(const void *p, size_t n)
    {
        EXPECT_EQ((ssize_t)n, send(fd, p, n, MSG_NOSIGNAL));
    }
    void say(const ft_header &h, size_t n = 0)
    {
        say(&h, sizeof h);
        if (n)
            say(payload(h.seq, n).data(), n);
    }
};

// A setting, while it is there.
struct Param {
    std::string name;
    Param(const char *n, const char *value) : name(n)
    {
        setenv(n, value, 1), ft_params_reload();
    }
    ~Param()
    {
        unsetenv(name.c_str()), ft_params_reload();
    }
};

// What a receiver gives back, or says when a connection is made again.
struct Answer {
    uint64_t position; // or a context
    uint16_t lane, count;
    uint32_t uses;
};

// A hand-made receiver, to which an engine connects. fd: its connections by their numbers.
struct HandAcceptor {
    Param connections;
    int listener = -1, fd[2] = {-1, -1};
    Engine a{1};
    ft_link *tx = nullptr;
    HandAcceptor(int conns = 1, bool resumes = true)
        : connections("FTCCL_TCP_CONNECTIONS", std::to_string(conns).c_str())
    {
        ft_net_address own = {};
        own.family = AF_INET, own.up = true, own.ip[0] = 127, own.ip[3] = 1;
        EXPECT_EQ(FT_OK, ft_net_listen(&own, 1, AF_INET, 0, &listener));
        std::string wire(FT_NET_WIRE_BYTES, '\0'), all = a.address();
        ft_net_pack(&own, (unsigned char *)&wire[0]);
        if (resumes)
            wire += all.substr(all.size() - FT_NET_WIRE_BYTES);
        tx = a.connect(9, wire);
        for (int i = 0; i < conns; i++)
            accept();
        EXPECT_TRUE(eventually([&] { return a.turn(), !a.up.empty(); }));
    }
    ~HandAcceptor()
    {
        ft_fd_close(&fd[0]), ft_fd_close(&fd[1]), ft_fd_close(&listener);
    }
    void accept()
    {
        int one = -1;
        ft_auth auth;
        EXPECT_TRUE(eventually([&] { return a.turn(), ft_net_accept(listener, &one) == FT_OK; }));
        ft_auth_start(&auth, ft_env_real(), one, false, key, 9, 0, FT_PURPOSE_TCP, 0,
                      ft_now_ns(ft_env_real()) + 10000000000u);
        EXPECT_TRUE(eventually([&] { return a.turn(), ft_auth_turn(&auth) == FT_OK; }));
        fd[auth.detail & 1] = one;
    }
    void say(const Answer &answer, int conn = 0)
    {
        EXPECT_EQ((ssize_t)sizeof answer, ::send(fd[conn], &answer, sizeof answer, MSG_NOSIGNAL));
    }
};

[[maybe_unused]] static bool closed_by_peer(int fd)
{
    char c;
    ssize_t n = recv(fd, &c, 1, MSG_DONTWAIT);
    return n == 0 || (n < 0 && errno != EAGAIN);
}

[[maybe_unused]] static void expect_down(Engine &e, int reason)
{
    ASSERT_TRUE(eventually([&] { return e.turn(), !e.down.empty(); }));
    EXPECT_EQ(FT_LINK_DOWN, e.down[0]->state);
    EXPECT_STREQ(ft_status_text(reason), ft_status_text(e.down[0]->reason)) << ft_fail_text();
}

#endif

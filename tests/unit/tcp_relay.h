// What tests of the tcp transport share that put a relay between two engines: it resets, stalls or
// slows down connections, and traffic through it is checked message by message. What the relay's
// kernel has acknowledged may never reach the receiver; without a relay that cannot be. So the
// sender, which asks its kernel, is told here what the receiver's kernel has.
#ifndef FT_TESTS_TCP_RELAY_H
#define FT_TESTS_TCP_RELAY_H

#include <linux/sockios.h>
#include <linux/tcp.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <cstdarg>
#include <deque>
#include <map>
#include <memory>
#include <random>
#include "tests/unit/tcp_fixture.h"

static void reset_and_close(int *fd)
{
    const struct linger at_once = {1, 0};
    if (*fd >= 0)
        setsockopt(*fd, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
    ft_fd_close(fd);
}

// A connection through the relay: client and server, and what is under way to each of them.
struct Pipe {
    int fd[2] = {-1, -1};
    std::string held[2];
    size_t passed = 0, reset_at = SIZE_MAX, stall_at = SIZE_MAX;
    bool gone = false, stalled = false; // stalled: nothing passes, and nothing is acknowledged
    unsigned every = 1, turns = 0;      // what the client says passes only in every n-th turn
};

static std::vector<struct Relay *> relays;

struct Relay {
    ft_net_address to;
    int listener = -1;
    ft_net_address at = {};
    std::vector<std::unique_ptr<Pipe>> pipes;
    std::function<size_t()> draw = [] { return SIZE_MAX; }; // bytes until a reset
    std::function<size_t()> draw_stall = [] { return SIZE_MAX; };
    std::function<unsigned(size_t)> every; // of a connection, by its number; none: as it has it
    size_t resets = 0, piece = 65536;
    bool accepts = true;
    // At the same address, so that it is known where connections come from; or at one that is none
    // of the engines' own, so that it is taken for the way to another host.
    explicit Relay(const ft_net_address &target, bool elsewhere = false) : to(target)
    {
        at = to;
        at.port = 0;
        if (elsewhere)
            inet_pton(AF_INET, "127.0.0.9", at.ip);
        EXPECT_EQ(FT_OK, ft_net_listen(&at, 1, AF_INET, 0, &listener));
        relays.push_back(this);
    }
    ~Relay()
    {
        relays.erase(std::find(relays.begin(), relays.end(), this));
        stop_listening();
        for (auto &p : pipes)
            ft_fd_close(&p->fd[0]), ft_fd_close(&p->fd[1]);
    }
    void stop_listening()
    {
        ft_fd_close(&listener);
    }
    // The address of the engine behind it, of which the relay's end is the only way.
    std::string address(Engine &e)
    {
        std::string all = e.address(), out(FT_NET_WIRE_BYTES, '\0');
        ft_net_pack(&at, (unsigned char *)&out[0]);
        for (size_t i = 0; i < all.size(); i += FT_NET_WIRE_BYTES)
            if (all[i] != 4 && all[i] != 6)
                out += all.substr(i, FT_NET_WIRE_BYTES);
        return out;
    }
    void reset(Pipe &p)
    {
        reset_and_close(&p.fd[0]), reset_and_close(&p.fd[1]);
        p.gone = true;
        resets++;
    }
    void reset_all()
    {
        for (auto &p : pipes)
            reset(*p);
        pipes.clear();
    }
    void forward(Pipe &p, int from)
    {
        std::string &held = p.held[from];
        char buf[65536];
        ssize_t n = held.empty()
                        ? recv(p.fd[from], buf,
                               std::min({piece, sizeof buf, p.reset_at - p.passed}), MSG_DONTWAIT)
                        : 0;
        if (n > 0)
            held.assign(buf, (size_t)n), p.passed += (size_t)n;
        if (n == 0 && held.empty())
            shutdown(p.fd[1 - from], SHUT_WR);
        if (n < 0 && errno != EAGAIN)
            p.gone = true;
        if (!held.empty() &&
            (n = send(p.fd[1 - from], held.data(), held.size(), MSG_DONTWAIT | MSG_NOSIGNAL)) > 0)
            held.erase(0, (size_t)n);
        if (p.passed >= p.reset_at)
            reset(p);
        p.stalled = p.stalled || p.passed >= p.stall_at;
    }
    void turn()
    {
        int fd;
        while (accepts && listener >= 0 && ft_net_accept(listener, &fd) == FT_OK) {
            std::unique_ptr<Pipe> p(new Pipe);
            p->fd[0] = fd;
            p->reset_at = draw();
            p->stall_at = draw_stall();
            if (ft_net_connect(&to, nullptr, &p->fd[1]) != FT_OK)
                p->gone = true;
            pipes.push_back(std::move(p));
        }
        for (auto &p : pipes) {
            if (!p->gone && ft_net_connected(p->fd[1]) == FT_LINK)
                p->gone = true; // the engine refused: so does the relay
            if (every)
                p->every = every((size_t)(&p - &pipes[0]));
            const bool passes = ++p->turns % p->every == 0;
            for (int from = passes ? 0 : 1; from < 2 && !p->gone && !p->stalled; from++)
                if (ft_net_connected(p->fd[1]) == FT_OK)
                    forward(*p, from);
            if (p->gone)
                reset_and_close(&p->fd[0]), reset_and_close(&p->fd[1]);
        }
        pipes.erase(std::remove_if(pipes.begin(), pipes.end(),
                                   [](const std::unique_ptr<Pipe> &p) { return p->gone; }),
                    pipes.end());
    }
};

static uint16_t port_of(int fd, bool peer)
{
    sockaddr_in a = {};
    socklen_t len = sizeof a;
    (peer ? getpeername : getsockname)(fd, (sockaddr *)&a, &len);
    return a.sin_port;
}

static int kernel(int fd, unsigned long what, int *value)
{
    return (int)syscall(SYS_ioctl, fd, what, value);
}

static const Pipe *pipe_of(const Relay &relay, int fd)
{
    for (const auto &p : relay.pipes)
        if (!p->gone && port_of(p->fd[0], true) == port_of(fd, false))
            return p.get();
    return nullptr;
}

// Bytes in the relay. -1: it has reset the connection.
static int in_relay(const Relay &relay, int fd)
{
    const Pipe *p = pipe_of(relay, fd);
    int here = 0, there = 0;
    if (p) {
        if (kernel(p->fd[0], FIONREAD, &here) != 0 || kernel(p->fd[1], SIOCOUTQ, &there) != 0)
            return -1;
        return here + there + (int)p->held[0].size();
    }
    return -1;
}

static const Relay *relay_at_end_of(int fd)
{
    for (const Relay *relay : relays)
        if (port_of(fd, true) == htons(relay->at.port))
            return relay;
    return nullptr;
}

extern "C" int ioctl(int fd, unsigned long what, ...)
{
    va_list args;
    va_start(args, what);
    int *value = va_arg(args, int *);
    va_end(args);
    const Relay *relay = what == SIOCOUTQ ? relay_at_end_of(fd) : nullptr;
    const int status = kernel(fd, what, value), more = relay ? in_relay(*relay, fd) : 0;
    if (relay)
        *value += more;
    return more < 0 ? -1 : status;
}

extern "C" int getsockopt(int fd, int level, int name, void *value, socklen_t *len)
{
    const bool asks = level == IPPROTO_TCP && name == TCP_INFO && *len >= sizeof(tcp_info);
    const Relay *relay = asks ? relay_at_end_of(fd) : nullptr;
    const int status = (int)syscall(SYS_getsockopt, fd, level, name, value, len),
              more = relay ? in_relay(*relay, fd) : 0;
    if (relay && more > 0) {
        ((tcp_info *)value)->tcpi_bytes_acked -= (uint64_t)more;
        ((tcp_info *)value)->tcpi_unacked += pipe_of(*relay, fd)->stalled;
    }
    // a connection without another end was reset, perhaps by the relay
    return more < 0 || (asks && port_of(fd, true) == 0) ? -1 : status;
}

[[maybe_unused]] static unsigned seed_of()
{
    const char *text = getenv("FT_SEED");
    std::random_device any;
    const unsigned seed = text ? (unsigned)atoi(text) : any();
    printf("FT_SEED=%u repeats this\n", seed);
    return seed;
}

// Sends random messages on all lanes, some from memory that is spoilt as soon as the send is
// complete, some from buffers of the link, and receives and checks them.
struct Traffic {
    Engine &a, &b;
    std::mt19937 rng;
    ft_link *tx = nullptr;
    struct Send {
        ft_send req = {};
        std::vector<unsigned char> data;
    };
    std::deque<std::unique_ptr<Send>> pending;
    uint32_t sent[FT_LANES_ALL] = {}, got[FT_LANES_ALL] = {};
    std::map<std::pair<unsigned, uint32_t>, size_t> lens;
    std::deque<std::pair<unsigned, ft_msg>> held;
    std::vector<unsigned char> landing = std::vector<unsigned char>(chunk);
    Traffic(Engine &from, Engine &to, unsigned seed) : a(from), b(to), rng(seed)
    {
    }
    ~Traffic()
    {
        if (!pending.empty()) // a test that has failed
            tcp->disconnect(tx);
    }
    size_t draw(size_t most)
    {
        return std::uniform_int_distribution<size_t>(0, most)(rng);
    }
    size_t length()
    {
        const size_t kind = draw(9);
        return kind < 4 ? draw(64) : kind < 7 ? draw(4096) : draw(chunk);
    }
    void send_one()
    {
        const unsigned lane = (unsigned)draw(FT_LANES_ALL - 1);
        const size_t len = length();
        ft_header h = header(lane, sent[lane], len);
        int status;
        if (draw(1)) {
            void *slot;
            status = tcp->reserve(tx, &h, &slot);
            if (status == FT_OK && draw(9) == 0) {
                tcp->cancel(tx, &h, slot);
                return;
            }
            if (status == FT_OK) {
                const std::vector<unsigned char> data = payload(h.seq, len);
                std::copy(data.begin(), data.end(), (unsigned char *)slot);
                tcp->commit(tx, &h, slot);
            }
        } else {
            std::unique_ptr<Send> s(new Send);
            s->data = payload(h.seq, len);
            status = tcp->send(tx, &h, s->data.data(), &s->req);
            if (status == FT_OK)
                pending.push_back(std::move(s));
        }
        if (status == FT_AGAIN)
            return;
        ASSERT_EQ(FT_OK, status) << ft_fail_text();
        lens[{lane, sent[lane]++}] = len;
    }
    void spoil_complete()
    {
        for (auto &s : pending)
            if (s->req.status != FT_AGAIN) {
                ASSERT_EQ(FT_OK, s->req.status);
                memset(s->data.data(), 0xee, s->data.size());
            }
        while (!pending.empty() && pending.front()->req.status != FT_AGAIN)
            pending.pop_front();
    }
    void receive_one()
    {
        if (b.accepted.empty())
            return;
        ft_link *rx = b.accepted[0];
        const unsigned lane = (unsigned)draw(FT_LANES_ALL - 1);
        ft_msg m;
        int status = tcp->recv(rx, ctx, lane, &m);
        if (status == FT_AGAIN) {
            auto next = lens.find({lane, got[lane]});
            if (next != lens.end() && draw(3) == 0) {
                ft_header h = header(lane, got[lane], next->second);
                tcp->expect(rx, &h, landing.data());
                if (tcp->recv(rx, ctx, lane, &m) == FT_OK)
                    return check(rx, lane, m);
                // another channel may need the memory next
                tcp->expect(rx, &h, nullptr);
            }
            return;
        }
        ASSERT_EQ(FT_OK, status) << ft_fail_text();
        check(rx, lane, m);
    }
    void check(ft_link *rx, unsigned lane, ft_msg &m)
    {
        ASSERT_EQ(got[lane], m.header.seq) << "lane " << lane;
        ASSERT_EQ((lens[{lane, got[lane]}]), m.header.len) << "lane " << lane;
        ASSERT_EQ(lane, m.header.lane);
        const std::vector<unsigned char> data = payload(m.header.seq, m.header.len);
        ASSERT_TRUE(data.empty() || memcmp(data.data(), m.data, data.size()) == 0)
            << "lane " << lane << " message " << m.header.seq;
        lens.erase({lane, got[lane]++});
        if (draw(3) == 0 && held.size() < 6)
            held.push_back({lane, m});
        else
            tcp->release(rx, &m);
        if (!held.empty() && draw(1)) {
            tcp->release(rx, &held.front().second);
            held.pop_front();
        }
    }
};

// While it is there, engines that are opened have longer chunks, which stay in the user's memory.
struct LongChunks {
    const size_t before = chunk;
    explicit LongChunks(bool wanted)
    {
        chunk = wanted ? 1 << 20 : before;
    }
    ~LongChunks()
    {
        chunk = before;
    }
};

#endif

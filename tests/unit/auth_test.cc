// Property: a handshake succeeds exactly if both sides know the secret and mean the same purpose
// and engine. Any other case is told apart, learns nothing, reads nothing beyond the handshake, and
// ends in time. Method: both roles over socket pairs; attackers in the middle copy, reflect, replay
// and change bytes; time is a counter.
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>
#include <cstring>
#include <string>
#include <vector>
extern "C" {
#include "base/base.h"
}

static uint64_t clock_ns = 1000;
static uint64_t counter;
static uint64_t now(ft_env *)
{
    return clock_ns;
}
static void random_bytes(ft_env *, void *buf, size_t n)
{
    for (size_t i = 0; i < n; i++)
        ((unsigned char *)buf)[i] = (unsigned char)(++counter * 0x9e3779b97f4a7c15u >> 56);
}
static ft_env env = {now, random_bytes, nullptr};

static const uint64_t deadline = 1u << 20;
static const size_t hello_bytes = 48, reply_bytes = 80, claim_bytes = 56, accept_bytes = 40;

struct Side {
    ft_auth auth;
    int status = FT_AGAIN;
    int turn()
    {
        return status == FT_AGAIN ? status = ft_auth_turn(&auth) : status;
    }
};

struct Options {
    unsigned char initiator_key = 7, acceptor_key = 7;
    uint32_t initiator_purpose = FT_PURPOSE_TCP, acceptor_purpose = FT_PURPOSE_TCP;
    uint64_t wanted = 0;
};

static void start(Side &s, int fd, bool initiator, const Options &o)
{
    unsigned char key[FT_SECRET_BYTES] = {initiator ? o.initiator_key : o.acceptor_key};
    ft_auth_start(&s.auth, &env, fd, initiator, key, initiator ? 111 : 222,
                  initiator ? o.wanted : 0, initiator ? o.initiator_purpose : o.acceptor_purpose,
                  initiator ? 4711 : 0, deadline);
}

// An initiator and an acceptor, each with a socket of its own whose other end is ours.
struct Middle {
    Side i, a;
    int ifd[2], afd[2];
    explicit Middle(const Options &o = {})
    {
        clock_ns = 1000;
        EXPECT_EQ(0, socketpair(AF_UNIX, SOCK_STREAM, 0, ifd));
        EXPECT_EQ(0, socketpair(AF_UNIX, SOCK_STREAM, 0, afd));
        start(i, ifd[0], true, o);
        start(a, afd[0], false, o);
    }
    ~Middle()
    {
        for (int fd : {ifd[0], ifd[1], afd[0], afd[1]})
            if (fd >= 0)
                close(fd);
    }
    static std::string take(int fd)
    {
        char buf[512];
        ssize_t n = recv(fd, buf, sizeof buf, MSG_DONTWAIT);
        return std::string(buf, n > 0 ? (size_t)n : 0);
    }
    static void give(int fd, const std::string &s)
    {
        if (!s.empty()) {
            EXPECT_EQ((ssize_t)s.size(), send(fd, s.data(), s.size(), MSG_NOSIGNAL | MSG_DONTWAIT));
        }
    }
    // Carries bytes both ways until nothing moves; at most `piece` at a time.
    void relay(size_t piece = 512)
    {
        for (int idle = 0; idle < 3; idle++) {
            i.turn(), a.turn();
            for (auto [from, to] : {std::pair(ifd[1], afd[1]), std::pair(afd[1], ifd[1])}) {
                std::string s = take(from);
                if (!s.empty())
                    idle = 0;
                for (size_t at = 0; at < s.size(); at += piece) {
                    give(to, s.substr(at, piece));
                    i.turn(), a.turn();
                }
            }
        }
    }
};

static std::string name(int status)
{
    return ft_status_text(status);
}

TEST(Auth, SucceedsWithTheSameSecret)
{
    for (size_t piece : {size_t(512), size_t(1), size_t(17)}) {
        Middle m;
        m.relay(piece);
        EXPECT_EQ(name(FT_OK), name(m.i.status)) << ft_fail_text();
        EXPECT_EQ(name(FT_OK), name(m.a.status)) << ft_fail_text();
        EXPECT_EQ(222u, m.i.auth.peer);
        EXPECT_EQ(111u, m.a.auth.peer);
        EXPECT_EQ(4711u, m.a.auth.detail);
        EXPECT_EQ(FT_OK, ft_auth_turn(&m.i.auth)) << "stays so";
    }
}

TEST(Auth, RefusesWithASentenceOnBothSides)
{
    Options key, purpose, engine, right;
    key.acceptor_key = 8;
    purpose.acceptor_purpose = FT_PURPOSE_BOOTSTRAP;
    engine.wanted = 223;
    right.wanted = 222;
    for (const Options &o : {key, purpose, engine}) {
        Middle m(o);
        m.relay();
        EXPECT_EQ(name(FT_AUTH), name(m.i.status));
        EXPECT_EQ(name(FT_AUTH), name(m.a.status));
        EXPECT_EQ(0u, m.a.auth.peer);
        EXPECT_NE('\0', ft_fail_text()[0]);
        EXPECT_EQ(FT_AUTH, ft_auth_turn(&m.a.auth)) << "stays so";
    }
    Middle m(right);
    m.relay();
    EXPECT_EQ(name(FT_OK), name(m.i.status));
}

TEST(Auth, NothingIsToldBeforeTheOtherSideProvedItself)
{
    Middle m;
    m.i.turn(), m.a.turn();
    EXPECT_EQ(hello_bytes, Middle::take(m.ifd[1]).size()) << "magic, version, nonce";
    EXPECT_EQ("", Middle::take(m.afd[1])) << "the acceptor speaks second";
    // an acceptor without the secret gets nothing but zeros after its answer
    Options o;
    o.acceptor_key = 9;
    Middle w(o);
    w.i.turn();
    Middle::give(w.afd[1], Middle::take(w.ifd[1]));
    w.a.turn();
    Middle::give(w.ifd[1], Middle::take(w.afd[1]));
    w.i.turn();
    EXPECT_EQ(std::string(claim_bytes, '\0'), Middle::take(w.ifd[1]));
}

TEST(Auth, ReflectionFails)
{
    // each side hears itself
    Middle m;
    for (int n = 0; n < 4; n++) {
        m.i.turn(), m.a.turn();
        Middle::give(m.ifd[1], Middle::take(m.ifd[1]));
    }
    std::string hello = std::string((char *)m.i.auth.mine, hello_bytes);
    Middle::give(m.ifd[1], std::string(reply_bytes, '\0'));
    m.i.turn();
    EXPECT_EQ(name(FT_AUTH), name(m.i.status));
    // an acceptor's own proof sent back to it as the initiator's
    Middle r;
    Middle::give(r.afd[1], hello);
    r.a.turn();
    std::string reply = Middle::take(r.afd[1]);
    ASSERT_EQ(reply_bytes, reply.size());
    Middle::give(r.afd[1], std::string(claim_bytes - 32, '\0') + reply.substr(hello_bytes));
    r.a.turn();
    EXPECT_EQ(name(FT_AUTH), name(r.a.status));
    // a reply with the initiator's own hello in it
    Middle s;
    s.i.turn();
    std::string own = Middle::take(s.ifd[1]);
    Middle::give(s.ifd[1], own + std::string(32, 'x'));
    s.i.turn();
    EXPECT_EQ(name(FT_AUTH), name(s.i.status));
}

TEST(Auth, ReplayFails)
{
    Middle m;
    std::string to_acceptor, to_initiator;
    for (int n = 0; n < 6; n++) {
        m.i.turn(), m.a.turn();
        std::string x = Middle::take(m.ifd[1]), y = Middle::take(m.afd[1]);
        Middle::give(m.afd[1], x), Middle::give(m.ifd[1], y);
        to_acceptor += x, to_initiator += y;
    }
    ASSERT_EQ(name(FT_OK), name(m.a.status));
    ASSERT_EQ(hello_bytes + claim_bytes, to_acceptor.size());
    ASSERT_EQ(reply_bytes + accept_bytes, to_initiator.size());
    Middle again;
    Middle::give(again.afd[1], to_acceptor), Middle::give(again.ifd[1], to_initiator);
    again.i.turn(), again.a.turn();
    EXPECT_EQ(name(FT_AUTH), name(again.i.status));
    EXPECT_EQ(name(FT_AUTH), name(again.a.status));
}

TEST(Auth, AnyChangedByteFails)
{
    for (size_t at = 0; at < hello_bytes + claim_bytes + reply_bytes + accept_bytes; at++) {
        Middle m;
        size_t seen = 0;
        for (int n = 0; n < 6; n++) {
            m.i.turn(), m.a.turn();
            for (auto [from, to] : {std::pair(m.ifd[1], m.afd[1]), std::pair(m.afd[1], m.ifd[1])}) {
                std::string s = Middle::take(from);
                if (at >= seen && at < seen + s.size())
                    s[at - seen] ^= 1;
                seen += s.size();
                if (!s.empty())
                    (void)!send(to, s.data(), s.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
            }
        }
        EXPECT_FALSE(m.i.status == FT_OK && m.a.status == FT_OK) << "byte " << at;
        if (at >= reply_bytes + hello_bytes + claim_bytes)
            continue; // the last message: the acceptor is done already
        EXPECT_NE(name(FT_OK), name(m.a.status)) << "byte " << at;
        EXPECT_EQ(0u, m.a.auth.peer);
    }
}

TEST(Auth, OtherVersionsAndByteOrdersAreNamedOnBothSides)
{
    for (size_t at : {size_t(8), size_t(11), size_t(12), size_t(13)}) {
        Middle m;
        m.i.turn();
        std::string hello = Middle::take(m.ifd[1]);
        hello[at] ^= 1;
        Middle::give(m.afd[1], hello.substr(0, 16)); // a version's own part may be shorter
        m.a.turn();
        EXPECT_EQ(name(FT_VERSION), name(m.a.status));
        EXPECT_NE(nullptr, strstr(ft_fail_text(), at < 12 ? "version" : "byte order"))
            << ft_fail_text();
        std::string reply = Middle::take(m.afd[1]);
        ASSERT_EQ(reply_bytes, reply.size()) << "so that the other side knows too";
        reply[at] ^= 1;
        Middle::give(m.ifd[1], reply);
        m.i.turn();
        EXPECT_EQ(name(FT_VERSION), name(m.i.status));
    }
}

TEST(Auth, GarbageIsRefusedAtItsFirstByte)
{
    for (std::string s : {"G", "FTCCM", "\n", "FTCCL\r\r"}) {
        Middle m;
        m.i.turn();
        Middle::give(m.afd[1], s), Middle::give(m.ifd[1], s);
        m.a.turn(), m.i.turn();
        EXPECT_EQ(name(FT_PROTOCOL), name(m.a.status));
        EXPECT_EQ(name(FT_PROTOCOL), name(m.i.status));
        EXPECT_EQ("", Middle::take(m.afd[1]));
    }
}

TEST(Auth, EarlyCloseIsALostLink)
{
    for (int when = 0; when < 4; when++) {
        Middle m;
        for (int n = 0; n < when; n++) {
            m.i.turn(), m.a.turn();
            Middle::give(m.afd[1], Middle::take(m.ifd[1])),
                Middle::give(m.ifd[1], Middle::take(m.afd[1]));
        }
        if (m.i.status != FT_AGAIN || m.a.status != FT_AGAIN)
            continue;
        close(m.ifd[1]), close(m.afd[1]);
        m.ifd[1] = m.afd[1] = -1;
        m.i.turn(), m.a.turn();
        if (m.i.status == FT_AGAIN)
            m.i.turn();
        EXPECT_EQ(name(FT_LINK), name(m.i.status)) << when;
        EXPECT_EQ(name(FT_LINK), name(m.a.status)) << when;
    }
}

TEST(Auth, EndsAtItsDeadlineNotBefore)
{
    Middle m;
    clock_ns = deadline - 1;
    EXPECT_EQ(FT_AGAIN, m.i.turn());
    EXPECT_EQ(FT_AGAIN, m.a.turn());
    Middle::give(m.afd[1], Middle::take(m.ifd[1]).substr(0, 20));
    EXPECT_EQ(FT_AGAIN, m.a.turn());
    clock_ns = deadline;
    EXPECT_EQ(name(FT_TIMEOUT), name(m.i.turn()));
    EXPECT_EQ(name(FT_TIMEOUT), name(m.a.turn()));
}

TEST(Auth, ReadsNotAByteBeyond)
{
    Middle m;
    for (int n = 0; n < 6; n++) {
        m.i.turn(), m.a.turn();
        std::string x = Middle::take(m.ifd[1]), y = Middle::take(m.afd[1]);
        Middle::give(m.afd[1], x + (x.size() == claim_bytes ? "more" : ""));
        Middle::give(m.ifd[1], y + (y.size() == accept_bytes ? "more" : ""));
    }
    EXPECT_EQ(name(FT_OK), name(m.i.status));
    EXPECT_EQ(name(FT_OK), name(m.a.status));
    EXPECT_EQ("more", Middle::take(m.ifd[0]));
    EXPECT_EQ("more", Middle::take(m.afd[0]));
}

TEST(Auth, SaysWhatItWaitsFor)
{
    Middle m;
    EXPECT_EQ(POLLOUT, ft_auth_events(&m.i.auth));
    EXPECT_EQ(POLLIN, ft_auth_events(&m.a.auth));
    m.i.turn(), m.a.turn();
    EXPECT_EQ(POLLIN, ft_auth_events(&m.i.auth));
    // a socket that takes nothing
    int small = 1, fd[2];
    ASSERT_EQ(0, socketpair(AF_UNIX, SOCK_STREAM, 0, fd));
    setsockopt(fd[0], SOL_SOCKET, SO_SNDBUF, &small, sizeof small);
    std::string filler(4096, 'x');
    while (send(fd[0], filler.data(), filler.size(), MSG_DONTWAIT) > 0) {}
    Side s;
    start(s, fd[0], true, {});
    EXPECT_EQ(FT_AGAIN, s.turn());
    EXPECT_EQ(POLLOUT, ft_auth_events(&s.auth));
    close(fd[0]), close(fd[1]);
}

TEST(Derive, DiffersByEveryArgument)
{
    std::vector<std::string> all;
    for (int k = 0; k < 2; k++)
        for (const char *use : {"", "a", "links"})
            for (uint64_t n : {uint64_t(0), uint64_t(1), uint64_t(1) << 63}) {
                unsigned char key[FT_SECRET_BYTES] = {(unsigned char)k}, out[FT_SECRET_BYTES],
                              same[FT_SECRET_BYTES];
                ft_auth_derive(out, key, use, n), ft_auth_derive(same, key, use, n);
                EXPECT_EQ(0, memcmp(out, same, sizeof out));
                all.emplace_back((char *)out, sizeof out);
            }
    for (size_t i = 0; i < all.size(); i++)
        for (size_t j = 0; j < i; j++)
            EXPECT_NE(all[i], all[j]) << i << " " << j;
    unsigned char a[FT_SECRET_BYTES], b[FT_SECRET_BYTES];
    ft_random_secret(a), ft_random_secret(b);
    EXPECT_NE(0, memcmp(a, b, sizeof a));
}

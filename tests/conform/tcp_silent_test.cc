// Properties: if a host vanishes without a word, its links, idle or busy, go DOWN with FT_LINK
// within seconds. The links of a stopped process do not, even if its socket buffers are full, and
// it receives everything when it goes on. Method: the other host is a child process in its own
// network namespace, which a veth pair joins to the namespace of this process. It vanishes by
// losing its route to us. Without the right to make namespaces these tests are skipped. The child
// that is stopped uses the loopback interface.
#include "tests/conform/transport.h"

#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

namespace
{

const Backend tcp = {"tcp", &ft_transport_tcp, true, "", false};

bool ip(const std::string &words)
{
    return system(("ip " + words + " >/dev/null 2>&1").c_str()) == 0;
}

/* Another engine that takes what is sent, as long as it may. */
int other_host(int in, int out)
{
    Child::write_to(out, std::to_string(getpid()));
    if (Child::read_from(in) != "net")
        return 1;
    if (!ip("addr add 10.77.0.2/24 dev vb") || !ip("link set vb up") || !ip("link set lo up"))
        return 2;
    Engine e(tcp, 0xc);
    if (!e.t || e.ops->bind(e.t, 1))
        return 3;
    Child::write_to(out, e.address());
    turn({&e}, [&] { return e.accepted(); });
    ft_link *l = e.accepted();
    if (!l)
        return 4;
    ft_msg msg;
    if (!turn({&e}, [&] { return l->ops->recv(l, 1, 0, &msg) == FT_OK; }))
        return 5;
    l->ops->release(l, &msg);
    turn(
        {&e}, [] { return false; }, 50); // says so
    Child::write_to(out, "got");
    if (Child::read_from(in) != "vanish" || !ip("route add blackhole 10.77.0.1/32"))
        return 6;
    Child::write_to(out, "gone");
    Child::read_from(in);
    return 0;
}

// It answers through its kernel, with idle connections and with full ones.
TEST(TcpStopped, IsNotDown)
{
    Child child([](int in, int out) {
        Engine e(tcp, 0xc);
        if (!e.t || e.ops->bind(e.t, 1))
            return 1;
        Child::write_to(out, std::to_string(getpid()));
        Child::write_to(out, e.address());
        turn({&e}, [&] { return e.accepted(); });
        ft_link *l = e.accepted();
        if (!l)
            return 2;
        Child::write_to(out, "up");
        if (Child::read_from(in) != "read")
            return 3;
        ft_msg msg;
        for (unsigned lane = 0; lane < 8; lane++)
            for (uint32_t seq = 1; seq <= 2; seq++) {
                if (!turn({&e}, [&] { return l->ops->recv(l, 1, lane, &msg) == FT_OK; }))
                    return 4;
                if (msg.header.seq != seq || msg.header.len != 65536)
                    return 5;
                l->ops->release(l, &msg);
            }
        return 0;
    });
    pid_t pid = atoi(child.read().c_str());
    std::string to = child.read();
    Engine a(tcp, 0xa);
    ASSERT_EQ(a.ops->bind(a.t, 1), FT_OK);
    ft_link *l = a.connect(0xc, to);
    ASSERT_TRUE(l);
    ASSERT_TRUE(turn({&a}, [&] { return l->state == FT_LINK_UP; }));
    ASSERT_EQ(child.read(), "up");
    kill(pid, SIGSTOP);
    std::string data(65536, 'x');
    ft_send req[16];
    for (unsigned lane = 0; lane < 8; lane++)
        for (uint32_t seq = 1; seq <= 2; seq++) {
            ft_header h = header_of(1, lane, seq, 65536);
            ft_send *r = &req[2 * lane + seq - 1];
            r->status = FT_AGAIN;
            ASSERT_EQ(l->ops->send(l, &h, data.data(), r), FT_OK);
        }
    EXPECT_FALSE(turn(
        {&a}, [&] { return l->state != FT_LINK_UP; }, 6000))
        << "DOWN: " << ft_fail_text();
    child.write("read");
    kill(pid, SIGCONT);
    turn({&a}, [&] { return l->ops->drained(l); });
    EXPECT_EQ(child.wait(), 0) << "what it was sent did not arrive";
}

class TcpSilent : public testing::Test
{
  protected:
    void SetUp() override
    {
        unsetenv("FTCCL_SOCKET_IFNAME");
        if (unshare(CLONE_NEWNET) != 0)
            GTEST_SKIP() << "not allowed to make network namespaces";
        if (!ip("link set lo up"))
            GTEST_SKIP() << "no ip command";
    }
    void connect()
    {
        child = std::make_unique<Child>(
            [](int in, int out) { return unshare(CLONE_NEWNET) ? 9 : other_host(in, out); });
        std::string pid = child->read();
        if (!ip("link add va type veth peer name vb netns " + pid) ||
            !ip("addr add 10.77.0.1/24 dev va") || !ip("link set va up"))
            GTEST_SKIP() << "no veth pairs here";
        child->write("net");
        std::string to = child->read();
        ASSERT_FALSE(to.empty());
        a = std::make_unique<Engine>(tcp, 0xa);
        ASSERT_EQ(a->ops->bind(a->t, 1), FT_OK);
        l = a->connect(0xc, to);
        ASSERT_TRUE(l);
        ASSERT_TRUE(turn({a.get()}, [&] { return l->state == FT_LINK_UP; }));
        ASSERT_EQ(post(1), FT_OK);
        ASSERT_TRUE(turn({a.get()}, [&] { return l->ops->drained(l); }));
        ASSERT_EQ(child->read(), "got");
    }
    int post(uint32_t seq)
    {
        ft_header h = header_of(1, 0, seq, 8);
        ft_send req = {};
        req.status = FT_AGAIN;
        int rc = l->ops->send(l, &h, "12345678", &req);
        if (rc == FT_OK) {
            EXPECT_TRUE(turn({a.get()}, [&] { return req.status != FT_AGAIN; }));
        }
        return rc;
    }
    void vanish()
    {
        child->write("vanish");
        ASSERT_EQ(child->read(), "gone");
    }
    void expect_down(const char *when)
    {
        uint64_t start = now_ms();
        ASSERT_TRUE(turn(
            {a.get()}, [&] { return a->has(l, ft_event::FT_EVENT_DOWN); }, 20000));
        printf("%s: down after %llu ms\n", when, (unsigned long long)(now_ms() - start));
        EXPECT_EQ(l->reason, FT_LINK);
        EXPECT_FALSE(l->orderly);
        EXPECT_FALSE(l->proof) << "silence proves nothing";
    }
    std::unique_ptr<Child> child;
    std::unique_ptr<Engine> a;
    ft_link *l = nullptr;
};

TEST_F(TcpSilent, IdleLinkToAVanishedHost)
{
    connect();
    if (IsSkipped() || HasFatalFailure())
        return;
    turn(
        {a.get()}, [] { return false; }, 300); // everything is acknowledged
    vanish();
    expect_down("idle");
}

TEST_F(TcpSilent, BusyLinkToAVanishedHost)
{
    connect();
    if (IsSkipped() || HasFatalFailure())
        return;
    vanish();
    ASSERT_EQ(post(2), FT_OK);
    expect_down("busy");
}

} // namespace

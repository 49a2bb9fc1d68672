// Property: the tcp transport limits what strangers can hold. Whatever an authenticated but hostile
// peer says, the answer is a link that goes down. Method: a transport and hand-made peers on plain
// sockets, turned by one thread.
#include "tests/unit/tcp_fixture.h"

TEST(Hostile, TooLongIsRefused)
{
    for (unsigned lane = 0; lane < FT_LANES_ALL; lane++)
        for (size_t first : {(size_t)0, 2 * chunk}) {
            Engine b(2, 1, ft_env_real(), first);
            Hand hand(b);
            hand.say(header(lane, 0, (lane <= FT_LANE_P2P && first > 0 ? first : chunk) + 1));
            expect_down(b, FT_PROTOCOL);
        }
}

TEST(Hostile, LaneThatDoesNotExist)
{
    for (unsigned lane : {(unsigned)FT_LANES_ALL, 4711u, 0xfffeu}) {
        Engine b(2);
        Hand hand(b);
        hand.say(header(lane, 0, 4), 4);
        expect_down(b, FT_PROTOCOL);
    }
}

// Long messages, small ones, and one long one behind more small ones than leave its places: the
// receiver counts as the sender must.
TEST(Hostile, WindowOverrun)
{
    const int small = 16, half = small / FT_WINDOW_COLL;
    const struct {
        int smalls, longs, taken;
    } cases[] = {{0, FT_WINDOW_COLL + 1, FT_WINDOW_COLL},
                 {small + 1, 0, small},
                 {half + 1, 1, half + 1},
                 {1, FT_WINDOW_COLL, FT_WINDOW_COLL}};
    for (const auto &c : cases) {
        Engine b(2);
        Hand hand(b);
        for (uint32_t i = 0; i < (uint32_t)(c.smalls + c.longs); i++) {
            const size_t n = i < (uint32_t)c.smalls ? 4 : 4096;
            hand.say(header(3, i, n), n);
        }
        expect_down(b, FT_PROTOCOL);
        ft_msg m;
        for (int i = 0; i < c.taken; i++)
            EXPECT_EQ(FT_OK, tcp->recv(b.down[0], ctx, 3, &m)) << "what came before stays";
        EXPECT_EQ(FT_LINK, tcp->recv(b.down[0], ctx, 3, &m));
    }
    for (unsigned lane : {0, FT_LANE_P2P, FT_LANE_CTL, FT_LANE_RMA}) {
        Engine b(2);
        Hand hand(b);
        const int most = lane == 0 ? FT_WINDOW_SMALL : lane == FT_LANE_P2P ? 16 : ft_window(lane);
        for (int i = 0; i <= most; i++)
            hand.say(header(lane, (uint32_t)i, 4), 4), b.turn();
        expect_down(b, FT_PROTOCOL);
        EXPECT_EQ((uint64_t)most, b.down[0]->messages) << "lane " << lane;
    }
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
    // unbound contexts are dropped at the sender's pace; their credits fill its socket until that
    // is enough
    eventually([&] {
        if (gone == sizeof h) {
            for (ft_header &x : h)
                x = header(0, 0, 0, next++);
            gone = 0;
        }
        ssize_t n = send(hand.fd, (char *)h + gone, sizeof h - gone, MSG_NOSIGNAL | MSG_DONTWAIT);
        gone += n > 0 ? (size_t)n : 0;
        return b.turn(), !b.down.empty();
    });
    ASSERT_FALSE(b.down.empty());
    EXPECT_STREQ(ft_status_text(FT_PROTOCOL), ft_status_text(b.down[0]->reason));
}

// The connections of a link end at the moment at which credits must be returned, in the middle of
// what they have brought. What was read is received whole and in order; all that the others have
// brought is read, and contexts that nobody knows need no room for credits then.
TEST(Hostile, EndsWhileItsCreditsAreReturned)
{
    const int most = 64; // channels with credits to return
    for (uint32_t conns : {1u, 2u}) {
        Engine b(2);
        std::vector<Hand *> hands;
        for (uint32_t i = 0; i < conns; i++)
            hands.push_back(new Hand(b, i | conns << 8));
        uint64_t unbound = 4242;
        for (uint32_t lane = 0; lane < conns; lane++) {
            std::vector<unsigned char> all;
            uint32_t seq = 0;
            auto add = [&](const ft_header &h, int times = 1) {
                for (int i = 0; i < times; i++) {
                    ft_header one = h;
                    one.sig = ~0ull; // so that none looks like a credit
                    if (one.ctx == ctx)
                        one.seq = seq++;
                    else
                        one.ctx = unbound++;
                    all.insert(all.end(), (const unsigned char *)&one,
                               (const unsigned char *)(&one + 1));
                    all.resize(all.size() + one.len);
                }
            };
            add(header(lane, 0, 0, 0), most - 1);
            add(header(lane, 0, 3000, 0)); // what follows is read with its end
            add(header(lane, 0, 0), 8);
            add(header(lane, 0, 0, 0), 96);
            add(header(lane, 0, 0), 8);
            add(header(lane, 0, 0, 0), 400);
            hands[lane]->say(all.data(), all.size());
        }
        for (Hand *hand : hands) {
            const struct linger at_once = {1, 0}; // a reset
            setsockopt(hand->fd, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
            delete hand;
        }
        expect_down(b, FT_LINK);
        uint32_t got = 0;
        for (unsigned lane = 0; lane < conns; lane++) {
            ft_msg m;
            uint32_t seq = 0;
            for (; tcp->recv(b.down[0], ctx, lane, &m) == FT_OK; seq++)
                EXPECT_EQ(seq, m.header.seq);
            EXPECT_GE(seq, 8u) << "lane " << lane;
            got += seq;
        }
        EXPECT_GE(got, 8 + 16 * (conns - 1));
        tcp->disconnect(b.down[0]);
        for (int i = 0; i < 100; i++)
            b.turn();
    }
}

// A message is waited for on a connection that has said goodbye while the link lives on by its
// other one: when the link has gone nothing is read there any more (the sanitizer sees it).
TEST(Hostile, IsWaitedForWhereItHasSaidGoodbye)
{
    Engine b(2);
    {
        Hand first(b, 0 | 2 << 8), second(b, 1 | 2 << 8);
        ASSERT_TRUE(eventually([&] { return b.turn(), b.accepted.size() == 1; }));
        first.say(header(0xffff, 0, 0));
        ASSERT_TRUE(eventually([&] { return b.turn(), closed_by_peer(first.fd); }));
        ft_msg m;
        EXPECT_EQ(FT_AGAIN, tcp->recv(b.accepted[0], ctx, 0, &m));
        for (int i = 0; i < 10; i++)
            b.turn();
        EXPECT_TRUE(b.down.empty());
    }
    expect_down(b, FT_LINK);
    tcp->disconnect(b.down[0]);
    for (int i = 0; i < 10; i++)
        b.turn();
}

TEST(Hostile, CreditsForWhatWasNotSent)
{
    for (const Answer &credit :
         {Answer{ctx, 0, 60000, 0}, Answer{ctx, 10, 60000, 0}, Answer{ctx, 0, 0, 0}}) {
        HandAcceptor hand(1, false);
        hand.say(credit);
        expect_down(hand.a, FT_PROTOCOL);
    }
}

// Where each channel keeps to one connection, its places come back there and by no other one.
TEST(Hostile, CreditsByAnotherConnection)
{
    HandAcceptor hand(2, false);
    for (unsigned lane = 0; lane < 2; lane++) {
        ft_header h = header(lane, 0, 10);
        void *at = nullptr;
        ASSERT_EQ(FT_OK, tcp->reserve(hand.tx, &h, &at));
        tcp->commit(hand.tx, &h, at);
    }
    hand.say({ctx, 0, 1, 0}, 0); // this is right
    for (int i = 0; i < 50; i++)
        hand.a.turn();
    EXPECT_TRUE(hand.a.down.empty());
    hand.say({ctx, 2, 1, 0}, 1);
    expect_down(hand.a, FT_PROTOCOL);
}

TEST(Hostile, IndexOfConnectionThatMakesNoSense)
{
    for (uint32_t detail : {0u, 5u | 2 << 8, 17u << 8, 255u << 8, 0xffffffffu}) {
        Engine b(2);
        Hand hand(b, detail);
        ASSERT_EQ(FT_OK, hand.status);
        EXPECT_TRUE(eventually([&] { return b.turn(), closed_by_peer(hand.fd); }, 5))
            << "kept for siblings that cannot come";
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
        ASSERT_EQ(FT_OK, ft_net_connect(&to, nullptr, &fd)) << ft_fail_text();
        idle.push_back(fd);
    }
    int most = 0, before = ft_fd_count();
    a.connect(2, b.address());
    const uint64_t start = ft_now_ns(ft_env_real());
    EXPECT_TRUE(eventually(
        [&] {
            a.turn(), b.turn();
            most = std::max(most, ft_fd_count() - before);
            return !a.up.empty();
        },
        15));
    printf("300 silent connections before it: up after %.1f s of the acceptor's clock, %d "
           "descriptors more\n",
           (double)(ft_now_ns(ft_env_real()) - start) / 1e8, most);
    EXPECT_LE(most, 64 + 4 + 4);
    for (int &fd : idle)
        ft_fd_close(&fd);
}

TEST(Strangers, GarbageIsClosedAtOnce)
{
    Engine b(2);
    int fd = -1, before = ft_fd_count();
    ft_net_address to = b.where();
    ASSERT_EQ(FT_OK, ft_net_connect(&to, nullptr, &fd));
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
    testing::internal::CaptureStderr();
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
    const uint64_t end = ft_now_ns(ft_env_real()) + 100000000;
    while (ft_now_ns(ft_env_real()) < end)
        a.turn(), b.turn();
    EXPECT_TRUE(a.up.empty());
    setrlimit(RLIMIT_NOFILE, &old);
    const std::string told = testing::internal::GetCapturedStderr();
    EXPECT_EQ(1, std::count(told.begin(), told.end(), '\n')) << told;
    EXPECT_TRUE(eventually([&] { return a.turn(), b.turn(), !a.up.empty(); }))
        << "goes on once there are descriptors again";
}

int main(int argc, char **argv)
{
    testing::InitGoogleTest(&argc, argv);
    setenv("FTCCL_SOCKET_IFNAME", "lo", 1);
    return RUN_ALL_TESTS();
}

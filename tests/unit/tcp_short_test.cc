// Properties of short messages past the queues over tcp: they go on without a turn of either side,
// for credits and acknowledgements come with looks and posts alone; looks in vain end, and begin
// again; what a look reads for others is told to the next turn, and so is the end of a link; what a
// peer sends is checked as ever.
// Method: two transports, or one and a hand-made peer, that nobody turns.
#include "tests/unit/tcp_fixture.h"

static const void *look(ft_link *rx, uint32_t seq, size_t n, unsigned lane = 0)
{
    ft_header want = header(lane, seq, n);
    return tcp->look(rx, &want);
}

static bool take(ft_link *rx, uint32_t seq, size_t n)
{
    ft_header want = header(0, seq, n);
    const void *at = tcp->look(rx, &want);
    if (!at)
        return false;
    EXPECT_EQ(0, memcmp(at, payload(seq, n).data(), n)) << "message " << seq;
    tcp->took(rx, &want);
    return true;
}

static bool post(ft_link *tx, uint32_t seq, size_t n)
{
    ft_header h = header(0, seq, n);
    int status = tcp->post(tx, &h, payload(seq, n).data());
    EXPECT_TRUE(status == FT_OK || status == FT_AGAIN) << ft_status_text(status);
    return status == FT_OK;
}

// The receiver comes first, and looks in vain before each message; or it never looks in vain.
TEST(Short, GoesOnWithoutTurns)
{
    for (bool first : {true, false})
        for (size_t n : {1, 512, 2048, 4096}) {
            Pair p;
            ASSERT_NE(nullptr, p.rx);
            for (uint32_t seq = 1; seq <= 2000 && !testing::Test::HasFailure(); seq++) {
                EXPECT_FALSE(first && look(p.rx, seq, n));
                ASSERT_TRUE(eventually([&] { return post(p.tx, seq, n); }, 5))
                    << "message " << seq << " of " << n << " bytes";
                ASSERT_TRUE(eventually([&] { return take(p.rx, seq, n); }, 5)) << seq;
            }
        }
}

// As many messages as fit on the way, taken one after another.
TEST(Short, AFullWindowOpensWithoutTurns)
{
    for (size_t n : {8, 4096}) {
        Pair p;
        ASSERT_NE(nullptr, p.rx);
        uint32_t sent = 0;
        for (uint32_t got = 1; got <= 1000; got++) {
            while (post(p.tx, sent + 1, n))
                sent++;
            ASSERT_GE(sent, got) << "the window of messages of " << n << " bytes has closed";
            ASSERT_TRUE(eventually([&] { return take(p.rx, got, n); }, 5));
        }
    }
}

// A caller whose peer is late does not read for ever, and later callers read again.
TEST(Short, LooksInVainEnd)
{
    Pair p;
    ASSERT_NE(nullptr, p.rx);
    for (int i = 0; i < 1000; i++)
        EXPECT_EQ(nullptr, look(p.rx, 1, 8));
    ASSERT_TRUE(post(p.tx, 1, 8));
    EXPECT_EQ(nullptr, look(p.rx, 1, 8)) << "it still reads";
    ASSERT_TRUE(eventually([&] { return p.turn(), take(p.rx, 1, 8); }));
    ASSERT_TRUE(post(p.tx, 2, 8));
    EXPECT_EQ(nullptr, look(p.rx, 2, 8)) << "it reads again at once";
    ASSERT_TRUE(eventually([&] { return p.turn(), take(p.rx, 2, 8); }));
    for (uint32_t seq = 3; seq < 100; seq++) {
        ASSERT_TRUE(post(p.tx, seq, 8));
        bool taken = take(p.rx, seq, 8);
        ASSERT_TRUE(taken || eventually([&] { return p.turn(), take(p.rx, seq, 8); }));
    }
    ASSERT_TRUE(post(p.tx, 100, 8));
    EXPECT_TRUE(eventually([&] { return take(p.rx, 100, 8); }, 1)) << "it never reads again";
}

// Otherwise the engine would sleep over a message that somebody else waits for.
TEST(Short, WhatALookReadsForOthersKeepsTheEngineAwake)
{
    Param connections("FTCCL_TCP_CONNECTIONS", "1");
    Pair p;
    ASSERT_NE(nullptr, p.rx);
    ASSERT_TRUE(eventually([&] { return p.b.turn(), tcp->arm(p.b.t, true); }));
    tcp->arm(p.b.t, false);
    ft_header other = header(1, 1, 8);
    ASSERT_EQ(FT_OK, tcp->post(p.tx, &other, payload(1, 8).data()));
    EXPECT_EQ(nullptr, look(p.rx, 1, 8));
    EXPECT_FALSE(tcp->arm(p.b.t, true));
    tcp->arm(p.b.t, false);
    EXPECT_TRUE(p.b.turn()) << "the turn says that nothing has moved";
    EXPECT_FALSE(p.b.turn());
    ft_msg m;
    ASSERT_EQ(FT_OK, tcp->recv(p.rx, ctx, 1, &m));
    tcp->release(p.rx, &m);
}

TEST(Short, ALookChecksWhatItReads)
{
    for (bool lies : {true, false}) {
        Engine b(2);
        Hand hand(b);
        ASSERT_TRUE(eventually([&] { return b.turn(), !b.accepted.empty(); }));
        ft_link *rx = b.accepted[0];
        hand.say(header(0, 1, 8), 8);
        if (lies)
            hand.say(header(1, 1, (size_t)1 << 30));
        else
            ft_fd_close(&hand.fd);
        EXPECT_TRUE(eventually([&] { return look(rx, 1, 8, 1), rx->state == FT_LINK_DOWN; }, 5));
        EXPECT_TRUE(b.down.empty()) << "nobody has turned it";
        EXPECT_FALSE(take(rx, 1, 8)) << "a link that is down";
        expect_down(b, lies ? FT_PROTOCOL : FT_LINK);
        ft_msg m;
        EXPECT_EQ(FT_OK, tcp->recv(rx, ctx, 0, &m)) << "what came before is still there";
        tcp->release(rx, &m);
    }
}

// Property: a long message that is expected comes directly to its destination, and no other does. A
// caller that takes the lent memory back has it to itself at once, whatever the sender still sends,
// and the message is still received completely. Method: a transport and a hand-made peer that sends
// a part, or something else than it should.
#include "tests/unit/tcp_fixture.h"

namespace
{

const size_t len = 20000, part = 7001;

struct Expect : testing::Test {
    Engine b{2};
    Hand hand{b};
    ft_link *rx = nullptr;
    std::vector<unsigned char> to = std::vector<unsigned char>(3 * len, 0x11), untouched = to;
    void SetUp() override
    {
        ASSERT_TRUE(eventually([&] { return b.turn(), !b.accepted.empty(); }));
        rx = b.accepted[0];
    }
    void expect(const ft_header &h, size_t at = 0)
    {
        tcp->expect(rx, &h, to.data() + at);
    }
    void take_back(unsigned lane = 0)
    {
        ft_header h = header(lane, 0, 0);
        tcp->expect(rx, &h, nullptr);
        std::fill(to.begin(), to.end(), 0x22);
        untouched = to;
    }
    void say_part(const ft_header &h, size_t from, size_t n)
    {
        hand.say(payload(h.seq, h.len).data() + from, n);
    }
    void turns(int n = 20)
    {
        for (; n > 0; n--)
            b.turn(), usleep(200);
    }
    /* The next message of a lane, which is `h` with its payload; where it lay. */
    const void *takes(const ft_header &h)
    {
        ft_msg m = {};
        EXPECT_TRUE(
            eventually([&] { return b.turn(), tcp->recv(rx, h.ctx, h.lane, &m) == FT_OK; }, 5))
            << "message " << h.seq;
        if (m.data == nullptr)
            return nullptr;
        EXPECT_EQ(h.seq, m.header.seq);
        EXPECT_EQ(h.len, m.header.len);
        EXPECT_EQ(0, memcmp(payload(h.seq, h.len).data(), m.data, h.len)) << "message " << h.seq;
        const void *where = m.data;
        tcp->release(rx, &m);
        return where;
    }
};

TEST_F(Expect, ComesStraightToWhereItGoes)
{
    ft_header h = header(0, 5, len);
    expect(h);
    hand.say(h, len);
    EXPECT_EQ(to.data(), takes(h));
    EXPECT_TRUE(std::equal(to.begin() + len, to.end(), untouched.begin() + len))
        << "and no further";
    ft_header next = header(0, 6, len);
    hand.say(next, len);
    EXPECT_NE(to.data(), takes(next)) << "once";
}

TEST_F(Expect, WhatIsTakenBackInTheMiddleIsNotWritten)
{
    for (unsigned lane : {0u, 3u}) {
        ft_header h = header(lane, 5, len);
        expect(h);
        hand.say(h);
        say_part(h, 0, part);
        turns();
        EXPECT_EQ(byte_of(5, part - 1), to[part - 1]) << "a part is there";
        take_back(lane);
        say_part(h, part, len - part);
        EXPECT_NE(to.data(), takes(h));
        EXPECT_TRUE(to == untouched);
    }
}

TEST_F(Expect, WhatIsTakenBackWhenAllIsThereIsStillReceived)
{
    ft_header h = header(0, 5, len);
    expect(h);
    hand.say(h, len);
    turns();
    EXPECT_EQ(byte_of(5, len - 1), to[len - 1]);
    take_back();
    EXPECT_NE(to.data(), takes(h));
    EXPECT_TRUE(to == untouched);
}

TEST_F(Expect, WhatIsTakenBackBeforeItComesIsNotWritten)
{
    ft_header h = header(0, 5, len);
    expect(h);
    take_back();
    hand.say(h, len);
    EXPECT_NE(to.data(), takes(h));
    EXPECT_TRUE(to == untouched);
}

TEST_F(Expect, AnotherMessageIsNotTakenForIt)
{
    ft_header wanted = header(0, 5, len), others[] = {header(0, 5, 2 * len), header(0, 5, len - 1),
                                                      header(0, 6, len), header(0, 5, len)};
    others[3].sig = 1;
    for (const ft_header &other : others) {
        expect(wanted);
        hand.say(other, other.len);
        EXPECT_NE(to.data(), takes(other));
        EXPECT_TRUE(to == untouched) << other.len << " bytes of message " << other.seq;
        hand.say(wanted, len);
        EXPECT_NE(to.data(), takes(wanted)) << "nobody has said again that it is expected";
        EXPECT_TRUE(to == untouched);
    }
}

TEST_F(Expect, OtherChannelsHaveNothingToDoWithIt)
{
    ft_header wanted = header(1, 5, len), other = header(2, 5, len);
    expect(wanted);
    hand.say(other, len);
    EXPECT_NE(to.data(), takes(other));
    EXPECT_TRUE(to == untouched);
    hand.say(wanted, len);
    EXPECT_EQ(to.data(), takes(wanted));
}

TEST_F(Expect, AMessageThatHasBegunComesToItsEndElsewhere)
{
    ft_header h = header(0, 5, len);
    hand.say(h);
    say_part(h, 0, part);
    turns();
    expect(h);
    say_part(h, part, len - part);
    EXPECT_NE(to.data(), takes(h));
    EXPECT_TRUE(to == untouched);
}

TEST_F(Expect, UnbindingTakesBack)
{
    ft_header h = header(0, 5, len);
    expect(h);
    hand.say(h);
    say_part(h, 0, part);
    turns();
    tcp->unbind(b.t, ctx);
    std::fill(to.begin(), to.end(), 0x22);
    untouched = to;
    say_part(h, part, len - part);
    turns();
    EXPECT_TRUE(to == untouched);
    EXPECT_EQ(FT_OK, tcp->bind(b.t, ctx));
    hand.say(header(0, 1, len), len);
    EXPECT_NE(to.data(), takes(header(0, 1, len))) << "the connection is in step";
}

TEST_F(Expect, TheNextOfAChannelWaitsForItsPlace)
{
    ft_header first = header(0, 5, len), second = header(0, 6, len);
    expect(first);
    std::vector<unsigned char> all;
    for (const ft_header &h : {first, second}) {
        auto data = payload(h.seq, h.len);
        all.insert(all.end(), (const unsigned char *)&h, (const unsigned char *)(&h + 1));
        all.insert(all.end(), data.begin(), data.end());
    }
    hand.say(all.data(), all.size());
    EXPECT_EQ(to.data(), takes(first));
    expect(second, len);
    EXPECT_EQ(to.data() + len, takes(second))
        << "it was sent with the first, and said to be expected a turn later";
}

TEST_F(Expect, TheNextOfAChannelComesEvenIfNobodyExpectsIt)
{
    ft_header first = header(0, 5, len), second = header(0, 6, len), third = header(1, 7, 8);
    expect(first);
    for (const ft_header &h : {first, second, third})
        hand.say(h, h.len);
    takes(third);
    EXPECT_EQ(to.data(), takes(first));
    EXPECT_NE(to.data(), takes(second));
}

} // namespace

int main(int argc, char **argv)
{
    testing::InitGoogleTest(&argc, argv);
    setenv("FTCCL_SOCKET_IFNAME", "lo", 1);
    return RUN_ALL_TESTS();
}

// Links over a fabric: order and content under random schedules, several ways, ways that break at
// any write, ends of links, and peers that lie. Everything runs over the fake fabric of fake.h.
// FT_SEED=N runs only the schedule of that seed.
#include "tests/rma/pair.h"

#include <sys/mman.h>

static std::vector<uint64_t> seeds(unsigned count)
{
    const char *one = getenv("FT_SEED");
    std::vector<uint64_t> list;
    for (uint64_t s = 1; !one && s <= count; s++)
        list.push_back(s);
    if (one)
        list.push_back(strtoull(one, nullptr, 10));
    return list;
}

static std::string replay(uint64_t seed, const FakeNet &net)
{
    return "replay: FT_SEED=" + std::to_string(seed) + " rma_test --gtest_filter=" +
           testing::UnitTest::GetInstance()->current_test_info()->test_suite_name() + "." +
           testing::UnitTest::GetInstance()->current_test_info()->name() + "; " + net.wrong_text;
}

// Property: with 1 to 4 ways, channels stay in order and their content is right, whatever order the
// writes arrive in. Method: random traffic; each message is compared.
TEST(Rma, OrderAndContent)
{
    for (uint64_t seed : seeds(25)) {
        FakeNet net(seed);
        net.ways = 1 + (unsigned)(seed % 4);
        net.inline_bytes = seed % 3 ? 64 : 0;
        net.depth = 1 + (unsigned)(seed % 7) * 4;
        {
            Pair pair(net);
            ASSERT_TRUE(pair.connect()) << replay(seed, net);
            ASSERT_TRUE(pair.run(400)) << replay(seed, net);
            ASSERT_TRUE(pair.drain()) << replay(seed, net);
            ASSERT_TRUE(pair.turn_until([&] {
                pair.release_one();
                return pair.held.empty() && pair.ab->ops->drained(pair.ab);
            })) << replay(seed, net);
            EXPECT_TRUE(pair.turn_until([&] { return pair.ab->ops->flushed(pair.ab); }))
                << replay(seed, net);
        }
        ASSERT_EQ(net.wrong, 0u) << replay(seed, net);
        ASSERT_TRUE(net.all.empty()) << "ways were left open; " << replay(seed, net);
    }
}

// Property: ways break at any write and at any time, on one side or both; what is missing is
// written again, once, and ways are used again. Method: as above; a way breaks now and then, never
// the last.
TEST(Rma, WaysBreak)
{
    for (uint64_t seed : seeds(50)) {
        FakeNet net(seed);
        net.ways = 2 + (unsigned)(seed % 3);
        unsigned breaks = 0;
        {
            Pair pair(net);
            ASSERT_TRUE(pair.connect()) << replay(seed, net);
            auto some_break = [&] {
                if (net.below(400))
                    return;
                std::map<ft_fabric *, unsigned> well;
                for (auto &w : net.all)
                    well[w.second->base.fabric] += !w.second->broken && !w.second->stopping &&
                                                   w.second->peer;
                bool enough = well.size() == 2;
                for (auto &w : well)
                    enough &= w.second == net.ways;
                if (!enough)
                    return;
                auto at = net.all.begin();
                std::advance(at, net.below((unsigned)net.all.size()));
                net.break_way(at->second);
                breaks++;
                net.now_ns += 2000000000; // it is opened again soon
            };
            ASSERT_TRUE(pair.run(1500, some_break)) << replay(seed, net);
            ASSERT_TRUE(pair.drain()) << replay(seed, net);
            EXPECT_GT(breaks, 0u) << replay(seed, net);
        }
        ASSERT_EQ(net.wrong, 0u) << replay(seed, net);
        ASSERT_TRUE(net.all.empty()) << "ways were left open; " << replay(seed, net);
    }
}

// Property: when all ways are lost, both sides see the link DOWN, not orderly and without proof,
// and can connect again.
TEST(Rma, AllWaysLost)
{
    for (uint64_t seed : seeds(40)) {
        FakeNet net(seed);
        Pair pair(net);
        ASSERT_TRUE(pair.connect()) << replay(seed, net);
        ASSERT_TRUE(pair.run(50)) << replay(seed, net);
        for (FakeWay *w : net.ways_of())
            net.break_way(w);
        ASSERT_TRUE(pair.turn_until([&] {
            return pair.ab->state == FT_LINK_DOWN && pair.ba->state == FT_LINK_DOWN;
        })) << replay(seed, net);
        EXPECT_EQ(pair.ab->reason, FT_LINK);
        EXPECT_FALSE(pair.ab->orderly || pair.ba->orderly || pair.ab->proof || pair.ba->proof);
        while (!pair.held.empty())
            pair.release_one();
        pair.a->t->ops->disconnect(pair.ab);
        pair.b->t->ops->disconnect(pair.ba);
        pair.ab = pair.ba = nullptr;
        pair.sent.clear();
        pair.nsent = pair.ntaken = 0;
        ASSERT_TRUE(pair.connect()) << replay(seed, net);
        ASSERT_TRUE(pair.run(50)) << replay(seed, net);
        ASSERT_EQ(net.wrong, 0u) << replay(seed, net);
    }
}

// Property: a goodbye of the sender comes after all its messages; the link is orderly, and its ways
// and memory end although nobody waits.
TEST(Rma, GoodbyeComesLast)
{
    for (uint64_t seed : seeds(25)) {
        FakeNet net(seed);
        Pair pair(net);
        ASSERT_TRUE(pair.connect()) << replay(seed, net);
        ASSERT_TRUE(pair.run(30)) << replay(seed, net);
        pair.a->t->ops->disconnect(pair.ab);
        ASSERT_TRUE(pair.turn_until([&] { return pair.ba->state == FT_LINK_DOWN; }));
        EXPECT_TRUE(pair.ba->orderly) << replay(seed, net);
        ASSERT_TRUE(pair.drain()) << pair.ntaken << " of " << pair.nsent << "; "
                                  << replay(seed, net);
        while (!pair.held.empty())
            pair.release_one();
        pair.b->t->ops->disconnect(pair.ba);
        ASSERT_TRUE(pair.turn_until([&] { return net.all.empty(); })) << replay(seed, net);
        ASSERT_EQ(net.wrong, 0u) << replay(seed, net);
    }
}

// Property: a goodbye of the receiver ends the sender's link, and a killed side ends the other's,
// not orderly; messages that came before can still be received.
TEST(Rma, OtherEnds)
{
    for (uint64_t seed : seeds(25)) {
        FakeNet net(seed);
        Pair pair(net);
        ASSERT_TRUE(pair.connect()) << replay(seed, net);
        ASSERT_TRUE(pair.run(30)) << replay(seed, net);
        while (!pair.held.empty())
            pair.release_one();
        if (seed % 2) {
            pair.b->t->ops->disconnect(pair.ba);
            ASSERT_TRUE(pair.turn_until([&] { return pair.ab->state == FT_LINK_DOWN; }));
            EXPECT_TRUE(pair.ab->orderly) << replay(seed, net);
        } else {
            fake_side_kill(pair.a->id);
            ASSERT_TRUE(pair.turn_until([&] { return pair.ba->state == FT_LINK_DOWN; }));
            EXPECT_FALSE(pair.ba->orderly || pair.ba->proof) << replay(seed, net);
            ft_msg msg;
            for (int i = 0; i < 100; i++)
                pair.try_recv();
            while (!pair.held.empty())
                pair.release_one();
            EXPECT_EQ(pair.ba->ops->recv(pair.ba, 99, 0, &msg), FT_LINK);
            pair.b->t->ops->disconnect(pair.ba);
        }
        pair.ba = nullptr;
        ASSERT_EQ(net.wrong, 0u) << replay(seed, net);
    }
}

// Property P5: a writer is held in the middle of its writes and excluded. When its memory has been
// freed, a pattern fills it; the writer goes on, and not a byte changes.
TEST(Rma, FencedWriterChangesNothing)
{
    for (uint64_t seed : seeds(25)) {
        FakeNet net(seed);
        Pair pair(net);
        ASSERT_TRUE(pair.connect()) << replay(seed, net);
        ASSERT_TRUE(pair.run(20)) << replay(seed, net);
        while (!pair.held.empty())
            pair.release_one();
        ft_fabric *writer = nullptr;
        std::map<void *, size_t> memory;
        for (FakeWay *w : net.ways_of())
            if (w->base.user == (void *)pair.ab)
                writer = w->base.fabric;
            else
                memory[w->into->base.at] = w->into->base.len_bytes;
        net.held = [&](FakeWay *w) { return w->base.fabric == writer && !net.spoil; };
        for (int i = 0; i < 40; i++)
            pair.try_send();
        size_t waits = 0;
        for (FakeWay *w : net.ways_of())
            waits += w->base.fabric == writer ? w->out.size() : 0;
        EXPECT_GT(waits, 0u);
        pair.ba->cut = true;
        pair.b->t->ops->disconnect(pair.ba);
        pair.ba = nullptr;
        // The writer hears nothing of it: only b turns, until it has freed the memory.
        auto mapped = [&] {
            unsigned char in;
            for (auto &m : memory)
                if (mincore(m.first, 4096, &in) == 0)
                    return true;
            return false;
        };
        for (int i = 0; i < 100000 && mapped(); i++) {
            net.step();
            pair.b->poll();
        }
        ASSERT_FALSE(mapped()) << "the memory was not freed; " << replay(seed, net);
        for (auto &m : memory) {
            void *at = mmap(m.first, m.second, PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
            ASSERT_EQ(at, m.first);
            memset(at, 0x5a, m.second);
        }
        net.held = nullptr;
        for (int i = 0; i < 20000; i++)
            pair.turn();
        for (auto &m : memory) {
            for (size_t i = 0; i < m.second; i++)
                ASSERT_EQ(((unsigned char *)m.first)[i], 0x5a) << replay(seed, net);
            munmap(m.first, m.second);
        }
        ASSERT_EQ(net.wrong, 0u) << replay(seed, net);
    }
}

// Property: whatever is wrong in an immediate, a turn, a length or a line, the link goes DOWN with
// FT_PROTOCOL, and nothing else happens. Method: one write of a schedule is changed.
TEST(Rma, LiesAreProtocolErrors)
{
    unsigned caught = 0;
    for (uint64_t seed : seeds(100)) {
        FakeNet net(seed);
        Pair pair(net);
        ASSERT_TRUE(pair.connect()) << replay(seed, net);
        ASSERT_TRUE(pair.run(30)) << replay(seed, net);
        bool spoilt = false;
        net.spoil = [&](FakeWay *, uint32_t *immediate, std::string *bytes, size_t *) {
            if (spoilt || net.below(5) || *immediate == UINT32_MAX)
                return;
            spoilt = true;
            uint32_t *words = (uint32_t *)(void *)&(*bytes)[0];
            switch (net.below(4)) {
            case 0:
                *immediate = (uint32_t)net.random() & 0x7fffffff;
                break;
            case 1: // the turn, at the end of a message's descriptor and at the start of a line
                words[0] += 0x10000;
                words[15] += 0x10000;
                break;
            case 2: // the length, or a line's places
                words[5] = words[2] = 0xffffffff;
                words[1] = 0xff;
                break;
            default: // the lane, or a place
                words[6] |= 0x4000;
                words[3] = words[2] = 0x7fff7fff;
                words[1] |= 12;
            }
        };
        pair.turn_until(
            [&] {
                if (!pair.is_down()) {
                    ft_header h;
                    memset(&h, 0, sizeof h);
                    h.ctx = 1;
                    ft_send req;
                    memset(&req, 0, sizeof req);
                    ft_msg msg;
                    (void)pair.ab->ops->send(pair.ab, &h, "", &req);
                    if (pair.ba->ops->recv(pair.ba, 1, 0, &msg) == FT_OK)
                        pair.ba->ops->release(pair.ba, &msg);
                }
                return pair.ab->state == FT_LINK_DOWN && pair.ba->state == FT_LINK_DOWN;
            },
            100000);
        caught += pair.ab->reason == FT_PROTOCOL || pair.ba->reason == FT_PROTOCOL;
        EXPECT_TRUE(pair.is_down()) << "nobody noticed; " << replay(seed, net);
        ASSERT_EQ(net.wrong, 0u) << replay(seed, net);
    }
    EXPECT_GT(caught, 0u);
}

// Property: messages over the side connection that fit no state are protocol errors.
TEST(Rma, LiesOverTheSideConnection)
{
    for (uint64_t seed : seeds(60)) {
        FakeNet net(seed);
        Pair pair(net);
        ASSERT_TRUE(pair.connect()) << replay(seed, net);
        ASSERT_TRUE(pair.run(10)) << replay(seed, net);
        std::string data(net.below(300), 0);
        for (auto &c : data)
            c = (char)net.below(4);
        fake_side_inject(1 + seed % 2, net.below(9), data);
        pair.turn_until([&] { return pair.is_down(); }, 3000);
        if (!pair.is_down()) {
            EXPECT_TRUE(pair.run(50)) << replay(seed, net);
        }
        ASSERT_EQ(net.wrong, 0u) << replay(seed, net);
    }
}

// Property: a link that cannot be made is DOWN with a reason: no memory, no ways, nobody there.
TEST(Rma, LinkThatCannotBeMade)
{
    for (int which = 0; which < 3; which++) {
        FakeNet net(1);
        Pair pair(net);
        net.refuse_opens = which == 0;
        net.fail_reg = which == 1 ? FT_NOMEM : FT_OK;
        if (which == 2)
            pair.b->close();
        char buf[FT_ADDRESS_BYTES] = {4, 'f', 'a', 'k', 'e', 2};
        ASSERT_EQ(pair.a->t->ops->connect(pair.a->t, 2, buf, 13, &pair.ab), FT_OK);
        for (int i = 0; i < 100000 && pair.ab->state != FT_LINK_DOWN; i++) {
            net.step();
            pair.a->poll();
            if (pair.b->t)
                pair.b->poll();
        }
        EXPECT_EQ(pair.ab->state, FT_LINK_DOWN);
        EXPECT_EQ(pair.ab->reason, which == 1 ? FT_NOMEM : FT_LINK);
        EXPECT_TRUE(pair.a->has(ft_event::FT_EVENT_DOWN, pair.ab));
        EXPECT_EQ(net.wrong, 0u) << net.wrong_text;
    }
}

// Property: a channel that nobody reads does not delay others: slots that its messages fill are
// given back.
TEST(Rma, UnreadChannelDelaysNobody)
{
    for (uint64_t seed : seeds(10)) {
        FakeNet net(seed);
        Pair pair(net, 4096, 4);
        ASSERT_TRUE(pair.connect());
        std::string text(4096, 'x');
        ft_header h;
        ft_send req;
        memset(&h, 0, sizeof h);
        memset(&req, 0, sizeof req);
        h.len = 4096;
        auto send = [&](uint64_t ctx) {
            h.ctx = ctx;
            return pair.ab->ops->send(pair.ab, &h, text.data(), &req) == FT_OK;
        };
        for (uint64_t ctx = 1; ctx < 4; ctx++)
            for (int i = 0; i < FT_WINDOW_FIRST; i++)
                ASSERT_TRUE(pair.turn_until([&] { return send(ctx); })) << replay(seed, net);
        ASSERT_TRUE(pair.turn_until([&] { return send(4); })) << replay(seed, net);
        ft_msg msg;
        ASSERT_TRUE(pair.turn_until([&] {
            return pair.ba->ops->recv(pair.ba, 4, 0, &msg) == FT_OK;
        })) << replay(seed, net);
        EXPECT_EQ(std::string((const char *)msg.data, msg.header.len), text);
        pair.ba->ops->release(pair.ba, &msg);
    }
}

// Property: a receiver that leaves with unread messages does not touch them while it says goodbye.
// AddressSanitizer sees it.
TEST(Rma, UnreadMessagesEndWithTheirLink)
{
    for (uint64_t seed : seeds(10)) {
        FakeNet net(seed);
        Pair pair(net, 4096, 4);
        ASSERT_TRUE(pair.connect());
        std::string text(4096, 'x');
        ft_header h;
        ft_send req;
        memset(&h, 0, sizeof h);
        memset(&req, 0, sizeof req);
        h.len = 4096;
        h.ctx = 1;
        auto sent = [&] { return pair.ab->ops->send(pair.ab, &h, text.data(), &req) == FT_OK; };
        for (int i = 0; i < FT_WINDOW_FIRST; i++)
            ASSERT_TRUE(pair.turn_until(sent)) << replay(seed, net);
        ASSERT_TRUE(pair.turn_until([&] { return pair.ba->messages == FT_WINDOW_FIRST; }))
            << replay(seed, net);
        pair.ba->ops->disconnect(pair.ba);
        pair.ba = nullptr;
        pair.b->t->ops->arm(pair.b->t, true);
        pair.b->t->ops->arm(pair.b->t, false);
        EXPECT_TRUE(pair.turn_until([&] { return pair.ab->state == FT_LINK_DOWN; }))
            << replay(seed, net);
    }
}

int main(int argc, char **argv)
{
    setenv("FTCCL_DEBUG", "NONE", 0);
    testing::InitGoogleTest(&argc, argv);
    return RUN_ALL_TESTS();
}

// Links over a fabric: order and content under random schedules, ends of links, the fence, and
// peers that lie. Everything runs over the fake fabric of fake.h. Ways that break: ways_test.cc.
#include "tests/rma/pair.h"

#include <sys/mman.h>

// Property: with 1 to 4 ways, channels stay in order and their content is right, whatever order the
// writes arrive in. Method: random traffic; each message is compared.
TEST(Rma, OrderAndContent)
{
    auto prepare = [](FakeNet &net, uint64_t seed) {
        net.ways = 1 + (unsigned)(seed % 4);
        net.inline_bytes = seed % 3 ? 64 : 0;
        net.depth = 1 + (unsigned)(seed % 7) * 4;
    };
    each_seed({25, 400, 2, prepare}, [](FakeNet &, Pair &pair) {
        ASSERT_TRUE(pair.drain());
        ASSERT_TRUE(pair.turn_until([&] {
            pair.release_one();
            return pair.held.empty() && pair.ab->ops->drained(pair.ab);
        }));
        EXPECT_TRUE(pair.turn_until([&] { return pair.ab->ops->flushed(pair.ab); }));
    });
}

// Property: a goodbye of the sender comes after all its messages; the link is orderly, and its ways
// and memory end although nobody waits.
TEST(Rma, GoodbyeComesLast)
{
    each_seed({25, 30}, [](FakeNet &net, Pair &pair) {
        ASSERT_TRUE(pair.settle());
        pair.leave();
        ASSERT_TRUE(pair.turn_until([&] { return pair.ba->state == FT_LINK_DOWN; }));
        EXPECT_TRUE(pair.ba->orderly);
        ASSERT_TRUE(pair.drain()) << pair.ntaken << " of " << pair.nsent;
        pair.release_all();
        pair.b->t->ops->disconnect(pair.ba);
        ASSERT_TRUE(pair.turn_until([&] { return net.all.empty(); }));
    });
}

// Property: a departure is one, also if the loss of the ways is noticed before the goodbye is here.
TEST(Rma, GoodbyeAfterTheLossOfAllWays)
{
    each_seed({25, 30}, [](FakeNet &net, Pair &pair) {
        ASSERT_TRUE(pair.drain() && pair.settle());
        net.side_held = true;
        pair.leave();
        for (FakeWay *w : net.ways_of())
            net.break_way(w);
        for (int i = 0; i < 2000; i++)
            pair.turn();
        EXPECT_NE(pair.ba->state, FT_LINK_DOWN);
        net.side_held = false;
        ASSERT_TRUE(pair.turn_until([&] { return pair.ba->state == FT_LINK_DOWN; }));
        EXPECT_TRUE(pair.ba->orderly);
    });
}

// Property: a goodbye of the receiver ends the sender's link, and a killed side ends the other's,
// not orderly; messages that came before can still be received.
TEST(Rma, OtherEnds)
{
    unsigned which = 0;
    each_seed({25, 30}, [&](FakeNet &, Pair &pair) {
        pair.release_all();
        if (which++ % 2) {
            pair.b->t->ops->disconnect(pair.ba);
            ASSERT_TRUE(pair.turn_until([&] { return pair.ab->state == FT_LINK_DOWN; }));
            EXPECT_TRUE(pair.ab->orderly);
        } else {
            fake_side_kill(pair.a->id);
            ASSERT_TRUE(pair.turn_until([&] { return pair.ba->state == FT_LINK_DOWN; }));
            EXPECT_FALSE(pair.ba->orderly || pair.ba->proof);
            ft_msg msg;
            for (int i = 0; i < 100; i++)
                pair.try_recv();
            pair.release_all();
            EXPECT_EQ(pair.ba->ops->recv(pair.ba, 99, 0, &msg), FT_LINK);
            pair.b->t->ops->disconnect(pair.ba);
        }
        pair.ba = nullptr;
    });
}

// Property: a sender hears at once that its peer is gone, before its ways are stopped; they and
// their memory end in the background.
TEST(Rma, ASenderKnowsBeforeItsWaysAreStopped)
{
    each_seed({10, 30}, [](FakeNet &net, Pair &pair) {
        ASSERT_TRUE(pair.settle());
        fake_side_kill(pair.b->id);
        for (int i = 0; i < 10000 && pair.ab->state != FT_LINK_DOWN; i++) {
            fake_side_step(net);
            pair.a->poll();
        }
        EXPECT_TRUE(pair.a->has(ft_event::FT_EVENT_DOWN, pair.ab));
        EXPECT_EQ(net.all.size(), 2 * net.ways) << "they cannot have been stopped";
        pair.leave();
        pair.release_all();
        pair.b->t->ops->disconnect(pair.ba);
        pair.ba = nullptr;
        EXPECT_TRUE(pair.turn_until([&] { return net.all.empty(); }));
    });
}

// Property: a send from memory of the user is pending until its write has ended or its way is
// stopped, also if the peer has long returned the place: a device may repeat what has arrived.
TEST(Rma, AReturnDoesNotGiveMemoryBack)
{
    unsigned which = 0;
    each_seed({20, 20}, [&](FakeNet &net, Pair &pair) {
        ASSERT_TRUE(pair.settle() && pair.drain());
        pair.release_all();
        net.unended = true;
        ft_header h;
        memset(&h, 0, sizeof h);
        h.ctx = 1;
        const std::string text(pair.chunk_bytes, 't');
        h.len = (uint32_t)text.size();
        ASSERT_EQ(pair.try_lend(h, text), FT_OK);
        pair.sent[{1, 0}].push_back(text);
        pair.nsent++;
        ASSERT_TRUE(pair.drain());
        pair.release_all();
        ASSERT_TRUE(pair.turn_until([&] { return pair.ab->ops->drained(pair.ab); }));
        for (int i = 0; i < 100; i++)
            pair.turn();
        ASSERT_EQ(pair.lent.size(), 1u);
        net.unended = false;
        if (which++ % 2)
            for (FakeWay *w : net.ways_of())
                if (!w->out.empty())
                    net.break_way(w);
        ASSERT_TRUE(pair.settle());
    });
}

// Property: memory of sends that are pending is the user's again after disconnect: it changes, and
// no message of other bytes arrives.
TEST(Rma, DisconnectGivesMemoryBack)
{
    unsigned pending = 0;
    each_seed({60, 40}, [&](FakeNet &, Pair &pair) {
        for (int i = 0; i < 40; i++)
            pair.try_send();
        for (auto &l : pair.lent)
            pending += l.req.status == FT_AGAIN;
        pair.leave();
        for (auto &l : pair.lent)
            EXPECT_NE(l.req.status, FT_AGAIN);
        pair.take_back_lent();
        ASSERT_TRUE(pair.turn_until([&] { return pair.ba->state == FT_LINK_DOWN; }));
        for (int i = 0; i < 1000; i++)
            pair.try_recv();
    });
    EXPECT_TRUE(pending > 10 || one_seed_only());
}

// Regions that the writer's ways write into, and the writer's fabric.
static std::map<void *, size_t> written_memory(FakeNet &net, const Pair &pair, ft_fabric **writer)
{
    std::map<void *, size_t> memory;
    for (FakeWay *w : net.ways_of())
        if (w->base.user == (void *)pair.ab)
            *writer = w->base.fabric;
        else
            memory[w->into->base.at] = w->into->base.len_bytes;
    return memory;
}

static bool any_mapped(const std::map<void *, size_t> &memory)
{
    unsigned char in;
    for (auto &m : memory)
        if (mincore(m.first, 4096, &in) == 0)
            return true;
    return false;
}

// Property P5: a writer is held in the middle of its writes and excluded. When its memory has been
// freed, a pattern fills it; the writer goes on, and not a byte changes.
TEST(Rma, FencedWriterChangesNothing)
{
    each_seed({25, 20}, [](FakeNet &net, Pair &pair) {
        pair.release_all();
        ft_fabric *writer = nullptr;
        const auto memory = written_memory(net, pair, &writer);
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
        for (int i = 0; i < 100000 && any_mapped(memory); i++) {
            net.step();
            pair.b->poll();
        }
        ASSERT_FALSE(any_mapped(memory)) << "the memory was not freed";
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
                ASSERT_EQ(((unsigned char *)m.first)[i], 0x5a);
            munmap(m.first, m.second);
        }
    });
}

// Changes one write of a schedule: an immediate, a turn, a length or a line.
static void spoil(FakeNet &net, uint32_t *immediate, std::string *bytes)
{
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
}

// Property: whatever is wrong in an immediate, a turn, a length or a line, the link goes DOWN with
// FT_PROTOCOL, and nothing else happens. Method: one write of a schedule is changed.
TEST(Rma, LiesAreProtocolErrors)
{
    unsigned caught = 0;
    each_seed({100, 30}, [&](FakeNet &net, Pair &pair) {
        bool spoilt = false;
        net.spoil = [&](FakeWay *, uint32_t *immediate, std::string *bytes, size_t *) {
            if (spoilt || net.below(5) || bytes->empty())
                return;
            spoilt = true;
            spoil(net, immediate, bytes);
        };
        pair.turn_until(
            [&] {
                ft_msg msg;
                if (!pair.is_down()) {
                    (void)pair.send(1, "");
                    if (pair.ba->ops->recv(pair.ba, 1, 0, &msg) == FT_OK)
                        pair.ba->ops->release(pair.ba, &msg);
                }
                return pair.ab->state == FT_LINK_DOWN && pair.ba->state == FT_LINK_DOWN;
            },
            100000);
        caught += pair.ab->reason == FT_PROTOCOL || pair.ba->reason == FT_PROTOCOL;
        EXPECT_TRUE(pair.is_down()) << "nobody noticed";
    });
    EXPECT_GT(caught, 0u);
}

// Property: messages over the side connection that fit no state are protocol errors.
TEST(Rma, LiesOverTheSideConnection)
{
    each_seed({60, 10}, [](FakeNet &net, Pair &pair) {
        std::string data(net.below(300), 0);
        for (auto &c : data)
            c = (char)net.below(4);
        fake_side_inject(1 + net.below(2), net.below(9), data);
        pair.turn_until([&] { return pair.is_down(); }, 3000);
        if (!pair.is_down()) {
            EXPECT_TRUE(pair.run(50));
        }
    });
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
    const std::string text(4096, 'x');
    each_seed({10, 0, 4}, [&](FakeNet &, Pair &pair) {
        for (uint64_t ctx = 1; ctx < 4; ctx++)
            for (int i = 0; i < FT_WINDOW_FIRST; i++)
                ASSERT_TRUE(pair.turn_until([&] { return pair.send(ctx, text) == FT_OK; }));
        ASSERT_TRUE(pair.turn_until([&] { return pair.send(4, text) == FT_OK; }));
        ft_msg msg;
        ASSERT_TRUE(
            pair.turn_until([&] { return pair.ba->ops->recv(pair.ba, 4, 0, &msg) == FT_OK; }));
        EXPECT_EQ(std::string((const char *)msg.data, msg.header.len), text);
        pair.ba->ops->release(pair.ba, &msg);
    });
}

// Property: thousands of small messages that nobody has read can be read at once: what returns
// their windows waits until the sender has handled what was returned before. Contexts that are
// unbound meanwhile are returned, too.
TEST(Rma, ManyUnreadMessagesAreReturned)
{
    const size_t contexts = 60;
    each_seed({3, 0, contexts}, [&](FakeNet &, Pair &pair) {
        for (uint64_t ctx = 1; ctx <= contexts; ctx++)
            for (int i = 0; i < FT_WINDOW_SMALL; i++)
                ASSERT_TRUE(pair.turn_until([&] { return pair.send(ctx, "small") == FT_OK; }));
        ASSERT_TRUE(
            pair.turn_until([&] { return pair.ba->messages == contexts * FT_WINDOW_SMALL; }));
        // The receiver alone: one message of each channel in turn.
        ft_msg msg;
        for (int i = 0; i < FT_WINDOW_SMALL - 8; i++)
            for (uint64_t ctx = 1; ctx <= contexts; ctx++) {
                ASSERT_EQ(pair.ba->ops->recv(pair.ba, ctx, 0, &msg), FT_OK);
                pair.ba->ops->release(pair.ba, &msg);
            }
        for (uint64_t ctx = 1; ctx <= contexts; ctx++)
            pair.b->t->ops->unbind(pair.b->t, ctx);
        EXPECT_TRUE(pair.turn_until([&] { return pair.ab->ops->drained(pair.ab); }));
        EXPECT_FALSE(pair.is_down());
        EXPECT_TRUE(pair.turn_until([&] { return pair.send(1, "again") == FT_OK; }));
    });
}

// Property: a receiver that leaves with unread messages does not touch them while it says goodbye.
// AddressSanitizer sees it.
TEST(Rma, UnreadMessagesEndWithTheirLink)
{
    const std::string text(4096, 'x');
    each_seed({10, 0}, [&](FakeNet &, Pair &pair) {
        for (int i = 0; i < FT_WINDOW_FIRST; i++)
            ASSERT_TRUE(pair.turn_until([&] { return pair.send(1, text) == FT_OK; }));
        ASSERT_TRUE(pair.turn_until([&] { return pair.ba->messages == FT_WINDOW_FIRST; }));
        pair.ba->ops->disconnect(pair.ba);
        pair.ba = nullptr;
        pair.b->t->ops->arm(pair.b->t, true);
        pair.b->t->ops->arm(pair.b->t, false);
        EXPECT_TRUE(pair.turn_until([&] { return pair.ab->state == FT_LINK_DOWN; }));
    });
}

int main(int argc, char **argv)
{
    setenv("FTCCL_DEBUG", "NONE", 0);
    testing::InitGoogleTest(&argc, argv);
    return RUN_ALL_TESTS();
}

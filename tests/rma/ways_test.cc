// Ways of links: they break at any write, are opened again, ever later, and all of them may be
// lost. Everything runs over the fake fabric of fake.h.
#include "tests/rma/pair.h"

static void set_ways(FakeNet &net, uint64_t seed)
{
    net.ways = 2 + (unsigned)(seed % 3);
}

extern "C" unsigned rma_ways_ready(const struct rma_link *);

static unsigned ready(const ft_link *l)
{
    return rma_ways_ready((const struct rma_link *)(const void *)l);
}

// Whether all ways of both sides carry messages.
static bool all_well(const FakeNet &net, const Pair &pair)
{
    for (auto &w : net.all)
        if (w.second->broken || w.second->stopping)
            return false;
    return ready(pair.ab) == net.ways && ready(pair.ba) == net.ways;
}

// Property: ways break at any write and at any time, on one side or both; what is missing is
// written again, once, and ways are used again. Method: random traffic that is compared; a way
// breaks now and then, never the last.
TEST(RmaWays, Break)
{
    each_seed({50, 0, 2, set_ways}, [](FakeNet &net, Pair &pair) {
        unsigned breaks = 0;
        auto some_break = [&] {
            if (net.below(400) || !all_well(net, pair))
                return;
            auto at = net.all.begin();
            std::advance(at, net.below((unsigned)net.all.size()));
            net.break_way(at->second);
            breaks++;
            net.now_ns += 2000000000; // it is opened again soon
        };
        ASSERT_TRUE(pair.run(1500, some_break));
        ASSERT_TRUE(pair.drain());
        EXPECT_GT(breaks, 0u);
    });
}

// Property: when all ways are lost, both sides see the link DOWN, not orderly and without proof,
// and can connect again.
TEST(RmaWays, AllLost)
{
    each_seed({40, 50}, [](FakeNet &net, Pair &pair) {
        for (FakeWay *w : net.ways_of())
            net.break_way(w);
        ASSERT_TRUE(pair.turn_until(
            [&] { return pair.ab->state == FT_LINK_DOWN && pair.ba->state == FT_LINK_DOWN; }));
        EXPECT_EQ(pair.ab->reason, FT_LINK);
        EXPECT_FALSE(pair.ab->orderly || pair.ba->orderly || pair.ab->proof || pair.ba->proof);
        pair.release_all();
        pair.leave();
        pair.b->t->ops->disconnect(pair.ba);
        pair.ba = nullptr;
        pair.sent.clear();
        pair.nsent = pair.ntaken = 0;
        ASSERT_TRUE(pair.connect());
        ASSERT_TRUE(pair.run(50));
    });
}

// The first way of side a.
static FakeWay *first_way(FakeNet &net, const Pair &pair)
{
    for (FakeWay *w : net.ways_of())
        if (w->base.user == (void *)pair.ab)
            return w;
    return nullptr;
}

static bool turn_for(FakeNet &net, Pair &pair, uint64_t step_ns,
                     const std::function<bool()> &condition)
{
    return pair.turn_until(
        [&] {
            net.now_ns += step_ns;
            return condition();
        },
        100000);
}

// Property: a way that cannot be opened again is tried ever later, after 64 times RAIL_RETRY_MS at
// the latest, and soon again once it was ready.
TEST(RmaWays, AreTriedEverLater)
{
    const uint64_t ms = 1000000, retry = 1000 * ms;
    each_seed({5, 20}, [&](FakeNet &net, Pair &pair) {
        net.refuse_opens = true;
        net.opens.clear();
        net.break_way(first_way(net, pair));
        ASSERT_TRUE(turn_for(net, pair, 10 * ms, [&] { return net.opens.size() == 9; }));
        for (size_t i = 1; i < net.opens.size(); i++) {
            const uint64_t waited = net.opens[i] - net.opens[i - 1];
            const uint64_t due = retry << std::min<size_t>(i, 6);
            EXPECT_GE(waited, due) << i;
            EXPECT_LT(waited, due + 200 * ms) << i;
        }
        net.refuse_opens = false;
        ASSERT_TRUE(turn_for(net, pair, 10 * ms, [&] { return all_well(net, pair); }));
        ASSERT_TRUE(pair.run(50));
        net.opens.clear();
        const uint64_t begin = net.now_ns;
        net.break_way(first_way(net, pair));
        ASSERT_TRUE(turn_for(net, pair, 10 * ms, [&] { return !net.opens.empty(); }));
        EXPECT_LT(net.opens[0] - begin, 2 * retry);
    });
}

// Property: a way that is lost before the other side has heard that it was opened is opened again
// under the same number; the other side never hears of the lost one.
TEST(RmaWays, AreLostBeforeTheOtherSideKnows)
{
    const uint64_t ms = 1000000;
    each_seed({20, 20}, [&](FakeNet &net, Pair &pair) {
        net.break_way(first_way(net, pair));
        ASSERT_TRUE(pair.turn_until([&] { return net.all.size() == 2; }));
        net.side_full = true;
        net.opens.clear();
        ASSERT_TRUE(turn_for(net, pair, 10 * ms, [&] { return !net.opens.empty(); }));
        for (FakeWay *w : net.ways_of())
            if (!w->peer)
                net.break_way(w);
        ASSERT_TRUE(pair.turn_until([&] { return net.all.size() == 2; }));
        net.side_full = false;
        ASSERT_TRUE(turn_for(net, pair, 10 * ms, [&] { return all_well(net, pair); }));
        EXPECT_FALSE(pair.is_down());
        ASSERT_TRUE(pair.run(100));
    });
}

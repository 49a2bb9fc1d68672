// Allocation of paths: links carry alike, also when hosts come and go; bad links and links that are
// out carry nothing; ports of a host do not cross; what a connection holds it keeps.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <vector>

extern "C" {
#include "path/allocate.h"
}

namespace
{

using Ip = std::vector<unsigned char>;
using Way = std::vector<Ip>;

// A router's address, or that of its interface to another one.
Ip router(int kind, int n, int interface = 0)
{
    Ip ip(16);
    ip[0] = static_cast<unsigned char>(kind);
    ip[1] = static_cast<unsigned char>(n);
    ip[2] = static_cast<unsigned char>(interface);
    return ip;
}

enum { LEAF = 1, SPINE = 2 };

class Allocate : public testing::Test
{
  protected:
    void SetUp() override
    {
        allocator = ft_allocator_open(moved, this);
        ASSERT_NE(allocator, nullptr);
    }
    void TearDown() override
    {
        ft_allocator_close(allocator);
    }

    static void moved(void *arg, ft_ways *ways, uint64_t connection, int way)
    {
        auto *self = static_cast<Allocate *>(arg);
        self->moves++;
        self->way_of[{ways, connection}] = way;
    }

    ft_ways *open(const std::vector<Way> &ways, uint64_t owner = 0)
    {
        std::vector<unsigned char> bytes;
        for (const Way &way : ways)
            for (const Ip &ip : way)
                bytes.insert(bytes.end(), ip.begin(), ip.end());
        ft_ways *out = nullptr;
        ft_ways_config config = {owner,
                                 static_cast<int>(ways.size()),
                                 static_cast<int>(ways[0].size()),
                                 bytes.data(),
                                 this,
                                 nullptr,
                                 nullptr};
        EXPECT_EQ(ft_ways_open(allocator, &config, &out), FT_OK);
        return out;
    }

    // From one leaf to another over all spines. by_interface: routers answer by the interface at
    // which the packet came in.
    ft_ways *between(int from, int to, int spines, bool by_interface = false, uint64_t owner = 0)
    {
        std::vector<Way> ways;
        for (int s = 0; s < spines; s++)
            ways.push_back(
                by_interface
                    ? Way{router(LEAF, from, 200), router(SPINE, s, from), router(LEAF, to, s)}
                    : Way{router(LEAF, from), router(SPINE, s), router(LEAF, to)});
        return open(ways, owner);
    }

    // A leaf that is seen at both ends says so.
    void routers_have_one_address()
    {
        between(90, 91, 1);
        between(91, 90, 1);
    }

    int take(ft_ways *ways, uint64_t connection, int held = -1)
    {
        int way = -2;
        EXPECT_EQ(ft_ways_take(ways, connection, held, &way), FT_OK);
        way_of[{ways, connection}] = way;
        return way;
    }

    std::vector<int> loads(const Ip &from) const
    {
        std::vector<int> out;
        for (int i = 0; i < ft_allocator_links(allocator); i++) {
            const ft_allocator_link link = ft_allocator_link_at(allocator, i);
            if (std::equal(from.begin(), from.end(), link.from))
                out.push_back(link.connections);
        }
        return out;
    }

    int carried_to(const Ip &to) const
    {
        int all = 0;
        for (int i = 0; i < ft_allocator_links(allocator); i++) {
            const ft_allocator_link link = ft_allocator_link_at(allocator, i);
            if (std::equal(to.begin(), to.end(), link.to))
                all += link.connections;
        }
        return all;
    }

    static int spread(const std::vector<int> &n)
    {
        return *std::max_element(n.begin(), n.end()) - *std::min_element(n.begin(), n.end());
    }

    ft_allocator *allocator = nullptr;
    int moves = 0;
    std::map<std::pair<ft_ways *, uint64_t>, int> way_of;
};

TEST_F(Allocate, ConnectionsOfALeafUseAllSpinesAlike)
{
    routers_have_one_address();
    std::vector<ft_ways *> pair;
    for (int host = 0; host < 6; host++) {
        pair.push_back(between(0, 1 + host % 3, 4));
        for (uint64_t c = 0; c < 3; c++)
            take(pair.back(), c);
    }
    EXPECT_LE(spread(loads(router(LEAF, 0))), 1); // 18 over 4
    for (int s = 0; s < 4; s++)
        EXPECT_LE(spread(loads(router(SPINE, s))), 2); // 4 or 5 over 3 leaves
}

TEST_F(Allocate, RoutersThatAnswerByInterfaceAreCountedByIt)
{
    ft_ways *a = between(0, 1, 4, true), *b = between(0, 2, 4, true);
    for (uint64_t c = 0; c < 2; c++) {
        take(a, c);
        take(b, c);
    }
    for (int s = 0; s < 4; s++)
        EXPECT_EQ(carried_to(router(SPINE, s, 0)), 1); // the links from leaf 0
}

// That routers have one address each shows late: until then a spine's links are taken for one.
TEST_F(Allocate, LinksAreCountedAnewWhenRoutersHaveOneAddress)
{
    for (int i = 0; i < 2; i++)
        for (uint64_t c = 0; c < 3; c++)
            take(between(0, 1, 4), c);
    take(between(1, 2, 4), 0);
    EXPECT_EQ(loads(router(LEAF, 0)).size(), 4u);
    EXPECT_LE(spread(loads(router(LEAF, 0))), 1);
    std::vector<int> second = loads(router(LEAF, 1));
    EXPECT_EQ(std::count(second.begin(), second.end(), 1), 1);
    EXPECT_EQ(ft_allocator_link_at(allocator, 0).connections, 0) << "the old count goes on";
}

TEST_F(Allocate, ALinkThatIsOutCarriesNothingUntilItIsBack)
{
    routers_have_one_address();
    ft_ways *pair = between(0, 1, 4);
    for (uint64_t c = 0; c < 8; c++)
        take(pair, c);
    const Ip leaf = router(LEAF, 0), spine = router(SPINE, 2);
    ASSERT_EQ(ft_allocator_set_out(allocator, leaf.data(), spine.data(), true), FT_OK);
    EXPECT_EQ(moves, 2);
    std::vector<int> n = loads(leaf);
    std::sort(n.begin(), n.end());
    EXPECT_EQ(n, (std::vector<int>{0, 2, 3, 3}));
    ASSERT_EQ(ft_allocator_set_out(allocator, leaf.data(), spine.data(), false), FT_OK);
    while (ft_allocator_balance(allocator, 100) > 0) {}
    EXPECT_EQ(spread(loads(leaf)), 0);
    EXPECT_EQ(moves, 4) << "few moves bring it back";
    EXPECT_EQ(ft_allocator_set_out(allocator, leaf.data(), spine.data(), false), FT_NOTSUP);
    // All links to a router, before anybody has seen some of them.
    const Ip any(16), other = router(SPINE, 3);
    ASSERT_EQ(ft_allocator_set_out(allocator, any.data(), other.data(), true), FT_OK);
    ft_ways *later = between(5, 1, 4);
    for (uint64_t c = 0; c < 8; c++)
        EXPECT_NE(take(later, c), 3);
    EXPECT_EQ(carried_to(other), 0);
}

// One host may be wrong about a way; two make its links bad for all, until their time has come.
TEST_F(Allocate, WhatSeveralFindBadIsLeftByAll)
{
    ft_ways *a = between(0, 1, 4, true, 1), *b = between(0, 2, 4, true, 2),
            *c = between(0, 3, 4, true, 3), *same = between(0, 4, 4, true, 1);
    for (uint64_t i = 0; i < 4; i++) {
        take(a, i);
        take(b, i);
        take(c, i);
    }
    int others = 0;
    for (auto &use : way_of)
        others += use.first.first != a && use.second == 1;
    ft_ways_complain(a, 1, 100);
    ft_ways_complain(same, 1, 100);
    ft_allocator_tick(allocator, 1);
    EXPECT_EQ(carried_to(router(SPINE, 1, 0)), others) << "those of the others stay";
    ft_ways_complain(b, 1, 200);
    for (auto &use : way_of)
        EXPECT_TRUE(use.first.first == c || use.second != 1) << "at once";
    ft_allocator_tick(allocator, 2);
    EXPECT_EQ(carried_to(router(SPINE, 1, 0)), 0);
    for (auto &use : way_of)
        EXPECT_NE(use.second, 1);
    ft_ways_close(a);
    ft_ways_close(same);
    EXPECT_EQ(ft_allocator_link_at(allocator, 2).complaints, 2) << "whoever goes";
    ft_allocator_tick(allocator, 100);
    EXPECT_EQ(ft_allocator_link_at(allocator, 2).complaints, 1);
    while (ft_allocator_balance(allocator, 100) > 0) {}
    EXPECT_EQ(carried_to(router(SPINE, 1, 0)), 1) << "c, of four over four, but not b";
    for (auto &use : way_of)
        EXPECT_TRUE(use.first.first != b || use.second != 1);
    ft_allocator_tick(allocator, 200);
    EXPECT_EQ(ft_allocator_link_at(allocator, 2).complaints, 0);
}

TEST_F(Allocate, NoWayIsAllowed)
{
    ft_ways *pair = between(0, 1, 2);
    const int first = take(pair, 7);
    ft_ways_complain(pair, !first, 200);
    ft_ways_complain(pair, first, 100);
    EXPECT_EQ((way_of[{pair, 7}]), -1);
    EXPECT_EQ(take(pair, 8), -1);
    ft_allocator_tick(allocator, 100);
    EXPECT_EQ((way_of[{pair, 7}]), first);
    EXPECT_EQ((way_of[{pair, 8}]), first);
}

// Many cannot reach a host that is gone, and complain of all that leads there: its neighbours still
// get ways, and stay on them.
TEST_F(Allocate, BadLinksAreUsedWhereThereAreNoOthers)
{
    ft_ways *gone[] = {between(0, 1, 2, true, 1), between(0, 1, 2, true, 2)};
    for (ft_ways *pair : gone)
        for (int way = 0; way < 2; way++)
            ft_ways_complain(pair, way, 100);
    ft_ways *neighbour = between(0, 1, 2, true, 3), *other = between(5, 1, 2, true, 4);
    EXPECT_NE(take(neighbour, 0), -1);
    EXPECT_NE(take(neighbour, 1), -1);
    EXPECT_NE(way_of[std::make_pair(neighbour, 0)], way_of[std::make_pair(neighbour, 1)]);
    EXPECT_NE(take(other, 0), -1);
    for (uint64_t now = 1; now < 10; now++)
        ft_allocator_tick(allocator, now);
    EXPECT_EQ(moves, 0);
    // But not what an operator has taken out.
    const Ip any(16);
    for (int s = 0; s < 2; s++)
        ft_allocator_set_out(allocator, any.data(), router(SPINE, s, 0).data(), true);
    EXPECT_EQ((way_of[{neighbour, 0}]), -1);
}

TEST_F(Allocate, WhatOneMayAskForIsBounded)
{
    ft_ways *pair = between(0, 1, 4);
    int way;
    for (uint64_t c = 0; c < FT_PATHS_CONNECTIONS; c++)
        take(pair, c, 2);
    EXPECT_EQ(ft_ways_take(pair, 1000, 2, &way), FT_INVAL);
    EXPECT_EQ(take(pair, 5), 2);
    Ip from(16), to(16);
    int n = 0;
    for (; n < 100000; n++) {
        to = router(SPINE, n % 256, n / 256);
        if (ft_allocator_set_out(allocator, from.data(), to.data(), true) != FT_OK)
            break;
    }
    EXPECT_LT(n, 100000);
    EXPECT_TRUE(ft_allocator_out_at(allocator, n - 1, from.data(), to.data()));
    EXPECT_EQ(to, router(SPINE, (n - 1) % 256, (n - 1) / 256));
    EXPECT_FALSE(ft_allocator_out_at(allocator, n, from.data(), to.data()));
}

// A rank may tell the most ways of the most hops; all together may not do so for ever.
TEST_F(Allocate, WaysOfAllTogetherAreBounded)
{
    const Ip hop = router(SPINE, 1);
    std::vector<unsigned char> bytes;
    for (int i = 0; i < FT_PATHS_MOST * FT_PATH_HOPS; i++)
        bytes.insert(bytes.end(), hop.begin(), hop.end());
    const ft_ways_config config = {0,       FT_PATHS_MOST, FT_PATH_HOPS, bytes.data(),
                                   nullptr, nullptr,       nullptr};
    const int most = (1 << 25) / (FT_PATHS_MOST * FT_PATH_HOPS);
    ft_ways *last = nullptr, *more = nullptr;
    for (int i = 0; i < most; i++)
        ASSERT_EQ(ft_ways_open(allocator, &config, &last), FT_OK) << i;
    EXPECT_EQ(ft_ways_open(allocator, &config, &more), FT_INVAL);
    ft_ways_close(last);
    EXPECT_EQ(ft_ways_open(allocator, &config, &more), FT_OK) << "there is room again";
}

// Two ports here and two there: from the first to the first, from the second to the second.
TEST_F(Allocate, PortsDoNotCross)
{
    std::vector<Way> ways;
    for (int from = 0; from < 2; from++)
        for (int s = 0; s < 3; s++)
            for (int to = 10; to < 12; to++)
                ways.push_back({router(LEAF, from), router(SPINE, s), router(LEAF, to)});
    ft_ways *pair = open(ways);
    int left = 0;
    for (uint64_t c = 0; c < 12; c++) {
        const Way &way = ways[static_cast<size_t>(take(pair, c))];
        EXPECT_EQ(way[2][1], way[0][1] + 10);
        left += way[0][1] == 0;
    }
    EXPECT_EQ(left, 6);
}

// If one port could not be used at all then, ways may cross.
TEST_F(Allocate, PortsCrossWhereTheyMust)
{
    const Ip spine = router(SPINE, 0);
    ft_ways *pair = open(
        {{router(LEAF, 0), spine, router(LEAF, 11)}, {router(LEAF, 1), spine, router(LEAF, 10)}});
    EXPECT_NE(take(pair, 0), -1);
}

TEST_F(Allocate, WhatIsHeldIsKept)
{
    routers_have_one_address();
    ft_ways *pair = between(0, 1, 4);
    for (uint64_t c = 0; c < 4; c++)
        EXPECT_EQ(take(pair, c, 3), 3); // told by those who hold it, after a restart
    EXPECT_EQ(take(pair, 2, 0), 3);     // no second time
    while (ft_allocator_balance(allocator, 100) > 0) {}
    EXPECT_EQ(spread(loads(router(LEAF, 0))), 0);
    EXPECT_EQ(moves, 3);
    ft_ways_release(pair, 2);
    EXPECT_NE(take(pair, 9, 77), -1); // there is no such way
}

TEST_F(Allocate, SizesOutOfRange)
{
    std::vector<unsigned char> hops(16 * 20);
    ft_ways *pair;
    for (auto [ways, hops_each] :
         {std::pair{0, 3}, {1, FT_PATH_HOPS + 1}, {FT_PATHS_MOST + 1, 1}}) {
        ft_ways_config config = {0, ways, hops_each, hops.data(), nullptr, nullptr, nullptr};
        EXPECT_EQ(ft_ways_open(allocator, &config, &pair), FT_INVAL);
    }
    ft_ways_config one = {0, 1, 1, hops.data(), nullptr, nullptr, nullptr};
    ASSERT_EQ(ft_ways_open(allocator, &one, &pair), FT_OK);
    EXPECT_EQ(take(pair, 0), 0); // one router: there is no link
}

// Pairs of hosts come and go; after balancing no link of a leaf has two connections more than the
// mean needs, and every count is right.
// Each host sends one connection and receives one, so that each link can have exactly one. It takes
// that others make room.
TEST_F(Allocate, OthersMakeRoom)
{
    const unsigned seed = std::random_device()();
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937 random(seed);
    int perfect = 0, moved_before = 0;
    for (int round = 0; round < 40; round++) {
        TearDown();
        SetUp();
        const int kLeaves = 4, kSpines = 4;
        std::vector<int> from, to;
        for (int host = 0; host < kLeaves * kSpines; host++)
            from.push_back(host % kLeaves), to.push_back(host % kLeaves);
        auto crosses = [&] {
            for (size_t i = 0; i < from.size(); i++)
                if (from[i] == to[i])
                    return false;
            return true;
        };
        do
            std::shuffle(to.begin(), to.end(), random);
        while (!crosses());
        std::vector<ft_ways *> pairs;
        for (size_t i = 0; i < from.size(); i++) {
            pairs.push_back(between(from[i], to[i], kSpines, true));
            way_of[{pairs[i], i}] = take(pairs[i], i);
        }
        moves = 0;
        for (int i = 0; i < 20; i++)
            ft_allocator_balance(allocator, 100);
        moved_before = moves;
        ft_allocator_balance(allocator, 100);
        EXPECT_EQ(moves, moved_before) << "it comes to rest";
        for (size_t i = 0; i < pairs.size(); i++) {
            uint64_t c;
            EXPECT_EQ(ft_ways_connection(pairs[i], 0, &c), (way_of[{pairs[i], i}])) << "told";
        }
        int most = 0;
        for (int i = 0; i < ft_allocator_links(allocator); i++)
            most = std::max(most, ft_allocator_link_at(allocator, i).connections);
        perfect += most == 1;
    }
    EXPECT_GE(perfect, 38);
}

TEST_F(Allocate, StaysEvenWhenHostsComeAndGo)
{
    const unsigned seed = getenv("FT_SEED") ? static_cast<unsigned>(atoi(getenv("FT_SEED")))
                                            : std::random_device{}();
    printf("FT_SEED=%u\n", seed);
    std::mt19937 random(seed);
    const int leaves = 6, spines = 8;
    std::vector<ft_ways *> pair;
    routers_have_one_address();
    for (int round = 0; round < 300; round++) {
        if (pair.size() > 40 || (pair.size() > 5 && random() % 3 == 0)) {
            const size_t at = random() % pair.size();
            ft_ways_close(pair[at]);
            pair.erase(pair.begin() + static_cast<long>(at));
        } else {
            const int from = static_cast<int>(random() % leaves);
            pair.push_back(between(
                from, (from + 1 + static_cast<int>(random() % (leaves - 1))) % leaves, spines));
            for (uint64_t c = 0, n = 1 + random() % 9; c < n; c++)
                take(pair.back(), c);
        }
        while (ft_allocator_balance(allocator, 1000) > 0) {}
        for (int leaf = 0; leaf < leaves; leaf++) {
            std::vector<int> n = loads(router(LEAF, leaf));
            int all = 0;
            for (int load : n)
                all += load;
            if (!n.empty()) {
                EXPECT_LE(*std::max_element(n.begin(), n.end()), (all + spines - 1) / spines + 1);
            }
        }
    }
    for (ft_ways *ways : pair)
        ft_ways_close(ways);
    for (int i = 0; i < ft_allocator_links(allocator); i++)
        EXPECT_EQ(ft_allocator_link_at(allocator, i).connections, 0);
}

} // namespace

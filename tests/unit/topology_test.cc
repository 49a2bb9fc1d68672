// The topology that follows from ways: each router once, however many addresses it answers by;
// links and hosts at their routers; links that are missing beside those of other leaves. Ways that
// contradict each other give something, and break nothing.
#include <gtest/gtest.h>

#include <array>
#include <memory>
#include <random>
#include <set>
#include <vector>

extern "C" {
#include "path/topology.h"
}

namespace
{

using Ip = std::array<unsigned char, 16>;
using Way = std::vector<Ip>;

enum { HOST = 1, LEAF, SPINE, CABLE };

Ip ip(int kind, int n, int interface = 0)
{
    Ip out = {};
    out[0] = static_cast<unsigned char>(kind);
    out[1] = static_cast<unsigned char>(n);
    out[15] = static_cast<unsigned char>(interface);
    return out;
}

struct FreeTopology {
    void operator()(ft_topology *t) const
    {
        ft_topology_free(t);
    }
};

class Topology : public testing::Test
{
  protected:
    void SetUp() override
    {
        allocator = ft_allocator_open([](void *, ft_ways *, uint64_t, int) {}, nullptr);
        ASSERT_NE(allocator, nullptr);
    }
    void TearDown() override
    {
        ft_allocator_close(allocator);
    }
    ft_ways *open(const std::vector<Way> &ways, const Ip &from, const Ip &to)
    {
        std::vector<unsigned char> bytes;
        for (const Way &way : ways)
            for (const Ip &hop : way)
                bytes.insert(bytes.end(), hop.begin(), hop.end());
        ft_ways *out = nullptr;
        ft_ways_config config = {};
        config.nways = static_cast<int>(ways.size());
        config.nhops = static_cast<int>(ways[0].size());
        config.hops = bytes.data();
        config.from = from.data();
        config.to = to.data();
        EXPECT_EQ(ft_ways_open(allocator, &config, &out), FT_OK);
        return out;
    }
    // Both ends of the cable of a leaf and a spine have neighbouring addresses.
    static Ip at_spine(int leaf, int spine)
    {
        return ip(CABLE, leaf, 2 * spine + 1);
    }
    static Ip at_leaf(int leaf, int spine)
    {
        return ip(CABLE, leaf, 2 * spine);
    }
    // From the first host of a leaf to that of another. Routers answer by their interfaces.
    void between(int from, int to, const std::vector<int> &spines)
    {
        std::vector<Way> ways;
        for (int s : spines)
            ways.push_back({ip(LEAF, from, 200), at_spine(from, s), at_leaf(to, s)});
        open(ways, ip(HOST, from), ip(HOST, to));
    }
    using Found = std::unique_ptr<ft_topology, FreeTopology>;
    Found find()
    {
        Found found(ft_topology_find(allocator));
        EXPECT_NE(found, nullptr);
        return found;
    }
    static int in_layer(const Found &t, int layer)
    {
        int n = 0;
        for (int i = 0; i < t->nrouters; i++)
            n += t->router[i].layer == layer;
        return n;
    }
    static int leaf_of(const Found &t, const Ip &host)
    {
        for (int i = 0; i < t->nhosts; i++)
            if (memcmp(t->host[i].ip, host.data(), 16) == 0)
                return t->host[i].router;
        return -2;
    }
    // The links that are there, and those that are missing, as (from, to).
    using Links = std::multiset<std::pair<int, int>>;
    static Links links(const Found &t)
    {
        Links out;
        for (int i = 0; i < t->nlinks; i++)
            out.insert({t->link[i].from, t->link[i].to});
        return out;
    }
    static Links missing(const Found &t)
    {
        Links out;
        for (int i = 0; i < t->nmissing; i++)
            out.insert({t->missing[i].from, t->missing[i].to});
        return out;
    }
    // Of leaves 0 .. and spines that follow them.
    static Links all_links(int leaves, int spines)
    {
        Links out;
        for (int leaf = 0; leaf < leaves; leaf++)
            for (int spine = leaves; spine < leaves + spines; spine++) {
                out.insert({leaf, spine});
                out.insert({spine, leaf});
            }
        return out;
    }

    ft_allocator *allocator = nullptr;
};

TEST_F(Topology, RoutersThatAnswerByTheirInterfaces)
{
    for (int from = 0; from < 3; from++)
        between(from, (from + 1) % 3, {0, 1, 2, 3});
    const Found t = find();
    EXPECT_EQ(in_layer(t, 0), 3);
    EXPECT_EQ(in_layer(t, 1), 4);
    EXPECT_EQ(t->nrouters, 7);
    EXPECT_EQ(links(t), all_links(3, 4));
    std::set<int> leaves;
    for (int leaf = 0; leaf < 3; leaf++)
        leaves.insert(leaf_of(t, ip(HOST, leaf)));
    EXPECT_EQ(leaves, std::set<int>({0, 1, 2}));
    EXPECT_EQ(t->nmissing, 0);
}

TEST_F(Topology, RoutersThatHaveOneAddress)
{
    for (int from = 0; from < 3; from++) {
        std::vector<Way> ways;
        for (int s = 0; s < 4; s++)
            ways.push_back({ip(LEAF, from), ip(SPINE, s), ip(LEAF, (from + 1) % 3)});
        open(ways, ip(HOST, from), ip(HOST, (from + 1) % 3));
    }
    const Found t = find();
    EXPECT_EQ(t->nrouters, 7);
    // the links by interfaces that were counted at first have no ways now
    Links found = links(t);
    found.erase({-1, -1});
    EXPECT_EQ(found, all_links(3, 4));
    EXPECT_EQ(leaf_of(t, ip(HOST, 1)), 1);
}

// A host that only receives is at the leaf at which its ways end.
TEST_F(Topology, AHostThatOnlyReceives)
{
    between(0, 1, {0, 1, 2, 3});
    const Found t = find();
    EXPECT_EQ(in_layer(t, 0), 2);
    EXPECT_EQ(leaf_of(t, ip(HOST, 1)), 1);
}

TEST_F(Topology, WhatOtherLeavesHaveIsMissing)
{
    for (int from = 0; from < 4; from++)
        for (int to = 0; to < 4; to++)
            if (from != to)
                between(from, to,
                        from == 1 || to == 1 ? std::vector<int>{0, 2, 3}
                                             : std::vector<int>{0, 1, 2, 3});
    const Found t = find();
    EXPECT_EQ(t->nrouters, 8);
    EXPECT_EQ(missing(t), Links({{1, 5}, {5, 1}})) << "leaf 1, spine 1";
}

// So few ports are probed of so many spines that some are not seen by chance.
TEST_F(Topology, ThatSomeSpinesWereNotSeenMeansNothing)
{
    std::vector<int> all(60), most;
    for (int s = 0; s < 60; s++)
        all[static_cast<size_t>(s)] = s;
    most.assign(all.begin(), all.end() - 5);
    for (int from = 0; from < 4; from++)
        between(from, (from + 1) % 4, from == 1 ? most : all);
    between(3, 2, all);
    EXPECT_EQ(find()->nmissing, 0);
    for (int again = 0; again < 6; again++)
        between(1, 2, most);
    const Found t = find();
    EXPECT_EQ(t->nmissing, 5) << "now it is unlikely";
    EXPECT_EQ(t->missing[0].from, 1);
}

// A spine that neither leaf is known to have may be missing at either.
TEST_F(Topology, WhichOfTwoLinksIsMissingIsNotGuessed)
{
    between(0, 1, {0, 1, 2});
    between(1, 2, {0, 1, 2, 3});
    between(2, 1, {0, 1, 2});
    EXPECT_EQ(missing(find()), Links());
    between(2, 0, {0, 1, 2, 3});
    EXPECT_EQ(missing(find()), Links({{6, 1}})) << "leaf 2 has spine 3: then it is leaf 1's link";
}

// Two parts with spines of their own.
TEST_F(Topology, PartsOfANetworkMissNothingOfEachOther)
{
    for (int part = 0; part < 2; part++)
        for (int from = 0; from < 3; from++)
            between(3 * part + from, 3 * part + (from + 1) % 3, {2 * part, 2 * part + 1});
    const Found t = find();
    EXPECT_EQ(in_layer(t, 0), 6);
    EXPECT_EQ(in_layer(t, 1), 4);
    EXPECT_EQ(t->nmissing, 0);
}

// Hosts 0 and 1 have ports to two leaves each. The ends of cables say what belongs together.
TEST_F(Topology, HostsWithTwoPorts)
{
    for (int from = 0; from < 2; from++) {
        std::vector<Way> ways;
        for (int near : {2 * from, 2 * from + 1})
            for (int far : {2 - 2 * from, 3 - 2 * from})
                for (int s = 0; s < 3; s++)
                    ways.push_back({ip(LEAF, near, 200), at_spine(near, s), at_leaf(far, s)});
        open(ways, ip(HOST, from), ip(HOST, 1 - from));
    }
    const Found t = find();
    EXPECT_EQ(in_layer(t, 0), 4);
    EXPECT_EQ(in_layer(t, 1), 3);
    EXPECT_EQ(links(t), all_links(4, 3));
    EXPECT_EQ(leaf_of(t, ip(HOST, 0)), -1);
    EXPECT_EQ(t->host[0].nports, 2);
    EXPECT_EQ(t->host[1].port[0], 2);
}

// What leaves by the left port arrives by the left one, though routers answer by interfaces. If a
// port has no such way, all are good.
TEST_F(Topology, PortsDoNotCross)
{
    for (bool without : {false, true}) {
        TearDown();
        SetUp();
        std::vector<Way> ways[2];
        for (size_t from = 0; from < 2; from++) {
            const int leaf = 2 * static_cast<int>(from);
            for (int near : {leaf, leaf + 1})
                for (int far : {2 - leaf, 3 - leaf})
                    for (int s = 0; s < 3; s++)
                        if (!without || near % 2 == 0 || far % 2 == 0)
                            ways[from].push_back(
                                {ip(LEAF, near, 200), at_spine(near, s), at_leaf(far, s)});
        }
        ft_ways *there = open(ways[0], ip(HOST, 0), ip(HOST, 1));
        open(ways[1], ip(HOST, 1), ip(HOST, 0));
        int way;
        for (uint64_t c = 0; c < 12; c++)
            ASSERT_EQ(ft_ways_take(there, c, static_cast<int>(c % ways[0].size()), &way), FT_OK);
        ft_topology_keep_ports_apart(find().get(), allocator);
        ft_allocator_tick(allocator, 1);
        int crossing = 0;
        for (int i = 0; i < 12; i++) {
            uint64_t c;
            const Way &taken = ways[0][static_cast<size_t>(ft_ways_connection(there, i, &c))];
            crossing += (taken[0][1] & 1) != (taken[2][1] & 1);
        }
        EXPECT_EQ(crossing > 0, without) << crossing;
    }
}

// Leaves of a part share its spines, and parts are joined by cores.
TEST_F(Topology, ThreeLayers)
{
    for (int from = 0; from < 2; from++) {
        std::vector<Way> ways;
        for (int spine = 0; spine < 2; spine++)
            for (int core = 0; core < 4; core++)
                ways.push_back({ip(LEAF, from), ip(SPINE, 2 * from + spine), ip(CABLE, core),
                                ip(SPINE, 2 - 2 * from + spine), ip(LEAF, 1 - from)});
        open(ways, ip(HOST, from), ip(HOST, 1 - from));
    }
    const Found t = find();
    EXPECT_EQ(in_layer(t, 0), 2);
    EXPECT_EQ(in_layer(t, 1), 4);
    EXPECT_EQ(in_layer(t, 2), 4);
    EXPECT_EQ(t->nmissing, 0);
}

// Interfaces of one router that are numbered in a row are not the ends of a cable.
TEST_F(Topology, NeighboursOnOneRouter)
{
    for (int from = 0; from < 4; from++)
        for (int to = 0; to < 4; to++) {
            std::vector<Way> ways;
            for (int s = 0; s < 4 && from != to; s++)
                ways.push_back({ip(LEAF, from, 200), ip(SPINE, s, from), ip(LEAF, to, s)});
            if (from != to)
                open(ways, ip(HOST, from), ip(HOST, to));
        }
    const Found t = find();
    EXPECT_EQ(t->nrouters, 8);
    EXPECT_EQ(links(t), all_links(4, 4));
}

TEST_F(Topology, NothingIsThere)
{
    const Found t = find();
    EXPECT_EQ(t->nrouters, 0);
    EXPECT_EQ(t->nmissing, 0);
}

// Whatever ranks say, ways are continuous and all numbers are of routers that are there.
TEST_F(Topology, WhatIsSaidAtRandom)
{
    const unsigned seed = std::random_device()();
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937 random(seed);
    for (int pair = 0; pair < 200; pair++) {
        const size_t hops = 1 + random() % 5, n = 1 + random() % 6;
        std::vector<Way> ways(n);
        for (Way &way : ways)
            for (size_t i = 0; i < hops; i++)
                way.push_back(ip(CABLE, 0, static_cast<int>(random() % 64)));
        open(ways, ip(HOST, static_cast<int>(random() % 9)),
             random() % 4 ? ip(HOST, static_cast<int>(random() % 9)) : Ip{});
    }
    const Found t = find();
    for (int i = 0; i < t->nlinks; i++) {
        EXPECT_LT(t->link[i].from, t->nrouters);
        EXPECT_LT(t->link[i].to, t->nrouters);
        EXPECT_EQ(t->link[i].from < 0, t->link[i].to < 0);
    }
    for (int i = 0; i < t->nhosts; i++)
        EXPECT_LT(t->host[i].router, t->nrouters);
    for (int i = 1; i < t->nrouters; i++)
        EXPECT_LE(t->router[i - 1].layer, t->router[i].layer);
}

} // namespace

/*
 * Property: of what a validation measured, a link is named if it is 3 times slower than the median
 * of its kind and by half a millisecond for 1 MiB, and a rank if it is twice as slow, or 1.6 times
 * on average; each link once, by its fastest time. Method: results written down, with the slow ones
 * planted.
 */
#include <gtest/gtest.h>

#include <cstring>
#include <vector>

extern "C" {
#include "diagnose/diagnose.h"
}

namespace
{

struct Tested {
    std::vector<ft_tested_link> links;
    std::vector<ft_tested_rank> ranks;
    ft_tested all = {};
    ft_verdict verdicts[8];

    void link(int from, int to, double ms, const char *transport = "tcp", bool same_host = false)
    {
        ft_tested_link link = {};
        link.from = from;
        link.to = to;
        link.s_per_mib = ms / 1e3;
        link.same_host = same_host;
        strcpy(link.transport, transport);
        links.push_back(link);
    }
    void rank(int number, uint64_t copy_us, uint64_t product_us, uint64_t mean_us = 600)
    {
        ft_tested_rank rank = {};
        rank.rank = number;
        rank.engine = number;
        rank.pid = 4000 + number;
        rank.copy_ns = copy_us * 1000;
        rank.product_ns = product_us * 1000;
        rank.mean_ns = mean_us * 1000;
        ranks.push_back(rank);
    }
    int judge(int capacity = 8)
    {
        strcpy(all.name, "world");
        all.size = 8;
        all.links = links.data();
        all.ranks = ranks.data();
        all.nlinks = int(links.size());
        all.nranks = int(ranks.size());
        return ft_diagnose_tested(&all, verdicts, capacity);
    }
};

TEST(Tested, ASlowLinkAmongItsKind)
{
    Tested t;
    for (int r = 0; r < 4; r++)
        t.link(r, (r + 1) % 4, r == 2 ? 9 : 2);
    for (int r = 4; r < 8; r++)
        t.link(r, r - 1, 0.1, "shm", true); /* 20 times faster, and of another kind */
    ASSERT_EQ(t.judge(), 1);
    EXPECT_EQ(t.verdicts[0].kind, FT_VERDICT_COMM_SLOW_LINK);
    EXPECT_EQ(t.verdicts[0].culprits[0].rank, 2);
    EXPECT_EQ(t.verdicts[0].culprits[0].peer, 3);
    EXPECT_EQ(t.all.links[0].from, 2) << "the slowest comes first";
    EXPECT_DOUBLE_EQ(t.all.links[0].ratio, 4.5);
}

TEST(Tested, LittleIsNothing)
{
    Tested ratio, time, few;
    for (int r = 0; r < 4; r++) {
        ratio.link(r, (r + 1) % 4, r == 2 ? 5.9 : 2);  /* not 3 times */
        time.link(r, (r + 1) % 4, r == 2 ? 0.5 : 0.1); /* not half a millisecond */
    }
    few.link(0, 1, 1);
    few.link(1, 0, 100);
    EXPECT_EQ(ratio.judge(), 0);
    EXPECT_EQ(time.judge(), 0);
    EXPECT_EQ(few.judge(), 0) << "two cannot be compared";
}

TEST(Tested, TheFastestTimeOfALinkCounts)
{
    Tested t;
    for (int run = 0; run < 3; run++)
        for (int r = 0; r < 4; r++)
            t.link(r, (r + 1) % 4, run == r % 3 ? 2 : 50);
    t.link(0, 1, 0); /* nothing came in one pass */
    EXPECT_EQ(t.judge(), 0);
    EXPECT_EQ(t.all.nlinks, 4);
    for (int i = 0; i < t.all.nlinks; i++)
        EXPECT_DOUBLE_EQ(t.all.links[i].s_per_mib, 0.002) << i;
}

TEST(Tested, ASlowRank)
{
    for (bool copy : {true, false}) {
        Tested t;
        for (int r = 3; r >= 0; r--)
            t.rank(r, copy && r == 1 ? 700 : 300, !copy && r == 1 ? 500 : 200);
        ASSERT_EQ(t.judge(), 1) << copy;
        EXPECT_EQ(t.verdicts[0].kind, FT_VERDICT_NONCOMM_SLOW);
        EXPECT_EQ(t.verdicts[0].culprits[0].rank, 1);
        EXPECT_EQ(t.verdicts[0].culprits[0].pid, 4001);
        const char *what = copy ? "copy of memory" : "matrix product";
        EXPECT_NE(strstr(t.verdicts[0].sentence, what), nullptr) << t.verdicts[0].sentence;
    }
}

/* Fast when it runs, and it seldom runs. */
TEST(Tested, ARankWithAPartOfAProcessor)
{
    for (uint64_t mean_us : {950, 970}) {
        Tested t;
        for (int r = 0; r < 4; r++)
            t.rank(r, 300, 200, r == 2 ? mean_us : 600);
        ASSERT_EQ(t.judge(), mean_us > 960) << mean_us << " us, 600 usual";
        if (mean_us > 960) {
            EXPECT_EQ(t.verdicts[0].culprits[0].rank, 2);
            EXPECT_NE(strstr(t.verdicts[0].sentence, "has no processor"), nullptr)
                << t.verdicts[0].sentence;
        }
    }
}

/* Of ranks that share their processors with others, and of their links, more is asked. */
TEST(Tested, CrowdedRanks)
{
    for (uint64_t mean_us : {3100, 3300}) {
        Tested t;
        for (int r = 0; r < 4; r++)
            t.rank(r, 300, 200, r == 2 ? mean_us : 1000);
        ASSERT_EQ(t.judge(), mean_us > 3200) << mean_us << " us, 1000 usual";
    }
    for (double ms : {17, 19}) {
        Tested t;
        for (int r = 0; r < 5; r++) {
            t.rank(r, 300, 200, r == 2 ? 800 : 600);
            t.link(r, (r + 1) % 5, r == 1 ? ms : 2);
        }
        ASSERT_EQ(t.judge(), ms > 18) << ms << " ms, 2 usual";
    }
}

TEST(Tested, NoMoreThanFit)
{
    Tested t;
    for (int r = 0; r < 20; r++)
        t.link(r, r + 1, r < 5 ? 50 : 1);
    EXPECT_EQ(t.judge(2), 2);
    Tested nothing;
    EXPECT_EQ(nothing.judge(), 0);
}

TEST(Tested, JsonNamesTheMissing)
{
    Tested t;
    t.link(0, 1, 0);
    t.rank(0, 300, 200);
    t.judge();
    ft_text text = {};
    text.most = 1 << 16;
    ft_tested_json(&text, &t.all);
    EXPECT_FALSE(text.broken);
    EXPECT_NE(strstr(text.at, "\"missing\":[1,2,3,4,5,6,7]"), nullptr) << text.at;
    EXPECT_NE(strstr(text.at, "\"s_per_mib\":null"), nullptr) << text.at;
    ft_text_free(&text);
}

} // namespace

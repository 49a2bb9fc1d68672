// Properties: the text of FTCCL_ALGO means what select.c says. The selection is optimal in latency
// for small messages and in bandwidth for large ones. Costs grow with the size. The table of costs
// is parsed strictly, and its digest covers all of it. Plans stay inside their buffers, and
// complete beyond 2^31 elements. Method: tables of texts; plans walked step by step, or run by the
// symbolic checker.
#include <algorithm>
#include <cstdlib>
#include <gtest/gtest.h>
#include <unistd.h>

#include "checker.h"
extern "C" {
#include "algo/choice.h"
}

namespace
{

// A view of n ranks on `nhosts` hosts, in blocks.
struct World {
    std::vector<int> host;
    std::vector<uint64_t> peer;
    struct ft_view view;
    struct ft_rules rules = {};
    struct ft_tuning tuning;

    World(int n, int nhosts, int rank = 0) : host((size_t)n), peer((size_t)n)
    {
        for (int r = 0; r < n; r++)
            host[r] = (int)((int64_t)r * nhosts / n);
        view = {1, n, rank, nhosts, host.data(), peer.data()};
        ft_tuning_default(&tuning);
        tuning.costs.cores_per_host = 64;
    }
    std::string select(enum ft_kind kind, size_t bytes, const char *choice = "")
    {
        tuning.choice = choice;
        struct ft_coll coll = {kind, FT_INT8, FT_SUM, 0, bytes};
        struct ft_plan plan;
        int status = ft_algo_select(&view, &coll, &tuning, &plan);
        return status == FT_OK ? plan.algo->name
                               : std::string(ft_status_text(status)) + ": " + ft_fail_text();
    }
};

const struct ft_algo *find(const std::string &name)
{
    for (int i = 0; ft_algos[i]; i++)
        if (name == ft_algos[i]->name)
            return ft_algos[i];
    return nullptr;
}

TEST(Choice, TextsMeanWhatTheySay)
{
    struct {
        const char *text;
        enum ft_kind kind;
        const char *chosen;
    } table[] = {
        {"ring", FT_ALLREDUCE, "ring"},
        {"Ring", FT_ALLREDUCE, "ring"},
        {"TREE", FT_ALLREDUCE, "tree"},
        {" tree ", FT_ALLREDUCE, "tree"},
        {"tree", FT_ALLTOALL, "direct"}, // says nothing about AlltoAll
        {"allreduce:tree,allgather:ring", FT_ALLREDUCE, "tree"},
        {"allreduce:tree,allgather:ring", FT_ALLGATHER, "ring"},
        {"AllReduce:Tree;AllGather:Ring", FT_ALLGATHER, "ring"},
        {"allreduce:tree;ring", FT_ALLREDUCE, "tree"},
        {"allreduce:tree;ring", FT_BROADCAST, "ring"},
        {"ring;allreduce:tree", FT_REDUCE, "ring"},
        {"^rd", FT_ALLREDUCE, "flat"},
        {"^rd,flat", FT_ALLREDUCE, "hd"},
        {"^rd,flat,hd", FT_ALLREDUCE, "direct"}, // ^ before a list excludes all of it
        {"^rd,^flat,direct,hd,tree", FT_ALLREDUCE, "ring"},
        {"allreduce:^rd,flat,allgather:ring", FT_ALLREDUCE, "hd"},
        {"allreduce:^rd,allgather:^direct", FT_ALLGATHER, "rd"},
        {"ring,NVLS", FT_ALLREDUCE, "ring"},
        {"^NVLS", FT_ALLREDUCE, "rd"},
        {",,", FT_ALLREDUCE, "rd"},
    };
    World world(8, 1);
    for (auto &row : table)
        EXPECT_EQ(world.select(row.kind, 8, row.text), row.chosen) << row.text;
}

TEST(Choice, WhatLeavesNothingIsRefusedByName)
{
    struct {
        const char *text, *sentence;
    } table[] = {
        {"rng", "'rng' is no algorithm"},
        {"ring,^tre", "'tre' is no algorithm"},
        {"allreduc:ring", "'allreduc' is no collective"},
        {"twolevel",
         "FTCCL_ALGO=twolevel leaves no algorithm for AllReduce on 8 ranks and 1 hosts"},
        {"allreduce:bruck", "leaves no algorithm for AllReduce"},
        {"^ring,rd,hd,tree,direct,twolevel,flat", "leaves no algorithm for AllReduce"},
        {"NVLS", "leaves no algorithm for AllReduce"},
    };
    World world(8, 1);
    for (auto &row : table) {
        std::string said = world.select(FT_ALLREDUCE, 8, row.text);
        EXPECT_EQ(said.rfind("invalid usage: ", 0), 0u) << row.text << ": " << said;
        EXPECT_NE(said.find(row.sentence), std::string::npos) << row.text << ": " << said;
    }
}

TEST(Choice, OneRankIsNeverRefused)
{
    World world(1, 1);
    for (int kind = 0; kind < FT_SEND; kind++)
        EXPECT_EQ(world.select((enum ft_kind)kind, 8, "allreduce:tree;^ring,direct"), "local");
}

TEST(Select, BadArgumentsAreRefused)
{
    World world(4, 1);
    struct ft_plan plan;
    struct ft_coll coll = {FT_ALLGATHER, FT_FLOAT64, FT_SUM, 0, SIZE_MAX / 16};
    EXPECT_EQ(ft_algo_select(&world.view, &coll, &world.tuning, &plan),
              FT_INVAL); // 4 blocks overflow
    coll.count = 1;
    coll.root = 4;
    EXPECT_EQ(ft_algo_select(&world.view, &coll, &world.tuning, &plan), FT_INVAL);
    coll.root = 0;
    coll.kind = FT_SEND;
    EXPECT_EQ(ft_algo_select(&world.view, &coll, &world.tuning, &plan), FT_INVAL);
    coll.kind = FT_ALLGATHER;
    world.tuning.chunk_bytes = 7;
    EXPECT_EQ(ft_algo_select(&world.view, &coll, &world.tuning, &plan), FT_INVAL);
}

// Messages one after another of what is chosen at 8 bytes. Two ranks of different hosts need log2
// n.
TEST(Select, SmallAllReduceTakesLogarithmicallyManyHops)
{
    for (int n = 2; n <= 64; n++) {
        for (int nhosts : {1, n}) {
            World world(n, nhosts);
            Case c = {find(world.select(FT_ALLREDUCE, 8)),
                      {FT_ALLREDUCE, FT_INT8, FT_SUM, 0, 8},
                      world.tuning.chunk_bytes,
                      world.tuning.chunks,
                      world.host,
                      InPlace::none,
                      2,
                      false,
                      1};
            ASSERT_NE(c.algo, nullptr);
            int hops = 0, log2n = 31 - __builtin_clz((unsigned)n), folds = n & (n - 1) ? 2 : 0;
            ASSERT_EQ(check(c, &hops), "");
            EXPECT_LE(hops, log2n + folds)
                << n << " ranks on " << nhosts << " hosts by " << c.algo->name;
        }
    }
}

// Most bytes that any rank sends and forwards.
double busiest(int n, int nhosts, enum ft_kind kind, size_t bytes, std::string &name)
{
    double most = 0;
    for (int rank = 0; rank < n; rank++) {
        World world(n, nhosts, rank);
        struct ft_coll coll = {kind, FT_INT8, FT_SUM, 0, bytes};
        struct ft_plan plan;
        EXPECT_EQ(ft_algo_select(&world.view, &coll, &world.tuning, &plan), FT_OK);
        name = plan.algo->name;
        double sent = 0;
        for (int lane = 0; lane < plan.nlanes; lane++)
            for (uint64_t i = 0; i < plan.nsteps; i++) {
                struct ft_step s;
                ft_plan_step(&plan, lane, i, &s);
                sent += (double)s.send_bytes * s.nsend + (double)s.len_bytes * s.nfwd;
            }
        most = std::max(most, sent);
    }
    return most;
}

TEST(Select, LargeMessagesMoveNoMoreBytesThanNeeded)
{
    size_t bytes = 64 << 20;
    std::string name;
    for (int n : {2, 3, 4, 5, 8, 12, 16, 33, 64})
        for (int nhosts : {1, n}) {
            double best = 2.0 * (n - 1) / n * (double)bytes;
            EXPECT_LE(busiest(n, nhosts, FT_ALLREDUCE, bytes, name), best * 1.01)
                << n << " ranks, " << name;
            size_t block = bytes / (size_t)n;
            best = (double)(n - 1) * (double)block;
            EXPECT_LE(busiest(n, nhosts, FT_ALLGATHER, block, name), best * 1.01)
                << n << " ranks, " << name;
            EXPECT_LE(busiest(n, nhosts, FT_REDUCESCATTER, block, name), best * 1.01)
                << n << " ranks, " << name;
            EXPECT_LE(busiest(n, nhosts, FT_ALLTOALL, block, name), best * 1.01)
                << n << " ranks, " << name;
            // An inner node of a tree sends its half of the data twice; lanes may not halve it
            // exactly.
            EXPECT_LE(busiest(n, nhosts, FT_BROADCAST, bytes, name), 1.55 * (double)bytes)
                << n << " ranks, " << name;
        }
}

TEST(Select, HostsAreUsedInTwoLevels)
{
    EXPECT_EQ(World(16, 2).select(FT_ALLREDUCE, 4 << 20), "twolevel");
    EXPECT_NE(World(16, 16).select(FT_ALLREDUCE, 4 << 20), "twolevel");
}

TEST(Cost, GrowsWithTheSize)
{
    for (int i = 0; ft_algos[i]; i++)
        for (int n = 1; n <= 64; n++)
            for (int nhosts : {1, (n + 3) / 4, n})
                for (int kind = 0; kind < FT_SEND; kind++) {
                    World world(n, nhosts);
                    double last = 0;
                    for (size_t count = 1; count < (1u << 30); count += 1 + count / 3) {
                        struct ft_coll coll = {(enum ft_kind)kind, FT_FLOAT32, FT_SUM, 0, count};
                        if (!(ft_algos[i]->kinds >> kind & 1) ||
                            !ft_algos[i]->fits(&world.view, &coll, &world.tuning))
                            break;
                        double cost = ft_algos[i]->cost_ns(&world.view, &coll, &world.tuning);
                        ASSERT_TRUE(cost > 0 && cost < 1e18 && cost >= last)
                            << ft_algos[i]->name << " " << ft_kind_name((enum ft_kind)kind) << " n "
                            << n << " hosts " << nhosts << " count " << count << ": " << cost
                            << " after " << last;
                        last = cost;
                    }
                }
}

TEST(Cost, GrowsWhenRanksShareCores)
{
    World enough(8, 1), few(8, 1);
    few.tuning.costs.cores_per_host = 2;
    struct ft_coll coll = {FT_ALLREDUCE, FT_FLOAT32, FT_SUM, 0, 1000};
    for (const char *name : {"rd", "hd", "ring", "tree", "direct"})
        EXPECT_GT(find(name)->cost_ns(&few.view, &coll, &few.tuning),
                  2 * find(name)->cost_ns(&enough.view, &coll, &enough.tuning))
            << name;
}

// Ranks of a host that have only TCP, twice and four times as many as cores: what was fastest where
// they were measured (perf/tune), or within a tenth of it.
TEST(Loopback, ChoosesWhatWasFastest)
{
    struct {
        enum ft_kind kind;
        int ranks;
        size_t bytes;
        const char *good;
    } table[] = {
        {FT_ALLREDUCE, 2, 8, "rd"},
        {FT_ALLREDUCE, 2, 65536, "rd"},
        {FT_ALLREDUCE, 2, 16 << 20, "ring"},
        {FT_ALLREDUCE, 4, 8, "rd"},
        {FT_ALLREDUCE, 4, 4096, "rd"},
        {FT_ALLREDUCE, 4, 65536, "rd hd"},
        {FT_ALLREDUCE, 4, 512 << 10, "ring"},
        {FT_ALLREDUCE, 4, 4 << 20, "ring"},
        {FT_ALLREDUCE, 8, 8, "tree"},
        {FT_ALLREDUCE, 8, 4096, "tree rd"},
        {FT_ALLREDUCE, 8, 65536, "hd"},
        {FT_ALLREDUCE, 8, 512 << 10, "ring"},
        {FT_ALLREDUCE, 8, 4 << 20, "ring"},
        {FT_ALLGATHER, 4, 16, "rd bruck"},
        {FT_ALLGATHER, 8, 16, "rd bruck"},
        {FT_ALLGATHER, 4, 1 << 20, "direct"},
        {FT_ALLGATHER, 8, 1 << 20, "direct"},
        {FT_ALLGATHER, 4, 128 << 10, "rd direct"},
        {FT_ALLGATHER, 8, 64 << 10, "rd"},
        {FT_ALLGATHER, 8, 16 << 10, "rd"},
        {FT_REDUCESCATTER, 4, 16, "hd direct"},
        {FT_REDUCESCATTER, 8, 16, "hd"},
        {FT_REDUCESCATTER, 8, 128 << 10, "ring"},
        {FT_ALLTOALL, 4, 16, "bruck"},
        {FT_ALLTOALL, 8, 512, "bruck"},
        {FT_ALLTOALL, 8, 128 << 10, "direct"},
        {FT_BROADCAST, 4, 8, "tree"},
        {FT_BROADCAST, 8, 8, "direct"},
        {FT_BROADCAST, 4, 4 << 20, "ring direct"},
        {FT_BROADCAST, 8, 4 << 20, "ring"},
    };
    for (auto &t : table) {
        World world(t.ranks, 1);
        world.tuning.costs.cores_per_host = 2;
        ft_tuning_links(&world.tuning, FT_LINKS_LOOPBACK);
        EXPECT_NE(std::string(t.good).find(world.select(t.kind, t.bytes)), std::string::npos)
            << ft_kind_name(t.kind) << " of " << t.bytes << " on " << t.ranks
            << " ranks: " << world.select(t.kind, t.bytes);
    }
}

// Over loopback each peer of an all-to-all has its lane, where there are several; a measured choice
// of lanes goes before that.
TEST(Plan, PeersHaveLanesOfTheirOwnOverLoopback)
{
    const struct {
        enum ft_kind kind;
        int ranks, lanes;
    } table[] = {
        {FT_ALLTOALL, 2, 1},  {FT_ALLTOALL, 4, 4}, {FT_ALLTOALL, 20, FT_LANES},
        {FT_ALLGATHER, 4, 4}, {FT_GATHER, 4, 1},   {FT_SCATTER, 4, 1},
    };
    for (auto &t : table) {
        World world(t.ranks, 1);
        ft_tuning_links(&world.tuning, FT_LINKS_LOOPBACK);
        struct ft_coll coll = {t.kind, FT_UINT8, FT_SUM, 0, 128 << 10};
        struct ft_plan plan;
        if (t.kind == FT_ALLGATHER)
            world.tuning.choice = "direct";
        ASSERT_EQ(FT_OK, ft_algo_select(&world.view, &coll, &world.tuning, &plan));
        EXPECT_EQ(plan.nlanes, t.lanes) << ft_kind_name(t.kind) << " on " << t.ranks << " ranks";
        struct ft_rule rule = {};
        rule.chunks = 1;
        ft_rule_apply(&rule, &world.tuning);
        ASSERT_EQ(FT_OK, ft_algo_select(&world.view, &coll, &world.tuning, &plan));
        EXPECT_EQ(plan.nlanes, 1) << ft_kind_name(t.kind) << " on " << t.ranks << " ranks";
    }
}

// Writes `text` to a file of its own, loads it, removes it.
int load(struct ft_tuning *tuning, struct ft_rules *rules, const std::string &text)
{
    std::string path = testing::TempDir() + "ftccl_tune_XXXXXX";
    int fd = mkstemp(path.data());
    EXPECT_GE(fd, 0);
    EXPECT_EQ(write(fd, text.data(), text.size()), (ssize_t)text.size());
    close(fd);
    int status = ft_tuning_load(tuning, rules, path.c_str());
    unlink(path.c_str());
    return status;
}

TEST(Tuning, TableIsReadStrictly)
{
    struct ft_rules rules = {};
    struct ft_tuning tuning;
    ft_tuning_default(&tuning);
    ASSERT_EQ(load(&tuning, &rules,
                   "# measured\nlocal_latency_ns 250 # two "
                   "cores\n\nremote_ns_per_byte=0.25\r\ncores_per_host 2"),
              0);
    EXPECT_EQ(tuning.costs.local_latency_ns, 250);
    EXPECT_EQ(tuning.costs.remote_ns_per_byte, 0.25);
    EXPECT_EQ(tuning.costs.cores_per_host, 2);
    uint64_t digest = ft_tuning_digest(&tuning);
    for (const char *bad : {"local_latency 250\n", "step_ns\n", "step_ns abc\n", "step_ns 1e400\n",
                            "step_ns nan\n", "step_ns -1\n", "step_ns 5 6\n",
                            "local_latency_ns 0\n", "cores_per_host 0\n", "step_ns 7\nbad 1\n"})
        EXPECT_EQ(load(&tuning, &rules, bad), FT_INVAL) << bad;
    EXPECT_EQ(load(&tuning, &rules, std::string(1000, 'x')), FT_INVAL);
    EXPECT_EQ(ft_tuning_load(&tuning, &rules, "/nonexistent/table"), FT_INVAL);
    EXPECT_EQ(ft_tuning_digest(&tuning), digest) << "a bad table changed the costs";
}

TEST(Tuning, DigestSeesEveryField)
{
    struct ft_tuning base;
    ft_tuning_default(&base);
    std::vector<struct ft_tuning> all(13, base);
    all[1].chunk_bytes++;
    all[2].chunks++;
    all[3].choice = "ring";
    for (int i = 0; i < 9; i++)
        (&all[4 + i].costs.local_latency_ns)[i] += 1;
    all.push_back(base);
    all.back().costs.cores_per_host++;
    for (size_t i = 0; i < all.size(); i++)
        for (size_t k = 0; k < i; k++)
            EXPECT_NE(ft_tuning_digest(&all[i]), ft_tuning_digest(&all[k])) << i << " and " << k;
    struct ft_tuning unset = base;
    unset.choice = nullptr;
    EXPECT_EQ(ft_tuning_digest(&unset), ft_tuning_digest(&base));
}

// A measured choice holds for its ranks, hosts and bytes of the larger buffer, both ends included;
// the first that matches counts.
TEST(Rules, HoldWhereTheyWereMeasured)
{
    World world(4, 1);
    ASSERT_EQ(
        load(&world.tuning, &world.rules,
             "best allreduce ranks=4 hosts=1 to=1000 algo=tree\n"
             "best AllReduce ranks=4 hosts=1 from=500 algo=ring\n"
             "best allgather ranks=4 hosts=1 from=4096 to=8191 algo=ring # blocks of 1 to 2 KiB\n"),
        FT_OK)
        << ft_fail_text();
    struct {
        enum ft_kind kind;
        size_t bytes;
        const char *chosen;
    } table[] = {
        {FT_ALLREDUCE, 0, "tree"},    {FT_ALLREDUCE, 1000, "tree"},
        {FT_ALLREDUCE, 1001, "ring"}, {FT_ALLREDUCE, 1u << 30, "ring"},
        {FT_ALLGATHER, 1024, "ring"}, {FT_ALLGATHER, 2047, "ring"},
    };
    for (auto &t : table)
        EXPECT_EQ(world.select(t.kind, t.bytes), t.chosen)
            << ft_kind_name(t.kind) << " of " << t.bytes;
    for (int n : {3, 5, 8}) {
        World other(n, 1), plain(n, 1);
        other.tuning.rules = &world.rules;
        EXPECT_EQ(other.select(FT_ALLREDUCE, 8), plain.select(FT_ALLREDUCE, 8)) << n << " ranks";
    }
    World hosts(4, 2), plain(4, 2), here(4, 1);
    hosts.tuning.rules = &world.rules;
    EXPECT_EQ(hosts.select(FT_ALLREDUCE, 8), plain.select(FT_ALLREDUCE, 8));
    EXPECT_NE(here.select(FT_ALLGATHER, 1024), "ring")
        << "the costs choose the same: nothing is shown";
    for (size_t bytes : {1023, 2048})
        EXPECT_EQ(world.select(FT_ALLGATHER, bytes), here.select(FT_ALLGATHER, bytes)) << bytes;
}

TEST(Rules, HoldOverTheirTransport)
{
    const char *table = "best allreduce ranks=2 hosts=1 over=shm algo=tree\nbest allreduce ranks=2 "
                        "hosts=1 over=tcp algo=ring\n";
    World local(2, 1), network(2, 1);
    ft_tuning_links(&network.tuning, FT_LINKS_SOME);
    ASSERT_EQ(load(&local.tuning, &local.rules, table), FT_OK);
    ASSERT_EQ(load(&network.tuning, &network.rules, table), FT_OK);
    EXPECT_EQ(local.select(FT_ALLREDUCE, 8), "tree");
    EXPECT_EQ(network.select(FT_ALLREDUCE, 8), "ring");
    EXPECT_EQ(load(&local.tuning, &local.rules,
                   "best allreduce ranks=2 hosts=1 over=air algo=tree\n"),
              FT_INVAL);
}

// "over=" is a network's name or a class; names are those of networks that the build has.
TEST(Rules, MatchNetworksByNameOrByClass)
{
    auto known = [](const char *name) { return !strcmp(name, "air") || !strcmp(name, "water"); };
    struct {
        const char *lines, *network;
        enum ft_links links;
        const char *chosen; // nullptr: what is chosen without a table
    } table[] = {
        {"over=air algo=tree", "air", FT_LINKS_LOOPBACK, "tree"},
        {"over=air algo=tree", "air", FT_LINKS_SOME, "tree"},
        {"over=air algo=tree", "air", FT_LINKS_LOCAL, nullptr},
        {"over=air algo=tree", "water", FT_LINKS_LOOPBACK, nullptr},
        {"over=air algo=tree", "tcp", FT_LINKS_LOOPBACK, nullptr},
        {"over=tcp algo=tree", "air", FT_LINKS_LOOPBACK, nullptr},
        {"over=tcp algo=tree", "tcp", FT_LINKS_LOOPBACK, "tree"},
        {"over=shm algo=tree", "air", FT_LINKS_LOOPBACK, nullptr},
        {"over=shm algo=tree", "air", FT_LINKS_LOCAL, "tree"},
        {"over=network algo=tree", "air", FT_LINKS_SOME, "tree"},
        {"over=network algo=tree", "tcp", FT_LINKS_LOOPBACK, "tree"},
        {"over=network algo=tree", "tcp", FT_LINKS_LOCAL, nullptr},
        {"over=water algo=ring/over=air algo=tree/over=network algo=hd", "air", FT_LINKS_LOOPBACK,
         "tree"},
        {"over=water algo=ring/over=air algo=tree/over=network algo=hd", "fire", FT_LINKS_LOOPBACK,
         "hd"},
        {"over=network algo=hd/over=air algo=tree", "air", FT_LINKS_LOOPBACK, "hd"},
    };
    for (auto &t : table) {
        std::string text = t.lines;
        for (size_t at = 0; (at = text.find('/')) != std::string::npos;)
            text.replace(at, 1, "\nbest allreduce ranks=4 hosts=1 ");
        World world(4, 1), plain(4, 1);
        world.rules.is_network = known;
        ASSERT_EQ(load(&world.tuning, &world.rules,
                       "best allreduce ranks=4 hosts=1 " + text + "\n"),
                  FT_OK)
            << ft_fail_text();
        for (World *w : {&world, &plain}) {
            ft_tuning_network(&w->tuning, t.network, true, nullptr);
            ft_tuning_links(&w->tuning, t.links);
        }
        EXPECT_NE(plain.select(FT_ALLREDUCE, 8), "tree") << "nothing is shown";
        EXPECT_EQ(world.select(FT_ALLREDUCE, 8),
                  t.chosen ? t.chosen : plain.select(FT_ALLREDUCE, 8))
            << t.lines << " over " << t.network << ", links " << t.links;
    }
    World world(4, 1);
    world.rules.is_network = known;
    EXPECT_EQ(load(&world.tuning, &world.rules,
                   "best allreduce ranks=2 hosts=1 over=fire algo=tree\n"),
              FT_INVAL);
    std::string nine;
    for (int i = 0; i <= FT_NETWORKS; i++)
        nine += "best allreduce ranks=2 hosts=1 over=n" + std::to_string(i) + " algo=tree\n";
    world.rules.is_network = [](const char *) { return true; };
    EXPECT_EQ(load(&world.tuning, &world.rules, nine), FT_INVAL)
        << "more names than there is room for";
}

// A network's own costs hold where the table sets none, and nothing else of a plan's costs changes.
TEST(Tuning, NetworksHaveCostsOfTheirOwn)
{
    const struct ft_network_costs own = {1, 2, 3, 4, 5};
    struct ft_rules rules = {};
    struct ft_tuning plain, over_tcp, fabric, given, same;
    for (struct ft_tuning *tuning : {&plain, &over_tcp, &fabric, &given, &same})
        ft_tuning_default(tuning);
    ft_tuning_network(&over_tcp, "tcp", false, nullptr);
    EXPECT_EQ(memcmp(&plain.costs, &over_tcp.costs, sizeof plain.costs), 0);
    ft_tuning_network(&fabric, "air", true, &own);
    EXPECT_EQ(fabric.costs.remote_latency_ns, 1);
    EXPECT_EQ(fabric.costs.remote_ns_per_byte, 2);
    EXPECT_EQ(fabric.costs.loopback_latency_ns, 3);
    EXPECT_EQ(fabric.costs.loopback_ns_per_byte, 4);
    EXPECT_EQ(fabric.costs.loopback_message_ns, 5);
    EXPECT_EQ(fabric.costs.local_latency_ns, plain.costs.local_latency_ns);
    EXPECT_EQ(fabric.costs.step_ns, plain.costs.step_ns);
    ASSERT_EQ(load(&given, &rules, "remote_latency_ns 77\n"), FT_OK);
    ft_tuning_network(&given, "air", true, &own);
    EXPECT_EQ(given.costs.remote_latency_ns, 77);
    EXPECT_EQ(given.costs.remote_ns_per_byte, 2);
    // what a table says holds also if it says what is true of TCP, so ranks must agree on it
    std::string line = "remote_latency_ns " + std::to_string(plain.costs.remote_latency_ns) + "\n";
    ASSERT_EQ(load(&same, &rules, line), FT_OK);
    EXPECT_NE(ft_tuning_digest(&same), ft_tuning_digest(&plain));
    ft_tuning_network(&same, "air", true, &own);
    EXPECT_EQ(same.costs.remote_latency_ns, plain.costs.remote_latency_ns);
}

// Ranks whose tables name different networks count as different.
TEST(Tuning, DigestSeesNamesOfNetworks)
{
    auto all = [](const char *) { return true; };
    uint64_t digests[4];
    const char *over[4] = {"air", "fire", "tcp", "network"};
    for (int i = 0; i < 4; i++) {
        struct ft_rules rules = {};
        struct ft_tuning tuning;
        ft_tuning_default(&tuning);
        rules.is_network = all;
        ASSERT_EQ(
            load(&tuning, &rules,
                 "best allreduce ranks=4 hosts=1 algo=tree over=" + std::string(over[i]) + "\n"),
            FT_OK);
        digests[i] = ft_tuning_digest(&tuning);
        for (int k = 0; k < i; k++)
            EXPECT_NE(digests[i], digests[k]) << over[i] << " and " << over[k];
    }
}

// FTCCL_ALGO goes before a measured choice, and one whose algorithm does not fit is not followed.
TEST(Rules, BindOnlyWhatIsAllowedAndFits)
{
    World world(4, 1), plain(4, 1), six(6, 1), plain_six(6, 1);
    ASSERT_EQ(load(&world.tuning, &world.rules, "best allreduce ranks=4 hosts=1 algo=tree\n"),
              FT_OK);
    EXPECT_EQ(world.select(FT_ALLREDUCE, 8, "ring"), "ring");
    EXPECT_EQ(world.select(FT_ALLREDUCE, 8, "^tree"), plain.select(FT_ALLREDUCE, 8));
    EXPECT_EQ(world.select(FT_ALLREDUCE, 8, "^ring"), "tree");
    struct ft_coll coll = {FT_ALLREDUCE, FT_INT8, FT_SUM, 0, 4096};
    for (int i = 0; ft_algos[i]; i++) { // each that does not fit here
        if (ft_algos[i]->fits(&six.view, &coll, &six.tuning) ||
            !(ft_algos[i]->kinds & 1u << FT_ALLREDUCE))
            continue;
        six.rules.nrules = 0;
        ASSERT_EQ(load(&six.tuning, &six.rules,
                       std::string("best allreduce ranks=6 hosts=1 algo=") + ft_algos[i]->name),
                  FT_OK);
        EXPECT_EQ(six.select(FT_ALLREDUCE, 4096), plain_six.select(FT_ALLREDUCE, 4096))
            << ft_algos[i]->name;
    }
}

// Chunks of a measured choice shape the plan, and never exceed what is configured, which is what
// links have room for.
TEST(Rules, SetChunks)
{
    World world(2, 1);
    struct ft_coll coll = {FT_ALLREDUCE, FT_INT8, FT_SUM, 0, 16u << 20};
    struct ft_plan plan;
    ASSERT_EQ(load(&world.tuning, &world.rules,
                   "best allreduce ranks=2 hosts=1 algo=ring chunk_bytes=16384 chunks=2\n"),
              FT_OK);
    ASSERT_EQ(ft_algo_select(&world.view, &coll, &world.tuning, &plan), FT_OK);
    EXPECT_EQ(plan.nlanes, 2);
    EXPECT_EQ(plan.piece_elems, 2 * 16384u);
    world.rules.nrules = 0;
    ASSERT_EQ(load(&world.tuning, &world.rules,
                   "best allreduce ranks=2 hosts=1 algo=ring chunk_bytes=8388608\n"),
              FT_OK);
    ASSERT_EQ(ft_algo_select(&world.view, &coll, &world.tuning, &plan), FT_OK);
    EXPECT_EQ(plan.nlanes, world.tuning.chunks);
    EXPECT_LE(plan.piece_elems, 2 * world.tuning.chunk_bytes);
}

// The same for messages that are longer than a chunk: those that receivers read from the senders'
// memory, and those of two ranks.
TEST(Rules, DoNotLengthenLongMessages)
{
    World world(2, 1);
    world.tuning.local_links = true;
    world.tuning.pulls = FT_PULLS;
    const size_t most = ft_tuning_first_bytes(&world.tuning);
    ASSERT_EQ(most, 4u * 131072);
    ASSERT_EQ(load(&world.tuning, &world.rules,
                   "best broadcast ranks=2 hosts=1 algo=direct chunks=8\n"
                   "best reducescatter ranks=2 hosts=1 algo=ring chunks=8\n"),
              FT_OK);
    for (enum ft_kind kind : {FT_BROADCAST, FT_REDUCESCATTER}) {
        struct ft_coll coll = {kind, FT_INT8, FT_SUM, 0, 64u << 20};
        struct ft_plan plan;
        ASSERT_EQ(ft_algo_select(&world.view, &coll, &world.tuning, &plan), FT_OK);
        EXPECT_EQ(plan.piece_elems, most) << ft_kind_name(kind);
        EXPECT_EQ(plan.nlanes, 8);
    }
}

TEST(Plan, TwoRanksReduceLongMessages)
{
    World world(2, 1);
    world.tuning.local_links = true;
    struct ft_coll coll = {FT_ALLREDUCE, FT_INT8, FT_SUM, 0, 64u << 20};
    struct ft_plan plan;
    auto part = [&]() {
        EXPECT_EQ(ft_algo_select(&world.view, &coll, &world.tuning, &plan), FT_OK);
        return plan.piece_elems / 2;
    };
    EXPECT_EQ(part(), world.tuning.chunk_bytes) << "links have no room for more";
    world.tuning.pulls = FT_PULLS;
    EXPECT_EQ(part(), ft_tuning_first_bytes(&world.tuning));
    ASSERT_EQ(load(&world.tuning, &world.rules,
                   "best allreduce ranks=2 hosts=1 algo=ring chunk_bytes=131072\n"),
              FT_OK);
    EXPECT_EQ(part(), 131072u) << "it was measured";
}

/* All lanes but the first copy their message for all receivers, so there are several. */
TEST(Plan, BroadcastsToManyHaveSeveralLanes)
{
    for (int nranks : {4, 8}) {
        World world(nranks, 1);
        world.tuning.local_links = true;
        world.tuning.pulls = FT_PULLS;
        world.tuning.choice = "broadcast:direct";
        struct ft_coll coll = {FT_BROADCAST, FT_INT8, FT_SUM, 0, 65536};
        struct ft_plan plan;
        ASSERT_EQ(ft_algo_select(&world.view, &coll, &world.tuning, &plan), FT_OK);
        EXPECT_EQ(plan.nlanes, 1);
        EXPECT_EQ(ft_plan_copies(&plan), nranks > 4);
        coll.count = 256 << 10;
        ASSERT_EQ(ft_algo_select(&world.view, &coll, &world.tuning, &plan), FT_OK);
        EXPECT_EQ(plan.nlanes, nranks > 4 ? 4 : 1);
        EXPECT_EQ(plan.piece_elems, nranks > 4 ? 65536u : 256u << 10);
    }
}

TEST(Rules, AreReadStrictlyAndDigested)
{
    struct ft_rules rules = {};
    struct ft_tuning tuning;
    ft_tuning_default(&tuning);
    std::vector<uint64_t> digests = {ft_tuning_digest(&tuning)};
    for (const char *bad :
         {"best\n", "best nothing ranks=2 hosts=1 algo=ring\n", "best allreduce ranks=2 hosts=1\n",
          "best allreduce hosts=1 algo=ring\n", "best allreduce ranks=2 algo=ring\n",
          "best allreduce ranks=2 hosts=3 algo=ring\n",
          "best allreduce ranks=2 hosts=1 algo=bruck\n",
          "best allreduce ranks=2 hosts=1 algo=magic\n",
          "best allreduce ranks=2 hosts=1 algo=ring from=2 to=1\n",
          "best allreduce ranks=2 hosts=1 algo=ring to=1K\n",
          "best allreduce ranks=2 hosts=1 algo=ring to\n",
          "best allreduce ranks=2 hosts=1 algo=ring chunks=9\n",
          "best send ranks=2 hosts=1 algo=ring\n",
          "best allreduce ranks=2 hosts=1 algo=ring chunk_bytes=1\n",
          "best allreduce ranks=-2 hosts=1 algo=ring\n",
          "best allreduce ranks=2 hosts=1 algo=ring color=3\n"})
        EXPECT_EQ(load(&tuning, &rules, bad), FT_INVAL) << bad;
    EXPECT_EQ(ft_tuning_digest(&tuning), digests[0]) << "a bad table changed something";
    std::string first = "best allreduce ranks=2 hosts=1 algo=ring", many;
    for (const char *more : {"", " from=1", " to=9", " chunk_bytes=8192", " chunks=3"}) {
        rules.nrules = 0;
        ASSERT_EQ(load(&tuning, &rules, first + more), FT_OK) << more;
        digests.push_back(ft_tuning_digest(&tuning));
    }
    for (const char *other :
         {"best broadcast ranks=2 hosts=1 algo=ring", "best allreduce ranks=3 hosts=1 algo=ring",
          "best allreduce ranks=2 hosts=2 algo=ring", "best allreduce ranks=2 hosts=1 algo=rd"}) {
        rules.nrules = 0;
        ASSERT_EQ(load(&tuning, &rules, other), FT_OK) << other;
        digests.push_back(ft_tuning_digest(&tuning));
    }
    for (size_t i = 0; i < digests.size(); i++)
        for (size_t k = 0; k < i; k++)
            EXPECT_NE(digests[i], digests[k]) << i << " and " << k;
    rules.nrules = 0;
    for (int i = 0; i < FT_RULES; i++)
        many += first + "\n";
    EXPECT_EQ(load(&tuning, &rules, many), FT_OK);
    rules.nrules = 0;
    EXPECT_EQ(load(&tuning, &rules, many + first + "\n"), FT_INVAL);
}

TEST(Explain, NamesCandidatesChoiceAndSteps)
{
    World world(8, 1);
    world.tuning.choice = "^rd,flat";
    struct ft_coll coll = {FT_ALLREDUCE, FT_FLOAT32, FT_SUM, 0, 10};
    char *text = nullptr;
    size_t len = 0;
    FILE *out = open_memstream(&text, &len);
    ASSERT_EQ(ft_algo_explain(out, &world.view, &coll, &world.tuning), 0);
    fclose(out);
    std::string said = text;
    free(text);
    for (const char *part :
         {"AllReduce of 10 x float32, 8 ranks", "* hd", "  rd ", "excluded by FTCCL_ALGO",
          "twolevel  does not fit", "rank 0, lane 0:", "(final)"})
        EXPECT_NE(said.find(part), std::string::npos) << "'" << part << "' is missing in:\n"
                                                      << said;
}

// Walks all steps of one rank; what is stored in OUT must lie in it and cover it without gaps or
// overlaps.
void walk(const struct ft_algo *algo, enum ft_kind kind, int n, int rank, size_t count)
{
    World world(n, 2, rank);
    world.tuning.chunk_bytes = 8 << 20;
    struct ft_coll coll = {kind, FT_FLOAT32, FT_SUM, 0, count};
    struct ft_plan plan;
    if (!(algo->kinds >> kind & 1) || !algo->fits(&world.view, &coll, &world.tuning))
        return;
    ASSERT_EQ(ft_algo_plan(algo, &world.view, &coll, &world.tuning, &plan), 0);
    bool has_out = (kind != FT_REDUCE && kind != FT_GATHER) || rank == 0;
    bool blocks_out = kind == FT_ALLGATHER || kind == FT_ALLTOALL || kind == FT_GATHER;
    bool blocks_in = kind == FT_REDUCESCATTER || kind == FT_ALLTOALL || kind == FT_SCATTER;
    size_t out = has_out ? count * 4 * (blocks_out ? n : 1) : 0,
           in = count * 4 * (blocks_in ? n : 1);
    std::vector<std::pair<size_t, size_t>> stored;
    auto inside = [&](struct ft_ref ref, size_t len) {
        size_t size = ref.buf == FT_BUF_IN    ? in
                      : ref.buf == FT_BUF_OUT ? out
                      : ref.buf == FT_BUF_TMP ? plan.tmp_bytes
                                              : len;
        ASSERT_TRUE(ref.off <= size && len <= size - ref.off)
            << algo->name << " " << ft_kind_name(kind) << " offset " << ref.off;
    };
    for (int lane = 0; lane < plan.nlanes; lane++)
        for (uint64_t i = 0; i < plan.nsteps; i++) {
            struct ft_step s;
            ft_plan_step(&plan, lane, i, &s);
            inside(s.send, s.send_bytes);
            inside(s.src, s.len_bytes);
            inside(s.dst, s.len_bytes);
            if (s.dst.buf == FT_BUF_OUT)
                stored.push_back({s.dst.off, s.len_bytes});
        }
    std::sort(stored.begin(), stored.end());
    size_t at = 0;
    for (auto &[off, len] : stored) {
        ASSERT_EQ(off, at) << algo->name << " " << ft_kind_name(kind) << " rank " << rank;
        at += len;
    }
    ASSERT_EQ(at, out) << algo->name << " " << ft_kind_name(kind) << " rank " << rank;
}

TEST(Plan, CoversMoreThanTwoToThe31Elements)
{
    for (int i = 0; ft_algos[i]; i++)
        for (int kind = 0; kind < FT_SEND; kind++)
            for (int rank = 0; rank < 3; rank++)
                walk(ft_algos[i], (enum ft_kind)kind, 3, rank, (1ull << 31) + 12345);
}

} // namespace

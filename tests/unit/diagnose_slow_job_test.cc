/*
 * Property: ft_diagnose_slow() names the rank for which a job that moves waits in each step, and
 * nobody if the ranks are alike, if one of them is not in the snapshot, or if there is too little
 * to judge; it names the link, source or destination whose messages take longer than those of
 * others; no snapshot makes it crash. Method: jobs that are written down call by call and path by
 * path, and seeded rubbish.
 */
#include <algorithm>
#include <cstdlib>
#include <random>

#include "tests/unit/diagnose_builder.h"

namespace diagnose
{

/* Each step, every rank computes for its own time and then comes to a collective, which ends for
 * all when the last has come. */
struct Steps {
    Job job;
    std::vector<ft_snap_op> ops;
    std::vector<ft_verdict> verdicts;
    uint64_t age_s = 1; /* of the last call */

    Steps(const std::vector<double> &compute_ms, int steps, uint64_t seed)
        : job((int)compute_ms.size())
    {
        std::mt19937_64 random(seed);
        std::uniform_real_distribution<double> jitter(0.97, 1.03);
        std::vector<int> all;
        for (size_t r = 0; r < compute_ms.size(); r++)
            all.push_back((int)r);
        job.comm(1, "world", all);
        double now = 1e9;
        for (int step = 0; step < steps; step++) {
            std::vector<double> comes;
            for (double ms : compute_ms)
                comes.push_back(now + ms * 1e6 * jitter(random));
            now = *std::max_element(comes.begin(), comes.end()) + 1e5;
            for (size_t r = 0; r < comes.size(); r++)
                ops.push_back({(int)r, 0, (uint64_t)step + 6, sig_of(FT_ALLREDUCE), false, true,
                               (uint64_t)comes[r], (uint64_t)comes[r], (uint64_t)now});
        }
    }
    std::vector<int> slow()
    {
        verdicts.assign(8, ft_verdict{});
        ft_snapshot snap = {};
        snap.now_ns = ops.back().ended_ns + age_s * SECOND;
        snap.engines = job.engines.data();
        snap.members = job.members.data();
        snap.ops = ops.data();
        snap.nengines = (int)job.engines.size();
        snap.nmembers = (int)job.members.size();
        snap.nops = (int)ops.size();
        int found = ft_diagnose_slow(&snap, verdicts.data(), (int)verdicts.size());
        EXPECT_GE(found, 0);
        std::vector<int> ranks;
        for (int i = 0; i < found; i++) {
            EXPECT_EQ(verdicts[(size_t)i].kind, FT_VERDICT_NONCOMM_SLOW);
            ranks.push_back(verdicts[(size_t)i].culprits[0].rank);
        }
        return ranks;
    }
};

TEST(SlowJob, TheRankThatComesLastIsNamed)
{
    for (uint64_t seed = 1; seed <= 200; seed++) {
        std::vector<double> compute(4 + seed % 5, 10);
        int slow = (int)(seed % compute.size());
        compute[(size_t)slow] = 13;
        Steps steps(compute, 200, seed);
        EXPECT_EQ(steps.slow(), std::vector<int>{slow}) << "seed " << seed;
        EXPECT_EQ(steps.verdicts[0].culprits[0].pid, 4000 + slow);
    }
}

TEST(SlowJob, NobodyIsNamedIfAllAreAlike)
{
    for (uint64_t seed = 1; seed <= 200; seed++) {
        Steps steps(std::vector<double>(8, 10), 200, seed);
        EXPECT_EQ(steps.slow(), std::vector<int>{}) << "seed " << seed;
    }
}

/* Ranks 2 and 3 meet in a communicator of their own, or rank 3 receives from rank 2, before all
 * meet. So rank 3 is late, too, and waits for it. */
TEST(SlowJob, WhoIsHeldUpByTheSlowRankIsNotNamed)
{
    for (ft_kind kind : {FT_ALLREDUCE, FT_SEND}) {
        Steps steps({10, 10, 13, 10}, 0, 1);
        bool send = kind == FT_SEND;
        if (!send)
            steps.job.comm(2, "half", {2, 3});
        double now = 1e9;
        for (uint64_t step = 0; step < 200; step++) {
            auto at = [&](double ms) { return (uint64_t)(now + ms * 1e6); };
            for (int r : {2, 3})
                steps.ops.push_back({send ? r : r + 2, send ? 5 - r : 0, step + 6, sig_of(kind),
                                     send && r == 3, true, at(10), at(r == 2 ? 13 : 10), at(13.1)});
            for (int r = 0; r < 4; r++)
                steps.ops.push_back({r, 0, step + 6, sig_of(FT_ALLREDUCE), false, true,
                                     at(r < 2 ? 10 : 13.2), at(r < 2 ? 10 : 13.2), at(13.4)});
            now += 13.4e6;
        }
        EXPECT_EQ(steps.slow(), std::vector<int>{2}) << (send ? "a send" : "a communicator");
    }
}

TEST(SlowJob, NobodyIsNamedWithoutEvidence)
{
    Steps few({10, 13, 10, 10}, 15, 1);
    EXPECT_EQ(few.slow(), std::vector<int>{}) << "too few calls";
    Steps brief({10, 13, 10, 10}, 60, 1);
    EXPECT_EQ(brief.slow(), std::vector<int>{}) << "less than a second";
    Steps old({10, 13, 10, 10}, 200, 1);
    old.age_s = 61;
    EXPECT_EQ(old.slow(), std::vector<int>{}) << "it does not move";
    Steps missing({10, 13, 10, 10}, 200, 1);
    missing.job.members.pop_back();
    missing.ops.erase(std::remove_if(missing.ops.begin(), missing.ops.end(),
                                     [](const ft_snap_op &op) { return op.member == 3; }),
                      missing.ops.end());
    EXPECT_EQ(missing.slow(), std::vector<int>{}) << "a rank is missing";
    Steps failed({10, 13, 10, 10}, 200, 1);
    failed.job.of(1, 0).failed = true;
    EXPECT_EQ(failed.slow(), std::vector<int>{}) << "the communicator has failed";
}

/* Paths between all ranks of communicators, as both ends tell. All messages take 1 ms for 100 KB,
 * but for those that a test makes slower. As on a real network, the acknowledgements of the other
 * direction then come late, too. */
struct Network {
    Job job;
    std::vector<ft_snap_path> paths;
    std::vector<ft_verdict> verdicts;

    explicit Network(int n) : job(n)
    {
        for (int from = 0; from < n; from++)
            for (int to = 0; to < n; to++)
                if (from != to)
                    add(from, to);
    }
    void add(int from, int to)
    {
        ft_snap_path p = {};
        p.engine = from;
        p.peer = Job::id(to);
        p.sender = true;
        p.seen_ns = NOW - SECOND;
        p.span_ns = 10 * SECOND;
        p.messages = 1000;
        p.bytes = 100000000;
        p.network_ns = SECOND;
        strcpy(p.source, "10.0.0.1:1");
        strcpy(p.destination, "10.0.0.2:2");
        paths.push_back(p);
        p.engine = to;
        p.peer = Job::id(from);
        p.sender = false;
        p.network_ns = 0;
        p.flight_ns = 1000;
        paths.push_back(p);
    }
    static bool is(const ft_snap_path &p, int engine, int peer)
    {
        return (engine < 0 || p.engine == engine) && (peer < 0 || p.peer == Job::id(peer));
    }
    void slow(int from, int to, double factor)
    {
        for (ft_snap_path &p : paths) {
            if (p.sender && is(p, from, to))
                p.network_ns = (uint64_t)((double)p.network_ns * factor);
            if (p.sender && is(p, to, from))
                p.network_ns = (uint64_t)((double)p.network_ns * factor * 0.8);
            if (!p.sender && is(p, to, from))
                p.flight_ns = (uint32_t)(p.flight_ns * factor);
        }
    }
    /* Both directions take as much longer, and messages come as fast as ever; fast is never equal.
     */
    void delay(int from, int to, double factor)
    {
        for (ft_snap_path &p : paths) {
            if (p.sender && is(p, from, to))
                p.network_ns = (uint64_t)((double)p.network_ns * factor * 1.1);
            if (p.sender && is(p, to, from))
                p.network_ns = (uint64_t)((double)p.network_ns * factor);
            if (!p.sender && is(p, to, from))
                p.flight_ns /= 3;
        }
    }
    void lose(int from, int to, uint64_t segments)
    {
        for (ft_snap_path &p : paths)
            if (p.sender && is(p, from, to))
                p.retransmits += segments;
    }
    std::string said()
    {
        verdicts.assign(8, ft_verdict{});
        ft_snapshot snap = {};
        snap.now_ns = NOW;
        snap.engines = job.engines.data();
        snap.members = job.members.data();
        snap.paths = paths.data();
        snap.nengines = (int)job.engines.size();
        snap.nmembers = (int)job.members.size();
        snap.npaths = (int)paths.size();
        int found = ft_diagnose_slow(&snap, verdicts.data(), (int)verdicts.size());
        std::string all;
        for (int i = 0; i < found; i++) {
            const ft_verdict &v = verdicts[(size_t)i];
            all += std::string(ft_verdict_name(v.kind)) + " " + std::to_string(v.ctx) + ":" +
                   std::to_string(v.culprits[0].rank) + ">" + std::to_string(v.culprits[0].peer) +
                   ";";
        }
        return all;
    }
};

TEST(SlowJob, APathOnWhichNothingComesIsNotSlow)
{
    Network net(6);
    net.job.comm(2, "world", {5, 4, 3, 2, 1, 0});
    net.slow(1, 3, 5);
    net.job.waits(2, 2, 4, 1);
    EXPECT_EQ(net.said(), "comm_slow_link 2:4>2;") << "its receiver waits for a second";
    net.job.waits(2, 2, 4, 2);
    EXPECT_EQ(net.said(), "") << "the link may be dead";
    net.job.waits(2, 2, 3, 2);
    EXPECT_EQ(net.said(), "comm_slow_link 2:4>2;") << "it waits for another rank";
}

TEST(SlowJob, SlowPathsAreNamed)
{
    std::vector<int> all = {5, 4, 3, 2, 1, 0};
    Network even(6), point(6), row(6), column(6), both(6), small(6), old(6);
    for (Network *net : {&even, &point, &row, &column, &both, &small, &old}) {
        net->job.comm(1, "pair", {0, 1, 2});
        net->job.comm(2, "world", all);
    }
    EXPECT_EQ(even.said(), "");
    point.slow(1, 3, 5);
    EXPECT_EQ(point.said(), "comm_slow_link 2:4>2;");
    EXPECT_EQ(point.verdicts[0].culprits[0].pid, 4001);
    EXPECT_EQ(point.verdicts[0].nculprits, 1) << "receivers tell the direction";
    EXPECT_NE(std::string(point.verdicts[0].sentence).find("rank 4 (pid 4001 on a) to rank 2"),
              std::string::npos)
        << point.verdicts[0].sentence;
    row.slow(1, -1, 3);
    EXPECT_EQ(row.said(), "comm_slow_source 2:4>-1;");
    column.slow(-1, 0, 3);
    EXPECT_EQ(column.said(), "comm_slow_destination 2:5>-1;");
    both.slow(1, -1, 4);
    both.slow(2, 5, 9);
    EXPECT_EQ(both.said(), "comm_slow_source 2:4>-1;comm_slow_link 2:3>0;");
    for (ft_snap_path &p : small.paths)
        p.network_ns /= 100;
    small.slow(1, 3, 5);
    EXPECT_EQ(small.said(), "") << "hardly any time is lost";
    old.slow(1, 3, 5);
    for (ft_snap_path &p : old.paths)
        p.seen_ns = NOW - 61 * SECOND;
    EXPECT_EQ(old.said(), "") << "it does not move";
    Network shorter(6), deaf(6);
    shorter.job.comm(2, "world", all);
    shorter.slow(1, 3, 5);
    for (ft_snap_path &p : shorter.paths)
        p.messages = 10000;
    EXPECT_EQ(shorter.said(), "") << "10 KB: acknowledgements are late anyway";
    deaf.job.comm(2, "world", all);
    deaf.slow(1, 3, 5);
    deaf.paths.erase(std::remove_if(deaf.paths.begin(), deaf.paths.end(),
                                    [](const ft_snap_path &p) { return !p.sender; }),
                     deaf.paths.end());
    EXPECT_EQ(deaf.said(), "comm_slow_link 2:4>2;");
    EXPECT_EQ(deaf.verdicts[0].nculprits, 2) << "nobody tells the direction";
}

/* Nobody can tell in which direction a delay is: the time is that of a round trip. */
TEST(SlowJob, ADelayIsOfBothDirections)
{
    Network net(4);
    net.job.comm(2, "world", {3, 2, 1, 0});
    net.delay(0, 2, 20);
    EXPECT_EQ(net.said(), "comm_slow_link 2:3>1;");
    EXPECT_EQ(net.verdicts[0].nculprits, 2);
    EXPECT_EQ(net.verdicts[0].culprits[1].rank, 1);
    EXPECT_EQ(net.verdicts[0].culprits[1].peer, 3);
}

/* What goes to a rank, or comes from it, may wait a little for what one link delays. */
TEST(SlowJob, OneLinkExplainsThatItsNeighboursWait)
{
    Network net(4);
    net.job.comm(2, "world", {3, 2, 1, 0});
    for (ft_snap_path &p : net.paths)
        p.network_ns /= 20;
    for (int other : {1, 3})
        net.delay(other, 2, 4);
    net.delay(0, 2, 60);
    EXPECT_EQ(net.said(), "comm_slow_link 2:1>3;");
    EXPECT_EQ(net.verdicts[0].nculprits, 2) << "both directions";
}

/* A few late messages make a path look slow that carries little. They cost the job little. */
TEST(SlowJob, ATenthOfTheTimeMustBeLost)
{
    Network net(4);
    net.job.comm(2, "world", {3, 2, 1, 0});
    for (ft_snap_path &p : net.paths)
        p.network_ns = SECOND * 2 / 5;
    net.slow(0, 2, 3.3);
    EXPECT_EQ(net.said(), "") << "0.92 s of 10";
    net.slow(0, 2, 1.15);
    EXPECT_EQ(net.said(), "comm_slow_link 2:3>1;") << "1.1 s of 10";
    for (ft_snap_path &p : net.paths)
        p.span_ns = 3 * SECOND;
    EXPECT_EQ(net.said(), "") << "the links are new";
}

/* Ranks of two hosts share what is slow between these. */
TEST(SlowJob, LinksBetweenTheSameHostsAreOneVerdict)
{
    for (bool lost : {false, true}) {
        Network net(8);
        net.job.comm(2, "world", {0, 1, 2, 3, 4, 5, 6, 7});
        for (int i = 0; i < 8; i++)
            net.job.engines[(size_t)i].host = (uint64_t)i / 2;
        for (ft_snap_path &p : net.paths)
            if (lost) { /* 1,700 segments */
                p.messages /= 40;
                p.bytes /= 40;
                p.network_ns /= 40;
            }
        for (int from : {0, 1})
            for (int to : {4, 5}) { /* only one is found by itself */
                bool most = from == 0 && to == 5;
                lost ? net.lose(from, to, most ? 25 : 12) : net.slow(from, to, most ? 8 : 2.9);
            }
        EXPECT_EQ(net.said().substr(0, 17), "comm_slow_link 2:") << lost;
        EXPECT_EQ(net.verdicts[0].nculprits, 4) << lost;
        for (int i = 0; i < 4; i++) {
            EXPECT_LE(net.verdicts[0].culprits[i].rank, 1);
            EXPECT_EQ(net.verdicts[0].culprits[i].peer / 2, 2);
        }
        EXPECT_EQ(net.verdicts[1].nculprits, 0) << "another verdict";
    }
}

/* A receiver that tells another direction than those of other ranks is not believed. */
TEST(SlowJob, ThoseOfAPathAgreeOnItsDirection)
{
    for (bool agree : {true, false}) {
        Network net(8);
        net.job.comm(2, "world", {0, 1, 2, 3, 4, 5, 6, 7});
        for (int i = 0; i < 8; i++)
            net.job.engines[(size_t)i].host = (uint64_t)i / 2;
        for (int from : {0, 1})
            for (int to : {4, 5})
                agree || from == 0 || to == 4 ? net.slow(from, to, 5) : net.slow(to, from, 5);
        EXPECT_EQ(net.said().substr(0, 17), "comm_slow_link 2:") << agree;
        EXPECT_EQ(net.verdicts[0].nculprits, agree ? 4 : 8) << agree;
        EXPECT_EQ(net.verdicts[1].nculprits, 0) << "another verdict";
    }
}

/* Of each path about 69,000 segments. */
TEST(SlowJob, LossesAreNamed)
{
    std::vector<int> all = {5, 4, 3, 2, 1, 0};
    Network point(6), two_ways(6), row(6), column(6), everywhere(6), few(6), slow_too(6);
    for (Network *net : {&point, &two_ways, &row, &column, &everywhere, &few, &slow_too}) {
        net->job.comm(1, "part", {1, 2, 3});
        net->job.comm(2, "world", all);
        net->lose(-1, -1, 20);
    }
    EXPECT_EQ(point.said(), "");
    point.lose(1, 3, 690);
    EXPECT_EQ(point.said(), "comm_slow_link 2:4>2;");
    EXPECT_NE(std::string(point.verdicts[0].sentence).find("710 segments (1%) were sent again"),
              std::string::npos)
        << point.verdicts[0].sentence;
    for (ft_snap_path &p : point.paths)
        p.messages = 10000;
    EXPECT_EQ(point.said(), "comm_slow_link 2:4>2;") << "short messages are lost as well";
    point.lose(3, 1, 200);
    EXPECT_EQ(point.said(), "comm_slow_link 2:4>2;");
    EXPECT_EQ(point.verdicts[0].nculprits, 1) << "the way back loses less than 0.5%";
    two_ways.lose(1, 3, 700);
    two_ways.lose(3, 1, 690);
    EXPECT_EQ(two_ways.said(), "comm_slow_link 2:4>2;");
    EXPECT_EQ(two_ways.verdicts[0].nculprits, 2);
    row.lose(1, -1, 690);
    EXPECT_EQ(row.said(), "comm_slow_source 2:4>-1;");
    column.lose(-1, 0, 690);
    EXPECT_EQ(column.said(), "comm_slow_destination 2:5>-1;");
    everywhere.lose(-1, -1, 690);
    everywhere.lose(1, 3, 690);
    EXPECT_EQ(everywhere.said(), "") << "no link is worse than others";
    few.lose(1, 3, 300);
    EXPECT_EQ(few.said(), "") << "less than 0.5%";
    slow_too.lose(1, 3, 690);
    slow_too.slow(1, 3, 5);
    EXPECT_EQ(slow_too.said(), "comm_slow_link 2:4>2;") << "one verdict, and its cause";
    EXPECT_NE(std::string(slow_too.verdicts[0].sentence).find("sent again"), std::string::npos);
    for (ft_snap_path &p : slow_too.paths) { /* the start of a job */
        p.messages /= 100;
        p.bytes /= 100;
        p.retransmits /= 100;
        p.network_ns /= 100;
    }
    EXPECT_EQ(slow_too.said(), "");
}

/* Links between hosts are slower than those inside one, and that is no fault. */
TEST(SlowJob, HostsAreComparedApart)
{
    for (bool faulty : {false, true}) {
        Network net(8);
        net.job.comm(2, "world", {0, 1, 2, 3, 4, 5, 6, 7});
        for (int i = 0; i < 8; i++)
            net.job.engines[(size_t)i].host = (uint64_t)i / 4;
        for (ft_snap_path &p : net.paths)
            if (p.engine / 4 != (int)(p.peer - Job::id(0)) / 4)
                p.network_ns *= 6, p.flight_ns *= 6;
        if (faulty)
            net.slow(0, 7, 4);
        EXPECT_EQ(net.said(), faulty ? "comm_slow_link 2:0>7;" : "");
    }
}

TEST(SlowJob, RubbishDoesNoHarm)
{
    const char *given = getenv("FT_SEED");
    uint64_t seed = given ? strtoull(given, nullptr, 0) : std::random_device{}();
    SCOPED_TRACE("replay: FT_SEED=" + std::to_string(seed) +
                 " tests/unit/diagnose_slow_test --gtest_filter=SlowJob.Rubbish*");
    std::mt19937_64 random(seed);
    for (int run = 0; run < 2000; run++) {
        Steps steps({10, 13, 10, 10}, 40, random());
        for (int i = 0; i < 20; i++) {
            auto &op = steps.ops[random() % steps.ops.size()];
            uint64_t *fields[] = {&op.seq, &op.sig, &op.started_ns, &op.ended_ns};
            *fields[random() % 4] = random() >> random() % 64;
            auto &member = steps.job.members[random() % steps.job.members.size()];
            int *numbers[] = {&member.rank, &member.nranks, &member.engine, &op.member};
            if (random() % 8 == 0)
                *numbers[random() % 4] = (int)(random() >> random() % 64);
        }
        steps.slow();
        Network net(5);
        net.job.comm(1, "world", {0, 1, 2, 3, 4});
        net.slow(0, 1, 9);
        for (int i = 0; i < 20; i++) {
            ft_snap_path &p = net.paths[random() % net.paths.size()];
            uint64_t *fields[] = {&p.peer,  &p.seen_ns,    &p.span_ns,     &p.messages,
                                  &p.bytes, &p.network_ns, &p.retransmits, &p.rtt_ns};
            *fields[random() % 8] = random() >> random() % 64;
            if (random() % 8 == 0)
                p.engine = (int)(random() >> random() % 64);
            if (random() % 8 == 0)
                net.job.members[random() % 5].rank = (int)(random() >> random() % 64);
            if (random() % 8 == 0)
                net.job.engines[random() % 5].id = random() % 3;
        }
        net.said();
    }
}

} // namespace diagnose

/*
 * Property: ft_diagnose_slow() names the rank for which a job that moves waits in each step, and
 * nobody if the ranks are alike, if one of them is not in the snapshot, or if there is too little
 * to judge; no snapshot makes it crash. Method: jobs that are written down call by call, and seeded
 * rubbish.
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
    }
}

} // namespace diagnose

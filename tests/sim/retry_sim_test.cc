// Property: with policy retry, at whatever moment ranks die or a link breaks, every call on every
// survivor succeeds. The result is that of one set of contributors, the same on all survivors. That
// set contains all survivors, and never grows from call to call. An average divides by the size of
// the set. A call that cannot be repeated fails on all ranks. Method: whole engines under a virtual
// clock. Ranks come to their calls at random times; the calls are alone or grouped, in place or
// not. Rank r contributes 60 << r, so a sum or an average tells which ranks are in it. Replay one
// seed: FT_SIM_SEED=n FT_SIM_RUNS=1 tests/sim/retry_test
#include "sim/retry_sim.h"
#include "sim/validations.h"

namespace
{

void check_all(const Sim &sim, bool lost)
{
    unsigned most = (1u << sim.n) - 1;
    for (int r = 0; r < sim.n; r++) {
        if (!sim.alive[r])
            continue;
        EXPECT_EQ(ft_stream_query(sim.streams[r]), FT_OK) << "rank " << r << ": " << ft_fail_text();
        EXPECT_EQ(sim.comms[r]->failure.verdict.load(), FT_OK)
            << "rank " << r << ": " << sim.comms[r]->failure.text;
    }
    for (size_t id = 0; id < sim.calls.size() && !testing::Test::HasFailure(); id++) {
        unsigned set = sim.check(id, most);
        if (set)
            most = set;
        if (!lost && set) {
            EXPECT_EQ(set, (1u << sim.n) - 1) << "call " << id << ": nobody died";
        }
    }
}

TEST(SimRetry, CallsSucceedWhoeverDies)
{
    uint64_t first = env_u64("FT_SIM_SEED", 1), runs = env_u64("FT_SIM_RUNS", 400);
    uint64_t shrunk = 0, fenced = 0;
    for (uint64_t seed = first; seed < first + runs && !HasFailure(); seed++) {
        SCOPED_TRACE(replay(seed));
        Sim sim(seed, 3 + int(seed % 4), seed % 5 == 0);
        while (sim.calls.size() < 6)
            sim.add_call(sim_random(&sim.world, 2)   ? FT_ALLREDUCE
                         : sim_random(&sim.world, 2) ? FT_BROADCAST
                                                     : FT_REDUCE);
        int deaths = 1 + (sim.n > 4 && sim_random(&sim.world, 2));
        std::vector<uint64_t> when{sim_random(&sim.world, 2000), sim_random(&sim.world, 2000)};
        std::vector<int> victim{int(sim_random(&sim.world, sim.n))};
        victim.push_back((victim[0] + 1) % sim.n);
        for (Call &call : sim.calls) /* roots live */
            while (call.root == victim[0] || call.root == victim[1])
                call.root = (call.root + 1) % sim.n;
        EXPECT_TRUE(sim.run(UINT64_C(60000000000), [&](uint64_t turn) {
            for (int k = 0; k < deaths; k++)
                if (turn == when[k])
                    sim.kill(victim[k]);
        })) << "operations still pending after 60 s of virtual time";
        fenced += uint64_t(left_out(sim));
        check_all(sim, true);
        for (int r = 0; r < sim.n; r++)
            shrunk += sim.alive[r] && sim.comms[r]->view.nranks < sim.n;
    }
    std::printf("%lu survivors went on in a smaller view, %lu were left out\n", shrunk, fenced);
    EXPECT_LE(fenced, 1 + runs / 100);
    if (runs >= 100) {
        EXPECT_GT(shrunk, runs / 2);
    }
}

/* Ranks are paused at random moments, and one dies. */
TEST(SimRetry, CallsSucceedBesideValidations)
{
    uint64_t first = env_u64("FT_SIM_SEED", 1), runs = env_u64("FT_SIM_RUNS", 60);
    size_t measured = 0;
    for (uint64_t seed = first; seed < first + runs && !HasFailure(); seed++) {
        SCOPED_TRACE(replay(seed));
        Sim sim(seed, 3 + int(seed % 4), seed % 5 == 0);
        while (sim.calls.size() < 16)
            sim.add_call(FT_ALLREDUCE);
        Validations validations(sim.world, 3, 1500, sim.comms);
        uint64_t when = sim_random(&sim.world, 8000);
        int victim = int(sim_random(&sim.world, sim.n));
        EXPECT_TRUE(sim.run(UINT64_C(60000000000), [&](uint64_t turn) {
            validations.each(turn, sim.engines, sim.comms, sim.alive);
            if (turn == when)
                sim.kill(victim);
        })) << "operations still pending after 60 s of virtual time";
        validations.expect_end(sim.engines, sim.comms, sim.alive);
        measured += validations.measured.size();
        left_out(sim);
        check_all(sim, true);
    }
    std::printf("%zu validations measured\n", measured);
    if (runs >= 60) {
        EXPECT_GT(measured, runs / 4);
    }
}

TEST(SimRetry, ABrokenLinkIsMended)
{
    uint64_t first = env_u64("FT_SIM_SEED", 1), runs = env_u64("FT_SIM_RUNS", 300), mended = 0;
    for (uint64_t seed = first; seed < first + runs && !HasFailure(); seed++) {
        SCOPED_TRACE(replay(seed));
        Sim sim(seed, 2 + int(seed % 5), false);
        while (sim.calls.size() < 6)
            sim.add_call(sim_random(&sim.world, 2) ? FT_ALLREDUCE : FT_BROADCAST);
        uint64_t when = sim_random(&sim.world, 1000);
        int from = int(sim_random(&sim.world, sim.n)), to = (from + 1) % sim.n;
        bool cut = false;
        EXPECT_TRUE(sim.run(UINT64_C(60000000000), [&](uint64_t turn) {
            if (turn >= when && !cut)
                cut = sim_cut(&sim.world, 1000 + uint64_t(from), 1000 + uint64_t(to));
        })) << "operations still pending after 60 s of virtual time";
        check_all(sim, false);
        mended += sim.comms[0]->view.epoch > 1;
    }
    std::printf("%lu of %lu communicators went on with the same ranks\n", mended, runs);
    if (runs >= 100) {
        EXPECT_GT(mended, runs / 10);
    }
}

/* What cannot be repeated, a dead root and too few ranks: either all survivors have every result,
 * or all have an error. */
TEST(SimRetry, OtherCallsFailOnAll)
{
    uint64_t first = env_u64("FT_SIM_SEED", 1), runs = env_u64("FT_SIM_RUNS", 300), failures = 0;
    for (uint64_t seed = first; seed < first + runs && !HasFailure(); seed++) {
        SCOPED_TRACE(replay(seed));
        int n = 3 + int(seed % 4), what = int(seed / 4 % 3), victim;
        Sim sim(seed, n, false, what == 2 ? n : 1);
        victim = int(sim_random(&sim.world, n));
        for (int i = 0; i < 6; i++)
            sim.add_call(what == 0 && i % 2   ? FT_ALLGATHER
                         : what == 1 && i % 2 ? FT_BROADCAST
                                              : FT_ALLREDUCE);
        for (Call &call : sim.calls)
            call.inplace = call.joined = false, call.root = victim;
        uint64_t when = sim_random(&sim.world, 600);
        std::vector<int> status(n);
        EXPECT_TRUE(sim.run(UINT64_C(60000000000), [&](uint64_t turn) {
            if (turn == when)
                sim.kill(victim);
            for (int r = 0; r < n; r++) /* users stop at the first error */
                if (sim.comms[r]->failure.verdict.load() != FT_OK)
                    sim.next[r] = sim.calls.size();
        })) << "operations still pending after 60 s of virtual time";
        int failed = 0, living = 0;
        for (int r = 0; r < n; r++) {
            if (!sim.alive[r])
                continue;
            living++;
            failed += sim.comms[r]->failure.verdict.load() != FT_OK;
            if (sim.comms[r]->failure.verdict.load() == FT_OK) {
                EXPECT_EQ(ft_stream_query(sim.streams[r]), FT_OK) << "rank " << r;
            }
        }
        EXPECT_TRUE(failed == 0 || failed == living) << failed << " of " << living << " failed";
        failures += failed > 0;
    }
    std::printf("%lu of %lu communicators failed\n", failures, runs);
    if (runs >= 100) {
        EXPECT_GT(failures, runs / 4);
    }
}

} // namespace

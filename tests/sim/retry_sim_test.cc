// Property: with policy retry, whatever moment ranks die or a link breaks at, every call on every survivor succeeds; the result is
// that of one set of contributors, the same on all survivors, which holds all of them and never grows from call to call; an average
// divides by the number of that set. A call that cannot be repeated fails on all.
// Method: whole engines under a virtual clock; ranks come to their calls at random times, alone or grouped, in place or not. Rank
// r contributes 60 << r, so that a sum or an average tells who is in it. Replay one seed: FT_SIM_SEED=n FT_SIM_RUNS=1 tests/sim/retry_test
#include <gtest/gtest.h>

#include <cstdlib>
#include <functional>
#include <vector>

extern "C" {
#include "sim/sim.h"
}

namespace {

uint64_t env_u64(const char *name, uint64_t other)
{
    const char *text = std::getenv(name);
    return text ? std::strtoull(text, nullptr, 0) : other;
}

const int32_t unit = 60; /* divisible by every number of ranks here */

struct Call {
    ft_kind kind;
    ft_red red;
    int root; /* as a rank of the first view */
    size_t count;
    bool inplace, joined; /* in one group with the call before it */
    std::vector<std::vector<int32_t>> in, out;
};

struct Sim {
    sim_world world;
    int n;
    std::vector<ft_engine *> engines;
    std::vector<ft_comm *> comms;
    std::vector<ft_stream *> streams;
    std::vector<bool> alive;
    std::vector<size_t> next; /* call of each rank */
    std::vector<Call> calls;

    Sim(uint64_t seed, int ranks, bool verify, int64_t min_ranks = 1) : n(ranks), next(ranks)
    {
        sim_start(&world, seed);
        world.late_copy = sim_random(&world, 2);
        world.late_down_ns = sim_random(&world, 2) ? 0 : sim_random(&world, 300000);
        ft_comm_limits limits{2000, 1000, 200, min_ranks, 0, false, verify, true};
        std::vector<int> host(n);
        std::vector<uint64_t> peer(n);
        for (int r = 0; r < n; r++) host[r] = r * 2 / n, peer[r] = 1000 + r;
        ft_view view{1, n, 0, 2, host.data(), peer.data()};
        size_t chunk = 4096u << sim_random(&world, 2);
        for (int r = 0; r < n; r++) {
            ft_engine_config config{};
            config.env = &world.env;
            config.transports[0] = &sim_transport_ops;
            config.id = peer[r];
            config.rank = r;
            config.manual = true;
            ft_engine *engine = nullptr;
            EXPECT_EQ(ft_engine_open(&config, &engine), FT_OK) << ft_fail_text();
            engine->tuning.chunk_bytes = chunk;
            engines.push_back(engine);
            streams.push_back(ft_stream_new());
            alive.push_back(true);
        }
        for (int r = 0; r < n; r++) {
            for (int k = 0; k < n; k++) {
                ft_card card;
                if (k == r) continue;
                EXPECT_EQ(ft_engine_card(engines[k], &card), FT_OK);
                EXPECT_EQ(ft_engine_learn(engines[r], peer[k], 1, card.address, card.address_bytes, k), FT_OK);
            }
            EXPECT_EQ(ft_engine_bind(engines[r], 77), FT_OK);
            ft_view mine = view;
            mine.rank = r;
            ft_comm *comm = nullptr;
            EXPECT_EQ(ft_comm_open(engines[r], &mine, 77, "sim", &limits, &comm), FT_OK);
            comms.push_back(comm);
        }
    }

    ~Sim()
    {
        for (int r = 0; r < n; r++)
            if (!alive[r]) bury(r);
        for (int r = 0; r < n; r++) {
            ft_stream_release(streams[r]);
            ft_comm_close(comms[r]);
            ft_engine_unref(engines[r]);
        }
        EXPECT_EQ(world.frames, 0u) << "messages leaked";
        EXPECT_EQ(world.events, nullptr) << "events of closed transports";
    }

    void bury(int r)
    {
        comms[r]->leaving.store(1);
        ft_engine_lock(engines[r]);
        ft_comm_fail(comms[r], FT_ABORTED, r, "dead");
        for (int k = 0; k < 1000 && comms[r]->queued.load(); k++) {
            world.now_ns += 100000000;
            ft_engine_turn(engines[r]);
        }
        ft_engine_unlock(engines[r]);
    }

    void add_call(ft_kind kind)
    {
        Call call{kind, sim_random(&world, 2) ? FT_SUM : FT_AVG, int(sim_random(&world, n)), 1 + sim_random(&world, sim_random(&world, 2) ? 20 : 6000),
                  sim_random(&world, 2) != 0, sim_random(&world, 3) == 0, {}, {}};
        for (int r = 0; r < n; r++) {
            call.in.emplace_back(call.count * (kind == FT_ALLGATHER ? n : 1), unit << r);
            call.out.emplace_back(call.in[r].size(), -1);
        }
        calls.push_back(call);
    }

    ft_op *make_op(Call &call, int r)
    {
        ft_op *op = ft_op_new();
        int root = -1;
        for (int k = 0; k < comms[r]->view.nranks; k++)
            if (comms[r]->view.peer[k] == 1000u + unsigned(call.root)) root = k;
        op->coll.kind = call.kind;
        op->coll.type = FT_INT32;
        op->coll.count = call.count;
        op->coll.red = call.red;
        op->redop.red = ft_kind_reduces(call.kind) ? call.red : FT_SUM;
        op->coll.root = call.kind == FT_BROADCAST || call.kind == FT_REDUCE ? root : 0;
        op->in = call.in[r].data();
        op->out = call.inplace ? call.in[r].data() : call.out[r].data();
        op->epoch = comms[r]->view.epoch;
        op->root_id = 1000u + unsigned(call.root);
        return op;
    }

    void submit(int r)
    {
        ft_entry *entry = ft_entry_new(&streams[r], 1);
        do ft_work_add(ft_entry_work(entry, comms[r]), make_op(calls[next[r]], r));
        while (++next[r] < calls.size() && calls[next[r]].joined);
        ft_entry_submit(entry);
    }

    bool finished() const
    {
        for (int r = 0; r < n; r++)
            if (alive[r] && (next[r] < calls.size() || comms[r]->queued.load() > 0 || comms[r]->retry.under_way.load())) return false;
        return true;
    }

    /* Ranks come to their calls and are turned in random order. false: the bound passed. */
    bool run(uint64_t bound_ns, const std::function<void(uint64_t)> &each)
    {
        uint64_t end = world.now_ns + bound_ns;
        int still = 0;
        for (uint64_t turns = 0; !finished(); turns++) {
            each(turns);
            int r = int(sim_random(&world, n));
            if (alive[r] && next[r] < calls.size() && sim_random(&world, 20) == 0) submit(r);
            still = alive[r] && ft_engine_turn(engines[r]) ? 0 : still + 1;
            world.now_ns += 20;
            if (still > 4 * n) {
                uint64_t event = sim_next(&world);
                if (event > world.now_ns) world.now_ns = event < world.now_ns + 1000000 ? event : world.now_ns + 500000;
                still = 0;
            }
            if (world.now_ns > end) return false;
        }
        return true;
    }

    void kill(int r)
    {
        sim_kill(&world, 1000 + uint64_t(r));
        alive[r] = false;
    }

    unsigned living() const
    {
        unsigned mask = 0;
        for (int r = 0; r < n; r++) mask |= unsigned(alive[r]) << r;
        return mask;
    }

    const std::vector<int32_t> &result(size_t id, int r) const { return calls[id].inplace ? calls[id].in[r] : calls[id].out[r]; }

    /* Who is in a result; 0: nobody's. */
    unsigned contributors(const Call &call, int32_t value) const
    {
        for (unsigned mask = 1; mask < 1u << n; mask++)
            if (value == int32_t(mask) * unit / (call.red == FT_AVG ? __builtin_popcount(mask) : 1)) return mask;
        return 0;
    }

    /* Every survivor has the result of one set of contributors, which is within `most`. Returns the set, 0 if the call has none. */
    unsigned check(size_t id, unsigned most) const
    {
        const Call &call = calls[id];
        unsigned set = 0;
        for (int r = 0; r < n; r++) {
            if (!alive[r] || (call.kind == FT_REDUCE && r != call.root)) continue;
            const std::vector<int32_t> &out = result(id, r);
            for (size_t i = 1; i < out.size(); i++)
                if (out[i] != out[0]) ADD_FAILURE() << "call " << id << " rank " << r << ": elements differ: " << out[0] << ", " << out[i];
            if (call.kind == FT_BROADCAST) {
                EXPECT_EQ(out[0], unit << call.root) << "call " << id << " rank " << r;
                continue;
            }
            unsigned mine = contributors(call, out[0]);
            EXPECT_EQ(mine & living(), living()) << "call " << id << " rank " << r << " of " << n << ": " << out[0] << " lacks a survivor";
            EXPECT_EQ(mine & ~most, 0u) << "call " << id << " rank " << r << ": somebody has come back";
            if (set) {
                EXPECT_EQ(set, mine) << "call " << id << " rank " << r << ": not the result of the ranks before it";
            }
            set = mine;
        }
        return set;
    }
};

std::string replay(uint64_t seed) { return "replay: FT_SIM_SEED=" + std::to_string(seed) + " FT_SIM_RUNS=1 tests/sim/retry_test"; }

/* Without proof of a death a rank that found it first may be taken for the one that is cut off, see docs/membership.md. It has
 * been told, and counts as lost. */
int left_out(Sim &sim)
{
    int count = 0;
    for (int r = 0; r < sim.n; r++) {
        int verdict = sim.comms[r]->verdict.load();
        if (!sim.alive[r] || (verdict != FT_FENCED && verdict != FT_NOQUORUM)) continue;
        sim.alive[r] = false;
        count++;
    }
    return count;
}

void check_all(const Sim &sim, bool lost)
{
    unsigned most = (1u << sim.n) - 1;
    for (int r = 0; r < sim.n; r++) {
        if (!sim.alive[r]) continue;
        EXPECT_EQ(ft_stream_query(sim.streams[r]), FT_OK) << "rank " << r << ": " << ft_fail_text();
        EXPECT_EQ(sim.comms[r]->verdict.load(), FT_OK) << "rank " << r << ": " << sim.comms[r]->text;
    }
    for (size_t id = 0; id < sim.calls.size() && !testing::Test::HasFailure(); id++) {
        unsigned set = sim.check(id, most);
        if (set) most = set;
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
        while (sim.calls.size() < 6) sim.add_call(sim_random(&sim.world, 2) ? FT_ALLREDUCE : sim_random(&sim.world, 2) ? FT_BROADCAST : FT_REDUCE);
        int deaths = 1 + (sim.n > 4 && sim_random(&sim.world, 2));
        std::vector<uint64_t> when{sim_random(&sim.world, 2000), sim_random(&sim.world, 2000)};
        std::vector<int> victim{int(sim_random(&sim.world, sim.n))};
        victim.push_back((victim[0] + 1) % sim.n);
        for (Call &call : sim.calls) /* roots live */
            while (call.root == victim[0] || call.root == victim[1]) call.root = (call.root + 1) % sim.n;
        EXPECT_TRUE(sim.run(UINT64_C(60000000000), [&](uint64_t turn) {
            for (int k = 0; k < deaths; k++)
                if (turn == when[k]) sim.kill(victim[k]);
        })) << "operations still pending after 60 s of virtual time";
        fenced += uint64_t(left_out(sim));
        check_all(sim, true);
        for (int r = 0; r < sim.n; r++) shrunk += sim.alive[r] && sim.comms[r]->view.nranks < sim.n;
    }
    std::printf("%lu survivors went on in a smaller view, %lu were left out\n", shrunk, fenced);
    EXPECT_LE(fenced, 1 + runs / 100);
    if (runs >= 100) {
        EXPECT_GT(shrunk, runs / 2);
    }
}

TEST(SimRetry, ABrokenLinkIsMended)
{
    uint64_t first = env_u64("FT_SIM_SEED", 1), runs = env_u64("FT_SIM_RUNS", 300), mended = 0;
    for (uint64_t seed = first; seed < first + runs && !HasFailure(); seed++) {
        SCOPED_TRACE(replay(seed));
        Sim sim(seed, 2 + int(seed % 5), false);
        while (sim.calls.size() < 6) sim.add_call(sim_random(&sim.world, 2) ? FT_ALLREDUCE : FT_BROADCAST);
        uint64_t when = sim_random(&sim.world, 1000);
        int from = int(sim_random(&sim.world, sim.n)), to = (from + 1) % sim.n;
        bool cut = false;
        EXPECT_TRUE(sim.run(UINT64_C(60000000000), [&](uint64_t turn) {
            if (turn >= when && !cut) cut = sim_cut(&sim.world, 1000 + uint64_t(from), 1000 + uint64_t(to));
        })) << "operations still pending after 60 s of virtual time";
        check_all(sim, false);
        mended += sim.comms[0]->view.epoch > 1;
    }
    std::printf("%lu of %lu communicators went on with the same ranks\n", mended, runs);
    if (runs >= 100) {
        EXPECT_GT(mended, runs / 10);
    }
}

/* What cannot be repeated, a dead root and too few ranks: either all survivors have every result, or all have an error. */
TEST(SimRetry, OtherCallsFailOnAll)
{
    uint64_t first = env_u64("FT_SIM_SEED", 1), runs = env_u64("FT_SIM_RUNS", 300), failures = 0;
    for (uint64_t seed = first; seed < first + runs && !HasFailure(); seed++) {
        SCOPED_TRACE(replay(seed));
        int n = 3 + int(seed % 4), what = int(seed / 4 % 3), victim;
        Sim sim(seed, n, false, what == 2 ? n : 1);
        victim = int(sim_random(&sim.world, n));
        for (int i = 0; i < 6; i++) sim.add_call(what == 0 && i % 2 ? FT_ALLGATHER : what == 1 && i % 2 ? FT_BROADCAST : FT_ALLREDUCE);
        for (Call &call : sim.calls) call.inplace = call.joined = false, call.root = victim;
        uint64_t when = sim_random(&sim.world, 600);
        std::vector<int> status(n);
        EXPECT_TRUE(sim.run(UINT64_C(60000000000), [&](uint64_t turn) {
            if (turn == when) sim.kill(victim);
            for (int r = 0; r < n; r++) /* users stop at the first error */
                if (sim.comms[r]->verdict.load() != FT_OK) sim.next[r] = sim.calls.size();
        })) << "operations still pending after 60 s of virtual time";
        int failed = 0, living = 0;
        for (int r = 0; r < n; r++) {
            if (!sim.alive[r]) continue;
            living++;
            failed += sim.comms[r]->verdict.load() != FT_OK;
            if (sim.comms[r]->verdict.load() == FT_OK) {
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

}  // namespace

/*
 * Engines with policy retry in the simulated world, for tests: ranks that come to their calls at
 * random times, alone or in groups, and what a result says about who contributed. Rank r
 * contributes 60 << r, so that a sum or an average tells who is in it.
 */
#ifndef FT_RETRY_SIM_H
#define FT_RETRY_SIM_H

#include <gtest/gtest.h>

#include <cstdlib>
#include <functional>
#include <vector>

extern "C" {
#include "sim/sim.h"
}

namespace
{

inline uint64_t env_u64(const char *name, uint64_t other)
{
    const char *text = std::getenv(name);
    return text ? std::strtoull(text, nullptr, 0) : other;
}

constexpr int32_t unit = 60; /* divisible by every number of ranks here */

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
        ft_comm_limits limits{2000, 1000, 200, min_ranks, 0, 0, false, verify, true, false, false};
        std::vector<int> host(n);
        std::vector<uint64_t> peer(n);
        for (int r = 0; r < n; r++)
            host[r] = r * 2 / n, peer[r] = 1000 + r;
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
            EXPECT_EQ(ft_rank_open(&config, &engine), FT_OK) << ft_fail_text();
            engine->tuning.chunk_bytes = chunk;
            engines.push_back(engine);
            streams.push_back(ft_stream_new());
            alive.push_back(true);
        }
        for (int r = 0; r < n; r++) {
            for (int k = 0; k < n; k++) {
                ft_endpoint endpoint;
                if (k == r)
                    continue;
                EXPECT_EQ(ft_engine_endpoint(engines[k], &endpoint), FT_OK);
                EXPECT_EQ(ft_engine_learn(engines[r], peer[k], 1, endpoint.address,
                                          endpoint.address_bytes, k),
                          FT_OK);
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
            if (!alive[r])
                bury(r);
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
        comms[r]->failure.leaving.store(1);
        ft_engine_lock(engines[r]);
        ft_comm_fail(comms[r], FT_ABORTED, r, "dead");
        for (int k = 0; k < 1000 && comms[r]->works.queued.load(); k++) {
            world.now_ns += 100000000;
            ft_rank_turn(engines[r]);
        }
        ft_engine_unlock(engines[r]);
    }

    void add_call(ft_kind kind)
    {
        Call call{kind,
                  sim_random(&world, 2) ? FT_SUM : FT_AVG,
                  int(sim_random(&world, n)),
                  1 + sim_random(&world, sim_random(&world, 2) ? 20 : 6000),
                  sim_random(&world, 2) != 0,
                  sim_random(&world, 3) == 0,
                  {},
                  {}};
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
            if (comms[r]->view.peer[k] == 1000u + unsigned(call.root))
                root = k;
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
        do
            ft_work_add(ft_entry_work(entry, comms[r]), make_op(calls[next[r]], r));
        while (++next[r] < calls.size() && calls[next[r]].joined);
        ft_entry_submit(entry);
    }

    bool finished() const
    {
        for (int r = 0; r < n; r++)
            if (alive[r] && (next[r] < calls.size() || comms[r]->works.queued.load() > 0 ||
                             ft_comm_state(comms[r]) == FT_COMM_RETRYING))
                return false;
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
            if (alive[r] && next[r] < calls.size() && sim_random(&world, 20) == 0)
                submit(r);
            still = alive[r] && ft_rank_turn(engines[r]) ? 0 : still + 1;
            world.now_ns += 20;
            if (still > 4 * n) {
                uint64_t event = sim_next(&world);
                if (event > world.now_ns)
                    world.now_ns = event < world.now_ns + 1000000 ? event : world.now_ns + 500000;
                still = 0;
            }
            if (world.now_ns > end)
                return false;
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
        for (int r = 0; r < n; r++)
            mask |= unsigned(alive[r]) << r;
        return mask;
    }

    const std::vector<int32_t> &result(size_t id, int r) const
    {
        return calls[id].inplace ? calls[id].in[r] : calls[id].out[r];
    }

    /* Who is in a result; 0: nobody's. */
    unsigned contributors(const Call &call, int32_t value) const
    {
        for (unsigned mask = 1; mask < 1u << n; mask++)
            if (value == int32_t(mask) * unit / (call.red == FT_AVG ? __builtin_popcount(mask) : 1))
                return mask;
        return 0;
    }

    /* Every survivor has the result of one set of contributors, which is within `most`. Returns the
     * set, 0 if the call has none. */
    unsigned check(size_t id, unsigned most) const
    {
        const Call &call = calls[id];
        unsigned set = 0;
        for (int r = 0; r < n; r++) {
            if (!alive[r] || (call.kind == FT_REDUCE && r != call.root))
                continue;
            const std::vector<int32_t> &out = result(id, r);
            for (size_t i = 1; i < out.size(); i++)
                if (out[i] != out[0])
                    ADD_FAILURE() << "call " << id << " rank " << r
                                  << ": elements differ: " << out[0] << ", " << out[i];
            if (call.kind == FT_BROADCAST) {
                EXPECT_EQ(out[0], unit << call.root) << "call " << id << " rank " << r;
                continue;
            }
            unsigned mine = contributors(call, out[0]);
            EXPECT_EQ(mine & living(), living()) << "call " << id << " rank " << r << " of " << n
                                                 << ": " << out[0] << " lacks a survivor";
            EXPECT_EQ(mine & ~most, 0u)
                << "call " << id << " rank " << r << ": somebody has come back";
            if (set) {
                EXPECT_EQ(set, mine)
                    << "call " << id << " rank " << r << ": not the result of the ranks before it";
            }
            set = mine;
        }
        return set;
    }
};

inline std::string replay(uint64_t seed)
{
    return "replay: FT_SIM_SEED=" + std::to_string(seed) + " FT_SIM_RUNS=1 tests/sim/retry_test";
}

/* Without proof of a death a rank that found it first may be taken for the one that is cut off, see
 * docs/membership.md. It has been told, and counts as lost. */
inline int left_out(Sim &sim)
{
    int count = 0;
    for (int r = 0; r < sim.n; r++) {
        int verdict = sim.comms[r]->failure.verdict.load();
        if (!sim.alive[r] || (verdict != FT_FENCED && verdict != FT_NOQUORUM))
            continue;
        sim.alive[r] = false;
        count++;
    }
    return count;
}

} // namespace

#endif

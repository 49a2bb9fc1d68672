// Property: under any seeded schedule of delays, reordering across channels, late reads of send
// buffers and cut links, whole engines (the real core, algorithms and device over a simulated
// transport and clock) either finish every operation with the exact result on every rank, or end
// with an error on every rank within bounds. Nothing leaks. A seed replays bit by bit. Method: n
// ranks in one thread, turned in random order under a virtual clock; random programs of collectives
// and grouped point-to-point calls in int32, checked against sums computed here. Replay one seed:
// FT_SIM_SEED=n FT_SIM_RUNS=1 tests/sim/sim_test
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <vector>

extern "C" {
#include "core/group/group.h"
#include "sim/sim.h"
}
#include "sim/validations.h"

namespace
{

uint64_t env_u64(const char *name, uint64_t other)
{
    const char *text = std::getenv(name);
    return text ? std::strtoull(text, nullptr, 0) : other;
}

struct Call {
    ft_coll coll;
    std::vector<std::vector<int32_t>> in, out; // by rank
    bool inplace; // then operations work in `work`, and out is filled from it afterwards
    std::vector<std::vector<int32_t>> work;
};

struct Sim {
    sim_world world;
    int n;
    std::vector<ft_engine *> engines;
    std::vector<ft_comm *> comms;
    std::vector<ft_stream *> streams;
    std::vector<bool> alive;
    std::vector<Call> calls;
    ft_comm_limits limits{1000, 1000, 200, 1, 0, 0, false, false, false, false, false};

    Sim(uint64_t seed, int ranks, int hosts, bool verify = false) : n(ranks)
    {
        limits.verify = verify;
        sim_start(&world, seed);
        world.late_copy = sim_random(&world, 2);
        world.late_down_ns = sim_random(&world, 2) ? 0 : sim_random(&world, 300000);
        std::vector<int> host(n);
        std::vector<uint64_t> peer(n);
        for (int r = 0; r < n; r++)
            host[r] = r * hosts / n, peer[r] = 1000 + r;
        ft_view view{1, n, 0, hosts, host.data(), peer.data()};
        for (int r = 0; r < n; r++) {
            ft_engine_config config{};
            config.env = &world.env;
            config.transports[0] = &sim_transport_ops;
            config.id = peer[r];
            config.rank = r;
            config.manual = true;
            ft_engine *engine = nullptr;
            EXPECT_EQ(ft_rank_open(&config, &engine), FT_OK) << ft_fail_text();
            engines.push_back(engine);
        }
        size_t chunk = 64u << sim_random(&world, 4);
        int chunks = 1 + int(sim_random(&world, 4));
        for (int r = 0; r < n; r++) {
            engines[r]->tuning.peer_lanes = seed / 24 % 2;
            engines[r]->tuning.chunk_bytes = chunk;
            engines[r]->tuning.chunks = chunks;
            for (int k = 0; k < n; k++)
                if (k != r) {
                    ft_endpoint endpoint;
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
            streams.push_back(ft_stream_new());
            alive.push_back(true);
        }
    }

    ~Sim()
    {
        for (int r = 0; r < n; r++) {
            ft_stream_release(streams[r]);
            if (comms[r])
                ft_comm_close(comms[r]);
            ft_engine_unref(engines[r]);
        }
        EXPECT_EQ(world.frames, 0u) << "messages leaked";
        EXPECT_EQ(world.events, nullptr) << "events of closed transports";
    }

    ft_op *make_op(const ft_coll &coll, const void *in, void *out)
    {
        ft_op *op = ft_op_new();
        op->coll = coll;
        op->redop.red = coll.red == FT_AVG ? FT_SUM : coll.red;
        op->in = in;
        op->out = out;
        return op;
    }

    void submit(int r, const std::vector<ft_op *> &ops)
    {
        ft_entry *entry = ft_entry_new(&streams[r], 1);
        for (ft_op *op : ops)
            ft_work_add(ft_entry_work(entry, comms[r]), op);
        ft_entry_submit(entry);
    }

    static size_t in_blocks(ft_kind k, int n)
    {
        return k == FT_REDUCESCATTER || k == FT_ALLTOALL || k == FT_SCATTER ? n : 1;
    }
    static size_t out_blocks(ft_kind k, int n)
    {
        return k == FT_ALLGATHER || k == FT_ALLTOALL || k == FT_GATHER ? n : 1;
    }

    static int32_t input(size_t call, int rank, size_t i)
    {
        return int32_t((call * 131 + size_t(rank) * 7919 + i * 31) % 100003) - 50000;
    }

    ft_coll draw_collective(size_t most)
    {
        ft_coll coll{};
        coll.kind = ft_kind(sim_random(&world, FT_SEND));
        coll.type = FT_INT32;
        coll.red = ft_red(sim_random(&world, 4));
        bool rooted = coll.kind == FT_BROADCAST || coll.kind == FT_REDUCE ||
                      coll.kind == FT_GATHER || coll.kind == FT_SCATTER;
        coll.root = rooted ? int(sim_random(&world, n)) : 0;
        coll.count = sim_random(&world, 2) ? sim_random(&world, 40) : sim_random(&world, most);
        return coll;
    }

    void add_collective()
    {
        add_call(draw_collective(4000));
    }

    void add_call(const ft_coll &coll)
    {
        Call call;
        call.coll = coll;
        call.inplace = sim_random(&world, 2);
        size_t id = calls.size();
        for (int r = 0; r < n; r++) {
            call.in.emplace_back(call.coll.count * in_blocks(call.coll.kind, n) + 1);
            call.out.emplace_back(call.coll.count * out_blocks(call.coll.kind, n) + 1, 0x55555555);
            for (size_t i = 0; i < call.in[r].size(); i++)
                call.in[r][i] = input(id, r, i);
            call.work.emplace_back(std::max(call.in[r].size(), call.out[r].size()), 0x55555555);
            std::copy(call.in[r].begin(), call.in[r].end() - 1,
                      call.work[r].begin() + long(in_at(call, r)));
        }
        calls.push_back(std::move(call));
    }

    // Where the input and the output are in the one buffer of an in-place call.
    size_t in_at(const Call &call, int r) const
    {
        bool all = call.coll.kind == FT_ALLGATHER ||
                   (call.coll.kind == FT_GATHER && r == call.coll.root);
        return all ? size_t(r) * call.coll.count : 0;
    }
    size_t out_at(const Call &call, int r) const
    {
        bool all = call.coll.kind == FT_REDUCESCATTER ||
                   (call.coll.kind == FT_SCATTER && r == call.coll.root);
        return all ? size_t(r) * call.coll.count : 0;
    }
    ft_op *op_of(Call &call, int r)
    {
        if (call.inplace)
            return make_op(call.coll, call.work[r].data() + in_at(call, r),
                           call.work[r].data() + out_at(call, r));
        return make_op(call.coll, call.in[r].data(), call.out[r].data());
    }

    int32_t reduced(const Call &call, size_t i) const
    {
        uint32_t sum = uint32_t(call.in[0][i]);
        for (int r = 1; r < n; r++) {
            int32_t x = call.in[r][i], y = int32_t(sum);
            switch (call.coll.red) {
            case FT_SUM:
                sum += uint32_t(x);
                break;
            case FT_PROD:
                sum *= uint32_t(x);
                break;
            case FT_MAX:
                sum = uint32_t(x > y ? x : y);
                break;
            default:
                sum = uint32_t(x < y ? x : y);
            }
        }
        return int32_t(sum);
    }

    int32_t expected(const Call &call, int r, size_t i) const
    {
        size_t c = call.coll.count, block = c ? i / c : 0, at = c ? i % c : 0;
        switch (call.coll.kind) {
        case FT_ALLREDUCE:
        case FT_REDUCE:
            return reduced(call, i);
        case FT_BROADCAST:
            return call.in[call.coll.root][i];
        case FT_ALLGATHER:
        case FT_GATHER:
            return call.in[block][at];
        case FT_REDUCESCATTER:
            return reduced(call, size_t(r) * c + i);
        case FT_ALLTOALL:
            return call.in[block][size_t(r) * c + at];
        default:
            return call.in[call.coll.root][size_t(r) * c + i];
        }
    }

    void check(size_t id, int r) const
    {
        const Call &call = calls[id];
        bool only_root = call.coll.kind == FT_REDUCE || call.coll.kind == FT_GATHER;
        if (only_root && r != call.coll.root)
            return;
        size_t len = call.coll.count * out_blocks(call.coll.kind, n);
        const int32_t *out = call.inplace ? call.work[r].data() + out_at(call, r)
                                          : call.out[r].data();
        for (size_t i = 0; i < len; i++)
            ASSERT_EQ(out[i], expected(call, r, i))
                << ft_kind_name(call.coll.kind) << " count " << call.coll.count << " rank " << r
                << " of " << n << " element " << i << (call.inplace ? " in place" : "");
        if (!call.inplace) {
            ASSERT_EQ(call.out[r][len], 0x55555555) << "written past the end";
        }
    }

    bool finished() const
    {
        for (int r = 0; r < n; r++)
            if (alive[r] && atomic_load_int(&comms[r]->works.queued) > 0)
                return false;
        return true;
    }
    static int atomic_load_int(const atomic_int *p)
    {
        return p->load();
    }

    // Turns random ranks until all are done. Returns false when virtual time passes the bound.
    bool run(uint64_t bound_ns, const std::function<void(uint64_t)> &each = {})
    {
        uint64_t end = world.now_ns + bound_ns, turns = 0;
        int still = 0;
        while (!finished()) {
            if (each)
                each(turns++);
            int r = int(sim_random(&world, n));
            still = alive[r] && ft_rank_turn(engines[r]) ? 0 : still + 1;
            world.now_ns += 20;
            if (still > 4 * n) {
                uint64_t next = sim_next(&world);
                if (next > world.now_ns)
                    world.now_ns = next < world.now_ns + 1000000 ? next : world.now_ns + 500000;
                still = 0;
            }
            if (world.now_ns > end)
                return false;
        }
        return true;
    }
};

struct Outcome {
    uint64_t trace, delivered;
    bool operator==(const Outcome &o) const
    {
        return trace == o.trace && delivered == o.delivered;
    }
};

Outcome healthy_run(uint64_t seed, bool verify = false)
{
    SCOPED_TRACE("replay: FT_SIM_SEED=" + std::to_string(seed) +
                 " FT_SIM_RUNS=1 tests/sim/sim_test");
    int n = 1 + int(seed % 9), hosts = 1 + int(seed / 9 % unsigned(n));
    Sim sim(seed, n, hosts, verify);
    size_t ncalls = 1 + sim_random(&sim.world, 6);
    for (size_t i = 0; i < ncalls; i++)
        sim.add_collective();
    bool grouped = sim_random(&sim.world, 2);
    for (int r = 0; r < n; r++) {
        std::vector<ft_op *> ops;
        for (Call &call : sim.calls)
            ops.push_back(sim.op_of(call, r));
        if (grouped)
            sim.submit(r, ops);
        else
            for (ft_op *op : ops)
                sim.submit(r, {op});
    }
    EXPECT_TRUE(sim.run(UINT64_C(20000000000))) << "not finished in 20 s of virtual time";
    for (int r = 0; r < n; r++) {
        EXPECT_EQ(sim.comms[r]->failure.status.load(), FT_OK) << sim.comms[r]->failure.text;
        for (size_t id = 0; id < sim.calls.size(); id++)
            sim.check(id, r);
    }
    return {sim.world.trace, sim.world.delivered};
}

TEST(Sim, CollectivesAreExactUnderAnySchedule)
{
    uint64_t first = env_u64("FT_SIM_SEED", 1), runs = env_u64("FT_SIM_RUNS", 300);
    std::printf("seeds %llu to %llu\n", (unsigned long long)first,
                (unsigned long long)(first + runs - 1));
    for (uint64_t seed = first; seed < first + runs && !::testing::Test::HasFailure(); seed++)
        healthy_run(seed);
}

TEST(Sim, ASeedReplaysBitByBit)
{
    for (uint64_t seed = 9001; seed < 9030; seed++) {
        Outcome a = healthy_run(seed), b = healthy_run(seed);
        ASSERT_EQ(a.trace, b.trace) << "seed " << seed;
        ASSERT_EQ(a.delivered, b.delivered) << "seed " << seed;
    }
}

// Ends what a dead rank was doing, so that its memory can be given back.
void bury(Sim &sim, int r)
{
    ft_engine_lock(sim.engines[r]);
    ft_comm_fail(sim.comms[r], FT_ABORTED, r, "dead");
    for (int k = 0; k < 1000 && sim.comms[r]->works.queued.load(); k++) {
        sim.world.now_ns += 100000000;
        ft_rank_turn(sim.engines[r]);
    }
    ft_engine_unlock(sim.engines[r]);
}

// Ranks come to their calls at random times, and a rank dies, or a link is cut, meanwhile.
struct Rough {
    Sim &sim;
    std::vector<size_t> next;
    enum { NOTHING, KILL, CUT } fault;
    int victim;
    uint64_t when;
    bool happened = false;

    Rough(Sim &in, uint64_t seed)
        : sim(in), next(size_t(in.n)), fault(seed % 3   ? NOTHING
                                             : seed % 2 ? KILL
                                                        : CUT),
          victim(int(seed / 5 % unsigned(in.n))), when(sim_random(&in.world, 8000))
    {
    }
    void submit(int r)
    {
        sim.submit(r, {sim.op_of(sim.calls[next[size_t(r)]], r)});
        next[size_t(r)]++;
    }
    // The calls to which nobody has come yet. False: there are none.
    bool submit_rest()
    {
        bool any = false;
        for (int r = 0; r < sim.n; r++)
            for (; next[size_t(r)] < sim.calls.size(); any = true)
                submit(r);
        return any;
    }
    void each(uint64_t turn)
    {
        for (int r = 0; r < sim.n; r++)
            if (next[size_t(r)] < sim.calls.size() && sim_random(&sim.world, 20) == 0)
                submit(r);
        if (happened || turn < when || fault == NOTHING)
            return;
        happened = true;
        if (fault == KILL)
            sim_kill(&sim.world, 1000 + uint64_t(victim)), sim.alive[size_t(victim)] = false;
        else
            sim_cut(&sim.world, 1000 + uint64_t(victim),
                    1000 + uint64_t(victim + 1) % uint64_t(sim.n));
    }
    void check() const
    {
        for (int r = 0; r < sim.n; r++) {
            bool failed = sim.comms[r]->failure.status.load() != FT_OK;
            EXPECT_TRUE(happened || !failed) << "rank " << r << ": " << sim.comms[r]->failure.text;
            for (size_t id = 0; id < sim.calls.size() && sim.alive[r] && !failed; id++)
                sim.check(id, r);
            if (!sim.alive[r])
                bury(sim, r);
        }
    }
};

// Ranks that make short calls which repeat themselves, as the public calls make them: begun in the
// call, and in no queue if all messages are there. Most wait for the call before. With a fault, a
// rank makes no more calls after the first that fails.
struct Shorts {
    Sim &sim;
    std::vector<size_t> next;
    size_t at_once = 0, queued = 0;

    explicit Shorts(Sim &in) : sim(in), next(size_t(in.n))
    {
        ft_coll some[3];
        for (ft_coll &coll : some)
            coll = sim.draw_collective(200);
        for (int i = 0; i < 40; i++)
            sim.add_call(some[sim_random(&sim.world, 3)]);
    }
    bool is_over(int r) const
    {
        bool idle = sim.streams[r]->done.load() >= sim.streams[r]->next.load();
        return !sim.alive[r] || (idle && (next[r] == sim.calls.size() || has_failed(r)));
    }
    bool has_failed(int r) const
    {
        return sim.comms[r]->failure.status.load() != FT_OK;
    }
    void call(int r)
    {
        Call &call = sim.calls[next[r]++];
        ft_comm *comm = sim.comms[r];
        ft_op *op = ft_fast_begin(comm, sim.streams[r], &call.coll, call.coll.red);
        if (!op)
            return sim.submit(r, {sim.op_of(call, r)});
        op->coll = call.coll;
        op->redop.red = call.coll.red;
        op->in = call.inplace ? call.work[r].data() + sim.in_at(call, r) : call.in[r].data();
        op->out = call.inplace ? call.work[r].data() + sim.out_at(call, r) : call.out[r].data();
        if (ft_fast_run_short(comm))
            at_once++;
        else
            ft_fast_run(comm, sim.streams[r]), queued++;
    }
    // False: virtual time passed the bound.
    bool run(uint64_t bound_ns, const std::function<void(uint64_t)> &each)
    {
        const uint64_t end_ns = sim.world.now_ns + bound_ns;
        int still = 0;
        for (uint64_t turn = 0; sim.world.now_ns < end_ns; turn++) {
            int over = 0;
            for (int r = 0; r < sim.n; r++)
                over += is_over(r);
            if (over == sim.n)
                return true;
            each(turn);
            int r = int(sim_random(&sim.world, sim.n));
            bool waits = !ft_stream_is_idle(sim.streams[r]) && sim_random(&sim.world, 100);
            bool calls = sim.alive[r] && !has_failed(r) && next[r] < sim.calls.size() && !waits &&
                         sim_random(&sim.world, 3) == 0;
            if (calls)
                call(r);
            still = calls || (sim.alive[r] && ft_rank_turn(sim.engines[r])) ? 0 : still + 1;
            sim.world.now_ns += 20;
            if (still > 4 * sim.n && sim_next(&sim.world) > sim.world.now_ns)
                sim.world.now_ns = std::min(sim_next(&sim.world), sim.world.now_ns + 1000000);
        }
        return false;
    }
};

TEST(Sim, ShortCallsAreExactOrFail)
{
    uint64_t first = env_u64("FT_SIM_SEED", 1), runs = env_u64("FT_SIM_RUNS", 300);
    size_t at_once = 0, queued = 0, failed = 0;
    for (uint64_t seed = first; seed < first + runs && !::testing::Test::HasFailure(); seed++) {
        SCOPED_TRACE("replay: FT_SIM_SEED=" + std::to_string(seed) +
                     " FT_SIM_RUNS=1 tests/sim/sim_test --gtest_filter=*ExactOrFail");
        Sim sim(seed, 2 + int(seed % 5), 1);
        Shorts shorts(sim);
        const uint64_t when = sim_random(&sim.world, 3000), victim = seed / 3 % unsigned(sim.n);
        ASSERT_TRUE(shorts.run(UINT64_C(20000000000), [&](uint64_t turn) {
            if (turn == when && seed % 3 == 1)
                sim_kill(&sim.world, 1000 + victim), sim.alive[victim] = false;
            if (turn == when && seed % 3 == 2)
                sim_cut(&sim.world, 1000 + victim, 1000 + (victim + 1) % unsigned(sim.n));
        })) << "not finished in 20 s of virtual time";
        for (int r = 0; r < sim.n; r++) {
            failed += sim.alive[r] && shorts.has_failed(r);
            EXPECT_TRUE(seed % 3 || !shorts.has_failed(r)) << sim.comms[r]->failure.text;
            for (size_t id = 0; id < sim.calls.size() && sim.alive[r] && !shorts.has_failed(r);
                 id++)
                sim.check(id, r);
            if (!sim.alive[r])
                bury(sim, r);
        }
        at_once += shorts.at_once;
        queued += shorts.queued;
    }
    std::printf("%zu calls in no queue, %zu in a queue, %zu ranks failed\n", at_once, queued,
                failed);
    if (runs >= 300) {
        EXPECT_GT(at_once, runs);
        EXPECT_GT(queued, runs);
        EXPECT_GT(failed, runs / 10);
    }
}

// Validations pause the ranks at random moments. Without a fault every operation succeeds, since no
// pause takes more than a part of its deadline; with one, every operation ends in time.
TEST(Sim, ValidationsChangeNothing)
{
    uint64_t first = env_u64("FT_SIM_SEED", 1), runs = env_u64("FT_SIM_RUNS", 60);
    size_t measured = 0;
    for (uint64_t seed = first; seed < first + runs && !::testing::Test::HasFailure(); seed++) {
        SCOPED_TRACE("replay: FT_SIM_SEED=" + std::to_string(seed) +
                     " FT_SIM_RUNS=1 tests/sim/sim_test --gtest_filter=*ChangeNothing");
        Sim sim(seed, 2 + int(seed % 5), 1 + int(seed / 5 % 2));
        while (sim.calls.size() < 12)
            sim.add_collective();
        Validations validations(sim.world, 3, 1500, sim.comms);
        Rough rough(sim, seed);
        for (int r = 0; r < sim.n; r++)
            rough.submit(r);
        do
            ASSERT_TRUE(sim.run(UINT64_C(60000000000), [&](uint64_t turn) {
                validations.each(turn, sim.engines, sim.comms, sim.alive);
                rough.each(turn);
            })) << "operations still pending";
        while (rough.submit_rest());
        validations.expect_end(sim.engines, sim.comms, sim.alive);
        measured += validations.measured.size();
        rough.check();
    }
    std::printf("%zu validations measured\n", measured);
    if (runs >= 60) {
        EXPECT_GT(measured, runs / 4);
    }
}

// Every pair exchanges messages of random sizes in one group, each rank naming its peers in an
// order of its own.
TEST(Sim, GroupedPointToPointInAnyOrder)
{
    for (uint64_t seed = 1; seed <= 150; seed++) {
        SCOPED_TRACE("seed " + std::to_string(seed));
        int n = 1 + int(seed % 7);
        Sim sim(seed, n, 1);
        std::vector<std::vector<std::vector<int32_t>>> out(n, std::vector<std::vector<int32_t>>(n)),
            in = out;
        for (int a = 0; a < n; a++)
            for (int b = 0; b < n; b++) {
                size_t count = sim_random(&sim.world, 500);
                in[a][b].resize(count + 1);
                out[b][a].assign(count + 1, -1);
                for (size_t i = 0; i < count; i++)
                    in[a][b][i] = Sim::input(size_t(a * n + b), a, i);
            }
        for (int r = 0; r < n; r++) {
            std::vector<ft_op *> ops;
            for (int k = 0; k < n; k++)
                for (int dir = 0; dir < 2; dir++) {
                    bool send = dir == 0;
                    size_t count = (send ? in[r][k] : out[r][k]).size() - 1;
                    ft_coll coll{send ? FT_SEND : FT_RECV, FT_INT32, FT_SUM, k, count};
                    ft_op *op = sim.make_op(coll, send ? in[r][k].data() : nullptr,
                                            send ? nullptr : out[r][k].data());
                    ops.insert(ops.begin() + long(sim_random(&sim.world, ops.size() + 1)), op);
                }
            sim.submit(r, ops);
        }
        ASSERT_TRUE(sim.run(UINT64_C(5000000000)));
        for (int a = 0; a < n; a++)
            for (int b = 0; b < n; b++)
                for (size_t i = 0; i + 1 < in[a][b].size(); i++)
                    ASSERT_EQ(out[b][a][i], in[a][b][i]) << a << "->" << b << " at " << i;
    }
}

// A device that takes its time for copies of bytes, as only preserving makes them here: they are
// done some polls later, and until then their sources must stay as they are.
struct SlowCopies {
    ft_device device;
    ft_device_ops ops;
    ft_device *real;
    sim_world *world;
    struct Pass {
        ft_reduce reduce;
        ft_device_req *req;
    };
    std::vector<Pass> passes;

    SlowCopies(ft_device *to, sim_world *in) : device(*to), ops(*to->ops), real(to), world(in)
    {
        ops.reduce = [](ft_device *d, const ft_reduce *r, ft_device_req *req) {
            SlowCopies *self = reinterpret_cast<SlowCopies *>(d);
            if (r->type != FT_UINT8 || sim_random(self->world, 2))
                return self->real->ops->reduce(self->real, r, req);
            req->status = FT_AGAIN;
            self->passes.push_back({*r, req});
            return int(FT_AGAIN);
        };
        ops.poll = [](ft_device *d) {
            SlowCopies *self = reinterpret_cast<SlowCopies *>(d);
            if (self->passes.empty() || sim_random(self->world, 4))
                return 0;
            Pass pass = self->passes.back();
            self->passes.pop_back();
            self->real->ops->reduce(self->real, &pass.reduce, pass.req);
            return 1;
        };
        device.ops = &ops;
    }
};

// The input of every rank as it was before the call, in the one buffer of an in-place call.
bool has_input(const Sim &sim, const Call &call, int r)
{
    bool from_root = call.coll.kind == FT_BROADCAST || call.coll.kind == FT_SCATTER;
    if (from_root && r != call.coll.root)
        return true;
    return std::equal(call.in[r].begin(), call.in[r].end() - 1,
                      call.work[r].begin() + long(sim.in_at(call, r)));
}

// With preserveInput, whatever moment a link is cut or a rank dies at: an operation that ends with
// an error has its input in its buffer again, one that finished has its result. Alone on a stream
// each operation tells which; in a group its state does, looked at before every turn.
TEST(Sim, InPlaceBuffersAreRestored)
{
    uint64_t first = env_u64("FT_SIM_SEED", 1), runs = env_u64("FT_SIM_RUNS", 400);
    int lost = 0, kept = 0;
    for (uint64_t seed = first; seed < first + runs && !::testing::Test::HasFailure(); seed++) {
        SCOPED_TRACE("replay: FT_SIM_SEED=" + std::to_string(seed) +
                     " FT_SIM_RUNS=1 tests/sim/sim_test --gtest_filter=*Restored");
        int n = 2 + int(seed % 6);
        Sim sim(seed, n, 1 + int(seed / 6 % 2));
        std::vector<std::unique_ptr<SlowCopies>> slow;
        std::vector<ft_device *> device;
        while (sim.calls.size() < 4) {
            sim.add_collective();
            if (!sim.calls.back().inplace)
                sim.calls.pop_back();
        }
        bool grouped = sim_random(&sim.world, 2);
        std::vector<std::vector<ft_stream *>> stream(n);
        std::vector<std::vector<bool>> ended(n, std::vector<bool>(sim.calls.size()));
        for (int r = 0; r < n; r++) {
            device.push_back(sim.engines[r]->device);
            slow.push_back(std::make_unique<SlowCopies>(device[r], &sim.world));
            sim.engines[r]->device = &slow[r]->device;
            sim.comms[r]->limits.preserve_input = true;
            std::vector<ft_op *> ops;
            for (Call &call : sim.calls)
                ops.push_back(sim.op_of(call, r));
            if (grouped)
                sim.submit(r, ops);
            for (size_t i = 0; !grouped && i < ops.size(); i++) {
                stream[r].push_back(ft_stream_new());
                std::swap(sim.streams[r], stream[r][i]);
                sim.submit(r, {ops[i]});
                std::swap(sim.streams[r], stream[r][i]);
            }
        }
        uint64_t when = sim_random(&sim.world, 600);
        int victim = int(sim_random(&sim.world, n)), other = int(sim_random(&sim.world, n));
        bool kill = sim_random(&sim.world, 2), done = false;
        EXPECT_TRUE(sim.run(UINT64_C(30000000000), [&](uint64_t turn) {
            for (int r = 0; grouped && r < n; r++) {
                size_t id = 0;
                for (ft_op *op = sim.comms[r]->works.head ? sim.comms[r]->works.head->ops : nullptr;
                     op; op = op->next)
                    ended[r][id++] = op->state == FT_OP_DONE;
            }
            if (done || turn < when)
                return;
            if (kill)
                sim_kill(&sim.world, 1000 + uint64_t(victim)), sim.alive[victim] = false,
                                                               done = true;
            else
                done = sim_cut(&sim.world, 1000 + uint64_t(victim), 1000 + uint64_t(other));
        })) << "operations still pending after 30 s of virtual time";
        for (int r = 0; r < n; r++) {
            if (!sim.alive[r])
                bury(sim, r);
            sim.engines[r]->device = device[r];
            bool group_failed = grouped && ft_stream_query(sim.streams[r]) != FT_OK;
            for (size_t id = 0; id < sim.calls.size(); id++) {
                bool input = has_input(sim, sim.calls[id], r);
                bool failed = grouped ? group_failed && !ended[r][id]
                                      : ft_stream_query(stream[r][id]) != FT_OK;
                (failed ? lost : kept)++;
                if (!failed)
                    sim.check(id, r);
                EXPECT_TRUE(!failed || input) << ft_kind_name(sim.calls[id].coll.kind) << " count "
                                              << sim.calls[id].coll.count << " rank " << r << " of "
                                              << n << (grouped ? " in a group" : "");
            }
            for (ft_stream *s : stream[r])
                ft_stream_release(s);
        }
    }
    std::printf("%d operations ended with an error, %d with a result\n", lost, kept);
    if (runs >= 100) {
        EXPECT_GT(lost, 20);
        EXPECT_GT(kept, 20);
    }
}

// A link is cut, or a rank dies, at a random turn. Every live rank ends every operation within the
// deadline plus the settling time, a finished operation is exact, and a rank that saw no error has
// finished everything.
TEST(Sim, CutLinksAndDeathsEndEverythingInTime)
{
    uint64_t first = env_u64("FT_SIM_SEED", 1), runs = env_u64("FT_SIM_RUNS", 300);
    int failed = 0, survived = 0;
    for (uint64_t seed = first; seed < first + runs && !::testing::Test::HasFailure(); seed++) {
        SCOPED_TRACE("replay: FT_SIM_SEED=" + std::to_string(seed) +
                     " FT_SIM_RUNS=1 tests/sim/sim_test");
        int n = 2 + int(seed % 6);
        Sim sim(seed, n, 1 + int(seed / 6 % 2), seed / 12 % 2);
        for (size_t i = 0; i < 4; i++)
            sim.add_collective();
        for (int r = 0; r < n; r++)
            for (Call &call : sim.calls)
                sim.submit(r, {sim.op_of(call, r)});
        uint64_t when = sim_random(&sim.world, 400);
        bool kill = sim_random(&sim.world, 2);
        int victim = int(sim_random(&sim.world, n)), other = int(sim_random(&sim.world, n));
        bool done = false;
        ASSERT_TRUE(sim.run(UINT64_C(30000000000), [&](uint64_t turn) {
            if (done || turn < when)
                return;
            if (kill)
                sim_kill(&sim.world, 1000 + uint64_t(victim)), sim.alive[victim] = false,
                                                               done = true;
            else
                done = sim_cut(&sim.world, 1000 + uint64_t(victim), 1000 + uint64_t(other));
        })) << "operations still pending after 30 s of virtual time";
        bool any = false;
        for (int r = 0; r < n; r++) {
            if (!sim.alive[r])
                continue;
            int status = sim.comms[r]->failure.status.load();
            any |= status != FT_OK;
            if (status == FT_OK)
                for (size_t id = 0; id < sim.calls.size(); id++)
                    sim.check(id, r);
            else
                EXPECT_NE(sim.comms[r]->failure.text[0], '\0');
        }
        (any ? failed : survived)++;
        if (kill)
            for (int r = 0; r < n; r++)
                if (!sim.alive[r])
                    bury(sim, r);
    }
    std::printf("%d runs ended with an error, %d were done before the fault\n", failed, survived);
    if (runs >= 100) {
        EXPECT_GT(failed, 20);
    }
}

// A rank that has its result leaves, while messages that it sent take longer than its goodbye. The
// others wait for them.
TEST(Sim, AGoodbyeMayOvertakeWhatWasSentBefore)
{
    uint64_t first = env_u64("FT_SIM_SEED", 1), runs = env_u64("FT_SIM_RUNS", 200);
    int overtaken = 0;
    for (uint64_t seed = first; seed < first + runs && !::testing::Test::HasFailure(); seed++) {
        SCOPED_TRACE("replay: FT_SIM_SEED=" + std::to_string(seed) +
                     " FT_SIM_RUNS=1 tests/sim/sim_test --gtest_filter=*Goodbye*");
        int n = 2 + int(seed % 7);
        Sim sim(seed, n, 1 + int(seed / 7 % 3));
        sim.world.delay_ns = 900000000;
        std::vector<bool> left(n);
        do { /* of one message a step: virtual time passes in milliseconds */
            sim.calls.clear();
            sim.add_collective();
        } while (sim.calls[0].coll.count > 16);
        for (int r = 0; r < n; r++) {
            sim.comms[r]->limits.op_timeout_ms = 30000;
            sim.submit(r, {sim.op_of(sim.calls[0], r)});
        }
        EXPECT_TRUE(sim.run(UINT64_C(60000000000), [&](uint64_t) {
            for (int r = 0; r < n; r++)
                if (!left[r] && Sim::atomic_load_int(&sim.comms[r]->works.queued) == 0) {
                    ft_notice_bye(sim.comms[r]);
                    left[r] = true;
                }
        }));
        for (int r = 0; r < n; r++) {
            EXPECT_EQ(sim.comms[r]->failure.status.load(), FT_OK) << sim.comms[r]->failure.text;
            sim.check(0, r);
            for (int k = 0; k < n; k++)
                overtaken += sim.comms[r]->group->gone[k].left;
        }
    }
    if (runs >= 100) {
        EXPECT_GT(overtaken, 100);
    }
}

// The next view of a member, in which another one may have been in views without it.
void reopen(Sim &sim, int r)
{
    std::vector<int> host(sim.n, 0);
    std::vector<uint64_t> peer(sim.n);
    for (int k = 0; k < sim.n; k++) {
        peer[k] = 1000 + uint64_t(k);
        ft_engine_lock(sim.engines[r]);
        if (k != r) {
            EXPECT_TRUE(ft_engine_readmit(sim.engines[r], ft_engine_peer(sim.engines[r], peer[k])));
        }
        ft_engine_unlock(sim.engines[r]);
    }
    const ft_view view{2, sim.n, r, 1, host.data(), peer.data()};
    ft_comm *next = nullptr;
    EXPECT_EQ(ft_engine_bind(sim.engines[r], 78), FT_OK);
    ASSERT_EQ(ft_comm_open(sim.engines[r], &view, 78, "next", &sim.limits, &next), FT_OK);
    ft_comm_close(sim.comms[r]);
    sim.comms[r] = next;
}

ft_coll broadcast_from(int root)
{
    ft_coll coll{};
    coll.kind = FT_BROADCAST;
    coll.type = FT_INT32;
    coll.root = root;
    coll.count = 1;
    return coll;
}

// A rank that leaves a moment after its readmission has left: what it sent before is there, and
// nobody waits for more. That it goes is not taken for the end of the view before.
TEST(Sim, ALeaveSoonAfterAReadmissionCounts)
{
    const uint64_t first = env_u64("FT_SIM_SEED", 1), runs = env_u64("FT_SIM_RUNS", 60);
    for (uint64_t seed = first; seed < first + runs && !::testing::Test::HasFailure(); seed++) {
        SCOPED_TRACE("replay: FT_SIM_SEED=" + std::to_string(seed) +
                     " FT_SIM_RUNS=1 tests/sim/sim_test --gtest_filter=*Readmission*");
        Sim sim(seed, 2, 1);
        sim.limits.op_timeout_ms = 600000;
        const int32_t sent = 7;
        int32_t got[2][3] = {};
        const auto both = [&](int r, int i) {
            const void *in = r == 0 ? &sent : nullptr;
            sim.submit(r, {sim.make_op(broadcast_from(0), in, &got[r][i])});
        };
        both(0, 0), both(1, 0);
        ASSERT_TRUE(sim.run(UINT64_C(10000000000)));
        reopen(sim, 0);
        reopen(sim, 1);
        both(0, 1); // the other one has not come to it yet
        ASSERT_TRUE(sim.run(UINT64_C(10000000000)));
        ft_comm_close(sim.comms[0]);
        sim.comms[0] = nullptr;
        sim.alive = {false, true};
        while (sim_next(&sim.world) != UINT64_MAX) {
            sim.world.now_ns = std::max(sim.world.now_ns, sim_next(&sim.world));
            ft_rank_turn(sim.engines[1]);
        }
        both(1, 1), both(1, 2);
        ASSERT_TRUE(sim.run(UINT64_C(20000000000))) << "it waits for one that has left";
        EXPECT_EQ(got[1][0], sent);
        EXPECT_EQ(got[1][1], sent) << "sent before the goodbye: " << sim.comms[1]->failure.text;
        EXPECT_EQ(sim.comms[1]->failure.status.load(), FT_PEER) << sim.comms[1]->failure.text;
    }
}

TEST(SimVerify, HealthyRunsRaiseNoAlarm)
{
    uint64_t first = env_u64("FT_SIM_SEED", 1), runs = env_u64("FT_SIM_RUNS", 200);
    for (uint64_t seed = first; seed < first + runs && !::testing::Test::HasFailure(); seed++)
        healthy_run(seed, true);
}

// A bit of one message changes on the way. Every rank ends with the error, unless all was over
// before; what is finished is exact.
TEST(SimVerify, AChangedMessageIsReportedEverywhere)
{
    uint64_t first = env_u64("FT_SIM_SEED", 1), runs = env_u64("FT_SIM_RUNS", 200);
    int caught = 0;
    for (uint64_t seed = first; seed < first + runs && !::testing::Test::HasFailure(); seed++) {
        SCOPED_TRACE("replay: FT_SIM_SEED=" + std::to_string(seed) +
                     " FT_SIM_RUNS=1 tests/sim/sim_test");
        int n = 2 + int(seed % 6);
        Sim sim(seed, n, 1, true);
        for (size_t i = 0; i < 4; i++)
            sim.add_collective();
        for (int r = 0; r < n; r++)
            for (Call &call : sim.calls)
                sim.submit(r, {sim.op_of(call, r)});
        uint64_t flip = sim.world.flip = 1 + sim_random(&sim.world, 100), start = sim.world.now_ns;
        ASSERT_TRUE(sim.run(UINT64_C(30000000000)));
        EXPECT_LT(sim.world.now_ns - start, FT_NOTICE_AFTER_NS)
            << "somebody was not told and had to ask";
        bool flipped = flip && sim.world.flip == 0;
        caught += flipped;
        int told = 0;
        for (int r = 0; r < n; r++) {
            int status = sim.comms[r]->failure.status.load();
            told += status == FT_CORRUPT;
            ASSERT_EQ(status, status == FT_OK || !flipped ? FT_OK : FT_CORRUPT)
                << sim.comms[r]->failure.text;
            if (status == FT_OK) // all that this rank has to do was over before the news came
                for (size_t id = 0; id < sim.calls.size(); id++)
                    sim.check(id, r);
            else
                EXPECT_NE(strstr(sim.comms[r]->failure.text,
                                 "over sim a message whose checksum does not match"),
                          nullptr)
                    << sim.comms[r]->failure.text;
        }
        EXPECT_EQ(told > 0, flipped);
    }
    std::printf("%d of %llu runs had a message changed\n", caught, (unsigned long long)runs);
    if (runs >= 100) {
        EXPECT_GT(caught, int(runs / 2));
    }
}

// A device that spoils what it stores: of one rank's passes that store into its result, the number
// `at`, with a bit changed.
struct BadDevice {
    ft_device base; // first
    ft_device *inner;
    const char *result;
    size_t bytes;
    uint64_t at, passes;
    bool spoiled;
};

int bad_reduce(ft_device *device, const ft_reduce *pass, ft_device_req *req)
{
    auto *bad = reinterpret_cast<BadDevice *>(device);
    int rc = bad->inner->ops->reduce(bad->inner, pass, req);
    auto *dst = pass->ndst > 0 ? static_cast<char *>(pass->dst[0]) : nullptr;
    if (rc != FT_OK || dst < bad->result || dst >= bad->result + bad->bytes || pass->count == 0 ||
        bad->passes++ != bad->at)
        return rc;
    dst[0] ^= 1;
    bad->spoiled = true;
    return rc;
}
int bad_poll(ft_device *)
{
    return 0;
}
void bad_close(ft_device *device)
{
    reinterpret_cast<BadDevice *>(device)->inner->ops->close(
        reinterpret_cast<BadDevice *>(device)->inner);
}

// One rank stores something else than it computed, after every checksum. Nobody finishes with
// results that differ: either all have the same (the wrong bytes went on to everybody), or all get
// the error. Broadcast's leaves and AllGather name the rank.
TEST(SimVerify, AResultThatDiffersIsReportedEverywhere)
{
    static ft_device_ops ops{};
    ops.reduce = bad_reduce, ops.poll = bad_poll, ops.close = bad_close;
    uint64_t first = env_u64("FT_SIM_SEED", 1), runs = env_u64("FT_SIM_RUNS", 300);
    int caught = 0, named = 0, spread = 0;
    for (uint64_t seed = first; seed < first + runs && !::testing::Test::HasFailure(); seed++) {
        SCOPED_TRACE("replay: FT_SIM_SEED=" + std::to_string(seed) +
                     " FT_SIM_RUNS=1 tests/sim/sim_test");
        int n = 2 + int(seed % 6);
        Sim sim(seed, n, 1, true);
        do {
            sim.calls.clear();
            sim.add_collective();
        } while ((sim.calls[0].coll.kind != FT_ALLREDUCE &&
                  sim.calls[0].coll.kind != FT_BROADCAST &&
                  sim.calls[0].coll.kind != FT_ALLGATHER) ||
                 sim.calls[0].coll.count == 0);
        Call &call = sim.calls[0];
        int victim = int(sim_random(&sim.world, n));
        ft_op *op = sim.op_of(call, victim);
        BadDevice bad{{&ops, "bad", 0, nullptr},
                      sim.engines[victim]->device,
                      static_cast<char *>(op->out),
                      0,
                      sim_random(&sim.world, 3),
                      0,
                      false};
        bad.bytes = call.coll.count * Sim::out_blocks(call.coll.kind, n) * sizeof(int32_t);
        sim.engines[victim]->device = &bad.base;
        for (int r = 0; r < n; r++)
            sim.submit(r, {r == victim ? op : sim.op_of(call, r)});
        ASSERT_TRUE(sim.run(UINT64_C(30000000000)));
        sim.engines[victim]->device = bad.inner;
        int told = 0;
        bool same = true;
        size_t len = call.coll.count * Sim::out_blocks(call.coll.kind, n);
        auto result = [&](int r) {
            return call.inplace ? call.work[r].data() + sim.out_at(call, r) : call.out[r].data();
        };
        for (int r = 0; r < n; r++) {
            told += sim.comms[r]->failure.status.load() == FT_CORRUPT;
            same = same && std::equal(result(0), result(0) + len, result(r));
        }
        EXPECT_EQ(told, same ? 0 : n) << "told " << told << " of " << n;
        caught += told > 0;
        spread += bad.spoiled && same;
        if (told > 0 && n > 2 && sim.comms[0]->failure.culprit == victim)
            named++;
        if (told > 0) {
            EXPECT_NE(strstr(sim.comms[0]->failure.text, "are not the same: rank "), nullptr)
                << sim.comms[0]->failure.text;
        }
    }
    std::printf("%d runs were caught, in %d the rank was named; in %d all had the same\n", caught,
                named, spread);
    if (runs >= 100) {
        EXPECT_GT(named, 20);
    }
}

// A message is withdrawn when it is fetched, and stood by again a moment later, as a hostile sender
// may say: nothing came of it.
TEST(Sim, WhatASenderStandsByAgainIsNotTaken)
{
    static uint32_t word, in[2], out[2];
    ft_transport_ops fickle = sim_transport_ops;
    fickle.recv = [](ft_link *link, uint64_t ctx, unsigned lane, ft_msg *msg) {
        if (int rc = sim_transport_ops.recv(link, ctx, lane, msg); rc != FT_OK || lane != 0)
            return rc;
        return msg->unfetched = true, msg->data = nullptr, msg->withdrawn = &word,
               msg->withdrawn_bit = 1, int(FT_OK);
    };
    fickle.fetch = [](ft_link *, ft_msg *, void *) -> int { return FT_AGAIN; };
    for (bool verify : {false, true}) {
        Sim sim(1, 2, 1, verify);
        for (int call = 0; call < 2; call++) {
            if (call == 1)
                sim.comms[0]->peers[1]->rx->ops = &fickle;
            for (int r = 0; r < 2; r++)
                sim.submit(r,
                           {sim.make_op({FT_ALLREDUCE, FT_INT32, FT_SUM, 0, 1}, &in[r], &out[r])});
            ASSERT_TRUE(sim.run(UINT64_C(30000000000)) &&
                        (sim.comms[0]->failure.status.load() == FT_OK) == (call == 0));
        }
    }
}

} // namespace

// Property: policy retry under other calls. Queues of groups on several streams go through any
// number of deaths, also those that come while an earlier one is repaired. A rank that aborts or
// destroys its end at any moment counts as lost, and what it had finished is what the others get.
// After a revoke all have failed; a shrink at any moment gives all survivors one child. A result,
// wherever a call succeeded, is the same; a failed call leaves its input as it was. Everything
// ends. Method: as in retry_sim_test.cc; each entry has a stream of its own where it matters which
// calls succeeded. Calls that block are taken apart as in core, because a simulation cannot wait.
#include "sim/retry_sim.h"

#include <map>

extern "C" {
#include "core/group/reshape.h"
}

namespace
{

enum class Mood { Works, Leaves, Gone, Comes, Shrinks, Shrunk, Out };

struct World : Sim {
    struct Entry {
        size_t first, count;
        ft_stream *stream;
    };
    std::vector<std::vector<Entry>> entries;
    std::vector<std::vector<int>> status; // of each call on each rank
    std::vector<Mood> mood;
    std::vector<ft_comm *> child;
    std::vector<ft_shrinking> shrinking;
    std::vector<bool> closed;
    std::vector<ft_comm *> held; // closed, but looked at
    ft_shrink how{};
    bool destroys = false, shrinks = false;
    unsigned hurry = 20; // a rank comes to its next call once in so many turns
    std::vector<std::vector<ft_stream *>> shared; // if there are any, entries go to one of them

    World(uint64_t seed, int ranks, int nstreams = 0)
        : Sim(seed, ranks, seed % 5 == 0), entries(ranks), status(ranks), mood(ranks, Mood::Works),
          child(ranks), shrinking(ranks), closed(ranks), shared(ranks)
    {
        how.limits = comms[0]->limits;
        how.name = "child";
        for (auto &of_rank : shared)
            for (int i = 0; i < nstreams; i++)
                of_rank.push_back(ft_stream_new());
    }

    ~World()
    {
        for (int r = 0; r < n; r++) {
            if (!closed[r])
                bury(r);
            if (child[r])
                ft_comm_close(child[r]);
            for (Entry &entry : entries[r])
                if (shared[r].empty())
                    ft_stream_release(entry.stream);
            for (ft_stream *stream : shared[r])
                ft_stream_release(stream);
        }
        for (int r = 0; r < n; r++) {
            ft_stream_release(streams[r]);
            if (!closed[r])
                ft_comm_close(comms[r]);
            ft_engine_unref(engines[r]);
        }
        for (ft_comm *comm : held)
            ft_comm_unref(comm);
        n = 0; // nothing is left for Sim to close
    }

    void add_calls(size_t count, int victims)
    {
        while (calls.size() < count)
            add_call(sim_random(&world, 2)   ? FT_ALLREDUCE
                     : sim_random(&world, 2) ? FT_BROADCAST
                                             : FT_REDUCE);
        for (Call &call : calls)
            call.root %= n - victims; // the highest ranks are hurt, so that roots live
        for (auto &of_rank : status)
            of_rank.assign(count, FT_AGAIN);
    }

    void enqueue(int r)
    {
        ft_stream *stream = shared[r].empty() ? ft_stream_new()
                                              : shared[r][sim_random(&world, shared[r].size())];
        size_t first = next[r];
        ft_entry *entry = ft_entry_new(&stream, 1);
        do
            ft_work_add(ft_entry_work(entry, comms[r]), make_op(calls[next[r]], r));
        while (++next[r] < calls.size() && calls[next[r]].joined);
        entries[r].push_back({first, next[r] - first, stream});
        ft_entry_submit(entry);
    }

    bool is_idle(int r) const
    {
        return comms[r]->works.queued.load() == 0 && ft_comm_state(comms[r]) != FT_COMM_RETRYING;
    }

    // ---- the parts of calls that block

    void abort(int r)
    {
        if (mood[r] == Mood::Leaves || mood[r] == Mood::Gone)
            return;
        comms[r]->failure.leaving.store(1);
        ft_engine_lock(engines[r]);
        ft_comm_fail(comms[r], FT_ABORTED, comms[r]->view.rank, "rank %d aborted the communicator",
                     comms[r]->view.rank);
        ft_engine_unlock(engines[r]);
        mood[r] = Mood::Leaves;
        next[r] = calls.size();
    }

    bool is_drained(int r) const
    {
        if (comms[r]->failure.verdict.load() != FT_OK)
            return true;
        for (int k = 0; k < comms[r]->view.nranks; k++) {
            ft_link *tx = k == comms[r]->view.rank ? nullptr : comms[r]->peers[k]->tx;
            if (tx && tx->state == FT_LINK_UP && !tx->ops->drained(tx))
                return false;
        }
        return true;
    }

    void close(int r)
    {
        ft_comm_ref(comms[r]); // tests look at it
        ft_comm_close(comms[r]);
        held.push_back(comms[r]);
        closed[r] = true;
        mood[r] = Mood::Gone;
    }

    void come(int r)
    {
        if (comms[r]->works.queued.load() > 0 || ft_comm_state(comms[r]) == FT_COMM_RETRYING)
            return;
        ft_engine_lock(engines[r]);
        comms[r]->failure.pins++;
        ft_engine_unlock(engines[r]);
        how.key = comms[r]->view.rank;
        EXPECT_EQ(ft_shrink_begin(comms[r], &how, &shrinking[r]), FT_OK) << ft_fail_text();
        mood[r] = Mood::Shrinks;
    }

    void go_on_shrinking(int r)
    {
        const ft_decision *decision;
        if (ft_agreement_result(comms[r], shrinking[r].agreement, &decision) == FT_AGAIN)
            return;
        int rc = ft_shrink_end(comms[r], &how, &shrinking[r], FT_OK, &child[r]);
        EXPECT_TRUE(rc == FT_OK || rc == FT_FENCED || rc == FT_NOQUORUM)
            << "rank " << r << ": " << ft_fail_text();
        mood[r] = rc == FT_OK ? Mood::Shrunk : Mood::Out;
        ft_engine_lock(engines[r]);
        comms[r]->failure.pins--;
        ft_engine_unlock(engines[r]);
    }

    // A rank's user: what it does next. Users stop at the first error.
    void step(int r)
    {
        if (mood[r] == Mood::Works && next[r] < calls.size() &&
            comms[r]->failure.verdict.load() == FT_OK) {
            if (sim_random(&world, hurry) == 0)
                enqueue(r);
        } else if (mood[r] == Mood::Works && shrinks)
            mood[r] = Mood::Comes;
        else if (mood[r] == Mood::Works && destroys && is_idle(r) && is_drained(r))
            close(r);
        else if (mood[r] == Mood::Leaves && is_idle(r) && comms[r]->failure.untold.load() == 0)
            close(r);
        if (mood[r] == Mood::Comes)
            come(r);
        if (mood[r] == Mood::Shrinks)
            go_on_shrinking(r);
    }

    bool is_over(int r) const
    {
        switch (mood[r]) {
        case Mood::Works:
            return !destroys && !shrinks && is_idle(r) &&
                   (next[r] == calls.size() || comms[r]->failure.verdict.load() != FT_OK);
        case Mood::Gone:
        case Mood::Shrunk:
        case Mood::Out:
            return true;
        default:
            return false;
        }
    }

    bool all_over() const
    {
        for (int r = 0; r < n; r++)
            if (alive[r] && !is_over(r))
                return false;
        return true;
    }

    std::string describe() const
    {
        std::string text;
        for (int r = 0; r < n; r++)
            text += "rank " + std::to_string(r) + (alive[r] ? "" : " dead") + " mood " +
                    std::to_string(int(mood[r])) + " call " + std::to_string(next[r]) + " queued " +
                    std::to_string(comms[r]->works.queued.load()) + " of " +
                    std::to_string(comms[r]->view.nranks) + " status " +
                    std::to_string(comms[r]->failure.status.load()) + " verdict " +
                    std::to_string(comms[r]->failure.verdict.load()) + " retry " +
                    std::to_string(ft_comm_state(comms[r]) == FT_COMM_RETRYING) + ": " +
                    comms[r]->failure.text + "\n";
        return text;
    }

    // Until all is over and quiet for a while. Collects what became of each call.
    void play(const std::function<void(uint64_t)> &each)
    {
        uint64_t end = world.now_ns + UINT64_C(60000000000), quiet_ns = 0;
        int still = 0;
        for (uint64_t turns = 0; quiet_ns == 0 || world.now_ns - quiet_ns < 3000000; turns++) {
            each(turns);
            int r = int(sim_random(&world, n));
            bool turned = alive[r] && !closed[r];
            if (turned)
                step(r);
            turned = turned && !closed[r];
            still = turned && ft_rank_turn(engines[r]) ? 0 : still + 1;
            world.now_ns += 20;
            if (still > 4 * n) {
                uint64_t event = sim_next(&world);
                if (event > world.now_ns)
                    world.now_ns = event < world.now_ns + 1000000 ? event : world.now_ns + 500000;
                still = 0;
            }
            if (world.now_ns > end) {
                ADD_FAILURE() << "not over after 60 s of virtual time\n" << describe();
                return;
            }
            if (!all_over())
                quiet_ns = 0;
            else if (quiet_ns == 0)
                quiet_ns = world.now_ns;
        }
        collect();
    }

    void collect()
    {
        for (int r = 0; r < n; r++)
            for (const Entry &entry : entries[r])
                if (alive[r] && shared[r].empty()) {
                    int rc = ft_stream_query(entry.stream);
                    for (size_t i = 0; i < entry.count; i++)
                        status[r][entry.first + i] = rc;
                }
    }

    // ---- what must hold

    bool has_result(size_t id, int r) const
    {
        const Call &call = calls[id];
        return status[r][id] == FT_OK && (call.kind != FT_REDUCE || r == call.root);
    }

    // Wherever the call succeeded it has one result; elsewhere nothing was spoilt. Returns who is
    // in it.
    unsigned check_call(size_t id, unsigned most) const
    {
        const Call &call = calls[id];
        unsigned set = 0;
        for (int r = 0; r < n; r++) {
            if (!alive[r])
                continue;
            bool succeeded = has_result(id, r),
                 preserved = call.inplace && call.kind != FT_BROADCAST;
            const std::vector<int32_t> &out = result(id, r);
            if (!succeeded && !preserved)
                continue;
            for (size_t i = 1; i < out.size(); i++)
                if (out[i] != out[0]) {
                    ADD_FAILURE() << "call " << id << " rank " << r
                                  << ": elements differ: " << out[0] << ", " << out[i];
                    return 0;
                }
            if (!succeeded) { // one that failed in a group with it may have been complete
                EXPECT_TRUE(out[0] == unit << r || contributors(call, out[0]))
                    << "call " << id << " rank " << r << " spoilt its input: " << out[0];
                continue;
            }
            if (call.kind == FT_BROADCAST) {
                EXPECT_EQ(out[0], unit << call.root) << "call " << id << " rank " << r;
                continue;
            }
            unsigned mine = contributors(call, out[0]);
            EXPECT_TRUE(mine >> r & 1) << "call " << id << " rank " << r << ": " << out[0]
                                       << " lacks its own contribution";
            EXPECT_EQ(mine & ~most, 0u)
                << "call " << id << " rank " << r << ": somebody has come back";
            EXPECT_TRUE(set == 0 || set == mine)
                << "call " << id << " rank " << r << " has a result of " << mine
                << ", a rank before it of " << set;
            set = mine;
        }
        return set;
    }

    void check_calls() const
    {
        unsigned most = (1u << n) - 1;
        for (size_t id = 0; id < calls.size() && !testing::Test::HasFailure(); id++) {
            unsigned set = check_call(id, most);
            if (set)
                most = set;
        }
    }

    void expect_success(int r)
    {
        for (ft_stream *stream : shared[r])
            EXPECT_EQ(ft_stream_query(stream), FT_OK) << "rank " << r << ": " << ft_fail_text();
        EXPECT_EQ(comms[r]->failure.verdict.load(), FT_OK)
            << "rank " << r << ": " << comms[r]->failure.text;
        for (size_t id = 0; id < calls.size(); id++) {
            if (shared[r].empty()) {
                EXPECT_EQ(status[r][id], FT_OK) << "call " << id << " rank " << r;
            } else
                status[r][id] = FT_OK;
        }
    }
};

struct Runs {
    uint64_t first = env_u64("FT_SIM_SEED", 1), count;
    explicit Runs(uint64_t usual) : count(env_u64("FT_SIM_RUNS", usual))
    {
        std::printf("seeds %lu to %lu\n", first, first + count - 1);
    }
    // fn(seed): one schedule.
    void each(const std::function<void(uint64_t)> &fn) const
    {
        for (uint64_t seed = first; seed < first + count && !testing::Test::HasFailure(); seed++) {
            SCOPED_TRACE(replay(seed));
            fn(seed);
        }
    }
};

TEST(SimRetryCalls, DeepQueuesOnSeveralStreamsAndDeathsWithinDeaths)
{
    uint64_t nested = 0;
    int fenced = 0;
    Runs runs(150);
    runs.each([&](uint64_t seed) {
        int n = 5 + int(seed % 3), deaths = 2 + int(n == 7 && seed % 2);
        World sim(seed, n, 3);
        sim.hurry = seed % 3 ? 1 : 10;
        sim.add_calls(12, deaths);
        uint64_t when = sim_random(&sim.world, 3000);
        int dead = 0;
        sim.play([&](uint64_t turn) {
            bool repairs = dead > 0 && ft_comm_state(sim.comms[0]) == FT_COMM_RETRYING;
            if (dead == deaths ||
                (dead == 0 ? turn < when : !repairs || sim_random(&sim.world, 40)))
                return;
            sim.kill(sim.n - 1 - dead++);
            nested += repairs;
        });
        fenced += left_out(sim);
        for (int r = 0; r < n; r++)
            if (sim.alive[r])
                sim.expect_success(r);
        sim.check_calls();
    });
    std::printf("%lu deaths came while another was repaired; %d ranks were left out\n", nested,
                fenced);
    EXPECT_LE(fenced, 1 + int(runs.count) / 50);
}

TEST(SimRetryCalls, ARevokeEndsItForAll)
{
    Runs runs(200);
    uint64_t during = 0;
    runs.each([&](uint64_t seed) {
        int n = 4 + int(seed % 3);
        World sim(seed, n);
        sim.hurry = seed % 2 ? 1 : 20;
        sim.add_calls(10, 1);
        uint64_t when = sim_random(&sim.world, 2000),
                 turn_of_revoke = when + sim_random(&sim.world, seed % 3 ? 400 : 3000);
        int who = int(sim_random(&sim.world, n - 1));
        bool dies = seed % 4 != 0, revoked = false;
        sim.play([&](uint64_t turn) {
            if (turn == when && dies)
                sim.kill(n - 1);
            if (turn < turn_of_revoke || revoked)
                return;
            revoked = true;
            during += ft_comm_state(sim.comms[who]) == FT_COMM_RETRYING;
            ft_comm_revoke(sim.comms[who], "test");
        });
        left_out(sim);
        bool early = sim.world.now_ns > 0 && revoked;
        for (int r = 0; r < n && early; r++)
            if (sim.alive[r]) {
                EXPECT_NE(sim.comms[r]->failure.verdict.load(), FT_OK)
                    << "rank " << r << " does not know of the revoke\n"
                    << sim.describe();
            }
        sim.check_calls();
    });
    std::printf("%lu revokes came while a death was repaired\n", during);
}

TEST(SimRetryCalls, ARankThatAbortsCountsAsLost)
{
    Runs runs(200);
    int fenced = 0;
    runs.each([&](uint64_t seed) {
        int n = 5 + int(seed % 2);
        World sim(seed, n);
        sim.hurry = seed % 2 ? 1 : 20;
        sim.add_calls(10, 2);
        uint64_t when = sim_random(&sim.world, 2000),
                 turn_of_abort = when + sim_random(&sim.world, seed % 3 ? 400 : 2000);
        bool dies = seed % 4 != 0,
             ahead = seed % 3 == 0; // ahead: it has just finished what others have not
        sim.play([&](uint64_t turn) {
            const ft_comm *comm = sim.comms[n - 2];
            if (turn == when && dies)
                sim.kill(n - 1);
            if (ahead && turn > when && comm->calls.done > sim.comms[0]->calls.done &&
                comm->view.epoch == sim.comms[0]->view.epoch)
                sim.abort(n - 2);
            if (turn == turn_of_abort && !ahead)
                sim.abort(n - 2);
        });
        fenced += left_out(sim);
        for (int r = 0; r < n - 2; r++)
            if (sim.alive[r])
                sim.expect_success(r);
        sim.check_calls();
    });
    std::printf("%d ranks were left out\n", fenced);
    EXPECT_LE(fenced, 1 + int(runs.count) / 50);
}

TEST(SimRetryCalls, ARankThatIsDoneMayDestroyItsEnd)
{
    Runs runs(300);
    int fenced = 0;
    runs.each([&](uint64_t seed) {
        int n = 3 + int(seed % 4);
        World sim(seed, n);
        sim.hurry = 5;
        sim.destroys = true;
        sim.add_calls(3, 1);
        uint64_t when = 300 + sim_random(&sim.world, 1500);
        sim.play([&](uint64_t turn) {
            if (turn == when && sim.mood[n - 1] == Mood::Works)
                sim.kill(n - 1);
        });
        fenced += left_out(sim);
        for (int r = 0; r < n; r++)
            if (sim.alive[r])
                sim.expect_success(r);
        sim.check_calls();
    });
    std::printf("%d ranks were left out\n", fenced);
    EXPECT_LE(fenced, 1 + int(runs.count) / 50);
}

TEST(SimRetryCalls, AShrinkGivesAllSurvivorsOneChild)
{
    Runs runs(200);
    int fenced = 0;
    runs.each([&](uint64_t seed) {
        int n = 4 + int(seed % 3);
        World sim(seed, n);
        sim.hurry = seed % 2 ? 2 : 20;
        sim.shrinks = true;
        sim.add_calls(4, 1);
        uint64_t when = sim_random(&sim.world, 2000);
        sim.play([&](uint64_t turn) {
            if (turn == when)
                sim.kill(n - 1);
        });
        fenced += left_out(sim);
        const ft_comm *first = nullptr;
        for (int r = 0; r < n; r++) {
            if (!sim.alive[r] || sim.mood[r] != Mood::Shrunk)
                continue;
            if (!first)
                first = sim.child[r];
            EXPECT_EQ(sim.child[r]->ctx, first->ctx) << "rank " << r;
            EXPECT_EQ(sim.child[r]->view.nranks, first->view.nranks) << "rank " << r;
            EXPECT_GE(sim.child[r]->view.nranks, __builtin_popcount(sim.living())) << "rank " << r;
        }
        for (int r = 0; r < n; r++)
            fenced += sim.alive[r] && sim.mood[r] == Mood::Out;
        sim.check_calls();
    });
    std::printf("%d ranks were left out\n", fenced);
    EXPECT_LE(fenced, 1 + int(runs.count) / 50);
}

} // namespace

/*
 * Whole engines in one thread under a virtual clock. The ranks compute; when their communicator
 * fails, they agree on flags (sometimes) and shrink, again and again, while links are cut and ranks
 * die. It also checks what must be the same for all of them.
 */
#ifndef FT_RESHAPE_WORLD_H
#define FT_RESHAPE_WORLD_H

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <string>
#include <vector>

extern "C" {
#include "sim/sim.h"
}

inline uint64_t env_u64(const char *name, uint64_t other)
{
    const char *text = std::getenv(name);
    return text ? std::strtoull(text, nullptr, 0) : other;
}

enum class State { Compute, Come, Agree, Shrink, Done, Out, Dead, Grow };
constexpr int Rounds = 6;

struct Node {
    ft_engine *engine = nullptr;
    ft_stream *stream = nullptr;
    ft_comm *comm = nullptr;
    std::vector<ft_comm *> old; // parents that are not closed yet
    State state = State::Compute;
    std::vector<int32_t> in, out;
    int round = 0;
    bool pending = false, listed = false;
    uint64_t come_ns = 0, entered_ns = 0;
    ft_agreement *agreement = nullptr;
    ft_shrinking shrinking{};
    ft_shrink how{};
    int list[1] = {0};
};

struct World {
    sim_world sim;
    uint64_t seed;
    int n, shrinks = 0, fenced = 0, no_quorum = 0;
    bool plain = false; // only shrinks after a failure
    bool harsh;         // also suspicion, deaths without proof, and ranks that come too late
    std::vector<Node> nodes;
    std::map<uint64_t, std::vector<uint64_t>> children; // engines of each context, by rank
    struct Outcome {
        std::vector<int> what;
        std::vector<const Node *> seen_by;
    };
    std::map<std::pair<uint64_t, uint32_t>, Outcome> decisions;
    uint64_t fault_in = 0; // turns until the next fault
    ft_comm_limits limits{1000, 1000, 200, 1, 0, 0, false, false, false, false, false};

    // Joiners have the numbers after the n ranks of the first communicator.
    World(uint64_t s, int ranks, int joiners = 0)
        : seed(s), n(ranks), nodes(size_t(ranks + joiners))
    {
        sim_start(&sim, seed);
        sim.late_copy = chance(2) == 0;
        sim.late_down_ns = chance(2) ? 0 : chance(300000);
        harsh = chance(2) == 0;
        limits.verify = chance(4) == 0;
        size_t chunk = 512u << chance(3);
        std::vector<int> host(static_cast<size_t>(n));
        std::vector<uint64_t> peer;
        for (int r = 0; r < n; r++)
            peer.push_back(id_of(r));
        ft_view view{1, n, 0, 1, host.data(), peer.data()};
        children[77] = peer;
        for (Node &node : nodes)
            open_engine(node, chunk);
        for (int r = 0; r < n; r++)
            open_comm(r, view);
    }

    virtual ~World()
    {
        for (Node &node : nodes) {
            if (node.comm)
                bury(node, node.comm);
            for (ft_comm *comm : node.old)
                bury(node, comm);
            for (ft_comm *comm : node.old)
                ft_comm_close(comm);
            if (node.comm)
                ft_comm_close(node.comm);
            else if (node.engine->ntransports)
                ft_rank_close(node.engine); // it never had a communicator
            ft_stream_release(node.stream);
            ft_engine_unref(node.engine);
        }
        EXPECT_EQ(sim.frames, 0u) << "messages leaked";
        EXPECT_EQ(sim.events, nullptr) << "events of closed transports";
    }

    static uint64_t id_of(int r)
    {
        return 1000 + uint64_t(r);
    }
    uint64_t chance(uint64_t below)
    {
        return sim_random(&sim, below);
    }
    Node &some()
    {
        return nodes[chance(nodes.size())];
    }

    void open_engine(Node &node, size_t chunk)
    {
        int r = int(&node - nodes.data());
        ft_engine_config config{};
        config.env = &sim.env;
        config.transports[0] = &sim_transport_ops;
        config.id = id_of(r);
        config.rank = r;
        config.manual = true;
        EXPECT_EQ(ft_rank_open(&config, &node.engine), FT_OK) << ft_fail_text();
        node.engine->tuning.chunk_bytes = chunk;
        node.engine->host = 1;
        node.stream = ft_stream_new();
    }

    void open_comm(int r, ft_view view)
    {
        Node &node = nodes[size_t(r)];
        for (int k = 0; k < n; k++) {
            ft_endpoint endpoint;
            if (k == r)
                continue;
            EXPECT_EQ(ft_engine_endpoint(nodes[size_t(k)].engine, &endpoint), FT_OK);
            EXPECT_EQ(ft_engine_learn(node.engine, id_of(k), 1, endpoint.address,
                                      endpoint.address_bytes, k),
                      FT_OK);
        }
        view.rank = r;
        EXPECT_EQ(ft_engine_bind(node.engine, 77), FT_OK);
        EXPECT_EQ(ft_comm_open(node.engine, &view, 77, "sim", &limits, &node.comm), FT_OK);
    }

    // Ends what a rank was doing, so that its memory can be freed.
    void bury(Node &node, ft_comm *comm)
    {
        ft_engine_lock(node.engine);
        if (comm->works.queued.load())
            ft_comm_fail(comm, FT_ABORTED, -1, "the end");
        for (int k = 0; k < 1000 && comm->works.queued.load(); k++) {
            sim.now_ns += 100000000;
            ft_rank_turn(node.engine);
        }
        ft_engine_unlock(node.engine);
    }

    // ---- what a rank does

    // An addend of one round. Nothing that is sent in another round or communicator has the same
    // sums.
    static int32_t addend(uint64_t ctx, int round, uint64_t engine, size_t i)
    {
        uint64_t key[4] = {ctx, uint64_t(round), engine, i};
        return int32_t(ft_hash64(key, sizeof key, 5) >> 40);
    }

    void submit(Node &node)
    {
        ft_comm *comm = node.comm;
        uint64_t size[2] = {comm->ctx, uint64_t(node.round)};
        size_t count = ft_hash64(size, sizeof size, seed) % 900;
        node.in.resize(count);
        node.out.assign(count, -1);
        for (size_t i = 0; i < count; i++)
            node.in[i] = addend(comm->ctx, node.round, node.engine->id, i);
        ft_op *op = ft_op_new();
        op->coll = ft_coll{};
        op->coll.kind = FT_ALLREDUCE;
        op->coll.type = FT_INT32;
        op->coll.red = FT_SUM;
        op->coll.count = count;
        op->redop.red = FT_SUM;
        op->in = node.in.data();
        op->out = node.out.data();
        ft_entry *entry = ft_entry_new(&node.stream, 1);
        ft_work_add(ft_entry_work(entry, comm), op);
        node.pending = true;
        ft_entry_submit(entry);
    }

    void check(const Node &node)
    {
        const std::vector<uint64_t> &members = children[node.comm->ctx];
        for (size_t i = 0; i < node.out.size(); i++) {
            int32_t want = 0;
            for (uint64_t engine : members)
                want += addend(node.comm->ctx, node.round, engine, i);
            ASSERT_EQ(node.out[i], want)
                << "round " << node.round << " element " << i << " of engine " << node.engine->id;
        }
    }

    uint64_t dice(const ft_comm *comm, uint64_t what) const
    {
        return ft_hash64(&what, sizeof what, comm->ctx ^ seed);
    }

    // Every rank of the communicator knows this without being told.
    virtual bool shrinks_unforced(const ft_comm *comm) const
    {
        return !plain && comm->view.nranks > 2 && comm->view.epoch < 4 && dice(comm, 1) % 4 == 0;
    }

    void come(Node &node)
    {
        node.state = State::Come;
        node.come_ns = sim.now_ns + chance(harsh && chance(10) == 0 ? 1800000000 : 3000000);
    }

    void compute(Node &node)
    {
        if (node.comm->works.queued.load() > 0)
            return;
        if (node.comm->failure.status.load() != FT_OK) {
            node.pending = false;
            come(node);
            return;
        }
        if (node.pending) {
            check(node);
            node.pending = false;
            node.round++;
        }
        if (node.round < Rounds) {
            submit(node);
            return;
        }
        if (!shrinks_unforced(node.comm)) {
            rest(node);
            return;
        }
        node.list[0] = int(dice(node.comm, 2) % uint64_t(node.comm->view.nranks));
        node.listed = true;
        if (node.list[0] != node.comm->view.rank)
            come(node);
        else
            node.state = State::Out; // it is not asked
    }

    void enter(Node &node)
    {
        if (sim.now_ns < node.come_ns)
            return;
        node.entered_ns = sim.now_ns;
        bool agrees = dice(node.comm, 3) % 3 == 0 && node.comm->group->agreements == 0;
        if (agrees) {
            ft_agree_input input{};
            input.kind = FT_AGREE_FLAGS;
            input.flags = ~(UINT64_C(1) << node.comm->view.rank);
            int rc = ft_agreement_enter(node.comm, &input, &node.agreement);
            node.state = State::Agree;
            if (rc == FT_FENCED)
                leave(node, rc); // it has learned the outcome of a later one
            else
                ASSERT_EQ(rc, FT_OK) << ft_fail_text();
            return;
        }
        node.how = ft_shrink{node.listed ? node.list : nullptr,
                             node.listed,
                             false,
                             node.comm->view.rank,
                             "child",
                             limits};
        node.listed = false;
        int rc = ft_shrink_begin(node.comm, &node.how, &node.shrinking);
        if (rc == FT_FENCED) {
            leave(node, rc);
            return;
        }
        ASSERT_EQ(rc, FT_OK) << ft_fail_text();
        node.agreement = node.shrinking.agreement;
        node.state = State::Shrink;
    }

    // False: not yet. The first one to see a decision sets what the others must see, unless only
    // the dead have seen it.
    bool decided(const Node &node, int *rc)
    {
        const ft_decision *d = nullptr;
        *rc = ft_agreement_result(node.comm, node.agreement, &d);
        EXPECT_LT(sim.now_ns - node.entered_ns, UINT64_C(3700000000)) << "an agreement without end";
        if (*rc == FT_AGAIN)
            return false;
        if (*rc == FT_NOQUORUM)
            return true;
        std::vector<int> now(d->order, d->order + d->nsurvivors);
        for (int r = 0; r < node.comm->view.nranks; r++)
            now.push_back(d->failed[r] * 2 + d->excluded[r]);
        now.push_back(int(d->flags & 0xff));
        Outcome &outcome = decisions[{node.comm->ctx, node.agreement->instance}];
        auto is_dead = [](const Node *who) { return who->state == State::Dead; };
        if (std::all_of(outcome.seen_by.begin(), outcome.seen_by.end(), is_dead))
            outcome.what = now;
        EXPECT_EQ(outcome.what, now) << "two decisions of one agreement";
        outcome.seen_by.push_back(&node);
        return true;
    }

    virtual void leave(Node &node, int rc)
    {
        fenced += rc == FT_FENCED;
        no_quorum += rc == FT_NOQUORUM;
        EXPECT_TRUE(rc == FT_FENCED || rc == FT_NOQUORUM)
            << ft_status_text(rc) << ": " << ft_fail_text();
        node.state = State::Out;
        if (!node.comm->group->fenced)
            return;
        ft_shrinking again;
        EXPECT_EQ(ft_shrink_begin(node.comm, &node.how, &again), FT_FENCED)
            << "a fenced rank may come again";
    }

    void agree(Node &node)
    {
        int rc;
        if (!decided(node, &rc))
            return;
        if (rc != FT_OK)
            leave(node, rc);
        else
            come(node);
    }

    void shrink(Node &node)
    {
        int rc;
        if (!decided(node, &rc))
            return;
        ft_comm *child = nullptr;
        rc = ft_shrink_end(node.comm, &node.how, &node.shrinking, FT_OK, &child);
        if (rc != FT_OK) {
            leave(node, rc);
            return;
        }
        std::vector<uint64_t> members(child->view.peer, child->view.peer + child->view.nranks);
        children[child->ctx] = members; // the same for all of them: they have the same decision
        shrinks++;
        node.old.push_back(node.comm);
        node.comm = child;
        node.round = 0;
        node.state = State::Compute;
    }

    // What a rank does when its rounds are over, and in states that only a derived world has.
    virtual void rest(Node &node)
    {
        node.state = State::Done;
    }
    virtual void step_more(Node &)
    {
    }
    virtual void died(Node &)
    {
    }

    void step(Node &node)
    {
        switch (node.state) {
        case State::Compute:
            compute(node);
            break;
        case State::Come:
            enter(node);
            break;
        case State::Agree:
            agree(node);
            break;
        case State::Shrink:
            shrink(node);
            break;
        case State::Done:
            if (node.comm->failure.status.load() != FT_OK)
                come(node);
            break;
        case State::Grow:
            step_more(node);
            break;
        default:
            break;
        }
        if (!node.old.empty() && chance(200) == 0) {
            ft_comm_close(node.old.front());
            node.old.erase(node.old.begin());
        }
        if (node.state == State::Out && node.comm && node.comm->works.queued.load() == 0 &&
            chance(500) == 0) {
            while (!node.old.empty())
                ft_comm_close(node.old.back()), node.old.pop_back();
            ft_comm_close(node.comm); // and with it the engine
            node.comm = nullptr;
        }
    }

    // ---- what happens to it

    bool is_live(const Node &node) const
    {
        return node.state != State::Out && node.state != State::Dead;
    }

    void kill(Node &node)
    {
        if (!is_live(node))
            return;
        sim.proof = !harsh || chance(2) == 0;
        sim_kill(&sim, node.engine->id);
        died(node);
        node.state = State::Dead;
    }

    virtual void hurt()
    {
        Node &a = some(), &b = some();
        uint64_t what = chance(harsh ? 5 : 3);
        if (what == 0)
            sim_cut(&sim, a.engine->id, b.engine->id);
        else if (what <= 2) {
            kill(a);
        } else if (is_live(a) && a.engine->id != b.engine->id) {
            ft_peer *peer = ft_engine_peer(a.engine, b.engine->id);
            peer->heartbeat.suspected = what == 3;
        }
    }

    bool all_done() const
    {
        return std::all_of(nodes.begin(), nodes.end(), [&](const Node &node) {
            return !is_live(node) ||
                   (node.state == State::Done && node.comm->failure.status.load() == FT_OK);
        });
    }

    // Turns all ranks but `asleep` until done(), which it returns, or for so much virtual time.
    template <typename Done> bool run_until(const Node *asleep, uint64_t bound_ns, Done done)
    {
        for (uint64_t end = sim.now_ns + bound_ns;
             sim.now_ns < end && !done() && !::testing::Test::HasFailure();) {
            bool moved = false;
            for (Node &node : nodes) {
                if (&node == asleep || node.state == State::Dead || !node.comm)
                    continue;
                for (int k = 0; k < 16; k++)
                    moved |= ft_rank_turn(node.engine);
                step(node);
            }
            sim.now_ns += moved ? 200 + chance(2000) : 500000;
        }
        return done();
    }

    // Turns random ranks until all are done and quiet for a while. False: virtual time passes the
    // bound.
    bool run(int faults)
    {
        uint64_t end = sim.now_ns + UINT64_C(60000000000), quiet_ns = 0;
        fault_in = chance(3000);
        uint64_t turns = 0;
        for (int still = 0; sim.now_ns < end && turns++ < 20000000 && shrinks < 100 &&
                            !::testing::Test::HasFailure();) {
            if (faults > 0 && fault_in-- == 0)
                hurt(), faults--, fault_in = chance(chance(2) ? 300 : 6000);
            Node &node = some();
            bool moved = node.state != State::Dead && node.engine->ntransports &&
                         ft_rank_turn(node.engine);
            if (node.state != State::Dead)
                step(node);
            still = moved ? 0 : still + 1;
            sim.now_ns += 20;
            if (still > 4 * int(nodes.size())) {
                uint64_t next = sim_next(&sim);
                if (next > sim.now_ns)
                    sim.now_ns = next < sim.now_ns + 1000000 ? next : sim.now_ns + 500000;
                still = 0;
            }
            if (faults > 0 || !all_done())
                quiet_ns = 0;
            else if (quiet_ns == 0)
                quiet_ns = sim.now_ns;
            else if (sim.now_ns - quiet_ns > 5000000)
                return true;
        }
        return false;
    }
};

inline std::string describe(const World &world)
{
    static const char *name[] = {"computes", "comes", "agrees", "shrinks",
                                 "done",     "out",   "dead",   "grows"};
    std::string text = std::to_string(world.sim.now_ns / 1000000) + " ms\n";
    for (const Node &node : world.nodes) {
        text += "engine " + std::to_string(node.engine->id) + " " + name[int(node.state)];
        if (node.comm)
            text += " round " + std::to_string(node.round) + " epoch " +
                    std::to_string(node.comm->view.epoch) + " of " +
                    std::to_string(node.comm->view.nranks) + " ctx " +
                    std::to_string(node.comm->ctx % 1000) + ": " + node.comm->failure.text;
        text += "\n";
    }
    return text;
}

#endif

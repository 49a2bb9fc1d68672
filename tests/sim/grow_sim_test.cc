// Property: a grow succeeds on all live ranks of the parent and on all joiners, with one order of
// the ranks, or on none of them, whichever ranks die or give up and whatever links are cut, at any
// stage. Joiners hear nothing else than what was agreed. If the grow fails, the parent can be used
// as before, to compute, to grow again and to shrink. Every wait ends within its bound, and nothing
// leaks. Method: whole engines under a virtual clock, as in reshape_sim_test. The rendezvous is the
// real gather.c, which decides for the root's service which ranks have come and what all are told.
// Its sockets and thread are not simulated: a connection is a call, an answer takes a random delay,
// and a death is noticed at once. Replay one seed: FT_SIM_SEED=n FT_SIM_RUNS=1
// tests/sim/grow_sim_test
#include "sim/child_agree.h"

extern "C" {
#include "membership/bootstrap.h"
}

namespace
{

constexpr int Attempts = 2;
constexpr uint64_t Parent = 77, Ms = 1000000;

// Where a rank is: the survivors' stages, then those of a joiner.
enum Stage {
    Coming,
    Gathering,
    Asked,
    Entering,
    Agreeing,
    Joining,
    Waiting,
    Asking,
    Leaving,
    Stages
};
const char *const stage_name[Stages] = {"coming",  "gathering", "asked",  "entering", "agreeing",
                                        "joining", "waiting",   "asking", "leaving"};

struct Part {
    Stage stage = Coming;
    int attempt = 0, place = 0; // of the table
    uint64_t at_ns = 0, bound_ns = 0;
    ft_grow how{};
    ft_growing growing{};
    ft_joining joining{};
    ft_table *table = nullptr;
    int64_t key = 0;
    bool keyed = false, gives_up = false, unknown = false;
};

struct Attempt {
    ft_gather *gather = nullptr;
    int root = 0, first = 0, njoiners = 0; // first: of its joiners among the nodes
    struct Seen {
        const Node *who;
        int status;
        std::vector<uint64_t> order;
    };
    std::vector<Seen> seen;
};

struct GrowWorld : World {
    std::vector<Part> parts;
    Attempt attempts[Attempts];
    int nfaults, faults, grown = 0, failed = 0, told = 0, hits[Stages] = {};
    bool cut = false;
    Node *dying = nullptr; // who has told of a decision that others have not heard of yet
    uint64_t dies_in = 0;  // steps; not 0: it has been chosen
    Stage trigger;         // the first that comes here brings the first fault

    GrowWorld(uint64_t s, int ranks, int joiners, int hurts)
        : World(s, ranks, Attempts * joiners), parts(nodes.size()), nfaults(hurts), faults(hurts)
    {
        trigger = Stage(chance(Stages));
        for (Node &node : nodes)
            node.round = Rounds - 1;
        for (size_t i = 0; i < nodes.size(); i++)
            parts[i].place = int(i), parts[i].keyed = chance(4) == 0,
            parts[i].key = int64_t(chance(6)) - 2;
        for (int a = 0; a < Attempts; a++) {
            attempts[a].root = int(chance(uint64_t(n)));
            attempts[a].njoiners = joiners;
            attempts[a].first = n + a * joiners;
            for (int j = 0; j < joiners; j++) {
                Part &part = parts[size_t(attempts[a].first + j)];
                nodes[size_t(attempts[a].first + j)].state = State::Out;
                part.stage = Joining, part.attempt = a, part.place = n + j;
            }
        }
    }

    ~GrowWorld() override
    {
        for (size_t i = 0; i < nodes.size(); i++) {
            if (parts[i].growing.growth)
                free(parts[i].growing.joiners);
            free(parts[i].table);
        }
        for (Attempt &attempt : attempts)
            if (attempt.gather)
                ft_gather_free(attempt.gather);
    }

    size_t index(const Node &node) const
    {
        return size_t(&node - nodes.data());
    }
    Part &part_of(const Node &node)
    {
        return parts[index(node)];
    }
    Attempt &attempt_of(const Node &node)
    {
        return attempts[part_of(node).attempt];
    }
    bool shrinks_unforced(const ft_comm *comm) const override
    {
        return comm->ctx != Parent && World::shrinks_unforced(comm);
    }

    void reach(Node &node, Stage stage)
    {
        part_of(node).stage = stage;
        if (stage == trigger && faults > 0)
            fault_in = chance(400), trigger = Stages;
    }

    // ---- the rendezvous

    void begin_attempt(Attempt &attempt)
    {
        ft_id id{};
        id.grow = true;
        id.survivors = uint32_t(n);
        id.nonce = 1 + uint64_t(&attempt - attempts);
        attempt.gather = ft_gather_new(&id, sim.now_ns, UINT64_C(120000) * Ms);
        for (int j = 0; j < attempt.njoiners; j++) {
            Node &node = nodes[size_t(attempt.first + j)];
            if (chance(16) == 0)
                continue; // never comes
            node.state = State::Grow;
            part_of(node).at_ns = sim.now_ns + chance(chance(2) ? 6 * Ms : Ms);
        }
    }

    void look_at(Attempt &attempt)
    {
        ft_gather *g = attempt.gather;
        if (!ft_gather_settled(g) && g->due_ns <= sim.now_ns)
            ft_gather_timeout(g, sim.now_ns);
    }

    ft_table *read_table(const ft_gather *g)
    {
        auto *table = static_cast<ft_table *>(
            calloc(1, sizeof(ft_table) + g->nranks * sizeof(ft_endpoint)));
        table->nranks = int(g->nranks);
        const unsigned char *at = g->answer + FT_FRAME_BYTES + FT_TABLE_FIXED_BYTES;
        for (int r = 0; r < table->nranks; r++) {
            int used = ft_endpoint_decode(at, size_t(g->answer + g->answer_bytes - at),
                                          &table->endpoint[r]);
            EXPECT_GT(used, 0);
            at += used;
        }
        return table;
    }

    void died(Node &node) override
    {
        const Part &part = part_of(node);
        if (node.state == State::Grow)
            hits[part.stage]++;
        ft_gather *g = attempt_of(node).gather;
        if (g && node.state == State::Grow && part.stage == Waiting)
            ft_gather_fail(g, sim.now_ns, FT_PEER, "rank %d went away", part.place);
    }

    // ---- what came of it

    // Everybody that lives has seen the same. A status that only this rank has says nothing.
    void judge(const Node &node, int status, const ft_comm *child)
    {
        Attempt &attempt = attempt_of(node);
        std::vector<uint64_t> order;
        if (child)
            order.assign(child->view.peer, child->view.peer + child->view.nranks);
        for (const Attempt::Seen &seen : attempt.seen) {
            if (seen.who->state == State::Dead)
                continue;
            EXPECT_EQ(seen.status == FT_OK, status == FT_OK)
                << "engine " << seen.who->engine->id << " saw " << ft_status_text(seen.status)
                << ", engine " << node.engine->id << " " << ft_status_text(status) << " "
                << ft_fail_text();
            EXPECT_EQ(seen.order, order) << "two orders";
        }
        attempt.seen.push_back({&node, status, order});
        if (child)
            check_order(attempt, order);
    }

    // By key, then place; a joiner without a key comes last.
    void check_order(const Attempt &attempt, const std::vector<uint64_t> &order)
    {
        std::vector<std::pair<std::pair<int64_t, int>, uint64_t>> want;
        for (size_t i = 0; i < nodes.size(); i++) {
            bool survivor = int(i) < n,
                 joiner = int(i) >= attempt.first && int(i) < attempt.first + attempt.njoiners;
            int64_t other = survivor ? int64_t(i) : INT64_MAX;
            if (survivor || joiner)
                want.push_back(
                    {{parts[i].keyed ? parts[i].key : other, parts[i].place}, nodes[i].engine->id});
        }
        std::sort(want.begin(), want.end());
        for (size_t i = 0; i < want.size(); i++)
            EXPECT_EQ(order[i], want[i].second) << "rank " << i;
    }

    void go_on(Node &node, ft_comm *child)
    {
        children[child->ctx].assign(child->view.peer, child->view.peer + child->view.nranks);
        if (node.comm)
            node.old.push_back(node.comm);
        node.comm = child;
        node.round = 0;
        node.state = State::Compute;
    }

    // ---- survivors

    void rest(Node &node) override
    {
        Part &part = part_of(node);
        if (node.comm->ctx != Parent || part.attempt == Attempts) {
            node.state = State::Done;
            return;
        }
        node.state = State::Grow;
        reach(node, Coming);
        part.at_ns = sim.now_ns + chance(harsh && chance(20) == 0 ? 1800 * Ms : 3 * Ms);
    }

    void come_to_grow(Node &node)
    {
        Part &part = part_of(node);
        Attempt &attempt = attempt_of(node);
        if (!attempt.gather)
            begin_attempt(attempt);
        if (sim.now_ns < part.at_ns)
            return;
        bool root = attempt.root == node.comm->view.rank;
        static const unsigned char id[1][FT_UNIQUE_ID_BYTES] = {};
        part.how = ft_grow{n + attempt.njoiners, root ? id : nullptr,
                           part.keyed ? part.key : node.comm->view.rank, "grown", limits};
        part.growing = ft_growing{};
        ASSERT_EQ(ft_grow_begin(node.comm, &part.how, &part.growing), FT_OK) << ft_fail_text();
        if (!root) {
            enter_grow(node, FT_OK);
            return;
        }
        std::vector<ft_endpoint> endpoints(static_cast<size_t>(n));
        ASSERT_EQ(ft_grow_endpoints(node.comm, &part.how, &part.growing, endpoints.data()), FT_OK)
            << ft_fail_text();
        ft_gather_supply(attempt.gather, uint32_t(part.how.nranks), endpoints.data(), sim.now_ns);
        ft_gather_bound(attempt.gather, sim.now_ns + 250 * Ms, 250);
        reach(node, Gathering);
    }

    void gather(Node &node)
    {
        Part &part = part_of(node);
        ft_gather *g = attempt_of(node).gather;
        look_at(attempt_of(node));
        if (!ft_gather_settled(g))
            return;
        int rc = ft_gather_verdict(g);
        if (rc != FT_OK) {
            enter_grow(node, rc);
            return;
        }
        ft_table *table = read_table(g);
        rc = ft_grow_meet(node.comm, &part.growing, table);
        free(table);
        part.bound_ns = sim.now_ns + 250 * Ms;
        if (rc == FT_OK)
            reach(node, Asked);
        else
            enter_grow(node, rc);
    }

    void await_askers(Node &node)
    {
        Part &part = part_of(node);
        int rc = ft_grow_met(node.comm, &part.growing);
        if (rc == FT_AGAIN && sim.now_ns > part.bound_ns)
            rc = ft_fail(FT_TIMEOUT, "they do not ask");
        if (rc != FT_AGAIN)
            enter_grow(node, rc);
    }

    void enter_grow(Node &node, int met)
    {
        Part &part = part_of(node);
        reach(node, Entering);
        node.entered_ns = sim.now_ns;
        int rc = ft_grow_enter(node.comm, &part.how, &part.growing, met);
        if (rc == FT_FENCED) { // it has learned the outcome of a later agreement
            ft_comm *child = nullptr;
            EXPECT_EQ(ft_grow_end(node.comm, &part.how, &part.growing, rc, &child),
                      met == FT_OK ? FT_FENCED : met);
            part.growing.growth = nullptr;
            leave(node, rc);
            return;
        }
        ASSERT_EQ(rc, FT_OK) << ft_fail_text();
        node.agreement = part.growing.agreement;
        reach(node, Agreeing);
    }

    void await_decision(Node &node)
    {
        Part &part = part_of(node);
        ft_comm *child = nullptr;
        int rc;
        if (part.gives_up) { // aborted: it leaves, and says nothing of the outcome to joiners
            ft_grow_end(node.comm, &part.how, &part.growing, ft_fail(FT_ABORTED, "aborted"),
                        &child);
            part.growing.growth = nullptr;
            node.state = State::Out;
            return;
        }
        if (!decided(node, &rc))
            return;
        bool local = rc == FT_NOQUORUM;
        rc = ft_grow_end(node.comm, &part.how, &part.growing, FT_OK, &child);
        part.growing.growth = nullptr;
        if (!local)
            judge(node, rc, child);
        if (dies_in == 0 && nfaults > 0 && n == 2 && chance(2) == 0) {
            dies_in = 1 + chance(8000), dying = &node;
            cut |= sim_cut(&sim, node.engine->id, id_of(node.engine->id == id_of(0)));
        }
        grown += rc == FT_OK;
        failed += rc != FT_OK;
        part.attempt++;
        if (rc == FT_OK)
            go_on(node, child);
        else if (rc == FT_FENCED || rc == FT_NOQUORUM)
            leave(node, rc);
        else
            node.state = State::Compute, node.round = Rounds - 1; // the parent goes on
        if (rc == FT_OK)
            part.attempt = Attempts;
    }

    // Ranks that saw a failure shrink, others that did not grow: all learn that, and come again.
    void leave(Node &node, int rc) override
    {
        if (rc == FT_USAGE || rc == FT_MIXED)
            come(node);
        else
            World::leave(node, rc);
    }

    // ---- joiners

    bool root_lives(const Node &node)
    {
        return nodes[size_t(attempt_of(node).root)].state != State::Dead;
    }

    void join(Node &node)
    {
        Part &part = part_of(node);
        ft_join_msg msg{};
        if (sim.now_ns < part.at_ns)
            return;
        if (!root_lives(node)) {
            finish(node);
            return;
        }
        ft_gather *g = attempt_of(node).gather;
        msg.nonce = g->nonce, msg.nranks = uint32_t(n + attempt_of(node).njoiners),
        msg.rank = uint32_t(part.place), msg.nids = 1;
        msg.left_ms = msg.bound_ms = 1000;
        ASSERT_EQ(ft_engine_endpoint(node.engine, &msg.endpoint), FT_OK);
        if (part.keyed) {
            ASSERT_TRUE(
                ft_endpoint_put(&msg.endpoint, FT_ENDPOINT_KEY, &part.key, sizeof part.key));
        }
        ft_endpoint_settings(&msg.endpoint, &limits);
        ASSERT_EQ(ft_gather_add(g, &msg, sim.now_ns), FT_OK) << ft_fail_text();
        part.at_ns = 0;
        reach(node, Waiting);
    }

    void await_table(Node &node)
    {
        Part &part = part_of(node);
        ft_gather *g = attempt_of(node).gather;
        look_at(attempt_of(node));
        if (!root_lives(node)) {
            finish(node);
            return;
        }
        if (!ft_gather_settled(g))
            return;
        if (part.at_ns == 0)
            part.at_ns = sim.now_ns + chance(Ms / 4) + 1;
        if (sim.now_ns < part.at_ns)
            return;
        if (ft_gather_verdict(g) != FT_OK) {
            finish(node);
            return;
        }
        part.table = read_table(g);
        for (int r = 0; r < part.table->nranks; r++) {
            const ft_endpoint &endpoint = part.table->endpoint[r];
            if (endpoint.engine != node.engine->id)
                ft_engine_learn(node.engine, endpoint.engine, endpoint.host, endpoint.address,
                                endpoint.address_bytes, r);
        }
        ASSERT_EQ(ft_grow_join_begin(node.engine, part.table, &part.joining), FT_OK)
            << ft_fail_text();
        part.bound_ns = sim.now_ns + 2600 * Ms;
        reach(node, Asking);
    }

    void ask(Node &node)
    {
        Part &part = part_of(node);
        ft_comm *child = nullptr;
        ft_grow how{part.table->nranks, nullptr, 0, "grown", limits};
        int rc = part.gives_up ? FT_ABORTED : ft_grow_join_turn(&part.joining);
        if (rc == FT_AGAIN && sim.now_ns > part.bound_ns)
            rc = ft_fail(FT_TIMEOUT, "no answer");
        if (rc == FT_AGAIN)
            return;
        part.unknown = rc != FT_OK && strncmp(ft_fail_text(), "the survivors could not", 23) != 0;
        bool heard = !part.gives_up && !part.unknown;
        rc = ft_grow_join_end(&part.joining, &how, rc, &child);
        if (heard)
            judge(node, rc, child);
        told += heard;
        if (rc == FT_OK) {
            go_on(node, child);
            return;
        }
        part.at_ns = sim.now_ns + 20 * Ms;
        reach(node, Leaving);
    }

    void finish(Node &node)
    {
        ft_rank_close(node.engine);
        node.state = State::Out;
    }

    void step_more(Node &node) override
    {
        if (dying && --dies_in == 0)
            kill(*dying), dying = nullptr, dies_in = 1;
        switch (part_of(node).stage) {
        case Coming:
            come_to_grow(node);
            break;
        case Gathering:
            gather(node);
            break;
        case Asked:
            await_askers(node);
            break;
        case Agreeing:
            await_decision(node);
            break;
        case Joining:
            join(node);
            break;
        case Waiting:
            await_table(node);
            break;
        case Asking:
            ask(node);
            break;
        case Leaving:
            if (sim.now_ns >= part_of(node).at_ns)
                finish(node);
            break;
        default:
            break;
        }
    }

    // ---- what happens to it

    void hurt() override
    {
        Node &root = nodes[size_t(attempts[0].root)], &survivor = nodes[chance(uint64_t(n))];
        Node &joiner = nodes[size_t(n) + chance(uint64_t(attempts[0].njoiners))];
        uint64_t what = chance(10);
        faults--;
        if (what < 2)
            cut = true, World::hurt();
        else if (what == 2)
            part_of(chance(2) ? joiner : survivor).gives_up = true;
        if (what == 3 || what == 4 || what == 9)
            kill(root);
        if (what == 5 || what == 6)
            kill(survivor);
        if (what == 7 || what == 8 || what == 9)
            kill(joiner);
    }

    // Who lives, could ask and lost no link knows what came of it, if anybody is left who can tell.
    void check_told()
    {
        for (size_t i = size_t(n); i < nodes.size(); i++) {
            const Attempt &attempt = attempts[parts[i].attempt];
            bool teller = std::any_of(attempt.seen.begin(), attempt.seen.end(),
                                      [&](const Attempt::Seen &seen) {
                                          return index(*seen.who) < size_t(n) && is_live(*seen.who);
                                      });
            if (parts[i].unknown && !parts[i].gives_up && nodes[i].state != State::Dead && teller &&
                !cut && !harsh)
                ADD_FAILURE() << "engine " << nodes[i].engine->id << " was not told";
        }
    }
};

std::string describe_grow(GrowWorld &world)
{
    std::string text = describe(world);
    for (const Node &node : world.nodes)
        text += std::to_string(node.engine->id) + " " + stage_name[world.part_of(node).stage] +
                "\n";
    return text;
}

TEST(Grow, EverywhereOrNowhere)
{
    setenv("FTCCL_DEBUG", "VERSION", 0); // the failures here are meant
    ft_params_reload();
    uint64_t first = env_u64("FT_SIM_SEED", 1), runs = env_u64("FT_SIM_RUNS", 1000);
    int grown = 0, failed = 0, told = 0, hits[Stages] = {};
    std::printf("seeds %llu to %llu\n", (unsigned long long)first,
                (unsigned long long)(first + runs - 1));
    for (uint64_t seed = first; seed < first + runs && !HasFailure(); seed++) {
        SCOPED_TRACE("replay: FT_SIM_SEED=" + std::to_string(seed) +
                     " FT_SIM_RUNS=1 tests/sim/grow_sim_test");
        int faults = int(seed / 4 % 4);
        GrowWorld world(seed, 1 + int(seed % 5), 1 + int(seed % 3), faults);
        EXPECT_TRUE(world.run(faults))
            << "not over after 60 s of virtual time, 20 million turns or 100 children\n"
            << describe_grow(world);
        world.check_told();
        const ft_comm *last = nullptr;
        for (const Node &node : world.nodes) {
            if (!world.is_live(node))
                continue;
            EXPECT_TRUE(!last || last->ctx == node.comm->ctx) << "two worlds\n"
                                                              << describe_grow(world);
            last = node.comm;
        }
        if (faults == 0) {
            EXPECT_TRUE(world.harsh || world.fenced + world.no_quorum == 0) << describe_grow(world);
        }
        grown += world.grown, failed += world.failed, told += world.told;
        for (int s = 0; s < Stages; s++)
            hits[s] += world.hits[s];
    }
    std::printf("%d ranks grew, %d failed to; %d joiners were told; deaths while", grown, failed,
                told);
    for (int s = 0; s < Stages; s++)
        std::printf(" %s %d", stage_name[s], hits[s]);
    std::printf("\n");
    if (runs >= 1000) {
        for (int s : {Coming, Gathering, Asked, Agreeing, Joining, Waiting, Asking})
            EXPECT_GT(hits[s], 0) << stage_name[s];
        EXPECT_GT(grown, int(runs));
        EXPECT_GT(failed, int(runs) / 2);
    }
}

TEST(Grow, NobodyThatComesToTheNextAgreementIsLeftOut)
{
    setenv("FTCCL_DEBUG", "VERSION", 0);
    ft_params_reload();
    uint64_t first = env_u64("FT_SIM_SEED", 1), runs = env_u64("FT_SIM_RUNS", 300), grown = 0;
    std::printf("seeds %llu to %llu\n", (unsigned long long)first,
                (unsigned long long)(first + runs - 1));
    for (uint64_t seed = first; seed < first + runs && !HasFailure(); seed++) {
        SCOPED_TRACE("replay: FT_SIM_SEED=" + std::to_string(seed) +
                     " FT_SIM_RUNS=1 tests/sim/grow_sim_test --gtest_filter=*IsLeftOut");
        GrowWorld world(seed, 1 + int(seed % 5), 1 + int(seed % 3), 0);
        world.harsh = false;
        auto is_grown = [&](const Node &node) {
            return !world.is_live(node) || (node.comm && node.comm->ctx != Parent);
        };
        for (int turns = 0;
             turns < 400000 && !std::all_of(world.nodes.begin(), world.nodes.end(), is_grown);
             turns++) {
            Node &node = world.some();
            bool moved = node.engine->ntransports && ft_rank_turn(node.engine);
            world.step(node);
            world.sim.now_ns += moved ? 200 : 2000;
        }
        if (!std::all_of(world.nodes.begin(), world.nodes.end(), is_grown))
            continue; // a joiner that never comes
        grown++;
        ChildAgree child(world, draw_troubles(world));
        EXPECT_TRUE(child.run(3)) << "not over\n" << describe_grow(world);
        EXPECT_FALSE(HasFailure()) << child.text();
    }
    std::printf("%llu grew\n", (unsigned long long)grown);
    if (runs >= 100) {
        EXPECT_GT(grown, runs / 2);
    }
}

} // namespace

// Property: links are cut, and ranks are killed (with or without proof), falsely suspected or late,
// at any moment, even during an agreement. Then the live ranks that go on have the same decisions
// and one communicator, and its collectives are exact (so nothing of an older communicator reaches
// it). Every agreement ends within its bound, and nothing leaks. If every death is proven and no
// rank is suspected, all live ranks go on together. A rank that the others left out, on purpose and
// without its knowledge, never goes on alone when it comes, whatever messages and goodbyes it got
// before the network parted. Method: whole engines in one thread under a virtual clock. Ranks
// compute; when their communicator fails, they agree on flags (sometimes) and shrink, again and
// again. Sometimes they shrink without a failure. Replay one seed: FT_SIM_SEED=n FT_SIM_RUNS=1
// tests/sim/reshape_sim_test
#include "sim/child_agree.h"

namespace
{

TEST(Reshape, SurvivorsAgreeAndGoOn)
{
    uint64_t first = env_u64("FT_SIM_SEED", 1), runs = env_u64("FT_SIM_RUNS", 1000);
    int shrinks = 0, fenced = 0, no_quorum = 0;
    std::printf("seeds %llu to %llu\n", (unsigned long long)first,
                (unsigned long long)(first + runs - 1));
    for (uint64_t seed = first; seed < first + runs && !HasFailure(); seed++) {
        SCOPED_TRACE("replay: FT_SIM_SEED=" + std::to_string(seed) +
                     " FT_SIM_RUNS=1 tests/sim/reshape_sim_test");
        World world(seed, 2 + int(seed % 7));
        EXPECT_TRUE(world.run(int(world.chance(4))))
            << "not over after 60 s of virtual time, 20 million turns or 100 children\n"
            << describe(world);
        const ft_comm *last = nullptr;
        for (const Node &node : world.nodes) {
            if (!world.is_live(node))
                continue;
            EXPECT_TRUE(!last || last->ctx == node.comm->ctx) << "two worlds\n" << describe(world);
            last = node.comm;
        }
        auto dead = std::count_if(world.nodes.begin(), world.nodes.end(),
                                  [](const Node &node) { return node.state == State::Dead; });
        bool minority = 2 * dead >= world.n; // proof travels on links, and there may have been none
        EXPECT_TRUE(world.harsh || (world.fenced == 0 && (world.no_quorum == 0 || minority)))
            << "a live rank was left out\n"
            << describe(world);
        shrinks += world.shrinks, fenced += world.fenced, no_quorum += world.no_quorum;
    }
    std::printf("%d children, %d ranks fenced, %d without quorum\n", shrinks, fenced, no_quorum);
    if (runs >= 100) {
        EXPECT_GT(shrinks, int(runs));
    }
}

TEST(Reshape, WhoWasLeftOutNeverGoesOnAlone)
{
    uint64_t first = env_u64("FT_SIM_SEED", 1), runs = env_u64("FT_SIM_RUNS", 500);
    int fenced = 0, no_quorum = 0;
    std::printf("seeds %llu to %llu\n", (unsigned long long)first,
                (unsigned long long)(first + runs - 1));
    for (uint64_t seed = first; seed < first + runs && !HasFailure(); seed++) {
        SCOPED_TRACE("replay: FT_SIM_SEED=" + std::to_string(seed) +
                     " FT_SIM_RUNS=1 tests/sim/reshape_sim_test --gtest_filter=*GoesOnAlone");
        World world(seed, 3 + int(seed % 3));
        world.harsh = false;
        world.plain = true;
        ASSERT_TRUE(world.run_until(nullptr, 100000000, [&] { return world.all_done(); }))
            << describe(world);
        Node &out =
            world.nodes[1 + world.chance(uint64_t(world.n) - 1)]; // one that is no quorum by itself
        auto others = [&](auto &&has) {
            return std::all_of(world.nodes.begin(), world.nodes.end(),
                               [&](Node &node) { return &node == &out || has(node); });
        };
        for (Node &node : world.nodes) {
            node.list[0] = int(&out - world.nodes.data());
            node.listed = &node != &out;
            if (node.listed)
                world.come(node);
        }
        out.state = State::Come; // its user does not come yet; its engine falls asleep when the
                                 // first one knows
        out.come_ns = UINT64_MAX;
        auto went_on = [](const Node &node) {
            return !node.old.empty() || node.comm->view.epoch > 1;
        };
        auto leader = world.nodes.end();
        world.run_until(nullptr, 3000000000, [&] {
            return (leader = std::find_if(world.nodes.begin(), world.nodes.end(), went_on)) !=
                   world.nodes.end();
        });
        ASSERT_TRUE(world.run_until(&out, 3000000000, [&] { return others(went_on); }))
            << describe(world);
        world.sim.proof = true;
        if (world.chance(4) > 0)
            sim_kill(&world.sim, leader->engine->id), leader->state = State::Dead;
        for (Node &node : world.nodes)
            if (world.chance(4) == 0)
                sim_cut(&world.sim, node.engine->id, out.engine->id);
        auto has_left = [](const Node &node) {
            return node.state == State::Dead || (node.state == State::Done && node.old.empty());
        };
        ASSERT_TRUE(world.run_until(&out, 3000000000, [&] { return others(has_left); }))
            << "parents are not closed\n"
            << describe(world);
        for (uint64_t k = world.chance(100); k > 0; k--)
            ft_rank_turn(out.engine), world.sim.now_ns += 1000;
        sim_part(&world.sim, out.engine->id);
        out.come_ns = world.sim.now_ns + world.chance(2000000);
        EXPECT_TRUE(world.run_until(nullptr, 10000000000, [&] { return out.state == State::Out; }))
            << "a second world\n"
            << describe(world);
        fenced += world.fenced, no_quorum += world.no_quorum;
    }
    std::printf("%d ranks told, %d without quorum\n", fenced, no_quorum);
    if (runs >= 100) {
        EXPECT_GT(fenced, int(runs) / 20);
        EXPECT_GT(no_quorum, int(runs) / 20);
    }
}

// A child whose context all have bound, of every second rank or of all, as by a split.
void split(World &world, size_t step)
{
    std::vector<uint64_t> peer;
    for (size_t r = 0; r < world.nodes.size(); r += step)
        peer.push_back(world.nodes[r].engine->id);
    std::vector<int> host(peer.size());
    for (size_t r = 0; r < world.nodes.size(); r++) {
        Node &node = world.nodes[r];
        if (r % step) {
            node.state = State::Out;
            continue;
        }
        ft_view view{1, int(peer.size()), int(r / step), 1, host.data(), peer.data()};
        ft_comm *child = nullptr;
        ASSERT_EQ(ft_engine_bind(node.engine, 78), FT_OK);
        ASSERT_EQ(ft_comm_open(node.engine, &view, 78, "split", &world.limits, &child), FT_OK);
        node.old.push_back(node.comm);
        node.comm = child;
    }
}

TEST(Reshape, NobodyThatComesToAChildsAgreementIsLeftOut)
{
    uint64_t first = env_u64("FT_SIM_SEED", 1), runs = env_u64("FT_SIM_RUNS", 300);
    std::printf("seeds %llu to %llu\n", (unsigned long long)first,
                (unsigned long long)(first + runs - 1));
    for (uint64_t seed = first; seed < first + runs && !HasFailure(); seed++) {
        SCOPED_TRACE("replay: FT_SIM_SEED=" + std::to_string(seed) +
                     " FT_SIM_RUNS=1 tests/sim/reshape_sim_test --gtest_filter=*IsLeftOut");
        World world(seed, 2 + int(seed % 7));
        world.harsh = false;
        world.plain = true;
        if (seed % 2) {
            world.run_until(nullptr, world.chance(3000000), [&] { return world.all_done(); });
            split(world, 1 + seed / 2 % 2);
        } else {
            Node &out = world.some();
            bool listed = world.n > 2;
            for (Node &node : world.nodes) {
                node.list[0] = int(&out - world.nodes.data());
                node.listed = listed;
                if (listed && &node == &out)
                    node.state = State::Out;
                else
                    world.come(node);
            }
            auto has_child = [&](const Node &node) {
                return !world.is_live(node) || node.comm->view.epoch > 1;
            };
            ASSERT_TRUE(world.run_until(nullptr, 3000000000, [&] {
                return std::all_of(world.nodes.begin(), world.nodes.end(), has_child);
            })) << describe(world);
        }
        ChildAgree child(world, draw_troubles(world));
        EXPECT_TRUE(child.run(3)) << "not over\n" << describe(world);
        EXPECT_FALSE(HasFailure()) << child.text();
    }
}

// One rank's user does not come to an agreement, while its engine answers. The others wait for it
// once.
TEST(Reshape, WhoDidNotComeOnceIsNotWaitedForAgain)
{
    uint64_t first = env_u64("FT_SIM_SEED", 1), runs = env_u64("FT_SIM_RUNS", 200);
    std::printf("seeds %llu to %llu\n", (unsigned long long)first,
                (unsigned long long)(first + runs - 1));
    for (uint64_t seed = first; seed < first + runs && !HasFailure(); seed++) {
        SCOPED_TRACE("replay: FT_SIM_SEED=" + std::to_string(seed) +
                     " FT_SIM_RUNS=1 tests/sim/reshape_sim_test --gtest_filter=*WaitedForAgain");
        World world(seed, 3 + int(seed % 5));
        Node &absent = world.some();
        std::vector<ft_agreement *> agreements(world.nodes.size());
        auto all_enter = [&](ft_agree_kind kind) {
            ft_agree_input input{};
            input.kind = kind;
            for (size_t i = 0; i < agreements.size(); i++) {
                if (&world.nodes[i] == &absent)
                    continue;
                ASSERT_EQ(ft_agreement_enter(world.nodes[i].comm, &input, &agreements[i]), FT_OK);
            }
        };
        auto all_decided = [&] {
            return std::all_of(agreements.begin(), agreements.end(), [](ft_agreement *agreement) {
                return !agreement || atomic_load(&agreement->state) != FT_AGAIN;
            });
        };
        for (Node &node : world.nodes)
            node.state = State::Come, node.come_ns = UINT64_MAX; // their users do nothing else
        all_enter(FT_AGREE_FLAGS);
        ASSERT_TRUE(world.run_until(nullptr, 1500000000, all_decided));
        uint64_t since = world.sim.now_ns;
        all_enter(FT_AGREE_SHRINK);
        EXPECT_TRUE(world.run_until(nullptr, 3000000000, all_decided));
        EXPECT_LT(world.sim.now_ns - since, uint64_t(world.limits.suspect_ms) * 1000000 / 2)
            << "rank " << (&absent - world.nodes.data()) << " of " << world.n;
        for (size_t i = 0; i < agreements.size(); i++) {
            const ft_decision *d = nullptr;
            if (!agreements[i])
                continue;
            ASSERT_EQ(ft_agreement_result(world.nodes[i].comm, agreements[i], &d), FT_OK)
                << ft_fail_text();
            EXPECT_EQ(d->nsurvivors, world.n - 1);
        }
    }
}

// A clock that goes on by itself, and once stands still for 100 s as this process sees it.
uint64_t clock_reads;
uint64_t jumping_clock(ft_env *env)
{
    auto *sim = static_cast<sim_world *>(env->ctx);
    sim->now_ns += ++clock_reads == 20 ? UINT64_C(100000000000) : 1000;
    return sim->now_ns;
}

TEST(Reshape, AUserWaitsOnWhenTheMachineStoodStillForLongerThanTheBound)
{
    World world(1, 3);
    ft_agree_input input{};
    input.kind = FT_AGREE_FLAGS;
    std::vector<ft_agreement *> agreements(3);
    for (size_t r = 0; r < 3; r++)
        ASSERT_EQ(ft_agreement_enter(world.nodes[r].comm, &input, &agreements[r]), FT_OK);
    world.sim.env.now_ns = jumping_clock;
    clock_reads = 0;
    for (size_t r = 0; r < 3; r++) { // turns the others' engines too
        const ft_decision *d = nullptr;
        EXPECT_EQ(ft_agreement_wait(world.nodes[r].comm, agreements[r]), FT_OK) << ft_fail_text();
        ASSERT_EQ(ft_agreement_result(world.nodes[r].comm, agreements[r], &d), FT_OK)
            << ft_fail_text();
        EXPECT_EQ(d->nsurvivors, 3);
    }
    EXPECT_GT(clock_reads, 20u);
}

// A rank's user does not come to an agreement of a child, but to the next of its parent. It is
// fenced, so that a communicator with it would never work: the others leave it out there too, and
// go on.
TEST(Reshape, WhoWasLeftOutOfAChildIsLeftOutOfItsParentToo)
{
    uint64_t first = env_u64("FT_SIM_SEED", 1), runs = env_u64("FT_SIM_RUNS", 200);
    std::printf("seeds %llu to %llu\n", (unsigned long long)first,
                (unsigned long long)(first + runs - 1));
    for (uint64_t seed = first; seed < first + runs && !HasFailure(); seed++) {
        SCOPED_TRACE("replay: FT_SIM_SEED=" + std::to_string(seed) +
                     " FT_SIM_RUNS=1 tests/sim/reshape_sim_test --gtest_filter=*ItsParentToo");
        World world(seed, 3 + int(seed % 5));
        world.harsh = false;
        world.plain = true;
        split(world, 1);
        Node &absent = world.some();
        std::vector<ft_agreement *> agreements(world.nodes.size());
        std::vector<ft_comm *> parents(world.nodes.size());
        ft_agree_input input{};
        input.kind = FT_AGREE_FLAGS;
        for (size_t i = 0; i < agreements.size(); i++) {
            std::swap(parents[i], world.nodes[i].old[0]);
            world.nodes[i].old.clear();
            world.nodes[i].state = State::Come, world.nodes[i].come_ns = UINT64_MAX;
            if (&world.nodes[i] == &absent)
                continue;
            ASSERT_EQ(ft_agreement_enter(world.nodes[i].comm, &input, &agreements[i]), FT_OK);
        }
        auto all_decided = [&] {
            return std::all_of(agreements.begin(), agreements.end(), [](ft_agreement *agreement) {
                return !agreement || atomic_load(&agreement->state) != FT_AGAIN;
            });
        };
        ASSERT_TRUE(world.run_until(nullptr, 1500000000, all_decided));
        for (size_t i = 0; i < agreements.size(); i++) {
            Node &node = world.nodes[i];
            if (world.chance(2))
                node.old.push_back(node.comm); // closed later
            else
                ft_comm_close(node.comm);
            node.comm = parents[i];
            world.come(node);
        }
        auto over = [&] { return world.all_done() && absent.state == State::Out; };
        EXPECT_TRUE(world.run_until(nullptr, 6000000000, over)) << describe(world);
        EXPECT_EQ(world.fenced, 1);
        for (Node &node : world.nodes) {
            if (&node == &absent)
                continue;
            EXPECT_EQ(node.comm->view.nranks, world.n - 1) << describe(world);
        }
    }
}

} // namespace

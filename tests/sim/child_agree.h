/*
 * What happens at once on a new communicator: its ranks agree again and again, while messages are
 * slow, links break, parents are closed, and engines or the whole machine stand still. A rank that
 * takes part must not be left out because of what others did.
 */
#ifndef FT_CHILD_AGREE_H
#define FT_CHILD_AGREE_H

#include "sim/reshape_world.h"

struct Troubles {
    uint64_t delay_ns = 20000; // longest delay of messages
    int cuts = 0;              // number of links that break
    uint64_t asleep_ns = 0; // one engine is not turned for so long; only its rank may be left out
    uint64_t standstill_ns = 0; // no engine is turned for so long
};

class ChildAgree
{
  public:
    ChildAgree(World &w, const Troubles &t) : world(w), troubles(t)
    {
    }

    // True: all expected ranks came through `rounds` agreements.
    bool run(int rounds)
    {
        for (Node &node : world.nodes)
            if (world.is_live(node) && node.comm)
                members.push_back({&node, 0, later(), false});
        if (troubles.asleep_ns)
            asleep = &members[world.chance(members.size())];
        world.sim.delay_ns = troubles.delay_ns;
        uint64_t end = world.sim.now_ns + UINT64_C(60000000000),
                 sleeps_at = world.sim.now_ns + world.chance(60000000), stands_at = sleeps_at;
        for (int still = 0; world.sim.now_ns < end && !::testing::Test::HasFailure();) {
            if (std::all_of(members.begin(), members.end(),
                            [&](const Member &m) { return m.done == rounds || m.out; }))
                return true;
            if (troubles.standstill_ns && world.sim.now_ns >= stands_at) {
                world.sim.now_ns += troubles.standstill_ns;
                stands_at = UINT64_MAX;
            }
            if (troubles.cuts > 0 && world.chance(is_asked() ? 40 : 2000) == 0)
                troubles.cuts -= cut();
            Member &member = members[world.chance(members.size())];
            bool sleeps = &member == asleep && world.sim.now_ns >= sleeps_at &&
                          world.sim.now_ns < sleeps_at + troubles.asleep_ns;
            bool moved = !sleeps && ft_rank_turn(member.node->engine);
            if (!sleeps)
                step(member, rounds);
            still = moved ? 0 : still + 1;
            world.sim.now_ns += moved ? 500 : 2000;
            if (still <= 4 * int(members.size()))
                continue;
            uint64_t next = sim_next(&world.sim);
            if (next > world.sim.now_ns)
                world.sim.now_ns = next < world.sim.now_ns + 500000 ? next
                                                                    : world.sim.now_ns + 500000;
            still = 0;
        }
        return false;
    }

    std::string text() const
    {
        std::string out = "delay " + std::to_string(troubles.delay_ns) + " asleep " +
                          std::to_string(troubles.asleep_ns) + " standstill " +
                          std::to_string(troubles.standstill_ns) + " ns\n";
        for (const Member &m : members)
            out += "engine " + std::to_string(m.node->engine->id) + " rank " +
                   std::to_string(m.node->comm->view.rank) + " of " +
                   std::to_string(m.node->comm->view.nranks) + ": " + std::to_string(m.done) +
                   " agreements" + (&m == asleep ? ", sleeps\n" : "\n");
        return out;
    }

  private:
    struct Member {
        Node *node;
        int done;
        uint64_t come_ns;
        bool out;
        ft_agreement *agreement = nullptr;
    };

    uint64_t later()
    {
        return world.sim.now_ns + world.chance(world.chance(2) ? 100000000 : 1000000);
    }

    bool is_asked() const // messages are in flight
    {
        return std::any_of(members.begin(), members.end(),
                           [](const Member &m) { return m.agreement; });
    }

    bool cut()
    {
        const Member &a = members[world.chance(members.size())],
                     &b = members[world.chance(members.size())];
        return sim_cut(&world.sim, a.node->engine->id, b.node->engine->id);
    }

    void step(Member &member, int rounds)
    {
        Node &node = *member.node;
        if (!node.old.empty() && world.chance(1000) == 0 &&
            !node.old.front()->works.queued.load()) {
            ft_comm_close(node.old.front());
            node.old.erase(node.old.begin());
        }
        if (member.out || member.done == rounds)
            return;
        if (!member.agreement) {
            if (world.sim.now_ns >= member.come_ns)
                enter(member);
            return;
        }
        const ft_decision *d = nullptr;
        int rc = ft_agreement_result(node.comm, member.agreement, &d);
        if (rc == FT_AGAIN)
            return;
        member.agreement = nullptr;
        member.done++;
        member.come_ns = later();
        if (&member == asleep && (rc == FT_FENCED || rc == FT_NOQUORUM))
            member.out = true;
        else
            EXPECT_EQ(rc, FT_OK) << "engine " << node.engine->id << ": " << ft_fail_text();
        for (int r = 0; rc == FT_OK && r < node.comm->view.nranks; r++) {
            bool slept = asleep && node.comm->view.peer[r] == asleep->node->engine->id;
            EXPECT_TRUE(!d->failed[r] || slept)
                << "rank " << r << " was left out, says engine " << node.engine->id;
        }
    }

    void enter(Member &member)
    {
        ft_agree_input input{};
        input.kind = FT_AGREE_FLAGS;
        int rc = ft_agreement_enter(member.node->comm, &input, &member.agreement);
        if (rc == FT_FENCED && &member == asleep)
            member.out = true;
        else
            EXPECT_EQ(rc, FT_OK) << ft_fail_text();
    }

    World &world;
    Troubles troubles;
    std::vector<Member> members;
    Member *asleep = nullptr;
};

inline Troubles draw_troubles(World &world)
{
    Troubles t;
    static const uint64_t delays[] = {20000, 1000000, 10000000};
    t.delay_ns = delays[world.chance(3)];
    uint64_t silent_ns = uint64_t(world.limits.suspect_ms) * 1000000,
             enter_ns = uint64_t(world.limits.init_timeout_ms) * 1000000;
    switch (world.chance(5)) {
    case 0:
        t.asleep_ns = silent_ns / 2 + world.chance(3 * silent_ns);
        break;
    case 1:
        t.standstill_ns = silent_ns / 2 + world.chance(2 * enter_ns);
        break;
    case 2: // the other end sees it so late that the next link comes first, and waits
        t.cuts = 1;
        t.delay_ns = delays[world.chance(2)];
        world.sim.late_down_ns = 150000000;
        break;
    default: // a question and its answer must come through
        t.cuts = int(world.chance(t.delay_ns > 1000000 ? 3 : 3 * world.nodes.size()));
        break;
    }
    return t;
}

#endif

/*
 * Validations at random moments in a simulation: random ranks are asked. No rank holds a call for
 * longer than the request allows, and every validation ends.
 */
#ifndef FT_TESTS_VALIDATIONS_H
#define FT_TESTS_VALIDATIONS_H

#include <gtest/gtest.h>

#include <set>
#include <vector>

extern "C" {
#include "core/group/validation.h"
#include "sim/sim.h"
}

struct Validations {
    static constexpr uint64_t kPausesMs[] = {100, 1000, 20000};
    static constexpr uint64_t kLateNs = 30000000; /* ranks are turned now and then */
    sim_world &world;
    std::set<uint64_t> turns;
    std::set<uint64_t> measured; /* numbers of validations */
    uint64_t next = 1;

    /* The clock makes large steps while nothing moves, so messages may take milliseconds. */
    Validations(sim_world &in, int n, uint64_t turns_before, const std::vector<ft_comm *> &comms)
        : world(in)
    {
        for (ft_comm *comm : comms)
            comm->limits.op_timeout_ms = 4000;
        while (turns.size() < size_t(n))
            turns.insert(sim_random(&world, turns_before));
    }

    /* Before each turn of the simulation, which takes a microsecond, so that messages come between
     * calls, and three milliseconds while processors are measured. */
    void each(uint64_t turn, const std::vector<ft_engine *> &engines,
              const std::vector<ft_comm *> &comms, const std::vector<bool> &alive)
    {
        size_t r = sim_random(&world, engines.size());
        if (turns.count(turn) && alive[r]) {
            ft_ask ask = {next++, comms[r]->ctx, UINT64_MAX, kPausesMs[sim_random(&world, 3)]};
            ft_validation_begin(engines[r], &ask);
        }
        bool checks = false;
        for (size_t k = 0; k < comms.size(); k++)
            if (alive[k] && comms[k]->group->pause)
                checks |= watch(*comms[k]->group->pause, k);
        world.now_ns += checks ? 3000000 : 1000;
    }

    bool watch(const ft_pause &pause, size_t rank)
    {
        if (pause.all.held_ns) {
            EXPECT_LE(world.now_ns - pause.all.held_ns, pause.ask.pause_ms * 1000000 + kLateNs)
                << "rank " << rank;
        }
        if (pause.phase != FT_PAUSE_MEASURING)
            return false;
        measured.insert(pause.ask.number);
        return pause.all.checks > 0 && pause.at == 0 &&
               world.now_ns - pause.all.start_ns < pause.checks_ns;
    }

    /* Also without a call, in little more than a minute. */
    void expect_end(const std::vector<ft_engine *> &engines, const std::vector<ft_comm *> &comms,
                    const std::vector<bool> &alive)
    {
        for (uint64_t end = world.now_ns + 62000000000; world.now_ns < end;) {
            bool all = true;
            for (size_t r = 0; r < engines.size(); r++) {
                if (alive[r])
                    ft_rank_turn(engines[r]);
                all &= !alive[r] || !comms[r]->group->pause;
            }
            if (all)
                return;
            world.now_ns += 1000000;
        }
        ADD_FAILURE() << "a validation has not ended";
    }
};

#endif

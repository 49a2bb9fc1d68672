// The symbolic checker: runs all ranks of one planned collective with symbols instead of numbers.
//
// Links hold `window` unconsumed messages for each (sender, receiver, lane). A step first sends,
// then, when all its messages are there, takes them out and stores the result, then forwards it.
// With `hand` a result may wait for room in its forwards (window 1 is enough then); without,
// messages are only taken when there is room for all forwards. What a step sends with FT_STEP_MEETS
// is lent (always with an odd seed, else at random): the step ends when it was taken. A value is
// what an expression tree would give: its hash is equal for equal trees, where the first two
// operands of a combination may be swapped (a + b is b + a) and nothing else.
#ifndef FT_TESTS_ALGO_CHECKER_H
#define FT_TESTS_ALGO_CHECKER_H

#include <cstdint>
#include <random>
#include <string>
#include <vector>

extern "C" {
#include "algo/algo.h"
}

enum class InPlace { none, all, mixed };

struct Case {
    const struct ft_algo *algo;
    struct ft_coll coll;
    size_t chunk_bytes;
    int chunks;
    std::vector<int> host; // of each rank
    InPlace in_place;
    int window;
    bool hand;
    uint64_t seed; // order of delivery
    ft_pulls pulls = FT_PULLS_NONE;
    bool peer_lanes = false;

    int nranks() const
    {
        return (int)host.size();
    }
    std::string text() const;
};

struct Value {
    uint64_t hash = 0;
    uint64_t ranks = 0; // whose contributions are in it
    uint32_t elem = 0;
    enum State : uint8_t { nothing, raw, scaled, final } state = nothing;
    int8_t lane = -1; // that wrote it; -1: the user
};

// Empty if everything is proved, else what is wrong. `hops`: longest chain of messages, each of
// which waited for the last.
std::string check(const Case &, int *hops = nullptr);
// Does the algorithm do and fit the case's kind and view?
bool applies(const Case &);

#endif

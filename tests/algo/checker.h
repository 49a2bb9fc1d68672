// The symbolic checker. It runs all ranks of one planned collective with symbols instead of
// numbers.
// A link holds `window` unconsumed messages for each (sender, receiver, lane). A step first sends.
// When all its messages are there, it takes them and stores the result; then it forwards the
// result. With `hand`, a result may wait for room in its forwards, and a window of 1 is enough;
// otherwise messages are only taken when there is room for all forwards. What a step sends with
// FT_STEP_MEETS is lent (always with an odd seed, otherwise at random): then the step ends when the
// message was taken.
// A value is what an expression tree would give. Equal trees have equal hashes, where only the
// first two operands of a combination may be swapped (a + b is b + a).
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
    std::vector<int> host; // host of each rank
    InPlace in_place;
    int window;
    bool hand;
    uint64_t seed; // of the order in which messages are delivered
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
    uint64_t ranks = 0; // the ranks whose contributions are in it
    uint32_t elem = 0;
    enum State : uint8_t { nothing, raw, scaled, final } state = nothing;
    int8_t lane = -1; // lane that wrote it; -1: the user
};

// Returns "" if everything is proved, else what is wrong. `hops`: length of the longest chain of
// messages that wait for one another.
std::string check(const Case &, int *hops = nullptr);
// Whether the algorithm supports the kind of the case and fits its view.
bool applies(const Case &);

#endif

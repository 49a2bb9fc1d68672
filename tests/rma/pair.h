// Two engines over the fake fabric, with traffic from a to b that is checked.
#ifndef TESTS_RMA_PAIR_H
#define TESTS_RMA_PAIR_H

#include "tests/rma/fake.h"

struct RmaEngine {
    RmaEngine(FakeNet &, uint64_t id, size_t chunk_bytes, size_t contexts);
    ~RmaEngine()
    {
        close();
    }
    void close();
    bool poll();
    bool has(int what, ft_link *) const;
    FakeNet &net;
    ft_env env;
    uint64_t id;
    ft_transport *t = nullptr;
    std::vector<std::pair<int, ft_link *>> events;
};

// A send from memory of the user, which is pending until the network does not read it any more.
struct Lent {
    ft_send req;
    size_t at, len;
};

struct Held {
    ft_msg msg;
    std::string text;
};

// A link and what went over it. Channels are pairs of context and lane.
class Pair
{
  public:
    explicit Pair(FakeNet &, size_t chunk_bytes = 4096, size_t contexts = 2);
    ~Pair();
    bool connect(); // false: it did not come up
    bool settle();  // until all sends have completed
    void leave();   // a disconnects
    void turn();    // a few steps of the network, and perhaps a turn of each engine
    bool turn_until(const std::function<bool()> &condition, int most = 400000);
    void try_send();
    void try_recv();
    void release_one();
    void take_back_lent(); // spoils the memory of sends that have completed
    bool is_down() const;
    // Sends and receives until so many messages have been taken.
    bool run(unsigned long messages, const std::function<void()> &between = nullptr);
    bool drain(); // takes everything that was sent
    void release_all();
    int try_lend(const ft_header &, const std::string &text);
    int send(uint64_t ctx, const std::string &text); // of lane 0, unchecked

    FakeNet &net;
    size_t chunk_bytes, contexts;
    std::unique_ptr<RmaEngine> a, b;
    ft_link *ab = nullptr, *ba = nullptr;
    std::map<std::pair<uint64_t, unsigned>, std::deque<std::string>> sent;
    std::vector<Held> held;
    std::string memory; // registered with a
    void *registered = nullptr;
    std::deque<Lent> lent;
    unsigned long nlent = 0;
    unsigned long nsent = 0, ntaken = 0;
};

// Runs the body for each seed of 1..count, or for that of FT_RMA_SEED=N only, with a pair that is
// connected and over which so many messages have gone. A failure prints how to replay it.
struct Scene {
    unsigned seeds;
    unsigned long messages;
    size_t contexts = 2;
    std::function<void(FakeNet &, uint64_t seed)> prepare = nullptr;
};
void each_seed(const Scene &, const std::function<void(FakeNet &, Pair &)> &body);
bool one_seed_only(); // FT_RMA_SEED is set

#endif

// A simulated world for agreements: n machines of src/membership/agree*.c in one thread under a
// virtual clock, with messages that are lost, delayed, duplicated and reordered, and with
// partitions, cut pairs, deaths and false suspicion. Everything follows from one seed. Each step is
// shown to a Referee (agree_referee.h), which knows the protocol's rules independently.
#ifndef AGREE_WORLD_H
#define AGREE_WORLD_H

#include <functional>
#include <map>
#include <queue>
#include <string>
#include <vector>

extern "C" {
#include "membership/agree.h"
}
#include "sim/agree_referee.h"

namespace agree
{

constexpr uint64_t MS = 1000000, SILENT = 100 * MS, ENTER = 300 * MS;
constexpr size_t MESSAGE = 1024;

struct Decided { // a decision, which outlives its machine
    int status = 0, kind = 0;
    uint64_t flags = 0, first_op = 0, last_op = 0, nonce = 0;
    std::vector<unsigned char> failed, excluded;
    std::vector<int> order;
    std::string blob;
    bool operator==(const Decided &o) const;
    bool goes_on(int r) const
    {
        return status == FT_OK && !excluded[size_t(r)];
    }
    std::string text() const;
};

struct Input {
    ft_agree_kind kind = FT_AGREE_SHRINK;
    uint64_t flags = ~0ull, last_op = 0;
    int64_t key = 0;
    std::vector<int> exclude;
    std::string blob;
};

struct Held {
    int from, to;
    std::vector<unsigned char> bytes;
}; // a message that a test delivers itself
std::vector<unsigned char> bytes_of(int n, int rank, const ft_agree_msg &m);

class World
{
  public:
    World(uint64_t seed, int nranks);
    ~World();
    World(const World &) = delete;
    World &operator=(const World &) = delete;

    int n;
    uint64_t now = 1000 * MS;
    unsigned loss = 0, twice = 0; // in percent
    uint64_t delay = 2 *
                     // the longest delay; with `uneven`, one message in 16 takes up to 10 times as
                     // long
                     MS;
    bool uneven = false;
    std::vector<std::vector<bool>> cut; // [from][to]: no message passes
    std::vector<ft_agree *> machine;    // null: the rank is dead
    // The time; 0: not yet. left: its state is not FT_AGAIN any more.
    std::vector<uint64_t> entered, left;
    std::vector<int> status;                                  // its final status
    std::vector<uint64_t> killed;                             // the time; 0: it lives
    bool lists = false;                                       // a rank entered with a list
    std::map<int, Decided> decided;                           // also of dead ranks
    std::function<bool(int, int, const ft_agree_msg &)> drop; // losses that a directed test adds
    std::vector<std::string> faults;                          // broken rules
    std::vector<Step> trace;                                  // only with keep_trace
    bool keep_trace = false;
    uint64_t messages = 0;

    uint64_t random(uint64_t below);
    void at(uint64_t when, std::function<void()> what);
    int enter(int r, const Input &in = Input());
    void enter_all(const Input &in = Input());
    void kill(int r); // without proof of death
    void prove(int dead, int to);
    void prove_all(int dead);
    void learn(int r, int about, ft_peer_evidence e);
    void learn_all(int about, ft_peer_evidence e);
    // side: bits of ranks; no message passes between the side and the rest
    void partition(unsigned side, bool on);
    bool alive(int r) const
    {
        return machine[size_t(r)] != nullptr;
    }
    void run(uint64_t ns);
    // runs until every live rank that entered has an answer, at most for that time
    bool settle(uint64_t ns);
    void inject(int from, int to, const std::vector<unsigned char> &bytes);
    const Decided *of(int r) const;
    std::string fault_text() const;

  private:
    struct Event {
        uint64_t when, order;
        std::function<void()> what;
    };
    struct Later {
        bool operator()(const Event &a, const Event &b) const
        {
            return a.when != b.when ? a.when > b.when : a.order > b.order;
        }
    };
    struct Port {
        World *world;
        int rank;
    };
    static uint64_t clock(ft_env *env);
    static void draw(ft_env *env, void *buf, size_t len);
    static void send(void *arg, int to, const void *data, size_t len);
    void deliver(int from, int to, const std::vector<unsigned char> &bytes);
    bool step(uint64_t until);
    void tick(int r);
    void look(int r);
    void referee_says(const Step &s);
    Step step_of(What what, int rank, int other, const ft_agree_msg *m);
    void compare(int r, const Decided &d);

    ft_env env;
    uint64_t state, order = 0;
    Referee referee;
    std::vector<Port> ports;
    std::vector<ft_agree_config> config;
    std::priority_queue<Event, std::vector<Event>, Later> events;
};

} // namespace agree

#endif

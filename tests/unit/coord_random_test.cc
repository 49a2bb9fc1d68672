// Property: whatever happens to members, connections and coordinators, and whatever a member that
// lies says, views are what coord_players.h checks; and when nothing happens any more, nobody is in
// a step for which others have not got the view, and all complete replicas are in one view. Method:
// hundreds of random events: deaths, silence, new replicas and processes, standbys, members that
// are slow or do not get what was sent, restarts of the coordinator, a second coordinator beside
// the first, lies. A failure prints its seed. Replay: FT_SEED=<seed> FT_RUNS=1 coord_random_test.
#include <algorithm>
#include <cstdlib>
#include <random>

#include "tests/unit/coord_players.h"

namespace
{

using coord::Player;
using coord::World;

class Chaos
{
  public:
    explicit Chaos(uint64_t seed) : dice_(seed), w(seed % 4 != 0)
    {
        size_ = (uint32_t)pick(1, 4);
        min_members_ = (uint32_t)pick(1, 2);
        for (uint64_t i = pick(2, 5); i > 0; i--)
            add_replica();
    }

    void play(int events)
    {
        void (Chaos::*const all[])() = {
            &Chaos::step,    &Chaos::step,      &Chaos::step,        &Chaos::step,
            &Chaos::time,    &Chaos::time,      &Chaos::come,        &Chaos::come,
            &Chaos::kill,    &Chaos::kill_host, &Chaos::fall_silent, &Chaos::start_process,
            &Chaos::standby, &Chaos::reconnect, &Chaos::miss,        &Chaos::leave,
            &Chaos::lie,     &Chaos::lie,       &Chaos::prove_death, &Chaos::rarely};
        for (int i = 0; i < events && !testing::Test::HasFailure(); i++)
            (this->*all[pick(0, std::size(all) - 1)])();
    }

    // All who live come, and ask for as long as it takes.
    void heal()
    {
        w.close_earlier();
        w.broken_conns.clear();
        for (Player *liar : liars_)
            if (liar->conn >= 0)
                w.cut(liar->conn);
        for (size_t i = 0; i < w.conns.size(); i++) {
            if (w.conns[i].deaf)
                w.cut((int)i);
            w.conns[i].beats = true;
        }
        for (int i = 0; i < 60; i++) {
            come();
            w.run(100);
        }
        expect_as_often();
        for (int i = 0; i < 60; i++) {
            come();
            for (Player *p : live())
                if (!p->asking)
                    w.ask(p);
            w.run(100);
        }
        std::map<std::string, std::set<uint32_t>> ranks;
        std::map<std::string, uint32_t> size; // a liar may have founded the group with another one
        for (Player *p : live())
            if (p->joined && !p->replica.empty())
                ranks[p->replica].insert(p->local_rank), size[p->replica] = p->local_size;
        uint32_t complete = 0;
        for (auto &r : ranks)
            complete += r.second.size() == size[r.first];
        for (Player *p : live()) {
            if (complete < min_members_ || !p->joined || p->replica.empty() ||
                ranks[p->replica].size() < p->local_size)
                continue;
            EXPECT_EQ(p->view.nranks, complete)
                << p->replica << " " << p->local_rank << " " << p->waits;
            EXPECT_FALSE(p->broken);
        }
    }

  private:
    // Who has a view that has come again waits in its step for those who have it.
    void expect_as_often()
    {
        std::map<std::pair<uint64_t, uint64_t>, uint32_t> times;
        for (Player *p : live())
            if (p->joined && p->view.epoch && !p->broken && !liars_.count(p)) {
                auto first = times.insert({{p->view.term, p->view.epoch}, p->view.times});
                EXPECT_EQ(p->view.times, first.first->second)
                    << p->replica << " " << p->local_rank << ", view " << p->view.epoch;
            }
    }
    uint64_t pick(uint64_t low, uint64_t high)
    {
        return low + dice_() % (high - low + 1);
    }
    std::vector<Player *> live()
    {
        std::vector<Player *> list;
        for (auto &p : w.players)
            if (!dead_.count(p.get()))
                list.push_back(p.get());
        return list;
    }
    Player *any()
    {
        std::vector<Player *> list = live();
        return list.empty() ? nullptr : list[pick(0, list.size() - 1)];
    }
    Player *process(const std::string &replica, uint32_t local_rank)
    {
        Player *p = w.add(replica, local_rank, size_);
        p->min_members = min_members_;
        p->window_ms = (uint32_t)pick(1, 4) * 300; // 0: those who ask first go on alone, for ever
        p->suspect_ms = (uint32_t)pick(5, 20) * 100;
        p->step = pick(0, 3);
        return p;
    }
    void add_replica()
    {
        if (replicas_.size() < 12)
            replicas_.push_back("r" + std::to_string(replicas_.size()));
        const std::string &name = replicas_[pick(0, replicas_.size() - 1)];
        const int conn = pick(0, 1) ? w.connect() : -1;
        for (uint32_t i = 0; i < size_; i++)
            w.join(process(name, i), conn, conn < 0 ? 0 : i);
    }
    void end(Player *p)
    {
        dead_.insert(p);
        p->joined = p->asking = false;
    }

    void step()
    {
        const bool most = pick(0, 3) != 0;
        for (Player *p : live()) {
            if (p->asking || !p->joined || p->replica.empty() || (!most && pick(0, 1)))
                continue;
            p->step += p->views > 0 && pick(0, 5) != 0;
            if (p->view.epoch && p->view.behind)
                p->step = p->view.step;
            p->failed = pick(0, 15) == 0;
            w.ask(p);
        }
    }
    void time()
    {
        w.run(pick(1, 40) * 20);
    }
    // Members without a connection look for a coordinator.
    void come()
    {
        for (Player *p : live()) {
            if (liars_.count(p) || (p->joined && p->conn >= 0) || pick(0, 4) == 0)
                continue;
            if (p->status != FT_OK && p->status != FT_AGAIN)
                end(p); // it was told to end
            else
                w.join(p);
        }
    }
    void kill()
    {
        Player *p = any();
        if (!p || p->conn < 0 || pick(0, 1))
            return;
        const int conn = p->conn;
        const bool agent = pick(0, 1);
        if (agent)
            w.leave(p, FT_MEMBERS_GONE);
        end(p);
        if (!agent)
            w.cut(conn);
        w.deliver();
    }
    void kill_host()
    {
        Player *p = any();
        if (!p || p->conn < 0 || pick(0, 2))
            return;
        const int conn = p->conn;
        for (Player *other : live())
            if (other->conn == conn)
                end(other);
        w.cut(conn);
        w.deliver();
    }
    void fall_silent()
    {
        Player *p = any();
        if (!p || p->conn < 0 || pick(0, 2))
            return;
        w.conns[(size_t)p->conn].beats = false;
        w.conns[(size_t)p->conn].deaf = true;
        if (pick(0, 1)) { // it does not come back
            const int conn = p->conn;
            for (Player *other : live())
                if (other->conn == conn)
                    end(other);
        }
    }
    void start_process()
    {
        if (pick(0, 3) == 0)
            return add_replica();
        w.join(process(replicas_[pick(0, replicas_.size() - 1)], (uint32_t)pick(0, size_ - 1)));
    }
    void standby()
    {
        if (pick(0, 1))
            w.join(process("", 0));
    }
    // The connection changes, the process does not.
    void reconnect()
    {
        Player *p = any();
        if (!p || p->conn < 0 || liars_.count(p))
            return;
        const int conn = p->conn;
        if (pick(0, 1))
            w.join(p);
        if (pick(0, 1))
            w.cut(conn);
        w.deliver();
    }
    // What is sent is lost with the connection.
    void miss()
    {
        Player *p = any();
        if (!p || p->conn < 0)
            return;
        const int conn = p->conn;
        w.conns[(size_t)conn].deaf = true;
        step();
        if (pick(0, 1))
            w.broken_conns.insert(conn);
        step();
        w.cut(conn);
        w.broken_conns.erase(conn);
        w.deliver();
    }
    void leave()
    {
        Player *p = any();
        if (!p || p->conn < 0 || !p->joined || pick(0, 2))
            return;
        w.leave(p);
        end(p);
    }
    void prove_death()
    {
        Player *p = any(), *other = any();
        if (!p || !other || !p->joined || p->asking || p->replica.empty() || liars_.count(p))
            return;
        for (Player *each : dead_)
            if (pick(0, 1))
                p->dead.push_back(each->engine);
        if (pick(0, 3) == 0)
            p->dead.push_back(other->engine); // a mistake
        p->failed = true;
        w.ask(p);
    }
    void rarely()
    {
        switch (pick(0, 5)) {
        case 0:
            w.restart();
            break;
        case 1:
            w.take_over();
            break;
        case 2:
            w.close_earlier();
            break;
        case 3:
            w.now += pick(1, 100000) * coord::ms; // the coordinator was stopped
            break;
        default:
            break;
        }
    }
    // A member that says anything, or a message that is none.
    void lie()
    {
        Player *p = any();
        if (!p || pick(0, 1))
            return;
        Player *liar = process(p->replica, (uint32_t)pick(0, size_));
        liar->liar = true;
        liars_.insert(liar);
        if (pick(0, 2) == 0)
            liar->engine = p->engine, liar->endpoint = p->endpoint;
        liar->local_size = size_ + (pick(0, 5) == 0);
        liar->view = p->view;
        liar->view.epoch += pick(0, 2);
        liar->view.nranks += (uint32_t)pick(0, 1);
        liar->view.rank = (uint32_t)pick(0, 3);
        liar->view.term += pick(0, 1);
        liar->min_members = (uint32_t)pick(0, 1);
        liar->group = pick(0, 3) ? p->group : "other";
        liar->conn = w.connect();
        liar->slot = (uint32_t)pick(0, 3);
        std::string bytes = World::encode_join(liar);
        if (pick(0, 1))
            bytes[pick(0, bytes.size() - 1)] = (char)pick(0, 255);
        if (!w.say(liar->conn, FT_MEMBERS_JOIN, bytes))
            return;
        w.deliver();
        if (liar->conn < 0)
            return;
        liar->term = p->term, liar->epoch = p->epoch;
        liar->failed = pick(0, 1);
        liar->dead = {p->engine * pick(0, 1)};
        bytes = World::encode_ask(liar);
        if (pick(0, 1))
            bytes[pick(0, bytes.size() - 1)] = (char)pick(0, 255);
        w.say(liar->conn, FT_MEMBERS_ASK, bytes);
        w.deliver();
        if (pick(0, 1) && liar->conn >= 0)
            w.cut(liar->conn);
        w.deliver();
    }

    std::mt19937_64 dice_;
    World w;
    uint32_t size_ = 1, min_members_ = 1;
    std::vector<std::string> replicas_;
    std::set<Player *> dead_, liars_;
};

TEST(Random, ViewsAreRightWhateverHappens)
{
    const char *given = getenv("FT_SEED"), *asked = getenv("FT_RUNS");
    const uint64_t seed = given ? strtoull(given, nullptr, 0) : std::random_device()();
    const uint64_t runs = asked ? strtoull(asked, nullptr, 0) : 40;
    for (uint64_t i = 0; i < runs && !HasFailure(); i++) {
        SCOPED_TRACE("replay: FT_SEED=" + std::to_string(seed + i) +
                     " FT_RUNS=1 coord_random_test");
        Chaos chaos(seed + i);
        chaos.play(300);
        if (!HasFailure())
            chaos.heal();
    }
    printf("seeds %llu to %llu\n", (unsigned long long)seed, (unsigned long long)(seed + runs - 1));
}

} // namespace

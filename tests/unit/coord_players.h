// A coordinator in virtual time, and members that play with it as a client does: they register,
// ask, apply what changes to the lists that they have, and register again with what they hold. What
// must always be true is checked here: all who get a view get the same list, all ranks of a replica
// get it, a role is in it once, sources are members at the view's step, and numbers of views grow.
// Who is at a place of a view that was given to a liar is checked only if the coordinator has told
// the others: if it has restarted, it believes who says that he was there before, and they know
// another one.
#ifndef FT_TESTS_UNIT_COORD_PLAYERS_H
#define FT_TESTS_UNIT_COORD_PLAYERS_H

#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include <gtest/gtest.h>

extern "C" {
#include "membership/coord.h"
#include "base/wire.h"
}

namespace coord
{

const uint64_t ms = 1000000;

struct View {
    uint64_t term = 0, epoch = 0, step = 0;
    uint32_t nranks = 0, rank = 0, nhealthy = 0, times = 0; // times: that it has come
    bool behind = false;
    std::vector<uint32_t> sources;
    std::vector<std::string> peers, local; // encoded endpoints
};

struct Player {
    std::string group = "g", replica;
    uint32_t local_rank = 0, local_size = 1;
    uint64_t engine = 0, step = 0;
    std::string endpoint;
    uint32_t min_members = 1, window_ms = 1000, suspect_ms = 2000;
    int conn = -1;
    uint32_t slot = 0;
    bool joined = false, asking = false, failed = false, broken = false, same = false;
    uint64_t term = 0, epoch = 0; // the last view's, as the coordinator told
    View view;                    // epoch 0: none
    int views = 0;                // that it got
    int status = FT_OK;           // of the last refusal
    std::string sentence, waits;
    std::vector<uint64_t> dead;
    bool whole = false; // the last view was not a change
    bool liar = false;  // what it has, and gets, is not what it says
};

class World
{
  public:
    struct Conn {
        ft_coord_conn *at = nullptr;
        ft_coord *of = nullptr;
        bool open = false, beats = true, deaf = false; // deaf: what is sent to it is lost
    };
    struct Message {
        int conn;
        uint16_t type;
        std::string bytes;
    };

    explicit World(bool blobs = true) : blobs_(blobs)
    {
        env_.now_ns = [](ft_env *e) { return static_cast<World *>(e->ctx)->now; };
        env_.random = [](ft_env *e, void *to, size_t len) {
            for (size_t i = 0; i < len; i++)
                static_cast<unsigned char *>(to)[i] =
                    (unsigned char)(++static_cast<World *>(e->ctx)->drawn_ * 0x9e3779b97f4a7c15u >>
                                    56);
        };
        env_.ctx = this;
        start();
    }
    ~World()
    {
        for (ft_coord *each : {earlier, coord})
            ft_coord_close(each);
    }

    // ---- the coordinator

    void start()
    {
        ft_coord_config config = {};
        config.env = &env_;
        config.arg = this;
        config.send = on_send;
        config.send_view = blobs_ ? on_send_view : nullptr;
        ASSERT_EQ(ft_coord_open(&config, &coord), FT_OK);
    }
    // All connections end; members look for it again with rejoin().
    void restart()
    {
        close_earlier();
        take_over();
        close_earlier();
    }
    // Another coordinator, to which members connect from now on. The earlier one goes on.
    void take_over()
    {
        close_earlier();
        earlier = coord;
        start();
    }
    void close_earlier()
    {
        ft_coord *gone = earlier;
        earlier = nullptr;
        ft_coord_close(gone);
        for (size_t i = 0; i < conns.size(); i++) {
            if (gone && conns[i].open && conns[i].of == gone)
                lose((int)i);
        }
    }
    int connect()
    {
        conns.push_back({});
        const size_t index = conns.size() - 1;
        conns[index].at = ft_coord_connected(coord, reinterpret_cast<void *>(index + 1));
        conns[index].open = conns[index].at != nullptr;
        conns[index].of = coord;
        return conns[index].open ? (int)index : -1;
    }
    void cut(int conn)
    {
        if (!conns[(size_t)conn].open)
            return;
        lose(conn);
        ft_coord_closed(conns[(size_t)conn].at);
        check_sent();
    }
    void lose(int conn)
    {
        conns[(size_t)conn].open = false;
        for (size_t i = queue.size(); i-- > 0;)
            if (queue[i].conn == conn)
                queue.erase(queue.begin() + (long)i);
        for (auto &p : players)
            if (p->conn == conn)
                p->conn = -1, p->joined = false;
    }
    bool say(int conn, uint16_t type, const std::string &bytes)
    {
        // a copy of the exact size, so that a sanitizer sees reads beyond it
        std::unique_ptr<unsigned char[]> copy(new unsigned char[bytes.size()]);
        memcpy(copy.get(), bytes.data(), bytes.size());
        const bool ok = ft_coord_message(conns[(size_t)conn].at, type, copy.get(), bytes.size());
        check_sent();
        if (!ok)
            cut(conn);
        return ok;
    }
    // Time passes, and connections that beat are heard.
    void run(uint64_t length_ms)
    {
        for (uint64_t at = 0; at <= length_ms; at += 20) {
            now += at == 0 ? 0 : 20 * ms;
            for (size_t i = 0; i < conns.size(); i++)
                if (conns[i].open && conns[i].beats && at % 100 == 0)
                    say((int)i, FT_MEMBERS_QUIET_BEAT, "");
            tick();
        }
    }
    void tick()
    {
        for (ft_coord *each : {earlier, coord}) {
            while (void *silent = each ? ft_coord_tick(each) : nullptr) {
                check_sent();
                cut((int)(reinterpret_cast<size_t>(silent) - 1));
            }
            check_sent();
        }
        deliver();
    }
    ft_coord_counts counts() const
    {
        ft_coord_counts c;
        ft_coord_count(coord, &c);
        return c;
    }

    // ---- members

    Player *add(const std::string &replica, uint32_t local_rank = 0, uint32_t local_size = 1,
                const std::string &group = "g")
    {
        players.push_back(std::make_unique<Player>());
        Player *p = players.back().get();
        p->group = group, p->replica = replica;
        p->local_rank = local_rank, p->local_size = local_size;
        p->engine = ++engines_ * 0x10001;
        set_endpoint(p, 1);
        return p;
    }
    void set_endpoint(Player *p, uint64_t config)
    {
        ft_endpoint e = {};
        e.engine = p->engine, e.host = 7, e.config = config;
        snprintf(e.config_text, sizeof(e.config_text), "config=%d", (int)config);
        e.address_bytes = (uint32_t)(p->engine % 40);
        memset(e.address, (int)p->engine, e.address_bytes);
        unsigned char bytes[FT_ENDPOINT_WIRE_MAX];
        p->endpoint.assign(reinterpret_cast<char *>(bytes), ft_endpoint_encode(bytes, &e));
    }
    static std::string encode_join(const Player *p)
    {
        ft_members_join j = {};
        j.slot = p->slot, j.engine = p->engine, j.step = p->step;
        j.role = role_of(p);
        j.held_term = p->view.term, j.held_epoch = p->view.epoch;
        j.held_nranks = p->view.nranks, j.held_rank = p->view.rank;
        j.held_times = p->view.times;
        if (!p->view.epoch && p->epoch)
            j.held_term = p->term, j.held_epoch = p->epoch;
        j.min_members = p->min_members, j.window_ms = p->window_ms, j.suspect_ms = p->suspect_ms;
        j.endpoint = reinterpret_cast<const unsigned char *>(p->endpoint.data());
        j.endpoint_bytes = p->endpoint.size();
        std::string bytes(ft_members_join_encode(nullptr, &j), '\0');
        ft_members_join_encode(reinterpret_cast<unsigned char *>(&bytes[0]), &j);
        return bytes;
    }
    static std::string encode_ask(const Player *p)
    {
        std::string dead;
        for (uint64_t engine : p->dead) {
            unsigned char word[8], *at = word;
            put64(&at, engine);
            dead.append(reinterpret_cast<char *>(word), 8);
        }
        ft_members_ask a = {};
        a.slot = p->slot, a.step = p->step, a.term = p->term, a.epoch = p->epoch;
        a.failed = p->failed || p->broken;
        a.dead = reinterpret_cast<const unsigned char *>(dead.data());
        a.ndead = (uint32_t)p->dead.size();
        std::string bytes(ft_members_ask_encode(nullptr, &a), '\0');
        ft_members_ask_encode(reinterpret_cast<unsigned char *>(&bytes[0]), &a);
        return bytes;
    }
    // On a connection of its own, or on this one.
    void join(Player *p, int conn = -1, uint32_t slot = 0)
    {
        p->conn = conn >= 0 ? conn : connect();
        p->slot = slot, p->status = FT_OK, p->joined = false;
        if (p->conn < 0)
            return;
        say(p->conn, FT_MEMBERS_JOIN, encode_join(p));
        deliver();
    }
    void ask(Player *p)
    {
        p->asking = true;
        if (p->conn < 0 || !p->joined)
            return;
        say(p->conn, FT_MEMBERS_ASK, encode_ask(p));
        deliver();
    }
    void ask_all(const std::vector<Player *> &who)
    {
        for (Player *p : who)
            ask(p);
    }
    void leave(Player *p, uint16_t type = FT_MEMBERS_LEAVE)
    {
        unsigned char word[4], *at = word;
        put32(&at, p->slot);
        say(p->conn, type, std::string(reinterpret_cast<char *>(word), 4));
        p->conn = -1, p->joined = false;
        deliver();
    }
    // A replica: all its ranks on one connection.
    std::vector<Player *> add_replica(const std::string &name, uint32_t size,
                                      const std::string &group = "g")
    {
        std::vector<Player *> members;
        const int conn = connect();
        for (uint32_t i = 0; i < size; i++) {
            members.push_back(add(name, i, size, group));
            join(members.back(), conn, i);
        }
        return members;
    }
    void deliver()
    {
        while (!queue.empty()) {
            const Message m = queue.front();
            queue.pop_front();
            if (conns[(size_t)m.conn].open && !conns[(size_t)m.conn].deaf)
                receive(m);
        }
    }

    ft_coord *coord = nullptr, *earlier = nullptr;
    uint64_t now = 5000 * ms;
    std::vector<Conn> conns;
    std::deque<Message> queue;
    std::vector<std::unique_ptr<Player>> players;
    std::set<int> broken_conns; // sends to these fail

  private:
    static bool on_send(void *arg, void *owner, ft_members_message type, const void *bytes,
                        size_t len)
    {
        World *w = static_cast<World *>(arg);
        const int conn = (int)(reinterpret_cast<size_t>(owner) - 1);
        if (type == FT_MEMBERS_VIEW)
            w->note_place(conn, bytes, len);
        if (w->broken_conns.count(conn))
            return false;
        EXPECT_TRUE(w->conns[(size_t)conn].open) << "a message to a connection that has ended";
        w->queue.push_back({conn, (uint16_t)type, std::string((const char *)bytes, len)});
        w->sent_.push_back(w->queue.back());
        return true;
    }
    static bool on_send_view(void *arg, void *owner, const void *head, size_t head_bytes,
                             ft_blob *const *blobs, int nblobs)
    {
        std::string bytes((const char *)head, head_bytes);
        for (int i = 0; i < nblobs; i++) {
            ft_blob_hold(blobs[i]);
            bytes.append((const char *)blobs[i]->bytes, blobs[i]->len_bytes);
            ft_blob_let_go(blobs[i]);
        }
        return on_send(arg, owner, FT_MEMBERS_VIEW, bytes.data(), bytes.size());
    }
    static ft_role role_of(const Player *p)
    {
        ft_role role = {};
        memcpy(role.group, p->group.data(), std::min<size_t>(p->group.size(), 63));
        memcpy(role.replica, p->replica.data(), std::min<size_t>(p->replica.size(), 63));
        role.local_rank = p->local_rank, role.local_size = p->local_size;
        return role;
    }

    static std::string view_name(const Player *p, uint64_t term, uint64_t epoch)
    {
        return p->group + "/" + std::to_string(term) + "/" + std::to_string(epoch);
    }
    // Who gets the whole list is new to the others, and they are told who it is.
    void note_place(int conn, const void *bytes, size_t len)
    {
        ft_members_view v;
        ASSERT_EQ(ft_members_view_decode((const unsigned char *)bytes, len, &v), FT_OK);
        const Player *p = find(conn, v.slot);
        if (!p)
            return; // a lie about the slot
        if (v.base_epoch == 0)
            introduced_.insert(p);
        const auto place = std::make_tuple(view_name(p, v.term, v.epoch), v.rank, p->local_rank);
        if (!p->liar || introduced_.count(p))
            known_.insert(place);
        else
            known_.erase(place);
    }
    bool is_known(const std::string &view, uint32_t rank, uint32_t local_rank) const
    {
        return known_.count(std::make_tuple(view, rank, local_rank)) > 0;
    }

    // What one event has sent: a view goes to all ranks of all its replicas, or to nobody. Views of
    // two groups may have one number.
    void check_sent()
    {
        using Number = std::tuple<uint64_t, uint64_t, uint32_t>; // term, epoch, ranks
        std::map<Number, std::set<std::pair<int, uint32_t>>> members;
        for (const Message &m : sent_) {
            if (m.type != FT_MEMBERS_VIEW)
                continue;
            ft_members_view v;
            ASSERT_EQ(ft_members_view_decode((const unsigned char *)m.bytes.data(), m.bytes.size(),
                                             &v),
                      FT_OK);
            const Number number{v.term, v.epoch, v.nranks};
            EXPECT_TRUE(members[number].insert({m.conn, v.slot}).second)
                << "a member gets view " << v.epoch << " twice";
        }
        sent_.clear();
        for (auto &view : members) {
            const size_t count = view.second.size(), ranks = std::get<2>(view.first);
            EXPECT_TRUE(count % ranks == 0 || !broken_conns.empty())
                << "view " << std::get<1>(view.first) << " of " << ranks << " replicas goes to "
                << count << " members";
        }
    }

    Player *find(int conn, uint32_t slot)
    {
        for (auto &p : players)
            if (p->conn == conn && p->slot == slot)
                return p.get();
        return nullptr;
    }
    static std::string rest(const unsigned char *at, const Message &m)
    {
        return std::string((const char *)at,
                           (const unsigned char *)m.bytes.data() + m.bytes.size() - at);
    }
    void receive(const Message &m)
    {
        const unsigned char *at = (const unsigned char *)m.bytes.data();
        if (m.type == FT_MEMBERS_ALIVE)
            return;
        if (m.type == FT_MEMBERS_VIEW)
            return receive_view(m);
        Player *p = find(m.conn, get32(&at));
        if (!p)
            return;
        uint64_t term = 0, epoch = 0;
        if (m.type != FT_MEMBERS_REFUSED && m.type != FT_MEMBERS_WAITS)
            term = get64(&at), epoch = get64(&at);
        if (m.type == FT_MEMBERS_JOINED) {
            ft_role role;
            size_t used;
            ASSERT_EQ(ft_members_role_decode(at, rest(at, m).size(), &role, &used), FT_OK);
            EXPECT_EQ(used, rest(at, m).size());
            p->joined = true, p->term = term, p->epoch = epoch;
            p->replica = role.replica;
            p->local_rank = role.local_rank, p->local_size = role.local_size;
            if (p->asking && !p->replica.empty())
                ask(p);
        } else if (m.type == FT_MEMBERS_EPOCH) {
            p->term = term, p->epoch = epoch;
            if (p->asking)
                ask(p);
        } else if (m.type == FT_MEMBERS_BROKEN) {
            p->sentence = rest(at, m);
            EXPECT_FALSE(p->sentence.empty());
            if (p->view.term == term && p->view.epoch == epoch)
                p->broken = true;
        } else if (m.type == FT_MEMBERS_REFUSED) {
            p->status = (int)get32(&at);
            p->sentence = rest(at, m);
            EXPECT_LT(p->status, 0);
            EXPECT_FALSE(p->sentence.empty());
            p->joined = false, p->conn = -1;
        } else if (m.type == FT_MEMBERS_WAITS) {
            p->waits = rest(at, m);
            EXPECT_FALSE(p->waits.empty());
        } else {
            ADD_FAILURE() << "a message of type " << m.type;
        }
    }

    static std::string take_endpoint(const unsigned char **at)
    {
        const uint32_t len = get32(at);
        std::string bytes((const char *)*at, len);
        *at += len;
        return bytes;
    }
    // The list that follows from what it has and the change.
    static std::vector<std::string> apply(const ft_members_view &v,
                                          const std::vector<std::string> &base)
    {
        std::set<uint32_t> gone;
        std::map<uint32_t, std::string> added;
        const unsigned char *at = v.gone;
        for (uint32_t i = 0; i < v.ngone; i++)
            gone.insert(get32(&at));
        at = v.added;
        for (uint32_t i = 0; i < v.nadded; i++) {
            const uint32_t rank = get32(&at);
            added[rank] = take_endpoint(&at);
        }
        std::vector<std::string> list;
        size_t next = 0;
        while (list.size() < v.nranks) {
            while (gone.count((uint32_t)next))
                next++;
            auto it = added.find((uint32_t)list.size());
            if (it != added.end())
                list.push_back(it->second);
            else if (next < base.size())
                list.push_back(base[next++]);
            else
                break;
        }
        while (gone.count((uint32_t)next))
            next++;
        EXPECT_EQ(list.size(), v.nranks) << "the change does not fill the list";
        EXPECT_EQ(next, base.size()) << "the change leaves members of the base over";
        return list;
    }

    void receive_view(const Message &m)
    {
        ft_members_view v;
        ASSERT_EQ(ft_members_view_decode((const unsigned char *)m.bytes.data(), m.bytes.size(), &v),
                  FT_OK);
        Player *p = find(m.conn, v.slot);
        if (!p)
            return;
        View view;
        view.term = v.term, view.epoch = v.epoch, view.step = v.step;
        view.nranks = v.nranks, view.rank = v.rank, view.nhealthy = v.nhealthy;
        view.behind = v.behind;
        const bool again = v.term == p->view.term && v.epoch == p->view.epoch;
        view.times = again ? p->view.times + 1 : 1;
        p->whole = v.base_epoch == 0;
        if (p->liar)
            return accept(p, view);
        if (!p->whole) {
            EXPECT_EQ(v.base_term, p->view.term) << "it does not have the base";
            ASSERT_EQ(v.base_epoch, p->view.epoch) << "it does not have the base";
        }
        view.peers = apply(v, p->whole ? std::vector<std::string>() : p->view.peers);
        view.local = p->view.local;
        const unsigned char *at = v.local;
        if (v.nlocal > 0)
            view.local.clear();
        for (uint32_t i = 0; i < v.nlocal; i++)
            view.local.push_back(take_endpoint(&at));
        at = v.sources;
        for (uint32_t i = 0; i < v.nsources; i++)
            view.sources.push_back(get32(&at));
        check(p, view);
        accept(p, view);
    }
    static void accept(Player *p, const View &view)
    {
        p->same = p->view.term == view.term && p->view.epoch == view.epoch;
        p->view = view;
        p->asking = p->failed = p->broken = false;
        p->dead.clear();
        p->views++;
        p->term = view.term, p->epoch = view.epoch;
        p->waits.clear();
    }

    // The lists that members of a view have of the others with their local rank.
    void check_peers(const View &view, const std::string &name, uint32_t local_rank)
    {
        const std::string key = name + "/" + std::to_string(local_rank);
        const std::vector<std::string> &first = lists_.emplace(key, view.peers).first->second;
        ASSERT_EQ(first.size(), view.peers.size());
        for (uint32_t rank = 0; rank < first.size(); rank++)
            if (is_known(name, rank, local_rank)) {
                EXPECT_EQ(first[rank], view.peers[rank])
                    << "members of a view have different lists";
            }
    }
    // Those that the ranks of a replica have of each other.
    void check_local(const View &view, const std::string &name)
    {
        const std::string key = name + "/local " + std::to_string(view.rank);
        const std::vector<std::string> &first = lists_.emplace(key, view.local).first->second;
        ASSERT_EQ(first.size(), view.local.size());
        for (uint32_t at = 0; at < first.size(); at++)
            if (is_known(name, view.rank, at)) {
                EXPECT_EQ(first[at], view.local[at]) << "ranks of a replica know different ones";
            }
    }
    void check(const Player *p, const View &view)
    {
        const std::string name = view_name(p, view.term, view.epoch);
        EXPECT_TRUE(p->asking) << "a member that has not asked gets a view";
        EXPECT_EQ(view.term, p->term) << "it is another coordinator's";
        const bool same = view.epoch == p->view.epoch && view.term == p->view.term;
        EXPECT_EQ(view.epoch, p->epoch + !same) << "it listens to another view";
        check_peers(view, name, p->local_rank);
        check_local(view, name);
        ASSERT_LT(view.rank, view.peers.size());
        EXPECT_EQ(view.peers[view.rank], p->endpoint) << "it has another rank";
        ASSERT_EQ(view.local.size(), p->local_size);
        EXPECT_EQ(view.local[p->local_rank], p->endpoint);
        std::set<std::string> once(view.peers.begin(), view.peers.end());
        EXPECT_EQ(once.size(), view.peers.size()) << "a process is in a view twice";
        // A replica is behind as a whole.
        if (p->local_size == 1 || !view.behind) {
            EXPECT_EQ(view.behind, p->step != view.step);
        }
        if (view.behind)
            EXPECT_EQ(view.sources.size(), std::min<uint32_t>(view.nhealthy, 64));
        else
            EXPECT_TRUE(view.sources.empty());
        for (uint32_t source : view.sources)
            if (is_known(name, source, p->local_rank)) {
                EXPECT_TRUE(is_at(view.peers[source], view.step)) << "a source is not at the step";
            }
        EXPECT_GE(view.epoch, p->view.epoch + !same) << "numbers of views do not grow";
        uint64_t &highest = highest_[p->group + "/" + std::to_string(view.term)];
        EXPECT_GE(view.epoch, highest) << "numbers of views do not grow";
        highest = std::max(highest, view.epoch);
    }
    bool is_at(const std::string &endpoint, uint64_t step) const
    {
        bool known = false; // else a liar's, changed on the way
        for (auto &p : players) {
            if (p->endpoint != endpoint)
                continue;
            if (p->step == step || p->liar)
                return true;
            known = true;
        }
        return !known;
    }

    const bool blobs_;
    ft_env env_ = {};
    uint64_t drawn_ = 0, engines_ = 0;
    std::vector<Message> sent_;
    std::map<std::string, std::vector<std::string>> lists_;
    std::map<std::string, uint64_t> highest_;
    std::set<const Player *> introduced_;
    std::set<std::tuple<std::string, uint32_t, uint32_t>> known_; // view, rank, local rank
};

} // namespace coord

#endif

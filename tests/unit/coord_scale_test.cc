// Property: an ask costs about the same in a group of 1,000 and of 100,000 members, so no work per
// ask grows with the group; so does a heartbeat; all get the views. Method: members in groups of
// two shapes, 8 on a connection, thread time of the coordinator's calls, printed as well: of an
// ask, of the one that makes a view, and of the end of a replica. The bound is generous: caches
// count.
#include <cstring>
#include <ctime>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tests/common/sanitizer.h"

extern "C" {
#include "membership/coord.h"
#include "base/wire.h"
}

namespace
{

const uint32_t per_conn = 8;

double thread_s()
{
    timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

class Crowd
{
  public:
    Crowd(uint32_t replicas, uint32_t size) : replicas_(replicas), size_(size)
    {
        ft_coord_config config = {};
        config.env = ft_env_real();
        config.send = on_send;
        config.send_view = on_send_view;
        config.arg = this;
        EXPECT_EQ(ft_coord_open(&config, &coord), FT_OK);
        const uint32_t conns = replicas * size / per_conn;
        for (uint32_t i = 0; i < conns; i++)
            conns_.push_back(ft_coord_connected(coord, this));
        for (uint32_t i = 0; i < replicas * size; i++)
            join(i);
    }
    ~Crowd()
    {
        ft_coord_close(coord);
    }

    // Each live member asks. Returns the time of an ask, and that of the last one.
    double ask_all(uint64_t step, double *last_s)
    {
        std::vector<std::string> asks;
        std::vector<ft_coord_conn *> from;
        for (uint32_t i = 0; i < replicas_ * size_; i++) {
            if (!conns_[i / per_conn])
                continue;
            asks.push_back(encode_ask(i, step));
            from.push_back(conns_[i / per_conn]);
        }
        const double start_s = thread_s();
        for (size_t i = 0; i + 1 < asks.size(); i++)
            say(from[i], FT_MEMBERS_ASK, asks[i]);
        const double asked_s = thread_s();
        say(from.back(), FT_MEMBERS_ASK, asks.back());
        *last_s = thread_s() - asked_s;
        return (asked_s - start_s) / (double)asks.size();
    }
    double beat()
    {
        const double start_s = thread_s();
        for (ft_coord_conn *conn : conns_)
            if (conn)
                say(conn, FT_MEMBERS_BEAT, "");
        return (thread_s() - start_s) / (double)conns_.size();
    }
    double kill_last_replica()
    {
        const double start_s = thread_s();
        for (uint32_t i = 0; i < size_ / per_conn; i++) {
            const size_t index = conns_.size() - 1 - i;
            ft_coord_closed(conns_[index]);
            conns_[index] = nullptr;
        }
        return thread_s() - start_s;
    }

    ft_coord *coord = nullptr;
    size_t views = 0, bytes = 0, refusals = 0;

  private:
    void say(ft_coord_conn *conn, uint16_t type, const std::string &message)
    {
        EXPECT_TRUE(
            ft_coord_message(conn, type, (const unsigned char *)message.data(), message.size()));
    }
    void join(uint32_t i)
    {
        ft_members_join j = {};
        ft_endpoint e = {};
        unsigned char endpoint[FT_ENDPOINT_WIRE_MAX], out[2048];
        e.engine = j.engine = i + 1;
        e.address_bytes = 96;
        j.slot = i % per_conn;
        j.role.group[0] = 'g';
        snprintf(j.role.replica, sizeof(j.role.replica), "replica-%u", i / size_);
        j.role.local_rank = i % size_, j.role.local_size = size_;
        j.min_members = 1, j.window_ms = 1000, j.suspect_ms = 3600000;
        j.endpoint = endpoint, j.endpoint_bytes = ft_endpoint_encode(endpoint, &e);
        const size_t len = ft_members_join_encode(out, &j);
        say(conns_[i / per_conn], FT_MEMBERS_JOIN, std::string((char *)out, len));
    }
    std::string encode_ask(uint32_t i, uint64_t step) const
    {
        unsigned char out[64];
        ft_members_ask a = {};
        a.slot = i % per_conn, a.step = step, a.term = term_, a.epoch = epoch_;
        return std::string((char *)out, ft_members_ask_encode(out, &a));
    }
    static bool on_send(void *arg, void *, ft_members_message type, const void *message, size_t len)
    {
        Crowd *c = static_cast<Crowd *>(arg);
        const unsigned char *at = (const unsigned char *)message + 4;
        c->bytes += len;
        c->refusals += type == FT_MEMBERS_REFUSED || type == FT_MEMBERS_EPOCH;
        if (type == FT_MEMBERS_JOINED)
            c->term_ = get64(&at), c->epoch_ = get64(&at);
        return true;
    }
    static bool on_send_view(void *arg, void *, const void *head, size_t head_bytes,
                             ft_blob *const *blobs, int nblobs)
    {
        Crowd *c = static_cast<Crowd *>(arg);
        const unsigned char *at = (const unsigned char *)head + 12;
        c->views++;
        c->bytes += head_bytes;
        c->epoch_ = get64(&at);
        for (int i = 0; i < nblobs; i++)
            c->bytes += blobs[i]->len_bytes;
        return true;
    }

    const uint32_t replicas_, size_;
    std::vector<ft_coord_conn *> conns_;
    uint64_t term_ = 0, epoch_ = 0;
};

struct Costs {
    double ask_s = 1, beat_s = 1;
};

// The least of some rounds: another process may have had the core.
Costs measure(uint32_t replicas, uint32_t size)
{
    Costs costs;
    double last_s = 0, again_s = 1, changed_s = 0;
    Crowd crowd(replicas, size);
    const size_t members = (size_t)replicas * size;
    crowd.ask_all(0, &last_s);
    EXPECT_EQ(crowd.views, members);
    const double first_s = last_s;
    const size_t first_bytes = crowd.bytes;
    const int rounds = members < 10000 ? 50 : 4;
    for (int i = 1; i <= rounds; i++) {
        costs.ask_s = std::min(costs.ask_s, crowd.ask_all((uint64_t)i, &last_s));
        costs.beat_s = std::min(costs.beat_s, crowd.beat());
        again_s = std::min(again_s, last_s);
    }
    EXPECT_EQ(crowd.views, members * (size_t)(1 + rounds));
    const double end_s = crowd.kill_last_replica();
    crowd.bytes = 0;
    crowd.ask_all(99, &changed_s);
    EXPECT_EQ(crowd.views, members * (size_t)(1 + rounds) + members - size);
    EXPECT_EQ(crowd.refusals, 0u);
    printf("%u replicas of %u: an ask %.0f ns, a heartbeat %.0f ns; the first view %.1f ms (%.1f "
           "GB), the same again %.1f ms, the end of a replica %.2f ms, the view without it %.1f "
           "ms (%.1f MB)\n",
           replicas, size, costs.ask_s * 1e9, costs.beat_s * 1e9, first_s * 1e3,
           (double)first_bytes / 1e9, again_s * 1e3, end_s * 1e3, changed_s * 1e3,
           (double)crowd.bytes / 1e6);
    return costs;
}

TEST(Scale, AnAskAndAHeartbeatCostTheSameInALargeGroup)
{
    const bool slow = is_sanitized();
    const Costs little = measure(125, 8);
    const Costs wide = measure(slow ? 1250 : 12500, 8);
    const Costs deep = measure(slow ? 10 : 100, 1000);
    for (const Costs &large : {wide, deep}) {
        EXPECT_LT(large.ask_s, 20 * little.ask_s);
        EXPECT_LT(large.beat_s, 20 * little.beat_s);
    }
}

} // namespace

// Two rails among several engines: every link has a way over each. A rail fails for all of them at
// once, at any write, or is slow; it comes back while traffic goes on, and then the other one
// fails. Everything runs over the fake fabric of fake.h.
#include "tests/rma/pair.h"

extern "C" unsigned rma_ways_ready(const struct rma_link *);

namespace
{

const unsigned ENGINES = 4, RAILS = 2, LANES = 3;
const size_t CHUNK = 1024;

struct Flow {
    ft_link *out = nullptr, *in = nullptr; // the sender's and the receiver's end
    std::deque<std::string> sent[LANES];
};

// A link from each engine to each other one.
class Mesh
{
  public:
    explicit Mesh(FakeNet &n) : net(n)
    {
        for (unsigned i = 0; i < ENGINES; i++)
            engine.emplace_back(new RmaEngine(n, i + 1, CHUNK, 1));
    }
    bool connect();
    void turn();
    bool turn_until(const std::function<bool()> &condition);
    bool is_whole() const; // no link has ended
    bool is_well() const;  // every link has all its ways
    void leave();

    FakeNet &net;
    std::vector<std::unique_ptr<RmaEngine>> engine;
    Flow flow[ENGINES][ENGINES];
    unsigned long nsent = 0, ntaken = 0;
    bool sends = true;

  private:
    void some_send();
    void some_recv();
    void see_accepted(unsigned to);
    template <class F> bool all_ends(const F &f) const
    {
        for (auto &row : flow)
            for (auto &one : row)
                if (&one - row != &row - flow && !(one.out && one.in && f(one.out) && f(one.in)))
                    return false;
        return true;
    }
};

void Mesh::see_accepted(unsigned to)
{
    for (auto &e : engine[to]->events)
        if (e.first == ft_event::FT_EVENT_ACCEPTED)
            flow[e.second->peer - 1][to].in = e.second;
    engine[to]->events.clear();
}

bool Mesh::connect()
{
    char buf[FT_ADDRESS_BYTES];
    for (unsigned i = 0; i < ENGINES; i++)
        for (unsigned j = 0; j < ENGINES; j++) {
            ft_transport *from = engine[i]->t, *to = engine[j]->t;
            if (i == j)
                continue;
            int len = to->ops->address(to, buf, sizeof buf);
            int rc = from->ops->connect(from, j + 1, buf, (size_t)len, &flow[i][j].out);
            EXPECT_EQ(rc, FT_OK);
        }
    sends = false;
    bool well = turn_until([&] { return is_well(); });
    sends = true;
    return well;
}

void Mesh::some_send()
{
    Flow &one = flow[net.below(ENGINES)][net.below(ENGINES)];
    if (!one.out)
        return;
    ft_header h;
    ft_send req;
    memset(&h, 0, sizeof h);
    memset(&req, 0, sizeof req);
    h.ctx = 1;
    h.lane = (uint16_t)net.below(LANES);
    std::string text(net.below(3) ? net.below(25) : net.below(CHUNK + 1), 0);
    for (auto &c : text)
        c = (char)net.random();
    h.len = (uint32_t)text.size();
    if (one.out->ops->send(one.out, &h, text.data(), &req) != FT_OK)
        return;
    one.sent[h.lane].push_back(text);
    nsent++;
}

void Mesh::some_recv()
{
    Flow &one = flow[net.below(ENGINES)][net.below(ENGINES)];
    unsigned lane = net.below(LANES);
    ft_msg msg;
    if (!one.in || one.in->ops->recv(one.in, 1, lane, &msg) != FT_OK)
        return;
    std::string got((const char *)msg.data, msg.header.len);
    one.in->ops->release(one.in, &msg);
    ASSERT_FALSE(one.sent[lane].empty()) << "a message came that was not sent, or twice";
    ASSERT_TRUE(got == one.sent[lane].front()) << "another message than the next one came";
    one.sent[lane].pop_front();
    ntaken++;
}

void Mesh::turn()
{
    for (unsigned i = net.below(16); i > 0; i--)
        net.step();
    const unsigned k = net.below(ENGINES);
    engine[k]->poll();
    see_accepted(k);
    if (sends)
        some_send();
    for (int i = 0; i < 3; i++)
        some_recv();
}

bool Mesh::turn_until(const std::function<bool()> &condition)
{
    for (int i = 0; i < 400000 && !testing::Test::HasFatalFailure(); i++) {
        if (condition())
            return true;
        turn();
    }
    return false;
}

bool Mesh::is_whole() const
{
    return all_ends([](const ft_link *l) { return l->state == FT_LINK_UP; });
}

bool Mesh::is_well() const
{
    for (auto &w : net.all)
        if (w.second->broken || w.second->stopping)
            return false;
    return is_whole() && all_ends([](const ft_link *l) {
               return rma_ways_ready((const struct rma_link *)(const void *)l) == RAILS;
           });
}

void Mesh::leave()
{
    for (auto &row : flow)
        for (auto &one : row)
            for (ft_link **l : {&one.out, &one.in})
                if (*l) {
                    (*l)->transport->ops->disconnect(*l);
                    *l = nullptr;
                }
}

// What happens to the rails: at most one of them is lost or slow at a time.
struct Rails {
    FakeNet &net;
    Mesh &mesh;
    unsigned failures = 0, bad = 0;
    bool is_down = false;
    unsigned long until = 0, turns = 0;
    void fail()
    {
        bad = net.below(RAILS);
        is_down = true;
        failures++;
        net.port_down = (int)bad;
        for (FakeWay *w : net.ways_of())
            if (w->base.index == bad)
                net.break_way(w);
    }
    void next()
    {
        if (turns++ < until)
            return;
        if (is_down) {
            net.port_down = -1;
            net.now_ns += 200000000000; // the ways are opened again soon
            is_down = false;
        } else if (!mesh.is_well()) {
            return; // the other rail must carry everything before this one can fail
        } else if (net.below(3)) {
            fail();
        } else {
            const unsigned slow = net.below(RAILS);
            net.held = [this, slow](FakeWay *w) { return w->base.index == slow && net.below(20); };
            until = turns + 100 + net.below(300);
            return;
        }
        net.held = nullptr;
        until = turns + net.below(300);
    }
};

void one_schedule(uint64_t seed)
{
    SCOPED_TRACE("replay: FT_RMA_SEED=" + std::to_string(seed) +
                 " rma_test --gtest_filter=RmaRails.*");
    FakeNet net(seed);
    net.ways = RAILS;
    {
        Mesh mesh(net);
        ASSERT_TRUE(mesh.connect());
        Rails rails{net, mesh};
        for (int i = 0; i < 2500 && !testing::Test::HasFatalFailure(); i++) {
            mesh.turn();
            rails.next();
            ASSERT_TRUE(mesh.is_whole()) << "a link was lost, though a rail carries it";
        }
        net.port_down = -1;
        net.held = nullptr;
        mesh.sends = false;
        ASSERT_TRUE(mesh.turn_until([&] { return mesh.ntaken == mesh.nsent; }));
        net.now_ns += 200000000000;
        ASSERT_TRUE(mesh.turn_until([&] { return mesh.is_well(); }));
        EXPECT_GT(rails.failures + mesh.nsent, 200u);
        mesh.leave();
        mesh.turn_until([&] { return net.all.empty(); });
    }
    EXPECT_EQ(net.wrong, 0u) << net.wrong_text;
    EXPECT_TRUE(net.all.empty()) << "ways were left open";
}

// Property: while one of two rails carries traffic, no link ends, and every message arrives once
// and in its channel's order; a rail that is well again is used by every link.
// FT_RMA_SCHEDULES: how many (60).
TEST(RmaRails, OneFailsAndComesBack)
{
    const char *one = getenv("FT_RMA_SEED"), *many = getenv("FT_RMA_SCHEDULES");
    const uint64_t first = one ? strtoull(one, nullptr, 10) : 1;
    const uint64_t count = one ? 1 : many ? strtoull(many, nullptr, 10) : 60;
    for (uint64_t seed = first; seed < first + count && !testing::Test::HasFatalFailure(); seed++)
        one_schedule(seed);
}

} // namespace

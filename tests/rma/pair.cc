#include "tests/rma/pair.h"

static FakeNet *net_of_env;

static uint64_t env_now(ft_env *)
{
    return net_of_env->now_ns += 100; // time passes for whoever waits
}
static void env_random(ft_env *, void *buf, size_t len)
{
    memset(buf, 7, len);
}

RmaEngine::RmaEngine(FakeNet &n, uint64_t self, size_t chunk_bytes, size_t contexts)
    : net(n), id(self)
{
    net_of_env = &n;
    memset(&env, 0, sizeof env);
    env.now_ns = env_now;
    env.random = env_random;
    ft_transport_config config;
    memset(&config, 0, sizeof config);
    config.env = &env;
    config.self = id;
    config.chunk_bytes = chunk_bytes;
    config.first_bytes = 3 * chunk_bytes;
    config.rank = (int)id;
    EXPECT_EQ(fake_transport.open(&config, &t), FT_OK) << ft_fail_text();
    for (uint64_t c = 1; t && c <= contexts; c++)
        EXPECT_EQ(t->ops->bind(t, c), FT_OK);
}

void RmaEngine::close()
{
    if (t)
        t->ops->close(t);
    t = nullptr;
}

bool RmaEngine::poll()
{
    ft_event got[4];
    bool busy = false;
    int n = t->ops->poll(t, got, 4, &busy);
    for (int i = 0; i < n; i++)
        events.emplace_back((int)got[i].what, got[i].link);
    return busy;
}

bool RmaEngine::has(int what, ft_link *link) const
{
    for (auto &e : events)
        if (e.first == what && (!link || e.second == link))
            return true;
    return false;
}

Pair::Pair(FakeNet &n, size_t chunk, size_t ctxs)
    : net(n), chunk_bytes(chunk), contexts(ctxs), a(new RmaEngine(n, 1, chunk, ctxs)),
      b(new RmaEngine(n, 2, chunk, ctxs)), memory(16 * 3 * chunk, 'm')
{
    EXPECT_EQ(a->t->ops->reg(a->t, &memory[0], memory.size(), &registered), FT_OK);
}

Pair::~Pair()
{
    if (ab && a->t)
        leave();
    for (auto &l : lent)
        EXPECT_NE(l.req.status, FT_AGAIN) << "a send did not complete";
    if (a->t)
        a->t->ops->unreg(a->t, registered);
}

bool Pair::settle()
{
    return turn_until([&] { return lent.empty(); });
}

void Pair::leave()
{
    a->t->ops->disconnect(ab);
    ab = nullptr;
}

bool Pair::connect()
{
    char buf[FT_ADDRESS_BYTES];
    int len = b->t->ops->address(b->t, buf, sizeof buf);
    EXPECT_GT(len, 0);
    EXPECT_TRUE(a->t->ops->reaches(a->t, buf, (size_t)len));
    EXPECT_EQ(a->t->ops->connect(a->t, b->id, buf, (size_t)len, &ab), FT_OK);
    size_t seen = b->events.size();
    bool ends = turn_until([&] {
        for (size_t i = seen; i < b->events.size() && !ba; i++)
            if (b->events[i].first == ft_event::FT_EVENT_ACCEPTED)
                ba = b->events[i].second;
        return ab->state == FT_LINK_DOWN || (ab->state == FT_LINK_UP && ba);
    });
    return ends && ab->state == FT_LINK_UP;
}

void Pair::turn()
{
    for (unsigned i = net.below(8); i > 0; i--)
        net.step();
    take_back_lent();
    if (net.below(2))
        a->poll();
    if (net.below(2))
        b->poll();
}

bool Pair::turn_until(const std::function<bool()> &condition, int most)
{
    for (int i = 0; i < most; i++) {
        if (condition())
            return true;
        turn();
    }
    return condition();
}

bool Pair::is_down() const
{
    return !ab || !ba || ab->state == FT_LINK_DOWN || ba->state == FT_LINK_DOWN;
}

static unsigned lane_of(FakeNet &net)
{
    static const unsigned lanes[] = {0, 0, 1, 2, FT_LANE_P2P, FT_LANE_CTL};
    return lanes[net.below(6)];
}

// Now and then longer than a slot, on lanes that may be.
static std::string some_text(FakeNet &net, size_t chunk, unsigned lane, bool lend)
{
    if (lane <= FT_LANE_P2P && net.below(lend ? 3 : 30) == 0)
        chunk *= 3;
    size_t len = net.below(3) ? net.below(25) : net.below((unsigned)chunk + 1);
    if (lend)
        len = chunk;
    std::string s(len, 0);
    for (auto &c : s)
        c = (char)net.random();
    return s;
}

void Pair::take_back_lent()
{
    while (!lent.empty() && lent.front().req.status != FT_AGAIN) {
        memset(&memory[lent.front().at], 0xee, lent.front().len);
        lent.pop_front();
    }
}

// A send from registered memory. The memory changes as soon as the send has completed.
int Pair::try_lend(const ft_header &h, const std::string &text)
{
    if (lent.size() == 16)
        return FT_AGAIN;
    const size_t at = nlent % 16 * 3 * chunk_bytes;
    memcpy(&memory[at], text.data(), text.size());
    lent.push_back({{}, at, text.size()});
    int rc = ab->ops->send(ab, &h, &memory[at], &lent.back().req);
    if (rc != FT_OK)
        lent.pop_back();
    else
        nlent++;
    return rc;
}

void Pair::try_send()
{
    ft_header h;
    memset(&h, 0, sizeof h);
    h.ctx = 1 + net.below((unsigned)contexts);
    h.lane = (uint16_t)lane_of(net);
    const bool lend = net.below(4) == 0;
    std::string text = some_text(net, chunk_bytes, h.lane, lend);
    h.len = (uint32_t)text.size();
    ft_send req;
    memset(&req, 0, sizeof req);
    int rc;
    if (lend) {
        rc = try_lend(h, text);
    } else if (net.below(4) == 0) {
        void *slot;
        rc = ab->ops->reserve(ab, &h, &slot);
        if (rc == FT_OK && net.below(5) == 0) {
            ab->ops->cancel(ab, &h, slot);
            return;
        }
        if (rc == FT_OK) {
            memcpy(slot, text.data(), text.size());
            ab->ops->commit(ab, &h, slot);
        }
    } else {
        rc = ab->ops->send(ab, &h, text.data(), &req);
    }
    if (rc != FT_OK)
        return;
    sent[{h.ctx, h.lane}].push_back(text);
    nsent++;
}

void Pair::release_one()
{
    if (held.empty())
        return;
    size_t i = net.below((unsigned)held.size());
    Held &m = held[i];
    std::string got((const char *)m.msg.data, m.msg.header.len);
    EXPECT_TRUE(got == m.text) << "a view changed while it was in use";
    ba->ops->release(ba, &m.msg);
    held.erase(held.begin() + (long)i);
}

void Pair::try_recv()
{
    uint64_t ctx = 1 + net.below((unsigned)contexts);
    unsigned lane = lane_of(net);
    ft_msg msg;
    if (held.size() > 6 || ba->ops->recv(ba, ctx, lane, &msg) != FT_OK)
        return release_one();
    auto &queue = sent[{ctx, lane}];
    std::string got((const char *)msg.data, msg.header.len);
    ASSERT_FALSE(queue.empty()) << "a message came that was not sent, or twice";
    ASSERT_TRUE(got == queue.front())
        << "context " << ctx << " lane " << lane << ": message of " << got.size()
        << " bytes, expected one of " << queue.front().size();
    held.push_back({msg, queue.front()});
    queue.pop_front();
    ntaken++;
}

bool Pair::run(unsigned long messages, const std::function<void()> &between)
{
    unsigned long end = ntaken + messages;
    for (unsigned long i = 0; i < messages * 4000 && ntaken < end; i++) {
        if (is_down() || testing::Test::HasFatalFailure())
            return false;
        try_send();
        if (net.below(3))
            try_recv();
        if (between)
            between();
        turn();
    }
    return ntaken >= end;
}

void Pair::release_all()
{
    while (!held.empty())
        release_one();
}

int Pair::send(uint64_t ctx, const std::string &text)
{
    ft_header h;
    ft_send req;
    memset(&h, 0, sizeof h);
    memset(&req, 0, sizeof req);
    h.ctx = ctx;
    h.len = (uint32_t)text.size();
    return ab->ops->send(ab, &h, text.data(), &req);
}

bool Pair::drain()
{
    return turn_until([&] {
        try_recv();
        return ntaken == nsent || testing::Test::HasFatalFailure();
    });
}

static std::string replay(uint64_t seed)
{
    auto *info = testing::UnitTest::GetInstance()->current_test_info();
    return "replay: FT_RMA_SEED=" + std::to_string(seed) +
           " rma_test --gtest_filter=" + info->test_suite_name() + "." + info->name();
}

static void one_seed(const Scene &scene, uint64_t seed,
                     const std::function<void(FakeNet &, Pair &)> &body)
{
    SCOPED_TRACE(replay(seed));
    FakeNet net(seed);
    if (scene.prepare)
        scene.prepare(net, seed);
    {
        Pair pair(net, 4096, scene.contexts);
        ASSERT_TRUE(pair.connect());
        ASSERT_TRUE(pair.run(scene.messages));
        body(net, pair);
    }
    EXPECT_EQ(net.wrong, 0u) << net.wrong_text;
    EXPECT_TRUE(net.all.empty()) << "ways were left open";
}

bool one_seed_only()
{
    return getenv("FT_RMA_SEED");
}

void each_seed(const Scene &scene, const std::function<void(FakeNet &, Pair &)> &body)
{
    const char *one = getenv("FT_RMA_SEED");
    const uint64_t first = one ? strtoull(one, nullptr, 10) : 1;
    const uint64_t last = one ? first : scene.seeds;
    for (uint64_t seed = first; seed <= last && !testing::Test::HasFatalFailure(); seed++)
        one_seed(scene, seed, body);
}

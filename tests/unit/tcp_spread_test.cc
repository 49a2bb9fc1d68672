// Property: with FTCCL_PATHS the long messages of a channel go by any connection of a link, and
// arrive once, in order and whole, while connections stop, slow down, come back and are reset. Slow
// ones get little, and again as much as others when they are well. What a peer says that cannot be
// ends the link. Method: two transports with a relay between them that one thread turns, and
// schedules of faults that a seed gives (FT_SEED; the log prints it). FT_SCHEDULES: how many.
#include <numeric>
#include "tests/unit/tcp_finder.h"
#include "tests/unit/tcp_relay.h"

namespace
{

const char *const kPaths = "4";
const unsigned kLanes = FT_LANE_P2P + 1; // lanes with data
const size_t kLong = 100000;

int schedules()
{
    const char *text = getenv("FT_SCHEDULES");
    return text ? atoi(text) : 60;
}

// Sends long messages on all lanes with data, as many as the windows take, and receives them.
// It must outlive the link, which completes its sends.
struct Load {
    ft_link *tx = nullptr, *rx = nullptr;
    std::vector<unsigned char> data = payload(0, kLong);
    uint32_t sent[kLanes] = {}, got[kLanes] = {};
    ft_send req[kLanes] = {};

    void turn(bool sends = true)
    {
        for (unsigned lane = 0; lane < kLanes; lane++) {
            ft_header h = header(lane, sent[lane], kLong);
            if (sends && req[lane].status != FT_AGAIN &&
                tcp->send(tx, &h, data.data(), &req[lane]) == FT_OK)
                sent[lane]++;
            ft_msg m;
            if (tcp->recv(rx, ctx, lane, &m) != FT_OK)
                continue;
            EXPECT_EQ(got[lane]++, m.header.seq);
            tcp->release(rx, &m);
        }
    }
    uint32_t received() const
    {
        return std::accumulate(got, got + kLanes, 0u);
    }
    // Of the lane that has received least since then.
    uint32_t least_since(const std::vector<uint32_t> &before) const
    {
        uint32_t least = UINT32_MAX;
        for (unsigned lane = 0; lane < kLanes; lane++)
            least = std::min(least, got[lane] - before[lane]);
        return least;
    }
    std::vector<uint32_t> now() const
    {
        return std::vector<uint32_t>(got, got + kLanes);
    }
};

struct Spread : testing::Test {
    Param paths{"FTCCL_PATHS", kPaths};
    Load load;
    Engine a{1}, b{2};
    Relay relay{b.where(), true};
    ft_link *tx = nullptr, *rx = nullptr;

    void connect()
    {
        tx = a.connect(2, relay.address(b));
        ASSERT_TRUE(eventually([&] { return turn(), a.up.size() == 1 && b.accepted.size() == 1; }))
            << ft_fail_text();
        load.tx = tx, load.rx = rx = b.accepted[0];
    }
    void turn()
    {
        a.turn(), relay.turn(), b.turn();
    }
};

/* A fault of one connection, or the end of one. */
void change(Relay &relay, Traffic &traffic)
{
    if (relay.pipes.empty())
        return;
    Pipe &p = *relay.pipes[traffic.draw(relay.pipes.size() - 1)];
    switch (traffic.draw(5)) {
    case 0:
        relay.reset(p);
        break;
    case 1:
        p.stalled = true;
        break;
    case 2:
        p.every = 1 + (unsigned)traffic.draw(60);
        break;
    default:
        p.every = 1;
        p.stalled = false;
    }
}

void run_schedule(unsigned seed)
{
    Param paths("FTCCL_PATHS", kPaths);
    LongChunks chunks(seed % 4 == 0);
    Engine a(1, 1, &running), b(2, 1, &running);
    Relay relay(b.where(), true);
    Traffic traffic(a, b, seed);
    const auto turn = [&] {
        a.turn(), relay.turn(), b.turn();
        traffic.spoil_complete();
    };
    traffic.tx = a.connect(2, relay.address(b));
    ASSERT_TRUE(eventually([&] { return turn(), a.up.size() == 1; }, 20, &running));
    const int changes = 2 + (int)traffic.draw(6);
    for (int i = 0; i < changes && !testing::Test::HasFatalFailure(); i++) {
        const size_t turns = 20 + traffic.draw(200);
        for (size_t k = 0; k < turns && !testing::Test::HasFatalFailure(); k++) {
            traffic.send_one(), traffic.receive_one();
            turn();
        }
        change(relay, traffic);
    }
    const auto ends = [&] {
        traffic.receive_one();
        for (auto &m : traffic.held)
            tcp->release(b.accepted[0], &m.second);
        traffic.held.clear();
        turn();
        (void)tcp->arm(b.t, true), tcp->arm(b.t, false);
        return testing::Test::HasFatalFailure() || !a.down.empty() || !b.down.empty() ||
               (traffic.lens.empty() && traffic.pending.empty() && tcp->drained(traffic.tx));
    };
    ASSERT_TRUE(eventually(ends, 20, &running))
        << traffic.lens.size() << " messages, " << traffic.pending.size() << " sends";
    EXPECT_TRUE(a.down.empty() && b.down.empty()) << ft_fail_text();
}

TEST(SpreadSchedules, LoseNothing)
{
    const unsigned seed = seed_of();
    for (int i = 0; i < schedules(); i++) {
        run_schedule(seed + (unsigned)i);
        ASSERT_FALSE(HasFailure()) << "FT_SEED=" << seed + (unsigned)i << " FT_SCHEDULES=1";
    }
}

// What each connection carries while so many messages are received.
template <class Turn>
std::vector<size_t> carried(Relay &relay, Load &load, uint32_t messages, Turn turn)
{
    std::vector<size_t> before, after;
    for (auto &p : relay.pipes)
        before.push_back(p->passed);
    const uint32_t end = load.received() + messages;
    EXPECT_TRUE(eventually([&] { return load.turn(), turn(), load.received() >= end; }));
    for (size_t i = 0; i < relay.pipes.size(); i++)
        after.push_back(relay.pipes[i]->passed - before[i]);
    return after;
}

size_t sum(const std::vector<size_t> &all)
{
    return std::accumulate(all.begin(), all.end(), size_t(0));
}

TEST_F(Spread, ASlowConnectionGetsLittleUntilItIsWell)
{
    connect();
    const auto turns = [&] { turn(); };
    for (size_t one : carried(relay, load, 500, turns))
        EXPECT_GT(one, 500 * kLong / 20) << "all are used";
    relay.pipes[1]->every = 10;
    EXPECT_TRUE(eventually([&] { // its share of the speed is 1 of 31
        std::vector<size_t> slow = carried(relay, load, 2000, turns);
        return slow[1] < sum(slow) / 50;
    })) << "when it is known";
    const std::vector<uint32_t> before = load.now();
    (void)carried(relay, load, 2000, turns);
    EXPECT_GT(load.least_since(before), 2000 / kLanes / 2) << "no lane waits for it";
    relay.pipes[1]->every = 300; // it gets nothing but what measures it
    (void)carried(relay, load, 5000, turns);
    relay.pipes[1]->every = 1;
    EXPECT_TRUE(eventually(
        [&] {
            std::vector<size_t> well = carried(relay, load, 100, turns);
            return well[1] > sum(well) / 8;
        },
        90))
        << "it is used again";
    EXPECT_TRUE(a.down.empty() && b.down.empty());
}

// Nothing but what is on its way there waits for a connection that is being made again.
TEST_F(Spread, OthersGoOnWhileOneIsMadeAgain)
{
    connect();
    (void)carried(relay, load, 100, [&] { turn(); });
    ASSERT_TRUE(eventually([&] { return load.turn(false), turn(), tcp->drained(tx); }));
    relay.accepts = false;
    relay.reset(*relay.pipes[0]);
    turn(), turn();
    EXPECT_EQ(3u, relay.pipes.size());
    const std::vector<uint32_t> before = load.now();
    EXPECT_TRUE(eventually([&] { return load.turn(), turn(), load.least_since(before) >= 10; }))
        << "all lanes";
    relay.accepts = true;
    EXPECT_TRUE(eventually([&] { return load.turn(), turn(), tx->remakes == 1; }));
    EXPECT_TRUE(a.down.empty() && b.down.empty());
}

// The connections take turns over the addresses of the peer, if the user has named interfaces.
struct Interfaces : testing::Test {
    Param paths{"FTCCL_PATHS", kPaths}, named{"FTCCL_SOCKET_IFNAME", "lo"};
    Load load;
    Engine a{1}, b{2};
    Relay left{b.where(), true}, right{b.where(), true};
    ft_link *tx = nullptr;

    // The addresses of both relays, and what the engine can.
    void connect()
    {
        const std::string to_right = right.address(b);
        tx = a.connect(2, left.address(b).substr(0, FT_NET_WIRE_BYTES) + to_right);
        ASSERT_TRUE(eventually([&] { return turn(), a.up.size() == 1 && b.accepted.size() == 1; }))
            << ft_fail_text();
        load.tx = tx, load.rx = b.accepted[0];
        (void)carried(left, load, 100, [&] { turn(); });
        EXPECT_TRUE(a.down.empty() && b.down.empty()) << ft_fail_text();
    }
    void turn()
    {
        a.turn(), left.turn(), right.turn(), b.turn();
    }
};

TEST_F(Interfaces, AllAreUsed)
{
    connect();
    ASSERT_EQ(2u, left.pipes.size());
    ASSERT_EQ(2u, right.pipes.size());
    for (Relay *one : {&left, &right})
        for (auto &p : one->pipes)
            EXPECT_GT(p->passed, 100 * kLong / 20);
}

TEST_F(Interfaces, OneThatDoesNotAnswerIsLeftOut)
{
    right.stop_listening();
    connect();
    EXPECT_EQ(4u, left.pipes.size());
    EXPECT_EQ(0u, right.pipes.size());
}

TEST_F(Interfaces, SoIsTheFirst)
{
    left.stop_listening();
    connect();
    EXPECT_EQ(4u, right.pipes.size());
}

TEST_F(Interfaces, AConnectionIsMadeAgainByAnother)
{
    connect();
    right.accepts = false;
    right.reset_all();
    EXPECT_TRUE(eventually([&] { return turn(), left.pipes.size() == 4; }));
    EXPECT_TRUE(a.down.empty() && b.down.empty()) << ft_fail_text();
}

// If connections are not equally fast, ports are probed again; if they are, they are not.
struct Uneven : testing::Test {
    Param paths{"FTCCL_PATHS", kPaths}, source{"FTCCL_SOCKET_SOURCE", "127.0.0.2"};
    Finder finder;
    Load load;
    Engine a{1, 1, ft_env_real(), 0, &finder.base}, b{2};
    Relay relay{b.where(), true};
    ft_link *tx = nullptr;

    void SetUp() override
    {
        tx = a.connect(2, relay.address(b));
        ASSERT_TRUE(eventually([&] { return turn(), a.up.size() == 1 && b.accepted.size() == 1; }))
            << ft_fail_text();
        load.tx = tx, load.rx = b.accepted[0];
    }
    void turn()
    {
        a.turn(), relay.turn(), b.turn();
    }
    bool is_probed_again(int seconds)
    {
        return eventually([&] { return load.turn(), turn(), finder.forgets > 0; }, seconds);
    }
};

TEST_F(Uneven, PathsAreProbedAgain)
{
    relay.every = [](size_t connection) { return connection % 4 == 1 ? 5u : 1u; };
    EXPECT_TRUE(is_probed_again(30));
    EXPECT_TRUE(a.down.empty() && b.down.empty()) << ft_fail_text();
}

TEST_F(Uneven, ButNotIfAllAreSlow)
{
    relay.every = [](size_t) { return 5u; };
    EXPECT_FALSE(is_probed_again(6));
    EXPECT_TRUE(a.down.empty() && b.down.empty()) << ft_fail_text();
}

// With another setting, and to an engine of an older version, messages have no numbers.
TEST_F(Spread, OnlyIfTheReceiverCan)
{
    std::string older = relay.address(b);
    const size_t entry = older.find("resumes");
    ASSERT_NE(std::string::npos, entry);
    older[entry + 7] = 0;
    tx = a.connect(2, older);
    ASSERT_TRUE(eventually([&] { return turn(), a.up.size() == 1 && b.accepted.size() == 1; }));
    load.tx = tx, load.rx = rx = b.accepted[0];
    (void)carried(relay, load, 100, [&] { turn(); });
    EXPECT_EQ(4u, relay.pipes.size());
    EXPECT_TRUE(a.down.empty() && b.down.empty()) << ft_fail_text();
}

// ---- peers that lie -----------------------------------------------------------------------------

constexpr uint64_t kCanResume = 1ull << 32, kSpreads = 1ull << 50, kOne = 1 << 8;
const uint16_t kPing = 0xfffc;

ft_header numbered(unsigned lane, unsigned number, uint32_t seq, size_t len)
{
    ft_header h = header(lane, seq, len);
    h.lane = (uint16_t)(lane | number << 4);
    return h;
}

struct Liar : testing::Test {
    Engine b{2};
    Hand hand{b, kOne | kCanResume | kSpreads};
    ft_link *rx = nullptr;
    void SetUp() override
    {
        ASSERT_TRUE(eventually([&] { return b.turn(), b.accepted.size() == 1; }));
        rx = b.accepted[0];
    }
};

TEST_F(Liar, MessagesAreReceivedInTheOrderOfTheirNumbers)
{
    hand.say(numbered(1, 2, 2, 5000), 5000);
    hand.say(numbered(1, 1, 1, 10), 10);
    for (int i = 0; i < 50; i++)
        b.turn();
    ft_msg m;
    ft_header first;
    EXPECT_EQ(FT_AGAIN, tcp->recv(rx, ctx, 1, &m));
    EXPECT_EQ(FT_AGAIN, tcp->peek(rx, ctx, 1, &first));
    hand.say(numbered(1, 0, 0, 1000), 1000);
    for (uint32_t seq = 0; seq < 3; seq++) {
        ASSERT_TRUE(eventually([&] { return b.turn(), tcp->recv(rx, ctx, 1, &m) == FT_OK; }));
        EXPECT_EQ(seq, m.header.seq);
        EXPECT_EQ(1, m.header.lane);
        EXPECT_EQ(0, memcmp(m.data, payload(seq, m.header.len).data(), m.header.len));
        tcp->release(rx, &m);
    }
}

// What came after a missing one goes with the context, and with the link.
TEST_F(Liar, MessagesBehindAMissingOneAreDropped)
{
    hand.say(numbered(1, 1, 1, 5000), 5000);
    hand.say(numbered(2, 3, 1, 10), 10);
    for (int i = 0; i < 50; i++)
        b.turn();
    tcp->unbind(b.t, ctx);
    EXPECT_EQ(FT_OK, tcp->bind(b.t, ctx));
    hand.say(numbered(1, 0, 7, 10), 10);
    ft_msg m;
    ASSERT_TRUE(eventually([&] { return b.turn(), tcp->recv(rx, ctx, 1, &m) == FT_OK; }));
    EXPECT_EQ(7u, m.header.seq);
    tcp->release(rx, &m);
}

TEST_F(Liar, ANumberTooFarAheadIsAnError)
{
    hand.say(numbered(1, 16, 0, 10), 10);
    expect_down(b, FT_PROTOCOL);
}

TEST_F(Liar, ANumberThatCameIsAnError)
{
    hand.say(numbered(1, 1, 0, 10), 10);
    hand.say(numbered(1, 1, 0, 10), 10);
    expect_down(b, FT_PROTOCOL);
}

TEST_F(Liar, ANumberBeforeTheNextIsAnError)
{
    hand.say(numbered(1, 255, 0, 10), 10);
    expect_down(b, FT_PROTOCOL);
}

TEST_F(Liar, ALaneThatDoesNotExistIsAnError)
{
    hand.say(numbered(FT_LANES_ALL, 0, 0, 10), 10);
    expect_down(b, FT_PROTOCOL);
}

// Messages that measure are dropped, up to a length.
TEST_F(Liar, AMeasuringMessageIsDroppedIfItIsNotTooLong)
{
    hand.say(numbered(0, 0, 0, 10), 10);
    ft_header fill = header(0, 0, 65536);
    fill.lane = kPing;
    hand.say(fill, 65536);
    hand.say(numbered(0, 1, 1, 10), 10);
    for (uint32_t seq = 0; seq < 2; seq++) {
        ft_msg m;
        ASSERT_TRUE(eventually([&] { return b.turn(), tcp->recv(rx, ctx, 0, &m) == FT_OK; }));
        EXPECT_EQ(seq, m.header.seq);
        tcp->release(rx, &m);
    }
    EXPECT_EQ(0u, b.t->dropped);
    fill.len++;
    hand.say(fill);
    expect_down(b, FT_PROTOCOL);
}

} // namespace

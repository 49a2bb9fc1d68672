// Property: a connection that is reset between two live engines is no failure. Every message
// arrives once, in order and whole, wherever the reset falls; only what tells of an end ends the
// link, and at once. Method: two transports with a relay between them that one thread turns. The
// relay resets connections after a number of bytes that a seed gives (FT_SEED; the log prints it).
#include "tests/unit/tcp_relay.h"

// Half of the time that a link may take to be made again.
static const uint64_t soon_ms = 1000;

// More than a hundred resets, after the handshake, at bytes of headers, of payloads and of credits,
// of links of one and of several connections, with messages that are copied and that are not.
TEST(Remake, ResetsLoseNothing)
{
    const unsigned seed = seed_of();
    size_t resets = 0;
    for (unsigned round = 0; round < 8; round++) {
        Param connections("FTCCL_TCP_CONNECTIONS", round % 2 ? "2" : "1");
        LongChunks chunks(round >= 6);
        Engine a(1), b(2);
        Relay relay(b.where());
        Traffic traffic(a, b, seed + round);
        const bool in_pieces = round >= 3 && round < 6;
        relay.piece = in_pieces ? 1000 : 65536;
        relay.draw = [&, far = in_pieces ? 60000 : 300000] {
            return relay.resets >= 30 ? SIZE_MAX : 300 + traffic.draw(traffic.draw(3) ? far : 500);
        };
        traffic.tx = a.connect(2, relay.address(b));
        ASSERT_TRUE(eventually([&] {
            for (int i = 0; i < 8; i++)
                traffic.send_one(), traffic.receive_one();
            a.turn(), relay.turn(), b.turn();
            traffic.spoil_complete();
            return ::testing::Test::HasFatalFailure() || !a.down.empty() || !b.down.empty() ||
                   relay.resets >= 30;
        })) << relay.resets
            << " resets";
        ASSERT_FALSE(::testing::Test::HasFatalFailure()) << "round " << round;
        ASSERT_TRUE(a.down.empty() && b.down.empty())
            << "round " << round << ": " << ft_fail_text();
        ASSERT_TRUE(eventually([&] {
            traffic.receive_one();
            for (auto &m : traffic.held)
                tcp->release(b.accepted[0], &m.second);
            traffic.held.clear();
            a.turn(), relay.turn(), b.turn();
            traffic.spoil_complete();
            (void)tcp->arm(b.t, true), tcp->arm(b.t, false);
            return ::testing::Test::HasFatalFailure() ||
                   (traffic.lens.empty() && traffic.pending.empty() && tcp->drained(traffic.tx));
        })) << traffic.lens.size()
            << " messages, " << traffic.pending.size() << " sends; drained "
            << tcp->drained(traffic.tx);
        ASSERT_FALSE(::testing::Test::HasFatalFailure()) << "round " << round;
        EXPECT_GT(traffic.tx->remakes, 0u);
        resets += relay.resets;
    }
    EXPECT_GE(resets, 100u);
}

struct Through {
    Engine a{1}, b{2};
    Relay relay{b.where()}, back{a.where()};
    ft_link *tx = nullptr, *rx = nullptr;
    Through()
    {
        tx = a.connect(2, relay.address(b));
        EXPECT_TRUE(eventually([&] { return turn(), a.up.size() == 1 && b.accepted.size() == 1; }));
        rx = b.accepted.empty() ? nullptr : b.accepted[0];
        std::string from = back.address(a);
        if (rx)
            tcp->peer_at(rx, from.data(), from.size());
    }
    void turn()
    {
        a.turn(), relay.turn(), b.turn(), back.turn();
    }
};

static uint64_t ms_until(const std::function<bool()> &done)
{
    const uint64_t begin = ft_now_ns(ft_env_real());
    EXPECT_TRUE(eventually(done));
    return (ft_now_ns(ft_env_real()) - begin) / 1000000;
}

// A long message is read where it lies. Without an acknowledgement it is copied, so that the send
// completes, and the copy is what is sent again.
TEST(Remake, UserMemoryIsGivenBackWithoutAnAcknowledgement)
{
    LongChunks chunks(true);
    Param connections("FTCCL_TCP_CONNECTIONS", "1");
    Through all;
    const size_t len = 300000; // it fits into the kernel
    std::vector<unsigned char> data = payload(0, len);
    ft_header h = header(0, 0, len);
    ft_send req = {};
    ft_msg m;
    all.relay.pipes[0]->stalled = true;
    all.relay.accepts = false;
    ASSERT_EQ(FT_OK, tcp->send(all.tx, &h, data.data(), &req));
    EXPECT_EQ(FT_AGAIN, req.status);
    ASSERT_TRUE(eventually([&] { return all.turn(), req.status == FT_OK; }));
    std::fill(data.begin(), data.end(), 0xee);
    all.relay.reset_all();
    all.relay.accepts = true;
    ASSERT_TRUE(eventually([&] { return all.turn(), tcp->recv(all.rx, ctx, 0, &m) == FT_OK; }));
    EXPECT_EQ(0, memcmp(m.data, payload(0, len).data(), len));
    tcp->release(all.rx, &m);
    EXPECT_TRUE(all.a.down.empty() && all.b.down.empty());
}

// A reset at any byte of the handshake of a link's first connection, also at the last one, which
// only one side has then.
TEST(Remake, AResetOfTheHandshakeIsNoFailure)
{
    size_t resets = 0;
    for (size_t at = 1; at <= 356; at++) {
        Param connections("FTCCL_TCP_CONNECTIONS", at % 2 ? "1" : "2");
        Engine a(1), b(2);
        Relay relay(b.where());
        relay.draw = [first = at]() mutable { return std::exchange(first, SIZE_MAX); };
        relay.piece = 1;
        ft_link *tx = a.connect(2, relay.address(b));
        ft_msg m;
        ft_header h = header(0, 0, 100);
        ft_send req = {};
        const std::vector<unsigned char> data = payload(0, 100);
        ASSERT_TRUE(eventually([&] { return a.turn(), relay.turn(), b.turn(), a.up.size() == 1; }))
            << "byte " << at;
        ASSERT_EQ(FT_OK, tcp->send(tx, &h, data.data(), &req));
        ASSERT_TRUE(eventually([&] {
            a.turn(), relay.turn(), b.turn();
            return !b.accepted.empty() && tcp->recv(b.accepted[0], ctx, 0, &m) == FT_OK;
        })) << "byte "
            << at << ": " << b.accepted.size();
        EXPECT_EQ(0, memcmp(m.data, data.data(), data.size()));
        tcp->release(b.accepted[0], &m);
        EXPECT_TRUE(a.down.empty() && b.down.empty() && b.accepted.size() == 1) << "byte " << at;
        resets += relay.resets;
    }
    EXPECT_EQ(356u, resets);
}

TEST(Remake, AnIdleLinkGoesOnSoon)
{
    Through all;
    all.relay.reset_all();
    const uint64_t ms = ms_until(
        [&] { return all.turn(), all.tx->remakes == 2 && all.rx->remakes == 2; });
    EXPECT_LT(ms, soon_ms);
    EXPECT_TRUE(all.a.down.empty() && all.b.down.empty());
}

// The sender's side of a process that is killed: the connections are reset and nobody listens.
TEST(Remake, WhereNobodyListensTheProcessHasEnded)
{
    Through all;
    all.relay.stop_listening();
    all.relay.reset_all();
    const uint64_t ms = ms_until([&] { return all.turn(), !all.a.down.empty(); });
    EXPECT_LT(ms, soon_ms);
    EXPECT_EQ(FT_LINK, all.a.down[0]->reason);
}

// The receiver's side of it: it asks by itself, and also when the process ends only after it has
// asked.
TEST(Remake, TheReceiverAsksWhetherTheSenderLives)
{
    for (bool later : {false, true}) {
        Through all;
        all.relay.stop_listening(), all.relay.accepts = false;
        all.relay.reset_all();
        if (later) {
            ASSERT_TRUE(
                eventually([&] { return all.b.turn(), all.back.turn(), !all.back.pipes.empty(); }));
            EXPECT_TRUE(all.b.down.empty());
        }
        all.back.stop_listening();
        all.back.reset_all();
        const uint64_t ms = ms_until(
            [&] { return all.b.turn(), all.back.turn(), !all.b.down.empty(); });
        EXPECT_LT(ms, soon_ms);
        EXPECT_EQ(FT_LINK, all.b.down[0]->reason);
        EXPECT_FALSE(all.b.down[0]->orderly);
    }
}

TEST(Remake, AnEndWithoutAResetIsTheEnd)
{
    Through all;
    for (auto &p : all.relay.pipes)
        shutdown(p->fd[0], SHUT_WR), shutdown(p->fd[1], SHUT_WR);
    const uint64_t ms = ms_until(
        [&] { return all.turn(), !all.a.down.empty() && !all.b.down.empty(); });
    EXPECT_LT(ms, soon_ms);
    EXPECT_EQ(0u, all.tx->remakes + all.rx->remakes);
}

// A stopped process answers late: the link goes on. If it takes too long, the link is down.
TEST(Remake, WaitsOnlySoLong)
{
    Param bound("FTCCL_RECONNECT_MS", "400");
    for (bool comes : {true, false}) {
        Through all;
        all.relay.accepts = false;
        all.relay.reset_all();
        const uint64_t begin = ft_now_ns(ft_env_real());
        auto ms = [&] { return (ft_now_ns(ft_env_real()) - begin) / 1000000; };
        ASSERT_TRUE(eventually([&] { return all.a.turn(), all.b.turn(), ms() >= 200; }));
        EXPECT_TRUE(all.a.down.empty() && all.b.down.empty());
        all.relay.accepts = comes;
        EXPECT_TRUE(eventually([&] {
            return all.turn(), comes ? all.tx->remakes > 0 && all.rx->remakes > 0
                                     : !all.a.down.empty() && !all.b.down.empty();
        }));
        EXPECT_EQ(comes, all.a.down.empty() && all.b.down.empty());
        EXPECT_GE(ms(), comes ? 200u : 400u);
    }
}

// The receiver has ended the link without a goodbye, as it does to a rank that is fenced: the
// sender may not go on with it.
TEST(Remake, ALinkThatTheReceiverHasEndedIsNotMadeAgain)
{
    Through all;
    all.rx->cut = true;
    tcp->disconnect(all.rx);
    all.relay.reset_all();
    const uint64_t ms = ms_until([&] { return all.turn(), !all.a.down.empty(); });
    EXPECT_LT(ms, soon_ms);
    EXPECT_TRUE(all.b.accepted.size() == 1);
}

TEST(Remake, GoodbyesAreSaidOnWhatIsLeft)
{
    Param connections("FTCCL_TCP_CONNECTIONS", "2");
    Through all;
    all.relay.accepts = false;
    all.relay.reset(*all.relay.pipes[0]);
    ASSERT_TRUE(eventually([&] { return all.turn(), all.relay.pipes.size() == 1; }));
    for (int i = 0; i < 20; i++)
        all.turn();
    tcp->disconnect(all.tx);
    EXPECT_TRUE(eventually([&] { return all.turn(), !all.b.down.empty(); }));
    EXPECT_TRUE(all.b.down[0]->orderly);
}

static void exchange(Through &all, uint32_t seq)
{
    const std::vector<unsigned char> data = payload(seq, 100);
    ft_header h = header(0, seq, 100);
    ft_send req = {};
    ft_msg m;
    ASSERT_TRUE(eventually([&] { // not while the connection is made again
        return all.turn(), tcp->send(all.tx, &h, data.data(), &req) == FT_OK;
    }));
    ASSERT_TRUE(eventually([&] { return all.turn(), tcp->recv(all.rx, ctx, 0, &m) == FT_OK; }));
    EXPECT_EQ(0, memcmp(m.data, data.data(), data.size()));
    tcp->release(all.rx, &m);
}

// A way through the network that swallows everything: the connection moves to another one.
TEST(Move, AWayThatSwallowsEverythingIsLeft)
{
    Param connections("FTCCL_TCP_CONNECTIONS", "1");
    Through all;
    exchange(all, 0);
    Pipe *first = all.relay.pipes[0].get();
    const uint16_t port = port_of(first->fd[0], true);
    first->stalled = true;
    const uint64_t ms = ms_until([&] { return exchange(all, 1), true; });
    EXPECT_LT(ms, soon_ms);
    EXPECT_TRUE(eventually([&] { return all.turn(), all.relay.pipes.size() == 2; }));
    EXPECT_NE(port, port_of(all.relay.pipes[1]->fd[0], true));
    EXPECT_EQ(1u, all.tx->remakes);
    EXPECT_EQ(1u, all.rx->remakes);
    exchange(all, 2);
    EXPECT_TRUE(all.a.down.empty() && all.b.down.empty());
}

// What the receiver gives back is swallowed while the sender has nothing to send.
TEST(Move, AReceiverThatGivesNothingBackIsAsked)
{
    Param connections("FTCCL_TCP_CONNECTIONS", "1");
    Through all;
    exchange(all, 0);
    ASSERT_FALSE(tcp->drained(all.tx));
    all.relay.pipes[0]->stalled = true;
    const uint64_t ms = ms_until([&] { return all.turn(), all.tx->remakes == 1; });
    EXPECT_LT(ms, soon_ms);
    exchange(all, 1);
    all.b.turn();
    EXPECT_TRUE(eventually([&] {
        (void)tcp->arm(all.b.t, true), tcp->arm(all.b.t, false);
        return all.turn(), tcp->drained(all.tx);
    }));
    EXPECT_TRUE(all.a.down.empty() && all.b.down.empty());
}

// If no way leads to the peer, the connection is kept, and goes on when its way is well again.
TEST(Move, WithoutAnotherWayTheFirstIsKept)
{
    Param connections("FTCCL_TCP_CONNECTIONS", "1");
    Through all;
    exchange(all, 0);
    all.relay.pipes[0]->stalled = true;
    all.relay.accepts = false;
    const std::vector<unsigned char> data = payload(1, 100);
    ft_header h = header(0, 1, 100);
    ft_send req = {};
    ft_msg m;
    ASSERT_EQ(FT_OK, tcp->send(all.tx, &h, data.data(), &req));
    const uint64_t begin = ft_now_ns(ft_env_real());
    ASSERT_TRUE(
        eventually([&] { return all.turn(), ft_now_ns(ft_env_real()) - begin >= 400000000u; }));
    all.relay.pipes[0]->stalled = false;
    ASSERT_TRUE(eventually([&] { return all.turn(), tcp->recv(all.rx, ctx, 0, &m) == FT_OK; }));
    tcp->release(all.rx, &m);
    EXPECT_EQ(0u, all.tx->remakes + all.rx->remakes);
    EXPECT_TRUE(all.a.down.empty() && all.b.down.empty());
}

// The second connection may be reset, too, before or after it has taken the place of the first.
TEST(Move, AlsoTheSecondConnectionMayBeReset)
{
    for (size_t at = 1; at <= 600; at += 7) {
        Param connections("FTCCL_TCP_CONNECTIONS", "1");
        Through all;
        exchange(all, 0);
        all.relay.pipes[0]->stalled = true;
        all.relay.draw = [first = at]() mutable { return std::exchange(first, SIZE_MAX); };
        all.relay.piece = 1;
        exchange(all, 1);
        EXPECT_TRUE(all.a.down.empty() && all.b.down.empty()) << at;
        EXPECT_GT(all.tx->remakes, 0u);
    }
}

// The second one hangs, too, also when the receiver has already taken it for the first, which works
// again meanwhile.
TEST(Move, AlsoTheSecondConnectionMayHang)
{
    Param connections("FTCCL_TCP_CONNECTIONS", "1"), bound("FTCCL_RECONNECT_MS", "300");
    for (size_t at = 1; at <= 420; at += at < 300 ? 23 : 7) {
        Through all;
        exchange(all, 0);
        all.relay.pipes[0]->stalled = true;
        all.relay.draw_stall = [first = at]() mutable { return std::exchange(first, SIZE_MAX); };
        all.relay.piece = 1;
        const std::vector<unsigned char> data = payload(1, 100);
        ft_header h = header(0, 1, 100);
        ft_send req = {};
        ASSERT_EQ(FT_OK, tcp->send(all.tx, &h, data.data(), &req));
        ASSERT_TRUE(eventually([&] { return all.turn(), all.relay.pipes.size() > 1; }));
        ASSERT_TRUE(eventually([&] {
            return all.turn(),
                   all.relay.pipes.size() < 2 || all.relay.pipes[1]->stalled || all.tx->remakes > 0;
        }));
        all.b.turn();
        all.relay.pipes[0]->stalled = false;
        for (int i = 0; i < 200; i++) // its end, if there is one, comes before anything else
            all.relay.forward(*all.relay.pipes[0], 1);
        all.a.turn();
        ft_msg m;
        ASSERT_TRUE(eventually([&] { return all.turn(), tcp->recv(all.rx, ctx, 0, &m) == FT_OK; }))
            << at;
        tcp->release(all.rx, &m);
        exchange(all, 2);
        EXPECT_TRUE(all.a.down.empty() && all.b.down.empty()) << at;
    }
}

static const uint64_t can_resume = 1ull << 32, one = 1 << 8, number = 7 << 16;

// It resumes a connection, in the dial of this number.
static uint64_t resumes(unsigned attempt)
{
    return 1ull << 33 | (uint64_t)attempt << 34;
}

static bool read_answer(Engine &b, int fd, Answer *out)
{
    size_t have = 0;
    return eventually([&] {
               b.turn();
               ssize_t n = recv(fd, (char *)out + have, sizeof *out - have, MSG_DONTWAIT);
               have += n > 0 ? (size_t)n : 0;
               return have == sizeof *out || n == 0;
           }) &&
           have == sizeof *out;
}

// A peer that does not say that it can, or a user who does not want it: a reset is the end.
TEST(Remake, OnlyIfBothSidesCan)
{
    for (bool hand_can : {false, true}) {
        Param bound("FTCCL_RECONNECT_MS", hand_can ? "0" : "2000");
        Engine b(2);
        EXPECT_EQ(hand_can, b.address().find("resumes") == std::string::npos);
        Hand hand(b, one | number | (hand_can ? can_resume : 0));
        ASSERT_TRUE(eventually([&] { return b.turn(), b.accepted.size() == 1; }));
        reset_and_close(&hand.fd);
        EXPECT_LT(ms_until([&] { return b.turn(), !b.down.empty(); }), soon_ms);
        EXPECT_EQ(FT_LINK, b.down[0]->reason);
    }
}

// The claim of a dial that the sender has given up comes late: it is refused, and the link goes on.
TEST(Remake, ALateClaimIsRefused)
{
    Engine b(2);
    Hand first(b, one | number | can_resume);
    ASSERT_TRUE(eventually([&] { return b.turn(), b.accepted.size() == 1; }));
    Hand second(b, one | number | can_resume | resumes(2));
    Answer answer;
    ASSERT_TRUE(read_answer(b, second.fd, &answer));
    for (unsigned attempt : {2u, 1u, 65535u}) {
        Hand late(b, one | number | can_resume | resumes(attempt));
        EXPECT_TRUE(eventually([&] { return b.turn(), closed_by_peer(late.fd); })) << attempt;
    }
    second.say(header(0, 0, 4), 4);
    ft_msg m;
    EXPECT_TRUE(
        eventually([&] { return b.turn(), tcp->recv(b.accepted[0], ctx, 0, &m) == FT_OK; }));
    EXPECT_TRUE(b.down.empty());
}

// Where the peer listens is told again, without an address, while the receiver asks there.
TEST(Remake, ThePeersAddressesAreLost)
{
    Through all;
    all.relay.accepts = false;
    all.relay.reset_all();
    ASSERT_TRUE(eventually([&] { return all.b.turn(), all.back.turn(), !all.back.pipes.empty(); }));
    tcp->peer_at(all.rx, "", 0);
    all.back.reset_all();
    for (int i = 0; i < 50; i++)
        all.b.turn(), all.back.turn();
    all.relay.accepts = true;
    EXPECT_TRUE(eventually([&] { return all.turn(), all.rx->remakes > 0; }));
    EXPECT_TRUE(all.a.down.empty() && all.b.down.empty());
}

// Nobody listens at an address of the peer from which it has not come: perhaps it is another
// machine's, so that says nothing.
TEST(Remake, ARefusalElsewhereSaysNothing)
{
    Through all;
    all.relay.accepts = false;
    ft_net_address other = all.back.at;
    other.ip[0] = 127, other.ip[3] = 9;
    std::string wire(FT_NET_WIRE_BYTES, '\0');
    ft_net_pack(&other, (unsigned char *)&wire[0]);
    tcp->peer_at(all.rx, wire.data(), wire.size());
    all.back.stop_listening();
    all.relay.reset_all();
    const uint64_t begin = ft_now_ns(ft_env_real());
    ASSERT_TRUE(
        eventually([&] { return all.b.turn(), ft_now_ns(ft_env_real()) - begin >= 200000000u; }));
    EXPECT_TRUE(all.b.down.empty());
    all.relay.accepts = true;
    EXPECT_TRUE(eventually([&] { return all.turn(), all.rx->remakes > 0; }));
}

// The receiver says what it has, and goes on in the middle of a payload. Half a header does not
// count.
TEST(Remake, GoesOnWhereItStopped)
{
    for (size_t part : {(size_t)0, (size_t)31, (size_t)32, (size_t)1000}) {
        Engine b(2);
        std::unique_ptr<Hand> first(new Hand(b, one | number | can_resume));
        std::string bytes;
        for (uint32_t i = 0; i < 2; i++) {
            ft_header h = header(1, i, 3000);
            bytes.append((char *)&h, sizeof h);
            bytes.append((char *)payload(i, 3000).data(), 3000);
        }
        const size_t whole = bytes.size() / 2;
        first->say(bytes.data(), whole + part);
        ASSERT_TRUE(eventually(
            [&] { return b.turn(), !b.accepted.empty() && b.accepted[0]->messages == 1; }));
        for (int i = 0; i < 10; i++)
            b.turn();
        reset_and_close(&first->fd);
        Hand second(b, one | number | can_resume | resumes(1));
        Answer answer;
        ASSERT_TRUE(read_answer(b, second.fd, &answer));
        EXPECT_EQ(0xfffd, answer.lane);
        ASSERT_EQ(whole + (part < 32 ? 0 : part), answer.position);
        EXPECT_EQ(1u, answer.uses) << "two messages of one channel";
        second.say(bytes.data() + answer.position, bytes.size() - answer.position);
        for (uint32_t i = 0; i < 2; i++) {
            ft_msg m;
            ASSERT_TRUE(eventually(
                [&] { return b.turn(), tcp->recv(b.accepted[0], ctx, 1, &m) == FT_OK; }));
            EXPECT_EQ(i, m.header.seq);
            EXPECT_EQ(0, memcmp(m.data, payload(i, 3000).data(), 3000));
        }
        EXPECT_EQ(1u, b.accepted.size());
        EXPECT_TRUE(b.down.empty());
    }
}

// Nobody goes on with a link of another engine, of another number, or that is not there.
TEST(Remake, StrangersGetNoLink)
{
    Engine b(2);
    Hand owner(b, one | number | can_resume);
    ASSERT_TRUE(eventually([&] { return b.turn(), b.accepted.size() == 1; }));
    for (uint64_t detail :
         {one | (8ull << 16) | resumes(1) | can_resume, (2ull << 8) | number | resumes(1),
          (3ull << 8) | 2 | number | resumes(1)}) {
        Hand other(b, detail);
        EXPECT_TRUE(eventually([&] { return b.turn(), closed_by_peer(other.fd); }));
    }
    Hand liar(b, one | number | resumes(1) | can_resume, AF_INET, 9);
    EXPECT_NE(FT_OK, liar.status) << "it does not know the secret";
    EXPECT_EQ(1u, b.accepted.size());
    EXPECT_TRUE(b.down.empty());
    owner.say(header(0, 0, 4), 4);
    ft_msg m;
    EXPECT_TRUE(
        eventually([&] { return b.turn(), tcp->recv(b.accepted[0], ctx, 0, &m) == FT_OK; }));
}

// Again and again without a byte of a message: that ends.
TEST(Remake, MadeAgainInVainTooOften)
{
    Param bound("FTCCL_RECONNECT_MS", "200");
    Engine b(2);
    Hand first(b, one | number | can_resume);
    ASSERT_TRUE(eventually([&] { return b.turn(), b.accepted.size() == 1; }));
    unsigned attempt = 0;
    const uint64_t ms = ms_until([&] {
        Hand again(b, one | number | can_resume | resumes(++attempt));
        b.turn();
        reset_and_close(&again.fd);
        b.turn();
        return !b.down.empty();
    });
    EXPECT_GE(ms, 200u);
    EXPECT_LT(ms, soon_ms);
}

// Two messages of 132 bytes leave.
static void send_two(HandAcceptor &hand)
{
    static const std::vector<unsigned char> data = payload(0, 100);
    ft_send req = {};
    for (uint32_t i = 0; i < 2; i++) {
        ft_header h = header(1, i, 100);
        EXPECT_EQ(FT_OK, tcp->send(hand.tx, &h, data.data(), &req));
    }
}

// A receiver that says what cannot be.
TEST(Remake, ReceiversThatLie)
{
    const uint16_t position = 0xfffd;
    const std::vector<std::vector<Answer>> lies = {
        {{265, position, 0, 0}}, // it has more than was sent
        {{10, position, 0, 0}},  // the middle of a header
        {{0, position, 1, 0}},
        {{0, position, 0, 257}},                  // too many channels
        {{0, 1, 1, 0}},                           // no position
        {{264, position, 0, 1}, {ctx, 11, 1, 0}}, // no such lane
        {{264, position, 0, 1}, {ctx, 1, 0, 0}},
        {{264, position, 0, 1}, {ctx, 1, 1, 1}},
        {{264, position, 0, 1}, {ctx, 1, 17, 0}},       // more than its window
        {{132, position, 0, 1}, {ctx, 1, 16, 0}},       // and the one that is sent again
        {{264, position, 0, 0}, {132, position, 0, 0}}, // it has lost what it had
    };
    for (const auto &lie : lies) {
        HandAcceptor hand;
        send_two(hand);
        reset_and_close(&hand.fd[0]);
        hand.accept();
        for (const Answer &answer : lie)
            hand.say(answer);
        expect_down(hand.a, FT_PROTOCOL);
    }
    { // places of a channel that keeps to the other connection
        HandAcceptor hand(2);
        send_two(hand);
        reset_and_close(&hand.fd[1]);
        hand.accept();
        hand.say({264, position, 0, 1}, 1);
        hand.say({ctx, 2, 1, 0}, 1);
        expect_down(hand.a, FT_PROTOCOL);
    }
    for (const Answer &lie : {Answer{265, position, 0, 0}, Answer{100, position, 0, 0},
                              Answer{132, position, 0, 1}, Answer{132, position, 1, 0}}) {
        HandAcceptor hand;
        send_two(hand);
        hand.say(lie);
        expect_down(hand.a, FT_PROTOCOL);
    }
}

// So many messages that the queue is full before any is acknowledged: when they are, there is room.
TEST(Remake, AFullQueueGetsRoom)
{
    HandAcceptor hand;
    const std::vector<unsigned char> data = payload(0, 8);
    ft_send req = {};
    size_t sent = 0;
    std::map<unsigned, unsigned> per_lane;
    for (unsigned lane = 0; lane < FT_LANES_ALL; lane++) {
        ft_header h = header(lane, 0, 8);
        while (tcp->send(hand.tx, &h, data.data(), &req) == FT_OK)
            h.seq = ++per_lane[lane], sent++;
    }
    ASSERT_GE(sent, 128u); // more if the kernel acknowledges some of them meanwhile
    std::string got;
    ASSERT_TRUE(eventually([&] {
        char buf[8192];
        const ssize_t n = recv(hand.fd[0], buf, sizeof buf, MSG_DONTWAIT);
        got.append(buf, n > 0 ? (size_t)n : 0);
        return got.size() == sent * (sizeof(ft_header) + 8);
    }));
    for (auto &lane : per_lane)
        hand.say({ctx, (uint16_t)lane.first, (uint16_t)lane.second, 0});
    ft_header h = header(0, per_lane[0], 8);
    EXPECT_TRUE(eventually(
        [&] { return hand.a.turn(), tcp->send(hand.tx, &h, data.data(), &req) == FT_OK; }));
}

// Something between the two has acknowledged what the receiver never got. That ends the link.
TEST(Remake, WhatAProxyHasLostIsLost)
{
    HandAcceptor hand;
    const std::vector<unsigned char> data = payload(0, 100);
    ft_send req = {};
    for (uint32_t i = 0; i < 80; i++) { // so many that it looks what it need not keep
        ft_header h = header(i % 8, i / 8, 100);
        ASSERT_EQ(FT_OK, tcp->send(hand.tx, &h, data.data(), &req));
        char got[132];
        ASSERT_EQ((ssize_t)sizeof got, recv(hand.fd[0], got, sizeof got, MSG_WAITALL));
    }
    reset_and_close(&hand.fd[0]);
    hand.accept();
    hand.say({132, 0xfffd, 0, 0});
    expect_down(hand.a, FT_LINK);
    EXPECT_NE(nullptr, strstr(ft_fail_text(), "proxy")) << ft_fail_text();
}

// What the receiver is known to have is not kept; what it is not known to have is sent again, once.
TEST(Remake, SendsAgainWhatIsMissing)
{
    for (uint64_t has : {0u, 132u, 264u}) {
        HandAcceptor hand;
        send_two(hand);
        reset_and_close(&hand.fd[0]);
        hand.accept();
        hand.say({has, 0xfffd, 0, 0});
        char got[300];
        size_t n = 0;
        ASSERT_TRUE(eventually([&] {
            hand.a.turn();
            ssize_t m = recv(hand.fd[0], got + n, sizeof got - n, MSG_DONTWAIT);
            n += m > 0 ? (size_t)m : 0;
            return hand.tx->remakes == 1 && n >= 264 - has;
        }));
        for (int i = 0; i < 10; i++)
            hand.a.turn();
        EXPECT_EQ(264 - has, n);
        EXPECT_LT(recv(hand.fd[0], got, sizeof got, MSG_DONTWAIT), 0);
        EXPECT_TRUE(hand.a.down.empty());
    }
}

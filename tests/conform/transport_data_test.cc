// Properties: messages of every size arrive once, complete, and in the order of their channel.
// Channels and contexts do not delay each other. Windows close and open again. Reservations,
// unbound contexts, peek and drained() keep their promises. A transport has the capabilities that
// it declares; one that registers memory does so while turns go on. Method: two engines in this
// process, turned by hand, over every backend.
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <thread>

#include "tests/common/fabric.h"
#include "tests/conform/transport.h"

extern "C" {
#include "telemetry/telemetry.h"
}

using testing::Values;
class TransportData : public TransportTest
{
};
INSTANTIATE_TEST_SUITE_P(All, TransportData, testing::ValuesIn(all_backends()), backend_name);

TEST_P(TransportData, EverySizeArrives)
{
    const size_t chunk = 65536;
    open(chunk);
    ASSERT_TRUE(link());
    std::vector<size_t> sizes;
    for (size_t n = 0; n <= 130; n++)
        sizes.push_back(n);
    for (size_t n : {1000, 4095, 4096, 4097, 16384, 32769, 65535, 65536})
        sizes.push_back(n);
    uint32_t seq = 0;
    uint64_t bytes = 0;
    for (size_t n : sizes) {
        ASSERT_EQ(send(ab, 1, 0, ++seq, n), FT_OK) << n << " bytes";
        ASSERT_TRUE(expect(1, 0, seq, n));
        ASSERT_TRUE(turn({a.get(), b.get()},
                         [&] { return ab->ops->drained(ab); })); // its window may come back later
        bytes += n;
    }
    EXPECT_EQ(ab->messages, seq);
    EXPECT_EQ(ba->messages, seq);
    EXPECT_EQ(ab->bytes, bytes);
    EXPECT_EQ(ba->bytes, bytes);
    ft_header h = header_of(1, 0, 1, chunk + 1);
    ft_send req = {};
    req.status = FT_AGAIN;
    std::string big(chunk + 1, 'x');
    EXPECT_EQ(ab->ops->send(ab, &h, big.data(), &req), FT_INVAL) << "longer than a chunk";
    void *slot;
    EXPECT_EQ(ab->ops->reserve(ab, &h, &slot), FT_INVAL);
}

// Else the parent's next message into the place would cost a copy of its pages, while the child
// lives.
TEST_P(TransportData, AForkedChildHasNoMessages)
{
    open(65536);
    ASSERT_TRUE(link());
    ASSERT_EQ(send(ab, 1, 0, 1, 60000), FT_OK);
    ft_msg msg;
    ASSERT_TRUE(take(ba, 1, 0, &msg));
    void *page = reinterpret_cast<void *>((reinterpret_cast<uintptr_t>(msg.data) + 8192) &
                                          ~uintptr_t{4095});
    EXPECT_EQ(msync(page, 4096, MS_ASYNC), 0) << "it is not there at all";
    pid_t child = fork();
    if (child == 0)
        _exit(msync(page, 4096, MS_ASYNC) == 0);
    int status = -1;
    EXPECT_EQ(waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0) << "it is inherited";
    ba->ops->release(ba, &msg);
}

TEST_P(TransportData, OrderIsKeptOnEveryChannel)
{
    open(8192);
    for (uint64_t ctx = 2; ctx <= 5; ctx++) {
        ASSERT_EQ(a->ops->bind(a->t, ctx), FT_OK);
        ASSERT_EQ(b->ops->bind(b->t, ctx), FT_OK);
    }
    ASSERT_TRUE(link());
    unsigned seed = testing::UnitTest::GetInstance()->random_seed();
    SCOPED_TRACE("seed " + std::to_string(seed) + ": rerun with GTEST_RANDOM_SEED");
    std::map<std::pair<uint64_t, unsigned>, std::pair<uint32_t, uint32_t>> next; // sent, received
    uint32_t received = 0;
    auto size = [](uint64_t ctx, unsigned lane, uint32_t seq) {
        return (size_t)(ctx * 977 + lane * 131 + seq * 611) % 8193;
    };
    for (int i = 0; i < 20000 && !HasFailure(); i++) {
        uint64_t ctx = 1 + rand_r(&seed) % 5;
        unsigned lane = (unsigned)rand_r(&seed) % FT_LANES_ALL;
        auto &n = next[{ctx, lane}];
        if (rand_r(&seed) % 2) {
            int rc = send(ab, ctx, lane, n.first + 1, size(ctx, lane, n.first + 1));
            if (rc == FT_OK)
                n.first++;
            else
                ASSERT_EQ(rc, FT_AGAIN);
        } else if (n.second < n.first) {
            ASSERT_TRUE(expect(ctx, lane, n.second + 1, size(ctx, lane, n.second + 1)));
            n.second++;
            received++;
        }
        ASSERT_LE((int)(n.first - n.second), FT_WINDOW_SMALL);
    }
    for (auto &n : next)
        while (n.second.second < n.second.first && !HasFailure()) {
            uint32_t seq = ++n.second.second;
            expect(n.first.first, n.first.second, seq, size(n.first.first, n.first.second, seq));
        }
    EXPECT_GT(received, 1000u);
    EXPECT_TRUE(turn({a.get(), b.get()}, [&] { return ab->ops->drained(ab); }));
}

TEST_P(TransportData, UnreadChannelsHoldNobodyUp)
{
    open(16384);
    const char *slow = getenv("FT_TEST_SLOWDOWN"); // still several times the slots of a link
    const uint64_t contexts = slow && atoi(slow) > 1 ? 5 : 12;
    for (uint64_t ctx = 2; ctx <= contexts; ctx++) {
        ASSERT_EQ(a->ops->bind(a->t, ctx), FT_OK);
        ASSERT_EQ(b->ops->bind(b->t, ctx), FT_OK);
    }
    ASSERT_TRUE(link());
    std::map<std::pair<uint64_t, unsigned>, uint32_t> sent;
    // Every channel of every context but 1 is filled to its window, in the largest size, and nobody
    // receives. One try a turn: a link without slots may want hundreds of turns.
    EXPECT_TRUE(turn(
        {a.get(), b.get()},
        [&] {
            for (int level = 1; level <= FT_WINDOW_SMALL; level++)
                for (uint64_t ctx = 2; ctx <= contexts; ctx++)
                    for (unsigned lane = 0; lane < FT_LANES_ALL; lane++) {
                        auto &n = sent[{ctx, lane}];
                        if (level > ft_window(lane) || (int)n >= level)
                            continue;
                        if (send(ab, ctx, lane, n + 1, 16384) != FT_OK)
                            return false;
                        n++;
                    }
            return true;
        },
        20000))
        << "some channels never got their window";
    for (uint32_t seq = 1; seq <= 300 && !HasFailure(); seq++) {
        ASSERT_TRUE(
            turn({a.get(), b.get()}, [&] { return send(ab, 1, seq % 8, seq, 16384) == FT_OK; }))
            << "held up at " << seq;
        ASSERT_TRUE(expect(1, seq % 8, seq, 16384));
    }
    EXPECT_FALSE(ab->ops->drained(ab));
    for (auto &n : sent)
        for (uint32_t seq = 1; seq <= n.second && !HasFailure(); seq++)
            expect(n.first.first, n.first.second, seq, 16384);
    EXPECT_TRUE(turn({a.get(), b.get()}, [&] { return ab->ops->drained(ab); }));
}

TEST_P(TransportData, ViewsThatAreOutHoldNobodyUp)
{
    open(16384);
    ASSERT_EQ(a->ops->bind(a->t, 2), FT_OK);
    ASSERT_EQ(b->ops->bind(b->t, 2), FT_OK);
    ASSERT_TRUE(link());
    std::vector<ft_msg> held;
    std::vector<std::pair<unsigned, uint32_t>> what;
    for (unsigned lane = 0; lane < FT_LANES_ALL; lane++)
        for (int i = 0; i < ft_window(lane); i++) {
            uint32_t seq = lane * 100 + (uint32_t)i;
            ASSERT_TRUE(
                turn({a.get(), b.get()}, [&] { return send(ab, 2, lane, seq, 16384) == FT_OK; }));
            ft_msg msg;
            ASSERT_TRUE(take(ba, 2, lane, &msg));
            held.push_back(msg);
            what.emplace_back(lane, seq);
        }
    for (uint32_t seq = 1; seq <= 100; seq++) {
        ASSERT_TRUE(turn({a.get(), b.get()}, [&] { return send(ab, 1, 0, seq, 16384) == FT_OK; }))
            << "held up at " << seq;
        ASSERT_TRUE(expect(1, 0, seq, 16384));
    }
    for (size_t i = 0; i < held.size(); i++) {
        EXPECT_EQ(held[i].header.seq, what[i].second);
        EXPECT_EQ(memcmp(held[i].data, payload(what[i].second, 16384).data(), 16384), 0)
            << "view " << i << " changed";
    }
    // Released in another order than received.
    for (size_t i = held.size(); i-- > 0;)
        ba->ops->release(ba, &held[i]);
    EXPECT_TRUE(turn({a.get(), b.get()}, [&] { return ab->ops->drained(ab); }));
}

TEST_P(TransportData, WindowClosesAndOpens)
{
    open();
    ASSERT_TRUE(link());
    for (unsigned lane = 0; lane < FT_LANES_ALL; lane++) {
        uint32_t seq = 0;
        for (; (int)seq < ft_window(lane); seq++)
            ASSERT_TRUE(turn({a.get(), b.get()},
                             [&] { return send(ab, 1, lane, seq + 1, 65536) == FT_OK; }))
                << "lane " << lane;
        EXPECT_EQ(send(ab, 1, lane, 99, 65536), FT_AGAIN)
            << "lane " << lane << ": the window is exceeded";
        EXPECT_FALSE(ab->ops->drained(ab));
        ASSERT_TRUE(expect(1, lane, 1, 65536));
        ASSERT_TRUE(turn({a.get(), b.get()}, [&] {
            return send(ab, 1, lane, seq + 1, 65536) == FT_OK;
        })) << "never opened";
        for (uint32_t i = 2; i <= seq + 1; i++)
            ASSERT_TRUE(expect(1, lane, i, 65536));
    }
    EXPECT_TRUE(turn({a.get(), b.get()}, [&] { return ab->ops->drained(ab); }));
}

// A channel takes at least its window of small messages, a bounded number of them, and as many
// again once they were consumed, also when long ones come between.
TEST_P(TransportData, WindowOfSmallMessagesClosesAndOpens)
{
    open();
    ASSERT_TRUE(link());
    for (unsigned lane = 0; lane < FT_LANES_ALL; lane++) {
        uint32_t seq = 0, got = 0;
        int most = 0;
        for (int round = 0; round < 40 && !HasFailure(); round++) {
            int n = 0;
            while (n <= FT_WINDOW_SMALL && send(ab, 1, lane, seq + 1, 8) == FT_OK)
                n++, seq++;
            most = round == 0 ? n : most;
            EXPECT_LE(n, FT_WINDOW_SMALL) << "lane " << lane;
            EXPECT_GE(most, ft_window(lane)) << "lane " << lane;
            while (got < seq && !HasFailure())
                ASSERT_TRUE(expect(1, lane, ++got, 8));
            if (round % 3 == 2) {
                ASSERT_TRUE(turn({a.get(), b.get()}, [&] {
                    return send(ab, 1, lane, seq + 1, 65536) == FT_OK;
                })) << "no place for a long one";
                ASSERT_TRUE(expect(1, lane, ++seq, 65536));
                got++;
            }
        }
        EXPECT_GE(seq, 20u * (unsigned)ft_window(lane)) << "lane " << lane << " did not open again";
    }
    EXPECT_TRUE(turn({a.get(), b.get()}, [&] { return ab->ops->drained(ab); }));
}

TEST_P(TransportData, ReservationsAreCommittedOrCancelled)
{
    open(8192);
    ASSERT_TRUE(link());
    uint32_t seq = 0;
    for (size_t n :
         {(size_t)0, (size_t)1, (size_t)8, (size_t)24, (size_t)25, (size_t)100, (size_t)8192}) {
        for (int lanes = 0; lanes < 3; lanes++) {
            ft_header h[4];
            void *slot[4];
            for (unsigned lane = 0; lane < 4; lane++) { // four reservations open at once
                h[lane] = header_of(1, lane, seq + 1 + lane, (uint32_t)n);
                ASSERT_TRUE(turn({a.get(), b.get()}, [&] {
                    return ab->ops->reserve(ab, &h[lane], &slot[lane]) == FT_OK;
                }));
                if (n)
                    memcpy(slot[lane], payload(seq + 1 + lane, n).data(), n);
            }
            ab->ops->cancel(ab, &h[2], slot[2]);
            for (unsigned lane : {3, 0, 1})
                ab->ops->commit(ab, &h[lane], slot[lane]);
            for (unsigned lane : {1, 3, 0})
                ASSERT_TRUE(expect(1, lane, seq + 1 + lane, n)) << n << " bytes";
            seq += 4;
        }
    }
    ft_msg msg;
    EXPECT_FALSE(take(ba, 1, 2, &msg, 20)) << "a cancelled message came";
    EXPECT_TRUE(turn({a.get(), b.get()}, [&] { return ab->ops->drained(ab); }));
    for (int i = 0; i < 100; i++) { // cancelling gives everything back
        ft_header h = header_of(1, 0, 1, 8192);
        void *slot;
        ASSERT_EQ(ab->ops->reserve(ab, &h, &slot), FT_OK) << "after " << i;
        ab->ops->cancel(ab, &h, slot);
    }
}

TEST_P(TransportData, EachSendCompletesOnce)
{
    open(8192);
    ASSERT_TRUE(link());
    ft_send fresh = {};
    fresh.status = FT_AGAIN;
    std::vector<ft_send> reqs(2000, fresh);
    std::string data[8];
    uint32_t sent = 0, received = 0;
    std::vector<uint32_t> next(8, 0);
    ASSERT_TRUE(turn(
        {a.get(), b.get()},
        [&] {
            if (sent < reqs.size()) {
                unsigned lane = sent % 8;
                ft_header h = header_of(1, lane, sent, 3000);
                static const std::string bytes(3000, 'q');
                int rc = ab->ops->send(ab, &h, bytes.data(), &reqs[sent]);
                EXPECT_TRUE(rc == FT_OK || (rc == FT_AGAIN && reqs[sent].status == FT_AGAIN)) << rc;
                if (rc == FT_OK)
                    sent++;
            }
            ft_msg msg;
            for (unsigned lane = 0; lane < 8; lane++)
                if (ba->ops->recv(ba, 1, lane, &msg) == FT_OK) {
                    ba->ops->release(ba, &msg);
                    received++;
                }
            // a transport may keep the user's memory until it knows what has arrived
            return received == reqs.size() &&
                   std::none_of(reqs.begin(), reqs.end(),
                                [](const ft_send &r) { return r.status == FT_AGAIN; });
        },
        20000))
        << sent << " sent, " << received << " received";
    for (auto &r : reqs)
        EXPECT_EQ(r.status, FT_OK);
}

TEST_P(TransportData, UnboundContextsAreDroppedAndGivenBack)
{
    open();
    ASSERT_EQ(a->ops->bind(a->t, 7), FT_OK);
    ASSERT_TRUE(link());
    const uint32_t n = 50; // more than any window
    for (uint32_t seq = 1; seq <= n; seq++)
        ASSERT_TRUE(turn({a.get(), b.get()}, [&] {
            return send(ab, 7, 0, seq, seq % 2 ? 8 : 5000) == FT_OK;
        })) << seq;
    EXPECT_TRUE(turn({a.get(), b.get()}, [&] { return b->t->dropped == n; }))
        << b->t->dropped << " dropped";
    EXPECT_TRUE(turn({a.get(), b.get()}, [&] { return ab->ops->drained(ab); }));
    ft_header h = header_of(8, 0, 1, 8);
    ft_send req = {};
    req.status = FT_AGAIN;
    EXPECT_EQ(ab->ops->send(ab, &h, "12345678", &req), FT_INVAL)
        << "the sender does not know the context either";
    ASSERT_EQ(send(ab, 1, 0, 1, 8), FT_OK);
    EXPECT_TRUE(expect(1, 0, 1, 8));
}

TEST_P(TransportData, UnbindDropsWhatHasArrivedAndKeepsViews)
{
    open();
    ASSERT_EQ(a->ops->bind(a->t, 7), FT_OK);
    ASSERT_EQ(b->ops->bind(b->t, 7), FT_OK);
    ASSERT_TRUE(link());
    for (uint32_t seq = 1; seq <= 2; seq++)
        ASSERT_EQ(send(ab, 7, 0, seq, 5000), FT_OK);
    for (uint32_t seq = 1; seq <= 3; seq++)
        ASSERT_EQ(send(ab, 7, FT_LANE_P2P, seq, 8), FT_OK);
    ft_msg view, small;
    ASSERT_TRUE(take(ba, 7, 0, &view));
    ASSERT_TRUE(take(ba, 7, FT_LANE_P2P, &small));
    ft_header h;
    ASSERT_TRUE(turn({a.get(), b.get()}, [&] { return ba->ops->peek(ba, 7, 0, &h) == FT_OK; }));
    b->ops->unbind(b->t, 7);
    ft_msg msg;
    EXPECT_EQ(ba->ops->recv(ba, 7, 0, &msg), FT_AGAIN);
    EXPECT_EQ(ba->ops->peek(ba, 7, 0, &h), FT_AGAIN);
    EXPECT_FALSE(turn(
        {a.get(), b.get()}, [&] { return ab->ops->drained(ab); }, 20))
        << "two views are still out";
    EXPECT_EQ(memcmp(view.data, payload(1, 5000).data(), 5000), 0) << "the view has changed";
    EXPECT_EQ(memcmp(small.data, payload(1, 8).data(), 8), 0);
    ba->ops->release(ba, &view);
    ba->ops->release(ba, &small);
    EXPECT_TRUE(turn({a.get(), b.get()}, [&] { return ab->ops->drained(ab); }));
    // A context with the same number starts afresh.
    ASSERT_EQ(b->ops->bind(b->t, 7), FT_OK);
    ASSERT_EQ(send(ab, 7, 0, 9, 100), FT_OK);
    EXPECT_TRUE(expect(7, 0, 9, 100));
}

TEST_P(TransportData, PeekDoesNotTake)
{
    open();
    ASSERT_TRUE(link());
    ft_header h;
    ft_msg msg;
    EXPECT_EQ(ba->ops->peek(ba, 1, 0, &h), FT_AGAIN);
    EXPECT_EQ(ba->ops->recv(ba, 1, 0, &msg), FT_AGAIN);
    ASSERT_EQ(send(ab, 1, 0, 5, 100), FT_OK);
    ASSERT_TRUE(turn({a.get(), b.get()}, [&] { return ba->ops->peek(ba, 1, 0, &h) == FT_OK; }));
    EXPECT_EQ(ba->ops->peek(ba, 1, 0, &h), FT_OK);
    EXPECT_EQ(h.seq, 5u);
    EXPECT_EQ(ba->ops->peek(ba, 1, 1, &h), FT_AGAIN);
    EXPECT_EQ(ba->ops->peek(ba, 2, 0, &h), FT_AGAIN);
    EXPECT_TRUE(expect(1, 0, 5, 100));
}

TEST_P(TransportData, BothDirectionsAtOnce)
{
    open(8192);
    ft_link *ba_send = b->connect(a->id, a->address());
    ab = a->connect(b->id, b->address());
    ASSERT_TRUE(ab && ba_send);
    ASSERT_TRUE(turn({a.get(), b.get()}, [&] {
        return ab->state == FT_LINK_UP && ba_send->state == FT_LINK_UP && a->accepted() &&
               b->accepted();
    }));
    ba = b->accepted();
    ft_link *ab_recv = a->accepted();
    EXPECT_EQ(ab_recv->peer, b->id);
    uint32_t sent[2] = {0, 0}, got[2] = {0, 0};
    ft_link *from[2] = {ab, ba_send}, *to[2] = {ba, ab_recv};
    ASSERT_TRUE(turn(
        {a.get(), b.get()},
        [&] {
            for (int d = 0; d < 2; d++) {
                if (sent[d] < 3000 && send(from[d], 1, 0, sent[d] + 1, 1 + sent[d] % 300) == FT_OK)
                    sent[d]++;
                ft_msg msg;
                if (to[d]->ops->recv(to[d], 1, 0, &msg) != FT_OK)
                    continue;
                EXPECT_EQ(msg.header.seq, ++got[d]);
                EXPECT_EQ(memcmp(msg.data, payload(got[d], msg.header.len).data(), msg.header.len),
                          0);
                to[d]->ops->release(to[d], &msg);
            }
            return (got[0] == 3000 && got[1] == 3000) || HasFailure();
        },
        20000));
    EXPECT_EQ(from[0]->ops->recv(ab, 1, 0, nullptr), FT_AGAIN) << "a sending side receives nothing";
}

/* A network tells the ends of a link, and sums that grow; shared memory and a link that is down
 * tell nothing. */
TEST_P(TransportData, ANetworkTellsItsPath)
{
    open();
    ASSERT_TRUE(link());
    ft_link_path first, last;
    EXPECT_EQ(a->ops->measure != nullptr, a->ops->caps.scope == FT_SCOPE_NETWORK);
    if (!a->ops->measure)
        return;
    ASSERT_TRUE(a->ops->measure(ab, &first));
    EXPECT_GE(first.connections, 1);
    EXPECT_NE(first.source.port, first.destination.port);
    EXPECT_EQ(first.source.family, first.destination.family);
    uint64_t begin_ms = now_ms();
    for (uint32_t seq = 1; seq <= 200; seq++) {
        ASSERT_EQ(send(ab, 1, 0, seq, 60000), FT_OK);
        ASSERT_TRUE(expect(1, 0, seq, 60000));
    }
    ASSERT_TRUE(a->ops->measure(ab, &last));
    EXPECT_EQ(memcmp(&first.source, &last.source, sizeof first.source), 0);
    EXPECT_EQ(memcmp(&first.destination, &last.destination, sizeof first.destination), 0);
    EXPECT_GE(last.network_ns, first.network_ns);
    EXPECT_GE(last.receiver_ns, first.receiver_ns);
    EXPECT_LE((last.network_ns - first.network_ns) / 1000000,
              (now_ms() - begin_ms + 50) * static_cast<uint64_t>(last.connections));
    EXPECT_GT(last.rtt_ns, 0u);
    EXPECT_LE(last.least_rtt_ns, last.rtt_ns);
    b->close();
    ASSERT_TRUE(turn({a.get()}, [&] { return a->has(ab, ft_event::FT_EVENT_DOWN); }));
    EXPECT_FALSE(a->ops->measure(ab, &last));
}

TEST_P(TransportData, IsWhatItDeclares)
{
    const ft_transport_ops *ops = GetParam().ops;
    const ft_transport_caps &caps = ops->caps;
    EXPECT_LE(strlen(ops->name), (size_t)FT_TRANSPORT_NAME_BYTES);
    EXPECT_EQ(caps.scope == FT_SCOPE_PROCESS, !GetParam().processes);
    if (caps.scope != FT_SCOPE_NETWORK) {
        EXPECT_FALSE(caps.rdma) << "only a network has such cards";
        EXPECT_EQ(caps.costs, nullptr) << "inside a host plans count with one set of costs";
        EXPECT_EQ(ops->nccl_name, nullptr);
    }
    EXPECT_TRUE(!caps.pulls || ops->fetch);
    EXPECT_TRUE(!caps.registers || (ops->reg && ops->unreg));
}

// Every backend that registers memory, and one that tests have.
class TransportMemory : public TransportTest
{
};
static std::vector<Backend> registering()
{
    std::vector<Backend> all, some = all_backends();
    for (const Backend &b : some)
        if (b.ops->caps.registers)
            all.push_back(b);
    Backend fabric = {"fabric", &fabric::ops, true, "", false};
    if (*ft_param_str(FT_PARAM_FAULT) && ft_transport_faulty(fabric.ops, &fabric.ops) != FT_OK)
        abort();
    all.push_back(fabric);
    return all;
}
INSTANTIATE_TEST_SUITE_P(All, TransportMemory, testing::ValuesIn(registering()), backend_name);

TEST_P(TransportMemory, RangesOverlapAndComeAgain)
{
    open();
    ASSERT_TRUE(link());
    std::vector<char> memory(1 << 20);
    void *registered[4] = {};
    size_t from[4] = {0, 4096, 0, 1};
    for (int i = 0; i < 4; i++)
        ASSERT_EQ(a->ops->reg(a->t, &memory[from[i]], memory.size() - from[i], &registered[i]),
                  FT_OK)
            << ft_fail_text();
    for (int i : {2, 0, 3, 1}) {
        std::string data = payload((uint32_t)i + 1, 60000);
        memcpy(&memory[8192], data.data(), data.size());
        ft_header h = header_of(1, 0, (uint32_t)i + 1, 60000);
        ft_send req = {};
        ASSERT_EQ(ab->ops->send(ab, &h, &memory[8192], &req), FT_OK);
        ASSERT_TRUE(expect(1, 0, (uint32_t)i + 1, 60000));
        ASSERT_TRUE(turn({a.get(), b.get()}, [&] { return req.status != FT_AGAIN; }));
        a->ops->unreg(a->t, registered[i]);
        memset(&memory[8192], 0, data.size()); // it is the user's alone again
    }
    ASSERT_EQ(send(ab, 1, 0, 9, 60000), FT_OK) << "memory that is not registered any more";
    ASSERT_TRUE(expect(1, 0, 9, 60000));
}

TEST_P(TransportMemory, RegistersBesideTurns)
{
    open();
    ASSERT_TRUE(link());
    std::atomic<bool> over{false};
    std::vector<char> memory(1 << 20);
    int times = 0, failures = 0;
    std::thread user([&] {
        for (; times < 200 || !over; times++) {
            void *registered = nullptr;
            if (a->ops->reg(a->t, &memory[times % 4096], 500000, &registered) == FT_OK)
                a->ops->unreg(a->t, registered);
            else
                failures++;
        }
    });
    for (uint32_t seq = 1; seq <= 300; seq++) {
        EXPECT_EQ(send(ab, 1, 0, seq, 30000), FT_OK);
        EXPECT_TRUE(expect(1, 0, seq, 30000));
    }
    over = true;
    user.join();
    EXPECT_EQ(failures, 0) << "of " << times;
}

// Property: no wake-up is lost. A side that arms with success and sleeps on the descriptor wakes
// when a message, a place in a window, an event or the end of the other side comes. Method: two
// threads, each with its own engine, which sleeps whenever its poll finds nothing. A sleep of more
// than two seconds is a lost wake-up. Over every backend.
#include "tests/conform/transport.h"

#include <atomic>
#include <poll.h>
#include <thread>

class TransportSleep : public TransportTest
{
  protected:
    void ping_pong(bool hushed);
};
INSTANTIATE_TEST_SUITE_P(All, TransportSleep, testing::ValuesIn(all_backends()), backend_name);

namespace
{

const int lost_ms = 2000;

// Polls; when there is nothing, arms and sleeps. False: a wake-up was lost.
bool turn_or_sleep(Engine &e, uint64_t *sleeps)
{
    if (e.poll()) {
        e.idle_ms = 0;
        return true;
    }
    bool ok = true;
    if (e.ops->arm(e.t, true)) {
        pollfd p = {e.ops->fd(e.t), POLLIN, 0};
        // As engines do, which sleep as long as look_ns says if nothing else wakes them.
        const int look_ms = (int)std::max<uint64_t>(e.t->look_ns / 1000000, 1);
        ok = ::poll(&p, 1, e.looks ? look_ms : lost_ms) != 0;
        if (e.looks)
            ok = (e.idle_ms = ok ? 0 : e.idle_ms + look_ms) < lost_ms;
        ++*sleeps;
    }
    e.ops->arm(e.t, false);
    return ok;
}

struct Outcome {
    bool lost = false, broken = false;
    uint64_t sleeps = 0;
    uint32_t done = 0;
};

int iterations()
{
    return getenv("FT_TEST_SLOWDOWN") ? 5000 : 20000;
}

} // namespace

// One side sends as fast as windows allow, the other receives; both sleep at every chance.
TEST_P(TransportSleep, StreamLosesNoWakeup)
{
    open(4096);
    ASSERT_TRUE(link());
    if (a->ops->fd(a->t) < 0)
        GTEST_SKIP() << "nothing to sleep on";
    const uint32_t n = (uint32_t)iterations();
    Outcome tx, rx;
    std::thread sender([&] {
        std::string data(3000, 's');
        while (tx.done < n && !tx.lost) {
            ft_header h = header_of(1, 0, tx.done + 1, tx.done % 3 ? 8 : 3000);
            ft_send req = {};
            req.status = FT_AGAIN;
            int rc = ab->ops->send(ab, &h, data.data(), &req);
            if (rc == FT_OK) {
                tx.done++;
                while (req.status == FT_AGAIN && !tx.lost)
                    tx.lost = !turn_or_sleep(*a, &tx.sleeps);
                continue;
            }
            if (rc != FT_AGAIN) {
                tx.broken = true;
                return;
            }
            tx.lost = !turn_or_sleep(*a, &tx.sleeps);
        }
        while (!tx.lost && !ab->ops->drained(ab))
            tx.lost = !turn_or_sleep(*a, &tx.sleeps);
    });
    std::thread receiver([&] {
        while (rx.done < n && !rx.lost) {
            ft_msg msg;
            if (ba->ops->recv(ba, 1, 0, &msg) == FT_OK) {
                if (msg.header.seq != rx.done + 1)
                    rx.broken = true;
                ba->ops->release(ba, &msg);
                rx.done++;
            } else {
                rx.lost = !turn_or_sleep(*b, &rx.sleeps);
            }
        }
        // The sender may need this side to hear its last words (a transport may batch what it gives
        // back).
        uint64_t end = now_ms() + 20;
        while (now_ms() < end)
            b->poll();
    });
    sender.join();
    receiver.join();
    EXPECT_FALSE(tx.lost) << "the sender slept for ever after " << tx.done;
    EXPECT_FALSE(rx.lost) << "the receiver slept for ever after " << rx.done;
    EXPECT_FALSE(tx.broken || rx.broken);
    EXPECT_EQ(rx.done, n);
    printf("  %u messages, sender slept %llu times, receiver %llu times\n", n,
           (unsigned long long)tx.sleeps, (unsigned long long)rx.sleeps);
}

// One message at a time, back and forth: every message finds the other side going to sleep.
// `hushed`: what is sent and released wakes it only by what the engine says afterwards.
void TransportSleep::ping_pong(bool hushed)
{
    auto hush = [&](Engine &e) { e.t->quiet = hushed && e.ops->wake; };
    auto wake = [&](Engine &e) {
        if (e.t->quiet)
            e.t->quiet = false, e.ops->wake(e.t);
    };
    open(4096);
    ASSERT_TRUE(link());
    if (a->ops->fd(a->t) < 0)
        GTEST_SKIP() << "nothing to sleep on";
    ft_link *back = b->connect(a->id, a->address());
    ASSERT_TRUE(
        turn({a.get(), b.get()}, [&] { return back->state == FT_LINK_UP && a->accepted(); }));
    ft_link *from_b = a->accepted();
    const uint32_t n = (uint32_t)iterations();
    Outcome out[2];
    auto side = [&](Engine &e, ft_link *to, ft_link *from, bool first, Outcome &o) {
        for (uint32_t i = 0; i < n && !o.lost && !o.broken; i++) {
            for (int half = 0; half < 2 && !o.lost; half++) {
                if ((half == 0) == first) {
                    ft_header h = header_of(1, 0, i, 8);
                    ft_send req = {};
                    req.status = FT_AGAIN;
                    int rc;
                    hush(e);
                    rc = to->ops->send(to, &h, "12345678", &req);
                    wake(e);
                    for (; rc == FT_AGAIN && !o.lost; rc = to->ops->send(to, &h, "12345678", &req))
                        o.lost = !turn_or_sleep(e, &o.sleeps);
                    if (rc != FT_OK)
                        o.broken = true;
                    while (req.status == FT_AGAIN && !o.lost)
                        o.lost = !turn_or_sleep(e, &o.sleeps);
                } else {
                    ft_msg msg;
                    auto take = [&] {
                        hush(e);
                        int rc = from->ops->recv(from, 1, 0, &msg);
                        wake(e);
                        return rc == FT_OK;
                    };
                    while (!take() && !o.lost)
                        o.lost = !turn_or_sleep(e, &o.sleeps);
                    if (o.lost)
                        break;
                    if (msg.header.seq != i || memcmp(msg.data, "12345678", 8) != 0)
                        o.broken = true;
                    hush(e);
                    from->ops->release(from, &msg);
                    wake(e);
                }
            }
            o.done++;
        }
        uint64_t end = now_ms() + 20;
        while (now_ms() < end)
            e.poll();
    };
    std::thread other([&] { side(*b, back, ba, false, out[1]); });
    side(*a, ab, from_b, true, out[0]);
    other.join();
    for (auto &o : out) {
        EXPECT_FALSE(o.lost) << "slept for ever after " << o.done;
        EXPECT_FALSE(o.broken);
        EXPECT_EQ(o.done, n);
    }
    printf("  %u rounds, slept %llu and %llu times\n", n, (unsigned long long)out[0].sleeps,
           (unsigned long long)out[1].sleeps);
}

TEST_P(TransportSleep, PingPongLosesNoWakeup)
{
    ping_pong(false);
}

TEST_P(TransportSleep, PingPongThatWakesLaterLosesNone)
{
    ping_pong(true);
}

// Connecting, accepting and the other side's end wake a sleeper too.
TEST_P(TransportSleep, EventsWake)
{
    open(4096);
    if (a->ops->fd(a->t) < 0)
        GTEST_SKIP() << "nothing to sleep on";
    Outcome oa, ob;
    std::string to = b->address();
    std::thread acceptor([&] {
        int left = 200;
        while (left && !ob.lost) {
            ob.lost = !turn_or_sleep(*b, &ob.sleeps);
            for (ft_link *l : std::vector<ft_link *>(b->accepts)) {
                if (l->state != FT_LINK_DOWN)
                    continue;
                b->disconnect(l);
                left--;
            }
        }
    });
    for (int i = 0; i < 200 && !oa.lost; i++) {
        ft_link *l = a->connect(0xb, to);
        while (l->state == FT_LINK_CONNECTING && !oa.lost)
            oa.lost = !turn_or_sleep(*a, &oa.sleeps);
        if (l->state != FT_LINK_UP)
            oa.broken = true;
        a->disconnect(l);
    }
    acceptor.join();
    EXPECT_FALSE(oa.lost);
    EXPECT_FALSE(ob.lost);
    EXPECT_FALSE(oa.broken);
}

// A receiver that sleeps with a full pool of unread messages is woken to make room for another
// channel.
TEST_P(TransportSleep, StarvedSenderWakesASleepingReceiver)
{
    open(65536);
    ASSERT_EQ(a->ops->bind(a->t, 2), FT_OK);
    ASSERT_EQ(b->ops->bind(b->t, 2), FT_OK);
    ASSERT_TRUE(link());
    if (a->ops->fd(a->t) < 0)
        GTEST_SKIP() << "nothing to sleep on";
    // Its sender waits for acknowledgements, of which the kernel does not tell.
    a->looks = a->looks || std::string(a->ops->name) == "tcp";
    Outcome tx, rx;
    std::atomic<bool> done(false);
    std::thread receiver([&] {
        while (rx.done < 200 && !rx.lost) { // receives context 2 only
            ft_msg msg;
            if (ba->ops->recv(ba, 2, 0, &msg) == FT_OK) {
                ba->ops->release(ba, &msg);
                rx.done++;
            } else {
                rx.lost = !turn_or_sleep(*b, &rx.sleeps);
            }
        }
        while (!done)
            b->poll();
    });
    std::string data(65536, 'u');
    auto push = [&](uint64_t ctx, unsigned lane) {
        ft_header h = header_of(ctx, lane, 1, 65536);
        ft_send req = {};
        req.status = FT_AGAIN;
        int rc;
        while ((rc = ab->ops->send(ab, &h, data.data(), &req)) == FT_AGAIN && !tx.lost)
            tx.lost = !turn_or_sleep(*a, &tx.sleeps);
        if (rc != FT_OK)
            tx.broken = true;
        while (req.status == FT_AGAIN && !tx.lost)
            tx.lost = !turn_or_sleep(*a, &tx.sleeps);
    };
    for (unsigned lane = 0; lane < FT_LANES_ALL; lane++)
        for (int i = 0; i < ft_window(lane); i++)
            push(1, lane);
    for (int i = 0; i < 200; i++)
        push(2, 0);
    done = true;
    receiver.join();
    EXPECT_FALSE(tx.lost);
    EXPECT_FALSE(rx.lost);
    EXPECT_FALSE(tx.broken);
    EXPECT_EQ(rx.done, 200u);
}

// Properties of post, look and took: short messages arrive once, whole and in the order of their
// channel, mixed at random with messages that are sent and received in the ordinary way. A look for
// another message finds nothing and takes nothing. Windows close and open again. Whoever sleeps is
// woken by `wake`. Method: two engines in this process, turned by hand, over every backend that can
// post.
#include <poll.h>
#include <stdlib.h>

#include <algorithm>
#include <thread>

#include "tests/conform/transport.h"

static std::vector<Backend> posting_backends()
{
    std::vector<Backend> all = all_backends();
    all.erase(std::remove_if(all.begin(), all.end(), [](auto &b) { return !b.ops->post; }),
              all.end());
    return all;
}

class TransportShort : public TransportTest
{
  protected:
    int post(uint64_t ctx, unsigned lane, uint32_t seq, size_t len_bytes)
    {
        ft_header h = header_of(ctx, lane, seq, (uint32_t)len_bytes);
        return ab->ops->post(ab, &h, payload(seq, len_bytes).data());
    }
    // Takes the message, and says whether it is whole. False: it is not here.
    bool take_short(uint64_t ctx, unsigned lane, uint32_t seq, size_t len_bytes)
    {
        ft_header want = header_of(ctx, lane, seq, (uint32_t)len_bytes);
        const void *at = ba->ops->look(ba, &want);
        if (!at)
            return false;
        EXPECT_EQ(memcmp(payload(seq, len_bytes).data(), at, len_bytes), 0) << "message " << seq;
        ba->ops->took(ba, &want);
        return true;
    }
    bool await_short(uint64_t ctx, unsigned lane, uint32_t seq, size_t len_bytes)
    {
        return turn({a.get(), b.get()}, [&] { return take_short(ctx, lane, seq, len_bytes); });
    }
};
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(TransportShort); // with FTCCL_FAULT none can post
INSTANTIATE_TEST_SUITE_P(Posting, TransportShort, testing::ValuesIn(posting_backends()),
                         backend_name);

static const size_t sizes[] = {1, 8, 24, 25, 64, 65, 511, 512, 513, 4096};

TEST_P(TransportShort, EverySizeArrives)
{
    open();
    ASSERT_TRUE(link());
    uint32_t seq = 0;
    for (int round = 0; round < 300; round++)
        for (size_t n : sizes) {
            ASSERT_EQ(post(1, 0, ++seq, n), FT_OK) << n << " bytes";
            ASSERT_TRUE(await_short(1, 0, seq, n)) << n << " bytes";
        }
    EXPECT_EQ(ab->messages, seq);
    EXPECT_EQ(ba->messages, seq);
    EXPECT_EQ(ab->bytes, ba->bytes);
    EXPECT_TRUE(turn({a.get(), b.get()}, [&] { return ab->ops->drained(ab); }));
}

TEST_P(TransportShort, ALookForAnotherMessageTakesNothing)
{
    open();
    ASSERT_TRUE(link());
    for (bool queued : {false, true}) {
        ASSERT_EQ(post(1, 0, 7, 64), FT_OK);
        if (queued)
            b->poll();
        for (int field = 0; field < 5; field++) {
            ft_header want = header_of(1, 0, 7, 64);
            want.ctx += field == 0;
            want.sig += field == 1;
            want.seq += field == 2;
            want.len += field == 3;
            want.lane = (uint16_t)(field == 4);
            EXPECT_EQ(ba->ops->look(ba, &want), nullptr) << "field " << field;
        }
        EXPECT_TRUE(await_short(1, 0, 7, 64));
        EXPECT_FALSE(take_short(1, 0, 7, 64)) << "it came twice";
    }
}

// Posted and sent, looked for and received, with and without turns in between.
TEST_P(TransportShort, MixesWithOrdinaryMessages)
{
    open(8192);
    ASSERT_EQ(a->ops->bind(a->t, 2), FT_OK);
    ASSERT_EQ(b->ops->bind(b->t, 2), FT_OK);
    ASSERT_TRUE(link());
    unsigned seed = testing::UnitTest::GetInstance()->random_seed();
    SCOPED_TRACE("seed " + std::to_string(seed) + ": rerun with GTEST_RANDOM_SEED");
    std::map<std::pair<uint64_t, unsigned>, std::pair<uint32_t, uint32_t>> next; // sent, received
    auto size = [](uint32_t seq) { return sizes[seq * 7 % (sizeof sizes / sizeof sizes[0])]; };
    unsigned looked = 0, refused = 0;
    for (int i = 0; i < 40000 && !HasFailure(); i++) {
        uint64_t ctx = 1 + rand_r(&seed) % 2;
        unsigned lane = (unsigned)rand_r(&seed) % 2;
        auto &n = next[{ctx, lane}];
        int what = rand_r(&seed) % 8;
        if (what < 4) {
            uint32_t seq = n.first + 1;
            int rc = what ? post(ctx, lane, seq, size(seq)) : send(ab, ctx, lane, seq, size(seq));
            n.first += rc == FT_OK;
            refused += rc == FT_AGAIN;
            ASSERT_TRUE(rc == FT_OK || rc == FT_AGAIN) << rc;
        } else if (what < 7 && n.second < n.first) {
            uint32_t seq = n.second + 1;
            if (what < 6 && take_short(ctx, lane, seq, size(seq)))
                looked++, n.second++;
            else if (expect(ctx, lane, seq, size(seq)))
                n.second++;
        } else if (what == 7)
            (rand_r(&seed) % 2 ? a : b)->poll();
    }
    for (auto &n : next)
        while (n.second.second < n.second.first && !HasFailure()) {
            uint32_t seq = ++n.second.second;
            expect(n.first.first, n.first.second, seq, size(seq));
        }
    EXPECT_GT(looked, 1000u);
    EXPECT_GT(refused, 0u) << "no window was ever full";
    EXPECT_TRUE(turn({a.get(), b.get()}, [&] { return ab->ops->drained(ab); }));
}

TEST_P(TransportShort, AFullWindowOpensAgain)
{
    open();
    ASSERT_TRUE(link());
    for (size_t n : sizes) {
        uint32_t sent = 0, got = 0;
        for (int round = 0; round < 3; round++) {
            while (post(1, 0, sent + 1, n) == FT_OK)
                sent++;
            ASSERT_GE(sent - got, (uint32_t)FT_WINDOW_FIRST) << n << " bytes";
            for (; got < sent; got++)
                ASSERT_TRUE(await_short(1, 0, got + 1, n)) << n << " bytes, message " << got + 1;
            ASSERT_TRUE(turn({a.get(), b.get()}, [&] { return ab->ops->drained(ab); }));
        }
    }
}

// Whatever passes on other channels meanwhile.
TEST_P(TransportShort, AMessageThatWaitsStaysWhole)
{
    open();
    ASSERT_TRUE(link());
    for (size_t n : sizes) {
        ASSERT_EQ(post(1, 1, 1, n), FT_OK);
        for (uint32_t seq = 2; seq < 200; seq++) {
            ASSERT_EQ(post(1, 0, seq, n), FT_OK);
            ASSERT_TRUE(await_short(1, 0, seq, n));
        }
        EXPECT_TRUE(await_short(1, 1, 1, n)) << n << " bytes";
    }
}

TEST_P(TransportShort, WakesWhoSleeps)
{
    open();
    ASSERT_TRUE(link());
    int fd = b->ops->fd(b->t);
    if (fd < 0)
        return;               // the engine of this process is woken in another way
    b->ops->arm(b->t, false); // forgets that the link woke it
    for (uint32_t seq = 1; seq <= 100; seq++) {
        const size_t n = sizes[seq % (sizeof sizes / sizeof *sizes)];
        while (!b->ops->arm(b->t, true))
            b->poll();
        ASSERT_EQ(post(1, 0, seq, n), FT_OK);
        struct pollfd look = {fd, POLLIN, 0};
        if (a->ops->wake) { // otherwise the kernel wakes
            EXPECT_EQ(poll(&look, 1, 0), 0) << "a post of " << n << " bytes woke somebody";
            a->ops->wake(a->t);
        }
        ASSERT_EQ(poll(&look, 1, 10000), 1) << "message " << seq << " woke nobody";
        b->ops->arm(b->t, false);
        ASSERT_TRUE(await_short(1, 0, seq, n));
    }
}

TEST_P(TransportShort, ALinkThatIsDownTakesNothing)
{
    open();
    ASSERT_TRUE(link());
    ASSERT_EQ(post(1, 0, 1, 8), FT_OK);
    a->disconnect(ab);
    ASSERT_TRUE(turn({b.get()}, [&] { return b->has(ba, ft_event::FT_EVENT_DOWN); }));
    EXPECT_FALSE(take_short(1, 0, 1, 8));
    ft_msg msg;
    EXPECT_EQ(ba->ops->recv(ba, 1, 0, &msg), FT_OK) << "what came before is still there";
    ba->ops->release(ba, &msg);
}

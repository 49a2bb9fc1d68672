// Properties of sends that may last, from memory that the receiver can read in place. The request
// is pending until the receiver has used the message. Whatever ends the loan completes the request.
// A receiver can see that the sender has withdrawn the message. Reading it never crashes.
// Transports that copy complete at once; the same calls are tested with them. Method: two engines
// in this process, turned by hand, over every backend.
#include "tests/conform/transport.h"

class TransportLoan : public TransportTest
{
  protected:
    static constexpr size_t kBytes = 65536;

    void SetUp() override
    {
        TransportTest::SetUp();
        if (ft_arena_alloc(8 * kBytes, &memory) != FT_OK)
            GTEST_SKIP() << "no memory here that others could read";
    }
    void TearDown() override
    {
        if (memory)
            ft_arena_free(memory);
        TransportTest::TearDown();
    }
    char *at(size_t i) const
    {
        return (char *)memory + i * kBytes;
    }
    bool copies() const
    {
        return GetParam().ops->caps.scope == FT_SCOPE_NETWORK;
    }
    // Message seq from the memory's i-th part.
    int lend(unsigned lane, uint32_t seq, size_t i, ft_send *req)
    {
        memcpy(at(i), payload(seq, kBytes).data(), kBytes);
        ft_header h = header_of(1, lane, seq, kBytes);
        *req = {};
        req->status = FT_AGAIN;
        req->lasts = true;
        return ab->ops->send(ab, &h, at(i), req);
    }
    void some_turns()
    {
        for (int i = 0; i < 100; i++)
            a->poll(), b->poll();
    }

    void *memory = nullptr;
};
INSTANTIATE_TEST_SUITE_P(All, TransportLoan, testing::ValuesIn(all_backends()), backend_name);

TEST_P(TransportLoan, PendingUntilConsumed)
{
    open();
    ASSERT_TRUE(link());
    for (uint32_t seq = 1; seq <= 100; seq++) { // more often than there are numbers of loans
        ft_send req;
        ft_msg msg;
        ASSERT_EQ(lend(0, seq, 1, &req), FT_OK);
        ASSERT_TRUE(take(ba, 1, 0, &msg));
        EXPECT_EQ(memcmp(msg.data, payload(seq, kBytes).data(), kBytes), 0);
        EXPECT_TRUE(ft_msg_intact(&msg));
        some_turns();
        EXPECT_EQ(req.status, copies() ? FT_OK : FT_AGAIN);
        if (!copies()) {
            at(1)[kBytes - 1] ^= 1; // no copy lies between
            EXPECT_EQ(((const char *)msg.data)[kBytes - 1], at(1)[kBytes - 1]);
        }
        ba->ops->release(ba, &msg);
        ASSERT_TRUE(turn({a.get(), b.get()}, [&] { return req.status != FT_AGAIN; }));
        EXPECT_EQ(req.status, FT_OK);
    }
}

TEST_P(TransportLoan, OtherMemoryIsCopied)
{
    open();
    ASSERT_TRUE(link());
    std::string own = payload(1, kBytes);
    ft_header h = header_of(1, 0, 1, kBytes), small = header_of(1, 0, 2, 4096);
    ft_send req = {}, short_one = {};
    req.status = short_one.status = FT_AGAIN;
    req.lasts = short_one.lasts = true;
    ASSERT_EQ(ab->ops->send(ab, &h, own.data(), &req), FT_OK);
    memcpy(at(0), payload(2, 4096).data(), 4096);
    ASSERT_EQ(ab->ops->send(ab, &small, at(0), &short_one), FT_OK);
    ASSERT_TRUE(
        turn({a.get(), b.get()}, [&] { return req.status == FT_OK && short_one.status == FT_OK; }));
    memset(&own[0], 0, kBytes);
    memset(at(0), 0, kBytes);
    EXPECT_TRUE(expect(1, 0, 1, kBytes));
    EXPECT_TRUE(expect(1, 0, 2, 4096));
}

TEST_P(TransportLoan, WithdrawnIsKnown)
{
    open();
    ASSERT_TRUE(link());
    if (copies())
        GTEST_SKIP() << GetParam().name << " copies";
    for (uint32_t seq = 1; seq <= 80; seq++) {
        ft_send taken, waiting;
        ft_msg msg;
        ASSERT_EQ(lend(0, 2 * seq, 0, &taken), FT_OK);
        ASSERT_EQ(lend(0, 2 * seq + 1, 1, &waiting), FT_OK);
        ASSERT_TRUE(take(ba, 1, 0, &msg));
        EXPECT_TRUE(ft_msg_intact(&msg));
        ft_send_withdraw(&taken);
        EXPECT_EQ(taken.status, FT_LINK);
        EXPECT_FALSE(ft_msg_intact(&msg));
        ft_send_withdraw(&taken); // once is enough
        ft_send_withdraw(&waiting);
        EXPECT_EQ(waiting.status, FT_LINK);
        taken.status = waiting.status = 77; // whoever owned them has gone on
        ba->ops->release(ba, &msg);
        ASSERT_TRUE(take(ba, 1, 0, &msg));
        EXPECT_FALSE(ft_msg_intact(&msg));
        ba->ops->release(ba, &msg);
        ASSERT_EQ(lend(1, seq, 2, &taken), FT_OK); // the link goes on
        EXPECT_TRUE(expect(1, 1, seq, kBytes));
        ASSERT_TRUE(turn({a.get(), b.get()}, [&] { return taken.status == FT_OK; }));
        EXPECT_EQ(waiting.status, 77);
    }
}

TEST_P(TransportLoan, MoreThanThereAreLoans)
{
    open();
    ASSERT_TRUE(link());
    std::vector<ft_send> reqs(64);
    int sent[FT_LANES_ALL] = {};
    size_t n = 0, pending = 0;
    for (unsigned lane = 0; lane < FT_LANES_ALL; lane++)
        for (int k = 0; k < ft_window(lane) && n < 40; k++) {
            int rc = lend(lane, (uint32_t)(lane * 100 + k), 0, &reqs[n]);
            if (rc == FT_AGAIN)
                break; // no slots either
            ASSERT_EQ(rc, FT_OK);
            n++;
            sent[lane]++;
        }
    some_turns();
    for (size_t i = 0; i < n; i++)
        pending += reqs[i].status == FT_AGAIN;
    EXPECT_EQ(pending, copies() ? 0u : 32u) << "of " << n;
    for (unsigned lane = 0; lane < FT_LANES_ALL; lane++)
        for (int k = 0; k < sent[lane]; k++) {
            ft_msg msg;
            ASSERT_TRUE(take(ba, 1, lane, &msg));
            EXPECT_EQ(msg.header.seq, lane * 100 + (unsigned)k);
            ba->ops->release(ba, &msg);
        }
    EXPECT_TRUE(turn({a.get(), b.get()}, [&] {
        for (size_t i = 0; i < n; i++)
            if (reqs[i].status != FT_OK)
                return false;
        return true;
    }));
}

TEST_P(TransportLoan, CutWhilePending)
{
    open();
    ASSERT_TRUE(link());
    ft_send taken, waiting;
    ft_msg view, late;
    ASSERT_EQ(lend(0, 1, 0, &taken), FT_OK);
    ASSERT_EQ(lend(0, 2, 1, &waiting), FT_OK);
    ASSERT_TRUE(take(ba, 1, 0, &view));
    some_turns();
    ab->cut = true;
    a->disconnect(ab);
    EXPECT_EQ(taken.status, copies() ? FT_OK : FT_LINK);
    EXPECT_EQ(waiting.status, copies() ? FT_OK : FT_LINK);
    memset(memory, 0x55, 8 * kBytes);
    EXPECT_EQ(ft_msg_intact(&view), copies());
    ft_arena_free(
        memory); // and the memory goes; who still reads there finds something, whatever it is
    memory = nullptr;
    unsigned sum = 0;
    for (size_t i = 0; i < kBytes; i++)
        sum += ((const unsigned char *)view.data)[i];
    EXPECT_TRUE(turn({a.get(), b.get()}, [&] { return ba->state == FT_LINK_DOWN; }));
    ba->ops->release(ba, &view);
    if (ba->ops->recv(ba, 1, 0, &late) == FT_OK) {
        EXPECT_EQ(ft_msg_intact(&late), copies());
        for (size_t i = 0; i < kBytes; i++)
            sum += ((const unsigned char *)late.data)[i];
        ba->ops->release(ba, &late);
    }
    EXPECT_TRUE(copies() || sum == 0) << "freed memory has no pages";
}

TEST_P(TransportLoan, ReceiverLeavesWhilePending)
{
    open();
    ASSERT_TRUE(link());
    ft_send req[2];
    ft_msg view;
    ASSERT_EQ(lend(0, 1, 0, &req[0]), FT_OK);
    ASSERT_EQ(lend(0, 2, 1, &req[1]), FT_OK);
    ASSERT_TRUE(take(ba, 1, 0, &view));
    b->disconnect(ba);
    EXPECT_TRUE(turn({a.get(), b.get()}, [&] { return ab->state == FT_LINK_DOWN; }));
    for (auto &r : req)
        EXPECT_NE(r.status, FT_AGAIN);
}

TEST_P(TransportLoan, BothLeaveWhilePending)
{
    open();
    ASSERT_TRUE(link());
    ft_send req[2];
    ASSERT_EQ(lend(0, 1, 0, &req[0]), FT_OK);
    ASSERT_EQ(lend(0, 2, 1, &req[1]), FT_OK);
    some_turns();
    b->disconnect(ba);
    a->disconnect(ab); // before it has heard of that
    for (auto &r : req)
        EXPECT_EQ(r.status, copies() ? FT_OK : FT_LINK);
}

TEST_P(TransportLoan, UnboundContextGivesBack)
{
    open();
    ASSERT_TRUE(link());
    ft_send waiting, dropped;
    ASSERT_EQ(lend(0, 1, 0, &waiting), FT_OK);
    some_turns();
    b->ops->unbind(b->t, 1);
    ASSERT_EQ(lend(0, 2, 1, &dropped), FT_OK);
    EXPECT_TRUE(turn({a.get(), b.get()},
                     [&] { return waiting.status != FT_AGAIN && dropped.status != FT_AGAIN; }));
}

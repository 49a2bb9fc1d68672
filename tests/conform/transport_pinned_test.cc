// Properties of slots in pinned memory (base/pinned.c) between two engines that have some. The
// receiver reads in place, through its own mapping, what the sender wrote into a reserved slot. No
// byte is lost if there is too little pinned memory, or if messages are longer than such slots or
// move out of them. After the link the memory is used again, and what a receiver still holds of it
// then is void. Method: two engines in this process, turned by hand, over every backend. There is
// no device: pinned memory is only memory here.
#include "tests/conform/transport.h"

class TransportPinned : public TransportTest
{
  protected:
    static constexpr size_t kChunk = 65536, kFirst = 4 * kChunk, kAll = 32 * kChunk;

    void SetUp() override
    {
        TransportTest::SetUp();
        if (IsSkipped())
            return;
        ASSERT_EQ(ft_pinned_make(kAll, &mine), FT_OK);
        ASSERT_EQ(ft_pinned_make(kAll, &theirs), FT_OK);
        a = std::make_unique<Engine>(GetParam(), 0xa, kChunk, 1, mine, kFirst);
        b = std::make_unique<Engine>(GetParam(), 0xb, kChunk, 1, theirs, kFirst);
        ASSERT_EQ(a->ops->bind(a->t, 1), FT_OK);
        ASSERT_EQ(b->ops->bind(b->t, 1), FT_OK);
        ASSERT_TRUE(link());
    }
    void TearDown() override
    {
        a.reset();
        b.reset();
        for (ft_pinned *own : {mine, theirs}) {
            if (!own)
                continue;
            while (ft_pinned *met = ft_pinned_take_unkept(own, false))
                ft_pinned_close(met);
            EXPECT_EQ(own->met, nullptr) << "somebody still keeps it";
            void *all = ft_pinned_alloc(own, kAll);
            EXPECT_NE(all, nullptr) << "some of it was not given back";
            ft_pinned_free(own, all);
            ft_pinned_close(own);
        }
        TransportTest::TearDown();
    }
    bool shares() const
    {
        return GetParam().ops->caps.scope != FT_SCOPE_NETWORK;
    }
    static bool inside(const ft_pinned *own, const void *p)
    {
        return own && (uintptr_t)p - (uintptr_t)own->at < own->len_bytes;
    }
    // Message seq, written into a slot.
    int put(unsigned lane, uint32_t seq, size_t len, void **slot)
    {
        ft_header h = header_of(1, lane, seq, (uint32_t)len);
        int rc = ab->ops->reserve(ab, &h, slot);
        if (rc != FT_OK)
            return rc;
        memcpy(*slot, payload(seq, len).data(), len);
        ab->ops->commit(ab, &h, *slot);
        return rc;
    }
    bool is_message(const ft_msg &msg, uint32_t seq, size_t len)
    {
        return msg.header.seq == seq && msg.header.len == len &&
               memcmp(msg.data, payload(seq, len).data(), len) == 0 && ft_msg_intact(&msg);
    }

    ft_pinned *mine = nullptr, *theirs = nullptr;
};
INSTANTIATE_TEST_SUITE_P(All, TransportPinned, testing::ValuesIn(all_backends()), backend_name);

TEST_P(TransportPinned, AMessageIsReadWhereItWasWritten)
{
    for (uint32_t seq = 1; seq <= 100; seq++) {
        void *slot;
        ft_msg msg;
        ASSERT_TRUE(turn({a.get(), b.get()}, [&] { return put(0, seq, kChunk, &slot) == FT_OK; }));
        EXPECT_TRUE(inside(mine, slot));
        ASSERT_TRUE(take(ba, 1, 0, &msg));
        EXPECT_TRUE(is_message(msg, seq, kChunk));
        if (shares()) {
            EXPECT_TRUE(inside(theirs->met, msg.data));
            ((char *)slot)[7] ^= 1; // no copy lies between
            EXPECT_EQ(((const char *)msg.data)[7], ((char *)slot)[7]);
        }
        ba->ops->release(ba, &msg);
    }
}

TEST_P(TransportPinned, NothingIsLostWhereItDoesNotFit)
{
    void *rest = ft_pinned_alloc(mine, kAll - 2 * kChunk), *slot;
    size_t len[] = {kChunk, kFirst, 100, kChunk, kFirst, kFirst, 4096, kChunk};
    uint32_t sent = 0, got = 0;
    int some = 0;
    ASSERT_NE(rest, nullptr);
    while (got < 400) {
        while (sent < 400 && put(0, sent, len[sent % 8], &slot) == FT_OK)
            sent++, some += inside(mine, slot);
        a->poll(), b->poll();
        ft_msg msg;
        if (ba->ops->recv(ba, 1, 0, &msg) != FT_OK)
            continue;
        ASSERT_TRUE(is_message(msg, got, len[got % 8])) << "message " << got;
        ba->ops->release(ba, &msg);
        got++;
    }
    if (shares()) {
        EXPECT_GT(some, 0);
    }
    EXPECT_LT(some, 400);
    ft_pinned_free(mine, rest);
}

// A receiver that keeps many views has later messages copied out of their slots.
TEST_P(TransportPinned, ViewsMayBeKept)
{
    std::vector<ft_msg> held;
    for (uint32_t lane = 0; lane < 8; lane++) {
        void *slot;
        ft_msg msg;
        ASSERT_TRUE(
            turn({a.get(), b.get()}, [&] { return put(lane, lane, kChunk, &slot) == FT_OK; }));
        ASSERT_TRUE(take(ba, 1, lane, &msg));
        held.push_back(msg);
    }
    for (uint32_t lane = 0; lane < 8; lane++) {
        EXPECT_TRUE(is_message(held[lane], lane, kChunk)) << lane;
        ba->ops->release(ba, &held[lane]);
    }
}

TEST_P(TransportPinned, WhatTheSenderLetsGoIsVoid)
{
    void *slot;
    ft_msg held, queued;
    ASSERT_EQ(put(0, 1, kChunk, &slot), FT_OK);
    ASSERT_TRUE(take(ba, 1, 0, &held));
    EXPECT_TRUE(ft_msg_intact(&held));
    ASSERT_EQ(put(1, 2, kChunk, &slot), FT_OK);
    for (int i = 0; i < 100; i++)
        a->poll(), b->poll();
    ab->cut = true;
    a->disconnect(ab);
    void *again = ft_pinned_alloc(mine, kAll);
    EXPECT_TRUE(again || !shares()) << "the link has kept it";
    if (again)
        memset(again, 0xee, kAll);
    ft_pinned_free(mine, again);
    EXPECT_EQ(ft_msg_intact(&held), !shares());
    if (ba->ops->recv(ba, 1, 1, &queued) == FT_OK) {
        EXPECT_EQ(ft_msg_intact(&queued), !shares())
            << "what lies there now was taken for the message";
        ba->ops->release(ba, &queued);
    }
    ba->ops->release(ba, &held);
    EXPECT_TRUE(turn({b.get()}, [&] { return ba->state == FT_LINK_DOWN; }));
}

// One without such memory takes and sends as ever.
TEST_P(TransportPinned, OneSideAlone)
{
    a->disconnect(ab);
    ASSERT_TRUE(turn({b.get()}, [&] { return ba->state == FT_LINK_DOWN; }));
    b->disconnect(ba);
    a = std::make_unique<Engine>(GetParam(), 0xc, kChunk, 1, nullptr, kFirst);
    ASSERT_EQ(a->ops->bind(a->t, 1), FT_OK);
    for (int round = 0; round < 2; round++) {
        if (round == 1) { // the other way
            a->disconnect(ab);
            std::swap(a, b);
        }
        ASSERT_TRUE(link());
        void *slot;
        ft_msg msg;
        ASSERT_EQ(put(0, 1, kChunk, &slot), FT_OK);
        ASSERT_TRUE(take(ba, 1, 0, &msg));
        EXPECT_TRUE(is_message(msg, 1, kChunk));
        ba->ops->release(ba, &msg);
    }
}

// Properties of trim(): pages that long messages took are given back if no message has needed them
// between two calls. This holds for slots, landing buffers and buffers for reservations. Nothing in
// flight is touched, and a side that waits for room hears of it. Method: two engines over every
// backend, turned by hand or each by its own thread. mincore() says which pages exist.
#include <atomic>
#include <functional>
#include <sys/mman.h>
#include <thread>
#include <unistd.h>

#include "tests/conform/transport.h"

namespace
{

constexpr size_t kChunk = 256 << 10;

// Without allocations, which would be pages too: what message seq carries lies somewhere in one
// text.
const char *text_of(uint32_t seq)
{
    static const std::string text = payload(1, 2 * kChunk);
    return text.data() + seq * 4099 % kChunk;
}

using Ranges = std::map<const void *, size_t>;

size_t pages_of(const Ranges &ranges)
{
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    size_t n = 0;
    for (auto &r : ranges) {
        uintptr_t from = (uintptr_t)r.first & ~(page - 1),
                  to = ((uintptr_t)r.first + r.second + page - 1) & ~(page - 1);
        std::vector<unsigned char> there((to - from) / page);
        EXPECT_EQ(mincore((void *)from, to - from, there.data()), 0);
        for (unsigned char p : there)
            n += p & 1;
    }
    return n;
}

class TransportTrim : public TransportTest
{
  protected:
    // By a reservation, whose place is kept.
    int write(unsigned lane, uint32_t seq, size_t len_bytes, Ranges *places)
    {
        ft_header h = header_of(1, lane, seq, (uint32_t)len_bytes);
        void *slot;
        int rc = ab->ops->reserve(ab, &h, &slot);
        if (rc)
            return rc;
        memcpy(slot, text_of(seq), len_bytes);
        if (places)
            (*places)[slot] = len_bytes;
        ab->ops->commit(ab, &h, slot);
        return FT_OK;
    }
    void read(unsigned lane, uint32_t seq, Ranges *places)
    {
        ft_msg msg;
        ASSERT_TRUE(take(ba, 1, lane, &msg)) << "message " << seq << " did not come";
        EXPECT_EQ(msg.header.seq, seq);
        EXPECT_EQ(memcmp(msg.data, text_of(seq), msg.header.len), 0) << "message " << seq;
        if (places)
            (*places)[msg.data] = msg.header.len;
        ba->ops->release(ba, &msg);
    }
    // As many long messages as go, then all of them are received.
    void many(Ranges *places)
    {
        std::vector<std::pair<unsigned, uint32_t>> sent;
        for (unsigned lane = 0; lane < FT_LANES_ALL; lane++)
            for (int i = 0; i < ft_window(lane); i++) {
                int rc = write(lane, lane * 100 + (uint32_t)i, kChunk, places);
                if (rc == FT_OK)
                    sent.emplace_back(lane, lane * 100 + (uint32_t)i);
                else
                    ASSERT_EQ(rc, FT_AGAIN);
                a->poll(), b->poll();
            }
        for (auto &s : sent)
            read(s.first, s.second, places);
        ASSERT_GE(sent.size(), 6u);
    }
    void trim(int times)
    {
        for (int i = 0; i < times; i++) {
            for (int k = 0; k < 100; k++)
                a->poll(), b->poll();
            a->ops->trim(a->t);
            b->ops->trim(b->t);
        }
    }
};
INSTANTIATE_TEST_SUITE_P(All, TransportTrim, testing::ValuesIn(all_backends()), backend_name);

TEST_P(TransportTrim, MemoryGoesBack)
{
    if (!ft_can_populate())
        GTEST_SKIP() << "slots have all their pages from the first on here";
    open(kChunk);
    ASSERT_TRUE(link());
    for (int round = 0; round < 3; round++) { // what was given back comes again
        Ranges places;
        many(&places);
        ASSERT_GT(pages_of(places), 6 * kChunk / 4096) << "of " << places.size() << " places";
        trim(1);
        EXPECT_GT(pages_of(places), 6 * kChunk / 4096) << "it was used a moment ago";
        trim(1);
        EXPECT_EQ(pages_of(places), 0u) << "of " << places.size() << " places, round " << round;
    }
}

TEST_P(TransportTrim, WhatIsInUseStays)
{
    if (!ft_can_populate())
        GTEST_SKIP() << "slots have all their pages from the first on here";
    open(kChunk);
    ASSERT_TRUE(link());
    Ranges places, first;
    many(&places);
    for (uint32_t seq = 1; seq <= 10; seq++) {
        ASSERT_EQ(write(0, seq, 3 * 4096 + 1, &first), FT_OK);
        read(0, seq, &first);
        trim(1);
        EXPECT_GE(pages_of(first), 4u) << "of what is used in every period";
    }
    EXPECT_LE(pages_of(places), 12u)
        << "a slot, a buffer or a landing that is used keeps what is used of it";
}

TEST_P(TransportTrim, NothingUnderWayIsTouched)
{
    open(kChunk);
    ASSERT_TRUE(link());
    for (uint32_t round = 1; round <= 20; round++) {
        ft_header h = header_of(1, FT_LANE_P2P, round, kChunk);
        void *slot;
        ASSERT_EQ(ab->ops->reserve(ab, &h, &slot), FT_OK);
        memcpy(slot, text_of(round), kChunk);
        ft_msg view;
        ASSERT_EQ(write(1, round, kChunk, nullptr), FT_OK);
        ASSERT_TRUE(take(ba, 1, 1, &view));
        int sent = 0;
        while (sent < 6 &&
               write(2 + (unsigned)sent, round, kChunk - (size_t)sent, nullptr) == FT_OK)
            sent++;
        EXPECT_GE(sent, 2);
        trim(3);
        EXPECT_EQ(memcmp(slot, text_of(round), kChunk), 0) << "a reservation was emptied";
        EXPECT_EQ(memcmp(view.data, text_of(round), kChunk), 0) << "a view was emptied";
        ab->ops->commit(ab, &h, slot);
        for (int i = 0; i < sent; i++)
            read(2 + (unsigned)i, round, nullptr);
        read(FT_LANE_P2P, round, nullptr);
        ba->ops->release(ba, &view);
        trim(round % 3);
    }
}

TEST_P(TransportTrim, WhoWaitsHearsOfRoom)
{
    open(kChunk);
    ASSERT_TRUE(link());
    uint32_t sent = 0;
    while (sent < 64 && write(0, sent + 1, kChunk, nullptr) == FT_OK)
        sent++, a->poll(), b->poll();
    ASSERT_GE(sent, 2u);
    for (int k = 0; k < 100; k++)
        a->poll(), b->poll();
    while (write(0, sent + 1, kChunk, nullptr) == FT_OK)
        sent++; // by now nothing moves until the other side reads
    for (uint32_t seq = 1; seq <= sent; seq++) {
        ft_msg msg;
        ASSERT_TRUE(turn({b.get()}, [&] { return ba->ops->recv(ba, 1, 0, &msg) == FT_OK; }))
            << seq << " of " << sent;
        ba->ops->release(ba, &msg);
    }
    bool moved = false;
    for (int k = 0; k < 1000; k++)
        b->poll();
    for (int i = 0; i < 3; i++)
        a->ops->trim(a->t);
    for (int k = 0; k < 1000; k++)
        moved |= a->poll();
    EXPECT_TRUE(moved) << "whoever sleeps until something moves would sleep on";
    EXPECT_EQ(write(0, sent + 1, kChunk, nullptr), FT_OK);
}

// Each side by its own thread, both trim when they like; messages of all lengths, some of them kept
// for a while.
TEST_P(TransportTrim, AtAnyMoment)
{
    open(kChunk);
    ASSERT_TRUE(link());
    const char *slow = getenv("FT_TEST_SLOWDOWN");
    const uint32_t messages = slow && atoi(slow) > 1 ? 500 : 3000;
    unsigned seed = (unsigned)testing::UnitTest::GetInstance()->random_seed();
    SCOPED_TRACE("seed " + std::to_string(seed) + ": rerun with GTEST_RANDOM_SEED");
    std::atomic<bool> stop{false};
    auto length = [](uint32_t seq) {
        return seq % 5 ? (size_t)(seq * 2654435761u >> 8) % kChunk : (size_t)seq % 64;
    };
    const uint64_t end_ms = now_ms() + 60000;
    std::thread receiver([&, mine = seed + 1]() mutable {
        std::vector<ft_msg> held;
        for (uint32_t seq = 1; seq <= messages && now_ms() < end_ms && !stop;) {
            b->poll();
            if (rand_r(&mine) % 64 == 0)
                b->ops->trim(b->t);
            ft_msg msg;
            if (ba->ops->recv(ba, 1, seq % 8, &msg) == FT_OK) {
                EXPECT_EQ(msg.header.seq, seq);
                held.push_back(msg);
                seq++;
            }
            while (!held.empty() && (rand_r(&mine) % 4 == 0 || held.size() > 5)) {
                const ft_msg &m = held.front();
                bool same = m.header.len == length(m.header.seq) &&
                            memcmp(m.data, text_of(m.header.seq), m.header.len) == 0;
                EXPECT_TRUE(same) << "message " << m.header.seq << " of " << m.header.len
                                  << " bytes";
                stop = stop || !same;
                ba->ops->release(ba, &held.front());
                held.erase(held.begin());
            }
        }
        for (ft_msg &m : held)
            ba->ops->release(ba, &m);
        stop = true;
    });
    uint32_t sent = 0;
    while (!stop && now_ms() < end_ms) {
        a->poll();
        if (rand_r(&seed) % 64 == 0)
            a->ops->trim(a->t);
        if (sent < messages && write((sent + 1) % 8, sent + 1, length(sent + 1), nullptr) == FT_OK)
            sent++;
    }
    receiver.join();
    EXPECT_EQ(sent, messages);
}

} // namespace

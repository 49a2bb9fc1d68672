// Properties of sends from ordinary memory whose payload is only moved on. The receiver gets an
// unfetched message, and brings it with one copy, byte for byte, to its destination. The request is
// pending until the receiver has released the message. Memory that cannot be read in this way is
// copied as usual. If the memory disappears before it was read, the link goes down. If the sender
// withdraws a message, the receiver does not use it. Method: two engines in this process, turned by
// hand, over the backends that pull; buffers lie between pages that cannot be touched.
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "tests/conform/transport.h"

class TransportPull : public TransportTest
{
  protected:
    static constexpr size_t kPage = 4096, kBytes = 65536;

    void SetUp() override
    {
        TransportTest::SetUp();
        if (!ft_transport_pulls())
            GTEST_SKIP() << "no process_vm_readv here";
        room = (char *)mmap(nullptr, kBytes + 4 * kPage, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1,
                            0);
        ASSERT_NE(room, MAP_FAILED);
        ASSERT_EQ(mprotect(room + kPage, kBytes + 2 * kPage, PROT_READ | PROT_WRITE), 0);
        open();
        ASSERT_TRUE(link());
    }
    void TearDown() override
    {
        if (room)
            munmap(room, kBytes + 4 * kPage);
        TransportTest::TearDown();
    }
    // Message seq from `at`, where its payload lies already.
    int lend(unsigned lane, uint32_t seq, const void *at, size_t len, ft_send *req)
    {
        ft_header h = header_of(1, lane, seq, (uint32_t)len);
        *req = {};
        req->status = FT_AGAIN;
        req->lasts = req->moved = true;
        return ab->ops->send(ab, &h, at, req);
    }
    bool done(const ft_send &req)
    {
        return turn({a.get(), b.get()}, [&] { return req.status != FT_AGAIN; });
    }

    char *room = nullptr; // kBytes + 2 pages between two that nobody may touch
};

static std::vector<Backend> pulling()
{
    std::vector<Backend> some;
    for (auto &backend : all_backends())
        if (backend.ops->caps.pulls)
            some.push_back(backend);
    return some;
}
INSTANTIATE_TEST_SUITE_P(All, TransportPull, testing::ValuesIn(pulling()), backend_name);

TEST_P(TransportPull, ComesByteForByteToWhereItGoes)
{
    const size_t end = kBytes + 3 * kPage; // of what may be touched
    uint32_t seq = 0;
    for (size_t len :
         {(size_t)16384, (size_t)16385, (size_t)20479, (size_t)40961, kBytes - 1, kBytes})
        for (size_t from : {kPage, kPage + 1, kPage + 4095, end - len - 64, end - len})
            for (int to_landing = 0; to_landing < 2; to_landing++) {
                ft_send req;
                ft_msg msg;
                std::string got(len + 2, '#'), sent = payload(++seq, len);
                memcpy(room + from, sent.data(), len);
                ASSERT_EQ(lend(seq % 9, seq, room + from, len, &req), FT_OK);
                ASSERT_TRUE(take(ba, 1, seq % 9, &msg));
                ASSERT_TRUE(msg.unfetched);
                ASSERT_EQ(msg.data, nullptr);
                room[from + len / 2] ^= 1, sent[len / 2] ^= 1; // no copy lies between
                ASSERT_EQ(ba->ops->fetch(ba, &msg, to_landing ? nullptr : &got[1]), FT_OK);
                ASSERT_FALSE(msg.unfetched);
                EXPECT_TRUE(ft_msg_intact(&msg));
                EXPECT_EQ(memcmp(msg.data, sent.data(), len), 0) << len << " bytes from " << from;
                if (!to_landing) {
                    EXPECT_EQ(msg.data, &got[1]);
                    EXPECT_EQ(got[0], '#');
                    EXPECT_EQ(got[len + 1], '#');
                }
                EXPECT_EQ(req.status, FT_AGAIN);
                ba->ops->release(ba, &msg);
                ASSERT_TRUE(done(req));
                EXPECT_EQ(req.status, FT_OK);
            }
}

TEST_P(TransportPull, WhatIsNotSaidToBeMovedOrIsShortIsCopied)
{
    for (int which = 0; which < 3; which++) {
        ft_header h = header_of(1, 0, 7, which == 2 ? 4096 : kBytes);
        ft_send req = {};
        req.status = FT_AGAIN;
        req.lasts = which != 0;
        req.moved = which != 1;
        memcpy(room + kPage, payload(7, h.len).data(), h.len);
        ASSERT_EQ(ab->ops->send(ab, &h, room + kPage, &req), FT_OK);
        ASSERT_TRUE(done(req));
        memset(room + kPage, 0, h.len);
        EXPECT_TRUE(expect(1, 0, 7, h.len)) << which;
    }
}

TEST_P(TransportPull, OtherLanesAreCopied)
{
    ft_send req;
    memcpy(room + kPage, payload(1, kBytes).data(), kBytes);
    ASSERT_EQ(lend(FT_LANE_RMA, 1, room + kPage, kBytes, &req), FT_OK);
    ft_msg msg;
    ASSERT_TRUE(take(ba, 1, FT_LANE_RMA, &msg));
    EXPECT_FALSE(msg.unfetched);
    ba->ops->release(ba, &msg);
}

#ifdef SYS_memfd_secret
TEST_P(TransportPull, MemoryThatTheKernelDoesNotReadIsCopied)
{
    int fd = (int)syscall(SYS_memfd_secret, 0);
    if (fd < 0 || ftruncate(fd, kBytes) < 0)
        GTEST_SKIP() << "no secret memory here";
    char *secret = (char *)mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    if (secret == MAP_FAILED)
        GTEST_SKIP() << "no secret memory here";
    ft_send req;
    memcpy(secret, payload(1, kBytes).data(), kBytes);
    ASSERT_EQ(lend(0, 1, secret, kBytes, &req), FT_OK);
    EXPECT_TRUE(expect(1, 0, 1, kBytes));
    EXPECT_TRUE(done(req));
    munmap(secret, kBytes);
}
#endif

TEST_P(TransportPull, MemoryThatIsGoneEndsTheLink)
{
    ft_send req;
    ft_msg msg;
    memcpy(room + kPage, payload(1, kBytes).data(), kBytes);
    ASSERT_EQ(lend(0, 1, room + kPage, kBytes, &req), FT_OK);
    ASSERT_TRUE(take(ba, 1, 0, &msg));
    ASSERT_TRUE(msg.unfetched);
    ASSERT_EQ(mprotect(room + 5 * kPage, kPage, PROT_NONE), 0);
    std::string got(kBytes, 0);
    EXPECT_EQ(ba->ops->fetch(ba, &msg, &got[0]), FT_LINK);
    EXPECT_EQ(ba->state, FT_LINK_DOWN);
    ba->ops->release(ba, &msg);
    EXPECT_TRUE(turn({a.get(), b.get()}, [&] { return b->has(ba, ft_event::FT_EVENT_DOWN); }));
    b->disconnect(ba);
    EXPECT_TRUE(turn({a.get(), b.get()}, [&] { return ab->state == FT_LINK_DOWN; }));
    EXPECT_EQ(req.status, FT_LINK);
}

TEST_P(TransportPull, WithdrawnIsNotTaken)
{
    ft_send req;
    ft_msg msg;
    std::string got(kBytes, 0);
    memcpy(room + kPage, payload(1, kBytes).data(), kBytes);
    for (int gone = 0; gone < 2; gone++) { // and its memory too
        ASSERT_EQ(lend(0, 1, room + kPage, kBytes, &req), FT_OK);
        ASSERT_TRUE(take(ba, 1, 0, &msg));
        ft_send_withdraw(&req);
        EXPECT_EQ(req.status, FT_LINK);
        ASSERT_EQ(mprotect(room + kPage, kPage, gone ? PROT_NONE : PROT_READ | PROT_WRITE), 0);
        EXPECT_EQ(ba->ops->fetch(ba, &msg, &got[0]), FT_AGAIN);
        EXPECT_FALSE(ft_msg_intact(&msg));
        EXPECT_EQ(ba->state, FT_LINK_UP);
        ba->ops->release(ba, &msg);
        ASSERT_TRUE(turn({a.get(), b.get()}, [&] { return ab->ops->drained(ab); }));
    }
}

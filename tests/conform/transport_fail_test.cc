// Properties: if a peer leaves, is killed, does not exist or does not know the secret, the link
// goes DOWN with the right reason in bounded time. What was delivered before can be read. Nothing
// leaks, neither over many cycles nor when no descriptor is left. Method: two engines in this
// process, turned by hand; killed peers are real child processes. Over every backend.
#include "tests/conform/transport.h"

#include <atomic>
#include <thread>

#include <dirent.h>
#include <fcntl.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <unistd.h>

class TransportFail : public TransportTest
{
};
INSTANTIATE_TEST_SUITE_P(All, TransportFail, testing::ValuesIn(all_backends()), backend_name);

/* In /dev/shm other processes come and go: only names with our own number count there. */
static int entries(const char *path)
{
    DIR *d = opendir(path);
    if (!d)
        return -1;
    int n = 0;
    std::string own = std::string(path) == "/dev/shm" ? "-" + std::to_string(getpid()) + "-" : "";
    while (const dirent *entry = readdir(d))
        n += own.empty() || strstr(entry->d_name, own.c_str());
    closedir(d);
    return n;
}

TEST_P(TransportFail, GoodbyeIsOrderlyAndLosesNothing)
{
    open();
    ASSERT_TRUE(link());
    ASSERT_EQ(send(ab, 1, 0, 1, 8), FT_OK);
    ASSERT_EQ(send(ab, 1, 0, 2, 30000), FT_OK);
    ASSERT_EQ(send(ab, 1, FT_LANE_CTL, 3, 24), FT_OK);
    a->disconnect(ab);
    EXPECT_TRUE(turn({a.get(), b.get()}, [&] { return b->has(ba, ft_event::FT_EVENT_DOWN); }));
    EXPECT_EQ(ba->state, FT_LINK_DOWN);
    EXPECT_TRUE(ba->orderly);
    EXPECT_EQ(ba->reason, FT_LINK);
    EXPECT_TRUE(expect(1, 0, 1, 8));
    EXPECT_TRUE(expect(1, 0, 2, 30000));
    EXPECT_TRUE(expect(1, FT_LANE_CTL, 3, 24));
    ft_msg msg;
    ft_header h;
    EXPECT_EQ(ba->ops->recv(ba, 1, 0, &msg), FT_LINK);
    EXPECT_EQ(ba->ops->peek(ba, 1, 0, &h), FT_LINK);
    b->disconnect(ba);
    ASSERT_TRUE(link()) << "the same engines connect again";
    ASSERT_EQ(send(ab, 1, 0, 1, 8), FT_OK);
    EXPECT_TRUE(expect(1, 0, 1, 8));
}

// The last messages and the goodbye come while the receiver is in the middle of a turn.
TEST_P(TransportFail, GoodbyeNeverOvertakesMessages)
{
    open(4096);
    const int rounds = getenv("FT_TEST_SLOWDOWN") ? 50 : 100;
    for (int round = 0; round < rounds && !HasFailure(); round++) {
        ASSERT_TRUE(link());
        std::atomic<bool> go(false);
        std::thread sender([&] {
            while (!go)
                continue;
            for (uint32_t seq = 1; seq <= 8; seq++) {
                ft_header h = header_of(1, FT_LANE_CTL, seq, 8);
                ft_send req = {};
                req.status = FT_AGAIN;
                EXPECT_EQ(ab->ops->send(ab, &h, "12345678", &req), FT_OK);
                while (req.status == FT_AGAIN)
                    a->poll();
            }
            a->disconnect(ab);
        });
        uint32_t got = 0;
        go = true;
        EXPECT_TRUE(turn({b.get()}, [&] { return ba->state == FT_LINK_DOWN; }));
        ft_msg msg;
        while (ba->ops->recv(ba, 1, FT_LANE_CTL, &msg) == FT_OK) {
            EXPECT_EQ(msg.header.seq, ++got);
            ba->ops->release(ba, &msg);
        }
        EXPECT_EQ(got, 8u) << "messages were lost in round " << round;
        sender.join();
        b->disconnect(ba);
        a->events.clear();
        b->events.clear();
    }
}

TEST_P(TransportFail, SenderLearnsThatTheReceiverLeft)
{
    open();
    ASSERT_TRUE(link());
    ASSERT_EQ(send(ab, 1, 0, 1, 8), FT_OK);
    b->disconnect(ba);
    EXPECT_TRUE(turn({a.get(), b.get()}, [&] { return a->has(ab, ft_event::FT_EVENT_DOWN); }));
    EXPECT_EQ(ab->state, FT_LINK_DOWN);
    EXPECT_EQ(ab->reason, FT_LINK);
    EXPECT_EQ(send(ab, 1, 0, 2, 8), FT_LINK);
    ft_header h = header_of(1, 0, 2, 8);
    void *slot;
    EXPECT_EQ(ab->ops->reserve(ab, &h, &slot), FT_LINK);
}

TEST_P(TransportFail, CloseWithEverythingOpen)
{
    open(8192);
    ASSERT_TRUE(link());
    ft_link *back = b->connect(a->id, a->address());
    ASSERT_TRUE(
        turn({a.get(), b.get()}, [&] { return back->state == FT_LINK_UP && a->accepted(); }));
    ft_msg view;
    ASSERT_EQ(send(ab, 1, 0, 1, 8192), FT_OK);
    ASSERT_TRUE(take(ba, 1, 0, &view));
    ASSERT_EQ(send(ab, 1, 0, 2, 8192), FT_OK);
    ASSERT_EQ(send(ab, 1, 3, 3, 8), FT_OK);
    ft_header h = header_of(1, 1, 4, 8192), small = header_of(1, 2, 5, 8);
    void *slot, *small_slot;
    ASSERT_EQ(ab->ops->reserve(ab, &h, &slot), FT_OK);
    ASSERT_EQ(ab->ops->reserve(ab, &small, &small_slot), FT_OK);
    b->close(); // its view goes with it
    EXPECT_TRUE(turn({a.get()}, [&] {
        return ab->state == FT_LINK_DOWN && a->accepted()->state == FT_LINK_DOWN;
    }));
    EXPECT_TRUE(a->accepted()->orderly);
    memset(slot, 1, 8192); // the other side is gone, the reservation's memory is not
    ab->ops->commit(ab, &h, slot);
    ab->ops->cancel(ab, &small, small_slot);
    a->close();
}

TEST_P(TransportFail, DeadAddressGoesDown)
{
    open();
    std::string dead = b->address();
    b->close();
    uint64_t start = now_ms();
    ft_link *l = a->connect(0xb, dead);
    ASSERT_TRUE(l);
    EXPECT_TRUE(turn(
        {a.get()}, [&] { return a->has(l, ft_event::FT_EVENT_DOWN); }, 10000));
    EXPECT_EQ(l->state, FT_LINK_DOWN);
    EXPECT_EQ(l->reason, FT_LINK);
    EXPECT_FALSE(l->orderly);
    EXPECT_LT(now_ms() - start, 8000u);
    EXPECT_EQ(send(l, 1, 0, 1, 8), FT_LINK);
    a->disconnect(l);
    EXPECT_FALSE(a->ops->reaches(a->t, "x", 1));
    EXPECT_FALSE(a->ops->reaches(a->t, dead.data(), 0));
    EXPECT_NE(a->ops->connect(a->t, 0xb, dead.data(), 3, &l), FT_OK) << "a mutilated address";
}

TEST_P(TransportFail, WrongSecretIsRefused)
{
    open();
    Engine stranger(GetParam(), 0xc, 65536, 2);
    ASSERT_EQ(stranger.ops->bind(stranger.t, 1), FT_OK);
    ft_link *l = stranger.connect(b->id, b->address());
    ASSERT_TRUE(l);
    ASSERT_TRUE(
        turn({&stranger, b.get()}, [&] { return stranger.has(l, ft_event::FT_EVENT_DOWN); }));
    EXPECT_EQ(l->reason, FT_AUTH);
    EXPECT_EQ(b->accepts.size(), 0u);
    EXPECT_TRUE(b->events.empty());
    EXPECT_TRUE(link()) << "others still can";
}

TEST_P(TransportFail, WrongEngineAtTheAddress)
{
    open();
    ft_link *l = a->connect(0xdead, b->address());
    ASSERT_TRUE(l);
    ASSERT_TRUE(turn({a.get(), b.get()}, [&] { return a->has(l, ft_event::FT_EVENT_DOWN); }));
    EXPECT_TRUE(l->reason == FT_AUTH || l->reason == FT_LINK) << l->reason;
    turn(
        {a.get(), b.get()}, [] { return false; }, 20);
    EXPECT_EQ(b->accepts.size(), 0u);
}

TEST_P(TransportFail, OtherChunksAreRefused)
{
    open();
    Engine other(GetParam(), 0xc, 4096);
    ft_link *l = other.connect(b->id, b->address());
    ASSERT_TRUE(l);
    ASSERT_TRUE(turn({&other, b.get()}, [&] { return l->state == FT_LINK_DOWN; }));
    EXPECT_EQ(l->reason, FT_PROTOCOL);
}

TEST_P(TransportFail, GivenUpWhileConnecting)
{
    open();
    for (int polls = 0; polls < 40; polls++) {
        ft_link *l = a->connect(b->id, b->address());
        ASSERT_TRUE(l);
        for (int i = 0; i < polls * 5; i++) {
            a->poll();
            if (polls % 2)
                b->poll();
        }
        a->disconnect(l);
    }
    turn(
        {a.get(), b.get()}, [] { return false; },
        50); // the last ones may not have been accepted yet
    ASSERT_TRUE(turn({a.get(), b.get()}, [&] {
        for (ft_link *l : b->accepts)
            if (l->state != FT_LINK_DOWN)
                return false;
        return true;
    }));
    for (ft_link *l : std::vector<ft_link *>(b->accepts))
        b->disconnect(l);
    EXPECT_TRUE(link());
}

TEST_P(TransportFail, ManyPeersAtOnce)
{
    open(4096);
    /* as an engine sleeps: the kernel limits epoll descriptors over others */
    struct epoll_event any = {};
    const int sleeper = epoll_create1(EPOLL_CLOEXEC), fd = b->ops->fd ? b->ops->fd(b->t) : -1;
    ASSERT_TRUE(fd < 0 || epoll_ctl(sleeper, EPOLL_CTL_ADD, fd, &any) == 0) << strerror(errno);
    std::vector<std::unique_ptr<Engine>> peers;
    std::vector<ft_link *> links;
    std::vector<Engine *> all = {b.get()};
    for (uint64_t i = 0; i < 40; i++) {
        peers.push_back(std::make_unique<Engine>(GetParam(), 100 + i, 4096));
        ASSERT_EQ(peers.back()->ops->bind(peers.back()->t, 1), FT_OK);
        links.push_back(peers.back()->connect(b->id, b->address()));
        ASSERT_TRUE(links.back());
        all.push_back(peers.back().get());
    }
    uint64_t start = now_ms();
    ASSERT_TRUE(turn(
        all,
        [&] {
            for (ft_link *l : links)
                if (l->state != FT_LINK_UP)
                    return false;
            return b->accepts.size() == links.size();
        },
        10000))
        << b->accepts.size() << " accepted";
    RecordProperty("ms", (int)(now_ms() - start));
    for (ft_link *l : b->accepts)
        EXPECT_GE(l->peer, 100u);
    close(sleeper);
}

/* Can a child of this process use the transport? Shared memory starts a thread for its life
 * page. */
bool forks()
{
#ifdef __SANITIZE_THREAD__
    return false;
#else
    return true;
#endif
}

TEST_P(TransportFail, KilledSenderIsNoticedAndItsMessagesAreRead)
{
    if (!GetParam().processes)
        GTEST_SKIP() << "works only inside one process";
    if (!forks())
        GTEST_SKIP() << "ThreadSanitizer ends a forked child that starts a thread";
    open();
    std::string to = b->address();
    Child child([&](int in, int out) {
        Engine e(GetParam(), 0xc);
        if (!e.t || e.ops->bind(e.t, 1))
            return 1;
        ft_link *l = e.connect(0xb, to);
        if (!l || !turn({&e}, [&] { return l->state == FT_LINK_UP; }))
            return 2;
        for (uint32_t seq = 1; seq <= 2; seq++) {
            ft_header h = header_of(1, 0, seq, 20000);
            ft_send req = {};
            req.status = FT_AGAIN;
            std::string data = payload(seq, 20000);
            if (!turn({&e}, [&] { return l->ops->send(l, &h, data.data(), &req) == FT_OK; }))
                return 3;
            if (!turn({&e}, [&] { return req.status == FT_OK; }))
                return 4;
        }
        Child::write_to(out, "sent");
        Child::read_from(in); // until killed
        return 0;
    });
    ASSERT_TRUE(turn({b.get()}, [&] { return b->accepted(); }));
    ba = b->accepted();
    EXPECT_EQ(ba->peer, 0xcu);
    ASSERT_EQ(child.read(), "sent");
    ft_msg first; // a view that is out while the peer dies
    ASSERT_TRUE(take(ba, 1, 0, &first));
    child.kill_hard();
    uint64_t start = now_ms();
    ASSERT_TRUE(turn({b.get()}, [&] { return b->has(ba, ft_event::FT_EVENT_DOWN); }));
    EXPECT_LT(now_ms() - start, 1000u);
    EXPECT_FALSE(ba->orderly);
    EXPECT_EQ(ba->reason, FT_LINK);
    EXPECT_EQ(memcmp(first.data, payload(1, 20000).data(), 20000), 0);
    ba->ops->release(ba, &first);
    EXPECT_TRUE(expect(1, 0, 2, 20000));
    ft_msg msg;
    EXPECT_EQ(ba->ops->recv(ba, 1, 0, &msg), FT_LINK);
}

TEST_P(TransportFail, KilledReceiverIsNoticed)
{
    if (!GetParam().processes)
        GTEST_SKIP() << "works only inside one process";
    if (!forks())
        GTEST_SKIP() << "ThreadSanitizer ends a forked child that starts a thread";
    open();
    Child child([&](int in, int out) {
        (void)in;
        Engine e(GetParam(), 0xc);
        if (!e.t || e.ops->bind(e.t, 1))
            return 1;
        Child::write_to(out, e.address());
        turn(
            {&e}, [] { return false; }, 30000);
        return 0;
    });
    ab = a->connect(0xc, child.read());
    ASSERT_TRUE(ab);
    ASSERT_TRUE(turn({a.get()}, [&] { return ab->state != FT_LINK_CONNECTING; }));
    ASSERT_EQ(ab->state, FT_LINK_UP);
    EXPECT_EQ(send(ab, 1, 0, 1, 8), FT_OK);
    EXPECT_EQ(send(ab, 1, 0, 2, 60000), FT_OK);
    child.kill_hard();
    ASSERT_TRUE(turn({a.get()}, [&] { return a->has(ab, ft_event::FT_EVENT_DOWN); }));
    EXPECT_FALSE(ab->orderly);
    EXPECT_EQ(send(ab, 1, 1, 3, 8), FT_LINK);
}

TEST_P(TransportFail, ThousandConnectionsLeaveNothing)
{
    open(4096);
    ASSERT_TRUE(link());
    b->disconnect(ba);
    a->disconnect(ab);
    int fds = entries("/proc/self/fd"), shm = entries("/dev/shm"), owned = ft_fd_count();
    for (int i = 0; i < 1000; i++) {
        ASSERT_TRUE(link()) << "cycle " << i;
        if (i % 3 == 0) {
            ASSERT_EQ(send(ab, 1, 0, 1, 4096), FT_OK);
        }
        if (i % 2)
            a->disconnect(ab);
        b->disconnect(ba);
        if (i % 2 == 0)
            a->disconnect(ab);
        a->events.clear();
        b->events.clear();
    }
    // Some links end in the background, also the first one.
    turn({a.get(), b.get()},
         [&] { return entries("/proc/self/fd") <= fds && entries("/dev/shm") <= shm; });
    EXPECT_LE(entries("/proc/self/fd"), fds);
    EXPECT_LE(entries("/dev/shm"), shm);
    EXPECT_LE(ft_fd_count(), owned);
}

TEST_P(TransportFail, OutOfDescriptors)
{
    rlimit old;
    ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &old), 0);
    int before = entries("/proc/self/fd"), owned = ft_fd_count();
    int failures = 0, successes = 0;
    for (unsigned spare = 0; spare < 14; spare++) {
        rlimit few = old;
        few.rlim_cur = 64;
        ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &few), 0);
        std::vector<int> filler;
        for (int fd; (fd = dup(0)) >= 0;)
            filler.push_back(fd);
        for (unsigned i = 0; i < spare && !filler.empty(); i++) {
            close(filler.back());
            filler.pop_back();
        }
        ft_transport_config config;
        memset(&config, 0, sizeof config);
        config.env = ft_env_real();
        config.chunk_bytes = 4096;
        ft_transport *t[2] = {nullptr, nullptr};
        int rc = FT_OK;
        for (int i = 0; i < 2 && rc == FT_OK; i++) {
            config.self = (uint64_t)i + 1;
            rc = GetParam().ops->open(&config, &t[i]);
        }
        ft_link *l = nullptr;
        char address[FT_ADDRESS_BYTES];
        int n = rc ? 0 : GetParam().ops->address(t[1], address, sizeof address);
        if (rc == FT_OK)
            rc = GetParam().ops->connect(t[0], 2, address, (size_t)n, &l);
        if (rc == FT_OK) {
            uint64_t end = now_ms() + 8000;
            ft_event ev[8];
            bool busy, accepted = false;
            while (now_ms() < end &&
                   (l->state == FT_LINK_CONNECTING || (l->state == FT_LINK_UP && !accepted))) {
                GetParam().ops->poll(t[0], ev, 8, &busy);
                accepted |= GetParam().ops->poll(t[1], ev, 8, &busy) > 0;
            }
            EXPECT_NE(l->state, FT_LINK_CONNECTING)
                << "with " << spare << " descriptors the link hangs";
            if (l->state == FT_LINK_DOWN)
                rc = l->reason;
        }
        EXPECT_TRUE(rc == FT_OK || rc == FT_NOFILE || rc == FT_LINK)
            << "with " << spare << " descriptors: " << rc << " " << ft_fail_text();
        (rc ? failures : successes)++;
        for (ft_transport *x : t)
            if (x)
                GetParam().ops->close(x);
        for (int fd : filler)
            close(fd);
        setrlimit(RLIMIT_NOFILE, &old);
        EXPECT_EQ(entries("/proc/self/fd"), before) << "leaked with " << spare << " descriptors";
        EXPECT_EQ(ft_fd_count(), owned);
    }
    EXPECT_GT(failures, 0);
    EXPECT_GT(successes, 0);
}

// Properties: what transport/rma/fabric.h promises of a fabric, for verbs over real queue pairs:
// writes arrive whole and once, ends of writes are counted, STOPPED and way_close keep the peer
// out, failures are told with names, ports that come back are used again. Method: two fabrics in
// one process at the ends of two cables of soft-RoCE devices; cables are unplugged with ip(8).
#include "tests/rdma/fabric_fixture.h"

#include <poll.h>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>

namespace
{

enum {
    Written = ft_fabric_event::FT_FABRIC_WRITTEN,
    Arrived = ft_fabric_event::FT_FABRIC_ARRIVED,
    Failed = ft_fabric_event::FT_FABRIC_FAILED,
    Stopped = ft_fabric_event::FT_FABRIC_STOPPED,
    Port = ft_fabric_event::FT_FABRIC_PORT
};

void shell(const std::string &command)
{
    ASSERT_EQ(system(command.c_str()), 0) << command;
}

TEST_F(VerbsFabric, WritesArriveWholeAndAreCounted)
{
    open();
    ASSERT_EQ(a->f->ways, 4u);
    ASSERT_GE(a->f->inline_bytes, (size_t)FT_CACHE_LINE);
    for (unsigned way = 0; way < 4; way++)
        join(way);
    for (size_t i = 0; i < Side::bytes; i++)
        a->own[i] = (unsigned char)(i * 7 + i / 251);
    const size_t lengths[] = {0, 1, 24, 64, 4096, 65536, 131072};
    size_t at = 0;
    uint32_t number = 0;
    for (size_t len : lengths) {
        ASSERT_EQ(a->write(number % 4, at, len, at, 1000 + number, true, len <= 64), FT_OK);
        at += len;
        number++;
    }
    ASSERT_TRUE(both([&] { return b->count(Arrived) == number && a->count(Written) == number; }))
        << b->count(Arrived) << " arrived, " << a->count(Written) << " written";
    EXPECT_EQ(memcmp(a->own.data(), b->inside.data(), at), 0);
    for (size_t i = at; i < Side::bytes; i++)
        ASSERT_EQ(b->inside[i], 0) << i;
    EXPECT_EQ(a->count(Failed) + b->count(Failed), 0u);
}

TEST_F(VerbsFabric, TwoPiecesLieOneAfterAnother)
{
    open();
    join(0);
    memset(a->own.data(), 1, 100);
    memset(a->own.data() + 5000, 2, 50);
    ft_fabric_write w = {};
    w.piece[0] = {a->source, 0, 100};
    w.piece[1] = {a->source, 5000, 50};
    w.npieces = 2;
    w.to = 77;
    w.immediate = 9;
    ASSERT_EQ(a->f->ops->write(a->ways[0], &w), FT_OK);
    ASSERT_TRUE(both([&] { return b->count(Arrived) == 1; }));
    EXPECT_EQ(b->events[0].immediate, 9u);
    EXPECT_EQ(b->inside[76], 0);
    EXPECT_EQ(b->inside[77], 1);
    EXPECT_EQ(b->inside[176], 1);
    EXPECT_EQ(b->inside[177], 2);
    EXPECT_EQ(b->inside[226], 2);
    EXPECT_EQ(b->inside[227], 0);
}

// More writes than any queue holds, in both directions at once.
TEST_F(VerbsFabric, FullQueuesSayAgainAndNothingIsLost)
{
    open();
    join(0);
    const uint32_t total = 2000;
    uint32_t sent_a = 0, sent_b = 0;
    bool again = false;
    ASSERT_TRUE(both(
        [&] {
            while (sent_a < total) {
                int rc = a->write(0, 0, 8, 0, sent_a, sent_a + 1 == total, true);
                again |= rc == FT_AGAIN;
                if (rc != FT_OK)
                    break;
                sent_a++;
            }
            if (sent_b < total && b->write(0, 0, 8, 0, sent_b, sent_b + 1 == total) == FT_OK)
                sent_b++;
            return a->count(Arrived) == total && b->count(Arrived) == total &&
                   a->written(a->ways[0]) == total && b->written(b->ways[0]) == total;
        },
        60))
        << a->count(Arrived) << " " << b->count(Arrived) << " " << a->written(a->ways[0]);
    EXPECT_TRUE(again);
    uint32_t next = 0;
    for (auto &e : b->events)
        if (e.what == Arrived) {
            ASSERT_EQ(e.immediate, next);
            next++;
        }
    // Most writes ended without a completion of their own.
    EXPECT_LT(a->count(Written), total / 8);
}

// The fence. A writer that was not told goes on; after STOPPED not one byte changes.
TEST_F(VerbsFabric, AfterStoppedNoByteChanges)
{
    open();
    join(0);
    memset(a->own.data(), 0x5a, Side::bytes);
    for (int i = 0; i < 40; i++)
        ASSERT_EQ(a->write(0, 0, 16384, (size_t)i * 16384, (uint32_t)i), FT_OK);
    ASSERT_TRUE(until({b.get()}, [&] { return b->count(Arrived) >= 3; }));
    const uint64_t begin = now_ns();
    b->f->ops->way_stop(b->ways[0]);
    ASSERT_TRUE(until({b.get()}, [&] { return b->count(Stopped) == 1; }));
    printf("stopped after %.1f ms\n", (double)(now_ns() - begin) / 1e6);
    EXPECT_EQ(b->events.back().what, Stopped);
    // Every write that has arrived whole was told of; the others may have begun.
    const unsigned arrived = b->count(Arrived);
    for (unsigned i = 0; i < arrived; i++)
        ASSERT_EQ(b->inside[(size_t)i * 16384 + 16383], 0x5a) << i;
    for (size_t i = (size_t)(arrived + 1) * 16384; i < Side::bytes; i++)
        ASSERT_EQ(b->inside[i], 0) << "after write " << arrived;
    memset(b->inside.data(), 0x33, Side::bytes);
    ASSERT_TRUE(both([&] {
        (void)a->write(0, 0, 16384, 0, 99);
        return a->count(Failed) == 1;
    }));
    printf("%s\n", a->events.back().text.c_str());
    for (size_t i = 0; i < Side::bytes; i++)
        ASSERT_EQ(b->inside[i], 0x33) << i;
    EXPECT_EQ(b->count(Arrived), arrived);
    EXPECT_EQ(a->write(0, 0, 8, 0, 1), FT_LINK);
    a->f->ops->way_stop(a->ways[0]);
    ASSERT_TRUE(both([&] { return a->count(Stopped) == 1; }));
}

TEST_F(VerbsFabric, CloseKeepsThePeerOutAtOnce)
{
    open();
    join(0);
    memset(a->own.data(), 0x5a, Side::bytes);
    for (int i = 0; i < 40; i++)
        ASSERT_EQ(a->write(0, 0, 16384, (size_t)i * 16384, (uint32_t)i), FT_OK);
    ASSERT_TRUE(until({b.get()}, [&] { return b->count(Arrived) >= 2; }));
    b->f->ops->way_close(b->ways[0]);
    b->ways[0] = nullptr;
    b->f->ops->unreg(b->into, false);
    b->into = nullptr;
    memset(b->inside.data(), 0x33, Side::bytes);
    ASSERT_TRUE(both([&] {
        (void)a->write(0, 0, 16384, 0, 99);
        return a->count(Failed) == 1;
    }));
    for (size_t i = 0; i < Side::bytes; i++)
        ASSERT_EQ(b->inside[i], 0x33) << i;
    const Seen &e = a->events.back();
    EXPECT_EQ(e.status, FT_LINK);
    EXPECT_NE(e.text.find("does not answer (RETRY_EXC_ERR, status 12"), std::string::npos)
        << e.text;
    EXPECT_NE(e.text.find("queue pair "), std::string::npos) << e.text;
    EXPECT_NE(e.text.find(" on rxe0:1, GID 1 (10.77.0.1), to queue pair "), std::string::npos)
        << e.text;
}

TEST_F(VerbsFabric, WriteOutsideTheRegionFailsAndChangesNothing)
{
    open();
    join(0);
    memset(a->own.data(), 0x5a, Side::bytes);
    ASSERT_EQ(a->write(0, 0, 64, Side::bytes - 10, 1), FT_OK);
    ASSERT_TRUE(both([&] { return a->count(Failed) == 1; }));
    EXPECT_EQ(b->count(Arrived), 0u);
    for (unsigned char c : b->inside)
        ASSERT_EQ(c, 0);
    printf("%s\n", a->events.back().text.c_str());
}

// A queue pair that is not connected, or whose slot was used before, stops, too; slots of
// completion queues are used again.
TEST_F(VerbsFabric, WaysCanBeStoppedInAnyStateAndMadeAgain)
{
    open();
    for (int round = 0; round < 6; round++) {
        a->open(1);
        b->open(1);
        if (round % 2) {
            ASSERT_EQ(b->connect(1, *a), FT_OK) << ft_fail_text();
            ASSERT_EQ(a->connect(1, *b), FT_OK) << ft_fail_text();
            ASSERT_EQ(a->write(1, 0, 8, 0, 5), FT_OK);
            ASSERT_TRUE(both([&] { return b->count(Arrived) == 1; }));
        }
        a->f->ops->way_stop(a->ways[1]);
        ASSERT_TRUE(both([&] { return a->count(Stopped) == 1; })) << round;
        for (Side *s : {a.get(), b.get()}) {
            s->f->ops->way_close(s->ways[1]);
            s->ways[1] = nullptr;
            s->events.clear();
        }
    }
    EXPECT_EQ(verbs_fabric_of(a->f)->ncqs, 1u);
}

TEST_F(VerbsFabric, APortThatLosesItsLinkIsToldAndUsedAgain)
{
    open();
    for (unsigned way = 0; way < 4; way++)
        join(way);
    const uint64_t begin = now_ns();
    shell("ip link set cable0 down");
    ASSERT_TRUE(both([&] { return a->count(Failed) == 2 && a->count(Port) == 1; }))
        << a->count(Failed) << " ways failed";
    printf("told after %.1f ms: %s\n", (double)(now_ns() - begin) / 1e6, a->events[0].text.c_str());
    for (auto &e : a->events) {
        EXPECT_EQ(e.port, 0u);
        EXPECT_FALSE(e.up);
        if (e.what == Failed) {
            EXPECT_EQ(e.way->port, 0u);
            EXPECT_NE(e.text.find("has lost its link"), std::string::npos) << e.text;
        }
    }
    ft_fabric_way *none;
    EXPECT_EQ(a->f->ops->way_open(a->f, 0, a->into, nullptr, &none), FT_LINK);
    // The others go on.
    ASSERT_EQ(a->write(1, 0, 8, 0, 7), FT_OK);
    ASSERT_TRUE(both([&] { return b->count(Arrived, b->ways[1]) == 1; }));
    shell("ip link set cable0 up");
    ASSERT_TRUE(both([&] { return a->count(Port) == 2; }));
    EXPECT_TRUE(a->events.back().up);
    ASSERT_TRUE(both([&] { return b->count(Port) >= 2 && verbs_fabric_of(b->f)->port[0].up; }));
    for (Side *s : {a.get(), b.get()})
        s->f->ops->way_close(s->ways[0]);
    join(0);
    ASSERT_EQ(a->write(0, 0, 8, 0, 8), FT_OK);
    ASSERT_TRUE(both([&] { return b->count(Arrived, b->ways[0]) == 1; }));
}

TEST_F(VerbsFabric, SourcePortsAreSetAndReadBack)
{
    open({{"FTCCL_IB_SOURCE_PORTS", "50001,50777"}});
    join(0);
    join(2);
    join(3);
    EXPECT_NE(a->describe(0).find("source port 50001,"), std::string::npos) << a->describe(0);
    EXPECT_NE(a->describe(2).find("source port 50001,"), std::string::npos) << a->describe(2);
    EXPECT_NE(a->describe(3).find("source port 50777,"), std::string::npos) << a->describe(3);
    EXPECT_EQ(verbs_way_of(a->ways[3])->flow_label, 50777u & 0x3fff);
}

TEST_F(VerbsFabric, ASleeperIsWoken)
{
    open();
    join(0);
    while (a->poll() || b->poll())
        ;
    for (uint32_t round = 0; round < 20; round++) {
        while (!b->f->ops->arm(b->f, true))
            b->poll();
        std::thread writer([&] { EXPECT_EQ(a->write(0, 0, 8, 0, round), FT_OK); });
        struct pollfd p = {b->f->ops->fd(b->f), POLLIN, 0};
        EXPECT_EQ(::poll(&p, 1, 10000), 1);
        writer.join();
        b->f->ops->arm(b->f, false);
        ASSERT_TRUE(until({b.get()}, [&] { return b->count(Arrived) == round + 1; }));
    }
    while (!b->f->ops->arm(b->f, true))
        b->poll();
    struct pollfd p = {b->f->ops->fd(b->f), POLLIN, 0};
    EXPECT_EQ(::poll(&p, 1, 0), 0) << "readable although nothing has come";
}

// A data loader that is forked while ways are open: what its parent writes afterwards comes from
// the right memory, and a child that ends takes nothing along.
TEST_F(VerbsFabric, AChildOfAForkDisturbsNothing)
{
    open();
    join(0);
    memset(a->own.data(), 1, Side::bytes);
    int hold[2];
    ASSERT_EQ(pipe(hold), 0);
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
        char word;
        _exit(read(hold[0], &word, 1) == 1 ? 0 : 1);
    }
    memset(a->own.data(), 2, Side::bytes);
    ASSERT_EQ(a->write(0, 0, 65536, 0, 1, true), FT_OK);
    ASSERT_TRUE(both([&] { return b->count(Arrived) == 1 && a->count(Written) == 1; }));
    for (size_t i = 0; i < 65536; i++)
        ASSERT_EQ(b->inside[i], 2) << i;
    ASSERT_EQ(write(hold[1], "", 1), 1);
    int status = -1;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
    ASSERT_EQ(a->write(0, 0, 8, 0, 2, true), FT_OK);
    ASSERT_TRUE(both([&] { return b->count(Arrived) == 2; }));
}

TEST_F(VerbsFabric, WrongInfosAreRefused)
{
    open();
    a->open(0);
    b->open(0);
    unsigned char info[FT_FABRIC_INFO_BYTES];
    size_t len = b->f->ops->way_info(b->ways[0], info);
    for (size_t i = 0; i < len; i++) {
        auto changed = std::vector<unsigned char>(info, info + len);
        changed.resize(i);
        EXPECT_EQ(a->f->ops->way_connect(a->ways[0], changed.data(), i), FT_PROTOCOL);
    }
    info[0] ^= 1;
    EXPECT_EQ(a->f->ops->way_connect(a->ways[0], info, len), FT_PROTOCOL);
    info[0] ^= 1;
    EXPECT_EQ(a->f->ops->way_connect(a->ways[0], info, len), FT_OK) << ft_fail_text();
}

// An address to which this port has no route.
TEST_F(VerbsFabric, AnAddressWithoutRouteIsNamed)
{
    open({}, "=rxe0", "=rxe1");
    a->open(0);
    b->open(0);
    memcpy(verbs_way_of(b->ways[0])->gid.raw + 12, "\xc6\x33\x64\x07", 4);
    EXPECT_EQ(a->connect(0, *b), FT_NOTSUP);
    printf("%s\n", ft_fail_text());
    EXPECT_NE(std::string(ft_fail_text()).find("198.51.100.7"), std::string::npos);
}

// The last test, because the index of the address in the table is another one afterwards.
TEST_F(VerbsFabric, AnAddressThatIsGoneFailsItsWays)
{
    open();
    join(0);
    shell("ip addr add 10.79.0.9/24 dev cable0 && ip addr del 10.77.0.1/24 dev cable0");
    verbs_port *port = &verbs_fabric_of(a->f)->port[0];
    EXPECT_TRUE(both([&] { return a->count(Failed) == 1 && port->up; })) << a->describe(0);
    EXPECT_NE(a->events[0].text.find("addresses have changed"), std::string::npos)
        << a->events[0].text;
    char text[VERBS_GID_BYTES];
    EXPECT_STREQ(verbs_gid_text(&port->gid, text), "10.79.0.9");
    shell("ip addr flush dev cable0; ip addr add 10.77.0.1/24 dev cable0");
    EXPECT_TRUE(both([&] {
        return port->up && std::string(verbs_gid_text(&port->gid, text)) == "10.77.0.1";
    })) << text;
    for (Side *s : {a.get(), b.get()})
        s->f->ops->way_close(s->ways[0]);
    join(0);
    ASSERT_EQ(a->write(0, 0, 8, 0, 8), FT_OK);
    ASSERT_TRUE(both([&] { return b->count(Arrived, b->ways[0]) == 1; }));
}

} // namespace

// Property: each fault of FTCCL_FAULT does what its description says, and both sides see it as a
// real loss. Everything else passes, and the same seed does the same again. Method: two engines
// over the inproc transport with faults; time is a counter.
#include <gtest/gtest.h>
#include <cstring>
#include <string>
#include <vector>

#include "tests/common/fabric.h"

extern "C" {
#include "transport/transport.h"
}

static uint64_t clock_ns;
static uint64_t now(ft_env *)
{
    return clock_ns;
}
static void random_bytes(ft_env *, void *buf, size_t n)
{
    ft_env_real()->random(ft_env_real(), buf, n);
}
static ft_env env = {now, random_bytes, nullptr};
static const uint64_t ctx = 3;

struct Side {
    ft_transport *t = nullptr;
    std::vector<ft_link *> links[3];
    void turn()
    {
        ft_event ev[4];
        bool busy = false;
        int n = t->ops->poll(t, ev, 4, &busy);
        for (int i = 0; i < n; i++)
            links[ev[i].what].push_back(ev[i].link);
    }
};

struct Pair {
    Side a, b;
    ft_link *tx = nullptr, *rx = nullptr;
    explicit Pair(const char *faults, const ft_transport_ops *ops = &ft_transport_inproc)
    {
        clock_ns = 1000;
        setenv("FTCCL_FAULT", faults, 1), ft_params_reload();
        ft_transport_config config = {};
        config.env = &env;
        config.chunk_bytes = 4096;
        EXPECT_EQ(FT_OK, ft_transport_faulty(ops, &ops)) << ft_fail_text();
        for (Side *s : {&a, &b}) {
            config.self = s == &a ? 1 : 2;
            EXPECT_EQ(FT_OK, ops->open(&config, &s->t)) << ft_fail_text();
            EXPECT_EQ(FT_OK, ops->bind(s->t, ctx));
        }
        char address[FT_ADDRESS_BYTES];
        int n = ops->address(b.t, address, sizeof address);
        EXPECT_EQ(FT_OK, ops->connect(a.t, 2, address, (size_t)n, &tx));
        for (int i = 0; i < 100000 && (tx->state == FT_LINK_CONNECTING ||
                                       (tx->state == FT_LINK_UP && b.links[0].empty()));
             i++)
            turn();
        if (!b.links[0].empty())
            rx = b.links[0][0];
    }
    ~Pair()
    {
        for (Side *s : {&a, &b})
            s->t->ops->close(s->t);
        unsetenv("FTCCL_FAULT"), ft_params_reload();
    }
    void turn()
    {
        a.turn(), b.turn();
    }
    int send(uint32_t seq, ft_send *req)
    {
        ft_header h = {};
        h.ctx = ctx, h.seq = seq, h.len = 100;
        char data[100];
        memset(data, (int)seq, sizeof data);
        int rc = tx->ops->send(tx, &h, data, req);
        for (int i = 0; i < 100 && rc == FT_OK && req->status == FT_AGAIN; i++)
            turn();
        return rc;
    }
    // Bits of the received message that are not as they were sent; -1: no message, or its status.
    int recv(uint32_t seq)
    {
        ft_msg m;
        int rc = FT_AGAIN;
        for (int i = 0; i < 1000 && rc == FT_AGAIN; i++)
            turn(), rc = rx->ops->recv(rx, ctx, 0, &m);
        if (rc != FT_OK)
            return rc;
        EXPECT_EQ(seq, m.header.seq);
        int bits = 0;
        for (int i = 0; i < 100; i++)
            bits += __builtin_popcount(((const unsigned char *)m.data)[i] ^ (seq & 0xff));
        rx->ops->release(rx, &m);
        return bits;
    }
};

TEST(Fault, NothingSetPassesEverything)
{
    Pair p("seed=5");
    ASSERT_TRUE(p.rx);
    EXPECT_STREQ("inproc", p.tx->ops->name) << "the other side need not be decorated";
    for (uint32_t i = 0; i < 50; i++) {
        ft_send req;
        ASSERT_EQ(FT_OK, p.send(i, &req));
        EXPECT_EQ(0, p.recv(i));
    }
    EXPECT_EQ(50u, p.tx->messages);
    EXPECT_EQ(5000u, p.rx->bytes);
    p.tx->ops->disconnect(p.tx);
    for (int i = 0; i < 100 && p.b.links[2].empty(); i++)
        p.turn();
    EXPECT_TRUE(p.rx->orderly);
}

TEST(Fault, CutAfterSoManyIsALossOnBothSides)
{
    Pair p("cut_after=5");
    ft_send req;
    for (uint32_t i = 0; i < 5; i++) {
        ASSERT_EQ(FT_OK, p.send(i, &req));
        ASSERT_EQ(0, p.recv(i));
    }
    EXPECT_EQ(FT_LINK, p.send(5, &req));
    EXPECT_EQ(FT_LINK_DOWN, p.tx->state);
    EXPECT_EQ(FT_LINK, p.recv(5));
    for (int i = 0; i < 100; i++)
        p.turn();
    ASSERT_EQ(1u, p.a.links[2].size());
    ASSERT_EQ(1u, p.b.links[2].size());
    EXPECT_FALSE(p.rx->orderly);
    EXPECT_EQ(FT_LINK, p.rx->reason);
}

TEST(Fault, DropHangsTheLinkThenBreaksIt)
{
    Pair p("drop_ppm=200000,break_us=50");
    ft_send req;
    uint32_t sent = 0;
    for (; sent < 200; sent++) {
        ASSERT_EQ(FT_OK, p.send(sent, &req));
        if (req.status == FT_AGAIN)
            break;
        ASSERT_EQ(0, p.recv(sent));
    }
    ASSERT_LT(sent, 200u);
    ft_send next;
    EXPECT_EQ(FT_AGAIN, p.send(sent + 1, &next));
    EXPECT_FALSE(p.tx->ops->arm(p.a.t, true)) << "time alone wakes nobody";
    EXPECT_EQ(FT_AGAIN, p.recv(sent));
    clock_ns += 49999;
    p.turn();
    EXPECT_EQ(FT_AGAIN, req.status);
    clock_ns += 1;
    for (int i = 0; i < 100; i++)
        p.turn();
    EXPECT_EQ(FT_LINK, req.status) << "an accepted send completes";
    EXPECT_EQ(FT_LINK, p.recv(sent));
    EXPECT_EQ(FT_LINK, p.send(sent + 1, &next));
    EXPECT_FALSE(p.rx->orderly);
}

TEST(Fault, DelayKeepsMessagesBackForAWhile)
{
    Pair p("stall_ppm=1000000,stall_us=10");
    ft_send req;
    ft_msg m;
    for (uint32_t i = 0; i < 2; i++)
        ASSERT_EQ(FT_OK, p.send(i, &req));
    EXPECT_EQ(0, p.recv(0));
    EXPECT_EQ(FT_AGAIN, p.recv(1));
    EXPECT_EQ(FT_AGAIN, p.rx->ops->recv(p.rx, ctx, 0, &m));
    EXPECT_FALSE(p.rx->ops->arm(p.b.t, true)) << "time alone wakes nobody";
    clock_ns += 10000;
    EXPECT_EQ(0, p.recv(1));
}

TEST(Fault, FlipChangesOneBitAndTheSameOneAgain)
{
    std::vector<int> bits[2];
    for (auto &run : bits) {
        Pair p("seed=11,flip_ppm=300000");
        for (uint32_t i = 0; i < 40; i++) {
            ft_send req;
            ASSERT_EQ(FT_OK, p.send(i, &req));
            EXPECT_EQ(FT_OK, req.status);
            run.push_back(p.recv(i));
        }
        int flipped = 0;
        for (int b : run)
            flipped += b;
        EXPECT_GT(flipped, 3);
        EXPECT_LT(flipped, 25);
        for (int b : run)
            EXPECT_TRUE(b == 0 || b == 1) << b;
    }
    EXPECT_EQ(bits[0], bits[1]);
}

TEST(Fault, RefusedConnectionIsADownLink)
{
    Pair p("refuse_ppm=1000000");
    EXPECT_EQ(FT_LINK_DOWN, p.tx->state);
    EXPECT_EQ(FT_LINK, p.tx->reason);
    EXPECT_EQ(1u, p.a.links[2].size());
    EXPECT_TRUE(p.b.links[0].empty());
}

TEST(Fault, AReservationOutlivesTheBreakUntilItEnds)
{
    Pair p("drop_ppm=1000000,break_us=1");
    Pair q("cut_after=1");
    ft_header h = {};
    h.ctx = ctx, h.len = 100;
    void *slot;
    EXPECT_EQ(FT_AGAIN, p.tx->ops->reserve(p.tx, &h, &slot)) << "its message would be lost";
    ASSERT_EQ(FT_OK, q.tx->ops->reserve(q.tx, &h, &slot));
    memset(slot, 0, 100);
    q.tx->ops->commit(q.tx, &h, slot);
    ft_send req;
    EXPECT_EQ(FT_LINK, q.send(1, &req));
    EXPECT_EQ(0, q.recv(0)) << "what came before can be received";
}

TEST(Fault, BadTextIsRefusedByName)
{
    const ft_transport_ops *ops, *list[8];
    for (const char *bad :
         {"x", "delay_us", "delay_us=", "delay_us=x", "delay_us=5x", "delay=5", "seed=1,,seed=2",
          "seed=-1", "seed=1 ", "=5", "drop_ppm=1000000000000000000"}) {
        setenv("FTCCL_FAULT", bad, 1), ft_params_reload();
        EXPECT_EQ(FT_INVAL, ft_transport_faulty(&ft_transport_tcp, &ops)) << bad;
        EXPECT_NE(nullptr, strstr(ft_fail_text(), "FTCCL_FAULT")) << ft_fail_text();
        EXPECT_EQ(FT_INVAL, ft_transport_list("tcp", list, 8)) << bad;
    }
    setenv("FTCCL_FAULT", "seed=3,delay_us=1", 1), ft_params_reload();
    ASSERT_EQ(FT_OK, ft_transport_list("tcp", list, 8));
    EXPECT_NE(&ft_transport_tcp, list[0]);
    unsetenv("FTCCL_FAULT"), ft_params_reload();
    ASSERT_EQ(FT_OK, ft_transport_list("tcp", list, 8));
    EXPECT_EQ(&ft_transport_tcp, list[0]);
}

// Whatever a transport declares is true of it with faults too, and what it is told of memory comes
// through. There may be any transport beneath, each has its own.
TEST(Fault, DeclaresWhatIsBeneath)
{
    char memory[64];
    void *registered = nullptr;
    fabric::reset();
    Pair fabric("seed=5", &fabric::ops), tcp("seed=5", &ft_transport_tcp),
        shm("seed=5", &ft_transport_shm);
    const ft_transport_ops *ops = fabric.a.t->ops;
    EXPECT_NE(ops, &fabric::ops);
    EXPECT_STREQ(ops->name, "fabric");
    EXPECT_STREQ(ops->nccl_name, "Fabric");
    EXPECT_EQ(ops->caps.scope, FT_SCOPE_NETWORK);
    EXPECT_TRUE(ops->caps.rdma && ops->caps.registers);
    EXPECT_FALSE(ops->caps.pulls);
    EXPECT_EQ(ops->caps.costs, &fabric::costs);
    EXPECT_EQ(tcp.a.t->ops->caps.registers, false);
    EXPECT_EQ(shm.a.t->ops->caps.scope, FT_SCOPE_HOST);
    EXPECT_TRUE(shm.a.t->ops->caps.pulls);
    ASSERT_EQ(FT_OK, ops->reg(fabric.a.t, memory, sizeof memory, &registered));
    EXPECT_TRUE(fabric::knows(memory, sizeof memory));
    ops->unreg(fabric.a.t, registered);
    EXPECT_FALSE(fabric::knows(memory, 1));
    fabric::refuses = true;
    EXPECT_EQ(FT_NOMEM, ops->reg(fabric.a.t, memory, sizeof memory, &registered));
    const ft_transport_ops *again = nullptr;
    setenv("FTCCL_FAULT", "seed=5", 1), ft_params_reload();
    EXPECT_EQ(FT_OK, ft_transport_faulty(&fabric::ops, &again));
    EXPECT_EQ(again, ops) << "one for each transport";
    unsetenv("FTCCL_FAULT"), ft_params_reload();
}

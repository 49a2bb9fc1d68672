// Properties: every error of a completion and every event ends the ways, and only those, that it
// concerns, with a sentence that names them; what cannot be made is said with the device's name,
// and leaves nothing; completions of a way that is gone are dropped. Method: a stand-in for
// libibverbs whose completions and events the test makes.
#include <gtest/gtest.h>

#include <poll.h>
#include <sched.h>
#include <sys/mman.h>

#include <string>
#include <vector>

#include "tests/unit/verbs_standin.h"

namespace
{

using standin::state;

// A clock that the test moves.
uint64_t fake_ns;
ft_env *fake_env()
{
    static ft_env env = *ft_env_real();
    env.now_ns = [](ft_env *) { return fake_ns; };
    return &env;
}

class Verbs : public testing::Test
{
  protected:
    void SetUp() override
    {
        standin::state = standin::State{};
    }
    void open(ft_env *env = ft_env_real())
    {
        ft_fabric_config config = {env, -1};
        ASSERT_EQ(verbs_fabric_open_with(standin::library(), &config, &f), FT_OK) << ft_fail_text();
        ASSERT_EQ(f->ops->reg(f, memory, sizeof memory, FT_FABRIC_REMOTE, &region), FT_OK);
        for (int i = 0; i < 2; i++) {
            unsigned char info[FT_FABRIC_INFO_BYTES];
            ASSERT_EQ(f->ops->way_open(f, (unsigned)i, region, nullptr, &way[i]), FT_OK);
            size_t len = f->ops->way_info(way[i], info);
            ASSERT_EQ(f->ops->way_connect(way[i], info, len), FT_OK) << ft_fail_text();
        }
    }
    void TearDown() override
    {
        for (ft_fabric_way *w : way)
            if (w)
                f->ops->way_close(w);
        if (region)
            f->ops->unreg(region, false);
        if (f)
            f->ops->close(f);
        EXPECT_EQ(state.open, 0) << "objects of the library are left";
    }
    int write(int k, bool asked)
    {
        ft_fabric_write w = {};
        w.piece[0] = {region, 0, 8};
        w.npieces = 1;
        w.immediate = 7;
        w.asked = asked;
        return f->ops->write(way[k], &w);
    }
    // Takes all events that are there.
    std::vector<ft_fabric_event> events()
    {
        std::vector<ft_fabric_event> all;
        ft_fabric_event e[8];
        bool busy;
        verbs_fabric_of(f)->look_async = true;
        for (int n; (n = f->ops->poll(f, e, 8, &busy)) > 0;)
            all.insert(all.end(), e, e + n);
        return all;
    }
    void complete(uint64_t request, ibv_wc_status status, ibv_wc_opcode opcode = IBV_WC_RDMA_WRITE,
                  uint32_t immediate = 0)
    {
        ibv_wc wc = {};
        wc.wr_id = request;
        wc.status = status;
        wc.opcode = opcode;
        wc.vendor_err = 0x81;
        if (opcode == IBV_WC_RECV_RDMA_WITH_IMM) {
            wc.wc_flags = IBV_WC_WITH_IMM;
            wc.imm_data = __builtin_bswap32(immediate);
        }
        std::lock_guard<std::mutex> held(standin::lock);
        state.completions.push_back(wc);
    }
    // All requests of a way that is stopped come back.
    void flush(int k)
    {
        const uint64_t last = state.sends.back().wr_id;
        for (size_t i = 0; i < VERBS_RECV_DEPTH; i++)
            complete(state.receives[(size_t)k * VERBS_RECV_DEPTH + i], IBV_WC_WR_FLUSH_ERR,
                     IBV_WC_RECV);
        complete(last, IBV_WC_WR_FLUSH_ERR);
    }
    void event(ibv_event_type type, int k = 0)
    {
        ibv_async_event e = {};
        e.event_type = type;
        const verbs_scope scope = verbs_event_error(type)->scope;
        if (scope == VERBS_OF_WAY)
            e.element.qp = verbs_way_of(way[k])->qp;
        else if (scope == VERBS_OF_QUEUE)
            e.element.cq = verbs_way_of(way[k])->cq->cq;
        else
            e.element.port_num = 1;
        state.events.push_back(e);
    }
    ft_fabric *f = nullptr;
    ft_fabric_region *region = nullptr;
    ft_fabric_way *way[2] = {nullptr, nullptr};
    unsigned char memory[4096];
};

TEST_F(Verbs, EveryErrorOfACompletionEndsItsWayWithASentence)
{
    for (int status = IBV_WC_LOC_LEN_ERR; status <= IBV_WC_TM_RNDV_INCOMPLETE + 1; status++) {
        SetUp();
        open();
        ASSERT_EQ(write(0, true), FT_OK);
        complete(state.sends.back().wr_id, (ibv_wc_status)status);
        auto all = events();
        ASSERT_EQ(all.size(), 1u) << status;
        const verbs_error *error = verbs_completion_error((unsigned)status);
        EXPECT_EQ(all[0].what, ft_fabric_event::FT_FABRIC_FAILED);
        EXPECT_EQ(all[0].way, way[0]);
        EXPECT_EQ(all[0].status, verbs_error_status(error));
        std::string text = all[0].text;
        for (const char *part : {"on card0:1, GID 1 (192.0.2.1), to queue pair ", error->reason,
                                 error->name, "vendor 0x81"})
            EXPECT_NE(text.find(part), std::string::npos) << text << " has no " << part;
        EXPECT_EQ(write(0, true), FT_LINK);
        EXPECT_EQ(write(1, true), FT_OK);
        for (ft_fabric_way *&w : way) {
            f->ops->way_close(w);
            w = nullptr;
        }
        f->ops->unreg(region, false);
        f->ops->close(f);
        region = nullptr;
        f = nullptr;
        ASSERT_EQ(state.open, 0);
    }
}

TEST_F(Verbs, EveryEventEndsWhatItConcerns)
{
    for (int type = IBV_EVENT_CQ_ERR; type <= IBV_EVENT_WQ_FATAL + 1; type++) {
        SetUp();
        open();
        const verbs_error *error = verbs_event_error((unsigned)type);
        event((ibv_event_type)type, 1);
        unsigned failed[2] = {0, 0}, ports = 0;
        for (auto &e : events()) {
            ports += e.what == ft_fabric_event::FT_FABRIC_PORT;
            for (int k = 0; k < 2; k++)
                failed[k] += e.what == ft_fabric_event::FT_FABRIC_FAILED && e.way == way[k];
        }
        const bool ends = error->lost != VERBS_LOST_NOTHING;
        EXPECT_EQ(failed[1], ends ? 1u : 0u) << error->name;
        EXPECT_EQ(failed[0], ends && error->scope != VERBS_OF_WAY ? 1u : 0u) << error->name;
        EXPECT_EQ(ports, ends && error->scope >= VERBS_OF_PORT ? 1u : 0u) << error->name;
        TearDown();
        way[0] = way[1] = nullptr;
        region = nullptr;
        f = nullptr;
    }
}

TEST_F(Verbs, AnotherAddressEndsTheWays)
{
    open();
    event(IBV_EVENT_GID_CHANGE);
    EXPECT_TRUE(events().empty()) << "the same address";
    state.last_octet = 9;
    event(IBV_EVENT_GID_CHANGE);
    EXPECT_EQ(events().size(), 2u);
    state.port = IBV_PORT_DOWN;
    event(IBV_EVENT_LID_CHANGE);
    auto all = events();
    ASSERT_EQ(all.size(), 1u);
    EXPECT_EQ(all[0].what, ft_fabric_event::FT_FABRIC_PORT);
    EXPECT_FALSE(all[0].up);
    ft_fabric_way *none;
    EXPECT_EQ(f->ops->way_open(f, 0, region, nullptr, &none), FT_LINK);
    state.port = IBV_PORT_ACTIVE;
    event(IBV_EVENT_PORT_ACTIVE);
    all = events();
    ASSERT_EQ(all.size(), 1u);
    EXPECT_TRUE(all[0].up);
}

// A better address comes: queue pairs keep theirs as long as it is there, new ones take the better.
TEST_F(Verbs, ABetterAddressEndsNoWayBeforeItsOwnIsGone)
{
    state.link_local = standin::State::Alone;
    open();
    char text[FT_FABRIC_TEXT_BYTES];
    f->ops->way_describe(way[0], text);
    EXPECT_NE(std::string(text).find("GID 1 (169.254.0.1)"), std::string::npos) << text;
    state.link_local = standin::State::Beside;
    event(IBV_EVENT_GID_CHANGE);
    EXPECT_TRUE(events().empty());
    f->ops->way_close(way[1]);
    ASSERT_EQ(f->ops->way_open(f, 1, region, nullptr, &way[1]), FT_OK);
    f->ops->way_describe(way[1], text);
    EXPECT_NE(std::string(text).find("GID 2 (192.0.2.1)"), std::string::npos) << text;
    state.link_local = standin::State::Removed;
    event(IBV_EVENT_GID_CHANGE);
    auto all = events();
    ASSERT_EQ(all.size(), 1u);
    EXPECT_EQ(all[0].way, way[0]);
}

TEST_F(Verbs, CompletionsAreCountedAndThoseOfOthersDropped)
{
    open();
    for (int i = 0; i < 5; i++)
        ASSERT_EQ(write(0, i == 4), FT_OK);
    EXPECT_FALSE(state.sends[3].send_flags & IBV_SEND_SIGNALED);
    complete(state.sends.back().wr_id, IBV_WC_SUCCESS);
    complete(state.sends.back().wr_id, IBV_WC_SUCCESS); /* twice */
    complete(state.receives.front(), IBV_WC_SUCCESS, IBV_WC_RECV_RDMA_WITH_IMM, 0x01020304);
    complete(UINT64_MAX, IBV_WC_SUCCESS);
    auto all = events();
    ASSERT_EQ(all.size(), 2u);
    EXPECT_EQ(all[0].what, ft_fabric_event::FT_FABRIC_WRITTEN);
    EXPECT_EQ(all[0].count, 5u);
    EXPECT_EQ(all[1].what, ft_fabric_event::FT_FABRIC_ARRIVED);
    EXPECT_EQ(all[1].immediate, 0x01020304u);
    EXPECT_EQ(f->strays, 1u);
    const uint64_t old = state.receives.front();
    f->ops->way_close(way[0]);
    way[0] = nullptr;
    complete(old, IBV_WC_SUCCESS, IBV_WC_RECV_RDMA_WITH_IMM);
    EXPECT_TRUE(events().empty());
    EXPECT_EQ(f->strays, 2u);
}

// The last request comes back, but not all receive requests, as with a device that keeps some: then
// the queue pair is destroyed.
TEST_F(Verbs, AWayIsStoppedWhenAllRequestsHaveComeBack)
{
    open();
    f->ops->way_stop(way[0]);
    flush(0);
    const ibv_wc last = state.completions.back();
    state.completions.pop_back();
    EXPECT_TRUE(events().empty());
    state.completions.push_back(last);
    auto all = events();
    ASSERT_EQ(all.size(), 1u);
    EXPECT_EQ(all[0].what, ft_fabric_event::FT_FABRIC_STOPPED);
    const int open_before = state.open;
    f->ops->way_stop(way[1]);
    const uint64_t begin = ft_now_ns(ft_env_real());
    for (all.clear(); all.empty() && ft_now_ns(ft_env_real()) - begin < 10000000000u;)
        all = events();
    ASSERT_EQ(all.size(), 1u);
    EXPECT_EQ(all[0].what, ft_fabric_event::FT_FABRIC_STOPPED);
    EXPECT_EQ(all[0].way, way[1]);
    EXPECT_GE(ft_now_ns(ft_env_real()) - begin, (uint64_t)VERBS_STOP_NS);
    EXPECT_EQ(state.open, open_before - 1) << "the queue pair is not destroyed";
}

// A device that takes its time to destroy a queue pair holds nobody up: neither the turn that
// closes the way, nor the end of memory that the queue pair wrote.
TEST_F(Verbs, NoTurnWaitsForTheEndOfAQueuePair)
{
    open();
    void *mapping = mmap(nullptr, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    ASSERT_NE(mapping, MAP_FAILED);
    ft_fabric_region *mapped;
    ASSERT_EQ(f->ops->reg(f, mapping, 8192, FT_FABRIC_REMOTE, &mapped), FT_OK);
    f->ops->way_stop(way[0]);
    flush(0);
    ASSERT_EQ(events().size(), 1u);
    unsigned char in;
    {
        std::lock_guard<std::mutex> slow(standin::destroying);
        const int before = state.open;
        f->ops->way_close(way[0]);
        way[0] = nullptr;
        f->ops->unreg(mapped, true);
        EXPECT_EQ(state.open, before);
        EXPECT_EQ(mincore(mapping, 4096, &in), 0) << "unmapped while a device knows it";
        EXPECT_EQ(write(1, true), FT_OK);
    }
    f->ops->way_close(way[1]);
    way[1] = nullptr;
    f->ops->unreg(region, false);
    region = nullptr;
    f->ops->close(f);
    f = nullptr;
    EXPECT_NE(mincore(mapping, 4096, &in), 0) << "the mapping is left";
}

// A queue pair that does not give its requests back is destroyed, and takes its completions along.
// What has arrived was told before, however few events the caller takes at a time.
TEST_F(Verbs, WhatHasArrivedIsToldBeforeAQueuePairIsDestroyed)
{
    fake_ns = 1000000000;
    open(fake_env());
    state.destroy_cleans = true;
    f->ops->way_stop(way[0]);
    for (uint32_t i = 0; i < 3; i++)
        complete(state.receives[i], IBV_WC_SUCCESS, IBV_WC_RECV_RDMA_WITH_IMM, i);
    fake_ns += 2 * VERBS_STOP_NS;
    std::vector<ft_fabric_event> all;
    ft_fabric_event e;
    bool busy;
    const uint64_t begin = ft_now_ns(ft_env_real());
    while ((all.empty() || all.back().what != ft_fabric_event::FT_FABRIC_STOPPED) &&
           ft_now_ns(ft_env_real()) - begin < 10000000000u) {
        if (f->ops->poll(f, &e, 1, &busy) > 0)
            all.push_back(e);
        while (verbs_reaps(verbs_fabric_of(f)))
            sched_yield();
    }
    ASSERT_EQ(all.size(), 4u);
    for (uint32_t i = 0; i < 3; i++)
        EXPECT_EQ(all[i].immediate, i);
}

// A way whose queue pair is being destroyed can be closed: then this waits for the end.
TEST_F(Verbs, AWayThatIsNotStoppedEndsWhenItIsClosed)
{
    fake_ns = 1000000000;
    open(fake_env());
    f->ops->way_stop(way[0]);
    fake_ns += 2 * VERBS_STOP_NS;
    const int before = state.open;
    EXPECT_TRUE(events().empty() || state.open == before - 1);
    for (ft_fabric_way *&w : way) {
        f->ops->way_close(w);
        w = nullptr;
    }
    EXPECT_EQ(state.open, before - 2);
    EXPECT_EQ(f->look_ns, 0u);
}

// The descriptors of a device that was removed are readable for ever: nobody sleeps by them.
TEST_F(Verbs, ARemovedDeviceWakesNobody)
{
    open();
    const uint64_t one = 1;
    ASSERT_EQ(::write(standin::context.async_fd, &one, sizeof one), (ssize_t)sizeof one);
    struct pollfd p = {f->ops->fd(f), POLLIN, 0};
    EXPECT_EQ(poll(&p, 1, 0), 1);
    event(IBV_EVENT_DEVICE_FATAL);
    EXPECT_FALSE(events().empty());
    EXPECT_EQ(poll(&p, 1, 0), 0);
    EXPECT_TRUE(f->ops->arm(f, true));
    state.events.push_back({});
    EXPECT_TRUE(events().empty()) << "it tells nothing any more";
    EXPECT_EQ(state.events.size(), 1u);
}

// A completion queue that has failed tells nothing: its ways fail, and are stopped by the
// destruction of their queue pairs. New ways get another one.
TEST_F(Verbs, WaysOfABrokenCompletionQueueEnd)
{
    open();
    event(IBV_EVENT_CQ_ERR);
    EXPECT_EQ(events().size(), 2u);
    const uint64_t begin = ft_now_ns(ft_env_real());
    for (ft_fabric_way *w : way)
        f->ops->way_stop(w);
    std::vector<ft_fabric_event> all;
    while (all.size() < 2 && ft_now_ns(ft_env_real()) - begin < 10000000000u)
        for (auto &e : events())
            all.push_back(e);
    ASSERT_EQ(all.size(), 2u);
    for (auto &e : all)
        EXPECT_EQ(e.what, ft_fabric_event::FT_FABRIC_STOPPED);
    EXPECT_TRUE(f->ops->arm(f, true)) << "a queue that tells nothing keeps nobody awake";
    verbs_cq *broken = verbs_way_of(way[0])->cq;
    f->ops->way_close(way[0]);
    way[0] = nullptr;
    ASSERT_EQ(f->ops->way_open(f, 0, region, nullptr, &way[0]), FT_OK);
    EXPECT_NE(verbs_way_of(way[0])->cq, broken);
}

// A queue that cannot be waited for has failed: otherwise nobody could sleep.
TEST_F(Verbs, AQueueThatCannotBeWaitedForFails)
{
    open();
    standin::context.ops.req_notify_cq = [](ibv_cq *, int) { return EIO; };
    EXPECT_FALSE(f->ops->arm(f, true));
    EXPECT_EQ(events().size(), 2u);
    EXPECT_TRUE(f->ops->arm(f, true));
}

TEST_F(Verbs, WhatCannotBeMadeIsNamedAndLeavesNothing)
{
    ft_fabric_config config = {ft_env_real(), -1};
    for (const char *call : {"open_device", "alloc_pd", "create_comp_channel", "reg_mr"}) {
        state.fails = call;
        EXPECT_NE(verbs_fabric_open_with(standin::library(), &config, &f), FT_OK) << call;
        EXPECT_EQ(state.open, 0) << call;
        f = nullptr;
        if (strcmp(call, "open_device") == 0)
            continue;
        EXPECT_NE(std::string(ft_fail_text()).find("card0"), std::string::npos) << ft_fail_text();
    }
    state.fails = "";
    open();
    const int before = state.open;
    ft_fabric_way *none;
    for (const char *call : {"create_qp", "modify_qp"}) {
        state.fails = call;
        EXPECT_EQ(f->ops->way_open(f, 0, region, nullptr, &none), FT_NOTSUP) << call;
        EXPECT_EQ(state.open, before) << call;
        EXPECT_NE(std::string(ft_fail_text()).find("card0:1"), std::string::npos) << ft_fail_text();
    }
    state.fails = "";
}

} // namespace

/*
 * Property: code that chooses a transport asks what it declares, not its name. An unknown network
 * that declares RDMA is planned as that network with its own costs, and never as shared memory. All
 * ranks decide alike, whatever each of them may use. Memory that the user allocated or registered
 * is registered with a transport that asks for it, and with no other; it is unregistered before it
 * is freed; a refusal is no failure. A link that ends before it is up is replaced by the next
 * transport's, unless its peer refused or did not answer. Method: the linker puts functions of this
 * test before those of the library that list transports, which then include the network of
 * tests/common/fabric.h, and that set the costs of a communicator. Ranks are threads.
 */
#include <atomic>
#include <cstring>
#include <mutex>
#include <set>
#include <thread>

#include "tests/common/fabric.h"
#include "tests/proc/proc.h"

extern "C" {
#include "core/core.h"

int __real_ft_transport_list(const char *, const struct ft_transport_ops **, int);
int __wrap_ft_transport_list(const char *, const struct ft_transport_ops **, int);
void __real_ft_tuning_links(struct ft_tuning *, enum ft_links);
void __wrap_ft_tuning_links(struct ft_tuning *, enum ft_links);

/* The library's, with "fabric" where the text has it. */
int __wrap_ft_transport_list(const char *text, const struct ft_transport_ops **out, int capacity)
{
    std::string rest = text;
    for (int n = 0; n < capacity - 1; n++) {
        size_t len = rest.find(',');
        std::string name = rest.substr(0, len);
        out[n] = &fabric::ops;
        out[n + 1] = nullptr;
        int rc = name == "fabric" ? FT_OK : __real_ft_transport_list(name.c_str(), out + n, 2);
        if (rc != FT_OK || len == std::string::npos)
            return rc;
        rest.erase(0, len + 1);
    }
    return FT_INVAL;
}

static std::mutex lock;
static std::multiset<ft_links> links_seen;
static std::vector<ft_tuning> tunings;

void __wrap_ft_tuning_links(struct ft_tuning *tuning, enum ft_links links)
{
    __real_ft_tuning_links(tuning, links);
    std::lock_guard<std::mutex> held(lock);
    links_seen.insert(links);
    tunings.push_back(*tuning);
}
}

namespace
{

/* Four ranks, of which the first `odd` that come have other transports than the others. */
std::unique_ptr<proc::World> open_world(const char *first, int odd, const char *others)
{
    static ftcclOptions_t options[2] = {FTCCL_OPTIONS_INITIALIZER, FTCCL_OPTIONS_INITIALIZER};
    options[0].transports = first;
    options[1].transports = others;
    std::atomic<int> came{0};
    links_seen.clear();
    tunings.clear();
    return std::make_unique<proc::World>(4, [&](ftcclConfig_t &config) {
        config.options = &options[came++ < odd ? 0 : 1];
    });
}

void expect_fabric_costs(const ft_tuning::ft_costs &costs)
{
    EXPECT_EQ(costs.remote_latency_ns, fabric::costs.latency_ns);
    EXPECT_EQ(costs.remote_ns_per_byte, fabric::costs.ns_per_byte);
    EXPECT_EQ(costs.loopback_latency_ns, fabric::costs.loopback_latency_ns);
    EXPECT_EQ(costs.loopback_ns_per_byte, fabric::costs.loopback_ns_per_byte);
    EXPECT_EQ(costs.loopback_message_ns, fabric::costs.loopback_message_ns);
}

TEST(Fabric, IsANetworkAndNotSharedMemory)
{
    auto world = open_world("fabric", 4, "fabric");
    EXPECT_TRUE(world->works());
    EXPECT_EQ(links_seen.count(FT_LINKS_LOOPBACK), 4u);
    ft_tuning plain;
    ft_tuning_default(&plain);
    for (const ft_tuning &tuning : tunings) {
        EXPECT_FALSE(tuning.local_links);
        EXPECT_TRUE(tuning.rdma);
        expect_fabric_costs(tuning.costs);
        EXPECT_EQ(tuning.costs.local_latency_ns, fabric::costs.loopback_latency_ns);
        EXPECT_EQ(tuning.costs.local_ns_per_byte, fabric::costs.loopback_ns_per_byte);
        EXPECT_EQ(tuning.chunks, plain.chunks) << "its card moves bytes while a core computes";
        EXPECT_EQ(tuning.pulls, FT_PULLS_NONE) << "nobody reads in another's memory";
    }
}

TEST(Fabric, BesideSharedMemoryItIsBetweenHosts)
{
    for (const char *transports : {"shm,fabric", "inproc,shm,fabric,tcp", "inproc,fabric"}) {
        auto world = open_world(transports, 4, transports);
        EXPECT_TRUE(world->works());
        EXPECT_EQ(links_seen.count(FT_LINKS_LOCAL), 4u) << transports;
        for (const ft_tuning &tuning : tunings)
            expect_fabric_costs(tuning.costs);
    }
}

TEST(Fabric, OneRankWithoutSharedMemoryMakesAllCountAlike)
{
    auto world = open_world("fabric", 1, "shm,fabric");
    EXPECT_TRUE(world->works());
    EXPECT_EQ(links_seen.count(FT_LINKS_SOME), 4u);
    for (const ft_tuning &tuning : tunings)
        EXPECT_EQ(tuning.costs.local_latency_ns, fabric::costs.loopback_latency_ns);
}

/* Of two networks all ranks count with the same: one that all have, and of these one rank's. */
TEST(Fabric, OfTwoNetworksAllCountWithOne)
{
    ft_tuning plain;
    ft_tuning_default(&plain);
    struct {
        const char *first, *others;
        bool fabric, tcp; /* what they may count with */
    } table[] = {
        {"fabric,tcp", "fabric,tcp", true, false}, {"tcp,fabric", "tcp,fabric", false, true},
        {"tcp", "fabric,tcp", false, true},        {"fabric", "tcp,fabric", true, false},
        {"tcp,fabric", "fabric,tcp", true, true},
    };
    for (auto &t : table) {
        auto world = open_world(t.first, 1, t.others);
        EXPECT_TRUE(world->works());
        std::set<double> latencies;
        for (const ft_tuning &tuning : tunings)
            latencies.insert(tuning.costs.remote_latency_ns);
        ASSERT_EQ(latencies.size(), 1u) << t.first << " and " << t.others;
        bool fabric = *latencies.begin() == fabric::costs.latency_ns;
        EXPECT_EQ(*latencies.begin(),
                  fabric ? fabric::costs.latency_ns : plain.costs.remote_latency_ns);
        EXPECT_TRUE(fabric ? t.fabric : t.tcp) << t.first << " and " << t.others;
    }
}

/* ---- links that are never up ----------------------------------------------------------------- */

struct Unmade : testing::TestWithParam<int> {
    void SetUp() override
    {
        fabric::reset();
        fabric::unmade = GetParam();
    }
    void TearDown() override
    {
        EXPECT_TRUE(fabric::ending.empty()) << fabric::ending.size() << " links are left";
        fabric::reset();
    }
};
struct UnmadeByTheNetwork : Unmade {
};
struct UnmadeByThePeer : Unmade {
};

void expect_lost(const proc::World &world)
{
    world.each([&](int r) {
        auto comm = world.comm[(size_t)r];
        int sum = r;
        ftcclResult_t result = ftcclAllReduce(&sum, &sum, 1, ftcclInt, ftcclSum, comm,
                                              world.stream[(size_t)r]);
        if (result == ftcclSuccess)
            result = proc::finish(world.stream[(size_t)r]);
        EXPECT_EQ(ftcclGetErrorClass(result), ftcclClassRecoverable) << ftcclGetLastError(comm);
    });
}

TEST_P(UnmadeByTheNetwork, TheNextTransportIsTaken)
{
    auto world = open_world("fabric,tcp", 4, "fabric,tcp");
    EXPECT_TRUE(world->works());
    EXPECT_GT(fabric::ended, 0);
}
INSTANTIATE_TEST_SUITE_P(Reasons, UnmadeByTheNetwork,
                         testing::Values(FT_LINK, FT_NOTSUP, FT_NOMEM, FT_PROTOCOL));

TEST_P(UnmadeByTheNetwork, TheLastTransportsFailureIsTheLinks)
{
    expect_lost(*open_world("fabric", 4, "fabric"));
}

TEST_P(UnmadeByThePeer, NoOtherTransportIsTried)
{
    expect_lost(*open_world("fabric,tcp", 4, "fabric,tcp"));
}
INSTANTIATE_TEST_SUITE_P(Reasons, UnmadeByThePeer,
                         testing::Values(FT_AUTH, FT_VERSION, FT_TIMEOUT));

/* ---- registration ---------------------------------------------------------------------------- */

constexpr size_t kCount = 1 << 16; /* floats */

void reduce(const proc::World &world, const std::vector<float *> &in, std::vector<float> *out)
{
    world.each([&](int r) {
        out[r].assign(kCount, 0);
        for (size_t i = 0; i < kCount; i++)
            in[(size_t)r][i] = (float)(r + 1);
        EXPECT_OK(ftcclAllReduce(in[(size_t)r], out[r].data(), kCount, ftcclFloat, ftcclSum,
                                 world.comm[(size_t)r], world.stream[(size_t)r]));
        EXPECT_OK(proc::finish(world.stream[(size_t)r]));
        EXPECT_EQ(out[r].front(), 10.f);
        EXPECT_EQ(out[r].back(), 10.f);
    });
}

/* Messages from registered memory of one all-reduce from there, of 4 ranks. */
int from_registered(const proc::World &world, const std::vector<float *> &in)
{
    std::vector<float> out[4];
    fabric::from_registered = 0;
    reduce(world, in, out);
    return fabric::from_registered;
}

struct Registration : testing::Test {
    std::vector<std::vector<float>> mine{4, std::vector<float>(kCount)};
    std::vector<float *> plain;
    void SetUp() override
    {
        fabric::reset();
        for (auto &v : mine)
            plain.push_back(v.data());
    }
    void TearDown() override
    {
        EXPECT_TRUE(fabric::ranges.empty()) << fabric::ranges.size() << " registrations are left";
        EXPECT_EQ(fabric::regs, fabric::unregs);
    }
};

TEST_F(Registration, AllocatedMemoryIsKnownToEveryEngine)
{
    void *before = nullptr, *after = nullptr;
    ASSERT_OK(ftcclMemAlloc(&before, kCount * sizeof(float)));
    EXPECT_EQ(fabric::regs, 0) << "no engine is there yet";
    auto world = open_world("fabric", 4, "fabric");
    EXPECT_EQ(fabric::regs, 4);
    ASSERT_OK(ftcclMemAlloc(&after, kCount * sizeof(float)));
    EXPECT_EQ(fabric::regs, 8);
    EXPECT_TRUE(fabric::knows(after, kCount * sizeof(float)));
    EXPECT_EQ(from_registered(*world, plain), 0);
    float *memory[2] = {static_cast<float *>(before), static_cast<float *>(after)};
    EXPECT_GT(from_registered(*world, {memory[0], memory[1], plain[2], plain[3]}), 0);
    EXPECT_OK(ftcclMemFree(before));
    EXPECT_FALSE(fabric::knows(before, 1));
    EXPECT_EQ(fabric::unregs, 4);
    world.reset(); /* its engines close, and forget what is left */
    EXPECT_EQ(fabric::unregs, 8);
    EXPECT_OK(ftcclMemFree(after));
}

TEST_F(Registration, RegisteredMemoryIsKnownToItsCommunicatorsEngine)
{
    auto world = open_world("shm,fabric", 4, "fabric");
    void *handle[4];
    world->each([&](int r) {
        EXPECT_OK(ftcclCommRegister(world->comm[(size_t)r], plain[(size_t)r],
                                    kCount * sizeof(float), &handle[r]));
    });
    EXPECT_EQ(fabric::regs, 4) << "one engine each";
    for (int r = 0; r < 2; r++)
        EXPECT_OK(ftcclCommDeregister(world->comm[(size_t)r], handle[r]));
    EXPECT_EQ(fabric::unregs, 2);
    EXPECT_FALSE(fabric::knows(plain[0], 1));
    EXPECT_TRUE(fabric::knows(plain[3], 1));
    void *again = nullptr;
    EXPECT_OK(ftcclCommRegister(world->comm[3], plain[3], 16, &again)) << "a part, once more";
    world.reset();
}

TEST_F(Registration, EndsWithItsCommunicatorWhileTheEngineGoesOn)
{
    auto world = open_world("fabric", 4, "fabric");
    world->each([&](int r) {
        ftcclComm_t child = nullptr;
        void *handle = nullptr;
        EXPECT_OK(ftcclCommSplit(world->comm[(size_t)r], 0, r, &child, nullptr));
        EXPECT_OK(ftcclCommRegister(child, plain[(size_t)r], kCount * sizeof(float), &handle));
        EXPECT_TRUE(fabric::knows(plain[(size_t)r], kCount * sizeof(float)));
        EXPECT_OK(r % 2 ? ftcclCommDestroy(child) : ftcclCommAbort(child));
        EXPECT_FALSE(fabric::knows(plain[(size_t)r], 1));
    });
    EXPECT_TRUE(world->works());
}

TEST_F(Registration, IsNotAskedOfTransportsThatNeedNone)
{
    auto world = open_world("inproc,shm,tcp", 4, "inproc,shm,tcp");
    void *memory = nullptr, *handle = nullptr;
    ASSERT_OK(ftcclMemAlloc(&memory, kCount * sizeof(float)));
    EXPECT_OK(ftcclCommRegister(world->comm[0], memory, 64, &handle));
    EXPECT_EQ(fabric::regs, 0);
    EXPECT_OK(ftcclMemFree(memory));
}

TEST_F(Registration, RefusedIsNoFailure)
{
    auto world = open_world("fabric", 4, "fabric");
    void *memory = nullptr, *handle = nullptr;
    fabric::refuses = true;
    ASSERT_OK(ftcclMemAlloc(&memory, kCount * sizeof(float)));
    EXPECT_OK(ftcclCommRegister(world->comm[0], plain[0], kCount * sizeof(float), &handle));
    EXPECT_EQ(from_registered(*world, {static_cast<float *>(memory), plain[1], plain[2], plain[3]}),
              0);
    EXPECT_OK(ftcclCommDeregister(world->comm[0], handle));
    EXPECT_OK(ftcclMemFree(memory));
}

/* A registration may block: the ranks of this process go on meanwhile. */
TEST_F(Registration, BlocksNobodyElse)
{
    auto world = open_world("fabric", 4, "fabric");
    static proc::Meeting *entered, *over;
    proc::Meeting in(2), out(2);
    entered = &in;
    over = &out;
    static std::atomic<int> first;
    first = 1;
    fabric::in_reg = [] {
        if (first.exchange(0)) {
            entered->wait();
            over->wait();
        }
    };
    std::thread registering([&] {
        void *handle = nullptr;
        EXPECT_OK(ftcclCommRegister(world->comm[1], plain[1], 64, &handle));
        EXPECT_OK(ftcclCommDeregister(world->comm[1], handle));
    });
    in.wait();
    EXPECT_TRUE(world->works()) << "while one rank registers";
    out.wait();
    registering.join();
}

} // namespace

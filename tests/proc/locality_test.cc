/*
 * Property: if ranks of a host have only the network between them, their communicator uses the
 * network's costs. All its ranks decide that alike, whatever each of them may use. Method: the
 * linker puts a function of this test before the one of the library that sets a communicator's
 * costs. Ranks are threads, each with its own transports, or processes that are told to have the
 * same pid, as in two containers.
 */
#include <atomic>

#include "tests/proc/proc.h"

extern "C" {
#include "core/core.h"

void __real_ft_tuning_links(struct ft_tuning *, enum ft_links);
void __wrap_ft_tuning_links(struct ft_tuning *, enum ft_links);

pid_t __real_getpid(void);
pid_t __wrap_getpid(void);

static std::atomic<int> local, some, loopback;
static bool container;

pid_t __wrap_getpid(void)
{
    return container ? 1 : __real_getpid();
}

void __wrap_ft_tuning_links(struct ft_tuning *tuning, enum ft_links links)
{
    (links == FT_LINKS_LOCAL ? local : links == FT_LINKS_SOME ? some : loopback)++;
    size_t in_flight = tuning->chunk_bytes * (size_t)tuning->chunks;
    __real_ft_tuning_links(tuning, links);
    EXPECT_EQ(tuning->costs.local_latency_ns == tuning->costs.loopback_latency_ns,
              links != FT_LINKS_LOCAL);
    EXPECT_EQ(tuning->chunk_bytes * (size_t)tuning->chunks, in_flight);
    EXPECT_EQ(tuning->chunks == 1, links == FT_LINKS_LOOPBACK);
    EXPECT_EQ(tuning->peer_lanes, links == FT_LINKS_LOOPBACK);
}
}

namespace
{

/* A world in which the first `odd` ranks that come have other transports than the others. */
void count(const char *first, int odd, const char *others)
{
    static ftcclOptions_t options[2] = {FTCCL_OPTIONS_INITIALIZER, FTCCL_OPTIONS_INITIALIZER};
    options[0].transports = first;
    options[1].transports = others;
    std::atomic<int> came{0};
    local = some = loopback = 0;
    proc::World world(4, [&](ftcclConfig_t &config) {
        config.options = &options[came++ < odd ? 0 : 1];
    });
    EXPECT_TRUE(world.works());
    world.each([&](int r) {
        ftcclComm_t half = nullptr;
        EXPECT_OK(ftcclCommSplit(world.comm[r], r % 2, r, &half, nullptr));
        EXPECT_OK(ftcclCommDestroy(half));
    });
}

TEST(Near, RanksThatShareMemoryCountWithIt)
{
    for (const char *transports : {"inproc", "shm", "shm,tcp", "inproc,shm,tcp", "tcp,inproc"}) {
        count(transports, 4, transports);
        EXPECT_EQ(local.load(), 8) << transports;
    }
}

TEST(Near, RanksWithNothingButTcpCountWithTheNetwork)
{
    count("tcp", 4, "tcp");
    EXPECT_EQ(loopback.load(), 8);
}

TEST(Near, OneRankWithoutSharedMemoryMakesAllCountAlike)
{
    for (const char *others : {"shm,tcp", "inproc,tcp", "inproc,shm,tcp"}) {
        count("tcp", 1, others);
        EXPECT_EQ(some.load(), 4) << others << ": all of the four";
        EXPECT_EQ(loopback.load(), 2) << others << ": the two of its half";
        EXPECT_EQ(local.load(), 2) << others;
    }
}

/* Arguments: the rank, the id. */
CHILD(contained)
{
    ftcclOptions_t options = FTCCL_OPTIONS_INITIALIZER;
    ftcclConfig_t config = FTCCL_CONFIG_INITIALIZER;
    ftcclComm_t comm = nullptr;
    container = true;
    options.transports = "inproc,tcp";
    config.options = &options;
    if (ftcclCommInitRankConfig(&comm, 2, proc::unhex(arguments[1]), std::stoi(arguments[0]),
                                &config) != ftcclSuccess)
        return 2;
    return ftcclCommDestroy(comm) == ftcclSuccess && loopback == 1 ? 0 : 3;
}

TEST(Near, ProcessesOfOnePidAreTwo)
{
    ftcclUniqueId id;
    ASSERT_OK(ftcclGetUniqueId(&id));
    proc::Child first("contained", {"0", proc::hex(id)}), second("contained", {"1", proc::hex(id)});
    EXPECT_EQ(first.wait(), 0);
    EXPECT_EQ(second.wait(), 0);
}

} // namespace

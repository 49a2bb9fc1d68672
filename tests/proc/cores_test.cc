/*
 * Property: the ranks of a host count the processors on which they may run together, whether or not
 * each is bound to one. With fewer processors than ranks they do not spin. All ranks count alike,
 * and a tuning table overrides what they find. Method: the linker puts functions of this test
 * before sched_getaffinity, and before a function of the library that every communicator calls when
 * it is open. Ranks are threads, each with its own processors.
 */
#include <atomic>
#include <cstdio>
#include <cstdlib>

#include <unistd.h>

#include "tests/proc/proc.h"

extern "C" {
#include "core/core.h"

static thread_local std::vector<int> cpus; /* of this rank; none: the machine cannot tell */
static std::atomic<int> fewest, most, crowded;

int __wrap_sched_getaffinity(pid_t, size_t, cpu_set_t *);
void __real_ft_abandoned_check(struct ft_comm *);
void __wrap_ft_abandoned_check(struct ft_comm *);

int __wrap_sched_getaffinity(pid_t, size_t len_bytes, cpu_set_t *set)
{
    if (cpus.empty())
        return -1;
    CPU_ZERO_S(len_bytes, set);
    for (int cpu : cpus)
        CPU_SET_S(size_t(cpu), len_bytes, set);
    return 0;
}

void __wrap_ft_abandoned_check(struct ft_comm *comm)
{
    int cores = comm->tuning.costs.cores_per_host;
    for (int seen = fewest; cores < seen && !fewest.compare_exchange_weak(seen, cores);) {}
    for (int seen = most; cores > seen && !most.compare_exchange_weak(seen, cores);) {}
    crowded += comm->engine->crowded;
    __real_ft_abandoned_check(comm);
}
}

namespace
{

/* What ranks with these processors count with; `also` may do more with the world. */
void expect(const std::vector<std::vector<int>> &of, int cores, int ncrowded,
            void (*also)(proc::World &) = nullptr)
{
    static ftcclOptions_t options = FTCCL_OPTIONS_INITIALIZER;
    options.transports = "shm";
    std::atomic<size_t> came{0};
    fewest = 1 << 20;
    most = crowded = 0;
    proc::World world(int(of.size()), [&](ftcclConfig_t &config) {
        config.options = &options;
        cpus = of[came++];
    });
    EXPECT_EQ(fewest, cores);
    EXPECT_EQ(most, cores) << "not all ranks count alike";
    EXPECT_EQ(crowded, ncrowded) << "ranks that would not spin";
    EXPECT_TRUE(world.works());
    if (also)
        also(world);
}

TEST(Cores, BoundRanksHaveTheirCoresTogether)
{
    expect({{0}, {1}, {2}, {3}}, 4, 0);
    expect({{7}, {1023}}, 2, 0);
}

TEST(Cores, UnboundRanksHaveAllInCommon)
{
    expect({{0, 1}, {0, 1}}, 2, 0);
    expect({{4, 5}, {4, 5}, {4, 5}, {4, 5}}, 2, 4);
}

TEST(Cores, RanksThatAreBoundToOneCoreShareIt)
{
    expect({{3}, {3}}, 1, 2);
    expect({{0}, {0}, {1}, {1}}, 2, 4);
    expect({{0}, {0, 1}, {1}}, 2, 3);
}

TEST(Cores, HalfOfThemCountsWithItsOwn)
{
    expect({{0}, {1}, {2}, {3}}, 4, 0, [](proc::World &world) {
        fewest = 1 << 20;
        most = 0;
        world.each([&](int r) {
            ftcclComm_t half = nullptr;
            EXPECT_OK(ftcclCommSplit(world.comm[size_t(r)], r % 2, r, &half, nullptr));
            EXPECT_OK(ftcclCommDestroy(half));
        });
        EXPECT_EQ(fewest, 2);
        EXPECT_EQ(most, 2);
    });
}

TEST(Cores, WhereTheMachineCannotTellTheNumberOnlineCounts)
{
    int online = int(sysconf(_SC_NPROCESSORS_ONLN));
    expect({{}, {}}, online, online < 2 ? 2 : 0);
    expect({{}, {0}}, 1, 2);
}

TEST(Cores, ATableGoesBefore)
{
    char path[] = "/tmp/ft-cores-XXXXXX";
    int fd = mkstemp(path);
    ASSERT_GE(fd, 0);
    ASSERT_GT(dprintf(fd, "cores_per_host 3\n"), 0);
    close(fd);
    setenv("FTCCL_TUNE_FILE", path, 1);
    ft_params_reload();
    expect({{0, 1}, {0, 1}}, 3, 0);
    expect({{0}, {1}, {2}, {4}}, 3, 4);
    unsetenv("FTCCL_TUNE_FILE");
    ft_params_reload();
    unlink(path);
}

} // namespace

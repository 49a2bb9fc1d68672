/*
 * Property: if another thread of a rank calls Agree or Shrink during the rank's grow of the same
 * communicator, the grow fails on all ranks, each with a sentence. Nothing else is harmed: the
 * other call succeeds, and the parent works and grows again. Method: the linker puts a function of
 * this test before the function with which a grow begins, when the grow has taken its place among
 * the agreements. There the rank's other thread makes its call, which the other ranks have made
 * before their grow.
 */
#include <functional>
#include <thread>

#include "tests/proc/proc.h"

extern "C" {
#include "core/core.h"
#include "core/group/growth.h"

int __real_ft_growth_open(struct ft_engine *, const struct ft_grow_facts *, int, bool,
                          struct ft_growth **);
int __wrap_ft_growth_open(struct ft_engine *, const struct ft_grow_facts *, int, bool,
                          struct ft_growth **);

static thread_local std::function<void()> between;

int __wrap_ft_growth_open(struct ft_engine *engine, const struct ft_grow_facts *facts, int nranks,
                          bool joins, struct ft_growth **out)
{
    if (between)
        std::thread(std::exchange(between, nullptr)).join();
    return __real_ft_growth_open(engine, facts, nranks, joins, out);
}
}

namespace
{

const int OLD = 3;

using Call = std::function<void(ftcclComm_t)>;

void agree(ftcclComm_t comm)
{
    uint64_t flags = 6;
    EXPECT_OK(ftcclCommAgree(comm, &flags));
    EXPECT_EQ(flags, 6u);
}

void shrink(ftcclComm_t comm)
{
    ftcclComm_t child = nullptr;
    int n = 0;
    EXPECT_OK(ftcclCommShrink(comm, nullptr, 0, &child, nullptr, FTCCL_SHRINK_DEFAULT));
    EXPECT_OK(ftcclCommCount(child, &n));
    EXPECT_EQ(n, OLD);
    EXPECT_OK(ftcclCommDestroy(child));
}

/* The last one joins. With a call, it comes between on that rank. */
std::vector<ftcclResult_t> grow(const proc::World &world, int late, const Call &call,
                                std::vector<std::string> &sentences)
{
    std::vector<ftcclResult_t> results(OLD + 1);
    ftcclUniqueId id;
    sentences.resize(OLD + 1);
    EXPECT_OK(ftcclCommGetUniqueId(world.comm[0], &id));
    proc::in_threads(OLD + 1, [&](int thread) {
        size_t r = static_cast<size_t>(thread);
        ftcclComm_t parent = thread < OLD ? world.comm[r] : nullptr, child = nullptr;
        if (thread == late)
            between = [&] { call(parent); };
        else if (parent && call)
            call(parent);
        results[r] = ftcclCommGrow(parent, OLD + 1, thread == 0 || !parent ? &id : nullptr,
                                   parent ? -1 : OLD, &child, nullptr);
        sentences[r] = ftcclGetLastError(parent);
        EXPECT_EQ(child != nullptr, results[r] == ftcclSuccess);
        if (child) {
            EXPECT_OK(ftcclCommDestroy(child));
        }
    });
    return results;
}

void comes_between(const Call &call)
{
    proc::World world(OLD, [](ftcclConfig_t &) {});
    for (int late = 0; late < OLD; late++) {
        std::vector<std::string> said;
        std::vector<ftcclResult_t> results = grow(world, late, call, said);
        for (size_t r = 0; r <= OLD; r++) {
            const char *sentence = static_cast<int>(r) == late
                                       ? "another thread called Agree or Shrink during the grow"
                                   : r < OLD ? "failed on another rank"
                                             : "grow";
            EXPECT_NE(results[r], ftcclSuccess) << "rank " << r << ", late is " << late;
            EXPECT_NE(said[r].find(sentence), std::string::npos)
                << "rank " << r << ", late is " << late << ": " << said[r];
        }
        EXPECT_EQ(results[static_cast<size_t>(late)], ftcclInvalidUsage);
        EXPECT_TRUE(world.works());
        for (ftcclResult_t result : grow(world, -1, nullptr, said))
            EXPECT_OK(result);
    }
}

TEST(Between, AnAgreeFailsTheGrow)
{
    comes_between(agree);
}
TEST(Between, AShrinkFailsTheGrow)
{
    comes_between(shrink);
}

} // namespace

/*
 * Property: if a split or shrink fails on one rank and not on the others, no rank waits for a
 * deadline. The children of the other ranks fail at once with a recoverable error, and then all
 * ranks go on together by a shrink of the parent. Method: the linker replaces two functions of the
 * library by functions of this test, which fail on the rank that the test names. The deadlines are
 * much longer than the measured times, and the bound for coming to the shrink is shorter than they
 * are, so a rank that waits for a deadline comes too late.
 */
#include <atomic>

#include "tests/proc/proc.h"

extern "C" {
#include "core/core.h"

int __real_ft_comm_open(struct ft_engine *, const struct ft_view *, uint64_t, const char *,
                        const struct ft_comm_limits *, struct ft_comm **);
int __wrap_ft_comm_open(struct ft_engine *, const struct ft_view *, uint64_t, const char *,
                        const struct ft_comm_limits *, struct ft_comm **);
int __real_ft_engine_bind(struct ft_engine *, uint64_t);
int __wrap_ft_engine_bind(struct ft_engine *, uint64_t);

static std::atomic<int> no_open{-1}, no_bind{-1}; /* the rank on which it fails */

int __wrap_ft_comm_open(struct ft_engine *engine, const struct ft_view *view, uint64_t ctx,
                        const char *name, const struct ft_comm_limits *limits, struct ft_comm **out)
{
    if (engine->rank == no_open)
        return ft_fail(FT_NOMEM, "no memory on rank %d, says the test", engine->rank);
    return __real_ft_comm_open(engine, view, ctx, name, limits, out);
}

int __wrap_ft_engine_bind(struct ft_engine *engine, uint64_t ctx)
{
    if (engine->rank == no_bind)
        return ft_fail(FT_NOMEM, "no memory on rank %d, says the test", engine->rank);
    return __real_ft_engine_bind(engine, ctx);
}
}

namespace
{

const int n = 4;
const double deadline = 40; /* of an operation */

void configure(ftcclConfig_t &config)
{
    static ftcclOptions_t options = [] {
        ftcclOptions_t some = FTCCL_OPTIONS_INITIALIZER;
        some.opTimeoutMs = static_cast<int64_t>(deadline * 1000);
        some.initTimeoutMs = 15000;
        return some;
    }();
    config.options = &options;
}

ftcclResult_t reduce(ftcclComm_t comm, ftcclStream_t stream, int *sum)
{
    int one = 1;
    ftcclResult_t result = ftcclAllReduce(&one, sum, 1, ftcclInt, ftcclSum, comm, stream);
    return result == ftcclSuccess ? proc::finish(stream) : result;
}

void expect_error(ftcclComm_t comm, ftcclStream_t stream, int rank, int odd)
{
    int sum = 0;
    ftcclResult_t result = reduce(comm, stream, &sum);
    EXPECT_EQ(ftcclGetErrorClass(result), ftcclClassRecoverable) << "rank " << rank;
    std::string why = ftcclGetLastError(comm);
    EXPECT_NE(why.find("rank " + std::to_string(odd)), std::string::npos)
        << "rank " << rank << ": " << why;
}

void expect_works(ftcclComm_t comm, ftcclStream_t stream, int ranks)
{
    int sum = 0, count = 0;
    EXPECT_OK(ftcclCommCount(comm, &count));
    EXPECT_EQ(count, ranks);
    EXPECT_OK(reduce(comm, stream, &sum));
    EXPECT_EQ(sum, ranks);
}

/* All of these ranks go on together, and the others' deadlines are far away. */
void shrink_together(const proc::World &world, int ranks, double start)
{
    EXPECT_LT(proc::now() - start, deadline / 2) << "somebody waited for its deadline";
    proc::in_threads(ranks, [&](int r) {
        auto at = static_cast<size_t>(r);
        ftcclComm_t left = nullptr;
        int last = n - 1;
        ftcclResult_t result = ftcclCommShrink(world.comm[at], &last, ranks < n, &left, nullptr,
                                               FTCCL_SHRINK_DEFAULT);
        EXPECT_OK(result) << "rank " << r << ": " << ftcclGetLastError(world.comm[at]);
        if (result != ftcclSuccess)
            return;
        expect_works(left, world.stream[at], ranks);
        EXPECT_OK(ftcclCommDestroy(left));
    });
}

TEST(Quit, SplitThatFailsOnOneRank)
{
    for (int odd = 0; odd < n; odd++) {
        proc::World world(n, configure);
        double start = proc::now();
        world.each([&](int r) {
            auto at = static_cast<size_t>(r);
            ftcclComm_t child = nullptr;
            if (r == odd)
                no_open = odd;
            ftcclResult_t result = ftcclCommSplit(world.comm[at], 0, r, &child, nullptr);
            EXPECT_EQ(result == ftcclSuccess, r != odd) << "rank " << r << ": " << result;
            if (r == odd)
                no_open = -1;
            if (result != ftcclSuccess)
                return;
            expect_error(child, world.stream[at], r, odd);
            ftcclCommAbort(child);
        });
        world.each([&](int r) {
            expect_works(world.comm[static_cast<size_t>(r)], world.stream[static_cast<size_t>(r)],
                         n);
        });
        shrink_together(world, n, start);
    }
}

TEST(Quit, ShrinkThatFailsOnOneRank)
{
    for (int odd = 0; odd < n - 1; odd++) {
        proc::World world(n, configure);
        double start = proc::now();
        proc::in_threads(n - 1, [&](int r) {
            auto at = static_cast<size_t>(r);
            ftcclComm_t child = nullptr;
            int last = n - 1;
            if (r == odd)
                no_open = odd;
            ftcclResult_t result = ftcclCommShrink(world.comm[at], &last, 1, &child, nullptr,
                                                   FTCCL_SHRINK_DEFAULT);
            EXPECT_EQ(result == ftcclSuccess, r != odd) << "rank " << r << ": " << result;
            if (r == odd)
                no_open = -1;
            if (result != ftcclSuccess)
                return;
            expect_error(child, world.stream[at], r, odd);
            ftcclCommAbort(child);
        });
        shrink_together(world, n - 1, start);
    }
}

/* Before it could listen for the others: it takes part in what they tell each other all the
 * same. */
TEST(Quit, SplitThatCannotBeginOnOneRank)
{
    proc::World world(n, configure);
    double start = proc::now();
    const int odd = 1;
    world.each([&](int r) {
        auto at = static_cast<size_t>(r);
        ftcclComm_t child = nullptr;
        if (r == odd)
            no_bind = odd;
        ftcclResult_t result = ftcclCommSplit(world.comm[at], r / 2, r, &child, nullptr);
        if (r == odd)
            no_bind = -1;
        if (r > odd)
            expect_works(child, world.stream[at], 2); /* another color */
        else
            EXPECT_NE(result, ftcclSuccess) << "rank " << r;
        if (r == 0) {
            std::string why = ftcclGetLastError(world.comm[at]);
            EXPECT_EQ(ftcclGetErrorClass(result), ftcclClassRecoverable) << why;
            EXPECT_NE(why.find("rank 1"), std::string::npos) << why;
        }
        if (child) {
            EXPECT_OK(ftcclCommDestroy(child));
        }
    });
    shrink_together(world, n, start);
}

} // namespace

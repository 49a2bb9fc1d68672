/*
 * Property: ranks that make different calls get ftcclInvalidUsage within seconds, and the sentence
 * names both calls. Method: two or three ranks as threads that differ in one thing. The test's own
 * bound ends a hang.
 */
#include <string>

#include "tests/proc/proc.h"

namespace
{

using Call = ftcclResult_t (*)(int *, int *, ftcclComm_t, ftcclStream_t);
const size_t count = 1000;

struct Pair {
    const char *name;
    Call rank0, others;
    const char *word0, *word1; /* that the sentences must hold */
};

const Pair pairs[] = {
    {"Kind",
     [](int *a, int *b, ftcclComm_t c, ftcclStream_t s) {
         return ftcclAllReduce(a, b, count, ftcclInt, ftcclSum, c, s);
     },
     [](int *a, int *b, ftcclComm_t c, ftcclStream_t s) {
         return ftcclBroadcast(a, b, count, ftcclInt, 0, c, s);
     },
     "llreduce", "roadcast"},
    {"Count",
     [](int *a, int *b, ftcclComm_t c, ftcclStream_t s) {
         return ftcclAllReduce(a, b, count, ftcclInt, ftcclSum, c, s);
     },
     [](int *a, int *b, ftcclComm_t c, ftcclStream_t s) {
         return ftcclAllReduce(a, b, count - 1, ftcclInt, ftcclSum, c, s);
     },
     "1000", "999"},
    {"Type",
     [](int *a, int *b, ftcclComm_t c, ftcclStream_t s) {
         return ftcclAllReduce(a, b, count, ftcclInt, ftcclSum, c, s);
     },
     [](int *a, int *b, ftcclComm_t c, ftcclStream_t s) {
         return ftcclAllReduce(a, b, count, ftcclFloat, ftcclSum, c, s);
     },
     "int32", "float32"},
    {"Operator",
     [](int *a, int *b, ftcclComm_t c, ftcclStream_t s) {
         return ftcclAllReduce(a, b, count, ftcclInt, ftcclSum, c, s);
     },
     [](int *a, int *b, ftcclComm_t c, ftcclStream_t s) {
         return ftcclAllReduce(a, b, count, ftcclInt, ftcclMax, c, s);
     },
     "sum", "max"},
    {"Root",
     [](int *a, int *b, ftcclComm_t c, ftcclStream_t s) {
         return ftcclReduce(a, b, count, ftcclInt, ftcclSum, 0, c, s);
     },
     [](int *a, int *b, ftcclComm_t c, ftcclStream_t s) {
         return ftcclReduce(a, b, count, ftcclInt, ftcclSum, 1, c, s);
     },
     "0", "1"},
    {"EmptyAndNot",
     [](int *a, int *b, ftcclComm_t c, ftcclStream_t s) {
         return ftcclAllReduce(a, b, 0, ftcclInt, ftcclSum, c, s);
     },
     [](int *a, int *b, ftcclComm_t c, ftcclStream_t s) {
         return ftcclAllReduce(a, b, count, ftcclInt, ftcclSum, c, s);
     },
     "0", "1000"},
};

std::string lower(std::string text)
{
    for (char &c : text)
        c = static_cast<char>(tolower(c));
    return text;
}

class Mismatch : public testing::TestWithParam<std::tuple<size_t, int>>
{
};

TEST_P(Mismatch, IsNamedOnEveryRank)
{
    const Pair &pair = pairs[std::get<0>(GetParam())];
    int n = std::get<1>(GetParam());
    proc::World world(n);
    std::vector<ftcclResult_t> result(static_cast<size_t>(n)), state(static_cast<size_t>(n));
    std::vector<std::string> sentence(static_cast<size_t>(n));
    double start = proc::now();
    world.each([&](int rank) {
        auto r = static_cast<size_t>(rank);
        std::vector<int> a(count), b(count);
        result[r] = (rank == 0 ? pair.rank0 : pair.others)(a.data(), b.data(), world.comm[r],
                                                           world.stream[r]);
        if (result[r] == ftcclSuccess)
            result[r] = proc::finish(world.stream[r]);
        sentence[r] = lower(ftcclGetLastError(world.comm[r]));
        /* A rank whose part was over before the difference was seen learns it from the
         * communicator. */
        double end = proc::now() + 3;
        do {
            ftcclCommGetAsyncError(world.comm[r], &state[r]);
        } while (state[r] == ftcclSuccess && proc::now() < end);
        if (sentence[r].empty())
            sentence[r] = lower(ftcclGetLastError(world.comm[r]));
    });
    EXPECT_LT(proc::now() - start, 5);
    for (size_t r = 0; r < static_cast<size_t>(n); r++) {
        EXPECT_EQ(state[r], ftcclInvalidUsage)
            << "rank " << r << ", result " << result[r] << ": " << sentence[r];
        EXPECT_NE(sentence[r].find(pair.word0), std::string::npos)
            << "rank " << r << ": " << sentence[r];
        EXPECT_NE(sentence[r].find(pair.word1), std::string::npos)
            << "rank " << r << ": " << sentence[r];
    }
    for (auto &c : world.comm) {
        ftcclCommAbort(c);
        c = nullptr;
    }
}

INSTANTIATE_TEST_SUITE_P(All, Mismatch,
                         testing::Combine(testing::Range(size_t{0}, std::size(pairs)),
                                          testing::Values(2, 3)),
                         [](const auto &p) {
                             return std::string(pairs[std::get<0>(p.param)].name) + "On" +
                                    std::to_string(std::get<1>(p.param));
                         });

TEST(SendAndRecv, OfDifferentCounts)
{
    proc::World world(2);
    std::vector<ftcclResult_t> result(2), state(2);
    double start = proc::now();
    world.each([&](int rank) {
        auto r = static_cast<size_t>(rank);
        std::vector<int> data(1000);
        result[r] = rank == 0
                        ? ftcclSend(data.data(), 1000, ftcclInt, 1, world.comm[r], world.stream[r])
                        : ftcclRecv(data.data(), 500, ftcclInt, 0, world.comm[r], world.stream[r]);
        if (result[r] == ftcclSuccess)
            result[r] = proc::finish(world.stream[r]);
    });
    EXPECT_LT(proc::now() - start, 5);
    /* the receiver cannot have what it asked for */
    EXPECT_EQ(result[1], ftcclInvalidUsage) << ftcclGetLastError(world.comm[1]);
    for (auto &c : world.comm) {
        ftcclCommAbort(c);
        c = nullptr;
    }
}

} // namespace

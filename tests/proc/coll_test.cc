/*
 * Property: every collective gives the reference's result on every rank, for every type and
 * operator, in place and not, for counts around every boundary and unaligned pointers. Nothing else
 * is written, and no send buffer changes. Method: ranks as threads of this process; results are
 * compared with tests/common/reference.h, with guards before and after.
 */
#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <random>

#include "tests/common/reference.h"
#include "tests/common/sanitizer.h"
#include "tests/proc/proc.h"

namespace
{

unsigned base_seed()
{
    static unsigned seed = [] {
        const char *given = getenv("FT_SEED");
        unsigned s = given != nullptr ? static_cast<unsigned>(strtoul(given, nullptr, 0))
                                      : std::random_device{}();
        printf("seed %u; again with FT_SEED=%u\n", s, s);
        return s;
    }();
    return seed;
}

enum Kind {
    AllReduce,
    Reduce,
    Broadcast,
    AllGather,
    ReduceScatter,
    AlltoAll,
    Gather,
    Scatter,
    Kinds
};
const char *const kind_names[] = {"AllReduce",     "Reduce",   "Broadcast", "AllGather",
                                  "ReduceScatter", "AlltoAll", "Gather",    "Scatter"};
bool reduces(Kind kind)
{
    return kind == AllReduce || kind == Reduce || kind == ReduceScatter;
}

struct Case {
    Kind kind;
    int type, op;
    size_t count;
    int root;
    bool in_place;
    size_t shift; /* bytes by which buffers miss alignment */
};

const size_t guard = 64;

/* Bytes between two guards, in memory that others may read where it lies. */
struct Buffer {
    std::vector<unsigned char, proc::Lendable<unsigned char>> bytes;
    size_t shift, len;
    Buffer(size_t len_bytes, size_t shift_bytes)
        : bytes(2 * guard + len_bytes + shift_bytes, 0xa5), shift(shift_bytes), len(len_bytes)
    {
    }
    unsigned char *at(size_t offset = 0)
    {
        return bytes.data() + guard + shift + offset;
    }
    bool guards_hold() const
    {
        auto untouched = [](unsigned char b) { return b == 0xa5; };
        return std::all_of(bytes.begin(), bytes.begin() + static_cast<long>(guard + shift),
                           untouched) &&
               std::all_of(bytes.begin() + static_cast<long>(guard + shift + len), bytes.end(),
                           untouched);
    }
};

/* Elements that a rank sends and receives; 0 where the buffer is unused. */
size_t sent(const Case &c, int n, int rank)
{
    switch (c.kind) {
    case Broadcast:
        return rank == c.root ? c.count : 0;
    case ReduceScatter:
    case AlltoAll:
        return c.count * static_cast<size_t>(n);
    case Scatter:
        return rank == c.root ? c.count * static_cast<size_t>(n) : 0;
    default:
        return c.count;
    }
}

size_t received(const Case &c, int n, int rank)
{
    switch (c.kind) {
    case Reduce:
        return rank == c.root ? c.count : 0;
    case AllGather:
    case AlltoAll:
        return c.count * static_cast<size_t>(n);
    case Gather:
        return rank == c.root ? c.count * static_cast<size_t>(n) : 0;
    default:
        return c.count;
    }
}

/* Elements between the start of the receive buffer and that of the send buffer when they are
 * one. */
long in_place_offset(const Case &c, int rank)
{
    long count = static_cast<long>(c.count);
    switch (c.kind) {
    case AllGather:
        return rank * count;
    case Gather:
        return rank == c.root ? rank * count : 0;
    case ReduceScatter:
        return -rank * count;
    case Scatter:
        return rank == c.root ? -rank * count : 0;
    default:
        return 0;
    }
}

ftcclResult_t call(const Case &c, const void *from, void *to, ftcclComm_t comm,
                   ftcclStream_t stream)
{
    auto type = static_cast<ftcclDataType_t>(c.type);
    auto op = static_cast<ftcclRedOp_t>(c.op);
    switch (c.kind) {
    case AllReduce:
        return ftcclAllReduce(from, to, c.count, type, op, comm, stream);
    case Reduce:
        return ftcclReduce(from, to, c.count, type, op, c.root, comm, stream);
    case Broadcast:
        return ftcclBroadcast(from, to, c.count, type, c.root, comm, stream);
    case AllGather:
        return ftcclAllGather(from, to, c.count, type, comm, stream);
    case ReduceScatter:
        return ftcclReduceScatter(from, to, c.count, type, op, comm, stream);
    case AlltoAll:
        return ftcclAlltoAll(from, to, c.count, type, comm, stream);
    case Gather:
        return ftcclGather(from, to, c.count, type, c.root, comm, stream);
    default:
        return ftcclScatter(from, to, c.count, type, c.root, comm, stream);
    }
}

/* What `rank` should receive, from everybody's inputs. */
std::vector<unsigned char> expected(const Case &c, int n, int rank,
                                    const std::vector<std::vector<unsigned char>> &input)
{
    size_t size = ref_sizes[c.type], block = size * c.count, len = size * received(c, n, rank);
    auto nth = [&](int r) { return input[static_cast<size_t>(r)].data(); };
    std::vector<unsigned char> want(len);
    if (len == 0)
        return want;
    std::vector<const void *> sources(static_cast<size_t>(n));
    size_t shift = c.kind == ReduceScatter ? static_cast<size_t>(rank) * c.count : 0;
    for (int r = 0; r < n; r++)
        sources[static_cast<size_t>(r)] = nth(r);
    if (reduces(c.kind)) {
        for (size_t i = 0; i < c.count; i++)
            ref_reduce(c.type, c.op, n, sources.data(), shift + i, want.data(), i);
    } else if (c.kind == Broadcast) {
        memcpy(want.data(), nth(c.root), len);
    } else if (c.kind == Scatter) {
        memcpy(want.data(), nth(c.root) + block * static_cast<size_t>(rank), len);
    } else {
        size_t from = c.kind == AlltoAll ? block * static_cast<size_t>(rank) : 0;
        for (int r = 0; r < n; r++)
            memcpy(want.data() + block * static_cast<size_t>(r), nth(r) + from, block);
    }
    return want;
}

std::string describe(const Case &c, int n, int rank)
{
    return std::string(kind_names[c.kind]) + " " + ref_type_names[c.type] +
           (reduces(c.kind) ? std::string(" ") + ref_op_names[c.op] : "") + " count " +
           std::to_string(c.count) + " root " + std::to_string(c.root) +
           (c.in_place ? " in place" : "") + " shift " + std::to_string(c.shift) + " on rank " +
           std::to_string(rank) + " of " + std::to_string(n);
}

std::string run_rank(const Case &c, const proc::World &world, int rank,
                     const std::vector<std::vector<unsigned char>> &input)
{
    int n = world.size();
    auto r = static_cast<size_t>(rank);
    size_t size = ref_sizes[c.type], in_len = size * sent(c, n, rank),
           out_len = size * received(c, n, rank);
    bool one = c.in_place && in_len > 0 && out_len > 0;
    Buffer from(in_len, c.shift),
        to(one ? std::max(in_len, out_len) : out_len, c.shift ? c.shift + size : 0);
    long offset = in_place_offset(c, rank) * static_cast<long>(size);
    unsigned char *send = one ? to.at(offset > 0 ? static_cast<size_t>(offset) : 0) : from.at();
    unsigned char *receive = one ? to.at(offset < 0 ? static_cast<size_t>(-offset) : 0) : to.at();
    if (in_len > 0)
        memcpy(send, input[r].data(), in_len);
    ftcclResult_t result = call(c, in_len ? send : nullptr, out_len ? receive : nullptr,
                                world.comm[r], world.stream[r]);
    if (result == ftcclSuccess)
        result = proc::finish(world.stream[r]);
    if (result != ftcclSuccess)
        return std::string(ftcclGetErrorString(result)) + ": " + ftcclGetLastError(world.comm[r]);
    auto want = expected(c, n, rank, input);
    size_t elements = out_len / size,
           bad = elements ? ref_differs(c.type, c.op, n, receive, want.data(), elements) : 0;
    if (bad < elements) {
        bool f = ref_is_float(c.type);
        return "element " + std::to_string(bad) + " is " +
               (f ? std::to_string(ref_get_float(c.type, receive, bad))
                  : std::to_string(ref_get_int(c.type, receive, bad))) +
               " instead of " +
               (f ? std::to_string(ref_get_float(c.type, want.data(), bad))
                  : std::to_string(ref_get_int(c.type, want.data(), bad)));
    }
    if (!one && in_len > 0 && memcmp(from.at(), input[r].data(), in_len) != 0)
        return "the send buffer was written";
    if (!from.guards_hold() || !to.guards_hold())
        return "bytes outside the buffers were written";
    return "";
}

void run(const Case &c, const proc::World &world)
{
    int n = world.size();
    std::vector<std::vector<unsigned char>> input(static_cast<size_t>(n));
    for (int r = 0; r < n; r++) {
        size_t count = sent(c, n, r);
        input[static_cast<size_t>(r)].resize(ref_sizes[c.type] * count + 1);
        ref_fill(c.type, reduces(c.kind) ? c.op : static_cast<int>(ftcclSum),
                 input[static_cast<size_t>(r)].data(), count,
                 base_seed() + static_cast<unsigned>(r) * 7919u);
    }
    std::vector<std::string> problem(static_cast<size_t>(n));
    world.each(
        [&](int rank) { problem[static_cast<size_t>(rank)] = run_rank(c, world, rank, input); });
    for (int r = 0; r < n; r++) {
        EXPECT_EQ(problem[static_cast<size_t>(r)], "")
            << describe(c, n, r) << ", FT_SEED=" << base_seed();
    }
}

class Collectives : public testing::TestWithParam<std::tuple<int, Kind>>
{
};

TEST_P(Collectives, EveryTypeAndOperator)
{
    auto [n, kind] = GetParam();
    proc::World world(n);
    for (int type = 0; type < ftcclNumTypes; type++) {
        for (int op = 0; op < (reduces(kind) ? static_cast<int>(ftcclNumOps) : 1); op++) {
            for (bool in_place : {false, true}) {
                run({kind, type, op, 1021, n - 1, in_place, in_place ? 1u : 0u}, world);
                if (HasFailure())
                    return;
            }
        }
    }
}

TEST_P(Collectives, EveryCountAroundABoundary)
{
    auto [n, kind] = GetParam();
    proc::World world(n);
    size_t ranks = static_cast<size_t>(n), chunk = 131072 / 4;
    std::vector<size_t> counts{0,         1,     2,         ranks - 1,    ranks,
                               ranks + 1, 31,    32,        33,           chunk / ranks,
                               chunk - 1, chunk, chunk + 1, 4 * chunk + 3};
    if (kind == AllReduce)
        counts.push_back(ranks * 4 * chunk + 1);
    int turn = 0;
    for (size_t count : counts) {
        for (bool in_place : {false, true}) {
            run({kind, ftcclFloat, ftcclSum, count, turn++ % n, in_place, 0}, world);
            if (HasFailure())
                return;
        }
    }
}

TEST_P(Collectives, EveryShiftOfThePointers)
{
    auto [n, kind] = GetParam();
    proc::World world(n);
    for (int type : {ftcclInt8, ftcclFloat16, ftcclFloat, ftcclDouble}) {
        for (size_t shift : {1u, 2u, 3u, 4u, 7u, 31u, 63u}) {
            run({kind, type, ftcclSum, 777, 0, shift % 2 == 0, shift}, world);
            if (HasFailure())
                return;
        }
    }
}

std::vector<int> sizes()
{
    return is_sanitized("thread") ? std::vector<int>{2, 3, 5} : std::vector<int>{1, 2, 3, 4, 5, 8};
}

INSTANTIATE_TEST_SUITE_P(All, Collectives,
                         testing::Combine(testing::ValuesIn(sizes()),
                                          testing::Range(AllReduce, Kinds, static_cast<Kind>(1))),
                         [](const auto &p) {
                             return std::string(kind_names[std::get<1>(p.param)]) + "On" +
                                    std::to_string(std::get<0>(p.param));
                         });

TEST(Operators, PreMulSumTakesTheScalarNowOrLater)
{
    proc::World world(3);
    for (auto residence : {ftcclScalarHostImmediate, ftcclScalarDevice}) {
        std::vector<float> scalar{1, 2, 4}, got(3);
        world.each([&](int rank) {
            auto r = static_cast<size_t>(rank);
            ftcclRedOp_t op;
            ASSERT_OK(
                ftcclRedOpCreatePreMulSum(&op, &scalar[r], ftcclFloat, residence, world.comm[r]));
            if (residence == ftcclScalarHostImmediate)
                scalar[r] = -1; /* was read already */
            got[r] = 3;
            EXPECT_OK(ftcclAllReduce(&got[r], &got[r], 1, ftcclFloat, op, world.comm[r],
                                     world.stream[r]));
            EXPECT_OK(ftcclRedOpDestroy(op, world.comm[r])); /* what is enqueued goes on */
            EXPECT_OK(proc::finish(world.stream[r]));
        });
        for (float v : got)
            EXPECT_EQ(v, 3 * (1 + 2 + 4));
    }
}

TEST(Operators, PreMulSumOfEveryType)
{
    proc::World world(2);
    for (int type = 0; type < ftcclNumTypes; type++) {
        world.each([&](int rank) {
            auto r = static_cast<size_t>(rank);
            unsigned char two[8] = {}, in[8] = {}, out[8] = {}, want[8] = {};
            bool f = ref_is_float(type);
            f ? ref_put_float(type, two, 0, 2) : ref_put_int(type, two, 0, 2);
            f ? ref_put_float(type, in, 0, rank + 1)
              : ref_put_int(type, in, 0, static_cast<uint64_t>(rank + 1));
            f ? ref_put_float(type, want, 0, 6) : ref_put_int(type, want, 0, 6);
            ftcclRedOp_t op;
            ASSERT_OK(ftcclRedOpCreatePreMulSum(&op, two, static_cast<ftcclDataType_t>(type),
                                                ftcclScalarHostImmediate, world.comm[r]));
            EXPECT_OK(ftcclAllReduce(in, out, 1, static_cast<ftcclDataType_t>(type), op,
                                     world.comm[r], world.stream[r]));
            EXPECT_OK(proc::finish(world.stream[r]));
            EXPECT_EQ(memcmp(out, want, 8), 0) << ref_type_names[type];
            EXPECT_OK(ftcclRedOpDestroy(op, world.comm[r]));
        });
    }
}

TEST(Determinism, SameBitsOnEveryRankAndInEveryRun)
{
    const size_t count = 100003;
    std::vector<std::vector<float>> first;
    for (int turn = 0; turn < 3; turn++) {
        proc::World world(4);
        std::vector<std::vector<float>> data(4, std::vector<float>(count));
        world.each([&](int rank) {
            auto r = static_cast<size_t>(rank);
            std::mt19937 random(static_cast<unsigned>(rank) + 1);
            std::uniform_real_distribution<float> values(-1000, 1000);
            for (auto &v : data[r])
                v = values(random); /* sums depend on the order */
            EXPECT_OK(ftcclAllReduce(data[r].data(), data[r].data(), count, ftcclFloat, ftcclSum,
                                     world.comm[r], world.stream[r]));
            EXPECT_OK(proc::finish(world.stream[r]));
        });
        for (size_t r = 1; r < 4; r++)
            EXPECT_EQ(memcmp(data[r].data(), data[0].data(), 4 * count), 0) << "rank " << r;
        if (turn == 0)
            first = data;
        EXPECT_EQ(memcmp(first[0].data(), data[0].data(), 4 * count), 0) << "run " << turn;
    }
}

} // namespace

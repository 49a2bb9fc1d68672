/*
 * Property: no algorithm writes a send buffer out of place, for any type. With preserveInput, after
 * a death interrupts an in-place AllReduce, the buffers of every survivor hold their input again,
 * bit for bit, and the copies are freed. Method: send buffers to which the processor refuses to
 * write, in a child process; ranks as processes of which one kills itself while it reduces.
 */
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <random>

#include "tests/common/reference.h"
#include "tests/common/sanitizer.h"
#include "tests/proc/proc.h"

namespace
{

/* ---- never written out of place -------------------------------------------------------------- */

struct Guarded {
    size_t len;
    void *at;
    explicit Guarded(size_t len_bytes)
        : len(len_bytes),
          at(mmap(nullptr, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0))
    {
        memset(at, 1, len);
        mprotect(at, len, PROT_READ);
    }
    ~Guarded()
    {
        munmap(at, len);
    }
    Guarded(const Guarded &) = delete;
};

const int kinds = 8;

struct Call {
    int kind, type, op;
    size_t count;
};

ftcclResult_t call(const Call &c, const void *from, void *to, ftcclComm_t comm,
                   ftcclStream_t stream)
{
    auto t = static_cast<ftcclDataType_t>(c.type);
    auto op = static_cast<ftcclRedOp_t>(c.op);
    size_t count = c.count;
    switch (c.kind) {
    case 0:
        return ftcclAllReduce(from, to, count, t, op, comm, stream);
    case 1:
        return ftcclReduce(from, to, count, t, op, 1, comm, stream);
    case 2:
        return ftcclBroadcast(from, to, count, t, 1, comm, stream);
    case 3:
        return ftcclAllGather(from, to, count, t, comm, stream);
    case 4:
        return ftcclReduceScatter(from, to, count, t, op, comm, stream);
    case 5:
        return ftcclAlltoAll(from, to, count, t, comm, stream);
    case 6:
        return ftcclGather(from, to, count, t, 1, comm, stream);
    default:
        return ftcclScatter(from, to, count, t, 1, comm, stream);
    }
}

/* Every type of one kind and count from guarded buffers, in a communicator of its own: an algorithm
 * that does not do this kind or size ends it. Counts the calls that were right, refused and
 * neither. */
struct Tally {
    int right = 0, refused = 0, bad = 0;
};

void try_kind(int n, int kind, size_t count, Tally &tally)
{
    proc::World world(n);
    world.each([&](int rank) {
        auto r = static_cast<size_t>(rank);
        Guarded from(count * 8 * static_cast<size_t>(n));
        std::vector<char> to(from.len);
        for (int type = 0; type < ftcclNumTypes; type++)
            for (int op : {static_cast<int>(ftcclSum), static_cast<int>(ftcclAvg)}) {
                ftcclResult_t result = call({kind, type, op, count}, from.at, to.data(),
                                            world.comm[r], world.stream[r]);
                if (result == ftcclSuccess)
                    result = proc::finish(world.stream[r]);
                /* here, or a peer was first */
                bool refused = result == ftcclInvalidUsage || result == ftcclRemoteError;
                if (rank == 0)
                    (result == ftcclSuccess ? tally.right : refused ? tally.refused : tally.bad)++;
                if (result != ftcclSuccess)
                    return;
            }
    });
}

/* guarded N: every collective on N ranks. */
CHILD(guarded)
{
    Tally tally;
    for (int kind = 0; kind < kinds; kind++)
        for (size_t count : {1u, 1021u, 40000u})
            try_kind(std::stoi(arguments[0]), kind, count, tally);
    printf("%s\n", tally.bad == 0 && tally.right >= 24 ? "good" : "bad");
    printf("%d right, %d refused, %d bad\n", tally.right, tally.refused, tally.bad);
    return 0;
}

class OutOfPlace : public testing::TestWithParam<const char *>
{
};

TEST_P(OutOfPlace, SendBuffersAreNeverWritten)
{
    for (const char *n : {"2", "4", "5"}) {
        if (is_sanitized("thread") && *n != '5')
            continue;
        if (!strcmp(GetParam(), "bruck") && *n == '2')
            continue; /* for more than 2 */
        proc::Child child("guarded", {n}, {{"FTCCL_ALGO", GetParam()}, {"FTCCL_DEBUG", "VERSION"}});
        std::string word = child.line(60), numbers = child.line();
        EXPECT_EQ(word, "good") << n << " ranks: " << numbers;
        EXPECT_EQ(child.wait(), 0) << n << " ranks";
    }
}

INSTANTIATE_TEST_SUITE_P(Algorithm, OutOfPlace,
                         testing::Values("", "ring", "rd", "hd", "tree", "direct", "bruck", "flat"),
                         [](const auto &p) {
                             return *p.param ? std::string(p.param) : std::string("chosen");
                         });

/* ---- restored in place ----------------------------------------------------------------------- */

void fill(std::vector<uint32_t> &data, uint32_t key)
{
    for (size_t i = 0; i < data.size(); i++)
        data[i] = key * 2654435761u + static_cast<uint32_t>(i) * 40503u;
}

/* inplace ID NRANKS RANK COUNT DELAY: reduces until it fails; with a delay kills itself so many
 * microseconds into the third. */
CHILD(inplace)
{
    int n = std::stoi(arguments[1]), rank = std::stoi(arguments[2]),
        delay = std::stoi(arguments[4]);
    std::vector<uint32_t> data(std::stoul(arguments[3])), want(data.size());
    ftcclOptions_t options = FTCCL_OPTIONS_INITIALIZER;
    options.preserveInput = 1;
    ftcclConfig_t config = FTCCL_CONFIG_INITIALIZER;
    config.options = &options;
    ftcclComm_t comm;
    ftcclStream_t stream;
    if (ftcclStreamCreate(&stream) != ftcclSuccess)
        return 1;
    if (ftcclCommInitRankConfig(&comm, n, proc::unhex(arguments[0]), rank, &config) != ftcclSuccess)
        return 2;
    ftcclResult_t result = ftcclSuccess;
    for (uint32_t i = 0; result == ftcclSuccess; i++) {
        fill(want, i * 64 + static_cast<uint32_t>(rank));
        data = want;
        result = ftcclAllReduce(data.data(), data.data(), data.size(), ftcclUint32, ftcclSum, comm,
                                stream);
        if (delay > 0 && i == 2) {
            usleep(static_cast<useconds_t>(delay));
            kill(getpid(), SIGKILL);
        }
        if (result == ftcclSuccess)
            result = ftcclStreamSynchronize(stream);
    }
    size_t at = 0;
    while (at < data.size() && data[at] == want[at])
        at++;
    if (at == data.size())
        printf("%d restored\n", result);
    else
        printf("%d element %zu is %u, not %u\n", result, at, data[at], want[at]);
    ftcclCommAbort(comm);
    ftcclStreamDestroy(stream);
    return 0;
}

TEST(InPlace, ADeathRestoresTheInputOfTheSurvivors)
{
    const char *given = getenv("FT_SEED");
    unsigned seed = given != nullptr ? static_cast<unsigned>(strtoul(given, nullptr, 0))
                                     : std::random_device{}();
    printf("seed %u; again with FT_SEED=%u\n", seed, seed);
    std::mt19937 random(seed);
    const int n = 3;
#ifdef __SANITIZE_THREAD__
    const unsigned count = 1u << 20; /* its ranks look at every element many times */
#else
    const unsigned count = 16u << 20;
#endif
    for (int i = 0; i < 6; i++) {
        ftcclUniqueId id;
        ASSERT_OK(ftcclGetUniqueId(&id));
        int victim = i % n, delay = 1 + static_cast<int>(random() % 150000);
        std::vector<std::unique_ptr<proc::Child>> rank;
        for (int r = 0; r < n; r++) {
            std::vector<std::string> words{proc::hex(id), std::to_string(n), std::to_string(r),
                                           std::to_string(count),
                                           std::to_string(r == victim ? delay : 0)};
            rank.push_back(std::make_unique<proc::Child>(
                "inplace", words,
                std::map<std::string, std::string>{{"FTCCL_TRANSPORTS", i % 2 ? "tcp" : "shm"}}));
        }
        for (int r = 0; r < n; r++) {
            if (r == victim)
                continue;
            EXPECT_EQ(rank[static_cast<size_t>(r)]->line(120),
                      std::to_string(ftcclRemoteError) + " restored")
                << "rank " << r << ", rank " << victim << " died " << delay << " us into its call";
            EXPECT_EQ(rank[static_cast<size_t>(r)]->wait(), 0);
        }
    }
}

ftcclResult_t init_with(const ftcclOptions_t &options)
{
    ftcclConfig_t config = FTCCL_CONFIG_INITIALIZER;
    config.options = &options;
    ftcclUniqueId id;
    ftcclComm_t comm = nullptr;
    EXPECT_OK(ftcclGetUniqueId(&id));
    ftcclResult_t result = ftcclCommInitRankConfig(&comm, 1, id, 0, &config);
    if (result == ftcclSuccess)
        ftcclCommDestroy(comm);
    return result;
}

TEST(Option, IsCheckedAndOlderSizesAreUnderstood)
{
    ftcclOptions_t options = FTCCL_OPTIONS_INITIALIZER;
    for (int64_t good : {INT64_C(0), INT64_C(1), FTCCL_OPTION_UNDEF}) {
        options.preserveInput = good;
        EXPECT_OK(init_with(options));
    }
    for (int64_t bad : {INT64_C(-1), INT64_C(2)}) {
        options.preserveInput = bad;
        EXPECT_CALLER(init_with(options));
    }
    for (size_t older :
         {offsetof(ftcclOptions_t, transports), offsetof(ftcclOptions_t, preserveInput)}) {
        options.size = older; /* the bad value behind it is not looked at */
        EXPECT_OK(init_with(options));
    }
}

TEST(InPlace, CopiesAreGivenBack)
{
    static ftcclOptions_t options = FTCCL_OPTIONS_INITIALIZER;
    options.preserveInput = 1;
    long before = 0;
    for (int i = 0; i < 24; i++) {
        if (i == 4)
            before = proc::resident_kib();
        proc::World world(2, [](ftcclConfig_t &config) { config.options = &options; });
        world.each([&](int rank) {
            auto r = static_cast<size_t>(rank);
            for (size_t count : {1u << 10, 1u << 20, 1u << 18}) {
                std::vector<int> data(count, 1);
                EXPECT_OK(ftcclAllReduce(data.data(), data.data(), count, ftcclInt, ftcclSum,
                                         world.comm[r], world.stream[r]));
                EXPECT_OK(proc::finish(world.stream[r]));
                EXPECT_EQ(data.back(), 2);
            }
        });
    }
    if (is_sanitized())
        return; /* they keep freed memory for a while */
    EXPECT_LT(proc::resident_kib() - before, 32 << 10) << "each cycle copies 8 MiB";
}

} // namespace

/*
 * Property: a thread may abort a communicator while another thread is in Agree, Shrink, Grow or
 * init. Both calls return soon, the other ranks learn of it and go on, and nothing is left behind:
 * no descriptor, thread, file in /dev/shm, handle or served id. Method: ranks as threads; one of
 * them is aborted at a random moment. One rank comes late, so the others are really waiting.
 */
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <set>
#include <thread>

#include "tests/proc/proc.h"

namespace
{

constexpr double kSoon = 30; /* seconds; initTimeoutMs is longer */

ftcclOptions_t bounds(int64_t init_ms)
{
    ftcclOptions_t options = FTCCL_OPTIONS_INITIALIZER;
    options.initTimeoutMs = init_ms;
    options.opTimeoutMs = 60000;
    return options;
}

ftcclConfig_t patient(int blocking = 1)
{
    static ftcclOptions_t options = bounds(60000);
    ftcclConfig_t config = FTCCL_CONFIG_INITIALIZER;
    config.options = &options;
    config.blocking = blocking;
    return config;
}

void pause_us(uint64_t us)
{
    usleep(static_cast<useconds_t>(us));
}

/* The child of a shrink, a grow or nothing works, and goes. */
int reduce(ftcclComm_t comm)
{
    int n = 0, value = 1;
    ftcclStream_t stream;
    ftcclCommCount(comm, &n);
    EXPECT_OK(ftcclStreamCreate(&stream));
    ftcclResult_t result = ftcclAllReduce(&value, &value, 1, ftcclInt, ftcclSum, comm, stream);
    if (result == ftcclSuccess)
        result = ftcclStreamSynchronize(stream);
    ftcclStreamDestroy(stream);
    return result == ftcclSuccess && value == n ? n : -1;
}

int rounds()
{
    const char *text = getenv("FT_ROUNDS");
    return text ? atoi(text) : 12;
}

using proc::Dice;
using Call = std::function<ftcclResult_t(proc::World &, size_t rank, ftcclComm_t *child)>;

/* All ranks call; the victim is aborted meanwhile. The others end soon, shrink, and go on without
 * it. */
void abort_during(Dice &dice, const Call &call)
{
    constexpr size_t n = 4;
    proc::World world(n, [](ftcclConfig_t &config) { config = patient(); });
    size_t victim = dice(n), late = (victim + 1 + dice(n - 1)) % n;
    uint64_t when = dice(30000), late_us = 5000 + dice(20000);
    std::atomic<bool> entered{false};
    std::thread aborting([&] {
        while (!entered)
            std::this_thread::yield();
        pause_us(when);
        double start = proc::now();
        EXPECT_OK(ftcclCommAbort(world.comm[victim]));
        EXPECT_LT(proc::now() - start, kSoon);
    });
    world.each([&](int r) {
        size_t i = static_cast<size_t>(r);
        ftcclComm_t child = nullptr, next = nullptr;
        if (i == late)
            pause_us(late_us);
        if (i == victim)
            entered = true;
        double start = proc::now();
        ftcclResult_t result = call(world, i, &child);
        EXPECT_LT(proc::now() - start, kSoon)
            << "rank " << r << (i == victim ? ", which was aborted" : "") << ": " << result;
        if (child) {
            EXPECT_OK(ftcclCommAbort(child));
        }
        if (i == victim)
            return;
        EXPECT_NE(ftcclGetErrorClass(result), ftcclClassFatal)
            << "rank " << r << ": " << ftcclGetLastError(world.comm[i]);
        ASSERT_OK(ftcclCommShrink(world.comm[i], nullptr, 0, &next, nullptr, FTCCL_SHRINK_DEFAULT))
            << "rank " << r;
        EXPECT_EQ(reduce(next), static_cast<int>(n) - 1) << "rank " << r;
        EXPECT_OK(ftcclCommDestroy(next));
    });
    aborting.join();
    world.comm[victim] = nullptr;
}

void repeat(const std::function<void(Dice &)> &round)
{
    Dice dice = proc::dice();
    ftcclUniqueId unused; /* the rendezvous of a process stays while an id may still be asked for */
    EXPECT_OK(ftcclGetUniqueId(&unused));
    round(dice); /* what stays for the life of the process is there */
    proc::Holdings before;
    for (int k = 0; k < rounds() && !testing::Test::HasFailure(); k++)
        round(dice);
    before.expect_no_more();
}

TEST(Abort, DuringAgree)
{
    repeat([](Dice &dice) {
        abort_during(dice, [](proc::World &world, size_t rank, ftcclComm_t *) {
            uint64_t flags = 7;
            return ftcclCommAgree(world.comm[rank], &flags);
        });
    });
}

TEST(Abort, DuringShrink)
{
    repeat([](Dice &dice) {
        abort_during(dice, [](proc::World &world, size_t rank, ftcclComm_t *child) {
            return ftcclCommShrink(world.comm[rank], nullptr, 0, child, nullptr,
                                   FTCCL_SHRINK_DEFAULT);
        });
    });
}

/* The root may be the one; the joiner learns what becomes of it, or that nobody is left who
 * knows. */
TEST(Abort, DuringGrow)
{
    repeat([](Dice &dice) {
        size_t root = dice(4);
        std::atomic<bool> made{false};
        ftcclUniqueId id;
        uint64_t join_us = dice(20000);
        std::thread joining([&] {
            ftcclComm_t comm = nullptr;
            ftcclConfig_t config = patient();
            while (!made)
                std::this_thread::yield();
            pause_us(join_us);
            double start = proc::now();
            ftcclResult_t result = ftcclCommGrow(nullptr, 5, &id, 4, &comm, &config);
            EXPECT_LT(proc::now() - start, kSoon)
                << "the joiner: " << result << " " << ftcclGetLastError(nullptr);
            if (comm) {
                EXPECT_OK(ftcclCommAbort(comm));
            }
        });
        abort_during(dice, [&](proc::World &world, size_t rank, ftcclComm_t *child) {
            ftcclResult_t result = ftcclSuccess;
            if (rank == root) {
                result = ftcclCommGetUniqueId(world.comm[rank], &id);
                if (result != ftcclSuccess)
                    memset(&id, 0, sizeof id); /* aborted before it began */
                made = true;
            }
            return ftcclCommGrow(world.comm[rank], 5, rank == root ? &id : nullptr, -1, child,
                                 nullptr);
        });
        joining.join();
    });
}

TEST(Abort, OfTheJoiner)
{
    repeat([](Dice &dice) {
        /* the root waits a quarter of it for a joiner that was aborted before it came */
        static ftcclOptions_t shorter = bounds(8000);
        proc::World world(2, [](ftcclConfig_t &config) { config.options = &shorter; });
        ftcclUniqueId id;
        ASSERT_OK(ftcclCommGetUniqueId(world.comm[0], &id));
        ftcclComm_t joiner = nullptr;
        ftcclConfig_t config = patient(0);
        uint64_t when = dice(30000), late_us = dice(20000);
        ftcclResult_t result = ftcclCommGrow(nullptr, 3, &id, 2, &joiner, &config);
        EXPECT_TRUE(result == ftcclSuccess || result == ftcclInProgress) << result;
        std::thread aborting([&] {
            pause_us(when);
            EXPECT_OK(ftcclCommAbort(joiner));
        });
        world.each([&](int r) {
            size_t i = static_cast<size_t>(r);
            ftcclComm_t child = nullptr;
            if (r == 1)
                pause_us(late_us);
            double start = proc::now();
            ftcclResult_t grown = ftcclCommGrow(world.comm[i], 3, r == 0 ? &id : nullptr, -1,
                                                &child, nullptr);
            EXPECT_LT(proc::now() - start, kSoon)
                << "rank " << r << ": " << ftcclGetLastError(world.comm[i]);
            if (grown == ftcclSuccess) {
                EXPECT_EQ(reduce(child), -1) << "it was aborted";
            } else
                EXPECT_EQ(ftcclGetErrorClass(grown), ftcclClassRecoverable)
                    << ftcclGetLastError(world.comm[i]);
            if (child) {
                EXPECT_OK(ftcclCommAbort(child));
            }
        });
        aborting.join();
        EXPECT_TRUE(world.works()) << "the parent";
    });
}

/* One rank of four never comes, so the others wait. They are told at once of one that had checked
 * in; one that was aborted before that never came. */
TEST(Abort, DuringInit)
{
    std::atomic<int> told{0}, missed{0};
    repeat([&](Dice &dice) {
        ftcclUniqueId id;
        ASSERT_OK(ftcclGetUniqueId(&id));
        ftcclComm_t comm[3] = {};
        int victim = static_cast<int>(dice(3)), blocking = static_cast<int>(dice(2));
        uint64_t when = dice(30000);
        std::thread aborting([&] {
            ftcclComm_t handle;
            while (!(handle = __atomic_load_n(&comm[victim], __ATOMIC_ACQUIRE)))
                std::this_thread::yield();
            pause_us(when);
            double start = proc::now();
            EXPECT_OK(ftcclCommAbort(handle));
            EXPECT_LT(proc::now() - start, kSoon);
        });
        proc::in_threads(3, [&](int r) {
            ftcclConfig_t config = patient(r == victim ? blocking : 1);
            static ftcclOptions_t options = bounds(2000);
            if (r != victim)
                config.options = &options;
            double start = proc::now();
            ftcclResult_t result = ftcclCommInitRankConfig(&comm[r], 4, id, r, &config);
            EXPECT_LT(proc::now() - start, kSoon) << "rank " << r;
            if (r == victim)
                return;
            std::string sentence = ftcclGetLastError(nullptr), number = std::to_string(victim);
            EXPECT_TRUE(result == ftcclRemoteError || result == ftcclTimeout) << sentence;
            EXPECT_NE(sentence.find(result == ftcclTimeout ? number : "rank " + number),
                      std::string::npos)
                << sentence;
            (result == ftcclRemoteError ? told : missed)++;
        });
        aborting.join();
    });
    printf("%d ranks were told that another one had been aborted, %d that it never came\n",
           told.load(), missed.load());
    ftcclComm_t alone = nullptr;
    ftcclUniqueId id;
    ASSERT_OK(ftcclGetUniqueId(&id));
    std::thread aborting([&] {
        ftcclComm_t handle;
        while (!(handle = __atomic_load_n(&alone, __ATOMIC_ACQUIRE)))
            std::this_thread::yield();
        pause_us(20000);
        EXPECT_OK(ftcclCommAbort(handle));
    });
    ftcclConfig_t config = patient();
    EXPECT_NE(ftcclCommInitRankConfig(&alone, 2, id, 0, &config), ftcclSuccess);
    aborting.join();
    std::set<ftcclComm_t> handles; /* one that was freed twice would be given out twice */
    for (int k = 0; k < 72; k++) {
        ftcclComm_t comm = nullptr;
        ASSERT_OK(ftcclCommInitAll(&comm, 1, nullptr));
        EXPECT_TRUE(handles.insert(comm).second) << "communicator " << k;
        if (HasFailure())
            return;
    }
    for (ftcclComm_t comm : handles)
        EXPECT_OK(ftcclCommDestroy(comm));
}

} // namespace

/*
 * Property: communicators of every kind are made, work and end within their bounds, and leave
 * nothing behind. Method: ranks as threads; descriptors, threads, files in /dev/shm and resident
 * memory are compared over many cycles.
 */
#include <unistd.h>

#include <atomic>
#include <thread>

#include "tests/common/sanitizer.h"
#include "tests/proc/proc.h"

namespace
{

/* seconds: who waits for a deadline that was not set waits for a minute */
constexpr double kAtOnce = 20;

TEST(InitAll, EverySize)
{
    for (int n : {1, 2, 3, 4, 5, 8, 16}) {
        proc::World world(n);
        for (int r = 0; r < n; r++) {
            int count = 0, rank = -1, device = -1;
            EXPECT_OK(ftcclCommCount(world.comm[static_cast<size_t>(r)], &count));
            EXPECT_OK(ftcclCommUserRank(world.comm[static_cast<size_t>(r)], &rank));
            EXPECT_OK(ftcclCommCuDevice(world.comm[static_cast<size_t>(r)], &device));
            EXPECT_EQ(count, n);
            EXPECT_EQ(rank, r);
        }
        EXPECT_TRUE(world.works());
    }
}

TEST(InitAll, RemembersDevices)
{
    int devices[3] = {5, 0, 7};
    ftcclComm_t comm[3];
    ASSERT_OK(ftcclCommInitAll(comm, 3, devices));
    for (int r = 0; r < 3; r++) {
        int device = -1;
        EXPECT_OK(ftcclCommCuDevice(comm[r], &device));
        EXPECT_EQ(device, devices[r]);
    }
    proc::in_threads(3, [&](int r) { EXPECT_OK(ftcclCommDestroy(comm[r])); });
}

TEST(InitRank, InThreads)
{
    for (int n : {1, 2, 5, 8}) {
        proc::World world(n, [](ftcclConfig_t &) {});
        EXPECT_TRUE(world.works());
    }
}

TEST(InitRank, AllRanksOfOneThreadInAGroup)
{
    const int n = 4;
    ftcclUniqueId id;
    ASSERT_OK(ftcclGetUniqueId(&id));
    ftcclComm_t comm[n];
    ASSERT_OK(ftcclGroupStart());
    for (int r = 0; r < n; r++)
        EXPECT_OK(ftcclCommInitRank(&comm[r], n, id, r));
    ASSERT_OK(ftcclGroupEnd());
    int data[n] = {1, 1, 1, 1};
    ASSERT_OK(ftcclGroupStart());
    for (int r = 0; r < n; r++)
        EXPECT_OK(ftcclAllReduce(&data[r], &data[r], 1, ftcclInt, ftcclSum, comm[r], nullptr));
    ASSERT_OK(ftcclGroupEnd());
    EXPECT_OK(ftcclStreamSynchronize(nullptr));
    for (int v : data)
        EXPECT_EQ(v, n);
    proc::in_threads(n, [&](int r) { EXPECT_OK(ftcclCommDestroy(comm[r])); });
}

TEST(InitRank, RanksFarApartInTime)
{
    ftcclUniqueId id;
    ASSERT_OK(ftcclGetUniqueId(&id));
    ftcclComm_t comm[2];
    std::atomic<bool> first_is_in{false};
    std::thread first([&] {
        first_is_in = true;
        EXPECT_OK(ftcclCommInitRank(&comm[1], 2, id, 1));
    });
    while (!first_is_in)
        std::this_thread::yield();
    for (int i = 0; i < 1000; i++)
        std::this_thread::yield();
    EXPECT_OK(ftcclCommInitRank(&comm[0], 2, id, 0));
    first.join();
    proc::in_threads(2, [&](int r) { EXPECT_OK(ftcclCommDestroy(comm[r])); });
}

/* Waits until a non-blocking call is done; the bound is the test's. */
ftcclResult_t settle(ftcclComm_t comm)
{
    double end = proc::now() + 20;
    ftcclResult_t state = ftcclInProgress;
    while (state == ftcclInProgress && proc::now() < end) {
        EXPECT_OK(ftcclCommGetAsyncError(comm, &state));
        std::this_thread::yield();
    }
    return state;
}

TEST(InitRank, NonBlockingComesBackAtOnce)
{
    ftcclUniqueId id;
    ASSERT_OK(ftcclGetUniqueId(&id));
    ftcclComm_t comm[2] = {};
    ftcclConfig_t config = FTCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    for (int r = 0; r < 2; r++) { /* one thread: a blocking call would never end */
        double start = proc::now();
        ftcclResult_t result = ftcclCommInitRankConfig(&comm[r], 2, id, r, &config);
        EXPECT_TRUE(result == ftcclInProgress || result == ftcclSuccess) << result;
        EXPECT_LT(proc::now() - start, kAtOnce);
        ASSERT_NE(comm[r], nullptr);
    }
    int data[2] = {1, 2};
    ftcclStream_t stream[2];
    for (int r = 0; r < 2; r++)
        EXPECT_OK(settle(comm[r]));
    for (int r = 0; r < 2; r++) {
        ASSERT_OK(ftcclStreamCreate(&stream[r]));
        ftcclResult_t result = ftcclAllReduce(&data[r], &data[r], 1, ftcclInt, ftcclSum, comm[r],
                                              stream[r]);
        EXPECT_TRUE(result == ftcclSuccess || result == ftcclInProgress) << result;
    }
    for (int r = 0; r < 2; r++) {
        EXPECT_OK(settle(comm[r]));
        EXPECT_OK(proc::finish(stream[r]));
        EXPECT_EQ(data[r], 3);
    }
    for (int r = 0; r < 2; r++) {
        ftcclResult_t result = ftcclCommFinalize(comm[r]);
        EXPECT_TRUE(result == ftcclSuccess || result == ftcclInProgress) << result;
    }
    for (int r = 0; r < 2; r++)
        EXPECT_OK(settle(comm[r]));
    for (int r = 0; r < 2; r++) {
        EXPECT_OK(ftcclCommDestroy(comm[r]));
        EXPECT_OK(ftcclStreamDestroy(stream[r]));
    }
}

TEST(InitRank, NonBlockingIsAbortedWhileItWaits)
{
    ftcclUniqueId id;
    ASSERT_OK(ftcclGetUniqueId(&id));
    ftcclComm_t comm = nullptr;
    ftcclConfig_t config = FTCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    EXPECT_EQ(ftcclCommInitRankConfig(&comm, 2, id, 0, &config), ftcclInProgress);
    ftcclResult_t state;
    EXPECT_OK(ftcclCommGetAsyncError(comm, &state));
    EXPECT_EQ(state, ftcclInProgress);
    double start = proc::now();
    EXPECT_OK(ftcclCommAbort(comm));
    EXPECT_LT(proc::now() - start, kAtOnce);
}

TEST(InitRank, ScalableWithSeveralIds)
{
    const int n = 6, ids = 3;
    std::vector<ftcclUniqueId> id(ids);
    for (auto &i : id)
        ASSERT_OK(ftcclGetUniqueId(&i));
    std::vector<ftcclComm_t> comm(n);
    proc::in_threads(n, [&](int r) {
        auto mine = id;
        ASSERT_OK(ftcclCommInitRankScalable(&comm[static_cast<size_t>(r)], n, r, ids, mine.data(),
                                            nullptr));
        int sum = 1;
        EXPECT_OK(ftcclAllReduce(&sum, &sum, 1, ftcclInt, ftcclSum, comm[static_cast<size_t>(r)],
                                 nullptr));
        EXPECT_OK(ftcclStreamSynchronize(nullptr));
    });
    proc::in_threads(n, [&](int r) { EXPECT_OK(ftcclCommDestroy(comm[static_cast<size_t>(r)])); });
}

TEST(InitRank, OverTcpOnly)
{
    static ftcclOptions_t options = FTCCL_OPTIONS_INITIALIZER;
    options.transports = "tcp";
    proc::World world(3, [](ftcclConfig_t &config) { config.options = &options; });
    EXPECT_TRUE(world.works());
}

TEST(Split, ColorsKeysAndNone)
{
    const int n = 6;
    proc::World world(n);
    std::vector<ftcclComm_t> part(n);
    world.each([&](int rank) {
        auto r = static_cast<size_t>(rank);
        int color = rank == 5 ? FTCCL_SPLIT_NOCOLOR : rank % 2;
        part[r] = world.comm[r]; /* must be overwritten */
        /* keys turn the order round */
        ASSERT_OK(ftcclCommSplit(world.comm[r], color, -rank, &part[r], nullptr));
        if (rank == 5) {
            EXPECT_EQ(part[r], nullptr);
            return;
        }
        int size = 0, place = -1;
        EXPECT_OK(ftcclCommCount(part[r], &size));
        EXPECT_OK(ftcclCommUserRank(part[r], &place));
        EXPECT_EQ(size, color == 0 ? 3 : 2);
        EXPECT_EQ(place, (color == 0 ? 2 : 1) - rank / 2) << "rank " << rank;
        int sum = rank;
        EXPECT_OK(ftcclAllReduce(&sum, &sum, 1, ftcclInt, ftcclSum, part[r], world.stream[r]));
        EXPECT_OK(proc::finish(world.stream[r]));
        EXPECT_EQ(sum, color == 0 ? 0 + 2 + 4 : 1 + 3);
    });
    EXPECT_TRUE(world.works()); /* the parent goes on */
    world.each([&](int rank) {
        if (rank == 5)
            return;
        EXPECT_OK(ftcclCommDestroy(part[static_cast<size_t>(rank)]));
    });
    EXPECT_TRUE(world.works());
}

TEST(Split, EqualKeysKeepTheOldOrderAndChildrenOutliveTheParent)
{
    auto *world = new proc::World(4);
    std::vector<ftcclComm_t> child(4), grandchild(4);
    world->each([&](int rank) {
        auto r = static_cast<size_t>(rank);
        ASSERT_OK(ftcclCommSplit(world->comm[r], 0, 3, &child[r], nullptr));
        int place = -1;
        EXPECT_OK(ftcclCommUserRank(child[r], &place));
        EXPECT_EQ(place, rank);
        ASSERT_OK(ftcclCommSplit(child[r], rank / 2, 0, &grandchild[r], nullptr));
    });
    delete world;
    proc::in_threads(4, [&](int rank) {
        auto r = static_cast<size_t>(rank);
        ftcclStream_t stream;
        ASSERT_OK(ftcclStreamCreate(&stream));
        int sum = 1;
        EXPECT_OK(ftcclAllReduce(&sum, &sum, 1, ftcclInt, ftcclSum, child[r], stream));
        EXPECT_OK(ftcclAllReduce(&sum, &sum, 1, ftcclInt, ftcclSum, grandchild[r], stream));
        EXPECT_OK(proc::finish(stream));
        EXPECT_EQ(sum, 8);
        EXPECT_OK(ftcclCommDestroy(grandchild[r]));
        EXPECT_OK(ftcclCommDestroy(child[r]));
        EXPECT_OK(ftcclStreamDestroy(stream));
    });
}

TEST(End, DestroyOfAPeerRaisesNothingOnAnIdleCommunicator)
{
    proc::World world(3);
    EXPECT_TRUE(world.works());
    EXPECT_OK(ftcclCommDestroy(world.comm[2]));
    world.comm[2] = nullptr;
    double end = proc::now() + 0.3;
    while (proc::now() < end) {
        for (size_t r = 0; r < 2; r++) {
            ftcclResult_t state;
            ASSERT_OK(ftcclCommGetAsyncError(world.comm[r], &state));
            ASSERT_EQ(state, ftcclSuccess) << ftcclGetLastError(world.comm[r]);
        }
        std::this_thread::yield();
    }
}

TEST(End, AbortFreesThoseWhoWait)
{
    proc::World world(3);
    std::vector<ftcclResult_t> result(3);
    std::vector<double> seconds(3);
    std::vector<std::string> sentence(3);
    world.each([&](int rank) {
        auto r = static_cast<size_t>(rank);
        if (rank == 1) {
            EXPECT_OK(ftcclCommAbort(world.comm[r]));
            world.comm[r] = nullptr;
            return;
        }
        double start = proc::now();
        std::vector<float> data(1 << 20);
        result[r] = ftcclAllReduce(data.data(), data.data(), data.size(), ftcclFloat, ftcclSum,
                                   world.comm[r], world.stream[r]);
        if (result[r] == ftcclSuccess)
            result[r] = proc::finish(world.stream[r]);
        seconds[r] = proc::now() - start;
        sentence[r] = ftcclGetLastError(world.comm[r]);
    });
    for (size_t r : {0u, 2u}) {
        EXPECT_EQ(result[r], ftcclRemoteError) << sentence[r];
        EXPECT_LT(seconds[r], kAtOnce) << sentence[r];
        EXPECT_NE(sentence[r], "");
        ftcclCommAbort(world.comm[r]);
        world.comm[r] = nullptr;
    }
}

TEST(End, AbortFromAnotherThreadWakesTheWaiter)
{
    proc::World world(2);
    std::atomic<bool> waits{false};
    int data = 1;
    std::thread waiter([&] {
        EXPECT_OK(
            ftcclAllReduce(&data, &data, 1, ftcclInt, ftcclSum, world.comm[0], world.stream[0]));
        waits = true;
        double start = proc::now();
        EXPECT_NE(proc::finish(world.stream[0]), ftcclSuccess); /* rank 1 never calls */
        EXPECT_LT(proc::now() - start, kAtOnce);
    });
    while (!waits)
        std::this_thread::yield();
    EXPECT_OK(ftcclCommAbort(world.comm[0]));
    waiter.join();
    ftcclCommAbort(world.comm[1]);
    world.comm[0] = world.comm[1] = nullptr;
}

std::string telemetry_of_this_process()
{
    return proc::output_of("./tools/ftccl-info --pid " + std::to_string(getpid()));
}

/* A wait is told with the name of the call that waits, not of the one before. */
TEST(End, AWaitHasTheNameOfItsCall)
{
    proc::World world(2);
    int data = 1;
    std::thread waiter([&] {
        EXPECT_OK(
            ftcclAllReduce(&data, &data, 1, ftcclInt, ftcclSum, world.comm[0], world.stream[0]));
        ftcclStreamDestroy(world.stream[0]); /* rank 1 never calls */
    });
    std::string seen;
    for (double end = proc::now() + 20;
         proc::now() < end && seen.find("waits in StreamDestroy") == std::string::npos;)
        seen = telemetry_of_this_process();
    EXPECT_NE(seen.find("waits in StreamDestroy"), std::string::npos) << seen;
    for (auto &c : world.comm) {
        ftcclCommAbort(c);
        c = nullptr;
    }
    waiter.join();
    world.stream[0] = nullptr;
}

TEST(End, FinalizeWaitsForTheOperations)
{
    proc::World world(2);
    std::vector<std::vector<float>> data(2, std::vector<float>(1 << 20, 1));
    world.each([&](int rank) {
        auto r = static_cast<size_t>(rank);
        for (int i = 0; i < 5; i++) {
            EXPECT_OK(ftcclAllReduce(data[r].data(), data[r].data(), data[r].size(), ftcclFloat,
                                     ftcclSum, world.comm[r], world.stream[r]));
        }
        EXPECT_OK(ftcclCommFinalize(world.comm[r]));
        EXPECT_EQ(data[r].back(), 32);
        EXPECT_OK(ftcclStreamQuery(world.stream[r]));
    });
}

TEST(End, FinalizeSaysHowTheCommunicatorFailed)
{
    static ftcclOptions_t options = FTCCL_OPTIONS_INITIALIZER;
    options.opTimeoutMs = 200;
    proc::World world(2, [](ftcclConfig_t &config) { config.options = &options; });
    int data = 1; /* rank 1 never calls */
    ASSERT_OK(ftcclAllReduce(&data, &data, 1, ftcclInt, ftcclSum, world.comm[0], world.stream[0]));
    EXPECT_EQ(ftcclCommFinalize(world.comm[0]), ftcclTimeout);
    EXPECT_NE(std::string(ftcclGetLastError(nullptr)).find("not done within 200 ms"),
              std::string::npos)
        << ftcclGetLastError(nullptr);
}

TEST(Deadline, OfAnOperationThatNobodyJoins)
{
    static ftcclOptions_t options = FTCCL_OPTIONS_INITIALIZER;
    options.opTimeoutMs = 400;
    proc::World world(2, [](ftcclConfig_t &config) { config.options = &options; });
    int data = 1;
    double start = proc::now();
    ASSERT_OK(ftcclAllReduce(&data, &data, 1, ftcclInt, ftcclSum, world.comm[0], world.stream[0]));
    ftcclResult_t result = proc::finish(world.stream[0]);
    EXPECT_EQ(result, ftcclTimeout);
    EXPECT_GT(proc::now() - start, 0.35);
    EXPECT_LT(proc::now() - start, kAtOnce);
    std::string sentence = ftcclGetLastError(world.comm[0]);
    EXPECT_NE(sentence.find("1"), std::string::npos) << sentence;
    ftcclResult_t state;
    EXPECT_OK(ftcclCommGetAsyncError(world.comm[0], &state));
    EXPECT_EQ(state, ftcclTimeout);
    for (auto &c : world.comm) {
        ftcclCommAbort(c);
        c = nullptr;
    }
}

/* Collectives that end within their calls leave the engine no other moment than these. */
TEST(Deadline, PassesWhileAnotherCommunicatorOfTheRankIsBusy)
{
    static ftcclOptions_t options = FTCCL_OPTIONS_INITIALIZER;
    options.opTimeoutMs = 400;
    proc::World world(2, [](ftcclConfig_t &config) { config.options = &options; });
    std::vector<ftcclComm_t> alone(2);
    world.each([&](int rank) {
        auto r = static_cast<size_t>(rank);
        ASSERT_OK(ftcclCommSplit(world.comm[r], rank, 0, &alone[r], nullptr));
    });
    int never = 0, data = 1;
    ftcclResult_t state = ftcclSuccess;
    ASSERT_OK(ftcclRecv(&never, 1, ftcclInt, 1, world.comm[0], world.stream[0]));
    int late = 0; /* calls after the deadline: many, for a while who holds the engine may not run */
    double end = proc::now() + 0.5;
    while (state == ftcclSuccess && (late < 2000 || proc::now() < end + 5)) {
        late += proc::now() > end;
        ASSERT_OK(ftcclAllReduce(&data, &data, 1, ftcclInt, ftcclSum, alone[0], world.stream[1]));
        EXPECT_OK(ftcclCommGetAsyncError(world.comm[0], &state));
    }
    EXPECT_EQ(state, ftcclTimeout);
    for (ftcclComm_t comm : alone)
        EXPECT_OK(ftcclCommAbort(comm));
    for (auto &c : world.comm) {
        ftcclCommAbort(c);
        c = nullptr;
    }
}

TEST(Threads, ManyOnManyCommunicators)
{
    const int n = 4, worlds = 4;
    std::vector<std::unique_ptr<proc::World>> world;
    for (int w = 0; w < worlds; w++)
        world.push_back(std::make_unique<proc::World>(n));
    proc::in_threads(n * worlds, [&](int t) {
        auto w = static_cast<size_t>(t / n), r = static_cast<size_t>(t % n);
        for (int i = 0; i < 100; i++) {
            int sum = 1;
            ASSERT_OK(ftcclAllReduce(&sum, &sum, 1, ftcclInt, ftcclSum, world[w]->comm[r],
                                     world[w]->stream[r]));
            ASSERT_OK(proc::finish(world[w]->stream[r]));
            ASSERT_EQ(sum, n);
        }
    });
}

TEST(Threads, SeveralOnOneRank)
{
    proc::World world(1);
    proc::in_threads(8, [&](int t) {
        ftcclStream_t stream;
        ASSERT_OK(ftcclStreamCreate(&stream));
        for (int i = 0; i < 200; i++) {
            int value = t, out = -1;
            ASSERT_OK(ftcclAllReduce(&value, &out, 1, ftcclInt, ftcclSum, world.comm[0], stream));
            ASSERT_OK(proc::finish(stream));
            ASSERT_EQ(out, t);
        }
        EXPECT_OK(ftcclStreamDestroy(stream));
    });
}

/* One cycle of everything that is made and freed. */
void cycle(int i)
{
    proc::World world(3);
    if (i % 4 == 0) {
        proc::World other(2, [](ftcclConfig_t &) {});
        EXPECT_TRUE(other.works());
    }
    std::vector<ftcclComm_t> part(3);
    world.each([&](int rank) {
        auto r = static_cast<size_t>(rank);
        int data = 1;
        EXPECT_OK(
            ftcclAllReduce(&data, &data, 1, ftcclInt, ftcclSum, world.comm[r], world.stream[r]));
        EXPECT_OK(proc::finish(world.stream[r]));
        if (i % 3 == 0) {
            EXPECT_OK(ftcclCommSplit(world.comm[r], 0, 0, &part[r], nullptr));
            EXPECT_OK(ftcclCommDestroy(part[r]));
        }
    });
    ftcclUniqueId unused;
    EXPECT_OK(ftcclGetUniqueId(&unused));
    if (i % 5 == 0) {
        for (auto &c : world.comm) {
            EXPECT_OK(ftcclCommAbort(c));
            c = nullptr;
        }
    }
}

TEST(Leaks, NothingIsLeftAfterManyCycles)
{
    const char *text = getenv("FT_CYCLES"); // 10,000 in the nightly run
    const int cycles = text ? atoi(text) : 200;
    for (int i = 0; i < 20; i++)
        cycle(i);
    proc::Holdings before;
    long memory = proc::resident_kib();
    for (int i = 0; i < cycles && !HasFailure(); i++)
        cycle(i);
    /* An id that nobody used frees its port after its bound, so some may still be open: far fewer
     * than one a cycle. The kernel may show a thread for a moment after it was joined. */
    proc::Holdings after;
    auto more = [&] {
        return after.descriptors > before.descriptors + cycles / 10 ||
               after.threads > before.threads + 1 || after.shm > before.shm;
    };
    for (double end = proc::now() + 20; more() && proc::now() < end; usleep(10000))
        after = proc::Holdings();
    EXPECT_LE(after.descriptors, before.descriptors + cycles / 10);
    EXPECT_LE(after.threads, before.threads + 1);
    EXPECT_LE(after.shm, before.shm);
    if (!is_sanitized()) {
        EXPECT_LT(proc::resident_kib(), memory + 8 * 1024) << "KiB, before " << memory;
    }
}

/* A rank that waits long tells the others where it is, also those that it never met: if one has
 * ended its work in order, that is no failure of theirs. */
TEST(Comm, WhoEndedBeforeItWasMetIsNotMissed)
{
    for (const char *transport : {"shm", "tcp"}) {
        static ftcclOptions_t options = FTCCL_OPTIONS_INITIALIZER;
        options.transports = transport;
        options.heartbeatMs = 0; /* nobody meets anybody without need */
        proc::World world(3, [](ftcclConfig_t &config) { config.options = &options; });
        EXPECT_OK(ftcclCommDestroy(world.comm[2]));
        world.comm[2] = nullptr;
        int sent = 7, received = 0;
        EXPECT_OK(ftcclRecv(&received, 1, ftcclInt, 1, world.comm[0], world.stream[0]));
        double until = proc::now() + 1; /* longer than it takes to tell */
        ftcclResult_t state = ftcclInProgress;
        for (; proc::now() < until && state == ftcclInProgress; usleep(10000))
            state = ftcclStreamQuery(world.stream[0]);
        EXPECT_EQ(state, ftcclInProgress) << ftcclGetLastError(world.comm[0]);
        EXPECT_OK(ftcclSend(&sent, 1, ftcclInt, 0, world.comm[1], world.stream[1]));
        EXPECT_OK(proc::finish(world.stream[0])) << ftcclGetLastError(world.comm[0]);
        EXPECT_OK(proc::finish(world.stream[1])) << ftcclGetLastError(world.comm[1]);
        EXPECT_EQ(received, 7) << transport;
    }
}

} // namespace

/*
 * Property: on a communicator with concurrentP2p, sends and receives on different streams do not
 * wait for each other, match in order, and all end when the communicator fails; ftcclProbe() tells
 * of a message without taking it; bounded waits and kept ids hold what the header says. Method:
 * ranks as threads, over the transports inside one process, shared memory and TCP; orders that end
 * in a dead-lock on an ordinary communicator; random schedules from a seed (FT_SEED).
 */
#include <algorithm>
#include <cstdlib>
#include <memory>
#include <random>
#include <thread>

#include "tests/proc/proc.h"

namespace
{

std::function<void(ftcclConfig_t &)> with(const char *transports, int64_t timeout_ms = 60000)
{
    auto options = std::make_shared<ftcclOptions_t>();
    *options = FTCCL_OPTIONS_INITIALIZER;
    options->concurrentP2p = 1;
    options->transports = transports;
    options->opTimeoutMs = timeout_ms;
    return [options](ftcclConfig_t &config) { config.options = options.get(); };
}

class Concurrent : public testing::TestWithParam<const char *>
{
};

struct Stream {
    ftcclStream_t handle = nullptr;
    Stream()
    {
        EXPECT_OK(ftcclStreamCreate(&handle));
    }
    ~Stream()
    {
        EXPECT_OK(ftcclStreamDestroy(handle));
    }
    Stream(const Stream &) = delete;
};

/* All send first and receive later; the messages are longer than what links take. */
TEST_P(Concurrent, AllSendFirst)
{
    const size_t count = 3 << 20;
    proc::World world(3, with(GetParam()));
    world.each([&](int r) {
        std::vector<int> out(count, r), in(count, -1);
        Stream to, from;
        int n = world.size();
        EXPECT_OK(ftcclSend(out.data(), count, ftcclInt, (r + 1) % n, world.comm[r], to.handle));
        EXPECT_OK(
            ftcclRecv(in.data(), count, ftcclInt, (r + n - 1) % n, world.comm[r], from.handle));
        EXPECT_OK(ftcclStreamSynchronize(to.handle));
        EXPECT_OK(ftcclStreamSynchronize(from.handle));
        EXPECT_EQ(in, std::vector<int>(count, (r + n - 1) % n));
    });
}

/* Rank 0 waits for rank 1 while it talks to rank 2, who only then lets rank 1 answer. */
TEST_P(Concurrent, AReceiveHoldsUpOnlyItsStream)
{
    proc::World world(3, with(GetParam()));
    world.each([&](int r) {
        ftcclComm_t comm = world.comm[r];
        int x = r, y = -1;
        Stream one, two;
        if (r == 0) {
            EXPECT_OK(ftcclRecv(&y, 1, ftcclInt, 1, comm, one.handle));
            EXPECT_OK(ftcclSend(&x, 1, ftcclInt, 2, comm, two.handle));
            EXPECT_OK(ftcclStreamSynchronize(two.handle));
            EXPECT_OK(ftcclStreamSynchronize(one.handle));
            EXPECT_EQ(y, 1);
            return;
        }
        EXPECT_OK(ftcclRecv(&y, 1, ftcclInt, r == 1 ? 2 : 0, comm, one.handle));
        EXPECT_OK(ftcclStreamSynchronize(one.handle));
        EXPECT_OK(ftcclSend(&x, 1, ftcclInt, r - 1, comm, one.handle));
        EXPECT_OK(ftcclStreamSynchronize(one.handle));
    });
}

/* A message to oneself needs no group. */
TEST_P(Concurrent, ToOneself)
{
    proc::World world(2, with(GetParam()));
    world.each([&](int r) {
        int x = 40 + r, y = -1, arrived = -1;
        Stream one, two;
        EXPECT_OK(ftcclSend(&x, 1, ftcclInt, r, world.comm[r], one.handle));
        EXPECT_OK(ftcclProbe(world.comm[r], r, &arrived));
        EXPECT_EQ(arrived, 1);
        EXPECT_OK(ftcclRecv(&y, 1, ftcclInt, r, world.comm[r], two.handle));
        EXPECT_OK(ftcclStreamSynchronize(two.handle));
        EXPECT_OK(ftcclStreamSynchronize(one.handle));
        EXPECT_EQ(y, 40 + r);
    });
}

struct Call {
    int peer, sends, value = 0;
    std::vector<int> data;
    std::unique_ptr<Stream> stream;
};

/* For each peer so many sends and receives, in a random order. The k-th message of a pair has a
 * value and a length of its own. */
std::vector<Call> draw_calls(int rank, int nranks, int messages, unsigned seed)
{
    static const size_t lengths[] = {0, 1, 60, 5000, 300000};
    std::vector<Call> calls;
    for (int i = 0; i < nranks * messages * 2; i++)
        calls.push_back({i / (2 * messages), i % 2, 0, {}, nullptr});
    std::mt19937 random(seed + 7919u * (unsigned)rank);
    std::shuffle(calls.begin(), calls.end(), random);
    std::map<std::pair<int, int>, int> count;
    for (Call &call : calls) {
        int from = call.sends ? rank : call.peer, to = call.sends ? call.peer : rank;
        call.value = from * 10000 + to * 100 + count[{call.peer, call.sends}]++;
        std::mt19937 length(seed + (unsigned)call.value);
        call.data.assign(lengths[length() % 5], call.sends ? call.value : -1);
    }
    return calls;
}

/* Every rank makes its calls in an order of its own, each on its own stream, and waits for them in
 * another. */
TEST_P(Concurrent, RandomOrders)
{
    const char *given = getenv("FT_SEED");
    unsigned seed = given ? (unsigned)strtoul(given, nullptr, 0) : std::random_device{}();
    SCOPED_TRACE("replay: FT_SEED=" + std::to_string(seed) +
                 " tests/proc/concurrent_test --gtest_filter=*RandomOrders*");
    proc::World world(4, with(GetParam()));
    world.each([&](int r) {
        std::vector<Call> calls = draw_calls(r, world.size(), 6, seed);
        for (Call &call : calls) {
            call.stream = std::make_unique<Stream>();
            EXPECT_OK(call.sends ? ftcclSend(call.data.data(), call.data.size(), ftcclInt,
                                             call.peer, world.comm[r], call.stream->handle)
                                 : ftcclRecv(call.data.data(), call.data.size(), ftcclInt,
                                             call.peer, world.comm[r], call.stream->handle));
        }
        std::shuffle(calls.begin(), calls.end(), std::mt19937(seed + (unsigned)r));
        for (Call &call : calls) {
            EXPECT_OK(ftcclStreamSynchronize(call.stream->handle));
            EXPECT_EQ(call.data, std::vector<int>(call.data.size(), call.value)) << "rank " << r;
        }
    });
}

bool arrives(ftcclComm_t comm, int peer)
{
    int arrived = 0;
    for (double end = proc::now() + 20; !arrived && proc::now() < end;) {
        if (ftcclProbe(comm, peer, &arrived) != ftcclSuccess)
            return false;
        std::this_thread::yield();
    }
    return arrived;
}

/* It tells of a message as often as it is asked, and the next receive takes the message. */
TEST_P(Concurrent, ProbeDoesNotTake)
{
    const size_t counts[] = {0, 1, 100000};
    proc::World world(2, with(GetParam()));
    proc::Meeting meeting(2);
    world.each([&](int r) {
        ftcclComm_t comm = world.comm[r];
        Stream stream;
        int arrived = -1;
        EXPECT_OK(ftcclProbe(comm, 1 - r, &arrived));
        EXPECT_EQ(arrived, 0);
        meeting.wait();
        for (size_t count : counts) {
            std::vector<int> data(count, r);
            if (r == 0) {
                EXPECT_OK(ftcclSend(data.data(), count, ftcclInt, 1, comm, stream.handle));
                EXPECT_OK(ftcclStreamSynchronize(stream.handle));
                continue;
            }
            EXPECT_TRUE(arrives(comm, 0));
            EXPECT_TRUE(arrives(comm, 0));
            EXPECT_OK(ftcclRecv(data.data(), count, ftcclInt, 0, comm, stream.handle));
            EXPECT_OK(ftcclStreamSynchronize(stream.handle));
            EXPECT_EQ(data, std::vector<int>(count, 0));
        }
        meeting.wait();
        EXPECT_OK(ftcclProbe(comm, 1 - r, &arrived));
        EXPECT_EQ(arrived, 0);
        EXPECT_CALLER(ftcclProbe(comm, 2, &arrived));
        EXPECT_CALLER(ftcclProbe(comm, -1, &arrived));
        EXPECT_CALLER(ftcclProbe(comm, 0, nullptr));
    });
}

/* A message that was found and never received is given back when the communicator ends, and when
 * its sender goes. */
TEST_P(Concurrent, ProbedAndNeverReceived)
{
    for (bool aborts : {false, true}) {
        proc::World world(2, with(GetParam()));
        proc::Meeting meeting(2);
        world.each([&](int r) {
            int x = 1;
            if (r == 0) {
                Stream stream;
                EXPECT_OK(ftcclSend(&x, 1, ftcclInt, 1, world.comm[0], stream.handle));
                EXPECT_OK(ftcclStreamSynchronize(stream.handle));
            } else
                EXPECT_TRUE(arrives(world.comm[1], 0));
            meeting.wait();
            if (aborts) {
                EXPECT_OK(ftcclCommAbort(world.comm[r]));
                world.comm[r] = nullptr;
            }
        });
    }
}

/* One rank aborts: whatever the others wait for ends with an error that names it. */
TEST_P(Concurrent, AllEndWhenARankAborts)
{
    proc::World world(3, with(GetParam()));
    proc::Meeting meeting(3);
    world.each([&](int r) {
        ftcclComm_t comm = world.comm[r];
        std::vector<int> data(1 << 20, r);
        std::vector<Stream> streams(6);
        for (size_t k = 0; k < streams.size() && r != 1; k++)
            EXPECT_OK(ftcclRecv(data.data(), 1, ftcclInt, 1, comm, streams[k].handle));
        meeting.wait();
        if (r == 1) {
            EXPECT_OK(ftcclCommAbort(comm));
            world.comm[1] = nullptr;
            return;
        }
        for (Stream &stream : streams)
            EXPECT_EQ(ftcclStreamSynchronize(stream.handle), ftcclRemoteError);
        EXPECT_NE(std::string(ftcclGetLastError(comm)).find("rank 1"), std::string::npos)
            << ftcclGetLastError(comm);
    });
}

/* The deadline is that of the receive that nobody answers, however many others pass. */
TEST_P(Concurrent, TheDeadlineOfOne)
{
    proc::World world(3, with(GetParam(), 2000)); /* longer than a pause of a busy machine */
    proc::Meeting meeting(3);
    world.each([&](int r) {
        ftcclComm_t comm = world.comm[r];
        int x = r, y = -1, from_two = -1;
        Stream other;
        ftcclResult_t result = ftcclSuccess;
        if (r == 0) {
            Stream silent;
            EXPECT_OK(ftcclRecv(&from_two, 1, ftcclInt, 2, comm, silent.handle));
            while (result == ftcclSuccess) {
                result = ftcclSend(&x, 1, ftcclInt, 1, comm, other.handle);
                if (result == ftcclSuccess)
                    result = ftcclStreamSynchronize(other.handle);
            }
            EXPECT_EQ(ftcclStreamSynchronize(silent.handle), ftcclTimeout);
            EXPECT_NE(std::string(ftcclGetLastError(comm)).find("receives from rank 2"),
                      std::string::npos)
                << ftcclGetLastError(comm);
        }
        while (r == 1 && result == ftcclSuccess) {
            result = ftcclRecv(&y, 1, ftcclInt, 0, comm, other.handle);
            if (result == ftcclSuccess)
                result = ftcclStreamSynchronize(other.handle);
        }
        meeting.wait();
    });
}

TEST_P(Concurrent, RefusesWhatIsNoSendOrReceive)
{
    proc::World world(2, with(GetParam()));
    world.each([&](int r) {
        ftcclComm_t comm = world.comm[r], child = nullptr;
        ftcclWindow_t window = nullptr;
        Stream stream;
        int x = 1;
        EXPECT_CALLER(ftcclAllReduce(&x, &x, 1, ftcclInt, ftcclSum, comm, stream.handle));
        EXPECT_CALLER(ftcclBroadcast(&x, &x, 1, ftcclInt, 0, comm, stream.handle));
        EXPECT_CALLER(ftcclCommSplit(comm, 0, 0, &child, nullptr));
        EXPECT_CALLER(ftcclCommWindowRegister(comm, &x, sizeof x, &window, FTCCL_WIN_DEFAULT));
        EXPECT_CALLER(ftcclSignal(1 - r, 0, 0, 0, comm, stream.handle));
        uint64_t flags = 1;
        EXPECT_OK(ftcclCommAgree(comm, &flags));
    });
}

INSTANTIATE_TEST_SUITE_P(All, Concurrent, testing::Values("inproc", "shm", "tcp"),
                         [](const auto &p) { return std::string(p.param); });

/* A communicator whose handle had options before has the defaults. Handles are used again after a
 * while. */
TEST(Options, EndWithTheirCommunicator)
{
    ftcclComm_t first, comm = nullptr;
    {
        proc::World concurrent(1, with("inproc"));
        first = concurrent.comm[0];
    }
    for (int i = 0; i < 20000 && comm != first; i++) {
        ASSERT_OK(ftcclCommInitAll(&comm, 1, nullptr));
        int x = 1;
        EXPECT_OK(ftcclAllReduce(&x, &x, 1, ftcclInt, ftcclSum, comm, nullptr));
        EXPECT_OK(ftcclStreamSynchronize(nullptr));
        ASSERT_OK(ftcclCommDestroy(comm));
    }
    EXPECT_EQ(comm, first) << "the handle did not come again";
}

TEST(BoundedWait, EndsWithoutTheOperation)
{
    proc::World world(2);
    proc::Meeting meeting(2);
    world.each([&](int r) {
        int x = 1;
        Stream stream;
        EXPECT_OK(ftcclStreamWait(stream.handle, 0));
        if (r == 1)
            meeting.wait();
        EXPECT_OK(ftcclAllReduce(&x, &x, 1, ftcclInt, ftcclSum, world.comm[r], stream.handle));
        if (r == 0) {
            EXPECT_EQ(ftcclStreamWait(stream.handle, 0), ftcclInProgress);
            EXPECT_EQ(ftcclStreamWait(stream.handle, 20), ftcclInProgress);
            meeting.wait();
        }
        EXPECT_OK(ftcclStreamWait(stream.handle, 60000));
        EXPECT_EQ(x, 2);
        EXPECT_OK(ftcclStreamWait(nullptr, 1));
        EXPECT_CALLER(ftcclStreamWait(stream.handle, -1));
    });
}

TEST(KeptId, IsGoodUntilItIsReleased)
{
    ftcclUniqueId id;
    ftcclComm_t comm = nullptr;
    ASSERT_OK(ftcclUniqueIdKeep(&id));
    ASSERT_OK(ftcclCommInitRank(&comm, 1, id, 0));
    EXPECT_OK(ftcclCommDestroy(comm));
    EXPECT_OK(ftcclUniqueIdRelease(&id));
    ASSERT_OK(ftcclUniqueIdKeep(&id));
    EXPECT_OK(ftcclUniqueIdRelease(&id));
    EXPECT_NE(ftcclCommInitRank(&comm, 2, id, 1), ftcclSuccess);
    EXPECT_NE(std::string(ftcclGetLastError(nullptr)).find("released"), std::string::npos)
        << ftcclGetLastError(nullptr);
    EXPECT_CALLER(ftcclUniqueIdKeep(nullptr));
    EXPECT_CALLER(ftcclUniqueIdRelease(nullptr));
}

} // namespace

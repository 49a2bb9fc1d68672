/*
 * Property: bad input is refused with the caller's error and a sentence, changes nothing, and never
 * crashes or hangs. Method: each kind of bad input through the public header; afterwards the same
 * communicator still reduces.
 */
#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstdint>
#include <cstring>
#include <string>

#include "tests/proc/proc.h"

namespace
{

const ftcclComm_t no_comm = nullptr;

class Errors : public testing::Test
{
  protected:
    proc::World world{2};
    ftcclComm_t comm() const
    {
        return world.comm[0];
    }
    ftcclStream_t stream() const
    {
        return world.stream[0];
    }
    int data[64] = {}, other[64] = {};
    void TearDown() override
    {
        EXPECT_TRUE(world.works());
    }
};

TEST_F(Errors, NullPointers)
{
    EXPECT_CALLER(ftcclGetVersion(nullptr));
    EXPECT_CALLER(ftcclGetUniqueId(nullptr));
    ftcclUniqueId id;
    ASSERT_OK(ftcclGetUniqueId(&id));
    EXPECT_CALLER(ftcclCommInitRank(nullptr, 1, id, 0));
    EXPECT_CALLER(ftcclCommInitAll(nullptr, 2, nullptr));
    EXPECT_CALLER(ftcclCommInitRankScalable(nullptr, 1, 0, 1, &id, nullptr));
    ftcclComm_t made = nullptr;
    EXPECT_CALLER(ftcclCommInitRankScalable(&made, 1, 0, 1, nullptr, nullptr));
    EXPECT_CALLER(ftcclCommSplit(comm(), 0, 0, nullptr, nullptr));
    int number;
    EXPECT_CALLER(ftcclCommCount(comm(), nullptr));
    EXPECT_CALLER(ftcclCommUserRank(comm(), nullptr));
    EXPECT_CALLER(ftcclCommCuDevice(comm(), nullptr));
    EXPECT_CALLER(ftcclCommGetAsyncError(comm(), nullptr));
    EXPECT_CALLER(ftcclCommCount(no_comm, &number));
    EXPECT_CALLER(ftcclCommUserRank(no_comm, &number));
    ftcclResult_t result;
    EXPECT_CALLER(ftcclCommGetAsyncError(no_comm, &result));
    EXPECT_CALLER(ftcclCommFinalize(no_comm));
    EXPECT_CALLER(ftcclStreamCreate(nullptr));
    EXPECT_CALLER(ftcclMemAlloc(nullptr, 16));
    void *handle;
    EXPECT_CALLER(ftcclCommRegister(comm(), nullptr, 16, &handle));
    EXPECT_CALLER(ftcclCommRegister(comm(), data, sizeof data, nullptr));
    ftcclRedOp_t op;
    EXPECT_CALLER(
        ftcclRedOpCreatePreMulSum(&op, nullptr, ftcclInt, ftcclScalarHostImmediate, comm()));
    EXPECT_CALLER(
        ftcclRedOpCreatePreMulSum(nullptr, data, ftcclInt, ftcclScalarHostImmediate, comm()));
    EXPECT_OK(ftcclMemFree(nullptr));
}

TEST_F(Errors, NullCommunicatorInOperations)
{
    EXPECT_CALLER(ftcclAllReduce(data, data, 1, ftcclInt, ftcclSum, no_comm, stream()));
    EXPECT_CALLER(ftcclBroadcast(data, data, 1, ftcclInt, 0, no_comm, stream()));
    EXPECT_CALLER(ftcclReduce(data, data, 1, ftcclInt, ftcclSum, 0, no_comm, stream()));
    EXPECT_CALLER(ftcclAllGather(data, other, 1, ftcclInt, no_comm, stream()));
    EXPECT_CALLER(ftcclReduceScatter(data, other, 1, ftcclInt, ftcclSum, no_comm, stream()));
    EXPECT_CALLER(ftcclAlltoAll(data, other, 1, ftcclInt, no_comm, stream()));
    EXPECT_CALLER(ftcclGather(data, other, 1, ftcclInt, 0, no_comm, stream()));
    EXPECT_CALLER(ftcclScatter(data, other, 1, ftcclInt, 0, no_comm, stream()));
    EXPECT_CALLER(ftcclSend(data, 1, ftcclInt, 1, no_comm, stream()));
    EXPECT_CALLER(ftcclRecv(data, 1, ftcclInt, 1, no_comm, stream()));
}

TEST_F(Errors, NullBuffers)
{
    EXPECT_CALLER(ftcclAllReduce(nullptr, data, 1, ftcclInt, ftcclSum, comm(), stream()));
    EXPECT_CALLER(ftcclAllReduce(data, nullptr, 1, ftcclInt, ftcclSum, comm(), stream()));
    EXPECT_CALLER(ftcclBroadcast(nullptr, data, 1, ftcclInt, 0, comm(), stream()));
    EXPECT_CALLER(ftcclBroadcast(data, nullptr, 1, ftcclInt, 0, comm(), stream()));
    EXPECT_CALLER(ftcclBcast(nullptr, 1, ftcclInt, 0, comm(), stream()));
    EXPECT_CALLER(ftcclReduce(data, nullptr, 1, ftcclInt, ftcclSum, 0, comm(), stream()));
    EXPECT_CALLER(ftcclAllGather(nullptr, data, 1, ftcclInt, comm(), stream()));
    EXPECT_CALLER(ftcclReduceScatter(data, nullptr, 1, ftcclInt, ftcclSum, comm(), stream()));
    EXPECT_CALLER(ftcclAlltoAll(nullptr, data, 1, ftcclInt, comm(), stream()));
    EXPECT_CALLER(ftcclGather(data, nullptr, 1, ftcclInt, 0, comm(), stream()));
    EXPECT_CALLER(ftcclScatter(nullptr, data, 1, ftcclInt, 0, comm(), stream()));
    EXPECT_CALLER(ftcclSend(nullptr, 1, ftcclInt, 1, comm(), stream()));
    EXPECT_CALLER(ftcclRecv(nullptr, 1, ftcclInt, 1, comm(), stream()));
}

TEST_F(Errors, RanksRootsAndPeersOutOfRange)
{
    for (int bad : {-1, 2, INT_MAX, INT_MIN}) {
        EXPECT_CALLER(ftcclBroadcast(data, data, 1, ftcclInt, bad, comm(), stream())) << bad;
        EXPECT_CALLER(ftcclReduce(data, data, 1, ftcclInt, ftcclSum, bad, comm(), stream())) << bad;
        EXPECT_CALLER(ftcclGather(data, other, 1, ftcclInt, bad, comm(), stream())) << bad;
        EXPECT_CALLER(ftcclScatter(data, other, 1, ftcclInt, bad, comm(), stream())) << bad;
        EXPECT_CALLER(ftcclSend(data, 1, ftcclInt, bad, comm(), stream())) << bad;
        EXPECT_CALLER(ftcclRecv(data, 1, ftcclInt, bad, comm(), stream())) << bad;
        ftcclUniqueId id;
        ASSERT_OK(ftcclGetUniqueId(&id));
        ftcclComm_t made = nullptr;
        EXPECT_CALLER(ftcclCommInitRank(&made, 2, id, bad)) << bad;
        EXPECT_EQ(made, nullptr);
    }
    for (int bad : {0, -1, INT_MIN}) {
        ftcclUniqueId id;
        ASSERT_OK(ftcclGetUniqueId(&id));
        ftcclComm_t made[2];
        EXPECT_CALLER(ftcclCommInitRank(made, bad, id, 0)) << bad;
        EXPECT_CALLER(ftcclCommInitAll(made, bad, nullptr)) << bad;
        EXPECT_CALLER(ftcclCommInitRankScalable(made, 1, 0, bad, &id, nullptr)) << bad;
    }
}

TEST_F(Errors, UnknownTypesAndOperators)
{
    for (int bad : {-1, static_cast<int>(ftcclNumTypes), 99, INT_MAX}) {
        auto type = static_cast<ftcclDataType_t>(bad);
        EXPECT_CALLER(ftcclAllReduce(data, data, 1, type, ftcclSum, comm(), stream())) << bad;
        EXPECT_CALLER(ftcclBroadcast(data, data, 1, type, 0, comm(), stream())) << bad;
        EXPECT_CALLER(ftcclAllGather(data, other, 1, type, comm(), stream())) << bad;
        EXPECT_CALLER(ftcclSend(data, 1, type, 1, comm(), stream())) << bad;
        ftcclRedOp_t op;
        EXPECT_CALLER(ftcclRedOpCreatePreMulSum(&op, data, type, ftcclScalarHostImmediate, comm()))
            << bad;
    }
    for (int bad : {-1, static_cast<int>(ftcclNumOps), 77, INT_MAX}) {
        auto op = static_cast<ftcclRedOp_t>(bad);
        EXPECT_CALLER(ftcclAllReduce(data, data, 1, ftcclInt, op, comm(), stream())) << bad;
        EXPECT_CALLER(ftcclReduceScatter(data, other, 1, ftcclInt, op, comm(), stream())) << bad;
        EXPECT_CALLER(ftcclRedOpDestroy(op, comm())) << bad;
    }
    EXPECT_CALLER(ftcclRedOpDestroy(ftcclSum, comm()));
}

TEST_F(Errors, OperatorOfAnotherTypeOrCommunicator)
{
    float two = 2;
    ftcclRedOp_t op;
    ASSERT_OK(ftcclRedOpCreatePreMulSum(&op, &two, ftcclFloat, ftcclScalarHostImmediate, comm()));
    EXPECT_CALLER(ftcclAllReduce(data, data, 1, ftcclInt, op, comm(), stream()));
    EXPECT_CALLER(ftcclAllReduce(data, data, 1, ftcclFloat, op, world.comm[1], world.stream[1]));
    EXPECT_OK(ftcclRedOpDestroy(op, comm()));
    EXPECT_CALLER(ftcclAllReduce(data, data, 1, ftcclFloat, op, comm(), stream()));
    EXPECT_CALLER(ftcclRedOpDestroy(op, comm()));
}

TEST_F(Errors, CountsThatOverflow)
{
    for (size_t bad : {SIZE_MAX, SIZE_MAX / 4, SIZE_MAX / 8 + 1}) {
        EXPECT_CALLER(ftcclAllReduce(data, data, bad, ftcclDouble, ftcclSum, comm(), stream()))
            << bad;
        EXPECT_CALLER(ftcclAllGather(data, other, bad, ftcclDouble, comm(), stream())) << bad;
        EXPECT_CALLER(ftcclSend(data, bad, ftcclDouble, 1, comm(), stream())) << bad;
    }
    /* only all blocks overflow */
    EXPECT_CALLER(ftcclAllGather(data, other, SIZE_MAX / 8 - 1, ftcclDouble, comm(), stream()));
}

/* So many that the blocks of all of them, in a size_t, would be none. */
TEST_F(Errors, CountsOfManyRanks)
{
    ftcclComm_t made[128];
    ASSERT_EQ(ftcclCommInitAll(made, 128, nullptr), ftcclSuccess) << ftcclGetLastError(nullptr);
    EXPECT_CALLER(ftcclAllGather(data, other, SIZE_MAX / 128 + 1, ftcclInt8, made[5], stream()));
    for (ftcclComm_t comm : made)
        EXPECT_EQ(ftcclCommAbort(comm), ftcclSuccess);
}

TEST_F(Errors, OverlappingBuffers)
{
    EXPECT_CALLER(ftcclAllReduce(data, data + 1, 8, ftcclInt, ftcclSum, comm(), stream()));
    EXPECT_CALLER(ftcclAllReduce(data + 1, data, 8, ftcclInt, ftcclSum, comm(), stream()));
    EXPECT_CALLER(ftcclReduce(data, data + 7, 8, ftcclInt, ftcclSum, 0, comm(), stream()));
    EXPECT_CALLER(ftcclBroadcast(data, data + 1, 8, ftcclInt, 0, comm(), stream()));
    /* rank 1's place on rank 0 */
    EXPECT_CALLER(ftcclAllGather(data + 8, data, 8, ftcclInt, comm(), stream()));
    EXPECT_CALLER(ftcclReduceScatter(data, data + 8, 8, ftcclInt, ftcclSum, comm(), stream()));
    EXPECT_CALLER(ftcclAlltoAll(data, data + 1, 8, ftcclInt, comm(), stream()));
    EXPECT_CALLER(ftcclGather(data + 8, data, 8, ftcclInt, 0, comm(), stream()));
    EXPECT_CALLER(ftcclScatter(data, data + 8, 8, ftcclInt, 0, comm(), stream()));
}

TEST_F(Errors, SendToItselfOutsideAGroup)
{
    EXPECT_EQ(ftcclSend(data, 1, ftcclInt, 0, comm(), stream()), ftcclInvalidUsage);
    EXPECT_EQ(ftcclRecv(data, 1, ftcclInt, 0, comm(), stream()), ftcclInvalidUsage);
}

TEST_F(Errors, Groups)
{
    EXPECT_EQ(ftcclGroupEnd(), ftcclInvalidUsage);
    EXPECT_CALLER(ftcclGroupSimulateEnd(nullptr));
    /* A failed call empties the whole group: rank 1 never sees an operation of rank 0. */
    ASSERT_OK(ftcclGroupStart());
    EXPECT_OK(ftcclAllReduce(data, data, 1, ftcclInt, ftcclSum, comm(), stream()));
    EXPECT_CALLER(ftcclAllReduce(nullptr, data, 1, ftcclInt, ftcclSum, comm(), stream()));
    EXPECT_EQ(ftcclGroupEnd(), ftcclInvalidArgument);
    EXPECT_OK(ftcclStreamQuery(stream()));
}

TEST_F(Errors, LastErrorNamesTheCallAndTheValue)
{
    EXPECT_CALLER(ftcclBroadcast(data, data, 1, ftcclInt, 17, comm(), stream()));
    std::string sentence = ftcclGetLastError(nullptr);
    EXPECT_NE(sentence.find("17"), std::string::npos) << sentence;
    EXPECT_NE(sentence.find("root"), std::string::npos) << sentence;
    /* Another thread's error is not this thread's. */
    proc::in_threads(1, [&](int) { EXPECT_STREQ(ftcclGetLastError(nullptr), ""); });
}

TEST_F(Errors, FreedHandles)
{
    proc::World *gone = new proc::World(1);
    ftcclComm_t comm = gone->comm[0];
    ftcclStream_t stream = gone->stream[0];
    delete gone;
    int number;
    EXPECT_CALLER(ftcclCommCount(comm, &number));
    EXPECT_CALLER(ftcclAllReduce(data, data, 1, ftcclInt, ftcclSum, comm, this->stream()));
    EXPECT_CALLER(ftcclCommDestroy(comm));
    EXPECT_CALLER(ftcclCommAbort(comm));
    EXPECT_CALLER(ftcclStreamQuery(stream));
    EXPECT_CALLER(ftcclStreamWait(stream, 1));
    EXPECT_CALLER(ftcclStreamDestroy(stream));
    EXPECT_CALLER(ftcclAllReduce(data, data, 1, ftcclInt, ftcclSum, this->comm(), stream));
    void *memory;
    ASSERT_OK(ftcclMemAlloc(&memory, 100));
    EXPECT_CALLER(ftcclMemFree(data));
    EXPECT_OK(ftcclMemFree(memory));
    EXPECT_CALLER(ftcclMemFree(memory));
    void *handle;
    ASSERT_OK(ftcclCommRegister(this->comm(), data, sizeof data, &handle));
    EXPECT_OK(ftcclCommDeregister(this->comm(), handle));
    EXPECT_CALLER(ftcclCommDeregister(this->comm(), handle));
}

TEST_F(Errors, MemoryThatIsNotOurs)
{
    void *handle;
    EXPECT_CALLER(ftcclCommRegister(comm(), reinterpret_cast<void *>(16), 4096, &handle));
    EXPECT_CALLER(ftcclCommRegister(comm(), data, SIZE_MAX, &handle));
}

/* Also where a program had locked what lay there before. */
TEST_F(Errors, MemoryIsZeroed)
{
    for (size_t size : {size_t{100}, size_t{128} << 10})
        for (bool locked : {false, true}) {
            void *memory;
            ASSERT_OK(ftcclMemAlloc(&memory, size));
            if (locked && mlock(memory, size) != 0)
                GTEST_SKIP() << "mlock: " << strerror(errno);
            memset(memory, 0x55, size);
            ASSERT_OK(ftcclMemFree(memory));
            ASSERT_OK(ftcclMemAlloc(&memory, size));
            const auto *bytes = static_cast<unsigned char *>(memory);
            EXPECT_EQ(std::count(bytes, bytes + size, 0), static_cast<ptrdiff_t>(size))
                << size << (locked ? " bytes, locked" : " bytes");
            ASSERT_OK(ftcclMemFree(memory));
        }
}

TEST(ErrorStrings, EveryResultHasOneAndAClass)
{
    for (int code = -2; code <= ftcclNumResults + 1; code++) {
        const char *text = ftcclGetErrorString(static_cast<ftcclResult_t>(code));
        ASSERT_NE(text, nullptr);
        EXPECT_GT(strlen(text), 3u) << code;
    }
    EXPECT_EQ(ftcclGetErrorClass(ftcclSuccess), ftcclClassSuccess);
    EXPECT_EQ(ftcclGetErrorClass(ftcclInProgress), ftcclClassInProgress);
    EXPECT_EQ(ftcclGetErrorClass(ftcclInvalidArgument), ftcclClassCaller);
    EXPECT_EQ(ftcclGetErrorClass(ftcclInvalidUsage), ftcclClassCaller);
    EXPECT_EQ(ftcclGetErrorClass(ftcclRemoteError), ftcclClassRecoverable);
    EXPECT_EQ(ftcclGetErrorClass(ftcclTimeout), ftcclClassRecoverable);
    EXPECT_EQ(ftcclGetErrorClass(ftcclSystemError), ftcclClassFatal);
    EXPECT_EQ(ftcclGetErrorClass(ftcclInternalError), ftcclClassFatal);
    EXPECT_EQ(ftcclGetErrorClass(ftcclUnhandledCudaError), ftcclClassFatal);
    int version = 0;
    EXPECT_OK(ftcclGetVersion(&version));
    EXPECT_EQ(version, FTCCL_VERSION_CODE);
}

TEST(Configs, OutOfRangeIsRefused)
{
    using Change = void (*)(ftcclConfig_t &);
    static ftcclOptions_t no_size = FTCCL_OPTIONS_INITIALIZER, negative = no_size,
                          no_transport = no_size, hasty = no_size, long_list = no_size;
    no_size.size = 0;
    hasty.suspectMs = 1;
    negative.opTimeoutMs = negative.initTimeoutMs = -5;
    no_transport.transports = "carrier-pigeon";
    /* 64 fit, cut off it would be right */
    long_list.transports = "inproc,shm,tcp                                                 ,tcp";
    const Change changes[] = {
        [](ftcclConfig_t &c) { c.size = 0; },
        [](ftcclConfig_t &c) { c.size = 8; },
        [](ftcclConfig_t &c) { c.magic = 0; },
        [](ftcclConfig_t &c) { c.blocking = 7; },
        [](ftcclConfig_t &c) { c.minCTAs = -3; },
        [](ftcclConfig_t &c) { c.minCTAs = 9, c.maxCTAs = 8; },
        [](ftcclConfig_t &c) { c.splitShare = 2; },
        [](ftcclConfig_t &c) { c.options = &no_size; },
        [](ftcclConfig_t &c) { c.options = &long_list; },
        [](ftcclConfig_t &c) { c.options = &negative; },
        [](ftcclConfig_t &c) { c.options = &hasty; },
        [](ftcclConfig_t &c) { c.options = &no_transport; },
        [](ftcclConfig_t &c) { c.netName = "carrier-pigeon"; },
    };
    int number = 0;
    for (Change change : changes) {
        ftcclConfig_t config = FTCCL_CONFIG_INITIALIZER;
        change(config);
        ftcclUniqueId id;
        ASSERT_OK(ftcclGetUniqueId(&id));
        ftcclComm_t comm = nullptr;
        EXPECT_CALLER(ftcclCommInitRankConfig(&comm, 1, id, 0, &config)) << "change " << number;
        EXPECT_EQ(comm, nullptr) << "change " << number;
        if (comm != nullptr)
            ftcclCommDestroy(comm);
        number++;
    }
}

TEST(Finalized, OnlyTheEndIsAllowed)
{
    proc::World world(2);
    world.each([&](int rank) {
        auto r = static_cast<size_t>(rank);
        EXPECT_OK(ftcclCommFinalize(world.comm[r]));
        int data = 0;
        EXPECT_EQ(ftcclAllReduce(&data, &data, 1, ftcclInt, ftcclSum, world.comm[r],
                                 world.stream[r]),
                  ftcclInvalidUsage);
        ftcclComm_t split;
        EXPECT_CALLER(ftcclCommSplit(world.comm[r], 0, 0, &split, nullptr));
        EXPECT_CALLER(ftcclCommFinalize(world.comm[r]));
        EXPECT_OK(ftcclCommUserRank(world.comm[r], &data));
        EXPECT_EQ(data, rank);
    });
}

} // namespace

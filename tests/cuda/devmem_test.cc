/*
 * Property: messages between GPUs of a machine lie in the memory of the sender's GPU, all of them
 * if the buffers of both sides are on GPUs that reach each other. None does if a CPU must see the
 * message: for buffers of the host on either side, and for checksums. What a driver refuses, or a
 * rank does not want, goes through host memory. Results are right wherever each rank's buffers lie.
 * The memory of a killed rank is given back. Method: ranks as processes on the stand-in driver,
 * where a program cannot access memory of a device, and as threads on several of its devices. The
 * log says how many bytes went which way. Random calls come from a printed seed: FT_SEED=<seed>
 * devmem_test. FT_ROUNDS sets their number.
 */
#include <signal.h>
#include <unistd.h>

#include <fstream>
#include <memory>
#include <random>

#include "tests/common/sanitizer.h"
#include "tests/cuda/ranks.h"

namespace
{

using namespace gpu;

/* On a device of the caller's choice, if there are so many, as cudaSetDevice() leaves the
 * thread. */
void enter(int device)
{
    CUcontext context = nullptr;
    int count = 1;
    cuInit(0);
    cuDeviceGetCount(&count);
    cuDevicePrimaryCtxRetain(&context, device % count);
    cuCtxSetCurrent(context);
}

/* Of the ranks' buffers. LARGE: on the GPU, and no call can end before all ranks have come to
 * it. */
enum Where { LARGE, ON_HOST, ANYWHERE };

/* Buffers of one rank for one call, on the GPU or the host, and the stream that goes with them. */
struct Side {
    bool gpu;
    Buffer<int> here, there;
    std::vector<int> in, out;
    CUstream stream;
    ftcclStream_t host;
    Side(bool gpu_, size_t nin, size_t nout, int value, CUstream stream_, ftcclStream_t host_)
        : gpu(gpu_), here(gpu_ ? nin : 1), there(gpu_ ? nout : 1), in(nin), out(nout, -1),
          stream(stream_), host(host_)
    {
        for (size_t i = 0; i < nin; i++)
            in[i] = value + static_cast<int>(i);
        if (gpu)
            here.put(in, stream), there.put(out, stream);
    }
    const int *from() const
    {
        return gpu ? here.ptr() : in.data();
    }
    int *to()
    {
        return gpu ? there.ptr() : out.data();
    }
    ftcclStream_t on() const
    {
        return gpu ? as(stream) : host;
    }
    bool done()
    {
        if (!gpu)
            return ftcclStreamSynchronize(host) == ftcclSuccess;
        there.get(out, stream);
        return soon([&] { return idle(stream); });
    }
};

/* Two receives from the rank before, which may lie apart from each other: the first need not be
 * where the second is. */
std::string two_messages(ftcclComm_t comm, int n, int rank, Where where, Side &side)
{
    size_t count = side.in.size();
    Side second(where == ANYWHERE ? !side.gpu : side.gpu, count, count, 1000 + rank, side.stream,
                side.host);
    int prev = (rank + n - 1) % n, next = (rank + 1) % n;
    ftcclGroupStart();
    for (Side *one : {&side, &second}) {
        ftcclSend(one->from(), count, ftcclInt, next, comm, one->on());
        ftcclRecv(one->to(), count, ftcclInt, prev, comm, one->on());
    }
    if (ftcclGroupEnd() != ftcclSuccess || !side.done() || !second.done())
        return std::string("two messages: ") + ftcclGetLastError(comm);
    for (size_t i = 0; i < count; i++)
        if (second.out[i] != 1000 + prev + static_cast<int>(i))
            return "the second of two messages: [" + std::to_string(i) + "] is " +
                   std::to_string(second.out[i]);
    return "";
}

int sum_to(int n)
{
    return n * (n + 1) / 2;
}

/* One of several calls; all ranks draw the same one. "": it was right. */
std::string call_one(ftcclComm_t comm, int n, int rank, std::mt19937_64 &random, Where where,
                     CUstream stream, ftcclStream_t host)
{
    bool on_gpu[16];
    for (int r = 0; r < n; r++)
        on_gpu[r] = where == LARGE || (where == ON_HOST ? r == 0 : random() % 2 == 0);
    auto kind = random() % 4;
    size_t count = random() % 3 ? 1 + random() % 200000 : 1 + random() % 5000;
    if (where == LARGE)
        kind = kind == 1 ? 0 : kind, count = 150000 + count;
    size_t each = kind == 2 ? count / static_cast<size_t>(n) + 1 : count;
    Side side(on_gpu[rank], each, kind == 2 ? each * static_cast<size_t>(n) : each, rank + 1,
              stream, host);
    ftcclResult_t result = ftcclSuccess;
    std::string wrong;
    int prev = (rank + n - 1) % n;
    if (kind == 0)
        result = ftcclAllReduce(side.from(), side.to(), each, ftcclInt, ftcclSum, comm, side.on());
    if (kind == 1)
        result = ftcclBroadcast(side.from(), side.to(), each, ftcclInt, n - 1, comm, side.on());
    if (kind == 2)
        result = ftcclAllGather(side.from(), side.to(), each, ftcclInt, comm, side.on());
    if (kind == 3)
        wrong = two_messages(comm, n, rank, where, side);
    if (!wrong.empty())
        return wrong;
    if (result != ftcclSuccess || !side.done())
        return "call " + std::to_string(kind) + ": " + ftcclGetLastError(comm);
    for (size_t i = 0; i < side.out.size(); i++) {
        int at = static_cast<int>(i),
            want = kind == 0   ? sum_to(n) + n * at
                   : kind == 1 ? n + at
                   : kind == 3 ? prev + 1 + at
                               : static_cast<int>(i / each) + 1 + static_cast<int>(i % each);
        if (side.out[i] != want)
            return "call " + std::to_string(kind) + " of " + std::to_string(each) + ": [" +
                   std::to_string(i) + "] is " + std::to_string(side.out[i]) + ", not " +
                   std::to_string(want);
    }
    return "";
}

/* Rounds of such calls. */
int run(const ftcclUniqueId &id, int n, int rank, uint64_t seed, int rounds, Where where)
{
    CUstream stream;
    ftcclStream_t host;
    ftcclComm_t comm;
    cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING);
    if (ftcclCommInitRank(&comm, n, id, rank) != ftcclSuccess)
        return printf("%s\n", ftcclGetLastError(nullptr)), 1;
    ftcclStreamCreate(&host);
    std::mt19937_64 random(seed);
    std::string wrong;
    for (int i = 0; i < rounds && wrong.empty(); i++) {
        wrong = call_one(comm, n, rank, random, where, stream, host);
        if (!wrong.empty())
            printf("rank %d, round %d: %s\n", rank, i, wrong.c_str()), fflush(stdout);
    }
    if (!wrong.empty())
        return ftcclCommAbort(comm), 2;
    ftcclStreamDestroy(host);
    if (ftcclCommDestroy(comm) != ftcclSuccess)
        return 3;
    cuStreamDestroy(stream);
    return 0;
}

/* processes ID NRANKS RANK DEVICE SEED ROUNDS WHERE [CALL AFTER]: that call of the driver's
 * fails. */
CHILD(processes)
{
    enter(std::stoi(arguments[3]));
    if (arguments.size() > 7)
        standin_fail(arguments[7].c_str(), CUDA_ERROR_NOT_SUPPORTED, std::stoi(arguments[8]));
    return run(proc::unhex(arguments[0]), std::stoi(arguments[1]), std::stoi(arguments[2]),
               std::stoull(arguments[4]), std::stoi(arguments[5]),
               static_cast<Where>(std::stoi(arguments[6])));
}

/* threads NRANKS DEVICES SEED ROUNDS WHERE [CALL AFTER]: the same as threads, each on the next
 * device. Nothing of the driver's memory is left. */
CHILD(threads)
{
    int n = std::stoi(arguments[0]), devices = std::stoi(arguments[1]), failed = 0;
    ftcclUniqueId id;
    std::vector<int> status(static_cast<size_t>(n));
    enter(0);
    if (arguments.size() > 5)
        standin_fail(arguments[5].c_str(), CUDA_ERROR_NOT_SUPPORTED, std::stoi(arguments[6]));
    if (ftcclGetUniqueId(&id) != ftcclSuccess)
        return 1;
    proc::in_threads(n, [&](int r) {
        enter(r % devices);
        status[static_cast<size_t>(r)] = run(id, n, r, std::stoull(arguments[2]),
                                             std::stoi(arguments[3]),
                                             static_cast<Where>(std::stoi(arguments[4])));
    });
    for (int s : status)
        failed = failed ? failed : s;
    if (failed)
        return failed;
    return standin_live_memory() == 0
               ? 0
               : (printf("%d allocations are left\n", standin_live_memory()), 5);
}

/* ---- what became of messages, by the log ----------------------------------------------------- */

struct Bytes {
    unsigned long long staged = 0, direct = 0, there = 0;
};

std::string log_name(int rank)
{
    return "gpu_there." + std::to_string(getpid()) + "." + std::to_string(rank);
}

Bytes take_log(int rank)
{
    Bytes sum;
    std::ifstream file(log_name(rank));
    for (std::string line; std::getline(file, line);) {
        Bytes one;
        size_t at = line.find("of messages it staged ");
        if (at == std::string::npos)
            continue;
        EXPECT_EQ(sscanf(line.c_str() + at,
                         "of messages it staged %llu bytes and reached %llu where they lay, %llu",
                         &one.staged, &one.direct, &one.there),
                  3)
            << line;
        sum.staged += one.staged, sum.direct += one.direct, sum.there += one.there;
    }
    unlink(log_name(rank).c_str());
    return sum;
}

uint64_t seed_of()
{
    const char *text = getenv("FT_SEED");
    uint64_t seed = text ? std::stoull(text, nullptr, 0) : std::random_device()() % 1000000;
    printf("replay: FT_SEED=%llu there_test --gtest_filter=%s.%s\n",
           static_cast<unsigned long long>(seed),
           testing::UnitTest::GetInstance()->current_test_info()->test_suite_name(),
           testing::UnitTest::GetInstance()->current_test_info()->name());
    return seed;
}

std::string rounds_of(int usual)
{
    return getenv("FT_ROUNDS") ? getenv("FT_ROUNDS")
                               : std::to_string(is_sanitized() ? (usual + 2) / 3 : usual);
}

struct How {
    int devices = 1, rounds = 12;
    Where where = LARGE;
    std::vector<std::string> fails; /* a call, and after how many */
    std::map<std::string, std::string> env;
};

std::map<std::string, std::string> logged(int rank, std::map<std::string, std::string> env)
{
    env["FTCCL_DEBUG"] = "INFO";
    env["FTCCL_DEBUG_FILE"] = log_name(rank);
    return env;
}

Bytes as_processes(int n, const How &how)
{
    ftcclUniqueId id;
    Bytes sum;
    std::string seed = std::to_string(seed_of());
    std::vector<std::unique_ptr<proc::Child>> rank;
    EXPECT_OK(ftcclGetUniqueId(&id));
    for (int r = 0; r < n; r++) {
        std::vector<std::string> arguments = {proc::hex(id),
                                              std::to_string(n),
                                              std::to_string(r),
                                              std::to_string(r % how.devices),
                                              seed,
                                              rounds_of(how.rounds),
                                              std::to_string(how.where)};
        if (r == 0)
            arguments.insert(arguments.end(), how.fails.begin(), how.fails.end());
        rank.push_back(std::make_unique<proc::Child>("processes", arguments, logged(r, how.env)));
    }
    for (int r = 0; r < n; r++) {
        int status = rank[static_cast<size_t>(r)]->wait(60);
        EXPECT_EQ(status, 0) << rank[static_cast<size_t>(r)]->line(1);
        Bytes one = take_log(r);
        sum.staged += one.staged, sum.direct += one.direct, sum.there += one.there;
    }
    return sum;
}

Bytes as_threads(int n, const How &how)
{
    std::vector<std::string> arguments = {std::to_string(n), std::to_string(how.devices),
                                          std::to_string(seed_of()), rounds_of(how.rounds),
                                          std::to_string(how.where)};
    arguments.insert(arguments.end(), how.fails.begin(), how.fails.end());
    proc::Child all("threads", arguments, logged(0, how.env));
    int status = all.wait(60);
    EXPECT_EQ(status, 0) << all.line(1);
    return take_log(0);
}

class There : public testing::TestWithParam<const char *>
{
  protected:
    static Bytes ranks(int n, const How &how)
    {
        return std::string(GetParam()) == "processes" ? as_processes(n, how) : as_threads(n, how);
    }
};
INSTANTIATE_TEST_SUITE_P(Ranks, There, testing::Values("processes", "threads"),
                         [](auto &i) { return std::string(i.param); });

TEST_P(There, AllMessagesLieInTheGpusMemory)
{
    for (int devices : {1, 4}) {
        How how;
        how.devices = devices;
        Bytes bytes = ranks(4, how);
        EXPECT_GT(bytes.there, 1000000u);
        EXPECT_GE(100 * bytes.there, 99 * (bytes.staged + bytes.direct))
            << devices << " devices: " << bytes.staged << " bytes were staged, " << bytes.direct
            << " reached, " << bytes.there << " of them there";
    }
}

TEST_P(There, BuffersMayLieAnywhere)
{
    How how;
    how.rounds = 40;
    how.where = ANYWHERE;
    how.devices = 2;
    ranks(4, how);
}

/* Where one rank alone has its buffers on the GPU nobody takes a message there. */
TEST_P(There, NothingThereIsForBuffersOfTheHost)
{
    How how;
    how.where = ON_HOST;
    EXPECT_EQ(ranks(3, how).there, 0u);
}

TEST_P(There, NothingIsThereWhereItIsNotWanted)
{
    for (const char *name : {"FTCCL_CUDA_IPC=0", "NCCL_P2P_DISABLE=1", "FTCCL_VERIFY=1",
                             "FTCCL_FAULT=seed=1,delay_us=10", "FTCCL_CUDA_PINNED_BYTES=0"}) {
        How how;
        std::string text = name;
        how.env[text.substr(0, text.find('='))] = text.substr(text.find('=') + 1);
        EXPECT_EQ(ranks(3, how).there, 0u) << name;
    }
}

/* What a driver refuses goes through the host's memory, and what else a rank does goes on. */
TEST_P(There, ADriverMayRefuse)
{
    for (std::string call : {"cuIpcGetMemHandle", "cuIpcOpenMemHandle", "cuDeviceCanAccessPeer",
                             "cuCtxEnablePeerAccess", "cuMemAlloc", "buffer id"}) {
        for (std::string after : {"0", "1"}) {
            if (call == "cuMemAlloc" && after == "1")
                continue; /* that is the test's own */
            How how;
            how.devices = 3;
            how.rounds = 3;
            how.fails = {call, after};
            ranks(3, how);
            EXPECT_FALSE(HasFailure()) << call << " after " << after;
        }
    }
}

/* ---- a rank that is killed ------------------------------------------------------------------- */

int mappings()
{
    std::ifstream maps("/proc/self/maps");
    int n = 0;
    for (std::string line; std::getline(maps, line);)
        n += line.find("standin") != std::string::npos || line.find("ftccl") != std::string::npos;
    return n;
}

std::string held()
{
    return std::to_string(standin_live_memory()) + " allocations, " + std::to_string(mappings()) +
           " mappings, " + std::to_string(proc::descriptors()) + " descriptors";
}

bool reduces(ftcclComm_t comm, CUstream stream, int n)
{
    Buffer<float> data(300000);
    std::vector<float> got(data.n);
    data.put(std::vector<float>(data.n, 1), stream);
    bool good = ftcclAllReduce(data.ptr(), data.ptr(), data.n, ftcclFloat, ftcclSum, comm,
                               as(stream)) == ftcclSuccess;
    data.get(got, stream);
    return soon([&] { return idle(stream); }) && good &&
           got == std::vector<float>(data.n, static_cast<float>(n));
}

/* survivor ID1 ID2 RANK: two jobs of three; in each rank 1 is killed while the others read its
 * memory. The two go on, and hold afterwards what they held after the first. */
CHILD(survivor)
{
    int rank = std::stoi(arguments[2]);
    CUstream stream;
    std::string before;
    enter(rank % 2);
    cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING);
    for (int job = 0; job < 2; job++) {
        ftcclComm_t comm, next;
        if (ftcclCommInitRank(&comm, 3, proc::unhex(arguments[static_cast<size_t>(job)]), rank) !=
            ftcclSuccess)
            return 1;
        if (!reduces(comm, stream, 3))
            return 2;
        printf("running\n"), fflush(stdout);
        while (reduces(comm, stream, 3)) {}
        if (ftcclCommShrink(comm, nullptr, 0, &next, nullptr, FTCCL_SHRINK_ABORT) != ftcclSuccess)
            return printf("%s\n", ftcclGetLastError(comm)), 3;
        ftcclCommAbort(comm);
        if (!soon([&] { return idle(stream); }))
            return 4;
        for (int i = 0; i < 3; i++)
            if (!reduces(next, stream, 2))
                return 5;
        if (ftcclCommDestroy(next) != ftcclSuccess)
            return 6;
        if (job == 0)
            before = held();
        printf("%s\n",
               job == 0 || held() == before ? "as before" : (before + " became " + held()).c_str()),
            fflush(stdout);
    }
    return 0;
}

/* victim ID RANK: reduces until it is killed. */
CHILD(victim)
{
    CUstream stream;
    ftcclComm_t comm;
    enter(1);
    cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING);
    if (ftcclCommInitRank(&comm, 3, proc::unhex(arguments[0]), 1) != ftcclSuccess)
        return 1;
    while (reduces(comm, stream, 3)) {}
    return 2;
}

TEST(ThereKill, TheOthersGoOnAndHoldNothingOfIt)
{
    std::vector<ftcclUniqueId> id(2);
    for (auto &one : id)
        ASSERT_OK(ftcclGetUniqueId(&one));
    std::vector<std::unique_ptr<proc::Child>> rank;
    for (int r : {0, 2})
        rank.push_back(std::make_unique<proc::Child>(
            "survivor",
            std::vector<std::string>{proc::hex(id[0]), proc::hex(id[1]), std::to_string(r)}));
    for (auto &job : id) {
        proc::Child victim("victim", {proc::hex(job)});
        for (auto &child : rank)
            ASSERT_EQ(child->line(60), "running");
        usleep(static_cast<useconds_t>(std::random_device()() % 30000));
        victim.signal(SIGKILL);
        for (auto &child : rank)
            EXPECT_EQ(child->line(60), "as before");
    }
    for (auto &child : rank)
        EXPECT_EQ(child->wait(60), 0);
}

} // namespace

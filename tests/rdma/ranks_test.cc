// Properties: ranks that are joined by RDMA alone get right results; a cable that is unplugged, or
// swallows everything, costs none of them (its traffic moves to the other one), and is used again
// when it is well; without any cable all ranks get a recoverable error, and go on when there is one
// again; a killed rank is known soon; with too little memory that may be locked, or an address that
// cannot be routed, the next transport is used, and the log says why. Method: processes in the
// machine of `rig`, at different ends of two cables, that reduce in a loop; cables are unplugged
// with ip(8) or emptied with tc(8).
#include <linux/capability.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cinttypes>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <sstream>

#include "tests/proc/proc.h"

namespace
{

// As for a user without rights, of whom the administrator has said nothing.
bool limit_locked_memory(rlim_t bytes)
{
    struct __user_cap_header_struct header = {_LINUX_CAPABILITY_VERSION_3, 0};
    struct __user_cap_data_struct data[2];
    const struct rlimit limit = {bytes, bytes};
    if (setrlimit(RLIMIT_MEMLOCK, &limit) != 0 || syscall(SYS_capget, &header, data) != 0)
        return false;
    data[0].effective &= ~(1u << CAP_IPC_LOCK);
    return syscall(SYS_capset, &header, data) == 0;
}

bool told()
{
    pollfd input{0, POLLIN, 0};
    return poll(&input, 1, 0) > 0;
}

// One AllReduce of right values. The first element tells whether a rank wants to stop.
ftcclResult_t reduce(ftcclComm_t comm, ftcclStream_t stream, std::vector<int64_t> &data, int64_t i,
                     bool stop, int ranks, unsigned *wrong)
{
    int rank = -1;
    ftcclCommUserRank(comm, &rank);
    for (size_t k = 0; k < data.size(); k++)
        data[k] = i + (int64_t)k * (rank + 1);
    data[0] = stop;
    ftcclResult_t result = ftcclAllReduce(data.data(), data.data(), data.size(), ftcclInt64,
                                          ftcclSum, comm, stream);
    if (result == ftcclSuccess)
        result = ftcclStreamSynchronize(stream);
    if (result != ftcclSuccess)
        return result;
    const int64_t sum = (int64_t)ranks * (ranks + 1) / 2;
    for (size_t k = 1; k < data.size(); k++)
        *wrong += data[k] != ranks * i + (int64_t)k * sum;
    return ftcclSuccess;
}

// loop ID RANKS RANK COUNT: reduces until it fails or a rank is told to stop. "at" on its input:
// prints how many it has done, and the longest one since the last "at". After a failure it waits
// for a word, shrinks, and reduces once more.
CHILD(loop)
{
    const int n = std::stoi(arguments[1]), rank = std::stoi(arguments[2]);
    std::vector<int64_t> data(std::stoul(arguments[3]));
    ftcclComm_t comm;
    ftcclStream_t stream;
    unsigned wrong = 0;
    const char *locked = getenv("FT_TEST_MEMLOCK");
    if (locked && !limit_locked_memory(strtoul(locked, nullptr, 10)))
        return 5;
    if (ftcclStreamCreate(&stream) != ftcclSuccess ||
        ftcclCommInitRank(&comm, n, proc::unhex(arguments[0]), rank) != ftcclSuccess) {
        printf("init %s\n", ftcclGetLastError(nullptr));
        return 1;
    }
    ftcclResult_t result = ftcclSuccess;
    double longest = 0;
    bool stop = false;
    char word[64];
    for (int64_t i = 0; result == ftcclSuccess && data[0] == 0; i++) {
        const double begin = proc::now();
        result = reduce(comm, stream, data, i, stop, n, &wrong);
        longest = std::max(longest, proc::now() - begin);
        if (i == 3)
            printf("running\n");
        if (result != ftcclSuccess || !told() || scanf("%60s", word) != 1)
            continue;
        stop = word[0] == 's';
        if (!stop)
            printf("%" PRId64 " %.1f %u\n", i, longest * 1e3, wrong);
        longest = 0;
    }
    if (result == ftcclSuccess) {
        printf("stopped, %u wrong\n", wrong);
        return ftcclCommDestroy(comm) == ftcclSuccess ? 0 : 2;
    }
    printf("failed %d class %d after %.0f ms: %s\n", result, ftcclGetErrorClass(result),
           longest * 1e3, ftcclGetLastError(comm));
    if (scanf("%60s", word) != 1)
        return 3;
    ftcclComm_t child;
    result = ftcclCommShrink(comm, nullptr, 0, &child, nullptr, 0);
    int left = 0;
    if (result == ftcclSuccess) {
        ftcclCommCount(child, &left);
        result = reduce(child, stream, data, 1, false, left, &wrong);
    }
    printf("again %d of %d, %u wrong: %s\n", result, left, wrong,
           result == ftcclSuccess ? "" : ftcclGetLastError(nullptr));
    ftcclCommAbort(comm);
    return result == ftcclSuccess && ftcclCommDestroy(child) == ftcclSuccess ? 0 : 4;
}

void shell(const std::string &command)
{
    EXPECT_EQ(system(command.c_str()), 0) << command;
}

unsigned long sent(const char *device)
{
    unsigned long n = 0;
    std::ifstream(std::string("/sys/class/infiniband/") + device +
                  "/ports/1/hw_counters/sent_pkts") >>
        n;
    return n;
}

class Ranks : public testing::Test
{
  protected:
    // Ranks with even numbers are at one end of both cables, the others at the other end.
    void start(int n, size_t count, std::map<std::string, std::string> env = {})
    {
        ftcclUniqueId id;
        ASSERT_OK(ftcclGetUniqueId(&id));
        env.insert({{"FTCCL_TRANSPORTS", "verbs"},
                    {"FTCCL_SOCKET_IFNAME", "lo"},
                    {"FTCCL_RAIL_RETRY_MS", "200"},
                    {"FTCCL_IB_TIMEOUT", "12"},
                    {"FTCCL_OP_TIMEOUT_MS", "20000"}});
        for (int r = 0; r < n; r++) {
            env["FTCCL_IB_HCA"] = ports[r % 2];
            env["FTCCL_HOSTID"] = "host" + std::to_string(r);
            rank.push_back(std::make_unique<proc::Child>(
                "loop",
                std::vector<std::string>{proc::hex(id), std::to_string(n), std::to_string(r),
                                         std::to_string(count)},
                env));
        }
        for (auto &child : rank)
            ASSERT_EQ(child->line(), "running");
    }
    // Iterations that rank 0 has done, and its longest one since the last call in milliseconds.
    std::pair<long, double> at()
    {
        rank[0]->tell("at");
        std::istringstream line(rank[0]->line());
        long done = -1;
        double ms = -1;
        unsigned wrong = 1;
        line >> done >> ms >> wrong;
        EXPECT_EQ(wrong, 0u) << line.str();
        longest = std::max(longest, ms);
        return {done, ms};
    }
    void pass(long iterations)
    {
        const long until = at().first + iterations;
        const double end = proc::now() + 30;
        while (at().first < until && proc::now() < end && !HasFailure())
            usleep(20000);
    }
    void stop()
    {
        rank[0]->tell("stop");
        for (auto &child : rank) {
            EXPECT_EQ(child->line(), "stopped, 0 wrong");
            EXPECT_EQ(child->wait(), 0);
        }
    }
    std::vector<std::unique_ptr<proc::Child>> rank;
    double longest = 0; // of all calls of at()
    const char *ports[2] = {"=rxe0,rxe2", "=rxe1,rxe3"};
};

TEST_F(Ranks, FourReduceOverBothCables)
{
    const unsigned long before[] = {sent("rxe0"), sent("rxe2")};
    start(4, 16384);
    pass(5);
    stop();
    EXPECT_GT(sent("rxe0") - before[0], 100u);
    EXPECT_GT(sent("rxe2") - before[1], 100u);
}

TEST_F(Ranks, AnUnpluggedCableCostsNothingAndIsUsedAgain)
{
    start(2, 16384);
    pass(5);
    (void)at();
    longest = 0;
    shell("ip link set cable0 down");
    pass(10);
    (void)at();
    printf("the longest AllReduce while a cable was unplugged: %.1f ms\n", longest);
    // Soft-RoCE takes 3 s to destroy a queue pair of this cable.
    EXPECT_LT(longest, 1500);
    const unsigned long dead = sent("rxe0"), alive = sent("rxe2");
    pass(5);
    EXPECT_GT(sent("rxe2"), alive);
    EXPECT_LT(sent("rxe0") - dead, 50u);
    shell("ip link set cable0 up");
    const unsigned long again = sent("rxe0");
    const double end = proc::now() + 20;
    while (sent("rxe0") < again + 200 && proc::now() < end)
        pass(3);
    EXPECT_GE(sent("rxe0"), again + 200) << "the cable is not used again";
    stop();
}

// Nothing tells the device that the cable swallows everything: only its retries do.
TEST_F(Ranks, ACableThatSwallowsEverythingCostsNothing)
{
    start(2, 16384);
    pass(5);
    (void)at();
    longest = 0;
    shell("tc qdisc add dev cable0 root netem loss 100%");
    pass(10);
    (void)at();
    shell("tc qdisc del dev cable0 root");
    printf("the longest AllReduce while a cable swallowed everything: %.1f ms\n", longest);
    // 2 x (retries + 1) x timeout, and the time of an AllReduce on a busy machine
    EXPECT_LT(longest, 2 * 7 * 16.8 + 2000);
    stop();
}

TEST_F(Ranks, WithoutAnyCableAllGetARecoverableErrorAndGoOn)
{
    // Nobody is left out because the machine is slow.
    start(2, 16384, {{"FTCCL_SUSPECT_MS", "20000"}});
    shell("ip link set cable0 down; ip link set cable2 down");
    for (auto &child : rank) {
        std::string line = child->line(40);
        EXPECT_EQ(line.substr(0, 16), "failed 6 class 3") << line;
        printf("%s\n", line.c_str());
    }
    shell("ip link set cable0 up; ip link set cable2 up");
    for (auto &child : rank)
        child->tell("shrink");
    for (auto &child : rank) {
        EXPECT_EQ(child->line(60), "again 0 of 2, 0 wrong: ");
        EXPECT_EQ(child->wait(), 0);
    }
}

// Two ranks that may use verbs or tcp reduce over tcp; what they log.
class Instead : public Ranks
{
  protected:
    std::string reduce_over_tcp(std::map<std::string, std::string> env)
    {
        const std::string file = testing::TempDir() + "ft-ranks-" + std::to_string(getpid());
        unlink(file.c_str());
        env.insert({{"FTCCL_TRANSPORTS", "verbs,tcp"},
                    {"FTCCL_DEBUG", "INFO"},
                    {"FTCCL_DEBUG_FILE", file}});
        const unsigned long before = sent("rxe0") + sent("rxe1");
        start(2, 16384, env);
        pass(10);
        stop();
        EXPECT_LT(sent("rxe0") + sent("rxe1") - before, 150u) << "10 calls take 320 or more";
        std::ostringstream log;
        log << std::ifstream(file).rdbuf();
        unlink(file.c_str());
        return log.str();
    }
};

TEST_F(Instead, OfTooLittleLockedMemory)
{
    const std::string log = reduce_over_tcp({{"FT_TEST_MEMLOCK", "65536"}});
    EXPECT_NE(log.find("the limit on locked memory is 64 KiB (ulimit -l), and "), std::string::npos)
        << log;
}

// Rank 1 has an address to which rank 0's device has no way.
TEST_F(Instead, OfAnAddressWithoutARoute)
{
    ports[0] = "=rxe0";
    ports[1] = "=rxe1";
    shell("ip -4 addr flush dev cable1; ip addr add 198.51.100.7/32 dev cable1");
    shell("ip rule add pref 100 lookup local; ip rule del pref 0; "
          "ip rule add pref 10 from 10.77.0.1 to 198.51.100.7 unreachable");
    const std::string log = reduce_over_tcp({});
    shell("ip rule add pref 0 lookup local; ip rule del pref 10; ip rule del pref 100");
    shell("ip -4 addr flush dev cable1; ip addr add 10.77.0.2/24 dev cable1");
    EXPECT_NE(log.find("198.51.100.7"), std::string::npos) << log;
    EXPECT_NE(log.find("trying tcp"), std::string::npos) << log;
}

TEST_F(Ranks, AKilledRankIsKnownSoonAndTheOthersGoOn)
{
    const char *const transports[] = {"verbs", "tcp"};
    std::vector<double> ms[2];
    for (int round = 0; round < 10 && !HasFailure(); round++) {
        rank.clear();
        start(3, 1000, {{"FTCCL_TRANSPORTS", transports[round % 2]}});
        if (HasFailure())
            return;
        const double begin = proc::now();
        rank[1]->signal(9);
        for (int r : {0, 2}) {
            std::string line = rank[(size_t)r]->line();
            EXPECT_EQ(line.substr(0, 16), "failed 6 class 3") << line;
        }
        ms[round % 2].push_back((proc::now() - begin) * 1e3);
        for (int r : {0, 2})
            rank[(size_t)r]->tell("shrink");
        for (int r : {0, 2})
            EXPECT_EQ(rank[(size_t)r]->line(), "again 0 of 2, 0 wrong: ");
    }
    for (int i = 0; i < 2; i++) {
        std::sort(ms[i].begin(), ms[i].end());
        printf("over %s, a killed rank is known to all after %.1f to %.1f ms, median %.1f\n",
               transports[i], ms[i].front(), ms[i].back(), ms[i][ms[i].size() / 2]);
    }
}

} // namespace

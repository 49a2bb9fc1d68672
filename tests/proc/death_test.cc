/*
 * Property: on one host, the others know of a killed process before the kernel has torn down its
 * memory, that is, before any of its descriptors closes. Its size and the kind of links do not
 * matter. This is proof of death, so one rank of two goes on. Method: ranks as processes in a loop
 * of AllReduces over shared memory or TCP; one of them has touched much memory and is killed. The
 * kernel closes the highest descriptor of a dead process first. That is a pipe here, and the
 * survivors must report before it ends. FT_DEATH_MIB sets the large size.
 */
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <memory>

#include "tests/proc/proc.h"

namespace
{

/* large ID NRANKS RANK MIB WITNESS: reduces until it fails, with so much memory touched. */
CHILD(large)
{
    int witness = std::stoi(arguments[4]);
    if (witness >= 0 && fcntl(witness, F_DUPFD_CLOEXEC, 800) < 0)
        return 2;
    if (witness >= 0)
        close(witness);
    int n = std::stoi(arguments[1]), rank = std::stoi(arguments[2]);
    size_t bytes = std::stoul(arguments[3]) << 20;
    if (bytes != 0) {
        void *at = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (at == MAP_FAILED)
            return 2;
        madvise(at, bytes, MADV_NOHUGEPAGE);
        for (size_t i = 0; i < bytes; i += 4096)
            static_cast<volatile char *>(at)[i] = 1;
    }
    float data = 1;
    ftcclComm_t comm;
    ftcclStream_t stream;
    if (ftcclStreamCreate(&stream) != ftcclSuccess)
        return 1;
    if (ftcclCommInitRank(&comm, n, proc::unhex(arguments[0]), rank) != ftcclSuccess)
        return 1;
    ftcclResult_t result = ftcclSuccess;
    for (int i = 0; result == ftcclSuccess; i++) {
        result = ftcclAllReduce(&data, &data, 1, ftcclFloat, ftcclMax, comm, stream);
        if (result == ftcclSuccess)
            result = ftcclStreamSynchronize(stream);
        if (i == 5)
            printf("running\n");
    }
    printf("%d %s\n", result, ftcclGetLastError(comm));
    char word[8]; /* leaving now would be what the others hear of */
    if (scanf("%7s", word) != 1)
        return 3;
    ftcclComm_t child = nullptr;
    int left = 0;
    if (std::string(word) == "shrink") {
        result = ftcclCommShrink(comm, nullptr, 0, &child, nullptr, FTCCL_SHRINK_DEFAULT);
        if (result == ftcclSuccess)
            result = ftcclCommCount(child, &left);
        printf("%d of %d %s\n", result, left, ftcclGetLastError(comm));
        if (child)
            ftcclCommDestroy(child);
    }
    ftcclCommAbort(comm);
    ftcclStreamDestroy(stream);
    return 0;
}

size_t available_mib()
{
    std::ifstream info("/proc/meminfo");
    for (std::string word; info >> word;) {
        size_t kib = 0;
        if (word == "MemAvailable:" && info >> kib)
            return kib >> 10;
    }
    return 0;
}

/* True if the survivors knew before the dead one's descriptors closed. */
void kill_one(int n, int victim, size_t mib, const char *transport, bool *before)
{
    ftcclUniqueId id;
    ASSERT_OK(ftcclGetUniqueId(&id));
    std::vector<std::unique_ptr<proc::Child>> rank;
    int witness[2];
    ASSERT_EQ(pipe2(witness, O_CLOEXEC), 0);
    for (int r = 0; r < n; r++) {
        bool dies = r == victim;
        std::vector<std::string> words{proc::hex(id), std::to_string(n), std::to_string(r),
                                       dies ? std::to_string(mib) : "0",
                                       std::to_string(dies ? witness[1] : -1)};
        fcntl(witness[1], F_SETFD, dies ? 0 : FD_CLOEXEC);
        rank.push_back(std::make_unique<proc::Child>(
            "large", words, std::map<std::string, std::string>{{"FTCCL_TRANSPORTS", transport}}));
    }
    close(witness[1]);
    for (auto &child : rank)
        EXPECT_EQ(child->line(60), "running");
    double start = proc::now(), slowest = 0;
    rank[static_cast<size_t>(victim)]->signal(SIGKILL);
    for (int r = 0; r < n; r++) {
        if (r == victim)
            continue;
        std::string line = rank[static_cast<size_t>(r)]->line(20);
        slowest = proc::now() - start;
        EXPECT_EQ(line.substr(0, line.find(' ')), std::to_string(ftcclRemoteError))
            << "rank " << r << ": " << line;
        EXPECT_NE(line.find("its process has ended"), std::string::npos)
            << "rank " << r << " has no proof: " << line;
    }
    pollfd end{witness[0], 0, 0};
    *before = poll(&end, 1, 0) == 0;
    close(witness[0]);
    EXPECT_EQ(rank[static_cast<size_t>(victim)]->wait(), 128 + SIGKILL);
    double gone = proc::now() - start;
    printf("%zu MiB: known to all after %.1f ms, the process gone after %.1f ms\n", mib,
           slowest * 1e3, gone * 1e3);
    rank.erase(rank.begin() + victim);
    for (auto &survivor : rank)
        survivor->tell("shrink");
    for (auto &survivor : rank) {
        std::string line = survivor->line(60), want = "0 of " + std::to_string(n - 1);
        EXPECT_EQ(line.substr(0, want.size()), want) << line;
    }
    for (auto &survivor : rank)
        EXPECT_EQ(survivor->wait(), 0);
}

class Death : public testing::TestWithParam<const char *>
{
};

TEST_P(Death, OfASmallProcess)
{
    bool before; /* too close to tell */
    kill_one(3, 1, 64, GetParam(), &before);
}

TEST_P(Death, OfOneOfTwoLeavesTheOther)
{
    bool before;
    kill_one(2, 0, 1, GetParam(), &before);
}

TEST_P(Death, OfALargeProcessIsKnownBeforeItsDescriptorsClose)
{
    const char *wish = getenv("FT_DEATH_MIB");
    size_t mib = wish ? std::stoul(wish) : 2048;
    while (mib > 64 && mib + 1024 > available_mib())
        mib /= 2;
    bool before = false;
    /* a busy machine may hold the survivors up */
    for (int i = 0; i < 3 && !before && !HasFailure(); i++)
        kill_one(3, 1, mib, GetParam(), &before);
    if (mib < 1024)
        GTEST_SKIP() << "too little memory is free to tell the order";
    EXPECT_TRUE(before) << "the survivors heard only when its descriptors closed";
}

INSTANTIATE_TEST_SUITE_P(Over, Death, testing::Values("shm", "tcp"),
                         [](const auto &over) { return std::string(over.param); });

} // namespace

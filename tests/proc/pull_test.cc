/*
 * Property: a long message that is read from another process's memory is what its sender put there,
 * or the operation fails. What a call reports as done is right, byte for byte, even if ranks are
 * killed at that moment. The other ranks learn of it quickly. A rank that loses the right to read
 * the memory of others fails recoverably. Method: ranks as processes that repeat collectives with
 * new contents, and check every result; SIGKILL at many moments; a system call filter in one of
 * them.
 */
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <filesystem>
#include <memory>

#include "tests/proc/proc.h"

namespace
{

constexpr size_t kCount = (1 << 20) + 33; // bytes of a block: three messages, the last one short

bool refuse_reading()
{
    struct sock_filter code[] = {BPF_STMT(BPF_LD | BPF_W | BPF_ABS,
                                          offsetof(struct seccomp_data, nr)),
                                 BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_process_vm_readv, 0, 1),
                                 BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
                                 BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)};
    struct sock_fprog program = {sizeof code / sizeof code[0], code};
    return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
           prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}

bool all(const std::vector<unsigned char> &v, size_t from, unsigned char value)
{
    return v[from] == value &&
           memcmp(&v[from], &v[from + 1], kCount - 1) == 0; // each byte is as the one before
}

/* pulls ID NRANKS RANK FILTER: all-gathers and broadcasts until it fails; with FILTER, reads
 * nothing from some round on. */
CHILD(pulls)
{
    int n = std::stoi(arguments[1]), rank = std::stoi(arguments[2]),
        filter = std::stoi(arguments[3]);
    std::vector<unsigned char> in(kCount), out(kCount * static_cast<size_t>(n)), cast(kCount);
    ftcclComm_t comm;
    ftcclStream_t stream;
    if (ftcclStreamCreate(&stream) != ftcclSuccess)
        return 1;
    if (ftcclCommInitRank(&comm, n, proc::unhex(arguments[0]), rank) != ftcclSuccess)
        return 1;
    ftcclResult_t result = ftcclSuccess;
    for (int i = 0; result == ftcclSuccess && i < 100000; i++) {
        std::fill(in.begin(), in.end(),
                  static_cast<unsigned char>(i * 7 +
                                             rank)); // whatever still reads it finds something else
        if (rank == i % n)
            cast = in;
        if (filter && i == 70 && !refuse_reading())
            return 77;
        result = ftcclAllGather(in.data(), out.data(), kCount, ftcclUint8, comm, stream);
        if (result == ftcclSuccess)
            result = ftcclStreamSynchronize(stream);
        std::fill(in.begin(), in.end(),
                  static_cast<unsigned char>(0xee)); // it is this rank's again
        if (result == ftcclSuccess)
            result = ftcclBroadcast(cast.data(), cast.data(), kCount, ftcclUint8, i % n, comm,
                                    stream);
        if (result == ftcclSuccess)
            result = ftcclStreamSynchronize(stream);
        for (int r = 0; r < n && result == ftcclSuccess; r++)
            if (!all(out, static_cast<size_t>(r) * kCount, static_cast<unsigned char>(i * 7 + r)))
                printf("torn, round %d\n", i), exit(2);
        if (result == ftcclSuccess && !all(cast, 0, static_cast<unsigned char>(i * 7 + i % n)))
            printf("torn broadcast, round %d\n", i), exit(2);
        if (i == 60 || i == 200)
            printf(i == 60 ? "running\n" : "on\n");
    }
    printf("%d %s\n", result, ftcclGetLastError(comm));
    ftcclCommAbort(comm);
    return 0;
}

struct Job {
    std::vector<std::unique_ptr<proc::Child>> rank;
    Job(int n, int filtered, std::map<std::string, std::string> env,
        const std::vector<std::string> &slow = {})
    {
        ftcclUniqueId id;
        EXPECT_OK(ftcclGetUniqueId(&id));
        for (int r = 0; r < n; r++) {
            if (!slow.empty())
                env["FTCCL_CMA_SLOW"] = slow[static_cast<size_t>(r)];
            rank.push_back(std::make_unique<proc::Child>(
                "pulls",
                std::vector<std::string>{proc::hex(id), std::to_string(n), std::to_string(r),
                                         std::to_string(r == filtered)},
                env));
        }
        for (auto &child : rank)
            EXPECT_EQ(child->line(), "running");
    }
    void fails(int victim)
    {
        for (size_t r = 0; r < rank.size(); r++) {
            if (static_cast<int>(r) == victim)
                continue;
            std::string line = rank[r]->line(20);
            if (line == "on")
                line = rank[r]->line(20);
            EXPECT_EQ(line.substr(0, line.find(' ')), std::to_string(ftcclRemoteError))
                << "rank " << r << ": " << line;
            EXPECT_EQ(rank[r]->wait(), 0) << "rank " << r;
        }
    }
};

TEST(Pull, WhatIsDoneIsRightWhileRanksDie)
{
    for (int i = 0; i < 12; i++) {
        Job job(3, -1, {{"FTCCL_TRANSPORTS", "shm"}, {"FTCCL_CMA_SLOW", "0"}});
        if (HasFailure())
            return;
        usleep(static_cast<useconds_t>(997 * i));
        double start = proc::now();
        job.rank[static_cast<size_t>(i % 3)]->signal(SIGKILL);
        job.fails(i % 3);
        EXPECT_LT(proc::now() - start, 2.0);
        if (HasFailure())
            return;
    }
}

/* The root copies parts of a broadcast to so many. */
constexpr int kMany = 6;

TEST(Pull, WhatIsDoneIsRightWhileOneOfManyDies)
{
    for (int i = 0; i < kMany; i++) {
        Job job(kMany, -1, {{"FTCCL_TRANSPORTS", "shm"}, {"FTCCL_CMA_SLOW", "0"}});
        if (HasFailure())
            return;
        usleep(static_cast<useconds_t>(1997 * i));
        job.rank[static_cast<size_t>(i)]->signal(SIGKILL);
        job.fails(i);
        if (HasFailure())
            return;
    }
}

/* Bytes of the memory that other processes may read, which is one file without a name. */
int64_t arena_bytes()
{
    for (auto &entry : std::filesystem::directory_iterator("/proc/self/fd")) {
        std::error_code gone;
        struct stat st;
        if (std::filesystem::read_symlink(entry, gone).string().find("ftccl-arena") !=
                std::string::npos &&
            stat(entry.path().c_str(), &st) == 0)
            return static_cast<int64_t>(st.st_blocks) * 512;
    }
    return 0;
}

/* Copies for several receivers take memory only while there are such broadcasts. */
TEST(Pull, CopiesForManyAreGivenBack)
{
    proc::World world(kMany);
    std::vector<std::vector<unsigned char>> data(kMany, std::vector<unsigned char>(kCount));
    const int64_t before = arena_bytes();
    std::atomic<bool> copied{false};
    world.each([&](int r) {
        for (int i = 0; i < 20; i++) {
            auto &mine = data[static_cast<size_t>(r)];
            std::fill(mine.begin(), mine.end(), static_cast<unsigned char>(r == i % kMany ? i : 0));
            EXPECT_OK(ftcclBroadcast(mine.data(), mine.data(), kCount, ftcclUint8, i % kMany,
                                     world.comm[static_cast<size_t>(r)], nullptr));
            EXPECT_OK(ftcclStreamSynchronize(nullptr));
            EXPECT_TRUE(all(mine, 0, static_cast<unsigned char>(i))) << "round " << i;
            copied = copied || arena_bytes() > before;
        }
    });
    EXPECT_TRUE(copied);
    for (double end = proc::now() + 20; arena_bytes() > before && proc::now() < end;)
        usleep(10000);
    EXPECT_EQ(arena_bytes(), before) << "after twice FTCCL_TRIM_MS";
}

TEST(Pull, ARankThatMayNotReadAnyMoreFailsRecoverably)
{
    Job job(2, 1, {{"FTCCL_TRANSPORTS", "shm"}, {"FTCCL_CMA_SLOW", "0"}});
    if (HasFailure())
        return;
    job.fails(-1);
}

/* One rank that says so is enough. */
TEST(Pull, WhereItIsSlowMessagesAreCopied)
{
    Job job(2, 1, {{"FTCCL_TRANSPORTS", "shm"}}, {"1", "0"});
    if (HasFailure())
        return;
    EXPECT_EQ(job.rank[1]->line(20), "on");
    job.rank[0]->signal(SIGKILL);
    job.fails(0);
}

TEST(Pull, WithoutTheCallMessagesAreCopied)
{
    Job job(2, -1, {{"FTCCL_TRANSPORTS", "shm"}, {"FTCCL_CMA", "0"}});
    job.rank[0]->signal(SIGKILL);
    job.fails(0);
}

} // namespace

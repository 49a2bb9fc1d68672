/*
 * Property: if a link reads a result from its socket directly into the user's buffer, the result is
 * right, byte for byte, when a call reports it as done. If the call fails because a rank dies or
 * stops, the buffer belongs to the caller alone from then on, even while the sender, after SIGCONT,
 * still sends. Method: ranks as processes that exchange messages longer than a socket holds;
 * SIGKILL and SIGSTOP at many moments. After the failure the survivors fill their results with a
 * pattern, and check that it stays while the stopped rank goes on.
 */
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <memory>

#include "tests/proc/proc.h"

namespace
{

constexpr size_t kCount = 6 << 20; // bytes of a block: one message, which no socket takes whole
constexpr int kRanks = 3;

bool is_all(const unsigned char *at, size_t n, unsigned char value)
{
    return std::all_of(at, at + n, [=](unsigned char byte) { return byte == value; });
}

/* exchanges ID RANK TIMEOUT: all-to-alls and broadcasts until it fails; on "look" it says what
 * became of its buffer. */
CHILD(exchanges)
{
    int rank = std::stoi(arguments[1]);
    std::vector<unsigned char> in(kCount * kRanks), out(in.size());
    ftcclOptions_t options = FTCCL_OPTIONS_INITIALIZER;
    options.opTimeoutMs = std::stoi(arguments[2]);
    ftcclConfig_t config = FTCCL_CONFIG_INITIALIZER;
    config.options = &options;
    ftcclComm_t comm;
    ftcclStream_t stream;
    if (ftcclStreamCreate(&stream) != ftcclSuccess)
        return 1;
    if (ftcclCommInitRankConfig(&comm, kRanks, proc::unhex(arguments[0]), rank, &config) !=
        ftcclSuccess)
        return 1;
    ftcclResult_t result = ftcclSuccess;
    for (int i = 0; result == ftcclSuccess; i++) {
        std::fill(in.begin(), in.end(), static_cast<unsigned char>(i * 7 + rank));
        result = ftcclAlltoAll(in.data(), out.data(), kCount, ftcclUint8, comm, stream);
        if (result == ftcclSuccess)
            result = ftcclStreamSynchronize(stream);
        for (int r = 0; r < kRanks && result == ftcclSuccess; r++)
            if (!is_all(&out[static_cast<size_t>(r) * kCount], kCount,
                        static_cast<unsigned char>(i * 7 + r)))
                printf("torn, round %d\n", i), exit(2);
        if (result == ftcclSuccess)
            result = ftcclBroadcast(in.data(), out.data(), kCount, ftcclUint8, i % kRanks, comm,
                                    stream);
        if (result == ftcclSuccess)
            result = ftcclStreamSynchronize(stream);
        if (result == ftcclSuccess &&
            !is_all(out.data(), kCount, static_cast<unsigned char>(i * 7 + i % kRanks)))
            printf("torn broadcast, round %d\n", i), exit(2);
        if (i == 2)
            printf("running\n");
    }
    std::fill(out.begin(), out.end(), static_cast<unsigned char>(0xee));
    printf("%d\n", result);
    char word[16];
    while (scanf("%15s", word) == 1 && std::string(word) == "look")
        printf(is_all(out.data(), out.size(), 0xee) ? "untouched\n" : "written\n");
    ftcclCommAbort(comm);
    return 0;
}

struct Job {
    std::vector<std::unique_ptr<proc::Child>> rank;
    explicit Job(int timeout_ms)
    {
        ftcclUniqueId id;
        EXPECT_OK(ftcclGetUniqueId(&id));
        std::map<std::string, std::string> env = {{"FTCCL_TRANSPORTS", "tcp"},
                                                  {"FTCCL_CHUNK_BYTES", std::to_string(2 << 20)}};
        for (int r = 0; r < kRanks; r++)
            rank.push_back(std::make_unique<proc::Child>(
                "exchanges",
                std::vector<std::string>{proc::hex(id), std::to_string(r),
                                         std::to_string(timeout_ms)},
                env));
        for (auto &child : rank)
            EXPECT_EQ(child->line(), "running");
    }
    void each_but(size_t victim, const std::function<void(proc::Child &)> &f) const
    {
        for (size_t r = 0; r < rank.size(); r++)
            if (r != victim)
                f(*rank[r]);
    }
    void untouched_but(size_t victim) const
    {
        each_but(victim, [](proc::Child &child) {
            child.tell("look");
            EXPECT_EQ(child.line(), "untouched");
        });
    }
};

TEST(Expect, WhatIsDoneIsRightWhileRanksDie)
{
    for (size_t i = 0; i < 8; i++) {
        Job job(20000);
        if (HasFailure())
            return;
        usleep(static_cast<useconds_t>(1997 * i));
        job.rank[i % kRanks]->signal(SIGKILL);
        job.each_but(i % kRanks, [](proc::Child &child) {
            EXPECT_EQ(child.line(20), std::to_string(ftcclRemoteError));
        });
        job.untouched_but(i % kRanks);
        if (HasFailure())
            return;
    }
}

TEST(Expect, AStoppedSenderThatGoesOnReachesNothing)
{
    for (size_t i = 0; i < 5; i++) {
        Job job(2000); // so long that on a busy machine a round is over in time
        if (HasFailure())
            return;
        usleep(static_cast<useconds_t>(3331 * i));
        job.rank[i % kRanks]->signal(SIGSTOP);
        job.each_but(i % kRanks, [](proc::Child &child) { EXPECT_NE(child.line(20), "0"); });
        job.rank[i % kRanks]->signal(SIGCONT);
        EXPECT_NE(job.rank[i % kRanks]->line(20), "0")
            << "it hears of the failure, or gives up, after what it still could send";
        usleep(50000);
        job.untouched_but(i % kRanks);
        if (HasFailure())
            return;
    }
}

} // namespace

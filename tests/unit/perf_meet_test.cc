// Source: perf/meet.h
// Property: nobody leaves a meeting before all have come to it, as often as they meet.
#include "perf/meet.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <string>

namespace
{

constexpr int rounds = 2000;

struct File {
    std::string path = "/tmp/perf_meet.XXXXXX";
    File()
    {
        int fd = mkstemp(&path[0]);
        if (fd >= 0)
            close(fd);
        setenv("FTCCL_PERF_MEET", path.c_str(), 1);
    }
    ~File()
    {
        unsetenv("FTCCL_PERF_MEET");
        unlink(path.c_str());
    }
};

class Meeting : public testing::TestWithParam<int>
{
};

TEST_P(Meeting, NobodyLeavesBeforeAllHaveCome)
{
    const int n = GetParam();
    File file;
    void *at = mmap(nullptr, sizeof(std::atomic<int>), PROT_READ | PROT_WRITE,
                    MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    ASSERT_NE(at, MAP_FAILED);
    auto *come = new (at) std::atomic<int>(0);
    for (int i = 0; i < n; i++) {
        if (fork() != 0)
            continue;
        struct meeting *m = nullptr;
        if (meeting_join(&m, n) || !m)
            _exit(2);
        for (int round = 1; round <= rounds; round++) {
            come->fetch_add(1);
            meeting_wait(m);
            if (come->load() < round * n)
                _exit(3);
        }
        meeting_leave(m);
        _exit(0);
    }
    for (int i = 0; i < n; i++) {
        int status = -1;
        ASSERT_GT(wait(&status), 0);
        EXPECT_EQ(status, 0) << "exit status " << WEXITSTATUS(status);
    }
    EXPECT_EQ(come->load(), n * rounds);
    munmap(at, sizeof *come);
}

INSTANTIATE_TEST_SUITE_P(Processes, Meeting, testing::Values(1, 2, 5));

TEST(MeetingFile, IsNotNeeded)
{
    struct meeting *m = nullptr;
    unsetenv("FTCCL_PERF_MEET");
    EXPECT_EQ(meeting_join(&m, 2), 0);
    EXPECT_EQ(m, nullptr);
    meeting_leave(m);
}

TEST(MeetingFile, ThatIsNotThereIsSaid)
{
    struct meeting *m = nullptr;
    setenv("FTCCL_PERF_MEET", "/nowhere/at/all", 1);
    testing::internal::CaptureStderr();
    EXPECT_EQ(meeting_join(&m, 2), -1);
    EXPECT_EQ(testing::internal::GetCapturedStderr(),
              "FTCCL_PERF_MEET=/nowhere/at/all: No such file or directory\n");
    unsetenv("FTCCL_PERF_MEET");
}

} // namespace

/*
 * Property: shared memory is allocated however often signals come, and a signal need not wait until
 * much of it is allocated. Method: posix_fallocate() is wrapped, and behaves like that of Linux up
 * to 6.x at its worst: a timer interrupts every call that can be interrupted, and then nothing is
 * allocated.
 */
#include <errno.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <pthread.h>
#include <signal.h>

#include <algorithm>

extern "C" {
#include "base/base.h"
}

namespace
{

const size_t MIB = 1 << 20;
int interrupted;
off_t longest, sum;

} // namespace

extern "C" {
int __real_posix_fallocate(int fd, off_t at, off_t len);
int __wrap_posix_fallocate(int fd, off_t at, off_t len);
int __wrap_posix_fallocate(int fd, off_t at, off_t len)
{
    sigset_t now;
    pthread_sigmask(SIG_SETMASK, nullptr, &now);
    if (!sigismember(&now, SIGPROF) && ++interrupted < 1000)
        return EINTR;
    longest = std::max(longest, len);
    sum += len;
    return __real_posix_fallocate(fd, at, len);
}
}

namespace
{

struct SharedMemory : testing::Test {
    void SetUp() override
    {
        interrupted = 0;
        longest = sum = 0;
    }
    void TearDown() override
    {
        sigset_t now;
        pthread_sigmask(SIG_SETMASK, nullptr, &now);
        EXPECT_FALSE(sigismember(&now, SIGPROF)) << "signals stayed blocked";
        EXPECT_EQ(interrupted, 0);
        EXPECT_LE(longest, static_cast<off_t>(16 * MIB)) << "a signal waits for it";
    }
};

TEST_F(SharedMemory, OfALinkIsAllocatedWhileSignalsCome)
{
    const size_t len = 50 * MIB + 4096;
    int fd = -1;
    ASSERT_EQ(ft_memfd("test", len, len, &fd), FT_OK) << ft_fail_text();
    EXPECT_EQ(sum, static_cast<off_t>(len));
    EXPECT_EQ(ft_memfd_check(fd, len, len), FT_OK) << ft_fail_text();
    EXPECT_EQ(sum, static_cast<off_t>(2 * len));
    ft_fd_close(&fd);
}

TEST_F(SharedMemory, OfTheArenaIsAllocatedWhileSignalsCome)
{
    const size_t len = 50 * MIB;
    void *memory = nullptr;
    ASSERT_EQ(ft_arena_alloc(len, &memory), FT_OK) << ft_fail_text();
    EXPECT_EQ(sum, static_cast<off_t>(len));
    EXPECT_TRUE(ft_arena_free(memory));
}

} // namespace

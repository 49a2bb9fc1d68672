/*
 * Property: a descriptor that the library has taken over is closed at its time, and in a child of
 * fork, even if there was no memory when it was taken over. Method: allocations fail meanwhile.
 */
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

extern "C" {
#include "base/base.h"
}

namespace
{

bool no_memory;

bool is_open(int fd)
{
    return fcntl(fd, F_GETFD) >= 0;
}

} // namespace

extern "C" {
void *__real_malloc(size_t len);
void *__real_calloc(size_t n, size_t len);
void *__real_realloc(void *from, size_t len);
void *__wrap_malloc(size_t len);
void *__wrap_calloc(size_t n, size_t len);
void *__wrap_realloc(void *from, size_t len);
void *__wrap_malloc(size_t len)
{
    return no_memory ? nullptr : __real_malloc(len);
}
void *__wrap_calloc(size_t n, size_t len)
{
    return no_memory ? nullptr : __real_calloc(n, len);
}
void *__wrap_realloc(void *from, size_t len)
{
    return no_memory ? nullptr : __real_realloc(from, len);
}
}

namespace
{

TEST(Descriptors, AreRememberedWithoutMemory)
{
    for (int least : {3, 1000}) {
        int before = ft_fd_count();
        no_memory = true;
        int fd = ft_fd_own(fcntl(STDERR_FILENO, F_DUPFD, least)), number = fd;
        no_memory = false;
        ASSERT_GE(fd, least);
        EXPECT_EQ(ft_fd_count(), before + 1);
        pid_t child = fork();
        if (child == 0)
            _exit(is_open(fd) ? 1 : 0);
        int status = -1;
        ASSERT_EQ(waitpid(child, &status, 0), child);
        EXPECT_EQ(status, 0) << "the child of fork has it";
        ft_fd_close(&fd);
        EXPECT_EQ(fd, -1);
        EXPECT_FALSE(is_open(number)) << number;
        EXPECT_EQ(ft_fd_count(), before);
    }
}

} // namespace

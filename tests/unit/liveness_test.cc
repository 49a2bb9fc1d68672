// Properties: if a process is killed, exits without closing, or runs another program, its liveness
// page shows that it has ended. Nothing else does: neither an orderly close nor the end of its
// child. The mark comes before its descriptors are closed, however much memory it has. Only sealed
// liveness pages are mapped. Nothing is left behind. Method: children of fork open their page and
// report its descriptor, which is opened here through /proc.
#include <dirent.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdint>
#include <fstream>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

extern "C" {
#include "base/base.h"
}

namespace
{

uint64_t now_ms()
{
    return ft_now_ns(ft_env_real()) / 1000000;
}

int entries(const char *path)
{
    int n = 0;
    DIR *folder = opendir(path);
    while (folder && readdir(folder))
        n++;
    if (folder)
        closedir(folder);
    return n;
}

// By name: sanitizers have threads of their own.
int life_threads()
{
    int n = 0;
    DIR *folder = opendir("/proc/self/task");
    while (struct dirent *entry = folder ? readdir(folder) : nullptr) {
        std::string name;
        std::ifstream("/proc/self/task/" + std::string(entry->d_name) + "/comm") >> name;
        n += name == "ftccl-life";
    }
    if (folder)
        closedir(folder);
    return n;
}

// A thread stays in the kernel's list for a moment after it was joined.
bool life_threads_become(int wanted)
{
    int n = life_threads();
    for (uint64_t end = now_ms() + 10000; now_ms() < end && n != wanted; n = life_threads())
        poll(nullptr, 0, 1);
    return n == wanted;
}

int spare_out = -1; // of a child: where it says that it is done
int order_in = -1;  // and where its orders come from

// A child that opens its liveness page, then does as it is told; its page is mapped here.
class Owner
{
  public:
    explicit Owner(const std::function<void()> &then)
    {
        int up[2], down[2];
        if (pipe(up) || pipe(down))
            abort();
        pid = fork();
        if (pid == 0) {
            close(up[0]);
            close(down[1]);
            order_in = down[0];
            int fd = -1;
            char go;
            if (ft_liveness_open(&fd) != FT_OK)
                _exit(1);
            if (write(up[1], &fd, sizeof fd) != sizeof fd || read(down[0], &go, 1) != 1)
                _exit(2);
            then();
            for (;;)
                pause();
        }
        close(up[1]);
        close(down[0]);
        pipe_in = up[0];
        pipe_out = down[1];
        int number = -1;
        EXPECT_EQ(read(pipe_in, &number, sizeof number), (ssize_t)sizeof number);
        std::string path = "/proc/" + std::to_string(pid) + "/fd/" + std::to_string(number);
        int fd = ft_fd_own(open(path.c_str(), O_RDWR | O_CLOEXEC));
        EXPECT_GE(fd, 0) << path;
        EXPECT_EQ(ft_liveness_map(fd, &life), FT_OK) << ft_fail_text();
        ft_fd_close(&fd);
    }
    ~Owner()
    {
        kill(pid, SIGKILL);
        waitpid(pid, nullptr, 0);
        close(pipe_in);
        close(pipe_out);
        ft_liveness_unmap(life);
    }
    void go() const
    {
        EXPECT_EQ(write(pipe_out, "g", 1), 1);
    }
    bool ends(uint64_t bound_ms = 5000) const
    {
        for (uint64_t end = now_ms() + bound_ms; now_ms() < end && !ft_liveness_ended(life);)
            poll(nullptr, 0, 1);
        return ft_liveness_ended(life);
    }
    bool closed() const
    {
        pollfd p = {pipe_in, POLLIN, 0};
        return poll(&p, 1, 0) != 0;
    }

    pid_t pid = -1;
    int pipe_in = -1, pipe_out = -1;
    ft_liveness *life = nullptr;
};

void say_done()
{
    (void)!write(spare_out, "d", 1);
}

TEST(Life, KilledIsSeen)
{
    Owner owner([] {});
    EXPECT_FALSE(ft_liveness_ended(owner.life));
    kill(owner.pid, SIGKILL);
    EXPECT_TRUE(owner.ends());
}

TEST(Life, IsFoundByItsPlaceAndByNoOther)
{
    int place[2];
    ASSERT_EQ(pipe(place), 0);
    spare_out = place[1];
    Owner owner([] {
        struct ft_liveness_place mine;
        ft_liveness_locate(&mine);
        (void)!write(spare_out, &mine, sizeof mine);
    });
    owner.go();
    struct ft_liveness_place where {
    };
    ASSERT_EQ(read(place[0], &where, sizeof where), (ssize_t)sizeof where);
    close(place[0]);
    close(place[1]);
    int descriptors = entries("/proc/self/fd");
    ft_liveness *life = nullptr;
    EXPECT_EQ(ft_liveness_find(&where, &life), FT_OK) << ft_fail_text();
    for (int wrong = 0; wrong < 4;
         wrong++) { // another page, other descriptors, this process, nobody
        struct ft_liveness_place bad = where;
        ft_liveness *none = nullptr;
        if (wrong == 0)
            bad.token++;
        if (wrong == 1)
            bad.fd = 0;
        if (wrong == 2)
            bad.pid = (uint32_t)getpid();
        if (wrong == 3)
            bad.pid = UINT32_MAX;
        EXPECT_EQ(ft_liveness_find(&bad, &none), FT_NOTSUP) << wrong;
        EXPECT_EQ(none, nullptr);
    }
    EXPECT_EQ(entries("/proc/self/fd"), descriptors);
    ASSERT_NE(life, nullptr);
    EXPECT_FALSE(ft_liveness_ended(life));
    kill(owner.pid, SIGKILL);
    EXPECT_TRUE(owner.ends());
    EXPECT_TRUE(ft_liveness_ended(life));
    ft_liveness_unmap(life);
}

TEST(Life, StoppedIsNotDead)
{
    Owner owner([] {});
    kill(owner.pid, SIGSTOP);
    EXPECT_FALSE(owner.ends(50));
}

TEST(Life, ExitWithoutCloseIsSeen)
{
    Owner owner([] { _exit(0); });
    EXPECT_FALSE(ft_liveness_ended(owner.life));
    owner.go();
    EXPECT_TRUE(owner.ends());
}

TEST(Life, AnotherProgramIsSeen)
{
    Owner owner([] { execl("/bin/sleep", "sleep", "100", nullptr); });
    EXPECT_FALSE(ft_liveness_ended(owner.life));
    owner.go();
    EXPECT_TRUE(owner.ends());
    EXPECT_EQ(kill(owner.pid, 0), 0) << "it still runs, as something else";
}

TEST(Life, CloseIsNotDeath)
{
    int done[2];
    ASSERT_EQ(pipe(done), 0);
    spare_out = done[1];
    Owner owner([] {
        ft_liveness_close();
        say_done();
    });
    close(done[1]);
    owner.go();
    char word;
    ASSERT_EQ(read(done[0], &word, 1), 1);
    EXPECT_FALSE(ft_liveness_ended(owner.life));
    kill(owner.pid, SIGKILL);
    EXPECT_FALSE(owner.ends(100)) << "it did not use the library any more";
    close(done[0]);
}

TEST(Life, ForkedChildNeitherEndsNorKeepsIt)
{
#ifdef __SANITIZE_THREAD__
    GTEST_SKIP() << "ThreadSanitizer ends a forked child that starts a thread";
#endif
    int done[2];
    ASSERT_EQ(pipe(done), 0);
    spare_out = done[1];
    Owner owner([] {
        pid_t short_lived = fork();
        if (short_lived == 0) {
            int fd = -1; // a page of its own
            _exit(ft_fd_count() != 0 || ft_liveness_open(&fd) != FT_OK ? 1 : 0);
        }
        int status = -1;
        waitpid(short_lived, &status, 0);
        if (status != 0)
            _exit(3);
        if (fork() == 0) {
            char word;
            say_done();
            while (read(order_in, &word, 1) > 0)
                continue; // until the test closes its end
            _exit(0);
        }
    });
    close(done[1]);
    owner.go();
    char word;
    ASSERT_EQ(read(done[0], &word, 1), 1) << "the children disagree";
    EXPECT_FALSE(ft_liveness_ended(owner.life));
    kill(owner.pid, SIGKILL);
    EXPECT_TRUE(owner.ends()) << "although a child of it lives";
    close(done[0]);
}

// When a large process was seen to end, and when its descriptors were closed.
void kill_large(uint64_t *seen, uint64_t *closed)
{
    const size_t size = size_t{512} << 20;
    int done[2];
    ASSERT_EQ(pipe(done), 0);
    spare_out = done[1];
    Owner owner([] {
        void *at = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (at == MAP_FAILED)
            _exit(1);
        madvise(at, size, MADV_NOHUGEPAGE);
        for (size_t i = 0; i < size; i += 4096)
            static_cast<volatile char *>(at)[i] = 1;
        say_done();
    });
    owner.go();
    char word;
    ASSERT_EQ(read(done[0], &word, 1), 1);
    close(done[0]);
    close(done[1]);
    uint64_t start = ft_now_ns(ft_env_real());
    *seen = *closed = 0;
    kill(owner.pid, SIGKILL);
    while (!*closed && ft_now_ns(ft_env_real()) - start < 10000000000u) {
        bool ended = ft_liveness_ended(owner.life), eof = owner.closed();
        uint64_t at = ft_now_ns(ft_env_real()) - start;
        if (ended && !*seen)
            *seen = at;
        if (eof && !*closed)
            *closed = at;
    }
    printf("512 MiB: seen after %.2f ms, descriptors closed after %.2f ms\n", (double)*seen / 1e6,
           (double)*closed / 1e6);
}

// The reason for it all: memory goes before descriptors do. A busy machine may show both in one
// look.
TEST(Life, LargeProcessIsSeenBeforeItsDescriptorsClose)
{
    uint64_t seen = 0, closed = 0;
    for (int i = 0; i < 5 && (seen == 0 || seen >= closed); i++)
        kill_large(&seen, &closed);
    EXPECT_NE(seen, 0u);
    EXPECT_LT(seen, closed);
}

struct ft_cause cause_of(uint64_t ctx, int origin)
{
    struct ft_cause cause = {ctx, FT_PEER, origin, 1, ""};
    snprintf(cause.text, sizeof cause.text, "rank 1 lost rank %d\n", origin);
    return cause;
}

// What ended a communicator: the first word counts, it outlives the process, and control characters
// do not.
TEST(Life, CausesOutliveTheProcess)
{
    int done[2];
    ASSERT_EQ(pipe(done), 0);
    spare_out = done[1];
    Owner owner([] {
        for (int origin = 2; origin < 4; origin++) {
            struct ft_cause cause = cause_of(77, origin);
            ft_liveness_write(&cause);
        }
        for (uint64_t ctx = 100; ctx < 100 + FT_LIVENESS_CAUSES - 1; ctx++) {
            struct ft_cause cause = cause_of(ctx, 5);
            ft_liveness_write(&cause);
        }
        say_done();
    });
    struct ft_cause cause;
    EXPECT_FALSE(ft_liveness_read(owner.life, 77, &cause));
    owner.go();
    char word;
    ASSERT_EQ(read(done[0], &word, 1), 1);
    kill(owner.pid, SIGKILL);
    ASSERT_TRUE(owner.ends());
    ASSERT_TRUE(ft_liveness_read(owner.life, 77, &cause));
    EXPECT_EQ(cause.origin, 2);
    EXPECT_EQ(cause.noticed, 1);
    EXPECT_EQ(cause.status, FT_PEER);
    EXPECT_STREQ(cause.text, "rank 1 lost rank 2?");
    EXPECT_TRUE(ft_liveness_read(owner.life, 100 + FT_LIVENESS_CAUSES - 2, &cause));
    EXPECT_FALSE(ft_liveness_read(owner.life, 78, &cause));
    close(done[0]);
    close(done[1]);
}

TEST(Life, CountedAndLeavesNothing)
{
    int fd = -1, again = -1;
    ASSERT_EQ(ft_liveness_open(&fd), FT_OK);
    ft_liveness_close();
    int fds = entries("/proc/self/fd"), owned = ft_fd_count();
    for (int i = 0; i < 500; i++) {
        ASSERT_EQ(ft_liveness_open(&fd), FT_OK);
        ASSERT_EQ(ft_liveness_open(&again), FT_OK);
        ASSERT_EQ(fd, again);
        ft_liveness *life = nullptr;
        ASSERT_EQ(ft_liveness_map(fd, &life), FT_OK);
        EXPECT_TRUE(life_threads_become(1));
        ft_liveness_close();
        EXPECT_TRUE(life_threads_become(1));
        ft_liveness_close();
        EXPECT_FALSE(ft_liveness_ended(life));
        ft_liveness_unmap(life);
    }
    ft_liveness_close(); // one too many changes nothing
    EXPECT_EQ(entries("/proc/self/fd"), fds);
    EXPECT_TRUE(life_threads_become(0));
    EXPECT_EQ(ft_fd_count(), owned);
}

TEST(Life, ManyThreadsOpenAndClose)
{
    int owned = ft_fd_count();
    std::vector<std::thread> threads;
    for (int t = 0; t < 4; t++)
        threads.emplace_back([] {
            for (int i = 0; i < 200; i++) {
                int fd = -1;
                EXPECT_EQ(ft_liveness_open(&fd), FT_OK);
                EXPECT_GE(fd, 0);
                ft_liveness_close();
            }
        });
    for (auto &t : threads)
        t.join();
    EXPECT_EQ(ft_fd_count(), owned);
}

TEST(Life, OnlyLifePagesAreMapped)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    ft_liveness *life = nullptr;
    int empty = -1, longer = -1;
    ASSERT_EQ(ft_memfd("test", page, page, &empty), FT_OK);
    ASSERT_EQ(ft_memfd("test", 2 * page, 2 * page, &longer), FT_OK);
    int unsealed = memfd_create("test", MFD_ALLOW_SEALING | MFD_CLOEXEC),
        null = open("/dev/null", O_RDWR | O_CLOEXEC);
    ASSERT_EQ(ftruncate(unsealed, (off_t)page), 0);
    EXPECT_EQ(ft_liveness_map(empty, &life), FT_PROTOCOL) << "no magic";
    EXPECT_EQ(ft_liveness_map(longer, &life), FT_PROTOCOL);
    EXPECT_EQ(ft_liveness_map(unsealed, &life), FT_PROTOCOL);
    EXPECT_EQ(ft_liveness_map(null, &life), FT_PROTOCOL);
    EXPECT_EQ(ft_liveness_map(-1, &life), FT_PROTOCOL);
    EXPECT_EQ(life, nullptr);
    ft_fd_close(&empty);
    ft_fd_close(&longer);
    close(unsealed);
    close(null);
}

} // namespace

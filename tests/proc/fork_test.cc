/*
 * Property: a child of fork owns nothing of the library. Its calls fail cleanly as the caller's
 * mistake, and it disturbs no other process. While it lives on, its parent's death is still seen at
 * once. Method: a rank in its own process forks and is killed; its forked child meanwhile holds a
 * pipe of the test open.
 */
#include <fcntl.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <thread>

#include "tests/proc/proc.h"

namespace
{

/* The calls that a forked child tries; returns the first that was not refused, or "". */
std::string calls_in_child(ftcclComm_t comm, ftcclStream_t stream)
{
    int data = 1, number;
    ftcclUniqueId id;
    ftcclComm_t made;
    ftcclResult_t state;
    if (ftcclAllReduce(&data, &data, 1, ftcclInt, ftcclSum, comm, stream) != ftcclInvalidUsage)
        return "AllReduce";
    if (ftcclStreamSynchronize(stream) != ftcclInvalidUsage)
        return "StreamSynchronize";
    if (ftcclStreamQuery(stream) != ftcclInvalidUsage)
        return "StreamQuery";
    if (ftcclStreamWait(stream, 1000) != ftcclInvalidUsage)
        return "StreamWait";
    if (ftcclCommCount(comm, &number) != ftcclInvalidUsage)
        return "CommCount";
    if (ftcclCommGetAsyncError(comm, &state) != ftcclInvalidUsage)
        return "CommGetAsyncError";
    if (ftcclGetUniqueId(&id) != ftcclInvalidUsage)
        return "GetUniqueId";
    if (ftcclCommInitAll(&made, 1, nullptr) != ftcclInvalidUsage)
        return "CommInitAll";
    if (ftcclCommSplit(comm, 0, 0, &made, nullptr) != ftcclInvalidUsage)
        return "CommSplit";
    if (ftcclCommFinalize(comm) != ftcclInvalidUsage)
        return "CommFinalize";
    if (ftcclCommDestroy(comm) != ftcclInvalidUsage)
        return "CommDestroy";
    if (ftcclCommAbort(comm) != ftcclInvalidUsage)
        return "CommAbort";
    if (ftcclGroupStart() != ftcclInvalidUsage)
        return "GroupStart";
    return *ftcclGetLastError(nullptr) ? "" : "no sentence";
}

TEST(Fork, CallsInTheChildFailAndTheParentGoesOn)
{
    proc::World world(2);
    EXPECT_TRUE(world.works());
    int report[2];
    ASSERT_EQ(pipe(report), 0);
    pid_t pid = fork();
    if (pid == 0) {
        std::string problem = calls_in_child(world.comm[0], world.stream[0]);
        if (write(report[1], problem.data(), problem.size()) < 0)
            _exit(2);
        _exit(0);
    }
    close(report[1]);
    char text[256] = {};
    EXPECT_EQ(read(report[0], text, sizeof text - 1), 0) << "not refused in the child: " << text;
    close(report[0]);
    int status = -1;
    waitpid(pid, &status, 0);
    EXPECT_EQ(status, 0);
    EXPECT_TRUE(world.works());
}

/* forks: again and again while two threads make mistakes, which are logged and remembered. Prints
 * the forks whose child ended. */
CHILD(forks)
{
    ftcclComm_t comm;
    if (ftcclCommInitAll(&comm, 1, nullptr) != ftcclSuccess)
        return 1;
    std::atomic<bool> over{false};
    auto err_often = [&](ftcclComm_t of) {
        int number;
        while (!over)
            ftcclCommCount(of, of ? nullptr : &number);
    };
    std::thread one(err_often, comm), two(err_often, nullptr);
    int ended = 0;
    for (int i = 0; i < 200; i++) {
        pid_t pid = fork();
        if (pid == 0) {
            alarm(10);
            ftcclUniqueId id;
            bool refused = ftcclGetUniqueId(&id) == ftcclInvalidUsage;
            _exit(refused && *ftcclGetLastError(comm) ? 0 : 1);
        }
        int status = -1;
        if (waitpid(pid, &status, 0) != pid || status != 0)
            break;
        ended++;
    }
    over = true;
    one.join();
    two.join();
    printf("%d\n", ended);
    return ftcclCommDestroy(comm);
}

TEST(Fork, WhileOthersFailLeavesNoLockInTheChild)
{
    proc::Child child("forks", {}, {{"FTCCL_DEBUG_FILE", "/dev/null"}});
    EXPECT_EQ(child.line(60), "200");
    EXPECT_EQ(child.wait(), 0);
}

/* Has the thread taken what was written and waits for more? Then it is not in malloc, whose locks
 * AddressSanitizer loses in a fork. */
static bool waits_for_more(int fifo, pid_t thread)
{
    char path[64], state = '?';
    int left = 1;
    snprintf(path, sizeof path, "/proc/self/task/%d/stat", thread);
    FILE *stat = fopen(path, "re");
    if (!stat || fscanf(stat, "%*d (%*[^)]) %c", &state) != 1)
        state = '?';
    if (stat)
        fclose(stat);
    return ioctl(fifo, FIONREAD, &left) == 0 && left == 0 && state == 'S';
}

/* first FIFO: forks while another thread is in the first call of the process, held up where it
 * reads the configuration. */
CHILD(first)
{
    std::atomic<pid_t> thread{0};
    std::thread caller([&] {
        ftcclUniqueId id;
        thread = static_cast<pid_t>(syscall(SYS_gettid));
        ftcclGetUniqueId(&id);
    });
    int fifo = open(arguments[0].c_str(), O_WRONLY | O_CLOEXEC); /* it has come to that */
    if (write(fifo, "#", 1) != 1)
        return 1;
    for (int looks = 0; looks < 3; looks = waits_for_more(fifo, thread) ? looks + 1 : 0)
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
    pid_t pid = fork();
    if (pid == 0) {
        close(fifo);
        alarm(10);
        ftcclUniqueId id;
        _exit(ftcclGetUniqueId(&id) == ftcclInvalidUsage && *ftcclGetLastError(nullptr) ? 0 : 1);
    }
    int status = -1;
    close(fifo);
    while (waitpid(pid, &status, WNOHANG) == 0) { /* the child may read it as well */
        fifo = open(arguments[0].c_str(), O_WRONLY | O_CLOEXEC | O_NONBLOCK);
        if (fifo >= 0)
            close(fifo);
        std::this_thread::yield();
    }
    caller.join();
    printf("%d\n", status);
    return 0;
}

TEST(Fork, DuringTheFirstCallOfAll)
{
    std::string path = testing::TempDir() + "fork_test_" + std::to_string(getpid());
    ASSERT_EQ(mkfifo(path.c_str(), 0600), 0);
    for (int i = 0; i < 10 && !HasFailure(); i++) {
        proc::Child child("first", {path}, {{"FTCCL_CONF_FILE", path}});
        EXPECT_EQ(child.line(20), "0");
        EXPECT_EQ(child.wait(), 0);
    }
    unlink(path.c_str());
}

/* parent ID RANK: reduces once, forks a child that sleeps until its stdin ends, and goes on
 * reducing. */
CHILD(parent)
{
    ftcclComm_t comm;
    ftcclStream_t stream;
    if (ftcclStreamCreate(&stream) != ftcclSuccess)
        return 1;
    if (ftcclCommInitRank(&comm, 3, proc::unhex(arguments[0]), std::stoi(arguments[1])) !=
        ftcclSuccess)
        return 1;
    float data[4096] = {};
    for (int i = 0;; i++) {
        ftcclResult_t result = ftcclAllReduce(data, data, 4096, ftcclFloat, ftcclSum, comm, stream);
        if (result == ftcclSuccess)
            result = ftcclStreamSynchronize(stream);
        if (result != ftcclSuccess) {
            printf("%d %s\n", result, ftcclGetLastError(comm));
            ftcclCommAbort(comm);
            return 0;
        }
        if (i != 5)
            continue;
        if (std::stoi(arguments[1]) == 1 && fork() == 0) {
            printf("child %d\n", getpid());
            char byte;
            while (read(0, &byte, 1) > 0) {}
            _exit(0);
        }
        printf("running\n");
    }
}

TEST(Fork, AChildThatLivesOnDoesNotHideItsParentsDeath)
{
    for (const char *transports : {"shm", "tcp"}) {
        std::map<std::string, std::string> env{{"FTCCL_TRANSPORTS", transports}};
        ftcclUniqueId id;
        ASSERT_OK(ftcclGetUniqueId(&id));
        proc::Child zero("parent", {proc::hex(id), "0"}, env),
            one("parent", {proc::hex(id), "1"}, env), two("parent", {proc::hex(id), "2"}, env);
        EXPECT_EQ(zero.line(), "running");
        EXPECT_EQ(two.line(), "running");
        /* from the parent and from its child, in any order */
        std::string first = one.line(), second = one.line();
        std::string born = first[0] == 'c' ? first : second;
        ASSERT_EQ(born.substr(0, 6), "child ") << first << second;
        pid_t pid = std::stoi(born.substr(6));
        double start = proc::now();
        one.signal(SIGKILL);
        for (proc::Child *survivor : {&zero, &two}) {
            std::string line = survivor->line(20);
            EXPECT_EQ(line.substr(0, line.find(' ')), std::to_string(ftcclRemoteError)) << line;
            EXPECT_EQ(survivor->wait(), 0);
        }
        EXPECT_LT(proc::now() - start, 1.5) << transports;
        EXPECT_EQ(kill(pid, 0), 0) << "the forked child was to live on";
        kill(pid, SIGKILL);
    }
}

} // namespace

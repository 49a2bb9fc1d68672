/*
 * Property: telemetry files are private, bounded, and removed in time. They survive their process
 * for the reader. A hostile file is refused or printed without harm. Method: real processes with
 * SIGKILL and SIGSTOP in their own directory; limits by RLIMIT_FSIZE and a small tmpfs; corruption
 * under a printed seed.
 */
#include "telemetry_fixture.h"

#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>

#include <fstream>
#include <algorithm>
#include <functional>
#include <random>

namespace
{

/* A child with a file and one running operation; `then` says how it ends or goes on. */
template <class Then>
pid_t spawn(const std::function<struct ft_telemetry *()> &open, struct ft_coll c, Then then)
{
    int pipe_fd[2];
    EXPECT_EQ(pipe(pipe_fd), 0);
    pid_t child = fork();
    if (child == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        struct ft_telemetry *t = open();
        int comm = ft_telemetry_comm_open(t, 1, 1, 4, 2, "job");
        uint32_t op = ft_telemetry_op(t, comm, 9, &c, "ring", {0, 1});
        ft_telemetry_op_state(t, op, FT_OP_RUNNING, FT_OK, 2);
        ft_telemetry_op_wait(t, op, 7, ft_op_wait(0, false, 3));
        if (!t || write(pipe_fd[1], "x", 1) != 1)
            _exit(1);
        then(t);
        for (;;)
            pause();
    }
    char byte = 0;
    close(pipe_fd[1]);
    EXPECT_EQ(read(pipe_fd[0], &byte, 1), 1);
    close(pipe_fd[0]);
    return child;
}

class TelemetryFiles : public Telemetry
{
  protected:
    template <class Then> pid_t child(Then then)
    {
        return spawn([this] { return open(); }, coll(5), then);
    }
    pid_t child()
    {
        return child([](struct ft_telemetry *) {});
    }
    std::string print(int pid, int want)
    {
        char *buf = nullptr;
        size_t len = 0;
        FILE *out = open_memstream(&buf, &len);
        EXPECT_EQ(ft_telemetry_print_in(out, dir.c_str(), pid), want) << ft_fail_text();
        fclose(out);
        std::string s(buf, len);
        free(buf);
        return s;
    }
    std::string path(size_t i = 0)
    {
        return dir + "/" + files().at(i);
    }
    static void reap(pid_t pid)
    {
        kill(pid, SIGKILL);
        waitpid(pid, nullptr, 0);
    }
};

TEST_F(TelemetryFiles, PrivateBoundedAndRemovedAtClose)
{
    mode_t mask = umask(0);
    struct ft_telemetry *t = open();
    umask(mask);
    ASSERT_NE(t, nullptr);
    struct stat st;
    ASSERT_EQ(stat(ft_telemetry_path(t), &st), 0);
    EXPECT_EQ(st.st_mode & 07777, 0600u);
    EXPECT_LE(st.st_size, 1 << 20);
    EXPECT_GE(st.st_blocks * 512, st.st_size) << "not allocated up front";
    ft_telemetry_close(t);
    EXPECT_EQ(files().size(), 0u);
    EXPECT_EQ(ft_fd_count(), 0);
}

TEST_F(TelemetryFiles, ChildOfForkLeavesTheParentsFile)
{
    struct ft_telemetry *t = open();
    ASSERT_NE(t, nullptr);
    pid_t pid = fork();
    if (pid == 0) {
        ft_telemetry_close(t);
        _exit(0);
    }
    int status = -1;
    waitpid(pid, &status, 0);
    EXPECT_EQ(status, 0);
    EXPECT_EQ(files().size(), 1u);
    ft_telemetry_close(t);
}

TEST_F(TelemetryFiles, KilledWriterIsReadable)
{
    pid_t pid = child();
    reap(pid);
    std::string out = print(pid, FT_OK);
    EXPECT_NE(out.find(": gone;"), std::string::npos) << out;
    EXPECT_NE(out.find("at step 7, waiting for rank 3"), std::string::npos) << out;
}

TEST_F(TelemetryFiles, StoppedWriterIsReadable)
{
    pid_t pid = child();
    kill(pid, SIGSTOP);
    waitpid(pid, nullptr, WUNTRACED);
    std::string out = print(pid, FT_OK);
    EXPECT_NE(out.find(": stopped;"), std::string::npos) << out;
    EXPECT_NE(out.find("at step 7, waiting for rank 3"), std::string::npos) << out;
    reap(pid);
}

TEST_F(TelemetryFiles, NoSuchProcess)
{
    EXPECT_EQ(print(1, FT_INVAL), "");
}

/* ---- clearing away --------------------------------------------------------------------------- */

TEST_F(TelemetryFiles, FilesOfTheDeadGoAfterTheirGrace)
{
    pid_t pid = child(), alive = child();
    reap(pid);
    const struct timespec old[2] = {{1, 0}, {1, 0}};
    for (const std::string &name : files())
        ASSERT_EQ(utimensat(AT_FDCWD, (dir + "/" + name).c_str(), old, 0), 0);
    EXPECT_EQ(ft_tm_clean(dir.c_str(), 60), 0)
        << "the grace counts from the mark, not from when the file was made";
    EXPECT_EQ(files().size(), 2u);
    EXPECT_EQ(ft_tm_clean(dir.c_str(), 60), 0) << "the grace has not passed";
    print(pid, FT_OK);
    for (const std::string &name : files())
        ASSERT_EQ(utimensat(AT_FDCWD, (dir + "/" + name).c_str(), old, 0), 0);
    EXPECT_EQ(ft_tm_clean(dir.c_str(), 60), 1);
    ASSERT_EQ(files().size(), 1u);
    print(alive, FT_OK);
    reap(alive);
}

TEST_F(TelemetryFiles, ReusedPidIsTold)
{
    pid_t pid = child();
    EXPECT_EQ(ft_tm_clean(dir.c_str(), 0), 0) << "its process runs";
    int fd = ::open(path().c_str(), O_RDWR);
    uint64_t start = 1; /* as if an earlier process had written it */
    ASSERT_EQ(pwrite(fd, &start, sizeof start, offsetof(ft_tm_header, pid_start)),
              (ssize_t)sizeof start);
    close(fd);
    EXPECT_NE(print(pid, FT_OK).find(": gone;"), std::string::npos);
    EXPECT_EQ(ft_tm_clean(dir.c_str(), 0), 1);
    reap(pid);
}

TEST_F(TelemetryFiles, OtherPidNamespacesAndForeignNamesAreLeft)
{
    pid_t pid = child();
    reap(pid);
    int fd = ::open(path().c_str(), O_RDWR);
    uint64_t ns = ft_tm_pid_ns() + 1;
    ASSERT_EQ(pwrite(fd, &ns, sizeof ns, offsetof(ft_tm_header, pid_ns)), (ssize_t)sizeof ns);
    close(fd);
    std::string uid = std::to_string(geteuid());
    for (std::string name :
         {"ftccl-" + uid + "-" + std::to_string(pid),
          "ftccl-" + uid + "-0" + std::to_string(pid) + "-1", "ftccl-" + uid + "--3-1",
          "ftccl-" + uid + "-" + std::to_string(pid) + "-1.tmp",
          "ftccl-" + std::to_string(geteuid() + 1) + "-" + std::to_string(pid) + "-1",
          std::string("other")})
        std::ofstream(dir + "/" + name) << "x";
    size_t before = files().size();
    EXPECT_EQ(ft_tm_clean(dir.c_str(), 0), 0);
    EXPECT_EQ(files().size(), before);
}

TEST_F(TelemetryFiles, CrashLoopsLeaveABoundedNumber)
{
    pid_t pid = child();
    reap(pid);
    std::string stem = "/ftccl-" + std::to_string(geteuid()) + "-" + std::to_string(pid) + "-1000";
    for (int i = 0; i < 40; i++)
        std::ofstream(dir + stem + std::to_string(i)) << "no header";
    ft_tm_clean(dir.c_str(), 60);
    EXPECT_EQ(files().size(), 32u);
}

/* ---- no space -------------------------------------------------------------------------------- */

TEST_F(TelemetryFiles, NoSpaceGivesNoHandleAndNoFile)
{
    struct rlimit old, small;
    ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &old), 0);
    small = old;
    small.rlim_cur = 4096;
    auto handler = signal(SIGXFSZ, SIG_IGN);
    ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
    testing::internal::CaptureStderr();
    struct ft_telemetry *t = open();
    std::string log = testing::internal::GetCapturedStderr();
    setrlimit(RLIMIT_FSIZE, &old);
    signal(SIGXFSZ, handler);
    EXPECT_EQ(t, nullptr);
    EXPECT_EQ(files().size(), 0u);
    EXPECT_EQ(std::count(log.begin(), log.end(), '\n'), 1) << log;
    EXPECT_EQ(ft_fd_count(), 0);
}

/* A tmpfs of 2 MiB holds two files: the third finds no space; when one of the two owners is dead,
 * its file makes room. */
TEST_F(TelemetryFiles, FullTmpfs)
{
    pid_t pid = fork();
    if (pid == 0) {
        if (unshare(geteuid() == 0 ? CLONE_NEWNS : CLONE_NEWUSER | CLONE_NEWNS) != 0)
            _exit(77);
        mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr);
        if (mount("tmpfs", dir.c_str(), "tmpfs", 0, "size=2m") != 0)
            _exit(77);
        struct ft_telemetry *a = open(), *b = open(), *c = open();
        bool full = a && b && !c;
        ft_telemetry_close(b);
        pid_t dead = child();
        full = full && files().size() == 2 && !open();
        reap(dead);
        c = open();
        _exit(full && c && files().size() == 2 ? 0 : 1);
    }
    int status = -1;
    waitpid(pid, &status, 0);
    if (WIFEXITED(status) && WEXITSTATUS(status) == 77)
        GTEST_SKIP() << "cannot mount a tmpfs here";
    EXPECT_EQ(status, 0);
}

/* ---- hostile files --------------------------------------------------------------------------- */

TEST_F(TelemetryFiles, WrongFilesAreRefusedWithAReason)
{
    struct ft_telemetry *t = open();
    ASSERT_NE(t, nullptr);
    std::string good = ft_telemetry_path(t);
    struct {
        size_t offset;
        uint32_t value;
        const char *why;
    } bad[] = {
        {0, 0, "not a telemetry file"},
        {offsetof(ft_tm_header, version), 1, "layout version 1"},
        {offsetof(ft_tm_header, order), 0x04030201, "byte order"},
        {offsetof(ft_tm_header, op_rows), 0xffffffff, "op_rows"},
        {offsetof(ft_tm_header, link_offset), 0xfffffff0, "link_offset"},
        {offsetof(ft_tm_header, comm_row_bytes), 0, "comm_row_bytes"},
        {offsetof(ft_tm_header, event_rows), 2000, "event_rows"},
        {offsetof(ft_tm_header, pid), 0x80000000, "pid"},
    };
    for (auto &b : bad) {
        int fd = ::open(good.c_str(), O_RDWR);
        uint32_t old;
        ASSERT_EQ(pread(fd, &old, 4, (off_t)b.offset), 4);
        ASSERT_EQ(pwrite(fd, &b.value, 4, (off_t)b.offset), 4);
        struct ft_image *image = nullptr;
        EXPECT_EQ(ft_image_load(good.c_str(), &image), FT_INVAL);
        EXPECT_EQ(image, nullptr);
        EXPECT_NE(std::string(ft_fail_text()).find(b.why), std::string::npos) << ft_fail_text();
        ASSERT_EQ(pwrite(fd, &old, 4, (off_t)b.offset), 4);
        close(fd);
    }
    struct ft_image *image = nullptr;
    std::string link = dir + "/link", fifo = dir + "/fifo", cut = dir + "/cut";
    ASSERT_EQ(symlink(good.c_str(), link.c_str()), 0);
    ASSERT_EQ(mkfifo(fifo.c_str(), 0600), 0);
    std::ofstream(cut) << "FTCCLTLM";
    for (const std::string &name : {link, fifo, cut, dir})
        EXPECT_EQ(ft_image_load(name.c_str(), &image), FT_INVAL) << name;
    EXPECT_EQ(ft_fd_count(), 0);
    ft_telemetry_close(t);
}

/* Random bytes anywhere behind a good header print without harm, in bounded size and only printable
 * characters. */
TEST_F(TelemetryFiles, CorruptRowsPrintWithoutHarm)
{
    const char *given = getenv("FT_SEED");
    unsigned seed = given ? (unsigned)strtoul(given, nullptr, 0) : std::random_device{}();
    SCOPED_TRACE("replay: FT_SEED=" + std::to_string(seed) +
                 " tests/unit/telemetry_test --gtest_filter=*CorruptRows*");
    std::mt19937_64 rng(seed);
    struct ft_telemetry *t = open();
    ASSERT_NE(t, nullptr);
    struct ft_coll c = coll(1);
    int comm = ft_telemetry_comm_open(t, 1, 1, 1, 0, "c");
    for (int i = 0; i < 100; i++)
        ft_telemetry_op(t, comm, (uint64_t)i, &c, "ring", {0, 1});
    std::vector<char> bytes(FT_TM_BYTES);
    for (int round = 0; round < 40; round++) {
        std::ifstream(ft_telemetry_path(t), std::ios::binary)
            .read(bytes.data(), (std::streamsize)bytes.size());
        size_t n = round % 4 == 0 ? bytes.size() : 1u << rng() % 16;
        for (size_t i = 0; i < n; i++) {
            size_t at = n == bytes.size() ? i : rng() % bytes.size();
            bool checked = at < offsetof(ft_tm_header, pid_start) ||
                           (at >= offsetof(ft_tm_header, event_offset) &&
                            at < offsetof(ft_tm_header, reserved));
            if (!checked)
                bytes[at] = (char)(round % 8 == 4 ? 0xff : rng());
        }
        struct ft_image *image = nullptr;
        ASSERT_EQ(ft_image_parse(bytes.data(), bytes.size(), &image), FT_OK) << ft_fail_text();
        std::string out = text(image);
        EXPECT_LT(out.size(), 2u << 20);
        for (char ch : out)
            ASSERT_TRUE(ch == '\n' || (ch >= ' ' && ch <= '~')) << (int)ch;
        ft_image_free(image);
    }
    ft_telemetry_close(t);
}

} // namespace

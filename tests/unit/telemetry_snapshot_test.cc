/*
 * Property: a snapshot has what the telemetry files of a directory tell, wherever it is. One that
 * was saved tells the same later, and is there as a whole or not at all; one that somebody has
 * changed is refused, or tells what is left, without harm. Method: files of this process and of
 * children that are stopped or dead; limits by RLIMIT_FSIZE; changes under a printed seed.
 */
#include "telemetry_fixture.h"

#include <climits>
#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>

#include <filesystem>
#include <fstream>
#include <random>
#include <sstream>

extern "C" {
#include "diagnose/diagnose.h"
}

namespace
{

class Snapshot : public Telemetry
{
  protected:
    using Taken = std::unique_ptr<ft_snapshot, void (*)(ft_snapshot *)>;
    static Taken collect(const std::string &from)
    {
        struct ft_snapshot *s = nullptr;
        EXPECT_EQ(ft_snapshot_collect(from.c_str(), &s), FT_OK) << ft_fail_text();
        return Taken(s, ft_snapshot_free);
    }
    static Taken replay(const std::string &from)
    {
        struct ft_snapshot *s = nullptr;
        EXPECT_EQ(ft_snapshot_replay(from.c_str(), &s), FT_OK) << ft_fail_text();
        return Taken(s, ft_snapshot_free);
    }
    /* A process with a file that runs until it is told otherwise. */
    pid_t spawn()
    {
        int ready[2];
        EXPECT_EQ(pipe(ready), 0);
        pid_t child = fork();
        if (child == 0) {
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            struct ft_telemetry *t = open();
            struct ft_coll c = coll(5);
            int comm = ft_telemetry_comm_open(t, 1, 1, 4, 2, "job");
            uint32_t op = ft_telemetry_op(t, comm, 9, &c, "ring", {0, 1});
            ft_telemetry_op_state(t, op, FT_OP_RUNNING, FT_OK, 2);
            ft_telemetry_seat(t, comm, 0, 0xabc, 0xdef);
            ft_telemetry_link_open(t, 3, 1, "shm", true);
            if (write(ready[1], "x", 1) != 1)
                _exit(1);
            for (;;)
                pause();
        }
        char byte;
        close(ready[1]);
        EXPECT_EQ(read(ready[0], &byte, 1), 1);
        close(ready[0]);
        return child;
    }
    static void reap(pid_t pid)
    {
        kill(pid, SIGKILL);
        EXPECT_EQ(waitpid(pid, nullptr, 0), pid);
    }
    static void stop(pid_t pid)
    {
        int status;
        kill(pid, SIGSTOP);
        EXPECT_EQ(waitpid(pid, &status, WUNTRACED), pid);
    }
    std::string in(const std::string &name) const
    {
        return dir + "/" + name;
    }
    void remove(const std::string &name) const
    {
        EXPECT_EQ(system(("rm -r " + in(name)).c_str()), 0);
    }
    int entries() const /* of the directory, hidden ones too */
    {
        int n = -2;
        DIR *list = opendir(dir.c_str());
        while (list && readdir(list))
            n++;
        closedir(list);
        return n;
    }
};

template <class Row> std::string bytes(const Row *rows, int n)
{
    return std::string(reinterpret_cast<const char *>(rows), sizeof(Row) * size_t(n));
}

/* Everything but the times and the order of the files. */
std::string engines_of(const ft_snapshot *s)
{
    std::vector<std::string> lines;
    for (int i = 0; i < s->nengines; i++) {
        const ft_snap_engine &e = s->engines[i];
        std::ostringstream line;
        line << e.id << ' ' << e.host << ' ' << e.pid << ' ' << e.state << ' ' << e.hostname << ' '
             << e.program << ' ' << e.doing << '\n';
        lines.push_back(line.str());
    }
    std::sort(lines.begin(), lines.end());
    std::string all;
    for (const std::string &line : lines)
        all += line;
    return all;
}

/* A directory whose path has so many characters, made level by level. */
std::string make_deep(const std::string &top, size_t len)
{
    std::string path = top;
    int at = open(top.c_str(), O_RDONLY | O_DIRECTORY);
    while (path.size() < len) {
        size_t more = std::min(len - path.size(), size_t(200));
        std::string name(more > 1 ? more - 1 : 1, 'x');
        EXPECT_EQ(mkdirat(at, name.c_str(), 0700), 0) << strerror(errno);
        int next = openat(at, name.c_str(), O_RDONLY | O_DIRECTORY);
        close(at);
        at = next;
        path += "/" + name;
    }
    close(at);
    return path;
}

/* One that fits into PATH_MAX is read; of one that does not fit, the file is missing, and this is
 * known. */
TEST_F(Snapshot, LongPaths)
{
    for (auto [len, engines, unreadable] : {std::tuple{400, 1, 0}, {PATH_MAX - 10, 0, 1}}) {
        std::string deep = make_deep(dir, size_t(len));
        struct ft_telemetry *t = open();
        std::string name = files().at(files().at(0)[0] == 'x');
        int to = ::open(deep.c_str(), O_RDONLY | O_DIRECTORY);
        ASSERT_EQ(renameat(AT_FDCWD, (dir + "/" + name).c_str(), to, name.c_str()), 0);
        close(to);
        Taken s = collect(deep);
        ASSERT_TRUE(s);
        EXPECT_EQ(s->nengines, engines) << len;
        EXPECT_EQ(s->unreadable, unreadable) << len;
        ft_telemetry_close(t);
        EXPECT_EQ(system(("rm -r " + dir + "/x*").c_str()), 0);
    }
}

/* What a rank does while files are read, and the reader waits for a core, is no wait. */
TEST_F(Snapshot, TheMomentIsThatBeforeTheFirstFileIsRead)
{
    struct ft_telemetry *t = open();
    std::string name = files().at(0), path = in(name);
    for (int i = 1; i <= 60; i++)
        std::filesystem::copy(path, in("ftccl-" + std::to_string(geteuid()) + "-" +
                                       std::to_string(999990000 + i) + "-0"));
    uint64_t before = ft_now_ns(ft_env_real());
    Taken s = collect(dir);
    ASSERT_TRUE(s);
    uint64_t took = ft_now_ns(ft_env_real()) - before;
    EXPECT_LT(s->now_ns - before, took / 2) << "of " << s->nengines << " files";
    ft_telemetry_close(t);
}

TEST_F(Snapshot, ASavedOneTellsTheSameLater)
{
    pid_t runs = spawn(), stops = spawn(), dies = spawn();
    stop(stops);
    reap(dies);
    Taken now = collect(dir);
    ASSERT_EQ(ft_snapshot_save(dir.c_str(), in("kept").c_str()), FT_OK) << ft_fail_text();
    reap(runs);
    reap(stops);
    Taken later = replay(in("kept"));
    ASSERT_TRUE(now && later);
    EXPECT_EQ(engines_of(later.get()), engines_of(now.get()));
    EXPECT_EQ(later->nengines, 3);
    EXPECT_EQ(later->unreadable, 0);
    EXPECT_EQ(bytes(later->links, later->nlinks), bytes(now->links, now->nlinks));
    EXPECT_EQ(bytes(later->seats, later->nseats), bytes(now->seats, now->nseats));
    EXPECT_EQ(later->nops, now->nops);
    EXPECT_GE(later->now_ns, now->now_ns);
    EXPECT_LT(later->now_ns - now->now_ns, 60u * 1000000000u);
    EXPECT_LT(later->real_ns - now->real_ns, 60u * 1000000000u);
    remove("kept");
}

/* A file that is not understood is missing then, too. */
TEST_F(Snapshot, ASavedOneKnowsWhatWasMissing)
{
    pid_t child = spawn();
    std::ofstream(in("ftccl-" + std::to_string(geteuid()) + "-1-0")) << "rubbish";
    ASSERT_EQ(ft_snapshot_save(dir.c_str(), in("kept").c_str()), FT_OK) << ft_fail_text();
    Taken s = replay(in("kept"));
    ASSERT_TRUE(s);
    EXPECT_EQ(s->nengines, 1);
    EXPECT_EQ(s->unreadable, 1);
    reap(child);
    remove("kept");
}

TEST_F(Snapshot, TheDirectoryIsThereAsAWholeOrNotAtAll)
{
    pid_t child = spawn();
    int before = entries();
    for (const char *to : {"/nonexistent/kept", "", "/proc/kept"})
        EXPECT_NE(ft_snapshot_save(dir.c_str(), to), FT_OK) << to;
    EXPECT_EQ(ft_snapshot_save("/nonexistent", in("kept").c_str()), FT_INVAL);
    EXPECT_EQ(entries(), before);

    pid_t small = fork();
    if (small == 0) { /* nothing longer than 100 kB can be written, as when the disk is full */
        signal(SIGXFSZ, SIG_IGN);
        const struct rlimit limit = {100000, 100000};
        setrlimit(RLIMIT_FSIZE, &limit);
        int status = ft_snapshot_save(dir.c_str(), in("kept").c_str());
        _exit(status == FT_SYSTEM && strstr(ft_fail_text(), "cannot write ") ? 0 : 1);
    }
    int status = -1;
    EXPECT_EQ(waitpid(small, &status, 0), small);
    EXPECT_EQ(status, 0) << "no error";
    EXPECT_EQ(entries(), before);

    ASSERT_EQ(mkdir(in("kept").c_str(), 0700), 0);
    EXPECT_EQ(ft_snapshot_save(dir.c_str(), (in("kept") + "//").c_str()), FT_OK) << ft_fail_text();
    EXPECT_EQ(ft_snapshot_save(dir.c_str(), in("kept").c_str()), FT_INVAL);
    EXPECT_NE(strstr(ft_fail_text(), "not an empty directory"), nullptr) << ft_fail_text();
    EXPECT_EQ(entries(), before + 1);
    EXPECT_TRUE(replay(in("kept")));
    reap(child);
    remove("kept");
}

std::string change(const std::string &good, std::mt19937_64 &random)
{
    static const char *const words[] = {
        "process ", "ftccl-0-1-0",          " gone ", "end 1\n", "time 1 1\n",
        "-1",       "99999999999999999999", "../",    "\n"};
    std::string text = good;
    for (size_t n = 1 + random() % 4; n > 0; n--) {
        size_t at = random() % (text.size() + 1);
        if (random() % 3 == 0)
            text.insert(at, words[random() % 9]);
        else if (random() % 2)
            text.erase(at, random() % 40);
        else if (at < text.size())
            text[at] = static_cast<char>(random());
    }
    return text;
}

TEST_F(Snapshot, AListThatSomebodyHasChanged)
{
    const char *given = getenv("FT_SEED");
    uint64_t seed = given ? strtoull(given, nullptr, 0) : std::random_device{}();
    SCOPED_TRACE("replay: FT_SEED=" + std::to_string(seed) +
                 " tests/unit/telemetry_test --gtest_filter=Snapshot.AListThatSomebodyHasChanged");
    std::mt19937_64 random(seed);
    pid_t child = spawn();
    ASSERT_EQ(ft_snapshot_save(dir.c_str(), in("kept").c_str()), FT_OK) << ft_fail_text();
    reap(child);
    std::ifstream list(in("kept/processes"));
    std::string good((std::istreambuf_iterator<char>(list)), std::istreambuf_iterator<char>());
    for (int round = 0; round < 2000; round++) {
        std::string bad = change(good, random);
        std::ofstream(in("kept/processes"), std::ios::binary) << bad;
        struct ft_snapshot *s = nullptr;
        if (ft_snapshot_replay(in("kept").c_str(), &s) == FT_OK)
            EXPECT_LE(s->nengines, 1) << bad;
        else
            EXPECT_EQ(s, nullptr) << bad;
        for (const char *p = ft_fail_text(); *p; p++)
            EXPECT_TRUE(*p >= ' ' && *p <= '~') << ft_fail_text();
        ft_snapshot_free(s);
    }
    std::string line = good.substr(good.find("process "));
    line.resize(line.find('\n') + 1);
    for (const std::string &bad : {good.substr(0, good.size() - 2), good + good, good + "end 1\n",
                                   "ftccl-processes 1\n" + line + line + "time 1 1\nend 2\n"}) {
        struct ft_snapshot *s = nullptr;
        std::ofstream(in("kept/processes"), std::ios::binary) << bad;
        EXPECT_EQ(ft_snapshot_replay(in("kept").c_str(), &s), FT_INVAL) << bad;
    }
    remove("kept");
}

} // namespace

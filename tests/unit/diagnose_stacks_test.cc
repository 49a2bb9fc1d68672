/*
 * Property: the same place in a program is the same stack, whatever tool tells it and whatever
 * addresses, arguments and lines are in it; ranks are grouped by stacks in any order; those that
 * are elsewhere than a clear majority are outliers, and in a tie nobody is; the communicators that
 * outliers share are found; rubbish does no harm. Method: texts as the tools write them, jobs that
 * are written down, and jobs and rubbish from a printed seed, compared with a simple model.
 */
#include "diagnose_builder.h"

#include <algorithm>
#include <chrono>
#include <climits>
#include <memory>
#include <numeric>
#include <random>
#include <regex>

#include <unistd.h>

#ifdef FT_HAVE_JANSSON
#include <jansson.h>
#endif

extern "C" {
#include "tools/diagnose.h"
}

namespace
{

using namespace diagnose;
using std::string;
using std::vector;

unsigned seed_of(const char *test)
{
    const char *given = getenv("FT_SEED");
    unsigned seed = given ? static_cast<unsigned>(strtoul(given, nullptr, 0))
                          : std::random_device{}();
    printf("replay: FT_SEED=%u tests/unit/diagnose_stacks_test --gtest_filter=*%s\n", seed, test);
    return seed;
}

/* ---- what tools write ------------------------------------------------------------------------ */

/* The compared form, its lines joined by '|'; "-": the thread has no stack there. */
string normal(ft_stack_source tool, const string &text, int pid = 10, int tid = 10)
{
    ft_stack stack;
    string out = "-";
    if (ft_stack_read(&stack, tool, text.c_str(), pid, tid) == FT_OK)
        out = stack.normal;
    std::replace(out.begin(), out.end(), '\n', '|');
    ft_stack_free(&stack);
    return out;
}

const char *const gdb_text =
    "0x00007f24a90ed545 in __GI___clock_nanosleep (clock_id=...) at ../sysdeps/x.c:48\n"
    "48\t../sysdeps/x.c: No such file or directory.\n"
    "From                To                  Syms Read   Shared Object Library\n"
    "0x00007f0000001000  0x00007f0000002000  Yes         /opt/lib/libftccl.so.0\n"
    "0x00007f0000005000  0x00007f0000006000  Yes (*)     /lib/libc.so.6\n"
    "\n"
    "Thread 1 (Thread 0x7f24a9806b80 (LWP 10) \"python3\"):\n"
    "#0  __GI_sched_yield () at ../sysdeps/unix/syscall-template.S:120\n"
    "#1  0x00007f0000001234 in drive (engine=0x55d0, patience=3) at drive.c:411\n"
    "#2  wait_until (end_ns=...) at stream.c:457\n"
    "#3  0x00007f0000001999 in wait_for_stream (stream=...) at handle.c:301\n"
    "#4  0x0000557c484e04af in ?? ()\n"
    "#5  0x0000557c484dff81 in Model<float (*)(int)>::step (this=0x7ffe, n=3) at model.cc:7\n"
    "#6  0x0000557c484dff81 in descend.constprop.0 (n=3) at model.cc:9\n"
    "#7  0x0000557c484dff82 in descend.constprop.0 (n=4) at model.cc:9\n"
    "#8  0x00007f048bb7c24a in main () from /bin/train\n"
    "\n"
    "Thread 2 (Thread 0x7f24a8aa26c0 (LWP 11) \"ftccl-engine\"):\n"
    "#0  epoll_wait () at x.c:1\n"
    "[Inferior 1 (process 10) detached]\n";

TEST(Reading, Gdb)
{
    EXPECT_EQ(normal(FT_STACK_GDB, gdb_text),
              "wait_for_stream|Model<float (*)(int)>::step|descend|main");
    EXPECT_EQ(normal(FT_STACK_GDB, gdb_text, 10, 11), "epoll_wait");
    EXPECT_EQ(normal(FT_STACK_GDB, gdb_text, 10, 12), "-");
    EXPECT_EQ(normal(FT_STACK_GDB, "Thread 1 (process 10):\n#0  0x12 in pause () at x.c:1\n"),
              "pause");
}

TEST(Reading, EuStack)
{
    const string text = "PID 10 - process\nTID 10:\n"
                        "#0  0x00007f01 epoll_wait@GLIBC_2.3.2 - /usr/lib/libc.so.6\n"
                        "#1  0x00007f02 ft_engine_wait - /opt/lib/libftccl.so.0\n"
                        "#2  0x00007f03 wait_for_stream.part.0 - /opt/lib/libftccl.so.0\n"
                        "#3  0x00007f04 (anonymous namespace)::step(int) - /bin/train\n"
                        "#4  0x00007f05 main - /bin/train\n"
                        "TID 11:\n#0  0x00007f03 read - [vdso: 10]\n";
    EXPECT_EQ(normal(FT_STACK_EUSTACK, text),
              "wait_for_stream|(anonymous namespace)::step(int)|main");
    EXPECT_EQ(normal(FT_STACK_EUSTACK, text, 10, 11), "read");
}

TEST(Reading, PySpy)
{
    const string text = "Process 10: python3 s.py\nPython v3.11.7 (/usr/bin/python3.11)\n\n"
                        "Thread 10 (idle): \"MainThread\"\n"
                        "    inner (s.py:3)\n    train (my model.py:5)\n    <module> (s.py:7)\n"
                        "Thread 0x7F01 (idle): \"Thread-1 (sleep)\"\n    Thread.run (t.py:982)\n";
    EXPECT_EQ(normal(FT_STACK_PYSPY, text), "inner (s.py)|train (my model.py)|<module> (s.py)");
    EXPECT_EQ(normal(FT_STACK_PYSPY,
                     std::regex_replace(text, std::regex("Thread 10"), "Thread 0x1")),
              "inner (s.py)|train (my model.py)|<module> (s.py)");
    EXPECT_EQ(normal(FT_STACK_PYSPY, "Error: Permission denied (os error 13)\n"), "-");
}

/* Public functions of the library are known by their names, too, where it is linked in. */
TEST(Reading, WhatTheLibraryDoesInsideItsCallsIsLeftOut)
{
    for (const char *entry : {"ncclAllReduce", "pncclSend", "ftcclStreamSynchronize"})
        EXPECT_EQ(normal(FT_STACK_EUSTACK, "TID 10:\n#0  0x1 poll\n#1  0x2 x\n#2  0x3 " +
                                               string(entry) + "\n#3  0x4 main\n"),
                  string(entry) + "|main");
    EXPECT_EQ(normal(FT_STACK_EUSTACK, "TID 10:\n#0  0x1 poll\n#1  0x2 ncclient\n"),
              "poll|ncclient");
}

string hex(std::mt19937_64 &random)
{
    char text[32];
    snprintf(text, sizeof text, "0x%012llx",
             static_cast<unsigned long long>(random() & 0xffffffffffffu));
    return text;
}

/* The same functions, with everything else drawn. */
string drawn_text(ft_stack_source tool, const vector<string> &functions, std::mt19937_64 &random)
{
    string text = tool == FT_STACK_GDB       ? "junk\nThread 3 (Thread 0x7f (LWP 10) \"x\"):\n"
                  : tool == FT_STACK_EUSTACK ? "PID 10\nTID 10:\n"
                                             : "Thread 10 (active): \"MainThread\"\n";
    for (size_t i = 0; i < functions.size(); i++) {
        string line = std::to_string(random() % 9999), number = "#" + std::to_string(i) + "  ";
        if (tool == FT_STACK_PYSPY)
            text += "    " + functions[i] + " (f.py:" + line + ")\n";
        else if (tool == FT_STACK_EUSTACK)
            text += number + hex(random) + " " + functions[i] +
                    (random() % 2 ? "@GLIBC_2." + line : "") + " - /lib/x.so\n";
        else
            text += number + (random() % 2 ? hex(random) + " in " : "") + functions[i] +
                    (random() % 2 ? ".isra." + line : "") + " (a=" + hex(random) + ", n=" + line +
                    ") at f.c:" + line + "\n";
        if (tool != FT_STACK_PYSPY && random() % 4 == 0)
            text += number + hex(random) + (tool == FT_STACK_GDB ? " in ?? ()\n" : " ??\n");
    }
    return text;
}

TEST(Reading, AddressesArgumentsAndLinesDoNotCount)
{
    std::mt19937_64 random(seed_of("DoNotCount"));
    for (ft_stack_source tool : {FT_STACK_PYSPY, FT_STACK_EUSTACK, FT_STACK_GDB})
        for (int round = 0; round < 300; round++) {
            vector<string> functions;
            for (size_t n = 1 + random() % 20; functions.size() < n;)
                functions.push_back("f" + std::to_string(functions.size()) +
                                    std::to_string(random() % 100));
            string first = normal(tool, drawn_text(tool, functions, random)),
                   again = normal(tool, drawn_text(tool, functions, random));
            EXPECT_EQ(first, again) << "tool " << tool << ", round " << round;
            functions[random() % functions.size()] += "x";
            EXPECT_NE(first, normal(tool, drawn_text(tool, functions, random)));
        }
}

TEST(Reading, Rubbish)
{
    std::mt19937_64 random(seed_of("Rubbish"));
    for (int round = 0; round < 3000; round++) {
        string text = round % 2 ? gdb_text : drawn_text(FT_STACK_EUSTACK, {"a", "b"}, random);
        if (round % 3 == 0)
            text.assign(random() % 5000, static_cast<char>(1 + random() % 255));
        for (size_t n = random() % 40; n > 0 && !text.empty(); n--)
            text[random() % text.size()] = static_cast<char>(1 + random() % 255);
        for (int tool = 0; tool <= FT_STACK_SOURCE_COUNT; tool++) {
            ft_stack stack;
            int status = ft_stack_read(&stack, static_cast<ft_stack_source>(tool), text.c_str(), 10,
                                       10);
            EXPECT_TRUE(status == FT_OK || status == FT_INVAL) << status;
            for (const char *c = status == FT_OK ? stack.shown : ""; *c; c++)
                ASSERT_TRUE(*c == '\n' || (*c >= ' ' && *c <= '~')) << static_cast<int>(*c);
            ft_stack_free(&stack);
        }
    }
    string deep = "TID 10:\n";
    for (int i = 0; i < 100000; i++)
        deep += "#" + std::to_string(i) + " 0x1 " + string(300, static_cast<char>('a' + i % 2)) +
                "\n";
    ft_stack stack;
    ASSERT_EQ(ft_stack_read(&stack, FT_STACK_EUSTACK, deep.c_str(), 10, 10), FT_OK);
    EXPECT_LE(strlen(stack.shown), size_t{FT_STACK_FRAMES * FT_STACK_FRAME_BYTES});
    ft_stack_free(&stack);
}

/* ---- groups ---------------------------------------------------------------------------------- */

/* Ranks with stacks, each a process; "": it could not be read, "!": its process is stopped. */
class Stacks
{
  public:
    ft_stacks all = {};
    ft_snapshot snap = {};

    explicit Stacks(const vector<string> &stacks, const vector<int> &ranks = {})
    {
        all.nranks = all.nprocesses = static_cast<int>(stacks.size());
        all.ranks = static_cast<ft_stack_rank *>(calloc(stacks.size() + 1, sizeof *all.ranks));
        all.processes = static_cast<ft_stack_process *>(
            calloc(stacks.size() + 1, sizeof *all.processes));
        for (size_t i = 0; i < stacks.size(); i++) {
            ft_stack_rank &r = all.ranks[i];
            r.rank = ranks.empty() ? static_cast<int>(i) : ranks[i];
            r.engine = r.rank;
            r.process = all.processes[i].rank = static_cast<int>(i);
            r.tid = all.processes[i].pid = 4000 + r.rank;
            r.stopped = stacks[i] == "!";
            if (r.stopped)
                ft_stack_of_lines(&r.kernel, FT_STACK_KERNEL, "stopped");
            else if (!stacks[i].empty())
                ft_stack_of_lines(&r.tool, FT_STACK_GDB, stacks[i].c_str());
        }
    }
    ~Stacks()
    {
        ft_stacks_free(&all);
    }
    Stacks(const Stacks &) = delete;
    Stacks &group()
    {
        EXPECT_EQ(ft_stacks_group(&all, &snap), FT_OK);
        return *this;
    }
    /* "0 1|5-": the ranks of each group, those of outliers with a minus. */
    string text() const
    {
        string out;
        for (int i = 0; i < all.ngroups; i++) {
            out += i ? "|" : "";
            for (int k = 0; k < all.groups[i].count; k++)
                out += (k ? " " : "") +
                       std::to_string(all.ranks[all.order[all.groups[i].first + k]].rank);
            out += all.groups[i].outlier ? "-" : "";
        }
        return out;
    }
    std::set<int> outliers() const
    {
        std::set<int> ranks;
        for (int i = 0; i < all.nranks; i++)
            if (all.ranks[i].group >= 0 && all.groups[all.ranks[i].group].outlier)
                ranks.insert(all.ranks[i].rank);
        return ranks;
    }
};

TEST(Groups, OutliersAndTies)
{
    const struct {
        vector<string> stacks;
        ft_stacks_found found;
        string groups;
    } cases[] = {
        {{}, FT_STACKS_NOTHING, ""},
        {{"", ""}, FT_STACKS_NOTHING, ""},
        {{"a"}, FT_STACKS_ALIKE, "0"},
        {{"a", "a", "a"}, FT_STACKS_ALIKE, "0 1 2"},
        {{"a", "b"}, FT_STACKS_CANNOT_TELL, "0|1"},
        {{"a", "b", "a"}, FT_STACKS_OUTLIERS, "1-|0 2"},
        {{"b", "b", "a", "a"}, FT_STACKS_CANNOT_TELL, "0 1|2 3"},
        {{"a", "b", "c", "c"}, FT_STACKS_CANNOT_TELL, "2 3|0|1"}, /* no majority */
        {{"a", "c", "b", "c", "c"}, FT_STACKS_OUTLIERS, "0-|2-|1 3 4"},
        {{"a", "a", "a", "b", "b"}, FT_STACKS_CANNOT_TELL, "0 1 2|3 4"}, /* both dominate */
        {{"a", "a", "a", "a", "b", "b"}, FT_STACKS_OUTLIERS, "4 5-|0 1 2 3"},
        {{"a", "a", "!", "a"}, FT_STACKS_OUTLIERS, "2-|0 1 3"},
        {{"a", "b", "a", ""}, FT_STACKS_CANNOT_TELL, "0 2|1"}, /* the last may be where 1 is */
        {{"a", "b", "a", "a", "a", ""}, FT_STACKS_OUTLIERS, "1-|0 2 3 4"},
    };
    for (auto &one : cases) {
        Stacks s(one.stacks);
        s.group();
        EXPECT_EQ(s.text(), one.groups);
        EXPECT_STREQ(ft_stacks_found_name(s.all.found), ft_stacks_found_name(one.found))
            << one.groups;
    }
}

TEST(Groups, OneOutlierAmongThousandWhereverItIs)
{
    for (int at : {0, 1, 500, 999}) {
        vector<string> stacks(1000, "epoll_wait\nmain");
        stacks[static_cast<size_t>(at)] = "read\nmain";
        Stacks s(stacks);
        EXPECT_EQ(s.group().outliers(), std::set<int>{at});
        EXPECT_EQ(s.all.nshared, 0);
    }
}

/* What the tool told few of is not compared with what it told: the kernel decides for all. */
TEST(Groups, OnlyWhatOneSourceToldIsCompared)
{
    Stacks few({"a", "", "", ""}), most({"a", "a", "a", ""});
    for (Stacks *s : {&few, &most})
        for (int i = 0; i < 4; i++)
            ft_stack_of_lines(&s->all.ranks[i].kernel, FT_STACK_KERNEL, i == 3 ? "read" : "futex");
    EXPECT_EQ(few.group().text(), "3-|0 1 2");
    EXPECT_EQ(few.all.compared, FT_STACK_KERNEL);
    EXPECT_EQ(most.group().text(), "0 1 2");
    EXPECT_EQ(most.all.compared, FT_STACK_GDB);
    EXPECT_EQ(most.all.nunread, 1);
}

std::set<int> model_of(const vector<string> &stacks)
{
    std::map<string, std::set<int>> groups;
    size_t most = 0, unread = 0, read = 0;
    std::set<int> outliers;
    for (size_t r = 0; r < stacks.size(); r++)
        if (stacks[r].empty())
            unread++;
        else
            groups[stacks[r]].insert(static_cast<int>(r)), read++;
    for (auto &group : groups)
        most = std::max(most, group.second.size());
    for (auto &group : groups)
        if (2 * (group.second.size() + unread) <= most)
            outliers.insert(group.second.begin(), group.second.end());
    return 2 * outliers.size() < read ? outliers : std::set<int>{};
}

TEST(Groups, AnyOrderOfTheRanks)
{
    std::mt19937_64 random(seed_of("AnyOrderOfTheRanks"));
    for (int round = 0; round < 2000; round++) {
        vector<string> stacks(1 + random() % 40);
        size_t kinds = 1 + random() % 4;
        for (string &stack : stacks)
            stack = random() % 16 == 0  ? ""
                    : random() % 3 == 0 ? "f" + std::to_string(random() % kinds)
                                        : "usual";
        vector<int> order(stacks.size());
        std::iota(order.begin(), order.end(), 0);
        std::shuffle(order.begin(), order.end(), random);
        vector<string> shuffled;
        for (int rank : order)
            shuffled.push_back(stacks[static_cast<size_t>(rank)]);
        Stacks s(stacks), other(shuffled, order);
        EXPECT_EQ(s.group().text(), other.group().text()) << "round " << round;
        /* if the tool told at most half, nothing is compared here */
        if (s.all.compared == FT_STACK_GDB)
            EXPECT_EQ(s.outliers(), model_of(stacks)) << "round " << round << ": " << s.text();
        else
            EXPECT_EQ(s.text(), "");
    }
}

/* ---- what outliers share --------------------------------------------------------------------- */

/* The figure in the paper: 4 pipelines of 4 stages; the last pipeline hangs in three ways. */
struct Figure : Job {
    vector<string> stacks = vector<string>(16, "wait\nall_reduce\noptimizer");
    Figure() : Job(16)
    {
        vector<int> world(16);
        std::iota(world.begin(), world.end(), 0);
        comm(1, "world", world);
        for (int i = 0; i < 4; i++) {
            comm(static_cast<uint64_t>(100 + i), "pipeline",
                 {4 * i, 4 * i + 1, 4 * i + 2, 4 * i + 3});
            comm(static_cast<uint64_t>(200 + i), "data", {i, i + 4, i + 8, i + 12});
        }
        stacks[15] = "wait\nall_gather\nbackward";
        stacks[14] = "wait\nisend\nbackward";
        stacks[13] = stacks[12] = "wait\nirecv\nbackward";
    }
    void show(Stacks &s)
    {
        s.snap.engines = engines.data();
        s.snap.members = members.data();
        s.snap.nengines = static_cast<int>(engines.size());
        s.snap.nmembers = static_cast<int>(members.size());
        s.group();
    }
};

TEST(Shared, TheParallelGroupOfTheOutliers)
{
    Figure job;
    Stacks s(job.stacks);
    job.show(s);
    EXPECT_EQ(s.outliers(), (std::set<int>{12, 13, 14, 15}));
    ASSERT_EQ(s.all.nshared, 2);
    EXPECT_EQ(s.all.shared[0].ctx, 103u);
    EXPECT_EQ(s.all.shared[0].nranks, 4);
    EXPECT_EQ(s.all.shared[1].ctx, 1u);
    EXPECT_EQ(s.all.leave_out, 0);
}

TEST(Shared, TheWholeJobIsNotLeftOut)
{
    Figure job;
    job.stacks[2] = "read";
    Stacks s(job.stacks);
    job.show(s);
    EXPECT_EQ(s.outliers(), (std::set<int>{2, 12, 13, 14, 15}));
    ASSERT_EQ(s.all.nshared, 1);
    EXPECT_EQ(s.all.shared[0].ctx, 1u);
    EXPECT_EQ(s.all.leave_out, -1);
}

TEST(Shared, TheSmallestOfMany)
{
    Figure job;
    for (int i = 0; i < 20; i++)
        job.comm(static_cast<uint64_t>(1000 - i), "more", {12, 13, 14, 15, i % 12});
    Stacks s(job.stacks);
    job.show(s);
    ASSERT_EQ(s.all.nshared, FT_STACKS_SHARED);
    EXPECT_EQ(s.all.shared[0].ctx, 103u);
    for (int i = 1; i < FT_STACKS_SHARED; i++)
        EXPECT_EQ(s.all.shared[i].nranks, 5) << i;
}

TEST(Shared, HostileSnapshots)
{
    std::mt19937_64 random(seed_of("HostileSnapshots"));
    for (int round = 0; round < 500; round++) {
        Figure job;
        for (ft_snap_member &m : job.members)
            if (random() % 4 == 0) {
                m.engine = static_cast<int>(random());
                m.nranks = random() % 2 ? INT_MIN : INT_MAX;
                m.ctx = random() % 3;
                memset(m.name, 'x', sizeof m.name);
            }
        Stacks s(job.stacks);
        for (int i = 0; i < 16; i++)
            if (random() % 8 == 0)
                s.all.ranks[i].engine = static_cast<int>(random());
        job.show(s);
        EXPECT_EQ(s.outliers(), (std::set<int>{12, 13, 14, 15}));
    }
}

TEST(Shared, ThirtyTwoThousandRanks)
{
    vector<string> stacks(32768, "epoll_wait\nprogress\nall_reduce\ntrain\nmain");
    for (size_t r = 800; r < 808; r += 3)
        stacks[r] = "epoll_wait\nprogress\nall_gather\ntrain\nmain";
    Job job(32768);
    for (int i = 0; i < 32768; i += 8)
        job.comm(static_cast<uint64_t>(i + 1), "tp",
                 {i, i + 1, i + 2, i + 3, i + 4, i + 5, i + 6, i + 7});
    job.members[0].nranks = 32768;
    Stacks s(stacks);
    s.snap.engines = job.engines.data();
    s.snap.members = job.members.data();
    s.snap.nengines = static_cast<int>(job.engines.size());
    s.snap.nmembers = static_cast<int>(job.members.size());
    auto start = std::chrono::steady_clock::now();
    s.group();
    std::chrono::duration<double, std::milli> took = std::chrono::steady_clock::now() - start;
    printf("stacks of 32768 ranks: %.0f ms\n", took.count());
    EXPECT_EQ(s.outliers(), (std::set<int>{800, 803, 806}));
    ASSERT_EQ(s.all.nshared, 1);
    EXPECT_EQ(s.all.shared[0].ctx, 801u);
}

/* ---- what is told ---------------------------------------------------------------------------- */

struct Told : Figure {
    Stacks stacks_{stacks};
    Told()
    {
        show(stacks_);
    }
};

/* A child of rank 12 that is stopped. */
void add_child(Stacks &s)
{
    s.all.processes = static_cast<ft_stack_process *>(
        realloc(s.all.processes, 32 * sizeof *s.all.processes));
    ft_stack_process child = {};
    child.pid = 77;
    child.parent = 4012;
    child.rank = 12;
    child.state = 'T';
    strcpy(child.name, "loader");
    child.threads = static_cast<ft_stack_thread *>(calloc(1, sizeof *child.threads));
    child.threads[0].state = 'T';
    child.nthreads = 1;
    strcpy(child.trouble, "gdb was not asked: thread 77 is stopped");
    s.all.processes[s.all.nprocesses++] = child;
}

TEST(Telling, EvidenceForTheCulpritAndItsChildren)
{
    Told told;
    add_child(told.stacks_);
    ft_verdict v = {};
    v.nculprits = 1;
    v.culprits[0].engine = v.culprits[0].rank = 12;
    ft_stacks_explain(&told.stacks_.all, &v);
    string text;
    for (int i = 0; i < v.nchain; i++)
        text += string(v.chain[i]) + "\n";
    EXPECT_EQ(text, "rank 12: its stack: wait < irecv < backward (gdb)\n"
                    "rank 12 is elsewhere than most: of 16 ranks, 2 have its stack\n"
                    "rank 12: its child, process 77 (loader), is stopped\n");
    ft_evidence evidence[FT_STACKS_EVIDENCE];
    ASSERT_EQ(ft_stacks_evidence(&told.stacks_.all, &v, evidence, FT_STACKS_EVIDENCE), 2);
    EXPECT_STREQ(evidence[0].source, "gdb");
    EXPECT_STREQ(evidence[0].field, "stack");
    EXPECT_STREQ(evidence[0].text, "wait < irecv < backward (gdb)");
    EXPECT_STREQ(evidence[1].field, "child");
    EXPECT_STREQ(evidence[1].text, "process 77 (loader) is in state T");
    EXPECT_EQ(ft_stacks_evidence(&told.stacks_.all, &v, evidence, 1), 1);
    v.nchain = FT_CHAIN; /* full */
    ft_stacks_explain(&told.stacks_.all, &v);
    EXPECT_EQ(v.nchain, FT_CHAIN);
    ft_verdict other = {};
    other.nculprits = INT_MAX;
    for (auto &culprit : other.culprits)
        culprit.engine = INT_MAX;
    ft_stacks_explain(&told.stacks_.all, &other);
    EXPECT_EQ(other.nchain, 0);
}

#ifdef FT_HAVE_JANSSON
TEST(Telling, Json)
{
    Told told;
    add_child(told.stacks_);
    memset(told.stacks_.all.processes[3].name, '\xff',
           sizeof told.stacks_.all.processes[3].name - 1);
    ft_report report = {};
    ft_text text = {};
    text.most = 1 << 20;
    report.stacks = &told.stacks_.all;
    ft_report_json(&text, nullptr, &report);
    json_error_t error;
    json_t *all = json_loads(text.at, JSON_REJECT_DUPLICATES, &error);
    ASSERT_NE(all, nullptr) << error.text << ": " << text.at;
    json_t *stacks = json_object_get(all, "stacks");
    EXPECT_STREQ(json_string_value(json_object_get(stacks, "found")), "outliers");
    EXPECT_EQ(json_array_size(json_object_get(stacks, "groups")), 4u);
    EXPECT_EQ(json_array_size(json_object_get(stacks, "outliers")), 4u);
    EXPECT_EQ(json_array_size(json_object_get(stacks, "processes")), 17u);
    EXPECT_EQ(json_array_size(json_object_get(stacks, "shared")), 2u);
    json_decref(all);
    ft_text_free(&text);
}
#endif

TEST(Telling, ThePageHasTheGroupsAndEscapesThem)
{
    Told told;
    told.stacks[15] = "<script>&\"alert\nmain";
    Stacks s(told.stacks);
    told.show(s);
    report r = {};
    r.engines = 16;
    r.stacks = &s.all;
    char name[] = "/tmp/ftccl-page-XXXXXX";
    close(mkstemp(name));
    ASSERT_EQ(write_page(&s.snap, &r, name), FT_OK) << ft_fail_text();
    FILE *in = fopen(name, "r");
    string page(1 << 20, '\0');
    page.resize(fread(&page[0], 1, page.size(), in));
    fclose(in);
    unlink(name);
    EXPECT_NE(page.find("<section id=\"stacks\">"), string::npos);
    EXPECT_NE(page.find("&lt;script&gt;&amp;&quot;alert"), string::npos);
    EXPECT_EQ(page.find("<script"), string::npos);
    EXPECT_NE(page.find("<td>0-11</td>"), string::npos);
}

} // namespace

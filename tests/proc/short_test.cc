/*
 * Property: short calls that repeat themselves and enter no queue (decision 0028) keep every
 * promise, whatever strikes in the middle of them. The survivors' results are right to the last
 * bit, or their calls end with an error that blames the right rank; they shrink, and short calls go
 * on. Nothing is left behind. Method: ranks as processes and as threads make short calls without
 * pause until their telemetry shows that these take the short way. Then something strikes at a
 * random moment. Replay: as printed. FT_ROUNDS=n strikes n times in each test.
 */
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <climits>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <sstream>
#include <thread>

#include "telemetry/format.h"
#include "tests/proc/proc.h"

namespace
{

using proc::Dice;
using Ints = std::vector<uint32_t>;

int rounds()
{
    const char *text = getenv("FT_ROUNDS");
    return text ? atoi(text) : 2;
}

void pause_us(uint64_t us)
{
    usleep(static_cast<useconds_t>(us));
}

/* ---- the calls ------------------------------------------------------------------------------- */

enum Kind { AllReduce, Reduce, Broadcast, AllGather, ReduceScatter, AlltoAll, Gather, Scatter };
const char *const kind_names[] = {"AllReduce",     "Reduce",   "Broadcast", "AllGather",
                                  "ReduceScatter", "AlltoAll", "Gather",    "Scatter"};

struct Shape {
    int kind;
    size_t count; /* elements; of one block */
    int root;
    ftcclDataType_t type = ftcclUint32;
};

/* Element i of rank r's input to a call. The values are small, so that float32 adds them without
 * rounding. */
uint32_t value(int r, size_t i, uint64_t call)
{
    return static_cast<uint32_t>(r * 1000 + static_cast<int>(i % 251) * 7 +
                                 static_cast<int>(call % 4093));
}

uint32_t sum(int n, size_t i, uint64_t call)
{
    uint32_t total = 0;
    for (int r = 0; r < n; r++)
        total += value(r, i, call);
    return total;
}

/* The i-th element of the result on rank `me`. */
uint32_t result_of(const Shape &shape, int n, int me, size_t i, uint64_t call)
{
    size_t count = shape.count, mine = static_cast<size_t>(me) * count;
    int block = static_cast<int>(i / count);
    switch (shape.kind) {
    case AllReduce:
    case Reduce:
        return sum(n, i, call);
    case Broadcast:
        return value(shape.root, i, call);
    case ReduceScatter:
        return sum(n, mine + i, call);
    case AlltoAll:
        return value(block, mine + i % count, call);
    case Scatter:
        return value(shape.root, mine + i, call);
    default: /* AllGather, Gather */
        return value(block, i % count, call);
    }
}

/* One call and its buffers. */
struct Call {
    Ints in, out;
    bool in_place = false;
    ftcclResult_t make(const Shape &shape, ftcclComm_t comm, ftcclStream_t stream)
    {
        const void *from = in.data();
        void *to = in_place ? in.data() : out.data();
        size_t count = shape.count;
        switch (shape.kind) {
        case AllReduce:
            return ftcclAllReduce(from, to, count, shape.type, ftcclSum, comm, stream);
        case Reduce:
            return ftcclReduce(from, to, count, shape.type, ftcclSum, shape.root, comm, stream);
        case Broadcast:
            return ftcclBroadcast(from, to, count, shape.type, shape.root, comm, stream);
        case AllGather:
            return ftcclAllGather(from, to, count, shape.type, comm, stream);
        case ReduceScatter:
            return ftcclReduceScatter(from, to, count, shape.type, ftcclSum, comm, stream);
        case AlltoAll:
            return ftcclAlltoAll(from, to, count, shape.type, comm, stream);
        case Gather:
            return ftcclGather(from, to, count, shape.type, shape.root, comm, stream);
        default:
            return ftcclScatter(from, to, count, shape.type, shape.root, comm, stream);
        }
    }
    const Ints &result() const
    {
        return in_place ? in : out;
    }
};

/* How ranks call: so many calls of a shape, then they wait. */
struct Plan {
    Shape shape;
    int burst;
    bool in_place; /* of AllReduce */
};

Plan draw(Dice &dice, int n, int kind)
{
    static const size_t counts[] = {2, 16, 128}; /* 8, 64 and 512 bytes */
    static const int bursts[] = {1, 1, 5, 40};
    return {{kind, counts[dice(3)], static_cast<int>(dice(static_cast<uint64_t>(n)))},
            bursts[dice(4)],
            kind == AllReduce && dice(2) == 0};
}

std::string text_of(const Plan &plan)
{
    return std::string(kind_names[plan.shape.kind]) + " of " +
           std::to_string(plan.shape.count * 4) + " bytes, root " +
           std::to_string(plan.shape.root) + ", " + std::to_string(plan.burst) + " at a time" +
           (plan.in_place ? ", in place" : "");
}

/* A rank that makes calls, and checks each result. */
struct Rank {
    ftcclComm_t comm = nullptr;
    std::atomic<ftcclStream_t> stream{nullptr};
    int n = 0, me = 0;
    Plan plan;
    std::vector<Call> calls;
    std::string wrong;    /* the first result that was */
    bool is_short = true; /* its calls are to take the short way */

    Rank(ftcclComm_t made, const Plan &p) : comm(made), plan(p), calls(static_cast<size_t>(p.burst))
    {
        ftcclStream_t one = nullptr;
        EXPECT_OK(ftcclCommCount(comm, &n));
        EXPECT_OK(ftcclCommUserRank(comm, &me));
        EXPECT_OK(ftcclStreamCreate(&one));
        stream = one;
        plan.shape.root %= n;
    }
    ~Rank()
    {
        ftcclStreamDestroy(stream);
    }

    uint64_t number(uint64_t round, size_t k) const
    {
        return round * calls.size() + k;
    }
    void fill(Call &call, uint64_t number) const
    {
        auto all = static_cast<size_t>(n) * plan.shape.count;
        call.in.resize(all); /* long enough for all kinds */
        call.out.assign(all, UINT32_MAX);
        call.in_place = plan.in_place;
        for (size_t i = 0; i < all; i++)
            call.in[i] = value(me, i, number);
    }
    size_t elements() const
    {
        int kind = plan.shape.kind;
        if ((kind == Reduce || kind == Gather) && me != plan.shape.root)
            return 0;
        bool all = kind == AllGather || kind == AlltoAll || kind == Gather;
        return all ? static_cast<size_t>(n) * plan.shape.count : plan.shape.count;
    }
    bool is_done(const Call &call, uint64_t number, std::string *why) const
    {
        for (size_t i = 0; i < elements(); i++) {
            uint32_t want = result_of(plan.shape, n, me, i, number);
            if (call.result()[i] == want)
                continue;
            *why = "call " + std::to_string(number) + " on rank " + std::to_string(me) +
                   ": element " + std::to_string(i) + " is " + std::to_string(call.result()[i]) +
                   " instead of " + std::to_string(want);
            return false;
        }
        return true;
    }
    /* A burst of calls. Returns their first error. */
    ftcclResult_t round(uint64_t round)
    {
        ftcclResult_t result = ftcclSuccess;
        for (size_t k = 0; k < calls.size(); k++)
            fill(calls[k], number(round, k));
        for (size_t k = 0; k < calls.size() && result == ftcclSuccess; k++)
            result = calls[k].make(plan.shape, comm, stream);
        ftcclResult_t waited = ftcclStreamSynchronize(stream);
        if (result == ftcclSuccess)
            result = waited;
        for (size_t k = 0; k < calls.size() && result == ftcclSuccess && wrong.empty(); k++)
            is_done(calls[k], number(round, k), &wrong);
        return result;
    }
    /* With preserveInput, after an error: a buffer has the result, or its input again. */
    void check_inputs(uint64_t round)
    {
        std::string why;
        for (size_t k = 0; k < calls.size() && wrong.empty(); k++) {
            Call was;
            fill(was, number(round, k));
            if (calls[k].in != was.in && !is_done(calls[k], number(round, k), &why))
                wrong = "neither input nor result: " + why;
        }
    }
};

/* Memory that the ranks share with who strikes. */
struct Page {
    std::atomic<bool> enough{false};
    std::atomic<uint64_t> end{UINT64_MAX}; /* the round before which all ranks end */
};

/* Calls without pause, until an error or the end. *last: the last round that it began. */
ftcclResult_t call_on(Rank &rank, Page &page, uint64_t *last)
{
    ftcclResult_t result = ftcclSuccess;
    uint64_t round = 0;
    for (; round < page.end && result == ftcclSuccess && rank.wrong.empty(); round++) {
        /* no rank is further ahead than links have places */
        if (rank.me == 0 && page.enough && page.end == UINT64_MAX)
            page.end = round + 256;
        result = rank.round(round);
    }
    *last = round - 1;
    return result;
}

/* ---- whether calls take the short way -------------------------------------------------------- */

using File = std::unique_ptr<ft_tm_file>;

/* The telemetry of a process's ranks. */
std::vector<File> telemetry_of(pid_t pid)
{
    std::vector<File> files;
    for (const std::string &name : proc::shm_of(pid)) {
        File file = std::make_unique<ft_tm_file>();
        std::ifstream in("/dev/shm/" + name, std::ios::binary);
        if (in.read(reinterpret_cast<char *>(file.get()), sizeof *file) &&
            memcmp(file->header.magic, FT_TM_MAGIC, sizeof file->header.magic) == 0)
            files.push_back(std::move(file));
    }
    return files;
}

/* Of the last calls with so many elements on communicators of n ranks, those that were over when
 * the short way began to wait for them: their end is their beginning. Of a process with several
 * ranks, the fewest. */
size_t short_calls(pid_t pid, int n, size_t count)
{
    size_t fewest = SIZE_MAX;
    for (const File &file : telemetry_of(pid)) {
        size_t found = 0, others = 0;
        for (const ft_tm_op &op : file->op) {
            if (op.serial == 0 || op.comm >= FT_TM_COMMS || op.count != count ||
                file->comm[op.comm].nranks != n || file->comm[op.comm].ctx != op.ctx)
                continue;
            bool is_short = op.state == FT_OP_DONE && op.time_ns[FT_TM_ENDED] != 0 &&
                            op.time_ns[FT_TM_ENDED] == op.time_ns[FT_TM_STARTED];
            (is_short ? found : others)++;
        }
        if (found + others > 0)
            fewest = std::min(fewest, found);
    }
    return fewest == SIZE_MAX ? 0 : fewest;
}

bool await_short(const std::vector<pid_t> &pids, int n, size_t count)
{
    for (double end = proc::now() + 60; proc::now() < end; pause_us(500)) {
        if (std::all_of(pids.begin(), pids.end(),
                        [&](pid_t pid) { return short_calls(pid, n, count) >= 20; }))
            return true;
    }
    ADD_FAILURE() << "the calls do not take the short way";
    return false;
}

/* ---- afterwards ------------------------------------------------------------------------------ */

/* Whether every rank says yes. */
ftcclResult_t all_say(const Rank &rank, bool *yes)
{
    uint32_t said = *yes;
    ftcclResult_t result = ftcclAllReduce(&said, &said, 1, ftcclUint32, ftcclMin, rank.comm,
                                          rank.stream);
    ftcclResult_t waited = ftcclStreamSynchronize(rank.stream);
    *yes = said != 0;
    return result == ftcclSuccess ? waited : result;
}

/* Calls a hundred times, and then, if calls show whether they are short, until all ranks have made
 * short ones: on a crowded machine that may take a while. Returns what is wrong. */
std::string go_on_calling(Rank &rank, bool shows)
{
    ftcclResult_t result = ftcclSuccess;
    bool found = !shows, enough = false;
    double end = proc::now() + 60;
    for (uint64_t round = 0; !enough && result == ftcclSuccess; round++) {
        result = rank.round(round);
        if (round % 100 != 99 || result != ftcclSuccess)
            continue;
        rank.calls.resize(1); /* calls that queue behind others need not become short */
        found = found || short_calls(getpid(), rank.n, rank.plan.shape.count) > 0;
        enough = found || proc::now() > end;
        result = all_say(rank, &enough);
    }
    if (result != ftcclSuccess)
        return std::string("after the shrink: ") + ftcclGetLastError(rank.comm);
    return rank.wrong.empty() && !found ? "no short calls after the shrink" : rank.wrong;
}

/* Shrinks the communicator and makes short calls on the new one. Returns what went wrong; empty:
 * nothing did. */
std::string go_on(const Rank &old, int want)
{
    ftcclComm_t comm = nullptr;
    ftcclResult_t result = ftcclCommShrink(old.comm, nullptr, 0, &comm, nullptr,
                                           FTCCL_SHRINK_DEFAULT);
    if (result != ftcclSuccess)
        return "shrink gives " + std::to_string(result) + ": " + ftcclGetLastError(nullptr);
    std::string wrong;
    {
        Rank rank(comm, old.plan);
        if (rank.n != want)
            wrong = "a shrunk communicator of " + std::to_string(rank.n);
        /* otherwise telemetry does not tell them from the old ones */
        bool shows = want != old.n && old.is_short;
        std::string went = go_on_calling(rank, shows);
        if (wrong.empty())
            wrong = went;
    }
    result = ftcclCommDestroy(comm);
    if (result != ftcclSuccess && wrong.empty())
        wrong = std::string("destroy: ") + ftcclGetLastError(nullptr);
    return wrong;
}

/* "3,4," */
std::string blamed(ftcclComm_t comm)
{
    std::vector<int> ranks(16);
    int count = 0;
    std::string text;
    ftcclCommGetFailedRanks(comm, ranks.data(), 16, &count);
    for (int i = 0; i < count; i++)
        text += std::to_string(ranks[static_cast<size_t>(i)]) + ",";
    return text;
}

/* ---- ranks as processes ---------------------------------------------------------------------- */

struct Args {
    Plan plan;
    int n, me, page;
    long timeout_ms, preserve;
    std::string id;
};

std::vector<std::string> words_of(const Args &a)
{
    std::vector<std::string> words{a.id};
    for (long x : {static_cast<long>(a.n), static_cast<long>(a.me), static_cast<long>(a.page),
                   a.timeout_ms, a.preserve, static_cast<long>(a.plan.shape.kind),
                   static_cast<long>(a.plan.shape.count), static_cast<long>(a.plan.shape.root),
                   static_cast<long>(a.plan.burst), static_cast<long>(a.plan.in_place)})
        words.push_back(std::to_string(x));
    return words;
}

Args args_of(const std::vector<std::string> &words)
{
    std::vector<long> x;
    for (size_t i = 1; i < words.size(); i++)
        x.push_back(std::stol(words[i]));
    auto as_int = [&](size_t i) { return static_cast<int>(x[i]); };
    Shape shape{as_int(5), static_cast<size_t>(x[6]), as_int(7)};
    return {{shape, as_int(8), x[9] != 0}, as_int(0), as_int(1), as_int(2), x[3], x[4], words[0]};
}

/* Calls until an error or the end. Then it shrinks if it was told how many are to be left; not 0:
 * it is not one of them. */
int call_until_the_end(const Args &args, ftcclComm_t comm, Page *page)
{
    Rank rank(comm, args.plan);
    rank.is_short = !args.preserve;
    uint64_t last = 0;
    ftcclResult_t result = call_on(rank, *page, &last);
    if (result != ftcclSuccess && args.preserve)
        rank.check_inputs(last);
    printf("%d %s %s\n", result, (blamed(comm) + "-").c_str(),
           rank.wrong.empty() ? ftcclGetLastError(comm) : rank.wrong.c_str());
    int left = 0;
    if (!rank.wrong.empty() || scanf("%d", &left) != 1)
        return 3;
    printf("went on: %s\n", left ? go_on(rank, left).c_str() : "");
    char word[8]; /* leaving is what the others would hear of */
    return scanf("%7s", word) == 1 ? 0 : 3;
}

/* What stays for the life of a process that has used memory which others may read. */
void make_arena()
{
    void *memory = nullptr;
    EXPECT_OK(ftcclMemAlloc(&memory, 1 << 20));
    EXPECT_OK(ftcclMemFree(memory));
}

CHILD(calls)
{
    Args args = args_of(arguments);
    void *page = mmap(nullptr, sizeof(Page), PROT_READ | PROT_WRITE, MAP_SHARED, args.page, 0);
    close(args.page);
    make_arena();
    /* ThreadSanitizer adds a thread of its own to a process that starts its first one. It stays,
     * so it must be there before they are counted. */
    std::thread([] {}).join();
    proc::Holdings before;
    ftcclOptions_t options = FTCCL_OPTIONS_INITIALIZER;
    options.transports = "shm";
    options.opTimeoutMs = args.timeout_ms;
    options.preserveInput = args.preserve;
    ftcclConfig_t config = FTCCL_CONFIG_INITIALIZER;
    config.options = &options;
    ftcclComm_t comm = nullptr;
    if (page == MAP_FAILED || ftcclCommInitRankConfig(&comm, args.n, proc::unhex(args.id), args.me,
                                                      &config) != ftcclSuccess) {
        printf("init: %s\n", ftcclGetLastError(nullptr));
        return 2;
    }
    int ended = call_until_the_end(args, comm, static_cast<Page *>(page));
    ftcclCommDestroy(comm);
    printf("left: %s\n", before.left().c_str());
    return ended;
}

struct Job {
    int n;
    Plan plan;
    Page *page;
    std::vector<std::unique_ptr<proc::Child>> rank;
    std::vector<int> hasty; /* ranks that do not preserve their inputs, so their calls are short */
    Job(int ranks, const Plan &p, long timeout_ms, Dice &dice) : n(ranks), plan(p)
    {
        int fd = memfd_create("ftccl-short-test", 0);
        EXPECT_EQ(ftruncate(fd, sizeof(Page)), 0);
        void *at = mmap(nullptr, sizeof(Page), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        page = new (at) Page;
        ftcclUniqueId id;
        EXPECT_OK(ftcclGetUniqueId(&id));
        for (int r = 0; r < n; r++) {
            long preserve = r > 0 && p.in_place && dice(2) == 0;
            if (!preserve)
                hasty.push_back(r);
            Args args{p, n, r, fd, timeout_ms, preserve, proc::hex(id)};
            rank.push_back(std::make_unique<proc::Child>("calls", words_of(args)));
        }
        close(fd);
    }
    ~Job()
    {
        munmap(page, sizeof(Page));
    }
    Job(const Job &) = delete;
    proc::Child &at(int r) const
    {
        return *rank[static_cast<size_t>(r)];
    }
    bool warm() const
    {
        std::vector<pid_t> pids;
        for (int r : hasty)
            pids.push_back(at(r).pid());
        return await_short(pids, n, plan.shape.count);
    }
    void expect_line(int r, const std::string &want) const
    {
        std::string line = at(r).line(60);
        EXPECT_EQ(line.substr(0, want.size()), want) << "rank " << r << ": " << line;
    }
    /* Tells a rank how many are to be left. 0: it does not shrink. */
    void tell(int r, int left) const
    {
        at(r).tell(std::to_string(left));
    }
    /* What it says of that begins like this. */
    void expect_went_on(int r, const std::string &said = "") const
    {
        std::string line = at(r).line(60), want = "went on: " + said;
        EXPECT_EQ(line.substr(0, said.empty() ? SIZE_MAX : want.size()), want) << "rank " << r;
    }
    void expect_end(int r) const
    {
        at(r).tell("end");
        EXPECT_EQ(at(r).line(60), "left: ") << "rank " << r;
        EXPECT_EQ(at(r).wait(), 0) << "rank " << r;
        EXPECT_EQ(proc::shm_of(at(r).pid()), std::vector<std::string>{}) << "left by rank " << r;
    }
    /* All ranks but one. */
    void each_but(int victim, const std::function<void(int)> &f) const
    {
        for (int r = 0; r < n; r++)
            if (r != victim)
                f(r);
    }
};

/* One job after another, with other calls. */
class Short : public testing::TestWithParam<int>
{
  protected:
    void each_round(const std::function<void(Dice &, int n, const Plan &)> &round)
    {
        Dice dice = proc::dice();
        for (int k = 0; k < rounds() && !HasFailure(); k++) {
            int n = k % 2 ? 2 : 4;
            Plan plan = draw(dice, n, GetParam());
            printf("%d ranks, %s\n", n, text_of(plan).c_str());
            round(dice, n, plan);
        }
    }
};
class ShortProcesses : public Short
{
};
INSTANTIATE_TEST_SUITE_P(All, ShortProcesses, testing::Range(0, 8),
                         [](const auto &i) { return std::string(kind_names[i.param]); });

/* All ranks but the victim end with this error, and blame it. They go on without it. */
void expect_survivors(const Job &job, int victim, ftcclResult_t error)
{
    std::string want = std::to_string(error) + " " + std::to_string(victim) + ",- ";
    job.each_but(victim, [&](int r) { job.expect_line(r, want); });
    job.each_but(victim, [&](int r) { job.tell(r, job.n - 1); });
    job.each_but(victim, [&](int r) { job.expect_went_on(r); });
}

/* SIGKILL strikes the victim while it runs, or some milliseconds after a SIGSTOP. */
TEST_P(ShortProcesses, ADeathIsSeen)
{
    each_round([](Dice &dice, int n, const Plan &plan) {
        Job job(n, plan, 60000, dice);
        int victim = static_cast<int>(dice(static_cast<uint64_t>(n)));
        if (!job.warm())
            return;
        pause_us(dice(3000));
        if (dice(2) == 0) {
            job.at(victim).signal(SIGSTOP);
            pause_us(dice(20000));
        }
        job.at(victim).signal(SIGKILL);
        expect_survivors(job, victim, ftcclRemoteError);
        job.each_but(victim, [&](int r) { job.expect_end(r); });
        EXPECT_EQ(job.at(victim).wait(), 128 + SIGKILL);
        EXPECT_LE(proc::shm_of(job.at(victim).pid()).size(), 1u) << "more than its telemetry";
    });
}

/* The deadline ends the wait for a stopped process. When it goes on, it is not one of them. */
TEST_P(ShortProcesses, AHangIsLeftOut)
{
    Dice dice = proc::dice();
    Plan plan = draw(dice, 4, GetParam());
    printf("%s\n", text_of(plan).c_str());
    Job job(4, plan, 2000, dice);
    int victim = static_cast<int>(dice(4));
    if (!job.warm())
        return;
    pause_us(dice(3000));
    job.at(victim).signal(SIGSTOP);
    expect_survivors(job, victim, ftcclTimeout);
    job.at(victim).signal(SIGCONT);
    std::string line = job.at(victim).line(60);
    EXPECT_NE(line.substr(0, 2), "0 ") << line;
    job.tell(victim, 3);
    job.expect_went_on(victim, "shrink gives ");
    for (int r = 0; r < 4; r++)
        job.expect_end(r);
}

TEST_P(ShortProcesses, APauseBreaksNothing)
{
    each_round([](Dice &dice, int n, const Plan &plan) {
        Job job(n, plan, 60000, dice);
        if (!job.warm())
            return;
        for (int k = 0; k < 5; k++) {
            int victim = static_cast<int>(dice(static_cast<uint64_t>(n)));
            pause_us(dice(3000));
            job.at(victim).signal(SIGSTOP);
            pause_us(dice(20000));
            job.at(victim).signal(SIGCONT);
        }
        job.page->enough = true;
        job.each_but(-1, [&](int r) { job.expect_line(r, "0 - "); });
        job.each_but(-1, [&](int r) { job.tell(r, 0); });
        job.each_but(-1, [&](int r) { job.expect_went_on(r); });
        job.each_but(-1, [&](int r) { job.expect_end(r); });
    });
}

/* ---- ranks as threads ------------------------------------------------------------------------ */

/* What strikes, and what each rank expects when its calls have ended. */
struct Event {
    std::function<void(proc::World &, std::vector<Rank *> &, Page &)> strike;
    std::function<void(Rank &, ftcclResult_t)> ended;
    /* How a rank calls. */
    std::function<ftcclResult_t(Rank &, Page &)> call = [](Rank &rank, Page &page) {
        uint64_t last;
        return call_on(rank, page, &last);
    };
    int64_t timeout_ms = 60000;
};

void strike_threads(Dice &dice, int n, const Plan &plan, const Event &event)
{
    ftcclOptions_t options = FTCCL_OPTIONS_INITIALIZER;
    options.transports = "shm";
    options.opTimeoutMs = event.timeout_ms;
    proc::World world(n, [&](ftcclConfig_t &config) { config.options = &options; });
    std::vector<std::unique_ptr<Rank>> ranks;
    std::vector<Rank *> all;
    for (ftcclComm_t comm : world.comm) {
        ranks.push_back(std::make_unique<Rank>(comm, plan));
        all.push_back(ranks.back().get());
    }
    Page page;
    proc::Meeting meeting(n);
    uint64_t when = dice(3000);
    std::thread striking([&] {
        await_short({getpid()}, n, plan.shape.count);
        pause_us(when);
        event.strike(world, all, page);
    });
    world.each([&](int r) {
        Rank &rank = *ranks[static_cast<size_t>(r)];
        event.ended(rank, event.call(rank, page));
        EXPECT_EQ(rank.wrong, "");
        meeting.wait(); // leaving would be what the others hear of
    });
    striking.join();
}

class ShortThreads : public Short
{
  protected:
    /* After a first time, nothing more is held. */
    void each_round(const std::function<void(Dice &, int n, const Plan &)> &round)
    {
        ftcclUniqueId unused; /* the rendezvous stays while an id may still be asked for */
        EXPECT_OK(ftcclGetUniqueId(&unused));
        std::unique_ptr<proc::Holdings> before;
        Short::each_round([&](Dice &dice, int n, const Plan &plan) {
            round(dice, n, plan);
            if (!before)
                before = std::make_unique<proc::Holdings>();
        });
        before->expect_no_more();
    }
};
INSTANTIATE_TEST_SUITE_P(All, ShortThreads, testing::Range(0, 8),
                         [](const auto &i) { return std::string(kind_names[i.param]); });

TEST_P(ShortThreads, AnAbortIsHeardOf)
{
    each_round([](Dice &dice, int n, const Plan &plan) {
        auto victim = static_cast<size_t>(dice(static_cast<uint64_t>(n)));
        Event event;
        event.strike = [&](proc::World &world, std::vector<Rank *> &, Page &) {
            ftcclComm_t comm = world.comm[victim];
            world.comm[victim] = nullptr;
            EXPECT_OK(ftcclCommAbort(comm));
        };
        event.ended = [&](Rank &rank, ftcclResult_t result) {
            if (rank.me == static_cast<int>(victim)) {
                EXPECT_NE(result, ftcclSuccess);
                return;
            }
            EXPECT_EQ(result, ftcclRemoteError) << ftcclGetLastError(rank.comm);
            EXPECT_EQ(blamed(rank.comm), std::to_string(victim) + ",");
            EXPECT_EQ(go_on(rank, n - 1), "") << "rank " << rank.me;
        };
        strike_threads(dice, n, plan, event);
    });
}

/* What the other rank has not taken yet leaves little room on the link. The proof that this rank
 * has gone, without which the other one cannot go on alone, must come through all the same. */
TEST(ShortLinks, AnAbortIsToldOnAFullLink)
{
    const size_t count = 16;
    for (int calls = 1; calls <= 40; calls++) {
        ftcclOptions_t options = FTCCL_OPTIONS_INITIALIZER;
        options.transports = "shm";
        proc::World world(2, [&](ftcclConfig_t &config) { config.options = &options; });
        std::vector<Ints> data(2, Ints(count));
        auto call = [&](int rank) {
            auto r = static_cast<size_t>(rank);
            uint32_t *at = data[r].data();
            EXPECT_OK(
                ftcclBroadcast(at, at, count, ftcclUint32, 0, world.comm[r], world.stream[r]));
        };
        for (int k = 0; k < 10; k++) { /* the links are there, and the calls are short */
            call(0);
            call(1);
            EXPECT_OK(ftcclStreamSynchronize(world.stream[1]));
        }
        for (int k = 0; k < calls; k++)
            call(0);
        ftcclComm_t first = world.comm[0], comm = nullptr;
        world.comm[0] = nullptr;
        EXPECT_OK(ftcclCommAbort(first));
        ASSERT_OK(ftcclCommShrink(world.comm[1], nullptr, 0, &comm, nullptr, FTCCL_SHRINK_DEFAULT))
            << calls << " calls";
        EXPECT_OK(ftcclCommDestroy(comm));
    }
}

/* A rank that calls no more, and lives. */
TEST_P(ShortThreads, ADeadlineNamesWhoDoesNotCall)
{
    Dice dice = proc::dice();
    Plan plan = draw(dice, 4, GetParam());
    printf("%s\n", text_of(plan).c_str());
    int lazy = static_cast<int>(dice(4));
    std::atomic<int> told{0};
    Event event;
    event.timeout_ms = 2000;
    event.strike = [](proc::World &, std::vector<Rank *> &, Page &page) { page.enough = true; };
    event.call = [&](Rank &rank, Page &page) {
        ftcclResult_t result = ftcclSuccess;
        bool calls = true;
        for (uint64_t round = 0; result == ftcclSuccess && calls; round++) {
            result = rank.round(round);
            calls = rank.me != lazy || !page.enough;
        }
        return result;
    };
    event.ended = [&](Rank &rank, ftcclResult_t result) {
        for (; rank.me == lazy && told < 3; pause_us(1000)) {}
        if (rank.me != lazy) {
            EXPECT_EQ(result, ftcclTimeout) << ftcclGetLastError(rank.comm);
            EXPECT_EQ(blamed(rank.comm), std::to_string(lazy) + ",");
            told++;
        }
        EXPECT_EQ(go_on(rank, 4), "") << "rank " << rank.me;
    };
    strike_threads(dice, 4, plan, event);
}

/* Another shape of the call. */
Shape deviate(Dice &dice, const Shape &shape, std::string *how)
{
    Shape other = shape;
    bool rooted = shape.kind == Reduce || shape.kind == Broadcast || shape.kind == Gather ||
                  shape.kind == Scatter;
    switch (dice(rooted ? 4 : 3)) {
    case 0:
        *how = "count";
        other.count--;
        break;
    case 1:
        *how = "type";
        other.type = ftcclFloat32;
        break;
    case 2:
        *how = "kind";
        other.kind = shape.kind == AllGather ? AlltoAll : AllGather;
        break;
    default:
        *how = "root";
        other.root = shape.root ^ 1;
    }
    return other;
}

TEST_P(ShortThreads, AMismatchIsNamed)
{
    each_round([](Dice &dice, int n, const Plan &plan) {
        int wrong_one = static_cast<int>(dice(static_cast<uint64_t>(n)));
        std::string how;
        Shape other = deviate(dice, plan.shape, &how);
        printf("another %s on rank %d\n", how.c_str(), wrong_one);
        Event event;
        event.strike = [](proc::World &, std::vector<Rank *> &, Page &page) { page.enough = true; };
        event.call = [&](Rank &rank, Page &page) {
            ftcclResult_t result = ftcclSuccess;
            bool deviates = rank.me == wrong_one;
            Call call;
            rank.fill(call, 0);
            call.in_place = false;
            for (int k = 0; k < 10; k++) { /* so that it is a short one, too */
                EXPECT_OK(call.make(other, rank.comm, rank.stream));
                EXPECT_OK(ftcclStreamSynchronize(rank.stream));
            }
            for (uint64_t round = 0; result == ftcclSuccess; round++) {
                if (deviates && page.enough) {
                    EXPECT_NE(call.make(other, rank.comm, rank.stream), ftcclInvalidArgument);
                    ftcclStreamSynchronize(rank.stream);
                    deviates = false;
                }
                result = rank.round(round);
                if (page.enough)
                    rank.wrong.clear(); /* its own mistake: rounds do not match any more */
            }
            return result;
        };
        event.ended = [&](Rank &rank, ftcclResult_t result) {
            ftcclResult_t state = ftcclSuccess;
            ftcclCommGetAsyncError(rank.comm, &state);
            EXPECT_EQ(state, ftcclInvalidUsage)
                << "rank " << rank.me << ": " << result << " " << ftcclGetLastError(rank.comm);
            std::string text = ftcclGetLastError(rank.comm);
            bool both = text.find(kind_names[plan.shape.kind]) != std::string::npos &&
                        text.find(kind_names[other.kind]) != std::string::npos;
            /* with another root the message went elsewhere, and the next one is a call too far */
            std::string sent = "rank " + std::to_string(wrong_one) + " sent ";
            EXPECT_TRUE(both || text.find(sent) != std::string::npos) << text;
            EXPECT_EQ(go_on(rank, n), "") << "rank " << rank.me;
        };
        strike_threads(dice, n, plan, event);
    });
}

/* The child of a fork calls, is refused, and ends; the ranks of the parent go on. */
TEST_P(ShortThreads, AForkDisturbsNobody)
{
    each_round([](Dice &dice, int n, const Plan &plan) {
        Event event;
        event.strike = [&](proc::World &, std::vector<Rank *> &ranks, Page &page) {
            Call call;
            ranks[0]->fill(call, 0);
            for (int k = 0; k < 10; k++) {
                pid_t pid = fork();
                if (pid == 0) {
                    alarm(20);
                    _exit(call.make(plan.shape, ranks[0]->comm, ranks[0]->stream) !=
                              ftcclInvalidUsage ||
                          ftcclStreamSynchronize(ranks[0]->stream) != ftcclInvalidUsage);
                }
                int status = -1;
                EXPECT_EQ(waitpid(pid, &status, 0), pid);
                EXPECT_EQ(status, 0) << "a call was not refused in the child";
                pause_us(dice(500));
            }
            page.enough = true;
        };
        event.ended = [](Rank &rank, ftcclResult_t result) {
            EXPECT_EQ(result, ftcclSuccess) << ftcclGetLastError(rank.comm);
        };
        strike_threads(dice, n, plan, event);
    });
}

/* A call on a stream that was destroyed had no effect, and is made again. If the stream went
 * meanwhile, the call has ended when Destroy returns, or is on the NULL stream. */
void call_without_fear(Rank &rank, uint64_t number, std::mutex &destroying)
{
    Call &call = rank.calls[0];
    rank.fill(call, number);
    ftcclResult_t result;
    while ((result = call.make(rank.plan.shape, rank.comm, rank.stream)) == ftcclInvalidArgument) {
        ftcclStream_t next = nullptr;
        ASSERT_OK(ftcclStreamCreate(&next));
        rank.stream = next;
    }
    ASSERT_OK(result);
    if (ftcclStreamSynchronize(rank.stream) != ftcclSuccess) {
        std::lock_guard<std::mutex> destroyed(destroying);
        EXPECT_OK(ftcclStreamSynchronize(nullptr));
    }
    rank.is_done(call, number, &rank.wrong);
}

TEST_P(ShortThreads, ADestroyedStreamLosesNoCall)
{
    each_round([](Dice &dice, int n, Plan plan) {
        plan.burst = 1;
        std::vector<std::mutex> destroying(static_cast<size_t>(n)); /* held meanwhile */
        Event event;
        event.strike = [&](proc::World &, std::vector<Rank *> &ranks, Page &page) {
            for (int k = 0; k < 40; k++) {
                pause_us(dice(200));
                size_t r = dice(static_cast<uint64_t>(n));
                std::lock_guard<std::mutex> destroys(destroying[r]);
                ftcclStreamDestroy(ranks[r]->stream);
            }
            page.enough = true;
        };
        event.call = [&](Rank &rank, Page &page) {
            /* so that a wait for NULL streams is not one for those of all ranks */
            proc::World alone(1);
            Rank unrelated(alone.comm[0], plan);
            unrelated.fill(unrelated.calls[0], 0);
            Shape shape = {AllReduce, plan.shape.count, 0};
            EXPECT_OK(unrelated.calls[0].make(shape, unrelated.comm, nullptr));
            EXPECT_OK(ftcclStreamSynchronize(nullptr));
            for (uint64_t round = 0; round < page.end && rank.wrong.empty(); round++) {
                if (rank.me == 0 && page.enough && page.end == UINT64_MAX)
                    page.end = round + 256;
                call_without_fear(rank, round, destroying[static_cast<size_t>(rank.me)]);
            }
            return ftcclSuccess;
        };
        event.ended = [](Rank &, ftcclResult_t) {};
        strike_threads(dice, n, plan, event);
    });
}

/* A communicator of all ranks with one option more, and a number of elements of its own, by which
 * telemetry tells its calls. */
struct Other {
    const char *name;
    int64_t ftcclOptions_t::*option;
    size_t count;
};
const Other others[] = {{"verify", &ftcclOptions_t::verify, 3},
                        {"failurePolicy", &ftcclOptions_t::failurePolicy, 5},
                        {"preserveInput", &ftcclOptions_t::preserveInput, 7}};

/* Options hold for the communicator that has them. Its calls go in between short ones. */
TEST_P(ShortThreads, OptionsHoldForTheirCommunicator)
{
    Dice dice = proc::dice();
    Plan plan = draw(dice, 4, GetParam());
    uint64_t seed = dice(1000000);
    proc::Meeting meeting(4);
    Event event;
    event.strike = [](proc::World &, std::vector<Rank *> &, Page &page) { page.enough = true; };
    event.call = [&](Rank &rank, Page &page) {
        std::vector<std::unique_ptr<Rank>> children;
        for (const Other &other : others) {
            ftcclOptions_t options = FTCCL_OPTIONS_INITIALIZER;
            options.*other.option = 1;
            ftcclConfig_t config = FTCCL_CONFIG_INITIALIZER;
            config.options = &options;
            ftcclComm_t comm = nullptr;
            EXPECT_OK(ftcclCommSplit(rank.comm, 0, rank.me, &comm, &config));
            Plan child = plan;
            child.shape.count = other.count;
            children.push_back(std::make_unique<Rank>(comm, child));
        }
        std::mt19937_64 random(seed); /* the same on all ranks */
        ftcclResult_t result = ftcclSuccess;
        for (uint64_t round = 0; round < page.end && result == ftcclSuccess; round++) {
            if (rank.me == 0 && page.enough && page.end == UINT64_MAX)
                page.end = round + 256;
            size_t which = random() % 12;
            Rank &caller = which < children.size() ? *children[which] : rank;
            result = caller.round(round);
            EXPECT_OK(result) << "round " << round << ": " << ftcclGetLastError(caller.comm);
            EXPECT_EQ(caller.wrong, "") << caller.plan.shape.count;
        }
        meeting.wait(); // a slower rank may still be in a call of a child
        for (size_t k = 0; k < children.size(); k++) {
            size_t found = short_calls(getpid(), 4, others[k].count);
            EXPECT_EQ(found, 0u) << "calls with option " << others[k].name << " were short";
            EXPECT_OK(ftcclCommDestroy(children[k]->comm));
        }
        return result;
    };
    event.ended = [](Rank &rank, ftcclResult_t result) {
        EXPECT_EQ(result, ftcclSuccess) << ftcclGetLastError(rank.comm);
    };
    strike_threads(dice, 4, plan, event);
}

} // namespace

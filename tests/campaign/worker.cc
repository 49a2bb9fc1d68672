/*
 * A worker. It makes calls, drawn from a seed that all ranks share, until one fails. Then it goes
 * on as the manual says: Shrink, as often as needed. If a Shrink, Agree or Grow meets another kind
 * of agreement on other ranks, all of them get RemoteError. So everything except a recovery begins
 * with an Agree, and a rank that gets this error recovers.
 */
#include <dirent.h>
#include <malloc.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <fstream>
#include <thread>

#include "tests/campaign/campaign.h"

namespace campaign
{

#define X(name) #name,
const char *const call_names[] = {CAMPAIGN_CALLS(X)};
#undef X

int64_t now_ns()
{
    timespec t{};
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000LL + t.tv_nsec;
}

int slowdown()
{
    const char *text = getenv("FT_TEST_SLOWDOWN");
    return text && atoi(text) > 1 ? atoi(text) : 1;
}

uint64_t mix(uint64_t x)
{
    x += 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

std::string to_hex(const ftcclUniqueId &id)
{
    std::string text;
    char two[3];
    for (char c : id.internal) {
        snprintf(two, sizeof two, "%02x", static_cast<unsigned char>(c));
        text += two;
    }
    return text;
}

ftcclUniqueId from_hex(const std::string &text)
{
    ftcclUniqueId id{};
    for (size_t i = 0; i < sizeof id.internal && 2 * i + 1 < text.size(); i++)
        id.internal[i] = static_cast<char>(std::stoi(text.substr(2 * i, 2), nullptr, 16));
    return id;
}

namespace
{

struct Worker {
    WorkerOptions options;
    Page *page = nullptr;
    World world;
    uint64_t handled = 0; /* serial of the last control that was obeyed */
    long descriptors = 0, threads = 0, rss = 0;
};

/* A line at once, in one piece. */
void say(const char *format, ...) __attribute__((format(printf, 1, 2)));
void say(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    vprintf(format, arguments);
    va_end(arguments);
    putchar('\n');
    fflush(stdout);
}

long entries(const char *path)
{
    long count = 0;
    DIR *folder = opendir(path);
    if (!folder)
        return -1;
    while (dirent *entry = readdir(folder))
        count += entry->d_name[0] != '.';
    closedir(folder);
    return count;
}

long resident_kib()
{
    std::ifstream status("/proc/self/status");
    for (std::string word; status >> word;) {
        long kib = 0;
        if (word == "VmRSS:" && status >> kib)
            return kib;
    }
    return -1;
}

void announce(Worker &me, Call call)
{
    me.page->call[me.options.wid].store(static_cast<uint32_t>(call), std::memory_order_relaxed);
}

ftcclResult_t failed(ftcclResult_t result, Call call)
{
    say("E %lld %d %s %s", static_cast<long long>(now_ns()), result, call_names[call],
        ftcclGetLastError(nullptr));
    return result;
}

/* The first operation of a communicator: who is here, which generation, which controls were
 * obeyed. */
ftcclResult_t meet(Worker &me)
{
    World &w = me.world;
    struct Card {
        int64_t wid, gen, handled;
    };
    ftcclCommCount(w.comm, &w.n);
    ftcclCommUserRank(w.comm, &w.rank);
    w.issued = w.done = 0;
    std::vector<Card> endpoints(static_cast<size_t>(w.n));
    Card mine{me.options.wid, static_cast<int64_t>(w.gen), static_cast<int64_t>(me.handled)};
    ftcclResult_t result = finish_ops(
        w, ftcclAllGather(&mine, endpoints.data(), 3, ftcclInt64, w.comm, w.stream), 1);
    if (result != ftcclSuccess)
        return result;
    w.members.clear();
    for (const Card &endpoint : endpoints) {
        w.members.push_back(static_cast<int>(endpoint.wid));
        w.gen = std::max(w.gen, static_cast<uint64_t>(endpoint.gen));
        me.handled = std::max(me.handled, static_cast<uint64_t>(endpoint.handled));
    }
    int64_t one = 1;
    result = finish_ops(w, ftcclAllReduce(&one, &one, 1, ftcclInt64, ftcclSum, w.comm, w.stream),
                        1);
    if (result != ftcclSuccess)
        return result;
    if (one != w.n)
        complain("the first sum of %d ranks is %lld", w.n, static_cast<long long>(one));
    std::string text;
    for (int wid : w.members)
        text += " " + std::to_string(wid);
    say("M %llu %lld %d%s", static_cast<unsigned long long>(w.gen),
        static_cast<long long>(now_ns()), w.rank, text.c_str());
    return ftcclSuccess;
}

[[noreturn]] void leave(Worker &me, const char *why, int status)
{
    say("X %s %s", why, ftcclGetLastError(nullptr));
    if (me.world.comm)
        ftcclCommAbort(me.world.comm);
    if (me.world.stream)
        ftcclStreamDestroy(me.world.stream);
    fflush(stdout);
    _exit(status);
}

void tell_decision(const Worker &me)
{
    const World &w = me.world;
    uint64_t op = 0;
    std::vector<int> ranks(static_cast<size_t>(w.n));
    int count = 0;
    ftcclCommGetLastAgreedOp(w.comm, &op);
    ftcclCommGetFailedRanks(w.comm, ranks.data(), w.n, &count);
    std::string text;
    if (w.members.empty())
        return; /* never met: it does not know who they are */
    for (int i = 0; i < count; i++)
        text += " " + std::to_string(w.members[static_cast<size_t>(ranks[static_cast<size_t>(i)])]);
    say("D %llu %llu %llu %llu %d%s", static_cast<unsigned long long>(w.gen),
        static_cast<unsigned long long>(op), static_cast<unsigned long long>(w.done),
        static_cast<unsigned long long>(w.issued), count, text.c_str());
}

/* Shrinks until it is in a communicator that works. */
void recover(Worker &me)
{
    announce(me, CALL_Shrink);
    for (int mixed = 0;;) {
        World &w = me.world;
        ftcclComm_t child = nullptr;
        int flags = me.options.seed % 2 ? FTCCL_SHRINK_ABORT : FTCCL_SHRINK_DEFAULT;
        ftcclResult_t result = ftcclCommShrink(w.comm, nullptr, 0, &child, nullptr, flags);
        const char *sentence = ftcclGetLastError(nullptr);
        if (result == ftcclRemoteError && strstr(sentence, "different calls") && ++mixed < 16)
            continue;
        if (result == ftcclInvalidUsage)
            leave(me, strstr(sentence, "on the list") ? "excluded" : "fenced", 3);
        if (result == ftcclSystemError)
            leave(me, "noquorum", 4);
        if (result != ftcclSuccess) {
            complain("Shrink gives %d: %s", result, sentence);
            leave(me, "failed", 5);
        }
        tell_decision(me);
        ftcclResult_t freed = ftcclCommDestroy(w.comm);
        if (ftcclGetErrorClass(freed) != ftcclClassSuccess &&
            ftcclGetErrorClass(freed) != ftcclClassRecoverable)
            complain("Destroy of a failed communicator gives %d: %s", freed,
                     ftcclGetLastError(nullptr));
        w.comm = child;
        w.gen++;
        w.members.clear();
        mixed = 0;
        result = meet(me);
        if (result == ftcclSuccess)
            return;
        failed(result, CALL_Shrink);
        if (ftcclGetErrorClass(result) == ftcclClassFatal)
            complain("the first operation after a shrink gives %d: %s", result,
                     ftcclGetLastError(w.comm));
    }
}

ftcclResult_t grow(Worker &me, uint64_t control)
{
    World &w = me.world;
    uint64_t flags = 1;
    int joiners = static_cast<int>(control & 0xffff);
    announce(me, CALL_Grow);
    ftcclResult_t result = ftcclCommAgree(w.comm, &flags);
    int dead = 0;
    ftcclCommGetFailedRanks(w.comm, nullptr, 0, &dead); /* the same everywhere, by the agreement */
    if (result != ftcclSuccess)
        return result;
    if (dead > 0)
        return ftcclRemoteError;
    ftcclUniqueId id;
    if (w.rank == 0) {
        result = ftcclCommGetUniqueId(w.comm, &id);
        if (result != ftcclSuccess)
            complain("CommGetUniqueId gives %d: %s", result, ftcclGetLastError(w.comm));
        say("G %llu %d %s", static_cast<unsigned long long>(control >> 32), w.n,
            to_hex(id).c_str());
    }
    ftcclComm_t child = nullptr;
    result = ftcclCommGrow(w.comm, w.n + joiners, w.rank == 0 ? &id : nullptr, -1, &child, nullptr);
    me.handled = control >> 32;
    say("H %llu %d %lld", static_cast<unsigned long long>(me.handled), result,
        static_cast<long long>(now_ns()));
    if (result != ftcclSuccess && ftcclGetErrorClass(result) != ftcclClassRecoverable &&
        !strstr(ftcclGetLastError(nullptr), "different calls"))
        complain("Grow gives %d: %s", result, ftcclGetLastError(nullptr));
    ftcclCommGetFailedRanks(w.comm, nullptr, 0, &dead);
    /* the parent is as good as before */
    if (result != ftcclSuccess)
        return dead > 0 || result == ftcclInvalidUsage ? result : ftcclSuccess;
    ftcclResult_t freed = ftcclCommDestroy(w.comm);
    if (ftcclGetErrorClass(freed) == ftcclClassFatal)
        complain("Destroy after a grow gives %d: %s", freed, ftcclGetLastError(nullptr));
    w.comm = child;
    w.gen++;
    w.members.clear();
    return meet(me);
}

[[noreturn]] void stop(Worker &me)
{
    World &w = me.world;
    announce(me, CALL_Finalize);
    ftcclResult_t result = ftcclCommFinalize(w.comm);
    if (result != ftcclSuccess && ftcclGetErrorClass(result) != ftcclClassRecoverable)
        complain("Finalize gives %d: %s", result, ftcclGetLastError(w.comm));
    result = ftcclCommDestroy(w.comm);
    if (result != ftcclSuccess && ftcclGetErrorClass(result) != ftcclClassRecoverable)
        complain("Destroy gives %d: %s", result, ftcclGetLastError(nullptr));
    ftcclStreamDestroy(w.stream);
    malloc_trim(0);
    say("Z %ld %ld %ld", entries("/proc/self/fd") - me.descriptors,
        entries("/proc/self/task") - me.threads, resident_kib() - me.rss);
    _exit(0);
}

/* Rank 0 tells what the driver wants; then everybody makes the same call. */
ftcclResult_t turn(Worker &me, uint64_t random, Call &call)
{
    World &w = me.world;
    uint64_t control = me.page->control.load(std::memory_order_acquire);
    announce(me, call = CALL_Broadcast);
    ftcclResult_t result = finish_ops(
        w, ftcclBroadcast(&control, &control, 1, ftcclUint64, 0, w.comm, w.stream), 1);
    if (result != ftcclSuccess)
        return result;
    uint32_t kind = control >> 32 > me.handled ? control >> 16 & 0xffff
                                               : static_cast<uint32_t>(CONTROL_NONE);
    if (kind == CONTROL_STOP)
        stop(me);
    if (kind == CONTROL_GROW) {
        call = CALL_Grow;
        return grow(me, control);
    }
    call = static_cast<Call>(mix(random) % RANDOM_CALLS);
    announce(me, call);
    return make_call(w, call, random);
}

void init(Worker &me)
{
    World &w = me.world;
    ftcclUniqueId id = from_hex(me.options.id);
    ftcclResult_t result = ftcclSuccess;
    announce(me, me.options.join ? CALL_Grow : CALL_Init);
    if (me.options.id.empty()) {
        result = ftcclGetUniqueId(&id);
        say("U %s", to_hex(id).c_str());
    }
    if (result == ftcclSuccess && me.options.join)
        result = ftcclCommGrow(nullptr, me.options.nranks, &id, me.options.rank, &w.comm, nullptr);
    else if (result == ftcclSuccess)
        result = ftcclCommInitRank(&w.comm, me.options.nranks, id, me.options.rank);
    if (result == ftcclSuccess) {
        w.gen = me.options.join ? 0 : 1;
        return;
    }
    if (ftcclGetErrorClass(result) != ftcclClassRecoverable)
        complain("%s gives %d: %s", me.options.join ? "join" : "init", result,
                 ftcclGetLastError(nullptr));
    w.comm = nullptr;
    leave(me, me.options.join ? "join" : "init", 6);
}

} // namespace

void complain(const char *format, ...)
{
    char text[1024];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    say("F %s", text);
}

ftcclResult_t finish_ops(World &world, ftcclResult_t enqueued, uint64_t collectives)
{
    ftcclResult_t result = enqueued;
    world.issued += collectives;
    if (result == ftcclSuccess)
        result = ftcclStreamSynchronize(world.stream);
    if (result == ftcclSuccess)
        world.done += collectives;
    return result;
}

/* Memory that the kernel has to tear down when the process dies. */
static void fill(size_t bytes)
{
    void *memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory != MAP_FAILED)
        memset(memory, 1, bytes);
}

int worker_main(const WorkerOptions &options)
{
    Worker me;
    me.options = options;
    void *page = mmap(nullptr, sizeof(Page), PROT_READ | PROT_WRITE, MAP_SHARED, options.page, 0);
    if (page == MAP_FAILED)
        return 1;
    me.page = static_cast<Page *>(page);
    close(options.page);
    /* it ends with the process, by SIGKILL */
    if (options.ballast_bytes)
        std::thread(fill, options.ballast_bytes).detach();
    me.descriptors = entries("/proc/self/fd");
    me.threads = entries("/proc/self/task");
    me.rss = resident_kib();
    if (ftcclStreamCreate(&me.world.stream) != ftcclSuccess)
        return 1;
    init(me);
    if (meet(me) != ftcclSuccess) {
        failed(ftcclRemoteError, options.join ? CALL_Grow : CALL_Init);
        recover(me);
    }
    for (uint64_t i = 0;; i++) {
        Call call = CALL_Idle;
        uint64_t gen = me.world.gen;
        ftcclResult_t result = turn(me, mix(options.seed + mix(gen * 1000003 + i)), call);
        if (result == ftcclSuccess) {
            me.page->rounds[options.wid].fetch_add(1, std::memory_order_relaxed);
        } else {
            failed(result, call);
            bool agrees = call == CALL_Agree || call == CALL_ShrinkList || call == CALL_Grow;
            if (result == ftcclSystemError && agrees)
                leave(me, "noquorum", 4);
            if (ftcclGetErrorClass(result) == ftcclClassFatal)
                complain("%s gives %d: %s", call_names[call], result,
                         ftcclGetLastError(me.world.comm));
            recover(me);
        }
        if (me.world.gen != gen)
            i = UINT64_MAX; /* the same from here on for ranks that joined */
    }
}

} // namespace campaign

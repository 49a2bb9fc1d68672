/*
 * A rank of the fault campaign. It repeats calls on the whole job's communicator, and in one step
 * does what its argument `act` says. Arguments are words NAME=VALUE.
 */
#include <dlfcn.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>

#include "tests/proc/diagnose_faults.h"

namespace
{

using faults::Words;

[[noreturn]] void wait_for_ever()
{
    char byte;
    while (read(STDIN_FILENO, &byte, 1) > 0) {}
    _exit(0);
}

/* The driver without a GPU, as far as a rank with buffers of the device needs it. */
struct Driver {
    void *library;
    explicit Driver(const std::string &path) : library(dlopen(path.c_str(), RTLD_NOW | RTLD_GLOBAL))
    {
        if (!library)
            _exit(7);
    }
    template <class... Arguments> void call(const char *name, Arguments... arguments) const
    {
        auto f = reinterpret_cast<int (*)(Arguments...)>(dlsym(library, name));
        if (!f || f(arguments...) != 0)
            _exit(8);
    }
    bool idle(void *stream) const
    {
        auto query = reinterpret_cast<int (*)(void *)>(dlsym(library, "cuStreamQuery"));
        return query(stream) == 0;
    }
    void block(void *stream) const
    {
        reinterpret_cast<void (*)(void *)>(dlsym(library, "standin_block"))(stream);
    }
};

struct Worker {
    Words words;
    int n, rank, step = 0;
    size_t count;
    ftcclComm_t comm = nullptr, half = nullptr, other = nullptr;
    ftcclStream_t stream = nullptr, second = nullptr;
    std::vector<float> beside = std::vector<float>(1000);
    std::vector<float> in, out;
    void *a, *b; /* buffers of the calls */
    std::unique_ptr<Driver> gpu;

    explicit Worker(const std::vector<std::string> &arguments)
    {
        for (const std::string &word : arguments)
            words[word.substr(0, word.find('='))] = word.substr(word.find('=') + 1);
        n = number("n");
        rank = number("rank");
        count = std::stoul(words["count"]);
        in.resize((count + 2) * static_cast<size_t>(n));
        out.resize(in.size());
        a = in.data();
        b = out.data();
        if (words.count("gpu"))
            use_gpu();
    }
    void use_gpu()
    {
        void *context;
        gpu = std::make_unique<Driver>(words["gpu"]);
        gpu->call("cuInit", 0u);
        gpu->call("cuDevicePrimaryCtxRetain", &context, 0);
        gpu->call("cuCtxSetCurrent", context);
        gpu->call("cuStreamCreate", reinterpret_cast<void **>(&stream), 1u);
        gpu->call("cuMemAlloc_v2", &a, in.size() * sizeof(float));
        gpu->call("cuMemAlloc_v2", &b, in.size() * sizeof(float));
    }
    int number(const std::string &name)
    {
        return words.count(name) ? std::stoi(words[name]) : 0;
    }
    void wait_for(ftcclResult_t enqueued, bool waits = true)
    {
        while (enqueued == ftcclSuccess && waits && gpu && !gpu->idle(stream)) {
            usleep(200);
            ftcclCommGetAsyncError(comm, &enqueued);
        }
        if (enqueued == ftcclSuccess && !gpu && waits)
            enqueued = ftcclStreamSynchronize(stream);
        if (enqueued == ftcclSuccess)
            return;
        printf("failed %d %s\n", enqueued, ftcclGetLastError(comm));
        wait_for_ever();
    }
};

/* ---- calls ----------------------------------------------------------------------------------- */

ftcclResult_t enqueue(Worker &me, const std::string &call, ftcclComm_t comm, size_t count, int root)
{
    void *a = me.a, *b = me.b;
    if (call == "Broadcast")
        return ftcclBroadcast(a, b, count, ftcclFloat, root, comm, me.stream);
    if (call == "Reduce")
        return ftcclReduce(a, b, count, ftcclFloat, ftcclSum, root, comm, me.stream);
    if (call == "AllGather")
        return ftcclAllGather(a, b, count, ftcclFloat, comm, me.stream);
    if (call == "ReduceScatter")
        return ftcclReduceScatter(a, b, count, ftcclFloat, ftcclSum, comm, me.stream);
    if (call == "AlltoAll")
        return ftcclAlltoAll(a, b, count, ftcclFloat, comm, me.stream);
    return ftcclAllReduce(a, b, count, ftcclFloat, ftcclSum, comm, me.stream);
}

std::string call_of(Worker &me)
{
    static const char *const mixed[] = {"AllReduce", "AllGather", "Broadcast", "ReduceScatter"};
    return me.words["call"] == "mixed" ? mixed[me.step % 4] : me.words["call"];
}

void make_call(Worker &me)
{
    ftcclComm_t comm = me.words["on"] == "half" ? me.half : me.comm;
    if (me.second) /* another call goes on beside it */
        me.wait_for(ftcclAllReduce(me.beside.data(), me.beside.data(), me.beside.size(), ftcclFloat,
                                   ftcclSum, me.other, me.second),
                    false);
    me.wait_for(enqueue(me, call_of(me), comm, me.count, 0));
    if (me.second)
        me.wait_for(ftcclStreamSynchronize(me.second), false);
}

/* ---- what goes wrong ------------------------------------------------------------------------- */

void do_sleep(Worker &)
{
    for (;;)
        sleep(1000);
}

void do_spin(Worker &)
{
    for (volatile unsigned i = 0;; i = i + 1) {}
}

void do_read_fifo(Worker &me)
{
    std::string path = me.words["fifo"];
    char byte;
    int fd = open(path.c_str(), O_RDWR | O_CLOEXEC); /* nobody writes */
    if (fd < 0 || read(fd, &byte, 1) < 0)
        _exit(9);
    wait_for_ever();
}

void do_wait_for_child(Worker &)
{
    pid_t child = fork();
    if (child == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        raise(SIGSTOP);
        _exit(0);
    }
    printf("child %d\n", child);
    waitpid(child, nullptr, 0);
    wait_for_ever();
}

void do_leave(Worker &me)
{
    ftcclCommDestroy(me.other);
    ftcclCommDestroy(me.half);
    ftcclCommDestroy(me.comm);
    wait_for_ever();
}

/* It is in a call of the other communicator, in which nobody is. */
void do_cross(Worker &me)
{
    me.wait_for(enqueue(me, "AllReduce", me.other, me.count, 0));
}

void do_skip(Worker &me)
{
    me.step++;
}

void do_odd_count(Worker &me)
{
    me.wait_for(enqueue(me, call_of(me), me.comm, me.count + 1, 0));
}

void do_odd_type(Worker &me)
{
    me.wait_for(ftcclAllReduce(me.a, me.b, me.count, ftcclInt32, ftcclSum, me.comm, me.stream));
}

void do_odd_root(Worker &me)
{
    me.wait_for(enqueue(me, call_of(me), me.comm, me.count, 1));
}

/* A send to `peer`, which does not receive; the others rest. */
void do_send(Worker &me)
{
    std::vector<char> data(64 << 20);
    me.wait_for(
        ftcclSend(data.data(), data.size(), ftcclInt8, me.number("peer"), me.comm, me.stream));
    wait_for_ever();
}

/* What is enqueued from now on does not begin. */
void do_hold_stream(Worker &me)
{
    me.gpu->block(me.stream);
}

/* A copy that never ends comes before: it reads a page at which its thread falls asleep. */
void do_endless_work(Worker &me)
{
    struct sigaction action = {};
    action.sa_handler = [](int) {
        for (;;)
            sleep(1000);
    };
    sigaction(SIGSEGV, &action, nullptr);
    void *pinned;
    me.gpu->call("cuMemHostAlloc", &pinned, size_t{16384}, 0u);
    size_t page = (reinterpret_cast<size_t>(pinned) + 4095) & ~size_t{4095};
    mprotect(reinterpret_cast<void *>(page), 4096, PROT_NONE);
    me.gpu->call("cuMemcpyAsync", me.a, page, sizeof(float), static_cast<void *>(me.stream));
}

void do_rest(Worker &)
{
    wait_for_ever();
}

void do_pause(Worker &)
{
    usleep(2000000);
}

/* These happen in each step, and there is time for them. */
void each_slow(Worker &me)
{
    usleep(static_cast<useconds_t>(me.number("compute") * 3 / 10));
}

void each_jitter(Worker &me)
{
    static std::mt19937 random(static_cast<unsigned>(me.rank));
    usleep(random() % static_cast<unsigned>(me.number("compute") / 10 + 1));
}

void each_checkpoint(Worker &me)
{
    if (me.step % 50 == 25)
        usleep(300000);
}

const std::map<std::string, void (*)(Worker &)> once = {
    {"sleep", do_sleep},         {"spin", do_spin},
    {"fifo", do_read_fifo},      {"child", do_wait_for_child},
    {"leave", do_leave},         {"cross", do_cross},
    {"skip", do_skip},           {"odd_count", do_odd_count},
    {"odd_type", do_odd_type},   {"odd_root", do_odd_root},
    {"send", do_send},           {"rest", do_rest},
    {"pause", do_pause},         {"hold", do_hold_stream},
    {"endless", do_endless_work}};
const std::map<std::string, void (*)(Worker &)> each = {
    {"slow", each_slow}, {"jitter", each_jitter}, {"checkpoint", each_checkpoint}};

/* ---- the life of a rank ---------------------------------------------------------------------- */

void join(Worker &me)
{
    std::string ns = me.words["ns"];
    int fd = ns.empty() ? -1 : open(ns.c_str(), O_RDONLY | O_CLOEXEC);
    if (!ns.empty() && (fd < 0 || setns(fd, CLONE_NEWNET) != 0))
        _exit(3);
    ftcclUniqueId id;
    char hex[1024];
    if (me.number("makes_id")) {
        if (ftcclGetUniqueId(&id) != ftcclSuccess)
            _exit(4);
        printf("%s\n", proc::hex(id).c_str());
    } else {
        if (!fgets(hex, sizeof hex, stdin))
            _exit(5);
        id = proc::unhex(hex);
    }
    printf("joins\n");
    if (!me.gpu)
        ftcclStreamCreate(&me.stream);
    if (me.number("overlap"))
        ftcclStreamCreate(&me.second);
    me.wait_for(ftcclCommInitRank(&me.comm, me.n, id, me.rank));
    me.wait_for(ftcclCommSplit(me.comm, 2 * me.rank / me.n, me.rank, &me.half, nullptr));
    me.wait_for(ftcclCommSplit(me.comm, 0, me.rank, &me.other, nullptr));
}

void act(Worker &me)
{
    auto all = each.find(me.words["act"]);
    if (all != each.end())
        all->second(me);
    auto found = once.find(me.words["act"]);
    if (me.step != me.number("step") || found == once.end())
        return;
    printf("fault %.6f\n", proc::now());
    found->second(me);
}

double used_us()
{
    timespec used;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &used);
    return 1e6 * static_cast<double>(used.tv_sec) + 1e-3 * static_cast<double>(used.tv_nsec);
}

/* A fixed amount of work, however long it takes. */
void work(int us)
{
    for (double end = used_us() + us; used_us() < end;)
        for (volatile unsigned i = 0; i < 10000; i = i + 1) {}
}

CHILD(faulty)
{
    prctl(PR_SET_PDEATHSIG, SIGKILL); /* it ends with the driver */
    Worker me(arguments);
    join(me);
    int compute = me.number("compute"), last = me.number("last"), working = me.number("work");
    for (;; me.step++) {
        if (me.step == 3)
            printf("running\n");
        act(me);
        if (last && me.step >= last)
            wait_for_ever();
        if (compute)
            usleep(static_cast<useconds_t>(compute));
        if (working)
            work(working);
        make_call(me);
    }
}

} // namespace

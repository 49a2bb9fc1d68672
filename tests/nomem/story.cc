/* See story.h. */
#include "tests/nomem/story.h"

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "tests/proc/proc.h"

extern "C" {
int __lsan_do_recoverable_leak_check(void) __attribute__((weak));
void ft_fail_clear(void);     /* the last sentence of this thread */
void ft_bootstrap_stop(void); /* an id that was not used is served for minutes */
}

namespace nomem
{

class Rank
{
  public:
    Rank(const Run &r, const Story &s, int rank)
        : run(r), story(s), me(rank), readiness(*r.readiness), out(r.readiness->rank[rank])
    {
    }
    void meet() const
    {
        pthread_barrier_wait(&readiness.barrier);
    }
    /* Makes a call unless one has failed; the first that fails is kept, and ends this rank's part:
     * its peers must not wait for it. */
    bool ok(const char *step, const std::function<ftcclResult_t()> &call);
    bool is_good() const
    {
        return out.result == ftcclSuccess && !left_out;
    }
    /* The communicators and the stream of this rank go. */
    void destroy(ftcclComm_t *comm);
    void abort_all();
    bool reduce(const char *step, ftcclComm_t comm, size_t count, int least, int most);
    void wrong(const char *step, int got, int want);
    ftcclResult_t finish() const
    {
        return ftcclStreamSynchronize(stream);
    }

    const Run &run;
    const Story &story;
    int me;
    Board &readiness;
    Outcome &out;
    ftcclStream_t stream = nullptr;
    ftcclComm_t world = nullptr, child = nullptr;
    bool left_out = false; /* another rank's failure leaves nothing to do */
};

bool Rank::ok(const char *step, const std::function<ftcclResult_t()> &call)
{
    if (!is_good())
        return false;
    ft_fail_clear();
    double start = proc::now();
    ftcclResult_t result = call();
    double took = proc::now() - start;
    if (took > out.slowest_s) {
        out.slowest_s = took;
        snprintf(out.slowest, sizeof out.slowest, "%s", step);
    }
    if (result == ftcclSuccess)
        return true;
    snprintf(out.step, sizeof out.step, "%s", step);
    snprintf(out.text, sizeof out.text, "%s", ftcclGetLastError(nullptr));
    for (ftcclComm_t comm : {child, world})
        if (comm != nullptr && !*out.text)
            snprintf(out.text, sizeof out.text, "%s", ftcclGetLastError(comm));
    if (!*out.text)
        wrong("a sentence", 0, 1);
    out.result = result;
    abort_all();
    return false;
}

void Rank::wrong(const char *step, int got, int want)
{
    snprintf(out.wrong, sizeof out.wrong, "%s: %d instead of %d", step, got, want);
}

void Rank::destroy(ftcclComm_t *comm)
{
    ftcclComm_t gone = *comm;
    if (gone == nullptr)
        return;
    ok("destroy", [&] {
        *comm = nullptr;
        return ftcclCommDestroy(gone);
    });
}

void Rank::abort_all()
{
    for (ftcclComm_t *comm : {&child, &world}) {
        if (*comm != nullptr)
            ftcclCommAbort(*comm);
        *comm = nullptr;
    }
}

/* Ones are summed: the result is the number of those who took part. */
bool Rank::reduce(const char *step, ftcclComm_t comm, size_t count, int least, int most)
{
    std::vector<int> data(count, 1);
    bool good = ok(step, [&] {
        ftcclResult_t result = ftcclAllReduce(data.data(), data.data(), count, ftcclInt, ftcclSum,
                                              comm, stream);
        return result == ftcclSuccess ? finish() : result;
    });
    for (size_t i = 0; good && i < count; i++)
        if (data[i] < least || data[i] > most || data[i] != data[0])
            wrong(step, data[i], most);
    return good;
}

namespace
{

/* Rank 0 makes id number `which`, all learn it; false: there is none. */
bool share_id(Rank &r, int which, const std::function<ftcclResult_t(ftcclUniqueId *)> &make)
{
    if (r.me == 0)
        r.readiness.has_id[which] = r.ok("id", [&] { return make(&r.readiness.id[which]); });
    r.meet();
    r.left_out |= !r.readiness.has_id[which];
    return r.is_good();
}

void init_all(Rank &r)
{
    if (!share_id(r, 0, ftcclGetUniqueId))
        return;
    r.ok("init", [&] { return ftcclCommInitRank(&r.world, RANKS, r.readiness.id[0], r.me); });
    r.ok("stream", [&] { return ftcclStreamCreate(&r.stream); });
}

/* One of every kind of collective, with buffers of RANKS * count. */
void collectives(Rank &r, size_t count)
{
    std::vector<float> in(RANKS * count, 1), out(RANKS * count);
    float *a = in.data(), *b = out.data();
    ftcclComm_t c = r.world;
    ftcclStream_t s = r.stream;
    const std::function<ftcclResult_t()> calls[] = {
        [&] { return ftcclAllGather(a, b, count, ftcclFloat, c, s); },
        [&] { return ftcclReduceScatter(a, b, count, ftcclFloat, ftcclAvg, c, s); },
        [&] { return ftcclBroadcast(a, b, count, ftcclFloat, 1, c, s); },
        [&] { return ftcclReduce(a, b, count, ftcclFloat, ftcclMax, 2, c, s); },
        [&] { return ftcclAlltoAll(a, b, count, ftcclFloat, c, s); },
        [&] { return ftcclGather(a, b, count, ftcclFloat, 0, c, s); },
        [&] { return ftcclScatter(a, b, count, ftcclFloat, 0, c, s); },
        [&] { return r.finish(); },
    };
    for (const auto &call : calls)
        r.ok("collectives", call);
}

/* Many small reductions as one group, on as many streams. */
void group(Rank &r, int n)
{
    std::vector<int> data(static_cast<size_t>(n), 1);
    std::vector<ftcclStream_t> streams(static_cast<size_t>(n));
    for (auto &s : streams)
        r.ok("streams", [&] { return ftcclStreamCreate(&s); });
    bool good = r.ok("group", [&] {
        ftcclGroupStart();
        for (size_t i = 0; i < data.size(); i++)
            ftcclAllReduce(&data[i], &data[i], 1, ftcclInt, ftcclSum, r.world, streams[i]);
        ftcclResult_t result = ftcclGroupEnd();
        for (ftcclStream_t s : streams)
            result = result == ftcclSuccess ? ftcclStreamSynchronize(s) : result;
        return result;
    });
    for (int value : data)
        if (good && value != RANKS)
            r.wrong("group", value, RANKS);
    for (ftcclStream_t s : streams)
        if (s != nullptr)
            ftcclStreamDestroy(s);
}

/* To the next rank, from the one before, and to itself. */
void point_to_point(Rank &r, size_t count)
{
    std::vector<int> out(count, r.me), in(count, -1), self(count, -1);
    int next = (r.me + 1) % RANKS, before = (r.me + RANKS - 1) % RANKS;
    bool good = r.ok("point-to-point", [&] {
        ftcclGroupStart();
        ftcclSend(out.data(), count, ftcclInt, next, r.world, r.stream);
        ftcclRecv(in.data(), count, ftcclInt, before, r.world, r.stream);
        ftcclSend(out.data(), count, ftcclInt, r.me, r.world, r.stream);
        ftcclRecv(self.data(), count, ftcclInt, r.me, r.world, r.stream);
        ftcclResult_t result = ftcclGroupEnd();
        return result == ftcclSuccess ? r.finish() : result;
    });
    if (good && (in[count - 1] != before || self[0] != r.me))
        r.wrong("point-to-point", in[count - 1], before);
}

void one_sided(Rank &r)
{
    int mine[RANKS] = {}, next = (r.me + 1) % RANKS, before = (r.me + RANKS - 1) % RANKS;
    ftcclWindow_t window = nullptr;
    r.ok("window", [&] { return ftcclCommWindowRegister(r.world, mine, sizeof mine, &window, 0); });
    int value = 7;
    bool good = r.ok("put", [&] {
        ftcclWaitSignalDesc_t wait = {1, before, 0, 0};
        ftcclResult_t result = ftcclPutSignal(&value, 1, ftcclInt, next, window,
                                              static_cast<size_t>(r.me) * sizeof(int), 0, 0, 0,
                                              r.world, r.stream);
        if (result == ftcclSuccess)
            result = ftcclWaitSignal(1, &wait, r.world, r.stream);
        return result == ftcclSuccess ? r.finish() : result;
    });
    if (good && mine[before] != 7)
        r.wrong("put", mine[before], 7);
    if (r.reduce("after put", r.world, 1, RANKS, RANKS))
        r.ok("window's end", [&] { return ftcclCommWindowDeregister(r.world, window); });
}

/* What is taken with memory: buffers, handles, operators. */
void memory(Rank &r)
{
    const size_t count = 65536;
    void *buffer = nullptr, *handle = nullptr;
    ftcclRedOp_t twice;
    float two = 2;
    r.ok("MemAlloc", [&] { return ftcclMemAlloc(&buffer, RANKS * count * sizeof(float)); });
    r.ok("Register", [&] {
        return ftcclCommRegister(r.world, buffer, RANKS * count * sizeof(float), &handle);
    });
    r.ok("RedOpCreate", [&] {
        return ftcclRedOpCreatePreMulSum(&twice, &two, ftcclFloat, ftcclScalarHostImmediate,
                                         r.world);
    });
    float *data = static_cast<float *>(buffer);
    if (r.is_good())
        std::fill(data, data + RANKS * count, 1.0f);
    bool good = r.ok("lent", [&] {
        ftcclResult_t result = ftcclAllGather(data + static_cast<size_t>(r.me) * count, data, count,
                                              ftcclFloat, r.world, r.stream);
        if (result == ftcclSuccess)
            result = ftcclAllReduce(data, data, count, ftcclFloat, twice, r.world, r.stream);
        return result == ftcclSuccess ? r.finish() : result;
    });
    if (good && data[count - 1] != 2.0f * RANKS)
        r.wrong("operator", static_cast<int>(data[count - 1]), 2 * RANKS);
    r.ok("RedOpDestroy", [&] { return ftcclRedOpDestroy(twice, r.world); });
    r.ok("Deregister", [&] { return ftcclCommDeregister(r.world, handle); });
    if (buffer != nullptr && ftcclMemFree(buffer) != ftcclSuccess)
        r.wrong("MemFree", 1, 0);
}

/* Two children at once: of ranks 0 and 1, and of rank 2 alone. */
void split(Rank &r)
{
    r.ok("split", [&] { return ftcclCommSplit(r.world, r.me / 2, -r.me, &r.child, nullptr); });
    int size = r.me < 2 ? 2 : 1;
    r.reduce("child's reduce", r.child, 10, size, size);
    r.destroy(&r.child);
    r.ok("split without color", [&] {
        return ftcclCommSplit(r.world, r.me == 2 ? FTCCL_SPLIT_NOCOLOR : 0, 0, &r.child, nullptr);
    });
    r.destroy(&r.child);
}

void tell_calls(Rank &r)
{
    init_all(r);
    for (int i = 0; i < 3; i++)
        r.reduce("reduce", r.world, 1, RANKS, RANKS);
    r.reduce("large reduce", r.world, 300000, RANKS, RANKS);
    collectives(r, 100);
    collectives(r, 50000);
    group(r, 20);
    point_to_point(r, 10);
    point_to_point(r, 100000);
    memory(r);
    one_sided(r);
    split(r);
    r.destroy(&r.world);
}

/* Rank 2 leaves; the others learn it, agree, go on without it and take it in again. */
void tell_survive(Rank &r)
{
    uint64_t flags = 7;
    r.ok("agree", [&] { return ftcclCommAgree(r.world, &flags); });
    if (r.me == 2)
        r.abort_all();
    int one = 1;
    ftcclResult_t lost = ftcclSuccess;
    if (r.me < 2)
        r.ok("lost", [&] {
            lost = ftcclAllReduce(&one, &one, 1, ftcclInt, ftcclSum, r.world, r.stream);
            if (lost == ftcclSuccess)
                lost = r.finish();
            return ftcclGetErrorClass(lost) == ftcclClassRecoverable ? ftcclSuccess : lost;
        });
    if (r.me < 2 && r.is_good() && lost == ftcclSuccess)
        r.wrong("lost", 1, 0);
    if (r.me < 2)
        r.ok("shrink", [&] {
            return ftcclCommShrink(r.world, nullptr, 0, &r.child, nullptr, FTCCL_SHRINK_DEFAULT);
        });
    if (r.me < 2)
        r.reduce("shrunk reduce", r.child, 10, 1, 2);
    bool has_id = share_id(r, 1,
                           [&](ftcclUniqueId *id) { return ftcclCommGetUniqueId(r.child, id); });
    ftcclComm_t grown = nullptr;
    if (!has_id)
        r.abort_all();
    if (has_id)
        r.ok("grow", [&] {
            return ftcclCommGrow(r.child, RANKS, r.me == 1 ? nullptr : &r.readiness.id[1],
                                 r.me == 2 ? 2 : -1, &grown, nullptr);
        });
    r.destroy(&r.child);
    r.child = grown;
    if (has_id)
        r.reduce("grown reduce", r.child, 10, RANKS, RANKS);
    r.destroy(&r.child);
    r.destroy(&r.world);
}

/* Rank 2 leaves, and the others' calls go on. */
void tell_retry(Rank &r)
{
    r.reduce("reduce", r.world, 10, 2, RANKS);
    if (r.me == 2)
        r.abort_all();
    for (int i = 0; i < 3 && r.me < 2; i++)
        r.reduce("repeated reduce", r.world, i == 1 ? 100000 : 10, 1, 2);
    r.destroy(&r.world);
}

/* Calls that return before they are done. */
void tell_nonblocking(Rank &r)
{
    ftcclConfig_t config = FTCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    auto over = [](ftcclResult_t result, ftcclComm_t comm) {
        double start = proc::now();
        bool began = result == ftcclInProgress;
        while (result == ftcclInProgress && proc::now() - start < 30) {
            poll(nullptr, 0, 1);
            if (ftcclCommGetAsyncError(comm, &result) != ftcclSuccess)
                return ftcclInternalError;
        }
        if (began)
            ft_fail_clear(); /* the communicator has the sentence */
        return result;
    };
    if (share_id(r, 0, ftcclGetUniqueId))
        r.ok("init", [&] {
            ftcclResult_t result = ftcclCommInitRankConfig(&r.world, RANKS, r.readiness.id[0], r.me,
                                                           &config);
            return over(result, r.world);
        });
    r.ok("stream", [&] { return ftcclStreamCreate(&r.stream); });
    r.reduce("reduce", r.world, 10, RANKS, RANKS);
    r.ok("split", [&] { return over(ftcclCommSplit(r.world, 0, 0, &r.child, nullptr), r.world); });
    r.reduce("child's reduce", r.child, 10, RANKS, RANKS);
    r.destroy(&r.child);
    r.ok("finalize", [&] { return over(ftcclCommFinalize(r.world), r.world); });
    r.destroy(&r.world);
}

/* A new communicator in the same processes, when nothing fails any more. */
void fresh(Rank &r, int which)
{
    ftcclResult_t before = r.out.result;
    std::string step = r.out.step, text = r.out.text;
    r.out.result = ftcclSuccess;
    r.left_out = false;
    if (r.stream != nullptr)
        r.finish(); /* gives what the calls before left */
    double start = proc::now();
    if (share_id(r, which, ftcclGetUniqueId))
        r.ok("init",
             [&] { return ftcclCommInitRank(&r.world, RANKS, r.readiness.id[which], r.me); });
    r.out.fresh_s = proc::now() - start;
    if (r.stream == nullptr)
        r.ok("stream", [&] { return ftcclStreamCreate(&r.stream); });
    r.reduce("reduce", r.world, 10, RANKS, RANKS);
    r.destroy(&r.world);
    r.out.fresh = r.out.result;
    snprintf(r.out.fresh_step, sizeof r.out.fresh_step, "%s", r.out.step);
    snprintf(r.out.fresh_text, sizeof r.out.fresh_text, "%s", r.out.text);
    r.out.result = before;
    snprintf(r.out.step, sizeof r.out.step, "%s", step.c_str());
    snprintf(r.out.text, sizeof r.out.text, "%s", text.c_str());
}

void live_one(const Run &run, const Story &story, int rank)
{
    Rank r(run, story, rank);
    bool arms = run.threads ? rank == 0 : rank == run.victim;
    if (!story.armed_init) {
        init_all(r);
        r.reduce("first reduce", r.world, 1, RANKS, RANKS); /* now there are links */
    }
    r.meet();
    if (arms)
        arm(run.which, run.n);
    r.meet();
    story.tell(r);
    r.abort_all();
    r.meet();
    if (arms)
        disarm();
    r.meet();
    fresh(r, 2);
    if (r.stream != nullptr && ftcclStreamDestroy(r.stream) != ftcclSuccess)
        r.wrong("StreamDestroy", 1, 0);
}

Held held_now()
{
    Held held = {};
    std::string names = proc::descriptor_names();
    held.descriptors = proc::descriptors();
    /* a process keeps its arena, from the first use of shared memory on */
    for (size_t at = 0; (at = names.find("ftccl-arena", at)) != std::string::npos; at++)
        held.descriptors--;
    held.threads = proc::threads();
    held.names = static_cast<int>(proc::shm_of(getpid()).size());
    snprintf(held.list, sizeof held.list, "%s", names.c_str());
    return held;
}

/* What goes by itself gets some time. */
Held held_at_end(const Held &before)
{
    ft_bootstrap_stop();
    double start = proc::now();
    Held held = held_now();
    while ((held.descriptors > before.descriptors || held.threads > before.threads) &&
           proc::now() - start < 3) {
        poll(nullptr, 0, 5);
        held = held_now();
    }
    held.descriptors -= before.descriptors;
    held.threads -= before.threads;
    held.leaks = __lsan_do_recoverable_leak_check ? __lsan_do_recoverable_leak_check() : 0;
    return held;
}

} // namespace

const std::vector<Story> stories = {
    {"calls", {"FTCCL_PRESERVE_INPUT", "1"}, true, tell_calls},
    {"survive", {}, false, tell_survive},
    {"retry", {"FTCCL_FAILURE_POLICY", "retry"}, false, tell_retry},
    {"nonblocking", {}, true, tell_nonblocking},
};

void live(const Run &run, const Story &story, int rank)
{
    for (int i = 0; i < 8 && story.env[i] != nullptr; i += 2)
        setenv(story.env[i], story.env[i + 1], 1);
    Held before = held_now();
    if (run.threads)
        proc::in_threads(RANKS, [&](int r) { live_one(run, story, r); });
    else
        live_one(run, story, rank);
    if (run.threads || rank == run.victim) {
        for (int c = 0; c < CLASSES; c++)
            run.readiness->calls[c] = counted(static_cast<Class>(c));
        snprintf(run.readiness->failed_call, sizeof run.readiness->failed_call, "%s",
                 failed_call().c_str());
    }
    run.readiness->held[rank] = held_at_end(before);
}

} // namespace nomem

/*
 * Property: calls on streams that are being captured become part of the CUDA graph, and each launch
 * of the graph does what the calls would do, in the order of the streams. A graph keeps its
 * communicator's memory, and nothing else of it. Whether graph or communicator is destroyed first,
 * or a rank dies, streams go on (release) or stop until the abort (hold), and errors are reported.
 * Method: ranks as threads and as processes on the stand-in driver, whose graphs run unordered
 * nodes concurrently.
 */
#include <signal.h>

#include <atomic>
#include <memory>

#include "tests/cuda/ranks.h"

namespace
{

using namespace gpu;

CUgraphExec instantiate(CUgraph graph)
{
    CUgraphExec exec = nullptr;
    EXPECT_EQ(cuGraphInstantiate(&exec, graph, 0), CUDA_SUCCESS);
    return exec;
}

/* What `calls` puts on the stream, as a graph. */
template <class F>
CUgraph capture(CUstream stream, F calls,
                CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_THREAD_LOCAL)
{
    CUgraph graph = nullptr;
    EXPECT_EQ(cuStreamBeginCapture(stream, mode), CUDA_SUCCESS);
    calls();
    EXPECT_EQ(cuStreamEndCapture(stream, &graph), CUDA_SUCCESS);
    return graph;
}

/* One that can be launched. */
struct Captured {
    CUgraph graph;
    CUgraphExec exec;
    template <class F>
    Captured(CUstream stream, F calls,
             CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_THREAD_LOCAL)
        : graph(capture(stream, calls, mode)), exec(instantiate(graph))
    {
    }
    ~Captured()
    {
        cuGraphExecDestroy(exec);
        cuGraphDestroy(graph);
    }
    Captured(const Captured &) = delete;
};

bool ends(CUstream stream, double seconds = 30)
{
    return soon([&] { return idle(stream); }, seconds);
}

ftcclResult_t sum(const Buffer<int> &data, ftcclComm_t comm, CUstream stream)
{
    return ftcclAllReduce(data.ptr(), data.ptr(), data.n, ftcclInt, ftcclSum, comm, as(stream));
}

class Graphs : public testing::TestWithParam<const char *>
{
};

TEST_P(Graphs, AHundredReplaysAmongCalls)
{
    const int n = 3;
    const size_t count = 3001;
    Job job(n, GetParam());
    job.each([&](int r) {
        CUstream s = job.stream[static_cast<size_t>(r)];
        ftcclComm_t c = job.comm[static_cast<size_t>(r)];
        Buffer<int> in(count), out(count), all(n * count), next(count);
        std::vector<int> mine(count), got(count), gathered(n * count), from(count);
        int before = standin_launched();
        auto neighbours = [&] {
            EXPECT_OK(ftcclGroupStart());
            EXPECT_OK(ftcclRecv(next.ptr(), count, ftcclInt, (r + 1) % n, c, as(s)));
            EXPECT_OK(ftcclSend(in.ptr(), count, ftcclInt, (r + n - 1) % n, c, as(s)));
            EXPECT_OK(ftcclGroupEnd());
        };
        Captured graph(s, [&] {
            EXPECT_OK(ftcclAllReduce(in.ptr(), out.ptr(), count, ftcclInt, ftcclSum, c, as(s)));
            EXPECT_OK(ftcclAllGather(out.ptr(), all.ptr(), count, ftcclInt, c, as(s)));
            neighbours();
        });
        EXPECT_TRUE(before == STANDIN_UNKNOWN || standin_launched() >= before + 3)
            << standin_launched();
        for (int i = 0; i < 100; i++) {
            for (size_t k = 0; k < count; k++)
                mine[k] = static_cast<int>(k) + 1000 * r + i;
            in.put(mine, s);
            EXPECT_EQ(cuGraphLaunch(graph.exec, s), CUDA_SUCCESS);
            for (int calls = i % 7 == 0; calls > 0; calls--)
                EXPECT_OK(
                    ftcclAllReduce(out.ptr(), out.ptr(), count, ftcclInt, ftcclMax, c, as(s)));
            out.get(got, s), all.get(gathered, s), next.get(from, s);
            if (i % 3)
                continue; /* several are on their way */
            ASSERT_TRUE(ends(s)) << i;
            for (size_t k = 0; k < count; k += 500) {
                int want = n * (static_cast<int>(k) + i) + 1000 * (n * (n - 1) / 2);
                ASSERT_EQ(got[k], want) << r << " in " << i;
                ASSERT_EQ(gathered[2 * count + k], want) << r << " in " << i;
                ASSERT_EQ(from[k], static_cast<int>(k) + 1000 * ((r + 1) % n) + i)
                    << r << " in " << i;
            }
        }
        EXPECT_TRUE(ends(s));
    });
}

INSTANTIATE_TEST_SUITE_P(Transports, Graphs, testing::Values("inproc", "shm", "tcp"),
                         [](auto &i) { return std::string(i.param); });

/* Branches of a graph that do not depend on each other: the calls of one communicator keep their
 * order, which all ranks share. */
TEST(GraphOrder, BranchesAndTwoCommunicators)
{
    const size_t count = 2000;
    Job job(2, "shm"), other(2, "shm");
    job.each([&](int r) {
        CUstream s = job.stream[static_cast<size_t>(r)], t = other.stream[static_cast<size_t>(r)];
        ftcclComm_t c = job.comm[static_cast<size_t>(r)], d = other.comm[static_cast<size_t>(r)];
        Buffer<int> a(count), b(2 * count), e(count), f(count);
        std::vector<int> one(count, 1), two(2 * count, 2), got(count), more(2 * count),
            third(count), fourth(count);
        a.put(one, s), b.put(two, s), e.put(one, s), f.put(one, s);
        CUevent fork, join;
        cuEventCreate(&fork, 0), cuEventCreate(&join, 0);
        Captured graph(s, [&] {
            cuEventRecord(fork, s);
            cuStreamWaitEvent(t, fork, 0);
            EXPECT_OK(sum(a, c, r == 0 ? s : t)); /* the branches are not the same on both ranks */
            EXPECT_OK(sum(b, c, r == 0 ? t : s));
            EXPECT_OK(sum(a, c, r == 0 ? s : t));
            /* communicators in different order, on one stream and on two */
            EXPECT_OK(ftcclGroupStart());
            EXPECT_OK(sum(r == 0 ? e : f, r == 0 ? c : d, s));
            EXPECT_OK(sum(r == 0 ? f : e, r == 0 ? d : c, s));
            EXPECT_OK(ftcclGroupEnd());
            EXPECT_OK(ftcclGroupStart());
            EXPECT_OK(sum(r == 0 ? e : f, r == 0 ? c : d, t));
            EXPECT_OK(sum(r == 0 ? f : e, r == 0 ? d : c, s));
            EXPECT_OK(sum(a, c, s));
            EXPECT_OK(ftcclGroupEnd());
            cuEventRecord(join, t);
            cuStreamWaitEvent(s, join, 0);
        });
        for (int i = 0; i < 5; i++)
            EXPECT_EQ(cuGraphLaunch(graph.exec, s), CUDA_SUCCESS);
        a.get(got, s), b.get(more, s), e.get(third, s), f.get(fourth, s);
        ASSERT_TRUE(ends(s));
        EXPECT_EQ(got, std::vector<int>(count, 1 << 15));
        EXPECT_EQ(more, std::vector<int>(2 * count, 2 << 5));
        EXPECT_EQ(third, std::vector<int>(count, 1 << 10));
        EXPECT_EQ(fourth, third);
        cuEventDestroy(fork), cuEventDestroy(join);
    });
}

TEST(GraphOrder, RanksOfOneThread)
{
    Job job(2, "inproc");
    CUstream s = job.stream[0];
    standin_enter();
    Buffer<int> a(100), b(100);
    std::vector<int> got(100);
    a.put(std::vector<int>(100, 1), s), b.put(std::vector<int>(100, 2), s);
    {
        Captured graph(
            s,
            [&] {
                EXPECT_OK(ftcclGroupStart());
                EXPECT_OK(sum(a, job.comm[0], s));
                EXPECT_OK(sum(b, job.comm[1], s));
                EXPECT_OK(ftcclGroupEnd());
            },
            CU_STREAM_CAPTURE_MODE_GLOBAL);
        for (int i = 0; i < 3; i++)
            EXPECT_EQ(cuGraphLaunch(graph.exec, s), CUDA_SUCCESS);
        b.get(got, s);
        EXPECT_TRUE(ends(s));
    }
    EXPECT_EQ(got, std::vector<int>(100, 12));
}

/* Executable graphs of one graph may overlap: each start of its kernel is served, and a kernel that
 * waits for its turn does nothing. */
TEST(GraphOrder, OneGraphTwice)
{
    Job job(2, "shm");
    job.each([&](int r) {
        CUstream s = job.stream[static_cast<size_t>(r)], t;
        cuStreamCreate(&t, CU_STREAM_NON_BLOCKING);
        Buffer<int> data(1000);
        std::vector<int> got(1000);
        data.put(std::vector<int>(1000, 1), s);
        ASSERT_TRUE(ends(s));
        Captured graph(s, [&] { EXPECT_OK(sum(data, job.comm[static_cast<size_t>(r)], s)); });
        CUgraphExec second = instantiate(graph.graph);
        for (int i = 0; i < 10; i++) {
            EXPECT_EQ(cuGraphLaunch(graph.exec, s), CUDA_SUCCESS);
            EXPECT_EQ(cuGraphLaunch(second, t), CUDA_SUCCESS);
        }
        EXPECT_TRUE(ends(s) && ends(t));
        data.get(got, s);
        EXPECT_TRUE(ends(s));
        EXPECT_EQ(got, std::vector<int>(1000, 1 << 20));
        cuGraphExecDestroy(second);
        cuStreamDestroy(t);
    });
}

TEST(GraphLife, WhatGraphsHeldIsUsedAgainAndAllIsFreed)
{
    int live = standin_live_memory();
    {
        Job job(2, "shm");
        job.each([&](int r) {
            CUstream s = job.stream[static_cast<size_t>(r)];
            ftcclComm_t c = job.comm[static_cast<size_t>(r)];
            Buffer<int> data(10);
            int first = 0;
            for (int i = 0; i < 300; i++) { /* more than are allocated together */
                CUgraph graph = capture(s, [&] { EXPECT_OK(sum(data, c, s)); });
                if (i % 50 == 0) {
                    CUgraphExec exec = instantiate(graph);
                    cuGraphDestroy(graph);
                    EXPECT_EQ(cuGraphLaunch(exec, s), CUDA_SUCCESS);
                    EXPECT_TRUE(ends(s)) << i;
                    cuGraphExecDestroy(exec);
                } else
                    cuGraphDestroy(graph);
                if (i == 0)
                    first = standin_live_memory();
                if (i % 50 == 0)
                    usleep(5000); /* the engine looks */
            }
            EXPECT_LE(standin_live_memory(), first + 3)
                << "bells of graphs that are gone are not used again";
        });
    }
    Job last(1, "inproc"); /* queues that are done with are freed when one is opened */
    last.each([&](int) {
        Buffer<int> data(10);
        EXPECT_OK(sum(data, last.comm[0], last.stream[0]));
        EXPECT_TRUE(ends(last.stream[0]));
    });
    EXPECT_OK(ftcclCommDestroy(last.comm[0]));
    last.comm[0] = nullptr;
    EXPECT_TRUE(soon([&] { return standin_live_memory() <= live; }))
        << standin_live_memory() << " allocations, were " << live;
}

TEST(GraphLife, AReplayAfterDestroyDoesNothingAndHoldsNobody)
{
    int live = standin_live_memory();
    auto job = std::make_unique<Job>(2, "shm");
    std::vector<std::unique_ptr<Captured>> graphs(2);
    std::vector<std::unique_ptr<Buffer<int>>> data(2);
    std::vector<CUstream> stream(2);
    job->each([&](int r) {
        size_t k = static_cast<size_t>(r);
        cuStreamCreate(&stream[k], CU_STREAM_NON_BLOCKING);
        data[k] = std::make_unique<Buffer<int>>(100);
        data[k]->put(std::vector<int>(100, 3), stream[k]);
        graphs[k] = std::make_unique<Captured>(stream[k], [&] {
            EXPECT_OK(sum(*data[k], job->comm[k], stream[k]));
        });
        EXPECT_EQ(cuGraphLaunch(graphs[k]->exec, stream[k]), CUDA_SUCCESS);
        EXPECT_TRUE(ends(stream[k]));
    });
    job.reset();
    for (size_t k = 0; k < 2; k++) {
        std::vector<int> got(100);
        for (int i = 0; i < 3; i++)
            EXPECT_EQ(cuGraphLaunch(graphs[k]->exec, stream[k]), CUDA_SUCCESS);
        data[k]->get(got, stream[k]);
        EXPECT_TRUE(ends(stream[k])) << "a kernel of a communicator that was destroyed stays";
        EXPECT_EQ(got, std::vector<int>(100, 6));
        graphs[k].reset();
        data[k].reset();
        cuStreamDestroy(stream[k]);
    }
    {
        Job next(1, "inproc");
        next.each([&](int) {
            Buffer<int> d(1);
            sum(d, next.comm[0], next.stream[0]);
            ends(next.stream[0]);
        });
    }
    EXPECT_TRUE(soon([&] { return standin_live_memory() <= live; }))
        << standin_live_memory() << " allocations, were " << live;
}

TEST(GraphErrors, WhatTheDriverRefusesHarmsNobody)
{
    Job job(1, "shm"); /* a fault is the next caller's, of whatever rank */
    job.each([&](int) {
        CUstream s = job.stream[0];
        ftcclComm_t c = job.comm[0];
        Buffer<int> data(100);
        for (const char *call : {"cuMemHostAlloc", "cuUserObjectCreate", "cuGraphRetainUserObject",
                                 "cuLaunchKernel", "cuStreamUpdateCaptureDependencies"}) {
            CUgraph graph = capture(s, [&] {
                standin_fail(call, CUDA_ERROR_UNKNOWN, 0);
                EXPECT_EQ(sum(data, c, s), ftcclUnhandledCudaError) << call;
                EXPECT_NE(std::string(ftcclGetLastError(nullptr)).find(call), std::string::npos)
                    << call << ": " << ftcclGetLastError(nullptr);
            });
            CUgraphExec exec = instantiate(graph);
            EXPECT_EQ(cuGraphLaunch(exec, s), CUDA_SUCCESS);
            EXPECT_TRUE(ends(s)) << "what a call that failed at " << call
                                 << " left in the graph holds the stream";
            cuGraphExecDestroy(exec), cuGraphDestroy(graph);
        }
        Captured graph(s, [&] { EXPECT_OK(sum(data, c, s)); });
        cuGraphLaunch(graph.exec, s);
        EXPECT_TRUE(ends(s));
        EXPECT_EQ(job.state(0), ftcclSuccess);
    });
}

TEST(GraphErrors, WhatCannotBeCapturedIsSaidAndHarmsNobody)
{
    Job job(2, "shm");
    job.each([&](int r) {
        CUstream s = job.stream[static_cast<size_t>(r)], t;
        ftcclComm_t c = job.comm[static_cast<size_t>(r)];
        cuStreamCreate(&t, CU_STREAM_NON_BLOCKING);
        Buffer<int> data(100), more(100);
        std::vector<int> host(100, 1);
        data.put(host, s);
        ASSERT_TRUE(ends(s));
        CUgraph graph = capture(s, [&] {
            EXPECT_OK(ftcclGroupStart());
            EXPECT_OK(sum(data, c, s));
            EXPECT_OK(sum(more, c, t));
            EXPECT_CALLER(ftcclGroupEnd());
            ftcclStream_t ours;
            EXPECT_OK(ftcclStreamCreate(&ours));
            EXPECT_OK(ftcclGroupStart());
            EXPECT_OK(sum(data, c, s));
            EXPECT_OK(ftcclAllReduce(host.data(), host.data(), 100, ftcclInt, ftcclSum, c, ours));
            EXPECT_CALLER(ftcclGroupEnd());
            EXPECT_OK(ftcclStreamDestroy(ours));
        });
        cuGraphDestroy(graph);
        cuStreamBeginCapture(s, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL);
        EXPECT_OK(sum(data, c, s));
        void *none;
        EXPECT_EQ(cuMemHostAlloc(&none, 1, 0), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED)
            << "with which the capture fails";
        EXPECT_NE(sum(data, c, s), ftcclSuccess);
        EXPECT_NE(cuStreamEndCapture(s, &graph), CUDA_SUCCESS);
        cuStreamDestroy(t);
    });
    job.each([&](int r) { /* all still works, in a graph too */
                          CUstream s = job.stream[static_cast<size_t>(r)];
                          Buffer<int> data(100);
                          std::vector<int> got(100);
                          data.put(std::vector<int>(100, 1), s);
                          Captured graph(s, [&] {
                              EXPECT_OK(sum(data, job.comm[static_cast<size_t>(r)], s));
                          });
                          cuGraphLaunch(graph.exec, s);
                          EXPECT_OK(sum(data, job.comm[static_cast<size_t>(r)], s));
                          data.get(got, s);
                          EXPECT_TRUE(ends(s));
                          EXPECT_EQ(got, std::vector<int>(100, 4));
                          EXPECT_EQ(job.state(r), ftcclSuccess);
    });
}

/* Rank 1 launches too late, or another graph. */
TEST(GraphErrors, ReplaysThatDoNotMeetEndInAnErrorWithinTheDeadline)
{
    for (bool other : {false, true}) {
        Job job(2, "shm", 1000);
        std::atomic<int> told{0};
        job.each([&](int r) {
            CUstream s = job.stream[static_cast<size_t>(r)];
            ftcclComm_t c = job.comm[static_cast<size_t>(r)];
            Buffer<int> few(100), many(200000);
            Captured a(s, [&] { EXPECT_OK(sum(few, c, s)); });
            Captured b(s, [&] { EXPECT_OK(sum(many, c, s)); });
            cuGraphLaunch(a.exec, s);
            EXPECT_TRUE(ends(s));
            /* who is late is told when it comes */
            EXPECT_TRUE(r == 0 || other || soon([&] { return job.state(0) != ftcclSuccess; }, 20));
            cuGraphLaunch(r == 0 ? b.exec : a.exec, s);
            EXPECT_TRUE(soon([&] { return job.state(r) != ftcclSuccess; }, 20));
            EXPECT_TRUE(ends(s, 5)) << "held"; /* by itself a kernel leaves after 12 s */
            EXPECT_EQ(cuGraphLaunch(a.exec, s), CUDA_SUCCESS);
            EXPECT_TRUE(ends(s, 5)) << "a replay after the failure holds the stream";
            EXPECT_NE(sum(few, c, s), ftcclSuccess);
            told++;
            EXPECT_TRUE(soon([&] { return told == 2; }));
            EXPECT_OK(ftcclCommAbort(c));
            job.comm[static_cast<size_t>(r)] = nullptr;
        });
    }
}

/* graphs ID NRANKS RANK MODE: replays until that fails, says whether its stream goes on by itself,
 * shrinks, and captures and replays again. */
CHILD(graphs)
{
    int n = std::stoi(arguments[1]), rank = std::stoi(arguments[2]);
    bool pauses = arguments[4] == "between";
    CUstream stream;
    standin_enter();
    cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING);
    ftcclComm_t comm, next;
    if (ftcclCommInitRank(&comm, n, proc::unhex(arguments[0]), rank) != ftcclSuccess)
        return 1;
    Buffer<int> data(100000);
    std::vector<int> got(data.n);
    data.put(std::vector<int>(data.n, 1), stream);
    Captured graph(stream, [&] {
        EXPECT_OK(
            ftcclAllReduce(data.ptr(), data.ptr(), data.n, ftcclInt, ftcclMax, comm, as(stream)));
        EXPECT_OK(
            ftcclAllReduce(data.ptr(), data.ptr(), data.n, ftcclInt, ftcclMin, comm, as(stream)));
    });
    ftcclResult_t state = ftcclSuccess;
    for (int i = 0; state == ftcclSuccess; i++) {
        if (!pauses || i < 10)
            cuGraphLaunch(graph.exec, stream);
        while (!idle(stream) && state == ftcclSuccess)
            usleep(100), ftcclCommGetAsyncError(comm, &state);
        if (i == 9)
            printf("running\n"), fflush(stdout);
        if (pauses && i > 9)
            usleep(1000), ftcclCommGetAsyncError(comm, &state);
    }
    double since = proc::now();
    if (pauses)
        cuGraphLaunch(graph.exec, stream); /* its replays meet the failure */
    bool goes_on = soon([&] { return idle(stream); }, arguments[3] == "hold" ? 0.3 : 30);
    printf("%d %s%s\n", state, goes_on ? "free" : "held",
           goes_on && proc::now() - since > 1 ? " late" : "");
    fflush(stdout);
    if (ftcclCommShrink(comm, nullptr, 0, &next, nullptr, FTCCL_SHRINK_ABORT) != ftcclSuccess)
        return printf("%s\n", ftcclGetLastError(comm)), 2;
    if (!soon([&] { return idle(stream); }))
        return 3;
    ftcclCommAbort(comm);
    data.put(std::vector<int>(data.n, 1), stream);
    Captured again(stream, [&] { EXPECT_OK(sum(data, next, stream)); });
    for (int i = 0; i < 3; i++)
        cuGraphLaunch(again.exec, stream);
    data.get(got, stream);
    if (!soon([&] { return idle(stream); }))
        return 4;
    printf("again %d %d\n", got[0], got[data.n - 1]);
    return ftcclCommDestroy(next) == ftcclSuccess ? 0 : 5;
}

using Kill = std::tuple<const char *, const char *>;
class GraphKill : public testing::TestWithParam<Kill>
{
};

TEST_P(GraphKill, ARankDies)
{
    const int n = 3;
    std::string mode = std::get<0>(GetParam()), when = std::get<1>(GetParam());
    ftcclUniqueId id;
    ASSERT_OK(ftcclGetUniqueId(&id));
    std::vector<std::unique_ptr<proc::Child>> rank;
    for (int r = 0; r < n; r++)
        rank.push_back(std::make_unique<proc::Child>(
            "graphs",
            std::vector<std::string>{proc::hex(id), std::to_string(n), std::to_string(r), mode,
                                     when},
            std::map<std::string, std::string>{{"FTCCL_ON_FAILURE", mode}}));
    for (auto &child : rank)
        ASSERT_EQ(child->line(), "running");
    rank[1]->signal(SIGKILL);
    for (size_t r : {static_cast<size_t>(0), static_cast<size_t>(2)}) {
        EXPECT_EQ(rank[r]->line(60),
                  std::to_string(ftcclRemoteError) + (mode == "hold" ? " held" : " free"))
            << r;
        EXPECT_EQ(rank[r]->line(60), "again 8 8") << r;
        EXPECT_EQ(rank[r]->wait(60), 0);
    }
}

INSTANTIATE_TEST_SUITE_P(OnFailure, GraphKill,
                         testing::Combine(testing::Values("release", "hold"),
                                          testing::Values("during", "between")),
                         [](auto &i) {
                             return std::string(std::get<0>(i.param)) + "_" + std::get<1>(i.param);
                         });

} // namespace

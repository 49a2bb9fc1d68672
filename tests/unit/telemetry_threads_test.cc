/*
 * Property: the telemetry tells how long large messages waited, where the clocks of peers are, and
 * in which calls the threads of the process are; files of hosts whose clocks differ have the times
 * of one of them in a snapshot. Method: write through the public calls, with clocks that are set,
 * from several threads; read the file back, its text, and a snapshot of the directory.
 */
#include "telemetry_fixture.h"

#include <pthread.h>

#include <set>
#include <thread>

extern "C" {
#include "diagnose/diagnose.h"
}

namespace
{

class Seen : public Telemetry
{
  protected:
    using Taken = std::unique_ptr<ft_snapshot, void (*)(ft_snapshot *)>;
    Taken collect() const
    {
        struct ft_snapshot *s = nullptr;
        EXPECT_EQ(ft_snapshot_collect(dir.c_str(), &s), FT_OK) << ft_fail_text();
        return Taken(s, ft_snapshot_free);
    }
    struct ft_telemetry *open_on(uint64_t engine, uint64_t host)
    {
        return ft_telemetry_open_in(dir.c_str(), &env, engine, host);
    }
};

TEST_F(Seen, LatenciesFallIntoBucketsOfFourTimes)
{
    struct ft_latency l = {};
    const uint64_t us[] = {0, 15, 16, 63, 64, 255, 256, 1023, 1024, 65535, 65536, 9000000};
    const int bucket[] = {0, 0, 1, 1, 2, 2, 3, 3, 4, 6, 7, 7};
    for (size_t i = 0; i < std::size(us); i++) {
        struct ft_latency one = {};
        ft_latency_add(&one, us[i] * 1000);
        for (int b = 0; b < FT_LATENCY_BUCKETS; b++)
            EXPECT_EQ(one.bucket[b], b == bucket[i] ? 1u : 0u) << us[i] << " us, bucket " << b;
        ft_latency_add(&l, us[i] * 1000);
    }
    EXPECT_EQ(l.count, std::size(us));
    EXPECT_EQ(l.max_ns, 9000000000u);
}

TEST_F(Seen, ALinkTellsHowLongItsMessagesWait)
{
    struct ft_telemetry *t = open();
    int link = ft_telemetry_link_open(t, 0x99, 4, "tcp", true);
    int row = ft_telemetry_latency_open(t, link);
    ASSERT_GE(row, 0);
    struct ft_latency part[FT_LATENCY_PARTS] = {};
    ft_latency_add(&part[FT_LATENCY_CREDIT], 2000000);
    ft_latency_add(&part[FT_LATENCY_CREDIT], 4000000);
    ft_latency_add(&part[FT_LATENCY_NETWORK], 70000000);
    ft_telemetry_latency(t, row, part);
    Taken s = collect();
    ASSERT_EQ(s->nlatencies, 1);
    EXPECT_EQ(s->latencies[0].peer, 0x99u);
    EXPECT_TRUE(s->latencies[0].sender);
    EXPECT_EQ(s->latencies[0].part[FT_LATENCY_CREDIT].count, 2u);
    EXPECT_EQ(s->latencies[0].part[FT_LATENCY_CREDIT].sum_ns, 6000000u);
    EXPECT_EQ(s->latencies[0].part[FT_LATENCY_NETWORK].bucket[7], 1u);
    std::string seen = text(load(ft_telemetry_path(t)).get());
    EXPECT_NE(seen.find("for credit: 2, 3.000, 4.000; 0 0 0 0 2 0 0 0"), std::string::npos) << seen;
    ft_telemetry_latency_close(t, row);
    EXPECT_EQ(collect()->nlatencies, 0);
    for (int i = 0; i < 3 * FT_TM_LATENCIES; i++) /* closed rows are used again */
        ft_telemetry_latency_close(t, ft_telemetry_latency_open(t, link));
    for (int i = 0; i < FT_TM_LATENCIES; i++)
        EXPECT_GE(ft_telemetry_latency_open(t, link), 0);
    EXPECT_EQ(ft_telemetry_latency_open(t, link), -1) << "the table is full";
    ft_telemetry_close(t);
}

/* The time between the first and the last call, which all were made at the same moment. */
uint64_t spread(const struct ft_snapshot *s)
{
    uint64_t first = UINT64_MAX, last = 0;
    EXPECT_EQ(s->nops, 3);
    for (int i = 0; i < s->nops; i++) {
        first = std::min(first, s->ops[i].called_ns);
        last = std::max(last, s->ops[i].called_ns);
        EXPECT_EQ(s->ops[i].started_ns, s->ops[i].called_ns + 1);
    }
    return last - first;
}

/* Three hosts in a row; the clock of the second is 1,000 s ahead, that of the third 500 s behind.
 * Each knows only its neighbour. */
TEST_F(Seen, TimesOfOtherHostsBecomeThoseOfOne)
{
    const int64_t s = 1000000000;
    struct ft_coll c = coll(5);
    struct ft_telemetry *t[3];
    const int64_t ahead[] = {0, 1000 * s, -500 * s};
    for (int h = 0; h < 3; h++) {
        clock_ns = (uint64_t)(5000 * s + ahead[h]);
        t[h] = open_on(0x10 + (uint64_t)h, 0x20 + (uint64_t)h);
        int comm = ft_telemetry_comm_open(t[h], 1, 0, 3, h, "job");
        uint32_t op = ft_telemetry_op(t[h], comm, 1, &c, "ring", {0, clock_ns});
        ft_telemetry_op_state(t[h], op, FT_OP_RUNNING, FT_OK, clock_ns + 1);
    }
    const struct ft_clock to_second = {1000 * s + 7, 50, 10, 10},
                          to_third = {-1500 * s - 3, 60, 10, 10};
    ft_telemetry_clock(t[0], 0x11, &to_second);
    ft_telemetry_clock(t[1], 0x12, &to_third);
    EXPECT_LE(spread(collect().get()), 10u);
    /* An offset that is not larger than its error changes nothing. */
    const struct ft_clock vague = {1000 * s, (uint64_t)(2000 * s), 10, 10};
    ft_telemetry_clock(t[0], 0x11, &vague);
    EXPECT_GE(spread(collect().get()), (uint64_t)(400 * s));
    for (auto *one : t)
        ft_telemetry_close(one);
}

TEST_F(Seen, ThreadsTellWhereTheyAre)
{
    struct ft_telemetry *t = open();
    int comm = ft_telemetry_comm_open(t, 1, 0, 2, 0, "job");
    struct ft_coll c = coll(5);
    int tids[2] = {0, 0};
    pthread_barrier_t all;
    pthread_barrier_init(&all, nullptr, 3);
    std::thread calls([&] {
        tids[0] = (int)gettid();
        ft_thread_enters(FT_THREAD_KIND + FT_ALLREDUCE, (void *)0x1234);
        ft_telemetry_op(t, comm, 1, &c, "ring", {0, 77});
        pthread_barrier_wait(&all);
        pthread_barrier_wait(&all);
    });
    std::thread waits([&] {
        tids[1] = (int)gettid();
        ft_thread_enters(FT_THREAD_SYNC, (void *)0x5678);
        ft_telemetry_thread_waits(t, 88);
        pthread_barrier_wait(&all);
        pthread_barrier_wait(&all);
        ft_telemetry_thread_goes_on(t);
    });
    pthread_barrier_wait(&all);
    Taken s = collect();
    EXPECT_EQ(s->nthreads, 2);
    for (int i = 0; i < s->nthreads; i++) {
        const struct ft_snap_thread &one = s->threads[i];
        bool first = one.tid == tids[0];
        EXPECT_TRUE(first || one.tid == tids[1]) << one.tid;
        EXPECT_EQ(one.call, first ? FT_THREAD_KIND + FT_ALLREDUCE : (unsigned)FT_THREAD_SYNC);
        EXPECT_EQ(one.waits, !first);
        EXPECT_EQ(one.since_ns, first ? 77u : 88u);
        EXPECT_EQ(one.site, first ? 0x1234u : 0x5678u);
        EXPECT_EQ(one.calls, first ? 1u : 0u);
    }
    std::string seen = text(load(ft_telemetry_path(t)).get());
    EXPECT_NE(seen.find("waits in StreamSynchronize"), std::string::npos) << seen;
    pthread_barrier_wait(&all);
    calls.join();
    waits.join();
    EXPECT_EQ(collect()->nthreads, 0) << "threads that have ended are left out";
    pthread_barrier_destroy(&all);
    ft_telemetry_close(t);
}

/* More threads than rows, at the same time: no row belongs to two, and the latest callers are
 * there. */
TEST_F(Seen, ManyThreadsShareTheTable)
{
    struct ft_telemetry *t = open();
    std::vector<std::thread> threads;
    pthread_barrier_t all;
    const unsigned n = FT_TM_THREADS + 40;
    pthread_barrier_init(&all, nullptr, n + 1);
    for (unsigned i = 0; i < n; i++)
        threads.emplace_back([&, i] {
            for (uint64_t k = 1; k < 50; k++) {
                ft_thread_enters(FT_THREAD_AGREE, (void *)(uintptr_t)i);
                ft_telemetry_thread_waits(t, k * n + i);
                ft_telemetry_thread_goes_on(t);
            }
            pthread_barrier_wait(&all);
            pthread_barrier_wait(&all);
        });
    pthread_barrier_wait(&all);
    Image image = load(ft_telemetry_path(t));
    std::set<int> tids;
    for (const struct ft_tm_thread &row : image->file.thread) {
        EXPECT_EQ(tids.insert(row.tid).second, true) << "two rows of thread " << row.tid;
        EXPECT_EQ(row.waits, 0);
    }
    EXPECT_EQ(tids.count(0), 0u) << "all rows are used";
    pthread_barrier_wait(&all);
    for (auto &thread : threads)
        thread.join();
    pthread_barrier_destroy(&all);
    ft_telemetry_close(t);
}

} // namespace

/*
 * Properties: reports of agents lose nothing that the analysis of hangs needs, whatever the clocks
 * of the hosts say; the master finds the one rank for which 32,768 wait, in time and within 96
 * bytes for each rank and communicator; bytes that make no sense are refused or cost nothing.
 * Method: snapshots that are written down, encoded as an agent does and given to a master without
 * sockets; random changes of good messages.
 */
#include <gtest/gtest.h>
#include <time.h>
#include <unistd.h>

#include <cstring>
#include <random>
#include <vector>

extern "C" {
#include "../tools/master/master.h"
}

namespace
{

constexpr uint64_t kSecond = 1000000000;

/* A host whose ranks are all in the same call of every communicator, but for one. */
struct Host {
    std::vector<ft_snap_engine> engines;
    std::vector<ft_snap_member> members;
    ft_snapshot snapshot = {};
    rows_hello hello = {};
    uint64_t now_ns;

    Host(int number, uint64_t now, uint64_t real) : now_ns(now)
    {
        hello.host = static_cast<uint64_t>(number) + 1;
        hello.interval_ms = 60000;
        snprintf(hello.hostname, sizeof hello.hostname, "host%d", number);
        snapshot.now_ns = now;
        snapshot.real_ns = real;
    }
    void add(int rank)
    {
        ft_snap_engine engine = {};
        engine.id = static_cast<uint64_t>(rank) + 1000;
        engine.pid = rank + 1;
        engine.state = FT_PROCESS_RUNS;
        engines.push_back(engine);
    }
    void join(uint64_t ctx, int nranks, int rank, bool has_called)
    {
        ft_snap_member m = {};
        ft_coll coll = {FT_ALLREDUCE, FT_FLOAT32, FT_SUM, 0, 1};
        m.ctx = ctx;
        m.engine = static_cast<int>(engines.size()) - 1;
        m.rank = rank;
        m.nranks = nranks;
        m.open = true;
        m.culprit = -1;
        m.done = 20;
        m.called = m.started = has_called ? 21 : 20;
        m.last = {ft_sig(&coll), now_ns - 9 * kSecond, 0, 0};
        m.wait.peer = -1;
        if (has_called) {
            m.running_sig = ft_sig(&coll);
            m.running_seq = 21;
            m.running_since_ns = now_ns - 9 * kSecond;
            m.wait.peer = (rank + nranks - 1) % nranks;
        }
        members.push_back(m);
    }
    ft_snapshot &all()
    {
        snapshot.engines = engines.data();
        snapshot.nengines = static_cast<int>(engines.size());
        snapshot.members = members.data();
        snapshot.nmembers = static_cast<int>(members.size());
        return snapshot;
    }
};

using Bytes = std::vector<unsigned char>;

Bytes take(unsigned char *bytes, size_t len)
{
    EXPECT_NE(bytes, nullptr);
    Bytes all(bytes, bytes + len);
    free(bytes);
    return all;
}

Bytes report_of(Host &host)
{
    size_t len = 0;
    unsigned char *bytes = rows_encode_report(&host.all(), nullptr, 0, &len);
    return take(bytes, len);
}

Bytes hello_of(const Host &host)
{
    size_t len = 0;
    unsigned char *bytes = rows_encode_hello(&host.hello, &len);
    return take(bytes, len);
}

daemon_message message_of(uint16_t type, const Bytes &bytes)
{
    return {DAEMON_DIAGNOSIS, type, bytes.data(), bytes.size()};
}

/* A master whose hosts have no connections. */
struct Master {
    daemon_options options = {};
    struct daemon *daemon = nullptr;
    daemon_past *past = nullptr;
    struct master *master = nullptr;
    Master()
    {
        options.program = "ftccld";
        options.listen = "127.0.0.1:0";
        options.state = options.key_file = options.master = options.root = "";
        options.dir = "/nonexistent";
        options.interval_s = 1;
        options.after_s = 5;
        daemon = daemon_open(&options);
        past = daemon_past_open("");
        master = daemon ? master_open(daemon, past) : nullptr;
        if (master)
            master_add(master);
    }
    ~Master()
    {
        daemon_close(daemon);
        master_close(master);
        daemon_past_close(past);
    }
    bool give(host *to, uint16_t type, const Bytes &bytes)
    {
        daemon_message message = message_of(type, bytes);
        return master_take(master, to, &message);
    }
    void tick()
    {
        const daemon_service *service;
        ASSERT_GT(daemon_services(daemon, &service), 0);
        service[0].tick(service[0].arg);
    }
    const report &shown() const
    {
        return master->shown.report;
    }
};

double cpu_s()
{
    timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_nsec) / 1e9;
}

TEST(Rows, AgesDoNotDependOnClocks)
{
    Host host(0, 77 * kSecond, 12345 * kSecond);
    host.add(3);
    host.join(5, 8, 3, true);
    ft_snap_member &m = host.members[0];
    m.failed = true;
    m.status = FT_TIMEOUT;
    m.culprit = 7;
    m.wait.step = 4;
    m.wait.sends = true;
    m.progress_ns = 70 * kSecond;
    m.p2p_called = 70000;
    m.p2p_started = 69999;
    m.p2p_done = 69990;
    Bytes bytes = report_of(host);
    EXPECT_EQ(bytes.size(), 20u + 16 + 80);
    daemon_message message = message_of(ROWS_REPORT, bytes);
    rows_report report;
    ASSERT_TRUE(rows_decode_report(&message, &report));
    const ft_snap_member &got = report.members[0];
    EXPECT_EQ(ROWS_NOW_NS - got.running_since_ns, 9 * kSecond);
    EXPECT_EQ(ROWS_NOW_NS - got.progress_ns, 7 * kSecond);
    EXPECT_EQ(ROWS_NOW_NS - got.last.called_ns, 9 * kSecond);
    EXPECT_EQ(got.called, 21u);
    EXPECT_EQ(got.started, 21u);
    EXPECT_EQ(got.done, 20u);
    EXPECT_EQ(got.running_seq, 21u);
    EXPECT_EQ(got.running_sig, m.running_sig);
    EXPECT_EQ(got.p2p_called - got.p2p_started, 1u);
    EXPECT_EQ(got.p2p_called - got.p2p_done, 10u);
    EXPECT_EQ(got.rank, 3);
    EXPECT_EQ(got.nranks, 8);
    EXPECT_EQ(got.culprit, 7);
    EXPECT_EQ(got.status, FT_TIMEOUT);
    EXPECT_EQ(got.wait.peer, 2);
    EXPECT_EQ(got.wait.step, 4u);
    EXPECT_TRUE(got.wait.sends && got.open && got.failed && !got.joins);
    EXPECT_EQ(report.real_ns, 12345 * kSecond);
    rows_free_report(&report);
}

/* 4,096 hosts of 8 ranks, 4 communicators of all; one rank has not called. The clocks of the hosts
 * are minutes apart. */
TEST(Master, OneOf32768)
{
    constexpr int kHosts = 4096, kRanks = 8 * kHosts, kVictim = 12345, kComms = 4;
    Master master;
    ASSERT_NE(master.master, nullptr);
    std::mt19937_64 draw(1);
    size_t bytes = 0;
    double begun = cpu_s();
    for (int h = 0; h < kHosts; h++) {
        Host host(h, 1000 * kSecond + draw() % (9000 * kSecond),
                  1790000000 * kSecond + draw() % (600 * kSecond));
        for (int rank = 8 * h; rank < 8 * h + 8; rank++) {
            host.add(rank);
            for (uint64_t ctx = 1; ctx <= kComms; ctx++)
                host.join(ctx, kRanks, rank, ctx == 1 && rank != kVictim);
        }
        for (ft_snap_member &m : host.members)
            if (m.ctx != 1)
                m.called = m.started = m.done = 20;
        struct host *to = master_host_add(master.master);
        ASSERT_TRUE(master.give(to, ROWS_HELLO, hello_of(host)));
        Bytes report = report_of(host);
        bytes += report.size();
        ASSERT_TRUE(master.give(to, ROWS_REPORT, report));
    }
    double gathered = cpu_s();
    master.tick(); /* by the rows; then it waits for files, which nobody has */
    double judged = cpu_s();
    for (double end = judged + 60; master.shown().found == 0 && cpu_s() < end; usleep(50000))
        master.tick();
    printf("%.1f MB, %.1f bytes a rank and communicator; encoded and taken in %.2f s, judged by "
           "the rows in %.2f s of one core\n",
           static_cast<double>(bytes) / 1e6, static_cast<double>(bytes) / kRanks / kComms,
           gathered - begun, judged - gathered);
    EXPECT_LE(static_cast<double>(bytes) / kRanks / kComms, 96);
    EXPECT_LE(bytes, 16u << 20);
    ASSERT_EQ(master.shown().found, 1) << master.shown().trouble;
    const ft_verdict &verdict = master.shown().verdicts[0];
    EXPECT_STREQ(ft_verdict_name(verdict.kind), "noncomm_hang") << verdict.sentence;
    EXPECT_EQ(verdict.nculprits, 1) << verdict.sentence;
    EXPECT_EQ(verdict.culprits[0].rank, kVictim) << verdict.sentence;
    EXPECT_NE(strstr(verdict.sentence, "host1543"), nullptr) << verdict.sentence;
}

/* Messages of an agent that has the key and lies, or has another version. */
TEST(Master, Nonsense)
{
    std::random_device seed;
    unsigned drawn = seed();
    SCOPED_TRACE("seed " + std::to_string(drawn));
    std::mt19937 draw(drawn);
    Master master;
    ASSERT_NE(master.master, nullptr);
    Host host(0, 100 * kSecond, 1);
    for (int rank = 0; rank < 4; rank++) {
        host.add(rank);
        host.join(1, 4, rank, rank != 2);
    }
    const Bytes hello = hello_of(host), report = report_of(host);
    for (int i = 0; i < 3000; i++) {
        struct host *to = master_host_add(master.master);
        Bytes bytes = report;
        for (unsigned k = draw() % 8; k > 0; k--)
            bytes[draw() % bytes.size()] = static_cast<unsigned char>(draw());
        if (draw() % 4 == 0)
            bytes.resize(draw() % bytes.size());
        EXPECT_FALSE(master.give(to, ROWS_REPORT, report)) << "before its hello";
        ASSERT_TRUE(master.give(to, ROWS_HELLO, hello));
        EXPECT_FALSE(master.give(to, ROWS_HELLO, hello)) << "twice";
        for (uint16_t type = ROWS_REPORT; type <= ROWS_FETCH; type++)
            master.give(to, type, bytes);
        to->gone_ns = draw() % 2 ? daemon_now_ns() : 0;
        if (i % 100 == 99) {
            master.tick();
            for (int k = 0; k < master.master->nhosts; k++)
                master.master->host[k]->gone_ns = 1;
            master_forget(master.master);
            EXPECT_EQ(master.master->nhosts, 0);
        }
    }
}

} // namespace

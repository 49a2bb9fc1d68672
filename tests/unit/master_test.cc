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
        options.state = options.key_file = options.master = options.root = options.inspector = "";
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

/* ---- pace ------------------------------------------------------------------------------------ */

/* 100 ranks, ten on a host, whose hosts tell what share of a round each spends inside collectives:
 * 60%, with so much jitter; the slow one 10%, from some round on. Nobody has files. */
struct Paced {
    static constexpr int kHosts = 10, kRanks = 100, kSlow = 42;
    Master master;
    std::vector<struct host *> hosts;
    std::vector<Host> made;
    std::vector<pace_row> rows{kRanks};
    std::mt19937 draw;
    explicit Paced(unsigned seed) : draw(seed)
    {
        for (int h = 0; h < kHosts; h++) {
            made.emplace_back(h, 100 * kSecond, 1790000000 * kSecond);
            for (int rank = 10 * h; rank < 10 * h + 10; rank++) {
                made.back().add(rank);
                made.back().join(7, kRanks, rank, false);
                rows[static_cast<size_t>(rank)] = {
                    7, made.back().engines.back().id, rank, kRanks, 0, 0, 0};
            }
            hosts.push_back(master_host_add(master.master));
            EXPECT_TRUE(master.give(hosts.back(), ROWS_HELLO, hello_of(made.back())));
            EXPECT_TRUE(master.give(hosts.back(), ROWS_REPORT, report_of(made.back())));
        }
    }
    void round(bool slow, double jitter, uint32_t calls = 10)
    {
        std::uniform_real_distribution<double> more(-jitter, jitter);
        for (pace_row &row : rows) {
            bool lags = slow && row.rank == kSlow;
            row.covered_us += 1000000;
            row.inside_us += static_cast<uint32_t>(1e6 * (lags ? 0.1 : 0.6 + more(draw)));
            row.calls += calls;
        }
        for (size_t h = 0; h < hosts.size(); h++) {
            size_t len = 0;
            pace pace = {rows.data() + 10 * h, 10, 0};
            unsigned char *bytes = pace_encode(&pace, &len);
            EXPECT_EQ(len, 360u);
            EXPECT_TRUE(master.give(hosts[h], ROWS_PACE, take(bytes, len)));
        }
        master.tick();
    }
    int named() const
    {
        return master.shown().found > 0 ? master.shown().verdicts[0].culprits[0].rank : -1;
    }
};

TEST(Pace, NamesOneOfManyRanksThatWasAlwaysSlow)
{
    Paced paced(1);
    ASSERT_NE(paced.master.master, nullptr);
    for (int i = 0; i < 4; i++)
        paced.round(true, 0.2);
    EXPECT_EQ(paced.master.master->slow.n, 0) << "four rounds tell nothing";
    for (int i = 0; i < 8; i++)
        paced.round(true, 0.2);
    EXPECT_EQ(paced.master.master->slow.n, 1);
    EXPECT_EQ(paced.master.master->slow.rank[0], Paced::kSlow);
    for (int i = 0; paced.named() < 0 && i < 500; i++, usleep(10000))
        paced.master.tick(); /* it waits for files, which nobody has */
    EXPECT_EQ(paced.named(), Paced::kSlow) << paced.master.shown().trouble;
    EXPECT_STREQ(ft_verdict_name(paced.master.shown().verdicts[0].kind), "noncomm_slow");
    EXPECT_NE(strstr(paced.master.shown().verdicts[0].sentence, "on host4"), nullptr)
        << paced.master.shown().verdicts[0].sentence;
    for (int i = 0; i < 20; i++)
        paced.round(false, 0.2);
    EXPECT_EQ(paced.master.master->slow.n, 0) << "it is as fast as the others again";
    EXPECT_EQ(paced.named(), -1);
}

/* Jitter, single slow rounds, rounds that are too short, and a missing host name nobody. */
TEST(Pace, NamesNobodyWithoutEvidence)
{
    std::random_device seed;
    unsigned drawn = seed();
    SCOPED_TRACE("seed " + std::to_string(drawn));
    Paced paced(drawn);
    ASSERT_NE(paced.master.master, nullptr);
    for (int i = 0; i < 300; i++) {
        paced.round(i % 4 == 0, 0.3);
        ASSERT_EQ(paced.master.master->slow.n, 0) << "round " << i;
    }
    Paced few(drawn);
    for (int i = 0; i < 20; i++)
        few.round(true, 0.1, 0);
    EXPECT_EQ(few.master.master->slow.n, 0) << "no collective has ended";
    Paced gone(drawn);
    gone.hosts[3]->gone_ns = daemon_now_ns();
    for (int i = 0; i < 20; i++)
        gone.round(true, 0.1);
    EXPECT_EQ(gone.master.master->slow.n, 0) << "a host is missing";
}

/* ---- stacks ---------------------------------------------------------------------------------- */

char *copy_of(const std::string &text)
{
    return strdup(text.c_str());
}

/* Ranks at the same place but for the last one, which has children, and the message of each. */
struct Stacks {
    ft_stacks all = {};
    std::vector<Bytes> messages;
    Stacks(int nranks, int nchildren, size_t bytes)
    {
        int n = nranks + nchildren;
        all.nranks = nranks;
        all.nprocesses = n;
        all.ranks = static_cast<ft_stack_rank *>(
            calloc(static_cast<size_t>(nranks), sizeof *all.ranks));
        all.processes = static_cast<ft_stack_process *>(
            calloc(static_cast<size_t>(n), sizeof *all.processes));
        for (int i = 0; i < n; i++) {
            ft_stack_process &p = all.processes[i];
            bool child = i >= nranks;
            p.pid = i + 1;
            p.parent = child ? nranks : 0;
            p.rank = child ? nranks - 1 : i;
            p.state = child ? 'T' : 'S';
            strcpy(p.name, "worker");
            p.nthreads = 6;
            p.threads = static_cast<ft_stack_thread *>(calloc(6, sizeof *p.threads));
            for (int k = 0; k < 6; k++)
                p.threads[k].tid = p.pid + 1000 * k;
        }
        for (int i = 0; i < nranks; i++) {
            ft_stack_rank &r = all.ranks[i];
            std::string at = i == nranks - 1 ? "elsewhere\n" : "here\n";
            r.rank = r.process = i;
            r.tid = i == 0 ? 5001 : i + 1;
            strcpy(r.call, "AllReduce");
            r.kernel = {FT_STACK_KERNEL, copy_of("waits"), copy_of("waits")};
            r.tool = {FT_STACK_GDB, copy_of(at + std::string(bytes, 'x')), copy_of(at)};
            size_t len = 0;
            unsigned char *message = stacks_encode(7, 1000 + static_cast<uint64_t>(i), &all, i,
                                                   &len);
            messages.push_back(take(message, len));
        }
    }
    ~Stacks()
    {
        ft_stacks_free(&all);
    }
};

TEST(Stacks, WhatIsSentIsShown)
{
    Stacks stacks(4, 20, 100000);
    gathered gathered = {};
    for (const Bytes &bytes : stacks.messages) {
        daemon_message message = message_of(ROWS_STACKS, bytes);
        ASSERT_TRUE(gathered_add(&gathered, &message));
    }
    look look = {};
    Host host(0, 100 * kSecond, 1);
    for (int rank = 3; rank >= 0; rank--)
        host.add(rank);
    look.snapshot = &host.all();
    look.report.found = 1;
    look.verdicts[0].nculprits = 1;
    look.verdicts[0].culprits[0].engine = 0;
    for (int times = 0; times < 2; times++)
        gathered_show(&gathered, &look);
    const ft_stacks *shown = look.report.stacks;
    ASSERT_NE(shown, nullptr);
    EXPECT_EQ(shown->found, FT_STACKS_OUTLIERS);
    EXPECT_EQ(shown->compared, FT_STACK_GDB);
    EXPECT_EQ(shown->nranks, 4);
    EXPECT_EQ(shown->ranks[shown->order[0]].rank, 3);
    EXPECT_EQ(shown->ranks[0].engine, 3) << "indices are those of the look";
    EXPECT_EQ(shown->nprocesses, 4 + 8);
    EXPECT_EQ(shown->left_out, 12) << "children";
    EXPECT_EQ(shown->processes[0].nthreads, 4);
    EXPECT_EQ(shown->processes[0].threads[3].tid, 5001) << "the thread of the rank is among them";
    EXPECT_EQ(shown->processes[0].threads_left_out, 2);
    EXPECT_EQ(strlen(shown->ranks[0].tool.shown), 16384u);
    EXPECT_STREQ(shown->ranks[0].tool.normal, "here\n");
    int lines = 0;
    for (int i = 0; i < look.verdicts[0].nchain; i++)
        lines += strstr(look.verdicts[0].chain[i], "is elsewhere than most") != nullptr;
    EXPECT_EQ(lines, 1) << "once, however often it is shown";
    gathered_clear(&gathered);
}

TEST(Stacks, Nonsense)
{
    std::random_device seed;
    unsigned drawn = seed();
    SCOPED_TRACE("seed " + std::to_string(drawn));
    std::mt19937 draw(drawn);
    Stacks stacks(3, 3, 100);
    gathered gathered = {};
    int taken = 0;
    for (int i = 0; i < 20000; i++) {
        Bytes bytes = stacks.messages[draw() % 3];
        for (unsigned k = draw() % 4; k > 0; k--)
            bytes[draw() % bytes.size()] = static_cast<unsigned char>(draw());
        if (draw() % 4 == 0)
            bytes.resize(draw() % bytes.size());
        daemon_message message = message_of(ROWS_STACKS, bytes);
        int before = gathered.stacks.nranks;
        bool good = gathered_add(&gathered, &message);
        EXPECT_LE(gathered.stacks.nranks, STACKS_MOST);
        EXPECT_EQ(gathered.stacks.nranks > before, good && bytes[12] == 1);
        taken += good;
        if (i % 100 == 99)
            gathered_clear(&gathered);
    }
    EXPECT_GT(taken, 100);
    gathered_clear(&gathered);
}

/* More processes than a rank may have. Their number is where the messages differ first. */
TEST(Stacks, TooManyProcesses)
{
    Stacks seven(1, 7, 1), eight(1, 8, 1);
    Bytes bytes = eight.messages[0];
    size_t one = bytes.size() - seven.messages[0].size(), count = 0;
    while (bytes[count] == seven.messages[0][count])
        count++;
    ASSERT_EQ(bytes[count], 9);
    const Bytes last(bytes.end() - static_cast<ptrdiff_t>(one), bytes.end());
    for (int n = 9; n <= 200; n++) {
        gathered gathered = {};
        bytes[count] = static_cast<unsigned char>(n);
        daemon_message message = message_of(ROWS_STACKS, bytes);
        EXPECT_EQ(gathered_add(&gathered, &message), n == 9) << n;
        gathered_clear(&gathered);
        bytes.insert(bytes.end(), last.begin(), last.end());
    }
}

/* ---- nonsense -------------------------------------------------------------------------------- */

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
        for (uint16_t type = ROWS_REPORT; type <= ROWS_PACE; type++)
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

/*
 * Properties: whatever a snapshot holds, the analysis ends, reads nothing outside it and names only
 * what is in it; its time grows hardly faster than the snapshot; among 32,768 ranks it names
 * exactly the one that was planted. Method: seeded random rubbish, for sanitizers to watch
 * (FT_SEED=n runs one again); snapshots of the shapes that would make a careless search slow; a job
 * of four communicators a rank with a fault of each kind in seeded random places. Times are
 * printed.
 */
#include "diagnose_builder.h"

#include <chrono>
#include <climits>
#include <random>

namespace
{

using namespace diagnose;

struct Random {
    std::mt19937_64 source;
    explicit Random(uint64_t seed) : source(seed)
    {
    }
    int upto(int n)
    {
        return n > 0 ? (int)(source() % (uint64_t)(n + 1)) : 0;
    }
    template <class T> T pick(std::initializer_list<T> of)
    {
        return of.begin()[source() % of.size()];
    }
    uint64_t count()
    {
        return upto(9) ? (uint64_t)upto(4) : pick<uint64_t>({UINT64_MAX, UINT64_MAX - 1, 1u << 31});
    }
    uint64_t time()
    {
        return upto(5) ? ago(upto(30)) : pick<uint64_t>({0, 1, UINT64_MAX, NOW + SECOND});
    }
    uint64_t sig()
    {
        return upto(3) ? sig_of((enum ft_kind)upto(FT_KINDS - 1)) : source();
    }
    int number(int most)
    {
        return upto(9) ? upto(most) : pick({-1, -2, INT_MIN, INT_MAX, most + 1});
    }
};

/* ---- rubbish --------------------------------------------------------------------------------- */

ft_snap_member any_member(Random &random, int engines)
{
    ft_snap_member m = {};
    m.ctx = (uint64_t)random.upto(3);
    m.engine = random.number(engines - 1);
    m.rank = random.number(5);
    m.nranks = random.upto(5) ? 6 : random.pick({-1, 0, 1, 3, INT_MAX, INT_MIN});
    memset(m.name, random.pick<int>({0, 'x', 7, 200}), sizeof m.name);
    m.open = random.upto(7) != 0;
    m.failed = random.upto(7) == 0;
    m.joins = random.upto(7) == 0;
    m.arrived = random.number(5);
    m.opened_ns = random.time();
    m.status = random.pick({0, (int)FT_MISMATCH, (int)FT_LINK, (int)FT_PEER, (int)FT_CORRUPT,
                            (int)FT_TIMEOUT, INT_MIN, 5});
    m.culprit = random.number(5);
    for (uint64_t *n : {&m.called, &m.started, &m.done, &m.p2p_called, &m.p2p_started, &m.p2p_done,
                        &m.running_seq, &m.wait.step})
        *n = random.count();
    m.last = {random.sig(), random.time(), random.count(), random.number(9)};
    m.wait.peer = random.number(5);
    m.wait.sends = random.upto(1);
    m.running_sig = random.sig();
    m.running_since_ns = random.time();
    m.progress_ns = random.upto(3) ? m.running_since_ns : random.time();
    return m;
}

Job any_job(Random &random)
{
    int engines = random.upto(8);
    Job job(engines);
    job.unreadable = random.upto(2);
    for (auto &engine : job.engines) {
        engine.id = random.upto(9) ? engine.id : Job::id(0);
        engine.state = (enum ft_process_state)(random.upto(3) ? FT_PROCESS_RUNS : random.upto(4));
        memset(engine.hostname, random.pick<int>({0, 'h', 1}), sizeof engine.hostname);
        memset(engine.doing, random.pick<int>({0, 'd', 255}), sizeof engine.doing);
    }
    for (int i = random.upto(24); i > 0; i--)
        job.members.push_back(any_member(random, engines));
    for (int i = random.upto(30); i > 0; i--) {
        ft_snap_link link = Job::end_of(random.number(engines - 1), Job::id(random.upto(8)),
                                        random.upto(1) != 0, random.count());
        link.open = random.upto(5) != 0;
        job.links.push_back(link);
    }
    for (int i = random.upto(12); i > 0; i--)
        job.seats.push_back({(uint64_t)random.upto(3), random.number(5), Job::id(random.upto(12)),
                             random.count(), random.number(9), (enum ft_news)random.upto(6),
                             random.upto(1) != 0, random.number(9)});
    return job;
}

void check_text(const char *text)
{
    size_t length = strnlen(text, FT_SENTENCE);
    EXPECT_LT(length, (size_t)FT_SENTENCE);
    EXPECT_GT(length, 0u);
    for (size_t i = 0; i < length; i++)
        EXPECT_TRUE(text[i] >= ' ' && text[i] <= '~') << text;
}

void check_verdict(const Job &job, const ft_verdict &v)
{
    EXPECT_TRUE(v.kind > FT_VERDICT_HEALTHY && v.kind < FT_VERDICTS);
    EXPECT_TRUE(v.nculprits > 0 || v.kind == FT_VERDICT_UNKNOWN);
    check_text(v.sentence);
    ASSERT_LE(v.nchain, FT_CHAIN);
    for (int i = 0; i < v.nchain; i++)
        check_text(v.chain[i]);
    for (int i = 0; i < v.nculprits && i < FT_CULPRITS; i++) {
        const ft_culprit &c = v.culprits[i];
        EXPECT_EQ(c.peer >= 0, v.kind == FT_VERDICT_COMM_HANG_LINK);
        EXPECT_GE(c.rank, 0);
        EXPECT_LT(c.engine, (int)job.engines.size());
        if (c.engine >= 0) {
            EXPECT_EQ(c.pid, job.engines[(size_t)c.engine].pid);
        }
    }
}

void run_rubbish(uint64_t seed)
{
    Random random(seed);
    Job job = any_job(random);
    int capacity = random.upto(3) ? 16 : random.upto(2);
    ASSERT_NO_FATAL_FAILURE(job.diagnose(capacity));
    for (auto &v : job.verdicts)
        check_verdict(job, v);
}

TEST(Hostile, AnySnapshotEndsAndNamesWhatIsThere)
{
    const char *text = getenv("FT_SEED");
    uint64_t first = text ? strtoull(text, nullptr, 0) : 1, runs = text ? 1 : 20000;
    for (uint64_t seed = first; seed < first + runs && !HasFailure(); seed++) {
        run_rubbish(seed);
        if (HasFailure())
            printf("failed; run again with FT_SEED=%llu\n", (unsigned long long)seed);
    }
    printf("seeds from %llu, %llu runs\n", (unsigned long long)first, (unsigned long long)runs);
}

TEST(Hostile, CountsBelowZeroAreNone)
{
    ft_snapshot snap = {};
    snap.nengines = snap.nmembers = snap.nlinks = snap.nseats = -1;
    EXPECT_EQ(ft_diagnose_hang(&snap, PATIENCE, nullptr, 0), 0);
}

/* Members that cannot be, and a second one of a rank, are as if they were not there. */
TEST(Hostile, ImpossibleMembersAreNobody)
{
    Job job(3);
    job.comm(1, "c", {0, 1});
    job.waits(1, 0, 1);
    job.waits(1, 1, -1);
    ft_snap_member idle = job.of(1, 1);
    idle.called = idle.started = 5;
    idle.running_seq = idle.running_sig = 0;
    job.members.push_back(idle); /* has called less */
    idle.rank = 2;
    job.members.push_back(idle); /* of 2 */
    job.engines[2].state = FT_PROCESS_GONE;
    job.seats.push_back({1, 3, Job::id(2), 7, 4002, FT_NEWS_NONE, false, -1});
    job.expect({{FT_VERDICT_LIBRARY_STUCK, {{1, 1, -1}}}});
}

TEST(Hostile, TwoRanksInOneProcess)
{
    Job job(1);
    job.comm(1, "c", {0, 0});
    job.p2p(1, 0, 1, false);
    job.expect({{FT_VERDICT_NONCOMM_HANG, {{1, 1, -1}}}});
}

/* ---- shapes ---------------------------------------------------------------------------------- */

double timed(Job &job)
{
    auto start = std::chrono::steady_clock::now();
    job.diagnose();
    std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
    return took.count();
}

const int MANY = 50000;

std::vector<int> numbers(int n)
{
    std::vector<int> all;
    for (int i = 0; i < n; i++)
        all.push_back(i);
    return all;
}

/* One process claims to be in tens of thousands of communicators, and late in each. */
TEST(Shape, AProcessInAllCommunicators)
{
    Job job(2);
    for (int c = 0; c < MANY; c++) {
        job.comm(100 + (uint64_t)c, "c", {0, 1});
        job.waits(100 + (uint64_t)c, c & 1, !(c & 1));
    }
    printf("%d communicators of 2: %.3f s\n", MANY, timed(job));
    ASSERT_EQ(job.found, 1) << job.text();
    EXPECT_EQ(job.verdicts[0].kind, FT_VERDICT_DEADLOCK);
    EXPECT_EQ(job.verdicts[0].nculprits, 2);
}

/* A receive of each rank from the one before, tens of thousands deep. */
TEST(Shape, ALongChainOfReceives)
{
    Job job(MANY);
    job.comm(1, "pp", numbers(MANY));
    for (int r = 1; r < MANY; r++)
        job.p2p(1, r, r - 1, false, 12 + r % 7);
    printf("%d receives in a chain: %.3f s\n", MANY, timed(job));
    ASSERT_TRUE(job.said() == (std::vector<Said>{{FT_VERDICT_NONCOMM_HANG, {{1, 0, -1}}}}))
        << job.text();
    EXPECT_EQ(job.verdicts[0].nchain, FT_CHAIN / 2);
}

/* All receive from rank 0, which receives from a rank that is not there. */
TEST(Shape, AStarOfReceives)
{
    Job job(MANY);
    job.comm(1, "pp", numbers(MANY));
    for (int r = 1; r < MANY; r++)
        job.p2p(1, r, 0, false);
    job.p2p(1, 0, MANY - 1, false);
    job.lose(1, MANY - 1);
    printf("%d receives from one rank: %.3f s\n", MANY, timed(job));
    ASSERT_TRUE(job.said() == (std::vector<Said>{{FT_VERDICT_UNKNOWN, {{1, MANY - 1, -1}}}}))
        << job.text();
}

TEST(Shape, ANumberOfRanksThatIsAClaim)
{
    Job job(1);
    job.comm(1, "huge", {0});
    job.of(1, 0).nranks = INT_MAX;
    job.waits(1, 0, 77);
    job.expect({{FT_VERDICT_UNKNOWN, {{1, 77, -1}}}});
}

/* ---- 32,768 ranks ---------------------------------------------------------------------------- */

const int T = 8, D = 64, P = 64;

/* Process t + T (d + D p) in a tensor, a data, a pipeline group and the world. */
struct Cluster : Job {
    Cluster() : Job(T * D * P)
    {
        for (int p = 0; p < P; p++)
            for (int d = 0; d < D; d++)
                comm(tp(d, p), "tp", line(T, 1, T * (d + D * p)));
        for (int p = 0; p < P; p++)
            for (int t = 0; t < T; t++)
                comm(dp(t, p), "dp", line(D, T, t + T * D * p));
        for (int d = 0; d < D; d++)
            for (int t = 0; t < T; t++)
                comm(pp(t, d), "pp", line(P, T * D, t + T * d));
        comm(1, "world", numbers(T * D * P));
        for (int p = 0; p < P; p++)
            for (int d = 0; d < D; d++)
                for (int t = 0; t < T; t++)
                    link(tp(d, p), t, (t + 1) % T, 9, 9);
    }
    static std::vector<int> line(int n, int step, int first)
    {
        std::vector<int> all;
        for (int i = 0; i < n; i++)
            all.push_back(first + i * step);
        return all;
    }
    static uint64_t tp(int d, int p)
    {
        return 1000000 + (uint64_t)(d + D * p);
    }
    static uint64_t dp(int t, int p)
    {
        return 2000000 + (uint64_t)(t + T * p);
    }
    static uint64_t pp(int t, int d)
    {
        return 3000000 + (uint64_t)(t + T * d);
    }
    /* Rank t of the tensor group (d, p) does not come. Its group waits for it; the next stage waits
     * to receive from that group; replicas wait for both in their data groups; all others have
     * gone on to the world. */
    void hang(int t, int d, int p)
    {
        for (int i = 0; i < T; i++) {
            if (i != t)
                waits(tp(d, p), i, (i + T - 1) % T, 30);
            if (p + 1 < P)
                p2p(pp(i, d), p + 1, p, false, 29);
        }
        for (int q = 0; q < P; q++)
            for (int e = 0; e < D; e++)
                for (int i = 0; i < T; i++)
                    if (e != d && (q == p || q == p + 1))
                        waits(dp(i, q), e, (e + D - 1) % D, 28);
                    else if (q != p && q != p + 1)
                        waits(1, i + T * (e + D * q), (i + T * (e + D * q) + 1) % (T * D * P), 20);
    }
};

void plant(const Cluster &idle, int kind, Random &random)
{
    Cluster job = idle;
    int t = random.upto(T - 1), d = random.upto(D - 1), p = random.upto(P - 1);
    int process = t + T * (d + D * p);
    const enum ft_verdict_kind kinds[] = {FT_VERDICT_NONCOMM_HANG, FT_VERDICT_RANK_STOPPED,
                                          FT_VERDICT_RANK_DEAD, FT_VERDICT_STREAM_HANG,
                                          FT_VERDICT_COMM_HANG_LINK};
    job.hang(t, d, p);
    if (kind == 1 || kind == 2)
        job.engines[(size_t)process].state = kind == 1 ? FT_PROCESS_STOPPED : FT_PROCESS_GONE;
    if (kind == 3)
        job.calls(Cluster::tp(d, p), t, 30);
    if (kind == 4) {
        job.waits(Cluster::tp(d, p), t, (t + T - 1) % T, 30);
        job.links[2 * (size_t)process].messages++;
    }
    double took = timed(job);
    printf("%d ranks, %zu members, %s at t %d d %d p %d: %.3f s\n", T * D * P, job.members.size(),
           ft_verdict_name(kinds[kind]), t, d, p, took);
    ASSERT_EQ(job.found, 1) << job.text();
    EXPECT_EQ(job.verdicts[0].kind, kinds[kind]) << job.text();
    EXPECT_EQ(job.verdicts[0].nculprits, 1);
    EXPECT_EQ(job.verdicts[0].culprits[0].engine, process) << job.text();
    EXPECT_EQ(job.verdicts[0].culprits[0].peer, kind == 4 ? (t + 1) % T : -1);
}

TEST(Scale, ThePlantedOneIsNamedAmong32768)
{
    const char *text = getenv("FT_SEED");
    uint64_t seed = text ? strtoull(text, nullptr, 0) : std::random_device{}();
    printf("FT_SEED=%llu\n", (unsigned long long)seed);
    Random random(seed);
    Cluster idle;
    for (int i = 0; i < 10 && !HasFatalFailure(); i++)
        plant(idle, i % 5, random);
    idle.expect({});
}

} // namespace

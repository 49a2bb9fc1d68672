// Property: who computes slowly, and which link, source or destination is slow, is named exactly,
// and nobody without evidence. Method: small cases written down, and campaigns over ranks and
// patterns of communication with drawn faults (replay: FT_SEED).
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>
#include <random>
#include <set>
#include <string>
#include <vector>

extern "C" {
#include "diagnose/slow.h"
}
#include "tests/unit/diagnose_slow.h"

using std::string;
using std::vector;

static double ms_since(std::chrono::steady_clock::time_point start)
{
    using namespace std::chrono;
    return duration<double, std::milli>(steady_clock::now() - start).count();
}

// ---- who computes slowly -----------------------------------------------------------------------

struct Job {
    int nranks, nrounds = 5;
    double jitter = 0; // of computing
    vector<double> slow;
    explicit Job(int n) : nranks(n), slow(n, 1)
    {
    }

    // Rounds of 100 ms, of which 70 are computing.
    vector<double> inside(std::mt19937_64 &random) const
    {
        vector<double> all;
        std::normal_distribution<double> noise(0, jitter);
        for (int round = 0; round < nrounds; round++) {
            vector<double> computing(nranks);
            for (int r = 0; r < nranks; r++)
                computing[r] = 70e6 * slow[r] * (1 + noise(random));
            double last = *std::max_element(computing.begin(), computing.end());
            for (int r = 0; r < nranks; r++)
                all.push_back(30e6 + last - computing[r]);
        }
        return all;
    }
};

static vector<ft_slow_rank> find_slow(const vector<double> &inside, int nrounds, int nranks,
                                      double round_ns = 100e6, int capacity = 16)
{
    ft_inside in = {inside.data(), nrounds, nranks, round_ns};
    vector<ft_slow_rank> out(size_t(std::max(capacity, 0)));
    int found = ft_slow_compute(&in, out.data(), capacity);
    EXPECT_GE(found, 0);
    out.resize(size_t(std::max(0, std::min(found, capacity))));
    return out;
}

TEST(SlowCompute, WhoWaitsLeast)
{
    std::mt19937_64 random(slow_seed());
    Job job(8);
    EXPECT_TRUE(find_slow(job.inside(random), 5, 8).empty());
    job.slow[3] = 1.3;
    job.slow[5] = 1.2;
    vector<ft_slow_rank> found = find_slow(job.inside(random), 5, 8);
    ASSERT_EQ(found.size(), 2u);
    EXPECT_EQ(found[0].rank, 3);
    EXPECT_EQ(found[0].votes, 5);
    EXPECT_NEAR(found[0].behind_ns, 21e6, 1);
    EXPECT_EQ(found[1].rank, 5);
    EXPECT_EQ(find_slow(job.inside(random), 5, 8, 0).size(), 2u) << "length of the round unknown";
    EXPECT_EQ(find_slow(job.inside(random), 5, 8, 100e6, 1)[0].rank, 3);
    EXPECT_TRUE(find_slow(job.inside(random), 5, 8, 100e6, 0).empty());
    job.nrounds = 4;
    EXPECT_TRUE(find_slow(job.inside(random), 4, 8).empty()) << "too few rounds for a vote";
}

TEST(SlowCompute, OneOfTwo)
{
    std::mt19937_64 random(slow_seed());
    Job job(2);
    job.slow[1] = 1.3;
    vector<ft_slow_rank> found = find_slow(job.inside(random), 5, 2);
    ASSERT_EQ(found.size(), 1u);
    EXPECT_EQ(found[0].rank, 1);
}

TEST(SlowCompute, FourOfFiveRoundsAreNeeded)
{
    vector<double> inside(5 * 4, 50e6);
    for (int round = 0; round < 3; round++)
        inside[round * 4 + 2] = 10e6;
    EXPECT_TRUE(find_slow(inside, 5, 4).empty());
    inside[3 * 4 + 2] = 10e6;
    ASSERT_EQ(find_slow(inside, 5, 4).size(), 1u);
    EXPECT_EQ(find_slow(inside, 5, 4)[0].votes, 4);
    inside[4 * 4 + 2] = NAN; // one round is unknown: four are too few
    EXPECT_TRUE(find_slow(inside, 5, 4).empty());
}

TEST(SlowCompute, Hostile)
{
    std::mt19937_64 random(slow_seed());
    const double hostile[] = {NAN, INFINITY, -INFINITY, -1, 0, 1e308, 5e-324};
    for (int round = 0; round < 300; round++) {
        int nranks = int(random() % 6), nrounds = int(random() % 9);
        vector<double> inside(size_t(nranks * nrounds));
        for (double &x : inside)
            x = hostile[random() % 7];
        for (const ft_slow_rank &slow : find_slow(inside, nrounds, nranks, hostile[random() % 7]))
            EXPECT_TRUE(slow.rank >= 0 && slow.rank < nranks) << slow.rank;
    }
    EXPECT_TRUE(find_slow({}, -5, -3).empty());
    EXPECT_TRUE(find_slow(vector<double>(50, 0), 5, 10).empty());
}

TEST(SlowCompute, Campaign)
{
    std::mt19937_64 random(slow_seed());
    int wanted = 0, missed = 0, untrue = 0, rounds = 2000;
    for (int i = 0; i < rounds; i++) {
        Job job(3 + int(random() % (i % 10 ? 60 : 2000)));
        job.nrounds = 5 + int(random() % 6);
        job.jitter = double(random() % 51) / 1000;
        std::set<int> truth;
        for (size_t k = random() % 3; k > 0 && job.nranks > 6; k--)
            truth.insert(int(random() % job.nranks));
        for (int rank : truth)
            job.slow[rank] = 1.3 + double(random() % 10) / 10;
        if (truth.empty())
            job.jitter *= 2;
        std::set<int> said;
        for (const ft_slow_rank &slow : find_slow(job.inside(random), job.nrounds, job.nranks))
            said.insert(slow.rank);
        wanted += int(truth.size());
        for (int rank : truth)
            missed += !said.count(rank);
        for (int rank : said)
            untrue += !truth.count(rank);
    }
    printf("slow ranks: %d jobs, %d slow ranks, %d missed, %d untrue\n", rounds, wanted, missed,
           untrue);
    EXPECT_LE(untrue, 2) << "about one in 20 runs has one";
    EXPECT_LE(missed, wanted / 50);
}

// ---- which link --------------------------------------------------------------------------------

using Pairs = vector<std::pair<int, int>>;

static Pairs ring(int n)
{
    Pairs pairs;
    for (int r = 0; r < n; r++)
        pairs.push_back({r, (r + 1) % n});
    return pairs;
}

static Pairs tree(int n)
{
    Pairs pairs;
    for (int r = 1; r < n; r++) {
        pairs.push_back({r, (r - 1) / 2});
        pairs.push_back({(r - 1) / 2, r});
    }
    return pairs;
}

static Pairs doubling(int n)
{
    Pairs pairs;
    for (int r = 0; r < n; r++)
        for (int bit = 1; bit < n; bit *= 2)
            if ((r ^ bit) < n)
                pairs.push_back({r, r ^ bit});
    return pairs;
}

static Pairs everyone(int n)
{
    Pairs pairs;
    for (int r = 0; r < n; r++)
        for (int s = 0; s < n; s++)
            if (r != s)
                pairs.push_back({r, s});
    return pairs;
}

// 1,000 messages of `bytes` on each link, 10 us each.
static vector<ft_delay> delays_of(const Pairs &pairs, uint64_t bytes = 4096)
{
    vector<ft_delay> delays;
    for (auto [from, to] : pairs)
        delays.push_back({from, to, bytes * 1000, 1000, 10000000});
    return delays;
}

static void slow_down(vector<ft_delay> &delays, int from, int to, double factor)
{
    for (ft_delay &d : delays)
        if ((from < 0 || d.source == from) && (to < 0 || d.destination == to))
            d.network_ns = uint64_t(double(d.network_ns) * factor);
}

static vector<ft_slow_link> find_links(const vector<ft_delay> &delays, int nranks,
                                       int capacity = 64)
{
    ft_delay_matrix matrix = {delays.data(), delays.size(), nranks, 0, 0};
    vector<ft_slow_link> out(size_t(std::max(capacity, 0)));
    int found = ft_slow_links(&matrix, out.data(), capacity);
    EXPECT_GE(found, 0);
    out.resize(size_t(std::max(0, std::min(found, capacity))));
    return out;
}

static string text(const vector<ft_slow_link> &links)
{
    string all;
    for (const ft_slow_link &l : links)
        all += (l.shape == FT_DELAY_POINT ? "point "
                : l.shape == FT_DELAY_ROW ? "row "
                                          : "column ") +
               std::to_string(l.source) + ">" + std::to_string(l.destination) + ";";
    return all;
}

TEST(SlowLinks, PointRowColumn)
{
    for (auto pattern : {everyone, doubling}) {
        vector<ft_delay> delays = delays_of(pattern(16));
        EXPECT_EQ(text(find_links(delays, 16)), "");
        slow_down(delays, 5, 4, 3);
        EXPECT_EQ(text(find_links(delays, 16)), "point 5>4;");
        EXPECT_NEAR(find_links(delays, 16)[0].ratio, 3, 1e-3);
        delays = delays_of(pattern(16));
        slow_down(delays, 5, -1, 2);
        EXPECT_EQ(text(find_links(delays, 16)), "row 5>-1;");
        EXPECT_NEAR(find_links(delays, 16)[0].ratio, 2, 1e-3);
        EXPECT_EQ(find_links(delays, 16)[0].votes, pattern == everyone ? 15 : 4);
        EXPECT_EQ(find_links(delays, 16)[0].links, pattern == everyone ? 15 : 4);
        slow_down(delays, -1, 9, 4);
        slow_down(delays, 1, 3, 7);
        EXPECT_EQ(text(find_links(delays, 16)), "row 5>-1;column -1>9;point 1>3;");
        EXPECT_EQ(text(find_links(delays, 16, 1)), "row 5>-1;");
        EXPECT_EQ(text(find_links(delays, 16, 0)), "");
    }
}

TEST(SlowLinks, OneSlowLinkIsNoSlowRank)
{
    vector<ft_delay> delays = delays_of(ring(8));
    slow_down(delays, 2, 3, 5);
    EXPECT_EQ(text(find_links(delays, 8)), "point 2>3;");
    delays = delays_of(tree(15));
    slow_down(delays, 1, 0, 5); // 1 has three links out
    EXPECT_EQ(text(find_links(delays, 15)), "point 1>0;");
    // two connections to the same rank are one link
    Pairs pairs = ring(8), twice = ring(8);
    pairs.insert(pairs.end(), twice.begin(), twice.end());
    delays = delays_of(pairs);
    slow_down(delays, 2, 3, 5);
    EXPECT_EQ(text(find_links(delays, 8)), "point 2>3;");
}

// As the links of a job are judged: three times as slow as usual, and few links.
static string text_of_three(const vector<ft_delay> &delays, int nranks)
{
    ft_slow_link out[16];
    ft_delay_matrix matrix = {delays.data(), delays.size(), nranks, 3, 2};
    return text(vector<ft_slow_link>(out, out + ft_slow_links(&matrix, out, 16)));
}

TEST(SlowLinks, ASideIsSlowOnceOneOfItsLinksIs)
{
    vector<ft_delay> delays = delays_of(everyone(4));
    slow_down(delays, -1, 2, 2.3);
    EXPECT_EQ(text_of_three(delays, 4), "") << "none is";
    slow_down(delays, 0, 2, 1.4);
    EXPECT_EQ(text_of_three(delays, 4), "column -1>2;");
    delays = delays_of(everyone(4));
    slow_down(delays, 0, 2, 10);
    slow_down(delays, 1, 2, 2.3);
    slow_down(delays, 3, 2, 2.3);
    EXPECT_EQ(text_of_three(delays, 4), "point 0>2;") << "the others are slow in comparison";
}

TEST(SlowLinks, APointStandsOutFromItsRowAndColumn)
{
    vector<ft_delay> delays = delays_of(everyone(4));
    slow_down(delays, 0, 2, 3.2);
    EXPECT_EQ(text_of_three(delays, 4), "point 0>2;");
    slow_down(delays, 1, 2, 2.5);
    slow_down(delays, 3, 2, 1.6);
    EXPECT_EQ(text_of_three(delays, 4), "") << "it may be the column";
    slow_down(delays, 0, 2, 3);
    EXPECT_EQ(text_of_three(delays, 4), "point 0>2;");
}

TEST(SlowLinks, TheWayBackOfAPoint)
{
    vector<ft_delay> delays = delays_of(everyone(4));
    slow_down(delays, 0, 2, 4);
    slow_down(delays, 2, 0, 1.9);
    EXPECT_EQ(text_of_three(delays, 4), "point 0>2;");
    slow_down(delays, 2, 0, 1.1);
    EXPECT_EQ(text_of_three(delays, 4), "point 0>2;point 2>0;");
}

TEST(SlowLinks, TheWayBackIntoASlowColumnIsNoPoint)
{
    vector<ft_delay> delays = delays_of(everyone(4));
    slow_down(delays, -1, 2, 5);
    slow_down(delays, 2, 0, 4);
    EXPECT_EQ(text_of_three(delays, 4), "column -1>2;");
    slow_down(delays, 2, 0, 2);
    EXPECT_EQ(text_of_three(delays, 4), "column -1>2;point 2>0;") << "slower than its way back";
}

TEST(SlowLinks, SizesAreComparedWithTheirLike)
{
    vector<ft_delay> delays = delays_of(doubling(16)), large = delays_of(ring(16), 1 << 22);
    for (ft_delay &d : large) // 4 MB, 2 ms each, towards others than above
        d = {d.source, (d.source + 3) % 16, d.bytes, d.messages, 2000000000};
    delays.insert(delays.end(), large.begin(), large.end());
    EXPECT_EQ(text(find_links(delays, 16)), "");
    slow_down(delays, 4, 7, 4);
    EXPECT_EQ(text(find_links(delays, 16)), "point 4>7;");
}

TEST(SlowLinks, TooLittleTellsNothing)
{
    EXPECT_EQ(text(find_links({}, 0)), "");
    vector<ft_delay> delays = delays_of(ring(2));
    slow_down(delays, 0, 1, 100);
    EXPECT_EQ(text(find_links(delays, 2)), "");
    delays = delays_of(ring(5));
    slow_down(delays, 2, 3, 1.6);
    EXPECT_EQ(text(find_links(delays, 5)), "") << "four may be alike by chance";
    delays = delays_of(everyone(8));
    slow_down(delays, 3, -1, 1.3);
    EXPECT_EQ(text(find_links(delays, 8)), "") << "less than the ratio";
    ft_slow_link out[8];
    ft_delay_matrix matrix = {delays.data(), delays.size(), 8, 1.2, 0};
    EXPECT_EQ(ft_slow_links(&matrix, out, 8), 1);
}

TEST(SlowLinks, Hostile)
{
    std::mt19937_64 random(slow_seed());
    const uint64_t hostile[] = {0, 1, 1000, UINT64_MAX, UINT64_MAX / 2, 1ull << 53};
    const int ranks[] = {-1, 0, 1, 2, 3, 4, 5, INT32_MAX, INT32_MIN};
    for (int round = 0; round < 500; round++) {
        vector<ft_delay> delays(random() % 60);
        for (ft_delay &d : delays)
            d = {ranks[random() % 9], ranks[random() % 9], hostile[random() % 6],
                 hostile[random() % 6], hostile[random() % 6]};
        for (const ft_slow_link &l : find_links(delays, 6, 3)) {
            EXPECT_TRUE(l.source >= -1 && l.source < 6) << l.source;
            EXPECT_TRUE(l.destination >= -1 && l.destination < 6) << l.destination;
            EXPECT_TRUE(std::isfinite(l.ratio) && l.votes <= l.links) << l.ratio;
        }
    }
    for (double ratio : {double(NAN), -1.0, double(INFINITY), 1.0}) {
        vector<ft_delay> delays = delays_of(everyone(8));
        slow_down(delays, 3, -1, 2);
        ft_slow_link out;
        ft_delay_matrix matrix = {delays.data(), delays.size(), 8, ratio, 0};
        EXPECT_EQ(ft_slow_links(&matrix, &out, 1), 1) << ratio;
    }
}

// A fault of a rank with one link in that direction looks like a slow link.
static string truth_of(const Pairs &pairs, int from, int to)
{
    Pairs hit;
    for (auto pair : pairs)
        if ((from < 0 || pair.first == from) && (to < 0 || pair.second == to))
            hit.push_back(pair);
    ft_slow_link link = {FT_DELAY_POINT, hit[0].first, hit[0].second, 0, 0, 0};
    if (hit.size() > 1)
        link = {from < 0 ? FT_DELAY_COLUMN : FT_DELAY_ROW, from, to, 0, 0, 0};
    return text({link});
}

TEST(SlowLinks, Campaign)
{
    std::mt19937_64 random(slow_seed());
    Pairs (*const patterns[])(int) = {ring, tree, doubling, everyone};
    int rounds = 2000, wrong = 0, untrue = 0, faults = 0;
    for (int i = 0; i < rounds; i++) {
        int n = 4 + int(random() % (i % 4 == 3 ? 30 : 500));
        Pairs pairs = patterns[i % 4](n);
        vector<ft_delay> delays = delays_of(pairs, 1ull << (8 + random() % 16));
        double noise = 0.02 + double(random() % 20) / 100;
        std::normal_distribution<double> jitter(0, noise);
        for (ft_delay &d : delays)
            d.network_ns = uint64_t(double(d.network_ns) * exp(jitter(random)));
        string truth;
        if (int kind = int(random() % 4)) {
            auto pair = pairs[random() % pairs.size()];
            int from = kind == 3 ? -1 : pair.first, to = kind == 2 ? -1 : pair.second;
            slow_down(delays, from, to,
                      std::max(2.5, exp(10 * noise * (1 + 6.0 / double(pairs.size())))));
            truth = truth_of(pairs, from, to);
            faults++;
        }
        string said = text(find_links(delays, n));
        wrong += !truth.empty() && said != truth;
        untrue += truth.empty() && !said.empty();
        if (said != truth)
            printf("job %d of %d ranks, jitter %g: truth %s, said %s\n", i, n, noise, truth.c_str(),
                   said.c_str());
    }
    printf("links: %d jobs, %d faults: %d not exactly named, %d healthy jobs blamed\n", rounds,
           faults, wrong, untrue);
    EXPECT_LE(untrue, 2) << "about one in 20 runs has one";
    EXPECT_LE(wrong, faults / 50);
}

TEST(SlowLinks, ThirtyTwoThousandRanks)
{
    const int n = 32768;
    vector<ft_delay> delays = delays_of(doubling(n));
    slow_down(delays, 12345, -1, 3);
    auto start = std::chrono::steady_clock::now();
    EXPECT_EQ(text(find_links(delays, n)), "row 12345>-1;");
    printf("%zu links: %.0f ms\n", delays.size(), ms_since(start));
    std::mt19937_64 random(slow_seed());
    Job job(n);
    job.jitter = 0.02;
    job.slow[777] = 1.3;
    vector<double> inside = job.inside(random);
    start = std::chrono::steady_clock::now();
    EXPECT_EQ(find_slow(inside, 5, n).size(), 1u);
    printf("5 rounds of %d ranks: %.0f ms\n", n, ms_since(start));
}

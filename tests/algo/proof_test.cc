// Property: every algorithm brings each contribution to each place exactly once, in the same order
// of operations on all ranks, without deadlock and within the rules of algo.h. This holds for every
// kind it supports, for 1 to 64 ranks, and for sampled counts, chunks, roots, host layouts and
// placements. Method: symbolic execution of all ranks, see checker.h.
#include <chrono>
#include <gtest/gtest.h>

#include "checker.h"

namespace
{

constexpr int kMaxRanks = 64, kExhaustive = 9, kSamples = 16;

uint64_t seed()
{
    static const uint64_t value = [] {
        uint64_t given = (uint64_t)testing::GTEST_FLAG(random_seed);
        if (!given)
            given = (uint64_t)std::chrono::steady_clock::now().time_since_epoch().count() % 99998 +
                    1;
        printf("seed %llu; replay with --gtest_random_seed=%llu\n", (unsigned long long)given,
               (unsigned long long)given);
        return given;
    }();
    return value;
}

// Layouts of ranks on hosts, numbered by lowest rank: one host, each rank its own, unequal blocks,
// round robin, random.
constexpr int kLayouts = 5, kMostHosts = 5;
std::vector<int> layout(int which, int n, std::mt19937_64 &random)
{
    std::vector<int> host((size_t)n), number((size_t)n + kMostHosts, -1);
    int hosts = which == 1 ? n : 2 + (int)(random() % (kMostHosts - 1)), next = 0;
    for (int r = 0; r < n; r++) {
        int h = which == 0   ? 0
                : which == 1 ? r
                : which == 2 ? (r * r) * hosts / (n * n)
                : which == 3 ? r % hosts
                             : (int)(random() % hosts);
        if (number[h] < 0)
            number[h] = next++;
        host[r] = number[h];
    }
    return host;
}

Case sample(const struct ft_algo *algo, enum ft_kind kind, int n, std::mt19937_64 &random)
{
    static const enum ft_type types[] = {FT_INT8, FT_FLOAT16, FT_FLOAT32, FT_FLOAT64};
    Case c;
    c.algo = algo;
    enum ft_type type = types[random() % 4];
    size_t esize = ft_type_size(type), chunk = 1 + random() % 5;
    bool whole = kind == FT_ALLREDUCE || kind == FT_BROADCAST || kind == FT_REDUCE;
    size_t most = whole ? (n <= 16 ? 12 * n : 3 * n) : n <= 16 ? 24 : 6;
    const size_t counts[] = {0, 1, (size_t)n - 1, (size_t)n, (size_t)n + 1, chunk, 3 * chunk + 1};
    size_t count = random() % 2 ? random() % (most + 1) : counts[random() % 7];
    if (!whole && n > 16)
        count = std::min(count, most);
    c.coll = {kind, type, FT_SUM, (int)(random() % n), count};
    if (random() % 4 == 0)
        chunk = (size_t)n * (1 + count); // whole runs of blocks in one message
    c.chunk_bytes = chunk * esize + random() % esize;
    c.chunks = 1 + (int)(random() % FT_LANES);
    c.host = layout((int)(random() % kLayouts), n, random);
    c.in_place = (InPlace)(random() % 3);
    c.hand = random() % 4 != 0;
    c.window = c.hand ? 1 : 2;
    c.seed = random();
    c.pulls = static_cast<ft_pulls>(random() % 3);
    c.peer_lanes = random() % 2;
    return c;
}

bool has_root(enum ft_kind kind)
{
    return kind == FT_BROADCAST || kind == FT_REDUCE || kind == FT_GATHER || kind == FT_SCATTER;
}

class Proof : public testing::TestWithParam<int>
{
};

TEST_P(Proof, EveryRankCountSampled)
{
    const struct ft_algo *algo = ft_algos[GetParam()];
    std::mt19937_64 random(seed() * 1000 + (uint64_t)GetParam());
    int proved = 0;
    for (int n = 1; n <= kMaxRanks; n++) {
        for (int kind = 0; kind < FT_SEND; kind++) {
            for (int i = 0; i < (n <= kExhaustive ? 40 : kSamples); i++) {
                Case c = sample(algo, (enum ft_kind)kind, n, random);
                if (!applies(c))
                    continue;
                ASSERT_EQ(check(c), "");
                proved++;
            }
        }
    }
    printf("%s: %d cases proved\n", algo->name, proved);
    EXPECT_GT(proved, 0);
}

TEST_P(Proof, FewRanksExhaustively)
{
    const struct ft_algo *algo = ft_algos[GetParam()];
    std::mt19937_64 random(seed() * 1000 + 500 + (uint64_t)GetParam());
    for (int n = 1; n <= kExhaustive; n++)
        for (int kind = 0; kind < FT_SEND; kind++)
            for (int root = 0; root < (has_root((enum ft_kind)kind) ? n : 1); root++)
                for (size_t count :
                     {(size_t)0, (size_t)1, (size_t)n, (size_t)(2 * n + 1), (size_t)23})
                    for (int which = 0; which < kLayouts; which++) {
                        Case c = sample(algo, (enum ft_kind)kind, n, random);
                        c.coll.root = root;
                        c.coll.count = count;
                        c.host = layout(which, n, random);
                        if (!applies(c))
                            continue;
                        ASSERT_EQ(check(c), "");
                    }
}

int registered()
{
    int count = 0;
    while (ft_algos[count])
        count++;
    return count;
}

std::string name_of(const testing::TestParamInfo<int> &which)
{
    return ft_algos[which.param]->name;
}

INSTANTIATE_TEST_SUITE_P(Algorithms, Proof, testing::Range(0, registered()), name_of);

} // namespace

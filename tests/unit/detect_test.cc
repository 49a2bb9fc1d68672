// Properties: every rank has about log2(n) watchers, watching is the reverse of being watched, and
// all ranks hear of all over it. A peer whose heartbeats stop is suspected within suspect + beat +
// tick of this process's running time. A peer whose heartbeats arrive within `suspect` of that time
// is never suspected, however this process was stopped in between. A heartbeat ends the suspicion.
// Method: virtual time; random pauses, periods and delays from a printed seed. Replay:
// FT_SEED=<seed> detect_test.
#include <cstdlib>
#include <random>
#include <set>
#include <vector>

#include <gtest/gtest.h>

extern "C" {
#include "membership/membership.h"
}

namespace
{

const uint64_t ms = 1000000;

std::mt19937_64 &dice()
{
    static std::mt19937_64 generator = [] {
        const char *given = getenv("FT_SEED");
        uint64_t seed = given ? strtoull(given, nullptr, 0) : std::random_device()();
        printf("replay: FT_SEED=%llu detect_test\n", (unsigned long long)seed);
        return std::mt19937_64(seed);
    }();
    return generator;
}

uint64_t pick(uint64_t low, uint64_t high)
{
    return low + dice()() % (high - low + 1);
}

TEST(Overlay, WatchersAreFewDistinctAndMutual)
{
    for (int n = 1; n <= 130; n++) {
        std::vector<std::set<int>> watchers((size_t)n), watched((size_t)n);
        for (int r = 0; r < n; r++) {
            int out[FT_WATCHERS_MAX];
            int count = ft_detect_watchers(n, r, out, FT_WATCHERS_MAX);
            watchers[(size_t)r] = std::set<int>(out, out + count);
            EXPECT_EQ((int)watchers[(size_t)r].size(), count) << "distinct";
            EXPECT_EQ(watchers[(size_t)r].count(r), 0u) << "not itself";
            int logarithm = 0;
            while (1 << logarithm < n)
                logarithm++;
            EXPECT_EQ(count, logarithm);
            count = ft_detect_watched(n, r, out, FT_WATCHERS_MAX);
            watched[(size_t)r] = std::set<int>(out, out + count);
        }
        for (int r = 0; r < n; r++) {
            for (int w : watchers[(size_t)r])
                EXPECT_EQ(watched[(size_t)w].count(r), 1u) << n << ": " << w << " watches " << r;
            EXPECT_EQ(watched[(size_t)r].size(), watchers[(size_t)r].size());
        }
    }
    int out[FT_WATCHERS_MAX];
    EXPECT_EQ(ft_detect_watchers(2147483647, 2147483646, out, FT_WATCHERS_MAX), 31);
    for (int i = 0; i < 31; i++)
        EXPECT_TRUE(out[i] >= 0 && out[i] < 2147483646);
    EXPECT_EQ(ft_detect_watchers(8, 0, out, 2), 2);
}

TEST(Suspicion, ComesAndGoes)
{
    ft_detect d;
    ft_pulse p = {}, never = {};
    uint64_t now = 5000 * ms, beat = 250 * ms, suspect = 2000 * ms;
    ft_detect_open(&d, beat, suspect, now);
    EXPECT_FALSE(ft_detect_heard(&d, &p, now));
    uint64_t since = now;
    bool missed = false;
    while (!missed && now - since < 10000 * ms) {
        now += 10 * ms;
        ft_detect_tick(&d, now);
        missed = ft_detect_missed(&d, &p);
        EXPECT_FALSE(ft_detect_missed(&d, &never)) << "who was never heard is not watched";
    }
    EXPECT_TRUE(missed);
    EXPECT_EQ(now - since, suspect + 10 * ms);
    EXPECT_TRUE(p.suspected);
    EXPECT_FALSE(ft_detect_missed(&d, &p)) << "told once";
    EXPECT_TRUE(ft_detect_heard(&d, &p, now)) << "recovered";
    EXPECT_FALSE(p.suspected);
    EXPECT_FALSE(ft_detect_heard(&d, &p, now));
}

TEST(Suspicion, ClockThatStandsOrGoesBackIsHarmless)
{
    ft_detect d;
    ft_pulse p = {};
    ft_detect_open(&d, 250 * ms, 2000 * ms, 1000 * ms);
    ft_detect_heard(&d, &p, 1000 * ms);
    for (int i = 0; i < 1000; i++) {
        ft_detect_tick(&d, i % 2 ? 1000 * ms : 900 * ms);
        ft_detect_heard(&d, &p, 800 * ms);
        EXPECT_FALSE(ft_detect_missed(&d, &p));
    }
}

// We are stopped for an hour; the others are not to blame, and have a whole suspect_ns after it,
// less one beat.
TEST(Suspicion, OurOwnPauseIsNotCounted)
{
    ft_detect d;
    ft_pulse p = {};
    uint64_t now = 0;
    ft_detect_open(&d, 250 * ms, 2000 * ms, now);
    ft_detect_heard(&d, &p, now);
    for (int i = 0; i < 7; i++) {
        now += 3600000 * ms;
        ft_detect_tick(&d, now);
        EXPECT_FALSE(ft_detect_missed(&d, &p)) << "after pause " << i;
    }
}

// A rank with random ticks and pauses, a peer whose beats come at random times of the rank's own
// running time.
TEST(Suspicion, NeverFalseAndNeverLate)
{
    const int rounds = getenv("FT_ROUNDS") ? atoi(getenv("FT_ROUNDS")) : 300;
    for (int round = 0; round < rounds && !HasFailure(); round++) {
        uint64_t beat = pick(1, 500) * ms, suspect = beat * pick(2, 10),
                 now = pick(0, 1000000) * ms;
        uint64_t running = 0, next_beat, last_beat = 0, most_tick = pick(1, beat / ms) * ms;
        bool alive = true;
        ft_detect d;
        ft_pulse p = {};
        ft_detect_open(&d, beat, suspect, now);
        ft_detect_heard(&d, &p, now);
        next_beat = pick(0, suspect);
        for (int i = 0; i < 2000; i++) {
            uint64_t gap = pick(0, 20) == 0 ? pick(0, 100) * beat : pick(1, most_tick),
                     counted = std::min(gap, beat);
            while (alive &&
                   next_beat <=
                       running +
                           counted) { // taken at its time within the gap, as far as that is counted
                EXPECT_FALSE(ft_detect_heard(&d, &p, now + (next_beat - running)))
                    << "falsely suspected in round " << round;
                last_beat = next_beat;
                next_beat += pick(0, suspect);
            }
            now += gap;
            running += counted;
            ft_detect_tick(&d, now);
            bool missed = ft_detect_missed(&d, &p);
            EXPECT_FALSE(alive && missed) << "round " << round << ", step " << i << ": "
                                          << (running - last_beat) / ms << " of " << suspect / ms;
            EXPECT_FALSE(missed && running > last_beat + suspect + beat)
                << "late in round " << round;
            EXPECT_TRUE(alive || p.suspected || running <= last_beat + suspect)
                << "never, in round " << round;
            if (alive && i == 1500)
                alive = false;
        }
    }
}

} // namespace

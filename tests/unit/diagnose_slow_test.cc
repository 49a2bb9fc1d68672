// Property: from times of calls the analysis finds steps, the step at which they became slower, and
// the rank or link that does it; it names nobody without evidence, and hostile input does no harm.
// Method: exact small cases, and campaigns of seeded series whose truth is known (replay: FT_SEED).
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <random>
#include <string>
#include <vector>

extern "C" {
#include "diagnose/slow.h"
#include "diagnose/slow_stats.h"
}
#include "tests/unit/diagnose_slow.h"

using std::vector;

static const double not_numbers[] = {NAN, INFINITY, -INFINITY, 0, -1, 1e308, 5e-324};

TEST(SlowStats, MedianDeviationMidmean)
{
    vector<double> v = {5, 1, 4, 2, 3};
    EXPECT_EQ(ft_median(v.data(), 5), 3);
    v = {4, 1, 3, 2};
    EXPECT_EQ(ft_median(v.data(), 4), 2) << "the lower one";
    EXPECT_EQ(ft_median(v.data(), 0), 0);
    EXPECT_EQ(ft_select(v.data(), 4, 3), 4);
    EXPECT_EQ(ft_select(v.data(), 4, 99), 4);
    v = {1, 2, 3, 4, 100};
    EXPECT_DOUBLE_EQ(ft_deviation(v.data(), 5, 3), 1.4826);
    v = {100, 2, 3, -50};
    EXPECT_DOUBLE_EQ(ft_midmean(v.data(), 4), 2.5);
    EXPECT_EQ(ft_midmean(v.data(), 0), 0);
}

TEST(SlowStats, SelectEqualsSort)
{
    std::mt19937_64 random(slow_seed());
    for (int round = 0; round < 300; round++) {
        vector<double> v(1 + random() % 200);
        for (double &x : v)
            x = double(random() % (round % 3 ? 1000 : 4));
        vector<double> sorted = v;
        std::sort(sorted.begin(), sorted.end());
        size_t k = random() % v.size();
        ASSERT_EQ(ft_select(v.data(), v.size(), k), sorted[k]) << "k " << k << " of " << v.size();
    }
}

TEST(SlowStats, StudentHasItsDensity)
{
    const double pi = 3.14159265358979323846;
    EXPECT_NEAR(ft_log_student(0, 1, 0, 1), -log(pi), 1e-12) << "Cauchy";
    EXPECT_NEAR(ft_log_student(3, 1, 1, 2), -log(pi * 2 * 2), 1e-12);
    EXPECT_NEAR(ft_log_student(1, 1e7, 0, 1), -0.5 - log(2 * pi) / 2, 1e-6) << "normal";
}

// ---- periods -----------------------------------------------------------------------------------

// Steps of the given calls, 1 ms apart, 10 ms before each step.
struct Calls {
    vector<uint64_t> sigs, times;
    uint64_t now = 0;
    void call(uint64_t sig, uint64_t gap_ns = 1000000)
    {
        now += gap_ns;
        sigs.push_back(sig);
        times.push_back(now);
    }
    void step(const vector<uint64_t> &calls)
    {
        for (size_t i = 0; i < calls.size(); i++)
            call(calls[i], i ? 1000000 : 10000000);
    }
    ft_call_series series(bool timed = true) const
    {
        return {sigs.data(), timed ? times.data() : nullptr, sigs.size()};
    }
    ft_step_mark period(size_t max_lag = 64, bool timed = true) const
    {
        ft_call_series s = series(timed);
        ft_step_mark mark;
        int found = ft_period(&s, max_lag, &mark);
        EXPECT_EQ(found, int(mark.period));
        return mark;
    }
    vector<double> steps(const ft_step_mark &mark) const
    {
        ft_call_series s = series();
        vector<uint64_t> begins(sigs.size());
        begins.resize(ft_step_begins(&s, &mark, begins.data(), begins.size()));
        vector<double> out;
        for (size_t i = 1; i < begins.size(); i++)
            out.push_back(begins[i] > begins[i - 1] ? double(begins[i] - begins[i - 1]) : 0);
        return out;
    }
};

TEST(SlowPeriod, FirstLagOfARepeatingSeries)
{
    Calls calls;
    for (int i = 0; i < 40; i++)
        calls.step({7, 7, 9, 1ull << 60});
    ft_step_mark mark = calls.period();
    EXPECT_EQ(mark.period, 4u);
    EXPECT_EQ(mark.every, 1u);
    EXPECT_NE(mark.sig, 7u) << "comes twice in a step";
    vector<double> steps = calls.steps(mark);
    ASSERT_EQ(steps.size(), 39u);
    for (double step : steps)
        EXPECT_EQ(step, 13e6);
}

TEST(SlowPeriod, APeriodWithoutACallOfItsOwn)
{
    Calls calls;
    for (int i = 0; i < 40; i++)
        calls.step({1, 1, 2, 2});
    ft_step_mark mark = calls.period();
    EXPECT_EQ(mark.period, 4u);
    EXPECT_EQ(mark.every, 2u);
    EXPECT_EQ(calls.steps(mark)[0], 13e6);
}

TEST(SlowPeriod, ACheckpointEveryFiftySteps)
{
    Calls calls;
    for (int i = 0; i < 400; i++) {
        calls.step({1, 2, 3, 3, 3, 4});
        if (i % 50 == 49)
            calls.call(99);
    }
    ft_step_mark mark = calls.period();
    EXPECT_EQ(mark.period, 6u);
    vector<double> steps = calls.steps(mark);
    ASSERT_EQ(steps.size(), 399u);
    for (double step : steps)
        EXPECT_TRUE(step == 15e6 || step == 16e6) << step;
    Calls same; // the extra call has the signature of another one
    for (int i = 0; i < 400; i++) {
        same.step({1, 2, 3, 3, 3, 4});
        if (i % 50 == 49)
            same.call(3);
    }
    EXPECT_EQ(same.period().period, 6u);
    Calls one; // steps of one call
    for (int i = 0; i < 400; i++) {
        one.call(1);
        if (i % 100 == 99)
            one.call(99);
    }
    EXPECT_EQ(one.period().period, 1u);
}

TEST(SlowPeriod, EqualCallsAreDividedByTheirGaps)
{
    Calls calls;
    std::mt19937_64 random(slow_seed());
    for (int i = 0; i < 100; i++)
        for (int j = 0; j < 12; j++)
            calls.call(5, (j ? 1000000 : 50000000) * (90 + random() % 20) / 100);
    ft_step_mark mark = calls.period();
    EXPECT_EQ(mark.period, 12u);
    EXPECT_EQ(mark.every, 12u);
    EXPECT_EQ(calls.steps(mark).size(), 99u);
    EXPECT_EQ(calls.period(64, false).period, 1u) << "no times";
    EXPECT_EQ(calls.period(8).period, 1u) << "the step is longer than the greatest lag";
    Calls even;
    for (int i = 0; i < 100; i++)
        even.call(5, 1000000 + i % 3 * 10000);
    EXPECT_EQ(even.period().period, 1u);
}

TEST(SlowPeriod, NothingRecurs)
{
    std::mt19937_64 random(slow_seed());
    Calls all_different, noise, few;
    for (int i = 0; i < 500; i++)
        all_different.call(i);
    EXPECT_EQ(all_different.period().period, 0u);
    for (int i = 0; i < 500; i++)
        noise.call(random() % 4);
    EXPECT_EQ(noise.period().period, 0u);
    EXPECT_TRUE(noise.steps(noise.period()).empty());
    for (int n = 0; n < 12; n++) {
        EXPECT_EQ(few.period().period, 0u) << n << " calls";
        few.call(n % 4);
    }
    EXPECT_EQ(few.period().period, 4u) << "three periods are enough";
    EXPECT_EQ(few.period(0).period, 0u);
}

TEST(SlowPeriod, HostileTimes)
{
    Calls calls;
    for (int i = 0; i < 300; i++) {
        calls.call(i % 3);
        calls.times.back() = i % 7 ? UINT64_MAX - i : i;
    }
    for (double step : calls.steps(calls.period()))
        EXPECT_TRUE(step >= 0 && std::isfinite(step)) << step;
    Calls back;
    back.sigs = {1, 1, 1, 1};
    back.times = {30, 20, 10, 40};
    EXPECT_EQ(back.steps({1, 1, 1}), vector<double>({0, 0, 30}));
    ft_step_mark broken = {5, 0, 0};
    EXPECT_TRUE(calls.steps(broken).empty());
    std::fill(calls.sigs.begin(), calls.sigs.end(), 0);
    EXPECT_GE(calls.period(SIZE_MAX).period, 1u);
}

TEST(SlowPeriod, Campaign)
{
    std::mt19937_64 random(slow_seed());
    int wrong = 0, rounds = 500;
    for (int round = 0; round < rounds; round++) {
        size_t period = 3 + random() % 38, kinds = 1 + random() % 6, every = 50 + random() % 30;
        vector<uint64_t> step(period);
        for (uint64_t &sig : step)
            sig = random() % kinds;
        step[0] = 1000; // so that the period is no smaller one
        Calls calls;
        for (size_t i = 0; i < 200; i++) {
            calls.step(step);
            if (i % every == every - 1)
                calls.call(random() % kinds + 500 * (random() % 2));
        }
        size_t found = calls.period().period;
        wrong += found != period;
    }
    printf("periods: %d of %d wrong\n", wrong, rounds);
    EXPECT_EQ(wrong, 0);
}

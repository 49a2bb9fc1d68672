// Property: the tracker reports the onset and the relief of lasting slow-downs within few steps,
// and never jitter, pauses, single slow steps or changes under 10%. Method: exact series, and a
// campaign of 2,000 seeded series of known truth (replay: FT_SEED), whose errors and delays are
// printed.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <random>
#include <vector>

extern "C" {
#include "diagnose/slow.h"
}
#include "tests/unit/diagnose_slow.h"

using std::vector;

uint64_t slow_seed()
{
    const char *text = getenv("FT_SEED");
    uint64_t seed = text ? strtoull(text, nullptr, 10) : 1;
    printf("seed %lu; replay: FT_SEED=%lu tests/unit/diagnose_slow_test\n", seed, seed);
    return seed;
}

enum { KINDS = 10, ALL = 2000 };

struct Report {
    uint64_t at; // the step after which it came
    ft_track_event event;
};

static vector<Report> track(const vector<double> &series, const ft_track_config *config = nullptr)
{
    vector<Report> reports;
    ft_track *t = ft_track_open(config);
    for (size_t i = 0; i < series.size(); i++) {
        ft_track_event event = ft_track_add(t, series[i]);
        if (event.kind != FT_TRACK_NOTHING)
            reports.push_back({i, event});
    }
    ft_track_close(t);
    return reports;
}

// A series with its truth.
struct Change {
    size_t step;
    ft_track_kind kind;
    size_t deadline; // the last step after which it may be reported; more: not found
};

struct Series {
    const char *what = "";
    double jitter = 0; // uniform, +- this
    vector<double> ns;
    vector<Change> changes;
};

class Maker
{
  public:
    explicit Maker(uint64_t seed) : random_(seed)
    {
    }
    double uniform(double low, double high)
    {
        return std::uniform_real_distribution<double>(low, high)(random_);
    }
    size_t number(size_t low, size_t high)
    {
        return std::uniform_int_distribution<size_t>(low, high)(random_);
    }
    // Jitter of at most this share, or normal with the same deviation.
    double shake(double most, bool normal)
    {
        if (!normal)
            return uniform(1 - most, 1 + most);
        return std::exp(std::normal_distribution<double>(0, most / std::sqrt(3))(random_));
    }
    // Series number i: its kind follows from i, all else is drawn.
    Series make(size_t i)
    {
        Series s;
        base_ = uniform(1e7, 2e9);
        s.jitter = uniform(0, 0.045);
        s.ns.assign(number(300, 800), 1);
        size_t kind = i % KINDS;
        if (kind == 1)
            hiccups(s);
        if (kind == 2)
            change(s, number(40, 250), uniform(1.13, 2));
        if (kind == 3)
            several(s);
        if (kind == 4)
            small_ones(s);
        if (kind == 5)
            drift(s, uniform(-0.07, 0.07));
        if (kind == 6)
            drift(s, uniform(0.25, 1));
        if (kind == 7)
            barely(s);
        if (kind == 8) {
            change(s, number(40, 250), 1.08);
            s.changes.clear();
        }
        if (kind == 9) {
            s.ns.assign(2000, 1);
            s.jitter = 0.1;
        }
        static const char *const names[] = {"jitter",
                                            "outliers",
                                            "one change",
                                            "several changes",
                                            "small changes in a row",
                                            "drift below 10%",
                                            "drift above 25%",
                                            "one change of 10.5%",
                                            "one change of 8%",
                                            "jitter of +-10%"};
        s.what = names[kind];
        if (kind != 1 && i / KINDS % 2)
            hiccups(s);
        for (double &x : s.ns)
            x *= base_ * shake(s.jitter, i / KINDS % 4 > 1);
        return s;
    }

  private:
    // A pause of 2 s, and a slow step every 50.
    void hiccups(Series &s)
    {
        double factor = uniform(1.2, 5);
        for (size_t i = number(0, 49); i < s.ns.size(); i += 50)
            s.ns[i] *= factor;
        s.ns[number(0, s.ns.size() - 1)] += 2e9 / base_;
    }
    void change(Series &s, size_t at, double ratio)
    {
        for (size_t i = at; i < s.ns.size(); i++)
            s.ns[i] *= ratio;
        s.changes.push_back({at, ratio > 1 ? FT_TRACK_ONSET : FT_TRACK_RELIEF, at + 10});
    }
    void several(Series &s)
    {
        double ratio = uniform(1.15, 2);
        size_t at = number(40, 80);
        for (int i = 0; i < 5 && at + 20 < s.ns.size(); i++, at += number(40, 120))
            change(s, at, i % 2 ? 1 / ratio : ratio);
    }
    void small_ones(Series &s)
    {
        double total = 1;
        size_t at = number(40, 60);
        while (total < 1.13) {
            double ratio = uniform(1.03, 1.06);
            total *= ratio;
            change(s, at, ratio);
            at += number(15, 60);
        }
        s.changes = {s.changes.back()};
        s.changes[0].step = 0; // may be reported from 10% in total on
        s.changes[0].deadline += 20;
    }
    void drift(Series &s, double total)
    {
        size_t n = s.ns.size();
        for (size_t i = 0; i < n; i++)
            s.ns[i] *= 1 + total * double(i) / double(n);
        if (total > 0.1)
            s.changes.push_back({0, FT_TRACK_ONSET, n - 1});
    }
    void barely(Series &s)
    {
        s.jitter = uniform(0, 0.01);
        change(s, number(40, 250), 1.105);
    }
    std::mt19937_64 random_;
    double base_ = 1;
};

struct Tally {
    int series = 0, wanted = 0, missed = 0, late = 0, untrue = 0;
    vector<size_t> delays;
};

// Pairs reports with changes. A drift above 10% may be reported again for each further 10%.
static void judge(const Series &s, const vector<Report> &reports, Tally &tally)
{
    tally.series++;
    tally.wanted += int(s.changes.size());
    size_t next = 0;
    bool drifts = s.changes.size() == 1 && s.changes[0].deadline + 1 == s.ns.size();
    for (const Change &change : s.changes) {
        bool there = next < reports.size() && reports[next].event.kind == change.kind &&
                     reports[next].at >= change.step &&
                     (&change == &s.changes.back() || reports[next].at < (&change)[1].step);
        tally.missed += !there;
        if (!there)
            continue;
        tally.late += reports[next].at > change.deadline;
        if (change.step)
            tally.delays.push_back(reports[next].at - change.step + 1);
        next++;
    }
    for (; next < reports.size(); next++)
        tally.untrue += !drifts || reports[next].event.kind != FT_TRACK_ONSET;
}

static void show(const char *name, Tally tally)
{
    std::sort(tally.delays.begin(), tally.delays.end());
    size_t n = tally.delays.size();
    printf("%-24s %5d series, %5d changes: %d missed, %d late, %d untrue; steps to the report: "
           "median %zu, 99%% %zu, most %zu\n",
           name, tally.series, tally.wanted, tally.missed, tally.late, tally.untrue,
           n ? tally.delays[n / 2] : 0, n ? tally.delays[n * 99 / 100] : 0,
           n ? tally.delays[n - 1] : 0);
}

static int wrong(const Tally &tally)
{
    return tally.missed + tally.late + tally.untrue;
}

static void tell(size_t i, const Series &s, const vector<Report> &reports)
{
    printf("series %zu, %s, jitter %g, %zu steps; truth:", i, s.what, s.jitter, s.ns.size());
    for (const Change &change : s.changes)
        printf(" %d at %zu", change.kind, change.step);
    printf("; said:");
    for (const Report &report : reports)
        printf(" %d at %zu after %zu, %g", report.event.kind, size_t(report.event.step),
               size_t(report.at), report.event.ratio);
    printf("\n");
}

TEST(SlowTrack, Campaign)
{
    uint64_t seed = slow_seed();
    Tally all, kinds[KINDS];
    const char *names[KINDS];
    for (size_t i = 0; i < ALL; i++) {
        Maker maker(seed * 1000003 + i);
        Series s = maker.make(i);
        vector<Report> reports = track(s.ns);
        names[i % KINDS] = s.what;
        Tally before = kinds[i % KINDS];
        judge(s, reports, kinds[i % KINDS]);
        judge(s, reports, all);
        if (getenv("FT_VERBOSE") && wrong(kinds[i % KINDS]) > wrong(before))
            tell(i, s, reports);
    }
    for (int i = 0; i < KINDS; i++)
        show(names[i], kinds[i]);
    show("all", all);
    int quiet = kinds[0].untrue + kinds[1].untrue + kinds[5].untrue + kinds[9].untrue;
    EXPECT_EQ(quiet, 0) << "no step became slower; FT_VERBOSE=1 shows them";
    EXPECT_LE(all.untrue, ALL / 200) << "8% and jitter look like 10%, or a change is told twice";
    EXPECT_LE(all.missed + all.late, all.wanted / 50);
}

TEST(SlowTrack, AThousandQuietSteps)
{
    Maker maker(slow_seed());
    vector<double> series(1000);
    for (double &x : series)
        x = 1e9 * maker.uniform(1, 1.099);
    EXPECT_TRUE(track(series).empty()) << "jitter below 10%";
    int untrue = 0;
    for (int round = 0; round < 100; round++) {
        for (double &x : series)
            x = 1e9 * maker.uniform(0.7, 1.3);
        untrue += int(track(series).size());
    }
    EXPECT_LE(untrue, 15) << "jitter of +-30%, in 100,000 steps";
    series.assign(1000, 1e9);
    EXPECT_TRUE(track(series).empty()) << "none at all";
    series[500] += 2e9;
    EXPECT_TRUE(track(series).empty()) << "a pause of 2 s";
    for (size_t i = 49; i < series.size(); i += 50)
        series[i] *= 3;
    EXPECT_TRUE(track(series).empty()) << "a checkpoint every 50 steps";
}

// Steps of 1 s that take `ratio` s from `from` to `to`.
static vector<double> slow_between(size_t from, size_t to, double ratio)
{
    vector<double> series(400, 1e9);
    for (size_t i = from; i < to; i++)
        series[i] *= ratio;
    return series;
}

TEST(SlowTrack, OnsetAndReliefWithTheirSteps)
{
    for (double ratio : {1.105, 1.3, 4.0, 1000.0}) {
        vector<Report> reports = track(slow_between(100, 200, ratio));
        ASSERT_EQ(reports.size(), 2u) << ratio;
        ft_track_event onset = reports[0].event, relief = reports[1].event;
        EXPECT_EQ(onset.kind, FT_TRACK_ONSET);
        EXPECT_EQ(onset.step, 100u);
        EXPECT_LT(reports[0].at, 110u);
        EXPECT_NEAR(onset.ratio, ratio, 1e-6 * ratio);
        EXPECT_NEAR(onset.before_ns, 1e9, 1e3);
        EXPECT_NEAR(onset.after_ns, 1e9 * ratio, 1e3 * ratio);
        EXPECT_EQ(relief.kind, FT_TRACK_RELIEF);
        EXPECT_EQ(relief.step, 200u);
        EXPECT_LT(reports[1].at, 210u);
        EXPECT_NEAR(relief.ratio, 1 / ratio, 1e-6);
    }
    EXPECT_TRUE(track(slow_between(100, 400, 1.095)).empty());
    EXPECT_TRUE(track(slow_between(100, 104, 3)).empty()) << "four steps are no level";
    EXPECT_TRUE(track(slow_between(100, 400, 0.5)).empty()) << "faster than ever is no relief";
}

TEST(SlowTrack, SmallChangesInARowAddUp)
{
    vector<double> series(400, 1e9);
    for (size_t i = 0; i < series.size(); i++)
        series[i] *= std::pow(1.04, double(std::min<size_t>(i / 50, 3)));
    vector<Report> reports = track(series);
    ASSERT_EQ(reports.size(), 1u);
    EXPECT_EQ(reports[0].event.step, 150u);
    EXPECT_NEAR(reports[0].event.ratio, 1.124864, 1e-3);
}

TEST(SlowTrack, ParametersAreObeyed)
{
    ft_track_config config = {0.01, 1.5, 20};
    EXPECT_TRUE(track(slow_between(100, 400, 1.4), &config).empty());
    vector<Report> reports = track(slow_between(100, 400, 1.6), &config);
    ASSERT_EQ(reports.size(), 1u);
    EXPECT_GE(reports[0].at, 119u);
    for (double wrong : {double(NAN), -1.0, 0.0, double(INFINITY), 1e300}) {
        config = {wrong, wrong, wrong < 0 ? -5 : INT32_MAX};
        track(slow_between(100, 400, 1.6), &config);
    }
}

TEST(SlowTrack, HostileLengths)
{
    Maker maker(slow_seed());
    const double hostile[] = {NAN, INFINITY, -INFINITY, 0, -1, 1e308, 5e-324, 1e9};
    for (int round = 0; round < 50; round++) {
        vector<double> series = slow_between(150, 400, 1.5);
        size_t kinds = round < 25 ? 5 : 8;
        for (double &x : series)
            if (maker.uniform(0, 1) < (round % 2 ? 0.05 : 0.5))
                x = hostile[maker.number(0, kinds - 1)];
        vector<Report> reports = track(series);
        for (const Report &report : reports)
            EXPECT_TRUE(std::isfinite(report.event.before_ns)) << report.event.before_ns;
        if (round < 25) { // what is no number tells nothing and does no harm
            ASSERT_EQ(reports.size(), 1u);
            EXPECT_GE(reports[0].event.step, 150u);
            EXPECT_LT(reports[0].event.step, 170u) << "steps are counted with those";
        }
    }
}

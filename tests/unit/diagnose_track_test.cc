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
    // Series number i: its kind follows from i, all else is drawn.
    Series make(size_t i)
    {
        Series s;
        base_ = uniform(1e7, 2e9);
        s.jitter = uniform(0, 0.045);
        s.ns.assign(number(300, 800), 1);
        size_t kind = i % 8;
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
        static const char *const names[] = {"jitter",
                                            "outliers",
                                            "one change",
                                            "several changes",
                                            "small changes in a row",
                                            "drift below 10%",
                                            "drift above 25%",
                                            "one change of 10.5%"};
        s.what = names[kind];
        if (kind != 1 && i / 8 % 2)
            hiccups(s);
        for (double &x : s.ns)
            x *= base_ * uniform(1 - s.jitter, 1 + s.jitter);
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

TEST(SlowTrack, Campaign)
{
    uint64_t seed = slow_seed();
    Tally all, kinds[8];
    const char *names[8];
    for (size_t i = 0; i < 2000; i++) {
        Maker maker(seed * 1000003 + i);
        Series s = maker.make(i);
        vector<Report> reports = track(s.ns);
        names[i % 8] = s.what;
        Tally before = kinds[i % 8];
        judge(s, reports, kinds[i % 8]);
        judge(s, reports, all);
        if (getenv("FT_VERBOSE") &&
            (kinds[i % 8].missed > before.missed || kinds[i % 8].late > before.late ||
             kinds[i % 8].untrue > before.untrue)) {
            printf("series %zu %s jitter %g n %zu hic %zu:", i, s.what, s.jitter, s.ns.size(),
                   i / 8 % 2);
            for (auto &c : s.changes)
                printf(" want %zu %d", c.step, c.kind);
            for (auto &r : reports)
                printf(" got at %zu: %d step %zu ratio %g", (size_t)r.at, r.event.kind,
                       (size_t)r.event.step, r.event.ratio);
            printf("\n");
        }
    }
    for (int i = 0; i < 8; i++)
        show(names[i], kinds[i]);
    show("all", all);
}

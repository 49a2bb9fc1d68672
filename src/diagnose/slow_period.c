/*
 * slow_period: finds the steps in a series of calls, as Falcon does (4.2). Signatures are names, so
 * the auto-correlation is that of their indicators: with p(s) the share of signature s, two calls
 * contribute [a = b] - p(a) - p(b) + sum of p^2.
 */
#include "diagnose/slow.h"
#include "diagnose/slow_stats.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const double same = 0.95; /* auto-correlation from which a lag is a period: Falcon 4.2 */

/* The calls that may recur, and the work space to find out. */
struct series {
    uint64_t *sigs;   /* kept calls, in their order */
    uint64_t *sorted; /* all signatures, sorted */
    double *values;   /* of a kept call: the share of its signature, or the gap before it */
    size_t n;         /* kept calls */
    size_t all;
};

static int compare_sigs(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

/* The number of elements of the sorted array that are less than sig, or (equal) not greater. */
static size_t count_below(const struct series *series, uint64_t sig, bool equal)
{
    size_t low = 0, high = series->all;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        uint64_t at = series->sorted[middle];
        if (at < sig || (equal && at == sig))
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static size_t count_sig(const struct series *series, uint64_t sig)
{
    return count_below(series, sig, true) - count_below(series, sig, false);
}

static bool too_rare(const struct series *series, uint64_t sig, size_t max_lag)
{
    return count_sig(series, sig) * max_lag * 4 < series->all * 3;
}

/* The auto-correlation of signatures at a lag; spread is 1 less the sum of the squared shares. */
static double correlate_sigs(const struct series *series, size_t lag, double spread)
{
    double sum = 0;
    size_t pairs = series->n - lag;
    for (size_t i = 0; i < pairs; i++)
        sum += (series->sigs[i] == series->sigs[i + lag]) - series->values[i] -
               series->values[i + lag];
    return (sum / (double)pairs + 1 - spread) / spread;
}

static size_t find_sig_period(struct series *series, size_t max_lag)
{
    double squares = 0;
    for (size_t i = 0; i < series->n; i++) {
        series->values[i] = (double)count_sig(series, series->sigs[i]) / (double)series->n;
        squares += series->values[i] / (double)series->n;
    }
    double spread = 1 - squares;
    if (spread < 1e-12)
        return 1; /* all are equal */
    for (size_t lag = 1; lag <= max_lag; lag++)
        if (correlate_sigs(series, lag, spread) >= same)
            return lag;
    return 0;
}

/* The auto-correlation at a lag of values whose mean is 0 and whose sum of squares is given. */
static double correlate_values(const struct series *series, size_t lag, double squares)
{
    double sum = 0;
    size_t pairs = series->n - lag;
    for (size_t i = 0; i < pairs; i++)
        sum += series->values[i] * series->values[i + lag];
    return sum / (double)pairs * (double)series->n / squares;
}

/* Replaces the values by what they differ from their mean; returns the sum of their squares. */
static double center_values(struct series *series)
{
    double mean = 0, squares = 0;
    for (size_t i = 0; i < series->n; i++)
        mean += series->values[i] / (double)series->n;
    for (size_t i = 0; i < series->n; i++) {
        series->values[i] -= mean;
        squares += series->values[i] * series->values[i];
    }
    return squares;
}

/* All calls are equal: a step shows in the logs of the gaps. Jitter lowers the correlation of every
 * lag, so the first lag counts that is nearly as good as the best. */
static size_t find_gap_period(struct series *series, size_t max_lag)
{
    double squares = center_values(series);
    if (squares / (double)series->n < 0.01) /* gaps that differ by less than 10% */
        return 1;
    double best = 0;
    for (size_t lag = 1; lag <= max_lag; lag++)
        best = fmax(best, correlate_values(series, lag, squares));
    for (size_t lag = 1; lag <= max_lag && best >= 0.5; lag++)
        if (correlate_values(series, lag, squares) >= same * best)
            return lag;
    return 1;
}

/* Keeps the calls that are not rare. */
static void keep_calls(struct series *series, const struct ft_call_series *calls, size_t max_lag)
{
    for (size_t i = 0; i < calls->n; i++)
        if (!too_rare(series, calls->sigs[i], max_lag))
            series->sigs[series->n++] = calls->sigs[i];
}

/* The log of the gap before each kept call but the first. */
static void take_gaps(struct series *series, const struct ft_call_series *calls, uint64_t sig)
{
    uint64_t last = 0;
    size_t kept = 0;
    for (size_t i = 0; i < calls->n; i++) {
        if (calls->sigs[i] != sig)
            continue;
        uint64_t now = calls->times_ns[i];
        if (kept > 0)
            series->values[kept - 1] = log(1 + (now > last ? (double)(now - last) : 0));
        last = now;
        kept++;
    }
    series->n = kept ? kept - 1 : 0;
}

/* The signature that marks steps is the rarest of those that recur. */
static void set_mark(const struct series *series, size_t period, struct ft_step_mark *mark)
{
    size_t fewest = SIZE_MAX, most = ft_min(period, series->n);
    for (size_t i = 0; i < most; i++) {
        size_t count = count_sig(series, series->sigs[i]);
        if (count < fewest) {
            fewest = count;
            mark->sig = series->sigs[i];
        }
    }
    mark->period = period;
    mark->every = ft_max(1, (fewest * period + series->n / 2) / series->n);
}

static void find_period(struct series *series, const struct ft_call_series *calls, size_t max_lag,
                        struct ft_step_mark *mark)
{
    memcpy(series->sorted, calls->sigs, calls->n * sizeof(*calls->sigs));
    qsort(series->sorted, calls->n, sizeof(*series->sorted), compare_sigs);
    keep_calls(series, calls, max_lag);
    if (series->n < calls->n - calls->n / 8) /* too many are rare: no steps */
        return;
    size_t period = find_sig_period(series, ft_min(max_lag, series->n / 3));
    if (period == 0)
        return;
    set_mark(series, period, mark);
    if (period > 1 || !calls->times_ns)
        return;
    take_gaps(series, calls, mark->sig);
    if (series->n >= 3)
        mark->period = find_gap_period(series, ft_min(max_lag, series->n / 3));
    mark->every = mark->period;
}

int ft_period(const struct ft_call_series *calls, size_t max_lag, struct ft_step_mark *mark)
{
    *mark = (struct ft_step_mark){0, 0, 1};
    size_t skip = calls->n > FT_PERIOD_CALLS ? calls->n - FT_PERIOD_CALLS : 0;
    struct ft_call_series latest = {
        calls->sigs + skip, calls->times_ns ? calls->times_ns + skip : NULL, calls->n - skip};
    max_lag = ft_min(max_lag, latest.n / 3);
    if (max_lag == 0)
        return 0;
    struct series series = {.all = latest.n};
    series.sigs = malloc(latest.n * sizeof(*series.sigs));
    series.sorted = malloc(latest.n * sizeof(*series.sorted));
    series.values = malloc(latest.n * sizeof(*series.values));
    int result = FT_NOMEM;
    if (series.sigs && series.sorted && series.values) {
        find_period(&series, &latest, max_lag, mark);
        result = (int)mark->period;
    }
    free(series.sigs);
    free(series.sorted);
    free(series.values);
    return result;
}

size_t ft_step_begins(const struct ft_call_series *calls, const struct ft_step_mark *mark,
                      uint64_t *begins_ns, size_t capacity)
{
    size_t marks = 0, steps = 0;
    if (mark->period == 0 || mark->every == 0 || !calls->times_ns)
        return 0;
    for (size_t i = 0; i < calls->n && steps < capacity; i++)
        if (calls->sigs[i] == mark->sig && marks++ % mark->every == 0)
            begins_ns[steps++] = calls->times_ns[i];
    return steps;
}

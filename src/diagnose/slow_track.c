/*
 * slow_track: finds the step at which steps became slower, as Falcon does (4.2 and 9.1). Bayesian
 * online change-point detection says since when steps have their present length; then that length
 * is compared with the reference. Three things differ from the paper:
 * - Logs of lengths, so that a change is a ratio, through a median of three, so that a single slow
 *   step is no change.
 * - The reference is the best level since the last report and not the level just before the change:
 *   small degradations in a row, which the paper misses, add up.
 * - A change counts only if it is clear over the jitter, so the more jitter, the later it is found.
 *
 * The present level may be as old as the job, so a table has a run for each step at which it may
 * have begun. When the table is full the least probable run goes: memory and time are bounded.
 */
#include "diagnose/slow.h"
#include "diagnose/slow_stats.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum {
    RUNS = 64,    /* steps at which the present level may have begun */
    RECENT = 128, /* samples that are kept */
    FIRST = 16,   /* samples from which the first reference is taken */
    STABLE = 32,  /* samples of one level that may move the reference */
};
static const double sure = 0.9; /* probability of a change: Falcon 4.2 */
static const double clear = 8;  /* standard errors that a change must have */
/* standard errors above the ratio, but for an error so small that it cannot make 8% look like 10%
 */
static const double careful = 3, fine = 3e-3;
static const double least = 5e-3; /* standard deviation of steps without any jitter */

/* Normal-gamma posterior of the samples since `start`. */
struct run {
    uint64_t start, step; /* its first sample, and the step that was */
    double weight;        /* probability that it is the present run */
    double mean, kappa, alpha, beta;
};

struct ft_track {
    struct ft_track_config config;
    struct run runs[RUNS];
    int nruns;
    double recent[RECENT]; /* log lengths; sample i lies at i % RECENT */
    uint64_t steps_of[RECENT];
    uint64_t steps, samples;
    /* reference: the lowest and the highest level since the last report, from nreference samples;
     * a run that began after reference_at is a change */
    double low, high, noise;
    uint64_t reference_at;
    size_t nreference;
    double healthy; /* level before the first onset that has not been relieved */
    bool slow;
};

struct level {
    double center, noise;
    size_t n;
};

struct ft_track *ft_track_open(const struct ft_track_config *config)
{
    struct ft_track *track = calloc(1, sizeof(*track));
    if (!track)
        return NULL;
    if (config)
        track->config = *config;
    struct ft_track_config *c = &track->config;
    if (!(c->hazard > 0 && c->hazard < 1))
        c->hazard = 1.0 / 250;
    if (!(c->ratio > 1 && c->ratio < 1e6))
        c->ratio = 1.1;
    if (c->confirm <= 0)
        c->confirm = 6;
    c->confirm = (int)ft_min((size_t)c->confirm, RECENT);
    track->noise = 0.05;
    return track;
}

void ft_track_close(struct ft_track *track)
{
    free(track);
}

/* ---- the probability of each run ------------------------------------------------------------- */

static double log_predict(const struct run *run, double x)
{
    double scale = sqrt(run->beta * (run->kappa + 1) / (run->alpha * run->kappa));
    return ft_log_student(x, 2 * run->alpha, run->mean, scale);
}

static void learn(struct run *run, double x)
{
    double off = x - run->mean;
    run->beta += run->kappa * off * off / (2 * (run->kappa + 1));
    run->mean += off / (run->kappa + 1);
    run->kappa += 1;
    run->alpha += 0.5;
}

/* A run of which nothing is known but that its level is within about 10 deviations of the
 * reference. */
static struct run new_run(const struct ft_track *track, double x, uint64_t sample)
{
    struct run run = {.start = sample, .step = track->steps_of[sample % RECENT], .weight = 1};
    run.mean = track->nreference ? track->low : x;
    run.kappa = 0.01;
    run.alpha = 2;
    run.beta = 2 * track->noise * track->noise;
    return run;
}

/* A free entry, or that of the least probable run. */
static struct run *find_room(struct ft_track *track)
{
    if (track->nruns < RUNS)
        return &track->runs[track->nruns++];
    struct run *worst = &track->runs[0];
    for (int i = 1; i < RUNS; i++)
        if (track->runs[i].weight < worst->weight)
            worst = &track->runs[i];
    return worst;
}

/* From logs of weights to probabilities. */
static void normalise(struct ft_track *track)
{
    double most = -INFINITY, sum = 0;
    for (int i = 0; i < track->nruns; i++)
        most = fmax(most, track->runs[i].weight);
    for (int i = 0; i < track->nruns; i++) {
        track->runs[i].weight = exp(track->runs[i].weight - most);
        sum += track->runs[i].weight;
    }
    for (int i = 0; i < track->nruns; i++)
        track->runs[i].weight /= sum;
}

/* One sample more: each run goes on, or a new one begins with it. */
static void update_runs(struct ft_track *track, double x, uint64_t sample)
{
    double hazard = track->nruns ? track->config.hazard : 1;
    for (int i = 0; i < track->nruns; i++) {
        struct run *run = &track->runs[i];
        run->weight = log(fmax(run->weight, 1e-300)) + log1p(-hazard) + log_predict(run, x);
        learn(run, x);
    }
    struct run begun = new_run(track, x, sample);
    begun.weight = log(hazard) + log_predict(&begun, x);
    learn(&begun, x);
    *find_room(track) = begun;
    normalise(track);
}

static const struct run *likeliest(const struct ft_track *track)
{
    const struct run *best = &track->runs[0];
    for (int i = 1; i < track->nruns; i++)
        if (track->runs[i].weight > best->weight)
            best = &track->runs[i];
    return best;
}

/* The probability that the present run began after what the reference knows. */
static double probability_of_change(const struct ft_track *track)
{
    double sum = 0;
    for (int i = 0; i < track->nruns; i++)
        if (track->runs[i].start > track->reference_at)
            sum += track->runs[i].weight;
    return sum;
}

/* ---- the reference --------------------------------------------------------------------------- */

/* The level of the latest n samples. */
static struct level measure(const struct ft_track *track, size_t n)
{
    double values[RECENT];
    struct level level = {.n = n};
    for (size_t i = 0; i < n; i++)
        values[i] = track->recent[(track->samples - 1 - i) % RECENT];
    level.center = ft_midmean(values, n);
    level.noise = fmax(least, ft_deviation(values, n, level.center));
    return level;
}

/* The standard error of the difference between the level and the reference. */
static double doubt(const struct ft_track *track, const struct level *level)
{
    double noise = fmax(track->noise, level->noise);
    return noise * sqrt(1 / (double)level->n + 1 / (double)track->nreference);
}

static void set_reference(struct ft_track *track, const struct level *level)
{
    track->low = track->high = level->center;
    track->nreference = level->n;
    track->reference_at = track->samples - 1 - level->n / 2;
}

/* A level that has lasted: what is not clearly different only makes the reference more precise. */
static void move_reference(struct ft_track *track, const struct level *level)
{
    bool precise = track->nreference >= level->n;
    if (!precise && fabs(level->center - track->low) < clear * doubt(track, level))
        set_reference(track, level);
    track->low = fmin(track->low, level->center);
    track->high = fmax(track->high, level->center);
    track->noise = level->noise;
}

/* ---- reports --------------------------------------------------------------------------------- */

static struct ft_track_event report(struct ft_track *track, const struct level *level, double from,
                                    const struct run *run)
{
    bool onset = level->center > from;
    struct ft_track_event event = {onset ? FT_TRACK_ONSET : FT_TRACK_RELIEF, run->step, exp(from),
                                   exp(level->center), exp(level->center - from)};
    if (onset && !track->slow)
        track->healthy = track->low;
    track->slow = level->center - track->healthy >= log(track->config.ratio);
    set_reference(track, level);
    if (!track->slow)
        track->low = fmin(track->low, track->healthy);
    return event;
}

/* Falcon's verification: is the present level another one than the reference? */
static struct ft_track_event verify(struct ft_track *track)
{
    const struct run *run = likeliest(track);
    size_t n = ft_min((size_t)(track->samples - run->start), RECENT);
    struct level level = measure(track, n);
    if (n >= STABLE && track->samples % (STABLE / 2) == 0)
        move_reference(track, &level);
    if (n < (size_t)track->config.confirm || probability_of_change(track) < sure)
        return (struct ft_track_event){FT_TRACK_NOTHING, 0, 0, 0, 0};
    double error = doubt(track, &level);
    double margin = careful * fmax(0, error - fine);
    double enough = fmax(log(track->config.ratio) + margin, clear * error);
    if (level.center - track->low >= enough)
        return report(track, &level, track->low, run);
    if (track->slow && track->high - level.center >= enough)
        return report(track, &level, track->high, run);
    return (struct ft_track_event){FT_TRACK_NOTHING, 0, 0, 0, 0};
}

static double middle(double a, double b, double c)
{
    return fmax(fmin(a, b), fmin(fmax(a, b), c));
}

struct ft_track_event ft_track_add(struct ft_track *track, double step_ns)
{
    struct ft_track_event nothing = {FT_TRACK_NOTHING, 0, 0, 0, 0};
    uint64_t step = track->steps++;
    if (!(step_ns > 0) || !isfinite(step_ns))
        return nothing;
    track->recent[track->samples % RECENT] = log(step_ns);
    track->steps_of[track->samples % RECENT] = step;
    uint64_t sample = track->samples++;
    if (sample < 2)
        return nothing;
    const double *recent = track->recent;
    double filtered = middle(recent[sample % RECENT], recent[(sample - 1) % RECENT],
                             recent[(sample - 2) % RECENT]);
    update_runs(track, filtered, sample - 1);
    if (track->nreference)
        return verify(track);
    if (track->samples == FIRST) {
        struct level level = measure(track, FIRST);
        set_reference(track, &level);
        track->noise = level.noise;
    }
    return nothing;
}

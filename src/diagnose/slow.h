/*
 * slow: when a job that still moves has become slow, and who makes it slow. Times of calls go in,
 * names of ranks and links come out; there is no input, no output, no clock and no state but the
 * tracker's. The methods are those of the papers on Falcon (4.2: when), C4 (III.A: the delay
 * matrix) and FT-HSDP (2.3: least time inside collectives).
 *
 * What goes in may be wrong or hostile: what cannot be (a rank out of range, a time that is no
 * number) is left out, and without evidence nothing is named. Times are nanoseconds. Functions that
 * return int return what they found, 0 or more, or FT_NOMEM.
 */
#ifndef FT_DIAGNOSE_SLOW_H
#define FT_DIAGNOSE_SLOW_H

#include "base/base.h"

/* ---- steps ----------------------------------------------------------------------------------- */

/* Calls of one rank on one communicator, oldest first. times_ns may be NULL; otherwise it holds
 * when each call was made. */
struct ft_call_series {
    const uint64_t *sigs, *times_ns;
    size_t n;
};

/* Where steps begin: at each `every`th call whose signature is sig. */
struct ft_step_mark {
    size_t period; /* calls in a step, without those that are too rare to recur; 0: none found */
    uint64_t sig;
    size_t every;
};

#define FT_PERIOD_CALLS 65536 /* of a longer series only the latest are looked at */

/* The recurring period of a series: the first lag, at most max_lag, at which the auto-correlation
 * of the signatures reaches 0.95. At least three periods must be there. Signatures are names, not
 * amounts: each is a dimension of its own. Calls that are too rare to come once in max_lag calls (a
 * checkpoint every 50 steps) are left out first; if they are more than an eighth, there is no
 * period. If all calls are equal, the gaps between them decide; if those tell nothing, the period
 * is 1. Returns the period or FT_NOMEM. Cost: n * max_lag. */
int ft_period(const struct ft_call_series *calls, size_t max_lag, struct ft_step_mark *mark);

/* When steps began, oldest first: at most `capacity`, the number written is returned. */
size_t ft_step_begins(const struct ft_call_series *calls, const struct ft_step_mark *mark,
                      uint64_t *begins_ns, size_t capacity);

/* ---- when ------------------------------------------------------------------------------------ */

enum ft_track_kind { FT_TRACK_NOTHING, FT_TRACK_ONSET, FT_TRACK_RELIEF };

/* Steps are numbered from 0, as they were given to ft_track_add(). */
struct ft_track_event {
    enum ft_track_kind kind;
    uint64_t step;              /* the first step that is slower, or faster again */
    double before_ns, after_ns; /* length of a step */
    double ratio;               /* after to before */
};

/* 0 stands for the default. */
struct ft_track_config {
    double hazard; /* probability that a step is the first of a new level; 1/250 */
    double ratio;  /* the smallest change that is reported; 1.1 */
    int confirm;   /* steps that must have the new level; 6; at most 64 */
};

struct ft_track;

/* Follows the length of the steps of a rank. config may be NULL. Returns NULL without memory. */
struct ft_track *ft_track_open(const struct ft_track_config *config);

/* Adds the length of the next step. Lengths that are no positive number count as steps and tell
 * nothing. Memory and time are constant. A change is reported once, when `confirm` steps of the new
 * level have been seen and their jitter allows no doubt; small changes in the same direction add
 * up. A relief is reported only after an onset. Measured with uniform jitter, steps until the
 * report of a lasting slow-down, median and 98%: by 10.5%: 6 and 12 with jitter of +-1%, 11 and 53
 * with +-2%, 50 and 281 with +-4.5%, where 5% are not found in 500 steps; by 15%: 6 and 12 with
 * +-4.5%; by 30%: 6 and 8 with +-10%. Jitter of +-10% alone gave no report in 400,000 steps, +-30%
 * 8 in 100,000. */
struct ft_track_event ft_track_add(struct ft_track *track, double step_ns);
void ft_track_close(struct ft_track *track);

/* ---- who computes slowly --------------------------------------------------------------------- */

#define FT_SLOW_ROUNDS 5 /* with fewer nobody is named */

/* For each of nrounds rounds the time each rank spent inside collectives: inside_ns[round * nranks
 * + rank]; less than 0, or no number: unknown. round_ns is the length of a round, 0 if unknown. Who
 * is last to come waits least. */
struct ft_inside {
    const double *inside_ns;
    int nrounds, nranks;
    double round_ns;
};

struct ft_slow_rank {
    int rank;
    int votes;        /* rounds in which it stood out */
    double behind_ns; /* median over its rounds: how much less than the others it waits */
};

/* Who computes slowly: ranks that wait in 4 of 5 rounds less than the median of all by more than 3
 * standard deviations and 5% of the round (round_ns unknown: 10% of the median). All ranks must do
 * the same work; call it once for each such group. Writes at most `capacity`, the furthest behind
 * first. Cost: nrounds * nranks. */
int ft_slow_compute(const struct ft_inside *inside, struct ft_slow_rank *ranks, int capacity);

/* ---- which link ------------------------------------------------------------------------------ */

/* What was sent from one rank to another, and how long messages were on the way: a sum. Several
 * entries of the same two ranks are added. */
struct ft_delay {
    int source, destination;
    uint64_t bytes, messages, network_ns;
};

struct ft_delay_matrix {
    const struct ft_delay *delays;
    size_t n;
    int nranks;
    double ratio;      /* the smallest factor that counts as slow; 0: 1.5 */
    double deviations; /* the least standard deviations from what is usual; 0: 6 */
};

/* A point is one link; its source and destination are named. A row is a source that is slow towards
 * nearly all, a column a destination that is slow from nearly all. */
enum ft_delay_shape { FT_DELAY_POINT, FT_DELAY_ROW, FT_DELAY_COLUMN };

struct ft_slow_link {
    enum ft_delay_shape shape;
    int source, destination; /* -1: all */
    double ratio;            /* median over its slow links: their time to what is usual */
    int votes, links;        /* its slow links, and all of its links */
};

/* Which links are slow. A link is slow if a message takes `ratio` times longer than what is usual
 * for messages of about that size, and that is more than `deviations` standard deviations. Usual is
 * the median of the links that are less than `ratio` times slower than the fastest quarter, so that
 * it stays when most links are slow. Fewer than 3 links of one size tell nothing. A rank with one
 * link in a direction (a ring) is never called a row or column. If one link of a rank is slow, half
 * of its excess (as a log) makes the others slow as well: then the rank is called slow, or, if that
 * many are not, nobody is until the link stands out. The same holds for the way back of a point,
 * since times end with an acknowledgement. Writes at most `capacity`, those
 * with the most votes first. Cost: n log n. */
int ft_slow_links(const struct ft_delay_matrix *matrix, struct ft_slow_link *links, int capacity);

#endif

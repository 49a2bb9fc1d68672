/*
 * slow_compute: who computes slowly. Whoever comes last to a collective spends the least time
 * inside (FT-HSDP 2.3); one round may be chance, so rounds vote.
 */
#include "diagnose/slow.h"
#include "diagnose/slow_stats.h"

#include <math.h>
#include <stdlib.h>

static const double stand_out = 3;       /* standard deviations */
static const double share = 0.05;        /* of a round */
static const double unknown_round = 0.1; /* of the median */

/* What is usual in one round. */
struct usual {
    double inside, limit; /* who is further below `inside` than `limit` stands out */
    bool known;
};

static bool is_time(double ns)
{
    return ns >= 0 && isfinite(ns);
}

static double at(const struct ft_inside *inside, int round, int rank)
{
    return inside->inside_ns[(size_t)round * (size_t)inside->nranks + (size_t)rank];
}

/* The upper median: of two ranks the one that waits is the usual one. */
static struct usual measure_round(const struct ft_inside *inside, int round, double *values)
{
    size_t n = 0;
    for (int rank = 0; rank < inside->nranks; rank++)
        if (is_time(at(inside, round, rank)))
            values[n++] = at(inside, round, rank);
    struct usual usual = {.known = n >= 2};
    if (!usual.known)
        return usual;
    usual.inside = ft_select(values, n, n / 2);
    double whole = inside->round_ns;
    double least = whole > 0 && isfinite(whole) ? share * whole : usual.inside * unknown_round;
    usual.limit = fmax(least, stand_out * ft_deviation(values, n, usual.inside));
    return usual;
}

/* Judges one rank over all rounds. */
static bool count_votes(const struct ft_inside *inside, const struct usual *rounds, double *behind,
                        struct ft_slow_rank *slow)
{
    size_t known = 0;
    slow->votes = 0;
    for (int round = 0; round < inside->nrounds; round++) {
        double ns = at(inside, round, slow->rank);
        if (!rounds[round].known || !is_time(ns))
            continue;
        behind[known] = rounds[round].inside - ns;
        slow->votes += behind[known++] > rounds[round].limit;
    }
    slow->behind_ns = ft_median(behind, known);
    return known >= FT_SLOW_ROUNDS && (size_t)slow->votes * 5 >= known * 4;
}

/* Into its place among the `found` ones that are furthest behind. */
static void insert(struct ft_slow_rank *ranks, int found, int capacity,
                   const struct ft_slow_rank *slow)
{
    int place = found < capacity ? found : capacity;
    for (; place > 0 && ranks[place - 1].behind_ns < slow->behind_ns; place--)
        if (place < capacity)
            ranks[place] = ranks[place - 1];
    if (place < capacity)
        ranks[place] = *slow;
}

int ft_slow_compute(const struct ft_inside *inside, struct ft_slow_rank *ranks, int capacity)
{
    if (inside->nrounds < FT_SLOW_ROUNDS || inside->nranks < 2)
        return 0;
    double *values = malloc((size_t)inside->nranks * sizeof(*values));
    struct usual *rounds = malloc((size_t)inside->nrounds * sizeof(*rounds));
    double *behind = malloc((size_t)inside->nrounds * sizeof(*behind));
    int found = FT_NOMEM;
    if (!values || !rounds || !behind)
        goto out;
    for (int round = 0; round < inside->nrounds; round++)
        rounds[round] = measure_round(inside, round, values);
    found = 0;
    for (int rank = 0; rank < inside->nranks; rank++) {
        struct ft_slow_rank slow = {.rank = rank};
        if (count_votes(inside, rounds, behind, &slow))
            insert(ranks, found++, capacity, &slow);
    }
out:
    free(values);
    free(rounds);
    free(behind);
    return found;
}

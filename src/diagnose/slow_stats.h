/*
 * slow_stats: the statistics that the analysis of slowness needs. Values must be finite; n = 0
 * gives 0. None of it allocates.
 */
#ifndef FT_DIAGNOSE_SLOW_STATS_H
#define FT_DIAGNOSE_SLOW_STATS_H

#include "base/base.h"

/* Reorders the values so that values[k] is the one that sorting would put there. */
double ft_select(double *values, size_t n, size_t k);
/* The lower median of an even number; the values are reordered. */
double ft_median(double *values, size_t n);
/* The median distance from `center`, scaled to be the standard deviation of a normal distribution.
 * The values are replaced by their distances. */
double ft_deviation(double *values, size_t n, double center);
/* The mean without the lowest and the highest quarter; the values are sorted. */
double ft_midmean(double *values, size_t n);
/* Log density at x of Student's t with nu > 0 degrees of freedom, shifted and scaled. */
double ft_log_student(double x, double nu, double mean, double scale);
int ft_compare_doubles(const void *a, const void *b);

#endif

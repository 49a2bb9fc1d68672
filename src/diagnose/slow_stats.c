/*
 * slow_stats: medians by quickselect, their deviation, the midmean and Student's t. Called by the
 * other files of slow.h.
 */
#include "diagnose/slow_stats.h"

#include <math.h>
#include <stdlib.h>

int ft_compare_doubles(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void swap(double *a, double *b)
{
    double kept = *a;
    *a = *b;
    *b = kept;
}

/* Picks a pivot at random, so that no order of the values makes every pivot a bad one. */
static double pick_pivot(const double *values, size_t n, uint64_t *random)
{
    *random = *random * 6364136223846793005u + 1442695040888963407u;
    return values[(*random >> 33) % n];
}

/* Three parts: less than the pivot, equal to it, greater. Their borders are *less and *greater. */
static void partition(double *values, size_t n, double pivot, size_t *less, size_t *greater)
{
    size_t low = 0, high = n;
    for (size_t i = 0; i < high;) {
        if (values[i] < pivot)
            swap(&values[i++], &values[low++]);
        else if (values[i] > pivot)
            swap(&values[i], &values[--high]);
        else
            i++;
    }
    *less = low;
    *greater = high;
}

double ft_select(double *values, size_t n, size_t k)
{
    if (n == 0)
        return 0;
    if (k >= n)
        k = n - 1;
    uint64_t random = n;
    for (int round = 0; n > 1; round++) {
        if (round == 64) { /* more than chance explains */
            qsort(values, n, sizeof(*values), ft_compare_doubles);
            break;
        }
        size_t less, greater;
        partition(values, n, pick_pivot(values, n, &random), &less, &greater);
        if (k < less) {
            n = less;
        } else if (k >= greater) {
            values += greater;
            n -= greater;
            k -= greater;
        } else {
            break;
        }
    }
    return values[k];
}

double ft_median(double *values, size_t n)
{
    return ft_select(values, n, n ? (n - 1) / 2 : 0);
}

double ft_deviation(double *values, size_t n, double center)
{
    for (size_t i = 0; i < n; i++)
        values[i] = fabs(values[i] - center);
    return 1.4826 * ft_median(values, n);
}

double ft_midmean(double *values, size_t n)
{
    if (n == 0)
        return 0;
    qsort(values, n, sizeof(*values), ft_compare_doubles);
    size_t cut = n / 4;
    double sum = 0;
    for (size_t i = cut; i < n - cut; i++)
        sum += values[i];
    return sum / (double)(n - 2 * cut);
}

double ft_log_student(double x, double nu, double mean, double scale)
{
    const double pi = 3.14159265358979323846;
    double z = (x - mean) / scale;
    int sign;
    return lgamma_r((nu + 1) / 2, &sign) - lgamma_r(nu / 2, &sign) - log(nu * pi) / 2 - log(scale) -
           (nu + 1) / 2 * log1p(z * z / nu);
}

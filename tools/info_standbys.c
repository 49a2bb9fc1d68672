/*
 * How many warm standbys a job should have: the number of machines that fail in the time that it
 * takes to replace one is binomial, and its 99th percentile is covered, as ByteRobust does it
 * (SOSP 2025, section 6.2).
 */
#include "info.h"

#include <math.h>
#include <stdlib.h>

#define WANTED 0.99
#define NEGLIGIBLE 1e-30 /* against the largest term; all that follow are smaller still */
#define ROUNDING 1e-12   /* of the sums: less than 1e6 terms, of relative error 1e-16 a step */

static bool probability_parse(const char *text, double *out);
static double weights(double *weight, int n, double p);

int info_standbys(FILE *out, const struct standbys_request *request)
{
    const int n = request->nmachines;
    double p, covered;
    if (!probability_parse(request->probability, &p))
        return ft_fail(FT_USAGE, "--standbys wants a probability from 0 to 1, not '%s'",
                       request->probability);
    double *weight = calloc((size_t)n + 1, sizeof *weight);
    if (!weight)
        return ft_fail(FT_NOMEM, "no memory for %d machines", n);
    double total = weights(weight, n, p);
    int k = 0;
    for (covered = weight[0]; k < n && covered / total < WANTED - ROUNDING;)
        covered += weight[++k];
    fprintf(out, "standbys: %d\n", k);
    fprintf(out,
            "  of %d, each fails with probability %g in the time that it takes to replace one\n", n,
            p);
    fprintf(out, "  all failures are covered with probability %.6f", covered / total);
    if (k > 0)
        fprintf(out, "; %d would cover them with %.6f", k - 1, (covered - weight[k]) / total);
    fputc('\n', out);
    free(weight);
    return FT_OK;
}

static bool probability_parse(const char *text, double *out)
{
    char *end;
    *out = strtod(text, &end);
    return end != text && !*end && *out >= 0 && *out <= 1;
}

/* weight[k] becomes the probability of k failures of n, but for a common factor: the likeliest
 * number has weight 1, and the others follow from their neighbours. So nothing overflows, and what
 * underflows does not count. Returns the sum. */
static double weights(double *weight, int n, double p)
{
    const double odds = p < 1 ? p / (1 - p) : INFINITY;
    int mode = (int)(((double)n + 1) * p);
    if (mode > n)
        mode = n;
    double total = weight[mode] = 1;
    for (int k = mode; k < n && weight[k] > NEGLIGIBLE; k++)
        total += weight[k + 1] = weight[k] * (n - k) / (k + 1) * odds;
    for (int k = mode; k > 0 && weight[k] > NEGLIGIBLE; k--)
        total += weight[k - 1] = weight[k] * k / (n - k + 1) / odds;
    return total;
}

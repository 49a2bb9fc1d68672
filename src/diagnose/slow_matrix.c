/*
 * slow_matrix: which link, source or destination is slow (C4, III.A). The matrix is sparse: a list
 * of links. A link's excess is the log of its time over the median of messages of its size. A
 * source that is slow towards nearly all explains its links, as a destination does; the side that
 * explains most comes first. What no side explains is a slow link, if it stands out from the other
 * links of its source and of its destination. The links of a side become slow at the same time, but
 * do not reach a threshold at the same time: once one has, half as much, as a log, is enough of
 * the others.
 */
#include "diagnose/slow.h"
#include "diagnose/slow_stats.h"

#include <math.h>
#include <stdlib.h>

static const double deviations = 6;      /* of a single slow link */
static const double side_more = 4.0 / 3; /* times that of a side, over the root of its links */
static const double few = 6;             /* links of a size whose deviation counts twice */
static const double quiet = 0.02;        /* deviation of logs of times without any jitter */
static const double alike = 0.25;        /* added to it, over the number of links of a size */
static const double apart = 1.5;         /* sizes further apart are not compared */
static const double small_bytes = 4096;  /* up to here, size does not matter */
static const double long_bytes = 65536;  /* from here, time grows with the size */

struct link {
    int source, destination;
    double bytes, messages, ns;   /* sums */
    double value, excess, spread; /* logs */
    struct link *back;            /* from the destination to the source; NULL: none */
    double beside; /* mean of the other links of its source or destination, the larger one */
    bool explained;
};

/* The links out of a source, or into a destination. */
struct side {
    enum ft_delay_shape shape;
    struct link **links;
    size_t n, slow, alone; /* alone: links that are slow without regard to the others */
    double most;           /* largest excess */
};

struct matrix {
    struct link *links;
    struct link **rows, **columns; /* sorted by source, by destination */
    struct side *sides;
    size_t n, nsides;
    double enough; /* log of the smallest factor */
    double out;    /* standard deviations of a single slow link */
};

/* ---- loading --------------------------------------------------------------------------------- */

static int compare_rows(const void *a, const void *b)
{
    const struct link *x = *(struct link *const *)a, *y = *(struct link *const *)b;
    if (x->source != y->source)
        return x->source < y->source ? -1 : 1;
    return (x->destination > y->destination) - (x->destination < y->destination);
}

static int compare_columns(const void *a, const void *b)
{
    const struct link *x = *(struct link *const *)a, *y = *(struct link *const *)b;
    if (x->destination != y->destination)
        return x->destination < y->destination ? -1 : 1;
    return (x->source > y->source) - (x->source < y->source);
}

static bool is_link(const struct ft_delay *delay, int nranks)
{
    return delay->source >= 0 && delay->source < nranks && delay->destination >= 0 &&
           delay->destination < nranks && delay->source != delay->destination &&
           delay->messages > 0;
}

/* Adds links of the same two ranks: several connections are one witness. */
static void merge_links(struct matrix *matrix)
{
    size_t kept = 0;
    for (size_t i = 0; i < matrix->n; i++) {
        struct link *link = matrix->rows[i];
        struct link *last = kept ? matrix->rows[kept - 1] : NULL;
        if (last && compare_rows(&last, &link) == 0) {
            last->bytes += link->bytes;
            last->messages += link->messages;
            last->ns += link->ns;
        } else {
            matrix->rows[kept++] = link;
        }
    }
    matrix->n = kept;
}

static void find_backs(struct matrix *matrix)
{
    for (size_t i = 0; i < matrix->n; i++) {
        struct link key = {.source = matrix->rows[i]->destination,
                           .destination = matrix->rows[i]->source};
        struct link *at = &key;
        struct link **found = bsearch(&at, matrix->rows, matrix->n, sizeof at, compare_rows);
        matrix->rows[i]->back = found ? *found : NULL;
    }
}

static void load_links(struct matrix *matrix, const struct ft_delay_matrix *from)
{
    for (size_t i = 0; i < from->n; i++) {
        const struct ft_delay *delay = &from->delays[i];
        if (!is_link(delay, from->nranks))
            continue;
        struct link *link = &matrix->links[matrix->n];
        *link = (struct link){.source = delay->source, .destination = delay->destination};
        link->bytes = (double)delay->bytes;
        link->messages = (double)delay->messages;
        link->ns = (double)delay->network_ns;
        matrix->rows[matrix->n++] = link;
    }
    qsort(matrix->rows, matrix->n, sizeof(struct link *), compare_rows);
    merge_links(matrix);
    find_backs(matrix);
}

/* ---- what is usual --------------------------------------------------------------------------- */

static double message_bytes(const struct link *link)
{
    return fmax(small_bytes, link->bytes / link->messages);
}

/* The log of the time of a message; of a long one, as if it had long_bytes. */
static double log_time(const struct link *link)
{
    double ns = link->ns / link->messages;
    return log(fmax(ns, 1)) - log(fmax(1, message_bytes(link) / long_bytes));
}

static int compare_sizes(const void *a, const void *b)
{
    double x = message_bytes(*(struct link *const *)a), y = message_bytes(*(struct link *const *)b);
    return (x > y) - (x < y);
}

/* Sets the excess of links of about one size; fewer than 3 tell nothing, and few may be alike by
 * chance, so their deviation counts for more. */
static void compare_class(struct link **links, size_t n, double enough, double *values)
{
    for (size_t i = 0; i < n; i++)
        values[i] = links[i]->value;
    double limit = ft_select(values, n, n / 4) + enough;
    size_t usual = 0;
    for (size_t i = 0; i < n; i++)
        if (values[i] <= limit)
            values[usual++] = values[i];
    double center = ft_median(values, usual);
    double least = quiet + alike / (double)n;
    double spread = fmax(least, ft_deviation(values, usual, center)) * (1 + few / (double)n);
    for (size_t i = 0; i < n; i++) {
        links[i]->excess = n < 3 ? -1 : links[i]->value - center;
        links[i]->spread = spread;
    }
}

/* `columns` is room for another order here. */
static void compare_links(struct matrix *matrix, double *values)
{
    for (size_t i = 0; i < matrix->n; i++) {
        matrix->columns[i] = matrix->rows[i];
        matrix->rows[i]->value = log_time(matrix->rows[i]);
    }
    qsort(matrix->columns, matrix->n, sizeof(struct link *), compare_sizes);
    for (size_t first = 0, end; first < matrix->n; first = end) {
        for (end = first + 1; end < matrix->n; end++)
            if (message_bytes(matrix->columns[end]) >
                apart * message_bytes(matrix->columns[end - 1]))
                break;
        compare_class(&matrix->columns[first], end - first, matrix->enough, values);
    }
    qsort(matrix->columns, matrix->n, sizeof(struct link *), compare_columns);
}

/* ---- sides ----------------------------------------------------------------------------------- */

/* Is the excess more than jitter, of one of `links` that are judged together? The more, the less
 * each must be. */
static bool is_beyond_jitter(const struct matrix *matrix, const struct link *link, size_t links)
{
    double out = fmin(matrix->out, matrix->out * side_more / sqrt((double)links));
    return link->excess >= out * link->spread;
}

static bool is_slow(const struct matrix *matrix, const struct link *link, size_t links)
{
    return link->excess >= matrix->enough && is_beyond_jitter(matrix, link, links);
}

/* Is it one of the slow links of its side? If the side has one, it takes half as much. */
static bool is_slow_in(const struct matrix *matrix, const struct side *side,
                       const struct link *link)
{
    return is_slow(matrix, link, side->n) ||
           (side->most >= matrix->enough && link->excess >= side->most / 2 &&
            is_beyond_jitter(matrix, link, side->n));
}

static size_t count_slow(const struct matrix *matrix, const struct side *side, bool unexplained)
{
    size_t count = 0;
    for (size_t i = 0; i < side->n; i++)
        count += is_slow_in(matrix, side, side->links[i]) &&
                 !(unexplained && side->links[i]->explained);
    return count;
}

/* Adds the sides that are slow towards at least 3 of 4, and at least two. */
static void find_sides(struct matrix *matrix, enum ft_delay_shape shape)
{
    bool row = shape == FT_DELAY_ROW;
    struct link **links = row ? matrix->rows : matrix->columns;
    for (size_t first = 0, end; first < matrix->n; first = end) {
        for (end = first + 1; end < matrix->n; end++)
            if (row ? links[end]->source != links[first]->source
                    : links[end]->destination != links[first]->destination)
                break;
        struct side side = {shape, &links[first], end - first, 0, 0, 0};
        for (size_t i = first; i < end; i++) {
            side.most = fmax(side.most, links[i]->excess);
            side.alone += is_slow(matrix, links[i], side.n);
        }
        side.slow = count_slow(matrix, &side, false);
        if (side.slow >= 2 && side.slow * 4 >= side.n * 3)
            matrix->sides[matrix->nsides++] = side;
    }
}

static int compare_sides(const void *a, const void *b)
{
    const struct side *x = a, *y = b;
    if (x->slow != y->slow)
        return x->slow > y->slow ? -1 : 1;
    return (x->alone < y->alone) - (x->alone > y->alone);
}

static void explain(const struct matrix *matrix, const struct side *side, double *values,
                    struct ft_slow_link *found)
{
    size_t n = 0;
    for (size_t i = 0; i < side->n; i++) {
        if (!is_slow_in(matrix, side, side->links[i]))
            continue;
        side->links[i]->explained = true;
        values[n++] = side->links[i]->excess;
    }
    bool row = side->shape == FT_DELAY_ROW;
    *found = (struct ft_slow_link){.shape = side->shape,
                                   .source = row ? side->links[0]->source : -1,
                                   .destination = row ? -1 : side->links[0]->destination,
                                   .ratio = exp(ft_median(values, n)),
                                   .votes = (int)side->slow,
                                   .links = (int)side->n};
}

/* ---- the verdict ----------------------------------------------------------------------------- */

static int compare_excess(const void *a, const void *b)
{
    const struct link *x = *(struct link *const *)a, *y = *(struct link *const *)b;
    return (x->excess < y->excess) - (x->excess > y->excess);
}

static int name_sides(struct matrix *matrix, double *values, struct ft_slow_link *out, int capacity)
{
    int found = 0;
    find_sides(matrix, FT_DELAY_ROW);
    find_sides(matrix, FT_DELAY_COLUMN);
    qsort(matrix->sides, matrix->nsides, sizeof(*matrix->sides), compare_sides);
    for (size_t i = 0; i < matrix->nsides; i++) {
        const struct side *side = &matrix->sides[i];
        size_t left = count_slow(matrix, side, true);
        if (left < 2 || left * 2 < side->slow)
            continue;
        struct ft_slow_link link;
        explain(matrix, side, values, &link);
        if (found < capacity)
            out[found] = link;
        found++;
    }
    return found;
}

/* Compares the links of one source, or of one destination, with each other. */
static void compare_side(struct link **links, size_t n)
{
    double sum = 0;
    size_t others = 0;
    for (size_t i = 0; i < n; i++)
        if (!links[i]->explained) {
            sum += fmax(0, links[i]->excess);
            others++;
        }
    for (size_t i = 0; i < n && others > 1; i++)
        if (!links[i]->explained)
            links[i]->beside = fmax(links[i]->beside,
                                    (sum - fmax(0, links[i]->excess)) / (double)(others - 1));
}

static void compare_sides_inside(struct matrix *matrix)
{
    for (size_t first = 0, end; first < matrix->n; first = end) {
        for (end = first + 1; end < matrix->n; end++)
            if (matrix->rows[end]->source != matrix->rows[first]->source)
                break;
        compare_side(&matrix->rows[first], end - first);
    }
    for (size_t first = 0, end; first < matrix->n; first = end) {
        for (end = first + 1; end < matrix->n; end++)
            if (matrix->columns[end]->destination != matrix->columns[first]->destination)
                break;
        compare_side(&matrix->columns[first], end - first);
    }
}

/* Times end with acknowledgements, which travel on the way back: if a side explains why that is
 * slow, it explains this link as well. */
static bool is_point(const struct matrix *matrix, const struct link *link)
{
    bool waits = link->back && link->back->explained && link->back->excess >= link->excess;
    return !link->explained && !waits && is_slow(matrix, link, 1) &&
           link->beside <= link->excess / 2;
}

/* Does it only look less slow than its way back? */
static bool is_slow_back(const struct matrix *matrix, const struct link *link)
{
    return link->back && is_point(matrix, link->back) && !link->explained &&
           link->excess >= link->back->excess / 2 && is_beyond_jitter(matrix, link, 1);
}

/* The links that no side explains, the slowest first. */
static int name_points(struct matrix *matrix, int found, struct ft_slow_link *out, int capacity)
{
    compare_sides_inside(matrix);
    qsort(matrix->rows, matrix->n, sizeof(struct link *), compare_excess);
    for (size_t i = 0; i < matrix->n; i++) {
        const struct link *link = matrix->rows[i];
        if (!is_point(matrix, link) && !is_slow_back(matrix, link))
            continue;
        if (found < capacity)
            out[found] = (struct ft_slow_link){
                FT_DELAY_POINT, link->source, link->destination, exp(link->excess), 1, 1};
        found++;
    }
    return found;
}

int ft_slow_links(const struct ft_delay_matrix *from, struct ft_slow_link *links, int capacity)
{
    bool asked = from->ratio > 1 && isfinite(from->ratio);
    struct matrix matrix = {.enough = log(asked ? from->ratio : 1.5),
                            .out = from->deviations > 0 ? from->deviations : deviations};
    if (from->n == 0)
        return 0;
    matrix.links = calloc(from->n, sizeof(*matrix.links));
    matrix.rows = calloc(from->n, sizeof(*matrix.rows));
    matrix.columns = calloc(from->n, sizeof(*matrix.columns));
    matrix.sides = calloc(from->n, sizeof(*matrix.sides)); /* each has two links of its own kind */
    double *values = calloc(from->n, sizeof(*values));
    int found = FT_NOMEM;
    if (matrix.links && matrix.rows && matrix.columns && matrix.sides && values) {
        load_links(&matrix, from);
        compare_links(&matrix, values);
        found = name_sides(&matrix, values, links, capacity);
        found = name_points(&matrix, found, links, capacity);
    }
    free(matrix.links);
    free(matrix.rows);
    free(matrix.columns);
    free(matrix.sides);
    free(values);
    return found;
}

/*
 * Judges what the ranks of a paused communicator have measured (Falcon, 4.3): each link is compared
 * with the others of its kind, each rank with the other ranks.
 */
#include "diagnose.h"
#include "slow_stats.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

static int by_link(const void *a, const void *b)
{
    const struct ft_tested_link *x = a, *y = b;
    if (x->from != y->from)
        return x->from < y->from ? -1 : 1;
    if (x->to != y->to)
        return x->to < y->to ? -1 : 1;
    if ((x->s_per_mib > 0) != (y->s_per_mib > 0))
        return x->s_per_mib > 0 ? -1 : 1;
    return ft_compare_doubles(&x->s_per_mib, &y->s_per_mib);
}

static int by_slowness(const void *a, const void *b)
{
    const struct ft_tested_link *x = a, *y = b;
    if ((x->s_per_mib > 0) != (y->s_per_mib > 0)) /* nothing came: first */
        return x->s_per_mib > 0 ? 1 : -1;
    int slower = -ft_compare_doubles(&x->ratio, &y->ratio);
    return slower ? slower : by_link(a, b);
}

/* A link may have been measured in several passes, and told by both ends: the fastest counts. */
static void keep_fastest(struct ft_tested *t)
{
    int n = 0;
    if (t->nlinks > 0)
        qsort(t->links, (size_t)t->nlinks, sizeof *t->links, by_link);
    for (int i = 0; i < t->nlinks; i++)
        if (n == 0 || t->links[n - 1].from != t->links[i].from ||
            t->links[n - 1].to != t->links[i].to)
            t->links[n++] = t->links[i];
    t->nlinks = n;
}

static bool is_alike(const struct ft_tested_link *a, const struct ft_tested_link *b)
{
    return a->same_host == b->same_host && !strcmp(a->transport, b->transport);
}

/* Sets what is usual for links of the kind of `like`. */
static void compare_kind(struct ft_tested *t, struct ft_tested_link *like, double *values)
{
    size_t n = 0;
    for (int i = 0; i < t->nlinks; i++)
        if (is_alike(&t->links[i], like) && t->links[i].s_per_mib > 0)
            values[n++] = t->links[i].s_per_mib;
    double usual = n >= FT_TESTED_LEAST ? ft_median(values, n) : 0;
    for (struct ft_tested_link *link = t->links; link < t->links + t->nlinks; link++) {
        if (!is_alike(link, like))
            continue;
        link->alike = (int)n;
        link->usual_s = usual;
        link->ratio = usual > 0 ? link->s_per_mib / usual : 0;
    }
}

static void compare_links(struct ft_tested *t, double *values)
{
    for (int i = 0; i < t->nlinks; i++)
        t->links[i].alike = -1;
    for (int i = 0; i < t->nlinks; i++)
        if (t->links[i].alike < 0)
            compare_kind(t, &t->links[i], values);
    if (t->nlinks > 0)
        qsort(t->links, (size_t)t->nlinks, sizeof *t->links, by_slowness);
}

enum time { COPY, PRODUCT, MEAN };

static uint64_t time_of(const struct ft_tested_rank *rank, enum time which)
{
    return which == COPY ? rank->copy_ns : which == PRODUCT ? rank->product_ns : rank->mean_ns;
}

static double median_of(const struct ft_tested *t, enum time which, double *values)
{
    size_t n = 0;
    for (int i = 0; i < t->nranks; i++)
        if (time_of(&t->ranks[i], which) > 0)
            values[n++] = (double)time_of(&t->ranks[i], which);
    return n >= FT_TESTED_LEAST ? ft_median(values, n) : 0;
}

static double ratio_of(const struct ft_tested_rank *rank, enum time which, double median)
{
    return median > 0 ? (double)time_of(rank, which) / median : 0;
}

static void compare_ranks(struct ft_tested *t, double *values)
{
    double copy = median_of(t, COPY, values), product = median_of(t, PRODUCT, values),
           mean = median_of(t, MEAN, values);
    for (struct ft_tested_rank *rank = t->ranks; rank < t->ranks + t->nranks; rank++) {
        rank->copy_ratio = ratio_of(rank, COPY, copy);
        rank->product_ratio = ratio_of(rank, PRODUCT, product);
        rank->mean_ratio = ratio_of(rank, MEAN, mean);
        rank->disturbed = (double)rank->mean_ns >
                          FT_TESTED_DISTURBED * (double)(rank->copy_ns + rank->product_ns);
    }
}

/* ---- verdicts -------------------------------------------------------------------------------- */

static int by_rank(const void *a, const void *b)
{
    const struct ft_tested_rank *x = a, *y = b;
    return (x->rank > y->rank) - (x->rank < y->rank);
}

static const struct ft_tested_rank *find_rank(const struct ft_tested *t, int rank)
{
    const struct ft_tested_rank key = {.rank = rank};
    return t->nranks ? bsearch(&key, t->ranks, (size_t)t->nranks, sizeof key, by_rank) : NULL;
}

static void begin_verdict(const struct ft_tested *t, enum ft_verdict_kind kind, int rank, int peer,
                          struct ft_verdict *v)
{
    const struct ft_tested_rank *who = find_rank(t, rank);
    memset(v, 0, sizeof *v);
    v->kind = kind;
    v->ctx = t->ctx;
    v->nculprits = 1;
    v->culprits[0] = (struct ft_culprit){.ctx = t->ctx,
                                         .rank = rank,
                                         .peer = peer,
                                         .engine = who ? who->engine : -1,
                                         .host = who ? who->host : 0,
                                         .pid = who ? who->pid : 0};
}

static void judge_link(const struct ft_tested *t, const struct ft_tested_link *link,
                       struct ft_verdict *v)
{
    begin_verdict(t, FT_VERDICT_COMM_SLOW_LINK, link->from, link->to, v);
    snprintf(v->sentence, sizeof v->sentence,
             "the link from rank %d to rank %d is slow: in a validation 1 MiB took %.3g ms, %.3g "
             "times as long as usual in communicator %.39s",
             link->from, link->to, link->s_per_mib * 1e3, link->ratio, t->name);
    snprintf(v->chain[v->nchain++], FT_SENTENCE,
             "of %d links over %.17s %s, the median took %.3g ms", link->alike, link->transport,
             link->same_host ? "inside a host" : "between hosts", link->usual_s * 1e3);
}

static void judge_rank(const struct ft_tested *t, const struct ft_tested_rank *rank,
                       struct ft_verdict *v)
{
    bool copy = rank->copy_ratio > rank->product_ratio;
    double fastest = copy ? rank->copy_ratio : rank->product_ratio;
    begin_verdict(t, FT_VERDICT_NONCOMM_SLOW, rank->rank, -1, v);
    if (fastest >= FT_TESTED_RANK_RATIO)
        snprintf(v->sentence, sizeof v->sentence,
                 "rank %d (pid %d) is slow: in a validation its %s took %.3g times as long as "
                 "usual in communicator %.39s",
                 rank->rank, rank->pid, copy ? "copy of memory" : "matrix product", fastest,
                 t->name);
    else
        snprintf(v->sentence, sizeof v->sentence,
                 "rank %d (pid %d) is slow: in a validation it needed %.3g times as long as usual "
                 "in communicator %.39s to copy and to multiply, since it often has no processor",
                 rank->rank, rank->pid, rank->mean_ratio, t->name);
}

/* What is asked of a rank, in times the usual ratios. */
static double margin_of_ranks(const struct ft_tested *t)
{
    int disturbed = 0;
    for (int i = 0; i < t->nranks; i++)
        disturbed += t->ranks[i].disturbed;
    return 2 * disturbed > t->nranks ? FT_TESTED_DISTURBED_RANKS : 1;
}

static bool is_slow_rank(const struct ft_tested_rank *rank, double margin)
{
    double fastest = rank->copy_ratio > rank->product_ratio ? rank->copy_ratio
                                                            : rank->product_ratio;
    return fastest >= margin * FT_TESTED_RANK_RATIO ||
           rank->mean_ratio >= margin * FT_TESTED_SHARE_RATIO;
}

static bool is_slow_link(const struct ft_tested *t, const struct ft_tested_link *link)
{
    const struct ft_tested_rank *from = find_rank(t, link->from), *to = find_rank(t, link->to);
    bool disturbed = (from && from->disturbed) || (to && to->disturbed);
    return link->ratio >= FT_TESTED_LINK_RATIO * (disturbed ? FT_TESTED_DISTURBED_LINK : 1) &&
           link->s_per_mib - link->usual_s >= FT_TESTED_LINK_LEAST_S;
}

int ft_diagnose_tested(struct ft_tested *t, struct ft_verdict *verdicts, int capacity)
{
    int found = 0;
    double *values = malloc(((size_t)t->nlinks + (size_t)t->nranks + 1) * sizeof *values);
    if (!values)
        return FT_NOMEM;
    if (t->nranks > 0)
        qsort(t->ranks, (size_t)t->nranks, sizeof *t->ranks, by_rank);
    keep_fastest(t);
    compare_links(t, values);
    compare_ranks(t, values);
    free(values);
    double margin = margin_of_ranks(t);
    for (int i = 0; i < t->nlinks && found < capacity; i++)
        if (is_slow_link(t, &t->links[i]))
            judge_link(t, &t->links[i], &verdicts[found++]);
    for (int i = 0; i < t->nranks && found < capacity; i++)
        if (is_slow_rank(&t->ranks[i], margin))
            judge_rank(t, &t->ranks[i], &verdicts[found++]);
    return found;
}

/* ---- JSON ------------------------------------------------------------------------------------ */

static void add_link(struct ft_text *out, const struct ft_tested_link *link)
{
    ft_json_begin(out, NULL, '{');
    ft_json_int(out, "rank", link->from);
    ft_json_int(out, "peer", link->to);
    ft_json_string(out, "transport", link->transport);
    ft_json_bool(out, "same_host", link->same_host);
    if (link->s_per_mib > 0) {
        ft_json_real(out, "s_per_mib", link->s_per_mib);
        ft_json_bool(out, "cut", link->cut);
    } else {
        ft_json_null(out, "s_per_mib");
    }
    if (link->ratio > 0)
        ft_json_real(out, "ratio", link->ratio);
    ft_json_end(out, '}');
}

static void add_rank(struct ft_text *out, const struct ft_tested_rank *rank)
{
    ft_json_begin(out, NULL, '{');
    ft_json_int(out, "rank", rank->rank);
    ft_json_int(out, "pid", rank->pid);
    ft_json_real(out, "copy_s", (double)rank->copy_ns / 1e9);
    ft_json_real(out, "product_s", (double)rank->product_ns / 1e9);
    ft_json_real(out, "mean_s", (double)rank->mean_ns / 1e9);
    ft_json_bool(out, "gpu_not_measured", rank->gpu);
    ft_json_end(out, '}');
}

void ft_tested_json(struct ft_text *out, const struct ft_tested *t)
{
    char comm[24];
    snprintf(comm, sizeof comm, "%016" PRIx64, t->ctx);
    ft_json_begin(out, NULL, '{');
    ft_json_string(out, "comm", comm);
    ft_json_string(out, "name", t->name);
    ft_json_int(out, "size", t->size);
    ft_json_int(out, "seq", (int64_t)t->seq);
    ft_json_int(out, "runs", t->runs);
    ft_json_real(out, "pause_s", t->pause_s);
    ft_json_real(out, "waited_s", t->waited_s);
    ft_json_begin(out, "links", '[');
    for (int i = 0; i < t->nlinks; i++)
        add_link(out, &t->links[i]);
    ft_json_end(out, ']');
    ft_json_begin(out, "ranks", '[');
    for (int i = 0; i < t->nranks; i++)
        add_rank(out, &t->ranks[i]);
    ft_json_end(out, ']');
    ft_json_begin(out, "missing", '[');
    for (int r = 0; r < t->size && r < FT_TESTED_MISSING; r++)
        if (!find_rank(t, r))
            ft_json_int(out, NULL, r);
    ft_json_end(out, ']');
    ft_json_end(out, '}');
}

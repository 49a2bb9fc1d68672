/*
 * When a leader may go on, and which value it then proposes. This file counts the ranks that
 * promised or accepted, and computes a value from the ranks that entered. The result depends only
 * on the contributions and the evidence, so a test can predict it.
 */
#include "membership/agree.h"

#include <stdlib.h>
#include <string.h>

static bool contribution_of(const struct ft_agree *a, int r, struct ft_contribution *c)
{
    const struct ft_bytes *b = &a->peer[r].contribution;
    return a->peer[r].entered &&
           ft_contribution_decode(c, a->config.nranks, b->data, b->len) == FT_OK;
}

/* A quorum is one of three sets: more than half of all ranks; half of all ranks including rank 0;
 * or all ranks that are not gone, if each of them has said in this ballot that it ignores the gone
 * ranks. Dead ranks count as members in the first two cases. docs/membership.md shows how two
 * values could be decided otherwise. */
bool ft_agree_quorum(const struct ft_agree *a, bool accepted)
{
    const int n = a->config.nranks;
    int count = 0;
    bool all = true;
    for (int r = 0; r < n; r++) {
        const struct ft_agree_peer *p = &a->peer[r];
        const bool in = accepted ? p->accepted : p->promised;
        count += in;
        all &= (in && p->acked) || ft_agree_is_gone(a, r);
    }
    const bool first = accepted ? a->peer[0].accepted : a->peer[0].promised;
    return all || 2 * count > n || (2 * count == n && first);
}

bool ft_agree_same_list(const struct ft_agree *a)
{
    struct ft_contribution mine, c;
    if (!contribution_of(a, a->config.rank, &mine) || ft_set_empty(mine.list, a->set_bytes))
        return false;
    if (ft_set_has(mine.list, a->config.rank))
        return false;
    for (int r = 0; r < a->config.nranks; r++) {
        const bool came = contribution_of(a, r, &c);
        if (ft_set_has(a->dead, r))
            continue;
        if (ft_set_has(mine.list, r) && came && !ft_set_within(c.list, mine.list, a->set_bytes))
            return false;
        if (ft_set_has(mine.list, r))
            continue;
        if (!came || c.kind != mine.kind || memcmp(c.list, mine.list, a->set_bytes) != 0)
            return false;
    }
    return true;
}

/* A listed rank that lives may name others in turn, so it gets a short time to answer. */
static bool is_awaited(const struct ft_agree *a, int rank, bool quorum)
{
    const uint64_t asked_ns = a->peer[rank].asked_ns;
    const bool late = asked_ns != 0 && ft_agree_now(a) - asked_ns >= a->config.silent_ns / 16;
    return !ft_agree_missing(a, rank) && !(quorum && late && ft_set_has(a->listed, rank));
}

bool ft_agree_complete(const struct ft_agree *a)
{
    const bool quorum = ft_agree_quorum(a, false);
    const bool late = ft_agree_now(a) - a->known_ns >= a->config.enter_ns;
    for (int r = 0; r < a->config.nranks; r++) {
        const struct ft_agree_peer *p = &a->peer[r];
        if (ft_agree_is_gone(a, r) || (p->promised && p->entered && !p->doubted))
            continue;
        if (!is_awaited(a, r, quorum))
            continue;
        if (!p->promised || p->doubted || (!late && !ft_set_has(a->listed, r)))
            return false;
    }
    return true;
}

/* ---- the value ------------------------------------------------------------------------------- */

static bool reports(const struct ft_agree *a, int x, int y)
{
    if (x == a->config.rank)
        return a->peer[y].evidence == FT_UNREACHABLE;
    return a->peer[x].unreachable && ft_set_has(a->peer[x].unreachable, y);
}

/* Counts for each remaining rank the remaining ranks that it cannot reach or that cannot reach
 * it. */
static void count_broken(const struct ft_agree *a, const unsigned char *failed,
                         const unsigned char *excluded, int *pairs)
{
    const int n = a->config.nranks;
    memset(pairs, 0, (size_t)n * sizeof *pairs);
    for (int x = 0; x < n; x++) {
        if ((x != a->config.rank && !a->peer[x].unreachable) || failed[x] || excluded[x])
            continue;
        for (int y = 0; y < n; y++) {
            if (y == x || failed[y] || excluded[y] || !reports(a, x, y) ||
                (y < x && reports(a, y, x)))
                continue;
            pairs[x]++;
            pairs[y]++;
        }
    }
}

/* Leaves out one rank of each pair that cannot reach each other. The rank with most such pairs goes
 * first; among equals the highest rank. If pairs share no rank, or if one rank is cut off from
 * several, this leaves out the least possible number of ranks. */
static void leave_out_broken(const struct ft_agree *a, unsigned char *failed,
                             const unsigned char *excluded, int *pairs)
{
    for (;;) {
        int worst = 0;
        count_broken(a, failed, excluded, pairs);
        for (int r = 1; r < a->config.nranks; r++)
            if (pairs[r] >= pairs[worst])
                worst = r;
        if (pairs[worst] == 0)
            return;
        failed[worst] = 1;
    }
}

/* Determines which ranks did not enter, and which ranks are on a list of one that did. */
static void collect_entered(const struct ft_agree *a, unsigned char *failed,
                            unsigned char *excluded)
{
    struct ft_contribution c;
    for (int r = 0; r < a->config.nranks; r++) {
        const struct ft_agree_peer *p = &a->peer[r];
        failed[r] = ft_agree_is_gone(a, r) || !p->promised || !p->entered || p->doubted;
        if (failed[r] || !contribution_of(a, r, &c))
            continue;
        for (int k = 0; k < a->config.nranks; k++)
            excluded[k] |= ft_set_has(c.list, k);
    }
    /* a rank that is left out on purpose need not enter */
    for (int r = 0; r < a->config.nranks; r++)
        if (excluded[r] && !ft_set_has(a->dead, r) && !ft_agree_missing(a, r))
            failed[r] = 0;
}

static int count_left(int n, const unsigned char *failed, const unsigned char *excluded)
{
    int left = 0;
    for (int r = 0; r < n; r++)
        left += !failed[r] && !excluded[r];
    return left;
}

/* If the remaining ranks called different kinds, or if no rank remains, the decision is an error
 * for all, and no list counts. */
static void check_kinds(const struct ft_agree *a, struct ft_decision *d, unsigned char *excluded)
{
    const int n = a->config.nranks;
    struct ft_contribution c;
    bool first = true;
    if (count_left(n, d->failed, excluded) == 0)
        d->status = FT_USAGE;
    for (int r = 0; r < n; r++) {
        if (d->failed[r] || (excluded[r] && d->status == FT_OK) || !contribution_of(a, r, &c))
            continue;
        if (first)
            d->kind = c.kind;
        else if (d->kind != c.kind)
            d->status = FT_MIXED;
        first = false;
    }
    for (int r = 0; r < n; r++)
        excluded[r] = (excluded[r] && d->status == FT_OK) || d->failed[r] ||
                      !contribution_of(a, r, &c);
}

/* Combines the inputs of the survivors. */
static void combine_inputs(const struct ft_agree *a, struct ft_decision *d)
{
    struct ft_contribution c;
    d->flags = d->first_op = UINT64_MAX;
    for (int r = 0; r < a->config.nranks; r++) {
        if (d->excluded[r] || !contribution_of(a, r, &c))
            continue;
        d->flags &= c.flags;
        if (c.blob_bytes > 0 && d->blob_bytes == 0) {
            d->blob = c.blob;
            d->blob_bytes = c.blob_bytes;
        }
        if (c.last_op < d->first_op)
            d->first_op = c.last_op;
        if (c.last_op > d->last_op)
            d->last_op = c.last_op;
    }
}

struct place {
    int64_t key;
    int rank;
};

static int compare_places(const void *x, const void *y)
{
    const struct place *a = x, *b = y;
    if (a->key != b->key)
        return a->key < b->key ? -1 : 1;
    return a->rank - b->rank;
}

static int put_in_order(const struct ft_agree *a, const unsigned char *excluded,
                        struct place *places, struct ft_decision *d)
{
    struct ft_contribution c;
    int n = 0;
    for (int r = 0; r < a->config.nranks; r++)
        if (!excluded[r] && contribution_of(a, r, &c))
            places[n++] = (struct place){c.key, r};
    qsort(places, (size_t)n, sizeof *places, compare_places);
    for (int i = 0; i < n; i++) {
        ((int *)(uintptr_t)d->order)[i] = places[i].rank;
        contribution_of(a, places[i].rank, &c);
        ((int64_t *)(uintptr_t)d->keys)[i] = d->status == FT_MIXED ? (int64_t)c.kind
                                                                   : places[i].key;
    }
    return n;
}

static uint64_t make_nonce(const struct ft_agree *a)
{
    uint64_t random[2];
    a->config.env->random(a->config.env, random, sizeof random);
    return ft_hash64(random, sizeof random, a->config.seed);
}

int ft_agree_compute(struct ft_agree *a, struct ft_bytes *value)
{
    const size_t n = (size_t)a->config.nranks;
    unsigned char *failed = calloc(2, n), *excluded = failed ? failed + n : NULL;
    int *order = calloc(n, sizeof *order);
    int64_t *keys = calloc(n, sizeof *keys);
    struct place *places = calloc(n, sizeof *places);
    unsigned char *out = malloc(a->config.message_bytes);
    int status = FT_NOMEM;
    if (failed && order && keys && places && out) {
        struct ft_decision d = {
            .status = FT_OK, .failed = failed, .excluded = excluded, .order = order, .keys = keys};
        collect_entered(a, failed, excluded);
        leave_out_broken(a, failed, excluded, order);
        check_kinds(a, &d, excluded);
        combine_inputs(a, &d);
        d.nsurvivors = put_in_order(a, excluded, places, &d);
        d.nonce = make_nonce(a);
        status = d.nsurvivors == 0
                     ? FT_AGAIN
                     : ft_bytes_set(value, out, ft_value_encode(out, a->config.nranks, &d));
    }
    free(failed);
    free(order);
    free(keys);
    free(places);
    free(out);
    return status;
}

/*
 * The registry of algorithms and the selection. Candidates are the algorithms that do the kind, fit
 * the view and are allowed by FTCCL_ALGO. If a tuning table names the fastest one, it is used;
 * otherwise the one with the lowest predicted cost.
 *
 * FTCCL_ALGO is a list of names separated by commas. "kind:name" opens a part for one kind; a
 * semicolon or the next kind closes it. ^ before a list (or a name) excludes. For its kind, such a
 * part replaces the general one. NCCL's texts have the same meaning. Algorithms of NCCL that FTCCL
 * does not have are accepted and never chosen. Case is ignored.
 */
#include <string.h>
#include <strings.h>

#include "algo/choice.h"
#include "algo/parts.h"

const struct ft_algo *const ft_algos[] = {
    &ft_algo_local,  &ft_algo_rd,    &ft_algo_hd,       &ft_algo_ring, &ft_algo_tree,
    &ft_algo_direct, &ft_algo_bruck, &ft_algo_twolevel, &ft_algo_flat, NULL,
};

static const char *const foreign[] = {"CollnetDirect", "CollnetChain", "NVLS", "NVLSTree", "PAT"};

struct token {
    const char *text;
    size_t len;
};

bool ft_word_is(const char *text, size_t len, const char *name)
{
    return strlen(name) == len && strncasecmp(text, name, len) == 0;
}

static bool token_is(struct token token, const char *name)
{
    return ft_word_is(token.text, token.len, name);
}

static int algo_index(struct token name)
{
    for (int i = 0; ft_algos[i]; i++)
        if (token_is(name, ft_algos[i]->name))
            return i;
    return -1;
}

static bool is_foreign(struct token name)
{
    for (size_t i = 0; i < FT_ARRAY_LEN(foreign); i++)
        if (token_is(name, foreign[i]))
            return true;
    return false;
}

static int kind_index(struct token name)
{
    for (int kind = 0; kind < FT_SEND; kind++)
        if (token_is(name, ft_kind_name((enum ft_kind)kind)))
            return kind;
    return -1;
}

/* Adds one name of a list to a part. */
static int choice_add(struct ft_choice *part, struct token name, bool exclude)
{
    int i = algo_index(name);
    if (i < 0 && !is_foreign(name))
        return ft_fail(FT_USAGE, "FTCCL_ALGO: '%.*s' is no algorithm", (int)name.len, name.text);
    part->given = true;
    uint32_t bit = i < 0 ? 0 : 1u << i;
    if (exclude)
        part->excluded |= bit;
    else {
        part->listed = true;
        part->only |= bit;
    }
    return FT_OK;
}

int ft_choice_parse(const char *text, struct ft_choice parts[FT_CHOICE_PARTS])
{
    memset(parts, 0, FT_CHOICE_PARTS * sizeof *parts);
    struct ft_choice *part = &parts[FT_CHOICE_GENERAL];
    bool list_excludes = false, list_starts = true;
    for (const char *at = text ? text : ""; *at;) {
        at += strspn(at, " \t");
        size_t len = strcspn(at, ",;: \t");
        struct token token = {at, len};
        const char *end = at + len + strspn(at + len, " \t");
        if (*end == ':') {
            int kind = kind_index(token);
            if (kind < 0)
                return ft_fail(FT_USAGE, "FTCCL_ALGO: '%.*s' is no collective", (int)len, at);
            part = &parts[kind];
            list_starts = true;
            at = end + 1;
            continue;
        }
        bool exclude = len > 0 && *token.text == '^';
        if (exclude)
            token = (struct token){at + 1, len - 1};
        if (list_starts)
            list_excludes = exclude;
        if (token.len > 0) {
            int status = choice_add(part, token, exclude || list_excludes);
            if (status != FT_OK)
                return status;
            list_starts = false;
        }
        if (*end == ';')
            part = &parts[FT_CHOICE_GENERAL];
        if (*end == ';')
            list_starts = true;
        at = *end == ',' || *end == ';' ? end + 1 : end;
    }
    return FT_OK;
}

/* A general list restricts only kinds that one of its algorithms can do. For example, "tree" does
 * not restrict AlltoAll. */
static bool part_binds(const struct ft_choice *part, enum ft_kind kind)
{
    for (int i = 0; ft_algos[i]; i++)
        if ((part->only & 1u << i) && (ft_algos[i]->kinds & FT_KIND_BIT(kind)))
            return true;
    return false;
}

bool ft_choice_allows(const struct ft_choice parts[FT_CHOICE_PARTS], enum ft_kind kind, int algo)
{
    if (ft_algos[algo] == &ft_algo_local)
        return true; /* a single rank has no choice */
    bool own = parts[kind].given;
    const struct ft_choice *part = &parts[own ? (int)kind : FT_CHOICE_GENERAL];
    if (part->excluded & 1u << algo)
        return false;
    if (!part->listed || (part->only & 1u << algo))
        return true;
    return !own && !part_binds(part, kind) && part->only != 0;
}

static bool usable(const struct ft_algo *algo, const struct ft_view *view,
                   const struct ft_coll *coll, const struct ft_tuning *tuning)
{
    return (algo->kinds & FT_KIND_BIT(coll->kind)) && algo->fits(view, coll, tuning);
}

static int check(const struct ft_view *view, const struct ft_coll *coll,
                 const struct ft_tuning *tuning)
{
    if ((unsigned)coll->kind >= FT_SEND || (unsigned)coll->type >= FT_TYPES)
        return ft_fail(FT_INVAL, "no algorithm for kind %d of type %d", (int)coll->kind,
                       (int)coll->type);
    if (view->nranks < 1 || view->rank < 0 || view->rank >= view->nranks || coll->root < 0 ||
        coll->root >= view->nranks)
        return ft_fail(FT_INVAL, "rank %d or root %d is not among %d ranks", view->rank, coll->root,
                       view->nranks);
    size_t esize = ft_type_size(coll->type), bytes;
    if (tuning->chunk_bytes < esize)
        return ft_fail(FT_INVAL, "a chunk of %zu bytes holds no element", tuning->chunk_bytes);
    if (__builtin_mul_overflow(coll->count, esize, &bytes) ||
        __builtin_mul_overflow(bytes, (size_t)view->nranks, &bytes))
        return ft_fail(FT_INVAL, "%zu elements for %d ranks are more than memory can hold",
                       coll->count, view->nranks);
    return FT_OK;
}

int ft_algo_plan(const struct ft_algo *algo, const struct ft_view *view, const struct ft_coll *coll,
                 const struct ft_tuning *tuning, struct ft_plan *plan)
{
    int status = check(view, coll, tuning);
    if (status != FT_OK)
        return status;
    if (!usable(algo, view, coll, tuning))
        return ft_fail(FT_USAGE, "algorithm %s does not do this %s", algo->name,
                       ft_kind_name(coll->kind));
    struct ft_plan made = {
        .algo = algo, .coll = *coll, .view = view, .esize = ft_type_size(coll->type)};
    status = algo->plan(&made, tuning);
    if (status == FT_OK)
        *plan = made;
    return status;
}

const struct ft_rule *ft_rule_followed(const struct ft_view *view, const struct ft_coll *coll,
                                       const struct ft_tuning *tuning,
                                       const struct ft_choice parts[FT_CHOICE_PARTS])
{
    const struct ft_rule *rule = ft_rule_find(tuning, view, coll);
    bool follow = rule && ft_choice_allows(parts, coll->kind, rule->algo) &&
                  usable(ft_algos[rule->algo], view, coll, tuning);
    return follow ? rule : NULL;
}

int ft_algo_select(const struct ft_view *view, const struct ft_coll *coll,
                   const struct ft_tuning *tuning, struct ft_plan *plan)
{
    struct ft_choice parts[FT_CHOICE_PARTS];
    int status = check(view, coll, tuning);
    if (status == FT_OK)
        status = ft_choice_parse(tuning->choice, parts);
    if (status != FT_OK)
        return status;
    const struct ft_rule *rule = ft_rule_followed(view, coll, tuning, parts);
    if (rule) {
        struct ft_tuning measured = *tuning;
        ft_rule_apply(rule, &measured);
        return ft_algo_plan(ft_algos[rule->algo], view, coll, &measured, plan);
    }
    const struct ft_algo *best = NULL;
    double best_ns = 0;
    for (int i = 0; ft_algos[i]; i++) {
        if (!ft_choice_allows(parts, coll->kind, i) || !usable(ft_algos[i], view, coll, tuning))
            continue;
        double ns = ft_algos[i]->cost_ns(view, coll, tuning);
        if (!best || ns < best_ns) {
            best = ft_algos[i];
            best_ns = ns;
        }
    }
    if (!best)
        return ft_fail(FT_USAGE,
                       "FTCCL_ALGO=%s leaves no algorithm for %s on %d ranks and %d hosts",
                       tuning->choice, ft_kind_name(coll->kind), view->nranks, view->nhosts);
    return ft_algo_plan(best, view, coll, tuning, plan);
}

double ft_algo_cost_ns(const struct ft_plan *plan, const struct ft_tuning *tuning)
{
    return plan->algo->cost_ns(plan->view, &plan->coll, tuning);
}

void ft_plan_step(const struct ft_plan *plan, int lane, uint64_t index, struct ft_step *step)
{
    memset(step, 0, sizeof *step);
    plan->algo->step(plan, lane, index, step);
    if (step->send_bytes == 0)
        step->nsend = 0;
    if (step->nsend == 0) {
        step->send_bytes = 0;
        step->send = ft_at(FT_BUF_NONE, 0);
        step->flags &= ~(unsigned)FT_STEP_MEETS;
    }
    if (step->len_bytes > 0)
        return;
    step->nrecv = step->nfwd = 0;
    step->src = step->dst = ft_at(FT_BUF_NONE, 0);
    step->flags &= FT_STEP_MEETS;
}

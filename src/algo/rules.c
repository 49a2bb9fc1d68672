/*
 * Measured choices: the lines "best ..." of a tuning table. If a line matches a collective, the
 * selection uses its algorithm and ignores predicted costs. The first line that matches wins. The
 * numbers of ranks and hosts must equal those of the line: a measurement on 4 ranks says nothing
 * about 6. A line with "over=shm" applies only if ranks of one host have another transport than
 * TCP; a line with "over=tcp" only if they have not.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "algo/choice.h"
#include "algo/parts.h"

_Static_assert(sizeof(struct ft_rule) == 32, "no holes: a rule is digested as it lies in memory");

static int algo_of(const char *name)
{
    for (int i = 0; ft_algos[i]; i++)
        if (!strcmp(name, ft_algos[i]->name))
            return i;
    return -1;
}

static int kind_of(const char *name)
{
    for (int kind = 0; kind < FT_SEND; kind++)
        if (ft_word_is(name, strlen(name), ft_kind_name((enum ft_kind)kind)))
            return kind;
    return -1;
}

/* Parses a whole number in [low, high]. Returns -1 if it is not one. */
static int64_t number(const char *text, int64_t low, int64_t high)
{
    char *end;
    errno = 0;
    long long value = strtoll(text, &end, 10);
    return end == text || *end || errno || value < low || value > high ? -1 : value;
}

/* Sets one "name=value" of a line. Returns false if the name is unknown or the value is bad. */
static bool set_item(struct ft_rule *rule, const char *name, const char *text)
{
    int64_t value;
    if (!strcmp(name, "algo"))
        return (value = algo_of(text)) >= 0 && (rule->algo = (int8_t)value, true);
    if (!strcmp(name, "ranks"))
        return (value = number(text, 1, 1 << 20)) > 0 && (rule->nranks = (int32_t)value, true);
    if (!strcmp(name, "hosts"))
        return (value = number(text, 1, 1 << 20)) > 0 && (rule->nhosts = (int32_t)value, true);
    if (!strcmp(name, "from"))
        return (value = number(text, 0, INT64_MAX)) >= 0 &&
               (rule->from_bytes = (uint64_t)value, true);
    if (!strcmp(name, "to"))
        return (value = number(text, 0, INT64_MAX)) >= 0 &&
               (rule->to_bytes = (uint64_t)value, true);
    if (!strcmp(name, "chunk_bytes"))
        return (value = number(text, 4096, 8388608)) > 0 &&
               (rule->chunk_bytes = (uint32_t)value, true);
    if (!strcmp(name, "chunks"))
        return (value = number(text, 1, FT_LANES)) > 0 && (rule->chunks = (int8_t)value, true);
    return false;
}

int ft_over_network(const struct ft_rules *rules, const char *name)
{
    if (!strcmp(name, "tcp"))
        return FT_OVER_TCP;
    for (int i = 0; rules && i < rules->nnetworks; i++)
        if (!strncmp(rules->networks[i], name, sizeof rules->networks[i]))
            return FT_OVER_NAMED + i;
    return FT_OVER_NETWORK;
}

int ft_over_of(struct ft_rules *rules, const char *name)
{
    if (!strcmp(name, "shm"))
        return FT_OVER_SHM;
    int over = ft_over_network(rules, name);
    if (over != FT_OVER_NETWORK || !strcmp(name, "network"))
        return over;
    if (!rules->is_network || !rules->is_network(name) || rules->nnetworks == FT_NETWORKS)
        return -1;
    memcpy(rules->networks[rules->nnetworks], name, strnlen(name, FT_TRANSPORT_NAME_BYTES));
    return FT_OVER_NAMED + rules->nnetworks++;
}

int ft_rule_parse(struct ft_rules *rules, const char *path, int line, char **rest)
{
    struct ft_rule rule = {.to_bytes = UINT64_MAX, .algo = -1};
    char *name = strtok_r(NULL, " \t=", rest);
    int kind = name ? kind_of(name) : -1;
    if (kind < 0)
        return ft_fail(FT_INVAL, "%s:%d: '%s' is no collective", path, line, name ? name : "");
    rule.kind = (int8_t)kind;
    while ((name = strtok_r(NULL, " \t=", rest))) {
        const char *value = strtok_r(NULL, " \t=", rest);
        int over = value && !strcmp(name, "over") ? ft_over_of(rules, value) : -1;
        if (over >= 0)
            rule.over = (int8_t)over;
        else if (!value || !set_item(&rule, name, value))
            return ft_fail(FT_INVAL, "%s:%d: %s=%s is not known here or out of its range", path,
                           line, name, value ? value : "");
    }
    if (rule.algo < 0 || !rule.nranks || !rule.nhosts || rule.nhosts > rule.nranks ||
        rule.from_bytes > rule.to_bytes)
        return ft_fail(
            FT_INVAL,
            "%s:%d: a measured choice needs algo, ranks, hosts (at most ranks) and from up to to",
            path, line);
    if (!(ft_algos[rule.algo]->kinds & FT_KIND_BIT(kind)))
        return ft_fail(FT_INVAL, "%s:%d: algorithm %s does no %s", path, line,
                       ft_algos[rule.algo]->name, ft_kind_name((enum ft_kind)kind));
    if (rules->nrules == FT_RULES)
        return ft_fail(FT_INVAL, "%s:%d: more than %d measured choices", path, line, FT_RULES);
    rules->rule[rules->nrules++] = rule;
    return FT_OK;
}

/* Bytes of the larger of the two buffers. */
static uint64_t size_of(const struct ft_view *view, const struct ft_coll *coll)
{
    uint64_t bytes = coll->count * ft_type_size(coll->type);
    bool whole = coll->kind == FT_ALLREDUCE || coll->kind == FT_BROADCAST ||
                 coll->kind == FT_REDUCE;
    return whole ? bytes : bytes * (uint64_t)view->nranks;
}

static bool holds_over(const struct ft_rule *rule, const struct ft_tuning *tuning)
{
    if (rule->over == FT_OVER_ALL)
        return true;
    if (tuning->local_links || rule->over == FT_OVER_SHM)
        return tuning->local_links && rule->over == FT_OVER_SHM;
    return rule->over == FT_OVER_NETWORK || rule->over == tuning->network;
}

const struct ft_rule *ft_rule_find(const struct ft_tuning *tuning, const struct ft_view *view,
                                   const struct ft_coll *coll)
{
    uint64_t bytes = size_of(view, coll);
    const struct ft_rules *rules = tuning->rules;
    for (int i = 0; rules && i < rules->nrules; i++) {
        const struct ft_rule *rule = &rules->rule[i];
        if (rule->kind == (int)coll->kind && rule->nranks == view->nranks &&
            rule->nhosts == view->nhosts && rule->from_bytes <= bytes && bytes <= rule->to_bytes &&
            holds_over(rule, tuning))
            return rule;
    }
    return NULL;
}

void ft_rule_apply(const struct ft_rule *rule, struct ft_tuning *tuning)
{
    if (rule->chunks > tuning->chunks)
        tuning->chunks_before = tuning->chunks;
    if (rule->chunks)
        tuning->chunks = rule->chunks, tuning->peer_lanes = false;
    if (tuning->chunks > 1)
        tuning->chunk_bytes = tuning->several_bytes;
    tuning->chunk_is_ruled = rule->chunk_bytes != 0;
    if (rule->chunk_bytes && rule->chunk_bytes < tuning->chunk_bytes)
        tuning->chunk_bytes = rule->chunk_bytes;
}

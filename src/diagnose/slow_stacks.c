/*
 * slow_stacks: who does something else than most, from stacks, and which parallel group those ranks
 * have in common (ByteRobust 5.1). The group may be larger than what is broken; to isolate it is
 * quicker than to find the one rank.
 */
#include "diagnose/slow.h"

#include <stdlib.h>
#include <string.h>

/* A rank's stack; equal stacks stand side by side when sorted. */
struct sorted {
    const struct ft_stack *stack;
    uint64_t hash;
    int rank;
};

static const char *frame(const struct ft_stack *stack, int i)
{
    return stack->frames[i] ? stack->frames[i] : "";
}

/* FNV-1a over all frames with their ends. */
static uint64_t hash_stack(const struct ft_stack *stack)
{
    uint64_t hash = 14695981039346656037u;
    for (int i = 0; i < stack->nframes; i++) {
        const char *text = frame(stack, i);
        do
            hash = (hash ^ (unsigned char)*text) * 1099511628211u;
        while (*text++);
    }
    return hash;
}

static int compare_stacks(const void *a, const void *b)
{
    const struct sorted *x = a, *y = b;
    if (x->hash != y->hash)
        return x->hash < y->hash ? -1 : 1;
    if (x->stack->nframes != y->stack->nframes)
        return x->stack->nframes < y->stack->nframes ? -1 : 1;
    int order = 0;
    for (int i = 0; i < x->stack->nframes && order == 0; i++)
        order = strcmp(frame(x->stack, i), frame(y->stack, i));
    return order;
}

/* The end of the stacks that equal the one at `first`. */
static int end_of_equals(const struct sorted *sorted, int n, int first)
{
    int end = first + 1;
    while (end < n && compare_stacks(&sorted[first], &sorted[end]) == 0)
        end++;
    return end;
}

static int count_most(const struct sorted *sorted, int n)
{
    int most = 0;
    for (int first = 0, end; first < n; first = end) {
        end = end_of_equals(sorted, n, first);
        if (end - first > most)
            most = end - first;
    }
    return most;
}

/* Marks ranks whose stack at most half as many have as the most common one. */
static void mark_outliers(const struct sorted *sorted, int n, bool *outlier,
                          struct ft_outliers *found)
{
    int most = count_most(sorted, n);
    for (int first = 0, end; first < n; first = end) {
        end = end_of_equals(sorted, n, first);
        found->nstacks++;
        if (end - first > most / 2)
            continue;
        for (int i = first; i < end; i++)
            outlier[sorted[i].rank] = true;
        found->noutliers += end - first;
    }
}

static bool is_member(const struct ft_stack *stack, int group)
{
    for (int i = 0; i < stack->ngroups; i++)
        if (stack->groups[i] == group)
            return true;
    return false;
}

/* The members of the group, or 0 if not all outliers are among them. */
static int count_members(const struct ft_stack *stacks, int nranks, const bool *outlier, int group)
{
    int members = 0;
    for (int rank = 0; rank < nranks; rank++) {
        if (is_member(&stacks[rank], group))
            members++;
        else if (outlier[rank])
            return 0;
    }
    return members;
}

static void find_group(const struct ft_stack *stacks, int nranks, const bool *outlier,
                       struct ft_outliers *found)
{
    int first = 0;
    while (first < nranks && !outlier[first])
        first++;
    if (first == nranks)
        return;
    for (int i = 0; i < stacks[first].ngroups; i++) {
        int members = count_members(stacks, nranks, outlier, stacks[first].groups[i]);
        if (members == 0 || members > nranks / 2 || (found->members && members >= found->members))
            continue;
        found->members = members;
        found->group = stacks[first].groups[i];
    }
}

int ft_stack_outliers(const struct ft_stack *stacks, int nranks, bool *outlier,
                      struct ft_outliers *found)
{
    *found = (struct ft_outliers){.group = -1};
    if (nranks <= 0)
        return 0;
    struct sorted *sorted = malloc((size_t)nranks * sizeof(*sorted));
    if (!sorted)
        return FT_NOMEM;
    int n = 0;
    for (int rank = 0; rank < nranks; rank++) {
        outlier[rank] = false;
        if (stacks[rank].nframes > 0 && stacks[rank].frames)
            sorted[n++] = (struct sorted){&stacks[rank], hash_stack(&stacks[rank]), rank};
    }
    qsort(sorted, (size_t)n, sizeof(*sorted), compare_stacks);
    mark_outliers(sorted, n, outlier, found);
    free(sorted);
    if (found->noutliers > n / 2) {
        memset(outlier, 0, (size_t)nranks * sizeof(*outlier));
        found->noutliers = 0;
    }
    if (found->noutliers > 1)
        find_group(stacks, nranks, outlier, found);
    return found->noutliers;
}

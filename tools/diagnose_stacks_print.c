/*
 * Prints the groups of stacks for people.
 */
#include "diagnose_stacks.h"

#include <stdlib.h>
#include <string.h>

#define FRAMES_PRINTED 16
#define GROUPS_PRINTED 16
#define PROCESSES_PRINTED 32 /* children, and troubles of ranks */

void put_ranges(FILE *out, const int *numbers, int n)
{
    for (int i = 0, end; i < n; i = end) {
        for (end = i + 1; end < n && numbers[end] == numbers[end - 1] + 1; end++) {}
        fprintf(out, end - i > 1 ? "%s%d-%d" : "%s%d", i ? ", " : "", numbers[i], numbers[end - 1]);
    }
}

int *group_ranks(const struct ft_stacks *s, const struct ft_stack_group *group)
{
    int *ranks = calloc((size_t)group->count + 1, sizeof *ranks);
    for (int i = 0; ranks && i < group->count; i++)
        ranks[i] = s->ranks[s->order[group->first + i]].rank;
    return ranks;
}

void put_found(FILE *out, const struct ft_stacks *s)
{
    const char *by = ft_stack_source_name(s->compared);
    int n = s->nranks - s->nunread;
    if (s->found == FT_STACKS_NOTHING)
        fprintf(out, "no stack could be read");
    else if (s->found == FT_STACKS_ALIKE)
        fprintf(out, "the stacks of all %d ranks that were read are alike (%s)", n, by);
    else if (s->found == FT_STACKS_OUTLIERS)
        fprintf(out, "%d of %d ranks %s elsewhere than most (%s)", s->noutliers, n,
                s->noutliers == 1 ? "is" : "are", by);
    else
        fprintf(out,
                "cannot tell who is elsewhere than most: %d ranks have %d different stacks (%s)", n,
                s->ngroups, by);
}

static void print_frames(FILE *out, const struct ft_stack *stack, const char *before)
{
    const char *at = stack && stack->shown ? stack->shown : "";
    for (int i = 0; *at && i < FRAMES_PRINTED; i++) {
        size_t len = strcspn(at, "\n");
        fprintf(out, "%s%.*s\n", before, (int)len, at);
        at += len + (at[len] == '\n');
    }
    if (*at)
        fprintf(out, "%s...\n", before);
}

static void print_group(FILE *out, const struct ft_stacks *s, const struct ft_stack_group *group)
{
    int *ranks = group_ranks(s, group);
    fprintf(out, "  %s%s ", group->outlier ? "outlier: " : "", group->count > 1 ? "ranks" : "rank");
    if (ranks)
        put_ranges(out, ranks, group->count);
    fputc('\n', out);
    free(ranks);
    print_frames(out, ft_stacks_of(s, s->order[group->first]), "    ");
}

static void print_common(FILE *out, const struct ft_stacks *s)
{
    for (int i = 0; i < s->nshared; i++) {
        fprintf(out, "%s", i ? ", " : "the outliers share ");
        if (s->shared[i].name[0])
            fprintf(out, "communicator %s", s->shared[i].name);
        else
            fprintf(out, "communicator %016llx", (unsigned long long)s->shared[i].ctx);
        fprintf(out, " (%d ranks%s)", s->shared[i].nranks,
                i == s->leave_out ? ": leave these out to isolate them" : "");
    }
}

static void print_child(FILE *out, const struct ft_stacks *s, const struct ft_stack_process *p)
{
    const struct ft_stack_thread *t = p->nthreads ? p->threads : NULL;
    fprintf(out, "  rank %d has a child, process %d", s->ranks[p->rank].rank, p->pid);
    if (p->name[0])
        fprintf(out, " (%s)", p->name);
    if (t)
        fprintf(out, ", in state %c%s%s%s%s", t->state, t->where[0] ? " in " : "", t->where,
                t->call[0] ? ", " : "", t->call);
    fputs(p->trouble[0] ? "; no stack: " : "", out);
    fprintf(out, "%s\n", p->trouble);
    print_frames(out, &p->stack, "    ");
}

static const char *trouble_of(const struct ft_stacks *s, int rank)
{
    return s->processes[s->ranks[rank].process].trouble;
}

/* The ranks from this one on that have the same trouble, if it is the first of them. */
static int print_trouble(FILE *out, const struct ft_stacks *s, int rank)
{
    int *same = calloc((size_t)s->nranks, sizeof *same), n = 0;
    bool first = same && trouble_of(s, rank)[0];
    for (int i = 0; first && i < s->nranks; i++)
        if (strcmp(trouble_of(s, i), trouble_of(s, rank)) == 0) {
            first = i >= rank;
            same[n++] = s->ranks[i].rank;
        }
    if (first) {
        fprintf(out, "  no stack of rank%s ", n == 1 ? "" : "s");
        put_ranges(out, same, n);
        fprintf(out, ": %s\n", trouble_of(s, rank));
    }
    free(same);
    return first;
}

void print_stacks(FILE *out, const struct ft_stacks *s)
{
    int printed = 0;
    fputs("stacks: ", out);
    put_found(out, s);
    fputc('\n', out);
    for (int i = 0; i < s->ngroups && i < GROUPS_PRINTED; i++)
        print_group(out, s, &s->groups[i]);
    if (s->ngroups > GROUPS_PRINTED)
        fprintf(out, "  %d more groups\n", s->ngroups - GROUPS_PRINTED);
    if (s->nshared) {
        fputs("  ", out);
        print_common(out, s);
        fputc('\n', out);
    }
    for (int i = 0; i < s->nranks && printed < PROCESSES_PRINTED; i++)
        printed += print_trouble(out, s, i);
    for (int i = 0; i < s->nprocesses && printed < PROCESSES_PRINTED; i++)
        if (s->processes[i].parent && ++printed)
            print_child(out, s, &s->processes[i]);
    if (printed == PROCESSES_PRINTED)
        fputs("  more processes are not shown; --json has them\n", out);
    if (s->left_out)
        fprintf(out, "  %d processes of the job were not looked at\n", s->left_out);
}

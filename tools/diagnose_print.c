/*
 * Prints what ftccl-diagnose found, as text for people and as JSON for programs.
 */
#include "diagnose_stacks.h"

#include <math.h>

static void print_change(FILE *out, const struct ft_step_change *change)
{
    fprintf(out, "steps of communicator %s are %s: %.4g ms, %.4g ms before\n",
            change->name[0] ? change->name : "without a name",
            change->slower ? "slower" : "faster again", change->after_ns / 1e6,
            change->before_ns / 1e6);
}

/* The sentences name ranks of the communicator in which they were found. */
static void print_places(FILE *out, const struct ft_verdict *v)
{
    for (int i = 0; i < v->nculprits && i < FT_CULPRITS; i++)
        if (v->culprits[i].world_rank != v->culprits[i].rank)
            fprintf(out, "  rank %d there is rank %d of the job\n", v->culprits[i].rank,
                    v->culprits[i].world_rank);
}

#define LINKS_SHOWN 5

static void print_links(FILE *out, const struct ft_tested *t)
{
    for (int i = 0; i < t->nlinks && i < LINKS_SHOWN; i++) {
        const struct ft_tested_link *link = &t->links[i];
        fprintf(out, "  rank %d to rank %d over %s %s: ", link->from, link->to, link->transport,
                link->same_host ? "inside a host" : "between hosts");
        if (link->s_per_mib <= 0)
            fprintf(out, "nothing came\n");
        else if (link->ratio > 0)
            fprintf(out, "%.3g ms for 1 MiB, %.3g times the median\n", link->s_per_mib * 1e3,
                    link->ratio);
        else
            fprintf(out, "%.3g ms for 1 MiB\n", link->s_per_mib * 1e3);
    }
    if (t->nlinks > LINKS_SHOWN)
        fprintf(out, "  and %d faster links\n", t->nlinks - LINKS_SHOWN);
}

static double slowness_of(const struct ft_tested_rank *rank)
{
    return fmax(rank->mean_ratio, fmax(rank->copy_ratio, rank->product_ratio));
}

static void print_slowest_rank(FILE *out, const struct ft_tested *t)
{
    const struct ft_tested_rank *slowest = NULL;
    bool gpu = false;
    for (const struct ft_tested_rank *rank = t->ranks; rank < t->ranks + t->nranks; rank++) {
        gpu |= rank->gpu;
        if (!slowest || slowness_of(rank) > slowness_of(slowest))
            slowest = rank;
    }
    if (slowest && slowest->copy_ratio > 0)
        fprintf(out,
                "  slowest processor: rank %d, copy of memory %.3g and matrix product %.3g "
                "times the median at best, both together %.3g times on average\n",
                slowest->rank, slowest->copy_ratio, slowest->product_ratio, slowest->mean_ratio);
    if (gpu)
        fprintf(out, "  GPUs were not measured\n");
}

static void print_validation(FILE *out, const struct ft_tested *t)
{
    fprintf(out,
            "validated communicator %s before its operation %llu: measured %d time%s, calls were "
            "held for %.3g s each at most, %.3g s of it until all ranks were there; the slowest "
            "links:\n",
            t->name, (unsigned long long)t->seq + 1, t->runs, t->runs == 1 ? "" : "s", t->pause_s,
            t->waited_s);
    print_links(out, t);
    print_slowest_rank(out, t);
}

void print_text(FILE *out, const struct report *report, bool explain)
{
    for (int i = 0; i < report->nchanges; i++)
        print_change(out, &report->changes[i]);
    for (int i = 0; i < report->ntested; i++)
        print_validation(out, &report->tested[i]);
    for (int i = 0; i < report->found; i++) {
        const struct ft_verdict *v = &report->verdicts[i];
        fprintf(out, "%s: %s\n", ft_verdict_name(v->kind), v->sentence);
        print_places(out, v);
        for (int k = 0; explain && k < v->nchain; k++)
            fprintf(out, "  %s\n", v->chain[k]);
    }
    if (report->trouble[0])
        fprintf(out, "cannot tell: %s\n", report->trouble);
    else if (report->found == 0)
        fprintf(out, "healthy: no operation of %d process%s has waited for %g s\n", report->engines,
                report->engines == 1 ? "" : "es", report->after_s);
    if (report->stacks)
        print_stacks(out, report->stacks);
}

struct ft_report report_for_programs(const struct report *report)
{
    return (struct ft_report){.snapshot = report->snapshot,
                              .verdicts = report->verdicts,
                              .found = report->found,
                              .engines = report->engines,
                              .unreadable = report->unreadable,
                              .time_s = (double)report->real_ns / 1e9,
                              .after_s = report->after_s,
                              .trouble = report->trouble[0] ? report->trouble : NULL,
                              .changes = report->changes,
                              .nchanges = report->nchanges,
                              .stacks = report->stacks,
                              .tested = report->tested,
                              .ntested = report->ntested};
}

void print_json(FILE *out, const struct report *report)
{
    struct ft_text text = {.most = 16 << 20};
    const struct ft_report all = report_for_programs(report);
    ft_report_json(&text, NULL, &all);
    fprintf(out, "%s\n", text.broken ? "{\"trouble\":\"no memory\"}" : text.at);
    ft_text_free(&text);
}

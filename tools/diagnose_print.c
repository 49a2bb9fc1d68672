/*
 * Prints what ftccl-diagnose found, as text for people and as JSON for programs.
 */
#include "diagnose.h"

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

void print_text(FILE *out, const struct report *report, bool explain)
{
    for (int i = 0; i < report->nchanges; i++)
        print_change(out, &report->changes[i]);
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
                              .nchanges = report->nchanges};
}

void print_json(FILE *out, const struct report *report)
{
    struct ft_text text = {.most = 16 << 20};
    const struct ft_report all = report_for_programs(report);
    ft_report_json(&text, NULL, &all);
    fprintf(out, "%s\n", text.broken ? "{\"trouble\":\"no memory\"}" : text.at);
    ft_text_free(&text);
}

/*
 * Prints what ftccl-diagnose found, as text for people and as JSON for programs.
 */
#include "diagnose.h"

void print_text(FILE *out, const struct report *report, bool explain)
{
    for (int i = 0; i < report->found; i++) {
        const struct ft_verdict *v = &report->verdicts[i];
        fprintf(out, "%s: %s\n", ft_verdict_name(v->kind), v->sentence);
        for (int k = 0; explain && k < v->nchain; k++)
            fprintf(out, "  %s\n", v->chain[k]);
    }
    if (report->trouble[0])
        fprintf(out, "cannot tell: %s\n", report->trouble);
    else if (report->found == 0)
        fprintf(out, "healthy: no operation of %d process%s has waited for %g s\n", report->engines,
                report->engines == 1 ? "" : "es", report->after_s);
}

void print_json(FILE *out, const struct report *report)
{
    struct ft_text text = {.most = 16 << 20};
    const struct ft_report all = {.verdicts = report->verdicts,
                                  .found = report->found,
                                  .engines = report->engines,
                                  .unreadable = report->unreadable,
                                  .time_s = (double)report->real_ns / 1e9,
                                  .after_s = report->after_s,
                                  .trouble = report->trouble[0] ? report->trouble : NULL};
    ft_report_json(&text, NULL, &all);
    fprintf(out, "%s\n", text.broken ? "{\"trouble\":\"no memory\"}" : text.at);
    ft_text_free(&text);
}

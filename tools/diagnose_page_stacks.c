/*
 * The groups of stacks as a table.
 */
#include "diagnose_page.h"
#include "diagnose_stacks.h"

#include <stdlib.h>
#include <string.h>

#define GROUPS_DRAWN 64
#define FRAMES_DRAWN 16

static void put_frames(FILE *out, const struct ft_stack *stack)
{
    char frame[FT_STACK_FRAME_BYTES];
    const char *at = stack && stack->shown ? stack->shown : "";
    for (int i = 0; *at && i < FRAMES_DRAWN; i++) {
        size_t len = strcspn(at, "\n");
        snprintf(frame, sizeof frame, "%.*s", (int)ft_min(len, sizeof frame - 1), at);
        fputs("<div>", out);
        put_text(out, frame);
        fputs("</div>", out);
        at += len + (at[len] == '\n');
    }
    if (*at)
        fputs("<div>...</div>", out);
}

static void put_group(FILE *out, const struct ft_stacks *s, const struct ft_stack_group *group)
{
    int *ranks = group_ranks(s, group);
    fprintf(out, "<tr class=\"%s\"><td>%s</td><td class=\"number\">%d</td><td>",
            group->outlier ? "culprit" : "usual", group->outlier ? "outlier" : "", group->count);
    if (ranks)
        put_ranges(out, ranks, group->count);
    free(ranks);
    fputs("</td><td>", out);
    put_frames(out, ft_stacks_of(s, s->order[group->first]));
    fputs("</td></tr>\n", out);
}

void put_stacks(const struct page *p)
{
    const struct ft_stacks *s = p->report->stacks;
    if (!s)
        return;
    fputs("<section id=\"stacks\"><h2>Stacks</h2>\n<p>", p->out);
    put_found(p->out, s);
    fputs("</p>\n<div class=\"wide\"><table><thead><tr><th></th><th>ranks</th><th>which</th>"
          "<th>stack, the innermost frame first</th></tr></thead>\n",
          p->out);
    for (int i = 0; i < s->ngroups && i < GROUPS_DRAWN; i++)
        put_group(p->out, s, &s->groups[i]);
    fputs("</table></div>\n", p->out);
    if (s->ngroups > GROUPS_DRAWN)
        fprintf(p->out, "<p class=\"soft\">%d more groups are not shown.</p>\n",
                s->ngroups - GROUPS_DRAWN);
    fputs("</section>\n", p->out);
}

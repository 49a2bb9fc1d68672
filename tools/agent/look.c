#include "look.h"

#include "../diagnose_ranks.h"
#include "../diagnose_stacks.h"
#include "telemetry/telemetry.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define RANKS_SHOWN 256
#define JOBS_NOTED 64
#define FRAMES_NOTED 8

/* ---- judging --------------------------------------------------------------------------------- */

void look_close(struct look *look)
{
    ft_snapshot_free(look->snapshot);
    look->snapshot = NULL;
}

void look_fail(struct look *look, const char *why)
{
    look_close(look);
    look->report = (struct report){.verdicts = look->verdicts,
                                   .real_ns = (uint64_t)time(NULL) * 1000000000u};
    snprintf(look->report.trouble, sizeof look->report.trouble, "%.300s", why);
}

static int count_processes(const struct ft_snapshot *s)
{
    int n = 0;
    for (int i = 0; i < s->nengines; i++)
        n += s->engines[i].state != FT_PROCESS_GONE;
    return n;
}

void look_conclude(struct look *look, int found, double after_s)
{
    const struct ft_snapshot *s = look->snapshot;
    look->report = (struct report){.snapshot = look->snapshot,
                                   .verdicts = look->verdicts,
                                   .found = (int)ft_min(found < 0 ? 0 : found, LOOK_VERDICTS),
                                   .engines = count_processes(s),
                                   .unreadable = s->unreadable,
                                   .real_ns = s->real_ns,
                                   .after_s = after_s};
    for (int i = 0; i < look->report.found; i++)
        look->nchain[i] = look->verdicts[i].nchain;
    if (found < 0)
        snprintf(look->report.trouble, sizeof look->report.trouble, "no memory for the analysis");
    else if (found == 0 && s->unreadable > 0)
        snprintf(look->report.trouble, sizeof look->report.trouble,
                 "%d telemetry files or hosts cannot be read; nothing is wrong with the others",
                 s->unreadable);
}

void look_take(struct look *look, struct ft_snapshot *snapshot, double after_s,
               struct ft_steps *steps)
{
    look_close(look);
    look->snapshot = snapshot;
    look_conclude(look,
                  ft_diagnose(snapshot, (uint64_t)(after_s * 1e9), look->verdicts, LOOK_VERDICTS),
                  after_s);
    if (steps)
        look->report.nchanges = ft_steps_look(steps, snapshot, look->report.changes,
                                              FT_ARRAY_LEN(look->report.changes));
}

bool look_hangs(const struct look *look)
{
    bool hangs = false;
    for (int i = 0; i < look->report.found; i++) {
        enum ft_verdict_kind kind = look->verdicts[i].kind;
        hangs |= kind != FT_VERDICT_NONCOMM_SLOW && kind != FT_VERDICT_COMM_SLOW_LINK &&
                 kind != FT_VERDICT_COMM_SLOW_SOURCE && kind != FT_VERDICT_COMM_SLOW_DESTINATION;
    }
    return hangs;
}

uint64_t look_signature(const struct look *look)
{
    uint64_t signature = 0;
    for (int i = 0; i < look->report.found; i++) {
        const struct ft_verdict *v = &look->verdicts[i];
        const int64_t part[] = {v->kind,      (int64_t)v->ctx,     (int64_t)v->seq,
                                v->nculprits, v->culprits[0].rank, v->culprits[0].peer};
        signature = ft_hash64(part, sizeof part, signature);
    }
    return signature;
}

void look_drop_stacks(struct look *look)
{
    look->report.stacks = NULL;
    for (int i = 0; i < look->report.found; i++)
        look->verdicts[i].nchain = look->nchain[i];
}

/* ---- remembering ----------------------------------------------------------------------------- */

static void note_job(const struct ft_snap_member *m, struct daemon_past *past)
{
    char name[64], sentence[160];
    snprintf(name, sizeof name, "%016" PRIx64, m->ctx);
    snprintf(sentence, sizeof sentence, "communicator %s (%016" PRIx64 ") of %d ranks",
             m->name[0] ? m->name : "without a name", m->ctx, m->nranks);
    daemon_past_note(past, DAEMON_JOB, name, "job", sentence);
}

/* Every communicator is noted by its member of the lowest rank here. */
static void note_jobs(const struct ft_snapshot *s, struct daemon_past *past)
{
    uint64_t seen[JOBS_NOTED];
    int n = 0;
    for (int i = 0; i < s->nmembers && n < JOBS_NOTED; i++) {
        bool known = !s->members[i].open;
        for (int k = 0; k < n && !known; k++)
            known = seen[k] == s->members[i].ctx;
        if (known)
            continue;
        seen[n++] = s->members[i].ctx;
        note_job(&s->members[i], past);
    }
}

static void name_verdict(const struct ft_verdict *v, char name[96])
{
    snprintf(name, 96, "%016" PRIx64 " rank %d peer %d", v->ctx,
             v->nculprits > 0 ? v->culprits[0].rank : -1,
             v->nculprits > 0 ? v->culprits[0].peer : -1);
}

static void put_frames_in_line(FILE *out, const struct ft_stack *stack)
{
    const char *at = stack && stack->shown ? stack->shown : "";
    for (int i = 0; *at && i < FRAMES_NOTED; i++) {
        size_t len = strcspn(at, "\n");
        fprintf(out, "%s%.*s", i ? " < " : ": ", (int)ft_min(len, 80), at);
        at += len + (at[len] == '\n');
    }
}

/* Who is elsewhere than most, and where, in a sentence. */
static void note_stacks(const struct look *look, struct daemon_past *past)
{
    const struct ft_stacks *s = look->report.stacks;
    char name[96], sentence[1000] = "";
    FILE *out = s && look->report.found > 0 ? fmemopen(sentence, sizeof sentence, "w") : NULL;
    if (!out)
        return;
    put_found(out, s);
    for (int i = 0; i < s->ngroups && s->groups[i].outlier; i++) {
        int *ranks = group_ranks(s, &s->groups[i]);
        fputs(s->groups[i].count > 1 ? "; ranks " : "; rank ", out);
        if (ranks)
            put_ranges(out, ranks, s->groups[i].count);
        put_frames_in_line(out, ft_stacks_of(s, s->order[s->groups[i].first]));
        free(ranks);
    }
    fclose(out);
    sentence[sizeof sentence - 1] = '\0';
    name_verdict(&look->verdicts[0], name);
    daemon_past_note(past, DAEMON_STACKS, name, ft_stacks_found_name(s->found), sentence);
}

void look_note(const struct look *look, struct daemon_past *past)
{
    for (int i = 0; i < look->report.found; i++) {
        const struct ft_verdict *v = &look->verdicts[i];
        char name[96];
        name_verdict(v, name);
        daemon_past_note(past, DAEMON_VERDICT, name, ft_verdict_name(v->kind), v->sentence);
    }
    note_stacks(look, past);
    if (look->snapshot)
        note_jobs(look->snapshot, past);
}

/* ---- showing --------------------------------------------------------------------------------- */

void look_json(const struct look *look, const char *key, struct ft_text *out)
{
    const struct ft_report all = report_for_programs(&look->report);
    ft_report_json(out, key, &all);
}

static void put_verdicts(const struct look *look, FILE *out)
{
    const struct report *report = &look->report;
    for (int i = 0; i < report->found; i++) {
        const struct ft_verdict *v = &look->verdicts[i];
        fprintf(out, "<p class=\"bad\">%s: ", ft_verdict_name(v->kind));
        daemon_put_html(out, v->sentence);
        fputs("</p><p class=\"note\">", out);
        daemon_put_html(out, ft_verdict_advice(v->kind));
        fputs("</p>", out);
    }
    if (report->trouble[0]) {
        fputs("<p class=\"warn\">cannot tell: ", out);
        daemon_put_html(out, report->trouble);
        fputs("</p>", out);
    } else if (report->found == 0) {
        fprintf(out,
                "<p class=\"good\">healthy: no operation of %d processes has waited for %g s"
                "</p>",
                report->engines, report->after_s);
    }
}

static void put_rank(const struct ranks *r, const struct rank_row *row, FILE *out)
{
    static const char *const state[] = {
#define X(name, text) text,
        RANK_STATES(X)
#undef X
    };
    const struct ft_snap_engine *e = row->engine >= 0 ? &r->s->engines[row->engine] : NULL;
    fprintf(out, "<tr><td>%d of %d<td>%d<td>", row->rank, row->nranks, e ? e->pid : 0);
    daemon_put_html(out, e ? e->hostname : "");
    fputs("<td>", out);
    daemon_put_html(out, e ? e->program : "");
    fprintf(out, "<td%s>%s<td>", row->state >= RANK_STOPPED ? " class=\"bad\"" : "",
            state[row->state]);
    daemon_put_html(out, e ? e->doing : "");
    fputs("</tr>", out);
}

/* Those of whom there is more to say come first. */
static void put_ranks(const struct ranks *r, FILE *out)
{
    int shown = 0;
    fputs("<table><tr><th>rank<th>process<th>host<th>program<th>state<th></tr>", out);
    for (int well = 0; well <= 1; well++)
        for (int i = 0; i < r->n && shown < RANKS_SHOWN; i++)
            if ((r->row[i].state < RANK_STOPPED) == well) {
                put_rank(r, &r->row[i], out);
                shown++;
            }
    fputs("</table>", out);
    if (shown < r->n)
        fprintf(out, "<p class=\"note\">and %d others</p>", r->n - shown);
}

static void put_line(char *line, FILE *out)
{
    bool outlier = strncmp(line, "  outlier", strlen("  outlier")) == 0;
    fputs(outlier ? "<span class=\"bad\">" : "", out);
    daemon_put_html(out, line);
    fputs(outlier ? "</span>\n" : "\n", out);
}

/* As ftccl-diagnose prints them. */
static void put_stacks(const struct look *look, FILE *out)
{
    char *text = NULL;
    size_t len;
    FILE *lines = look->report.stacks ? open_memstream(&text, &len) : NULL;
    if (!lines)
        return;
    print_stacks(lines, look->report.stacks);
    fputs("<pre class=\"stacks\">", out);
    char *rest = fclose(lines) == 0 ? text : NULL;
    for (char *line; (line = strsep(&rest, "\n"));)
        put_line(line, out);
    fputs("</pre>", out);
    free(text);
}

void look_page(const struct look *look, FILE *out)
{
    struct ranks ranks;
    put_verdicts(look, out);
    put_stacks(look, out);
    if (!look->snapshot || ranks_open(&ranks, look->snapshot, &look->report, false) != FT_OK)
        return;
    put_ranks(&ranks, out);
    ranks_close(&ranks);
}

void look_metrics(const struct look *look, FILE *out, bool ranks)
{
    if (look->snapshot)
        print_metrics(out, look->snapshot, &look->report, ranks);
}

/*
 * What a look at a snapshot has found, as JSON: the same for ftccl-diagnose and for clients of the
 * responder. docs/diagnosis.md describes it.
 */
#include "diagnose.h"

#include <inttypes.h>

bool ft_diagnose_may_hang(const struct ft_snapshot *s, uint64_t patience_ns)
{
    for (int i = 0; i < s->nmembers; i++) {
        const struct ft_snap_member *m = &s->members[i];
        uint64_t moved_ns = ft_max(m->progress_ns, m->running_since_ns);
        if (m->open && !m->failed && m->running_sig && moved_ns &&
            s->now_ns > moved_ns + patience_ns / 2)
            return true;
    }
    return false;
}

int ft_diagnose(const struct ft_snapshot *s, uint64_t patience_ns, struct ft_verdict *verdicts,
                int capacity)
{
    int found = ft_diagnose_hang(s, patience_ns, verdicts, capacity);
    if (found != 0 || ft_diagnose_may_hang(s, patience_ns))
        return found;
    return ft_diagnose_slow(s, verdicts, capacity);
}

static void add_hex(struct ft_text *out, const char *key, uint64_t id)
{
    char text[24];
    snprintf(text, sizeof text, "%016" PRIx64, id);
    ft_json_string(out, key, text);
}

static void add_place(struct ft_text *out, uint64_t ctx, int rank, int peer)
{
    add_hex(out, "comm", ctx);
    ft_json_int(out, "rank", rank);
    if (peer >= 0)
        ft_json_int(out, "peer", peer);
}

static void add_culprit(struct ft_text *out, const struct ft_culprit *culprit)
{
    ft_json_begin(out, NULL, '{');
    ft_json_string(out, "what", culprit->peer >= 0 ? "link" : "rank");
    add_place(out, culprit->world, culprit->world_rank, culprit->world_peer);
    if (culprit->host)
        add_hex(out, "host", culprit->host);
    if (culprit->pid > 0)
        ft_json_int(out, "pid", culprit->pid);
    if (culprit->world != culprit->ctx) {
        ft_json_begin(out, "found_in", '{');
        add_place(out, culprit->ctx, culprit->rank, culprit->peer);
        ft_json_end(out, '}');
    }
    ft_json_end(out, '}');
}

static void add_blocked(struct ft_text *out, const struct ft_verdict *v)
{
    char call[128];
    if (!v->ctx) {
        ft_json_null(out, "blocked");
        return;
    }
    ft_sig_text(v->sig, call, sizeof call);
    ft_json_begin(out, "blocked", '{');
    add_hex(out, "comm", v->ctx);
    ft_json_int(out, "seq", (int64_t)v->seq);
    ft_json_string(out, "call", call);
    ft_json_end(out, '}');
}

static void add_culprits(struct ft_text *out, const char *key, const struct ft_verdict *v, int n)
{
    ft_json_begin(out, key, '[');
    for (int i = 0; i < n && i < FT_CULPRITS; i++)
        add_culprit(out, &v->culprits[i]);
    ft_json_end(out, ']');
}

static void add_evidence(struct ft_text *out, const struct ft_report *report,
                         const struct ft_verdict *v)
{
    struct ft_evidence evidence[FT_EVIDENCE + FT_STACKS_EVIDENCE];
    const struct ft_snapshot *s = report->snapshot;
    int n = s ? ft_verdict_evidence(s, v, evidence, FT_EVIDENCE) : 0;
    if (report->stacks)
        n += ft_stacks_evidence(report->stacks, v, evidence + n, FT_STACKS_EVIDENCE);
    ft_json_begin(out, "evidence", '[');
    for (int i = 0; i < n; i++) {
        ft_json_begin(out, NULL, '{');
        ft_json_string(out, "source", evidence[i].source);
        ft_json_int(out, "rank", evidence[i].rank);
        ft_json_string(out, "field", evidence[i].field);
        if (evidence[i].number >= 0)
            ft_json_int(out, "value", evidence[i].number);
        else
            ft_json_string(out, "value", evidence[i].text);
        ft_json_end(out, '}');
    }
    ft_json_end(out, ']');
}

static void add_verdict(struct ft_text *out, const struct ft_report *report,
                        const struct ft_verdict *v)
{
    bool unknown = v->kind == FT_VERDICT_UNKNOWN;
    ft_json_string(out, "kind", ft_verdict_name(v->kind));
    ft_json_real(out, "confidence", ft_verdict_confidence(v));
    add_culprits(out, "culprits", v, unknown ? 0 : v->nculprits);
    ft_json_int(out, "culprits_count", unknown ? 0 : v->nculprits);
    add_culprits(out, "candidates", v, unknown ? v->nculprits : 0);
    add_blocked(out, v);
    ft_json_real(out, "since_s", (double)v->since_ns / 1e9);
    ft_json_string(out, "sentence", v->sentence);
    add_evidence(out, report, v);
    ft_json_begin(out, "chain", '[');
    for (int i = 0; i < v->nchain; i++)
        ft_json_string(out, NULL, v->chain[i]);
    ft_json_end(out, ']');
    ft_json_string(out, "advice", ft_verdict_advice(v->kind));
}

/* The fields of the first verdict, or of one that says that all is well, or that it cannot tell. */
static void add_first(struct ft_text *out, const struct ft_report *report)
{
    static const struct ft_verdict none = {.kind = FT_VERDICT_HEALTHY},
                                   unknown = {.kind = FT_VERDICT_UNKNOWN};
    const struct ft_verdict *first = report->found > 0 ? &report->verdicts[0]
                                     : report->trouble ? &unknown
                                                       : &none;
    add_verdict(out, report, first);
}

static void add_change(struct ft_text *out, const struct ft_step_change *change)
{
    ft_json_begin(out, NULL, '{');
    add_hex(out, "comm", change->ctx);
    ft_json_string(out, "name", change->name);
    ft_json_bool(out, "slower", change->slower);
    ft_json_real(out, "before_s", change->before_ns / 1e9);
    ft_json_real(out, "after_s", change->after_ns / 1e9);
    ft_json_end(out, '}');
}

static void add_validations(struct ft_text *out, const struct ft_report *report)
{
    if (!report->tested)
        return;
    ft_json_begin(out, "validation", '[');
    for (int i = 0; i < report->ntested; i++)
        ft_tested_json(out, &report->tested[i]);
    ft_json_end(out, ']');
}

void ft_report_json(struct ft_text *out, const char *key, const struct ft_report *report)
{
    ft_json_begin(out, key, '{');
    ft_json_int(out, "version", FT_REPORT_VERSION);
    add_first(out, report);
    ft_json_real(out, "time", report->time_s);
    ft_json_int(out, "processes", report->engines);
    ft_json_int(out, "unreadable", report->unreadable);
    ft_json_real(out, "after_s", report->after_s);
    ft_json_bool(out, "healthy", report->found == 0 && !report->trouble);
    if (report->trouble)
        ft_json_string(out, "trouble", report->trouble);
    else
        ft_json_null(out, "trouble");
    ft_json_begin(out, "verdicts", '[');
    for (int i = 0; i < report->found; i++) {
        ft_json_begin(out, NULL, '{');
        add_verdict(out, report, &report->verdicts[i]);
        ft_json_end(out, '}');
    }
    ft_json_end(out, ']');
    ft_json_begin(out, "steps", '[');
    for (int i = 0; i < report->nchanges; i++)
        add_change(out, &report->changes[i]);
    ft_json_end(out, ']');
    if (report->stacks)
        ft_stacks_json(out, "stacks", report->stacks);
    add_validations(out, report);
    ft_json_end(out, '}');
}

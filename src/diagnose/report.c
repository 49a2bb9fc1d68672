/*
 * What a look at a snapshot has found, as JSON: the same for ftccl-diagnose and for clients of the
 * responder. docs/diagnosis.md describes it.
 */
#include "diagnose.h"

#include <inttypes.h>

int ft_diagnose(const struct ft_snapshot *s, uint64_t patience_ns, struct ft_verdict *verdicts,
                int capacity)
{
    int found = ft_diagnose_hang(s, patience_ns, verdicts, capacity);
    return found == 0 ? ft_diagnose_slow(s, verdicts, capacity) : found;
}

static void add_hex(struct ft_text *out, const char *key, uint64_t id)
{
    char text[24];
    snprintf(text, sizeof text, "%016" PRIx64, id);
    ft_json_string(out, key, text);
}

static void add_culprit(struct ft_text *out, const struct ft_culprit *culprit)
{
    ft_json_begin(out, NULL, '{');
    ft_json_string(out, "what", culprit->peer >= 0 ? "link" : "rank");
    add_hex(out, "comm", culprit->ctx);
    ft_json_int(out, "rank", culprit->rank);
    if (culprit->peer >= 0)
        ft_json_int(out, "peer", culprit->peer);
    if (culprit->host)
        add_hex(out, "host", culprit->host);
    if (culprit->pid > 0)
        ft_json_int(out, "pid", culprit->pid);
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

static void add_verdict(struct ft_text *out, const struct ft_verdict *v)
{
    ft_json_begin(out, NULL, '{');
    ft_json_string(out, "kind", ft_verdict_name(v->kind));
    add_culprits(out, "culprits", v, v->nculprits);
    ft_json_int(out, "culprits_count", v->nculprits);
    add_blocked(out, v);
    ft_json_real(out, "since_s", (double)v->since_ns / 1e9);
    ft_json_string(out, "sentence", v->sentence);
    ft_json_begin(out, "chain", '[');
    for (int i = 0; i < v->nchain; i++)
        ft_json_string(out, NULL, v->chain[i]);
    ft_json_end(out, ']');
    add_culprits(out, "candidates", v, v->kind == FT_VERDICT_UNKNOWN ? v->nculprits : 0);
    ft_json_string(out, "advice", ft_verdict_advice(v->kind));
    ft_json_end(out, '}');
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

void ft_report_json(struct ft_text *out, const char *key, const struct ft_report *report)
{
    ft_json_begin(out, key, '{');
    ft_json_int(out, "version", FT_REPORT_VERSION);
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
    for (int i = 0; i < report->found; i++)
        add_verdict(out, &report->verdicts[i]);
    ft_json_end(out, ']');
    ft_json_begin(out, "steps", '[');
    for (int i = 0; i < report->nchanges; i++)
        add_change(out, &report->changes[i]);
    ft_json_end(out, ']');
    ft_json_end(out, '}');
}

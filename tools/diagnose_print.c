/*
 * Prints what ftccl-diagnose found, as text for people and as JSON for programs.
 */
#include "diagnose.h"

#include <inttypes.h>
#ifdef FT_HAVE_JANSSON
#include <jansson.h>
#endif

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

#ifdef FT_HAVE_JANSSON

static json_t *hex(uint64_t id)
{
    return json_sprintf("%016" PRIx64, id);
}

static json_t *culprit_json(const struct ft_culprit *culprit)
{
    json_t *o = json_object();
    json_object_set_new(o, "what", json_string(culprit->peer >= 0 ? "link" : "rank"));
    json_object_set_new(o, "comm", hex(culprit->ctx));
    json_object_set_new(o, "rank", json_integer(culprit->rank));
    if (culprit->peer >= 0)
        json_object_set_new(o, "peer", json_integer(culprit->peer));
    if (culprit->host)
        json_object_set_new(o, "host", hex(culprit->host));
    if (culprit->pid > 0)
        json_object_set_new(o, "pid", json_integer(culprit->pid));
    return o;
}

static json_t *blocked_json(const struct ft_verdict *v)
{
    char call[128];
    if (!v->ctx)
        return json_null();
    json_t *o = json_object();
    ft_sig_text(v->sig, call, sizeof call);
    json_object_set_new(o, "comm", hex(v->ctx));
    json_object_set_new(o, "seq", json_integer((json_int_t)v->seq));
    json_object_set_new(o, "call", json_string(call));
    return o;
}

static json_t *verdict_json(const struct ft_verdict *v)
{
    json_t *o = json_object(), *culprits = json_array(), *chain = json_array();
    for (int i = 0; i < v->nculprits && i < FT_CULPRITS; i++)
        json_array_append_new(culprits, culprit_json(&v->culprits[i]));
    for (int i = 0; i < v->nchain; i++)
        json_array_append_new(chain, json_string(v->chain[i]));
    json_object_set_new(o, "kind", json_string(ft_verdict_name(v->kind)));
    json_object_set_new(o, "culprits", culprits);
    json_object_set_new(o, "culprits_count", json_integer(v->nculprits));
    json_object_set_new(o, "blocked", blocked_json(v));
    json_object_set_new(o, "since_s", json_real((double)v->since_ns / 1e9));
    json_object_set_new(o, "sentence", json_string(v->sentence));
    json_object_set_new(o, "chain", chain);
    bool sure = v->kind != FT_VERDICT_UNKNOWN;
    json_object_set_new(o, "candidates", sure ? json_array() : json_copy(culprits));
    json_object_set_new(o, "advice", json_string(ft_verdict_advice(v->kind)));
    return o;
}

bool has_json(void)
{
    return true;
}

void print_json(FILE *out, const struct report *report)
{
    json_t *o = json_object(), *verdicts = json_array();
    for (int i = 0; i < report->found; i++)
        json_array_append_new(verdicts, verdict_json(&report->verdicts[i]));
    json_object_set_new(o, "version", json_integer(FT_VERDICT_VERSION));
    json_object_set_new(o, "time", json_real((double)report->real_ns / 1e9));
    json_object_set_new(o, "processes", json_integer(report->engines));
    json_object_set_new(o, "unreadable", json_integer(report->unreadable));
    json_object_set_new(o, "after_s", json_real(report->after_s));
    json_object_set_new(o, "healthy", json_boolean(report->found == 0 && !report->trouble[0]));
    json_object_set_new(o, "trouble",
                        report->trouble[0] ? json_string(report->trouble) : json_null());
    json_object_set_new(o, "verdicts", verdicts);
    if (json_dumpf(o, out, JSON_COMPACT) < 0)
        fprintf(out, "{\"trouble\":\"no memory\"}");
    fputc('\n', out);
    json_decref(o);
}

#else

bool has_json(void)
{
    return false;
}

void print_json(FILE *out, const struct report *report)
{
    (void)out, (void)report;
}

#endif

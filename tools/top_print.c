/*
 * The rows of ftccl-top as text and as JSON.
 */
#include "top.h"

static const char *state_text(enum rank_state state)
{
    static const char *const text[] = {
        [RANK_OUTSIDE] = "outside", [RANK_CALLS] = "in call", [RANK_WAITS] = "waits",
        [RANK_STOPPED] = "stopped", [RANK_GONE] = "gone",     [RANK_MISSING] = "missing",
        [RANK_CULPRIT] = "CULPRIT"};
    return (unsigned)state < RANK_STATE_COUNT ? text[state] : "?";
}

const char *top_part_name(int part)
{
    static const char *const name[FT_LATENCY_PARTS] = {"credit", "network", "consumer"};
    return name[part];
}

void top_head(char *text, size_t size)
{
    snprintf(text, size, "%6s %8s %-12s %-8s %6s %-12s %7s %9s %6s %7s %-14s %s", "RANK", "PID",
             "HOST", "STATE", "BEHIND", "WAITS FOR", "FOR s", "STEP ms", "INSIDE", "GB/s",
             "WORST LINK", "CALL");
}

/* "-" for what is not known. */
static const char *number(char *text, size_t size, const char *format, double value)
{
    if (value < 0)
        return "-";
    snprintf(text, size, format, value);
    return text;
}

void top_line(const struct top_row *row, char *text, size_t size)
{
    char waits[32] = "-", worst[40] = "-", step[32], inside[32], rate[32];
    if (row->waits_for >= 0)
        snprintf(waits, sizeof waits, "%s %d", row->sends ? "to" : "from", row->waits_for);
    if (row->worst_peer >= 0)
        snprintf(worst, sizeof worst, "%d %.3g ms", row->worst_peer, row->worst_ms);
    snprintf(text, size, "%6d %8d %-12.12s %-8s %6llu %-12s %7.1f %9s %6s %7s %-14s %s", row->rank,
             row->pid, row->host, state_text(row->state), (unsigned long long)row->behind, waits,
             row->waits_s, number(step, sizeof step, "%.4g", row->step_ms > 0 ? row->step_ms : -1),
             number(inside, sizeof inside, "%.0f%%", 100 * row->inside),
             number(rate, sizeof rate, "%.2f", row->sent_gbs), worst, row->call);
}

static void add_row(struct ft_text *out, const struct top_row *row)
{
    ft_json_begin(out, NULL, '{');
    ft_json_int(out, "rank", row->rank);
    ft_json_int(out, "pid", row->pid);
    ft_json_string(out, "host", row->host);
    ft_json_string(out, "program", row->program);
    ft_json_string(out, "state", state_text(row->state));
    ft_json_string(out, "call", row->call);
    ft_json_int(out, "behind", (int64_t)row->behind);
    ft_json_int(out, "waits_for", row->waits_for);
    ft_json_string(out, "direction", row->waits_for < 0 ? "" : row->sends ? "to" : "from");
    ft_json_real(out, "waits_s", row->waits_s);
    ft_json_real(out, "step_s", row->step_ms / 1e3);
    ft_json_real(out, "inside", row->inside);
    ft_json_real(out, "sent_gbs", row->sent_gbs);
    ft_json_int(out, "worst_peer", row->worst_peer);
    ft_json_real(out, "worst_s", row->worst_ms / 1e3);
    ft_json_begin(out, "large_s", '{');
    for (int p = 0; p < FT_LATENCY_PARTS; p++)
        if (row->large_ms[p] >= 0)
            ft_json_real(out, top_part_name(p), row->large_ms[p] / 1e3);
    ft_json_end(out, '}');
    ft_json_end(out, '}');
}

void top_print_json(FILE *out, const struct top *top)
{
    struct ft_text text = {.most = 64 << 20};
    ft_json_begin(&text, NULL, '{');
    ft_json_int(&text, "version", 1);
    ft_json_string(&text, "verdict", top->verdict);
    ft_json_begin(&text, "ranks", '[');
    for (int i = 0; i < top->n; i++)
        add_row(&text, &top->row[i]);
    ft_json_end(&text, ']');
    ft_json_end(&text, '}');
    fprintf(out, "%s\n", text.broken ? "{\"trouble\":\"no memory\"}" : text.at);
    ft_text_free(&text);
}

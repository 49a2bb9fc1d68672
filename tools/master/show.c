/*
 * What the master shows: the verdict over all hosts, and the hosts.
 */
#include "master.h"

#include <inttypes.h>
#include <string.h>

#define HOSTS_SHOWN 256

static const char *state_of(const struct host *host, uint64_t now_ns)
{
    return host->gone_ns ? "gone" : master_is_silent(host, now_ns) ? "silent" : "reports";
}

static bool is_well(const struct host *host, uint64_t now_ns)
{
    bool well = !host->gone_ns && !master_is_silent(host, now_ns);
    for (int i = 0; i < host->nchecks; i++)
        well &= host->check[i].state != CHECK_BAD;
    return well;
}

/* ---- the page -------------------------------------------------------------------------------- */

static void put_alarms(const struct host *host, FILE *out)
{
    for (int i = 0; i < host->nchecks; i++) {
        if (host->check[i].state == CHECK_GOOD)
            continue;
        fprintf(out, "<span class=\"%s\">", host->check[i].state == CHECK_BAD ? "bad" : "warn");
        daemon_put_html(out, host->check[i].sentence);
        fputs("</span><br>", out);
    }
}

static void put_host(const struct host *host, uint64_t now_ns, FILE *out)
{
    const char *state = state_of(host, now_ns);
    fputs("<tr><td>", out);
    daemon_put_html(out, host->hello.hostname);
    fprintf(out, "<td%s>%s<td>%d<td>%.1f s<td>%+.0f s<td>",
            strcmp(state, "reports") == 0 ? "" : " class=\"bad\"", state, host->report.nengines,
            host->heard_ns ? (double)(now_ns - host->heard_ns) / 1e9 : 0,
            (double)host->clock_ahead_ns / 1e9);
    put_alarms(host, out);
    fputs("</tr>", out);
}

/* Those with which something is wrong come first. */
void master_page(void *arg, FILE *out)
{
    const struct master *m = arg;
    uint64_t now_ns = daemon_now_ns();
    int shown = 0;
    look_page(&m->shown, out);
    if (m->asked.n > 0)
        fprintf(out, "<p class=\"note\">stacks: %d ranks were asked, %d have not answered</p>",
                m->asked.n, master_stacks_missing(m));
    fputs("<h3>hosts</h3><table><tr><th>host<th>agent<th>processes<th>last report"
          "<th>clock ahead<th>checks</tr>",
          out);
    for (int well = 0; well <= 1; well++)
        for (int i = 0; i < m->nhosts && shown < HOSTS_SHOWN; i++)
            if (m->host[i]->said_hello && is_well(m->host[i], now_ns) == well) {
                put_host(m->host[i], now_ns, out);
                shown++;
            }
    fputs("</table>", out);
    if (shown < m->nhosts)
        fprintf(out, "<p class=\"note\">and %d others</p>", m->nhosts - shown);
}

/* ---- JSON ------------------------------------------------------------------------------------ */

static void add_alarms(const struct host *host, struct ft_text *out)
{
    ft_json_begin(out, "alarms", '[');
    for (int i = 0; i < host->nchecks; i++) {
        if (host->check[i].state == CHECK_GOOD)
            continue;
        ft_json_begin(out, NULL, '{');
        ft_json_string(out, "name", host->check[i].name);
        ft_json_string(out, "state", check_state_name((enum check_state)host->check[i].state));
        ft_json_string(out, "sentence", host->check[i].sentence);
        ft_json_end(out, '}');
    }
    ft_json_end(out, ']');
}

static void add_host(const struct host *host, uint64_t now_ns, struct ft_text *out)
{
    char id[24];
    snprintf(id, sizeof id, "%016" PRIx64, host->hello.host);
    ft_json_begin(out, NULL, '{');
    ft_json_string(out, "host", id);
    ft_json_string(out, "hostname", host->hello.hostname);
    ft_json_string(out, "state", state_of(host, now_ns));
    ft_json_int(out, "processes", host->report.nengines);
    ft_json_int(out, "members", host->report.nmembers);
    ft_json_int(out, "report_bytes", (int64_t)host->report_bytes);
    ft_json_real(out, "age_s", host->heard_ns ? (double)(now_ns - host->heard_ns) / 1e9 : -1);
    ft_json_real(out, "clock_ahead_s", (double)host->clock_ahead_ns / 1e9);
    add_alarms(host, out);
    ft_json_end(out, '}');
}

void master_json(void *arg, struct ft_text *out)
{
    const struct master *m = arg;
    uint64_t now_ns = daemon_now_ns();
    look_json(&m->shown, "diagnosis", out);
    ft_json_begin(out, "stacks", '{');
    ft_json_int(out, "asked", m->asked.n);
    ft_json_int(out, "missing", master_stacks_missing(m));
    ft_json_end(out, '}');
    ft_json_begin(out, "slow", '{');
    ft_json_int(out, "rounds", m->slow.rounds);
    ft_json_begin(out, "ranks", '[');
    for (int i = 0; i < m->slow.n; i++)
        ft_json_int(out, NULL, m->slow.rank[i]);
    ft_json_end(out, ']');
    ft_json_end(out, '}');
    ft_json_begin(out, "hosts", '[');
    for (int i = 0; i < m->nhosts; i++)
        if (m->host[i]->said_hello)
            add_host(m->host[i], now_ns, out);
    ft_json_end(out, ']');
}

/* ---- metrics --------------------------------------------------------------------------------- */

static void put_host_checks(const struct host *host, FILE *out)
{
    for (int i = 0; i < host->nchecks; i++) {
        if (host->check[i].state == CHECK_GOOD)
            continue;
        fputs("ftccl_host_alarm", out);
        daemon_put_label(out, "{", "node", host->hello.hostname);
        daemon_put_label(out, ",", "check", host->check[i].name);
        fprintf(out, "} %d\n", host->check[i].state);
    }
}

void master_metrics(void *arg, FILE *out)
{
    const struct master *m = arg;
    static const char *const states[] = {"reports", "silent", "gone"};
    uint64_t now_ns = daemon_now_ns();
    look_metrics(&m->shown, out, false);
    daemon_put_help(out, "ftccl_hosts", "gauge", "Hosts by what their agents do.");
    for (size_t k = 0; k < FT_ARRAY_LEN(states); k++) {
        int n = 0;
        for (int i = 0; i < m->nhosts; i++)
            n += strcmp(state_of(m->host[i], now_ns), states[k]) == 0;
        fprintf(out, "ftccl_hosts{state=\"%s\"} %d\n", states[k], n);
    }
    daemon_put_help(out, "ftccl_host_alarm", "gauge",
                    "Checks that are not good, of each host. 1: worth knowing, 2: bad.");
    for (int i = 0; i < m->nhosts; i++)
        put_host_checks(m->host[i], out);
}

/*
 * Hosts, as their agents report them. A host that went is shown for a while.
 */
#include "master.h"

#include "telemetry/telemetry.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

#define REST_NS 200000000u /* between two looks, whoever reports */
#define SILENT_NS 3000000000u
#define GONE_NS 300000000000u

bool master_is_silent(const struct host *host, uint64_t now_ns)
{
    uint64_t limit_ns = SILENT_NS + 3 * (uint64_t)host->hello.interval_ms * 1000000;
    return !host->heard_ns || now_ns - host->heard_ns > limit_ns;
}

struct host *master_host_add(struct master *m)
{
    if (m->nhosts == m->room) {
        int room = m->room ? 2 * m->room : 64;
        struct host **grown = realloc(m->host, (size_t)room * sizeof(struct host *));
        if (!grown)
            return NULL;
        m->host = grown;
        m->room = room;
    }
    struct host *host = calloc(1, sizeof *host);
    if (host)
        m->host[m->nhosts++] = host;
    return host;
}

void master_host_free(struct host *host)
{
    rows_free_report(&host->report);
    free(host->name);
    free(host->pace);
    free(host);
}

/* A host that has gone is forgotten when it is back, or after five minutes. */
static bool is_over(const struct master *m, const struct host *host, uint64_t now_ns)
{
    if (!host->gone_ns)
        return false;
    if (!host->said_hello || now_ns - host->gone_ns > GONE_NS)
        return true;
    for (int i = 0; i < m->nhosts; i++)
        if (!m->host[i]->gone_ns && m->host[i]->heard_ns &&
            m->host[i]->hello.host == host->hello.host)
            return true;
    return false;
}

void master_forget(struct master *m)
{
    uint64_t now_ns = daemon_now_ns();
    for (int i = m->nhosts - 1; i >= 0; i--)
        if (is_over(m, m->host[i], now_ns)) {
            master_forget_suspects_of(m, m->host[i]);
            master_host_free(m->host[i]);
            m->host[i] = m->host[--m->nhosts];
        }
}

/* ---- messages -------------------------------------------------------------------------------- */

static int by_ctx(const void *a, const void *b)
{
    uint64_t x = ((const struct rows_name *)a)->ctx, y = ((const struct rows_name *)b)->ctx;
    return x < y ? -1 : x > y;
}

/* Names that came before go when there are too many: the agent then tells all again. */
static bool take_names(struct host *host, const struct daemon_message *m)
{
    static struct rows_name fresh[ROWS_NAMES_MOST];
    int n = rows_decode_names(m, fresh, ROWS_NAMES_MOST);
    if (n < 0)
        return false;
    int kept = host->nnames + n <= ROWS_NAMES_MOST ? host->nnames : 0;
    struct rows_name *all = realloc(host->name, (size_t)(kept + n + 1) * sizeof *all);
    if (!all)
        return true; /* they stay without names */
    memcpy(all + kept, fresh, (size_t)n * sizeof *all);
    host->name = all;
    host->nnames = kept + n;
    qsort(all, (size_t)host->nnames, sizeof *all, by_ctx);
    return true;
}

static void add_names(struct host *host)
{
    for (int i = 0; i < host->report.nmembers && host->nnames > 0; i++) {
        const struct rows_name wanted = {.ctx = host->report.members[i].ctx};
        const struct rows_name *found = bsearch(&wanted, host->name, (size_t)host->nnames,
                                                sizeof wanted, by_ctx);
        if (found)
            memcpy(host->report.members[i].name, found->name, sizeof found->name);
    }
}

/* Somebody waits for long, and nobody has been named for it. */
static bool is_news(const struct master *m, const struct rows_report *report)
{
    uint64_t after_ns = (uint64_t)(daemon_options_of(m->daemon)->after_s * 1e9);
    for (int i = 0; i < report->nmembers && m->shown.report.found == 0; i++) {
        const struct ft_snap_member *member = &report->members[i];
        uint64_t since_ns = ft_max(member->running_since_ns, member->progress_ns);
        if (member->running_sig && since_ns && ROWS_NOW_NS - since_ns >= after_ns)
            return true;
    }
    return false;
}

static uint64_t real_ns_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static bool take_report(struct master *m, struct host *host, const struct daemon_message *message)
{
    struct rows_report report;
    if (!rows_decode_report(message, &report))
        return false;
    rows_free_report(&host->report);
    host->report = report;
    host->report_bytes = message->len;
    host->heard_ns = daemon_now_ns();
    host->clock_ahead_ns = (int64_t)(report.real_ns - real_ns_now());
    for (int i = 0; i < report.nengines; i++) {
        report.engines[i].host = host->hello.host;
        memcpy(report.engines[i].hostname, host->hello.hostname, sizeof host->hello.hostname);
    }
    add_names(host);
    bool rested = host->heard_ns - m->looked_ns > REST_NS;
    if (!host->local && rested && is_news(m, &report))
        daemon_hurry(m->daemon);
    return true;
}

static bool take_checks(struct host *host, const struct daemon_message *m)
{
    int n = rows_decode_checks(m, host->check, ROWS_CHECKS_MOST);
    host->nchecks = n < 0 ? 0 : n;
    return n >= 0;
}

bool master_take(struct master *m, struct host *host, const struct daemon_message *message)
{
    struct rows_file file;
    if (!host->said_hello)
        return message->type == ROWS_HELLO &&
               (host->said_hello = rows_decode_hello(message, &host->hello));
    switch (message->type) {
    case ROWS_REPORT:
        return take_report(m, host, message);
    case ROWS_NAMES:
        return take_names(host, message);
    case ROWS_CHECKS:
        return take_checks(host, message);
    case ROWS_FILE:
        if (!rows_decode_file(message, &file))
            return false;
        master_take_file(m, host, &file);
        return true;
    case ROWS_PACE:
        return master_take_pace(m, host, message);
    case ROWS_STACKS:
        return master_take_stacks(m, host, message);
    default:
        return message->type != ROWS_HELLO; /* what a later version says is passed over */
    }
}

#include "master.h"

#include "telemetry/telemetry.h"

#include <stdlib.h>
#include <string.h>

/* Files are asked for again as long as nothing changes; sooner if they have shown nothing. */
#define AGAIN_NS 30000000000u
#define SOON_NS 5000000000u
#define PACE_NS 10000000000u /* a suspicion by the pace alone */

/* ---- peers ----------------------------------------------------------------------------------- */

static void on_closed(void *arg, struct daemon_peer *peer)
{
    struct host *host = *daemon_peer_slot(peer, DAEMON_DIAGNOSIS);
    (void)arg;
    if (!host)
        return;
    host->peer = NULL;
    host->gone_ns = daemon_now_ns();
}

/* An agent's host begins with its first message. */
static bool on_message(void *arg, struct daemon_peer *peer, const struct daemon_message *message)
{
    void **slot = daemon_peer_slot(peer, DAEMON_DIAGNOSIS);
    struct host *host = *slot ? *slot : master_host_add(arg);
    if (!host) {
        daemon_peer_end(peer, "no memory for its host");
        return true;
    }
    host->peer = peer;
    *slot = host;
    return master_take(arg, host, message);
}

/* The agent of this process. */
static void take_local(void *arg, const struct daemon_message *message)
{
    struct master *m = arg;
    for (int i = 0; i < m->nhosts; i++)
        if (m->host[i]->local)
            master_take(m, m->host[i], message);
}

void master_set_agent(struct master *m, struct agent *agent)
{
    struct host *host = master_host_add(m);
    if (!host)
        return;
    host->local = true;
    m->agent = agent;
    agent_set_master(agent, take_local, m);
}

/* ---- judging --------------------------------------------------------------------------------- */

static void take_look(struct master *m, struct look *look, const struct ft_snapshot *details)
{
    struct ft_snapshot *s = master_snapshot(m, details);
    if (s)
        look_take(look, s, daemon_options_of(m->daemon)->after_s, NULL);
    else
        look_fail(look, "no memory for the rows of all hosts");
}

/* A rank still waits in the operation that a verdict is about, or in the next one, which ranks
 * reach that need nothing more of a rank that is stopped in it. */
static bool is_blocked(const struct ft_snapshot *s, const struct ft_verdict *v)
{
    for (int i = 0; s && v->seq && i < s->nmembers; i++)
        if (s->members[i].ctx == v->ctx && s->members[i].running_seq >= v->seq &&
            s->members[i].running_seq <= v->seq + 1)
            return true;
    return false;
}

/* What was known holds as long as the operation has not moved if the rows tell less than before: a
 * host has become silent, or they are older than the files were, and waits in them shorter. */
static bool is_still_true(const struct master *m)
{
    uint64_t now_ns = daemon_now_ns();
    bool silent = false, holds = m->shown.report.found > 0;
    for (int i = 0; i < m->nhosts; i++)
        silent |= m->host[i]->gone_ns || master_is_silent(m->host[i], now_ns);
    for (int i = 0; i < m->rows.report.found; i++)
        holds &= m->rows.verdicts[i].kind == FT_VERDICT_UNKNOWN;
    for (int i = 0; i < m->shown.report.found; i++)
        holds &= is_blocked(m->rows.snapshot, &m->shown.verdicts[i]);
    return holds && (silent || m->rows.report.found == 0);
}

/* Nothing has changed but the time. */
static void grow_older(struct master *m)
{
    struct report *shown = &m->shown.report;
    uint64_t by_ns = m->rows.report.real_ns - shown->real_ns;
    for (int i = 0; i < shown->found; i++)
        m->shown.verdicts[i].since_ns += by_ns;
    shown->real_ns = m->rows.report.real_ns;
}

/* The rows show nothing: that is believed. Otherwise the files decide, if there is somebody to
 * ask. */
static void judge_rows(struct master *m)
{
    struct suspects *s = &m->suspects;
    m->looked_ns = daemon_now_ns();
    take_look(m, &m->rows, NULL);
    uint64_t signature = master_signature(m), ctx;
    bool soon = !m->shown.report.found && (m->rows.report.found || master_is_slower(m, &ctx));
    uint64_t rest_ns = soon ? SOON_NS : m->shown.report.found ? AGAIN_NS : PACE_NS;
    bool again = signature != s->signature || daemon_now_ns() - s->done_ns > rest_ns;
    if (is_still_true(m) || (signature != 0 && !again)) {
        grow_older(m);
    } else if (signature == 0 || !master_ask(m)) {
        s->signature = signature;
        take_look(m, &m->shown, NULL);
    }
}

/* The files of those who matter are here, or do not come. An agent may have gone meanwhile. */
static void judge_files(struct master *m)
{
    if (!master_answered(m) || master_ask_again(m))
        return;
    take_look(m, &m->rows, NULL);
    if (is_still_true(m))
        grow_older(m);
    else
        take_look(m, &m->shown, m->suspects.details);
    if (m->shown.report.found == 0 && m->suspects.more)
        master_show_pace(m);
    master_drop_suspects(m);
}

static void note_host(const struct master *m, const struct host *host)
{
    char name[96];
    snprintf(name, sizeof name, "%.63s", host->hello.hostname);
    daemon_past_note(m->past, DAEMON_HOST, name, "host", name);
    for (int i = 0; i < host->nchecks; i++) {
        char alarm[128];
        if (host->check[i].state == CHECK_GOOD)
            continue;
        snprintf(alarm, sizeof alarm, "%.63s %.48s", host->hello.hostname, host->check[i].name);
        daemon_past_note(m->past, DAEMON_ALARM, alarm,
                         check_state_name((enum check_state)host->check[i].state),
                         host->check[i].sentence);
    }
}

static void note_all(const struct master *m)
{
    uint64_t now_ns = daemon_now_ns();
    for (int i = 0; i < m->nhosts; i++)
        if (!m->host[i]->gone_ns && !master_is_silent(m->host[i], now_ns))
            note_host(m, m->host[i]);
    look_note(&m->shown, m->past);
    daemon_past_sweep(m->past);
}

static void on_tick(void *arg)
{
    struct master *m = arg;
    master_forget(m);
    master_look_at_pace(m);
    if (m->suspects.phase == IDLE)
        judge_rows(m);
    /* an agent in this process answers at once */
    for (int readings = 0; readings < 2 && m->suspects.phase != IDLE; readings++)
        judge_files(m);
    master_look_at_stacks(m);
    note_all(m);
}

/* ---- opening --------------------------------------------------------------------------------- */

void master_add(struct master *m)
{
    const struct daemon_service service = {.number = DAEMON_DIAGNOSIS,
                                           .name = "diagnosis",
                                           .arg = m,
                                           .message = on_message,
                                           .closed = on_closed,
                                           .tick = on_tick,
                                           .page = master_page,
                                           .json = master_json,
                                           .metrics = master_metrics};
    daemon_add(m->daemon, &service);
}

struct master *master_open(struct daemon *d, struct daemon_past *past)
{
    struct master *m = calloc(1, sizeof *m);
    if (!m)
        return NULL;
    m->daemon = d;
    m->past = past;
    look_fail(&m->shown, "nothing has been looked at yet");
    return m;
}

void master_close(struct master *m)
{
    if (!m)
        return;
    master_drop_suspects(m);
    master_drop_stacks(m);
    for (int i = 0; i < m->nhosts; i++)
        master_host_free(m->host[i]);
    free(m->host);
    look_close(&m->rows);
    look_close(&m->shown);
    free(m);
}

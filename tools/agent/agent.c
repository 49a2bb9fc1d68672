#include "agent.h"

#include "base/wire.h"
#include "telemetry/telemetry.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define PIDS_MOST 256
#define SLOWER_MOST 16
#define SLOWER_NS 60000000000u       /* for so long steps that became slower are news */
#define LINKS_APART_NS 300000000000u /* networks may be uneven for ever */
#define PACE_EACH 5
#define FIRST_WAIT_NS 200000000u
#define LONGEST_WAIT_NS 10000000000u
#define LOOKUP_NS 2000000000u /* a resolver that takes longer is news */

struct agent {
    struct daemon *daemon;
    struct daemon_past *past;
    struct look look;
    struct ft_steps *steps;
    struct checks *checks;
    struct collect *collect;
    struct keep keep;
    struct inspector inspector;
    struct pace pace;
    unsigned reports;
    struct {
        uint64_t ctx, until_ns;
    } slower[SLOWER_MOST];
    uint64_t links_ns; /* when links that differ are news again */
    /* The way to the master. */
    struct daemon_peer *peer;
    struct daemon_lookup *lookup; /* of its name; NULL: none goes on */
    uint64_t lookup_ns;           /* when that began */
    unsigned dials;
    bool is_open;
    uint64_t wait_ns, dial_ns; /* between two attempts; when the next one is due */
    agent_master *master;
    void *master_arg;
    uint64_t *named; /* communicators of which the master has the name */
    int nnamed;
    char trouble[300]; /* with the master; "": none */
};

/* ---- the way to the master ------------------------------------------------------------------- */

static bool has_master(const struct agent *a)
{
    return a->master || a->is_open;
}

/* Frees the bytes. */
static bool send_away(struct agent *a, uint16_t type, unsigned char *bytes, size_t len)
{
    const struct daemon_message m = {DAEMON_DIAGNOSIS, type, bytes, len};
    bool sent = bytes != NULL;
    if (sent && a->master)
        a->master(a->master_arg, &m);
    else if (sent)
        sent = daemon_peer_send(a->peer, &m);
    free(bytes);
    return sent;
}

static void say_hello(struct agent *a)
{
    struct rows_hello hello = {
        .host = ft_host_id(),
        .interval_ms = (uint32_t)(daemon_options_of(a->daemon)->interval_s * 1e3)};
    size_t len;
    gethostname(hello.hostname, sizeof hello.hostname - 1);
    unsigned char *bytes = rows_encode_hello(&hello, &len);
    send_away(a, ROWS_HELLO, bytes, len);
    a->nnamed = 0;
}

/* The next attempt comes later than the one before, and not at the same time for all agents. */
static void plan(struct agent *a)
{
    uint64_t chance;
    struct ft_env *env = ft_env_real();
    env->random(env, &chance, sizeof chance);
    a->wait_ns = a->wait_ns ? ft_min(2 * a->wait_ns, LONGEST_WAIT_NS) : FIRST_WAIT_NS;
    a->dial_ns = daemon_now_ns() + a->wait_ns / 2 + chance % a->wait_ns;
}

static void tell_trouble(struct agent *a, const char *why)
{
    snprintf(a->trouble, sizeof a->trouble, "the master %.100s: %.150s",
             daemon_options_of(a->daemon)->master, why);
}

/* A master with several addresses is tried at one after the other. */
static void on_found(void *arg, const struct ft_net_address *at, int n, const char *why)
{
    struct agent *a = arg;
    a->lookup = NULL;
    plan(a);
    if (n > 0)
        a->peer = daemon_peer_connect(a->daemon, &at[a->dials++ % (unsigned)n]);
    if (!a->peer)
        tell_trouble(a, n > 0 ? ft_fail_text() : why);
}

static void dial(struct agent *a)
{
    const char *master = daemon_options_of(a->daemon)->master;
    uint64_t now_ns = daemon_now_ns();
    if (a->lookup && now_ns - a->lookup_ns > LOOKUP_NS)
        tell_trouble(a, "its name has not been found for some seconds: the resolver does not "
                        "answer");
    if (!master[0] || a->peer || a->lookup || now_ns < a->dial_ns)
        return;
    a->lookup_ns = now_ns;
    a->lookup = daemon_lookup_start(a->daemon, master, on_found, a);
    if (!a->lookup) {
        plan(a);
        tell_trouble(a, ft_fail_text());
    }
}

static void on_opened(void *arg, struct daemon_peer *peer)
{
    struct agent *a = arg;
    if (peer != a->peer)
        return;
    a->is_open = true;
    a->wait_ns = 0;
    a->trouble[0] = '\0';
    say_hello(a);
    daemon_hurry(a->daemon);
}

static void on_closed(void *arg, struct daemon_peer *peer)
{
    struct agent *a = arg;
    if (peer != a->peer)
        return;
    snprintf(a->trouble, sizeof a->trouble, "the master %.80s: %.190s", daemon_peer_name(peer),
             daemon_peer_why(peer));
    a->peer = NULL;
    a->is_open = false;
    plan(a);
}

void agent_set_master(struct agent *a, agent_master *master, void *arg)
{
    a->master = master;
    a->master_arg = arg;
    say_hello(a);
}

/* ---- reports --------------------------------------------------------------------------------- */

/* For so long the communicator is slower than usual. */
static void note_slower(struct agent *a, uint64_t ctx, uint64_t until_ns)
{
    int at = 0;
    for (int k = 0; k < SLOWER_MOST; k++) /* its own place, or the oldest */
        if (a->slower[k].ctx == ctx ||
            (a->slower[at].ctx != ctx && a->slower[k].until_ns < a->slower[at].until_ns))
            at = k;
    a->slower[at].ctx = ctx;
    a->slower[at].until_ns = until_ns;
}

static void note_changes(struct agent *a)
{
    uint64_t now_ns = daemon_now_ns();
    for (int i = 0; i < a->look.report.nchanges; i++) {
        const struct ft_step_change *change = &a->look.report.changes[i];
        note_slower(a, change->ctx, change->slower ? now_ns + SLOWER_NS : 0);
    }
    uint64_t uneven = now_ns >= a->links_ns ? links_find_uneven(a->look.snapshot) : 0;
    if (!uneven)
        return;
    a->links_ns = now_ns + LINKS_APART_NS;
    note_slower(a, uneven, now_ns + SLOWER_NS);
}

static int list_slower(const struct agent *a, uint64_t *out)
{
    int n = 0;
    uint64_t now_ns = daemon_now_ns();
    for (int i = 0; i < SLOWER_MOST; i++)
        if (a->slower[i].until_ns > now_ns)
            out[n++] = a->slower[i].ctx;
    return n;
}

static bool is_named(const struct agent *a, uint64_t ctx)
{
    for (int i = 0; i < a->nnamed; i++)
        if (a->named[i] == ctx)
            return true;
    return false;
}

/* Names that the master has not heard yet. When there are too many, it hears all again. */
static void send_names(struct agent *a)
{
    static struct rows_name names[ROWS_NAMES_MOST];
    const struct ft_snapshot *s = a->look.snapshot;
    int n = 0;
    size_t len;
    if (a->nnamed + s->nmembers > ROWS_NAMES_MOST)
        a->nnamed = 0;
    for (int i = 0; i < s->nmembers && a->nnamed < ROWS_NAMES_MOST; i++) {
        if (is_named(a, s->members[i].ctx))
            continue;
        names[n].ctx = a->named[a->nnamed++] = s->members[i].ctx;
        memcpy(names[n++].name, s->members[i].name, sizeof names->name);
    }
    if (n > 0) {
        unsigned char *bytes = rows_encode_names(names, n, &len);
        send_away(a, ROWS_NAMES, bytes, len);
    }
}

static void send_checks(struct agent *a)
{
    struct rows_check rows[ROWS_CHECKS_MOST];
    const struct check *check;
    int n = (int)ft_min((size_t)checks_list(a->checks, &check), ROWS_CHECKS_MOST);
    size_t len;
    for (int i = 0; i < n; i++) {
        rows[i].state = (uint8_t)check[i].state;
        memcpy(rows[i].name, check[i].name, sizeof rows[i].name);
        memcpy(rows[i].sentence, check[i].sentence, sizeof rows[i].sentence);
    }
    unsigned char *bytes = rows_encode_checks(rows, n, &len);
    send_away(a, ROWS_CHECKS, bytes, len);
}

/* Somebody has waited for half of what is a hang. */
static bool is_waited(const struct agent *a)
{
    const struct ft_snapshot *s = a->look.snapshot;
    double most_ns = 0;
    for (int i = 0; i < s->nmembers; i++) {
        const struct ft_snap_member *m = &s->members[i];
        uint64_t since_ns = ft_max(m->running_since_ns, m->progress_ns);
        if (m->running_sig && since_ns && since_ns < s->now_ns)
            most_ns = fmax(most_ns, (double)(s->now_ns - since_ns));
    }
    return a->look.report.found > 0 || most_ns > daemon_options_of(a->daemon)->after_s * 1e9 / 2;
}

static void report_pace(struct agent *a)
{
    size_t len;
    unsigned char *bytes = pace_encode(&a->pace, &len);
    send_away(a, ROWS_PACE, bytes, len);
}

/* Now and then the pace goes instead of a report, if that is not urgent. */
static void report(struct agent *a)
{
    uint64_t slower[SLOWER_MOST];
    size_t len;
    if (!has_master(a) || !a->look.snapshot)
        return;
    if (a->reports++ % PACE_EACH == PACE_EACH - 1 && !is_waited(a)) {
        report_pace(a);
        return;
    }
    int n = list_slower(a, slower);
    send_names(a);
    unsigned char *bytes = rows_encode_report(a->look.snapshot, slower, n, &len);
    send_away(a, ROWS_REPORT, bytes, len);
    send_checks(a);
}

/* ---- files for the master -------------------------------------------------------------------- */

static void send_file(struct agent *a, uint32_t request, uint64_t id)
{
    const struct ft_snapshot *s = a->look.snapshot;
    struct ft_telemetry_copy copy = {0};
    char path[320] = "";
    for (int i = 0; s && i < s->nengines; i++)
        if (s->engines[i].id == id)
            snprintf(path, sizeof path, "%.240s/%.64s", daemon_options_of(a->daemon)->dir,
                     s->engines[i].file);
    bool found = path[0] && ft_telemetry_copy_file(path, &copy) == FT_OK;
    if (found)
        collect_correct_copy(a->collect, id, &copy);
    size_t len;
    unsigned char *bytes = rows_encode_file(request, id, found ? &copy : NULL, &len);
    send_away(a, ROWS_FILE, bytes, len);
    free(copy.bytes);
}

static void send_stacks(void *arg, unsigned char *bytes, size_t len)
{
    struct agent *a = arg;
    if (has_master(a))
        send_away(a, ROWS_STACKS, bytes, len);
    else
        free(bytes);
}

bool agent_take(struct agent *a, const struct daemon_message *m)
{
    uint64_t engines[ROWS_FETCH_MOST];
    uint32_t request;
    if (m->type != ROWS_FETCH && m->type != ROWS_ASK_STACKS)
        return true;
    int n = rows_decode_fetch(m, &request, engines, ROWS_FETCH_MOST);
    if (n >= 0 && m->type == ROWS_ASK_STACKS)
        collect_ask(a->collect, request, engines, n);
    for (int i = 0; i < n && m->type == ROWS_FETCH; i++)
        send_file(a, request, engines[i]);
    return n >= 0;
}

static bool on_message(void *arg, struct daemon_peer *peer, const struct daemon_message *m)
{
    struct agent *a = arg;
    return peer == a->peer && agent_take(a, m);
}

/* ---- a look ---------------------------------------------------------------------------------- */

/* Hosts that are made up, for tests, share a folder. */
static int take_snapshot(struct agent *a, struct ft_snapshot **out)
{
    int status = ft_snapshot_collect(daemon_options_of(a->daemon)->dir, out);
    if (status != FT_OK || !ft_param_str(FT_PARAM_HOSTID)[0])
        return status;
    status = keep_host(*out, ft_host_id());
    if (status != FT_OK)
        ft_snapshot_free(*out);
    return status;
}

static void look_at_host(struct agent *a)
{
    int pids[PIDS_MOST], n = 0;
    const struct ft_snapshot *s = a->look.snapshot;
    for (int i = 0; s && i < s->nengines && n < PIDS_MOST; i++)
        if (s->engines[i].state != FT_PROCESS_GONE)
            pids[n++] = s->engines[i].pid;
    checks_look(a->checks, pids, n);
}

static void on_tick(void *arg)
{
    struct agent *a = arg;
    struct ft_snapshot *snapshot;
    const struct daemon_options *options = daemon_options_of(a->daemon);
    if (take_snapshot(a, &snapshot) == FT_OK) {
        collect_correct(a->collect, snapshot);
        look_take(&a->look, snapshot, options->after_s, a->steps);
        keep_look(&a->keep, snapshot, options->dir);
        inspector_look(&a->inspector, snapshot, &a->look.report);
        note_changes(a);
        pace_look(&a->pace, snapshot);
    } else {
        look_fail(&a->look, ft_fail_text());
    }
    collect_look(a->collect, &a->look, has_master(a));
    look_at_host(a);
    if (!a->master) { /* the master notes all hosts */
        look_note(&a->look, a->past);
        checks_note(a->checks, "", a->past);
        daemon_past_sweep(a->past);
    }
    dial(a);
    report(a);
}

/* ---- showing --------------------------------------------------------------------------------- */

static void put_trouble(FILE *out, const char *text)
{
    if (!text[0])
        return;
    fputs("<p class=\"warn\">", out);
    daemon_put_html(out, text);
    fputs("</p>", out);
}

static void page(void *arg, FILE *out)
{
    struct agent *a = arg;
    look_page(&a->look, out);
    put_trouble(out, a->trouble);
    put_trouble(out, a->keep.trouble);
    put_trouble(out, a->inspector.trouble);
    put_trouble(out, collect_trouble(a->collect));
    if (a->keep.kept > 0) {
        fprintf(out, "<p class=\"note\">%d snapshots of when ranks were killed are kept in ",
                a->keep.kept);
        daemon_put_html(out, a->keep.folder);
        fputs("; ftccl-diagnose --replay reads them</p>", out);
    }
}

static void add_text(struct ft_text *out, const char *key, const char *text)
{
    if (text[0])
        ft_json_string(out, key, text);
    else
        ft_json_null(out, key);
}

static void json(void *arg, struct ft_text *out)
{
    struct agent *a = arg;
    look_json(&a->look, "diagnosis", out);
    ft_json_begin(out, "agent", '{');
    ft_json_bool(out, "has_master", has_master(a));
    add_text(out, "trouble", a->trouble);
    add_text(out, "stacks_trouble", collect_trouble(a->collect));
    add_text(out, "inspector_trouble", a->inspector.trouble);
    ft_json_begin(out, "kept", '{');
    ft_json_string(out, "folder", a->keep.folder);
    ft_json_int(out, "snapshots", a->keep.kept);
    ft_json_int(out, "bytes", (int64_t)a->keep.bytes);
    add_text(out, "trouble", a->keep.trouble);
    ft_json_end(out, '}');
    ft_json_end(out, '}');
}

static void metrics(void *arg, FILE *out)
{
    struct agent *a = arg;
    look_metrics(&a->look, out, true);
    daemon_put_help(out, "ftccl_agent_has_master", "gauge", "1: reports reach a master.");
    fprintf(out, "ftccl_agent_has_master %d\n", has_master(a));
    daemon_put_help(out, "ftccl_agent_kept_bytes", "gauge", "What killed ranks left.");
    fprintf(out, "ftccl_agent_kept_bytes %llu\n", (unsigned long long)a->keep.bytes);
}

/* ---- opening --------------------------------------------------------------------------------- */

/* With a master in the process, the master shows all hosts, this one among them. */
void agent_add(struct agent *a)
{
    struct daemon_service service = {.name = "diagnosis", .arg = a, .tick = on_tick};
    if (!a->master) {
        service.number = DAEMON_DIAGNOSIS;
        service.message = on_message;
        service.opened = on_opened;
        service.closed = on_closed;
        service.page = page;
        service.json = json;
        service.metrics = metrics;
    }
    daemon_add(a->daemon, &service);
    service = checks_service(a->checks);
    daemon_add(a->daemon, &service);
}

struct agent *agent_open(struct daemon *d, struct daemon_past *past)
{
    struct agent *a = calloc(1, sizeof *a);
    const struct daemon_options *options = daemon_options_of(d);
    if (!a)
        return NULL;
    a->daemon = d;
    a->past = past;
    a->steps = ft_steps_open();
    a->checks = checks_open(options->root, options->state, options->interval_s);
    a->collect = collect_open(d, send_stacks, a);
    a->named = calloc(ROWS_NAMES_MOST, sizeof *a->named);
    look_fail(&a->look, "nothing has been looked at yet");
    if (!a->steps || !a->checks || !a->collect || !a->named ||
        keep_open(&a->keep, options->state) != FT_OK ||
        inspector_open(&a->inspector, options->inspector) != FT_OK) {
        fprintf(stderr, "%s: %s\n", options->program, ft_fail_text());
        agent_close(a);
        return NULL;
    }
    return a;
}

void agent_close(struct agent *a)
{
    if (!a)
        return;
    daemon_lookup_end(a->lookup);
    look_close(&a->look);
    if (a->steps)
        ft_steps_close(a->steps);
    checks_close(a->checks);
    collect_close(a->collect);
    keep_close(&a->keep);
    pace_close(&a->pace);
    free(a->named);
    free(a);
}

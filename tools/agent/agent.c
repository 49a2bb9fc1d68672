#include "agent.h"

#include "../daemon/wire.h"
#include "telemetry/telemetry.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define PIDS_MOST 256
#define SLOWER_MOST 16
#define SLOWER_NS 60000000000u /* for so long steps that became slower are news */
#define FIRST_WAIT_NS 200000000u
#define LONGEST_WAIT_NS 10000000000u

struct agent {
    struct daemon *daemon;
    struct daemon_past *past;
    struct look look;
    struct ft_steps *steps;
    struct checks *checks;
    struct keep keep;
    struct {
        uint64_t ctx, until_ns;
    } slower[SLOWER_MOST];
    /* The way to the master. */
    struct daemon_peer *peer;
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

static void dial(struct agent *a)
{
    const char *master = daemon_options_of(a->daemon)->master;
    struct ft_net_address to[FT_NET_ADDRESSES];
    if (!master[0] || a->peer || daemon_now_ns() < a->dial_ns)
        return;
    plan(a);
    if (ft_net_resolve(master, to, FT_NET_ADDRESSES) > 0)
        a->peer = daemon_peer_connect(a->daemon, &to[0]);
    if (!a->peer)
        snprintf(a->trouble, sizeof a->trouble, "the master %.100s: %.150s", master,
                 ft_fail_text());
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

static void note_changes(struct agent *a)
{
    uint64_t now_ns = daemon_now_ns();
    for (int i = 0; i < a->look.report.nchanges; i++) {
        const struct ft_step_change *change = &a->look.report.changes[i];
        int at = 0;
        for (int k = 0; k < SLOWER_MOST; k++) /* its own place, or the oldest */
            if (a->slower[k].ctx == change->ctx || (a->slower[at].ctx != change->ctx &&
                                                    a->slower[k].until_ns < a->slower[at].until_ns))
                at = k;
        a->slower[at].ctx = change->ctx;
        a->slower[at].until_ns = change->slower ? now_ns + SLOWER_NS : 0;
    }
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

static void report(struct agent *a)
{
    uint64_t slower[SLOWER_MOST];
    size_t len;
    if (!has_master(a) || !a->look.snapshot)
        return;
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
    size_t len;
    unsigned char *bytes = rows_encode_file(request, id, found ? &copy : NULL, &len);
    send_away(a, ROWS_FILE, bytes, len);
    free(copy.bytes);
}

bool agent_take(struct agent *a, const struct daemon_message *m)
{
    uint64_t engines[ROWS_FETCH_MOST];
    uint32_t request;
    if (m->type != ROWS_FETCH)
        return true;
    int n = rows_decode_fetch(m, &request, engines, ROWS_FETCH_MOST);
    for (int i = 0; i < n; i++)
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
        look_take(&a->look, snapshot, options->after_s, a->steps);
        keep_look(&a->keep, snapshot, options->dir);
        note_changes(a);
    } else {
        look_fail(&a->look, ft_fail_text());
    }
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
    a->named = calloc(ROWS_NAMES_MOST, sizeof *a->named);
    look_fail(&a->look, "nothing has been looked at yet");
    if (!a->steps || !a->checks || !a->named || keep_open(&a->keep, options->state) != FT_OK) {
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
    look_close(&a->look);
    if (a->steps)
        ft_steps_close(a->steps);
    checks_close(a->checks);
    keep_close(&a->keep);
    free(a->named);
    free(a);
}

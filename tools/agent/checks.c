#include "checks_parts.h"

#include <dirent.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#define CGROUPS_MOST 16

/* ---- reading --------------------------------------------------------------------------------- */

static bool read_path(const struct checks *c, char *text, size_t bytes, const char *path)
{
    char whole[700];
    if (snprintf(whole, sizeof whole, "%s%s", c->root, path) >= (int)sizeof whole)
        return false;
    FILE *file = fopen(whole, "re");
    if (!file)
        return false;
    size_t n = fread(text, 1, bytes - 1, file);
    bool good = !ferror(file) && n > 0;
    fclose(file);
    while (n > 0 && text[n - 1] == '\n')
        n--;
    text[n] = '\0';
    return good;
}

static bool format_path(char *path, size_t bytes, const char *fmt, va_list list)
{
    return vsnprintf(path, bytes, fmt, list) < (int)bytes;
}

bool check_read(const struct checks *c, char *text, size_t bytes, const char *fmt, ...)
{
    char path[480];
    va_list list;
    va_start(list, fmt);
    bool fits = format_path(path, sizeof path, fmt, list);
    va_end(list);
    return fits && read_path(c, text, bytes, path);
}

bool check_read_number(const struct checks *c, uint64_t *out, const char *fmt, ...)
{
    char path[480], text[64], *end;
    va_list list;
    va_start(list, fmt);
    bool fits = format_path(path, sizeof path, fmt, list);
    va_end(list);
    if (!fits || !read_path(c, text, sizeof text, path))
        return false;
    *out = strtoull(text, &end, 10);
    return end != text;
}

bool check_find_number(const char *text, const char *word, uint64_t *out)
{
    size_t len = strlen(word);
    for (const char *line = text; line; line = strchr(line, '\n')) {
        line += *line == '\n';
        if (strncmp(line, word, len) == 0 && line[len] == ' ') {
            *out = strtoull(line + len, NULL, 10);
            return true;
        }
    }
    return false;
}

void check_each(struct checks *c, const char *folder, check_visit *visit)
{
    char path[480];
    snprintf(path, sizeof path, "%s%s", c->root, folder);
    DIR *list = opendir(path);
    for (struct dirent *entry; list && (entry = readdir(list));)
        if (entry->d_name[0] != '.' && strlen(entry->d_name) < 32)
            visit(c, entry->d_name);
    if (list)
        closedir(list);
}

bool check_cgroup(const struct checks *c, int pid, char *path, size_t bytes)
{
    char text[512];
    if (!check_read(c, text, sizeof text, "/proc/%d/cgroup", pid))
        return false;
    const char *at = strncmp(text, "0::", 3) == 0 ? text : strstr(text, "\n0::");
    if (!at)
        return false;
    at = strchr(at, '/');
    size_t len = at ? strcspn(at, "\n") : 0;
    if (len == 0 || len >= bytes || strstr(at, ".."))
        return false;
    snprintf(path, bytes, "%.*s", (int)len, at);
    return true;
}

void check_each_cgroup(struct checks *c, const int *pids, int npids, check_visit *visit)
{
    char seen[CGROUPS_MOST][256];
    int n = 0;
    for (int i = 0; i < npids && n < CGROUPS_MOST; i++) {
        bool known = !check_cgroup(c, pids[i], seen[n], sizeof seen[n]);
        for (int k = 0; k < n && !known; k++)
            known = strcmp(seen[k], seen[n]) == 0;
        if (!known)
            visit(c, seen[n++]);
    }
}

/* ---- counters -------------------------------------------------------------------------------- */

static struct counter *find_counter(struct checks *c, const char *name)
{
    uint64_t key = ft_hash64(name, strlen(name), 0) | 1;
    for (size_t i = 0; i < COUNTERS_MOST; i++) {
        struct counter *at = &c->counter[(key + i) % COUNTERS_MOST];
        if (at->key == key || !at->key) {
            at->key = key;
            return at;
        }
    }
    return NULL;
}

uint64_t check_growth(struct checks *c, const char *name, uint64_t value, int window,
                      double *seconds)
{
    struct counter *at = find_counter(c, name);
    *seconds = c->interval_s;
    if (!at)
        return 0;
    if (!at->base_ns || value < at->middle || value < at->base) {
        at->base = at->middle = value;
        at->base_ns = at->middle_ns = c->now_ns;
    }
    if ((double)(c->now_ns - at->middle_ns) > window * c->interval_s * 1e9) {
        at->base = at->middle;
        at->base_ns = at->middle_ns;
        at->middle = value;
        at->middle_ns = c->now_ns;
    }
    *seconds += (double)(c->now_ns - at->base_ns) / 1e9;
    return value - at->base;
}

void check_judge(struct checks *c, const char *name, double value, struct check_limit limit,
                 const char *fmt, ...)
{
    struct check *check = &c->list[c->n];
    va_list list;
    if (c->n >= CHECKS_MOST)
        return;
    c->n++;
    snprintf(check->name, sizeof check->name, "%s", name);
    check->value = value;
    check->state = limit.bad > 0 && value > limit.bad ? CHECK_BAD
                   : value > limit.warn               ? CHECK_WARN
                                                      : CHECK_GOOD;
    va_start(list, fmt);
    vsnprintf(check->sentence, sizeof check->sentence, fmt, list);
    va_end(list);
}

/* ---- all of them ----------------------------------------------------------------------------- */

void checks_look(struct checks *c, const int *pids, int npids)
{
    c->now_ns = daemon_now_ns();
    c->n = 0;
    check_clock(c);
    check_network(c);
    check_processors(c, pids, npids);
    check_memory(c, pids, npids);
    check_disks(c);
    check_errors(c);
    check_gpus(c);
}

int checks_list(const struct checks *c, const struct check **out)
{
    *out = c->list;
    return c->n;
}

const char *check_state_name(enum check_state state)
{
    static const char *const name[] = {"good", "warn", "bad"};
    return state <= CHECK_BAD ? name[state] : "unknown";
}

void checks_note(const struct checks *c, const char *host, struct daemon_past *past)
{
    for (int i = 0; i < c->n; i++) {
        char name[128];
        snprintf(name, sizeof name, "%.64s %.48s", host, c->list[i].name);
        if (c->list[i].state != CHECK_GOOD)
            daemon_past_note(past, DAEMON_ALARM, name, check_state_name(c->list[i].state),
                             c->list[i].sentence);
    }
}

struct checks *checks_open(const char *root, const char *state, double interval_s)
{
    struct checks *c = calloc(1, sizeof *c);
    if (!c)
        return NULL;
    c->interval_s = interval_s;
    snprintf(c->root, sizeof c->root, "%s", root);
    snprintf(c->state, sizeof c->state, "%s", state);
    return c;
}

void checks_close(struct checks *c)
{
    if (!c)
        return;
    check_gpus_close(c);
    free(c);
}

/* ---- showing --------------------------------------------------------------------------------- */

static void page(void *arg, FILE *out)
{
    const struct checks *c = arg;
    fputs("<table><tr><th>check<th>state<th></tr>", out);
    for (int i = 0; i < c->n; i++) {
        const char *state = check_state_name(c->list[i].state);
        fputs("<tr><td>", out);
        daemon_put_html(out, c->list[i].name);
        fprintf(out, "<td class=\"%s\">%s<td>", state, state);
        daemon_put_html(out, c->list[i].sentence);
        fputs("</tr>", out);
    }
    fputs("</table>", out);
}

static void json(void *arg, struct ft_text *out)
{
    const struct checks *c = arg;
    ft_json_begin(out, "checks", '[');
    for (int i = 0; i < c->n; i++) {
        ft_json_begin(out, NULL, '{');
        ft_json_string(out, "name", c->list[i].name);
        ft_json_string(out, "state", check_state_name(c->list[i].state));
        ft_json_real(out, "value", c->list[i].value);
        ft_json_string(out, "sentence", c->list[i].sentence);
        ft_json_end(out, '}');
    }
    ft_json_end(out, ']');
}

static void put_metric(const struct checks *c, FILE *out, const char *name, bool state)
{
    for (int i = 0; i < c->n; i++) {
        fputs(name, out);
        daemon_put_label(out, "{", "check", c->list[i].name);
        fprintf(out, "} %g\n", state ? (double)c->list[i].state : c->list[i].value);
    }
}

static void metrics(void *arg, FILE *out)
{
    daemon_put_help(out, "ftccl_host_check", "gauge", "0: good, 1: worth knowing, 2: bad.");
    put_metric(arg, out, "ftccl_host_check", true);
    daemon_put_help(out, "ftccl_host_check_value", "gauge", "What the check has measured.");
    put_metric(arg, out, "ftccl_host_check_value", false);
}

struct daemon_service checks_service(struct checks *c)
{
    return (struct daemon_service){
        .name = "checks", .arg = c, .page = page, .json = json, .metrics = metrics};
}

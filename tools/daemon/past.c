#include "past.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

#define SLOTS 16384
#define LASTING_MOST 8192
#define WRITE_S 10 /* the end of what lasts is written so often */
#define SHOWN 50

struct lasting {
    uint64_t key; /* 0: free */
    int64_t since_s, written_s;
    bool noted;
};

struct daemon_past {
    struct daemon_history *history;
    struct lasting slot[SLOTS], other[SLOTS];
    int n;
};

static struct lasting *find(struct lasting *slots, uint64_t key)
{
    size_t at = key % SLOTS;
    while (slots[at].key && slots[at].key != key)
        at = (at + 1) % SLOTS;
    return &slots[at];
}

static uint64_t key_of(enum daemon_record record, const char *name, const char *kind)
{
    uint64_t key = ft_hash64(name, strlen(name), (uint64_t)record);
    key = ft_hash64(kind, strlen(kind), key);
    return key ? key : 1;
}

void daemon_past_note(struct daemon_past *p, enum daemon_record record, const char *name,
                      const char *kind, const char *sentence)
{
    int64_t now_s = (int64_t)time(NULL);
    uint64_t key = key_of(record, name, kind);
    struct lasting *l = find(p->slot, key);
    if (!l->key && p->n >= LASTING_MOST)
        return;
    if (!l->key) {
        *l = (struct lasting){.key = key, .since_s = now_s};
        p->n++;
    }
    l->noted = true;
    if (l->written_s && now_s - l->written_s < WRITE_S)
        return;
    l->written_s = now_s;
    const struct daemon_row row = {name, kind, sentence, l->since_s, now_s};
    daemon_history_write(p->history, record, &row);
}

void daemon_past_sweep(struct daemon_past *p)
{
    memset(p->other, 0, sizeof p->other);
    p->n = 0;
    for (int i = 0; i < SLOTS; i++) {
        if (!p->slot[i].key || !p->slot[i].noted)
            continue;
        struct lasting *to = find(p->other, p->slot[i].key);
        *to = p->slot[i];
        to->noted = false;
        p->n++;
    }
    memcpy(p->slot, p->other, sizeof p->slot);
    daemon_history_tick(p->history);
}

/* ---- showing --------------------------------------------------------------------------------- */

static void when(int64_t s, char text[32])
{
    time_t at = (time_t)s;
    struct tm parts;
    strftime(text, 32, "%Y-%m-%d %H:%M:%S", gmtime_r(&at, &parts));
}

static void put_row(void *arg, const struct daemon_row *row)
{
    FILE *out = arg;
    char since[32], until[32];
    when(row->since_s, since);
    when(row->until_s, until);
    fprintf(out, "<tr><td>%s<td>%s<td>", since, until);
    daemon_put_html(out, row->kind);
    fputs("<td>", out);
    daemon_put_html(out, row->sentence);
    fputs("</tr>", out);
}

static void add_row(void *arg, const struct daemon_row *row)
{
    struct ft_text *out = arg;
    ft_json_begin(out, NULL, '{');
    ft_json_string(out, "name", row->name);
    ft_json_string(out, "kind", row->kind);
    ft_json_string(out, "sentence", row->sentence);
    ft_json_int(out, "since", row->since_s);
    ft_json_int(out, "until", row->until_s);
    ft_json_end(out, '}');
}

static const char *const names[DAEMON_RECORDS] = {"verdicts", "alarms", "hosts", "jobs", "stacks"};

static void page(void *arg, FILE *out)
{
    struct daemon_past *p = arg;
    const char *trouble = daemon_history_trouble(p->history);
    if (trouble[0]) {
        fputs("<p class=\"warn\">", out);
        daemon_put_html(out, trouble);
        fputs("</p>", out);
    }
    for (enum daemon_record record = 0; record < DAEMON_RECORDS; record++) {
        fprintf(out, "<h3>%s</h3><table><tr><th>from<th>to (UTC)<th>kind<th></tr>", names[record]);
        daemon_history_read(p->history, record, SHOWN, put_row, out);
        fputs("</table>", out);
    }
}

static void json(void *arg, struct ft_text *out)
{
    struct daemon_past *p = arg;
    const char *trouble = daemon_history_trouble(p->history);
    ft_json_begin(out, "history", '{');
    if (trouble[0])
        ft_json_string(out, "trouble", trouble);
    else
        ft_json_null(out, "trouble");
    for (enum daemon_record record = 0; record < DAEMON_RECORDS; record++) {
        ft_json_begin(out, names[record], '[');
        daemon_history_read(p->history, record, SHOWN, add_row, out);
        ft_json_end(out, ']');
    }
    ft_json_end(out, '}');
}

static void metrics(void *arg, FILE *out)
{
    struct daemon_past *p = arg;
    daemon_put_help(out, "ftccl_history_on_disk", "gauge",
                    "0: the history could not be written, and is in memory alone.");
    fprintf(out, "ftccl_history_on_disk %d\n", !daemon_history_trouble(p->history)[0]);
}

struct daemon_service daemon_past_service(struct daemon_past *p)
{
    return (struct daemon_service){
        .name = "history", .arg = p, .json = json, .page = page, .metrics = metrics};
}

struct daemon_past *daemon_past_open(const char *folder)
{
    struct daemon_past *p = calloc(1, sizeof *p);
    if (p && !(p->history = daemon_history_open(folder))) {
        free(p);
        return NULL;
    }
    return p;
}

void daemon_past_close(struct daemon_past *p)
{
    if (!p)
        return;
    daemon_history_close(p->history);
    free(p);
}

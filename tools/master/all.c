/*
 * One snapshot of all hosts, from their rows, at ROWS_NOW_NS. Each host's rows count as of its last
 * report: what has happened there since is not known, so its waits do not grow.
 */
#include "master.h"

#include "telemetry/telemetry.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

static int by_id(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return x < y ? -1 : x > y;
}

/* The ids of the engines of which there are full rows, sorted. */
static uint64_t *list_ids(const struct ft_snapshot *details)
{
    int n = details ? details->nengines : 0;
    uint64_t *ids = calloc((size_t)n + 1, sizeof *ids);
    for (int i = 0; ids && i < n; i++)
        ids[i] = details->engines[i].id;
    if (ids)
        qsort(ids, (size_t)n, sizeof *ids, by_id);
    return ids;
}

/* What of a host's rows counts. Of a silent one only that processes had ended. */
struct choice {
    const uint64_t *detailed;
    int ndetailed;
    bool silent;
    int *place; /* of the host's engines in the snapshot; -1: left out */
};

static bool is_chosen(const struct choice *c, const struct ft_snap_engine *e)
{
    if (c->silent && e->state != FT_PROCESS_GONE)
        return false;
    return !bsearch(&e->id, c->detailed, (size_t)c->ndetailed, sizeof e->id, by_id);
}

static void add_host(struct ft_snapshot *s, const struct host *host, const struct choice *c)
{
    const struct rows_report *r = &host->report;
    for (int i = 0; i < r->nengines; i++) {
        c->place[i] = is_chosen(c, &r->engines[i]) ? s->nengines : -1;
        if (c->place[i] >= 0)
            s->engines[s->nengines++] = r->engines[i];
    }
    for (int i = 0; i < r->nmembers; i++) {
        int place = c->place[r->members[i].engine];
        if (place < 0)
            continue;
        s->members[s->nmembers] = r->members[i];
        s->members[s->nmembers++].engine = place;
    }
    s->unreadable += c->silent ? 1 : r->unreadable;
}

static struct ft_snapshot *take_memory(const struct master *m)
{
    size_t engines = 1, members = 1;
    struct ft_snapshot *s = calloc(1, sizeof *s);
    for (int i = 0; i < m->nhosts; i++) {
        engines += (size_t)m->host[i]->report.nengines;
        members += (size_t)m->host[i]->report.nmembers;
    }
    if (!s)
        return NULL;
    s->engines = calloc(engines, sizeof *s->engines);
    s->members = calloc(members, sizeof *s->members);
    if (s->engines && s->members)
        return s;
    ft_snapshot_free(s);
    return NULL;
}

static bool fill(const struct master *m, struct ft_snapshot *s, struct choice *c)
{
    uint64_t now_ns = daemon_now_ns();
    c->place = calloc(ROWS_ENGINES_MOST, sizeof *c->place);
    for (int i = 0; c->place && i < m->nhosts; i++) {
        c->silent = m->host[i]->gone_ns || master_is_silent(m->host[i], now_ns);
        if (m->host[i]->said_hello)
            add_host(s, m->host[i], c);
    }
    free(c->place);
    return c->place != NULL;
}

struct ft_snapshot *master_snapshot(const struct master *m, const struct ft_snapshot *details)
{
    struct ft_snapshot *s = take_memory(m);
    uint64_t *ids = list_ids(details);
    struct choice choice = {.detailed = ids, .ndetailed = details ? details->nengines : 0};
    bool good = s && ids && fill(m, s, &choice);
    free(ids);
    if (good) {
        s->now_ns = ROWS_NOW_NS;
        s->real_ns = (uint64_t)time(NULL) * 1000000000u;
        good = !details || ft_snapshot_merge(s, details) == FT_OK;
    }
    if (good)
        return s;
    ft_snapshot_free(s);
    return NULL;
}

/* ---- times ----------------------------------------------------------------------------------- */

static void shift(uint64_t *time_ns, uint64_t by_ns)
{
    if (*time_ns)
        *time_ns += by_ns;
}

static void shift_members(struct ft_snapshot *s, uint64_t by_ns)
{
    for (int i = 0; i < s->nmembers; i++) {
        struct ft_snap_member *m = &s->members[i];
        shift(&m->opened_ns, by_ns);
        shift(&m->last.called_ns, by_ns);
        shift(&m->running_since_ns, by_ns);
        shift(&m->progress_ns, by_ns);
    }
}

/* Times in the file may be anything; so may be the sums, which wrap. */
void master_shift(struct ft_snapshot *s, uint64_t to_now_ns)
{
    uint64_t by_ns = to_now_ns - s->now_ns;
    shift_members(s, by_ns);
    for (int i = 0; i < s->npaths; i++)
        shift(&s->paths[i].seen_ns, by_ns);
    for (int i = 0; i < s->nsteps; i++) {
        shift(&s->steps[i].begin_ns, by_ns);
        shift(&s->steps[i].end_ns, by_ns);
    }
    for (int i = 0; i < s->nops; i++) {
        shift(&s->ops[i].called_ns, by_ns);
        shift(&s->ops[i].started_ns, by_ns);
        shift(&s->ops[i].ended_ns, by_ns);
    }
    s->now_ns = to_now_ns;
}

/*
 * What was seen of the culprits of a verdict, in the numbers of the snapshot, so that a reader can
 * check the verdict.
 */
#include "diagnose.h"

#include <inttypes.h>
#include <string.h>

struct list {
    struct ft_evidence *at;
    int n, capacity;
    struct ft_evidence rest; /* what does not fit */
};

static struct ft_evidence *add(struct list *list, const char *source, int rank, const char *field)
{
    struct ft_evidence *e = list->n < list->capacity ? &list->at[list->n++] : &list->rest;
    *e = (struct ft_evidence){.source = source, .rank = rank, .field = field, .number = -1};
    return e;
}

static void add_number(struct list *list, const char *source, int rank, const char *field,
                       uint64_t value)
{
    add(list, source, rank, field)->number = (int64_t)ft_min(value, INT64_MAX);
}

static void add_text(struct list *list, const char *source, int rank, const char *field,
                     const char *text)
{
    struct ft_evidence *e = add(list, source, rank, field);
    snprintf(e->text, sizeof e->text, "%s", text);
}

/* ---- a rank ---------------------------------------------------------------------------------- */

static const struct ft_snap_member *member_of(const struct ft_snapshot *s, uint64_t ctx, int rank)
{
    for (int i = 0; i < s->nmembers; i++) {
        const struct ft_snap_member *m = &s->members[i];
        if (m->ctx == ctx && m->rank == rank && m->engine >= 0 && m->engine < s->nengines)
            return m;
    }
    return NULL;
}

static void add_process(struct list *list, int rank, const struct ft_snap_engine *engine)
{
    static const char *const states[] = {"unknown", "runs", "stopped", "gone",
                                         "a thread is stopped"};
    if ((size_t)engine->state < FT_ARRAY_LEN(states))
        add_text(list, "process", rank, "state", states[engine->state]);
    if (engine->doing[0])
        add_text(list, "process", rank, "doing", engine->doing);
}

static void add_calls(struct list *list, int rank, const struct ft_snap_member *m, uint64_t now_ns)
{
    char text[128];
    add_number(list, "telemetry", rank, "called", m->called);
    add_number(list, "telemetry", rank, "started", m->started);
    add_number(list, "telemetry", rank, "done", m->done);
    if (m->last.sig) {
        ft_sig_text(m->last.sig, text, sizeof text);
        add_text(list, "telemetry", rank, "last_call", text);
        add_number(list, "telemetry", rank, "last_call_ms_ago",
                   now_ns > m->last.called_ns ? (now_ns - m->last.called_ns) / 1000000 : 0);
    }
    if (m->running_sig && m->wait.peer >= 0) {
        snprintf(text, sizeof text, "%s rank %d in step %" PRIu64,
                 m->wait.sends ? "to send to" : "to receive from", m->wait.peer, m->wait.step);
        add_text(list, "telemetry", rank, "waits", text);
    }
}

/* The threads that wait in the library. */
static void add_threads(struct list *list, const struct ft_snapshot *s, int rank, int engine)
{
    char text[128];
    for (int i = 0; i < s->nthreads; i++) {
        const struct ft_snap_thread *t = &s->threads[i];
        if (t->engine != engine || !t->waits)
            continue;
        uint64_t since_ns = s->now_ns > t->since_ns ? s->now_ns - t->since_ns : 0;
        snprintf(text, sizeof text, "%d waits in %s for %.1f s, called from 0x%" PRIx64, t->tid,
                 ft_thread_call_name(t->call), (double)since_ns / 1e9, t->site);
        add_text(list, "telemetry", rank, "thread", text);
    }
}

/* ---- a link ---------------------------------------------------------------------------------- */

static void add_counters(struct list *list, const struct ft_snapshot *s, int rank, int engine,
                         uint64_t peer)
{
    for (int i = 0; i < s->nlinks; i++) {
        const struct ft_snap_link *l = &s->links[i];
        if (l->engine != engine || l->peer != peer)
            continue;
        add_number(list, "telemetry", rank, l->sender ? "messages_sent" : "messages_received",
                   l->messages);
        add_text(list, "telemetry", rank, "transport", l->transport);
    }
}

static void add_path(struct list *list, int rank, const struct ft_snap_path *p)
{
    if (!p->sender) {
        if (p->flight_ns)
            add_number(list, "path", rank, "flight_ns_a_kib", p->flight_ns);
        return;
    }
    add_text(list, "path", rank, "to", p->destination);
    add_number(list, "path", rank, "bytes", p->bytes);
    add_number(list, "path", rank, "network_us", p->network_ns / 1000);
    add_number(list, "path", rank, "receiver_us", p->receiver_ns / 1000);
    add_number(list, "path", rank, "retransmits", p->retransmits);
    add_number(list, "path", rank, "rtt_us", p->rtt_ns / 1000);
}

/* peer 0: all peers. */
static void add_paths(struct list *list, const struct ft_snapshot *s, int rank, int engine,
                      uint64_t peer)
{
    for (int i = 0; i < s->npaths; i++)
        if (s->paths[i].engine == engine && (!peer || s->paths[i].peer == peer))
            add_path(list, rank, &s->paths[i]);
}

/* Of the large messages of a link: how many, and how long they have waited on average and at most.
 */
static void add_latency(struct list *list, int rank, const struct ft_snap_latency *l)
{
    static const char *const mean[FT_LATENCY_PARTS] = {"credit_us", "in_network_us", "consumer_us"},
                             *const most[FT_LATENCY_PARTS] = {
                                 "credit_us_most", "in_network_us_most", "consumer_us_most"};
    for (int p = 0; p < FT_LATENCY_PARTS; p++) {
        const struct ft_latency *part = &l->part[p];
        if (part->count == 0)
            continue;
        add_number(list, "telemetry", rank, mean[p], part->sum_ns / part->count / 1000);
        add_number(list, "telemetry", rank, most[p], part->max_ns / 1000);
    }
}

static void add_latencies(struct list *list, const struct ft_snapshot *s, int rank, int engine,
                          uint64_t peer, bool sender)
{
    for (int i = 0; i < s->nlatencies; i++) {
        const struct ft_snap_latency *l = &s->latencies[i];
        if (l->engine == engine && l->peer == peer && l->sender == sender)
            add_latency(list, rank, l);
    }
}

static void add_link(struct list *list, const struct ft_snapshot *s, const struct ft_culprit *c)
{
    const struct ft_snap_member *from = member_of(s, c->ctx, c->rank),
                                *to = member_of(s, c->ctx, c->peer);
    if (!from || !to)
        return;
    uint64_t from_id = s->engines[from->engine].id, to_id = s->engines[to->engine].id;
    add_counters(list, s, c->world_rank, from->engine, to_id);
    add_counters(list, s, c->world_peer, to->engine, from_id);
    add_paths(list, s, c->world_rank, from->engine, to_id);
    add_paths(list, s, c->world_peer, to->engine, from_id);
    add_latencies(list, s, c->world_rank, from->engine, to_id, true);
    add_latencies(list, s, c->world_peer, to->engine, from_id, false);
}

/* ---- a verdict ------------------------------------------------------------------------------- */

static bool is_slow_network(enum ft_verdict_kind kind)
{
    return kind == FT_VERDICT_COMM_SLOW_LINK || kind == FT_VERDICT_COMM_SLOW_SOURCE ||
           kind == FT_VERDICT_COMM_SLOW_DESTINATION;
}

int ft_verdict_evidence(const struct ft_snapshot *s, const struct ft_verdict *v,
                        struct ft_evidence *out, int capacity)
{
    struct list list = {.at = out, .capacity = capacity};
    for (int i = 0; i < v->nculprits && i < FT_CULPRITS; i++) {
        const struct ft_culprit *c = &v->culprits[i];
        const struct ft_snap_member *m = member_of(s, c->ctx, c->rank);
        if (c->engine >= 0 && c->engine < s->nengines)
            add_process(&list, c->world_rank, &s->engines[c->engine]);
        if (m)
            add_calls(&list, c->world_rank, m, s->now_ns);
        if (m)
            add_threads(&list, s, c->world_rank, m->engine);
        if (c->peer >= 0)
            add_link(&list, s, c);
        else if (m && is_slow_network(v->kind))
            add_paths(&list, s, c->world_rank, m->engine, 0);
    }
    return list.n;
}

double ft_verdict_confidence(const struct ft_verdict *v)
{
    switch (v->kind) {
    case FT_VERDICT_RANK_DEAD:
    case FT_VERDICT_RANK_STOPPED:
    case FT_VERDICT_LIBRARY_STUCK:
    case FT_VERDICT_MISMATCH:
    case FT_VERDICT_DEADLOCK:
    case FT_VERDICT_CORRUPT:
    case FT_VERDICT_HEALTHY:
        return 1;
    case FT_VERDICT_NONCOMM_SLOW:
    case FT_VERDICT_COMM_SLOW_LINK:
    case FT_VERDICT_COMM_SLOW_SOURCE:
    case FT_VERDICT_COMM_SLOW_DESTINATION:
        return 0.8;
    case FT_VERDICT_UNKNOWN:
        return v->nculprits > 1 ? 1.0 / v->nculprits : 0;
    default:
        return 0.9;
    }
}

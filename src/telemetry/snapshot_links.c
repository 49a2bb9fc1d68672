/*
 * What an image of a telemetry file tells of links, their paths and latencies, of the clocks of
 * peers, of threads, and of events. Numbers come from the file: what is an index or a name is
 * checked, here or where it is used.
 */
#include "collect.h"

#include <arpa/inet.h>
#include <stdlib.h>
#include <string.h>

#define EVENTS_KEPT 256 /* of an engine, the latest */

void *ft_tm_list_add(struct ft_tm_collection *c, struct ft_tm_list *list)
{
    if (list->n == list->capacity) {
        int capacity = list->capacity ? 2 * list->capacity : 64;
        void *grown = realloc(list->rows, (size_t)capacity * list->row_bytes);
        if (!grown) {
            c->no_memory = true;
            return NULL;
        }
        list->rows = grown;
        list->capacity = capacity;
    }
    void *row = (char *)list->rows + (size_t)list->n++ * list->row_bytes;
    memset(row, 0, list->row_bytes);
    return row;
}

/* ---- links and paths ------------------------------------------------------------------------- */

static void add_links(struct ft_tm_collection *c, const struct ft_image *image, int engine)
{
    for (int i = 0; i < FT_TM_LINKS; i++) {
        const struct ft_tm_link *from = &image->file.link[i];
        if (from->state != FT_TM_OPEN)
            continue;
        struct ft_snap_link *link = ft_tm_list_add(c, &c->links);
        if (!link)
            return;
        *link = (struct ft_snap_link){.engine = engine,
                                      .peer = from->peer,
                                      .sender = from->sender,
                                      .open = true,
                                      .messages = from->messages,
                                      .bytes = from->bytes,
                                      .transfer_ns = from->transfer_ns,
                                      .wait_ns = from->wait_ns};
        memcpy(link->transport, from->transport, sizeof link->transport);
    }
}

static void write_end(const struct ft_path_end *end, char *text, size_t size)
{
    char ip[INET6_ADDRSTRLEN] = "?";
    inet_ntop(end->family == AF_INET6 ? AF_INET6 : AF_INET, end->ip, ip, sizeof ip);
    snprintf(text, size, end->family == AF_INET6 ? "[%s]:%u" : "%s:%u", ip, end->port);
}

static int by_time(const void *a, const void *b)
{
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return (x > y) - (x < y);
}

/* The lower quartile, if there are enough and the last one is of the span of the path. */
static uint32_t take_flight(const struct ft_tm_path *from)
{
    struct ft_flights flights = from->flights;
    size_t n = ft_min(flights.count, FT_FLIGHTS);
    if (n < FT_FLIGHTS / 2 || flights.seen_ns < from->before.time_ns)
        return 0;
    qsort(flights.ns_per_kib, n, sizeof flights.ns_per_kib[0], by_time);
    return flights.ns_per_kib[n / 4];
}

/* Later it may turn out that some were not lost. */
static uint64_t take_lost(const struct ft_tm_path_sums *now, const struct ft_tm_path_sums *before)
{
    return now->retransmits - ft_min(now->retransmits, before->retransmits);
}

static void add_paths(struct ft_tm_collection *c, const struct ft_image *image, int engine)
{
    for (int i = 0; i < FT_TM_PATHS; i++) {
        const struct ft_tm_path *from = &image->file.path[i];
        const struct ft_tm_path_sums *now = &from->now, *before = &from->before;
        if (from->state != FT_TM_OPEN || image->path_torn[i] || now->time_ns < before->time_ns)
            continue;
        struct ft_snap_path *path = ft_tm_list_add(c, &c->paths);
        if (!path)
            return;
        *path = (struct ft_snap_path){.engine = engine,
                                      .peer = from->peer,
                                      .sender = image->file.link[from->link % FT_TM_LINKS].sender,
                                      .flight_ns = take_flight(from),
                                      .seen_ns = now->time_ns,
                                      .span_ns = now->time_ns - before->time_ns,
                                      .messages = now->messages - before->messages,
                                      .bytes = now->bytes - before->bytes,
                                      .network_ns = now->network_ns - before->network_ns,
                                      .receiver_ns = now->receiver_ns - before->receiver_ns,
                                      .credit_ns = now->credit_ns - before->credit_ns,
                                      .retransmits = take_lost(now, before),
                                      .rtt_ns = from->rtt_ns,
                                      .least_rtt_ns = from->least_rtt_ns};
        write_end(&from->source, path->source, sizeof path->source);
        write_end(&from->destination, path->destination, sizeof path->destination);
    }
}

/* ---- latencies and clocks -------------------------------------------------------------------- */

static void add_latencies(struct ft_tm_collection *c, const struct ft_image *image, int engine)
{
    for (int i = 0; i < FT_TM_LATENCIES; i++) {
        const struct ft_tm_latency *from = &image->file.latency[i];
        struct ft_snap_latency *latency = from->state == FT_TM_OPEN
                                              ? ft_tm_list_add(c, &c->latencies)
                                              : NULL;
        if (!latency)
            continue;
        latency->engine = engine;
        latency->peer = from->peer;
        latency->sender = image->file.link[from->link % FT_TM_LINKS].sender == 1;
        memcpy(latency->part, from->part, sizeof latency->part);
    }
}

static void add_clocks(struct ft_tm_collection *c, const struct ft_image *image, int engine)
{
    for (int i = 0; i < FT_TM_CLOCKS; i++) {
        const struct ft_tm_clock *from = &image->file.clock[i];
        const struct ft_clock *is = &from->is;
        bool valid = from->rounds > 0 && !image->clock_torn[i] && is->measured_ns <= is->seen_ns &&
                     is->error_ns < INT64_MAX / 2;
        struct ft_snap_clock *clock = valid ? ft_tm_list_add(c, &c->clocks) : NULL;
        if (!clock)
            continue;
        clock->engine = engine;
        clock->peer = from->peer;
        clock->offset_ns = is->offset_ns;
        /* as of now: the clocks may have drifted since */
        uint64_t age_ns = c->now_ns > is->measured_ns ? c->now_ns - is->measured_ns : 0;
        clock->error_ns = is->error_ns + age_ns / 1000000 * FT_CLOCK_DRIFT_PPM;
    }
}

/* ---- threads --------------------------------------------------------------------------------- */

static void add_threads(struct ft_tm_collection *c, const struct ft_image *image, int engine)
{
    for (int i = 0; i < FT_TM_THREADS; i++) {
        const struct ft_tm_thread *from = &image->file.thread[i];
        struct ft_snap_thread *thread = from->tid > 0 && from->call != FT_THREAD_NONE
                                            ? ft_tm_list_add(c, &c->threads)
                                            : NULL;
        if (thread)
            *thread = (struct ft_snap_thread){.engine = engine,
                                              .tid = from->tid,
                                              .call = from->call,
                                              .waits = from->waits == 1,
                                              .since_ns = from->since_ns,
                                              .site = from->site,
                                              .calls = from->calls};
    }
}

void ft_tm_drop_threads(struct ft_tm_collection *c, int pid)
{
    struct ft_snap_thread *rows = c->threads.rows;
    int kept = 0;
    for (int i = 0; i < c->threads.n; i++) {
        char state;
        uint64_t start;
        if (rows[i].engine != c->engines.n - 1 ||
            ft_tm_thread_state(pid, rows[i].tid, &state, &start))
            rows[kept++] = rows[i];
    }
    c->threads.n = kept;
}

/* ---- events ---------------------------------------------------------------------------------- */

/* The n-th, counted from 0, is in its row unless it is written now. */
static void add_event(struct ft_tm_collection *c, const struct ft_image *image, int engine,
                      uint64_t n)
{
    const struct ft_tm_event *from = &image->file.event[n % FT_TM_EVENTS];
    bool valid = from->serial == n + 1 && !image->event_torn[n % FT_TM_EVENTS];
    struct ft_snap_event *event = valid ? ft_tm_list_add(c, &c->events) : NULL;
    if (event)
        *event = (struct ft_snap_event){.engine = engine,
                                        .what = from->what,
                                        .from = from->from,
                                        .to = from->to,
                                        .rank = from->rank,
                                        .status = from->status,
                                        .id = from->id,
                                        .time_ns = from->time_ns};
}

static void add_events(struct ft_tm_collection *c, const struct ft_image *image, int engine)
{
    uint64_t latest = 0;
    for (int i = 0; i < FT_TM_EVENTS; i++)
        if (!image->event_torn[i])
            latest = ft_max(latest, image->file.event[i].serial);
    for (uint64_t n = latest - ft_min(latest, EVENTS_KEPT); n < latest; n++)
        add_event(c, image, engine, n);
}

/* One that is being written is told the next time. */
static void add_validation(struct ft_tm_collection *c, const struct ft_image *image, int engine)
{
    const struct ft_tm_validation *from = &image->file.header.validation;
    bool ended = from->is.state == FT_VALIDATION_DONE || from->is.state == FT_VALIDATION_GIVEN_UP;
    struct ft_snap_validation *to = ended && from->guard % 2 == 0
                                        ? ft_tm_list_add(c, &c->validations)
                                        : NULL;
    if (!to)
        return;
    to->engine = engine;
    to->is = from->is;
    to->is.nlinks = (uint16_t)ft_min(to->is.nlinks, FT_MEASURED_MOST);
}

void ft_tm_add_links(struct ft_tm_collection *c, const struct ft_image *image, int engine)
{
    add_links(c, image, engine);
    add_paths(c, image, engine);
    add_latencies(c, image, engine);
    add_clocks(c, image, engine);
    add_threads(c, image, engine);
    add_events(c, image, engine);
    add_validation(c, image, engine);
}

/*
 * Writes what a snapshot knows of operations as a trace that Perfetto and chrome://tracing open
 * (the JSON array of trace events): a rank is a process, a communicator a track, an operation a
 * slice from its start to its end. Operations of one communicator that run at the same time are on
 * tracks beside each other. The time in which a call waits for its stream is an asynchronous slice,
 * since any number of those overlap. An arrow goes from whoever came last to an operation to
 * whoever waited for it the longest, and from a rank to those that wait for it now. Times count
 * from the first call.
 */
#include "diagnose_ranks.h"
#include "telemetry/telemetry.h"

#include <inttypes.h>
#include <stdlib.h>

#define LANES 256 /* operations of a communicator at the same time; more are left out */

/* An operation of a rank, or that it is outside calls. */
struct slice {
    int member, row, lane;
    uint64_t called_ns, begin_ns, end_ns;
    uint64_t sig, seq;
    int from, to; /* of a message; -1 */
    bool receives, runs, outside;
};

struct trace {
    FILE *out;
    struct ranks ranks;
    const struct ft_snapshot *s;
    struct slice *slice; /* in the order of members and times */
    int nslices, dropped;
    int nops; /* the first slices are operations, the others ranks that are outside calls */
    uint64_t *idle_ns; /* [nmembers] when its last slice ended; 0: it has none */
    int *running;      /* [nmembers] the first slice that runs */
    uint64_t base_ns;
    uint64_t arrows;
    const char *comma;
};

/* ---- JSON ------------------------------------------------------------------------------------ */

static void put_string(FILE *out, const char *text)
{
    fputc('"', out);
    for (const char *c = text; *c; c++) {
        if (*c == '"' || *c == '\\')
            fputc('\\', out);
        fputc(*c < ' ' || *c > '~' ? '?' : *c, out);
    }
    fputc('"', out);
}

/* Microseconds, as the format wants them. */
static void put_time(const struct trace *t, const char *key, uint64_t ns)
{
    fprintf(t->out, ",\"%s\":%" PRIu64 ".%03d", key, ns / 1000, (int)(ns % 1000));
}

/* Where every event begins: its phase and its track. */
static void begin_event(struct trace *t, const char *phase, int row, uint64_t track)
{
    fprintf(t->out, "%s\n{\"ph\":\"%s\",\"pid\":%d,\"tid\":%" PRIu64, t->comma, phase, row + 1,
            track);
    t->comma = ",";
}

static uint64_t track_of(const struct slice *slice)
{
    return (uint64_t)slice->member * LANES + (uint64_t)slice->lane + 1;
}

/* ---- collecting ------------------------------------------------------------------------------ */

static int row_of_member(const struct trace *t, int member)
{
    int engine = member < 0 || member >= t->s->nmembers ? -1 : t->s->members[member].engine;
    return engine < 0 || engine >= t->s->nengines ? -1 : t->ranks.by_engine[engine];
}

/* Times in order, none later than the snapshot. */
static void order_times(const struct trace *t, struct slice *slice)
{
    slice->end_ns = slice->runs ? t->s->now_ns : ft_min(slice->end_ns, t->s->now_ns);
    slice->begin_ns = ft_min(slice->begin_ns, slice->end_ns);
    if (slice->called_ns == 0 || slice->called_ns > slice->begin_ns)
        slice->called_ns = slice->begin_ns;
}

static void add_op(struct trace *t, const struct ft_snap_op *op)
{
    int row = row_of_member(t, op->member);
    bool message = (op->sig & 15) == FT_SEND;
    if (row < 0 || op->started_ns == 0)
        return;
    int me = t->s->members[op->member].rank;
    struct slice slice = {.member = op->member,
                          .row = row,
                          .called_ns = op->called_ns,
                          .begin_ns = op->started_ns,
                          .end_ns = op->ended_ns,
                          .sig = op->sig,
                          .seq = op->seq,
                          .from = !message       ? -1
                                  : op->receives ? op->peer
                                                 : me,
                          .to = !message       ? -1
                                : op->receives ? me
                                               : op->peer,
                          .receives = op->receives,
                          .runs = op->ended_ns == 0};
    order_times(t, &slice);
    t->slice[t->nslices++] = slice;
}

static int by_member(const void *a, const void *b)
{
    const struct slice *x = a, *y = b;
    if (x->member != y->member)
        return x->member < y->member ? -1 : 1;
    return x->begin_ns < y->begin_ns ? -1 : x->begin_ns > y->begin_ns;
}

/* Gives each slice the first track on which nothing runs. */
static void choose_lanes(struct trace *t)
{
    uint64_t busy_ns[LANES] = {0};
    int kept = 0, lanes = 0;
    for (int i = 0; i < t->nslices; i++) {
        struct slice slice = t->slice[i];
        if (kept == 0 || t->slice[kept - 1].member != slice.member)
            lanes = 0;
        for (slice.lane = 0; slice.lane < lanes && busy_ns[slice.lane] > slice.begin_ns;)
            slice.lane++;
        if (slice.lane == LANES) {
            t->dropped++;
            continue;
        }
        lanes = slice.lane == lanes ? lanes + 1 : lanes;
        busy_ns[slice.lane] = slice.end_ns;
        t->slice[kept++] = slice;
    }
    t->nslices = kept;
}

/* The member for whom a member waits now; -1: it is not known. */
static int waited_for(const struct trace *t, int member)
{
    const struct ft_snap_member *m = &t->s->members[member];
    const struct rank_place *place = m->wait.peer < 0
                                         ? NULL
                                         : ranks_find_place(&t->ranks, m->ctx, m->wait.peer);
    return place ? place->member : -1;
}

/* A rank for which others wait and in which nothing runs is outside calls; an arrow needs a slice
 * to begin in. */
static void add_outside(struct trace *t, int member)
{
    const struct ft_snap_member *m = &t->s->members[member];
    uint64_t since_ns = t->idle_ns[member] ? t->idle_ns[member] : m->last.called_ns;
    struct slice slice = {.member = member,
                          .row = row_of_member(t, member),
                          .begin_ns = since_ns ? since_ns : t->s->now_ns,
                          .from = -1,
                          .to = -1,
                          .runs = true,
                          .outside = true};
    if (slice.row < 0)
        return;
    order_times(t, &slice);
    t->running[member] = t->nslices;
    t->slice[t->nslices++] = slice;
}

static void index_slices(struct trace *t)
{
    for (int i = 0; i < t->s->nmembers; i++)
        t->running[i] = -1;
    for (int i = 0; i < t->nslices; i++) {
        int member = t->slice[i].member;
        t->idle_ns[member] = ft_max(t->idle_ns[member], t->slice[i].end_ns);
        if (t->slice[i].runs && t->running[member] < 0)
            t->running[member] = i;
    }
}

static void collect(struct trace *t)
{
    const struct ft_snapshot *s = t->s;
    for (int i = 0; i < s->nops; i++)
        add_op(t, &s->ops[i]);
    qsort(t->slice, (size_t)t->nslices, sizeof *t->slice, by_member);
    choose_lanes(t);
    index_slices(t);
    t->nops = t->nslices;
    for (int i = 0; i < s->nmembers; i++) {
        int peer = t->running[i] < 0 ? -1 : waited_for(t, i);
        if (peer >= 0 && t->running[peer] < 0)
            add_outside(t, peer);
    }
    t->base_ns = s->now_ns;
    for (int i = 0; i < t->nslices; i++)
        t->base_ns = ft_min(t->base_ns, t->slice[i].called_ns);
}

/* ---- slices ---------------------------------------------------------------------------------- */

static const char *name_of(const struct slice *slice, char *text, size_t size)
{
    if (slice->outside)
        snprintf(text, size, "outside calls");
    else if (slice->receives)
        snprintf(text, size, "Recv(count %" PRIu64 ")", ft_sig_count(slice->sig));
    else
        ft_sig_text(slice->sig, text, size);
    return text;
}

static void put_slice(struct trace *t, const struct slice *slice)
{
    char name[128];
    begin_event(t, "X", slice->row, track_of(slice));
    put_time(t, "ts", slice->begin_ns - t->base_ns);
    put_time(t, "dur", slice->end_ns - slice->begin_ns);
    fputs(slice->outside ? ",\"cat\":\"outside\",\"name\":" : ",\"cat\":\"operation\",\"name\":",
          t->out);
    put_string(t->out, name_of(slice, name, sizeof name));
    fprintf(t->out, ",\"args\":{\"number\":%" PRIu64 ",\"runs\":%s", slice->seq,
            slice->runs ? "true" : "false");
    put_time(t, "called_us", slice->called_ns - t->base_ns);
    put_time(t, "queue_us", slice->begin_ns - slice->called_ns);
    put_time(t, "run_us", slice->end_ns - slice->begin_ns);
    if (slice->from >= 0)
        fprintf(t->out, ",\"from\":%d,\"to\":%d", slice->from, slice->to);
    fputs("}}", t->out);
}

/* The time from the call to the start. */
static void put_queue(struct trace *t, const struct slice *slice, int id)
{
    char name[128];
    if (slice->called_ns == slice->begin_ns)
        return;
    for (int end = 0; end < 2; end++) {
        begin_event(t, end ? "e" : "b", slice->row, track_of(slice));
        put_time(t, "ts", (end ? slice->begin_ns : slice->called_ns) - t->base_ns);
        fprintf(t->out, ",\"cat\":\"queue\",\"id\":%d,\"name\":", id + 1);
        put_string(t->out, name_of(slice, name, sizeof name));
        fputs("}", t->out);
    }
}

/* What was noticed: "rank 3: open -> lost". */
static void name_event(const struct ft_snap_event *e, char *text, size_t size)
{
    if (e->what == FT_MOVED_COMM)
        snprintf(text, size, "communicator %016" PRIx64 ": %s -> %s", e->id,
                 ft_comm_state_name(e->from), ft_comm_state_name(e->to));
    else if (e->what == FT_MOVED_SUSPICION)
        snprintf(text, size, "rank %d: %s", e->rank,
                 e->to ? "no heartbeats, suspected" : "heard again");
    else
        snprintf(text, size, "rank %d: %s -> %s", e->rank, ft_peer_state_name(e->from),
                 ft_peer_state_name(e->to));
}

/* Events in the time of the file: suspicions, proofs, fences, failures. */
static void put_events(struct trace *t)
{
    for (int i = 0; i < t->s->nevents; i++) {
        const struct ft_snap_event *e = &t->s->events[i];
        int row = t->ranks.by_engine[e->engine];
        char name[128];
        if (row < 0 || e->time_ns < t->base_ns || e->time_ns > t->s->now_ns)
            continue;
        begin_event(t, "i", row, 0);
        put_time(t, "ts", e->time_ns - t->base_ns);
        fputs(",\"s\":\"p\",\"cat\":\"event\",\"name\":", t->out);
        name_event(e, name, sizeof name);
        put_string(t->out, name);
        fputs(",\"args\":{\"status\":", t->out);
        put_string(t->out, ft_status_text(e->status));
        fputs("}}", t->out);
    }
}

static void put_track_name(struct trace *t, const struct slice *slice)
{
    const struct ft_snap_member *m = &t->s->members[slice->member];
    char name[80];
    int n = m->name[0] ? snprintf(name, sizeof name, "%.39s", m->name)
                       : snprintf(name, sizeof name, "%016" PRIx64, m->ctx);
    if (slice->lane > 0)
        snprintf(name + n, sizeof name - (size_t)n, " (%d)", slice->lane + 1);
    begin_event(t, "M", slice->row, track_of(slice));
    fputs(",\"name\":\"thread_name\",\"args\":{\"name\":", t->out);
    put_string(t->out, name);
    fputs("}}", t->out);
}

/* Of the operations of a member, the first on each track names it. */
static void put_track_names(struct trace *t)
{
    for (int i = 0, lanes = 0; i < t->nslices; i++) {
        const struct slice *slice = &t->slice[i];
        if (i == 0 || t->slice[i - 1].member != slice->member)
            lanes = slice->outside && t->idle_ns[slice->member] ? LANES : 0;
        if (slice->lane >= lanes) {
            put_track_name(t, slice);
            lanes = slice->lane + 1;
        }
    }
}

static void put_process_names(struct trace *t)
{
    for (int i = 0; i < t->ranks.n; i++) {
        const struct rank_row *row = &t->ranks.row[i];
        const struct ft_snap_engine *engine = row->engine < 0 ? NULL : &t->s->engines[row->engine];
        char name[128];
        if (engine)
            snprintf(name, sizeof name, "rank %d (pid %d on %.63s)", row->rank, engine->pid,
                     engine->hostname);
        else
            snprintf(name, sizeof name, "rank %d (no telemetry)", row->rank);
        begin_event(t, "M", i, 0);
        fputs(",\"name\":\"process_name\",\"args\":{\"name\":", t->out);
        put_string(t->out, name);
        fputs("}}", t->out);
        begin_event(t, "M", i, 0);
        fprintf(t->out, ",\"name\":\"process_sort_index\",\"args\":{\"sort_index\":%d}}", i);
    }
}

/* ---- arrows ---------------------------------------------------------------------------------- */

/* From one slice to another, at the first moment in which both are. Without one there is none. */
static void put_arrow(struct trace *t, const struct slice *from, const struct slice *to)
{
    uint64_t when_ns = ft_max(from->begin_ns, to->begin_ns);
    if (when_ns > from->end_ns || when_ns > to->end_ns || track_of(from) == track_of(to))
        return;
    t->arrows++;
    for (int end = 0; end < 2; end++) {
        const struct slice *slice = end ? to : from;
        begin_event(t, end ? "f" : "s", slice->row, track_of(slice));
        put_time(t, "ts", when_ns - t->base_ns);
        fprintf(t->out, ",\"cat\":\"wait\",\"name\":\"waited for\",\"id\":%" PRIu64 "%s}",
                t->arrows, end ? ",\"bp\":\"e\"" : "");
    }
}

static int by_number(uint64_t a, uint64_t b)
{
    return a < b ? -1 : a > b;
}

static int by_group(const void *a, const void *b, void *members)
{
    const struct slice *x = a, *y = b;
    const struct ft_snap_member *m = members;
    int order = by_number(m[x->member].ctx, m[y->member].ctx);
    order = order ? order : (x->from > y->from) - (x->from < y->from);
    order = order ? order : (x->to > y->to) - (x->to < y->to);
    return order ? order : by_number(x->seq, y->seq);
}

static void put_group(struct trace *t, const struct slice *slice, int n)
{
    const struct slice *first = slice, *last = slice;
    for (int i = 1; i < n; i++) {
        first = slice[i].begin_ns < first->begin_ns ? &slice[i] : first;
        last = slice[i].begin_ns > last->begin_ns ? &slice[i] : last;
    }
    if (first->begin_ns < last->begin_ns)
        put_arrow(t, last, first);
}

static void put_arrows(struct trace *t)
{
    for (int i = 0; i < t->s->nmembers; i++) {
        int peer = t->running[i] < 0 || t->running[i] >= t->nops ? -1 : waited_for(t, i);
        if (peer >= 0 && t->running[peer] >= 0)
            put_arrow(t, &t->slice[t->running[peer]], &t->slice[t->running[i]]);
    }
    qsort_r(t->slice, (size_t)t->nops, sizeof *t->slice, by_group, t->s->members);
    for (int i = 0, n; i < t->nops; i += n) {
        for (n = 1; i + n < t->nops && by_group(&t->slice[i], &t->slice[i + n], t->s->members) == 0;
             n++) {}
        put_group(t, &t->slice[i], n);
    }
}

/* ---- the file -------------------------------------------------------------------------------- */

static void put_trace(FILE *out, const void *what)
{
    struct trace trace = *(const struct trace *)what, *t = &trace;
    t->out = out;
    t->comma = "";
    fprintf(out,
            "{\"displayTimeUnit\":\"ns\",\"otherData\":{\"snapshot_ns\":\"%" PRIu64
            "\",\"left_out\":\"%d\"},\n\"traceEvents\":[",
            t->s->real_ns, t->dropped);
    put_process_names(t);
    put_track_names(t);
    for (int i = 0; i < t->nslices; i++) {
        put_slice(t, &t->slice[i]);
        put_queue(t, &t->slice[i], i);
    }
    put_events(t);
    put_arrows(t);
    fputs("\n]}\n", out);
}

static int write_slices(struct trace *t, const char *path)
{
    size_t members = (size_t)t->s->nmembers + 1;
    t->slice = calloc((size_t)t->s->nops + members, sizeof *t->slice);
    t->idle_ns = calloc(members, sizeof *t->idle_ns);
    t->running = calloc(members, sizeof *t->running);
    int status;
    if (t->slice && t->idle_ns && t->running) {
        collect(t);
        status = write_whole(path, put_trace, t);
    } else {
        status = ft_fail(FT_NOMEM, "no memory for %d operations", t->s->nops);
    }
    free(t->slice);
    free(t->idle_ns);
    free(t->running);
    return status;
}

int write_trace(const struct ft_snapshot *s, const struct report *report, const char *path)
{
    struct trace t = {.s = s};
    int status = ranks_open(&t.ranks, s, report, false);
    if (status != FT_OK)
        return status;
    status = write_slices(&t, path);
    ranks_close(&t.ranks);
    return status;
}

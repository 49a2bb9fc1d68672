/*
 * Writes what was found as metrics for node_exporter's textfile collector. Counters of calls and
 * bytes are since a communicator was made; what NCCL's Inspector also tells has its names and
 * labels, over the operations that the telemetry still has.
 */
#include "diagnose_inspector.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define HOSTS_MOST 1000000 /* of a communicator */

struct metrics {
    FILE *out;
    const struct ft_snapshot *s;
    const struct report *report;
    struct ranks ranks;
    struct timing *timing; /* [s->nops] */
    int ntimings;
    int *hosts; /* [nmembers] hosts of its communicator */
    bool each_rank;
};

/* ---- the format ------------------------------------------------------------------------------ */

static void put_help(FILE *out, const char *name, const char *type, const char *help)
{
    fprintf(out, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, type);
}

static void put_label(FILE *out, const char *before, const char *name, const char *value)
{
    fprintf(out, "%s%s=\"", before, name);
    for (const char *c = value; *c; c++) {
        if (*c == '"' || *c == '\\')
            fputc('\\', out);
        fputc(*c < ' ' || *c > '~' ? '?' : *c, out);
    }
    fputc('"', out);
}

static void put_number_label(FILE *out, const char *before, const char *name, int value)
{
    fprintf(out, "%s%s=\"%d\"", before, name, value);
}

static int row_of_engine(const struct metrics *m, int engine)
{
    return engine < 0 || engine >= m->s->nengines ? -1 : m->ranks.by_engine[engine];
}

/* Opens the labels of a rank. */
static void put_rank_labels(const struct metrics *m, int row)
{
    const struct rank_row *r = &m->ranks.row[row];
    char job[24];
    snprintf(job, sizeof job, "%016" PRIx64, r->world);
    put_label(m->out, "{", "job_id", job);
    put_number_label(m->out, ",", "rank", r->rank);
    put_label(m->out, ",", "node", r->engine < 0 ? "" : m->s->engines[r->engine].hostname);
    put_number_label(m->out, ",", "pid", r->engine < 0 ? 0 : m->s->engines[r->engine].pid);
}

static void put_comm_id(const struct metrics *m, uint64_t ctx)
{
    char id[24];
    snprintf(id, sizeof id, "%016" PRIx64, ctx);
    put_label(m->out, ",", "comm", id);
}

static void put_comm_labels(const struct metrics *m, const struct ft_snap_member *member)
{
    put_comm_id(m, member->ctx);
    put_label(m->out, ",", "comm_name", member->name);
}

/* ---- verdicts -------------------------------------------------------------------------------- */

static void put_state(const struct metrics *m)
{
    put_help(m->out, "ftccl_healthy", "gauge", "1: no verdict, and all telemetry could be read.");
    fprintf(m->out, "ftccl_healthy %d\n", m->report->found == 0 && !m->report->trouble[0]);
    put_help(m->out, "ftccl_diagnosis_time_seconds", "gauge", "When this was found, since 1970.");
    fprintf(m->out, "ftccl_diagnosis_time_seconds %.3f\n", (double)m->report->real_ns / 1e9);
    put_help(m->out, "ftccl_unreadable_files", "gauge", "Telemetry that could not be read.");
    fprintf(m->out, "ftccl_unreadable_files %d\n", m->report->unreadable);
}

static void put_kinds(const struct metrics *m)
{
    put_help(m->out, "ftccl_verdicts", "gauge", "Independent causes of this kind.");
    for (int kind = FT_VERDICT_HEALTHY + 1; kind < FT_VERDICTS; kind++) {
        int n = 0;
        for (int i = 0; i < m->report->found; i++)
            n += (int)m->report->verdicts[i].kind == kind;
        fprintf(m->out, "ftccl_verdicts{kind=\"%s\"} %d\n",
                ft_verdict_name((enum ft_verdict_kind)kind), n);
    }
}

/* Where the culprit is in its communicator, and where in the job. */
static void put_culprit_labels(const struct metrics *m, const struct ft_culprit *c)
{
    int row = ranks_of_culprit(&m->ranks, c), peer = ranks_of_culprit_peer(&m->ranks, c);
    put_label(m->out, ",", "what", c->peer >= 0 ? "link" : "rank");
    put_comm_id(m, c->ctx);
    put_number_label(m->out, ",", "comm_rank", c->rank);
    if (c->peer >= 0)
        put_number_label(m->out, ",", "comm_peer", c->peer);
    if (row >= 0)
        put_number_label(m->out, ",", "rank", m->ranks.row[row].rank);
    if (peer >= 0)
        put_number_label(m->out, ",", "peer", m->ranks.row[peer].rank);
    if (c->pid > 0)
        put_number_label(m->out, ",", "pid", c->pid);
    if (c->engine >= 0 && c->engine < m->s->nengines)
        put_label(m->out, ",", "node", m->s->engines[c->engine].hostname);
}

static void put_culprits(const struct metrics *m)
{
    put_help(m->out, "ftccl_culprit_waiting_seconds", "gauge",
             "How long the job has waited because of this rank or link.");
    for (int i = 0; i < m->report->found; i++)
        for (int k = 0; k < m->report->verdicts[i].nculprits && k < FT_CULPRITS; k++) {
            const struct ft_verdict *v = &m->report->verdicts[i];
            fprintf(m->out, "ftccl_culprit_waiting_seconds{verdict=\"%d\",kind=\"%s\"", i,
                    ft_verdict_name(v->kind));
            put_culprit_labels(m, &v->culprits[k]);
            fprintf(m->out, "} %.3f\n", (double)v->since_ns / 1e9);
        }
}

static void put_rank_states(const struct metrics *m)
{
    static const char *const name[] = {
#define X(name, text) #name,
        RANK_STATES(X)
#undef X
    };
    int count[RANK_STATE_COUNT] = {0};
    for (int i = 0; i < m->ranks.n; i++)
        count[m->ranks.row[i].state]++;
    put_help(m->out, "ftccl_ranks", "gauge", "Ranks by what they do.");
    for (int i = 0; i < RANK_STATE_COUNT; i++) {
        char lower[16] = "";
        for (size_t k = 0; name[i][k] && k + 1 < sizeof lower; k++)
            lower[k] = (char)(name[i][k] | 0x20);
        fprintf(m->out, "ftccl_ranks{state=\"%s\"} %d\n", lower, count[i]);
    }
}

/* ---- counters -------------------------------------------------------------------------------- */

static void put_calls_of(const struct metrics *m, const char *name, bool done)
{
    for (int i = 0; i < m->s->nmembers; i++) {
        const struct ft_snap_member *member = &m->s->members[i];
        int row = row_of_engine(m, member->engine);
        for (int kind = 0; row >= 0 && member->open && kind < FT_KINDS; kind++) {
            if (!member->kind_called[kind])
                continue;
            fputs(name, m->out);
            put_rank_labels(m, row);
            put_comm_labels(m, member);
            put_label(m->out, ",", "call", ft_kind_name((enum ft_kind)kind));
            fprintf(m->out, "} %" PRIu64 "\n",
                    done ? member->kind_done[kind] : member->kind_called[kind]);
        }
    }
}

static void put_calls(const struct metrics *m)
{
    put_help(m->out, "ftccl_calls_total", "counter", "Calls of the user.");
    put_calls_of(m, "ftccl_calls_total", false);
    put_help(m->out, "ftccl_done_total", "counter", "Operations that ended without an error.");
    put_calls_of(m, "ftccl_done_total", true);
    put_help(m->out, "ftccl_waiting_seconds", "gauge",
             "How long the running operation has not moved.");
    for (int i = 0; i < m->s->nmembers; i++) {
        const struct ft_snap_member *member = &m->s->members[i];
        int row = row_of_engine(m, member->engine);
        if (row < 0 || !member->open)
            continue;
        fputs("ftccl_waiting_seconds", m->out);
        put_rank_labels(m, row);
        put_comm_labels(m, member);
        fprintf(m->out, "} %.3f\n", (double)ranks_waiting_ns(m->s, member) / 1e9);
    }
}

/* A link's numbers, summed for each rank, direction and transport: links of an engine follow each
 * other. */
struct sum {
    uint64_t bytes, messages, wait_ns;
};

static void put_sum(const struct metrics *m, const char *name, const struct ft_snap_link *like,
                    double value)
{
    fputs(name, m->out);
    put_rank_labels(m, row_of_engine(m, like->engine));
    put_label(m->out, ",", "direction", like->sender ? "sent" : "received");
    put_label(m->out, ",", "transport", like->transport);
    fprintf(m->out, "} %.16g\n", value);
}

static bool is_alike(const struct ft_snap_link *a, const struct ft_snap_link *b)
{
    return a->engine == b->engine && a->sender == b->sender &&
           !strncmp(a->transport, b->transport, sizeof a->transport);
}

static bool is_first(const struct metrics *m, int link)
{
    for (int i = link - 1; i >= 0 && m->s->links[i].engine == m->s->links[link].engine; i--)
        if (is_alike(&m->s->links[i], &m->s->links[link]))
            return false;
    return row_of_engine(m, m->s->links[link].engine) >= 0;
}

static struct sum sum_of(const struct metrics *m, int link)
{
    struct sum sum = {0};
    for (int i = link; i < m->s->nlinks && m->s->links[i].engine == m->s->links[link].engine; i++)
        if (is_alike(&m->s->links[i], &m->s->links[link])) {
            sum.bytes += m->s->links[i].bytes;
            sum.messages += m->s->links[i].messages;
            sum.wait_ns += m->s->links[i].wait_ns;
        }
    return sum;
}

static void put_links(const struct metrics *m)
{
    static const char *const name[] = {"ftccl_link_bytes_total", "ftccl_link_messages_total",
                                       "ftccl_link_waiting_seconds_total"};
    static const char *const help[] = {"Bytes over links.", "Messages over links.",
                                       "Sampled time in which operations waited for links."};
    for (int which = 0; which < 3; which++) {
        put_help(m->out, name[which], "counter", help[which]);
        for (int i = 0; i < m->s->nlinks; i++) {
            if (!is_first(m, i))
                continue;
            struct sum sum = sum_of(m, i);
            const double value[] = {(double)sum.bytes, (double)sum.messages,
                                    (double)sum.wait_ns / 1e9};
            put_sum(m, name[which], &m->s->links[i], value[which]);
        }
    }
}

/* ---- large messages, and clocks ----------------------------------------------------------------
 */

/* Adds up the links of a rank. The latencies of an engine follow each other. */
static struct ft_latency add_latencies(const struct metrics *m, int first, int part)
{
    struct ft_latency sum = {0};
    for (int i = first;
         i < m->s->nlatencies && m->s->latencies[i].engine == m->s->latencies[first].engine; i++) {
        const struct ft_latency *one = &m->s->latencies[i].part[part];
        sum.count += one->count;
        sum.sum_ns += one->sum_ns;
        for (int b = 0; b < FT_LATENCY_BUCKETS; b++)
            sum.bucket[b] += one->bucket[b];
    }
    return sum;
}

static void put_latency(const struct metrics *m, int row, int part, const struct ft_latency *l)
{
    static const char *const parts[FT_LATENCY_PARTS] = {"credit", "network", "consumer"};
    uint64_t below = 0;
    for (int b = 0; b < FT_LATENCY_BUCKETS; b++) {
        char le[32] = "+Inf";
        below += l->bucket[b];
        if (b + 1 < FT_LATENCY_BUCKETS)
            snprintf(le, sizeof le, "%.9g", FT_LATENCY_FIRST_NS * pow(4, b) / 1e9);
        fputs("ftccl_large_message_seconds_bucket", m->out);
        put_rank_labels(m, row);
        put_label(m->out, ",", "part", parts[part]);
        put_label(m->out, ",", "le", le);
        fprintf(m->out, "} %" PRIu64 "\n", below);
    }
    for (int which = 0; which < 2; which++) {
        fputs(which ? "ftccl_large_message_seconds_count" : "ftccl_large_message_seconds_sum",
              m->out);
        put_rank_labels(m, row);
        put_label(m->out, ",", "part", parts[part]);
        fprintf(m->out, "} %.16g\n", which ? (double)below : (double)l->sum_ns / 1e9);
    }
}

static void put_latencies(const struct metrics *m)
{
    put_help(m->out, "ftccl_large_message_seconds", "histogram",
             "How long messages of 16 KiB and more waited: for credit, in the network (samples), "
             "for the receiver.");
    for (int i = 0; i < m->s->nlatencies; i++) {
        int row = row_of_engine(m, m->s->latencies[i].engine);
        if (row < 0 || (i > 0 && m->s->latencies[i - 1].engine == m->s->latencies[i].engine))
            continue;
        for (int part = 0; part < FT_LATENCY_PARTS; part++) {
            struct ft_latency sum = add_latencies(m, i, part);
            if (sum.count > 0)
                put_latency(m, row, part, &sum);
        }
    }
}

static void put_clocks(const struct metrics *m)
{
    for (int which = 0; which < 2; which++) {
        const char *name = which ? "ftccl_clock_error_seconds" : "ftccl_clock_offset_seconds";
        put_help(m->out, name, "gauge",
                 which ? "Bound of the error of that."
                       : "How far the peer's clock (CLOCK_MONOTONIC) is ahead of the rank's.");
        for (int i = 0; i < m->s->nclocks; i++) {
            const struct ft_snap_clock *c = &m->s->clocks[i];
            int row = row_of_engine(m, c->engine), peer = ranks_of_id(&m->ranks, c->peer);
            if (row < 0 || peer < 0)
                continue;
            fputs(name, m->out);
            put_rank_labels(m, row);
            put_number_label(m->out, ",", "peer", m->ranks.row[peer].rank);
            fprintf(m->out, "} %.9f\n",
                    which ? (double)c->error_ns / 1e9 : (double)c->offset_ns / 1e9);
        }
    }
}

/* ---- what NCCL's Inspector tells, too -------------------------------------------------------- */

/* Operations of a rank that are counted together: by call and power of ten of their size. */
struct timing {
    int member, kind;
    bool receives;
    char size[24];           /* "1-2MB" */
    double time_us, bus_gbs; /* bus_gbs 0: not defined */
};

/* The range of a size, as the Inspector writes it. */
static void name_size(double bytes, char *text, size_t size)
{
    static const char *const unit[] = {"B", "KB", "MB", "GB", "TB"};
    size_t i = 0;
    for (; bytes >= 1024 && i + 1 < FT_ARRAY_LEN(unit); i++)
        bytes /= 1024;
    snprintf(text, size, "%.0f-%.0f%s", floor(bytes), floor(bytes) + 1, unit[i]);
}

double inspector_bytes(uint64_t sig, int n, double *share)
{
    enum ft_kind kind = (enum ft_kind)(sig & 15);
    double bytes = (double)ft_sig_count(sig) * (double)ft_type_size((enum ft_type)(sig >> 4 & 15));
    double part = n > 0 ? (double)(n - 1) / n : 0;
    bool blocks = kind == FT_ALLGATHER || kind == FT_REDUCESCATTER || kind == FT_ALLTOALL ||
                  kind == FT_GATHER || kind == FT_SCATTER;
    *share = kind == FT_ALLREDUCE ? 2 * part : blocks ? part : 1;
    return blocks ? bytes * n : bytes;
}

bool inspector_is_sound(const struct ft_snapshot *s, const struct ft_snap_op *op)
{
    return op->member >= 0 && op->member < s->nmembers && op->done &&
           op->ended_ns > op->started_ns && (op->sig & 15) < FT_KINDS &&
           (op->sig >> 4 & 15) < FT_TYPES;
}

static bool take_timing(const struct metrics *m, const struct ft_snap_op *op, struct timing *out)
{
    if (!inspector_is_sound(m->s, op) || row_of_engine(m, m->s->members[op->member].engine) < 0)
        return false;
    double share, bytes = inspector_bytes(op->sig, m->s->members[op->member].nranks, &share);
    double ns = (double)(op->ended_ns - op->started_ns);
    *out = (struct timing){.member = op->member,
                           .kind = (int)(op->sig & 15),
                           .receives = op->receives,
                           .time_us = ns / 1e3,
                           .bus_gbs = bytes * share / ns};
    name_size(bytes, out->size, sizeof out->size);
    return true;
}

static int by_labels(const void *a, const void *b)
{
    const struct timing *x = a, *y = b;
    int order = (x->member > y->member) - (x->member < y->member);
    order = order ? order : x->kind - y->kind;
    order = order ? order : x->receives - y->receives;
    return order ? order : strcmp(x->size, y->size);
}

static void list_timings(struct metrics *m)
{
    for (int i = 0; i < m->s->nops; i++)
        m->ntimings += take_timing(m, &m->s->ops[i], &m->timing[m->ntimings]);
    qsort(m->timing, (size_t)m->ntimings, sizeof *m->timing, by_labels);
}

static void put_timing_labels(const struct metrics *m, const struct timing *t)
{
    const struct ft_snap_member *member = &m->s->members[t->member];
    bool message = t->kind == FT_SEND;
    put_rank_labels(m, row_of_engine(m, member->engine));
    put_comm_labels(m, member);
    put_number_label(m->out, ",", "n_nodes", m->hosts[t->member]);
    put_number_label(m->out, ",", "nranks", member->nranks);
    put_label(m->out, ",", message ? "p2p_operation" : "collective",
              t->receives ? "Recv" : ft_kind_name((enum ft_kind)t->kind));
    put_label(m->out, ",", "message_size", t->size);
}

/* As the Inspector: the mean of times, the geometric mean of bandwidths. */
static void put_mean(const struct metrics *m, const struct timing *t, int n, bool bus)
{
    double sum = 0;
    for (int i = 0; i < n; i++)
        sum += !bus ? t[i].time_us : t[i].bus_gbs > 0 ? log(t[i].bus_gbs) : -INFINITY;
    put_timing_labels(m, t);
    fprintf(m->out, "} %.6g\n", bus ? exp(sum / n) : sum / n);
}

static void put_timings(const struct metrics *m, const char *name, bool messages, bool bus)
{
    put_help(m->out, name, "gauge",
             bus ? "Bus bandwidth in GB/s, of the latest operations."
                 : "Execution time in microseconds, of the latest operations.");
    for (int i = 0, n; i < m->ntimings; i += n) {
        for (n = 1; i + n < m->ntimings && by_labels(&m->timing[i], &m->timing[i + n]) == 0; n++) {}
        if (messages == (m->timing[i].kind == FT_SEND)) {
            fputs(name, m->out);
            put_mean(m, &m->timing[i], n, bus);
        }
    }
}

/* ---- hosts of communicators ------------------------------------------------------------------ */

static int by_value(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return x < y ? -1 : x > y;
}

static int count_hosts(const struct ranks *r, int first, int n, uint64_t *host)
{
    int hosts = 0;
    for (int i = 0; i < n; i++) {
        int engine = r->row[r->place[first + i].row].engine;
        host[i] = engine < 0 ? 0 : r->s->engines[engine].host;
    }
    qsort(host, (size_t)n, sizeof *host, by_value);
    for (int i = 0; i < n; i++)
        hosts += host[i] && (i == 0 || host[i] != host[i - 1]);
    return hosts;
}

/* A roster numbers the hosts of its communicator from 0: for each place the number of its host, and
 * one more. NULL: no memory. */
static int *number_hosts(const struct ranks *r)
{
    int *number = calloc((size_t)r->nplaces + 1, sizeof *number);
    for (int i = 0; number && i < r->s->nseats; i++) {
        const struct ft_snap_seat *seat = &r->s->seats[i];
        const struct rank_place *place = ranks_find_place(r, seat->ctx, seat->rank);
        if (place && seat->host < HOSTS_MOST)
            number[place - r->place] = (int)seat->host + 1;
    }
    return number;
}

int *inspector_hosts(const struct ranks *r)
{
    int *out = calloc((size_t)r->s->nmembers + 1, sizeof *out), *number = number_hosts(r);
    uint64_t *host = calloc((size_t)r->nplaces + 1, sizeof *host);
    for (int i = 0, n; out && number && host && i < r->nplaces; i += n) {
        for (n = 1; i + n < r->nplaces && r->place[i + n].ctx == r->place[i].ctx; n++) {}
        int hosts = count_hosts(r, i, n, host);
        for (int k = i; k < i + n; k++)
            hosts = number[k] > hosts ? number[k] : hosts;
        for (int k = i; k < i + n; k++)
            if (r->place[k].member >= 0)
                out[r->place[k].member] = hosts;
    }
    if (!host || !number) {
        free(out);
        out = NULL;
    }
    free(host);
    free(number);
    return out;
}

/* ---- the file -------------------------------------------------------------------------------- */

static void put_metrics(FILE *out, const void *what)
{
    struct metrics metrics = *(const struct metrics *)what, *m = &metrics;
    m->out = out;
    put_state(m);
    put_kinds(m);
    put_culprits(m);
    put_rank_states(m);
    if (!m->each_rank)
        return;
    put_calls(m);
    put_links(m);
    put_latencies(m);
    put_clocks(m);
    put_timings(m, "nccl_bus_bandwidth_gbs", false, true);
    put_timings(m, "nccl_collective_exec_time_microseconds", false, false);
    put_timings(m, "nccl_p2p_bus_bandwidth_gbs", true, true);
    put_timings(m, "nccl_p2p_exec_time_microseconds", true, false);
}

static int write_all(struct metrics *m, const char *path)
{
    m->timing = calloc((size_t)m->s->nops + 1, sizeof *m->timing);
    m->hosts = inspector_hosts(&m->ranks);
    int status = FT_NOMEM;
    if (m->timing && m->hosts) {
        list_timings(m);
        status = FT_OK;
        if (path)
            status = write_whole(path, put_metrics, m);
        else
            put_metrics(m->out, m);
    } else {
        ft_fail(FT_NOMEM, "no memory for %d operations", m->s->nops);
    }
    free(m->timing);
    free(m->hosts);
    return status;
}

static int open_and_write(struct metrics *m, const char *path)
{
    int status = ranks_open(&m->ranks, m->s, m->report, false);
    if (status != FT_OK)
        return status;
    status = write_all(m, path);
    ranks_close(&m->ranks);
    return status;
}

int write_metrics(const struct ft_snapshot *s, const struct report *report, const char *path)
{
    struct metrics m = {.s = s, .report = report, .each_rank = true};
    return open_and_write(&m, path);
}

int print_metrics(FILE *out, const struct ft_snapshot *s, const struct report *report, bool ranks)
{
    struct metrics m = {.out = out, .s = s, .report = report, .each_rank = ranks};
    return open_and_write(&m, NULL);
}

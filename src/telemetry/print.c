/*
 * Prints an image as text for people: the process, its communicators, the operations that have not
 * ended and the last ones that have, its links, and the last events. Enum values come from the
 * file, so the functions that name them accept any number.
 */
#include "format.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define LAST_ENDED 16
#define MOST_RUNNING 64
#define LAST_EVENTS 64

/* Writes a time span such as "1.5 s" or "23.0 ms" to buf, which has 24 bytes. */
static const char *format_span(char *buf, uint64_t from_ns, uint64_t to_ns)
{
    if (from_ns == 0 || to_ns < from_ns)
        return "-";
    double ns = (double)(to_ns - from_ns);
    if (ns < 1e3)
        snprintf(buf, 24, "%.0f ns", ns);
    else if (ns < 1e6)
        snprintf(buf, 24, "%.1f us", ns / 1e3);
    else if (ns < 1e9)
        snprintf(buf, 24, "%.1f ms", ns / 1e6);
    else
        snprintf(buf, 24, "%.1f s", ns / 1e9);
    return buf;
}

static const char *process_text(const struct ft_tm_header *h)
{
    char state;
    uint64_t start;
    if (h->pid_ns != ft_tm_pid_ns())
        return "in another pid namespace";
    if (!ft_tm_process((int)h->pid, &state, &start) || start != h->pid_start)
        return "gone";
    switch (state) {
    case 'R':
        return "running";
    case 'S':
        return "sleeping";
    case 'D':
        return "sleeping uninterruptibly";
    case 'T':
        return "stopped";
    case 't':
        return "stopped by a debugger";
    case 'Z':
    case 'X':
        return "dead";
    default:
        return "alive";
    }
}

static void print_process(FILE *out, const struct ft_tm_header *h, uint64_t now_ns)
{
    char age[24], when[32] = "?";
    time_t real = (time_t)(h->opened_real_ns / 1000000000u);
    struct tm tm;
    if (gmtime_r(&real, &tm))
        strftime(when, sizeof when, "%Y-%m-%dT%H:%M:%SZ", &tm);
    fprintf(out,
            "process %u (%s) on %s: %s; opened %s, %s ago; engine %016" PRIx64 ", host %016" PRIx64
            "\n",
            h->pid, h->program, h->hostname, process_text(h), when,
            format_span(age, h->opened_ns, now_ns), h->engine, h->host);
    fprintf(out, "  %" PRIu64 " operations recorded", h->ops);
    if (h->lost_comms)
        fprintf(out, "; %" PRIu64 " communicators and %" PRIu64 " operations not (table full)",
                h->lost_comms, h->lost_ops);
    if (h->lost_links)
        fprintf(out, "; %" PRIu64 " links not (table full)", h->lost_links);
    fputc('\n', out);
}

static void print_comms(FILE *out, const struct ft_image *image)
{
    fprintf(out, "  communicators:\n    row context          epoch rank/size state       issued    "
                 "  ended failed last-done name\n");
    for (int i = 0; i < FT_TM_COMMS; i++) {
        const struct ft_tm_comm *c = &image->file.comm[i];
        if (c->state == FT_TM_FREE && !image->comm_torn[i])
            continue;
        const char *state = image->comm_torn[i]         ? "torn"
                            : c->state == FT_TM_OPEN    ? "open"
                            : c->state == FT_TM_CLOSED  ? "closed"
                            : c->state == FT_TM_JOINING ? "joins"
                                                        : "?";
        fprintf(out,
                "    %3d %016" PRIx64 " %5" PRIu64 " %4d/%-4d %-6s %11" PRIu64 " %10" PRIu64
                " %6" PRIu64 " %9" PRIu64 " %s\n",
                i, c->ctx, c->epoch, c->rank, c->nranks, state, c->issued, c->ended, c->failed,
                c->last_done, c->name);
    }
}

/* ---- operations ------------------------------------------------------------------------------ */

static bool op_used(const struct ft_image *image, int slot)
{
    return image->file.op[slot].serial != 0 || image->op_torn[slot];
}

static bool op_ended(const struct ft_tm_op *r)
{
    return r->state >= FT_OP_DONE;
}

static int by_serial(const void *a, const void *b)
{
    const struct ft_tm_op *x = *(const struct ft_tm_op *const *)a,
                          *y = *(const struct ft_tm_op *const *)b;
    return x->serial < y->serial ? -1 : x->serial > y->serial;
}

static void print_op(FILE *out, const struct ft_tm_op *r, bool torn, uint64_t now_ns)
{
    char queued[24], ran[24];
    const uint64_t *t = r->time_ns;
    uint64_t end = t[FT_TM_ENDED] ? t[FT_TM_ENDED] : now_ns;
    fprintf(out, "    comm %u #%" PRIu64 " %s %s", r->comm, r->seq, ft_kind_name(r->kind),
            ft_type_name(r->type));
    if (r->kind < FT_KINDS && ft_kind_reduces(r->kind))
        fprintf(out, " %s", ft_red_name(r->red));
    fprintf(out, " x %" PRIu64 "%s%s: %s", r->count, *r->algo ? ", " : "", r->algo,
            ft_op_state_name(r->state));
    if (r->status != FT_OK)
        fprintf(out, " (%s)", ft_status_text(r->status));
    fprintf(out, "; waited %s, ran %s",
            format_span(queued, t[FT_TM_CREATED], t[FT_TM_STARTED] ? t[FT_TM_STARTED] : end),
            format_span(ran, t[FT_TM_STARTED], end));
    int peer = (int)(r->wait & FT_TM_PEER_MASK) - 1;
    if (!op_ended(r) && t[FT_TM_STARTED]) {
        fprintf(out, "; at step %" PRIu64, r->wait >> FT_TM_STEP_SHIFT);
        if (peer >= 0)
            fprintf(out, r->wait & FT_TM_SENDS ? ", sending to rank %d" : ", waiting for rank %d",
                    peer);
    }
    fprintf(out, "%s\n", torn ? " (caught inside a write)" : "");
}

/* The operations in the ring, the oldest first. Returns their number. */
static size_t list_ops(const struct ft_image *image, const struct ft_tm_op **list)
{
    size_t n = 0;
    for (int i = 0; i < FT_TM_OPS; i++)
        if (op_used(image, i))
            list[n++] = &image->file.op[i];
    qsort(list, n, sizeof *list, by_serial);
    return n;
}

static bool is_torn(const struct ft_image *image, const struct ft_tm_op *op)
{
    return image->op_torn[op - image->file.op];
}

static void print_running(FILE *out, const struct ft_image *image, const struct ft_tm_op **list,
                          size_t n, uint64_t now_ns)
{
    size_t running = 0, shown = 0;
    for (size_t i = 0; i < n; i++)
        running += !op_ended(list[i]);
    fprintf(out, "  not ended: %zu\n", running);
    for (size_t i = 0; i < n && shown < MOST_RUNNING; i++) {
        if (op_ended(list[i]))
            continue;
        print_op(out, list[i], is_torn(image, list[i]), now_ns);
        shown++;
    }
    if (running > shown)
        fprintf(out, "    and %zu more\n", running - shown);
}

static void print_ended(FILE *out, const struct ft_image *image, const struct ft_tm_op **list,
                        size_t n, uint64_t now_ns)
{
    size_t left = 0;
    for (size_t i = 0; i < n; i++)
        left += op_ended(list[i]);
    fprintf(out, "  ended: the last %zu of %zu in the ring\n",
            left < LAST_ENDED ? left : LAST_ENDED, left);
    for (size_t i = 0; i < n; i++)
        if (op_ended(list[i]) && left-- <= LAST_ENDED)
            print_op(out, list[i], is_torn(image, list[i]), now_ns);
}

static void print_ops(FILE *out, const struct ft_image *image, uint64_t now_ns)
{
    const struct ft_tm_op **list = calloc(FT_TM_OPS, sizeof *list);
    if (!list)
        return;
    size_t n = list_ops(image, list);
    print_running(out, image, list, n, now_ns);
    print_ended(out, image, list, n, now_ns);
    free(list);
}

static void print_links(FILE *out, const struct ft_image *image)
{
    fprintf(out, "  links:\n    rank engine           way  transport  state     messages           "
                 "bytes  transfer-ms      wait-ms\n");
    for (int i = 0; i < FT_TM_LINKS; i++) {
        const struct ft_tm_link *l = &image->file.link[i];
        if (l->state == FT_TM_FREE)
            continue;
        fprintf(out,
                "    %4d %016" PRIx64 " %-4s %-10s %-6s %11" PRIu64 " %15" PRIu64
                " %12.3f %12.3f\n",
                l->peer_rank, l->peer, l->sender ? "to" : "from", l->transport,
                l->state == FT_TM_OPEN     ? "open"
                : l->state == FT_TM_CLOSED ? "closed"
                                           : "?",
                l->messages, l->bytes, (double)l->transfer_ns / 1e6, (double)l->wait_ns / 1e6);
    }
}

static const char *end_text(const struct ft_path_end *end, char *text, size_t size)
{
    char ip[INET6_ADDRSTRLEN] = "?";
    inet_ntop(end->family == AF_INET6 ? AF_INET6 : AF_INET, end->ip, ip, sizeof ip);
    snprintf(text, size, end->family == AF_INET6 ? "[%s]:%u" : "%s:%u", ip, end->port);
    return text;
}

static void print_paths(FILE *out, const struct ft_image *image)
{
    fprintf(out, "  paths:\n    engine           from -> to, connections, round trip (least), sent "
                 "again; in the last seconds\n");
    for (int i = 0; i < FT_TM_PATHS; i++) {
        const struct ft_tm_path *p = &image->file.path[i];
        char source[64], destination[64];
        if (p->state != FT_TM_OPEN || image->path_torn[i])
            continue;
        fprintf(out,
                "    %016" PRIx64 " %s -> %s, %u, %.3f ms (%.3f), %" PRIu64 "; %" PRIu64
                " bytes, %.3f ms in the network, %.3f ms without room at the receiver\n",
                p->peer, end_text(&p->source, source, sizeof source),
                end_text(&p->destination, destination, sizeof destination), p->connections,
                (double)p->rtt_ns / 1e6, (double)p->least_rtt_ns / 1e6, p->now.retransmits,
                p->now.bytes - p->before.bytes,
                (double)(p->now.network_ns - p->before.network_ns) / 1e6,
                (double)(p->now.receiver_ns - p->before.receiver_ns) / 1e6);
    }
}

/* "to rank 1: 10.0.0.1:61003 -> 10.0.1.1:4242, class 2 of 4, ..." */
static void print_conn(FILE *out, const struct ft_tm_file *file, const struct ft_tm_conn *c)
{
    char source[64], destination[64], class_text[32] = "?", speed[40] = "?";
    if (c->nclasses > 0 && c->class_index >= 0)
        snprintf(class_text, sizeof class_text, "%d of %d", c->class_index, c->nclasses);
    if (c->ns_per_kib > 0)
        snprintf(speed, sizeof speed, "%.1f", 1024e3 / (double)c->ns_per_kib);
    fprintf(out,
            "to rank %d: %s -> %s, class %s, %" PRIu64 " bytes, %s MB/s, %.3f ms, %" PRIu64 "\n",
            file->link[c->link % FT_TM_LINKS].peer_rank,
            end_text(&c->source, source, sizeof source),
            end_text(&c->destination, destination, sizeof destination), class_text, c->bytes, speed,
            (double)c->rtt_ns / 1e6, c->retransmits);
}

static void print_conns(FILE *out, const struct ft_image *image)
{
    fprintf(
        out,
        "  connections:\n    from -> to, class of paths, sent, speed when it has enough to send, "
        "round trip, sent again\n");
    for (int i = 0; i < FT_TM_CONNS; i++) {
        if (image->file.conn[i].state != FT_TM_OPEN || image->conn_torn[i])
            continue;
        fputs("    ", out);
        print_conn(out, &image->file, &image->file.conn[i]);
    }
}

static void print_latencies(FILE *out, const struct ft_image *image)
{
    static const char *const parts[FT_LATENCY_PARTS] = {"for credit", "in the network",
                                                        "for the receiver"};
    fprintf(out, "  large messages:\n    engine           waited: messages, mean and most ms, in "
                 "buckets of 4 times from 16 us\n");
    for (int i = 0; i < FT_TM_LATENCIES; i++) {
        const struct ft_tm_latency *row = &image->file.latency[i];
        for (int p = 0; p < FT_LATENCY_PARTS && row->state == FT_TM_OPEN; p++) {
            const struct ft_latency *l = &row->part[p];
            if (l->count == 0)
                continue;
            fprintf(out, "    %016" PRIx64 " %s: %" PRIu64 ", %.3f, %.3f;", row->peer, parts[p],
                    l->count, (double)l->sum_ns / (double)l->count / 1e6, (double)l->max_ns / 1e6);
            for (int b = 0; b < FT_LATENCY_BUCKETS; b++)
                fprintf(out, " %u", l->bucket[b]);
            fputc('\n', out);
        }
    }
}

static void print_clocks(FILE *out, const struct ft_image *image)
{
    fprintf(out, "  clocks:\n    engine           ahead by ms, error at most ms, rounds\n");
    for (int i = 0; i < FT_TM_CLOCKS; i++) {
        const struct ft_tm_clock *c = &image->file.clock[i];
        if (c->rounds > 0 && !image->clock_torn[i])
            fprintf(out, "    %016" PRIx64 " %.3f, %.3f, %u\n", c->peer,
                    (double)c->is.offset_ns / 1e6, (double)c->is.error_ns / 1e6, c->rounds);
    }
}

static void print_threads(FILE *out, const struct ft_image *image, uint64_t now_ns)
{
    char age[24];
    fprintf(out, "  threads:\n");
    for (int i = 0; i < FT_TM_THREADS; i++) {
        const struct ft_tm_thread *t = &image->file.thread[i];
        if (t->tid > 0 && t->call != FT_THREAD_NONE)
            fprintf(out, "    %d: %s %s, %s ago, from 0x%" PRIx64 "; %" PRIu64 " calls\n", t->tid,
                    t->waits == 1 ? "waits in" : "has called", ft_thread_call_name(t->call),
                    format_span(age, t->since_ns, now_ns), t->site, t->calls);
    }
}

/* ---- events ---------------------------------------------------------------------------------- */

static int by_time(const void *a, const void *b)
{
    const struct ft_tm_event *x = *(const struct ft_tm_event *const *)a,
                             *y = *(const struct ft_tm_event *const *)b;
    return x->serial < y->serial ? -1 : x->serial > y->serial;
}

static void print_event(FILE *out, const struct ft_tm_event *e, bool torn, uint64_t now_ns)
{
    char age[24];
    fprintf(out, "    %s ago: ", format_span(age, e->time_ns, now_ns));
    if (e->what == FT_MOVED_PEER)
        fprintf(out, "rank %d (engine %016" PRIx64 "): %s -> %s", e->rank, e->id,
                ft_peer_state_name(e->from), ft_peer_state_name(e->to));
    else if (e->what == FT_MOVED_SUSPICION)
        fprintf(out, "rank %d (engine %016" PRIx64 "): %s", e->rank, e->id,
                e->to ? "no heartbeats, suspected" : "heard again");
    else if (e->what == FT_MOVED_LINK)
        fprintf(out, "rank %d (engine %016" PRIx64 "): %d connection%s %s it made again", e->rank,
                e->id, e->to, e->to == 1 ? "" : "s", e->from ? "to" : "from");
    else if (e->what == FT_MOVED_COMM)
        fprintf(out, "communicator %016" PRIx64 ": %s -> %s", e->id, ft_comm_state_name(e->from),
                ft_comm_state_name(e->to));
    else
        fprintf(out, "event %u of %016" PRIx64, e->what, e->id);
    if (e->status != FT_OK)
        fprintf(out, " (%s)", ft_status_text(e->status));
    fprintf(out, "%s\n", torn ? " (caught inside a write)" : "");
}

static void print_events(FILE *out, const struct ft_image *image, uint64_t now_ns)
{
    const struct ft_tm_event *list[FT_TM_EVENTS];
    size_t n = 0;
    for (int i = 0; i < FT_TM_EVENTS; i++)
        if (image->file.event[i].serial != 0 || image->event_torn[i])
            list[n++] = &image->file.event[i];
    qsort(list, n, sizeof *list, by_time);
    size_t first = n > LAST_EVENTS ? n - LAST_EVENTS : 0;
    fprintf(out, "  events: the last %zu of %zu in the ring\n", n - first, n);
    for (size_t i = first; i < n; i++)
        print_event(out, list[i], image->event_torn[list[i] - image->file.event], now_ns);
}

void ft_image_print(FILE *out, const struct ft_image *image, uint64_t now_ns)
{
    print_process(out, &image->file.header, now_ns);
    print_comms(out, image);
    print_ops(out, image, now_ns);
    print_links(out, image);
    print_paths(out, image);
    print_conns(out, image);
    print_latencies(out, image);
    print_clocks(out, image);
    print_threads(out, image, now_ns);
    print_events(out, image, now_ns);
}

/* ---- all files of a process ------------------------------------------------------------------ */

typedef void visit(FILE *out, const struct ft_image *);

/* Calls visit with the image of each file. */
static int visit_files(FILE *out, const char *dir, int pid, visit *each)
{
    DIR *list = opendir(dir);
    if (!list)
        return ft_fail(FT_INVAL, "cannot list %s", dir);
    int found = 0, status = FT_OK;
    char why[256] = "";
    for (struct dirent *entry; (entry = readdir(list));) {
        struct ft_tm_name name;
        if (!ft_tm_name_parse(entry->d_name, &name) || name.pid != pid)
            continue;
        char path[256];
        snprintf(path, sizeof path, "%s/%.64s", dir, entry->d_name);
        struct ft_image *image;
        int err = ft_image_load(path, &image);
        found++;
        if (err) {
            status = err;
            snprintf(why, sizeof why, "%.100s: %.140s", path, ft_fail_text());
            continue;
        }
        each(out, image);
        ft_image_free(image);
    }
    closedir(list);
    if (!found)
        return ft_fail(FT_INVAL, "no telemetry of process %d in %s", pid, dir);
    return status ? ft_fail(status, "%s", why) : FT_OK;
}

static void print_whole(FILE *out, const struct ft_image *image)
{
    ft_image_print(out, image, ft_now_ns(ft_env_real()));
}

int ft_telemetry_print_in(FILE *out, const char *dir, int pid)
{
    return visit_files(out, dir, pid, print_whole);
}

int ft_telemetry_print(FILE *out, int pid)
{
    return ft_telemetry_print_in(out, FT_TM_DIR, pid);
}

/* With the rank in the first communicator that is open. */
static void print_own_conns(FILE *out, const struct ft_image *image)
{
    int rank = -1;
    for (int i = FT_TM_COMMS - 1; i >= 0; i--)
        if (image->file.comm[i].state == FT_TM_OPEN)
            rank = image->file.comm[i].rank;
    for (int i = 0; i < FT_TM_CONNS; i++) {
        if (image->file.conn[i].state != FT_TM_OPEN || image->conn_torn[i])
            continue;
        fprintf(out, "rank %d ", rank);
        print_conn(out, &image->file, &image->file.conn[i]);
    }
}

int ft_telemetry_print_conns(FILE *out)
{
    return visit_files(out, FT_TM_DIR, getpid(), print_own_conns);
}

/*
 * Writes the operations that have ended as lines of JSON, in the format 4.0 of NCCL's Inspector:
 * a file for each process, DIR/HOST-pidPID.log. A line stands for itself, and is written as a whole
 * or not at all. Files are bounded; an operation is never written twice, also after a restart.
 */
#include "agent.h"

#include "../diagnose_inspector.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define FILE_BYTES_MOST ((off_t)64 << 20) /* of a process, twice: the file before it stays */
#define BATCH_BYTES_MOST ((size_t)64 << 20)
/* Files of many processes are read one after the other: what has ended so long ago is in all. */
#define LAG_NS 1000000000u

struct batch {
    struct inspector *inspector;
    const struct ft_snapshot *s;
    const int *hosts;
    uint64_t from_ns, until_ns;
    int engine; /* whose lines these are */
    struct ft_text text;
};

/* ---- files ----------------------------------------------------------------------------------- */

static int cannot(struct inspector *i, const char *what, const char *path)
{
    snprintf(i->trouble, sizeof i->trouble, "cannot %s %.200s: %s", what, path, strerror(errno));
    return ft_fail(FT_SYSTEM, "%s", i->trouble);
}

/* Names of hosts come from processes. */
static void name_file(const struct batch *b, const char *end, char path[500])
{
    const struct ft_snap_engine *e = &b->s->engines[b->engine];
    char host[sizeof e->hostname];
    snprintf(host, sizeof host, "%.*s", (int)sizeof host - 1, e->hostname);
    for (char *c = host; *c; c++)
        if (!isalnum((unsigned char)*c) && !strchr("-_.", *c))
            *c = '_';
    snprintf(path, 500, "%.300s/%s-pid%d%s", b->inspector->dir, host, e->pid, end);
}

/* The file, with room for the batch; -1: errno says why. */
static int open_file(const struct batch *b, char path[500])
{
    char before[500];
    struct stat st;
    name_file(b, ".log", path);
    if (lstat(path, &st) == 0 && st.st_size + (off_t)b->text.len > FILE_BYTES_MOST) {
        name_file(b, ".old.log", before);
        if (rename(path, before) != 0)
            return -1;
    }
    return open(path, O_WRONLY | O_CREAT | O_APPEND | O_NOFOLLOW | O_CLOEXEC, 0644);
}

/* False: errno says why. */
static bool write_all(int fd, const struct ft_text *text)
{
    ssize_t n = fd < 0 ? -1 : write(fd, text->at, text->len);
    if (n >= 0 && n < (ssize_t)text->len)
        errno = ENOSPC;
    return n == (ssize_t)text->len;
}

/* Writes and forgets the lines. A line that was not written as a whole is taken back. */
static void flush(struct batch *b)
{
    char path[500];
    int fd = b->text.len > 0 && !b->text.broken ? open_file(b, path) : -1;
    off_t before = fd >= 0 ? lseek(fd, 0, SEEK_END) : 0;
    if (b->text.broken) {
        errno = ENOMEM;
        cannot(b->inspector, "write lines into", b->inspector->dir);
    } else if (b->text.len > 0 && !write_all(fd, &b->text)) {
        cannot(b->inspector, "write", path);
        if (fd >= 0 && ftruncate(fd, before) != 0)
            cannot(b->inspector, "shorten", path);
    } else if (b->text.len > 0) {
        b->inspector->trouble[0] = '\0';
    }
    if (fd >= 0)
        close(fd);
    ft_text_free(&b->text);
    b->text = (struct ft_text){.most = BATCH_BYTES_MOST};
}

/* ---- where it goes on after a restart -------------------------------------------------------- */

static void name_mark(const struct inspector *i, char path[500])
{
    snprintf(path, 500, "%.300s/.ftccl-agent-%016" PRIx64, i->dir, ft_host_id());
}

static void put_mark(FILE *out, const void *what)
{
    fprintf(out, "%" PRIu64 "\n", *(const uint64_t *)what);
}

/* Named by the host, whose id is another one when it has been started anew. Before the lines: those
 * of a killed agent are lost rather than written twice. */
static int write_mark(struct inspector *i)
{
    char path[500];
    name_mark(i, path);
    int status = write_whole(path, put_mark, &i->until_ns);
    if (status != FT_OK)
        snprintf(i->trouble, sizeof i->trouble, "%.290s", ft_fail_text());
    return status;
}

static void read_mark(struct inspector *i)
{
    char path[500];
    uint64_t until_ns = 0;
    name_mark(i, path);
    FILE *in = fopen(path, "re");
    if (in && fscanf(in, "%" SCNu64, &until_ns) == 1 && until_ns <= daemon_now_ns())
        i->until_ns = until_ns;
    if (in)
        fclose(in);
}

int inspector_open(struct inspector *i, const char *dir)
{
    *i = (struct inspector){.dir = dir};
    if (!dir[0])
        return FT_OK;
    read_mark(i);
    return write_mark(i);
}

/* ---- lines ----------------------------------------------------------------------------------- */

static void add_context(struct batch *b, const struct ft_snap_op *op)
{
    const struct ft_snap_member *m = &b->s->members[op->member];
    const struct ft_snap_engine *e = &b->s->engines[m->engine];
    struct ft_text *out = &b->text;
    char id[24];
    snprintf(id, sizeof id, "0x%" PRIx64, m->ctx);
    ft_json_begin(out, "header", '{');
    ft_json_string(out, "id", id);
    ft_json_int(out, "rank", m->rank);
    ft_json_int(out, "n_ranks", m->nranks);
    ft_json_int(out, "nnodes", b->hosts[op->member] ? b->hosts[op->member] : 1);
    ft_json_end(out, '}');
    ft_json_begin(out, "metadata", '{');
    ft_json_string(out, "inspector_output_format_version", "v4.0");
    ft_json_string(out, "git_rev", "");
    ft_json_string(out, "rec_mechanism", "ftccl_telemetry");
    ft_json_int(out, "dump_timestamp_us",
                (int64_t)((b->s->real_ns - (b->s->now_ns - op->ended_ns)) / 1000));
    ft_json_string(out, "hostname", e->hostname);
    ft_json_int(out, "pid", e->pid);
    ft_json_end(out, '}');
}

/* The keys of collectives and of messages differ in their beginning alone. */
static void add_number(struct ft_text *out, bool message, const char *key, int64_t value)
{
    char name[40];
    snprintf(name, sizeof name, "%s_%s", message ? "p2p" : "coll", key);
    ft_json_int(out, name, value);
}

static void add_speed(struct ft_text *out, bool message, const char *key, double value)
{
    char name[40];
    snprintf(name, sizeof name, "%s_%s", message ? "p2p" : "coll", key);
    ft_json_real(out, name, value);
}

static void add_line(struct batch *b, const struct ft_snap_op *op)
{
    struct ft_text *out = &b->text;
    enum ft_kind kind = (enum ft_kind)(op->sig & 15);
    bool message = kind == FT_SEND;
    double share, bytes = inspector_bytes(op->sig, b->s->members[op->member].nranks, &share);
    double ns = (double)(op->ended_ns - op->started_ns);
    ft_json_begin(out, NULL, '{');
    add_context(b, op);
    ft_json_begin(out, message ? "p2p_perf" : "coll_perf", '{');
    ft_json_string(out, message ? "p2p" : "coll", op->receives ? "Recv" : ft_kind_name(kind));
    add_number(out, message, "sn", (int64_t)op->seq);
    if (message)
        add_number(out, message, "peer", op->peer);
    add_number(out, message, "msg_size_bytes", (int64_t)fmin(bytes, 9e18));
    add_number(out, message, "exec_time_us", (int64_t)(ns / 1e3));
    ft_json_string(out, message ? "p2p_timing_source" : "coll_timing_source", "collective_cpu");
    add_speed(out, message, "algobw_gbs", bytes / ns);
    add_speed(out, message, "busbw_gbs", bytes * share / ns);
    ft_json_end(out, '}');
    ft_json_end(out, '}');
    ft_text_add(out, "\n");
}

static bool is_due(const struct batch *b, const struct ft_snap_op *op)
{
    return inspector_is_sound(b->s, op) && op->ended_ns > b->from_ns &&
           op->ended_ns <= b->until_ns && b->s->members[op->member].engine >= 0 &&
           b->s->members[op->member].engine < b->s->nengines;
}

/* Operations of a process follow each other. */
static void write_lines(struct batch *b)
{
    for (int i = 0; i < b->s->nops; i++) {
        const struct ft_snap_op *op = &b->s->ops[i];
        if (!is_due(b, op))
            continue;
        int engine = b->s->members[op->member].engine;
        if (engine != b->engine)
            flush(b);
        b->engine = engine;
        add_line(b, op);
    }
    flush(b);
}

void inspector_look(struct inspector *i, const struct ft_snapshot *s, const struct report *report)
{
    struct ranks ranks;
    struct batch b = {.inspector = i, .s = s, .engine = -1, .text.most = BATCH_BYTES_MOST};
    if (!i->dir[0] || s->now_ns < LAG_NS + i->until_ns)
        return;
    b.from_ns = i->until_ns;
    b.until_ns = i->until_ns = s->now_ns - LAG_NS;
    if (write_mark(i) != FT_OK || ranks_open(&ranks, s, report, false) != FT_OK)
        return;
    int *hosts = inspector_hosts(&ranks);
    b.hosts = hosts;
    if (hosts)
        write_lines(&b);
    free(hosts);
    ranks_close(&ranks);
}

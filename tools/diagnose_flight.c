/*
 * Writes what a snapshot knows of each rank's calls as a dump of PyTorch's flight recorder, one
 * file a rank, which torchfrtrace reads: a Python dict, pickled with protocol 2. A rank is named by
 * its place in the largest communicator, the world.
 */
#include "diagnose.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define FLIGHT_VERSION "2.10"

/* ---- pickle ---------------------------------------------------------------------------------- */

static void put_length(FILE *out, uint32_t n)
{
    for (int shift = 0; shift < 32; shift += 8)
        fputc((int)(n >> shift & 255), out);
}

static void put_text(FILE *out, const char *text)
{
    fputc('X', out);
    put_length(out, (uint32_t)strlen(text));
    fputs(text, out);
}

static void put_integer(FILE *out, int64_t value)
{
    fputc(0x8a, out);
    fputc(8, out);
    put_length(out, (uint32_t)value);
    put_length(out, (uint32_t)((uint64_t)value >> 32));
}

static void put_bool(FILE *out, bool value)
{
    fputc(value ? 0x88 : 0x89, out);
}

static void key_text(FILE *out, const char *key, const char *value)
{
    put_text(out, key);
    put_text(out, value);
}

static void key_integer(FILE *out, const char *key, int64_t value)
{
    put_text(out, key);
    put_integer(out, value);
}

static void key_bool(FILE *out, const char *key, bool value)
{
    put_text(out, key);
    put_bool(out, value);
}

/* "](" elements "e" is a list, "}(" pairs "u" a dict */
static void begin(FILE *out, const char *what)
{
    fputs(what, out);
}

/* ---- who is who ------------------------------------------------------------------------------ */

struct flight {
    const struct ft_snapshot *s;
    uint64_t world;
    int nranks;
    uint64_t *engine; /* [nranks] engine id of each rank of the world, 0: unknown */
    uint64_t real_ns; /* to be added for nanoseconds since 1970 */
};

static const struct ft_snap_member *find_world(const struct ft_snapshot *s)
{
    const struct ft_snap_member *world = NULL;
    for (int i = 0; i < s->nmembers; i++)
        if (s->members[i].open && (!world || s->members[i].nranks > world->nranks))
            world = &s->members[i];
    return world;
}

static int rank_of(const struct flight *f, uint64_t engine)
{
    for (int r = 0; r < f->nranks; r++)
        if (f->engine[r] == engine)
            return r;
    return -1;
}

static void find_ranks(struct flight *f)
{
    const struct ft_snapshot *s = f->s;
    for (int i = 0; i < s->nseats; i++)
        if (s->seats[i].ctx == f->world && s->seats[i].rank >= 0 && s->seats[i].rank < f->nranks)
            f->engine[s->seats[i].rank] = s->seats[i].engine;
    for (int i = 0; i < s->nmembers; i++) {
        const struct ft_snap_member *m = &s->members[i];
        if (m->ctx == f->world && m->rank >= 0 && m->rank < f->nranks)
            f->engine[m->rank] = s->engines[m->engine].id;
    }
}

/* ---- a dump ---------------------------------------------------------------------------------- */

static const char *name_of(const struct flight *f, const struct ft_snap_member *m)
{
    return m->ctx == f->world ? "default_pg" : m->name[0] ? m->name : "undefined";
}

static void put_group(FILE *out, const struct flight *f, const struct ft_snap_member *m)
{
    char uid[24];
    snprintf(uid, sizeof uid, "%016" PRIx64, m->ctx);
    put_text(out, uid);
    begin(out, "}(");
    key_text(out, "name", uid);
    key_text(out, "desc", name_of(f, m));
    put_text(out, "ranks");
    char *list = NULL;
    size_t len = 0;
    FILE *text = open_memstream(&list, &len);
    for (int i = 0, n = 0; text && i < f->s->nseats; i++) {
        const struct ft_snap_seat *seat = &f->s->seats[i];
        int rank = seat->ctx == m->ctx && seat->rank == n ? rank_of(f, seat->engine) : -1;
        if (rank >= 0)
            fprintf(text, "%s%d", n++ ? ", " : "", rank);
    }
    if (text)
        fclose(text);
    fputc('X', out);
    put_length(out, (uint32_t)len + 2);
    fprintf(out, "[%s]", list ? list : "");
    free(list);
    begin(out, "u");
}

static const char *const call_names[FT_KINDS] = {[FT_ALLREDUCE] = "all_reduce",
                                                 [FT_BROADCAST] = "broadcast",
                                                 [FT_REDUCE] = "reduce",
                                                 [FT_ALLGATHER] = "_all_gather_base",
                                                 [FT_REDUCESCATTER] = "_reduce_scatter_base",
                                                 [FT_ALLTOALL] = "all_to_all",
                                                 [FT_GATHER] = "gather",
                                                 [FT_SCATTER] = "scatter",
                                                 [FT_SEND] = "send",
                                                 [FT_RECV] = "recv"};

static const char *const type_names[FT_TYPES] = {[FT_INT8] = "Char",
                                                 [FT_UINT8] = "Byte",
                                                 [FT_INT32] = "Int",
                                                 [FT_UINT32] = "UInt32",
                                                 [FT_INT64] = "Long",
                                                 [FT_UINT64] = "UInt64",
                                                 [FT_FLOAT16] = "Half",
                                                 [FT_FLOAT32] = "Float",
                                                 [FT_FLOAT64] = "Double",
                                                 [FT_BFLOAT16] = "BFloat16",
                                                 [FT_FLOAT8E4M3] = "Float8_e4m3fn",
                                                 [FT_FLOAT8E5M2] = "Float8_e5m2"};

static void put_sizes(FILE *out, const char *which, uint64_t sig, uint64_t blocks)
{
    char key[32];
    unsigned type = (unsigned)(sig >> 4 & 15);
    snprintf(key, sizeof key, "%s_sizes", which);
    put_text(out, key);
    begin(out, "](](");
    put_integer(out, (int64_t)(ft_sig_count(sig) * blocks));
    begin(out, "ee");
    snprintf(key, sizeof key, "%s_dtypes", which);
    put_text(out, key);
    begin(out, "](");
    put_text(out, type < FT_TYPES && type_names[type] ? type_names[type] : "Byte");
    begin(out, "e");
}

/* An entry of a call. `state` is torch's word. */
struct entry {
    const struct ft_snap_member *member;
    struct ft_snap_op op;
    const char *state;
    int64_t record;
};

static void put_name(FILE *out, const struct entry *e)
{
    char name[64];
    unsigned kind = (unsigned)(e->op.sig & 15);
    if (kind == FT_SEND)
        snprintf(name, sizeof name, e->op.receives ? "nccl:recv %d<-%d" : "nccl:send %d->%d",
                 e->member->rank, e->op.peer);
    else
        snprintf(name, sizeof name, "nccl:%s",
                 kind < FT_KINDS && call_names[kind] ? call_names[kind] : "coalesced");
    key_text(out, "profiling_name", name);
}

static void put_group_of(FILE *out, const struct flight *f, const struct ft_snap_member *m)
{
    char uid[24];
    snprintf(uid, sizeof uid, "%016" PRIx64, m->ctx);
    key_integer(out, "pg_id", 0);
    put_text(out, "process_group");
    put_text(out, uid);
    put_text(out, name_of(f, m));
    fputc(0x86, out);
}

static void put_entry(FILE *out, const struct flight *f, const struct entry *e)
{
    unsigned kind = (unsigned)(e->op.sig & 15);
    bool p2p = kind == FT_SEND;
    uint64_t n = (uint64_t)e->member->nranks;
    begin(out, "}(");
    key_integer(out, "record_id", e->record);
    put_group_of(out, f, e->member);
    key_integer(out, "collective_seq_id", p2p ? 0 : (int64_t)e->op.seq);
    key_integer(out, "p2p_seq_id", p2p ? (int64_t)e->op.seq : 0);
    key_integer(out, "op_id", e->record);
    put_name(out, e);
    put_sizes(out, "input", e->op.sig, kind == FT_REDUCESCATTER || kind == FT_ALLTOALL ? n : 1);
    put_sizes(out, "output", e->op.sig, kind == FT_ALLGATHER || kind == FT_ALLTOALL ? n : 1);
    key_text(out, "state", e->state);
    key_bool(out, "is_p2p", p2p);
    key_bool(out, "retired", e->op.ended_ns > 0);
    key_integer(out, "time_created_ns", (int64_t)(e->op.called_ns + f->real_ns));
    key_integer(out, "timeout_ms", 0);
    put_text(out, "frames");
    begin(out, "]u");
}

/* The call that no stream has reached. Only the latest one's signature is known. */
static void put_waiting(FILE *out, const struct flight *f, const struct ft_snap_member *m,
                        int64_t *record)
{
    struct entry e = {.member = m, .state = "scheduled"};
    if (m->called <= m->started)
        return;
    e.op = (struct ft_snap_op){
        .seq = m->called, .sig = m->last.sig, .called_ns = m->last.called_ns, .peer = -1};
    e.record = (*record)++;
    put_entry(out, f, &e);
}

static void put_entries(FILE *out, const struct flight *f, int engine)
{
    const struct ft_snapshot *s = f->s;
    int64_t record = 0;
    begin(out, "](");
    for (int i = 0; i < s->nops; i++) {
        const struct ft_snap_member *m = &s->members[s->ops[i].member];
        struct entry e = {m, s->ops[i], s->ops[i].ended_ns ? "completed" : "started", record};
        if (m->engine != engine || !m->open || (s->ops[i].ended_ns && !s->ops[i].done))
            continue;
        put_entry(out, f, &e);
        record++;
    }
    for (int i = 0; i < s->nmembers; i++)
        if (s->members[i].engine == engine && s->members[i].open)
            put_waiting(out, f, &s->members[i], &record);
    begin(out, "e");
}

static void put_status(FILE *out, const struct flight *f, int engine)
{
    begin(out, "}(");
    for (int i = 0; i < f->s->nmembers; i++) {
        const struct ft_snap_member *m = &f->s->members[i];
        char uid[24];
        if (m->engine != engine || !m->open)
            continue;
        snprintf(uid, sizeof uid, "%016" PRIx64, m->ctx);
        put_text(out, uid);
        begin(out, "}(");
        key_integer(out, "last_enqueued_collective", (int64_t)m->called);
        key_integer(out, "last_started_collective", (int64_t)m->started);
        key_integer(out, "last_completed_collective", (int64_t)m->done);
        begin(out, "u");
    }
    begin(out, "u");
}

static void put_dump(FILE *out, const struct flight *f, int engine)
{
    fputs("\x80\x02", out);
    begin(out, "}(");
    key_text(out, "version", FLIGHT_VERSION);
    put_text(out, "pg_config");
    begin(out, "}(");
    for (int i = 0; i < f->s->nmembers; i++)
        if (f->s->members[i].engine == engine && f->s->members[i].open)
            put_group(out, f, &f->s->members[i]);
    begin(out, "u");
    put_text(out, "pg_status");
    put_status(out, f, engine);
    put_text(out, "entries");
    put_entries(out, f, engine);
    begin(out, "u.");
}

/* ---- the files ------------------------------------------------------------------------------- */

static int write_file(const struct flight *f, const char *dir, int rank, int engine)
{
    char path[4200];
    snprintf(path, sizeof path, "%.4096s/ftccl_trace_rank_%d", dir, rank);
    FILE *out = fopen(path, "we");
    if (!out)
        return ft_fail(FT_SYSTEM, "cannot write %.200s: %s", path, strerror(errno));
    put_dump(out, f, engine);
    bool failed = ferror(out);
    if (fclose(out) != 0 || failed)
        return ft_fail(FT_SYSTEM, "cannot write %.200s: %s", path, strerror(errno));
    return FT_OK;
}

static int write_files(struct flight *f, const char *dir)
{
    int status = FT_OK;
    find_ranks(f);
    for (int i = 0; i < f->s->nengines && status == FT_OK; i++) {
        int rank = rank_of(f, f->s->engines[i].id);
        if (rank >= 0)
            status = write_file(f, dir, rank, i);
    }
    return status;
}

int write_flight_records(const struct ft_snapshot *s, const char *dir)
{
    const struct ft_snap_member *world = find_world(s);
    if (!world)
        return ft_fail(FT_INVAL, "no rank has an open communicator");
    if (mkdir(dir, 0777) != 0 && errno != EEXIST)
        return ft_fail(FT_SYSTEM, "cannot make %.200s: %s", dir, strerror(errno));
    struct flight f = {.s = s, .world = world->ctx, .nranks = world->nranks};
    f.real_ns = s->real_ns - s->now_ns;
    bool sound = f.nranks > 0 && f.nranks <= s->nseats + s->nmembers;
    f.engine = sound ? calloc((size_t)f.nranks, sizeof *f.engine) : NULL;
    int status = !sound     ? ft_fail(FT_INVAL, "the telemetry does not name the ranks of the job")
                 : f.engine ? write_files(&f, dir)
                            : ft_fail(FT_NOMEM, "no memory for %d ranks", f.nranks);
    free(f.engine);
    return status;
}

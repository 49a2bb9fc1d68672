/*
 * The answer to STATUS as JSON: NCCL's keys, and an object `ftccl` with the verdict. First the rows
 * of a snapshot are put in order: communicators, and the ranks of each, with those that are
 * missing.
 */
#include "ras/internal.h"

#include "ftccl/nccl.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define COMM_RANKS_MAX (1 << 20) /* a larger communicator is a damaged row */

/* ---- order ----------------------------------------------------------------------------------- */

/* What is known of one rank: from its own file, or from the roster of another. */
struct row {
    uint64_t ctx;
    int size;
    struct ft_ras_rank rank;
};

/* The most certain source comes first: a process that runs, then others, then rosters. */
static int source_of(const struct row *row)
{
    if (!row->rank.member)
        return row->rank.dead ? 3 : row->rank.elsewhere ? 5 : 4;
    return row->rank.engine->state == FT_PROCESS_GONE ? 2 : !row->rank.member->open;
}

static int by_comm(const void *a, const void *b)
{
    const struct row *x = a, *y = b;
    if (x->ctx != y->ctx)
        return x->ctx < y->ctx ? -1 : 1;
    return x->rank.rank != y->rank.rank ? x->rank.rank - y->rank.rank : source_of(x) - source_of(y);
}

/* A rank without a file. here: its host is that of the process whose roster this is. */
static struct ft_ras_rank missing_at(const struct ft_ras_look *look,
                                     const struct ft_snap_seat *seat, bool here)
{
    bool answered, asked = ft_ras_round_asked(&look->round, seat->engine, &answered);
    bool dead = seat->news == FT_NEWS_DEAD;
    return (struct ft_ras_rank){.rank = seat->rank,
                                .pid = seat->pid,
                                .elsewhere = !asked && !dead && !here,
                                .silent = asked && !answered,
                                .dead = dead};
}

/* Takes the seats of one roster from `first` on, whose hosts are numbered. Returns their number. */
static int take_roster(const struct ft_ras_look *look, int first, struct row *rows, int *n)
{
    const struct ft_snapshot *s = look->snapshot;
    const struct ft_snap_seat *seats = s->seats + first;
    int count = 1, own = -1, teller = seats->teller;
    while (first + count < s->nseats && seats[count].ctx == seats->ctx &&
           seats[count].teller == teller)
        count++;
    for (int i = 0; i < count && teller >= 0 && teller < s->nengines; i++)
        if (seats[i].engine == s->engines[teller].id)
            own = i;
    for (int i = 0; i < count; i++) {
        bool here = own >= 0 && seats[i].host == seats[own].host;
        if (seats[i].rank >= 0)
            rows[(*n)++] = (struct row){seats->ctx, 0, missing_at(look, &seats[i], here)};
    }
    return count;
}

static int rows_of(const struct ft_ras_look *look, struct row *rows)
{
    const struct ft_snapshot *s = look->snapshot;
    int n = 0;
    for (int i = 0; i < s->nmembers; i++) {
        const struct ft_snap_member *m = &s->members[i];
        if (m->nranks < 1 || m->nranks > COMM_RANKS_MAX || m->rank < 0 || m->rank >= m->nranks)
            continue;
        const struct ft_snap_engine *engine = &s->engines[m->engine];
        rows[n++] = (struct row){
            m->ctx,
            m->nranks,
            {.rank = m->rank, .member = m, .engine = engine, .pid = engine->pid}};
    }
    for (int i = 0; i < s->nseats;)
        i += take_roster(look, i, rows, &n);
    if (n > 0)
        qsort(rows, (size_t)n, sizeof *rows, by_comm);
    return n;
}

/* The size of a communicator, if a process that is not gone has it open; else 0. */
static int size_of(const struct row *rows, int n)
{
    for (int i = 0; i < n; i++) {
        const struct ft_ras_rank *rank = &rows[i].rank;
        if (rank->member && rank->member->open && rank->engine->state != FT_PROCESS_GONE)
            return rows[i].size;
    }
    return 0;
}

/* Takes n rows of one communicator, each rank once. */
static void add_comm(struct ft_ras_comms *out, const struct row *rows, int n, int *used)
{
    int size = size_of(rows, n), last = -1;
    if (size == 0)
        return;
    struct ft_ras_comm *comm = &out->comms[out->n++];
    *comm = (struct ft_ras_comm){
        .ctx = rows[0].ctx, .size = size, .ranks = out->ranks + *used, .name = ""};
    for (int i = 0; i < n && rows[i].rank.rank < size; i++) {
        const struct ft_ras_rank *rank = &rows[i].rank;
        if (rank->rank == last)
            continue;
        last = rank->rank;
        comm->ranks[comm->nlisted++] = *rank;
        comm->nranks += !ft_ras_is_missing(rank);
        if (rank->member && rank->member->name[0])
            comm->name = rank->member->name;
    }
    comm->nmissing = size - comm->nranks;
    *used += comm->nlisted;
}

int ft_ras_comms_of(const struct ft_ras_look *look, struct ft_ras_comms *out)
{
    const struct ft_snapshot *s = look->snapshot;
    size_t most = (size_t)s->nmembers + (size_t)s->nseats + 1;
    struct row *rows = calloc(most, sizeof *rows);
    *out = (struct ft_ras_comms){.comms = calloc((size_t)s->nmembers + 1, sizeof *out->comms),
                                 .ranks = calloc(most, sizeof *out->ranks)};
    if (!rows || !out->comms || !out->ranks) {
        free(rows);
        ft_ras_comms_free(out);
        return ft_fail(FT_NOMEM, "no memory for an answer");
    }
    int total = rows_of(look, rows), used = 0;
    for (int i = 0, n; i < total; i += n) {
        for (n = 1; i + n < total && rows[i + n].ctx == rows[i].ctx; n++) {}
        add_comm(out, rows + i, n, &used);
    }
    free(rows);
    return FT_OK;
}

void ft_ras_comms_free(struct ft_ras_comms *comms)
{
    free(comms->comms);
    free(comms->ranks);
    *comms = (struct ft_ras_comms){0};
}

/* ---- JSON ------------------------------------------------------------------------------------ */

int ft_ras_result(int status)
{
    enum { SYSTEM_ERROR = 2, INTERNAL_ERROR, INVALID_ARGUMENT, INVALID_USAGE, REMOTE_ERROR };
    switch (ft_status_lost(status)) {
    case FT_LOST_NOTHING:
        return 0;
    case FT_LOST_CALL:
        return status == FT_INVAL ? INVALID_ARGUMENT : INVALID_USAGE;
    case FT_LOST_PROCESS:
        return status == FT_INTERNAL ? INTERNAL_ERROR : SYSTEM_ERROR;
    case FT_LOST_COMM:
        return status == FT_MISMATCH ? INVALID_USAGE : REMOTE_ERROR;
    default:
        return REMOTE_ERROR;
    }
}

const char *ft_ras_version(void)
{
#define TEXT(x) #x
#define VERSION(major, minor, patch) TEXT(major) "." TEXT(minor) "." TEXT(patch)
    const char *given = ft_param_str(FT_PARAM_NCCL_VERSION);
    return *given ? given : VERSION(NCCL_MAJOR, NCCL_MINOR, NCCL_PATCH);
}

void ft_ras_timestamp(char text[32])
{
    time_t now = time(NULL);
    struct tm parts;
    if (!localtime_r(&now, &parts) || !strftime(text, 32, "%Y-%m-%d %H:%M:%S", &parts))
        snprintf(text, 32, "1970-01-01 00:00:00");
}

static void add_identity(struct ft_text *out, const struct ft_ras_rank *rank)
{
    ft_json_int(out, "rank", rank->rank);
    ft_json_string(out, "host", rank->engine ? rank->engine->hostname : "unknown");
    ft_json_int(out, "pid", rank->pid > 0 ? rank->pid : 0);
    ft_json_int(out, "cuda_dev", 0);
    ft_json_int(out, "nvml_dev", 0);
    ft_json_begin(out, "status", '{');
}

static void add_rank(struct ft_text *out, const struct ft_ras_rank *rank)
{
    const struct ft_snap_member *m = rank->member;
    static const struct {
        const char *name;
        enum ft_kind kind;
    } counts[] = {{"Broadcast", FT_BROADCAST},
                  {"Reduce", FT_REDUCE},
                  {"AllGather", FT_ALLGATHER},
                  {"ReduceScatter", FT_REDUCESCATTER},
                  {"AllReduce", FT_ALLREDUCE}};
    ft_json_begin(out, NULL, '{');
    add_identity(out, rank);
    ft_json_int(out, "init_state", 0);
    ft_json_int(out, "async_error", m->failed ? ft_ras_result(m->status) : 0);
    ft_json_bool(out, "finalize_called", !m->open);
    ft_json_bool(out, "destroy_flag", !m->open);
    ft_json_bool(out, "abort_flag", m->failed && m->status == FT_ABORTED);
    ft_json_end(out, '}');
    ft_json_begin(out, "collective_counts", '{');
    for (size_t i = 0; i < FT_ARRAY_LEN(counts); i++)
        ft_json_int(out, counts[i].name, (int64_t)(m->kind_called[counts[i].kind] & INT64_MAX));
    ft_json_end(out, '}');
    ft_json_end(out, '}');
}

static void add_missing(struct ft_text *out, const struct ft_ras_rank *rank)
{
    ft_json_begin(out, NULL, '{');
    add_identity(out, rank);
    ft_json_bool(out, "unresponsive", !rank->elsewhere);
    ft_json_bool(out, "considered_dead",
                 rank->dead || (rank->engine && rank->engine->state == FT_PROCESS_GONE));
    ft_json_end(out, '}');
    ft_json_end(out, '}');
}

/* Those of which something is known, and those of which nothing is. */
static void add_all_missing(struct ft_text *out, const struct ft_ras_comm *comm)
{
    int listed = 0, at = 0;
    for (int r = 0; r < comm->size && listed < FT_RAS_LISTED_MAX; r++) {
        struct ft_ras_rank unknown = {.rank = r, .elsewhere = true};
        const struct ft_ras_rank *rank = &unknown;
        if (at < comm->nlisted && comm->ranks[at].rank == r)
            rank = &comm->ranks[at++];
        if (!ft_ras_is_missing(rank))
            continue;
        add_missing(out, rank);
        listed++;
    }
}

static void add_comm_json(struct ft_text *out, const struct ft_ras_comm *comm)
{
    char text[40];
    ft_json_begin(out, NULL, '{');
    snprintf(text, sizeof text, "0x%016" PRIx64, comm->ctx);
    ft_json_string(out, "hash", text);
    snprintf(text, sizeof text, "0x%016" PRIx64 ":0x%016" PRIx64, comm->ctx,
             ft_hash64(&comm->ctx, sizeof comm->ctx, 1));
    ft_json_string(out, "secondary_hash", text);
    ft_json_int(out, "size", comm->size);
    ft_json_int(out, "ranks_count", comm->nranks);
    ft_json_int(out, "missing_ranks_count", comm->nmissing);
    ft_json_begin(out, "ranks", '[');
    for (int i = 0; i < comm->nlisted; i++)
        if (!ft_ras_is_missing(&comm->ranks[i]))
            add_rank(out, &comm->ranks[i]);
    ft_json_end(out, ']');
    ft_json_begin(out, "missing_ranks", '[');
    add_all_missing(out, comm);
    ft_json_end(out, ']');
    ft_json_end(out, '}');
}

static void add_verdict(struct ft_text *out, const struct ft_ras_look *look)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    const struct ft_report report = {.snapshot = look->snapshot,
                                     .verdicts = look->verdicts,
                                     .found = look->found,
                                     .engines = look->snapshot->nengines,
                                     .unreadable = look->snapshot->unreadable,
                                     .time_s = (double)now.tv_sec + (double)now.tv_nsec / 1e9,
                                     .after_s = FT_RAS_AFTER_S,
                                     .trouble = look->trouble[0] ? look->trouble : NULL};
    ft_report_json(out, "ftccl", &report);
}

void ft_ras_json(struct ft_text *out, const struct ft_ras_look *look,
                 const struct ft_ras_comms *comms)
{
    char text[32];
    ft_ras_timestamp(text);
    ft_json_begin(out, NULL, '{');
    ft_json_string(out, "nccl_version", ft_ras_version());
    ft_json_int(out, "cuda_runtime_version", 0);
    ft_json_int(out, "cuda_driver_version", 0);
    ft_json_string(out, "timestamp", text);
    ft_json_int(out, "communicators_count", comms->n);
    ft_json_begin(out, "communicators", '[');
    for (int i = 0; i < comms->n; i++)
        add_comm_json(out, &comms->comms[i]);
    ft_json_end(out, ']');
    ft_json_begin(out, "ras", '{');
    ft_json_real(out, "collection_time_sec", (double)(look->ended_ns - look->begun_ns) / 1e9);
    ft_json_int(out, "timeouts_count", look->round.silent);
    ft_json_end(out, '}');
    add_verdict(out, look);
    ft_json_end(out, '}');
    ft_text_add(out, "\n");
}

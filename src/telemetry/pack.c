/*
 * A snapshot as bytes for another host: a head, then the rows of each list as they lie in memory.
 * Both ends run the same build of the library, or the bytes are refused: the head has the lengths
 * of all rows. Everything else is checked: indexes, texts, and what must be 0 or 1.
 */
#include "collect.h"
#include "diagnose/diagnose.h"

#include <stdlib.h>
#include <string.h>

#define MAGIC 0x46545350u /* "FTSP" */
#define VERSION 3
#define OPS_KEPT 64            /* of each member, the latest */
#define LINKS_MOST 4096        /* of all engines */
#define RECENT_NS 60000000000u /* a validation that ended earlier is not asked for any more */

struct head {
    uint32_t magic, version;
    uint64_t now_ns;
    uint32_t unreadable, zero;
    struct {
        uint32_t row_bytes, rows;
    } lists[FT_SNAP_LISTS];
};

/* What a field of a row is, apart from numbers that may have any value. */
enum what { A_TIME, A_BOOL, A_TEXT, A_STATE, A_NEWS };
struct field {
    int list; /* position in ft_snapshot_lists() */
    enum what what;
    size_t at, bytes;
};
enum {
    ENGINES,
    MEMBERS,
    LINKS,
    SEATS,
    PATHS,
    STEPS,
    OPS,
    THREADS,
    LATENCIES,
    CLOCKS,
    EVENTS,
    VALIDATIONS
};
#define FIELD(list, what, type, name)                      \
    {                                                      \
        list, what, offsetof(struct ft_snap_##type, name), \
            sizeof(((struct ft_snap_##type *)0)->name)     \
    }
static const struct field fields[] = {
    FIELD(ENGINES, A_STATE, engine, state),
    FIELD(ENGINES, A_TEXT, engine, hostname),
    FIELD(ENGINES, A_TEXT, engine, program),
    FIELD(ENGINES, A_TEXT, engine, doing),
    FIELD(ENGINES, A_TEXT, engine, file),
    FIELD(MEMBERS, A_TEXT, member, name),
    FIELD(MEMBERS, A_BOOL, member, open),
    FIELD(MEMBERS, A_BOOL, member, joins),
    FIELD(MEMBERS, A_BOOL, member, failed),
    FIELD(MEMBERS, A_BOOL, member, wait.sends),
    FIELD(MEMBERS, A_TIME, member, opened_ns),
    FIELD(MEMBERS, A_TIME, member, last.called_ns),
    FIELD(MEMBERS, A_TIME, member, running_since_ns),
    FIELD(MEMBERS, A_TIME, member, progress_ns),
    FIELD(MEMBERS, A_TIME, member, agree_ns),
    FIELD(LINKS, A_BOOL, link, sender),
    FIELD(LINKS, A_BOOL, link, open),
    FIELD(LINKS, A_TEXT, link, transport),
    FIELD(SEATS, A_NEWS, seat, news),
    FIELD(SEATS, A_BOOL, seat, excluded),
    FIELD(PATHS, A_BOOL, path, sender),
    FIELD(PATHS, A_TIME, path, seen_ns),
    FIELD(PATHS, A_TEXT, path, source),
    FIELD(PATHS, A_TEXT, path, destination),
    FIELD(STEPS, A_TIME, step, begin_ns),
    FIELD(STEPS, A_TIME, step, end_ns),
    FIELD(OPS, A_BOOL, op, receives),
    FIELD(OPS, A_BOOL, op, done),
    FIELD(OPS, A_TIME, op, called_ns),
    FIELD(OPS, A_TIME, op, started_ns),
    FIELD(OPS, A_TIME, op, ended_ns),
    FIELD(THREADS, A_BOOL, thread, waits),
    FIELD(THREADS, A_TIME, thread, since_ns),
    FIELD(LATENCIES, A_BOOL, latency, sender),
    FIELD(EVENTS, A_TIME, event, time_ns),
    FIELD(VALIDATIONS, A_TIME, validation, is.held_ns),
    FIELD(VALIDATIONS, A_TIME, validation, is.start_ns),
    FIELD(VALIDATIONS, A_TIME, validation, is.end_ns),
};

/* ---- packing --------------------------------------------------------------------------------- */

/* Which rows of a list go. */
static bool goes(const struct ft_snapshot *s, int list, int row)
{
    switch (list) {
    case SEATS: /* the asker has a roster of its own */
        return s->seats[row].news != FT_NEWS_NONE || s->seats[row].excluded;
    case PATHS:
        return s->paths[row].messages > 0;
    case STEPS:
    case CLOCKS:
    case EVENTS:
        return false;
    case THREADS:
        return s->threads[row].waits;
    case OPS: /* those of a member lie together, the oldest first */
        return row + OPS_KEPT >= s->nops || s->ops[row + OPS_KEPT].member != s->ops[row].member;
    case LINKS:
        return row < LINKS_MOST;
    case VALIDATIONS:
        return s->validations[row].is.end_ns + RECENT_NS > s->now_ns;
    default:
        return true;
    }
}

int ft_snapshot_pack(const struct ft_snapshot *s, unsigned char **out, size_t *len_bytes)
{
    struct ft_snapshot source = *s;
    struct ft_snap_list lists[FT_SNAP_LISTS];
    struct head head = {.magic = MAGIC,
                        .version = VERSION,
                        .now_ns = s->now_ns,
                        .unreadable = (uint32_t)s->unreadable};
    size_t room = sizeof head, n = sizeof head;
    ft_snapshot_lists(&source, lists);
    for (int i = 0; i < FT_SNAP_LISTS; i++)
        room += (size_t)*lists[i].n * lists[i].row_bytes;
    unsigned char *bytes = malloc(room);
    if (!bytes)
        return ft_fail(FT_NOMEM, "no memory for a snapshot of %zu bytes", room);
    for (int i = 0; i < FT_SNAP_LISTS; i++) {
        head.lists[i].row_bytes = (uint32_t)lists[i].row_bytes;
        for (int row = 0; row < *lists[i].n; row++) {
            if (!goes(s, i, row))
                continue;
            memcpy(bytes + n, (char *)*lists[i].at + (size_t)row * lists[i].row_bytes,
                   lists[i].row_bytes);
            n += lists[i].row_bytes;
            head.lists[i].rows++;
        }
    }
    memcpy(bytes, &head, sizeof head);
    *out = bytes;
    *len_bytes = n;
    return FT_OK;
}

/* ---- times ----------------------------------------------------------------------------------- */

/* The engine to which a row belongs; -1: none. */
static int engine_of(const struct ft_snapshot *s, const struct ft_snap_list *rows, int row)
{
    int index;
    memcpy(&index, (char *)*rows->at + (size_t)row * rows->row_bytes + rows->index, sizeof index);
    return !rows->of_member ? index : index >= 0 ? s->members[index].engine : -1;
}

void ft_tm_shift_times(struct ft_snapshot *s, const int64_t *ahead_ns)
{
    struct ft_snap_list lists[FT_SNAP_LISTS];
    ft_snapshot_lists(s, lists);
    for (size_t f = 0; f < FT_ARRAY_LEN(fields); f++) {
        const struct ft_snap_list *rows = &lists[fields[f].list];
        for (int i = 0; fields[f].what == A_TIME && i < *rows->n; i++) {
            int engine = engine_of(s, rows, i);
            uint64_t *at = (void *)((char *)*rows->at + (size_t)i * rows->row_bytes + fields[f].at);
            if (*at && engine >= 0 && engine < s->nengines)
                *at = (int64_t)*at > ahead_ns[engine] ? *at - (uint64_t)ahead_ns[engine] : 1;
        }
    }
}

/* ---- unpacking ------------------------------------------------------------------------------- */

static bool is_head(const struct head *head, const struct ft_snap_list *lists, size_t len_bytes)
{
    size_t left = len_bytes - sizeof *head;
    if (head->magic != MAGIC || head->version != VERSION || head->unreadable > 1 << 20)
        return false;
    for (int i = 0; i < FT_SNAP_LISTS; i++) {
        if (head->lists[i].row_bytes != lists[i].row_bytes ||
            head->lists[i].rows > left / lists[i].row_bytes)
            return false;
        left -= head->lists[i].rows * lists[i].row_bytes;
    }
    return left == 0;
}

/* A time of the other host becomes the same moment here; 0 stays unknown. */
static uint64_t shifted(uint64_t time_ns, uint64_t then_ns, uint64_t now_ns)
{
    if (time_ns == 0)
        return 0;
    uint64_t age_ns = then_ns > time_ns ? then_ns - time_ns : 0;
    return now_ns > age_ns ? now_ns - age_ns : 1;
}

static bool take_field(unsigned char *at, const struct field *field, uint64_t then_ns,
                       uint64_t now_ns)
{
    uint64_t time_ns;
    int value;
    switch (field->what) {
    case A_TIME:
        memcpy(&time_ns, at, sizeof time_ns);
        time_ns = shifted(time_ns, then_ns, now_ns);
        memcpy(at, &time_ns, sizeof time_ns);
        return true;
    case A_BOOL:
        return *at <= 1;
    case A_TEXT:
        if (!memchr(at, 0, field->bytes))
            return false;
        ft_text_clean((char *)at, field->bytes);
        return true;
    case A_STATE:
        memcpy(&value, at, sizeof value);
        return value >= 0 && value <= FT_PROCESS_FROZEN;
    default:
        memcpy(&value, at, sizeof value);
        return value >= 0 && value <= FT_NEWS_DEAD;
    }
}

/* Before this nobody may look at a row but by its bytes. */
static bool take_fields(int list, const struct ft_snap_list *rows, uint64_t then_ns,
                        uint64_t now_ns)
{
    for (size_t f = 0; f < FT_ARRAY_LEN(fields); f++)
        for (int i = 0; fields[f].list == list && i < *rows->n; i++) {
            unsigned char *row = (unsigned char *)*rows->at + (size_t)i * rows->row_bytes;
            if (!take_field(row + fields[f].at, &fields[f], then_ns, now_ns))
                return false;
        }
    return true;
}

static bool has_indexes(const struct ft_snap_list *rows)
{
    for (int i = 0; rows->index >= 0 && i < *rows->n; i++) {
        int index;
        memcpy(&index, (char *)*rows->at + (size_t)i * rows->row_bytes + (size_t)rows->index,
               sizeof index);
        if (index < -1 || index >= rows->shift)
            return false;
    }
    return true;
}

static int take_list(struct ft_snapshot *s, int list, const unsigned char *bytes, uint32_t rows)
{
    struct ft_snap_list lists[FT_SNAP_LISTS];
    ft_snapshot_lists(s, lists);
    *lists[list].at = malloc(rows * lists[list].row_bytes + 1);
    if (!*lists[list].at)
        return FT_NOMEM;
    memcpy(*lists[list].at, bytes, rows * lists[list].row_bytes);
    *lists[list].n = (int)rows;
    return FT_OK;
}

/* The head has been checked. */
static int take_lists(struct ft_snapshot *s, const struct head *head, const unsigned char *bytes)
{
    struct ft_snap_list lists[FT_SNAP_LISTS];
    for (int i = 0; i < FT_SNAP_LISTS; i++) {
        if (take_list(s, i, bytes, head->lists[i].rows) != FT_OK)
            return ft_fail(FT_NOMEM, "no memory for the ranks of another host");
        bytes += head->lists[i].rows * head->lists[i].row_bytes;
    }
    ft_snapshot_lists(s, lists);
    for (int i = 0; i < FT_SNAP_LISTS; i++)
        if (!has_indexes(&lists[i]) || !take_fields(i, &lists[i], head->now_ns, s->now_ns))
            return ft_fail(FT_PROTOCOL, "another host told nonsense about its ranks");
    return FT_OK;
}

/* An analysis looks at the engine of every member and link, and at the member of every operation.
 */
static bool has_owners(const struct ft_snapshot *s)
{
    bool all = true;
    for (int i = 0; i < s->nmembers; i++)
        all &= s->members[i].engine >= 0;
    for (int i = 0; i < s->nlinks; i++)
        all &= s->links[i].engine >= 0;
    for (int i = 0; i < s->npaths; i++)
        all &= s->paths[i].engine >= 0;
    for (int i = 0; i < s->nops; i++)
        all &= s->ops[i].member >= 0;
    for (int i = 0; i < s->nthreads; i++)
        all &= s->threads[i].engine >= 0;
    for (int i = 0; i < s->nlatencies; i++)
        all &= s->latencies[i].engine >= 0;
    for (int i = 0; i < s->nvalidations; i++)
        all &= s->validations[i].engine >= 0 && s->validations[i].is.nlinks <= FT_MEASURED_MOST;
    return all && s->nsteps == 0 && s->nclocks == 0 && s->nevents == 0;
}

int ft_snapshot_unpack(const void *bytes, size_t len_bytes, uint64_t now_ns,
                       struct ft_snapshot **out)
{
    struct ft_snapshot *s = calloc(1, sizeof *s);
    struct ft_snap_list lists[FT_SNAP_LISTS];
    struct head head;
    if (!s)
        return ft_fail(FT_NOMEM, "no memory for the ranks of another host");
    ft_snapshot_lists(s, lists);
    memset(&head, 0, sizeof head);
    if (len_bytes >= sizeof head)
        memcpy(&head, bytes, sizeof head);
    int rc = len_bytes >= sizeof head && is_head(&head, lists, len_bytes) ? FT_OK : FT_PROTOCOL;
    if (rc != FT_OK)
        ft_fail(rc, "another host tells of its ranks in a form that is not understood here");
    s->now_ns = now_ns;
    s->unreadable = (int)head.unreadable;
    if (rc == FT_OK)
        rc = take_lists(s, &head, (const unsigned char *)bytes + sizeof head);
    if (rc == FT_OK && !has_owners(s))
        rc = ft_fail(FT_PROTOCOL, "another host told of ranks without processes");
    if (rc != FT_OK) {
        ft_snapshot_free(s);
        return rc;
    }
    *out = s;
    return FT_OK;
}

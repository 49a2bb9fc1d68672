/*
 * The coordinator's connections, messages and time. An entry point takes an event, and before it
 * returns settle() does what follows for the groups that the event has changed: standbys get vacant
 * roles, and a view that is due is made. Connections are kept in the order in which they were heard
 * last, so silence costs nothing while there is none.
 */
#include "membership/coord_parts.h"

#include "base/wire.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#define SUSPECT_FIRST_MS 5000 /* of a connection without members */
#define GAP_MOST_NS UINT64_C(100000000)
#define NS_PER_MS UINT64_C(1000000)

static void settle(struct ft_coord *);
static void read_clock(struct ft_coord *);
static void heard(struct ft_coord_conn *);
static void unlink_conn(struct ft_coord_conn *);
static struct ft_coord_conn *find_silent(struct ft_coord *);

int ft_coord_open(const struct ft_coord_config *config, struct ft_coord **out)
{
    struct ft_coord *coord = calloc(1, sizeof(*coord));
    if (!coord)
        return ft_fail(FT_NOMEM, "no memory for a coordinator");
    coord->config = *config;
    config->env->random(config->env, &coord->seed, sizeof(coord->seed));
    while (coord->term == 0)
        config->env->random(config->env, &coord->term, sizeof(coord->term));
    coord->read_ns = ft_now_ns(config->env);
    *out = coord;
    return FT_OK;
}

void ft_coord_close(struct ft_coord *coord)
{
    if (!coord)
        return;
    for (struct ft_coord_conn *conn = coord->oldest; conn; conn = conn->next)
        conn->over = true; /* nobody is told any more */
    while (coord->oldest)
        ft_coord_closed(coord->oldest);
    ft_coord_forget_recalled(coord);
    ft_coord_table_close(&coord->groups);
    free(coord);
}

struct ft_coord_conn *ft_coord_connected(struct ft_coord *coord, void *owner_conn)
{
    struct ft_coord_conn *conn = calloc(1, sizeof(*conn));
    if (!conn)
        return NULL;
    conn->coord = coord;
    conn->owner = owner_conn;
    conn->suspect_ms = SUSPECT_FIRST_MS;
    coord->counts.connections++;
    read_clock(coord);
    heard(conn);
    return conn;
}

void ft_coord_closed(struct ft_coord_conn *conn)
{
    struct ft_coord *coord = conn->coord;
    read_clock(coord);
    conn->over = true;
    for (uint32_t i = 0; i < conn->nslots; i++) {
        if (conn->slot[i])
            ft_coord_end(conn->slot[i], conn->silent ? FT_END_SILENT : FT_END_CLOSED);
    }
    unlink_conn(conn);
    coord->counts.connections--;
    free(conn->slot);
    free(conn);
    settle(coord);
}

/* ---- messages -------------------------------------------------------------------------------- */

static int take_join(struct ft_coord_conn *conn, const unsigned char *bytes, size_t len)
{
    struct ft_members_join join;
    int rc = ft_members_join_decode(bytes, len, &join);
    if (rc == FT_OK)
        ft_coord_join(conn, &join);
    return rc;
}

static struct ft_coord_member *at_slot(struct ft_coord_conn *conn, uint32_t slot)
{
    return slot < conn->nslots ? conn->slot[slot] : NULL;
}

static int take_ask(struct ft_coord_conn *conn, const unsigned char *bytes, size_t len)
{
    struct ft_members_ask ask;
    int rc = ft_members_ask_decode(bytes, len, &ask);
    if (rc != FT_OK)
        return rc;
    struct ft_coord_member *member = at_slot(conn, ask.slot);
    if (member)
        ft_coord_ask(member, &ask);
    else
        ft_coord_refuse(conn, ask.slot, FT_AGAIN, "this member is not registered");
    return FT_OK;
}

static int take_leave(struct ft_coord_conn *conn, const unsigned char *bytes, size_t len)
{
    if (len != 4)
        return FT_PROTOCOL;
    struct ft_coord_member *member = at_slot(conn, get32(&bytes));
    if (member)
        ft_coord_end(member, FT_END_LEFT);
    return FT_OK;
}

/* An agent tells of a member that has ended, or that it has not heard for some milliseconds. */
static int take_gone(struct ft_coord_conn *conn, const unsigned char *bytes, size_t len)
{
    if (len != 4 && len != 8)
        return FT_PROTOCOL;
    struct ft_coord_member *member = at_slot(conn, get32(&bytes));
    if (!member)
        return FT_OK;
    member->silent_ms = len == 8 ? get32(&bytes) : 0;
    ft_coord_end(member, len == 8 ? FT_END_SILENT : FT_END_DEAD);
    return FT_OK;
}

bool ft_coord_message(struct ft_coord_conn *conn, uint16_t type, const unsigned char *bytes,
                      size_t len)
{
    int rc = FT_PROTOCOL;
    if (conn->over)
        return false;
    read_clock(conn->coord);
    heard(conn);
    switch (type) {
    case FT_MEMBERS_JOIN:
        rc = take_join(conn, bytes, len);
        break;
    case FT_MEMBERS_ASK:
        rc = take_ask(conn, bytes, len);
        break;
    case FT_MEMBERS_BEAT:
    case FT_MEMBERS_QUIET_BEAT:
        rc = len == 0 ? FT_OK : FT_PROTOCOL;
        if (rc == FT_OK && type == FT_MEMBERS_BEAT)
            ft_coord_tell(conn, FT_MEMBERS_ALIVE, NULL, 0);
        break;
    case FT_MEMBERS_LEAVE:
        rc = take_leave(conn, bytes, len);
        break;
    case FT_MEMBERS_GONE:
        rc = take_gone(conn, bytes, len);
        break;
    default:
        break;
    }
    if (rc != FT_OK)
        ft_fail(rc,
                "a member has sent a message of type %u and %zu bytes that is none of "
                "managed membership",
                (unsigned)type, len);
    settle(conn->coord);
    return rc == FT_OK;
}

void ft_coord_tell(struct ft_coord_conn *conn, enum ft_members_message type, const void *bytes,
                   size_t len)
{
    const struct ft_coord_config *config = &conn->coord->config;
    if (!conn->over && !config->send(config->arg, conn->owner, type, bytes, len))
        conn->over = true;
}

void ft_coord_tell_view_number(const struct ft_coord_member *member, enum ft_members_message type,
                               uint64_t term, uint64_t epoch, const char *why)
{
    unsigned char bytes[20 + FT_FAIL_BYTES], *at = bytes;
    size_t len = why ? strnlen(why, FT_FAIL_BYTES) : 0;
    put32(&at, member->slot);
    put64(&at, term);
    put64(&at, epoch);
    if (len > 0)
        memcpy(at, why, len);
    ft_coord_tell(member->conn, type, bytes, 20 + len);
}

void ft_coord_refuse(struct ft_coord_conn *conn, uint32_t slot, int status, const char *fmt, ...)
{
    unsigned char bytes[8 + FT_FAIL_BYTES], *at = bytes;
    put32(&at, slot);
    put32(&at, (uint32_t)status);
    va_list args;
    va_start(args, fmt);
    vsnprintf((char *)at, FT_FAIL_BYTES, fmt, args);
    va_end(args);
    ft_coord_tell(conn, FT_MEMBERS_REFUSED, bytes, 8 + strlen((char *)at));
}

/* ---- what follows ---------------------------------------------------------------------------- */

void ft_coord_changed(struct ft_coord_group *group)
{
    struct ft_coord *coord = group->coord;
    if (group->changed)
        return;
    group->changed = true;
    group->next_changed = coord->changed;
    coord->changed = group;
}

static void settle_group(struct ft_coord_group *group)
{
    ft_coord_find_largest(group);
    ft_coord_check_held(group);
    ft_coord_fill(group);
    if (ft_coord_is_due(group))
        ft_coord_make_view(group);
    ft_coord_sweep(group);
    if (group->nmembers + group->nstandbys == 0)
        ft_coord_forget(group);
}

static void settle(struct ft_coord *coord)
{
    while (coord->changed) {
        struct ft_coord_group *group = coord->changed;
        coord->changed = group->next_changed;
        group->changed = false;
        settle_group(group);
    }
}

/* ---- time ------------------------------------------------------------------------------------ */

static void read_clock(struct ft_coord *coord)
{
    uint64_t now_ns = ft_now_ns(coord->config.env);
    coord->now_ns += ft_min(now_ns - coord->read_ns, GAP_MOST_NS);
    coord->read_ns = now_ns;
}

static void unlink_conn(struct ft_coord_conn *conn)
{
    struct ft_coord *coord = conn->coord;
    if (conn->prev)
        conn->prev->next = conn->next;
    else if (coord->oldest == conn)
        coord->oldest = conn->next;
    if (conn->next)
        conn->next->prev = conn->prev;
    else if (coord->youngest == conn)
        coord->youngest = conn->prev;
    conn->next = conn->prev = NULL;
}

static void heard(struct ft_coord_conn *conn)
{
    struct ft_coord *coord = conn->coord;
    conn->heard_ns = coord->now_ns;
    if (coord->youngest == conn)
        return;
    unlink_conn(conn);
    conn->prev = coord->youngest;
    if (coord->youngest)
        coord->youngest->next = conn;
    else
        coord->oldest = conn;
    coord->youngest = conn;
}

static struct ft_coord_conn *find_silent(struct ft_coord *coord)
{
    uint64_t least_ms = coord->least_suspect_ms ? coord->least_suspect_ms : SUSPECT_FIRST_MS;
    least_ms = ft_min(least_ms, SUSPECT_FIRST_MS);
    for (struct ft_coord_conn *conn = coord->oldest; conn; conn = conn->next) {
        uint64_t silence_ns = coord->now_ns - conn->heard_ns;
        if (silence_ns < least_ms * NS_PER_MS)
            return NULL;
        if (!conn->silent && silence_ns >= conn->suspect_ms * NS_PER_MS)
            return conn;
    }
    return NULL;
}

void *ft_coord_tick(struct ft_coord *coord)
{
    read_clock(coord);
    struct ft_coord_conn *silent = find_silent(coord);
    if (silent) {
        silent->silent = true;
        return silent->owner;
    }
    for (struct ft_coord_group *group = coord->group; group; group = group->next) {
        if (ft_coord_is_due(group) || !group->settled)
            ft_coord_changed(group);
    }
    settle(coord);
    for (struct ft_coord_group *group = coord->group; group; group = group->next) {
        if (group->nasked > 0)
            ft_coord_tell_waits(group);
    }
    return NULL;
}

void ft_coord_count(const struct ft_coord *coord, struct ft_coord_counts *out)
{
    *out = coord->counts;
}

/*
 * Tells members that have asked for what the coordinator waits: when that has lasted a while, when
 * it is something else than before, and seldom enough.
 */
#include "membership/coord_parts.h"

#include "base/wire.h"

#include <stdarg.h>
#include <string.h>

#define FIRST_NS UINT64_C(300000000)
#define AGAIN_NS UINT64_C(1000000000)
#define NS_PER_MS UINT64_C(1000000)
#define DETAILS_MOST 3 /* replicas that a sentence names */
#define RANKS_MOST 4   /* ranks of one of them */

struct text {
    char bytes[FT_FAIL_BYTES];
    size_t len;
};

static void add(struct text *, const char *fmt, ...) FT_PRINTF(2, 3);
static void add(struct text *text, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    int len = vsnprintf(text->bytes + text->len, sizeof(text->bytes) - text->len, fmt, args);
    va_end(args);
    if (len > 0)
        text->len = ft_min(text->len + (size_t)len, sizeof(text->bytes) - 1);
}

static bool is_late(const struct ft_coord_place *place, bool complete)
{
    return complete ? !place->member->asked : !place->member;
}

/* "rank 1", "ranks 1 and 3", "ranks 0, 1, 2, 3 and 12 more" */
static void add_late_ranks(struct text *text, const struct ft_coord_replica *replica, uint32_t late,
                           bool complete)
{
    uint32_t named = 0;
    add(text, late == 1 ? "rank" : "ranks");
    for (uint32_t at = 0; at < replica->size && named < RANKS_MOST; at++) {
        if (!is_late(&replica->place[at], complete))
            continue;
        const char *before = named == 0 ? "" : named + 1 == late ? " and" : ",";
        add(text, "%s %u", before, at);
        named++;
    }
    if (named < late)
        add(text, " and %u more", late - named);
}

static void add_replica(struct text *text, const struct ft_coord_replica *replica)
{
    bool complete = replica->nmembers == replica->size;
    if (complete && replica->nasked == 0) {
        add(text, "; replica %s is alive and has not asked", replica->name);
    } else if (complete) {
        uint32_t late = replica->size - replica->nasked;
        add(text, "; ");
        add_late_ranks(text, replica, late, true);
        add(text, " of replica %s %s not asked", replica->name, late == 1 ? "has" : "have");
    } else {
        add(text, "; replica %s lacks ", replica->name);
        add_late_ranks(text, replica, replica->size - replica->nmembers, false);
    }
}

static void add_replicas(struct text *text, const struct ft_coord_group *group)
{
    size_t named = 0, late = group->nreplicas - group->nready;
    for (size_t i = 0; i < group->nreplicas && named < ft_min(late, DETAILS_MOST); i++) {
        if (group->order[i]->nasked == group->order[i]->size)
            continue;
        add_replica(text, group->order[i]);
        named++;
    }
    if (named < late)
        add(text, "; and %zu more", late - named);
}

static void write_reason(struct text *text, const struct ft_coord_group *group)
{
    uint32_t majority = group->ncomplete / 2 + 1;
    uint32_t needed = (uint32_t)ft_max(majority, group->min_members.value);
    if (group->restarted && !group->settled && group->told.nranks == 0) {
        add(text, "the coordinator has restarted, and nobody who has the last view has registered "
                  "again");
    } else if (group->told.nranks > 0) {
        add(text,
            "the coordinator has restarted, and %u of %u replicas of the last view have "
            "registered again",
            group->nheld, group->told.nranks);
    } else if (group->no_memory) {
        add(text, "the coordinator has no memory for the view");
    } else {
        bool enough = group->nready >= needed;
        add(text, "%u of %u replicas that are %s are ready", group->nready,
            enough ? group->ncomplete : needed, enough ? "alive" : "needed");
    }
    add_replicas(text, group);
}

static void add_window(struct text *text, const struct ft_coord_group *group)
{
    bool restarts = group->restarted && !group->settled;
    uint64_t since_ns = restarts ? group->began_ns : group->asked_ns;
    uint64_t waited_ms = (group->coord->now_ns - since_ns) / NS_PER_MS;
    if (waited_ms < group->window_ms.value)
        add(text, " (%.1f s of the window of %g s)", (double)waited_ms / 1000,
            (double)group->window_ms.value / 1000);
}

void ft_coord_tell_wait(const struct ft_coord_member *member, const char *why)
{
    unsigned char bytes[4 + FT_FAIL_BYTES], *at = bytes;
    size_t len = strnlen(why, FT_FAIL_BYTES);
    put32(&at, member->slot);
    memcpy(at, why, len);
    ft_coord_tell(member->conn, FT_MEMBERS_WAITS, bytes, 4 + len);
}

static void tell_all(const struct ft_coord_group *group, const char *why, uint64_t about)
{
    for (size_t i = 0; i < group->nreplicas; i++) {
        const struct ft_coord_replica *replica = group->order[i];
        for (uint32_t at = 0; at < replica->size && replica->nasked > 0; at++) {
            struct ft_coord_member *member = replica->place[at].member;
            if (!member || !member->asked || member->waits_about == about)
                continue;
            member->waits_about = about;
            ft_coord_tell_wait(member, why);
        }
    }
}

void ft_coord_tell_waits(struct ft_coord_group *group)
{
    uint64_t now_ns = group->coord->now_ns;
    if (now_ns - group->asked_ns < FIRST_NS)
        return;
    if (group->waits_ns != 0 && now_ns - group->waits_ns < AGAIN_NS)
        return;
    struct text text = {.len = 0};
    write_reason(&text, group);
    uint64_t about = ft_hash64(text.bytes, text.len, group->coord->seed);
    group->waits_ns = now_ns;
    add_window(&text, group);
    tell_all(group, text.bytes, about);
}

void ft_coord_write_waits(const struct ft_coord_group *group, char out[FT_FAIL_BYTES])
{
    struct text text = {.len = 0};
    write_reason(&text, group);
    add_window(&text, group);
    memcpy(out, text.bytes, text.len + 1);
}

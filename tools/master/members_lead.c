/*
 * Several ftccld with one store: the one that leads serves members; the others refuse them, so that
 * they try the next address. One that leads no more ends its members' connections, which register
 * with the next leader and tell it what they have. What no member could tell, because all of a
 * replica died together with the leader, the store tells: which replicas the last view of each
 * group had.
 */
#include "members.h"
#include "store.h"

#include "base/wire.h"

#include <inttypes.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#define GROUPS_MOST 4096
#define REPLICAS_MOST 65536
/* So long after the death of a leader, groups that have not come again are kept. */
#define PATIENCE_NS UINT64_C(60000000000)

struct members_lead {
    struct store *store;
    json_t
        *recalled; /* the groups of the last leader, by name; NULL: none, or their time is over */
    uint64_t recalled_until_ns, kept; /* kept: a hash of the text that was kept last */
    bool too_long;                    /* for the store */
};

/* ---- what an earlier leader kept ------------------------------------------------------------- */

static void recall_group(struct members *m, const char *name, const json_t *replicas)
{
    struct ft_role role = {0};
    size_t i;
    const json_t *replica;
    snprintf(role.group, sizeof role.group, "%s", name);
    json_array_foreach(replicas, i, replica)
    {
        const char *of = json_string_value(json_object_get(replica, "name"));
        json_int_t size = json_integer_value(json_object_get(replica, "ranks"));
        if (i >= REPLICAS_MOST || !of || size < 1 || size > FT_LOCAL_MOST)
            return; /* nobody wrote this who knows how */
        snprintf(role.replica, sizeof role.replica, "%s", of);
        role.local_size = (uint32_t)size;
        if (ft_coord_recall(m->coord, &role) != FT_OK)
            return;
    }
}

static void recall(struct members *m)
{
    struct members_lead *lead = m->lead;
    char *text = store_take_kept(lead->store);
    json_t *kept = text ? json_loads(text, 0, NULL) : NULL;
    const char *name;
    json_t *replicas;
    free(text);
    json_decref(lead->recalled);
    lead->recalled = json_is_object(kept) ? kept : NULL;
    lead->recalled_until_ns = daemon_now_ns() + PATIENCE_NS;
    lead->kept = 0;
    if (!lead->recalled)
        json_decref(kept);
    else if (json_object_size(kept) <= GROUPS_MOST)
        json_object_foreach(kept, name, replicas) recall_group(m, name, replicas);
}

/* ---- what this leader keeps ------------------------------------------------------------------ */

/* The groups that have a view, and the one whose replicas come now. */
struct keeping {
    json_t *groups, *replicas;
};

static void keep_group(void *arg, const struct ft_coord_group_row *row)
{
    struct keeping *keeping = arg;
    keeping->replicas = row->epoch != 0 ? json_array() : NULL;
    /* a name that is no UTF-8 is not kept */
    if (keeping->replicas &&
        json_object_set_new(keeping->groups, row->name, keeping->replicas) != 0)
        keeping->replicas = NULL;
}

static void keep_replica(void *arg, const struct ft_coord_replica_row *row)
{
    struct keeping *keeping = arg;
    if (keeping->replicas && row->place >= 0)
        json_array_append_new(keeping->replicas, json_pack("{ss,sI}", "name", row->name, "ranks",
                                                           (json_int_t)row->local_size));
}

void members_lead_tick(struct members *m)
{
    struct members_lead *lead = m->lead;
    if (!lead || !m->leads || m->stale)
        return;
    if (lead->recalled && daemon_now_ns() >= lead->recalled_until_ns) {
        json_decref(lead->recalled);
        lead->recalled = NULL;
        ft_coord_forget_recalled(m->coord);
    }
    struct keeping keeping = {.groups = lead->recalled ? json_copy(lead->recalled) : json_object()};
    const struct ft_coord_visitor visitor = {
        .group = keep_group, .replica = keep_replica, .arg = &keeping};
    ft_coord_visit(m->coord, &visitor);
    char *text = json_dumps(keeping.groups, JSON_COMPACT | JSON_SORT_KEYS);
    json_decref(keeping.groups);
    size_t len = text ? strlen(text) : 0;
    uint64_t hash = text ? ft_hash64(text, len, 1) : 0;
    lead->too_long = len > ETCD_TEXT_MOST;
    if (hash == lead->kept || lead->too_long) {
        free(text);
        return;
    }
    lead->kept = hash;
    store_keep(lead->store, text);
}

/* ---- who leads ------------------------------------------------------------------------------- */

static void stand_down(struct members *m)
{
    char why[300];
    members_lead_tell(m, why, sizeof why);
    m->leads = false;
    m->stale = true;
    daemon_peers_end(m->daemon, DAEMON_MEMBERS, why);
}

void members_look(struct members *m)
{
    if (!m->lead || m->leads == store_leads(m->lead->store))
        return;
    if (m->leads) {
        stand_down(m);
        return;
    }
    if (m->stale && m->connections == 0)
        members_begin_anew(m);
    if (!m->stale) {
        m->leads = true;
        recall(m);
    }
}

static void on_change(void *arg)
{
    members_look(arg);
}

/* The sentence reaches the caller of ftcclMemberJoin() or View() if nobody leads for long. */
static void refuse(struct members *m, struct daemon_peer *peer,
                   const struct daemon_message *message)
{
    char text[300];
    unsigned char bytes[8 + sizeof text], *at = bytes;
    const unsigned char *slot = message->bytes;
    members_lead_tell(m, text, sizeof text);
    if (message->type == FT_MEMBERS_JOIN && message->len >= 4) {
        put32(&at, get32(&slot));
        put32(&at, (uint32_t)FT_AGAIN);
        size_t len = strlen(text);
        memcpy(at, text, len);
        const struct daemon_message refusal = {DAEMON_MEMBERS, FT_MEMBERS_REFUSED, bytes, 8 + len};
        daemon_peer_send(peer, &refusal);
    }
    daemon_peer_end(peer, text);
}

bool members_serves(struct members *m, struct daemon_peer *peer,
                    const struct daemon_message *message)
{
    members_look(m);
    if (!m->lead || m->leads)
        return true;
    refuse(m, peer, message);
    return false;
}

void members_lead_tell(const struct members *m, char *text, size_t room)
{
    if (!m->lead)
        snprintf(text, room, "%s", "");
    else if (m->lead->too_long)
        snprintf(text, room, "this one leads; its groups are more than the store can keep");
    else
        store_tell(m->lead->store, text, room);
}

bool members_lead_open(struct members *m)
{
    const struct daemon_options *o = daemon_options_of(m->daemon);
    const struct store_options options = {.url = o->store,
                                          .advertise = o->advertise,
                                          .lease_s = o->lease_s,
                                          .changed = on_change,
                                          .arg = m};
    if (!o->store[0])
        return true;
    m->lead = calloc(1, sizeof *m->lead);
    if (m->lead)
        m->lead->store = store_open(m->daemon, &options);
    else
        ft_fail(FT_NOMEM, "no memory for the store");
    if (m->lead && m->lead->store)
        return true;
    fprintf(stderr, "%s: --store: %s\n", o->program, ft_fail_text());
    return false;
}

void members_lead_close(struct members *m)
{
    if (!m->lead)
        return;
    store_close(m->lead->store);
    json_decref(m->lead->recalled);
    free(m->lead);
}

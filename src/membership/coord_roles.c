/*
 * Who has which role. A member that registers is checked against its group; the same process on a
 * new connection replaces itself, another one must wait until the role is free. Roles that lost
 * their member are vacant until a standby or a new process takes them.
 */
#include "membership/coord_parts.h"

#include "base/wire.h"

#include <stdlib.h>
#include <string.h>

#define SUSPECT_MOST_MS 3600000u
#define WINDOW_MOST_MS 3600000u
#define NS_PER_SECOND 1e9
#define NS_PER_MS UINT64_C(1000000)

/* A member that registers: what it says, and whom it concerns. Steps of join() fill it in; each
 * returns false when the member was refused. */
struct joining {
    struct ft_coord *coord;
    struct ft_coord_conn *conn;
    const struct ft_members_join *join;
    struct ft_endpoint endpoint;
    struct ft_coord_group *group;
    struct ft_coord_replica *replica; /* NULL: it is a standby */
    uint32_t local_rank;
    struct ft_coord_member *before; /* the same process, registered earlier */
};

#define REFUSE(j, ...) (ft_coord_refuse((j)->conn, (j)->join->slot, __VA_ARGS__), false)

static uint64_t hash_name(const struct ft_coord *coord, const char *name)
{
    return ft_hash64(name, strlen(name), coord->seed);
}

static uint64_t hash_engine(const struct ft_coord *coord, uint64_t engine)
{
    return ft_hash64(&engine, sizeof(engine), coord->seed);
}

/* ---- what a member says must make sense ------------------------------------------------------ */

static bool is_plain(const char *name)
{
    for (; *name; name++) {
        if ((unsigned char)*name < ' ' || *name == 127)
            return false;
    }
    return true;
}

static bool check_role(struct joining *j)
{
    const struct ft_role *role = &j->join->role;
    if (role->group[0] == '\0')
        return REFUSE(j, FT_USAGE, "the name of a group is empty");
    if (!is_plain(role->group) || !is_plain(role->replica))
        return REFUSE(j, FT_USAGE, "the name of a group or of a replica has control characters");
    if (role->replica[0] == '\0')
        return true;
    if (role->local_size == 0 || role->local_size > FT_LOCAL_MOST)
        return REFUSE(j, FT_USAGE, "replica %s is to have %u ranks: 1 to %d are possible",
                      role->replica, role->local_size, FT_LOCAL_MOST);
    if (role->local_rank >= role->local_size)
        return REFUSE(j, FT_USAGE, "replica %s has no local rank %u: it has %u ranks",
                      role->replica, role->local_rank, role->local_size);
    return true;
}

static bool check_slot(struct joining *j)
{
    struct ft_coord_conn *conn = j->conn;
    uint32_t slot = j->join->slot;
    if (slot < conn->nslots) {
        struct ft_coord_member *there = conn->slot[slot];
        if (!there || there->engine == j->join->engine)
            return true;
        return REFUSE(j, FT_USAGE, "slot %u of this connection is taken by another process", slot);
    }
    uint32_t nslots = (uint32_t)ft_min(ft_round_up(slot + 1, 8), FT_SLOTS_MOST);
    struct ft_coord_member **grown = realloc(conn->slot, nslots * sizeof(struct ft_coord_member *));
    if (!grown)
        return REFUSE(j, FT_NOMEM, "the coordinator has no memory for another member");
    memset(grown + conn->nslots, 0, (nslots - conn->nslots) * sizeof(*grown));
    conn->slot = grown;
    conn->nslots = nslots;
    return true;
}

/* ---- groups and replicas --------------------------------------------------------------------- */

static struct ft_coord_group *find_group(const struct ft_coord *coord, const char *name)
{
    uint64_t hash = hash_name(coord, name);
    for (struct ft_coord_node *node = NULL;
         (node = ft_coord_table_find(&coord->groups, node, hash)) != NULL;) {
        struct ft_coord_group *group = FT_CONTAINER(node, struct ft_coord_group, by_name);
        if (strcmp(group->name, name) == 0)
            return group;
    }
    return NULL;
}

static struct ft_coord_replica *find_replica(const struct ft_coord_group *group, const char *name)
{
    uint64_t hash = hash_name(group->coord, name);
    for (struct ft_coord_node *node = NULL;
         (node = ft_coord_table_find(&group->replicas, node, hash)) != NULL;) {
        struct ft_coord_replica *replica = FT_CONTAINER(node, struct ft_coord_replica, by_name);
        if (strcmp(replica->name, name) == 0)
            return replica;
    }
    return NULL;
}

static bool grow_order(struct ft_coord_group *group)
{
    if (group->nreplicas < group->capacity)
        return true;
    size_t capacity = ft_max(2 * group->capacity, 4);
    struct ft_coord_replica **order = realloc(group->order, capacity * sizeof(*order));
    if (!order)
        return false;
    group->order = order;
    group->capacity = capacity;
    return true;
}

static struct ft_coord_replica *new_replica(struct ft_coord_group *group,
                                            const struct ft_role *role)
{
    size_t places = role->local_size * sizeof(struct ft_coord_place);
    struct ft_coord_replica *replica = NULL;
    if (grow_order(group) && ft_coord_table_reserve(&group->replicas))
        replica = calloc(1, sizeof(*replica) + places);
    if (!replica)
        return NULL;
    replica->group = group;
    memcpy(replica->name, role->replica, sizeof(replica->name));
    replica->size = role->local_size;
    replica->next_rank = replica->held_rank = FT_NO_RANK;
    ft_coord_table_add(&group->replicas, &replica->by_name, hash_name(group->coord, replica->name));
    group->order[group->nreplicas++] = replica;
    group->local_size = replica->size;
    group->coord->counts.replicas++;
    ft_coord_weigh(replica, 1);
    return replica;
}

/* All its roles are vacant, but until the group is settled its members may come. Without memory it
 * is not known. */
static void add_recalled(struct ft_coord_group *group, const struct ft_role *role)
{
    bool fits = group->nreplicas == 0 || group->local_size == role->local_size;
    struct ft_coord_replica *replica = NULL;
    if (fits && !find_replica(group, role->replica))
        replica = new_replica(group, role);
    if (!replica)
        return;
    ft_coord_weigh(replica, -1);
    replica->recalled = true;
    replica->nvacant = replica->size;
    for (uint32_t at = 0; at < replica->size; at++)
        replica->place[at].vacant = true;
    ft_coord_weigh(replica, 1);
}

static void recall_replicas(struct ft_coord_group *group)
{
    struct ft_coord_recalled **at = &group->coord->recalled;
    while (*at) {
        struct ft_coord_recalled *recalled = *at;
        if (strcmp(recalled->role.group, group->name) != 0) {
            at = &recalled->next;
            continue;
        }
        *at = recalled->next;
        add_recalled(group, &recalled->role);
        free(recalled);
    }
}

/* Another job has the name now. */
static void drop_recalled(struct ft_coord_group *group)
{
    for (size_t i = 0; i < group->nreplicas; i++) {
        ft_coord_weigh(group->order[i], -1);
        group->order[i]->recalled = false;
        ft_coord_weigh(group->order[i], 1);
    }
    ft_coord_sweep(group);
}

static struct ft_coord_group *new_group(struct joining *j)
{
    struct ft_coord *coord = j->coord;
    struct ft_coord_group *group = NULL;
    if (ft_coord_table_reserve(&coord->groups))
        group = calloc(1, sizeof(*group));
    if (!group)
        return NULL;
    memcpy(group->name, j->join->role.group, sizeof(group->name));
    group->coord = coord;
    group->last_standby = &group->standbys;
    group->epoch = coord->epoch_floor;
    group->began_ns = coord->now_ns;
    group->config = j->endpoint.config;
    memcpy(group->config_text, j->endpoint.config_text, sizeof(group->config_text));
    group->next = coord->group;
    group->link = &coord->group;
    if (group->next)
        group->next->link = &group->next;
    coord->group = group;
    ft_coord_table_add(&coord->groups, &group->by_name, hash_name(coord, group->name));
    coord->counts.groups++;
    recall_replicas(group);
    return group;
}

static bool join_group(struct joining *j)
{
    j->group = find_group(j->coord, j->join->role.group);
    if (!j->group) {
        if (j->coord->counts.groups >= FT_GROUPS_MOST)
            return REFUSE(j, FT_USAGE, "the coordinator has %d groups, and no room for another",
                          FT_GROUPS_MOST);
        j->group = new_group(j);
    }
    if (!j->group || !ft_coord_table_reserve(&j->group->engines))
        return REFUSE(j, FT_NOMEM, "the coordinator has no memory for another member");
    if (j->group->config != j->endpoint.config)
        return REFUSE(j, FT_MISMATCH,
                      "this process is configured differently from the others of group %s: %s; "
                      "there: %s",
                      j->group->name, j->endpoint.config_text, j->group->config_text);
    j->before = ft_coord_find_engine(j->group, j->join->engine);
    if (j->conn->slot[j->join->slot] && j->conn->slot[j->join->slot] != j->before)
        return REFUSE(j, FT_USAGE, "slot %u of this connection has a member of another group",
                      j->join->slot);
    return true;
}

/* ---- the role ------------------------------------------------------------------------------- */

/* A view of everybody must fit a message. */
static bool fits(const struct ft_coord_group *group, size_t nreplicas, size_t endpoint_bytes)
{
    size_t each = ft_max(group->endpoint_most, endpoint_bytes) + 12;
    return (nreplicas + FT_LOCAL_MOST) * each < FT_MEMBERS_MESSAGE_MOST - 1024;
}

static bool join_replica(struct joining *j)
{
    const struct ft_role *role = &j->join->role;
    struct ft_coord_group *group = j->group;
    if (group->nmembers == 0 && group->nreplicas > 0 && group->local_size != role->local_size)
        drop_recalled(group);
    struct ft_coord_replica *replica = find_replica(group, role->replica);
    j->local_rank = role->local_rank;
    if (group->nreplicas > 0 && group->local_size != role->local_size)
        return REFUSE(j, FT_USAGE,
                      "replica %s is to have %u ranks, but replica %s of group %s has %u",
                      role->replica, role->local_size,
                      replica ? replica->name : group->order[0]->name, group->name,
                      group->local_size);
    if (!fits(group, group->nreplicas + !replica, j->join->endpoint_bytes))
        return REFUSE(j, FT_USAGE, "group %s has %zu replicas, and no room for another",
                      group->name, group->nreplicas);
    j->replica = replica ? replica : new_replica(group, role);
    return j->replica || REFUSE(j, FT_NOMEM, "the coordinator has no memory for another replica");
}

/* A process that has died, or is silent, is found within the patience of its connection. So one
 * that has been heard after that lives, and who wants its role need not wait. */
static bool lives_on(const struct ft_coord_member *holder, struct ft_coord_place *place,
                     uint64_t engine)
{
    const struct ft_coord_conn *conn = holder->conn;
    const uint64_t now_ns = conn->coord->now_ns;
    if (place->wanted_by != engine) {
        place->wanted_by = engine;
        place->wanted_ns = now_ns;
    }
    return conn->heard_ns > place->wanted_ns &&
           now_ns - place->wanted_ns >= conn->suspect_ms * NS_PER_MS;
}

/* Whether another process has the role. One that holds an older view than this one gives it up: it
 * slept through a restart of the coordinator. */
static bool take_role(struct joining *j)
{
    struct ft_coord_place *place = &j->replica->place[j->local_rank];
    struct ft_coord_member *holder = place->member;
    const struct ft_members_join *join = j->join;
    if (!holder || holder == j->before)
        return true;
    if (j->group->view.term != j->coord->term && join->held_nranks != 0 &&
        join->held_epoch > holder->held.epoch) {
        ft_coord_refuse(holder->conn, holder->slot, FT_FENCED,
                        "rank %u of replica %s went to another process", j->local_rank,
                        j->replica->name);
        ft_coord_end(holder, FT_END_REPLACED);
        return true;
    }
    if (join->held_nranks != 0)
        return REFUSE(j, FT_FENCED, "rank %u of replica %s went to another process", j->local_rank,
                      j->replica->name);
    return REFUSE(j, lives_on(holder, place, join->engine) ? FT_USAGE : FT_AGAIN,
                  "rank %u of replica %s is held by another process, last heard %.1f s ago",
                  j->local_rank, j->replica->name,
                  (double)(j->coord->now_ns - holder->conn->heard_ns) / NS_PER_SECOND);
}

static bool find_role(struct joining *j)
{
    const struct ft_coord_member *before = j->before;
    bool standby = j->join->role.replica[0] == '\0';
    if (standby) {
        /* Perhaps it does not know yet that it has got a role. */
        j->replica = before ? before->replica : NULL;
        j->local_rank = before ? before->local_rank : 0;
        return true;
    }
    if (!join_replica(j) || !take_role(j))
        return false;
    if (before && before->replica &&
        (before->replica != j->replica || before->local_rank != j->local_rank))
        return REFUSE(j, FT_USAGE, "this process has rank %u of replica %s already",
                      before->local_rank, before->replica->name);
    return true;
}

int ft_coord_recall(struct ft_coord *coord, const struct ft_role *role)
{
    if (!is_plain(role->group) || !is_plain(role->replica) || !role->group[0] ||
        !role->replica[0] || role->local_size == 0 || role->local_size > FT_LOCAL_MOST)
        return ft_fail(FT_INVAL, "what was kept of a replica makes no sense");
    struct ft_coord_recalled *recalled = malloc(sizeof(*recalled));
    if (!recalled)
        return ft_fail(FT_NOMEM, "no memory for what was kept of replica %s", role->replica);
    recalled->role = *role;
    recalled->next = coord->recalled;
    coord->recalled = recalled;
    return FT_OK;
}

void ft_coord_forget_recalled(struct ft_coord *coord)
{
    while (coord->recalled) {
        struct ft_coord_recalled *next = coord->recalled->next;
        free(coord->recalled);
        coord->recalled = next;
    }
}

/* ---- members come ---------------------------------------------------------------------------- */

struct ft_coord_member *ft_coord_find_engine(const struct ft_coord_group *group, uint64_t engine)
{
    uint64_t hash = hash_engine(group->coord, engine);
    for (struct ft_coord_node *node = NULL;
         (node = ft_coord_table_find(&group->engines, node, hash)) != NULL;) {
        struct ft_coord_member *member = FT_CONTAINER(node, struct ft_coord_member, by_engine);
        if (member->engine == engine)
            return member;
    }
    return NULL;
}

static struct ft_coord_member *new_member(struct joining *j)
{
    const struct ft_members_join *join = j->join;
    struct ft_coord_member *member = calloc(1, sizeof(*member) + join->endpoint_bytes);
    if (!member)
        return NULL;
    member->conn = j->conn;
    member->group = j->group;
    member->slot = join->slot;
    member->engine = join->engine;
    member->step = join->step;
    member->min_members = join->min_members;
    member->window_ms = (uint32_t)ft_min(join->window_ms, WINDOW_MOST_MS);
    member->suspect_ms = (uint32_t)ft_min(ft_max(join->suspect_ms, 1), SUSPECT_MOST_MS);
    member->endpoint_bytes = (uint32_t)join->endpoint_bytes;
    memcpy(member->endpoint, join->endpoint, join->endpoint_bytes);
    member->print = ft_hash64(join->endpoint, join->endpoint_bytes, j->coord->seed) | 1;
    return member;
}

/* The connection's patience is that of its most patient member. */
static void set_patience(struct joining *j, uint32_t suspect_ms)
{
    struct ft_coord_conn *conn = j->conn;
    struct ft_coord *coord = j->coord;
    bool first = true;
    for (uint32_t i = 0; first && i < conn->nslots; i++)
        first = !conn->slot[i];
    if (first || conn->suspect_ms < suspect_ms)
        conn->suspect_ms = suspect_ms;
    if (coord->least_suspect_ms == 0 || coord->least_suspect_ms > suspect_ms)
        coord->least_suspect_ms = suspect_ms;
}

static void put_into_role(struct ft_coord_member *member, struct ft_coord_replica *replica,
                          uint32_t local_rank)
{
    struct ft_coord_place *place = &replica->place[local_rank];
    struct ft_coord_group *group = member->group;
    member->replica = replica;
    member->local_rank = local_rank;
    ft_coord_weigh(replica, -1);
    place->member = member;
    replica->nmembers++;
    replica->nvacant -= place->vacant;
    replica->nsame += replica->in_view && place->view_print == member->print;
    place->vacant = false;
    ft_coord_weigh(replica, 1);
    if (group->nmembers++ == 0 && !group->settled)
        group->began_ns = group->coord->now_ns;
    group->coord->counts.members++;
    ft_coord_largest_add(&group->min_members, member->min_members);
    ft_coord_largest_add(&group->window_ms, member->window_ms);
}

static void put_among_standbys(struct ft_coord_member *member)
{
    struct ft_coord_group *group = member->group;
    member->next = NULL;
    member->link = group->last_standby;
    *group->last_standby = member;
    group->last_standby = &member->next;
    group->nstandbys++;
    group->coord->counts.standbys++;
}

static void take_from_standbys(struct ft_coord_member *member)
{
    struct ft_coord_group *group = member->group;
    *member->link = member->next;
    if (member->next)
        member->next->link = member->link;
    else
        group->last_standby = member->link;
    group->nstandbys--;
    group->coord->counts.standbys--;
}

static void tell_joined(const struct ft_coord_member *member)
{
    const struct ft_coord_group *group = member->group;
    struct ft_role role = {.local_rank = member->local_rank};
    unsigned char bytes[20 + 2 * FT_NAME_BYTES + 8], *at = bytes;
    memcpy(role.group, group->name, sizeof(role.group));
    if (member->replica) {
        memcpy(role.replica, member->replica->name, sizeof(role.replica));
        role.local_size = member->replica->size;
    }
    put32(&at, member->slot);
    put64(&at, group->coord->term);
    put64(&at, group->epoch);
    size_t len = 20 + ft_members_role_encode(at, &role);
    ft_coord_tell(member->conn, FT_MEMBERS_JOINED, bytes, len);
}

static void enter(struct joining *j, struct ft_coord_member *member)
{
    const struct ft_members_join *join = j->join;
    struct ft_held held = {join->held_term, join->held_epoch, join->held_nranks, join->held_rank,
                           join->held_times};
    struct ft_held none = {0};
    set_patience(j, member->suspect_ms);
    if (j->before && (j->before->conn != j->conn || j->before->slot != join->slot))
        ft_coord_refuse(j->before->conn, j->before->slot, FT_AGAIN,
                        "this process has registered on another connection");
    if (j->before)
        ft_coord_end(j->before, FT_END_REPLACED);
    j->conn->slot[join->slot] = member;
    ft_coord_table_add(&j->group->engines, &member->by_engine,
                       hash_engine(j->coord, member->engine));
    if (j->group->endpoint_most < member->endpoint_bytes)
        j->group->endpoint_most = member->endpoint_bytes;
    if (j->replica)
        put_into_role(member, j->replica, j->local_rank);
    else
        put_among_standbys(member);
    if (held.epoch != 0 && held.term != j->coord->term) {
        ft_coord_raise(j->group, held.epoch);
        j->group->restarted = true;
    }
    tell_joined(member);
    if (j->replica)
        ft_coord_hear_held(member, held.nranks != 0 ? &held : &none);
}

void ft_coord_join(struct ft_coord_conn *conn, const struct ft_members_join *join)
{
    struct joining j = {.coord = conn->coord, .conn = conn, .join = join};
    if (ft_endpoint_decode(join->endpoint, join->endpoint_bytes, &j.endpoint) <= 0)
        return;
    if (check_role(&j) && check_slot(&j) && join_group(&j) && find_role(&j)) {
        struct ft_coord_member *member = new_member(&j);
        if (member)
            enter(&j, member);
        else
            ft_coord_refuse(conn, join->slot, FT_NOMEM,
                            "the coordinator has no memory for another member");
    }
    if (j.group)
        ft_coord_changed(j.group);
}

/* ---- members go ------------------------------------------------------------------------------ */

static void leave_role(struct ft_coord_member *member, enum ft_coord_end why)
{
    struct ft_coord_group *group = member->group;
    struct ft_coord_replica *replica = member->replica;
    struct ft_coord_place *place = &replica->place[member->local_rank];
    ft_coord_unask(member);
    ft_coord_drop_held(member);
    ft_coord_weigh(replica, -1);
    place->member = NULL;
    place->vacant = why == FT_END_CLOSED || why == FT_END_SILENT || why == FT_END_DEAD;
    replica->nmembers--;
    replica->nvacant += place->vacant;
    replica->nsame -= replica->in_view && place->view_print == member->print;
    ft_coord_weigh(replica, 1);
    group->nmembers--;
    group->coord->counts.members--;
    ft_coord_largest_remove(&group->min_members, member->min_members);
    ft_coord_largest_remove(&group->window_ms, member->window_ms);
}

void ft_coord_end(struct ft_coord_member *member, enum ft_coord_end why)
{
    struct ft_coord_group *group = member->group;
    bool had_view = member->replica && ft_coord_has_view(member);
    char text[FT_FAIL_BYTES] = "";
    double silence_s = (double)(group->coord->now_ns - member->conn->heard_ns) / NS_PER_SECOND;
    if (member->silent_ms > 0)
        silence_s = member->silent_ms / 1e3;
    if (why == FT_END_SILENT && had_view)
        snprintf(text, sizeof(text), "rank %u of replica %s has been silent for %.1f s",
                 member->local_rank, member->replica->name, silence_s);
    member->conn->slot[member->slot] = NULL;
    ft_coord_table_remove(&group->engines, &member->by_engine);
    if (member->replica)
        leave_role(member, why);
    else
        take_from_standbys(member);
    free(member);
    if (text[0])
        ft_coord_break(group, text);
    ft_coord_changed(group);
}

/* The members of recalled replicas have had their time to come. */
static bool is_late(const struct ft_coord_group *group)
{
    uint64_t since_ns = group->coord->now_ns - group->began_ns;
    return group->settled ||
           (group->nmembers == 0 && since_ns >= group->standbys->window_ms * NS_PER_MS);
}

/* The replica with a vacant role that lacks the fewest members. There are standbys. */
static struct ft_coord_replica *find_vacancy(const struct ft_coord_group *group)
{
    struct ft_coord_replica *best = NULL;
    for (size_t i = 0; i < group->nreplicas; i++) {
        struct ft_coord_replica *replica = group->order[i];
        bool known = replica->recalled ? is_late(group) : replica->nmembers > 0 || replica->in_view;
        if (replica->nvacant == 0 || !known)
            continue;
        if (!best || replica->size - replica->nmembers < best->size - best->nmembers)
            best = replica;
    }
    return best;
}

void ft_coord_fill(struct ft_coord_group *group)
{
    struct ft_coord_replica *replica;
    while (group->standbys && group->nvacant > 0 && (replica = find_vacancy(group)) != NULL) {
        struct ft_coord_member *member = group->standbys;
        uint32_t local_rank = 0;
        while (!replica->place[local_rank].vacant)
            local_rank++;
        take_from_standbys(member);
        put_into_role(member, replica, local_rank);
        tell_joined(member);
    }
}

/* ---- what is needed no more ------------------------------------------------------------------ */

static void free_replica(struct ft_coord_replica *replica)
{
    struct ft_coord_group *group = replica->group;
    ft_coord_weigh(replica, -1);
    ft_coord_table_remove(&group->replicas, &replica->by_name);
    group->coord->counts.replicas--;
    free(replica);
}

void ft_coord_sweep(struct ft_coord_group *group)
{
    size_t kept = 0;
    if (group->nempty == 0)
        return;
    for (size_t i = 0; i < group->nreplicas; i++) {
        struct ft_coord_replica *replica = group->order[i];
        if (replica->nmembers > 0 || replica->in_view || replica->recalled)
            group->order[kept++] = replica;
        else
            free_replica(replica);
    }
    group->nreplicas = kept;
}

void ft_coord_forget(struct ft_coord_group *group)
{
    struct ft_coord *coord = group->coord;
    for (size_t i = 0; i < group->nreplicas; i++)
        free_replica(group->order[i]);
    if (coord->epoch_floor < group->epoch)
        coord->epoch_floor = group->epoch;
    *group->link = group->next;
    if (group->next)
        group->next->link = group->link;
    ft_coord_table_remove(&coord->groups, &group->by_name);
    ft_coord_table_close(&group->engines);
    ft_coord_table_close(&group->replicas);
    coord->counts.groups--;
    free(group->order);
    free(group);
}

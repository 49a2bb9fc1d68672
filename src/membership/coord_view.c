/*
 * Makes a view and sends it. The lists of a rank group, whole or as a change of the last view, are
 * encoded once, those of a replica's own ranks as well; a member's message is a head of its own and
 * references to them. All memory is taken first: without it nothing has happened.
 */
#include "membership/coord_parts.h"

#include "base/wire.h"

#include <stdlib.h>
#include <string.h>

#define HEAD_BYTES (128 + 4 * FT_SOURCES_MOST)

/* What the members with one local rank have in common. */
struct rank_group {
    bool needs_whole, needs_change;
    uint32_t ngone, nadded;
    size_t whole_bytes, added_bytes;
    struct ft_blob *whole, *change;
    unsigned char *at_gone, *at_added; /* where the change goes on */
};

struct making {
    struct ft_coord_group *group;
    struct ft_held view; /* the one that is made */
    uint64_t step;
    bool same;                         /* it is the last one */
    struct rank_group *ranks;          /* [local_size] */
    struct ft_coord_replica **replica; /* [nranks] */
    struct ft_blob **local;            /* [nranks] */
    /* [nhealthy] ranks of replicas that are at `step` with all their members */
    uint32_t *healthy, nhealthy;
    bool *behind;           /* [nranks] the others */
    unsigned char *message; /* for a whole message, if the owner takes no blobs */
};

void ft_blob_hold(struct ft_blob *blob)
{
    blob->holders++;
}

void ft_blob_let_go(struct ft_blob *blob)
{
    if (blob && --blob->holders == 0)
        free(blob);
}

/* ---- what is to be sent ---------------------------------------------------------------------- */

/* Neither its place nor its processes differ from the last view. */
static bool is_unchanged(const struct ft_coord_replica *replica)
{
    return replica->in_view && replica->next_rank != FT_NO_RANK && replica->nsame == replica->size;
}

static void number_replicas(struct making *m)
{
    struct ft_coord_group *group = m->group;
    uint32_t nranks = 0;
    for (size_t i = 0; i < group->nreplicas; i++) {
        struct ft_coord_replica *replica = group->order[i];
        bool ready = replica->nasked == replica->size;
        replica->next_rank = ready ? nranks : FT_NO_RANK;
        if (ready)
            m->replica[nranks++] = replica;
    }
}

/* Looks at all members: at which step they are, and what they must be sent. */
static void survey(struct making *m)
{
    const struct ft_coord_group *group = m->group;
    bool failed = false, lacks = false;
    for (uint32_t i = 0; i < m->view.nranks; i++) {
        const struct ft_coord_replica *replica = m->replica[i];
        uint64_t least = UINT64_MAX;
        for (uint32_t at = 0; at < replica->size; at++) {
            const struct ft_coord_member *member = replica->place[at].member;
            bool has = ft_coord_has_view(member);
            least = ft_min(least, member->step);
            failed |= member->failed;
            lacks |= !has;
            m->ranks[at].needs_whole |= !has;
            m->ranks[at].needs_change |= has;
        }
        m->step = ft_max(m->step, least);
    }
    m->same = !failed && !lacks && !group->broken && group->view.epoch == group->epoch &&
              group->view.term == group->coord->term && group->nready == group->nprevious &&
              group->nprevious == group->view.nranks;
    if (m->same) {
        m->view = group->view;
        m->view.times++;
    } else {
        m->view.term = group->coord->term;
        m->view.epoch = group->epoch + 1;
        m->view.times = 1;
    }
}

/* ---- lists ----------------------------------------------------------------------------------- */

static void put_endpoint(unsigned char **at, const struct ft_coord_member *member)
{
    put32(at, member->endpoint_bytes);
    memcpy(*at, member->endpoint, member->endpoint_bytes);
    *at += member->endpoint_bytes;
}

/* How a role changes from the last view to this one. */
static void find_change(const struct ft_coord_replica *replica, uint32_t at, bool *gone,
                        bool *added)
{
    const struct ft_coord_place *place = &replica->place[at];
    bool remains = replica->in_view && replica->next_rank != FT_NO_RANK &&
                   place->view_print == place->member->print;
    *gone = replica->in_view && !remains;
    *added = replica->next_rank != FT_NO_RANK && !remains;
}

static void measure_change(struct making *m, const struct ft_coord_replica *replica)
{
    for (uint32_t at = 0; at < replica->size; at++) {
        struct rank_group *ranks = &m->ranks[at];
        bool gone, added;
        find_change(replica, at, &gone, &added);
        ranks->ngone += gone;
        ranks->nadded += added;
        if (added)
            ranks->added_bytes += 8 + replica->place[at].member->endpoint_bytes;
    }
}

static void write_change(struct making *m, const struct ft_coord_replica *replica)
{
    for (uint32_t at = 0; at < replica->size; at++) {
        struct rank_group *ranks = &m->ranks[at];
        bool gone, added;
        if (!ranks->change)
            continue;
        find_change(replica, at, &gone, &added);
        if (gone)
            put32(&ranks->at_gone, replica->view_rank);
        if (added) {
            put32(&ranks->at_added, replica->next_rank);
            put_endpoint(&ranks->at_added, replica->place[at].member);
        }
    }
}

static void each_change(struct making *m,
                        void (*each)(struct making *, const struct ft_coord_replica *))
{
    const struct ft_coord_group *group = m->group;
    for (size_t i = 0; i < group->nreplicas; i++) {
        const struct ft_coord_replica *replica = group->order[i];
        if (!is_unchanged(replica) && (replica->in_view || replica->next_rank != FT_NO_RANK))
            each(m, replica);
    }
}

static struct ft_blob *new_blob(size_t len_bytes)
{
    struct ft_blob *blob = malloc(sizeof(*blob) + len_bytes);
    if (!blob)
        return NULL;
    blob->holders = 1;
    blob->len_bytes = len_bytes;
    return blob;
}

static bool encode_whole(const struct making *m, uint32_t local_rank)
{
    struct rank_group *ranks = &m->ranks[local_rank];
    for (uint32_t i = 0; i < m->view.nranks; i++)
        ranks->whole_bytes += 8 + m->replica[i]->place[local_rank].member->endpoint_bytes;
    ranks->whole = new_blob(ranks->whole_bytes);
    if (!ranks->whole)
        return false;
    unsigned char *at = ranks->whole->bytes;
    for (uint32_t i = 0; i < m->view.nranks; i++) {
        put32(&at, i);
        put_endpoint(&at, m->replica[i]->place[local_rank].member);
    }
    return true;
}

/* The lists of the rank groups. */
static bool encode_ranks(struct making *m)
{
    uint32_t local_size = m->group->local_size;
    each_change(m, measure_change);
    for (uint32_t at = 0; at < local_size; at++) {
        struct rank_group *ranks = &m->ranks[at];
        size_t gone_bytes = (size_t)ranks->ngone * 4;
        if (ranks->needs_whole && !encode_whole(m, at))
            return false;
        if (!ranks->needs_change || gone_bytes + ranks->added_bytes == 0)
            continue;
        ranks->change = new_blob(gone_bytes + ranks->added_bytes);
        if (!ranks->change)
            return false;
        ranks->at_gone = ranks->change->bytes;
        ranks->at_added = ranks->change->bytes + gone_bytes;
    }
    each_change(m, write_change);
    return true;
}

static bool needs_local(const struct ft_coord_replica *replica)
{
    bool needs = !is_unchanged(replica);
    for (uint32_t at = 0; !needs && at < replica->size; at++)
        needs = !ft_coord_has_view(replica->place[at].member);
    return needs;
}

/* The ranks of each replica that has changed. */
static bool encode_locals(struct making *m)
{
    for (uint32_t i = 0; i < m->view.nranks; i++) {
        const struct ft_coord_replica *replica = m->replica[i];
        size_t bytes = 0;
        if (!needs_local(replica))
            continue;
        for (uint32_t at = 0; at < replica->size; at++)
            bytes += 4 + replica->place[at].member->endpoint_bytes;
        m->local[i] = new_blob(bytes);
        if (!m->local[i])
            return false;
        unsigned char *to = m->local[i]->bytes;
        for (uint32_t at = 0; at < replica->size; at++)
            put_endpoint(&to, replica->place[at].member);
    }
    return true;
}

static size_t longest_message(const struct making *m)
{
    size_t list = 0, local = 0;
    for (uint32_t at = 0; at < m->group->local_size; at++) {
        const struct rank_group *ranks = &m->ranks[at];
        list = ft_max(list, ranks->whole ? ranks->whole->len_bytes : 0);
        list = ft_max(list, ranks->change ? ranks->change->len_bytes : 0);
    }
    for (uint32_t i = 0; i < m->view.nranks; i++)
        local = ft_max(local, m->local[i] ? m->local[i]->len_bytes : 0);
    return HEAD_BYTES + list + local;
}

/* ---- sending --------------------------------------------------------------------------------- */

/* Ranks to fetch from: each member that is behind begins at another one. */
static uint32_t list_sources(const struct making *m, uint32_t first, unsigned char *out)
{
    uint32_t count = (uint32_t)ft_min(m->nhealthy, FT_SOURCES_MOST);
    for (uint32_t i = 0; i < count; i++)
        put32(&out, m->healthy[(first + i) % m->nhealthy]);
    return count;
}

static void send_parts(const struct making *m, struct ft_coord_conn *conn,
                       const unsigned char *head, size_t head_bytes, struct ft_blob *const blobs[2])
{
    const struct ft_coord_config *config = &conn->coord->config;
    struct ft_blob *const list[2] = {blobs[0] ? blobs[0] : blobs[1], blobs[1]};
    int count = (blobs[0] != NULL) + (blobs[1] != NULL);
    if (conn->over)
        return;
    if (config->send_view) {
        if (!config->send_view(config->arg, conn->owner, head, head_bytes, list, count))
            conn->over = true;
        return;
    }
    size_t len = head_bytes;
    memcpy(m->message, head, head_bytes);
    for (int i = 0; i < count; i++) {
        memcpy(m->message + len, list[i]->bytes, list[i]->len_bytes);
        len += list[i]->len_bytes;
    }
    ft_coord_tell(conn, FT_MEMBERS_VIEW, m->message, len);
}

static void send_member(const struct making *m, uint32_t rank, uint32_t local_rank,
                        struct ft_members_view *view)
{
    const struct ft_coord_replica *replica = m->replica[rank];
    const struct ft_coord_member *member = replica->place[local_rank].member;
    const struct rank_group *ranks = &m->ranks[local_rank];
    bool has = ft_coord_has_view(member);
    struct ft_blob *local = has && is_unchanged(replica) ? NULL : m->local[rank];
    unsigned char head[HEAD_BYTES];

    view->slot = member->slot;
    view->base_term = has ? m->group->view.term : 0;
    view->base_epoch = has ? m->group->view.epoch : 0;
    view->rank = rank;
    view->behind = m->behind[rank];
    view->ngone = has ? ranks->ngone : 0;
    view->nadded = has ? ranks->nadded : m->view.nranks;
    view->added_bytes = has ? ranks->added_bytes : ranks->whole_bytes;
    view->nlocal = local ? replica->size : 0;
    view->local_bytes = local ? local->len_bytes : 0;
    size_t head_bytes = ft_members_view_encode_head(head, view);
    send_parts(m, member->conn, head, head_bytes,
               (struct ft_blob *const[]){has ? ranks->change : ranks->whole, local});
}

static bool is_behind(const struct making *m, const struct ft_coord_replica *replica)
{
    for (uint32_t at = 0; at < replica->size; at++)
        if (replica->place[at].member->step != m->step)
            return true;
    return false;
}

/* A replica is behind with all its members or with none: so every rank group divides the work of a
 * step among the same replicas. */
static void find_healthy(struct making *m)
{
    for (uint32_t i = 0; i < m->view.nranks; i++) {
        m->behind[i] = is_behind(m, m->replica[i]);
        if (!m->behind[i])
            m->healthy[m->nhealthy++] = i;
    }
}

/* Replica after replica: members of one host, whose connection is the same, come one after
 * another. */
static void send_all(const struct making *m)
{
    unsigned char sources[4 * FT_SOURCES_MOST];
    uint32_t nbehind = 0;
    struct ft_members_view view = {.term = m->view.term,
                                   .epoch = m->view.epoch,
                                   .step = m->step,
                                   .nranks = m->view.nranks,
                                   .nhealthy = m->nhealthy,
                                   .sources = sources};
    for (uint32_t i = 0; i < m->view.nranks; i++) {
        view.nsources = m->behind[i] ? list_sources(m, nbehind++, sources) : 0;
        for (uint32_t at = 0; at < m->replica[i]->size; at++)
            send_member(m, i, at, &view);
    }
}

/* ---- the group goes on ----------------------------------------------------------------------- */

static void enter_view(const struct making *m, struct ft_coord_replica *replica)
{
    for (uint32_t at = 0; at < replica->size; at++) {
        struct ft_coord_place *place = &replica->place[at];
        place->view_print = place->member->print;
        place->member->asked = place->member->failed = false;
        place->member->held = m->view;
        place->member->held.rank = replica->next_rank;
    }
    m->group->nasked -= replica->nasked;
    replica->nasked = 0;
    replica->nsame = replica->size;
    replica->in_view = true;
    replica->view_rank = replica->next_rank;
}

/* What its members had is over: the others wait for them no more. */
static void leave_view(struct ft_coord_replica *replica)
{
    const struct ft_coord_group *group = replica->group;
    char why[FT_FAIL_BYTES];
    snprintf(why, sizeof(why), "the others have gone on without replica %s, %s", replica->name,
             replica->nmembers < replica->size ? "which was not complete" : "which had not asked");
    for (uint32_t at = 0; at < replica->size; at++) {
        struct ft_coord_place *place = &replica->place[at];
        if (place->member && ft_coord_has_view(place->member)) {
            ft_coord_tell_view_number(place->member, FT_MEMBERS_BROKEN, group->view.term,
                                      group->view.epoch, why);
            place->member->held = (struct ft_held){0};
        }
        place->view_print = 0;
    }
    replica->in_view = false;
    replica->nsame = 0;
}

static void commit(const struct making *m)
{
    struct ft_coord_group *group = m->group;
    for (size_t i = 0; i < group->nreplicas; i++) {
        struct ft_coord_replica *replica = group->order[i];
        ft_coord_weigh(replica, -1);
        replica->recalled = false;
        if (replica->next_rank != FT_NO_RANK)
            enter_view(m, replica);
        else if (replica->in_view)
            leave_view(replica);
        ft_coord_weigh(replica, 1);
    }
    group->view = m->view;
    group->view_step = m->step;
    group->view_ns = group->coord->now_ns;
    group->broken = false;
    group->settled = true;
    group->waits_ns = 0;
    group->asked_ns = group->coord->now_ns;
    if (m->same)
        return;
    group->coord->counts.views++;
    ft_coord_raise(group, m->view.epoch);
    FT_LOG(INFO, "member", -1, "group %s: view %llu of %u replicas, step %llu", group->name,
           (unsigned long long)m->view.epoch, m->view.nranks, (unsigned long long)m->step);
}

static bool take_arrays(struct making *m)
{
    size_t nranks = m->view.nranks;
    m->ranks = calloc(m->group->local_size, sizeof(*m->ranks));
    m->replica = malloc(nranks * sizeof(*m->replica));
    m->local = calloc(nranks, sizeof(*m->local));
    m->healthy = malloc(nranks * sizeof(*m->healthy));
    m->behind = malloc(nranks * sizeof(*m->behind));
    return m->ranks && m->replica && m->local && m->healthy && m->behind;
}

static bool prepare(struct making *m)
{
    if (!take_arrays(m))
        return false;
    number_replicas(m);
    survey(m);
    find_healthy(m);
    if (!encode_ranks(m) || !encode_locals(m))
        return false;
    if (m->group->coord->config.send_view)
        return true;
    m->message = malloc(longest_message(m));
    return m->message != NULL;
}

static void give_back(struct making *m)
{
    for (uint32_t at = 0; m->ranks && at < m->group->local_size; at++) {
        ft_blob_let_go(m->ranks[at].whole);
        ft_blob_let_go(m->ranks[at].change);
    }
    for (uint32_t i = 0; m->local && i < m->view.nranks; i++)
        ft_blob_let_go(m->local[i]);
    free(m->ranks);
    free(m->replica);
    free(m->local);
    free(m->healthy);
    free(m->behind);
    free(m->message);
}

void ft_coord_make_view(struct ft_coord_group *group)
{
    struct making m = {.group = group, .view = {.nranks = group->nready}};
    group->no_memory = !prepare(&m);
    if (!group->no_memory) {
        send_all(&m);
        commit(&m);
    }
    give_back(&m);
}

/*
 * A snapshot, sorted: members by communicator and rank, engines by id, links by their ends. Members
 * with impossible indexes are dropped, and of several members with the same rank one is kept, so
 * that the other parts need not check again. Memory is proportional to what the snapshot holds,
 * never to a number that it claims.
 */
#include "hang.h"

#include <stdlib.h>

/* ---- members --------------------------------------------------------------------------------- */

static int order_u64(uint64_t a, uint64_t b)
{
    return (a > b) - (a < b);
}

/* Of members with the same rank the first is kept: one that is open and has called more. */
static int by_rank(const void *a, const void *b)
{
    const struct ft_snap_member *x = *(const struct ft_snap_member *const *)a,
                                *y = *(const struct ft_snap_member *const *)b;
    if (x->ctx != y->ctx)
        return order_u64(x->ctx, y->ctx);
    if (x->rank != y->rank)
        return x->rank < y->rank ? -1 : 1;
    if (x->open != y->open)
        return x->open ? -1 : 1;
    return x->called != y->called ? order_u64(y->called, x->called) : order_u64(x<y, x> y);
}

static bool same_rank(const struct ft_snap_member *a, const struct ft_snap_member *b)
{
    return a->ctx == b->ctx && a->rank == b->rank;
}

static void sort_members(struct ft_hang *h)
{
    const struct ft_snapshot *snap = h->snap;
    int n = 0;
    for (int i = 0; i < snap->nmembers; i++) {
        const struct ft_snap_member *m = &snap->members[i];
        if (m->engine >= 0 && m->engine < snap->nengines && m->rank >= 0 && m->rank < m->nranks)
            h->members[n++] = m;
    }
    qsort(h->members, (size_t)n, sizeof *h->members, by_rank);
    for (int i = 0; i < n; i++)
        if (i == 0 || !same_rank(h->members[i], h->members[i - 1]))
            h->members[h->nmembers++] = h->members[i];
}

static void sort_by_engine(struct ft_hang *h)
{
    for (int i = 0; i < h->nmembers; i++)
        h->engines[h->members[i]->engine].count++;
    for (int e = 0, at = 0; e < h->snap->nengines; e++) {
        h->engines[e].first = at;
        at += h->engines[e].count;
        h->engines[e].count = 0;
    }
    for (int i = 0; i < h->nmembers; i++) {
        struct ft_hang_engine *engine = &h->engines[h->members[i]->engine];
        h->by_engine[engine->first + engine->count++] = i;
    }
}

/* ---- communicators --------------------------------------------------------------------------- */

static void add_member(struct ft_hang *h, struct ft_hang_comm *comm, const struct ft_snap_member *m)
{
    comm->count++;
    if (comm->nranks < m->nranks)
        comm->nranks = m->nranks;
    uint64_t next = m->done < UINT64_MAX ? m->done + 1 : UINT64_MAX;
    if (m->open && !m->failed && (comm->head == 0 || next < comm->head))
        comm->head = next;
    h->comm_of[h->nmembers++] = (int)(comm - h->comms);
}

/* Of a communicator that has failed everywhere: the operation that failed first. */
static void find_failed_head(const struct ft_hang *h, struct ft_hang_comm *comm)
{
    for (int i = comm->first; i < comm->first + comm->count; i++) {
        const struct ft_snap_member *m = h->members[i];
        uint64_t next = m->done < UINT64_MAX ? m->done + 1 : UINT64_MAX;
        if (m->open && (comm->head == 0 || next < comm->head))
            comm->head = next;
    }
}

static void group_members(struct ft_hang *h)
{
    int n = h->nmembers;
    h->nmembers = 0;
    for (int i = 0; i < n; i++) {
        const struct ft_snap_member *m = h->members[i];
        if (i == 0 || m->ctx != h->members[i - 1]->ctx)
            h->comms[h->ncomms++] = (struct ft_hang_comm){.ctx = m->ctx, .first = i};
        add_member(h, &h->comms[h->ncomms - 1], m);
    }
    for (int c = 0; c < h->ncomms; c++)
        if (h->comms[c].head == 0)
            find_failed_head(h, &h->comms[c]);
}

/* Of the same rank, the one with the most certain news is first. */
static int by_seat(const void *a, const void *b)
{
    const struct ft_snap_seat *x = *(const struct ft_snap_seat *const *)a,
                              *y = *(const struct ft_snap_seat *const *)b;
    if (x->ctx != y->ctx)
        return order_u64(x->ctx, y->ctx);
    if (x->rank != y->rank)
        return x->rank < y->rank ? -1 : 1;
    return (int)y->news - (int)x->news;
}

static void sort_seats(struct ft_hang *h)
{
    for (int i = 0; i < h->snap->nseats; i++)
        h->seats[h->nseats++] = &h->snap->seats[i];
    qsort(h->seats, (size_t)h->nseats, sizeof *h->seats, by_seat);
    int at = 0;
    for (struct ft_hang_comm *comm = h->comms; comm < h->comms + h->ncomms; comm++) {
        while (at < h->nseats && h->seats[at]->ctx < comm->ctx)
            at++;
        comm->first_seat = at;
        while (at < h->nseats && h->seats[at]->ctx == comm->ctx)
            at++;
        comm->nseats = at - comm->first_seat;
    }
}

/* ---- engines and links ----------------------------------------------------------------------- */

static int by_id(const void *a, const void *b)
{
    const struct ft_snap_engine *x = *(const struct ft_snap_engine *const *)a,
                                *y = *(const struct ft_snap_engine *const *)b;
    return order_u64(x->id, y->id);
}

static void sort_engines(struct ft_hang *h)
{
    for (int i = 0; i < h->snap->nengines; i++)
        h->ids[h->nids++] = &h->snap->engines[i];
    qsort(h->ids, (size_t)h->nids, sizeof *h->ids, by_id);
}

static uint64_t past(const struct ft_hang *h, uint64_t at_ns)
{
    return at_ns < h->now_ns ? at_ns : h->now_ns;
}

static void note_activity(struct ft_hang *h)
{
    for (int i = 0; i < h->nmembers; i++) {
        const struct ft_snap_member *m = h->members[i];
        struct ft_hang_engine *engine = &h->engines[m->engine];
        uint64_t called_ns = past(h, m->last.called_ns);
        if (engine->latest < 0 || called_ns > engine->called_ns)
            engine->latest = i;
        engine->called_ns = ft_max(engine->called_ns, called_ns);
        engine->moved_ns = ft_max(engine->moved_ns, past(h, m->running_since_ns));
        engine->moved_ns = ft_max(engine->moved_ns, past(h, m->progress_ns));
        engine->gave_up |= m->failed;
    }
}

static int by_link(const void *a, const void *b)
{
    const struct ft_hang_link *x = a, *y = b;
    if (x->engine != y->engine)
        return x->engine < y->engine ? -1 : 1;
    return x->peer != y->peer ? order_u64(x->peer, y->peer) : x->sender - y->sender;
}

/* Adds up the links of the same ends and direction. Closed ones do not count: what they lost has
 * been sent again, and counted again. */
static void sort_links(struct ft_hang *h)
{
    int n = 0;
    for (int i = 0; i < h->snap->nlinks; i++) {
        const struct ft_snap_link *l = &h->snap->links[i];
        if (l->open)
            h->links[n++] = (struct ft_hang_link){l->engine, l->sender, l->peer, l->messages};
    }
    qsort(h->links, (size_t)n, sizeof *h->links, by_link);
    for (int i = 0; i < n; i++)
        if (h->nlinks > 0 && by_link(&h->links[i], &h->links[h->nlinks - 1]) == 0)
            h->links[h->nlinks - 1].messages += h->links[i].messages;
        else
            h->links[h->nlinks++] = h->links[i];
}

/* ---- open, close ----------------------------------------------------------------------------- */

static void *room(int count, size_t each)
{
    return calloc(count > 0 ? (size_t)count : 1, each);
}

static bool allocate(struct ft_hang *h)
{
    int n = h->snap->nmembers, engines = h->snap->nengines;
    h->members = room(n, sizeof *h->members);
    h->comm_of = room(n, sizeof *h->comm_of);
    h->by_engine = room(n, sizeof *h->by_engine);
    h->mark = room(n, sizeof *h->mark);
    h->comms = room(n, sizeof *h->comms);
    h->finds = room(n, sizeof *h->finds);
    h->engines = room(engines, sizeof *h->engines);
    h->ids = room(engines, sizeof *h->ids);
    h->seats = room(h->snap->nseats, sizeof *h->seats);
    h->links = room(h->snap->nlinks, sizeof *h->links);
    return h->members && h->comm_of && h->by_engine && h->mark && h->comms && h->finds &&
           h->engines && h->ids && h->seats && h->links;
}

int ft_hang_open(struct ft_hang *h, const struct ft_snapshot *snap, uint64_t patience_ns)
{
    *h = (struct ft_hang){.snap = snap, .now_ns = snap->now_ns, .patience_ns = patience_ns};
    if (!allocate(h))
        return FT_NOMEM;
    for (int e = 0; e < snap->nengines; e++)
        h->engines[e].latest = -1;
    sort_members(h);
    sort_by_engine(h);
    group_members(h);
    sort_seats(h);
    sort_engines(h);
    sort_links(h);
    note_activity(h);
    return FT_OK;
}

void ft_hang_close(struct ft_hang *h)
{
    free(h->members);
    free(h->comm_of);
    free(h->by_engine);
    free(h->mark);
    free(h->comms);
    free(h->finds);
    free(h->engines);
    free(h->ids);
    free(h->seats);
    free(h->links);
    free(h->nodes);
    free(h->places);
    free(h->order);
    free(h->edges);
}

/* ---- look-ups -------------------------------------------------------------------------------- */

int ft_hang_find(const struct ft_hang *h, int comm, int rank)
{
    int low = h->comms[comm].first, high = low + h->comms[comm].count;
    int end = high;
    while (low < high) {
        int middle = low + (high - low) / 2;
        if (h->members[middle]->rank < rank)
            low = middle + 1;
        else
            high = middle;
    }
    return low < end && h->members[low]->rank == rank ? low : -1;
}

const struct ft_snap_seat *ft_hang_seat(const struct ft_hang *h, int comm, int rank)
{
    int low = h->comms[comm].first_seat, high = low + h->comms[comm].nseats;
    int end = high;
    while (low < high) {
        int middle = low + (high - low) / 2;
        if (h->seats[middle]->rank < rank)
            low = middle + 1;
        else
            high = middle;
    }
    return low < end && h->seats[low]->rank == rank ? h->seats[low] : NULL;
}

int ft_hang_engine(const struct ft_hang *h, uint64_t id)
{
    const struct ft_snap_engine key = {.id = id}, *at = &key;
    const struct ft_snap_engine **found = bsearch(&at, h->ids, (size_t)h->nids, sizeof *h->ids,
                                                  by_id);
    return found ? (int)(*found - h->snap->engines) : -1;
}

int ft_hang_missing(const struct ft_hang *h, int comm, int *ranks, int capacity)
{
    const struct ft_hang_comm *c = &h->comms[comm];
    int listed = 0, next = 0;
    for (int i = 0; i <= c->count && listed < capacity; i++) {
        int until = i < c->count ? h->members[c->first + i]->rank : c->nranks;
        for (; next < until && listed < capacity; next++)
            ranks[listed++] = next;
        next = until < c->nranks ? until + 1 : until;
    }
    return c->nranks - c->count;
}

bool ft_hang_recent(const struct ft_hang *h, uint64_t at_ns)
{
    return at_ns != 0 && (at_ns >= h->now_ns || h->now_ns - at_ns <= h->patience_ns);
}

enum ft_hang_stage ft_hang_stage(const struct ft_hang *h, int member)
{
    const struct ft_snap_member *m = h->members[member];
    enum ft_process_state state = ft_hang_process(h, member)->state;
    uint64_t head = h->comms[h->comm_of[member]].head;
    bool unfinished = m->done < head;
    if (state == FT_PROCESS_GONE && (m->open || unfinished))
        return FT_STAGE_GONE;
    if (!unfinished)
        return FT_STAGE_FINISHED;
    if (m->joins)
        return FT_STAGE_NOT_CALLED;
    if (!m->open)
        return FT_STAGE_LEFT;
    if (state == FT_PROCESS_STOPPED)
        return FT_STAGE_STOPPED;
    if (state == FT_PROCESS_FROZEN)
        return FT_STAGE_FROZEN;
    if (m->failed)
        return FT_STAGE_FAILED;
    if (m->called < head)
        return FT_STAGE_NOT_CALLED;
    if (m->started < head)
        return FT_STAGE_NOT_STARTED;
    return ft_hang_runs_p2p(m) ? FT_STAGE_ELSEWHERE : FT_STAGE_RUNS;
}

static const struct ft_hang_link *find_link(const struct ft_hang *h, int at, int other, bool sender)
{
    struct ft_hang_link key = {.engine = at, .sender = sender, .peer = h->snap->engines[other].id};
    return bsearch(&key, h->links, (size_t)h->nlinks, sizeof *h->links, by_link);
}

enum ft_pending ft_hang_count(const struct ft_hang *h, int from, int to, uint64_t *sent,
                              uint64_t *received)
{
    const struct ft_hang_link *out = find_link(h, from, to, true),
                              *in = find_link(h, to, from, false);
    if (!out || !in)
        return FT_PENDING_UNKNOWN;
    *sent = out->messages;
    *received = in->messages;
    return *sent > *received ? FT_PENDING_SOME : FT_PENDING_NONE;
}

enum ft_pending ft_hang_pending(const struct ft_hang *h, int sender, int receiver, uint64_t *sent,
                                uint64_t *received)
{
    return ft_hang_count(h, h->members[sender]->engine, h->members[receiver]->engine, sent,
                         received);
}

int ft_hang_member(const struct ft_hang *h, int comm, int engine)
{
    const struct ft_hang_engine *e = &h->engines[engine];
    for (int i = e->first; i < e->first + e->count; i++)
        if (h->comm_of[h->by_engine[i]] == comm)
            return h->by_engine[i];
    return -1;
}

bool ft_hang_is_ahead(const struct ft_hang *h, int sender, int receiver)
{
    const struct ft_hang_engine *e = &h->engines[h->members[sender]->engine];
    for (int i = e->first; i < e->first + e->count; i++) {
        int from = h->by_engine[i];
        int to = ft_hang_member(h, h->comm_of[from], h->members[receiver]->engine);
        if (to >= 0 && h->members[from]->called > h->members[to]->called)
            return true;
    }
    return false;
}

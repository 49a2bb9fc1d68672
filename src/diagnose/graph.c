/*
 * The first graph: operations that block, and which of them waits for which. An edge leads from A
 * to B if a member that A lacks is still in B. Edges are followed into strongly connected parts
 * (Tarjan's algorithm, with a stack of its own instead of recursion): a part of several nodes
 * without an edge out is a deadlock, a single node without one blocks the job.
 */
#include "hang.h"

#include <limits.h>
#include <stdlib.h>

/* ---- nodes ----------------------------------------------------------------------------------- */

bool ft_hang_takes_part(const struct ft_hang *h, int member)
{
    const struct ft_snap_member *m = h->members[member];
    return m->open && !m->failed && ft_hang_process(h, member)->state != FT_PROCESS_GONE;
}

static void keep_oldest(uint64_t *since_ns, uint64_t at_ns)
{
    if (*since_ns == 0 || at_ns < *since_ns)
        *since_ns = at_ns;
}

/* When something of its first operation moved last. 0: none runs, or it is unknown. */
static uint64_t moved_ns(const struct ft_snap_member *m)
{
    return ft_max(m->running_since_ns, m->progress_ns);
}

static bool last_is_collective(const struct ft_snap_member *m)
{
    return ft_kind_is_collective((enum ft_kind)(ft_sig_call(m->last.sig) & 15));
}

/* A collective blocks if a member has waited for longer than the patience, and no member has moved
 * or come to it since. */
static void find_collective(struct ft_hang *h, int c)
{
    const struct ft_hang_comm *comm = &h->comms[c];
    uint64_t since_ns = 0;
    for (int i = comm->first; i < comm->first + comm->count; i++) {
        const struct ft_snap_member *m = h->members[i];
        if (!ft_hang_takes_part(h, i) || m->called <= m->done)
            continue;
        uint64_t at_ns = m->running_seq ? moved_ns(m) : m->last.called_ns;
        bool comes = m->called == comm->head && last_is_collective(m) &&
                     ft_hang_recent(h, m->last.called_ns);
        if (comes || (m->running_seq && ft_hang_recent(h, at_ns))) {
            h->nodes[c].moves = true;
            return;
        }
        if (at_ns != 0 && !ft_hang_recent(h, at_ns))
            keep_oldest(&since_ns, at_ns);
    }
    h->nodes[c].since_ns = since_ns;
}

static void find_p2p(struct ft_hang *h, int member)
{
    const struct ft_snap_member *m = h->members[member];
    if (!ft_hang_takes_part(h, member) || m->p2p_called <= m->p2p_done || m->running_seq)
        return;
    uint64_t at_ns = ft_hang_runs_p2p(m) ? moved_ns(m) : m->last.called_ns;
    if (at_ns != 0 && !ft_hang_recent(h, at_ns))
        h->nodes[h->ncomms + member].since_ns = at_ns;
}

static void add_place(struct ft_hang *h, struct ft_hang_engine *engine, int node, int member)
{
    if (engine->nplaces == FT_HANG_PLACES)
        return;
    engine->nplaces++;
    h->places[h->nplaces++] = (struct ft_hang_edge){node, member};
}

/* The nodes in which an engine is. */
static void find_places(struct ft_hang *h, struct ft_hang_engine *engine)
{
    engine->first_place = h->nplaces;
    for (int i = engine->first; i < engine->first + engine->count; i++) {
        int member = h->by_engine[i], comm = h->comm_of[member];
        const struct ft_snap_member *m = h->members[member];
        if (ft_hang_takes_part(h, member) && m->called > m->done && h->nodes[comm].since_ns)
            add_place(h, engine, comm, member);
        engine->engaged |= m->called > m->done && h->nodes[comm].moves &&
                           ft_hang_takes_part(h, member);
        if (h->nodes[h->ncomms + member].since_ns)
            add_place(h, engine, h->ncomms + member, member);
    }
}

static int by_age(const void *a, const void *b)
{
    const struct ft_hang_turn *x = a, *y = b;
    if (x->since_ns != y->since_ns)
        return x->since_ns < y->since_ns ? -1 : 1;
    return x->node < y->node ? -1 : x->node > y->node;
}

static void order_nodes(struct ft_hang *h)
{
    for (int n = 0; n < h->nnodes; n++) {
        h->nodes[n].from = h->nodes[n].via = -1;
        if (h->nodes[n].since_ns)
            h->order[h->norder++] = (struct ft_hang_turn){h->nodes[n].since_ns, n};
    }
    qsort(h->order, (size_t)h->norder, sizeof *h->order, by_age);
}

int ft_hang_find_nodes(struct ft_hang *h)
{
    h->nnodes = h->ncomms + h->nmembers;
    size_t room = (size_t)h->nnodes + 1;
    h->nodes = calloc(room, sizeof *h->nodes);
    h->order = calloc(room, sizeof *h->order);
    h->places = calloc(2 * room, sizeof *h->places);
    if (!h->nodes || !h->order || !h->places)
        return FT_NOMEM;
    for (int c = 0; c < h->ncomms; c++)
        find_collective(h, c);
    for (int i = 0; i < h->nmembers; i++)
        find_p2p(h, i);
    for (int e = 0; e < h->snap->nengines; e++)
        find_places(h, &h->engines[e]);
    order_nodes(h);
    return FT_OK;
}

/* ---- edges ----------------------------------------------------------------------------------- */

static int add_edge(struct ft_hang *h, int from, int to, int via)
{
    if (h->nedges == INT_MAX)
        return FT_NOMEM;
    if (h->nedges == h->edge_room) {
        size_t room = h->edge_room ? 2 * h->edge_room : 1024;
        struct ft_hang_edge *edges = realloc(h->edges, room * sizeof *edges);
        if (!edges)
            return FT_NOMEM;
        h->edges = edges;
        h->edge_room = room;
    }
    h->edges[h->nedges++] = (struct ft_hang_edge){to, via};
    h->nodes[from].nedges++;
    if (h->nodes[to].from < 0) {
        h->nodes[to].from = from;
        h->nodes[to].via = via;
    }
    return FT_OK;
}

/* The operation at `place` runs, and was called before the one for which the member is late. The
 * time of a call is known of the latest one only; without it, what runs counts as earlier. */
static bool runs_before(const struct ft_hang *h, int member, struct ft_hang_edge place)
{
    const struct ft_snap_member *late = h->members[member], *there = h->members[place.via];
    bool is_p2p = ft_hang_is_p2p(h, place.to);
    bool runs = is_p2p ? ft_hang_runs_p2p(there) : there->running_seq != 0;
    bool known = late->called == h->comms[h->comm_of[member]].head && late->last.called_ns;
    return runs && (!known || there->running_since_ns <= late->last.called_ns);
}

bool ft_hang_is_active(const struct ft_hang *h, int member, bool has_called)
{
    const struct ft_hang_engine *engine = &h->engines[h->members[member]->engine];
    return ft_hang_recent(h, engine->moved_ns) ||
           (!has_called && ft_hang_recent(h, engine->called_ns));
}

/* Adds edges to all other nodes in which the engine of a member is. Marks the node if there are
 * none. */
static int lead_to_places(struct ft_hang *h, int node, int member, bool has_called)
{
    const struct ft_hang_engine *engine = &h->engines[h->members[member]->engine];
    size_t before = h->nedges;
    for (int i = engine->first_place; i < engine->first_place + engine->nplaces; i++) {
        int place = h->places[i].to;
        if (place == node || (has_called && !runs_before(h, member, h->places[i])))
            continue;
        if (add_edge(h, node, place, member))
            return FT_NOMEM;
    }
    if (h->nedges > before)
        return FT_OK;
    if (ft_hang_is_active(h, member, has_called) || engine->engaged)
        h->nodes[node].busy = true;
    else
        h->nodes[node].loose = true;
    return FT_OK;
}

static int lead_from_collective(struct ft_hang *h, int c)
{
    int status = FT_OK;
    for (int i = h->comms[c].first; i < h->comms[c].first + h->comms[c].count && !status; i++)
        switch (ft_hang_stage(h, i)) {
        case FT_STAGE_NOT_CALLED:
            status = lead_to_places(h, c, i, false);
            break;
        case FT_STAGE_NOT_STARTED:
            status = lead_to_places(h, c, i, true);
            break;
        case FT_STAGE_ELSEWHERE:
            if (h->nodes[h->ncomms + i].since_ns)
                status = add_edge(h, c, h->ncomms + i, i);
            else
                h->nodes[c].busy = true;
            break;
        default:
            break;
        }
    return status;
}

static int lead_from_p2p(struct ft_hang *h, int node)
{
    int member = node - h->ncomms;
    const struct ft_snap_member *m = h->members[member];
    if (!ft_hang_runs_p2p(m))
        return lead_to_places(h, node, member, true);
    int peer = ft_hang_peer_is_valid(m) ? ft_hang_peer(h, member) : -1;
    if (peer < 0 || !ft_hang_takes_part(h, peer) ||
        ft_hang_process(h, peer)->state == FT_PROCESS_STOPPED ||
        ft_hang_process(h, peer)->state == FT_PROCESS_FROZEN)
        return FT_OK;
    return lead_to_places(h, node, peer, false);
}

int ft_hang_find_edges(struct ft_hang *h)
{
    for (int n = 0; n < h->nnodes; n++) {
        struct ft_hang_node *node = &h->nodes[n];
        node->first_edge = (int)h->nedges;
        if (!node->since_ns)
            continue;
        int status = ft_hang_is_p2p(h, n) ? lead_from_p2p(h, n) : lead_from_collective(h, n);
        if (status)
            return status;
    }
    return FT_OK;
}

bool ft_hang_are_pair(const struct ft_hang *h, int member, int peer)
{
    const struct ft_snap_member *a = h->members[member], *b = h->members[peer];
    return a->wait.peer == b->rank && b->wait.peer == a->rank && a->wait.sends != b->wait.sends &&
           ft_hang_runs_p2p(a) == ft_hang_runs_p2p(b);
}

/* ---- circles --------------------------------------------------------------------------------- */

/* A visit of a node: its number in the order of visits, the least number that it reaches, and the
 * edge that is looked at next. */
struct visit {
    int number, least, next_edge, parent;
};

struct search {
    struct ft_hang *h;
    struct visit *visits; /* [nnodes] */
    int *stack;           /* nodes without a circle yet */
    int height, visited, circles;
};

static void enter(struct search *s, int node, int parent)
{
    int number = ++s->visited;
    s->visits[node] = (struct visit){number, number, s->h->nodes[node].first_edge, parent};
    s->stack[s->height++] = node;
}

static void close_circle(struct search *s, int root)
{
    int node;
    s->circles++;
    do {
        node = s->stack[--s->height];
        s->h->nodes[node].circle = s->circles;
    } while (node != root);
}

static void lower(struct visit *visit, int number)
{
    if (number < visit->least)
        visit->least = number;
}

/* Takes one edge of a node, or leaves it. Returns the node to go on with; -1: the search is over.
 */
static int advance(struct search *s, int node)
{
    struct ft_hang_node *n = &s->h->nodes[node];
    struct visit *visit = &s->visits[node];
    if (visit->next_edge < n->first_edge + n->nedges) {
        int to = s->h->edges[visit->next_edge++].to;
        if (s->visits[to].number == 0) {
            enter(s, to, node);
            return to;
        }
        if (s->h->nodes[to].circle == 0)
            lower(visit, s->visits[to].number);
        return node;
    }
    if (visit->least == visit->number)
        close_circle(s, node);
    if (visit->parent >= 0)
        lower(&s->visits[visit->parent], visit->least);
    return visit->parent;
}

int ft_hang_find_circles(struct ft_hang *h)
{
    size_t room = (size_t)h->nnodes + 1;
    struct search s = {
        .h = h, .visits = calloc(room, sizeof *s.visits), .stack = calloc(room, sizeof *s.stack)};
    int status = s.visits && s.stack ? FT_OK : FT_NOMEM;
    for (int i = 0; i < h->norder && !status; i++) {
        if (s.visits[h->order[i].node].number)
            continue;
        enter(&s, h->order[i].node, -1);
        for (int node = h->order[i].node; node >= 0;)
            node = advance(&s, node);
    }
    free(s.visits);
    free(s.stack);
    return status;
}

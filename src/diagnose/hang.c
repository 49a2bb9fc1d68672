/*
 * The order of the analysis, and the verdicts that come out of it. Proof comes before inference:
 * first processes that are gone or stopped and calls that differ, then ranks that have not come,
 * and only where all have come what they wait for. Who has been named once is not named again.
 */
#include "hang.h"

#include <stdlib.h>

const char *ft_verdict_name(enum ft_verdict_kind kind)
{
    static const char *const names[FT_VERDICTS] = {
#define X(name, text) [FT_VERDICT_##name] = text,
        FT_VERDICT_KINDS(X)
#undef X
    };
    return (unsigned)kind < FT_VERDICTS ? names[kind] : "?";
}

/* ---- the verdict that is being written ------------------------------------------------------- */

void ft_hang_begin(struct ft_hang *h, enum ft_verdict_kind kind, int comm, int node)
{
    struct ft_verdict *v = &h->draft;
    *v = (struct ft_verdict){.kind = kind, .ctx = h->comms[comm].ctx};
    h->draft_comm = comm;
    h->draft_node = node;
    h->draft_agree = 0;
    h->draft_known = false;
    h->draft_walk = NULL;
    if (node < 0)
        return;
    v->since_ns = h->now_ns - h->nodes[node].since_ns;
    if (ft_hang_is_p2p(h, node)) {
        v->sig = h->members[node - h->ncomms]->running_sig;
        return;
    }
    v->seq = h->comms[comm].head;
    v->sig = h->comms[comm].sig_known ? h->comms[comm].sig : 0;
}

/* Returns true the first time. A full table forgets: then a cause may be named twice. */
static bool name_once(struct ft_hang *h, uint64_t a, uint64_t b)
{
    for (int i = 0; i < h->nnamed; i++)
        if (h->named[i].a == a && h->named[i].b == b)
            return false;
    if (h->nnamed < FT_HANG_NAMED) {
        h->named[h->nnamed].a = a;
        h->named[h->nnamed++].b = b;
    }
    return true;
}

static bool name_engine(struct ft_hang *h, int engine)
{
    bool first = !h->engines[engine].named;
    h->engines[engine].named = true;
    return first;
}

/* A link is no cause of its own if the rank at one end of it is. */
static bool name_link(struct ft_hang *h, int member, int peer)
{
    int a = h->members[member]->engine, b = h->members[peer]->engine;
    return !h->engines[a].named && !h->engines[b].named &&
           name_once(h, h->snap->engines[a].id, h->snap->engines[b].id);
}

static void add_culprit(struct ft_hang *h, struct ft_culprit culprit, int member, int peer)
{
    int at = h->draft.nculprits++;
    if (at >= FT_CULPRITS)
        return;
    if (culprit.engine >= 0) {
        culprit.host = h->snap->engines[culprit.engine].host;
        culprit.pid = h->snap->engines[culprit.engine].pid;
    }
    h->draft.culprits[at] = culprit;
    h->draft_at[at] = member;
    h->draft_peer[at] = peer;
}

void ft_hang_accuse(struct ft_hang *h, int member, int peer)
{
    const struct ft_snap_member *m = h->members[member];
    if (!(peer < 0 ? name_engine(h, m->engine) : name_link(h, member, peer))) {
        h->draft_known = true;
        return;
    }
    struct ft_culprit culprit = {.ctx = m->ctx,
                                 .rank = m->rank,
                                 .peer = peer < 0 ? -1 : h->members[peer]->rank,
                                 .engine = m->engine};
    add_culprit(h, culprit, member, peer);
}

/* A seat's host is a number of its communicator: the id is that of a rank there that has a file. */
static uint64_t find_host(const struct ft_hang *h, const struct ft_hang_comm *comm,
                          const struct ft_snap_seat *seat)
{
    for (int i = comm->first_seat; i < comm->first_seat + comm->nseats; i++) {
        int engine = h->seats[i]->host == seat->host ? ft_hang_engine(h, h->seats[i]->engine) : -1;
        if (engine >= 0)
            return h->snap->engines[engine].host;
    }
    return 0;
}

void ft_hang_accuse_missing(struct ft_hang *h, int comm, int rank)
{
    const struct ft_snap_seat *seat = ft_hang_seat(h, comm, rank);
    struct ft_culprit culprit = {.ctx = h->comms[comm].ctx, .rank = rank, .peer = -1, .engine = -1};
    bool first;
    if (seat) {
        culprit.engine = ft_hang_engine(h, seat->engine);
        culprit.host = find_host(h, &h->comms[comm], seat);
        culprit.pid = seat->pid;
    }
    if (culprit.engine >= 0)
        first = name_engine(h, culprit.engine);
    else if (seat && seat->engine)
        first = name_once(h, seat->engine, seat->host);
    else
        first = name_once(h, culprit.ctx, (uint64_t)rank);
    if (first)
        add_culprit(h, culprit, -1, -1);
    else
        h->draft_known = true;
}

static void keep_draft(struct ft_hang *h)
{
    int at = h->found++;
    if (at >= h->capacity)
        return;
    ft_hang_say(h);
    ft_hang_explain(h);
    h->out[at] = h->draft;
}

void ft_hang_end(struct ft_hang *h)
{
    if (h->draft.nculprits > 0)
        keep_draft(h);
}

void ft_hang_end_unnamed(struct ft_hang *h)
{
    if (h->draft.nculprits > 0 || !h->draft_known)
        keep_draft(h);
}

/* ---- what blocks, after those who have not come ---------------------------------------------- */

/* Nodes in the order of their circles; first[c] is where circle c begins. */
struct circles {
    struct ft_hang_turn *nodes;
    int *first, *seen;
    int count;
};

static bool sort_circles(struct ft_hang *h, struct circles *c)
{
    size_t room = (size_t)h->norder + 3;
    c->nodes = calloc(room, sizeof *c->nodes);
    c->first = calloc(room, sizeof *c->first);
    c->seen = calloc(room, sizeof *c->seen);
    if (!c->nodes || !c->first || !c->seen)
        return false;
    for (int i = 0; i < h->norder; i++) {
        int circle = h->nodes[h->order[i].node].circle;
        c->first[circle + 1]++;
        c->count = circle > c->count ? circle : c->count;
    }
    for (int i = 1; i <= c->count + 1; i++)
        c->first[i] += c->first[i - 1];
    for (int i = 0; i < h->norder; i++) {
        int circle = h->nodes[h->order[i].node].circle;
        c->nodes[c->first[circle] + c->seen[circle]++] = h->order[i];
    }
    return true;
}

/* Nothing leads out of the circle. In a single node, nobody has been found to be the cause, or goes
 * on; a circle of several is a cause whoever else is missing. */
static bool is_sink(const struct ft_hang *h, const struct ft_hang_turn *nodes, int count)
{
    for (int i = 0; i < count; i++) {
        const struct ft_hang_node *node = &h->nodes[nodes[i].node];
        if (count == 1 && (node->proven || node->loose || node->busy))
            return false;
        for (int e = node->first_edge; e < node->first_edge + node->nedges; e++)
            if (h->nodes[h->edges[e].to].circle != node->circle)
                return false;
    }
    return true;
}

static int judge_sinks(struct ft_hang *h)
{
    struct circles c = {0};
    int status = sort_circles(h, &c) ? FT_OK : FT_NOMEM;
    for (int i = 0; i < h->norder && !status; i++) {
        int circle = h->nodes[h->order[i].node].circle, count = c.seen[circle];
        const struct ft_hang_turn *nodes = c.nodes + c.first[circle];
        if (h->order[i].node != nodes->node || !is_sink(h, nodes, count))
            continue;
        if (count == 1)
            ft_hang_follow(h, nodes->node);
        else
            ft_hang_judge_circle(h, nodes, count);
    }
    free(c.nodes);
    free(c.first);
    free(c.seen);
    return status;
}

static int analyse(struct ft_hang *h)
{
    if (ft_hang_find_nodes(h) || ft_hang_find_edges(h) || ft_hang_find_circles(h))
        return FT_NOMEM;
    for (int c = 0; c < h->ncomms; c++)
        if (h->nodes[c].since_ns)
            ft_hang_vote(h, c);
    for (int i = 0; i < h->norder; i++)
        ft_hang_prove(h, h->order[i].node);
    ft_hang_accuse_silent(h);
    ft_hang_accuse_failed(h);
    for (int i = 0; i < h->norder; i++)
        ft_hang_accuse_loose(h, h->order[i].node, false);
    if (judge_sinks(h))
        return FT_NOMEM;
    /* A rank whose communicator has failed stays away because of that failure, as a rule. */
    for (int i = 0; i < h->norder && h->found == 0; i++)
        ft_hang_accuse_loose(h, h->order[i].node, true);
    ft_hang_accuse_late(h);
    return FT_OK;
}

int ft_diagnose_hang(const struct ft_snapshot *snap, uint64_t patience_ns,
                     struct ft_verdict *verdicts, int capacity)
{
    struct ft_hang h;
    int status = ft_hang_open(&h, snap, patience_ns);
    h.out = verdicts;
    h.capacity = capacity;
    if (!status)
        status = analyse(&h);
    ft_hang_close(&h);
    if (!status)
        ft_verdicts_place(snap, verdicts, h.found < capacity ? h.found : capacity);
    return status ? -1 : h.found;
}

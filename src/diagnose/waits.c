/*
 * The second graph: ranks of one collective and for whom each of them waits. Every rank waits for
 * one other at most, so a walk from any of them ends at a rank that waits for nobody, or in a
 * circle. In a circle the counters of both ends of each link say where messages are.
 */
#include "hang.h"

static void add_find(struct ft_hang *h, enum ft_verdict_kind kind, int at, int peer)
{
    if (h->nfinds < h->snap->nmembers)
        h->finds[h->nfinds++] = (struct ft_hang_find){kind, at, peer, -1};
}

/* ---- one wait -------------------------------------------------------------------------------- */

/* A member receives from a peer which is willing to send to it, or has sent it all. */
static enum ft_verdict_kind judge_receive(const struct ft_hang *h, int member, int peer,
                                          enum ft_verdict_kind if_equal)
{
    uint64_t sent, received;
    enum ft_pending pending = ft_hang_pending(h, peer, member, &sent, &received);
    return pending == FT_PENDING_NONE ? if_equal : FT_VERDICT_COMM_HANG_LINK;
}

static enum ft_pending pending_to(const struct ft_hang *h, int sender, int receiver)
{
    uint64_t sent, received;
    return ft_hang_pending(h, sender, receiver, &sent, &received);
}

/* A wait in a circle. Returns false if it does not show the cause. */
static bool judge_wait(struct ft_hang *h, int member, int peer)
{
    if (h->members[member]->wait.sends)
        return false;
    if (ft_hang_are_pair(h, member, peer)) {
        enum ft_verdict_kind kind = judge_receive(h, member, peer, FT_VERDICT_COMM_HANG_SENDER);
        add_find(h, kind, peer, kind == FT_VERDICT_COMM_HANG_LINK ? member : -1);
        return true;
    }
    if (pending_to(h, peer, member) != FT_PENDING_SOME || ft_hang_is_ahead(h, peer, member))
        return false;
    add_find(h, FT_VERDICT_COMM_HANG_LINK, peer, member);
    return true;
}

/* The walk ends because the peer has finished: all that it had to send has left. */
static void judge_finished(struct ft_hang *h, int member, int peer)
{
    enum ft_verdict_kind kind = FT_VERDICT_COMM_HANG_LINK;
    if (!h->members[member]->wait.sends) {
        kind = judge_receive(h, member, peer, FT_VERDICT_LIBRARY_STUCK);
        add_find(h, kind, kind == FT_VERDICT_LIBRARY_STUCK ? member : peer,
                 kind == FT_VERDICT_LIBRARY_STUCK ? -1 : member);
    } else if (pending_to(h, member, peer) == FT_PENDING_SOME) {
        add_find(h, FT_VERDICT_COMM_HANG_RECEIVER, peer, -1);
    } else {
        add_find(h, kind, member, peer);
    }
}

/* ---- circles of ranks ------------------------------------------------------------------------ */

/* Nobody takes what was sent to it. */
static bool find_receiver(struct ft_hang *h, int start)
{
    bool any = false;
    int at = start;
    do {
        int peer = ft_hang_peer(h, at);
        if (h->members[at]->wait.sends && pending_to(h, at, peer) == FT_PENDING_SOME) {
            add_find(h, FT_VERDICT_COMM_HANG_RECEIVER, peer, -1);
            any = true;
        }
        at = peer;
    } while (at != start);
    return any;
}

/* All wait to receive and nothing is on its way: the rank that is the furthest behind lacks a
 * message which its peer, further on, must have sent already. */
static void find_sender(struct ft_hang *h, int start)
{
    uint64_t least = UINT64_MAX;
    int at = start, last = start, count = 0;
    do {
        uint64_t step = h->members[at]->wait.step;
        count = step < least ? 1 : count + (step == least);
        if (step < least) {
            least = step;
            last = at;
        }
        at = ft_hang_peer(h, at);
    } while (at != start);
    int peer = ft_hang_peer(h, last);
    bool receives = !h->members[last]->wait.sends;
    if (count == 1 && receives && pending_to(h, peer, last) == FT_PENDING_NONE)
        add_find(h, FT_VERDICT_COMM_HANG_SENDER, peer, -1);
    else
        add_find(h, FT_VERDICT_UNKNOWN, -1, -1);
}

static void judge_ranks(struct ft_hang *h, int start)
{
    bool any = false;
    int at = start;
    do {
        int peer = ft_hang_peer(h, at);
        any |= judge_wait(h, at, peer);
        at = peer;
    } while (at != start);
    if (!any && !find_receiver(h, start))
        find_sender(h, start);
}

/* ---- walks ----------------------------------------------------------------------------------- */

/* Returns the member for which the member `at` waits, the next one of the walk. -1: the walk ends
 * at this member. */
static int follow_one(struct ft_hang *h, int at, int walk)
{
    if (!ft_hang_peer_is_valid(h->members[at])) {
        add_find(h, FT_VERDICT_LIBRARY_STUCK, at, -1);
        return -1;
    }
    int peer = ft_hang_peer(h, at);
    if (peer < 0) {
        add_find(h, FT_VERDICT_UNKNOWN, -1, at);
        return -1;
    }
    switch (ft_hang_stage(h, peer)) {
    case FT_STAGE_FINISHED:
        judge_finished(h, at, peer);
        return -1;
    case FT_STAGE_RUNS:
        break;
    default:
        add_find(h, FT_VERDICT_UNKNOWN, peer, -1);
        return -1;
    }
    if (h->mark[peer] == walk)
        judge_ranks(h, peer);
    return h->mark[peer] ? -1 : peer;
}

static void walk_from(struct ft_hang *h, int start, int walk)
{
    int before = h->nfinds;
    for (int at = start; at >= 0; at = follow_one(h, at, walk))
        h->mark[at] = walk;
    for (int i = before; i < h->nfinds; i++)
        h->finds[i].from = start;
}

/* ---- verdicts -------------------------------------------------------------------------------- */

static bool is_local(const struct ft_hang *h, const struct ft_hang_find *find)
{
    return ft_hang_process(h, find->at)->host == ft_hang_process(h, find->peer)->host;
}

static uint64_t lost_on(const struct ft_hang *h, int sender, int receiver)
{
    uint64_t sent, received;
    enum ft_pending pending = ft_hang_pending(h, sender, receiver, &sent, &received);
    return pending == FT_PENDING_SOME ? sent - received : 0;
}

/* Acknowledgements of one direction travel with the other one: if that is lost, TCP holds back this
 * one after a while. So the direction that has lost more is the cause. */
static void turn_to_cause(const struct ft_hang *h, struct ft_hang_find *find)
{
    int at = find->at;
    if (lost_on(h, find->peer, at) <= lost_on(h, at, find->peer))
        return;
    find->at = find->peer;
    find->peer = at;
}

/* Nothing was lost, as a rule: both are on a host, or the other host has all that was sent. */
static bool is_back_pressure(const struct ft_hang *h, const struct ft_hang_find *find)
{
    return is_local(h, find) ||
           ft_hang_is_delivered(h, h->members[find->at]->engine, h->members[find->peer]->engine);
}

/* Who cannot send to another host takes nothing, either. */
static void drop_consequences(struct ft_hang *h)
{
    bool crosses = false;
    for (const struct ft_hang_find *find = h->finds; find < h->finds + h->nfinds; find++)
        crosses |= find->kind == FT_VERDICT_COMM_HANG_LINK && !is_back_pressure(h, find);
    int n = 0;
    for (int i = 0; i < h->nfinds; i++) {
        struct ft_hang_find *find = &h->finds[i];
        bool link = find->kind == FT_VERDICT_COMM_HANG_LINK;
        if (link && crosses && is_back_pressure(h, find))
            continue;
        if (link)
            turn_to_cause(h, find);
        h->finds[n++] = *find;
    }
    h->nfinds = n;
}

static void accuse_finds(struct ft_hang *h, int comm, int node, enum ft_verdict_kind kind)
{
    const struct ft_hang_find *first = NULL;
    ft_hang_begin(h, kind, comm, node);
    for (const struct ft_hang_find *find = h->finds; find < h->finds + h->nfinds; find++)
        if (find->kind == kind) {
            first = first ? first : find;
            ft_hang_accuse(h, find->at, find->peer);
        }
    h->draft_walk = first;
    ft_hang_end(h);
}

/* All who would decide have a failed communicator, and a cause of failures has been named. */
static bool is_explained(const struct ft_hang *h)
{
    for (const struct ft_hang_find *find = h->finds; find < h->finds + h->nfinds; find++)
        if (find->at < 0 || !h->members[find->at]->failed)
            return false;
    return h->found > 0 && h->nfinds > 0;
}

/* No walk has shown a cause: says who is missing. */
static void admit_unknown(struct ft_hang *h, int comm, int node)
{
    if (is_explained(h))
        return;
    int ranks[FT_CULPRITS];
    int missing = ft_hang_missing(h, comm, ranks, FT_CULPRITS);
    ft_hang_begin(h, FT_VERDICT_UNKNOWN, comm, node);
    for (const struct ft_hang_find *find = h->finds; find < h->finds + h->nfinds; find++)
        if (find->at >= 0)
            ft_hang_accuse(h, find->at, -1);
        else if (find->peer >= 0)
            ft_hang_accuse_missing(h, comm, h->members[find->peer]->wait.peer);
    if (h->draft.nculprits == 0)
        for (int i = 0; i < missing && i < FT_CULPRITS; i++)
            ft_hang_accuse_missing(h, comm, ranks[i]);
    ft_hang_end_unnamed(h);
}

/* If a wait leads to a link, and all links that lose messages lead out of one host, or of several
 * ones to others, then these are cut off. */
static bool accuse_cut(struct ft_hang *h, int comm, int node)
{
    struct ft_hang_pair pairs[FT_HANG_PAIRS];
    int n = 0;
    for (const struct ft_hang_find *find = h->finds; find < h->finds + h->nfinds; find++)
        if (find->kind == FT_VERDICT_COMM_HANG_LINK)
            n = ft_hang_add_pair(pairs, n, h->members[find->at]->engine,
                                 h->members[find->peer]->engine);
    struct ft_hang_cut cut = ft_hang_find_cut(h, pairs, n);
    if (cut.n > 0)
        ft_hang_accuse_cut(h, comm, node, &cut);
    return cut.n > 0;
}

static void report_finds(struct ft_hang *h, int comm, int node)
{
    static const enum ft_verdict_kind kinds[] = {FT_VERDICT_COMM_HANG_LINK,
                                                 FT_VERDICT_COMM_HANG_SENDER,
                                                 FT_VERDICT_COMM_HANG_RECEIVER,
                                                 FT_VERDICT_LIBRARY_STUCK};
    bool any = false;
    drop_consequences(h);
    for (int i = 0; i < h->nfinds; i++)
        any |= h->finds[i].kind != FT_VERDICT_UNKNOWN;
    if (!any) {
        admit_unknown(h, comm, node);
        return;
    }
    for (size_t i = accuse_cut(h, comm, node); i < FT_ARRAY_LEN(kinds); i++)
        accuse_finds(h, comm, node, kinds[i]);
}

static void follow_p2p(struct ft_hang *h, int node)
{
    int member = node - h->ncomms, peer = ft_hang_peer(h, member);
    if (!ft_hang_peer_is_valid(h->members[member]))
        add_find(h, FT_VERDICT_LIBRARY_STUCK, member, -1);
    else
        add_find(h, FT_VERDICT_UNKNOWN, peer, peer < 0 ? member : -1);
}

void ft_hang_follow(struct ft_hang *h, int node)
{
    int comm = ft_hang_comm(h, node);
    const struct ft_hang_comm *c = &h->comms[comm];
    h->nfinds = 0;
    if (ft_hang_is_p2p(h, node))
        follow_p2p(h, node);
    else
        for (int i = c->first; i < c->first + c->count; i++)
            if (!h->mark[i] && ft_hang_stage(h, i) == FT_STAGE_RUNS)
                walk_from(h, i, i + 1);
    report_finds(h, comm, node);
}

/* ---- circles of operations ------------------------------------------------------------------- */

/* A send or receive in a circle. A rank that is in a collective of the same communicator instead of
 * taking what is sent to it has left out a receive. */
static void judge_p2p(struct ft_hang *h, int node)
{
    int member = node - h->ncomms, peer = ft_hang_peer(h, member);
    int collective = h->comm_of[member];
    if (peer < 0 || judge_wait(h, member, peer) || !h->members[member]->wait.sends)
        return;
    const struct ft_snap_member *p = h->members[peer];
    if (h->nodes[collective].circle == h->nodes[node].circle && p->called > p->done &&
        !ft_hang_runs_p2p(p))
        add_find(h, FT_VERDICT_COMM_HANG_RECEIVER, peer, -1);
}

/* The rank that holds up an operation of the circle by that edge. */
static void accuse_edge(struct ft_hang *h, int node, int edge)
{
    struct ft_hang_node *to = &h->nodes[h->edges[edge].to];
    to->from = node; /* the chain is to go around the circle */
    to->via = h->edges[edge].via;
    ft_hang_accuse(h, h->edges[edge].via, -1);
}

/* A verdict has room for a few ranks: one of each operation comes before the others. */
static void accuse_circle(struct ft_hang *h, const struct ft_hang_turn *nodes, int count)
{
    ft_hang_begin(h, FT_VERDICT_DEADLOCK, ft_hang_comm(h, nodes->node), nodes->node);
    for (int i = 0; i < count; i++) {
        const struct ft_hang_node *n = &h->nodes[nodes[i].node];
        if (n->nedges > 0)
            accuse_edge(h, nodes[i].node, n->first_edge);
    }
    for (int i = 0; i < count; i++) {
        const struct ft_hang_node *n = &h->nodes[nodes[i].node];
        for (int e = n->first_edge + 1; e < n->first_edge + n->nedges; e++)
            accuse_edge(h, nodes[i].node, e);
    }
    ft_hang_end(h);
}

void ft_hang_judge_circle(struct ft_hang *h, const struct ft_hang_turn *nodes, int count)
{
    h->nfinds = 0;
    for (int i = 0; i < count; i++)
        if (ft_hang_is_p2p(h, nodes[i].node))
            judge_p2p(h, nodes[i].node);
    if (h->nfinds == 0) {
        accuse_circle(h, nodes, count);
        return;
    }
    report_finds(h, ft_hang_comm(h, nodes->node), nodes->node);
}

/*
 * Ranks that do not come to an operation: because their process is gone or stopped, because they
 * call something else, because they compute, or because their stream is held.
 */
#include "hang.h"

#define VOTES 64  /* members whose operations are tried */
#define LATEST 16 /* operations before these that are tried */

/* ---- processes ------------------------------------------------------------------------------- */

/* A peer of a send or receive: the collectives of its communicator do not matter. */
static enum ft_hang_stage peer_stage(const struct ft_hang *h, int peer)
{
    enum ft_process_state state = ft_hang_process(h, peer)->state;
    if (state == FT_PROCESS_GONE)
        return FT_STAGE_GONE;
    if (!h->members[peer]->open)
        return FT_STAGE_LEFT;
    return state == FT_PROCESS_STOPPED  ? FT_STAGE_STOPPED
           : state == FT_PROCESS_FROZEN ? FT_STAGE_FROZEN
                                        : FT_STAGE_RUNS;
}

static bool means(enum ft_verdict_kind kind, enum ft_hang_stage stage)
{
    if (kind == FT_VERDICT_RANK_STOPPED)
        return stage == FT_STAGE_STOPPED;
    if (kind == FT_VERDICT_LIBRARY_STUCK)
        return stage == FT_STAGE_FROZEN;
    return stage == FT_STAGE_GONE || stage == FT_STAGE_LEFT;
}

/* A rank that has no row for the communicator: another process has seen its end, or its own file
 * tells its state. */
static bool seat_means(const struct ft_hang *h, const struct ft_snap_seat *seat,
                       enum ft_verdict_kind kind)
{
    int engine = ft_hang_engine(h, seat->engine);
    if (engine < 0)
        return kind == FT_VERDICT_RANK_DEAD &&
               (seat->news == FT_NEWS_LEFT || seat->news == FT_NEWS_DEAD);
    enum ft_process_state state = h->snap->engines[engine].state;
    return state == (kind == FT_VERDICT_RANK_STOPPED    ? FT_PROCESS_STOPPED
                     : kind == FT_VERDICT_LIBRARY_STUCK ? FT_PROCESS_FROZEN
                                                        : FT_PROCESS_GONE);
}

static bool accuse_seats(struct ft_hang *h, int comm, enum ft_verdict_kind kind)
{
    const struct ft_hang_comm *c = &h->comms[comm];
    bool any = false;
    for (int i = c->first_seat; i < c->first_seat + c->nseats; i++) {
        const struct ft_snap_seat *seat = h->seats[i];
        if (seat->rank < 0 || seat->rank >= c->nranks || !seat_means(h, seat, kind) ||
            ft_hang_find(h, comm, seat->rank) >= 0)
            continue;
        ft_hang_accuse_missing(h, comm, seat->rank);
        any = true;
    }
    return any;
}

static bool accuse_processes(struct ft_hang *h, int node, enum ft_verdict_kind kind)
{
    const struct ft_hang_comm *comm = &h->comms[node];
    bool any = false;
    ft_hang_begin(h, kind, node, node);
    for (int i = comm->first; i < comm->first + comm->count; i++)
        if (means(kind, ft_hang_stage(h, i))) {
            ft_hang_accuse(h, i, -1);
            any = true;
        }
    any |= accuse_seats(h, node, kind);
    ft_hang_end(h);
    return any;
}

static bool accuse_peer(struct ft_hang *h, int node, enum ft_verdict_kind kind)
{
    int member = node - h->ncomms, comm = h->comm_of[member];
    int peer = ft_hang_peer(h, member), rank = h->members[member]->wait.peer;
    if (!ft_hang_runs_p2p(h->members[member]) || !ft_hang_peer_is_valid(h->members[member]))
        return false;
    const struct ft_snap_seat *seat = peer < 0 ? ft_hang_seat(h, comm, rank) : NULL;
    if (peer >= 0 ? !means(kind, peer_stage(h, peer)) : !seat || !seat_means(h, seat, kind))
        return false;
    ft_hang_begin(h, kind, comm, node);
    if (peer >= 0)
        ft_hang_accuse(h, peer, -1);
    else
        ft_hang_accuse_missing(h, comm, rank);
    ft_hang_end(h);
    return true;
}

/* ---- calls that differ ----------------------------------------------------------------------- */

/* What a member called as this operation, from its records, which are in the order of members. */
static bool recorded_sig(const struct ft_hang *h, int member, uint64_t seq, uint64_t *sig)
{
    int row = (int)(h->members[member] - h->snap->members), low = 0, high = h->snap->nops;
    while (low < high) {
        int middle = low + (high - low) / 2;
        if (h->snap->ops[middle].member <= row)
            low = middle + 1;
        else
            high = middle;
    }
    while (low > 0 && h->snap->ops[low - 1].member == row) {
        const struct ft_snap_op *op = &h->snap->ops[--low];
        *sig = ft_sig_call(op->sig);
        if (op->seq == seq && ft_kind_is_collective((enum ft_kind)(*sig & 15)))
            return true;
    }
    return false;
}

bool ft_hang_member_sig(const struct ft_hang *h, int member, uint64_t *sig)
{
    const struct ft_snap_member *m = h->members[member];
    uint64_t head = h->comms[h->comm_of[member]].head;
    uint64_t last = ft_sig_call(m->last.sig);
    if (m->running_seq == head)
        *sig = ft_sig_call(m->running_sig);
    else if (m->called == head && m->last.called_ns &&
             ft_kind_is_collective((enum ft_kind)(last & 15)))
        *sig = last;
    else
        return m->called > head && recorded_sig(h, member, head, sig);
    return true;
}

/* The call that more than half of the members make (Boyer and Moore's vote). False: there is none.
 * *differ: there are several. */
static bool find_majority(const struct ft_hang *h, int comm, uint64_t *sig, bool *differ)
{
    int first = h->comms[comm].first, end = first + h->comms[comm].count;
    int lead = 0, known = 0, count = 0;
    uint64_t one;
    *sig = 0;
    for (int i = first; i < end; i++) {
        if (!ft_hang_member_sig(h, i, &one))
            continue;
        known++;
        if (lead == 0)
            *sig = one;
        lead += *sig == one ? 1 : -1;
    }
    for (int i = first; i < end; i++)
        count += ft_hang_member_sig(h, i, &one) && one == *sig;
    *differ = count < known;
    return 2 * (int64_t)count > known;
}

void ft_hang_vote(struct ft_hang *h, int comm)
{
    struct ft_hang_comm *c = &h->comms[comm];
    bool differ;
    c->sig_known = find_majority(h, comm, &c->sig, &differ);
    for (int i = c->first; i < c->first + c->count && !c->sig_known; i++)
        c->sig_known = ft_hang_member_sig(h, i, &c->sig);
}

static bool differ_at(struct ft_hang *h, int comm, uint64_t seq)
{
    uint64_t sig;
    bool differ;
    h->comms[comm].head = seq;
    find_majority(h, comm, &sig, &differ);
    return differ;
}

/* The ranks of a failed communicator may have stopped at different operations, and some have
 * completed the one in which calls differ: goes to that one. False: there is none. */
bool ft_hang_find_mismatch(struct ft_hang *h, int comm)
{
    struct ft_hang_comm *c = &h->comms[comm];
    uint64_t head = c->head;
    for (uint64_t back = 1; back < LATEST && back < head; back++)
        if (differ_at(h, comm, head - back))
            return true;
    for (int i = c->first; i < c->first + c->count && i < c->first + VOTES; i++)
        if (h->members[i]->done < UINT64_MAX && differ_at(h, comm, h->members[i]->done + 1))
            return true;
    c->head = head;
    return false;
}

bool ft_hang_accuse_callers(struct ft_hang *h, int comm, int node)
{
    uint64_t sig, one;
    bool differ, any = false;
    bool majority = find_majority(h, comm, &sig, &differ);
    ft_hang_begin(h, FT_VERDICT_MISMATCH, comm, node);
    for (int i = h->comms[comm].first; i < h->comms[comm].first + h->comms[comm].count; i++) {
        const struct ft_snap_member *m = h->members[i];
        bool differs = differ && ft_hang_member_sig(h, i, &one) && (!majority || one != sig);
        if (differs || (!differ && m->failed && m->status == FT_MISMATCH)) {
            ft_hang_accuse(h, i, -1);
            any = true;
        }
    }
    ft_hang_end(h);
    return any;
}

void ft_hang_prove(struct ft_hang *h, int node)
{
    bool (*accuse)(struct ft_hang *, int,
                   enum ft_verdict_kind) = ft_hang_is_p2p(h, node) ? accuse_peer : accuse_processes;
    bool dead = accuse(h, node, FT_VERDICT_RANK_DEAD);
    bool stopped = accuse(h, node, FT_VERDICT_RANK_STOPPED);
    bool frozen = accuse(h, node, FT_VERDICT_LIBRARY_STUCK);
    h->nodes[node].proven = dead || stopped || frozen ||
                            (!ft_hang_is_p2p(h, node) && ft_hang_accuse_callers(h, node, node));
}

/* ---- ranks that have not come ---------------------------------------------------------------- */

static bool is_loose(const struct ft_hang *h, int member, bool has_called, bool gave_up)
{
    return h->engines[h->members[member]->engine].gave_up == gave_up &&
           !ft_hang_is_active(h, member, has_called);
}

/* Members at this stage from whom no edge leads away. Edges are in the order of members. */
static void accuse_late_members(struct ft_hang *h, int c, enum ft_verdict_kind kind, bool gave_up)
{
    enum ft_hang_stage stage = kind == FT_VERDICT_STREAM_HANG ? FT_STAGE_NOT_STARTED
                                                              : FT_STAGE_NOT_CALLED;
    int edge = h->nodes[c].first_edge, end = edge + h->nodes[c].nedges;
    ft_hang_begin(h, kind, c, c);
    for (int i = h->comms[c].first; i < h->comms[c].first + h->comms[c].count; i++) {
        while (edge < end && h->edges[edge].via < i)
            edge++;
        bool leads = edge < end && h->edges[edge].via == i;
        if (!leads && ft_hang_stage(h, i) == stage &&
            is_loose(h, i, stage == FT_STAGE_NOT_STARTED, gave_up))
            ft_hang_accuse(h, i, -1);
    }
    ft_hang_end(h);
}

static void accuse_late_peer(struct ft_hang *h, int node, bool gave_up)
{
    int member = node - h->ncomms, peer = ft_hang_peer(h, member);
    const struct ft_snap_member *m = h->members[member];
    uint64_t sent, received;
    bool runs = ft_hang_runs_p2p(m);
    int late = runs ? peer : member;
    if (late < 0 || !is_loose(h, late, !runs, gave_up))
        return;
    bool lost = runs && !m->wait.sends && !ft_hang_is_ahead(h, peer, member) &&
                ft_hang_pending(h, peer, member, &sent, &received) == FT_PENDING_SOME;
    ft_hang_begin(h,
                  lost            ? FT_VERDICT_COMM_HANG_LINK
                  : !runs         ? FT_VERDICT_STREAM_HANG
                  : m->wait.sends ? FT_VERDICT_COMM_HANG_RECEIVER
                                  : FT_VERDICT_NONCOMM_HANG,
                  h->comm_of[member], node);
    ft_hang_accuse(h, late, lost ? member : -1);
    ft_hang_end(h);
}

void ft_hang_accuse_loose(struct ft_hang *h, int node, bool gave_up)
{
    if (h->nodes[node].proven || !h->nodes[node].loose)
        return;
    if (ft_hang_is_p2p(h, node)) {
        accuse_late_peer(h, node, gave_up);
        return;
    }
    accuse_late_members(h, node, FT_VERDICT_NONCOMM_HANG, gave_up);
    accuse_late_members(h, node, FT_VERDICT_STREAM_HANG, gave_up);
}

/* ---- ranks that have not opened the communicator --------------------------------------------- */

static bool has_called(const struct ft_hang *h, const struct ft_hang_comm *comm)
{
    for (int i = comm->first; i < comm->first + comm->count; i++)
        if (h->members[i]->called || h->members[i]->p2p_called || h->members[i]->failed)
            return true;
    return false;
}

/* A member has waited for longer than the patience until all are there. */
static bool waits_to_start(const struct ft_hang *h, const struct ft_hang_comm *comm)
{
    bool any = false;
    for (int i = comm->first; i < comm->first + comm->count; i++) {
        const struct ft_snap_member *m = h->members[i];
        if (ft_hang_process(h, i)->state == FT_PROCESS_GONE || (!m->open && !m->joins))
            continue;
        if (ft_hang_recent(h, m->opened_ns))
            return false;
        any = true;
    }
    return any && !has_called(h, comm);
}

/* Others on the same host have a file, so this one would have one, too, if it had not closed it. */
static bool has_been_there(const struct ft_hang *h, const struct ft_hang_comm *comm,
                           const struct ft_snap_seat *seat)
{
    bool sees_host = false;
    for (int i = comm->first_seat; i < comm->first_seat + comm->nseats && !sees_host; i++)
        sees_host = h->seats[i]->host == seat->host && ft_hang_engine(h, h->seats[i]->engine) >= 0;
    return sees_host || seat->news == FT_NEWS_LEFT || seat->news == FT_NEWS_DEAD;
}

/* The rosters of those who have opened it name everybody. */
static void accuse_empty_seats(struct ft_hang *h, int c)
{
    const struct ft_hang_comm *comm = &h->comms[c];
    for (int i = comm->first_seat; i < comm->first_seat + comm->nseats; i++) {
        const struct ft_snap_seat *seat = h->seats[i];
        if (seat->rank >= 0 && seat->rank < comm->nranks && ft_hang_engine(h, seat->engine) < 0 &&
            ft_hang_find(h, c, seat->rank) < 0 && !has_been_there(h, comm, seat))
            ft_hang_accuse_missing(h, c, seat->rank);
    }
}

/* As many as have come are in the snapshot, so that no other host has any. */
static bool sees_all(const struct ft_hang *h, const struct ft_hang_comm *comm)
{
    int arrived = 0;
    for (int i = comm->first; i < comm->first + comm->count; i++)
        if (arrived < h->members[i]->arrived)
            arrived = h->members[i]->arrived;
    return arrived > 0 && arrived <= comm->count;
}

/* Those who join do not know who is missing; nobody else has a file. */
static void accuse_absent(struct ft_hang *h, int c)
{
    int ranks[FT_CULPRITS];
    int missing = ft_hang_missing(h, c, ranks, FT_CULPRITS);
    if (missing > 0 && !sees_all(h, &h->comms[c])) {
        h->draft.kind = FT_VERDICT_UNKNOWN;
        return;
    }
    for (int i = 0; i < missing && i < FT_CULPRITS; i++)
        ft_hang_accuse_missing(h, c, ranks[i]);
    if (missing > FT_CULPRITS)
        h->draft.nculprits += missing - FT_CULPRITS;
}

void ft_hang_accuse_late(struct ft_hang *h)
{
    for (int c = 0; c < h->ncomms; c++) {
        const struct ft_hang_comm *comm = &h->comms[c];
        if (!waits_to_start(h, comm))
            continue;
        ft_hang_begin(h, FT_VERDICT_STARTING, c, -1);
        if (comm->nseats > 0)
            accuse_empty_seats(h, c);
        else
            accuse_absent(h, c);
        if (h->draft.kind == FT_VERDICT_UNKNOWN)
            ft_hang_end_unnamed(h);
        else
            ft_hang_end(h);
    }
}

/* ---- ranks that do not come to an agreement -------------------------------------------------- */

/* The first member that has waited for longer than the patience; -1: none, or one has just come. */
static int find_agreeing(const struct ft_hang *h, const struct ft_hang_comm *comm)
{
    int first = -1;
    for (int i = comm->first; i < comm->first + comm->count; i++) {
        const struct ft_snap_member *m = h->members[i];
        if (!m->open || !m->agree_ns || ft_hang_process(h, i)->state == FT_PROCESS_GONE)
            continue;
        if (ft_hang_recent(h, m->agree_ns))
            return -1;
        if (first < 0 || m->agree_ns < h->members[first]->agree_ns)
            first = i;
    }
    return first;
}

static bool is_excluded(const struct ft_hang *h, const struct ft_hang_comm *comm, int rank)
{
    for (int i = comm->first_seat; i < comm->first_seat + comm->nseats; i++)
        if (h->seats[i]->rank == rank && h->seats[i]->excluded)
            return true;
    return false;
}

/* A process that has ended, or does not answer, is left out of the agreement after a while. */
static bool is_awaited(const struct ft_hang *h, const struct ft_hang_comm *comm, int member)
{
    const struct ft_snap_member *m = h->members[member];
    return m->open && !m->agree_ns && ft_hang_process(h, member)->state == FT_PROCESS_RUNS &&
           h->engines[m->engine].nplaces == 0 && !ft_hang_is_active(h, member, true) &&
           !is_excluded(h, comm, m->rank);
}

void ft_hang_accuse_silent(struct ft_hang *h)
{
    for (int c = 0; c < h->ncomms; c++) {
        const struct ft_hang_comm *comm = &h->comms[c];
        int first = find_agreeing(h, comm);
        if (first < 0)
            continue;
        ft_hang_begin(h, FT_VERDICT_NONCOMM_HANG, c, -1);
        h->draft_agree = h->members[first]->agree_call;
        h->draft.since_ns = h->now_ns - h->members[first]->agree_ns;
        for (int i = comm->first; i < comm->first + comm->count; i++)
            if (is_awaited(h, comm, i))
                ft_hang_accuse(h, i, -1);
        ft_hang_end(h);
    }
}

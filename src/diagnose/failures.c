/*
 * Communicators that have failed, and whose ranks have not gone on. The library has told its user
 * what it saw; here what all ranks saw is put together: who is gone or stopped, whose data were
 * changed, who made another call, which link broke, and which host cannot be reached.
 */
#include "hang.h"

#define VOTES 64 /* members whose word is counted */

static bool has_given_up(const struct ft_hang *h, int member)
{
    const struct ft_snap_member *m = h->members[member];
    return m->open && m->failed && !m->agree_ns &&
           ft_hang_process(h, member)->state == FT_PROCESS_RUNS &&
           !ft_hang_is_active(h, member, false);
}

static enum ft_verdict_kind kind_of(enum ft_process_state state)
{
    return state == FT_PROCESS_GONE      ? FT_VERDICT_RANK_DEAD
           : state == FT_PROCESS_STOPPED ? FT_VERDICT_RANK_STOPPED
                                         : FT_VERDICT_LIBRARY_STUCK;
}

/* Names the processes of the communicator in this state; true: there are any. Its file may be gone
 * with a dead rank: then the survivor knows whom it lost. */
static bool accuse_state(struct ft_hang *h, int comm, int survivor, enum ft_process_state state)
{
    int first = h->comms[comm].first, end = first + h->comms[comm].count;
    const struct ft_snap_member *m = h->members[survivor];
    bool blames = state == FT_PROCESS_GONE && m->status == FT_PEER && m->culprit >= 0 &&
                  m->culprit < m->nranks;
    int blamed = blames ? ft_hang_find(h, comm, m->culprit) : -1;
    bool lost = blames && blamed < 0;
    ft_hang_begin(h, kind_of(state), comm, -1);
    for (int i = first; i < end; i++)
        if ((h->members[i]->open && ft_hang_process(h, i)->state == state) ||
            (i == blamed && !h->members[i]->open)) /* it has left */
            ft_hang_accuse(h, i, -1);
    if (lost)
        ft_hang_accuse_missing(h, comm, m->culprit);
    bool any = h->draft.nculprits > 0 || h->draft_known;
    ft_hang_end(h);
    return any;
}

/* ---- what the library has found -------------------------------------------------------------- */

/* The rank that most of those blame who have given up for this reason; -1: none. */
static int most_blamed(struct ft_hang *h, int comm, int status)
{
    int first = h->comms[comm].first, end = first + h->comms[comm].count;
    int best = -1, most = 0;
    for (int i = first; i < end && i < first + VOTES; i++) {
        int count = 0, culprit = h->members[i]->culprit;
        for (int k = first; k < end; k++)
            count += h->members[k]->culprit == culprit && h->members[k]->status == status;
        if (h->members[i]->status == status && count > most) {
            most = count;
            best = ft_hang_find(h, comm, culprit);
        }
    }
    return best;
}

static void accuse_source(struct ft_hang *h, int comm)
{
    int at = most_blamed(h, comm, FT_CORRUPT);
    if (at < 0)
        return;
    ft_hang_begin(h, FT_VERDICT_CORRUPT, comm, -1);
    ft_hang_accuse(h, at, -1);
    ft_hang_end(h);
}

/* A send and a receive that do not fit: nobody can say which of both is wrong. */
static void accuse_both_ends(struct ft_hang *h, int comm)
{
    ft_hang_begin(h, FT_VERDICT_MISMATCH, comm, -1);
    for (int i = h->comms[comm].first; i < h->comms[comm].first + h->comms[comm].count; i++) {
        const struct ft_snap_member *m = h->members[i];
        bool last = ft_kind_is_collective((enum ft_kind)(ft_sig_call(m->last.sig) & 15));
        int peer = m->failed && !last ? ft_hang_find(h, comm, m->culprit) : -1;
        if (peer < 0 || peer == i)
            continue;
        ft_hang_accuse(h, peer < i ? peer : i, -1);
        ft_hang_accuse(h, peer < i ? i : peer, -1);
        break; /* the others have heard of it */
    }
    ft_hang_end(h);
}

/* Who has not come to the operation whose deadline has passed. */
static void accuse_absentees(struct ft_hang *h, int comm)
{
    ft_hang_begin(h, FT_VERDICT_NONCOMM_HANG, comm, -1);
    for (int i = h->comms[comm].first; i < h->comms[comm].first + h->comms[comm].count; i++)
        if (h->members[i]->open && h->members[i]->called < h->comms[comm].head)
            ft_hang_accuse(h, i, -1);
    ft_hang_end(h);
}

/* ---- links that broke ------------------------------------------------------------------------ */

/* Without such news: two that blame each other. */
static int find_mutual(const struct ft_hang *h, int comm, struct ft_hang_pair *pairs)
{
    const struct ft_hang_comm *c = &h->comms[comm];
    int n = 0;
    for (int i = c->first; i < c->first + c->count; i++) {
        int peer = h->members[i]->failed ? ft_hang_find(h, comm, h->members[i]->culprit) : -1;
        if (peer >= 0 && h->members[peer]->failed &&
            h->members[peer]->culprit == h->members[i]->rank)
            n = ft_hang_add_pair(pairs, n, h->members[i]->engine, h->members[peer]->engine);
    }
    return n;
}

/* Which end noticed it first is not known: the lower rank is named first. */
static void accuse_pair(struct ft_hang *h, int comm, const struct ft_hang_pair *pair)
{
    int a = ft_hang_member(h, comm, pair->at), b = ft_hang_member(h, comm, pair->peer);
    if (a >= 0 && b >= 0)
        ft_hang_accuse(h, a < b ? a : b, a < b ? b : a);
}

static void accuse_links(struct ft_hang *h, int comm)
{
    struct ft_hang_pair pairs[FT_HANG_PAIRS];
    int n = ft_hang_find_lost(h, comm, pairs, 0);
    if (n == 0)
        n = find_mutual(h, comm, pairs);
    struct ft_hang_cut cut = ft_hang_find_cut(h, pairs, n);
    if (cut.n > 0) {
        ft_hang_accuse_cut(h, comm, -1, &cut);
        return;
    }
    ft_hang_begin(h, FT_VERDICT_COMM_HANG_LINK, comm, -1);
    for (int i = 0; i < n; i++)
        accuse_pair(h, comm, &pairs[i]);
    ft_hang_end(h);
}

static void accuse_for(struct ft_hang *h, int comm, int status)
{
    if (status == FT_CORRUPT)
        accuse_source(h, comm);
    else if (status == FT_MISMATCH && ft_hang_find_mismatch(h, comm))
        ft_hang_accuse_callers(h, comm, -1);
    else if (status == FT_MISMATCH)
        accuse_both_ends(h, comm);
    else if (status == FT_PEER || status == FT_LINK)
        accuse_links(h, comm);
    else if (status == FT_TIMEOUT && h->found == 0) /* other failures make ranks late */
        accuse_absentees(h, comm);
}

/* late: those of which an operation has passed its deadline, or the others. */
static void judge_failed(struct ft_hang *h, int comm, bool late)
{
    static const enum ft_process_state states[] = {FT_PROCESS_GONE, FT_PROCESS_STOPPED,
                                                   FT_PROCESS_FROZEN};
    int first = h->comms[comm].first, end = first + h->comms[comm].count, survivor = first;
    int before = h->found;
    bool any = false;
    while (survivor < end && !has_given_up(h, survivor))
        survivor++;
    if (survivor == end || (h->members[survivor]->status == FT_TIMEOUT) != late)
        return;
    for (size_t i = 0; i < FT_ARRAY_LEN(states); i++)
        any |= accuse_state(h, comm, survivor, states[i]);
    if (!any)
        accuse_for(h, comm, h->members[survivor]->status);
    h->nodes[comm].proven |= any || h->found > before; /* also for those who do not know it yet */
}

/* The largest ones first, because they show the most; and late ones last, because ranks are late
 * if they stand in another one that has failed. */
void ft_hang_accuse_failed(struct ft_hang *h)
{
    int most = 0;
    for (int c = 0; c < h->ncomms; c++)
        if (h->comms[c].count > most)
            most = h->comms[c].count;
    for (int pass = 0; pass < 4; pass++)
        for (int c = 0; c < h->ncomms; c++)
            if ((h->comms[c].count < most) == (pass % 2 == 1))
                judge_failed(h, c, pass >= 2);
}

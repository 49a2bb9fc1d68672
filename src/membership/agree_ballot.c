/*
 * The ballots of an agreement: what this rank promises and accepts, and the ballot that it leads.
 * Invariants: a rank never answers a ballot lower than the one it promised. A leader proposes the
 * value of the highest ballot that a quorum's promises name, and a value of its own only if they
 * name none. Messages of a rank are ignored once it is known to be dead or fenced.
 */
#include "membership/agree.h"

#include <stdlib.h>
#include <string.h>

#define REPEAT_FIRST_NS 20000000u

static int self(const struct ft_agree *a)
{
    return a->config.rank;
}

/* ---- sending --------------------------------------------------------------------------------- */

static void fill_body(const struct ft_agree *a, struct ft_agree_msg *m)
{
    const struct ft_agree_peer *me = &a->peer[self(a)];
    const struct ft_bytes *body = NULL;
    switch (m->type) {
    case FT_MSG_ACCEPT:
        body = &a->proposal;
        break;
    case FT_MSG_DECIDE:
        body = &a->value;
        break;
    case FT_MSG_PROMISE:
        body = a->accepted ? &a->value : me->entered ? &me->contribution : NULL;
        break;
    case FT_MSG_ENTER:
        body = &me->contribution;
        break;
    default:
        return;
    }
    if (!body)
        return;
    m->body_kind = body == &me->contribution ? FT_BODY_CONTRIBUTION : FT_BODY_VALUE;
    m->body = body->data;
    m->body_bytes = body->len;
}

void ft_agree_send(struct ft_agree *a, int to, enum ft_agree_type type)
{
    const bool leads = type == FT_MSG_PREPARE || type == FT_MSG_ACCEPT;
    struct ft_agree_msg m = {.type = type,
                             .ballot = leads ? a->ballot : a->promised,
                             .dead = a->dead,
                             .unreachable = a->mine,
                             .fenced = a->fenced};
    if (type == FT_MSG_PROMISE || type == FT_MSG_DECIDE)
        m.accepted = a->accepted;
    if (type == FT_MSG_PREPARE && ft_agree_quorum(a, false))
        m.flags = FT_AGREE_WAITING;
    fill_body(a, &m);
    memset(a->mine, 0, a->set_bytes);
    for (int r = 0; r < a->config.nranks; r++)
        if (a->peer[r].evidence == FT_UNREACHABLE)
            ft_set_add(a->mine, r);
    if (leads || type == FT_MSG_ENTER)
        ft_agree_note_asked(a, to);
    a->config.send(a->config.arg, to, a->scratch, ft_agree_encode(a->scratch, &a->config, &m));
}

/* Ranks that have promised get the message again, so that they do not take over while this rank
 * waits for others. */
void ft_agree_broadcast(struct ft_agree *a)
{
    for (int r = 0; r < a->config.nranks; r++) {
        const struct ft_agree_peer *p = &a->peer[r];
        if (r == self(a) || ft_agree_is_gone(a, r))
            continue;
        if (a->phase == FT_PREPARE)
            ft_agree_send(a, r, FT_MSG_PREPARE);
        else if (!p->accepted || !p->acked)
            ft_agree_send(a, r, FT_MSG_ACCEPT);
    }
}

static void start_phase(struct ft_agree *a, enum ft_agree_phase phase)
{
    a->phase = phase;
    for (int r = 0; r < a->config.nranks; r++) {
        struct ft_agree_peer *p = &a->peer[r];
        if (phase == FT_PREPARE)
            p->promised = r == self(a);
        p->accepted = phase == FT_ACCEPT && r == self(a);
        p->acked = r == self(a);
    }
    a->repeat_ns = ft_min(REPEAT_FIRST_NS, a->config.silent_ns / 16 + 1);
    a->repeat_at_ns = ft_agree_now(a) + a->repeat_ns;
    ft_agree_broadcast(a);
}

void ft_agree_gone_changed(struct ft_agree *a)
{
    for (int r = 0; r < a->config.nranks; r++)
        a->peer[r].acked = r == self(a);
    if (a->phase != FT_FOLLOW)
        ft_agree_broadcast(a);
}

/* ---- the leader ------------------------------------------------------------------------------ */

void ft_agree_lead(struct ft_agree *a)
{
    const uint64_t ballot = ft_ballot(a->round_seen + 1, self(a));
    if (ballot >= FT_BALLOT_MAX)
        return;
    if (a->accepted && ft_bytes_set(&a->proposal, a->value.data, a->value.len) != FT_OK)
        return;
    a->round_seen++;
    a->attempts += a->attempts < 4;
    a->rival = 0;
    a->ballot = a->promised = ballot;
    a->best = a->accepted;
    start_phase(a, FT_PREPARE);
    ft_agree_advance(a);
}

static void decide(struct ft_agree *a, const unsigned char *value, size_t len_bytes,
                   uint64_t ballot)
{
    struct ft_decision *d = ft_value_decode(a->config.nranks, value, len_bytes);
    /* on failure, another message will come */
    if (!d || ft_bytes_set(&a->value, value, len_bytes) != FT_OK) {
        free(d);
        return;
    }
    a->accepted = ballot;
    a->phase = FT_FOLLOW;
    a->decision = d;
}

/* True if a rank of the set goes on with this value, or if that cannot be told. */
static bool counts_on(const struct ft_agree *a, const struct ft_bytes *value,
                      const unsigned char *set)
{
    struct ft_decision *d = ft_value_decode(a->config.nranks, value->data, value->len);
    bool found = !d;
    for (int r = 0; d && r < a->config.nranks; r++)
        found |= ft_set_has(set, r) && !d->failed[r] && !d->excluded[r];
    free(d);
    return found;
}

/* No quorum is possible yet. Silent ranks that all others want to leave out need not be asked,
 * unless the value that is or may be accepted (NULL: none) counts on one of them: it may have
 * another decision. */
static bool fence_listed(struct ft_agree *a, const struct ft_bytes *value)
{
    struct ft_contribution mine;
    const struct ft_bytes *own = &a->peer[self(a)].contribution;
    if (!ft_agree_same_list(a))
        return false;
    if (ft_contribution_decode(&mine, a->config.nranks, own->data, own->len) != FT_OK)
        return false;
    if (ft_set_within(mine.list, a->fenced, a->set_bytes))
        return false;
    if (value && counts_on(a, value, mine.list))
        return false;
    for (size_t i = 0; i < a->set_bytes; i++)
        a->fenced[i] |= mine.list[i];
    ft_agree_gone_changed(a);
    return true;
}

static bool listed_are_done(const struct ft_agree *a)
{
    for (int r = 0; r < a->config.nranks; r++)
        if (ft_set_has(a->listed, r) && !a->peer[r].accepted && !ft_agree_is_gone(a, r) &&
            !ft_agree_missing(a, r))
            return false;
    return true;
}

static void propose(struct ft_agree *a)
{
    if (a->best == 0 && !ft_agree_complete(a))
        return;
    if (a->best == 0 && ft_agree_compute(a, &a->proposal) != FT_OK)
        return;
    if (!ft_set_empty(a->fenced, a->set_bytes) && counts_on(a, &a->proposal, a->fenced))
        return;
    if (ft_bytes_set(&a->value, a->proposal.data, a->proposal.len) != FT_OK)
        return;
    a->accepted = a->ballot;
    start_phase(a, FT_ACCEPT);
}

void ft_agree_advance(struct ft_agree *a)
{
    if (a->phase == FT_PREPARE) {
        if (!ft_agree_quorum(a, false) && ft_agree_complete(a))
            fence_listed(a, a->best ? &a->proposal : NULL);
        if (ft_agree_quorum(a, false))
            propose(a);
    }
    if (a->phase == FT_ACCEPT) {
        if (!ft_agree_quorum(a, true) && listed_are_done(a))
            fence_listed(a, &a->value);
        if (!ft_agree_quorum(a, true))
            return;
        decide(a, a->value.data, a->value.len, a->ballot);
        for (int r = 0; a->decision && r < a->config.nranks; r++)
            if (r != self(a) && !ft_set_has(a->dead, r))
                ft_agree_send(a, r, FT_MSG_DECIDE);
    }
}

static bool acknowledges(const struct ft_agree *a, const struct ft_agree_msg *m)
{
    for (size_t i = 0; i < a->set_bytes; i++)
        if ((a->dead[i] | a->fenced[i]) & ~(m->dead[i] | m->fenced[i]))
            return false;
    return true;
}

static void on_promise(struct ft_agree *a, int from, const struct ft_agree_msg *m)
{
    if (a->phase != FT_PREPARE || m->ballot != a->ballot || m->accepted >= m->ballot)
        return;
    if (m->accepted > a->best) {
        if (ft_bytes_set(&a->proposal, m->body, m->body_bytes) != FT_OK)
            return;
        a->best = m->accepted;
    }
    a->peer[from].promised = true;
    a->peer[from].acked |= acknowledges(a, m);
    ft_agree_advance(a);
}

static void on_accepted(struct ft_agree *a, int from, const struct ft_agree_msg *m)
{
    if (a->phase != FT_ACCEPT || m->ballot != a->ballot)
        return;
    a->peer[from].accepted = true;
    a->peer[from].acked |= acknowledges(a, m);
    ft_agree_advance(a);
}

static void on_refuse(struct ft_agree *a, const struct ft_agree_msg *m)
{
    if (a->phase == FT_FOLLOW || m->ballot <= a->ballot)
        return;
    a->phase = FT_FOLLOW;
    a->rival = m->ballot;
    ft_agree_restart_wait(a);
}

/* ---- the acceptor ---------------------------------------------------------------------------- */

/* A leader may fence ranks that this rank's own user wants to leave out. */
static void adopt_fence(struct ft_agree *a, int leader, const unsigned char *fenced)
{
    const struct ft_agree_peer *me = &a->peer[self(a)];
    struct ft_contribution mine;
    if (ft_set_within(fenced, a->fenced, a->set_bytes) || !me->entered)
        return;
    if (ft_contribution_decode(&mine, a->config.nranks, me->contribution.data,
                               me->contribution.len) != FT_OK)
        return;
    if (!ft_set_within(fenced, mine.list, a->set_bytes))
        return;
    if (ft_set_has(fenced, leader) || ft_set_has(fenced, self(a)))
        return;
    for (size_t i = 0; i < a->set_bytes; i++)
        a->fenced[i] |= fenced[i];
    ft_agree_gone_changed(a);
}

/* Follows the sender's ballot. Returns false if the ballot is refused. */
static bool follow_ballot(struct ft_agree *a, int from, const struct ft_agree_msg *m)
{
    if (ft_ballot_rank(m->ballot) != from)
        return false;
    if (m->ballot < a->promised) {
        ft_agree_send(a, from, FT_MSG_REFUSE);
        return false;
    }
    a->phase = FT_FOLLOW;
    a->rival = m->ballot;
    if (m->ballot > a->promised || m->flags & FT_AGREE_WAITING)
        ft_agree_restart_wait(a);
    a->promised = m->ballot;
    adopt_fence(a, from, m->fenced);
    return true;
}

static void on_prepare(struct ft_agree *a, int from, const struct ft_agree_msg *m)
{
    if (follow_ballot(a, from, m) && a->accepted != m->ballot)
        ft_agree_send(a, from, FT_MSG_PROMISE);
}

static void on_accept(struct ft_agree *a, int from, const struct ft_agree_msg *m)
{
    if (!follow_ballot(a, from, m))
        return;
    if (a->accepted != m->ballot) {
        if (ft_bytes_set(&a->value, m->body, m->body_bytes) != FT_OK)
            return;
        a->accepted = m->ballot;
        ft_agree_restart_wait(a);
    }
    ft_agree_send(a, from, FT_MSG_ACCEPTED);
}

/* It always answers, so that the sender sees that this rank is alive. */
static void on_enter(struct ft_agree *a, int from)
{
    a->wanted = true;
    if (a->phase == FT_FOLLOW && ft_agree_can_lead(a))
        ft_agree_lead(a);
    else if (a->phase != FT_FOLLOW)
        ft_agree_advance(a);
    if (a->decision)
        return;
    ft_agree_send(a, from,
                  a->phase == FT_FOLLOW    ? FT_MSG_REFUSE
                  : a->phase == FT_PREPARE ? FT_MSG_PREPARE
                                           : FT_MSG_ACCEPT);
}

void ft_agree_handle(struct ft_agree *a, int from, const struct ft_agree_msg *m)
{
    if (ft_ballot_round(m->ballot) > a->round_seen)
        a->round_seen = ft_ballot_round(m->ballot);
    switch (m->type) {
    case FT_MSG_ENTER:
        on_enter(a, from);
        break;
    case FT_MSG_PREPARE:
        on_prepare(a, from, m);
        break;
    case FT_MSG_PROMISE:
        on_promise(a, from, m);
        break;
    case FT_MSG_ACCEPT:
        on_accept(a, from, m);
        break;
    case FT_MSG_ACCEPTED:
        on_accepted(a, from, m);
        break;
    case FT_MSG_REFUSE:
        on_refuse(a, m);
        break;
    case FT_MSG_DECIDE:
        decide(a, m->body, m->body_bytes, m->accepted);
        break;
    case FT_MSG_TYPES:
        break;
    }
}

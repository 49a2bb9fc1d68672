/*
 * The instance of an agreement and its time: who leads when, what is repeated, when this side gives
 * up. Core opens an instance each time the ranks of a view have to agree. Core passes it messages,
 * evidence and ticks, and sends its messages. The ballots are in agree_ballot.c. Invariant: a
 * decision never changes, and every rank that asks is told.
 */
#include "membership/agree.h"

#include <stdlib.h>
#include <string.h>

#define REPEAT_MOST_NS 250000000u
/* all waiting ends enter_ns + GIVE_UP_SILENT * silent_ns after this rank has entered */
#define GIVE_UP_SILENT 8

static int self(const struct ft_agree *a)
{
    return a->config.rank;
}

int ft_agree_open(const struct ft_agree_config *config, struct ft_agree **out)
{
    const size_t set = ft_set_bytes(config->nranks);
    if (config->nranks > 1 << FT_BALLOT_RANK_BITS)
        return FT_NOTSUP;
    if (ft_agree_head_bytes(config->nranks) + ft_value_bytes(config->nranks) >
        config->message_bytes)
        return FT_NOTSUP;
    struct ft_agree *a = calloc(1, sizeof *a);
    if (!a)
        return FT_NOMEM;
    a->config = *config;
    a->set_bytes = set;
    a->now_ns = a->looked_ns = ft_now_ns(config->env);
    a->peer = calloc((size_t)config->nranks, sizeof *a->peer);
    a->scratch = malloc(config->message_bytes + 4 * set);
    if (!a->peer || !a->scratch) {
        ft_agree_close(a);
        return FT_NOMEM;
    }
    a->dead = a->scratch + config->message_bytes;
    a->fenced = a->dead + set;
    a->listed = a->fenced + set;
    a->mine = a->listed + set;
    memset(a->dead, 0, 4 * set);
    *out = a;
    return FT_OK;
}

void ft_agree_close(struct ft_agree *a)
{
    if (!a)
        return;
    for (int r = 0; a->peer && r < a->config.nranks; r++) {
        free(a->peer[r].contribution.data);
        free(a->peer[r].unreachable);
    }
    free(a->peer);
    free(a->scratch);
    free(a->value.data);
    free(a->coming.data);
    free(a->proposal.data);
    free(a->decision);
    free(a);
}

/* Time in which this process did not run is no evidence against others: it has not read their
 * messages, and perhaps the whole machine stood still. Each gap counts only up to a limit, so that
 * a silence consists of many ticks. */
static void pass_time(struct ft_agree *a)
{
    const uint64_t now = ft_now_ns(a->config.env), gap = now - a->looked_ns;
    a->now_ns += ft_min(gap, ft_agree_gap_ns(a->config.silent_ns));
    a->looked_ns = now;
}

/* ---- whose turn it is ------------------------------------------------------------------------ */

void ft_agree_note_asked(struct ft_agree *a, int rank)
{
    struct ft_agree_peer *p = &a->peer[rank];
    if (p->asked_ns == 0)
        p->asked_ns = ft_agree_now(a);
    p->asks += p->asks < FT_AGREE_ASKS;
}

/* One question may get lost, and ranks that do not lead are asked seldom. */
bool ft_agree_unanswered(const struct ft_agree *a, int rank)
{
    const struct ft_agree_peer *p = &a->peer[rank];
    return p->asks == FT_AGREE_ASKS && ft_agree_now(a) - p->asked_ns >= a->config.silent_ns;
}

/* If only the heartbeat detector suspects a rank, the rank gets a short time to answer. */
bool ft_agree_missing(const struct ft_agree *a, int rank)
{
    const struct ft_agree_peer *p = &a->peer[rank];
    if (p->evidence == FT_UNREACHABLE || ft_agree_unanswered(a, rank))
        return true;
    return p->evidence == FT_SILENT && p->asked_ns != 0 &&
           ft_agree_now(a) - p->asked_ns >= a->config.silent_ns / 4;
}

/* The rank may have died after it promised. Then it is the rank that failed, not the rank that
 * cannot reach it. */
void ft_agree_doubt(struct ft_agree *a, int rank)
{
    a->peer[rank].doubted = true;
    if (a->phase == FT_PREPARE && !ft_agree_is_gone(a, rank))
        ft_agree_send(a, rank, FT_MSG_PREPARE);
}

/* True if the rank answers, as far as this rank knows. */
static bool responds(const struct ft_agree *a, int r)
{
    if (r == self(a))
        return true;
    const enum ft_peer_evidence evidence = a->peer[r].evidence;
    return !ft_agree_is_gone(a, r) && (evidence == FT_ALIVE || evidence == FT_REDIALLED) &&
           !ft_agree_unanswered(a, r);
}

static int candidate(const struct ft_agree *a)
{
    int r = 0;
    while (!responds(a, r))
        r++;
    return r;
}

/* Of two ranks that lost each other the lower one leads first, and leaves out the other. */
static bool yields(const struct ft_agree *a)
{
    for (int r = 0; r < self(a); r++)
        if (a->peer[r].cut_off && !ft_agree_is_gone(a, r) &&
            ft_agree_now(a) - a->peer[r].redialled_ns < a->config.silent_ns / 16)
            return true;
    return false;
}

/* A rank that has not entered leads only if it is asked and is the first candidate. A rank that a
 * rival stopped gives the rival time. */
bool ft_agree_can_lead(const struct ft_agree *a)
{
    if (a->gave_up || !(a->entered_ns || a->wanted))
        return false;
    if (a->entered_ns && ft_agree_now(a) >= a->lead_at_ns)
        return true;
    const int rival = ft_ballot_rank(a->rival);
    const bool cut_off = a->rival && a->peer[rival].evidence == FT_UNREACHABLE;
    if (a->rival && !ft_agree_is_gone(a, rival) && !(cut_off && ft_agree_now(a) >= a->lead_soon_ns))
        return false;
    return candidate(a) == self(a) && !yields(a);
}

/* Sets the time of the next attempt to lead. It grows with the number of candidates before this
 * rank and with failed attempts, and has a random part. */
void ft_agree_restart_wait(struct ft_agree *a)
{
    const uint64_t silent = a->config.silent_ns;
    uint64_t ahead = 0, chance;
    for (int r = 0; r < self(a) && ahead < 4; r++)
        ahead += responds(a, r);
    a->config.env->random(a->config.env, &chance, sizeof chance);
    const uint64_t patience = silent / 2 + ahead * (silent / 8) + chance % (silent / 2 + 1);
    a->lead_at_ns = ft_agree_now(a) + patience * (uint64_t)(2 + a->attempts) / 2;
    a->lead_soon_ns = ft_agree_now(a) + patience * (uint64_t)(1 + a->attempts) / 16;
}

/* ---- what comes in --------------------------------------------------------------------------- */

static void note_known(struct ft_agree *a)
{
    if (a->known_ns == 0)
        a->known_ns = ft_agree_now(a);
}

void ft_agree_contribute(struct ft_agree *a, int rank, const unsigned char *data, size_t len_bytes)
{
    struct ft_agree_peer *p = &a->peer[rank];
    struct ft_contribution c;
    if (p->entered || ft_contribution_decode(&c, a->config.nranks, data, len_bytes) != FT_OK)
        return;
    if (ft_bytes_set(&p->contribution, data, len_bytes) != FT_OK)
        return;
    p->entered = true;
    for (size_t i = 0; i < a->set_bytes; i++)
        a->listed[i] |= c.list[i];
}

/* Asks the rank that should lead, the rank that leads, and one more rank each time. If there is a
 * decision, one of them knows it. */
static void ask_for_decision(struct ft_agree *a)
{
    const int first = candidate(a), leader = a->promised ? ft_ballot_rank(a->promised) : first;
    if (first != self(a))
        ft_agree_send(a, first, FT_MSG_ENTER);
    if (leader != first && leader != self(a) && !ft_agree_is_gone(a, leader)) {
        ft_agree_send(a, leader, a->accepted == a->promised ? FT_MSG_ACCEPTED : FT_MSG_PROMISE);
    }
    a->next_asked = (a->next_asked + 1) % a->config.nranks;
    if (a->next_asked != self(a) && a->next_asked != first && !ft_agree_is_gone(a, a->next_asked))
        ft_agree_send(a, a->next_asked, FT_MSG_ENTER);
}

static void repeat_requests(struct ft_agree *a)
{
    a->repeat_ns = ft_min(2 * a->repeat_ns, ft_min(REPEAT_MOST_NS, a->config.silent_ns / 8 + 1));
    a->repeat_at_ns = ft_agree_now(a) + a->repeat_ns;
    if (a->phase != FT_FOLLOW)
        ft_agree_broadcast(a);
    else
        ask_for_decision(a);
}

static int enter_with(struct ft_agree *a, const unsigned char *data, size_t len_bytes)
{
    ft_agree_contribute(a, self(a), data, len_bytes);
    if (!a->peer[self(a)].entered)
        return FT_NOMEM;
    a->entered_ns = ft_agree_now(a);
    if (a->decision)
        return FT_OK;
    ft_agree_restart_wait(a);
    a->repeat_ns = ft_min(REPEAT_MOST_NS / 12, a->config.silent_ns / 16 + 1);
    a->repeat_at_ns = a->entered_ns + a->repeat_ns;
    if (a->phase != FT_FOLLOW)
        ft_agree_advance(a);
    else if (ft_agree_can_lead(a))
        ft_agree_lead(a);
    else
        ask_for_decision(a);
    return FT_OK;
}

/* A value that is computed before a rank has reported its broken link leaves nobody out. */
static bool may_be_cut_off(const struct ft_agree *a)
{
    for (int r = 0; r < a->config.nranks; r++)
        if (a->peer[r].evidence == FT_REDIALLED && !ft_agree_is_gone(a, r))
            return true;
    return false;
}

int ft_agree_enter(struct ft_agree *a, const struct ft_agree_input *in)
{
    const int n = a->config.nranks;
    pass_time(a);
    if (in->blob_bytes > ft_agree_blob_room(&a->config))
        return FT_NOTSUP;
    unsigned char *bytes = malloc(ft_contribution_bytes(n) + in->blob_bytes);
    if (!bytes)
        return FT_NOMEM;
    const size_t len = ft_contribution_encode(bytes, n, in);
    note_known(a);
    const int status = may_be_cut_off(a) ? ft_bytes_set(&a->coming, bytes, len)
                                         : enter_with(a, bytes, len);
    free(bytes);
    return status;
}

/* A peer to which no new link came up in time is unreachable. When all are known, this rank
 * enters. */
static void end_redials(struct ft_agree *a)
{
    for (int r = 0; r < a->config.nranks; r++) {
        struct ft_agree_peer *p = &a->peer[r];
        if (p->evidence != FT_REDIALLED ||
            ft_agree_now(a) - p->redialled_ns < a->config.silent_ns / 4)
            continue;
        p->evidence = FT_UNREACHABLE;
        p->cut_off = true;
        p->redialled_ns = ft_agree_now(a);
        ft_agree_doubt(a, r);
    }
    if (a->coming.len == 0 || may_be_cut_off(a) ||
        enter_with(a, a->coming.data, a->coming.len) != FT_OK)
        return;
    a->coming.len = 0;
}

static void add_dead(struct ft_agree *a, int from, const unsigned char *dead)
{
    bool more = false;
    for (int r = 0; r < a->config.nranks; r++) {
        if (r == self(a) || r == from || !ft_set_has(dead, r) || ft_set_has(a->dead, r))
            continue;
        ft_set_add(a->dead, r);
        more = true;
    }
    if (more)
        ft_agree_gone_changed(a);
}

static void note_unreachable(struct ft_agree *a, int from, const unsigned char *set)
{
    unsigned char **known = &a->peer[from].unreachable;
    if (!*known && ft_set_empty(set, a->set_bytes))
        return;
    if (!*known)
        *known = calloc(a->set_bytes, 1);
    for (int r = 0; *known && r < a->config.nranks; r++)
        if (r != self(a) && r != from && ft_set_has(set, r) && !ft_set_has(*known, r))
            ft_agree_doubt(a, r);
    if (*known)
        memcpy(*known, set, a->set_bytes);
}

void ft_agree_receive(struct ft_agree *a, int from, const void *data, size_t len_bytes)
{
    struct ft_agree_msg m;
    pass_time(a);
    if (from < 0 || from >= a->config.nranks || from == self(a) || ft_set_has(a->dead, from))
        return;
    if (ft_agree_decode(&a->config, data, len_bytes, &m) != FT_OK)
        return;
    a->peer[from].asked_ns = 0;
    a->peer[from].asks = 0;
    a->peer[from].doubted = false;
    if (a->decision) {
        if (m.type != FT_MSG_DECIDE)
            ft_agree_send(a, from, FT_MSG_DECIDE);
        return;
    }
    if (ft_set_has(a->fenced, from))
        return;
    note_known(a);
    add_dead(a, from, m.dead);
    note_unreachable(a, from, m.unreachable);
    if (m.body_kind == FT_BODY_CONTRIBUTION)
        ft_agree_contribute(a, from, m.body, m.body_bytes);
    ft_agree_handle(a, from, &m);
}

void ft_agree_learn(struct ft_agree *a, int rank, enum ft_peer_evidence evidence)
{
    pass_time(a);
    if (rank < 0 || rank >= a->config.nranks || rank == self(a) || ft_set_has(a->dead, rank))
        return;
    a->peer[rank].evidence = evidence == FT_DEAD ? FT_ALIVE : evidence;
    a->peer[rank].redialled_ns = ft_agree_now(a);
    a->peer[rank].cut_off = false;
    if (evidence == FT_UNREACHABLE && !a->decision)
        ft_agree_doubt(a, rank);
    if (evidence == FT_DEAD) {
        ft_set_add(a->dead, rank);
        if (!a->decision)
            ft_agree_gone_changed(a);
    }
    if (!a->decision)
        ft_agree_tick(a);
}

/* ---- time ------------------------------------------------------------------------------------ */

/* True if the ranks that answer could be a quorum. */
static bool is_possible(const struct ft_agree *a)
{
    const struct ft_agree_peer *me = &a->peer[self(a)];
    struct ft_contribution mine;
    const int n = a->config.nranks;
    int count = 0;
    bool all = true, rest = true;
    if (ft_contribution_decode(&mine, n, me->contribution.data, me->contribution.len) != FT_OK)
        return false;
    for (int r = 0; r < n; r++) {
        const bool in = responds(a, r);
        count += in;
        all &= in || ft_agree_is_gone(a, r);
        rest &= in || ft_agree_is_gone(a, r) || ft_set_has(mine.list, r);
    }
    return all || rest || 2 * count > n || (2 * count == n && responds(a, 0));
}

static void consider_giving_up(struct ft_agree *a)
{
    const struct ft_agree_config *c = &a->config;
    const uint64_t waited = ft_agree_now(a) - (a->entered_ns ? a->entered_ns : a->known_ns);
    const bool all = waited >= c->enter_ns + GIVE_UP_SILENT * c->silent_ns;
    if (a->entered_ns && !a->gave_up && waited >= c->enter_ns + 2 * c->silent_ns)
        a->gave_up = all || !is_possible(a);
    if (a->gave_up || all)
        a->phase = FT_FOLLOW;
}

void ft_agree_tick(struct ft_agree *a)
{
    pass_time(a);
    if (a->decision || a->known_ns == 0)
        return;
    end_redials(a);
    if (a->decision) /* this rank has entered, and its value was the last that was missing */
        return;
    if (a->phase != FT_FOLLOW)
        ft_agree_advance(a);
    else if (ft_agree_can_lead(a))
        ft_agree_lead(a);
    if (!a->decision)
        consider_giving_up(a);
    if (a->decision || a->gave_up || !(a->entered_ns || a->phase != FT_FOLLOW))
        return;
    if (ft_agree_now(a) >= a->repeat_at_ns)
        repeat_requests(a);
}

int ft_agree_state(const struct ft_agree *a)
{
    if (a->decision)
        return FT_OK;
    return a->gave_up ? FT_NOQUORUM : FT_AGAIN;
}

const struct ft_decision *ft_agree_decision(const struct ft_agree *a)
{
    return a->decision;
}

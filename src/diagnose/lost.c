/*
 * Links that lose messages, and whether they show that a host is cut off. A link is lost if its
 * process has noticed it, or if one end has sent more than the other has received. It belongs to
 * two processes, whatever communicators they have in common.
 */
#include "hang.h"

#include <string.h>

/* Messages that are on their way while a snapshot is made do not count. A rank with a failed
 * communicator takes no data any more, only heartbeats. */
#define IN_FLIGHT 1
#define NOT_TAKEN 5
/* The same on a busy machine. */
#define IN_FLIGHT_MOST 2

static uint64_t host_of(const struct ft_hang *h, int engine)
{
    return h->snap->engines[engine].host;
}

int ft_hang_add_pair(struct ft_hang_pair *pairs, int n, int at, int peer)
{
    for (int i = 0; i < n; i++)
        if ((pairs[i].at == at && pairs[i].peer == peer) ||
            (pairs[i].at == peer && pairs[i].peer == at))
            return n;
    if (n < FT_HANG_PAIRS && at >= 0 && peer >= 0 && at != peer)
        pairs[n++] = (struct ft_hang_pair){at, peer};
    return n;
}

int ft_hang_find_lost(const struct ft_hang *h, int comm, struct ft_hang_pair *pairs, int n)
{
    const struct ft_hang_comm *c = &h->comms[comm];
    for (int i = c->first_seat; i < c->first_seat + c->nseats && n < FT_HANG_PAIRS; i++) {
        const struct ft_snap_seat *seat = h->seats[i];
        if (seat->news == FT_NEWS_LOST && seat->teller >= 0 && seat->teller < h->snap->nengines)
            n = ft_hang_add_pair(pairs, n, seat->teller, ft_hang_engine(h, seat->engine));
    }
    return n;
}

#define RESENT_NS 700000000u /* TCP has sent again by then what was lost */

/* When anything of the process moved last. */
static uint64_t moved_ns(const struct ft_hang *h, int engine)
{
    uint64_t last_ns = 0;
    for (int i = 0; i < h->snap->nmembers; i++) {
        const struct ft_snap_member *m = &h->snap->members[i];
        if (m->engine == engine)
            last_ns = ft_max(last_ns, ft_max(m->progress_ns, m->running_since_ns));
    }
    return last_ns;
}

bool ft_hang_is_delivered(const struct ft_hang *h, int from, int to)
{
    const struct ft_snapshot *s = h->snap;
    for (int i = 0; i < s->npaths; i++) {
        const struct ft_snap_path *p = &s->paths[i];
        if (p->engine == from && p->sender && p->peer == s->engines[to].id)
            return p->retransmits == 0 && p->seen_ns >= moved_ns(h, from) + RESENT_NS;
    }
    return false;
}

/* Adds the links between hosts whose messages do not arrive, heartbeats among them. */
static int find_silent(const struct ft_hang *h, struct ft_hang_pair *pairs, int n,
                       uint64_t in_flight)
{
    for (int i = 0; i < h->nlinks && n < FT_HANG_PAIRS; i++) {
        const struct ft_hang_link *link = &h->links[i];
        int from = link->engine, to = link->sender ? ft_hang_engine(h, link->peer) : -1;
        uint64_t sent, received;
        if (to >= 0 && from >= 0 && from < h->snap->nengines &&
            host_of(h, from) != host_of(h, to) &&
            ft_hang_count(h, from, to, &sent, &received) == FT_PENDING_SOME &&
            !ft_hang_is_delivered(h, from, to) &&
            sent - received > (h->engines[to].gave_up ? NOT_TAKEN : in_flight))
            n = ft_hang_add_pair(pairs, n, from, to);
    }
    return n;
}

/* ---- hosts ----------------------------------------------------------------------------------- */

/* All of them lead from this host to others, and to more than one if there are more. */
static bool leads_out(const struct ft_hang *h, const struct ft_hang_pair *pairs, int n,
                      uint64_t host)
{
    uint64_t other = 0;
    bool several = false, third = false;
    for (int i = 0; i < n; i++) {
        uint64_t a = host_of(h, pairs[i].at), b = host_of(h, pairs[i].peer);
        uint64_t far = a == host ? b : a;
        if ((a == host) == (b == host))
            return false;
        several |= other && far != other;
        other = far;
    }
    for (int e = 0; e < h->snap->nengines && !third; e++)
        third = h->engines[e].count > 0 && host_of(h, e) != host && host_of(h, e) != other;
    return several || !third;
}

static int count_on(const struct ft_hang *h, uint64_t host)
{
    int count = 0;
    for (int e = 0; e < h->snap->nengines; e++)
        count += h->engines[e].count > 0 && host_of(h, e) == host;
    return count;
}

static bool has_first_rank(const struct ft_hang *h, uint64_t host)
{
    const struct ft_hang_comm *largest = h->comms;
    for (int c = 1; c < h->ncomms; c++)
        if (h->comms[c].count > largest->count)
            largest = &h->comms[c];
    return host_of(h, h->members[largest->first]->engine) == host;
}

/* Of two hosts the one with fewer ranks is cut off, or the one without the first rank: the other
 * side can go on. */
static uint64_t find_host(const struct ft_hang *h, const struct ft_hang_pair *pairs, int n)
{
    uint64_t a = host_of(h, pairs[0].at), b = host_of(h, pairs[0].peer);
    bool from_a = leads_out(h, pairs, n, a), from_b = leads_out(h, pairs, n, b);
    if (from_a && from_b) {
        int at_a = count_on(h, a), at_b = count_on(h, b);
        return at_a < at_b || (at_a == at_b && has_first_rank(h, b)) ? a : b;
    }
    return from_a ? a : from_b ? b : 0;
}

/* ---- paths ----------------------------------------------------------------------------------- */

#define CLEARLY 2 /* so many times as many messages */

/* The hosts of lost links, each with its side of the path. */
struct sides {
    uint64_t host[FT_HANG_CUT];
    int side[FT_HANG_CUT]; /* 0 or 1; -1: not known yet */
    int n;
};

/* s->n: it is not among them. */
static int place_of(const struct sides *s, uint64_t host)
{
    int at = 0;
    while (at < s->n && s->host[at] != host)
        at++;
    return at;
}

/* -1: there are too many. */
static int find_side(struct sides *s, uint64_t host)
{
    int at = place_of(s, host);
    if (at < s->n || at == FT_HANG_CUT)
        return at < s->n ? at : -1;
    s->host[at] = host;
    s->side[at] = -1;
    return s->n++;
}

/* Puts the other end of a link whose one end has a side on the other side. False: it is on the same
 * one, or there are too many hosts. */
static bool spread(const struct ft_hang *h, struct sides *s, const struct ft_hang_pair *pair,
                   bool *more)
{
    int a = find_side(s, host_of(h, pair->at)), b = find_side(s, host_of(h, pair->peer));
    if (a < 0 || b < 0 || a == b)
        return false;
    if (s->side[a] < 0 && s->side[b] < 0)
        return true;
    if (s->side[a] >= 0 && s->side[b] >= 0)
        return s->side[a] != s->side[b];
    *more = true;
    if (s->side[a] < 0)
        s->side[a] = 1 - s->side[b];
    else
        s->side[b] = 1 - s->side[a];
    return true;
}

static int ranks_on(const struct ft_hang *h, const struct sides *s, int side)
{
    int count = 0;
    for (int i = 0; i < s->n; i++)
        count += s->side[i] == side ? count_on(h, s->host[i]) : 0;
    return count;
}

static bool has_first(const struct ft_hang *h, const struct sides *s, int side)
{
    bool first = false;
    for (int i = 0; i < s->n; i++)
        first |= s->side[i] == side && has_first_rank(h, s->host[i]);
    return first;
}

/* Messages between this host and those of each side, over links that are still open. */
static void count_beside(const struct ft_hang *h, const struct sides *s, uint64_t host,
                         uint64_t messages[2])
{
    messages[0] = messages[1] = 0;
    for (int i = 0; i < h->nlinks; i++) {
        const struct ft_hang_link *link = &h->links[i];
        int to = link->sender ? ft_hang_engine(h, link->peer) : -1;
        if (to < 0 || link->engine < 0 || link->engine >= h->snap->nengines)
            continue;
        uint64_t a = host_of(h, link->engine), b = host_of(h, to);
        if (a == b || (a != host && b != host))
            continue;
        int far = place_of(s, a == host ? b : a);
        if (far < s->n && s->side[far] >= 0)
            messages[s->side[far]] += link->messages;
    }
}

/* Every rank may have lost just one other, so that lost links alone do not place every host. The
 * first one without a side goes to the side with which it exchanges the most messages. False: all
 * have a side, or it exchanges as much with both. */
static bool place_one(const struct ft_hang *h, struct sides *s)
{
    uint64_t messages[2];
    int at = 0;
    while (at < s->n && s->side[at] >= 0)
        at++;
    if (at == s->n)
        return false;
    count_beside(h, s, s->host[at], messages);
    if (messages[0] / CLEARLY > messages[1])
        s->side[at] = 0;
    else if (messages[1] / CLEARLY > messages[0])
        s->side[at] = 1;
    return s->side[at] >= 0;
}

/* Divides the hosts. False: the links lead not only from one side to the other, or have several
 * causes. */
static bool divide(const struct ft_hang *h, const struct ft_hang_pair *pairs, int n,
                   struct sides *s)
{
    bool good = n > 1 && find_side(s, host_of(h, pairs[0].at)) == 0, more = good;
    s->side[0] = 0;
    while (good && more) {
        more = false;
        for (int i = 0; good && i < n; i++)
            good = spread(h, s, &pairs[i], &more);
        more |= good && !more && place_one(h, s);
    }
    for (int i = 0; good && i < s->n; i++)
        good = s->side[i] >= 0;
    return good;
}

static struct ft_hang_cut side_of(const struct sides *s, int side)
{
    struct ft_hang_cut cut = {.n = 0};
    for (int i = 0; i < s->n; i++)
        if (s->side[i] == side)
            cut.hosts[cut.n++] = s->host[i];
    return cut;
}

static struct ft_hang_cut find_path(const struct ft_hang *h, const struct ft_hang_pair *pairs,
                                    int n)
{
    struct sides s = {.n = 0};
    if (!divide(h, pairs, n, &s) || side_of(&s, 0).n < 2 || side_of(&s, 1).n < 2)
        return (struct ft_hang_cut){.n = 0};
    int zero = ranks_on(h, &s, 0), one = ranks_on(h, &s, 1);
    return side_of(&s, one < zero || (one == zero && has_first(h, &s, 0)));
}

static struct ft_hang_cut find_either(const struct ft_hang *h, const struct ft_hang_pair *pairs,
                                      int n)
{
    uint64_t host = n > 1 ? find_host(h, pairs, n) : 0;
    return host ? (struct ft_hang_cut){{host}, 1} : find_path(h, pairs, n);
}

struct ft_hang_cut ft_hang_find_cut(const struct ft_hang *h, const struct ft_hang_pair *pairs,
                                    int n)
{
    struct ft_hang_pair all[FT_HANG_PAIRS];
    if (n == 0)
        return (struct ft_hang_cut){.n = 0};
    int waits = n;
    memcpy(all, pairs, (size_t)n * sizeof *pairs);
    for (int c = 0; c < h->ncomms; c++)
        n = ft_hang_find_lost(h, c, all, n);
    struct ft_hang_cut cut = find_either(h, all, n), path = {.n = 0};
    /* Waits alone may all lead to one host of several. What links carry after a failure would show
     * less of a host. */
    if (cut.n > 0 && n == waits)
        path = find_path(h, all, find_silent(h, all, n, IN_FLIGHT_MOST));
    if (path.n > 0)
        return path;
    if (cut.n == 0)
        cut = find_either(h, all, find_silent(h, all, n, IN_FLIGHT));
    return cut.n > 0 ? cut : find_path(h, all, find_silent(h, all, n, IN_FLIGHT_MOST));
}

void ft_hang_accuse_cut(struct ft_hang *h, int comm, int node, const struct ft_hang_cut *cut)
{
    ft_hang_begin(h, cut->n > 1 ? FT_VERDICT_PATH : FT_VERDICT_PARTITION, comm, node);
    for (int i = h->comms[comm].first; i < h->comms[comm].first + h->comms[comm].count; i++)
        for (int k = 0; k < cut->n; k++)
            if (ft_hang_process(h, i)->host == cut->hosts[k])
                ft_hang_accuse(h, i, -1);
    ft_hang_end(h);
}

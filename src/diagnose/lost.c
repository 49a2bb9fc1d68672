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

/* Adds the links between hosts whose messages do not arrive, heartbeats among them. */
static int find_silent(const struct ft_hang *h, struct ft_hang_pair *pairs, int n)
{
    for (int i = 0; i < h->nlinks && n < FT_HANG_PAIRS; i++) {
        const struct ft_hang_link *link = &h->links[i];
        int from = link->engine, to = link->sender ? ft_hang_engine(h, link->peer) : -1;
        uint64_t sent, received;
        if (to >= 0 && from >= 0 && from < h->snap->nengines &&
            host_of(h, from) != host_of(h, to) &&
            ft_hang_count(h, from, to, &sent, &received) == FT_PENDING_SOME &&
            sent - received > (h->engines[to].gave_up ? NOT_TAKEN : IN_FLIGHT))
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

uint64_t ft_hang_cut_host(const struct ft_hang *h, const struct ft_hang_pair *pairs, int n)
{
    struct ft_hang_pair all[FT_HANG_PAIRS];
    if (n == 0)
        return 0;
    memcpy(all, pairs, (size_t)n * sizeof *pairs);
    for (int c = 0; c < h->ncomms; c++)
        n = ft_hang_find_lost(h, c, all, n);
    uint64_t host = n > 1 ? find_host(h, all, n) : 0;
    if (host)
        return host; /* what links carry after a failure would show less */
    n = find_silent(h, all, n);
    return n > 1 ? find_host(h, all, n) : 0;
}

void ft_hang_accuse_host(struct ft_hang *h, int comm, uint64_t host)
{
    for (int i = h->comms[comm].first; i < h->comms[comm].first + h->comms[comm].count; i++)
        if (ft_hang_process(h, i)->host == host)
            ft_hang_accuse(h, i, -1);
}

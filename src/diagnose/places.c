/*
 * Who a culprit is in its job. The analysis names ranks by the communicator in which it found them;
 * people and programs know them by their ranks in the largest communicator of the job.
 */
#include "diagnose.h"

#include <stdlib.h>

#define SEATS_MOST 64 /* most rosters in which one engine is looked for */

struct places {
    const struct ft_snapshot *s;
    int *largest; /* [nengines] member: its largest communicator; -1: none */
};

static bool is_sound(const struct ft_snapshot *s, const struct ft_snap_member *m)
{
    return m->engine >= 0 && m->engine < s->nengines && m->rank >= 0 && m->rank < m->nranks;
}

/* Of two of the same size it is the one that was opened first. */
static bool is_larger(const struct ft_snap_member *m, const struct ft_snap_member *than)
{
    return m->nranks > than->nranks ||
           (m->nranks == than->nranks && m->opened_ns < than->opened_ns);
}

static bool find_largest(struct places *p)
{
    const struct ft_snapshot *s = p->s;
    p->largest = malloc(((size_t)s->nengines + 1) * sizeof *p->largest);
    for (int e = 0; p->largest && e < s->nengines; e++)
        p->largest[e] = -1;
    for (int i = 0; p->largest && i < s->nmembers; i++) {
        const struct ft_snap_member *m = &s->members[i];
        int *best = is_sound(s, m) ? &p->largest[m->engine] : NULL;
        if (best && (*best < 0 || is_larger(m, &s->members[*best])))
            *best = i;
    }
    return p->largest != NULL;
}

/* A member of the communicator: that rank, or any if it is -1. */
static const struct ft_snap_member *member_of(const struct ft_snapshot *s, uint64_t ctx, int rank)
{
    for (int i = 0; i < s->nmembers; i++)
        if (s->members[i].ctx == ctx && is_sound(s, &s->members[i]) &&
            (rank < 0 || s->members[i].rank == rank))
            return &s->members[i];
    return NULL;
}

static const struct ft_snap_seat *seat_of(const struct ft_snapshot *s, uint64_t ctx, int rank)
{
    for (int i = 0; i < s->nseats; i++)
        if (s->seats[i].ctx == ctx && s->seats[i].rank == rank)
            return &s->seats[i];
    return NULL;
}

/* The rank in the communicator of an engine that may have no file; -1: unknown. */
static int seat_in(const struct ft_snapshot *s, uint64_t ctx, uint64_t engine)
{
    for (int i = 0; i < s->nseats; i++)
        if (s->seats[i].ctx == ctx && s->seats[i].engine == engine)
            return s->seats[i].rank;
    return -1;
}

/* Rosters tell the communicators of an engine without a file. */
static void place_by_rosters(const struct ft_snapshot *s, struct ft_culprit *culprit)
{
    const struct ft_snap_seat *own = seat_of(s, culprit->ctx, culprit->rank);
    const struct ft_snap_member *best = NULL;
    for (int i = 0, looked = 0; own && i < s->nseats && looked < SEATS_MOST; i++) {
        if (s->seats[i].engine != own->engine)
            continue;
        const struct ft_snap_member *m = member_of(s, s->seats[i].ctx, -1);
        looked++;
        if (!m || (best && !is_larger(m, best)))
            continue;
        best = m;
        culprit->world = s->seats[i].ctx;
        culprit->world_rank = s->seats[i].rank;
    }
}

static int peer_in_world(const struct places *p, const struct ft_culprit *culprit)
{
    const struct ft_snapshot *s = p->s;
    const struct ft_snap_member *m = member_of(s, culprit->ctx, culprit->peer);
    if (m) {
        const struct ft_snap_member *largest = &s->members[p->largest[m->engine]];
        return largest->ctx == culprit->world ? largest->rank : -1;
    }
    const struct ft_snap_seat *seat = seat_of(s, culprit->ctx, culprit->peer);
    return seat ? seat_in(s, culprit->world, seat->engine) : -1;
}

static void place(const struct places *p, struct ft_culprit *culprit)
{
    int engine = culprit->engine,
        member = engine >= 0 && engine < p->s->nengines ? p->largest[engine] : -1;
    if (member >= 0) {
        culprit->world = p->s->members[member].ctx;
        culprit->world_rank = p->s->members[member].rank;
    } else {
        place_by_rosters(p->s, culprit);
    }
    if (culprit->world == culprit->ctx || culprit->peer < 0)
        return;
    culprit->world_peer = peer_in_world(p, culprit);
    if (culprit->world_peer >= 0)
        return;
    culprit->world = culprit->ctx;
    culprit->world_rank = culprit->rank;
    culprit->world_peer = culprit->peer;
}

void ft_verdicts_place(const struct ft_snapshot *s, struct ft_verdict *verdicts, int n)
{
    struct places p = {.s = s};
    bool known = n > 0 && find_largest(&p);
    for (int i = 0; i < n; i++)
        for (int k = 0; k < verdicts[i].nculprits && k < FT_CULPRITS; k++) {
            struct ft_culprit *culprit = &verdicts[i].culprits[k];
            culprit->world = culprit->ctx;
            culprit->world_rank = culprit->rank;
            culprit->world_peer = culprit->peer;
            if (known)
                place(&p, culprit);
        }
    free(p.largest);
}

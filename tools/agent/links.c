/*
 * Links that were slow from the start change no step. A host sees how long its own messages are on
 * the way: if one of its links takes several times as long as its others, that is a suspicion, and
 * the master compares the links of all.
 */
#include "agent.h"

#include <stdlib.h>
#include <string.h>

#define LINKS_MOST 256 /* of a rank */
#define LINKS_LEAST 3  /* of a rank, that can be compared */
#define RATIO 3        /* as the analysis has it */
#define SHARE 0.1      /* of the time, in which messages are on their way */
#define RECENT_NS 3000000000u
#define LEAST_MESSAGES 20
#define LEAST_BYTES 24576

static bool is_timed(const struct ft_snapshot *s, const struct ft_snap_path *p)
{
    return p->sender && p->seen_ns + RECENT_NS >= s->now_ns && p->messages >= LEAST_MESSAGES &&
           p->bytes / p->messages >= LEAST_BYTES;
}

static int by_time(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Whether one of the links from a rank is much slower than the usual one. */
static bool is_uneven(const struct ft_snapshot *s, int engine)
{
    double times[LINKS_MOST], slowest = 0, share = 0;
    size_t n = 0;
    for (int i = 0; i < s->npaths && n < LINKS_MOST; i++) {
        const struct ft_snap_path *p = &s->paths[i];
        if (p->engine != engine || !is_timed(s, p))
            continue;
        times[n] = (double)p->network_ns / (double)p->messages;
        if (times[n] > slowest) {
            slowest = times[n];
            share = (double)p->network_ns / (double)ft_max(p->span_ns, 1);
        }
        n++;
    }
    qsort(times, n, sizeof *times, by_time);
    return n >= LINKS_LEAST && share >= SHARE && slowest >= RATIO * times[(n - 1) / 2];
}

/* Its largest communicator; 0: it has none. */
static uint64_t largest_of(const struct ft_snapshot *s, int engine)
{
    const struct ft_snap_member *best = NULL;
    for (int i = 0; i < s->nmembers; i++) {
        const struct ft_snap_member *m = &s->members[i];
        if (m->engine == engine && m->open && !m->failed && (!best || m->nranks > best->nranks))
            best = m;
    }
    return best ? best->ctx : 0;
}

uint64_t links_find_uneven(const struct ft_snapshot *s)
{
    for (int e = 0; e < s->nengines; e++)
        if (s->engines[e].state == FT_PROCESS_RUNS && is_uneven(s, e))
            return largest_of(s, e);
    return 0;
}

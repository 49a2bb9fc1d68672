/*
 * Writes what is known of links beside their totals: which ways their connections take, how long
 * their large messages wait, and where the clocks of their other ends are. The caller of each
 * function holds the rank's engine.
 */
#include "writer.h"

#include <string.h>

static void store64(uint64_t *to, uint64_t value)
{
    __atomic_store_n(to, value, __ATOMIC_RELAXED);
}

/* ---- connections ----------------------------------------------------------------------------- */

static bool are_free(const struct ft_tm_file *file, int first, int n)
{
    for (int i = first; i < first + n; i++)
        if (file->conn[i].state == FT_TM_OPEN)
            return false;
    return true;
}

int ft_telemetry_conns_open(struct ft_telemetry *t, int link, int n)
{
    if (!t || link < 0 || link >= FT_TM_LINKS)
        return -1;
    int first = 0;
    while (first + n <= FT_TM_CONNS && !are_free(t->file, first, n))
        first++;
    if (first + n > FT_TM_CONNS) {
        store64(&t->file->header.lost_conns, t->file->header.lost_conns + (uint64_t)n);
        return -1;
    }
    for (int i = 0; i < n; i++) {
        struct ft_tm_conn *c = &t->file->conn[first + i];
        guard_enter(&c->guard);
        memset((char *)c + sizeof c->guard, 0, sizeof *c - sizeof c->guard);
        c->state = FT_TM_OPEN;
        c->index = (uint16_t)i;
        c->link = (uint32_t)link;
        guard_leave(&c->guard);
    }
    return first;
}

void ft_telemetry_conn(struct ft_telemetry *t, int row, const struct ft_link_conn *from)
{
    if (!t || row < 0 || row >= FT_TM_CONNS)
        return;
    struct ft_tm_conn *c = &t->file->conn[row];
    guard_enter(&c->guard);
    c->class_index = (int16_t)from->class_index;
    c->nclasses = (int16_t)from->nclasses;
    c->source = from->source;
    c->destination = from->destination;
    c->bytes = from->bytes;
    c->rtt_ns = from->rtt_ns;
    c->ns_per_kib = from->ns_per_kib;
    c->retransmits = from->retransmits;
    guard_leave(&c->guard);
}

void ft_telemetry_conns_close(struct ft_telemetry *t, int first, int n)
{
    for (int i = first; t && first >= 0 && i < first + n && i < FT_TM_CONNS; i++) {
        struct ft_tm_conn *c = &t->file->conn[i];
        guard_enter(&c->guard);
        c->state = FT_TM_CLOSED;
        guard_leave(&c->guard);
    }
}

/* ---- latencies of large messages ------------------------------------------------------------- */

int ft_telemetry_latency_open(struct ft_telemetry *t, int link)
{
    if (!t || link < 0 || link >= FT_TM_LINKS)
        return -1;
    for (int i = 0; i < FT_TM_LATENCIES; i++) {
        int row = (t->next_latency + i) % FT_TM_LATENCIES;
        struct ft_tm_latency *l = &t->file->latency[row];
        if (l->state == FT_TM_OPEN)
            continue;
        /* readers skip the row while it is FREE */
        __atomic_store_n(&l->state, FT_TM_FREE, __ATOMIC_RELAXED);
        store64(&l->peer, t->file->link[link].peer);
        __atomic_store_n(&l->link, (uint32_t)link, __ATOMIC_RELAXED);
        ft_telemetry_latency(t, row, (struct ft_latency[FT_LATENCY_PARTS]){{0}});
        __atomic_store_n(&l->state, FT_TM_OPEN, __ATOMIC_RELEASE);
        t->next_latency = row + 1;
        return row;
    }
    return -1;
}

void ft_telemetry_latency(struct ft_telemetry *t, int row,
                          const struct ft_latency part[FT_LATENCY_PARTS])
{
    if (!t || row < 0 || row >= FT_TM_LATENCIES)
        return;
    for (int p = 0; p < FT_LATENCY_PARTS; p++) {
        struct ft_latency *to = &t->file->latency[row].part[p];
        store64(&to->count, part[p].count);
        store64(&to->sum_ns, part[p].sum_ns);
        store64(&to->max_ns, part[p].max_ns);
        for (int i = 0; i < FT_LATENCY_BUCKETS; i++)
            __atomic_store_n(&to->bucket[i], part[p].bucket[i], __ATOMIC_RELAXED);
    }
}

void ft_telemetry_latency_close(struct ft_telemetry *t, int row)
{
    if (t && row >= 0 && row < FT_TM_LATENCIES)
        __atomic_store_n(&t->file->latency[row].state, FT_TM_CLOSED, __ATOMIC_RELEASE);
}

/* ---- clocks ---------------------------------------------------------------------------------- */

/* The row of a peer, or a free one, or the one that was not measured for longest. */
static struct ft_tm_clock *find_clock(struct ft_telemetry *t, uint64_t peer)
{
    struct ft_tm_clock *best = &t->file->clock[0];
    for (int i = 0; i < FT_TM_CLOCKS; i++) {
        struct ft_tm_clock *c = &t->file->clock[i];
        if (c->rounds > 0 && c->peer == peer)
            return c;
        if (best->rounds > 0 && (c->rounds == 0 || c->is.seen_ns < best->is.seen_ns))
            best = c;
    }
    return best;
}

void ft_telemetry_clock(struct ft_telemetry *t, uint64_t peer, const struct ft_clock *clock)
{
    if (!t)
        return;
    struct ft_tm_clock *c = find_clock(t, peer);
    guard_enter(&c->guard);
    c->rounds = c->peer == peer && c->rounds < UINT32_MAX ? c->rounds + 1 : 1;
    c->peer = peer;
    c->is = *clock;
    guard_leave(&c->guard);
}

/*
 * The sending ends of virtual channels: how many places of each window are in use. A context on a
 * link has one block, in a small hash table.
 */
#include "transport/rxq.h"

#include <stdlib.h>
#include <string.h>

struct ft_txq_ctx *ft_txq_look_up(struct ft_txq *q, uint64_t ctx)
{
    struct ft_txq_ctx *c = q->bucket[ft_rxq_bucket(ctx)];
    while (c && c->ctx != ctx)
        c = c->next;
    if (c)
        q->last = c;
    return c;
}

int ft_txq_bind(struct ft_txq *q, uint64_t ctx)
{
    struct ft_txq_ctx *c = calloc(1, sizeof *c + q->ways * sizeof c->of_way[0]);
    if (!c)
        return ft_fail(FT_NOMEM, "no memory for a context of a link");
    c->ctx = ctx;
    struct ft_txq_ctx **at = &q->bucket[ft_rxq_bucket(ctx)];
    c->next = *at;
    *at = c;
    return FT_OK;
}

void ft_txq_unbind(struct ft_txq *q, uint64_t ctx)
{
    struct ft_txq_ctx **at = &q->bucket[ft_rxq_bucket(ctx)];
    while (*at && (*at)->ctx != ctx)
        at = &(*at)->next;
    struct ft_txq_ctx *c = *at;
    if (!c)
        return;
    *at = c->next;
    if (q->last == c)
        q->last = NULL;
    free(c);
}

int ft_txq_open(struct ft_txq *q, struct ft_rxq_set *set)
{
    return ft_txq_open_ways(q, set, 0);
}

int ft_txq_open_ways(struct ft_txq *q, struct ft_rxq_set *set, unsigned ways)
{
    memset(q, 0, sizeof *q);
    q->set = set;
    q->ways = ways;
    q->next = set->txqs;
    set->txqs = q;
    for (int i = 0; i < set->count; i++) {
        int rc = ft_txq_bind(q, set->bound[i]);
        if (rc) {
            ft_txq_close(q);
            return rc;
        }
    }
    return FT_OK;
}

void ft_txq_close(struct ft_txq *q)
{
    if (!q->set)
        return;
    for (struct ft_txq **at = &q->set->txqs; *at; at = &(*at)->next) {
        if (*at != q)
            continue;
        *at = q->next;
        break;
    }
    for (unsigned b = 0; b < FT_RXQ_BUCKETS; b++) {
        while (q->bucket[b]) {
            struct ft_txq_ctx *c = q->bucket[b];
            q->bucket[b] = c->next;
            free(c);
        }
    }
    q->last = NULL;
    q->set = NULL;
}

int ft_txq_refuse(uint64_t ctx, unsigned lane)
{
    if (lane >= FT_LANES_ALL)
        return ft_fail(FT_INVAL, "lane %u does not exist", lane);
    return ft_fail(FT_INVAL, "a message for context %016llx, which is not bound here",
                   (unsigned long long)ctx);
}

/* ---- links that count places for each of their connections ----------------------------------- */

int ft_txq_take_way(struct ft_txq *q, unsigned way, uint64_t ctx, unsigned lane, unsigned places)
{
    const int rc = ft_txq_take_places(q, ctx, lane, places);
    if (rc == FT_OK)
        q->last->of_way[way][lane] = (uint8_t)(q->last->of_way[way][lane] + places);
    return rc;
}

void ft_txq_put_way(struct ft_txq *q, unsigned way, uint64_t ctx, unsigned lane, unsigned places)
{
    ft_txq_put_places(q, ctx, lane, places);
    struct ft_txq_ctx *c = lane < FT_LANES_ALL ? ft_txq_find(q, ctx) : NULL;
    if (c)
        ft_txq_subtract(&c->of_way[way][lane], places);
}

void ft_txq_clear(struct ft_txq *q, unsigned way, unsigned places)
{
    q->outstanding -= (unsigned)ft_min(q->outstanding, places);
    for (unsigned b = 0; b < FT_RXQ_BUCKETS; b++)
        for (struct ft_txq_ctx *c = q->bucket[b]; c; c = c->next)
            for (unsigned l = 0; l < FT_LANES_ALL; l++) {
                c->outstanding[l] = (uint8_t)(c->outstanding[l] -
                                              ft_min(c->outstanding[l], c->of_way[way][l]));
                c->of_way[way][l] = 0;
            }
}

int ft_txq_hold(struct ft_txq *q, unsigned way, uint64_t ctx, unsigned lane, unsigned places)
{
    struct ft_txq_ctx *c = ft_txq_find(q, ctx);
    const unsigned window = ft_rxq_places(q->set, lane);
    if (places > window || (c && c->outstanding[lane] + places > window))
        return ft_fail(FT_PROTOCOL, "a window of lane %u has fewer places than are taken", lane);
    q->outstanding += places;
    if (c) {
        c->outstanding[lane] = (uint8_t)(c->outstanding[lane] + places);
        c->of_way[way][lane] = (uint8_t)(c->of_way[way][lane] + places);
    }
    return FT_OK;
}

uint8_t ft_txq_number(struct ft_txq *q, uint64_t ctx, unsigned lane)
{
    struct ft_txq_ctx *c = ft_txq_find(q, ctx);
    return c ? c->number[lane]++ : 0;
}

void *ft_txq_small(struct ft_txq *q, uint64_t ctx, unsigned lane)
{
    struct ft_txq_ctx *c = lane < FT_LANES_ALL ? ft_txq_find(q, ctx) : NULL;
    return c ? c->small[lane] : NULL;
}

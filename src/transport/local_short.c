/*
 * Short messages that come over shared slots, past the queues: look and took of struct
 * ft_transport_ops. They do less than recv and release: nothing is lent, pulled or pinned, and a
 * message is taken only if it is the next one on the link and the one that the caller wants.
 * Whatever is not so simple is left to the others. ft_local_post() is in local_send.c.
 */
#include "transport/local.h"

#include <string.h>

/* Returns the address of a payload that lies in a slot. NULL: only recv can find it. */
static const void *slot_of(struct ft_local_link *l, const struct ft_slots_desc *d,
                           const struct ft_header *want)
{
    bool pinned;
    uint32_t slot = l->looked;
    if (slot > l->slots.nslots || (l->held >> (slot - 1) & 1) || want->len > l->slots.stride_bytes)
        return NULL;
    struct ft_slots_desc copy = {.header = *want, .slot = slot};
    memcpy(copy.small, d->small, sizeof copy.small);
    const void *at = ft_slots_payload(&l->slots, &copy, &pinned);
    /* An honest sender has allocated these pages, so this costs nothing. */
    if (!at || pinned || ft_slots_allocate(&l->slots, slot - 1, want->len) != FT_OK)
        return NULL;
    return at;
}

/* The first message in the queue, if it is wanted and can be read where it lies. */
static const void *queued_payload(const struct ft_local_link *l, const struct ft_rxq_node *n,
                                  const struct ft_header *want)
{
    bool pinned = l->pinned && n->cookie;
    return !pinned && n->cookie <= FT_SLOTS_MOST && ft_header_is_wanted(&n->header, want) ? n->data
                                                                                          : NULL;
}

const void *ft_local_look(struct ft_link *link, const struct ft_header *want)
{
    struct ft_local_link *l = ft_local_link_of(link);
    if (l->base.state != FT_LINK_UP || l->at_once)
        return NULL;
    l->looked_queued = l->rxq.queued > 0 && ft_rxq_queued(&l->rxq, want->ctx, want->lane);
    if (l->looked_queued) {
        const struct ft_rxq_node *n = ft_rxq_first(&l->rxq, want->ctx, want->lane);
        return n ? queued_payload(l, n, want) : NULL;
    }
    /* If the payload has lines of its own, they come at the same time as the descriptor's. */
    const unsigned char *payload = ft_slots_short(&l->slots);
    if (want->len > FT_RXQ_SMALL_BYTES)
        for (size_t at = 0; at < ft_min(want->len, FT_SLOTS_SHORT_BYTES); at += FT_CACHE_LINE)
            __builtin_prefetch(payload + at);
    const struct ft_slots_desc *d = ft_slots_next(&l->slots);
    if (!d)
        return NULL;
    l->looked = d->slot;
    /* What follows uses this copy, which the sender cannot change any more. */
    atomic_signal_fence(memory_order_seq_cst);
    if (!ft_header_is_wanted(&d->header, want))
        return NULL;
    if (l->looked == FT_SLOTS_SHORT)
        return want->len <= FT_SLOTS_SHORT_BYTES ? payload : NULL;
    if (l->looked)
        return slot_of(l, d, want);
    return want->len <= FT_RXQ_SMALL_BYTES ? d->small : NULL;
}

void ft_local_took(struct ft_link *link, const struct ft_header *h)
{
    struct ft_local_link *l = ft_local_link_of(link);
    if (l->looked_queued) {
        struct ft_msg msg;
        if (ft_local_recv(link, h->ctx, h->lane, &msg) == FT_OK)
            ft_local_release(link, &msg);
        return;
    }
    l->base.messages++;
    l->base.bytes += h->len;
    ft_slots_pass(&l->slots);
    if (l->looked && l->looked != FT_SLOTS_SHORT)
        ft_local_give(l, &(struct ft_slots_return){
                             .ctx = h->ctx,
                             .lane = (uint8_t)h->lane,
                             .slot = (uint8_t)l->looked,
                             .consumed = (uint8_t)ft_rxq_cost(l->rxq.set, h->lane, h->len)});
    else
        ft_local_give_later(l, h, 1);
}

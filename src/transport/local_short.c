/*
 * Short messages of links over shared slots, past the queues: post, look and took of struct
 * ft_transport_ops. They do less than send, recv and release: nothing is lent, pulled or pinned,
 * and a message is taken only if it is the next one on the link and the one that the caller wants.
 * Whatever is not so simple is left to the others.
 */
#include "transport/local.h"

#include <string.h>

/* As ft_local_wake_other() on a quiet transport. */
static void wake_later(struct ft_local_link *l)
{
    l->unrung = true;
    ft_local_of(l)->unrung = true;
}

int ft_local_post(struct ft_link *link, const struct ft_header *h, const void *data)
{
    struct ft_local_link *l = ft_local_link_of(link);
    if (l->base.state != FT_LINK_UP)
        return FT_AGAIN;
    bool is_small = h->len <= FT_RXQ_SMALL_BYTES, full = l->txq.outstanding >= FT_SLOTS_DESCS;
    if (!is_small || full || ft_txq_take(&l->txq, h->ctx, h->lane) != FT_OK)
        return ft_local_send_copy(l, h, data);
    l->base.messages++;
    l->base.bytes += h->len;
    ft_slots_publish(&l->slots, h, 0, data);
    wake_later(l);
    return FT_OK;
}

static bool is_wanted(const struct ft_header *got, const struct ft_header *want)
{
    return got->ctx == want->ctx && got->sig == want->sig && got->seq == want->seq &&
           got->len == want->len && got->lane == want->lane;
}

/* Where a payload lies that is not in its descriptor. NULL: where only recv finds it. */
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
    return !pinned && n->cookie <= FT_SLOTS_MOST && is_wanted(&n->header, want) ? n->data : NULL;
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
    const unsigned char *payload = ft_slots_next_short(&l->slots);
    if (want->len > FT_RXQ_SMALL_BYTES)
        for (size_t at = 0; at < ft_min(want->len, FT_SLOTS_SHORT_BYTES); at += FT_CACHE_LINE)
            __builtin_prefetch(payload + at);
    const struct ft_slots_desc *d = ft_slots_next(&l->slots);
    if (!d)
        return NULL;
    const struct ft_header got = d->header;
    l->looked = d->slot;
    /* The copies are checked, which the sender cannot change any more. */
    atomic_signal_fence(memory_order_seq_cst);
    if (!is_wanted(&got, want))
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

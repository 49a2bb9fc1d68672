/*
 * The sending side of links over shared slots.
 *
 * Loans. If a payload of FT_LOAN_BYTES or more lies in the arena (base/arena.c), and the caller
 * allows its request to last, the payload is not copied. The message names its place, and the
 * receiver reads it there. The request completes when the receiver has consumed the message. A
 * sender that cannot wait for that, because it failed or the link went down, first marks the loan
 * as withdrawn in the segment. The receiver looks at that mark after it has read, and drops what it
 * read if the mark is set.
 *
 * Other memory of the sender is lent in the same way, if the receiver says that it can read that
 * memory (pull.h), and the caller says that the payload is only moved. The receiver must copy such
 * a payload before it can use it: to its destination, or to the landing buffer of its channel.
 */
#include "transport/local.h"

#include <string.h>

void ft_local_withdraw(struct ft_local_link *l, uint32_t loans)
{
    loans &= l->lent & ~l->withdrawn;
    if (!loans)
        return;
    ft_slots_withdraw(&l->slots, loans);
    l->withdrawn |= loans;
    for (; loans; loans &= loans - 1) {
        struct ft_send *req = l->loan[__builtin_ctz(loans)];
        req->withdraw = NULL;
        req->status = FT_LINK;
    }
}

static void withdraw_one(struct ft_send *req)
{
    struct ft_local_link *l = req->link;
    for (uint32_t left = l->lent & ~l->withdrawn; left; left &= left - 1)
        if (l->loan[__builtin_ctz(left)] == req)
            ft_local_withdraw(l, left & -left);
}

/* Ends a loan that the receiver gave back. False: there was no such loan. */
static bool take_back(struct ft_local_link *l, unsigned number)
{
    uint32_t bit = number < FT_SLOTS_LOANS ? 1u << number : 0;
    if (!(l->lent & bit))
        return false;
    if (l->withdrawn & bit) {
        ft_slots_restore(&l->slots, bit);
    } else {
        l->loan[number]->withdraw = NULL;
        l->loan[number]->status = FT_OK;
    }
    l->lent &= ~bit;
    l->withdrawn &= ~bit;
    return true;
}

static bool take_devmem_back(struct ft_local_link *l, unsigned number)
{
    if (number >= FT_SLOTS_DEVMEM || (l->slots.devmem_free >> number & 1))
        return false;
    ft_slots_devmem_unget(&l->slots, number);
    return true;
}

/* The receiver gave back a slot, a loan, or memory on the device. */
static bool take_payload_back(struct ft_local_link *l, unsigned number)
{
    if (number > FT_SLOTS_MOST + FT_SLOTS_LOANS)
        return take_devmem_back(l, number - FT_SLOTS_MOST - FT_SLOTS_LOANS - 1);
    if (number > FT_SLOTS_MOST)
        return take_back(l, number - FT_SLOTS_MOST - 1);
    unsigned slot = number - 1;
    if (slot >= l->slots.nslots || (l->slots.free >> slot & 1))
        return false;
    ft_slots_unget(&l->slots, slot);
    return true;
}

bool ft_local_take_returns(struct ft_local_link *l)
{
    struct ft_slots_return r;
    bool any = false;
    for (unsigned i = 0; i < FT_SLOTS_RETURNS && ft_slots_collect(&l->slots, &r); i++) {
        any = true;
        if (r.slot && !take_payload_back(l, r.slot)) {
            ft_local_link_down(
                l, ft_fail(FT_PROTOCOL, "a peer gave back a slot that it does not have"), false);
            return any;
        }
        if (r.consumed)
            ft_txq_put_places(&l->txq, r.ctx, r.lane, r.consumed);
    }
    return any;
}

static unsigned cost_of(const struct ft_local_link *l, const struct ft_header *h)
{
    return ft_rxq_cost(l->txq.set, h->lane, h->len);
}

/* The message was not sent after all. */
static void put_places(struct ft_local_link *l, const struct ft_header *h)
{
    ft_txq_put_places(&l->txq, h->ctx, h->lane, cost_of(l, h));
}

/* Takes the message's places in the window of the channel, and a descriptor, if they are free. */
static inline int take_free_places(struct ft_local_link *l, const struct ft_header *h)
{
    if (l->txq.outstanding >= FT_SLOTS_DESCS)
        return FT_AGAIN;
    return ft_txq_take_places(&l->txq, h->ctx, h->lane, cost_of(l, h));
}

static __attribute__((noinline)) int take_returned_places(struct ft_local_link *l,
                                                          const struct ft_header *h)
{
    int rc = FT_AGAIN;
    if (ft_local_take_returns(l)) {
        if (l->base.state == FT_LINK_DOWN)
            return FT_LINK; /* what came back has brought it down */
        rc = take_free_places(l, h);
    }
    if (rc == FT_AGAIN)
        l->wanted = true;
    return rc;
}

static inline int take_places(struct ft_local_link *l, const struct ft_header *h)
{
    int rc = take_free_places(l, h);
    return rc == FT_AGAIN ? take_returned_places(l, h) : rc;
}

/* Control messages do not use pinned slots: messages of the GPU need that memory. */
static int take_slot(struct ft_local_link *l, const struct ft_header *h)
{
    int slot = ft_slots_get(&l->slots);
    if (slot < 0 && ft_local_take_returns(l))
        slot = ft_slots_get(&l->slots);
    if (slot < 0) {
        l->wanted = l->starved = true;
        if (l->base.state == FT_LINK_UP && ft_slots_starve(&l->slots))
            l->ring(l);
        return slot;
    }
    if (l->starved) {
        l->starved = false;
        ft_slots_fed(&l->slots);
    }
    bool pins = h->lane <= FT_LANE_P2P || l->slots.at[slot];
    int rc = pins ? ft_slots_place(&l->slots, (unsigned)slot, h->len, ft_local_of(l)->pinned_most)
                  : ft_slots_allocate(&l->slots, (unsigned)slot, h->len);
    if (rc == FT_OK)
        return slot;
    ft_slots_unget(&l->slots, (unsigned)slot);
    ft_local_link_down(l, rc, false);
    return -1;
}

static int sendable(struct ft_local_link *l, const struct ft_header *h)
{
    if (l->base.state == FT_LINK_DOWN)
        return FT_LINK;
    if (l->base.state == FT_LINK_CONNECTING)
        return FT_AGAIN;
    if (h->len > l->base.transport->config.chunk_bytes) {
        return ft_fail(FT_INVAL, "a message of %u bytes on a link for at most %zu", h->len,
                       l->base.transport->config.chunk_bytes);
    }
    return FT_OK;
}

/* The receiver may sleep: its caller wakes it. */
static inline void publish(struct ft_local_link *l, const struct ft_header *h, uint32_t slot,
                           const void *small)
{
    l->base.messages++;
    l->base.bytes += h->len;
    ft_slots_publish(&l->slots, h, slot, small);
}

static void publish_and_wake(struct ft_local_link *l, const struct ft_header *h, uint32_t slot,
                             const void *small)
{
    publish(l, h, slot, small);
    ft_local_wake_other(l);
}

/* Whether the receiver can read this payload where it lies. */
static bool lendable(struct ft_local_link *l, const struct ft_header *h, const void *data,
                     bool moved, struct ft_slots_place *place)
{
    const size_t len_bytes = h->len;
    place->memory = FT_SLOTS_ARENA;
    if (l->lends && len_bytes >= FT_LOAN_BYTES && ft_arena_has(data, len_bytes, &place->at))
        return true;
    *place = (struct ft_slots_place){.at = (uintptr_t)data, .memory = FT_SLOTS_ELSEWHERE};
    return moved && h->lane <= FT_LANE_P2P && l->pulled_least && len_bytes >= l->pulled_least &&
           ft_pull_lendable(&l->seen, data, len_bytes, ft_now_ns(l->base.transport->config.env));
}

/* Makes a loan of the payload, which lies at *place. Returns its number as descriptors have it; 0:
 * the payload must be copied. */
static uint32_t lend(struct ft_local_link *l, const struct ft_header *h, const void *data,
                     struct ft_send *req, struct ft_slots_place *place)
{
    req->withdraw = NULL;
    if (!req->lasts || l->lent == UINT32_MAX || !lendable(l, h, data, req->moved, place))
        return 0;
    unsigned number = (unsigned)__builtin_ctz(~l->lent);
    l->lent |= 1u << number;
    l->loan[number] = req;
    l->wanted = true;
    req->withdraw = withdraw_one;
    req->link = l;
    return number + FT_SLOTS_MOST + 1;
}

/* Whether a payload may lie in the next message's short memory. Among the messages since the one
 * that had this memory before, at least one has been returned. So the receiver, which takes
 * messages in their order, has taken that one, too. */
static bool is_short_free(struct ft_local_link *l, const struct ft_header *h)
{
    if (h->len > FT_SLOTS_SHORT_BYTES || l->slots.pinned)
        return false;
    const unsigned most = FT_SLOTS_SHORTS - 2 + cost_of(l, h); /* outstanding, with this one */
    if (l->txq.outstanding > most)
        ft_local_take_returns(l);
    return l->txq.outstanding <= most;
}

static int send_in_slot(struct ft_local_link *l, const struct ft_header *h, const void *data)
{
    int slot = take_slot(l, h);
    if (slot < 0) {
        put_places(l, h);
        return l->base.state == FT_LINK_DOWN ? FT_LINK : FT_AGAIN;
    }
    memcpy(ft_slots_data(&l->slots, (unsigned)slot), data, h->len);
    publish(l, h, (uint32_t)slot + 1, NULL);
    return FT_OK;
}

/* The message has its places in the window. */
static int send_copied(struct ft_local_link *l, const struct ft_header *h, const void *data)
{
    if (h->len <= FT_RXQ_SMALL_BYTES) {
        publish(l, h, 0, data);
        return FT_OK;
    }
    const bool is_short = is_short_free(l, h);
    if (l->base.state == FT_LINK_DOWN)
        return FT_LINK; /* what came back has brought it down */
    if (!is_short)
        return send_in_slot(l, h, data);
    memcpy(ft_slots_short(&l->slots), data, h->len);
    publish(l, h, FT_SLOTS_SHORT, NULL);
    return FT_OK;
}

int ft_local_post(struct ft_link *link, const struct ft_header *h, const void *data)
{
    struct ft_local_link *l = ft_local_link_of(link);
    if (l->base.state != FT_LINK_UP)
        return FT_AGAIN;
    int rc = take_places(l, h);
    if (rc == FT_OK)
        rc = send_copied(l, h, data);
    if (rc == FT_OK)
        l->unrung = ft_local_of(l)->unrung = true;
    return rc;
}

static int send_message(struct ft_local_link *l, const struct ft_header *h, const void *data,
                        struct ft_send *req)
{
    int rc = sendable(l, h);
    if (rc == FT_OK)
        rc = take_places(l, h);
    if (rc)
        return rc;
    struct ft_slots_place place;
    uint32_t slot = lend(l, h, data, req, &place);
    if (slot) {
        req->status = FT_AGAIN;
        publish_and_wake(l, h, slot, &place);
        return FT_OK;
    }
    rc = send_copied(l, h, data);
    if (rc == FT_OK) {
        ft_local_wake_other(l);
        req->status = FT_OK;
    }
    return rc;
}

int ft_local_send(struct ft_link *link, const struct ft_header *h, const void *data,
                  struct ft_send *req)
{
    return ft_link_offered(link, h, send_message(ft_local_link_of(link), h, data, req),
                           link->transport->config.env);
}

static int reserve_slot(struct ft_local_link *l, const struct ft_header *h, void **slot)
{
    int rc = sendable(l, h);
    if (rc == FT_OK)
        rc = take_places(l, h);
    if (rc)
        return rc;
    if (h->len <= FT_RXQ_SMALL_BYTES) {
        *slot = ft_txq_small(&l->txq, h->ctx, h->lane);
        return FT_OK;
    }
    int s = l->reserved + 2 < l->slots.nslots ? take_slot(l, h) : -1;
    if (s < 0) {
        l->wanted = true;
        put_places(l, h);
        return l->base.state == FT_LINK_DOWN ? FT_LINK : FT_AGAIN;
    }
    l->reserved++;
    *slot = ft_slots_data(&l->slots, (unsigned)s);
    return FT_OK;
}

int ft_local_reserve(struct ft_link *link, const struct ft_header *h, void **slot)
{
    return ft_link_offered(link, h, reserve_slot(ft_local_link_of(link), h, slot),
                           link->transport->config.env);
}

/* Memory on the device cannot be moved elsewhere by the receiver's CPU, so a message there may hold
 * it for long. Each context has enough of it for all its windows. If contexts share a link, they
 * use host memory when it is exhausted. */
int ft_local_reserve_devmem(struct ft_link *link, const struct ft_header *h, void **slot)
{
    struct ft_local_link *l = ft_local_link_of(link);
    int rc = sendable(l, h);
    if (rc)
        return rc;
    if (!l->slots.pinned || h->len <= FT_RXQ_SMALL_BYTES || h->len > ft_local_of(l)->pinned_most)
        return FT_NOTSUP;
    rc = take_places(l, h);
    if (rc)
        return rc;
    int number = ft_slots_devmem_get(&l->slots, ft_local_of(l)->pinned_most);
    if (number < 0 && ft_local_take_returns(l))
        number = ft_slots_devmem_get(&l->slots, ft_local_of(l)->pinned_most);
    if (number < 0) {
        put_places(l, h);
        return l->base.state == FT_LINK_DOWN ? FT_LINK : FT_NOTSUP;
    }
    *slot = l->slots.devmem[number];
    return FT_OK;
}

/* The number of the data slot at an address. 0: it is not a slot. */
static uint32_t slot_at(const struct ft_local_link *l, const void *p)
{
    size_t offset = (size_t)((uintptr_t)p - (uintptr_t)l->slots.data);
    for (uint32_t i = 0; l->slots.pinned && i < l->slots.nslots; i++)
        if (l->slots.at[i] == p)
            return i + 1;
    return offset < l->slots.nslots * l->slots.stride_bytes
               ? 1 + (uint32_t)(offset / l->slots.stride_bytes)
               : 0;
}

void ft_local_commit(struct ft_link *link, const struct ft_header *h, void *slot)
{
    struct ft_local_link *l = ft_local_link_of(link);
    int devmem = ft_slots_devmem_at(&l->slots, slot);
    if (devmem >= 0) {
        struct ft_slots_place place = ft_slots_devmem_place(&l->slots, slot);
        if (l->base.state == FT_LINK_UP)
            publish_and_wake(l, h, (uint32_t)devmem + FT_SLOTS_MOST + FT_SLOTS_LOANS + 1, &place);
        return;
    }
    uint32_t s = slot_at(l, slot);
    if (s)
        l->reserved--;
    if (l->base.state == FT_LINK_UP)
        publish_and_wake(l, h, s, slot);
}

void ft_local_cancel(struct ft_link *link, const struct ft_header *h, void *slot)
{
    struct ft_local_link *l = ft_local_link_of(link);
    int devmem = ft_slots_devmem_at(&l->slots, slot);
    uint32_t s = devmem < 0 ? slot_at(l, slot) : 0;
    if (s) {
        l->reserved--;
        ft_slots_unget(&l->slots, s - 1);
    }
    if (devmem >= 0)
        ft_slots_devmem_unget(&l->slots, (unsigned)devmem);
    put_places(l, h);
}

bool ft_local_drained(struct ft_link *link)
{
    struct ft_local_link *l = ft_local_link_of(link);
    if (!l->base.sender || !l->open || !l->txq.outstanding)
        return true;
    if (l->base.state == FT_LINK_UP)
        ft_local_take_returns(l);
    l->wanted = l->txq.outstanding != 0;
    return !l->wanted;
}

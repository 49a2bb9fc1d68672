/*
 * local.c: the data path of links over shared slots.
 *
 * Why no channel blocks another one: descriptors are taken from the ring as they come, small payloads with them, so the
 * ring never stands still. Data slots are few; when the sender says that it lacks one (`starving`), the receiver copies
 * unclaimed messages into the landing buffers of their channels and gives their slots back. Of the slots, at most half
 * may be out as views and all but two be reserved, so that some always come round. A message is copied when it has lain
 * there for SPILL_POLLS polls under starvation, because usually it is about to be received; or when the receiver sleeps.
 *
 * Loans. A payload of LOAN_BYTES or more that lies in the arena (base/arena.c) is not copied, if the sender says that its request
 * may last: the message names its place, and the receiver reads it there. The request completes when the receiver has consumed
 * the message. A sender that cannot wait for that, because it failed or the link went down, first marks the loan as withdrawn in the
 * segment; a receiver looks at that mark after it has read, and never takes what it has read since for the message.
 */
#include "transport/local.h"

#include <string.h>

#define SPILL_POLLS 200
#define LOAN_BYTES 16384 /* shorter payloads are copied: their sender has better things to do than to wait for the receiver */

static struct ft_local_link *local_link(struct ft_link *l) { return FT_CONTAINER(l, struct ft_local_link, base); }
static uint32_t slot_bit(uint64_t cookie) { return cookie && cookie <= FT_SLOTS_MOST ? 1u << (cookie - 1) : 0; }
static uint32_t loan_bit(uint64_t cookie) { return cookie > FT_SLOTS_MOST ? 1u << (cookie - FT_SLOTS_MOST - 1) : 0; }
static struct ft_local *local_of(struct ft_local_link *l) { return FT_CONTAINER(l->base.transport, struct ft_local, base); }

/* ---- links ---------------------------------------------------------------------------------------------------- */

void ft_local_open(struct ft_local *t, const struct ft_transport_ops *ops, const struct ft_transport_config *config)
{
    t->base.ops = ops;
    t->base.config = *config;
    ft_rxq_set_open(&t->set, config->chunk_bytes);
}

void ft_local_close(struct ft_local *t) { ft_rxq_set_close(&t->set); }

void ft_local_link_add(struct ft_local *t, struct ft_local_link *l, uint64_t peer, bool sender)
{
    l->base.ops = t->base.ops;
    l->base.transport = &t->base;
    l->base.peer = peer;
    l->base.sender = sender;
    l->base.state = FT_LINK_CONNECTING;
    l->next = t->links;
    l->at = &t->links;
    if (l->next) l->next->at = &l->next;
    t->links = l;
}

/* The receiver has done with a message: gives its slot back and a place of the window. */
static void consumed(struct ft_rxq *q, struct ft_rxq_node *n)
{
    struct ft_local_link *l = FT_CONTAINER(q, struct ft_local_link, rxq);
    l->held &= ~slot_bit(n->cookie);
    l->claimed &= ~slot_bit(n->cookie);
    l->borrowed &= ~loan_bit(n->cookie);
    if (l->base.state == FT_LINK_DOWN) return;
    struct ft_slots_return r = {.ctx = n->header.ctx, .lane = (uint8_t)n->header.lane, .slot = (uint8_t)n->cookie, .consumed = 1};
    if (n->cookie || l->nlater == FT_LOCAL_LATER) {
        if (ft_slots_give(&l->slots, &r)) l->ring(l);
    } else l->later[l->nlater++] = r;
}

/* Places of windows without a slot go back at the next poll: who waits for this message's result comes first. */
static void give_later(struct ft_local_link *l)
{
    bool rings = false;
    while (l->nlater > 0) rings |= ft_slots_give(&l->slots, &l->later[--l->nlater]);
    if (rings) l->ring(l);
}

int ft_local_link_open(struct ft_local_link *l)
{
    struct ft_rxq_set *set = &local_of(l)->set;
    int rc = l->base.sender ? ft_txq_open(&l->txq, set) : ft_rxq_open(&l->rxq, set, consumed);
    if (rc == FT_OK) l->open = true;
    return rc;
}

void ft_local_link_up(struct ft_local_link *l)
{
    if (l->base.state != FT_LINK_CONNECTING) return;
    l->base.state = FT_LINK_UP;
    l->announce = true;
    local_of(l)->announcements++;
}

void ft_local_link_lend(struct ft_local_link *l) { l->lends = ft_arena_base() != NULL; }

/* Ends loans without waiting for the receiver: first the mark, then the sender may do with the memory what it likes. Their numbers
 * stay taken until the receiver has given them back. */
static void withdraw(struct ft_local_link *l, uint32_t loans)
{
    loans &= l->lent & ~l->withdrawn;
    if (!loans) return;
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
        if (l->loan[__builtin_ctz(left)] == req) withdraw(l, left & -left);
}

static bool take_messages(struct ft_local_link *l);
static bool take_returns(struct ft_local_link *l);

void ft_local_link_down(struct ft_local_link *l, int reason, bool orderly)
{
    if (l->base.state == FT_LINK_DOWN) return;
    if (l->base.state == FT_LINK_UP && l->open && reason != FT_PROTOCOL) {
        if (l->base.sender) take_returns(l);
        else take_messages(l);
    }
    if (l->base.state == FT_LINK_DOWN) return; /* by what was taken */
    l->base.state = FT_LINK_DOWN;
    withdraw(l, UINT32_MAX);
    l->base.reason = reason;
    l->base.orderly = orderly;
    l->announce_down = true;
    local_of(l)->announcements++;
}

void ft_local_link_remove(struct ft_local_link *l)
{
    local_of(l)->announcements -= (unsigned)l->announce + (unsigned)l->announce_down;
    withdraw(l, UINT32_MAX);
    *l->at = l->next;
    if (l->next) l->next->at = l->at;
    ft_rxq_close(&l->rxq);
    ft_txq_close(&l->txq);
    l->open = false;
}

int ft_local_announce(struct ft_local *t, struct ft_event *events, int max)
{
    int n = 0;
    for (struct ft_local_link *l = t->links; l && t->announcements && n < max; l = l->next) {
        if (l->announce) {
            events[n].what = l->base.sender ? FT_EVENT_UP : FT_EVENT_ACCEPTED;
            events[n++].link = &l->base;
            l->announce = false;
            t->announcements--;
        }
        if (l->announce_down && n < max) {
            events[n].what = FT_EVENT_DOWN;
            events[n++].link = &l->base;
            l->announce_down = false;
            t->announcements--;
        }
    }
    return n;
}

int ft_local_bind(struct ft_transport *base, uint64_t ctx)
{
    return ft_rxq_set_bind(&FT_CONTAINER(base, struct ft_local, base)->set, ctx);
}

void ft_local_unbind(struct ft_transport *base, uint64_t ctx)
{
    ft_rxq_set_unbind(&FT_CONTAINER(base, struct ft_local, base)->set, ctx);
}

/* ---- sending ---------------------------------------------------------------------------------------------------- */

/* A loan came back; false if it was not out. */
static bool take_back(struct ft_local_link *l, unsigned number)
{
    uint32_t bit = 1u << number;
    if (number >= FT_SLOTS_LOANS || !(l->lent & bit)) return false;
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

/* A slot or a loan came back. */
static bool take_payload_back(struct ft_local_link *l, unsigned number)
{
    if (number > FT_SLOTS_MOST) return take_back(l, number - FT_SLOTS_MOST - 1);
    unsigned slot = number - 1;
    if (slot >= l->slots.nslots || (l->slots.free >> slot & 1)) return false;
    ft_slots_unget(&l->slots, slot);
    return true;
}

static bool take_returns(struct ft_local_link *l)
{
    struct ft_slots_return r;
    bool any = false;
    for (unsigned i = 0; i < FT_SLOTS_RETURNS && ft_slots_collect(&l->slots, &r); i++) {
        any = true;
        if (r.slot && !take_payload_back(l, r.slot)) {
            ft_local_link_down(l, ft_fail(FT_PROTOCOL, "a peer gave back a slot that it does not have"), false);
            return any;
        }
        if (r.consumed) ft_txq_put(&l->txq, r.ctx, r.lane);
    }
    return any;
}

/* A place in the window of the channel and a descriptor. */
static int take_place(struct ft_local_link *l, const struct ft_header *h)
{
    for (int round = 0;; round++) {
        int rc = l->txq.outstanding < FT_SLOTS_DESCS ? ft_txq_take(&l->txq, h->ctx, h->lane) : FT_AGAIN;
        if (rc != FT_AGAIN) return rc;
        if (round || !take_returns(l)) break;
        if (l->base.state == FT_LINK_DOWN) return FT_LINK; /* by what came back */
    }
    l->wanted = true;
    return FT_AGAIN;
}

static int take_slot(struct ft_local_link *l, size_t len_bytes)
{
    int slot = ft_slots_get(&l->slots);
    if (slot < 0 && take_returns(l)) slot = ft_slots_get(&l->slots);
    if (slot < 0) {
        l->wanted = l->starved = true;
        if (l->base.state == FT_LINK_UP && ft_slots_starve(&l->slots)) l->ring(l);
        return slot;
    }
    if (l->starved) {
        l->starved = false;
        ft_slots_fed(&l->slots);
    }
    int rc = ft_slots_allocate(&l->slots, (unsigned)slot, len_bytes);
    if (rc == FT_OK) return slot;
    ft_slots_unget(&l->slots, (unsigned)slot);
    ft_local_link_down(l, rc, false);
    return -1;
}

static int sendable(struct ft_local_link *l, const struct ft_header *h)
{
    if (l->base.state == FT_LINK_DOWN) return FT_LINK;
    if (l->base.state == FT_LINK_CONNECTING) return FT_AGAIN;
    if (h->len > l->base.transport->config.chunk_bytes) {
        return ft_fail(FT_INVAL, "a message of %u bytes on a link for at most %zu", h->len, l->base.transport->config.chunk_bytes);
    }
    return FT_OK;
}

static void publish(struct ft_local_link *l, const struct ft_header *h, uint32_t slot, const void *small)
{
    l->base.messages++;
    l->base.bytes += h->len;
    if (ft_slots_publish(&l->slots, h, slot, small)) l->ring(l);
}

/* The number of a new loan, as descriptors have it, of what lies at *place of the arena; 0: this payload is to be copied. */
static uint32_t lend(struct ft_local_link *l, const struct ft_header *h, const void *data, struct ft_send *req, uint64_t *place)
{
    req->withdraw = NULL;
    if (!req->lasts || !l->lends || h->len < LOAN_BYTES || l->lent == UINT32_MAX || !ft_arena_has(data, h->len, place)) return 0;
    unsigned number = (unsigned)__builtin_ctz(~l->lent);
    l->lent |= 1u << number;
    l->loan[number] = req;
    l->wanted = true;
    req->withdraw = withdraw_one;
    req->link = l;
    return number + FT_SLOTS_MOST + 1;
}

int ft_local_send(struct ft_link *link, const struct ft_header *h, const void *data, struct ft_send *req)
{
    struct ft_local_link *l = local_link(link);
    int rc = sendable(l, h);
    if (rc == FT_OK) rc = take_place(l, h);
    if (rc) return rc;
    uint64_t place;
    uint32_t slot = lend(l, h, data, req, &place);
    if (slot) {
        req->status = FT_AGAIN;
        publish(l, h, slot, &place);
        return FT_OK;
    }
    if (h->len > FT_RXQ_SMALL_BYTES) {
        int s = take_slot(l, h->len);
        if (s < 0) {
            ft_txq_put(&l->txq, h->ctx, h->lane);
            return l->base.state == FT_LINK_DOWN ? FT_LINK : FT_AGAIN;
        }
        memcpy(ft_slots_data(&l->slots, (unsigned)s), data, h->len);
        slot = (uint32_t)s + 1;
    }
    publish(l, h, slot, data);
    req->status = FT_OK;
    return FT_OK;
}

int ft_local_reserve(struct ft_link *link, const struct ft_header *h, void **slot)
{
    struct ft_local_link *l = local_link(link);
    int rc = sendable(l, h);
    if (rc == FT_OK) rc = take_place(l, h);
    if (rc) return rc;
    if (h->len <= FT_RXQ_SMALL_BYTES) {
        *slot = ft_txq_small(&l->txq, h->ctx, h->lane);
        return FT_OK;
    }
    int s = l->reserved + 2 < l->slots.nslots ? take_slot(l, h->len) : -1;
    if (s < 0) {
        l->wanted = true;
        ft_txq_put(&l->txq, h->ctx, h->lane);
        return l->base.state == FT_LINK_DOWN ? FT_LINK : FT_AGAIN;
    }
    l->reserved++;
    *slot = ft_slots_data(&l->slots, (unsigned)s);
    return FT_OK;
}

/* The number of the data slot at an address, 0 if it is none. */
static uint32_t slot_at(const struct ft_local_link *l, const void *p)
{
    size_t offset = (size_t)((uintptr_t)p - (uintptr_t)l->slots.data);
    return offset < l->slots.nslots * l->slots.stride_bytes ? 1 + (uint32_t)(offset / l->slots.stride_bytes) : 0;
}

void ft_local_commit(struct ft_link *link, const struct ft_header *h, void *slot)
{
    struct ft_local_link *l = local_link(link);
    uint32_t s = slot_at(l, slot);
    if (s) l->reserved--;
    if (l->base.state == FT_LINK_UP) publish(l, h, s, slot);
}

void ft_local_cancel(struct ft_link *link, const struct ft_header *h, void *slot)
{
    struct ft_local_link *l = local_link(link);
    uint32_t s = slot_at(l, slot);
    if (s) {
        l->reserved--;
        ft_slots_unget(&l->slots, s - 1);
    }
    ft_txq_put(&l->txq, h->ctx, h->lane);
}

bool ft_local_drained(struct ft_link *link)
{
    struct ft_local_link *l = local_link(link);
    if (!l->base.sender || !l->open || !l->txq.outstanding) return true;
    if (l->base.state == FT_LINK_UP) take_returns(l);
    l->wanted = l->txq.outstanding != 0;
    return !l->wanted;
}

/* ---- receiving -------------------------------------------------------------------------------------------------- */

/* Where a message's payload lies, by the sender's word, which is checked; NULL: nowhere where it may be. */
static const unsigned char *payload_of(const struct ft_local_link *l, const struct ft_slots_desc *d)
{
    uint64_t place, len = d->header.len;
    if (d->slot == 0) return len <= FT_RXQ_SMALL_BYTES ? d->small : NULL;
    if (d->slot <= l->slots.nslots) return l->held & slot_bit(d->slot) ? NULL : ft_slots_data(&l->slots, d->slot - 1);
    if (d->slot <= FT_SLOTS_MOST || d->slot > FT_SLOTS_MOST + FT_SLOTS_LOANS || (l->borrowed & loan_bit(d->slot)) || !l->arena) return NULL;
    memcpy(&place, d->small, sizeof place);
    return place <= l->arena_bytes && len <= l->arena_bytes - place ? l->arena + place : NULL;
}

/* One message into its channel. A status only for what an honest sender never does. */
static int take_message(struct ft_local_link *l, const struct ft_slots_desc *d)
{
    const unsigned char *payload = payload_of(l, d);
    if (!payload) return ft_fail(FT_PROTOCOL, "a peer sent a message from a slot that it does not have");
    struct ft_rxq_node *n;
    int rc = slot_bit(d->slot) ? ft_slots_allocate(&l->slots, d->slot - 1, ft_min(d->header.len, l->slots.stride_bytes)) : FT_OK; /* it is, by an honest sender */
    if (rc == FT_OK) rc = ft_rxq_admit(&l->rxq, &d->header, &n);
    if (rc) return rc;
    if (!n) {
        l->base.transport->dropped++;
        struct ft_slots_return r = {.ctx = d->header.ctx, .lane = (uint8_t)d->header.lane, .slot = (uint8_t)d->slot, .consumed = 1};
        if (l->base.state == FT_LINK_UP && ft_slots_give(&l->slots, &r)) l->ring(l);
        return FT_OK;
    }
    n->cookie = d->slot;
    n->data = payload;
    l->held |= slot_bit(d->slot);
    l->borrowed |= loan_bit(d->slot);
    if (slot_bit(d->slot)) {
        l->holder[d->slot - 1] = n;
        l->arrived[d->slot - 1] = l->starved_polls;
    } else if (!d->slot) {
        memcpy(n->small, d->small, sizeof n->small);
        n->data = n->small;
    }
    ft_rxq_ready(&l->rxq, n);
    return FT_OK;
}

static bool take_messages(struct ft_local_link *l)
{
    struct ft_slots_desc d;
    bool any = false;
    for (unsigned i = 0; i < FT_SLOTS_DESCS && ft_slots_take(&l->slots, &d); i++) {
        any = true;
        int rc = take_message(l, &d);
        if (rc) {
            ft_local_link_down(l, rc, false);
            break;
        }
    }
    return any;
}

/* Moves a message out of its slot and gives the slot back, but not its place in the window. */
static void spill(struct ft_local_link *l, struct ft_rxq_node *n)
{
    uint32_t bit = 1u << (n->cookie - 1);
    unsigned char *landing = ft_rxq_landing(n);
    memcpy(landing, n->data, n->header.len);
    struct ft_slots_return r = {.slot = (uint8_t)n->cookie};
    n->data = landing;
    n->cookie = 0;
    l->held &= ~bit;
    l->claimed &= ~bit;
    if (l->base.state == FT_LINK_UP && ft_slots_give(&l->slots, &r)) l->ring(l);
}

/* Spills unclaimed messages that are here for `age` polls under starvation. */
static bool spill_unclaimed(struct ft_local_link *l, uint32_t age)
{
    bool any = false;
    for (uint32_t left = l->held & ~l->claimed; left; left &= left - 1) {
        unsigned slot = (unsigned)__builtin_ctz(left);
        if (l->starved_polls - l->arrived[slot] < age) continue;
        if (!any) ft_slots_fed(&l->slots); /* before the slots: a sender that lacks more than these says so again */
        any = true;
        spill(l, l->holder[slot]);
    }
    return any;
}

int ft_local_recv(struct ft_link *link, uint64_t ctx, unsigned lane, struct ft_msg *msg)
{
    struct ft_local_link *l = local_link(link);
    int rc = l->open ? ft_rxq_recv(&l->rxq, ctx, lane, msg) : FT_AGAIN;
    if (rc) return rc == FT_AGAIN && l->base.state == FT_LINK_DOWN ? FT_LINK : rc;
    l->base.messages++;
    l->base.bytes += msg->header.len;
    if (!msg->cookie) return FT_OK;
    struct ft_rxq_node *n = msg->owner;
    if (loan_bit(msg->cookie)) {
        msg->withdrawn = ft_slots_withdrawn(&l->slots);
        msg->withdrawn_bit = loan_bit(msg->cookie);
        return FT_OK;
    }
    if ((unsigned)__builtin_popcount(l->claimed) >= l->slots.nslots / 2) {
        spill(l, n);
        msg->data = n->data;
        msg->cookie = 0;
    } else {
        l->claimed |= 1u << (n->cookie - 1);
    }
    return FT_OK;
}

int ft_local_peek(struct ft_link *link, uint64_t ctx, unsigned lane, struct ft_header *header)
{
    struct ft_local_link *l = local_link(link);
    int rc = l->open ? ft_rxq_peek(&l->rxq, ctx, lane, header) : FT_AGAIN;
    return rc == FT_AGAIN && l->base.state == FT_LINK_DOWN ? FT_LINK : rc;
}

void ft_local_release(struct ft_link *link, struct ft_msg *msg) { ft_rxq_release(&local_link(link)->rxq, msg); }

/* ---- turning and sleeping ----------------------------------------------------------------------------------------- */

bool ft_local_link_poll(struct ft_local_link *l)
{
    if (l->base.state != FT_LINK_UP) return false;
    if (l->base.sender) {
        if (!l->wanted || !take_returns(l)) return false;
        l->wanted = (l->lent & ~l->withdrawn) != 0;
        return true;
    }
    bool any = take_messages(l);
    if (!any && l->nlater && l->base.state == FT_LINK_UP) give_later(l);
    if (l->base.state == FT_LINK_UP && ft_slots_starving(&l->slots)) {
        l->starved_polls++;
        any |= spill_unclaimed(l, SPILL_POLLS);
    }
    return any;
}

/* Is something there already on a link that was just armed? */
static bool has_work(struct ft_local_link *l)
{
    if (l->base.sender) return l->wanted && ft_slots_pending(&l->slots, true);
    if (ft_slots_pending(&l->slots, false)) return true;
    return ft_slots_starving(&l->slots) && spill_unclaimed(l, 0); /* nobody will receive them while we sleep */
}

bool ft_local_arm_links(struct ft_local *t, bool on)
{
    bool work = t->announcements > 0;
    for (struct ft_local_link *l = t->links; l; l = l->next) {
        if (l->base.state != FT_LINK_UP) continue;
        if (on && l->nlater) give_later(l);
        if (!l->base.sender || l->wanted || !on) ft_slots_arm(&l->slots, l->base.sender, on);
        if (on && has_work(l)) work = true;
    }
    if (on && work) ft_local_arm_links(t, false);
    return !work;
}

/* Returns are fetched first if nobody waits for them: those who do are told by poll that something moved. */
void ft_local_trim(struct ft_transport *base)
{
    for (struct ft_local_link *l = FT_CONTAINER(base, struct ft_local, base)->links; l; l = l->next) {
        if (!l->open) continue;
        if (l->base.sender && l->base.state == FT_LINK_UP && !l->wanted) take_returns(l);
        if (l->base.sender) ft_slots_trim(&l->slots);
        else ft_rxq_trim(&l->rxq);
    }
}

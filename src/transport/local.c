/*
 * Links over shared slots, and their receiving side; local_send.c has the sending side.
 *
 * Why no channel blocks another one: the receiver takes descriptors from the ring as they come, and
 * small payloads with them, so the ring always moves. There are few data slots. When the sender
 * says that it has no free slot (`starving`), the receiver copies unclaimed messages into the
 * landing buffers of their channels, and gives their slots back. At most half of the slots may be
 * in use as views, and all but two may be reserved, so some slots always become free. A message is
 * copied only after it has been there for SPILL_POLLS polls under starvation, because usually it
 * will be received soon; or when the receiver goes to sleep.
 */
#include "transport/local.h"

#include <string.h>

#define SPILL_POLLS 200

static uint32_t slot_bit(uint64_t cookie)
{
    return cookie && cookie <= FT_SLOTS_MOST ? 1u << (cookie - 1) : 0;
}
static uint32_t loan_bit(uint64_t cookie)
{
    return cookie > FT_SLOTS_MOST && cookie <= FT_SLOTS_MOST + FT_SLOTS_LOANS
               ? 1u << (cookie - FT_SLOTS_MOST - 1)
               : 0;
}
static uint32_t devmem_bit(uint64_t cookie)
{
    return cookie > FT_SLOTS_MOST + FT_SLOTS_LOANS
               ? 1u << (cookie - FT_SLOTS_MOST - FT_SLOTS_LOANS - 1)
               : 0;
}

/* ---- links ----------------------------------------------------------------------------------- */

void ft_local_open(struct ft_local *t, const struct ft_transport_ops *ops,
                   const struct ft_transport_config *config)
{
    t->base.ops = ops;
    t->base.config = *config;
    t->pinned_most = config->chunk_bytes;
    size_t longest = ft_can_populate() ? ft_max(config->chunk_bytes, config->first_bytes)
                                       : config->chunk_bytes;
    /* A slot has memory pages only after a message needed them. */
    t->base.config.chunk_bytes = longest;
    ft_rxq_set_open(&t->set, longest);
    t->set.first = FT_LOCAL_FIRST;
    t->set.small_bytes = FT_SLOTS_SHORT_BYTES;
    t->set.env = config->env;
}

void ft_local_close(struct ft_local *t)
{
    ft_rxq_set_close(&t->set);
}

void ft_local_link_add(struct ft_local *t, struct ft_local_link *l, uint64_t peer, bool sender)
{
    l->base.ops = t->base.ops;
    l->base.transport = &t->base;
    l->base.peer = peer;
    l->base.sender = sender;
    l->base.state = FT_LINK_CONNECTING;
    l->next = t->links;
    l->at = &t->links;
    if (l->next)
        l->next->at = &l->next;
    t->links = l;
}

void ft_local_wake_other(struct ft_local_link *l)
{
    l->unrung = l->base.transport->quiet;
    if (l->unrung)
        ft_local_of(l)->unrung = true;
    else if (ft_slots_rings(&l->slots, l->base.sender))
        l->ring(l);
}

void ft_local_give(struct ft_local_link *l, const struct ft_slots_return *r)
{
    if (l->base.state != FT_LINK_UP)
        return;
    ft_slots_give(&l->slots, r);
    ft_local_wake_other(l);
}

void ft_local_give_now(struct ft_local_link *l)
{
    ft_slots_give(&l->slots, &l->later);
    l->later.consumed = 0;
    ft_local_wake_other(l);
}

/* The receiver has finished with a message: gives its slot and its places in the window back. */
static void consumed(struct ft_rxq *q, struct ft_rxq_node *n)
{
    struct ft_local_link *l = FT_CONTAINER(q, struct ft_local_link, rxq);
    l->held &= ~slot_bit(n->cookie);
    l->claimed &= ~slot_bit(n->cookie);
    l->pinned &= ~slot_bit(n->cookie);
    l->borrowed &= ~loan_bit(n->cookie);
    l->devmem &= ~devmem_bit(n->cookie);
    if (l->base.state == FT_LINK_DOWN)
        return;
    if (n->cookie)
        ft_local_give(l, &(struct ft_slots_return){.ctx = n->header.ctx,
                                                   .lane = (uint8_t)n->header.lane,
                                                   .slot = (uint8_t)n->cookie,
                                                   .consumed = n->places});
    else
        ft_local_give_later(l, &n->header, n->places);
}

int ft_local_link_open(struct ft_local_link *l)
{
    struct ft_rxq_set *set = &ft_local_of(l)->set;
    int rc = l->base.sender ? ft_txq_open(&l->txq, set) : ft_rxq_open(&l->rxq, set, consumed);
    l->rxq.consumer = &l->base.latency[FT_LATENCY_CONSUMER];
    if (rc == FT_OK)
        l->open = true;
    return rc;
}

void ft_local_link_up(struct ft_local_link *l)
{
    if (l->base.state != FT_LINK_CONNECTING)
        return;
    l->base.state = FT_LINK_UP;
    l->announce = true;
    ft_local_of(l)->announcements++;
}

void ft_local_link_lend(struct ft_local_link *l, bool arena, bool other)
{
    l->lends = arena && ft_arena_base() != NULL;
    l->pulled_least = other ? (size_t)ft_param_int(FT_PARAM_CMA) : 0;
}

bool ft_local_link_meet(struct ft_local_link *l, int fd, const struct ft_pinned_place *place)
{
    const struct ft_transport_config *config = &l->base.transport->config;
    if (!config->pinned || !place->len_bytes)
        return false;
    if (ft_pinned_map(config->pinned, fd, place, &l->slots.pinned) == FT_OK)
        return true;
    FT_LOG(INFO, "shm", config->rank, "messages of engine %016llx to the GPU are staged: %s",
           (unsigned long long)l->base.peer, ft_fail_text());
    return false;
}

static bool take_messages(struct ft_local_link *l);

void ft_local_link_down(struct ft_local_link *l, int reason, bool orderly)
{
    if (l->base.state == FT_LINK_DOWN)
        return;
    if (l->base.state == FT_LINK_UP && l->open && reason != FT_PROTOCOL) {
        if (l->base.sender)
            ft_local_take_returns(l);
        else
            take_messages(l);
    }
    if (l->base.state == FT_LINK_DOWN)
        return; /* what was taken has brought it down */
    l->base.state = FT_LINK_DOWN;
    ft_local_withdraw(l, UINT32_MAX);
    l->base.reason = reason;
    l->base.orderly = orderly;
    l->announce_down = true;
    ft_local_of(l)->announcements++;
}

void ft_local_link_remove(struct ft_local_link *l)
{
    ft_local_of(l)->announcements -= (unsigned)l->announce + (unsigned)l->announce_down;
    ft_local_withdraw(l, UINT32_MAX);
    *l->at = l->next;
    if (l->next)
        l->next->at = l->at;
    if (l->base.sender)
        ft_slots_unpin(&l->slots);
    else
        ft_pinned_release(l->slots.pinned);
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

/* ---- receiving ------------------------------------------------------------------------------- */

/* Whether the payload lies in memory of the sender's device that this side's device can reach. */
static bool devmem_of(const struct ft_local_link *l, const struct ft_slots_desc *d,
                      const struct ft_slots_place *place, const unsigned char **at)
{
    const struct ft_pinned *devmem = ft_pinned_devmem(l->slots.pinned);
    uint64_t len = d->header.len;
    if (d->slot > FT_SLOTS_MOST + FT_SLOTS_LOANS + FT_SLOTS_DEVMEM ||
        (l->devmem & devmem_bit(d->slot)) || d->header.lane > FT_LANE_P2P)
        return false;
    if (place->memory != FT_SLOTS_ON_DEVICE || !devmem || place->at > devmem->len_bytes ||
        len > devmem->len_bytes - place->at)
        return false;
    *at = (const unsigned char *)devmem->at + place->at;
    return true;
}

/* Finds where a message's payload lies: checks what the sender says. *at NULL: it must be pulled.
 * False: the sender named a place that it may not use. */
static bool payload_of(const struct ft_local_link *l, const struct ft_slots_desc *d,
                       const unsigned char **at, bool *pinned)
{
    struct ft_slots_place place;
    uint64_t len = d->header.len;
    *at = d->small;
    *pinned = false;
    if (d->slot == 0)
        return len <= FT_RXQ_SMALL_BYTES;
    if (d->slot == FT_SLOTS_SHORT) {
        *at = ft_slots_taken_short(&l->slots);
        return len <= FT_SLOTS_SHORT_BYTES;
    }
    if (d->slot <= l->slots.nslots)
        return (*at = ft_slots_payload(&l->slots, d, pinned)) && !(l->held & slot_bit(d->slot));
    memcpy(&place, d->small, sizeof place);
    if (d->slot > FT_SLOTS_MOST + FT_SLOTS_LOANS)
        return devmem_of(l, d, &place, at);
    if (d->slot <= FT_SLOTS_MOST || (l->borrowed & loan_bit(d->slot)))
        return false;
    *at = NULL;
    if (place.memory == FT_SLOTS_ELSEWHERE)
        return l->pull && d->header.lane <= FT_LANE_P2P;
    if (!l->arena || place.at > l->arena_bytes || len > l->arena_bytes - place.at)
        return false;
    *at = l->arena + place.at;
    return true;
}

/* Gives back at once what a message of an unbound context holds. */
static void drop_message(struct ft_local_link *l, const struct ft_slots_desc *d)
{
    l->base.transport->dropped++;
    struct ft_slots_return r = {.ctx = d->header.ctx,
                                .lane = (uint8_t)d->header.lane,
                                .slot = d->slot == FT_SLOTS_SHORT ? 0 : (uint8_t)d->slot,
                                .consumed = (uint8_t)ft_rxq_cost(l->rxq.set, d->header.lane,
                                                                 d->header.len)};
    ft_local_give(l, &r);
}

/* Notes where the message lies until it is released. */
static void hold_payload(struct ft_local_link *l, const struct ft_slots_desc *d,
                         struct ft_rxq_node *n, bool pinned)
{
    l->held |= slot_bit(d->slot);
    if (pinned)
        l->pinned |= slot_bit(d->slot);
    l->borrowed |= loan_bit(d->slot);
    l->devmem |= devmem_bit(d->slot);
    if (slot_bit(d->slot)) {
        l->holder[d->slot - 1] = n;
        l->arrived[d->slot - 1] = l->starved_polls;
        return;
    }
    memcpy(n->small, d->small, sizeof n->small);
    if (!d->slot)
        n->data = n->small;
}

/* Puts a message into its channel. An error is something that an honest sender never does. */
static int take_message(struct ft_local_link *l, const struct ft_slots_desc *d)
{
    const unsigned char *payload;
    bool pinned;
    if (!payload_of(l, d, &payload, &pinned))
        return ft_fail(FT_PROTOCOL, "a peer sent a message from a slot that it does not have");
    struct ft_rxq_node *n;
    int rc = FT_OK;
    /* An honest sender has allocated these pages, so this costs nothing. */
    if (slot_bit(d->slot) && !pinned)
        rc = ft_slots_allocate(&l->slots, d->slot - 1,
                               ft_min(d->header.len, l->slots.stride_bytes));
    if (rc == FT_OK)
        rc = ft_rxq_admit(&l->rxq, &d->header, &n);
    if (rc)
        return rc;
    if (!n) {
        drop_message(l, d);
        return FT_OK;
    }
    n->cookie = d->slot == FT_SLOTS_SHORT ? 0 : d->slot;
    n->data = payload;
    if (d->slot == FT_SLOTS_SHORT) /* its memory soon belongs to another message */
        n->data = memcpy(ft_rxq_landing(n), payload, d->header.len);
    else
        hold_payload(l, d, n, pinned);
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

/* The sender has withdrawn its slots in pinned memory: what was read there may be wrong. */
static bool is_unpinned(const struct ft_local_link *l)
{
    return __atomic_load_n(ft_slots_unpinned(&l->slots), __ATOMIC_ACQUIRE);
}

/* Copies a message out of its slot, and gives the slot back, but not its place in the window. A
 * withdrawn message stays where it is. */
static void spill(struct ft_local_link *l, struct ft_rxq_node *n)
{
    uint32_t bit = 1u << (n->cookie - 1);
    unsigned char *landing = ft_rxq_landing(n);
    memcpy(landing, n->data, n->header.len);
    if ((l->pinned & bit) && is_unpinned(l))
        return;
    struct ft_slots_return r = {.slot = (uint8_t)n->cookie};
    n->data = landing;
    n->cookie = 0;
    l->held &= ~bit;
    l->claimed &= ~bit;
    l->pinned &= ~bit;
    ft_local_give(l, &r);
}

/* Copies unclaimed messages out of their slots that have been there for `age` polls under
 * starvation. */
static bool spill_unclaimed(struct ft_local_link *l, uint32_t age)
{
    bool any = false;
    for (uint32_t left = l->held & ~l->claimed; left; left &= left - 1) {
        unsigned slot = (unsigned)__builtin_ctz(left);
        if (l->starved_polls - l->arrived[slot] < age)
            continue;
        /* Clears the mark before it gives the slots back: a sender that needs more slots sets it
         * again. */
        if (!any)
            ft_slots_fed(&l->slots);
        any = true;
        spill(l, l->holder[slot]);
    }
    return any;
}

/* A small message that arrives while a caller waits for it is delivered directly, if its queue is
 * empty. */
static bool recv_at_once(struct ft_local_link *l, const struct ft_slots_desc *d, uint64_t ctx,
                         unsigned lane, struct ft_msg *msg)
{
    if (d->slot || l->at_once || ft_rxq_queued(&l->rxq, ctx, lane))
        return false;
    msg->header = d->header;
    /* The copy is checked, which the sender cannot change any more. */
    atomic_signal_fence(memory_order_seq_cst);
    if (msg->header.len > FT_RXQ_SMALL_BYTES || msg->header.ctx != ctx || msg->header.lane != lane)
        return false;
    /* Messages of other channels may need its descriptor before it is released. */
    msg->data = memcpy(l->once, d->small, sizeof l->once);
    msg->owner = l;
    msg->cookie = 0;
    msg->withdrawn = NULL;
    msg->unfetched = msg->devmem = false;
    l->at_once = true;
    ft_slots_pass(&l->slots);
    return true;
}

static int next_message(struct ft_local_link *l, uint64_t ctx, unsigned lane, struct ft_msg *msg)
{
    /* If the transport is not quiet, the next poll takes the messages of all links. */
    bool looks = l->base.transport->quiet && l->base.state == FT_LINK_UP;
    const struct ft_slots_desc *d = looks ? ft_slots_next(&l->slots) : NULL;
    int rc = FT_AGAIN;
    if (d && recv_at_once(l, d, ctx, lane, msg))
        return FT_OK;
    if (d)
        take_messages(l);
    if (l->open && l->rxq.queued > 0)
        rc = ft_rxq_recv(&l->rxq, ctx, lane, msg);
    return rc == FT_AGAIN && l->base.state == FT_LINK_DOWN ? FT_LINK : rc;
}

/* Gives the message its slot until release. If half of the slots are taken in this way, the message
 * moves to other memory, so that the sender has slots. */
static void claim_slot(struct ft_local_link *l, struct ft_msg *msg)
{
    struct ft_rxq_node *n = msg->owner;
    if ((unsigned)__builtin_popcount(l->claimed) >= l->slots.nslots / 2)
        spill(l, n);
    msg->data = n->data;
    msg->cookie = n->cookie;
    l->claimed |= slot_bit(n->cookie);
    if (l->pinned & slot_bit(n->cookie)) {
        msg->withdrawn = ft_slots_unpinned(&l->slots);
        msg->withdrawn_bit = 1;
    }
}

int ft_local_recv(struct ft_link *link, uint64_t ctx, unsigned lane, struct ft_msg *msg)
{
    struct ft_local_link *l = ft_local_link_of(link);
    int rc = next_message(l, ctx, lane, msg);
    if (rc)
        return rc;
    l->base.messages++;
    l->base.bytes += msg->header.len;
    if (!msg->cookie)
        return FT_OK;
    if (loan_bit(msg->cookie)) {
        msg->withdrawn = ft_slots_withdrawn(&l->slots);
        msg->withdrawn_bit = loan_bit(msg->cookie);
        msg->unfetched = !msg->data;
        return FT_OK;
    }
    msg->devmem = devmem_bit(msg->cookie) != 0;
    if (msg->devmem) {
        msg->withdrawn = ft_slots_unpinned(&l->slots);
        msg->withdrawn_bit = 1;
    } else
        claim_slot(l, msg);
    return FT_OK;
}

/* The bytes count only if the sender had not withdrawn the message after they were read. The sender
 * must also have been alive (pull checks that), because its process number may since belong to
 * another process. The caller asks ft_msg_intact() once more before it uses the bytes. */
int ft_local_fetch(struct ft_link *link, struct ft_msg *msg, void *to)
{
    struct ft_local_link *l = ft_local_link_of(link);
    struct ft_rxq_node *n = msg->owner;
    struct ft_slots_place place;
    if (!to)
        to = ft_rxq_landing(n);
    memcpy(&place, n->small, sizeof place);
    int rc = l->pull(l, place.at, to, msg->header.len);
    if (!ft_msg_intact(msg))
        return FT_AGAIN;
    if (rc) {
        FT_LOG(INFO, "shm", l->base.transport->config.rank,
               "a message of %u bytes cannot be read in the memory of engine %016llx: %s",
               msg->header.len, (unsigned long long)l->base.peer, ft_fail_text());
        ft_local_link_down(l, rc, false);
        return FT_LINK;
    }
    msg->data = to;
    msg->unfetched = false;
    return FT_OK;
}

int ft_local_peek(struct ft_link *link, uint64_t ctx, unsigned lane, struct ft_header *header)
{
    struct ft_local_link *l = ft_local_link_of(link);
    int rc = l->open ? ft_rxq_peek(&l->rxq, ctx, lane, header) : FT_AGAIN;
    return rc == FT_AGAIN && l->base.state == FT_LINK_DOWN ? FT_LINK : rc;
}

void ft_local_release(struct ft_link *link, struct ft_msg *msg)
{
    struct ft_local_link *l = ft_local_link_of(link);
    if (msg->owner != l) {
        ft_rxq_release(&l->rxq, msg);
        return;
    }
    msg->owner = NULL;
    l->at_once = false;
    ft_local_give_later(l, &msg->header, 1);
}

/* ---- turning and sleeping -------------------------------------------------------------------- */

bool ft_local_link_poll(struct ft_local_link *l)
{
    if (l->base.state != FT_LINK_UP)
        return false;
    if (l->base.sender) {
        if (!l->wanted || !ft_local_take_returns(l))
            return false;
        l->wanted = (l->lent & ~l->withdrawn) != 0;
        return true;
    }
    bool any = take_messages(l);
    if (!any && l->later.consumed && l->base.state == FT_LINK_UP)
        ft_local_give_now(l);
    if (l->base.state == FT_LINK_UP && ft_slots_starving(&l->slots)) {
        l->starved_polls++;
        any |= spill_unclaimed(l, SPILL_POLLS);
    }
    return any;
}

/* Whether a link that was just armed has something to do already. */
static bool has_work(struct ft_local_link *l)
{
    if (l->base.sender)
        return l->wanted && ft_slots_pending(&l->slots, true);
    if (ft_slots_pending(&l->slots, false))
        return true;
    /* nobody receives messages while this side sleeps */
    return ft_slots_starving(&l->slots) && spill_unclaimed(l, 0);
}

bool ft_local_arm_links(struct ft_local *t, bool on)
{
    bool work = t->announcements > 0;
    for (struct ft_local_link *l = t->links; l; l = l->next) {
        if (l->base.state != FT_LINK_UP)
            continue;
        if (on && l->later.consumed)
            ft_local_give_now(l);
        if (!l->base.sender || l->wanted || !on)
            ft_slots_arm(&l->slots, l->base.sender, on);
        if (on && has_work(l))
            work = true;
    }
    if (on && work)
        ft_local_arm_links(t, false);
    return !work;
}

void ft_local_wake(struct ft_transport *base)
{
    struct ft_local *t = FT_CONTAINER(base, struct ft_local, base);
    if (!t->unrung)
        return;
    t->unrung = false;
    for (struct ft_local_link *l = t->links; l; l = l->next)
        if (l->unrung && l->base.state == FT_LINK_UP)
            ft_local_wake_other(l);
}

/* Takes returns first, if no caller waits for them. Callers that wait learn from poll that
 * something moved. */
void ft_local_trim(struct ft_transport *base)
{
    for (struct ft_local_link *l = FT_CONTAINER(base, struct ft_local, base)->links; l;
         l = l->next) {
        if (!l->open)
            continue;
        if (l->base.sender && l->base.state == FT_LINK_UP && !l->wanted)
            ft_local_take_returns(l);
        if (l->base.sender)
            ft_slots_trim(&l->slots);
        else
            ft_rxq_trim(&l->rxq);
    }
}

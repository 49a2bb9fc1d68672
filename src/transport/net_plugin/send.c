/*
 * Sending: messages wait in a queue until slots are free for them, and frames in the ring until the
 * plugin takes them. Credits are frames, too.
 */
#include "transport/net_plugin/net.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

static size_t small_slot_bytes(void)
{
    return NET_FRONT + NET_SMALL_BYTES;
}

static unsigned char *slot_at(const struct net_out *o, unsigned slot)
{
    return slot < o->nlarge
               ? o->memory + slot * o->slot_bytes
               : o->memory + o->nlarge * o->slot_bytes + (slot - o->nlarge) * small_slot_bytes();
}

static unsigned char *payload_at(const struct net_out *o, unsigned slot)
{
    return slot_at(o, slot) + NET_FRONT;
}

int net_out_open(struct net_link *l, unsigned nlarge, size_t large_bytes, unsigned nsmall)
{
    struct net_out *o = &l->out;

    o->nlarge = nlarge;
    o->nsmall = nsmall;
    o->slot_bytes = large_bytes;
    o->free = UINT32_MAX >> (32 - nlarge - nsmall);
    o->memory_bytes = ft_round_up(nlarge * large_bytes + nsmall * small_slot_bytes(), 4096);
    o->memory = net_map(o->memory_bytes);
    if (o->memory == NULL)
        return ft_fail(FT_NOMEM, "no memory for the slots of a link");
    return net_plugin_reg(l->net->plugin, o->comm, o->memory, o->memory_bytes, &o->registered);
}

/* The memory is freed when the plugin has no comm any more that might read it. */
void net_out_close(struct net_link *l)
{
    struct net_out *o = &l->out;

    if (o->comm != NULL) {
        if (o->registered != NULL)
            net_plugin_dereg(l->net->plugin, o->comm, o->registered);
        net_plugin_close_send(l->net->plugin, o->comm);
    }
    o->comm = o->registered = NULL;
    ft_unmap(o->memory, o->memory != NULL ? o->memory_bytes : 0);
    o->memory = NULL;
}

/* Who has not sent for a while rings, because the other side may sleep and have no descriptor that
 * would wake it. */
static void note_active(struct net_link *l)
{
    struct net *t = l->net;
    if (t->now_ns - l->active_ns > NET_IDLE_NS && l->side != NULL && l->stage == NET_UP)
        (void)ft_side_send(l->side, NET_RING, NULL, 0);
    l->active_ns = t->active_ns = t->now_ns;
}

static void put(struct net_link *l, unsigned slot, size_t len_bytes)
{
    struct net_out *o = &l->out;
    const unsigned at = (o->head + o->count) % NET_ABI_REQUESTS;

    o->ring[at].slot = (uint8_t)slot;
    o->ring[at].len_bytes = (uint32_t)len_bytes;
    o->ring[at].request = NULL;
    o->count++;
    o->frames++;
    note_active(l);
}

static bool forget_sent(struct net_link *l)
{
    struct net_out *o = &l->out;
    bool moved = false;
    int len;

    while (o->posted > 0) {
        int rc = net_plugin_test(l->net->plugin, o->ring[o->head].request, &len);
        if (rc == FT_AGAIN)
            break;
        if (rc != FT_OK) {
            net_broken(l, rc);
            break;
        }
        o->free |= 1u << o->ring[o->head].slot;
        o->head = (o->head + 1) % NET_ABI_REQUESTS;
        o->posted--;
        o->count--;
        moved = true;
    }
    return moved;
}

static void post(struct net_link *l)
{
    struct net_out *o = &l->out;

    while (o->posted < o->count && l->broken == FT_OK) {
        const unsigned at = (o->head + o->posted) % NET_ABI_REQUESTS;
        const unsigned slot = o->ring[at].slot;
        int rc = net_plugin_isend(l->net->plugin, o->comm,
                                  payload_at(o, slot) - sizeof(struct ft_header),
                                  o->ring[at].len_bytes, o->registered, &o->ring[at].request);
        if (rc == FT_AGAIN)
            return;
        if (rc != FT_OK)
            return net_broken(l, rc);
        o->posted++;
    }
}

/* ---- the queue of messages ------------------------------------------------------------------- */

static int take_slot(struct net_out *o, size_t len_bytes)
{
    const uint32_t large = o->free & (UINT32_MAX >> (32 - o->nlarge)), small = o->free & ~large;
    const uint32_t from = len_bytes <= NET_SMALL_BYTES && small != 0 ? small : large;

    if (from == 0)
        return -1;
    const int slot = __builtin_ctz(from);
    o->free &= ~(1u << slot);
    return slot;
}

static unsigned char *long_at(const struct net_link *l, int buffer)
{
    return l->longs + (size_t)buffer * l->net->set.first_bytes;
}

/* True: the whole message is in the ring. */
static bool move_long(struct net_link *l, struct net_item *item)
{
    struct net_out *o = &l->out;

    while (item->done_bytes < item->header.len) {
        const size_t n = ft_min(item->header.len - item->done_bytes, l->net->frame_bytes);
        const bool first = item->done_bytes == 0;
        const int slot = take_slot(o, SIZE_MAX);
        if (slot < 0)
            return false;
        /* Frames without a header begin where the header would be. */
        unsigned char *at = payload_at(o, (unsigned)slot) - sizeof(item->header);
        if (first)
            memcpy(at, &item->header, sizeof(item->header));
        memcpy(first ? at + sizeof(item->header) : at, (const char *)item->data + item->done_bytes,
               n);
        put(l, (unsigned)slot, n + (first ? sizeof(item->header) : 0));
        item->done_bytes += n;
    }
    if (item->req != NULL)
        item->req->status = FT_OK;
    if (item->buffer >= 0)
        l->longs_free |= 1u << item->buffer;
    return true;
}

static bool move_item(struct net_link *l, struct net_item *item)
{
    if (item->slot < 0)
        return move_long(l, item);
    memcpy(payload_at(&l->out, (unsigned)item->slot) - sizeof(item->header), &item->header,
           sizeof(item->header));
    put(l, (unsigned)item->slot, sizeof(item->header) + item->header.len);
    return true;
}

static void pump(struct net_link *l)
{
    while (l->queue_count > 0 && move_item(l, &l->queue[l->queue_head])) {
        l->queue_head = (l->queue_head + 1) % NET_QUEUE;
        l->queue_count--;
    }
    post(l);
}

void net_out_turn(struct net_link *l, bool *moved)
{
    if (l->broken != FT_OK || (l->out.count == 0 && l->queue_count == 0))
        return;
    if (forget_sent(l))
        *moved = true;
    pump(l);
}

void net_drop_queue(struct net_link *l)
{
    for (; l->queue_count > 0; l->queue_count--) {
        struct net_item *item = &l->queue[l->queue_head];
        if (item->req != NULL)
            item->req->status = FT_LINK;
        if (item->buffer >= 0)
            l->longs_free |= 1u << item->buffer;
        l->queue_head = (l->queue_head + 1) % NET_QUEUE;
    }
}

static void enqueue(struct net_link *l, const struct net_item *item)
{
    l->queue[(l->queue_head + l->queue_count) % NET_QUEUE] = *item;
    l->queue_count++;
    l->base.messages++;
    l->base.bytes += item->header.len;
    pump(l);
}

/* ---- calls ----------------------------------------------------------------------------------- */

static bool is_long(const struct net_link *l, const struct ft_header *h)
{
    return h->len > l->net->frame_bytes;
}

static unsigned queued_longs(const struct net_link *l)
{
    unsigned n = 0;
    for (unsigned i = 0; i < l->queue_count; i++)
        n += l->queue[(l->queue_head + i) % NET_QUEUE].slot < 0;
    return n;
}

/* Checks a message and takes its places in the window. */
static int admit(struct net_link *l, const struct ft_header *h)
{
    if (l->base.state != FT_LINK_UP)
        return l->base.state == FT_LINK_DOWN ? FT_LINK : FT_AGAIN;
    if (h->len > ft_rxq_longest(&l->net->set, h->lane))
        return ft_fail(FT_INVAL, "a message of %u bytes is longer than a chunk", h->len);
    if (l->broken != FT_OK || (l->out.free == 0 && !is_long(l, h)))
        return FT_AGAIN;
    const unsigned places = h->lane < FT_LANES_ALL ? ft_rxq_cost(&l->net->set, h->lane, h->len) : 1;
    return ft_txq_take_places(&l->txq, h->ctx, h->lane, places);
}

static void give_back(struct net_link *l, const struct ft_header *h)
{
    ft_txq_put_places(&l->txq, h->ctx, h->lane, ft_rxq_cost(&l->net->set, h->lane, h->len));
}

int net_send(struct ft_link *link, const struct ft_header *h, const void *data, struct ft_send *req)
{
    struct net_link *l = FT_CONTAINER(link, struct net_link, base);
    struct net_item item = {.header = *h, .slot = -1, .data = data, .req = req, .buffer = -1};

    if (l->base.state == FT_LINK_UP && is_long(l, h) && queued_longs(l) > NET_LONGS)
        return FT_AGAIN;
    int status = admit(l, h);
    if (status != FT_OK)
        return status;
    if (is_long(l, h)) {
        req->status = FT_AGAIN;
        enqueue(l, &item);
        return FT_OK;
    }
    item.slot = take_slot(&l->out, h->len);
    if (item.slot < 0) {
        give_back(l, h);
        return FT_AGAIN;
    }
    if (h->len > 0)
        memcpy(payload_at(&l->out, (unsigned)item.slot), data, h->len);
    item.req = NULL;
    req->status = FT_OK;
    enqueue(l, &item);
    return FT_OK;
}

int net_reserve(struct ft_link *link, const struct ft_header *h, void **slot)
{
    struct net_link *l = FT_CONTAINER(link, struct net_link, base);

    if (l->base.state == FT_LINK_UP && is_long(l, h) && l->longs != NULL &&
        (l->longs_free == 0 || queued_longs(l) > NET_LONGS))
        return FT_AGAIN;
    int status = admit(l, h);
    if (status != FT_OK)
        return status;
    if (is_long(l, h)) {
        const int buffer = __builtin_ctz(l->longs_free);
        l->longs_free &= ~(1u << buffer);
        *slot = long_at(l, buffer);
        return FT_OK;
    }
    const int taken = take_slot(&l->out, h->len);
    if (taken < 0) {
        give_back(l, h);
        return FT_AGAIN;
    }
    *slot = payload_at(&l->out, (unsigned)taken);
    return FT_OK;
}

/* Finds what was reserved: the number of a slot in item->slot or of a buffer in item->buffer. */
static struct net_item reserved(const struct net_link *l, const struct ft_header *h, void *slot)
{
    const struct net_out *o = &l->out;
    const size_t at = (size_t)((unsigned char *)slot - o->memory - NET_FRONT),
                 larges = o->nlarge * o->slot_bytes;
    struct net_item item = {.header = *h, .slot = -1, .data = slot, .buffer = -1};

    if (is_long(l, h))
        item.buffer = (int)((size_t)((unsigned char *)slot - l->longs) / l->net->set.first_bytes);
    else
        item.slot = (int)(at < larges ? at / o->slot_bytes
                                      : o->nlarge + (at - larges) / small_slot_bytes());
    return item;
}

void net_cancel(struct ft_link *link, const struct ft_header *h, void *slot)
{
    struct net_link *l = FT_CONTAINER(link, struct net_link, base);
    const struct net_item item = reserved(l, h, slot);

    if (item.slot >= 0)
        l->out.free |= 1u << item.slot;
    else
        l->longs_free |= 1u << item.buffer;
    give_back(l, h);
}

void net_commit(struct ft_link *link, const struct ft_header *h, void *slot)
{
    struct net_link *l = FT_CONTAINER(link, struct net_link, base);

    if (l->base.state != FT_LINK_UP)
        return net_cancel(link, h, slot);
    const struct net_item item = reserved(l, h, slot);
    enqueue(l, &item);
}

/* ---- credits --------------------------------------------------------------------------------- */

/* Like those of tcp: a credit waits as long as the sender has half of its window left. */
void net_credit(struct net_link *l, const struct ft_header *h)
{
    const unsigned places = ft_rxq_cost(&l->net->set, h->lane, h->len);
    unsigned i = 0;

    if (l->base.state != FT_LINK_UP)
        return;
    while (i < l->ncredits && (l->credits[i].ctx != h->ctx || l->credits[i].lane != h->lane ||
                               l->credits[i].count > UINT16_MAX - places))
        i++;
    if (i == NET_CREDITS)
        return net_broken(l, ft_fail(FT_PROTOCOL,
                                     "engine %016llx sends messages but does not take "
                                     "credits",
                                     (unsigned long long)l->base.peer));
    if (i == l->ncredits)
        l->credits[l->ncredits++] = (struct net_credit){.ctx = h->ctx, .lane = h->lane};
    l->credits[i].count = (uint16_t)(l->credits[i].count + places);
    l->due |= h->lane > FT_LANE_P2P ||
              2u * l->credits[i].count >= ft_rxq_places(&l->net->set, h->lane);
}

void net_return_credits(struct net_link *l)
{
    while (l->ncredits > 0 && l->broken == FT_OK) {
        const unsigned n = (unsigned)ft_min(l->ncredits, NET_CREDITS_FRAME);
        const int slot = take_slot(&l->out, SIZE_MAX);
        if (slot < 0)
            return;
        memcpy(payload_at(&l->out, (unsigned)slot) - sizeof(struct ft_header), l->credits,
               n * sizeof(l->credits[0]));
        put(l, (unsigned)slot, n * sizeof(l->credits[0]));
        l->ncredits -= n;
        memmove(l->credits, l->credits + n, l->ncredits * sizeof(l->credits[0]));
    }
    l->due = false;
    post(l);
}

void net_take_credits(struct net_link *l, const void *frame, size_t len_bytes)
{
    struct net_credit credit;

    for (size_t at = 0; at < len_bytes; at += sizeof(credit)) {
        memcpy(&credit, (const char *)frame + at, sizeof(credit));
        if (len_bytes % sizeof(credit) != 0 || credit.lane >= FT_LANES_ALL || credit.count == 0 ||
            credit.count > l->txq.outstanding || credit.zero != 0)
            return net_broken(l,
                              ft_fail(FT_PROTOCOL, "engine %016llx gives back what it was not sent",
                                      (unsigned long long)l->base.peer));
        ft_txq_put_places(&l->txq, credit.ctx, credit.lane, credit.count);
    }
}

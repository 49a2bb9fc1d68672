/*
 * Receiving: every slot is posted with the plugin, or is a view that the caller holds. Frames come
 * in the order in which they were sent.
 */
#include "transport/net_plugin/net.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

static unsigned char *frame_at(const struct net_in *in, unsigned slot)
{
    return in->memory + slot * in->slot_bytes + NET_FRONT - sizeof(struct ft_header);
}

static size_t frame_most(const struct net_in *in)
{
    return in->slot_bytes - NET_FRONT + sizeof(struct ft_header);
}

static void post(struct net_link *l)
{
    struct net_in *in = &l->in;

    while (in->idle != 0 && l->broken == FT_OK) {
        const unsigned slot = (unsigned)__builtin_ctz(in->idle),
                       at = (in->head + in->count) % NET_LARGE;
        int rc = net_plugin_irecv(l->net->plugin, in->comm, frame_at(in, slot), frame_most(in),
                                  in->registered, &in->ring[at].request);
        if (rc == FT_AGAIN)
            return;
        if (rc != FT_OK)
            return net_broken(l, rc);
        in->ring[at].slot = (uint8_t)slot;
        in->idle &= ~(1u << slot);
        in->count++;
    }
}

int net_in_open(struct net_link *l, unsigned nslots, size_t slot_bytes)
{
    struct net_in *in = &l->in;

    in->nslots = nslots;
    in->slot_bytes = slot_bytes;
    in->idle = UINT32_MAX >> (32 - nslots);
    in->memory_bytes = ft_round_up(nslots * slot_bytes, 4096);
    in->memory = net_map(in->memory_bytes);
    if (in->memory == NULL)
        return ft_fail(FT_NOMEM, "no memory for the slots of a link");
    int rc = net_plugin_reg(l->net->plugin, in->comm, in->memory, in->memory_bytes,
                            &in->registered);
    if (rc != FT_OK)
        return rc;
    post(l);
    return l->broken;
}

/* Nothing of the plugin writes to the memory when its comm is closed: only then it is freed. */
void net_in_close(struct net_link *l)
{
    struct net_in *in = &l->in;

    if (in->listener != NULL)
        net_plugin_close_listen(l->net->plugin, in->listener);
    if (in->comm != NULL) {
        if (in->registered != NULL)
            net_plugin_dereg(l->net->plugin, in->comm, in->registered);
        net_plugin_close_recv(l->net->plugin, in->comm);
    }
    in->listener = in->comm = in->registered = NULL;
    ft_unmap(in->memory, in->memory != NULL ? in->memory_bytes : 0);
    in->memory = NULL;
}

void net_consumed(struct ft_rxq *q, struct ft_rxq_node *node)
{
    struct net_link *l = FT_CONTAINER(q, struct net_link, rxq);

    if (node->cookie != 0)
        l->in.idle |= 1u << (node->cookie - 1);
    node->cookie = 0;
    net_credit(l, &node->header);
}

static int wrong(const struct net_link *l, const char *what, size_t got)
{
    return ft_fail(FT_PROTOCOL, "engine %016llx, or network plugin %s: a frame of %zu bytes %s",
                   (unsigned long long)l->base.peer, l->net->plugin->name, got, what);
}

static void deliver(struct net_link *l)
{
    struct ft_rxq_node *node = l->node;

    l->node = NULL;
    if (node == NULL) {
        l->net->base.dropped++;
        return net_credit(l, &l->dropping);
    }
    l->base.messages++;
    l->base.bytes += node->header.len;
    ft_rxq_ready(&l->rxq, node);
}

/* The message goes on. */
static int take_rest(struct net_link *l, const unsigned char *frame, size_t len)
{
    if (len != ft_min(l->rest_bytes, l->net->frame_bytes))
        return wrong(l, "is not the next part of its message", len);
    if (l->node != NULL)
        memcpy((unsigned char *)(uintptr_t)l->node->data + (l->node->header.len - l->rest_bytes),
               frame, len);
    l->rest_bytes -= len;
    if (l->rest_bytes == 0)
        deliver(l);
    return FT_OK;
}

/* Chooses where a message lies that is complete. True: in its slot. */
static bool keep(struct net_link *l, struct ft_rxq_node *node, unsigned slot,
                 const unsigned char *payload)
{
    const size_t len = node->header.len;

    if (len > NET_SMALL_BYTES && l->in.count >= NET_POSTED_LEAST) {
        node->data = payload;
        node->cookie = slot + 1;
        return true;
    }
    unsigned char *to = len <= FT_RXQ_SMALL_BYTES ? node->small : ft_rxq_landing(node);
    memcpy(to, payload, len);
    node->data = to;
    return false;
}

/* A message begins. *kept: it stays in the slot. */
static int take_first(struct net_link *l, unsigned slot, const unsigned char *frame, size_t len,
                      bool *kept)
{
    struct ft_header h;

    if (len < sizeof(h))
        return wrong(l, "has no header", len);
    memcpy(&h, frame, sizeof(h));
    const size_t here = ft_min(h.len, l->net->frame_bytes);
    if (len != sizeof(h) + here)
        return wrong(l, "has another length than its header says", len);
    int status = ft_rxq_admit(&l->rxq, &h, &l->node);
    if (status != FT_OK)
        return status;
    l->dropping = h;
    if (l->node != NULL)
        l->node->cookie = 0;
    l->rest_bytes = h.len - here;
    if (l->rest_bytes == 0) {
        *kept = l->node != NULL && keep(l, l->node, slot, frame + sizeof(h));
        deliver(l);
        return FT_OK;
    }
    if (l->node == NULL)
        return FT_OK;
    l->node->data = ft_rxq_expected(l->node);
    if (l->node->data == NULL)
        l->node->data = ft_rxq_landing(l->node);
    memcpy((unsigned char *)(uintptr_t)l->node->data, frame + sizeof(h), here);
    return FT_OK;
}

/* One frame has come. */
static void take(struct net_link *l, unsigned slot, int len)
{
    const unsigned char *frame = frame_at(&l->in, slot);
    bool kept = false;
    int status = FT_OK;

    if (len < 0 || (size_t)len > frame_most(&l->in))
        status = wrong(l, "does not fit its slot", (size_t)len);
    else if (l->base.sender)
        net_take_credits(l, frame, (size_t)len);
    else if (l->rest_bytes > 0)
        status = take_rest(l, frame, (size_t)len);
    else
        status = take_first(l, slot, frame, (size_t)len, &kept);
    if (!kept)
        l->in.idle |= 1u << slot;
    if (status != FT_OK)
        net_broken(l, status);
}

void net_in_turn(struct net_link *l, bool *moved)
{
    struct net_in *in = &l->in;
    int len;

    for (unsigned n = 0; n < NET_LARGE && in->count > 0 && l->broken == FT_OK; n++) {
        int rc = net_plugin_test(l->net->plugin, in->ring[in->head].request, &len);
        if (rc == FT_AGAIN)
            break;
        if (rc != FT_OK) {
            net_broken(l, rc);
            break;
        }
        const unsigned slot = in->ring[in->head].slot;
        in->head = (in->head + 1) % NET_LARGE;
        in->count--;
        in->frames++;
        l->active_ns = l->net->active_ns = l->net->now_ns;
        *moved = true;
        take(l, slot, len);
    }
    post(l);
}

/*
 * Messages between engines, on the control lane of a context that lives as long as the engine:
 * agreements, heartbeats, and questions about communicators that may already be closed. A message
 * may be lost with its link; a sender that needs an answer repeats its question. What arrives is
 * bytes from outside. The file that takes a message checks it.
 */
#include "core/engine/engine.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

/* Most messages that wait for one peer. Later ones are dropped; their senders repeat them. */
#define OUTBOX_MAX 64

struct ft_ctl_message {
    struct ft_ctl_message *next;
    struct ft_peer *peer;
    uint32_t len_bytes;
    /* The value of peer->breaks when the message was written. The message is dropped with the link
     * it was written for. */
    unsigned breaks;
    unsigned char bytes[]; /* head and payload */
};

uint32_t ft_message_sum(const struct ft_header *header, const void *data)
{
    uint32_t crc = ft_crc32c(0, header, offsetof(struct ft_header, crc));
    return header->len > 0 ? ft_crc32c(crc, data, header->len) : crc;
}

void ft_control_send(struct ft_engine *engine, struct ft_peer *peer, const struct ft_ctl_head *head,
                     const void *data, size_t len_bytes)
{
    size_t total = sizeof *head + len_bytes;
    struct ft_ctl_message *message = peer->queued_messages < OUTBOX_MAX &&
                                             total <= engine->tuning.chunk_bytes
                                         ? malloc(sizeof *message + total)
                                         : NULL;
    if (!message)
        return;
    *message = (struct ft_ctl_message){
        .peer = peer, .len_bytes = (uint32_t)total, .breaks = peer->breaks};
    memcpy(message->bytes, head, sizeof *head);
    if (len_bytes)
        memcpy(message->bytes + sizeof *head, data, len_bytes);
    *engine->outbox_end = message;
    engine->outbox_end = &message->next;
    peer->queued_messages++;
    atomic_fetch_add_explicit(&engine->unsent, 1, memory_order_relaxed);
}

/* FT_AGAIN: try later. Any other status: the message is sent, or can never be sent. The function
 * dials a lost peer again, because perhaps only its link broke. */
static int deliver_message(struct ft_engine *engine, const struct ft_ctl_message *message)
{
    struct ft_link *link;
    if (message->breaks != message->peer->breaks)
        return FT_LINK;
    int rc = ft_engine_redial(engine, message->peer, &link);
    if (rc != FT_OK)
        return rc;
    struct ft_header header = {
        .ctx = FT_CTX_ENGINE, .lane = FT_LANE_CTL, .len = message->len_bytes};
    void *slot;
    rc = link->ops->reserve(link, &header, &slot);
    if (rc != FT_OK)
        return rc;
    memcpy(slot, message->bytes, message->len_bytes);
    /* Control messages always have a checksum: an agreement must not rest on a flipped bit. */
    header.crc = ft_message_sum(&header, message->bytes);
    link->ops->commit(link, &header, slot);
    return FT_OK;
}

bool ft_control_flush(struct ft_engine *engine)
{
    bool moved = false;
    struct ft_ctl_message **at = &engine->outbox;
    /* A message that waits also delays later messages to its peer, so they stay in order. */
    engine->rounds++;
    while (*at) {
        struct ft_ctl_message *message = *at;
        struct ft_peer *peer = message->peer;
        if (peer->blocked == engine->rounds || deliver_message(engine, message) == FT_AGAIN) {
            peer->blocked = engine->rounds;
            at = &message->next;
            continue;
        }
        assert(peer->queued_messages > 0);
        *at = message->next;
        peer->queued_messages--;
        atomic_fetch_sub_explicit(&engine->unsent, 1, memory_order_relaxed);
        free(message);
        moved = true;
    }
    engine->outbox_end = at;
    return moved;
}

void ft_control_unknown(struct ft_engine *engine, struct ft_peer *peer, uint32_t what)
{
    if (!peer->odd)
        FT_LOG(WARN, "net", engine->rank,
               "unknown control message %u from rank %d ignored, as later ones are", what,
               peer->rank);
    peer->odd = true;
}

/* Copies the message first, because processing it may close the link. If the message is too short
 * or its checksum does not match, head.what is 0. Its sender will repeat it. */
bool ft_control_receive(struct ft_engine *engine, struct ft_peer *peer, struct ft_ctl_in *in)
{
    ft_engine_assert_held(engine);
    struct ft_msg msg;
    if (!peer->rx || peer->rx->ops->recv(peer->rx, FT_CTX_ENGINE, FT_LANE_CTL, &msg) != FT_OK)
        return false;
    size_t len = ft_min(msg.header.len, engine->tuning.chunk_bytes);
    memcpy(engine->ctl_buffer, msg.data, len);
    peer->rx->ops->release(peer->rx, &msg);
    memset(in, 0, sizeof *in);
    if (len < sizeof in->head || msg.header.crc != ft_message_sum(&msg.header, engine->ctl_buffer))
        return true;
    memcpy(&in->head, engine->ctl_buffer, sizeof in->head);
    in->data = engine->ctl_buffer + sizeof in->head;
    in->len_bytes = len - sizeof in->head;
    return true;
}

int ft_control_open(struct ft_engine *engine)
{
    engine->outbox_end = &engine->outbox;
    engine->ctl_buffer = malloc(engine->tuning.chunk_bytes);
    int rc = engine->ctl_buffer ? FT_OK : ft_fail(FT_NOMEM, "no memory for an engine");
    for (int i = 0; i < engine->ntransports && rc == FT_OK; i++)
        rc = engine->transports[i]->ops->bind(engine->transports[i], FT_CTX_ENGINE);
    return rc;
}

void ft_control_close(struct ft_engine *engine)
{
    for (struct ft_ctl_message *message = engine->outbox, *next; message; message = next) {
        next = message->next;
        free(message);
    }
    engine->outbox = NULL;
    engine->outbox_end = &engine->outbox;
    free(engine->ctl_buffer);
    engine->ctl_buffer = NULL;
}

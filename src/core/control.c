/*
 * Messages between engines, on the control lane of a context that lives as long as the engine:
 * agreements, heartbeats, and questions about communicators that may be closed already. They may be
 * lost with a link; who needs an answer asks again. Everything received is bytes from outside and
 * is checked by the file that takes it.
 */
#include "core/core.h"

#include <stdlib.h>
#include <string.h>

/* messages waiting for one peer; later ones are dropped: their senders repeat them */
#define OUTBOX_MAX 64

struct ft_letter {
    struct ft_letter *next;
    struct ft_peer *peer;
    uint32_t len_bytes;
    /* peer->breaks when it was written: it goes with the link that it was for */
    unsigned breaks;
    unsigned char bytes[]; /* head and payload */
};

void ft_control_send(struct ft_engine *engine, struct ft_peer *peer, const struct ft_ctl_head *head,
                     const void *data, size_t len_bytes)
{
    size_t total = sizeof *head + len_bytes;
    struct ft_letter *letter = peer->letters < OUTBOX_MAX && total <= engine->tuning.chunk_bytes
                                   ? malloc(sizeof *letter + total)
                                   : NULL;
    if (!letter)
        return;
    *letter = (struct ft_letter){
        .peer = peer, .len_bytes = (uint32_t)total, .breaks = peer->breaks};
    memcpy(letter->bytes, head, sizeof *head);
    if (len_bytes)
        memcpy(letter->bytes + sizeof *head, data, len_bytes);
    *engine->outbox_end = letter;
    engine->outbox_end = &letter->next;
    peer->letters++;
    atomic_fetch_add_explicit(&engine->unsent, 1, memory_order_relaxed);
}

/* FT_AGAIN: later. Anything else: sent, or it never can be. A lost peer is dialled again: only its
 * link may have broken. */
static int deliver(struct ft_engine *engine, const struct ft_letter *letter)
{
    struct ft_link *link;
    if (letter->breaks != letter->peer->breaks)
        return FT_LINK;
    int rc = ft_engine_redial(engine, letter->peer, &link);
    if (rc != FT_OK)
        return rc;
    struct ft_header header = {.ctx = FT_CTX_ENGINE, .lane = FT_LANE_CTL, .len = letter->len_bytes};
    void *slot;
    rc = link->ops->reserve(link, &header, &slot);
    if (rc != FT_OK)
        return rc;
    memcpy(slot, letter->bytes, letter->len_bytes);
    /* always: an agreement must not rest on a flipped bit */
    header.crc = ft_verify_sum(&header, letter->bytes);
    link->ops->commit(link, &header, slot);
    return FT_OK;
}

static bool flush(struct ft_engine *engine)
{
    bool moved = false;
    struct ft_letter **at = &engine->outbox;
    engine->rounds++; /* one that has to wait keeps the later ones of its peer in order */
    while (*at) {
        struct ft_letter *letter = *at;
        struct ft_peer *peer = letter->peer;
        if (peer->blocked == engine->rounds || deliver(engine, letter) == FT_AGAIN) {
            peer->blocked = engine->rounds;
            at = &letter->next;
            continue;
        }
        *at = letter->next;
        peer->letters--;
        atomic_fetch_sub_explicit(&engine->unsent, 1, memory_order_relaxed);
        free(letter);
        moved = true;
    }
    engine->outbox_end = at;
    return moved;
}

static void take(struct ft_engine *engine, struct ft_peer *peer, const void *data, size_t len_bytes)
{
    struct ft_ctl_head head;
    if (len_bytes < sizeof head)
        return;
    memcpy(&head, data, sizeof head);
    const unsigned char *payload = (const unsigned char *)data + sizeof head;
    size_t left = len_bytes - sizeof head;
    switch (head.what) {
    case FT_CTL_AGREE:
    case FT_CTL_GONE:
        ft_pact_receive(engine, peer, &head, payload, left);
        break;
    case FT_CTL_ASK:
    case FT_CTL_TELL:
        ft_grow_receive(engine, peer, &head, payload, left);
        break;
    case FT_CTL_QUIT:
        ft_quit_receive(engine, peer, &head);
        break;
    case FT_CTL_BEAT:
        ft_beat_receive(engine, peer, &head);
        break;
    default:
        if (!peer->odd)
            FT_LOG(WARN, "net", engine->rank,
                   "unknown control message %u from rank %d ignored, as later ones are", head.what,
                   peer->rank);
        peer->odd = true;
    }
}

/* The message is copied first: taking it may close the link. A few a turn: a peer that never stops
 * must not hold the engine. */
static bool receive(struct ft_engine *engine, struct ft_peer *peer)
{
    bool moved = false;
    struct ft_msg msg;
    for (int n = 0; n < FT_WINDOW_CTL && peer->rx &&
                    peer->rx->ops->recv(peer->rx, FT_CTX_ENGINE, FT_LANE_CTL, &msg) == FT_OK;
         n++) {
        size_t len = ft_min(msg.header.len, engine->tuning.chunk_bytes);
        memcpy(engine->letter, msg.data, len);
        peer->rx->ops->release(peer->rx, &msg);
        moved = true;
        /* its sender repeats it */
        if (msg.header.crc != ft_verify_sum(&msg.header, engine->letter))
            continue;
        take(engine, peer, engine->letter, len);
    }
    return moved;
}

bool ft_control_turn(struct ft_engine *engine)
{
    bool moved = false;
    if (engine->turns % FT_TURNS_OFTEN == 0)
        for (struct ft_peer *peer = engine->roster; peer; peer = peer->next_known)
            moved |= receive(engine, peer);
    return engine->outbox ? flush(engine) || moved : moved;
}

int ft_control_open(struct ft_engine *engine)
{
    engine->outbox_end = &engine->outbox;
    engine->letter = malloc(engine->tuning.chunk_bytes);
    int rc = engine->letter ? FT_OK : ft_fail(FT_NOMEM, "no memory for an engine");
    for (int i = 0; i < engine->ntransports && rc == FT_OK; i++)
        rc = engine->transports[i]->ops->bind(engine->transports[i], FT_CTX_ENGINE);
    return rc;
}

void ft_control_close(struct ft_engine *engine)
{
    for (struct ft_letter *letter = engine->outbox, *next; letter; letter = next) {
        next = letter->next;
        free(letter);
    }
    engine->outbox = NULL;
    engine->outbox_end = &engine->outbox;
    free(engine->letter);
    engine->letter = NULL;
}

/*
 * One-sided puts and signals (NCCL's PutSignal, Signal, WaitSignal). The messages of a put travel
 * on a channel of their own. The receiver's engine checks each message against the window that it
 * names, and copies it there, whatever the user does meanwhile. So no rank writes into another
 * one's memory. The last message of a put, or a message without data, counts as a signal.
 */
#include "core/run/run.h"

#include <stdlib.h>
#include <string.h>

/* A flag in header.step. header.seq is the number of the window, header.sig the offset in it. */
#define SIGNAL 1

struct ft_window *ft_window_find(const struct ft_comm *comm, uint64_t id)
{
    struct ft_window *window = comm->rma.windows;
    while (window && window->id != id)
        window = window->next;
    return window;
}

int ft_window_add(struct ft_comm *comm, void *base, size_t len_bytes, struct ft_window **out)
{
    struct ft_window *window = calloc(1, sizeof *window);
    if (!window)
        return ft_fail(FT_NOMEM, "no memory for a window");
    ft_engine_lock(comm->engine);
    *window = (struct ft_window){
        .next = comm->rma.windows, .id = ++comm->rma.ids, .base = base, .len_bytes = len_bytes};
    comm->rma.windows = window;
    ft_engine_unlock(comm->engine);
    *out = window;
    return FT_OK;
}

bool ft_window_remove(struct ft_comm *comm, const void *handle)
{
    ft_engine_lock(comm->engine);
    struct ft_window **at = &comm->rma.windows;
    while (*at && (const void *)*at != handle)
        at = &(*at)->next;
    struct ft_window *window = *at;
    if (window)
        *at = window->next;
    ft_engine_unlock(comm->engine);
    if (!window)
        return false;
    free(window->sizes);
    free(window);
    return true;
}

/* ---- the target's side ----------------------------------------------------------------------- */

static void take_message(struct ft_comm *comm, int from, const struct ft_msg *msg)
{
    const struct ft_header *header = &msg->header;
    uint64_t offset = header->sig;
    struct ft_window *window = ft_window_find(comm, header->seq);
    if (header->len > 0 &&
        (!window || offset > window->len_bytes || header->len > window->len_bytes - offset)) {
        ft_comm_fail(
            comm, FT_PROTOCOL, from,
            "rank %d put %u bytes at %llu of window %u of rank %d, which does not hold them", from,
            header->len, (unsigned long long)offset, header->seq, comm->view.rank);
        return;
    }
    if (header->len > 0)
        memcpy((char *)window->base + offset, msg->data, header->len);
    if (header->step & SIGNAL)
        comm->rma.signals[from]++;
}

bool ft_rma_receive(struct ft_comm *comm)
{
    bool moved = false;
    for (int r = 0; r < comm->view.nranks && comm->failure.status == FT_OK; r++) {
        struct ft_link *rx = r == comm->view.rank ? NULL : comm->peers[r]->rx;
        struct ft_msg msg;
        while (rx && comm->failure.status == FT_OK &&
               rx->ops->recv(rx, comm->ctx, FT_LANE_RMA, &msg) == FT_OK) {
            if (ft_verify_ok(comm, r, &msg, NULL, 0))
                take_message(comm, r, &msg);
            rx->ops->release(rx, &msg);
            moved = true;
        }
    }
    return moved;
}

/* ---- the origin's side ----------------------------------------------------------------------- */

static int put_to_self(struct ft_comm *comm, struct ft_op *op, size_t total)
{
    struct ft_window *window = ft_window_find(comm, op->window);
    if (total > 0 && !window)
        return FT_USAGE; /* it was deregistered after the call */
    if (total > 0)
        memmove((char *)window->base + op->window_offset, op->in, total);
    comm->rma.signals[comm->view.rank]++;
    op->offset = total;
    op->begun = true;
    return FT_OK;
}

/* Hands the next chunk of a put to the link. FT_AGAIN: the link has no place for it now. */
static int put_chunk(struct ft_comm *comm, struct ft_op *op, struct ft_link *link, size_t total)
{
    size_t len = ft_min(comm->engine->tuning.chunk_bytes, total - op->offset);
    struct ft_header header = {.ctx = comm->ctx,
                               .sig = op->window_offset + op->offset,
                               .seq = (uint32_t)op->window,
                               .len = (uint32_t)len,
                               .lane = FT_LANE_RMA,
                               .step = op->offset + len == total ? SIGNAL : 0};
    void *slot;
    int rc = link->ops->reserve(link, &header, &slot);
    if (rc != FT_OK)
        return rc;
    if (len > 0)
        memcpy(slot, (const char *)op->in + op->offset, len);
    ft_verify_seal(comm, &header, slot);
    link->ops->commit(link, &header, slot);
    op->offset += len;
    op->begun = true;
    return FT_OK;
}

/* FT_OK: all chunks are handed over. */
static int put(struct ft_comm *comm, struct ft_op *op, bool *moved)
{
    size_t total = op->coll.count * ft_type_size(op->coll.type);
    if (op->coll.root == comm->view.rank && !op->begun)
        return put_to_self(comm, op, total);
    if (op->begun && op->offset == total)
        return FT_OK;
    struct ft_link *link;
    int rc = ft_engine_link(comm->engine, comm->peers[op->coll.root], &link);
    while (rc == FT_OK && (op->offset < total || !op->begun)) {
        rc = put_chunk(comm, op, link, total);
        *moved |= rc == FT_OK;
    }
    return rc;
}

static bool wait_signals(struct ft_comm *comm, struct ft_op *op)
{
    for (int i = 0; i < op->nwaits; i++)
        if (comm->rma.signals[op->waits[i].peer] < op->waits[i].count)
            return false;
    for (int i = 0; i < op->nwaits; i++)
        comm->rma.signals[op->waits[i].peer] -= op->waits[i].count;
    return true;
}

static void fail_put(struct ft_comm *comm, const struct ft_op *op, int rc)
{
    int rank = op->coll.root;
    if (rc == FT_USAGE)
        ft_comm_fail(comm, rc, rank,
                     "rank %d put into a window of rank %d that it had deregistered: %s",
                     comm->view.rank, rank, ft_status_text(rc));
    else
        ft_comm_lost(comm, ft_status_lost(rc) == FT_LOST_PROCESS ? rc : FT_PEER, rank,
                     "rank %d lost rank %d during a put: %s", comm->view.rank, rank,
                     ft_death_watch_why(comm->engine, comm->peers[rank], rc));
}

/* Moves one put or wait. A put that found no room also stops later puts to the same rank: a shorter
 * one might find room and overtake it. */
static bool op_turn(struct ft_comm *comm, struct ft_op *op)
{
    bool moved = false, puts = op->coll.kind == FT_PUT;
    if (puts && comm->rma.puts_wait[op->coll.root])
        return false;
    int rc = puts ? put(comm, op, &moved) : wait_signals(comm, op) ? FT_OK : FT_AGAIN;
    if (puts && rc == FT_AGAIN)
        comm->rma.puts_wait[op->coll.root] = true;
    if (rc == FT_AGAIN)
        return moved;
    if (rc != FT_OK) {
        fail_put(comm, op, rc);
        return moved;
    }
    ft_op_finish(op);
    return true;
}

bool ft_rma_turn(struct ft_comm *comm)
{
    bool moved = ft_rma_receive(comm);
    memset(comm->rma.puts_wait, 0, (size_t)comm->view.nranks);
    for (struct ft_op *op = comm->works.head->ops; op && comm->failure.status == FT_OK;
         op = op->next) {
        bool is_rma = op->coll.kind == FT_PUT || op->coll.kind == FT_WAIT;
        if (is_rma && op->state == FT_OP_RUNNING)
            moved |= op_turn(comm, op);
    }
    return moved;
}

struct ft_blocker ft_rma_waits_for(const struct ft_comm *comm, char *text, size_t len_bytes)
{
    for (const struct ft_op *op = comm->works.head->ops; op; op = op->next) {
        if (op->state != FT_OP_RUNNING || (op->coll.kind != FT_PUT && op->coll.kind != FT_WAIT))
            continue;
        bool sends = op->coll.kind == FT_PUT;
        int rank = op->coll.root;
        for (int i = 0; i < op->nwaits; i++)
            if (comm->rma.signals[op->waits[i].peer] < op->waits[i].count)
                rank = op->waits[i].peer;
        if (text)
            snprintf(text, len_bytes, "rank %d %s rank %d", comm->view.rank,
                     sends ? "puts to" : "waits for a signal of", rank);
        return (struct ft_blocker){.rank = rank, .sends = sends, .op = op, .step = op->offset};
    }
    return (struct ft_blocker){.rank = -1};
}

void ft_rma_reset(struct ft_comm *comm)
{
    memset(comm->rma.signals, 0, (size_t)comm->view.nranks * sizeof *comm->rma.signals);
}

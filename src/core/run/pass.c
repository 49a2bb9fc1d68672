/*
 * Passes of operations, on the queue of the device on which their buffers are. The GPU reads and
 * writes the user's buffers. The CPU drives the links, so messages pass through slots and landing
 * buffers that the queue stages. Before a link is closed, everything that passes use of it is given
 * back.
 */
#include "core/run/run.h"

#include <assert.h>
#include <string.h>

/* For a shorter message, waiting until the receiver has said where it may lie costs more than it
 * gains. */
#define WAIT_BYTES 16384

void ft_pass_failed(struct ft_comm *comm, int status)
{
    ft_comm_fail(comm, status, comm->view.rank, "the device of rank %d failed: %s", comm->view.rank,
                 ft_status_text(status));
}

struct ft_reduce ft_copy_pass(const void *from, void *to, size_t len_bytes)
{
    return (struct ft_reduce){
        .type = FT_UINT8, .count = len_bytes, .nsrc = 1, .ndst = 1, .src = {from}, .dst = {to}};
}

int ft_pass_on_queue(struct ft_comm *comm, const struct ft_op *op, const struct ft_reduce *pass,
                     struct ft_device_staged staged, struct ft_device_req *req)
{
    struct ft_comm_gpu *gpu = ft_gpu_of(comm);
    assert(op->on_queue && gpu);
    return gpu->ops->reduce(gpu->queue, pass, staged,
                            pass->scaled ? op->on_queue->scale_from : NULL, req);
}

/* ---- an operation's own pass ----------------------------------------------------------------- */

int ft_pass_start(struct ft_comm *comm, const struct ft_op *op, const struct ft_reduce *pass,
                  struct ft_device_staged staged)
{
    struct ft_op_queue *on_queue = op->on_queue;
    struct ft_device_req now;
    if (!on_queue)
        return ft_pass(comm, op, pass, staged, &now);
    assert(!on_queue->busy && !on_queue->send.slot);
    on_queue->busy = true;
    on_queue->send.req.status = ft_pass_on_queue(comm, op, pass, staged, &on_queue->send.req);
    return FT_AGAIN;
}

bool ft_pass_runs(const struct ft_op *op)
{
    return op->on_queue && op->on_queue->busy;
}

int ft_pass_end(const struct ft_op *op)
{
    if (!ft_pass_runs(op))
        return FT_OK;
    int rc = op->on_queue->send.req.status;
    op->on_queue->busy = rc != FT_OK;
    return rc;
}

void ft_pass_cancel(struct ft_comm *comm, const struct ft_op *op)
{
    if (ft_pass_runs(op))
        comm->gpu->ops->cancel(comm->gpu->queue, &op->on_queue->send.req);
}

int ft_pass_to_self(struct ft_comm *comm, const struct ft_op *send, const struct ft_op *recv)
{
    const struct ft_op *op = recv->on_queue ? recv : send;
    size_t len = send->coll.count * ft_type_size(send->coll.type);
    if (ft_pass_runs(op))
        return ft_pass_end(op);
    if (len == 0 || recv->out == send->in)
        return FT_OK;
    if (!op->on_queue) { /* buffers in host memory may overlap */
        memmove(recv->out, send->in, len);
        return FT_OK;
    }
    struct ft_reduce pass = ft_copy_pass(send->in, recv->out, len);
    return ft_pass_start(comm, op, &pass,
                         (struct ft_device_staged){.src = !send->on_queue, .dst = !recv->on_queue});
}

struct ft_msg *ft_pass_msg(const struct ft_op *op, struct ft_msg *now)
{
    return op->on_queue ? &op->on_queue->msg : now;
}

/* ---- messages -------------------------------------------------------------------------------- */

struct ft_pass_send *ft_pass_send_of(struct ft_comm *comm, const struct ft_op *op, int lane, int k,
                                     struct ft_pass_send *now)
{
    now->slot = NULL;
    return op->on_queue ? &comm->gpu->sends[lane][k] : now;
}

/* Whether the operation cannot end before its receivers have reached it. If so, waiting for their
 * readiness costs no time. */
static bool waits_anyway(const struct ft_comm *comm, const struct ft_op *op)
{
    size_t chunk = comm->engine->tuning.chunk_bytes,
           bytes = op->coll.count * ft_type_size(op->coll.type);
    switch (op->coll.kind) {
    case FT_SEND:
        return bytes > FT_WINDOW_P2P * chunk;
    case FT_BROADCAST:
    case FT_REDUCE:
    case FT_SCATTER:
    case FT_GATHER:
        return bytes > (size_t)FT_LANES * FT_WINDOW_FIRST * chunk;
    default:
        return true; /* every rank sends to every rank */
    }
}

int ft_pass_reserve(struct ft_comm *comm, const struct ft_op *op, int rank,
                    const struct ft_header *header, void **slot)
{
    const struct ft_pinned *other = comm->peers[rank]->pinned;
    struct ft_link *link = comm->peers[rank]->tx;
    int rc = FT_NOTSUP;
    if (op->on_queue && comm->readiness && other && link->ops->reserve_devmem &&
        !comm->limits.verify)
        rc = ft_readiness_query(other, comm->ctx, comm->view.rank, op->coll.kind == FT_SEND,
                                op->seq);
    if (rc == FT_AGAIN && header->len >= WAIT_BYTES && waits_anyway(comm, op))
        return FT_AGAIN;
    if (rc == FT_OK)
        rc = link->ops->reserve_devmem(link, header, slot);
    else
        rc = FT_NOTSUP;
    return rc == FT_NOTSUP ? link->ops->reserve(link, header, slot) : rc;
}

bool ft_pass_takes_devmem(struct ft_comm *comm, const struct ft_op *op, int rank,
                          const struct ft_msg *msg)
{
    bool is_its = msg->header.seq == (uint32_t)op->seq && msg->header.sig == op->sig;
    if (!comm->limits.verify && (op->on_queue || !is_its))
        return true;
    ft_comm_fail(comm, FT_PROTOCOL, rank,
                 "rank %d sent a message in its GPU's memory to rank %d, whose operation %llu is "
                 "not on its GPU",
                 rank, comm->view.rank, (unsigned long long)op->seq);
    return false;
}

int ft_pass_put(struct ft_comm *comm, const struct ft_op *op, struct ft_link *link,
                const struct ft_reduce *pass, struct ft_pass_send *send)
{
    if (!send->slot) {
        struct ft_reduce into = *pass;
        void *slot;
        int rc = ft_pass_reserve(comm, op, send->to, &send->header, &slot);
        if (rc != FT_OK)
            return rc;
        into.dst[0] = slot;
        rc = ft_pass(comm, op, &into, (struct ft_device_staged){.src = send->staged, .dst = 1},
                     &send->req);
        if (rc != FT_OK && rc != FT_AGAIN) {
            link->ops->cancel(link, &send->header, slot);
            return rc;
        }
        send->slot = slot;
    }
    if (send->req.status == FT_AGAIN)
        return FT_AGAIN;
    void *slot = send->slot;
    send->slot = NULL;
    if (send->req.status == FT_OK)
        ft_verify_seal(comm, &send->header, slot);
    if (send->req.status == FT_OK)
        link->ops->commit(link, &send->header, slot);
    else
        link->ops->cancel(link, &send->header, slot);
    return send->req.status;
}

/* ---- checksums of results -------------------------------------------------------------------- */

/* Fetches the next piece of the result for its checksum, if one is left. */
static void fetch_piece(struct ft_comm *comm, struct ft_pass_sum *digest, size_t len_bytes)
{
    size_t len = ft_min(FT_DIGEST_PIECE_BYTES, len_bytes - digest->at);
    digest->req.status = FT_OK;
    if (len == 0)
        return;
    struct ft_reduce pass = ft_copy_pass((char *)digest->of->out + digest->at, digest->piece, len);
    digest->req.status = ft_pass_on_queue(comm, digest->of, &pass,
                                          (struct ft_device_staged){.dst = 1}, &digest->req);
}

static bool digest_on_queue(struct ft_comm *comm, const struct ft_op *of, size_t len_bytes,
                            uint32_t *crc)
{
    struct ft_pass_sum *digest = &ft_gpu_of(comm)->digest;
    if (!digest->of) {
        digest->of = of;
        digest->at = 0;
        digest->crc = 0;
        fetch_piece(comm, digest, len_bytes);
    }
    while (digest->req.status == FT_OK && digest->at < len_bytes) {
        size_t len = ft_min(FT_DIGEST_PIECE_BYTES, len_bytes - digest->at);
        digest->crc = ft_crc32c(digest->crc, digest->piece, len);
        digest->at += len;
        fetch_piece(comm, digest, len_bytes);
    }
    int rc = digest->req.status;
    if (rc == FT_AGAIN)
        return false;
    digest->of = NULL;
    *crc = digest->crc;
    if (rc != FT_OK)
        ft_pass_failed(comm, rc);
    return rc == FT_OK;
}

bool ft_pass_digest(struct ft_comm *comm, const struct ft_op *of, size_t len_bytes, uint32_t *crc)
{
    if (of->on_queue && len_bytes > 0)
        return digest_on_queue(comm, of, len_bytes, crc);
    *crc = ft_crc32c(0, of->out, len_bytes);
    return true;
}

/* ---- what passes hold ------------------------------------------------------------------------ */

static void drop_digest(struct ft_comm_gpu *gpu)
{
    if (gpu->digest.of)
        gpu->ops->cancel(gpu->queue, &gpu->digest.req);
    gpu->digest.of = NULL;
}

static void drop_send(struct ft_comm_gpu *gpu, struct ft_pass_send *send, struct ft_link *link)
{
    gpu->ops->cancel(gpu->queue, &send->req);
    if (link)
        link->ops->cancel(link, &send->header, send->slot);
    send->slot = NULL;
}

/* Whether the current pass reads or writes memory of the link. */
static bool involves(const struct ft_comm *comm, const struct ft_lane *lane,
                     const struct ft_link *link)
{
    for (int k = 0; k < lane->step->nrecv; k++)
        if (comm->peers[lane->step->recv_from[k]]->rx == link)
            return true;
    for (int k = 0; k < lane->step->nfwd; k++)
        if (comm->peers[lane->step->fwd_to[k]]->tx == link)
            return true;
    return false;
}

static void drop_lane(struct ft_comm *comm, struct ft_comm_gpu *gpu, struct ft_lane *lane,
                      const struct ft_link *only)
{
    if (!ft_lane_is_at_step(lane) || !lane->op->on_queue)
        return;
    for (int k = 0; k < lane->step->nsend; k++) {
        struct ft_pass_send *send = &gpu->sends[lane - comm->lanes.at][k];
        struct ft_link *link = comm->peers[lane->step->send_to[k]]->tx;
        if (send->slot && (!only || only == link))
            drop_send(gpu, send, link);
    }
    /* lanes.c gives back its messages and slots */
    if (lane->phase == FT_LANE_REDUCING && (!only || involves(comm, lane, only)))
        gpu->ops->cancel(gpu->queue, &lane->req);
}

static void drop_first_send(struct ft_comm_gpu *gpu, struct ft_op *send, struct ft_link *tx,
                            const struct ft_link *only)
{
    if (!send || !send->on_queue)
        return;
    if (send->on_queue->send.slot && (!only || only == tx))
        drop_send(gpu, &send->on_queue->send, tx);
    /* A send is busy only if this rank sends to itself. */
    if (send->on_queue->busy)
        gpu->ops->cancel(gpu->queue, &send->on_queue->send.req);
}

static void drop_first_receive(struct ft_comm_gpu *gpu, struct ft_op *recv, struct ft_link *rx)
{
    if (!recv || !recv->on_queue || !recv->on_queue->busy)
        return;
    gpu->ops->cancel(gpu->queue, &recv->on_queue->send.req);
    if (rx)
        rx->ops->release(rx, &recv->on_queue->msg);
    recv->on_queue->busy = false;
}

static void drop_peer(struct ft_comm *comm, struct ft_comm_gpu *gpu, int rank,
                      const struct ft_link *only)
{
    /* There is no peer, and no link, for what this rank sends to itself. */
    const struct ft_peer *peer = comm->peers[rank];
    struct ft_link *tx = peer ? peer->tx : NULL, *rx = peer ? peer->rx : NULL;
    if (only && only != tx && only != rx)
        return;
    drop_first_send(gpu, comm->p2p.sends[rank].head, tx, only);
    if (!only || only == rx)
        drop_first_receive(gpu, comm->p2p.recvs[rank].head, rx);
}

void ft_pass_drop(struct ft_comm *comm, const struct ft_link *link)
{
    struct ft_comm_gpu *gpu = ft_gpu_of(comm);
    if (!gpu)
        return;
    if (!link)
        drop_digest(gpu);
    for (struct ft_lane *lane = comm->lanes.at; lane < comm->lanes.at + FT_LANES; lane++)
        drop_lane(comm, gpu, lane, link);
    for (int r = 0; r < comm->view.nranks; r++)
        drop_peer(comm, gpu, r, link);
}

/*
 * Sends and receives. There is a queue for each peer and direction. The k-th send to a rank meets
 * the k-th receive there, and only the first unfinished operation of a queue moves. All queues
 * progress concurrently, so the order of peers in a group does not matter. A rank's sends to itself
 * are copied to its receives.
 */
#include "core/run/run.h"

#include <assert.h>
#include <string.h>

/* The longest message. */
static size_t chunk_of(const struct ft_comm *comm)
{
    return comm->tuning.pulls ? ft_tuning_chunk(&comm->tuning, FT_SEND)
                              : comm->engine->tuning.chunk_bytes;
}

static size_t bytes_of(const struct ft_op *op)
{
    return op->coll.count * ft_type_size(op->coll.type);
}

void ft_p2p_start(struct ft_comm *comm, struct ft_op *op)
{
    struct ft_p2p *queue = op->coll.kind == FT_SEND ? &comm->p2p.sends[op->coll.root]
                                                    : &comm->p2p.recvs[op->coll.root];
    op->seq = ++queue->seq;
    op->next_p2p = NULL;
    if (queue->tail)
        queue->tail->next_p2p = op;
    else
        queue->head = op;
    queue->tail = op;
    if (queue->head == op && op->coll.kind == FT_RECV)
        ft_readiness_tell_receive(comm, op->coll.root);
}

static void pop(struct ft_p2p *queue)
{
    struct ft_op *op = queue->head;
    assert(op && op->state == FT_OP_RUNNING);
    queue->head = op->next_p2p;
    if (!queue->head)
        queue->tail = NULL;
    ft_op_finish(op);
}

static void lost(struct ft_comm *comm, const struct ft_op *op, int status)
{
    int rank = op->coll.root;
    bool process = ft_status_lost(status) == FT_LOST_PROCESS;
    ft_comm_lost(comm, process ? status : FT_PEER, rank,
                 "rank %d lost rank %d during a %s of %zu %s: %s", comm->view.rank, rank,
                 op->coll.kind == FT_SEND ? "send" : "receive", op->coll.count,
                 ft_type_name(op->coll.type),
                 ft_death_watch_why(comm->engine, comm->peers[rank], status));
}

static bool sends_complete(const struct ft_op *op)
{
    for (int k = 0; k < FT_WINDOW_P2P; k++)
        if (op->sends[k].status == FT_AGAIN)
            return false;
    return true;
}

/* Whether the link has taken all messages, or the receiver has, which may have left since. */
static bool is_sent(const struct ft_op *op, size_t total)
{
    bool sent = op->begun && op->offset == total;
    for (int k = 0; k < FT_WINDOW_P2P; k++)
        sent &= op->sends[k].status == FT_OK;
    return sent;
}

static struct ft_send *find_free_send(struct ft_op *op)
{
    for (int k = 0; k < FT_WINDOW_P2P; k++)
        if (op->sends[k].status != FT_AGAIN)
            return &op->sends[k];
    return NULL;
}

/* A chunk has the same checksum for all attempts to hand it over. */
static void seal_chunk(const struct ft_comm *comm, struct ft_op *op, const struct ft_header *header,
                       const void *data)
{
    if (!comm->limits.verify || op->sealed)
        return;
    op->crc = ft_message_sum(header, data);
    op->sealed = true;
}

/* A pass copies a chunk into the link's memory. Once it is there, it is the link's. */
static int send_by_pass(struct ft_comm *comm, struct ft_op *op, struct ft_link *link,
                        const struct ft_header *header)
{
    struct ft_reduce pass = ft_copy_pass((const char *)op->in + op->offset, NULL, header->len);
    struct ft_pass_send *send = &op->on_queue->send;
    if (!send->slot) {
        send->header = *header;
        send->to = op->coll.root;
    }
    return ft_pass_put(comm, op, link, &pass, send);
}

/* Hands the next chunk to the link. FT_AGAIN: the link has no place, or all requests are
 * pending. */
static int send_chunk(struct ft_comm *comm, struct ft_op *op, struct ft_link *link, size_t chunk)
{
    struct ft_send *send = find_free_send(op);
    if (!send)
        return FT_AGAIN;
    size_t total = bytes_of(op), len = ft_min(chunk, total - op->offset);
    const char *data = (const char *)op->in + op->offset;
    bool by_pass = !ft_op_links_reach(op) && len > 0;
    struct ft_header header = {.ctx = comm->ctx,
                               .sig = op->sig,
                               .seq = (uint32_t)op->seq,
                               .len = (uint32_t)len,
                               .lane = FT_LANE_P2P,
                               .step = (uint16_t)(op->offset / chunk)};
    if (!by_pass)
        seal_chunk(comm, op, &header, data);
    header.crc = op->crc;
    send->status = FT_AGAIN;
    /* A shorter operation may end before the receiver has taken it. */
    send->lasts = total > FT_WINDOW_P2P * comm->engine->tuning.chunk_bytes;
    send->moved = true;
    int rc = by_pass ? send_by_pass(comm, op, link, &header)
                     : link->ops->send(link, &header, data, send);
    if (by_pass || rc != FT_OK)
        send->status = FT_OK;
    if (rc != FT_OK)
        return rc;
    op->offset += len;
    op->begun = true;
    op->sealed = false;
    return FT_OK;
}

/* Hands chunks to the link until it or the operation has enough. An operation of no bytes sends one
 * empty message. */
static bool send_turn(struct ft_comm *comm, int rank)
{
    struct ft_p2p *queue = &comm->p2p.sends[rank];
    struct ft_op *op = queue->head;
    size_t total = bytes_of(op), chunk = chunk_of(comm);
    struct ft_link *link;
    int rc = is_sent(op, total) ? FT_OK : ft_engine_link(comm->engine, comm->peers[rank], &link);
    bool moved = false;
    while (rc == FT_OK && (op->offset < total || !op->begun)) {
        rc = send_chunk(comm, op, link, chunk);
        moved |= rc == FT_OK;
    }
    if (rc != FT_OK && rc != FT_AGAIN) {
        lost(comm, op, rc);
        return true;
    }
    if (op->begun && op->offset == total && sends_complete(op)) {
        pop(queue);
        moved = true;
    }
    return moved;
}

static bool expected(struct ft_comm *comm, const struct ft_op *op, const struct ft_header *got)
{
    size_t left = bytes_of(op) - op->offset;
    if (got->sig == op->sig && got->seq == (uint32_t)op->seq &&
        got->len == ft_min(left, chunk_of(comm)))
        return true;
    char theirs[128], mine[128];
    ft_sig_text(got->sig, theirs, sizeof theirs);
    ft_sig_text(op->sig, mine, sizeof mine);
    ft_comm_fail(comm, FT_MISMATCH, op->coll.root,
                 "message %llu from rank %d to rank %d: rank %d called %s, rank %d receives %s",
                 (unsigned long long)op->seq, op->coll.root, comm->view.rank, op->coll.root, theirs,
                 comm->view.rank, mine);
    return false;
}

/* Starts a pass that copies the message to its place. FT_AGAIN: it runs, and the message is kept
 * until it is over. */
static int copy_message(struct ft_comm *comm, const struct ft_op *op, const struct ft_msg *msg)
{
    char *to = (char *)op->out + op->offset;
    if (msg->header.len == 0 || msg->data == to)
        return FT_OK;
    struct ft_reduce pass = ft_copy_pass(msg->data, to, msg->header.len);
    return ft_pass_start(comm, op, &pass, (struct ft_device_staged){.src = 1});
}

/* The message is at its place. FT_AGAIN: its sender has withdrawn it meanwhile. The sender has
 * failed then, and another message tells why. */
static int end_message(struct ft_op *op, struct ft_link *rx, struct ft_msg *msg)
{
    bool intact = ft_msg_intact(msg);
    size_t len = msg->header.len;
    if (rx)
        rx->ops->release(rx, msg);
    if (!intact)
        return FT_AGAIN;
    op->offset += len;
    op->begun = true;
    return FT_OK;
}

/* Ends the pass of a message. FT_AGAIN: it still runs, or the message was withdrawn. After another
 * error the communicator has failed, and gives the message back later. */
static int end_pass(struct ft_comm *comm, struct ft_op *op, struct ft_link *rx)
{
    int rc = ft_pass_end(op);
    if (rc == FT_OK)
        return end_message(op, rx, ft_pass_msg(op, NULL));
    if (rc != FT_AGAIN)
        ft_pass_failed(comm, rc);
    return rc;
}

/* Brings a message that lies in the sender's memory: directly to its destination, unless it must be
 * checked first, or links do not reach that. */
static int fetch(struct ft_comm *comm, const struct ft_op *op, struct ft_link *rx,
                 struct ft_msg *msg, bool expected)
{
    bool first = comm->limits.verify || !ft_op_links_reach(op);
    if (!msg->unfetched || first == expected)
        return FT_OK;
    return rx->ops->fetch(rx, msg, first ? NULL : (char *)op->out + op->offset);
}

/* Whether this is the message that the operation expects. If not, the communicator has failed. */
static bool accepts(struct ft_comm *comm, const struct ft_op *op, const struct ft_msg *msg)
{
    return ft_pass_takes(comm, op, op->coll.root, msg) &&
           ft_verify_ok(comm, op->coll.root, msg, op, op->offset) &&
           expected(comm, op, &msg->header);
}

/* What a probe found, or what the link has. */
static int take_message(struct ft_comm *comm, int rank, struct ft_link *rx, struct ft_msg *msg)
{
    struct ft_p2p *queue = &comm->p2p.recvs[rank];
    if (!queue->rx)
        return rx->ops->recv(rx, comm->ctx, FT_LANE_P2P, msg);
    *msg = queue->probed;
    queue->rx = NULL;
    return FT_OK;
}

bool ft_p2p_probe(struct ft_comm *comm, int rank)
{
    ft_engine_assert_held(comm->engine);
    struct ft_p2p *queue = &comm->p2p.recvs[rank];
    struct ft_link *rx = rank == comm->view.rank ? NULL : comm->peers[rank]->rx;
    if (comm->failure.status != FT_OK || queue->head)
        return false;
    if (rank == comm->view.rank)
        return comm->p2p.sends[rank].head != NULL;
    if (!queue->rx && rx && rx->ops->recv(rx, comm->ctx, FT_LANE_P2P, &queue->probed) == FT_OK)
        queue->rx = rx;
    return queue->rx != NULL;
}

static void release_probed(struct ft_p2p *queue)
{
    if (queue->rx)
        queue->rx->ops->release(queue->rx, &queue->probed);
    queue->rx = NULL;
}

void ft_p2p_forget(struct ft_comm *comm, const struct ft_link *link)
{
    for (int r = 0; r < comm->view.nranks; r++)
        if (comm->p2p.recvs[r].rx == link)
            release_probed(&comm->p2p.recvs[r]);
}

/* The next message, ready to be read. FT_AGAIN: none is here. FT_MISMATCH: it is another one, and
 * the communicator has failed. */
static int next_message(struct ft_comm *comm, const struct ft_op *op, struct ft_link *rx,
                        struct ft_msg *msg)
{
    int rc = take_message(comm, op->coll.root, rx, msg);
    if (rc != FT_OK)
        return rc;
    rc = fetch(comm, op, rx, msg, false);
    if (rc == FT_OK)
        rc = accepts(comm, op, msg) ? fetch(comm, op, rx, msg, true) : FT_MISMATCH;
    if (rc != FT_OK)
        rx->ops->release(rx, msg);
    return rc;
}

/* Receives the next chunk, or starts the pass of it. FT_AGAIN: nothing is here. After another error
 * the communicator has failed. */
static int recv_chunk(struct ft_comm *comm, struct ft_op *op, const struct ft_peer *peer)
{
    struct ft_link *rx = peer->rx;
    struct ft_msg now, *msg = ft_pass_msg(op, &now);
    int rc = rx ? next_message(comm, op, rx, msg) : ft_peer_is_gone(peer) ? FT_PEER : FT_AGAIN;
    if (rc != FT_OK && rc != FT_AGAIN && rc != FT_MISMATCH)
        lost(comm, op, rc);
    if (rc != FT_OK)
        return rc;
    return copy_message(comm, op, msg) == FT_AGAIN ? FT_OK : end_message(op, rx, msg);
}

static bool recv_turn(struct ft_comm *comm, int rank)
{
    struct ft_p2p *queue = &comm->p2p.recvs[rank];
    struct ft_op *op = queue->head;
    struct ft_peer *peer = comm->peers[rank];
    size_t total = bytes_of(op);
    bool moved = false;
    while (op->offset < total || !op->begun) {
        int rc = ft_pass_runs(op) ? end_pass(comm, op, peer->rx) : recv_chunk(comm, op, peer);
        if (rc != FT_OK)
            return moved || rc != FT_AGAIN;
        moved = true;
    }
    pop(queue);
    ft_readiness_tell_receive(comm, rank);
    return true;
}

static bool self_turn(struct ft_comm *comm, int rank)
{
    struct ft_op *send = comm->p2p.sends[rank].head, *recv = comm->p2p.recvs[rank].head;
    if (!send || !recv)
        return false;
    if (send->sig != recv->sig) {
        char s[128], r[128];
        ft_sig_text(send->sig, s, sizeof s);
        ft_sig_text(recv->sig, r, sizeof r);
        ft_comm_fail(comm, FT_MISMATCH, rank, "rank %d sends %s to itself and receives %s", rank, s,
                     r);
        return true;
    }
    int rc = ft_pass_to_self(comm, send, recv);
    if (rc != FT_OK && rc != FT_AGAIN)
        ft_pass_failed(comm, rc);
    if (rc != FT_OK)
        return false;
    pop(&comm->p2p.sends[rank]);
    pop(&comm->p2p.recvs[rank]);
    return true;
}

bool ft_p2p_turn(struct ft_comm *comm)
{
    bool moved = false;
    int self = comm->view.rank;
    for (int r = 0; r < comm->view.nranks && comm->failure.status == FT_OK; r++) {
        if (r == self) {
            while (comm->failure.status == FT_OK && self_turn(comm, r))
                moved = true;
            continue;
        }
        if (comm->p2p.sends[r].head)
            moved |= send_turn(comm, r);
        if (comm->failure.status == FT_OK && comm->p2p.recvs[r].head)
            moved |= recv_turn(comm, r);
    }
    return moved;
}

void ft_p2p_reset(struct ft_comm *comm)
{
    size_t n = (size_t)comm->view.nranks;
    for (int r = 0; r < comm->view.nranks; r++)
        release_probed(&comm->p2p.recvs[r]);
    memset(comm->p2p.sends, 0, n * sizeof *comm->p2p.sends);
    memset(comm->p2p.recvs, 0, n * sizeof *comm->p2p.recvs);
}

/*
 * Queue pairs: made, connected, written to, stopped.
 *
 * A write is one request with an immediate, and takes one receive request of the other side. One
 * completion in VERBS_SEND_DEPTH / 4 is asked for besides those that the engine wants. To stop a
 * queue pair it is moved to ERR and gets one more request; when that and all receive requests have
 * come back, nothing is left in it, and reap.c destroys it some time after. If a device does not
 * return them soon, the way is stopped only when its queue pair is destroyed.
 */
#include "transport/verbs/verbs.h"

#include <arpa/inet.h>
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define INFO_MAGIC 0x31564246u
enum { FLOW_LABEL_MASK = 0xfffff, PSN_MASK = 0xffffff, PORT_BITS = 0x3fff };

/* What the other side must know, in native byte order. */
struct info {
    uint32_t magic, qpn, psn, rkey;
    uint64_t at, len_bytes;
    uint32_t mtu_bytes;
    uint16_t lid;
    uint8_t link_layer, zero;
    unsigned char gid[16];
    char port[VERBS_NAME_BYTES + 4];
};
_Static_assert(sizeof(struct info) <= FT_FABRIC_INFO_BYTES, "an info of a way");

static enum ibv_mtu mtu_code(unsigned bytes)
{
    enum ibv_mtu code = IBV_MTU_256;
    while (code < IBV_MTU_4096 && 128u << (code + 1) <= bytes)
        code = (enum ibv_mtu)(code + 1);
    return code;
}

/* ---- opening --------------------------------------------------------------------------------- */

static int create_qp(struct verbs_fabric *f, struct verbs_way *w)
{
    struct verbs_device *d = w->port->device;
    struct ibv_qp_init_attr attr = {
        .qp_context = w,
        .send_cq = w->cq->cq,
        .recv_cq = w->cq->cq,
        .qp_type = IBV_QPT_RC,
        .cap = {.max_send_wr = w->send_depth + 1,
                .max_recv_wr = w->recv_depth,
                .max_send_sge = FT_FABRIC_PIECES,
                .max_recv_sge = 1,
                .max_inline_data = (uint32_t)d->inline_bytes},
    };
    w->qp = f->lib->create_qp(d->pd, &attr);
    if (w->qp)
        return FT_OK;
    return errno == ENOMEM
               ? verbs_fail_pinning(f, d->name, (w->send_depth + w->recv_depth) * FT_CACHE_LINE,
                                    errno)
               : ft_fail(FT_NOTSUP, "cannot make a queue pair on %s: %s", w->port->name,
                         strerror(errno));
}

static int fail_modify(const struct verbs_way *w, const char *to, int error)
{
    char own[VERBS_GID_BYTES], other[VERBS_GID_BYTES];
    return ft_fail(FT_NOTSUP,
                   "queue pair %u on %s (GID %s) cannot be moved to %s towards %s (GID %s): %s",
                   w->qp->qp_num, w->port->name, verbs_gid_text(&w->gid, own), to, w->peer_port,
                   verbs_gid_text(&w->peer_gid, other), strerror(error));
}

static int move_to_init(struct verbs_fabric *f, struct verbs_way *w)
{
    struct ibv_qp_attr attr = {
        .qp_state = IBV_QPS_INIT,
        .pkey_index = (uint16_t)f->options.pkey_index,
        .port_num = w->port->number,
        .qp_access_flags = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE,
    };
    int error = f->lib->modify_qp(
        w->qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
    return error ? fail_modify(w, "INIT", error) : FT_OK;
}

void verbs_way_repost(struct verbs_way *w)
{
    struct ibv_recv_wr wr[VERBS_REPOST], *bad;
    while (w->missing > 0) {
        const unsigned n = w->missing < VERBS_REPOST ? w->missing : VERBS_REPOST;
        memset(wr, 0, n * sizeof wr[0]);
        for (unsigned i = 0; i < n; i++) {
            wr[i].wr_id = verbs_request(w, VERBS_RECEIVE, 0);
            wr[i].next = i + 1 < n ? &wr[i + 1] : NULL;
        }
        const bool all = ibv_post_recv(w->qp, wr, &bad) == 0;
        const unsigned posted = all ? n : (unsigned)(bad - wr);
        w->missing -= posted;
        w->receives += posted;
        if (!all)
            return; /* the queue pair has failed, and says so */
    }
}

static void copy_port(struct verbs_way *w)
{
    w->gid = w->port->gid;
    w->gid_index = w->port->gid_index;
    w->mtu_bytes = w->port->mtu_bytes;
    w->send_depth = w->port->device->max_send;
    w->recv_depth = w->port->device->max_recv;
}

int verbs_way_open(struct ft_fabric *fabric, unsigned index, struct ft_fabric_region *into,
                   void *user, struct ft_fabric_way **out)
{
    struct verbs_fabric *f = verbs_fabric_of(fabric);
    struct verbs_port *port = &f->port[index % f->nports];
    if (!port->up)
        return ft_fail(FT_LINK, "port %s is not active", port->name);
    struct verbs_way *w = calloc(1, sizeof *w);
    if (!w)
        return ft_fail(FT_NOMEM, "no memory for a queue pair");
    w->base = (struct ft_fabric_way){fabric, index, index % f->nports, user};
    w->port = port;
    w->into = FT_CONTAINER(into, struct verbs_region, base);
    w->status = FT_OK;
    copy_port(w);
    int rc = verbs_cq_join(f, port->device, w);
    if (!rc)
        rc = create_qp(f, w);
    if (!rc)
        rc = move_to_init(f, w);
    if (rc) {
        verbs_way_close(&w->base);
        return rc;
    }
    f->config.env->random(f->config.env, &w->psn, sizeof w->psn);
    w->psn &= PSN_MASK;
    w->missing = w->recv_depth;
    verbs_way_repost(w);
    if (w->receives == 0) {
        verbs_way_close(&w->base);
        return ft_fail(FT_NOTSUP, "a queue pair on port %s takes no receive requests", port->name);
    }
    *out = &w->base;
    return FT_OK;
}

size_t verbs_way_info(struct ft_fabric_way *way, void *buf)
{
    struct verbs_way *w = verbs_way_of(way);
    struct info info = {
        .magic = INFO_MAGIC,
        .qpn = w->qp->qp_num,
        .psn = w->psn,
        .rkey = w->into->mr[w->port->device_index]->rkey,
        .at = (uintptr_t)w->into->base.at,
        .len_bytes = w->into->base.len_bytes,
        .mtu_bytes = w->mtu_bytes,
        .lid = w->port->lid,
        .link_layer = w->port->link_layer,
    };
    memcpy(info.gid, w->gid.raw, sizeof info.gid);
    memcpy(info.port, w->port->name, sizeof info.port);
    memcpy(buf, &info, sizeof info);
    return sizeof info;
}

/* ---- connecting ------------------------------------------------------------------------------ */

static bool is_printable(const char *text, size_t capacity)
{
    size_t len = strnlen(text, capacity);
    for (size_t i = 0; i < len; i++)
        if (text[i] <= ' ' || text[i] > '~')
            return false;
    return len > 0 && len < capacity;
}

static int take_info(struct verbs_way *w, const void *bytes, size_t len_bytes, struct info *out)
{
    if (len_bytes != sizeof *out)
        return ft_fail(FT_PROTOCOL, "a peer's queue pair is described by %zu bytes, not %zu",
                       len_bytes, sizeof *out);
    memcpy(out, bytes, sizeof *out);
    if (out->magic != INFO_MAGIC || out->qpn > PSN_MASK || out->psn > PSN_MASK ||
        out->mtu_bytes < 256 || out->mtu_bytes > 4096 || !is_printable(out->port, sizeof out->port))
        return ft_fail(FT_PROTOCOL, "a peer's queue pair makes no sense");
    memcpy(w->peer_port, out->port, sizeof w->peer_port);
    memcpy(w->peer_gid.raw, out->gid, sizeof w->peer_gid.raw);
    if (out->link_layer != w->port->link_layer ||
        (out->link_layer == IBV_LINK_LAYER_ETHERNET &&
         verbs_gid_is_ipv4(&w->gid) != verbs_gid_is_ipv4(&w->peer_gid))) {
        char own[VERBS_GID_BYTES], other[VERBS_GID_BYTES];
        return ft_fail(FT_NOTSUP,
                       "no route from %s (GID %s) to %s (GID %s): another kind of address",
                       w->port->name, verbs_gid_text(&w->gid, own), w->peer_port,
                       verbs_gid_text(&w->peer_gid, other));
    }
    w->peer_qpn = out->qpn;
    w->peer_rkey = out->rkey;
    w->peer_at = out->at;
    w->peer_bytes = out->len_bytes;
    return FT_OK;
}

/* On Ethernet the label gives the source port of UDP (InfiniBand specification, annex A17), by
 * which switches choose a path. Queue pairs get different ones, unless the user names them. */
static uint32_t choose_label(const struct verbs_fabric *f, const struct verbs_way *w)
{
    uint16_t port = verbs_source_port(f->options.source_ports, w->base.index);
    if (port)
        return port & PORT_BITS;
    uint64_t mixed = ((uint64_t)w->qp->qp_num << 24 | w->peer_qpn) * 0x9e3779b97f4a7c15u;
    return (uint32_t)(mixed >> 40) & PORT_BITS;
}

static int move_to_rtr(struct verbs_fabric *f, struct verbs_way *w, const struct info *info)
{
    struct ibv_qp_attr attr = {
        .qp_state = IBV_QPS_RTR,
        .path_mtu = mtu_code(w->mtu_bytes),
        .dest_qp_num = info->qpn,
        .rq_psn = info->psn,
        .max_dest_rd_atomic = 1,
        .min_rnr_timer = 12, /* 0.64 ms */
        .ah_attr = {.dlid = info->lid,
                    .sl = (uint8_t)f->options.service_level,
                    .port_num = w->port->number},
    };
    const bool ethernet = w->port->link_layer == IBV_LINK_LAYER_ETHERNET;
    if (ethernet || memcmp(w->gid.raw, w->peer_gid.raw, 8) != 0) {
        attr.ah_attr.is_global = 1;
        attr.ah_attr.grh.dgid = w->peer_gid;
        attr.ah_attr.grh.sgid_index = (uint8_t)w->gid_index;
        attr.ah_attr.grh.hop_limit = 255;
        attr.ah_attr.grh.traffic_class = (uint8_t)f->options.traffic_class;
        attr.ah_attr.grh.flow_label = w->flow_label;
    }
    int error = f->lib->modify_qp(w->qp, &attr,
                                  IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN |
                                      IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC |
                                      IBV_QP_MIN_RNR_TIMER);
    return error ? fail_modify(w, "RTR", error) : FT_OK;
}

static int move_to_rts(struct verbs_fabric *f, struct verbs_way *w)
{
    struct ibv_qp_attr attr = {
        .qp_state = IBV_QPS_RTS,
        .timeout = (uint8_t)f->options.timeout,
        .retry_cnt = (uint8_t)f->options.retries,
        .rnr_retry = 7, /* for ever: a peer that does not poll is no broken path */
        .sq_psn = w->psn,
        .max_rd_atomic = 1,
    };
    int error = f->lib->modify_qp(w->qp, &attr,
                                  IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT |
                                      IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC);
    return error ? fail_modify(w, "RTS", error) : FT_OK;
}

/* The label that the device really uses. */
static void read_label(struct verbs_fabric *f, struct verbs_way *w)
{
    struct ibv_qp_attr attr;
    struct ibv_qp_init_attr init;
    memset(&attr, 0, sizeof attr);
    memset(&init, 0, sizeof init);
    if (f->lib->query_qp(w->qp, &attr, IBV_QP_AV, &init) == 0 && attr.ah_attr.is_global)
        w->flow_label = attr.ah_attr.grh.flow_label & FLOW_LABEL_MASK;
}

int verbs_way_connect(struct ft_fabric_way *way, const void *bytes, size_t len_bytes)
{
    struct verbs_way *w = verbs_way_of(way);
    struct verbs_fabric *f = verbs_fabric_of(way->fabric);
    struct info info;
    if (w->state != VERBS_OPENED)
        return ft_fail(FT_LINK, "the queue pair has failed before it was connected");
    int rc = take_info(w, bytes, len_bytes, &info);
    if (rc)
        return rc;
    if (info.mtu_bytes < w->mtu_bytes)
        w->mtu_bytes = info.mtu_bytes;
    w->flow_label = choose_label(f, w);
    rc = move_to_rtr(f, w, &info);
    if (!rc)
        rc = move_to_rts(f, w);
    if (rc)
        return rc;
    read_label(f, w);
    w->state = VERBS_READY;
    char text[FT_FABRIC_TEXT_BYTES];
    verbs_way_describe(way, text);
    FT_LOG(INFO, "net", f->config.rank, "verbs: %s", text);
    return FT_OK;
}

void verbs_way_describe(const struct ft_fabric_way *way, char *buf)
{
    const struct verbs_way *w = FT_CONTAINER(way, const struct verbs_way, base);
    char own[VERBS_GID_BYTES], other[VERBS_GID_BYTES];
    const unsigned qpn = w->qp ? w->qp->qp_num : 0;
    if (w->peer_qpn == 0)
        snprintf(buf, FT_FABRIC_TEXT_BYTES, "queue pair %u on %s, GID %u (%s), not connected", qpn,
                 w->port->name, w->gid_index, verbs_gid_text(&w->gid, own));
    else
        snprintf(buf, FT_FABRIC_TEXT_BYTES,
                 "queue pair %u on %s, GID %u (%s), to queue pair %u on %s (%s), source port %u, "
                 "MTU %u",
                 qpn, w->port->name, w->gid_index, verbs_gid_text(&w->gid, own), w->peer_qpn,
                 w->peer_port, verbs_gid_text(&w->peer_gid, other),
                 ibv_flow_label_to_udp_sport(w->flow_label), w->mtu_bytes);
}

/* ---- writing --------------------------------------------------------------------------------- */

static unsigned fill_pieces(const struct verbs_way *w, const struct ft_fabric_write *write,
                            struct ibv_sge *sge)
{
    unsigned n = 0;
    for (unsigned i = 0; i < write->npieces; i++) {
        const struct ft_fabric_piece *piece = &write->piece[i];
        if (piece->len_bytes == 0)
            continue;
        const struct verbs_region *r = FT_CONTAINER(piece->region, const struct verbs_region, base);
        sge[n].addr = (uintptr_t)(piece->region->at + piece->offset);
        sge[n].length = (uint32_t)piece->len_bytes;
        sge[n++].lkey = r->mr[w->port->device_index]->lkey;
    }
    return n;
}

int verbs_way_write(struct ft_fabric_way *way, const struct ft_fabric_write *write)
{
    struct verbs_way *w = verbs_way_of(way);
    struct ibv_sge sge[FT_FABRIC_PIECES];
    struct ibv_send_wr *bad;
    if (w->state != VERBS_READY)
        return FT_LINK;
    if (w->posted - w->ended >= w->send_depth)
        return FT_AGAIN;
    const uint32_t number = w->posted + 1;
    const bool asked = write->asked || number - w->asked >= w->send_depth / 4;
    struct ibv_send_wr wr = {
        .wr_id = verbs_request(w, VERBS_WRITE, number),
        .sg_list = sge,
        .num_sge = (int)fill_pieces(w, write, sge),
        .opcode = IBV_WR_RDMA_WRITE_WITH_IMM,
        .send_flags = (asked ? IBV_SEND_SIGNALED : 0u) | (write->inlined ? IBV_SEND_INLINE : 0u),
        .imm_data = htonl(write->immediate),
        .wr.rdma = {.remote_addr = w->peer_at + write->to, .rkey = w->peer_rkey},
    };
    int error = ibv_post_send(w->qp, &wr, &bad);
    if (error) {
        verbs_way_fail(w, verbs_completion_error(IBV_WC_GENERAL_ERR), strerror(error));
        return FT_LINK;
    }
    w->posted = number;
    if (asked)
        w->asked = number;
    return FT_OK;
}

/* ---- ends ------------------------------------------------------------------------------------ */

void verbs_way_news(struct verbs_way *w)
{
    struct verbs_fabric *f = verbs_fabric_of(w->base.fabric);
    if (w->listed)
        return;
    w->listed = true;
    w->next_news = NULL;
    *f->news_end = w;
    f->news_end = &w->next_news;
}

static void unlist(struct verbs_way *w)
{
    struct verbs_fabric *f = verbs_fabric_of(w->base.fabric);
    struct verbs_way **at = &f->news;
    while (*at && *at != w)
        at = &(*at)->next_news;
    if (*at)
        *at = w->next_news;
    f->news_end = &f->news;
    while (*f->news_end)
        f->news_end = &(*f->news_end)->next_news;
    w->listed = false;
}

void verbs_way_fail(struct verbs_way *w, const struct verbs_error *error, const char *code_text)
{
    char way[FT_FABRIC_TEXT_BYTES];
    if (w->state > VERBS_READY || w->said_failed)
        return;
    w->state = VERBS_FAILED;
    w->say_failed = w->said_failed = true;
    w->status = verbs_error_status(error);
    verbs_way_describe(&w->base, way);
    snprintf(w->text, sizeof w->text, "%s: %s (%s, %s)", way, error->reason, error->name,
             code_text);
    verbs_way_news(w);
}

static bool move_to_err(struct verbs_fabric *f, struct verbs_way *w)
{
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_ERR};
    return f->lib->modify_qp(w->qp, &attr, IBV_QP_STATE) == 0;
}

/* The request after the last write. There is always room for it. */
static void post_last(struct verbs_way *w)
{
    struct ibv_send_wr *bad, wr = {
                                 .wr_id = verbs_request(w, VERBS_LAST, 0),
                                 .opcode = IBV_WR_RDMA_WRITE,
                                 .send_flags = IBV_SEND_SIGNALED,
                                 .wr.rdma = {.remote_addr = w->peer_at, .rkey = w->peer_rkey},
                             };
    (void)ibv_post_send(w->qp, &wr, &bad);
}

void verbs_way_stop(struct ft_fabric_way *way)
{
    struct verbs_way *w = verbs_way_of(way);
    struct verbs_fabric *f = verbs_fabric_of(way->fabric);
    if (w->state >= VERBS_STOPPING)
        return;
    w->state = VERBS_STOPPING;
    w->say_failed = false;
    w->missing = 0;
    w->stop_ns = ft_now_ns(f->config.env) + VERBS_STOP_NS;
    f->nstopping++;
    f->base.look_ns = VERBS_STOP_LOOK_NS;
    if (move_to_err(f, w) && !w->cq->broken)
        post_last(w);
    else
        w->stop_ns = 0;
}

static void destroy_qp(struct verbs_way *w)
{
    if (w->qp)
        verbs_fabric_of(w->base.fabric)->lib->destroy_qp(w->qp);
    w->qp = NULL;
}

/* In the thread, while the engine still has the way. */
static void end_dying(struct verbs_dead *dead)
{
    struct verbs_way *w = FT_CONTAINER(dead, struct verbs_way, dead);
    struct verbs_fabric *f = verbs_fabric_of(w->base.fabric);
    destroy_qp(w);
    pthread_mutex_lock(&f->lock);
    w->destroyed = true;
    pthread_cond_broadcast(&f->reaped);
    pthread_mutex_unlock(&f->lock);
}

/* In the thread, which alone still has the way. */
static void end_stopped(struct verbs_dead *dead)
{
    struct verbs_way *w = FT_CONTAINER(dead, struct verbs_way, dead);
    destroy_qp(w);
    free(w);
}

static bool is_destroyed(struct verbs_way *w, bool wait)
{
    struct verbs_fabric *f = verbs_fabric_of(w->base.fabric);
    pthread_mutex_lock(&f->lock);
    while (wait && !w->destroyed)
        pthread_cond_wait(&f->reaped, &f->lock);
    const bool destroyed = w->destroyed;
    pthread_mutex_unlock(&f->lock);
    return destroyed;
}

void verbs_way_check_dying(struct verbs_way *w, uint64_t now_ns)
{
    if (w->state == VERBS_STOPPING && now_ns >= w->stop_ns) {
        w->state = VERBS_DYING;
        w->dead.end = end_dying;
        verbs_reap(verbs_fabric_of(w->base.fabric), &w->dead);
    }
    if (w->state == VERBS_DYING && is_destroyed(w, false))
        w->state = VERBS_ENDING; /* until its completion queue is seen empty */
}

static void leave_stopping(struct verbs_fabric *f)
{
    if (--f->nstopping == 0)
        f->base.look_ns = 0;
}

void verbs_way_check_stopped(struct verbs_way *w)
{
    if (w->state == VERBS_STOPPING && !(w->flushed && w->receives == 0))
        return;
    w->state = VERBS_STOPPED;
    w->say_stopped = true;
    leave_stopping(verbs_fabric_of(w->base.fabric));
    verbs_way_news(w);
}

/* A way that is not stopped yet is ended at once, because its memory may be used again after that:
 * this waits for the device. */
static void end_at_once(struct verbs_fabric *f, struct verbs_way *w)
{
    if (w->state < VERBS_STOPPING && w->qp)
        (void)move_to_err(f, w);
    if (w->state == VERBS_DYING)
        (void)is_destroyed(w, true);
    else
        destroy_qp(w);
    if (w->state >= VERBS_STOPPING)
        leave_stopping(f);
}

void verbs_way_close(struct ft_fabric_way *way)
{
    struct verbs_way *w = verbs_way_of(way);
    struct verbs_fabric *f = verbs_fabric_of(way->fabric);
    const bool stopped = w->state == VERBS_STOPPED;
    if (!stopped)
        end_at_once(f, w);
    if (w->listed)
        unlist(w);
    if (w->cq)
        verbs_cq_leave(w);
    w->dead.end = end_stopped;
    if (stopped && w->qp)
        verbs_reap(f, &w->dead);
    else
        free(w);
}

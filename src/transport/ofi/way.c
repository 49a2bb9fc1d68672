/*
 * Ways over libfabric. A way is stopped by closing its endpoint, after what has arrived was taken
 * from its completion queue. A peer that is gone is only noticed by a write that fails, and a way
 * that is never through fails after OFI_DIAL_NS.
 */
#include "transport/ofi/ofi.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>

#define ENTRIES 16    /* completions read at once */
#define LAST_READS 64 /* most reads of completions before an endpoint is closed */

/* What the peer needs; followed by the endpoint's name. */
struct info {
    uint64_t key, at, len_bytes;
    uint32_t name_bytes, zero;
};

static struct ofi_way *of(struct ft_fabric_way *w)
{
    return FT_CONTAINER(w, struct ofi_way, base);
}

static int failed(const struct ofi *o, const char *call, int rc)
{
    return ft_fail(rc == -FI_ENOMEM   ? FT_NOMEM
                   : rc == -FI_EMFILE ? FT_NOFILE
                                      : FT_LINK,
                   "%s of provider %s on %s: %s", call, o->info->fabric_attr->prov_name,
                   o->info->domain_attr->name, o->library->strerror(-rc));
}

/* ---- opening and closing --------------------------------------------------------------------- */

/* False: the provider does not let go of it, so writes may still arrive. */
static bool close_endpoint(struct ofi_way *w)
{
    const int rc = w->ep ? fi_close(&w->ep->fid) : 0;
    if (rc == 0)
        w->ep = NULL;
    return rc == 0;
}

static bool close_all(struct ofi_way *w)
{
    const bool closed = close_endpoint(w);
    if (w->wait_fd >= 0)
        (void)epoll_ctl(w->ofi->epoll_fd, EPOLL_CTL_DEL, w->wait_fd, NULL);
    if (w->unwatched && --w->ofi->unwatched == 0)
        w->ofi->base.look_ns = 0;
    if (w->cq)
        (void)fi_close(&w->cq->fid);
    if (w->av)
        (void)fi_close(&w->av->fid);
    return closed;
}

/* The kernel takes at most so many epoll descriptors over the same one (EINVAL), and a provider may
 * have one of the domain below that of every queue: ten queues, then. Those that are too many are
 * looked at. */
static int watch(struct ofi_way *w)
{
    struct epoll_event ev = {.events = EPOLLIN};
    int rc = fi_control(&w->cq->fid, FI_GETWAIT, &w->wait_fd);
    if (rc)
        return failed(w->ofi, "FI_GETWAIT", rc);
    if (epoll_ctl(w->ofi->epoll_fd, EPOLL_CTL_ADD, w->wait_fd, &ev) == 0)
        return FT_OK;
    w->wait_fd = -1;
    if (errno == EINVAL || errno == ELOOP) {
        w->unwatched = true;
        w->ofi->unwatched++;
        w->ofi->base.look_ns = OFI_LOOK_NS;
        return FT_OK;
    }
    return ft_fail(ft_status_of_errno(errno), "epoll does not take a descriptor: %s",
                   strerror(errno));
}

static int open_queue(struct ofi_way *w)
{
    const bool waits = w->ofi->epoll_fd >= 0;
    struct fi_cq_attr attr = {.size = 4 * OFI_DEPTH,
                              .format = FI_CQ_FORMAT_DATA,
                              .wait_obj = waits ? FI_WAIT_FD : FI_WAIT_NONE};
    int rc = fi_cq_open(w->ofi->domain, &attr, &w->cq, NULL);
    if (rc)
        return failed(w->ofi, "fi_cq_open", rc);
    return waits ? watch(w) : FT_OK;
}

static int open_endpoint(struct ofi_way *w)
{
    struct ofi *o = w->ofi;
    struct fi_av_attr attr = {.type = FI_AV_TABLE, .count = 1};
    int rc = fi_av_open(o->domain, &attr, &w->av, NULL);
    if (rc)
        return failed(o, "fi_av_open", rc);
    rc = fi_endpoint(o->domain, o->info, &w->ep, NULL);
    if (rc)
        return failed(o, "fi_endpoint", rc);
    rc = fi_ep_bind(w->ep, &w->av->fid, 0);
    if (!rc)
        rc = fi_ep_bind(w->ep, &w->cq->fid, FI_TRANSMIT | FI_RECV);
    if (!rc)
        rc = fi_enable(w->ep);
    return rc ? failed(o, "fi_enable", rc) : FT_OK;
}

int ofi_way_open(struct ft_fabric *fabric, unsigned index, struct ft_fabric_region *into,
                 void *user, struct ft_fabric_way **out)
{
    struct ofi *o = FT_CONTAINER(fabric, struct ofi, base);
    struct ofi_way *w = calloc(1, sizeof *w);
    if (!w)
        return ft_fail(FT_NOMEM, "no memory for an endpoint");
    w->base = (struct ft_fabric_way){.fabric = fabric, .index = index, .user = user};
    w->ofi = o;
    w->into = FT_CONTAINER(into, struct ofi_region, base);
    w->wait_fd = -1;
    for (int i = OFI_DEPTH; i-- > 0;) {
        w->op[i].next = w->free;
        w->free = &w->op[i];
    }
    int rc = open_queue(w);
    if (rc == FT_OK)
        rc = open_endpoint(w);
    if (rc) {
        (void)close_all(w);
        free(w);
        return rc;
    }
    w->next = o->ways;
    o->ways = w;
    o->nways++;
    *out = &w->base;
    return FT_OK;
}

void ofi_way_close(struct ft_fabric_way *way)
{
    struct ofi_way *w = of(way), **at = &w->ofi->ways;
    const bool closed = close_all(w);
    while (*at != w)
        at = &(*at)->next;
    *at = w->next;
    if (w->ofi->first == w)
        w->ofi->first = w->next;
    w->ofi->nways--;
    if (closed)
        free(w);
    else /* the provider may still use it */
        FT_LOG(WARN, "net", w->ofi->config.rank, "an endpoint of provider %s cannot be closed",
               w->ofi->info->fabric_attr->prov_name);
}

/* ---- connecting ------------------------------------------------------------------------------ */

size_t ofi_way_info(struct ft_fabric_way *way, void *buf)
{
    struct ofi_way *w = of(way);
    const bool virtual_addresses = w->ofi->info->domain_attr->mr_mode & FI_MR_VIRT_ADDR;
    struct info info = {.key = fi_mr_key(w->into->mr),
                        .at = virtual_addresses ? (uintptr_t)w->into->base.at : 0,
                        .len_bytes = w->into->base.len_bytes};
    size_t len = OFI_NAME_BYTES;
    if (fi_getname(&w->ep->fid, (char *)buf + sizeof info, &len))
        len = 0;
    info.name_bytes = (uint32_t)len;
    memcpy(buf, &info, sizeof info);
    return sizeof info + len;
}
_Static_assert(sizeof(struct info) + OFI_NAME_BYTES <= FT_FABRIC_INFO_BYTES, "an info");

int ofi_way_connect(struct ft_fabric_way *way, const void *data, size_t len_bytes)
{
    struct ofi_way *w = of(way);
    struct info info;
    _Alignas(16) unsigned char name[OFI_NAME_BYTES + 1];
    if (len_bytes < sizeof info)
        return ft_fail(FT_PROTOCOL, "a peer's endpoint is described by %zu bytes", len_bytes);
    memcpy(&info, data, sizeof info);
    if (!info.name_bytes || info.name_bytes > OFI_NAME_BYTES ||
        info.name_bytes != len_bytes - sizeof info)
        return ft_fail(FT_PROTOCOL, "a peer's endpoint has a name of %u bytes", info.name_bytes);
    memcpy(name, (const char *)data + sizeof info, info.name_bytes);
    name[info.name_bytes] = '\0'; /* names may be texts */
    int rc = fi_av_insert(w->av, name, 1, &w->peer, 0, NULL);
    if (rc != 1)
        return ft_fail(FT_NOTSUP, "provider %s does not take the peer's endpoint: %s",
                       w->ofi->info->fabric_attr->prov_name,
                       w->ofi->library->strerror(rc < 0 ? -rc : FI_EINVAL));
    size_t len = sizeof w->peer_text;
    (void)fi_av_straddr(w->av, name, w->peer_text, &len);
    w->peer_text[sizeof w->peer_text - 1] = '\0';
    w->peer_key = info.key;
    w->peer_at = info.at;
    w->connected = true;
    return FT_OK;
}

void ofi_way_describe(const struct ft_fabric_way *way, char *buf)
{
    const struct ofi_way *w = FT_CONTAINER(way, struct ofi_way, base);
    char mine[128] = "?", name[OFI_NAME_BYTES];
    size_t len = sizeof name, text = sizeof mine;
    if (w->ep && fi_getname(&w->ep->fid, name, &len) == 0)
        (void)fi_av_straddr(w->av, name, mine, &text);
    mine[sizeof mine - 1] = '\0';
    snprintf(buf, FT_FABRIC_TEXT_BYTES, "provider %.30s, domain %.30s, endpoints %.60s and %.60s",
             w->ofi->info->fabric_attr->prov_name, w->ofi->info->domain_attr->name, mine,
             *w->peer_text ? w->peer_text : "?");
}

/* ---- writing --------------------------------------------------------------------------------- */

static void fail(struct ofi_way *w, const char *what, int rc)
{
    if (w->failed)
        return;
    w->failed = true;
    snprintf(w->why, sizeof w->why, "provider %s on %s: a write to %.100s %s: %s",
             w->ofi->info->fabric_attr->prov_name, w->ofi->info->domain_attr->name,
             *w->peer_text ? w->peer_text : "?", what, w->ofi->library->strerror(rc));
}

static int refused(struct ofi_way *w, ssize_t rc)
{
    if (rc != -FI_EAGAIN) {
        fail(w, "was refused", (int)-rc);
        return ft_fail(FT_LINK, "%s", w->why);
    }
    if (!w->stuck_ns)
        w->stuck_ns = ft_now_ns(w->ofi->config.env);
    return FT_AGAIN;
}

int ofi_write(struct ft_fabric_way *way, const struct ft_fabric_write *write)
{
    struct ofi_way *w = of(way);
    struct ofi_op *op = w->free;
    struct iovec iov[FT_FABRIC_PIECES];
    void *desc[FT_FABRIC_PIECES];
    size_t len = 0;
    if (w->failed || w->stopping || !w->connected)
        return ft_fail(FT_LINK, "the endpoint is not in use");
    if (!op)
        return FT_AGAIN;
    for (unsigned i = 0; i < write->npieces; i++) {
        const struct ft_fabric_piece *p = &write->piece[i];
        iov[i] = (struct iovec){p->region->at + p->offset, p->len_bytes};
        desc[i] = FT_CONTAINER(p->region, struct ofi_region, base)->desc;
        len += p->len_bytes;
    }
    const struct fi_rma_iov to = {w->peer_at + write->to, len, w->peer_key};
    const struct fi_msg_rma msg = {iov, desc, write->npieces, w->peer,
                                   &to, 1,    &op->context,   write->immediate};
    const ssize_t rc = fi_writemsg(
        w->ep, &msg, FI_REMOTE_CQ_DATA | FI_COMPLETION | (write->inlined ? FI_INJECT : 0));
    if (rc)
        return refused(w, rc);
    w->free = op->next;
    w->stuck_ns = 0;
    return FT_OK;
}

/* ---- events ---------------------------------------------------------------------------------- */

static struct ft_fabric_event event_of(struct ofi_way *w, int what)
{
    struct ft_fabric_event e = {.way = &w->base};
    e.what = what;
    return e;
}

/* One of this side's writes has ended. */
static void ended(struct ofi_way *w, void *context)
{
    struct ofi_op *op = context;
    op->next = w->free;
    w->free = op;
}

static bool is_ours(const struct ofi_way *w, const void *context)
{
    return (uintptr_t)context >= (uintptr_t)w->op &&
           (uintptr_t)context < (uintptr_t)(w->op + OFI_DEPTH);
}

static void take_error(struct ofi_way *w)
{
    /* Later versions write a longer structure. */
    union {
        struct fi_cq_err_entry entry;
        unsigned char room[256];
    } err;
    memset(&err, 0, sizeof err);
    if (fi_cq_readerr(w->cq, &err.entry, 0) != 1)
        return;
    if (is_ours(w, err.entry.op_context))
        ended(w, err.entry.op_context);
    fail(w, "failed", err.entry.err);
}

/* Reads the queue once. Returns the number of events, or -1 if there was nothing. */
static int read_queue(struct ofi_way *w, struct ft_fabric_event *events, int max)
{
    struct fi_cq_data_entry entry[ENTRIES];
    const ssize_t got = fi_cq_read(w->cq, entry, ft_min((size_t)max, ENTRIES));
    int n = 0;
    if (got == -FI_EAVAIL)
        take_error(w);
    for (ssize_t i = 0; i < got; i++) {
        if (is_ours(w, entry[i].op_context)) {
            ended(w, entry[i].op_context);
            w->wrote = true;
            w->written++;
        } else if (entry[i].flags & FI_REMOTE_CQ_DATA) {
            events[n] = event_of(w, FT_FABRIC_ARRIVED);
            events[n++].immediate = (uint32_t)entry[i].data;
        } else {
            w->base.fabric->strays++;
        }
    }
    return got > 0 || got == -FI_EAVAIL ? n : -1;
}

static int report_written(struct ofi_way *w, struct ft_fabric_event *event)
{
    if (!w->written)
        return 0;
    *event = event_of(w, FT_FABRIC_WRITTEN);
    event->count = w->written;
    w->written = 0;
    return 1;
}

static int report_failed(struct ofi_way *w, struct ft_fabric_event *event)
{
    if (!w->failed || w->told || w->stopping)
        return 0;
    w->told = true;
    *event = event_of(w, FT_FABRIC_FAILED);
    event->status = FT_LINK;
    event->text = w->why;
    return 1;
}

/* Closes the endpoint; then what has arrived is taken, and nothing more comes. */
static int stop_now(struct ofi_way *w, struct ft_fabric_event *events, int max)
{
    int n = 0, got = 0;
    for (int i = 0; i < LAST_READS && got >= 0 && max - n > 1; i++) {
        got = read_queue(w, events + n, max - n - 1);
        n += got > 0 ? got : 0;
    }
    if (got >= 0 && w->ep && max - n <= 1)
        return n; /* the caller has no room for the rest now */
    if (w->ep) {
        (void)close_endpoint(w); /* the next turn tries again if it stays open */
        return n;
    }
    if (got >= 0)
        return n;
    w->stopped = true;
    w->written = 0;
    events[n++] = event_of(w, FT_FABRIC_STOPPED);
    return n;
}

static void check_dial(struct ofi_way *w)
{
    if (!w->wrote && ft_now_ns(w->ofi->config.env) - w->stuck_ns > OFI_DIAL_NS)
        fail(w, "is not through", FI_ETIMEDOUT);
}

int ofi_way_poll(struct ofi_way *w, struct ft_fabric_event *events, int max)
{
    if (w->stopped || max < 4)
        return 0;
    if (w->stopping)
        return stop_now(w, events, max);
    int n = read_queue(w, events, max - 2);
    n = n > 0 ? n : 0;
    if (w->stuck_ns)
        check_dial(w);
    n += report_written(w, events + n);
    n += report_failed(w, events + n);
    return n;
}

void ofi_way_stop(struct ft_fabric_way *way)
{
    of(way)->stopping = true;
}

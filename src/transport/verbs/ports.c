/*
 * Opens devices and ports: what there is, which of them are chosen, and what a port is now.
 */
#include "transport/verbs/verbs.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/resource.h>

static unsigned mtu_of(enum ibv_mtu mtu)
{
    return mtu >= IBV_MTU_256 && mtu <= IBV_MTU_4096 ? 128u << mtu : 1024;
}

int verbs_gid_table_read(const struct verbs_lib *lib, struct ibv_context *context, unsigned port,
                         unsigned length, struct verbs_gid_table *out)
{
    out->count = 0;
    out->length = length;
    for (unsigned i = 0; i < length && i < VERBS_GIDS_MAX; i++) {
        struct ibv_gid_entry *entry = &out->entry[out->count];
        memset(entry, 0, sizeof *entry);
        if (lib->query_gid_ex(context, port, i, entry, 0, sizeof *entry) == 0)
            out->count++;
    }
    return (int)out->count;
}

static int choose_gid(struct verbs_fabric *f, struct verbs_port *port, unsigned length)
{
    struct verbs_gid_table table = {.port = port->name, .link_layer = port->link_layer};
    const struct ibv_gid_entry *chosen;
    verbs_gid_table_read(f->lib, port->device->context, port->number, length, &table);
    int rc = verbs_gid_choose(&table, &f->options, &chosen);
    if (rc)
        return rc;
    port->gid = chosen->gid;
    port->gid_index = chosen->gid_index;
    return FT_OK;
}

int verbs_port_query(struct verbs_fabric *f, struct verbs_port *port)
{
    struct ibv_port_attr attr;
    memset(&attr, 0, sizeof attr);
    port->up = false;
    int error = f->lib->query_port(port->device->context, port->number, &attr);
    if (error)
        return ft_fail(FT_SYSTEM, "cannot query port %s: %s", port->name, strerror(error));
    if (attr.state != IBV_PORT_ACTIVE)
        return ft_fail(FT_LINK, "port %s is not active", port->name);
    port->link_layer = attr.link_layer == IBV_LINK_LAYER_ETHERNET ? IBV_LINK_LAYER_ETHERNET
                                                                  : IBV_LINK_LAYER_INFINIBAND;
    port->lid = attr.lid;
    port->mtu_bytes = mtu_of(attr.active_mtu);
    if (f->options.mtu_bytes && f->options.mtu_bytes < port->mtu_bytes)
        port->mtu_bytes = f->options.mtu_bytes;
    int rc = choose_gid(f, port, (unsigned)attr.gid_tbl_len);
    port->up = rc == FT_OK;
    return rc;
}

int verbs_fail_pinning(const struct verbs_fabric *f, const char *device, size_t len_bytes,
                       int error)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_MEMLOCK, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY ||
        (error != ENOMEM && error != EAGAIN))
        return ft_fail(error == ENOMEM ? FT_NOMEM : FT_NOTSUP,
                       "%s cannot register %zu bytes of memory: %s", device, len_bytes,
                       strerror(error));
    const uint64_t needed = f->pinned_bytes + len_bytes + VERBS_PROBE_BYTES;
    return ft_fail(FT_NOMEM,
                   "%s cannot register %zu bytes of memory: the limit on locked memory is %llu KiB "
                   "(ulimit -l), and %llu KiB or unlimited is needed",
                   device, len_bytes, (unsigned long long)limit.rlim_cur / 1024,
                   (unsigned long long)needed / 1024);
}

/* ---- devices --------------------------------------------------------------------------------- */

/* The longest payload that goes into a request itself. It is known when a queue pair is made. */
static size_t probe_inline(struct verbs_fabric *f, struct verbs_device *d)
{
    struct ibv_qp_init_attr attr = {.qp_type = IBV_QPT_RC};
    struct ibv_cq *cq = f->lib->create_cq(d->context, 2, NULL, NULL, 0);
    size_t bytes = 0;
    if (!cq)
        return 0;
    attr.send_cq = attr.recv_cq = cq;
    attr.cap = (struct ibv_qp_cap){1, 1, FT_FABRIC_PIECES, 1, FT_CACHE_LINE};
    struct ibv_qp *qp = f->lib->create_qp(d->pd, &attr);
    if (qp) {
        bytes = attr.cap.max_inline_data < FT_CACHE_LINE ? 0 : FT_CACHE_LINE;
        f->lib->destroy_qp(qp);
    }
    f->lib->destroy_cq(cq);
    return bytes;
}

static void read_limits(struct verbs_fabric *f, struct verbs_device *d)
{
    struct ibv_device_attr attr;
    memset(&attr, 0, sizeof attr);
    d->max_send = d->max_recv = 64;
    d->max_cqe = VERBS_CQ_WAYS * 128;
    if (f->lib->query_device(d->context, &attr) == 0) {
        const unsigned most = attr.max_qp_wr > 16 ? (unsigned)attr.max_qp_wr : 16;
        d->max_send = most - 1 < VERBS_SEND_DEPTH ? most - 1 : VERBS_SEND_DEPTH;
        d->max_recv = most < VERBS_RECV_DEPTH ? most : VERBS_RECV_DEPTH;
        d->max_cqe = attr.max_cqe > 0 ? (unsigned)attr.max_cqe : d->max_cqe;
    }
    d->inline_bytes = probe_inline(f, d);
}

static bool set_nonblocking(int fd)
{
    int flags = fcntl(fd, F_GETFL);
    return flags >= 0 && fcntl(fd, F_SETFL, flags | O_NONBLOCK) == 0;
}

static int fail_device(const struct verbs_device *d, const char *what)
{
    return ft_fail(ft_status_of_errno(errno) == FT_NOFILE ? FT_NOFILE : FT_NOTSUP,
                   "cannot make %s on RDMA device %s: %s", what, d->name, strerror(errno));
}

/* What a device needs besides its context. What was made is freed by verbs_ports_close(). */
static int fill_device(struct verbs_fabric *f, struct verbs_device *d)
{
    d->pd = f->lib->alloc_pd(d->context);
    if (!d->pd)
        return fail_device(d, "a protection domain");
    d->channel = f->lib->create_comp_channel(d->context);
    if (!d->channel)
        return fail_device(d, "a completion channel");
    if (!set_nonblocking(d->channel->fd) || !set_nonblocking(d->context->async_fd))
        return fail_device(d, "non-blocking descriptors");
    read_limits(f, d);
    return FT_OK;
}

static void close_device(struct verbs_fabric *f, struct verbs_device *d)
{
    if (d->channel)
        f->lib->destroy_comp_channel(d->channel);
    if (d->pd)
        f->lib->dealloc_pd(d->pd);
    if (d->context)
        f->lib->close_device(d->context);
    memset(d, 0, sizeof *d);
}

/* ---- what there is --------------------------------------------------------------------------- */

enum { SEEN_MAX = 64 };
struct seen {
    struct verbs_port_seen port[SEEN_MAX];
    int device[SEEN_MAX];
    struct ibv_context *context[SEEN_MAX]; /* by device */
    int count;
};

static void see_ports(const struct verbs_lib *lib, struct seen *s, int device, const char *name)
{
    struct ibv_device_attr attr;
    memset(&attr, 0, sizeof attr);
    if (lib->query_device(s->context[device], &attr) != 0)
        return;
    for (unsigned i = 1; i <= attr.phys_port_cnt && s->count < SEEN_MAX; i++) {
        struct verbs_port_seen *p = &s->port[s->count];
        struct ibv_port_attr port;
        memset(&port, 0, sizeof port);
        if (lib->query_port(s->context[device], (uint8_t)i, &port) != 0)
            continue;
        snprintf(p->device, sizeof p->device, "%s", name);
        p->number = i;
        p->active = port.state == IBV_PORT_ACTIVE;
        p->link_layer = port.link_layer;
        s->device[s->count++] = device;
    }
}

/* Opens all devices and looks at their ports. */
static void see_all(const struct verbs_lib *lib, struct seen *s)
{
    int n = 0;
    struct ibv_device **list = lib->get_device_list(&n);
    memset(s, 0, sizeof *s);
    for (int i = 0; list && i < n && i < SEEN_MAX; i++) {
        s->context[i] = lib->open_device(list[i]);
        if (s->context[i])
            see_ports(lib, s, i, lib->get_device_name(list[i]));
    }
    if (list)
        lib->free_device_list(list);
}

static void close_unused(const struct verbs_lib *lib, struct seen *s)
{
    for (int i = 0; i < SEEN_MAX; i++)
        if (s->context[i])
            lib->close_device(s->context[i]);
}

/* The number of the device in the fabric, which takes over its context. */
static int adopt_device(struct verbs_fabric *f, struct seen *s, int seen, int adopted[SEEN_MAX])
{
    const int device = s->device[seen];
    if (adopted[device])
        return adopted[device] - 1;
    struct verbs_device *d = &f->device[f->ndevices];
    d->context = s->context[device];
    s->context[device] = NULL;
    memcpy(d->name, s->port[seen].device, sizeof d->name);
    adopted[device] = (int)++f->ndevices;
    int rc = fill_device(f, d);
    return rc ? rc : adopted[device] - 1;
}

static int adopt_ports(struct verbs_fabric *f, struct seen *s, const int *chosen, int count)
{
    int adopted[SEEN_MAX] = {0}, rc = FT_OK;
    for (int i = 0; i < count; i++) {
        int device = adopt_device(f, s, chosen[i], adopted);
        if (device < 0)
            return device;
        struct verbs_port *port = &f->port[f->nports];
        const struct verbs_port_seen *seen = &s->port[chosen[i]];
        port->device = &f->device[device];
        port->device_index = (unsigned)device;
        port->number = (uint8_t)seen->number;
        snprintf(port->name, sizeof port->name, "%.*s:%u", VERBS_NAME_BYTES - 1, seen->device,
                 seen->number);
        int failed = verbs_port_query(f, port);
        if (failed == FT_INVAL)
            return failed;
        if (failed)
            rc = failed;
        else
            f->nports++;
    }
    return f->nports > 0 ? FT_OK : rc == FT_LINK ? FT_NOTSUP : rc;
}

int verbs_ports_open(struct verbs_fabric *f)
{
    struct seen s;
    int chosen[VERBS_PORTS_MAX];
    see_all(f->lib, &s);
    int n = verbs_hca_choose(f->options.hca, s.port, s.count, chosen, VERBS_PORTS_MAX);
    int rc = n < 0 ? n : adopt_ports(f, &s, chosen, n);
    close_unused(f->lib, &s);
    return rc;
}

void verbs_ports_close(struct verbs_fabric *f)
{
    for (unsigned i = 0; i < f->ndevices; i++)
        close_device(f, &f->device[i]);
    f->ndevices = f->nports = 0;
}

/* ---- for ftccl-info -------------------------------------------------------------------------- */

static void describe_port(const struct verbs_lib *lib, FILE *out, struct ibv_context *context,
                          const struct verbs_port_seen *seen, const struct verbs_options *options)
{
    struct ibv_port_attr attr;
    char name[VERBS_NAME_BYTES + 16], text[VERBS_GID_BYTES];
    snprintf(name, sizeof name, "%s:%u", seen->device, seen->number);
    struct verbs_gid_table table = {.port = name, .link_layer = seen->link_layer};
    const struct ibv_gid_entry *gid;
    const bool allowed = verbs_hca_place(options->hca, seen) >= 0;

    memset(&attr, 0, sizeof attr);
    if (lib->query_port(context, (uint8_t)seen->number, &attr) != 0)
        return;
    fprintf(out, "verbs: %s %s, %s, MTU %u", name,
            seen->link_layer == IBV_LINK_LAYER_ETHERNET ? "RoCE" : "InfiniBand",
            seen->active ? "active" : "not active", mtu_of(attr.active_mtu));
    verbs_gid_table_read(lib, context, seen->number, (unsigned)attr.gid_tbl_len, &table);
    if (!allowed)
        fprintf(out, ", not in FTCCL_IB_HCA\n");
    else if (verbs_gid_choose(&table, options, &gid) == FT_OK)
        fprintf(out, ", GID %u (%s)\n", gid->gid_index, verbs_gid_text(&gid->gid, text));
    else
        fprintf(out, ", cannot be used: %s\n", ft_fail_text());
}

void verbs_describe_with(const struct verbs_lib *lib, FILE *out)
{
    struct verbs_options options;
    struct seen s;
    if (verbs_options_read(&options)) {
        fprintf(out, "verbs: %s\n", ft_fail_text());
        return;
    }
    see_all(lib, &s);
    for (int i = 0; i < s.count; i++)
        describe_port(lib, out, s.context[s.device[i]], &s.port[i], &options);
    if (s.count == 0)
        fprintf(out, "verbs: libibverbs finds no RDMA port that can be opened\n");
    close_unused(lib, &s);
}

void verbs_describe(FILE *out)
{
    const struct verbs_lib *lib;
    if (verbs_load(&lib))
        fprintf(out, "verbs: %s\n", ft_fail_text());
    else
        verbs_describe_with(lib, out);
}

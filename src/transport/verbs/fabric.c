/*
 * The table of the fabric, its opening, and its memory. The transport's own table is at the end.
 */
#include "transport/verbs/verbs.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <unistd.h>

/* ---- memory ---------------------------------------------------------------------------------- */

static void deregister(struct verbs_region *r)
{
    struct verbs_fabric *f = verbs_fabric_of(r->base.fabric);
    for (unsigned i = 0; i < f->ndevices; i++)
        if (r->mr[i])
            f->lib->dereg_mr(r->mr[i]);
    pthread_mutex_lock(&f->lock);
    f->pinned_bytes -= r->base.len_bytes;
    pthread_mutex_unlock(&f->lock);
}

static void end_mapping(struct verbs_dead *dead)
{
    struct verbs_region *r = FT_CONTAINER(dead, struct verbs_region, dead);
    deregister(r);
    munmap(r->base.at, r->base.len_bytes);
    free(r);
}

/* A queue pair that is still being destroyed may hold up the deregistration of what it wrote. */
static void unreg(struct ft_fabric_region *region, bool unmap)
{
    struct verbs_region *r = FT_CONTAINER(region, struct verbs_region, base);
    struct verbs_fabric *f = verbs_fabric_of(region->fabric);
    r->dead.end = end_mapping;
    if (unmap && verbs_reaps(f)) {
        verbs_reap(f, &r->dead);
    } else if (unmap) {
        end_mapping(&r->dead);
    } else {
        deregister(r);
        free(r);
    }
}

static int reg(struct ft_fabric *fabric, void *at, size_t len_bytes, enum ft_fabric_access access,
               struct ft_fabric_region **out)
{
    struct verbs_fabric *f = verbs_fabric_of(fabric);
    struct verbs_region *r = calloc(1, sizeof *r);
    int flags = access == FT_FABRIC_REMOTE ? IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE : 0;
    if (!r)
        return ft_fail(FT_NOMEM, "no memory for a registered region");
    r->base = (struct ft_fabric_region){fabric, at, len_bytes};
    pthread_mutex_lock(&f->lock);
    f->pinned_bytes += len_bytes;
    pthread_mutex_unlock(&f->lock);
    for (unsigned i = 0; i < f->ndevices; i++) {
        r->mr[i] = f->lib->reg_mr(f->device[i].pd, at, len_bytes, flags);
        if (r->mr[i])
            continue;
        int rc = verbs_fail_pinning(f, f->device[i].name, len_bytes, errno);
        unreg(&r->base, false);
        return rc;
    }
    *out = &r->base;
    return FT_OK;
}

/* Whether enough memory for some links can be pinned: otherwise each of them would fail later. */
static int probe_memory(struct verbs_fabric *f)
{
    struct ft_fabric_region *region;
    void *memory = mmap(NULL, VERBS_PROBE_BYTES, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED)
        return ft_fail(FT_NOMEM, "no memory for an RDMA device");
    int rc = reg(&f->base, memory, VERBS_PROBE_BYTES, FT_FABRIC_REMOTE, &region);
    if (!rc)
        unreg(region, false);
    munmap(memory, VERBS_PROBE_BYTES);
    return rc == FT_NOMEM ? FT_NOTSUP : rc;
}

/* ---- opening --------------------------------------------------------------------------------- */

static int watch(struct verbs_fabric *f, int fd)
{
    struct epoll_event event = {.events = EPOLLIN};
    if (epoll_ctl(f->epoll_fd, EPOLL_CTL_ADD, fd, &event) != 0)
        return ft_fail(ft_status_of_errno(errno), "cannot watch an RDMA device: %s",
                       strerror(errno));
    return FT_OK;
}

static int watch_all(struct verbs_fabric *f)
{
    int rc = FT_OK;
    f->epoll_fd = ft_fd_own(epoll_create1(EPOLL_CLOEXEC));
    if (f->epoll_fd < 0)
        return ft_fail(ft_status_of_errno(errno), "cannot watch RDMA devices: %s", strerror(errno));
    for (unsigned i = 0; !rc && i < f->ndevices; i++) {
        rc = watch(f, f->device[i].channel->fd);
        if (!rc)
            rc = watch(f, f->device[i].context->async_fd);
    }
    return rc;
}

static void set_constants(struct verbs_fabric *f)
{
    const unsigned ways = f->nports * f->options.qps_per_port;
    f->base.ways = ways < FT_FABRIC_WAYS_MAX ? ways : FT_FABRIC_WAYS_MAX;
    f->base.inline_bytes = f->device[0].inline_bytes;
    for (unsigned i = 1; i < f->ndevices; i++)
        if (f->device[i].inline_bytes < f->base.inline_bytes)
            f->base.inline_bytes = f->device[i].inline_bytes;
}

static void close_fabric(struct ft_fabric *fabric)
{
    struct verbs_fabric *f = verbs_fabric_of(fabric);
    verbs_reaper_close(f);
    verbs_cqs_close(f);
    ft_fd_close(&f->epoll_fd);
    verbs_ports_close(f);
    pthread_cond_destroy(&f->reaped);
    pthread_cond_destroy(&f->reap);
    pthread_mutex_destroy(&f->lock);
    free(f);
}

static void log_ports(const struct verbs_fabric *f)
{
    char text[VERBS_GID_BYTES];
    for (unsigned i = 0; i < f->nports; i++)
        FT_LOG(INFO, "net", f->config.rank,
               "verbs: port %s, GID %u (%s), MTU %u, %u queue pairs a link, timeout %u, retries %u",
               f->port[i].name, f->port[i].gid_index, verbs_gid_text(&f->port[i].gid, text),
               f->port[i].mtu_bytes, f->options.qps_per_port, f->options.timeout,
               f->options.retries);
}

int verbs_fabric_open_with(const struct verbs_lib *lib, const struct ft_fabric_config *config,
                           struct ft_fabric **out)
{
    struct verbs_options options;
    int rc = verbs_options_read(&options);
    if (rc)
        return rc;
    struct verbs_fabric *f = calloc(1, sizeof *f);
    if (!f)
        return ft_fail(FT_NOMEM, "no memory for the RDMA devices");
    f->base.ops = &verbs_fabric_ops;
    f->lib = lib;
    f->config = *config;
    f->options = options;
    f->epoll_fd = -1;
    f->news_end = &f->news;
    f->dead_end = &f->dead;
    pthread_mutex_init(&f->lock, NULL);
    pthread_cond_init(&f->reap, NULL);
    pthread_cond_init(&f->reaped, NULL);
    rc = verbs_ports_open(f);
    if (!rc)
        rc = watch_all(f);
    if (!rc)
        rc = probe_memory(f);
    if (rc) {
        close_fabric(&f->base);
        return rc;
    }
    set_constants(f);
    log_ports(f);
    *out = &f->base;
    return FT_OK;
}

static int open_fabric(const struct ft_fabric_config *config, struct ft_fabric **out)
{
    const struct verbs_lib *lib;
    if (ft_param_int(FT_PARAM_IB_DISABLE))
        return ft_fail(FT_NOTSUP, "FTCCL_IB_DISABLE is 1");
    int rc = verbs_load(&lib);
    return rc ? rc : verbs_fabric_open_with(lib, config, out);
}

/* ---- who can be reached ---------------------------------------------------------------------- */

/* Kinds of the ports: one byte each, in the order of the ways. Whether two addresses have a route
 * between them only the kernel knows; way_connect asks it. */
static size_t hint(struct ft_fabric *fabric, void *buf)
{
    struct verbs_fabric *f = verbs_fabric_of(fabric);
    unsigned char *bytes = buf;
    for (unsigned i = 0; i < f->nports; i++)
        bytes[i] = f->port[i].link_layer;
    return f->nports;
}

static bool reaches(struct ft_fabric *fabric, const void *hint_bytes, size_t len_bytes)
{
    struct verbs_fabric *f = verbs_fabric_of(fabric);
    const unsigned char *bytes = hint_bytes;
    if (len_bytes == 0)
        return false;
    for (unsigned i = 0; i < f->nports; i++)
        if (bytes[i % len_bytes] == f->port[i].link_layer)
            return true;
    return false;
}

const struct ft_fabric_ops verbs_fabric_ops = {
    .name = "verbs",
    .open = open_fabric,
    .close = close_fabric,
    .hint = hint,
    .reaches = reaches,
    .reg = reg,
    .unreg = unreg,
    .way_open = verbs_way_open,
    .way_info = verbs_way_info,
    .way_connect = verbs_way_connect,
    .write = verbs_way_write,
    .way_stop = verbs_way_stop,
    .way_close = verbs_way_close,
    .way_describe = verbs_way_describe,
    .poll = verbs_poll,
    .fd = verbs_fd,
    .arm = verbs_arm,
    .describe = verbs_describe,
};

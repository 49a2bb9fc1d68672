/*
 * The fabric over libfabric: its domain, its memory, and the turn over its ways. All ways of a
 * domain make progress when one of their queues is read, so with many ways not all are read in each
 * turn.
 */
#include "transport/ofi/ofi.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>

#define QUEUES 8 /* most completion queues that are read in one turn */

static struct ofi *of(struct ft_fabric *f)
{
    return FT_CONTAINER(f, struct ofi, base);
}

static int failed(const struct ofi *o, const char *call, int rc)
{
    return ft_fail(FT_NOTSUP, "%s of provider %s: %s", call, o->info->fabric_attr->prov_name,
                   o->library->strerror(-rc));
}

static void ofi_close(struct ft_fabric *f)
{
    struct ofi *o = of(f);
    if (o->domain)
        (void)fi_close(&o->domain->fid);
    if (o->fabric)
        (void)fi_close(&o->fabric->fid);
    if (o->info)
        o->library->freeinfo(o->info);
    ft_fd_close(&o->epoll_fd);
    free(o);
}

/* Whether completion queues have descriptors to wait for. */
static bool has_descriptors(struct ofi *o)
{
    struct fi_cq_attr attr = {.size = 8, .format = FI_CQ_FORMAT_DATA, .wait_obj = FI_WAIT_FD};
    struct fid_cq *cq;
    if (fi_cq_open(o->domain, &attr, &cq, NULL))
        return false;
    int fd = -1;
    const bool has = fi_control(&cq->fid, FI_GETWAIT, &fd) == 0 && fd >= 0;
    (void)fi_close(&cq->fid);
    return has;
}

static int open_domain(struct ofi *o)
{
    int rc = o->library->fabric(o->info->fabric_attr, &o->fabric, NULL);
    if (rc)
        return failed(o, "fi_fabric", rc);
    rc = fi_domain(o->fabric, o->info, &o->domain, NULL);
    if (rc)
        return failed(o, "fi_domain", rc);
    o->base.ways = 1;
    o->base.inline_bytes = o->info->tx_attr->inject_size;
    o->base.counts_all = true;
    o->epoll_fd = -1;
    if (!has_descriptors(o)) {
        o->base.look_ns = OFI_LOOK_NS;
        return FT_OK;
    }
    o->epoll_fd = ft_fd_own(epoll_create1(EPOLL_CLOEXEC));
    return o->epoll_fd >= 0 ? FT_OK
                            : ft_fail(ft_status_of_errno(errno),
                                      "cannot make an epoll descriptor: %s", strerror(errno));
}

static int open_fabric(const struct ft_fabric_config *config, bool unasked, struct ft_fabric **out);
static const struct ft_fabric_ops any_ops;

static int open_any(const struct ft_fabric_config *config, struct ft_fabric **out)
{
    return open_fabric(config, false, out);
}
static int open_careful(const struct ft_fabric_config *config, struct ft_fabric **out)
{
    return open_fabric(config, !*ft_param_str(FT_PARAM_OFI_PROVIDER), out);
}

static int open_fabric(const struct ft_fabric_config *config, bool unasked, struct ft_fabric **out)
{
    struct ofi *o = calloc(1, sizeof *o);
    if (!o)
        return ft_fail(FT_NOMEM, "no memory for a fabric");
    o->base.ops = &any_ops;
    o->config = *config;
    o->epoll_fd = -1;
    int rc = ofi_choose(unasked, &o->library, &o->info);
    if (rc == FT_OK)
        rc = open_domain(o);
    if (rc) {
        ofi_close(&o->base);
        return rc;
    }
    ofi_warn(o->info->fabric_attr->prov_name, config->rank);
    FT_LOG(INFO, "net", config->rank, "ofi uses provider %s on %s", o->info->fabric_attr->prov_name,
           o->info->domain_attr->name);
    *out = &o->base;
    return FT_OK;
}

/* ---- hints ----------------------------------------------------------------------------------- */

/* The provider's name, and for shared memory the host. */
static size_t ofi_hint(struct ft_fabric *f, void *buf)
{
    struct ofi *o = of(f);
    const uint64_t host = strcmp(o->info->fabric_attr->prov_name, "shm") == 0 ? ft_host_id() : 0;
    char name[OFI_PROVIDER_BYTES] = {0};
    snprintf(name, sizeof name, "%s", o->info->fabric_attr->prov_name);
    memcpy(buf, name, sizeof name);
    memcpy((char *)buf + sizeof name, &host, sizeof host);
    return sizeof name + sizeof host;
}
_Static_assert(OFI_PROVIDER_BYTES + sizeof(uint64_t) <= FT_FABRIC_HINT_BYTES, "a hint");

static bool ofi_reaches(struct ft_fabric *f, const void *hint, size_t len_bytes)
{
    unsigned char mine[FT_FABRIC_HINT_BYTES];
    const size_t len = ofi_hint(f, mine);
    return len == len_bytes && memcmp(mine, hint, len) == 0;
}

/* ---- memory ---------------------------------------------------------------------------------- */

/* A key that nobody guesses, if the provider lets us choose it. */
static uint64_t some_key(const struct ofi *o)
{
    const size_t bytes = ft_min(o->info->domain_attr->mr_key_size, sizeof(uint64_t));
    uint64_t key = 0;
    o->config.env->random(o->config.env, &key, bytes);
    return key;
}

static int ofi_reg(struct ft_fabric *f, void *at, size_t len_bytes, enum ft_fabric_access access,
                   struct ft_fabric_region **out)
{
    struct ofi *o = of(f);
    const uint64_t rights = access == FT_FABRIC_REMOTE ? FI_REMOTE_WRITE : FI_WRITE;
    struct ofi_region *r = calloc(1, sizeof *r);
    if (!r)
        return ft_fail(FT_NOMEM, "no memory for a region");
    int rc = -FI_ENOKEY;
    for (int i = 0; i < 8 && rc == -FI_ENOKEY; i++)
        rc = fi_mr_reg(o->domain, at, len_bytes, rights, 0, some_key(o), 0, &r->mr, NULL);
    if (rc) {
        free(r);
        return ft_fail(FT_NOMEM,
                       "provider %s cannot register %zu bytes: %s (ulimit -l must allow it)",
                       o->info->fabric_attr->prov_name, len_bytes, o->library->strerror(-rc));
    }
    r->base = (struct ft_fabric_region){f, at, len_bytes};
    r->desc = fi_mr_desc(r->mr);
    *out = &r->base;
    return FT_OK;
}

static void ofi_unreg(struct ft_fabric_region *region, bool unmap)
{
    struct ofi_region *r = FT_CONTAINER(region, struct ofi_region, base);
    (void)fi_close(&r->mr->fid);
    if (unmap)
        ft_unmap(region->at, region->len_bytes);
    free(r);
}

/* ---- turns ----------------------------------------------------------------------------------- */

static int ofi_poll(struct ft_fabric *f, struct ft_fabric_event *events, int max, bool *busy)
{
    struct ofi *o = of(f);
    int n = 0;
    for (unsigned i = 0; i < QUEUES && i < o->nways && n < max; i++) {
        struct ofi_way *w = o->first ? o->first : o->ways;
        o->first = w->next;
        n += ofi_way_poll(w, events + n, max - n);
    }
    if (n > 0)
        *busy = true;
    return n;
}

static int ofi_fd(struct ft_fabric *f)
{
    return of(f)->epoll_fd;
}

static bool ofi_arm(struct ft_fabric *f, bool on)
{
    struct ofi *o = of(f);
    for (struct ofi_way *w = o->ways; on && o->epoll_fd >= 0 && w; w = w->next) {
        struct fid *fid = w->cq ? &w->cq->fid : NULL;
        if (w->written || w->stopping || (w->failed && !w->told))
            return false;
        if (fid && fi_trywait(o->fabric, &fid, 1) != 0)
            return false;
    }
    return true;
}

static const struct ft_fabric_ops any_ops = {
    .name = "ofi",
    .open = open_any,
    .close = ofi_close,
    .hint = ofi_hint,
    .reaches = ofi_reaches,
    .reg = ofi_reg,
    .unreg = ofi_unreg,
    .way_open = ofi_way_open,
    .way_info = ofi_way_info,
    .way_connect = ofi_way_connect,
    .write = ofi_write,
    .way_stop = ofi_way_stop,
    .way_close = ofi_way_close,
    .way_describe = ofi_way_describe,
    .poll = ofi_poll,
    .fd = ofi_fd,
    .arm = ofi_arm,
    .describe = ofi_describe,
};

static int open_asked(const struct ft_transport_config *config, struct ft_transport **out)
{
    return ft_rma_open(&ft_transport_ofi, &any_ops, config, out);
}

static int open_unasked(const struct ft_transport_config *config, struct ft_transport **out)
{
    static const struct ft_fabric_ops careful_ops = {.name = "ofi", .open = open_careful};
    return ft_rma_open(&ft_transport_ofi, &careful_ops, config, out);
}

/* Without being asked, it is used only for devices that nothing else reaches. */
static const struct ft_transport_ops careful = {
    .name = "ofi",
    .nccl_name = "Libfabric",
    .caps = {.scope = FT_SCOPE_NETWORK, .rdma = true},
    .open = open_unasked,
    FT_RMA_TRANSPORT_OPS,
};
const struct ft_transport_ops ft_transport_ofi = {
    .name = "ofi",
    .nccl_name = "Libfabric",
    .caps = {.scope = FT_SCOPE_NETWORK, .rdma = true},
    .unasked = &careful,
    .open = open_asked,
    .describe = ofi_describe,
    FT_RMA_TRANSPORT_OPS,
};

/*
 * libfabric, loaded when it is used for the first time and never unloaded, and the choice of a
 * provider. A provider must offer reliable datagrams, writes into remote memory, and data of 4
 * bytes in the peer's completion. Structures are made by the library itself: those of later
 * versions are longer.
 */
#include "transport/ofi/ofi.h"

#include <dirent.h>
#include <dlfcn.h>
#include <pthread.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define LIBRARY "libfabric.so.1"
#define API FI_VERSION(1, 15)

static struct ofi_library library;
static pthread_mutex_t library_lock = PTHREAD_MUTEX_INITIALIZER;

/* Best first. */
static const struct provider {
    const char *name;
    const char *driver; /* of devices that only it reaches; then it is used unasked. NULL: none */
} providers[] = {
    {"efa", "efa"}, {"opx", "hfi1"}, {"verbs;ofi_rxm", NULL}, {"psm3", NULL},
    {"tcp", NULL},  {"net", NULL},   {"tcp;ofi_rxm", NULL},   {"net;ofi_rxm", NULL},
};

/* Providers that are used only if FTCCL_OFI_PROVIDER names them, and why. */
static const struct doubtful {
    const char *name, *why;
    bool never; /* not used even then */
} doubtful[] = {
    {"shm", "its links hang when a rank dies", false},
    {"udp;ofi_rxd", "it has no flow control", false},
    {"sockets", "it loses connections under load", true},
};

static bool find(const char *name, void *function, size_t len_bytes)
{
    void *symbol = dlsym(library.handle, name);
    memcpy(function, &symbol, len_bytes);
    return symbol != NULL;
}

static int load(void)
{
    if (library.handle)
        return FT_OK;
    library.handle = dlopen(LIBRARY, RTLD_NOW | RTLD_LOCAL);
    if (!library.handle)
        return ft_fail(FT_NOTSUP, "libfabric cannot be loaded: %s", dlerror());
    bool all = find("fi_getinfo", &library.getinfo, sizeof library.getinfo);
    all &= find("fi_freeinfo", &library.freeinfo, sizeof library.freeinfo);
    all &= find("fi_dupinfo", &library.dupinfo, sizeof library.dupinfo);
    all &= find("fi_fabric", &library.fabric, sizeof library.fabric);
    all &= find("fi_strerror", &library.strerror, sizeof library.strerror);
    all &= find("fi_version", &library.version, sizeof library.version);
    if (all)
        return FT_OK;
    dlclose(library.handle);
    library.handle = NULL;
    return ft_fail(FT_NOTSUP, "%s lacks functions of libfabric", LIBRARY);
}

static int load_once(void)
{
    pthread_mutex_lock(&library_lock);
    int rc = load();
    pthread_mutex_unlock(&library_lock);
    return rc;
}

static const struct doubtful *doubtful_named(const char *name)
{
    for (size_t i = 0; i < FT_ARRAY_LEN(doubtful); i++)
        if (!strcmp(doubtful[i].name, name))
            return &doubtful[i];
    return NULL;
}

static const struct provider *provider_named(const char *name)
{
    for (size_t i = 0; i < FT_ARRAY_LEN(providers); i++)
        if (!strcmp(providers[i].name, name))
            return &providers[i];
    return NULL;
}

/* All offers of all providers that have what it takes. */
static int get_offers(struct fi_info **out)
{
    struct fi_info *hints = library.dupinfo(NULL);
    if (!hints)
        return ft_fail(FT_NOMEM, "no memory for libfabric");
    hints->caps = FI_RMA | FI_WRITE | FI_REMOTE_WRITE;
    hints->mode = FI_CONTEXT | FI_CONTEXT2;
    hints->ep_attr->type = FI_EP_RDM;
    hints->domain_attr->mr_mode = FI_MR_LOCAL | FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY;
    hints->domain_attr->threading = FI_THREAD_DOMAIN;
    hints->domain_attr->control_progress = FI_PROGRESS_MANUAL;
    hints->domain_attr->data_progress = FI_PROGRESS_MANUAL;
    hints->domain_attr->resource_mgmt = FI_RM_ENABLED;
    hints->domain_attr->cq_data_size = sizeof(uint32_t);
    int rc = library.getinfo(API, NULL, NULL, 0, hints, out);
    library.freeinfo(hints);
    return rc ? ft_fail(FT_NOTSUP,
                        "libfabric %u.%u has no provider that writes into remote memory: "
                        "%s",
                        FI_MAJOR(library.version()), FI_MINOR(library.version()),
                        library.strerror(-rc))
              : FT_OK;
}

/* How good an offer is; less is better. An offer of an interface that FTCCL_SOCKET_IFNAME does not
 * allow is the worst; providers whose domains are no interfaces are not asked. */
static size_t rank_of(const struct fi_info *offer, const struct ft_net_address *nets, int nnets)
{
    const struct provider *p = provider_named(offer->fabric_attr->prov_name);
    const size_t provider = p ? (size_t)(p - providers) : FT_ARRAY_LEN(providers);
    size_t net = (size_t)FT_NET_ADDRESSES;
    for (int i = nnets - 1; i >= 0; i--)
        if (!strcmp(nets[i].name, offer->domain_attr->name) &&
            (nets[i].family == AF_INET) == (offer->addr_format == FI_SOCKADDR_IN))
            net = (size_t)i;
    return provider * (FT_NET_ADDRESSES + 1) + net;
}

static bool acceptable(const struct fi_info *offer, const char *wanted, bool unasked)
{
    const char *name = offer->fabric_attr->prov_name;
    const struct provider *p = provider_named(name);
    const struct doubtful *d = doubtful_named(name);
    if (*wanted)
        return !strcmp(wanted, name) && !(d && d->never);
    return p && (p->driver || !unasked);
}

static void name_all(const struct fi_info *offers, char *text, size_t capacity_bytes)
{
    const char *last = "";
    size_t used = 0;
    *text = '\0';
    for (const struct fi_info *o = offers; o && used < capacity_bytes; o = o->next) {
        if (strcmp(last, o->fabric_attr->prov_name) != 0 &&
            !strstr(text, o->fabric_attr->prov_name))
            used += (size_t)snprintf(text + used, capacity_bytes - used, "%s%s", used ? ", " : "",
                                     o->fabric_attr->prov_name);
        last = o->fabric_attr->prov_name;
    }
}

/* Why those that are offered are not used. */
static void name_doubts(const struct fi_info *offers, char *text, size_t capacity_bytes)
{
    size_t used = 0;
    *text = '\0';
    for (size_t i = 0; i < FT_ARRAY_LEN(doubtful); i++) {
        const struct fi_info *o = offers;
        while (o && strcmp(o->fabric_attr->prov_name, doubtful[i].name) != 0)
            o = o->next;
        if (o && used < capacity_bytes)
            used += (size_t)snprintf(text + used, capacity_bytes - used, "; %s: %s",
                                     doubtful[i].name, doubtful[i].why);
    }
}

static int none_fits(const struct fi_info *offers, const char *wanted, bool unasked)
{
    const struct doubtful *d = doubtful_named(wanted);
    char have[200], why[200];
    name_all(offers, have, sizeof have);
    if (d && d->never)
        return ft_fail(FT_INVAL, "FTCCL_OFI_PROVIDER is %s, which is refused: %s; there are %s",
                       wanted, d->why, have);
    if (*wanted)
        return ft_fail(FT_INVAL, "FTCCL_OFI_PROVIDER is %s; libfabric here has %s", wanted, have);
    if (unasked)
        return ft_fail(FT_NOTSUP,
                       "libfabric here has %s; name ofi in FTCCL_TRANSPORTS to use one of them",
                       have);
    name_doubts(offers, why, sizeof why);
    return ft_fail(FT_NOTSUP,
                   "libfabric here has only %s, which is not used unless FTCCL_OFI_PROVIDER names "
                   "it%s",
                   have, why);
}

/* Whether a device is one that only a provider reaches. */
static bool is_special(const char *device)
{
    char path[300], driver[256];
    snprintf(path, sizeof path, "/sys/class/infiniband/%s/device/driver", device);
    const ssize_t len = readlink(path, driver, sizeof driver - 1);
    driver[len > 0 ? len : 0] = '\0';
    const char *name = strrchr(driver, '/');
    for (size_t i = 0; name && i < FT_ARRAY_LEN(providers); i++)
        if (providers[i].driver && !strcmp(providers[i].driver, name + 1))
            return true;
    return false;
}

/* libfabric is not even loaded unasked on a host without such devices. */
static bool any_special(void)
{
    DIR *dir = opendir("/sys/class/infiniband");
    bool any = false;
    for (struct dirent *d; dir && !any && (d = readdir(dir));)
        any = is_special(d->d_name);
    if (dir)
        closedir(dir);
    return any;
}

int ofi_choose(bool unasked, const struct ofi_library **out_library, struct fi_info **out)
{
    const char *wanted = ft_param_str(FT_PARAM_OFI_PROVIDER);
    struct ft_net_address nets[FT_NET_ADDRESSES];
    struct fi_info *offers = NULL, *best = NULL;
    if (unasked && !any_special())
        return ft_fail(FT_NOTSUP,
                       "FTCCL_TRANSPORTS does not name ofi, and no device here needs it");
    int rc = load_once();
    if (rc == FT_OK)
        rc = get_offers(&offers);
    if (rc)
        return rc;
    const int nnets = ft_net_addresses(nets, FT_NET_ADDRESSES);
    for (struct fi_info *o = offers; o; o = o->next)
        if (acceptable(o, wanted, unasked) &&
            (!best || rank_of(o, nets, nnets) < rank_of(best, nets, nnets)))
            best = o;
    rc = best ? FT_OK : none_fits(offers, wanted, unasked);
    if (best && !(*out = library.dupinfo(best)))
        rc = ft_fail(FT_NOMEM, "no memory for libfabric");
    library.freeinfo(offers);
    *out_library = &library;
    return rc;
}

void ofi_warn(const char *provider, int rank)
{
    const struct doubtful *d = doubtful_named(provider);
    if (d)
        FT_LOG(WARN, "net", rank, "FTCCL_OFI_PROVIDER is %s, which is for trials only: %s",
               provider, d->why);
}

void ofi_describe(FILE *out)
{
    struct fi_info *offers = NULL;
    char have[200];
    if (load_once() != FT_OK || get_offers(&offers) != FT_OK) {
        fprintf(out, "  %s\n", ft_fail_text());
        return;
    }
    name_all(offers, have, sizeof have);
    fprintf(out, "  libfabric %u.%u with %s", FI_MAJOR(library.version()),
            FI_MINOR(library.version()), have);
    library.freeinfo(offers);
    struct fi_info *best = NULL;
    const struct ofi_library *unused;
    if (ofi_choose(false, &unused, &best) == FT_OK) {
        fprintf(out, "; used would be %s on %s\n", best->fabric_attr->prov_name,
                best->domain_attr->name);
        library.freeinfo(best);
    } else {
        fprintf(out, "; %s\n", ft_fail_text());
    }
}

/*
 * The transports of this build, and how one is chosen.
 */
#include "transport/transport.h"
#include "transport/pull.h"

#include <inttypes.h>
#include <string.h>
#include <strings.h>

/* Best first: an engine uses the first one that reaches a peer. */
static const struct ft_transport_ops *const known[] = {
    &ft_transport_inproc, &ft_transport_shm, &ft_transport_net, /* only if it is asked for */
#ifdef FT_HAVE_VERBS
    &ft_transport_verbs,
#endif
#ifdef FT_HAVE_LIBFABRIC
    &ft_transport_ofi,
#endif
    &ft_transport_tcp,
};

static const struct ft_transport_ops *find(const char *name, size_t len)
{
    for (size_t i = 0; i < FT_ARRAY_LEN(known); i++) {
        if (strlen(known[i]->name) == len && memcmp(known[i]->name, name, len) == 0)
            return known[i];
    }
    return NULL;
}

static int unknown(const char *name, size_t len)
{
    char have[128] = "";
    size_t used = 0;
    for (size_t i = 0; i < FT_ARRAY_LEN(known) && used < sizeof have; i++) {
        used += (size_t)snprintf(have + used, sizeof have - used, "%s%s", i ? ", " : "",
                                 known[i]->name);
    }
    return ft_fail(FT_INVAL, "FTCCL_TRANSPORTS names '%.*s', which is none of %s", (int)len, name,
                   have);
}

static bool among(const struct ft_transport_ops *const *list, int count,
                  const struct ft_transport_ops *ops)
{
    for (int i = 0; i < count; i++) {
        if (list[i] == ops)
            return true;
    }
    return false;
}

/* Code of a third party runs only if somebody asks for it. */
static bool is_default(const struct ft_transport_ops *ops)
{
    return ops != &ft_transport_net || ft_transport_net_is_asked_for();
}

int ft_transport_list(const char *list, const struct ft_transport_ops **out, int capacity)
{
    const struct ft_transport_ops *chosen[FT_ARRAY_LEN(known)];
    int n = 0;
    bool named = false;
    for (const char *p = list ? list : ""; *p;) {
        size_t len = strcspn(p, ", ");
        if (len) {
            const struct ft_transport_ops *ops = find(p, len);
            if (!ops)
                return unknown(p, len);
            if (!among(chosen, n, ops))
                chosen[n++] = ops;
            named = true;
        }
        p += len + strspn(p + len, ", ");
    }
    for (size_t i = 0; !named && i < FT_ARRAY_LEN(known); i++) {
        if (is_default(known[i]))
            chosen[n++] = known[i]->unasked ? known[i]->unasked : known[i];
    }
    if (n >= capacity)
        return ft_fail(FT_INVAL, "room for %d transports, %d are chosen", capacity - 1, n);
    if (*ft_param_str(FT_PARAM_FAULT)) {
        for (int i = 0; i < n; i++) {
            int rc = ft_transport_faulty(chosen[i], &chosen[i]);
            if (rc)
                return rc;
        }
    }
    memcpy(out, chosen, (size_t)n * sizeof chosen[0]);
    out[n] = NULL;
    return FT_OK;
}

bool ft_transport_is_network(const char *name)
{
    const struct ft_transport_ops *ops = find(name, strlen(name));
    return ops && ops->caps.scope == FT_SCOPE_NETWORK;
}

static bool is_called(const struct ft_transport_ops *ops, const char *name)
{
    const char *plugin = ops == &ft_transport_net ? ft_transport_net_name() : NULL;
    if (plugin && !strcasecmp(name, plugin))
        return true;
    return !strcmp(name, ops->name) || (ops->nccl_name && !strcasecmp(name, ops->nccl_name));
}

static int unknown_network(const char *name)
{
    char have[128] = "";
    size_t used = 0;
    for (size_t i = 0; i < FT_ARRAY_LEN(known) && used < sizeof have; i++) {
        const struct ft_transport_ops *ops = known[i];
        if (ops->caps.scope != FT_SCOPE_NETWORK)
            continue;
        used += (size_t)snprintf(have + used, sizeof have - used, "%s%s", used ? ", " : "",
                                 ops->name);
        if (ops->nccl_name && used < sizeof have)
            used += (size_t)snprintf(have + used, sizeof have - used, " (also called %s)",
                                     ops->nccl_name);
    }
    return ft_fail(FT_INVAL, "config.netName is %s; this build has %s", name, have);
}

int ft_transport_only_network(const char *name, char *out, size_t capacity_bytes)
{
    bool found = false;
    size_t used = 0;
    *out = '\0';
    for (size_t i = 0; i < FT_ARRAY_LEN(known); i++) {
        bool network = known[i]->caps.scope == FT_SCOPE_NETWORK;
        if (network && !is_called(known[i], name))
            continue;
        found |= network;
        used += (size_t)snprintf(out + used, capacity_bytes - used, "%s%s", used ? "," : "",
                                 known[i]->name);
        if (used >= capacity_bytes)
            return ft_fail(FT_INTERNAL, "no room for the names of transports");
    }
    return found ? FT_OK : unknown_network(name);
}

bool ft_transport_pulls(void)
{
    return ft_pull_usable();
}

bool ft_transport_pulls_slowly(void)
{
    return ft_pull_is_slow();
}

static void describe(FILE *out, const struct ft_transport_ops *ops)
{
    static const char *const reach[] = {[FT_SCOPE_NETWORK] = "hosts of a network",
                                        [FT_SCOPE_HOST] = "processes of one host",
                                        [FT_SCOPE_PROCESS] = "ranks of one process"};
    const struct ft_transport_caps *caps = &ops->caps;
    fprintf(out, "transport %s: joins %s%s%s%s\n", ops->name, reach[caps->scope],
            caps->rdma ? ", RDMA" : "", caps->pulls ? ", reads in the sender's memory" : "",
            caps->registers ? ", registers memory" : "");
    if (ops->describe)
        ops->describe(out);
}

void ft_transport_describe(FILE *out)
{
    fprintf(out, "transports:");
    for (size_t i = 0; i < FT_ARRAY_LEN(known); i++)
        fprintf(out, " %s", known[i]->name);
    fprintf(out, "\n");
    for (size_t i = 0; i < FT_ARRAY_LEN(known); i++)
        describe(out, known[i]);
    fprintf(out, "host: %016" PRIx64 " (peers with the same one use shared memory)\n",
            ft_host_id());
    ft_pull_describe(out);
    struct ft_net_address address[FT_NET_ADDRESSES];
    int n = ft_net_addresses(address, FT_NET_ADDRESSES);
    if (n < 0)
        fprintf(out, "network: %s\n", ft_fail_text());
    for (int i = 0; i < n; i++) {
        char text[FT_NET_TEXT_BYTES];
        fprintf(out, "network: %s %s%s\n", address[i].name, ft_net_text(&address[i], text),
                address[i].up ? "" : " (down)");
    }
}

/*
 * list.c: the transports that this build has, and the choice among them.
 */
#include "transport/transport.h"
#include "transport/pull.h"

#include <inttypes.h>
#include <string.h>

/* Best first: the first that reaches a peer is used. */
static const struct ft_transport_ops *const known[] = {
    &ft_transport_inproc,
    &ft_transport_shm,
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
    for (size_t i = 0; !named && i < FT_ARRAY_LEN(known); i++)
        chosen[n++] = known[i];
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

bool ft_transport_pulls(void)
{
    return ft_pull_usable();
}

bool ft_transport_pulls_slowly(void)
{
    return ft_pull_is_slow();
}

void ft_transport_describe(FILE *out)
{
    fprintf(out, "transports:");
    for (size_t i = 0; i < FT_ARRAY_LEN(known); i++)
        fprintf(out, " %s", known[i]->name);
    fprintf(out, "\nhost: %016" PRIx64 " (peers with the same one use shared memory)\n",
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

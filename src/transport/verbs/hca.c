/*
 * Which RDMA ports may be used, and the other parameters of this fabric, with NCCL's names.
 */
#include "transport/verbs/verbs.h"

#include <stdlib.h>
#include <string.h>

enum { FIRST_SOURCE_PORT = 0xc000, LAST_PORT = 0xffff };

static bool is_source_port(const char *text, long *out)
{
    char *end;
    *out = strtol(text, &end, 10);
    return end != text && (*end == '\0' || *end == ',') && *out >= FIRST_SOURCE_PORT &&
           *out <= LAST_PORT;
}

static int check_source_ports(const char *list)
{
    long port;
    for (const char *p = list; *p; p += strcspn(p, ","), p += *p == ',')
        if (!is_source_port(p, &port))
            return ft_fail(FT_INVAL,
                           "FTCCL_IB_SOURCE_PORTS is '%s', which is no list of UDP ports from %d "
                           "to %d",
                           list, FIRST_SOURCE_PORT, LAST_PORT);
    return FT_OK;
}

uint16_t verbs_source_port(const char *list, unsigned index)
{
    unsigned count = *list != '\0';
    long port = 0;
    for (const char *p = list; *p; p++)
        count += *p == ',' && p[1];
    if (count == 0)
        return 0;
    for (index %= count; index > 0; index--)
        list += strcspn(list, ",") + 1;
    return is_source_port(list, &port) ? (uint16_t)port : 0;
}

static int check_mtu(unsigned bytes)
{
    for (unsigned mtu = 256; mtu <= 4096; mtu *= 2)
        if (bytes == mtu || bytes == 0)
            return FT_OK;
    return ft_fail(FT_INVAL,
                   "FTCCL_IB_MTU is %u; it can be 256, 512, 1024, 2048, 4096, or 0 for "
                   "that of the ports",
                   bytes);
}

int verbs_options_read(struct verbs_options *out)
{
    struct verbs_options o = {
        .hca = ft_param_str(FT_PARAM_IB_HCA),
        .address_family = ft_param_str(FT_PARAM_IB_ADDR_FAMILY),
        .address_range = ft_param_str(FT_PARAM_IB_ADDR_RANGE),
        .source_ports = ft_param_str(FT_PARAM_IB_SOURCE_PORTS),
        .gid_index = (int)ft_param_int(FT_PARAM_IB_GID_INDEX),
        .roce_version = (unsigned)ft_param_int(FT_PARAM_IB_ROCE_VERSION_NUM),
        .traffic_class = (unsigned)ft_param_int(FT_PARAM_IB_TC),
        .service_level = (unsigned)ft_param_int(FT_PARAM_IB_SL),
        .timeout = (unsigned)ft_param_int(FT_PARAM_IB_TIMEOUT),
        .retries = (unsigned)ft_param_int(FT_PARAM_IB_RETRY_CNT),
        .pkey_index = (unsigned)ft_param_int(FT_PARAM_IB_PKEY),
        .mtu_bytes = (unsigned)ft_param_int(FT_PARAM_IB_MTU),
        .qps_per_port = (unsigned)ft_param_int(FT_PARAM_IB_QPS_PER_CONNECTION),
    };
    int rc = check_mtu(o.mtu_bytes);
    if (!rc)
        rc = check_source_ports(o.source_ports);
    if (rc)
        return rc;
    if (strcmp(o.address_family, "AF_INET") != 0 && strcmp(o.address_family, "AF_INET6") != 0)
        return ft_fail(FT_INVAL, "FTCCL_IB_ADDR_FAMILY is '%s'; it can be AF_INET or AF_INET6",
                       o.address_family);
    *out = o;
    return FT_OK;
}

/* Whether an entry "name" or "name:port" of len bytes means the port. */
static bool means(const char *entry, size_t len, bool exact, const struct verbs_port_seen *port)
{
    const char *colon = memchr(entry, ':', len);
    const size_t name_len = colon ? (size_t)(colon - entry) : len;
    if (colon && strtoul(colon + 1, NULL, 10) != port->number)
        return false;
    return name_len > 0 && strncmp(port->device, entry, name_len) == 0 &&
           (!exact || port->device[name_len] == '\0');
}

int verbs_hca_place(const char *list, const struct verbs_port_seen *port)
{
    const bool exclude = list[0] == '^';
    list += exclude;
    const bool exact = list[0] == '=';
    list += exact;
    int place = 0, found = -1;
    for (; *list; place++) {
        const size_t len = strcspn(list, ",");
        if (found < 0 && means(list, len, exact, port))
            found = place;
        list += len + (list[len] == ',');
    }
    if (place == 0)
        return 0;
    return exclude ? (found < 0 ? 0 : -1) : found;
}

static void list_ports(const struct verbs_port_seen *port, int count, char *out, size_t capacity)
{
    size_t used = 0;
    *out = '\0';
    for (int i = 0; i < count && used < capacity; i++)
        used += (size_t)snprintf(out + used, capacity - used, "%s%s:%u (%s, %s)", i ? ", " : "",
                                 port[i].device, port[i].number,
                                 port[i].link_layer == IBV_LINK_LAYER_ETHERNET ? "Ethernet"
                                                                               : "InfiniBand",
                                 port[i].active ? "active" : "not active");
}

static int fail_to_choose(const char *list, bool allowed, const struct verbs_port_seen *port,
                          int count)
{
    char have[512];
    if (count == 0)
        return ft_fail(FT_NOTSUP, "libibverbs finds no RDMA port that can be opened");
    list_ports(port, count, have, sizeof have);
    if (allowed)
        return ft_fail(FT_NOTSUP, "no RDMA port%s%s%s is active; there are: %s",
                       *list ? " that FTCCL_IB_HCA '" : "", list, *list ? "' allows" : "", have);
    return ft_fail(FT_INVAL, "FTCCL_IB_HCA '%s' leaves no RDMA port; there are: %s", list, have);
}

int verbs_hca_choose(const char *list, const struct verbs_port_seen *port, int count, int *out,
                     int capacity)
{
    int n = 0, most = 0;
    bool allowed = false;
    for (int i = 0; i < count; i++) {
        int place = verbs_hca_place(list, &port[i]);
        most = place > most ? place : most;
        allowed |= place >= 0;
    }
    for (int place = 0; place <= most; place++)
        for (int i = 0; i < count && n < capacity; i++)
            if (port[i].active && verbs_hca_place(list, &port[i]) == place)
                out[n++] = i;
    return n > 0 ? n : fail_to_choose(list, allowed, port, count);
}

/*
 * Which address (GID) of a port is used. On Ethernet a port has several: each IP address once as
 * RoCE v1, which no router passes on, and once as RoCE v2. Taking a wrong one shows only as
 * retries that nobody answers, so the choice is made here and said in the log.
 */
#include "transport/verbs/verbs.h"

#include <arpa/inet.h>
#include <stdlib.h>
#include <string.h>

static const unsigned char mapped[12] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};

bool verbs_gid_is_ipv4(const union ibv_gid *gid)
{
    return memcmp(gid->raw, mapped, sizeof mapped) == 0;
}

const char *verbs_gid_text(const union ibv_gid *gid, char buf[VERBS_GID_BYTES])
{
    const void *address = gid->raw;
    int family = AF_INET6;
    if (verbs_gid_is_ipv4(gid)) {
        address = gid->raw + sizeof mapped;
        family = AF_INET;
    }
    if (!inet_ntop(family, address, buf, VERBS_GID_BYTES))
        snprintf(buf, VERBS_GID_BYTES, "?");
    return buf;
}

static bool is_link_local(const union ibv_gid *gid)
{
    if (verbs_gid_is_ipv4(gid))
        return gid->raw[12] == 169 && gid->raw[13] == 254;
    return gid->raw[0] == 0xfe && (gid->raw[1] & 0xc0) == 0x80;
}

static bool is_zero(const union ibv_gid *gid)
{
    static const union ibv_gid zero;
    return memcmp(gid, &zero, sizeof zero) == 0;
}

static const char *kind(const struct ibv_gid_entry *entry)
{
    switch (entry->gid_type) {
    case IBV_GID_TYPE_IB:
        return "InfiniBand";
    case IBV_GID_TYPE_ROCE_V1:
        return "RoCE v1";
    case IBV_GID_TYPE_ROCE_V2:
        return "RoCE v2";
    default:
        return "unknown kind";
    }
}

static void list_gids(const struct verbs_gid_table *table, char *out, size_t capacity)
{
    size_t used = 0;
    char text[VERBS_GID_BYTES];
    snprintf(out, capacity, "none");
    for (unsigned i = 0; i < table->count && used < capacity; i++)
        used += (size_t)snprintf(out + used, capacity - used, "%s%u: %s (%s)", i ? ", " : "",
                                 table->entry[i].gid_index,
                                 verbs_gid_text(&table->entry[i].gid, text),
                                 kind(&table->entry[i]));
}

/* Whether the address lies in a range like 10.0.0.0/8. *ok: the range makes sense. */
static bool in_range(const union ibv_gid *gid, const char *range, bool *ok)
{
    char address[INET6_ADDRSTRLEN];
    unsigned char net[16];
    const size_t len = strcspn(range, "/");
    const bool v6 = strchr(range, ':') != NULL;
    const unsigned most = v6 ? 128 : 32;
    unsigned long bits = range[len] ? strtoul(range + len + 1, NULL, 10) : most;

    snprintf(address, sizeof address, "%.*s", (int)len, range);
    *ok = bits <= most && inet_pton(v6 ? AF_INET6 : AF_INET, address, net) == 1;
    if (!*ok || v6 == verbs_gid_is_ipv4(gid))
        return false;
    const unsigned char *own = gid->raw + (v6 ? 0 : sizeof mapped);
    for (unsigned i = 0; i < bits; i++)
        if ((own[i / 8] ^ net[i / 8]) & (0x80 >> i % 8))
            return false;
    return true;
}

static int by_index(const struct verbs_gid_table *table, const struct verbs_options *options,
                    const struct ibv_gid_entry **out)
{
    char have[512];
    for (unsigned i = 0; i < table->count; i++)
        if (table->entry[i].gid_index == (unsigned)options->gid_index &&
            !is_zero(&table->entry[i].gid)) {
            *out = &table->entry[i];
            return FT_OK;
        }
    list_gids(table, have, sizeof have);
    if ((unsigned)options->gid_index >= table->length)
        return ft_fail(FT_INVAL,
                       "FTCCL_IB_GID_INDEX is %d, but the GID table of %s has %u entries; there "
                       "are: %s",
                       options->gid_index, table->port, table->length, have);
    return ft_fail(FT_INVAL,
                   "FTCCL_IB_GID_INDEX is %d, but that entry of the GID table of %s is empty; "
                   "there are: %s",
                   options->gid_index, table->port, have);
}

/* -1: not allowed. A lower number is better. */
static int rank(const struct verbs_gid_table *table, const struct ibv_gid_entry *entry,
                const struct verbs_options *options)
{
    enum { V2 = IBV_GID_TYPE_ROCE_V2, V1 = IBV_GID_TYPE_ROCE_V1 };
    const bool ethernet = table->link_layer == IBV_LINK_LAYER_ETHERNET;
    bool ok;
    if (is_zero(&entry->gid))
        return -1;
    if (*options->address_range && !in_range(&entry->gid, options->address_range, &ok))
        return -1;
    if (!ethernet)
        return entry->gid_index == 0 ? 0 : 1;
    if (entry->gid_type != (options->roce_version == 1 ? V1 : V2))
        return -1;
    const bool v6 = strcmp(options->address_family, "AF_INET6") == 0;
    if (v6 == verbs_gid_is_ipv4(&entry->gid))
        return -1;
    return is_link_local(&entry->gid) ? 1 : 0;
}

int verbs_gid_choose(const struct verbs_gid_table *table, const struct verbs_options *options,
                     const struct ibv_gid_entry **out)
{
    static const union ibv_gid zero;
    char have[512];
    int best = -1;
    bool ok = true;
    if (*options->address_range && !in_range(&zero, options->address_range, &ok) && !ok)
        return ft_fail(FT_INVAL, "FTCCL_IB_ADDR_RANGE is '%s', which is no range like 10.0.0.0/8",
                       options->address_range);
    if (options->gid_index >= 0)
        return by_index(table, options, out);
    for (unsigned i = 0; i < table->count; i++) {
        int r = rank(table, &table->entry[i], options);
        if (r < 0 || (best >= 0 && r >= best))
            continue;
        best = r;
        *out = &table->entry[i];
    }
    if (best >= 0)
        return FT_OK;
    list_gids(table, have, sizeof have);
    return ft_fail(FT_NOTSUP, "%s has no RoCE v%u address of family %s%s%s; its GID table: %s",
                   table->port, options->roce_version, options->address_family,
                   *options->address_range ? " in " : "", options->address_range, have);
}

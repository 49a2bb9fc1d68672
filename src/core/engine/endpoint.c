/*
 * Endpoints: what a rank tells the others about itself at the bootstrap. The address of an endpoint
 * is a list of parts, each with a name and a length. Every transport has a part; other parts hold
 * facts about the rank.
 */
#include "core/engine/engine.h"

#include <string.h>

#define NAME_BYTES 8

/* An endpoint that came from an earlier grow still has the parts of that grow. */
static void remove_part(struct ft_endpoint *endpoint, const char *name)
{
    size_t len;
    const unsigned char *part = ft_endpoint_part(endpoint->address, endpoint->address_bytes, name,
                                                 &len);
    if (!part)
        return;
    size_t from = (size_t)(part - endpoint->address) - NAME_BYTES - 2,
           to = (size_t)(part - endpoint->address) + len;
    memmove(endpoint->address + from, endpoint->address + to, endpoint->address_bytes - to);
    endpoint->address_bytes -= (uint32_t)(to - from);
}

bool ft_endpoint_put(struct ft_endpoint *endpoint, const char *name, const void *data,
                     size_t len_bytes)
{
    remove_part(endpoint, name);
    unsigned char *at = endpoint->address + endpoint->address_bytes;
    if (sizeof endpoint->address - endpoint->address_bytes < NAME_BYTES + 2 + len_bytes)
        return false;
    uint16_t len = (uint16_t)len_bytes;
    memset(at, 0, NAME_BYTES);
    memcpy(at, name, strnlen(name, NAME_BYTES));
    memcpy(at + NAME_BYTES, &len, sizeof len);
    memcpy(at + NAME_BYTES + 2, data, len_bytes);
    endpoint->address_bytes += (uint32_t)(NAME_BYTES + 2 + len_bytes);
    return true;
}

const unsigned char *ft_endpoint_part(const unsigned char *endpoint, size_t endpoint_bytes,
                                      const char *name, size_t *len_bytes)
{
    for (size_t at = 0; at + NAME_BYTES + 2 <= endpoint_bytes;) {
        uint16_t len;
        memcpy(&len, endpoint + at + NAME_BYTES, sizeof len);
        if (at + NAME_BYTES + 2 + len > endpoint_bytes)
            return NULL;
        if (!strncmp((const char *)endpoint + at, name, NAME_BYTES)) {
            *len_bytes = len;
            return endpoint + at + NAME_BYTES + 2;
        }
        at += NAME_BYTES + 2 + (size_t)len;
    }
    return NULL;
}

const unsigned char *ft_peer_part(const struct ft_peer *peer, const char *name, size_t *len_bytes)
{
    *len_bytes = 0;
    if (!peer->address)
        return NULL;
    return ft_endpoint_part(peer->address, peer->address_bytes, name, len_bytes);
}

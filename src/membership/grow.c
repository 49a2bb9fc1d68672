/*
 * The root's side of a grow. Ranks that join an existing job find it by an id that contains the key
 * of the job's links. The root serves the id, supplies the endpoints of all survivors, and collects
 * the table when the joiners have come; it needs no connection for that. Invariant: whatever ends
 * an attempt, joiners learn it from the same gather.
 */
#include "membership/bootstrap.h"

#include <sodium.h>
#include <stdlib.h>
#include <string.h>

int ft_unique_id_grow(unsigned char bytes[FT_UNIQUE_ID_BYTES],
                      const unsigned char key[FT_SECRET_BYTES], int survivors, const void *owner)
{
    struct ft_id id = {.grow = true, .survivors = (uint32_t)survivors, .owner = owner};
    if (ft_forked())
        return ft_fail(FT_FORKED, "a unique id cannot be made in a child of fork");
    if (survivors < 1 || (uint32_t)survivors >= FT_RANKS_MAX)
        return ft_fail(FT_INVAL, "a communicator of %d ranks cannot grow (at most %u ranks)",
                       survivors, FT_RANKS_MAX);
    memcpy(id.secret, key, sizeof id.secret);
    ft_env_real()->random(ft_env_real(), &id.nonce, sizeof id.nonce);
    int status = ft_service_add(&id);
    if (status == FT_OK)
        ft_id_encode(bytes, &id);
    sodium_memzero(&id, sizeof id);
    return status;
}

bool ft_unique_id_is_grow(const unsigned char bytes[FT_UNIQUE_ID_BYTES])
{
    struct ft_id id;
    bool grow = ft_id_decode(&id, bytes) == FT_OK && id.grow;
    sodium_memzero(&id, sizeof id);
    return grow;
}

static int decode_grow(struct ft_id *id, const unsigned char bytes[FT_UNIQUE_ID_BYTES])
{
    int status = ft_forked() ? ft_fail(FT_FORKED, "a child of fork cannot grow a communicator")
                             : ft_id_decode(id, bytes);
    if (!status && !id->grow)
        status = ft_fail(FT_USAGE, "to grow a communicator takes a unique id of "
                                   "ftcclCommGetUniqueId: this one is for a new job");
    return status;
}

void ft_unique_id_withdraw(const unsigned char bytes[FT_UNIQUE_ID_BYTES], const char *why)
{
    struct ft_id id;
    if (decode_grow(&id, bytes) == FT_OK)
        ft_service_withdraw(id.nonce, why);
    sodium_memzero(&id, sizeof id);
}

void ft_unique_ids_withdraw(const void *owner, const char *why)
{
    if (!ft_forked())
        ft_service_withdraw_all(owner, why);
}

int ft_bootstrap_supply(const unsigned char bytes[FT_UNIQUE_ID_BYTES], int nranks,
                        const struct ft_endpoint *endpoints, int count)
{
    struct ft_id id;
    int status = decode_grow(&id, bytes);
    if (!status && (count < 1 || nranks <= count || (uint32_t)nranks > FT_RANKS_MAX))
        status = ft_fail(FT_INVAL, "%d ranks cannot grow to %d (at most %u ranks)", count, nranks,
                         FT_RANKS_MAX);
    for (int i = 0; !status && i < count; i++)
        if (endpoints[i].address_bytes > FT_ENDPOINT_BYTES)
            status = ft_fail(FT_INTERNAL, "an endpoint's addresses have %u bytes, at most %d fit",
                             endpoints[i].address_bytes, FT_ENDPOINT_BYTES);
    if (!status)
        status = ft_service_supply(id.nonce, (uint32_t)nranks, endpoints, (uint32_t)count);
    sodium_memzero(&id, sizeof id);
    return status;
}

/* The frame comes from this process's service, but its endpoints come from the joiners. */
static int read_table(const unsigned char *frame, const struct ft_id *id, struct ft_table *table)
{
    struct ft_table_reader r;
    enum ft_frame kind;
    uint32_t len;
    int status = ft_frame_decode(frame, &kind, &len);
    if (status)
        return status;
    memset(&r, 0, offsetof(struct ft_table_reader, buf));
    r.head.count = (uint32_t)table->nranks;
    r.endpoint = table->endpoint;
    r.left_bytes = len;
    const unsigned char *from = frame + FT_FRAME_BYTES;
    for (size_t got = 0; (status = ft_table_take(&r, got)) == FT_AGAIN; from += got) {
        got = ft_table_room(&r);
        memcpy(r.buf + r.have_bytes, from, got);
    }
    if (!status)
        ft_table_derive(table, id, &r.head.salt, 1);
    return status;
}

int ft_bootstrap_collect(const unsigned char bytes[FT_UNIQUE_ID_BYTES], uint64_t timeout_ns,
                         const atomic_int *cancel, struct ft_table **out)
{
    struct ft_id id;
    unsigned char *frame = NULL;
    struct ft_table *table = NULL;
    int status = decode_grow(&id, bytes);
    if (!status)
        status = ft_service_collect(id.nonce, timeout_ns, cancel, &frame);
    if (!status) {
        uint32_t nranks = ft_get32(frame + FT_FRAME_BYTES + 12);
        table = calloc(1, sizeof *table + nranks * sizeof table->endpoint[0]);
        if (table)
            table->nranks = (int)nranks;
        status = table ? read_table(frame, &id, table)
                       : ft_fail(FT_NOMEM, "no memory for a table of %u ranks", nranks);
    }
    free(frame);
    sodium_memzero(&id, sizeof id);
    if (status == FT_OK)
        *out = table;
    else
        free(table);
    return status;
}

/*
 * The formats of an agreement: see docs/membership.md. Little endian. Every length, rank and set is
 * checked before it is used. This file does no input or output; the fuzzer and the tests call its
 * decoders directly.
 */
#include "membership/agree.h"
#include "membership/bootstrap.h"

#include <stdlib.h>
#include <string.h>

static const unsigned char agree_magic[4] = {'F', 'T', 'a', 'g'};

bool ft_set_empty(const unsigned char *set, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++)
        if (set[i])
            return false;
    return true;
}

bool ft_set_within(const unsigned char *a, const unsigned char *b, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++)
        if (a[i] & ~b[i])
            return false;
    return true;
}

/* Checks that the set has no member beyond the last rank. */
static bool set_is_good(const unsigned char *set, int nranks)
{
    return nranks % 8 == 0 || !(set[nranks / 8] >> nranks % 8);
}

static int set_count(const unsigned char *set, int nranks)
{
    int n = 0;
    for (int r = 0; r < nranks; r++)
        n += ft_set_has(set, r);
    return n;
}

int ft_bytes_set(struct ft_bytes *b, const void *data, size_t len_bytes)
{
    unsigned char *copy = malloc(len_bytes > 0 ? len_bytes : 1);
    if (!copy)
        return FT_NOMEM;
    memcpy(copy, data, len_bytes);
    free(b->data);
    b->data = copy;
    b->len = len_bytes;
    return FT_OK;
}

#define KEY_BYTES 8

size_t ft_agree_head_bytes(int nranks)
{
    return FT_AGREE_HEAD_BYTES + 3 * ft_set_bytes(nranks);
}
size_t ft_contribution_bytes(int nranks)
{
    return FT_CONTRIBUTION_BYTES + ft_set_bytes(nranks);
}
static size_t rank_bytes(int nranks)
{
    return nranks <= 65536 ? 2 : 4;
}
size_t ft_value_bytes(int nranks)
{
    return FT_VALUE_BYTES + 2 * ft_set_bytes(nranks) +
           (rank_bytes(nranks) + KEY_BYTES) * (size_t)nranks;
}

size_t ft_agree_blob_room(const struct ft_agree_config *config)
{
    const int n = config->nranks;
    const size_t fixed = ft_agree_head_bytes(n) +
                         ft_max(ft_value_bytes(n), ft_contribution_bytes(n));
    return fixed < config->message_bytes ? config->message_bytes - fixed : 0;
}

/* ---- messages -------------------------------------------------------------------------------- */

static bool may_have(enum ft_agree_type type, enum ft_agree_body body)
{
    switch (type) {
    case FT_MSG_ENTER:
        return body == FT_BODY_CONTRIBUTION;
    case FT_MSG_PROMISE:
        return true;
    case FT_MSG_ACCEPT:
    case FT_MSG_DECIDE:
        return body == FT_BODY_VALUE;
    default:
        return body == FT_BODY_NONE;
    }
}

size_t ft_agree_encode(unsigned char *out, const struct ft_agree_config *config,
                       const struct ft_agree_msg *m)
{
    const size_t set = ft_set_bytes(config->nranks);
    unsigned char *p = out + FT_AGREE_HEAD_BYTES;
    memcpy(out, agree_magic, 4);
    out[4] = FT_WIRE_VERSION;
    out[5] = (unsigned char)m->type;
    out[6] = (unsigned char)m->body_kind;
    out[7] = (unsigned char)m->flags;
    ft_put64(out + 8, config->seed);
    ft_put32(out + 16, (uint32_t)config->nranks);
    ft_put32(out + 20, (uint32_t)m->body_bytes);
    ft_put64(out + 24, m->ballot);
    ft_put64(out + 32, m->accepted);
    memcpy(p, m->dead, set);
    memcpy(p + set, m->unreachable, set);
    memcpy(p + 2 * set, m->fenced, set);
    if (m->body_bytes > 0)
        memcpy(p + 3 * set, m->body, m->body_bytes);
    return FT_AGREE_HEAD_BYTES + 3 * set + m->body_bytes;
}

static int check_ballots(const struct ft_agree_msg *m, int nranks)
{
    if (m->ballot >= FT_BALLOT_MAX || m->accepted >= FT_BALLOT_MAX)
        return FT_PROTOCOL;
    if (ft_ballot_rank(m->ballot) >= nranks || ft_ballot_rank(m->accepted) >= nranks)
        return FT_PROTOCOL;
    const bool named = m->type == FT_MSG_PROMISE || m->type == FT_MSG_DECIDE;
    if (!named && m->accepted != 0)
        return FT_PROTOCOL;
    if (named && (m->accepted != 0) != (m->body_kind == FT_BODY_VALUE))
        return FT_PROTOCOL;
    if (m->type != FT_MSG_ENTER && m->type != FT_MSG_REFUSE && m->type != FT_MSG_DECIDE &&
        m->ballot == 0)
        return FT_PROTOCOL;
    return FT_OK;
}

int ft_agree_decode(const struct ft_agree_config *config, const void *data, size_t len_bytes,
                    struct ft_agree_msg *m)
{
    const unsigned char *in = data;
    const size_t set = ft_set_bytes(config->nranks), head = ft_agree_head_bytes(config->nranks);
    if (len_bytes < head || len_bytes > config->message_bytes || memcmp(in, agree_magic, 4) != 0)
        return FT_PROTOCOL;
    if (in[4] != FT_WIRE_VERSION || in[5] < FT_MSG_ENTER || in[5] >= FT_MSG_TYPES ||
        in[6] > FT_BODY_VALUE)
        return FT_PROTOCOL;
    if (ft_get64(in + 8) != config->seed || ft_get32(in + 16) != (uint32_t)config->nranks)
        return FT_PROTOCOL;
    *m = (struct ft_agree_msg){.type = (enum ft_agree_type)in[5],
                               .body_kind = (enum ft_agree_body)in[6],
                               .flags = in[7],
                               .ballot = ft_get64(in + 24),
                               .accepted = ft_get64(in + 32),
                               .dead = in + FT_AGREE_HEAD_BYTES,
                               .body = in + head,
                               .body_bytes = len_bytes - head};
    m->unreachable = m->dead + set;
    m->fenced = m->unreachable + set;
    if (ft_get32(in + 20) != m->body_bytes || !may_have(m->type, m->body_kind))
        return FT_PROTOCOL;
    for (int i = 0; i < 3; i++)
        if (!set_is_good(m->dead + (size_t)i * set, config->nranks))
            return FT_PROTOCOL;
    if (check_ballots(m, config->nranks) != FT_OK)
        return FT_PROTOCOL;
    struct ft_contribution c;
    if (m->body_kind == FT_BODY_CONTRIBUTION) {
        if (ft_contribution_decode(&c, config->nranks, m->body, m->body_bytes) != FT_OK)
            return FT_PROTOCOL;
        return c.blob_bytes <= ft_agree_blob_room(config) ? FT_OK : FT_PROTOCOL;
    }
    if (m->body_kind == FT_BODY_VALUE)
        return ft_value_check(config->nranks, m->body, m->body_bytes);
    return m->body_bytes == 0 ? FT_OK : FT_PROTOCOL;
}

/* ---- contributions --------------------------------------------------------------------------- */

size_t ft_contribution_encode(unsigned char *out, int nranks, const struct ft_agree_input *in)
{
    unsigned char *list = out + FT_CONTRIBUTION_BYTES;
    const size_t bytes = ft_contribution_bytes(nranks);
    memset(out, 0, bytes);
    out[0] = (unsigned char)in->kind;
    ft_put64(out + 8, in->flags);
    ft_put64(out + 16, in->last_op);
    ft_put64(out + 24, (uint64_t)in->key);
    for (int r = 0; in->exclude && in->kind != FT_AGREE_FLAGS && r < nranks; r++)
        if (in->exclude[r])
            ft_set_add(list, r);
    if (in->blob_bytes > 0)
        memcpy(out + bytes, in->blob, in->blob_bytes);
    return bytes + in->blob_bytes;
}

int ft_contribution_decode(struct ft_contribution *c, int nranks, const unsigned char *in,
                           size_t len_bytes)
{
    const size_t bytes = ft_contribution_bytes(nranks);
    if (len_bytes < bytes || in[0] < FT_AGREE_FLAGS || in[0] >= FT_AGREE_KINDS ||
        !ft_set_empty(in + 1, 7))
        return FT_PROTOCOL;
    *c = (struct ft_contribution){.kind = (enum ft_agree_kind)in[0],
                                  .flags = ft_get64(in + 8),
                                  .last_op = ft_get64(in + 16),
                                  .key = (int64_t)ft_get64(in + 24),
                                  .list = in + FT_CONTRIBUTION_BYTES,
                                  .blob = in + bytes,
                                  .blob_bytes = (uint32_t)(len_bytes - bytes)};
    if (!set_is_good(c->list, nranks))
        return FT_PROTOCOL;
    if (c->kind == FT_AGREE_FLAGS && !ft_set_empty(c->list, ft_set_bytes(nranks)))
        return FT_PROTOCOL;
    return FT_OK;
}

/* ---- values: fixed part, sets of the failed and the excluded, survivors in order, their keys, the
 * blob ---- */

static int get_rank(const unsigned char *p, size_t width)
{
    return width == 2 ? p[0] | p[1] << 8 : (int)(ft_get32(p) & INT32_MAX);
}

enum { VALUE_OK, VALUE_USAGE, VALUE_MIXED };

size_t ft_value_encode(unsigned char *out, int nranks, const struct ft_decision *d)
{
    const size_t set = ft_set_bytes(nranks), width = rank_bytes(nranks);
    unsigned char *failed = out + FT_VALUE_BYTES, *p = failed + 2 * set;
    memset(out, 0, ft_value_bytes(nranks));
    out[0] = d->status == FT_MIXED ? VALUE_MIXED : d->status == FT_OK ? VALUE_OK : VALUE_USAGE;
    out[1] = (unsigned char)d->kind;
    ft_put32(out + 4, (uint32_t)d->nsurvivors);
    ft_put64(out + 8, d->flags);
    ft_put64(out + 16, d->first_op);
    ft_put64(out + 24, d->last_op);
    ft_put64(out + 32, d->nonce);
    for (int r = 0; r < nranks; r++) {
        if (d->failed[r])
            ft_set_add(failed, r);
        if (d->excluded[r])
            ft_set_add(failed + set, r);
    }
    for (int i = 0; i < d->nsurvivors; i++, p += width)
        for (size_t k = 0; k < width; k++)
            p[k] = (unsigned char)((uint32_t)d->order[i] >> 8 * k);
    for (int i = 0; i < d->nsurvivors; i++, p += KEY_BYTES)
        ft_put64(p, (uint64_t)d->keys[i]);
    if (d->blob_bytes > 0)
        memcpy(p, d->blob, d->blob_bytes);
    return (size_t)(p - out) + d->blob_bytes;
}

int ft_value_check(int nranks, const unsigned char *in, size_t len_bytes)
{
    const size_t set = ft_set_bytes(nranks), width = rank_bytes(nranks);
    const unsigned char *failed = in + FT_VALUE_BYTES, *excluded = failed + set,
                        *order = excluded + set;
    if (len_bytes < FT_VALUE_BYTES + 2 * set || in[0] > VALUE_MIXED || in[2] || in[3])
        return FT_PROTOCOL;
    if (in[1] < FT_AGREE_FLAGS || in[1] >= FT_AGREE_KINDS)
        return FT_PROTOCOL;
    if (!set_is_good(failed, nranks) || !set_is_good(excluded, nranks) ||
        !ft_set_within(failed, excluded, set))
        return FT_PROTOCOL;
    const uint32_t nsurvivors = ft_get32(in + 4);
    if (nsurvivors == 0 || nsurvivors > (uint32_t)nranks)
        return FT_PROTOCOL;
    if (set_count(excluded, nranks) != nranks - (int)nsurvivors)
        return FT_PROTOCOL;
    if (len_bytes - FT_VALUE_BYTES - 2 * set < nsurvivors * (width + KEY_BYTES))
        return FT_PROTOCOL;
    unsigned char *seen = calloc(1, set);
    int status = seen ? FT_OK : FT_NOMEM;
    for (uint32_t i = 0; i < nsurvivors && status == FT_OK; i++) {
        const int r = get_rank(order + i * width, width);
        if (r >= nranks || ft_set_has(excluded, r) || ft_set_has(seen, r))
            status = FT_PROTOCOL;
        else
            ft_set_add(seen, r);
    }
    free(seen);
    return status;
}

struct ft_decision *ft_value_decode(int nranks, const unsigned char *in, size_t len_bytes)
{
    const size_t set = ft_set_bytes(nranks), width = rank_bytes(nranks), n = ft_get32(in + 4);
    const size_t fixed = FT_VALUE_BYTES + 2 * set + n * (width + KEY_BYTES);
    const unsigned char *failed_set = in + FT_VALUE_BYTES, *order_bytes = failed_set + 2 * set,
                        *key_bytes = order_bytes + n * width;
    struct ft_decision *d = calloc(1, sizeof *d + n * (sizeof(int64_t) + sizeof(int)) +
                                          2 * (size_t)nranks + (len_bytes - fixed));
    if (!d)
        return NULL;
    int64_t *keys = (int64_t *)(void *)(d + 1);
    int *order = (int *)(void *)(keys + n);
    unsigned char *failed = (unsigned char *)(order + n), *excluded = failed + nranks,
                  *blob = excluded + nranks;
    for (size_t i = 0; i < n; i++) {
        order[i] = get_rank(order_bytes + i * width, width);
        keys[i] = (int64_t)ft_get64(key_bytes + i * KEY_BYTES);
    }
    for (int r = 0; r < nranks; r++) {
        failed[r] = ft_set_has(failed_set, r);
        excluded[r] = ft_set_has(failed_set + set, r);
    }
    if (len_bytes > fixed)
        memcpy(blob, in + fixed, len_bytes - fixed);
    *d = (struct ft_decision){.status = in[0] == VALUE_MIXED ? FT_MIXED
                                        : in[0]              ? FT_USAGE
                                                             : FT_OK,
                              .kind = (enum ft_agree_kind)in[1],
                              .flags = ft_get64(in + 8),
                              .first_op = ft_get64(in + 16),
                              .last_op = ft_get64(in + 24),
                              .nonce = ft_get64(in + 32),
                              .failed = failed,
                              .excluded = excluded,
                              .nsurvivors = (int)n,
                              .order = order,
                              .keys = keys,
                              .blob = len_bytes > fixed ? blob : NULL,
                              .blob_bytes = (uint32_t)(len_bytes - fixed)};
    return d;
}

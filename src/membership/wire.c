/*
 * The formats of the bootstrap protocol: see docs/wire-protocol.md. Little endian. Every length and
 * count is checked before it is used. This file does no input or output; the fuzzer calls its
 * decoders directly.
 */
#include "membership/bootstrap.h"

#include <string.h>

static const unsigned char select_magic[4] = {'F', 'T', 'b', 's'};

void ft_block(uint32_t nranks, uint32_t nids, uint32_t index, uint32_t *first, uint32_t *count)
{
    uint32_t each = nranks / nids, more = nranks % nids;
    *first = index * each + (index < more ? index : more);
    *count = each + (index < more);
}

uint32_t ft_block_of(uint32_t nranks, uint32_t nids, uint32_t rank)
{
    uint32_t each = nranks / nids, more = nranks % nids;
    uint32_t in_larger = more * (each + 1);
    return rank < in_larger ? rank / (each + 1) : more + (rank - in_larger) / each;
}

void ft_select_encode(unsigned char out[FT_SELECT_BYTES], enum ft_answer answer, uint64_t nonce)
{
    memcpy(out, select_magic, 4);
    out[4] = FT_WIRE_VERSION;
    out[5] = (unsigned char)answer;
    out[6] = out[7] = 0;
    ft_put64(out + 8, nonce);
}

int ft_select_decode(const unsigned char in[FT_SELECT_BYTES], enum ft_answer *answer,
                     uint64_t *nonce)
{
    if (memcmp(in, select_magic, 4) != 0)
        return FT_PROTOCOL;
    if (in[4] != FT_WIRE_VERSION)
        return FT_VERSION;
    if (in[5] >= FT_ANSWERS || in[6] || in[7])
        return FT_PROTOCOL;
    *answer = (enum ft_answer)in[5];
    *nonce = ft_get64(in + 8);
    return FT_OK;
}

size_t ft_frame_encode(unsigned char out[FT_FRAME_BYTES], enum ft_frame kind, size_t len_bytes)
{
    ft_put32(out, (uint32_t)kind);
    ft_put32(out + 4, (uint32_t)len_bytes);
    return FT_FRAME_BYTES;
}

int ft_frame_decode(const unsigned char in[FT_FRAME_BYTES], enum ft_frame *kind,
                    uint32_t *len_bytes)
{
    static const struct {
        uint32_t least, most;
    } length[] = {
        [FT_FRAME_JOIN] = {FT_JOIN_FIXED_BYTES, FT_JOIN_WIRE_MAX},
        [FT_FRAME_JOINED] = {0, 0},
        [FT_FRAME_LEAVE] = {4, 4},
        [FT_FRAME_FAIL] = {4, FT_FAIL_WIRE_MAX},
        [FT_FRAME_TABLE] = {FT_TABLE_FIXED_BYTES, UINT32_MAX},
        [FT_FRAME_ACK] = {0, 0},
    };
    uint32_t what = ft_get32(in), len = ft_get32(in + 4);
    if (what < FT_FRAME_JOIN || what > FT_FRAME_ACK)
        return FT_PROTOCOL;
    if (len < length[what].least || len > length[what].most)
        return FT_PROTOCOL;
    *kind = (enum ft_frame)what;
    *len_bytes = len;
    return FT_OK;
}

size_t ft_endpoint_encode(unsigned char out[FT_ENDPOINT_WIRE_MAX],
                          const struct ft_endpoint *endpoint)
{
    size_t text = strnlen(endpoint->config_text, FT_ENDPOINT_TEXT_MAX);
    size_t address = ft_min(endpoint->address_bytes, FT_ENDPOINT_BYTES);
    ft_put64(out, endpoint->engine);
    ft_put64(out + 8, endpoint->host);
    ft_put64(out + 16, endpoint->config);
    ft_put32(out + 24, (uint32_t)text);
    ft_put32(out + 28, (uint32_t)address);
    memcpy(out + FT_ENDPOINT_FIXED_BYTES, endpoint->config_text, text);
    memcpy(out + FT_ENDPOINT_FIXED_BYTES + text, endpoint->address, address);
    return FT_ENDPOINT_FIXED_BYTES + text + address;
}

/* Copies text that may reach a log or a terminal, without control characters. */
static void copy_text(char *to, const unsigned char *from, size_t len_bytes)
{
    for (size_t i = 0; i < len_bytes; i++)
        to[i] = from[i] < ' ' || from[i] == 127 ? '?' : (char)from[i];
    to[len_bytes] = '\0';
}

int ft_endpoint_decode(const unsigned char *in, size_t len_bytes, struct ft_endpoint *endpoint)
{
    if (len_bytes < FT_ENDPOINT_FIXED_BYTES)
        return 0;
    uint32_t text = ft_get32(in + 24), address = ft_get32(in + 28);
    if (text > FT_ENDPOINT_TEXT_MAX || address > FT_ENDPOINT_BYTES)
        return FT_PROTOCOL;
    if (len_bytes < FT_ENDPOINT_FIXED_BYTES + text + address)
        return 0;
    memset(endpoint, 0, sizeof *endpoint);
    endpoint->engine = ft_get64(in);
    endpoint->host = ft_get64(in + 8);
    endpoint->config = ft_get64(in + 16);
    copy_text(endpoint->config_text, in + FT_ENDPOINT_FIXED_BYTES, text);
    endpoint->address_bytes = address;
    memcpy(endpoint->address, in + FT_ENDPOINT_FIXED_BYTES + text, address);
    return (int)(FT_ENDPOINT_FIXED_BYTES + text + address);
}

size_t ft_join_encode(unsigned char out[FT_FRAME_BYTES + FT_JOIN_WIRE_MAX],
                      const struct ft_join_msg *msg)
{
    unsigned char *p = out + FT_FRAME_BYTES;
    ft_put64(p, msg->nonce);
    ft_put32(p + 8, msg->nranks);
    ft_put32(p + 12, msg->rank);
    ft_put32(p + 16, msg->nids);
    ft_put32(p + 20, msg->index);
    ft_put32(p + 24, msg->left_ms);
    ft_put32(p + 28, msg->bound_ms);
    size_t len = FT_JOIN_FIXED_BYTES;
    if (ft_block_of(msg->nranks, msg->nids, msg->rank) == msg->index)
        len += ft_endpoint_encode(p + len, &msg->endpoint);
    return ft_frame_encode(out, FT_FRAME_JOIN, len) + len;
}

int ft_join_decode(const unsigned char *in, size_t len_bytes, struct ft_join_msg *msg)
{
    if (len_bytes < FT_JOIN_FIXED_BYTES)
        return FT_PROTOCOL;
    msg->nonce = ft_get64(in);
    msg->nranks = ft_get32(in + 8);
    msg->rank = ft_get32(in + 12);
    msg->nids = ft_get32(in + 16);
    msg->index = ft_get32(in + 20);
    msg->left_ms = ft_get32(in + 24);
    msg->bound_ms = ft_get32(in + 28);
    if (msg->nranks < 1 || msg->nranks > FT_RANKS_MAX || msg->rank >= msg->nranks)
        return FT_PROTOCOL;
    if (msg->nids < 1 || msg->nids > msg->nranks || msg->index >= msg->nids)
        return FT_PROTOCOL;
    if (ft_block_of(msg->nranks, msg->nids, msg->rank) != msg->index)
        return len_bytes == FT_JOIN_FIXED_BYTES ? FT_OK : FT_PROTOCOL;
    size_t rest = len_bytes - FT_JOIN_FIXED_BYTES;
    int took = ft_endpoint_decode(in + FT_JOIN_FIXED_BYTES, rest, &msg->endpoint);
    return took > 0 && (size_t)took == rest ? FT_OK : FT_PROTOCOL;
}

size_t ft_fail_encode(unsigned char out[FT_FRAME_BYTES + FT_FAIL_WIRE_MAX], int status,
                      const char *text)
{
    size_t len = strnlen(text, FT_FAIL_TEXT_MAX);
    ft_put32(out + FT_FRAME_BYTES, (uint32_t)status);
    memcpy(out + FT_FRAME_BYTES + 4, text, len);
    return ft_frame_encode(out, FT_FRAME_FAIL, 4 + len) + 4 + len;
}

int ft_fail_decode(const unsigned char *in, size_t len_bytes, int *status,
                   char text[FT_FAIL_TEXT_MAX + 1])
{
    if (len_bytes < 4 || len_bytes > FT_FAIL_WIRE_MAX)
        return FT_PROTOCOL;
    int32_t value = (int32_t)ft_get32(in);
    if (value >= 0 || value < FT_FORKED)
        return FT_PROTOCOL;
    *status = value;
    copy_text(text, in + 4, len_bytes - 4);
    return FT_OK;
}

size_t ft_table_head_encode(unsigned char out[FT_TABLE_FIXED_BYTES],
                            const struct ft_table_head *head)
{
    ft_put64(out, head->salt);
    ft_put32(out + 8, head->first);
    ft_put32(out + 12, head->count);
    return FT_TABLE_FIXED_BYTES;
}

static int take_head(struct ft_table_reader *r)
{
    if (r->have_bytes < FT_TABLE_FIXED_BYTES)
        return 0;
    if (ft_get32(r->buf + 8) != r->head.first || ft_get32(r->buf + 12) != r->head.count)
        return FT_PROTOCOL;
    r->head.salt = ft_get64(r->buf);
    r->head_seen = true;
    return FT_TABLE_FIXED_BYTES;
}

int ft_table_take(struct ft_table_reader *r, size_t new_bytes)
{
    size_t at = 0;
    int took = 1;
    r->have_bytes += new_bytes;
    r->left_bytes -= new_bytes;
    while (took > 0 && (!r->head_seen || r->nendpoints < r->head.count)) {
        if (!r->head_seen) {
            took = take_head(r);
        } else {
            took = ft_endpoint_decode(r->buf + at, r->have_bytes - at, &r->endpoint[r->nendpoints]);
            r->nendpoints += took > 0;
        }
        if (took < 0)
            return FT_PROTOCOL;
        at += (size_t)took;
    }
    r->have_bytes -= at;
    memmove(r->buf, r->buf + at, r->have_bytes);
    if (took > 0)
        return r->have_bytes == 0 && r->left_bytes == 0 ? FT_OK : FT_PROTOCOL;
    return r->left_bytes > 0 ? FT_AGAIN : FT_PROTOCOL;
}

/*
 * card.c: what a rank tells the others of itself at the bootstrap. A card's address is a list of
 * parts, each with a name and a length: one for each transport, and facts.
 */
#include "core/core.h"

#include <string.h>

#define NAME_BYTES 8

/* A part that is there already goes: a card that came from an earlier grow has that one's facts. */
static void remove_part(struct ft_card *card, const char *name)
{
    size_t len;
    const unsigned char *part = ft_card_part(card->address, card->address_bytes, name, &len);
    if (!part)
        return;
    size_t from = (size_t)(part - card->address) - NAME_BYTES - 2,
           to = (size_t)(part - card->address) + len;
    memmove(card->address + from, card->address + to, card->address_bytes - to);
    card->address_bytes -= (uint32_t)(to - from);
}

bool ft_card_put(struct ft_card *card, const char *name, const void *data, size_t len_bytes)
{
    remove_part(card, name);
    unsigned char *at = card->address + card->address_bytes;
    if (sizeof card->address - card->address_bytes < NAME_BYTES + 2 + len_bytes)
        return false;
    uint16_t len = (uint16_t)len_bytes;
    memset(at, 0, NAME_BYTES);
    memcpy(at, name, strnlen(name, NAME_BYTES));
    memcpy(at + NAME_BYTES, &len, sizeof len);
    memcpy(at + NAME_BYTES + 2, data, len_bytes);
    card->address_bytes += (uint32_t)(NAME_BYTES + 2 + len_bytes);
    return true;
}

int ft_engine_card(struct ft_engine *engine, struct ft_card *card)
{
    memset(card, 0, sizeof *card);
    card->engine = engine->id;
    card->host = engine->host;
    struct ft_tuning same = engine->tuning;
    same.costs.cores_per_host = 0; /* hosts may differ: a communicator counts with the fewest */
    card->config = ft_tuning_digest(&same);
    snprintf(card->config_text, sizeof card->config_text,
             "chunk_bytes=%zu chunks=%d table=%08x algo=%.48s", same.chunk_bytes, same.chunks,
             (unsigned)ft_tuning_table_digest(&same), same.choice);
    if (!ft_cores_card(engine, card))
        return ft_fail(FT_INTERNAL, "processors do not fit a card");
    for (int i = 0; i < engine->ntransports; i++) {
        struct ft_transport *transport = engine->transports[i];
        unsigned char address[FT_ADDRESS_BYTES];
        int len = transport->ops->address(transport, address, sizeof address);
        if (len < 0)
            return len;
        if (!ft_card_put(card, transport->ops->name, address, (size_t)len))
            return ft_fail(FT_INTERNAL, "addresses do not fit a card");
    }
    return ft_lives_card(engine, card) && ft_near_card(engine, card)
               ? FT_OK
               : ft_fail(FT_INTERNAL, "a life page does not fit a card");
}

const unsigned char *ft_card_part(const unsigned char *card, size_t card_bytes, const char *name,
                                  size_t *len_bytes)
{
    for (size_t at = 0; at + NAME_BYTES + 2 <= card_bytes;) {
        uint16_t len;
        memcpy(&len, card + at + NAME_BYTES, sizeof len);
        if (at + NAME_BYTES + 2 + len > card_bytes)
            return NULL;
        if (!strncmp((const char *)card + at, name, NAME_BYTES)) {
            *len_bytes = len;
            return card + at + NAME_BYTES + 2;
        }
        at += NAME_BYTES + 2 + (size_t)len;
    }
    return NULL;
}

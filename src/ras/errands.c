/*
 * What other hosts ask: reads the files of this host once for all who ask meanwhile, and sends them
 * what they tell. A question names further hosts, which are asked from here; their answers are
 * passed on as they come.
 */
#include "ras/internal.h"

#include <stdlib.h>
#include <string.h>

#define REST 4 /* as many times as a look took the processor, the next one waits */
#define LEFT_MS_MAX 60000
#define BLOCKED_NS 2000000u /* between two looks whether links take more */

static struct ft_ras_errand *find_errand(struct ft_ras_errands *e, uint64_t query, uint64_t now_ns)
{
    for (int i = 0; i < FT_RAS_ERRANDS; i++)
        if (e->errands[i].ras && e->errands[i].query == query && now_ns < e->errands[i].until_ns)
            return &e->errands[i];
    return NULL;
}

static bool is_over(const struct ft_ras_errand *errand, uint64_t now_ns)
{
    return !errand->ras || now_ns >= errand->until_ns;
}

/* This host has answered; further hosts may still answer by way of this one. */
static bool has_answered(const struct ft_ras_errand *errand)
{
    return !errand->fresh && !errand->waits && !errand->sends;
}

/* A free place, or that of the oldest question that this host has answered. */
static struct ft_ras_errand *find_place(struct ft_ras_errands *e, uint64_t now_ns)
{
    struct ft_ras_errand *found = NULL;
    for (int i = 0; i < FT_RAS_ERRANDS; i++) {
        struct ft_ras_errand *errand = &e->errands[i];
        if (is_over(errand, now_ns))
            return errand;
        if (has_answered(errand) && (!found || errand->until_ns < found->until_ns))
            found = errand;
    }
    return found;
}

void ft_ras_errands_ask(struct ft_ras_errands *e, const struct ft_ras_message *message,
                        uint64_t now_ns)
{
    struct ft_ras_ask ask;
    uint64_t engines[FT_RAS_ASKED_MAX];
    if (message->len_bytes < sizeof ask)
        return;
    memcpy(&ask, message->data, sizeof ask);
    struct ft_ras_errand *place = find_place(e, now_ns);
    if (ask.n > FT_RAS_ASKED_MAX || message->len_bytes != sizeof ask + ask.n * sizeof *engines ||
        !place || find_errand(e, message->query, now_ns))
        return;
    uint64_t left_ms = ft_min(ask.left_ms, LEFT_MS_MAX);
    *place = (struct ft_ras_errand){.ras = message->ras,
                                    .asker = message->peer,
                                    .query = message->query,
                                    .until_ns = now_ns + left_ms * 1000000u,
                                    .fresh = true};
    memcpy(engines, message->data + sizeof ask, ask.n * sizeof *engines);
    ft_ras_messages_ask(message->ras, message->query, (uint32_t)(left_ms - left_ms / 8), engines,
                        ask.n);
}

void ft_ras_errands_pass_on(struct ft_ras_errands *e, const struct ft_ras_message *message,
                            uint64_t now_ns)
{
    const struct ft_ras_errand *errand = find_errand(e, message->query, now_ns);
    if (!errand)
        return;
    struct ft_ras_message head = *message;
    head.ras = errand->ras;
    head.peer = errand->asker;
    ft_ras_messages_send(&head, message->data);
}

/* ---- this host ------------------------------------------------------------------------------- */

static void send_part(const struct ft_ras_errands *e, struct ft_ras_errand *errand)
{
    struct {
        struct ft_ras_part part;
        unsigned char bytes[FT_RAS_MESSAGE_MAX - sizeof(struct ft_ras_part)];
    } message;
    size_t most = errand->ras->message_bytes - sizeof message.part,
           len = ft_min(e->packed_bytes - errand->sent_bytes, most);
    message.part = (struct ft_ras_part){.host = ft_host_id(),
                                        .teller = e->teller,
                                        .total_bytes = (uint32_t)e->packed_bytes,
                                        .at = (uint32_t)errand->sent_bytes};
    memcpy(message.bytes, e->packed + errand->sent_bytes, len);
    const struct ft_ras_message head = {.ras = errand->ras,
                                        .peer = errand->asker,
                                        .what = FT_RAS_TELL,
                                        .query = errand->query,
                                        .len_bytes = sizeof message.part + len};
    ft_ras_messages_send(&head, &message);
    errand->sent_bytes += len;
    errand->sends = errand->sent_bytes < e->packed_bytes;
}

static void forget_packed(struct ft_ras_errands *e)
{
    free(e->packed);
    e->packed = NULL;
    e->packed_bytes = 0;
}

/* Those who asked after the look began get the next one. */
static void begin(struct ft_ras_errands *e, uint64_t now_ns)
{
    e->spent_ns = 0;
    ft_ras_look_begin(&e->look, now_ns);
    for (int i = 0; i < FT_RAS_ERRANDS; i++) {
        struct ft_ras_errand *errand = &e->errands[i];
        errand->waits = errand->fresh;
        errand->fresh = false;
    }
}

static void pack(struct ft_ras_errands *e, uint64_t now_ns)
{
    bool packed = ft_snapshot_pack(e->look.snapshot, &e->packed, &e->packed_bytes) == FT_OK;
    if (packed && e->packed_bytes > FT_RAS_PACKED_MAX)
        forget_packed(e);
    e->teller = now_ns ^ ft_host_id(); /* two answers of a host are not mixed up */
    for (int i = 0; i < FT_RAS_ERRANDS; i++) {
        struct ft_ras_errand *errand = &e->errands[i];
        errand->sends = errand->ras && errand->waits && e->packed;
        errand->waits = false;
    }
    ft_ras_look_end(&e->look);
    e->rest_ns = now_ns + REST * e->spent_ns;
}

static bool is_sending(const struct ft_ras_errand *errand, uint64_t now_ns)
{
    return errand->sends && !is_over(errand, now_ns);
}

static bool any_sends(const struct ft_ras_errands *e, uint64_t now_ns)
{
    for (int i = 0; i < FT_RAS_ERRANDS; i++)
        if (is_sending(&e->errands[i], now_ns))
            return true;
    return false;
}

/* One whose asker takes what is sent; NULL: none. */
static struct ft_ras_errand *next_sending(struct ft_ras_errands *e, uint64_t now_ns)
{
    for (int i = 0; i < FT_RAS_ERRANDS; i++)
        if (is_sending(&e->errands[i], now_ns) &&
            ft_ras_messages_unsent(e->errands[i].asker) < FT_RAS_UNSENT_MAX)
            return &e->errands[i];
    return NULL;
}

static bool is_asked(const struct ft_ras_errands *e)
{
    for (int i = 0; i < FT_RAS_ERRANDS; i++)
        if (e->errands[i].ras && e->errands[i].fresh)
            return true;
    return false;
}

uint64_t ft_ras_errands_due(struct ft_ras_errands *e, uint64_t now_ns)
{
    if (e->packed)
        return next_sending(e, now_ns) || !any_sends(e, now_ns) ? now_ns : now_ns + BLOCKED_NS;
    if (e->look.stage != FT_RAS_LOOK_NONE)
        return now_ns;
    return is_asked(e) ? ft_max(now_ns, e->rest_ns) : UINT64_MAX;
}

bool ft_ras_errands_step(struct ft_ras_errands *e, uint64_t now_ns)
{
    if (ft_ras_errands_due(e, now_ns) > now_ns)
        return false;
    struct ft_ras_errand *sending = e->packed ? next_sending(e, now_ns) : NULL;
    if (sending)
        send_part(e, sending);
    else if (e->packed)
        forget_packed(e);
    else if (e->look.stage == FT_RAS_LOOK_NONE)
        begin(e, now_ns);
    else if (e->look.stage == FT_RAS_LOOK_READS)
        ft_ras_look_step(&e->look, now_ns);
    else
        pack(e, now_ns);
    return true;
}

void ft_ras_errands_leave(struct ft_ras_errands *e, const struct ft_ras *ras)
{
    for (int i = 0; i < FT_RAS_ERRANDS; i++)
        if (!ras || e->errands[i].ras == ras)
            e->errands[i] = (struct ft_ras_errand){0};
    if (ras)
        return;
    forget_packed(e);
    ft_ras_look_end(&e->look);
}

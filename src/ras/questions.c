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

static struct ft_ras_question *find_question(struct ft_ras_questions *q, uint64_t query,
                                             uint64_t now_ns)
{
    for (int i = 0; i < FT_RAS_QUESTIONS; i++)
        if (q->questions[i].ras && q->questions[i].query == query &&
            now_ns < q->questions[i].until_ns)
            return &q->questions[i];
    return NULL;
}

static bool is_over(const struct ft_ras_question *question, uint64_t now_ns)
{
    return !question->ras || now_ns >= question->until_ns;
}

/* This host has answered; further hosts may still answer by way of this one. */
static bool has_answered(const struct ft_ras_question *question)
{
    return !question->fresh && !question->waits && !question->sends;
}

/* A free place, or that of the oldest question that this host has answered. */
static struct ft_ras_question *find_place(struct ft_ras_questions *q, uint64_t now_ns)
{
    struct ft_ras_question *found = NULL;
    for (int i = 0; i < FT_RAS_QUESTIONS; i++) {
        struct ft_ras_question *question = &q->questions[i];
        if (is_over(question, now_ns))
            return question;
        if (has_answered(question) && (!found || question->until_ns < found->until_ns))
            found = question;
    }
    return found;
}

void ft_ras_questions_add(struct ft_ras_questions *q, const struct ft_ras_message *message,
                          uint64_t now_ns)
{
    struct ft_ras_ask ask;
    uint64_t engines[FT_RAS_ASKED_MAX];
    if (message->len_bytes < sizeof ask)
        return;
    memcpy(&ask, message->data, sizeof ask);
    struct ft_ras_question *place = find_place(q, now_ns);
    if (ask.n > FT_RAS_ASKED_MAX || message->len_bytes != sizeof ask + ask.n * sizeof *engines ||
        !place || find_question(q, message->query, now_ns))
        return;
    uint64_t left_ms = ft_min(ask.left_ms, LEFT_MS_MAX);
    *place = (struct ft_ras_question){.ras = message->ras,
                                      .asker = message->peer,
                                      .query = message->query,
                                      .until_ns = now_ns + left_ms * 1000000u,
                                      .fresh = true};
    memcpy(engines, message->data + sizeof ask, ask.n * sizeof *engines);
    ft_ras_messages_ask(message->ras, message->query, (uint32_t)(left_ms - left_ms / 8), engines,
                        ask.n);
}

void ft_ras_questions_pass_on(struct ft_ras_questions *q, const struct ft_ras_message *message,
                              uint64_t now_ns)
{
    const struct ft_ras_question *question = find_question(q, message->query, now_ns);
    if (!question)
        return;
    struct ft_ras_message head = *message;
    head.ras = question->ras;
    head.peer = question->asker;
    ft_ras_messages_send(&head, message->data);
}

/* ---- this host ------------------------------------------------------------------------------- */

static void send_part(const struct ft_ras_questions *q, struct ft_ras_question *question)
{
    struct {
        struct ft_ras_part part;
        unsigned char bytes[FT_RAS_MESSAGE_MAX - sizeof(struct ft_ras_part)];
    } message;
    size_t most = question->ras->message_bytes - sizeof message.part,
           len = ft_min(q->packed_bytes - question->sent_bytes, most);
    message.part = (struct ft_ras_part){.host = ft_host_id(),
                                        .teller = q->teller,
                                        .total_bytes = (uint32_t)q->packed_bytes,
                                        .at = (uint32_t)question->sent_bytes};
    memcpy(message.bytes, q->packed + question->sent_bytes, len);
    const struct ft_ras_message head = {.ras = question->ras,
                                        .peer = question->asker,
                                        .what = FT_RAS_TELL,
                                        .query = question->query,
                                        .len_bytes = sizeof message.part + len};
    ft_ras_messages_send(&head, &message);
    question->sent_bytes += len;
    question->sends = question->sent_bytes < q->packed_bytes;
}

static void forget_packed(struct ft_ras_questions *q)
{
    free(q->packed);
    q->packed = NULL;
    q->packed_bytes = 0;
}

/* Those who asked after the look began get the next one. */
static void begin(struct ft_ras_questions *q, uint64_t now_ns)
{
    q->spent_ns = 0;
    ft_ras_look_begin(&q->look, now_ns);
    for (int i = 0; i < FT_RAS_QUESTIONS; i++) {
        struct ft_ras_question *question = &q->questions[i];
        question->waits = question->fresh;
        question->fresh = false;
    }
}

static void pack(struct ft_ras_questions *q, uint64_t now_ns)
{
    bool packed = ft_snapshot_pack(q->look.snapshot, &q->packed, &q->packed_bytes) == FT_OK;
    if (packed && q->packed_bytes > FT_RAS_PACKED_MAX)
        forget_packed(q);
    q->teller = now_ns ^ ft_host_id(); /* two answers of a host are not mixed up */
    for (int i = 0; i < FT_RAS_QUESTIONS; i++) {
        struct ft_ras_question *question = &q->questions[i];
        question->sends = question->ras && question->waits && q->packed;
        question->waits = false;
    }
    ft_ras_look_end(&q->look);
    q->rest_ns = now_ns + REST * q->spent_ns;
}

static bool is_sending(const struct ft_ras_question *question, uint64_t now_ns)
{
    return question->sends && !is_over(question, now_ns);
}

static bool any_sends(const struct ft_ras_questions *q, uint64_t now_ns)
{
    for (int i = 0; i < FT_RAS_QUESTIONS; i++)
        if (is_sending(&q->questions[i], now_ns))
            return true;
    return false;
}

/* One whose asker takes what is sent; NULL: none. */
static struct ft_ras_question *next_sending(struct ft_ras_questions *q, uint64_t now_ns)
{
    for (int i = 0; i < FT_RAS_QUESTIONS; i++)
        if (is_sending(&q->questions[i], now_ns) &&
            ft_ras_messages_unsent(q->questions[i].asker) < FT_RAS_UNSENT_MAX)
            return &q->questions[i];
    return NULL;
}

static bool is_asked(const struct ft_ras_questions *q)
{
    for (int i = 0; i < FT_RAS_QUESTIONS; i++)
        if (q->questions[i].ras && q->questions[i].fresh)
            return true;
    return false;
}

uint64_t ft_ras_questions_due(struct ft_ras_questions *q, uint64_t now_ns)
{
    if (q->packed)
        return next_sending(q, now_ns) || !any_sends(q, now_ns) ? now_ns : now_ns + BLOCKED_NS;
    if (q->look.stage != FT_RAS_LOOK_NONE)
        return now_ns;
    return is_asked(q) ? ft_max(now_ns, q->rest_ns) : UINT64_MAX;
}

bool ft_ras_questions_step(struct ft_ras_questions *q, uint64_t now_ns)
{
    if (ft_ras_questions_due(q, now_ns) > now_ns)
        return false;
    struct ft_ras_question *sending = q->packed ? next_sending(q, now_ns) : NULL;
    if (sending)
        send_part(q, sending);
    else if (q->packed)
        forget_packed(q);
    else if (q->look.stage == FT_RAS_LOOK_NONE)
        begin(q, now_ns);
    else if (q->look.stage == FT_RAS_LOOK_READS)
        ft_ras_look_step(&q->look, now_ns);
    else
        pack(q, now_ns);
    return true;
}

void ft_ras_questions_leave(struct ft_ras_questions *q, const struct ft_ras *ras)
{
    for (int i = 0; i < FT_RAS_QUESTIONS; i++)
        if (!ras || q->questions[i].ras == ras)
            q->questions[i] = (struct ft_ras_question){0};
    if (ras)
        return;
    forget_packed(q);
    ft_ras_look_end(&q->look);
}

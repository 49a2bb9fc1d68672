/*
 * Messages between responders: those that came and wait for the serving thread, and those that no
 * link has taken yet. Messages may be lost; who asks has a time limit.
 */
#include "ras/internal.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#define MESSAGES_MAX 512
#define FANOUT 8
#define WAIT_NS 10000000000u /* a message waits for a link at most this long */
#define BLOCKED_MAX 16       /* peers that take nothing; with more of them nothing is tried */

static struct list {
    struct ft_ras_message *first, **end;
    int n;
} inbox = {.end = &inbox.first}, outbox = {.end = &outbox.first};
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* of the inbox */
static atomic_int waiting; /* relaxed, a hint: messages in the inbox */

static void append(struct list *list, struct ft_ras_message *message)
{
    message->next = NULL;
    *list->end = message;
    list->end = &message->next;
    list->n++;
}

static bool put(struct list *list, const struct ft_ras_message *head, const void *data)
{
    struct ft_ras_message *message = list->n < MESSAGES_MAX
                                         ? malloc(sizeof *message + head->len_bytes)
                                         : NULL;
    if (!message)
        return false;
    *message = *head;
    if (head->len_bytes > 0)
        memcpy(message->data, data, head->len_bytes);
    append(list, message);
    return true;
}

static struct ft_ras_message *take(struct list *list)
{
    struct ft_ras_message *message = list->first;
    if (!message)
        return NULL;
    list->first = message->next;
    if (!list->first)
        list->end = &list->first;
    list->n--;
    return message;
}

/* Drops the messages of one engine; NULL: all. */
static void drop(struct list *list, const struct ft_ras *ras)
{
    struct ft_ras_message *message;
    for (int left = list->n; left > 0 && (message = take(list)); left--) {
        if (ras && message->ras != ras)
            append(list, message);
        else
            free(message);
    }
}

void ft_ras_hear(struct ft_ras *ras, uint64_t peer, uint32_t what, uint64_t query, const void *data,
                 size_t len_bytes)
{
    const struct ft_ras_message head = {
        .ras = ras, .peer = peer, .what = what, .query = query, .len_bytes = len_bytes};
    if (len_bytes > FT_RAS_MESSAGE_MAX)
        return;
    pthread_mutex_lock(&lock);
    if (ras->joined)
        put(&inbox, &head, data);
    pthread_mutex_unlock(&lock);
    atomic_store_explicit(&waiting, 1, memory_order_relaxed);
}

bool ft_ras_messages_wait(void)
{
    return atomic_load_explicit(&waiting, memory_order_relaxed) != 0;
}

struct ft_ras_message *ft_ras_messages_take(void)
{
    pthread_mutex_lock(&lock);
    struct ft_ras_message *message = take(&inbox);
    if (!message)
        atomic_store_explicit(&waiting, 0, memory_order_relaxed);
    pthread_mutex_unlock(&lock);
    return message;
}

void ft_ras_messages_join(struct ft_ras *ras)
{
    pthread_mutex_lock(&lock);
    ras->joined = true;
    pthread_mutex_unlock(&lock);
}

void ft_ras_messages_leave(struct ft_ras *ras)
{
    pthread_mutex_lock(&lock);
    ras->joined = false;
    drop(&inbox, ras);
    pthread_mutex_unlock(&lock);
    drop(&outbox, ras);
}

int ft_ras_messages_unsent(uint64_t peer)
{
    int n = 0;
    for (const struct ft_ras_message *message = outbox.first; message; message = message->next)
        n += peer == 0 || message->peer == peer;
    return n;
}

static int send_message(const struct ft_ras_message *head, const void *data)
{
    return head->ras->net->send(head->ras->engine, head->peer, (enum ft_ras_message_kind)head->what,
                                head->query, data, head->len_bytes);
}

void ft_ras_messages_send(const struct ft_ras_message *head, const void *data)
{
    struct ft_ras_message kept = *head;
    kept.born_ns = ft_now_ns(ft_env_real());
    if (ft_ras_messages_unsent(head->peer) > 0 || send_message(head, data) == FT_AGAIN)
        put(&outbox, &kept, data);
}

/* Sends what can go. A peer that takes nothing, because it is stopped, delays only its own. */
void ft_ras_messages_flush(uint64_t now_ns)
{
    uint64_t blocked[BLOCKED_MAX];
    size_t nblocked = 0;
    for (int left = outbox.n; left > 0; left--) {
        struct ft_ras_message *message = take(&outbox);
        bool waits = nblocked == BLOCKED_MAX;
        for (size_t i = 0; i < nblocked; i++)
            waits |= blocked[i] == message->peer;
        if (!waits && send_message(message, message->data) == FT_AGAIN) {
            blocked[nblocked++] = message->peer;
            waits = true;
        }
        if (waits && now_ns - message->born_ns < WAIT_NS)
            append(&outbox, message);
        else
            free(message);
    }
}

/* The first of a group that takes the question is to ask the rest. */
static void ask_group(struct ft_ras *ras, uint64_t query, uint32_t left_ms, const uint64_t *engines,
                      size_t n)
{
    struct {
        struct ft_ras_ask ask;
        uint64_t engines[FT_RAS_ASKED_MAX];
    } message;
    for (size_t i = 0; i < n; i++) {
        message.ask = (struct ft_ras_ask){.left_ms = left_ms, .n = (uint32_t)(n - i - 1)};
        memcpy(message.engines, engines + i + 1, (n - i - 1) * sizeof *engines);
        const struct ft_ras_message head = {.ras = ras,
                                            .peer = engines[i],
                                            .what = FT_RAS_ASK,
                                            .query = query,
                                            .len_bytes = sizeof message.ask +
                                                         (n - i - 1) * sizeof *engines};
        /* One that takes nothing now is probably stopped: it could not ask the rest. */
        if (send_message(&head, &message) == FT_OK)
            return;
    }
}

void ft_ras_messages_ask(struct ft_ras *ras, uint64_t query, uint32_t left_ms,
                         const uint64_t *engines, size_t n)
{
    size_t at = 0, most = (ras->message_bytes - sizeof(struct ft_ras_ask)) / sizeof *engines + 1;
    for (size_t groups = ft_max(ft_min(n, FANOUT), (n + most - 1) / most); groups > 0; groups--) {
        size_t size = (n - at) / groups;
        ask_group(ras, query, left_ms, engines + at, size);
        at += size;
    }
}

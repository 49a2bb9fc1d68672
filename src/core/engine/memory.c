/*
 * User memory that transports know: memory of ftcclMemAlloc(), for every engine of the process, and
 * memory registered with a communicator, for its engine. Only engines with a transport that
 * registers memory join; without such a transport this is only a list. Threads of the user call
 * these functions without holding an engine, and may block in a transport. One lock serialises
 * them.
 */
#include "core/engine/engine.h"

#include <stdlib.h>

/* One transport's registration of one range. */
struct ft_memory_key {
    struct ft_memory_key *next;
    struct ft_engine *engine;
    struct ft_transport *transport;
    void *registered; /* belongs to the transport */
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct ft_memory *memories;
static struct ft_engine *engines; /* engines that have joined */

/* Returns NULL, with a sentence, if the transport works without the registration. */
static struct ft_memory_key *make_key(struct ft_transport *transport,
                                      const struct ft_memory *memory)
{
    struct ft_memory_key *key = malloc(sizeof *key);
    if (!key) {
        ft_fail(FT_NOMEM, "no memory for a registration");
        return NULL;
    }
    key->transport = transport;
    if (transport->ops->reg(transport, memory->addr, memory->len_bytes, &key->registered) == FT_OK)
        return key;
    free(key);
    return NULL;
}

static void reg(struct ft_engine *engine, struct ft_memory *memory)
{
    for (int i = 0; i < engine->ntransports; i++) {
        struct ft_transport *transport = engine->transports[i];
        if (!transport->ops->caps.registers)
            continue;
        struct ft_memory_key *key = make_key(transport, memory);
        if (!key) {
            FT_LOG(WARN, "net", engine->rank,
                   "%zu bytes at %p are not registered with %s, their messages are copied: %s",
                   memory->len_bytes, memory->addr, transport->ops->name, ft_fail_text());
            continue;
        }
        key->engine = engine;
        key->next = memory->keys;
        memory->keys = key;
    }
}

/* Ends the registrations of one engine. NULL: of all engines. */
static void unreg(struct ft_memory *memory, const struct ft_engine *engine)
{
    for (struct ft_memory_key **at = &memory->keys, *key; (key = *at);) {
        if (engine && key->engine != engine) {
            at = &key->next;
            continue;
        }
        *at = key->next;
        key->transport->ops->unreg(key->transport, key->registered);
        free(key);
    }
}

void ft_memory_reg(struct ft_memory *memory)
{
    memory->keys = NULL;
    pthread_mutex_lock(&lock);
    memory->next = memories;
    memories = memory;
    for (struct ft_engine *engine = engines; engine; engine = engine->next_registering)
        if (!memory->engine || memory->engine == engine)
            reg(engine, memory);
    pthread_mutex_unlock(&lock);
}

void ft_memory_unreg(struct ft_memory *memory)
{
    pthread_mutex_lock(&lock);
    struct ft_memory **at = &memories;
    while (*at != memory)
        at = &(*at)->next;
    *at = memory->next;
    unreg(memory, NULL);
    pthread_mutex_unlock(&lock);
}

static bool registers(const struct ft_engine *engine)
{
    for (int i = 0; i < engine->ntransports; i++)
        if (engine->transports[i]->ops->caps.registers)
            return true;
    return false;
}

void ft_memory_join(struct ft_engine *engine)
{
    if (!registers(engine))
        return;
    pthread_mutex_lock(&lock);
    engine->next_registering = engines;
    engines = engine;
    for (struct ft_memory *memory = memories; memory; memory = memory->next)
        if (!memory->engine)
            reg(engine, memory);
    pthread_mutex_unlock(&lock);
}

void ft_memory_leave(struct ft_engine *engine)
{
    pthread_mutex_lock(&lock);
    struct ft_engine **at = &engines;
    while (*at && *at != engine)
        at = &(*at)->next_registering;
    if (*at) {
        *at = engine->next_registering;
        for (struct ft_memory *memory = memories; memory; memory = memory->next)
            unreg(memory, engine);
    }
    pthread_mutex_unlock(&lock);
}

/* Tables by the addresses that they are about. There are few: a search looks at all. */
#include "path/path.h"

#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>

struct ft_path_cache {
    struct ft_env *env;
    uint64_t max_age_ns;
    int capacity;
    struct ft_path_table *table[];
};

static bool same_host(const struct ft_net_address *a, const struct ft_net_address *b);
static bool joins(const struct ft_path_table *t, const struct ft_net_address *from,
                  const struct ft_net_address *to);
static void drop(struct ft_path_table **slot);
static struct ft_path_table **slot_for(struct ft_path_cache *, const struct ft_path_table *);

struct ft_path_cache *ft_path_cache_open(struct ft_env *env, int capacity, uint64_t max_age_ns)
{
    const size_t slots = (size_t)(capacity > 0 ? capacity : 1);
    struct ft_path_cache *c = calloc(1, sizeof(*c) + slots * sizeof(c->table[0]));
    if (c == NULL)
        return NULL;
    c->env = env;
    c->capacity = (int)slots;
    c->max_age_ns = max_age_ns;
    return c;
}

void ft_path_cache_close(struct ft_path_cache *c)
{
    for (int i = 0; c != NULL && i < c->capacity; i++)
        drop(&c->table[i]);
    free(c);
}

void ft_path_cache_put(struct ft_path_cache *c, struct ft_path_table *t)
{
    struct ft_path_table **slot = slot_for(c, t);
    drop(slot);
    *slot = t;
}

const struct ft_path_table *ft_path_cache_find(struct ft_path_cache *c,
                                               const struct ft_net_address *from,
                                               const struct ft_net_address *to)
{
    const uint64_t now_ns = ft_now_ns(c->env);
    for (int i = 0; i < c->capacity; i++) {
        struct ft_path_table *t = c->table[i];
        if (t == NULL || !joins(t, from, to) || t->to.port != to->port)
            continue;
        if (now_ns - t->probed_ns <= c->max_age_ns)
            return t;
        drop(&c->table[i]);
    }
    return NULL;
}

void ft_path_cache_forget(struct ft_path_cache *c, const struct ft_net_address *from,
                          const struct ft_net_address *to)
{
    for (int i = 0; i < c->capacity; i++)
        if (c->table[i] != NULL && joins(c->table[i], from, to))
            drop(&c->table[i]);
}

static bool same_host(const struct ft_net_address *a, const struct ft_net_address *b)
{
    return a->family == b->family && a->scope == b->scope &&
           memcmp(a->ip, b->ip, a->family == AF_INET6 ? 16 : 4) == 0;
}

static bool joins(const struct ft_path_table *t, const struct ft_net_address *from,
                  const struct ft_net_address *to)
{
    return (from->family == 0 || same_host(&t->from, from)) && same_host(&t->to, to);
}

static void drop(struct ft_path_table **slot)
{
    ft_path_table_free(*slot);
    *slot = NULL;
}

/* That of the same addresses, otherwise a free one, otherwise the oldest. */
static struct ft_path_table **slot_for(struct ft_path_cache *c, const struct ft_path_table *t)
{
    struct ft_path_table **best = &c->table[0];
    for (int i = 0; i < c->capacity; i++) {
        struct ft_path_table **slot = &c->table[i];
        if (*slot != NULL && joins(*slot, &t->from, &t->to) && (*slot)->to.port == t->to.port)
            return slot;
        if (*best != NULL && (*slot == NULL || (*slot)->probed_ns < (*best)->probed_ns))
            best = slot;
    }
    return best;
}

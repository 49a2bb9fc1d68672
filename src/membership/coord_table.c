/*
 * A hash table of nodes that their owners embed. It grows when it can: without memory chains only
 * get longer.
 */
#include "membership/coord_parts.h"

#include <stdlib.h>

#define BUCKETS_FIRST 16

static void put(struct ft_coord_table *table, struct ft_coord_node *node)
{
    struct ft_coord_node **bucket = &table->bucket[node->hash & (table->nbuckets - 1)];
    node->next = *bucket;
    *bucket = node;
}

bool ft_coord_table_reserve(struct ft_coord_table *table)
{
    if (table->count < table->nbuckets)
        return true;
    struct ft_coord_table old = *table;
    size_t nbuckets = old.nbuckets ? 2 * old.nbuckets : BUCKETS_FIRST;
    struct ft_coord_node **bucket = calloc(nbuckets, sizeof(*bucket));
    if (!bucket)
        return old.nbuckets > 0;
    table->bucket = bucket;
    table->nbuckets = nbuckets;
    for (size_t i = 0; i < old.nbuckets; i++) {
        for (struct ft_coord_node *node = old.bucket[i], *next; node; node = next) {
            next = node->next;
            put(table, node);
        }
    }
    free(old.bucket);
    return true;
}

void ft_coord_table_add(struct ft_coord_table *table, struct ft_coord_node *node, uint64_t hash)
{
    node->hash = hash;
    put(table, node);
    table->count++;
}

void ft_coord_table_remove(struct ft_coord_table *table, struct ft_coord_node *node)
{
    struct ft_coord_node **at = &table->bucket[node->hash & (table->nbuckets - 1)];
    while (*at != node)
        at = &(*at)->next;
    *at = node->next;
    table->count--;
}

struct ft_coord_node *ft_coord_table_find(const struct ft_coord_table *table,
                                          const struct ft_coord_node *from, uint64_t hash)
{
    struct ft_coord_node *node = NULL;
    if (from)
        node = from->next;
    else if (table->nbuckets > 0)
        node = table->bucket[hash & (table->nbuckets - 1)];
    while (node && node->hash != hash)
        node = node->next;
    return node;
}

void ft_coord_table_close(struct ft_coord_table *table)
{
    free(table->bucket);
    *table = (struct ft_coord_table){0};
}

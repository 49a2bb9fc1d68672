/*
 * A snapshot while it is collected, shared by snapshot.c and snapshot_links.c.
 */
#ifndef FT_TELEMETRY_COLLECT_H
#define FT_TELEMETRY_COLLECT_H

#include "saved.h"

/* A list that grows. Once memory ran out, it takes no more. */
struct ft_tm_list {
    void *rows;
    size_t row_bytes;
    int n, capacity;
};

struct ft_tm_collection {
    struct ft_tm_list engines, members, links, seats, paths, steps, ops, threads, latencies, clocks,
        events, validations;
    int unreadable;
    bool no_memory;
    uint64_t now_ns, real_ns;
};

/* Adds a row of zeros. NULL: no memory, which the collection remembers. */
void *ft_tm_list_add(struct ft_tm_collection *c, struct ft_tm_list *list);
/* Adds what an image tells of links, paths, latencies, clocks, threads, events and validations.
 * engine: its row in the collection. */
void ft_tm_add_links(struct ft_tm_collection *c, const struct ft_image *image, int engine);
/* Leaves out threads of the engine that was added last that have ended. To be called for a process
 * of this host that is there. */
void ft_tm_drop_threads(struct ft_tm_collection *c, int pid);

/* Sets times of other hosts to the clock of one of them, as far as the ranks have measured their
 * clocks. FT_NOMEM. */
int ft_tm_align(struct ft_snapshot *s);
/* Takes ahead_ns[engine] off all times of an engine (pack.c knows which fields are times). */
void ft_tm_shift_times(struct ft_snapshot *s, const int64_t *ahead_ns);

#endif

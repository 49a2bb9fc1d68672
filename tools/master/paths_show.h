/* Shared by what the master of paths shows: a list, a map, JSON. */
#ifndef FT_MASTER_PATHS_SHOW_H
#define FT_MASTER_PATHS_SHOW_H

#include "paths.h"

/* Some of the jobs that have connections on a link. */
struct users {
    uint64_t job[FT_PATHS_JOBS];
    int connections[FT_PATHS_JOBS];
    bool more;
};
void paths_put_users(const struct users *, FILE *out);
const char *paths_state_text(const struct ft_allocator_link *);

/* ---- paths_map.c ----------------------------------------------------------------------------- */

#define PATHS_NAME_BYTES 32
/* "leaf 3"; "": it is not known. */
const char *paths_router_name(const struct ft_topology *, int router, char text[PATHS_NAME_BYTES]);
/* `users`: of all links of the allocator. */
void paths_put_map(struct paths *, const struct users *users, FILE *out);

#endif

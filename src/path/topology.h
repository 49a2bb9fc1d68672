/*
 * topology: which routers there are and how links join them, as far as it follows from the ways
 * that ranks have told. Routers answer by one address of many, so addresses that must belong to one
 * router are put together:
 *   - the next link of a way begins at the router at which the last one ended;
 *   - a host with one port is joined to one router, whether it sends or receives;
 *   - the two ends of a cable have neighbouring addresses (/31), if most links have such a
 * neighbour. What does not follow stays apart: then a router shows as several.
 *
 * A leaf is a router that hosts are joined to. The layer of a router is its distance from the
 * nearest of these. No call blocks.
 */
#ifndef FT_PATH_TOPOLOGY_H
#define FT_PATH_TOPOLOGY_H

#include "path/allocate.h"

struct ft_topology {
    int nrouters;
    struct ft_topology_router {
        unsigned char ip[16]; /* its lowest address that was seen */
        int layer, place;     /* layer 0: a leaf; place: its number in its layer */
        int sources, targets; /* pairs of hosts whose ways begin there, and end there */
    } * router;               /* by layer and address */
    int nlinks;               /* those of the allocator, by their index */
    struct ft_topology_link {
        int from, to; /* routers; -1: no way that is there now goes over it */
    } * link;
    int nhosts;
    struct ft_topology_host {
        unsigned char ip[16];
        int router; /* -1: not known, or several */
    } * host;       /* by address */
    int nmissing;
    /* Links between leaves and spines that no way takes, though many were probed that would. The
     * link that goes on from there, or comes before, is there. Of networks with two layers. */
    struct ft_topology_link *missing;
};

/* NULL: no memory. */
struct ft_topology *ft_topology_find(const struct ft_allocator *);
void ft_topology_free(struct ft_topology *); /* NULL is allowed */

#endif

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

#define FT_TOPOLOGY_PORTS 8 /* of a host; others are passed over */

struct ft_topology_router {
    unsigned char ip[16]; /* its lowest address that was seen */
    int layer, place;     /* layer 0: a leaf; place: its number in its layer */
};

struct ft_topology_link {
    int from, to; /* routers; -1: no way that is there now goes over it */
};

struct ft_topology_host {
    unsigned char ip[16];
    int router; /* -1: not known, or several */
    /* The routers that it sends to, in the order of the addresses by which they answer. */
    int nports, port[FT_TOPOLOGY_PORTS];
};

struct ft_topology {
    int nrouters;
    struct ft_topology_router *router; /* by layer and address */
    int nlinks;
    struct ft_topology_link *link; /* those of the allocator, by their index */
    int nhosts;
    struct ft_topology_host *host; /* by address */
    /* Links between leaves and spines that no way takes, though many were probed that would. The
     * link that goes on from there, or comes before, is there. Of networks with two layers. */
    int nmissing;
    struct ft_topology_link *missing;
    /* The router of each address of the allocator, by its index; -1: no way goes there now. */
    int naddresses, *located;
};

/* NULL: no memory. */
struct ft_topology *ft_topology_find(const struct ft_allocator *);
void ft_topology_free(struct ft_topology *); /* NULL is allowed */
/* From now on connections of hosts with several ports go from the i-th port of one host to the i-th
 * of the other, where it is known which those are and each port has such a way. Those that do not
 * are moved at the next ft_allocator_tick(). */
void ft_topology_keep_ports_apart(const struct ft_topology *, struct ft_allocator *);

#endif

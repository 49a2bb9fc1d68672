/* Inside allocate: what is known of routers, links and ways. */
#ifndef FT_PATH_ALLOCATE_PARTS_H
#define FT_PATH_ALLOCATE_PARTS_H

#include "path/allocate.h"

#define BAD_FOR_ALL 2 /* so many owners that complain make a link bad for all */

/* An address that was seen in a way. */
struct router {
    unsigned char ip[16]; /* must be the first field */
    bool first, last;     /* it was the first hop of a way, the last one */
    int index;
};

struct link {
    int from, to; /* routers; from -1: any. Must be the first fields. */
    int index;
    int connections;
    struct complaint {
        uint64_t owner, until_ns; /* until_ns 0: none */
    } complaint[BAD_FOR_ALL];     /* of different owners */
    bool out;
};

/* Links that are out. */
struct rule {
    unsigned char from[16], to[16];
};

struct connection {
    uint64_t id;
    int way; /* -1: none is allowed */
};

struct ft_ways {
    struct ft_allocator *allocator;
    struct ft_ways *next, **at;
    void *user;
    uint64_t owner;
    int nbad;
    unsigned char from[16], to[16]; /* hosts; zeros: not known */
    int nways, nhops, nlinks;       /* nlinks: of a way */
    int *hop;                       /* routers: [nways][nhops] */
    int *link;                      /* [nways][nlinks] */
    bool *crosses;                  /* [nways] it leads from a port to one of another number */
    uint64_t *bad_until_ns;         /* [nways] 0: it is not bad */
    struct connection *connection;
    int nconnections, room;
};

struct ft_allocator {
    ft_allocator_moved *moved;
    void *arg;
    void *router_tree, *link_tree; /* of tsearch(3) */
    struct router **router;
    struct link **link;
    int nrouters, nlinks;
    int64_t nhops;    /* of all ways */
    bool one_address; /* routers answer by one address each */
    bool changed;     /* other ways are allowed since the last tick */
    struct rule *rule;
    int nrules;
    struct ft_ways *ways, *next_balanced;
    int next_connection; /* of next_balanced */
};

#endif

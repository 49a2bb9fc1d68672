/*
 * allocate: which way each connection of a cluster takes, so that all links between routers carry
 * alike. It knows the network only by what probes saw: the hops of the ways between two hosts. A
 * link is a pair of routers that follow each other. Where routers answer by the interface at which
 * a packet came in, that address alone is the link. If an address is the last hop of one way and
 * the first of another, routers answer by one address each, and pairs count.
 *
 * A connection goes the allowed way whose most loaded link has the fewest connections. Ways over a
 * link that is out are not allowed, and those over a bad link only if a pair of hosts has no other.
 * Where hosts have several ports, which show as several first and several last hops, the i-th first
 * hop leads to the i-th last hop only: left ports never send to right ones, and what leaves by two
 * ports arrives by two. Hops are counted in the order of their addresses.
 *
 * For one thread. No call blocks.
 */
#ifndef FT_PATH_ALLOCATE_H
#define FT_PATH_ALLOCATE_H

#include "path/master.h"

struct ft_allocator; /* links, and who uses them */
struct ft_ways;      /* the ways between two hosts, and the connections that take them */

/* A connection takes another way from now on. */
typedef void ft_allocator_moved(void *arg, struct ft_ways *, uint64_t connection, int way);
/* Returns NULL if there is no memory. */
struct ft_allocator *ft_allocator_open(ft_allocator_moved *moved, void *arg);
void ft_allocator_close(struct ft_allocator *); /* ends all; NULL is allowed */

struct ft_ways_config {
    uint64_t owner; /* who tells it: complaints of one owner about a link count once */
    int nways, nhops;
    const unsigned char *hops; /* for each way its nhops addresses, of 16 bytes */
    void *user;
    const unsigned char *from, *to; /* the hosts, of 16 bytes; NULL: not known */
};
/* FT_INVAL: sizes out of range, or all ways together have too many hops. FT_NOMEM. */
int ft_ways_open(struct ft_allocator *, const struct ft_ways_config *, struct ft_ways **out);
void ft_ways_close(struct ft_ways *); /* gives up its connections; NULL is allowed */
void *ft_ways_user(const struct ft_ways *);
int ft_ways_connections(const struct ft_ways *);
/* The i-th connection and its way, which may be -1. */
int ft_ways_connection(const struct ft_ways *, int i, uint64_t *connection);
/* The index of the i-th link of a way; -1: it has not so many. */
int ft_ways_link(const struct ft_ways *, int way, int i);

/* Gives a connection a way, which it has until it is released; a second call returns the same.
 * held: the way that it has already, and keeps if that is allowed; -1: none. *way -1: none is
 * allowed. FT_INVAL: the pair has FT_PATHS_CONNECTIONS others. FT_NOMEM. */
int ft_ways_take(struct ft_ways *, uint64_t connection, int held, int *way);
void ft_ways_release(struct ft_ways *, uint64_t connection);

/* Their owner says that a way does not work: the pair does not get it until then, and its
 * connections are moved. A link of which two owners complain is bad for all from the next
 * ft_allocator_tick() on. until_ns is not 0. */
void ft_ways_complain(struct ft_ways *, int way, uint64_t until_ns);
/* Ends the complaints whose time has come, and moves the connections that must or may be moved
 * then. */
void ft_allocator_tick(struct ft_allocator *, uint64_t now_ns);

/* Looks at up to `most` connections, in turn with those of earlier calls, and moves those that
 * another way serves better. Returns the number of moves. */
int ft_allocator_balance(struct ft_allocator *, int most);

/* A link of the catalogue. */
struct ft_allocator_link {
    unsigned char from[16], to[16]; /* from: zeros if routers answer by interface */
    int connections;
    int complaints; /* of how many owners: 0, 1, or 2 for more, which is bad */
    bool out;
};
int ft_allocator_links(const struct ft_allocator *); /* their number */
struct ft_allocator_link ft_allocator_link_at(const struct ft_allocator *, int index);
/* Takes a link out, or back in, whether it was seen already or not. from: zeros for all links to
 * `to`. FT_NOMEM. FT_INVAL: too many are. FT_NOTSUP: it is not out. */
int ft_allocator_set_out(struct ft_allocator *, const unsigned char from[16],
                         const unsigned char to[16], bool out);
/* The index-th of the links that are out, with the addresses that ft_allocator_set_out() got.
 * False: there are not so many. */
bool ft_allocator_out_at(const struct ft_allocator *, int index, unsigned char from[16],
                         unsigned char to[16]);

#endif

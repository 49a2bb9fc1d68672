/*
 * The master of paths: ranks of all jobs tell it the ways between their hosts and ask which of them
 * their connections should take (path/master.h has the messages). path/allocate.h chooses. What an
 * operator takes out stays out in the state folder; all else ranks tell again after a restart.
 */
#ifndef FT_MASTER_PATHS_H
#define FT_MASTER_PATHS_H

#include "../daemon/daemon.h"
#include "path/allocate.h"
#include "path/master.h"
#include "path/topology.h"

#define PATHS_FILE "paths-out"

struct paths;
struct paths *paths_open(struct daemon *); /* NULL: no memory */
void paths_add(struct paths *);
void paths_close(struct paths *);

/* ---- inside ---------------------------------------------------------------------------------- */

struct client;
/* Two hosts of a client. Those that were probed for the catalogue belong to none, and have no
 * connections. */
struct pair {
    struct client *client;
    uint32_t number;
    unsigned char from[16], to[16];
    uint16_t port; /* at which `to` listens */
    struct ft_ways *ways;
    uint64_t probed_ns; /* for the catalogue */
};
struct client {
    struct daemon_peer *peer;
    uint64_t job;
    int rank;
    bool said_hello;
    struct pair **pair;
    int npairs, room;
    /* It probes these for the catalogue since then; 0: nothing. */
    uint64_t asked_ns;
    unsigned char asked_from[16], asked_to[16];
};
struct paths {
    struct daemon *daemon;
    struct ft_allocator *allocator;
    struct client **client;
    int nclients, room;
    int npairs;
    struct pair **probed; /* for the catalogue */
    int nprobed, probed_room;
    uint64_t mesh_ns; /* when it was looked last what should be probed */
    int lists;        /* answered in this interval */
    uint64_t moves, asked;
    struct ft_topology *topology; /* NULL: not looked at */
    uint64_t topology_ns;         /* when it was */
    char trouble[200];            /* of the file; "": none */
};

bool paths_grow(void *array, int n, int *room); /* room for one more pointer; false: no memory */
/* Fills in the ways from a message, from the number of hops on. */
bool paths_parse_hops(const unsigned char *at, size_t len, struct ft_ways_config *);
/* As of now or some seconds ago; it holds until the next call. NULL: no memory. */
const struct ft_topology *paths_topology(struct paths *);
/* paths_mesh.c */
void paths_mesh_turn(struct paths *, uint64_t now_ns);
/* A rank has probed what it was asked for. False: the message makes no sense. */
bool paths_mesh_take(struct paths *, struct client *, const unsigned char *at, size_t len);
void paths_mesh_close(struct paths *);
/* paths_show.c */
void paths_page(void *arg, FILE *out);
void paths_json(void *arg, struct ft_text *out);
void paths_metrics(void *arg, FILE *out);
/* Answers FT_PATHS_LIST. */
void paths_list(const struct paths *, struct daemon_peer *);
/* paths_file.c */
void paths_load(struct paths *);
/* Writes the file anew. FT_SYSTEM: it cannot be written. */
int paths_save(struct paths *);

#endif

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
/* Two hosts of a client. */
struct pair {
    struct client *client;
    uint32_t number;
    unsigned char from[16], to[16];
    struct ft_ways *ways;
};
struct client {
    struct daemon_peer *peer;
    uint64_t job;
    int rank;
    bool said_hello;
    struct pair **pair;
    int npairs, room;
};
struct paths {
    struct daemon *daemon;
    struct ft_allocator *allocator;
    struct client **client;
    int nclients, room;
    int npairs;
    int lists; /* answered in this interval */
    uint64_t moves, asked;
    struct ft_topology *topology; /* NULL: not looked at */
    uint64_t topology_ns;         /* when it was */
    char trouble[200];            /* of the file; "": none */
};

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

/*
 * master: a rank's connection to the master of paths, a service of ftccld that many jobs ask. The
 * rank tells it the ways between two hosts, as probes saw them, and asks which of them each
 * connection should take. Nothing here blocks, and nobody waits for the master for more than a
 * second: without it ranks choose alone. If it ends, connections keep their ways, and a new one
 * hears what they have. It may move a connection at any time: so whoever has one asks about once a
 * second.
 *
 * After the header of base/wire.h come the fields listed here. A pair is a number of the rank's
 * choice for two hosts. Addresses have 16 bytes; those of IPv4 are mapped (::ffff:1.2.3.4).
 */
#ifndef FT_PATH_MASTER_H
#define FT_PATH_MASTER_H

#include "path/path.h"

#define FT_PATHS_SERVICE 2
#define FT_PATHS_MOST 256       /* most ways of a pair */
#define FT_PATHS_PAIRS 1024     /* most pairs of a rank */
#define FT_PATHS_CONNECTIONS 64 /* most connections of a pair */

#define FT_PATHS_WAYS_BYTES 41 /* of WAYS, before the hops */
#define FT_PATHS_PROBE_BYTES 34
#define FT_PATHS_PROBED_BYTES 35 /* of PROBED, before the hops */
#define FT_PATHS_LINK_BYTES 85   /* of a link in LINKS */
#define FT_PATHS_JOBS 4          /* of a link that are shown */
#define FT_PATHS_LISTED 8192     /* most links in LINKS */

enum ft_paths_message {
    /* from the rank */
    FT_PATHS_HELLO = 1, /* job (8), rank (4) */
    /* pair (4), from (16), to (16), port at which `to` listens (2), number of hops of each way (1),
     * number of ways (2); for each way the addresses of its hops (16 each) */
    FT_PATHS_WAYS,
    FT_PATHS_TAKE,    /* pair (4), connection (8), the way that it has, plus 1 (2); 0: none */
    FT_PATHS_RELEASE, /* pair (4), connection (8) */
    FT_PATHS_BAD,     /* pair (4), way (2): it does not work */
    FT_PATHS_DROP,    /* pair (4) */
    FT_PATHS_KEEP,    /* nothing; so that the master hears something */
    /* from the master */
    FT_PATHS_WAY, /* pair (4), connection (8), way plus 1 (2); 0: none is allowed */
    /* from an operator's tool */
    FT_PATHS_OUT,  /* from (16), to (16): the link is out */
    FT_PATHS_IN,   /* the same: it is back */
    FT_PATHS_DONE, /* from the master: an answer to OUT and IN: status (4), a sentence */
    FT_PATHS_LIST, /* nothing: which links are there? */
    /* from the master: how many links there are (4); for each of the first FT_PATHS_LISTED: from
     * (16), to (16), state (1), connections (4), and four times a job (8) with its connections (4)
     */
    FT_PATHS_LINKS,
    /* from the master: from (16), to (16), port (2): which ways are there? Of no connection. */
    FT_PATHS_PROBE,
    /* from the rank: from (16), to (16), then as WAYS from the number of hops on; 0 ways: nothing
     * was learned */
    FT_PATHS_PROBED
};

/* Of a link. DOUBTED: ranks of one host complain of a way over it. BAD: those of several do, so
 * nobody gets it. OUT: an operator took it out. */
enum ft_paths_state { FT_PATHS_GOOD, FT_PATHS_DOUBTED, FT_PATHS_BAD_LINK, FT_PATHS_OUT_LINK };
const char *ft_paths_state_text(int state);

/* An address of a message, from one of a table and its family, or from text (false: it is none);
 * "any" is zeros. */
void ft_paths_put_ip(unsigned char out[16], int family, const unsigned char ip[16]);
bool ft_paths_parse_ip(const char *text, unsigned char out[16]);
struct ft_net_address ft_paths_address(const unsigned char ip[16], uint16_t port);
const char *ft_paths_ip_text(const unsigned char ip[16], char text[FT_NET_TEXT_BYTES]);

/* What it says of itself when it connects. */
void ft_path_master_set_job(struct ft_path_master *, uint64_t job);
/* The class of the table that a connection should take. FT_AGAIN: the master will say. FT_NOTSUP:
 * it says nothing; choose alone. */
int ft_path_master_choose(struct ft_path_master *, const struct ft_path_table *,
                          uint64_t connection, int *class_index);
/* The master wants to know the ways between these hosts. The caller finds out, and says so by
 * ft_path_master_probed(). */
bool ft_path_master_wants(struct ft_path_master *, struct ft_net_address *from,
                          struct ft_net_address *to);
/* NULL: nothing was learned. */
void ft_path_master_probed(struct ft_path_master *, const struct ft_net_address *from,
                           const struct ft_net_address *to, const struct ft_path_table *);

/* Dials by ports of this class were in vain. */
void ft_path_master_bad(struct ft_path_master *, const struct ft_path_table *, int class_index);

#endif

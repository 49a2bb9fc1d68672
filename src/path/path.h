/*
 * path: which way through the network a source port takes. A network with several equal ways (the
 * spines of a leaf-spine network) chooses one for each connection by a hash of its addresses and
 * ports. A prober finds out, without privileges: it starts TCP connections from several source
 * ports with growing TTL, and routers tell by ICMP where the TTL ended. The hops of a port, in
 * order, are its fingerprint; ports with the same fingerprint are a class. A port of which one hop
 * did not answer is in no class: nothing is guessed.
 *
 * A connection takes the way of a table if it goes to the table's `to`, port included, and was
 * bound to its `from` and the source port, with SO_REUSEADDR (another peer's connection may have
 * the same port) and without IPV6_AUTOFLOWLABEL. Another process may have taken the port in the
 * meantime: then use the next one of its class. A probe does not see the way back, nor what shares
 * load below IP, such as the members of a bonded link.
 *
 * One thread uses a prober or a cache at a time. Nothing here keeps state of its own.
 */
#ifndef FT_PATH_H
#define FT_PATH_H

#include "transport/transport.h"

#define FT_PATH_HOPS 16    /* most routers between two hosts */
#define FT_PATH_PORTS 4096 /* most ports of one probing */
#define FT_PATH_WINDOW 256 /* most probes that are on the way at once */
/* Source ports are chosen from here to 65535. Linux chooses its own below (ip_local_port_range). */
#define FT_PATH_FIRST 61000

/* What to probe. 0 stands for the default of the last three. */
struct ft_path_config {
    struct ft_env *env;
    /* A local address to start from; family 0: the one that the kernel chooses. Its port is not
     * used. */
    struct ft_net_address from;
    struct ft_net_address to; /* where the peer listens */
    int nports;               /* how many source ports to find: 1 to FT_PATH_PORTS */
    int window;               /* most probes on the way at once; each is a descriptor (32) */
    int rate;                 /* most probes a second (1000): routers limit their answers */
    uint64_t duration_ns;     /* how long all may take (5 s) */
};

struct ft_path_hop {
    unsigned char ip[16]; /* in network order, of the family of the table's addresses */
    uint64_t rtt_ns;      /* until its answer was read */
    bool known;           /* it answered */
};

/* Ports that go the same way. */
struct ft_path_class {
    int nports;
    struct ft_path_hop hop[FT_PATH_HOPS]; /* the first nhops of the table; the shortest times */
};

/* What came of a probing as a whole. */
enum ft_path_outcome {
    FT_PATH_REACHED,     /* the host answered: how many hops there are is known */
    FT_PATH_HIDDEN,      /* it answers, but too many routers in a row before it do not */
    FT_PATH_SILENT,      /* neither the host nor the last routers answered */
    FT_PATH_UNREACHABLE, /* a router refused: see `refuser` */
};

/* The result. Classes are ordered by their hops: all who probe the same network number them alike.
 * The choice of ports begins at a place that depends on the process and passes over those in use,
 * so that processes of one machine seldom have the same ones; within a process it is the same each
 * time. */
struct ft_path_table {
    struct ft_net_address from, to;
    uint64_t probed_ns; /* when the probing began */
    uint64_t took_ns;
    enum ft_path_outcome outcome;
    struct ft_net_address refuser; /* its port is 0 */
    int nhops;                     /* routers on the shortest way to the host; -1 unless REACHED */
    int nports;                    /* fewer than asked for only if all others are taken */
    struct ft_path *ports;
    int nclasses;
    struct ft_path_class *classes;
    int nunknown; /* ports in no class */
    int ntaken;   /* ports passed over, because something on this machine uses them */
    int nprobes;  /* packets sent */
    bool cut;     /* it ended because duration_ns had passed */
    int asked[FT_PATH_HOPS], answered[FT_PATH_HOPS]; /* ports that probed a hop; that it answered */
};

void ft_path_table_free(struct ft_path_table *); /* NULL is allowed */

/* A probing that its owner drives by turns. No call blocks. It holds two descriptors and one for
 * each probe on the way. */
struct ft_prober;
/* Sends nothing yet. FT_INVAL: the configuration makes no sense. FT_NOFILE, FT_NOMEM: the two
 * descriptors or the memory that a prober needs are not there. */
int ft_prober_open(const struct ft_path_config *, struct ft_prober **out);
/* Becomes readable when ft_prober_turn() has something to do. It stays the same. */
int ft_prober_fd(const struct ft_prober *);
/* Sends what may be sent and reads what came. FT_AGAIN: it goes on. FT_OK: it has ended, and
 * ft_prober_take() has the result. Otherwise it has failed with a sentence. FT_LINK: this machine
 * has no route there. FT_INVAL: it has no such address to start from. FT_NOFILE: not even one
 * descriptor was free. */
int ft_prober_turn(struct ft_prober *);
/* The caller frees the table. NULL if the probing has not ended well, or the table was taken. */
struct ft_path_table *ft_prober_take(struct ft_prober *);
/* Ends all that is on the way; NULL is allowed. At the peer nothing stays: one probe or a few
 * connect to it and are reset at once, the others end before it. */
void ft_prober_close(struct ft_prober *);

/* The same in one call, for tools, with the same errors. It blocks for duration_ns at most. */
int ft_path_probe(const struct ft_path_config *, struct ft_path_table **out);

/* The tables of an engine, for all its links: by local address, peer's address and peer's port. No
 * call blocks. */
struct ft_path_cache;
/* Holds up to `capacity` tables; one more drops the oldest. A table that is older than max_age_ns
 * is dropped. Returns NULL if there is no memory. */
struct ft_path_cache *ft_path_cache_open(struct ft_env *, int capacity, uint64_t max_age_ns);
void ft_path_cache_close(struct ft_path_cache *); /* frees the tables; NULL is allowed */
/* Takes the table over, in place of one of the same addresses. */
void ft_path_cache_put(struct ft_path_cache *, struct ft_path_table *);
/* The table from an address (its port does not count; family 0: any) to an address and port. It
 * lives until the next call on this cache. NULL: there is none; probe. */
const struct ft_path_table *ft_path_cache_find(struct ft_path_cache *,
                                               const struct ft_net_address *from,
                                               const struct ft_net_address *to);
/* A path between these hosts changed: drops the tables to all ports of `to`. `from` is as above. */
void ft_path_cache_forget(struct ft_path_cache *, const struct ft_net_address *from,
                          const struct ft_net_address *to);

/* A rank's connection to the master of paths, a service of ftccld that knows the connections of
 * many jobs and says which way each should take. */
struct ft_path_master_config {
    struct ft_env *env;
    int rank;
    const char *at; /* HOST:PORT */
    unsigned char key[FT_KEY_BYTES];
};
struct ft_path_master;
/* Dials it later. Blocks while a name is resolved. NULL: no memory, or no such host; the latter is
 * logged. */
struct ft_path_master *ft_path_master_open(const struct ft_path_master_config *);
void ft_path_master_close(struct ft_path_master *); /* NULL is allowed */

/* Finds ports for the transports of an engine: a cache, and at most one prober, which is turned by
 * those who ask. A pair of which nothing was learned is probed again after a minute, another one
 * after an hour, or if it is forgotten, ten seconds after the last time. */
struct ft_path_finder;
/* Takes the master over; NULL: there is none. Returns NULL if there is no memory. Opens no
 * descriptor before it is asked. */
struct ft_path_finder *ft_path_finder_open(struct ft_env *, int rank, struct ft_path_master *);
/* The number of the job, the same on all its ranks, but another one on ranks that join it later.
 * Before any link is made. The finder may be NULL. */
void ft_path_finder_set_job(struct ft_path_finder *, uint64_t job);
struct ft_port_finder *ft_path_finder_ports(struct ft_path_finder *); /* NULL of NULL */
void ft_path_finder_close(struct ft_path_finder *);                   /* NULL is allowed */

#endif

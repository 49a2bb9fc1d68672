/*
 * Private to the coordinator's port. coord_server.c has the thread and its life, coord_listen.c
 * where it listens, coord_conn.c the connections, coord_out.c what waits to be sent. Only the
 * thread touches this, between start and stop.
 */
#ifndef FT_COORD_SERVER_H
#define FT_COORD_SERVER_H

#include "membership/coord.h"

#include <pthread.h>

#define FT_COORD_LISTENERS 2
#define FT_COORD_READ_BYTES 65536

struct ft_coord_peer {
    struct ft_coord_peer *prev, *next; /* in `early` or `open` */
    struct ft_coord_peer *also;        /* in `doomed` or `dead` */
    struct ft_coord_peer *next_dirty;
    struct ft_coordinator *owner;
    struct ft_coord_conn *member; /* NULL: it has not proved the key */
    int fd;
    uint32_t events; /* registered with epoll */
    bool doomed, dirty;
    uint32_t joined;   /* JOINs that came, up to FT_SLOTS_MOST */
    uint64_t moved_ns; /* early: when it was accepted; else when its output last moved */
    unsigned char *in; /* the beginning of a message that is not complete */
    size_t in_len, in_room;
    struct ft_coord_out out;
    struct ft_auth auth;
};

struct ft_coord_peers {
    struct ft_coord_peer *first, *last;
    int n;
};

struct ft_coordinator {
    struct ft_coordinator *next, **link; /* of those in this process */
    struct ft_env *env;
    struct ft_coord *coord;
    unsigned char key[FT_SECRET_BYTES];
    int epoll, wake, listener[FT_COORD_LISTENERS];
    pthread_t thread;
    bool started;
    atomic_int nmembers;               /* with a role, after the last turn; for other threads */
    atomic_int stops;                  /* pairs with its read by the thread, which `wake` wakes */
    struct ft_coord_peers early, open; /* early: the oldest first */
    struct ft_coord_peer *doomed, *dead, *dirty;
    /* Time in which the thread ran; the times of connections are in it. */
    uint64_t running_ns, turned_ns;
    uint64_t resume_ns, ticked_ns, swept_ns; /* resume_ns: 0, or accepting pauses until then */
    bool said_nofile;
    bool only_beats; /* nothing but heartbeats has come in this turn */
    unsigned char scratch[FT_COORD_READ_BYTES];
};

/* ---- coord_listen.c -------------------------------------------------------------------------- */

/* Opens and watches the listening sockets. shown: an address at which others reach them. */
int ft_coord_listen(struct ft_coordinator *, const char *where, struct ft_net_address *shown);

/* ---- coord_conn.c ---------------------------------------------------------------------------- */

/* For struct ft_coord_config. */
bool ft_coord_peer_send(void *arg, void *owner_conn, enum ft_members_message, const void *bytes,
                        size_t len);
bool ft_coord_peer_send_view(void *arg, void *owner_conn, const void *head, size_t head_bytes,
                             struct ft_blob *const *blobs, int nblobs);
/* Takes the descriptor. */
void ft_coord_peer_open(struct ft_coordinator *, int fd);
void ft_coord_peer_turn(struct ft_coordinator *, struct ft_coord_peer *, uint32_t events);
/* Marks it; ft_coord_peers_close() closes it, when no call of coord.h is under way. */
void ft_coord_peer_doom(struct ft_coord_peer *, const char *why);
void ft_coord_peers_close(struct ft_coordinator *);
/* Closes what is to be closed, and sends what was queued, until there is neither. */
void ft_coord_peers_settle(struct ft_coordinator *);
/* An event of the present batch may point to those that are closed, so they are freed after it. */
void ft_coord_peers_free(struct ft_coordinator *);
/* Ends those that prove nothing or read nothing. */
void ft_coord_peers_sweep(struct ft_coordinator *);
/* True: there is room for another one that has not proved the key. The oldest makes room, unless it
 * is young. */
bool ft_coord_peers_make_room(struct ft_coordinator *);
/* At the end: closes all, and tells nobody. */
void ft_coord_peers_clear(struct ft_coordinator *);

#endif

/*
 * Private to the service: what its two files share. service.c owns the thread, the ids and the
 * listening sockets, conn.c the connections. The service's lock protects everything here. No
 * function blocks.
 */
#ifndef FT_SERVICE_H
#define FT_SERVICE_H

#include "membership/bootstrap.h"

#define FT_EARLY_CONNS 64                /* most connections that have not identified themselves */
#define FT_EARLY_NS UINT64_C(5000000000) /* time limit for that */
/* from this age on they may be evicted for new connections */
#define FT_EVICT_NS UINT64_C(1000000000)
/* how long descriptors may be exhausted before all ranks are told */
#define FT_NOFILE_NS UINT64_C(1000000000)
#define FT_EXPLICIT_LINGER_NS UINT64_C(5000000000)
/* how long ranks are still told that the owner of an id has ended */
#define FT_LAST_WORD_NS UINT64_C(5000000000)
#define FT_USED_IDS 256
#define FT_LISTENERS 18

struct ft_conn {
    struct ft_conn *next, **link;
    int fd;
    enum {
        FT_CONN_SELECT,
        FT_CONN_AUTH,
        FT_CONN_JOIN,
        FT_CONN_WAIT,
        FT_CONN_REPLY,
        FT_CONN_DEAD
    } stage;
    uint32_t events; /* events registered with epoll */
    uint64_t born_ns, nonce;
    struct ft_gather *gather; /* set from WAIT on */
    uint32_t rank;
    struct ft_auth auth;
    const unsigned char *out; /* points to the gather's answer or to in[] */
    size_t out_bytes, out_done, in_done;
    unsigned char in[FT_FRAME_BYTES + FT_JOIN_WIRE_MAX];
};

/* owner: nonce of the explicit id; 0: the port of plain ids */
struct ft_listener {
    int fd;
    uint64_t owner;
};

struct ft_service {
    struct ft_env *env;
    int epoll, wake;
    struct ft_listener listener[FT_LISTENERS];
    struct ft_net_address address[FT_NET_ADDRESSES];
    int naddresses;
    struct ft_gather *gathers;
    int ngathers;
    struct ft_conn *early, *dead; /* early: connections before WAIT, youngest first */
    int nearly;
    uint64_t next_ns;                    /* no gather is due before this time */
    uint64_t nofile_since_ns, resume_ns; /* resume_ns: accepting pauses until then; 0: no pause */
    uint64_t used[FT_USED_IDS];
    unsigned nused;
};

struct ft_gather *ft_service_find(struct ft_service *, uint64_t nonce);
bool ft_service_was_used(const struct ft_service *, uint64_t nonce);
/* Every rank was told, or none will ask: closes connections that still wait, and frees the
 * gather. */
void ft_service_forget(struct ft_service *, struct ft_gather *);

/* ft_conn_open() takes ownership of the descriptor. ft_conn_has_room() returns true if a new
 * connection is possible; if the maximum is reached, it evicts the oldest connection that is older
 * than FT_EVICT_NS, or returns false. */
bool ft_conn_has_room(struct ft_service *, uint64_t now_ns);
void ft_conn_open(struct ft_service *, int fd, uint64_t now_ns);
void ft_conn_turn(struct ft_service *, struct ft_conn *, uint32_t events, uint64_t now_ns);
void ft_conn_drop(struct ft_service *,
                  struct ft_conn *); /* closes it; ft_conn_free_dropped() frees it */
void ft_conn_free_dropped(struct ft_service *);
void ft_conn_expire(struct ft_service *, uint64_t now_ns, uint64_t *next_ns);
void ft_conn_answer_all(struct ft_service *, struct ft_gather *); /* the gather has settled */

#endif

/*
 * shm: what shm.c (addresses, links, the table of functions) and shm_setup.c (what happens on the
 * sockets) share.
 */
#ifndef FT_SHM_H
#define FT_SHM_H

#include "transport/local.h"

#define FT_SHM_NAME_BYTES 32
#define FT_SHM_STRANGERS 16 /* most accepted connections that are not links yet */

/* Single bytes on the socket after the handshake. */
enum {
    FT_SHM_BELL = 2,
    FT_SHM_BYE,
    FT_SHM_ACCEPTED = 16,
    FT_SHM_ARENA = 1,
    FT_SHM_PULLS = 2,
    /* with FT_SHM_ACCEPTED: flags that say which of the sender's memory can be read */
    FT_SHM_PINNED = 4,
    FT_SHM_ANSWERS = 24,
    FT_SHM_REFUSED = 64, /* FT_SHM_REFUSED minus the status */
};

/* An epoll event points at this first member of its owner. */
struct ft_shm_socket {
    enum { FT_SHM_LISTENER, FT_SHM_STRANGER, FT_SHM_LINK } kind;
    int fd;
    uint32_t watched; /* epoll events; 0: not in the set */
};

/* The offer of a segment. With it come the descriptors of the segment, the sender's liveness page,
 * its arena (to read), and its pinned memory; if that has no bytes, another descriptor takes its
 * place. The answer FT_SHM_ACCEPTED brings the receiver's liveness page. A receiver that can read
 * the cookie in the sender's memory can also read its messages there. cookie_at 0: the sender lends
 * none of that memory. */
struct ft_shm_offer {
    uint64_t chunk_bytes, len_bytes, arena_bytes, cookie_at, cookie;
    struct ft_pinned_place pinned;
};

enum ft_shm_stage { FT_SHM_READY, FT_SHM_DIAL, FT_SHM_AUTH, FT_SHM_OFFER, FT_SHM_ANSWER };

struct ft_shm_link {
    struct ft_shm_socket socket;
    struct ft_local_link local;
    enum ft_shm_stage stage; /* FT_SHM_READY: UP or DOWN */
    struct ft_auth auth;
    uint64_t deadline_ns; /* limit of the set-up */
    char name[FT_SHM_NAME_BYTES];
    int segment;                  /* descriptor, until it is passed on */
    struct ft_liveness *liveness; /* of the peer's process; NULL until the set-up is done */
    void *memory;
    size_t len_bytes;
    uint64_t cookie;   /* sender: the receiver tries to read it here */
    int pid;           /* receiver: number of the sender's process, as this process sees it */
    const void *arena; /* receiver: the sender's arena */
    size_t arena_bytes;
};

struct ft_shm_stranger {
    struct ft_shm_socket socket;
    bool proved;
    uint64_t deadline_ns;
    struct ft_auth auth;
};

struct ft_shm {
    struct ft_local local;
    int epoll;
    int liveness; /* descriptor of this process's liveness page, not owned; -1: none */
    /* A spare descriptor. When no descriptor is left, it is closed for a moment in order to refuse
     * a connection. */
    int spare;
    struct ft_shm_socket listener;
    char name[FT_SHM_NAME_BYTES];
    unsigned setups; /* number of strangers and of links that are being set up */
    unsigned strangers;
    unsigned polls; /* since the last look at the clock */
    uint64_t looked_ns;
    struct ft_shm_stranger stranger[FT_SHM_STRANGERS];
};

/* Handles everything that waits on the sockets, and the deadlines of set-ups. True: something
 * moved. */
bool ft_shm_look(struct ft_shm *, uint64_t now_ns);

struct ft_shm_link *ft_shm_link_make(struct ft_shm *, uint64_t peer, bool sender);
int ft_shm_link_dial(struct ft_shm *, struct ft_shm_link *); /* FT_AGAIN: try later */
void ft_shm_link_settle(struct ft_shm *, struct ft_shm_link *);
void ft_shm_link_lost(struct ft_shm *, struct ft_shm_link *, int reason, bool orderly);
int ft_shm_watch(struct ft_shm *, struct ft_shm_socket *, uint32_t events);
void ft_shm_socket_close(struct ft_shm *, struct ft_shm_socket *);
void ft_shm_say(struct ft_shm_socket *, unsigned char word);

#endif

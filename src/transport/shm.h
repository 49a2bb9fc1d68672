/*
 * shm: internal to the shm transport: shm.c (addresses, links, the vtable) and shm_setup.c (what
 * happens on its sockets).
 */
#ifndef FT_SHM_H
#define FT_SHM_H

#include "transport/local.h"

#define FT_SHM_NAME_BYTES 32
#define FT_SHM_STRANGERS 16 /* accepted connections that are not links yet */

/* Single bytes on the socket after the handshake. */
enum {
    FT_SHM_BELL = 2,
    FT_SHM_BYE,
    FT_SHM_ACCEPTED = 16,
    FT_SHM_ARENA = 1,
    FT_SHM_PULLS = 2,
    FT_SHM_PINNED = 4, /* accepted, and added to it: which memory of the sender's can be read */
    FT_SHM_ANSWERS = 24,
    FT_SHM_REFUSED = 64, /* minus the status */
};

/* What an epoll event points at: the first member of its owner. */
struct ft_shm_socket {
    enum { FT_SHM_LISTENER, FT_SHM_STRANGER, FT_SHM_LINK } kind;
    int fd;
    uint32_t watched; /* epoll events; 0: not in the set */
};

/* The segment's offer, sent with its descriptor, those of the sender's liveness page, its arena, to
 * read, and its pinned memory (if that one has no bytes something else stands there). The
 * receiver's liveness page comes with FT_SHM_ACCEPTED. Whoever can read the cookie where it lies in
 * the sender's memory can read its messages there; without an address it lends nothing of that. */
struct ft_shm_offer {
    uint64_t chunk_bytes, len_bytes, arena_bytes, cookie_at, cookie;
    struct ft_pinned_place pinned;
};

enum ft_shm_stage { FT_SHM_READY, FT_SHM_DIAL, FT_SHM_AUTH, FT_SHM_OFFER, FT_SHM_ANSWER };

struct ft_shm_link {
    struct ft_shm_socket socket;
    struct ft_local_link local;
    enum ft_shm_stage stage; /* READY: up or down */
    struct ft_auth auth;
    uint64_t deadline_ns; /* of the set-up */
    char name[FT_SHM_NAME_BYTES];
    int segment;                  /* until it was handed over */
    struct ft_liveness *liveness; /* of the peer's process; NULL before the set-up is done */
    void *memory;
    size_t len_bytes;
    uint64_t cookie;   /* sender: to be read here by the receiver */
    int pid;           /* receiver: of the sender's process, as this one sees it */
    const void *arena; /* receiver: the sender's */
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
    int liveness; /* descriptor of this process's liveness page, not owned; -1 */
    /* given up for a moment to turn a connection away when descriptors have run out */
    int spare;
    struct ft_shm_socket listener;
    char name[FT_SHM_NAME_BYTES];
    unsigned setups; /* strangers, and links that are being set up */
    unsigned strangers;
    unsigned polls; /* since the last look at the clock */
    uint64_t looked_ns;
    struct ft_shm_stranger stranger[FT_SHM_STRANGERS];
};

/* Everything that waits on the sockets, and deadlines of set-ups; true if anything moved. */
bool ft_shm_look(struct ft_shm *, uint64_t now_ns);

struct ft_shm_link *ft_shm_link_make(struct ft_shm *, uint64_t peer, bool sender);
int ft_shm_link_dial(struct ft_shm *, struct ft_shm_link *); /* FT_AGAIN: try later */
void ft_shm_link_settle(struct ft_shm *, struct ft_shm_link *);
void ft_shm_link_lost(struct ft_shm *, struct ft_shm_link *, int reason, bool orderly);
int ft_shm_watch(struct ft_shm *, struct ft_shm_socket *, uint32_t events);
void ft_shm_socket_close(struct ft_shm *, struct ft_shm_socket *);
void ft_shm_say(struct ft_shm_socket *, unsigned char word);

#endif

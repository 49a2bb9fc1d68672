/*
 * Private to the client of managed membership. client.c has its life and what its callers do,
 * client_conn.c the connection to a coordinator, client_view.c how a view is made of the last one
 * and a message. The client's lock protects everything but what only the thread uses. The thread
 * gives it up to sleep and to call `broken`.
 */
#ifndef FT_CLIENT_H
#define FT_CLIENT_H

#include "membership/managed.h"

#include <pthread.h>

#define FT_CLIENT_LEAVE_NS UINT64_C(100000000)

/* Endpoints that views share: a view that comes again costs no copy. */
struct ft_endpoints {
    atomic_int refs;
    int n;
    struct ft_endpoint at[];
};
/* What the client keeps of the last view. peers NULL: none. */
struct ft_client_held {
    uint64_t term, epoch;
    int rank;
    uint32_t times; /* how often it has come */
    struct ft_endpoints *peers, *local;
};
void ft_client_held_clear(struct ft_client_held *);
/* Changes what is held to what a message says, if it returns FT_OK. FT_PROTOCOL: the message makes
 * no sense for a member of this role and engine; FT_NOMEM. With sentences. */
int ft_client_held_apply(struct ft_client_held *, const struct ft_members_view *,
                         const struct ft_role *, uint64_t engine);
/* The view for the caller, after ft_client_held_apply(). NULL: no memory. */
struct ft_managed_view *ft_client_held_view(const struct ft_client_held *,
                                            const struct ft_members_view *, const struct ft_role *,
                                            bool same);

enum ft_client_stage {
    FT_CLIENT_RESTS,    /* until retry_ns */
    FT_CLIENT_CONNECTS, /* to `address` */
    FT_CLIENT_PROVES,   /* the key */
    FT_CLIENT_JOINS,    /* waits to be accepted; from rejoin_ns on it asks once more */
    FT_CLIENT_MEMBER
};

/* Only the thread uses it. */
struct ft_client_conn {
    enum ft_client_stage stage;
    int fd, address, tried; /* tried: addresses since the last rest */
    struct ft_auth auth;
    struct ft_detect detect;
    struct ft_pulse pulse; /* what comes from the coordinator */
    uint64_t begun_ns, retry_ns, rejoin_ns, beat_ns;
    unsigned failures, refusals; /* in a row */
    unsigned char *in, *out;
    size_t in_len, in_room, out_len, out_room;
};

/* What the caller of ft_client_view() wants. Without one, the last ASK still counts for the
 * coordinator, and `fresh` keeps what it gives. */
struct ft_client_ask {
    bool open;  /* a caller waits, and has bound what it needs */
    bool bound; /* to the view after that of term and epoch, by this caller or the last one */
    bool sent;  /* on the present connection */
    bool failed;
    uint64_t term, epoch, step;
    unsigned char *dead; /* 8 bytes each */
    uint32_t ndead;
};

struct ft_client_try {
    int status;
    char why[120];
};

struct ft_client {
    struct ft_client *next, **link; /* of those in this process */
    struct ft_client_config config;
    uint64_t engine;
    unsigned char endpoint[FT_ENDPOINT_WIRE_MAX];
    size_t endpoint_bytes;
    pthread_t thread;
    bool started;
    int wake;
    pthread_mutex_t lock;
    pthread_cond_t changed;

    bool stops, leaves;
    int refused; /* for good: a status, with the sentence in `why` */
    char why[FT_FAIL_BYTES];
    bool connected, accepted; /* by a coordinator, now */
    bool was_accepted;        /* once */
    struct ft_role role;
    uint64_t term, epoch; /* the last view's, as the coordinator says; accepted */
    struct ft_client_ask ask;
    struct ft_client_held held;
    bool base_lost;                /* the coordinator has another idea of `held` */
    struct ft_managed_view *fresh; /* nobody has taken it yet */
    uint64_t given_term, given_epoch, broken_term, broken_epoch;
    /* There is a view with this member that its caller cannot get, as nothing is bound to it. So
     * the next must be a new one. */
    bool missed;
    char waits[FT_FAIL_BYTES], again[FT_FAIL_BYTES]; /* what the coordinator said; "" */
    struct ft_client_try tried[FT_COORDINATORS_MOST];

    struct ft_client_conn conn;
};

/* ---- client_conn.c; the caller is the thread and has the lock -------------------------------- */

void ft_client_conn_open(struct ft_client *, uint64_t now_ns);
/* Does what can be done without waiting. */
void ft_client_conn_turn(struct ft_client *, uint64_t now_ns);
/* For how long nothing is due, and what to wait for on conn.fd; 0: nothing. */
uint64_t ft_client_conn_wait(const struct ft_client *, uint64_t now_ns, short *events);
/* Without the lock, when no caller is left. */
void ft_client_conn_close(struct ft_client *);

#endif

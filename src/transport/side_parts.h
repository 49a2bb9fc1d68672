/*
 * The inside of side connections. side.c has the calls and the turn; side_session.c makes and ends
 * the pair of links with one peer; side_conn.c has conversations and their messages.
 *
 * On the wire each message is one of the tcp transport: lane FT_LANE_CTL of SIDE_CTX, with the
 * operation in `step`, the conversation in `sig` and a kind or a reason in `seq`. The first message
 * of a link is SIDE_HELLO with struct side_hello and the address to dial back.
 */
#ifndef FT_SIDE_PARTS_H
#define FT_SIDE_PARTS_H

#include "transport/side.h"

#define SIDE_CTX 0x6674736964650001u
#define SIDE_TICK_NS 5000000u     /* time between two checks of the deadlines */
#define SIDE_LOOK_NS 100000u      /* least time between two looks at the sockets */
#define SIDE_BACK_NS 10000000000u /* time to dial back, and for the first message of a link */
#define SIDE_OPEN_NS 20000000000u /* time until a conversation is UP */
#define SIDE_REST_NS 50000000u    /* what is left to read, when only the link to the peer broke */
#define SIDE_QUEUE (FT_SIDE_QUEUE + 2) /* with the first and the last message of this side */
#define SIDE_TEXT_BYTES 200

enum side_op { SIDE_HELLO, SIDE_OPEN, SIDE_OPENED, SIDE_MESSAGE, SIDE_CLOSE, SIDE_OPS };
enum side_close { SIDE_CLOSE_GOODBYE, SIDE_CLOSE_BROKEN, SIDE_CLOSES };

struct side_hello {
    uint64_t nonce;   /* of the sender's session */
    uint64_t answers; /* nonce of the session that it answers; 0: it has dialled by itself */
};

struct side_out {
    struct ft_send req;
    struct ft_header header;
    unsigned char data[FT_SIDE_BYTES];
};

struct side_conn {
    struct ft_side_conn base; /* must be the first field */
    struct ft_side *side;
    struct side_session *session; /* NULL: it is down, and in side->orphans */
    struct side_conn *next;
    uint32_t number; /* chosen by the opener, unique in the session together with `opener` */
    bool opener;     /* this side has opened it */
    bool up;
    bool closed;    /* the caller has disconnected it */
    bool down;      /* nothing more comes and nothing is taken */
    bool told_down; /* the caller has the event */
    int reason;
    bool orderly, silent;
    uint64_t deadline_ns; /* until it is up */
    /* A ring. The first `given` messages are with the link. */
    unsigned head, count, given;
    char text[SIDE_TEXT_BYTES];
    struct side_out out[SIDE_QUEUE];
};

/* The pair of links with one peer. */
struct side_session {
    struct ft_side *side;
    struct side_session *next;
    uint64_t peer;
    uint64_t nonce, answers;
    struct ft_link *tx, *rx; /* rx: NULL until the peer has dialled back */
    bool greeted;            /* the first message was sent */
    uint64_t back_ns;        /* deadline for rx; 0: tx is not up yet */
    uint64_t rest_ns;        /* tx is down: deadline for what rx still brings; 0: it is not */
    uint32_t last_number;
    struct side_conn *conns;
    struct side_out hello;
};

/* A link whose first message has not come. */
struct side_stranger {
    struct side_stranger *next;
    struct ft_link *link;
    uint64_t deadline_ns;
};

struct ft_side {
    struct ft_transport *tcp;
    struct ft_env *env;
    int rank;
    struct side_session *sessions;
    struct side_stranger *strangers;
    struct side_conn *orphans;
    bool backlog;              /* something waits that needs no byte from the network */
    bool unsent;               /* messages of conversations wait for a link, or are with it */
    uint64_t look_ns, tick_ns; /* earliest times of the next look and the next tick */
    /* of the poll under way: */
    struct ft_side_event *events;
    int nevents, max;
    unsigned char copy[FT_SIDE_EVENTS][FT_SIDE_BYTES]; /* messages of the last poll's events */
};

/* side_session.c. `text` of a failure is ft_fail_text(). */
/* Finds the session with a peer, or dials a new one. */
int side_session_get(struct ft_side *, uint64_t peer, const void *address, size_t len_bytes,
                     struct side_session **out);
/* Hands what waits to the link, if it takes messages already. */
void side_session_pump(struct side_session *);
void side_session_end(struct side_session *, int reason, bool orderly, bool silent);
void side_sessions_turn(struct ft_side *, uint64_t now_ns);
/* Frees all sessions and strangers. Says goodbye, unless conversations that were cut would not be
 * told apart. */
void side_sessions_close(struct ft_side *);
void side_accepted(struct ft_side *, struct ft_link *);

/* side_conn.c */
struct side_conn *side_conn_open(struct side_session *, uint32_t number, bool opener);
/* Appends a message; there is room. */
void side_conn_put(struct side_conn *, enum side_op, unsigned seq, const void *data, size_t len);
/* Hands the messages of all conversations to the link. */
void side_conns_pump(struct side_session *);
/* Takes one message of the peer. FT_PROTOCOL, FT_NOMEM: the session cannot go on. */
int side_conn_take(struct side_session *, const struct ft_msg *);
void side_conn_down(struct side_conn *, int reason, bool orderly, bool silent);
void side_conns_expire(struct side_session *, uint64_t now_ns);
/* Frees conversations that the caller has disconnected, and that have nothing left to send. */
void side_conns_reap(struct ft_side *);
/* Adds the events of conversations that went down. */
void side_conns_tell(struct ft_side *);

#endif

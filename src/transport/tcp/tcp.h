/*
 * tcp: the inside of the tcp transport. tcp.c has the transport and its turn; link.c makes links;
 * conn.c reads and returns credits on one connection; out.c is what a connection sends, kept until
 * the other side has it; remake.c makes a connection again that was reset; move.c moves one to
 * another way through the network, paths.c says to which; spread.c chooses the connection of a
 * message; tune.c sets socket options; silence.c finds hosts that do not answer any more; measure.c
 * asks the kernel what it knows of a link.
 *
 * A link is FTCCL_TCP_CONNECTIONS or FTCCL_PATHS sockets from the sender to the receiver, each
 * authenticated by ft_auth. Each channel has a socket of its own (lane modulo their number), its
 * home, and stays in order there. Only with FTCCL_PATHS do its long messages take the sockets in
 * turn (spread.c), and the receiver puts them in order by their numbers (docs/decisions/0025). The
 * sender sends struct ft_header and payload, one message after another, and at the end a header
 * with the lane TCP_GOODBYE. The receiver sends struct tcp_credit, over the socket of the message.
 *
 * If both sides can, a connection that is reset is made again (docs/decisions/0020). The bytes of
 * messages are numbered from the first of the connection. The receiver then says up to which number
 * it has them, in a credit with lane TCP_POSITION. What its kernel has not acknowledged stays in
 * the queue of the sender.
 */
#ifndef FT_TCP_H
#define FT_TCP_H

#include "telemetry/telemetry.h"
#include "transport/news.h"
#include "transport/rxq.h"
#include "transport/transport.h"

#define TCP_CONNS_MAX 16
#define TCP_GOODBYE 0xffff  /* lane of the last header or credit of a connection */
#define TCP_POSITION 0xfffd /* lane of the credit that tells where a connection goes on */
#define TCP_PING 0xfffc     /* lane of a message that is only to be acknowledged */
#define TCP_ASKS 0x4000     /* added to a header's lane: the kernel should acknowledge it soon */
#define TCP_NUMBER_SHIFT 4  /* 8 bits of the lane, if the link spreads: the message's number */
#define TCP_NUMBERS 0xff0
#define TCP_FILL_BYTES 65536 /* longest TCP_PING: to measure how fast a connection is */
/* Flags of the handshake's detail, above what link.c has there. */
#define TCP_CAN_RESUME (1ull << 32) /* the sender keeps what has not arrived */
#define TCP_RESUMES (1ull << 33)    /* the connection takes the place of one that was reset */
#define TCP_ATTEMPT_SHIFT 34        /* 16 bits: the number of the dial, if it resumes */
#define TCP_SPREADS (1ull << 50)    /* messages of a channel come by several connections */
/* the same in all connections of a link */
#define TCP_SIBLING_BITS (0x1ffffff00ull | TCP_SPREADS)
#define TCP_USES_MOST 256 /* most channels with messages in use when a connection is made again */
/* Most messages of one connection that the other side may not have; then FT_AGAIN. */
#define TCP_QUEUE 128
#define TCP_COPY_BYTES 65536  /* memory of a connection for copies of small messages */
#define TCP_BUFFERS 32        /* buffers of a sending link, for reserve; then FT_AGAIN */
#define TCP_BUFFERS_IN_TURN 4 /* so many are in the cache; with more it is looked for free ones */
#define TCP_READ_BYTES 4224   /* most bytes read after a header: they are copied once more */
#define TCP_CREDITS 64        /* most channels with credits to return; then they are sent at once */
/* Longest small message. A window has places for more of these, see rxq.h: */
#define TCP_SMALL_BYTES 2048
#define TCP_PLACES_FIRST FT_WINDOW_SMALL
#define TCP_PLACES 16
#define TCP_FLIGHT_BYTES 16384 /* shortest part of a message whose time on the way is measured */
#define TCP_AWAITED 8          /* most connections that are read first */
#define TCP_PROBES 8           /* connections that measure a message at the same time */
#define TCP_UNKNOWN_MAX 64     /* most unauthenticated connections; more wait in the kernel */
#define TCP_UNKNOWN_NS 5000000000u
#define TCP_UNKNOWN_CROWDED_NS 1000000000u /* the same when others wait for its place */
/* most authenticated connections whose link is not complete */
#define TCP_JOINED_MAX 4096
#define TCP_CONNECT_NS 10000000000u
#define TCP_TICK_NS 5000000u /* time between two checks of the deadlines */

struct tcp_credit {
    uint64_t ctx;
    uint16_t lane, count;
    uint32_t zero;
};
_Static_assert(sizeof(struct tcp_credit) == 16, "struct tcp_credit is a wire format");

/* A message that the other side's kernel may not have. */
struct tcp_out {
    struct ft_header header;
    const void *data;    /* its payload; of a copy, header and payload */
    struct ft_send *req; /* completes when the user's memory is not needed; NULL: it is not used */
    int buffer;          /* number of the buffer with the message; -1: none */
    uint32_t copy_bytes; /* it takes so much of the connection's copies; 0: it is no copy */
};

/* RESUMING: made again; the other side has not said yet what it has. PARKED: another one has taken
 * its place, and it is open until the other side has said that. PROBING, PROBED: only to learn
 * whether the other side's process lives, being connected and connected; see remake.c. */
enum tcp_conn_state {
    TCP_DIALING,
    TCP_PROVING,
    TCP_JOINED,
    TCP_RESUMING,
    TCP_OPEN,
    TCP_PARKED,
    TCP_PROBING,
    TCP_PROBED,
    TCP_SHUT
};

/* Of a connection that was reset, or may be. */
struct tcp_remake {
    uint64_t broke_ns; /* since when it is broken; 0: it is not */
    uint64_t retry_ns; /* when it is dialled, or the other side is probed, next */
    uint64_t try_end_ns;
    uint64_t made_ns, made_at; /* when it was made again last, and at which position */
    unsigned tries;
    unsigned in_vain;    /* times that it was made again and broke at once */
    uint64_t in_vain_ns; /* since when */
    int address;
    unsigned uses_left;     /* of what the other side says: channels that have not come */
    struct tcp_conn *probe; /* of a receiving link */
};

/* Of a connection of a sending link that is moved, or may be; see move.c. */
struct tcp_move {
    struct tcp_conn *second; /* it will take the place of this one; then it has its old socket */
    uint64_t begun_ns;
    bool stalls;         /* because it stalls; otherwise only because another way is better */
    unsigned tries;      /* since the last acknowledgement, because it stalls */
    uint64_t acked;      /* bytes that were acknowledged at the last look */
    uint64_t active_ns;  /* time of the last look that found something new */
    uint64_t stalled_ns; /* since when no more were, while it waits; 0: it does not */
};

/* Which way a connection of a sending link takes, see paths.c. */
struct tcp_way {
    bool settled; /* nothing is to be done before again_ns, if it is not made again */
    uint64_t again_ns;
    uint64_t made_ns; /* when it was made last, at that time */
    unsigned tries;   /* ports that it was to move to, since it was settled */
    uint16_t port;
    int class_index, nclasses; /* of the port; FT_PATH_UNKNOWN; 0: no ways are known */
};

/* How fast a connection of a sending link that spreads is, see spread.c. */
struct tcp_speed {
    uint64_t busy_ns, bytes; /* it took so long for so many bytes, in the last seconds */
    uint64_t bound;          /* it took at most so long for 1024 bytes; 0: not known */
    /* what was given and acknowledged when it was looked last; 0: it was idle */
    uint64_t look_ns, look_given, look_acked;
    uint64_t used_ns; /* when it was given a long message last */
    /* It is asked when it was not used for so long; what had been given to it when it was last. */
    uint64_t wait_ns, asked_given;
};

struct tcp_conn {
    struct tcp *tcp;
    struct tcp_link *link; /* NULL until an accepted connection belongs to a link */
    struct tcp_conn *next; /* in tcp->unknown, tcp->joined or tcp->dead */
    int fd, index;         /* its number in the link */
    int address;           /* of a sending link: the number of the one at which it was made */
    enum tcp_conn_state state;
    uint32_t wanted;   /* events registered with epoll */
    uint64_t since_ns; /* when the connection began */
    struct ft_auth auth;
    bool goodbye; /* the other side has said goodbye */
    bool awaited; /* it is in tcp->awaited */
    bool wrote;   /* it was written to since all bytes were last seen acknowledged */
    bool reset;   /* its last failure was a reset, which may not be the peer's end */
    bool broken;  /* the kernel has told a reset; what came before it can still be read */
    bool refused; /* its last failure was that nobody listens there */
    bool late;    /* it took the place of one that was reset before its link was complete */
    struct tcp_conn *replaces; /* it is the second one of that */
    uint16_t attempt; /* number of the last dial that resumes it; of a receiver, that it took */
    struct tcp_remake remake;
    struct tcp_move move;
    struct tcp_way way;
    struct tcp_speed speed;
    /* for reading: */
    uint64_t position;        /* bytes of whole messages that have come */
    uint8_t number;           /* of the current message in its channel, if the link spreads */
    bool asked;               /* the sender waits for the acknowledgement of the current message */
    bool reading;             /* tcp_conn_read() is under way */
    size_t have;              /* bytes in ahead[] */
    size_t body_left;         /* bytes of the current message's payload that have not come */
    bool early;               /* a message's header stayed in ahead[] for a turn */
    struct ft_rxq_node *node; /* of that message; NULL: its payload is dropped */
    /* If the kernel had no more of the message: when, and how much was missing. */
    uint64_t flight_ns;
    size_t flight_bytes;
    struct ft_header dropping;
    /* for writing: the queue begins with messages that are written and kept; others follow */
    unsigned out_first, out_kept, out_count, out_reserved;
    size_t out_done;       /* bytes of the first message after the kept ones that are written */
    uint64_t given;        /* position at which the queue ends */
    uint64_t written;      /* bytes in all */
    uint64_t released;     /* position at which the first message of the queue begins */
    unsigned unsafe;       /* kept messages in the user's memory */
    uint64_t acknowledged; /* position that the other side's kernel had, when looked last */
    uint64_t before_first; /* bytes of the socket before position 0, modulo 2^64 */
    /* When the first of these is copied if nothing is acknowledged or written before. `late_at`:
     * what was written then. */
    uint64_t late_ns, late_at;
    size_t keep_done; /* bytes of it that are copied */
    unsigned char *copies;
    size_t copies_end, copies_used;
    unsigned places; /* that the other side has not given back */
    /* The message of which it is measured when the other host has it: when it was given to the
     * connection, how many bytes are written then, and the last look. */
    uint64_t probe_ns, probe_end, probe_look_ns;
    unsigned ncredits, credit_age;
    bool due;            /* the other side may wait for some of the credits */
    size_t credit_done;  /* bytes of the first credit that are written */
    struct tcp_out *out; /* [TCP_QUEUE], of sending links */
    struct tcp_credit credits[TCP_CREDITS];
    unsigned char ahead[TCP_READ_BYTES];
};

struct tcp_link {
    struct ft_link base; /* must be the first field */
    struct tcp *tcp;
    struct tcp_link *next;
    struct ft_news news;
    bool failing;
    bool resumable; /* a connection that is reset is made again */
    bool spreads;   /* messages are numbered, and a channel's long ones go by any connection */
    uint16_t generation;
    bool ways_told; /* the log has a line about them */
    /* Since when its connections are not equally fast, and when ports may be probed again for that;
     * how long that was put off last. */
    uint64_t uneven_ns, probe_ns, put_off_ns;
    int nconns, nopen;
    struct tcp_conn *conn[TCP_CONNS_MAX];
    struct ft_rxq rxq; /* of a receiving link */
    /* Of a receiving link, see short.c: the message that was looked for last, its reads in vain,
     * and calls since that have not read. */
    uint32_t read_seq;
    unsigned reads, unread;
    struct ft_flights flights; /* of a receiving link */
    struct ft_link_path past;  /* of a sending link: what its closed sockets had counted */
    struct ft_txq txq;         /* of a sending link */
    unsigned char *buffers;    /* of a sending link: TCP_BUFFERS times buffer_bytes */
    uint32_t buffers_free;     /* a bit per buffer */
    struct ft_pages pages[TCP_BUFFERS];
    /* A bit per buffer: its place has been chosen. */
    uint32_t placed;
    void *pinned[TCP_BUFFERS]; /* the buffer in memory that devices can reach; NULL: in `buffers` */
    struct ft_rxq_use reserved[TCP_BUFFERS];   /* for which channel; 0 places: none */
    struct tcp_conn *reserved_on[TCP_BUFFERS]; /* by which connection it will go */
    int chosen;                                /* the connection for a long message, last */
    uint64_t spread_ns;                        /* and when that was */
    /* while the link is being made: */
    uint64_t deadline_ns, try_deadline_ns;
    int naddresses, address_next;
    bool shares;    /* connections take turns over the peer's addresses */
    int redials;    /* times that an address was dialled again after a reset */
    int unanswered; /* times that connections to this address were dialled again without an answer
                     */
    bool silent;    /* an address did not answer in time */
    /* Addresses on which the peer listens. */
    struct ft_net_address address[FT_NET_ADDRESSES];
    struct ft_net_address from; /* of a receiving link: the other end of its first connection */
    bool knows_from;            /* address[0] is `from`, with the port on which the peer listens */
};

struct tcp {
    struct ft_transport base; /* must be the first field */
    int epoll_fd;
    int listener[2]; /* IPv4 and IPv6; -1: none */
    bool listening;  /* false while no descriptors are free */
    bool short_told; /* the log has a line about it */
    /* The system's congestion control, if the listeners use another one; "": they do not. */
    char paced[16];
    int naddresses;
    struct ft_net_address address[FT_NET_ADDRESSES];
    struct ft_rxq_set set;
    size_t buffer_bytes;
    uint16_t generation; /* distinguishes the links of one peer while they are made */
    struct tcp_link *links;
    struct ft_news_list news;
    struct tcp_conn *unknown, *joined, *dead;
    int nunknown, njoined, nmaking;
    /* Connections on which a caller looked for a message or credits in vain; none have come
     * since. */
    struct tcp_conn *awaited[TCP_AWAITED];
    unsigned nawaited;
    struct tcp_conn *probed[TCP_PROBES]; /* connections that measure a message */
    unsigned nprobed;
    unsigned nclogged;      /* connections that wait until the kernel takes more bytes */
    unsigned nbroken;       /* connections that were reset and are not made again yet */
    unsigned nunsafe;       /* written messages in memory of users */
    unsigned busy;          /* turns that found something to do while there were any */
    uint64_t remake_ns;     /* how long a connection may be broken; 0: links are not made again */
    unsigned skipped, skip; /* turns without epoll in a row, and how many are allowed */
    unsigned kept;          /* turns since credits that are not due were returned */
    uint64_t tick_ns;
    uint64_t move_ns;    /* time of the next look for connections that stall */
    bool came;           /* looks have read something; no turn knows of it */
    unsigned polls;      /* since the last look at the clock for silence and stalls */
    uint64_t path_ns;    /* time of the next look for connections that should take other ways */
    bool finding;        /* it is being found out which ports those are */
    bool wrote;          /* what a sending connection wrote may not be acknowledged yet */
    uint64_t silence_ns; /* time of the next check for silence */
    /* Connections with credits to return; of these, connections with credits that are due. */
    unsigned ncredits, ndue;
    unsigned char scratch[65536];
};

static inline uint64_t tcp_now_ns(const struct tcp *t)
{
    return ft_now_ns(t->base.config.env);
}

/* A header's lane without TCP_ASKS and the message's number. Not for TCP_GOODBYE. */
static inline unsigned tcp_lane_of(const struct ft_header *h)
{
    return h->lane & ~(unsigned)(TCP_ASKS | TCP_NUMBERS);
}

/* The connection of a lane's messages, unless the link spreads them. */
static inline struct tcp_conn *tcp_home_of(const struct tcp_link *l, unsigned lane)
{
    return l->conn[lane % (unsigned)l->nconns];
}

/* Whether this connection may carry messages of the lane, and their credits. */
static inline bool tcp_may_carry(const struct tcp_conn *c, unsigned lane)
{
    const struct tcp_link *l = c->link;
    return (l->spreads && lane <= FT_LANE_P2P) || (int)lane % l->nconns == c->index;
}

/* conn.c. A status is FT_OK, FT_AGAIN, or the reason why the connection is lost. */
struct tcp_conn *tcp_conn_open(struct tcp *, int fd, enum tcp_conn_state state, bool sender);
/* Takes it out of epoll and closes it. Its memory is freed at the end of the turn, or with its
 * link. */
void tcp_conn_close(struct tcp_conn *);
void tcp_conn_free(struct tcp_conn *);
void tcp_conn_want(struct tcp_conn *, uint32_t events);
int tcp_conn_read(struct tcp_conn *, bool *moved);
int tcp_conn_write(struct tcp_conn *, bool *moved); /* writes what waits: messages or credits */
/* The connection gets the descriptor, and is watched for `events`. FT_OK or FT_SYSTEM. */
int tcp_conn_reopen(struct tcp_conn *, int fd, enum tcp_conn_state state, uint32_t events);
/* Bytes of messages that have come, up to the last one that is not passed on. */
uint64_t tcp_conn_position(const struct tcp_conn *);
/* The connection is lost for that reason; notes what kind of failure it was. */
int tcp_conn_lost(struct tcp_conn *, int err);
void tcp_conn_credit(struct tcp_conn *, uint64_t ctx, unsigned lane, unsigned places);
int tcp_conn_return_credits(struct tcp_conn *);
void tcp_conn_say_goodbye(struct tcp_conn *);
/* A caller waits for a message of this lane, or for credits. */
void tcp_link_await(struct tcp_link *, unsigned lane);
bool tcp_errno_is_full(int err); /* the socket cannot take bytes now */
ssize_t tcp_transmit(int fd, const void *buf, size_t len_bytes);

/* out.c */
bool tcp_out_open(struct tcp_conn *); /* makes the queue; false: no memory */
/* The caller has checked tcp_out_has_room(). If it fails, the message is not accepted. */
int tcp_out_send(struct tcp_conn *, const struct ft_header *, const void *data, struct ft_send *req,
                 int buffer);
/* Sends a message that the receiver drops, so that its kernel acknowledges something, with so many
 * bytes of payload (at most TCP_FILL_BYTES). FT_AGAIN: the queue is full. Otherwise like
 * tcp_out_send(). */
int tcp_out_ping(struct tcp_conn *, uint32_t len_bytes);
int tcp_out_write(struct tcp_conn *, bool *moved);
static inline bool tcp_out_has_room(const struct tcp_conn *c)
{
    return c->out_kept + c->out_count + c->out_reserved < TCP_QUEUE;
}
/* Returns whether a message of that length, sent now, would be copied. Then it needs its struct
 * ft_send no longer than the call. */
bool tcp_out_copies(struct tcp_conn *, size_t len_bytes);
bool tcp_out_flushed(const struct tcp_conn *); /* all that was sent is on its way */
void tcp_out_drop(struct tcp_conn *, int status);
/* A connection is open: the next byte has the position `written`. FT_NOTSUP: the kernel does not
 * tell what is acknowledged. FT_LINK: it has been reset. */
int tcp_out_begin(struct tcp_conn *);
/* Lets go of messages that the other side's kernel has acknowledged. One system call. */
void tcp_out_look(struct tcp_conn *);
/* The other side has everything before the position; the rest is sent again. Adds what is sent
 * again to the connection's places. FT_PROTOCOL: that cannot be. FT_LINK: it has less than was
 * acknowledged. */
int tcp_out_rewind(struct tcp_conn *, uint64_t position);
/* Looks which messages in users' memory are acknowledged, and copies a piece of one that waits too
 * long for that, or of any (`now`). False: nothing has changed. */
bool tcp_out_turn(struct tcp *, bool now);

/* short.c */
int tcp_post(struct ft_link *, const struct ft_header *, const void *data);
const void *tcp_look(struct ft_link *, const struct ft_header *want);
void tcp_took(struct ft_link *, const struct ft_header *);

/* remake.c */
/* A connection of a link that is UP is lost: it is made again, or the link is down. */
void tcp_conn_failed(struct tcp_conn *, int status);
void tcp_remakes_turn(struct tcp *, bool *moved);
/* A broken connection that is dialled, or resumes, has failed again: it is dialled later, or the
 * link is down. */
void tcp_remake_failed(struct tcp_conn *, int status);
void tcp_probe_event(struct tcp_conn *);
/* An authenticated connection wants to take the place of another one. True: it belongs to a link
 * that is still being made. False: nothing more is to be done with it. */
bool tcp_remake_accept(struct tcp *, struct tcp_conn *);
void tcp_remake_tell(struct tcp_conn *);
int tcp_remake_told(struct tcp_conn *, const struct tcp_credit *);
void tcp_remake_forget(struct tcp_link *); /* the link is down */
void tcp_link_peer_at(struct ft_link *, const void *address, size_t len_bytes);

/* The connection gets the socket of `second`, whose handshake goes on. */
void tcp_remake_moved(struct tcp_conn *, struct tcp_conn *second);
/* For ft_auth, of one more dial that resumes this connection. */
uint64_t tcp_remake_detail(struct tcp_conn *);

/* move.c */
bool tcp_can_move(const struct tcp_conn *); /* and is not moved already */
/* Dials a second connection, which takes the place of this one, from a source port; 0: any. FT_OK:
 * it has begun. FT_AGAIN: the port is taken, or the connection cannot be moved now. `stalls`: it is
 * not needed if the connection goes on by itself. */
int tcp_conn_move(struct tcp_conn *, uint16_t source_port, bool stalls);
/* The receiver may take `second` for the first now. Returns the first, which has its socket. */
struct tcp_conn *tcp_move_claimed(struct tcp_conn *second);
void tcp_move_failed(struct tcp_conn *second);
void tcp_move_forget(struct tcp_conn *); /* closes its second one */
/* Moves connections that stall. */
void tcp_moves_turn(struct tcp *, uint64_t now_ns);
uint64_t tcp_moves_look_ns(const struct tcp *); /* how soon it wants its next turn */

/* paths.c */
/* Moves connections to the ways that they should take, if the engine finds out which ports those
 * are. */
void tcp_paths_turn(struct tcp *, uint64_t now_ns);
uint64_t tcp_paths_look_ns(const struct tcp *); /* like tcp_moves_look_ns() */
/* A source port of another way than that of a connection that stalls; 0: none is known. */
uint16_t tcp_paths_other(struct tcp_conn *);

/* spread.c */
/* The connection by which a message should go. */
struct tcp_conn *tcp_spread_choose(struct tcp_link *, const struct ft_header *);
void tcp_speed_given(struct tcp_conn *);  /* a long message was given to it */
void tcp_speed_note(struct tcp_conn *);   /* it was looked what is acknowledged */
void tcp_speed_forget(struct tcp_conn *); /* it will go another way */
/* Nanoseconds for 1024 bytes. 0: not known. */
uint64_t tcp_speed_per_kib(const struct tcp_conn *);
bool tcp_speed_matters(const struct tcp_conn *, uint64_t now_ns); /* its link is in use */
/* Of two connections of the link one is known to take half as long again for the same bytes. */
bool tcp_speeds_differ(const struct tcp_link *);
/* If messages go by others and nothing by this one, asks how fast it is. Fails like
 * tcp_out_send(). */
int tcp_speed_ask(struct tcp_conn *, uint64_t now_ns);

/* link.c */
int tcp_link_connect(struct ft_transport *, uint64_t peer, const void *address, size_t len_bytes,
                     struct ft_link **out);
void tcp_link_free(struct tcp_link *);
void tcp_link_down(struct tcp_link *, int reason);
void tcp_link_trim(struct tcp_link *);
unsigned char *tcp_link_buffer(struct tcp_link *, int i, unsigned lane);
void tcp_link_goodbye(struct tcp_conn *); /* the other side said goodbye on this connection */
/* Reads what came before the end. Returns the end: FT_OK, there was none, or its status. */
int tcp_conn_read_rest(struct tcp_conn *);
/* Closes a connection that is not of a complete link, and frees it at the end of the turn. */
void tcp_conn_retire(struct tcp_conn *);
/* Of the same link that is being made. */
bool tcp_conns_are_siblings(const struct tcp_conn *, const struct tcp_conn *);
uint64_t tcp_detail_of(const struct tcp_link *, int index); /* what both sides can */
int tcp_detail_index(uint64_t detail);
int tcp_detail_count(uint64_t detail);
uint16_t tcp_detail_attempt(uint64_t detail);
/* handles epoll's events, in any state */
void tcp_conn_event(struct tcp_conn *, uint32_t events, bool *moved);
void tcp_accept(struct tcp *, int listener, bool *moved);
void tcp_check_deadlines(struct tcp *, uint64_t now_ns, bool *moved);

/* Begin of an entry among the addresses of a transport: it makes links again. TCP_CAN_SPREAD after
 * it: a channel's messages may come by several connections. Other versions pass over it, because it
 * is no address. */
extern const unsigned char tcp_can_resume[FT_NET_WIRE_BYTES];
#define TCP_CAN_RESUME_BYTES 8 /* of it; TCP_CAN_SPREAD follows */
#define TCP_CAN_SPREAD 1
bool tcp_speaks(const struct tcp *, int family); /* this side has an address of that family */

/* tune.c */
void tcp_tune(const struct tcp *, int fd, bool accepted);
void tcp_tune_listener(struct tcp *, int fd);
bool tcp_is_own(const struct tcp *, const struct ft_net_address *); /* an address of this machine */
/* for ft_net_connect() */
const char *tcp_congestion(const struct tcp *, const struct ft_net_address *to);

/* measure.c */
bool tcp_measure(struct ft_link *, struct ft_link_path *out);
int tcp_connections(struct ft_link *, struct ft_link_conn *out, int most);
void tcp_measure_keep(struct tcp_conn *); /* the socket of a sending link is about to be closed */
void tcp_flight_begins(struct tcp_conn *);
void tcp_flight_ends(struct tcp_conn *);
/* A large message is given to the connection: `ahead` bytes are to be written before its end. */
void tcp_probe_begins(struct tcp_conn *, size_t ahead);
void tcp_probe_drop(struct tcp_conn *);
void tcp_probes_look(struct tcp *);

/* silence.c */
uint64_t tcp_silence_look_ns(const struct tcp *);
void tcp_silence_tune(const struct tcp *, int fd);
void tcp_check_silence(struct tcp *, uint64_t now_ns, bool *moved);

#endif

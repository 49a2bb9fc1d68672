/*
 * tcp: the inside of the tcp transport. tcp.c has the transport and its turn; link.c makes links;
 * conn.c moves the bytes of one connection; tune.c sets socket options; silence.c finds hosts that
 * do not answer any more; measure.c asks the kernel what it knows of a link.
 *
 * A link is FTCCL_TCP_CONNECTIONS sockets from the sender to the receiver, each authenticated by
 * ft_auth. A channel always uses the same socket (lane modulo their number), so it stays in order.
 * The sender sends struct ft_header and payload, one message after another, and at the end a header
 * with the lane TCP_GOODBYE. The receiver sends struct tcp_credit.
 */
#ifndef FT_TCP_H
#define FT_TCP_H

#include "telemetry/telemetry.h"
#include "transport/news.h"
#include "transport/rxq.h"
#include "transport/transport.h"

#define TCP_CONNS_MAX 16
#define TCP_GOODBYE 0xffff  /* lane of the last header or credit of a connection */
#define TCP_QUEUE 64        /* most messages that wait for one socket; then FT_AGAIN */
#define TCP_BUFFERS 32      /* buffers of a sending link, for reserve; then FT_AGAIN */
#define TCP_READ_BYTES 2048 /* most bytes read after a header: they are copied once more */
#define TCP_CREDITS 64      /* most channels with credits to return; then they are sent at once */
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

/* A message that the kernel has not taken completely. */
struct tcp_out {
    struct ft_header header;
    const void *data;
    struct ft_send *req; /* NULL: the message is in a reserved buffer */
    int buffer;          /* number of that buffer; -1: none */
};

enum tcp_conn_state { TCP_DIALING, TCP_PROVING, TCP_JOINED, TCP_OPEN, TCP_SHUT };

struct tcp_conn {
    struct tcp *tcp;
    struct tcp_link *link; /* NULL until an accepted connection belongs to a link */
    struct tcp_conn *next; /* in tcp->unknown, tcp->joined or tcp->dead */
    int fd;
    enum tcp_conn_state state;
    uint32_t wanted;   /* events registered with epoll */
    uint64_t since_ns; /* when the connection began */
    struct ft_auth auth;
    bool goodbye; /* the other side has said goodbye */
    bool awaited; /* it is in tcp->awaited */
    bool wrote;   /* it was written to since all bytes were last seen acknowledged */
    /* for reading: */
    bool reading;             /* tcp_conn_read() is under way */
    size_t have;              /* bytes in ahead[] */
    size_t body_left;         /* bytes of the current message's payload that have not come */
    bool early;               /* a message's header stayed in ahead[] for a turn */
    struct ft_rxq_node *node; /* of that message; NULL: its payload is dropped */
    /* If the kernel had no more of the message: when, and how much was missing. */
    uint64_t flight_ns;
    size_t flight_bytes;
    struct ft_header dropping;
    /* for writing: */
    unsigned out_head, out_count, out_reserved;
    size_t out_done;  /* bytes of the first message that are written */
    uint64_t written; /* bytes in all */
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
    int nconns, nopen;
    struct tcp_conn *conn[TCP_CONNS_MAX];
    struct ft_rxq rxq;         /* of a receiving link */
    struct ft_flights flights; /* of a receiving link */
    struct ft_txq txq;         /* of a sending link */
    unsigned char *buffers;    /* of a sending link: TCP_BUFFERS times buffer_bytes */
    uint32_t buffers_free;     /* a bit per buffer */
    struct ft_pages pages[TCP_BUFFERS];
    /* A bit per buffer: its place has been chosen. */
    uint32_t placed;
    void *pinned[TCP_BUFFERS]; /* the buffer in memory that devices can reach; NULL: in `buffers` */
    /* while the link is being made: */
    uint64_t deadline_ns, try_deadline_ns;
    int naddresses, address_next;
    struct ft_net_address address[FT_NET_ADDRESSES];
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
    unsigned skipped, skip; /* turns without epoll in a row, and how many are allowed */
    unsigned kept;          /* turns since credits that are not due were returned */
    uint64_t tick_ns;
    unsigned polls;      /* since the last look at the clock for silence */
    uint64_t silence_ns; /* time of the next check for silence */
    /* Connections with credits to return; of these, connections with credits that are due. */
    unsigned ncredits, ndue;
    unsigned char scratch[65536];
};

/* conn.c. A status is FT_OK, FT_AGAIN, or the reason why the connection is lost. */
struct tcp_conn *tcp_conn_open(struct tcp *, int fd, enum tcp_conn_state state, bool sender);
/* Takes it out of epoll and closes it. Its memory is freed at the end of the turn, or with its
 * link. */
void tcp_conn_close(struct tcp_conn *);
void tcp_conn_want(struct tcp_conn *, uint32_t events);
int tcp_conn_read(struct tcp_conn *, bool *moved);
int tcp_conn_write(struct tcp_conn *, bool *moved); /* writes what waits: messages or credits */
int tcp_conn_send(struct tcp_conn *, const struct ft_header *, const void *data,
                  struct ft_send *req, int buffer);
void tcp_conn_credit(struct tcp_conn *, uint64_t ctx, unsigned lane, unsigned places);
int tcp_conn_return_credits(struct tcp_conn *);
void tcp_conn_say_goodbye(struct tcp_conn *);
bool tcp_conn_flushed(const struct tcp_conn *); /* all that was sent is on its way */
void tcp_conn_drop_queue(struct tcp_conn *, int status);
void tcp_conn_await(struct tcp_conn *);

/* link.c */
int tcp_link_connect(struct ft_transport *, uint64_t peer, const void *address, size_t len_bytes,
                     struct ft_link **out);
void tcp_link_free(struct tcp_link *);
void tcp_link_down(struct tcp_link *, int reason);
void tcp_link_trim(struct tcp_link *);
unsigned char *tcp_link_buffer(struct tcp_link *, int i, unsigned lane);
void tcp_link_goodbye(struct tcp_conn *); /* the other side said goodbye on this connection */
/* handles epoll's events, in any state */
void tcp_conn_event(struct tcp_conn *, uint32_t events, bool *moved);
void tcp_accept(struct tcp *, int listener, bool *moved);
void tcp_check_deadlines(struct tcp *, uint64_t now_ns, bool *moved);

/* tune.c */
void tcp_tune(const struct tcp *, int fd, bool accepted);
void tcp_tune_listener(struct tcp *, int fd);
/* for ft_net_connect() */
const char *tcp_congestion(const struct tcp *, const struct ft_net_address *to);

/* measure.c */
bool tcp_measure(struct ft_link *, struct ft_link_path *out);
void tcp_flight_begins(struct tcp_conn *);
void tcp_flight_ends(struct tcp_conn *);
/* A large message is given to the connection: `ahead` bytes are to be written before its end. */
void tcp_probe_begins(struct tcp_conn *, size_t ahead);
void tcp_probe_drop(struct tcp_conn *);
void tcp_probes_look(struct tcp *);

/* silence.c */
uint64_t tcp_silence_look_ns(const struct tcp *);
void tcp_silence_tune(const struct tcp *, int fd);
void tcp_check_silence(struct tcp *, bool *moved);
void tcp_silence_awake(struct tcp *);

#endif

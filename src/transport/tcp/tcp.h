/*
 * tcp: the inside of the tcp transport. tcp.c holds the transport and its turn, link.c links and
 * their making, conn.c the bytes of one connection, tune.c its socket's options, silence.c hosts
 * that do not answer any more.
 *
 * A link is FTCCL_TCP_CONNECTIONS sockets from the sender to the receiver, each opened by ft_auth.
 * A channel stays on one of them (lane modulo their number), so it stays in order. Sender to
 * receiver: struct ft_header and payload, one after the other, at last a header with the lane
 * TCP_GOODBYE. Back: struct tcp_credit.
 */
#ifndef FT_TCP_H
#define FT_TCP_H

#include "transport/rxq.h"
#include "transport/transport.h"

#define TCP_CONNS_MAX 16
#define TCP_GOODBYE 0xffff  /* lane of the last header or credit of a connection */
#define TCP_QUEUE 64        /* messages that wait for one socket; more: FT_AGAIN */
#define TCP_BUFFERS 32      /* of a sending link, for reserve; more: FT_AGAIN */
#define TCP_READ_BYTES 2048 /* read ahead of a header: copied once more, so not too many */
#define TCP_CREDITS 64      /* distinct channels with credits to return; more: sent at once */
/* of messages of at most so many bytes a window holds more, see rxq.h: */
#define TCP_SMALL_BYTES 2048
#define TCP_PLACES_FIRST FT_WINDOW_SMALL
#define TCP_PLACES 16
#define TCP_AWAITED 8      /* connections read first; of more only so many */
#define TCP_UNKNOWN_MAX 64 /* unauthenticated connections; more wait in the kernel */
#define TCP_UNKNOWN_NS 5000000000u
#define TCP_UNKNOWN_CROWDED_NS 1000000000u /* the same when others wait for the place */
#define TCP_JOINED_MAX 4096                /* authenticated ones whose siblings have not come */
#define TCP_CONNECT_NS 10000000000u
#define TCP_TICK_NS 5000000u /* deadlines are looked at this often */

struct tcp_credit {
    uint64_t ctx;
    uint16_t lane, count;
    uint32_t zero;
};
_Static_assert(sizeof(struct tcp_credit) == 16, "struct tcp_credit is a wire format");

/* A message that the kernel has not taken whole. */
struct tcp_out {
    struct ft_header header;
    const void *data;
    struct ft_send *req; /* NULL: reserved memory */
    int buffer;          /* index of it, else -1 */
};

enum tcp_conn_state { TCP_DIALING, TCP_PROVING, TCP_JOINED, TCP_OPEN, TCP_SHUT };

struct tcp_conn {
    struct tcp *tcp;
    struct tcp_link *link; /* NULL until an accepted one has its siblings */
    struct tcp_conn *next; /* in tcp->unknown, tcp->joined or tcp->dead */
    int fd;
    enum tcp_conn_state state;
    uint32_t wanted;   /* events registered with epoll */
    uint64_t since_ns; /* start of the connection */
    struct ft_auth auth;
    bool goodbye; /* the other side has said it */
    bool awaited; /* it is in tcp->awaited */
    bool wrote;   /* since everything was last seen acknowledged */
    /* reading */
    bool reading;             /* tcp_conn_read() is under way */
    size_t have;              /* bytes in ahead[] */
    size_t body_left;         /* of the message under way */
    bool early;               /* a message's header stayed in ahead[] for a turn */
    struct ft_rxq_node *node; /* it; NULL: they are dropped */
    struct ft_header dropping;
    /* writing */
    unsigned out_head, out_count, out_reserved;
    size_t out_done; /* bytes of the first one that are gone */
    unsigned ncredits, credit_age;
    bool due;            /* some of the credits may be waited for */
    size_t credit_done;  /* bytes of the first credit that are gone */
    struct tcp_out *out; /* [TCP_QUEUE], of sending links */
    struct tcp_credit credits[TCP_CREDITS];
    unsigned char ahead[TCP_READ_BYTES];
};

struct tcp_link {
    struct ft_link base; /* first */
    struct tcp *tcp;
    struct tcp_link *next, *event_next;
    bool queued; /* for an event */
    bool announce, announced_down, failing;
    int nconns, nopen;
    struct tcp_conn *conn[TCP_CONNS_MAX];
    struct ft_rxq rxq;      /* receiving */
    struct ft_txq txq;      /* sending */
    unsigned char *buffers; /* TCP_BUFFERS of chunk_bytes, sending */
    uint32_t buffers_free;  /* bit set */
    struct ft_pages pages[TCP_BUFFERS];
    /* bit set: of which it is known whether they lie in pinned memory, if there is any */
    uint32_t placed;
    void *pinned[TCP_BUFFERS]; /* where devices reach it; NULL: in buffers */
    /* being made */
    uint64_t deadline_ns, try_deadline_ns;
    int naddresses, address_next;
    struct ft_net_address address[FT_NET_ADDRESSES];
};

struct tcp {
    struct ft_transport base; /* first */
    int epoll_fd;
    int listener[2]; /* IPv4 and IPv6, -1: none */
    bool listening;  /* false while descriptors are short */
    bool short_told; /* the log has it */
    /* the system's choice of a congestion control that the listeners do not have; "": none */
    char paced[16];
    int naddresses;
    struct ft_net_address address[FT_NET_ADDRESSES];
    struct ft_rxq_set set;
    size_t buffer_bytes;
    uint16_t generation; /* tells the links of one peer apart while they are made */
    struct tcp_link *links, *event_first, *event_last;
    struct tcp_conn *unknown, *joined, *dead;
    int nunknown, njoined, nmaking;
    /* on which a message or credits were looked for in vain; none have come since */
    struct tcp_conn *awaited[TCP_AWAITED];
    unsigned nawaited;
    unsigned nclogged;      /* connections that wait until the kernel takes more */
    unsigned skipped, skip; /* turns without epoll in a row; how many there should be */
    unsigned kept;          /* turns with credits to return that are not due */
    uint64_t tick_ns;
    unsigned polls;      /* since the last look at the clock for silence */
    uint64_t silence_ns; /* when to look for it again */
    /* connections with credits to return; with some that may be waited for */
    unsigned ncredits, ndue;
    unsigned char scratch[65536];
};

/* conn.c. Those that return a status say FT_OK, FT_AGAIN or why the connection is lost. */
struct tcp_conn *tcp_conn_open(struct tcp *, int fd, enum tcp_conn_state state, bool sender);
/* leaves epoll and closes; freed at the end of the turn or with its link */
void tcp_conn_close(struct tcp_conn *);
void tcp_conn_want(struct tcp_conn *, uint32_t events);
int tcp_conn_read(struct tcp_conn *, bool *moved);
int tcp_conn_write(struct tcp_conn *, bool *moved); /* what waits: messages or credits */
int tcp_conn_send(struct tcp_conn *, const struct ft_header *, const void *data,
                  struct ft_send *req, int buffer);
void tcp_conn_credit(struct tcp_conn *, uint64_t ctx, unsigned lane, unsigned places);
int tcp_conn_return_credits(struct tcp_conn *);
void tcp_conn_say_goodbye(struct tcp_conn *);
void tcp_conn_drop_queue(struct tcp_conn *, int status);
void tcp_conn_await(struct tcp_conn *);

/* link.c */
int tcp_link_connect(struct ft_transport *, uint64_t peer, const void *address, size_t len_bytes,
                     struct ft_link **out);
void tcp_link_free(struct tcp_link *);
void tcp_link_down(struct tcp_link *, int reason);
void tcp_link_trim(struct tcp_link *);
unsigned char *tcp_link_buffer(struct tcp_link *, int i, unsigned lane);
void tcp_link_goodbye(struct tcp_conn *); /* the other side said it on this connection */
void tcp_conn_event(struct tcp_conn *, uint32_t events, bool *moved); /* whatever state it is in */
void tcp_accept(struct tcp *, int listener, bool *moved);
void tcp_check_deadlines(struct tcp *, uint64_t now_ns, bool *moved);

/* tune.c */
void tcp_tune(const struct tcp *, int fd, bool accepted);
void tcp_tune_listener(struct tcp *, int fd);
/* for ft_net_connect() */
const char *tcp_congestion(const struct tcp *, const struct ft_net_address *to);

/* silence.c */
uint64_t tcp_silence_look_ns(const struct tcp *);
void tcp_silence_tune(const struct tcp *, int fd);
void tcp_check_silence(struct tcp *, bool *moved);
void tcp_silence_awake(struct tcp *);

#endif

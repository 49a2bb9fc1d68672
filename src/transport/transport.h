/*
 * transport: moves messages over links. A link is simplex (the sender connects), belongs to two
 * engines and is shared by all communicators between them. On a link every (context, lane) pair is
 * a virtual channel of its own: first in first out, with a fixed window of unconsumed messages, so
 * that a channel nobody reads never delays another one: ft_window() of any size and, where the
 * transport can, up to FT_WINDOW_SMALL small ones.
 *
 * Rules. All calls but reg and unreg are made by a caller that holds the engine, and never block.
 * An accepted send completes exactly once: its req->status leaves FT_AGAIN in that call or in a
 * later poll; when a link goes down all its pending sends complete with FT_LINK. A transport
 * reports that a link is down; it never declares a peer dead. Messages for a context that is not
 * bound are counted, dropped and given back to the sender's window. What a link delivered before it
 * went down can still be received.
 */
#ifndef FT_TRANSPORT_H
#define FT_TRANSPORT_H

#include "base/base.h"

#define FT_LANE_P2P 8  /* lanes 0..7 carry collectives, this one sends and receives */
#define FT_LANE_CTL 9  /* notices between engines */
#define FT_LANE_RMA 10 /* one-sided puts and signals */
#define FT_LANES_ALL 11
/* of lane 0, the only one of small collectives: places come back eight at a time */
#define FT_WINDOW_FIRST 8
#define FT_WINDOW_COLL 2
#define FT_WINDOW_P2P 4
#define FT_WINDOW_CTL 8
#define FT_WINDOW_RMA 4
#define FT_WINDOW_SMALL 64 /* no window is larger */
static inline int ft_window(unsigned lane)
{
    switch (lane) {
    case 0:
        return FT_WINDOW_FIRST;
    case FT_LANE_P2P:
        return FT_WINDOW_P2P;
    case FT_LANE_CTL:
        return FT_WINDOW_CTL;
    case FT_LANE_RMA:
        return FT_WINDOW_RMA;
    default:
        return FT_WINDOW_COLL;
    }
}

/* What travels with each message; transports carry it as it is. Native byte order: a link refuses
 * peers of another one. */
struct ft_header {
    uint64_t ctx; /* the communicator and its epoch */
    uint64_t sig; /* of the call, see core/run/op.c */
    uint32_t seq; /* of the operation in its communicator, modulo 2^32 */
    uint32_t len; /* bytes of payload, at most the transport's chunk_bytes */
    uint16_t lane;
    uint16_t step; /* modulo 2^16 */
    uint32_t crc;  /* with verify: CRC32C of what stands before it and of the payload; else 0 */
};
_Static_assert(sizeof(struct ft_header) == 32, "struct ft_header is a wire format");

/* Embedded in its owner. Zeroed before its first use; `lasts` and `moved` may be set before each
 * send. */
struct ft_send {
    int status; /* FT_AGAIN while pending */
    /* it may stay pending until the receiver has used the message: a transport need not copy the
     * payload */
    bool lasts;
    /* and the receiver only moves the payload on: it may have to bring it itself, see fetch */
    bool moved;
    /* Set by a transport that did so, NULL else: gives the message up at once. The request
     * completes with FT_LINK; what the receiver reads from then on it does not take for the
     * message, see ft_msg_intact(). */
    void (*withdraw)(struct ft_send *);
    void *link; /* the transport's own */
};
static inline void ft_send_withdraw(struct ft_send *req)
{
    if (req->status == FT_AGAIN && req->withdraw)
        req->withdraw(req);
}

/* A received message: a view of a slot or landing buffer, valid until release. */
struct ft_msg {
    struct ft_header header;
    const void *data;
    void *owner;     /* the transport's own */
    uint64_t cookie; /* likewise */
    /* data is NULL until fetch has brought the payload, which still lies with the sender; only on
     * lanes up to FT_LANE_P2P */
    bool unfetched;
    /* data is memory of the sender's device: this side's device reads it, and nothing else;
     * likewise */
    bool devmem;
    /* NULL: the payload is nobody else's; else a word in which the bit says that the sender does
     * not */
    uint32_t *withdrawn;
    uint32_t withdrawn_bit; /* stand by it any more */
};

/* Was what has been read from the view until now the message? False: whatever was made of it is
 * void; release it and wait, the sender has failed. */
static inline bool ft_msg_intact(const struct ft_msg *msg)
{
    if (!msg->withdrawn)
        return true;
    /* No plain load: the reads of the payload must be over before this one. Pairs with
     * ft_slots_withdraw(). */
    return !(__atomic_fetch_or(msg->withdrawn, 0, __ATOMIC_ACQ_REL) & msg->withdrawn_bit);
}

enum ft_link_state { FT_LINK_CONNECTING, FT_LINK_UP, FT_LINK_DOWN };

struct ft_link {
    const struct ft_transport_ops *ops;
    struct ft_transport *transport;
    uint64_t peer; /* engine id of the other side, authenticated */
    bool sender;   /* this side sends */
    enum ft_link_state state;
    int reason;   /* why DOWN: FT_LINK, FT_AUTH, FT_VERSION, FT_PROTOCOL, FT_NOFILE, ... */
    bool orderly; /* DOWN after the other side said goodbye */
    /* set before disconnect: the other side is not to be told goodbye, for it this is a broken
     * link */
    bool cut;
    /* DOWN because the peer's process has ended: proof of death; set before the event */
    bool proof;
    uint64_t messages, bytes; /* accepted or delivered, for telemetry */
    void *user;               /* the engine's */
};

struct ft_event {
    enum { FT_EVENT_ACCEPTED, FT_EVENT_UP, FT_EVENT_DOWN } what;
    struct ft_link *link;
};

#define FT_KEY_BYTES 32
struct ft_transport_config {
    struct ft_env *env;
    uint64_t self;                   /* this engine's id */
    unsigned char key[FT_KEY_BYTES]; /* the job's secret; every connection proves it first (P9) */
    size_t chunk_bytes;              /* largest message; the same on both ends of a link */
    /* the same on the lanes where data goes, where it may be more; 0: as chunk_bytes */
    size_t first_bytes;
    int rank; /* for log lines; -1 unknown */
    /* where buffers for long messages should lie if there is room; NULL: anywhere */
    struct ft_pinned *pinned;
    /* silence after which a host counts as gone; 0: by parameter */
    uint64_t suspect_ms;
};

struct ft_transport {
    const struct ft_transport_ops *ops;
    struct ft_transport_config config;
    uint64_t dropped; /* messages of unbound contexts */
    /* the engine looks for a few messages alone: recv takes them without a poll, and nobody need be
     * woken until wake() */
    bool quiet;
    /* while it has links it must be polled this often, also by those that sleep; 0: no need */
    uint64_t look_ns;
};

#define FT_ADDRESS_BYTES 256 /* most bytes of one transport's address */
#define FT_TRANSPORTS_MAX 8  /* that one engine opens */

/* Whom the links of a transport can join. A transport that does not say is a network: nobody takes
 * it for shared memory. */
enum ft_scope {
    FT_SCOPE_NETWORK, /* hosts, and ranks of one host by the same way */
    FT_SCOPE_HOST,    /* processes of one host, through memory that they share */
    FT_SCOPE_PROCESS, /* ranks of one process */
};

/* What a transport is. Constants, read when an engine or a communicator opens and never for an
 * operation. Whoever chooses asks these; a name is for people, endpoints and tables. */
struct ft_transport_caps {
    enum ft_scope scope;
    /* of a network: its endpoint moves the bytes, a core only starts and ends messages */
    bool rdma;
    /* a receiver reads messages that it only moves on in their sender's memory, see fetch */
    bool pulls;
    /* messages from and to memory that was registered take a shorter way, see reg */
    bool registers;
    /* of a network; NULL: plans count with what was measured over TCP */
    const struct ft_network_costs *costs;
};

struct ft_transport_ops {
    const char *name;      /* at most FT_TRANSPORT_NAME_BYTES */
    const char *nccl_name; /* what NCCL calls such a network (config.netName); NULL: nothing */
    struct ft_transport_caps caps;
    /* Opens listeners and buffers. FT_NOTSUP: not usable on this machine (says why by ft_fail). */
    int (*open)(const struct ft_transport_config *, struct ft_transport **out);
    /* Closes every link and frees everything; idempotent links are gone afterwards. Never
     * blocks. */
    void (*close)(struct ft_transport *);
    /* Writes what a peer needs to connect here; returns its length or a status. */
    int (*address)(struct ft_transport *, void *buf, size_t capacity_bytes);
    /* Can this address be reached by this transport from here (same process, same host, some
     * route)? Local decision. */
    bool (*reaches)(struct ft_transport *, const void *address, size_t len_bytes);
    /* Starts a link towards the engine `peer`; it is CONNECTING and becomes UP or DOWN by a later
     * event. The other side gets ACCEPTED after authentication. Sends on a CONNECTING link answer
     * FT_AGAIN. */
    int (*connect)(struct ft_transport *, uint64_t peer, const void *address, size_t len_bytes,
                   struct ft_link **out);
    /* Local, immediate. Says goodbye if the link is UP and not `cut`. Frees the link: the pointer
     * is dead afterwards. */
    void (*disconnect)(struct ft_link *);
    /* Contexts that this engine knows. bind allocates what messages of ctx need on every link;
     * FT_NOMEM. Unbind drops what has arrived for it; views handed out stay valid until
     * released. */
    int (*bind)(struct ft_transport *, uint64_t ctx);
    void (*unbind)(struct ft_transport *, uint64_t ctx);
    /* FT_OK: accepted, data stays untouched until req completes: soon, whatever the receiver does,
     * unless req->lasts. FT_AGAIN: window or buffers full, or connecting. FT_LINK: down.
     * Zero-length messages are allowed. */
    int (*send)(struct ft_link *, const struct ft_header *, const void *data, struct ft_send *req);
    /* Space for a message to be written in place: FT_OK and *slot of header->len bytes, to be
     * committed or cancelled in the same or a later turn; at most one reservation a channel at a
     * time. Commit cannot fail and needs no req; its header, which is the one that travels, may
     * differ from reserve's in crc. */
    int (*reserve)(struct ft_link *, const struct ft_header *, void **slot);
    /* The same in memory of this side's device, for a receiver whose device takes it there.
     * FT_NOTSUP: no room; reserve it. NULL: it has no such memory. */
    int (*reserve_devmem)(struct ft_link *, const struct ft_header *, void **slot);
    void (*commit)(struct ft_link *, const struct ft_header *, void *slot);
    void (*cancel)(struct ft_link *, const struct ft_header *, void *slot);
    /* The next message of a channel, if it is here. FT_AGAIN: none. FT_LINK: none and none will
     * come. */
    int (*recv)(struct ft_link *, uint64_t ctx, unsigned lane, struct ft_msg *msg);
    /* The caller waits for the next message of a channel: if it is `header`'s (sig, seq and len),
     * and nothing of it has come yet, the transport may put its payload to `to`, which is then the
     * data of recv's view. Until recv has given a message of the channel, or expect(link, header,
     * NULL): after that nothing is written there, and what has come of the message is kept
     * elsewhere. NULL: it receives into its own memory alone. */
    void (*expect)(struct ft_link *, const struct ft_header *, void *to);
    /* Copies the payload of a message that is `away`, out of the memory of the sender's process,
     * and sets data: to `to`, which must hold it, or for NULL to memory of the link's. FT_AGAIN:
     * the sender does not stand by it any more; release it and wait. FT_LINK: it cannot be read;
     * the link is down. NULL: no message is away here. */
    int (*fetch)(struct ft_link *, struct ft_msg *msg, void *to);
    /* Looks at it without taking it. */
    int (*peek)(struct ft_link *, uint64_t ctx, unsigned lane, struct ft_header *header);
    void (*release)(struct ft_link *, struct ft_msg *msg);
    /* True when the other side has consumed everything sent on this link. */
    bool (*drained)(struct ft_link *);
    /* Makes progress, completes sends, writes up to max events; returns their number. Sets *busy if
     * anything moved. */
    int (*poll)(struct ft_transport *, struct ft_event *events, int max, bool *busy);
    /* Only where caps.registers says so. From now until unreg the user may send from this memory of
     * the host and receive into it: a transport whose hardware must know memory tells it. A thread
     * of the user calls it without the engine. It may block. Turns of the engine go on meanwhile,
     * but no other reg or unreg of this transport. Ranges may overlap, or come again. *out is the
     * transport's; unreg frees it. After a failure (FT_NOMEM, FT_NOTSUP, FT_SYSTEM, with a
     * sentence) the memory can be used as before: its messages go as those of memory that is not
     * registered. */
    int (*reg)(struct ft_transport *, void *addr, size_t len_bytes, void **out);
    /* After it neither this side nor a peer's hardware touches the memory. No message from or to it
     * is under way, but on links that are down. Called as reg, and for all that is left before
     * close. It may block, and cannot fail. */
    void (*unreg)(struct ft_transport *, void *registered);
    /* For sleeping: a descriptor that becomes readable when a peer did something after arm(on)
     * answered true. arm(off) when awake again. arm(on) answers false when something is already
     * there. -1: nothing to wait on (others wake us). */
    int (*fd)(struct ft_transport *);
    bool (*arm)(struct ft_transport *, bool on);
    /* Gives back memory that long messages have taken and none has needed since the call before. */
    void (*trim)(struct ft_transport *);
    /* Wakes those that sleep of what was sent or released while the transport was quiet. NULL: it
     * does not know that. */
    void (*wake)(struct ft_transport *);
};

extern const struct ft_transport_ops ft_transport_inproc, ft_transport_shm, ft_transport_tcp;
/* The same transport with the faults of FTCCL_FAULT in its links; FT_INVAL with a sentence when
 * that cannot be understood. */
int ft_transport_faulty(const struct ft_transport_ops *, const struct ft_transport_ops **out);

/* Those that FTCCL_TRANSPORTS allows, best first, NULL-terminated; FT_INVAL names an unknown one.
 * With FTCCL_FAULT set each is wrapped by the fault transport. */
int ft_transport_list(const char *list, const struct ft_transport_ops **out, int capacity);
/* Is that the name of a network that this build has? */
bool ft_transport_is_network(const char *name);
/* The text of FTCCL_TRANSPORTS for all transports inside a host and for one network, by its name or
 * NCCL's. FT_INVAL names those that there are. */
int ft_transport_only_network(const char *name, char *out, size_t capacity_bytes);
/* May others of this host read this process's memory, as far as it can tell? Links find out for
 * themselves. */
bool ft_transport_pulls(void);
bool ft_transport_pulls_slowly(void); /* see ft_pull_is_slow() */
/* names, interfaces and addresses found here, for ftccl-info */
void ft_transport_describe(FILE *out);

/* ---- network interfaces ---------------------------------------------------------------------- */

#define FT_NET_ADDRESSES 8   /* most addresses a process offers; later ones are left out */
#define FT_NET_WIRE_BYTES 24 /* one address on the wire */
#define FT_NET_TEXT_BYTES 80
#define FT_NET_NAME_BYTES 16

/* An IP address and TCP port. Link-local IPv6 addresses carry the interface's number on the machine
 * that has them. */
struct ft_net_address {
    int family; /* AF_INET or AF_INET6 */
    uint16_t port;
    uint32_t scope;
    unsigned char ip[16]; /* network order; AF_INET uses the first 4 */
    bool up, loopback;
    char name[FT_NET_NAME_BYTES]; /* of the interface; "" if it came over the wire */
};

/* This machine's addresses that FTCCL_SOCKET_IFNAME and FTCCL_SOCKET_FAMILY allow, best first,
 * loopback last; returns how many. FT_INVAL with a sentence that says what there is when they leave
 * none or cannot be understood. */
int ft_net_addresses(struct ft_net_address *out, int capacity);
/* The choice alone, from any list: for tests. `order` is FTCCL_SOCKET_IFNAME's text, `family`
 * FTCCL_SOCKET_FAMILY's. */
int ft_net_choose(const struct ft_net_address *have, int count, const char *order,
                  const char *family, struct ft_net_address *out, int capacity);
/* A non-blocking listening socket for those of the addresses that are of the family; port 0 takes a
 * free one, and it is written into them. FT_NOTSUP when there are none. Owned (ft_fd_own): close it
 * with ft_fd_close(). */
int ft_net_listen(struct ft_net_address *addresses, int count, int family, uint16_t port,
                  int *fd_out);
/* The next connection of a listener: non-blocking, TCP_NODELAY, owned. FT_AGAIN: none now.
 * FT_NOFILE: one waits, but there is no descriptor for it. Connections that broke before they were
 * taken are skipped. */
int ft_net_accept(int listener, int *fd_out);
/* Starts a connection from FTCCL_SOCKET_SOURCE, if that is set and of the same family, with the
 * congestion control of that name; NULL: the system's choice. The socket (non-blocking,
 * TCP_NODELAY, owned) becomes writable when it is established or has failed; ft_net_connected()
 * then tells which. */
int ft_net_connect(const struct ft_net_address *to, const char *congestion, int *fd_out);
int ft_net_connected(int fd); /* FT_OK, FT_AGAIN, or FT_LINK with a sentence */
/* "host:port", "1.2.3.4:port" or "[v6%scope]:port". Blocks in the resolver when it is a name.
 * Number found or FT_INVAL. */
int ft_net_resolve(const char *text, struct ft_net_address *out, int capacity);
void ft_net_pack(const struct ft_net_address *, unsigned char wire[FT_NET_WIRE_BYTES]);
/* FT_PROTOCOL */
int ft_net_unpack(const unsigned char wire[FT_NET_WIRE_BYTES], struct ft_net_address *out);
/* "10.0.0.1:4711", "[fe80::1%2]:4711" */
const char *ft_net_text(const struct ft_net_address *, char buf[FT_NET_TEXT_BYTES]);

#endif

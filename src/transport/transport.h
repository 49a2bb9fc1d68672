/*
 * transport: moves messages over links. A link goes in one direction: the side that connects sends.
 * It belongs to two engines, and all communicators between them share it. On a link every (context,
 * lane) pair is a virtual channel of its own. A channel is first in first out, with a fixed window
 * of unconsumed messages, so a channel that nobody reads never delays another one. The window is
 * ft_window() messages of any size and, if the transport can, up to FT_WINDOW_SMALL small ones.
 * Channels have no order among them: what was sent first on one may come after what was sent later
 * on another.
 *
 * Rules. For all calls except reg and unreg the caller holds the engine, and they never block. An
 * accepted send completes exactly once: req->status leaves FT_AGAIN in that call or in a later
 * poll. When a link goes down, all its pending sends complete with FT_LINK. A transport reports
 * that a link is down; it never declares a peer dead. Messages for a context that is not bound are
 * counted and dropped, and the sender gets their place in the window back. Messages that a link
 * delivered before it went down can still be received.
 */
#ifndef FT_TRANSPORT_H
#define FT_TRANSPORT_H

#include "base/base.h"
#include "telemetry/telemetry.h"

#define FT_LANE_P2P 8  /* sends and receives; lanes 0..7 carry collectives */
#define FT_LANE_CTL 9  /* notices between engines */
#define FT_LANE_RMA 10 /* one-sided puts and signals */
#define FT_LANES_ALL 11
/* Lane 0 is the only lane of small collectives. Its places come back eight at a time. */
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

/* Travels with each message; transports carry it unchanged. Native byte order: a link refuses peers
 * of the other byte order. */
struct ft_header {
    uint64_t ctx; /* the context: the communicator and its epoch */
    uint64_t sig; /* signature of the call, see core/run/op.c */
    uint32_t seq; /* number of the operation in its communicator, modulo 2^32 */
    uint32_t len; /* bytes of payload, at most the transport's chunk_bytes */
    uint16_t lane;
    uint16_t step; /* modulo 2^16 */
    /* Option verify: CRC32C of the fields before it and of the payload. Otherwise 0. */
    uint32_t crc;
};
_Static_assert(sizeof(struct ft_header) == 32, "struct ft_header is a wire format");
/* Whether a message that came is the one that a caller of `look` wants. Reads each field of `got`
 * once: the sender may still be able to write there. */
static inline bool ft_header_is_wanted(const volatile struct ft_header *got,
                                       const struct ft_header *want)
{
    return got->ctx == want->ctx && got->sig == want->sig && got->seq == want->seq &&
           got->len == want->len && got->lane == want->lane;
}

/* Shorter payloads are copied: that is cheaper than waiting for the receiver. */
#define FT_LOAN_BYTES 16384

/* A pending send, embedded in its owner. Zeroed before its first use; `lasts` and `moved` may be
 * set before each send. */
struct ft_send {
    int status; /* FT_AGAIN while pending */
    /* The send may stay pending until the receiver has used the message, so the transport need not
     * copy the payload. */
    bool lasts;
    /* As well, the receiver only moves the payload on: it may have to bring the payload itself, see
     * fetch. */
    bool moved;
    /* Set by a transport that uses `lasts` or `moved`; otherwise NULL. Ends the send at once: the
     * request completes with FT_LINK, and the receiver drops what it reads from then on, see
     * ft_msg_intact(). */
    void (*withdraw)(struct ft_send *);
    void *link; /* for the transport */
};
static inline void ft_send_withdraw(struct ft_send *req)
{
    if (req->status == FT_AGAIN && req->withdraw)
        req->withdraw(req);
}

/* A received message: a view of a slot or a landing buffer, valid until release. */
struct ft_msg {
    struct ft_header header;
    const void *data;
    void *owner;     /* for the transport */
    uint64_t cookie; /* for the transport */
    /* data is NULL until fetch has brought the payload from the sender's memory. Only on lanes up
     * to FT_LANE_P2P. */
    bool unfetched;
    /* data is memory of the sender's device; only this side's device may read it. Only on lanes up
     * to FT_LANE_P2P. */
    bool devmem;
    /* A word in which withdrawn_bit says that the sender has withdrawn the message. NULL: it
     * cannot. */
    uint32_t *withdrawn;
    uint32_t withdrawn_bit;
};

/* Whether the bytes read from the view until now were the message. False: the sender has failed;
 * the caller drops what it made of them, releases the message and waits. */
static inline bool ft_msg_intact(const struct ft_msg *msg)
{
    if (!msg->withdrawn)
        return true;
    /* Not a plain load: all reads of the payload must be finished before it. Pairs with
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
    int reason;   /* why it is DOWN: FT_LINK, FT_AUTH, FT_VERSION, FT_PROTOCOL, FT_NOFILE, ... */
    bool orderly; /* DOWN after a goodbye of the other side */
    /* To be set before disconnect: the other side gets no goodbye, and sees a broken link. */
    bool cut;
    /* DOWN because the peer's process has ended, which is proof of death. Set before the event. */
    bool proof;
    /* DOWN because the peer's host has not answered for the time of silence. */
    bool silent;
    uint64_t messages, bytes; /* accepted or delivered; for telemetry */
    uint64_t remakes;         /* times that a connection of the link was made again */
    /* How long large messages wait. Of a sender, by lane: since when it has refused one; 0: it has
     * not. */
    struct ft_latency latency[FT_LATENCY_PARTS];
    uint64_t refused_ns[FT_LANES_ALL];
    void *user; /* for the engine */
};

struct ft_event {
    enum { FT_EVENT_ACCEPTED, FT_EVENT_UP, FT_EVENT_DOWN } what;
    struct ft_link *link;
};

struct ft_net_address;
/* What is known of the ways of connections between two addresses. */
struct ft_ports {
    const struct ft_path *port; /* belongs to the finder */
    int nports, nclasses;       /* classes are numbered from 0 */
};
/* Finds out which source port of a connection takes which way through the network. path/ has one
 * for the transports of an engine. */
struct ft_port_finder {
    /* Of connections from a local address (its port does not count) to an address and port. Does
     * not block. FT_OK: *out holds until the next call. FT_AGAIN: it is being found out; each call
     * does a part of that, and takes up to a millisecond. FT_NOTSUP: it cannot be found out now; a
     * sentence says why. */
    int (*find)(struct ft_port_finder *, const struct ft_net_address *from,
                const struct ft_net_address *to, struct ft_ports *out);
    /* What was found for these two hosts does not help any more. True: it is found out again;
     * false: it was found out too shortly ago. */
    bool (*forget)(struct ft_port_finder *, const struct ft_net_address *from,
                   const struct ft_net_address *to);
    void (*stop)(struct ft_port_finder *); /* nobody waits for what is being found out */
    /* The class that a connection of these addresses should have, where somebody knows all
     * connections of a network. It may change: ask once a second. NULL, or FT_NOTSUP: choose alone.
     * FT_AGAIN as for find. */
    int (*choose)(struct ft_port_finder *, const struct ft_net_address *from,
                  const struct ft_net_address *to, uint64_t connection, int *class_index);
    /* Dials by ports of this class were in vain. NULL: it is of no use to say so. */
    void (*blame)(struct ft_port_finder *, const struct ft_net_address *from,
                  const struct ft_net_address *to, int class_index);
    /* Does what somebody else has asked the finder for. True: that goes on, call it again in a
     * millisecond. NULL: nobody does. */
    bool (*turn)(struct ft_port_finder *);
    /* The ranks of this job count from here, so that jobs do not all begin with the same class. The
     * same on all its ranks. */
    uint64_t first;
};

#define FT_KEY_BYTES 32
struct ft_transport_config {
    struct ft_env *env;
    uint64_t self; /* this engine's id */
    /* the job's secret, which both sides of a connection must prove first (P9) */
    unsigned char key[FT_KEY_BYTES];
    size_t chunk_bytes; /* longest message in bytes, the same on both ends of a link */
    /* The same for lanes with data, which may carry longer messages. 0: chunk_bytes. */
    size_t first_bytes;
    int rank; /* for log lines; -1: unknown */
    /* Where buffers for long messages should lie, if there is room. NULL: anywhere. */
    struct ft_pinned *pinned;
    /* Silence after which a host counts as gone. 0: the parameter FTCCL_SUSPECT_MS. */
    uint64_t suspect_ms;
    /* TCP connections of a link. 0: the parameters FTCCL_PATHS and FTCCL_TCP_CONNECTIONS. */
    int connections;
    /* Chooses the source ports of TCP connections to other hosts. NULL: the kernel does. */
    struct ft_port_finder *ports;
};

struct ft_transport {
    const struct ft_transport_ops *ops;
    struct ft_transport_config config;
    uint64_t dropped; /* number of messages of unbound contexts */
    /* The engine looks only for a few messages: recv takes them without a poll, and no peer is
     * woken before wake(). */
    bool quiet;
    /* Longest time between polls of a transport with links, also while the engine sleeps. 0: no
     * limit. */
    uint64_t look_ns;
};

/* For transports: a send or reserve of a link that is UP ends with rc. Returns rc. */
static inline int ft_link_offered(struct ft_link *link, const struct ft_header *h, int rc,
                                  struct ft_env *env)
{
    if (h->len < FT_LARGE_BYTES || h->lane >= FT_LANES_ALL || link->state != FT_LINK_UP ||
        (rc != FT_OK && rc != FT_AGAIN))
        return rc;
    uint64_t *since_ns = &link->refused_ns[h->lane];
    if (rc == FT_AGAIN && *since_ns == 0)
        *since_ns = ft_now_ns(env);
    if (rc == FT_AGAIN)
        return rc;
    ft_latency_add(&link->latency[FT_LATENCY_CREDIT], *since_ns ? ft_now_ns(env) - *since_ns : 0);
    *since_ns = 0;
    return rc;
}

#define FT_ADDRESS_BYTES 256 /* most bytes of one transport's address */
#define FT_TRANSPORTS_MAX 8  /* most transports that one engine opens */

/* Which ranks a link of the transport can join. The default is a network: nobody takes it for
 * shared memory. */
enum ft_scope {
    FT_SCOPE_NETWORK, /* hosts; ranks of one host in the same way */
    FT_SCOPE_HOST,    /* processes of one host, through shared memory */
    FT_SCOPE_PROCESS, /* ranks of one process */
};

/* What a transport is capable of. These are constants, read when an engine or a communicator opens,
 * never for an operation. Code that chooses a transport asks these; names are for people, endpoints
 * and tables. */
struct ft_transport_caps {
    enum ft_scope scope;
    /* A network whose endpoint moves the bytes: a core only starts and ends messages. */
    bool rdma;
    /* A receiver can read messages in their sender's memory, if it only moves them on; see
     * fetch. */
    bool pulls;
    /* Messages from and to registered memory take a faster way; see reg. */
    bool registers;
    /* Costs of a network. NULL: plans use what was measured over TCP. */
    const struct ft_network_costs *costs;
};

struct ft_transport_ops {
    const char *name;      /* at most FT_TRANSPORT_NAME_BYTES */
    const char *nccl_name; /* NCCL's name for such a network (config.netName); NULL: none */
    struct ft_transport_caps caps;
    /* The table that is used if the user has not named the transport: its open is more choosy.
     * NULL: this one. */
    const struct ft_transport_ops *unasked;
    /* Opens listeners and buffers. FT_NOTSUP: not usable on this machine; ft_fail() has the
     * reason. */
    int (*open)(const struct ft_transport_config *, struct ft_transport **out);
    /* Closes every link and frees everything; link pointers are invalid afterwards. Never
     * blocks. */
    void (*close)(struct ft_transport *);
    /* Writes what a peer needs in order to connect here. Returns its length in bytes, or a
     * status. */
    int (*address)(struct ft_transport *, void *buf, size_t capacity_bytes);
    /* Whether this transport can reach the address from here (same process, same host, some route).
     * Asks no other process. */
    bool (*reaches)(struct ft_transport *, const void *address, size_t len_bytes);
    /* Starts a link to the engine `peer`. The link is CONNECTING, and an event tells when it
     * becomes UP or DOWN. The other side gets ACCEPTED after authentication. On a CONNECTING link,
     * sends return FT_AGAIN. If it goes DOWN before it was UP, the engine tries the next transport,
     * but not after FT_AUTH, FT_VERSION (the peer refuses this rank) or FT_TIMEOUT (it does not
     * answer): the transport gives another reason if only its own network does not work. */
    int (*connect)(struct ft_transport *, uint64_t peer, const void *address, size_t len_bytes,
                   struct ft_link **out);
    /* Takes effect at once. Says goodbye if the link is UP and not `cut`. Frees the link: the
     * pointer is invalid afterwards. */
    void (*disconnect)(struct ft_link *);
    /* bind: allocates what messages of ctx need on every link; FT_NOMEM. unbind: drops what has
     * arrived for ctx; views that are in use stay valid until they are released. */
    int (*bind)(struct ft_transport *, uint64_t ctx);
    void (*unbind)(struct ft_transport *, uint64_t ctx);
    /* FT_OK: accepted; data must stay unchanged until req completes. That is soon, whatever the
     * receiver does, unless req->lasts. FT_AGAIN: the window or the buffers are full, or the link
     * connects. FT_LINK: down. A message may have no payload. */
    int (*send)(struct ft_link *, const struct ft_header *, const void *data, struct ft_send *req);
    /* reserve: memory for a message that the caller writes in place. FT_OK: *slot has header->len
     * bytes, which the caller commits or cancels in this turn or a later one. A channel has at most
     * one reservation at a time. commit cannot fail and needs no req; its header is the one that
     * travels, and may have another crc. */
    int (*reserve)(struct ft_link *, const struct ft_header *, void **slot);
    /* Like reserve, in memory of this side's device, for a receiver whose device can read it there.
     * FT_NOTSUP: no room; use reserve. NULL: the transport has no such memory. */
    int (*reserve_devmem)(struct ft_link *, const struct ft_header *, void **slot);
    void (*commit)(struct ft_link *, const struct ft_header *, void *slot);
    void (*cancel)(struct ft_link *, const struct ft_header *, void *slot);
    /* Takes the next message of a channel. FT_AGAIN: none is here. FT_LINK: none is here, and none
     * will come. */
    int (*recv)(struct ft_link *, uint64_t ctx, unsigned lane, struct ft_msg *msg);
    /* The caller waits for the next message of a channel. If that has the header's sig, seq and
     * len, and nothing of it has come yet, the transport may write its payload to `to`, which then
     * is the data of recv's view. This ends when recv has returned a message of the channel, or
     * with expect(link, header, NULL): then nothing is written to `to` any more, and what has come
     * of the message is kept elsewhere. NULL: the transport receives only into its own memory. */
    void (*expect)(struct ft_link *, const struct ft_header *, void *to);
    /* Copies the payload of an `unfetched` message out of the memory of the sender's process, and
     * sets data. It copies to `to`, which must be large enough; NULL: to memory of the link.
     * FT_AGAIN: the sender has withdrawn the message; the caller releases it and waits. FT_LINK: it
     * cannot be read, and the link is down. NULL: no message is unfetched here. */
    int (*fetch)(struct ft_link *, struct ft_msg *msg, void *to);
    /* Reads the header of the next message, and does not take it. Returns like recv. */
    int (*peek)(struct ft_link *, uint64_t ctx, unsigned lane, struct ft_header *header);
    void (*release)(struct ft_link *, struct ft_msg *msg);
    /* Short messages, past the queues. All three are NULL where that gains nothing. post: like send
     * of a copy, but wakes nobody: the caller calls `wake` afterwards. Whatever it returns but
     * FT_OK, the caller may send. look: the payload of the next message of the channel, if it is
     * here and has this ctx, lane, sig, seq and len. It may be memory that the sender can still
     * write: the caller reads it once, before took, which takes and releases the message at which
     * it has looked last. NULL: recv knows more. */
    int (*post)(struct ft_link *, const struct ft_header *, const void *data);
    const void *(*look)(struct ft_link *, const struct ft_header *want);
    void (*took)(struct ft_link *, const struct ft_header *);
    /* True when the other side has consumed everything that was sent on this link. */
    bool (*drained)(struct ft_link *);
    /* Makes progress, completes sends, and writes up to max events. Returns their number. Sets
     * *busy if anything moved. */
    int (*poll)(struct ft_transport *, struct ft_event *events, int max, bool *busy);
    /* Only if caps.registers is set. From now until unreg the user may send from this host memory
     * and receive into it; a transport whose hardware must know memory registers it. A thread of
     * the user calls it and does not hold the engine. It may block. Meanwhile the engine's turns go
     * on, but no other reg or unreg of this transport runs. Ranges may overlap or repeat. *out
     * belongs to the transport; unreg frees it. After a failure (FT_NOMEM, FT_NOTSUP, FT_SYSTEM,
     * with a sentence) the memory can be used as unregistered memory. */
    int (*reg)(struct ft_transport *, void *addr, size_t len_bytes, void **out);
    /* Afterwards neither this side nor a peer's hardware touches the memory. No message from or to
     * it may be in flight, except on links that are down. Called like reg, and before close for
     * everything that is still registered. It may block, and cannot fail. */
    void (*unreg)(struct ft_transport *, void *registered);
    /* For sleeping. fd: a descriptor that becomes readable when a peer did something after arm(on)
     * returned true; -1: there is none, and other threads wake the engine. arm(on): false if
     * something is there already. arm(off): the engine is awake again. */
    int (*fd)(struct ft_transport *);
    bool (*arm)(struct ft_transport *, bool on);
    /* Gives back memory that long messages have taken, and that none has needed since the last
     * call. */
    void (*trim)(struct ft_transport *);
    /* Wakes peers that sleep, for what was sent or released while the transport was quiet. NULL:
     * the transport is never quiet. */
    void (*wake)(struct ft_transport *);
    /* True when everything that was sent on this link will arrive even if this process ends now.
     * NULL: that is always true. */
    bool (*flushed)(struct ft_link *);
    /* What the network does with the messages of a link that is UP. A few system calls; the caller
     * chooses how often. False: not known. NULL: there is no network. */
    bool (*measure)(struct ft_link *, struct ft_link_path *out);
    /* Tells of up to `most` connections of a sending link, for telemetry. Returns their number.
     * NULL: it consists of none. */
    int (*connections)(struct ft_link *, struct ft_link_conn *out, int most);
    /* Tells a receiving link the peer's address, as connect gets it. There the link can ask whether
     * the peer's process lives, if it breaks. May be told again. NULL: the transport has no use for
     * it. */
    void (*peer_at)(struct ft_link *, const void *address, size_t len_bytes);
    /* Prints lines about this machine's devices for it, for ftccl-info; needs no open transport.
     * NULL: there are none. */
    void (*describe)(FILE *out);
};

extern const struct ft_transport_ops ft_transport_inproc, ft_transport_shm, ft_transport_tcp,
    ft_transport_net;
#ifdef FT_HAVE_VERBS
extern const struct ft_transport_ops ft_transport_verbs;
#endif
#ifdef FT_HAVE_LIBFABRIC
extern const struct ft_transport_ops ft_transport_ofi;
#endif
/* The name of NCCL's network plugin that FTCCL_NET_PLUGIN asks for. NULL: it asks for none, or that
 * cannot be used. */
const char *ft_transport_net_name(void);
bool ft_transport_net_is_asked_for(void);
/* The same transport with the faults of FTCCL_FAULT in its links. FT_INVAL with a sentence: that
 * text is wrong. */
int ft_transport_faulty(const struct ft_transport_ops *, const struct ft_transport_ops **out);

/* The transports that FTCCL_TRANSPORTS allows, best first, NULL-terminated. FT_INVAL names an
 * unknown one. If FTCCL_FAULT is set, the fault transport wraps each. */
int ft_transport_list(const char *list, const struct ft_transport_ops **out, int capacity);
/* Whether this build has a network of that name. */
bool ft_transport_is_network(const char *name);
/* Writes a text for FTCCL_TRANSPORTS that allows all transports inside a host, and one network by
 * its name or NCCL's. FT_INVAL names the networks that exist. */
int ft_transport_only_network(const char *name, char *out, size_t capacity_bytes);
/* Whether other processes of this host may read this process's memory, as far as it can tell. Each
 * link tests it. */
bool ft_transport_pulls(void);
bool ft_transport_pulls_slowly(void); /* see ft_pull_is_slow() */
/* Prints names, interfaces and addresses of this machine, for ftccl-info. */
void ft_transport_describe(FILE *out);

/* ---- network interfaces ---------------------------------------------------------------------- */

#define FT_NET_ADDRESSES 8   /* most addresses that a process offers; later ones are left out */
#define FT_NET_WIRE_BYTES 24 /* bytes of one address on the wire */
#define FT_NET_TEXT_BYTES 80
#define FT_NET_NAME_BYTES 16

/* An IP address and a TCP port. For a link-local IPv6 address, scope is the interface's number on
 * the machine that has the address. */
struct ft_net_address {
    int family; /* AF_INET or AF_INET6 */
    uint16_t port;
    uint32_t scope;
    unsigned char ip[16]; /* in network order; AF_INET uses the first 4 bytes */
    bool up, loopback;
    char name[FT_NET_NAME_BYTES]; /* of the interface; "" if the address came over the wire */
};

/* This machine's addresses that FTCCL_SOCKET_IFNAME and FTCCL_SOCKET_FAMILY allow, best first,
 * loopback last. Returns their number. FT_INVAL: they allow none or are wrong; the sentence says
 * what there is. */
int ft_net_addresses(struct ft_net_address *out, int capacity);
/* Only the choice, from any list, for tests. `order` is a text like FTCCL_SOCKET_IFNAME, `family`
 * one like FTCCL_SOCKET_FAMILY. */
int ft_net_choose(const struct ft_net_address *have, int count, const char *order,
                  const char *family, struct ft_net_address *out, int capacity);
/* Makes a non-blocking listening socket for those addresses that are of the family. Port 0 takes a
 * free port, which is written into them. FT_NOTSUP: there are no such addresses. The socket is
 * owned (ft_fd_own): close it with ft_fd_close(). */
int ft_net_listen(struct ft_net_address *addresses, int count, int family, uint16_t port,
                  int *fd_out);
/* alone: fails while anyone else listens there. too: joins a socket of this user that
 * ft_net_listen_alone() made; the kernel then chooses between them for each connection. */
int ft_net_listen_alone(const struct ft_net_address *at, int *fd_out);
int ft_net_listen_too(const struct ft_net_address *at, int *fd_out);
/* Accepts the next connection of a listener: non-blocking, TCP_NODELAY, owned. FT_AGAIN: none
 * waits. FT_NOFILE: one waits, but no descriptor is free. Skips connections that broke before they
 * were accepted. */
int ft_net_accept(int listener, int *fd_out);
/* Starts a connection, from FTCCL_SOCKET_SOURCE if that is set and of the same family. `congestion`
 * names the congestion control; NULL: the system's choice. The socket (non-blocking, TCP_NODELAY,
 * owned) becomes writable when it is established or has failed; ft_net_connected() says which. */
int ft_net_connect(const struct ft_net_address *to, const char *congestion, int *fd_out);
/* The same from a local address (its port does not count) and source port, which choose the way
 * through the network. IPv6's flow label is 0. Other connections of this machine may have the port,
 * if they go elsewhere. FT_AGAIN: it is taken; use another one. FT_INVAL: the address is none of
 * this machine's. */
int ft_net_connect_from(const struct ft_net_address *to, const struct ft_net_address *from,
                        uint16_t source_port, const char *congestion, int *fd_out);
/* FT_OK, FT_AGAIN, or FT_LINK with a sentence and errno. */
int ft_net_connected(int fd);
/* The other end of a connection, and this one. FT_NOTSUP: it has none, or one of another family. */
int ft_net_peer(int fd, struct ft_net_address *out);
int ft_net_source(int fd, struct ft_net_address *out);
/* Accepts "host:port", "1.2.3.4:port" or "[v6%scope]:port". Blocks in the resolver if it is a name.
 * Returns the number of addresses, or FT_INVAL. */
int ft_net_resolve(const char *text, struct ft_net_address *out, int capacity);
void ft_net_pack(const struct ft_net_address *, unsigned char wire[FT_NET_WIRE_BYTES]);
/* FT_PROTOCOL: these are not the bytes of an address. */
int ft_net_unpack(const unsigned char wire[FT_NET_WIRE_BYTES], struct ft_net_address *out);
/* The kernel's form of an address. `out` has room for a struct sockaddr_in6; returns how many bytes
 * of it count. */
struct sockaddr;
unsigned ft_net_to_sockaddr(const struct ft_net_address *, struct sockaddr *out);
/* Returns false if it is of another family than these two. */
bool ft_net_from_sockaddr(const struct sockaddr *, struct ft_net_address *out);
/* For example "10.0.0.1:4711" or "[fe80::1%2]:4711". */
const char *ft_net_text(const struct ft_net_address *, char buf[FT_NET_TEXT_BYTES]);

#endif

/*
 * fabric: what a network must offer so that rma.h can make links over it: memory that a peer's
 * endpoint writes into. A provider (verbs, ofi) implements struct ft_fabric_ops; the link engine
 * calls it. A fabric belongs to one engine, and has ports. A way is one connection between two
 * engines through one port of each: a queue pair, or an endpoint. It belongs to one link, and has a
 * peer way of the same number. Both sides write over it: messages one way, returns the other.
 *
 * Rules. For all calls except reg and unreg the caller holds the engine. No call waits for a peer.
 * Calls that make or end something (open, close, reg, unreg, way_open, way_connect, way_close) may
 * ask the kernel or a device, which takes milliseconds at most; the others only touch queues. No
 * allocation in write and poll. A failed call returns a status and leaves a sentence by ft_fail(),
 * with the names that help: device, port, GIDs, queue pair, provider. Providers never log what they
 * return; they may log what happens on its own (a port that comes up).
 *
 * What the engine relies on:
 * - A write is whole. Its event ARRIVED at the peer says that all its bytes are in the peer's
 * memory and visible to its CPU. Nothing is known of bytes without that event, and of their order.
 * - ARRIVED comes at most once for each write, and exactly once if the writer got WRITTEN, unless
 *   the way fails or is stopped. Writes of one way may arrive in any order.
 * - A peer's way writes into the region of its way_open only. Anything else (bounds, keys, a region
 *   that is gone) fails on the peer's side, or is dropped.
 * - A write may be repeated until it is WRITTEN or its way is STOPPED, so its local memory stays
 *   registered. It may change as soon as the peer says that the write has arrived: what is
 *   repeated then changes nothing there.
 * - What way_stop and way_close promise below. Memory is used again only after one of them.
 * A provider never trusts what comes from the peer: way_connect checks the info, and events for
 * ways that do not exist are dropped and counted. The engine checks immediates.
 */
#ifndef FT_RMA_FABRIC_H
#define FT_RMA_FABRIC_H

#include "base/base.h"

#define FT_FABRIC_WAYS_MAX 16    /* most ways of a link */
#define FT_FABRIC_INFO_BYTES 512 /* most bytes of a way's info */
#define FT_FABRIC_HINT_BYTES 24  /* most bytes of a hint; it travels in the engine's endpoint */
#define FT_FABRIC_PIECES 2       /* most pieces of local memory that one write takes */
#define FT_FABRIC_TEXT_BYTES 256 /* of describe */

struct ft_fabric_ops;

/* The provider's own structures begin with these. The engine sets `user` and `number`, and reads
 * the rest. */
struct ft_fabric {
    const struct ft_fabric_ops *ops;
    unsigned ways; /* ways that a link should have, at most FT_FABRIC_WAYS_MAX; constant */
    /* Writes of at most so many bytes can be `inlined`. 0: none. Constant. */
    size_t inline_bytes;
    /* Longest time between polls while ways are open, although fd and arm say that nothing
     * happens. 0: no limit. It may change when ways are opened and closed. */
    uint64_t look_ns;
    uint64_t strays; /* events that fit no way or write, dropped */
    /* Every write is counted by a WRITTEN without being asked for. */
    bool counts_all;
};
struct ft_fabric_way {
    struct ft_fabric *fabric;
    unsigned index; /* its number in the link, as in way_open; the same on the peer's side */
    unsigned port;  /* of this side, for FT_FABRIC_PORT */
    void *user;
};
/* Memory that the fabric knows, with whatever keys its devices need. */
struct ft_fabric_region {
    struct ft_fabric *fabric;
    unsigned char *at;
    size_t len_bytes;
};

/* Who may write into a region. */
enum ft_fabric_access {
    FT_FABRIC_LOCAL, /* nobody else: a source of writes */
    FT_FABRIC_REMOTE /* peers, through the ways that were opened with it */
};

/* Local memory of a write: a part of a region. */
struct ft_fabric_piece {
    const struct ft_fabric_region *region;
    size_t offset, len_bytes;
};

struct ft_fabric_write {
    struct ft_fabric_piece piece[FT_FABRIC_PIECES]; /* written one after another; may be empty */
    unsigned npieces;
    size_t to; /* offset in the region that the peer's way was opened with */
    uint32_t immediate;
    /* The pieces have at most inline_bytes in all, and may change as soon as write returns. */
    bool inlined;
    /* The engine wants WRITTEN for it. Others may be counted only by a later WRITTEN, so that a
     * provider can leave out most completions. */
    bool asked;
};

struct ft_fabric_event {
    enum {
        /* `count` further writes of the way, in the order in which they were given to it, have
         * ended well: this side's memory is not needed any more, and they will arrive even if this
         * process ends. After a write that was asked for, all writes before it are counted, too. */
        FT_FABRIC_WRITTEN,
        FT_FABRIC_ARRIVED, /* a write of the peer, with `immediate` */
        /* The way has failed: some of its writes will not be WRITTEN, and perhaps have arrived.
         * `status` is a reason as ft_link.reason has it, mostly FT_LINK; `text` says what happened.
         * Comes once, and not after way_stop. The way accepts nothing more (write: FT_LINK), but
         * ARRIVED may follow until STOPPED. */
        FT_FABRIC_FAILED,
        /* After way_stop, once, and the last event of the way: see there. */
        FT_FABRIC_STOPPED,
        /* A port became usable (`up`) or lost its link. The ways of a lost one fail, with events of
         * their own. `way` is NULL. */
        FT_FABRIC_PORT
    } what;
    struct ft_fabric_way *way;
    uint32_t immediate;
    unsigned count;
    unsigned port;
    bool up;
    int status;
    const char *text; /* until the next call of poll */
};

struct ft_fabric_config {
    struct ft_env *env;
    int rank; /* for log lines; -1: unknown */
};

struct ft_fabric_ops {
    const char *name; /* the transport's */
    /* Loads libraries, opens devices and queues. FT_NOTSUP: not usable on this machine, with the
     * reason and what there is; then the engine goes without it. FT_INVAL: a parameter is wrong. */
    int (*open)(const struct ft_fabric_config *, struct ft_fabric **out);
    /* Everything that was opened and registered is closed already. Frees the fabric. */
    void (*close)(struct ft_fabric *);
    /* What peers must know to tell without asking whether they reach this engine: the kind of
     * network, a provider's name. Returns its length, at most FT_FABRIC_HINT_BYTES. */
    size_t (*hint)(struct ft_fabric *, void *buf);
    /* Whether ways to a peer with that hint may come about. Asks nobody. */
    bool (*reaches)(struct ft_fabric *, const void *hint, size_t len_bytes);

    /* Makes memory known, page-aligned or not. It stays mapped until unreg. Another thread may call
     * reg and unreg with FT_FABRIC_LOCAL (memory of the user), one at a time, while the engine's
     * turns go on. FT_NOMEM: cannot be pinned; the sentence gives the limit (memlock) that would
     * do. FT_NOTSUP: not this memory. */
    int (*reg)(struct ft_fabric *, void *at, size_t len_bytes, enum ft_fabric_access,
               struct ft_fabric_region **out);
    /* Every way that was opened with the region is closed, or was STOPPED. No write takes pieces of
     * it. Afterwards no peer reaches the memory. unmap: it is a mapping, which the fabric unmaps
     * when no device knows it any more. That may be later, so that the call does not wait for
     * devices. */
    void (*unreg)(struct ft_fabric_region *, bool unmap);

    /* Makes this side of way `index`, which is less than `ways` on both sides. The peer will write
     * into `into`. A link's ways should use all ports in turn. FT_LINK: its port is down now, try
     * again later. FT_NOFILE, FT_NOMEM, FT_NOTSUP. */
    int (*way_open)(struct ft_fabric *, unsigned index, struct ft_fabric_region *into, void *user,
                    struct ft_fabric_way **out);
    /* What the peer's way_connect needs: port, GID, queue pair, address, keys and address of the
     * region. Returns its length, at most FT_FABRIC_INFO_BYTES. It travels over an authenticated
     * connection, in native byte order. */
    size_t (*way_info)(struct ft_fabric_way *, void *buf);
    /* With the info of the peer's way of the same number. Afterwards, what the peer writes arrives.
     * The connector may write as soon as its call has returned: the acceptor has called before it
     * answered. The acceptor writes only when it knows of the connector's call. A network that
     * dials now (ofi) returns FT_AGAIN from write until it is through, or fails the way.
     * FT_PROTOCOL: not an info. FT_NOTSUP: no route from this port to that one; the sentence has
     * both addresses. */
    int (*way_connect)(struct ft_fabric_way *, const void *info, size_t len_bytes);
    /* Gives a write to the way. FT_OK: it will end with WRITTEN, FAILED or STOPPED; the pieces stay
     * registered until then, and unchanged until then or until the peer says that it has arrived.
     * FT_AGAIN: queues are full, or the way is still dialling; poll goes on with that. FT_LINK: the
     * way has failed or is stopped. Pieces and `to` are within bounds (the engine's duty). */
    int (*write)(struct ft_fabric_way *, const struct ft_fabric_write *);
    /* Ends the way without its peer: queue pair to ERR; writes that wait are given up. Allowed
     * once, in any state. When all of this is true, poll reports STOPPED: no byte that the peer
     * writes through it, now or later, reaches this side's memory; every write of the peer that did
     * arrive has had its ARRIVED; this side's device reads no memory for it. Comes whatever the
     * peer does: within milliseconds, but a device that does not give its requests back is waited
     * for (verbs: VERBS_STOP_NS, and the time that the kernel takes to destroy a queue pair, which
     * may be seconds). */
    void (*way_stop)(struct ft_fabric_way *);
    /* Frees the way, in any state: stops it first if need be, and then drops what has arrived and
     * was not polled. Afterwards all that STOPPED promises is true, and no event names the way.
     * Only for a way that is not STOPPED may it take long. */
    void (*way_close)(struct ft_fabric_way *);
    /* One line for people: device, port, queue pair or endpoint, both addresses (GIDs), whatever
     * is known yet. Writes at most FT_FABRIC_TEXT_BYTES. */
    void (*way_describe)(const struct ft_fabric_way *, char *buf);

    /* Makes progress; writes up to max events, oldest first. Returns their number. Sets *busy if
     * anything moved. */
    int (*poll)(struct ft_fabric *, struct ft_fabric_event *events, int max, bool *busy);
    /* For sleeping, like in struct ft_transport_ops: fd becomes readable when there is something to
     * poll after arm(on) returned true. -1: there is none; the engine looks every look_ns. arm(on):
     * false if something is there already, or may be. */
    int (*fd)(struct ft_fabric *);
    bool (*arm)(struct ft_fabric *, bool on);
    /* What there is on this machine, for ftccl-info -t; needs no open fabric. */
    void (*describe)(FILE *out);
};

#endif

/*
 * verbs: the fabric over libibverbs (transport/rma/fabric.h), for InfiniBand and RoCE. load.c loads
 * the library, hca.c and gid.c choose ports and addresses, ports.c opens them, errors.c says what
 * each error means, fabric.c has the table and memory, way.c queue pairs, queue.c completions,
 * events.c what devices report on their own, and reap.c ends in a thread what takes long to end.
 *
 * A way is a queue pair (reliable connection) with receive requests of its own, so that a peer that
 * floods it, or dies, is nobody else's matter, and so that a queue pair moved to ERR gives all its
 * requests back: then nothing of it can arrive any more. Some ways of a device share a completion
 * queue; all queues of a device share a completion channel. The caller holds the engine, as
 * fabric.h says; nothing here has a lock, except the count of registered memory and the list of
 * what is to be ended.
 */
#ifndef FT_VERBS_H
#define FT_VERBS_H

#include "transport/rma/fabric.h"

#include <infiniband/verbs.h>
#include <pthread.h>

#define VERBS_PORTS_MAX 8    /* most ports that an engine uses */
#define VERBS_GIDS_MAX 256   /* most entries of a GID table that are looked at */
#define VERBS_NAME_BYTES 32  /* of a device's name; longer ones are cut */
#define VERBS_TEXT_BYTES 512 /* of a sentence about a way */
#define VERBS_GID_BYTES 48   /* of an address as text */
#define VERBS_SEND_DEPTH 128 /* writes of a way that have not ended */
#define VERBS_RECV_DEPTH 256 /* writes of the peer that have arrived and were not polled */
#define VERBS_CQ_WAYS 4      /* ways that share a completion queue */
#define VERBS_CQS_MAX 4096   /* completion queues of an engine: 16384 ways */
#define VERBS_REPOST 16      /* receive requests that are posted together */
#define VERBS_BATCH 16       /* completions that one call takes */
/* After this time without the last flush a queue pair is destroyed. */
#define VERBS_STOP_NS 250000000
#define VERBS_STOP_LOOK_NS 2000000 /* time between two looks at queue pairs that are stopped */
#define VERBS_ASYNC_NS 1000000     /* time between two looks at asynchronous events */
/* Memory that must be allowed to be pinned: that of two links or so. */
#define VERBS_PROBE_BYTES (4 << 20)

/* ---- the library (load.c) -------------------------------------------------------------------- */

/* The functions of libibverbs that are used. Those on the data path are calls through the device's
 * own table, in the header. A name without its prefix, because some names are macros there. */
#define VERBS_CALLS(X)                                                                        \
    X(int, fork_init, (void))                                                                 \
    X(struct ibv_device **, get_device_list, (int *))                                         \
    X(void, free_device_list, (struct ibv_device **))                                         \
    X(const char *, get_device_name, (struct ibv_device *))                                   \
    X(struct ibv_context *, open_device, (struct ibv_device *))                               \
    X(int, close_device, (struct ibv_context *))                                              \
    X(int, query_device, (struct ibv_context *, struct ibv_device_attr *))                    \
    X(int, query_port, (struct ibv_context *, uint8_t, struct ibv_port_attr *))               \
    X(struct ibv_pd *, alloc_pd, (struct ibv_context *))                                      \
    X(int, dealloc_pd, (struct ibv_pd *))                                                     \
    X(struct ibv_mr *, reg_mr, (struct ibv_pd *, void *, size_t, int))                        \
    X(int, dereg_mr, (struct ibv_mr *))                                                       \
    X(struct ibv_comp_channel *, create_comp_channel, (struct ibv_context *))                 \
    X(int, destroy_comp_channel, (struct ibv_comp_channel *))                                 \
    X(struct ibv_cq *, create_cq,                                                             \
      (struct ibv_context *, int, void *, struct ibv_comp_channel *, int))                    \
    X(int, destroy_cq, (struct ibv_cq *))                                                     \
    X(int, get_cq_event, (struct ibv_comp_channel *, struct ibv_cq **, void **))              \
    X(void, ack_cq_events, (struct ibv_cq *, unsigned))                                       \
    X(struct ibv_qp *, create_qp, (struct ibv_pd *, struct ibv_qp_init_attr *))               \
    X(int, modify_qp, (struct ibv_qp *, struct ibv_qp_attr *, int))                           \
    X(int, query_qp, (struct ibv_qp *, struct ibv_qp_attr *, int, struct ibv_qp_init_attr *)) \
    X(int, destroy_qp, (struct ibv_qp *))                                                     \
    X(int, get_async_event, (struct ibv_context *, struct ibv_async_event *))                 \
    X(void, ack_async_event, (struct ibv_async_event *))

struct verbs_lib {
#define X(type, name, arguments) type(*name) arguments;
    VERBS_CALLS(X)
#undef X
    /* of libibverbs since 2020 */
    int (*query_gid_ex)(struct ibv_context *, uint32_t port, uint32_t index, struct ibv_gid_entry *,
                        uint32_t flags, size_t entry_bytes);
};

/* The library, loaded once in a process and never unloaded. FT_NOTSUP: this machine has no RDMA
 * device, no library, or one that lacks a function; the sentence says which. */
int verbs_load(const struct verbs_lib **out);

/* ---- which ports (hca.c), which address (gid.c) ---------------------------------------------- */

/* What FTCCL_IB_... and NCCL's names for them say. */
struct verbs_options {
    const char *hca, *address_family, *address_range;
    int gid_index; /* -1: chosen */
    unsigned roce_version, traffic_class, service_level, timeout, retries, pkey_index;
    unsigned mtu_bytes;       /* 0: that of the ports */
    unsigned qps_per_port;    /* ways of a link, for each port */
    const char *source_ports; /* "": every queue pair another one */
};
/* FT_INVAL: one of them makes no sense; the sentence names it. */
int verbs_options_read(struct verbs_options *out);
/* Source port of UDP for queue pair `index` of a link; 0: none was asked for. */
uint16_t verbs_source_port(const char *list, unsigned index);

/* A port as the choice sees it. */
struct verbs_port_seen {
    char device[VERBS_NAME_BYTES];
    unsigned number;
    bool active;
    uint8_t link_layer; /* IBV_LINK_LAYER_INFINIBAND or _ETHERNET */
};
/* The place of a port in a list like FTCCL_IB_HCA: 0 or more, -1: it is not allowed. The form is
 * NCCL's: names by prefix, "=" exact names, "^" excluded ones, with ":port" or without. */
int verbs_hca_place(const char *list, const struct verbs_port_seen *);
/* Puts the numbers of allowed ports into out, best first. FT_INVAL: there are ports, but none is
 * allowed; FT_NOTSUP: there is none, or none that is allowed is active. The sentence lists what
 * there is. */
int verbs_hca_choose(const char *list, const struct verbs_port_seen *, int count, int *out,
                     int capacity);

struct verbs_gid_table {
    const char *port; /* for sentences: "rxe0:1" */
    uint8_t link_layer;
    unsigned count, length; /* entries in `entry`; entries that the device's table has */
    struct ibv_gid_entry entry[VERBS_GIDS_MAX];
};
/* The entry to use: the one that FTCCL_IB_GID_INDEX names, or RoCE v2 of the address family that is
 * asked for, best one first: no link-local address if there is another. FT_INVAL or FT_NOTSUP with
 * the table of those that are there. */
int verbs_gid_choose(const struct verbs_gid_table *, const struct verbs_options *,
                     const struct ibv_gid_entry **out);
/* An address as people write it: an IPv4 address, or an IPv6 address. */
const char *verbs_gid_text(const union ibv_gid *, char buf[VERBS_GID_BYTES]);
bool verbs_gid_is_ipv4(const union ibv_gid *);

/* ---- errors (errors.c) ----------------------------------------------------------------------- */

/* What an error costs. OPERATION: only the writes of one way, which other ways can bring again.
 * LINK: the way, and the link if it was its last. PEER: the peer is to blame, and perhaps is gone;
 * its side connection says. PROCESS: this process's device or its own mistake. */
enum verbs_lost {
    VERBS_LOST_NOTHING,
    VERBS_LOST_OPERATION,
    VERBS_LOST_LINK,
    VERBS_LOST_PEER,
    VERBS_LOST_PROCESS
};
enum verbs_scope { VERBS_OF_WAY, VERBS_OF_QUEUE, VERBS_OF_PORT, VERBS_OF_DEVICE };
struct verbs_error {
    const char *name;
    enum verbs_lost lost;
    bool recoverable; /* a new queue pair, or the same port later, can do it */
    enum verbs_scope scope;
    const char *reason; /* goes into the sentence */
};
/* Of a work completion (enum ibv_wc_status), and of an asynchronous event (enum ibv_event_type).
 * Unknown codes, of newer libraries, have entries, too. */
const struct verbs_error *verbs_completion_error(unsigned status);
const struct verbs_error *verbs_event_error(unsigned type);
const char *verbs_lost_name(enum verbs_lost);
/* The status for ft_link.reason. */
int verbs_error_status(const struct verbs_error *);

/* ---- devices and ports (ports.c) ------------------------------------------------------------- */

struct verbs_device {
    struct ibv_context *context;
    bool gone; /* it has failed, or was removed: it tells nothing any more */
    struct ibv_pd *pd;
    struct ibv_comp_channel *channel;
    char name[VERBS_NAME_BYTES];
    unsigned max_send, max_recv, max_cqe; /* its limits */
    size_t inline_bytes;
};
struct verbs_port {
    struct verbs_device *device;
    unsigned device_index;
    uint8_t number, link_layer;
    bool up;
    char name[VERBS_NAME_BYTES + 4]; /* "rxe0:1" */
    uint16_t lid;
    unsigned mtu_bytes;
    unsigned gid_index;
    union ibv_gid gid;
};

/* Something that is ended by the thread of reap.c. */
struct verbs_dead {
    struct verbs_dead *next;
    void (*end)(struct verbs_dead *);
};

struct verbs_cq;
struct verbs_fabric {
    struct ft_fabric base; /* must be the first field */
    const struct verbs_lib *lib;
    struct ft_fabric_config config;
    struct verbs_options options;
    struct verbs_device device[VERBS_PORTS_MAX];
    unsigned ndevices;
    struct verbs_port port[VERBS_PORTS_MAX];
    unsigned nports;
    struct verbs_cq *cqs; /* all, newest first */
    unsigned ncqs;
    struct verbs_cq *turn; /* the one that poll looks at first */
    /* Completions that arm has taken from a queue; poll handles them first. */
    struct {
        struct verbs_cq *cq;
        int count, next;
        struct ibv_wc wc[VERBS_BATCH];
    } taken;
    int epoll_fd;
    uint64_t async_ns; /* when asynchronous events were looked at */
    unsigned polls;
    bool look_async; /* look at them in the next poll */
    unsigned nstopping;
    struct verbs_way *news, **news_end; /* ways with FAILED or STOPPED to report */
    uint32_t port_news;                 /* a bit per port: PORT to report */
    /* protected by the lock: */
    uint64_t pinned_bytes;
    struct verbs_dead *dead, **dead_end; /* to be ended, the oldest first */
    bool reaping, reaper_ends;           /* something is being ended; the thread is to end */
    pthread_mutex_t lock;
    pthread_cond_t reap, reaped; /* there is something to do; something was done */
    pthread_t reaper;
    bool has_reaper;
    char text[VERBS_TEXT_BYTES]; /* of the latest events */
};

/* Opens the ports that the options allow, with their devices. */
int verbs_ports_open(struct verbs_fabric *);
void verbs_ports_close(struct verbs_fabric *);
/* Asks again for state, MTU, LID and GID. FT_LINK: not active now. */
int verbs_port_query(struct verbs_fabric *, struct verbs_port *);
int verbs_gid_table_read(const struct verbs_lib *, struct ibv_context *, unsigned port,
                         unsigned length, struct verbs_gid_table *out);
/* The sentence for memory that cannot be pinned. */
int verbs_fail_pinning(const struct verbs_fabric *, const char *device, size_t len_bytes,
                       int error);
void verbs_describe(FILE *out);
/* The same with any library, for tests. */
void verbs_describe_with(const struct verbs_lib *, FILE *out);

/* ---- fabric, queue pairs, completions, events ------------------------------------------------ */

struct verbs_region {
    struct ft_fabric_region base;       /* must be the first field */
    struct ibv_mr *mr[VERBS_PORTS_MAX]; /* by device */
    struct verbs_dead dead;
};

enum verbs_way_state {
    VERBS_OPENED,
    VERBS_READY, /* connected */
    VERBS_FAILED,
    VERBS_STOPPING, /* moved to ERR; its requests come back */
    VERBS_DYING,    /* it is being destroyed */
    VERBS_ENDING,   /* destroyed; what has arrived is in the completion queue */
    VERBS_STOPPED
};
struct verbs_way {
    struct ft_fabric_way base; /* must be the first field */
    struct verbs_port *port;
    struct verbs_cq *cq;
    unsigned slot; /* in its completion queue */
    struct ibv_qp *qp;
    enum verbs_way_state state;
    struct verbs_region *into;
    uint32_t psn, peer_qpn, peer_rkey, flow_label;
    uint64_t peer_at, peer_bytes;
    union ibv_gid gid, peer_gid; /* as they were when it was opened */
    unsigned gid_index, mtu_bytes;
    char peer_port[VERBS_NAME_BYTES + 4];
    unsigned send_depth, recv_depth;
    uint32_t posted, ended, asked; /* writes: given to the queue pair, ended, last one asked for */
    unsigned receives, missing;    /* receive requests: posted; to be posted again */
    bool flushed;                  /* the request after the last write came back */
    uint64_t stop_ns;              /* when the queue pair is destroyed */
    bool say_failed, say_stopped, said_failed, listed;
    struct verbs_dead dead;
    bool destroyed; /* DYING: the queue pair is gone; protected by the fabric's lock */
    int status;
    char text[VERBS_TEXT_BYTES];
    struct verbs_way *next_news;
};

/* Completions of some ways. A number of a request names the slot and its use (generation), so that
 * none is taken for one of another way. */
struct verbs_cq {
    struct verbs_fabric *fabric;
    struct verbs_device *device;
    struct ibv_cq *cq;
    struct verbs_cq *next;
    unsigned unacknowledged; /* events of the channel */
    bool broken;             /* it has overflowed or failed, and tells nothing any more */
    struct {
        struct verbs_way *way;
        uint16_t use;
        bool dirty; /* closed; its completions may still be in the queue */
    } slot[VERBS_CQ_WAYS];
};

extern const struct ft_fabric_ops verbs_fabric_ops;
/* Opens a fabric with any library, for tests. */
int verbs_fabric_open_with(const struct verbs_lib *, const struct ft_fabric_config *,
                           struct ft_fabric **out);

static inline struct verbs_fabric *verbs_fabric_of(struct ft_fabric *f)
{
    return FT_CONTAINER(f, struct verbs_fabric, base);
}
static inline struct verbs_way *verbs_way_of(struct ft_fabric_way *w)
{
    return FT_CONTAINER(w, struct verbs_way, base);
}

int verbs_way_open(struct ft_fabric *, unsigned index, struct ft_fabric_region *into, void *user,
                   struct ft_fabric_way **out);
size_t verbs_way_info(struct ft_fabric_way *, void *buf);
int verbs_way_connect(struct ft_fabric_way *, const void *info, size_t len_bytes);
int verbs_way_write(struct ft_fabric_way *, const struct ft_fabric_write *);
void verbs_way_stop(struct ft_fabric_way *);
void verbs_way_close(struct ft_fabric_way *);
void verbs_way_describe(const struct ft_fabric_way *, char *buf);
/* The way accepts nothing more, and FAILED is reported, with a sentence. Only the first counts. */
void verbs_way_fail(struct verbs_way *, const struct verbs_error *, const char *code_text);
void verbs_way_repost(struct verbs_way *);
/* Puts it into the list of those with something to report. */
void verbs_way_news(struct verbs_way *);
/* After STOPPING or ENDING: whether it is over now; then STOPPED is reported. */
void verbs_way_check_stopped(struct verbs_way *);
/* STOPPING or DYING: goes on with the end of a queue pair that does not give its requests back. */
void verbs_way_check_dying(struct verbs_way *, uint64_t now_ns);

/* Calls dead->end in the thread, after everything that was given to it before. At once if there is
 * no thread and none can be started. */
void verbs_reap(struct verbs_fabric *, struct verbs_dead *);
/* Whether something is still to be ended. */
bool verbs_reaps(struct verbs_fabric *);
/* Waits until everything is ended, and ends the thread. */
void verbs_reaper_close(struct verbs_fabric *);

/* A completion queue of the device with a free slot, which the way gets. */
int verbs_cq_join(struct verbs_fabric *, struct verbs_device *, struct verbs_way *);
void verbs_cq_leave(struct verbs_way *);
/* It tells nothing any more: its ways fail, and no other way joins it. */
void verbs_cq_break(struct verbs_cq *, const char *why);
void verbs_cqs_close(struct verbs_fabric *);
/* The number of a request. kind: 0 a write, whose number is `seq`; 1 a receive request; 2 the
 * request after the last write. */
enum verbs_kind { VERBS_WRITE, VERBS_RECEIVE, VERBS_LAST };
uint64_t verbs_request(const struct verbs_way *, enum verbs_kind, uint32_t seq);
int verbs_poll(struct ft_fabric *, struct ft_fabric_event *, int max, bool *busy);
int verbs_fd(struct ft_fabric *);
bool verbs_arm(struct ft_fabric *, bool on);

/* Takes all asynchronous events of all devices. True: there were some. */
bool verbs_events_take(struct verbs_fabric *);
/* Handles one, for tests. */
void verbs_event_handle(struct verbs_fabric *, struct verbs_device *,
                        const struct ibv_async_event *);

#endif

/*
 * engine: the lowest floor of core. An engine belongs to one rank. It owns the transports, the
 * links to the engines of other ranks (peers), the messages between engines, heartbeats and the
 * proof of death. It decides which thread drives. It knows no communicator. It collects news for
 * each peer, and the floors above take the news in their turn: no code here calls upward. The one
 * exception is the turn itself, a function that the floor above gives when it opens an engine.
 *
 * Only the thread that holds engine->drive touches the state. Functions that need this check it at
 * their entry with ft_engine_assert_held().
 */
#ifndef FT_ENGINE_H
#define FT_ENGINE_H

#include "algo/algo.h"
#include "device/device.h"
#include "membership/membership.h"
#include "path/path.h"
#include "ras/ras.h"
#include "telemetry/telemetry.h"
#include "transport/transport.h"

#include <pthread.h>
#include <sched.h>

/* Turns between two looks for control messages, notices and puts. If nothing moves, the engine also
 * looks at the clock that often. */
#define FT_TURNS_OFTEN 16
/* Turns between two looks at the clock, and at transports without links, while something moves. A
 * multiple of FT_TURNS_OFTEN. */
#define FT_TURNS_RARELY 64

struct ft_engine;

/* ---- peers (peer.c) -------------------------------------------------------------------------- */

/* What happened to a peer since the floor above last took the news. */
struct ft_peer_news {
    bool lost;   /* ft_peer_lost() was called: communicators with this peer fail */
    int reason;  /* why it is lost: a status */
    bool proof;  /* its process has ended */
    bool tx_end; /* its sending link is down or must be closed */
    /* its receiving link is down, and another one waits to replace it, or its end says nothing */
    bool rx_end;
};

/* Another rank's engine as this engine knows it. The communicators that hold it are counted in
 * `users`. */
struct ft_peer {
    struct ft_peer *next;       /* in the hash chain */
    struct ft_peer *next_known; /* in the engine's roster */
    struct ft_peer *next_news;  /* in the engine's list of peers with news */
    uint64_t id, host;
    enum ft_peer_state state; /* only ft_peer_move() changes it */
    bool has_news;            /* it is in the engine's list */
    struct ft_peer_news news;
    struct ft_link *tx, *rx;
    /* The peer dialled again, and rx is not yet known to be down. NULL: no such link. */
    struct ft_link *next_rx;
    uint64_t next_rx_ns; /* when next_rx came up */
    /* A goodbye on rx before this time was said in a view that is over; see ft_engine_readmit(). */
    uint64_t old_rx_ns;
    int users; /* communicators that hold it */
    /* Grows about which the peer asked, and agreements that may send to it. The peer is kept while
     * there are any. */
    int askers, agreements;
    bool met;            /* a link to or from it was up */
    bool tx_was_up;      /* tx has been UP */
    bool departed;       /* it said goodbye on a link, whatever happened later */
    bool redialled;      /* it was dialled again after it was lost or had left */
    bool told;           /* other ranks have told about it, not only the peer itself */
    bool odd;            /* it sent something unknown, and the log has a line about it */
    int queued_messages; /* its messages in the outbox */
    unsigned breaks;     /* sending links that ended and that no other transport replaced */
    uint64_t blocked;    /* round of the outbox in which its link accepted nothing */
    /* its rank in the first communicator, for messages to people; -1: unknown */
    int rank;
    /* The peer's process, if it is another process of this host; see death_watch.c. */
    struct ft_death_watch {
        struct ft_liveness *page; /* NULL: the page cannot be seen */
        bool ended;               /* the last look saw that the process has ended */
    } watch;
    /* The peer's pinned memory, if both engines have a GPU. Kept while the peer is in a
     * communicator. */
    struct ft_pinned *pinned;
    struct ft_heartbeat {
        struct ft_pulse pulse; /* of the heartbeats that it sends */
        bool suspected;        /* its heartbeats do not come */
        bool sends;            /* this engine sends heartbeats to it */
        uint64_t round;        /* the last round in which it was to get a heartbeat */
        struct ft_clock clock; /* its clock; measured_ns 0: not known */
    } heartbeat;
    int tx_row, rx_row; /* of telemetry */
    /* Sampled once per tick. */
    struct ft_link_time {
        uint64_t bytes, transfer_ns, wait_ns;
        uint64_t remakes; /* of the link, as far as telemetry has events of them */
        uint64_t path_ns; /* when the path was measured last; 0: never */
        int path_row;     /* of telemetry; -1: none */
        /* Latencies that telemetry knows; 0: there are none, and no row. */
        uint64_t latencies;
        int latency_row;
        int conn_row, nconns; /* rows of its connections; -1: none. nconns 0: not known */
    } tx_time, rx_time;
    uint32_t address_bytes;
    unsigned char *address; /* packed endpoint */
};

/* Changes the state of a peer; no other function does. Returns false if the table has no such move:
 * then the old state is more certain, and stays. */
bool ft_peer_move(struct ft_engine *engine, struct ft_peer *peer, enum ft_peer_state to);
/* The peer is lost for every communicator. `proof`: its process has certainly ended. The floor
 * above gets this as news. */
void ft_peer_lost(struct ft_engine *engine, struct ft_peer *peer, int reason, bool proof);
/* No new link to it is opened, unless ft_engine_redial() asks for one. */
static inline bool ft_peer_is_gone(const struct ft_peer *peer)
{
    return peer->state != FT_PEER_OPEN;
}
/* As far as this rank can tell, the peer's process, its machine or the way to it failed. */
static inline bool ft_peer_has_failed(const struct ft_peer *peer)
{
    return peer->state == FT_PEER_LOST || peer->state == FT_PEER_DEAD ||
           (peer->state == FT_PEER_UNREACHABLE && !peer->departed);
}
/* A link to a fenced peer is only cut. It would understand a goodbye as this rank's leaving. */
static inline bool ft_peer_is_fenced(const struct ft_peer *peer)
{
    return peer->state >= FT_PEER_FENCED;
}
/* Finds or makes the peer. NULL: no memory. The caller holds the engine. */
struct ft_peer *ft_engine_peer(struct ft_engine *engine, uint64_t id);
int ft_engine_learn(struct ft_engine *engine, uint64_t id, uint64_t host, const void *address,
                    uint32_t len_bytes, int rank);
/* A new communicator contains a lost peer: only its links were lost, and new ones are made when
 * they are needed. Returns false if the peer is not lost, or the state did not change. */
bool ft_engine_forgive(struct ft_engine *engine, struct ft_peer *peer);
/* A coordinator, which hears from the peer, says that it takes part again, with the same engine: it
 * may have left, been lost or been fenced for what is over now. If it has left in between, and its
 * goodbye is still under way on the receiving link, that is no news any more. The peer said it
 * before the coordinator heard of it. False: its process has ended. */
bool ft_engine_readmit(struct ft_engine *engine, struct ft_peer *peer);
/* The floor above knows that the peer has left since then: its goodbye is news, and its receiving
 * link stays. False: the link is of before, or another one waits to replace it. */
bool ft_engine_departs(struct ft_engine *engine, struct ft_peer *peer);
/* Nobody tells about the peer any more. It is forgotten when nothing can refer to it. */
void ft_engine_unlearn(struct ft_engine *engine, struct ft_peer *peer);
/* Returns the next peer with news, and its news; NULL: no peer has news. The caller acts on them,
 * gives back what communicators hold of the links that the news name, and then calls
 * ft_engine_news_done(). */
struct ft_peer *ft_engine_next_news(struct ft_engine *engine, struct ft_peer_news *news);
void ft_engine_news_done(struct ft_engine *engine, struct ft_peer *peer,
                         const struct ft_peer_news *news);

/* ---- links (links.c) ------------------------------------------------------------------------- */

/* Returns the sending link to a peer, and starts to connect if there is none. FT_OK, FT_AGAIN
 * (connecting), or the reason of the failure. */
int ft_engine_link(struct ft_engine *engine, struct ft_peer *peer, struct ft_link **out);
/* Like ft_engine_link(), but also dials a peer that was lost or left, because it may be alive. It
 * does not dial a dead one. */
int ft_engine_redial(struct ft_engine *engine, struct ft_peer *peer, struct ft_link **out);
/* Closes a link of the peer at once; its pending sends complete. Before that, communicators must
 * have given back what they hold of it: see ft_link_drop() of the floor above. */
void ft_engine_close_link(struct ft_engine *engine, struct ft_peer *peer, struct ft_link *link);
/* Closes next_rx, if there is one. */
void ft_engine_close_next(struct ft_engine *engine, struct ft_peer *peer);
/* Polls the transports. Returns whether something moved. */
bool ft_engine_poll(struct ft_engine *engine);
/* Messages of ctx are kept from now on; to be called before any peer can know that this rank is
 * ready for them. The _held ones: the caller holds the engine. */
int ft_engine_bind(struct ft_engine *engine, uint64_t ctx);
void ft_engine_unbind(struct ft_engine *engine, uint64_t ctx);
int ft_engine_bind_held(struct ft_engine *engine, uint64_t ctx);
void ft_engine_unbind_held(struct ft_engine *engine, uint64_t ctx);

/* ---- the engine (engine.c, drive.c) ---------------------------------------------------------- */

struct ft_engine_config {
    struct ft_env *env;
    /* NULL-terminated, best first */
    const struct ft_transport_ops *transports[FT_TRANSPORTS_MAX + 1];
    unsigned char key[FT_KEY_BYTES];
    uint64_t id;
    int rank;
    int64_t heartbeat_ms, suspect_ms; /* suspect_ms 0: both by parameter */
    bool manual;                      /* no background thread: a simulation turns it */
    struct ft_device_gpu gpu;         /* the GPU of this rank's buffers */
};

struct ft_engine {
    struct ft_engine *next;             /* in the list of the process */
    struct ft_engine *next_registering; /* in the list of memory.c */
    uint64_t number;                    /* counts the engines that joined the list */
    struct ft_env *env;
    uint64_t id, host;
    int rank;
    bool manual;
    atomic_int refs; /* hold the memory of the struct: communicators and waiters */
    /* Communicators that are attached. The last one closes the engine. The caller holds the
     * engine. */
    int users;
    /* One turn. The caller holds the engine. Returns whether something moved. The floor above sets
     * it. */
    bool (*turn)(struct ft_engine *);
    struct ft_run_state *run; /* what the floors above keep per engine */
    struct ft_group_state *group;

    struct ft_transport *transports[FT_TRANSPORTS_MAX];
    int ntransports;
    /* Open links of each transport. A transport without links is polled rarely. */
    int links[FT_TRANSPORTS_MAX];
    struct ft_event *events; /* [nevents] of the transport that is being polled */
    int nevents;
    struct ft_device *device; /* for host memory */
    /* For buffers of the GPU whose context opened the engine. NULL: no GPU. */
    struct ft_device *gpu;
    struct ft_rules rules; /* of the tuning, and of the copies that communicators adapt */
    struct ft_tuning tuning;
    struct ft_path_finder *paths; /* NULL unless FTCCL_PATHS is set */
    struct ft_telemetry *telemetry;
    struct ft_ras ras; /* its background thread serves clients if no other engine does */
    bool asked;        /* a client has been heard since; only the background thread uses it */

    struct ft_peer *peers[256]; /* hash table by id */
    struct ft_peer *roster;     /* list of all peers */
    struct ft_peer *news, **news_end;
    bool hung_up; /* peers that nobody needs may be gone */
    int waiting;  /* peers that have a next_rx */
    bool alive;   /* other processes can see when this process ends */
    int watched;  /* peers whose liveness pages are visible */

    struct ft_ctl_message *outbox, **outbox_end;
    unsigned char *ctl_buffer; /* [chunk_bytes] the control message that is being processed */
    uint64_t rounds;           /* of the outbox */
    /* Control messages in the outbox. Relaxed: a hint for threads that wait until none is left. */
    atomic_int unsent;
    struct ft_detect detect;       /* periods and limits of heartbeats */
    uint64_t beat_ns, beat_rounds; /* when the last heartbeats were sent, and how often */
    uint64_t echo_peer; /* to which a link was made only to answer its heartbeats; 0: none yet */

    pthread_mutex_t drive; /* the lock; its holder is the driver */
    pthread_t driver;      /* the holder, for ft_engine_assert_held() */
    bool driven;
    pthread_mutex_t inbox_lock; /* protects the inbox and event_fd */
    atomic_int inbox_count;     /* A hint, relaxed; inbox_lock protects the inbox itself. */
    atomic_int active;          /* there is work; only the driver writes it */
    uint64_t ticked_ns, ticked_before_ns;
    uint64_t trim_ns, trimmed_ns; /* period (0: never), and the time of the last trim */
    uint64_t turns;
    bool stuck; /* nothing moved in the last turn */

    pthread_t thread;
    bool thread_running;
    atomic_int stop;
    atomic_int sleeping;  /* the driver sleeps in epoll; pairs with ft_engine_wake() */
    atomic_int wanted;    /* user threads that want to drive */
    atomic_int gpu_works; /* Works on the GPU, which wakes no thread. Relaxed. */
    int captured;         /* Groups that CUDA graphs hold. Nothing reports their replays. */
    uint64_t replayed_ns; /* time of the last replay */
    /* User threads set it; the background thread clears it when it looks. */
    atomic_int user_drove;
    int epoll_fd, event_fd;
    cpu_set_t cpus; /* processors on which the opening thread could run; empty: unknown */
    /* On this machine, the ranks of a communicator of the engine have fewer cores than ranks.
     * Relaxed. */
    atomic_int crowded;
};

/* Opens a zeroed engine whose `turn` is set. After a failure the caller must close and unref it. */
int ft_engine_open(struct ft_engine *engine, const struct ft_engine_config *config);
/* Ends the background thread and takes the engine off the list of the process. Idempotent. Blocks
 * until the thread has ended. */
void ft_engine_stop(struct ft_engine *engine);
/* Says goodbye on all links, and frees everything except the struct. The engine must be stopped,
 * and the caller must not be its driver. */
void ft_engine_close(struct ft_engine *engine);
void ft_engine_ref(struct ft_engine *engine);
void ft_engine_unref(struct ft_engine *engine); /* the last reference frees the struct */
/* The slow part of a turn on this floor. False: less than a millisecond has passed since the last
 * one. */
bool ft_engine_tick_due(struct ft_engine *engine);
void ft_engine_tick(struct ft_engine *engine);
/* Whether ft_engine_tick() gives back memory that was not needed since it did so last. */
static inline bool ft_engine_trim_due(const struct ft_engine *engine)
{
    return engine->trim_ns && engine->ticked_ns - engine->trimmed_ns >= engine->trim_ns;
}

/* Makes the caller the driver. Wakes a driver that sleeps, and blocks until it releases the
 * engine. */
void ft_engine_lock(struct ft_engine *engine);
bool ft_engine_trylock(struct ft_engine *engine);
void ft_engine_unlock(struct ft_engine *engine);
/* In debug and sanitizer builds: checks that the calling thread holds the engine. */
void ft_engine_check_held(const struct ft_engine *engine, const char *where);
#if defined(FT_CHECK_LOCKS)
#define ft_engine_assert_held(engine) ft_engine_check_held(engine, __func__)
#else
#define ft_engine_assert_held(engine) ((void)(engine))
#endif
void ft_engine_wake(struct ft_engine *engine);
int ft_engine_start_thread(struct ft_engine *engine);
/* Blocks and turns engines until done(arg) is true. Returns false if bound_ns passed before;
 * bound_ns 0: no bound. `first` is turned most; the other engines of the process are turned when it
 * has nothing to do. */
bool ft_engine_wait(struct ft_engine *first, bool (*done)(void *), void *arg, uint64_t bound_ns);
/* To be called after a submission. Does one turn if no thread drives; otherwise wakes the
 * driver. */
void ft_engine_kick(struct ft_engine *engine);
/* Calls fn for each engine that the process has now, with a reference held during the call. */
void ft_engine_each(void (*fn)(struct ft_engine *, void *), void *arg);
void ft_engine_enlist(struct ft_engine *engine);
void ft_engine_delist(struct ft_engine *engine);

/* ---- messages between engines (control.c) ---------------------------------------------------- */

#define FT_CTX_ENGINE 1 /* context of the messages between engines */
enum ft_ctl {
    FT_CTL_AGREE = 1,
    FT_CTL_GONE,
    FT_CTL_ASK,
    FT_CTL_TELL,
    FT_CTL_BEAT,
    FT_CTL_ABANDONED,
    FT_CTL_RAS, /* instance: enum ft_ras_message_kind; ctx: the number of the question */
    FT_CTL_VALIDATE
};
/* ctx and instance of the communicator that the message is about */
struct ft_ctl_head {
    uint32_t what, instance;
    uint64_t ctx;
};
/* A message that came, as bytes from outside. `data` is valid until the next call. head.what is 0
 * if the message could not be read. */
struct ft_ctl_in {
    struct ft_ctl_head head;
    const unsigned char *data;
    size_t len_bytes;
};
int ft_control_open(struct ft_engine *engine);
void ft_control_close(struct ft_engine *engine);
/* Takes the peer's next message. False: there is none. */
bool ft_control_receive(struct ft_engine *engine, struct ft_peer *peer, struct ft_ctl_in *in);
bool ft_control_flush(struct ft_engine *engine); /* Sends what waits. True: it sent something. */
/* Copies a message and sends it when the link accepts it. The message is lost if the link breaks,
 * or if too many wait for the peer. */
void ft_control_send(struct ft_engine *engine, struct ft_peer *peer, const struct ft_ctl_head *head,
                     const void *data, size_t len_bytes);
/* logs one line */
void ft_control_unknown(struct ft_engine *engine, struct ft_peer *peer, uint32_t what);
/* The checksum of a message: over its header up to `crc`, then its payload. */
uint32_t ft_message_sum(const struct ft_header *header, const void *data);

void ft_overlay_open(struct ft_engine *engine); /* for the responder (overlay.c) */

/* ---- heartbeats (heartbeat.c) ---------------------------------------------------------------- */

void ft_heartbeat_open(struct ft_engine *engine, int64_t heartbeat_ms, int64_t suspect_ms);
/* True: heartbeats are due. The caller first marks the peers that are to get one, then sends. */
bool ft_heartbeat_due(struct ft_engine *engine);
void ft_heartbeat_mark(struct ft_engine *engine, struct ft_peer *peer);
void ft_heartbeat_send(struct ft_engine *engine);
/* How long ago the last heartbeat of a peer came that this rank watches. The peer has had a reason
 * to send since since_ns, in this engine's running time. */
uint64_t ft_heartbeat_silence_ms(const struct ft_engine *engine, const struct ft_peer *peer,
                                 uint64_t since_ns);
void ft_heartbeat_receive(struct ft_engine *engine, struct ft_peer *peer,
                          const struct ft_ctl_in *in);

/* ---- proof of death on this host (death_watch.c) --------------------------------------------- */

/* If this process has no page of its own, it watches no other page either. */
void ft_death_watch_open(struct ft_engine *engine);
void ft_death_watch_close(struct ft_engine *engine);
/* Adds the place of the page to the endpoint. False: the endpoint is full. */
bool ft_death_watch_endpoint(const struct ft_engine *engine, struct ft_endpoint *endpoint);
void ft_death_watch_learn(struct ft_engine *engine,
                          struct ft_peer *peer); /* to be called once its endpoint is known */
void ft_death_watch_tick(struct ft_engine *engine);
void ft_death_watch_forget(struct ft_engine *engine, struct ft_peer *peer); /* unmaps the page */
bool ft_death_watch_ended(const struct ft_peer *peer); /* proof, as far as this host can know */
/* Says in words why a transfer to or from a peer failed. First looks whether its process has
 * ended. */
const char *ft_death_watch_why(struct ft_engine *engine, struct ft_peer *peer, int status);

/* ---- what a rank tells of itself (endpoint.c), cores and locality ---------------------------- */

/* This rank's endpoint for the bootstrap, made from the addresses of its transports. */
int ft_engine_endpoint(struct ft_engine *engine, struct ft_endpoint *endpoint);
/* Adds or replaces a named part. False: it does not fit. */
bool ft_endpoint_put(struct ft_endpoint *endpoint, const char *name, const void *data,
                     size_t len_bytes);
/* The named part of an endpoint's address. NULL: there is no such part, or the endpoint is
 * malformed. */
const unsigned char *ft_endpoint_part(const unsigned char *endpoint, size_t endpoint_bytes,
                                      const char *name, size_t *len_bytes);
const unsigned char *ft_peer_part(const struct ft_peer *peer, const char *name, size_t *len_bytes);

/* The ranks of a view as an engine knows them. peer[r] is NULL for its own rank. */
struct ft_ranks {
    struct ft_engine *engine;
    const struct ft_view *view;
    struct ft_peer *const *peer;
};
/* The number of cores that the ranks of a host have together. fewest: the smallest number of any
 * host of the view; leaves *cores as it is if that is unknown; FT_NOMEM. count_local: to be called
 * after a communicator came or went. */
void ft_cores_open(struct ft_engine *engine);
bool ft_cores_endpoint(const struct ft_engine *engine, struct ft_endpoint *endpoint);
int ft_cores_fewest(const struct ft_ranks *ranks, int *cores);
void ft_engine_count_local(struct ft_engine *engine);
/* Adds this rank's part of an endpoint; false: the endpoint is full. The other functions compute
 * what the ranks of a view share; FT_NOMEM. */
bool ft_locality_endpoint(const struct ft_engine *engine, struct ft_endpoint *endpoint);
int ft_locality_links(const struct ft_ranks *ranks, enum ft_links *links);
/* The network that all ranks have. If there are several, the one that rank 0 prefers. NULL:
 * none. */
const struct ft_transport_ops *ft_locality_network(const struct ft_ranks *ranks);
bool ft_locality_has_pinned(const struct ft_ranks *ranks); /* some rank has pinned memory */
/* Do all ranks say that the others may read their memory? FT_PULLS_SLOW if one says that this is
 * slow. All ranks are on one host and share memory. */
enum ft_pulls ft_locality_pulls(const struct ft_ranks *ranks);
/* Maps the pinned memory of the ranks, so that the GPU can read it. reach: maps that of ranks that
 * have come, and unmaps that of ranks that are in no communicator any more. Both lock the engine
 * themselves and may block. part: to be called when no communicator has the peer any more. */
void ft_locality_pinned(const struct ft_ranks *ranks);
void ft_locality_reach(struct ft_engine *engine);
void ft_locality_part(struct ft_peer *peer);

/* ---- memory of the user that transports know (memory.c) -------------------------------------- */

/* Memory from its registration to its end. Embedded in its owner, who sets the fields after `next`.
 * The caller must not hold the engine. All these functions may block. None can fail: see reg in
 * transport.h. */
struct ft_memory {
    struct ft_memory *next;
    /* the only engine that knows the memory; NULL: all engines of the process */
    struct ft_engine *engine;
    void *addr;
    size_t len_bytes;
    struct ft_memory_key *keys; /* of memory.c */
};
void ft_memory_reg(struct ft_memory *memory);
void ft_memory_unreg(struct ft_memory *memory);
/* join: the transports of an engine are open, and learn the memory of the process. leave: they are
 * about to close, no operation is in progress, and they forget all memory. */
void ft_memory_join(struct ft_engine *engine);
void ft_memory_leave(struct ft_engine *engine);

#endif

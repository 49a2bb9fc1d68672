/*
 * engine: the lowest floor of core. An engine belongs to one rank. It owns the transports, the
 * links to other ranks' engines (peers), the messages between engines, heartbeats and the proof of
 * death, and it decides which thread drives all this. It knows no communicator. What it finds out
 * is collected per peer, and the floors above take it in their turn: nothing here calls upward. The
 * one exception is the turn itself, a function that the floor above gives when it opens an engine.
 *
 * Only the thread that holds engine->drive touches the state. ft_engine_assert_held() checks that
 * at the entry of what needs it.
 */
#ifndef FT_ENGINE_H
#define FT_ENGINE_H

#include "algo/algo.h"
#include "device/device.h"
#include "membership/membership.h"
#include "telemetry/telemetry.h"
#include "transport/transport.h"

#include <pthread.h>
#include <sched.h>

/* An engine looks for control messages, notices and puts every so many turns. If nothing moves, it
 * looks at the clock that often, too. */
#define FT_TURNS_OFTEN 16
/* While things move, the engine looks at the clock every so many turns, and at transports without
 * links. A multiple of FT_TURNS_OFTEN. */
#define FT_TURNS_RARELY 64

struct ft_engine;

/* ---- peers (peer.c) -------------------------------------------------------------------------- */

/* What happened to a peer since the floor above looked last. */
struct ft_peer_news {
    bool lost;   /* ft_peer_lost(): communicators with it fail */
    int reason;  /* why, a status */
    bool proof;  /* its process has ended */
    bool tx_end; /* its sending link is down or has to go */
    bool rx_end; /* its receiving link is down, and another one waits to be received on */
};

/* Another rank's engine as seen from this one. Counted by the communicators that hold it. */
struct ft_peer {
    struct ft_peer *next;       /* hash chain */
    struct ft_peer *next_known; /* engine's roster */
    struct ft_peer *next_news;  /* engine's list of peers with news */
    uint64_t id, host;
    enum ft_peer_state state; /* changed by ft_peer_move() alone */
    bool has_news;            /* it is in the engine's list */
    struct ft_peer_news news;
    struct ft_link *tx, *rx;
    struct ft_link *next_rx; /* it dialled anew and rx is not known to be down yet; NULL: none */
    uint64_t next_rx_ns;     /* since when */
    int users;               /* communicators that hold it */
    int askers;              /* grows that it asked about; it is kept while there are any */
    bool met;                /* a link to or from it was up */
    bool departed;           /* it said goodbye on a link, whatever was learnt of it since */
    bool redialled;          /* it was dialled again after it was lost or had left */
    bool told;               /* others have told us of it, not only itself */
    bool odd;                /* it said what nobody understands, and the log has a line about it */
    int queued_messages;     /* in the outbox */
    unsigned breaks;         /* sending links that went down, also before they were up */
    uint64_t blocked;        /* round of the outbox in which its link took nothing */
    int rank;                /* in the first communicator, for people; -1 unknown */
    /* Of its process, if that is another one of this host; see death_watch.c. */
    struct ft_death_watch {
        struct ft_liveness *page; /* NULL: not seen */
        bool ended;               /* the last look saw that the process has ended */
    } watch;
    /* Its pinned memory, if both have a GPU; kept while it is in a communicator. */
    struct ft_pinned *pinned;
    struct ft_heartbeat {
        struct ft_pulse pulse; /* of those that it sends */
        bool suspected;        /* they do not come */
        bool sends;            /* ours go to it */
        uint64_t round;        /* the last one in which it was to get ours */
    } heartbeat;
    int tx_row, rx_row; /* telemetry */
    /* sampled once a tick */
    struct ft_link_time {
        uint64_t bytes, transfer_ns, wait_ns;
    } tx_time, rx_time;
    uint32_t address_bytes;
    unsigned char *address; /* packed endpoint */
};

/* Moves a peer on; the only place where its state changes. False: it stays as it was, because the
 * table has no such move: what was known before says more. */
bool ft_peer_move(struct ft_engine *engine, struct ft_peer *peer, enum ft_peer_state to);
/* The peer is gone for every communicator, with proof that its process has ended or without. The
 * floor above learns it as news. */
void ft_peer_lost(struct ft_engine *engine, struct ft_peer *peer, int reason, bool proof);
/* Nothing goes to it over a new link, unless it is redialled. */
static inline bool ft_peer_is_gone(const struct ft_peer *peer)
{
    return peer->state != FT_PEER_OPEN;
}
/* As far as this rank can tell: its process, its machine or the way to it broke. */
static inline bool ft_peer_has_failed(const struct ft_peer *peer)
{
    return peer->state == FT_PEER_LOST || peer->state == FT_PEER_DEAD ||
           (peer->state == FT_PEER_UNREACHABLE && !peer->departed);
}
/* Its links are only cut, never ended with a goodbye, which it would take for our leaving. */
static inline bool ft_peer_is_fenced(const struct ft_peer *peer)
{
    return peer->state >= FT_PEER_FENCED;
}
/* Finds or makes the peer. NULL: no memory. Engine held. */
struct ft_peer *ft_engine_peer(struct ft_engine *engine, uint64_t id);
int ft_engine_learn(struct ft_engine *engine, uint64_t id, uint64_t host, const void *address,
                    uint32_t len_bytes, int rank);
/* A new communicator has this peer: only its links were lost, and who needs them makes them anew.
 * False: it is not lost, or that has failed. */
bool ft_engine_forgive(struct ft_engine *engine, struct ft_peer *peer);
/* The next peer with news, and the news; NULL: there is none. The caller acts on them, gives its
 * links back where the news say so, and then calls ft_engine_news_done(). */
struct ft_peer *ft_engine_next_news(struct ft_engine *engine, struct ft_peer_news *news);
void ft_engine_news_done(struct ft_engine *engine, struct ft_peer *peer,
                         const struct ft_peer_news *news);

/* ---- links (links.c) ------------------------------------------------------------------------- */

/* The sending link to a peer; starts connecting if there is none. FT_OK, FT_AGAIN (connecting) or
 * what went wrong. */
int ft_engine_link(struct ft_engine *engine, struct ft_peer *peer, struct ft_link **out);
/* The same, also for a peer that was lost or left: it may live and have to be asked. Not for one
 * that is dead. */
int ft_engine_redial(struct ft_engine *engine, struct ft_peer *peer, struct ft_link **out);
/* Closes a link of the peer at once; its pending sends complete. Communicators have given back what
 * they held of it: see ft_link_drop() of the floor above. */
void ft_engine_close_link(struct ft_engine *engine, struct ft_peer *peer, struct ft_link *link);
/* Closes the link that waits to be received on, if any. */
void ft_engine_close_next(struct ft_engine *engine, struct ft_peer *peer);
/* Polls the transports. True: something moved. */
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
    struct ft_device_gpu gpu;         /* for this rank's buffers */
};

struct ft_engine {
    struct ft_engine *next;             /* in the process's list */
    struct ft_engine *next_registering; /* in memory.c */
    uint64_t number;                    /* in the order in which they joined the list */
    struct ft_env *env;
    uint64_t id, host;
    int rank;
    bool manual;
    atomic_int refs; /* keep the memory: communicators, waiters */
    /* attached communicators; the last one closes the engine. Under drive */
    int users;
    /* A turn, with the engine held; true: something moved. Given by the floor above. */
    bool (*turn)(struct ft_engine *);
    struct ft_run_state *run; /* what the floors above keep for each engine */
    struct ft_group_state *group;

    struct ft_transport *transports[FT_TRANSPORTS_MAX];
    int ntransports;
    int links[FT_TRANSPORTS_MAX]; /* open on each transport; one without links is polled rarely */
    struct ft_event *events;      /* of the transport that is being polled, [nevents] */
    int nevents;
    struct ft_device *device; /* for memory of the host */
    /* for buffers of the GPU whose context opened the engine; NULL: none */
    struct ft_device *gpu;
    struct ft_tuning tuning;
    struct ft_telemetry *telemetry;

    struct ft_peer *peers[256]; /* by id */
    struct ft_peer *roster;     /* all of them */
    struct ft_peer *news, **news_end;
    bool hung_up; /* some that nobody knows may have gone */
    int waiting;  /* peers with a next_rx */
    bool alive;   /* others can see the end of this process */
    int watched;  /* peers whose liveness pages are seen */

    struct ft_ctl_message *outbox, **outbox_end;
    unsigned char *ctl_buffer;     /* [chunk_bytes] the control message being taken */
    uint64_t rounds;               /* of the outbox */
    atomic_int unsent;             /* control messages; relaxed, for who waits for none */
    struct ft_detect detect;       /* heartbeats: time and bounds */
    uint64_t beat_ns, beat_rounds; /* last time ours were sent; how often */

    pthread_mutex_t drive; /* who holds it is the driver */
    pthread_t driver;      /* who that is, for ft_engine_assert_held() */
    bool driven;
    pthread_mutex_t inbox_lock; /* of what users leave for the driver, and of event_fd */
    atomic_int inbox_count;     /* relaxed hint; what was left is under inbox_lock */
    atomic_int active;          /* there is work; written by the driver */
    uint64_t ticked_ns, ticked_before_ns;
    uint64_t trim_ns, trimmed_ns; /* period, 0: never; and when it was done last */
    uint64_t turns;
    bool stuck; /* nothing moved in the last turn */

    pthread_t thread;
    bool thread_running;
    atomic_int stop;
    atomic_int sleeping;  /* the driver sleeps in epoll; pairs with ft_engine_wake() */
    atomic_int wanted;    /* user threads that want to drive */
    atomic_int gpu_works; /* on the GPU, which wakes nobody; relaxed */
    int captured;         /* groups that graphs hold, whose replays nobody tells of */
    uint64_t replayed_ns; /* the last replay */
    /* set by user threads, cleared by the background thread when it looks */
    atomic_int user_drove;
    int epoll_fd, event_fd;
    cpu_set_t cpus; /* on which the thread that opened it could run; none: unknown */
    /* ranks of its communicators on this machine have fewer cores than they are; relaxed */
    atomic_int crowded;
};

/* Opens a zeroed engine whose `turn` is set. On failure the caller closes and unrefs it. */
int ft_engine_open(struct ft_engine *engine, const struct ft_engine_config *config);
/* Ends the background thread and takes the engine off the process's list. Idempotent. */
void ft_engine_stop(struct ft_engine *engine);
/* Says goodbye on all links, frees everything but the struct. Stopped before; not by a driver. */
void ft_engine_close(struct ft_engine *engine);
void ft_engine_ref(struct ft_engine *engine);
void ft_engine_unref(struct ft_engine *engine); /* frees the struct with the last one */
/* This floor's slow part of a turn. False: the last one is less than a millisecond ago. */
bool ft_engine_tick_due(struct ft_engine *engine);
void ft_engine_tick(struct ft_engine *engine);

/* becomes the driver, waking a sleeping one */
void ft_engine_lock(struct ft_engine *engine);
bool ft_engine_trylock(struct ft_engine *engine);
void ft_engine_unlock(struct ft_engine *engine);
/* In debug and sanitizer builds: the calling thread holds the engine. */
void ft_engine_check_held(const struct ft_engine *engine, const char *where);
#if defined(FT_CHECK_LOCKS)
#define ft_engine_assert_held(engine) ft_engine_check_held(engine, __func__)
#else
#define ft_engine_assert_held(engine) ((void)(engine))
#endif
void ft_engine_wake(struct ft_engine *engine);
int ft_engine_start_thread(struct ft_engine *engine);
/* Turns engines until done(arg) or the bound; false: the bound passed. `first` is turned most; the
 * process's other engines are turned when it has nothing to do. bound_ns 0: none. */
bool ft_engine_wait(struct ft_engine *first, bool (*done)(void *), void *arg, uint64_t bound_ns);
/* after a submission: one turn if nobody drives, else wake a sleeper */
void ft_engine_kick(struct ft_engine *engine);
/* Calls fn for each engine that the process has now, holding a reference. */
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
    FT_CTL_ABANDONED
};
/* of the communicator that it is about */
struct ft_ctl_head {
    uint32_t what, instance;
    uint64_t ctx;
};
/* One that came: bytes from outside. `data` is good until the next call. head.what 0: nothing that
 * could be read came. */
struct ft_ctl_in {
    struct ft_ctl_head head;
    const unsigned char *data;
    size_t len_bytes;
};
int ft_control_open(struct ft_engine *engine);
void ft_control_close(struct ft_engine *engine);
/* The peer's next message; false: there is none. */
bool ft_control_receive(struct ft_engine *engine, struct ft_peer *peer, struct ft_ctl_in *in);
bool ft_control_flush(struct ft_engine *engine); /* what waits goes out; true: something did */
/* Goes out when the link takes it; lost with the link, or when too many wait for the peer.
 * Copies. */
void ft_control_send(struct ft_engine *engine, struct ft_peer *peer, const struct ft_ctl_head *head,
                     const void *data, size_t len_bytes);
void ft_control_unknown(struct ft_engine *engine, struct ft_peer *peer, uint32_t what); /* a line */
/* The checksum that a message carries: of its header up to `crc`, then its payload. */
uint32_t ft_message_sum(const struct ft_header *header, const void *data);

/* ---- heartbeats (heartbeat.c) ---------------------------------------------------------------- */

void ft_heartbeat_open(struct ft_engine *engine, int64_t heartbeat_ms, int64_t suspect_ms);
/* True: ours are due. The caller marks who is to get them, then sends. */
bool ft_heartbeat_due(struct ft_engine *engine);
void ft_heartbeat_mark(struct ft_engine *engine, struct ft_peer *peer);
void ft_heartbeat_send(struct ft_engine *engine);
void ft_heartbeat_receive(struct ft_engine *engine, struct ft_peer *peer,
                          const struct ft_ctl_head *head);

/* ---- proof of death on this host (death_watch.c) --------------------------------------------- */

/* without the page of this process nothing is proven */
void ft_death_watch_open(struct ft_engine *engine);
void ft_death_watch_close(struct ft_engine *engine);
/* Adds where the page is; false: the endpoint is full. */
bool ft_death_watch_endpoint(const struct ft_engine *engine, struct ft_endpoint *endpoint);
void ft_death_watch_learn(struct ft_engine *engine,
                          struct ft_peer *peer); /* its endpoint is known */
void ft_death_watch_tick(struct ft_engine *engine);
bool ft_death_watch_ended(const struct ft_peer *peer); /* proof, as far as this host can tell */
/* Why a transfer to or from a peer failed, in words; first looks whether its process has ended. */
const char *ft_death_watch_why(struct ft_engine *engine, struct ft_peer *peer, int status);

/* ---- what a rank tells of itself (endpoint.c), cores and locality ---------------------------- */

/* This rank's endpoint for the bootstrap, from its transports' addresses. */
int ft_engine_endpoint(struct ft_engine *engine, struct ft_endpoint *endpoint);
/* Adds a named part, or replaces it; false: it does not fit. */
bool ft_endpoint_put(struct ft_endpoint *endpoint, const char *name, const void *data,
                     size_t len_bytes);
/* The named part of an endpoint's address; NULL: none, or the endpoint is malformed. */
const unsigned char *ft_endpoint_part(const unsigned char *endpoint, size_t endpoint_bytes,
                                      const char *name, size_t *len_bytes);
const unsigned char *ft_peer_part(const struct ft_peer *peer, const char *name, size_t *len_bytes);

/* The ranks of a view, as an engine sees them: peer[r] is NULL for its own rank. */
struct ft_ranks {
    struct ft_engine *engine;
    const struct ft_view *view;
    struct ft_peer *const *peer;
};
/* The number of cores that the ranks of a host have between them. fewest: of the view's hosts,
 * *cores unchanged if unknown; FT_NOMEM. count_local: after a communicator came or went. */
void ft_cores_open(struct ft_engine *engine);
bool ft_cores_endpoint(const struct ft_engine *engine, struct ft_endpoint *endpoint);
int ft_cores_fewest(const struct ft_ranks *ranks, int *cores);
void ft_engine_count_local(struct ft_engine *engine);
/* This rank's part of an endpoint; false: it is full. Then what ranks of a view have between them;
 * FT_NOMEM. */
bool ft_locality_endpoint(const struct ft_engine *engine, struct ft_endpoint *endpoint);
int ft_locality_links(const struct ft_ranks *ranks, enum ft_links *links);
/* The network that all ranks have, of several the one that rank 0 takes; NULL: none in common. */
const struct ft_transport_ops *ft_locality_network(const struct ft_ranks *ranks);
bool ft_locality_has_pinned(const struct ft_ranks *ranks); /* a rank has some */
/* do all ranks say that the others may read their memory? Slow if one says so. All are of one host
 * and share memory. */
enum ft_pulls ft_locality_pulls(const struct ft_ranks *ranks);
/* Pinned memory of the ranks is mapped, and the GPU reads it. reach: of those that have come, and
 * what those left that no communicator has any more goes. Both take the engine themselves and may
 * block. part: no communicator has the peer. */
void ft_locality_pinned(const struct ft_ranks *ranks);
void ft_locality_reach(struct ft_engine *engine);
void ft_locality_part(struct ft_peer *peer);

/* ---- memory of the user that transports know (memory.c) -------------------------------------- */

/* From reg to unreg; embedded in its owner, who sets what follows `next`. The caller holds no
 * engine; all of these may block. They do not fail: see reg of transport.h. */
struct ft_memory {
    struct ft_memory *next;
    struct ft_engine *engine; /* the only one that knows it; NULL: all of the process */
    void *addr;
    size_t len_bytes;
    struct ft_memory_key *keys; /* the module's */
};
void ft_memory_reg(struct ft_memory *memory);
void ft_memory_unreg(struct ft_memory *memory);
/* join: an engine's transports are open, and learn of the process's memory. leave: they close, no
 * operation is under way, and they forget all. */
void ft_memory_join(struct ft_engine *engine);
void ft_memory_leave(struct ft_engine *engine);

#endif

/*
 * The frame of ftccl-agent and ftccld: one event loop, one port for pages and for authenticated
 * peers, a history, a key, a folder for state. What a program does are services: each has a number
 * that its messages carry, and adds its part to the page, the JSON and the metrics.
 *
 * Everything here belongs to the thread of daemon_run(). HTTP has a thread of its own, which sees
 * nothing but the finished texts of daemon_http_publish().
 */
#ifndef FT_DAEMON_H
#define FT_DAEMON_H

#include "base/base.h"
#include "transport/transport.h"

struct daemon;
struct daemon_peer;
struct ft_blob; /* of membership/coord.h */

/* ---- the command line ------------------------------------------------------------------------ */

struct daemon_options {
    const char *program;
    const char *listen;      /* HOST:PORT; port 0: any */
    const char *state;       /* folder; "": nothing is kept */
    const char *key_file;    /* "": none */
    const char *master;      /* agents: HOST:PORT; "": none */
    const char *coordinator; /* agents: HOST:PORT[,..]; "": none */
    const char *store;       /* ftccld: etcd://HOST:PORT[,..][/PREFIX]; "": none */
    const char *advertise;   /* ftccld with a store: HOST:PORT at which others find it */
    const char *dir;         /* of telemetry files */
    const char *inspector;   /* folder for what NCCL's Inspector would write; "": none */
    const char *root;        /* before /sys and /proc, for tests */
    double interval_s, after_s;
    double stacks_s; /* the time that a tool has for the stacks of a process; 0: none are read */
    double lease_s;  /* of the store: how long nobody leads after a leader's death */
    bool agent;      /* ftccld: is an agent, too */
};
/* Returns -1 to go on, or the exit status. help: the text of --help. */
int daemon_options_take(int argc, char **argv, struct daemon_options *options, const char *help);

/* ---- services -------------------------------------------------------------------------------- */

/* Numbers of services, in messages; never used again. */
enum { DAEMON_DIAGNOSIS = 1, DAEMON_PATHS = 2, DAEMON_MEMBERS = 3, DAEMON_NUMBERS };

struct daemon_message {
    uint16_t service, type;
    const unsigned char *bytes;
    size_t len;
};

/* Every function may be NULL. arg: the service's own. */
struct daemon_service {
    int number;       /* 0: it has no messages */
    const char *name; /* its key in the JSON, and its heading */
    void *arg;
    /* False: the peer breaks the rules, and is closed. */
    bool (*message)(void *arg, struct daemon_peer *, const struct daemon_message *);
    void (*opened)(void *arg, struct daemon_peer *);
    void (*closed)(void *arg, struct daemon_peer *);
    /* Once an interval. */
    void (*tick)(void *arg);
    void (*json)(void *arg, struct ft_text *out); /* adds the element `name` */
    void (*page)(void *arg, FILE *out);
    void (*metrics)(void *arg, FILE *out);
};
#define DAEMON_SERVICES 8

/* NULL, with a sentence on stderr. */
struct daemon *daemon_open(const struct daemon_options *options);
void daemon_add(struct daemon *, const struct daemon_service *);
/* Until SIGTERM or SIGINT. Returns the exit status. */
int daemon_run(struct daemon *);
void daemon_close(struct daemon *);
const struct daemon_options *daemon_options_of(const struct daemon *);
uint64_t daemon_now_ns(void);
/* A look as soon as this turn of the loop is over, without waiting for the interval. */
void daemon_hurry(struct daemon *);

/* ---- descriptors and times (loop.c) ---------------------------------------------------------- */

typedef void daemon_ready(void *arg, uint32_t events);
struct daemon_watch {
    int fd; /* -1: none */
    daemon_ready *ready;
    void *arg;
    bool added;
};
/* Waits for these events of epoll; 0: none. FT_NOMEM. */
int daemon_watch_for(struct daemon *, struct daemon_watch *, uint32_t events);
void daemon_unwatch(struct daemon *, struct daemon_watch *);

/* Calls a function again and again. What is not running is all zero. */
struct daemon_timer {
    struct daemon_watch watch;
    void (*due)(void *arg);
    void *arg;
    bool runs;
};
/* FT_NOFILE, FT_NOMEM. */
int daemon_timer_start(struct daemon *, struct daemon_timer *, uint64_t period_ns,
                       void (*due)(void *arg), void *arg);
void daemon_timer_stop(struct daemon *, struct daemon_timer *);

/* ---- names (lookup.c) ------------------------------------------------------------------------ */

/* Finds the addresses of HOST:PORT without holding up the loop, which calls found() once: n <= 0:
 * why says why there are none. The lookup has ended then. NULL: no thread, descriptor or memory. */
struct daemon_lookup;
typedef void daemon_found(void *arg, const struct ft_net_address *at, int n, const char *why);
struct daemon_lookup *daemon_lookup_start(struct daemon *, const char *name, daemon_found *found,
                                          void *arg);
/* When the loop has ended, of a lookup that has not. */
void daemon_lookup_end(struct daemon_lookup *);

/* ---- peers (peer.c) -------------------------------------------------------------------------- */

#define DAEMON_MESSAGE_MOST ((size_t)16 << 20)
#define DAEMON_ANSWER_MOST ((size_t)64 << 20)  /* bytes of a message from who was connected to */
#define DAEMON_QUEUED_MOST ((size_t)256 << 20) /* bytes that wait to be sent to a peer */
#define DAEMON_PEERS_MOST 16384

/* An authenticated connection, or one that becomes one. purpose: service messages. */
void daemon_peer_accept(struct daemon *, int fd);
/* Starts to connect. NULL: at once refused, or no memory. `closed` of the services tells of a later
 * failure. */
struct daemon_peer *daemon_peer_connect(struct daemon *, const struct ft_net_address *to);
/* It goes out when this turn of the loop is over. False: too much waits to be sent already, or
 * there is no memory; nothing will be sent. */
bool daemon_peer_send(struct daemon_peer *, const struct daemon_message *);
/* The same with the message's bytes in two parts: first the head. */
bool daemon_peer_send_parts(struct daemon_peer *, const struct daemon_message *rest,
                            const unsigned char *head, size_t head_bytes);
/* The same with blobs after the message's bytes, which the peer holds until they have gone. */
bool daemon_peer_send_blobs(struct daemon_peer *, const struct daemon_message *head,
                            struct ft_blob *const *blobs, int nblobs);
size_t daemon_peer_queued(const struct daemon_peer *);
/* `closed` of the services is called when this turn of the loop is over. */
void daemon_peer_end(struct daemon_peer *, const char *why);
/* Ends all of which the service has put something into its slot. */
void daemon_peers_end(struct daemon *, int service, const char *why);
/* The service hears heartbeats of the peer, and ends it after a silence of its own measure. Neither
 * the kernel nor the frame ends it for silence. */
void daemon_peer_watched(struct daemon_peer *);
void **daemon_peer_slot(struct daemon_peer *, int service); /* what a service knows of the peer */
const char *daemon_peer_name(const struct daemon_peer *);   /* its address, or "" */
const char *daemon_peer_why(const struct daemon_peer *);    /* it was closed */

/* ---- inside the frame ------------------------------------------------------------------------ */

/* The parts of the frame that the loop drives. */
struct daemon_peers;
struct daemon_peers *daemon_peers_open(struct daemon *);
void daemon_peers_tick(struct daemon_peers *); /* ends what lasts too long */
void daemon_peers_turn(struct daemon_peers *); /* sends what waits, and frees what has ended */
/* For one more that has not proved the key: the oldest of them has to go. False: none is old, as
 * when thousands come at once. */
bool daemon_peers_make_room(struct daemon_peers *);
#define DAEMON_YOUNG_NS 1000000000u
void daemon_peers_close(struct daemon_peers *);
struct daemon_peers *daemon_peers_of(const struct daemon *);
const unsigned char *daemon_key(const struct daemon *); /* NULL: none */
bool daemon_deliver(struct daemon *, struct daemon_peer *, const struct daemon_message *);
void daemon_tell_opened(struct daemon *, struct daemon_peer *);
void daemon_tell_closed(struct daemon *, struct daemon_peer *);

struct daemon_port;
struct daemon_http;
/* Listens, and gives connections to HTTP or to the peers. NULL, with a sentence. */
struct daemon_port *daemon_port_open(struct daemon *, struct daemon_http *http);
void daemon_port_tick(struct daemon_port *);
void daemon_port_close(struct daemon_port *);

enum daemon_text { DAEMON_PAGE, DAEMON_JSON, DAEMON_METRICS, DAEMON_TEXTS };
/* NULL, with a sentence. */
struct daemon_http *daemon_http_open(void);
/* Takes over the descriptor. */
void daemon_http_take(struct daemon_http *, int fd);
/* Takes over the text, which free() frees. */
void daemon_http_publish(struct daemon_http *, enum daemon_text, char *text, size_t len);
void daemon_http_tick(struct daemon_http *); /* ends connections that last too long */
void daemon_http_close(struct daemon_http *);

/* ---- text for pages and metrics (page.c) ----------------------------------------------------- */

/* With every character that means something escaped. */
void daemon_put_html(FILE *out, const char *text);
void daemon_put_help(FILE *out, const char *name, const char *type, const char *help);
/* before: "{" or ",". */
void daemon_put_label(FILE *out, const char *before, const char *name, const char *value);
/* All services' parts. NULL: no memory. */
char *daemon_render(struct daemon *, enum daemon_text, size_t *len);
int daemon_services(const struct daemon *, const struct daemon_service **out);

/* ---- history (history.c) --------------------------------------------------------------------- */

/* Verdicts, alarms, jobs and hosts of the past, in SQLite. Bounded in rows and age. A file that
 * cannot be written is replaced by memory, and tried again once a minute. */
struct daemon_history;
struct daemon_history *daemon_history_open(const char *folder); /* "": in memory. NULL: no memory */
void daemon_history_close(struct daemon_history *);
const char *daemon_history_trouble(const struct daemon_history *); /* "": none */
void daemon_history_tick(struct daemon_history *);

enum daemon_record {
    DAEMON_VERDICT,
    DAEMON_ALARM,
    DAEMON_HOST,
    DAEMON_JOB,
    DAEMON_STACKS,
    DAEMON_RECORDS
};
/* One row: since and until are seconds since 1970. A row with the same record, name and since
 * is changed, others are added. */
struct daemon_row {
    const char *name; /* what it is about: a job and its culprit, a host and a check */
    const char *kind;
    const char *sentence;
    int64_t since_s, until_s;
};
void daemon_history_write(struct daemon_history *, enum daemon_record, const struct daemon_row *);
/* The latest rows, newest first. */
typedef void daemon_history_visit(void *arg, const struct daemon_row *);
void daemon_history_read(struct daemon_history *, enum daemon_record, int most,
                         daemon_history_visit *visit, void *arg);

#endif

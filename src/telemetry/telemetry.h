/*
 * telemetry: the writer of one file per rank in /dev/shm (layout in docs/telemetry-format.md), and
 * the reader that ftccl-info uses. The engine writes with plain and release stores. A reader needs
 * no help of the process, so it works on a stopped or dead one. A rank without a file
 * (FTCCL_TELEMETRY=0, /dev/shm full) gets a NULL handle, which every function accepts.
 */
#ifndef FT_TELEMETRY_H
#define FT_TELEMETRY_H

#include "base/base.h"

struct ft_telemetry;

/* Creates /dev/shm/ftccl-<uid>-<pid>-<n> (mode 0600, allocated up front, at most 1 MiB), and
 * removes files whose process has been gone for more than a minute. Returns NULL if there is no
 * space (one warning in the log) or if telemetry is off. */
struct ft_telemetry *ft_telemetry_open(struct ft_env *, uint64_t engine, uint64_t host);
/* removes the file; the file of a killed rank stays for the reader */
void ft_telemetry_close(struct ft_telemetry *);

/* Adds a row to the communicator table and returns it. -1: the table is full; then nothing of that
 * communicator is recorded. */
int ft_telemetry_comm_open(struct ft_telemetry *, uint64_t ctx, uint64_t epoch, int nranks,
                           int rank, const char *name);
void ft_telemetry_comm_close(struct ft_telemetry *, int comm);
/* A row that says that this rank waits for the others of a first communicator, and its end. */
int ft_telemetry_comm_join(struct ft_telemetry *, uint64_t ctx, int nranks, int rank,
                           const char *name);
void ft_telemetry_comm_joined(struct ft_telemetry *, int comm);
/* How many ranks have come so far, as the process knows to which they come. */
void ft_telemetry_comm_arrived(struct ft_telemetry *, int comm, uint64_t ranks);
/* The roster of a communicator that was just opened: nranks calls, rank by rank. Larger ones than
 * half of the table get none. */
void ft_telemetry_seat(struct ft_telemetry *, int comm, int rank, uint64_t engine, uint64_t host);
/* limit_ns: the time limit of its operations, 0: none. before: collectives that it has already
 * started. */
void ft_telemetry_comm_limits(struct ft_telemetry *, int comm, uint64_t limit_ns, uint64_t before);
/* phase: enum ft_comm_state. status: why it failed, or FT_OK. culprit: the rank that is blamed for
 * it, or -1. */
void ft_telemetry_comm_state(struct ft_telemetry *, int comm, int phase, int status, int culprit);
/* From now_ns on the user waits in this call for an agreement, which shall leave out the ranks with
 * exclude[rank] != 0; NULL: nobody. agreed: it waits no more. */
void ft_telemetry_comm_agrees(struct ft_telemetry *, int comm, enum ft_agree_call call,
                              const unsigned char *exclude, uint64_t now_ns);
void ft_telemetry_comm_agreed(struct ft_telemetry *, int comm);
void ft_telemetry_comm_progress(struct ft_telemetry *, int comm, uint64_t now_ns);
/* The user's program begins its step of that number. */
void ft_telemetry_step(struct ft_telemetry *, int comm, uint64_t step);

/* What a user called. sig: as ft_sig(). site: the address to which the call returns. */
struct ft_called {
    enum ft_kind kind;
    uint64_t sig, now_ns;
    const void *site;
    int tid;
};
/* Counts a call that waits in a queue, and notes it as the latest. This one function need not hold
 * the engine; one thread of the process calls it at a time. */
void ft_telemetry_call(struct ft_telemetry *, int comm, const struct ft_called *);

/* When the user made a call, and when its operation starts. */
struct ft_op_times {
    uint64_t called_ns; /* 0: it starts at once, and no ft_telemetry_call() came before */
    uint64_t now_ns;
};
/* Writes one record in the ring of operations and returns its handle for later calls. Old records
 * are overwritten, except those of running operations. Later calls with the handle of an
 * overwritten record do nothing. */
uint32_t ft_telemetry_op(struct ft_telemetry *, int comm, uint64_t seq, const struct ft_coll *,
                         const char *algo, struct ft_op_times);
/* The same for an operation that began in its call: that runs now, or that has ended there without
 * an error, so fast that the clock is read only once. */
uint32_t ft_telemetry_op_began(struct ft_telemetry *, int comm, uint64_t seq,
                               const struct ft_coll *, const char *algo, uint64_t now_ns);
void ft_telemetry_op_ended(struct ft_telemetry *, int comm, uint64_t seq, const struct ft_coll *,
                           const char *algo, uint64_t now_ns);
/* state: enum ft_op_state */
void ft_telemetry_op_state(struct ft_telemetry *, uint32_t op, int state, int status,
                           uint64_t now_ns);
/* For whom an operation waits: `peer` (-1: nobody) shall take something (sends), or send something.
 */
static inline uint32_t ft_op_wait(int lane, bool sends, int peer)
{
    return (uint32_t)(lane & 127) << 25 | (uint32_t)sends << 24 | ((uint32_t)(peer + 1) & 0xffffff);
}
/* Records the present step of an operation and its ft_op_wait(). One plain store: the data path
 * calls it. */
void ft_telemetry_op_wait(struct ft_telemetry *, uint32_t op, uint64_t step, uint32_t wait);

/* Adds a row for one link: the peer's engine id, its rank in its first communicator, the transport,
 * and the direction. -1: the table is full. */
int ft_telemetry_link_open(struct ft_telemetry *, uint64_t peer, int peer_rank,
                           const char *transport, bool sender);
/* Sets the link's totals since it was opened (not increments). Four stores; the caller chooses how
 * often. */
void ft_telemetry_link_count(struct ft_telemetry *, int link, uint64_t messages, uint64_t bytes,
                             uint64_t transfer_ns, uint64_t wait_ns);
void ft_telemetry_link_close(struct ft_telemetry *, int link);

/* One end of a connection. */
struct ft_path_end {
    uint16_t family; /* AF_INET or AF_INET6 */
    uint16_t port;   /* in host order */
    uint32_t scope;
    unsigned char ip[16]; /* in network order; AF_INET uses the first 4 bytes */
};
/* How fast messages come: long ones for which the receiver waited, at most one in 20 ms. The n-th,
 * counted from 0, is at n % FT_FLIGHTS. */
#define FT_FLIGHTS 16
struct ft_flights {
    uint64_t count, seen_ns; /* seen_ns: the last one */
    uint32_t ns_per_kib[FT_FLIGHTS];
};
/* What a network does with the messages of a link. Times and counts are sums over its connections,
 * since it was made. A sending link has no flights, a receiving one has only these and the ends. */
struct ft_link_path {
    struct ft_path_end source, destination; /* of the first connection */
    int connections;
    uint64_t rtt_ns, least_rtt_ns; /* of the slowest connection */
    uint64_t network_ns;           /* bytes were on the way, and the other host had room for more */
    uint64_t receiver_ns;          /* the other host had no room: its process did not read */
    uint64_t retransmits;          /* segments that were sent again, as they were lost */
    struct ft_flights flights;
};
/* Adds a row for the path of a link. -1: the table is full, and the path is counted as lost. */
int ft_telemetry_path_open(struct ft_telemetry *, int link);
/* Sets what is known of the path now. The row keeps the sums of two moments, which are 5 to 15 s
 * apart. The caller chooses how often, at most a few times a second. */
void ft_telemetry_path_count(struct ft_telemetry *, int path, const struct ft_link_path *,
                             uint64_t now_ns);
void ft_telemetry_path_close(struct ft_telemetry *, int path);

/* One connection of a sending link. */
struct ft_link_conn {
    struct ft_path_end source, destination;
    /* Which way it takes, of so many; -1: unknown. nclasses 0: nothing is known of the ways. */
    int class_index, nclasses;
    uint64_t bytes;       /* that it was given since the link was made, with headers */
    uint64_t rtt_ns;      /* smoothed */
    uint64_t ns_per_kib;  /* it takes so long for 1024 bytes; 0: not known */
    uint64_t retransmits; /* as of a path, but since it was made last */
};
/* Adds rows for the connections of a link. Returns the first of n rows that follow each other. -1:
 * there are not so many, and all are counted as lost. */
int ft_telemetry_conns_open(struct ft_telemetry *, int link, int n);
void ft_telemetry_conn(struct ft_telemetry *, int row, const struct ft_link_conn *);
void ft_telemetry_conns_close(struct ft_telemetry *, int first, int n);
/* Prints a line for each connection of the calling process, as of the last second or so. FT_INVAL:
 * it has no telemetry. */
int ft_telemetry_print_conns(FILE *out);

/* Adds a row for the latencies of a link. -1: the table is full. */
int ft_telemetry_latency_open(struct ft_telemetry *, int link);
void ft_telemetry_latency(struct ft_telemetry *, int row,
                          const struct ft_latency part[FT_LATENCY_PARTS]);
void ft_telemetry_latency_close(struct ft_telemetry *, int row);

/* One row a peer. Without a free row nothing is recorded. */
void ft_telemetry_clock(struct ft_telemetry *, uint64_t peer, const struct ft_clock *);

/* The calling thread is in this call of the user, which returns to `site`. Two stores; nothing is
 * written to a file until the thread has to wait, or its operation begins. */
void ft_thread_enters(unsigned call, const void *site);
/* Between them the calling thread waits in the call that it has entered. */
void ft_telemetry_thread_waits(struct ft_telemetry *, uint64_t now_ns);
void ft_telemetry_thread_goes_on(struct ft_telemetry *);

/* What an engine knows about a peer, for the engine and for readers. Later states are more certain.
 *
 * open: nothing prevents a link to it. lost: a link broke without a goodbye, and none has come up
 * since. left: it said goodbye; no communicator there needs this rank, and its process may go on.
 * unreachable: it was dialled again after it was lost or had left, without success. fenced:
 * declared dead by agreement; it may only be told so. dead: its process has ended, this is
 * proven. */
#define FT_PEER_STATE_NAMES(X)    \
    X(OPEN, "open")               \
    X(LOST, "lost")               \
    X(LEFT, "left")               \
    X(UNREACHABLE, "unreachable") \
    X(FENCED, "fenced")           \
    X(DEAD, "dead")
enum ft_peer_state {
#define X(name, text) FT_PEER_##name,
    FT_PEER_STATE_NAMES(X)
#undef X
        FT_PEER_STATES
};
const char *ft_peer_state_name(int state);

/* The states of a communicator, for the engine and for readers. retrying: with policy retry, from a
 * failure until the ranks have agreed on it. failed: for good; its works drain, and later ones are
 * skipped. asking: a peer was lost, and it is not known yet whether that is the cause. */
#define FT_COMM_STATE_NAMES(X) \
    X(OPEN, "open") X(RETRYING, "retrying") X(FAILED, "failed") X(ASKING, "asking")
enum ft_comm_state {
#define X(name, text) FT_COMM_##name,
    FT_COMM_STATE_NAMES(X)
#undef X
        FT_COMM_STATES
};
const char *ft_comm_state_name(int state);

/* Records that a peer or a communicator went from one state to another, that the heartbeats of a
 * peer are missed (to: 1) or come again (to: 0), or that connections to (from: 1) or from (from: 0)
 * a peer were made again (to: how many, at most 255). id: the peer's engine id, or the
 * communicator's context. status: why, FT_OK if nothing failed. */
enum ft_moved { FT_MOVED_PEER = 1, FT_MOVED_COMM, FT_MOVED_SUSPICION, FT_MOVED_LINK };
void ft_telemetry_event(struct ft_telemetry *, enum ft_moved what, uint64_t id, int rank, int from,
                        int to, int status);

/* The states of an operation, for the engine and for readers. */
#define FT_OP_STATES(X) X(NEW) X(QUEUED) X(RUNNING) X(DRAINING) X(DONE) X(FAILED) X(SKIPPED)
enum ft_op_state {
#define X(name) FT_OP_##name,
    FT_OP_STATES(X)
#undef X
        FT_OP_STATE_COUNT
};
const char *ft_op_state_name(int state);

/* ---- validation (validation.c) --------------------------------------------------------------- */

/* A request to pause a communicator at its next collective, and to measure its links. It comes
 * from another process of this user (or root), and says nothing that is not checked. */
struct ft_ask {
    uint64_t number; /* chosen at random, not 0 */
    uint64_t ctx;
    uint64_t until_ns; /* a rank that sees it later does nothing */
    uint64_t pause_ms; /* no rank holds a call for longer */
};

const char *ft_validation_why_text(unsigned why);

/* True once for each valid request. The caller holds the engine, and asks about once a
 * millisecond: a load, if there is none. */
bool ft_telemetry_asked(struct ft_telemetry *, struct ft_ask *out);
void ft_telemetry_validation(struct ft_telemetry *, const struct ft_validation *);

/* For tools. path: of a telemetry file. FT_INVAL: it is none of this version, or of another user;
 * FT_SYSTEM. read: a rank that has gone has given up (FT_WHY_GONE). */
int ft_validation_ask(const char *path, const struct ft_ask *ask);
int ft_validation_read(const char *path, struct ft_validation *out);

/* Prints every telemetry file of a process as text: tables, last operations, links. FT_INVAL: there
 * is no such file, it belongs to another user, or it is malformed; the sentence says what is
 * wrong. */
int ft_telemetry_print(FILE *out, int pid);

/* What all telemetry files of this user below a directory tell now; root takes those of all users.
 * Files that are not understood are counted in `unreadable`. The caller frees it with
 * ft_snapshot_free(). FT_INVAL: the directory cannot be listed; FT_NOMEM. */
struct ft_snapshot;
int ft_snapshot_collect(const char *dir, struct ft_snapshot **out);
/* The same of one file, whose path has a folder. */
int ft_snapshot_of_file(const char *path, struct ft_snapshot **out);
void ft_snapshot_free(struct ft_snapshot *);
/* A copy of a telemetry file, and what the kernel says of its process, for another machine. The
 * caller frees `bytes`. FT_INVAL: malformed; FT_SYSTEM; FT_NOMEM. */
struct ft_telemetry_copy {
    void *bytes;
    size_t len_bytes;
    uint64_t now_ns; /* on the host's clock, before it was read */
    int state;       /* enum ft_process_state */
    char doing[96];
};
int ft_telemetry_copy_file(const char *path, struct ft_telemetry_copy *out);
/* The snapshot of such a copy, from wherever it comes; its times are those of its host. FT_INVAL:
 * malformed; FT_NOMEM. */
int ft_snapshot_of_copy(const struct ft_telemetry_copy *copy, struct ft_snapshot **out);

/* A snapshot as bytes for another host of the same job, with what a verdict over several hosts
 * needs: engines, members, links, paths, bad news, and the latest operations. *out is freed by the
 * caller. FT_NOMEM. */
int ft_snapshot_pack(const struct ft_snapshot *, unsigned char **out, size_t *len_bytes);
/* The reverse: what was `now` there is now_ns here. The bytes come from outside. FT_PROTOCOL: they
 * are no snapshot, or one of another version; FT_NOMEM. */
int ft_snapshot_unpack(const void *bytes, size_t len_bytes, uint64_t now_ns,
                       struct ft_snapshot **out);

/* Keeps what ft_snapshot_collect(dir) would tell now in a new directory: copies of the files, and
 * what the kernel says of their processes. The directory is there as a whole or not at all; an
 * empty one may be there before. Needs memory for one file at a time. FT_INVAL: a directory cannot
 * be listed or made; FT_SYSTEM: it cannot be written, for example since the disk is full. */
int ft_snapshot_save(const char *dir, const char *to);
/* An operation of a communicator was late: keeps such a directory of this host's ranks below
 * FTCCL_DUMP_DIR, if that is set, and logs its path. Does not wait: a thread does it. Of the ranks
 * of a host one does it for each context; a process does it a few times only. */
void ft_telemetry_dump(const struct ft_telemetry *, uint64_t ctx, int rank);
/* The snapshot of that moment, on whatever machine. FT_INVAL: not such a directory, or a malformed
 * one; FT_NOMEM. */
int ft_snapshot_replay(const char *dir, struct ft_snapshot **out);

/* A telemetry file of this user (root: of any), and what a short look at it tells. */
struct ft_telemetry_file {
    int pid;
    char path[96];
};
struct ft_telemetry_process {
    uint64_t engine;
    bool ended, stopped; /* its process, as the kernel says */
    char hostname[64];
};
#define FT_TELEMETRY_FILES_MAX 4096 /* later ones are left out */
/* Lists the files of a directory, ordered by their names. The caller frees *out. Returns their
 * number; FT_INVAL: the directory cannot be listed; FT_NOMEM. */
int ft_telemetry_files(const char *dir, struct ft_telemetry_file **out);
/* False: it is no telemetry file of this version any more. */
bool ft_telemetry_look(const struct ft_telemetry_file *file, struct ft_telemetry_process *out);
/* The directory of the files of all ranks of this host. */
#define FT_TELEMETRY_DIR "/dev/shm"

#endif

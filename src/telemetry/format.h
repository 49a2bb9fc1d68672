/*
 * The layout of a telemetry file, version 7. docs/telemetry-format.md describes the same for other
 * programs, and a test compares the two. Private to this folder and its tests. All integers are in
 * the writer's byte order, which the field `order` shows.
 *
 * Communicator rows, operation records, paths, connections, clocks and events begin with a guard,
 * which is odd while the writer changes the record. A reader that finds the same even guard before
 * and after its copy has a consistent record. A writer that is killed or stopped in between leaves
 * the guard odd. Link rows and the header's counters have no guard: each field is one aligned
 * store, and the fields of one row may be of slightly different ages. So have the counters and the
 * latest call of a communicator row.
 */
#ifndef FT_TELEMETRY_FORMAT_H
#define FT_TELEMETRY_FORMAT_H

#include "telemetry.h"

#define FT_TM_DIR FT_TELEMETRY_DIR
#define FT_TM_MAGIC "FTCCLTLM" /* 8 bytes, no NUL */
#define FT_TM_VERSION 7u
#define FT_TM_ORDER 0x01020304u
#define FT_TM_COMMS 64
#define FT_TM_OPS 4096   /* a power of two: the low bits of a handle are the slot */
#define FT_TM_LINKS 2560 /* two to each of 1,024 ranks, and some that have closed */
#define FT_TM_EVENTS 512
#define FT_TM_SEATS 2048
#define FT_TM_PATHS 320
#define FT_TM_LATENCIES 448
#define FT_TM_CLOCKS 256
#define FT_TM_THREADS 128
#define FT_TM_CONNS 256
#define FT_TM_STEPS 32 /* marks of steps that a communicator keeps; a power of two */
#define FT_TM_KINDS 12 /* kinds of operations that are counted; enum ft_kind */

/* States of a communicator or link row. JOINING: a communicator whose ranks are not there yet. */
enum { FT_TM_FREE, FT_TM_OPEN, FT_TM_CLOSED, FT_TM_JOINING };

/* What a program asks of the rank whose file this is: the one part that others write. A rank acts
 * on it once for each number, if `sum` is ft_tm_ask_sum(). */
struct ft_tm_ask {
    uint64_t number; /* not 0; written last */
    uint64_t ctx, until_ns, pause_ms;
    uint64_t sum;
};

/* What the rank has measured. The guard covers all. */
struct ft_tm_validation {
    uint32_t guard;
    uint32_t reserved;
    struct ft_validation is;
};

struct ft_tm_header {
    char magic[8];
    uint32_t version;
    uint32_t order;
    uint32_t header_bytes, file_bytes;
    uint32_t comm_offset, comm_rows, comm_row_bytes;
    uint32_t op_offset, op_rows, op_row_bytes;
    uint32_t link_offset, link_rows, link_row_bytes;
    uint32_t pid;
    uint64_t pid_start; /* field 22 of /proc/<pid>/stat: detects a reused pid */
    uint64_t pid_ns;    /* inode of /proc/self/ns/pid */
    uint64_t engine, host;
    uint64_t opened_ns; /* by the clock of all time stamps in the file (CLOCK_MONOTONIC) */
    uint64_t opened_real_ns;
    uint64_t ops; /* operations recorded so far */
    /* rows that did not fit, and operations of communicators that did not fit */
    uint64_t lost_comms, lost_links, lost_ops;
    char hostname[64];
    char program[32];
    uint32_t event_offset, event_rows, event_row_bytes;
    uint32_t seat_offset, seat_rows, seat_row_bytes;
    uint32_t path_offset, path_rows, path_row_bytes;
    uint64_t lost_paths;
    struct ft_tm_ask ask;
    struct ft_tm_validation validation;
    uint32_t latency_offset, latency_rows, latency_row_bytes;
    uint32_t clock_offset, clock_rows, clock_row_bytes;
    uint32_t thread_offset, thread_rows, thread_row_bytes;
    uint32_t conn_offset, conn_rows, conn_row_bytes;
    uint64_t lost_conns;
    unsigned char reserved[3104];
};

struct ft_tm_comm {
    uint32_t guard;
    uint32_t state;
    uint64_t ctx, epoch;
    int32_t nranks, rank;
    /* number of operations recorded; ended in any way; ended other than DONE */
    uint64_t issued, ended, failed;
    uint64_t last_seq;  /* sequence number of the last operation recorded */
    uint64_t last_done; /* highest sequence number that ended DONE */
    uint64_t opened_ns, closed_ns;
    char name[40];
    /* From here on the guard covers nothing. */
    uint32_t phase;    /* enum ft_comm_state */
    int32_t status;    /* why it failed; FT_OK */
    uint64_t limit_ns; /* the time limit of its operations; 0: none */
    uint64_t
        progress_ns; /* when its running operation last moved, as seen about once a millisecond */
    uint64_t before; /* number of collectives that this row does not count */
    /* The roster: the first of nranks rows of the seat table. Valid as far as these have the same
     * ctx. */
    uint32_t seat, seats;
    /* Calls that were queued, and those that began at once; of the former those that have begun.
     * Done: ended without an error. */
    uint64_t queued[FT_TM_KINDS], at_once[FT_TM_KINDS], begun[FT_TM_KINDS], done[FT_TM_KINDS];
    /* The latest queued call. */
    uint64_t call_ns, call_sig, call_site;
    int32_t call_tid;
    int32_t culprit; /* of a failure: the rank that is blamed; -1: nobody, or unknown */
    /* Marks of steps: how many the user has set, the number of the latest, and the times of the
     * last ones; the n-th, counted from 0, is at n % FT_TM_STEPS. */
    uint64_t marks, step, mark_ns[FT_TM_STEPS];
    uint64_t agree_ns;   /* since when the user waits for an agreement; 0: it does not */
    uint32_t agree_call; /* enum ft_agree_call */
    uint32_t reserved;
};

/* One member of a communicator. */
struct ft_tm_seat {
    uint64_t ctx;
    uint64_t engine, host;
    int32_t rank;
    uint32_t excluded; /* the agreement for which the user waits shall leave it out */
};

/* Index into time_ns. */
enum { FT_TM_CREATED, FT_TM_QUEUED, FT_TM_STARTED, FT_TM_DRAINING, FT_TM_ENDED, FT_TM_TIMES };

struct ft_tm_op {
    uint32_t guard;
    uint32_t id;     /* handle: generation of the slot * FT_TM_OPS + slot */
    uint64_t serial; /* counts from 1, in the order of recording; 0: never used */
    uint64_t seq;    /* sequence number in its communicator */
    uint64_t ctx;
    uint64_t count;
    /* step << 32 | lane << 25 | sends << 24 | peer + 1; always one store, so never torn; not
     * covered by the guard */
    uint64_t wait;
    uint64_t time_ns[FT_TM_TIMES]; /* 0: not reached; CREATED: the user's call */
    int32_t status;
    int32_t root;
    uint16_t comm; /* row of its communicator */
    uint8_t kind, type, red, state;
    char algo[26];
};

struct ft_tm_link {
    uint64_t peer;
    uint64_t messages, bytes, transfer_ns, wait_ns;
    int32_t peer_rank;
    uint8_t state, sender;
    char transport[18];
};

/* Sums over the connections of a link, since it was made. */
struct ft_tm_path_sums {
    uint64_t time_ns, messages, bytes, network_ns, receiver_ns, credit_ns, retransmits;
};

/* What the network does with the messages of one link. The guard covers all. */
struct ft_tm_path {
    uint32_t guard;
    uint32_t state;
    uint32_t link; /* row of the link */
    uint32_t connections;
    uint64_t peer;
    struct ft_path_end source, destination;
    uint64_t rtt_ns, least_rtt_ns;
    struct ft_tm_path_sums now, before; /* before: of 5 to 15 s ago */
    struct ft_flights flights;
};

/* One connection of a sending link. The guard covers all. */
struct ft_tm_conn {
    uint32_t guard;
    uint16_t state, index; /* index: its number in the link */
    uint32_t link;         /* row of the link */
    int16_t class_index, nclasses;
    struct ft_path_end source, destination;
    uint64_t bytes, rtt_ns, ns_per_kib, retransmits;
};

/* How long the large messages of one link have waited, by enum ft_latency_part, since it was made.
 * Each field is one aligned store. */
struct ft_tm_latency {
    uint64_t peer;
    uint32_t link; /* row of the link */
    uint32_t state;
    struct ft_latency part[FT_LATENCY_PARTS];
};

/* The clock of a peer, beside this rank's. The guard covers all. */
struct ft_tm_clock {
    uint32_t guard;
    uint32_t rounds; /* that were measured; 0: the row is not used */
    uint64_t peer;
    struct ft_clock is;
};

/* One thread of the process, which alone writes the row. Each field is one aligned store. */
struct ft_tm_thread {
    int32_t tid; /* 0: the row is not used */
    uint16_t call;
    uint16_t waits; /* 1: it is inside that call */
    uint64_t since_ns, site;
    uint64_t calls;
};

/* The n-th event, counted from 0, is in slot n % FT_TM_EVENTS. */
struct ft_tm_event {
    uint32_t guard;
    uint8_t what;     /* enum ft_moved */
    uint8_t from, to; /* the state that it left, and the one that it has now */
    uint8_t reserved;
    uint64_t serial; /* counts from 1; 0: never used */
    uint64_t time_ns;
    uint64_t id;  /* engine id of the peer, or context of the communicator */
    int32_t rank; /* of the peer in its first communicator, or of this rank in the communicator */
    int32_t status;
};

struct ft_tm_file {
    struct ft_tm_header header;
    struct ft_tm_comm comm[FT_TM_COMMS];
    struct ft_tm_op op[FT_TM_OPS];
    struct ft_tm_link link[FT_TM_LINKS];
    struct ft_tm_event event[FT_TM_EVENTS];
    struct ft_tm_seat seat[FT_TM_SEATS];
    struct ft_tm_path path[FT_TM_PATHS];
    struct ft_tm_latency latency[FT_TM_LATENCIES];
    struct ft_tm_clock clock[FT_TM_CLOCKS];
    struct ft_tm_thread thread[FT_TM_THREADS];
    struct ft_tm_conn conn[FT_TM_CONNS];
};
#define FT_TM_BYTES sizeof(struct ft_tm_file)

_Static_assert(sizeof(struct ft_tm_header) == 4096, "header");
_Static_assert(sizeof(struct ft_tm_comm) == 872, "communicator row");
_Static_assert(sizeof(struct ft_tm_path) == 280, "path");
_Static_assert(sizeof(struct ft_tm_conn) == 96, "connection");
_Static_assert(sizeof(struct ft_tm_latency) == 184, "latency");
_Static_assert(sizeof(struct ft_tm_clock) == 48, "clock");
_Static_assert(sizeof(struct ft_tm_thread) == 32, "thread");
_Static_assert(sizeof(struct ft_tm_ask) == 40, "request");
_Static_assert(sizeof(struct ft_tm_validation) == 608, "validation");
_Static_assert(sizeof(struct ft_tm_seat) == 32, "seat");
_Static_assert(FT_KINDS <= FT_TM_KINDS, "kinds");
_Static_assert(sizeof(struct ft_tm_op) == 128, "operation record");
_Static_assert(sizeof(struct ft_tm_link) == 64, "link row");
_Static_assert(sizeof(struct ft_tm_event) == 40, "event");
_Static_assert(FT_TM_BYTES <= 1 << 20, "at most 1 MiB a rank");

/* The parts of `wait`; ft_op_wait() makes the lower half. */
#define FT_TM_PEER_MASK ((1u << 24) - 1)
#define FT_TM_SENDS (1u << 24)
#define FT_TM_STEP_SHIFT 32

/* The checksum of a request to the rank with that engine. */
uint64_t ft_tm_ask_sum(const struct ft_tm_ask *ask, uint64_t engine);

/* ---- files (file.c): their names and their owners -------------------------------------------- */

struct ft_tm_name {
    unsigned uid;
    int pid;
    unsigned n;
};
/* false: not the name of a telemetry file */
bool ft_tm_name_parse(const char *name, struct ft_tm_name *out);
/* State character and start time of a process, from /proc/<pid>/stat. Returns false if there is no
 * such process. */
bool ft_tm_process(int pid, char *state, uint64_t *start);
bool ft_tm_thread_state(int pid, int tid, char *state, uint64_t *start); /* the same of a thread */
uint64_t ft_tm_pid_ns(void);                                             /* 0 if unknown */
uint64_t ft_tm_real_ns(void);                                            /* since 1970 (UTC) */
/* Removes this user's files in `dir` whose process is gone. A call that finds the process gone
 * first marks the file (mode 0400). A later call removes it if the mark is older than grace_s. If
 * there are more than 32 such files, the rest are removed at once. Returns the number of files
 * removed. */
int ft_tm_clean(const char *dir, int grace_s);
/* ft_telemetry_open() for another directory. */
struct ft_telemetry *ft_telemetry_open_in(const char *dir, struct ft_env *, uint64_t engine,
                                          uint64_t host);
const char *ft_telemetry_path(const struct ft_telemetry *);

/* ---- images (reader.c): a checked copy of a file --------------------------------------------- */

struct ft_image {
    /* strings are terminated and printable; enums may still have any value */
    struct ft_tm_file file;
    /* 1: the copy was taken during a write, so its fields may not belong together */
    unsigned char comm_torn[FT_TM_COMMS], op_torn[FT_TM_OPS], event_torn[FT_TM_EVENTS],
        path_torn[FT_TM_PATHS], clock_torn[FT_TM_CLOCKS], conn_torn[FT_TM_CONNS];
    int fd; /* -1: the image comes from memory */
};
/* Opens a file and copies it. The caller frees the image with ft_image_free(). FT_INVAL: malformed,
 * with a sentence; FT_SYSTEM. */
int ft_image_load(const char *path, struct ft_image **out);
/* Makes an image of bytes, for the fuzzer. */
int ft_image_parse(const void *data, size_t len_bytes, struct ft_image **out);
void ft_image_free(struct ft_image *);
void ft_image_print(FILE *out, const struct ft_image *, uint64_t now_ns);
int ft_telemetry_print_in(FILE *out, const char *dir, int pid);

#endif

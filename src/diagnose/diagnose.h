/*
 * diagnose: from a snapshot of a job to a verdict. A snapshot says what the telemetry of every
 * process tells at one moment; the analysis does no input and no output, so that tools, agents and
 * the library itself use the same one. It names the rank or link for which the whole job waits.
 * docs/diagnosis.md describes the method; docs/decisions/0013-diagnosis.md says why.
 *
 * A snapshot may be incomplete (files that cannot be read, hosts that do not answer) and may have
 * been written by someone hostile: the analysis checks every index, and says "cannot tell" rather
 * than name a rank without evidence.
 */
#ifndef FT_DIAGNOSE_H
#define FT_DIAGNOSE_H

#include "base/base.h"
#include "stacks.h"

/* ---- the snapshot ---------------------------------------------------------------------------- */

/* What the kernel says of a process. GONE: there is no such process, or only a zombie. UNKNOWN: it
 * runs in another pid namespace, or its host did not answer. FROZEN: a thread that the library
 * needs is stopped, and others run. */
enum ft_process_state {
    FT_PROCESS_UNKNOWN,
    FT_PROCESS_RUNS,
    FT_PROCESS_STOPPED,
    FT_PROCESS_GONE,
    FT_PROCESS_FROZEN
};

/* One telemetry file: the engine of one process. */
struct ft_snap_engine {
    uint64_t id, host;
    int pid;
    enum ft_process_state state;
    char hostname[64];
    char program[32];
    /* What the process does now, as text for people: "sleeps in hrtimer_nanosleep", "". */
    char doing[96];
    char file[64]; /* the name of its telemetry file; "": none */
};

/* A call of a user on a communicator. sig: as ft_sig(). site: where it was called, for people. */
struct ft_snap_call {
    uint64_t sig, called_ns;
    uint64_t site; /* return address; 0: unknown */
    int tid;
};

/* Why an operation does not go on, as its own rank sees it. */
struct ft_snap_wait {
    int peer;   /* rank in the communicator; -1: none, or unknown */
    bool sends; /* the peer takes nothing; else it sends nothing */
    uint64_t step;
};

/* A communicator as one of its ranks sees it. Collectives are numbered from 1 on each communicator,
 * in the order of the calls. */
struct ft_snap_member {
    uint64_t ctx;
    int engine; /* index into engines */
    int rank, nranks;
    char name[40];
    bool open;                      /* false: this rank has closed its end, or joins */
    bool joins;                     /* it waits for the others, to open it */
    int arrived;                    /* joins: ranks that have come, as it knows; 0: unknown */
    uint64_t opened_ns;             /* when it opened it, or began to join; 0: unknown */
    bool failed;                    /* the communicator has failed on this rank */
    int status;                     /* enum ft_status; the failure */
    int culprit;                    /* the rank that this rank blames for it; -1: nobody */
    uint64_t called, started, done; /* collectives */
    uint64_t p2p_called, p2p_started, p2p_done; /* sends and receives */
    /* of this epoch, by enum ft_kind */
    uint64_t kind_called[FT_KINDS], kind_done[FT_KINDS];
    struct ft_snap_call last;  /* the latest call */
    struct ft_snap_wait wait;  /* of the first operation that has started and runs */
    uint64_t running_sig;      /* of that operation; 0: none runs */
    uint64_t running_seq;      /* its number; 0: none, or a send or receive */
    uint64_t running_since_ns; /* when it started */
    uint64_t progress_ns;      /* when anything of it moved last; 0: unknown */
    uint64_t agree_ns;         /* since when its user waits for an agreement; 0: it does not */
    int agree_call;            /* enum ft_agree_call */
};

/* One direction between two engines, as one end sees it. */
struct ft_snap_link {
    int engine;    /* index: the end that tells */
    uint64_t peer; /* engine id of the other end */
    bool sender;
    bool open;
    uint64_t messages, bytes;
    char transport[18];
    /* ticks of about 1 ms in which bytes moved, and in which nothing moved and an operation waited
     * for this link */
    uint64_t transfer_ns, wait_ns;
};

/* What the network does with what one engine sends to another, as one end sees it. Sums are over
 * span_ns, which ended at seen_ns. */
struct ft_snap_path {
    int engine;    /* index: the end that tells */
    uint64_t peer; /* engine id of the other end */
    bool sender;
    uint64_t seen_ns, span_ns;
    uint64_t messages, bytes;
    /* The receiver tells: how long the network took for 1 KiB of long messages, the lower quartile
     * of the last ones; 0: unknown. */
    uint32_t flight_ns;
    /* The sender tells the rest. */
    uint64_t network_ns;  /* bytes were on the way, and the receiver's host had room */
    uint64_t receiver_ns; /* the receiver's host had no room */
    uint64_t credit_ns;   /* an operation waited until the receiver took messages */
    uint64_t retransmits;
    uint64_t rtt_ns, least_rtt_ns;
    char source[56], destination[56]; /* addresses with ports, for people */
};

/* A step of the user's program, from one ftcclStep() to the next. */
struct ft_snap_step {
    int member;      /* index into members */
    uint64_t number; /* steps that the member had ended before */
    uint64_t begin_ns, end_ns;
};

/* An operation that has started on a rank. */
struct ft_snap_op {
    int member;    /* index into members */
    int peer;      /* of a send or receive */
    uint64_t seq;  /* number of the collective; of the message between the two ranks */
    uint64_t sig;  /* a receive has that of the send */
    bool receives; /* a receive */
    bool done;     /* ended without an error */
    uint64_t called_ns, started_ns, ended_ns; /* ended_ns 0: it runs */
};

/* What a process has noticed of another one. LOST: a link broke, or it cannot be reached. LEFT: it
 * said goodbye. DEAD: its end is proven. */
enum ft_news { FT_NEWS_NONE, FT_NEWS_LOST, FT_NEWS_LEFT, FT_NEWS_DEAD };

/* A member that the roster of another member names. There may be no file of it. */
struct ft_snap_seat {
    uint64_t ctx;
    int rank;
    uint64_t engine, host;
    int pid; /* 0: unknown */
    enum ft_news news;
    bool excluded; /* the teller waits for an agreement that shall leave it out */
    int teller;    /* index into engines: whose roster this is; -1: unknown */
};

/* In which call of the library a thread of a process is (waits), or was last. */
struct ft_snap_thread {
    int engine; /* index into engines */
    int tid;
    unsigned call; /* enum ft_thread_call */
    bool waits;    /* it is inside, and has waited since since_ns */
    uint64_t since_ns, site, calls;
};

/* How long the large messages of a link have waited, as one end sees it. The parts of the sender
 * are 0 at the receiver, and the reverse. */
struct ft_snap_latency {
    int engine;    /* index: the end that tells */
    uint64_t peer; /* engine id of the other end */
    bool sender;
    struct ft_latency part[FT_LATENCY_PARTS];
};

/* A peer's clock is offset_ns ahead of that of the engine's host, give or take error_ns. */
struct ft_snap_clock {
    int engine;    /* index: who has measured */
    uint64_t peer; /* engine id */
    int64_t offset_ns;
    uint64_t error_ns;
};

/* What an engine has noticed of a peer (its rank, or -1) or of a communicator (FT_MOVED_...). */
struct ft_snap_event {
    int engine; /* index */
    unsigned char what, from, to;
    int rank, status;
    uint64_t id, time_ns;
};

/* The latest validation of an engine that has ended. */
struct ft_snap_validation {
    int engine; /* index */
    struct ft_validation is;
};

/* Time is the clock of one host (CLOCK_MONOTONIC); the reader of another host's files has shifted
 * theirs. */
struct ft_snapshot {
    uint64_t now_ns;
    struct ft_snap_engine *engines;
    struct ft_snap_member *members;
    struct ft_snap_link *links;
    struct ft_snap_seat *seats;
    struct ft_snap_path *paths;
    struct ft_snap_step *steps; /* of each member the latest, oldest first */
    int nengines, nmembers, nlinks, nseats, npaths, nsteps;
    struct ft_snap_thread *threads;
    struct ft_snap_latency *latencies;
    struct ft_snap_clock *clocks;
    struct ft_snap_event *events;           /* of each engine the latest, oldest first */
    struct ft_snap_validation *validations; /* [nvalidations] at most one of each engine */
    int nthreads, nlatencies, nclocks, nevents, nvalidations;
    int unreadable;         /* files or hosts that were not understood: their ranks are missing */
    struct ft_snap_op *ops; /* [nops] the latest of each member, oldest first */
    int nops;
    uint64_t real_ns; /* now_ns by the calendar: nanoseconds since 1970 (UTC); 0: unknown */
};

/* One list of a snapshot, and the index that each of its rows has into another one. */
struct ft_snap_list {
    void **at;
    int *n;
    size_t row_bytes;
    ptrdiff_t index; /* offset of that index, an int; -1: none */
    bool of_member;  /* it is into members, else into engines */
    int shift;       /* rows that the other list has now */
};
#define FT_SNAP_LISTS 12
/* In a fixed order, in which each list comes after the one into which it has an index. */
void ft_snapshot_lists(struct ft_snapshot *, struct ft_snap_list lists[FT_SNAP_LISTS]);

/* ---- the verdict ----------------------------------------------------------------------------- */

#define FT_VERDICT_KINDS(X)                           \
    X(HEALTHY, "healthy")                             \
    X(STARTING, "starting")                           \
    X(RANK_DEAD, "rank_dead")                         \
    X(RANK_STOPPED, "rank_stopped")                   \
    X(NONCOMM_HANG, "noncomm_hang")                   \
    X(STREAM_HANG, "stream_hang")                     \
    X(COMM_HANG_SENDER, "comm_hang_sender")           \
    X(COMM_HANG_RECEIVER, "comm_hang_receiver")       \
    X(COMM_HANG_LINK, "comm_hang_link")               \
    X(DEADLOCK, "deadlock")                           \
    X(MISMATCH, "mismatch")                           \
    X(LIBRARY_STUCK, "library_stuck")                 \
    X(PARTITION, "partition")                         \
    X(PATH, "path")                                   \
    X(CORRUPT, "corrupt")                             \
    X(NONCOMM_SLOW, "noncomm_slow")                   \
    X(COMM_SLOW_LINK, "comm_slow_link")               \
    X(COMM_SLOW_SOURCE, "comm_slow_source")           \
    X(COMM_SLOW_DESTINATION, "comm_slow_destination") \
    X(UNKNOWN, "unknown")
enum ft_verdict_kind {
#define X(name, text) FT_VERDICT_##name,
    FT_VERDICT_KINDS(X)
#undef X
        FT_VERDICTS
};
const char *ft_verdict_name(enum ft_verdict_kind kind);
const char *ft_verdict_advice(
    enum ft_verdict_kind kind); /* what to do, or to look at next; or "" */

/* One rank, or the link from `rank` to `peer`. */
struct ft_culprit {
    uint64_t ctx;
    int rank, peer; /* peer -1: the rank itself */
    int engine;     /* index into the snapshot's engines; -1: it has no file */
    uint64_t host;  /* 0: unknown */
    int pid;        /* 0: unknown */
    /* The same in the largest communicator of its process; as above where that is not known. */
    uint64_t world;
    int world_rank, world_peer;
};

#define FT_CULPRITS 16 /* more are counted, not listed */
#define FT_CHAIN 32
#define FT_SENTENCE 384

/* A finding. Its sentences are complete and name ranks, numbers and times. */
struct ft_verdict {
    enum ft_verdict_kind kind;
    struct ft_culprit culprits[FT_CULPRITS];
    int nculprits; /* may exceed FT_CULPRITS */
    uint64_t ctx;  /* the communicator in which the job is blocked; 0: none */
    uint64_t seq;  /* the collective there; 0: a send or receive, or none */
    uint64_t sig;
    uint64_t since_ns; /* how long the job has waited */
    char sentence[FT_SENTENCE];
    /* how the analysis came from the first wait to the culprit, one step a line */
    char chain[FT_CHAIN][FT_SENTENCE];
    int nchain;
};

/* Finds every independent cause of a hang: at most `capacity` verdicts, the number found is
 * returned. Waits shorter than patience_ns are no hang. 0 verdicts: healthy. -1: no memory. Cost:
 * linear in the size of the snapshot, times the logarithm for sorting. */
int ft_diagnose_hang(const struct ft_snapshot *, uint64_t patience_ns, struct ft_verdict *verdicts,
                     int capacity);

/* The length of the steps of a communicator's program has changed. */
struct ft_step_change {
    uint64_t ctx;
    char name[40];
    bool slower;                /* false: as fast again as before */
    double before_ns, after_ns; /* length of a step */
};
/* Follows the steps of jobs from snapshot to snapshot. NULL: no memory. */
struct ft_steps;
struct ft_steps *ft_steps_open(void);
/* Looks at the steps that have ended since the last look. Writes at most `capacity` changes of 10%
 * or more and returns their number. Looks must be so frequent that the telemetry still has some of
 * the steps in between: 30 marked steps, or 1024 calls. Memory is bounded: at most 64 communicators
 * are followed. */
int ft_steps_look(struct ft_steps *, const struct ft_snapshot *, struct ft_step_change *changes,
                  int capacity);
void ft_steps_close(struct ft_steps *);

/* Names ranks and links that make a job slow which moves: at most `capacity` verdicts, the number
 * is returned; FT_NOMEM. Ranks are judged only in communicators all of whose members are in the
 * snapshot. Cost: linear in the size of the snapshot, times the logarithm for sorting. */
int ft_diagnose_slow(const struct ft_snapshot *, struct ft_verdict *verdicts, int capacity);

/* Who comes last to the collectives of a communicator, by the share of each round that a rank spent
 * inside them: share[round * nranks + rank], from 0 to 1; less than 0: unknown. Writes at most
 * `capacity` ranks, the furthest behind first; their number is returned, or FT_NOMEM. With less
 * than 5 rounds nobody is named. */
int ft_diagnose_shares(const double *share, int nrounds, int nranks, int *ranks, int capacity);

/* Sets `world` of all culprits; the analyses do it themselves. Without memory it is the
 * communicator in which they were found. Cost: linear in the size of the snapshot, for each link
 * again. */
void ft_verdicts_place(const struct ft_snapshot *, struct ft_verdict *, int n);

/* Whether an operation has not moved for half of patience_ns. What is under way on links then makes
 * them look slow. */
bool ft_diagnose_may_hang(const struct ft_snapshot *, uint64_t patience_ns);
/* Both: a job that hangs, or may do so as nothing has moved for half of patience_ns, is not slow.
 * The number of verdicts, at most `capacity` of which are written; a negative number: no memory. */
int ft_diagnose(const struct ft_snapshot *, uint64_t patience_ns, struct ft_verdict *verdicts,
                int capacity);

/* Appends the rows of one snapshot to another. FT_NOMEM: `to` is as it was. */
int ft_snapshot_merge(struct ft_snapshot *to, const struct ft_snapshot *from);

/* How sure a verdict is, from 0 to 1; docs/diagnosis.md says what the numbers stand for. */
double ft_verdict_confidence(const struct ft_verdict *);

/* What was seen of a culprit. */
struct ft_evidence {
    const char *source; /* "process" (the kernel), "telemetry", or "path" (TCP and receivers) */
    int rank;           /* as world_rank of the culprit */
    const char *field;
    char text[128]; /* the value, if `number` is negative */
    int64_t number;
};
#define FT_EVIDENCE 32
/* Writes at most `capacity`, returns their number. */
int ft_verdict_evidence(const struct ft_snapshot *, const struct ft_verdict *,
                        struct ft_evidence *out, int capacity);

/* ---- validation: what the ranks of a paused communicator have measured ----------------------- */

#define FT_TESTED_LEAST 3           /* of fewer links of a kind, or ranks, none is named */
#define FT_TESTED_LINK_RATIO 3      /* to the median: slow ... */
#define FT_TESTED_LINK_LEAST_S 5e-4 /* ... if it is also so much more for 1 MiB */
#define FT_TESTED_RANK_RATIO 2      /* of the fastest times */
#define FT_TESTED_SHARE_RATIO 1.6   /* of the mean times: half of a processor is 2 */
/* If a rank's mean is so much of its fastest, other programs or ranks use its processor. Of its
 * links, and of all ranks if most are so, more is asked: so many times these ratios. */
#define FT_TESTED_DISTURBED 1.5
#define FT_TESTED_DISTURBED_LINK 3
#define FT_TESTED_DISTURBED_RANKS 2
#define FT_TESTED_MISSING 65536 /* of later ranks the JSON does not say that they are missing */

struct ft_tested_link {
    int from, to; /* ranks */
    char transport[18];
    bool same_host;
    double s_per_mib; /* the fastest round; 0: nothing came */
    bool cut;         /* the time was over before all rounds */
    /* set by ft_diagnose_tested(): links of its kind, their median, ratio to it; 0: too few */
    int alike;
    double usual_s, ratio;
};

struct ft_tested_rank {
    int rank, engine, pid; /* engine: index into the snapshot's */
    uint64_t host;
    uint64_t copy_ns, product_ns; /* the fastest; 0: not measured */
    uint64_t mean_ns;             /* of a copy and a product */
    bool gpu;                     /* it has a GPU, which was not measured */
    bool disturbed;               /* set by ft_diagnose_tested(), as the ratios are */
    double copy_ratio, product_ratio, mean_ratio;
};

struct ft_tested {
    uint64_t ctx, seq; /* seq: collectives before the pause */
    char name[40];
    int size; /* ranks of the communicator */
    struct ft_tested_link *links;
    struct ft_tested_rank *ranks; /* those that have told */
    int nlinks, nranks;
    int runs;                 /* how often it was measured */
    double pause_s, waited_s; /* the longest hold of a call, and the longest wait in one */
};

/* Leaves one entry for each link, the slowest first, sorts the ranks, sets the ratios, and names
 * what is slow: at most `capacity` verdicts, the number is returned; FT_NOMEM. Cost: n log n. */
int ft_diagnose_tested(struct ft_tested *, struct ft_verdict *verdicts, int capacity);
void ft_tested_json(struct ft_text *out, const struct ft_tested *);

/* What a look has found, for programs. */
#define FT_REPORT_VERSION 2 /* of the JSON */
struct ft_report {
    const struct ft_snapshot *snapshot; /* for the evidence */
    const struct ft_verdict *verdicts;
    int found;                            /* verdicts */
    int engines;                          /* processes that were looked at */
    int unreadable;                       /* files that were not understood */
    double time_s;                        /* since 1970 (UTC) */
    double after_s;                       /* waits shorter than this are no hang */
    const char *trouble;                  /* why it cannot tell; NULL: it can */
    const struct ft_step_change *changes; /* since the look before */
    int nchanges;
    const struct ft_stacks *stacks; /* NULL: nobody asked for them */
    const struct ft_tested *tested; /* [ntested] validations; NULL: none was asked for */
    int ntested;
};
/* One object; docs/diagnosis.md describes it. */
void ft_report_json(struct ft_text *out, const char *key, const struct ft_report *report);

#endif

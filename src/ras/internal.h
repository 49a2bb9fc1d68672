/*
 * What the files of the responder share. All of it belongs to the thread that holds the lock in
 * server.c.
 */
#ifndef FT_RAS_INTERNAL_H
#define FT_RAS_INTERNAL_H

#include "diagnose/diagnose.h"
#include "ras/ras.h"
#include "telemetry/telemetry.h"
#include "transport/transport.h"

/* ---- the listening socket (port.c) ----------------------------------------------------------- */

struct ft_ras_port {
    struct ft_net_address address;
    int listener; /* -1: another process listens, as far as this one knows */
    int probe;    /* a connection on which the listener must answer; -1: none */
    bool asked;   /* the question of the probe has been sent */
    bool told;    /* the log has a line about the port's owner */
    /* when the next attempt is due, when the probe began, when a client came last */
    uint64_t due_ns, probed_ns, heard_ns;
    uint64_t hurry_ns, try_ns; /* until the first, the port is tried at the second */
};
/* False: the address makes no sense; the log says so. */
bool ft_ras_port_open(struct ft_ras_port *port);
/* FTCCL_RAS_ADDR, which must be an address, "localhost" or "*", with a port. Returns 1, or a
 * status. */
int ft_ras_address(struct ft_net_address *out);
void ft_ras_port_close(struct ft_ras_port *port);
/* The listener may just have ended: the port is tried often for a while. */
void ft_ras_port_hurry(struct ft_ras_port *port, uint64_t now_ns);
/* The time until which there is nothing to do unless the probe is ready. */
uint64_t ft_ras_port_due(const struct ft_ras_port *port);
/* local_ranks: about how many processes of this host may want the port. */
void ft_ras_port_tick(struct ft_ras_port *port, uint64_t now_ns, int local_ranks);

/* ---- clients (client.c) ---------------------------------------------------------------------- */

enum { FT_RAS_LIFECYCLE = 1, FT_RAS_TRACE = 2, FT_RAS_ALL = 3 }; /* groups of events */

struct ft_ras_client {
    int fd; /* -1: free */
    bool json, verbose;
    bool wants_status; /* it has asked and has no answer yet */
    bool packed;       /* the answer is to be a packed snapshot */
    bool in_look;      /* it asked before the present look was over */
    bool ends;         /* closed once everything is written */
    bool hung_up;      /* it sends nothing any more */
    unsigned monitors; /* groups of events that it wants */
    int errors;
    double timeout_s;
    uint64_t moved_ns; /* when a byte of it was read or written last */
    size_t len;        /* of the line that has begun */
    char line[256];
    struct ft_text out;
    size_t sent; /* of out */
};
void ft_ras_client_open(struct ft_ras_client *client, int fd, uint64_t now_ns);
void ft_ras_client_close(struct ft_ras_client *client);
/* What poll() should look for. */
short ft_ras_client_events(const struct ft_ras_client *client);
/* Reads, obeys and writes as far as it goes, and closes the client when it is done or broken. */
void ft_ras_client_serve(struct ft_ras_client *client, uint64_t now_ns);
/* Whether it has been silent for too long, or does not take what it asked for. */
bool ft_ras_client_is_late(const struct ft_ras_client *client, uint64_t now_ns);

/* ---- messages between responders (messages.c) ---------------------------------------------------
 */

#define FT_RAS_UNSENT_MAX 16 /* messages that may wait for links before an answer is continued */

struct ft_ras_ask {
    uint32_t left_ms, n;
}; /* and the numbers of n engines that are to be asked, too */
#define FT_RAS_ASKED_MAX ((FT_RAS_MESSAGE_MAX - sizeof(struct ft_ras_ask)) / sizeof(uint64_t))
struct ft_ras_part {
    uint64_t host, teller;                   /* teller: the same for all parts of an answer */
    uint32_t total_bytes, at;                /* at: the first byte of this part */
};                                           /* and its bytes */
#define FT_RAS_PACKED_MAX ((size_t)16 << 20) /* of one host */

/* A message. ras: the engine over which it came, or is to go; peer: the other end. */
struct ft_ras_message {
    struct ft_ras_message *next;
    struct ft_ras *ras;
    uint64_t peer, query;
    uint64_t born_ns; /* of one that waits for a link */
    uint32_t what;
    size_t len_bytes;
    unsigned char data[];
};
bool ft_ras_messages_wait(void);                   /* a hint; any thread */
struct ft_ras_message *ft_ras_messages_take(void); /* the caller frees it; NULL: none */
void ft_ras_messages_join(struct ft_ras *ras);
void ft_ras_messages_leave(struct ft_ras *ras); /* drops those of the engine, now and later */
int ft_ras_messages_unsent(uint64_t peer);      /* that wait for its link; 0: for any link */
/* Copies it and sends it when the link takes it. If too many wait it is lost. */
void ft_ras_messages_send(const struct ft_ras_message *head, const void *data);
void ft_ras_messages_flush(uint64_t now_ns);
/* Asks these engines: a few of them, which are to ask the others. n is at most FT_RAS_ASKED_MAX. */
void ft_ras_messages_ask(struct ft_ras *ras, uint64_t query, uint32_t left_ms,
                         const uint64_t *engines, size_t n);

/* ---- other hosts (hosts.c) ------------------------------------------------------------------- */

struct ft_ras_answer {
    unsigned char *bytes;
    size_t len_bytes, total_bytes;
    uint64_t teller;
    bool done, taken; /* complete; understood */
};
struct ft_ras_host {
    uint64_t host;
    int first, count; /* its ranks, in peers */
};
struct ft_ras_round {
    struct ft_ras *via; /* NULL: nobody is asked */
    uint64_t budget_ns;
    uint64_t query, until_ns, again_ns;
    struct ft_ras_peer *peers;     /* [npeers] in the order of their hosts and ranks */
    struct ft_ras_peer *by_engine; /* [npeers] the same in the order of their engines */
    struct ft_ras_host *hosts;     /* [n] in their order */
    struct ft_ras_answer *answers; /* [n] */
    int npeers, n, left, merged, silent;
    int asked; /* how often */
};
/* `via` and `budget_ns` are set. */
void ft_ras_round_begin(struct ft_ras_round *round, const struct ft_snapshot *here,
                        uint64_t now_ns);
void ft_ras_round_take(struct ft_ras_round *round, const struct ft_ras_message *message);
bool ft_ras_round_is_over(struct ft_ras_round *round, uint64_t now_ns);
/* Adds the next answer to the snapshot. False: there are no more. */
bool ft_ras_round_merge(struct ft_ras_round *round, struct ft_snapshot *into);
/* Whether the engine's host was asked, and has answered. */
bool ft_ras_round_asked(const struct ft_ras_round *round, uint64_t engine, bool *answered);
void ft_ras_round_end(struct ft_ras_round *round); /* frees it; idempotent */

/* ---- a look at the host (look.c) ------------------------------------------------------------- */

#define FT_RAS_VERDICTS 16
#define FT_RAS_AFTER_S 5 /* waits shorter than this are no hang */

struct ft_ras_look {
    enum {
        FT_RAS_LOOK_NONE,
        FT_RAS_LOOK_READS,
        FT_RAS_LOOK_ASKS,
        FT_RAS_LOOK_WAITS,
        FT_RAS_LOOK_MERGES,
        FT_RAS_LOOK_HANGS,
        FT_RAS_LOOK_SLOW,
        FT_RAS_LOOK_DONE
    } stage;
    struct ft_telemetry_file *files;
    int nfiles, file;
    struct ft_snapshot *snapshot;
    struct ft_verdict *verdicts;
    int found;
    char trouble[256]; /* "": none */
    uint64_t begun_ns, ended_ns;
    struct ft_ras_round round; /* `via` and `budget_ns` may be set after the begin */
};
void ft_ras_look_begin(struct ft_ras_look *look, uint64_t now_ns);
/* One slice; the look is over when its stage is DONE. */
void ft_ras_look_step(struct ft_ras_look *look, uint64_t now_ns);
void ft_ras_look_end(struct ft_ras_look *look); /* frees it; idempotent */

/* ---- what other hosts ask (questions.c) --------------------------------------------------------
 */

#define FT_RAS_QUESTIONS 32 /* questions at a time; others are not answered */

struct ft_ras_question {
    struct ft_ras *ras; /* NULL: none */
    uint64_t asker, query, until_ns;
    size_t sent_bytes;
    bool fresh, waits, sends; /* for a look to begin; for the present look to end; its answer */
};
struct ft_ras_questions {
    struct ft_ras_question questions[FT_RAS_QUESTIONS];
    struct ft_ras_look look;
    unsigned char *packed; /* NULL: nothing to send */
    size_t packed_bytes;
    uint64_t teller, rest_ns, spent_ns;
};
void ft_ras_questions_add(struct ft_ras_questions *, const struct ft_ras_message *,
                          uint64_t now_ns);
/* Passes an answer on to who asked. */
void ft_ras_questions_pass_on(struct ft_ras_questions *, const struct ft_ras_message *,
                              uint64_t now_ns);
uint64_t ft_ras_questions_due(struct ft_ras_questions *, uint64_t now_ns);
/* One slice, if one is due. */
bool ft_ras_questions_step(struct ft_ras_questions *, uint64_t now_ns);
/* Forgets what came over the engine; NULL: everything. */
void ft_ras_questions_leave(struct ft_ras_questions *, const struct ft_ras *ras);

/* ---- answers (report.c, text.c) -------------------------------------------------------------- */

#define FT_RAS_ANSWER_MAX ((size_t)32 << 20)
#define FT_RAS_LISTED_MAX 4096 /* missing ranks of a communicator that are listed */

/* A rank of a communicator, from its file or from the roster. */
struct ft_ras_rank {
    int rank;
    const struct ft_snap_member *member; /* NULL: it has no file */
    const struct ft_snap_engine *engine;
    int pid;        /* 0: unknown */
    bool elsewhere; /* nothing is known of it, and its host was not asked */
    bool silent;    /* on another host, which was asked and did not answer */
    bool dead;      /* others have proof of that */
};
static inline bool ft_ras_is_missing(const struct ft_ras_rank *rank)
{
    return !rank->member || rank->engine->state == FT_PROCESS_STOPPED ||
           rank->engine->state == FT_PROCESS_GONE;
}
/* A communicator that some process has open. ranks: in order, each once. */
struct ft_ras_comm {
    uint64_t ctx;
    const char *name;
    int size, nranks, nmissing, nlisted; /* nlisted: rows in `ranks` */
    struct ft_ras_rank *ranks;
};
struct ft_ras_comms {
    struct ft_ras_comm *comms;
    int n;
    struct ft_ras_rank *ranks; /* of all */
};
/* FT_NOMEM */
int ft_ras_comms_of(const struct ft_ras_look *look, struct ft_ras_comms *out);
void ft_ras_comms_free(struct ft_ras_comms *comms);
/* NCCL's result for the status of a communicator. */
int ft_ras_result(int status);
const char *ft_ras_version(void); /* of NCCL, that libnccl.so.2 implements */
void ft_ras_timestamp(char text[32]);
void ft_ras_json(struct ft_text *out, const struct ft_ras_look *look,
                 const struct ft_ras_comms *comms);
void ft_ras_text(struct ft_text *out, const struct ft_ras_look *look,
                 const struct ft_ras_comms *comms, bool verbose);

/* ---- events (monitor.c) ---------------------------------------------------------------------- */

/* A process, as the look before saw it. */
struct ft_ras_seen {
    struct ft_telemetry_file file;
    struct ft_telemetry_process look;
};
struct ft_ras_monitor {
    struct ft_ras_seen *seen; /* ordered by path */
    int nseen;
    bool begun;
    uint64_t due_ns;
};
/* Looks at the processes of the host if that is due, and tells the clients that want to know. */
void ft_ras_monitor_tick(struct ft_ras_monitor *monitor, struct ft_ras_client *clients,
                         uint64_t now_ns);
void ft_ras_monitor_stop(struct ft_ras_monitor *monitor);
/* Tells those clients of one event. */
struct ft_ras_event {
    unsigned group;
    const char *name;
    const struct ft_ras_seen *peer; /* NULL: none */
    const char *text;               /* more, for people */
};
void ft_ras_tell(struct ft_ras_client *clients, const struct ft_ras_event *event);

#endif

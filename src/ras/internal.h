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

/* ---- a look at the host (look.c) ------------------------------------------------------------- */

#define FT_RAS_VERDICTS 16
#define FT_RAS_AFTER_S 5 /* waits shorter than this are no hang */

struct ft_ras_look {
    enum {
        FT_RAS_LOOK_NONE,
        FT_RAS_LOOK_READS,
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
};
void ft_ras_look_begin(struct ft_ras_look *look, uint64_t now_ns);
/* One slice; the look is over when its stage is DONE. */
void ft_ras_look_step(struct ft_ras_look *look, uint64_t now_ns);
void ft_ras_look_end(struct ft_ras_look *look); /* frees it; idempotent */

/* ---- answers (report.c, text.c) -------------------------------------------------------------- */

#define FT_RAS_ANSWER_MAX ((size_t)32 << 20)
#define FT_RAS_LISTED_MAX 4096 /* missing ranks of a communicator that are listed */

/* A rank of a communicator, from its file or from the roster. */
struct ft_ras_rank {
    int rank;
    const struct ft_snap_member *member; /* NULL: it has no file */
    const struct ft_snap_engine *engine;
    int pid;        /* 0: unknown */
    bool elsewhere; /* on another host, of which nothing is known here */
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
int ft_ras_comms_of(const struct ft_snapshot *snapshot, struct ft_ras_comms *out);
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

/*
 * The master of diagnosis: puts together what the agents of all hosts report, judges it, and asks
 * for the telemetry files of those who matter before it names anybody.
 */
#ifndef FT_MASTER_H
#define FT_MASTER_H

#include "../agent/agent.h"

struct master;
/* NULL: no memory. */
struct master *master_open(struct daemon *, struct daemon_past *);
void master_add(struct master *);
/* An agent in this process. */
void master_set_agent(struct master *, struct agent *);
void master_close(struct master *);

/* ---- inside ---------------------------------------------------------------------------------- */

#define PACE_ROUNDS 10
/* A member over several rounds. */
struct pace_past {
    struct pace_row row, closed; /* now, and at the end of the last round; row must be first */
    double share[PACE_ROUNDS];   /* of the latest rounds, the newest first */
    int nshares;
};

/* Who makes a communicator slow, by the pace of its ranks. */
struct slow {
    uint64_t ctx;
    int nranks, rounds, n;
    int rank[FT_CULPRITS]; /* [n] */
};

struct host {
    struct daemon_peer *peer; /* NULL: it has gone, or is `local` */
    bool local, said_hello;
    struct rows_hello hello;
    struct rows_report report;
    uint64_t heard_ns;      /* the last report; 0: none */
    uint64_t gone_ns;       /* its connection ended; 0: it is there */
    int64_t clock_ahead_ns; /* of ours */
    size_t report_bytes;    /* of the last one */
    struct rows_check check[ROWS_CHECKS_MOST];
    int nchecks;
    struct rows_name *name; /* sorted by ctx */
    int nnames;
    struct pace_past *pace; /* [npace] sorted by ctx and engine */
    int npace;
};

enum phase { IDLE, FIRST, SECOND }; /* readings of the suspects' files */

/* The processes whose files or stacks are asked for. */
struct suspects {
    enum phase phase;
    uint32_t request;
    uint64_t engine[ROWS_FETCH_MOST];
    struct host *host[ROWS_FETCH_MOST]; /* NULL: it has gone */
    bool here[ROWS_FETCH_MOST];         /* answered */
    int n;
    bool more; /* there were more than fit */
    uint64_t begun_ns, done_ns;
    uint64_t signature;          /* of what was found when they were chosen */
    struct ft_snapshot *details; /* of their files */
};

struct master {
    struct daemon *daemon;
    struct daemon_past *past;
    struct agent *agent;
    struct host **host;
    int nhosts, room;
    struct suspects suspects;
    struct suspects asked; /* for their stacks */
    struct gathered gathered;
    bool has_pace; /* that was not looked at */
    struct slow slow;
    struct look rows;  /* what the rows alone tell */
    struct look shown; /* what is believed */
    uint64_t looked_ns;
};

/* hosts.c */
struct host *master_host_add(struct master *);
bool master_take(struct master *, struct host *, const struct daemon_message *);
bool master_is_silent(const struct host *, uint64_t now_ns);
void master_forget(struct master *); /* hosts that have been gone for long */
void master_host_free(struct host *);

/* all.c: one snapshot of all hosts. details: rows that replace those of the same processes; NULL:
 * none. NULL: no memory. */
struct ft_snapshot *master_snapshot(const struct master *, const struct ft_snapshot *details);
/* Moves all times of a snapshot by as much. */
void master_shift(struct ft_snapshot *, uint64_t to_now_ns);

/* suspects.c */
/* Chooses who takes part in what the rows show, and asks for their files. False: nobody. */
bool master_ask(struct master *);
/* An agent says that steps have become slower. */
bool master_is_slower(const struct master *, uint64_t *ctx);
void master_take_file(struct master *, struct host *, const struct rows_file *);
/* Everybody has answered, or does not. */
bool master_answered(const struct master *);
/* Goes on to the second reading. False: it is over. */
bool master_ask_again(struct master *);
void master_drop_suspects(struct master *);
void master_forget_suspects_of(struct master *, const struct host *);
uint64_t master_signature(const struct master *);
/* Adds those who take part in what a look shows. */
void master_choose(struct master *, struct suspects *, const struct look *);
/* A new request, of this type. A host that cannot be asked counts as one that has answered. */
void master_ask_all(struct master *, struct suspects *, uint16_t type);

/* stacks.c */
/* Asks for stacks if what is shown is a new hang, and adds those that have come to it. */
void master_look_at_stacks(struct master *);
bool master_take_stacks(struct master *, const struct host *, const struct daemon_message *);
/* Ranks of which there is no answer yet. */
int master_stacks_missing(const struct master *);
void master_drop_stacks(struct master *);

/* pace.c */
bool master_take_pace(struct master *, struct host *, const struct daemon_message *);
void master_look_at_pace(struct master *);
/* Shows what the pace tells as the verdict, if it is sure. */
void master_show_pace(struct master *);

/* show.c */
void master_page(void *arg, FILE *out);
void master_json(void *arg, struct ft_text *out);
void master_metrics(void *arg, FILE *out);

#endif

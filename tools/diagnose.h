/*
 * What ftccl-diagnose found, and how it is printed.
 */
#ifndef FT_TOOLS_DIAGNOSE_H
#define FT_TOOLS_DIAGNOSE_H

#include "diagnose/diagnose.h"

struct report {
    struct ft_snapshot *snapshot; /* NULL: there is none, or no more */
    struct ft_verdict *verdicts;
    int found;                        /* verdicts */
    int engines;                      /* processes that were looked at */
    int unreadable;                   /* files that were not understood */
    uint64_t real_ns;                 /* of the snapshot, since 1970 (UTC) */
    double after_s;                   /* waits shorter than this are no hang */
    char trouble[320];                /* why it cannot tell; "": it can */
    struct ft_step_change changes[4]; /* of the lengths of steps, since the look before */
    int nchanges;
    const struct ft_stacks *stacks; /* NULL: they were not asked for */
    struct ft_tested *tested;       /* [ntested] validations; NULL: none was asked for */
    int ntested;
};

#define MOST_VERDICTS 16
#define MOST_VALIDATIONS 8

/* Pauses the slow communicators, or else the largest of each job, one after the other, measures
 * their links and ranks, and adds what is slow to the report. dir: of the telemetry files. No rank
 * is held for longer than pause_s. Blocks for about a minute and pause_s for each at most. */
void validate(const struct ft_snapshot *, const char *dir, double pause_s, struct report *);
void free_validations(struct report *);

/* Leaves the job of process `pid` in the snapshot: its members and links. Returns the number of its
 * processes, -1: no memory. */
int keep_job(struct ft_snapshot *, int pid);
/* Leaves what the processes of one host tell, by its id, and counts no file as unreadable: it may
 * be another host's. FT_NOMEM. */
int keep_host(struct ft_snapshot *, uint64_t host);
/* The same for the processes with these ids. */
int keep_engines(struct ft_snapshot *, const uint64_t *ids, int n);

/* Writes DIR/ftccl_trace_rank_N for every rank of the largest communicator, and makes DIR. Returns
 * a status, with a sentence. */
int write_flight_records(const struct ft_snapshot *, const char *dir);

/* Writes a file as a whole or not at all. put() writes its content; `what` goes to it. FT_SYSTEM,
 * with a sentence. */
typedef void write_content(FILE *out, const void *what);
int write_whole(const char *path, write_content *put, const void *what);

/* One HTML file that needs no other: the verdict, and the ranks, waits, messages and operations as
 * drawings. At most 16 MiB, by what is
 * drawn. A status, with a sentence. */
int write_page(const struct ft_snapshot *, const struct report *, const char *path);

/* The operations as a JSON trace for Perfetto. A status, with a sentence. */
int write_trace(const struct ft_snapshot *, const struct report *, const char *path);

/* Metrics for node_exporter's textfile collector. A status, with a sentence. */
int write_metrics(const struct ft_snapshot *, const struct report *, const char *path);
/* The same to a stream. ranks: with the counters of every rank. FT_NOMEM. */
int print_metrics(FILE *out, const struct ft_snapshot *, const struct report *, bool ranks);

void print_text(FILE *out, const struct report *, bool explain);
/* The report as ft_report_json() takes it; it points into the other one. */
struct ft_report report_for_programs(const struct report *);
/* one object on one line; docs/diagnosis.md describes it */
void print_json(FILE *out, const struct report *);

#endif

/*
 * A snapshot that is judged, and how it is shown: the same for the ranks of a host and for those of
 * all hosts.
 */
#ifndef FT_AGENT_LOOK_H
#define FT_AGENT_LOOK_H

#include "../daemon/past.h"
#include "../diagnose.h"

#define LOOK_VERDICTS 16

struct look {
    struct ft_snapshot *snapshot; /* NULL: none could be taken */
    struct ft_verdict verdicts[LOOK_VERDICTS];
    struct report report;
    int nchain[LOOK_VERDICTS]; /* of the verdicts, without what stacks have added */
};

/* Judges a snapshot, which it takes over; NULL: why says why there is none. steps: follows the
 * steps of jobs; NULL: nobody does. */
void look_take(struct look *, struct ft_snapshot *, double after_s, struct ft_steps *steps);
void look_fail(struct look *, const char *why);
/* Finishes the report of verdicts that were found elsewhere. */
void look_conclude(struct look *, int found, double after_s);
void look_close(struct look *);
/* Somebody waits, and not only for somebody slow. */
bool look_hangs(const struct look *);
/* A number for what was found, which stays as long as nothing changes but the time; 0: nothing. */
uint64_t look_signature(const struct look *);
/* Takes back what stacks have added to the report and to the verdicts. */
void look_drop_stacks(struct look *);
/* Notes verdicts and jobs. */
void look_note(const struct look *, struct daemon_past *);
void look_json(const struct look *, const char *key, struct ft_text *out);
void look_page(const struct look *, FILE *out);
/* ranks: with the counters of each rank */
void look_metrics(const struct look *, FILE *out, bool ranks);

#endif

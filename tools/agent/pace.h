/*
 * How much of its time a rank spends inside collectives. Whoever comes last spends least, so hosts
 * that see some ranks of a job each tell the master this of theirs: sums, so that a lost message
 * costs nothing.
 */
#ifndef FT_AGENT_PACE_H
#define FT_AGENT_PACE_H

#include "../daemon/daemon.h"
#include "diagnose/diagnose.h"

#define PACE_ROWS_MOST 65536

/* A member. Sums since somebody looks, which wrap. Only collectives for which all ranks wait for
 * all count. */
struct pace_row {
    uint64_t ctx, engine;
    int rank, nranks;
    uint32_t inside_us;
    uint32_t covered_us; /* of this time telemetry told */
    uint32_t calls;      /* that have ended */
};

struct pace {
    struct pace_row *row; /* sorted by ctx and engine */
    int n;
    uint64_t until_ns;
};
/* Adds what has happened since the last look. Without memory it begins anew. */
void pace_look(struct pace *, const struct ft_snapshot *);
void pace_close(struct pace *);
int pace_by_member(const void *a, const void *b); /* for qsort() */

/* The content of ROWS_PACE; the caller frees it. NULL: no memory. */
unsigned char *pace_encode(const struct pace *, size_t *len);
/* The caller frees the rows. -1: it makes no sense, or there is no memory. */
int pace_decode(const struct daemon_message *, struct pace_row **rows);

#endif

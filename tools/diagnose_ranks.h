/*
 * The ranks of a snapshot, one row for each process, in the order of the jobs and their ranks. A
 * rank is numbered by its place in the largest communicator of its process. Who stands in a roster
 * and has no file has a row, too.
 */
#ifndef FT_TOOLS_DIAGNOSE_RANKS_H
#define FT_TOOLS_DIAGNOSE_RANKS_H

#include "diagnose.h"

#define RANK_STATES(X)                  \
    X(OUTSIDE, "outside calls")         \
    X(CALLS, "in a call")               \
    X(WAITS, "has waited in a call")    \
    X(STOPPED, "process is stopped")    \
    X(GONE, "process has ended")        \
    X(MISSING, "there is no telemetry") \
    X(CULPRIT, "the job waits because of it")
enum rank_state {
#define X(name, text) RANK_##name,
    RANK_STATES(X)
#undef X
        RANK_STATE_COUNT
};

struct rank_row {
    uint64_t id;    /* engine id */
    int engine;     /* index; -1: there is no file */
    uint64_t world; /* context of the largest communicator; 0: in none */
    int nranks;     /* of it */
    int rank;       /* in it; -1: in none */
    int job; /* equal for ranks that share a communicator with each other, or with one that does */
    enum rank_state state;
};

/* A rank of a communicator, and whose row that is. member: index, -1: only a roster names it. */
struct rank_place {
    uint64_t ctx;
    int rank, row, member;
};

struct ranks {
    const struct ft_snapshot *s;
    struct rank_row *row;
    int n;
    int *by_engine;           /* [s->nengines] */
    int *by_id;               /* [n] rows in the order of their engine ids */
    struct rank_place *place; /* [nplaces], sorted */
    int nplaces;
    int others; /* ranks that were left out */
};

/* report: its culprits, and what it calls waiting. one_job: leaves out others than that of the
 * first verdict, or without one, the largest that lives. FT_NOMEM. */
int ranks_open(struct ranks *, const struct ft_snapshot *, const struct report *, bool one_job);
void ranks_close(struct ranks *);
/* -1: nobody */
int ranks_of_id(const struct ranks *, uint64_t engine);
int ranks_of_place(const struct ranks *, uint64_t ctx, int rank);
/* NULL: nobody */
const struct rank_place *ranks_find_place(const struct ranks *, uint64_t ctx, int rank);
/* The row of a culprit, or of the peer of its link; -1: none. */
int ranks_of_culprit(const struct ranks *, const struct ft_culprit *);
int ranks_of_culprit_peer(const struct ranks *, const struct ft_culprit *);
/* Who waits longer than the report's time: how long; 0: it does not wait. */
uint64_t ranks_waiting_ns(const struct ft_snapshot *, const struct ft_snap_member *);

#endif

/*
 * slow_job: what the files that judge a job share. slow_job.c sorts a snapshot by communicators;
 * slow_ranks.c finds ranks that come late, slow_paths.c finds slow links.
 */
#ifndef FT_DIAGNOSE_SLOW_JOB_H
#define FT_DIAGNOSE_SLOW_JOB_H

#include "diagnose/diagnose.h"

#define FT_SLOW_RECENT_NS 60000000000u /* what is older says nothing of now */

/* One communicator that is open. An entry of `op` or `path` is an index into the snapshot's; those
 * of member m are op[first_op[m]] to op[first_op[m + 1] - 1], and so for paths and engines. */
struct ft_slow_comm {
    const struct ft_snapshot *s;
    uint64_t ctx;
    const char *name; /* what people call it */
    int nranks;
    const int *present; /* [npresent] indices of its members, in the order of their ranks */
    int npresent;
    bool whole;        /* every rank has one member */
    const int *member; /* [nranks] index of the member with that rank; -1: none */
    const int *op, *first_op, *path, *first_path;
    const int *of_engine, *first_member; /* members, in the same way, of engines */
    const int *rank_of;                  /* [nengines] the rank of an engine here; -1: none */
    bool *judged;                        /* [npaths] by a larger communicator */
};

/* The engine with an id: its index, or -1. */
int ft_slow_engine(const struct ft_slow_comm *, uint64_t id);
/* What an engine tells of its link to or from a peer. NULL: nothing. */
const struct ft_snap_path *ft_slow_path(const struct ft_slow_comm *, int engine, uint64_t peer,
                                        bool sender);
struct ft_culprit ft_slow_culprit(const struct ft_slow_comm *, int rank, int peer);

/* Each writes at most `capacity` verdicts and returns their number, or FT_NOMEM. */
int ft_slow_find_ranks(const struct ft_slow_comm *, struct ft_verdict *, int capacity);
int ft_slow_find_paths(const struct ft_slow_comm *, struct ft_verdict *, int capacity);

#endif

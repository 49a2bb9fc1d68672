/*
 * The agent of a host: looks at its ranks once an interval, keeps what killed ones left, checks the
 * host, and reports to a master if there is one.
 */
#ifndef FT_AGENT_H
#define FT_AGENT_H

#include "checks.h"
#include "collect.h"
#include "look.h"
#include "pace.h"
#include "rows.h"

struct agent;
/* NULL, with a sentence: no memory, or the master's address makes no sense. */
struct agent *agent_open(struct daemon *, struct daemon_past *);
/* Its services: diagnosis and checks. */
void agent_add(struct agent *);
void agent_close(struct agent *);

/* A master in the same process takes the messages of the agent, and answers by agent_take(). */
typedef void agent_master(void *arg, const struct daemon_message *);
void agent_set_master(struct agent *, agent_master *master, void *arg);
bool agent_take(struct agent *, const struct daemon_message *);

/* ---- what killed ranks left (keep.c) --------------------------------------------------------- */

#define KEEP_BYTES_MOST ((uint64_t)256 << 20)
#define KEEP_AGE_MOST_S (7 * 86400)

struct keep {
    char folder[300]; /* "": nothing is kept */
    uint64_t *known;  /* sorted: engines that were found dead */
    int nknown;
    int kept;       /* snapshots in the folder */
    uint64_t bytes; /* of them */
    uint64_t pruned_ns;
    char trouble[300];
};
/* FT_SYSTEM: the folder cannot be made; nothing is kept then. */
int keep_open(struct keep *, const char *state);
/* Keeps a snapshot of the files in `dir` if a process in it has died since the last look. */
void keep_look(struct keep *, const struct ft_snapshot *, const char *dir);
void keep_close(struct keep *);

/* ---- links that were always slow (links.c) --------------------------------------------------- */

/* The communicator of a rank one of whose links is much slower than its others; 0: there is none.
 */
uint64_t links_find_uneven(const struct ft_snapshot *);

/* ---- operations, as NCCL's Inspector writes them (inspector.c) ------------------------------- */

struct inspector {
    const char *dir;   /* "": nothing is written */
    uint64_t until_ns; /* operations that had ended then have been written */
    char trouble[300];
};
/* FT_SYSTEM: the folder cannot be written. */
int inspector_open(struct inspector *, const char *dir);
/* Writes what has ended since the last look. */
void inspector_look(struct inspector *, const struct ft_snapshot *, const struct report *);

#endif

/*
 * The stacks of ranks on their way from hosts to whoever shows them. Between looks a rank is known
 * by the id of its engine, since indices change. What comes from another host is checked and
 * bounded.
 */
#ifndef FT_AGENT_STACKS_H
#define FT_AGENT_STACKS_H

#include "look.h"
#include "rows.h"

#define STACKS_MOST ROWS_FETCH_MOST /* ranks */
#define STACKS_PROCESSES_MOST 9     /* of a rank: its own and children */
#define STACKS_THREADS_MOST 4       /* of a process: the first ones and that of the rank */
#define STACKS_LINES_MOST 16384     /* bytes of a stack */

/* The content of ROWS_STACKS: a rank of what was collected, with its process and its children;
 * rank -1: nothing is known of that engine. The caller frees it. NULL: no memory. */
unsigned char *stacks_encode(uint32_t request, uint64_t engine, const struct ft_stacks *, int rank,
                             size_t *len);
/* False: it makes no sense. */
bool stacks_decode_head(const struct daemon_message *, uint32_t *request, uint64_t *engine);

/* What came of some ranks. */
struct gathered {
    struct ft_stacks stacks;
    uint64_t engine[STACKS_MOST]; /* of each rank in it */
};
/* Adds what a message tells. False: it makes no sense, or there is no memory; nothing was added. */
bool gathered_add(struct gathered *, const struct daemon_message *);
void gathered_clear(struct gathered *);
/* Groups the ranks, and adds to the verdicts of a look and to its report where its culprits are.
 * The report refers to what was gathered. */
void gathered_show(struct gathered *, struct look *);

#endif

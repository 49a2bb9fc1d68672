/*
 * Collects the stacks of ranks of this host when they hang, in a thread of its own: tools take
 * seconds. One collection at a time; while it runs, the latest wish waits.
 */
#ifndef FT_AGENT_COLLECT_H
#define FT_AGENT_COLLECT_H

#include "stacks.h"

struct collect;
/* Takes what was collected for a master: contents of ROWS_STACKS, which it frees. */
typedef void collect_send(void *arg, unsigned char *bytes, size_t len);
/* NULL: no memory, or no descriptor. */
struct collect *collect_open(struct daemon *, collect_send *send, void *arg);
/* When this program has got SIGTERM or SIGINT. At most two seconds: the thread ends its tools. */
void collect_close(struct collect *);
/* After each look. has_master: the master asks, so nothing is collected without that. */
void collect_look(struct collect *, struct look *, bool has_master);
/* The master asks for the ranks with these engines. */
void collect_ask(struct collect *, uint32_t request, const uint64_t *engines, int n);
/* Tools stop a process while they look at it. Of those that are looked at, the state before counts,
 * in a snapshot and in a copy of a telemetry file. */
void collect_correct(const struct collect *, struct ft_snapshot *);
void collect_correct_copy(const struct collect *, uint64_t engine, struct ft_telemetry_copy *);
const char *collect_trouble(const struct collect *); /* "": none */

#endif

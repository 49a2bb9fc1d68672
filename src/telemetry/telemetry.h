/*
 * telemetry: the writing side, one file a rank in /dev/shm (layout in docs/telemetry-format.md),
 * and the reader that ftccl-info and later tools use. The engine writes with plain and release
 * stores; a reader needs nothing from the process and works on a stopped or dead one. A rank
 * without a file (FTCCL_TELEMETRY=0, /dev/shm full) gets a NULL handle, which every call accepts.
 */
#ifndef FT_TELEMETRY_H
#define FT_TELEMETRY_H

#include "base/base.h"

struct ft_telemetry;

/* Creates /dev/shm/ftccl-<uid>-<pid>-<n> (0600, allocated up front, at most 1 MiB) and removes
 * files whose process is gone since more than a minute. NULL when there is no space or it is
 * switched off: said once in the log. */
struct ft_telemetry *ft_telemetry_open(struct ft_env *, uint64_t engine, uint64_t host);
/* removes the file; a killed rank's stays for the reader */
void ft_telemetry_close(struct ft_telemetry *);

/* A row of the communicator table; -1 if full (then nothing of that communicator is recorded). */
int ft_telemetry_comm_open(struct ft_telemetry *, uint64_t ctx, uint64_t epoch, int nranks,
                           int rank, const char *name);
void ft_telemetry_comm_close(struct ft_telemetry *, int comm);

/* One record of the operation ring; returns its index, which later calls take. Old records are
 * overwritten, except those of running operations; later calls for an overwritten one do
 * nothing. */
uint32_t ft_telemetry_op(struct ft_telemetry *, int comm, uint64_t seq, const struct ft_coll *,
                         const char *algo, uint64_t now_ns);
/* enum ft_op_state */
void ft_telemetry_op_state(struct ft_telemetry *, uint32_t op, int state, int status,
                           uint64_t now_ns);
/* What it is doing now: step and the rank waited for (-1 none). A few plain stores: called on the
 * data path. */
void ft_telemetry_op_wait(struct ft_telemetry *, uint32_t op, uint64_t step, int peer);

/* A row for one link: the peer's rank in its first communicator, the transport, direction. -1 if
 * full. */
int ft_telemetry_link_open(struct ft_telemetry *, uint64_t peer, int peer_rank,
                           const char *transport, bool sender);
/* The link's totals since it was opened (not increments): four stores, as often or as seldom as the
 * caller likes. */
void ft_telemetry_link_count(struct ft_telemetry *, int link, uint64_t messages, uint64_t bytes,
                             uint64_t transfer_ns, uint64_t wait_ns);
void ft_telemetry_link_close(struct ft_telemetry *, int link);

/* Operation states, one list for engine and readers. */
#define FT_OP_STATES(X) X(NEW) X(QUEUED) X(RUNNING) X(DRAINING) X(DONE) X(FAILED) X(SKIPPED)
enum ft_op_state {
#define X(name) FT_OP_##name,
    FT_OP_STATES(X)
#undef X
        FT_OP_STATE_COUNT
};
const char *ft_op_state_name(int state);

/* The reader: prints every file of the process (tables, last operations, links) as text. FT_INVAL:
 * no such file or not ours; a malformed file is refused with what is wrong, never trusted. */
int ft_telemetry_print(FILE *out, int pid);

#endif

/*
 * The state of the writer, shared by file.c and writer.c.
 */
#ifndef FT_TELEMETRY_WRITER_H
#define FT_TELEMETRY_WRITER_H

#include "format.h"

#include <sys/types.h>

struct ft_telemetry {
    struct ft_tm_file *file;
    struct ft_env *env;
    uint64_t serial; /* number of operations recorded */
    uint64_t events; /* number of events recorded */
    uint32_t next;   /* slot of the next operation, unless an operation that runs has it */
    int next_comm, next_link, next_path, next_latency;
    /* of each path: sums that become those of before */
    struct ft_tm_path_sums path_mark[FT_TM_PATHS];
    uint64_t asked; /* number of the last request */
    uint32_t next_seat;
    int seats_left; /* of the communicator that was opened last */
    /* What records of operations like the latest one have in common, and where its algorithm's name
     * came from. */
    struct ft_tm_op form;
    const char *algo_from;
    pid_t pid;
    struct ft_telemetry *others; /* next file that is open in this process */
    char path[128];
};

/* Notes in the table of threads that the calling thread makes the call that it has entered. */
void ft_telemetry_thread_calls(struct ft_telemetry *, uint64_t now_ns);

/* guard_enter() and guard_leave() enclose plain stores. The fence keeps these stores after the odd
 * guard, and the release store keeps them before the even guard. */
static inline void guard_enter(uint32_t *guard)
{
#ifdef __SANITIZE_THREAD__ /* the thread sanitizer does not understand fences */
    __atomic_exchange_n(guard, *guard | 1, __ATOMIC_SEQ_CST);
#else
    __atomic_store_n(guard, *guard | 1, __ATOMIC_RELAXED);
    __atomic_thread_fence(__ATOMIC_RELEASE);
#endif
}

static inline void guard_leave(uint32_t *guard)
{
    __atomic_store_n(guard, (*guard | 1) + 1, __ATOMIC_RELEASE);
}

#endif

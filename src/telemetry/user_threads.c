/*
 * The table of a process's own threads: in which call of the library each of them is, or was last.
 * A thread alone writes its row, and does not hold the engine. What the process reads from its own
 * file is checked before use: another process of the user may have written there.
 */
#include "writer.h"

#include <unistd.h>

/* The row that the thread used last. */
static _Thread_local struct {
    const struct ft_telemetry *t;
    uint64_t engine;
    int row, tid;
    unsigned call;
    const void *site;
} mine;

void ft_thread_enters(unsigned call, const void *site)
{
    mine.call = call;
    mine.site = site;
}

static bool take_row(struct ft_tm_thread *row, int32_t from)
{
    return __atomic_compare_exchange_n(&row->tid, &from, mine.tid, false, __ATOMIC_RELAXED,
                                       __ATOMIC_RELAXED);
}

/* The thread's own row, a free one, or else that of a thread that has not called for longest. A
 * thread that loses its row to another one looks for a row again. -1: other threads were faster. */
static int find_row(struct ft_tm_thread *rows)
{
    int oldest = -1;
    uint64_t oldest_ns = UINT64_MAX;
    for (int i = 0; i < FT_TM_THREADS; i++) {
        int32_t tid = __atomic_load_n(&rows[i].tid, __ATOMIC_RELAXED);
        if (tid == mine.tid || (tid == 0 && take_row(&rows[i], 0)))
            return i;
        uint64_t since_ns = __atomic_load_n(&rows[i].since_ns, __ATOMIC_RELAXED);
        if (since_ns < oldest_ns && !__atomic_load_n(&rows[i].waits, __ATOMIC_RELAXED)) {
            oldest = i;
            oldest_ns = since_ns;
        }
    }
    int32_t tid = oldest >= 0 ? __atomic_load_n(&rows[oldest].tid, __ATOMIC_RELAXED) : 0;
    return oldest >= 0 && take_row(&rows[oldest], tid) ? oldest : -1;
}

static __attribute__((noinline)) void take_any_row(const struct ft_telemetry *t,
                                                   struct ft_tm_thread *rows)
{
    mine.tid = (int)gettid();
    mine.t = t;
    mine.engine = t->file->header.engine;
    mine.row = find_row(rows);
}

/* NULL: there is none. */
static inline struct ft_tm_thread *row_of(struct ft_telemetry *t)
{
    struct ft_tm_thread *rows = t->file->thread;
    bool known = mine.t == t && mine.engine == t->file->header.engine && mine.row >= 0;
    if (!known || __atomic_load_n(&rows[mine.row].tid, __ATOMIC_RELAXED) != mine.tid)
        take_any_row(t, rows);
    return mine.row >= 0 ? &rows[mine.row] : NULL;
}

/* If another thread has taken the row meanwhile, it does not wait because of this one. */
static inline void write_row(struct ft_tm_thread *row, unsigned waits, uint64_t now_ns)
{
    __atomic_store_n(&row->since_ns, now_ns, __ATOMIC_RELAXED);
    __atomic_store_n(&row->site, (uint64_t)(uintptr_t)mine.site, __ATOMIC_RELAXED);
    __atomic_store_n(&row->call, (uint16_t)mine.call, __ATOMIC_RELAXED);
    __atomic_store_n(&row->waits, (uint16_t)waits, __ATOMIC_RELAXED);
    if (waits && __atomic_load_n(&row->tid, __ATOMIC_RELAXED) != mine.tid)
        __atomic_store_n(&row->waits, 0, __ATOMIC_RELAXED);
}

void ft_telemetry_thread_calls(struct ft_telemetry *t, uint64_t now_ns)
{
    struct ft_tm_thread *row = row_of(t);
    if (!row)
        return;
    write_row(row, 0, now_ns);
    __atomic_store_n(&row->calls, row->calls + 1, __ATOMIC_RELAXED);
}

void ft_telemetry_thread_waits(struct ft_telemetry *t, uint64_t now_ns)
{
    struct ft_tm_thread *row = t && mine.call ? row_of(t) : NULL;
    if (row)
        write_row(row, 1, now_ns);
}

void ft_telemetry_thread_goes_on(struct ft_telemetry *t)
{
    struct ft_tm_thread *row = t && mine.call ? row_of(t) : NULL;
    if (row)
        __atomic_store_n(&row->waits, 0, __ATOMIC_RELAXED);
}

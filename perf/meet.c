/*
 * A spinning barrier. A pthread barrier sleeps, and the processes that wake first would wait for
 * the others within the time of the next call.
 */
#include "meet.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#define SPINS 2000 /* spins before it yields the core */
#define LOOKS 1024 /* turns between two reads of the clock */
#define JOIN_S 30
#define WAIT_S 90

struct shared {
    _Atomic unsigned joined;
    char pad[60];
    _Atomic unsigned arrived;
};

struct meeting {
    struct shared *shared;
    unsigned n, target;
    unsigned spins; /* 0 if there are more processes than cores */
};

static double now_s(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static bool has(_Atomic unsigned *word, unsigned target)
{
    return (int)(atomic_load_explicit(word, memory_order_acquire) - target) >= 0;
}

static bool wait_for(_Atomic unsigned *word, unsigned target, unsigned spins, double seconds)
{
    double until_s = 0;
    for (unsigned turn = 0; !has(word, target); turn++) {
        if (turn >= spins)
            sched_yield();
        if (turn % LOOKS != LOOKS - 1)
            continue;
        if (until_s == 0)
            until_s = now_s() + seconds;
        if (now_s() > until_s)
            return has(word, target);
    }
    return true;
}

static struct shared *map(const char *path)
{
    struct shared *at = MAP_FAILED;
    int fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd >= 0 && ftruncate(fd, sizeof *at) == 0)
        at = mmap(NULL, sizeof *at, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (at == MAP_FAILED)
        fprintf(stderr, "FTCCL_PERF_MEET=%s: %s\n", path, strerror(errno));
    if (fd >= 0)
        close(fd);
    return at == MAP_FAILED ? NULL : at;
}

int meeting_join(struct meeting **out, int n)
{
    const char *path = getenv("FTCCL_PERF_MEET");
    *out = NULL;
    if (!path || !*path)
        return 0;
    struct meeting *m = calloc(1, sizeof *m);
    if (!m || !(m->shared = map(path))) {
        free(m);
        return -1;
    }
    m->n = (unsigned)n;
    m->spins = n <= sysconf(_SC_NPROCESSORS_ONLN) ? SPINS : 0;
    atomic_fetch_add(&m->shared->joined, 1);
    if (!wait_for(&m->shared->joined, m->n, 0, JOIN_S)) {
        fprintf(
            stderr,
            "FTCCL_PERF_MEET=%s: %u of %d processes have come to it; all must be of one machine\n",
            path, atomic_load(&m->shared->joined), n);
        meeting_leave(m);
        return -1;
    }
    *out = m;
    return 0;
}

void meeting_wait(struct meeting *m)
{
    m->target += m->n;
    atomic_fetch_add_explicit(&m->shared->arrived, 1, memory_order_acq_rel);
    if (wait_for(&m->shared->arrived, m->target, m->spins, WAIT_S))
        return;
    fprintf(stderr, "%u of %u processes have come to where they meet: one has ended\n",
            m->n - (m->target - atomic_load(&m->shared->arrived)), m->n);
    _exit(1);
}

void meeting_leave(struct meeting *m)
{
    if (!m)
        return;
    munmap(m->shared, sizeof *m->shared);
    free(m);
}

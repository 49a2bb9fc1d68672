/*
 * Preloaded by member_faults.py: clocks that jump, and a member that says another step than it has.
 * FT_LIES names a file with three numbers of 64 bits, which change while this process runs: what
 * its calendar clock is ahead (s), what its monotonic clock has been stopped (ns), what its step is
 * ahead.
 */
#include <dlfcn.h>
#include <fcntl.h>
#include <ftccl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#pragma GCC diagnostic ignored "-Wmissing-prototypes"

#define EXPORT __attribute__((visibility("default")))
#define SECOND_NS INT64_C(1000000000)

struct lies {
    _Atomic int64_t calendar_s, stopped_ns, steps;
};

/* Before any thread is there. */
static struct lies none, *lies = &none;
__attribute__((constructor)) static void find_lies(void)
{
    const char *name = getenv("FT_LIES");
    int fd = name ? open(name, O_RDONLY | O_CLOEXEC) : -1;
    if (fd < 0)
        return;
    void *at = mmap(NULL, sizeof *lies, PROT_READ, MAP_SHARED, fd, 0);
    if (at != MAP_FAILED)
        lies = at;
    close(fd);
}

static void add_ns(struct timespec *t, int64_t ns)
{
    int64_t all = t->tv_nsec + ns % SECOND_NS, carry = (all + SECOND_NS) / SECOND_NS - 1;
    t->tv_sec += ns / SECOND_NS + carry;
    t->tv_nsec = all - carry * SECOND_NS;
}

/* ---- clocks: CLOCK_BOOTTIME is right, as after the host was suspended -------------------------
 */

EXPORT int clock_gettime(clockid_t clock, struct timespec *t)
{
    long rc = syscall(SYS_clock_gettime, clock, t);
    if (rc == 0 && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE))
        t->tv_sec += atomic_load(&lies->calendar_s);
    if (rc == 0 && (clock == CLOCK_MONOTONIC || clock == CLOCK_MONOTONIC_COARSE))
        add_ns(t, -atomic_load(&lies->stopped_ns));
    return (int)rc;
}

EXPORT time_t time(time_t *out)
{
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    if (out)
        *out = t.tv_sec;
    return t.tv_sec;
}

EXPORT int gettimeofday(struct timeval *restrict out, void *restrict zone)
{
    struct timespec t;
    (void)zone;
    clock_gettime(CLOCK_REALTIME, &t);
    *out = (struct timeval){.tv_sec = t.tv_sec, .tv_usec = t.tv_nsec / 1000};
    return 0;
}

/* The kernel's monotonic clock has not been stopped. All conditions of this project are by it. */
EXPORT int pthread_cond_timedwait(pthread_cond_t *restrict cond, pthread_mutex_t *restrict mutex,
                                  const struct timespec *restrict until)
{
    int (*real)(pthread_cond_t *, pthread_mutex_t *, const struct timespec *);
    void *found = dlsym(RTLD_NEXT, "pthread_cond_timedwait");
    struct timespec at = *until;
    memcpy(&real, &found, sizeof real);
    add_ns(&at, atomic_load(&lies->stopped_ns));
    return real(cond, mutex, &at);
}

/* ---- a member ---------------------------------------------------------------------------------
 */

EXPORT ftcclResult_t ftcclMemberView(ftcclMember_t member, uint64_t step, ftcclView_t *view,
                                     ftcclComm_t *comm)
{
    ftcclResult_t (*real)(ftcclMember_t, uint64_t, ftcclView_t *, ftcclComm_t *);
    void *found = dlsym(RTLD_NEXT, "ftcclMemberView");
    int64_t ahead = atomic_load(&lies->steps);
    memcpy(&real, &found, sizeof real);
    return real(member, ahead < 0 && step < (uint64_t)-ahead ? 0 : step + (uint64_t)ahead, view,
                comm);
}

/*
 * The real environment: the monotonic clock and the kernel's random numbers. Tests replace it.
 */
#include "base/base.h"

#include <stdlib.h>
#include <sys/random.h>
#include <time.h>

static uint64_t real_now_ns(struct ft_env *env)
{
    (void)env;
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static void real_random(struct ft_env *env, void *buf, size_t len_bytes)
{
    (void)env;
    for (char *p = buf; len_bytes > 0;) {
        ssize_t got = getrandom(p, len_bytes, 0);
        if (got < 0)
            continue; /* EINTR is the only error once the pool is initialised */
        p += got;
        len_bytes -= (size_t)got;
    }
}

struct ft_env *ft_env_real(void)
{
    static struct ft_env real = {real_now_ns, real_random, NULL};
    return &real;
}

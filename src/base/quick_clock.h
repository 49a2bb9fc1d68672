/*
 * A clock that costs a third of ft_now_ns(): the processor's counter tells how long ago the last
 * reading of the real clock was. When that is FT_QUICK_NS or more, it reads the real clock again.
 * While both keep their rates, what it says is never later than the real clock, and at most some
 * microseconds earlier. If the counter jumps, it may be wrong by up to FT_QUICK_NS until it reads
 * the real clock again. With another clock, or without an invariant counter, it is ft_now_ns().
 */
#ifndef FT_QUICK_CLOCK_H
#define FT_QUICK_CLOCK_H

#include "base/base.h"

#define FT_QUICK_NS UINT64_C(100000)

/* Zeroed before its first use. Not thread-safe. */
struct ft_quick_clock {
    uint64_t ticks, ns;             /* at the last reading of the real clock */
    uint64_t most_ticks;            /* when that is too long ago; 0: the rate is not known */
    uint64_t rate;                  /* nanoseconds of 2^32 ticks */
    uint64_t first_ticks, first_ns; /* since when the rate is measured; first_ns 0: not yet */
    bool is_useless;                /* the processor has no counter of one rate */
};

uint64_t ft_quick_clock_read(struct ft_quick_clock *clock, struct ft_env *env); /* the real clock */

#ifdef __x86_64__
static inline uint64_t ft_ticks(void)
{
    return __builtin_ia32_rdtsc();
}
#else
static inline uint64_t ft_ticks(void)
{
    return 0;
}
#endif

static inline uint64_t ft_quick_now_ns(struct ft_quick_clock *clock, struct ft_env *env)
{
    uint64_t ticks = ft_ticks() - clock->ticks;
    return ticks < clock->most_ticks ? clock->ns + (ticks * clock->rate >> 32)
                                     : ft_quick_clock_read(clock, env);
}

#endif

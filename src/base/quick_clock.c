/*
 * Measures the rate of the processor's counter.
 */
#include "base/quick_clock.h"

#ifdef __x86_64__
#include <cpuid.h>
#endif

#define MEASURE_NS 10000000u /* the rate is measured for so long */
#define AGAIN_NS 1000000000u /* and then again: the real clock may be slewed */
#define TICKS_PER_NS_MOST 16
/* The rate is made lower by 2^-SLOWER_SHIFT, so that the clock does not run ahead. A reading that
 * takes READ_TICKS_MOST makes it wrong by less, if the counter has 800 MHz or more. */
#define SLOWER_SHIFT 12
#define READ_TICKS_MOST 1900

/* Whether the processor's time stamp counter is invariant: it has the same rate at every clock
 * frequency and in every sleep state. Asking is slow in a virtual machine. */
static bool is_invariant(void)
{
#ifdef __x86_64__
    unsigned a, b, c, d;
    return __get_cpuid(0x80000007, &a, &b, &c, &d) && (d >> 8 & 1);
#else
    return false;
#endif
}

static void restart(struct ft_quick_clock *clock)
{
    clock->first_ns = clock->ns;
    clock->first_ticks = clock->ticks;
}

static void begin(struct ft_quick_clock *clock)
{
    clock->is_useless = !is_invariant();
    restart(clock);
}

static void measure(struct ft_quick_clock *clock)
{
    const uint64_t ns = clock->ns - clock->first_ns, ticks = clock->ticks - clock->first_ticks;
    if (ns < MEASURE_NS || (clock->most_ticks && ns < AGAIN_NS))
        return;
    restart(clock);
    const uint64_t was = clock->most_ticks ? clock->rate : 0;
    clock->most_ticks = 0;
    if (ticks < ns / TICKS_PER_NS_MOST || ticks / TICKS_PER_NS_MOST > ns)
        return;
    const uint64_t rate = (uint64_t)((double)ns / (double)ticks * 0x1p32);
    const uint64_t apart = rate > was ? rate - was : was - rate;
    if (was && apart > rate >> (SLOWER_SHIFT - 1))
        return; /* the counter has jumped, as it does when a virtual machine moves */
    clock->rate = rate - (rate >> SLOWER_SHIFT);
    clock->most_ticks = (FT_QUICK_NS << 32) / rate;
}

uint64_t ft_quick_clock_read(struct ft_quick_clock *clock, struct ft_env *env)
{
    const uint64_t before = ft_ticks();
    clock->ns = ft_now_ns(env);
    clock->ticks = ft_ticks();
    if (env != ft_env_real() || clock->is_useless)
        return clock->ns;
    if (clock->ticks - before > READ_TICKS_MOST)
        clock->ticks = 0; /* long ago: the next call reads again */
    else if (clock->first_ns == 0)
        begin(clock);
    else
        measure(clock);
    return clock->ns;
}

/*
 * The floating-point environment of one pass. A thread of the program may flush denormals to zero,
 * use another rounding mode or enable traps; the sums must not depend on that. If the control
 * register has its default value, as nearly always, entering costs one read of it.
 */
#ifndef FT_DEVICE_FPENV_H
#define FT_DEVICE_FPENV_H

#include <stdint.h>

#if defined(__x86_64__)
#define FT_MXCSR_FLAGS 0x3fu /* sticky exception flags */
#define FT_MXCSR_DEFAULT 0x1f80u

static inline uint64_t ft_fpenv_enter(void)
{
    uint32_t now = __builtin_ia32_stmxcsr();
    if ((now & ~FT_MXCSR_FLAGS) != FT_MXCSR_DEFAULT)
        __builtin_ia32_ldmxcsr(FT_MXCSR_DEFAULT);
    return now;
}

static inline void ft_fpenv_leave(uint64_t was)
{
    if ((was & ~FT_MXCSR_FLAGS) != FT_MXCSR_DEFAULT)
        __builtin_ia32_ldmxcsr((uint32_t)was);
}
#elif defined(__aarch64__)
static inline uint64_t ft_fpenv_enter(void)
{
    uint64_t now;
    __asm__ volatile("mrs %0, fpcr" : "=r"(now));
    if (now)
        __asm__ volatile("msr fpcr, %0" : : "r"((uint64_t)0));
    return now;
}

static inline void ft_fpenv_leave(uint64_t was)
{
    if (was)
        __asm__ volatile("msr fpcr, %0" : : "r"(was));
}
#else
static inline uint64_t ft_fpenv_enter(void)
{
    return 0;
}
static inline void ft_fpenv_leave(uint64_t was)
{
    (void)was;
}
#endif

#endif

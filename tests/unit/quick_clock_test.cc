/*
 * Property: the quick clock is never later than the real clock, hardly earlier, and never goes
 * back by more than that. It follows another clock exactly. It recovers when the processor's
 * counter has jumped. Method: readings of the real clock before and after each of its readings.
 */
#include <gtest/gtest.h>

#include <fstream>
#include <iterator>

extern "C" {
#include "base/quick_clock.h"
}

namespace
{

std::string content(const char *path)
{
    std::ifstream file(path);
    return {std::istreambuf_iterator<char>(file), {}};
}

/* Whether this machine's counter is invariant, and the kernel's clock made of it is fast to read.
 */
bool has_counter()
{
    std::string source = content(
        "/sys/devices/system/clocksource/clocksource0/current_clocksource");
    return content("/proc/cpuinfo").find(" nonstop_tsc") != std::string::npos &&
           (source == "tsc\n" || source == "kvm-clock\n");
}

/* Two readings that nothing interrupted are closer than that; see READ_TICKS_MOST. */
const uint64_t kEarlier = 5000;

struct Reading {
    uint64_t before, quick, after;
};

Reading read(ft_quick_clock &clock)
{
    Reading r;
    r.before = ft_now_ns(ft_env_real());
    r.quick = ft_quick_now_ns(&clock, ft_env_real());
    r.after = ft_now_ns(ft_env_real());
    return r;
}

void expect_right(const Reading &r)
{
    EXPECT_LE(r.quick, r.after);
    EXPECT_GE(r.quick + kEarlier, r.before);
}

/* Reads for so long. Returns how many readings there were, and how many used the counter. */
std::pair<int, int> read_for(ft_quick_clock &clock, uint64_t time_ns)
{
    int all = 0, quick = 0;
    for (uint64_t end = ft_now_ns(ft_env_real()) + time_ns; ft_now_ns(ft_env_real()) < end; all++) {
        const uint64_t ticks = clock.ticks;
        expect_right(read(clock));
        quick += ticks == clock.ticks;
    }
    return {all, quick};
}

/* Reads until the clock has measured its rate, which takes it 10 ms. */
bool knows_its_rate(ft_quick_clock &clock)
{
    for (uint64_t end = ft_now_ns(ft_env_real()) + UINT64_C(10000000000);
         clock.most_ticks == 0 && ft_now_ns(ft_env_real()) < end;)
        expect_right(read(clock));
    return clock.most_ticks > 0;
}

/* The clock after a reading of the real one that nothing interrupted. */
ft_quick_clock read_at_once(ft_quick_clock clock)
{
    do
        ft_quick_clock_read(&clock, ft_env_real());
    while (clock.ticks == 0);
    return clock;
}

TEST(QuickClock, StaysBesideTheRealClock)
{
    if (!has_counter())
        GTEST_SKIP() << "no processor with an invariant counter that is the system's clock";
    ft_quick_clock clock = {};
    ASSERT_TRUE(knows_its_rate(clock));
    const ft_quick_clock first = read_at_once(clock);
    auto [all, quick] = read_for(clock, 1500000000); /* the rate is measured again after a second */
    EXPECT_GT(quick, all / 2);
    EXPECT_LT(quick, all);
    clock = read_at_once(clock);
    EXPECT_LT(double(clock.rate) / 0x1p32,
              double(clock.ns - first.ns) / double(clock.ticks - first.ticks));
}

TEST(QuickClock, AJumpOfTheCounterIsFound)
{
    if (!has_counter())
        GTEST_SKIP() << "no processor with an invariant counter that is the system's clock";
    ft_quick_clock clock = {};
    ASSERT_TRUE(knows_its_rate(clock));
    for (uint64_t jump : {uint64_t(1) << 30, uint64_t(0) - (uint64_t(1) << 30)}) {
        clock.ticks += jump; /* as if it had jumped the other way */
        clock.first_ticks += jump;
        expect_right(read(clock));
        read_for(clock, 1100000000);
        EXPECT_TRUE(knows_its_rate(clock));
    }
}

TEST(QuickClock, AWrongRateIsMeasuredAgain)
{
    if (!has_counter())
        GTEST_SKIP() << "no processor with an invariant counter that is the system's clock";
    ft_quick_clock clock = {};
    ASSERT_TRUE(knows_its_rate(clock));
    clock.first_ns -= 1000000000; /* a second ago, so that it measures again */
    clock.first_ticks -= uint64_t(1e9 / double(clock.rate) * 0x1p32);
    clock.rate += clock.rate / 64;
    clock = read_at_once(clock);
    EXPECT_EQ(clock.most_ticks, 0u);
    EXPECT_TRUE(knows_its_rate(clock));
}

/* Goes with the real clock until it is stopped. */
struct Stoppable {
    bool stopped = false;
    uint64_t now_ns = 0;
};

uint64_t stoppable_ns(ft_env *env)
{
    auto *clock = static_cast<Stoppable *>(env->ctx);
    if (!clock->stopped)
        clock->now_ns = ft_now_ns(ft_env_real());
    return clock->now_ns;
}

TEST(QuickClock, FollowsAnotherClock)
{
    Stoppable other;
    ft_env env = {stoppable_ns, nullptr, &other};
    ft_quick_clock clock = {};
    for (uint64_t begin = ft_now_ns(&env); ft_now_ns(&env) < begin + 50000000;)
        ft_quick_now_ns(&clock, &env);
    other.stopped = true;
    for (int i = 0; i < 1000; i++)
        EXPECT_EQ(ft_quick_now_ns(&clock, &env), other.now_ns);
}

} // namespace

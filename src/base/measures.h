/*
 * What is measured of links, clocks and threads: the library writes it into its telemetry, and the
 * diagnosis reads it.
 */
#ifndef FT_MEASURES_H
#define FT_MEASURES_H

#include <stdint.h>

/* How long large messages wait, those of FT_LARGE_BYTES and more. CREDIT: until the link takes one
 * from its sender, which has called; it waits for messages that the receiver has not taken.
 * NETWORK: from then on until the other host has all of it but the last segments; a sample, over
 * TCP. Both are the sender's. CONSUMER: in the receiver's memory, until the receiver takes it.
 * Bucket i counts what took less than 16 us * 4^i, the last one all the rest. */
#define FT_LARGE_BYTES 16384
#define FT_LATENCY_BUCKETS 8
#define FT_LATENCY_FIRST_NS 16000u
enum ft_latency_part {
    FT_LATENCY_CREDIT,
    FT_LATENCY_NETWORK,
    FT_LATENCY_CONSUMER,
    FT_LATENCY_PARTS
};
struct ft_latency {
    uint64_t count, sum_ns, max_ns;
    uint32_t bucket[FT_LATENCY_BUCKETS];
};
static inline void ft_latency_add(struct ft_latency *latency, uint64_t ns)
{
    unsigned i = ns < FT_LATENCY_FIRST_NS
                     ? 0
                     : (65 - (unsigned)__builtin_clzll(ns / FT_LATENCY_FIRST_NS)) / 2;
    latency->count++;
    latency->sum_ns += ns;
    latency->max_ns = ft_max(latency->max_ns, ns);
    latency->bucket[ft_min(i, FT_LATENCY_BUCKETS - 1)]++;
}

/* Where a peer's clock (CLOCK_MONOTONIC) is: peer's = own + offset_ns, off by error_ns at most when
 * it was measured; clocks drift by up to FT_CLOCK_DRIFT_PPM since. */
#define FT_CLOCK_DRIFT_PPM 100
struct ft_clock {
    int64_t offset_ns;
    uint64_t error_ns;
    uint64_t measured_ns, seen_ns; /* own clock: of these values, and of the latest round */
};

/* The calls of a user's thread that the table of threads names, beside enum ft_kind. */
#define FT_THREAD_CALLS(X)       \
    X(FINALIZE, "CommFinalize")  \
    X(DESTROY, "CommDestroy")    \
    X(ABORT, "CommAbort")        \
    X(SPLIT, "CommSplit")        \
    X(SHRINK, "CommShrink")      \
    X(GROW, "CommGrow")          \
    X(AGREE, "CommAgree")        \
    X(SYNC, "StreamSynchronize") \
    X(GROUP, "GroupEnd")
enum ft_thread_call {
    FT_THREAD_NONE,
    FT_THREAD_KIND, /* + enum ft_kind */
    FT_THREAD_OTHER = 32,
#define X(name, text) FT_THREAD_##name,
    FT_THREAD_CALLS(X)
#undef X
        FT_THREAD_END
};
const char *ft_thread_call_name(unsigned call);

#endif

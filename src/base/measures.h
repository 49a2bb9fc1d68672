/*
 * What is measured of links, clocks and threads, and in a validation: the library writes it into
 * its telemetry, and the diagnosis reads it.
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
#define FT_THREAD_CALLS(X)           \
    X(FINALIZE, "CommFinalize")      \
    X(DESTROY, "CommDestroy")        \
    X(ABORT, "CommAbort")            \
    X(SPLIT, "CommSplit")            \
    X(SHRINK, "CommShrink")          \
    X(GROW, "CommGrow")              \
    X(AGREE, "CommAgree")            \
    X(SYNC, "StreamSynchronize")     \
    X(GROUP, "GroupEnd")             \
    X(INIT, "CommInit")              \
    X(REVOKE, "CommRevoke")          \
    X(STREAM_END, "StreamDestroy")   \
    X(MEMBER_JOIN, "MemberJoin")     \
    X(MEMBER_VIEW, "MemberView")     \
    X(MEMBER_COMMIT, "MemberCommit") \
    X(MEMBER_LEAVE, "MemberLeave")
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

/* ---- a validation ---------------------------------------------------------------------------- */

/* NONE: it has not come to that. MEASURED: all rounds; CUT: the time was over before. SILENT:
 * nothing came. */
enum ft_measured_state { FT_MEASURED_NONE, FT_MEASURED_ALL, FT_MEASURED_CUT, FT_MEASURED_SILENT };

/* One link, as its receiver has measured it: the fastest of some rounds. */
struct ft_measured {
    int32_t peer;  /* rank */
    uint8_t sends; /* 1: from this rank to the peer */
    uint8_t state; /* enum ft_measured_state */
    uint16_t rounds;
    uint64_t bytes, ns;                      /* so many bytes took so long */
    char transport[FT_TRANSPORT_NAME_BYTES]; /* "": it has no link yet */
};
#define FT_MEASURED_MOST 16

/* WAITING: calls are held until all ranks are there. GIVEN_UP: nothing was measured; `why` says why
 * not. */
enum ft_validation_state {
    FT_VALIDATION_NONE,
    FT_VALIDATION_WAITING,
    FT_VALIDATION_MEASURING,
    FT_VALIDATION_DONE,
    FT_VALIDATION_GIVEN_UP
};
#define FT_VALIDATION_WHYS(X)                                                                 \
    X(NONE, "")                                                                               \
    X(BUSY, "another validation is under way")                                                \
    X(LATE, "a rank did not come to the same collective in half of the pause's time")         \
    X(QUIET, "no common collective was called in time")                                       \
    X(UNFIT, "it has one rank, has failed, is gone, or runs its operations at the same time") \
    X(FAILED, "the communicator failed or was destroyed")                                     \
    X(NOMEM, "a rank had no memory for it")                                                   \
    X(LIMIT, "the time limit of a rank's operations is not 4 times the pause")                \
    X(GONE, "the process that was asked has ended")
enum ft_validation_why {
#define X(name, text) FT_WHY_##name,
    FT_VALIDATION_WHYS(X)
#undef X
        FT_VALIDATION_WHY_COUNT
};

/* What a rank tells of the latest validation in which it took part. */
struct ft_validation {
    uint64_t number, ctx;
    int32_t rank;
    uint16_t state, why; /* enum ft_validation_state, enum ft_validation_why */
    uint64_t seq;        /* collectives that had started when it paused */
    /* when the rank began to hold a call (0: it held none), to measure (0: it did not), and when
     * the validation was over for it */
    uint64_t held_ns, start_ns, end_ns;
    /* The fastest copy of FT_CHECK_COPY_BYTES, and product of two matrices; 0: not measured. */
    uint64_t copy_ns, product_ns;
    uint64_t check_ns; /* the time of all copies and products ... */
    uint32_t checks;   /* ... which were so many of each */
    uint16_t gpu;      /* 1: its buffers may be on a GPU, which was not measured */
    uint16_t nlinks;
    struct ft_measured links[FT_MEASURED_MOST];
};

#endif

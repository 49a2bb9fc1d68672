/*
 * The fault campaign: one program that is the driver, which breaks things, and the worker, which
 * computes and goes on. Here is what both know: the page of memory they share, the calls that a
 * worker makes, and the lines that it prints.
 *
 * U <id>                         the job's unique id (the worker with rank 0)
 *
 * M <gen> <ns> <rank> <wid>...   in a communicator that works; ranks in order
 *
 * E <ns> <code> <call> <text>    an operation or call gave this recoverable error
 *
 * D <gen> <op> <done> <issued> <n> <wid>...
 *                                Shrink of communicator gen: last agreed operation, what this rank
 *                                had complete and begun, who had failed, and who goes on
 *
 * G <serial> <n> <id>            joiners for ranks n... may come
 *
 * H <serial> <code> <ns>         the grow is over
 *
 * X <why> <text>                 ends: fenced, excluded, noquorum, init, join
 *
 * Z <descriptors> <threads> <rss KiB>
 *                                ends in order; more than before the first communicator
 *
 * F <text>                       something is wrong
 */
#ifndef FT_TESTS_CAMPAIGN_H
#define FT_TESTS_CAMPAIGN_H

#include <ftccl.h>

#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

namespace campaign
{

/* clang-format off */
#define CAMPAIGN_CALLS(X) \
    X(AllReduce) \
    X(Reduce) \
    X(Broadcast) \
    X(AllGather) \
    X(ReduceScatter) \
    X(AlltoAll) \
    X(Gather) \
    X(Scatter) \
    X(SendRecv) \
    X(Group) \
    X(PutSignal) \
    X(WindowRegister) \
    X(Split) \
    X(Agree) \
    X(ShrinkList) \
    X(BigAllReduce) \
    X(Repeated) \
    X(Idle) \
    X(Init) \
    X(Grow) \
    X(Finalize) \
    X(Shrink)
/* clang-format on */

enum Call {
#define X(name) CALL_##name,
    CAMPAIGN_CALLS(X)
#undef X
        CALL_COUNT
};
constexpr int RANDOM_CALLS = CALL_Init; /* random draws use only the calls before this one */
extern const char *const call_names[CALL_COUNT];

enum Control : uint32_t { CONTROL_NONE, CONTROL_GROW, CONTROL_STOP };
constexpr int MAX_WORKERS = 512; /* of one job, over its whole life */

/* Shared memory. The driver writes `control`, the workers write `call`; the other side reads at any
 * time. */
struct Page {
    std::atomic<uint64_t> control; /* serial << 32 | kind << 16 | number of joiners */
    std::atomic<uint32_t> call[MAX_WORKERS];
    std::atomic<uint32_t> rounds[MAX_WORKERS]; /* calls that ended successfully */
};

struct WorkerOptions {
    int wid = 0, nranks = 1, rank = 0, page = -1;
    bool join = false;
    uint64_t seed = 0;
    size_t ballast_bytes = 0;
    std::string id; /* hexadecimal; "": rank 0 makes one */
};
int worker_main(const WorkerOptions &options);

/* A communicator, and what this rank has done on it. */
struct World {
    ftcclComm_t comm = nullptr;
    ftcclStream_t stream = nullptr;
    int n = 0, rank = -1;
    uint64_t gen = 0, issued = 0, done = 0;
    std::vector<int> members; /* worker numbers */
};

/* Makes one call, waits, and checks the data. The call is the same on all ranks, because `random`
 * is. Returns the first error; reports a wrong result on stdout. */
ftcclResult_t make_call(World &world, Call call, uint64_t random);
/* Counts an operation that the library counts as a collective, and waits for it. */
ftcclResult_t finish_ops(World &world, ftcclResult_t enqueued, uint64_t collectives);
void complain(const char *format, ...) __attribute__((format(printf, 1, 2)));

int64_t now_ns();
int slowdown();           /* how many times longer everything may take: FT_TEST_SLOWDOWN */
uint64_t mix(uint64_t x); /* a well-mixed hash of x */
std::string to_hex(const ftcclUniqueId &id);
ftcclUniqueId from_hex(const std::string &text);

} // namespace campaign

#endif

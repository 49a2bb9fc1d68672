/* The calls of a worker. Every value is a function of (random, rank, index), so each result is
 * known exactly. */
#include <unistd.h>

#include <algorithm>

#include "tests/campaign/campaign.h"

namespace campaign
{

namespace
{

using Data = std::vector<int64_t>;

int64_t value(uint64_t random, int rank, size_t i)
{
    return static_cast<int64_t>(mix(random + static_cast<uint64_t>(rank) * 7919 + i) >> 24);
}

Data values(uint64_t random, int rank, size_t count)
{
    Data data(count);
    for (size_t i = 0; i < count; i++)
        data[i] = value(random, rank, i);
    return data;
}

int64_t sum(uint64_t random, int n, size_t i)
{
    int64_t total = 0;
    for (int r = 0; r < n; r++)
        total += value(random, r, i);
    return total;
}

void check(const World &w, const char *what, size_t i, int64_t got, int64_t want)
{
    if (got == want)
        return;
    complain("%s on rank %d of %d: element %zu is %lld instead of %lld", what, w.rank, w.n, i,
             static_cast<long long>(got), static_cast<long long>(want));
}

size_t a_count(uint64_t random)
{
    switch (random % 4) {
    case 0:
        return 1 + random / 4 % 8;
    case 1:
        return 1 + random / 4 % 500;
    case 2:
        return 1 + random / 4 % 5000;
    default:
        return 1 + random / 4 % 30000;
    }
}

/* The sum at everybody or at a root; `step` skips elements when checking large ones. */
ftcclResult_t reduce(World &w, uint64_t random, size_t count, int root, size_t step)
{
    Data in = values(random, w.rank, count), out(count);
    ftcclResult_t result = root < 0 ? ftcclAllReduce(in.data(), out.data(), count, ftcclInt64,
                                                     ftcclSum, w.comm, w.stream)
                                    : ftcclReduce(in.data(), out.data(), count, ftcclInt64,
                                                  ftcclSum, root, w.comm, w.stream);
    result = finish_ops(w, result, 1);
    if (result != ftcclSuccess || (root >= 0 && root != w.rank))
        return result;
    for (size_t i = 0; i < count; i += step)
        check(w, root < 0 ? "AllReduce" : "Reduce", i, out[i], sum(random, w.n, i));
    return result;
}

/* Equal short calls, which soon enter no queue. */
ftcclResult_t repeated(World &w, uint64_t random)
{
    size_t count = 1 + random / 4 % 64;
    uint64_t root = mix(random) / 64 % static_cast<uint64_t>(w.n);
    ftcclResult_t result = ftcclSuccess;
    for (uint64_t i = 0; i < 50 && result == ftcclSuccess; i++)
        result = reduce(w, random + i, count, random % 4 ? -1 : static_cast<int>(root), 1);
    return result;
}

ftcclResult_t broadcast(World &w, uint64_t random)
{
    size_t count = a_count(random);
    int root = static_cast<int>(mix(random) % static_cast<uint64_t>(w.n));
    Data data = values(random, w.rank, count);
    ftcclResult_t result = finish_ops(
        w, ftcclBroadcast(data.data(), data.data(), count, ftcclInt64, root, w.comm, w.stream), 1);
    for (size_t i = 0; i < count && result == ftcclSuccess; i++)
        check(w, "Broadcast", i, data[i], value(random, root, i));
    return result;
}

ftcclResult_t allgather(World &w, uint64_t random)
{
    size_t count = a_count(random), n = static_cast<size_t>(w.n);
    Data in = values(random, w.rank, count), out(count * n);
    ftcclResult_t result = finish_ops(
        w, ftcclAllGather(in.data(), out.data(), count, ftcclInt64, w.comm, w.stream), 1);
    for (size_t i = 0; i < out.size() && result == ftcclSuccess; i++)
        check(w, "AllGather", i, out[i], value(random, static_cast<int>(i / count), i % count));
    return result;
}

ftcclResult_t reduce_scatter(World &w, uint64_t random)
{
    size_t count = a_count(random), n = static_cast<size_t>(w.n),
           first = static_cast<size_t>(w.rank) * count;
    Data in = values(random, w.rank, count * n), out(count);
    ftcclResult_t result = finish_ops(
        w, ftcclReduceScatter(in.data(), out.data(), count, ftcclInt64, ftcclSum, w.comm, w.stream),
        1);
    for (size_t i = 0; i < count && result == ftcclSuccess; i++)
        check(w, "ReduceScatter", i, out[i], sum(random, w.n, first + i));
    return result;
}

ftcclResult_t alltoall(World &w, uint64_t random)
{
    size_t count = a_count(random) / 4 + 1, n = static_cast<size_t>(w.n),
           mine = static_cast<size_t>(w.rank) * count;
    Data in = values(random, w.rank, count * n), out(count * n);
    ftcclResult_t result = finish_ops(
        w, ftcclAlltoAll(in.data(), out.data(), count, ftcclInt64, w.comm, w.stream), 1);
    for (size_t i = 0; i < out.size() && result == ftcclSuccess; i++)
        check(w, "AlltoAll", i, out[i],
              value(random, static_cast<int>(i / count), mine + i % count));
    return result;
}

ftcclResult_t gather(World &w, uint64_t random)
{
    size_t count = a_count(random), n = static_cast<size_t>(w.n);
    int root = static_cast<int>(mix(random) % n);
    Data in = values(random, w.rank, count), out(w.rank == root ? count * n : 0);
    ftcclResult_t result = finish_ops(
        w, ftcclGather(in.data(), out.data(), count, ftcclInt64, root, w.comm, w.stream), 1);
    for (size_t i = 0; i < out.size() && result == ftcclSuccess; i++)
        check(w, "Gather", i, out[i], value(random, static_cast<int>(i / count), i % count));
    return result;
}

ftcclResult_t scatter(World &w, uint64_t random)
{
    size_t count = a_count(random), n = static_cast<size_t>(w.n),
           mine = static_cast<size_t>(w.rank) * count;
    int root = static_cast<int>(mix(random) % n);
    Data in = w.rank == root ? values(random, root, count * n) : Data(), out(count);
    ftcclResult_t result = finish_ops(
        w, ftcclScatter(in.data(), out.data(), count, ftcclInt64, root, w.comm, w.stream), 1);
    for (size_t i = 0; i < count && result == ftcclSuccess; i++)
        check(w, "Scatter", i, out[i], value(random, root, mine + i));
    return result;
}

/* Round a ring; in a group, where a rank may also send to itself. */
ftcclResult_t sendrecv(World &w, uint64_t random, bool with_collectives)
{
    size_t count = a_count(random);
    int shift = 1 + static_cast<int>(mix(random) % 3), to = (w.rank + shift) % w.n,
        from = (w.rank + w.n * shift - shift) % w.n;
    Data in = values(random, w.rank, count), out(count), total(count),
         all(static_cast<size_t>(w.n));
    ftcclResult_t result = ftcclGroupStart();
    if (result == ftcclSuccess) {
        if (with_collectives)
            ftcclAllReduce(in.data(), total.data(), count, ftcclInt64, ftcclSum, w.comm, w.stream);
        ftcclSend(in.data(), count, ftcclInt64, to, w.comm, w.stream);
        ftcclRecv(out.data(), count, ftcclInt64, from, w.comm, w.stream);
        if (with_collectives)
            ftcclAllGather(in.data(), all.data(), 1, ftcclInt64, w.comm, w.stream);
        result = ftcclGroupEnd();
    }
    result = finish_ops(w, result, with_collectives ? 2 : 0);
    for (size_t i = 0; i < count && result == ftcclSuccess; i++) {
        check(w, "Recv", i, out[i], value(random, from, i));
        if (with_collectives)
            check(w, "AllReduce in a group", i, total[i], sum(random, w.n, i));
    }
    for (size_t i = 0; i < all.size() && with_collectives && result == ftcclSuccess; i++)
        check(w, "AllGather in a group", i, all[i], value(random, static_cast<int>(i), 0));
    return result;
}

/* A window on every rank; with `put`, each puts into its right neighbour's and waits for its left
 * one. */
ftcclResult_t window(World &w, uint64_t random, bool put)
{
    size_t count = a_count(random);
    int to = (w.rank + 1) % w.n, from = (w.rank + w.n - 1) % w.n;
    Data in = values(random, w.rank, count), mine(count);
    ftcclWindow_t win = nullptr;
    w.issued++;
    ftcclResult_t result = ftcclCommWindowRegister(w.comm, mine.data(), count * sizeof(int64_t),
                                                   &win, FTCCL_WIN_DEFAULT);
    if (result != ftcclSuccess)
        return result;
    w.done++;
    if (put && w.n > 1) {
        ftcclWaitSignalDesc_t wait{1, from, 0, 0};
        result = ftcclPutSignal(in.data(), count, ftcclInt64, to, win, 0, 0, 0, 0, w.comm,
                                w.stream);
        if (result == ftcclSuccess)
            result = ftcclWaitSignal(1, &wait, w.comm, w.stream);
        ftcclResult_t passed = ftcclStreamSynchronize(w.stream);
        if (result == ftcclSuccess)
            result = passed;
        for (size_t i = 0; i < count && result == ftcclSuccess; i++)
            check(w, "PutSignal", i, mine[i], value(random, from, i));
        /* nobody puts any more */
        if (result == ftcclSuccess)
            result = reduce(w, random + 1, 1, -1, 1);
    }
    ftcclResult_t left = ftcclCommWindowDeregister(w.comm, win);
    if (left != ftcclSuccess)
        complain("WindowDeregister gives %d: %s", left, ftcclGetLastError(nullptr));
    return result;
}

/* One all-reduce on a communicator that came from w, then finalize and destroy. */
ftcclResult_t use_child(World &w, ftcclComm_t comm, uint64_t random, int want)
{
    World child;
    child.comm = comm;
    child.stream = w.stream;
    ftcclCommCount(comm, &child.n);
    ftcclCommUserRank(comm, &child.rank);
    if (child.n != want)
        complain("a child has %d ranks instead of %d", child.n, want);
    ftcclResult_t result = reduce(child, random, a_count(random), -1, 1);
    ftcclResult_t end = result == ftcclSuccess ? ftcclCommFinalize(comm) : result;
    ftcclResult_t freed = result == ftcclSuccess ? ftcclCommDestroy(comm) : ftcclCommAbort(comm);
    return result != ftcclSuccess ? result : end != ftcclSuccess ? end : freed;
}

ftcclResult_t split(World &w, uint64_t random)
{
    int colors = 1 + static_cast<int>(mix(random) % 3), color = w.rank % colors;
    ftcclComm_t comm = nullptr;
    w.issued++;
    ftcclResult_t result = ftcclCommSplit(w.comm, color, -w.rank, &comm, nullptr);
    if (result != ftcclSuccess)
        return result;
    w.done++;
    return use_child(w, comm, random, (w.n - color + colors - 1) / colors);
}

ftcclResult_t agree(World &w, uint64_t random)
{
    uint64_t flags = ~(uint64_t{1} << (w.rank % 64)), want = ~uint64_t{0};
    for (int r = 0; r < w.n; r++)
        want &= ~(uint64_t{1} << (r % 64));
    flags |= mix(random) << 32;
    want |= mix(random) << 32;
    ftcclResult_t result = ftcclCommAgree(w.comm, &flags);
    int failed = 0;
    ftcclCommGetFailedRanks(w.comm, nullptr, 0, &failed);
    if (result == ftcclSuccess && failed > 0)
        return ftcclRemoteError; /* agreed, but not by all */
    if (result == ftcclSuccess && w.n <= 32 && flags != want)
        complain("Agree gives %llx instead of %llx", static_cast<unsigned long long>(flags),
                 static_cast<unsigned long long>(want));
    return result;
}

/* Without one rank that lives; the parent goes on. Everybody came through Agree first, so nobody is
 * in a recovery. */
ftcclResult_t shrink_list(World &w, uint64_t random)
{
    if (w.n < 2)
        return ftcclSuccess;
    ftcclResult_t result = agree(w, random);
    if (result != ftcclSuccess)
        return result;
    int out = static_cast<int>(mix(random) % static_cast<uint64_t>(w.n)), failed = 0;
    ftcclComm_t comm = nullptr;
    result = ftcclCommShrink(w.comm, w.rank == out ? nullptr : &out, w.rank == out ? 0 : 1, &comm,
                             nullptr, FTCCL_SHRINK_DEFAULT);
    ftcclCommGetFailedRanks(w.comm, nullptr, 0, &failed);
    if (failed > 0) { /* somebody died before the agreement: everyone goes on by another shrink */
        if (comm)
            ftcclCommAbort(comm);
        return ftcclRemoteError;
    }
    if (w.rank == out) {
        if (result != ftcclInvalidUsage && result != ftcclSystemError &&
            ftcclGetErrorClass(result) != ftcclClassRecoverable)
            complain("a rank on the list got %d: %s", result, ftcclGetLastError(nullptr));
        return result == ftcclInvalidUsage ? ftcclSuccess : result;
    }
    return result == ftcclSuccess ? use_child(w, comm, random, w.n - 1) : result;
}

} // namespace

ftcclResult_t make_call(World &w, Call call, uint64_t random)
{
    switch (call) {
    case CALL_AllReduce:
        return reduce(w, random, a_count(random), -1, 1);
    case CALL_Reduce:
        return reduce(w, random, a_count(random),
                      static_cast<int>(mix(random) % static_cast<uint64_t>(w.n)), 1);
    case CALL_Broadcast:
        return broadcast(w, random);
    case CALL_AllGather:
        return allgather(w, random);
    case CALL_ReduceScatter:
        return reduce_scatter(w, random);
    case CALL_AlltoAll:
        return alltoall(w, random);
    case CALL_Gather:
        return gather(w, random);
    case CALL_Scatter:
        return scatter(w, random);
    case CALL_SendRecv:
        return sendrecv(w, random, false);
    case CALL_Group:
        return sendrecv(w, random, true);
    case CALL_PutSignal:
        return window(w, random, true);
    case CALL_WindowRegister:
        return window(w, random, false);
    case CALL_Split:
        return split(w, random);
    case CALL_Agree:
        return agree(w, random);
    case CALL_ShrinkList:
        return shrink_list(w, random);
    case CALL_BigAllReduce:
        return reduce(w, random, (size_t{1} << 17) + random % 1000, -1, 997);
    case CALL_Repeated:
        return repeated(w, random);
    default:
        usleep(2000);
        return ftcclSuccess; /* idle */
    }
}

} // namespace campaign

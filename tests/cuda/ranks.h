/*
 * Ranks on the stand-in driver, for tests: threads with a stream and a context each, buffers of the
 * device, and waits with a bound.
 */
#ifndef FT_TESTS_CUDA_RANKS_H
#define FT_TESTS_CUDA_RANKS_H

#include <unistd.h>

#include <memory>

#include "tests/cuda/standin.h"
#include "tests/proc/proc.h"

namespace gpu
{

template <class F> bool soon(F done, double seconds = 60)
{
    bool is = done();
    for (double end = proc::now() + seconds; !is && proc::now() < end; is = done())
        usleep(200);
    return is;
}

inline bool idle(CUstream stream)
{
    bool is = cuStreamQuery(stream) == CUDA_SUCCESS;
    if (is)
        standin_settle(stream);
    return is;
}
inline ftcclStream_t as(CUstream stream)
{
    return reinterpret_cast<ftcclStream_t>(stream);
}

/* `n` elements on the device. */
template <class T> struct Buffer {
    CUdeviceptr at = 0;
    size_t n;
    explicit Buffer(size_t n_) : n(n_)
    {
        EXPECT_EQ(cuMemAlloc(&at, n * sizeof(T) + 1), CUDA_SUCCESS);
    }
    ~Buffer()
    {
        cuMemFree(at);
    }
    Buffer(const Buffer &) = delete;
    T *ptr() const
    {
        return reinterpret_cast<T *>(at);
    }
    void put(const std::vector<T> &from, CUstream stream)
    {
        standin_put(at, from.data(), n * sizeof(T), stream);
    }
    void get(std::vector<T> &to, CUstream stream)
    {
        standin_get(to.data(), at, n * sizeof(T), stream);
    }
};

/* Ranks as threads, each with a CUDA stream. */
struct Job {
    std::vector<ftcclComm_t> comm;
    std::vector<CUstream> stream;
    Job(int n, const char *transports, int64_t op_timeout_ms = 60000, int preserve = 0,
        int64_t on_failure = FTCCL_OPTION_UNDEF, int verify = 0)
        : comm(static_cast<size_t>(n)), stream(static_cast<size_t>(n))
    {
        ftcclUniqueId id;
        standin_enter();
        EXPECT_OK(ftcclGetUniqueId(&id));
        each([&](int r) {
            ftcclOptions_t options = FTCCL_OPTIONS_INITIALIZER;
            options.transports = transports;
            options.opTimeoutMs = op_timeout_ms;
            options.preserveInput = preserve;
            options.onFailure = on_failure;
            options.verify = verify;
            ftcclConfig_t config = FTCCL_CONFIG_INITIALIZER;
            config.options = &options;
            EXPECT_OK(ftcclCommInitRankConfig(&comm[static_cast<size_t>(r)], n, id, r, &config));
            EXPECT_EQ(cuStreamCreate(&stream[static_cast<size_t>(r)], CU_STREAM_NON_BLOCKING),
                      CUDA_SUCCESS);
        });
    }
    ~Job()
    {
        each([&](int r) {
            if (!comm[static_cast<size_t>(r)])
                return;
            EXPECT_OK(ftcclCommDestroy(comm[static_cast<size_t>(r)]));
        });
        for (CUstream s : stream)
            cuStreamDestroy(s);
    }
    int size() const
    {
        return static_cast<int>(comm.size());
    }
    void each(const std::function<void(int)> &f) const
    {
        proc::in_threads(size(), [&](int r) {
            standin_enter();
            f(r);
        });
    }
    ftcclResult_t state(int r) const
    {
        ftcclResult_t result = ftcclSuccess;
        EXPECT_OK(ftcclCommGetAsyncError(comm[static_cast<size_t>(r)], &result));
        return result;
    }
};

template <class T> std::vector<T> numbers(size_t n, int seed)
{
    std::vector<T> out(n);
    for (size_t i = 0; i < n; i++)
        out[i] = static_cast<T>((i * 7 + static_cast<size_t>(seed) * 13) % 50);
    return out;
}

/* Each rank copies in, reduces and copies out on its stream, in place or not. The host waits once,
 * at the end. All ranks have copied in before the first one calls: with CUDA_LAUNCH_BLOCKING a copy
 * waits for the kernels of the process, and those for the ranks that have not called yet. */
template <class T> void reduces(const Job &job, size_t count, ftcclDataType_t type, bool in_place)
{
    std::vector<T> want(count);
    std::vector<std::unique_ptr<Buffer<T>>> ins, outs;
    for (int r = 0; r < job.size(); r++) {
        std::vector<T> one = numbers<T>(count, r);
        for (size_t i = 0; i < count; i++)
            want[i] = static_cast<T>(want[i] + one[i]);
        ins.push_back(std::make_unique<Buffer<T>>(count));
        outs.push_back(std::make_unique<Buffer<T>>(count));
    }
    job.each([&](int r) {
        size_t at = static_cast<size_t>(r);
        ins[at]->put(numbers<T>(count, r), job.stream[at]);
    });
    job.each([&](int r) {
        size_t at = static_cast<size_t>(r);
        CUstream stream = job.stream[at];
        Buffer<T> &a = *ins[at], &b = *outs[at];
        std::vector<T> out(count), after(count);
        EXPECT_OK(ftcclAllReduce(a.ptr(), in_place ? a.ptr() : b.ptr(), count, type, ftcclSum,
                                 job.comm[at], as(stream)));
        (in_place ? a : b).get(out, stream);
        a.get(after, stream);
        EXPECT_TRUE(soon([&] { return idle(stream); }));
        EXPECT_TRUE(out == want) << "rank " << r << " of " << job.size() << ", count " << count;
        EXPECT_TRUE(in_place || after == numbers<T>(count, r)) << "the input changed";
    });
}

} // namespace gpu

#endif

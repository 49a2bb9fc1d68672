/*
 * Property: a queue of the CUDA device holds the user's streams from the place of a run until the
 * run is declared over, in order, on any number of streams. Nothing it does waits for a kernel. If
 * the driver refuses something, the error has the driver's words. A stream that does not move does
 * not prevent closing. A kernel to which nobody speaks ends. Method: the stand-in driver, with
 * faults and blocked streams. All waits are bounded.
 */
#include "standin.h"
#include <chrono>
#include <gtest/gtest.h>
#include <thread>
#include <vector>
extern "C" {
#include "device/device.h"
}

extern "C" { /* more.cc */
int standin_lowest_priority();
int standin_is_loaded();
void standin_threads(int most);
}

template <class F> static bool soon(F done)
{
    bool is = done();
    for (auto end = std::chrono::steady_clock::now() + std::chrono::seconds(60);
         !is && std::chrono::steady_clock::now() < end; is = done())
        std::this_thread::sleep_for(std::chrono::microseconds(200));
    return is;
}

class Queue : public testing::Test
{
  protected:
    ft_device *device = nullptr;
    ft_device_queue *queue = nullptr;
    const ft_device_queue_ops *ops = nullptr;
    CUstream a = nullptr, b = nullptr;
    int live = 0; /* with the device open, and without the queue */

    void SetUp() override
    {
        choose("cuda");
        ASSERT_EQ(ft_device_open_gpu(ft_device_gpu_of_thread(), &device), FT_OK) << ft_fail_text();
        ASSERT_NE(device, nullptr);
        live = standin_live_memory();
        ops = device->ops->queue;
        ASSERT_EQ(ops->open(device, 0, &queue), FT_OK) << ft_fail_text();
        standin_enter();
        cuDevicePrimaryCtxRelease(0); /* the device keeps it */
        ASSERT_EQ(cuStreamCreate(&a, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
        ASSERT_EQ(cuStreamCreate(&b, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
    }
    void TearDown() override
    {
        close();
        cuStreamDestroy(a);
        cuStreamDestroy(b);
        cuCtxSetCurrent(nullptr);
        if (device)
            ft_device_close(device);
        choose("");
    }
    void close()
    {
        if (queue)
            ops->close(queue);
        queue = nullptr;
    }
    static void choose(const char *name)
    {
        setenv("FTCCL_DEVICE", name, 1);
        ft_params_reload();
    }
    uint64_t after(std::vector<CUstream> streams)
    {
        uint64_t run = 0;
        EXPECT_EQ(behind(streams, &run), FT_OK) << ft_fail_text();
        return run;
    }
    /* A run behind the streams, and they behind it. */
    int behind(std::vector<CUstream> streams, uint64_t *run)
    {
        int rc = ops->after(queue, (void *const *)streams.data(), (int)streams.size(), run);
        return rc == FT_OK ? ops->hold(queue, (void *const *)streams.data(), (int)streams.size())
                           : rc;
    }
    bool reached(uint64_t run)
    {
        return ops->reached(queue, nullptr, run) == FT_OK;
    }
    static bool idle(CUstream stream)
    {
        return cuStreamQuery(stream) == CUDA_SUCCESS;
    }
};

TEST_F(Queue, HoldsEveryStreamUntilTheRunIsOver)
{
    uint64_t run = after({a, b, nullptr, CU_STREAM_PER_THREAD});
    EXPECT_EQ(run, 1u);
    ASSERT_TRUE(soon([&] { return reached(run); }));
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    for (CUstream stream : {a, b, (CUstream) nullptr, CU_STREAM_PER_THREAD})
        EXPECT_FALSE(idle(stream));
    ops->signal(queue, nullptr, run);
    for (CUstream stream : {a, b, (CUstream) nullptr, CU_STREAM_PER_THREAD})
        EXPECT_TRUE(soon([&] { return idle(stream); }));
}

TEST_F(Queue, RunsBeginWhenAllTheirStreamsHaveComeAndInOrder)
{
    standin_block(b);
    uint64_t both = after({a, b}), next = after({a});
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    EXPECT_EQ(ops->reached(queue, nullptr, both), FT_AGAIN);
    EXPECT_EQ(ops->reached(queue, nullptr, next), FT_AGAIN);
    standin_let_go(b);
    ASSERT_TRUE(soon([&] { return reached(both); }));
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    EXPECT_EQ(ops->reached(queue, nullptr, next), FT_AGAIN)
        << "the second began before the first was over";
    ops->signal(queue, nullptr, both);
    EXPECT_TRUE(soon([&] { return reached(next); }));
    ops->signal(queue, nullptr, next);
    EXPECT_TRUE(soon([&] { return idle(a) && idle(b); }));
}

TEST_F(Queue, ARunThatIsOverBeforeItBeginsHoldsNobody)
{
    standin_block(a);
    uint64_t run = after({a});
    ops->signal(queue, nullptr, run);
    ops->signal(queue, nullptr, run);
    standin_let_go(a);
    EXPECT_TRUE(soon([&] { return idle(a); }));
}

TEST_F(Queue, ClosingWaitsForNoStreamAndLosesNothing)
{
    standin_block(a);
    after({a});
    close();
    EXPECT_GT(standin_live_memory(), live)
        << "what the kernel will look at was freed before it ran";
    standin_let_go(a);
    EXPECT_TRUE(soon([&] { return idle(a) && standin_running() == 0; }));
    ASSERT_EQ(ops->open(device, 0, &queue), FT_OK);
    close();
    EXPECT_TRUE(soon([&] { return standin_live_memory() == live; }))
        << standin_live_memory() << " allocations, were " << live;
}

TEST_F(Queue, KernelsAreLoadedWhenTheDeviceIsOpenedAndComeFirst)
{
    EXPECT_EQ(standin_lowest_priority(), -5) << "kernels of the program's go first";
    EXPECT_TRUE(standin_is_loaded());
    ft_device *other = nullptr;
    standin_threads(256);
    EXPECT_EQ(ft_device_open_gpu(ft_device_gpu_of_thread(), &other), FT_INVAL)
        << "a launch would be refused";
    EXPECT_NE(std::string(ft_fail_text()).find("256"), std::string::npos) << ft_fail_text();
}

/* The driver would wait for the kernel, which a failure may hold or whose stream may never move. */
TEST_F(Queue, NothingIsFreedWhileAKernelStandsAndWhatWasClosedIsUsedAgain)
{
    ft_device_queue *other = nullptr;
    ft_device *second = nullptr;
    ASSERT_EQ(ft_device_open_gpu(ft_device_gpu_of_thread(), &second), FT_OK);
    uint64_t run = after({a});
    ASSERT_TRUE(soon([&] { return reached(run); }));
    ASSERT_EQ(ops->open(device, 0, &other), FT_OK);
    int both = standin_live_memory();
    ops->close(other);
    EXPECT_EQ(standin_live_memory(), both)
        << "a queue's memory was freed while another's kernel stands";
    ft_device_close(second);
    EXPECT_EQ(standin_live_memory(), both)
        << "a device's memory was unpinned while a kernel stands";
    standin_fail("cuMemHostAlloc", CUDA_ERROR_OUT_OF_MEMORY, 0);
    ASSERT_EQ(ops->open(device, 50000000, &other), FT_OK) << "what was closed is not used again";
    standin_fail("cuMemHostAlloc", CUDA_SUCCESS, 0);
    void *stream = b;
    for (uint64_t i = 1; i <= 3; i++) { /* it is as new */
        uint64_t first = 0;
        ASSERT_EQ(ops->after(other, &stream, 1, &first), FT_OK);
        EXPECT_EQ(first, i);
        ASSERT_EQ(ops->hold(other, &stream, 1), FT_OK);
        ASSERT_TRUE(soon([&] { return ops->reached(other, nullptr, first) == FT_OK; }));
        ops->signal(other, nullptr, first);
        EXPECT_TRUE(soon([&] { return idle(b); }));
    }
    ops->close(other);
    EXPECT_EQ(standin_live_memory(), both);
    standin_block(b); /* a kernel that has not come yet is waited for, too */
    uint64_t later = after({b});
    ops->signal(queue, nullptr, run);
    EXPECT_TRUE(soon([&] { return idle(a); }));
    ops->signal(queue, nullptr, later);
    close();
    EXPECT_GE(standin_live_memory(), both)
        << "memory was freed although a stream that stands still has a kernel";
    standin_let_go(b);
    EXPECT_TRUE(soon([&] { return idle(b); }));
    EXPECT_TRUE(soon([&] {
        return ops->open(device, 0, &other) == FT_OK &&
               (ops->close(other), standin_live_memory() == live);
    })) << standin_live_memory()
        << " allocations, were " << live;
}

TEST_F(Queue, AKernelToWhichNobodySpeaksLeaves)
{
    close();
    ASSERT_EQ(ops->open(device, 50000000, &queue), FT_OK);
    uint64_t run = after({a});
    EXPECT_TRUE(soon([&] { return idle(a); }));
    EXPECT_EQ(ops->reached(queue, nullptr, run), FT_DEVICE);
    EXPECT_NE(std::string(ft_fail_text()).find("50 ms"), std::string::npos) << ft_fail_text();
}

TEST_F(Queue, APassThatIsCancelledTouchesFarMemoryNoMore)
{
    const size_t n = 1 << 20;
    CUdeviceptr there;
    ASSERT_EQ(cuMemAlloc(&there, n), CUDA_SUCCESS);
    cuMemsetD8(there, 0xdb, n);
    cuStreamSynchronize(CU_STREAM_LEGACY);
    std::vector<unsigned char> here(n, 7);
    uint64_t run = after({a});
    ASSERT_TRUE(soon([&] { return reached(run); }));
    ops->begin(queue, nullptr, run);
    ft_reduce r{};
    r.type = FT_UINT8;
    r.count = n;
    r.nsrc = r.ndst = 1;
    r.src[0] = (void *)there;
    r.dst[0] = here.data();
    ft_device_req req = {}, next = {};
    ASSERT_EQ(ops->reduce(queue, &r, {0, 1}, nullptr, &req), FT_AGAIN);
    ops->cancel(queue, &req);
    ops->cancel(queue, &req);
    EXPECT_NE(req.status, FT_AGAIN);
    EXPECT_TRUE(soon([&] { return ops->poll(queue), ops->idle(queue); }));
    EXPECT_EQ(here, std::vector<unsigned char>(n, 7));
    ASSERT_EQ(ops->reduce(queue, &r, {0, 1}, nullptr, &next), FT_AGAIN);
    EXPECT_TRUE(soon([&] { return ops->poll(queue), next.status == FT_OK; }))
        << "the pieces of the cancelled pass are lost";
    EXPECT_EQ(here, std::vector<unsigned char>(n, 0xdb));
    ops->signal(queue, nullptr, run);
    EXPECT_TRUE(soon([&] { return idle(a); }));
    cuMemFree(there);
}

TEST_F(Queue, ManyPassesAtOnceAndAScaleOfTheDevices)
{
    const int n = 200;
    CUdeviceptr there;
    ASSERT_EQ(cuMemAlloc(&there, n * 4 + 4), CUDA_SUCCESS);
    std::vector<float> from(n + 1), out(n);
    for (int i = 0; i < n; i++)
        from[(size_t)i] = (float)i;
    from[n] = 3;
    cuMemcpy(there, (CUdeviceptr)from.data(), n * 4 + 4);
    uint64_t run = after({a});
    ops->begin(queue, nullptr, run);
    std::vector<ft_device_req> reqs((size_t)n);
    for (int i = 0; i < n; i++) {
        ft_reduce r{};
        r.type = FT_FLOAT32;
        r.op.scaled = true;
        r.scaled = 1;
        r.count = r.nsrc = r.ndst = 1;
        r.src[0] = (void *)(there + 4 * (CUdeviceptr)i);
        r.dst[0] = &out[(size_t)i];
        ASSERT_EQ(ops->reduce(queue, &r, {0, 1}, (void *)(there + 4 * n), &reqs[(size_t)i]),
                  FT_AGAIN);
    }
    ASSERT_TRUE(soon([&] { return ops->poll(queue), ops->idle(queue); }));
    for (int i = 0; i < n; i++)
        EXPECT_EQ(out[(size_t)i], 3 * (float)i);
    ops->signal(queue, nullptr, run);
    EXPECT_TRUE(soon([&] { return idle(a); }));
    cuMemFree(there);
}

TEST_F(Queue, WhatTheDriverRefusesIsAnErrorInItsWords)
{
    void *stream = a;
    uint64_t run = 0;
    for (const char *call :
         {"cuCtxPushCurrent", "cuEventRecord", "cuStreamWaitEvent", "cuLaunchKernel"}) {
        standin_fail(call, CUDA_ERROR_LAUNCH_FAILED, 0);
        EXPECT_EQ(ops->after(queue, &stream, 1, &run), FT_DEVICE) << call;
        EXPECT_NE(std::string(ft_fail_text()).find(call), std::string::npos) << ft_fail_text();
        EXPECT_EQ(run, 0u);
    }
    /* the kernel is on its way by then */
    standin_fail("cuEventRecord", CUDA_ERROR_LAUNCH_FAILED, 1);
    EXPECT_EQ(behind({a}, &run), FT_DEVICE);
    EXPECT_TRUE(soon([&] { return idle(a) && standin_running() == 0; }))
        << "the kernel that nobody knows of stays";
    uint64_t first = after({a});
    standin_fail("cuStreamWaitEvent", CUDA_ERROR_LAUNCH_FAILED, 1);
    EXPECT_EQ(behind({a}, &run), FT_DEVICE);
    standin_fail("cuEventRecord", CUDA_ERROR_LAUNCH_FAILED, 1);
    EXPECT_EQ(behind({a}, &run), FT_DEVICE) << "there is one already that nobody knows of";
    standin_fail("cuEventRecord", CUDA_SUCCESS, 0);
    ops->signal(queue, nullptr, first);
    uint64_t later = after({a});
    EXPECT_TRUE(soon([&] { return reached(later); })) << "a kernel that nobody knows of stays";
    ops->signal(queue, nullptr, later);
    standin_fail("capturing", CUDA_ERROR_UNKNOWN, 0);
    EXPECT_EQ(ops->after(queue, &stream, 1, &run), FT_NOTSUP);
    char none;
    stream = &none;
    EXPECT_EQ(ops->after(queue, &stream, 1, &run), FT_INVAL);
    EXPECT_TRUE(soon([&] { return idle(a); })) << "a refused run holds the stream";
    for (const char *call : {"cuStreamCreate", "cuEventCreate", "cuMemHostAlloc"}) {
        ft_device_queue *other = nullptr;
        int before = standin_live_memory();
        standin_fail(call, CUDA_ERROR_OUT_OF_MEMORY, 0);
        EXPECT_EQ(ops->open(device, 0, &other), FT_NOMEM) << call;
        EXPECT_EQ(other, nullptr);
        EXPECT_EQ(standin_live_memory(), before) << call;
    }
}

TEST_F(Queue, MemoryIsZeroedAndKnown)
{
    void *p = nullptr;
    ASSERT_EQ(device->ops->alloc(device, 5000, &p), FT_OK);
    std::vector<char> out(5000, 1);
    cuMemcpy((CUdeviceptr)out.data(), (CUdeviceptr)p, 5000);
    EXPECT_EQ(out, std::vector<char>(5000, 0));
    EXPECT_TRUE(device->ops->owns(device, p));
    EXPECT_TRUE(device->ops->owns(device, (char *)p + 4999));
    EXPECT_FALSE(device->ops->owns(device, out.data()));
    EXPECT_FALSE(device->ops->owns(device, nullptr));
    device->ops->free(device, p, 5000);
    EXPECT_FALSE(device->ops->owns(device, p));
    void *q = p;
    EXPECT_EQ(device->ops->alloc(device, SIZE_MAX / 2, &q), FT_NOMEM);
    EXPECT_EQ(q, p);
    standin_fail("cuMemAlloc", CUDA_ERROR_OUT_OF_MEMORY, 0);
    EXPECT_EQ(device->ops->alloc(device, 1, &q), FT_NOMEM);
    standin_fail("cuMemsetD8", CUDA_ERROR_ILLEGAL_ADDRESS, 0);
    int before = standin_live_memory();
    EXPECT_EQ(device->ops->alloc(device, 1, &q), FT_DEVICE);
    EXPECT_EQ(standin_live_memory(), before);
}

/* Memory of links that is pinned is not used again while a pass that nobody waits for may read or
 * write it. */
TEST_F(Queue, ACancelledPassKeepsPinnedMemoryFromBeingUsedAgain)
{
    const size_t len = 100000;
    CUdeviceptr there;
    ASSERT_NE(device->pinned, nullptr);
    ASSERT_EQ(cuMemAlloc(&there, len), CUDA_SUCCESS);
    char *slot = (char *)ft_pinned_alloc(device->pinned, len);
    ASSERT_NE(slot, nullptr);
    EXPECT_TRUE(ft_pinned_has(slot, len));
    EXPECT_TRUE(ft_pinned_has(slot + 1, len - 1));
    EXPECT_FALSE(ft_pinned_has(&there, 1));
    memset(slot, 1, len);
    cuMemsetD8(there, 7, len);
    cuStreamSynchronize(CU_STREAM_LEGACY);
    uint64_t run = after({a});
    ft_reduce pass = {};
    pass.type = FT_UINT8, pass.count = len, pass.nsrc = pass.ndst = 1, pass.src[0] = (void *)there,
    pass.dst[0] = slot;
    ft_device_req req = {};
    /* the run has not begun: it stays where it is */
    ASSERT_EQ(ops->reduce(queue, &pass, {0, 1}, nullptr, &req), FT_AGAIN);
    ops->cancel(queue, &req);
    ft_pinned_free(device->pinned, slot);
    EXPECT_EQ(ft_pinned_alloc(device->pinned, 1), nullptr)
        << "memory that is still going to be written was given to somebody";
    EXPECT_TRUE(soon([&] { return reached(run); }));
    ops->begin(queue, nullptr, run);
    EXPECT_TRUE(soon([&] { return ops->poll(queue), ops->idle(queue); }));
    EXPECT_EQ(slot[len - 1], 7) << "it was not staged";
    void *again = ft_pinned_alloc(device->pinned, 1);
    EXPECT_NE(again, nullptr);
    ft_pinned_free(device->pinned, again);
    ops->signal(queue, nullptr, run);
    EXPECT_TRUE(soon([&] { return cuStreamQuery(a) == CUDA_SUCCESS; }));
    /* One that no kernel executes any more. */
    ASSERT_EQ(ops->reduce(queue, &pass, {0, 1}, nullptr, &req), FT_AGAIN);
    ops->cancel(queue, &req);
    EXPECT_EQ(ft_pinned_alloc(device->pinned, 1), nullptr);
    close();
    EXPECT_NE(again = ft_pinned_alloc(device->pinned, 1), nullptr);
    ft_pinned_free(device->pinned, again);
    cuMemFree(there);
}

TEST_F(Queue, PinnedMemoryIsGivenOutOnceAndTheDeviceDoesWithoutIt)
{
    const size_t all = 16 << 20;
    std::vector<char *> parts;
    size_t lens[] = {1, 4096, 100000, 5 << 20, 1 << 20};
    for (size_t len : lens) {
        parts.push_back((char *)ft_pinned_alloc(device->pinned, len));
        ASSERT_NE(parts.back(), nullptr);
        memset(parts.back(), (int)parts.size(), len);
    }
    for (size_t i = 0; i < parts.size(); i++)
        EXPECT_TRUE(parts[i][0] == (char)(i + 1) && parts[i][lens[i] - 1] == (char)(i + 1)) << i;
    EXPECT_EQ(ft_pinned_alloc(device->pinned, all - (5 << 20)), nullptr);
    ft_pinned_free(device->pinned, parts[3]);
    char *again = (char *)ft_pinned_alloc(device->pinned, 5 << 20);
    EXPECT_EQ(again, parts[3]) << "what was freed is used again";
    for (char *part : parts)
        ft_pinned_free(device->pinned, part);
    EXPECT_NE(parts[0] = (char *)ft_pinned_alloc(device->pinned, all), nullptr);
    ft_pinned_free(device->pinned, parts[0]);
    EXPECT_EQ(ft_pinned_alloc(nullptr, 1), nullptr);
    ft_device *other = nullptr;
    standin_fail("cuMemHostRegister", CUDA_ERROR_OUT_OF_MEMORY, 0);
    ASSERT_EQ(ft_device_open_gpu(ft_device_gpu_of_thread(), &other), FT_OK);
    EXPECT_EQ(other->pinned, nullptr);
    ft_device_close(other);
}

TEST_F(Queue, MemoryForAProgramKeepsTheContextItIsIn)
{
    ft_device_gpu second = {nullptr, true, 1}, none = {nullptr, true, 4};
    int before = standin_live_memory();
    void *p = nullptr;
    ASSERT_EQ(ft_device_gpu_alloc(second, 5000, &p), FT_OK);
    EXPECT_EQ(standin_live_memory(), before + 1);
    EXPECT_EQ(standin_context_users(1), 1);
    ft_device_gpu_free(second, p);
    standin_fail("cuMemAlloc", CUDA_ERROR_OUT_OF_MEMORY, 0);
    EXPECT_EQ(ft_device_gpu_alloc(second, 5000, &p), FT_NOMEM);
    EXPECT_EQ(ft_device_gpu_alloc(none, 5000, &p), FT_DEVICE);
    EXPECT_EQ(standin_live_memory(), before);
    EXPECT_EQ(standin_context_users(1), 0);
}

TEST_F(Queue, TheDeviceIsTakenOnlyWhereItIsWantedAndWorks)
{
    ft_device *other = nullptr;
    choose("");
    cuCtxSetCurrent(nullptr);
    EXPECT_EQ(ft_device_open_gpu(ft_device_gpu_of_thread(), &other), FT_OK);
    ASSERT_NE(other, nullptr) << "as for CUDA's runtime, a thread without a context has the first "
                                 "device's, which the program uses";
    ft_device_close(other);
    close();
    ft_device_close(device);
    device = nullptr;
    ASSERT_EQ(standin_context_users(0), 0) << "each that was taken is given back";
    EXPECT_EQ(ft_device_open_gpu(ft_device_gpu_of_thread(), &other), FT_OK);
    EXPECT_EQ(other, nullptr) << "nobody uses it";
    EXPECT_EQ(ft_device_gpu_count(), 0);
    CUcontext context;
    cuDevicePrimaryCtxRetain(&context, 0);
    cuCtxSetCurrent(context);
    EXPECT_EQ(ft_device_open_gpu(ft_device_gpu_of_thread(), &other), FT_OK);
    ASSERT_NE(other, nullptr);
    EXPECT_GT(ft_device_gpu_count(), 1);
    EXPECT_EQ(ft_device_gpu_numbered(0).context, context);
    EXPECT_TRUE(ft_device_gpu_numbered(1).numbered);
    EXPECT_NE(std::string(other->name).find("stand-in"), std::string::npos) << other->name;
    ft_device_close(other);
    choose("host");
    EXPECT_EQ(ft_device_open_gpu(ft_device_gpu_of_thread(), &other), FT_OK);
    EXPECT_EQ(other, nullptr);
    choose("cuda");
    standin_fail("cuModuleLoadData", CUDA_ERROR_NO_BINARY_FOR_GPU, 0);
    EXPECT_EQ(ft_device_open_gpu(ft_device_gpu_of_thread(), &other), FT_DEVICE);
    EXPECT_EQ(other, nullptr);
    cuCtxSetCurrent(nullptr);
    cuDevicePrimaryCtxRelease(0);
    EXPECT_EQ(standin_context_users(0), 0);
    standin_fail("cuDevicePrimaryCtxRetain", CUDA_ERROR_OUT_OF_MEMORY, 0);
    EXPECT_EQ(ft_device_open_gpu(ft_device_gpu_of_thread(), &other), FT_NOTSUP);
    EXPECT_NE(std::string(ft_fail_text()).find("cuDevicePrimaryCtxRetain"), std::string::npos)
        << ft_fail_text();
}

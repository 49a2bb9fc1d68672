/*
 * The functions of standin.h for the real driver, as far as a GPU can do them. Linked before a test
 * together with that driver, so that tests of the stand-in run on a GPU (tests/gpu/run leaves out
 * tests that need the other functions). A host function blocks a stream.
 */
#include "standin.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <condition_variable>
#include <map>
#include <mutex>
#include <vector>

#define EXPORT extern "C" __attribute__((visibility("default")))

static std::mutex lock;
static std::condition_variable changed;
static std::map<CUstream, bool> blocked;

static void stand_still(void *stream)
{
    std::unique_lock<std::mutex> hold(lock);
    changed.wait(hold, [stream] { return !blocked[(CUstream)stream]; });
}

EXPORT void standin_block(CUstream stream)
{
    std::lock_guard<std::mutex> hold(lock);
    blocked[stream] = true;
    cuLaunchHostFunc(stream, stand_still, stream);
}

EXPORT void standin_let_go(CUstream stream)
{
    std::lock_guard<std::mutex> hold(lock);
    blocked[stream] = false;
    changed.notify_all();
}

EXPORT void standin_fail(const char *, CUresult, int)
{
}
EXPORT int standin_launched()
{
    return STANDIN_UNKNOWN;
}
EXPORT int standin_running()
{
    return 0;
}
EXPORT int standin_live_memory()
{
    return 0;
}
EXPORT int standin_context_users(int)
{
    return STANDIN_UNKNOWN;
}
EXPORT int standin_lowest_priority()
{
    return STANDIN_UNKNOWN;
}
EXPORT int standin_is_loaded()
{
    return STANDIN_UNKNOWN;
}
EXPORT void standin_threads(int)
{
}

namespace
{

struct Got {
    void *to;
    const void *pinned;
    size_t len;
};
std::map<CUstream, std::vector<Got>> gots;

/* Pinned memory that goes round: more than is on its way at any time. It is allocated at once,
 * since later allocations may wait for kernels that run. */
char *pinned(size_t len)
{
    static const size_t all = size_t{256} << 20;
    static char *arena;
    static size_t at;
    if (!arena)
        cuMemHostAlloc(reinterpret_cast<void **>(&arena), all, CU_MEMHOSTALLOC_PORTABLE);
    if (!arena || len > all) {
        fprintf(stderr, "the tests have no pinned memory for %zu bytes\n", len);
        abort();
    }
    at = at + len > all ? 0 : at;
    char *piece = arena + at;
    at += (len + 255) / 256 * 256;
    return piece;
}

} // namespace

EXPORT void standin_put(CUdeviceptr to, const void *from, size_t len, CUstream stream)
{
    std::lock_guard<std::mutex> hold(lock);
    if (!len)
        return;
    char *piece = pinned(len);
    memcpy(piece, from, len);
    cuMemcpyAsync(to, reinterpret_cast<CUdeviceptr>(piece), len, stream);
}

EXPORT void standin_get(void *to, CUdeviceptr from, size_t len, CUstream stream)
{
    std::lock_guard<std::mutex> hold(lock);
    if (!len)
        return;
    char *piece = pinned(len);
    cuMemcpyAsync(reinterpret_cast<CUdeviceptr>(piece), from, len, stream);
    gots[stream].push_back({to, piece, len});
}

EXPORT void standin_settle(CUstream stream)
{
    std::lock_guard<std::mutex> hold(lock);
    for (const Got &got : gots[stream])
        memcpy(got.to, got.pinned, got.len);
    gots.erase(stream);
}

/*
 * The functions of standin.h for the real driver, as far as a GPU can do them. Linked before a test
 * together with that driver, so that tests of the stand-in run on a GPU (tests/gpu/run leaves out
 * tests that need the other functions). A host function blocks a stream.
 */
#include "standin.h"

#include <condition_variable>
#include <map>
#include <mutex>

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

/*
 * The stand-in driver's graphs. A capture makes a node of everything enqueued on its streams. A
 * launch runs each node in its own thread when the nodes before it are done. Launches of one
 * executable graph run one after another; those of two may overlap. It is as strict as the driver
 * where tests need it: it refuses streams that were not joined, calls that are not allowed during a
 * capture, nodes that are named twice, and CUDA calls by a destructor.
 */
#include "standin_graph.h"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdlib>
#include <map>
#include <mutex>
#include <thread>

#define EXPORT extern "C" __attribute__((visibility("default")))
#define MAY_FAIL(call)                           \
    do {                                         \
        CUresult result_ = standin::fault(call); \
        if (result_ != CUDA_SUCCESS)             \
            return result_;                      \
    } while (0)

namespace
{

std::mutex lock; /* over captures and graphs while they are made, and over counts */

struct Object {
    void *ptr;
    CUhostFn destroy;
    unsigned refs;
};

/* Of the driver's thread that calls destructors. */
void unref(Object *object, unsigned count)
{
    bool last;
    {
        std::lock_guard<std::mutex> hold(lock);
        last = (object->refs -= count) == 0;
    }
    if (!last)
        return;
    std::thread(object->destroy, object->ptr).join();
    delete object;
}

struct Graph {
    std::vector<std::unique_ptr<standin::Node>> nodes;
    std::vector<Object *> objects;
    std::atomic<int> owners{1};
    ~Graph()
    {
        for (Object *object : objects)
            unref(object, 1);
    }
};

void drop(Graph *graph)
{
    if (graph->owners.fetch_sub(1) == 1)
        delete graph;
}

struct Exec {
    Graph *graph;
    std::mutex running;
    std::atomic<int> owners{1};
};

void drop(Exec *exec)
{
    if (exec->owners.fetch_sub(1) != 1)
        return;
    drop(exec->graph);
    delete exec;
}

thread_local CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_GLOBAL;
uint64_t captures;

void run(Exec *exec)
{
    std::lock_guard<std::mutex> alone(exec->running);
    std::mutex done_lock;
    std::condition_variable changed;
    std::map<standin::Node *, bool> done;
    std::vector<std::thread> threads;
    for (auto &each : exec->graph->nodes)
        threads.emplace_back([&, node = each.get()] {
            std::unique_lock<std::mutex> hold(done_lock);
            changed.wait(hold, [&] {
                return std::all_of(node->after.begin(), node->after.end(),
                                   [&](auto *before) { return done[before]; });
            });
            hold.unlock();
            node->task();
            hold.lock();
            done[node] = true;
            changed.notify_all();
        });
    for (auto &thread : threads)
        thread.join();
}

} // namespace

struct standin::Capture {
    uint64_t id;
    Graph *graph;
    bool ended = false, failed = false, global;
    std::thread::id thread;
    std::vector<standin::Node *> dropped; /* by cuStreamUpdateCaptureDependencies() */
};

static std::vector<std::weak_ptr<standin::Capture>> all;

bool standin::capturing(const Place &place)
{
    return place.capture && !place.capture->ended;
}

bool standin::capture(Place &place, const std::function<void()> &task)
{
    if (!capturing(place))
        return false;
    std::lock_guard<std::mutex> hold(lock);
    auto node = std::make_unique<Node>(Node{task, place.after});
    place.after = {node.get()};
    place.capture->graph->nodes.push_back(std::move(node));
    return true;
}

bool standin::join(Place &place, const Place &event)
{
    if (!capturing(event))
        return false;
    std::lock_guard<std::mutex> hold(lock);
    if (!capturing(place))
        place = {event.capture, {}};
    for (Node *node : event.after)
        if (std::find(place.after.begin(), place.after.end(), node) == place.after.end())
            place.after.push_back(node);
    return true;
}

bool standin::unsafe()
{
    std::lock_guard<std::mutex> hold(lock);
    bool found = false;
    for (auto &weak : all) {
        auto each = weak.lock();
        if (!each || each->ended || mode == CU_STREAM_CAPTURE_MODE_RELAXED)
            continue;
        if (each->global || each->thread == std::this_thread::get_id())
            found = each->failed = true;
    }
    return found;
}

EXPORT CUresult cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode *other)
{
    std::swap(mode, *other);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuStreamBeginCapture_v2(CUstream stream, CUstreamCaptureMode how)
{
    standin::Place *place = standin::place_of(stream);
    if (!place || !stream || standin::capturing(*place))
        return CUDA_ERROR_ILLEGAL_STATE;
    std::lock_guard<std::mutex> hold(lock);
    *place = {std::make_shared<standin::Capture>(), {}};
    place->capture->id = ++captures;
    place->capture->graph = new Graph;
    place->capture->global = how == CU_STREAM_CAPTURE_MODE_GLOBAL;
    place->capture->thread = std::this_thread::get_id();
    all.push_back(place->capture);
    return CUDA_SUCCESS;
}

/* Every node is behind none or before one that the stream is behind. */
static bool joined(const standin::Capture &capture, const standin::Place &end)
{
    std::vector<standin::Node *> open = end.after, seen = capture.dropped;
    while (!open.empty()) {
        standin::Node *node = open.back();
        open.pop_back();
        if (std::find(seen.begin(), seen.end(), node) != seen.end() &&
            std::find(end.after.begin(), end.after.end(), node) == end.after.end())
            continue;
        seen.push_back(node);
        for (auto *before : node->after)
            open.push_back(before);
    }
    return std::all_of(capture.graph->nodes.begin(), capture.graph->nodes.end(), [&](auto &node) {
        return std::find(seen.begin(), seen.end(), node.get()) != seen.end();
    });
}

EXPORT CUresult cuStreamEndCapture(CUstream stream, CUgraph *out)
{
    standin::Place *place = standin::place_of(stream);
    if (!place || !standin::capturing(*place))
        return CUDA_ERROR_ILLEGAL_STATE;
    CUresult result = standin::fault("cuStreamEndCapture");
    auto capture = place->capture;
    {
        std::lock_guard<std::mutex> hold(lock);
        if (result == CUDA_SUCCESS && capture->failed)
            result = CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
        if (result == CUDA_SUCCESS && !joined(*capture, *place))
            result = CUDA_ERROR_STREAM_CAPTURE_UNJOINED;
        capture->ended = true;
        *place = {};
    }
    *out = result == CUDA_SUCCESS ? (CUgraph)capture->graph : nullptr;
    if (result != CUDA_SUCCESS)
        drop(capture->graph);
    return result;
}

EXPORT CUresult cuStreamGetCaptureInfo_v3(CUstream stream, CUstreamCaptureStatus *status,
                                          cuuint64_t *id, CUgraph *graph, const CUgraphNode **after,
                                          const CUgraphEdgeData **edges, size_t *n)
{
    standin::Place *place = standin::place_of(stream);
    if (!place)
        return CUDA_ERROR_INVALID_HANDLE;
    *status = !standin::capturing(*place) ? CU_STREAM_CAPTURE_STATUS_NONE
              : place->capture->failed    ? CU_STREAM_CAPTURE_STATUS_INVALIDATED
                                          : CU_STREAM_CAPTURE_STATUS_ACTIVE;
    if (*status != CU_STREAM_CAPTURE_STATUS_ACTIVE)
        return CUDA_SUCCESS;
    MAY_FAIL("cuStreamGetCaptureInfo");
    *id = place->capture->id;
    *graph = (CUgraph)place->capture->graph;
    *after = (CUgraphNode *)place->after.data();
    *edges = nullptr;
    *n = place->after.size();
    return CUDA_SUCCESS;
}

EXPORT CUresult cuStreamUpdateCaptureDependencies_v2(CUstream stream, CUgraphNode *nodes,
                                                     const CUgraphEdgeData *, size_t n,
                                                     unsigned how)
{
    MAY_FAIL("cuStreamUpdateCaptureDependencies");
    standin::Place *place = standin::place_of(stream);
    if (!place || !standin::capturing(*place))
        return CUDA_ERROR_ILLEGAL_STATE;
    std::lock_guard<std::mutex> hold(lock);
    std::vector<standin::Node *> after((standin::Node **)nodes, (standin::Node **)nodes + n);
    auto &dropped = place->capture->dropped;
    if (how == CU_STREAM_SET_CAPTURE_DEPENDENCIES)
        dropped.insert(dropped.end(), place->after.begin(), place->after.end()),
            place->after.clear();
    for (auto *node : after) {
        if (std::find(place->after.begin(), place->after.end(), node) != place->after.end())
            return CUDA_ERROR_INVALID_VALUE;
        place->after.push_back(node);
    }
    return CUDA_SUCCESS;
}

EXPORT CUresult cuGraphInstantiateWithFlags(CUgraphExec *out, CUgraph graph, unsigned long long)
{
    MAY_FAIL("cuGraphInstantiate");
    ((Graph *)graph)->owners++;
    *out = (CUgraphExec) new Exec{(Graph *)graph, {}, {1}};
    return CUDA_SUCCESS;
}

EXPORT CUresult cuGraphLaunch(CUgraphExec handle, CUstream stream)
{
    MAY_FAIL("cuGraphLaunch");
    auto *exec = (Exec *)handle;
    exec->owners++;
    standin::enqueue(stream, [exec] {
        run(exec);
        drop(exec);
    });
    return CUDA_SUCCESS;
}

EXPORT CUresult cuGraphExecDestroy(CUgraphExec exec)
{
    drop((Exec *)exec);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuGraphDestroy(CUgraph graph)
{
    drop((Graph *)graph);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuUserObjectCreate(CUuserObject *out, void *ptr, CUhostFn destroy, unsigned refs,
                                   unsigned)
{
    MAY_FAIL("cuUserObjectCreate");
    *out = (CUuserObject) new Object{ptr, destroy, refs};
    return CUDA_SUCCESS;
}

EXPORT CUresult cuUserObjectRelease(CUuserObject object, unsigned count)
{
    unref((Object *)object, count);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuGraphRetainUserObject(CUgraph graph, CUuserObject object, unsigned count,
                                        unsigned flags)
{
    MAY_FAIL("cuGraphRetainUserObject");
    if (count != 1 || flags != CU_GRAPH_USER_OBJECT_MOVE)
        return CUDA_ERROR_INVALID_VALUE;
    std::lock_guard<std::mutex> hold(lock);
    ((Graph *)graph)->objects.push_back((Object *)object);
    return CUDA_SUCCESS;
}

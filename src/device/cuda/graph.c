/*
 * Kernels in CUDA graphs. If the streams of a group are being captured, its calls become one kernel
 * of the graph, with a bell. Each launch of the kernel rings the bell through mapped memory,
 * because no function of the library is called then. The kernel is captured on the user's stream:
 * the queue's own stream would stay in the capture until the capture ends. Bells belong to the
 * queue. The queue is freed after all graphs that contain one; a user object in each graph tells
 * that.
 */
#include "device/cuda/cuda.h"

#include <stdlib.h>
#include <string.h>

/* UNUSED: free. HELD: a graph contains it. GONE: no graph contains it, and its owner has not
 * forgotten it. ORPHAN: a graph may contain it, and it never had an owner. */
enum state { UNUSED, HELD, GONE, ORPHAN };

struct bell {
    struct ft_device_bell base;
    struct ft_device_queue *queue;
    struct ft_cuda_bell *shared;
    CUdeviceptr dev_ptr;
    uint64_t id;
    atomic_int state;
    uint64_t rang; /* number of rings that the engine has seen */
    CUgraphNode node;
};

/* Bells that are allocated together. */
struct ft_cuda_bells {
    struct ft_cuda_bell *shared;
    struct bell bell[FT_CUDA_BELLS];
};

/* captures are rare, and the engine never takes it */
static pthread_mutex_t capture_lock = PTHREAD_MUTEX_INITIALIZER;

static struct bell *bell_of_base(const struct ft_device_bell *bell)
{
    return FT_CONTAINER((struct ft_device_bell *)(uintptr_t)bell, struct bell, base);
}

struct ft_cuda_bell *ft_cuda_bell_shared(const struct ft_device_bell *bell)
{
    return bell_of_base(bell)->shared;
}

static struct bell *bell_of(const struct ft_device_queue *queue, uint64_t id)
{
    return &atomic_load_explicit(&queue->bells[id / FT_CUDA_BELLS], memory_order_acquire)
                ->bell[id % FT_CUDA_BELLS];
}

/* ---- bells ----------------------------------------------------------------------------------- */

static int add_bells(struct ft_device_queue *queue)
{
    struct ft_cuda_bells *bells = calloc(1, sizeof *bells);
    void *here = NULL;
    CUdeviceptr dev_ptr = 0;
    if (!bells)
        return ft_fail(FT_NOMEM, "no memory for a kernel in a graph");
    int rc = ft_cuda_map(queue->cuda->driver, FT_CUDA_BELLS * sizeof *bells->shared, &here,
                         &dev_ptr);
    if (rc != FT_OK) {
        if (here)
            queue->cuda->driver->cuMemFreeHost(here);
        free(bells);
        return rc;
    }
    bells->shared = here;
    for (unsigned i = 0; i < FT_CUDA_BELLS; i++)
        bells->bell[i] = (struct bell){.queue = queue,
                                       .shared = &bells->shared[i],
                                       .dev_ptr = dev_ptr + i * sizeof *bells->shared,
                                       .id = queue->nbells + i};
    atomic_store_explicit(&queue->bells[queue->nbells / FT_CUDA_BELLS], bells,
                          memory_order_release);
    return FT_OK;
}

void ft_cuda_free_bells(struct ft_device_queue *queue)
{
    for (size_t i = 0; i < FT_ARRAY_LEN(queue->bells); i++) {
        struct ft_cuda_bells *bells = atomic_load(&queue->bells[i]);
        if (!bells)
            continue;
        queue->cuda->driver->cuMemFreeHost(bells->shared);
        free(bells);
    }
}

void ft_cuda_renew_bells(struct ft_device_queue *queue)
{
    for (unsigned id = 0; id < queue->nbells; id++)
        atomic_store(&bell_of(queue, id)->state, UNUSED);
    atomic_store(&queue->unused_bells, (int)queue->nbells);
    queue->rings_seen = queue->rings_over = queue->made = queue->gone = 0;
    atomic_store(&queue->muted, false);
    memset(queue->chains, 0, sizeof queue->chains);
}

/* Takes an unused bell and resets it. */
static int take_bell(struct ft_device_queue *queue, struct bell **out)
{
    struct bell *bell = NULL;
    for (unsigned id = 0; id < queue->nbells && atomic_load(&queue->unused_bells) > 0 && !bell;
         id++) {
        bell = bell_of(queue, id);
        /* pairs with mark_unused() */
        if (atomic_load_explicit(&bell->state, memory_order_acquire) != UNUSED)
            bell = NULL;
        else
            atomic_fetch_sub(&queue->unused_bells, 1);
    }
    if (!bell && queue->nbells == FT_CUDA_BELLS_MAX)
        return ft_fail(FT_NOTSUP,
                       "CUDA graphs hold %d groups of calls of this communicator already",
                       FT_CUDA_BELLS_MAX);
    if (!bell) {
        int rc = queue->nbells % FT_CUDA_BELLS == 0 ? add_bells(queue) : FT_OK;
        if (rc != FT_OK)
            return rc;
        bell = bell_of(queue, queue->nbells++);
    }
    memset(bell->shared, 0, sizeof *bell->shared);
    bell->base.owner = NULL;
    bell->rang = 0;
    bell->node = NULL;
    atomic_store(&bell->state, HELD);
    *out = bell;
    return FT_OK;
}

static void mark_unused(struct bell *bell)
{
    atomic_store_explicit(&bell->state, UNUSED, memory_order_release);
    atomic_fetch_add(&bell->queue->unused_bells, 1);
}

/* Called by a thread of the driver, which must not call CUDA. After the count has increased, the
 * queue may be freed. */
static void no_graph_has_it(void *arg)
{
    struct bell *bell = arg;
    struct ft_device_queue *queue = bell->queue;
    if (atomic_exchange(&bell->state, GONE) == ORPHAN)
        mark_unused(bell);
    atomic_fetch_add_explicit(&queue->gone, 1, memory_order_acq_rel);
}

/* The capture failed: no owner knows of the bell, but a graph may contain it. */
static void abandon_bell(struct bell *bell)
{
    int held = HELD;
    ft_cuda_mute(bell->queue, &bell->base);
    if (!atomic_compare_exchange_strong(&bell->state, &held, ORPHAN))
        mark_unused(bell);
}

/* ---- captures -------------------------------------------------------------------------------- */

/* The nodes on which the next capture on a stream would depend. The arrays belong to the driver,
 * and are valid until the next call for the stream. */
struct capture {
    CUstreamCaptureStatus status;
    cuuint64_t id;
    CUgraph graph;
    const CUgraphNode *nodes;
    const CUgraphEdgeData *edges;
    size_t n;
};

static int read_capture(const struct ft_cuda_driver *driver, void *stream, struct capture *at)
{
    *at = (struct capture){.status = CU_STREAM_CAPTURE_STATUS_NONE};
    return FT_CUDA(driver, cuStreamGetCaptureInfo_v3, (CUstream)stream, &at->status, &at->id,
                   &at->graph, &at->nodes, &at->edges, &at->n);
}

static int check_capture(const struct ft_cuda_driver *driver, void *const *streams, int n)
{
    struct capture first = {0}, at;
    for (int i = 0; i < n; i++) {
        if (read_capture(driver, streams[i], &at) != FT_OK)
            return ft_fail(FT_INVAL, "%p is not a stream of this process and context", streams[i]);
        if (at.status == CU_STREAM_CAPTURE_STATUS_INVALIDATED)
            return ft_fail(FT_INVAL, "the capture of the stream %p has failed before this call",
                           streams[i]);
        if (i == 0)
            first = at;
        if (at.status != first.status || at.id != first.id)
            return ft_fail(FT_INVAL,
                           "the streams of a group must all be captured into the same graph, or "
                           "none of them: %p and %p are not",
                           streams[0], streams[i]);
    }
    return first.status == CU_STREAM_CAPTURE_STATUS_ACTIVE ? FT_OK : FT_AGAIN;
}

int ft_cuda_capturing(struct ft_device_queue *queue, void *const *streams, int n)
{
    int rc = ft_cuda_enter(queue->cuda);
    if (rc != FT_OK)
        return rc;
    rc = check_capture(queue->cuda->driver, streams, n);
    ft_cuda_leave(queue->cuda);
    return rc;
}

/* Ties the bell's life to the graph and to everything that is made of the graph. */
static int tie_to_graph(struct bell *bell, CUgraph graph)
{
    const struct ft_cuda_driver *driver = bell->queue->cuda->driver;
    CUuserObject object;
    int rc = FT_CUDA(driver, cuUserObjectCreate, &object, bell, no_graph_has_it, 1,
                     CU_USER_OBJECT_NO_DESTRUCTOR_SYNC);
    if (rc != FT_OK) {
        atomic_store(&bell->state, GONE);
        return rc;
    }
    atomic_fetch_add(&bell->queue->made, 1);
    rc = FT_CUDA(driver, cuGraphRetainUserObject, graph, object, 1, CU_GRAPH_USER_OBJECT_MOVE);
    if (rc != FT_OK)
        driver->cuUserObjectRelease(object, 1);
    return rc;
}

/* The record of the queue's last kernel in a capture. If more captures than FT_CUDA_CAPTURES run at
 * once, the kernels of the oldest one are ordered only by its streams. */
static struct ft_cuda_chain *chain_of(struct ft_device_queue *queue, cuuint64_t capture)
{
    for (unsigned i = 0; i < FT_CUDA_CAPTURES; i++)
        if (queue->chains[i].capture == capture && queue->chains[i].last)
            return &queue->chains[i];
    struct ft_cuda_chain *oldest = &queue->chains[queue->oldest_chain++ % FT_CUDA_CAPTURES];
    *oldest = (struct ft_cuda_chain){.capture = capture};
    return oldest;
}

static int set_dependencies(const struct ft_cuda_driver *driver, void *stream,
                            const CUgraphNode *nodes, const CUgraphEdgeData *edges, size_t n,
                            unsigned how)
{
    return FT_CUDA(driver, cuStreamUpdateCaptureDependencies_v2, (CUstream)stream,
                   (CUgraphNode *)(uintptr_t)nodes, edges, n, how);
}

static bool is_among(CUgraphNode node, const CUgraphNode *nodes, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (nodes[i] == node)
            return true;
    return false;
}

/* Adds these nodes to the dependencies of the stream. A node must not be named twice. */
static int follow_nodes(const struct ft_cuda_driver *driver, void *stream, const CUgraphNode *nodes,
                        const CUgraphEdgeData *edges, size_t n)
{
    int rc = FT_OK;
    for (size_t i = 0; i < n && rc == FT_OK; i++) {
        struct capture at;
        rc = read_capture(driver, stream, &at);
        if (rc == FT_OK && !is_among(nodes[i], at.nodes, at.n))
            rc = set_dependencies(driver, stream, &nodes[i], edges ? &edges[i] : NULL, 1,
                                  CU_STREAM_ADD_CAPTURE_DEPENDENCIES);
    }
    return rc;
}

/* Captures the kernel on the first stream. It depends on all work on all streams, and on the
 * queue's previous kernel in the graph. */
static int capture_kernel(struct bell *bell, void *const *streams, int n,
                          struct ft_cuda_chain *chain)
{
    struct ft_device_queue *queue = bell->queue;
    const struct ft_cuda_device *cuda = queue->cuda;
    const struct ft_cuda_driver *driver = cuda->driver;
    void *arguments[] = {&queue->control_dev_ptr, &bell->id, &queue->silence_ns, &bell->dev_ptr};
    struct capture at;
    int rc = FT_OK;
    for (int i = 1; i < n && rc == FT_OK; i++) {
        rc = read_capture(driver, streams[i], &at);
        if (rc == FT_OK)
            rc = follow_nodes(driver, streams[0], at.nodes, at.edges, at.n);
    }
    if (rc == FT_OK && chain->last)
        rc = follow_nodes(driver, streams[0], &chain->last, NULL, 1);
    if (rc == FT_OK)
        rc = FT_CUDA(driver, cuLaunchKernel, cuda->kernel, cuda->blocks, 1, 1, cuda->threads, 1, 1,
                     0, (CUstream)streams[0], arguments, NULL);
    if (rc == FT_OK)
        rc = read_capture(driver, streams[0], &at);
    if (rc == FT_OK && at.n != 1)
        rc = ft_fail(FT_DEVICE,
                     "the driver has put a kernel into a graph, and the stream %p depends on %zu "
                     "nodes after it",
                     streams[0], at.n);
    if (rc == FT_OK)
        chain->last = bell->node = at.nodes[0];
    return rc;
}

/* Captures the kernel and then restores the dependencies of the first stream, so that kernels of
 * other communicators of the group run in parallel to it. */
static int capture_bell(struct bell *bell, void *const *streams, int n)
{
    const struct ft_cuda_driver *driver = bell->queue->cuda->driver;
    struct capture before;
    int rc = read_capture(driver, streams[0], &before);
    if (rc != FT_OK)
        return rc;
    CUgraphNode *nodes = calloc(before.n + 1, sizeof *nodes);
    CUgraphEdgeData *edges = before.edges ? calloc(before.n + 1, sizeof *edges) : NULL;
    if (nodes && (edges || !before.edges)) {
        if (before.n > 0)
            memcpy(nodes, before.nodes, before.n * sizeof *nodes);
        if (edges && before.n > 0)
            memcpy(edges, before.edges, before.n * sizeof *edges);
        rc = tie_to_graph(bell, before.graph);
        if (rc == FT_OK)
            rc = capture_kernel(bell, streams, n, chain_of(bell->queue, before.id));
        if (rc == FT_OK)
            rc = set_dependencies(driver, streams[0], nodes, edges, before.n,
                                  CU_STREAM_SET_CAPTURE_DEPENDENCIES);
    } else {
        atomic_store(&bell->state, GONE);
        rc = ft_fail(FT_NOMEM, "no memory for a kernel in a graph");
    }
    free(nodes);
    free(edges);
    return rc;
}

int ft_cuda_capture(struct ft_device_queue *queue, void *const *streams, int n,
                    struct ft_device_bell **out)
{
    struct bell *bell = NULL;
    int rc = ft_cuda_enter(queue->cuda);
    if (rc != FT_OK)
        return rc;
    pthread_mutex_lock(&capture_lock);
    rc = take_bell(queue, &bell);
    if (rc == FT_OK && (rc = capture_bell(bell, streams, n)) != FT_OK)
        abandon_bell(bell);
    pthread_mutex_unlock(&capture_lock);
    ft_cuda_leave(queue->cuda);
    if (rc == FT_OK)
        *out = &bell->base;
    return rc;
}

/* Returns true if the stream already depends on a kernel of the group. */
static bool follows_one(const struct capture *at, struct ft_device_bell *const *bells, int n)
{
    for (int i = 0; i < n; i++)
        if (is_among(bell_of_base(bells[i])->node, at->nodes, at->n))
            return true;
    return false;
}

/* The kernel depends on everything that the stream depended on, so the stream needs to depend on
 * the kernel only. Dependencies do not accumulate. */
int ft_cuda_captured(struct ft_device_bell *const *bells, int nth, void *const *streams, int n)
{
    const struct bell *bell = bell_of_base(bells[nth]);
    const struct ft_cuda_device *cuda = bell->queue->cuda;
    int rc = ft_cuda_enter(cuda);
    if (rc != FT_OK)
        return rc;
    for (int i = 0; i < n && rc == FT_OK; i++) {
        struct capture at;
        rc = read_capture(cuda->driver, streams[i], &at);
        if (rc == FT_OK)
            rc = set_dependencies(cuda->driver, streams[i], &bell->node, NULL, 1,
                                  follows_one(&at, bells, nth)
                                      ? CU_STREAM_ADD_CAPTURE_DEPENDENCIES
                                      : CU_STREAM_SET_CAPTURE_DEPENDENCIES);
    }
    ft_cuda_leave(cuda);
    return rc;
}

/* ---- replays --------------------------------------------------------------------------------- */

struct ft_device_bell *ft_cuda_rung(struct ft_device_queue *queue, uint64_t *run)
{
    uint64_t seen = queue->rings_seen,
             word = ft_cuda_load(&queue->control->rang[seen % FT_CUDA_RINGS]);
    if (word >> 32 != (uint32_t)(seen / FT_CUDA_RINGS + 1))
        return NULL;
    queue->rings_seen = seen + 1;
    struct bell *bell = bell_of(queue, (uint32_t)word);
    *run = ++bell->rang;
    return &bell->base;
}

uint64_t ft_cuda_gone(const struct ft_device_queue *queue)
{
    return atomic_load_explicit(&queue->gone, memory_order_acquire);
}

bool ft_cuda_is_gone(const struct ft_device_bell *bell)
{
    return atomic_load_explicit(&bell_of_base(bell)->state, memory_order_acquire) == GONE;
}

void ft_cuda_forget(struct ft_device_bell *bell)
{
    mark_unused(bell_of_base(bell));
}

void ft_cuda_mute(struct ft_device_queue *queue, struct ft_device_bell *only)
{
    if (only)
        ft_cuda_store(&bell_of_base(only)->shared->gate.ended, FT_CUDA_MUTE);
    else
        atomic_store(&queue->muted, true);
    for (size_t i = 0; i < FT_ARRAY_LEN(queue->bells) && !only; i++) {
        struct ft_cuda_bells *bells = atomic_load_explicit(&queue->bells[i], memory_order_acquire);
        for (int k = 0; bells && k < FT_CUDA_BELLS; k++)
            ft_cuda_store(&bells->shared[k].gate.ended, FT_CUDA_MUTE);
    }
}

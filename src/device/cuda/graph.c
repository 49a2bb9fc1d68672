/*
 * Kernels in CUDA graphs: the calls of a group whose streams are being captured become one kernel
 * of the graph, with a bell by which each of its starts is told from mapped memory, since no call
 * of ours is made then. The kernel is captured on a stream of the user's: the queue's own would
 * stay in the capture until that ends. Bells belong to the queue, which is freed after all graphs
 * that have one: a user object of each graph tells.
 */
#include "device/cuda/cuda.h"

#include <stdlib.h>
#include <string.h>

/* UNUSED: free. HELD: a graph has it. GONE: none has, and its owner has not forgotten it. ORPHAN:
 * it never had an owner. */
enum state { UNUSED, HELD, GONE, ORPHAN };

struct bell {
    struct ft_device_bell base;
    struct ft_device_queue *queue;
    struct ft_cuda_bell *shared;
    CUdeviceptr dev_ptr;
    uint64_t id;
    atomic_int state;
    uint64_t rang; /* rings seen by the engine */
    CUgraphNode node;
};

/* Bells that are allocated together. */
struct ft_cuda_bells {
    struct ft_cuda_bell *shared;
    struct bell bell[FT_CUDA_BELLS];
};

/* captures are rare; the engine takes it never */
static pthread_mutex_t capture_lock = PTHREAD_MUTEX_INITIALIZER;

static struct bell *of(const struct ft_device_bell *bell)
{
    return FT_CONTAINER((struct ft_device_bell *)(uintptr_t)bell, struct bell, base);
}

struct ft_cuda_bell *ft_cuda_bell_shared(const struct ft_device_bell *bell)
{
    return of(bell)->shared;
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

/* One that nobody uses, as new. */
static int take_bell(struct ft_device_queue *queue, struct bell **out)
{
    struct bell *bell = NULL;
    for (unsigned id = 0; id < queue->nbells && atomic_load(&queue->unused_bells) > 0 && !bell;
         id++) {
        bell = bell_of(queue, id);
        /* pairs with who has forgotten it */
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

static void unuse(struct bell *bell)
{
    atomic_store_explicit(&bell->state, UNUSED, memory_order_release);
    atomic_fetch_add(&bell->queue->unused_bells, 1);
}

/* By a thread of the driver's that may call no CUDA. The queue may be freed once it is counted. */
static void no_graph_has_it(void *arg)
{
    struct bell *bell = arg;
    struct ft_device_queue *queue = bell->queue;
    if (atomic_exchange(&bell->state, GONE) == ORPHAN)
        unuse(bell);
    atomic_fetch_add_explicit(&queue->gone, 1, memory_order_acq_rel);
}

/* The capture failed, and nobody but perhaps a graph knows of the bell. */
static void abandon(struct bell *bell)
{
    int held = HELD;
    ft_cuda_mute(bell->queue, &bell->base);
    if (!atomic_compare_exchange_strong(&bell->state, &held, ORPHAN))
        unuse(bell);
}

/* ---- captures -------------------------------------------------------------------------------- */

/* What a stream would be captured behind. The arrays are the driver's, until the next call for the
 * stream. */
struct capture {
    CUstreamCaptureStatus status;
    cuuint64_t id;
    CUgraph graph;
    const CUgraphNode *nodes;
    const CUgraphEdgeData *edges;
    size_t n;
};

static int look_at(const struct ft_cuda_driver *driver, void *stream, struct capture *at)
{
    *at = (struct capture){.status = CU_STREAM_CAPTURE_STATUS_NONE};
    return FT_CUDA(driver, cuStreamGetCaptureInfo_v3, (CUstream)stream, &at->status, &at->id,
                   &at->graph, &at->nodes, &at->edges, &at->n);
}

static int check_capture(const struct ft_cuda_driver *driver, void *const *streams, int n)
{
    struct capture first = {0}, at;
    for (int i = 0; i < n; i++) {
        if (look_at(driver, streams[i], &at) != FT_OK)
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

/* The bell lives as long as the graph and what is made of it. */
static int tie(struct bell *bell, CUgraph graph)
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

/* The queue's last kernel in the graph. With more captures than these under way at once the kernels
 * of the oldest are in the order of its streams alone. */
static struct ft_cuda_chain *chain_of(struct ft_device_queue *queue, cuuint64_t capture)
{
    for (unsigned i = 0; i < FT_CUDA_CAPTURES; i++)
        if (queue->chains[i].capture == capture && queue->chains[i].last)
            return &queue->chains[i];
    struct ft_cuda_chain *oldest = &queue->chains[queue->oldest_chain++ % FT_CUDA_CAPTURES];
    *oldest = (struct ft_cuda_chain){.capture = capture};
    return oldest;
}

static int depend(const struct ft_cuda_driver *driver, void *stream, const CUgraphNode *nodes,
                  const CUgraphEdgeData *edges, size_t n, unsigned how)
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

/* The stream is behind these too. A node may not be named twice. */
static int follow(const struct ft_cuda_driver *driver, void *stream, const CUgraphNode *nodes,
                  const CUgraphEdgeData *edges, size_t n)
{
    int rc = FT_OK;
    for (size_t i = 0; i < n && rc == FT_OK; i++) {
        struct capture at;
        rc = look_at(driver, stream, &at);
        if (rc == FT_OK && !is_among(nodes[i], at.nodes, at.n))
            rc = depend(driver, stream, &nodes[i], edges ? &edges[i] : NULL, 1,
                        CU_STREAM_ADD_CAPTURE_DEPENDENCIES);
    }
    return rc;
}

/* The kernel, on the first stream, behind what is on all of them and behind the queue's kernel
 * before it. */
static int launch(struct bell *bell, void *const *streams, int n, struct ft_cuda_chain *chain)
{
    struct ft_device_queue *queue = bell->queue;
    const struct ft_cuda_device *cuda = queue->cuda;
    const struct ft_cuda_driver *driver = cuda->driver;
    void *arguments[] = {&queue->control_dev_ptr, &bell->id, &queue->silence_ns, &bell->dev_ptr};
    struct capture at;
    int rc = FT_OK;
    for (int i = 1; i < n && rc == FT_OK; i++) {
        rc = look_at(driver, streams[i], &at);
        if (rc == FT_OK)
            rc = follow(driver, streams[0], at.nodes, at.edges, at.n);
    }
    if (rc == FT_OK && chain->last)
        rc = follow(driver, streams[0], &chain->last, NULL, 1);
    if (rc == FT_OK)
        rc = FT_CUDA(driver, cuLaunchKernel, cuda->kernel, cuda->blocks, 1, 1, cuda->threads, 1, 1,
                     0, (CUstream)streams[0], arguments, NULL);
    if (rc == FT_OK)
        rc = look_at(driver, streams[0], &at);
    if (rc == FT_OK && at.n != 1)
        rc = ft_fail(FT_DEVICE,
                     "the driver has put a kernel into a graph, and the stream %p depends on %zu "
                     "nodes after it",
                     streams[0], at.n);
    if (rc == FT_OK)
        chain->last = bell->node = at.nodes[0];
    return rc;
}

/* What the first stream was behind before is what it is behind again: kernels of other
 * communicators of the group come beside. */
static int capture(struct bell *bell, void *const *streams, int n)
{
    const struct ft_cuda_driver *driver = bell->queue->cuda->driver;
    struct capture before;
    int rc = look_at(driver, streams[0], &before);
    if (rc != FT_OK)
        return rc;
    CUgraphNode *nodes = calloc(before.n + 1, sizeof *nodes);
    CUgraphEdgeData *edges = before.edges ? calloc(before.n + 1, sizeof *edges) : NULL;
    if (nodes && (edges || !before.edges)) {
        if (before.n > 0)
            memcpy(nodes, before.nodes, before.n * sizeof *nodes);
        if (edges && before.n > 0)
            memcpy(edges, before.edges, before.n * sizeof *edges);
        rc = tie(bell, before.graph);
        if (rc == FT_OK)
            rc = launch(bell, streams, n, chain_of(bell->queue, before.id));
        if (rc == FT_OK)
            rc = depend(driver, streams[0], nodes, edges, before.n,
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
    if (rc == FT_OK && (rc = capture(bell, streams, n)) != FT_OK)
        abandon(bell);
    pthread_mutex_unlock(&capture_lock);
    ft_cuda_leave(queue->cuda);
    if (rc == FT_OK)
        *out = &bell->base;
    return rc;
}

/* Does the stream come behind a kernel of the group already? */
static bool follows_one(const struct capture *at, struct ft_device_bell *const *bells, int n)
{
    for (int i = 0; i < n; i++)
        if (is_among(of(bells[i])->node, at->nodes, at->n))
            return true;
    return false;
}

/* The kernel is behind all that the stream was behind, so the kernel alone is what is named:
 * dependencies do not pile up. */
int ft_cuda_captured(struct ft_device_bell *const *bells, int nth, void *const *streams, int n)
{
    const struct bell *bell = of(bells[nth]);
    const struct ft_cuda_device *cuda = bell->queue->cuda;
    int rc = ft_cuda_enter(cuda);
    if (rc != FT_OK)
        return rc;
    for (int i = 0; i < n && rc == FT_OK; i++) {
        struct capture at;
        rc = look_at(cuda->driver, streams[i], &at);
        if (rc == FT_OK)
            rc = depend(cuda->driver, streams[i], &bell->node, NULL, 1,
                        follows_one(&at, bells, nth) ? CU_STREAM_ADD_CAPTURE_DEPENDENCIES
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
    return atomic_load_explicit(&of(bell)->state, memory_order_acquire) == GONE;
}

void ft_cuda_forget(struct ft_device_bell *bell)
{
    unuse(of(bell));
}

void ft_cuda_mute(struct ft_device_queue *queue, struct ft_device_bell *only)
{
    if (only)
        ft_cuda_store(&of(only)->shared->gate.ended, FT_CUDA_MUTE);
    else
        atomic_store(&queue->muted, true);
    for (size_t i = 0; i < FT_ARRAY_LEN(queue->bells) && !only; i++) {
        struct ft_cuda_bells *bells = atomic_load_explicit(&queue->bells[i], memory_order_acquire);
        for (int k = 0; bells && k < FT_CUDA_BELLS; k++)
            ft_cuda_store(&bells->shared[k].gate.ended, FT_CUDA_MUTE);
    }
}

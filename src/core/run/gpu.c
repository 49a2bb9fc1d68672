/*
 * Operations on buffers of the GPU. Each group of calls is one run of the communicator's queue. A
 * run begins when the user's streams have reached it, and holds them until the work is over. The
 * GPU reads and writes the user's buffers. The CPU drives the links, so messages pass through slots
 * and landing buffers that the queue stages. Before a link is closed, everything that passes use of
 * it is given back.
 */
#include "core/run/run.h"

#include <stdlib.h>

/* a GPU that has not finished its passes by then never will */
#define GIVE_UP_NS UINT64_C(10000000000)

static pthread_mutex_t open_lock = PTHREAD_MUTEX_INITIALIZER;

/* ---- calls ----------------------------------------------------------------------------------- */

/* If the engine is silent for longer than any operation may take, kernels end by themselves. */
static uint64_t silence_ns(const struct ft_comm *comm)
{
    return comm->limits.op_timeout_ms > 0
               ? (uint64_t)(2 * comm->limits.op_timeout_ms + 10000) * 1000000u
               : 0;
}

static int open_queue(struct ft_comm *comm)
{
    struct ft_comm_gpu *gpu = calloc(1, sizeof *gpu);
    struct ft_stream *order = ft_stream_new();
    if (gpu && comm->limits.verify)
        gpu->digest.piece = malloc(FT_DIGEST_PIECE_BYTES);
    bool room = gpu && order && (gpu->digest.piece || !comm->limits.verify);
    int rc = room ? FT_OK : ft_fail(FT_NOMEM, "no memory for a communicator's queue on the GPU");
    if (rc == FT_OK) {
        gpu->ops = comm->engine->gpu->ops->queue;
        gpu->order = order;
        rc = gpu->ops->open(comm->engine->gpu, silence_ns(comm), &gpu->queue);
    }
    if (rc == FT_OK) {
        __atomic_store_n(&comm->gpu, gpu, __ATOMIC_RELEASE);
        return FT_OK;
    }
    if (order)
        ft_stream_release(order);
    if (gpu)
        free(gpu->digest.piece);
    free(gpu);
    return rc;
}

static int need_queue(struct ft_comm *comm)
{
    if (ft_gpu_of(comm))
        return FT_OK;
    pthread_mutex_lock(&open_lock);
    int rc = ft_gpu_of(comm) ? FT_OK : open_queue(comm);
    pthread_mutex_unlock(&open_lock);
    return rc;
}

/* To be called before any stream goes on, so that kernels after the failed operation can know of
 * the failure. */
static void tell_kernels(const struct ft_comm *comm, struct ft_comm_gpu *gpu)
{
    if (gpu->word && comm->failure.verdict != FT_OK)
        __atomic_store_n(gpu->word, 1, __ATOMIC_RELEASE);
}

void ft_gpu_ready(struct ft_comm *comm)
{
    if (!comm->engine->gpu || need_queue(comm) == FT_OK)
        return;
    FT_LOG(INFO, "init", comm->view.rank,
           "the communicator has no queue on the GPU, and its first call there tries again: %s",
           ft_fail_text());
}

int ft_gpu_word(struct ft_comm *comm, const uint32_t **out)
{
    uint32_t *host_ptr;
    const uint32_t *dev_ptr;
    if (!comm->engine->gpu)
        return ft_fail(FT_USAGE, "CommGetDeviceStatus: the communicator has no GPU");
    int rc = need_queue(comm);
    if (rc != FT_OK)
        return rc;
    struct ft_comm_gpu *gpu = ft_gpu_of(comm);
    pthread_mutex_lock(&open_lock);
    rc = gpu->ops->word(gpu->queue, &host_ptr, &dev_ptr);
    pthread_mutex_unlock(&open_lock);
    if (rc != FT_OK)
        return rc;
    ft_engine_lock(comm->engine);
    gpu->word = host_ptr;
    tell_kernels(comm, gpu);
    ft_engine_unlock(comm->engine);
    *out = dev_ptr;
    return FT_OK;
}

bool ft_gpu_owns(const struct ft_comm *comm, const void *ptr)
{
    struct ft_device *gpu = comm->engine->gpu;
    return gpu && ptr && gpu->ops->owns(gpu, ptr);
}

static int check_buffer(struct ft_device *gpu, const struct ft_op *op, const char *which,
                        const void *ptr, bool owned, bool host_stream)
{
    int only = ptr && owned && gpu->ops->only ? gpu->ops->only(gpu, ptr) : -1;
    if (!ptr)
        return FT_OK;
    if (only >= 0 && only != gpu->number)
        return ft_fail(FT_INVAL,
                       "%s: the %s buffer %p is memory of GPU %d, and this rank of the "
                       "communicator is on GPU %d",
                       ft_kind_name(op->coll.kind), which, ptr, only, gpu->number);
    if (host_stream && owned)
        return ft_fail(FT_INVAL,
                       "%s: the %s buffer %p is the GPU's: it goes with a stream of CUDA's or "
                       "NULL, not with one of ftcclStreamCreate()",
                       ft_kind_name(op->coll.kind), which, ptr);
    if (!host_stream && !owned)
        return ft_fail(FT_INVAL,
                       "%s: the %s buffer %p is not memory that the GPU can reach, and its stream "
                       "or other buffer is the GPU's",
                       ft_kind_name(op->coll.kind), which, ptr);
    return FT_OK;
}

int ft_gpu_want(struct ft_comm *comm, struct ft_op *op, struct ft_gpu_call call)
{
    if (!comm->engine->gpu)
        return FT_OK;
    bool in = ft_gpu_owns(comm, call.in), out = ft_gpu_owns(comm, call.out),
         scale = ft_gpu_owns(comm, op->scale_from);
    bool wanted = in || out || (call.stream && !call.host_stream);
    if (!wanted && scale)
        return ft_fail(FT_INVAL, "%s: the operator's scalar is the GPU's, the buffers are not",
                       ft_kind_name(op->coll.kind));
    if (!wanted)
        return FT_OK;
    int rc = check_buffer(comm->engine->gpu, op, "send", call.in, in, call.host_stream);
    if (rc == FT_OK)
        rc = check_buffer(comm->engine->gpu, op, "receive", call.out, out, call.host_stream);
    if (rc == FT_OK)
        rc = need_queue(comm);
    if (rc == FT_OK && !(op->on_queue = calloc(1, sizeof *op->on_queue)))
        rc = ft_fail(FT_NOMEM, "no memory for an operation");
    if (rc != FT_OK)
        return rc;
    op->on_queue->stream = call.stream;
    if (scale) {
        op->on_queue->scale_from = op->scale_from;
        op->scale_from = NULL;
    }
    return FT_OK;
}

struct ft_stream *ft_gpu_order(const struct ft_comm *comm)
{
    ft_stream_ref(ft_gpu_of(comm)->order);
    return ft_gpu_of(comm)->order;
}

size_t ft_gpu_most_streams(const struct ft_entry *entry)
{
    size_t most = 0;
    for (const struct ft_work *work = entry->works; work; work = work->next_in_entry)
        if (work->has_gpu)
            most = ft_max(most, (size_t)work->nops);
    return most;
}

void **ft_gpu_room(size_t n, void *few[FT_GPU_FEW])
{
    void **room = n <= FT_GPU_FEW ? few : malloc(n * sizeof *room);
    if (!room)
        ft_fail(FT_NOMEM, "no memory for a group of %zu operations", n);
    return room;
}

int ft_gpu_streams(const struct ft_work *work, void **streams)
{
    int n = 0;
    for (const struct ft_op *op = work->ops; op; op = op->next) {
        int k = 0;
        if (!op->on_queue)
            continue;
        while (k < n && streams[k] != op->on_queue->stream)
            k++;
        if (k == n)
            streams[n++] = op->on_queue->stream;
    }
    return n;
}

/* The kernels of a group run concurrently, and two communicators may share a stream. So all are
 * launched before any stream waits for one. If one launch fails, others may already have succeeded:
 * their works are submitted, and fail when they begin. */
static int launch_all(struct ft_entry *entry, void **streams)
{
    int rc = FT_OK, launched = 0;
    for (struct ft_work *work = entry->works; work && rc == FT_OK; work = work->next_in_entry) {
        struct ft_comm_gpu *gpu = work->has_gpu ? ft_gpu_of(work->comm) : NULL;
        if (gpu)
            rc = gpu->ops->after(gpu->queue, streams, ft_gpu_streams(work, streams), &work->run);
    }
    for (struct ft_work *work = entry->works; work; work = work->next_in_entry) {
        if (!work->run)
            continue;
        struct ft_comm_gpu *gpu = ft_gpu_of(work->comm);
        int held = gpu->ops->hold(gpu->queue, streams, ft_gpu_streams(work, streams));
        if (held != FT_OK)
            rc = held, work->run = 0;
        else
            launched++;
    }
    return launched > 0 ? FT_OK : rc;
}

int ft_gpu_launch(struct ft_entry *entry, struct ft_gpu_later **later)
{
    size_t most = ft_gpu_most_streams(entry);
    if (most == 0)
        return FT_OK;
    bool blocks = ft_gpu_launches_block();
    void *few[FT_GPU_FEW], **streams = ft_gpu_room(most, few);
    int rc = blocks    ? ft_gpu_announce(entry, later)
             : streams ? launch_all(entry, streams)
                       : FT_NOMEM;
    if (streams != few)
        free(streams);
    if (rc != FT_OK)
        return rc;
    for (struct ft_work *work = entry->works; work; work = work->next_in_entry)
        if (work->has_gpu)
            atomic_fetch_add_explicit(&work->comm->engine->gpu_works, 1, memory_order_relaxed);
    return FT_OK;
}

void ft_gpu_close(struct ft_comm *comm)
{
    struct ft_comm_gpu *gpu = ft_gpu_of(comm);
    if (!gpu)
        return;
    ft_graph_close(comm);
    gpu->ops->close(gpu->queue);
    ft_stream_release(gpu->order);
    free(gpu->digest.piece);
    free(gpu);
    comm->gpu = NULL;
}

/* ---- runs ------------------------------------------------------------------------------------ */

int ft_gpu_reached(const struct ft_work *work)
{
    const struct ft_comm_gpu *gpu = ft_gpu_of(work->comm);
    if (!work->run)
        return ft_fail(FT_DEVICE, "the group's kernels could not be launched");
    return gpu->ops->reached(gpu->queue, work->bell, work->run);
}

static void begin(struct ft_comm *comm, struct ft_work *work)
{
    if (!work->has_gpu)
        return;
    int rc = ft_gpu_reached(work);
    if (rc != FT_OK) {
        ft_comm_fail(comm, rc, comm->view.rank, "rank %d: %s", comm->view.rank, ft_fail_text());
        return;
    }
    struct ft_comm_gpu *gpu = ft_gpu_of(work->comm);
    gpu->ops->begin(gpu->queue, work->bell, work->run);
}

static bool holds(const struct ft_comm *comm)
{
    return comm->limits.hold && !atomic_load(&comm->let_go);
}

static void over(struct ft_work *work, int status)
{
    struct ft_comm_gpu *gpu = ft_gpu_of(work->comm);
    if (!work->has_gpu)
        return;
    atomic_fetch_sub_explicit(&work->comm->engine->gpu_works, 1, memory_order_relaxed);
    if (!work->run)
        return;
    tell_kernels(work->comm, gpu);
    bool hold = status != FT_OK && holds(work->comm);
    if (!hold)
        gpu->ops->signal(gpu->queue, work->bell, work->run);
    else if (!work->bell)
        gpu->held = work->run;
    if (work->bell)
        ft_graph_over(work);
}

/* Sets let_go first: then a thread that reaches `over` or ft_gpu_failed() later sees it. */
void ft_gpu_let_go(struct ft_comm *comm)
{
    struct ft_comm_gpu *gpu = ft_gpu_of(comm);
    atomic_store(&comm->let_go, 1);
    if (gpu)
        tell_kernels(comm, gpu);
    if (gpu && gpu->held)
        gpu->ops->signal(gpu->queue, NULL, gpu->held);
}

void ft_gpu_failed(struct ft_comm *comm)
{
    struct ft_comm_gpu *gpu = ft_gpu_of(comm);
    if (!gpu || gpu->muted)
        return;
    tell_kernels(comm, gpu);
    if (holds(comm))
        return;
    gpu->muted = true;
    gpu->ops->mute(gpu->queue, NULL);
}

bool ft_gpu_poll(struct ft_comm *comm)
{
    struct ft_comm_gpu *gpu = ft_gpu_of(comm);
    return gpu && gpu->ops->poll(gpu->queue) > 0;
}

static bool is_idle(const struct ft_comm *comm, uint64_t draining_ns)
{
    const struct ft_comm_gpu *gpu = ft_gpu_of(comm);
    return !gpu || gpu->ops->idle(gpu->queue) || draining_ns > GIVE_UP_NS;
}

const struct ft_stage ft_gpu_stage = {.begin = begin, .settle = is_idle, .over = over};

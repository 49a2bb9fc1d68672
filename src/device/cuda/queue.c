/*
 * A queue: the kernels of one communicator, one per group of calls. They run on a stream of their
 * own, between events on the user's streams. While a kernel runs, the engine communicates with it
 * through mapped memory only: a call of the driver could wait for a lock whose holder waits for the
 * kernel. The CPU copies operands that the device cannot access to and from pinned stages. A pass
 * is cut into pieces, so that these copies, the kernel and the links work in parallel.
 */
#include "device/cuda/cuda.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define STAGE_BYTES (FT_CUDA_PIECE + FT_CACHE_LINE)

/* ---- open and close -------------------------------------------------------------------------- */

static void forget_late(struct ft_device_queue *queue);

void ft_cuda_free_queue(struct ft_device_queue *queue)
{
    struct ft_cuda_device *cuda = queue->cuda;
    const struct ft_cuda_driver *driver = cuda->driver;
    ft_cuda_unlist(queue);
    if (ft_cuda_enter(cuda) == FT_OK) {
        if (queue->before)
            driver->cuEventDestroy(queue->before);
        if (queue->behind)
            driver->cuEventDestroy(queue->behind);
        if (queue->stream)
            driver->cuStreamDestroy(queue->stream);
        if (queue->control)
            forget_late(queue), driver->cuMemFreeHost(queue->control);
        if (queue->stages)
            driver->cuMemFreeHost(queue->stages);
        ft_cuda_free_bells(queue);
        ft_cuda_leave(cuda);
    }
    ft_cuda_device_release(cuda);
    free(queue);
}

int ft_cuda_map(const struct ft_cuda_driver *driver, size_t len_bytes, void **here,
                CUdeviceptr *dev_ptr)
{
    int rc = FT_CUDA(driver, cuMemHostAlloc, here, len_bytes,
                     CU_MEMHOSTALLOC_DEVICEMAP | CU_MEMHOSTALLOC_PORTABLE);
    return rc == FT_OK ? FT_CUDA(driver, cuMemHostGetDevicePointer, dev_ptr, *here, 0) : rc;
}

/* The stream has the highest priority. If the program's kernels fill the GPU, our few blocks start
 * first when one of them ends, because all ranks wait for our blocks. */
static int make_stream(const struct ft_cuda_driver *driver, CUstream *out)
{
    int least = 0, greatest = 0;
    int rc = FT_CUDA(driver, cuCtxGetStreamPriorityRange, &least, &greatest);
    return rc == FT_OK
               ? FT_CUDA(driver, cuStreamCreateWithPriority, out, CU_STREAM_NON_BLOCKING, greatest)
               : rc;
}

static int make_queue(struct ft_device_queue *queue)
{
    const struct ft_cuda_driver *driver = queue->cuda->driver;
    void *control = NULL, *stages = NULL;
    int rc = ft_cuda_enter(queue->cuda);
    if (rc != FT_OK)
        return rc;
    rc = make_stream(driver, &queue->stream);
    if (rc == FT_OK)
        rc = FT_CUDA(driver, cuEventCreate, &queue->before, CU_EVENT_DISABLE_TIMING);
    if (rc == FT_OK)
        rc = FT_CUDA(driver, cuEventCreate, &queue->behind, CU_EVENT_DISABLE_TIMING);
    if (rc == FT_OK)
        rc = ft_cuda_map(driver, sizeof *queue->control, &control, &queue->control_dev_ptr);
    if (rc == FT_OK)
        rc = ft_cuda_map(driver, FT_CUDA_STAGES * STAGE_BYTES, &stages, &queue->stages_dev_ptr);
    queue->control = control;
    queue->stages = stages;
    ft_cuda_leave(queue->cuda);
    if (queue->control)
        memset(queue->control, 0, sizeof *queue->control);
    return rc;
}

/* Resets a queue for reuse, after all its kernels have exited. */
static void reset_queue(struct ft_device_queue *queue)
{
    forget_late(queue);
    memset(queue->control, 0, sizeof *queue->control);
    ft_cuda_renew_bells(queue);
    atomic_store(&queue->launched, 0);
    atomic_store(&queue->issued, 0);
    atomic_store(&queue->refused, 0);
    atomic_store(&queue->unowned, 0);
    queue->done = queue->staged_bytes = queue->direct_bytes = queue->devmem_bytes = 0;
    queue->first = queue->last = NULL;
    queue->failed = false;
    queue->runs_bell = NULL;
    queue->runs_number = 0;
}

static int new_queue(struct ft_cuda_device *cuda, struct ft_device_queue **out)
{
    struct ft_device_queue *queue = calloc(1, sizeof *queue);
    if (!queue)
        return ft_fail(FT_NOMEM, "no memory for a queue of the CUDA device");
    queue->cuda = cuda;
    atomic_fetch_add_explicit(&cuda->refs, 1, memory_order_relaxed);
    int rc = make_queue(queue);
    ft_cuda_list(queue);
    if (rc == FT_OK)
        *out = queue;
    else
        ft_cuda_free_queue(queue);
    return rc;
}

static int queue_open(struct ft_device *device, uint64_t silence_ns, struct ft_device_queue **out)
{
    struct ft_cuda_device *cuda = FT_CONTAINER(device, struct ft_cuda_device, base);
    struct ft_device_queue *queue = ft_cuda_take_closed(cuda);
    ft_cuda_reap();
    if (queue)
        reset_queue(queue);
    int rc = queue ? FT_OK : new_queue(cuda, &queue);
    if (rc != FT_OK)
        return rc;
    queue->silence_ns = silence_ns;
    queue->nfree = 0;
    for (int i = 0; i < FT_CUDA_STAGES; i++)
        queue->free_stage[queue->nfree++] = (unsigned char)i;
    *out = queue;
    return FT_OK;
}

static void queue_close(struct ft_device_queue *queue)
{
    ft_cuda_store(&queue->control->calls.ended, FT_CUDA_MUTE);
    ft_cuda_mute(queue, NULL);
    ft_cuda_word_close(queue);
    FT_LOG(INFO, "net", -1,
           "a queue of %s closes: of messages it staged %llu bytes and reached %llu where they "
           "lay, %llu of them in memory of GPUs",
           queue->cuda->name, (unsigned long long)queue->staged_bytes,
           (unsigned long long)queue->direct_bytes, (unsigned long long)queue->devmem_bytes);
    ft_cuda_defer_queue(queue);
    ft_cuda_reap();
}

/* ---- runs ------------------------------------------------------------------------------------ */

static int check_streams(const struct ft_device_queue *queue, void *const *streams, int n)
{
    for (int i = 0; i < n; i++) {
        CUstreamCaptureStatus capture = CU_STREAM_CAPTURE_STATUS_NONE;
        int rc = FT_CUDA(queue->cuda->driver, cuStreamIsCapturing, (CUstream)streams[i], &capture);
        if (rc != FT_OK)
            return ft_fail(FT_INVAL, "%p is not a stream of this process and context", streams[i]);
        if (capture != CU_STREAM_CAPTURE_STATUS_NONE)
            return ft_fail(FT_NOTSUP,
                           "the stream %p is being captured: the capture began during this call",
                           streams[i]);
    }
    return FT_OK;
}

static int put_behind(struct ft_device_queue *queue, void *const *streams, int n)
{
    const struct ft_cuda_driver *driver = queue->cuda->driver;
    int rc = FT_OK;
    for (int i = 0; i < n && rc == FT_OK; i++) {
        rc = FT_CUDA(driver, cuEventRecord, queue->before, (CUstream)streams[i]);
        if (rc == FT_OK)
            rc = FT_CUDA(driver, cuStreamWaitEvent, queue->stream, queue->before, 0);
    }
    return rc;
}

static int launch(struct ft_device_queue *queue, uint64_t run)
{
    const struct ft_cuda_device *cuda = queue->cuda;
    CUdeviceptr none = 0;
    void *arguments[] = {&queue->control_dev_ptr, &run, &queue->silence_ns, &none};
    return FT_CUDA(cuda->driver, cuLaunchKernel, cuda->kernel, cuda->blocks, 1, 1, cuda->threads, 1,
                   1, 0, queue->stream, arguments, NULL);
}

static void end_calls(struct ft_device_queue *queue, uint64_t run)
{
    uint64_t *ended = &queue->control->calls.ended, was = __atomic_load_n(ended, __ATOMIC_SEQ_CST);
    if (atomic_load(&queue->unowned) == run + 1)
        run++;
    while (was < run && !__atomic_compare_exchange_n(ended, &was, run, false, __ATOMIC_SEQ_CST,
                                                     __ATOMIC_SEQ_CST)) {}
    if (atomic_load(&queue->unowned) == run + 1)
        end_calls(queue, run + 1); /* queue_hold() has set it meanwhile */
}

static void queue_signal(struct ft_device_queue *queue, struct ft_device_bell *bell, uint64_t run)
{
    if (!bell) {
        end_calls(queue, run);
        return;
    }
    uint64_t *ended = &ft_cuda_bell_shared(bell)->gate.ended, was = *ended;
    if (was >= run)
        return;
    ft_cuda_store(ended, run);
    atomic_fetch_add(&queue->rings_over, run - was);
}

static void queue_begin(struct ft_device_queue *queue, struct ft_device_bell *bell, uint64_t run)
{
    queue->runs_bell = bell;
    queue->runs_number = run;
    ft_cuda_store(bell ? &ft_cuda_bell_shared(bell)->gate.begun : &queue->control->calls.begun,
                  run);
}

/* A kernel was launched, but the streams do not wait for it, and the caller does not know of the
 * run. So the run ends together with the run before it. */
static void give_up_run(struct ft_device_queue *queue, uint64_t run)
{
    atomic_store(&queue->unowned, run);
    if (__atomic_load_n(&queue->control->calls.ended, __ATOMIC_SEQ_CST) + 1 == run)
        end_calls(queue, run);
}

/* Returns true if such a run still waits for the run before it. There can be only one. */
static bool has_unowned_run(const struct ft_device_queue *queue)
{
    return atomic_load(&queue->unowned) >
           __atomic_load_n(&queue->control->calls.ended, __ATOMIC_SEQ_CST);
}

/* Creates the next run after the work on the streams, and launches it now or only announces it.
 * Entered. */
static int next_run(struct ft_device_queue *queue, void *const *streams, int n, bool now,
                    uint64_t *run)
{
    uint64_t next = atomic_load(&queue->launched) + 1;
    int rc = check_streams(queue, streams, n);
    if (rc == FT_OK && has_unowned_run(queue))
        rc = ft_fail(FT_DEVICE,
                     "an earlier call failed half-way: the groups before it must end first");
    if (rc == FT_OK)
        rc = put_behind(queue, streams, n);
    if (rc == FT_OK && now)
        rc = launch(queue, next);
    if (rc != FT_OK)
        return rc;
    if (now)
        atomic_store(&queue->issued, next);
    atomic_store(&queue->launched, *run = next); /* from here on the caller has to end the run */
    return FT_OK;
}

static int queue_after(struct ft_device_queue *queue, void *const *streams, int n, uint64_t *run)
{
    int rc = ft_cuda_enter(queue->cuda);
    if (rc != FT_OK)
        return rc;
    rc = next_run(queue, streams, n, true, run);
    ft_cuda_leave(queue->cuda);
    return rc;
}

static int queue_announce(struct ft_device_queue *queue, void *const *streams, int n, uint64_t *run)
{
    int rc = ft_cuda_enter(queue->cuda);
    if (rc != FT_OK)
        return rc;
    rc = next_run(queue, streams, n, false, run);
    ft_cuda_leave(queue->cuda);
    return rc;
}

/* Launches runs in the order of their numbers. The thread that announced an earlier run is in this
 * function too, or is about to call it. */
static int queue_launch(struct ft_device_queue *queue, uint64_t run)
{
    while (atomic_load(&queue->issued) + 1 < run)
        usleep(50);
    int rc = ft_cuda_enter(queue->cuda);
    if (rc == FT_OK) {
        rc = launch(queue, run);
        ft_cuda_leave(queue->cuda);
    }
    if (rc != FT_OK)
        atomic_store(&queue->refused, run);
    atomic_store(&queue->issued, run);
    return rc;
}

static int queue_hold(struct ft_device_queue *queue, void *const *streams, int n)
{
    const struct ft_cuda_driver *driver = queue->cuda->driver;
    int rc = ft_cuda_enter(queue->cuda);
    if (rc == FT_OK) {
        rc = FT_CUDA(driver, cuEventRecord, queue->behind, queue->stream);
        for (int i = 0; i < n && rc == FT_OK; i++)
            rc = FT_CUDA(driver, cuStreamWaitEvent, (CUstream)streams[i], queue->behind, 0);
        ft_cuda_leave(queue->cuda);
    }
    if (rc != FT_OK)
        give_up_run(queue, atomic_load(&queue->launched));
    return rc;
}

static bool is_expired(const struct ft_device_queue *queue, const struct ft_device_bell *bell,
                       uint64_t run)
{
    return ft_cuda_load(bell ? &ft_cuda_bell_shared(bell)->expired
                             : &queue->control->block[0].expired) >= run;
}

/* A bell that has rung counts as reached. */
static int queue_reached(struct ft_device_queue *queue, const struct ft_device_bell *bell,
                         uint64_t run)
{
    if (queue->failed)
        return FT_DEVICE;
    if (!bell && atomic_load(&queue->refused) == run)
        return ft_fail(FT_DEVICE, "a kernel could not be launched");
    if (!bell && ft_cuda_load(&queue->control->block[0].started) < run)
        return FT_AGAIN;
    return !is_expired(queue, bell, run)
               ? FT_OK
               : ft_fail(FT_DEVICE,
                         "a kernel gave up because nothing was heard from the engine for %llu ms",
                         (unsigned long long)(queue->silence_ns / 1000000));
}

/* ---- passes ---------------------------------------------------------------------------------- */

static int count_staged(const struct ft_device_req *req)
{
    return __builtin_popcount(req->staged.src & ((1u << req->pass.nsrc) - 1)) +
           __builtin_popcount(req->staged.dst & ((1u << req->pass.ndst) - 1));
}

/* The alignment modulo 16 for stages: that of the first operand that is not staged. If operands had
 * different alignments, the kernel would work on single elements. */
static size_t skew_of(const struct ft_device_req *req, size_t at)
{
    for (int k = 0; k < req->pass.nsrc; k++)
        if (!(req->staged.src >> k & 1))
            return ((uintptr_t)req->pass.src[k] + at) % 16;
    for (int d = 0; d < req->pass.ndst; d++)
        if (!(req->staged.dst >> d & 1))
            return ((uintptr_t)req->pass.dst[d] + at) % 16;
    return 0;
}

/* Returns true if a link's memory need not be staged. Pinned host memory is staged only if its
 * alignment would make the kernel work on single elements. Device memory cannot be staged. */
static bool can_reach(struct ft_device_queue *queue, const void *at, size_t len, size_t skew)
{
    enum ft_pinned_kind kind = ft_pinned_has(at, len);
    if (kind == FT_PINNED_DEVICE)
        queue->devmem_bytes += len;
    return kind == FT_PINNED_DEVICE || (kind == FT_PINNED_HOST && (uintptr_t)at % 16 == skew);
}

static void reach_links(struct ft_device_queue *queue, struct ft_device_req *req)
{
    const struct ft_reduce *pass = &req->pass;
    size_t len = pass->count * ft_type_size(pass->type), skew = skew_of(req, 0);
    struct ft_device_staged staged = req->staged;
    for (int k = 0; k < pass->nsrc; k++)
        if ((staged.src >> k & 1) && can_reach(queue, pass->src[k], len, skew))
            staged.src &= ~(1u << k);
    for (int d = 0; d < pass->ndst; d++)
        if ((staged.dst >> d & 1) && can_reach(queue, pass->dst[d], len, skew))
            staged.dst &= ~(1u << d);
    int before = count_staged(req);
    req->staged = staged;
    queue->staged_bytes += (uint64_t)count_staged(req) * len;
    queue->direct_bytes += (uint64_t)(before - count_staged(req)) * len;
    req->direct = count_staged(req) < before;
}

static size_t stage_at(const struct ft_cuda_posted *posted, int i, size_t skew)
{
    return posted->stage[i] * STAGE_BYTES + skew;
}

static void fill_command(struct ft_device_queue *queue, struct ft_cuda_posted *posted,
                         struct ft_cuda_command *command)
{
    const struct ft_device_req *req = posted->req;
    const struct ft_reduce *pass = &req->pass;
    size_t size = ft_type_size(pass->type), at = posted->at * size, len = posted->count * size,
           skew = skew_of(req, at);
    bool copies = pass->nsrc == 1 && !pass->scaled && !(pass->divide && pass->op.divisor > 1);
    int n = 0;
    memset(command, 0, sizeof *command);
    command->count = copies ? len : posted->count;
    command->type = (uint8_t)(copies ? FT_UINT8 : pass->type);
    command->red = (uint8_t)pass->op.red;
    command->nsrc = (uint8_t)pass->nsrc;
    command->ndst = (uint8_t)pass->ndst;
    command->scaled = pass->scaled;
    command->divisor = pass->divide ? pass->op.divisor : 0;
    command->scale = pass->op.scale.u64;
    command->scale_from = (uintptr_t)req->scale_from;
    for (int k = 0; k < pass->nsrc; k++) {
        command->src[k] = (uintptr_t)pass->src[k] + at;
        if (!(req->staged.src >> k & 1))
            continue;
        size_t stage = stage_at(posted, n++, skew);
        memcpy(queue->stages + stage, (const char *)pass->src[k] + at, len);
        command->src[k] = queue->stages_dev_ptr + stage;
    }
    for (int d = 0; d < pass->ndst; d++)
        command->dst[d] = req->staged.dst >> d & 1
                              ? queue->stages_dev_ptr + stage_at(posted, n++, skew)
                              : (uintptr_t)pass->dst[d] + at;
}

/* Posts one command if there is room. Removes the pass from the list with its last command. */
static bool post_one(struct ft_device_queue *queue)
{
    struct ft_device_req *req = queue->first;
    uint64_t next = queue->control->posted;
    int staged = req ? count_staged(req) : 0;
    if (!req || next - queue->done == FT_CUDA_RING || staged > queue->nfree)
        return false;
    size_t most = staged ? FT_CUDA_PIECE / ft_type_size(req->pass.type) : req->pass.count;
    struct ft_cuda_posted *posted = &queue->posted[next % FT_CUDA_RING];
    *posted = (struct ft_cuda_posted){.req = req,
                                      .at = req->posted,
                                      .count = ft_min(most, req->pass.count - req->posted),
                                      .nstages = staged,
                                      .direct = req->direct};
    for (int i = 0; i < staged; i++)
        posted->stage[i] = queue->free_stage[--queue->nfree];
    fill_command(queue, posted, &queue->control->ring[next % FT_CUDA_RING]);
    req->posted += posted->count;
    if (req->posted == req->pass.count) {
        queue->first = req->next;
        if (!queue->first)
            queue->last = NULL;
    }
    ft_cuda_store(&queue->control->posted, next + 1);
    return true;
}

static int queue_reduce(struct ft_device_queue *queue, const struct ft_reduce *pass,
                        struct ft_device_staged staged, const void *scale_from,
                        struct ft_device_req *req)
{
    assert(pass->nsrc >= 1 && pass->nsrc <= FT_CUDA_OPERANDS && pass->ndst >= 1 &&
           pass->ndst <= FT_CUDA_OPERANDS);
    if (queue->failed)
        return FT_DEVICE;
    if (!pass->count)
        return req->status = FT_OK;
    *req = (struct ft_device_req){.status = FT_AGAIN,
                                  .pass = *pass,
                                  .staged = staged,
                                  .scale_from = scale_from,
                                  .left = pass->count};
    reach_links(queue, req);
    if (queue->last)
        queue->last->next = req;
    else
        queue->first = req;
    queue->last = req;
    while (post_one(queue)) {}
    return FT_AGAIN;
}

static void collect_command(struct ft_device_queue *queue, struct ft_cuda_posted *posted)
{
    struct ft_device_req *req = posted->req;
    for (int i = 0; i < posted->nstages; i++)
        queue->free_stage[queue->nfree++] = posted->stage[i];
    if (posted->late)
        ft_pinned_add_late_passes(-1);
    if (!req)
        return;
    const struct ft_reduce *pass = &req->pass;
    size_t size = ft_type_size(pass->type), at = posted->at * size, skew = skew_of(req, at);
    int n = __builtin_popcount(req->staged.src & ((1u << pass->nsrc) - 1));
    for (int d = 0; d < pass->ndst; d++)
        if (req->staged.dst >> d & 1)
            memcpy((char *)pass->dst[d] + at, queue->stages + stage_at(posted, n++, skew),
                   posted->count * size);
    req->left -= posted->count;
    if (req->left == 0)
        req->status = FT_OK;
}

/* Forgets cancelled commands. No kernel executes the ring any more. */
static void forget_late(struct ft_device_queue *queue)
{
    for (uint64_t i = queue->done; i < queue->control->posted; i++) {
        struct ft_cuda_posted *posted = &queue->posted[i % FT_CUDA_RING];
        if (posted->late)
            ft_pinned_add_late_passes(-1);
        posted->late = false;
    }
}

static void fail_all(struct ft_device_queue *queue)
{
    queue->failed = true;
    for (struct ft_device_req *req = queue->first, *next; req; req = next) {
        next = req->next;
        req->status = FT_DEVICE;
    }
    queue->first = queue->last = NULL;
    for (uint64_t i = queue->done; i < queue->control->posted; i++) {
        struct ft_cuda_posted *posted = &queue->posted[i % FT_CUDA_RING];
        if (posted->req)
            posted->req->status = FT_DEVICE;
        posted->req = NULL;
    }
    forget_late(queue);
}

static int queue_poll(struct ft_device_queue *queue)
{
    uint64_t done = UINT64_MAX;
    int moved = 0;
    if (queue->failed || (!queue->first && queue->done == queue->control->posted))
        return 0;
    bool expired = queue->runs_bell && is_expired(queue, queue->runs_bell, queue->runs_number);
    for (unsigned b = 0; b < queue->cuda->blocks; b++) {
        const struct ft_cuda_block *block = &queue->control->block[b];
        uint64_t here = ft_cuda_load(&block->done);
        if (here < done)
            done = here;
        expired |= ft_cuda_load(&block->expired) != 0;
    }
    for (; queue->done < done; queue->done++, moved++)
        collect_command(queue, &queue->posted[queue->done % FT_CUDA_RING]);
    while (post_one(queue))
        moved++;
    /* no kernel executes the remaining commands */
    if (expired && queue->done < queue->control->posted)
        fail_all(queue);
    return moved;
}

static void queue_cancel(struct ft_device_queue *queue, struct ft_device_req *req)
{
    if (req->status != FT_AGAIN)
        return;
    queue->last = NULL;
    for (struct ft_device_req **at = &queue->first; *at;) {
        if (*at == req)
            *at = req->next;
        else
            queue->last = *at, at = &(*at)->next;
    }
    for (uint64_t i = queue->done; i < queue->control->posted; i++) {
        struct ft_cuda_posted *posted = &queue->posted[i % FT_CUDA_RING];
        if (posted->req != req)
            continue;
        posted->req = NULL;
        posted->late = posted->direct;
        if (posted->late)
            ft_pinned_add_late_passes(1);
    }
    req->status = FT_ABORTED;
}

static bool queue_idle(const struct ft_device_queue *queue)
{
    return queue->failed || (!queue->first && queue->done == queue->control->posted);
}

const struct ft_device_queue_ops ft_cuda_queue_ops = {
    .open = queue_open,
    .close = queue_close,
    .after = queue_after,
    .announce = queue_announce,
    .launch = queue_launch,
    .hold = queue_hold,
    .reached = queue_reached,
    .begin = queue_begin,
    .signal = queue_signal,
    .reduce = queue_reduce,
    .poll = queue_poll,
    .cancel = queue_cancel,
    .idle = queue_idle,
    .word = ft_cuda_word,
    .capturing = ft_cuda_capturing,
    .capture = ft_cuda_capture,
    .captured = ft_cuda_captured,
    .rung = ft_cuda_rung,
    .gone = ft_cuda_gone,
    .is_gone = ft_cuda_is_gone,
    .forget = ft_cuda_forget,
    .mute = ft_cuda_mute,
};

/*
 * Deferred freeing of closed queues and devices. The kernels of a closed queue may not have exited:
 * a stream of the user may still have to reach one, and a graph may launch one. Also, the driver
 * waits for all kernels of the process, of every communicator, before it frees or unpins host
 * memory. A kernel that a failure holds, or whose stream stands still, would block the thread that
 * frees. So memory is freed only while no kernel of ours is on a device or on its way to one. This
 * is tried whenever a device or queue is opened or closed. A queue that is opened reuses a closed
 * one if possible. Memory that is never freed goes back to the system when the process ends.
 */
#include "device/cuda/cuda.h"

static pthread_mutex_t deferred_lock =
    PTHREAD_MUTEX_INITIALIZER; /* protects all lists of this file */
/* all queues of the process, linked by `sibling` */
static struct ft_device_queue *queues;
/* those that are closed, linked by `next` */
static struct ft_device_queue *closed;
static struct ft_cuda_device *unused; /* devices without references, linked by `next` */

/* Returns true if every kernel that a call launched has exited. */
static bool calls_exited(const struct ft_device_queue *queue)
{
    uint64_t launched = atomic_load(&queue->launched);
    for (unsigned b = 0; b < queue->cuda->blocks; b++)
        if (ft_cuda_load(&queue->control->block[b].exited) < launched)
            return false;
    return true;
}

/* Returns true if, in addition, no graph contains a kernel. Then nothing on the device will access
 * this memory. */
static bool has_exited(const struct ft_device_queue *queue)
{
    return atomic_load(&queue->gone) >= atomic_load(&queue->made) && calls_exited(queue);
}

/* Returns true if a kernel may stay on the device. A kernel whose run has ended exits without
 * waiting for anybody. */
static bool may_be_pending(const struct ft_device_queue *queue)
{
    bool graphs = !atomic_load(&queue->muted) &&
                  ft_cuda_load(&queue->control->rings) > atomic_load(&queue->rings_over);
    return graphs || !calls_exited(queue);
}

static bool one_may_be_pending_locked(void)
{
    bool any = false;
    for (const struct ft_device_queue *queue = queues; queue && !any; queue = queue->sibling)
        any = queue->control && may_be_pending(queue);
    return any;
}

bool ft_cuda_kernel_pending(void)
{
    pthread_mutex_lock(&deferred_lock);
    bool pending = one_may_be_pending_locked();
    pthread_mutex_unlock(&deferred_lock);
    return pending;
}

static bool has_done(const struct ft_device_queue *queue)
{
    uint64_t posted = ft_cuda_load(&queue->control->posted);
    for (unsigned b = 0; b < queue->cuda->blocks; b++)
        if (ft_cuda_load(&queue->control->block[b].done) < posted)
            return false;
    return true;
}

bool ft_cuda_commands_done(const struct ft_cuda_device *cuda)
{
    bool quiet = true;
    pthread_mutex_lock(&deferred_lock);
    for (const struct ft_device_queue *queue = queues; queue; queue = queue->sibling)
        quiet &= queue->cuda != cuda || !queue->control || has_done(queue) ||
                 (queue->closed && has_exited(queue));
    pthread_mutex_unlock(&deferred_lock);
    return quiet;
}

void ft_cuda_list(struct ft_device_queue *queue)
{
    pthread_mutex_lock(&deferred_lock);
    queue->sibling = queues;
    queues = queue;
    pthread_mutex_unlock(&deferred_lock);
}

void ft_cuda_unlist(struct ft_device_queue *queue)
{
    pthread_mutex_lock(&deferred_lock);
    struct ft_device_queue **at = &queues;
    while (*at != queue)
        at = &(*at)->sibling;
    *at = queue->sibling;
    pthread_mutex_unlock(&deferred_lock);
}

void ft_cuda_defer_queue(struct ft_device_queue *queue)
{
    pthread_mutex_lock(&deferred_lock);
    queue->closed = true;
    queue->next = closed;
    closed = queue;
    pthread_mutex_unlock(&deferred_lock);
}

struct ft_device_queue *ft_cuda_take_closed(const struct ft_cuda_device *cuda)
{
    struct ft_device_queue *found = NULL;
    pthread_mutex_lock(&deferred_lock);
    for (struct ft_device_queue **at = &closed; *at && !found;) {
        if ((*at)->cuda == cuda && has_exited(*at)) {
            found = *at;
            *at = found->next;
            found->closed = false;
        } else
            at = &(*at)->next;
    }
    pthread_mutex_unlock(&deferred_lock);
    return found;
}

void ft_cuda_defer_device(struct ft_cuda_device *cuda)
{
    pthread_mutex_lock(&deferred_lock);
    cuda->next = unused;
    unused = cuda;
    pthread_mutex_unlock(&deferred_lock);
    ft_cuda_reap();
}

/* Takes all closed queues whose kernels have exited. */
static struct ft_device_queue *take_queues_locked(void)
{
    struct ft_device_queue *taken = NULL;
    for (struct ft_device_queue **at = &closed; *at;) {
        struct ft_device_queue *queue = *at;
        if (has_exited(queue)) {
            *at = queue->next;
            queue->next = taken;
            taken = queue;
        } else
            at = &queue->next;
    }
    return taken;
}

void ft_cuda_reap(void)
{
    struct ft_device_queue *left = NULL;
    struct ft_cuda_device *devices = NULL;
    pthread_mutex_lock(&deferred_lock);
    if (!one_may_be_pending_locked()) {
        left = take_queues_locked();
        devices = unused;
        unused = NULL;
    }
    pthread_mutex_unlock(&deferred_lock);
    for (struct ft_device_queue *next; left; left = next) {
        next = left->next;
        /* this may release the device, which calls ft_cuda_reap() again, with only that device to
         * free */
        ft_cuda_free_queue(left);
    }
    for (struct ft_cuda_device *next; devices; devices = next) {
        next = devices->next;
        ft_cuda_free_device(devices);
    }
}

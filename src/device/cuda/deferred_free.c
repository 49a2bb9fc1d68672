/*
 * What is left behind: closed queues whose kernels have not left, for a stream of the user's may
 * still be on its way to one and a graph may start one, and what may not be freed yet. The driver
 * waits for all kernels of the process, of every communicator, before it frees or unpins memory of
 * the host: one that a failure holds, or whose stream stands still, would keep whoever frees. So
 * that is done only while no kernel of ours is on a device or on its way there. It is tried when a
 * device or queue is opened or closed; a queue that is opened takes what a closed one had. At the
 * latest the system frees it.
 */
#include "device/cuda/cuda.h"

static pthread_mutex_t left_lock = PTHREAD_MUTEX_INITIALIZER; /* of all that is here */
static struct ft_device_queue *queues;                        /* all of the process, by `sibling` */
static struct ft_device_queue *closed;                        /* of those, by `next` */
static struct ft_cuda_device *unused; /* devices that nobody has any more, by `next` */

/* Every kernel that was launched by a call has left. */
static bool calls_left(const struct ft_device_queue *queue)
{
    uint64_t launched = atomic_load(&queue->launched);
    for (unsigned b = 0; b < queue->cuda->blocks; b++)
        if (ft_cuda_load(&queue->control->block[b].exited) < launched)
            return false;
    return true;
}

/* And no graph has one, so that nothing on the device will look at this memory any more. */
static bool has_left(const struct ft_device_queue *queue)
{
    return atomic_load(&queue->gone) >= atomic_load(&queue->made) && calls_left(queue);
}

/* A kernel whose run has been ended leaves without waiting for anybody. */
static bool may_stand(const struct ft_device_queue *queue)
{
    bool graphs = !atomic_load(&queue->muted) &&
                  ft_cuda_load(&queue->control->rings) > atomic_load(&queue->rings_over);
    return graphs || !calls_left(queue);
}

static bool one_may_stand_locked(void)
{
    bool any = false;
    for (const struct ft_device_queue *queue = queues; queue && !any; queue = queue->sibling)
        any = queue->control && may_stand(queue);
    return any;
}

bool ft_cuda_stands(void)
{
    pthread_mutex_lock(&left_lock);
    bool stands = one_may_stand_locked();
    pthread_mutex_unlock(&left_lock);
    return stands;
}

static bool has_done(const struct ft_device_queue *queue)
{
    uint64_t posted = ft_cuda_load(&queue->control->posted);
    for (unsigned b = 0; b < queue->cuda->blocks; b++)
        if (ft_cuda_load(&queue->control->block[b].done) < posted)
            return false;
    return true;
}

bool ft_cuda_quiet(const struct ft_cuda_device *cuda)
{
    bool quiet = true;
    pthread_mutex_lock(&left_lock);
    for (const struct ft_device_queue *queue = queues; queue; queue = queue->sibling)
        quiet &= queue->cuda != cuda || !queue->control || has_done(queue) ||
                 (queue->closed && has_left(queue));
    pthread_mutex_unlock(&left_lock);
    return quiet;
}

void ft_cuda_list(struct ft_device_queue *queue)
{
    pthread_mutex_lock(&left_lock);
    queue->sibling = queues;
    queues = queue;
    pthread_mutex_unlock(&left_lock);
}

void ft_cuda_unlist(struct ft_device_queue *queue)
{
    pthread_mutex_lock(&left_lock);
    struct ft_device_queue **at = &queues;
    while (*at != queue)
        at = &(*at)->sibling;
    *at = queue->sibling;
    pthread_mutex_unlock(&left_lock);
}

void ft_cuda_leave_queue(struct ft_device_queue *queue)
{
    pthread_mutex_lock(&left_lock);
    queue->closed = true;
    queue->next = closed;
    closed = queue;
    pthread_mutex_unlock(&left_lock);
}

struct ft_device_queue *ft_cuda_take_left(const struct ft_cuda_device *cuda)
{
    struct ft_device_queue *found = NULL;
    pthread_mutex_lock(&left_lock);
    for (struct ft_device_queue **at = &closed; *at && !found;) {
        if ((*at)->cuda == cuda && has_left(*at)) {
            found = *at;
            *at = found->next;
            found->closed = false;
        } else
            at = &(*at)->next;
    }
    pthread_mutex_unlock(&left_lock);
    return found;
}

void ft_cuda_leave_device(struct ft_cuda_device *cuda)
{
    pthread_mutex_lock(&left_lock);
    cuda->next = unused;
    unused = cuda;
    pthread_mutex_unlock(&left_lock);
    ft_cuda_reap();
}

/* Those whose kernels have left. */
static struct ft_device_queue *take_queues_locked(void)
{
    struct ft_device_queue *taken = NULL;
    for (struct ft_device_queue **at = &closed; *at;) {
        struct ft_device_queue *queue = *at;
        if (has_left(queue)) {
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
    pthread_mutex_lock(&left_lock);
    if (!one_may_stand_locked()) {
        left = take_queues_locked();
        devices = unused;
        unused = NULL;
    }
    pthread_mutex_unlock(&left_lock);
    for (struct ft_device_queue *next; left; left = next) {
        next = left->next;
        /* may leave its device, which comes back here: with nothing to do but that */
        ft_cuda_free_queue(left);
    }
    for (struct ft_cuda_device *next; devices; devices = next) {
        next = devices->next;
        ft_cuda_free_device(devices);
    }
}

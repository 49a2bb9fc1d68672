/*
 * CUDA_LAUNCH_BLOCKING=1, for debuggers and tools: a launch blocks until its kernel has ended. The
 * engine must know the runs of a group before their kernels arrive, so runs are announced with the
 * group, and launched after its submission. Every kernel but the first is launched by a thread of
 * its own, since kernels of a group may wait for each other. Then the user's thread goes on, and
 * its streams have nothing left to wait for.
 */
#include "core/run/run.h"

#include <stdlib.h>

/* The caller keeps the communicators; the works may already be over and freed. */
struct later {
    const struct ft_device_queue_ops *ops;
    struct ft_device_queue *queue;
    uint64_t run;
    void **streams;
    int nstreams, status;
    bool started; /* the thread runs */
    pthread_t thread;
};

struct ft_gpu_later {
    int n;
    struct later one[];
};

bool ft_gpu_launches_block(void)
{
    return ft_param_int(FT_PARAM_CUDA_LAUNCH_BLOCKING) != 0;
}

static void free_later(struct ft_gpu_later *later)
{
    for (int i = 0; later && i < later->n; i++)
        free(later->one[i].streams);
    free(later);
}

static int prepare(struct ft_work *work, struct later *one)
{
    const struct ft_comm_gpu *gpu = work->comm->gpu;
    one->streams = calloc((size_t)work->nops, sizeof *one->streams);
    if (!one->streams)
        return ft_fail(FT_NOMEM, "no memory for a group of %d operations", work->nops);
    one->ops = gpu->ops;
    one->queue = gpu->queue;
    one->nstreams = ft_gpu_streams(work, one->streams);
    int rc = gpu->ops->announce(gpu->queue, one->streams, one->nstreams, &work->run);
    one->run = work->run;
    return rc;
}

int ft_gpu_announce(struct ft_entry *entry, struct ft_gpu_later **out)
{
    struct ft_gpu_later *later = calloc(1, sizeof *later +
                                               (size_t)entry->nworks * sizeof later->one[0]);
    int rc = later ? FT_OK
                   : ft_fail(FT_NOMEM, "no memory for a group of %d communicators", entry->nworks),
        announced = 0;
    for (struct ft_work *work = entry->works; work && rc == FT_OK; work = work->next_in_entry) {
        if (!work->has_gpu)
            continue;
        rc = prepare(work, &later->one[later->n++]);
        announced += rc == FT_OK;
    }
    /* As with launches: works without a run fail when they begin; the others are queued behind
     * their streams. */
    if (announced > 0)
        *out = later;
    else
        free_later(later);
    return announced > 0 ? FT_OK : rc;
}

static void *launch(void *arg)
{
    struct later *one = arg;
    if (one->run)
        one->status = one->ops->launch(one->queue, one->run);
    if (one->status != FT_OK)
        FT_LOG(WARN, "init", -1, "a group's kernel could not be launched: %s", ft_fail_text());
    return NULL;
}

void ft_gpu_launch_later(struct ft_gpu_later *later)
{
    if (!later)
        return;
    for (int i = 1; i < later->n; i++)
        later->one[i].started = pthread_create(&later->one[i].thread, NULL, launch,
                                               &later->one[i]) == 0;
    for (int i = 0; i < later->n; i++) {
        if (later->one[i].started)
            pthread_join(later->one[i].thread, NULL);
        else
            launch(&later->one[i]);
    }
    for (int i = 0; i < later->n; i++) {
        const struct later *one = &later->one[i];
        if (one->run && one->status == FT_OK)
            one->ops->hold(one->queue, one->streams, one->nstreams);
    }
    free_later(later);
}
